"""The episodes that a runner's lanes are playing: their books, and where one ends and one begins.

A lane is one sub-environment. Work happens here only when an episode or a fragment ends, never per
step: returns and lengths are sums over the rows a fragment has written anyway. Knows nothing of
policies, weights and requests.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rlrun.envs.errors import EnvError
from rlrun.envs.vector_env import take_lanes
from rlrun.sampling.seeding import Role, episode_seed

if TYPE_CHECKING:
    from rlrun.connectors.custom import EnvToModule
    from rlrun.connectors.observations import ObservationPipeline
    from rlrun.envs.episode_vector_env import EpisodeVectorEnv
    from rlrun.sampling.action_noise import ActionNoise
    from rlrun.sampling.sample_collector import SampleCollector

Array = NDArray[Any]

LONGEST_REPLAY = 100_000
"""Env steps of an episode that is still replayed when its runner is restored."""


@dataclass(frozen=True, slots=True)
class EpisodeRecord:
    """One finished episode, as metrics see it: rewards before clipping and normalisation."""

    episode_id: int
    lane: int
    seed: int
    episode_return: float
    length: int
    """Env steps."""
    agents: tuple[tuple[str, str, float], ...] = ()
    """With several agents: name, policy id and return of each, by order of appearance."""


class RewardError(ValueError):
    """A reward is infinite or NaN."""

    def __init__(self, lane: int, env_step: int, reward: float) -> None:
        super().__init__(f"the reward is {reward}")
        self.lane, self.env_step = lane, env_step


class LaneEpisodes:
    """Which episode each of B lanes plays, since when, and with which seed.

    Shapes: every array is ``[B]``. Rows are vector steps of the fragment being written.
    """

    def __init__(self, seed: int, role: Role, runner_index: int, lanes: int) -> None:
        self._seed, self._role, self.runner_index = seed, role, runner_index
        self.lanes = lanes
        self.number = np.zeros(lanes, dtype=np.int64)
        self.length = np.zeros(lanes, dtype=np.int64)  # steps before this fragment's first row
        self.game_length = np.zeros(lanes, dtype=np.int64)  # the same, over lost lives (Atari)
        self.game_return = np.zeros(lanes, dtype=np.float64)
        self.start = np.zeros(lanes, dtype=np.int64)  # first row of the running episode
        # A soft horizon ends episodes and resets no environment; replays begin where one was.
        self.reset_number = np.zeros(lanes, dtype=np.int64)  # the episode it was reset for
        self.since_reset = np.zeros(lanes, dtype=np.int64)  # steps before this fragment's first row
        self._reset_row = np.zeros(lanes, dtype=np.int64)
        self.actions: list[list[Array]] = [[] for _ in range(lanes)]
        self.seeds = [self._seed_of(lane) for lane in range(lanes)]
        """Seeds that the running episodes were reset with."""

    def _seed_of(self, lane: int) -> int:
        episode = int(self.reset_number[lane])
        return episode_seed(self._seed, self._role, self.runner_index, lane, episode)

    def id_of(self, lane: int) -> int:
        """A number that no other episode of the run has: runner, lane and count in 63 bits."""
        return (self.runner_index << 48) | (lane << 32) | int(self.number[lane])

    def ids(self, lanes: Array) -> Array:
        """`id_of` for several lanes, int ``[k]``."""
        return (self.runner_index << 48) | (lanes << 32) | self.number[lanes]

    def start_next(self, lane: int) -> None:
        """Turn to the lane's next episode; the old one has been finished or dropped."""
        self.number[lane] += 1
        self.reset_number[lane] = self.number[lane]
        self.length[lane] = self.since_reset[lane] = 0
        self.actions[lane] = []
        self.seeds[lane] = self._seed_of(lane)

    def finish(
        self, lane: int, end: int, rewards: Array, *, game_goes_on: bool
    ) -> EpisodeRecord | None:
        """Close the lane's episode, whose last row is ``end - 1``, and turn to the next.

        Args:
            rewards: raw rewards of the fragment, ``[T, B]``.
            game_goes_on: a life was lost, not the game: learning sees an end, metrics do not.

        Raises:
            RewardError: one of the episode's rewards in the fragment is not finite.
        """
        self._count(lane, end, rewards)
        record = None if game_goes_on else self._recorded(lane)
        self.start_next(lane)
        self.start_at(lane, end)
        return record

    def go_on(self, lane: int, end: int, rewards: Array) -> EpisodeRecord:
        """Close the lane's episode at a soft horizon: the next one goes on where it ended."""
        self._count(lane, end, rewards)
        record = self._recorded(lane)
        self.number[lane] += 1
        self.length[lane] = 0
        self.start[lane] = end
        return record

    def start_at(self, lanes: int | Array, row: int) -> None:
        """The episodes of these lanes begin at this row, with a reset."""
        self.start[lanes] = self._reset_row[lanes] = row

    def steps(self, end: int) -> Array:
        """Steps of the running episodes, int ``[B]``, after ``end`` rows of the fragment."""
        return self.length + end - self.start

    def _recorded(self, lane: int) -> EpisodeRecord:
        record = EpisodeRecord(
            episode_id=self.id_of(lane),
            lane=lane,
            seed=self.seeds[lane],
            episode_return=float(self.game_return[lane]),
            length=int(self.game_length[lane]),
        )
        self.game_return[lane] = 0.0
        self.game_length[lane] = 0
        return record

    def drop(self, lane: int) -> None:
        """Give up the lane's running episode without a record, and turn to the next."""
        self.start_next(lane)
        self.game_return[lane] = 0.0
        self.game_length[lane] = 0

    def recorded_actions(self) -> list[Array | None]:
        """The actions of each lane's running episode.

        None where it has taken none, or more than anybody would want to repeat.
        """
        for lane, parts in enumerate(self.actions):
            if len(parts) > 1:
                self.actions[lane] = [np.concatenate(parts)]
        return [parts[0] if parts else None for parts in self.actions]

    def carry_over(self, end: int, rewards: Array, actions: Array) -> None:
        """Close a fragment of ``end`` rows: running episodes go on in the next one."""
        for lane in range(self.lanes):
            self._count(lane, end, rewards)
            self.length[lane] += max(0, end - int(self.start[lane]))
            first = int(self._reset_row[lane])
            if first < end:
                self._record(lane, actions[first:end, lane])
        self.start[:] = self._reset_row[:] = 0

    def _record(self, lane: int, actions: Array) -> None:
        self.since_reset[lane] += len(actions)
        if self.since_reset[lane] > LONGEST_REPLAY:
            self.actions[lane] = []
        else:
            self.actions[lane].append(actions.copy())

    def _count(self, lane: int, end: int, rewards: Array) -> None:
        start = int(self.start[lane])
        total = float(rewards[start:end, lane].sum())
        if not math.isfinite(total):
            step = int(np.flatnonzero(~np.isfinite(rewards[start:end, lane]))[0])
            reward = float(rewards[start + step, lane])
            raise RewardError(lane, int(self.length[lane]) + step, reward)
        self.game_return[lane] += total
        self.game_length[lane] += max(0, end - start)

    def get_state(self) -> dict[str, Any]:
        """Counters, and the running episodes' actions, from which they can be replayed."""
        return {
            "number": self.number.copy(),
            "length": self.length.copy(),
            "reset_number": self.reset_number.copy(),
            "since_reset": self.since_reset.copy(),
            "game_length": self.game_length.copy(),
            "game_return": self.game_return.copy(),
            "actions": self.recorded_actions(),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Take over what `get_state` returned.

        Raises:
            ValueError: it was of another number of lanes.
        """
        lanes = len(state["number"])
        if lanes != self.lanes:
            raise ValueError(f"it is of {lanes} sub-environments, now there are {self.lanes}")
        for name in state.keys() - {"actions"}:
            np.copyto(getattr(self, name), state[name])
        self.actions = [[] if part is None else [np.asarray(part)] for part in state["actions"]]
        self.seeds = [self._seed_of(lane) for lane in range(self.lanes)]
        self.start[:] = self._reset_row[:] = 0


class EpisodeBoundaries:
    """What is done where an episode of a lane ends, and where the next one begins.

    Times are rows of the running fragment: after t steps, the last row is ``t - 1``.

    Attributes:
        records: episodes that have ended, until somebody takes them.
        num_faulty: episodes dropped so far, because their environment raised.
    """

    def __init__(
        self,
        episodes: LaneEpisodes,
        envs: EpisodeVectorEnv,
        observations: ObservationPipeline | EnvToModule,
        collector: SampleCollector,
        noise: ActionNoise,
    ) -> None:
        self.episodes, self.envs, self.collector = episodes, envs, collector
        self.observations, self._noise = observations, noise
        self.records: list[EpisodeRecord] = []
        self.num_faulty = 0
        self._first_rows: list[tuple[int, Array, Any]] = []  # t, lanes, raw first observations

    def begin(self, lanes: Array, raw_obs: Any, *, update: bool = True) -> None:
        """Tell the collector what the policy sees first of the next episodes of these lanes."""
        obs = self.observations.first(raw_obs, lanes, update=update)
        self.collector.begin_episodes(lanes, self.episodes.ids(lanes), obs)

    def end(self, t: int, done: Array, infos: Mapping[str, Any] | None) -> None:
        """File the episodes that ended with the last of t steps, and start the next ones."""
        lanes = np.flatnonzero(done)
        self._noise.begin_episodes(lanes)
        self.collector.end_episodes(lanes)
        goes_on = None if infos is None else infos.get("episode_continues")
        rewards = self.collector.rewards
        for lane in lanes.tolist():
            lost_life = goes_on is not None and bool(goes_on[lane])
            record = self.episodes.finish(lane, t, rewards, game_goes_on=lost_life)
            if record is not None:
                self.records.append(record)
        self._reset(t, done)

    def go_on(self, t: int, lanes: Array) -> None:
        """End the episodes of these lanes after t steps; the next begin where they are."""
        self._noise.begin_episodes(lanes)
        self.collector.end_episodes(lanes)
        rewards = self.collector.rewards
        self.records += [self.episodes.go_on(lane, t, rewards) for lane in lanes.tolist()]
        self._begin_here(lanes)

    def _begin_here(self, lanes: Array) -> None:
        ids, obs = self.episodes.ids(lanes), self.collector.obs[lanes]
        self.collector.begin_episodes(lanes, ids, obs)

    def _reset(self, t: int, mask: Array) -> None:
        """Reset the lanes of ``mask``: after t steps that is what their policy sees."""
        try:
            raw_obs = self.envs.reset_lanes(mask, self.episodes.seeds)
        except EnvError as error:
            raise self.placed(error, t - 1) from None
        if raw_obs is None:  # this env's next step brings the observations
            return
        lanes = np.flatnonzero(mask)
        first = obs = take_lanes(raw_obs, lanes)
        if not self.observations.identity:
            obs = self.observations.first(first, lanes)
            self._first_rows.append((t, lanes, first))
        self.collector.begin_episodes(lanes, self.episodes.ids(lanes), obs)

    def without_transition(self, t: int) -> None:
        """Lanes whose step, the last of t, was no transition.

        Those are steps that an environment spent on its own reset, and the episodes of
        environments that raised and have been built again.
        """
        if self.envs.valid is not None:
            resetting = np.flatnonzero(~self.envs.valid)
            self._noise.begin_episodes(resetting)
            self.episodes.start_at(resetting, t)
            self._begin_here(resetting)
        if not self.envs.failed_lanes:
            return
        failed = np.zeros(self.episodes.lanes, dtype=np.bool_)
        failed[list(self.envs.failed_lanes)] = True
        self.drop(self.envs.failed_lanes)
        for lane in self.envs.failed_lanes:
            self.episodes.start_at(lane, t)
        self.num_faulty += int(failed.sum())
        self._reset(t, failed)

    def drop(self, lanes: Iterable[int]) -> None:
        """Give up the running episodes of these lanes."""
        for lane in lanes:
            self.collector.drop(np.array([lane]), self.episodes.id_of(lane))
            self._noise.begin_episodes(lane)
            self.episodes.drop(lane)

    def before_filter(self, raw_obs: Any, t: int) -> Array:
        """What lanes see after t steps as it was before the filter, ``[B, ...]``."""
        unfiltered = np.array(self.observations.preprocess(raw_obs))
        for row, lanes, first in self._first_rows:
            if row == t:
                unfiltered[lanes] = self.observations.preprocess(first)
        self._first_rows.clear()
        return unfiltered

    def placed(self, error: EnvError, t: int) -> EnvError:
        """The error of the environments' step t, with its place."""
        error.runner_index = self.episodes.runner_index
        error.env_step = int(self.episodes.steps(t)[error.lane])
        return error
