"""Nested state as JSON plus named arrays, exactly and without pickle.

Owns the translation between a state (nested dicts, lists and sets of numbers, strings, None and
numpy arrays) and what a checkpoint stores: one JSON document and one flat dict of arrays.
``decode(*encode(state))`` equals the state bit for bit; only a Python NaN loses its sign. It must
not know what the state means, nor where it is stored.

Plain JSON carries dicts with text keys, lists, text, booleans, None, finite floats (``repr`` is
exact) and integers up to 2**53. Everything else is an object with a single ``$`` key:

=============  ==========================  ===========================================
tag            value                       stands for
=============  ==========================  ===========================================
``$array``     name in the array file      numpy array, dtype and shape kept
``$rows``      [shape, [[field, array]]]   structured array, as nested observations are
``$scalar``    [dtype, bytes as hex]       numpy scalar; little-endian
``$int``       decimal text                integer above 2**53, rounded by other JSON readers
``$float``     "nan", "inf", "-inf"        float without a JSON literal
``$bytes``     base64 text                 bytes
``$tuple``     list                        tuple
``$set``       list, sorted by ``repr``    set
``$dict``      list of [key, value]        dict whose keys are not all plain text
=============  ==========================  ===========================================
"""

import base64
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

_EXACT_INT = 2**53
_ARRAY_KINDS = "biuf"
_LONGEST_FLOAT_BYTES = 8


class StateError(TypeError):
    """A state holds an unsupported value; the message names its address."""


def encode(state: Any, *, copy: bool = True) -> tuple[Any, dict[str, np.ndarray]]:
    """Split ``state`` into a JSON document and the arrays that it refers to by name.

    Args:
        copy: copy all arrays; if not, those that are contiguous are the state's own.
    """
    arrays: dict[str, np.ndarray] = {}
    document = _encode(state, "", arrays)
    return document, {name: _in_order(array, copy=copy) for name, array in arrays.items()}


def _in_order(array: np.ndarray, *, copy: bool) -> np.ndarray:
    # ascontiguousarray would turn a 0-d array into a 1-d one.
    return array.astype(array.dtype.newbyteorder("="), order="C", copy=copy)


def decode(document: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """The inverse of ``encode``; raises KeyError or ValueError for any other document."""
    if isinstance(document, list):
        return [decode(item, arrays) for item in document]
    if not isinstance(document, dict):
        return document
    if len(document) == 1:
        (tag, value), *_ = document.items()
        if tag.startswith("$"):
            return _decode_tagged(tag, value, arrays)
    return {key: decode(value, arrays) for key, value in document.items()}


def array_names(document: Any) -> Iterator[str]:
    """Names of the arrays that a document refers to."""
    if isinstance(document, list):
        for item in document:
            yield from array_names(item)
    elif isinstance(document, dict):
        for key, value in document.items():
            if key == "$array":
                yield value
            else:
                yield from array_names(value)


def _encode(value: Any, address: str, arrays: dict[str, np.ndarray]) -> Any:
    if isinstance(value, np.ndarray):
        return _encode_array(value, address, arrays)
    if isinstance(value, np.generic):
        return _encode_scalar(value, address)
    if isinstance(value, Mapping):
        return _encode_mapping(value, address, arrays)
    if isinstance(value, list | tuple):
        items = [_encode(item, f"{address}/{i}", arrays) for i, item in enumerate(value)]
        return items if isinstance(value, list) else {"$tuple": items}
    if isinstance(value, set):
        items = sorted(value, key=repr)
        return {"$set": [_encode(item, f"{address}/{i}", arrays) for i, item in enumerate(items)]}
    return _encode_leaf(value, address)


def _encode_leaf(value: Any, address: str) -> Any:
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, int):
        return value if abs(value) <= _EXACT_INT else {"$int": str(value)}
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": str(value)}
    if isinstance(value, bytes):
        return {"$bytes": base64.b64encode(value).decode("ascii")}
    raise StateError(
        f"the state at {address or '/'!r} is a {type(value).__module__}.{type(value).__name__}; "
        "a checkpoint stores numbers, text, None, lists, dicts, sets and numpy arrays"
    )


def _encode_mapping(
    value: Mapping[Any, Any], address: str, arrays: dict[str, np.ndarray]
) -> dict[str, Any]:
    if all(isinstance(key, str) and not key.startswith("$") for key in value):
        return {key: _encode(item, f"{address}/{key}", arrays) for key, item in value.items()}
    pairs = [
        [_encode(key, f"{address}/{key!r}", arrays), _encode(item, f"{address}/{key}", arrays)]
        for key, item in value.items()
    ]
    return {"$dict": pairs}


def _encode_array(value: np.ndarray, address: str, arrays: dict[str, np.ndarray]) -> Any:
    if value.dtype.names is not None:
        fields = [
            [name, _encode(value[name], f"{address}/{name}", arrays)] for name in value.dtype.names
        ]
        return {"$rows": [list(value.shape), fields]}
    if value.dtype.kind not in _ARRAY_KINDS or value.dtype.itemsize > _LONGEST_FLOAT_BYTES:
        raise StateError(
            f"the state at {address or '/'!r} is an array of {value.dtype}; "
            "a checkpoint stores booleans, integers and floats of at most 64 bits"
        )
    # The address names the array for a human reader; the number keeps odd keys apart.
    name = f"{len(arrays)}:{address.lstrip('/') or 'state'}"
    arrays[name] = value
    return {"$array": name}


def _encode_scalar(value: np.generic, address: str) -> Any:
    if value.dtype.kind == "U":
        return str(value)
    if value.dtype.kind not in _ARRAY_KINDS or value.dtype.itemsize > _LONGEST_FLOAT_BYTES:
        raise StateError(f"the state at {address or '/'!r} is a numpy scalar of {value.dtype}")
    return {
        "$scalar": [value.dtype.name, value.astype(value.dtype.newbyteorder("<")).tobytes().hex()]
    }


def _decode_tagged(tag: str, value: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    match tag:
        case "$array":
            decoded: Any = arrays[value]
        case "$rows":
            decoded = _decode_rows(value, arrays)
        case "$scalar":
            decoded = _decode_scalar(value)
        case "$int":
            decoded = int(value)
        case "$float":
            decoded = float(value)
        case "$bytes":
            decoded = base64.b64decode(value)
        case "$tuple":
            decoded = tuple(decode(item, arrays) for item in value)
        case "$set":
            decoded = {decode(item, arrays) for item in value}
        case "$dict":
            decoded = {decode(key, arrays): decode(item, arrays) for key, item in value}
        case _:
            raise ValueError(f"unknown tag {tag!r}")
    return decoded


def _decode_rows(value: Any, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    shape, encoded = value
    fields = {name: decode(field, arrays) for name, field in encoded}
    forms = [(name, field.dtype, field.shape[len(shape) :]) for name, field in fields.items()]
    rows = np.zeros(shape, np.dtype(forms, align=True))
    for name, field in fields.items():
        rows[name] = field
    return rows


def _decode_scalar(value: Any) -> np.generic:
    name, data = value
    dtype = np.dtype(str(name))
    if dtype.kind not in _ARRAY_KINDS:
        raise ValueError(f"a checkpoint has no numpy scalars of {name!r}")
    scalar: np.generic = np.frombuffer(bytes.fromhex(data), dtype.newbyteorder("<"))[0]
    return scalar.astype(dtype)
