"""Which columns and views nobody needs: found out by a trial with dummies, before the run starts.

A policy acts on zeros, and remembers which of its views were read. The batch that comes of it has
every column that a real one will have. It goes through postprocessing and through one
`training_step` of a copy of the algorithm, and remembers what was read; of what a module declared
to see, that is what its forward passes, or the loss, ask for. What nobody read is neither gathered
nor stored nor sent nor moved to the learner's device, policy by policy. With
`trial_of_columns: "first_batch"` the trial goes as far as the second batch, for algorithms that
have read all they need of one before they sample the next.

Nothing is left out on suspicion: where the trial cannot be made (a callback or a
`policies_to_train` that may look at anything, learners in other processes, a `training_step` that
does not ask `sample` for its batches, `trial_of_columns: None`), everything is kept; and so is a
view that says itself that it is used, with `used_for_compute_actions: True`. Policies that are
added later are not tried, and keep everything, too.
"""

from __future__ import annotations

import contextlib
import copy
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rlrun.algorithms.callbacks import Callbacks
from rlrun.data import columns as col
from rlrun.data.sample_batch import DEFAULT_POLICY_ID, MultiAgentBatch, SampleBatch, concat_samples
from rlrun.data.tracked_batch import TrackedRows, tracked, untracked
from rlrun.learning.learner import Learner
from rlrun.learning.loaded_batch import LoadedBatch, Rows
from rlrun.learning.viewed_batch import ViewedBatch
from rlrun.policies.policy import Policy
from rlrun.policies.policy_mapping import AgentMapping, EpisodeStart
from rlrun.policies.torch_policy import TorchPolicy
from rlrun.sampling.dummy_batch import DummyBatch, dummy_batch
from rlrun.sampling.policy_inputs import with_next
from rlrun.sampling.postprocessing import ONLY_AGENT, Postprocessing, make_postprocessors
from rlrun.sampling.runner_messages import RunnerSpec, Unneeded, acting_policy, for_policy

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

    def __init__(self, sample: Callable[[], SampleBatch | MultiAgentBatch]) -> None:
        self._sample = sample

    def next(self) -> tuple[SampleBatch | MultiAgentBatch, dict[str, float]]:
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
) -> dict[str, Unneeded]:
    """What runners of this spec need not gather, store and send; the learners are told as well.

    Returns:
        By policy id; nothing where everything is kept.
    """
    if not _can_be_tried(algorithm, callbacks):
        return {}
    try:
        with torch.random.fork_rng():
            return _found_by_trial(algorithm, spec)
    except Exception:  # of the user's own code, which will raise it again where it counts
        _log.debug("no trial of what is needed, so every column is kept", exc_info=True)
        return {}


def _found_by_trial(algorithm: Algorithm, spec: RunnerSpec) -> dict[str, Unneeded]:
    policies = {name: _policy(algorithm, spec, name) for name in algorithm.policies}
    acted_on = {name: _watch_acting(policy) for name, policy in policies.items()}
    dummies = {
        name: dummy_batch(
            policy, algorithm.policies.module_spaces(name)[0], explore=spec.settings.explore
        )
        for name, policy in policies.items()
    }
    agents = _agents(algorithm, spec)
    batches = _batches(dummies, agents)
    postprocessing = Postprocessing(policies, make_postprocessors(spec.postprocessors))
    plain = postprocessing.does_nothing
    if not plain:
        batches = _postprocessed(batches, postprocessing, [*agents])
    for name, batch in batches.items():
        for column in dummies[name].not_for_training & batch.keys():
            del batch[column]
    all_read = _read_by_learning(algorithm, batches)
    found = {}
    for name, policy in policies.items():
        views, insisted = _views_to_judge(policy, dummies[name])
        batch, read = batches[name], all_read[name]
        unread = {column for column in batch if not _is_kept(column)}
        unread -= read.columns | with_next(insisted)
        if read.views is not None:
            learner, needless = algorithm.learners[name], views - read.views
            learner.views = [view for view in learner.views if view not in needless]
        unseen = frozenset(views - acted_on[name])
        if not plain:  # who postprocesses sees everything
            found[name] = Unneeded(frozenset(unread), unread=unseen)
            continue
        not_made = frozenset(view for view in unseen if with_next([view]) & batch.keys() <= unread)
        not_stored = _not_stored(dummies[name], unread, not_made)
        found[name] = Unneeded(frozenset(unread), not_stored, unseen, not_made)
    return found


def _views_to_judge(policy: Policy, dummy: DummyBatch) -> tuple[set[str], set[str]]:
    """Views that may turn out to be needless, and those that say themselves that they are used."""
    insisted = {n for n, v in policy.view_requirements.items() if v.used_for_compute_actions}
    views = {view.name for view in dummy.views if not view.per_sequence}
    return views - {col.OBS} - insisted, insisted


def _can_be_tried(algorithm: Algorithm, callbacks: Sequence[Callbacks]) -> bool:
    looked_at = any(type(each).on_sample_end is not Callbacks.on_sample_end for each in callbacks)
    looked_at |= isinstance(algorithm.config.multi_agent.policies_to_train, str)
    elsewhere = any(type(learner) is not Learner for learner in algorithm.learners.values())
    return not (looked_at or elsewhere or algorithm.trial_of_columns is None)


def _policy(algorithm: Algorithm, spec: RunnerSpec, policy_id: str) -> Policy:
    """A policy as runners act with it."""
    spaces, settings = algorithm.policies.module_spaces(policy_id), algorithm.policies[policy_id]
    if spec.multi_agent is not None:
        spec = for_policy(spec, policy_id, settings)
    return acting_policy(spec, settings, *spaces)


def _agents(algorithm: Algorithm, spec: RunnerSpec) -> dict[str, str]:
    """Agents of a first episode -> their policies; policies that nobody plays have one, too."""
    if spec.multi_agent is None:
        return {ONLY_AGENT: DEFAULT_POLICY_ID}
    mapping = AgentMapping(spec.multi_agent.agents)
    episode = EpisodeStart(0, tuple(algorithm.policies), np.random.default_rng(0))
    agents = {name: mapping.policy_of(name, episode) for name in algorithm.policies.agents}
    idle = algorithm.policies.keys() - set(agents.values())
    return {**agents, **{name: name for name in sorted(idle)}}


def _batches(
    dummies: Mapping[str, DummyBatch], agents: Mapping[str, str]
) -> dict[str, SampleBatch]:
    """A batch for each policy, with the rows of all who play it: they act in the same episodes."""
    parts: dict[str, list[SampleBatch]] = {name: [] for name in dummies}
    for index, policy_id in enumerate(agents.values()):
        part = dummies[policy_id].batch.copy()
        part[col.AGENT_INDEX] = np.full(len(part), index)
        part[col.UNROLL_ID] = part[col.UNROLL_ID] + index * len(part)
        parts[policy_id].append(part)
    joined = {name: concat_samples(of_policy) for name, of_policy in parts.items()}
    return {name: batch for name, batch in joined.items() if isinstance(batch, SampleBatch)}


def _postprocessed(
    batches: Mapping[str, SampleBatch], postprocessing: Postprocessing, agents: Sequence[str]
) -> dict[str, SampleBatch]:
    watched = {name: tracked(batch) for name, batch in batches.items()}
    processed = postprocessing(
        {name: batch for name, (batch, _) in watched.items()}, lambda _, index: agents[index]
    )
    deleted = {column for _, touched in watched.values() for column in touched.deleted}
    if deleted:
        _log.warning(
            "postprocessing deletes %s: there is no need to, columns that learning does not read "
            "are left out anyway",
            ", ".join(sorted(deleted)),
        )
    return {name: untracked(batch) for name, batch in processed.items()}


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


def _read_by_learning(algorithm: Algorithm, batches: Mapping[str, SampleBatch]) -> dict[str, _Read]:
    """What a `training_step` reads, by policy.

    Raises:
        LookupError: it cannot be tried.
    """
    trial = copy.copy(algorithm)
    memo = {id(algorithm): trial, id(algorithm.env_runner_group): _NoRunners()}
    # What streams in asks the algorithm itself, not its copy.
    own = {name: value for name, value in vars(algorithm).items() if name != "batches"}
    vars(trial).update(copy.deepcopy(own, memo))
    remembering = {policy_id: tracked(batch) for policy_id, batch in batches.items()}
    env_steps = min(len(batch) for batch in batches.values())
    until_second = algorithm.trial_of_columns == "first_batch"
    watched = {} if until_second else trial.learners
    read_of_rows = {name: _watch_loading(learner) for name, learner in watched.items()}
    num_batches = 0

    def sample(rounds: Any = None) -> SampleBatch | MultiAgentBatch:
        nonlocal num_batches
        if num_batches and until_second:
            raise _EnoughError
        if num_batches == _MOST_BATCHES:
            raise LookupError("training_step() samples without an end")
        num_batches += 1
        given = {name: batch.copy(shallow=True) for name, (batch, _) in remembering.items()}
        return MultiAgentBatch.wrap_as_needed(given, env_steps)

    vars(trial).update(sample=sample, batches=_TrialBatches(sample))
    # Compiling for a dummy of a few rows would take seconds, and once more for the real shapes.
    compiles = algorithm.config.learners.compile
    eagerly = torch.compiler.set_stance("force_eager") if compiles else contextlib.nullcontext()
    with contextlib.suppress(_EnoughError), eagerly:
        trial.training_step()
    if not num_batches:
        raise LookupError("training_step() did not ask sample() for a batch")
    return {
        name: _read(algorithm, name, touched.read, read_of_rows.get(name))
        for name, (_, touched) in remembering.items()
    }


def _read(
    algorithm: Algorithm, policy_id: str, columns: set[str], read_of_rows: set[str] | None
) -> _Read:
    """What was read of a policy's batch, and of the rows that its learner made of it."""
    if read_of_rows is None or not algorithm.policies[policy_id].train:
        return _Read(columns, None)
    views = algorithm.learners[policy_id].views
    if not read_of_rows:  # no rows came to be read
        return _Read(columns | with_next(views), None)
    return _Read(columns | with_next(read_of_rows.intersection(views)), read_of_rows)


def _not_stored(dummy: DummyBatch, unread: set[str], not_made: frozenset[str]) -> frozenset[str]:
    """Of what the policy puts out, that which nothing else is made of either."""
    if dummy.derived - unread:
        return frozenset()
    viewed = {view.source for view in dummy.views if view.name not in not_made}
    return frozenset((dummy.put_out & unread) - viewed)
