"""The experiment of docs/environments.md runs with the wrapper that the page defines."""

import sys
import types

import pytest
from pages import blocks, execute, page

from rlrun import load_experiment
from rlrun.config.registry import algorithm_class

PAGE = page("environments.md")


@pytest.fixture
def wrappers():
    """The page's wrapper, in the module that its import path names."""
    modules = {"my": types.ModuleType("my"), "my.wrappers": types.ModuleType("my.wrappers")}
    sys.modules.update(modules)
    for snippet in blocks(PAGE, "python"):
        execute(snippet, modules["my.wrappers"].__dict__, "docs/environments.md")
    yield modules["my.wrappers"]
    for name in modules:
        del sys.modules[name]


@pytest.mark.usefixtures("wrappers")
def test_the_experiment_of_the_page_trains(built, tmp_path):
    _, experiment = blocks(PAGE, "yaml")
    file = tmp_path / "page.yaml"
    file.write_text(experiment, encoding="utf-8")
    sizes = ["training.train_batch_size=128", "training.minibatch_size=64", "seed=1"]
    config = load_experiment(file, sizes)
    batch = built(algorithm_class(config.algorithm), config).sample()
    assert batch["obs"].shape == (128, 3, 4)
    assert set(batch["rewards"]) == {0.5}


def test_the_atari_experiment_of_the_page_has_its_own_preprocessing(built, tmp_path):
    pytest.importorskip("ale_py")
    experiment, _ = blocks(PAGE, "yaml")
    file = tmp_path / "page.yaml"
    file.write_text(experiment, encoding="utf-8")
    sizes = ["training.train_batch_size=4", "training.minibatch_size=4", "seed=1"]
    config = load_experiment(file, sizes)
    batch = built(algorithm_class(config.algorithm), config).sample()
    assert batch["obs"].shape == (4, 2, 64, 64)
