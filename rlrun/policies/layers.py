"""Networks written once, as layers.

Owns which layers the networks for flat observations have, and with them the layout of the flat
vector of weights. Acting with such a network in numpy (`numpy_policy.NumpyMLP`) and learning with
it (`networks.MLP`, with the gradient written beside the forward pass) follow from the same
description. Must not import torch.

    K  atoms of a value's distribution
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from rlrun.config.problems import misfit
from rlrun.config.schema import MEMORY_SWITCHES, Count, ModelConfig
from rlrun.config.section import Positive, Real, Section
from rlrun.data.nested import leaf_spaces
from rlrun.policies.action_sampling import ActionLayout
from rlrun.policies.privileged import PolicyInput

Layout = dict[str, tuple[int, tuple[int, ...]]]
"""Name of a parameter -> (offset into the flat vector, shape)."""

GAUSSIANS = (None, "squashed_gaussian")
"""Choices of `model.distribution` that give a Box means and log standard deviations."""

POLICY_GAIN = 0.01
VALUE_GAIN = 1.0
# Uniform weights start as in Mnih et al. (2015): between hidden layers two fifths of the size of
# orthogonal ones. Q-learning bootstraps from its own maximum: an error of a network in states that
# it was not trained on comes back in its targets, and with large weights the values run away.
HIDDEN_GAINS = {"orthogonal": math.sqrt(2.0), "uniform": 1.0}


_ZERO = np.zeros((), np.float32)  # a Python number would be made an array in each step


def _silu(x: NDArray[Any], out: NDArray[Any]) -> NDArray[Any]:
    # x * sigmoid(x), through tanh, which cannot overflow.
    return np.multiply(x, 0.5 + 0.5 * np.tanh(0.5 * x), out=out)


IN_NUMPY: dict[str, Callable[..., NDArray[Any]]] = {
    "tanh": np.tanh,
    "relu": partial(np.maximum, _ZERO),
    "silu": _silu,
    "linear": np.positive,
}
"""Activations as ``(x, out=x)``, that numpy acts and learns with."""


@dataclass(frozen=True)
class StateNoise:
    """State-dependent exploration (Raffin et al. 2021, arXiv:2005.05719, eq. 7 and 8).

    The weights theta of the last layer have noise, theta_ij ~ N(0, sigma_ij^2), so that output j
    has noise, given the layer's input z, with the variance

        sum_i (sigma_ij z_i)^2 + 1e-6

    The parameter ``weight_log_std`` is log sigma. When acting, theta stays the same for several
    steps (`sampling.action_noise`), and so noise changes as slowly as z does.
    """

    log_std_init: float
    """log sigma at the start."""
    moves_features: bool
    """Whether z has a gradient of the variance."""


LEAST_VARIANCE = np.float32(1e-6)
"""Of state-dependent noise, as in Stable-Baselines3."""


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
    state_noise: StateNoise | None = None
    """Log standard deviations beside the outputs, [N, 2 out]."""

    @property
    def num_activated(self) -> int:
        """How many of the layers are followed by the activation."""
        return len(self.sizes) - (1 if self.output_gain is None else 2)

    @property
    def gains(self) -> list[float]:
        """Gain of each layer's initial weights."""
        hidden = [HIDDEN_GAINS[self.init]] * self.num_activated
        return hidden if self.output_gain is None else [*hidden, self.output_gain]

    def shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Name and shape of each parameter, in the order of the flat vector."""
        if self.state_noise is not None:
            yield "weight_log_std", (self.sizes[-1], self.sizes[-2])
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


def actor_critic_network(
    space: gym.Space[Any], num_inputs: int, num_log_std: int, model: ModelConfig
) -> Network:
    """Policy and value function: two networks after an encoder without layers, or two heads on one.

    The encoder has `model.hidden` if the two share it; all other hidden layers are a branch's own.

    Args:
        space: of flat observations, without an action mask.
        num_inputs: of the action distribution.
        num_log_std: how many of them are parameters of their own (`free_log_std`).
    """
    num_value_features = gym.spaces.flatdim(space)
    num_features = gym.spaces.flatdim(PolicyInput(space, model.privileged).space)
    num_outputs = num_inputs - num_log_std
    if model.share_layers:
        encoder = Layers((num_features, *model.hidden), model.activation, init=model.init)
        branches = actor_critic_branches(encoder.sizes[-1:] * 2, num_outputs, model)
    else:
        encoder = Layers((num_features,), model.activation)
        widths = (num_features, num_value_features)
        branches = actor_critic_branches(widths, num_outputs, model, model.hidden)
    return Network({"encoder": encoder, **branches}, num_log_std)


def actor_critic_branches(
    widths: Sequence[int], num_outputs: int, model: ModelConfig, hidden: Sequence[int] = ()
) -> dict[str, Layers]:
    """The layers after the encoder.

    Args:
        widths: of the features that policy and value function receive.
        num_outputs: of the policy.
        hidden: widths of hidden layers before `model.head_hidden`.
    """
    noise = StateNoise(model.log_std_init, moves_features=False) if model.use_sde else None
    num_outputs = num_outputs if noise is None else num_outputs // 2
    hidden = (*hidden, *model.head_hidden)
    policy_sizes, value_sizes = (widths[0], *hidden), (widths[1], *value_hidden(model, hidden))
    policy = Layers((*policy_sizes, num_outputs), model.activation, policy_gain(model), model.init)
    return {
        "pi": replace(policy, state_noise=noise),
        "vf": Layers((*value_sizes, 1), model.activation, VALUE_GAIN, model.init),
    }


def policy_gain(model: ModelConfig) -> float:
    """Gain of the initial weights of the policy's last layer."""
    return POLICY_GAIN if model.init == "orthogonal" else HIDDEN_GAINS[model.init]


def value_hidden(model: ModelConfig, of_policy: Sequence[int]) -> Sequence[int]:
    """Widths of the hidden layers that a value function, or a critic, has for itself.

    Args:
        of_policy: widths of the policy's own, which are the default.
    """
    return of_policy if model.value_hidden is None else model.value_hidden


def free_log_std(actions: ActionLayout, model: ModelConfig) -> int:
    """How many log standard deviations are parameters of their own; see `check_state_noise`."""
    check_state_noise(actions, model)
    gaussian = actions.kind == "gaussian" and model.distribution in GAUSSIANS
    free = model.free_log_std and not model.use_sde
    return actions.num_columns if free and gaussian else 0


def check_state_noise(actions: ActionLayout, model: ModelConfig) -> None:
    """Raise ConfigError if the `model` section wants `StateNoise` where there is none."""
    if not model.use_sde:
        return
    for memory in (name for name in MEMORY_SWITCHES if getattr(model, name)):
        message = f"there is no state-dependent noise with a memory; set model.{memory} to false"
        raise misfit("model.use_sde", message)
    if actions.kind != "gaussian":
        message = "state-dependent noise needs actions in a Box of floats; remove this key"
        raise misfit("model.use_sde", message)
    if model.distribution not in GAUSSIANS:
        message = "the distribution with model.use_sde is a normal one; remove this key"
        raise misfit("model.distribution", message)
    if not model.free_log_std:
        message = "with model.use_sde deviations depend on what is observed; remove this key"
        raise misfit("model.free_log_std", message)


class QOptions(Section):
    """Extensions of a Q-network; settings of DQN's section `training`."""

    dueling: bool = False
    """Separate streams for the value of a state and the advantages of its actions."""
    hiddens: tuple[Count, ...] | None = None
    """Widths of the layers after `model.hidden`, with relu; of each stream, if there are two. null
    takes the last layer of `model.hidden` instead."""
    num_atoms: Count = 1
    """Points of the distribution that is learned for each value (C51: 51); 1 learns only its
    mean."""
    v_min: Real = -10.0
    """The lowest of these points; lower returns count as this."""
    v_max: Real = 10.0
    """The highest of these points; higher returns count as this."""
    noisy: bool = False
    """Explore by learned noise in the weights; needs `exploration.epsilon: 0`."""
    sigma0: Positive = 0.5
    """Scale of that noise at the start."""

    @property
    def support(self) -> NDArray[np.float32]:
        """The points of a value's distribution, float32 ``[K]``."""
        return np.linspace(self.v_min, self.v_max, self.num_atoms, dtype=np.float32)


def q_network(
    num_features: int, num_actions: int, model: ModelConfig, options: QOptions
) -> Network:
    """Action values: an encoder, of no layers without dueling, and one or two streams."""
    is_encoder = options.hiddens is not None
    shared = model.hidden if is_encoder else model.hidden[:-1] if options.dueling else ()
    encoder = Layers((num_features, *shared), model.activation, init="uniform")
    sizes = (encoder.sizes[-1], *model.hidden[len(shared) :])
    return Network({"encoder": encoder, **q_streams(sizes, num_actions, model, options)})


def q_streams(
    sizes: tuple[int, ...], num_actions: int, model: ModelConfig, options: QOptions
) -> dict[str, Layers]:
    """The layers after the encoder; ``sizes`` are widths up to the last of `model.hidden`.

    Each stream of a dueling network has the last hidden layer for itself: with linear streams on
    shared features the sum would be one linear layer like any other.
    """
    num_atoms, activation = options.num_atoms, model.activation
    if options.hiddens is not None:
        sizes, activation = (*sizes, *options.hiddens), "relu"
    outputs = {"q": num_actions * num_atoms}
    if options.dueling:
        outputs = {"advantage": num_actions * num_atoms, "value": num_atoms}
    sigma0 = options.sigma0 if options.noisy else None
    return {
        name: Layers((*sizes, num_outputs), activation, VALUE_GAIN, "uniform", sigma0)
        for name, num_outputs in outputs.items()
    }


def sac_network(num_features: int, num_outputs: int, model: ModelConfig) -> Network:
    """SAC's policy."""
    noise = StateNoise(model.log_std_init, moves_features=True) if model.use_sde else None
    sizes = (num_features, *model.hidden, num_outputs if noise is None else num_outputs // 2)
    policy = Layers(sizes, model.activation, policy_gain(model), model.init, state_noise=noise)
    return Network({"pi": policy})


IMAGE_MIN_PIXELS = 5


def channels_first(shape: Sequence[int]) -> bool:
    """Whether an image of this shape is [channels, height, width].

    Two equal sides are height and width. Otherwise the smaller outer dimension is taken for the
    channels; on a tie the last, as usual in gymnasium.
    """
    first, middle, last = shape
    if (first == middle) != (middle == last):
        return middle == last
    return first < last


def is_image(box: gym.spaces.Box) -> bool:
    """Whether observations are encoded by convolutions unless told otherwise.

    Three dimensions are height, width and channels, in either layout; four are a stack of such
    images; two are an image without channels if they hold bytes.
    """
    sides = box.shape
    if len(sides) in (3, 4):
        image = sides[-3:]
        sides = image[1:] if channels_first(image) else image[:2]
    elif len(sides) != 2 or box.dtype != np.uint8:
        return False
    return min(sides) >= IMAGE_MIN_PIXELS


def has_image(space: gym.Space[Any]) -> bool:
    """Whether a space is an image, or a Dict or Tuple that holds one."""
    leaves = (leaf for _, leaf in leaf_spaces(space))
    return any(isinstance(leaf, gym.spaces.Box) and is_image(leaf) for leaf in leaves)


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
