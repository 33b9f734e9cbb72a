"""rlrun: reinforcement-learning experiments from one YAML file.

The public names below are imported on first use, so that ``import rlrun`` (and ``rlrun --help``)
costs neither torch nor Ray.
"""

import sys
from importlib import import_module
from typing import Any

if sys.platform == "win32":  # no forked workers, file locks or signals as rlrun uses them
    raise ImportError("rlrun runs on Linux and macOS; on Windows use WSL 2: `wsl --install`")

__version__ = "0.1.0"

_PUBLIC_NAMES: dict[str, str] = {
    "A2C": "rlrun.algorithms.a2c",
    "A2CConfig": "rlrun.algorithms.a2c",
    "A3C": "rlrun.algorithms.a3c",
    "A3CConfig": "rlrun.algorithms.a3c",
    "ActingPolicy": "rlrun.sampling.acting_policy",
    "Algorithm": "rlrun.algorithms.algorithm",
    "AlgorithmConfig": "rlrun.config.builder",
    "APPO": "rlrun.algorithms.appo",
    "APPOConfig": "rlrun.algorithms.appo",
    "AsynchronousSampler": "rlrun.actors.asynchronous",
    "Callbacks": "rlrun.algorithms.callbacks",
    "ConfigError": "rlrun.config.problems",
    "Connector": "rlrun.connectors.connector",
    "DQN": "rlrun.algorithms.dqn",
    "DQNConfig": "rlrun.algorithms.dqn",
    "Distribution": "rlrun.policies.distributions",
    "EnvRunner": "rlrun.sampling.env_runner",
    "EnvRunnerGroup": "rlrun.actors.env_runner_group",
    "ExplorationStrategy": "rlrun.policies.exploration_strategy",
    "export": "rlrun.experiment.export",
    "Histogram": "rlrun.data.media",
    "Image": "rlrun.data.media",
    "IMPALA": "rlrun.algorithms.impala",
    "IMPALAConfig": "rlrun.algorithms.impala",
    "ItemReplayBuffer": "rlrun.replay.sequence_replay_buffer",
    "iterate_experiment": "rlrun.experiment.run",
    "Learner": "rlrun.learning.learner",
    "LearningPolicy": "rlrun.learning.learning_policy",
    "LearnerGroup": "rlrun.learning.learner_group",
    "load_experiment": "rlrun.config.loader",
    "load_policy": "rlrun.experiment.rollout",
    "load_transitions": "rlrun.algorithms.saved_transitions",
    "make_multi_agent": "rlrun.envs.multi_agent_env",
    "multi_gpu_train_one_step": "rlrun.algorithms.on_policy",
    "MultiAgentBatch": "rlrun.data.sample_batch",
    "MultiAgentEnv": "rlrun.envs.multi_agent_env",
    "MultiAgentRLModule": "rlrun.policies.rl_module",
    "MultiAgentReplayBuffer": "rlrun.replay.multi_agent_replay_buffer",
    "PG": "rlrun.algorithms.pg",
    "PGConfig": "rlrun.algorithms.pg",
    "Policy": "rlrun.policies.policy",
    "PPO": "rlrun.algorithms.ppo",
    "PPOConfig": "rlrun.algorithms.ppo",
    "PrioritizedReplayBuffer": "rlrun.replay.prioritized_replay_buffer",
    "register_env": "rlrun.envs.env",
    "ReplayBuffer": "rlrun.replay.replay_buffer",
    "ReservoirBuffer": "rlrun.replay.reservoir_buffer",
    "resume_experiment": "rlrun.experiment.run",
    "resume_sweep": "rlrun.experiment.sweep.sweep",
    "RLModule": "rlrun.policies.rl_module",
    "rollout": "rlrun.experiment.rollout",
    "run_experiment": "rlrun.experiment.run",
    "run_sweep": "rlrun.experiment.sweep.sweep",
    "RunnerSpec": "rlrun.sampling.runner_messages",
    "SAC": "rlrun.algorithms.sac",
    "SACConfig": "rlrun.algorithms.sac",
    "SampleBatch": "rlrun.data.sample_batch",
    "SampleCollector": "rlrun.sampling.sample_collector",
    "SequenceReplayBuffer": "rlrun.replay.sequence_replay_buffer",
    "SimpleListCollector": "rlrun.sampling.simple_list_collector",
    "synchronous_parallel_sample": "rlrun.actors.env_runner_group",
    "train_one_step": "rlrun.algorithms.on_policy",
    "TrainingConfig": "rlrun.config.schema",
    "verify": "rlrun.experiment.verify.verify",
    "Video": "rlrun.data.media",
    "ViewRequirement": "rlrun.data.view_requirement",
}

__all__ = list(_PUBLIC_NAMES)


def __getattr__(name: str) -> Any:
    try:
        module = _PUBLIC_NAMES[name]
    except KeyError:
        raise AttributeError(f"module 'rlrun' has no attribute {name!r}") from None
    return getattr(import_module(module), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC_NAMES])
