"""LZ4 compression of columns: every row for itself, or the whole column in one piece.

A packed row is a bytes object: magic, kind (nest of arrays, or any object), raw length, then the
LZ4 frame of the pickled row. Packing works on trusted data in memory; it is no file format.

Owns the packed forms; knows nothing of batches and column names. pyarrow (which Ray brings along)
is imported at the first use.
"""

from __future__ import annotations

import pickle
from operator import itemgetter
from typing import Any

import numpy as np

from rlrun.data.column_data import (
    LazyColumn,
    Selection,
    is_tensor,
    leaves,
    map_leaves,
    num_rows,
    pick,
    stack_rows,
)
from rlrun.data.shared_column import SharedColumn

_MAGIC = b"rlz4"
_ROWS, _OBJECT = b"r", b"o"
_HEADER_BYTES = len(_MAGIC) + 1 + 8


def pack(value: Any, kind: bytes = _OBJECT) -> bytes:
    """Pickles and compresses one value."""
    from pyarrow import compress

    raw = pickle.dumps(value, protocol=5)
    body: bytes = compress(raw, "lz4", asbytes=True)
    return _MAGIC + kind + len(raw).to_bytes(8, "little") + body


def unpack(packed: bytes) -> Any:
    """The value that `pack` was given."""
    from pyarrow import decompress

    raw_bytes = int.from_bytes(packed[_HEADER_BYTES - 8 : _HEADER_BYTES], "little")
    return pickle.loads(decompress(packed[_HEADER_BYTES:], raw_bytes, "lz4", asbytes=True))


class PackedColumn(LazyColumn):
    """A whole column in one compressed piece; reading or selecting from it unpacks it."""

    __slots__ = ("_num_rows", "packed")

    def __init__(self, packed: bytes, num_rows: int):
        self.packed = packed
        self._num_rows = num_rows

    @property
    def nbytes(self) -> int:
        """Bytes of the compressed column."""
        return len(self.packed)

    def __len__(self) -> int:
        return self._num_rows

    def __reduce__(self) -> tuple[Any, ...]:
        return PackedColumn, (self.packed, self._num_rows)

    def rows(self) -> Any:
        """The unpacked column."""
        return unpack(self.packed)

    def pick(self, selection: Selection) -> Any:
        """The selected rows, unpacked."""
        return pick(self.rows(), selection)

    def copied(self) -> PackedColumn:
        """Itself: it cannot be changed."""
        return self


def is_packed(column: Any) -> bool:
    """Whether a column is in one of the two packed forms."""
    if isinstance(column, PackedColumn):
        return True
    if not isinstance(column, np.ndarray) or not column.dtype.hasobject or not len(column):
        return False
    first = column[0]
    return isinstance(first, bytes) and first.startswith(_MAGIC)


class Compressor:
    """Packs or unpacks the columns of one batch; columns that share a storage go on sharing it."""

    def __init__(self) -> None:
        # id of a storage -> (the storage, kept alive so that its id stays its own; its other form)
        self._storages: dict[int, tuple[Any, Any]] = {}

    def packed(self, column: Any, *, bulk: bool) -> Any:
        """The column in packed form; packed, empty and tensor columns come back as they are."""
        if isinstance(column, SharedColumn):
            storage = column.storage
            if id(storage) not in self._storages:
                self._storages[id(storage)] = (storage, self.packed(storage, bulk=bulk))
            return SharedColumn(self._storages[id(storage)][1], column.index)
        if is_packed(column) or not num_rows(column) or any(map(is_tensor, leaves(column))):
            return column
        return PackedColumn(pack(column), num_rows(column)) if bulk else _pack_rows(column)

    def unpacked(self, column: Any) -> Any:
        """The column as it was before `packed`; a column that is not packed as it is."""
        if isinstance(column, SharedColumn):
            storage = column.storage
            if id(storage) not in self._storages:
                self._storages[id(storage)] = (storage, self.unpacked(storage))
            unpacked = self._storages[id(storage)][1]
            return column if unpacked is storage else SharedColumn(unpacked, column.index)
        if isinstance(column, PackedColumn):
            return column.rows()
        return _unpack_rows(column) if is_packed(column) else column


def _pack_rows(column: Any) -> Any:
    if isinstance(column, np.ndarray) and column.dtype.hasobject:
        rows, kind = list(column), _OBJECT
    elif any(leaf.dtype.hasobject for leaf in leaves(column)):
        return column  # a row of such a nest could not be told from an object that is a dict
    else:
        rows, kind = [map_leaves(itemgetter(row), column) for row in range(num_rows(column))], _ROWS
    packed = np.empty(len(rows), dtype=object)
    packed[:] = [pack(row, kind) for row in rows]
    return packed


def _unpack_rows(column: Any) -> Any:
    rows = [unpack(packed) for packed in column]
    if column[0][len(_MAGIC) : len(_MAGIC) + 1] == _ROWS:
        return stack_rows(rows)
    unpacked = np.empty(len(rows), dtype=object)
    for row, value in enumerate(rows):
        unpacked[row] = value
    return unpacked
