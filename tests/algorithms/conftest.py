"""Algorithms by their names in `tiny`."""

from functools import partial

import pytest
import tiny


@pytest.fixture
def built(built):
    """Builds a config, or an algorithm of `tiny` given its name."""

    def build(what, *args, **kwargs):
        return built(partial(tiny.build, what) if isinstance(what, str) else what, *args, **kwargs)

    return build


@pytest.fixture
def several(built):
    """Builds a tiny algorithm of several agents, given its name."""
    return lambda name="PPO", **sections: built(name, tiny.SEVERAL_AGENTS, **sections)
