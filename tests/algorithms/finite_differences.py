"""Finite differences, against which gradients are checked."""

from collections.abc import Callable

import pytest
from torch import Tensor, nn


def check_gradients(module: nn.Module, loss: Callable[[], Tensor], *, of_each: int = 3) -> None:
    """Hold autograd's gradients of a loss against finite differences, both in float64.

    Args:
        loss: computes it from the module as it is.
        of_each: entries of each parameter that are tried, about.
    """
    loss().backward()
    for parameter in module.parameters():
        if parameter.grad is None:
            continue
        flat, grad = parameter.data.view(-1), parameter.grad.view(-1)
        for i in range(0, len(flat), max(1, len(flat) // of_each)):
            saved, ends = flat[i].item(), []
            for change in (1e-6, -1e-6):
                flat[i] = saved + change
                ends.append(loss().item())
            flat[i] = saved
            difference = (ends[0] - ends[1]) / 2e-6
            assert grad[i].item() == pytest.approx(difference, rel=1e-4, abs=1e-7)
