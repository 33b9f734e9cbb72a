"""Adam on one flat vector (Kingma & Ba 2015, algorithm 1).

torch's own optimizer does the same arithmetic, but making one imports torch's compiler, which takes
as long as importing torch: a second of every start. On one vector Adam is five lines.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor


class FlatAdam:
    """Adam for a parameter vector ``[P]`` and the vector of its gradients.

    Args:
        vector: parameters, changed in place by `step`.
        grads: their gradients, read by `step`.
        eps: added to the denominator.
        betas: decay of the first and second moment.
    """

    def __init__(
        self,
        vector: Tensor,
        grads: Tensor,
        *,
        eps: float = 1e-8,
        betas: tuple[float, float] = (0.9, 0.999),
    ) -> None:
        self._vector, self._grads = vector, grads
        self._eps, self._betas = eps, betas
        self.num_steps = 0
        self._mean = torch.zeros_like(vector)
        self._square = torch.zeros_like(vector)

    @torch.no_grad()
    def step(self, lr: float) -> None:
        """Move the parameters once."""
        self.num_steps += 1
        beta_1, beta_2 = self._betas
        grads = self._grads
        self._mean.lerp_(grads, 1.0 - beta_1)
        self._square.mul_(beta_2).addcmul_(grads, grads, value=1.0 - beta_2)
        correction_1 = 1.0 - beta_1**self.num_steps
        correction_2 = (1.0 - beta_2**self.num_steps) ** 0.5
        denominator = self._square.sqrt().div_(correction_2).add_(self._eps)
        self._vector.addcdiv_(self._mean, denominator, value=-lr / correction_1)

    def get_state(self) -> dict[str, Any]:
        """The moments as arrays ``[P]``, and the number of steps."""
        return {
            "num_steps": self.num_steps,
            "mean": self._mean.to("cpu", copy=True).numpy(),
            "square": self._square.to("cpu", copy=True).numpy(),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `get_state` returned."""
        self.num_steps = int(state["num_steps"])
        for moment, name in ((self._mean, "mean"), (self._square, "square")):
            moment.copy_(torch.from_numpy(np.array(state[name], dtype=np.float32)))
