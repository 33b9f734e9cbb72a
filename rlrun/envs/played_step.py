"""PlayedStep: what recorders of evaluation and rollouts are shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True)
class AgentTransition:
    """What one of several agents saw, did and was led to; values are the environment's own."""

    episode: int
    agent: Any
    policy_id: str
    step: int
    """Env step of the episode at which it acted."""
    obs: Any
    action: Any
    next_obs: Any
    """The last one that it saw, if it left without another."""
    reward: float
    """All that it got until then."""
    terminated: bool
    truncated: bool


@dataclass(frozen=True)
class PlayedStep:
    """One vector step, for recorders. Arrays may be overwritten by the next step.

    With several agents, observations and actions are in `agents` instead.
    """

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
    """Number of the episode that each environment runs; None once it has run all of its own."""
    agents: Sequence[AgentTransition] = ()
    """Transitions of agents that this step has completed."""


Recorder = Callable[[PlayedStep], bool | None]
"""Called after every vector step; True ends the rollout."""
