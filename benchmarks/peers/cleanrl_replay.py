"""CleanRL's `dqn.py` and `sac_continuous_action.py`, unchanged, out of the checkout.

They run in this process as `__main__`; calls of `SyncVectorEnv.step` are counted.
"""

import os
from typing import Any

import gymnasium as gym
import torch

from benchmarks.peers import driver, replay_driver
from benchmarks.peers.cleanrl import Finished, run_script
from benchmarks.peers.replay_driver import DQNWork, EnvStepClock, SACWork


def dqn_arguments() -> dict[str, object]:
    """`DQNWork` as arguments of dqn.py, whose 120 x 84 networks are built in."""
    work = DQNWork()
    if work.hidden != (120, 84):
        raise ValueError("dqn.py has its 120 x 84 ReLU networks built in")
    return {
        "env-id": work.env,
        "learning-rate": work.lr,
        "gamma": work.gamma,
        "buffer-size": work.buffer_size,
        "batch-size": work.minibatch_size,
        "train-frequency": work.steps_per_update,
        "target-network-frequency": work.target_every,
        "start-e": work.epsilon,
        "end-e": work.epsilon,
        "learning-starts": work.learning_starts,
    }


def sac_arguments() -> dict[str, object]:
    """`SACWork` as arguments of sac_continuous_action.py, whose 256 x 256 networks are built in.

    Its policy learns twice in every second step, which is as often as once in each.
    """
    work = SACWork()
    if work.hidden != (256, 256):
        raise ValueError("sac_continuous_action.py has its 256 x 256 ReLU networks built in")
    return {
        "env-id": work.env,
        "policy-lr": work.lr,
        "q-lr": work.lr,
        "gamma": work.gamma,
        "buffer-size": work.buffer_size,
        "batch-size": work.minibatch_size,
        "tau": work.tau,
        "learning-starts": work.learning_starts,
    }


def measure(task: Any) -> dict[str, Any]:
    """Rate of the env steps after the warm-up."""
    clock = EnvStepClock(task.warmup_steps, task.steps)
    step = gym.vector.SyncVectorEnv.step

    def counted_step(envs: Any, actions: Any) -> Any:
        transition = step(envs, actions)
        if clock.count():
            raise Finished
        return transition

    gym.vector.SyncVectorEnv.step = counted_step
    dqn = task.algorithm == "dqn"
    options = {
        **(dqn_arguments() if dqn else sac_arguments()),
        "seed": task.seed,
        "total-timesteps": 2 * (task.warmup_steps + task.steps),
    }
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    script = "dqn.py" if dqn else "sac_continuous_action.py"
    run_script(words, lambda line: None, name=script)
    return clock.result()


def main() -> None:
    task = replay_driver.task_from_command_line(__doc__)
    torch.set_num_threads(1)
    driver.report(
        **measure(task),
        versions={
            **driver.versions("torch", "gymnasium", "numpy"),
            "cleanrl": os.environ.get("CLEANRL_COMMIT", "unknown commit"),
        },
    )


if __name__ == "__main__":
    main()
