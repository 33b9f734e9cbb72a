"""RLlib's DQN and SAC on its new API stack, sampling and learning in the driver."""

from collections.abc import Callable
from typing import Any

import ray
import torch
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.algorithms.sac import SACConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

from benchmarks.peers import driver, replay_driver
from benchmarks.peers.driver import Iteration
from benchmarks.peers.replay_driver import DQNWork, SACWork
from benchmarks.peers.rllib import STEPS_SO_FAR, start_ray


def dqn_config() -> DQNConfig:
    """`DQNWork` for RLlib: without `training_intensity`, one update for each fragment."""
    work = DQNWork()
    return (
        DQNConfig()
        .environment(work.env)
        .env_runners(rollout_fragment_length=work.steps_per_update)
        .training(
            lr=work.lr,
            gamma=work.gamma,
            train_batch_size_per_learner=work.minibatch_size,
            num_steps_sampled_before_learning_starts=work.learning_starts,
            target_network_update_freq=work.target_every,
            epsilon=work.epsilon,
            double_q=False,
            dueling=False,
            replay_buffer_config=uniform_buffer(work.buffer_size),
        )
        .rl_module(model_config=plain_mlp(work.hidden))
    )


def sac_config() -> SACConfig:
    """`SACWork` as a config of RLlib."""
    work = SACWork()
    return (
        SACConfig()
        .environment(work.env)
        .env_runners(rollout_fragment_length=1)
        .training(
            actor_lr=work.lr,
            critic_lr=work.lr,
            alpha_lr=work.lr,
            gamma=work.gamma,
            tau=work.tau,
            train_batch_size_per_learner=work.minibatch_size,
            num_steps_sampled_before_learning_starts=work.learning_starts,
            replay_buffer_config=uniform_buffer(work.buffer_size),
        )
        .rl_module(model_config=plain_mlp(work.hidden))
    )


def uniform_buffer(capacity: int) -> dict[str, Any]:
    """A buffer without priorities."""
    return {"type": "EpisodeReplayBuffer", "capacity": capacity}


def plain_mlp(hidden: tuple[int, ...]) -> DefaultModelConfig:
    """Hidden layers, and linear heads on them."""
    return DefaultModelConfig(
        fcnet_hiddens=list(hidden), fcnet_activation="relu", head_fcnet_hiddens=[]
    )


def trainer(config: AlgorithmConfig, seed: int) -> Callable[[], Iteration]:
    """A function that runs one iteration."""
    start_ray()
    algorithm = (
        config.env_runners(num_env_runners=0)
        .learners(num_learners=0)
        .debugging(seed=seed, log_level="ERROR")
        .build_algo()
    )
    steps_before = 0

    def train() -> Iteration:
        nonlocal steps_before
        steps = int(algorithm.train()[STEPS_SO_FAR]) - steps_before
        steps_before += steps
        return Iteration(steps)

    return train


def main() -> None:
    task = replay_driver.task_from_command_line(__doc__)
    torch.set_num_threads(1)
    config = dqn_config() if task.algorithm == "dqn" else sac_config()
    result = driver.measure_throughput(
        trainer(config, task.seed), warmup_steps=task.warmup_steps, steps=task.steps
    )
    driver.report(**result, versions=driver.versions("ray", "torch", "gymnasium", "numpy"))
    ray.shutdown()


if __name__ == "__main__":
    main()
