"""Adam and RMSProp on one flat vector, which a step goes over once.

torch's own optimizers do the same arithmetic, but making one imports torch's compiler, which takes
as long as importing torch: a second of every start. The operation that theirs end in does a step in
a third of the time that torch's elementary operations take. It is private to torch; a test holds
its signature, for the versions of torch that rlrun is declared for.

    P  parameters
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_NO_BIAS_CORRECTION = 1e9  # a step so late that decay ** step is 0: the correction is gone


class FlatAdam:
    """Adam (Kingma & Ba 2015, algorithm 1) for a parameter vector and its gradients, each ``[P]``.

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
        self._num_steps = 0
        self._step = torch.zeros((), device=vector.device)
        self._mean = torch.zeros_like(vector)
        self._square = torch.zeros_like(vector)

    def step(self, lr: float) -> None:
        """Move the parameters once."""
        self._num_steps += 1
        self._step.fill_(self._num_steps)
        state = (self._vector, self._grads, self._mean, self._square, self._step)
        _fused_step(state, lr=lr, betas=self._betas, eps=self._eps)

    def get_state(self) -> dict[str, Any]:
        """The moments as arrays ``[P]``, and the number of steps."""
        moments = {"mean": _to_numpy(self._mean), "square": _to_numpy(self._square)}
        return {"num_steps": self._num_steps, **moments}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state from `get_state`."""
        self._num_steps = int(state["num_steps"])
        _load(self._mean, state["mean"])
        _load(self._square, state["square"])


class FlatRMSProp:
    """RMSProp (Tieleman & Hinton 2012, lecture 6.5), for IMPALA as published.

    It is Adam without a first moment and without bias correction.

    Args:
        vector: parameters ``[P]``, changed in place by `step`.
        grads: their gradients ``[P]``, read by `step`.
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
        state = (self._vector, self._grads, self._gradient, self._square, self._step)
        _fused_step(state, lr=lr, betas=(0.0, self._decay), eps=self._eps)

    def get_state(self) -> dict[str, Any]:
        """The mean square of the gradients, an array ``[P]``."""
        return {"square": _to_numpy(self._square)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state from `get_state`."""
        _load(self._square, state["square"])


@torch.no_grad()
def _fused_step(
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


def _to_numpy(vector: Tensor) -> NDArray[Any]:
    return vector.to("cpu", copy=True).numpy()


def _load(vector: Tensor, values: Any) -> None:
    vector.copy_(torch.from_numpy(np.array(values, dtype=np.float32)))
