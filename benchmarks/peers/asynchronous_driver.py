"""Shared by the drivers of asynchronous algorithms: what they train, and their clock.

Must not import any framework: it runs in all the peers' environments.
"""

import argparse
import time
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class AsynchronousWork:
    """A gradient step on each batch as it arrives; sizes and coefficients are Sample Factory's
    defaults, but for `num_envs` and `hidden`."""

    env: str = "CartPole-v1"
    num_envs: int = 16
    """Of each runner."""
    rollout_length: int = 32
    batch_size: int = 1024
    hidden: tuple[int, ...] = (64, 64)
    lr: float = 1e-4
    gamma: float = 0.99
    lambda_: float = 0.95
    clip: float = 0.1
    entropy_coeff: float = 0.003
    vf_coeff: float = 0.5
    grad_clip: float = 4.0

    def settings(self) -> dict[str, Any]:
        """All of them, as JSON has them."""
        return {**asdict(self), "hidden": list(self.hidden)}


def task_from_command_line(description: str | None) -> argparse.Namespace:
    """The task in the arguments, the same for all drivers."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--algorithm", choices=["appo", "impala"], default="appo")
    parser.add_argument("--sampling-alone", action="store_true", help="rlrun: nothing is learned")
    parser.add_argument("--runners", type=int, default=2, help="processes that sample")
    parser.add_argument("--warmup-s", type=float, default=5.0)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


class Clock:
    """Env steps per second, after a warm-up.

    Seconds are counted, not steps: batches arrive as they come, and the frameworks differ widely.
    """

    def __init__(self, warmup_s: float, seconds: float) -> None:
        self._warmup_s, self._seconds = warmup_s, seconds
        self._begun: float | None = None  # with the first result
        self._start: tuple[float, int] | None = None
        self.result: dict[str, float] = {}

    def is_done(self, env_steps: int) -> bool:
        """Count a result after so many env steps in all; whether it was the last one."""
        now = time.perf_counter()
        self._begun = now if self._begun is None else self._begun
        if self._start is None:
            if now - self._begun >= self._warmup_s:
                self._start = now, env_steps
            return False
        start, before = self._start
        if now - start < self._seconds:
            return False
        steps, seconds = env_steps - before, now - start
        self.result = {"env_steps": steps, "env_steps_per_s": steps / seconds}
        return True
