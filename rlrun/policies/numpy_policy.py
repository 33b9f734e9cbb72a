"""MLPPolicy: the default MLP module, acting in plain numpy.

At the batch sizes of acting (one row per sub-environment) torch spends its time on dispatch: a
forward pass of two 64-unit layers takes numpy a third of it. And a Ray actor that never imports
torch starts a second earlier and is 200 MB smaller. The weights are the learner's flat vector; the
layers here are views into it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import gymnasium as gym
import numpy as np

from rlrun.config.schema import ModelConfig
from rlrun.data import columns as col
from rlrun.policies.action_sampling import GaussianSampler, action_sampler
from rlrun.policies.policy import Array, Policy

Layout = dict[str, tuple[int, tuple[int, ...]]]
"""Name of a parameter -> (offset into the flat vector, shape)."""


_ZERO = np.zeros((), np.float32)  # a Python number would be made an array in each step


def _relu(x: Array, out: Array) -> Array:
    return np.maximum(x, _ZERO, out=out)


def _silu(x: Array, out: Array) -> Array:
    # x * sigmoid(x), through tanh, which cannot overflow.
    return np.multiply(x, 0.5 + 0.5 * np.tanh(0.5 * x), out=out)


ACTIVATIONS: dict[str, Callable[..., Array]] = {
    "tanh": np.tanh,
    "relu": _relu,
    "silu": _silu,
}


class MLPPolicy(Policy):
    """Acts with the policy branch of `ActorCritic` for flat observations."""

    @staticmethod
    def supports(observation_space: gym.Space[Any], model: ModelConfig) -> bool:
        """Whether the default MLP module would be built, with an activation numpy has."""
        return (
            model.use is None
            and not (model.use_lstm or model.use_gru or model.use_attention)
            and model.activation in ACTIVATIONS
            and observation_space.shape is not None
            and len(observation_space.shape) == 1
        )

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        model: ModelConfig,
    ) -> None:
        super().__init__(observation_space, action_space)
        self.sampler = action_sampler(action_space)
        self.layout, self.num_parameters = mlp_layout(
            math.prod(observation_space.shape or ()), action_space, model
        )
        self._activation = ACTIVATIONS[model.activation]
        self._weights = np.zeros(self.num_parameters, dtype=np.float32)
        self._layers = [
            (self._view(f"{name}.weight").T, self._view(f"{name}.bias"))
            for name in policy_layer_names(model)
        ]
        self._log_std = self._view("log_std") if "log_std" in self.layout else None
        self._buffers: list[Array] = []

    def compute_actions(
        self,
        obs_batch: Array,
        state_batches: Sequence[Array] | None = None,
        *,
        explore: bool = True,
        noise: Array | None = None,
    ) -> tuple[Array, list[Array], dict[str, Array]]:
        inputs = self._forward(obs_batch)
        if not explore:
            return self.sampler.mode(inputs), [], {col.ACTION_DIST_INPUTS: inputs}
        if noise is None:
            noise = self.sampler.draw(np.random.default_rng(), 1, len(obs_batch))[0]
        return self.sampler.sample(inputs, noise), [], {col.ACTION_DIST_INPUTS: inputs}

    def draw_noise(self, rng: np.random.Generator, length: int, lanes: int) -> Array:
        return self.sampler.draw(rng, length, lanes)

    def set_exploration(self, settings: Mapping[str, float]) -> None:
        self.sampler.set_exploration(settings)

    def fragment_columns(self, columns: Mapping[str, Array]) -> dict[str, Array]:
        inputs, actions = columns[col.ACTION_DIST_INPUTS], columns[col.ACTIONS]
        return {col.ACTION_LOGP: self.sampler.log_prob(inputs, actions)}

    def get_weights(self) -> Array:
        return self._weights.copy()

    def set_weights(self, weights: Array) -> None:
        np.copyto(self._weights, weights)

    def _view(self, name: str) -> Array:
        offset, shape = self.layout[name]
        return self._weights[offset : offset + math.prod(shape)].reshape(shape)

    def _forward(self, obs: Array) -> Array:
        """Distribution inputs ``[B, P]`` for observations ``[B, D]``."""
        if not self._buffers or len(self._buffers[0]) != len(obs):
            self._buffers = [
                np.empty((len(obs), weight.shape[1]), np.float32) for weight, _ in self._layers[:-1]
            ]
        x = obs
        for (weight, bias), hidden in zip(self._layers, self._buffers, strict=False):
            np.dot(x, weight, out=hidden)
            np.add(hidden, bias, out=hidden)
            x = self._activation(hidden, out=hidden)
        weight, bias = self._layers[-1]
        head = np.dot(x, weight)  # fresh memory: the caller keeps it
        head += bias
        if self._log_std is None:
            return head
        return np.concatenate(
            [head, np.broadcast_to(self._log_std, (len(head), len(self._log_std)))], axis=1
        )


def policy_layer_names(model: ModelConfig) -> list[str]:
    """Parameter prefixes of the policy branch, input to output."""
    depth = len(model.hidden)
    if model.share_layers:
        return [*(f"encoder.{i}" for i in range(depth)), "pi_head"]
    return [f"pi.{i}" for i in range(depth + 1)]


def mlp_layout(
    num_features: int, action_space: gym.Space[Any], model: ModelConfig
) -> tuple[Layout, int]:
    """Where each parameter of the default MLP module lies in the flat vector, and its length."""
    sampler = action_sampler(action_space)
    free_log_std = isinstance(sampler, GaussianSampler) and model.free_log_std
    outputs = sampler.width if free_log_std else sampler.num_inputs
    shapes: dict[str, tuple[int, ...]] = {"log_std": (sampler.width,)} if free_log_std else {}
    trunk = [num_features, *model.hidden]
    if model.share_layers:
        branches = {"encoder": trunk}
        heads = {"pi_head": outputs, "vf_head": 1}
    else:
        branches = {"pi": [*trunk, outputs], "vf": [*trunk, 1]}
        heads = {}
    for branch, sizes in branches.items():
        for i, (fan_in, fan_out) in enumerate(pairwise(sizes)):
            shapes[f"{branch}.{i}.weight"] = (fan_out, fan_in)
            shapes[f"{branch}.{i}.bias"] = (fan_out,)
    for head, fan_out in heads.items():
        shapes[f"{head}.weight"] = (fan_out, trunk[-1])
        shapes[f"{head}.bias"] = (fan_out,)
    return layout_of(shapes)


def layout_of(shapes: Mapping[str, tuple[int, ...]]) -> tuple[Layout, int]:
    """Parameters of these shapes one after another, and how many numbers they are together."""
    layout: Layout = {}
    offset = 0
    for name, shape in shapes.items():
        layout[name] = (offset, shape)
        offset += math.prod(shape)
    return layout, offset


def build_policy(
    observation_space: gym.Space[Any], action_space: gym.Space[Any], model: ModelConfig
) -> Policy:
    """The policy a runner acts with: numpy where the module is the default MLP, torch elsewhere."""
    if MLPPolicy.supports(observation_space, model):
        return MLPPolicy(observation_space, action_space, model)
    from rlrun.policies.torch_policy import TorchPolicy

    return TorchPolicy(observation_space, action_space, model)
