"""Train batches for algorithms whose env runners do not wait for the learner.

Owns the execution pattern of IMPALA and APPO: fragments of fixed length arrive in any order, enough
of them make a train batch, and new weights are broadcast every few batches. Each batch has a
*policy lag*: the number of updates since the weights that acted in it. `AsynchronousSampler` sends
and bounds the requests.

Without remote runners each fragment is sampled in this process when it is needed, and runs are
exactly repeatable. With remote ones the order of arrival depends on the machine: two runs of one
seed differ, and a resumed run differs from an uninterrupted one. But a resume loses nothing: each
runner goes on after the last of its fragments that was learned from, and fragments that were under
way, or waited for the learner, are sampled again with the same weights and random numbers. So a run
learns from each step of each episode once, however often it is killed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any, TypeVar

from rlrun.actors.asynchronous import AsynchronousSampler
from rlrun.algorithms.algorithm import Algorithm
from rlrun.algorithms.on_policy import ActorCriticTraining, Update, update_policies
from rlrun.algorithms.result import Result
from rlrun.config.batch_arithmetic import stream_length
from rlrun.config.schema import Count, Section, TrainingConfig
from rlrun.config.section import Epsilon, Fraction, Positive
from rlrun.data.sample_batch import MultiAgentBatch
from rlrun.learning.learner import reduced
from rlrun.learning.vtrace import VTraceSettings
from rlrun.sampling.runner_messages import SampleReply

T = TypeVar("T", bound=TrainingConfig)


class AsynchronousTraining(Section):
    """A mixin: settings of algorithms whose env runners do not wait for the learner."""

    train_batch_size: Count = 512
    """Env steps of one iteration, exactly: whole fragments, from whichever runners come first."""
    broadcast_interval: Count = 1
    """Train batches between two broadcasts of the weights to the env runners."""
    learner_queue_size: Count | None = None
    """Fragments that may wait for the learner; while this many do, env runners wait too. null takes
    the fragments of one train batch; a longer queue does not keep the learner busier, and lets env
    runners act with older weights."""


class VTraceTraining(AsynchronousTraining, ActorCriticTraining):
    """Settings of algorithms that correct with V-trace for the age of their samples."""

    minibatch_size: Count | None = None
    """Rows of one gradient step; null takes the whole train batch."""
    lambda_: Fraction = 1.0
    """Factor on the trace coefficients of V-trace, to shorten its traces; 1 as in the paper."""
    vtrace_clip_rho_threshold: Positive | None = 1.0
    """Bound on the importance weights of the value targets; null sets none."""
    vtrace_clip_pg_rho_threshold: Positive | None = 1.0
    """Bound on the importance weights of the policy gradient; null sets none."""
    grad_clip: Positive | None = 40.0
    adam_epsilon: Epsilon = 1e-8

    @property
    def vtrace(self) -> VTraceSettings:
        """How V-trace is computed."""
        return VTraceSettings(
            self.gamma,
            self.lambda_,
            self.vtrace_clip_rho_threshold,
            self.vtrace_clip_pg_rho_threshold,
        )


class FragmentStream:
    """Fragments of an algorithm's env runners as they arrive; a part of its checkpoints.

    Args:
        length: steps of each sub-environment in a fragment.
        options: further arguments of `AsynchronousSampler`.

    Attributes:
        sampler: sends the requests, and takes the replies.
    """

    def __init__(self, algorithm: Algorithm, length: int, **options: Any) -> None:
        self._algorithm, self._length = algorithm, length
        self.sampler = AsynchronousSampler(
            algorithm.env_runner_group, lambda: algorithm.next_request(length), **options
        )

    def broadcast(self) -> None:
        """Let all further requests carry the present weights."""
        algorithm = self._algorithm
        with algorithm.timers.phase("sync"):
            self.sampler.set_weights(
                algorithm.policies.acting_weights, algorithm.policies.weights_version
            )

    def get_state(self) -> dict[str, Any]:
        """The requests under way, and the weights that runners act with."""
        return {"sampler": self.sampler.get_state()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state from `get_state`; replies to earlier requests are dropped."""
        self.sampler.set_state(
            state["sampler"], lambda asked: self._algorithm.repeated_request(asked, self._length)
        )


class AsynchronousBatches(FragmentStream):
    """Train batches of an algorithm, made of fragments as they arrive."""

    def __init__(self, algorithm: Algorithm, training: AsynchronousTraining) -> None:
        size, settings = training.train_batch_size, algorithm.config.env_runners
        length = stream_length(size, settings)
        of_batch = ceil(size / (length * settings.num_envs_per_env_runner))
        super().__init__(algorithm, length, queue_size=training.learner_queue_size or of_batch)
        self._training = training
        self._last_version = -1  # of the weights, when the last update was over

    def next(self) -> MultiAgentBatch:
        """The next train batch."""
        algorithm, training = self._algorithm, self._training
        replies: list[SampleReply] = []
        # Weights that no update has made do not wait: those at the start, those that the caller has
        # set, and the first ones of an added policy, which cannot act without them.
        if self._last_version != algorithm.policies.weights_version:
            self.broadcast()
        steps_before = algorithm.progress.counted_steps
        with algorithm.timers.phase("sample"):
            while algorithm.progress.counted_steps - steps_before < training.train_batch_size:
                reply: SampleReply = self.sampler.take()
                algorithm.count([reply])
                replies.append(reply)
            algorithm.progress.note_policy_lag(algorithm.policies.weights_version, replies)
            return algorithm.train_batch(replies)

    def broadcast_if_due(self) -> None:
        """After an update: broadcast the weights if it was the `broadcast_interval`-th."""
        self._last_version = self._algorithm.policies.weights_version
        age = self._last_version - self.sampler.weights_version
        if age >= self._training.broadcast_interval:
            self.broadcast()

    def get_state(self) -> dict[str, Any]:
        return {**super().get_state(), "last_version": self._last_version}

    def set_state(self, state: Mapping[str, Any]) -> None:
        super().set_state(state)
        self._last_version = int(state.get("last_version", -1))  # older checkpoints lack it


def asynchronous_step(
    algorithm: Algorithm[T], batches: AsynchronousBatches, update: Update[T]
) -> Result:
    """One iteration: a train batch as it arrives, updates, a broadcast if due."""
    steps_before = algorithm.env_steps
    result = update_policies(algorithm, batches.next(), update, env_steps=steps_before)
    algorithm.sync_weights()
    batches.broadcast_if_due()
    return result


def average(epochs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Statistics of passes with equally many gradient steps, which are added up."""
    return {**reduced(epochs), "num_updates": sum(epoch["num_updates"] for epoch in epochs)}
