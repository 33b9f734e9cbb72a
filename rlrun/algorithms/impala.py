"""IMPALA: importance weighted actor-learner architecture (Espeholt et al. 2018, arXiv:1802.01561).

Env runners go on sampling while the learner learns, so the policy that learns is some train batches
ahead of the one that acted; V-trace (`rlrun.learning.vtrace`) corrects for that. The loss is A2C's,
with V-trace's advantages, which hold the importance weights, and its value targets (section 4.2 of
the paper, with means in place of sums). See `rlrun.algorithms.asynchronous` for what holds of
equal and resumed runs.
"""

from __future__ import annotations

from rlrun.algorithms.a2c import a2c_gradient, a2c_loss
from rlrun.algorithms.algorithm import Algorithm
from rlrun.algorithms.asynchronous import (
    AsynchronousBatches,
    VTraceTraining,
    asynchronous_step,
    average,
)
from rlrun.algorithms.on_policy import LearnerStats, PolicyUpdate
from rlrun.algorithms.result import Result
from rlrun.config.builder import AlgorithmConfig
from rlrun.config.schema import Count
from rlrun.data import columns as col
from rlrun.learning.vtrace import add_vtrace


class IMPALATraining(VTraceTraining):
    """IMPALA's own settings."""

    num_epochs: Count = 1
    """Passes over a train batch; V-trace is recomputed before each."""


class IMPALAConfig(AlgorithmConfig):
    """Builds an IMPALA experiment in Python."""

    algorithm = "IMPALA"


class IMPALA(Algorithm[IMPALATraining]):
    """Learn from fragments as they arrive, corrected for their age; broadcast weights."""

    Training = IMPALATraining
    Config = IMPALAConfig
    asynchronous = True
    columns_read = Algorithm.columns_read | {col.ACTION_LOGP}
    several_learners = True
    trains_several_policies = True

    def setup(self) -> None:
        self.batches = self.keep("batches", AsynchronousBatches(self, self.training))

    def training_step(self) -> Result:
        """One iteration: a train batch as it arrives, an update, a broadcast if due."""
        return asynchronous_step(self, self.batches, self.update_policy)

    def update_policy(self, policy: PolicyUpdate[IMPALATraining]) -> LearnerStats:
        """Take epochs of gradient steps; V-trace is recomputed before each."""
        training, entropy_coeff = policy.training, policy.at(policy.training.entropy_coeff)
        # With V-trace's advantages and targets A2C's loss is the paper's.
        arguments = {"vf_loss_coeff": training.vf_loss_coeff, "entropy_coeff": entropy_coeff}
        traced: dict[str, float | None] = {}
        epochs = []
        for _ in range(training.num_epochs):
            now = add_vtrace(policy.rows, policy.batch, policy.module, training.vtrace)
            traced = traced or now  # of the first pass: the age of the batch on arrival
            size = training.minibatch_size
            epochs.append(
                policy.epochs(a2c_loss, arguments, minibatch_size=size, gradient=a2c_gradient)
            )
        return {**average(epochs), **traced, "lr": policy.lr, "entropy_coeff": entropy_coeff}
