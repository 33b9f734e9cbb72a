"""Bellman targets, target networks and value rescaling, for learning off policy.

Value rescaling learns h(value) instead of the value where returns span orders of magnitude (Pohlen
et al. 2018, arXiv:1805.11593, A.2):

    h(x) = sign(x) (sqrt(|x| + 1) - 1) + epsilon x

h is monotone, so the best action stays the best. Near 0 it is about x / 2, for large x about a
square root. R2D2 uses it, with this epsilon, instead of clipping rewards. Must not know losses.

    M  rows of a minibatch      n  actions
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from rlrun.data import columns as col
from rlrun.learning.learner import Learner
from rlrun.policies.flat_parameters import FlatParameters
from rlrun.policies.rl_module import RLModule

EPSILON = 1e-3  # keeps the inverse of h Lipschitz continuous


def bellman_targets(rows: Mapping[str, Any], next_values: Any, *, rescaled: bool = False) -> Any:
    """R + discount Q(s') ``[M]``, or R alone where the episode terminated.

    Args:
        rows: rewards, discounts and terminateds ``[M]`` of n-step returns; tensors or arrays, as
            ``next_values``.
        next_values: Q(s') ``[M]``, of the target network, without gradient.
        rescaled: whether networks learn h of values; the target is h(R + discount h^-1(Q(s'))).
    """
    # Selected, not multiplied by 0: 0 times an infinite value would be NaN.
    if isinstance(next_values, Tensor):
        bootstrap: Any = next_values.masked_fill(rows[col.TERMINATEDS], 0.0)
    else:
        bootstrap = np.where(rows[col.TERMINATEDS], np.float32(0.0), next_values)
    if rescaled:
        bootstrap = unrescale(bootstrap)
    targets = rows[col.REWARDS] + rows[col.DISCOUNTS] * bootstrap
    return rescale(targets) if rescaled else targets


def values_of_best(values: Tensor, selection_values: Tensor) -> Tensor:
    """Values ``[M]`` of the best actions by ``selection_values``; arguments are ``[M, n]``."""
    if selection_values is values:
        return values.amax(1)
    return values.gather(1, selection_values.argmax(dim=1, keepdim=True)).squeeze(1)


def rescale(values: Any) -> Any:
    """h, element by element, in a form that loses no digits near 0."""
    return values / ((abs(values) + 1.0) ** 0.5 + 1.0) + EPSILON * values


def unrescale(values: Any) -> Any:
    """The inverse of h, element by element.

    The paper has ((sqrt(1 + 4 epsilon (|x| + 1 + epsilon)) - 1) / (2 epsilon))^2 - 1, which loses
    half the digits of float32; this equal form does not.
    """
    root = (1.0 + 4.0 * EPSILON * (abs(values) + (1.0 + EPSILON))) ** 0.5
    share = 2.0 / (root + (1.0 + 2.0 * EPSILON))
    return values * share * (2.0 + abs(values) * share)


class TargetNetwork:
    """A slow copy of a learner's network; at first an exact copy.

    Args:
        module: another network of the same architecture, which becomes the copy.

    Attributes:
        module: the copy, in evaluation mode and without gradients.
    """

    def __init__(self, module: RLModule, learner: Learner) -> None:
        self.module = module.to(learner.device).requires_grad_(False).eval()
        self._parameters, self._source = FlatParameters(self.module), learner.parameters
        self._parameters.load(self._source.vector)
        self._copied_at = 0

    def copy(self) -> None:
        """Copy all weights and buffers of the learner's network."""
        self._parameters.load(self._source.vector)

    def due(self, steps: int, every: int) -> bool:
        """Whether the last update is ``every`` steps ago; an update that is due counts as made."""
        due = steps - self._copied_at >= every
        if due:
            self._copied_at = steps
        return due

    def follow(self, tau: float) -> None:
        """Move by the fraction ``tau`` towards the learner's network; buffers are copied."""
        own, source, end = self._parameters, self._source.vector, self._source.num_parameters
        own.vector[:end].lerp_(source[:end], tau)
        own.vector[end:].copy_(source[end:])

    def get_state(self) -> dict[str, Any]:
        """The weights, and the steps of the run at their last update."""
        return {"weights": self._parameters.to_numpy(), "copied_at": self._copied_at}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state from `get_state`."""
        self._parameters.load(state["weights"])
        self._copied_at = int(state["copied_at"])
