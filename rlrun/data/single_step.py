"""The model's input for one step, computed from a batch and view requirements.

Time is relative to the batch: row i was step i. The observation of step i is `obs[i]`; the step
after the last row saw `new_obs[-1]`. What lies before the batch is filled: observations with the
first one, everything else with zeros.

Owns the index arithmetic of views of a single step; a view requirement is any object with
`data_col`, `shift` and `used_for_compute_actions`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from rlrun.data import columns as names
from rlrun.data.column_data import Array, map_leaves, pick
from rlrun.data.view_requirement import shift_steps

# For the step after the batch there is no row of these yet: it follows from another column.
_PREVIOUS = {names.PREV_ACTIONS: names.ACTIONS, names.PREV_REWARDS: names.REWARDS}


class View(Protocol):
    """What is read of a view requirement."""

    @property
    def data_col(self) -> str | None:
        """The column the view is taken of; None: the view's own name."""

    @property
    def shift(self) -> int | str | Sequence[int]:
        """Steps relative to the present; "a:b" or "a:b:step" are inclusive."""

    @property
    def used_for_compute_actions(self) -> bool | None:
        """Whether the model sees the view when it acts."""


def single_step_columns(batch: Any, views: Mapping[str, View], index: int | str) -> dict[str, Any]:
    """Columns of one row for the step `index`, or for the step after the batch ("last").

    A list or range of shifts adds a time axis: [1, num_shifts, ...]. Raises KeyError for a column
    that the batch lacks, ValueError for an empty batch and IndexError outside of it.
    """
    count = len(batch)
    if not count:
        raise ValueError("an empty batch has no step to take the input of")
    if isinstance(index, str) and index != "last":
        raise ValueError(f'index must be a row or "last", not {index!r}')
    if not isinstance(index, str) and not -count <= index < count:
        raise IndexError(f"row {index} of a batch of {count} rows")
    step = count if isinstance(index, str) else index % count
    columns = {}
    for name, view in views.items():
        source = view.data_col or name
        if not _acted_on(view, source):
            continue
        if step < count and source != name and name in batch:
            # The batch holds the view itself, computed when more of the past was known.
            columns[name] = pick(batch[name], slice(step, step + 1))
            continue
        steps = step + np.array(shift_steps(view.shift))
        if step == count and _PREVIOUS.get(source) in batch:
            source, steps = _PREVIOUS[source], steps - 1
        one = isinstance(view.shift, int | np.integer)
        columns[name] = _rows_at(batch, source, steps, count, time_axis=not one)
    return columns


def _acted_on(view: View, source: str) -> bool:
    if view.used_for_compute_actions is not None:
        return view.used_for_compute_actions
    return max(shift_steps(view.shift)) <= (0 if source == names.OBS else -1)


def _rows_at(batch: Any, source: str, steps: Array, count: int, *, time_axis: bool) -> Any:
    """The column at `steps`; beyond the last row an observation is known, else that row stands."""
    column = batch[source]
    last = count - 1
    if source == names.OBS and steps.max() >= count:
        column, last = _appended(column, batch[names.NEXT_OBS]), count
    rows = np.clip(steps, 0, last)

    def gather(leaf: Array) -> Array:
        values: Array = leaf[rows]
        if source not in (names.OBS, names.INFOS):
            values[steps < 0] = np.zeros((), dtype=leaf.dtype)
        return values[None] if time_axis else values

    return map_leaves(gather, column)


def _appended(column: Any, following: Any) -> Any:
    """The observations of a trajectory: of every step, then the one it led to."""
    if isinstance(column, dict):
        return {key: _appended(child, following[key]) for key, child in column.items()}
    if isinstance(column, tuple):
        return tuple(_appended(*pair) for pair in zip(column, following, strict=True))
    return np.concatenate([column, following[-1:]])
