"""Slots: the agents of sub-environments as rows of a policy's arrays.

A *slot* is one agent of one sub-environment. With one agent each, slots and sub-environments are
the same, and all act together. With several agents, an agent has a slot of its policy while it
takes part in an episode. Owns slots and the results of steps in them; must not know how actions are
chosen.

    S  slots of a policy    k  slots of a step    m  those of the k that have an observation
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
from gymnasium.vector.utils import batch_space, create_empty_array, iterate

from rlrun.data.column_data import Array
from rlrun.envs.env import in_dtype, observation_problem, stack_observations
from rlrun.envs.episode_vector_env import bad_value_test
from rlrun.policies.policy_mapping import EpisodeStart, Spaces

_FIRST_SLOTS = 16
_PLAIN_SPACES = (
    gym.spaces.Box,
    gym.spaces.Discrete,
    gym.spaces.MultiDiscrete,
    gym.spaces.MultiBinary,
)


@dataclass(frozen=True, slots=True)
class PlannedEpisode:
    """The next episode of a sub-environment."""

    episode_id: int
    seed: int
    """Seed of the episode's random numbers."""
    reset_seed: int
    """Seed of the environment: the same, unless the episode begins at a soft horizon, or its reset
    has failed."""
    mapping_rng: np.random.Generator
    """Generator for a policy mapping that is random."""


@dataclass(slots=True, eq=False)
class AgentSlot:
    """One agent in one episode."""

    id: Any
    index: int
    """Index in order of appearance in the episode."""
    env_index: int
    episode_id: int
    episode_seed: int
    position: int
    """Index among the environment's possible agents."""
    policy_id: str
    slot: int = -1
    """Slot of the agent; -1 before it has one and after it has left."""
    credit: float = 0.0
    """Rewards since its last action."""
    total: float = 0.0
    """Return so far: rewards of all its transitions, and `credit`."""
    taken: int = 0
    """Number of actions it has taken in the episode."""
    observation: Any = None
    """Raw observation, while its action is due."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Numbers of its last info (`report.info_keys`)."""
    unanswered: tuple[int, Any, Any] | None = None
    """Env step, observation and action of its last action until the result comes; for recorders."""


@dataclass(slots=True, eq=False)
class SubEnv:
    """One sub-environment and the episode that it runs."""

    index: int
    episode: PlannedEpisode | None = None
    step: int = 0
    """Env steps of the episode."""
    transitions: int = 0
    """Transitions of its agents since it began or was restored."""
    agents: dict[Any, AgentSlot] = field(default_factory=dict)
    """All agents that have joined, in order of joining, including those that have left."""
    actions: dict[Any, Any] = field(default_factory=dict)
    """Actions for the next step of the environment, by agent."""
    total: float = 0.0
    """Rewards of the episode, of all agents that had acted."""
    silent: int = 0
    """Env steps since an agent acted."""
    goes_on: bool = False
    """Whether the episode begins, or has just ended, at a soft horizon: without a reset."""
    start: EpisodeStart | None = None
    suited: dict[tuple[Any, str], tuple[Any, ...]] = field(default_factory=dict)
    """By agent and policy, the spaces of both when they were compared, which takes long."""


class EpisodeSource(Protocol):
    """Plans the episodes of sub-environments."""

    def planned(self, env_index: int) -> PlannedEpisode | None:
        """The episode to run now; None if there are no more."""

    def ended(self, sub: SubEnv, *, goes_on: bool) -> None:
        """The episode has ended; `planned` then returns the next one.

        Args:
            goes_on: whether the environment is not reset, as at a soft horizon.
        """

    def given_up(self, env_index: int) -> None:
        """The episode is dropped; `planned` then returns the one to run instead."""

    def reseeded(self, env_index: int) -> int:
        """Another seed for the environment, whose reset raises with the last one."""


@dataclass(slots=True)
class SlotStep:
    """The results of a step in the slots of one policy."""

    rewards: Array
    """Rewards since their last actions, float64 ``[k]``."""
    terminateds: Array
    truncateds: Array
    observations: Any
    """Raw observations, batched ``[m, ...]``; may be a buffer."""
    infos: Mapping[int, Mapping[str, Any]] | None = None
    """Infos by position among the k; None if nothing reads them."""
    valid: Array | None = None
    """Bool ``[k]``, False where the step was not a transition; None if all were."""
    fresh: Array | None = None
    """Bool ``[k]``, False where the environment raised and the observation is an old one; None if
    all are new."""
    slots: Array | None = None
    """Slots, int ``[k]``, first those whose episodes continue; None: all slots, which all do."""
    num_staying: int = 0
    """Number of slots whose episodes continue; they act next."""
    observed: Array | None = None
    """Bool ``[k]``; None: all have an observation. A slot whose episode ends may have none."""
    joined: Sequence[AgentSlot] = ()
    """Agents that join in this step; their slots are among the k, without a transition."""
    acted: Array | None = None
    """Bool ``[k]``, False for agents that join; None if all have acted."""
    steps: Array | None = None
    """Env steps of the episodes, this one included, int ``[k]``; None: the slots' own."""

    @property
    def num_transitions(self) -> int:
        """Number of transitions, for slots that come and go."""
        assert self.slots is not None
        return len(self.slots) - len(self.joined)

    def completed(self) -> SlotStep:
        """The same for the slots that have acted, without observations."""
        acted, infos = self.acted, self.infos
        assert acted is not None
        assert self.slots is not None
        assert self.steps is not None
        if infos is not None:
            infos = {i: infos[k] for i, k in enumerate(np.flatnonzero(acted).tolist())}
        return SlotStep(
            self.rewards[acted],
            self.terminateds[acted],
            self.truncateds[acted],
            None,
            infos,
            slots=self.slots[acted],
            observed=None if self.observed is None else self.observed[acted],
            steps=self.steps[acted],
        )


@dataclass(slots=True)
class Due:
    """Slots whose actions are due."""

    slots: Array | None = None
    """int ``[k]``; None: all, together."""
    steps: Array = field(default_factory=lambda: np.empty(0, np.int64))
    """Env steps of the episodes so far, int ``[k]``; of slots that come and go."""


_NONE_DUE = Due(np.empty(0, np.int64))

AgentUpdate = tuple[AgentSlot, int, float, int, Any, Any]
"""An agent, its slot, the rewards since its last action, the env step of the episode, its raw
observation (None for none) and its info."""


class PolicySlots:
    """The slots of one policy, and their part of the present step.

    Args:
        spaces: the environment's spaces for agents of this policy.

    Attributes:
        agents: the agent of each slot; None where it is free.
        due: slots that act next.
        staying, leaving: updates of the agents that go on, and of those that leave.
        flags: terminated and truncated of each agent that leaves.
        joined: agents that go on and have their first observations in this step.
        plain_actions: whether a batch of actions is an array of one action an agent.
        wants_infos: whether to keep infos.
    """

    def __init__(self, spaces: Spaces) -> None:
        self.spaces = spaces
        self.stack = _stacker(spaces[0])
        self.wants_infos = False
        self.agents: list[AgentSlot | None] = []
        self.due = _NONE_DUE
        self.plain_actions = isinstance(spaces[1], _PLAIN_SPACES)
        self.staying: list[AgentUpdate] = []
        self.leaving: list[AgentUpdate] = []
        self.flags: list[tuple[bool, bool]] = []
        self.joined: list[AgentSlot] = []
        self._is_bad = bad_value_test(spaces[0])
        self._free: list[int] = []

    def take(self, agent: AgentSlot) -> None:
        """Take a free slot for an agent."""
        if not self._free:
            old = len(self.agents)
            new = max(_FIRST_SLOTS, old)
            self._free = list(range(old + new - 1, old - 1, -1))
            self.agents += [None] * new
        agent.slot = self._free.pop()
        self.agents[agent.slot] = agent

    def free(self, agent: AgentSlot) -> None:
        """Free the slot of an agent that leaves."""
        self._free.append(agent.slot)
        self.agents[agent.slot] = None
        agent.slot = -1

    def restore(self, agents: Iterable[AgentSlot]) -> None:
        """Set the slots to these agents, each in its `slot`; all others are free."""
        taken = {agent.slot: agent for agent in agents}
        size = max(len(self.agents), 1 + max(taken, default=-1))
        self.agents = [taken.get(slot) for slot in range(size)]
        self._free = [slot for slot in reversed(range(size)) if slot not in taken]

    def each(self, actions: Any, count: int) -> Any:
        """A batch of actions split into one action for each agent."""
        if self.plain_actions:
            return actions
        return iterate(batch_space(self.spaces[1], count), actions)

    def due_in(self, envs: Collection[int]) -> Due:
        """Slots that act now in these sub-environments."""
        due = self.due
        assert due.slots is not None
        now = np.array([self.at(slot).env_index in envs for slot in due.slots.tolist()], np.bool_)
        return Due(due.slots[now], due.steps[now])

    def not_due(self, slots: Any) -> None:
        """Mark these slots, int ``[k]``, as having acted or left."""
        if slots is self.due.slots:
            self.due = _NONE_DUE
            return
        assert self.due.slots is not None
        keep = ~np.isin(self.due.slots, slots)
        self.due = Due(self.due.slots[keep], self.due.steps[keep])

    def at(self, slot: int) -> AgentSlot:
        """The agent of a slot."""
        agent = self.agents[slot]
        assert agent is not None
        return agent

    def take_step(self) -> tuple[SlotStep, Sequence[AgentSlot], Sequence[Any]] | None:
        """The step, its agents and their raw observations; None if nothing happened.

        Raises:
            AgentProblem: an observation or a reward is wrong.
        """
        leaving, num_staying = self.leaving, len(self.staying)
        updates = self.staying + leaving
        if not updates:
            return None
        agents, slot_list, credits, step_list, raw, info_list = zip(*updates, strict=True)
        if not math.isfinite(sum(credits)):
            self._blame_reward(updates)
        flags, observed, seen = np.zeros((len(agents), 2), np.bool_), None, raw
        if leaving:
            flags[num_staying:] = self.flags
            if any(observation is None for observation in raw[num_staying:]):
                updates = self.staying + [last for last in leaving if last[4] is not None]
                observed = np.ones(len(agents), np.bool_)
                observed[num_staying:] = [last[4] is not None for last in leaving]
                seen = tuple(one[4] for one in updates)
        stacked: Any = []
        if seen:
            try:
                stacked = self.stack(seen)
            except (ValueError, TypeError, LookupError):
                self._blame_observation(updates)
                raise
            if self._is_bad(stacked):
                self._blame_observation(updates)
        slots, steps = np.array(slot_list), np.array(step_list)
        step = SlotStep(
            rewards=np.array(credits, np.float64),
            terminateds=flags[:, 0],
            truncateds=flags[:, 1],
            observations=stacked,
            infos=dict(enumerate(info_list)) if self.wants_infos else None,
            slots=slots,
            num_staying=num_staying,
            observed=observed,
            joined=self.joined,
            acted=np.array([agent.taken > 0 for agent in agents]) if self.joined else None,
            steps=steps,
        )
        due = Due(slots[:num_staying], steps[:num_staying])
        if self.due is not _NONE_DUE:
            due = Due(*map(np.concatenate, zip(_arrays(self.due), _arrays(due), strict=True)))
        self.due = due
        for agent in agents[num_staying:]:
            self.free(agent)
        self.staying, self.leaving, self.flags, self.joined = [], [], [], []
        return step, agents, raw

    def _blame_reward(self, updates: Sequence[AgentUpdate]) -> None:
        """Raise AgentProblem for the first reward that is not finite."""
        for agent, _, reward, step, *_ in updates:
            if not math.isfinite(reward):
                raise AgentProblem(agent, f"the reward is {reward}", step - 1)

    def _blame_observation(self, updates: Sequence[AgentUpdate]) -> None:
        """Raise AgentProblem for the first observation that is not in the space."""
        for agent, _, _, step, observation, _ in updates:
            problem = observation_problem(self.spaces[0], observation)
            if problem is not None:
                raise AgentProblem(agent, problem, step - 1)


class AgentProblem(Exception):  # noqa: N818 - it becomes an EnvError, with its place
    """An environment returned a wrong observation or reward for an agent."""

    def __init__(self, agent: AgentSlot, reason: str, step: int) -> None:
        super().__init__(agent, reason, step)
        self.agent, self.reason, self.step = agent, reason, step


def _arrays(due: Due) -> tuple[Array, Array]:
    assert due.slots is not None
    return due.slots, due.steps


def _stacker(space: gym.Space[Any]) -> Callable[[Sequence[Any]], Any]:
    """A function that batches observations of a space as gymnasium's vector environments do."""
    if isinstance(space, _PLAIN_SPACES):
        shape, dtype = space.shape, space.dtype

        def stack(observations: Sequence[Any]) -> Array:
            stacked = np.asarray(observations)
            if stacked.shape[1:] != shape:
                raise ValueError(f"observations have shape {stacked.shape[1:]}, not {shape}")
            return stacked if stacked.dtype == dtype else in_dtype(stacked, dtype)

        return stack
    empty: Any = create_empty_array
    return lambda seen: stack_observations(space, seen, empty(space, len(seen)))
