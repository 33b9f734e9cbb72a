"""Which columns nobody needs: found out by learning once from a dummy batch, before the run starts.

The dummy has every column that a real batch will have. It goes through postprocessing and through
one `training_step` of a copy of the algorithm, and remembers what was read. What was not is neither
stored nor sent. With `trial_of_columns: "first_batch"` the trial goes as far as the second batch,
for algorithms that have read all they need of one before they sample the next.

Nothing is left out on suspicion: where the trial cannot be made (several policies, a callback that
may look at anything, learners in other processes, a `training_step` that does not ask `sample` for
its batches, `trial_of_columns: None`), everything is kept.
"""

from __future__ import annotations

import contextlib
import copy
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from rlrun.algorithms.callbacks import Callbacks
from rlrun.data import columns as col
from rlrun.data.multi_agent_batch import DEFAULT_POLICY_ID
from rlrun.data.sample_batch import SampleBatch
from rlrun.data.tracked_batch import tracked
from rlrun.learning.learner import Learner
from rlrun.sampling.dummy_batch import DummyBatch, dummy_batch
from rlrun.sampling.postprocessing import Postprocessing, make_postprocessors
from rlrun.sampling.runner_messages import RunnerSpec, Unneeded

if TYPE_CHECKING:
    from rlrun.algorithms.algorithm import Algorithm

ALWAYS_KEPT = frozenset(
    {
        *(col.REWARDS, col.TERMINATEDS, col.TRUNCATEDS, col.SEQ_LENS),
        *(col.EPS_ID, col.UNROLL_ID, col.AGENT_INDEX, col.T),
    }
)
"""Columns that every train batch has, read or not."""

_log = logging.getLogger(__name__)


_MOST_BATCHES = 20  # that a trial hands out


class _EnoughError(Exception):
    """The trial has come as far as it needs to."""


class _NoRunners:
    """Stands where the env runners are: a trial must not make them work."""

    def __getattr__(self, name: str) -> Any:
        raise LookupError(f"no env runners take part in a trial, nor has it their {name}")


class _TrialBatches:
    """Stands where fragments stream in (`AsynchronousBatches`)."""

    def __init__(self, sample: Callable[[], SampleBatch]) -> None:
        self._sample = sample

    def next(self) -> tuple[SampleBatch, dict[str, float]]:
        return self._sample(), {"policy_lag_mean": 0.0, "policy_lag_max": 0.0}

    def broadcast_if_due(self) -> None:
        """Nobody waits for weights."""


def unneeded_columns(
    algorithm: Algorithm, spec: RunnerSpec, callbacks: Sequence[Callbacks]
) -> Unneeded:
    """What runners of this spec need not send, and of that what they need not even store."""
    looked_at = any(type(each).on_sample_end is not Callbacks.on_sample_end for each in callbacks)
    learners = algorithm.learners
    no_trial = looked_at or algorithm.trial_of_columns is None
    if no_trial or [*learners] != [DEFAULT_POLICY_ID] or type(algorithm.learner) is not Learner:
        return Unneeded()
    try:
        with torch.random.fork_rng():
            space = algorithm.connectors.output_space(DEFAULT_POLICY_ID)
            policy = spec.policy_factory(space, algorithm.action_space, spec.model)
            dummy = dummy_batch(policy, space)
            postprocessing = Postprocessing(policy, make_postprocessors(spec.postprocessors))
            plain = postprocessing.does_nothing
            batch = dummy.batch if plain else postprocessing(dummy.batch)
            read = _read_by_learning(algorithm, batch)
    except Exception:  # of the user's own code, which will raise it again where it counts
        _log.debug("no trial of what is needed, so every column is kept", exc_info=True)
        return Unneeded()
    unread = {name for name in batch if not _is_kept(name)} - read
    return Unneeded(frozenset(unread), _not_stored(dummy, unread) if plain else frozenset())


def _is_kept(name: str) -> bool:
    return name in ALWAYS_KEPT or name.startswith(col.STATE_IN_PREFIX)


def _read_by_learning(algorithm: Algorithm, batch: SampleBatch) -> set[str]:
    """The columns that a `training_step` reads; raises LookupError if it cannot be tried."""
    trial = copy.copy(algorithm)
    memo = {id(algorithm): trial, id(algorithm.env_runner_group): _NoRunners()}
    # What streams in asks the algorithm itself, not its copy.
    own = {name: value for name, value in vars(algorithm).items() if name != "batches"}
    vars(trial).update(copy.deepcopy(own, memo))
    remembering, touched = tracked(batch)
    until_second = algorithm.trial_of_columns == "first_batch"
    num_batches = 0

    def sample(rounds: Any = None) -> SampleBatch:
        nonlocal num_batches
        if num_batches and until_second:
            raise _EnoughError
        if num_batches == _MOST_BATCHES:
            raise LookupError("training_step() samples without an end")
        num_batches += 1
        return remembering.copy(shallow=True)

    vars(trial).update(sample=sample, batches=_TrialBatches(sample))
    # Compiling for a dummy of a few rows would take seconds, and once more for the real shapes.
    compiles = algorithm.config.learners.compile
    eagerly = torch.compiler.set_stance("force_eager") if compiles else contextlib.nullcontext()
    with contextlib.suppress(_EnoughError), eagerly:
        trial.training_step()
    if not num_batches:
        raise LookupError("training_step() did not ask sample() for a batch")
    return touched.read


def _not_stored(dummy: DummyBatch, unread: set[str]) -> frozenset[str]:
    """Of what the policy puts out, that which nothing else is made of either."""
    if dummy.derived - unread:
        return frozenset()
    return frozenset((dummy.put_out & unread) - dummy.viewed)
