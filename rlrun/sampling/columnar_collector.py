"""ColumnarCollector: the arrays that a fragment is written into, and how they become a batch.

While sampling, everything is time-major: row t holds step t of all B lanes. The finished batch is
lane-major: each lane's piece is contiguous. Observations are not moved for that: they stay in one
storage of (T + 1) * B rows plus the final observations of ended episodes, and the batch's ``obs``
and ``new_obs`` are two index arrays into it.

    T  vector steps      B  lanes      N  transitions of the finished batch (T * B without gaps)
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from rlrun.data import columns as col
from rlrun.data.column_data import Array
from rlrun.data.sample_batch import SampleBatch
from rlrun.data.sample_collector import FurtherColumns, SampleCollector, step_columns
from rlrun.data.trajectory_views import TrajectoryViews
from rlrun.sampling.carried import Carry
from rlrun.sampling.fragment_views import FragmentViews

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
        self.history: dict[str, Array] = {}
        self._move_storage(np.empty((self._num_rows + spare, *obs_shape), dtype=obs_dtype))
        # Lane-major position of row (t, b) is [b, t]; entries are rows of the storage.
        self._next_index = self._fresh_next_index()
        self.columns: dict[str, Array] = {}
        self.num_past = 0
        self.allocated = False  # whether all columns of the policy are there
        self.rewards = np.empty((length, lanes), dtype=np.float64)
        self.terminateds = np.empty((length, lanes), dtype=np.bool_)
        self.truncateds = np.empty((length, lanes), dtype=np.bool_)
        self.episode_id = np.empty((length, lanes), dtype=np.int64)
        self.episode_step = np.empty((length, lanes), dtype=np.int64)
        self.valid: Array | None = None

    def _move_storage(self, storage: Array) -> None:
        rows = storage[: self._num_rows].reshape(-1, self.lanes, *storage.shape[1:])
        self._storage, self.history[col.OBS], self.obs = storage, rows, rows[self.past :]

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

    def grow(self) -> None:
        """Double the number of rows, for fragments of which many do not count."""
        added, end = self.length, self._num_rows
        self.length, self._num_rows = 2 * added, end + added * self.lanes
        self._next_index[self._next_index >= end] += added * self.lanes
        self._next_index = np.concatenate([self._next_index, self._fresh_next_index()[added:]])
        self._move_storage(_with_room(self._storage, added * self.lanes, at=end))
        for name in _ROW_COLUMNS:
            setattr(self, name, _with_room(getattr(self, name), added))
        for name in self.columns:
            self.history[name] = _with_room(self.history[name], added)
            self.columns[name] = self.history[name][self.past :]
        if self.valid is not None:
            self.valid = np.concatenate([self.valid, np.ones_like(self.valid)])

    def add_finals(self, t: int, lanes: Array, final_obs: Array) -> None:
        """Keep the final observations ``[n, ...]`` of lanes whose episode ended with step t."""
        begin = self._num_rows + self._num_finals
        end = begin + len(lanes)
        if end > len(self._storage):
            self._move_storage(_with_room(self._storage, len(self._storage) // 2 + len(lanes)))
        self._storage[begin:end] = final_obs
        self._next_index[t, lanes] = np.arange(begin, end)
        self._num_finals += len(lanes)

    def next_obs(self, t: int, lanes: Array) -> Array:
        """What the environments of these lanes returned at step t, final observations included."""
        return self._storage[self._next_index[t, lanes]]

    def mask(self) -> Array:
        """`valid`, to be written to; made now if all rows have been transitions so far."""
        if self.valid is None:
            self.valid = np.ones((self.length, self.lanes), dtype=np.bool_)
        return self.valid

    def to_batch(
        self,
        num_steps: int,
        unroll_ids: Array,
        viewed: FragmentViews,
        leave_out: frozenset[str],
        further_columns: FurtherColumns | None,
    ) -> SampleBatch:
        """The first ``num_steps`` rows as a batch, lane after lane.

        Args:
            unroll_ids: names each lane's piece of the fragment, int ``[B]``.
            viewed: what the policy sees besides the present observation.
            leave_out: columns that nobody wants.
            further_columns: makes columns ``[N, ...]`` from those that the policy put out.
        """
        keep = partial(self._lane_major, num_steps=num_steps)
        shape = num_steps, self.lanes
        first_row = self.past * self.lanes
        index = np.arange(first_row, first_row + num_steps * self.lanes, dtype=np.int64)
        columns = {name: keep(column) for name, column in self.columns.items()}
        if further_columns is not None:
            columns.update(further_columns(columns))
        rows = {
            col.REWARDS: self.columns.get(col.REWARDS, self.rewards),
            col.TERMINATEDS: self.terminateds,
            col.TRUNCATEDS: self.truncateds,
            col.EPS_ID: self.episode_id,
            col.T: self.episode_step,
        }
        columns.update({name: keep(column) for name, column in rows.items()})
        columns[col.REWARDS] = columns[col.REWARDS].astype(np.float32, copy=False)
        lanes, agents = np.arange(self.lanes, dtype=np.int64), np.zeros(self.lanes, np.int64)
        of_lanes = {col.ENV_ID: lanes, col.UNROLL_ID: unroll_ids, col.AGENT_INDEX: agents}
        lengths = num_steps if self.valid is None else self.valid[:num_steps].sum(axis=0)
        columns.update({name: lane.repeat(lengths) for name, lane in of_lanes.items()})
        for name in leave_out & columns.keys():
            del columns[name]
        batch = SampleBatch.from_columns(columns)
        storage, next_index = self._observations(num_steps)
        for name, places in ((col.OBS, index.reshape(shape)), (col.NEXT_OBS, next_index)):
            if name not in leave_out:
                batch.set_shared(name, storage, keep(places))
        if viewed.views is not None:
            viewed.add_to(batch, self, keep, storage, next_index, leave_out)
        return batch

    def _lane_major(self, column: Array, num_steps: int) -> Array:
        """A column's transitions ``[N, ...]`` of the first steps, lane after lane."""
        by_lane = column[:num_steps].swapaxes(0, 1)
        if self.valid is None:
            return by_lane.reshape(num_steps * self.lanes, *column.shape[2:])
        return by_lane[self.valid[:num_steps].T]

    def _observations(self, num_steps: int) -> tuple[Array, Array]:
        """The storage without unused rows; where in it is what each step led to, ``[t, B]``."""
        end = self._num_rows + self._num_finals
        next_index = self._next_index[:num_steps]
        unused = (self.length - num_steps) * self.lanes
        if not unused:
            return self._storage[:end], next_index
        finals = self._storage[self._num_rows : end]
        storage = np.concatenate([self._storage[: self._num_rows - unused], finals])
        return storage, np.where(next_index >= self._num_rows, next_index - unused, next_index)


class ColumnarCollector(SampleCollector):
    """The fast collector: a vector step costs two calls and a few writes of whole rows.

    See `SampleCollector`. A fragment is a `FragmentBuffer`; views find the past a few rows before
    its first one.
    """

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._viewed = FragmentViews()
        self._carry: Carry | None = None  # None where fragments come out even by themselves
        if self.whole_episodes or not self.every_step_counts:
            self._carry = Carry(whole_episodes=self.whole_episodes)
        self._buffer: FragmentBuffer | None = None  # of the running fragment
        self._t = 0  # rows so far; between fragments those that the next one begins with
        self._first = np.zeros(self.num_lanes, np.int64)  # row of the running episode's step 0
        self._newest = 0  # the row from which on all views see nothing but known steps
        self._episode_ids = np.zeros(self.num_lanes, np.int64)

    def set_views(self, views: TrajectoryViews | None, rows: Mapping[str, Array]) -> None:
        self._viewed.resolve(views, rows)

    def begin_fragment(self, length: int | None, unroll_ids: Array) -> None:
        rows = _ROWS_OF_ANY_LENGTH if length is None else length
        if not self.every_step_counts:
            # An env that resets itself in a step of its own needs a few vector steps more than T.
            rows += rows // 8 + 1
        carry, past = self._carry, self._viewed.lookback
        if carry is not None:
            rows += carry.num_rows
        buffer = FragmentBuffer(rows, self.num_lanes, self.obs_shape, self.obs_dtype, past=past)
        if self._viewed.views is not None:
            self._viewed.begin(buffer)
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
        buffer, views = self._buffer, self._viewed.views
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
        if self._viewed.further:
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
        for name in self._viewed.further:
            buffer.columns[name][t] = rows[name]

    def _leave_out(self, rows: slice | int, lanes: Any) -> None:
        """These rows of the running fragment are no transitions after all."""
        buffer = self._buffer
        assert buffer is not None
        valid = buffer.mask()
        if not self.whole_episodes:
            self.num_collected -= int(valid[rows, lanes].sum())
        valid[rows, lanes] = False

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
        if self._viewed.lookback:
            self._viewed.end(buffer, t - kept)
        self.obs = buffer.obs[t].copy()
        self._first -= t - kept
        self._t, self._buffer = kept, None
        return buffer.to_batch(t, self._unroll_ids, self._viewed, leave_out, further_columns)

    def get_state(self) -> dict[str, Any]:
        return {
            "obs": self.obs.copy(),
            "steps": self._t - self._first,
            "episode_ids": self._episode_ids.copy(),
            "past": self._viewed.get_state() if self._viewed.lookback else {},
            "carried": {} if self._carry is None else self._carry.get_state(),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        self.obs, self._episode_ids = np.array(state["obs"]), np.array(state["episode_ids"])
        self._viewed.set_state(state["past"])
        if self._carry is not None:
            self._carry.set_state(state["carried"])
            self._t = self._carry.num_rows
        self._first = self._t - np.array(state["steps"])


def _with_room(rows: Array, added: int, at: int | None = None) -> Array:
    """A copy with so many more rows behind the others, or before row ``at``."""
    more = np.empty((added, *rows.shape[1:]), rows.dtype)
    return np.concatenate([rows[:at], more, rows[len(rows) if at is None else at :]])
