"""The networks of SAC: a policy, and two critics that are computed as one.

The parameter names of the policy are a contract with `sac_policy`, which acts with the same vector
in numpy: ``pi.<i>``, or ``encoder`` and ``pi.<i>`` for images and users' own encoders.

    N  rows of a batch      A  dimensions of a continuous action      n  discrete actions
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor, nn

from rlrun.config.registry import import_object
from rlrun.config.schema import ModelConfig
from rlrun.data import columns as col
from rlrun.policies.networks import ACTIVATIONS, IN_PLACE, MLP, ORTHOGONAL, Backward
from rlrun.policies.rl_module import (
    POLICY_GAIN,
    VALUE_GAIN,
    RLModule,
    TensorBatch,
    as_features,
    box_of,
    default_encoder,
    output_size,
    set_log_std_bias,
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
        set_log_std_bias(self.pi.last, action_space, model.log_std_init)
        self._flatten = self.encoder is None
        self.has_vjp = self._flatten and self.pi.has_vjp

    def forward_train(self, batch: TensorBatch) -> dict[str, Tensor]:
        """``action_dist_inputs`` ``[N, P]``."""
        obs = as_features(batch[col.OBS], flatten=self._flatten)
        return {col.ACTION_DIST_INPUTS: self.pi(obs if self.encoder is None else self.encoder(obs))}

    def vjp(self, batch: TensorBatch) -> tuple[Tensor, Backward]:
        """``action_dist_inputs`` ``[N, P]`` without autograd, as `MLP.vjp`; only if `has_vjp`."""
        return self.pi.vjp(as_features(batch[col.OBS], flatten=True))


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
        self.has_vjp = self._flatten and not self._discrete and model.activation in IN_PLACE

    def forward_train(self, batch: TensorBatch) -> dict[str, Tensor]:
        """``q_values`` of ``obs`` and, for a Box, ``actions`` ``[N, A]``."""
        obs = as_features(batch[col.OBS], flatten=self._flatten)
        features = obs if self.encoder is None else self.encoder(obs)
        if self._discrete:
            return {Q_VALUES: self.q(features)}
        return {Q_VALUES: self.q(torch.cat((features, batch[col.ACTIONS]), dim=1)).squeeze(-1)}

    def vjp(self, batch: TensorBatch) -> tuple[Tensor, TwinBackward]:
        """``q_values`` ``[2, N]`` of a Box without autograd, as `TwinMLP.vjp`; only if `has_vjp`.

        What comes before the parameters are observations and actions, ``[N, O + A]``.
        """
        obs = as_features(batch[col.OBS], flatten=True)
        values, backward = self.q.vjp(torch.cat((obs, batch[col.ACTIONS]), dim=1))
        return values.squeeze(-1), backward


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
        self._in_place = IN_PLACE.get(activation)
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for i, (num_inputs, num_outputs) in enumerate(pairwise(sizes)):
            gain = ORTHOGONAL.hidden_gain if i < len(sizes) - 2 else output_gain
            weight = torch.empty(2, num_inputs, num_outputs)
            for half in weight:
                nn.init.orthogonal_(half, gain)
            self.weights.append(nn.Parameter(weight))
            self.biases.append(nn.Parameter(torch.zeros(2, 1, num_outputs)))

    def _layers(self) -> list[tuple[Tensor, Tensor]]:
        """Weight and bias of each layer, read directly: a ParameterList takes a layer's time."""
        weights, biases = self.weights._parameters, self.biases._parameters
        return list(zip(weights.values(), biases.values(), strict=True))  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        """[N, in] -> [2, N, out]."""
        x, layers = x.expand(2, *x.shape), self._layers()
        for weight, bias in layers[:-1]:
            x = self._activation(torch.baddbmm(bias, x, weight))
        return last_layer(x, *layers[-1])

    def vjp(self, x: Tensor) -> tuple[Tensor, TwinBackward]:
        """[N, in] -> [2, N, out] without autograd, and the way back; see `MLP.vjp`."""
        assert self._in_place is not None
        kept, layers = [x.expand(2, *x.shape)], self._layers()
        with torch.no_grad():
            for weight, bias in layers[:-1]:
                kept.append(self._in_place.forward(torch.baddbmm(bias, kept[-1], weight)))
            values = last_layer(kept[-1], *layers[-1])
        return values, TwinBackward(layers, kept, self._in_place.backward)


def last_layer(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """``x weight + bias``, ``[2, N, out]``.

    A product with one column is the worst case of BLAS, which takes five times as long for it as
    for the sum of products that it is.
    """
    if weight.shape[2] > 1:
        return torch.baddbmm(bias, x, weight)
    return torch.linalg.vecdot(x, weight.transpose(1, 2)).unsqueeze(2) + bias


class TwinBackward:
    """The way back through a `TwinMLP` with one output, to its parameters or to its input.

    Args:
        layers: weight and bias of each.
        kept: the input of each.
        derive: the derivative of the activation, from `IN_PLACE`.
    """

    def __init__(
        self,
        layers: Sequence[tuple[Tensor, Tensor]],
        kept: Sequence[Tensor],
        derive: Callable[[Tensor, Tensor], None],
    ) -> None:
        self._layers, self._kept, self._derive = layers, kept, derive

    def to_parameters(self, gradient: Tensor) -> None:
        """From the gradient of the output, ``[2, N]``, overwrite each parameter's ``.grad``."""
        weight, bias = self._layers[-1]
        of_layer = gradient.unsqueeze(2)
        assert weight.grad is not None
        # As a row times a matrix: the transposed product takes ten times as long.
        torch.bmm(of_layer.mT, self._kept[-1], out=weight.grad.mT)
        torch.sum(of_layer, 1, keepdim=True, out=bias.grad)
        of_layer = of_layer * weight.mT
        for i in reversed(range(len(self._layers) - 1)):
            weight, bias = self._layers[i]
            self._derive(of_layer, self._kept[i + 1])
            torch.bmm(self._kept[i].mT, of_layer, out=weight.grad)
            torch.sum(of_layer, 1, keepdim=True, out=bias.grad)
            if i > 0:
                of_layer = of_layer.bmm(weight.mT)

    def to_input(self, gradient: Tensor) -> Tensor:
        """From that of the output, ``[2, N]``, that of the input ``[N, in]``; no parameter's.

        Rows without a gradient cost nothing: of the smaller value, that is half of them.
        """
        of_input = torch.zeros_like(self._kept[0][0])
        for half in (0, 1):
            rows = gradient[half].nonzero().squeeze(1)
            of_layer = gradient[half].index_select(0, rows).unsqueeze(1)
            for i in reversed(range(len(self._layers))):
                of_layer = of_layer.mm(self._layers[i][0][half].t())
                if i > 0:
                    self._derive(of_layer, self._kept[i][half].index_select(0, rows))
            of_input.index_add_(0, rows, of_layer)
        return of_input


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
