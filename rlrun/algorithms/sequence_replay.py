"""Learning action values of a recurrent network from replayed sequences (R2D2, Kapturowski 2019).

Owns the way of sampled sequences to the device and their loss. A sequence is unrolled from the
state that its first step was acted in, through all its steps and one observation more, whose values
bootstrap the last ones. Its first steps may be *burn-in*: they bring the stored state up to date
with the present weights and have no loss of their own. A sequence that begins its episode needs
none, as the state there is always the same.

    S  sequences      M  steps of all of them      M + S  observations: one more for each
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from rlrun.data import columns as col
from rlrun.data.sample_batch import SampleBatch
from rlrun.data.sequence_replay_buffer import SequenceReplayBuffer
from rlrun.data.sequences import sequence_offsets
from rlrun.policies.rl_module import RLModule

Array = NDArray[Any]

PRESENT, FOLLOWING, LEARNED = "present", "following", "learned"
PRIORITY_OF_THE_MAXIMUM = 0.9
"""Eta of R2D2's priorities: eta max |error| + (1 - eta) mean |error|."""


def kept_columns(module: RLModule) -> list[str]:
    """What a buffer must keep for this module besides single transitions."""
    views = _views(module)
    states = [name for name in module.view_requirements if name.startswith(col.STATE_IN_PREFIX)]
    others = [name for name in views if name != col.OBS]
    return [*states, *others, *(f"{col.NEXT_PREFIX}{name}" for name in others)]


def _views(module: RLModule) -> list[str]:
    """What the module sees in each step, without its states."""
    return [
        name
        for name, view in module.view_requirements.items()
        if view.is_acted_on(name) and not name.startswith(col.STATE_IN_PREFIX)
    ]


def load_sequences(
    batch: SampleBatch,
    module: RLModule,
    device: torch.device,
    *,
    burn_in: int,
    n_step: int,
    gamma: float,
) -> dict[str, Tensor]:
    """Sampled sequences as the rows of `sequence_loss`.

    Returns:
        Views of the module ``[M + S, ...]``, its states ``[S, ...]`` and ``seq_lens`` ``[S]``, each
        counting the observation behind it; and of the steps, ``[M]``: ``actions``, ``rewards``
        summed over up to ``n_step`` steps, ``discounts`` of what follows them (0 after a
        termination), ``weights``, ``learned`` (whether a step has a loss), and the rows
        ``present`` and ``following`` of the observations before and after those rewards.
    """
    lengths: Array = batch[col.SEQ_LENS]
    starts = sequence_offsets(lengths)[:-1]
    last = np.repeat(starts + lengths - 1, lengths)  # of each step's sequence
    steps = np.arange(len(last))
    sequence = np.repeat(np.arange(len(lengths)), lengths)
    present = steps + sequence
    rows: dict[str, Array] = {}
    for name in _views(module):
        now = batch.column(name)
        rows[name] = np.empty((len(steps) + len(lengths), *now.shape[1:]), now.dtype)
        rows[name][present] = now
        behind = starts + lengths - 1
        rows[name][present[behind] + 1] = batch.column(f"{col.NEXT_PREFIX}{name}")[behind]
    for name in batch:
        if name.startswith(col.STATE_IN_PREFIX):
            rows[name] = batch[name]
    taken = np.minimum(n_step, last - steps + 1)
    rewards, single = np.zeros(len(steps)), batch.column(col.REWARDS)
    for ahead in range(n_step):
        there = ahead < taken
        rewards[there] += gamma**ahead * single[steps[there] + ahead]
    terminated = batch.column(col.TERMINATEDS)[steps + taken - 1]
    whole = batch.column(col.T)[starts] == 0
    rows |= {
        col.SEQ_LENS: lengths + 1,
        col.ACTIONS: batch.column(col.ACTIONS),
        col.REWARDS: rewards.astype(np.float32),
        col.DISCOUNTS: np.where(terminated, 0.0, gamma**taken).astype(np.float32),
        col.WEIGHTS: batch.column(col.WEIGHTS),
        LEARNED: whole[sequence] | (steps - starts[sequence] >= burn_in),
        PRESENT: present,
        FOLLOWING: present + taken,
    }
    return {name: torch.from_numpy(column).to(device) for name, column in rows.items()}


def sequence_loss(
    module: RLModule, rows: dict[str, Tensor], *, target: RLModule, double_q: bool
) -> tuple[Tensor, dict[str, Tensor]]:
    """Mean Huber loss of the learned steps' temporal-difference errors, weighted step by step.

    As `dqn_loss`, with values of the unrolled networks: each begins in the stored state.

    Args:
        rows: of `load_sequences`.

    Returns:
        The loss, a scalar with gradient, and statistics without; ``td_errors`` is ``[M]``, 0 where
        a step has no loss.
    """
    values = module.forward_train(rows)[col.ACTION_DIST_INPUTS]
    chosen = values[rows[PRESENT]].gather(1, rows[col.ACTIONS][:, None]).squeeze(1)
    with torch.no_grad():
        next_values = target.forward_train(rows)[col.ACTION_DIST_INPUTS][rows[FOLLOWING]]
        choosing = values[rows[FOLLOWING]] if double_q else next_values
        bootstrap = next_values.gather(1, choosing.argmax(dim=1, keepdim=True)).squeeze(1)
        goals = torch.addcmul(rows[col.REWARDS], rows[col.DISCOUNTS], bootstrap)
    learned = rows[LEARNED].to(torch.float32)
    count = learned.sum().clamp(min=1.0)
    losses = functional.huber_loss(chosen, goals, reduction="none")
    loss = (rows[col.WEIGHTS] * losses * learned).sum() / count
    errors = (chosen - goals).detach() * learned
    statistics = {
        "total_loss": loss.detach(),
        "q_mean": (chosen.detach() * learned).sum() / count,
        "td_error_mean": errors.abs().sum() / count,
        "td_errors": errors,
    }
    return loss, statistics


def report_sequence_errors(
    buffer: SequenceReplayBuffer, batch: SampleBatch, rows: dict[str, Tensor], errors: Tensor
) -> None:
    """Let errors ``[M]`` become priorities; a sequence without a learned step keeps its own."""
    starts = sequence_offsets(batch[col.SEQ_LENS])[:-1]
    sizes = errors.abs().cpu().numpy()
    counts = np.add.reduceat(rows[LEARNED].cpu().numpy().astype(np.float64), starts)
    means = np.add.reduceat(sizes, starts) / np.maximum(counts, 1.0)
    eta = PRIORITY_OF_THE_MAXIMUM
    priorities = eta * np.maximum.reduceat(sizes, starts) + (1.0 - eta) * means
    known = counts > 0
    first = batch.column(col.ITEM_IDS)[starts]
    buffer.update_priorities(first[known], priorities[known] + np.finfo(np.float32).eps)
