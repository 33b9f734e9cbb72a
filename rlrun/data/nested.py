"""Nested observations as rows of one array.

Inside rlrun an observation of a Dict or Tuple space is one item of a numpy structured array, with a
field for each part: collectors, batches, replay and checkpoints treat it as any other array, and
``batch["obs"]["position"]`` is a view of one leaf in its own dtype. A structured array becomes the
dict or tuple of its space only when it is converted to torch tensors (`nest`).

| space | form of one observation |
|---|---|
| Dict | a field for each key |
| Tuple | the fields ``_0``, ``_1``, ... |
| Box, MultiDiscrete, MultiBinary | an array of its shape and dtype |
| Discrete | int64 |

The entry ``action_mask`` of a Dict says which actions are allowed (`has_action_mask`). Owns the
forms of observations; must not know of environments, batches or torch.

    N  rows
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from rlrun.data.column_data import Array, map_leaves

if TYPE_CHECKING:
    import gymnasium as gym

    Space = gym.Space[Any]

Keys = tuple[str | int, ...]
"""Path to an entry of a nest."""

ACTION_MASK = "action_mask"
"""Key of the allowed actions in a Dict observation."""
OBSERVATION = "observation"
"""Key of the rest of an observation with an action mask, as in PettingZoo."""


def row_form(space: Space, path: Keys = ()) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and dtype of one observation in an array; ``path`` leads to it in a nest.

    Raises:
        UnsupportedSpaceError: for a space that arrays cannot hold, such as Text.
        ValueError: for keys of a Dict that cannot be fields.
    """
    from gymnasium import spaces

    match space:
        case spaces.Box() | spaces.MultiDiscrete() | spaces.MultiBinary():
            return space.shape, np.dtype(space.dtype)
        case spaces.Discrete():
            return (), np.dtype(np.int64)
        case spaces.Dict() if space.spaces:
            parts: Any = space.spaces.items()
            for key in space.spaces:
                if not isinstance(key, str) or not key or _is_position(key):
                    raise ValueError(
                        f"the key {key!r} of a Dict observation must be text, other than an "
                        "underscore and a number, which names an entry of a Tuple"
                    )
        case spaces.Tuple() if space.spaces:
            parts = ((f"_{i}", part) for i, part in enumerate(space.spaces))
        case _:
            raise no_rows(space, path)
    # Aligned, so that the view of a leaf is as good as an array of its own.
    fields = [(name, *reversed(row_form(part, (*path, name)))) for name, part in parts]
    return (), np.dtype(fields, align=True)


class UnsupportedSpaceError(TypeError):
    """Observations of a space, such as Text, Graph or Sequence, do not fit in arrays."""

    exit_code = 2


def no_rows(space: Space, path: Keys = ()) -> UnsupportedSpaceError:
    """The error to raise for a space whose observations do not fit in arrays.

    Args:
        path: keys that lead to the space in nested observations.
    """
    entry = "".join(f"[{key!r}]" for key in path)
    named = f"observation{entry}: " if path else ""
    return UnsupportedSpaceError(
        f"{named}observations of a {type(space).__name__} space do not fit in arrays; supported "
        "are Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of these: let a wrapper "
        "in env_runners.env_wrappers (FilterObservation leaves entries out), or a connector in "
        "env_runners.env_to_module_connector, turn them into one of these"
    )


def leaf_spaces(space: Space, path: Keys = ()) -> Iterator[tuple[Keys, Space]]:
    """The leaves of a space, entries of a Dict in the order of their keys: path and space."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        for key in sorted(space.spaces):
            yield from leaf_spaces(space.spaces[key], (*path, key))
    elif isinstance(space, spaces.Tuple):
        for i, part in enumerate(space.spaces):
            yield from leaf_spaces(part, (*path, i))
    else:
        yield path, space


def map_space(function: Callable[[Keys, Space], Any], space: Space, path: Keys = ()) -> Any:
    """``function(path, leaf)`` of each leaf of a space, as the space nests them."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        parts = space.spaces.items()
        return {key: map_space(function, part, (*path, key)) for key, part in parts}
    if isinstance(space, spaces.Tuple):
        entries = enumerate(space.spaces)
        return tuple(map_space(function, part, (*path, i)) for i, part in entries)
    return function(path, space)


def as_rows(space: Space, batch: Any) -> Array:
    """Observations batched as gymnasium does, a nest of ``[N, ...]``, as one array ``[N, ...]``."""
    dtype = row_form(space)[1]
    if dtype.names is None:
        return np.asarray(batch, dtype)
    rows = np.zeros(_count(batch), dtype)
    _fill(rows, batch)
    return rows


def _count(batch: Any) -> int:
    while isinstance(batch, Mapping | tuple):
        batch = next(iter(batch.values())) if isinstance(batch, Mapping) else batch[0]
    return len(batch)


def _fill(rows: Array, batch: Any) -> None:
    for name in rows.dtype.names or ():
        part = batch[name] if isinstance(batch, Mapping) else batch[int(name[1:])]
        if rows.dtype[name].names is None:
            rows[name] = part
        else:
            _fill(rows[name], part)


def nest(rows: Any) -> Any:
    """A structured array as the dict or tuple of its leaves ``[..., *shape]``, which are views.

    Structured arrays within nests are replaced, too; other columns are returned unchanged.
    """
    if not isinstance(rows, np.ndarray):
        return map_leaves(nest, rows) if isinstance(rows, dict | tuple) else rows
    names = rows.dtype.names
    if names is None:
        return rows
    parts = {name: nest(rows[name]) for name in names}
    return tuple(parts.values()) if _is_position(names[0]) else parts


def _is_position(name: str) -> bool:
    return name[0] == "_" and name[1:].isdecimal()


def has_action_mask(space: Space) -> bool:
    """Whether observations of this space say which actions are allowed."""
    from gymnasium.spaces import Dict

    return isinstance(space, Dict) and ACTION_MASK in space.spaces


def without_mask(observation: Mapping[str, Any]) -> Any:
    """What a network sees of an observation with a mask: the other entry, or a dict of several."""
    rest = {key: part for key, part in observation.items() if key != ACTION_MASK}
    return next(iter(rest.values())) if len(rest) == 1 else rest


def space_without_mask(space: Space) -> Space:
    """The space of `without_mask`; the space itself if it has no mask."""
    from gymnasium.spaces import Dict

    if not has_action_mask(space):
        return space
    assert isinstance(space, Dict)
    rest = without_mask(space.spaces)
    return Dict(rest) if isinstance(rest, dict) else rest
