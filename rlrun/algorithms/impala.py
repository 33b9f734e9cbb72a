"""IMPALA: importance weighted actor-learner architecture (Espeholt et al. 2018, arXiv:1802.01561).

Env runners go on sampling while the learner learns, so the policy that learns is some train batches
ahead of the one that acted; V-trace (`rlrun.learning.vtrace`) corrects for that. The loss is A2C's,
with V-trace's advantages, which hold the importance weights, and its value targets (section 4.2 of
the paper, with means in place of sums). What can be promised about equal and resumed runs is said
in `rlrun.algorithms.asynchronous`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rlrun.algorithms.a2c import a2c_loss
from rlrun.algorithms.algorithm import Algorithm
from rlrun.algorithms.asynchronous import AsynchronousBatches, VTraceTraining, average
from rlrun.config.batch_arithmetic import stream_problems
from rlrun.config.builder import AlgorithmConfig
from rlrun.config.schema import Count, ExperimentConfig
from rlrun.data import columns as col
from rlrun.data.sample_batch import SampleBatch
from rlrun.learning.learner import value_at
from rlrun.learning.loaded_batch import LoadedBatch
from rlrun.learning.vtrace import add_vtrace


class IMPALATraining(VTraceTraining):
    """IMPALA's own settings."""

    num_epochs: Count = 1
    """Passes over a train batch; V-trace is computed anew before each."""


class IMPALAConfig(AlgorithmConfig):
    """Builds an IMPALA experiment in Python."""

    algorithm = "IMPALA"


class IMPALA(Algorithm):
    """Take the fragments that are there, correct for their age, learn, broadcast."""

    Training = IMPALATraining
    Config = IMPALAConfig
    several_learners = True
    trains_several_policies = True

    @classmethod
    def validate(cls, config: ExperimentConfig) -> Iterator[tuple[str, str]]:
        """Problems of the batch size, as ``(key, message)``."""
        yield from stream_problems(config.training.train_batch_size, config.env_runners)

    def setup(self) -> None:
        training = self.config.training
        assert isinstance(training, VTraceTraining)
        self.batches = AsynchronousBatches(self, training)

    def training_step(self) -> dict[str, Any]:
        """One iteration: a train batch of what has come in, an update, a broadcast if it is due."""
        steps_before = self.env_steps
        sampled, lag = self.batches.next()
        result: dict[str, Any] = {}
        for policy_id, batch in self.train_batches(sampled):
            with self.timers.phase("transfer"):
                rows = self.learners[policy_id].load(batch, (col.ACTIONS,))
            with self.timers.phase("learn"):
                statistics = self._update(policy_id, rows, batch, steps_before)
            result |= self.learner_result(rows.size, {**statistics, **lag}, policy_id)
        self.sync_weights()
        self.batches.broadcast_if_due()
        return result

    def _update(
        self, policy_id: str, rows: LoadedBatch, batch: SampleBatch, env_steps: int
    ) -> dict[str, float | None]:
        training, learner = self._settings(policy_id), self.learners[policy_id]
        lr = value_at(training.lr, env_steps)
        entropy_coeff = value_at(training.entropy_coeff, env_steps)
        rng = self.learner_rng(policy_id)
        traced: dict[str, float | None] = {}
        epochs = []
        for _ in range(training.num_epochs):
            now = add_vtrace(rows, batch, learner.module, training.vtrace)
            traced = traced or now  # of the first pass: what the batch was worth when it came
            statistics = learner.update(
                rows.minibatches(1, training.minibatch_size or rows.size, rng),
                a2c_loss,  # with V-trace's advantages and targets it is the paper's
                {"vf_loss_coeff": training.vf_loss_coeff, "entropy_coeff": entropy_coeff},
                lr=lr,
            )
            epochs.append(statistics)
        return {**average(epochs), **traced, "lr": lr, "entropy_coeff": entropy_coeff}

    def get_extra_state(self) -> dict[str, Any]:
        return {"batches": self.batches.get_state()}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.batches.set_state(state["batches"])

    def _settings(self, policy_id: str) -> IMPALATraining:
        training = self.policies[policy_id].training
        assert isinstance(training, IMPALATraining)  # the loader made it from `Training`
        return training
