"""QNetwork and RecurrentQNetwork: action values for Discrete actions.

Owns the computation on the layers of `layers.q_network`; `q_policy` acts with the same vector in
numpy, if observations are flat. Must not know how values are learned.

    N  rows of a batch      n  actions      K  atoms of a value's distribution
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rlrun.config.problems import misfit
from rlrun.config.schema import ModelConfig
from rlrun.data import columns as col
from rlrun.data.column_data import Array
from rlrun.policies.action_sampling import log_softmax
from rlrun.policies.layers import QOptions, q_network, q_streams
from rlrun.policies.networks import MLP
from rlrun.policies.policy import state_views
from rlrun.policies.recurrent import RecurrentActorCritic
from rlrun.policies.rl_module import (
    EncoderInput,
    RLModule,
    TensorBatch,
    box_of,
    encoder_of,
    flat_features,
    own_module,
)

ATOM_LOGITS = "atom_logits"


def dueling_values(value: Tensor, advantages: Tensor) -> Tensor:
    """``V + A - mean(A)``, ``[N, n]``, for V ``[N, 1]`` and A ``[N, n]`` (Wang et al., eq. 9).

    The mean is taken over actions; the numbers may end in atoms, ``[..., K]``.
    """
    return value + advantages - advantages.mean(dim=1, keepdim=True)


class QNetwork(RLModule):
    """Q(s, a) of all actions at once; ``action_dist_inputs`` [N, n] are these values.

    Dueling (Wang et al. 2016, eq. 9) adds a state's value to its advantages, less their mean.

    With K > 1 atoms a value is the mean of a categorical distribution over K points (C51), whose
    logits ``atom_logits`` [N, n, K] come along in `forward_train`. With ``options.noisy`` the
    layers after the encoder have noisy weights, whose noise `draw_noise` draws.

    Attributes:
        support: the K points, ``[K]``.
    """

    support: Tensor
    q: MLP
    advantage: MLP
    value: MLP

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        model: ModelConfig,
        options: QOptions | None = None,
    ) -> None:
        super().__init__(observation_space, action_space, model)
        self.options = options = options or QOptions()
        self.noisy = options.noisy
        self._num_actions = self.distribution.num_inputs
        self._encoder_input = EncoderInput(observation_space, model)
        if self._encoder_input.flatten:
            num_features = gym.spaces.flatdim(box_of(observation_space))
            branches = dict(q_network(num_features, self._num_actions, model, options).branches)
            self.encoder: Any = MLP(branches.pop("encoder"))
        else:
            self.encoder, width = encoder_of(observation_space, model, "uniform")
            sizes = (width, width) if options.dueling and options.hiddens is None else (width,)
            branches = q_streams(sizes, self._num_actions, model, options)
        for name, layers in branches.items():
            self.add_module(name, MLP(layers))
        self.register_buffer("support", torch.from_numpy(options.support), persistent=False)
        self._is_written_out = (
            type(self) is QNetwork  # a subclass may compute something else
            and self._encoder_input.flatten
        )

    @property
    def has_vjp(self) -> bool:
        stream = self.value if self.options.dueling else self.q
        return self._is_written_out and self.encoder.has_vjp and stream.has_vjp

    def draw_noise(self, rng: np.random.Generator) -> None:
        for part in self.children():
            if isinstance(part, MLP):
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

    def vjp(self, batch: Mapping[str, Array]) -> tuple[Any, ...]:
        """Values [N, n] in numpy, and the way back from their gradient to the parameters'.

        With K > 1 atoms their logits [N, n, K] are between the two, and the way back is from the
        gradient of the logits. Only if `has_vjp`.
        """
        obs, num_atoms = flat_features(batch[col.OBS]), self.options.num_atoms
        size, num_actions = len(obs), self._num_actions
        shape = (size, num_actions) if num_atoms == 1 else (size, num_actions, num_atoms)
        features, encoder_backward = self.encoder.vjp(obs)
        if self.options.dueling:
            value, value_backward = self.value.vjp(features)
            advantages, advantage_backward = self.advantage.vjp(features)
            advantages = advantages.reshape(shape)
            value = value if num_atoms == 1 else value[:, None]
            outputs = value + advantages - advantages.mean(1, keepdims=True)

            def backward(gradient: Array) -> None:
                d_value = gradient.sum(1, keepdims=True)
                d_advantages = gradient - d_value / num_actions
                encoder_backward(
                    value_backward(d_value.reshape(size, -1), to_input=True)
                    + advantage_backward(d_advantages.reshape(size, -1), to_input=True)
                )

        else:
            outputs, q_backward = self.q.vjp(features)
            outputs = outputs.reshape(shape)
            has_encoder = self.options.hiddens is not None

            def backward(gradient: Array) -> None:
                d_features = q_backward(gradient.reshape(size, -1), to_input=has_encoder)
                if has_encoder:
                    encoder_backward(d_features)

        if num_atoms == 1:
            return outputs, backward
        return np.exp(log_softmax(outputs)) @ self.support.numpy(), outputs, backward

    def _outputs(self, batch: TensorBatch, *, noisy: bool) -> Tensor:
        """Values [N, n], or logits [N, n, K]."""
        features = self.encoder(self._encoder_input(batch[col.OBS], self.encoder))
        if not self.options.dueling:
            return self._by_action(self.q(features, noisy=noisy))
        value = self.value(features, noisy=noisy)
        advantages = self.advantage(features, noisy=noisy)
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


class RecurrentQNetwork(RecurrentActorCritic):
    """Q(s, a) of all actions at once; ``action_dist_inputs`` [M, n] are these values.

    The heads are an actor-critic's: with dueling, the value head is the state's value and
    the other one the advantages. States have a row for each step of a batch, since replay may begin
    a sequence anywhere.
    """

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        model: ModelConfig,
        *,
        dueling: bool,
    ) -> None:
        super().__init__(observation_space, action_space, model)
        self.dueling = dueling
        views = state_views(self.initial_state(), 1)
        self.view_requirements = {**views, **self.view_requirements}

    def forward_train(self, batch: TensorBatch) -> dict[str, Tensor]:
        """``action_dist_inputs`` [M, n]: the values of all actions."""
        features, _ = self.remember(batch)
        return {col.ACTION_DIST_INPUTS: self.dist_inputs(features)}

    def dist_inputs(self, features: Tensor) -> Tensor:
        values = self.heads.dist_inputs(features)
        if not self.dueling:
            return values
        return dueling_values(self.heads.values(features)[:, None], values)


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
    if (named := own_module(model)) is not None:
        made = named(observation_space, action_space, model, **model.arguments())
        _check_own_network(made, model, options)
        return made
    if model.use_lstm or model.use_gru:
        return RecurrentQNetwork(observation_space, action_space, model, dueling=options.dueling)
    return QNetwork(observation_space, action_space, model, options)


def _check_own_network(made: RLModule, model: ModelConfig, options: QOptions) -> None:
    """Raise ConfigError for settings that do not shape it, and inputs that are not replayed."""
    shaping = {
        "num_atoms": options.num_atoms > 1,
        "noisy": options.noisy,
        "hiddens": options.hiddens is not None,
    }
    for name in (name for name, is_set in shaping.items() if is_set):
        message = f"it does not apply to {model.use}; remove this key, or name an encoder"
        raise misfit(f"training.{name}", f"{message} with model.use")
    views = {name for name, view in made.view_requirements.items() if view.is_acted_on(name)}
    remembers = views != {col.OBS} or made.initial_state()
    if remembers and not (model.use_lstm or model.use_gru):
        message = f"{model.use} has states or views of other steps, but replayed transitions have"
        raise misfit("model.use", f"{message} only the present observation")
