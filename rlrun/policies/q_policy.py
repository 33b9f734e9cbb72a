"""Acting by action values, epsilon-greedily: in numpy for MLPs, with torch for everything else.

Must not import torch: Ray actors act with the numpy policy.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import gymnasium as gym
import numpy as np

from rlrun.config.problems import ConfigError, Origin, Problem
from rlrun.config.schema import ModelConfig
from rlrun.policies.action_sampling import EpsilonGreedySampler
from rlrun.policies.numpy_policy import ACTIVATIONS, Layout, MLPPolicy, layout_of
from rlrun.policies.policy import Array, Policy


class MLPQPolicy(MLPPolicy):
    """Acts with `QNetwork` for flat observations.

    Args:
        dueling: as for the network.
    """

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        model: ModelConfig,
        *,
        dueling: bool,
    ) -> None:
        Policy.__init__(self, observation_space, action_space)
        discrete = require_discrete(action_space)
        self.sampler = EpsilonGreedySampler(discrete)
        self.layout, self.num_parameters = q_layout(
            math.prod(observation_space.shape or ()), int(discrete.n), model, dueling=dueling
        )
        self._activation = ACTIVATIONS[model.activation]
        self._weights = np.zeros(self.num_parameters, dtype=np.float32)
        value = [name for name in self.layout if name.startswith("value.")]
        self._layers = self._chain([name for name in self.layout if name not in value])
        self._value_layers = self._chain(value)
        self._log_std = None
        self._buffers: list[Array] = []

    def _chain(self, names: list[str]) -> list[tuple[Array, Array]]:
        """The layers of these parameters, whose weight and bias come in turn."""
        views = [self._view(name) for name in names]
        return [(w.T, b) for w, b in zip(views[::2], views[1::2], strict=True)]

    def _forward(self, obs: Array) -> Array:
        """Action values ``[B, n]`` for observations ``[B, D]``."""
        values = super()._forward(obs)
        if not self._value_layers:
            return values
        # What the two streams share is everything before the last layers of either.
        num_shared = len(self._layers) - len(self._value_layers)
        x = self._buffers[num_shared - 1] if num_shared else obs
        for weight, bias in self._value_layers[:-1]:
            hidden = np.dot(x, weight) + bias
            x = self._activation(hidden, out=hidden)
        weight, bias = self._value_layers[-1]
        return values - values.mean(axis=1, keepdims=True) + (np.dot(x, weight) + bias)


def require_discrete(space: gym.Space[Any]) -> gym.spaces.Discrete:
    """The space itself; a ConfigError says that there are no action values for any other."""
    if isinstance(space, gym.spaces.Discrete):
        return space
    message = f"action values need a Discrete action space, this environment has {space}"
    raise ConfigError([Problem(Origin("this environment"), "env", message)])


def q_layout(
    num_features: int, num_actions: int, model: ModelConfig, *, dueling: bool
) -> tuple[Layout, int]:
    """Where each parameter of an MLP `QNetwork` lies in the flat vector, and its length."""
    hidden = list(model.hidden)
    if dueling:
        trunk = [num_features, *hidden[:-1]]
        stream = [trunk[-1], *hidden[-1:]]
        branches = {
            "encoder": trunk,
            "advantage": [*stream, num_actions],
            "value": [*stream, 1],
        }
    else:
        branches = {"q": [num_features, *hidden, num_actions]}
    shapes: dict[str, tuple[int, ...]] = {}
    for branch, sizes in branches.items():
        for i, (fan_in, fan_out) in enumerate(pairwise(sizes)):
            shapes[f"{branch}.{i}.weight"] = (fan_out, fan_in)
            shapes[f"{branch}.{i}.bias"] = (fan_out,)
    return layout_of(shapes)


def build_q_policy(
    observation_space: gym.Space[Any],
    action_space: gym.Space[Any],
    model: ModelConfig,
    *,
    dueling: bool,
) -> Policy:
    """The policy a runner acts with: numpy for MLPs, torch elsewhere."""
    discrete = require_discrete(action_space)
    if MLPPolicy.supports(observation_space, model):
        return MLPQPolicy(observation_space, action_space, model, dueling=dueling)
    from rlrun.policies.q_network import build_q_network
    from rlrun.policies.torch_policy import TorchPolicy

    module = build_q_network(observation_space, action_space, model, dueling=dueling)
    sampler = EpsilonGreedySampler(discrete)
    return TorchPolicy(observation_space, action_space, model, module=module, sampler=sampler)
