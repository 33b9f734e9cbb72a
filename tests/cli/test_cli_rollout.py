"""``rlrun rollout``: the table, the JSON object and the refusals."""

import json
import sys

import pytest

from rlrun.cli.main import main
from rlrun.experiment.run import run_experiment

FILE = """
algorithm: PPO
env: CartPole-v1
seed: 5
stop: {training_iteration: 1}
model: {hidden: [8]}
training: {train_batch_size: 64, minibatch_size: 64, num_epochs: 1}
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("rollout")
    (path / "ppo.yaml").write_text(FILE)
    run_experiment(path / "ppo.yaml", run_dir=path / "run", console="quiet")
    return path / "run"


@pytest.fixture
def rollout(capsys, monkeypatch):
    """Call ``rlrun rollout WORDS``; gives the exit code, stdout and stderr."""

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["rlrun", "rollout", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code or 0, *capsys.readouterr()

    return call


def test_a_table(run, rollout):
    code, out, _ = rollout(run, "--episodes", 3, "--seed", 1)
    assert code == 0
    lines = out.splitlines()
    assert "checkpoints/000001, deterministic actions, seed 1" in lines[0]
    assert [line.split()[0] for line in lines[1:5]] == ["episode", "1", "2", "3"]
    assert lines[-1].startswith("return ")
    assert lines[-1].endswith("over 3 episodes")


def test_one_json_object(run, rollout, tmp_path):
    words = [run / "checkpoints/latest", "--episodes", 2, "--explore", "--json"]
    code, out, _ = rollout(*words, "--save", tmp_path / "t.npz")
    assert code == 0
    played = json.loads(out)
    assert len(played["played"]) == 2
    assert played["explore"] is True
    assert played["checkpoint"].endswith("000001")
    assert (tmp_path / "t.npz").exists()


def test_a_step_limit_may_end_it_early(run, rollout):
    code, out, _ = rollout(run, "--steps", 2)
    assert code == 0
    assert "no episode ended within the step limit" in out


def test_what_cannot_be_played_is_exit_2(run, rollout, tmp_path):
    assert rollout(tmp_path)[0] == 2
    assert "no such run folder" in rollout(tmp_path / "none")[2]
    assert rollout(run, "--render", "--video", tmp_path)[0] == 2
    assert rollout(run, "--episodes", 0)[0] == 2


def test_a_damaged_checkpoint_is_exit_2(run, rollout, tmp_path):
    import shutil

    shutil.copytree(run, tmp_path / "run", symlinks=True)
    weights = tmp_path / "run/checkpoints/000001/weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    code, _, err = rollout(tmp_path / "run")
    assert code == 2
    assert "the checkpoint is damaged: weights.safetensors has" in err
    assert len(err.strip().splitlines()) == 1
