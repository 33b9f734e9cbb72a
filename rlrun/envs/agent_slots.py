"""Slots: what policies are told of environments, as arrays.

A *slot* is one agent of one sub-environment. With one agent each, slots and sub-environments are
the same, and all act together. With several agents of one policy, an agent has a slot of the policy
for as long as it takes part in an episode. Owns the types; knows nothing of policies.

    S  slots of a policy    k  slots of a step    m  of them, those with an observation
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class PlannedEpisode:
    """The next episode of a sub-environment."""

    episode_id: int
    seed: int
    """Of the episode's random numbers."""
    reset_seed: int
    """Of the environment: the same, unless the episode begins at a soft horizon."""
    mapping_rng: np.random.Generator
    """For choices of policies."""


class EpisodePlan(Protocol):
    """Which episodes sub-environments run, and where their ends are told."""

    def planned(self, env_index: int) -> PlannedEpisode | None:
        """The episode to run now; None: none any more."""

    def ended(
        self,
        env_index: int,
        episode_return: float,
        length: int,
        agents: Sequence[AgentSlot],
        *,
        goes_on: bool,
    ) -> None:
        """The episode is over; `planned` is the next one.

        Args:
            agents: all that took part, in their order.
            goes_on: the environment is not reset, at a soft horizon.
        """

    def given_up(self, env_index: int) -> None:
        """The episode is dropped; `planned` is the one to run instead."""


@dataclass(slots=True, eq=False)
class AgentSlot:
    """One agent in one episode."""

    id: Any
    index: int
    """By order of appearance in the episode."""
    env_index: int
    episode_id: int
    episode_seed: int
    position: int
    """Among the environment's possible agents."""
    policy_id: str
    slot: int = -1
    """-1 before it has one and once it has left."""
    credit: float = 0.0
    """Rewards since its last action."""
    total: float = 0.0
    """Rewards of all its transitions, and `credit`."""
    taken: int = 0
    """Actions in the episode."""
    observation: Any = None
    """Raw, while its action is due."""


@dataclass(slots=True)
class SlotStep:
    """What a step brought to slots of one policy."""

    rewards: Array
    """Since their last actions, float64 ``[k]``."""
    terminateds: Array
    truncateds: Array
    observations: Any
    """Raw, batched ``[m, ...]``; may be a buffer."""
    infos: Mapping[int, Mapping[str, Any]] | None = None
    """By position among the k; None where they are not asked for."""
    valid: Array | None = None
    """Bool ``[k]``, False where the step was no transition; None: all were."""
    slots: Array | None = None
    """int ``[k]``, those that go on first; None: all slots in their order, which all go on."""
    num_staying: int = 0
    """How many go on, which act next."""
    observed: Array | None = None
    """Bool ``[k]``; None: all have an observation. A slot that ends may have none."""
    joined: Sequence[AgentSlot] = ()
    """Agents that join with this step; their slots are among the k, and have no transition."""
    acted: Array | None = None
    """Bool ``[k]``, False for those that join; None: all have acted."""
    steps: Array | None = None
    """Env steps of the episodes, this one included, int ``[k]``; None: the slots' own."""


@dataclass(slots=True)
class Due:
    """Slots whose actions are due."""

    slots: Array | None = None
    """int ``[k]``; None: all, together."""
    steps: Array = field(default_factory=lambda: np.empty(0, np.int64))
    """Env steps of the episodes so far, int ``[k]``; of slots that come and go."""
