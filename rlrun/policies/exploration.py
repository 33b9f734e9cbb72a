"""Samplers for the values of `exploration.type`.

Each is made of the noise numbers that its space has anyway, so all are drawn per fragment or
episode from the seed tree, and a run resumes to the bit. Must not import torch.

    type                    actions      what an exploring action is
    StochasticSampling      any          a sample of the policy's distribution
    EpsilonGreedy           Discrete     the best one, or with probability epsilon any
    SoftQ                   Discrete     drawn with probability ~ exp(value / temperature)
    Random                  any          any, whatever the policy says
    GaussianNoise           Box          the policy's mode + scale stddev N(0, 1), clipped
    OrnsteinUhlenbeckNoise  Box          the mode + scale x, with a process x of each episode
    ParameterNoise          Discrete     epsilon-greedy by action values with noise in the weights
                            Box          the mode with noise in the weights (`parameter_noise`)

    N  rows    A  action dimensions    P  distribution inputs or action values
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from rlrun.config.problems import misfit
from rlrun.config.schema import ExplorationConfig
from rlrun.data.column_data import Array
from rlrun.policies.action_sampling import (
    FORBIDDEN,
    ActionSampler,
    CategoricalSampler,
    EpsilonGreedySampler,
    SquashedGaussianSampler,
)

OWN = ExplorationConfig()
"""The algorithm's own way."""


class SoftQSampler(CategoricalSampler):
    """Discrete(n), with probabilities that fall exponentially with the action value.

    Boltzmann exploration (Sutton and Barto 2018, section 2.8). Actions that a mask forbids have
    probability 0 at every temperature.
    """

    temperature = 1.0

    def set_exploration(self, settings: Mapping[str, float]) -> None:
        self.temperature = settings["temperature"]

    def sample(self, inputs: Array, noise: Array) -> Array:
        return super().sample(self._logits(inputs), noise)

    def log_prob(self, inputs: Array, actions: Array) -> Array:
        return super().log_prob(self._logits(inputs), actions)

    def _logits(self, values: Array) -> Array:
        # The best value is 0, so that no quotient is too large for a float.
        shifted = (values - values.max(axis=-1, keepdims=True)) / np.float32(self.temperature)
        return np.where(values > FORBIDDEN, np.maximum(shifted, FORBIDDEN / 2), FORBIDDEN)


class GaussianNoiseSampler(SquashedGaussianSampler):
    """Box: the mode of a squashed normal distribution plus noise of its own, clipped to [-1, 1].

    Args:
        stddev: of the noise at scale 1, in units of half the action's range.
    """

    def __init__(self, num_dimensions: int, stddev: float) -> None:
        super().__init__(num_dimensions)
        self._stddev = stddev
        self.scale = 1.0

    def set_exploration(self, settings: Mapping[str, float]) -> None:
        self.scale = settings["scale"]

    def sample(self, inputs: Array, noise: Array) -> Array:
        actions = self.mode(inputs) + np.float32(self.scale * self._stddev) * noise
        return np.clip(actions, -1.0, 1.0).astype(np.float32, copy=False)

    def log_prob(self, inputs: Array, actions: Array) -> Array:
        raise TypeError("clipped noise has no density")


class ModeSampler(GaussianNoiseSampler):
    """Box: the mode, from weights whose noise is to change it as far as other noise would."""

    @property
    def target_distance(self) -> float:
        """The root mean square of the changes of actions that is aimed for."""
        return self.scale * self._stddev

    def sample(self, inputs: Array, noise: Array) -> Array:
        return self.mode(inputs)


class RandomSampler(ActionSampler):
    """Uniform actions at the start of a run, or always; a sampler's otherwise.

    Both are made of the same noise: the argmax of Gumbel noise is uniform, and so is the
    distribution function of a normal number.

    Args:
        sampler: of Discrete actions, or of a Box in [-1, 1].
        always: whether all actions are uniform.

    Attributes:
        random: whether actions are uniform at present.
    """

    def __init__(self, sampler: ActionSampler, *, always: bool = False) -> None:
        self.sampler, self.random = sampler, always
        self.num_inputs, self.num_noise = sampler.num_inputs, sampler.num_noise
        self.width, self.dtype, self.shape = sampler.width, sampler.dtype, sampler.shape

    def set_exploration(self, settings: Mapping[str, float]) -> None:
        self.random = bool(settings["random"])
        self.sampler.set_exploration(settings)

    def draw(self, rng: np.random.Generator, length: int, slots: int) -> Array:
        return self.sampler.draw(rng, length, slots)

    def sample(self, inputs: Array, noise: Array) -> Array:
        if not self.random:
            return self.sampler.sample(inputs, noise)
        if isinstance(self.sampler, CategoricalSampler):
            return np.where(inputs > FORBIDDEN, noise, FORBIDDEN).argmax(axis=-1)
        # 2 Phi(z) - 1; few enough numbers for a loop.
        uniform = [math.erf(z / math.sqrt(2.0)) for z in noise.ravel().tolist()]
        return np.array(uniform, np.float32).reshape(noise.shape)

    def mode(self, inputs: Array) -> Array:
        return self.sampler.mode(inputs)

    def log_prob(self, inputs: Array, actions: Array) -> Array:
        if not self.random:
            return self.sampler.log_prob(inputs, actions)
        if isinstance(self.sampler, CategoricalSampler):
            return -np.log((inputs > FORBIDDEN).sum(axis=-1)).astype(np.float32)
        return np.full(len(inputs), -self.width * math.log(2.0), np.float32)


def exploring_sampler(
    sampler: ActionSampler, settings: ExplorationConfig, action_space: gym.Space[Any]
) -> ActionSampler:
    """A policy's sampler as `exploration` wants it.

    Args:
        sampler: the algorithm's own.

    Raises:
        ConfigError: the type cannot explore in this action space.
    """
    made = sampler
    is_box = isinstance(sampler, SquashedGaussianSampler)
    is_greedy = isinstance(sampler, EpsilonGreedySampler)
    match settings.type:
        case "SoftQ":
            made = SoftQSampler(sampler.num_inputs)
        case "Random":
            uniform = CategoricalSampler(sampler.num_inputs) if is_greedy else sampler
            made = RandomSampler(uniform, always=True)
        case "GaussianNoise" if is_box:
            made = GaussianNoiseSampler(sampler.width, settings.stddev)
        case "OrnsteinUhlenbeckNoise" if is_box:
            # The process x' = (1 - theta) x + sigma z (Uhlenbeck and Ornstein 1930), as Lillicrap
            # et al. 2016, arXiv:1509.02971, explore with it, begun where it is stationary in each
            # episode. It is a multiple of the process that `Policy.noise_correlation` asks for.
            stationary = settings.sigma / math.sqrt(settings.theta * (2.0 - settings.theta))
            made = GaussianNoiseSampler(sampler.width, stationary)
        case "ParameterNoise" if is_box:
            made = ModeSampler(sampler.width, settings.stddev)
        case "ParameterNoise" if is_greedy:
            pass  # epsilon-greedily, by the values of noisy weights
        case "GaussianNoise" | "OrnsteinUhlenbeckNoise" | "ParameterNoise":
            message = f"{settings.type} cannot draw actions of {action_space}"
            raise misfit("exploration.type", message)
    # Epsilon-greedily, random actions are those with an epsilon of 1.
    if settings.random_steps and not isinstance(made, EpsilonGreedySampler | RandomSampler):
        return RandomSampler(made)
    return made


def lasting_noise(settings: ExplorationConfig) -> float:
    """How much of a step's noise lasts into the next; see `Policy.noise_correlation`."""
    return 1.0 - settings.theta if settings.type == "OrnsteinUhlenbeckNoise" else 0.0


def weight_stddev(settings: ExplorationConfig) -> float | None:
    """See `SamplingPolicy.weight_stddev`."""
    return settings.initial_stddev if settings.type == "ParameterNoise" else None
