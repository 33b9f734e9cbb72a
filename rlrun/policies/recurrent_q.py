"""RecurrentQNetwork: action values from an encoder and an LSTM or GRU."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
from torch import Tensor

from rlrun.config.schema import ModelConfig
from rlrun.data import columns as col
from rlrun.policies.networks import dueling_values
from rlrun.policies.policy import state_views
from rlrun.policies.recurrent import RecurrentActorCritic
from rlrun.policies.rl_module import TensorBatch


class RecurrentQNetwork(RecurrentActorCritic):
    """Q(s, a) of all actions at once; ``action_dist_inputs`` [M, n] are these values.

    The heads are those of an actor-critic: with dueling, the value head is the state's value and
    the other one the advantages. States have a row for each step of a batch, since replay may begin
    a sequence anywhere.
    """

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        model: ModelConfig,
        *,
        dueling: bool,
    ) -> None:
        super().__init__(observation_space, action_space, model)
        self.dueling = dueling
        views = state_views(self.initial_state(), 1)
        self.view_requirements = {**views, **self.view_requirements}

    def forward_train(self, batch: TensorBatch) -> dict[str, Tensor]:
        """``action_dist_inputs`` [M, n]: the values of all actions."""
        features, _ = self._remember(batch)
        return {col.ACTION_DIST_INPUTS: self._values(features)}

    def forward_inference(self, batch: TensorBatch) -> dict[str, Tensor]:
        """One step: ``action_dist_inputs`` [S, n], and the states [S, C] after it."""
        features, states = self._remember(batch)
        outs = {f"{col.STATE_OUT_PREFIX}{k}": state for k, state in enumerate(states)}
        return {col.ACTION_DIST_INPUTS: self._values(features), **outs}

    def _values(self, features: Tensor) -> Tensor:
        values = self.heads.dist_inputs(features)
        if not self.dueling:
            return values
        return dueling_values(self.heads.values(features)[:, None], values)
