"""Sampling actions in numpy, for every policy, whatever computed its distribution inputs.

Acting draws all its random numbers per fragment from the seed tree (`draw`), so a step only adds
noise to the inputs: Gumbel noise and an argmax for a categorical action (Gumbel 1954; Maddison et
al. 2014), logistic noise and a threshold for a binary one, scaled normal noise for a real one.

    N  rows                       A  action dimensions
    P  distribution inputs        K  noise numbers per row

    space           inputs [N, P]               actions [N, ...]
    Discrete        n logits                    int64 [N]
    MultiDiscrete   sum(nvec) logits            int64 [N, k]
    MultiBinary     n logits                    float32 [N, n]
    Box of ints     one logit a value           int64 [N, A], a - low
    Box             mean ++ log_std (2 A)       float32 [N, A]
    Dict, Tuple     the leaves, concatenated    float32 [N, sum of leaf widths]
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_LOG_2PI = float(np.log(2.0 * np.pi))

LOG_STD_BOUNDS = (-20.0, 2.0)
"""Of a squashed normal distribution; beyond them a standard deviation says nothing any more."""


class ActionSampler(ABC):
    """Turns distribution inputs and noise into actions, and actions into log-probabilities."""

    num_inputs: int
    """P, the numbers a policy must put out per row."""
    num_noise: int
    """K, the noise numbers that one sampled action takes."""
    width: int
    """Columns of the action as an array; 1 for Discrete."""
    dtype: type[np.generic]
    """Type of the action column."""
    shape: tuple[int, ...]
    """Shape of one action in the batch: () for Discrete, (width,) otherwise."""

    def set_exploration(self, settings: Mapping[str, float]) -> None:  # noqa: B027 - optional
        """Take over how far samples deviate from the mode, where the inputs do not say so."""

    @abstractmethod
    def draw(self, rng: np.random.Generator, length: int, lanes: int) -> Array:
        """Noise for a fragment, float32 ``[length, lanes, K]``."""

    @abstractmethod
    def sample(self, inputs: Array, noise: Array) -> Array:
        """Actions ``[N, ...]`` for inputs ``[N, P]`` and noise ``[N, K]``."""

    @abstractmethod
    def mode(self, inputs: Array) -> Array:
        """The most likely actions ``[N, ...]``."""

    @abstractmethod
    def log_prob(self, inputs: Array, actions: Array) -> Array:
        """log pi(a|s) per row, float32 ``[N]``, summed over action dimensions."""


def _gumbel(rng: np.random.Generator, length: int, lanes: int, width: int) -> Array:
    exponential = rng.standard_exponential((length, lanes, width), dtype=np.float32)
    np.maximum(exponential, np.finfo(np.float32).tiny, out=exponential)
    np.log(exponential, out=exponential)
    return np.negative(exponential, out=exponential)


def _log_softmax(logits: Array) -> Array:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


class CategoricalSampler(ActionSampler):
    """Discrete(n); action values run from ``start``."""

    width, dtype, shape = 1, np.int64, ()

    def __init__(self, space: gym.spaces.Discrete) -> None:
        self.num_inputs = self.num_noise = int(space.n)

    def draw(self, rng: np.random.Generator, length: int, lanes: int) -> Array:
        return _gumbel(rng, length, lanes, self.num_inputs)

    def sample(self, inputs: Array, noise: Array) -> Array:
        return (inputs + noise).argmax(axis=-1)

    def mode(self, inputs: Array) -> Array:
        return inputs.argmax(axis=-1)

    def log_prob(self, inputs: Array, actions: Array) -> Array:
        return _log_softmax(inputs)[np.arange(len(inputs)), actions]


class EpsilonGreedySampler(ActionSampler):
    """Discrete(n): the action with the highest input, or with probability epsilon any.

    The inputs are action values. Two noise numbers: the first decides whether to explore, the
    second which of all n actions is taken then.
    """

    num_noise, width, dtype, shape = 2, 1, np.int64, ()

    def __init__(self, space: gym.spaces.Discrete) -> None:
        self.num_inputs = int(space.n)
        self.epsilon = 0.0

    def set_exploration(self, settings: Mapping[str, float]) -> None:
        self.epsilon = settings["epsilon"]

    def draw(self, rng: np.random.Generator, length: int, lanes: int) -> Array:
        return rng.random((length, lanes, 2), dtype=np.float32)

    def sample(self, inputs: Array, noise: Array) -> Array:
        best, explores = self.mode(inputs), noise[:, 0] < self.epsilon
        if not explores.any():
            return best
        # A float32 below 1 times n may round to n itself.
        anything = np.minimum(noise[:, 1] * self.num_inputs, self.num_inputs - 1).astype(np.int64)
        return np.where(explores, anything, best)

    def mode(self, inputs: Array) -> Array:
        return inputs.argmax(axis=-1)

    def log_prob(self, inputs: Array, actions: Array) -> Array:
        greedy = (1.0 - self.epsilon) * (actions == self.mode(inputs))
        with np.errstate(divide="ignore"):
            return np.log(greedy + self.epsilon / self.num_inputs).astype(np.float32)


class MultiCategoricalSampler(ActionSampler):
    """MultiDiscrete, or a Box of integers: independent categories, counted from 0."""

    dtype = np.int64

    def __init__(self, sizes: list[int]) -> None:
        self.num_inputs = self.num_noise = sum(sizes)
        self.width = len(sizes)
        self.shape = (self.width,)
        ends = np.cumsum(sizes)
        self._slices = [slice(int(e) - n, int(e)) for n, e in zip(sizes, ends, strict=True)]

    def draw(self, rng: np.random.Generator, length: int, lanes: int) -> Array:
        return _gumbel(rng, length, lanes, self.num_inputs)

    def sample(self, inputs: Array, noise: Array) -> Array:
        return self.mode(inputs + noise)

    def mode(self, inputs: Array) -> Array:
        return np.stack([inputs[:, s].argmax(axis=-1) for s in self._slices], axis=-1)

    def log_prob(self, inputs: Array, actions: Array) -> Array:
        rows = np.arange(len(inputs))
        parts = [
            _log_softmax(inputs[:, s])[rows, actions[:, i].astype(np.int64)]
            for i, s in enumerate(self._slices)
        ]
        return np.sum(np.stack(parts), axis=0)


class BernoulliSampler(ActionSampler):
    """MultiBinary(n): independent bits."""

    dtype = np.float32

    def __init__(self, space: gym.spaces.MultiBinary) -> None:
        self.num_inputs = self.num_noise = self.width = int(np.prod(space.shape))
        self.shape = (self.width,)

    def draw(self, rng: np.random.Generator, length: int, lanes: int) -> Array:
        return rng.logistic(size=(length, lanes, self.num_inputs)).astype(np.float32)

    def sample(self, inputs: Array, noise: Array) -> Array:
        return (inputs + noise > 0.0).astype(np.float32)

    def mode(self, inputs: Array) -> Array:
        return (inputs > 0.0).astype(np.float32)

    def log_prob(self, inputs: Array, actions: Array) -> Array:
        # log sigmoid(x) for a set bit and log sigmoid(-x) for an unset one.
        signed = np.where(actions > 0.5, -inputs, inputs)
        return -np.logaddexp(np.float32(0.0), signed).sum(axis=-1)


class GaussianSampler(ActionSampler):
    """Box: a normal distribution with diagonal covariance, not squashed and not clipped."""

    dtype = np.float32

    def __init__(self, space: gym.spaces.Box) -> None:
        self.width = self.num_noise = int(np.prod(space.shape))
        self.num_inputs = 2 * self.width
        self.shape = (self.width,)

    def draw(self, rng: np.random.Generator, length: int, lanes: int) -> Array:
        return rng.standard_normal((length, lanes, self.width), dtype=np.float32)

    def sample(self, inputs: Array, noise: Array) -> Array:
        return inputs[:, : self.width] + np.exp(inputs[:, self.width :]) * noise

    def mode(self, inputs: Array) -> Array:
        return inputs[:, : self.width]

    def log_prob(self, inputs: Array, actions: Array) -> Array:
        mean, log_std = inputs[:, : self.width], inputs[:, self.width :]
        scaled = (actions - mean) * np.exp(-log_std)
        return -(0.5 * scaled * scaled + log_std + np.float32(0.5 * _LOG_2PI)).sum(axis=-1)


class SquashedGaussianSampler(GaussianSampler):
    """Box: a normal distribution squashed into (-1, 1) by tanh."""

    def sample(self, inputs: Array, noise: Array) -> Array:
        return np.tanh(super().sample(self._bounded(inputs), noise))

    def mode(self, inputs: Array) -> Array:
        return np.tanh(super().mode(inputs))

    def log_prob(self, inputs: Array, actions: Array) -> Array:
        # For reports. Where float32 has rounded an action to 1, what was squashed is unknown.
        inside = np.clip(actions.astype(np.float64), -1.0 + 2.0**-24, 1.0 - 2.0**-24)
        gaussian = super().log_prob(self._bounded(inputs), np.arctanh(inside))
        return (gaussian - np.log1p(-inside * inside).sum(axis=-1)).astype(np.float32)

    def _bounded(self, inputs: Array) -> Array:
        log_std = np.minimum(
            np.maximum(inputs[:, self.width :], LOG_STD_BOUNDS[0]), LOG_STD_BOUNDS[1]
        )
        return np.concatenate([inputs[:, : self.width], log_std], axis=1)


class ProductSampler(ActionSampler):
    """Dict or Tuple: independent leaves, laid side by side in one float32 row."""

    dtype = np.float32

    def __init__(self, leaves: list[ActionSampler]) -> None:
        self._leaves = leaves
        self.num_inputs = sum(leaf.num_inputs for leaf in self._leaves)
        self.width = sum(leaf.width for leaf in self._leaves)
        self.num_noise = sum(leaf.num_noise for leaf in self._leaves)
        self.shape = (self.width,)
        self._input_ends = np.cumsum([leaf.num_inputs for leaf in self._leaves])[:-1]
        self._noise_ends = np.cumsum([leaf.num_noise for leaf in self._leaves])[:-1]
        self._action_ends = np.cumsum([leaf.width for leaf in self._leaves])[:-1]

    def draw(self, rng: np.random.Generator, length: int, lanes: int) -> Array:
        return np.concatenate([leaf.draw(rng, length, lanes) for leaf in self._leaves], axis=-1)

    def sample(self, inputs: Array, noise: Array) -> Array:
        noises = np.split(noise, self._noise_ends, axis=-1)
        parts = zip(self._leaves, self._split_inputs(inputs), noises, strict=True)
        return self._join([leaf.sample(x, z) for leaf, x, z in parts])

    def mode(self, inputs: Array) -> Array:
        parts = zip(self._leaves, self._split_inputs(inputs), strict=True)
        return self._join([leaf.mode(x) for leaf, x in parts])

    def log_prob(self, inputs: Array, actions: Array) -> Array:
        columns = np.split(actions, self._action_ends, axis=-1)
        total = np.zeros(len(inputs), dtype=np.float32)
        for leaf, x, a in zip(self._leaves, self._split_inputs(inputs), columns, strict=True):
            total += leaf.log_prob(x, a[:, 0].astype(np.int64) if leaf.shape == () else a)
        return total

    def _split_inputs(self, inputs: Array) -> list[Array]:
        return np.split(inputs, self._input_ends, axis=-1)

    @staticmethod
    def _join(parts: list[Array]) -> Array:
        columns = [part[:, None] if part.ndim == 1 else part for part in parts]
        return np.concatenate(columns, axis=-1, dtype=np.float32)


def action_leaves(space: gym.Space[Any]) -> Iterator[gym.Space[Any]]:
    """The leaf spaces of a nested action space, Dict entries in sorted key order."""
    if isinstance(space, gym.spaces.Dict):
        for key in sorted(space.spaces):
            yield from action_leaves(space.spaces[key])
    elif isinstance(space, gym.spaces.Tuple):
        for part in space.spaces:
            yield from action_leaves(part)
    else:
        yield space


def action_sampler(space: gym.Space[Any]) -> ActionSampler:
    """The sampler for an action space.

    Raises:
        TypeError: for a space that no action distribution covers.
    """
    match space:
        case gym.spaces.Discrete():
            return CategoricalSampler(space)
        case gym.spaces.MultiDiscrete():
            return MultiCategoricalSampler([int(n) for n in np.ravel(space.nvec)])
        case gym.spaces.MultiBinary():
            return BernoulliSampler(space)
        case gym.spaces.Box() if space.dtype.kind in "iu":
            spans = space.high.astype(np.int64) - space.low.astype(np.int64) + 1
            return MultiCategoricalSampler([int(n) for n in np.ravel(spans)])
        case gym.spaces.Box():
            return GaussianSampler(space)
        case gym.spaces.Dict() | gym.spaces.Tuple():
            return ProductSampler([action_sampler(leaf) for leaf in action_leaves(space)])
    raise TypeError(
        f"no action distribution for {type(space).__name__}; "
        "use Discrete, MultiDiscrete, MultiBinary, Box, Dict or Tuple"
    )
