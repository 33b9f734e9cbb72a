"""rlrun: reinforcement-learning experiments from one YAML file.

The public names below are imported on first use, so that ``import rlrun`` (and ``rlrun --help``)
costs neither torch nor Ray.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_PUBLIC_NAMES: dict[str, str] = {
    "Algorithm": "rlrun.algorithms.algorithm",
    "AlgorithmConfig": "rlrun.config.builder",
    "Callbacks": "rlrun.algorithms.callbacks",
    "ConfigError": "rlrun.config.problems",
    "Connector": "rlrun.connectors.connector",
    "EnvRunner": "rlrun.sampling.env_runner",
    "EnvRunnerGroup": "rlrun.sampling.env_runner_group",
    "Learner": "rlrun.learning.learner",
    "load_experiment": "rlrun.config.loader",
    "MultiAgentBatch": "rlrun.data.multi_agent_batch",
    "Policy": "rlrun.policies.policy",
    "PPO": "rlrun.algorithms.ppo",
    "PPOConfig": "rlrun.algorithms.ppo",
    "register_env": "rlrun.sampling.envs",
    "resume_experiment": "rlrun.experiment.run",
    "resume_sweep": "rlrun.experiment.sweep",
    "RLModule": "rlrun.policies.rl_module",
    "rollout": "rlrun.experiment.rollout",
    "run_experiment": "rlrun.experiment.run",
    "run_sweep": "rlrun.experiment.sweep",
    "RunnerSpec": "rlrun.sampling.runner_messages",
    "SampleBatch": "rlrun.data.sample_batch",
    "synchronous_parallel_sample": "rlrun.sampling.synchronous",
}


def __getattr__(name: str) -> Any:
    try:
        module = _PUBLIC_NAMES[name]
    except KeyError:
        raise AttributeError(f"module 'rlrun' has no attribute {name!r}") from None
    return getattr(import_module(module), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC_NAMES])
