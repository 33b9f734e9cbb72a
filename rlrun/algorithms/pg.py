"""PG: the policy gradient of REINFORCE (Williams 1992; Sutton et al. 2000), without a critic.

M rows of a microbatch    P inputs of the action distribution

The return of a row is the sum of the rewards to come in its fragment: nothing is estimated after
the fragment's end. Longer fragments make it less biased, and no less noisy.
"""

from __future__ import annotations

from torch import Tensor

from rlrun.algorithms.algorithm import Algorithm
from rlrun.algorithms.on_policy import LearnerStats, OneStepTraining, PolicyUpdate, synchronous_step
from rlrun.algorithms.result import Result
from rlrun.config.builder import AlgorithmConfig
from rlrun.config.schedules import LearningRate
from rlrun.config.schema import TrainingConfig
from rlrun.data import columns as col
from rlrun.learning.returns import chunk_lengths, discounted_returns
from rlrun.policies.rl_module import RLModule


class PGTraining(OneStepTraining, TrainingConfig):
    """PG's own settings."""

    lr: LearningRate = 4e-3


class PGConfig(AlgorithmConfig):
    """Builds a PG experiment in Python."""

    algorithm = "PG"


def pg_loss(module: RLModule, rows: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """``-mean(log pi(a|s) G)``; its gradient estimates the negative return's (REINFORCE).

    Args:
        rows: obs ``[M, ...]``, actions ``[M, ...]``; advantages ``[M]``, which are returns here.
    """
    inputs = module.forward_train(rows)[col.ACTION_DIST_INPUTS]
    logp, entropies = module.distribution.logp_entropy(inputs, rows[col.ACTIONS])
    loss = -(logp * rows[col.ADVANTAGES]).mean()
    return loss, {"policy_loss": loss.detach(), "entropy": entropies.detach().mean()}


class PG(Algorithm[PGTraining]):
    """Sample a batch, take one step along the policy gradient, sync weights."""

    Training = PGTraining
    Config = PGConfig
    trains_several_policies = True
    several_learners = True

    def training_step(self) -> Result:
        """One iteration: sample, sum up rewards, one gradient step, sync."""
        return synchronous_step(self, self.update_policy)

    def update_policy(self, policy: PolicyUpdate[PGTraining]) -> LearnerStats:
        """Sum up rewards, then take one gradient step."""
        batch, training = policy.batch, policy.training
        returns = discounted_returns(
            batch.column(col.REWARDS),
            batch.column(col.TERMINATEDS),
            batch.column(col.TRUNCATEDS),
            chunk_lengths(batch.column(col.UNROLL_ID)),
            gamma=training.gamma,
        )
        policy.rows.add(col.ADVANTAGES, returns)
        return policy.one_step(pg_loss, {}, training.microbatch_size)
