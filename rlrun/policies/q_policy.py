"""Acting by action values, epsilon-greedily: in numpy for MLPs, with torch for everything else.

Must not import torch: Ray actors act with the numpy policy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import gymnasium as gym
import numpy as np

from rlrun.config.problems import ConfigError, Origin, Problem
from rlrun.config.schema import ModelConfig
from rlrun.policies.action_sampling import EpsilonGreedySampler
from rlrun.policies.noise import factorised_noise
from rlrun.policies.numpy_policy import ACTIVATIONS, Layout, MLPPolicy, layout_of
from rlrun.policies.policy import Array, Policy
from rlrun.policies.q_options import QOptions

Chain = list[tuple[Array, Array]]
"""Layers as ``(weight [in, out], bias [out])``."""


class MLPQPolicy(MLPPolicy):
    """Acts with `QNetwork` for flat observations.

    Noisy weights are drawn when a fragment begins and kept for its length, the same in all lanes;
    without exploration, and in evaluations, the policy acts with their means.

    Args:
        options: as for the network.
    """

    draws_for_fragments = True

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        model: ModelConfig,
        *,
        options: QOptions,
    ) -> None:
        Policy.__init__(self, observation_space, action_space)
        discrete = require_discrete(action_space)
        self.sampler = EpsilonGreedySampler(discrete)
        self.options, self._num_actions = options, int(discrete.n)
        self.layout, self.num_parameters = q_layout(
            math.prod(observation_space.shape or ()), self._num_actions, model, options
        )
        self._activation = ACTIVATIONS[model.activation]
        self._weights = np.zeros(self.num_parameters, dtype=np.float32)
        names = [name.removesuffix(".weight") for name in self.layout if name.endswith(".weight")]
        value = [name for name in names if name.startswith("value.")]
        self._names = [name for name in names if name not in value], value
        self._means = self._chain(self._names[0]), self._chain(value)
        self._noisy = self._means
        self._layers, self._value_layers = self._means
        self._log_std = None
        self._buffers: list[Array] = []

    def _chain(self, names: list[str]) -> Chain:
        return [(self._view(f"{name}.weight").T, self._view(f"{name}.bias")) for name in names]

    def begin_fragment(self, rng: np.random.Generator) -> None:
        if self.options.noisy:
            self._noisy = self._with_noise(0, rng), self._with_noise(1, rng)

    def _with_noise(self, branch: int, rng: np.random.Generator) -> Chain:
        """A chain's weights as this fragment has them."""
        chain: Chain = []
        for name, (weight, bias) in zip(self._names[branch], self._means[branch], strict=True):
            if f"{name}.weight_sigma" not in self.layout:
                chain.append((weight, bias))
                continue
            into, out = factorised_noise(rng, *weight.shape)
            spread = self._view(f"{name}.weight_sigma").T * np.outer(into, out)
            chain.append((weight + spread, bias + self._view(f"{name}.bias_sigma") * out))
        return chain

    def compute_actions(
        self,
        obs_batch: Array,
        state_batches: Sequence[Array] | None = None,
        *,
        explore: bool = True,
        noise: Array | None = None,
    ) -> tuple[Array, list[Array], dict[str, Array]]:
        self._layers, self._value_layers = self._noisy if explore else self._means
        return super().compute_actions(obs_batch, state_batches, explore=explore, noise=noise)

    def _forward(self, obs: Array) -> Array:
        """Action values ``[B, n]`` for observations ``[B, D]``."""
        outputs = super()._forward(obs)
        num_atoms = self.options.num_atoms
        if num_atoms > 1:
            outputs = outputs.reshape(len(obs), self._num_actions, num_atoms)
        if self._value_layers:
            value = self._values(obs)
            value = value[:, None] if num_atoms > 1 else value
            outputs = outputs - outputs.mean(axis=1, keepdims=True) + value
        if num_atoms == 1:
            return outputs
        weights = np.exp(outputs - outputs.max(axis=2, keepdims=True))
        return (weights @ self.options.support) / weights.sum(axis=2)

    def _values(self, obs: Array) -> Array:
        """What the value stream puts out, ``[B, K]``."""
        # What the two streams share is everything before the last layers of either.
        num_shared = len(self._layers) - len(self._value_layers)
        x = self._buffers[num_shared - 1] if num_shared else obs
        for weight, bias in self._value_layers[:-1]:
            hidden = np.dot(x, weight) + bias
            x = self._activation(hidden, out=hidden)
        weight, bias = self._value_layers[-1]
        last: Array = np.dot(x, weight) + bias
        return last


def require_discrete(space: gym.Space[Any]) -> gym.spaces.Discrete:
    """The space itself; a ConfigError says that there are no action values for any other."""
    if isinstance(space, gym.spaces.Discrete):
        return space
    message = f"action values need a Discrete action space, this environment has {space}"
    raise ConfigError([Problem(Origin("this environment"), "env", message)])


def q_layout(
    num_features: int, num_actions: int, model: ModelConfig, options: QOptions
) -> tuple[Layout, int]:
    """Where each parameter of an MLP `QNetwork` lies in the flat vector, and its length."""
    hidden, outputs = list(model.hidden), num_actions * options.num_atoms
    if options.dueling:
        trunk = [num_features, *hidden[:-1]]
        stream = [trunk[-1], *hidden[-1:]]
        branches = {
            "encoder": trunk,
            "advantage": [*stream, outputs],
            "value": [*stream, options.num_atoms],
        }
    else:
        branches = {"q": [num_features, *hidden, outputs]}
    shapes: dict[str, tuple[int, ...]] = {}
    for branch, sizes in branches.items():
        suffixes = ("", "_sigma") if options.noisy and branch != "encoder" else ("",)
        for i, (fan_in, fan_out) in enumerate(pairwise(sizes)):
            for suffix in suffixes:
                shapes[f"{branch}.{i}.weight{suffix}"] = (fan_out, fan_in)
                shapes[f"{branch}.{i}.bias{suffix}"] = (fan_out,)
    return layout_of(shapes)


def build_q_policy(
    observation_space: gym.Space[Any],
    action_space: gym.Space[Any],
    model: ModelConfig,
    *,
    options: QOptions,
) -> Policy:
    """The policy a runner acts with: numpy for MLPs, torch elsewhere."""
    discrete = require_discrete(action_space)
    if MLPPolicy.supports(observation_space, model):
        return MLPQPolicy(observation_space, action_space, model, options=options)
    from rlrun.policies.q_network import TorchQPolicy, build_q_network

    module = build_q_network(observation_space, action_space, model, options=options)
    sampler = EpsilonGreedySampler(discrete)
    return TorchQPolicy(observation_space, action_space, model, module=module, sampler=sampler)
