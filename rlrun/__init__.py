"""rlrun: reinforcement-learning experiments from one YAML file.

The public names below are imported on first use, so that ``import rlrun`` (and ``rlrun --help``)
costs neither torch nor Ray.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_PUBLIC_NAMES: dict[str, str] = {
    "A2C": "rlrun.algorithms.a2c",
    "A2CConfig": "rlrun.algorithms.a2c",
    "Algorithm": "rlrun.algorithms.algorithm",
    "AlgorithmConfig": "rlrun.config.builder",
    "Callbacks": "rlrun.algorithms.callbacks",
    "ConfigError": "rlrun.config.problems",
    "Connector": "rlrun.connectors.connector",
    "DQN": "rlrun.algorithms.dqn",
    "DQNConfig": "rlrun.algorithms.dqn",
    "EnvRunner": "rlrun.sampling.env_runner",
    "EnvRunnerGroup": "rlrun.sampling.env_runner_group",
    "Learner": "rlrun.learning.learner",
    "load_experiment": "rlrun.config.loader",
    "MultiAgentBatch": "rlrun.data.multi_agent_batch",
    "PG": "rlrun.algorithms.pg",
    "PGConfig": "rlrun.algorithms.pg",
    "Policy": "rlrun.policies.policy",
    "PPO": "rlrun.algorithms.ppo",
    "PPOConfig": "rlrun.algorithms.ppo",
    "PrioritizedReplayBuffer": "rlrun.data.prioritized_replay_buffer",
    "register_env": "rlrun.sampling.envs",
    "ReplayBuffer": "rlrun.data.replay_buffer",
    "ReservoirBuffer": "rlrun.data.reservoir_buffer",
    "resume_experiment": "rlrun.experiment.run",
    "resume_sweep": "rlrun.experiment.sweep",
    "RLModule": "rlrun.policies.rl_module",
    "rollout": "rlrun.experiment.rollout",
    "run_experiment": "rlrun.experiment.run",
    "run_sweep": "rlrun.experiment.sweep",
    "RunnerSpec": "rlrun.sampling.runner_messages",
    "SampleBatch": "rlrun.data.sample_batch",
    "synchronous_parallel_sample": "rlrun.sampling.synchronous",
    "ViewRequirement": "rlrun.data.view_requirement",
}


def __getattr__(name: str) -> Any:
    try:
        module = _PUBLIC_NAMES[name]
    except KeyError:
        raise AttributeError(f"module 'rlrun' has no attribute {name!r}") from None
    return getattr(import_module(module), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC_NAMES])
