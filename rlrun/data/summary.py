"""A batch in words: every column's shape and what its values look like."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from rlrun.data.column_data import LazyColumn, is_tensor, read


def summary(columns: Iterable[tuple[str, Any]]) -> str:
    """One line a column, by name: array shape, dtype, and minimum, maximum and mean or the first.

    `{ 'actions': np.ndarray((200,), dtype=int64, min=0.0, max=1.0, mean=0.495),` ...
    """
    lines = [f"{name!r}: {_describe(column)}" for name, column in sorted(columns)]
    return "{ " + ",\n    ".join(lines) + " }" if lines else "{}"


def _describe(column: Any) -> str:
    if isinstance(column, LazyColumn):
        return _describe(read(column))
    if isinstance(column, dict):
        inner = (f"{key!r}: {_describe(child)}" for key, child in column.items())
        return "{" + ", ".join(inner) + "}"
    if isinstance(column, tuple):
        return "(" + ", ".join(_describe(child) for child in column) + ")"
    if is_tensor(column):
        return f"torch.Tensor({tuple(column.shape)}, dtype={column.dtype}, device={column.device})"
    return f"np.ndarray({column.shape}, dtype={column.dtype}{_values(column)})"


def _values(array: Any) -> str:
    if not array.size:
        return ""
    if array.dtype.kind not in "biuf":
        return f", head={array[0]}"
    numbers = {"min": array.min(), "max": array.max(), "mean": np.mean(array, dtype=np.float64)}
    return "".join(f", {name}={round(float(value), 3)}" for name, value in numbers.items())
