"""A2C: advantage actor-critic, synchronous (Mnih et al. 2016, arXiv:1602.01783, algorithm S3).

M rows of a microbatch    P inputs of the action distribution
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from rlrun.algorithms.algorithm import Algorithm
from rlrun.algorithms.on_policy import (
    ActorCriticTraining,
    LearnerStats,
    OneStepTraining,
    PolicyUpdate,
    synchronous_step,
)
from rlrun.algorithms.result import Result
from rlrun.config.builder import AlgorithmConfig
from rlrun.config.schedules import LearningRate
from rlrun.config.schema import Count
from rlrun.data import columns as col
from rlrun.data.column_data import Array
from rlrun.learning.learner import means_of_rows
from rlrun.learning.losses import closed_form
from rlrun.learning.returns import add_advantages
from rlrun.learning.vtrace import weigh_advantages
from rlrun.policies.rl_module import ActorCritic, RLModule


class A2CTraining(OneStepTraining, ActorCriticTraining):
    """A2C's own settings."""

    train_batch_size: Count = 256
    lr: LearningRate = 1e-3


class A2CConfig(AlgorithmConfig):
    """Builds an A2C experiment in Python."""

    algorithm = "A2C"


def a2c_loss(
    module: RLModule, rows: dict[str, Tensor], *, vf_loss_coeff: float, entropy_coeff: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """``-mean(log pi(a|s) A)``, half the mean squared value error, and the entropy bonus.

    Args:
        rows: obs ``[M, ...]``, actions ``[M, ...]``, advantages and value_targets ``[M]``.
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


@closed_form
def a2c_gradient(
    module: ActorCritic, rows: dict[str, Array], *, vf_loss_coeff: float, entropy_coeff: float
) -> dict[str, Any]:
    """The `Gradient` of `a2c_loss` in closed form, for modules that have a `vjp`."""
    inputs, values, backward = module.vjp(rows)
    logp, entropies, to_inputs = module.distribution.logp_entropy_vjp(inputs, rows[col.ACTIONS])
    advantages, errors = rows[col.ADVANTAGES], values - rows[col.VALUE_TARGETS]
    num_rows = len(values)
    d_inputs = to_inputs(advantages / -num_rows, -entropy_coeff / num_rows)
    backward(d_inputs, errors * (vf_loss_coeff / num_rows))
    by_row = {"policy_loss": -(logp * advantages), "vf_loss": 0.5 * errors**2, "entropy": entropies}
    total = vf_loss_coeff * by_row["vf_loss"] - entropy_coeff * entropies
    by_row["total_loss"] = by_row["policy_loss"] + total
    return means_of_rows(by_row)


class A2C(Algorithm[A2CTraining]):
    """Sample a batch, take one gradient step on it, send the new weights to the env runners."""

    Training = A2CTraining
    Config = A2CConfig
    trains_several_policies = True
    several_learners = True

    def training_step(self) -> Result:
        """One iteration: sample, estimate advantages, one gradient step, sync."""
        return synchronous_step(self, self.update_policy)

    def update_policy(self, policy: PolicyUpdate[A2CTraining]) -> LearnerStats:
        """Estimate advantages, then take one gradient step."""
        training, rows, batch = policy.training, policy.rows, policy.batch
        off_policy = self.config.env_runners.sample_async  # the batch is an update older
        explained_variance = add_advantages(
            rows, batch, policy.module, training.gamma, training.lambda_, off_policy=off_policy
        )
        if off_policy:
            weigh_advantages(rows, batch)
        entropy_coeff = policy.at(training.entropy_coeff)
        statistics = policy.one_step(
            a2c_loss,
            {"vf_loss_coeff": training.vf_loss_coeff, "entropy_coeff": entropy_coeff},
            training.microbatch_size,
            gradient=a2c_gradient,
        )
        return {
            **statistics,
            "entropy_coeff": entropy_coeff,
            "vf_explained_variance": explained_variance,
        }
