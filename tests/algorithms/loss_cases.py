"""Networks and rows for tests of losses, and the finite differences that gradients are held to."""

from collections.abc import Callable

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rlrun.algorithms.sac import NEXT_NOISE, NOISE
from rlrun.config.schema import ModelConfig
from rlrun.data import columns as col
from rlrun.policies.catalog import build_module

OBS_SPACE = gym.spaces.Box(-1, 1, (3,), np.float32)
DISCRETE = gym.spaces.Discrete(4)
BOX = gym.spaces.Box(-1, 1, (2,), np.float32)


def perturbed(module):
    """Not as it was initialised, where biases are 0 and outputs small."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return module


def actor_critic(space, seed=3, **model):
    torch.manual_seed(seed)
    return perturbed(build_module(OBS_SPACE, space, ModelConfig(**{"hidden": (8,), **model})))


def tensors(rows):
    """Arrays as tensors, floats as float32."""
    rows = {name: torch.tensor(column) for name, column in rows.items()}
    return {k: v.float() if v.is_floating_point() else v for k, v in rows.items()}


def on_policy_rows(module, space, n=16, drift=0.3, seed=0):
    """Rows whose old policy differs from the module by ``drift``."""
    rng = np.random.default_rng(seed)
    space.seed(seed)
    actions = np.stack([space.sample() for _ in range(n)])
    estimates = (col.ADVANTAGES, col.VALUE_TARGETS, col.VF_PREDS)
    rows = tensors(
        {
            col.OBS: rng.normal(size=(n, 3)),
            col.ACTIONS: actions.astype(np.float32) if actions.dtype == np.int8 else actions,
            **{name: rng.normal(size=n) for name in estimates},
        }
    )
    with torch.no_grad():
        inputs = module.forward_train(rows)[col.ACTION_DIST_INPUTS]
        inputs = inputs + drift * torch.tensor(rng.normal(size=inputs.shape)).float()
    logp = module.distribution.logp(inputs, rows[col.ACTIONS])
    return {**rows, col.ACTION_DIST_INPUTS: inputs, col.ACTION_LOGP: logp}


def replay_rows(space, n=9, seed=0):
    """Transitions, with the noise of actions if these are continuous."""
    rng = np.random.default_rng(seed)
    rows = {
        col.OBS: rng.normal(size=(n, 3)),
        col.NEXT_OBS: rng.normal(size=(n, 3)),
        col.ACTIONS: rng.integers(4, size=n),
        col.REWARDS: 3 * rng.normal(size=n),
        col.TERMINATEDS: rng.random(n) < 0.3,
        col.DISCOUNTS: 0.9 ** rng.integers(1, 4, size=n),
        col.WEIGHTS: rng.random(n),
    }
    if isinstance(space, gym.spaces.Box):
        rows[col.ACTIONS] = np.tanh(rng.normal(size=(n, 2)))
        rows[NOISE], rows[NEXT_NOISE] = rng.normal(size=(2, n, 2))
    return tensors(rows)


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
