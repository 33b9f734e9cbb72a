"""Replay: what algorithms that learn from buffers share, besides their losses.

Owns the buffers of all policies that learn, how many updates are due for the steps sampled, the
turns of sampling and learning, priorities, and the way of a sampled batch to the device. Must not
know what is learned from it: each policy has an `Updater` for that.

    M  rows of a minibatch
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from rlrun.algorithms.algorithm import Algorithm
from rlrun.algorithms.policies import ByPolicy
from rlrun.algorithms.result import Result
from rlrun.algorithms.sequence_replay import sequence_errors
from rlrun.config.batch_arithmetic import short_fragment_lengths
from rlrun.config.policies import PolicySettings, addressed_settings
from rlrun.config.schema import (
    MEMORY_SWITCHES,
    Count,
    ExperimentConfig,
    ReplayConfig,
    TrainingConfig,
)
from rlrun.data import columns as col
from rlrun.data.sample_batch import DEFAULT_POLICY_ID, MultiAgentBatch, SampleBatch
from rlrun.learning.learner import value_at
from rlrun.replay.multi_agent_replay_buffer import MultiAgentReplayBuffer
from rlrun.replay.prioritized_replay_buffer import PrioritizedReplayBuffer
from rlrun.replay.replay_buffer import ReplayBuffer
from rlrun.replay.sequence_replay_buffer import SequenceReplayBuffer

COLUMNS = (
    *(col.OBS, col.ACTIONS, col.REWARDS, col.NEXT_OBS, col.TERMINATEDS),
    *(col.DISCOUNTS, col.WEIGHTS),
)

Statistics = dict[str, Tensor]


class ReplayTraining(TrainingConfig):
    """Settings that algorithms with replay share; `replay` is a section of its own."""

    train_batch_size: Count = 1024
    """Env steps collected for one iteration, exactly, in many short rounds with updates between."""
    minibatch_size: Count = 32
    """Transitions replayed for one gradient step."""
    training_intensity: float = Field(default=8.0, gt=0)
    """Transitions replayed for each env step sampled; 8 is a minibatch of 32 every 4 steps."""
    num_steps_sampled_before_learning_starts: Count = 1000
    """Env steps put into an empty replay buffer before it is learned from."""
    n_step: Count = 1
    """Rewards summed up before the target network's value; fewer where the episode ends."""


COMMON_IN_LOCKSTEP = (
    *("minibatch_size", "training_intensity"),
    "num_steps_sampled_before_learning_starts",
)
"""Settings that are common to all policies where all learn from the same env steps."""


R = TypeVar("R", bound=ReplayTraining)
U = TypeVar("U", bound="Updater")


class Updater(ABC):
    """Updates one policy; owns its target network and the like, but not its learner."""

    @abstractmethod
    def begin_iteration(self, env_steps: int) -> dict[str, float]:
        """Read the schedules; returns the values that are reported, by name."""

    @abstractmethod
    def update(self, batch: SampleBatch, rng: np.random.Generator) -> Statistics:
        """One update on a replayed batch.

        Returns:
            Scalars, and ``td_errors`` ``[M]``, NaN where a step was not learned from.
        """

    def end_round(self, steps: int) -> None:  # noqa: B027 - an optional hook
        """Called after the updates of a round of sampling, if there were any."""

    @abstractmethod
    def get_state(self) -> dict[str, Any]:
        """Everything besides the learner's state and weights."""

    @abstractmethod
    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state from `get_state`."""


@dataclass
class _Debt:
    """Updates that are due for a policy; in lockstep, for all policies together."""

    steps: int = 0
    """Env steps counted since the first transitions in its buffer."""
    rows: float = 0.0
    """Transitions to replay for them."""


class Replay(Generic[R, U]):
    """Sampling and learning in turns, out of the buffers of all policies that learn.

    Args:
        make_updater: makes a policy's updater, given its id.
        make_buffer: makes a policy's buffer, given its id.
        round_steps: env steps between updates with ``rollout_fragment_length: auto``.
        reported: statistics of updates that are averaged over an iteration; None without updates.

    Attributes:
        buffer: holds the buffers of all policies.
        updaters: by policy id.
    """

    def __init__(
        self,
        algorithm: Algorithm[R],
        make_updater: Callable[[str], U],
        make_buffer: Callable[[str], ReplayBuffer],
        *,
        round_steps: int,
        reported: Sequence[str],
    ) -> None:
        self._algorithm, self._reported = algorithm, reported
        self._settings = algorithm.config.replay
        self._in_lockstep = self._settings.mode == "lockstep"
        self.updaters = ByPolicy(make_updater, algorithm.policies.trained)
        self.buffer = MultiAgentReplayBuffer(make_buffer, mode=self._settings.mode)
        self._debts: dict[str, _Debt] = {}
        self._rounds = short_fragment_lengths(
            algorithm.training.train_batch_size, algorithm.config.env_runners, round_steps
        )

    @property
    def buffers(self) -> Mapping[str, ReplayBuffer]:
        """Policy id -> its buffer, once it has something."""
        return self.buffer.buffers

    def step(self) -> Result:
        """One iteration: rounds of sampling, each followed by the updates that are due and a sync.

        Returns:
            The `learners` part of the result.
        """
        algorithm = self._algorithm
        in_force = {
            policy_id: self.updaters[policy_id].begin_iteration(algorithm.env_steps)
            for policy_id in algorithm.policies.trained
        }
        updates: dict[str, list[Statistics]] = {policy_id: [] for policy_id in in_force}
        num_rows = dict.fromkeys(in_force, 0)
        for lengths in self._rounds:
            learning = self._sample(lengths)
            with algorithm.timers.phase("learn"):
                updated: dict[str, None] = {}
                for policy_id, batch, rng in self._minibatches(learning):
                    statistics = self.updaters[policy_id].update(batch, rng)
                    self._report_errors(policy_id, batch, statistics.pop("td_errors"))
                    updates[policy_id].append(statistics)
                    num_rows[policy_id] += len(batch)
                    updated[policy_id] = None
                for policy_id in updated:
                    self.updaters[policy_id].end_round(algorithm.progress.counted_steps)
            if updated:
                algorithm.sync_weights()
        result: Result = {}
        for policy_id, values in in_force.items():
            row = {
                **averages(updates[policy_id], self._reported),
                "num_updates": len(updates[policy_id]),
                **values,
                "replay_size": len(self.buffers.get(policy_id, ())),
            }
            result |= algorithm.learner_result(num_rows[policy_id], row, policy_id)
        return result

    def _sample(self, lengths: Sequence[int]) -> list[str]:
        """Sample and store a round, count the updates due for it; the policies that learn now."""
        algorithm, policies = self._algorithm, self._algorithm.policies
        before = algorithm.progress.counted_steps
        batches = dict(algorithm.train_batches(algorithm.sample([lengths])))
        # Updates learn from buffers, so `policies_to_train` is asked without a batch.
        learning = [*filter(policies.is_policy_to_train, policies.trained)]
        with algorithm.timers.phase("transfer"):
            steps = algorithm.progress.counted_steps - before
            self.buffer.add(MultiAgentBatch(batches, steps))
            for owed_to in self._owed(learning):
                training = self._training(owed_to)
                debt = self._debts.setdefault(owed_to, _Debt())
                debt.steps += steps
                if debt.steps >= training.num_steps_sampled_before_learning_starts:
                    debt.rows += steps * training.training_intensity
        return learning

    def _owed(self, learning: Sequence[str]) -> list[str]:
        """Policies with debts of their own; in lockstep all share the default policy's."""
        there = [policy_id for policy_id in self.buffers if policy_id in learning]
        return [DEFAULT_POLICY_ID] if there and self._in_lockstep else there

    def _training(self, owed_to: str) -> R:
        algorithm = self._algorithm
        return algorithm.training if self._in_lockstep else algorithm.training_of(owed_to)

    def _minibatches(
        self, learning: Sequence[str]
    ) -> Iterator[tuple[str, SampleBatch, np.random.Generator]]:
        """The minibatches due now: policy, M transitions with ``weights``, random numbers.

        Errors of one minibatch are to be reported before the next is drawn. With a memory there are
        as many sequences as hold M transitions at full length, and one at least; in lockstep, all
        transitions of M env steps.
        """
        rng_of = self._algorithm.learner_rng
        for owed_to in self._owed(learning):
            num_updates = self._due(owed_to)
            rngs = {owed_to: rng_of(owed_to)} if num_updates else {}
            for _ in range(num_updates):
                drawn = self._draw(owed_to, rngs[owed_to], learning)
                for policy_id, batch in drawn.items():
                    if policy_id not in rngs:
                        rngs[policy_id] = rng_of(policy_id)
                    yield policy_id, batch, rngs[policy_id]

    def _due(self, owed_to: str) -> int:
        """How many updates are due; they count as made."""
        debt, size = self._debts[owed_to], self._training(owed_to).minibatch_size
        num_updates = int(debt.rows // size)
        debt.rows -= num_updates * size
        return num_updates

    def _draw(
        self, owed_to: str, rng: np.random.Generator, learning: Sequence[str]
    ) -> dict[str, SampleBatch]:
        """A minibatch of one policy, or in lockstep one of each."""
        size = self._training(owed_to).minibatch_size
        policies, beta = [owed_to], {}
        if self._in_lockstep:
            policies = list(learning)
        elif isinstance(buffer := self.buffers[owed_to], PrioritizedReplayBuffer):
            beta = {"beta": value_at(self._settings.beta, self._algorithm.env_steps)}
            if isinstance(buffer, SequenceReplayBuffer):
                size = max(size // buffer.length, 1)
        batches = self.buffer.sample(size, rng, policies=policies, **beta).policy_batches
        for batch in batches.values():
            if col.WEIGHTS not in batch:
                batch[col.WEIGHTS] = np.ones(len(batch), dtype=np.float32)
        return batches

    def _report_errors(self, policy_id: str, batch: SampleBatch, td_errors: Tensor) -> None:
        """Let temporal-difference errors ``[M]`` become the priorities of a sampled batch."""
        buffer = self.buffers[policy_id]
        if self._settings.prioritized and isinstance(buffer, PrioritizedReplayBuffer):
            errors = td_errors.abs().cpu().numpy()
            ids = batch.column(col.ITEM_IDS)
            if isinstance(buffer, SequenceReplayBuffer):
                ids, errors = sequence_errors(batch, errors)
            if np.isfinite(errors).all():  # else the loss is not finite either, and training ends
                buffer.update_priorities(ids, errors + self._settings.epsilon)

    def forget(self, policy_id: str) -> None:
        """Drop the updater, buffer and due updates of a policy."""
        self.updaters.pop(policy_id, None)
        self.buffer.forget(policy_id)
        self._debts.pop(policy_id, None)

    def get_state(self) -> dict[str, Any]:
        """Updaters, updates due, and the buffers if the `replay` section asks for that."""
        stored = self._settings.store_in_checkpoints
        return {
            "updaters": self.updaters.get_state(),
            "rows_due": {name: debt.rows for name, debt in self._debts.items()},
            "steps": {name: debt.steps for name, debt in self._debts.items()} if stored else {},
            "buffer": self.buffer.get_state() if stored else None,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state from `get_state`; buffers that it lacks are filled anew."""
        self.updaters.set_state(state["updaters"])
        self._debts = {
            name: _Debt(int(state["steps"].get(name, 0)), float(rows))
            for name, rows in state["rows_due"].items()
        }
        if state["buffer"] is not None:
            self.buffer.set_state(state["buffer"])


def transition_buffer(settings: ReplayConfig, training: ReplayTraining) -> ReplayBuffer:
    """The buffer of single transitions that the `replay` section asks for."""
    if settings.prioritized:
        return PrioritizedReplayBuffer(
            settings.capacity, n_step=training.n_step, gamma=training.gamma, alpha=settings.alpha
        )
    return ReplayBuffer(settings.capacity, n_step=training.n_step, gamma=training.gamma)


def to_device(batch: SampleBatch, device: torch.device) -> dict[str, Tensor]:
    """The columns that losses read, as tensors ``[M, ...]``."""
    rows = {name: torch.from_numpy(batch.column(name)) for name in COLUMNS}
    if device.type == "cpu":
        return rows
    return {name: column.to(device, non_blocking=True) for name, column in rows.items()}


def averages(updates: Sequence[Statistics], names: Sequence[str]) -> dict[str, float | None]:
    """Means of these statistics over the updates of an iteration, in one transfer; None if none."""
    if not updates:
        return dict.fromkeys(names)
    table = torch.stack([update[name] for update in updates for name in names])
    means = table.view(len(updates), len(names)).mean(0)
    return dict(zip(names, means.tolist(), strict=True))


def replay_problems(
    algorithm: type[Algorithm[R]], config: ExperimentConfig, *, memories: Sequence[str] = ()
) -> Iterator[tuple[str, str]]:
    """What is wrong with replay settings, as ``(key, message)``.

    Args:
        memories: switches of `model` that the algorithm replays sequences for.
    """
    any_memory = False
    for prefix, settings in addressed_settings(config):
        yield from _memory_problems(config.algorithm, prefix, settings, memories)
        yield from _capacity_problems(
            config.replay.capacity, prefix, algorithm.training_in(settings)
        )
        any_memory |= any(getattr(settings.model, name) for name in memories)
    if config.replay.burn_in and not any_memory:
        message = "there is no memory to bring up to date; leave it out, or set model.use_lstm"
        yield "replay.burn_in", message if memories else message.partition(", or")[0]
    if config.replay.mode == "lockstep":
        yield from _lockstep_problems(config, any_memory)


def _memory_problems(
    algorithm: str, prefix: str, settings: PolicySettings, memories: Sequence[str]
) -> Iterator[tuple[str, str]]:
    for name in MEMORY_SWITCHES:
        if getattr(settings.model, name) and name not in memories:
            message = f"{algorithm} replays single transitions, which no memory learns from"
            if memories:
                message = f"{algorithm} does not replay what this memory learns from"
            yield f"{prefix}model.{name}", f"{message}; leave it out"


def _capacity_problems(
    capacity: int, prefix: str, training: ReplayTraining
) -> Iterator[tuple[str, str]]:
    needed = training.num_steps_sampled_before_learning_starts
    if needed > capacity:
        yield (
            f"{prefix}training.num_steps_sampled_before_learning_starts"
            if prefix
            else "replay.capacity",
            f"a buffer of {capacity} transitions loses some of the {needed} that "
            "num_steps_sampled_before_learning_starts asks for: set replay.capacity to "
            f"{needed} or more",
        )


def _lockstep_problems(config: ExperimentConfig, any_memory: bool) -> Iterator[tuple[str, str]]:
    key = "replay.mode"
    if not config.multi_agent.policies:
        yield key, "there is only one policy to keep in step; leave it out"
    if config.replay.prioritized:
        yield key, "env steps have no priorities; set replay.prioritized to false"
    if any_memory:
        yield key, "single env steps are drawn, which no memory learns from; set it to independent"
    for policy_id, policy in config.multi_agent.policies.items():
        for name in COMMON_IN_LOCKSTEP:
            if name in policy.training:
                message = "one for all policies in lockstep; it belongs to training"
                yield f"multi_agent.policies.{policy_id}.training.{name}", message
