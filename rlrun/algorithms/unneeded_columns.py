"""Which columns and views nobody needs: found out by a trial with dummies, before the run starts.

A policy acts on zeros, and remembers which of its views were read. The batch that comes of it has
every column that a real one will have. It goes through postprocessing and through one
`training_step` of a copy of the algorithm, and remembers what was read; of what a module declared
to see, that is what its forward passes, or the loss, ask for. What nobody read is neither gathered
nor stored nor sent nor moved to the learner's device. With `trial_of_columns: "first_batch"` the
trial goes as far as the second batch, for algorithms that have read all they need of one before
they sample the next.

Nothing is left out on suspicion: where the trial cannot be made (several policies, a callback that
may look at anything, learners in other processes, a `training_step` that does not ask `sample` for
its batches, `trial_of_columns: None`), everything is kept; and so is a view that says itself that
it is used, with `used_for_compute_actions: True`.
"""

from __future__ import annotations

import contextlib
import copy
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from rlrun.algorithms.callbacks import Callbacks
from rlrun.data import columns as col
from rlrun.data.multi_agent_batch import DEFAULT_POLICY_ID
from rlrun.data.sample_batch import SampleBatch
from rlrun.data.tracked_batch import TrackedRows, tracked, untracked
from rlrun.learning.learner import Learner, LoadedBatch, Rows, ViewedBatch
from rlrun.policies.policy import Policy
from rlrun.policies.torch_policy import TorchPolicy
from rlrun.sampling.dummy_batch import DummyBatch, dummy_batch
from rlrun.sampling.policy_inputs import with_next
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


@dataclass(frozen=True)
class _Read:
    """What was read in a trial."""

    columns: set[str]
    """Of the batch, for whatever purpose."""
    views: set[str] | None
    """Of what the learner's module declared to see; None where nobody could see that."""


def unneeded_columns(
    algorithm: Algorithm, spec: RunnerSpec, callbacks: Sequence[Callbacks]
) -> Unneeded:
    """What runners of this spec need not gather, store and send; the learner is told as well."""
    looked_at = any(type(each).on_sample_end is not Callbacks.on_sample_end for each in callbacks)
    learners = algorithm.learners
    no_trial = looked_at or algorithm.trial_of_columns is None
    if no_trial or [*learners] != [DEFAULT_POLICY_ID] or type(algorithm.learner) is not Learner:
        return Unneeded()
    try:
        with torch.random.fork_rng():
            return _found_by_trial(algorithm, spec)
    except Exception:  # of the user's own code, which will raise it again where it counts
        _log.debug("no trial of what is needed, so every column is kept", exc_info=True)
        return Unneeded()


def _found_by_trial(algorithm: Algorithm, spec: RunnerSpec) -> Unneeded:
    space = algorithm.connectors.output_space(DEFAULT_POLICY_ID)
    policy = spec.policy_factory(space, algorithm.action_space, spec.model)
    acted_on = _watch_acting(policy)
    dummy = dummy_batch(policy, space, explore=spec.settings.explore)
    postprocessing = Postprocessing(policy, make_postprocessors(spec.postprocessors))
    plain = postprocessing.does_nothing
    batch = dummy.batch if plain else _postprocessed(dummy.batch, postprocessing)
    for name in dummy.not_for_training & batch.keys():
        del batch[name]
    read = _read_by_learning(algorithm, batch)
    insisted = {n for n, v in policy.view_requirements.items() if v.used_for_compute_actions}
    views = {view.name for view in dummy.views if not view.per_sequence} - {col.OBS} - insisted
    unread = {name for name in batch if not _is_kept(name)} - read.columns - with_next(insisted)
    if read.views is not None:
        learner, needless = algorithm.learner, views - read.views
        learner.views = [name for name in learner.views if name not in needless]
    unseen = frozenset(views - acted_on)
    if not plain:  # who postprocesses sees everything
        return Unneeded(frozenset(unread), unread=unseen)
    not_made = frozenset(name for name in unseen if with_next([name]) & batch.keys() <= unread)
    return Unneeded(frozenset(unread), _not_stored(dummy, unread, not_made), unseen, not_made)


def _postprocessed(batch: SampleBatch, postprocessing: Postprocessing) -> SampleBatch:
    watched, touched = tracked(batch)
    processed = untracked(postprocessing(watched))
    if touched.deleted:
        _log.warning(
            "postprocessing deletes %s: there is no need to, columns that learning does not read "
            "are left out anyway",
            ", ".join(sorted(touched.deleted)),
        )
    return processed


def _watch_acting(policy: Policy) -> set[str]:
    """Where this policy notes from now on what it reads when it acts; it is good for that alone."""
    read: set[str] = set()
    reader: Any = policy
    ways = ["compute_actions_from_input_dict"]
    own: Any = type(policy).compute_actions_from_input_dict
    if isinstance(policy, TorchPolicy) and own is TorchPolicy.compute_actions_from_input_dict:
        # It makes a tensor of every view; it is the module that reads some of them.
        reader, ways = policy.module, ["forward_exploration", "forward_inference"]
    for way in ways:
        setattr(reader, way, _noting(getattr(reader, way), read))
    return read


def _noting(function: Callable[..., Any], read: set[str]) -> Callable[..., Any]:
    """The function of named rows, which are watched."""

    def noting(rows: Mapping[str, Any], **settings: Any) -> Any:
        watched = rows if isinstance(rows, TrackedRows) else TrackedRows(rows, read)
        return function(watched, **settings)

    return noting


def _is_kept(name: str) -> bool:
    return name in ALWAYS_KEPT or name.startswith(col.STATE_IN_PREFIX)


class _WatchedBatch(ViewedBatch):
    """A train batch on the device that tells which of its rows' names were read, views included."""

    def __init__(
        self,
        batch: SampleBatch,
        names: tuple[str, ...],
        device: torch.device,
        views: Sequence[str],
        read: set[str],
    ) -> None:
        for name in names:
            batch.column(name)  # this is what its reader asks for; the views are but offered
        super().__init__(untracked(batch), names, device, views)
        self._read = read

    def _rows(self, *arguments: Any, **settings: Any) -> Rows:
        return TrackedRows(super()._rows(*arguments, **settings), self._read)


def _watch_loading(learner: Learner) -> set[str]:
    """Where this learner notes from now on what is read of the rows that it loads."""
    read: set[str] = set()

    def load(batch: SampleBatch, names: tuple[str, ...]) -> LoadedBatch:
        return _WatchedBatch(batch, names, learner.device, learner.views, read)

    if learner.views:
        vars(learner)["load"] = load
    return read


def _read_by_learning(algorithm: Algorithm, batch: SampleBatch) -> _Read:
    """What a `training_step` reads; raises LookupError if it cannot be tried."""
    trial = copy.copy(algorithm)
    memo = {id(algorithm): trial, id(algorithm.env_runner_group): _NoRunners()}
    # What streams in asks the algorithm itself, not its copy.
    own = {name: value for name, value in vars(algorithm).items() if name != "batches"}
    vars(trial).update(copy.deepcopy(own, memo))
    remembering, touched = tracked(batch)
    until_second = algorithm.trial_of_columns == "first_batch"
    read_of_rows = None if until_second else _watch_loading(trial.learner)
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
    if read_of_rows is None:
        return _Read(touched.read, None)
    if not read_of_rows:  # no rows came to be read
        return _Read(touched.read | with_next(algorithm.learner.views), None)
    seen = read_of_rows.intersection(algorithm.learner.views)
    return _Read(touched.read | with_next(seen), read_of_rows)


def _not_stored(dummy: DummyBatch, unread: set[str], not_made: frozenset[str]) -> frozenset[str]:
    """Of what the policy puts out, that which nothing else is made of either."""
    if dummy.derived - unread:
        return frozenset()
    viewed = {view.source for view in dummy.views if view.name not in not_made}
    return frozenset((dummy.put_out & unread) - viewed)
