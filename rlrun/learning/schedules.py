"""Settings that change over a run: piecewise linear in env steps."""

from __future__ import annotations

import numpy as np

ScheduleSetting = float | tuple[tuple[int, float], ...]


def value_at(schedule: ScheduleSetting, env_steps: int) -> float:
    """The schedule's value: linear between its points, the last value after them.

    Args:
        schedule: a number, or points ``(env_steps, value)`` in ascending order.
        env_steps: env steps sampled before the update that uses the value.
    """
    if isinstance(schedule, (int, float)):
        return float(schedule)
    steps, values = zip(*schedule, strict=True)
    return float(np.interp(env_steps, steps, values))
