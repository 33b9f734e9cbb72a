"""MaskedModule: a module whose outputs obey the action mask of its observations.

Owns what a mask does in torch: see `action_mask` for what it means. Must not know networks,
algorithms or losses.

    N  rows        P  distribution inputs, one for each category
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from rlrun.config.problems import misfit
from rlrun.config.schema import ModelConfig
from rlrun.data import columns as col
from rlrun.data.nested import ACTION_MASK, has_action_mask, space_without_mask, without_mask
from rlrun.policies.action_mask import ActionMask
from rlrun.policies.action_sampling import FORBIDDEN
from rlrun.policies.rl_module import RLModule, TensorBatch, own_module

ModuleFactory = Callable[[gym.Space[Any], gym.Space[Any], ModelConfig], RLModule]
"""Makes a module for an observation space, an action space and the `model` section."""


def with_action_mask(
    factory: ModuleFactory,
    observation_space: gym.Space[Any],
    action_space: gym.Space[Any],
    model: ModelConfig,
) -> RLModule:
    """The factory's module; in a `MaskedModule` if observations have a mask.

    A network does not see the mask, unless ``model.use`` names an `RLModule`: that is given whole
    observations.
    """
    if not has_action_mask(observation_space):
        return factory(observation_space, action_space, model)
    whole = own_module(model) is not None
    seen = observation_space if whole else space_without_mask(observation_space)
    return MaskedModule(factory(seen, action_space, model), observation_space, whole=whole)


class MaskedModule(RLModule):
    """Forbids what the mask forbids in another module's distribution inputs or action values.

    It has the module's parameters, by the same names.

    Args:
        module: gives the inputs.
        observation_space: a Dict with the mask.
        whole: the module sees the mask as well.

    Raises:
        ConfigError: the module's view ``obs`` is not the present observation.
    """

    def __init__(self, module: RLModule, observation_space: gym.Space[Any], *, whole: bool) -> None:
        super().__init__(observation_space, module.action_space, module.model)
        view = module.view_requirements.get(col.OBS)
        if view is not None and not view.is_plain(col.OBS):
            message = (
                f"{type(module).__name__}: beside an action mask, view_requirements['obs'] must be "
                "the present observation; give the view another name, such as "
                f"view_requirements['frames'] = ViewRequirement('obs', shift={view.shift!r})"
            )
            raise misfit("model.use", message)
        self._inner = (module,)  # in a tuple, so that its name does not come before parameters
        self._parameters, self._buffers = module._parameters, module._buffers
        self._modules = module._modules
        self._non_persistent_buffers_set = module._non_persistent_buffers_set
        self._whole, self._mask = whole, ActionMask(observation_space, module.action_space)
        self.distribution, self.noisy = module.distribution, module.noisy
        self.view_requirements = {**module.view_requirements, **self.view_requirements}

    @property
    def has_vjp(self) -> bool:
        return self._inner[0].has_vjp

    def initial_state(self) -> list[Tensor]:
        return self._inner[0].initial_state()

    def modules(self, *arguments: Any, **options: Any) -> Iterator[nn.Module]:
        """See `torch.nn.Module.modules`; with the module itself, as with its parts."""
        yield from super().modules(*arguments, **options)
        yield self._inner[0]

    def train(self, mode: bool = True) -> MaskedModule:
        """See `torch.nn.Module.train`."""
        self._inner[0].train(mode)
        return super().train(mode)

    def draw_noise(self, rng: np.random.Generator) -> None:
        self._inner[0].draw_noise(rng)

    def forward_train(self, batch: TensorBatch) -> dict[str, Tensor]:
        return self._masked(self._inner[0].forward_train(self._seen(batch)), batch)

    def forward_exploration(self, batch: TensorBatch) -> dict[str, Tensor]:
        return self._masked(self._inner[0].forward_exploration(self._seen(batch)), batch)

    def forward_inference(self, batch: TensorBatch) -> dict[str, Tensor]:
        return self._masked(self._inner[0].forward_inference(self._seen(batch)), batch)

    def compute_values(self, batch: TensorBatch) -> Tensor:
        return self._inner[0].compute_values(self._seen(batch))

    def vjp(self, batch: Mapping[str, Any]) -> Any:
        """The module's, whose losses give forbidden inputs no gradient."""
        module: Any = self._inner[0]
        inputs, *others = module.vjp(self._seen(batch))
        allowed = torch.from_numpy(batch[col.OBS][ACTION_MASK] != 0)
        return np.where(self._with_some(allowed).numpy(), inputs, FORBIDDEN), *others

    def _seen(self, batch: Mapping[str, Any]) -> Mapping[str, Any]:
        if self._whole:
            return batch
        observations: Any = batch[col.OBS]
        return {**batch, col.OBS: without_mask(observations)}

    def _masked(self, outputs: dict[str, Tensor], batch: TensorBatch) -> dict[str, Tensor]:
        inputs = outputs.get(col.ACTION_DIST_INPUTS)
        if inputs is not None:
            observations: Any = batch[col.OBS]
            allowed = self._with_some(observations[ACTION_MASK] != 0)
            outputs[col.ACTION_DIST_INPUTS] = inputs.masked_fill(~allowed, float(FORBIDDEN))
        return outputs

    def _with_some(self, allowed: Tensor) -> Tensor:
        """All allowed where none is: no action follows an episode's last observation."""
        parts = allowed.split(list(self._mask.categories), dim=-1)
        return torch.cat([part | ~part.any(-1, keepdim=True) for part in parts], dim=-1)
