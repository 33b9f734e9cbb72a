"""AgentLog: what the agents of one policy saw and did, row after row.

Agents come and go, so there is no grid of steps and lanes: a row is one observation of one agent,
appended in the order of arrival. What it led to is another row of the same log, named in ``next``.

    row 7  lane 0, agent 1   acted       next 9
    row 8  lane 2, agent 0   acted       next 8    left without a last observation
    row 9  lane 0, agent 1   waits                 its action is due

A row whose ``next`` is known is a transition. A fragment delivers its transitions; what waits, or
has acted and was not answered yet, goes on in the next fragment, and so does the past that views
look back at.

    M  rows    k  rows of a step
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from rlrun.data import columns as col

Array = NDArray[Any]

NEXT, DELIVERED = "next", "delivered"
BOOK_KEEPING: dict[str, tuple[Any, Any]] = {  # name -> dtype, value of a fresh row
    col.ENV_ID: (np.int64, 0),
    col.AGENT_INDEX: (np.int64, 0),
    col.EPS_ID: (np.int64, -1),
    NEXT: (np.int64, -1),
    col.T: (np.int64, -1),
    DELIVERED: (np.bool_, False),
    col.REWARDS: (np.float32, 0.0),
    col.TERMINATEDS: (np.bool_, False),
    col.TRUNCATEDS: (np.bool_, False),
}
_FIRST_ROWS = 256


class AgentLog:
    """Rows of one policy.

    Attributes:
        columns: by name, ``[M or more, ...]``; the first `size` rows are in use. Besides
            observations and what the policy put out:

    | column | meaning |
    |---|---|
    | env_id, agent_index, eps_id | lane, agent by order of appearance, episode |
    | next | row of what the step led to; -1 while that is not known |
    | t | env step of the episode that completed the transition |
    | delivered | it was in an earlier batch, and is here for views alone |
    """

    def __init__(self, space: gym.Space[Any]) -> None:
        assert space.shape is not None  # the pipeline puts out arrays
        self.size = 0
        self.columns: dict[str, Array] = {
            name: np.full(_FIRST_ROWS, fresh, dtype)
            for name, (dtype, fresh) in BOOK_KEEPING.items()
        }
        self.columns[col.OBS] = np.empty((_FIRST_ROWS, *space.shape), space.dtype)

    def append(self, observations: Array, places: Array) -> Array:
        """Rows for observations ``[k, ...]``; returns their numbers, ``[k]``.

        Args:
            places: lane, agent index and episode id of each, ``[k, 3]``.
        """
        first, self.size = self.size, self.size + len(observations)
        columns = self.columns
        if self.size > len(columns[NEXT]):
            self._grow()
        rows = slice(first, self.size)
        columns[col.OBS][rows] = observations
        columns[col.ENV_ID][rows] = places[:, 0]
        columns[col.AGENT_INDEX][rows] = places[:, 1]
        columns[col.EPS_ID][rows] = places[:, 2]
        return np.arange(first, self.size)

    def write(self, rows: Array, values: Mapping[str, Any]) -> None:
        """Values ``[k, ...]`` of these rows, by column; new columns are made room for."""
        columns = self.columns
        for name, value in values.items():
            if name not in columns:
                array = np.asarray(value)
                columns[name] = np.zeros((len(columns[col.ENV_ID]), *array.shape[1:]), array.dtype)
            columns[name][rows] = value

    def _grow(self) -> None:
        capacity = max(2 * len(self.columns[col.ENV_ID]), self.size)
        for name, column in self.columns.items():
            more = np.full(
                (capacity - len(column), *column.shape[1:]),
                BOOK_KEEPING[name][1] if name in BOOK_KEEPING else 0,
                column.dtype,
            )
            self.columns[name] = np.concatenate([column, more])

    def transitions(self, held: Array) -> Array:
        """Rows to deliver, agent after agent and each in its order.

        Args:
            held: bool ``[M]``; rows that wait for the end of their episode.
        """
        used = slice(0, self.size)
        due = (self.columns[NEXT][used] >= 0) & ~self.columns[DELIVERED][used] & ~held
        return self.ordered(np.flatnonzero(due))

    def ordered(self, rows: Array) -> Array:
        """These rows, which are in order of arrival, agent after agent."""
        lanes, agents = self.columns[col.ENV_ID][rows], self.columns[col.AGENT_INDEX][rows]
        return rows[np.lexsort((agents, lanes))]  # stable: each agent's stay in their order

    def keep(self, rows: Array) -> Array:
        """Drop all rows but these and those that their transitions led to.

        Returns:
            What has become of each row, ``[M]``: its new number, or -1.
        """
        wanted = np.zeros(self.size, np.bool_)
        wanted[rows] = True
        following = self.columns[NEXT][rows]
        wanted[following[following >= 0]] = True
        kept = np.flatnonzero(wanted)
        moved = np.full(self.size, -1)
        moved[kept] = np.arange(len(kept))
        for name, column in self.columns.items():
            column[: len(kept)] = column[kept]
            if name in BOOK_KEEPING:
                column[len(kept) : self.size] = BOOK_KEEPING[name][1]
        self.size = len(kept)
        following = self.columns[NEXT][: self.size]
        following[following >= 0] = moved[following[following >= 0]]
        return moved

    def get_state(self) -> dict[str, Any]:
        """All rows; info dicts as lists, which a checkpoint takes."""
        rows = {name: column[: self.size].copy() for name, column in self.columns.items()}
        return {
            name: column.tolist() if column.dtype == np.object_ else column
            for name, column in rows.items()
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `get_state` returned."""
        self.size = 0
        for name, (_, fresh) in BOOK_KEEPING.items():
            self.columns[name][:] = fresh
        places = (state[col.ENV_ID], state[col.AGENT_INDEX], state[col.EPS_ID])
        self.append(state[col.OBS], np.stack(places, axis=1))
        for name, rows in state.items():
            column = np.empty(self.size, np.object_) if isinstance(rows, list) else np.asarray(rows)
            if isinstance(rows, list):
                column[:] = rows
            self.write(np.arange(self.size), {name: column})
