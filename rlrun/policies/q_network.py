"""QNetwork: action values for Discrete actions, and the torch policy that acts by them.

    N  rows of a batch      n  actions

The parameter names are a contract with `q_policy`, which acts with the same vector in numpy:
``q.<i>``, or with dueling ``encoder.<i>``, ``advantage.<i>`` and ``value.<i>``; networks for images
and users' own encoders have an ``encoder`` in either case.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import torch
from torch import Tensor, nn

from rlrun.config.registry import import_object
from rlrun.config.schema import ModelConfig
from rlrun.data import columns as col
from rlrun.policies.networks import MLP, ConvEncoder, is_image
from rlrun.policies.rl_module import RLModule, TensorBatch

VALUE_GAIN = 1.0


class QNetwork(RLModule):
    """Q(s, a) of all actions at once; ``action_dist_inputs`` [N, n] are these values.

    Dueling (Wang et al. 2016, eq. 9) adds a state's value to its advantages, less their mean. Each
    of the two streams has the last hidden layer for itself: with linear streams on shared features
    the sum would be one linear layer like any other.

    Args:
        dueling: separate streams for the value of a state and the advantages of its actions.
    """

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        model: ModelConfig,
        *,
        dueling: bool = False,
    ) -> None:
        super().__init__(observation_space, action_space, model)
        self.dueling = dueling
        num_actions = self.distribution.num_inputs
        features = gym.spaces.flatdim(observation_space)
        encoder = self._encoder_of_images_or_users(observation_space, model)
        self._flatten = encoder is None
        if encoder is not None:
            width = int(encoder.output_size)
            trunk, sizes = encoder, [width, width] if dueling else [width]
        elif dueling:
            trunk = MLP([features, *model.hidden[:-1]], model.activation)
            sizes = [trunk.output_size, *model.hidden[-1:]]
        else:
            trunk, sizes = nn.Identity(), [features, *model.hidden]
        self.encoder = trunk
        if dueling:
            self.advantage = MLP([*sizes, num_actions], model.activation, output_gain=VALUE_GAIN)
            self.value = MLP([*sizes, 1], model.activation, output_gain=VALUE_GAIN)
        else:
            self.q = MLP([*sizes, num_actions], model.activation, output_gain=VALUE_GAIN)

    @staticmethod
    def _encoder_of_images_or_users(space: gym.Space[Any], model: ModelConfig) -> Any:
        if model.use is not None:
            return import_object(model.use)(space, **model.kwargs)
        if model.conv is None and not is_image(space.shape or ()):
            return None
        return ConvEncoder(space.shape or (), model.conv, model.conv_head)

    def forward_train(self, batch: TensorBatch) -> dict[str, Tensor]:
        """``action_dist_inputs`` [N, n]: the values of all actions."""
        obs = batch[col.OBS]
        if obs.dtype != torch.float32:
            obs = obs.to(torch.float32) * (1.0 / 255.0 if obs.dtype == torch.uint8 else 1.0)
        features = self.encoder(obs.flatten(1) if self._flatten and obs.dim() > 2 else obs)
        if not self.dueling:
            return {col.ACTION_DIST_INPUTS: self.q(features)}
        return {
            col.ACTION_DIST_INPUTS: dueling_values(self.value(features), self.advantage(features))
        }


def dueling_values(value: Tensor, advantages: Tensor) -> Tensor:
    """``V + A - mean(A)``, ``[N, n]``, for V ``[N, 1]`` and A ``[N, n]`` (Wang et al., eq. 9)."""
    return value + advantages - advantages.mean(dim=-1, keepdim=True)


def build_q_network(
    observation_space: gym.Space[Any],
    action_space: gym.Space[Any],
    model: ModelConfig,
    *,
    dueling: bool,
) -> RLModule:
    """The Q-network that a `model` section describes.

    ``model.use`` names an `RLModule` subclass that puts action values out as
    ``action_dist_inputs``, or a ``torch.nn.Module`` that only encodes.
    """
    if model.use is not None:
        named = import_object(model.use)
        if isinstance(named, type) and issubclass(named, RLModule):
            return named(observation_space, action_space, model, **model.kwargs)
    return QNetwork(observation_space, action_space, model, dueling=dueling)
