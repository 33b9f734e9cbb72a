"""LogCollector: the fast collector of slots that come and go, one log of rows for all of them.

Agents come and go, so no array ``[T, B, ...]`` fits their steps. A row is one observation of one
agent, and rows are appended as they arrive. The number of the row with the agent's next observation
is in the column ``next``:

    row 7  sub-env 0, agent 1   acted       next 9
    row 8  sub-env 2, agent 0   acted       next 8    left without a last observation
    row 9  sub-env 0, agent 1   due to act  next -1

A row with a ``next`` is a transition, and a fragment delivers its transitions. Rows without one
stay in the log for the next fragment, and so do the past rows that views look back at.

    M  rows in use    S  slots    k  slots of a call    N  rows of the batch    P  lookback of views
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from copy import deepcopy
from typing import Any

import numpy as np

from rlrun.data import columns as col
from rlrun.data.column_data import Array, columns_from_state, columns_state
from rlrun.data.sample_batch import SampleBatch
from rlrun.data.trajectory_views import TrainingRows, TrajectoryViews, add_views
from rlrun.envs.agent_slots import SlotStep
from rlrun.sampling.sample_collector import (
    NO_EXTRAS,
    FurtherColumns,
    SampleCollector,
    make_batch,
    number_unrolls,
    rows_error,
)

_NEXT, _DELIVERED = "next", "delivered"
_PLACE = (col.ENV_ID, col.AGENT_INDEX, col.EPS_ID)
_FRESH: dict[str, tuple[Any, Any]] = {  # the log's own columns -> dtype, value of a fresh row
    **dict.fromkeys(_PLACE, (np.int64, 0)),
    _NEXT: (np.int64, -1),  # row of the next observation, -1 while it is not known
    _DELIVERED: (np.bool_, False),  # in an earlier batch, and kept for views alone
    col.T: (np.int64, 0),
    col.REWARDS: (np.float32, 0.0),
    col.TERMINATEDS: (np.bool_, False),
    col.TRUNCATEDS: (np.bool_, False),
}
_FIRST_ROWS, _FIRST_SLOTS = 256, 16


class LogCollector(SampleCollector):
    """Collects the steps of slots that come and go; see `SampleCollector` for the methods.

    Attributes:
        columns: by name, ``[M or more, ...]``; the first `size` rows are in use.
    """

    def __init__(self, num_slots: int | None, *arguments: Any, **settings: Any) -> None:
        if num_slots is not None:
            raise ValueError("LogCollector is for slots that come and go")
        super().__init__(num_slots, *arguments, **settings)
        self.size = 0
        self.columns: dict[str, Array] = {
            name: np.full(_FIRST_ROWS, fresh, dtype) for name, (dtype, fresh) in _FRESH.items()
        }
        self.columns[col.OBS] = np.empty((_FIRST_ROWS, *self.obs_shape), self.obs_dtype)
        self._views: TrajectoryViews | None = None
        self._viewed: set[str] = set()  # columns, besides observations
        self._here = np.empty(0, np.int64)  # [S] row of the observation to act on, or -1
        self._open = np.empty(0, np.int64)  # [S] row of an action without an answer yet, or -1
        # [S, P + 1] rows of the last actions, oldest first; -1 before the episode.
        self._recent = np.empty((0, 0), np.int64)

    def set_views(self, views: TrajectoryViews | None, rows: Mapping[str, Array]) -> None:
        super().set_views(views, rows)
        self._views = views
        # New columns have no past rows; an agent's past has all viewed columns, or is empty.
        self._look_back(0 if views is None else views.lookback, keep=rows.keys() <= self._viewed)
        self._viewed = {*rows}
        # Views read columns before their first step, when only their shapes are known.
        for name, row in rows.items():
            if name not in self.columns:
                self._add_column(name, row)

    def _look_back(self, steps: int, *, keep: bool) -> None:
        """Set P to ``steps``, and keep the past steps that are known, or forget them."""
        waits = self._open[:, None] >= 0
        past = np.where(waits, self._recent[:, :-1], self._recent[:, 1:])
        past = past[:, max(past.shape[1] - steps, 0) :] if keep else past[:, :0]
        more = steps - past.shape[1] + 1  # one more, where all actions are answered
        past = np.pad(past, ((0, 0), (more, 0)), constant_values=-1)
        waiting = np.append(past[:, 1:], self._open[:, None], axis=1)
        self._recent = np.where(waits, waiting, past)[:, : (steps + 1 if steps else 0)]
        self._forget_delivered()

    def begin_fragment(self, length: int | None, first_unroll_id: int = 0) -> None:
        self._first_unroll_id = first_unroll_id

    def begin_episodes(
        self, slots: Array, episode_ids: Array, obs: Array, places: Array | None = None
    ) -> None:
        if int(slots.max()) >= len(self.places):
            self._add_slots(int(slots.max()) + 1)
        self.places[slots, 2] = episode_ids
        if places is not None:
            self.places[slots, :2] = places
        self._here[slots] = self._append(obs, slots)

    def _add_slots(self, wanted: int) -> None:
        more = max(wanted, 2 * len(self.places), _FIRST_SLOTS) - len(self.places)
        self.places = np.append(self.places, np.zeros((more, 3), np.int64), axis=0)
        self._here = np.append(self._here, np.full(more, -1))
        self._open = np.append(self._open, np.full(more, -1))
        self._recent = np.append(self._recent, np.full((more, self._recent.shape[1]), -1), axis=0)

    def inputs(self, slots: Array | None = None) -> Any:
        if slots is None:
            slots = np.flatnonzero(self._here >= 0)
        rows, views = self._here[slots], self._views
        if views is None:
            return self.columns[col.OBS][rows]
        recent, lookback = self._recent[slots, 1:], views.lookback
        reachable = np.concatenate([recent, rows[:, None]], axis=1)  # [k, P + 1]
        first = (recent < 0).sum(axis=1)[:, None]  # where the episode begins
        seen = {}
        for view in views.acting_views:
            wanted = lookback + view.steps[None, :]  # [1, n]
            inside = np.maximum(wanted, first)
            column = self.columns[view.source]
            values = column[np.take_along_axis(reachable, inside, axis=1)]  # [k, n, ...]
            if view.fill is not None:
                values[wanted < first] = view.fill
            seen[view.name] = values if view.time_axis else values[:, 0]
        return seen

    def act(self, slots: Array, actions: Array, extras: Mapping[str, Array]) -> None:
        rows, columns = self._here[slots], self.columns
        for name, values in {col.ACTIONS: actions, **extras}.items():
            if name not in columns:
                if np.shape(values)[:1] != (len(slots),):
                    raise rows_error(name, values, len(slots))
                self._add_column(name, values)
            columns[name][rows] = values
        self._open[slots], self._here[slots] = rows, -1
        if self._recent.shape[1]:
            self._recent[slots, :-1] = self._recent[slots, 1:]
            self._recent[slots, -1] = rows

    def add_step(
        self,
        step: SlotStep,
        obs: Array,
        learned_rewards: Array | None = None,
        actions: Array | None = None,
        extras: Mapping[str, Array] = NO_EXTRAS,
    ) -> None:
        slots, observed, columns = step.slots, step.observed, self.columns
        assert slots is not None
        assert step.steps is not None
        following = rows = self._open[slots]
        if observed is None:
            following = self._here[slots] = self._append(obs, slots)
        elif len(obs):
            following, seeing = rows.copy(), slots[observed]
            following[observed] = self._here[seeing] = self._append(obs, seeing)
        columns[_NEXT][rows] = following
        columns[col.T][rows] = step.steps - 1
        columns[col.REWARDS][rows] = step.rewards if learned_rewards is None else learned_rewards
        columns[col.TERMINATEDS][rows] = step.terminateds
        columns[col.TRUNCATEDS][rows] = step.truncateds
        if col.INFOS in columns:
            for i, row in enumerate(rows.tolist()):
                columns[col.INFOS][row] = deepcopy((step.infos or {}).get(i, {}))
        self._open[slots] = -1

    def end_episodes(self, slots: Array) -> None:
        self._here[slots] = self._open[slots] = -1
        self._recent[slots] = -1

    def drop(self, slots: Array, episode_id: int) -> None:
        self.end_episodes(slots)
        # At once: how many rows are stored decides the last digits of what a learner computes.
        self._keep(self.columns[col.EPS_ID][: self.size] != episode_id)

    def _append(self, obs: Array, slots: Array) -> Array:
        """Append rows with observations ``[k, ...]``; returns their numbers, int ``[k]``."""
        first, self.size = self.size, self.size + len(obs)
        if self.size > len(self.columns[_NEXT]):
            self._grow()
        rows = slice(first, self.size)
        self.columns[col.OBS][rows] = obs
        for name, values in zip(_PLACE, self.places[slots].T, strict=True):
            self.columns[name][rows] = values
        return np.arange(first, self.size)

    def _add_column(self, name: str, like: Any) -> None:
        """Allocate a column of the shape and dtype of these rows ``[k, ...]``."""
        rows = np.asarray(like)  # a policy may put out a list
        self.columns[name] = np.zeros((len(self.columns[_NEXT]), *rows.shape[1:]), rows.dtype)

    def _grow(self) -> None:
        running = self.places[(self._here >= 0) | (self._open >= 0), 2]
        held = self.columns[col.T][np.isin(self.columns[col.EPS_ID], running)]
        self.warn_if_large(int(held.max(initial=0)))
        more = max(len(self.columns[_NEXT]), self.size - len(self.columns[_NEXT]))
        for name, column in self.columns.items():
            fresh = _FRESH[name][1] if name in _FRESH else 0
            added = np.full((more, *column.shape[1:]), fresh, column.dtype)
            self.columns[name] = np.concatenate([column, added])

    def build(
        self,
        leave_out: frozenset[str] = frozenset(),
        further_columns: FurtherColumns | None = None,
        running: Collection[int] = (),
    ) -> SampleBatch:
        columns, used = self.columns, slice(0, self.size)
        due = self._complete()
        if self.whole_episodes:
            due &= ~np.isin(columns[col.EPS_ID][used], list(running))
        rows = self._by_agent(np.flatnonzero(due))
        batch = SampleBatch()
        if len(rows):
            batch = self._batch(rows, leave_out, further_columns)
            columns[_DELIVERED][rows] = True
        self._forget_delivered()
        return batch

    def discard(self) -> None:
        self.columns[_DELIVERED][: self.size] |= self._complete()
        self._forget_delivered()

    def _complete(self) -> Array:
        """Which rows are transitions that have not been delivered, bool ``[M]``."""
        used = slice(0, self.size)
        complete: Array = (self.columns[_NEXT][used] >= 0) & ~self.columns[_DELIVERED][used]
        return complete

    def _by_agent(self, rows: Array) -> Array:
        """These rows, which are in the order of their arrival, agent by agent."""
        envs, agents = self.columns[col.ENV_ID][rows], self.columns[col.AGENT_INDEX][rows]
        return rows[np.lexsort((agents, envs))]  # stable: each agent's stay in their order

    def _batch(
        self, rows: Array, leave_out: frozenset[str], further_columns: FurtherColumns | None
    ) -> SampleBatch:
        """The transitions in ``rows``, int ``[N]``, as a batch in this order."""
        columns, views = self.columns, self._views
        own = {name: columns[name][rows] for name in _FRESH if name not in (_NEXT, _DELIVERED)}
        own[col.UNROLL_ID] = number_unrolls(own, self._first_unroll_id)
        others = {col.OBS, *_FRESH}
        policy_columns = {
            name: column[rows] for name, column in columns.items() if name not in others
        }
        # Views also read past rows, which were delivered before.
        past = np.flatnonzero(columns[_DELIVERED][: self.size])
        in_order = rows if not len(past) else self._by_agent(np.sort(np.append(past, rows)))
        lookback = 0 if views is None else views.lookback
        here, following, storage = self._observations(in_order, lookback)
        mine = ~columns[_DELIVERED][in_order]
        observations = storage, here[mine], following[mine]
        batch = make_batch(policy_columns, own, observations, leave_out, further_columns)
        if views is not None:
            places = np.stack([columns[name][in_order] for name in _PLACE])
            begins = np.append(True, (places[:, 1:] != places[:, :-1]).any(axis=0))
            starts = np.maximum.accumulate(np.where(begins, here, 0))
            training = TrainingRows(
                (here - starts)[:, None],
                np.append(begins[1:], True)[:, None],
                0,
                lambda column: column[:, 0][mine],
            )
            padded = np.concatenate([np.zeros(lookback, np.int64), in_order])
            history = {name: column[padded][:, None] for name, column in columns.items()}
            add_views(batch, views, training, history, storage, following[:, None], leave_out)
        return batch

    def _observations(self, rows: Array, lookback: int) -> tuple[Array, Array, Array]:
        """Indices of the rows' observations and of their next ones, and the storage of both.

        Args:
            lookback: how many unused rows the storage begins with, where `TrainingRows` expects
                past rows; here the past rows are among the others.
        """
        following = self.columns[_NEXT][rows]
        position = np.full(self.size, -1)
        position[rows] = lookback + np.arange(len(rows))
        # The next row of a past row may have been dropped, since no view reads it.
        following = np.where(following < 0, rows, following)
        others = np.unique(following[position[following] < 0])
        position[others] = lookback + len(rows) + np.arange(len(others))
        stored = np.concatenate([np.zeros(lookback, np.int64), rows, others])
        return position[rows], position[following], self.columns[col.OBS][stored]

    def _forget_delivered(self) -> None:
        """Drop the rows that have been delivered, but for the past rows that views read."""
        used = [self._here, self._open, self._recent.ravel()]
        rows = [np.flatnonzero(self._complete()), *(part[part >= 0] for part in used)]
        wanted = np.zeros(self.size, np.bool_)
        wanted[np.concatenate(rows)] = True
        following = self.columns[_NEXT][: self.size][wanted]
        wanted[following[following >= 0]] = True
        self._keep(wanted)

    def _keep(self, wanted: Array) -> None:
        """Keep the rows that are wanted, bool ``[M]``, and renumber them."""
        kept = np.flatnonzero(wanted)
        moved = np.full(self.size + 1, -1)  # the new number of each row; -1 stays -1
        moved[kept] = np.arange(len(kept))
        for name, column in self.columns.items():
            column[: len(kept)] = column[kept]
            if name in _FRESH:
                column[len(kept) : self.size] = _FRESH[name][1]
        self.size = len(kept)
        self.columns[_NEXT][: self.size] = moved[self.columns[_NEXT][: self.size]]
        self._here, self._open = moved[self._here], moved[self._open]
        self._recent = moved[self._recent]

    def get_state(self) -> dict[str, Any]:
        rows = {name: column[: self.size].copy() for name, column in self.columns.items()}
        return {
            "log": columns_state(rows),
            "places": self.places.copy(),
            "here": self._here.copy(),
            "open": self._open.copy(),
            "recent": self._recent.copy(),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        log = columns_from_state(state["log"])
        self.size = 0
        for name, (_, fresh) in _FRESH.items():
            self.columns[name][:] = fresh
        self.places, self._here, self._open, self._recent = (
            np.array(state[name]) for name in ("places", "here", "open", "recent")
        )
        self._append(log[col.OBS], np.zeros(len(log[col.OBS]), np.int64))
        for name, rows in log.items():
            if name not in self.columns:
                self._add_column(name, rows)
            self.columns[name][: self.size] = rows
