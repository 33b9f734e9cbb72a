"""SAC's temperature: how much the entropy of the policy counts beside the reward."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlrun.learning.adam import FlatAdam


class Temperature:
    """Alpha, and its way to the target entropy: minimises ``log alpha (entropy - target)``.

    Haarnoja et al. (eq. 18) have alpha where this has its logarithm, as their own code does: the
    direction is the same, and the pace does not die with a small alpha.

    Attributes:
        alpha: ``[1]``.
    """

    def __init__(self, initial: float, target_entropy: float, device: torch.device) -> None:
        self.target_entropy = target_entropy
        self._log_alpha = torch.tensor([initial], device=device).log()
        self._gradient = torch.zeros_like(self._log_alpha)
        self._optimizer = FlatAdam(self._log_alpha, self._gradient)
        self.alpha = self._log_alpha.exp()

    def step(self, entropy: Tensor, lr: float) -> None:
        """Move once, seeing the policy's entropy."""
        self._gradient.copy_(entropy - self.target_entropy)
        self._optimizer.step(lr)
        self.alpha = self._log_alpha.exp()

    def get_state(self) -> dict[str, Any]:
        """The logarithm of alpha, and its optimizer's state."""
        return {
            "log_alpha": self._log_alpha.cpu().numpy().copy(),
            "optimizer": self._optimizer.get_state(),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `get_state` returned."""
        self._log_alpha.copy_(torch.from_numpy(np.array(state["log_alpha"], dtype=np.float32)))
        self._optimizer.set_state(state["optimizer"])
        self.alpha = self._log_alpha.exp()
