"""What a column can hold, and the few operations that every kind of column supports.

A column is one of
- an array, first dimension = rows (numpy; torch tensors after `SampleBatch.to_device`),
- a nest: a dict (str keys) or tuple of columns, as Dict and Tuple spaces give them,
- a `LazyColumn`: something that turns into one of the above when it is read.

Owns conversion, row selection, concatenation and copying of one column. Knows nothing of batches
and of column names.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from numbers import Number
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Selection = slice | Array
"""Which rows: a slice (views) or an int array [n] (copies)."""


class LazyColumn(ABC):
    """A column that is stored in another form than it is read in."""

    __slots__ = ()

    @abstractmethod
    def __len__(self) -> int:
        """Number of rows."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of what is stored, without what other columns store too."""

    @abstractmethod
    def rows(self) -> Any:
        """The rows as a plain column."""

    @abstractmethod
    def pick(self, selection: Selection) -> Any:
        """The selected rows, as any kind of column."""

    @abstractmethod
    def copied(self) -> LazyColumn:
        """A copy that shares no memory with this column."""


def as_column(value: Any) -> Any:
    """Turns whatever a user puts under a column name into a column.

    Lists become arrays (ragged lists and lists of dicts arrays of objects), a number or a string
    becomes a column of one row, dicts and tuples are nests of columns, tensors are kept.
    Raises TypeError for anything else.
    """
    if isinstance(value, np.ndarray) or is_tensor(value):
        return value if value.ndim else value.reshape(1)
    if isinstance(value, LazyColumn):
        return value
    if isinstance(value, dict):
        return {key: as_column(child) for key, child in value.items()}
    if isinstance(value, tuple):
        return tuple(as_column(child) for child in value)
    if isinstance(value, list):
        return _array_of(value)
    if isinstance(value, Number | np.generic | str | bytes):
        return np.asarray([value])
    raise TypeError(f"a column is an array, list, number, dict or tuple, not {type(value)!r}")


def _array_of(values: list[Any]) -> Array:
    try:
        array = np.asarray(values)
    except ValueError:  # ragged
        array = np.empty(len(values), dtype=object)
        for row, value in enumerate(values):
            array[row] = value
    return array


def is_tensor(value: Any) -> bool:
    """Whether the leaf is a torch tensor, found out without importing torch."""
    return hasattr(value, "device") and hasattr(value, "detach")


def map_leaves(function: Callable[[Any], Any], column: Any) -> Any:
    """Applies `function` to the array(s) of a plain column, keeping the nest."""
    if isinstance(column, dict):
        return {key: map_leaves(function, child) for key, child in column.items()}
    if isinstance(column, tuple):
        return tuple(map_leaves(function, child) for child in column)
    return function(column)


def leaves(column: Any) -> Iterator[Any]:
    """The array(s) of a plain column, in the nest's order."""
    if isinstance(column, dict):
        for child in column.values():
            yield from leaves(child)
    elif isinstance(column, tuple):
        for child in column:
            yield from leaves(child)
    else:
        yield column


def read(column: Any) -> Any:
    """The column in its plain form."""
    if type(column) is np.ndarray:  # first and by type: nearly all are, and an ABC checks slowly
        return column
    return column.rows() if isinstance(column, LazyColumn) else column


def num_rows(column: Any) -> int:
    """Rows of the column; 0 for a nest without arrays."""
    if isinstance(column, dict | tuple):
        return next((len(leaf) for leaf in leaves(column)), 0)
    return len(column)


def pick(column: Any, selection: Any) -> Any:
    """The selected rows: views for a slice, copies for an index array."""
    if type(column) is np.ndarray:
        return column[selection]
    if isinstance(column, LazyColumn):
        return column.pick(selection)
    return map_leaves(lambda leaf: leaf[selection], column)


def concat(columns: Sequence[Any], axis: int = 0) -> Any:
    """Appends columns of one structure; raises ValueError when structures or row shapes differ."""
    plain = [read(column) for column in columns]
    first = plain[0]
    if type(first) is np.ndarray:
        return np.concatenate(plain, axis=axis)
    if isinstance(first, dict):
        if any(not isinstance(other, dict) or other.keys() != first.keys() for other in plain):
            raise ValueError("nested columns have different keys")
        return {key: concat([other[key] for other in plain], axis) for key in first}
    if isinstance(first, tuple):
        if any(not isinstance(other, tuple) or len(other) != len(first) for other in plain):
            raise ValueError("nested columns have different lengths")
        return tuple(concat(children, axis) for children in zip(*plain, strict=True))
    return np.concatenate(plain, axis=axis)


def stack_rows(rows: Sequence[Any]) -> Any:
    """Builds a column from single rows (arrays, numbers, or nests of them)."""
    first = rows[0]
    if isinstance(first, dict):
        return {key: stack_rows([row[key] for row in rows]) for key in first}
    if isinstance(first, tuple):
        return tuple(stack_rows(children) for children in zip(*rows, strict=True))
    return np.stack(rows)


def deep_copy(column: Any) -> Any:
    """A copy that shares no memory; the objects of object arrays are deep-copied too."""
    if isinstance(column, LazyColumn):
        return column.copied()
    return map_leaves(_copy_leaf, column)


def _copy_leaf(leaf: Any) -> Any:
    if is_tensor(leaf):
        return leaf.clone()
    return copy.deepcopy(leaf) if leaf.dtype.hasobject else leaf.copy()


def size_bytes(column: Any) -> int:
    """Bytes of a column's arrays.

    Packed rows (bytes objects) count in full, other objects only with their reference.
    """
    if isinstance(column, LazyColumn):
        return column.nbytes
    total = 0
    for leaf in leaves(column):
        total += int(leaf.nbytes)
        if isinstance(leaf, np.ndarray) and leaf.dtype.hasobject:
            total += sum(len(item) for item in leaf.flat if isinstance(item, bytes))
    return total
