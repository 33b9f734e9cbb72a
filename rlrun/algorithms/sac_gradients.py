"""The gradients of SAC's losses in closed form, for plain MLPs: the arithmetic without autograd.

Owns two functions that stand in for `critic_loss` and `policy_loss` of sac.py, term by term; tests
hold them against these. It must not know what is done with gradients.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rlrun.algorithms.soft_values import NOISE, critic_statistics, soft_goals
from rlrun.data import columns as col
from rlrun.policies.distributions import squashed_sample_vjp
from rlrun.policies.rl_module import RLModule
from rlrun.policies.soft_actor_critic import SACPolicyNetwork, TwinQNetwork


@torch.no_grad()
def critic_gradient(
    module: TwinQNetwork,
    rows: dict[str, Tensor],
    *,
    policy: RLModule,
    target: RLModule,
    alpha: Tensor,
) -> dict[str, Tensor]:
    """The gradient of `critic_loss`, for critics that have a `vjp`.

    Returns:
        The statistics of `critic_loss`. The gradients are left in the module's parameters.
    """
    goals = soft_goals(rows, policy=policy, target=target, alpha=alpha)
    values, backward = module.vjp(rows)
    errors = values - goals
    weighted = rows[col.WEIGHTS] * errors
    backward.to_parameters(weighted / len(goals))
    return critic_statistics(0.5 * (weighted * errors).mean(1).sum(), values, errors)


@torch.no_grad()
def policy_gradient(
    module: SACPolicyNetwork, rows: dict[str, Tensor], *, critics: TwinQNetwork, alpha: Tensor
) -> dict[str, Tensor]:
    """The gradient of `policy_loss`, for a Box and networks that have a `vjp`.

    Returns:
        The statistics of `policy_loss`. The gradients are left in the module's parameters.
    """
    inputs, backward = module.vjp(rows)
    actions, logp, sample_backward = squashed_sample_vjp(inputs, rows[NOISE])
    values, critics_backward = critics.vjp({col.OBS: rows[col.OBS], col.ACTIONS: actions})
    num_rows = len(logp)
    first_is_smaller = values[0] <= values[1]
    d_values = torch.stack((first_is_smaller, ~first_is_smaller)) * (-1.0 / num_rows)
    d_actions = critics_backward.to_input(d_values)[:, -actions.shape[1] :]
    backward(sample_backward(d_actions, alpha / num_rows))
    loss = (alpha * logp - values.amin(0)).mean()
    return {"policy_loss": loss, "entropy": -logp.mean()}
