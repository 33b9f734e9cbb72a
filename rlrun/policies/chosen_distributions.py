"""Distributions that `model.distribution` may choose in place of the default of an action space.

Written once, in torch: `TorchSampler` samples from them when a policy acts, with noise that is
drawn per fragment as for all policies. Owns which distribution a module has. Must not know of
networks or losses.

    N  rows                      P  distribution inputs
    A  action dimensions         K  noise numbers per row

    name               space                        inputs [N, P]        actions [N, ...]
    beta               bounded Box of floats        A of each parameter  float32 [N, A] in (-1, 1)
    squashed_gaussian  bounded Box of floats        means ++ log stds    float32 [N, A] in (-1, 1)
    deterministic      Box of floats                the actions          float32 [N, A]
    autoregressive     several discrete components  logits               as by default
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Beta as TorchBeta
from torch.distributions import kl_divergence
from torch.nn import functional

from rlrun.config.problems import misfit
from rlrun.config.registry import DISTRIBUTIONS, import_object
from rlrun.data.column_data import Array
from rlrun.policies.action_sampling import (
    LOG_STD_BOUNDS,
    ActionSampler,
    SquashedGaussianSampler,
    action_layout,
    action_sampler,
    gumbel,
)
from rlrun.policies.distributions import DiagGaussian, Distribution, build_distribution

_PROPOSALS = 8  # for each gamma variate; one is accepted with a probability of at least 95 %
_INSIDE = 1.0 - 1e-6  # bounded actions keep this far from the bounds, where densities are 0 or inf


def module_distribution(space: gym.Space[Any], choice: str | None) -> Distribution:
    """What ``model.distribution`` chooses for an action space; None is the space's default.

    Raises:
        ConfigError: the distribution cannot be over this space.
        TypeError: the import path names no `Distribution`.
    """
    if choice is None:
        return build_distribution(space)
    kind = import_object(DISTRIBUTIONS.get(choice, choice))
    if not (isinstance(kind, type) and issubclass(kind, Distribution)):
        raise TypeError(f"model.distribution: {choice} is not a subclass of rlrun.Distribution")
    try:
        make: Callable[[gym.Space[Any]], Distribution] = kind
        made = make(space)
    except ValueError as error:
        raise misfit("model.distribution", f"{choice}: {error}") from None
    return made


class TorchSampler(ActionSampler):
    """Samples in numpy arrays from a distribution in torch.

    Args:
        space: of the actions, whose arrays look as by default.
        device: of the distribution's parameters, if it has some.
    """

    def __init__(
        self, distribution: Distribution, space: gym.Space[Any], device: torch.device
    ) -> None:
        default = action_sampler(space)
        self.width, self.dtype, self.shape = default.width, default.dtype, default.shape
        self.num_inputs, self.num_noise = distribution.num_inputs, distribution.num_noise
        self._distribution, self._device = distribution, device

    def draw(self, rng: np.random.Generator, length: int, slots: int) -> Array:
        return self._distribution.draw(rng, length, slots)

    def sample(self, inputs: Array, noise: Array) -> Array:
        return self._to_actions(self._distribution.sample(*self._tensors(inputs, noise)))

    def mode(self, inputs: Array) -> Array:
        return self._to_actions(self._distribution.mode(*self._tensors(inputs)))

    def log_prob(self, inputs: Array, actions: Array) -> Array:
        with torch.no_grad():
            return self._distribution.logp(*self._tensors(inputs, actions)).cpu().numpy()

    def _tensors(self, *arrays: Array) -> list[Tensor]:
        return [torch.from_numpy(np.ascontiguousarray(array)).to(self._device) for array in arrays]

    def _to_actions(self, actions: Tensor) -> Array:
        return actions.detach().cpu().numpy().astype(self.dtype, copy=False)


def sampler_of(
    distribution: Distribution, space: gym.Space[Any], device: torch.device
) -> ActionSampler:
    """The sampler of a module's distribution: in numpy where the distribution has one.

    Raises:
        TypeError: the distribution has neither, or changes one of its base's `logp` and `sample`
            only: what would be learned is not what would be sampled.
    """
    kind = type(distribution)
    if kind.sample is not Distribution.sample and kind.mode is not Distribution.mode:
        return TorchSampler(distribution, space, device)
    owner = next(base for base in kind.__mro__ if "logp" in vars(base))
    if "numpy_sampler" not in vars(owner):
        raise TypeError(
            f"{kind.__name__} must define sample() and mode() beside logp(): actions are sampled "
            "from the distribution that is learned"
        )
    sampler = distribution.numpy_sampler()
    assert sampler is not None
    return sampler


def _num_dimensions(space: gym.Space[Any], *, bounded: bool) -> int:
    """A; raises ValueError if the space is no Box of floats, or has no bounds and is to have."""
    if not isinstance(space, gym.spaces.Box) or space.dtype.kind != "f":
        raise ValueError(f"needs actions in a Box of floats, this environment has {space}")
    if bounded and not space.is_bounded():
        raise ValueError(f"needs actions with bounds, this environment has {space}")
    return math.prod(space.shape)


class SquashedGaussian(Distribution):
    """A bounded Box: a normal distribution squashed into (-1, 1) by tanh."""

    bounded = True

    def __init__(self, space: gym.Space[Any]) -> None:
        self._width = _num_dimensions(space, bounded=True)
        self._gaussian = DiagGaussian(self._width)
        self.num_inputs = self._gaussian.num_inputs
        nodes, weights = np.polynomial.hermite_e.hermegauss(64)
        self._nodes = torch.tensor(nodes)  # [64]
        self._weights = torch.tensor(weights / weights.sum())

    def numpy_sampler(self) -> ActionSampler:
        return SquashedGaussianSampler(self._width)

    def logp(self, inputs: Tensor, actions: Tensor) -> Tensor:
        # In float64, as when acting: float32 has rounded what is close to the bounds.
        actions = actions.double().clamp(-1.0 + 2.0**-24, 1.0 - 2.0**-24)
        gaussian = self._gaussian.logp(self._bounded(inputs).double(), actions.atanh())
        return (gaussian - (-actions.square()).log1p().sum(-1)).to(inputs.dtype)

    def entropy(self, inputs: Tensor) -> Tensor:
        """The normal distribution's entropy [N], and the mean of log(1 - tanh(u)^2).

        By Gauss-Hermite quadrature, since there is no closed form.
        """
        inputs = self._bounded(inputs)
        mean, log_std = inputs.unsqueeze(-1).chunk(2, -2)  # [N, A, 1]
        u = mean + log_std.exp() * self._nodes.to(inputs)
        log_slope = 2.0 * (math.log(2.0) - u - functional.softplus(-2.0 * u))
        return self._gaussian.entropy(inputs) + (log_slope @ self._weights.to(inputs)).sum(-1)

    def kl(self, inputs_p: Tensor, inputs_q: Tensor) -> Tensor:
        """KL(p || q) [N], which squashing leaves as it is between the normal distributions."""
        return self._gaussian.kl(self._bounded(inputs_p), self._bounded(inputs_q))

    @staticmethod
    def _bounded(inputs: Tensor) -> Tensor:
        mean, log_std = inputs.chunk(2, -1)
        return torch.cat((mean, log_std.clamp(*LOG_STD_BOUNDS)), -1)


class Beta(Distribution):
    """A bounded Box: beta distributions over (-1, 1), whose density is 0 at the bounds.

    Both parameters are above 1 (``1 + softplus``), so that there is one mode (Chou et al. 2017).
    """

    bounded = True

    def __init__(self, space: gym.Space[Any]) -> None:
        self._width = _num_dimensions(space, bounded=True)
        self.num_inputs = 2 * self._width
        self.num_noise = self._width * 2 * _PROPOSALS * 2

    def draw(self, rng: np.random.Generator, length: int, slots: int) -> Array:
        """For each proposal a normal number, and the logarithm of a uniform one."""
        shape = length, slots, self.num_noise // 2
        normal = rng.standard_normal(shape, dtype=np.float32)
        return np.concatenate((normal, -rng.standard_exponential(shape, dtype=np.float32)), -1)

    def sample(self, inputs: Tensor, noise: Tensor) -> Tensor:
        shape = len(inputs), 2 * self._width, _PROPOSALS
        normal, log_uniform = (part.reshape(shape) for part in noise.chunk(2, -1))
        first, second = _gamma(self._parameters(inputs), normal, log_uniform).chunk(2, -1)
        return self._inside(2.0 * first / (first + second) - 1.0)

    def mode(self, inputs: Tensor) -> Tensor:
        # alpha - 1 and beta - 1: taken from 1 + softplus they would be 0 below inputs of about
        # -17, and softplus itself is 0 below -104.
        first, second = functional.softplus(inputs.clamp_min(-80.0)).chunk(2, -1)
        return self._inside(2.0 * first / (first + second) - 1.0)

    def logp(self, inputs: Tensor, actions: Tensor) -> Tensor:
        shares = 0.5 * (self._inside(actions) + 1.0)
        return self._beta(inputs).log_prob(shares).sum(-1) - self._width * math.log(2.0)

    def entropy(self, inputs: Tensor) -> Tensor:
        return self._beta(inputs).entropy().sum(-1) + self._width * math.log(2.0)

    def kl(self, inputs_p: Tensor, inputs_q: Tensor) -> Tensor:
        return kl_divergence(self._beta(inputs_p), self._beta(inputs_q)).sum(-1)

    @staticmethod
    def _parameters(inputs: Tensor) -> Tensor:
        return 1.0 + functional.softplus(inputs)

    def _beta(self, inputs: Tensor) -> TorchBeta:
        alpha, beta = self._parameters(inputs).chunk(2, -1)
        return TorchBeta(alpha, beta, validate_args=False)

    @staticmethod
    def _inside(actions: Tensor) -> Tensor:
        return actions.clamp(-_INSIDE, _INSIDE)


def _gamma(concentration: Tensor, normal: Tensor, log_uniform: Tensor) -> Tensor:
    """Gamma variates [N, D] by rejection (Marsaglia & Tsang 2000), for concentrations of 1 or more.

    Args:
        normal, log_uniform: of the proposals, [N, D, R]; the first that is accepted is taken.
    """
    d = concentration.unsqueeze(-1) - 1.0 / 3.0
    v = (1.0 + normal / (9.0 * d).sqrt()).pow(3)
    positive = v.clamp_min(torch.finfo(v.dtype).tiny)
    bound = 0.5 * normal.square() + d * (1.0 - v + positive.log())
    accepted = (v > 0.0) & (log_uniform < bound)
    first = accepted.to(torch.uint8).argmax(-1, keepdim=True)
    return (d * positive).gather(-1, first).squeeze(-1)


class Deterministic(Distribution):
    """Box: the inputs are the actions. Log-probabilities and entropies are 0 and teach nothing."""

    has_logp_gradient = False

    def __init__(self, space: gym.Space[Any]) -> None:
        self.num_inputs, self.num_noise = _num_dimensions(space, bounded=False), 0

    def sample(self, inputs: Tensor, noise: Tensor) -> Tensor:
        return inputs

    def mode(self, inputs: Tensor) -> Tensor:
        return inputs

    def logp(self, inputs: Tensor, actions: Tensor) -> Tensor:
        return inputs.new_zeros(len(inputs))

    def entropy(self, inputs: Tensor) -> Tensor:
        return inputs.new_zeros(len(inputs))


class Autoregressive(Distribution, nn.Module):
    """Several discrete components, each given those before: p(a) = p(a_1) p(a_2 | a_1) ...

    The logits of a component are the network's, and a learned row for each category taken before.
    They start at 0, at independence. A component is a Discrete leaf, or one of a MultiDiscrete.
    """

    def __init__(self, space: gym.Space[Any]) -> None:
        super().__init__()
        layout = action_layout(space)
        self._categories = [n for leaf in layout.leaves for n in leaf.categories]
        if not all(leaf.categories for leaf in layout.leaves) or len(self._categories) < 2:
            raise ValueError(f"needs two discrete actions or more, this environment has {space}")
        self.num_inputs = self.num_noise = sum(self._categories)
        self.given = nn.ParameterList(
            torch.zeros(before, n)
            for before, n in zip(np.cumsum(self._categories), self._categories[1:], strict=False)
        )

    def draw(self, rng: np.random.Generator, length: int, slots: int) -> Array:
        """Gumbel noise, by which the largest logit is a sample."""
        return gumbel(rng, length, slots, self.num_noise)

    def sample(self, inputs: Tensor, noise: Tensor) -> Tensor:
        return self._choose(inputs, noise)

    def mode(self, inputs: Tensor) -> Tensor:
        """The likeliest category of each component, given those before."""
        return self._choose(inputs, torch.zeros_like(inputs))

    def logp(self, inputs: Tensor, actions: Tensor) -> Tensor:
        return self.logp_entropy(inputs, actions)[0]

    def entropy(self, inputs: Tensor) -> Tensor:
        raise TypeError("the entropy of an autoregressive distribution needs the actions taken")

    def logp_entropy(self, inputs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Log pi(a|s), and the entropy along the actions taken, whose mean is the entropy."""
        taken = actions.long()
        logp = entropy = inputs.new_zeros(len(inputs))
        for i, part in enumerate(inputs.split(self._categories, -1)):
            log_softmax = self._logits(part, i, taken).log_softmax(-1)
            logp = logp + log_softmax.gather(-1, taken[:, i, None]).squeeze(-1)
            entropy = entropy - (log_softmax.exp() * log_softmax).sum(-1)
        return logp, entropy

    def _logits(self, part: Tensor, i: int, actions: Tensor) -> Tensor:
        """Logits of component i [N, n], given the actions [N, C] of those before."""
        if not i:
            return part
        before = [functional.one_hot(actions[:, k], n) for k, n in enumerate(self._categories[:i])]
        return part + torch.cat(before, -1).to(part.dtype) @ self.given[i - 1]

    def _choose(self, inputs: Tensor, noise: Tensor) -> Tensor:
        parts = zip(*(x.split(self._categories, -1) for x in (inputs, noise)), strict=True)
        actions = torch.zeros((inputs.shape[0], 0), dtype=torch.int64, device=inputs.device)
        for i, (part, drawn) in enumerate(parts):
            chosen = (self._logits(part, i, actions) + drawn).argmax(-1, keepdim=True)
            actions = torch.cat((actions, chosen), -1)
        return actions
