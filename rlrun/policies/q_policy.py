"""Acting by action values: in numpy for MLPs, with torch for everything else.

Noisy weights are drawn when a fragment begins and kept for its length, the same in all slots;
without exploration, and in evaluations, policies act with their means. Must not import torch.

    B  rows    D  features of an observation    n  actions    K  atoms of a value's distribution
"""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np

from rlrun.config.problems import misfit
from rlrun.config.schema import ExplorationConfig, ModelConfig
from rlrun.data.column_data import Array
from rlrun.data.nested import has_action_mask, space_without_mask
from rlrun.policies.action_sampling import (
    IN_OTHER_SPACES,
    ActionSampler,
    EpsilonGreedySampler,
    SamplingPolicy,
)
from rlrun.policies.exploration import OWN, exploring_sampler, weight_stddev
from rlrun.policies.exploration_strategy import exploring
from rlrun.policies.layers import Network, QOptions, q_network
from rlrun.policies.numpy_policy import FlatArrays, MLPPolicy, NumpyMLP
from rlrun.policies.policy import Policy


class NumpyQNetwork:
    """Action values ``[B, n]``: dueling, distributional and with noisy weights as in `QNetwork`."""

    def __init__(self, network: Network, num_actions: int, options: QOptions) -> None:
        self.parameters = FlatArrays(network)
        self._num_actions, self._num_atoms = num_actions, options.num_atoms
        self._support = options.support
        branches = iter(network.branches)
        self._value: NumpyMLP | None = None
        if options.dueling:
            self._encoder, self._outputs, self._value = (
                NumpyMLP(self.parameters, name) for name in branches
            )
        else:
            self._outputs = NumpyMLP(self.parameters, *branches)

    def draw_noise(self, rng: np.random.Generator) -> None:
        """Renew the noise of noisy weights."""
        self._outputs.draw_noise(rng)
        if self._value is not None:
            self._value.draw_noise(rng)

    def __call__(self, obs: Array, noisy: bool) -> Array:
        """Action values for observations ``[B, D]``."""
        features = obs if self._value is None else self._encoder(obs, noisy)
        outputs = self._outputs(features, noisy)
        if self._num_atoms > 1:
            outputs = outputs.reshape(len(obs), self._num_actions, self._num_atoms)
        if self._value is not None:
            value = self._value(features, noisy)
            value = value[:, None] if self._num_atoms > 1 else value
            # Half of what `mean` takes, which is noticed where one row acts.
            mean = np.add.reduce(outputs, axis=1, keepdims=True) / outputs.dtype.type(
                outputs.shape[1]
            )
            outputs = outputs - mean + value
        if self._num_atoms == 1:
            return outputs
        weights = np.exp(outputs - outputs.max(axis=2, keepdims=True))
        return (weights @ self._support) / weights.sum(axis=2)


def build_q_policy(
    observation_space: gym.Space[Any],
    action_space: gym.Space[Any],
    model: ModelConfig,
    *,
    options: QOptions,
    exploration: ExplorationConfig = OWN,
    device: str | None = None,
) -> Policy:
    """The policy a runner acts with: numpy for MLPs, torch elsewhere or on a device that is named.

    Raises:
        ConfigError: the actions are not Discrete.
    """
    if not isinstance(action_space, gym.spaces.Discrete):
        message = f"action values need a Discrete action space, this environment has {action_space}"
        raise misfit("env", f"{message}; {IN_OTHER_SPACES}")
    spaces, num_actions = (observation_space, action_space), int(action_space.n)
    greedy = EpsilonGreedySampler(num_actions, masked=has_action_mask(observation_space))
    sampler: ActionSampler = exploring_sampler(greedy, exploration, action_space)
    if device is None and MLPPolicy.supports(observation_space, model):
        num_features = gym.spaces.flatdim(space_without_mask(observation_space))
        layers = q_network(num_features, num_actions, model, options)
        network = NumpyQNetwork(layers, num_actions, options)
        policy: SamplingPolicy = MLPPolicy(*spaces, model, network=network, sampler=sampler)
    else:
        from rlrun.policies.masked_module import with_action_mask
        from rlrun.policies.q_network import build_q_network
        from rlrun.policies.torch_policy import TorchPolicy

        module = with_action_mask(partial(build_q_network, options=options), *spaces, model)
        policy = TorchPolicy(*spaces, model, module=module, sampler=sampler, device=device or "cpu")
    policy.weight_stddev = weight_stddev(exploration)
    return exploring(policy, exploration)
