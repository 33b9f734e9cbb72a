"""RLModule: the interface of networks to policies and learners, and the default actor-critic.

Owns encoders, too; `catalog` makes a module from a `model` section. Must not know of Ray,
environments or losses.

    N  rows of a batch                      P  inputs of the action distribution
    obs [N, ...] preprocessed observations: float32, or uint8 for images; a dict or tuple of such
                 tensors where the observation space is a Dict or Tuple

A module receives and returns dicts of tensors, named like the columns of batches.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from rlrun.config.problems import misfit
from rlrun.config.registry import import_object
from rlrun.config.schema import ModelConfig
from rlrun.data import columns as col
from rlrun.data.column_data import Array, map_leaves
from rlrun.data.column_data import leaves as nested_leaves
from rlrun.data.nested import map_space
from rlrun.data.view_requirement import ViewRequirement
from rlrun.policies.action_sampling import action_layout
from rlrun.policies.chosen_distributions import module_distribution
from rlrun.policies.distributions import Distribution
from rlrun.policies.layers import (
    GAUSSIANS,
    Layers,
    actor_critic_branches,
    actor_critic_network,
    free_log_std,
    has_image,
    is_image,
)
from rlrun.policies.networks import MLP, ConvEncoder, StateNoiseMLP, mlp, scaled
from rlrun.policies.privileged import PolicyInput

TensorBatch = Mapping[str, Tensor]
NOISE_FEATURES = "noise_features"
"""An output of modules with `StateNoise`, [N, L]: the input of the policy's last layer."""


class RLModule(nn.Module, ABC):
    """A network for one policy. Only `forward_train` must be defined.

    A subclass named by ``model.use`` is constructed with the observation space, the action space,
    the `model` section, and the section's further keys as keyword arguments.

    Attributes:
        distribution: of actions. A constructor may set another one; ``distribution.num_inputs``
            is P.
        view_requirements: the module's inputs by name, at first the present observation. A
            constructor may add to them (``self.view_requirements["prev_actions"] = ...``); each
            view is a column of every batch that the module receives.
    """

    distribution: Distribution
    view_requirements: dict[str, ViewRequirement]

    def __init__(
        self, observation_space: gym.Space[Any], action_space: gym.Space[Any], model: ModelConfig
    ) -> None:
        super().__init__()
        self.observation_space = observation_space
        self.action_space = action_space
        self.model = model
        self.distribution = module_distribution(action_space, model.distribution)
        self.view_requirements = {col.OBS: ViewRequirement(space=observation_space)}

    def initial_state(self) -> list[Tensor]:
        """A recurrent module's states at an episode's start, without a batch dimension.

        Forward passes receive state k as ``state_in_<k>`` [S, ...], with a row for each sequence.
        Those over single steps return the next state as ``state_out_<k>``. The rows of a train
        batch are sequences of ``seq_lens`` steps, one after the other, without padding; functions
        of `rlrun.policies.recurrent` reshape them to [S, L, ...] and back. Without ``seq_lens``
        every row is a sequence of one step.
        """
        return []

    @abstractmethod
    def forward_train(self, batch: TensorBatch) -> dict[str, Tensor]:
        """Forward pass for a loss, with gradients.

        Args:
            batch: columns of N rows, at least ``obs``.

        Returns:
            ``action_dist_inputs`` [N, P], and ``vf_preds`` [N] where there is a value function.
        """

    def forward_exploration(self, batch: TensorBatch) -> dict[str, Tensor]:
        """Forward pass for sampled actions: at least ``action_dist_inputs`` [B, P]."""
        return self.forward_inference(batch)

    def forward_inference(self, batch: TensorBatch) -> dict[str, Tensor]:
        """Forward pass for the most likely actions; `forward_train` by default."""
        return self.forward_train(batch)

    def compute_values(self, batch: TensorBatch) -> Tensor:
        """The value function alone, [N].

        Raises:
            KeyError: the module has no value function.
        """
        return self.forward_train(batch)[col.VF_PREDS]

    @property
    def has_vjp(self) -> bool:
        """Whether the module has a `vjp`, which replaces autograd, on its present device."""
        return False

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """See `torch.nn.Module.load_state_dict`; values are copied even with ``assign``.

        Parameters must stay where they are in memory, into which learners and policies have views.
        """
        return super().load_state_dict(state_dict, strict)

    values_when_acting = False
    """Whether `forward_exploration` returns everything that `forward_train` does. If so, learning
    reuses these outputs while the weights are the same."""
    noisy = False
    """Whether the module has noisy weights, see `draw_noise`."""

    def draw_noise(self, rng: np.random.Generator) -> None:
        """Draw new noise for noisy weights."""

    def forward(self, batch: TensorBatch) -> dict[str, Tensor]:
        """The same as `forward_train`."""
        return self.forward_train(batch)


def actor_critic_outputs(module: RLModule, batch: TensorBatch) -> tuple[Tensor, Tensor]:
    """Distribution inputs [N, P] and values [N] of `RLModule.forward_train`.

    Raises:
        ConfigError: the shapes are wrong; values [N, 1], say, would be broadcast in a loss.
    """
    outputs = module.forward_train(batch)
    inputs, values = outputs[col.ACTION_DIST_INPUTS], outputs.get(col.VF_PREDS)
    size, width = len(inputs), module.distribution.num_inputs
    if values is None or inputs.shape != (size, width) or values.shape != (size,):
        shapes = [None if part is None else tuple(part.shape) for part in (inputs, values)]
        message = (
            f"for {size} rows forward_train must return action_dist_inputs of shape "
            f"{(size, width)} and vf_preds of shape {(size,)}, not {shapes[0]} and {shapes[1]}"
        )
        raise misfit("model.use", message)
    return inputs, values


class ActorCritic(RLModule):
    """The default networks: MLPs for flat observations, convolutions for images, both for nests.

    Policy and value function are separate networks, or heads on one encoder
    (``model.share_layers``, by default for images and for a user's encoder). Weights are orthogonal
    with gain sqrt(2), 0.01 for the policy head and 1 for the value head, unless ``model.init`` says
    otherwise; biases are 0. For a Box action space each dimension has a free log standard
    deviation, at first ``model.log_std_init``, or one that depends on the state (`StateNoise`).

    Parameters are ``log_std``, then ``encoder``, ``pi`` and ``vf`` as in `actor_critic_network`.
    The encoder of separate MLPs has no layers; with images or a user's encoder and
    ``share_layers: false``, or with privileged observations, there is also a ``vf_encoder``.
    """

    pi: MLP
    vf: MLP

    def __init__(
        self, observation_space: gym.Space[Any], action_space: gym.Space[Any], model: ModelConfig
    ) -> None:
        super().__init__(observation_space, action_space, model)
        self.log_std = log_std_parameter(action_space, model)
        self._encoder_input = EncoderInput(observation_space, model)
        flatten = self._encoder_input.flatten
        num_log_std = 0 if self.log_std is None else len(self.log_std)
        num_inputs = self.distribution.num_inputs
        shared = not flatten if model.share_layers is None else model.share_layers
        shared = shared and not model.privileged
        self._policy_input = PolicyInput(observation_space, model.privileged)
        self.vf_encoder = None
        if flatten:
            network = actor_critic_network(observation_space, num_inputs, num_log_std, model)
            branches = dict(network.branches)
            self.encoder: Any = MLP(branches.pop("encoder"))
            if self._policy_input.is_partial:
                num_features = gym.spaces.flatdim(observation_space)
                self.vf_encoder = MLP(Layers((num_features,), model.activation))
        else:
            self.encoder, width = encoder_of(self._policy_input.space, model, model.init)
            value_width = width
            if not shared:
                self.vf_encoder, value_width = encoder_of(observation_space, model, model.init)
            num_outputs = num_inputs - num_log_std
            branches = actor_critic_branches((width, value_width), num_outputs, model)
        for name, layers in branches.items():
            self.add_module(name, mlp(layers))
        if self.log_std is None:
            set_log_std_bias(self.pi.last, action_space, model)
        # With a shared encoder, which is most of the work, values cost almost nothing.
        self.values_when_acting = (
            type(self) is ActorCritic and not flatten and self.vf_encoder is None
        )
        self._is_plain = (
            type(self) is ActorCritic  # a subclass may compute something else
            and flatten
            and not shared
            and self.distribution.has_vjp
        )

    @property
    def has_vjp(self) -> bool:
        return self._is_plain and self.pi.has_vjp

    def forward_train(self, batch: TensorBatch) -> dict[str, Tensor]:
        """``action_dist_inputs`` [N, P] and ``vf_preds`` [N], and what is in `policy_outputs`."""
        obs = self._encoder_input(batch[col.OBS], self.encoder)
        features = self.encoder(self._policy_input(obs) if self._policy_input.is_partial else obs)
        value_features = features if self.vf_encoder is None else self.vf_encoder(obs)
        outputs = policy_outputs(self.pi, features, self.log_std)
        return {**outputs, col.VF_PREDS: self.vf(value_features).squeeze(-1)}

    def forward_exploration(self, batch: TensorBatch) -> dict[str, Tensor]:
        """With ``vf_preds`` [N] only if `values_when_acting`."""
        return (self.forward_train if self.values_when_acting else self.forward_inference)(batch)

    def forward_inference(self, batch: TensorBatch) -> dict[str, Tensor]:
        """``action_dist_inputs`` [N, P] alone."""
        obs: Any = batch[col.OBS]
        seen = self._policy_input(obs) if self._policy_input.is_partial else obs
        features = self.encoder(self._encoder_input(seen, self.encoder))
        return policy_outputs(self.pi, features, self.log_std)

    def compute_values(self, batch: TensorBatch) -> Tensor:
        """Values [N], without the policy branch."""
        encoder = self.encoder if self.vf_encoder is None else self.vf_encoder
        features = encoder(self._encoder_input(batch[col.OBS], encoder))
        return self.vf(features).squeeze(-1)

    def vjp(self, batch: Mapping[str, Array]) -> tuple[Array, Array, Callable[..., None]]:
        """`forward_train` of separate MLPs in numpy, without autograd; only if `has_vjp`.

        Returns:
            Distribution inputs [N, P], values [N], and the backward pass: a function of the
            gradients of both, which overwrites the gradients of all parameters.
        """
        obs = flat_features(batch[col.OBS])
        seen = self._policy_input(obs) if self._policy_input.is_partial else obs
        outputs, policy_backward = self.pi.vjp(seen)
        values, value_backward = self.vf.vjp(obs)
        log_std: Any = self.log_std

        def backward(d_inputs: Array, d_values: Array) -> None:
            if log_std is not None:
                d_inputs, d_log_std = np.split(d_inputs, 2, axis=1)
                d_log_std.sum(0, out=log_std.grad.numpy())
            policy_backward(d_inputs)
            value_backward(d_values[:, None])

        if log_std is not None:
            free = np.broadcast_to(log_std.detach().numpy(), outputs.shape)
            outputs = np.concatenate((outputs, free), axis=1)
        return outputs, values[:, 0], backward


def log_std_parameter(action_space: gym.Space[Any], model: ModelConfig) -> nn.Parameter | None:
    """A free log standard deviation for each dimension of a Box, if the model has them."""
    count = free_log_std(action_layout(action_space), model)
    return nn.Parameter(torch.full((count,), float(model.log_std_init))) if count else None


def dist_inputs(log_std: Tensor | None, outputs: Tensor) -> Tensor:
    """Distribution inputs [N, P]: the outputs of a policy head and free log standard deviations."""
    if log_std is None:
        return outputs
    return torch.cat((outputs, log_std.expand_as(outputs)), dim=-1)


def policy_outputs(pi: MLP, features: Tensor, log_std: Tensor | None = None) -> dict[str, Tensor]:
    """``action_dist_inputs`` [N, P] of a policy's layers, and what samples of them need.

    With `model.use_sde` also `NOISE_FEATURES`.
    """
    if not isinstance(pi, StateNoiseMLP):
        return {col.ACTION_DIST_INPUTS: dist_inputs(log_std, pi(features))}
    inputs, noise_features = pi.with_features(features)
    return {col.ACTION_DIST_INPUTS: inputs, NOISE_FEATURES: noise_features}


def set_log_std_bias(head: nn.Linear, action_space: gym.Space[Any], model: ModelConfig) -> None:
    """Let log standard deviations that the head computes start at ``model.log_std_init``, too."""
    if model.distribution not in GAUSSIANS or model.use_sde:
        return
    with torch.no_grad():
        for leaf in action_layout(action_space).leaves:
            if leaf.kind == "gaussian":
                start = leaf.inputs.start + leaf.num_columns
                head.bias[start : leaf.inputs.stop] = model.log_std_init


class EncoderInput:
    """Observations [N, ...] as the input of encoders: float32, bytes in [0, 1]; nests of these.

    A byte is divided by the highest one of its space. rlrun's own encoders of images and nests do
    that themselves.

    Args:
        space: of the observations, without an action mask.

    Attributes:
        flatten: whether they are flattened for an MLP.
    """

    def __init__(self, space: gym.Space[Any], model: ModelConfig) -> None:
        self.flatten = flattens(space, model)
        self._highest = map_space(lambda _, leaf: highest_byte(leaf), space)

    def __call__(self, obs: Any, encoder: nn.Module | None) -> Any:
        """The input of ``encoder``, from all observations or from some entries of them."""
        if isinstance(encoder, ConvEncoder | JoinedEncoder):
            return obs
        if not self.flatten:
            highest = self._highest
            if isinstance(obs, dict):
                highest = {key: highest[key] for key in obs}
            return map_leaves(scaled, obs, highest)
        obs = obs.to(torch.float32)
        return obs if obs.dim() == 2 else obs[:, None].flatten(1)  # a number has no dimension


def highest_byte(space: gym.Space[Any]) -> float:
    """The highest byte of a Box of bytes; 255 for other spaces."""
    if not isinstance(space, gym.spaces.Box) or space.dtype != np.uint8:
        return 255.0
    return max(float(space.high.max()), 1.0)


def flat_features(obs: Array) -> Array:
    """Observations ``[N, ...]`` as the input of an MLP, float32 ``[N, D]``; see `EncoderInput`."""
    obs = obs.astype(np.float32, copy=False)
    return obs if obs.ndim == 2 else obs.reshape(len(obs), -1)


def flattens(space: gym.Space[Any], model: ModelConfig) -> bool:
    """Whether observations are flattened for an MLP: no images, no nests, no user's encoder."""
    if _own_encoder(model) is not None:
        return False
    if isinstance(space, gym.spaces.Dict | gym.spaces.Tuple):
        return False
    return model.conv is None and not is_image(box_of(space))


def encoder_of(
    space: gym.Space[Any], model: ModelConfig, init: Literal["orthogonal", "uniform"]
) -> tuple[Any, int]:
    """The encoder that a `model` section describes, and its number of features.

    Convolutions for images, hidden layers for flat observations, both for nested ones, or the
    torch module that ``model.use`` names.

    Raises:
        ConfigError: the user's encoder has no integer ``output_size``.
    """
    own = _own_encoder(model)
    encoder: nn.Module
    if own is not None:
        encoder = own(space, **model.arguments())
    elif isinstance(space, gym.spaces.Dict | gym.spaces.Tuple):
        encoder = JoinedEncoder(space, model, init)
    elif flattens(space, model):
        sizes = (gym.spaces.flatdim(box_of(space)), *model.hidden)
        encoder = MLP(Layers(sizes, model.activation, init=init))
    else:
        encoder = conv_encoder(box_of(space), model, init)
    size = getattr(encoder, "output_size", None)
    if not isinstance(size, int):
        message = f"{type(encoder).__name__} must have an integer attribute output_size, the number"
        raise misfit("model.use", f"{message} of features it returns for each row; it has {size!r}")
    return encoder, size


def conv_encoder(box: gym.spaces.Box, model: ModelConfig, init: str) -> ConvEncoder:
    """Convolutions for the images of a space, as the `model` section describes them."""
    bfloat16, highest = model.conv_dtype == "bfloat16", highest_byte(box)
    return ConvEncoder(box.shape, model.conv, model.conv_head, init, bfloat16, highest)


def own_module(model: ModelConfig) -> type[RLModule] | None:
    """The `RLModule` that ``model.use`` names; None if it names an encoder, or nothing."""
    named = None if model.use is None else import_object(model.use)
    return named if isinstance(named, type) and issubclass(named, RLModule) else None


def _own_encoder(model: ModelConfig) -> Callable[..., nn.Module] | None:
    """The encoder that ``model.use`` names; None if it names a whole module."""
    return None if model.use is None or own_module(model) else import_object(model.use)


def box_of(space: gym.Space[Any]) -> gym.spaces.Box:
    """The space; raises ConfigError if the default networks cannot take its observations."""
    if not isinstance(space, gym.spaces.Box):
        message = "the default networks need observations in a Box, or a Dict or Tuple, not in a"
        message += f" {type(space).__name__}; remove this key, or name a module with model.use"
        raise misfit("env_runners.preprocessor_pref", message)
    return space


class JoinedEncoder(nn.Module):
    """Encodes nested observations: each image by convolutions, all else by hidden layers.

    The features are concatenated. Leaves that are not images are flattened, categories one-hot.

    Args:
        space: a Dict or Tuple.
        init: see `encoder_of`.
    """

    def __init__(
        self, space: gym.Space[Any], model: ModelConfig, init: Literal["orthogonal", "uniform"]
    ) -> None:
        super().__init__()
        # In the order in which observations have their leaves.
        self._spaces = list(nested_leaves(map_space(lambda _, leaf: leaf, space)))
        self._are_images = [has_image(part) for part in self._spaces]
        self.images = nn.ModuleList()
        self._width = 0
        for part, is_one in zip(self._spaces, self._are_images, strict=True):
            if is_one:
                self.images.append(conv_encoder(part, model, init))
            else:
                self._width += gym.spaces.flatdim(part)
        self.output_size = len(self.images) * model.conv_head
        self.rest = None
        if self._width:
            layers = Layers((self._width, *model.hidden), model.activation, init=init)
            self.rest = MLP(layers)
            self.output_size += self.rest.output_size

    def forward(self, obs: Any) -> Tensor:
        """Observations, a nest of [N, ...] -> [N, output_size]."""
        features, flat = [], []
        images = iter(self.images)
        parts = zip(self._spaces, self._are_images, nested_leaves(obs), strict=True)
        for space, is_one, leaf in parts:
            if is_one:
                features.append(next(images)(leaf))
            else:
                flat.append(_flat(space, leaf))
        if self.rest is not None:
            features.append(self.rest(torch.cat(flat, dim=1)))
        return torch.cat(features, dim=1)


def _flat(space: gym.Space[Any], leaf: Tensor) -> Tensor:
    """Observations of a leaf [N, ...] as features [N, F]: categories one-hot, bytes in [0, 1]."""
    if not isinstance(space, gym.spaces.Discrete | gym.spaces.MultiDiscrete):
        # A number has no dimension.
        return scaled(leaf, highest_byte(space))[:, None].flatten(1)
    counts = np.ravel(space.n if isinstance(space, gym.spaces.Discrete) else space.nvec)
    first = np.ravel(space.start)
    columns = leaf.reshape(leaf.shape[0], -1).long() - torch.from_numpy(first).to(leaf.device)
    parts = zip(columns.split(1, dim=1), counts.tolist(), strict=True)
    hot = [column == torch.arange(n, device=leaf.device) for column, n in parts]
    return torch.cat(hot, dim=1).to(torch.float32)


class MultiAgentRLModule(nn.Module, Mapping[str, RLModule]):
    """A mapping of policy ids to modules, which is itself a torch module with all parameters.

    Args:
        modules: policy id -> module; an id may hold any characters.
    """

    def __init__(self, modules: Mapping[str, RLModule]) -> None:
        super().__init__()
        self._ids = list(modules)
        self._list = nn.ModuleList(modules.values())

    def __getitem__(self, policy_id: str) -> RLModule:
        if policy_id not in self._ids:
            raise KeyError(policy_id)
        module: Any = self._list[self._ids.index(policy_id)]
        return module

    def __iter__(self) -> Iterator[str]:
        return iter(self._ids)

    def __len__(self) -> int:
        return len(self._ids)

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    def add(self, policy_id: str, module: RLModule) -> None:
        """Add a module; raises ValueError for an id that is taken."""
        if policy_id in self._ids:
            raise ValueError(f"there is a module {policy_id!r} already")
        self._ids.append(policy_id)
        self._list.append(module)

    def remove(self, policy_id: str) -> None:
        """Remove a module; raises KeyError for an unknown id."""
        if policy_id not in self._ids:
            raise KeyError(policy_id)
        index = self._ids.index(policy_id)
        del self._list[index], self._ids[index]

    def forward_inference(self, batch: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Any]:
        """`RLModule.forward_inference` of each module that has a part of the batch."""
        return {name: self[name].forward_inference(dict(part)) for name, part in batch.items()}

    def forward_exploration(self, batch: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Any]:
        """`RLModule.forward_exploration` of each module that has a part of the batch."""
        return {name: self[name].forward_exploration(dict(part)) for name, part in batch.items()}

    def forward_train(self, batch: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Any]:
        """`RLModule.forward_train` of each module that has a part of the batch."""
        return {name: self[name].forward_train(dict(part)) for name, part in batch.items()}
