"""The values of views, for the present step and for whole fragments.

A fragment lies in memory time-major, after P past rows, which were delivered with earlier ones:

    in history    0 .. P-1     P .. P+T-1    P+T
    in fragment   -P .. -1     0 .. T-1      T
    holds         past rows    T steps       the next observations

`TrajectoryViews.acting` computes the views that the policy acts on at one of these rows;
`TrainingRows` computes the same values for all rows at once. Needs numpy alone; knows nothing of
environments and policies.

    T  steps    B  slots    N  rows of the batch    P  lookback    n  steps of a view in time
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlrun.data import columns as col
from rlrun.data.column_data import Array
from rlrun.data.nested import row_form
from rlrun.data.sample_batch import SampleBatch
from rlrun.data.sequences import sequence_lengths, sequence_offsets
from rlrun.data.view_requirement import ViewRequirement

History = Mapping[str, Array]
"""Columns by name, ``[P + T, B, ...]``; observations ``[P + T + 1, B, ...]``."""


@dataclass(frozen=True)
class View:
    """A view requirement with all defaults filled in."""

    name: str
    source: str
    steps: Array
    """Steps relative to the present one, int ``[n]``."""
    shift: int
    """The first of `steps`; the only one without a time axis."""
    time_axis: bool
    acting: bool
    training: bool
    fill: Any
    """The value for steps before the episode; None repeats the episode's first row."""
    nothing: Any
    """The value for steps after the last known one."""
    per_sequence: int
    """Longest sequence of steps that share one row; 0 if each step has its own row."""

    @property
    def is_plain(self) -> bool:
        """Whether the view is the column of its own name, which every batch has."""
        return self.name == self.source and not self.time_axis and not self.steps.any()

    def rows(self, present: Array) -> Array:
        """The rows ``[..., n]`` (or ``[...]``) that the view reads at rows `present`, ``[...]``."""
        return present[..., None] + self.steps if self.time_axis else present + self.shift


class TrajectoryViews:
    """All views of one policy.

    Args:
        requirements: the policy's view requirements, by name of the view.
        initial_state: the policy's state at the start of an episode, one row for each part; the
            value of views of `state_out_k` for steps before the episode.
        unread: views that the policy could read when it acts, and does not.

    Attributes:
        acting_views: views that the policy acts on.
        lookback: P, the number of steps that views look back.
        acting_lookback: the same of `acting_views` alone.
        sources: the columns that are viewed, besides observations.
        max_seq_len: longest sequence of a recurrent model; None for others.

    Raises:
        ValueError: a view requirement cannot be met; the message names it.
    """

    def __init__(
        self,
        requirements: Mapping[str, ViewRequirement],
        initial_state: Sequence[Array] = (),
        unread: frozenset[str] = frozenset(),
    ) -> None:
        fills = {f"{col.STATE_OUT_PREFIX}{k}": row for k, row in enumerate(initial_state)}
        self.views = [_resolved(name, view, fills) for name, view in requirements.items()]
        self.lookback = _lookback(self.views)
        self.acting_views = [v for v in self.views if v.acting and v.name not in unread]
        self.acting_lookback = _lookback(self.acting_views)
        self.sources = {view.source for view in self.views} - {col.OBS}
        lengths = [view.per_sequence for view in self.views if view.per_sequence]
        self.max_seq_len = max(lengths) if lengths else None

    @property
    def trivial(self) -> bool:
        """Whether the present observation is the only view."""
        return all(view.is_plain and view.source == col.OBS for view in self.views)

    def acting(self, history: History, row: int, first: Array | None = None) -> dict[str, Array]:
        """The views that the policy acts on at `row`, each ``[B, ...]`` or ``[B, n, ...]``.

        Args:
            first: row of the first step of each slot's episode, int ``[B]``, not before the oldest
                past row. None if all episodes began `acting_lookback` rows ago or earlier.
        """
        seen = {}
        for view in self.acting_views:
            column = history[view.source]
            if first is not None:
                seen[view.name] = _gathered(view, column, row, first)
            elif view.time_axis:
                steps = column[row + view.steps].swapaxes(0, 1)
                seen[view.name] = np.ascontiguousarray(steps)
            else:
                seen[view.name] = column[row + view.shift]
        return seen


def _lookback(views: Sequence[View]) -> int:
    return max([0, *(-int(view.steps.min()) for view in views)])


def source_rows(
    source: str, num_rows: int, space: Any, action: Array, states: Sequence[Array]
) -> Array:
    """Rows ``[num_rows, ...]`` of the shape and dtype of a viewed column.

    Args:
        space: the view requirement's `space`, or None.
        action: one action, as collectors store it.
        states: the policy's initial states, the rows of state columns; others are zeros.
    """
    if source in col.STEP_COLUMNS:
        return np.zeros(num_rows, col.STEP_COLUMNS[source])
    if source == col.ACTIONS:
        return np.zeros((num_rows, *action.shape), action.dtype)
    columns = {f"{col.STATE_OUT_PREFIX}{k}": state for k, state in enumerate(states)}
    if source in columns:
        return np.repeat(columns[source][None], num_rows, axis=0)
    if space is None:
        return np.zeros(num_rows, np.float32)
    shape, dtype = row_form(space)
    return np.zeros((num_rows, *shape), dtype)


def _resolved(name: str, requirement: ViewRequirement, fills: Mapping[str, Array]) -> View:
    source = requirement.data_col or name
    is_state = name.startswith(col.STATE_IN_PREFIX)
    if requirement.batch_repeat_value > 1 and not is_state:
        raise ValueError(
            f"view {name!r}: batch_repeat_value is for states ({col.STATE_IN_PREFIX}k), which "
            "have one row for each sequence in a train batch"
        )
    nothing: Any = {} if source == col.INFOS else 0
    return View(
        name=name,
        source=source,
        steps=np.array(requirement.steps),
        shift=requirement.steps[0],
        time_axis=requirement.time_axis,
        acting=requirement.is_acted_on(name),
        training=requirement.used_for_training,
        fill=None if source == col.OBS else fills.get(source, nothing),
        nothing=nothing,
        per_sequence=requirement.batch_repeat_value if is_state else 0,
    )


def _gathered(view: View, column: Array, row: int, first: Array) -> Array:
    """The view ``[B, ...]`` or ``[B, n, ...]`` at one row of a column ``[P + T, B, ...]``."""
    if not view.time_axis:
        wanted = row + view.shift
        if view.shift >= 0:  # no episode begins later than now
            return column[wanted]
        unknown = first > wanted
        if not unknown.any():
            return column[wanted]
        if view.fill is None:
            return column[np.maximum(first, wanted), np.arange(len(first))]
        values = column[wanted].copy()
        values[unknown] = view.fill
        return values
    rows = view.rows(np.full(len(first), row))  # [B, n]
    values = column[np.maximum(rows, first[:, None]), np.arange(len(first))[:, None]]
    if view.fill is not None:
        values[rows < first[:, None]] = view.fill
    return values


class TrainingRows:
    """Computes views for all rows of a fragment at once, in the order of its batch.

    Args:
        steps_in_episode: step of each row in its episode, int ``[T, B]``.
        ends: whether the row is the episode's last in this fragment, bool ``[T, B]``.
        oldest: the oldest past row, in rows of the fragment: -P or later.
        keep: turns ``[T, B, ...]`` into the rows of the batch, ``[N, ...]``.
    """

    def __init__(
        self, steps_in_episode: Array, ends: Array, oldest: int, keep: Callable[[Array], Array]
    ) -> None:
        length, slots = ends.shape
        present = np.broadcast_to(np.arange(length)[:, None], ends.shape)
        last = np.where(ends, present, length)[::-1]
        self._present = keep(present)
        self._first = keep(np.maximum(present - steps_in_episode, oldest))
        self._last = keep(np.minimum.accumulate(last, axis=0)[::-1])
        self._slot = keep(np.broadcast_to(np.arange(slots), ends.shape))

    def observations(
        self, view: View, next_index: Array, lookback: int, *, ahead: int = 0
    ) -> tuple[Array, Array]:
        """A view of observations: rows of their storage, and whether the value is zero instead.

        Both are ``[N]`` or ``[N, n]``.

        Args:
            next_index: row of the storage with the observation after step t of slot b, ``[T, B]``.
            lookback: P.
            ahead: 1 for the view of the step after each row.
        """
        rows = view.rows(self._present + ahead)
        first, last, slot = (_like(rows, a) for a in (self._first, self._last, self._slot))
        inside = np.clip(rows, first, last)
        index = (lookback + inside) * next_index.shape[1] + slot
        index = np.where(rows == last + 1, next_index[last, slot], index)
        return index, rows > last + 1

    def values(
        self,
        view: View,
        column: Array,
        lookback: int,
        *,
        ahead: int = 0,
        selection: Array | slice = slice(None),
    ) -> Array:
        """A view ``[N, ...]`` or ``[N, n, ...]`` of another column, ``[P + T, B, ...]``.

        Args:
            lookback, ahead: see `observations`.
            selection: the rows of the batch to compute; all by default.
        """
        rows = view.rows(self._present[selection] + ahead)
        first, last, slot = (
            _like(rows, a[selection]) for a in (self._first, self._last, self._slot)
        )
        found: Array = column[lookback + np.clip(rows, first, last), slot]
        if view.fill is not None:
            found[rows < first] = view.fill
        found[rows > last] = view.nothing
        return found


def add_views(
    batch: SampleBatch,
    views: TrajectoryViews,
    rows: TrainingRows,
    history: History,
    storage: Array,
    next_index: Array,
    leave_out: frozenset[str] = frozenset(),
) -> None:
    """Add views to the batch of a fragment, and cut it into sequences for recurrent models.

    Views that the policy acts on are added twice: under their name, and under `new_<name>` one step
    later, as `new_obs` is to `obs`, so that the next observations can be given a value. States have
    one row for each sequence, of its first step.

    Args:
        storage, next_index: of the observations; see `TrainingRows.observations`.
        leave_out: names that are not needed.
    """
    lookback = views.lookback
    for view in views.views:
        if view.per_sequence or view.is_plain:
            continue
        for ahead in (0, 1) if view.acting else (0,):
            name = f"{col.NEXT_PREFIX}{view.name}" if ahead else view.name
            if name in leave_out:
                continue
            if view.source != col.OBS:
                batch[name] = rows.values(view, history[view.source], lookback, ahead=ahead)
                continue
            index, beyond = rows.observations(view, next_index, lookback, ahead=ahead)
            if beyond.any():
                values = storage[index]
                values[beyond] = 0
                batch[name] = values
            else:
                batch.set_shared(name, storage, index)
    if views.max_seq_len is not None:
        _cut_into_sequences(batch, views, rows, history)


def _cut_into_sequences(
    batch: SampleBatch, views: TrajectoryViews, rows: TrainingRows, history: History
) -> None:
    assert views.max_seq_len is not None
    seq_lens = sequence_lengths(batch, views.max_seq_len)
    starts = sequence_offsets(seq_lens)[:-1]
    asked_for = {view.name for view in views.views}
    for name in [name for name in batch if name.startswith(col.STATE_OUT_PREFIX)]:
        if name not in asked_for:
            del batch[name]
    for view in views.views:
        if view.per_sequence:
            column = history[view.source]
            batch[view.name] = rows.values(view, column, views.lookback, selection=starts)
    batch[col.SEQ_LENS] = seq_lens
    batch.max_seq_len = views.max_seq_len


def _like(rows: Array, values: Array) -> Array:
    """Values ``[N]`` in the shape of rows, ``[N]`` or ``[N, n]``."""
    return np.broadcast_to(values.reshape(len(values), *[1] * (rows.ndim - 1)), rows.shape)
