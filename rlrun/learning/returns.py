"""Returns and advantages: pure functions of numpy arrays; `add_advantages` adds them to a batch.

    T, B   time-major shape of the rewards: T steps of B independent chunks
    V(s')  value of the observation the environment returned: the final one where an episode ended

Two masks that must not be confused: `terminateds` says that nothing follows, so V(s') counts zero;
`ends` (terminated or truncated) says that the next row belongs to another episode, so the recursion
must not cross it. A truncated step bootstraps; a terminated one does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from rlrun.data import columns as col
from rlrun.data.column_data import Array
from rlrun.data.sample_batch import SampleBatch
from rlrun.learning.loaded_batch import LoadedBatch, Rows, known_outputs, outputs_in_eval_mode
from rlrun.learning.losses import without_autograd
from rlrun.policies.flat_parameters import as_array
from rlrun.policies.rl_module import RLModule


def gae(
    rewards: Array,
    values: Array,
    next_values: Array,
    terminateds: Array,
    truncateds: Array,
    traces: Array | None = None,
    *,
    gamma: float,
    lambda_: float,
) -> Array:
    """Generalised advantage estimates (Schulman et al. 2016, eq. 16), float32 ``[T, B]``.

        delta_t = r_t + gamma V(s'_t) (1 - terminated_t) - V(s_t)
        A_t     = delta_t + gamma lambda (1 - end_t) c_{t+1} A_{t+1},   A_T = 0

    Args:
        rewards, values, next_values, terminateds, truncateds: each ``[T, B]``.
        traces: c_t, the weights of later errors, ``[T, B]``; None is 1.
        gamma: discount.
        lambda_: 0 gives one-step advantages, 1 the bootstrapped Monte Carlo return minus V.
    """
    # Selected rather than multiplied by 0: a terminal observation may be infinite or NaN.
    following = np.where(terminateds, np.float32(0.0), next_values)
    deltas = rewards + gamma * following - values
    decay = (gamma * lambda_) * ~(terminateds | truncateds)
    if traces is not None:
        decay[:-1] *= traces[1:]
    return backward_sums(deltas, decay)


def backward_sums(deltas: Array, decay: Array) -> Array:
    """x_t = delta_t + decay_t x_{t+1} with x_T = 0, float32 ``[T, B]``; both are ``[T, B]``."""
    sums = np.empty(deltas.shape, dtype=np.float32)
    running = np.zeros(deltas.shape[1:], dtype=deltas.dtype)
    for t in range(len(deltas) - 1, -1, -1):
        running = deltas[t] + decay[t] * running
        sums[t] = running
    return sums


def gae_of_rows(lengths: Array, *columns: Array, gamma: float, lambda_: float) -> Array:
    """`gae` for the rows of a batch of contiguous chunks, float32 ``[N]``.

    Args:
        lengths: rows of each chunk, in order; they add up to N.
        columns: the positional arguments of `gae`, each ``[N]``.
    """
    shaped, back = in_time_major(columns, lengths, end=3)
    return back(gae(*shaped, gamma=gamma, lambda_=lambda_))


def in_time_major(
    columns: Sequence[Array], lengths: Array, *, end: int
) -> tuple[list[Array], Callable[[Array], Array]]:
    """Rows ``[N]`` of contiguous chunks as arrays ``[T, chunks]``, and the function back to rows.

    Chunks of equal length are reshaped, others are padded at their ends.

    Args:
        lengths: rows of each chunk, in order; they add up to N.
        end: index of the column that ends episodes: True in the padding, which must not affect the
            rows before it. Other columns are 0 there.
    """
    longest = int(lengths.max(initial=0))
    if bool((lengths == longest).all()):
        shaped = [column.reshape(len(lengths), longest).T for column in columns]
        return shaped, lambda array: array.T.reshape(-1)
    filled = np.arange(longest)[None, :] < lengths[:, None]  # [chunks, longest]
    padded = [np.zeros(filled.shape, dtype=column.dtype) for column in columns]
    padded[end][:] = True
    for target, column in zip(padded, columns, strict=True):
        target[filled] = column
    return [array.T for array in padded], lambda array: array.T[filled]


def discounted_returns(
    rewards: Array, terminateds: Array, truncateds: Array, lengths: Array, *, gamma: float
) -> Array:
    """Discounted sums of rewards, float32 ``[N]``.

        G_t = r_t + gamma (1 - end_t) G_{t+1},   G_T = 0

    Without a value function nothing bootstraps, neither a truncated episode nor a cut one.

    Args:
        rewards, terminateds, truncateds: each ``[N]``.
        lengths: rows of each contiguous chunk, in order.
    """
    nothing = np.zeros(len(rewards), dtype=np.float32)
    flags = terminateds, truncateds
    return gae_of_rows(lengths, rewards, nothing, nothing, *flags, gamma=gamma, lambda_=1.0)


def chunk_lengths(unroll_ids: Array) -> Array:
    """Lengths of the contiguous chunks of a batch, from its ``unroll_id`` ``[N]``."""
    ends = np.flatnonzero(unroll_ids[1:] != unroll_ids[:-1]) + 1
    return np.diff(ends, prepend=0, append=len(unroll_ids))


def explained_variance(targets: Array, predictions: Array) -> float | None:
    """1 - Var(targets - predictions) / Var(targets); None if the targets do not vary."""
    variance = float(np.var(targets))
    return None if variance == 0.0 else 1.0 - float(np.var(targets - predictions)) / variance


def standardized(advantages: Any) -> Any:
    """Normalised to mean 0 and standard deviation 1, in float64: equal advantages become 0."""
    in_torch = isinstance(advantages, Tensor)
    exact = advantages.double() if in_torch else advantages.astype(np.float64)
    deviations = exact - exact.sum() / len(exact)
    variance = (deviations**2).sum() / len(exact)
    result = deviations / (variance**0.5 + 1e-8)
    return result.float() if in_torch else result.astype(np.float32)


def standardized_advantages(rows: Rows) -> Rows:
    """These rows with their advantages normalised to mean 0 and standard deviation 1."""
    return rows | {col.ADVANTAGES: standardized(rows[col.ADVANTAGES])}


@without_autograd
def add_advantages(
    rows: LoadedBatch,
    batch: SampleBatch,
    module: RLModule,
    gamma: float,
    lambda_: float,
    *,
    off_policy: bool = False,
) -> float | None:
    """Add the columns that losses need: action_logp, vf_preds, advantages and value_targets.

    One forward pass over the T + 1 observations of each slot and the final ones of episodes gives
    V(s) and V(s') of every row. The old log-probabilities come from it too, so that the ratio of
    the first minibatch is exactly 1 in closed form, and up to rounding with autograd. Modules that
    return values when they act compute only the last and the final observations.

    Args:
        off_policy: older weights have acted: use the traces min(1, pi(a|s) / mu(a|s)) and the value
            targets of V-trace (Espeholt et al. 2018, arXiv:1802.01561, section 4.1).

    Returns:
        The explained variance of the values, None where the targets do not vary.
    """
    known = known_outputs(batch, module) if module.values_when_acting else None
    inputs, old_values, next_values = outputs_in_eval_mode(rows, module, known)
    predictions = as_array(old_values)
    rows.add(col.ACTION_DIST_INPUTS, inputs)
    rows.add(col.ACTION_LOGP, logp_as_in_losses(module, inputs, rows.columns[col.ACTIONS]))
    traces = np.minimum(importance_weights(rows, batch), 1.0) if off_policy else None
    advantages = gae_of_rows(
        chunk_lengths(batch.column(col.UNROLL_ID)),
        batch.column(col.REWARDS),
        predictions,
        as_array(next_values),
        batch.column(col.TERMINATEDS),
        batch.column(col.TRUNCATEDS),
        *(() if traces is None else (traces,)),
        gamma=gamma,
        lambda_=lambda_,
    )
    rows.add(col.VF_PREDS, old_values)
    rows.add(col.ADVANTAGES, advantages)
    # The targets use the advantages before any normalisation.
    targets = (advantages if traces is None else traces * advantages) + predictions
    rows.add(col.VALUE_TARGETS, targets)
    return explained_variance(targets, predictions)


def importance_weights(rows: LoadedBatch, batch: SampleBatch) -> Array:
    """pi(a|s) / mu(a|s) ``[N]``: of the present policy (`rows`) to the one that acted (`batch`)."""
    return np.exp(as_array(rows.columns[col.ACTION_LOGP]) - batch.column(col.ACTION_LOGP))


def logp_as_in_losses(module: RLModule, inputs: Any, actions: Any) -> Any:
    """Log-probabilities of actions, float32 ``[N]``, equal to the bit to those in losses.

    Args:
        inputs: of the action distribution, ``[N, P]``: tensors, or arrays for closed forms.
        actions: ``[N, ...]``.
    """
    if isinstance(inputs, Tensor):
        return module.distribution.logp(inputs, actions)
    logp, *_ = module.distribution.logp_entropy_vjp(inputs, actions)
    return logp
