"""Spaces as plain values for JSON, and back.

| space | plain values |
|---|---|
| Box | ``{"box": shape, "low": ..., "high": ..., "dtype": ...}``; equal bounds are one number |
| Discrete | ``{"discrete": n, "start": ..., "dtype": ...}`` |
| MultiDiscrete | ``{"multi_discrete": numbers, "start": ..., "dtype": ...}`` |
| MultiBinary | ``{"multi_binary": n or shape}`` |
| Dict | ``{"dict": [[key, space], ...]}`` |
| Tuple | ``{"tuple": spaces}`` |

JSON has no infinity: infinite bounds are the words "inf" and "-inf".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import gymnasium as gym

    Space = gym.Space[Any]


def space_to_dict(space: Space) -> dict[str, Any]:
    """The space as plain values; raises TypeError for a space that is not in the table."""
    from gymnasium import spaces

    match space:
        case spaces.Box():
            low, high = _plain(space.low), _plain(space.high)
            return {"box": list(space.shape), "low": low, "high": high, "dtype": str(space.dtype)}
        case spaces.Discrete():
            start, dtype = int(space.start), str(space.dtype)
            return {"discrete": int(space.n), "start": start, "dtype": dtype}
        case spaces.MultiDiscrete():
            numbers, start = space.nvec.tolist(), space.start.tolist()
            return {"multi_discrete": numbers, "start": start, "dtype": str(space.dtype)}
        case spaces.MultiBinary():
            return {"multi_binary": space.n if isinstance(space.n, int) else list(space.shape)}
        case spaces.Dict():
            return {"dict": [[key, space_to_dict(part)] for key, part in space.items()]}
        case spaces.Tuple():
            return {"tuple": [space_to_dict(part) for part in space]}
    raise TypeError(f"a {type(space).__name__} space cannot be written as plain values")


def space_from_dict(values: Mapping[str, Any]) -> Space:
    """The inverse of `space_to_dict`; raises ValueError for other values."""
    from gymnasium import spaces

    def box(shape: list[int], *, low: Any, high: Any, dtype: str) -> Space:
        kind = np.dtype(dtype)
        low, high = (np.broadcast_to(np.array(b, kind), shape) for b in (low, high))
        return spaces.Box(low, high, dtype=kind.type)

    def discrete(n: int, *, start: int, dtype: str) -> Space:
        return spaces.Discrete(n, start=start, dtype=np.dtype(dtype).type)

    def multi_discrete(numbers: Any, *, start: Any, dtype: str) -> Space:
        kind: Any = np.dtype(dtype).type
        return spaces.MultiDiscrete(np.array(numbers), dtype=kind, start=np.array(start))

    kinds: dict[str, Callable[..., Space]] = {
        "box": box,
        "discrete": discrete,
        "multi_discrete": multi_discrete,
        "multi_binary": spaces.MultiBinary,
        "dict": lambda parts: spaces.Dict([(key, space_from_dict(part)) for key, part in parts]),
        "tuple": lambda parts: spaces.Tuple([space_from_dict(part) for part in parts]),
    }
    kind = next(iter(values), None)
    if kind not in kinds:
        raise ValueError(f"a space begins with one of {', '.join(kinds)}, not with {kind!r}")
    first, *_ = values.values()
    return kinds[kind](first, **{name: values[name] for name in list(values)[1:]})


def _plain(bounds: np.ndarray[Any, Any]) -> Any:
    """One number if all are equal, else nested lists; infinities as words."""
    alike = bounds.size > 0 and bool((bounds == bounds.flat[0]).all())
    return _worded(bounds.flat[0].item() if alike else bounds.tolist())


def _worded(value: Any) -> Any:
    if isinstance(value, list):
        return [_worded(part) for part in value]
    return str(value) if value in (np.inf, -np.inf) else value
