"""What the agents of one policy saw and did, row after row, and how that becomes a `SampleBatch`.

Agents come and go, so there is no grid of steps and lanes: a row is one observation of one agent,
appended in the order of arrival. What it led to is another row of the same log, named in ``next``.

    row 7  lane 0, agent 1   acted       next 9
    row 8  lane 2, agent 0   acted       next 8    left without a last observation
    row 9  lane 0, agent 1   waits                 its action is due

A row whose ``next`` is known is a transition. A fragment delivers its transitions; what waits, or
has acted and was not answered yet, goes on in the next fragment, and so does the past that views
look back at.

    M  rows    N  transitions of the finished batch    P  rows of the past that views reach back to
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from rlrun.data import columns as col
from rlrun.data.sample_batch import SampleBatch
from rlrun.data.trajectory_views import TrainingRows, TrajectoryViews, add_views

Array = NDArray[Any]

LANE, AGENT, EPISODE = "lane", "agent", "episode"
NEXT, TAKEN_AT, DONE_AT, OWN_STEP, DELIVERED, RECORDED = (
    "next",
    "taken_at",
    "done_at",
    "own_step",
    "delivered",
    "recorded",
)
_BOOK_KEEPING: dict[str, tuple[Any, Any]] = {  # name -> dtype, value of a fresh row
    LANE: (np.int64, 0),
    AGENT: (np.int64, 0),
    EPISODE: (np.int64, -1),
    NEXT: (np.int64, -1),
    TAKEN_AT: (np.int64, -1),
    DONE_AT: (np.int64, -1),
    OWN_STEP: (np.int64, 0),
    DELIVERED: (np.bool_, False),
    RECORDED: (np.bool_, False),
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
    | lane, agent, episode | which sub-environment, which agent by order of appearance, episode id |
    | next | row of what the step led to; -1 while that is not known |
    | taken_at | env step of the episode at which the agent acted; -1 while it has not |
    | done_at | env step of the episode that completed the transition |
    | own_step | how many actions the agent had taken before, in this episode |
    | delivered | it was in an earlier batch, and is here for views alone |
    | recorded | its action has been filed for replay |
    """

    def __init__(self, space: gym.Space[Any]) -> None:
        assert space.shape is not None  # the pipeline puts out arrays
        self.size = 0
        self.columns: dict[str, Array] = {
            name: np.full(_FIRST_ROWS, fresh, dtype)
            for name, (dtype, fresh) in _BOOK_KEEPING.items()
        }
        self.columns[col.OBS] = np.empty((_FIRST_ROWS, *space.shape), space.dtype)

    def append(self, observations: Array, lanes: Array, agents: Array) -> Array:
        """Rows for observations ``[k, ...]`` of these agents; returns their numbers, ``[k]``."""
        first, self.size = self.size, self.size + len(observations)
        if self.size > len(self.columns[LANE]):
            self._grow()
        rows = slice(first, self.size)
        self.columns[col.OBS][rows] = observations
        self.columns[LANE][rows] = lanes
        self.columns[AGENT][rows] = agents
        return np.arange(first, self.size)

    def write(self, rows: Array, values: Mapping[str, Any]) -> None:
        """Values ``[k, ...]`` of these rows, by column; new columns are made room for."""
        columns = self.columns
        for name, value in values.items():
            if name not in columns:
                array = np.asarray(value)
                columns[name] = np.zeros((len(columns[LANE]), *array.shape[1:]), array.dtype)
            columns[name][rows] = value

    def _grow(self) -> None:
        capacity = max(2 * len(self.columns[LANE]), self.size)
        for name, column in self.columns.items():
            more = np.full(
                (capacity - len(column), *column.shape[1:]),
                _BOOK_KEEPING[name][1] if name in _BOOK_KEEPING else 0,
                column.dtype,
            )
            self.columns[name] = np.concatenate([column, more])

    def rows_of(self, lane: int) -> Array:
        """The rows of a lane, of whatever episode."""
        return np.flatnonzero(self.columns[LANE][: self.size] == lane)

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
        lanes, agents = self.columns[LANE][rows], self.columns[AGENT][rows]
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
            if name in _BOOK_KEEPING:
                column[len(kept) : self.size] = _BOOK_KEEPING[name][1]
        self.size = len(kept)
        following = self.columns[NEXT][: self.size]
        following[following >= 0] = moved[following[following >= 0]]
        return moved

    def get_state(self) -> dict[str, Any]:
        """All rows."""
        return {name: column[: self.size].copy() for name, column in self.columns.items()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `get_state` returned."""
        self.size = 0
        for name, column in self.columns.items():
            if name in _BOOK_KEEPING:
                column[:] = _BOOK_KEEPING[name][1]
        self.append(state[col.OBS], state[LANE], state[AGENT])
        self.write(np.arange(self.size), state)


def to_batch(
    log: AgentLog,
    rows: Array,
    *,
    runner_index: int,
    fragment: int,
    further_columns: Callable[[dict[str, Array]], dict[str, Array]],
    views: TrajectoryViews | None,
) -> SampleBatch:
    """The transitions ``rows`` as a batch, in this order.

    Args:
        further_columns: makes columns ``[N, ...]`` from those that the policy put out.
        views: what the policy sees besides the present observation, if it does.
    """
    columns = log.columns
    batch_columns = {
        name: column[rows]
        for name, column in columns.items()
        if name not in _BOOK_KEEPING and name != col.OBS
    }
    batch_columns.update(further_columns(batch_columns))
    for name in (col.REWARDS, col.TERMINATEDS, col.TRUNCATEDS):
        batch_columns[name] = columns[name][rows]
    for name, source in (
        (col.EPS_ID, EPISODE),
        (col.T, DONE_AT),
        (col.ENV_ID, LANE),
        (col.AGENT_INDEX, AGENT),
    ):
        batch_columns[name] = columns[source][rows]
    pieces = np.cumsum(_changes(columns, rows, LANE, AGENT)) - 1
    batch_columns[col.UNROLL_ID] = pieces + ((runner_index << 48) | (fragment << 16))
    batch = SampleBatch.from_columns(batch_columns)
    # Views want the past too, where there is one: rows that were delivered before.
    past = np.flatnonzero(columns[DELIVERED][: log.size])
    in_order = rows if not len(past) else log.ordered(np.sort(np.concatenate([past, rows])))
    front = 0 if views is None else views.lookback
    here, following, storage = _stored(log, in_order, front)
    mine = ~columns[DELIVERED][in_order]
    batch.set_shared(col.OBS, storage, here[mine])
    batch.set_shared(col.NEXT_OBS, storage, following[mine])
    if views is not None:
        new_trajectory = _changes(columns, in_order, LANE, AGENT, EPISODE)
        starts = np.maximum.accumulate(np.where(new_trajectory, here, 0))
        ends = np.append(new_trajectory[1:], True)
        training = TrainingRows(
            (here - starts)[:, None], ends[:, None], 0, lambda column: column[:, 0][mine]
        )
        padded = np.concatenate([np.zeros(front, np.int64), in_order])
        history = {name: column[padded][:, None] for name, column in columns.items()}
        add_views(batch, views, training, history, storage, following[:, None])
    return batch


def _stored(log: AgentLog, rows: Array, front: int) -> tuple[Array, Array, Array]:
    """Storage of the rows' observations and of what they led to, and an index into it of each.

    Args:
        front: rows that stand in front, where fragments of lanes have their past; here the past
            lies among the rows.
    """
    following = log.columns[NEXT][rows]
    position = np.full(log.size, -1)
    position[rows] = front + np.arange(len(rows))
    # A row of the past can have led to one that is not kept; nobody looks there.
    following = np.where(following < 0, rows, following)
    others = np.unique(following[position[following] < 0])
    position[others] = front + len(rows) + np.arange(len(others))
    storage = log.columns[col.OBS][np.concatenate([np.zeros(front, np.int64), rows, others])]
    return position[rows], position[following], storage


def _changes(columns: Mapping[str, Array], rows: Array, *names: str) -> Array:
    """Which rows differ from the row before in one of these columns, bool; the first does."""
    changed = np.ones(len(rows), np.bool_)
    if len(rows):
        values = [columns[name][rows] for name in names]
        changed[1:] = np.any([value[1:] != value[:-1] for value in values], axis=0)
    return changed
