"""RMSProp on one flat vector (Tieleman & Hinton 2012, lecture 6.5), for IMPALA as published.

It is Adam without a first moment and without bias correction, so the operation that goes over the
vectors once for Adam does for it too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlrun.learning.adam import fused_step

_NO_BIAS_CORRECTION = 1e9  # a step so late that decay ** step is 0: the correction is gone


class FlatRMSProp:
    """RMSProp for a parameter vector ``[P]`` and the vector of its gradients.

    Args:
        vector: parameters, changed in place by `step`.
        grads: their gradients, read by `step`.
        decay: of the mean square of the gradients.
        eps: added to its root.
    """

    def __init__(
        self, vector: Tensor, grads: Tensor, *, decay: float = 0.99, eps: float = 0.1
    ) -> None:
        self._vector, self._grads = vector, grads
        self._decay, self._eps = decay, eps
        self._step = torch.full((), _NO_BIAS_CORRECTION, device=vector.device)
        self._gradient = torch.zeros_like(vector)  # where Adam has its first moment
        self._square = torch.zeros_like(vector)

    def step(self, lr: float) -> None:
        """Move the parameters once."""
        fused_step(
            (self._vector, self._grads, self._gradient, self._square, self._step),
            lr=lr,
            betas=(0.0, self._decay),
            eps=self._eps,
        )

    def get_state(self) -> dict[str, Any]:
        """The mean square of the gradients, an array ``[P]``."""
        return {"square": self._square.to("cpu", copy=True).numpy()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `get_state` returned."""
        self._square.copy_(torch.from_numpy(np.array(state["square"], dtype=np.float32)))
