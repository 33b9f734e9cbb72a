"""Networks and rows for tests of losses."""

import gymnasium as gym
import numpy as np
import torch

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
