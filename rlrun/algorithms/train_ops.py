"""`train_one_step` and `multi_gpu_train_one_step`: an update on a batch.

What PPO, A2C and PG write out with their own terms, for algorithms of one's own whose loss is all
that is special: load the batch, one gradient step or several, the `learners` part of the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rlrun.algorithms.result import Result
from rlrun.data import columns as col
from rlrun.data.sample_batch import SampleBatch
from rlrun.learning.learner import Loss, value_at

if TYPE_CHECKING:
    from rlrun.algorithms.algorithm import Algorithm
    from rlrun.learning.loaded_batch import LoadedBatch


def train_one_step(
    algorithm: Algorithm,
    train_batch: SampleBatch,
    loss: Loss,
    loss_arguments: Mapping[str, Any] | None = None,
    *,
    microbatch_size: int | None = None,
) -> Result:
    """One gradient step of each policy, on all of its rows.

    Args:
        train_batch: what `Algorithm.sample` gave, with columns added as the loss wants them.
        loss: ``loss(module, rows, **loss_arguments) -> (scalar, statistics)``, a mean over rows.
            ``rows`` has the columns of the batch as tensors, and what the module sees.
        microbatch_size: rows that go through the network at once; None takes all.

    Returns:
        ``learner_stats`` and ``num_agent_steps_trained`` by policy, for `training_step` to return.
    """
    result: Result = {}
    for policy_id, batch in algorithm.train_batches(train_batch):
        learner, lr = algorithm.learners[policy_id], _lr(algorithm, policy_id)
        rows = _loaded(algorithm, policy_id, batch)
        with algorithm.timers.phase("learn"):
            pieces = rows.pieces(microbatch_size)
            means = learner.accumulate(pieces, rows.size, loss, loss_arguments or {}, lr=lr)
            statistics = {name: float(value) for name, value in means.items()}
        result |= algorithm.learner_result(rows.size, {**statistics, "lr": lr}, policy_id)
    return result


def multi_gpu_train_one_step(
    algorithm: Algorithm,
    train_batch: SampleBatch,
    loss: Loss,
    loss_arguments: Mapping[str, Any] | None = None,
    *,
    num_epochs: int = 1,
    minibatch_size: int | None = None,
) -> Result:
    """Epochs of minibatch steps of each policy; the batch goes to the device once.

    With ``learners.num_learners`` each minibatch is shared by so many learners, on as many GPUs if
    ``learners.num_gpus_per_learner`` gives them any.

    Args:
        train_batch, loss: as of `train_one_step`; the loss must be picklable.
        minibatch_size: rows of one gradient step; None takes all.

    Returns:
        As `train_one_step`; statistics are averages over the gradient steps.
    """
    result: Result = {}
    for policy_id, batch in algorithm.train_batches(train_batch):
        learner, lr = algorithm.learners[policy_id], _lr(algorithm, policy_id)
        rows = _loaded(algorithm, policy_id, batch)
        with algorithm.timers.phase("learn"):
            rng = algorithm.learner_rng(policy_id)
            minibatches = rows.minibatches(num_epochs, minibatch_size or rows.size, rng)
            statistics = learner.update(minibatches, loss, loss_arguments or {}, lr=lr)
        result |= algorithm.learner_result(rows.size, {**statistics, "lr": lr}, policy_id)
    return result


def _loaded(algorithm: Algorithm, policy_id: str, batch: SampleBatch) -> LoadedBatch:
    """All columns with a number for each row; observations are there in any case."""
    learner = algorithm.learners[policy_id]
    seen = learner.module.view_requirements
    names = [
        name
        for name in batch
        if name not in seen and col.is_countable(name) and not name.startswith(col.NEXT_PREFIX)
        if batch.column(name).dtype.kind in "biuf"
    ]
    with algorithm.timers.phase("transfer"):
        return learner.load(batch, tuple(names))


def _lr(algorithm: Algorithm, policy_id: str) -> float:
    return value_at(algorithm.policies[policy_id].training.lr, algorithm.env_steps)
