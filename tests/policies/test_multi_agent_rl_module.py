"""MultiAgentRLModule: a mapping whose modules are its own."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlrun import MultiAgentRLModule
from rlrun.config.schema import ModelConfig
from rlrun.policies.catalog import build_module

BOX = gym.spaces.Box(-1, 1, (3,), np.float32)


def module(width=4):
    return build_module(BOX, gym.spaces.Discrete(2), ModelConfig(hidden=(width,)))


def test_it_is_a_mapping_and_its_parameters_are_those_of_its_modules():
    first, second = module(), module(8)
    both = MultiAgentRLModule({"a.b": first, "c": second})
    assert dict(both) == {"a.b": first, "c": second}
    parts = [*first.parameters(), *second.parameters()]
    assert [id(p) for p in both.parameters()] == [id(p) for p in parts]
    both.add("d", module())
    both.remove("a.b")
    assert list(both) == ["c", "d"]
    with pytest.raises(KeyError):
        both["a.b"]
    with pytest.raises(ValueError, match="'c' already"):
        both.add("c", module())


@pytest.mark.parametrize("name", ["forward_train", "forward_inference", "forward_exploration"])
def test_each_module_sees_its_part_of_a_batch(name):
    both = MultiAgentRLModule({"a": module(), "b": module()})
    obs = torch.randn(5, 3)
    outputs = getattr(both, name)({"a": {"obs": obs}})
    assert set(outputs) == {"a"}
    expected = getattr(both["a"], name)({"obs": obs})
    for key, value in expected.items():
        assert torch.equal(outputs["a"][key], value)
