"""APPO: PPO's clipped surrogate on asynchronous samples.

It is the form called IMPACT (Luo et al. 2020, arXiv:1912.00167).

M rows of a minibatch    P inputs of the action distribution

An update involves three policies: mu, which acted some batches ago; the target policy, a copy of
the learner's network that is renewed every few batches; and pi, which learns. V-trace corrects from
mu to the target policy, and PPO's clipping bounds how far pi goes from the target policy, which is
fixed meanwhile, whereas mu differs from fragment to fragment.

A train batch may be used several times, out of a circular buffer that mixes batches of several
ages. While it fills, each new batch brings one update: as many as a batch has uses would use it up
before the next one comes. The buffer is part of checkpoints: a resumed run goes on with the same
batches and the uses that each has left. See
`rlrun.algorithms.asynchronous` for what else holds of equal and resumed runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from rlrun.algorithms.algorithm import Algorithm
from rlrun.algorithms.asynchronous import (
    AsynchronousBatches,
    VTraceTraining,
    asynchronous_step,
    average,
)
from rlrun.algorithms.on_policy import LearnerStats, PolicyUpdate
from rlrun.algorithms.parts import ByPolicy
from rlrun.algorithms.ppo import AdaptiveKL, ppo_gradient, ppo_loss
from rlrun.algorithms.result import Result
from rlrun.algorithms.targets import TargetNetwork
from rlrun.config.builder import AlgorithmConfig
from rlrun.config.schedules import Coefficient
from rlrun.config.schema import Count
from rlrun.config.section import NonNegative, Positive
from rlrun.data import columns as col
from rlrun.data.column_data import Array
from rlrun.data.sample_batch import SampleBatch
from rlrun.learning.learner import Learner
from rlrun.learning.loaded_batch import LoadedBatch, Rows
from rlrun.learning.returns import standardized_advantages
from rlrun.learning.vtrace import add_target, add_vtrace
from rlrun.policies.rl_module import ActorCritic, RLModule
from rlrun.replay.circular_buffer import CircularBuffer

BEHAVIOUR_LOGP = "behaviour_logp"
"""Log-probability under mu; `action_logp` is the one under the target policy."""


class APPOTraining(VTraceTraining):
    """APPO's own settings."""

    num_epochs: Count = 1
    """Passes over a batch out of the circular buffer; V-trace is recomputed before each."""
    circular_buffer_num_batches: Count = 4
    """Train batches that are kept for further updates; until there are this many, each new one
    causes one update."""
    circular_buffer_iterations_per_batch: Count = 1
    """Updates for each new train batch, and how often each batch is used; 1 learns from each once,
    when it arrives."""
    target_network_update_freq: Count = 2
    """Updates of the policy between updates of the target policy."""
    clip_param: Coefficient = 0.2
    """Bound on how far the probability ratio of pi to the target policy moves from 1."""
    normalize_advantages: bool = False
    """Normalise the advantages of a batch to mean 0 and standard deviation 1."""
    kl_coeff: NonNegative = 0.0
    """Weight of KL(target || pi), adapted after each iteration; 0 leaves the term out."""
    kl_target: Positive = 0.01
    """KL divergence that the adaptive `kl_coeff` aims at."""


class APPOConfig(AlgorithmConfig):
    """Builds an APPO experiment in Python."""

    algorithm = "APPO"


def appo_loss(
    module: RLModule, rows: dict[str, Tensor], **coefficients: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """`ppo_loss` with pi's ratio to the target policy, and its KL divergence from that.

        ratio = pi(a|s) / max(target(a|s), mu(a|s) / 2)

    Together with the importance weight in the advantages, at most 1 by default, that is pi / mu;
    the floor keeps actions that are very improbable under the target policy from dominating.

    Args:
        rows: obs ``[M, ...]``, actions ``[M, ...]``; of the target policy action_logp ``[M]`` and
            action_dist_inputs ``[M, P]``; behaviour_logp ``[M]``; advantages and value_targets
            ``[M]`` of V-trace, numbers here.
        coefficients: clip_param, vf_loss_coeff, entropy_coeff and kl_coeff.
    """
    loss, statistics = ppo_loss(module, _surrogate_rows(rows), vf_clip_param=None, **coefficients)
    del statistics["approx_kl"]  # from the floor, which is no policy
    return loss, statistics


def appo_gradient(
    module: ActorCritic, rows: dict[str, Array], **coefficients: float
) -> dict[str, Any]:
    """The `Gradient` of `appo_loss` in closed form, for modules that have a `vjp`."""
    statistics = ppo_gradient(module, _surrogate_rows(rows), vf_clip_param=None, **coefficients)
    del statistics["approx_kl"]
    return statistics


def _surrogate_rows(rows: Rows) -> Rows:
    """The rows with max(target(a|s), mu(a|s) / 2) for what PPO's ratio divides by."""
    floor = rows[BEHAVIOUR_LOGP] - math.log(2.0)
    return {**rows, col.ACTION_LOGP: rows[col.ACTION_LOGP].clip(floor)}


class APPO(Algorithm[APPOTraining]):
    """Learn from fragments as they arrive, within bounds; broadcast weights."""

    Training = APPOTraining
    Config = APPOConfig
    asynchronous = True
    columns_read = Algorithm.columns_read | {col.ACTION_LOGP}
    several_learners = True
    trains_several_policies = True

    def setup(self) -> None:
        self.batches = self.keep("batches", AsynchronousBatches(self, self.training))
        self.updaters = self.keep("updaters", ByPolicy(self._updater, self.policies.trained))

    def _updater(self, policy_id: str) -> APPOUpdater:
        learner, training = self.learners[policy_id], self.training_of(policy_id)
        return APPOUpdater(learner, self.build_module(policy_id), training)

    def set_weights(self, weights: Mapping[str, np.ndarray]) -> None:
        """Load weights by name; target policies become copies of them."""
        super().set_weights(weights)
        for updater in self.updaters.values():
            updater.target.copy()

    def training_step(self) -> Result:
        """One iteration: a train batch as it arrives, updates, a broadcast if due."""
        return asynchronous_step(self, self.batches, self.update_policy)

    def update_policy(self, policy: PolicyUpdate[APPOTraining]) -> LearnerStats:
        """Take epochs of gradient steps towards V-trace's targets; move the target policy."""
        return self.updaters[policy.policy_id].update(policy)


class APPOUpdater:
    """One policy's target policy, circular buffer and weight of the KL term.

    Args:
        target: another network like the learner's.

    Attributes:
        target: the target policy.
    """

    def __init__(self, learner: Learner, target: RLModule, training: APPOTraining) -> None:
        self._learner, self._training = learner, training
        self.target = TargetNetwork(target, learner)
        self._buffer: CircularBuffer[tuple[SampleBatch, LoadedBatch]] = CircularBuffer(
            training.circular_buffer_num_batches, training.circular_buffer_iterations_per_batch
        )
        self._kl = AdaptiveKL(training.kl_coeff, training.kl_target)
        self._num_updates = 0

    def update(self, policy: PolicyUpdate[APPOTraining]) -> LearnerStats:
        """Put the new batch into the buffer, and make the updates that are due for it."""
        training = self._training
        self._buffer.add((policy.batch, _with_behaviour(policy.batch, policy.rows)))
        in_force = {
            "clip_param": policy.at(training.clip_param),
            "entropy_coeff": policy.at(training.entropy_coeff),
            "kl_coeff": self._kl.coeff,
        }
        arguments = {**in_force, "vf_loss_coeff": training.vf_loss_coeff}
        size = training.minibatch_size
        traced: dict[str, float | None] = {}
        epochs = []
        repeats = training.circular_buffer_iterations_per_batch
        for _ in range(repeats if self._buffer.filled else 1):
            batch, rows = self._buffer.sample(policy.rng)
            drawn = replace(policy, batch=batch, rows=rows)
            target_logp = add_target(rows, self.target.module)
            for _ in range(training.num_epochs):
                traced = self._trace(drawn, target_logp)
                epochs.append(
                    drawn.epochs(appo_loss, arguments, minibatch_size=size, gradient=appo_gradient)
                )
            self._num_updates += 1
            if self.target.due(self._num_updates, training.target_network_update_freq):
                self.target.copy()
        means = average(epochs)
        self._kl.adapt(means.get("kl"))
        return {**means, **traced, "lr": policy.lr, **in_force}

    def _trace(
        self, policy: PolicyUpdate[APPOTraining], target_logp: Any
    ) -> dict[str, float | None]:
        """V-trace from mu to the target policy, with the learner's values."""
        rows, training = policy.rows, self._training
        traced = add_vtrace(
            rows, policy.batch, policy.module, training.vtrace, target_logp=target_logp
        )
        if training.normalize_advantages:
            rows.columns = standardized_advantages(rows.columns)
        return traced

    def get_state(self) -> dict[str, Any]:
        """The target policy, the buffer, the weight of the KL term, the updates so far."""
        return {
            "target": self.target.get_state(),
            "buffer": [[batch.get_state(), left] for (batch, _), left in self._buffer.contents()],
            "filled": self._buffer.filled,
            "num_updates": self._num_updates,
            "kl": self._kl.get_state(),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a state from `get_state`."""
        self.target.set_state(state["target"])
        self._kl.set_state(state["kl"])
        self._num_updates = int(state["num_updates"])
        self._buffer.filled = bool(state["filled"])
        held = [(SampleBatch.from_state(batch), left) for batch, left in state["buffer"]]
        self._buffer.set_contents(((batch, self._load(batch)), left) for batch, left in held)

    def _load(self, batch: SampleBatch) -> LoadedBatch:
        return _with_behaviour(batch, self._learner.load(batch, (col.ACTIONS,)))


def _with_behaviour(batch: SampleBatch, rows: LoadedBatch) -> LoadedBatch:
    """The rows with the log-probabilities under mu, which the target policy's replace."""
    rows.add(BEHAVIOUR_LOGP, batch.column(col.ACTION_LOGP))
    return rows
