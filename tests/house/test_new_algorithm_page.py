"""docs/new-algorithm.md: its file, its YAML and its Python work unchanged, and learn."""

import builtins
import json
import re
import subprocess
import sys

import numpy as np
import pytest
from pages import blocks, execute, page

import rlrun
from rlrun.algorithms import asynchronous
from rlrun.algorithms.on_policy import PolicyUpdate
from rlrun.algorithms.parts import ByPolicy
from rlrun.algorithms.result import PhaseTimers
from rlrun.cli.main import app
from rlrun.config.registry import algorithm_class

PAGE = page("new-algorithm.md")
FILE, SNIPPET, TD3, CHANGED, ADAMW = blocks(PAGE, "python")
(YAML, TD3_YAML, CHANGED_YAML, ADAMW_YAML), (COMMANDS,) = blocks(PAGE, "yaml"), blocks(PAGE, "sh")


@pytest.fixture
def folder(tmp_path):
    """A folder with the files that the page tells to write."""
    (tmp_path / "vpg.py").write_text(FILE)
    (tmp_path / "vpg_cartpole.yaml").write_text(YAML)
    (tmp_path / "td3.py").write_text(TD3)
    (tmp_path / "td3.yaml").write_text(TD3_YAML)
    (tmp_path / "ppo_changed.py").write_text(CHANGED)
    (tmp_path / "ppo_changed.yaml").write_text(CHANGED_YAML)
    (tmp_path / "ppo_adamw.py").write_text(ADAMW)
    (tmp_path / "ppo_adamw.yaml").write_text(ADAMW_YAML)
    return tmp_path


def run(folder, *arguments):
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_its_python_runs(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    execute(SNIPPET, {"__name__": "page"}, "docs/new-algorithm.md")
    assert "policy_loss" in capsys.readouterr().out


def test_the_names_in_its_tables_exist():
    names = re.findall(r"`(?:self\.)?(\w+)\(", PAGE)
    assert len(names) > 10
    parts = ByPolicy, PolicyUpdate, PhaseTimers(), rlrun.PrioritizedReplayBuffer, rlrun.Learner
    owners = (rlrun, rlrun.Algorithm, asynchronous, *parts, builtins)
    assert [name for name in names if not any(hasattr(owner, name) for owner in owners)] == []


@pytest.mark.parametrize(
    ("name", "training"),
    [("td3", "warmup: 20"), ("ppo_changed", "every: 2"), ("ppo_adamw", "num_epochs: 1")],
)
def test_its_algorithms_are_resumed_to_the_bit(folder, monkeypatch, name, training):
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    settings = f"training={{train_batch_size: 10, minibatch_size: 8, {training}}}"
    for words in (
        [f"{name}.yaml", settings, "stop.env_steps=40", "--run-dir", "whole"],
        [f"{name}.yaml", settings, "stop.env_steps=30", "--run-dir", "halves"],
        ["--resume", "halves", "stop.env_steps=40"],
    ):
        app(["train", *words, "--plain"], standalone_mode=False)
    for file in ("weights.safetensors", "state.safetensors"):
        paths = [folder / run_dir / "checkpoints/latest" / file for run_dir in ("whole", "halves")]
        assert paths[0].read_bytes() == paths[1].read_bytes()


def test_its_changed_ppo_learns_by_other_advantages_and_has_its_phase(folder, monkeypatch):
    monkeypatch.syspath_prepend(folder)
    words = [
        "env=MultiAgentCartPole",
        "env.num_agents=2",
        "multi_agent.policies=[agent_0, agent_1]",
    ]
    words += ["training={train_batch_size: 20, minibatch_size: 20, num_epochs: 1}"]
    for name, more in (("GroupPPO", []), ("PhasicPPO", ["training.every=2"])):
        given = [f"algorithm=ppo_changed:{name}", *words, *more]
        experiment = rlrun.load_experiment(folder / "ppo_changed.yaml", given)
        algorithm = algorithm_class(experiment.algorithm)(experiment)
        for iteration in range(2):
            learners = algorithm.train()["learners"]
            for policy_id in ("agent_0", "agent_1"):
                found = learners[policy_id]["learner_stats"]
                has_phase = name == "PhasicPPO" and iteration == 1
                assert ("auxiliary_kl" in found) == has_phase
        algorithm.stop()


def test_its_weight_decay_shrinks_weights(folder, monkeypatch):
    monkeypatch.syspath_prepend(folder)
    weights = {}
    for decay in (0, 1):
        settings = ["train_batch_size=128", "num_epochs=1", "lr=0.1", f"weight_decay={decay}"]
        experiment = rlrun.load_experiment(
            folder / "ppo_adamw.yaml", [f"training.{setting}" for setting in settings]
        )
        algorithm = algorithm_class(experiment.algorithm)(experiment)
        before = algorithm.learner.get_weights().copy()
        algorithm.train()
        weights[decay] = algorithm.learner.get_weights()
        algorithm.stop()
    np.testing.assert_allclose(weights[1], weights[0] - 0.1 * before, atol=1e-6)


@pytest.mark.learning
def test_its_td3_learns(folder):
    run(folder, "-m", "rlrun", "train", "td3.yaml", "--plain", "--run-dir", "here")
    rows = (folder / "here" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(rows[-1])["evaluation"]["episode_return_mean"] > -200


@pytest.mark.learning
def test_its_commands_check_it_and_train_it_until_it_has_learned(folder):
    commands = [line.split() for line in COMMANDS.splitlines()]
    assert [words[:2] for words in commands] == [["rlrun", "check"], ["rlrun", "train"]]
    (_, *check), (_, *train) = commands
    run(folder, "-m", "rlrun", *check)
    run(folder, "-m", "rlrun", *train, "--plain", "--run-dir", "here")
    rows = (folder / "here" / "metrics.jsonl").read_text().splitlines()
    last = json.loads(rows[-1])
    assert last["episode_return_mean"] >= 195
    assert last["env_steps"] < 200_000
