"""LZ4 compression of columns, row by row.

A packed row is a bytes object: magic, kind (nest of arrays, or any object), raw length, then the
LZ4 frame of the pickled row. Packing works on trusted data in memory; it is not a file format.

Owns the packed form; knows nothing of batches and column names. pyarrow (which Ray brings along)
is imported at the first use.
"""

from __future__ import annotations

import pickle
from operator import itemgetter
from typing import Any

import numpy as np

from rlrun.data.column_data import is_tensor, leaves, map_leaves, num_rows, object_array

_MAGIC = b"rlz4"
_ROWS, _OBJECT = b"r", b"o"
_HEADER_BYTES = len(_MAGIC) + 1 + 8


def pack_column(column: Any) -> Any:
    """An array of packed rows; packed, empty and tensor columns are returned unchanged."""
    if is_packed(column) or not num_rows(column) or any(map(is_tensor, leaves(column))):
        return column
    if isinstance(column, np.ndarray) and column.dtype.hasobject:
        rows, kind = list(column), _OBJECT
    elif any(leaf.dtype.hasobject for leaf in leaves(column)):
        return column  # a row of such a nest would look like an object that is a dict
    else:
        rows, kind = [map_leaves(itemgetter(row), column) for row in range(num_rows(column))], _ROWS
    return object_array([_pack(row, kind) for row in rows])


def unpack_column(column: Any) -> Any:
    """The inverse of `pack_column`; a column that is not packed is returned unchanged."""
    if not is_packed(column):
        return column
    rows = [_unpack(packed) for packed in column]
    if column[0][len(_MAGIC) : len(_MAGIC) + 1] == _ROWS:
        return map_leaves(lambda *leaves: np.stack(leaves), *rows)
    return object_array(rows)


def is_packed(column: Any) -> bool:
    """Whether the rows of a column are packed."""
    if not isinstance(column, np.ndarray) or not column.dtype.hasobject or not len(column):
        return False
    first = column[0]
    return isinstance(first, bytes) and first.startswith(_MAGIC)


def _pack(row: Any, kind: bytes) -> bytes:
    from pyarrow import compress

    raw = pickle.dumps(row, protocol=5)
    body: bytes = compress(raw, "lz4", asbytes=True)
    return _MAGIC + kind + len(raw).to_bytes(8, "little") + body


def _unpack(packed: bytes) -> Any:
    from pyarrow import decompress

    raw_bytes = int.from_bytes(packed[_HEADER_BYTES - 8 : _HEADER_BYTES], "little")
    return pickle.loads(decompress(packed[_HEADER_BYTES:], raw_bytes, "lz4", asbytes=True))
