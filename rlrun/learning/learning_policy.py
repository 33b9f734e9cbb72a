"""LearningPolicy: a policy that brings its own loss, and learns by it where nothing else drives it.

Owns gradient steps of one policy on batches as they are sampled. A subclass is named by
``multi_agent.policies.<id>.use``, or used by hand, in an `EnvRunner` or alone. Must not know of
algorithms.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlrun.config.schedules import value_at
from rlrun.config.schema import LearnersConfig, ModelConfig, TrainingConfig
from rlrun.data.sample_batch import SampleBatch
from rlrun.learning.learner import Learner
from rlrun.learning.loaded_batch import Rows, columns_of_numbers
from rlrun.policies.rl_module import RLModule
from rlrun.policies.torch_policy import TorchPolicy


class LearningPolicy(TorchPolicy):
    """Acts with an `RLModule`, and learns by `loss`: one gradient step on each train batch.

    Args:
        config: settings of `model` and of `training`, all in one dict: ``{"hidden": [32], "lr":
            1e-3}``; further keys are the subclass's own, in ``self.config``.

    Raises:
        pydantic.ValidationError: one of the settings is wrong.
    """

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        config: Mapping[str, Any] | None = None,
    ) -> None:
        config = dict(config or {})
        model, training = (
            kind.model_validate({k: config.pop(k) for k in kind.model_fields if k in config})
            for kind in (ModelConfig, TrainingConfig)
        )
        assert isinstance(model, ModelConfig)
        assert isinstance(training, TrainingConfig)
        super().__init__(observation_space, action_space, model)
        self.config = config
        self.learner = Learner(self.module, training, LearnersConfig(device="cpu"))
        self._flat = self.learner.parameters  # one vector for acting and gradients
        self._env_steps = 0  # of the rows learned from, for a schedule of the learning rate

    @abstractmethod
    def loss(self, module: RLModule, rows: Rows) -> tuple[Tensor, dict[str, Tensor]]:
        """A scalar with gradient, and statistics without.

        Args:
            rows: all columns of numbers of the batch ``[N, ...]``, and what the module sees.
        """

    def extra_grad_process(self, module: RLModule) -> dict[str, Tensor]:
        """Change the parameters' gradients before they are clipped; returns further statistics."""
        return {}

    def learn_on_batch(self, batch: SampleBatch) -> dict[str, Any]:
        """One gradient step on the batch; its statistics."""
        gradients, statistics = self.compute_gradients(batch)
        self._env_steps += len(batch)
        return {**statistics, **self.apply_gradients(gradients)}

    def compute_gradients(self, batch: SampleBatch) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """The gradients of `loss` as one vector, float32 ``[P]``, and statistics."""
        learner = self.learner
        rows = learner.load(batch, columns_of_numbers(batch, self.module))
        self.module.train()  # with dropout, for example
        try:
            means = learner.compute_gradients(rows.microbatches(None), rows.size, self.loss, {})
        finally:
            self.module.eval()
        statistics = {**means, **self.extra_grad_process(self.module)}
        gradients = learner.parameters.grads.numpy().copy()
        return gradients, {name: float(value) for name, value in statistics.items()}

    def apply_gradients(self, gradients: NDArray[np.float32]) -> dict[str, Any]:
        """A step along gradients ``[P]``, of this policy or of a copy with the same weights.

        A schedule of the learning rate goes on in `learn_on_batch` only.
        """
        learner = self.learner
        learner.parameters.grads.copy_(torch.from_numpy(gradients))
        lr = value_at(learner.training.lr, self._env_steps)
        return {"grad_norm": float(learner.apply_gradients(lr)), "lr": lr}

    def get_state(self) -> dict[str, Any]:
        """Weights, and the optimizer's state."""
        learner = {"learner": self.learner.get_state(), "env_steps": self._env_steps}
        return {**super().get_state(), **learner}

    def set_state(self, state: Mapping[str, Any]) -> None:
        super().set_state(state)
        self.learner.set_state(state["learner"])
        self._env_steps = int(state["env_steps"])
