"""Resuming a run, in its folder or from a checkpoint in a new one, and what is refused."""

import json
import weakref
from dataclasses import replace
from pathlib import Path

import counting_algorithm
import pytest
from run_folders import assert_equal_runs, meta, resume, rows, train

from rlrun.checkpoint.checkpoint import (
    CheckpointError,
    read_checkpoint,
    restore_checkpoint,
    write_checkpoint,
)
from rlrun.config.loader import load_experiment
from rlrun.config.problems import ConfigError, InputError, misfit
from rlrun.experiment.run import resume_experiment
from rlrun.experiment.run_folder import RunFolderError

pytestmark = pytest.mark.usefixtures("saving")


def test_a_new_run_goes_on_from_a_checkpoint_as_the_run_itself_did():
    train("stop.training_iteration=8", "checkpoint.keep=null")
    before = {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()}
    Path("run/checkpoints/best").unlink()
    Path("run/checkpoints/best").symlink_to("000004")
    branch = resume_experiment("run/checkpoints/best", run_dir="branch", console="quiet").folder
    assert_equal_runs(branch, "run")
    assert meta(branch)["sessions"][0]["resumed_from_iteration"] == 4
    Path("runs/fake").mkdir(parents=True)
    Path("runs/fake/latest").symlink_to(Path("run").absolute())  # until there is a newer one
    other = resume("training.gain=5", run_dir="runs/fake/latest/checkpoints/best")
    assert rows(other.folder)[:4] == rows("run")[:4]
    assert rows(other.folder)[4:] != rows("run")[4:]
    assert before == {path: path.read_bytes() for path in before}


@pytest.mark.parametrize(
    ("run", "overrides", "says"),
    [
        ("run", [], "run: a run is resumed in its own folder; only from a checkpoint in another"),
        ("run/checkpoints/000900", [], "run/checkpoints/000900: no such run folder"),
        (
            "run/checkpoints/latest",
            [],
            "reached its stop \\(training_iteration 6 >= 6\\); change it",
        ),
        ("run/checkpoints/000004", ["training.gian=1"], "did you mean gain"),
        ("run/checkpoints/000004", ["stop.typo=1"], "stop: typo: no such result key"),
    ],
)
def test_what_cannot_go_on_from_a_checkpoint_leaves_no_folder(run, overrides, says):
    train()
    with pytest.raises((ConfigError, InputError), match=says):
        resume_experiment(run, overrides, run_dir="branch", console="quiet")
    assert not Path("branch").exists()


def test_resuming_extends_a_finished_run_as_if_it_had_never_stopped():
    train("stop.training_iteration=9", run_dir="whole")
    train("stop.training_iteration=4")
    assert resume("stop.training_iteration=9").end == "finished"
    assert_equal_runs("run", "whole")
    assert load_experiment("run/config.yaml").stop == {"training_iteration": 9}
    sessions = meta("run")["sessions"]
    assert sessions[1]["resumed_from_iteration"] == 4
    assert sessions[1]["overrides"] == ["stop.training_iteration=9"]


def test_resuming_a_run_that_has_reached_its_stop_does_nothing():
    train()
    assert resume().end == "finished"
    assert len(rows("run")) == 6


def contents(folder):
    return {
        path.relative_to(folder): path.read_bytes()
        for path in Path(folder).rglob("*")
        if path.is_file() and path.name not in ("log.txt", ".lock")
    }


@pytest.mark.parametrize("checkpoints", [["checkpoint.keep=2"], ["checkpoint.every=null"]])
def test_a_resumption_that_is_refused_leaves_the_run_as_it_was(checkpoints, monkeypatch):
    def refuse(*arguments, **settings):
        raise misfit("env", "it does not fit")

    with pytest.raises(RuntimeError, match="as planned"):
        train("training.fail_at=6", *checkpoints)
    before = contents("run")
    monkeypatch.setattr(counting_algorithm.CountingAlgorithm, "__init__", refuse)
    with pytest.raises(ConfigError, match="it does not fit"):
        resume("training.fail_at=null")
    assert contents("run") == before
    assert meta("run")["outcome"] == "failed"


@pytest.mark.parametrize("stored", ["true", "false"])
def test_a_run_resumed_without_its_replay_buffer_says_so(stored, capsys):
    settings = ["algorithm=DQN", "env=CartPole-v1", "training=null", "model.hidden=[4]"]
    tiny = ["training.train_batch_size=8", f"replay.store_in_checkpoints={stored}"]
    train(*settings, *tiny, "stop={training_iteration: 1}")
    out, err = capsys.readouterr()
    assert "replay buffer" not in err
    assert (" kB without the replay buffer\n" in out) == (stored == "false")
    resume("stop={training_iteration: 2}")
    assert ("the replay buffer starts empty" in capsys.readouterr().err) == (stored == "false")


def test_a_finished_run_is_not_resumed_with_settings_that_nothing_would_be_trained_with():
    train()
    before = contents("run")
    with pytest.raises(RunFolderError, match=r"finished \(training_iteration 6 >= 6\).*its stop"):
        resume("training.gain=3")
    assert contents("run") == before
    assert resume("stop.training_iteration=5").end == "finished"  # as a script may say it again
    assert resume("training.gain=3", "stop.training_iteration=7").end == "finished"
    assert len(rows("run")) == 7


@pytest.mark.parametrize("key", ["stop.learners/entropie", "checkpoint.metric"])
def test_a_key_that_no_result_has_is_noticed_by_a_run_and_by_one_that_is_resumed(key):
    wrong = f"{key}=9" if key.startswith("stop") else f"{key}=learners/entropie"
    with pytest.raises(InputError, match=r"learners/entropie: no such result key"):
        train(wrong)
    assert not Path("run").exists()
    train()
    before = contents("run")
    with pytest.raises(InputError, match=r"learners/entropie: no such result key"):
        resume(wrong, "stop.training_iteration=7")
    assert contents("run") == before


def test_a_finished_run_without_a_checkpoint_is_not_begun_again_by_resuming(capsys):
    train("checkpoint.every=null", "checkpoint.at_end=false", console="lines")
    assert "--resume" not in capsys.readouterr().out
    with pytest.raises(RunFolderError, match=r"without a checkpoint.*rlrun rerun run"):
        resume("stop.training_iteration=9")
    assert len(rows("run")) == 6


def test_rows_after_the_checkpoint_are_replaced():
    train("stop.training_iteration=9", run_dir="whole")
    with pytest.raises(RuntimeError, match="as planned"):
        train("training.fail_at=6", "stop.training_iteration=9")
    assert len(rows("run")) == 5
    with Path("run/metrics.jsonl").open("a") as file:
        file.write('{"training_iteration": 6, "half')
    resume("training.fail_at=null")
    assert_equal_runs("run", "whole")


@pytest.mark.parametrize(
    ("left", "said"),
    [
        (None, "run/metrics.jsonl: the results of iterations 1 to 3 are missing"),
        (1, "run/metrics.jsonl: the results of iterations 2 to 3 are missing"),
        (3, ""),  # as a kill between checkpoint and result leaves it
    ],
)
def test_results_that_are_gone_are_missed_once(left, said, capsys):
    train("stop.training_iteration=4")
    file = Path("run/metrics.jsonl")
    lines = file.read_text().splitlines(keepends=True)
    file.unlink() if left is None else file.write_text("".join(lines[:left]))
    resume("stop.training_iteration=5")
    warned = capsys.readouterr().err
    assert said in warned if said else not warned
    assert [row["training_iteration"] for row in rows("run")] == [*range(1, (left or 0) + 1), 4, 5]
    resume("stop.training_iteration=6")
    assert not capsys.readouterr().err


def test_a_damaged_checkpoint_is_set_aside_by_a_run_that_resumes_before_it():
    train("stop.training_iteration=9", run_dir="whole")
    with pytest.raises(RuntimeError, match="as planned"):
        train("training.fail_at=6", "stop.training_iteration=9")
    newest = Path("run/checkpoints/latest").resolve()
    weights = newest / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"?")
    resume("training.fail_at=null")
    assert "is used instead" in Path("run/log.txt").read_text()
    assert newest.with_name(f"{newest.name}.damaged").is_dir()
    assert_equal_runs("run", "whole")


def test_a_failed_run_names_the_command_to_resume_it_and_keeps_its_checkpoint():
    with pytest.raises(RuntimeError) as caught:
        train("training.fail_at=5")
    assert "rlrun train --resume run" in caught.value.__notes__[0]
    assert meta("run")["outcome"] == "failed"
    assert "as planned" in meta("run")["sessions"][0]["reason"]
    assert read_checkpoint(Path("run/checkpoints/000004")).iteration == 4
    assert "Traceback" in Path("run/log.txt").read_text()


def test_a_run_without_a_checkpoint_starts_again():
    with pytest.raises(RuntimeError):
        train("training.fail_at=1")
    resume("training.fail_at=null")
    train(run_dir="whole")
    assert_equal_runs("run", "whole")


def test_resuming_falls_back_to_the_last_whole_checkpoint():
    train(run_dir="whole")
    train()
    state = Path("run/checkpoints/000006/state.json")
    state.write_bytes(state.read_bytes()[:-9])
    resume()
    assert_equal_runs("run", "whole")
    assert "000006: the checkpoint is damaged" in Path("run/log.txt").read_text()


def test_a_checkpoint_that_does_not_fit_is_refused_and_changes_nothing(monkeypatch):
    train()
    before = Path("run/config.yaml").read_text(), Path("run/metrics.jsonl").read_text()
    monkeypatch.setattr(
        counting_algorithm.CountingAlgorithm, "get_weights", lambda self: {"other": self.weights}
    )
    with pytest.raises(CheckpointError, match="no parameter other"):
        resume("stop.training_iteration=9")
    after = Path("run/config.yaml").read_text(), Path("run/metrics.jsonl").read_text()
    assert before == after


def test_a_checkpoint_of_another_algorithm_is_refused():
    train()
    path = Path("run/checkpoints/000006")
    write_checkpoint(path, replace(read_checkpoint(path), algorithm="PPO"))
    with pytest.raises(CheckpointError, match="a checkpoint of PPO, not of counting_algorithm"):
        resume("stop.training_iteration=9")


def test_a_checkpoint_of_another_format_version_is_refused():
    train()
    manifest = Path("run/checkpoints/000006/manifest.json")
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"version": 2}))
    with pytest.raises(CheckpointError, match="written by an older version of rlrun"):
        resume("stop.training_iteration=9")


def test_resuming_accepts_a_folder_of_runs_and_refuses_other_folders():
    first = train(run_dir=None)
    again = resume("stop.training_iteration=7", run_dir="runs/fake")
    assert again.folder.resolve() == first.folder.resolve()
    with pytest.raises(RunFolderError, match="no such run folder"):
        resume_experiment("nowhere")
    Path("empty").mkdir()
    with pytest.raises(RunFolderError, match=r"no config\.yaml"):
        resume_experiment("empty")


def test_a_resumed_run_does_not_keep_the_state_that_it_has_restored(monkeypatch):
    alive = []

    def restore(algorithm, checkpoint):
        restore_checkpoint(algorithm, checkpoint)
        reference, train_once = weakref.ref(checkpoint), algorithm.train

        def look_and_train():
            alive.append(reference())
            return train_once()

        monkeypatch.setattr(algorithm, "train", look_and_train)

    train("stop.training_iteration=2")
    monkeypatch.setattr("rlrun.experiment.run.restore_checkpoint", restore)
    resume("stop.training_iteration=4")
    assert alive == [None, None]
