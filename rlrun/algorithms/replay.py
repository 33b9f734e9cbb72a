"""Replay: what algorithms that learn from buffers share, besides their losses.

Owns the buffers of all policies that learn, how many updates each of them is owed for the steps
sampled, the turns of sampling and learning, and the way of a sampled batch to the device. Must not
know what is learned from it.

    M  rows of a minibatch
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

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

if TYPE_CHECKING:
    from rlrun.algorithms.algorithm import Algorithm

COLUMNS = (
    *(col.OBS, col.ACTIONS, col.REWARDS, col.NEXT_OBS, col.TERMINATEDS),
    *(col.DISCOUNTS, col.WEIGHTS),
)

Statistics = dict[str, Tensor]
Update = Callable[[str, SampleBatch, np.random.Generator], Statistics]
"""``(policy id, minibatch, random numbers) -> statistics``: one update of one policy."""


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


OF_ALL_IN_LOCKSTEP = (
    *("minibatch_size", "training_intensity"),
    "num_steps_sampled_before_learning_starts",
)
"""Settings that no policy has for itself where all learn from the same env steps."""


@dataclass
class _Debt:
    """What a policy is owed; in lockstep, all of them together."""

    steps: int = 0
    """Counted since the first transitions came into its buffer."""
    rows: float = 0.0
    """Transitions to replay for them."""


@dataclass
class Updates:
    """What a policy has done in an iteration."""

    statistics: list[Statistics] = field(default_factory=list)
    num_rows: int = 0
    """Transitions that it has learned from, each as often as it was replayed."""


class Replay:
    """The buffers of all policies that learn, and the updates that they are owed.

    Args:
        settings: the `replay` section.
        common: the settings of all policies that have none of their own.
        training_of: a policy's, given its id.
        make_buffer: makes the buffer of a policy, given its id.

    Attributes:
        buffer: what holds them.
    """

    def __init__(
        self,
        settings: ReplayConfig,
        common: ReplayTraining,
        training_of: Callable[[str], ReplayTraining],
        make_buffer: Callable[[str], ReplayBuffer],
    ) -> None:
        self.settings = settings
        self._common, self._training_of = common, training_of
        self.buffer = MultiAgentReplayBuffer(make_buffer, mode=settings.mode)
        self._debts: dict[str, _Debt] = {}

    @property
    def buffers(self) -> Mapping[str, ReplayBuffer]:
        """Policy id -> its buffer, once it has something."""
        return self.buffer.buffers

    def size(self, policy_id: str) -> int:
        """Transitions that are held of a policy."""
        return len(self.buffers.get(policy_id, ()))

    def forget(self, policy_id: str) -> None:
        """Drop what is held of a policy."""
        self.buffer.forget(policy_id)
        self._debts.pop(policy_id, None)

    def add(
        self, batches: Mapping[str, SampleBatch], steps: int, learning: Collection[str]
    ) -> None:
        """Store what policies are to learn from, and count what that makes due.

        Args:
            steps: in which these batches were sampled, whoever took part.
            learning: the policies that learn now.
        """
        self.buffer.add(MultiAgentBatch(batches, steps))
        for owed_to in self._owed(learning):
            training = self._training(owed_to)
            debt = self._debts.setdefault(owed_to, _Debt())
            debt.steps += steps
            if debt.steps >= training.num_steps_sampled_before_learning_starts:
                debt.rows += steps * training.training_intensity

    @property
    def _in_lockstep(self) -> bool:
        return self.settings.mode == "lockstep"

    def _owed(self, learning: Collection[str]) -> list[str]:
        """Whose debts are counted; in lockstep it is one that all share."""
        there = [policy_id for policy_id in self.buffers if policy_id in learning]
        return [DEFAULT_POLICY_ID] if there and self._in_lockstep else there

    def _training(self, owed_to: str) -> ReplayTraining:
        return self._common if self._in_lockstep else self._training_of(owed_to)

    def minibatches(
        self,
        rng_of: Callable[[str], np.random.Generator],
        env_steps: int,
        learning: Collection[str],
    ) -> Iterator[tuple[str, SampleBatch, np.random.Generator]]:
        """What is to be learned from now: policy, M transitions with ``weights``, random numbers.

        Errors of one minibatch are to be reported before the next is drawn. With a memory there are
        as many sequences as hold M transitions at full length, and one at least; in lockstep, all
        transitions of M env steps.

        Args:
            rng_of: random numbers of the updates that a policy makes now.
            env_steps: of the run, which place it on schedules.
        """
        for owed_to in self._owed(learning):
            num_updates = self._due(owed_to)
            rngs = {owed_to: rng_of(owed_to)} if num_updates else {}
            for _ in range(num_updates):
                drawn = self._draw(owed_to, rngs[owed_to], env_steps, learning)
                for policy_id, batch in drawn.items():
                    if policy_id not in rngs:
                        rngs[policy_id] = rng_of(policy_id)
                    yield policy_id, batch, rngs[policy_id]

    def _due(self, owed_to: str) -> int:
        """How many updates; they count as made."""
        debt, size = self._debts[owed_to], self._training(owed_to).minibatch_size
        num_updates = int(debt.rows // size)
        debt.rows -= num_updates * size
        return num_updates

    def _draw(
        self, owed_to: str, rng: np.random.Generator, env_steps: int, learning: Collection[str]
    ) -> dict[str, SampleBatch]:
        """A minibatch of one policy, or in lockstep one of each."""
        size = self._training(owed_to).minibatch_size
        policies, beta = [owed_to], {}
        if self._in_lockstep:
            policies = list(learning)
        elif isinstance(buffer := self.buffers[owed_to], PrioritizedReplayBuffer):
            beta = {"beta": value_at(self.settings.beta, env_steps)}
            if isinstance(buffer, SequenceReplayBuffer):
                size = max(size // buffer.length, 1)
        batches = self.buffer.sample(size, rng, policies=policies, **beta).policy_batches
        for batch in batches.values():
            if col.WEIGHTS not in batch:
                batch[col.WEIGHTS] = np.ones(len(batch), dtype=np.float32)
        return batches

    def report_errors(self, policy_id: str, batch: SampleBatch, errors: Tensor) -> None:
        """Let temporal-difference errors ``[M]`` become the priorities of a sampled batch."""
        buffer = self.buffers[policy_id]
        if isinstance(buffer, PrioritizedReplayBuffer):
            priorities = errors.abs().cpu().numpy() + self.settings.epsilon
            buffer.update_priorities(batch.column(col.ITEM_IDS), priorities)

    def get_state(self) -> dict[str, Any]:
        """What is due, and what is held if the `replay` section asks for that."""
        stored = self.settings.store_in_checkpoints
        return {
            "rows_due": {name: debt.rows for name, debt in self._debts.items()},
            "steps": {name: debt.steps for name, debt in self._debts.items()} if stored else {},
            "buffer": self.buffer.get_state() if stored else None,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `get_state` returned; without buffers they are filled anew."""
        self._debts = {
            name: _Debt(int(state["steps"].get(name, 0)), float(rows))
            for name, rows in state["rows_due"].items()
        }
        if state["buffer"] is not None:
            self.buffer.set_state(state["buffer"])


def transition_buffer(settings: ReplayConfig, training: ReplayTraining) -> ReplayBuffer:
    """A buffer of single transitions, as the `replay` section says."""
    if settings.prioritized:
        return PrioritizedReplayBuffer(
            settings.capacity, n_step=training.n_step, gamma=training.gamma, alpha=settings.alpha
        )
    return ReplayBuffer(settings.capacity, n_step=training.n_step, gamma=training.gamma)


def take_turns(
    algorithm: Algorithm,
    rounds: Sequence[Sequence[int]],
    replay: Replay,
    update: Update,
    after_updates: Callable[[str], None] | None = None,
) -> dict[str, Updates]:
    """One iteration: rounds of sampling, each followed by the updates that are due and a sync.

    Args:
        rounds: steps of each lane, by round and runner.
        update: makes one update of one policy.
        after_updates: called with each policy that has made some, at the end of those of a round.

    Returns:
        The updates of each policy that learns.
    """
    policies, progress = algorithm.policies, algorithm.progress
    learning = policies.trained
    made = {policy_id: Updates() for policy_id in learning}
    for lengths in rounds:
        before = progress.counted_steps
        batches = dict(algorithm.train_batches(algorithm.sample([lengths])))
        # What is learned from comes out of buffers: whoever decides is shown no batch.
        now = [*filter(policies.is_policy_to_train, learning)]
        with algorithm.timers.phase("transfer"):
            replay.add(batches, progress.counted_steps - before, now)
        have_learned: dict[str, None] = {}
        with algorithm.timers.phase("learn"):
            for policy_id, batch, rng in replay.minibatches(
                algorithm.learner_rng, algorithm.env_steps, now
            ):
                made[policy_id].statistics.append(update(policy_id, batch, rng))
                made[policy_id].num_rows += len(batch)
                have_learned[policy_id] = None
            if after_updates is not None:
                for policy_id in have_learned:
                    after_updates(policy_id)
        if have_learned:
            algorithm.sync_weights()
    return made


def to_device(batch: SampleBatch, device: torch.device) -> dict[str, Tensor]:
    """The columns that losses are made of, as tensors ``[M, ...]``."""
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
    config: ExperimentConfig, *, memories: Sequence[str] = ()
) -> Iterator[tuple[str, str]]:
    """What is wrong with the settings of replay, as ``(key, message)``.

    Args:
        memories: switches of `model` that the algorithm replays sequences for.
    """
    any_memory = False
    for prefix, settings in addressed_settings(config):
        yield from _memory_problems(config.algorithm, prefix, settings, memories)
        yield from _capacity_problems(config.replay.capacity, prefix, settings)
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
    capacity: int, prefix: str, settings: PolicySettings
) -> Iterator[tuple[str, str]]:
    training = settings.training
    assert isinstance(training, ReplayTraining)  # the loader made it from `Training`
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
        yield key, "there is one policy only, and nobody to keep step with; leave it out"
    if config.replay.prioritized:
        yield key, "env steps have no priorities; set replay.prioritized to false"
    if any_memory:
        yield key, "single env steps are drawn, which no memory learns from; set it to independent"
    for policy_id, policy in config.multi_agent.policies.items():
        for name in OF_ALL_IN_LOCKSTEP:
            if name in policy.training:
                message = "one for all policies in lockstep; it belongs to training"
                yield f"multi_agent.policies.{policy_id}.training.{name}", message
