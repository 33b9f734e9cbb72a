"""docs/result.md lists exactly the keys that a result has, and marks those that depend on time."""

import re

import pytest
from pages import page

from rlrun import PPOConfig
from rlrun.algorithms.result import SCHEMA_VERSION, is_wall_clock
from rlrun.data.results import addresses

PAGE = page("result.md")
STATISTICS = "learners/default_policy/learner_stats/"


def _documented():
    """Every key of the page's tables -> whether it is marked with a clock."""
    found = {}
    for cell in re.findall(r"^\| (`.*?) \|", PAGE, re.MULTILINE):
        for key in re.findall(r"`([a-z_/]+)`", cell):
            found[key] = "⏱" in cell
    ppo = PAGE.split("PPO's, under")[1].split("## evaluation")[0]
    for cell in re.findall(r"^\| (`.*?) \|", ppo, re.MULTILINE):
        for key in re.findall(r"`([a-z_/]+)`", cell):
            found[STATISTICS + key] = found.pop(key)
    return found


def _documented_of_several():
    """Keys that only runs with several agents have, as ``a/b/<policy>``."""
    first_cells = re.findall(r"^\| (`.*?) \|", PAGE, re.MULTILINE)
    return {key for cell in first_cells for key in re.findall(r"`([a-z_/]+<[a-z]+>)`", cell)}


@pytest.fixture
def keys_of_a_result(built):
    """The keys of a first result, given a config."""

    def keys(config):
        config = config.env_runners(num_env_runners=0, num_envs_per_env_runner=2)
        sizes = {"train_batch_size": 64, "minibatch_size": 32, "num_epochs": 1}
        return set(addresses(built(config.training(**sizes, kl_coeff=0.2)).train()))

    return keys


def test_the_page_lists_the_keys_of_a_result(keys_of_a_result):
    assert keys_of_a_result(PPOConfig().environment("CartPole-v1")) == set(_documented())


def test_the_page_lists_the_keys_of_a_result_with_several_agents(keys_of_a_result):
    policies = {"learns": {}, "frozen": {"train": False}}
    agents = {"agent_0": "learns", "*": "frozen"}
    config = PPOConfig().environment("MultiAgentCartPole")
    keys = keys_of_a_result(config.multi_agent(policies=policies, agents=agents))
    general = {
        re.sub(r"agent_return_mean/agent_[01]$", "agent_return_mean/<agent>", key)
        .replace("/learns", "/<policy>")
        .replace("/frozen", "/<policy>")
        .replace("learners/<policy>/", "learners/default_policy/")
        for key in keys
    }
    assert general == set(_documented()) | _documented_of_several()


def test_the_clock_marks_the_keys_that_depend_on_time():
    marked = {key for key, clock in _documented().items() if clock}
    assert marked == {key for key in _documented() if is_wall_clock(key)}


def test_the_version_is_current():
    assert f"Schema version {SCHEMA_VERSION}." in PAGE
