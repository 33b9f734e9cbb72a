"""PG: the policy gradient of REINFORCE (Williams 1992; Sutton et al. 2000), without a critic.

M rows of a microbatch    P inputs of the action distribution

The return of a row is what its fragment still brings: nothing is estimated behind the fragment's
end. Longer fragments make it less biased, and no less noisy.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from rlrun.algorithms.algorithm import Algorithm
from rlrun.config.batch_arithmetic import fragment_problems
from rlrun.config.builder import AlgorithmConfig
from rlrun.config.schema import Count, ExperimentConfig, Schedule, TrainingConfig
from rlrun.data import columns as col
from rlrun.learning.learner import value_at
from rlrun.learning.returns import discounted_returns, piece_lengths
from rlrun.policies.rl_module import RLModule


class PGTraining(TrainingConfig):
    """PG's own settings."""

    train_batch_size: Count = 2000
    """Env steps collected for one iteration, exactly; one gradient step is made on them."""
    lr: Schedule = 4e-3
    """Learning rate: a number, or a schedule [[env_steps, value], ...]."""
    microbatch_size: Count | None = None
    """Rows that go through the network at once; their gradients are added. null takes all."""


class PGConfig(AlgorithmConfig):
    """Builds a PG experiment in Python."""

    algorithm = "PG"


def pg_loss(module: RLModule, rows: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """``-mean(log pi(a|s) G)``, whose gradient is that of the expected return (REINFORCE).

    Args:
        rows: obs ``[M, ...]``, actions ``[M, ...]``; advantages ``[M]``, which are returns here.

    Returns:
        The loss, a scalar with gradient, and statistics, scalars without.
    """
    inputs = module.forward_exploration(rows)[col.ACTION_DIST_INPUTS]
    logp, entropies = module.distribution.logp_entropy(inputs, rows[col.ACTIONS])
    loss = -(logp * rows[col.ADVANTAGES]).mean()
    return loss, {"policy_loss": loss.detach(), "entropy": entropies.detach().mean()}


class PG(Algorithm):
    """Sample a batch, take one step along the policy gradient, hand on the new weights."""

    Training = PGTraining
    trains_several_policies = True
    Config = PGConfig
    several_learners = True

    @classmethod
    def validate(cls, config: ExperimentConfig) -> Iterator[tuple[str, str]]:
        """Problems of the batch size, as ``(key, message)``."""
        training = config.training
        assert isinstance(training, PGTraining)  # the loader made it from `Training`
        yield from fragment_problems(training.train_batch_size, config.env_runners)

    def training_step(self) -> dict[str, Any]:
        """One iteration: sample, sum up rewards, one gradient step, sync."""
        steps_before = self.env_steps
        result: dict[str, Any] = {}
        for policy_id, batch in self.train_batches(self.sample()):
            training, learner = self._settings(policy_id), self.learners[policy_id]
            lr = value_at(training.lr, steps_before)
            with self.timers.phase("transfer"):
                rows = learner.load(batch, (col.ACTIONS,))
            with self.timers.phase("learn"):
                returns = discounted_returns(
                    batch.column(col.REWARDS),
                    batch.column(col.TERMINATEDS),
                    batch.column(col.TRUNCATEDS),
                    piece_lengths(batch.column(col.UNROLL_ID)),
                    gamma=training.gamma,
                )
                rows.add(col.ADVANTAGES, returns)
                pieces = rows.pieces(training.microbatch_size)
                means = learner.accumulate(pieces, rows.size, pg_loss, {}, lr=lr)
                statistics = {name: float(value) for name, value in means.items()}
            result |= self.learner_result(rows.size, {**statistics, "lr": lr}, policy_id)
        self.sync_weights()
        return result

    def _settings(self, policy_id: str) -> PGTraining:
        training = self.policies[policy_id].training
        assert isinstance(training, PGTraining)  # the loader made it from `Training`
        return training
