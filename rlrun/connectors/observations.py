"""The built-in connector of observations: a preprocessor and an observation filter.

Must not know of environments, networks or torch. A batch of n observations is as gymnasium's vector
environments return it: an array [n, ...], or a dict or tuple of arrays for nested spaces, which
become one structured array (`data.nested`).

| observation space           | becomes                                                       |
|-----------------------------|---------------------------------------------------------------|
| Box                         | float32 of its shape; uint8 images [H, W, C], [H, W]: as is   |
| Discrete(n)                 | one-hot float32 [n]                                           |
| MultiDiscrete(nvec)         | the one-hots of its components, float32 [sum(nvec)]           |
| MultiBinary                 | float32, flat                                                 |
| Dict (sorted keys), Tuple   | the leaves, flat, side by side, float32 [D]                   |
| Dict, Tuple with images     | the same structure, each leaf as it is                        |
| Dict with ``action_mask``   | the mask as it is, and what becomes of the rest: see `nested` |
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from rlrun.config.problems import ConfigError, misfit
from rlrun.connectors.connector import Connector, State
from rlrun.connectors.filters import MeanStdFilter
from rlrun.data.column_data import Array
from rlrun.data.nested import (
    ACTION_MASK,
    OBSERVATION,
    Keys,
    as_rows,
    has_action_mask,
    leaf_spaces,
    no_rows,
    row_form,
    space_without_mask,
    without_mask,
)
from rlrun.policies.action_sampling import MOST_CATEGORIES
from rlrun.policies.layers import has_image, is_image
from rlrun.policies.privileged import PrivilegedBox, seen_entries

if TYPE_CHECKING:
    from rlrun.config.schema import EnvRunnersConfig


CLIP = 10.0


class ObservationPipeline(Connector):
    """Preprocessor, then observation filter.

    Args:
        space: of one raw observation.
        settings: reads ``preprocessor_pref`` (null passes raw observations on) and
            ``observation_filter``.
        privileged: entries that the policy does not see (`model.privileged`).

    Attributes:
        output_space: of one row of the result: a Box, or the raw space without a preprocessor.
        identity: whether batches pass unchanged.
        preprocessor, filter: None if there is nothing to do.
        splits: whether an action mask bypasses the preprocessor.
        filtered: paths of the leaves that are filtered; one empty path for a whole Box.

    Raises:
        TypeError: the space cannot be preprocessed.
        ConfigError: observations are empty, or the filter does not get floats in a Box.
    """

    def __init__(
        self, space: gym.Space[Any], settings: "EnvRunnersConfig", privileged: Sequence[str] = ()
    ) -> None:
        self.filter: MeanStdFilter | None = None
        self.preprocessor: Preprocessor | None = None
        self._structure: gym.Space[Any] | None = None
        self.filtered: tuple[Keys, ...] = ()
        masked = has_action_mask(space)
        self.splits = masked and settings.preprocessor_pref is not None
        filtered = settings.observation_filter == "MeanStdFilter"
        seen = space_without_mask(space)
        if not any(prod(part.shape or ()) for _, part in leaf_spaces(seen)):
            raise misfit("env", f"the observation space has no numbers to act on: {seen}")
        if settings.preprocessor_pref is not None:
            preprocessor = Preprocessor(seen, privileged, keep_images=not filtered)
            self.preprocessor = None if preprocessor.identity else preprocessor
            seen = preprocessor.output_space
            if masked:
                mask = space[ACTION_MASK]  # type: ignore[index]
                space = gym.spaces.Dict({ACTION_MASK: mask, OBSERVATION: seen})
            else:
                space = seen
        self.output_space = space
        if isinstance(space, gym.spaces.Dict | gym.spaces.Tuple):
            self._structure = space
            row_form(space)
        if filtered:
            self._make_filter(seen, raw=settings.preprocessor_pref is None)
        self.identity = not (self.filter or self.preprocessor or self._structure)

    def _make_filter(self, seen: gym.Space[Any], *, raw: bool) -> None:
        """A filter of a Box of floats, or of all in a nest that are not images.

        Args:
            seen: what networks see, without an action mask.
            raw: there is no preprocessor.
        """
        is_nest = isinstance(seen, gym.spaces.Dict | gym.spaces.Tuple)
        leaves = [
            (path, leaf)
            for path, leaf in leaf_spaces(self.output_space)
            if isinstance(leaf, gym.spaces.Box)
            and leaf.dtype.kind == "f"
            and not (is_nest and is_image(leaf))
            and not (path[:1] == (ACTION_MASK,) and has_action_mask(self.output_space))
        ]
        if not leaves:
            raise _cannot_filter(seen, raw=raw)
        self.filtered = tuple(path for path, _ in leaves)
        normalized = None if self.preprocessor is None else self.preprocessor.continuous
        if normalized is not None and not normalized.any():
            return
        shape = leaves[0][1].shape
        if len(leaves) > 1:
            shape = (sum(prod(leaf.shape) for _, leaf in leaves),)
        self.filter = MeanStdFilter(shape, normalized=normalized, clip=CLIP)
        self.output_space = _filtered_space(self.output_space, self.filtered, normalized)

    def __call__(self, observations: Any, *, update: bool | Array = True) -> Any:
        """One batch of raw observations -> one row of ``output_space`` each.

        The result is the argument itself if there is nothing to do, else a new array.

        Args:
            observations: a batch, of all sub-environments or some.
            update: see `MeanStdFilter`; False in evaluation.
        """
        observations = self.preprocess(observations)
        if self.filter is not None:
            if self._structure is None:
                return self.filter(observations, update=update)
            leaves = [_leaf(observations, path) for path in self.filtered]
            if len(leaves) == 1:
                leaves[0][...] = self.filter(leaves[0], update=update)
                return observations
            flat = np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1)
            ends = np.cumsum([prod(leaf.shape[1:]) for leaf in leaves])
            parts = np.split(self.filter(flat, update=update), ends[:-1], axis=1)
            for leaf, part in zip(leaves, parts, strict=True):
                leaf[...] = part.reshape(leaf.shape)
        return observations

    def first(self, observations: Any, slots: Array, *, update: bool = True) -> Any:
        """The same for the first observations of episodes that begin in ``slots``, int [n]."""
        return self(observations, update=update)

    def preprocess(self, observations: Any) -> Any:
        """The same without the filter: a function of the observations alone."""
        preprocess, structure = self.preprocessor, self._structure
        if structure is None:
            return observations if preprocess is None else preprocess(observations)
        if self.splits:
            seen = without_mask(observations)
            seen = seen if preprocess is None else preprocess(seen)
            observations = {ACTION_MASK: observations[ACTION_MASK], OBSERVATION: seen}
        return as_rows(structure, observations)

    def get_state(self) -> State:
        return {} if self.filter is None else self.filter.get_state()

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state from `get_state`.

        Raises:
            ValueError: only one of the two has a filter.
        """
        if bool(state) != (self.filter is not None):
            had = "MeanStdFilter" if state else "NoFilter"
            raise ValueError(f"it was trained with env_runners.observation_filter: {had}")
        if self.filter is not None:
            self.filter.set_state(state)

    def flush_deltas(self) -> State:
        return {} if self.filter is None else self.filter.flush_deltas()

    def apply_deltas(self, deltas: Iterable[Mapping[str, Any]]) -> None:
        if self.filter is not None:
            self.filter.apply_deltas(deltas)


class Preprocessor:
    """Turns each batch of raw observations into one array; has no state.

    Args:
        space: of one raw observation.
        privileged: entries of a Dict whose numbers come last.
        keep_images: leave uint8 images as they are, for networks that scale them. Nested spaces
            with images are always left as they are, for networks that join their parts.

    Attributes:
        output_space: of one row of the result.
        identity: whether batches pass unchanged.
        continuous: bool array of the output's shape: which features come from a Box.
        leaves: the leaves and their columns; empty where only the dtype may change.
    """

    def __init__(
        self, space: gym.Space[Any], privileged: Sequence[str] = (), *, keep_images: bool = True
    ) -> None:
        self.identity = False
        self.leaves: tuple[ObservationLeaf, ...] = ()
        self.output_space: gym.Space[Any] = space
        if isinstance(space, gym.spaces.Box):
            pixels = space.dtype == np.uint8 and (len(space.shape) == 3 or is_image(space))
            self.identity = space.dtype == np.float32 or (keep_images and pixels)
            if not self.identity:
                self.output_space = _as_float32(space)
            self.continuous = np.ones(space.shape, np.bool_)
            return
        if has_image(space):
            self.identity = True
            return
        parts = list(leaf_spaces(space))
        if privileged:
            seen = seen_entries(space, privileged)
            parts.sort(key=lambda part: part[0][0] not in seen)
        self.leaves = tuple(_leaves(parts))
        low = np.concatenate([leaf.low for leaf in self.leaves])
        high = np.concatenate([leaf.high for leaf in self.leaves])
        self.output_space = gym.spaces.Box(low, high, dtype=np.float32)
        if privileged:
            num_seen = sum(leaf.width for leaf in self.leaves if leaf.path[0] in seen)
            self.output_space = PrivilegedBox(low, high, num_seen)
        self.continuous = np.concatenate([np.full(leaf.width, leaf.is_box) for leaf in self.leaves])

    def __call__(self, observations: Any) -> Array:
        """A batch of n raw observations -> array [n, ...]."""
        if not self.leaves:
            return np.asarray(observations, dtype=self.output_space.dtype)
        batches = [_at(observations, leaf.path) for leaf in self.leaves]
        n = len(batches[0])
        result = np.zeros((n, *self.continuous.shape), np.float32)
        for leaf, batch in zip(self.leaves, batches, strict=True):
            columns = batch.reshape(n, leaf.categories or leaf.width)
            if leaf.categories:
                hot = columns.astype(np.int64) + leaf.first_columns
                result[np.arange(n)[:, None], hot] = 1.0
            else:
                result[:, leaf.start : leaf.start + leaf.width] = columns
        return result


@dataclass(frozen=True, slots=True)
class ObservationLeaf:
    """A leaf of the observation space and its columns in the result."""

    path: Keys
    start: int
    width: int
    low: Array
    high: Array
    is_box: bool
    categories: int
    """Number of one-hot groups; 0 for numbers that are copied."""
    first_columns: NDArray[np.int64]
    """Column of each group's first category, minus that category's value."""


def _leaves(parts: Iterable[tuple[Keys, gym.Space[Any]]]) -> Iterator[ObservationLeaf]:
    start = 0
    for path, part in parts:
        counts: Array = np.empty(0, np.int64)  # categories of each one-hot group
        first_values: Array = counts
        low: Any = 0.0
        high: Any = 1.0
        match part:
            case gym.spaces.Discrete():
                counts, first_values = np.array([part.n]), np.array([part.start])
            case gym.spaces.MultiDiscrete():
                counts, first_values = part.nvec.ravel(), np.ravel(part.start)
            case gym.spaces.Box():
                box = _as_float32(part)
                low, high = box.low.ravel(), box.high.ravel()
            case gym.spaces.MultiBinary():
                pass
            case _:
                raise no_rows(part, path)
        width = int(counts.sum()) if len(counts) else prod(part.shape or ())
        if len(counts) and width > MOST_CATEGORIES:
            message = f"its observations have {width:,} categories, each with an input of the "
            message += f"network; at most {MOST_CATEGORIES:,} are possible: turn the number into "
            message += "coordinates or digits, by a wrapper in env_runners.env_wrappers"
            raise misfit("env", message)
        low, high = (np.full(width, bound, np.float32) for bound in (low, high))
        first_columns = (start + np.cumsum(counts) - counts - first_values).astype(np.int64)
        is_box = isinstance(part, gym.spaces.Box)
        yield ObservationLeaf(path, start, width, low, high, is_box, len(counts), first_columns)
        start += width


def _at(observations: Any, path: Keys) -> Array:
    for key in path:
        observations = observations[key]
    return np.asarray(observations)


def _leaf(rows: Array, path: Keys) -> Array:
    """A leaf of structured rows, as a view."""
    for key in path:
        rows = rows[key if isinstance(key, str) else f"_{key}"]
    return rows


def _as_float32(space: gym.spaces.Box) -> gym.spaces.Box:
    with np.errstate(over="ignore"):
        low, high = space.low.astype(np.float32), space.high.astype(np.float32)
    return gym.spaces.Box(low, high, dtype=np.float32)


def _cannot_filter(space: gym.Space[Any], *, raw: bool) -> ConfigError:
    advice = "env_runners.preprocessor_pref: rllib would flatten them" if raw else "remove this key"
    message = f"MeanStdFilter needs floats in a Box that is no image, not {space}; {advice}"
    return misfit("env_runners.observation_filter", message)


def _filtered_space(
    space: Any, filtered: Sequence[Keys], normalized: NDArray[np.bool_] | None, path: Keys = ()
) -> Any:
    """A space with the bounds of the filter at the leaves that the paths lead to."""
    further = filtered, normalized
    if isinstance(space, gym.spaces.Dict):  # whose entries keep their order
        parts = [(k, _filtered_space(part, *further, (*path, k))) for k, part in space.items()]
        return gym.spaces.Dict(OrderedDict(parts))
    if isinstance(space, gym.spaces.Tuple):
        return gym.spaces.Tuple(
            _filtered_space(part, *further, (*path, i)) for i, part in enumerate(space.spaces)
        )
    if path not in filtered:
        return space
    low, high = np.full_like(space.low, -CLIP), np.full_like(space.high, CLIP)
    if normalized is not None:
        low, high = np.where(normalized, low, space.low), np.where(normalized, high, space.high)
    if isinstance(space, PrivilegedBox):
        return PrivilegedBox(low, high, space.num_seen)
    return gym.spaces.Box(low, high, dtype=space.dtype.type)
