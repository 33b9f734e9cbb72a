"""Returns and advantages as pure functions of numpy arrays.

    T, B   time-major shape of the rewards: T steps of B independent pieces
    V(s')  value of the observation the environment returned: the final one where an episode ended

Two masks that must not be confused: `terminateds` says that nothing follows, so V(s') counts zero;
`ends` (terminated or truncated) says that the next row belongs to another episode, so the recursion
must not cross it. A truncated step bootstraps; a terminated one does not.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def gae(
    rewards: Array,
    values: Array,
    next_values: Array,
    terminateds: Array,
    truncateds: Array,
    *,
    gamma: float,
    lambda_: float,
) -> Array:
    """Generalised advantage estimates (Schulman et al. 2016, eq. 16), float32 ``[T, B]``.

        delta_t = r_t + gamma V(s'_t) (1 - terminated_t) - V(s_t)
        A_t     = delta_t + gamma lambda (1 - end_t) A_{t+1},   A_T = 0

    Args:
        rewards, values, next_values, terminateds, truncateds: each ``[T, B]``.
        gamma: discount.
        lambda_: 0 gives one-step advantages, 1 the bootstrapped Monte-Carlo return minus V.
    """
    deltas = rewards + gamma * next_values * ~terminateds - values
    decay = (gamma * lambda_) * ~(terminateds | truncateds)
    advantages = np.empty(rewards.shape, dtype=np.float32)
    running = np.zeros(rewards.shape[1:], dtype=deltas.dtype)
    for t in range(len(rewards) - 1, -1, -1):
        running = deltas[t] + decay[t] * running
        advantages[t] = running
    return advantages


def gae_of_rows(
    rewards: Array,
    values: Array,
    next_values: Array,
    terminateds: Array,
    truncateds: Array,
    lengths: Array,
    *,
    gamma: float,
    lambda_: float,
) -> Array:
    """`gae` for the rows ``[N]`` of a batch that is made of contiguous pieces.

    Args:
        lengths: rows of each piece, in order; they add up to N. Pieces of equal length are
            reshaped, others padded.
    """
    columns: list[Array] = [rewards, values, next_values, terminateds, truncateds]
    longest = int(lengths.max(initial=0))
    if bool((lengths == longest).all()):
        shaped = [column.reshape(len(lengths), longest).T for column in columns]
        return gae(*shaped, gamma=gamma, lambda_=lambda_).T.reshape(-1)
    # Padding stands behind each piece; it must not leak forward into it, hence terminated.
    filled = np.arange(longest)[None, :] < lengths[:, None]  # [pieces, longest]
    padded = [np.zeros(filled.shape, dtype=column.dtype) for column in columns]
    padded[3][:] = True
    for target, column in zip(padded, columns, strict=True):
        target[filled] = column
    advantages = gae(*(target.T for target in padded), gamma=gamma, lambda_=lambda_)
    return advantages.T[filled]


def piece_lengths(unroll_ids: Array) -> Array:
    """Lengths of the contiguous pieces that a batch is made of, from its ``unroll_id`` ``[N]``."""
    ends = np.flatnonzero(unroll_ids[1:] != unroll_ids[:-1]) + 1
    return np.diff(ends, prepend=0, append=len(unroll_ids))


def explained_variance(targets: Array, predictions: Array) -> float | None:
    """1 - Var(targets - predictions) / Var(targets); None where the targets do not vary."""
    variance = float(np.var(targets))
    return None if variance == 0.0 else 1.0 - float(np.var(targets - predictions)) / variance
