"""Losses: the functions that learners minimise, and how `training.loss` changes them.

A loss's gradient comes from autograd, or from a second function in closed form. Must not know
optimizers, or where rows come from.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any, ParamSpec, SupportsFloat, TypeVar

import numpy as np
import torch
from torch import Tensor

from rlrun.learning.loaded_batch import Rows
from rlrun.policies.rl_module import RLModule

P = ParamSpec("P")
R = TypeVar("R")

Loss = Callable[..., tuple[Tensor, dict[str, Tensor]]]
"""``loss(module, rows, **arguments) -> (scalar with gradient, statistics without)``."""
Statistics = dict[str, Any]
"""Numbers by name: scalar tensors, or floats where they were computed on the CPU."""
Gradient = Callable[..., Statistics]
"""Called like a loss; leaves the gradient in the parameters and returns the statistics."""

MAX_LOSSES = 8  # that a learner compiles or records


def changed_loss(loss: Loss, hook: Callable[..., tuple[Tensor, Mapping[str, Any]]]) -> Loss:
    """A loss changed by ``hook(module, rows, loss, statistics)``.

    Raises:
        TypeError: see `require_loss`.
    """

    def changed(module: RLModule, rows: Rows, **arguments: Any) -> tuple[Tensor, dict[str, Tensor]]:
        own, statistics = loss(module, rows, **arguments)
        returned = hook(module, rows, own, dict(statistics))
        total, further = require_loss(returned, "training.loss")
        own_device = total.device
        numbers = {
            name: torch.as_tensor(x, dtype=torch.float32, device=own_device).detach()
            for name, x in further.items()
        }
        return total, {**numbers, **statistics}

    return changed


def require_loss(returned: Any, what: str) -> tuple[Tensor, Mapping[str, Any]]:
    """What a loss returned; TypeError unless that is a scalar with gradient, and statistics."""
    match returned:
        case (Tensor() as total, Mapping() as statistics) if (
            not total.dim() and total.requires_grad
        ):
            return total, statistics
    parts = returned if isinstance(returned, tuple) else (returned,)
    raise TypeError(
        f"{what} must return a scalar tensor with gradient and a dict of statistics, not "
        f"{' and '.join(map(_described, parts))}"
    )


def _described(part: Any) -> str:
    if isinstance(part, Tensor):
        gradient = "" if part.requires_grad else " without gradient"
        return f"a tensor of shape {tuple(part.shape)}{gradient}"
    return "a dict" if isinstance(part, Mapping) else reprlib.repr(part)


def require_lasting(loss: Loss, kept: Mapping[Loss, Any]) -> None:
    """Raise ValueError if a learner compiles or records one loss after the other."""
    if len(kept) == MAX_LOSSES:
        raise ValueError(
            f"the loss {loss!r} is another function in each update, and learners.compile and "
            "learners.cuda_graphs would begin anew with each; define it once"
        )


def require_numbers(*updates: Mapping[str, Any]) -> None:
    """Raise ValueError, with its name, for a statistic that is not a single number."""
    for name, value in chain.from_iterable(update.items() for update in updates):
        if not isinstance(name, str):
            raise ValueError(f"the name of a statistic must be text, not {name!r}")
        if np.ndim(value) or not isinstance(value, SupportsFloat):
            raise ValueError(f"statistic {name!r} must be one number, not {reprlib.repr(value)}")


def closed_form(function: Callable[P, R]) -> Callable[P, R]:
    """A decorator of numpy code: no warnings of infinite numbers and NaN.

    When a run diverges, `Policies.require_finite` raises a better error.
    """
    quiet: Callable[P, R] = np.errstate(all="ignore")(function)
    return quiet


def without_autograd(function: Callable[P, R]) -> Callable[P, R]:
    """Like `closed_form`, for functions that call modules: also without autograd."""
    quiet: Callable[P, R] = torch.no_grad()(closed_form(function))
    return quiet
