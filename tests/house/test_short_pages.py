"""docs/models.md, evaluation.md and offline.md: their files load, their commands and code work."""

import shlex
import subprocess
import sys
import types

import pytest
from pages import blocks, execute, page

from rlrun import load_experiment, run_experiment
from rlrun.config.registry import algorithm_class


@pytest.fixture
def encoders():
    """The encoder of docs/models.md, in the module that its import path names."""
    modules = {"my": types.ModuleType("my"), "my.encoders": types.ModuleType("my.encoders")}
    sys.modules.update(modules)
    (snippet,) = blocks(page("models.md"), "python")
    execute(snippet, modules["my.encoders"].__dict__, "docs/models.md")
    yield
    for name in modules:
        del sys.modules[name]


@pytest.mark.usefixtures("encoders")
def test_the_models_of_the_page_act(built, tmp_path):
    for text, width in zip(blocks(page("models.md"), "yaml"), (128, 64), strict=True):
        (tmp_path / "page.yaml").write_text(text, encoding="utf-8")
        sizes = ["training.train_batch_size=64", "training.minibatch_size=64", "seed=1"]
        config = load_experiment(tmp_path / "page.yaml", sizes)
        algorithm = built(algorithm_class(config.algorithm), config)
        assert len(algorithm.sample()) == 64
        shapes = {parameter.shape[-1] for parameter in algorithm.learner.module.parameters()}
        assert width in shapes


def run_commands(text, folder):
    """Run each line of a page's commands in a folder."""
    for line in "".join(blocks(text, "sh")).splitlines():
        words = shlex.split(line, comments=True)
        assert words[0] == "rlrun"
        command = [sys.executable, "-m", *words]
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=300)


@pytest.mark.learning
def test_the_evaluation_of_the_page_stops_the_run_and_is_played_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (text,) = blocks(page("evaluation.md"), "yaml")
    (tmp_path / "page.yaml").write_text(text, encoding="utf-8")
    outcome = run_experiment("page.yaml", run_dir="runs/evaluated", console="quiet")
    assert outcome.reason.startswith("evaluation/episode_return_mean")
    run_commands(page("evaluation.md"), tmp_path)
    names = {}
    execute(blocks(page("evaluation.md"), "python")[0], names, "docs/evaluation.md")
    assert len(names["played"].episodes) == 3


@pytest.mark.learning
def test_a_policy_is_cloned_from_saved_episodes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    text = page("offline.md")
    run_commands(text, tmp_path)
    for name, kind in (("bc.py", "python"), ("bc.yaml", "yaml")):
        (tmp_path / name).write_text(blocks(text, kind)[0], encoding="utf-8")
    outcome = run_experiment("bc.yaml", run_dir="runs/clone", console="quiet")
    assert outcome.result["evaluation"]["episode_return_mean"] > 400
