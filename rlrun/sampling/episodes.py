"""Book-keeping of the episodes that a runner's lanes are playing.

A lane is one sub-environment. Work happens here only when an episode or a fragment ends, never per
step: returns and lengths are sums over the rows a fragment has written anyway.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlrun.sampling.seeding import Role, episode_seed

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


class LaneEpisodes:
    """Which episode each of B lanes plays, since when, and with which seed.

    Shapes: every array is ``[B]``. Rows are vector steps of the fragment being written.
    """

    def __init__(self, seed: int, role: Role, runner_index: int, lanes: int) -> None:
        self._seed, self._role, self._runner_index = seed, role, runner_index
        self.lanes = lanes
        self.number = np.zeros(lanes, dtype=np.int64)
        self.length = np.zeros(lanes, dtype=np.int64)  # steps before this fragment's first row
        self.game_length = np.zeros(lanes, dtype=np.int64)  # the same, over lost lives (Atari)
        self.game_return = np.zeros(lanes, dtype=np.float64)
        self.start = np.zeros(lanes, dtype=np.int64)  # first row of the running episode
        self.actions: list[list[Array]] = [[] for _ in range(lanes)]
        self.seeds = [self._seed_of(lane) for lane in range(lanes)]
        """Seeds that the running episodes were reset with."""

    def _seed_of(self, lane: int) -> int:
        episode = int(self.number[lane])
        return episode_seed(self._seed, self._role, self._runner_index, lane, episode)

    def id_of(self, lane: int) -> int:
        """A number that no other episode of the run has: runner, lane and count in 63 bits."""
        return (self._runner_index << 48) | (lane << 32) | int(self.number[lane])

    def start_next(self, lane: int) -> None:
        """Turn to the lane's next episode; the old one has been finished or dropped."""
        self.number[lane] += 1
        self.length[lane] = 0
        self.actions[lane] = []
        self.seeds[lane] = self._seed_of(lane)

    def finish(
        self, lane: int, end: int, rewards: Array, *, game_goes_on: bool
    ) -> EpisodeRecord | None:
        """Close the lane's episode, whose last row is ``end - 1``, and turn to the next.

        Args:
            rewards: raw rewards of the fragment, ``[T, B]``.
            game_goes_on: a life was lost, not the game: learning sees an end, metrics do not.
        """
        self._count(lane, end, rewards)
        record = None
        if not game_goes_on:
            record = EpisodeRecord(
                episode_id=self.id_of(lane),
                lane=lane,
                seed=self.seeds[lane],
                episode_return=float(self.game_return[lane]),
                length=int(self.game_length[lane]),
            )
            self.game_return[lane] = 0.0
            self.game_length[lane] = 0
        self.start_next(lane)
        self.start[lane] = end
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
            start = int(self.start[lane])
            if start < end:
                self.length[lane] += end - start
                self._record(lane, actions[start:end, lane])
            self._count(lane, end, rewards)
        self.start[:] = 0

    def _record(self, lane: int, actions: Array) -> None:
        if self.length[lane] > LONGEST_REPLAY:
            self.actions[lane] = []
        else:
            self.actions[lane].append(actions.copy())

    def _count(self, lane: int, end: int, rewards: Array) -> None:
        start = int(self.start[lane])
        self.game_return[lane] += float(rewards[start:end, lane].sum())
        self.game_length[lane] += max(0, end - start)

    def get_state(self) -> dict[str, Any]:
        """Counters, and the running episodes' actions, from which they can be replayed."""
        return {
            "number": self.number.copy(),
            "length": self.length.copy(),
            "game_length": self.game_length.copy(),
            "game_return": self.game_return.copy(),
            "actions": self.recorded_actions(),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Take over what `get_state` returned."""
        for name in ("number", "length", "game_length", "game_return"):
            np.copyto(getattr(self, name), state[name])
        self.actions = [[] if part is None else [np.asarray(part)] for part in state["actions"]]
        self.seeds = [self._seed_of(lane) for lane in range(self.lanes)]
        self.start[:] = 0
