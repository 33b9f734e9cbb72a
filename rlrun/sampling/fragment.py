"""The arrays that one fragment is written into, and how they become a `SampleBatch`.

While sampling, everything is time-major: row t holds step t of all B lanes. The finished batch is
lane-major: each lane's piece is contiguous. Observations are not moved for that: they stay in one
storage of (T + 1) * B rows plus the final observations of ended episodes, and the batch's ``obs``
and ``new_obs`` are two index arrays into it.

    T  vector steps      B  lanes      N  transitions of the finished batch (T * B without gaps)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlrun.data import columns as col
from rlrun.data.sample_batch import SampleBatch
from rlrun.data.trajectory_views import TrainingRows, TrajectoryViews, add_views

Array = NDArray[Any]


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
        self._allocated = False
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

    def write(self, t: int, actions: Array, extras: Mapping[str, Array]) -> None:
        """Row t of what the policy put out, each ``[B, ...]``."""
        columns = self.columns
        if not self._allocated:
            for name, first_row in {col.ACTIONS: actions, **extras}.items():
                if name not in columns:
                    self.add_column(name, first_row)
            self._allocated = True
        columns[col.ACTIONS][t] = actions
        for name, value in extras.items():
            columns[name][t] = value

    def recall(self, past: Mapping[str, Array]) -> None:
        """Put what `remember` returned of the fragment before in front of this one."""
        for name, rows in past.items():
            self.history[name][self.past - len(rows) : self.past] = rows
            self.num_past = len(rows)

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
        rewards: Array,
        runner_index: int,
        fragment: int,
        further_columns: Callable[[dict[str, Array]], dict[str, Array]],
        views: TrajectoryViews | None = None,
    ) -> SampleBatch:
        """The first ``num_steps`` rows as a batch, lane after lane.

        Args:
            rewards: what learning is to see, float32 ``[T, B]``.
            further_columns: makes columns ``[N, ...]`` from those that the policy put out.
            views: what the policy sees besides the present observation, if it does.
        """
        keep = self._lane_major_selection(num_steps)
        shape = num_steps, self.lanes
        first_row = self.past * self.lanes
        index = np.arange(first_row, first_row + num_steps * self.lanes, dtype=np.int64)
        index = index.reshape(shape)
        columns = {name: keep(column) for name, column in self.columns.items()}
        columns.update(further_columns(columns))
        columns[col.REWARDS] = keep(rewards)
        columns[col.TERMINATEDS] = keep(self.terminateds)
        columns[col.TRUNCATEDS] = keep(self.truncateds)
        columns[col.EPS_ID] = keep(self.episode_id)
        columns[col.T] = keep(self.episode_step)
        lane_ids = np.broadcast_to(np.arange(self.lanes, dtype=np.int64), index.shape)
        columns[col.ENV_ID] = keep(lane_ids)
        columns[col.UNROLL_ID] = columns[col.ENV_ID] + ((runner_index << 48) | (fragment << 16))
        columns[col.AGENT_INDEX] = np.zeros(len(columns[col.ENV_ID]), dtype=np.int64)
        batch = SampleBatch.from_columns(columns)
        storage = self._used_storage(num_steps)
        next_index = self._next_index[:num_steps]
        if num_steps < self.length:
            # Unused rows were cut out between the observations and the finals.
            cut = (self.length - num_steps) * self.lanes
            next_index = np.where(next_index >= self._num_rows, next_index - cut, next_index)
        batch.set_shared(col.OBS, storage, keep(index))
        batch.set_shared(col.NEXT_OBS, storage, keep(next_index))
        if views is not None:
            self._add_views(batch, views, storage, next_index, keep)
        return batch

    def _add_views(
        self,
        batch: SampleBatch,
        views: TrajectoryViews,
        storage: Array,
        next_index: Array,
        keep: Callable[[Array], Array],
    ) -> None:
        num_steps = len(next_index)
        ends = self.terminateds[:num_steps] | self.truncateds[:num_steps]
        ends[-1] = True
        if self.valid is not None:
            ends[:-1] |= ~self.valid[1:num_steps]
        rows = TrainingRows(self.episode_step[:num_steps], ends, -self.num_past, keep)
        add_views(batch, views, rows, self.history, storage, next_index)

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


def _doubled(column: Array) -> Array:
    return np.concatenate([column, np.empty_like(column)])
