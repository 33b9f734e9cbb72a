"""rlrun's PPO through its public Python API; the times of the phases are from its result.

With n runners each has all of the environments and samples 1/n of the same batch.
"""

from collections.abc import Callable
from typing import Any

from benchmarks.peers import driver
from benchmarks.peers.driver import EqualWork, Iteration
from rlrun import PPOConfig


def trainer(task: Any) -> Callable[[], Iteration]:
    """A function that runs one iteration of `EqualWork`."""
    work = EqualWork()
    algorithm = (
        PPOConfig()
        .environment(task.env)
        .env_runners(
            num_env_runners=task.runners,
            num_envs_per_env_runner=work.num_envs,
            sample_async=task.sample_async,
        )
        .model(hidden=list(work.hidden), activation="tanh", share_layers=False)
        .training(
            train_batch_size=work.batch_size,
            minibatch_size=work.minibatch_size,
            num_epochs=work.num_epochs,
            lr=work.lr,
            gamma=work.gamma,
            lambda_=work.lambda_,
            clip_param=work.clip,
            vf_clip_param=None,
            vf_loss_coeff=work.vf_coeff,
            entropy_coeff=work.entropy_coeff,
            grad_clip=work.grad_clip,
        )
        .learners(device="cpu", compile=task.compile, num_threads=1)
        .debugging(seed=task.seed)
        .build()
    )

    def train() -> Iteration:
        result = algorithm.train()
        timers = result["timers"]
        return Iteration(result["env_steps_this_iter"], timers["sample_s"], timers["learn_s"])

    return train


def main() -> None:
    task = driver.task_from_command_line(__doc__)
    if task.task == "solve":
        # Users type `rlrun train`; benchmarks/time_to_solve.py runs that command.
        raise SystemExit("rlrun's time to solve is measured through its command line")
    if task.task == "start_up":
        result = driver.measure_start_up(trainer(task))
    else:
        result = driver.measure_throughput(
            trainer(task), warmup_steps=task.warmup_steps, steps=task.steps
        )
    driver.report(**result, versions=driver.versions("rlrun", "torch", "ray", "gymnasium", "numpy"))


if __name__ == "__main__":
    main()
