"""The connectors of docs/connectors.md run, in the experiment that the page shows, and learn."""

import re
import sys
import types

import gymnasium as gym
import numpy as np
import pytest
from pages import blocks, execute, page

from rlrun import load_experiment
from rlrun.config.registry import algorithm_class
from rlrun.config.schema import EnvRunnersConfig

PAGE = page("connectors.md")
(EXPERIMENT,) = blocks(PAGE, "yaml")


@pytest.fixture(scope="module")
def connectors():
    """The connectors that the page defines, in the module that its import paths name."""
    modules = {"my": types.ModuleType("my"), "my.connectors": types.ModuleType("my.connectors")}
    sys.modules.update(modules)
    for snippet in blocks(PAGE, "python"):
        execute(snippet, modules["my.connectors"].__dict__, "docs/connectors.md")
    yield modules["my.connectors"]
    for name in modules:
        del sys.modules[name]


@pytest.fixture
def build(connectors, built, tmp_path):
    """Builds the experiment of the page, with overrides."""

    def make(*overrides):
        file = tmp_path / "page.yaml"
        file.write_text(EXPERIMENT, encoding="utf-8")
        batch = ["training.train_batch_size=128", "training.minibatch_size=64", "seed=1"]
        experiment = load_experiment(file, [*batch, *overrides])
        return built(algorithm_class(experiment.algorithm), experiment)

    return make


def test_the_experiment_of_the_page_trains(build):
    algorithm = build()
    batch = algorithm.sample()
    assert batch["obs"].shape == (128, 3 + 3)
    np.testing.assert_array_equal(batch["obs"][1:, -1], batch["rewards"][:-1])
    assert set(batch["actions"]) == {0, 1, 2, 3, 4}
    assert algorithm.train()["training_iteration"] == 1


def test_a_connector_with_statistics_is_merged(build):
    algorithm = build("env_runners.env_to_module_connector=my.connectors:Scaled")
    algorithm.train()
    pipeline = algorithm.policies.connectors.get_state()["default_policy"]["observations"]
    (state,) = pipeline["connectors"].values()
    assert (state["most"] >= 1).all()
    assert state["most"][2] > 1, "the velocity"


def test_every_key_of_the_page_exists():
    keys = set(re.findall(r"^\| `([a-z_]+)` \|", PAGE, re.MULTILINE))
    assert len(keys) == 7
    assert keys <= EnvRunnersConfig.model_fields.keys()


def test_methods_of_the_history_exist():
    from rlrun.connectors.slot_history import SlotHistory

    history = SlotHistory(1, 1, gym.spaces.Discrete(2))
    for name in re.findall(r"`history\.([a-z]+)", PAGE):
        assert hasattr(history, name)
