"""A3C: asynchronous advantage actor-critic (Mnih et al. 2016, arXiv:1602.01783, algorithm S3).

P parameters of the network

Each env runner computes the gradient of its own fragment, with the weights it sampled it with. The
learner applies gradients one by one, in the order in which they come, and sends the new weights to
the runner that delivered, and to no other: the others go on with what they have. A gradient was
therefore computed some updates ago; its *lag*, at most about the number of runners, is reported.

With no remote runners this is A2C with a batch of one fragment, and runs are exactly repeatable.
With some, the order of the gradients depends on the machine: two runs of one seed differ, and a
resumed run is not the one that was left alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from rlrun.algorithms.a2c import a2c_loss
from rlrun.algorithms.algorithm import Algorithm
from rlrun.config.batch_arithmetic import stream_length, stream_problems
from rlrun.config.builder import AlgorithmConfig
from rlrun.config.schema import (
    Count,
    ExperimentConfig,
    LearnersConfig,
    ModelConfig,
    Schedule,
    TrainingConfig,
)
from rlrun.data import columns as col
from rlrun.data.sample_batch import SampleBatch
from rlrun.learning.learner import Learner, value_at
from rlrun.learning.returns import add_advantages
from rlrun.policies.torch_policy import TorchPolicy
from rlrun.sampling.asynchronous import AsynchronousSampler
from rlrun.sampling.env_runner import EnvRunner
from rlrun.sampling.runner_messages import PolicyFactory, SampleReply, SampleRequest

STEPS_OF_A_FRAGMENT = 20  # at most, with rollout_fragment_length: auto; the paper's t_max


class A3CTraining(TrainingConfig):
    """A3C's own settings."""

    train_batch_size: Count = 2048
    """Env steps of one iteration, exactly; each fragment of them becomes one gradient step."""
    lr: Schedule = 5e-4
    """Learning rate: a number, or a schedule [[env_steps, value], ...]."""
    lambda_: float = Field(default=1.0, ge=0, le=1)
    """Lambda of generalised advantage estimation; 1 takes n-step returns, as the paper does."""
    vf_loss_coeff: float = Field(default=0.5, ge=0)
    """Weight of the value loss, which is half the mean squared error."""
    entropy_coeff: Schedule = 0.01
    """Weight of the entropy bonus; may be a schedule."""
    grad_clip: float | None = Field(default=0.5, gt=0)
    """Bound on the gradients; null leaves them alone."""
    adam_epsilon: float = Field(default=1e-5, gt=0)
    """Adam's epsilon."""


class A3CConfig(AlgorithmConfig):
    """Builds an A3C experiment in Python."""

    algorithm = "A3C"


class A3CPolicy(TorchPolicy):
    """Acts, and computes the gradient of what came of it.

    Args:
        training: discount and weights of the loss.
    """

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        model: ModelConfig,
        *,
        training: A3CTraining,
    ) -> None:
        super().__init__(observation_space, action_space, model)
        self._training = training
        self._learner = Learner(self.module, training, LearnersConfig(device="cpu"))
        self._flat = self._learner.parameters  # it has re-homed them: one vector for both
        self._entropy_coeff = 0.0

    def set_exploration(self, settings: Mapping[str, float]) -> None:
        """Take over the weight of the entropy bonus."""
        self._entropy_coeff = settings["entropy_coeff"]

    def compute_gradients(self, batch: SampleBatch) -> tuple[NDArray[np.float32], dict[str, float]]:
        """The gradient of A2C's loss on this batch, float32 ``[P]``, and statistics."""
        training, learner = self._training, self._learner
        rows = learner.load(batch, (col.ACTIONS,))
        explained = add_advantages(rows, batch, self.module, training.gamma, training.lambda_)
        arguments = {
            "vf_loss_coeff": training.vf_loss_coeff,
            "entropy_coeff": self._entropy_coeff,
        }
        means = learner.compute_gradients(rows.pieces(None), rows.size, a2c_loss, arguments)
        statistics = {name: float(value) for name, value in means.items()}
        if explained is not None:
            statistics["vf_explained_variance"] = explained
        return learner.parameters.grads.numpy().copy(), statistics


@dataclass(frozen=True)
class GradientReply:
    """A fragment's gradient, and everything of the reply besides its batch."""

    sampled: SampleReply
    gradients: NDArray[np.float32]
    """``[P]``."""
    statistics: dict[str, float]

    @property
    def state(self) -> dict[str, Any]:
        """Where the runner stands now."""
        return self.sampled.state


def sample_gradients(runner: EnvRunner, request: SampleRequest, weights: Any) -> GradientReply:
    """What each runner does with a request: a fragment, and its gradient in place of it."""
    reply = runner.sample_fragment(request, weights)
    assert isinstance(runner.policy, A3CPolicy)
    gradients, statistics = runner.policy.compute_gradients(reply.batch)
    return GradientReply(replace(reply, batch=SampleBatch({})), gradients, statistics)


class A3C(Algorithm):
    """Take the gradients that come, apply each, send the weights back to where it came from."""

    Training = A3CTraining
    Config = A3CConfig
    trial_of_columns = None  # runners learn from their batches themselves

    @classmethod
    def validate(cls, config: ExperimentConfig) -> Iterator[tuple[str, str]]:
        """Problems of the batch size, as ``(key, message)``."""
        yield from stream_problems(config.training.train_batch_size, config.env_runners)
        if config.env_runners.compress_observations:
            message = "A3C sends gradients and no observations; leave it out"
            yield "env_runners.compress_observations", message

    def policy_factory(self) -> PolicyFactory:
        """The policy that computes gradients."""
        return partial(A3CPolicy, training=self._settings())

    def exploration(self) -> dict[str, float]:
        """The weight of the entropy bonus, which runners need for their gradients."""
        return {"entropy_coeff": value_at(self._settings().entropy_coeff, self.env_steps)}

    def setup(self) -> None:
        length = stream_length(
            self._settings().train_batch_size, self.config.env_runners, STEPS_OF_A_FRAGMENT
        )
        self.sampler = AsynchronousSampler(
            self.env_runner_group,
            lambda: self.next_request(length),
            refill=False,
            task=sample_gradients,
        )

    def training_step(self) -> dict[str, Any]:
        """One iteration: as many gradients as make up a train batch."""
        training, steps_before = self._settings(), self.env_steps
        gathered: list[dict[str, float]] = []
        if self.sampler.weights_version < 0:
            self.sampler.set_weights(self.acting_weights, self.weights_version)
        while self.env_steps - steps_before < training.train_batch_size:
            with self.timers.phase("sample"):
                reply: GradientReply = self.sampler.take()
                self.book([reply.sampled])
            lag = self.weights_version - reply.sampled.weights_version
            with self.timers.phase("learn"):
                lr = value_at(training.lr, self.env_steps)
                norm = self._apply(reply.gradients, lr)
            self.sync_weights()
            with self.timers.phase("sync"):
                self.sampler.set_weights(self.acting_weights, self.weights_version)
                self.sampler.ask(reply.sampled.runner_index)
            gathered.append({**reply.statistics, "grad_norm": norm, "policy_lag_mean": lag})
        statistics: dict[str, Any] = {name: _mean(gathered, name) for name in STATISTICS}
        statistics["policy_lag_max"] = max(row["policy_lag_mean"] for row in gathered)
        further = {"num_updates": len(gathered), "lr": lr, **self.exploration()}
        return self.learner_result(self.env_steps - steps_before, {**statistics, **further})

    def _apply(self, gradients: NDArray[np.float32], lr: float) -> float:
        grads = self.learner.parameters.grads
        grads.copy_(torch.tensor(gradients, device=grads.device))
        return float(self.learner.apply_gradients(lr))

    def get_extra_state(self) -> dict[str, Any]:
        return {}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        # Nothing that was asked before counts any more; the next request carries these weights.
        self.sampler.reset()
        self.sampler.weights_version = -1

    def _settings(self) -> A3CTraining:
        assert isinstance(self.config.training, A3CTraining)  # the loader made it from `Training`
        return self.config.training


STATISTICS = (
    *("policy_loss", "vf_loss", "entropy", "total_loss", "vf_explained_variance"),
    *("grad_norm", "policy_lag_mean"),
)
"""Averaged over the gradients of an iteration."""


def _mean(rows: list[dict[str, float]], name: str) -> float | None:
    values = [row[name] for row in rows if name in row]
    return sum(values) / len(values) if values else None
