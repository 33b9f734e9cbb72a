"""Learning from train batches as they are sampled: shared settings, and the training step.

For each policy: load its part of the train batch, update, report statistics. An algorithm adds a
function that updates one policy (`PolicyUpdate`); with nothing but a loss, `train_one_step` and
`multi_gpu_train_one_step` do it all. Must not know losses, advantages, or how batches are sampled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from torch import Tensor

from rlrun.algorithms.algorithm import Algorithm
from rlrun.algorithms.result import Result
from rlrun.config.schedules import Coefficient, LearningRate, value_at
from rlrun.config.schema import Count, Schedule, Section, TrainingConfig
from rlrun.config.section import Epsilon, Fraction, NonNegative, Positive
from rlrun.data import columns as col
from rlrun.data.sample_batch import MultiAgentBatch, SampleBatch
from rlrun.learning.learner import Learner
from rlrun.learning.loaded_batch import LoadedBatch, columns_of_numbers
from rlrun.learning.losses import Gradient, Loss
from rlrun.policies.rl_module import RLModule

T = TypeVar("T", bound=TrainingConfig)

LearnerStats = Mapping[str, float | None]


class OneStepTraining(Section):
    """A mixin: settings of algorithms that take one gradient step on each train batch."""

    train_batch_size: Count = 2000
    """Env steps collected for one iteration, exactly; one gradient step is taken on them."""
    microbatch_size: Count | None = None
    """Rows that go through the network at once; their gradients are added. null takes all."""


class ActorCriticTraining(TrainingConfig):
    """Settings of algorithms with a policy and a value function."""

    lr: LearningRate = 5e-4
    lambda_: Fraction = 1.0
    """Lambda of generalised advantage estimation; 1 takes n-step returns, as the paper does."""
    vf_loss_coeff: NonNegative = 0.5
    """Weight of the value loss, which is half the mean squared error."""
    entropy_coeff: Coefficient = 0.01
    """Weight of the entropy bonus."""
    grad_clip: Positive | None = 0.5
    adam_epsilon: Epsilon = 1e-5


@dataclass(frozen=True)
class PolicyUpdate(Generic[T]):
    """One policy's update: what it learns from, and the means to do so.

    Attributes:
        batch: its part of the train batch.
        rows: the same on the learner's device.
        rng: generator of this update.
        env_steps: env steps of the run so far; schedules depend on them.
    """

    policy_id: str
    training: T
    learner: Learner
    batch: SampleBatch
    rows: LoadedBatch
    rng: np.random.Generator
    env_steps: int

    @property
    def module(self) -> RLModule:
        """The network that learns."""
        return self.learner.module

    @property
    def lr(self) -> float:
        """The learning rate."""
        return self.at(self.training.lr)

    def at(self, schedule: Schedule) -> float:
        """The present value of a schedule."""
        return value_at(schedule, self.env_steps)

    def one_step(
        self,
        loss: Loss,
        arguments: Mapping[str, Any],
        microbatch_size: int | None = None,
        *,
        gradient: Gradient | None = None,
    ) -> dict[str, float | None]:
        """Take one gradient step, ``microbatch_size`` rows at a time; returns as `epochs` does."""
        rows, lr = self.rows, self.lr
        microbatches = rows.microbatches(microbatch_size)
        means = self.learner.accumulate(
            microbatches, rows.size, loss, arguments, lr=lr, gradient=gradient
        )
        return {**{name: float(value) for name, value in means.items()}, "lr": lr}

    def epochs(
        self,
        loss: Loss,
        arguments: Mapping[str, Any],
        *,
        num_epochs: int = 1,
        minibatch_size: int | None = None,
        gradient: Gradient | None = None,
        stop_early: Callable[[dict[str, Tensor]], bool] | None = None,
    ) -> dict[str, float]:
        """Take a gradient step on each shuffled minibatch; returns statistics, ``lr`` among them.

        Args:
            minibatch_size: rows of one gradient step; None takes all.
            stop_early: see `Learner.update`.
        """
        size, lr = minibatch_size or self.rows.size, self.lr
        minibatches = self.rows.minibatches(num_epochs, size, self.rng)
        statistics = self.learner.update(
            minibatches, loss, arguments, lr=lr, gradient=gradient, stop_early=stop_early
        )
        return {**statistics, "lr": lr}


Update = Callable[[PolicyUpdate[T]], LearnerStats]
"""Updates one policy; returns what its `learner_stats` hold."""


def synchronous_step(algorithm: Algorithm[T], update: Update[T]) -> Result:
    """Sample a train batch, update each policy, sync weights; returns the `learners` result."""
    steps_before = algorithm.env_steps
    result = update_policies(algorithm, algorithm.sample(), update, env_steps=steps_before)
    algorithm.sync_weights()
    return result


def update_policies(
    algorithm: Algorithm[T],
    train_batch: SampleBatch | MultiAgentBatch,
    update: Update[T],
    *,
    env_steps: int,
    every_column: bool = False,
) -> Result:
    """Update each policy that learns on its part of a train batch.

    Args:
        env_steps: env steps of the run so far; schedules depend on them.
        every_column: load new_obs and all columns of numbers, not just actions and views.

    Returns:
        ``learner_stats`` and ``num_agent_steps_trained`` by policy, for `training_step` to return.
    """
    result: Result = {}
    for policy_id, batch in algorithm.train_batches(train_batch):
        learner = algorithm.learners[policy_id]
        columns = columns_of_numbers(batch, learner.module) if every_column else (col.ACTIONS,)
        with algorithm.timers.phase("transfer"):
            rows = learner.load(batch, columns)
        with algorithm.timers.phase("learn"):
            training, rng = algorithm.training_of(policy_id), algorithm.learner_rng(policy_id)
            statistics = update(
                PolicyUpdate(policy_id, training, learner, batch, rows, rng, env_steps)
            )
        result |= algorithm.learner_result(rows.size, statistics, policy_id)
    return result


def train_one_step(
    algorithm: Algorithm,
    train_batch: SampleBatch | MultiAgentBatch,
    loss: Loss,
    loss_arguments: Mapping[str, Any] | None = None,
    *,
    microbatch_size: int | None = None,
) -> Result:
    """Take one gradient step of each policy on all of its rows.

    Args:
        train_batch: from `Algorithm.sample`, with any columns added that the loss needs.
        loss: ``loss(module, rows, **loss_arguments) -> (scalar, statistics)``, a mean over rows.
            ``rows`` has the columns of the batch as tensors, and the module's inputs.
        microbatch_size: rows that go through the network at once; None takes all.

    Returns:
        ``learner_stats`` and ``num_agent_steps_trained`` by policy, for `training_step` to return.
    """

    def update(policy: PolicyUpdate[TrainingConfig]) -> LearnerStats:
        return policy.one_step(loss, loss_arguments or {}, microbatch_size)

    steps = algorithm.env_steps
    return update_policies(algorithm, train_batch, update, env_steps=steps, every_column=True)


def multi_gpu_train_one_step(
    algorithm: Algorithm,
    train_batch: SampleBatch | MultiAgentBatch,
    loss: Loss,
    loss_arguments: Mapping[str, Any] | None = None,
    *,
    num_epochs: int = 1,
    minibatch_size: int | None = None,
) -> Result:
    """Take a gradient step of each policy on each of its shuffled minibatches, for some epochs.

    The batch moves to the device once. With ``learners.num_learners`` that many learners share each
    minibatch, on a GPU each if ``learners.num_gpus_per_learner`` gives them one.

    Args:
        train_batch, loss: as for `train_one_step`; the loss must be picklable.
        minibatch_size: rows of one gradient step; None takes all.

    Returns:
        As `train_one_step`; statistics are averages over the gradient steps.
    """

    def update(policy: PolicyUpdate[TrainingConfig]) -> LearnerStats:
        return policy.epochs(
            loss, loss_arguments or {}, num_epochs=num_epochs, minibatch_size=minibatch_size
        )

    steps = algorithm.env_steps
    return update_policies(algorithm, train_batch, update, env_steps=steps, every_column=True)
