"""A normal distribution squashed into (-1, 1) by tanh, for losses (Haarnoja et al. 2018, app. C).

    u = mean + std * noise      what is squashed; kept, because tanh cannot be undone near +-1
    a = tanh(u)                 the action
    log pi(a|s) = sum log N(u; mean, std) - sum log (1 - tanh(u)^2)

The second sum is computed as ``2 (log 2 - u - softplus(-2 u))``, which is the same and stays finite
for any u. Must not know of networks.

    N  rows      A  action dimensions
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from rlrun.policies.action_sampling import LOG_STD_BOUNDS

_LOG_2 = math.log(2.0)
_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


def squashed_sample(inputs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Actions that gradients flow through, and their log-probabilities.

    Args:
        inputs: A means, then A log standard deviations, ``[N, 2 A]``; the latter are bounded here.
        noise: standard normal, ``[N, A]``.

    Returns:
        Actions ``[N, A]`` and log pi(a|s) ``[N]``, in the units of the squashed action.
    """
    mean, log_std = inputs.chunk(2, -1)
    log_std = log_std.clamp(*LOG_STD_BOUNDS)
    unsquashed = torch.addcmul(mean, log_std.exp(), noise)
    log_volume = log_std + 2.0 * (_LOG_2 - unsquashed - functional.softplus(-2.0 * unsquashed))
    logp = -(0.5 * noise.square() + log_volume).sum(-1) - _HALF_LOG_2PI * noise.shape[-1]
    return unsquashed.tanh(), logp


def squashed_sample_vjp(
    inputs: Tensor, noise: Tensor
) -> tuple[Tensor, Tensor, Callable[[Tensor, float | Tensor], Tensor]]:
    """`squashed_sample` without autograd.

    Returns:
        Its actions and log-probabilities, and what turns the gradient of the actions ``[N, A]`` and
        that of the log-probabilities, the same number for all rows, into that of ``inputs``.
    """
    actions, logp = squashed_sample(inputs, noise)

    def backward(d_actions: Tensor, d_logp: float | Tensor) -> Tensor:
        log_std = inputs.chunk(2, -1)[1]
        bounded = log_std.clamp(*LOG_STD_BOUNDS)
        # of tanh, and of -log(1 - tanh(u)^2), whose derivative is 2 tanh(u)
        d_mean = d_actions * (1.0 - actions.square()) + 2.0 * d_logp * actions
        d_log_std = torch.where(log_std == bounded, d_mean * bounded.exp() * noise - d_logp, 0.0)
        return torch.cat((d_mean, d_log_std), -1)

    return actions, logp, backward
