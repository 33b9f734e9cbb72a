"""What value functions are drawn to when they learn off policy: targets and their networks.

Owns the slow copy of a learner's network, the Bellman target, and value rescaling, which learns
h(value) where returns span orders of magnitude (Pohlen et al. 2018, arXiv:1805.11593, A.2):

    h(x) = sign(x) (sqrt(|x| + 1) - 1) + epsilon x

h is monotone, so the best action stays the best; about 0 it is half the identity, far away a square
root. It is R2D2's stand-in for clipped rewards, with its epsilon. Must not know losses.

    M  rows of a minibatch      n  actions
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlrun.data import columns as col
from rlrun.learning.learner import Learner
from rlrun.policies.flat_parameters import FlatParameters
from rlrun.policies.rl_module import RLModule

EPSILON = 1e-3  # keeps the inverse of h Lipschitz continuous


def bellman_targets(rows: Mapping[str, Any], next_values: Any, *, rescaled: bool = False) -> Any:
    """R + discount Q(s') ``[M]``, without Q(s') after a termination; no gradient flows through it.

    Args:
        rows: rewards, discounts and terminateds, each ``[M]``; a step here are the n of an n-step
            return. Tensors or arrays, as ``next_values``.
        next_values: of the target network for s', ``[M]``.
        rescaled: networks put out h of values: h(R + discount h^-1(Q(s'))).
    """
    # Selected rather than multiplied by 0: a value that has blown up must not become NaN.
    if isinstance(next_values, Tensor):
        following: Any = torch.where(rows[col.TERMINATEDS], 0.0, next_values)
    else:
        following = np.where(rows[col.TERMINATEDS], np.float32(0.0), next_values)
    if rescaled:
        following = unrescale(following)
    targets = rows[col.REWARDS] + rows[col.DISCOUNTS] * following
    return rescale(targets) if rescaled else targets


def values_of_best(values: Tensor, choosing: Tensor) -> Tensor:
    """Values ``[M]`` of the actions that are best by ``choosing``; both are ``[M, n]``."""
    if choosing is values:
        return values.amax(1)
    return values.gather(1, choosing.argmax(dim=1, keepdim=True)).squeeze(1)


def rescale(values: Any) -> Any:
    """h, element by element; multiplied out, so that it loses no digits about 0."""
    return values / ((abs(values) + 1.0) ** 0.5 + 1.0) + EPSILON * values


def unrescale(values: Any) -> Any:
    """The inverse of h, element by element.

    The paper has the square of (sqrt(1 + 4 epsilon (|x| + 1 + epsilon)) - 1) / (2 epsilon), less 1,
    in which float32 loses half its digits; multiplied out it is what stands here.
    """
    root = (1.0 + 4.0 * EPSILON * (abs(values) + (1.0 + EPSILON))) ** 0.5
    share = 2.0 / (root + (1.0 + 2.0 * EPSILON))
    return values * share * (2.0 + abs(values) * share)


class TargetNetwork:
    """A slow copy of a learner's network; it starts as that network is now.

    Args:
        module: another one of its kind, which this object owns.

    Attributes:
        module: it computes without gradients, and as when acting: without dropout.
    """

    def __init__(self, module: RLModule, learner: Learner) -> None:
        self.module = module.to(learner.device).requires_grad_(False).eval()
        self._parameters, self._source = FlatParameters(self.module), learner.parameters
        self._parameters.load(self._source.vector)
        self._copied_at = 0

    def copy(self) -> None:
        """Become the learner's network."""
        self._parameters.load(self._source.vector)

    def due(self, steps: int, every: int) -> bool:
        """Whether the last renewal is ``every`` steps ago; one that is due counts as made."""
        due = steps - self._copied_at >= every
        if due:
            self._copied_at = steps
        return due

    def follow(self, tau: float) -> None:
        """Move the share ``tau`` of the way to the learner's network; buffers become its own."""
        own, source, end = self._parameters, self._source.vector, self._source.num_parameters
        own.vector[:end].lerp_(source[:end], tau)
        own.vector[end:].copy_(source[end:])

    def get_state(self) -> dict[str, Any]:
        """The weights, and the steps of the run when they were renewed last."""
        return {"weights": self._parameters.to_numpy(), "copied_at": self._copied_at}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state from `get_state`."""
        self._parameters.load(state["weights"])
        self._copied_at = int(state["copied_at"])
