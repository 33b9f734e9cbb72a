"""Slots: what policies know of environments, as arrays.

A *slot* is one agent of one sub-environment. With one agent each, slots and sub-environments are
the same, and all act together. With several agents of one policy, an agent has a slot of the policy
for as long as it takes part in an episode. Owns slots and what steps bring to them; must not know
how actions are chosen.

    S  slots of a policy    k  slots of a step    m  of them, those with an observation
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate
from numpy.typing import NDArray

from rlrun.envs.env import observation_problem
from rlrun.envs.episode_vector_env import bad_value_test
from rlrun.policies.policy_mapping import Spaces

Array = NDArray[Any]
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
    """Of the episode's random numbers."""
    reset_seed: int
    """Of the environment: the same, unless the episode begins at a soft horizon."""
    mapping_rng: np.random.Generator
    """For choices of policies."""


class EpisodePlan(Protocol):
    """Which episodes sub-environments run; it is called at the end of each."""

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


class PolicySlots:
    """The slots of one policy, and what the present step brings to them.

    Args:
        spaces: of the environment, for agents of this policy.
    """

    def __init__(self, spaces: Spaces) -> None:
        self.spaces = spaces
        self.stack = _stacker(spaces[0])
        self.wants_infos = False
        self.agents: list[AgentSlot | None] = []
        self.due = Due(np.empty(0, np.int64))
        self._is_bad = bad_value_test(spaces[0])
        self._plain_actions = isinstance(spaces[1], _PLAIN_SPACES)
        self._free: list[int] = []
        self._clear()

    def _clear(self) -> None:
        self.joined: list[AgentSlot] = []
        self.staying: list[AgentSlot] = []
        self.staying_slots: list[int] = []
        self.observations: list[Any] = []  # raw, of those that stay
        self.staying_steps: list[int] = []
        self.staying_infos: list[Any] = []
        self.leaving: list[AgentSlot] = []
        self.last_observations: list[Any] = []
        self.last_flags: list[tuple[bool, bool]] = []
        self.last_steps: list[int] = []
        self.last_infos: list[Any] = []

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
        """An agent has left."""
        self._free.append(agent.slot)
        self.agents[agent.slot] = None
        agent.slot = -1

    def restore(self, agents: Iterable[AgentSlot]) -> None:
        """Let exactly these agents have the slots that they name."""
        taken = {agent.slot: agent for agent in agents}
        size = max(len(self.agents), 1 + max(taken, default=-1))
        self.agents = [taken.get(slot) for slot in range(size)]
        self._free = [slot for slot in reversed(range(size)) if slot not in taken]

    def each(self, actions: Any, count: int) -> Any:
        """The environment's actions of each agent, from a batch of so many."""
        if self._plain_actions:
            return actions
        return iterate(batch_space(self.spaces[1], count), actions)

    def due_in(self, envs: Collection[int]) -> Due:
        """Slots that act now in these sub-environments."""
        due = self.due
        assert due.slots is not None
        now = np.array([self.at(slot).env_index in envs for slot in due.slots.tolist()], np.bool_)
        return Due(due.slots[now], due.steps[now])

    def not_due(self, slots: Any) -> None:
        """These slots, int ``[k]``, have acted or are gone."""
        assert self.due.slots is not None
        keep = ~np.isin(self.due.slots, slots)
        self.due = Due(self.due.slots[keep], self.due.steps[keep])

    def at(self, slot: int) -> AgentSlot:
        """The agent of a slot."""
        agent = self.agents[slot]
        assert agent is not None
        return agent

    def take_step(self) -> tuple[SlotStep, list[AgentSlot]] | None:
        """What the step has brought, and to which agents; None for nothing.

        Raises:
            AgentProblem: an observation or a reward is not what it must be.
        """
        agents = self.staying + self.leaving
        if not agents:
            return None
        num_staying, raw, slots = len(self.staying), self.observations, self.staying_slots
        flags, observed = np.zeros((len(agents), 2), np.bool_), None
        if self.leaving:
            flags[num_staying:] = self.last_flags
            slots = slots + [agent.slot for agent in self.leaving]
            raw = raw + [last for last in self.last_observations if last is not None]
            if len(raw) < len(agents):
                observed = np.ones(len(agents), np.bool_)
                observed[num_staying:] = [last is not None for last in self.last_observations]
        rewards = np.array([agent.credit for agent in agents], np.float64)
        all_slots, steps = np.array(slots), np.array(self.staying_steps + self.last_steps)
        if not np.isfinite(rewards).all():
            i = int(np.flatnonzero(~np.isfinite(rewards))[0])
            raise AgentProblem(agents[i], f"the reward is {agents[i].credit}", int(steps[i]) - 1)
        for agent in agents:
            agent.credit = 0.0
        stacked: Any = []
        if raw:
            with suppress(ValueError, TypeError, KeyError):
                stacked = self.stack(raw)
            if not len(stacked) or self._is_bad(stacked):
                self._blame(agents, steps)
        infos = dict(enumerate(self.staying_infos + self.last_infos)) if self.wants_infos else None
        acted = np.array([agent.taken > 0 for agent in agents]) if self.joined else None
        step = SlotStep(
            rewards=rewards,
            terminateds=flags[:, 0],
            truncateds=flags[:, 1],
            observations=stacked,
            infos=infos,
            slots=all_slots,
            num_staying=num_staying,
            observed=observed,
            joined=self.joined,
            acted=acted,
            steps=steps,
        )
        assert self.due.slots is not None
        self.due = Due(
            np.concatenate([self.due.slots, all_slots[:num_staying]]),
            np.concatenate([self.due.steps, steps[:num_staying]]),
        )
        for agent in self.leaving:
            self.free(agent)
        self._clear()
        return step, agents

    def _blame(self, agents: list[AgentSlot], steps: Array) -> None:
        """Raise AgentProblem for the first observation that is not in the space."""
        seen = self.observations + self.last_observations
        for agent, observation, step in zip(agents, seen, steps.tolist(), strict=True):
            problem = observation_problem(self.spaces[0], observation)
            if observation is not None and problem is not None:
                raise AgentProblem(agent, problem, step - 1)


class AgentProblem(Exception):  # noqa: N818 - it becomes an EnvError, with its place
    """An environment gave an agent something wrong."""

    def __init__(self, agent: AgentSlot, reason: str, step: int) -> None:
        super().__init__(agent, reason, step)
        self.agent, self.reason, self.step = agent, reason, step


def _stacker(space: gym.Space[Any]) -> Callable[[list[Any]], Any]:
    """Puts observations of a space together, batched as gymnasium's vector environments do."""
    if isinstance(space, gym.spaces.Box):
        shape, dtype = space.shape, space.dtype

        def stack(observations: list[Any]) -> Array:
            stacked = np.asarray(observations)
            if stacked.shape[1:] != shape or stacked.dtype.kind == "O":
                raise ValueError(f"observations have shape {stacked.shape[1:]}, not {shape}")
            return stacked.astype(dtype, copy=False)

        return stack
    if isinstance(space, gym.spaces.Discrete):
        return lambda observations: np.asarray(observations, np.int64)
    empty: Any = create_empty_array
    return lambda observations: concatenate(space, observations, empty(space, len(observations)))
