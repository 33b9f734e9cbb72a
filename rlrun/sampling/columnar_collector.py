"""ColumnarCollector: the arrays that a fragment is written into, and how they become a batch.

While sampling, everything is time-major: row t holds step t of all B slots. In the batch, the rows
of a slot are contiguous. Observations are not moved for that: `obs` and `new_obs` of the batch are
two arrays of indices into their storage. What a row holds, and its number:

                  past       held back     new steps        next    final observations
    in fragment   -P .. -1   0 .. K-1      K .. T-1         T
    in history    0 .. P-1   P .. P+K-1    P+K .. P+T-1     P+T     behind all others

Past rows were delivered with earlier fragments, and are kept for views. Rows are held back from one
fragment for the next if their episodes must be complete, or a fragment of exact length is full.
Row T, and final observations of episodes that ended, are in the storage of observations alone.

    T  vector steps    B  slots    N  transitions of the batch (T * B without gaps)
    P  steps that views look back    K  rows held back
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
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
    Infos,
    SampleCollector,
    make_batch,
    rows_error,
    step_columns,
)

_ROWS_OF_ANY_LENGTH = 64  # of a fragment whose length is not known; it grows
_ROW_COLUMNS = ("rewards", "terminateds", "truncateds", "episode_id", "episode_step")


class ColumnarCollector(SampleCollector):
    """The fast collector of slots that act together; see `SampleCollector`.

    A vector step costs two calls and a few writes of whole rows.
    """

    def __init__(self, num_slots: int | None, *arguments: Any, **settings: Any) -> None:
        if num_slots is None:
            raise ValueError("ColumnarCollector is for slots that act together")
        super().__init__(num_slots, *arguments, **settings)
        self._slots = np.arange(num_slots)
        self._views: TrajectoryViews | None = None
        self._lookback = 0  # P
        # A row [B, ...] in the shape and dtype of each viewed column, besides observations.
        self._templates: dict[str, Array] = {}
        self._viewed_step_columns: list[str] = []  # of `columns.STEP_COLUMNS`, besides rewards
        self._past: dict[str, Array] = {}  # past rows [P or fewer, B, ...] of each viewed column
        self._held: HeldRows | None = None  # for the next fragment
        self._buffer: FragmentBuffer | None = None  # of the running fragment
        self._t = 0  # rows so far; between fragments those that the next one begins with
        self._first_row = np.zeros(num_slots, np.int64)  # of step 0 of the running episodes
        self._latest_first_row = 0  # the last row in which an episode has begun
        # Row, slots, episode ids and rows of step 0, where episodes begin or go on.
        self._begun: list[tuple[int, Array, Array, Any]] = []

    def set_views(self, views: TrajectoryViews | None, rows: Mapping[str, Array]) -> None:
        self._views = views
        self._templates = {name: row.repeat(len(self._slots), axis=0) for name, row in rows.items()}
        self._lookback = 0 if views is None else views.lookback
        self._viewed_step_columns = [
            name for name in rows if name in col.STEP_COLUMNS and name != col.REWARDS
        ]
        seen = {col.OBS, *rows}
        # Columns that were not kept so far begin now: the past of a fragment is all or nothing.
        if self._lookback and self._past.keys() >= seen:
            self._past = {name: self._past[name][-self._lookback :] for name in seen}
        else:
            self._past = {}

    def begin_fragment(self, length: int | None, first_unroll_id: int = 0) -> None:
        rows = _ROWS_OF_ANY_LENGTH if length is None else length
        if not self.every_step_counts:
            # An env that resets itself in a step of its own needs a few vector steps more than T.
            rows += rows // 8 + 1
        held, self._held = self._held, None
        self._num_held = self._t = 0 if held is None else len(held.valid)
        buffer = FragmentBuffer(
            rows + self._t, len(self._slots), self.obs_shape, self.obs_dtype, self._lookback
        )
        for name, row in self._templates.items():
            buffer.add_column(name, row)
        for name, past in self._past.items():
            buffer.num_past = len(past)
            buffer.history[name][buffer.lookback - len(past) : buffer.lookback] = past
        self.num_collected = 0
        if held is not None:
            held.put(buffer)
            self.num_collected = 0 if self.whole_episodes else int(held.valid.sum())
        self._latest_first_row = max(int(self._first_row.max()), -buffer.num_past)
        self._wanted = None if length is None else length * len(self._slots)
        self._unroll_ids = first_unroll_id + self._slots
        self._begun = [(self._t, self._slots, self.places[:, 2].copy(), self._first_row.copy())]
        buffer.obs[self._t] = self.obs
        self._buffer, self.obs = buffer, buffer.obs[self._t]

    def begin_episodes(
        self, slots: Array, episode_ids: Array, obs: Array, places: Array | None = None
    ) -> None:
        self.obs[slots] = obs  # within a fragment, a row of its buffer
        self._first_row[slots] = self._latest_first_row = t = self._t
        self._begun.append((t, slots, episode_ids, t))
        self.places[slots, 2] = episode_ids
        if places is not None:
            self.places[slots, :2] = places

    def inputs(self, slots: Array | None = None) -> Any:
        buffer, views = self._buffer, self._views
        if views is None:
            return self.obs
        assert buffer is not None
        if self._t == buffer.length:
            self._grow(buffer)
        row = views.lookback + self._t
        if self._latest_first_row <= self._t - views.acting_lookback:
            return views.acting(buffer.history, row)
        first = np.maximum(self._first_row, -buffer.num_past)
        return views.acting(buffer.history, row, views.lookback + first)

    def add_step(
        self,
        step: SlotStep,
        obs: Array,
        learned_rewards: Array | None = None,
        actions: Array | None = None,
        extras: Mapping[str, Array] = NO_EXTRAS,
    ) -> None:
        buffer, t = self._buffer, self._t
        assert buffer is not None
        if t == buffer.length:
            self._grow(buffer)
        columns = buffer.columns
        if not buffer.allocated:
            self._stored = list(extras)
            buffer.allocate({col.ACTIONS: actions, **{n: extras[n] for n in self._stored}})
        columns[col.ACTIONS][t] = actions
        for name in self._stored:
            columns[name][t] = extras[name]
        buffer.rewards[t] = rewards = step.rewards
        buffer.terminateds[t] = step.terminateds
        buffer.truncateds[t] = step.truncateds
        buffer.obs[t + 1] = obs
        if learned_rewards is not None:
            rewards = learned_rewards
            if col.REWARDS not in columns:
                buffer.add_column(col.REWARDS, rewards.astype(np.float32))
        if col.REWARDS in columns:
            columns[col.REWARDS][t] = rewards
        if self._viewed_step_columns:
            self._write_viewed_step_columns(buffer, t, rewards, step.infos)
        self._t = t + 1
        self.obs = buffer.obs[t + 1]
        if not self.whole_episodes:
            self.num_collected += len(self.obs)
        if step.valid is not None:
            self._leave_out(t, np.flatnonzero(~step.valid))

    def _grow(self, buffer: FragmentBuffer) -> None:
        buffer.grow()
        self.obs = buffer.obs[self._t]  # the buffer has moved
        self.warn_if_large(self._t - int(self._first_row.min()))

    def _write_viewed_step_columns(
        self, buffer: FragmentBuffer, t: int, rewards: Array, infos: Infos | None
    ) -> None:
        """Write row t of viewed columns that otherwise are made with the batch, all at once."""
        flags, steps = (buffer.terminateds[t], buffer.truncateds[t]), t - self._first_row
        infos = infos if col.INFOS in self._viewed_step_columns else None
        rows = step_columns(self.places, rewards, *flags, steps, self._unroll_ids, infos)
        for name in self._viewed_step_columns:
            buffer.columns[name][t] = rows[name]

    def _leave_out(self, rows: slice | int, slots: Any) -> None:
        """Mark rows of the running fragment as no transitions."""
        buffer = self._buffer
        assert buffer is not None
        valid = buffer.mask()
        if not self.whole_episodes:
            self.num_collected -= int(valid[rows, slots].sum())
        valid[rows, slots] = False

    def end_episodes(self, slots: Array) -> None:
        buffer, t = self._buffer, self._t
        assert buffer is not None
        buffer.add_finals(t - 1, slots, self.obs[slots])
        self.obs = buffer.obs[t]  # the buffer may have moved
        if self.whole_episodes:
            self.num_collected += int((t - self._first_row[slots]).sum())
        self._first_row[slots] = self._latest_first_row = t

    def drop(self, slots: Array, episode_id: int) -> None:
        for slot in slots.tolist():
            if self._held is not None and self.whole_episodes:
                self._held.valid[:, slot] = False
            if self._buffer is not None:
                self._leave_out(slice(max(int(self._first_row[slot]), 0), self._t), slot)
        self._first_row[slots] = self._latest_first_row = self._t

    @property
    def rewards(self) -> Array:
        assert self._buffer is not None
        return self._buffer.rewards[self._num_held : self._t]

    @property
    def actions(self) -> Array:
        assert self._buffer is not None
        return self._buffer.columns[col.ACTIONS][self._num_held : self._t]

    def build(
        self,
        leave_out: frozenset[str] = frozenset(),
        further_columns: FurtherColumns | None = None,
        running: Collection[int] = (),
    ) -> SampleBatch:
        t, buffer = self._t, self._end_fragment()
        return buffer.to_batch(
            t, self.places, self._unroll_ids, self._views, leave_out, further_columns
        )

    def discard(self) -> None:
        self._end_fragment()

    def _end_fragment(self) -> FragmentBuffer:
        """Keep the rows that the next fragment needs; returns this one's buffer."""
        buffer, t = self._buffer, self._t
        assert buffer is not None
        for row, slots, episode_ids, first in self._begun:
            buffer.episode_id[row:t, slots] = episode_ids
            buffer.episode_step[row:t, slots] = np.arange(row, t)[:, None] - first
        num_held = self._hold_back(buffer, t)
        if self._lookback:
            stop = buffer.lookback + t - num_held
            start = stop - min(buffer.lookback, buffer.num_past + t - num_held)
            viewed = (col.OBS, *self._templates)
            self._past = {name: buffer.history[name][start:stop].copy() for name in viewed}
        self.obs = buffer.obs[t].copy()
        self._first_row -= t - num_held
        self._t, self._buffer = num_held, None
        return buffer

    def _hold_back(self, buffer: FragmentBuffer, t: int) -> int:
        """Take rows that this fragment does not deliver out of it; returns their number K.

        They belong to episodes that must be complete, or are the surplus of the last row in a
        fragment of exact length, where slots fill up unevenly.
        """
        if self.whole_episodes:
            first = min(t, int(self._first_row.min()))
            chosen = np.arange(first, t)[:, None] >= self._first_row  # without gaps in an episode
            self._held = HeldRows.take(buffer, first, chosen)
            self.warn_if_large(t - first)
            return t - first
        surplus = 0 if self._wanted is None else self.num_collected - self._wanted
        if surplus <= 0:
            return 0
        assert buffer.valid is not None  # rows without gaps come out even
        chosen = np.zeros((1, len(self._slots)), np.bool_)
        chosen[0, np.flatnonzero(buffer.valid[t - 1])[-surplus:]] = True
        self._held = HeldRows.take(buffer, t - 1, chosen)
        return 1

    def get_state(self) -> dict[str, Any]:
        return {
            "obs": self.obs.copy(),
            "steps": self._t - self._first_row,
            "episode_ids": self.places[:, 2].copy(),
            "past": columns_state(self._past) if self._lookback else {},
            "held": {} if self._held is None else self._held.get_state(),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        self.obs, self.places[:, 2] = np.array(state["obs"]), state["episode_ids"]
        self._past = columns_from_state(state["past"])
        self._held = HeldRows.from_state(state["held"]) if state["held"] else None
        self._t = 0 if self._held is None else len(self._held.valid)
        self._first_row = self._t - np.array(state["steps"])


class FragmentBuffer:
    """Pre-allocated columns of one fragment, written row by row.

    Attributes:
        obs: ``[T + 1, B, ...]``; row t is what the policy saw at step t.
        columns: the policy's and viewed columns by name, each ``[T, B, ...]``.
        history: obs and columns with P rows in front of them, ``[P + T, B, ...]``.
        num_past: how many of these P rows are past ones, the last ones.
        rewards: raw rewards, float64 ``[T, B]``.
        valid: ``[T, B]``, False where a row is no transition; None while all are.
    """

    def __init__(
        self, length: int, slots: int, obs_shape: tuple[int, ...], obs_dtype: Any, lookback: int
    ) -> None:
        self.length, self.slots, self.lookback = length, slots, lookback
        self._num_rows = (lookback + length + 1) * slots  # of the storage, before final ones
        self._num_finals = 0
        spare = slots + self._num_rows // 16
        self.history: dict[str, Array] = {}
        self._move_storage(np.empty((self._num_rows + spare, *obs_shape), dtype=obs_dtype))
        # Row of the storage with the observation after step t of slot b, [t, b].
        self._next_index = self._fresh_next_index()
        self.columns: dict[str, Array] = {}
        self.num_past = 0
        self.allocated = False  # whether all columns of the policy are there
        self.rewards = np.empty((length, slots), dtype=np.float64)
        self.terminateds = np.empty((length, slots), dtype=np.bool_)
        self.truncateds = np.empty((length, slots), dtype=np.bool_)
        self.episode_id = np.empty((length, slots), dtype=np.int64)
        self.episode_step = np.empty((length, slots), dtype=np.int64)
        self.valid: Array | None = None

    def _move_storage(self, storage: Array) -> None:
        rows = storage[: self._num_rows].reshape(-1, self.slots, *storage.shape[1:])
        self._storage, self.history[col.OBS], self.obs = storage, rows, rows[self.lookback :]

    def _fresh_next_index(self) -> Array:
        first = (self.lookback + 1) * self.slots
        return np.arange(first, self._num_rows, dtype=np.int64).reshape(self.length, self.slots)

    def add_column(self, name: str, row: Array) -> Array:
        """Allocate a column ``[T, B, ...]`` of the shape and dtype of a row ``[B, ...]``."""
        if row.shape[:1] != (self.slots,):
            raise rows_error(name, row, self.slots)
        whole = np.empty((self.lookback + self.length, *row.shape), dtype=row.dtype)
        self.history[name], self.columns[name] = whole, whole[self.lookback :]
        return self.columns[name]

    def allocate(self, rows: Mapping[str, Any]) -> None:
        """Allocate the columns of these rows ``[B, ...]`` that are not there yet."""
        for name, row in rows.items():
            if name not in self.columns:
                self.add_column(name, np.asarray(row))  # a policy may put out a list
        self.allocated = True

    def grow(self) -> None:
        """Double the number of rows, for fragments with many steps that do not count."""
        added, end = self.length, self._num_rows
        self.length, self._num_rows = 2 * added, end + added * self.slots
        self._next_index[self._next_index >= end] += added * self.slots
        self._next_index = np.concatenate([self._next_index, self._fresh_next_index()[added:]])
        self._move_storage(_with_room(self._storage, added * self.slots, at=end))
        for name in _ROW_COLUMNS:
            setattr(self, name, _with_room(getattr(self, name), added))
        for name in self.columns:
            self.history[name] = _with_room(self.history[name], added)
            self.columns[name] = self.history[name][self.lookback :]
        if self.valid is not None:
            self.valid = np.concatenate([self.valid, np.ones_like(self.valid)])

    def add_finals(self, t: int | Array, slots: Array, final_obs: Array) -> None:
        """Keep the final observations ``[n, ...]`` of slots whose episode ended with step t."""
        begin = self._num_rows + self._num_finals
        end = begin + len(slots)
        if end > len(self._storage):
            self._move_storage(_with_room(self._storage, len(self._storage) // 2 + len(slots)))
        self._storage[begin:end] = final_obs
        self._next_index[t, slots] = np.arange(begin, end)
        self._num_finals += len(slots)

    def next_obs(self, t: Array, slots: Array) -> Array:
        """Observations after steps t of these slots, final ones included."""
        return self._storage[self._next_index[t, slots]]

    def mask(self) -> Array:
        """`valid`, to be written to; made now if all rows have been transitions so far."""
        if self.valid is None:
            self.valid = np.ones((self.length, self.slots), dtype=np.bool_)
        return self.valid

    def to_batch(
        self,
        num_steps: int,
        places: Array,
        unroll_ids: Array,
        views: TrajectoryViews | None,
        leave_out: frozenset[str],
        further_columns: FurtherColumns | None,
    ) -> SampleBatch:
        """The first ``num_steps`` rows as a batch, slot after slot.

        Args:
            places: sub-environment and agent index of each slot, int ``[B, 2 or more]``.
            unroll_ids: of each slot's rows, int ``[B]``.
            views: what the policy sees; None: the present observation alone.
            leave_out, further_columns: see `SampleCollector.build`.
        """
        keep = partial(self._by_slot, num_steps=num_steps)
        rewards = self.columns.get(col.REWARDS, self.rewards)
        lengths = num_steps if self.valid is None else self.valid[:num_steps].sum(axis=0)
        own = {
            col.REWARDS: keep(rewards).astype(np.float32, copy=False),
            col.TERMINATEDS: keep(self.terminateds),
            col.TRUNCATEDS: keep(self.truncateds),
            col.EPS_ID: keep(self.episode_id),
            col.T: keep(self.episode_step),
            col.ENV_ID: places[:, 0].repeat(lengths),
            col.AGENT_INDEX: places[:, 1].repeat(lengths),
            col.UNROLL_ID: unroll_ids.repeat(lengths),
        }
        storage, next_index = self._observations(num_steps)
        first_row = self.lookback * self.slots
        index = np.arange(first_row, first_row + num_steps * self.slots, dtype=np.int64)
        batch = make_batch(
            {name: keep(column) for name, column in self.columns.items()},
            own,
            (storage, keep(index.reshape(num_steps, self.slots)), keep(next_index)),
            leave_out,
            further_columns,
        )
        if views is not None:
            seen = self._training_rows(num_steps)
            add_views(batch, views, seen, self.history, storage, next_index, leave_out)
        return batch

    def _training_rows(self, num_steps: int) -> TrainingRows:
        ids = self.episode_id[:num_steps]
        # Rows after which the slot's episode does not go on in this fragment.
        ends = np.ones(ids.shape, np.bool_)
        ends[:-1] = ids[1:] != ids[:-1]
        if self.valid is not None:
            ends[:-1] |= ~self.valid[1:num_steps]
        keep = partial(self._by_slot, num_steps=num_steps)
        return TrainingRows(self.episode_step[:num_steps], ends, -self.num_past, keep)

    def _by_slot(self, column: Array, num_steps: int) -> Array:
        """A column's transitions ``[N, ...]`` of the first steps, slot after slot."""
        by_slot = column[:num_steps].swapaxes(0, 1)
        if self.valid is None:
            return by_slot.reshape(num_steps * self.slots, *column.shape[2:])
        return by_slot[self.valid[:num_steps].T]

    def _observations(self, num_steps: int) -> tuple[Array, Array]:
        """The storage without unused rows; rows in it of the next observations, ``[t, B]``."""
        end = self._num_rows + self._num_finals
        next_index = self._next_index[:num_steps]
        unused = (self.length - num_steps) * self.slots
        if not unused:
            return self._storage[:end], next_index
        finals = self._storage[self._num_rows : end]
        storage = np.concatenate([self._storage[: self._num_rows - unused], finals])
        return storage, np.where(next_index >= self._num_rows, next_index - unused, next_index)


@dataclass(frozen=True)
class HeldRows:
    """The last K rows of a fragment, from which the next one delivers transitions.

    All arrays are ``[K, B, ...]``, but for `finals`.
    """

    valid: Array
    """True where a transition is held back; other rows are there to fill the array."""
    obs: Array
    finals: Array
    """Final observations of the episodes that end in these rows, ``[n, ...]``."""
    rows: dict[str, Array]
    """Rewards, flags, episode ids and steps."""
    columns: dict[str, Array]

    @classmethod
    def take(cls, buffer: FragmentBuffer, first: int, valid: Array) -> HeldRows:
        """Move transitions out of the buffer's rows from row ``first`` on."""
        span = slice(first, first + len(valid))
        buffer.mask()[span] &= ~valid
        rows = {name: getattr(buffer, name)[span] * valid for name in _ROW_COLUMNS}
        t, slots = np.nonzero(rows["terminateds"] | rows["truncateds"])
        return cls(
            valid=valid,
            obs=buffer.obs[span].copy(),
            finals=buffer.next_obs(first + t, slots),
            rows=rows,
            columns={name: column[span].copy() for name, column in buffer.columns.items()},
        )

    def put(self, buffer: FragmentBuffer) -> None:
        """Make these the buffer's first rows."""
        span = slice(0, len(self.valid))
        buffer.mask()[span] = self.valid
        buffer.obs[span] = self.obs
        for name, rows in self.rows.items():
            getattr(buffer, name)[span] = rows
        for name, column in self.columns.items() if len(self.valid) else ():
            if name not in buffer.columns:
                buffer.add_column(name, column[0])
            buffer.columns[name][span] = column
        t, slots = np.nonzero(self.rows["terminateds"] | self.rows["truncateds"])
        if len(t):
            buffer.add_finals(t, slots, self.finals)

    def get_state(self) -> dict[str, Any]:
        """The fields, as a checkpoint takes them."""
        return {**vars(self), "columns": columns_state(self.columns)}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> HeldRows:
        """Rows from a state of `get_state`."""
        columns = columns_from_state(state["columns"])
        return cls(**{**state, "valid": np.array(state["valid"]), "columns": columns})


def _with_room(rows: Array, added: int, at: int | None = None) -> Array:
    """A copy with ``added`` more rows at the end, or before row ``at``."""
    more = np.empty((added, *rows.shape[1:]), rows.dtype)
    return np.concatenate([rows[:at], more, rows[len(rows) if at is None else at :]])
