"""ColumnarCollector: the arrays that a fragment is written into, and how they become a batch.

While sampling, everything is time-major: row t holds step t of all B lanes. The finished batch is
lane-major: each lane's piece is contiguous. Observations are not moved for that: they stay in one
storage of (T + 1) * B rows plus the final observations of ended episodes, and the batch's ``obs``
and ``new_obs`` are two index arrays into it.

    T  vector steps      B  lanes      N  transitions of the finished batch (T * B without gaps)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlrun.data import columns as col
from rlrun.data.sample_batch import SampleBatch
from rlrun.data.sample_collector import (
    STEP_COLUMNS,
    FurtherColumns,
    SampleCollector,
    step_columns,
)
from rlrun.data.trajectory_views import TrainingRows, TrajectoryViews, add_views
from rlrun.sampling.carried import Carry, from_storable, storable

Array = NDArray[Any]


_ROWS_OF_ANY_LENGTH = 64  # of a fragment whose length nobody knows; it grows
_ROW_COLUMNS = ("rewards", "terminateds", "truncateds", "episode_id", "episode_step")


class FragmentBuffer:
    """Pre-allocated columns of one fragment; the runner's loop writes rows in place.

    Attributes:
        obs: ``[T + 1, B, ...]``; row t is what the policy saw at step t, the last row what it
            would see next.
        columns: further columns by name, each ``[T, B, ...]``.
        history: obs and columns with P rows of earlier fragments in front of them.
        num_past: how many of those P rows are there; the last ones.
        rewards: raw rewards, float64 ``[T, B]``.
        valid: ``[T, B]``, False where a row is no transition; None while all are.
    """

    def __init__(
        self,
        length: int,
        lanes: int,
        obs_shape: tuple[int, ...],
        obs_dtype: Any,
        *,
        past: int = 0,
    ) -> None:
        self.length, self.lanes, self.past = length, lanes, past
        self._num_rows = (past + length + 1) * lanes
        self._num_finals = 0
        spare = lanes + self._num_rows // 16
        self._storage = np.empty((self._num_rows + spare, *obs_shape), dtype=obs_dtype)
        self._shape_rows()
        # Lane-major position of row (t, b) is [b, t]; entries are rows of the storage.
        self._next_index = self._fresh_next_index()
        self.history: dict[str, Array] = {col.OBS: self._observed}
        self.columns: dict[str, Array] = {}
        self.num_past = 0
        self.allocated = False  # whether all columns of the policy are there
        self.rewards = np.empty((length, lanes), dtype=np.float64)
        self.terminateds = np.empty((length, lanes), dtype=np.bool_)
        self.truncateds = np.empty((length, lanes), dtype=np.bool_)
        self.episode_id = np.empty((length, lanes), dtype=np.int64)
        self.episode_step = np.empty((length, lanes), dtype=np.int64)
        self.valid: Array | None = None

    def _shape_rows(self) -> None:
        shape = self._storage.shape[1:]
        self._observed = self._storage[: self._num_rows].reshape(-1, self.lanes, *shape)
        self.obs = self._observed[self.past :]

    def _fresh_next_index(self) -> Array:
        first = (self.past + 1) * self.lanes
        return np.arange(first, self._num_rows, dtype=np.int64).reshape(self.length, self.lanes)

    def add_column(self, name: str, first_row: Array) -> Array:
        """Allocate a column ``[T, B, ...]`` shaped like its first row ``[B, ...]``."""
        whole = np.empty((self.past + self.length, *first_row.shape), dtype=first_row.dtype)
        self.history[name] = whole
        self.columns[name] = whole[self.past :]
        return self.columns[name]

    def allocate(self, rows: Mapping[str, Array]) -> None:
        """Make the columns of these rows ``[B, ...]`` that are not there yet."""
        for name, row in rows.items():
            if name not in self.columns:
                self.add_column(name, np.asarray(row))  # a policy may put out a list
        self.allocated = True

    def recall(self, past: Mapping[str, Array]) -> None:
        """Put what `remember` returned of the fragment before in front of this one."""
        for name, rows in past.items():
            self.num_past = len(rows)
            if len(rows):
                self.history[name][self.past - len(rows) : self.past] = rows

    def remember(self, columns: Iterable[str], end: int) -> dict[str, Array]:
        """The last P rows before row ``end`` of these columns, as many as there are."""
        stop = self.past + end
        start = stop - min(self.past, self.num_past + end)
        return {name: self.history[name][start:stop].copy() for name in columns}

    def grow(self) -> None:
        """Double the number of rows, for fragments of which many do not count."""
        added, lanes = self.length, self.lanes
        rows, finals = np.split(self._storage, [self._num_rows])
        more = np.empty((added * lanes, *rows.shape[1:]), dtype=rows.dtype)
        self._storage = np.concatenate([rows, more, finals])
        first = self._next_index[:added]
        first[first >= self._num_rows] += added * lanes
        self._num_rows += added * lanes
        self.length += added
        self._next_index = np.concatenate([first, self._fresh_next_index()[added:]])
        self._shape_rows()
        for name in _ROW_COLUMNS:
            setattr(self, name, _doubled(getattr(self, name)))
        for name, column in self.columns.items():
            whole = np.concatenate([self.history[name], np.empty_like(column)])
            self.history[name], self.columns[name] = whole, whole[self.past :]
        self.history[col.OBS] = self._observed
        if self.valid is not None:
            self.valid = np.concatenate([self.valid, np.ones_like(self.valid)])

    def add_finals(self, t: int, lanes: Array, final_obs: Array) -> None:
        """Keep the final observations ``[n, ...]`` of lanes whose episode ended with step t."""
        begin = self._num_rows + self._num_finals
        end = begin + len(lanes)
        if end > len(self._storage):
            spare = (len(self._storage) // 2 + len(lanes), *final_obs.shape[1:])
            grown = np.empty(spare, dtype=self._storage.dtype)
            self._storage = np.concatenate([self._storage, grown])
            self._shape_rows()
            self.history[col.OBS] = self._observed
        self._storage[begin:end] = final_obs
        self._next_index[t, lanes] = np.arange(begin, end)
        self._num_finals += len(lanes)

    def next_obs(self, t: int, lanes: Array) -> Array:
        """What the environments of these lanes returned at step t, final observations included."""
        return self._storage[self._next_index[t, lanes]]

    def mark_invalid(self, rows: slice | int, lanes: Any) -> None:
        """Say that these rows are no transitions; they will not enter the batch."""
        if self.valid is None:
            self.valid = np.ones((self.length, self.lanes), dtype=np.bool_)
        self.valid[rows, lanes] = False

    def leave_out(self, rows: slice, mask: Array) -> None:
        """Say of the rows ``[k, B]`` under the mask that they are no transitions of this batch."""
        self.mark_invalid(rows, slice(0, 0))
        assert self.valid is not None
        self.valid[rows] &= ~mask

    def to_batch(
        self,
        num_steps: int,
        unroll_ids: Array,
        views: TrajectoryViews | None,
        leave_out: frozenset[str],
        further_columns: FurtherColumns | None,
    ) -> SampleBatch:
        """The first ``num_steps`` rows as a batch, lane after lane.

        Args:
            unroll_ids: names each lane's piece of the fragment, int ``[B]``.
            views: what the policy sees besides the present observation, if it does.
            leave_out: columns that nobody wants.
            further_columns: makes columns ``[N, ...]`` from those that the policy put out.
        """
        keep = self._lane_major_selection(num_steps)
        shape = num_steps, self.lanes
        first_row = self.past * self.lanes
        index = np.arange(first_row, first_row + num_steps * self.lanes, dtype=np.int64)
        lanes = np.arange(self.lanes, dtype=np.int64)
        columns = {name: keep(column) for name, column in self.columns.items()}
        if further_columns is not None:
            columns.update(further_columns(columns))
        rows = {
            col.REWARDS: self.columns.get(col.REWARDS, self.rewards),
            col.TERMINATEDS: self.terminateds,
            col.TRUNCATEDS: self.truncateds,
            col.EPS_ID: self.episode_id,
            col.T: self.episode_step,
            col.ENV_ID: np.broadcast_to(lanes, shape),
            col.UNROLL_ID: np.broadcast_to(unroll_ids, shape),
            col.AGENT_INDEX: np.broadcast_to(np.int64(0), shape),
        }
        columns.update({name: keep(column) for name, column in rows.items()})
        columns[col.REWARDS] = columns[col.REWARDS].astype(np.float32, copy=False)
        for name in leave_out & columns.keys():
            del columns[name]
        batch = SampleBatch.from_columns(columns)
        storage = self._used_storage(num_steps)
        next_index = self._next_index[:num_steps]
        if num_steps < self.length:
            # Unused rows were cut out between the observations and the finals.
            cut = (self.length - num_steps) * self.lanes
            next_index = np.where(next_index >= self._num_rows, next_index - cut, next_index)
        for name, places in ((col.OBS, index.reshape(shape)), (col.NEXT_OBS, next_index)):
            if name not in leave_out:
                batch.set_shared(name, storage, keep(places))
        if views is not None:
            ends = self._pieces_end(num_steps)
            seen = TrainingRows(self.episode_step[:num_steps], ends, -self.num_past, keep)
            add_views(batch, views, seen, self.history, storage, next_index, leave_out)
        return batch

    def _pieces_end(self, num_steps: int) -> Array:
        """Rows after which the lane's episode does not go on in this fragment, bool ``[t, B]``."""
        ends = np.ones((num_steps, self.lanes), dtype=np.bool_)
        ids = self.episode_id[:num_steps]
        ends[:-1] = ids[1:] != ids[:-1]
        if self.valid is not None:
            ends[:-1] |= ~self.valid[1:num_steps]
        return ends

    def _lane_major_selection(self, num_steps: int) -> Any:
        if self.valid is None:
            count = num_steps * self.lanes

            def keep_all(column: Array) -> Array:
                return column[:num_steps].swapaxes(0, 1).reshape(count, *column.shape[2:])

            return keep_all
        mask = self.valid[:num_steps].T

        def keep_valid(column: Array) -> Array:
            return column[:num_steps].swapaxes(0, 1)[mask]

        return keep_valid

    def _used_storage(self, num_steps: int) -> Array:
        finals = self._storage[self._num_rows : self._num_rows + self._num_finals]
        if num_steps == self.length:
            return self._storage[: self._num_rows + self._num_finals]
        rows = self.past + num_steps + 1
        return np.concatenate([self._storage[: rows * self.lanes], finals])


class ColumnarCollector(SampleCollector):
    """The fast collector: a vector step costs two calls and a few writes of whole rows.

    See `SampleCollector`. A fragment is a `FragmentBuffer`; views find the past a few rows before
    its first one.
    """

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._views: TrajectoryViews | None = None
        self._rows: dict[str, Array] = {}
        self._further: list[str] = []  # viewed columns that are this class's own, but rewards
        self._past: dict[str, Array] = {}
        self._carry: Carry | None = None  # None where fragments come out even by themselves
        if self.whole_episodes or not self.every_step_counts:
            self._carry = Carry(whole_episodes=self.whole_episodes)
        self._buffer: FragmentBuffer | None = None  # of the running fragment
        self._t = 0  # rows so far; between fragments those that the next one begins with
        self._first = np.zeros(self.num_lanes, np.int64)  # row of the running episode's step 0
        self._newest = 0  # the row from which on all views see nothing but known steps
        self._episode_ids = np.zeros(self.num_lanes, np.int64)

    def set_views(self, views: TrajectoryViews | None, rows: Mapping[str, Array]) -> None:
        self._views, self._rows = views, dict(rows)
        self._further = [name for name in rows if name in STEP_COLUMNS and name != col.REWARDS]
        # Columns that nobody has kept so far begin now: the past of a fragment is all or nothing.
        if not self._past.keys() >= {col.OBS, *rows}:
            self._past = {}

    def begin_fragment(self, length: int | None, unroll_ids: Array) -> None:
        rows = _ROWS_OF_ANY_LENGTH if length is None else length
        if not self.every_step_counts:
            # An env that resets itself in a step of its own needs a few vector steps more than T.
            rows += rows // 8 + 1
        carry, past = self._carry, 0 if self._views is None else self._views.lookback
        if carry is not None:
            rows += carry.num_rows
        buffer = FragmentBuffer(rows, self.num_lanes, self.obs_shape, self.obs_dtype, past=past)
        for name, row in self._rows.items():
            buffer.add_column(name, row)
        buffer.recall(self._past)
        self._begin, self.num_collected = (0, 0) if carry is None else carry.begin(buffer)
        self._t = self._begin
        self._newest = max(int(self._first.max()), -buffer.num_past)
        self._wanted = None if length is None else length * self.num_lanes
        self._unroll_ids = unroll_ids
        buffer.obs[self._t] = self.obs
        self._buffer, self.obs = buffer, buffer.obs[self._t]

    def add_init_obs(self, lanes: Array, episode_ids: Array, obs: Array) -> None:
        self.obs[lanes] = obs  # within a fragment, a row of its buffer
        self._first[lanes] = self._newest = self._t
        self._episode_ids[lanes] = episode_ids

    def get_inference_input_dict(self) -> dict[str, Array]:
        buffer, views = self._buffer, self._views
        assert buffer is not None
        assert views is not None
        if self._t == buffer.length:
            self._grow(buffer)
        row = views.lookback + self._t
        if self._newest <= self._t - views.acting_lookback:
            return views.acting(buffer.history, row)
        first = np.maximum(self._first, -buffer.num_past)
        return views.acting(buffer.history, row, views.lookback + first)

    def add_step(  # noqa: PLR0913 - one parameter for each thing a step brings
        self,
        actions: Array,
        extras: Mapping[str, Array],
        rewards: Array,
        terminateds: Array,
        truncateds: Array,
        obs: Array,
        *,
        learned_rewards: Array | None = None,
        valid: Array | None = None,
        infos: Mapping[int, dict[str, Any]] | None = None,
    ) -> None:
        buffer, t = self._buffer, self._t
        assert buffer is not None
        if t == buffer.length:
            self._grow(buffer)
        columns = buffer.columns
        if not buffer.allocated:
            self._stored = [name for name in extras if name not in self.ignored]
            buffer.allocate({col.ACTIONS: actions, **{n: extras[n] for n in self._stored}})
        columns[col.ACTIONS][t] = actions
        for name in self._stored:
            columns[name][t] = extras[name]
        buffer.rewards[t] = rewards
        buffer.terminateds[t] = terminateds
        buffer.truncateds[t] = truncateds
        buffer.obs[t + 1] = obs
        if learned_rewards is not None:
            rewards = learned_rewards
            if col.REWARDS not in columns:
                buffer.add_column(col.REWARDS, rewards.astype(np.float32))
        if col.REWARDS in columns:
            columns[col.REWARDS][t] = rewards
        if self._further:
            self._write_further(buffer, t, rewards, infos)
        self._t = t + 1
        self.obs = buffer.obs[t + 1]
        if not self.whole_episodes:
            self.num_collected += self.num_lanes
        if valid is not None:
            self._leave_out(t, np.flatnonzero(~valid))

    def _grow(self, buffer: FragmentBuffer) -> None:
        buffer.grow()
        self.obs = buffer.obs[self._t]  # the buffer has moved
        self.warn_if_large(self._t)

    def _write_further(
        self,
        buffer: FragmentBuffer,
        t: int,
        rewards: Array,
        infos: Mapping[int, dict[str, Any]] | None,
    ) -> None:
        """Row t of the viewed columns that are this class's own; they take a while to make."""
        flags, steps = (buffer.terminateds[t], buffer.truncateds[t]), t - self._first
        rows = step_columns(rewards, *flags, self._episode_ids, steps, self._unroll_ids, infos)
        for name in self._further:
            buffer.columns[name][t] = rows[name]

    def _leave_out(self, rows: slice | int, lanes: Any) -> None:
        """These rows of the running fragment are no transitions after all."""
        buffer = self._buffer
        assert buffer is not None
        buffer.mark_invalid(slice(0, 0), lanes)
        assert buffer.valid is not None
        if not self.whole_episodes:
            self.num_collected -= int(buffer.valid[rows, lanes].sum())
        buffer.valid[rows, lanes] = False

    def end_episodes(self, lanes: Array) -> None:
        buffer, t = self._buffer, self._t
        assert buffer is not None
        buffer.add_finals(t - 1, lanes, self.obs[lanes])
        self.obs = buffer.obs[t]  # the buffer may have moved
        for lane in lanes.tolist():
            self._number_rows(buffer, lane)
        if self.whole_episodes:
            self.num_collected += int((t - self._first[lanes]).sum())
        self._first[lanes] = self._newest = t

    def drop_episode(self, lane: int) -> None:
        if self._carry is not None:
            self._carry.drop(lane)
        if self._buffer is not None:
            self._leave_out(slice(max(int(self._first[lane]), 0), self._t), lane)
        self._first[lane] = self._newest = self._t

    def _number_rows(self, buffer: FragmentBuffer, lane: int) -> None:
        """Fill in episode id and step for the lane's rows of its running episode."""
        first, end = int(self._first[lane]), self._t
        rows = slice(max(first, 0), end)
        buffer.episode_id[rows, lane] = self._episode_ids[lane]
        buffer.episode_step[rows, lane] = np.arange(rows.start - first, end - first)

    @property
    def rewards(self) -> Array:
        assert self._buffer is not None
        return self._buffer.rewards[self._begin : self._t]

    @property
    def actions(self) -> Array:
        assert self._buffer is not None
        return self._buffer.columns[col.ACTIONS][self._begin : self._t]

    def build(
        self,
        leave_out: frozenset[str] = frozenset(),
        further_columns: FurtherColumns | None = None,
    ) -> SampleBatch:
        buffer, t, kept = self._buffer, self._t, 0
        assert buffer is not None
        for lane in range(self.num_lanes):
            self._number_rows(buffer, lane)
        if self._carry is not None:
            surplus = 0
            if not self.whole_episodes and self._wanted is not None:
                surplus = self.num_collected - self._wanted
            kept = self._carry.end(buffer, t, surplus, self._first)
            self.warn_if_large(kept)
        if self._views is not None and self._views.lookback:
            self._past = buffer.remember([col.OBS, *self._rows], t - kept)
        self.obs = buffer.obs[t].copy()
        self._first -= t - kept
        self._t, self._buffer = kept, None
        return buffer.to_batch(t, self._unroll_ids, self._views, leave_out, further_columns)

    def get_state(self) -> dict[str, Any]:
        return {
            "obs": self.obs.copy(),
            "steps": self._t - self._first,
            "episode_ids": self._episode_ids.copy(),
            "past": storable(self._past) if self._past else {},
            "carried": {} if self._carry is None else self._carry.get_state(),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        self.obs, self._episode_ids = np.array(state["obs"]), np.array(state["episode_ids"])
        self._past = from_storable(state["past"])
        if self._carry is not None:
            self._carry.set_state(state["carried"])
            self._t = self._carry.num_rows
        self._first = self._t - np.array(state["steps"])


def _doubled(column: Array) -> Array:
    return np.concatenate([column, np.empty_like(column)])
