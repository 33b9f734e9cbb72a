"""RecordedStep: one vector step as recorders of evaluation and rollouts receive it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlrun.data.column_data import Array


@dataclass(frozen=True)
class AgentTransition:
    """One transition of one of several agents, in the environment's own values."""

    episode: int
    agent: Any
    policy_id: str
    step: int
    """Env step of the episode at which it acted."""
    obs: Any
    action: Any
    next_obs: Any
    """``obs`` again if the agent left without another observation."""
    reward: float
    """Sum of the rewards since the action."""
    terminated: bool
    truncated: bool
    info: Mapping[str, Any] = field(default_factory=dict)
    """Its info that came with ``next_obs``."""


@dataclass(frozen=True)
class RecordedStep:
    """One vector step, for recorders. Arrays may be overwritten by the next step.

    With several agents, observations and actions are in `agents` instead.
    """

    obs: Any
    """Raw observations acted on, batched ``[B, ...]``."""
    actions: Any
    """Actions as the environments received them, batched ``[B, ...]``."""
    next_obs: Any
    """Raw observations returned, final ones where an episode ended, batched ``[B, ...]``."""
    rewards: Array
    terminateds: Array
    truncateds: Array
    episodes: list[int | None]
    """Number of each environment's episode; None where it made no step, or one that was not asked
    for."""
    agents: Sequence[AgentTransition] = ()
    """Transitions of agents that this step has completed."""
    infos: Mapping[int, Mapping[str, Any]] | None = None
    """Infos by environment, if environments have one agent; None if there are no infos."""
    dropped: Mapping[int, int] = field(default_factory=dict)
    """Environment that raised -> number of its episode, which evaluation repeats."""


Recorder = Callable[[RecordedStep], bool | None]
"""Called after every vector step; True ends the rollout."""
