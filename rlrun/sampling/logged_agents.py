"""LoggedAgents: the fast store of what agents live through, one `AgentLog` for all of a policy.

Owns which row of the log belongs to which seat, and how rows become a `SampleBatch`.

    M  rows of the log    S  seats    k  agents of a step    P  rows of the past that views look at
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from rlrun.data import columns as col
from rlrun.data.sample_batch import SampleBatch
from rlrun.data.trajectory_views import TrainingRows, TrajectoryViews, add_views
from rlrun.sampling.agent_log import BOOK_KEEPING, DELIVERED, NEXT, AgentLog
from rlrun.sampling.agent_store import AgentStore, Delivery, Heard, name_pieces
from rlrun.sampling.policy_inputs import PolicyInputs

Array = NDArray[Any]

_OF_EVERY_STEP = (
    *(col.REWARDS, col.TERMINATEDS, col.TRUNCATEDS),
    *(col.EPS_ID, col.T, col.ENV_ID, col.AGENT_INDEX),
)


class LoggedAgents(AgentStore):
    """See the module, and `AgentStore` for what each method is asked for.

    Args:
        space: of one preprocessed observation.
    """

    def __init__(self, inputs: PolicyInputs, space: gym.Space[Any]) -> None:
        super().__init__(inputs)
        self.log = AgentLog(space)
        self._here = np.empty(0, np.int64)  # [S] row that the agent is to act on, or -1
        self._open = np.empty(0, np.int64)  # [S] row of the action that was not answered, or -1
        # [S, P + 1] rows of the last actions, oldest first: P before one that was not answered yet.
        self._recent = np.empty((0, 0), np.int64)
        self.set_views()

    def set_views(self) -> None:
        super().set_views()
        views = self.inputs.views
        width = views.lookback + 1 if views is not None and views.lookback else 0
        if self._recent.shape[1] != width:
            self._recent = np.full((len(self._open), width), -1)
        # Columns are looked at before their first step, when only their shapes are known.
        for name, row in self.inputs.rows.items():
            if name not in self.log.columns:
                self.log.write(np.empty(0, np.int64), {name: row[:0]})

    def resize(self, seats: int) -> None:
        super().resize(seats)
        more = seats - len(self._open)
        self._here = np.append(self._here, np.full(more, -1))
        self._open = np.append(self._open, np.full(more, -1))
        self._recent = np.append(self._recent, np.full((more, self._recent.shape[1]), -1), axis=0)

    def seen(self, seats: Array) -> Any:
        rows, views = self._here[seats], self.inputs.views
        if views is None:
            return self.log.columns[col.OBS][rows]
        recent, past = self._recent[seats, 1:], views.lookback
        reachable = np.concatenate([recent, rows[:, None]], axis=1)  # [k, P + 1]
        first = (recent < 0).sum(axis=1)[:, None]  # where the episode begins
        seen = {}
        for view in views.acting_views:
            wanted = past + view.steps[None, :]  # [1, n]
            inside = np.maximum(wanted, first)
            column = self.log.columns[view.source]
            values = column[np.take_along_axis(reachable, inside, axis=1)]  # [k, n, ...]
            if view.fill is not None:
                values[wanted < first] = view.fill
            seen[view.name] = values if view.time_axis else values[:, 0]
        return seen

    def act(self, seats: Array, actions: Array, extras: Mapping[str, Array]) -> None:
        rows = self._here[seats]
        if self.ignored:
            extras = {name: values for name, values in extras.items() if name not in self.ignored}
        self.log.write(rows, {col.ACTIONS: actions, **extras})
        self._open[seats], self._here[seats] = rows, -1
        if self._recent.shape[1]:
            self._recent[seats, :-1] = self._recent[seats, 1:]
            self._recent[seats, -1] = rows

    def hear(self, heard: Heard) -> None:
        seats, columns = heard.seats, self.log.columns
        opened = self._open[seats]
        following = opened.copy()  # who leaves without an observation was led to its last one
        if len(heard.observed):
            rows = self.log.append(heard.observations, self.places[seats[heard.observed]])
            following[heard.observed] = rows
            self._here[seats[: heard.staying]] = rows[: heard.staying]
        known = opened >= 0
        rows = opened[known]
        columns[NEXT][rows] = following[known]
        columns[col.T][rows] = heard.steps[known] - 1
        columns[col.REWARDS][rows] = heard.learned[known]
        columns[col.TERMINATEDS][rows] = heard.flags[known, 0]
        columns[col.TRUNCATEDS][rows] = heard.flags[known, 1]
        if heard.infos is not None:
            for row, i in zip(rows.tolist(), np.flatnonzero(known).tolist(), strict=True):
                columns[col.INFOS][row] = heard.infos[i]
        self._open[seats] = -1

    def leave(self, seat: int) -> None:
        self._here[seat] = self._open[seat] = -1
        self._recent[seat] = -1

    def drop(self, seats: Collection[int], lane: int, episode_id: int) -> None:
        columns, size = self.log.columns, self.log.size
        columns[DELIVERED][:size] |= columns[col.EPS_ID][:size] == episode_id
        for seat in seats:
            self.leave(seat)

    def deliver(self, delivery: Delivery) -> SampleBatch | None:
        log = self.log
        held = np.zeros(log.size, np.bool_)
        if delivery.whole_episodes:
            held = np.isin(log.columns[col.EPS_ID][: log.size], list(delivery.running))
        rows = log.transitions(held)
        batch = None
        if len(rows):
            batch = to_batch(log, rows, delivery, self.inputs.views)
            log.columns[DELIVERED][rows] = True
        self._carry_over()
        return batch

    def _carry_over(self) -> None:
        """Drop what has been delivered, but for the past that views look back at."""
        columns, size = self.log.columns, self.log.size
        held = (columns[NEXT][:size] >= 0) & ~columns[DELIVERED][:size]
        mine = [self._here, self._open, self._recent.ravel()]
        rows = np.concatenate([np.flatnonzero(held), *(part[part >= 0] for part in mine)])
        moved = np.append(self.log.keep(np.unique(rows)), -1)  # what was -1 stays -1
        self._here, self._open = moved[self._here], moved[self._open]
        self._recent = moved[self._recent]

    def get_state(self, seats: Sequence[int]) -> dict[str, Any]:
        rows = list(seats)
        return {
            "log": self.log.get_state(),
            "here": self._here[rows],
            "open": self._open[rows],
            "recent": self._recent[rows],
        }

    def set_state(self, state: Mapping[str, Any], seats: Sequence[int]) -> None:
        rows = list(seats)
        self.log.set_state(state["log"])
        recent = np.asarray(state["recent"])
        if recent.shape[1] != self._recent.shape[1]:  # of the views that were made then
            self._recent = np.full((len(self._open), recent.shape[1]), -1)
        self._here[rows], self._open[rows] = state["here"], state["open"]
        self._recent[rows] = recent


def to_batch(
    log: AgentLog, rows: Array, delivery: Delivery, views: TrajectoryViews | None
) -> SampleBatch:
    """The transitions ``rows`` as a batch, in this order.

    Args:
        views: what the policy sees besides the present observation, if it does.
    """
    columns, leave_out = log.columns, delivery.leave_out
    batch_columns = {
        name: column[rows]
        for name, column in columns.items()
        if name not in BOOK_KEEPING and name != col.OBS
    }
    if delivery.further_columns is not None:
        batch_columns |= delivery.further_columns(batch_columns)
    batch_columns |= {name: columns[name][rows] for name in _OF_EVERY_STEP}
    batch_columns[col.UNROLL_ID] = name_pieces(batch_columns, delivery)
    for name in leave_out & batch_columns.keys():
        del batch_columns[name]
    batch = SampleBatch.from_columns(batch_columns)
    # Views want the past too, where there is one: rows that were delivered before.
    past = np.flatnonzero(columns[DELIVERED][: log.size])
    in_order = rows if not len(past) else log.ordered(np.sort(np.concatenate([past, rows])))
    front = 0 if views is None else views.lookback
    here, following, storage = _stored(log, in_order, front)
    mine = ~columns[DELIVERED][in_order]
    for name, index in ((col.OBS, here), (col.NEXT_OBS, following)):
        if name not in leave_out:
            batch.set_shared(name, storage, index[mine])
    if views is not None:
        new_trajectory = _changes(columns, in_order, col.ENV_ID, col.AGENT_INDEX, col.EPS_ID)
        starts = np.maximum.accumulate(np.where(new_trajectory, here, 0))
        trajectory_ends = np.append(new_trajectory[1:], True)
        training = TrainingRows(
            (here - starts)[:, None],
            trajectory_ends[:, None],
            0,
            lambda column: column[:, 0][mine],
        )
        padded = np.concatenate([np.zeros(front, np.int64), in_order])
        history = {name: column[padded][:, None] for name, column in columns.items()}
        add_views(batch, views, training, history, storage, following[:, None], leave_out)
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
