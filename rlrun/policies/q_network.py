"""QNetwork: action values for Discrete actions, and the torch policy that acts by them.

    N  rows of a batch      n  actions      K  atoms of a value's distribution

The parameter names are a contract with `q_policy`, which acts with the same vector in numpy:
``q.<i>``, or with dueling ``encoder.<i>``, ``advantage.<i>`` and ``value.<i>``; networks for images
and users' own encoders have an ``encoder`` in either case.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from rlrun.config.registry import import_object
from rlrun.config.schema import ModelConfig
from rlrun.data import columns as col
from rlrun.policies.networks import (
    IN_PLACE,
    MLP,
    UNIFORM,
    ConvEncoder,
    dueling_values,
    is_image,
)
from rlrun.policies.noisy import NoisyMLP
from rlrun.policies.q_options import QOptions
from rlrun.policies.recurrent_q import RecurrentQNetwork
from rlrun.policies.rl_module import RLModule, TensorBatch, as_features
from rlrun.policies.torch_policy import TorchPolicy

VALUE_GAIN = 1.0
ATOM_LOGITS = "atom_logits"


class QNetwork(RLModule):
    """Q(s, a) of all actions at once; ``action_dist_inputs`` [N, n] are these values.

    Dueling (Wang et al. 2016, eq. 9) adds a state's value to its advantages, less their mean. Each
    of the two streams has the last hidden layer for itself: with linear streams on shared features
    the sum would be one linear layer like any other.

    With K > 1 atoms a value is the mean of a categorical distribution over K points (C51), whose
    logits ``atom_logits`` [N, n, K] come along in `forward_train`. What follows the encoder has
    noisy weights if ``options.noisy`` says so: `draw_noise` renews them.

    Attributes:
        support: the K points, ``[K]``.
    """

    support: Tensor

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        model: ModelConfig,
        options: QOptions | None = None,
    ) -> None:
        super().__init__(observation_space, action_space, model)
        self.options = options = options or QOptions()
        self._num_actions = self.distribution.num_inputs
        features = gym.spaces.flatdim(observation_space)
        encoder = self._encoder_of_images_or_users(observation_space, model)
        self._flatten = encoder is None
        if encoder is not None:
            width = int(encoder.output_size)
            trunk, sizes = encoder, [width, width] if options.dueling else [width]
        elif options.dueling:
            trunk = MLP([features, *model.hidden[:-1]], model.activation, init=UNIFORM)
            sizes = [trunk.output_size, *model.hidden[-1:]]
        else:
            trunk, sizes = nn.Identity(), [features, *model.hidden]
        self.encoder = trunk
        num_outputs = self._num_actions * options.num_atoms
        if options.dueling:
            self.advantage = self._head([*sizes, num_outputs])
            self.value = self._head([*sizes, options.num_atoms])
        else:
            self.q = self._head([*sizes, num_outputs])
        self.register_buffer("support", torch.from_numpy(options.support), persistent=False)
        self.has_vjp = (
            type(self) is QNetwork  # a subclass may compute something else
            and encoder is None
            and not options.noisy
            and options.num_atoms == 1
            and model.activation in IN_PLACE
        )

    def _head(self, sizes: list[int]) -> nn.Module:
        activation = self.model.activation
        if self.options.noisy:
            return NoisyMLP(sizes, activation, sigma=self.options.sigma0)
        return MLP(sizes, activation, output_gain=VALUE_GAIN, init=UNIFORM)

    @staticmethod
    def _encoder_of_images_or_users(space: gym.Space[Any], model: ModelConfig) -> Any:
        if model.use is not None:
            return import_object(model.use)(space, **model.kwargs)
        if model.conv is None and not is_image(space.shape or ()):
            return None
        return ConvEncoder(space.shape or (), model.conv, model.conv_head, UNIFORM)

    def draw_noise(self, rng: np.random.Generator) -> None:
        """Renew the noise of all noisy layers; does nothing without any."""
        for part in self.children():
            if isinstance(part, NoisyMLP):
                part.draw_noise(rng)

    def forward_train(self, batch: TensorBatch) -> dict[str, Tensor]:
        """``action_dist_inputs`` [N, n]: the values of all actions; ``atom_logits`` if K > 1."""
        outputs = self._outputs(batch, noisy=True)
        if self.options.num_atoms == 1:
            return {col.ACTION_DIST_INPUTS: outputs}
        return {col.ACTION_DIST_INPUTS: self._means(outputs), ATOM_LOGITS: outputs}

    def forward_exploration(self, batch: TensorBatch) -> dict[str, Tensor]:
        """``action_dist_inputs`` [N, n] under the present noise."""
        return {col.ACTION_DIST_INPUTS: self._means(self._outputs(batch, noisy=True))}

    def forward_inference(self, batch: TensorBatch) -> dict[str, Tensor]:
        """``action_dist_inputs`` [N, n] without noise."""
        return {col.ACTION_DIST_INPUTS: self._means(self._outputs(batch, noisy=False))}

    def vjp(self, batch: TensorBatch) -> tuple[Tensor, Callable[[Tensor], object]]:
        """Values [N, n] without autograd, and what turns their gradient into the parameters'.

        Only if `has_vjp`.
        """
        obs = as_features(batch[col.OBS], flatten=True)
        if not self.options.dueling:
            assert isinstance(self.q, MLP)
            return self.q.vjp(obs)
        assert isinstance(self.encoder, MLP)
        assert isinstance(self.value, MLP)
        assert isinstance(self.advantage, MLP)
        features, encoder_backward = self.encoder.vjp(obs)
        value, value_backward = self.value.vjp(features)
        advantages, advantage_backward = self.advantage.vjp(features)

        def dueling_backward(gradient: Tensor) -> None:
            d_value = gradient.sum(1, keepdim=True)
            d_advantages = gradient - d_value / self._num_actions
            encoder_backward(
                value_backward(d_value, to_input=True)
                + advantage_backward(d_advantages, to_input=True)
            )

        return dueling_values(value, advantages), dueling_backward

    def _outputs(self, batch: TensorBatch, *, noisy: bool) -> Tensor:
        """Values [N, n], or logits [N, n, K]."""
        features = self.encoder(as_features(batch[col.OBS], flatten=self._flatten))
        # What has no noise takes no switch.
        switch = {} if noisy or not self.options.noisy else {"noisy": False}
        if not self.options.dueling:
            return self._by_action(self.q(features, **switch))
        value, advantages = self.value(features, **switch), self.advantage(features, **switch)
        if self.options.num_atoms > 1:
            value = value.unsqueeze(1)
        return dueling_values(value, self._by_action(advantages))

    def _by_action(self, outputs: Tensor) -> Tensor:
        if self.options.num_atoms == 1:
            return outputs
        return outputs.unflatten(1, (self._num_actions, self.options.num_atoms))

    def _means(self, outputs: Tensor) -> Tensor:
        if self.options.num_atoms == 1:
            return outputs
        return outputs.softmax(-1) @ self.support


class TorchQPolicy(TorchPolicy):
    """Acts by a network of which each fragment gets noise of its own."""

    draws_for_fragments = True

    def begin_fragment(self, rng: np.random.Generator) -> None:
        if isinstance(self.module, QNetwork):
            self.module.draw_noise(rng)


def build_q_network(
    observation_space: gym.Space[Any],
    action_space: gym.Space[Any],
    model: ModelConfig,
    *,
    options: QOptions,
) -> RLModule:
    """The Q-network that a `model` section describes.

    ``model.use`` names an `RLModule` subclass that puts action values out as
    ``action_dist_inputs``, or a ``torch.nn.Module`` that only encodes.
    """
    if model.use is not None:
        named = import_object(model.use)
        if isinstance(named, type) and issubclass(named, RLModule):
            if options.num_atoms > 1 or options.noisy:
                raise TypeError(
                    "training.num_atoms and training.noisy shape rlrun's own Q-network: they do "
                    f"nothing for {model.use}; leave them out, or name an encoder with model.use"
                )
            return named(observation_space, action_space, model, **model.kwargs)
    if model.use_lstm or model.use_gru:
        return RecurrentQNetwork(observation_space, action_space, model, dueling=options.dueling)
    return QNetwork(observation_space, action_space, model, options)
