"""Adam on one flat vector (Kingma & Ba 2015, algorithm 1).

torch's own optimizer does the same arithmetic, but making one imports torch's compiler, which takes
as long as importing torch: a second of every start. The operation that it ends in goes over the
vectors once; in torch's elementary operations a step takes three times as long.
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
        self._step = torch.zeros((), device=vector.device)
        self._mean = torch.zeros_like(vector)
        self._square = torch.zeros_like(vector)

    def step(self, lr: float) -> None:
        """Move the parameters once."""
        self.num_steps += 1
        fused_step(
            (self._vector, self._grads, self._mean, self._square, self._step.fill_(self.num_steps)),
            lr=lr,
            betas=self._betas,
            eps=self._eps,
        )

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


@torch.no_grad()
def fused_step(
    state: tuple[Tensor, Tensor, Tensor, Tensor, Tensor],
    *,
    lr: float,
    betas: tuple[float, float],
    eps: float,
) -> None:
    """One step of Adam, in place.

    Args:
        state: parameters, gradients, first and second moment, each ``[P]``; the step's number.
    """
    vector, grads, mean, square, number = state
    # Without a gradient (a ReLU that has died) moments decay into denormal numbers, with which
    # the CPU computes five times slower. Elsewhere numpy relies on them, so just here.
    flushes = torch.set_flush_denormal(True)
    torch._fused_adam_(
        [vector],
        [grads],
        [mean],
        [square],
        [],
        [number],
        lr=lr,
        beta1=betas[0],
        beta2=betas[1],
        weight_decay=0.0,
        eps=eps,
        amsgrad=False,
        maximize=False,
    )
    if flushes:
        torch.set_flush_denormal(False)
