"""A2C: advantage actor-critic, synchronous (Mnih et al. 2016, arXiv:1602.01783, algorithm S3).

M rows of a microbatch    P inputs of the action distribution
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import Field
from torch import Tensor

from rlrun.algorithms.algorithm import Algorithm
from rlrun.config.batch_arithmetic import fragment_problems
from rlrun.config.builder import AlgorithmConfig
from rlrun.config.schema import Count, ExperimentConfig, Schedule, TrainingConfig
from rlrun.data import columns as col
from rlrun.learning.learner import value_at
from rlrun.learning.returns import add_advantages
from rlrun.policies.rl_module import RLModule


class A2CTraining(TrainingConfig):
    """A2C's own settings."""

    train_batch_size: Count = 256
    """Env steps collected for one iteration, exactly; one gradient step is made on them."""
    lr: Schedule = 1e-3
    """Learning rate: a number, or a schedule [[env_steps, value], ...]."""
    lambda_: float = Field(default=1.0, ge=0, le=1)
    """Lambda of generalised advantage estimation; 1 takes n-step returns, as the paper does."""
    microbatch_size: Count | None = None
    """Rows that go through the network at once; their gradients are added. null takes all."""
    vf_loss_coeff: float = Field(default=0.5, ge=0)
    """Weight of the value loss, which is half the mean squared error."""
    entropy_coeff: Schedule = 0.01
    """Weight of the entropy bonus; may be a schedule."""
    grad_clip: float | None = Field(default=0.5, gt=0)
    """Bound on the gradients; null leaves them alone."""
    adam_epsilon: float = Field(default=1e-5, gt=0)
    """Adam's epsilon."""


class A2CConfig(AlgorithmConfig):
    """Builds an A2C experiment in Python."""

    algorithm = "A2C"


def a2c_loss(
    module: RLModule, rows: dict[str, Tensor], *, vf_loss_coeff: float, entropy_coeff: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """``-mean(log pi(a|s) A)``, half the mean squared value error, and the entropy bonus.

    Args:
        rows: obs ``[M, ...]``, actions ``[M, ...]``, advantages and value_targets ``[M]``, which
            are numbers here: no gradient flows through them.

    Returns:
        The loss, a scalar with gradient, and statistics, scalars without.
    """
    outputs = module.forward_train(rows)
    inputs, values = outputs[col.ACTION_DIST_INPUTS], outputs[col.VF_PREDS]
    logp, entropies = module.distribution.logp_entropy(inputs, rows[col.ACTIONS])
    policy_loss = -(logp * rows[col.ADVANTAGES]).mean()
    value_loss = 0.5 * (values - rows[col.VALUE_TARGETS]).square().mean()
    entropy = entropies.mean()
    loss = policy_loss + vf_loss_coeff * value_loss - entropy_coeff * entropy
    statistics = {
        "policy_loss": policy_loss.detach(),
        "vf_loss": value_loss.detach(),
        "entropy": entropy.detach(),
        "total_loss": loss.detach(),
    }
    return loss, statistics


class A2C(Algorithm):
    """Sample a batch, take one step on it, hand the new weights to the env runners."""

    Training = A2CTraining
    trains_several_policies = True
    Config = A2CConfig
    several_learners = True

    @classmethod
    def validate(cls, config: ExperimentConfig) -> Iterator[tuple[str, str]]:
        """Problems of the batch size, as ``(key, message)``."""
        training = config.training
        assert isinstance(training, A2CTraining)  # the loader made it from `Training`
        yield from fragment_problems(training.train_batch_size, config.env_runners)

    def training_step(self) -> dict[str, Any]:
        """One iteration: sample, estimate advantages, one gradient step, sync."""
        steps_before = self.env_steps
        result: dict[str, Any] = {}
        for policy_id, batch in self.train_batches(self.sample()):
            training, learner = self._settings(policy_id), self.learners[policy_id]
            lr = value_at(training.lr, steps_before)
            entropy_coeff = value_at(training.entropy_coeff, steps_before)
            arguments = {"vf_loss_coeff": training.vf_loss_coeff, "entropy_coeff": entropy_coeff}
            with self.timers.phase("transfer"):
                rows = learner.load(batch, (col.ACTIONS,))
            with self.timers.phase("learn"):
                explained = add_advantages(
                    rows, batch, learner.module, training.gamma, training.lambda_
                )
                pieces = rows.pieces(training.microbatch_size)
                means = learner.accumulate(pieces, rows.size, a2c_loss, arguments, lr=lr)
                statistics = {name: float(value) for name, value in means.items()}
            further = {"lr": lr, "entropy_coeff": entropy_coeff, "vf_explained_variance": explained}
            result |= self.learner_result(rows.size, {**statistics, **further}, policy_id)
        self.sync_weights()
        return result

    def _settings(self, policy_id: str) -> A2CTraining:
        training = self.policies[policy_id].training
        assert isinstance(training, A2CTraining)  # the loader made it from `Training`
        return training
