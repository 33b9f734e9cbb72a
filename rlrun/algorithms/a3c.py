"""A3C: asynchronous advantage actor-critic (Mnih et al. 2016, arXiv:1602.01783, algorithm S3).

P parameters of the network

Each env runner computes the gradient of its own fragment, with the weights it sampled it with. The
learner applies gradients one by one, in order of arrival, and sends the new weights to the runner
that sent the gradient, and to no other. A gradient was therefore computed with weights some updates
old; this *lag*, at most about the number of runners, is reported.

With several policies a runner computes the gradient of each that learns, and all are applied.

Without remote runners this is A2C with a batch of one fragment, and runs are exactly repeatable.
With remote ones the order of the gradients depends on the machine: two runs of one seed differ, and
a resumed run differs from an uninterrupted one; but gradients that were under way are computed
again from the same rows and weights, and none is lost.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from numpy.typing import NDArray

from rlrun.algorithms.a2c import a2c_gradient, a2c_loss
from rlrun.algorithms.algorithm import Algorithm
from rlrun.algorithms.asynchronous import FragmentStream
from rlrun.algorithms.callbacks import Callbacks
from rlrun.algorithms.on_policy import ActorCriticTraining
from rlrun.config.batch_arithmetic import stream_length
from rlrun.config.builder import AlgorithmConfig
from rlrun.config.code_checks import find_callable
from rlrun.config.policies import PolicySettings
from rlrun.config.schedules import value_at
from rlrun.config.schema import Count, ExperimentConfig, LearnersConfig, ModelConfig
from rlrun.data import columns as col
from rlrun.data.sample_batch import MultiAgentBatch, SampleBatch
from rlrun.learning.learner import Learner, reduced
from rlrun.learning.returns import add_advantages
from rlrun.policies.torch_policy import TorchPolicy
from rlrun.sampling.env_runner import EnvRunner
from rlrun.sampling.runner_messages import PolicyFactory, SampleReply, SampleRequest

STEPS_OF_A_FRAGMENT = 20  # at most, with rollout_fragment_length: auto; the paper's t_max


class A3CTraining(ActorCriticTraining):
    """A3C's own settings."""

    train_batch_size: Count = 2048
    """Env steps of one iteration, exactly; each fragment of them becomes one gradient step."""


class A3CConfig(AlgorithmConfig):
    """Builds an A3C experiment in Python."""

    algorithm = "A3C"


class A3CPolicy(TorchPolicy):
    """Acts, and computes gradients of the batches that it acted in.

    Args:
        training: discount and weights of the loss.
        device: where it acts and computes.
    """

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        model: ModelConfig,
        *,
        training: A3CTraining,
        device: str = "cpu",
    ) -> None:
        super().__init__(observation_space, action_space, model, device=device)
        self._training = training
        self._learner = Learner(self.module, training, LearnersConfig(device=device))
        self._flat = self._learner.parameters  # one vector for acting and gradients
        self._entropy_coeff = 0.0

    def set_exploration(self, settings: Mapping[str, float]) -> None:
        """Set the weight of the entropy bonus."""
        self._entropy_coeff = settings["entropy_coeff"]

    def compute_gradients(self, batch: SampleBatch) -> tuple[NDArray[np.float32], dict[str, float]]:
        """The gradient of A2C's loss on this batch, float32 ``[P]``, and statistics."""
        training, learner = self._training, self._learner
        rows = learner.load(batch, (col.ACTIONS,))
        explained = add_advantages(rows, batch, self.module, training.gamma, training.lambda_)
        arguments = {"vf_loss_coeff": training.vf_loss_coeff, "entropy_coeff": self._entropy_coeff}
        for part in self.module.modules():
            # The running statistics of a normalisation would not reach the learner.
            part.training = not getattr(part, "track_running_stats", False)
        means = learner.compute_gradients(
            rows.microbatches(None), rows.size, a2c_loss, arguments, a2c_gradient
        )
        self.module.eval()
        statistics = {name: float(value) for name, value in means.items()}
        if explained is not None:
            statistics["vf_explained_variance"] = explained
        return learner.parameters.grads.to("cpu", copy=True).numpy(), statistics


@dataclass(frozen=True)
class PolicyGradient:
    """The gradient of one policy's rows of a fragment."""

    num_rows: int
    gradients: NDArray[np.float32]
    """``[P]``."""
    statistics: dict[str, float]


@dataclass(frozen=True)
class GradientReply:
    """A fragment's gradients, and the reply without the rows of these policies."""

    sampled: SampleReply
    by_policy: dict[str, PolicyGradient]


def sample_gradients(runner: EnvRunner, request: SampleRequest, weights: Any) -> GradientReply:
    """Sample a fragment in a runner; return gradients in place of its rows."""
    reply = runner.sample_fragment(request, weights)
    batches, found = reply.batches.policy_batches, {}
    for policy_id, policy in runner.policies.items():
        learns = request.policies is None or request.policies[policy_id].train
        if not isinstance(policy, A3CPolicy):
            continue  # a custom policy learns from rows, in the training process
        batch = batches.pop(policy_id, None)
        if learns and batch is not None:
            found[policy_id] = PolicyGradient(len(batch), *policy.compute_gradients(batch))
    rest = MultiAgentBatch(batches, reply.env_steps)
    return GradientReply(replace(reply, batches=rest), found)


class A3C(Algorithm[A3CTraining]):
    """Apply gradients as they arrive; send new weights to the runner that each came from."""

    Training = A3CTraining
    Config = A3CConfig
    asynchronous = True
    trains_several_policies = True

    @classmethod
    def validate(cls, config: ExperimentConfig) -> Iterator[tuple[str, str]]:
        yield from super().validate(config)
        if config.env_runners.compress_observations:
            message = "A3C sends gradients and no observations; remove this key"
            yield "env_runners.compress_observations", message
        for callback in config.callbacks:
            found, _ = find_callable((), callback.use)
            if getattr(found, "on_learn_on_batch", None) not in (None, Callbacks.on_learn_on_batch):
                message = f"{callback.use}.on_learn_on_batch is not called, as A3C's runners learn"
                yield "callbacks", f"{message} from their own rows; define on_sample_end"

    @classmethod
    def policy_problems(cls, settings: PolicySettings) -> Iterator[tuple[str, str]]:
        if settings.training.learner_connectors:
            message = "A3C's runners learn from their own rows; remove this key"
            yield "training.learner_connectors", message

    def policy_factory(self, policy_id: str) -> PolicyFactory:
        return partial(A3CPolicy, training=self.training_of(policy_id))

    def exploration(self, policy_id: str) -> dict[str, float]:
        """The weight of the entropy bonus, which runners need for their gradients."""
        schedule = self.training_of(policy_id).entropy_coeff
        return {"entropy_coeff": value_at(schedule, self.env_steps)}

    def setup(self) -> None:
        length = stream_length(
            self.training.train_batch_size, self.config.env_runners, STEPS_OF_A_FRAGMENT
        )
        self.stream = self.keep(
            "fragments", FragmentStream(self, length, refill=False, task=sample_gradients)
        )

    def training_step(self) -> dict[str, Any]:
        """One iteration: gradients of as many fragments as make up a train batch."""
        steps_before = self.progress.counted_steps
        gathered: dict[str, list[dict[str, float]]] = defaultdict(list)
        trained: dict[str, int] = defaultdict(int)
        progress, sampler = self.progress, self.stream.sampler
        if sampler.weights_version != self.policies.weights_version:
            self.stream.broadcast()
        while progress.counted_steps - steps_before < self.training.train_batch_size:
            with self.timers.phase("sample"):
                reply: GradientReply = sampler.take()
                self.count([reply.sampled])
            for _ in self.train_batches(reply.sampled.batches):
                pass  # the rows left in it are learned from by custom policies
            lag = self.policies.weights_version - reply.sampled.weights_version
            removed = self.removed_since(reply.sampled)
            with self.timers.phase("learn"):
                for policy_id, found in reply.by_policy.items():
                    # Rows stay with the runner, so `policies_to_train` is asked without a batch.
                    if policy_id not in removed and self.policies.is_policy_to_train(policy_id):
                        row = self._apply(policy_id, found)
                        gathered[policy_id].append({**row, "policy_lag_mean": lag})
                        trained[policy_id] += found.num_rows
            self.sync_weights()
            self.stream.broadcast()
            sampler.ask(reply.sampled.runner_index)
        result: dict[str, Any] = {}
        for policy_id, rows in gathered.items():
            if policy_id in self.learners:
                result |= self._result(policy_id, rows, trained[policy_id])
        return result

    def _apply(self, policy_id: str, found: PolicyGradient) -> dict[str, float]:
        """One gradient step; returns its statistics."""
        learner = self.learners[policy_id]
        lr = value_at(self.training_of(policy_id).lr, self.env_steps)
        grads = learner.parameters.grads
        grads.copy_(torch.tensor(found.gradients, device=grads.device))
        return {**found.statistics, "grad_norm": float(learner.apply_gradients(lr)), "lr": lr}

    def _result(
        self, policy_id: str, rows: list[dict[str, float]], trained_steps: int
    ) -> dict[str, Any]:
        statistics: dict[str, Any] = {**dict.fromkeys(STATISTICS), **reduced(rows)}
        statistics["policy_lag_max"] = max(row["policy_lag_mean"] for row in rows)
        further = {"num_updates": len(rows), "lr": rows[-1]["lr"], **self.exploration(policy_id)}
        return self.learner_result(trained_steps, {**statistics, **further}, policy_id)


STATISTICS = (
    *("policy_loss", "vf_loss", "entropy", "total_loss", "vf_explained_variance"),
    *("grad_norm", "policy_lag_mean"),
)
"""Averaged over the gradients of an iteration."""
