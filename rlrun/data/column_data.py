"""What a column can hold, and the few operations that every kind of column supports.

A column is one of
- an array, first dimension = rows (numpy; torch tensors after `SampleBatch.to_device`),
- a nest: a dict (str keys) or tuple of columns, as Dict and Tuple spaces give them,
- a `SharedColumn`: rows of a storage that other columns use too.

`obs` and `new_obs` of a trajectory overlap in all but one row. Both are kept as an index into one
storage [M, ...] that holds each observation once; a column's rows [N, ...] are gathered when they
are read. Selecting, shuffling, appending and sending rows works on the index and never touches the
observations.

Owns conversion, row selection, concatenation and copying of columns. Knows nothing of batches or
column names.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Number
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(slots=True, eq=False)
class SharedColumn:
    """Rows `index` of `storage` [M, ...]; the gathered rows are cached and read-only.

    An index int [N] makes a column [N, ...], one of int [N, n] a column [N, n, ...].

    The storage must not be written to while a batch refers to it. Identity counts: columns share
    when they refer to the same storage *object*.
    """

    storage: Any
    index: Any
    _rows: Any = None

    def __len__(self) -> int:
        return len(self.index)

    def __reduce__(self) -> tuple[Any, ...]:
        # Without the cached rows; pickle's memo keeps a storage that two columns share one object.
        return SharedColumn, (self.storage, self.index)

    def rows(self) -> Any:
        """The rows [N, ...], read-only: a write would not reach the storage, nor other columns."""
        if self._rows is None:
            storage, index = self.storage, self.index
            rows = pick(storage, index) if isinstance(storage, dict | tuple) else storage[index]
            if isinstance(rows, np.ndarray):
                rows.flags.writeable = False
            self._rows = rows
        return self._rows

    def pick(self, selection: slice | Array) -> SharedColumn:
        """The selected rows, still shared."""
        rows = None
        if self._rows is not None and isinstance(selection, slice):
            rows = self._rows[selection]
        return SharedColumn(self.storage, self.index[selection], rows)


def as_column(value: Any) -> Any:
    """Convert a value to a column.

    Lists become arrays (ragged lists and lists of dicts arrays of objects), numbers and strings
    columns of one row, dicts and tuples nests of columns; tensors are kept. Raises TypeError for
    anything else.
    """
    if isinstance(value, np.ndarray) or is_tensor(value):
        return value if value.ndim else value.reshape(1)
    if isinstance(value, SharedColumn):
        return value
    if isinstance(value, dict | tuple):
        return map_leaves(as_column, value)
    if isinstance(value, list):
        try:
            return np.asarray(value)
        except ValueError:  # ragged
            return object_array(value)
    if isinstance(value, Number | np.generic | str | bytes):
        return np.asarray([value])
    raise TypeError(f"a column must be an array, list, number, dict or tuple, not {type(value)!r}")


def object_array(values: Sequence[Any]) -> Array:
    """An array [N] of these objects; numpy itself would convert lists among them to rows."""
    array = np.empty(len(values), dtype=object)
    for row, value in enumerate(values):
        array[row] = value
    return array


def columns_state(columns: Mapping[str, Array]) -> dict[str, Any]:
    """Columns as a checkpoint takes them: objects as shape and list, others as they are."""
    return {
        name: {"shape": list(rows.shape), "objects": rows.ravel().tolist()}
        if rows.dtype == np.object_
        else rows
        for name, rows in columns.items()
    }


def columns_from_state(state: Mapping[str, Any]) -> dict[str, Array]:
    """The columns of such a state."""
    return {
        name: object_array(rows["objects"]).reshape(rows["shape"])
        if isinstance(rows, dict)
        else np.asarray(rows)
        for name, rows in state.items()
    }


def is_tensor(value: Any) -> bool:
    """Whether a leaf is a torch tensor, without importing torch."""
    return hasattr(value, "device") and hasattr(value, "detach")


def map_leaves(function: Callable[..., Any], column: Any, *others: Any) -> Any:
    """Apply `function` to corresponding arrays of plain columns of one structure, which is kept.

    Raises ValueError if their structures differ.
    """
    if isinstance(column, dict):
        if any(not isinstance(other, dict) or other.keys() != column.keys() for other in others):
            raise ValueError("nested columns have different keys")
        return {
            key: map_leaves(function, child, *(other[key] for other in others))
            for key, child in column.items()
        }
    if isinstance(column, tuple):
        if any(not isinstance(other, tuple) or len(other) != len(column) for other in others):
            raise ValueError("nested columns have different lengths")
        children = zip(column, *others, strict=True)
        return tuple(map_leaves(function, *child) for child in children)
    return function(column, *others)


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
    if type(column) is np.ndarray:  # nearly all are, and `isinstance` with an ABC is slow
        return column
    return column.rows() if isinstance(column, SharedColumn) else column


def num_rows(column: Any) -> int:
    """Rows of the column; 0 for a nest without arrays."""
    return next((len(leaf) for leaf in leaves(column)), 0)


def pick(column: Any, selection: Any) -> Any:
    """The selected rows: views for a slice, copies for an index array."""
    if type(column) is np.ndarray:
        return column[selection]
    if isinstance(column, SharedColumn):
        return column.pick(selection)
    return map_leaves(lambda leaf: leaf[selection], column)


def concat(columns: Sequence[Any], axis: int = 0) -> Any:
    """Append columns of one structure; raises ValueError if structures or row shapes differ."""
    plain = [read(column) for column in columns]
    return map_leaves(lambda *leaves: np.concatenate(leaves, axis=axis), *plain)


def deep_copy(column: Any) -> Any:
    """A copy of a plain column that shares neither memory nor objects."""
    return map_leaves(_copy_leaf, column)


def _copy_leaf(leaf: Any) -> Any:
    if is_tensor(leaf):
        return leaf.clone()
    return copy.deepcopy(leaf) if leaf.dtype.hasobject else leaf.copy()


def size_bytes(column: Any) -> int:
    """Bytes of a column's arrays; only the index of a shared column counts.

    Packed rows (bytes objects) count in full, other objects only with their reference.
    """
    if isinstance(column, SharedColumn):
        return int(column.index.nbytes)
    total = 0
    for leaf in leaves(column):
        total += int(leaf.nbytes)
        if isinstance(leaf, np.ndarray) and leaf.dtype.hasobject:
            total += sum(len(item) for item in leaf.flat if isinstance(item, bytes))
    return total


# Columns that share storages


def concat_shared(parts: Mapping[str, Sequence[SharedColumn]]) -> dict[str, SharedColumn]:
    """Append the parts of shared columns, each distinct storage once.

    All storages of one dtype and row shape, of any column, are joined into a new one; a single
    storage is kept. Columns whose storages differ in dtype or row shape cannot share one, and are
    left out of the result.
    """
    grouped: dict[Any, dict[str, Sequence[SharedColumn]]] = {}
    for name, columns in parts.items():
        kinds = {(column.storage.dtype, column.storage.shape[1:]) for column in columns}
        if len(kinds) == 1:
            grouped.setdefault(kinds.pop(), {})[name] = columns
    joined: dict[str, SharedColumn] = {}
    for group in grouped.values():
        storages: dict[int, Array] = {}
        for columns in group.values():
            for column in columns:
                storages.setdefault(id(column.storage), column.storage)
        arrays = list(storages.values())
        storage = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
        starts = np.cumsum([0, *map(len, arrays)])
        offsets = dict(zip(storages, starts.tolist(), strict=False))
        for name, columns in group.items():
            index = np.concatenate(
                [column.index + offsets[id(column.storage)] for column in columns]
            )
            joined[name] = SharedColumn(storage, index)
    return joined


def convert_columns(
    columns: Mapping[str, Any],
    convert: Callable[[Any], Any],
    convert_index: Callable[[Any], Any] = lambda index: index,
) -> dict[str, Any]:
    """Convert columns; a storage that several share is converted once, and still shared."""
    storages: dict[int, Any] = {}
    converted: dict[str, Any] = {}
    for name, column in columns.items():
        if not isinstance(column, SharedColumn):
            converted[name] = convert(column)
            continue
        key = id(column.storage)
        if key not in storages:
            storages[key] = convert(column.storage)
        converted[name] = SharedColumn(storages[key], convert_index(column.index))
    return converted


def compact(columns: Mapping[str, SharedColumn]) -> dict[str, SharedColumn]:
    """The same columns without the storage rows that none of them uses.

    Storages of which at least half is used are kept: a slice must not take the whole fragment
    through the object store, but a whole fragment must not be copied either.
    """
    users: dict[int, list[str]] = {}
    for name, column in columns.items():
        users.setdefault(id(column.storage), []).append(name)
    result = dict(columns)
    for names in users.values():
        storage = columns[names[0]].storage
        lengths = [columns[name].index.size for name in names]
        if not isinstance(storage, np.ndarray) or 2 * sum(lengths) >= len(storage):
            continue
        used, places = np.unique(
            np.concatenate([columns[name].index.ravel() for name in names]), return_inverse=True
        )
        smaller = storage[used]
        parts = np.split(places, np.cumsum(lengths)[:-1])
        for name, index in zip(names, parts, strict=True):
            result[name] = SharedColumn(smaller, index.reshape(columns[name].index.shape))
    return result
