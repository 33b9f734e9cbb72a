"""Transitions that one fragment hands to the next.

Owns the two reasons for it: a fragment of exact length that is full, and episodes that are only
delivered when they are complete. Both come back as the first rows of the next fragment.

    K  rows    B  lanes
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from rlrun.sampling.columnar_collector import FragmentBuffer

Array = NDArray[Any]


class Carry:
    """What a runner holds back between two fragments.

    Args:
        whole_episodes: hold back unfinished episodes; else what a full fragment has no room for.
    """

    def __init__(self, *, whole_episodes: bool) -> None:
        self._whole_episodes = whole_episodes
        self._held: CarriedRow | UnfinishedRows | None = None

    @property
    def num_rows(self) -> int:
        """Rows that the next fragment begins with."""
        return 0 if self._held is None else self._held.num_rows

    def begin(self, buffer: FragmentBuffer) -> tuple[int, int]:
        """Put what was held back first; returns rows, and transitions that count at once."""
        if self._held is None:
            return 0, 0
        held, self._held = self._held, None
        return held.num_rows, held.put(buffer)

    def end(self, buffer: FragmentBuffer, t: int, surplus: int, first: Array) -> int:
        """Hold back what the fragment of t rows does not deliver; returns its rows.

        Args:
            surplus: transitions of the last row that are too many.
            first: row of the running episode's first step in each lane, ``[B]``; t for none.
        """
        if self._whole_episodes:
            self._held = UnfinishedRows.take(buffer, t, first)
        elif surplus:
            self._held = CarriedRow.take(buffer, t - 1, surplus)
        return self.num_rows

    def drop(self, lane: int) -> None:
        """Forget what is held back of a lane."""
        if isinstance(self._held, UnfinishedRows):
            self._held.valid[:, lane] = False

    def get_state(self) -> dict[str, Any]:
        """What is held back."""
        if self._held is None:
            return {}
        return {**vars(self._held), "columns": storable(self._held.columns)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `get_state` returned."""
        kind = UnfinishedRows if self._whole_episodes else CarriedRow
        self._held = None
        if state:
            self._held = kind(**{**state, "columns": from_storable(state["columns"])})


@dataclass(frozen=True)
class CarriedRow:
    """Transitions that a fragment had no room for; the next fragment starts with them.

    Only environments that reset themselves in a step of their own need this: lanes then fill up
    unevenly, and the vector step that completes a fragment can bring a few transitions too many.

    Shapes: k carried lanes. Observations and columns are of all lanes, ``[B, ...]``, since views
    may look back at them; every other array is ``[k, ...]``.
    """

    lanes: Array
    obs: Array
    next_obs: Array
    rewards: Array
    terminateds: Array
    truncateds: Array
    episode_id: Array
    episode_step: Array
    columns: dict[str, Array]

    @property
    def num_rows(self) -> int:
        """It is one row."""
        return 1

    @classmethod
    def take(cls, buffer: FragmentBuffer, t: int, surplus: int) -> CarriedRow:
        """Move the last ``surplus`` transitions of row t out of the buffer."""
        assert buffer.valid is not None  # rows without gaps come out even
        lanes = np.flatnonzero(buffer.valid[t])[-surplus:]
        buffer.valid[t, lanes] = False
        return cls(
            lanes=lanes,
            obs=buffer.obs[t].copy(),
            next_obs=buffer.next_obs(t, lanes),
            rewards=buffer.rewards[t, lanes],
            terminateds=buffer.terminateds[t, lanes],
            truncateds=buffer.truncateds[t, lanes],
            episode_id=buffer.episode_id[t, lanes],
            episode_step=buffer.episode_step[t, lanes],
            columns={name: column[t].copy() for name, column in buffer.columns.items()},
        )

    def put(self, buffer: FragmentBuffer) -> int:
        """Make these the buffer's row 0; returns how many there are."""
        lanes = self.lanes
        others = np.setdiff1d(np.arange(buffer.lanes), lanes)
        buffer.mask()[0, others] = False
        buffer.rewards[0], buffer.terminateds[0], buffer.truncateds[0] = 0.0, False, False
        buffer.obs[0] = self.obs
        buffer.rewards[0, lanes] = self.rewards
        buffer.terminateds[0, lanes] = self.terminateds
        buffer.truncateds[0, lanes] = self.truncateds
        buffer.episode_id[0, lanes] = self.episode_id
        buffer.episode_step[0, lanes] = self.episode_step
        for name, values in self.columns.items():
            if name not in buffer.columns:
                buffer.add_column(name, values)
            buffer.columns[name][0] = values
        ended = self.terminateds | self.truncateds
        if ended.any():
            buffer.add_finals(0, lanes[ended], self.next_obs[ended])
        return len(lanes)


@dataclass(frozen=True)
class UnfinishedRows:
    """The last K rows of a fragment, of which those of unfinished episodes wait for their ends.

    Shapes: every array is ``[K, B, ...]``, the longest unfinished episode is K steps long.
    """

    valid: Array
    """True where a row belongs to a lane's unfinished episode."""
    obs: Array
    rewards: Array
    episode_id: Array
    episode_step: Array
    columns: dict[str, Array]

    @property
    def num_rows(self) -> int:
        """K."""
        return len(self.valid)

    @classmethod
    def take(cls, buffer: FragmentBuffer, end: int, starts: Array) -> UnfinishedRows:
        """Move the rows of unfinished episodes out of the buffer's first ``end`` rows.

        Args:
            starts: first row of each lane's running episode, ``[B]``; ``end`` where it has none.
        """
        first = min(end, int(starts.min()))
        rows = slice(first, end)
        valid = np.arange(first, end)[:, None] >= starts
        if buffer.valid is not None:
            valid &= buffer.valid[rows]
        buffer.mask()[rows] &= ~valid
        return cls(
            valid=valid,
            obs=buffer.obs[rows].copy(),
            rewards=buffer.rewards[rows].copy(),
            episode_id=buffer.episode_id[rows].copy(),
            episode_step=buffer.episode_step[rows].copy(),
            columns={name: column[rows].copy() for name, column in buffer.columns.items()},
        )

    def put(self, buffer: FragmentBuffer) -> int:
        """Make these the buffer's first rows; they count when their episodes end, so returns 0."""
        rows = slice(0, self.num_rows)
        buffer.mask()[rows] &= self.valid
        buffer.obs[rows] = self.obs
        buffer.rewards[rows] = self.rewards
        buffer.terminateds[rows] = buffer.truncateds[rows] = False
        buffer.episode_id[rows] = self.episode_id
        buffer.episode_step[rows] = self.episode_step
        for name, values in self.columns.items() if self.num_rows else ():
            if name not in buffer.columns:
                buffer.add_column(name, values[0])
            buffer.columns[name][rows] = values
        return 0


def storable(columns: Mapping[str, Array]) -> dict[str, Any]:
    """Columns as a checkpoint takes them: objects as shape and list, others as they are."""
    return {
        name: {"shape": list(rows.shape), "objects": rows.ravel().tolist()}
        if rows.dtype == np.object_
        else rows
        for name, rows in columns.items()
    }


def from_storable(columns: Mapping[str, Any]) -> dict[str, Array]:
    """The inverse of `storable`."""
    return {
        name: _objects(rows["objects"], rows["shape"])
        if isinstance(rows, dict)
        else np.asarray(rows)
        for name, rows in columns.items()
    }


def _objects(objects: list[Any], shape: list[int]) -> Array:
    column = np.empty(len(objects), np.object_)
    for i, value in enumerate(objects):  # one by one: numpy would look into lists
        column[i] = value
    return column.reshape(shape)
