"""Action spaces: the layout of actions and distribution inputs in arrays, and sampling in numpy.

Owns the enumeration of an action space's leaves, from which the samplers here, the distributions in
torch and the action connectors are made. All random numbers of a fragment are drawn at once
(`draw`), so a step only adds noise to the inputs: Gumbel noise before the argmax for a categorical
action (Gumbel 1954; Maddison et al. 2014), logistic noise before a threshold for a binary one,
scaled normal noise for a real one. Must not know of torch, networks or environments.

    N  rows                       A  action dimensions
    P  distribution inputs        K  noise numbers per row

    space           kind               inputs [N, P]             actions [N, ...]
    Discrete(n)     categorical        n logits                  int64 [N], the index from 0
    MultiDiscrete   multi_categorical  sum(nvec) logits          int64 [N, k]
    Box of integers multi_categorical  one logit a value         int64 [N, A], a - low
      or bools
    MultiBinary(n)  bernoulli          n logits                  float32 [N, n] of 0 or 1
    Box             gaussian           mean ++ log_std (2 A)     float32 [N, A]
    Dict, Tuple     product            the leaves, concatenated  float32 [N, sum of leaf widths]
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import gymnasium as gym
import numpy as np

from rlrun.config.problems import misfit
from rlrun.data import columns as col
from rlrun.data.column_data import Array
from rlrun.data.nested import leaf_spaces
from rlrun.policies.policy import Policy

_LOG_2PI = float(np.log(2.0 * np.pi))

MOST_CATEGORIES = 10_000_000
"""Of a space, each with an output or an input of the network."""

LOG_STD_BOUNDS = (-20.0, 2.0)
"""Bounds for a squashed normal distribution; a standard deviation beyond them says nothing."""

FORBIDDEN = np.float32(-1e9)
"""Input of an action that a mask forbids: its probability is 0, and its logarithm is finite."""

IN_OTHER_SPACES = "PPO also acts in Box, MultiDiscrete, MultiBinary, Dict and Tuple spaces"
"""Advice where an algorithm cannot act in an action space."""

Kind = Literal["categorical", "multi_categorical", "bernoulli", "gaussian"]


@dataclass(frozen=True, slots=True)
class ActionLeaf:
    """One leaf of an action space and its place in both arrays."""

    space: gym.Space[Any]
    kind: Kind
    inputs: slice
    """Its columns in the distribution inputs [N, P]."""
    columns: slice
    """Its columns in the actions, seen as an array [N, K]."""
    categories: tuple[int, ...]
    """Number of categories of each column; empty unless categorical."""

    @property
    def num_columns(self) -> int:
        """Number of columns in the actions."""
        return int(self.columns.stop - self.columns.start)

    @property
    def size(self) -> int | tuple[int, ...]:
        """The number of categories, by column if there are several; else the number of columns."""
        if self.kind == "categorical":
            return self.categories[0]
        return self.categories or self.num_columns


@dataclass(frozen=True, slots=True)
class ActionLayout:
    """The leaves of an action space in order, with the widths of its arrays."""

    leaves: tuple[ActionLeaf, ...]
    nested: bool
    """True for Dict and Tuple spaces: their actions are float32 [N, K]."""

    @property
    def num_inputs(self) -> int:
        """P, the width of the distribution inputs."""
        return int(self.leaves[-1].inputs.stop)

    @property
    def num_columns(self) -> int:
        """K, the width of the actions."""
        return int(self.leaves[-1].columns.stop)

    @property
    def kind(self) -> Kind | Literal["product"]:
        """The kind of the only leaf, or "product" for Dict and Tuple spaces."""
        return "product" if self.nested else self.leaves[0].kind


def action_layout(space: gym.Space[Any]) -> ActionLayout:
    """Lay out an action space.

    Raises:
        ConfigError: the space contains something other than Box, Discrete, MultiDiscrete,
            MultiBinary, Dict and Tuple, a Box of integers without finite bounds, more than ten
            million categories, or nothing at all.
    """
    leaves: list[ActionLeaf] = []
    inputs = columns = 0
    for _, leaf_space in leaf_spaces(space):
        kind, categories, width = _describe(leaf_space)
        if sum(categories) > MOST_CATEGORIES:
            message = f"cannot choose among {sum(categories):,} categories, each with an output of"
            raise misfit("env", f"{message} the network: {leaf_space}")
        num_inputs = sum(categories) or (2 * width if kind == "gaussian" else width)
        places = slice(inputs, inputs + num_inputs), slice(columns, columns + width)
        leaves.append(ActionLeaf(leaf_space, kind, *places, categories))
        inputs, columns = inputs + num_inputs, columns + width
    if not columns:
        raise misfit("env", f"the action space has no numbers to choose: {space}")
    return ActionLayout(tuple(leaves), isinstance(space, gym.spaces.Dict | gym.spaces.Tuple))


def _describe(space: gym.Space[Any]) -> tuple[Kind, tuple[int, ...], int]:
    """Kind, categories and number of action columns of a leaf."""
    match space:
        case gym.spaces.Discrete():
            return "categorical", (int(space.n),), 1
        case gym.spaces.MultiDiscrete():
            categories = tuple(int(n) for n in space.nvec.ravel())
            return "multi_categorical", categories, len(categories)
        case gym.spaces.MultiBinary():
            return "bernoulli", (), int(np.prod(space.shape))
        case gym.spaces.Box() if space.dtype.kind == "f":
            return "gaussian", (), int(np.prod(space.shape))
        case gym.spaces.Box():
            if not space.is_bounded():
                raise misfit("env", f"cannot choose among unboundedly many integers: {space}")
            bounds = zip(space.low.ravel().tolist(), space.high.ravel().tolist(), strict=True)
            counts = tuple(high - low + 1 for low, high in bounds)
            return "multi_categorical", counts, len(counts)
    message = f"cannot act in a {type(space).__name__} space; supported are Box, Discrete, "
    raise misfit("env", f"{message}MultiDiscrete, MultiBinary, Dict and Tuple")


class ActionSampler(ABC):
    """Turns distribution inputs and noise into actions, and actions into log-probabilities."""

    num_inputs: int
    """P, the number of distribution inputs."""
    num_noise: int
    """K, the number of noise numbers for one action."""
    width: int
    """Columns of the action as an array; 1 for Discrete."""
    dtype: type[np.generic]
    """Type of the action column."""
    shape: tuple[int, ...]
    """Shape of one action in the batch: () for Discrete, (width,) otherwise."""

    def set_exploration(self, settings: Mapping[str, float]) -> None:  # noqa: B027 - optional
        """Set how far samples deviate from the mode, where the inputs do not say so."""

    @abstractmethod
    def draw(self, rng: np.random.Generator, length: int, slots: int) -> Array:
        """Noise for a fragment, float32 ``[length, slots, K]``."""

    @abstractmethod
    def sample(self, inputs: Array, noise: Array) -> Array:
        """Actions ``[N, ...]`` for inputs ``[N, P]`` and noise ``[N, K]``."""

    @abstractmethod
    def mode(self, inputs: Array) -> Array:
        """The most likely actions ``[N, ...]``."""

    @abstractmethod
    def log_prob(self, inputs: Array, actions: Array) -> Array:
        """log pi(a|s) per row, float32 ``[N]``, summed over action dimensions."""


def gumbel(rng: np.random.Generator, length: int, slots: int, width: int) -> Array:
    """Gumbel noise ``[length, slots, width]``: the argmax of logits and noise is a sample."""
    exponential = rng.standard_exponential((length, slots, width), dtype=np.float32)
    np.maximum(exponential, np.finfo(np.float32).tiny, out=exponential)
    np.log(exponential, out=exponential)
    return np.negative(exponential, out=exponential)


def log_softmax(logits: Array) -> Array:
    """Logarithms of probabilities, from logits ``[..., n]``."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


class CategoricalSampler(ActionSampler):
    """Discrete(n); actions are counted from 0."""

    width, dtype, shape = 1, np.int64, ()

    def __init__(self, num_actions: int) -> None:
        self.num_inputs = self.num_noise = num_actions

    def draw(self, rng: np.random.Generator, length: int, slots: int) -> Array:
        return gumbel(rng, length, slots, self.num_inputs)

    def sample(self, inputs: Array, noise: Array) -> Array:
        return (inputs + noise).argmax(axis=-1)

    def mode(self, inputs: Array) -> Array:
        return inputs.argmax(axis=-1)

    def log_prob(self, inputs: Array, actions: Array) -> Array:
        return log_softmax(inputs)[np.arange(len(inputs)), actions]


class EpsilonGreedySampler(ActionSampler):
    """Discrete(n): the action of the highest value, or with probability epsilon a random one.

    The inputs are action values. Of two noise numbers the first decides whether to explore, the
    second which of the n actions, or of those that a mask allows, is taken then.

    Args:
        masked: inputs may be `FORBIDDEN`.
    """

    num_noise, width, dtype, shape = 2, 1, np.int64, ()

    def __init__(self, num_actions: int, *, masked: bool = False) -> None:
        self.num_inputs, self._masked = num_actions, masked
        self.epsilon = 0.0

    def set_exploration(self, settings: Mapping[str, float]) -> None:
        self.epsilon = settings["epsilon"]

    def draw(self, rng: np.random.Generator, length: int, slots: int) -> Array:
        return rng.random((length, slots, 2), dtype=np.float32)

    def sample(self, inputs: Array, noise: Array) -> Array:
        best, explores = inputs.argmax(axis=-1), noise[:, 0] < self.epsilon
        if not np.logical_or.reduce(explores):  # half of what `any` takes
            return best
        allowed = inputs > FORBIDDEN if self._masked else None
        count = self.num_inputs if allowed is None else allowed.sum(axis=1)
        anything = (noise[:, 1] * count).astype(np.int64)  # below n: no float32 below 1 rounds up
        if allowed is not None:  # so far the number of the action among those allowed
            anything = (allowed.cumsum(axis=1) > anything[:, None]).argmax(axis=1)
        return np.where(explores, anything, best)

    def mode(self, inputs: Array) -> Array:
        return inputs.argmax(axis=-1)

    def log_prob(self, inputs: Array, actions: Array) -> Array:
        count = (inputs > FORBIDDEN).sum(axis=1) if self._masked else self.num_inputs
        greedy = (1.0 - self.epsilon) * (actions == self.mode(inputs))
        with np.errstate(divide="ignore"):
            return np.log(greedy + self.epsilon / count).astype(np.float32)


class MultiCategoricalSampler(ActionSampler):
    """MultiDiscrete, or a Box of integers: independent categories, counted from 0."""

    dtype = np.int64

    def __init__(self, categories: tuple[int, ...]) -> None:
        self.num_inputs = self.num_noise = sum(categories)
        self.width = len(categories)
        self.shape = (self.width,)
        ends = np.cumsum(categories)
        self._slices = [slice(int(e) - n, int(e)) for n, e in zip(categories, ends, strict=True)]

    def draw(self, rng: np.random.Generator, length: int, slots: int) -> Array:
        return gumbel(rng, length, slots, self.num_inputs)

    def sample(self, inputs: Array, noise: Array) -> Array:
        return self.mode(inputs + noise)

    def mode(self, inputs: Array) -> Array:
        return np.stack([inputs[:, s].argmax(axis=-1) for s in self._slices], axis=-1)

    def log_prob(self, inputs: Array, actions: Array) -> Array:
        rows = np.arange(len(inputs))
        parts = [
            log_softmax(inputs[:, s])[rows, actions[:, i].astype(np.int64)]
            for i, s in enumerate(self._slices)
        ]
        return np.sum(np.stack(parts), axis=0)


class BernoulliSampler(ActionSampler):
    """MultiBinary(n): independent bits."""

    dtype = np.float32

    def __init__(self, num_bits: int) -> None:
        self.num_inputs = self.num_noise = self.width = num_bits
        self.shape = (self.width,)

    def draw(self, rng: np.random.Generator, length: int, slots: int) -> Array:
        return rng.logistic(size=(length, slots, self.num_inputs)).astype(np.float32)

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

    def __init__(self, num_dimensions: int) -> None:
        self.width = self.num_noise = num_dimensions
        self.num_inputs = 2 * self.width
        self.shape = (self.width,)

    def draw(self, rng: np.random.Generator, length: int, slots: int) -> Array:
        return rng.standard_normal((length, slots, self.width), dtype=np.float32)

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
    """Dict or Tuple: independent leaves, concatenated in one float32 row."""

    dtype = np.float32

    def __init__(self, leaves: tuple[ActionLeaf, ...]) -> None:
        self._parts = [(leaf, SAMPLERS[leaf.kind](leaf.size)) for leaf in leaves]
        samplers = [sampler for _, sampler in self._parts]
        self.num_inputs, self.width = leaves[-1].inputs.stop, leaves[-1].columns.stop
        self.shape = (self.width,)
        self.num_noise = sum(sampler.num_noise for sampler in samplers)
        self._noise_ends = np.cumsum([sampler.num_noise for sampler in samplers])[:-1]

    def draw(self, rng: np.random.Generator, length: int, slots: int) -> Array:
        drawn = [sampler.draw(rng, length, slots) for _, sampler in self._parts]
        return np.concatenate(drawn, axis=-1)

    def sample(self, inputs: Array, noise: Array) -> Array:
        parts = zip(self._parts, np.split(noise, self._noise_ends, axis=-1), strict=True)
        return self._join([part.sample(inputs[:, leaf.inputs], z) for (leaf, part), z in parts])

    def mode(self, inputs: Array) -> Array:
        return self._join([part.mode(inputs[:, leaf.inputs]) for leaf, part in self._parts])

    def log_prob(self, inputs: Array, actions: Array) -> Array:
        total = np.zeros(len(inputs), dtype=np.float32)
        for leaf, part in self._parts:
            columns = actions[:, leaf.columns]
            own = columns[:, 0].astype(np.int64) if leaf.kind == "categorical" else columns
            total += part.log_prob(inputs[:, leaf.inputs], own)
        return total

    @staticmethod
    def _join(parts: list[Array]) -> Array:
        columns = [part[:, None] if part.ndim == 1 else part for part in parts]
        return np.concatenate(columns, axis=-1, dtype=np.float32)


SAMPLERS: dict[str, Callable[[Any], ActionSampler]] = {
    "categorical": CategoricalSampler,
    "multi_categorical": MultiCategoricalSampler,
    "bernoulli": BernoulliSampler,
    "gaussian": GaussianSampler,
}
"""Kind -> sampler, constructed with `ActionLeaf.size`."""


def action_sampler(space: gym.Space[Any]) -> ActionSampler:
    """The sampler for an action space; raises as `action_layout` does."""
    layout = action_layout(space)
    if layout.nested:
        return ProductSampler(layout.leaves)
    return SAMPLERS[layout.leaves[0].kind](layout.leaves[0].size)


class SamplingPolicy(Policy):
    """A policy whose network computes distribution inputs, which a sampler turns into actions.

    Args:
        sampler: turns distribution inputs into actions.
        with_logp: whether batches get ``action_logp``.

    Attributes:
        weight_stddev: initial standard deviation of the noise added to the weights while a fragment
            is sampled (`parameter_noise`); None without such noise.
    """

    weight_stddev: float | None = None

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        sampler: ActionSampler,
        *,
        with_logp: bool = True,
    ) -> None:
        super().__init__(observation_space, action_space)
        self.sampler, self._with_logp = sampler, with_logp
        self._lasting = 0.0
        self._held: int | None = 1
        self._num_noisy_weights = 0
        self._acts_randomly = False

    @property
    def unperturbed(self) -> list[slice]:
        """Parts of the weights to which no noise is added."""
        return []

    def let_noise_last(self, correlation: float) -> None:
        """Set `noise_correlation`, except while all actions are random (`random_steps`)."""
        self.noise_correlation = self._lasting = correlation

    def hold_noise(self, num_weights: int, steps: int | None) -> None:
        """Draw noise of as many weights, and hold it for some steps; None for an episode's.

        While all actions are random, each has noise of its own.
        """
        self._num_noisy_weights = num_weights
        self.noise_steps = self._held = steps

    def noise_of_actions(
        self, noise: Array, inputs: Array, features: Array, weight_log_std: Array
    ) -> Array:
        """Turn noise of the weights of the last layer into standard normal noise of the actions.

        Args:
            noise: of the weights, standard normal, ``[B, A * L]``.
            inputs: of the distribution, ``[B, 2 A]``, with log standard deviations behind means.
            features: input of the layer, ``[B, L]``.
            weight_log_std: ``[A, L]``.

        Returns:
            ``[B, A]``; while all actions are random, the first columns of ``noise``.
        """
        width = self.sampler.num_noise
        if self._acts_randomly:
            return noise[:, :width]
        of_weights = noise.reshape(-1, *weight_log_std.shape) * np.exp(weight_log_std)
        of_outputs = np.matmul(of_weights, features[:, :, None])[:, :, 0]
        return of_outputs * np.exp(-inputs[:, width:])

    def draw_noise(self, rng: np.random.Generator, length: int, slots: int) -> Array:
        if self._num_noisy_weights:
            shape = length, slots, self._num_noisy_weights
            return rng.standard_normal(shape, dtype=np.float32)
        return self.sampler.draw(rng, length, slots)

    def set_exploration(self, settings: Mapping[str, float]) -> None:
        self.sampler.set_exploration(settings)
        self._acts_randomly = bool(settings.get("random"))
        self.noise_correlation = 0.0 if self._acts_randomly else self._lasting
        self.noise_steps = 1 if self._acts_randomly else self._held

    def fragment_columns(
        self, columns: Mapping[str, Array], *, explore: bool = True
    ) -> dict[str, Array]:
        if not self._with_logp:
            return {}
        inputs, actions = columns[col.ACTION_DIST_INPUTS], columns[col.ACTIONS]
        if not explore:  # the most likely action is taken with certainty
            return {col.ACTION_LOGP: np.zeros(len(actions), np.float32)}
        return {col.ACTION_LOGP: self.sampler.log_prob(inputs, actions)}
