"""Learning action values of a recurrent network from replayed sequences (R2D2, Kapturowski 2019).

Owns the rows that sampled sequences become on the device, and their loss. A sequence is unrolled
from the recurrent state that was stored with its first step, through all its steps and one more
observation, whose values bootstrap the last steps. Its first steps may be *burn-in*: they bring the
stored state up to date with the present weights, without loss or gradient. A sequence at the start
of its episode has no burn-in, as the initial state is always the same.

    S  sequences      M  steps of all sequences      O  observations after the burn-in
    B  steps of burn-in      W  sequences with burn-in
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

OBS_ROWS, NEXT_OBS_ROWS, LEARNED = "obs_rows", "new_obs_rows", "learned"
WARMED, BURN_IN_PREFIX = "warmed", "burn_in_"
PRIORITY_OF_THE_MAXIMUM = 0.9
"""Eta of R2D2's priorities: eta max |error| + (1 - eta) mean |error|."""


def kept_columns(module: RLModule) -> list[str]:
    """Names of the columns that the replay buffer stores for this module only: states and views."""
    views = _views(module)
    states = [name for name in module.view_requirements if name.startswith(col.STATE_IN_PREFIX)]
    others = [name for name in views if name != col.OBS]
    return [*states, *others, *(f"{col.NEXT_PREFIX}{name}" for name in others)]


def _views(module: RLModule) -> list[str]:
    """Inputs of the module in each step, except states."""
    return [
        name
        for name, view in module.view_requirements.items()
        if view.is_acted_on(name) and not name.startswith(col.STATE_IN_PREFIX)
    ]


def initial_state(module: RLModule) -> list[Array]:
    """The module's states at the start of an episode."""
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
        | rows | shape | meaning |
        |---|---|---|
        | inputs of the module | ``[O, ...]`` | after the burn-in |
        | state_in_k | ``[S, ...]`` | states at the start of sequences, before the burn-in |
        | seq_lens | ``[S]`` | observations after the burn-in, with the one after the last step |
        | warmed | ``[W]`` | the sequences with burn-in |
        | burn_in_* | ``[B, W, ...]`` | inputs of the module in the burn-in |
        | actions, weights | ``[M]`` | of each step |
        | rewards, discounts, terminateds | ``[M]`` | of the n-step return from each step |
        | learned | ``[M]`` | whether a step has a loss |
        | obs_rows, new_obs_rows | ``[M]`` | rows ``[O]`` of the return's first and next state |
    """
    lengths: Array = batch[col.SEQ_LENS]
    starts = sequence_offsets(lengths)[:-1]
    sequence = np.repeat(np.arange(len(lengths)), lengths)  # of each step, as all below
    last = (starts + lengths - 1)[sequence]
    steps = np.arange(len(last))
    initial = in_initial_state(batch, initial_state(module))
    burn_in_lens = np.where(initial, 0, burn_in)  # [S]
    unrolled_lens = lengths - burn_in_lens + 1
    row_of_start = sequence_offsets(unrolled_lens)[:-1] - burn_in_lens
    step = steps - starts[sequence]
    learned = step >= burn_in_lens[sequence]
    obs_rows = (row_of_start[sequence] + step).clip(min=0)
    successors = np.where(steps == last, -1, steps + 1)
    returns, discounts, ends = n_step_returns(
        batch.column(col.REWARDS), successors, steps, n_step, gamma
    )
    rows: dict[str, Array] = {
        **_inputs(batch, module, obs_rows, learned, int(unrolled_lens.sum())),
        **_burn_in_inputs(batch, module, starts, burn_in_lens, burn_in),
        col.SEQ_LENS: unrolled_lens,
        col.ACTIONS: batch.column(col.ACTIONS),
        col.REWARDS: returns,
        col.DISCOUNTS: discounts,
        col.TERMINATEDS: batch.column(col.TERMINATEDS)[ends],
        col.WEIGHTS: batch.column(col.WEIGHTS),
        LEARNED: learned,
        OBS_ROWS: obs_rows,
        NEXT_OBS_ROWS: (row_of_start[sequence] + ends - starts[sequence] + 1).clip(min=0),
    }
    return as_tensors(rows, device)


def _inputs(
    batch: SampleBatch, module: RLModule, obs_rows: Array, learned: Array, num_rows: int
) -> dict[str, Array]:
    """Inputs of the module after the burn-in, ``[O, ...]``, and its states before the burn-in.

    Args:
        obs_rows: row ``[M]`` of each step among the inputs.
        learned: whether a step ``[M]`` is after the burn-in.
        num_rows: O.
    """
    rows = {name: batch[name] for name in batch if name.startswith(col.STATE_IN_PREFIX)}
    ends = sequence_offsets(batch[col.SEQ_LENS])[1:] - 1
    for name in _views(module):
        now = batch.column(name)
        rows[name] = np.empty((num_rows, *now.shape[1:]), now.dtype)
        rows[name][obs_rows[learned]] = now[learned]
        rows[name][obs_rows[ends] + 1] = batch.column(f"{col.NEXT_PREFIX}{name}")[ends]
    return rows


def _burn_in_inputs(
    batch: SampleBatch, module: RLModule, starts: Array, burn_in_lens: Array, burn_in: int
) -> dict[str, Array]:
    """The sequences with burn-in, ``[W]``, and the module's inputs in it, ``[B, W, ...]``."""
    warmed = np.flatnonzero(burn_in_lens)
    rows = starts[warmed] + np.arange(burn_in)[:, None]
    inputs = {f"{BURN_IN_PREFIX}{name}": batch.column(name)[rows] for name in _views(module)}
    return {WARMED: warmed, **inputs}


@torch.no_grad()
def warmed_up(module: RLModule, rows: dict[str, Tensor]) -> dict[str, Tensor]:
    """The rows with the module's states ``[S, ...]`` after the burn-in instead of before."""
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
        inputs = {name: pick(column, step) for name, column in views.items()}
        outputs = module.forward_inference({**inputs, **states})
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
    """Mean Huber loss of the temporal-difference errors, weighted step by step; without burn-in.

    Like `dqn_loss`, with values of the unrolled networks. Each network starts in the stored state,
    or in the state after its own burn-in.

    Args:
        rows: of `load_sequences`.

    Returns:
        The loss, a scalar with gradient, and statistics without; ``td_errors`` is ``[M]``, NaN
        for steps without a loss.
    """
    values = module.forward_train(warmed_up(module, rows))[col.ACTION_DIST_INPUTS]
    chosen = values[rows[OBS_ROWS]].gather(1, rows[col.ACTIONS][:, None]).squeeze(1)
    with torch.no_grad():
        outputs = target.forward_train(warmed_up(target, rows))
        next_values = outputs[col.ACTION_DIST_INPUTS][rows[NEXT_OBS_ROWS]]
        selection_values = values[rows[NEXT_OBS_ROWS]] if double_q else next_values
        best_next_values = values_of_best(next_values, selection_values)
        targets = bellman_targets(rows, best_next_values, rescaled=value_rescaling)
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
    """Errors of whole sequences ``[S]`` for their priorities (Kapturowski 2019, section 2.3).

    Args:
        errors: absolute errors of the steps, ``[M]``, NaN for steps without a loss.

    Returns:
        The item ids of the sequences' first steps, and the sequences' errors.
    """
    starts = sequence_offsets(batch[col.SEQ_LENS])[:-1]
    learned = ~np.isnan(errors)
    sizes = np.where(learned, errors, np.float32(0.0))
    counts = np.add.reduceat(learned.astype(np.float64), starts)
    means = np.add.reduceat(sizes, starts) / np.maximum(counts, 1.0)
    eta = PRIORITY_OF_THE_MAXIMUM
    mixed = eta * np.maximum.reduceat(sizes, starts) + (1.0 - eta) * means
    return batch.column(col.ITEM_IDS)[starts], mixed
