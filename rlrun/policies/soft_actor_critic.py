"""The networks of SAC: a policy, and two critics that are computed as one.

The parameter names of the policy are a contract with `sac_policy`, which acts with the same vector
in numpy: ``pi.<i>``, or ``encoder`` and ``pi.<i>`` for images and users' own encoders.

    N  rows of a batch      A  dimensions of a continuous action      n  discrete actions
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor, nn

from rlrun.config.registry import import_object
from rlrun.config.schema import ModelConfig
from rlrun.data import columns as col
from rlrun.policies.networks import ACTIVATIONS, HIDDEN_GAIN, MLP
from rlrun.policies.rl_module import (
    POLICY_GAIN,
    VALUE_GAIN,
    RLModule,
    TensorBatch,
    as_features,
    box_of,
    default_encoder,
    output_size,
    wants_conv,
)


class SACPolicyNetwork(RLModule):
    """From observations to action distribution inputs, which for a Box are means and log stds."""

    def __init__(
        self, observation_space: gym.Space[Any], action_space: gym.Space[Any], model: ModelConfig
    ) -> None:
        super().__init__(observation_space, action_space, model)
        self.encoder, width = encoder_of(observation_space, model)
        sizes = [width, *model.hidden, self.distribution.num_inputs]
        self.pi = MLP(sizes, model.activation, output_gain=POLICY_GAIN)
        self._flatten = self.encoder is None

    def forward_train(self, batch: TensorBatch) -> dict[str, Tensor]:
        """``action_dist_inputs`` ``[N, P]``."""
        obs = as_features(batch[col.OBS], flatten=self._flatten)
        return {col.ACTION_DIST_INPUTS: self.pi(obs if self.encoder is None else self.encoder(obs))}


class TwinQNetwork(RLModule):
    """Two critics (Fujimoto et al. 2018), whose smaller value is believed.

    ``q_values`` are ``[2, N]`` for the actions given, or ``[2, N, n]`` for all discrete ones.
    """

    def __init__(
        self, observation_space: gym.Space[Any], action_space: gym.Space[Any], model: ModelConfig
    ) -> None:
        super().__init__(observation_space, action_space, model)
        self._discrete = isinstance(action_space, gym.spaces.Discrete)
        self.encoder, width = encoder_of(observation_space, model)
        self._flatten = self.encoder is None
        num_actions = self.distribution.num_inputs
        sizes = (
            [width, *model.hidden, num_actions]
            if self._discrete
            else [width + num_actions // 2, *model.hidden, 1]
        )
        self.q = TwinMLP(sizes, model.activation, output_gain=VALUE_GAIN)

    def forward_train(self, batch: TensorBatch) -> dict[str, Tensor]:
        """``q_values`` of ``obs`` and, for a Box, ``actions`` ``[N, A]``."""
        obs = as_features(batch[col.OBS], flatten=self._flatten)
        features = obs if self.encoder is None else self.encoder(obs)
        if self._discrete:
            return {Q_VALUES: self.q(features)}
        return {Q_VALUES: self.q(torch.cat((features, batch[col.ACTIONS]), dim=1)).squeeze(-1)}


Q_VALUES = "q_values"


class TwinMLP(nn.Module):
    """Two MLPs of the same shape side by side, ``[N, in] -> [2, N, out]``: half the calls.

    Args:
        sizes: widths from input to output.
        activation: a key of ``ACTIVATIONS``.
        output_gain: orthogonal gain of the last layer.
    """

    def __init__(self, sizes: list[int], activation: str, *, output_gain: float) -> None:
        super().__init__()
        self._activation = ACTIVATIONS[activation]
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for i, (num_inputs, num_outputs) in enumerate(pairwise(sizes)):
            gain = HIDDEN_GAIN if i < len(sizes) - 2 else output_gain
            weight = torch.empty(2, num_inputs, num_outputs)
            for half in weight:
                nn.init.orthogonal_(half, gain)
            self.weights.append(nn.Parameter(weight))
            self.biases.append(nn.Parameter(torch.zeros(2, 1, num_outputs)))

    def forward(self, x: Tensor) -> Tensor:
        """[N, in] -> [2, N, out]."""
        x = x.expand(2, *x.shape)
        layers = list(zip(self.biases, self.weights, strict=True))
        for bias, weight in layers[:-1]:
            x = self._activation(torch.baddbmm(bias, x, weight))
        bias, weight = layers[-1]
        return torch.baddbmm(bias, x, weight)


def encoder_of(space: gym.Space[Any], model: ModelConfig) -> tuple[nn.Module | None, int]:
    """What comes before the MLP, for images or by the user's choice, and the MLP's input width.

    Raises:
        TypeError: when ``model.use`` names something else than an encoder.
    """
    if model.use is None:
        if not wants_conv(space, model):
            return None, gym.spaces.flatdim(box_of(space))
        encoder = default_encoder(space, model)
        return encoder, output_size(encoder)
    factory = import_object(model.use)
    if isinstance(factory, type) and issubclass(factory, RLModule):
        raise TypeError(
            f"model.use: SAC has a policy and two critics, which one RLModule cannot be; let "
            f"{model.use} be a torch.nn.Module that encodes observations"
        )
    encoder = factory(space, **model.kwargs)
    return encoder, output_size(encoder)
