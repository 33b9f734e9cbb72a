"""CentralCritic: an actor-critic whose value function sees more than its policy.

Owns which entries of a Dict observation each of the two sees. Must not know of agents or losses.
"""

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
from torch import Tensor

from rlrun.config.problems import misfit
from rlrun.config.registry import no_such
from rlrun.config.schema import ModelConfig
from rlrun.data import columns as col
from rlrun.data.nested import ACTION_MASK
from rlrun.policies.layers import actor_critic_branches, value_hidden
from rlrun.policies.networks import MLP
from rlrun.policies.rl_module import (
    RLModule,
    TensorBatch,
    dist_inputs,
    encoder_of,
    log_std_parameter,
    set_log_std_bias,
)


class CentralCritic(RLModule):
    """Policy and value function are separate networks; some entries are for the latter alone.

    Centralised training with decentralised execution: with PPO this is MAPPO (Yu et al. 2022,
    arXiv:2103.01955). Each network has the layers that the `model` section describes.

    Args:
        value_only: entries of the Dict observation that the policy does not see.
    """

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        model: ModelConfig,
        value_only: Sequence[str] = ("state",),
    ) -> None:
        super().__init__(observation_space, action_space, model)
        if not isinstance(observation_space, gym.spaces.Dict):
            message = (
                f"CentralCritic needs Dict observations as they are, not {observation_space}: set "
                "env_runners.preprocessor_pref to null, and env_runners.observation_filter not"
            )
            raise misfit("model.use", message)
        if model.share_layers:
            raise misfit("model.share_layers", "CentralCritic has two networks; remove this key")
        entries = [key for key in observation_space.spaces if key != ACTION_MASK]
        for key in value_only:
            if key not in entries:
                raise misfit("model.value_only", no_such("entry", key, entries))
        self._value_sees = entries
        self._policy_sees = [key for key in entries if key not in value_only]
        if not self._policy_sees:
            raise misfit("model.value_only", "nothing is left for the policy to see")
        self.encoder, width = encoder_of(_part(observation_space, self._policy_sees), model)
        of_value = model.model_copy(update={"hidden": value_hidden(model)})
        self.vf_encoder, value_width = encoder_of(
            _part(observation_space, self._value_sees), of_value
        )
        self.log_std = log_std_parameter(action_space, model)
        num_log_std = 0 if self.log_std is None else len(self.log_std)
        num_outputs = self.distribution.num_inputs - num_log_std
        heads = actor_critic_branches((width,), (value_width,), num_outputs, model)
        self.pi, self.vf = MLP(heads["pi"]), MLP(heads["vf"])
        if self.log_std is None:
            set_log_std_bias(self.pi.last, action_space, model)

    def forward_train(self, batch: TensorBatch) -> dict[str, Tensor]:
        """``action_dist_inputs`` [N, P] and ``vf_preds`` [N]."""
        return self.forward_inference(batch) | {col.VF_PREDS: self.compute_values(batch)}

    def forward_inference(self, batch: TensorBatch) -> dict[str, Tensor]:
        """``action_dist_inputs`` [N, P] alone."""
        features = self.encoder(_part(batch[col.OBS], self._policy_sees))
        return {col.ACTION_DIST_INPUTS: dist_inputs(self.log_std, self.pi(features))}

    def compute_values(self, batch: TensorBatch) -> Tensor:
        """Values [N], without the policy."""
        return self.vf(self.vf_encoder(_part(batch[col.OBS], self._value_sees))).squeeze(-1)


def _part(observation: Any, keys: Sequence[str]) -> Any:
    """Entries of a Dict observation, or of its space."""
    parts = {key: observation[key] for key in keys}
    return gym.spaces.Dict(parts) if isinstance(observation, gym.spaces.Dict) else parts
