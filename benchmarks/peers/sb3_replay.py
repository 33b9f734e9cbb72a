"""Stable-Baselines3's DQN and SAC, timed by a callback that sees every env step."""

from typing import Any

import torch
from stable_baselines3 import DQN, SAC
from stable_baselines3.common.callbacks import BaseCallback

from benchmarks.peers import driver, replay_driver
from benchmarks.peers.driver import EqualWork
from benchmarks.peers.replay_driver import DQNWork, EnvStepClock, SACWork
from benchmarks.peers.sb3 import make_environments


class Clock(BaseCallback):
    """Stops the training when the clock has seen enough."""

    def __init__(self, clock: EnvStepClock) -> None:
        super().__init__()
        self._clock = clock

    def _on_step(self) -> bool:
        return not self._clock.count()


def make_dqn(seed: int) -> DQN:
    """`DQNWork` as an algorithm of SB3."""
    work = DQNWork()
    return DQN(
        "MlpPolicy",
        make_environments(EqualWork(env=work.env), 1, seed),
        learning_rate=work.lr,
        buffer_size=work.buffer_size,
        learning_starts=work.learning_starts,
        batch_size=work.minibatch_size,
        gamma=work.gamma,
        train_freq=work.steps_per_update,
        gradient_steps=1,
        target_update_interval=work.target_every,
        exploration_initial_eps=work.epsilon,
        exploration_final_eps=work.epsilon,
        policy_kwargs={"net_arch": list(work.hidden), "activation_fn": torch.nn.ReLU},
        seed=seed,
        device="cpu",
    )


def make_sac(seed: int) -> SAC:
    """`SACWork` as an algorithm of SB3."""
    work = SACWork()
    return SAC(
        "MlpPolicy",
        make_environments(EqualWork(env=work.env), 1, seed),
        learning_rate=work.lr,
        buffer_size=work.buffer_size,
        learning_starts=work.learning_starts,
        batch_size=work.minibatch_size,
        gamma=work.gamma,
        tau=work.tau,
        policy_kwargs={"net_arch": list(work.hidden), "activation_fn": torch.nn.ReLU},
        seed=seed,
        device="cpu",
    )


def measure(task: Any) -> dict[str, Any]:
    """Rate of the env steps after the warm-up."""
    clock = EnvStepClock(task.warmup_steps, task.steps)
    model = make_dqn(task.seed) if task.algorithm == "dqn" else make_sac(task.seed)
    model.learn(task.warmup_steps + task.steps + 1, callback=Clock(clock))
    return clock.result()


def main() -> None:
    task = replay_driver.task_from_command_line(__doc__)
    torch.set_num_threads(1)
    driver.report(
        **measure(task),
        versions=driver.versions("stable-baselines3", "torch", "gymnasium", "numpy"),
    )


if __name__ == "__main__":
    main()
