"""Replay: what algorithms that learn from a buffer share, besides their losses.

Owns the buffer, how many updates are due for the env steps sampled, and the way of a sampled batch
to the device. Must not know what is learned from it.

    M  rows of a minibatch
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlrun.config.schema import MEMORY_SWITCHES, ExperimentConfig, ReplayConfig
from rlrun.data import columns as col
from rlrun.data.prioritized_replay_buffer import PrioritizedReplayBuffer
from rlrun.data.replay_buffer import ReplayBuffer
from rlrun.data.sample_batch import SampleBatch
from rlrun.data.sequence_replay_buffer import SequenceReplayBuffer
from rlrun.learning.learner import value_at

COLUMNS = (
    *(col.OBS, col.ACTIONS, col.REWARDS, col.NEXT_OBS, col.TERMINATEDS),
    *(col.DISCOUNTS, col.WEIGHTS),
)


class Replay:
    """A buffer and the updates that it owes.

    Args:
        settings: the `replay` section.
        n_step, gamma: of the returns that the buffer puts together.
        minibatch_size: M.
        training_intensity: transitions to replay for each env step sampled.
        learning_starts: env steps put into the buffer before anything is learned.
        buffer: to be used instead of one for single transitions.
    """

    def __init__(
        self,
        settings: ReplayConfig,
        *,
        n_step: int,
        gamma: float,
        minibatch_size: int,
        training_intensity: float,
        learning_starts: int,
        buffer: ReplayBuffer | None = None,
    ) -> None:
        self.settings = settings
        self.buffer: ReplayBuffer
        if buffer is not None:
            self.buffer = buffer
        elif settings.prioritized:
            self.buffer = PrioritizedReplayBuffer(
                settings.capacity, n_step=n_step, gamma=gamma, alpha=settings.alpha
            )
        else:
            self.buffer = ReplayBuffer(settings.capacity, n_step=n_step, gamma=gamma)
        self.minibatch_size = minibatch_size
        self._intensity = training_intensity
        self._learning_starts = learning_starts
        self._rows_due = 0.0  # transitions to replay for env steps already sampled
        self._no_weights = np.ones(minibatch_size, dtype=np.float32)

    def add(self, batch: SampleBatch) -> int:
        """Store a batch; returns how many updates are due now."""
        self.buffer.add(batch)
        if self.buffer.num_added < self._learning_starts:
            return 0
        self._rows_due += len(batch) * self._intensity
        num_updates = int(self._rows_due // self.minibatch_size)
        self._rows_due -= num_updates * self.minibatch_size
        return num_updates

    def sample(self, rng: np.random.Generator, env_steps: int) -> SampleBatch:
        """M transitions with their ``weights``; ``env_steps`` of the run place it on schedules.

        Of sequences as many as hold M transitions at full length, and one at least.
        """
        if isinstance(self.buffer, SequenceReplayBuffer):
            num_sequences = max(self.minibatch_size // self.buffer.length, 1)
            beta = value_at(self.settings.beta, env_steps)
            return self.buffer.sample(num_sequences, rng, beta=beta)
        if isinstance(self.buffer, PrioritizedReplayBuffer):
            beta = value_at(self.settings.beta, env_steps)
            return self.buffer.sample(self.minibatch_size, rng, beta=beta)
        batch = self.buffer.sample(self.minibatch_size, rng)
        batch[col.WEIGHTS] = self._no_weights
        return batch

    def report_errors(self, batch: SampleBatch, errors: Tensor) -> None:
        """Let temporal-difference errors ``[M]`` become the priorities of a sampled batch."""
        if isinstance(self.buffer, PrioritizedReplayBuffer):
            priorities = errors.abs().cpu().numpy() + self.settings.epsilon
            self.buffer.update_priorities(batch.column(col.ITEM_IDS), priorities)

    def get_state(self) -> dict[str, Any]:
        """What is due, and what is held if the `replay` section asks for that."""
        stored = self.settings.store_in_checkpoints
        return {
            "rows_due": self._rows_due,
            "buffer": self.buffer.get_state() if stored else None,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Take over what `get_state` returned."""
        self._rows_due = float(state["rows_due"])
        if state["buffer"] is not None:
            self.buffer.set_state(state["buffer"])


def to_device(batch: SampleBatch, device: torch.device) -> dict[str, Tensor]:
    """The columns that losses are made of, as tensors ``[M, ...]``."""
    rows = {name: torch.from_numpy(batch.column(name)) for name in COLUMNS}
    if device.type == "cpu":
        return rows
    return {name: column.to(device, non_blocking=True) for name, column in rows.items()}


def averages(updates: Sequence[dict[str, Tensor]], names: Sequence[str]) -> dict[str, float | None]:
    """Means of these statistics over the updates of an iteration, in one transfer; None if none."""
    if not updates:
        return dict.fromkeys(names)
    table = torch.stack([update[name] for update in updates for name in names])
    means = table.view(len(updates), len(names)).mean(0)
    return dict(zip(names, means.tolist(), strict=True))


def replay_problems(
    config: ExperimentConfig, learning_starts: int, *, memories: Sequence[str] = ()
) -> Iterator[tuple[str, str]]:
    """What is wrong with the settings of replay, as ``(key, message)``.

    Args:
        memories: switches of `model` that the algorithm replays sequences for.
    """
    for name in MEMORY_SWITCHES:
        if getattr(config.model, name) and name not in memories:
            message = f"{config.algorithm} replays single transitions, which no memory learns from"
            if memories:
                message = f"{config.algorithm} does not replay what this memory learns from"
            yield f"model.{name}", f"{message}; leave it out"
    if config.replay.burn_in and not any(getattr(config.model, name) for name in memories):
        message = "there is no memory to bring up to date; leave it out, or set model.use_lstm"
        yield "replay.burn_in", message if memories else message.partition(", or")[0]
    if learning_starts > config.replay.capacity:
        yield (
            "replay.capacity",
            f"a buffer of {config.replay.capacity} transitions loses some of the {learning_starts} "
            "that num_steps_sampled_before_learning_starts asks for: set it to "
            f"{learning_starts} or more",
        )
