"""RLModule: the network that acts and is trained, and the default one.

Owns what a network must offer to policies and learners, the default actor-critic networks, and the
factory that turns the `model` section into one. Must not know of Ray, environments or losses.

    N  rows of a batch                      P  inputs of the action distribution
    obs [N, ...] preprocessed observations: float32, or uint8 for images

The rows a module receives and returns are dicts of tensors named as batch columns are.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor, nn

from rlrun.config.registry import import_object
from rlrun.config.schema import ModelConfig
from rlrun.data import columns as col
from rlrun.data.view_requirement import ViewRequirement
from rlrun.policies.action_layout import action_layout
from rlrun.policies.distributions import Distribution, build_distribution
from rlrun.policies.networks import MLP, ConvEncoder, is_image, linear
from rlrun.policies.policy import state_views

TensorBatch = Mapping[str, Tensor]

MEMORIES = {
    "use_lstm": "rlrun.policies.recurrent:RecurrentActorCritic",
    "use_gru": "rlrun.policies.recurrent:RecurrentActorCritic",
    "use_attention": "rlrun.policies.attention:AttentionActorCritic",
}
"""Settings of the `model` section that give the networks a memory, and the module that has it."""

POLICY_GAIN = 0.01
VALUE_GAIN = 1.0


class RLModule(nn.Module, ABC):
    """A network for one policy. Only `forward_train` must be written.

    A subclass named by ``model.use`` is constructed with the observation space, the action space,
    the `model` section, and the section's further keys as keyword arguments.

    Attributes:
        distribution: log-probabilities, entropies and KL divergences for the action space;
            ``distribution.num_inputs`` is P.
        view_requirements: what the module sees, by name: at first the present observation. A
            constructor adds to it (``self.view_requirements["prev_actions"] = ...``); the views
            then are columns of every batch that the module is given.
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
        self.distribution = build_distribution(action_space)
        self.view_requirements = {col.OBS: ViewRequirement(space=observation_space)}

    def initial_state(self) -> list[Tensor]:
        """A recurrent module's states at an episode's start, without a batch dimension.

        State k reaches the forward passes as ``state_in_<k>`` [S, ...], one row for each sequence,
        and a pass over single steps returns the next one as ``state_out_<k>``. The rows of a train
        batch are sequences of ``seq_lens`` steps, one after the other, without padding:
        `rlrun.policies.padding` brings them into the form [S, L, ...] and back. Without
        ``seq_lens`` every row is a sequence of one step.
        """
        return []

    @abstractmethod
    def forward_train(self, batch: TensorBatch) -> dict[str, Tensor]:
        """Forward pass for a loss, with gradients.

        Args:
            batch: columns of N rows; ``obs`` at least.

        Returns:
            ``action_dist_inputs`` [N, P], and ``vf_preds`` [N] where there is a value function.
        """

    def forward_exploration(self, batch: TensorBatch) -> dict[str, Tensor]:
        """Forward pass of acting while training: ``action_dist_inputs`` [B, P] at least."""
        return self.forward_inference(batch)

    def forward_inference(self, batch: TensorBatch) -> dict[str, Tensor]:
        """Forward pass of acting with the most likely actions; as `forward_train` by default."""
        return self.forward_train(batch)

    def compute_values(self, batch: TensorBatch) -> Tensor:
        """The value function alone, [N].

        Raises:
            KeyError: when the module has no value function.
        """
        return self.forward_train(batch)[col.VF_PREDS]

    has_vjp = False
    """Whether `ActorCritic.vjp` can stand in for autograd."""

    def forward(self, batch: TensorBatch) -> dict[str, Tensor]:
        """The same as `forward_train`."""
        return self.forward_train(batch)


class ActorCritic(RLModule):
    """The default networks: MLPs for flat observations, convolutions for images.

    Policy and value function are separate networks, or heads on one encoder
    (``model.share_layers``; by default for images and for an encoder of the user's own).
    Orthogonal weights with gain sqrt(2), 0.01 for the policy head and 1 for the value head, biases
    0; a free log standard deviation for each dimension of a Box action space starts at
    ``model.log_std_init``.

    The parameter names are fixed (`numpy_policy` acts with the same vector): ``pi.<i>`` and
    ``vf.<i>``, or ``encoder``, ``pi_head``, ``vf_head`` (and ``vf_encoder`` for images and users'
    encoders with ``share_layers: false``), and ``log_std``.

    Args:
        make_encoder: makes the user's own encoder, which tells its width as ``output_size``; called
            once, or twice with ``share_layers: false``.
    """

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        model: ModelConfig,
        *,
        make_encoder: Callable[[], nn.Module] | None = None,
    ) -> None:
        super().__init__(observation_space, action_space, model)
        num_outputs = self.distribution.num_inputs
        self.log_std: nn.Parameter | None = None
        free_log_std = model.free_log_std and action_layout(action_space).kind == "gaussian"
        if free_log_std:
            num_outputs //= 2
            self.log_std = nn.Parameter(torch.full((num_outputs,), float(model.log_std_init)))
        conv = make_encoder is None and wants_conv(observation_space, model)
        self._flatten = make_encoder is None and not conv
        shared = not self._flatten if model.share_layers is None else model.share_layers
        self._separate_mlps = self._flatten and not shared
        if self._separate_mlps:
            sizes = [gym.spaces.flatdim(box_of(observation_space)), *model.hidden]
            self.pi = MLP([*sizes, num_outputs], model.activation, output_gain=POLICY_GAIN)
            self.vf = MLP([*sizes, 1], model.activation, output_gain=VALUE_GAIN)
            head = self.pi.last
        else:
            make_encoder = make_encoder or partial(default_encoder, observation_space, model)
            self.encoder = make_encoder()
            self.vf_encoder = None if shared else make_encoder()
            width = output_size(self.encoder)
            head = self.pi_head = linear(width, num_outputs, POLICY_GAIN)
            self.vf_head = linear(width, 1, VALUE_GAIN)
        if not free_log_std:
            set_log_std_bias(head, action_space, model.log_std_init)
        self.has_vjp = (
            type(self) is ActorCritic  # a subclass may compute something else
            and self._separate_mlps
            and self.pi.has_vjp
            and self.distribution.has_vjp
        )

    def forward_train(self, batch: TensorBatch) -> dict[str, Tensor]:
        """``action_dist_inputs`` [N, P] and ``vf_preds`` [N]."""
        obs = as_features(batch[col.OBS], flatten=self._flatten)
        if self._separate_mlps:
            return {
                col.ACTION_DIST_INPUTS: self._dist_inputs(self.pi(obs)),
                col.VF_PREDS: self.vf(obs).squeeze(-1),
            }
        features = self.encoder(obs)
        value_features = features if self.vf_encoder is None else self.vf_encoder(obs)
        return {
            col.ACTION_DIST_INPUTS: self._dist_inputs(self.pi_head(features)),
            col.VF_PREDS: self.vf_head(value_features).squeeze(-1),
        }

    def forward_inference(self, batch: TensorBatch) -> dict[str, Tensor]:
        """``action_dist_inputs`` [N, P] alone."""
        obs = as_features(batch[col.OBS], flatten=self._flatten)
        outputs = self.pi(obs) if self._separate_mlps else self.pi_head(self.encoder(obs))
        return {col.ACTION_DIST_INPUTS: self._dist_inputs(outputs)}

    def compute_values(self, batch: TensorBatch) -> Tensor:
        """Values [N], without the policy branch."""
        obs = as_features(batch[col.OBS], flatten=self._flatten)
        if self._separate_mlps:
            return self.vf(obs).squeeze(-1)
        encoder = self.encoder if self.vf_encoder is None else self.vf_encoder
        return self.vf_head(encoder(obs)).squeeze(-1)

    def vjp(self, batch: TensorBatch) -> tuple[Tensor, Tensor, Callable[[Tensor, Tensor], None]]:
        """`forward_train` of separate MLPs without autograd, if `has_vjp`.

        Returns:
            Distribution inputs [N, P], values [N], and what turns the gradients of both, [N, P]
            and [N], into those of all parameters.
        """
        obs = as_features(batch[col.OBS], flatten=True)
        outputs, policy_backward = self.pi.vjp(obs)
        values, value_backward = self.vf.vjp(obs)

        def backward(d_inputs: Tensor, d_values: Tensor) -> None:
            if self.log_std is not None:
                d_inputs, d_log_std = d_inputs.chunk(2, -1)
                torch.sum(d_log_std, 0, out=self.log_std.grad)
            policy_backward(d_inputs)
            value_backward(d_values.unsqueeze(-1))

        return self._dist_inputs(outputs), values.squeeze(-1), backward

    def _dist_inputs(self, outputs: Tensor) -> Tensor:
        if self.log_std is None:
            return outputs
        return torch.cat((outputs, self.log_std.expand_as(outputs)), dim=-1)


def as_features(obs: Tensor, *, flatten: bool) -> Tensor:
    """Observations [N, ...] as an encoder takes them: float32, images in [0, 1]."""
    if obs.dtype != torch.float32:
        scale = 1.0 / 255.0 if obs.dtype == torch.uint8 else 1.0
        obs = obs.to(torch.float32) * scale
    return obs.flatten(1) if flatten and obs.dim() > 2 else obs


def wants_conv(space: gym.Space[Any], model: ModelConfig) -> bool:
    """Whether observations of this space are encoded by convolutions."""
    return model.conv is not None or is_image(box_of(space).shape)


def default_encoder(space: gym.Space[Any], model: ModelConfig) -> nn.Module:
    """Convolutions or hidden layers, as the `model` section has them."""
    box = box_of(space)
    if wants_conv(space, model):
        return ConvEncoder(box.shape, model.conv, model.conv_head)
    return MLP([gym.spaces.flatdim(box), *model.hidden], model.activation)


def box_of(space: gym.Space[Any]) -> gym.spaces.Box:
    """The space; raises ValueError if the default networks cannot take its observations."""
    if not isinstance(space, gym.spaces.Box):
        raise ValueError(
            f"the default networks need observations in a Box, not in a {type(space).__name__}:"
            " let env_runners.preprocessor_pref flatten them (deepmind), or name a module that "
            "takes them with model.use"
        )
    return space


def set_log_std_bias(head: nn.Linear, action_space: gym.Space[Any], log_std_init: float) -> None:
    """Start log standard deviations that the head computes at ``log_std_init`` too."""
    with torch.no_grad():
        for leaf in action_layout(action_space).leaves:
            if leaf.kind == "gaussian":
                start = leaf.inputs.start + leaf.num_columns
                head.bias[start : leaf.inputs.stop] = log_std_init


ModuleFactory = Callable[[gym.Space[Any], gym.Space[Any], ModelConfig], RLModule]
"""Makes a module for an observation space, an action space and the `model` section."""


def build_module(
    observation_space: gym.Space[Any], action_space: gym.Space[Any], model: ModelConfig
) -> RLModule:
    """The module of a `model` section, its states among its views; see `_make_module`."""
    module = _make_module(observation_space, action_space, model)
    views = state_views(module.initial_state(), model.max_seq_len)
    module.view_requirements = {**views, **module.view_requirements}
    return module


def _make_module(
    observation_space: gym.Space[Any], action_space: gym.Space[Any], model: ModelConfig
) -> RLModule:
    """The module that a `model` section describes, on the CPU, with freshly drawn weights.

    ``model.use`` names an `RLModule` subclass, or a ``torch.nn.Module`` that only encodes: it is
    constructed with the observation space and the section's further keys, maps observations
    [N, ...] (float32; images scaled to [0, 1]) to features [N, output_size] and says that
    ``output_size``; the two heads are added to it.

    Raises:
        TypeError: when ``model.use`` names neither.
    """
    default = ActorCritic
    for switch, path in MEMORIES.items():
        if getattr(model, switch):
            default = import_object(path)
    if model.use is None:
        return default(observation_space, action_space, model)
    factory = import_object(model.use)
    if isinstance(factory, type) and issubclass(factory, RLModule):
        return factory(observation_space, action_space, model, **model.kwargs)
    if isinstance(factory, type) and issubclass(factory, nn.Module):
        make_encoder = partial(factory, observation_space, **model.kwargs)
        return default(observation_space, action_space, model, make_encoder=make_encoder)
    raise TypeError(
        f"model.use: {model.use} is neither a subclass of rlrun.RLModule nor one of torch.nn.Module"
    )


def output_size(encoder: nn.Module) -> int:
    """Features of one row; raises TypeError for an encoder that does not tell."""
    size = getattr(encoder, "output_size", None)
    if not isinstance(size, int):
        raise TypeError(
            f"model.use: {type(encoder).__name__} must have an integer attribute output_size, the "
            f"number of features it returns for each row; it has {size!r}"
        )
    return size
