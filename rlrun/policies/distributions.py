"""Action distributions in torch, for losses: log-probabilities, entropies and KL divergences.

One object per action space, whose methods take the raw distribution inputs: torch.distributions
makes and validates an object for each minibatch, which costs more than the arithmetic. The layout
of the arrays, and sampling in numpy, are in `action_sampling`. Must not know of networks or losses.

    N  rows                     P  distribution inputs
    A  action dimensions        K  columns of the actions

Every result is float [N], summed over the dimensions of the action, which are independent.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from rlrun.data.column_data import Array
from rlrun.policies.action_sampling import (
    LOG_STD_BOUNDS,
    SAMPLERS,
    ActionLeaf,
    ActionSampler,
    ProductSampler,
    action_layout,
)

Vjp = tuple[Array, Array, Callable[[Array, float], Array]]
"""Log-probabilities [N], entropies [N], and their backward pass, which is called with the gradients
of both, [N] and a number, and returns the gradient of the inputs [N, P]."""

_LOG_2 = math.log(2.0)
_LOG_2PI = math.log(2.0 * math.pi)


class Distribution(ABC):
    """pi(a|s) for one action space, as functions of the distribution inputs [N, P].

    A subclass that ``model.distribution`` names is constructed with the action space, sets
    ``num_inputs`` and ``num_noise``, and defines `sample`, `mode`, `logp` and `entropy`. If it is
    also a ``torch.nn.Module``, its parameters are learned with the others. Its constructor raises
    ValueError for a space that does not fit.
    """

    num_inputs: int
    """P."""
    num_noise: int
    """K, the number of noise numbers for one action."""
    bounded = False
    """Whether actions are in (-1, 1), which the action connectors stretch to the space's bounds."""
    has_kl = False
    """Whether `kl` is defined, by the class or by the parent whose `logp` it inherits."""
    has_logp_gradient = True
    """Whether log-probabilities depend on the inputs, so that a policy gradient exists."""

    def __init_subclass__(cls, **arguments: Any) -> None:
        """Inherit `kl`, `logp_entropy` and `vjp` only together with the formulas they belong to."""
        super().__init_subclass__(**arguments)
        own = vars(cls)
        if "has_vjp" not in own:
            cls.has_vjp = False
        if "logp_entropy" not in own and not own.keys().isdisjoint(("logp", "entropy")):
            cls.logp_entropy = Distribution.logp_entropy  # type: ignore[method-assign]
        if "kl" in own:
            cls.has_kl = True
        elif "logp" in own:
            cls.kl, cls.has_kl = Distribution.kl, False  # type: ignore[method-assign]

    def numpy_sampler(self) -> ActionSampler | None:
        """The sampler to act with in numpy; None to act with `sample` and `mode`."""
        return None

    def draw(self, rng: np.random.Generator, length: int, slots: int) -> Array:
        """Noise for a fragment, float32 ``[length, slots, K]``; standard normal by default."""
        return rng.standard_normal((length, slots, self.num_noise), dtype=np.float32)

    def sample(self, inputs: Tensor, noise: Tensor) -> Tensor:
        """Actions ``[N, ...]`` for inputs ``[N, P]`` and noise ``[N, K]``."""
        raise TypeError(f"{type(self).__name__} must define sample()")

    def mode(self, inputs: Tensor) -> Tensor:
        """The most likely actions ``[N, ...]``."""
        raise TypeError(f"{type(self).__name__} must define mode()")

    @abstractmethod
    def logp(self, inputs: Tensor, actions: Tensor) -> Tensor:
        """log pi(a|s) [N] of the module's actions, [N] or [N, K]."""

    @abstractmethod
    def entropy(self, inputs: Tensor) -> Tensor:
        """Entropy [N] in nats; differential entropy for continuous dimensions."""

    def kl(self, inputs_p: Tensor, inputs_q: Tensor) -> Tensor:
        """KL(p || q) [N]; raises TypeError without `has_kl`."""
        raise TypeError(f"{type(self).__name__} has no KL divergence")

    def logp_entropy(self, inputs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """`logp` and `entropy` at once, sharing intermediate results."""
        return self.logp(inputs, actions), self.entropy(inputs)

    has_vjp = False
    """Whether `logp_entropy_vjp` and `kl_vjp` are defined, which compute in numpy."""

    def logp_entropy_vjp(self, inputs: Array, actions: Array) -> Vjp:
        """`logp_entropy` and its gradient in closed form."""
        raise TypeError(f"{type(self).__name__} leaves its gradient to autograd")

    def kl_vjp(self, inputs_p: Array, inputs_q: Array) -> tuple[Array, Array]:
        """`kl` and its gradient for ``inputs_q`` [N, P] in closed form."""
        raise TypeError(f"{type(self).__name__} leaves its gradient to autograd")


class Categorical(Distribution):
    """Discrete: P logits; actions int64 [N]."""

    def __init__(self, num_categories: int) -> None:
        self.num_inputs = num_categories

    def numpy_sampler(self) -> ActionSampler:
        return SAMPLERS["categorical"](self.num_inputs)

    def logp(self, inputs: Tensor, actions: Tensor) -> Tensor:
        return _pick(inputs.log_softmax(-1), actions)

    def entropy(self, inputs: Tensor) -> Tensor:
        return _categorical_entropy(inputs.log_softmax(-1))

    def kl(self, inputs_p: Tensor, inputs_q: Tensor) -> Tensor:
        logp_p = inputs_p.log_softmax(-1)
        return (logp_p.exp() * (logp_p - inputs_q.log_softmax(-1))).sum(-1)

    def logp_entropy(self, inputs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        logp = inputs.log_softmax(-1)
        return _pick(logp, actions), _categorical_entropy(logp)

    has_vjp = True

    def logp_entropy_vjp(self, inputs: Array, actions: Array) -> Vjp:
        """d logp(a) = onehot(a) - p and dH = -p (logp + H)."""
        logp = _log_softmax(inputs)
        p = np.exp(logp)
        entropy = -(p * logp).sum(0)
        taken = actions, np.arange(len(actions))

        def backward(d_logp: Array, d_entropy: float) -> Array:
            gradient = ((logp + entropy) * -d_entropy - d_logp) * p
            gradient[taken] += d_logp
            return gradient.T

        return logp[taken], entropy, backward

    def kl_vjp(self, inputs_p: Array, inputs_q: Array) -> tuple[Array, Array]:
        """Its gradient is the difference of the probabilities."""
        logp_p, logp_q = _log_softmax(inputs_p), _log_softmax(inputs_q)
        p = np.exp(logp_p)
        return (p * (logp_p - logp_q)).sum(0), (np.exp(logp_q) - p).T


class MultiCategorical(Distribution):
    """MultiDiscrete: the logits of each component in turn; actions int64 [N, K]."""

    def __init__(self, categories: tuple[int, ...]) -> None:
        self.num_inputs = sum(categories)
        self._categories = list(categories)
        self._components = [Categorical(n) for n in categories]

    def numpy_sampler(self) -> ActionSampler:
        return SAMPLERS["multi_categorical"](tuple(self._categories))

    def logp(self, inputs: Tensor, actions: Tensor) -> Tensor:
        parts = zip(self._split(inputs), actions.unbind(-1), strict=True)
        return _sum(_pick(x.log_softmax(-1), a) for x, a in parts)

    def entropy(self, inputs: Tensor) -> Tensor:
        return _sum(_categorical_entropy(x.log_softmax(-1)) for x in self._split(inputs))

    def kl(self, inputs_p: Tensor, inputs_q: Tensor) -> Tensor:
        parts = zip(self._components, self._split(inputs_p), self._split(inputs_q), strict=True)
        return _sum(component.kl(p, q) for component, p, q in parts)

    def logp_entropy(self, inputs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        logps = [x.log_softmax(-1) for x in self._split(inputs)]
        picked = [_pick(x, a) for x, a in zip(logps, actions.unbind(-1), strict=True)]
        return _sum(picked), _sum(_categorical_entropy(x) for x in logps)

    def _split(self, inputs: Tensor) -> tuple[Tensor, ...]:
        return torch.split(inputs, self._categories, -1)


class Bernoulli(Distribution):
    """MultiBinary: one logit for each bit; actions 0 or 1, [N, K]."""

    def __init__(self, num_bits: int) -> None:
        self.num_inputs = num_bits

    def numpy_sampler(self) -> ActionSampler:
        return SAMPLERS["bernoulli"](self.num_inputs)

    def logp(self, inputs: Tensor, actions: Tensor) -> Tensor:
        """log pi(a|s) [N]: ``a x - softplus(x)`` is log sigmoid(x) or log sigmoid(-x)."""
        return (actions * inputs - functional.softplus(inputs)).sum(-1)

    def entropy(self, inputs: Tensor) -> Tensor:
        return (functional.softplus(inputs) - inputs * inputs.sigmoid()).sum(-1)

    def kl(self, inputs_p: Tensor, inputs_q: Tensor) -> Tensor:
        on = inputs_p.sigmoid() * (inputs_p - inputs_q)
        return (on + functional.softplus(inputs_q) - functional.softplus(inputs_p)).sum(-1)


class DiagGaussian(Distribution):
    """Box: A means, then A log standard deviations; actions float [N, A], not squashed."""

    def __init__(self, num_dimensions: int) -> None:
        self.num_inputs = 2 * num_dimensions
        self._log_norm = 0.5 * num_dimensions * _LOG_2PI
        self._entropy_offset = self._log_norm + 0.5 * num_dimensions

    def numpy_sampler(self) -> ActionSampler:
        return SAMPLERS["gaussian"](self.num_inputs // 2)

    def logp(self, inputs: Tensor, actions: Tensor) -> Tensor:
        mean, log_std = inputs.chunk(2, -1)
        scaled = (actions - mean) * (-log_std).exp()
        return scaled.square().sum(-1) * -0.5 - log_std.sum(-1) - self._log_norm

    def entropy(self, inputs: Tensor) -> Tensor:
        return inputs.chunk(2, -1)[1].sum(-1) + self._entropy_offset

    def kl(self, inputs_p: Tensor, inputs_q: Tensor) -> Tensor:
        mean_p, log_std_p = inputs_p.chunk(2, -1)
        mean_q, log_std_q = inputs_q.chunk(2, -1)
        log_ratio = log_std_p - log_std_q
        distance = (mean_p - mean_q) * (-log_std_q).exp()
        return 0.5 * ((2.0 * log_ratio).exp() + distance.square() - 1.0).sum(-1) - log_ratio.sum(-1)

    def logp_entropy(self, inputs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = inputs.chunk(2, -1)
        scaled = (actions - mean) * (-log_std).exp()
        log_volume = log_std.sum(-1)
        logp = scaled.square().sum(-1) * -0.5 - log_volume - self._log_norm
        return logp, log_volume + self._entropy_offset

    has_vjp = True

    def logp_entropy_vjp(self, inputs: Array, actions: Array) -> Vjp:
        """d logp = z / std for the mean and z^2 - 1 for log std, with z = (a - mean) / std."""
        mean, log_std = np.split(_columns(inputs), 2)
        precision = np.exp(-log_std)
        scaled = (actions.T - mean) * precision
        squares = scaled * scaled
        log_volume = log_std.sum(0)
        logp = squares.sum(0) * -0.5 - log_volume - self._log_norm

        def backward(d_logp: Array, d_entropy: float) -> Array:
            d_mean = scaled * precision * d_logp
            d_log_std = (squares - 1.0) * d_logp + d_entropy
            return np.concatenate((d_mean, d_log_std)).T

        return logp, log_volume + self._entropy_offset, backward

    def kl_vjp(self, inputs_p: Array, inputs_q: Array) -> tuple[Array, Array]:
        """With r = std_p / std_q and d = (mean_q - mean_p) / std_q: d / std_q, 1 - r^2 - d^2."""
        mean_p, log_std_p = np.split(_columns(inputs_p), 2)
        mean_q, log_std_q = np.split(_columns(inputs_q), 2)
        precision = np.exp(-log_std_q)
        distance = (mean_q - mean_p) * precision
        log_ratio = log_std_p - log_std_q
        spread = np.exp(2.0 * log_ratio) + distance * distance - 1.0
        kl = 0.5 * spread.sum(0) - log_ratio.sum(0)
        return kl, np.concatenate((distance * precision, -spread)).T


class Product(Distribution):
    """Dict or Tuple: independent leaves; actions float [N, K], categories as float indices."""

    def __init__(self, leaves: tuple[ActionLeaf, ...]) -> None:
        self._leaves, self.num_inputs = leaves, leaves[-1].inputs.stop
        self._parts = [(leaf, DISTRIBUTIONS[leaf.kind](leaf.size)) for leaf in leaves]

    def numpy_sampler(self) -> ActionSampler:
        return ProductSampler(self._leaves)

    def logp(self, inputs: Tensor, actions: Tensor) -> Tensor:
        return _sum(
            part.logp(inputs[:, leaf.inputs], self._leaf_actions(leaf, actions))
            for leaf, part in self._parts
        )

    def entropy(self, inputs: Tensor) -> Tensor:
        return _sum(part.entropy(inputs[:, leaf.inputs]) for leaf, part in self._parts)

    def kl(self, inputs_p: Tensor, inputs_q: Tensor) -> Tensor:
        return _sum(
            part.kl(inputs_p[:, leaf.inputs], inputs_q[:, leaf.inputs])
            for leaf, part in self._parts
        )

    @staticmethod
    def _leaf_actions(leaf: ActionLeaf, actions: Tensor) -> Tensor:
        columns = actions[:, leaf.columns]
        if not leaf.categories:
            return columns
        # A category counted in float32 is exact below 2**24.
        indices = columns.long()
        return indices.squeeze(-1) if leaf.kind == "categorical" else indices


DISTRIBUTIONS: dict[str, Callable[[Any], Distribution]] = {
    "categorical": Categorical,
    "multi_categorical": MultiCategorical,
    "bernoulli": Bernoulli,
    "gaussian": DiagGaussian,
}
"""Kind of an action leaf -> its distribution, constructed with `ActionLeaf.size`."""


def build_distribution(space: gym.Space[Any]) -> Distribution:
    """The distribution for an action space; raises as `action_layout` does."""
    layout = action_layout(space)
    if layout.nested:
        return Product(layout.leaves)
    return DISTRIBUTIONS[layout.leaves[0].kind](layout.leaves[0].size)


def _pick(logp: Tensor, actions: Tensor) -> Tensor:
    return logp.gather(-1, actions.unsqueeze(-1)).squeeze(-1)


def _columns(rows: Array) -> Array:
    """``[N, P]`` as contiguous ``[P, N]``: sums over few columns take a third of the time."""
    return np.ascontiguousarray(rows.T)


def _log_softmax(inputs: Array) -> Array:
    """The log-softmax of each row of ``[N, P]``, as ``[P, N]``."""
    columns = _columns(inputs)
    shifted: Array = columns - columns.max(0)
    shifted -= np.log(np.exp(shifted).sum(0))
    return shifted


def _categorical_entropy(logp: Tensor) -> Tensor:
    return -(logp.exp() * logp).sum(-1)


def _sum(parts: Iterable[Tensor]) -> Tensor:
    """The sum of independent dimensions' numbers, each [N]."""
    return torch.stack(tuple(parts)).sum(0)


def squashed_sample(inputs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Samples of a normal distribution squashed into (-1, 1) by tanh, and their log-probabilities.

        u = mean + std * noise      the sample before squashing
        a = tanh(u)                 the action, which gradients flow through
        log pi(a|s) = sum log N(u; mean, std) - sum log (1 - tanh(u)^2)

    (Haarnoja et al. 2018, appendix C.) The second sum is computed from u, as the sum of
    ``2 (log 2 - u - softplus(-2 u))``, which is finite for any u: tanh has no inverse near +-1.

    Args:
        inputs: A means, then A log standard deviations, ``[N, 2 A]``; the latter are clipped here.
        noise: standard normal, ``[N, A]``.

    Returns:
        Actions ``[N, A]`` and log pi(a|s) ``[N]``, in the units of the squashed action.
    """
    mean, log_std = inputs.chunk(2, -1)
    log_std = log_std.clamp(*LOG_STD_BOUNDS)
    unsquashed = torch.addcmul(mean, log_std.exp(), noise)
    log_volume = log_std + 2.0 * (_LOG_2 - unsquashed - functional.softplus(-2.0 * unsquashed))
    logp = -(0.5 * noise.square() + log_volume).sum(-1) - 0.5 * _LOG_2PI * noise.shape[-1]
    return unsquashed.tanh(), logp


def squashed_sample_vjp(
    inputs: Array, noise: Array
) -> tuple[Array, Array, Callable[[Array, float], Array]]:
    """`squashed_sample` without autograd, in numpy.

    Returns:
        Its actions and log-probabilities, and the backward pass: a function of their gradients,
        ``[N, A]`` and one number for all rows, which returns the gradient of ``inputs``.
    """
    mean, unbounded = np.split(inputs, 2, -1)
    log_std = unbounded.clip(*LOG_STD_BOUNDS)
    std = np.exp(log_std)
    unsquashed = mean + std * noise
    actions = np.tanh(unsquashed)
    log_volume = log_std + 2.0 * (
        _LOG_2 - unsquashed - np.logaddexp(np.float32(0.0), -2.0 * unsquashed)
    )
    logp = -(0.5 * noise**2 + log_volume).sum(-1) - 0.5 * _LOG_2PI * noise.shape[-1]

    def backward(d_actions: Array, d_logp: float) -> Array:
        # of tanh, and of -log(1 - tanh(u)^2), whose derivative is 2 tanh(u)
        d_mean = d_actions * (1.0 - actions**2) + 2.0 * d_logp * actions
        d_log_std = np.where(log_std == unbounded, d_mean * std * noise - d_logp, np.float32(0.0))
        return np.concatenate((d_mean, d_log_std), -1)

    return actions, logp, backward
