"""A normal distribution squashed into (-1, 1) by tanh, for losses (Haarnoja et al. 2018, app. C).

    u = mean + std * noise      what is squashed; kept, because tanh cannot be undone near +-1
    a = tanh(u)                 the action
    log pi(a|s) = sum log N(u; mean, std) - sum log (1 - tanh(u)^2)

The second sum is computed as ``2 (log 2 - u - softplus(-2 u))``, which is the same and stays finite
for any u. Must not know of networks.

    N  rows      A  action dimensions
"""

import math

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
