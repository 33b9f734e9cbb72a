"""Value rescaling: learning h(value) where returns span orders of magnitude (Pohlen et al. 2018).

    h(x) = sign(x) (sqrt(|x| + 1) - 1) + epsilon x            arXiv:1805.11593, proposition A.2

h is monotone, so the best action stays the best; about 0 it is half the identity, far away a square
root. It is R2D2's stand-in for clipped rewards, with its epsilon. Pure functions of tensors.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from rlrun.data import columns as col

EPSILON = 1e-3  # keeps the inverse Lipschitz continuous


def rescale(values: Tensor) -> Tensor:
    """h, element by element."""
    return values.sign() * ((values.abs() + 1.0).sqrt() - 1.0) + EPSILON * values


def unrescale(values: Tensor) -> Tensor:
    """The inverse of h, element by element.

    With y = |x| + 1 + epsilon the paper has (sqrt(1 + 4 epsilon y) - 1) / (2 epsilon), in which
    float32 loses half its digits; multiplied out it is the quotient here.
    """
    y = values.abs() + (1.0 + EPSILON)
    root = 2.0 * y / ((1.0 + 4.0 * EPSILON * y).sqrt() + 1.0)
    return values.sign() * (root.square() - 1.0)


def bellman_goals(rows: Mapping[str, Tensor], bootstrap: Tensor, rescaled: bool) -> Tensor:
    """What values ``[M]`` are drawn to: R + discount Q(s'), or h(R + discount h^-1(Q(s'))).

    Args:
        rows: rewards and discounts, each ``[M]``.
        bootstrap: ``[M]``, what the target network puts out for s'; 0 after a termination.
        rescaled: whether networks put out h of values.
    """
    following = unrescale(bootstrap) if rescaled else bootstrap
    goals = torch.addcmul(rows[col.REWARDS], rows[col.DISCOUNTS], following)
    return rescale(goals) if rescaled else goals
