"""The environment of docs/multi-agent.md trains, and its agents keep to the rules."""

import sys
import types

import pytest
from pages import blocks, execute, page

from rlrun import PPOConfig

(ENVIRONMENT,) = (code for code in blocks(page("multi-agent.md"), "python") if "Nim" in code)


@pytest.fixture
def module(monkeypatch):
    """A module with the page's environment."""
    made = types.ModuleType("page_envs")
    monkeypatch.setitem(sys.modules, made.__name__, made)
    execute(ENVIRONMENT, made.__dict__, "docs/multi-agent.md")
    return made


def test_the_environment_of_the_page_trains(module, built):
    algorithm = built(
        PPOConfig()
        .environment(f"{module.__name__}:Nim", stones=7)
        .multi_agent(policies=["both"])
        .training(train_batch_size=128, minibatch_size=64)
        .debugging(seed=1)
    )
    result = algorithm.train()
    assert result["episodes"] > 128 / 7
    assert result["episode_return_mean"] == 0
    returns = result["env_runners"]["agent_return_mean"]
    assert returns["first"] == -returns["second"]
    batch = algorithm.sample().policy_batches["both"]
    assert batch["obs"]["action_mask"][range(len(batch)), batch["actions"]].all()
