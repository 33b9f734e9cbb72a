"""Adam and RMSProp on one flat vector, which a step goes over once.

torch's own optimizers do the same arithmetic for Adam, but making one imports torch's compiler,
which takes as long as importing torch: a second of every start. The operation that theirs ends in
does a step in a third of the time that torch's elementary operations take. It is private to torch;
a test holds its signature, for the versions of torch that rlrun is declared for.

    P  parameters
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlrun.config.schema import TrainingConfig
from rlrun.policies.flat_parameters import FlatParameters


def make_optimizer(parameters: FlatParameters, training: TrainingConfig) -> FlatAdam | FlatRMSProp:
    """The optimizer that `training.optimizer` names."""
    vector, grads = parameters.vector, parameters.grads
    if training.optimizer == "rmsprop":
        return FlatRMSProp(
            vector,
            grads,
            decay=training.rmsprop_decay,
            eps=training.rmsprop_epsilon,
            start=training.rmsprop_start,
        )
    return FlatAdam(vector, grads, eps=training.adam_epsilon)


class FlatAdam:
    """Adam (Kingma & Ba 2015, algorithm 1) for a parameter vector and its gradients, each ``[P]``.

    Args:
        vector: parameters, changed in place by `step`.
        grads: their gradients, read by `step`.
        eps: added to the denominator.
    """

    def __init__(self, vector: Tensor, grads: Tensor, *, eps: float = 1e-8) -> None:
        self._vector, self._grads, self._eps = vector, grads, eps
        self._step = torch.zeros((), device=vector.device)
        # Written by numpy where it can be: between closed forms torch takes as long as for a step.
        self._step_array = self._step.numpy() if vector.device.type == "cpu" else None
        self._mean = torch.zeros_like(vector)
        self._square = torch.zeros_like(vector)

    def step(self, lr: float | Tensor) -> None:
        """Move the parameters once; ``lr`` may be a tensor, a scalar, on a GPU."""
        if self._step_array is None:
            self._step.add_(1.0)
        else:
            self._step_array += 1.0
        # Without a gradient (a ReLU that has died) moments decay into denormal numbers, with which
        # the CPU computes five times slower. Elsewhere numpy relies on them, so just here.
        flushes = torch.set_flush_denormal(True)
        torch._fused_adam_(
            [self._vector],
            [self._grads],
            [self._mean],
            [self._square],
            [],
            [self._step],
            lr=lr,
            beta1=0.9,
            beta2=0.999,
            weight_decay=0.0,
            eps=self._eps,
            amsgrad=False,
            maximize=False,
        )
        if flushes:
            torch.set_flush_denormal(False)

    def get_state(self) -> dict[str, Any]:
        """The number of steps, and if there were any the moments as arrays ``[P]``."""
        state: dict[str, Any] = {"num_steps": int(self._step)}
        if state["num_steps"]:  # not for a policy that never learns
            state |= {"mean": _to_numpy(self._mean), "square": _to_numpy(self._square)}
        return state

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state from `get_state`."""
        self._step.fill_(int(state["num_steps"]))
        for name, moment in (("mean", self._mean), ("square", self._square)):
            _load(moment, state.get(name, np.zeros(len(moment))))


class FlatRMSProp:
    """RMSProp (Tieleman & Hinton 2012, lecture 6.5) as TensorFlow has it, and so IMPALA's paper.

        s <- decay s + (1 - decay) g^2        x <- x - lr g / sqrt(s + eps)

    The mean square s starts at 1, so that first steps are small; of a run of a few hundred steps
    that is most. torch's RMSProp starts it at 0 and adds epsilon to the root instead: with IMPALA's
    epsilon of 0.1 that is another algorithm.

    Args:
        vector: parameters x ``[P]``, changed in place by `step`.
        grads: their gradients g ``[P]``, read by `step`.
        decay: of the mean square of the gradients.
        eps: added to it under the root.
        start: the mean square before the first step.
    """

    def __init__(
        self,
        vector: Tensor,
        grads: Tensor,
        *,
        decay: float = 0.99,
        eps: float = 0.1,
        start: float = 1.0,
    ) -> None:
        self._vector, self._grads = vector, grads
        self._decay, self._eps = decay, eps
        self._square = torch.full_like(vector, start)

    def step(self, lr: float | Tensor) -> None:
        """As `FlatAdam.step`."""
        grads = self._grads
        self._square.mul_(self._decay).addcmul_(grads, grads, value=1.0 - self._decay)
        self._vector.addcdiv_(grads * -lr, (self._square + self._eps).sqrt_())

    def get_state(self) -> dict[str, Any]:
        """The mean square of the gradients, an array ``[P]``."""
        return {"square": _to_numpy(self._square)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state from `get_state`."""
        _load(self._square, state["square"])


def _to_numpy(vector: Tensor) -> NDArray[Any]:
    return vector.to("cpu", copy=True).numpy()


def _load(vector: Tensor, values: Any) -> None:
    vector.copy_(torch.from_numpy(np.array(values, dtype=np.float32)))
