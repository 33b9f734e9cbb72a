"""The networks of SAC: a policy, and two critics that are computed as one.

`sac_policy` acts with the policy's vector in numpy, if observations are flat. Must not know how
they are learned.

    N  rows of a batch      A  dimensions of a continuous action      n  discrete actions
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from rlrun.config.problems import misfit
from rlrun.config.schema import ModelConfig
from rlrun.data import columns as col
from rlrun.data.column_data import Array
from rlrun.policies.action_sampling import action_layout
from rlrun.policies.layers import (
    VALUE_GAIN,
    Layers,
    check_state_noise,
    sac_network,
    value_hidden,
)
from rlrun.policies.networks import Backward, TwinBackward, TwinMLP, mlp
from rlrun.policies.privileged import PolicyInput
from rlrun.policies.rl_module import (
    EncoderInput,
    RLModule,
    TensorBatch,
    box_of,
    encoder_of,
    flat_features,
    flattens,
    own_module,
    policy_outputs,
    set_log_std_bias,
)

Q_VALUES = "q_values"


class SACPolicyNetwork(RLModule):
    """From observations to action distribution inputs, which for a Box are means and log stds."""

    def __init__(
        self, observation_space: gym.Space[Any], action_space: gym.Space[Any], model: ModelConfig
    ) -> None:
        super().__init__(observation_space, action_space, model)
        check_state_noise(action_layout(action_space), model)
        self._policy_input = PolicyInput(observation_space, model.privileged)
        self.encoder, width = _encoder_before(self._policy_input.space, model)
        network = sac_network(width, self.distribution.num_inputs, model)
        self.pi = mlp(network.branches["pi"])
        set_log_std_bias(self.pi.last, action_space, model)
        self._encoder_input = EncoderInput(observation_space, model)

    @property
    def has_vjp(self) -> bool:
        return self.encoder is None and self.pi.has_vjp

    def forward_train(self, batch: TensorBatch) -> dict[str, Tensor]:
        """``action_dist_inputs`` ``[N, P]``, and what else is in `policy_outputs`."""
        obs: Any = batch[col.OBS]
        seen = self._policy_input(obs) if self._policy_input.is_partial else obs
        obs = self._encoder_input(seen, self.encoder)
        return policy_outputs(self.pi, obs if self.encoder is None else self.encoder(obs))

    def vjp(self, batch: Mapping[str, Array]) -> tuple[Array, Backward]:
        """``action_dist_inputs`` ``[N, P]`` without autograd, as `MLP.vjp`; only if `has_vjp`."""
        obs = batch[col.OBS]
        return self.pi.vjp(
            flat_features(self._policy_input(obs) if self._policy_input.is_partial else obs)
        )


class TwinQNetwork(RLModule):
    """Two critics (Fujimoto et al. 2018); the smaller of their values counts.

    ``q_values`` are ``[2, N]`` for the actions given, or ``[2, N, n]`` for all discrete ones.
    """

    def __init__(
        self, observation_space: gym.Space[Any], action_space: gym.Space[Any], model: ModelConfig
    ) -> None:
        super().__init__(observation_space, action_space, model)
        self._discrete = isinstance(action_space, gym.spaces.Discrete)
        self.encoder, width = _encoder_before(observation_space, model)
        self._encoder_input = EncoderInput(observation_space, model)
        actions = action_layout(action_space)
        ends = (width, actions.num_inputs) if self._discrete else (width + actions.num_columns, 1)
        sizes = (ends[0], *value_hidden(model, model.hidden), ends[1])
        self.q = TwinMLP(Layers(sizes, model.activation, VALUE_GAIN, model.init))

    @property
    def has_vjp(self) -> bool:
        return self.encoder is None and not self._discrete and self.q.has_vjp

    def forward_train(self, batch: TensorBatch) -> dict[str, Tensor]:
        """``q_values`` of ``obs`` and, for a Box, ``actions`` ``[N, A]``."""
        obs = self._encoder_input(batch[col.OBS], self.encoder)
        features = obs if self.encoder is None else self.encoder(obs)
        if self._discrete:
            return {Q_VALUES: self.q(features)}
        return {Q_VALUES: self.q(torch.cat((features, batch[col.ACTIONS]), dim=1)).squeeze(-1)}

    def vjp(self, batch: Mapping[str, Array]) -> tuple[Array, TwinBackward]:
        """``q_values`` ``[2, N]`` of a Box without autograd, as `TwinMLP.vjp`; only if `has_vjp`.

        Its input is observations and actions, ``[N, O + A]``.
        """
        obs = flat_features(batch[col.OBS])
        return self.q.vjp(np.concatenate((obs, batch[col.ACTIONS]), axis=1))


def _encoder_before(space: gym.Space[Any], model: ModelConfig) -> tuple[nn.Module | None, int]:
    """The encoder before the MLP, None for flat observations, and the MLP's input width.

    Raises:
        ConfigError: ``model.use`` names something else than an encoder.
    """
    if own_module(model) is not None:
        message = "SAC has a policy and two critics, which one RLModule cannot be; let"
        raise misfit("model.use", f"{message} it be a torch.nn.Module that encodes observations")
    if flattens(space, model):
        return None, gym.spaces.flatdim(box_of(space))
    return encoder_of(space, model, model.init)
