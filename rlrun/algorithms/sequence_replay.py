"""Learning action values of a recurrent network from replayed sequences (R2D2, Kapturowski 2019).

Owns the way of sampled sequences to the device, and their loss. A sequence is unrolled from the
state in which its first step was acted, through all its steps and one more observation, whose
values bootstrap the last steps. Its first steps may be *burn-in*: they bring the stored state up to
date with the present weights, without loss or gradient. A sequence at the start of its episode
needs none, as the state there is always the same.

    S  sequences      M  steps of all of them      O  observations that values are learned at
    B  steps of burn-in      W  sequences that have it
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from rlrun.algorithms.targets import bellman_targets, values_of_best
from rlrun.data import columns as col
from rlrun.data.column_data import Array, num_rows, pick
from rlrun.data.sample_batch import SampleBatch
from rlrun.data.sequences import sequence_offsets
from rlrun.learning.loaded_batch import as_tensors
from rlrun.policies.flat_parameters import as_array
from rlrun.policies.rl_module import RLModule
from rlrun.replay.replay_buffer import n_step_returns
from rlrun.replay.sequence_replay_buffer import in_initial_state

PRESENT, FOLLOWING, LEARNED = "present", "following", "learned"
WARMED, BURN_IN_PREFIX = "warmed", "burn_in_"
PRIORITY_OF_THE_MAXIMUM = 0.9
"""Eta of R2D2's priorities: eta max |error| + (1 - eta) mean |error|."""


def kept_columns(module: RLModule) -> list[str]:
    """Columns that a buffer must keep for this module in addition to transitions."""
    views = _views(module)
    states = [name for name in module.view_requirements if name.startswith(col.STATE_IN_PREFIX)]
    others = [name for name in views if name != col.OBS]
    return [*states, *others, *(f"{col.NEXT_PREFIX}{name}" for name in others)]


def _views(module: RLModule) -> list[str]:
    """Inputs of the module in each step, without its states."""
    return [
        name
        for name, view in module.view_requirements.items()
        if view.is_acted_on(name) and not name.startswith(col.STATE_IN_PREFIX)
    ]


def initial_state(module: RLModule) -> list[Array]:
    """The states in which an agent's episode begins."""
    return [as_array(state) for state in module.initial_state()]


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
        Views of the module after the burn-in ``[O, ...]``, its states ``[S, ...]`` before it, and
        ``seq_lens`` ``[S]``, each counting the observation that follows its sequence; ``warmed``
        ``[W]``, the sequences with burn-in, and what is seen in it, ``burn_in_*`` ``[B, W, ...]``;
        and of the steps, ``[M]``: ``actions``, ``rewards`` summed over up to ``n_step`` steps,
        ``discounts`` of what follows them, ``terminateds``, ``weights``, ``learned`` (whether a
        step has a loss), and the rows ``present`` and ``following`` of the observations before and
        after those rewards.
    """
    lengths: Array = batch[col.SEQ_LENS]
    starts = sequence_offsets(lengths)[:-1]
    sequence = np.repeat(np.arange(len(lengths)), lengths)  # of each step, as all below
    last = (starts + lengths - 1)[sequence]
    steps = np.arange(len(last))
    whole = in_initial_state(batch, initial_state(module))
    burnt = np.where(whole, 0, burn_in)  # [S]
    unrolled = lengths - burnt + 1
    row_of_start = sequence_offsets(unrolled)[:-1] - burnt
    step = steps - starts[sequence]
    present = (row_of_start[sequence] + step).clip(min=0)
    successors = np.where(steps == last, -1, steps + 1)
    returns, discounts, ends = n_step_returns(
        batch.column(col.REWARDS), successors, steps, n_step, gamma
    )
    rows: dict[str, Array] = {
        **_seen(batch, module, present, step >= burnt[sequence], int(unrolled.sum())),
        **_burn_in(batch, module, starts, burnt, burn_in),
        col.SEQ_LENS: unrolled,
        col.ACTIONS: batch.column(col.ACTIONS),
        col.REWARDS: returns,
        col.DISCOUNTS: discounts,
        col.TERMINATEDS: batch.column(col.TERMINATEDS)[ends],
        col.WEIGHTS: batch.column(col.WEIGHTS),
        LEARNED: step >= burnt[sequence],
        PRESENT: present,
        FOLLOWING: (row_of_start[sequence] + ends - starts[sequence] + 1).clip(min=0),
    }
    return as_tensors(rows, device)


def _seen(
    batch: SampleBatch, module: RLModule, present: Array, unrolled: Array, num_rows: int
) -> dict[str, Array]:
    """Inputs of the module after the burn-in, ``[O, ...]``, and its states before it.

    Args:
        present: rows of the steps ``[M]`` among these.
        unrolled: which steps ``[M]`` are not burn-in.
        num_rows: O.
    """
    rows = {name: batch[name] for name in batch if name.startswith(col.STATE_IN_PREFIX)}
    ends = sequence_offsets(batch[col.SEQ_LENS])[1:] - 1
    for name in _views(module):
        now = batch.column(name)
        rows[name] = np.empty((num_rows, *now.shape[1:]), now.dtype)
        rows[name][present[unrolled]] = now[unrolled]
        rows[name][present[ends] + 1] = batch.column(f"{col.NEXT_PREFIX}{name}")[ends]
    return rows


def _burn_in(
    batch: SampleBatch, module: RLModule, starts: Array, burnt: Array, burn_in: int
) -> dict[str, Array]:
    """The sequences with burn-in ``[W]``, and the module's inputs in it, ``[B, W, ...]``."""
    warmed = np.flatnonzero(burnt)
    rows = starts[warmed] + np.arange(burn_in)[:, None]
    seen = {f"{BURN_IN_PREFIX}{name}": batch.column(name)[rows] for name in _views(module)}
    return {WARMED: warmed, **seen}


@torch.no_grad()
def warmed_up(module: RLModule, rows: dict[str, Tensor]) -> dict[str, Tensor]:
    """The rows with this module's states ``[S, ...]`` at the end of burn-in."""
    warmed = rows[WARMED]
    if not len(warmed):
        return rows
    views = {
        name.removeprefix(BURN_IN_PREFIX): column
        for name, column in rows.items()
        if name.startswith(BURN_IN_PREFIX)
    }
    stored = {name: rows[name] for name in rows if name.startswith(col.STATE_IN_PREFIX)}
    states = {name: state[warmed] for name, state in stored.items()}
    for step in range(num_rows(views[col.OBS])):
        seen = {name: pick(column, step) for name, column in views.items()}
        outputs = module.forward_inference({**seen, **states})
        states = {
            name: outputs[name.replace(col.STATE_IN_PREFIX, col.STATE_OUT_PREFIX)]
            for name in states
        }
    fresh = {name: stored[name].index_copy(0, warmed, state) for name, state in states.items()}
    return {**rows, **fresh}


def sequence_loss(
    module: RLModule,
    rows: dict[str, Tensor],
    *,
    target: RLModule,
    double_q: bool,
    value_rescaling: bool = False,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Mean Huber loss of the learned steps' temporal-difference errors, weighted step by step.

    As `dqn_loss`, with values of the unrolled networks: each starts in the stored state, or in the
    state at the end of its own burn-in.

    Args:
        rows: of `load_sequences`.

    Returns:
        The loss, a scalar with gradient, and statistics without; ``td_errors`` is ``[M]``, NaN
        where a step has no loss.
    """
    values = module.forward_train(warmed_up(module, rows))[col.ACTION_DIST_INPUTS]
    chosen = values[rows[PRESENT]].gather(1, rows[col.ACTIONS][:, None]).squeeze(1)
    with torch.no_grad():
        outputs = target.forward_train(warmed_up(target, rows))
        next_values = outputs[col.ACTION_DIST_INPUTS][rows[FOLLOWING]]
        choosing = values[rows[FOLLOWING]] if double_q else next_values
        bootstrap = values_of_best(next_values, choosing)
        targets = bellman_targets(rows, bootstrap, rescaled=value_rescaling)
    learned = rows[LEARNED].to(torch.float32)
    count = learned.sum().clamp(min=1.0)
    losses = functional.huber_loss(chosen, targets, reduction="none")
    loss = (rows[col.WEIGHTS] * losses * learned).sum() / count
    errors = (chosen - targets).detach() * learned
    statistics = {
        "total_loss": loss.detach(),
        "q_mean": (chosen.detach() * learned).sum() / count,
        "td_error_mean": errors.abs().sum() / count,
        "td_errors": errors.masked_fill(~rows[LEARNED], torch.nan),
    }
    return loss, statistics


def sequence_errors(batch: SampleBatch, errors: Array) -> tuple[Array, Array]:
    """The errors that sequences are replayed by, of their steps' absolute errors ``[M]``.

    Args:
        errors: NaN where a step has no loss.

    Returns:
        The numbers of the sequences' first items, and an error for each.
    """
    starts = sequence_offsets(batch[col.SEQ_LENS])[:-1]
    learned = ~np.isnan(errors)
    sizes = np.where(learned, errors, np.float32(0.0))
    counts = np.add.reduceat(learned.astype(np.float64), starts)
    means = np.add.reduceat(sizes, starts) / np.maximum(counts, 1.0)
    eta = PRIORITY_OF_THE_MAXIMUM
    mixed = eta * np.maximum.reduceat(sizes, starts) + (1.0 - eta) * means
    return batch.column(col.ITEM_IDS)[starts], mixed
