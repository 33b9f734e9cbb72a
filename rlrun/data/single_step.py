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
from rlrun.data.column_data import Array, map_leaves, num_rows

# Asked for the next step, a view on one of these finds its data in another column's last row.
_LAST_ROW_OF = {names.PREV_ACTIONS: names.ACTIONS, names.PREV_REWARDS: names.REWARDS}


class View(Protocol):
    """What is read of a view requirement."""

    @property
    def data_col(self) -> str | None:
        """The column the view is taken of; None: the view's own name."""

    @property
    def shift(self) -> int | str | Sequence[int]:
        """Steps relative to the present; "a:b" or "a:b:step" are inclusive."""

    @property
    def used_for_compute_actions(self) -> bool:
        """Whether the model sees the view when it acts."""


def shift_steps(shift: int | str | Sequence[int]) -> list[int]:
    """The relative steps of a view: -1 -> [-1], [0, -2] -> [0, -2], "-3:0" -> [-3, -2, -1, 0]."""
    if isinstance(shift, str):
        first, last, *step = (int(part) for part in shift.split(":"))
        return list(range(first, last + 1, step[0] if step else 1))
    return [int(shift)] if isinstance(shift, int | np.integer) else [int(step) for step in shift]


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
        if not view.used_for_compute_actions:
            continue
        source = view.data_col or name
        if step < count and source != name and name in batch:
            # The batch holds the view itself, computed when more of the past was known.
            columns[name] = map_leaves(lambda leaf: leaf[step : step + 1], batch[name])
            continue
        if step == count and source not in batch:
            source = _LAST_ROW_OF.get(source, source)
        elif step == count and view.data_col is None:
            source = _LAST_ROW_OF.get(name, source)
        columns[name] = _view_at(batch, source, view.shift, step, count)
    return columns


def _view_at(
    batch: Any, source: str, shift: int | str | Sequence[int], step: int, count: int
) -> Any:
    steps = step + np.array(shift_steps(shift))
    column = batch[source]
    rows = np.clip(steps, 0, num_rows(column) - 1)
    following = batch[names.NEXT_OBS] if source == names.OBS and steps.max() >= count else None

    def gather(leaf: Array) -> Array:
        values: Array = leaf[rows]
        if source not in (names.OBS, names.INFOS):
            values[steps < 0] = np.zeros((), dtype=leaf.dtype)
        return values if isinstance(shift, int | np.integer) else values[None]

    if following is None:
        return map_leaves(gather, column)
    extended = _appended(column, following)
    rows = np.clip(steps, 0, count)
    return map_leaves(gather, extended)


def _appended(column: Any, following: Any) -> Any:
    """The observations of a trajectory: of every step, then the one it led to."""
    if isinstance(column, dict):
        return {key: _appended(child, following[key]) for key, child in column.items()}
    if isinstance(column, tuple):
        return tuple(_appended(*pair) for pair in zip(column, following, strict=True))
    return np.concatenate([column, following[-1:]])
