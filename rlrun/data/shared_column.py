"""Columns that are rows of a storage which other columns use too.

`obs` and `new_obs` of a trajectory overlap in all but one row. Both are kept as an index into one
storage [M, ...] that holds each observation once; a column's rows [N, ...] are gathered when
somebody reads them. Selecting, shuffling, appending and sending rows works on the index and never
touches the observations.

Owns `SharedColumn` and what concerns several of them; knows nothing of batches and column names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlrun.data.column_data import Array, LazyColumn, Selection, deep_copy, read


@dataclass(slots=True, eq=False)
class SharedColumn(LazyColumn):
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

    @property
    def nbytes(self) -> int:
        """Bytes of the index; who counts several columns counts each storage once."""
        return int(self.index.nbytes)

    def __reduce__(self) -> tuple[Any, ...]:
        # Without the cached rows; pickle's memo keeps a storage that two columns share one object.
        return SharedColumn, (self.storage, self.index)

    def rows(self) -> Any:
        """The rows [N, ...], read-only: a write would not reach the storage, nor other columns."""
        if self._rows is None:
            rows = read(self.storage)[self.index]
            if isinstance(rows, np.ndarray):
                rows.flags.writeable = False
            self._rows = rows
        return self._rows

    def pick(self, selection: Selection) -> SharedColumn:
        """The selected rows, still shared."""
        rows = None
        if self._rows is not None and isinstance(selection, slice):
            rows = self._rows[selection]
        return SharedColumn(self.storage, self.index[selection], rows)

    def copied(self) -> SharedColumn:
        """A copy with a storage of its own."""
        return SharedColumn(deep_copy(self.storage), deep_copy(self.index))


def concat_shared(
    parts: Mapping[str, Sequence[SharedColumn]],
) -> dict[str, SharedColumn]:
    """Appends shared columns, each distinct storage once.

    `parts` holds, per column name, the pieces in order. All storages of one dtype and row shape go
    into one new storage, whichever columns they served; pieces of one storage go on using it as it
    is. Columns whose storages differ in dtype or row shape cannot share and are left out of the
    answer.
    """
    grouped: dict[Any, dict[str, Sequence[SharedColumn]]] = {}
    for name, pieces in parts.items():
        kinds = {_kind(piece.storage) for piece in pieces}
        if len(kinds) == 1:
            grouped.setdefault(kinds.pop(), {})[name] = pieces
    joined: dict[str, SharedColumn] = {}
    for columns in grouped.values():
        storages: dict[int, Array] = {}
        for pieces in columns.values():
            for piece in pieces:
                storages.setdefault(id(piece.storage), read(piece.storage))
        arrays = list(storages.values())
        storage = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
        starts = np.cumsum([0, *map(len, arrays)])
        offsets = dict(zip(storages, starts.tolist(), strict=False))
        for name, pieces in columns.items():
            index = np.concatenate([piece.index + offsets[id(piece.storage)] for piece in pieces])
            joined[name] = SharedColumn(storage, index)
    return joined


def _kind(storage: Any) -> tuple[Any, ...]:
    array = read(storage)
    return array.dtype, array.shape[1:]


def copy_shared(columns: Mapping[str, SharedColumn]) -> dict[str, SharedColumn]:
    """Copies the columns and each distinct storage once."""
    storages: dict[int, Any] = {}
    copies = {}
    for name, column in columns.items():
        key = id(column.storage)
        if key not in storages:
            storages[key] = deep_copy(column.storage)
        copies[name] = SharedColumn(storages[key], deep_copy(column.index))
    return copies


def compact(columns: Mapping[str, SharedColumn]) -> dict[str, SharedColumn]:
    """The same columns without the storage rows that none of them uses.

    Storages at least half of which is in use stay as they are: a slice must not drag the whole
    fragment through the object store, but a whole fragment must not be copied either.
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
        pieces = np.split(places, np.cumsum(lengths)[:-1])
        for name, index in zip(names, pieces, strict=True):
            result[name] = SharedColumn(smaller, index.reshape(columns[name].index.shape))
    return result
