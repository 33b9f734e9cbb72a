"""Networks written once, as layers: their parameters' layout, and the forward pass in numpy.

A `Network` describes the networks for flat observations. What acts with one is here, in numpy: at
the batch sizes of acting (one row per sub-environment) torch spends its time on dispatch, and two
64-unit layers take numpy a third of it. What learns is `networks.MLP`, a torch module made from the
same description with the gradient written beside it. Both work on the same flat vector of weights.
Must not import torch: a Ray actor that never does starts a second earlier and is 200 MB smaller.

    B  rows    D  features of an observation    n  actions    K  atoms of a value's distribution
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from rlrun.config.schema import ModelConfig
from rlrun.policies.action_sampling import ActionLayout

Array = NDArray[Any]

Layout = dict[str, tuple[int, tuple[int, ...]]]
"""Name of a parameter -> (offset into the flat vector, shape)."""

POLICY_GAIN = 0.01
VALUE_GAIN = 1.0


@dataclass(frozen=True)
class Layers:
    """Linear layers, named "0", "1", ..., with an activation between them: [N, in] -> [N, out]."""

    sizes: tuple[int, ...]
    """Widths from input to output; one size alone makes the identity."""
    activation: str
    output_gain: float | None = None
    """Gain of the last layer's initial weights. None: the last layer is a hidden layer too, with
    its gain and followed by the activation."""
    init: Literal["orthogonal", "uniform"] = "orthogonal"
    """Distribution of the initial weights."""
    sigma0: float | None = None
    """Noise in the weights (Fortunato et al. 2018, arXiv:1706.10295): standard deviations start at
    ``sigma0 / sqrt(inputs of the layer)``. None: no noise."""

    @property
    def num_activated(self) -> int:
        """How many of the layers are followed by the activation."""
        return len(self.sizes) - (1 if self.output_gain is None else 2)

    def shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Name and shape of each parameter, in the order of the flat vector."""
        for i, (num_inputs, num_outputs) in enumerate(pairwise(self.sizes)):
            for suffix in ("",) if self.sigma0 is None else ("", "_sigma"):
                yield f"{i}.weight{suffix}", (num_outputs, num_inputs)
                yield f"{i}.bias{suffix}", (num_outputs,)


@dataclass(frozen=True)
class Network:
    """Layers by name, in the order of their parameters."""

    branches: Mapping[str, Layers]
    num_log_std: int = 0
    """Free log standard deviations of a Gaussian policy; they come before the layers."""

    @property
    def noisy(self) -> bool:
        """Whether any layer has noise in its weights."""
        return any(layers.sigma0 is not None for layers in self.branches.values())

    def layout(self) -> Layout:
        """Where each parameter lies in the flat vector."""
        shapes: dict[str, tuple[int, ...]] = {}
        if self.num_log_std:
            shapes["log_std"] = (self.num_log_std,)
        for branch, layers in self.branches.items():
            shapes |= {f"{branch}.{name}": shape for name, shape in layers.shapes()}
        layout: Layout = {}
        offset = 0
        for name, shape in shapes.items():
            layout[name] = (offset, shape)
            offset += math.prod(shape)
        return layout


def actor_critic_network(num_features: int, actions: ActionLayout, model: ModelConfig) -> Network:
    """Policy and value function: two networks, or two heads on one encoder."""
    num_log_std = free_log_std(actions, model)
    sizes, activation = (num_features, *model.hidden), model.activation
    if model.share_layers:
        encoder = Layers(sizes, activation)
        heads = actor_critic_heads(sizes[-1], actions, model)
        return Network({"encoder": encoder, **heads}, num_log_std)
    pi = Layers((*sizes, actions.num_inputs - num_log_std), activation, POLICY_GAIN)
    return Network({"pi": pi, "vf": Layers((*sizes, 1), activation, VALUE_GAIN)}, num_log_std)


def actor_critic_heads(width: int, actions: ActionLayout, model: ModelConfig) -> dict[str, Layers]:
    """One layer each for policy and value function, on features that both share."""
    num_outputs = actions.num_inputs - free_log_std(actions, model)
    return {
        "pi_head": Layers((width, num_outputs), model.activation, POLICY_GAIN),
        "vf_head": Layers((width, 1), model.activation, VALUE_GAIN),
    }


def free_log_std(actions: ActionLayout, model: ModelConfig) -> int:
    """How many log standard deviations are parameters of their own."""
    return actions.num_columns if model.free_log_std and actions.kind == "gaussian" else 0


@dataclass(frozen=True)
class QOptions:
    """What a Q-network has beyond one number for each action."""

    dueling: bool = False
    """Separate streams for the value of a state and the advantages of its actions."""
    num_atoms: int = 1
    """K, the points of a value's distribution; 1 learns the mean alone."""
    v_min: float = -10.0
    """The lowest of them."""
    v_max: float = 10.0
    """The highest of them."""
    noisy: bool = False
    """Noise in the weights behind the encoder."""
    sigma0: float = 0.5
    """Its scale at the start."""

    @property
    def support(self) -> NDArray[np.float32]:
        """The points, float32 ``[K]``."""
        return np.linspace(self.v_min, self.v_max, self.num_atoms, dtype=np.float32)


def q_network(
    num_features: int, num_actions: int, model: ModelConfig, options: QOptions
) -> Network:
    """Action values: an encoder, of no layers without dueling, and one or two streams."""
    shared = model.hidden[:-1] if options.dueling else ()
    encoder = Layers((num_features, *shared), model.activation, init="uniform")
    sizes = (encoder.sizes[-1], *model.hidden[len(shared) :])
    return Network({"encoder": encoder, **q_streams(sizes, num_actions, model, options)})


def q_streams(
    sizes: tuple[int, ...], num_actions: int, model: ModelConfig, options: QOptions
) -> dict[str, Layers]:
    """What follows the encoder; ``sizes`` are the widths from its features to the last hidden ones.

    Each stream of a dueling network has the last hidden layer for itself: with linear streams on
    shared features the sum would be one linear layer like any other.
    """
    num_atoms = options.num_atoms
    outputs = {"q": num_actions * num_atoms}
    if options.dueling:
        outputs = {"advantage": num_actions * num_atoms, "value": num_atoms}
    sigma0 = options.sigma0 if options.noisy else None
    return {
        name: Layers((*sizes, num_outputs), model.activation, VALUE_GAIN, "uniform", sigma0)
        for name, num_outputs in outputs.items()
    }


def sac_network(num_features: int, num_outputs: int, model: ModelConfig) -> Network:
    """SAC's policy."""
    sizes = (num_features, *model.hidden, num_outputs)
    return Network({"pi": Layers(sizes, model.activation, POLICY_GAIN)})


# -- acting, in numpy ------------------------------------------------------------------------------

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


def factorised_noise(
    rng: np.random.Generator, num_inputs: int, num_outputs: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """f(e) for the inputs and for the outputs of a layer, whose product is the weights' noise.

    f(x) = sign(x) sqrt|x|, e standard normal (Fortunato et al. 2018, eq. 10 and 11). Learners and
    runners draw the same.
    """
    draws = rng.standard_normal(num_inputs + num_outputs, dtype=np.float32)
    scaled = np.sign(draws) * np.sqrt(np.abs(draws))
    return scaled[:num_inputs], scaled[num_inputs:]


class FlatArrays:
    """The parameters of a network as views of one vector: the numpy side of `FlatParameters`.

    Attributes:
        vector: all parameters, float32 [P]. Changing it in place changes what is computed.
    """

    def __init__(self, network: Network) -> None:
        self.network, self.layout = network, network.layout()
        size = sum(math.prod(shape) for _, shape in self.layout.values())
        self.vector = np.zeros(size, dtype=np.float32)

    def view(self, name: str) -> Array:
        """The part of the vector that is the parameter of this name, in its shape."""
        offset, shape = self.layout[name]
        return self.vector[offset : offset + math.prod(shape)].reshape(shape)


class NumpyNetwork(Protocol):
    """What an `MLPPolicy` acts with."""

    parameters: FlatArrays

    def __call__(self, obs: Array, noisy: bool, /) -> Array:
        """Distribution inputs or action values for observations ``[B, D]``."""
        ...

    def draw_noise(self, rng: np.random.Generator) -> None:
        """Renew the noise of noisy weights."""
        ...


class NumpyMLP:
    """Branches of a network one after another: [B, in] -> [B, out], or [B, out + log_std].

    Hidden layers are written into the same memory in each call, the output is fresh.

    Args:
        parameters: of the whole network.
        branches: names, from input to output; only the last may end without activation.
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
        self._num_activated = sum(part.num_activated for part in layers)
        self._activate = ACTIVATIONS[layers[-1].activation]
        self._log_std = view("log_std") if parameters.network.num_log_std else None
        self._hidden: list[Array] = []

    def draw_noise(self, rng: np.random.Generator) -> None:
        """Renew the noise of noisy weights."""
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
            widths = [len(bias) for _, bias in layers[: self._num_activated]]
            self._hidden = [np.empty((len(x), width), np.float32) for width in widths]
        for (weight, bias), hidden in zip(layers, self._hidden, strict=False):
            np.dot(x, weight, out=hidden)
            np.add(hidden, bias, out=hidden)
            x = self._activate(hidden, out=hidden)
        if len(layers) == self._num_activated:
            return x
        weight, bias = layers[-1]
        outputs: Array = np.dot(x, weight)  # fresh memory: the caller keeps it
        outputs += bias
        if self._log_std is None:
            return outputs
        return np.concatenate(
            [outputs, np.broadcast_to(self._log_std, (len(outputs), len(self._log_std)))], axis=1
        )


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
            outputs = outputs - outputs.mean(axis=1, keepdims=True) + value
        if self._num_atoms == 1:
            return outputs
        weights = np.exp(outputs - outputs.max(axis=2, keepdims=True))
        return (weights @ self._support) / weights.sum(axis=2)
