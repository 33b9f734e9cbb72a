"""PlayedStep: what recorders of evaluation and rollouts are shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True)
class PlayedStep:
    """One vector step, for whoever records it. Arrays may be overwritten by the next step."""

    obs: Any
    """Raw observations acted on, batched ``[B, ...]``."""
    actions: Any
    """What the environments received, batched ``[B, ...]``."""
    next_obs: Any
    """Raw observations returned, final ones where an episode ended, batched ``[B, ...]``."""
    rewards: Array
    terminateds: Array
    truncateds: Array
    episodes: list[int | None]
    """Which episode each lane played; None in lanes that have played all of theirs."""


Recorder = Callable[[PlayedStep], bool | None]
"""Called after every vector step; True ends the play."""
