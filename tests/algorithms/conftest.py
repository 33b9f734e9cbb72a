"""Algorithms by their names in `tiny`, and losses in float64."""

from functools import partial

import pytest
import tiny
import torch


@pytest.fixture
def built(built):
    """Builds a config, or an algorithm of `tiny` given its name."""

    def build(what, *args, **kwargs):
        return built(partial(tiny.build, what) if isinstance(what, str) else what, *args, **kwargs)

    return build


@pytest.fixture
def float64(monkeypatch):
    """Converts modules and rows to float64, which finite differences need."""
    for room in ("rl_module", "q_network", "soft_actor_critic", "recurrent"):
        monkeypatch.setattr(f"rlrun.policies.{room}.as_features", lambda obs, flatten: obs)

    def convert(what):
        if isinstance(what, torch.nn.Module):
            return what.double()
        return {k: v.double() if v.is_floating_point() else v for k, v in what.items()}

    return convert
