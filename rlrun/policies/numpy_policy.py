"""MLPPolicy: acts in numpy with the layers of a network for flat observations.

With one row per sub-environment torch spends its time on dispatch: numpy takes a third of it for a
forward pass of two 64-unit layers. And a Ray actor that never imports torch starts a second earlier
and is 200 MB smaller. The weights are the learner's flat vector, into which the layers here are
views. Must not import torch.

    B  rows    D  features of an observation
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import gymnasium as gym
import numpy as np

from rlrun.config.schema import ModelConfig
from rlrun.data import columns as col
from rlrun.data.column_data import Array
from rlrun.data.nested import nest, space_without_mask, without_mask
from rlrun.policies.action_mask import action_mask_of
from rlrun.policies.action_sampling import (
    ActionSampler,
    SamplingPolicy,
    action_layout,
    action_sampler,
)
from rlrun.policies.layers import (
    IN_NUMPY,
    LEAST_VARIANCE,
    Layout,
    Network,
    actor_critic_network,
    factorised_noise,
    free_log_std,
)
from rlrun.policies.policy import Policy
from rlrun.policies.privileged import PrivilegedBox


class FlatArrays:
    """The parameters of a network as views into one vector: the numpy side of `FlatParameters`.

    Attributes:
        vector: all parameters, float32 [P]. Changing it in place changes what is computed.
    """

    def __init__(self, network: Network) -> None:
        self.network, self.layout = network, network.layout()
        size = sum(math.prod(shape) for _, shape in self.layout.values())
        self.vector = np.zeros(size, dtype=np.float32)

    def view(self, name: str) -> Array:
        """The parameter of this name, as a view into the vector."""
        offset, shape = self.layout[name]
        return self.vector[offset : offset + math.prod(shape)].reshape(shape)


class NumpyNetwork(Protocol):
    """The network of an `MLPPolicy`."""

    parameters: FlatArrays

    def __call__(self, obs: Array, noisy: bool, /) -> Array:
        """Distribution inputs or action values for observations ``[B, D]``."""

    def draw_noise(self, rng: np.random.Generator) -> None:
        """Draw new noise for noisy weights."""


class NumpyMLP:
    """Branches of a network one after another: [B, in] -> [B, out], or [B, out + log_std].

    Activated layers are written into the same memory in each call; other outputs are new arrays.

    Args:
        parameters: of the whole network.
        branches: names, from input to output; only the last may end without activation.

    Attributes:
        weight_log_std: of `StateNoise`, [out, L]; None without such noise.
        features: with such noise the input of the last layer in the last call, [B, L].
    """

    def __init__(self, parameters: FlatArrays, *branches: str) -> None:
        self.parameters = parameters
        layers = [parameters.network.branches[branch] for branch in branches]
        self._names = [
            f"{branch}.{i}"
            for branch, part in zip(branches, layers, strict=True)
            for i in range(len(part.sizes) - 1)
        ]
        view = parameters.view
        self._means = [(view(f"{name}.weight").T, view(f"{name}.bias")) for name in self._names]
        self._with_noise = self._means
        self._activations = [
            IN_NUMPY[part.activation] for part in layers for _ in range(part.num_activated)
        ]
        self._log_std = view("log_std") if parameters.network.num_log_std else None
        has_state_noise = layers[-1].state_noise is not None
        self.weight_log_std = view(f"{branches[-1]}.weight_log_std") if has_state_noise else None
        self.features = np.zeros((0, 0), np.float32)
        self._hidden: list[Array] = []

    def draw_noise(self, rng: np.random.Generator) -> None:
        """Draw new noise for noisy weights."""
        view, self._with_noise = self.parameters.view, []
        for name, (weight, bias) in zip(self._names, self._means, strict=True):
            if f"{name}.weight_sigma" not in self.parameters.layout:
                self._with_noise.append((weight, bias))
                continue
            into, out = factorised_noise(rng, *weight.shape)
            spread = view(f"{name}.weight_sigma").T * np.outer(into, out)
            self._with_noise.append((weight + spread, bias + view(f"{name}.bias_sigma") * out))

    def __call__(self, x: Array, noisy: bool) -> Array:
        """The output for rows ``[B, in]``, with noise in the weights if there is any."""
        layers = self._with_noise if noisy else self._means
        if not self._hidden or len(self._hidden[0]) != len(x):
            widths = [len(bias) for _, bias in layers[: len(self._activations)]]
            self._hidden = [np.empty((len(x), width), np.float32) for width in widths]
        parts = zip(self._activations, self._hidden, layers, strict=False)
        for activate, hidden, (weight, bias) in parts:
            np.dot(x, weight, out=hidden)
            np.add(hidden, bias, out=hidden)
            x = activate(hidden, out=hidden)
        if len(layers) == len(self._activations):
            return x
        weight, bias = layers[-1]
        outputs: Array = np.dot(x, weight)  # fresh memory: the caller keeps it
        outputs += bias
        if self.weight_log_std is not None:
            self.features = x
            variances = np.dot(x * x, np.exp(2.0 * self.weight_log_std).T)
            return np.concatenate((outputs, 0.5 * np.log(variances + LEAST_VARIANCE)), axis=1)
        if self._log_std is None:
            return outputs
        free = np.broadcast_to(self._log_std, (len(outputs), len(self._log_std)))
        return np.concatenate((outputs, free), axis=1)


class MLPPolicy(SamplingPolicy):
    """Acts with layers in numpy, by default with the policy layers of `ActorCritic`.

    Args:
        observation_space: of the preprocessed observations, flat but for an action mask.
        action_space: of the environment.
        model: the `model` section.
        network: computes distribution inputs or action values.
        sampler: turns these into actions; by default it samples from the action distribution.
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
        self._mask = action_mask_of(observation_space, action_space)
        space = space_without_mask(observation_space)
        self._num_seen = space.num_seen if isinstance(space, PrivilegedBox) else None
        if network is None:  # the policy's part of an actor-critic
            layout = action_layout(action_space)
            num_log_std = free_log_std(layout, model)
            layers = actor_critic_network(space, layout.num_inputs, num_log_std, model)
            network = NumpyMLP(FlatArrays(layers), "encoder", "pi")
        self.network = network
        self._state_noise: tuple[NumpyMLP, Array] | None = None
        if isinstance(network, NumpyMLP) and network.weight_log_std is not None:
            self._state_noise = network, network.weight_log_std
            self.hold_noise(network.weight_log_std.size, model.sde_sample_freq)
        self._weights = self.network.parameters.vector
        self.draws_for_fragments = self.network.parameters.network.noisy

    @staticmethod
    def supports(observation_space: gym.Space[Any], model: ModelConfig) -> bool:
        """Whether the default network is an MLP that numpy can compute in float32."""
        seen = space_without_mask(observation_space)
        return (
            model.use is None
            and model.distribution is None
            and not (model.use_lstm or model.use_gru or model.use_attention)
            and model.activation in IN_NUMPY
            and isinstance(seen, gym.spaces.Box)
            and len(seen.shape) == 1
            and np.can_cast(seen.dtype, np.float32)
        )

    @property
    def layout(self) -> Layout:
        """Where each parameter lies in the weights: name -> (offset, shape)."""
        return self.network.parameters.layout

    def compute_actions(
        self,
        obs_batch: Array,
        state_batches: Sequence[Array] | None = None,
        *,
        explore: bool | None = None,
        noise: Array | None = None,
    ) -> tuple[Array, list[Array], dict[str, Array]]:
        explore = self.explores if explore is None else explore
        seen = obs_batch if self._mask is None else without_mask(nest(obs_batch))
        inputs = self.network(seen[:, : self._num_seen], explore)
        if self._mask is not None:
            inputs = self._mask.apply(inputs, obs_batch)
        if not explore:
            return self.sampler.mode(inputs), [], {col.ACTION_DIST_INPUTS: inputs}
        if noise is None:
            noise = self.draw_noise(np.random.default_rng(), 1, len(obs_batch))[0]
        if self._state_noise is not None:
            network, log_std = self._state_noise
            noise = self.noise_of_actions(noise, inputs, network.features, log_std)
        return self.sampler.sample(inputs, noise), [], {col.ACTION_DIST_INPUTS: inputs}

    def begin_fragment(self, rng: np.random.Generator) -> None:
        self.network.draw_noise(rng)

    def get_weights(self) -> Array:
        return self._weights.copy()

    def set_weights(self, weights: Array) -> None:
        np.copyto(self._weights, weights)


def build_policy(
    observation_space: gym.Space[Any],
    action_space: gym.Space[Any],
    model: ModelConfig,
    *,
    device: str | None = None,
) -> Policy:
    """The policy a runner acts with: in numpy if the module is the default MLP, else in torch.

    Args:
        device: to act on in torch, with any module; None is the CPU, with numpy where possible.
    """
    if device is None and MLPPolicy.supports(observation_space, model):
        return MLPPolicy(observation_space, action_space, model)
    from rlrun.policies.torch_policy import TorchPolicy

    return TorchPolicy(observation_space, action_space, model, device=device or "cpu")
