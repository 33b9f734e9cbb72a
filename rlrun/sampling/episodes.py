"""Episodes: which episode each sub-environment runs, its seed, return and length.

Owns plans (which episode comes next) and the records of finished episodes. Where sub-environments
step together, returns and lengths are summed up from a fragment's rows when an episode or the
fragment ends, so that a step costs nothing. Must not know policies, weights or requests.

    B  sub-environments    T  vector steps of a fragment
"""

from __future__ import annotations

import math
from collections import ChainMap, Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from rlrun.data.column_data import Array
from rlrun.data.seeding import Role, episode_noise, episode_seed, mapping_rng
from rlrun.envs.agent_slots import PlannedEpisode, SubEnv


@dataclass(frozen=True, slots=True)
class EpisodeRecord:
    """A finished episode, for metrics; rewards are those before clipping and normalisation."""

    episode_id: int
    env_index: int
    seed: int
    episode_return: float
    length: int
    """Env steps."""
    agents: tuple[tuple[str, str, float], ...] = ()
    """With several agents: name, policy id and return of each, by order of appearance."""
    custom_metrics: dict[str, float] = field(default_factory=dict)
    """Numbers of the last step's info (`report.info_keys`), and those that callbacks add."""
    agent_metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    """With several agents: numbers of the last info of each, by its name."""
    hist_data: dict[str, list[float]] = field(default_factory=dict)
    """Lists of numbers that callbacks add (`LiveEpisode`)."""

    def __reduce__(self) -> tuple[Any, ...]:  # twice as fast as the default with slots
        return EpisodeRecord, tuple(getattr(self, one) for one in EpisodeRecord.__slots__)

    def of_one_agent(self) -> EpisodeRecord:
        """The record without `agents` and their names, for an environment with one agent."""
        metrics = dict(ChainMap(self.custom_metrics, *self.agent_metrics.values()))
        return replace(self, agents=(), agent_metrics={}, custom_metrics=metrics)


class RewardError(ValueError):
    """A reward is infinite or NaN, or makes the return so."""

    def __init__(self, env_index: int, env_step: int, reward: float) -> None:
        super().__init__(f"the reward is {reward}")
        self.env_index, self.env_step = env_index, env_step


class Plan(Protocol):
    """Which episodes to run; an episode is identified by its sub-environment and a number.

    Attributes:
        num_episodes: only episodes with lower numbers are recorded.
    """

    num_episodes: float

    def first(self, env_index: int) -> int:
        """The number of a sub-environment's first episode."""

    def next(self, number: int) -> int:
        """The number of the episode after this one, in the same sub-environment."""

    def instead(self, env_index: int, number: int) -> int:
        """The number of the episode to run in place of one that failed."""

    def seed(self, env_index: int, number: int) -> int:
        """The seed of the environment's reset."""

    def episode_id(self, env_index: int, number: int) -> int:
        """The episode's id, unique within the plan."""

    def noise(self, number: int) -> np.random.Generator | None:
        """The generator of the episode's action noise; None if each fragment seeds its noise."""


class EndlessPlan(Plan):
    """Episodes 0, 1, 2, ... in each sub-environment, as training samples them."""

    num_episodes = math.inf

    def __init__(self, seed: int, role: Role, runner_index: int) -> None:
        self._key = seed, role, runner_index

    def first(self, env_index: int) -> int:
        return 0

    def next(self, number: int) -> int:
        return number + 1

    def instead(self, env_index: int, number: int) -> int:
        return number + 1

    def seed(self, env_index: int, number: int) -> int:
        return episode_seed(*self._key, env_index, number)

    def episode_id(self, env_index: int, number: int) -> int:
        return (self._key[2] << 48) | (env_index << 32) | number

    def noise(self, number: int) -> np.random.Generator | None:
        return None


class CountedPlan(Plan):
    """Runs each of these episodes once, with its own seed; the k-th in sub-environment k mod B.

    Thus the mean return is not biased towards short episodes, and an episode depends neither on B
    nor on other episodes.
    """

    def __init__(self, numbers: Sequence[int], seed: int, num_envs: int) -> None:
        self.num_episodes: float = max(numbers, default=-1) + 1
        self._numbers = numbers
        self._positions = {number: k for k, number in enumerate(numbers)}
        self._seed, self._num_envs = seed, num_envs
        self._failures = Counter[int]()  # of each episode

    def _at(self, position: int) -> int:
        """The number at a position; after the last one, a number that is not recorded."""
        behind = position - len(self._numbers)
        return self._numbers[position] if behind < 0 else int(self.num_episodes) + behind

    def first(self, env_index: int) -> int:
        return self._at(env_index)

    def next(self, number: int) -> int:
        behind = len(self._numbers) + number - int(self.num_episodes)
        return self._at(self._positions.get(number, behind) + self._num_envs)

    def instead(self, env_index: int, number: int) -> int:
        self._failures[number] += 1
        return number

    def seed(self, env_index: int, number: int) -> int:
        # What has failed twice may fail each time, as it would be the same episode again.
        repeated = max(0, self._failures[number] - 1)
        return episode_seed(self._seed, Role.EVALUATION, 0, repeated, number)

    def episode_id(self, env_index: int, number: int) -> int:
        return number

    def noise(self, number: int) -> np.random.Generator | None:
        return episode_noise(self._seed, number)


class Episodes:
    """The episodes of B sub-environments.

    Args:
        max_replayed: env steps since a reset up to which actions are kept, for a restored state.

    Attributes:
        number: numbers of the running episodes, int ``[B]``.
        ids: their ids, int ``[B]``.
        seeds: seeds of the last resets, B of them.
        records: finished episodes, until a caller takes them.
        num_failed: episodes dropped so far because their environment raised.
    """

    def __init__(self, plan: Plan, num_envs: int, max_replayed: int = 100_000) -> None:
        self.plan, self.num_envs, self.max_replayed = plan, num_envs, max_replayed
        self.number = np.array([plan.first(i) for i in range(num_envs)], np.int64)
        # A soft horizon ends episodes and resets no environment, a lost life no game.
        self.reset_number = self.number.copy()
        self.seeds: list[int] = []
        self.ids = np.empty(num_envs, np.int64)
        self._name()
        self.records: list[EpisodeRecord] = []
        self.num_failed = 0

    def _name(self) -> None:
        plan, envs = self.plan, range(self.num_envs)
        self.seeds = [plan.seed(i, int(self.reset_number[i])) for i in envs]
        self.ids[:] = [plan.episode_id(i, int(self.number[i])) for i in envs]

    def turn_to(self, env_index: int, number: int, *, goes_on: bool = False) -> None:
        """Make this the running episode of a sub-environment.

        Args:
            goes_on: it begins without a reset, at a soft horizon or after a lost life.
        """
        plan = self.plan
        self.number[env_index] = number
        self.ids[env_index] = plan.episode_id(env_index, number)
        if not goes_on:
            self.reset_number[env_index] = number
            self.seeds[env_index] = plan.seed(env_index, number)

    def follow(self, given_up: Episodes) -> None:
        """Go on after these episodes, as if their environments had failed."""
        for i, number in enumerate(given_up.number.tolist()):
            self.turn_to(i, self.plan.instead(i, number))
        self.num_failed = given_up.num_failed

    def get_state(self) -> dict[str, Any]:
        """Numbers of the running episodes, and counters."""
        return {
            "number": self.number.copy(),
            "reset_number": self.reset_number.copy(),
            "seeds": np.array(self.seeds),
            "num_failed": self.num_failed,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state from `get_state`.

        Raises:
            ValueError: it has another number of sub-environments.
        """
        there = len(state["number"])
        if there != self.num_envs:
            raise ValueError(f"num_envs_per_env_runner must be {there}, not {self.num_envs}")
        np.copyto(self.number, state["number"])
        np.copyto(self.reset_number, state["reset_number"])
        self.num_failed = int(state["num_failed"])
        self._name()
        self.seeds = np.asarray(state.get("seeds", self.seeds)).tolist()  # older states lack them


class AgentEpisodes(Episodes):
    """Episodes in which agents come and go; see `EpisodeSource`.

    Attributes:
        env_steps: env steps of the episodes that ended in this fragment.
        agent_steps: actions in them.
        agents: names of their agents by index, by episode id.
    """

    def __init__(self, plan: Plan, num_envs: int, max_replayed: int = 100_000) -> None:
        super().__init__(plan, num_envs, max_replayed)
        self.begin_fragment()

    def begin_fragment(self) -> None:
        """Begin to count and record the episodes of a fragment."""
        self.records = []
        self.env_steps = self.agent_steps = 0
        self.agents: dict[int, list[Any]] = {}

    def planned(self, env_index: int) -> PlannedEpisode | None:
        """The episode to run now; None if there are no more."""
        number = int(self.number[env_index])
        if number >= self.plan.num_episodes:
            return None
        seed = self.plan.seed(env_index, number)
        episode_id = int(self.ids[env_index])
        return PlannedEpisode(episode_id, seed, self.seeds[env_index], mapping_rng(seed))

    def ended(self, sub: SubEnv, *, goes_on: bool) -> None:
        """Record the episode and turn to the next one; see `EpisodeSource`."""
        env_index, agents = sub.index, list(sub.agents.values())
        episode_id = int(self.ids[env_index])
        self.env_steps += sub.step
        self.agent_steps += sum([agent.taken for agent in agents])
        returns = [(str(agent.id), agent.policy_id, agent.total) for agent in agents]
        self.agents[episode_id] = [agent.id for agent in agents]
        record = EpisodeRecord(
            episode_id=episode_id,
            env_index=env_index,
            seed=self.seeds[env_index],
            episode_return=sub.total,
            length=sub.step,
            agents=tuple(returns),
            agent_metrics={str(agent.id): agent.metrics for agent in agents if agent.metrics},
        )
        self.records.append(record)
        number = self.plan.next(int(self.number[env_index]))
        self.turn_to(env_index, number, goes_on=goes_on)

    def given_up(self, env_index: int) -> None:
        """Drop the running episode."""
        self.turn_to(env_index, self.plan.instead(env_index, int(self.number[env_index])))


_COUNTERS = ("length", "since_reset", "total_length", "total_return")


class LockStepEpisodes(Episodes):
    """Episodes of sub-environments with one agent each, which step together.

    All arrays are ``[B]``. Times are rows of the running fragment: after t steps, the last row is
    ``t - 1``. If nothing is collected, `add_row` counts each step.

    Attributes:
        length: steps of the running episodes in earlier fragments.
        total_length, total_return: likewise, but of whole games, over lost lives (Atari).
        since_reset: likewise, but from the last reset on.
        lives: of each running game, the steps since its reset after which a life was lost.
    """

    def __init__(self, plan: Plan, num_envs: int, max_replayed: int = 100_000) -> None:
        super().__init__(plan, num_envs, max_replayed)
        self.length = np.zeros(num_envs, np.int64)
        self.total_length = np.zeros(num_envs, np.int64)
        self.total_return = np.zeros(num_envs, np.float64)
        self.since_reset = np.zeros(num_envs, np.int64)
        self._start = np.zeros(num_envs, np.int64)  # first row of the running episode
        self._reset_row = np.zeros(num_envs, np.int64)  # first row after the last reset
        self._actions: list[list[Array]] = [[] for _ in range(num_envs)]
        self.lives: list[list[int]] = [[] for _ in range(num_envs)]

    def steps(self, t: int) -> Array:
        """Steps of the running episodes, int ``[B]``, after t rows of the fragment."""
        return self.length + t - self._start

    def start_at(self, envs: int | Array, row: int) -> None:
        """Say that the episodes of these sub-environments begin at this row, with a reset."""
        self._start[envs] = self._reset_row[envs] = row

    def add_row(self, rewards: Array, valid: Array | None) -> None:
        """Count a step that is not collected; rewards are float64 ``[B]``."""
        counted = np.ones(self.num_envs, np.bool_) if valid is None else valid
        self.total_return += rewards * counted
        self.total_length += counted
        self.length += counted

    def end(
        self,
        envs: Iterable[int],
        t: int,
        rewards: Array,
        lost_lives: Sequence[Any] | None = None,
        *,
        goes_on: bool = False,
    ) -> None:
        """Record episodes whose last row is ``t - 1``, and turn to the next ones.

        Args:
            rewards: raw rewards of the fragment, ``[t, B]``.
            lost_lives: ``[B]``, true where only a life was lost, which ends an episode for learning
                but not for metrics.
            goes_on: the next ones begin without a reset, at a soft horizon.

        Raises:
            RewardError: a reward or a return is not finite.
        """
        plan = self.plan
        for i in envs:
            self._count(i, t, rewards)
            number = int(self.number[i])
            lost = not goes_on and lost_lives is not None and bool(lost_lives[i])
            if lost:
                self.lives[i].append(int(self.since_reset[i] + t - self._reset_row[i]))
            else:
                self._record(i, number)
            self.turn_to(i, plan.next(number), goes_on=goes_on or lost)
            self.length[i], self._start[i] = 0, t
            if not (goes_on or lost):
                self._begin_actions(i, t)

    def drop(self, envs: Iterable[int], t: int = 0) -> None:
        """Drop running episodes without a record; the next ones begin at row t."""
        for i in envs:
            self.turn_to(i, self.plan.instead(i, int(self.number[i])))
            self.length[i], self._start[i] = 0, t
            self.total_length[i], self.total_return[i] = 0, 0.0
            self._begin_actions(i, t)

    def _begin_actions(self, i: int, t: int) -> None:
        """Keep a sub-environment's actions from its reset at row t on."""
        self.since_reset[i], self._reset_row[i], self._actions[i], self.lives[i] = 0, t, [], []

    def end_fragment(self, t: int, rewards: Array, actions: Array) -> None:
        """End a fragment of t rows; running episodes continue in the next one.

        Args:
            actions: as connectors sent them to the environments, ``[t, B, ...]``.
        """
        for i in range(self.num_envs):
            self._count(i, t, rewards)
            self.length[i] += max(0, t - int(self._start[i]))
            first = int(self._reset_row[i])
            if first < t:
                self._keep_actions(i, actions[first:t, i])
        self._start[:] = self._reset_row[:] = 0

    def _count(self, i: int, t: int, rewards: Array) -> None:
        start = int(self._start[i])
        if start >= t:
            return
        total = float(rewards[start:t, i].sum())
        if not math.isfinite(total):
            step = int(np.isfinite(np.cumsum(rewards[start:t, i])).argmin())
            reward = float(rewards[start + step, i])
            raise RewardError(i, int(self.length[i]) + step, reward)
        self.total_return[i] += total
        self.total_length[i] += t - start

    def _record(self, i: int, number: int) -> None:
        if number < self.plan.num_episodes:
            record = EpisodeRecord(
                episode_id=int(self.ids[i]),
                env_index=i,
                seed=self.seeds[i],
                episode_return=float(self.total_return[i]),
                length=int(self.total_length[i]),
            )
            self.records.append(record)
        self.total_return[i], self.total_length[i] = 0.0, 0

    def _keep_actions(self, i: int, actions: Array) -> None:
        self.since_reset[i] += len(actions)
        if self.since_reset[i] > self.max_replayed:
            self._actions[i] = []
        else:
            self._actions[i].append(actions.copy())

    def actions(self) -> list[Array | None]:
        """The actions ``[n, ...]`` of each sub-environment since its last reset.

        None where there are none yet, or more than `max_replayed`.
        """
        for i, parts in enumerate(self._actions):
            if len(parts) > 1:
                self._actions[i] = [np.concatenate(parts)]
        return [parts[0] if parts else None for parts in self._actions]

    def get_state(self) -> dict[str, Any]:
        """Counters, and the actions since the last resets, from which episodes are replayed."""
        return {
            **super().get_state(),
            **{name: getattr(self, name).copy() for name in _COUNTERS},
            "actions": self.actions(),
            "lives": [list(steps) for steps in self.lives],
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        super().set_state(state)
        for name in _COUNTERS:
            np.copyto(getattr(self, name), state[name])
        self._actions = [[] if part is None else [np.asarray(part)] for part in state["actions"]]
        self.lives = [list(map(int, steps)) for steps in state.get("lives", self.lives)]
        self._start[:] = self._reset_row[:] = 0
