"""What is wrong with `initial_weights` is told with its place, and exit code 2."""

from pathlib import Path

import pytest

FILE = """\
algorithm: PPO
env: CartPole-v1
seed: 1
stop: {training_iteration: 1}
model: {hidden: [8]}
training: {train_batch_size: 64, minibatch_size: 32}
"""


@pytest.fixture(autouse=True)
def source(rlrun):
    """The run runs/a; b.yaml begins with its weights."""
    Path("a.yaml").write_text(FILE)
    Path("b.yaml").write_text(f"initial_weights: runs/a\n{FILE}")
    assert rlrun("train", "a.yaml", "--quiet")[0] == 0


@pytest.mark.parametrize("words", [("check",), ("train",), ("train", "--seeds=2")])
def test_what_is_wrong_is_told_with_its_place_before_there_is_a_folder(refused, words):
    command, *options = words
    refused(
        [command, "b.yaml", "initial_weights=runs/aa", *options], "initial_weights: there is no"
    )
    Path("b.yaml").write_text(f"initial_weights: {{default_policy: runs/aa}}\n{FILE}")
    said = "b.yaml:1:19: initial_weights.default_policy: there is no runs/aa - did you mean runs/a?"
    refused([command, "b.yaml", *options], said)
    Path("runs/c").mkdir()
    refused([command, "b.yaml", "initial_weights=runs/c", *options], "runs/c: neither a checkpoint")
    assert not Path("runs/b").exists()


@pytest.mark.parametrize("command", ["check", "train"])
def test_what_does_not_fit_is_told_with_its_place(refused, command):
    said = "b.yaml:1:1: initial_weights: runs/a/"
    refused([command, "b.yaml", "model.hidden=[9]"], said)
    refused([command, "b.yaml", "model.hidden=[9]"], "model.hidden is [8] there and [9] here")
    assert not Path("runs/b").exists()
