"""MLPPolicy: acting in plain numpy with the layers of a network for flat observations.

The weights are the learner's flat vector. Must not import torch: Ray actors act with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from rlrun.config.schema import ModelConfig
from rlrun.data import columns as col
from rlrun.policies.action_sampling import ActionSampler, action_layout, action_sampler
from rlrun.policies.layers import (
    ACTIVATIONS,
    FlatArrays,
    Layout,
    NumpyMLP,
    NumpyNetwork,
    actor_critic_network,
)
from rlrun.policies.policy import Array, NetworkPolicy, Policy


class MLPPolicy(NetworkPolicy):
    """Acts with layers in numpy, by default those of the policy of `ActorCritic`.

    Args:
        observation_space: of the preprocessed observations, flat.
        action_space: of the environment.
        model: the `model` section.
        network: puts distribution inputs or action values out.
        sampler: turns these into actions; by default samples from the action distribution.
        with_logp: whether batches get ``action_logp``.
    """

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        model: ModelConfig,
        *,
        network: NumpyNetwork | None = None,
        sampler: ActionSampler | None = None,
        with_logp: bool = True,
    ) -> None:
        if sampler is None:
            sampler = action_sampler(action_space)
        super().__init__(observation_space, action_space, sampler, with_logp=with_logp)
        if network is None:
            network = actor_network(observation_space, action_space, model)
        self.network = network
        self._weights = network.parameters.vector
        self.draws_for_fragments = network.parameters.network.noisy

    @staticmethod
    def supports(observation_space: gym.Space[Any], model: ModelConfig) -> bool:
        """Whether the default networks would be MLPs, with an activation numpy has."""
        return (
            model.use is None
            and not (model.use_lstm or model.use_gru or model.use_attention)
            and model.activation in ACTIVATIONS
            and observation_space.shape is not None
            and len(observation_space.shape) == 1
        )

    @property
    def layout(self) -> Layout:
        """Where each parameter lies in the weights: name -> (offset, shape)."""
        return self.network.parameters.layout

    @property
    def num_parameters(self) -> int:
        """P, the length of the weights."""
        return len(self._weights)

    def compute_actions(
        self,
        obs_batch: Array,
        state_batches: Sequence[Array] | None = None,
        *,
        explore: bool = True,
        noise: Array | None = None,
    ) -> tuple[Array, list[Array], dict[str, Array]]:
        inputs = self.network(obs_batch, explore)
        if not explore:
            return self.sampler.mode(inputs), [], {col.ACTION_DIST_INPUTS: inputs}
        if noise is None:
            noise = self.sampler.draw(np.random.default_rng(), 1, len(obs_batch))[0]
        return self.sampler.sample(inputs, noise), [], {col.ACTION_DIST_INPUTS: inputs}

    def begin_fragment(self, rng: np.random.Generator) -> None:
        self.network.draw_noise(rng)

    def get_weights(self) -> Array:
        return self._weights.copy()

    def set_weights(self, weights: Array) -> None:
        np.copyto(self._weights, weights)


def actor_network(
    observation_space: gym.Space[Any], action_space: gym.Space[Any], model: ModelConfig
) -> NumpyMLP:
    """The policy's part of `actor_critic_network`."""
    num_features = gym.spaces.flatdim(observation_space)
    network = actor_critic_network(num_features, action_layout(action_space), model)
    branches = ("encoder", "pi_head") if "encoder" in network.branches else ("pi",)
    return NumpyMLP(FlatArrays(network), *branches)


def build_policy(
    observation_space: gym.Space[Any], action_space: gym.Space[Any], model: ModelConfig
) -> Policy:
    """The policy a runner acts with: numpy where the module is the default MLP, torch elsewhere."""
    if MLPPolicy.supports(observation_space, model):
        return MLPPolicy(observation_space, action_space, model)
    from rlrun.policies.torch_policy import TorchPolicy

    return TorchPolicy(observation_space, action_space, model)
