"""TorchPolicy: acting with any RLModule.

Owns the way of observations into the module and of its outputs back to numpy. Actions are sampled
in numpy (`action_sampling`) from noise that the caller drew, so that they depend on the seed tree
and not on torch's generators or on the device. Must not know of environments, Ray or losses.
"""

import math
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import nn

from rlrun.config.problems import misfit
from rlrun.config.schema import ModelConfig
from rlrun.data import columns as col
from rlrun.data.column_data import Array, map_leaves
from rlrun.data.nested import nest
from rlrun.policies.action_mask import action_mask_of
from rlrun.policies.action_sampling import ActionSampler, SamplingPolicy
from rlrun.policies.catalog import build_module
from rlrun.policies.chosen_distributions import sampler_of
from rlrun.policies.flat_parameters import FlatParameters, to_tensor, weights_checksum
from rlrun.policies.layers import Layout
from rlrun.policies.masked_module import with_action_mask
from rlrun.policies.networks import StateNoiseMLP
from rlrun.policies.rl_module import NOISE_FEATURES, RLModule
from rlrun.policies.view_reads import unread_views

NORMALISATION = (nn.LayerNorm, nn.GroupNorm, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def require_cuda(device: str | torch.device) -> None:
    """Raise ConfigError if policies of env runners are to act on a GPU, and torch sees none."""
    if torch.device(device).type == "cuda" and not torch.cuda.is_available():
        message = "torch sees no CUDA device to act on; set it to 0"
        raise misfit("env_runners.num_gpus_per_env_runner", message)


class TorchPolicy(SamplingPolicy):
    """Acts with an `RLModule`, in evaluation mode and without gradients.

    Args:
        observation_space: of the preprocessed observations.
        action_space: of the environment.
        model: the `model` section; builds the module unless one is given.
        module: act with this module, re-homed into one flat vector and moved to ``device``.
        sampler: turns the module's outputs into actions; by default samples from the module's
            distribution.
        with_logp: whether batches get ``action_logp``.
        device: where the forward pass runs.
    """

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        model: ModelConfig,
        *,
        module: RLModule | None = None,
        sampler: ActionSampler | None = None,
        with_logp: bool = True,
        device: str | torch.device = "cpu",
    ) -> None:
        require_cuda(device)
        self.device = torch.device(device)
        self._on_cpu = self.device.type == "cpu"
        if module is None:
            module = with_action_mask(build_module, observation_space, action_space, model)
        self.module = module.to(self.device).eval()
        if sampler is None:
            sampler = sampler_of(module.distribution, action_space, self.device)
        super().__init__(observation_space, action_space, sampler, with_logp=with_logp)
        self._mask = action_mask_of(observation_space, action_space)
        self.draws_for_fragments = module.noisy
        last = getattr(module, "pi", None)
        self._state_noise = last if isinstance(last, StateNoiseMLP) else None
        if self._state_noise is not None:
            self.hold_noise(self._state_noise.weight_log_std.numel(), model.sde_sample_freq)
        self._flat = FlatParameters(self.module)
        self._checksum: int | None = None  # of the weights; not known yet
        self.view_requirements = dict(self.module.view_requirements)
        acting = type(self).compute_actions_from_input_dict
        if acting is TorchPolicy.compute_actions_from_input_dict:  # another one may read anything
            ways = "forward_exploration", "forward_inference"
            self.unread_views = unread_views(self.module, *ways)
        self._state_outs = [
            f"{col.STATE_OUT_PREFIX}{k}" for k in range(len(self.module.initial_state()))
        ]

    def get_initial_state(self) -> list[Array]:
        return [state.detach().cpu().numpy() for state in self.module.initial_state()]

    @property
    def layout(self) -> Layout:
        """Where each parameter lies in the weights: name -> (offset, shape)."""
        return self._flat.layout

    @property
    def unperturbed(self) -> list[slice]:
        """The places of the parameters of normalisation layers, and of buffers."""
        norms = [n for n, part in self.module.named_modules() if isinstance(part, NORMALISATION)]
        places = [self.layout[name] for name in self.layout if name.rpartition(".")[0] in norms]
        slices = [slice(offset, offset + math.prod(shape)) for offset, shape in places]
        return [*slices, slice(self._flat.num_parameters, None)]

    def compute_actions_from_input_dict(
        self,
        input_dict: Mapping[str, Array],
        *,
        explore: bool | None = None,
        noise: Array | None = None,
    ) -> tuple[Array, list[Array], dict[str, Array]]:
        """See `Policy.compute_actions_from_input_dict`.

        Everything the module returns besides distribution inputs and states becomes a column too.
        """
        explore = self.explores if explore is None else explore
        with torch.inference_mode():
            batch = {name: self._to_tensors(view) for name, view in input_dict.items()}
            forward = self.module.forward_exploration if explore else self.module.forward_inference
            fetches = {name: value.cpu().numpy() for name, value in forward(batch).items()}
        states = [fetches.pop(name) for name in self._state_outs]
        inputs = fetches[col.ACTION_DIST_INPUTS]
        features = inputs if self._state_noise is None else fetches.pop(NOISE_FEATURES)
        if explore and self.module.values_when_acting:
            if self._checksum is None:
                self._checksum = weights_checksum(self.module)
            fetches[col.WEIGHTS_CHECKSUM] = np.full(len(inputs), self._checksum, np.int64)
        if self._mask is not None:
            inputs = fetches[col.ACTION_DIST_INPUTS] = self._mask.apply(inputs, input_dict[col.OBS])
        if not explore:
            return self.sampler.mode(inputs), states, fetches
        if noise is None:
            noise = self.draw_noise(np.random.default_rng(), 1, len(inputs))[0]
        if self._state_noise is not None:
            log_std = self._state_noise.weight_log_std.detach().cpu().numpy()
            noise = self.noise_of_actions(noise, inputs, features, log_std)
        return self.sampler.sample(inputs, noise), states, fetches

    def begin_fragment(self, rng: np.random.Generator) -> None:
        self.module.draw_noise(rng)

    def learn_on_batch(self, batch: Any) -> dict[str, Any]:
        """Raise TypeError: learning needs a loss."""
        raise TypeError(
            f"{type(self).__name__} has no loss to learn by: derive it from rlrun.LearningPolicy "
            "and define loss(), define learn_on_batch(), or set train: false"
        )

    def get_weights(self) -> Array:
        """The flat vector, float32 [P], copied."""
        return self._flat.to_numpy()

    def set_weights(self, weights: Array) -> None:
        """Load a flat vector [P], in one copy straight to the device."""
        self._flat.load(weights)
        self._checksum = None

    def _to_tensors(self, obs: Any) -> Any:
        """Tensors on the device; nested observations keep their structure."""
        if not isinstance(obs, np.ndarray) or obs.dtype.names is not None:
            return map_leaves(self._to_tensors, nest(obs))
        tensor = to_tensor(obs)
        return tensor if self._on_cpu else tensor.to(self.device)
