"""Acting with SAC's policy: in numpy for MLPs, with torch for everything else.

Must not import torch: Ray actors act with the numpy policy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import gymnasium as gym
import numpy as np

from rlrun.config.problems import ConfigError, Origin, Problem
from rlrun.config.schema import ModelConfig
from rlrun.policies.action_sampling import (
    ActionSampler,
    CategoricalSampler,
    SquashedGaussianSampler,
)
from rlrun.policies.numpy_policy import ACTIVATIONS, MLPPolicy, layout_of
from rlrun.policies.policy import Array, Policy


class MLPSACPolicy(MLPPolicy):
    """Acts with `SACPolicyNetwork` for flat observations."""

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        model: ModelConfig,
    ) -> None:
        Policy.__init__(self, observation_space, action_space)
        self.sampler = sac_sampler(action_space)
        features = math.prod(observation_space.shape or ())
        shapes: dict[str, tuple[int, ...]] = {}
        sizes = [features, *model.hidden, self.sampler.num_inputs]
        for i, (fan_in, fan_out) in enumerate(pairwise(sizes)):
            shapes[f"pi.{i}.weight"] = (fan_out, fan_in)
            shapes[f"pi.{i}.bias"] = (fan_out,)
        self.layout, self.num_parameters = layout_of(shapes)
        self._activation = ACTIVATIONS[model.activation]
        self._weights = np.zeros(self.num_parameters, dtype=np.float32)
        self._layers = [
            (self._view(f"pi.{i}.weight").T, self._view(f"pi.{i}.bias"))
            for i in range(len(sizes) - 1)
        ]
        self._log_std = None
        self._buffers: list[Array] = []

    def fragment_columns(self, columns: Mapping[str, Array]) -> dict[str, Array]:
        return {}  # replayed long after, when the policy is another: nobody asks for log_probs


def sac_sampler(space: gym.Space[Any]) -> ActionSampler:
    """How SAC acts in this space; a ConfigError says that it cannot in any other."""
    if isinstance(space, gym.spaces.Discrete):
        return CategoricalSampler(space)
    if isinstance(space, gym.spaces.Box) and space.dtype.kind == "f" and space.is_bounded():
        return SquashedGaussianSampler(space)
    message = f"SAC needs Discrete actions or a bounded Box of floats, this environment has {space}"
    raise ConfigError([Problem(Origin("this environment"), "env", message)])


def build_sac_policy(
    observation_space: gym.Space[Any],
    action_space: gym.Space[Any],
    model: ModelConfig,
    noise_correlation: float = 0.0,
) -> Policy:
    """The policy a runner acts with: numpy for MLPs, torch elsewhere.

    Raises:
        ConfigError: SAC cannot act in this space, or not with noise that lasts.
    """
    sampler = sac_sampler(action_space)
    if noise_correlation and not isinstance(sampler, SquashedGaussianSampler):
        message = f"noise that lasts needs a Box of floats, this environment has {action_space}"
        origin = Origin("this experiment")
        raise ConfigError([Problem(origin, "training.noise_correlation", message)])
    policy = _build(observation_space, action_space, model, sampler)
    policy.noise_correlation = noise_correlation
    return policy


def _build(
    observation_space: gym.Space[Any],
    action_space: gym.Space[Any],
    model: ModelConfig,
    sampler: ActionSampler,
) -> Policy:
    if MLPPolicy.supports(observation_space, model):
        return MLPSACPolicy(observation_space, action_space, model)
    from rlrun.policies.soft_actor_critic import SACPolicyNetwork
    from rlrun.policies.torch_policy import TorchPolicy

    module = SACPolicyNetwork(observation_space, action_space, model)
    return TorchPolicy(observation_space, action_space, model, module=module, sampler=sampler)
