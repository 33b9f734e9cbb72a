"""RLlib's PPO on its new API stack: sampling in the driver or in actors, learning in the driver.

With n runners each has all of the environments and samples 1/n of the same batch.
"""

import logging
import time
from collections.abc import Callable
from typing import Any

import ray
import torch
from ray.rllib.algorithms.ppo import PPOConfig, ppo
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.tune.registry import register_env

from benchmarks.peers import driver
from benchmarks.peers.driver import WORKS, Iteration

STEPS_SO_FAR = "num_env_steps_sampled_lifetime"


def base_config(task: Any, num_envs: int) -> PPOConfig:
    """Common settings of all tasks: the env, the runners, one local learner, one torch thread."""
    environment = named = WORKS[task.work].env
    if ":" in environment:
        environment = "benchmark"
        register_env(environment, lambda _: driver.import_environment(named)())
    return (
        PPOConfig()
        .environment(environment)
        .env_runners(
            num_env_runners=task.runners,
            num_envs_per_env_runner=num_envs,
        )
        .learners(num_learners=0)
        .debugging(seed=task.seed, log_level="ERROR")
    )


def equal_work_config(task: Any) -> PPOConfig:
    """`EqualWork` as a config of RLlib."""
    work = WORKS[task.work]
    return (
        base_config(task, work.num_envs)
        .training(
            train_batch_size_per_learner=work.batch_size,
            minibatch_size=work.minibatch_size,
            num_epochs=work.num_epochs,
            lr=work.lr,
            gamma=work.gamma,
            lambda_=work.lambda_,
            clip_param=work.clip,
            vf_clip_param=float("inf"),
            vf_loss_coeff=work.vf_coeff,
            entropy_coeff=work.entropy_coeff,
            grad_clip=work.grad_clip,
            grad_clip_by="global_norm",
            use_kl_loss=False,
        )
        .rl_module(
            model_config=DefaultModelConfig(
                fcnet_hiddens=list(work.hidden), fcnet_activation="tanh", vf_share_layers=False
            )
        )
    )


def good_config(task: Any) -> PPOConfig:
    """Settings that solve CartPole-v1 quickly; RLlib's example takes longer, its defaults longest.

    Small batches, many epochs and short horizons in the manner of the rl-baselines3-zoo, with a
    batch large enough that RLlib's cost per iteration does not dominate.
    """
    return (
        base_config(task, num_envs=8)
        .training(
            train_batch_size_per_learner=1024,
            minibatch_size=256,
            num_epochs=10,
            lr=1e-3,
            gamma=0.98,
            lambda_=0.8,
            clip_param=0.2,
            vf_clip_param=float("inf"),
            vf_loss_coeff=0.5,
            entropy_coeff=0.0,
            grad_clip=0.5,
            grad_clip_by="global_norm",
            use_kl_loss=False,
        )
        .rl_module(
            model_config=DefaultModelConfig(
                fcnet_hiddens=[64, 64], fcnet_activation="tanh", vf_share_layers=False
            )
        )
        .reporting(metrics_num_episodes_for_smoothing=driver.SOLVED_WINDOW)
    )


def start_ray() -> None:
    """Starts a local Ray as RLlib does, but quieter and without the dashboard."""
    ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)


class PhaseClock:
    """Times the calls in `PPO.training_step`; RLlib's own timers are smoothed over iterations."""

    def __init__(self, algorithm: Any) -> None:
        self.sampling_s = 0.0
        self.learning_s = 0.0
        ppo.synchronous_parallel_sample = self._timed(ppo.synchronous_parallel_sample, "sampling_s")
        learner_group = algorithm.learner_group
        learner_group.update = self._timed(learner_group.update, "learning_s")

    def _timed(self, function: Callable[..., Any], phase: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                setattr(self, phase, getattr(self, phase) + time.perf_counter() - start)

        return call


def trainer(task: Any) -> Callable[[], Iteration]:
    """A function that runs one iteration of `EqualWork`."""
    start_ray()
    algorithm = equal_work_config(task).build_algo()
    clock = PhaseClock(algorithm)
    steps_before = 0

    def train() -> Iteration:
        nonlocal steps_before
        clock.sampling_s = clock.learning_s = 0.0
        steps = int(algorithm.train()[STEPS_SO_FAR]) - steps_before
        steps_before += steps
        return Iteration(steps, clock.sampling_s, clock.learning_s)

    return train


def solve(task: Any) -> dict[str, Any]:
    """Trains with `good_config` until solved."""
    start_ray()
    algorithm = good_config(task).build_algo()
    solved_s, steps, episodes = None, 0, 0
    while solved_s is None and steps < task.max_steps:
        result = algorithm.train()
        steps = int(result[STEPS_SO_FAR])
        runners = result["env_runners"]
        episodes = int(runners.get("num_episodes_lifetime", episodes))
        full = episodes >= driver.SOLVED_WINDOW
        if full and runners["episode_return_mean"] >= driver.SOLVED_RETURN:
            solved_s = driver.seconds_since_start()
    return {"solved_s": solved_s, "env_steps": steps}


def main() -> None:
    task = driver.task_from_command_line(__doc__, works=("cartpole", "slow-cartpole"))
    torch.set_num_threads(1)
    if task.task == "solve":
        result = solve(task)
    elif task.task == "start_up":
        result = driver.measure_start_up(trainer(task))
    else:
        result = driver.measure_throughput(
            trainer(task), warmup_steps=task.warmup_steps, steps=task.steps
        )
    driver.report(**result, versions=driver.versions("ray", "torch", "gymnasium", "numpy"))
    ray.shutdown()


if __name__ == "__main__":
    main()
