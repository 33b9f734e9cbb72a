"""ViewRequirement: which part of a trajectory a model sees under which name.

Owns the description of one view, and the input of a single step; `trajectory_views` computes views
of whole fragments. Steps of an episode are numbered from 0: the first observation, action and
reward all belong to step 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from rlrun.data import columns as col
from rlrun.data.column_batch import ColumnBatch
from rlrun.data.column_data import Array, concat, map_leaves, num_rows, pick
from rlrun.data.sequences import sequence_offsets
from rlrun.data.space_codec import space_from_dict, space_to_dict


@dataclass(frozen=True)
class ViewRequirement:
    """One column of a model's input: steps of another column, relative to the present step.

    | column | steps before the episode | steps that are not known yet |
    |---|---|---|
    | observations | the episode's first observation | zeros |
    | all others | zeros | zeros |

    Views look back into earlier fragments, but never into another episode.

    Raises:
        ValueError: the shift is malformed, or the model would have to act on a future step.
    """

    data_col: str | None = None
    """The column that is viewed; None for the column with the view's own name."""
    space: Any = None
    """gymnasium space of one step of the column, for the shape and dtype of the view."""
    shift: int | str | Sequence[int] = 0
    """A step, a list of steps, or a range "first:last" or "first:last:step", last step included.

    With lists and ranges the view has a time axis, ``[N, n, ...]``, in their order."""
    used_for_training: bool = True
    """Whether train batches contain the view; postprocessing sees it in any case."""
    used_for_compute_actions: bool | None = None
    """Whether the model sees the view when it acts; None: if it is known by then, and read.

    True keeps the view, for learning too, even if a dummy pass does not read it."""
    batch_repeat_value: int = 1
    """Steps that share one row in a train batch; for states, the longest sequence."""

    def __post_init__(self) -> None:
        steps, shift = self.steps, self.shift
        if not isinstance(shift, str):  # as a value that can be compared
            is_single = isinstance(shift, int | np.integer)
            object.__setattr__(self, "shift", int(steps[0]) if is_single else steps)
        if self.batch_repeat_value < 1:
            raise ValueError(f"batch_repeat_value is at least 1, not {self.batch_repeat_value}")
        if self.used_for_compute_actions and max(steps) > 0:
            raise ValueError(
                f"shift {self.shift!r} looks into the future, which is not known when the model "
                "acts: set used_for_compute_actions to False"
            )

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain values for JSON; `from_dict` is the inverse.

        Raises TypeError for a space that `rlrun.data.space_codec` does not know.
        """
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        space = None if self.space is None else space_to_dict(self.space)
        shift = list(self.shift) if isinstance(self.shift, tuple) else self.shift
        return {**values, "space": space, "shift": shift}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ViewRequirement:
        """A view requirement from the values of `to_dict`."""
        space = values["space"]
        return cls(**{**values, "space": None if space is None else space_from_dict(space)})

    @property
    def steps(self) -> tuple[int, ...]:
        """The relative steps: -1 -> (-1,), "-3:0" -> (-3, -2, -1, 0)."""
        return tuple(_steps(self.shift))

    @property
    def time_axis(self) -> bool:
        """Whether the view has a time axis: the shift is a list or a range."""
        return not isinstance(self.shift, int)

    def is_plain(self, name: str) -> bool:
        """Whether the view, under this name, is the column itself."""
        return self.data_col in (None, name) and self.shift == 0

    def is_acted_on(self, name: str) -> bool:
        """Whether the model sees the view, under this name, when it acts.

        Raises ValueError if it should but cannot: of the present, only observations are known.
        """
        source = self.data_col or name
        known = max(self.steps) <= (0 if source == col.OBS else -1)
        if self.used_for_compute_actions and not known:
            raise ValueError(
                f"view {name!r}: the {source!r} of the present step are not known yet when the "
                "model acts; the newest it can see have shift -1"
            )
        return known if self.used_for_compute_actions is None else self.used_for_compute_actions


def _steps(shift: int | str | Sequence[int]) -> list[int]:
    if isinstance(shift, str):
        try:
            first, last, step = ([int(part) for part in shift.split(":")] + [1])[:3]
        except ValueError:
            raise ValueError(
                f'a range is "first:last" or "first:last:step", not {shift!r}'
            ) from None
        steps = list(range(first, last + 1, step)) if shift.count(":") <= 2 and step > 0 else []
    else:
        steps = [shift] if isinstance(shift, int | np.integer) else [int(step) for step in shift]
    if not steps:
        raise ValueError(f"shift {shift!r} selects no step")
    return steps


# The step after the batch has no row of these columns; its values are in other columns.
_PREVIOUS = {col.PREV_ACTIONS: col.ACTIONS, col.PREV_REWARDS: col.REWARDS}


def single_step_columns(
    batch: ColumnBatch, views: Mapping[str, ViewRequirement], index: int | str
) -> dict[str, Any]:
    """Columns ``[1, ...]`` for the step `index`, or for the step after the batch ("last").

    If the batch has a column of the view's name, as env runners add it, a row of it is returned.
    Other views are computed: row i is step i, and `new_obs[-1]` is the observation of the step
    after the last row. Steps before the batch repeat the first observation; other columns are zero.

    With a time axis, columns are ``[1, n, ...]``. Raises KeyError if the batch lacks a column,
    ValueError if it is empty or lacks the state of a step inside a sequence, and IndexError if it
    has no row `index`.
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
        used = view.used_for_compute_actions
        if not (view.is_acted_on(name) if used is None else used):
            continue
        if (held := _held(batch, name, step, count)) is not None:
            columns[name] = held
            continue
        if source.startswith(col.STATE_OUT_PREFIX) and name in batch and source not in batch:
            raise ValueError(
                f"the batch holds {name!r} only at the first steps of sequences, and step {index} "
                f"is none; with a view of {source!r} among the policy's requirements it holds all"
            )
        steps = step + np.array(view.steps)
        if step == count and source in _PREVIOUS and _PREVIOUS[source] in batch:
            source, steps = _PREVIOUS[source], steps - 1
        columns[name] = _rows_at(batch, source, steps, count, time_axis=view.time_axis)
    return columns


def _held(batch: ColumnBatch, name: str, step: int, count: int) -> Any:
    """One row of the view that an env runner computed for a step; None if there is none."""
    if step == count:
        name, step = f"{col.NEXT_PREFIX}{name}", step - 1
    if name not in batch:
        return None
    column = batch.column(name)
    if name.startswith(col.STATE_IN_PREFIX) and num_rows(column) < count:  # one for each sequence
        starts = sequence_offsets(batch.column(col.SEQ_LENS))[:-1]
        sequences = np.flatnonzero(starts == step)
        return pick(column, sequences) if len(sequences) else None
    return pick(column, slice(step, step + 1))


def _rows_at(batch: ColumnBatch, source: str, steps: Array, count: int, *, time_axis: bool) -> Any:
    """The column at `steps`, clipped to the batch; of observations, `new_obs[-1]` is known, too."""
    column = batch.column(source)
    last = count - 1
    if source == col.OBS and steps.max() >= count:
        following = pick(batch.column(col.NEXT_OBS), slice(-1, None))
        column, last = concat([column, following]), count
    rows = np.clip(steps, 0, last)

    def gather(leaf: Array) -> Array:
        values: Array = leaf[rows]
        if source not in (col.OBS, col.INFOS):
            values[steps < 0] = np.zeros((), dtype=leaf.dtype)
        return values[None] if time_axis else values

    return map_leaves(gather, column)
