"""V-trace: value targets and advantages for trajectories that an older policy sampled.

The formulas of IMPALA (Espeholt et al. 2018, arXiv:1802.01561, section 4.1) as pure functions of
arrays, and their way into a loaded batch. With the importance ratio pi(a|s) / mu(a|s) of the policy
that learns to the one that acted:

    rho_t   = min(rho_bar, ratio_t)        c_t = lambda min(1, ratio_t)
    delta_t = rho_t (r_t + gamma V(s'_t) (1 - terminated_t) - V(s_t))
    vs_t    = V(s_t) + delta_t + gamma (1 - end_t) c_t (vs_{t+1} - V(s_{t+1}))
    A_t     = min(rho_pg_bar, ratio_t) (r_t + gamma vs'_t (1 - terminated_t) - V(s_t))

s'_t is the observation that step t led to: where an episode was truncated or the fragment ends, the
true final one, whose value bootstraps. vs'_t is vs_{t+1}, or V(s'_t) there. An end is a terminated
or a truncated step: nothing of the next episode leaks back over it, and no step is left out.
Advantages that were estimated otherwise get the ratio as a weight (`weigh_advantages`).

    T  steps of a fragment      B  chunks side by side      N  rows
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from rlrun.data import columns as col
from rlrun.data.column_data import Array
from rlrun.data.sample_batch import SampleBatch
from rlrun.learning.loaded_batch import LoadedBatch, Rows, outputs_in_eval_mode
from rlrun.learning.losses import without_autograd
from rlrun.learning.returns import (
    backward_sums,
    chunk_lengths,
    explained_variance,
    importance_weights,
    in_time_major,
    logp_as_in_losses,
)
from rlrun.policies.flat_parameters import as_array
from rlrun.policies.rl_module import RLModule

IMPORTANCE_WEIGHTS = "importance_weights"
"""Present probability of an action over the one with which it was drawn, truncated; ``[N]``."""
MAX_IMPORTANCE_WEIGHT = np.float32(2.0)


@dataclass(frozen=True)
class VTraceSettings:
    """Parameters of V-trace.

    Attributes:
        gamma: discount.
        lambda_: shortens the traces (remark 2 of the paper); 1 is the paper's V-trace.
        rho_clip, pg_rho_clip: rho_bar and its counterpart in the advantages; None does not clip.
    """

    gamma: float
    lambda_: float = 1.0
    rho_clip: float | None = 1.0
    pg_rho_clip: float | None = 1.0


def vtrace(
    log_ratios: Array,
    rewards: Array,
    values: Array,
    next_values: Array,
    terminateds: Array,
    truncateds: Array,
    *,
    settings: VTraceSettings,
) -> tuple[Array, Array]:
    """Value targets vs and policy-gradient advantages, float32 ``[T, B]`` each.

    Args:
        log_ratios: log pi(a|s) - log mu(a|s), ``[T, B]``; 0 gives n-step returns.
        rewards, values, next_values, terminateds, truncateds: each ``[T, B]``.
    """
    ratios = np.exp(log_ratios)
    rhos = _clipped(ratios, settings.rho_clip)
    pg_rhos = _clipped(ratios, settings.pg_rho_clip)
    goes_on = ~(terminateds | truncateds)
    # Selected rather than multiplied by 0: a terminal observation may be infinite or NaN.
    next_targets = np.where(terminateds, np.float32(0.0), next_values)
    gamma = np.float64(settings.gamma)  # sums in double precision
    deltas = rhos * (rewards + gamma * next_targets - values)
    decay = gamma * settings.lambda_ * goes_on * np.minimum(ratios, 1.0)
    corrections = backward_sums(deltas, decay)  # vs - V
    # Inside an episode V(s'_t) is V(s_{t+1}); adding what corrects the latter makes it vs_{t+1}.
    next_targets[:-1] += goes_on[:-1] * corrections[1:]
    advantages = pg_rhos * (rewards + gamma * next_targets - values)
    return (values + corrections).astype(np.float32), advantages.astype(np.float32)


def _clipped(ratios: Array, bound: float | None) -> Array:
    return ratios if bound is None else np.minimum(ratios, bound)


def vtrace_of_rows(
    lengths: Array, *columns: Array, settings: VTraceSettings
) -> tuple[Array, Array]:
    """`vtrace` for the rows of a batch of contiguous chunks; targets and advantages, ``[N]`` each.

    Args:
        lengths: rows of each chunk, in order; they add up to N.
        columns: the positional arguments of `vtrace`, each ``[N]``.
    """
    shaped, back = in_time_major(columns, lengths, end=4)
    targets, advantages = vtrace(*shaped, settings=settings)
    return back(targets), back(advantages)


@without_autograd
def add_vtrace(
    rows: LoadedBatch,
    batch: SampleBatch,
    module: RLModule,
    settings: VTraceSettings,
    *,
    target_logp: Any = None,
) -> dict[str, float | None]:
    """Add the value targets and advantages of V-trace, as numbers without gradient.

    Log-probabilities of the policy that acted come from the batch (`action_logp`, of the weights it
    was sampled with), log-probabilities of the present one and the values from ``module``, in one
    forward pass over all observations.

    Args:
        target_logp: correct for the policy that these ``[N]`` are of, instead of ``module``'s.

    Returns:
        ``mean_ratio`` of the importance weights, and the explained variance of the values (None
        where the targets do not vary).
    """
    inputs, values, next_values = outputs_in_eval_mode(rows, module)
    if target_logp is None:
        target_logp = logp_as_in_losses(module, inputs, rows.columns[col.ACTIONS])
    log_ratios = as_array(target_logp) - batch.column(col.ACTION_LOGP)
    predictions = as_array(values)
    targets, advantages = vtrace_of_rows(
        chunk_lengths(batch.column(col.UNROLL_ID)),
        log_ratios,
        batch.column(col.REWARDS),
        predictions,
        as_array(next_values),
        batch.column(col.TERMINATEDS),
        batch.column(col.TRUNCATEDS),
        settings=settings,
    )
    rows.add(col.ADVANTAGES, advantages)
    rows.add(col.VALUE_TARGETS, targets)
    return {
        "mean_ratio": float(np.exp(log_ratios).mean()),
        "vf_explained_variance": explained_variance(targets, predictions),
    }


@without_autograd
def add_target(rows: LoadedBatch, target: RLModule) -> Any:
    """Add and return a policy's `action_logp` ``[N]``; add its `action_dist_inputs` ``[N, P]``."""
    inputs, _, _ = outputs_in_eval_mode(rows, target)
    logp = logp_as_in_losses(target, inputs, rows.columns[col.ACTIONS])
    rows.add(col.ACTION_DIST_INPUTS, inputs)
    rows.add(col.ACTION_LOGP, logp)
    return logp


def weigh_advantages(rows: LoadedBatch, batch: SampleBatch) -> None:
    """Correct the advantages for actions that were drawn with weights of an update earlier.

    Each is multiplied by pi(a|s) / mu(a|s), at most 2, after `LoadedBatch.prepare`: the
    decoupled objective (Hilton, Cobbe and Schulman 2021, arXiv:2110.00641, section 3) with
    truncated weights (Ionides 2008). Clipping goes on comparing with the present policy.

    Args:
        rows: with the present policy's `action_logp`, and advantages.
        batch: with the acting policy's `action_logp`.
    """
    weights = importance_weights(rows, batch)
    rows.add(IMPORTANCE_WEIGHTS, np.minimum(weights, MAX_IMPORTANCE_WEIGHT))
    if rows.prepare is None:
        rows.columns = _weighted(rows.columns)
    else:
        rows.prepare = partial(_prepared_and_weighted, rows.prepare)


def _prepared_and_weighted(prepare: Callable[[Rows], Rows], rows: Rows) -> Rows:
    return _weighted(prepare(rows))


def _weighted(rows: Rows) -> Rows:
    return rows | {col.ADVANTAGES: rows[col.ADVANTAGES] * rows[IMPORTANCE_WEIGHTS]}
