"""Shared by the drivers of the replay benchmark: settings, and a clock that counts env steps.

Must not import any framework: it runs in all the peers' environments.
"""

import argparse
import time
from dataclasses import dataclass

from benchmarks.peers import driver
from benchmarks.peers.driver import Iteration


@dataclass(frozen=True)
class DQNWork:
    """The settings every contender's DQN trains with."""

    env: str = "CartPole-v1"
    hidden: tuple[int, ...] = (120, 84)
    lr: float = 2.5e-4
    gamma: float = 0.99
    minibatch_size: int = 128
    steps_per_update: int = 10
    target_every: int = 500
    epsilon: float = 0.05
    buffer_size: int = 10_000
    learning_starts: int = 1_000


@dataclass(frozen=True)
class SACWork:
    """The settings every contender's SAC trains with."""

    env: str = "Pendulum-v1"
    hidden: tuple[int, ...] = (256, 256)
    lr: float = 3e-4
    gamma: float = 0.99
    minibatch_size: int = 256
    tau: float = 0.005
    buffer_size: int = 100_000
    learning_starts: int = 500


def task_from_command_line(description: str | None) -> argparse.Namespace:
    """The task in the arguments, the same for all drivers."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--algorithm", choices=["dqn", "sac"], required=True)
    parser.add_argument("--warmup-steps", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


class EnvStepClock:
    """Times the env steps after a warm-up, and everything between them.

    Args:
        warmup_steps: env steps before the clock starts.
        steps: env steps that are timed.
    """

    def __init__(self, warmup_steps: int, steps: int) -> None:
        self._warmup_steps, self._steps = warmup_steps, steps
        self._count = 0
        self._began = self._ended = 0.0

    def count(self) -> bool:
        """Call after each env step; True when the last one has been timed."""
        self._count += 1
        if self._count == self._warmup_steps:
            self._began = time.perf_counter()
        if self._count < self._warmup_steps + self._steps:
            return False
        self._ended = time.perf_counter()
        return True

    def result(self) -> dict[str, float | int | None]:
        """As `driver.throughput`; without the phases, which the peers do not report."""
        return driver.throughput([Iteration(self._steps)], seconds=self._ended - self._began)
