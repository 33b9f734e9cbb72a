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
    """The last observation again, if the agent left without another one."""
    reward: float
    """Sum of the rewards since the action."""
    terminated: bool
    truncated: bool


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
    """Number of the episode in which each environment made a step; None where it made none, or one
    beyond those that were asked for."""
    agents: Sequence[AgentTransition] = ()
    """Transitions of agents that this step has completed."""
    infos: Mapping[int, Mapping[str, Any]] | None = None
    """Infos by environment, where an environment has one agent; None for no infos at all."""
    dropped: Mapping[int, int] = field(default_factory=dict)
    """Environment -> number of its episode, where it raised. Evaluation repeats the episode."""


Recorder = Callable[[RecordedStep], bool | None]
"""Called after every vector step; True ends the rollout."""
