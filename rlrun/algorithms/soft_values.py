"""What SAC's critics learn: the value of a state of which entropy is a part (eq. 3 and 5).

Owns the numbers that the critics' loss and its written-out gradient share. It must not know how
networks are trained.

    M  rows of a minibatch      A  dimensions of a continuous action
"""

from __future__ import annotations

import torch
from torch import Tensor

from rlrun.data import columns as col
from rlrun.policies.distributions import squashed_sample
from rlrun.policies.rl_module import RLModule
from rlrun.policies.soft_actor_critic import Q_VALUES

NOISE, NEXT_NOISE = "noise", "new_noise"
"""Rows ``[M, A]`` from which the actions in ``obs`` and in ``new_obs`` are made."""


@torch.no_grad()
def soft_goals(
    rows: dict[str, Tensor], *, policy: RLModule, target: RLModule, alpha: Tensor
) -> Tensor:
    """y of SAC's `critic_loss`, ``[M]``."""
    following = soft_value(policy, target, rows[col.NEXT_OBS], rows.get(NEXT_NOISE), alpha)
    # Selected rather than multiplied by 0: a value that has blown up must not become NaN.
    following = torch.where(rows[col.TERMINATEDS], 0.0, following)
    return torch.addcmul(rows[col.REWARDS], rows[col.DISCOUNTS], following)


def soft_value(
    policy: RLModule, critics: RLModule, obs: Tensor, noise: Tensor | None, alpha: Tensor
) -> Tensor:
    """``min_i Q_i(s, a) - alpha log pi(a|s)`` ``[M]``: of a sampled a, or the mean over all."""
    inputs = policy.forward_train({col.OBS: obs})[col.ACTION_DIST_INPUTS]
    if noise is None:
        logp = inputs.log_softmax(-1)
        first, second = critics.forward_train({col.OBS: obs})[Q_VALUES]
        return (logp.exp() * (torch.minimum(first, second) - alpha * logp)).sum(-1)
    actions, logp = squashed_sample(inputs, noise)
    first, second = critics.forward_train({col.OBS: obs, col.ACTIONS: actions})[Q_VALUES]
    return torch.minimum(first, second) - alpha * logp


def critic_statistics(loss: Tensor, values: Tensor, errors: Tensor) -> dict[str, Tensor]:
    """What is reported of the critics' loss; values and errors are ``[2, M]``."""
    distances = errors.abs().mean(0)
    return {
        "critic_loss": loss,
        "q_mean": values.mean(),
        "td_error_mean": distances.mean(),
        "td_errors": distances,
    }
