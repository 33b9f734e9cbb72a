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
from rlrun.policies.action_layout import action_layout
from rlrun.policies.distributions import Distribution, build_distribution
from rlrun.policies.networks import MLP, ConvEncoder, is_image, linear

TensorBatch = Mapping[str, Tensor]

POLICY_GAIN = 0.01
VALUE_GAIN = 1.0


class RLModule(nn.Module, ABC):
    """A network for one policy. Only `forward_train` must be written.

    A subclass named by ``model.use`` is constructed with the observation space, the action space,
    the `model` section, and the section's further keys as keyword arguments.

    Attributes:
        distribution: log-probabilities, entropies and KL divergences for the action space;
            ``distribution.num_inputs`` is P.
    """

    distribution: Distribution

    def __init__(
        self, observation_space: gym.Space[Any], action_space: gym.Space[Any], model: ModelConfig
    ) -> None:
        super().__init__()
        self.observation_space = observation_space
        self.action_space = action_space
        self.model = model
        self.distribution = build_distribution(action_space)

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
        conv = make_encoder is None and self._wants_conv()
        self._flatten = make_encoder is None and not conv
        shared = not self._flatten if model.share_layers is None else model.share_layers
        self._separate_mlps = self._flatten and not shared
        if self._separate_mlps:
            sizes = [self._num_features(), *model.hidden]
            self.pi = MLP([*sizes, num_outputs], model.activation, output_gain=POLICY_GAIN)
            self.vf = MLP([*sizes, 1], model.activation, output_gain=VALUE_GAIN)
            head = self.pi.last
        else:
            make_encoder = make_encoder or (lambda: self._make_encoder(conv))
            self.encoder = make_encoder()
            self.vf_encoder = None if shared else make_encoder()
            width = _output_size(self.encoder)
            head = self.pi_head = linear(width, num_outputs, POLICY_GAIN)
            self.vf_head = linear(width, 1, VALUE_GAIN)
        if not free_log_std:
            self._set_log_std_bias(head)

    def forward_train(self, batch: TensorBatch) -> dict[str, Tensor]:
        """``action_dist_inputs`` [N, P] and ``vf_preds`` [N]."""
        obs = self._prepare(batch[col.OBS])
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
        obs = self._prepare(batch[col.OBS])
        outputs = self.pi(obs) if self._separate_mlps else self.pi_head(self.encoder(obs))
        return {col.ACTION_DIST_INPUTS: self._dist_inputs(outputs)}

    def compute_values(self, batch: TensorBatch) -> Tensor:
        """Values [N], without the policy branch."""
        obs = self._prepare(batch[col.OBS])
        if self._separate_mlps:
            return self.vf(obs).squeeze(-1)
        encoder = self.encoder if self.vf_encoder is None else self.vf_encoder
        return self.vf_head(encoder(obs)).squeeze(-1)

    def _prepare(self, obs: Tensor) -> Tensor:
        if obs.dtype != torch.float32:
            scale = 1.0 / 255.0 if obs.dtype == torch.uint8 else 1.0
            obs = obs.to(torch.float32) * scale
        return obs.flatten(1) if self._flatten and obs.dim() > 2 else obs

    def _dist_inputs(self, outputs: Tensor) -> Tensor:
        if self.log_std is None:
            return outputs
        return torch.cat((outputs, self.log_std.expand_as(outputs)), dim=-1)

    def _num_features(self) -> int:
        return gym.spaces.flatdim(self._box())

    def _wants_conv(self) -> bool:
        return self.model.conv is not None or is_image(self._box().shape)

    def _box(self) -> gym.spaces.Box:
        space = self.observation_space
        if not isinstance(space, gym.spaces.Box):
            raise ValueError(
                f"the default networks need observations in a Box, not in a {type(space).__name__}:"
                " let env_runners.preprocessor_pref flatten them (deepmind), or name a module that "
                "takes them with model.use"
            )
        return space

    def _make_encoder(self, conv: bool) -> nn.Module:
        model = self.model
        if conv:
            return ConvEncoder(self._box().shape, model.conv, model.conv_head)
        return MLP([self._num_features(), *model.hidden], model.activation)

    def _set_log_std_bias(self, head: nn.Linear) -> None:
        """Start log standard deviations that the head computes at ``log_std_init`` too."""
        with torch.no_grad():
            for leaf in action_layout(self.action_space).leaves:
                if leaf.kind == "gaussian":
                    start = leaf.inputs.start + leaf.num_columns
                    head.bias[start : leaf.inputs.stop] = self.model.log_std_init


ModuleFactory = Callable[[gym.Space[Any], gym.Space[Any], ModelConfig], RLModule]
"""Makes a module for an observation space, an action space and the `model` section."""


def build_module(
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
    if model.use is None:
        return ActorCritic(observation_space, action_space, model)
    factory = import_object(model.use)
    if isinstance(factory, type) and issubclass(factory, RLModule):
        return factory(observation_space, action_space, model, **model.kwargs)
    if isinstance(factory, type) and issubclass(factory, nn.Module):
        make_encoder = partial(factory, observation_space, **model.kwargs)
        return ActorCritic(observation_space, action_space, model, make_encoder=make_encoder)
    raise TypeError(
        f"model.use: {model.use} is neither a subclass of rlrun.RLModule nor one of torch.nn.Module"
    )


def _output_size(encoder: nn.Module) -> int:
    size = getattr(encoder, "output_size", None)
    if not isinstance(size, int):
        raise TypeError(
            f"model.use: {type(encoder).__name__} must have an integer attribute output_size, the "
            f"number of features it returns for each row; it has {size!r}"
        )
    return size
