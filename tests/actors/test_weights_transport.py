"""How weights reach remote runners: small ones within the call, large ones through the store."""

import pickle

import numpy as np
import pytest

from rlrun.actors import remote_runners
from rlrun.actors.remote_runners import RemoteRunners


@pytest.fixture
def stored(monkeypatch):
    objects = []
    monkeypatch.setattr(remote_runners.ray, "put", lambda value: objects.append(value) or "ref")
    return objects


OF_ONES_OWN = {"own": {"w": 1.0, "table": [np.zeros(9_000, np.float32)]}, "other": None}


@pytest.mark.parametrize("weights", [None, np.zeros(9_000, np.float32), OF_ONES_OWN])
def test_small_weights_travel_in_the_call(stored, weights):
    np.testing.assert_equal(pickle.loads(RemoteRunners.sendable(weights)), weights)
    assert not stored


@pytest.mark.parametrize("policies", [1, 40])
def test_large_weights_are_stored_once(stored, policies):
    by_policy = {f"p{i}": np.zeros(100_000 // policies, np.float32) for i in range(policies)}
    weights = by_policy if policies > 1 else by_policy["p0"]
    assert RemoteRunners.sendable(weights) == "ref"
    assert len(stored) == 1
    assert stored[0] is weights
