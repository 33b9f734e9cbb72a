"""One run from file to folder: results, stop, checkpoints, signals, resuming, failures."""

import errno
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import counting_algorithm
import pytest
from run_folders import assert_equal_runs, meta, rows, unsaved_env_steps

from rlrun.checkpoint.checkpoint import (
    CheckpointError,
    CheckpointWriteError,
    read_checkpoint,
    write_checkpoint,
)
from rlrun.checkpoint.checkpoint_folder import CheckpointFolder
from rlrun.config.loader import load_experiment
from rlrun.config.problems import ConfigError, InputError, misfit
from rlrun.experiment.report.sinks import DiskRefusedError
from rlrun.experiment.run import (
    Pace,
    iterate,
    iterate_experiment,
    resume_experiment,
    run_experiment,
)
from rlrun.experiment.run_folder import RunFolder, RunFolderError, is_in_use
from rlrun.experiment.stopping import ENDING_SIGNALS, StopCriteria


@pytest.fixture(autouse=True)
def _file(counting):
    settings = "checkpoint: {every: 2, keep: 2}\nreport: {sinks: [jsonl]}\n"
    counting.write_text(counting.read_text() + settings)


def train(*overrides, run_dir="run", console="quiet"):
    return run_experiment("fake.yaml", overrides, run_dir=run_dir, console=console)


def resume(*overrides, run_dir="run"):
    return resume_experiment(run_dir, overrides, console="quiet")


def iterations(folder="run"):
    return [row["training_iteration"] for row in rows(folder)]


def test_results_can_be_iterated_over_and_a_loop_that_is_left_is_resumed():
    train(run_dir="whole")
    seen = list(iterate_experiment("fake.yaml", run_dir="looped", console="quiet"))
    assert seen == rows("looped")
    assert_equal_runs("looped", "whole")
    for row in iterate_experiment("fake.yaml", run_dir="left", console="quiet"):
        if row["training_iteration"] == 3:
            break
    about = meta("left")["sessions"][-1]
    assert (about["outcome"], about["reason"]) == (
        "interrupted",
        "the loop over the results was left",
    )
    assert read_checkpoint(Path("left/checkpoints/latest")).iteration == 3
    resume(run_dir="left")
    assert_equal_runs("left", "whole")


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"console": "loud"}, ValueError, "one of panel, lines, quiet, not 'loud'"),
        ({"overrides": "seed=2"}, TypeError, "a list of KEY=VALUE texts, such as \\['seed=2'\\]"),
        ({"overrides": ["seed"]}, ConfigError, "expected KEY=VALUE"),
    ],
)
def test_a_wrong_argument_is_one_line_and_leaves_no_folder(arguments, error, said):
    with pytest.raises(error, match=said):
        run_experiment("fake.yaml", **{"run_dir": "run", **arguments})
    assert not Path("run").exists()


def test_a_run_writes_a_complete_folder():
    outcome = train()
    assert outcome.end == "finished"
    assert outcome.reason == "training_iteration 6 >= 6"
    assert iterations() == [1, 2, 3, 4, 5, 6]
    names = sorted(path.name for path in Path("run/checkpoints").iterdir())
    assert names == ["000004", "000006", "best", "latest"]
    assert outcome.checkpoint == Path("run/checkpoints/000006")
    assert load_experiment("run/config.yaml").stop == {"training_iteration": 6}
    about = meta("run")
    assert (about["outcome"], about["training_iteration"]) == ("finished", 6)
    assert about["sessions"][0]["versions"]["numpy"]


def test_environment_variables_are_never_written(monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "hush-hush-42")
    train("stop.training_iteration=1")
    for path in Path("run").rglob("*"):
        if path.is_file():
            assert b"hush-hush-42" not in path.read_bytes()


def test_folders_are_named_by_time_and_seed_and_never_shared():
    first, second = (train("stop.training_iteration=1", run_dir=None) for _ in range(2))
    assert first.folder != second.folder
    assert first.folder.parent == Path("runs/fake")
    assert first.folder.name.endswith("-s3")
    assert Path("runs/fake/latest").resolve() == second.folder.resolve()


def test_a_random_seed_is_written_to_the_config():
    train("seed=null", "stop.training_iteration=1")
    assert load_experiment("run/config.yaml").seed is not None


def test_a_used_folder_is_refused_with_the_command_to_resume_it():
    train()
    with pytest.raises(RunFolderError, match="rlrun train --resume run"):
        train()
    Path("other").mkdir()
    Path("other/file").touch()
    with pytest.raises(RunFolderError, match="not empty"):
        train(run_dir="other")


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
    assert "replay buffer" not in capsys.readouterr().err
    resume("stop={training_iteration: 2}")
    assert ("the replay buffer is filled anew" in capsys.readouterr().err) == (stored == "false")


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


def test_a_folder_is_locked_against_a_second_process():
    train()
    code = (
        "import sys, fcntl; lock = open('run/.lock', 'a'); fcntl.flock(lock, fcntl.LOCK_EX);"
        "print('locked', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout.readline() == b"locked\n"
        with pytest.raises(RunFolderError, match="another process"):
            resume("stop.training_iteration=9")
        other.stdin.close()
    resume("stop.training_iteration=9")


@contextmanager
def signalled(*numbers):
    """Send signals to this process a moment after the run has begun to handle them."""
    before = signal.getsignal(numbers[0])

    def send():
        while signal.getsignal(numbers[0]) is before:
            time.sleep(0.01)
        for number in numbers:
            time.sleep(0.2)
            os.kill(os.getpid(), number)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    yield
    thread.join()


@pytest.mark.parametrize("number", ENDING_SIGNALS)
def test_a_signal_ends_the_run_after_the_iteration_with_a_checkpoint(number):
    with signalled(number):
        outcome = train(
            "training.pause_s=0.02", "stop.training_iteration=100000", "checkpoint.every=null"
        )
    last = iterations()[-1]
    assert outcome.end == "interrupted"
    assert outcome.reason == number.name
    assert int(outcome.checkpoint.name) == last
    assert meta("run")["outcome"] == "interrupted"
    stop = f"stop.training_iteration={last + 2}"
    assert resume(stop).end == "finished"
    train(stop, "checkpoint.every=null", run_dir="whole")
    assert_equal_runs("run", "whole")


def test_a_second_signal_stops_at_once():
    before = signal.getsignal(signal.SIGINT)
    started = time.monotonic()
    with signalled(signal.SIGINT, signal.SIGINT):
        outcome = train("training.pause_s=40")
    assert time.monotonic() - started < 30
    assert (outcome.end, outcome.reason) == ("interrupted", "SIGINT, at once")
    assert outcome.checkpoint is None  # the first iteration had not ended
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("every", ["auto", 50])
def test_a_run_that_fails_is_resumed_where_its_last_state_was_held(every):
    """Not at its last checkpoint, of which there may be none."""
    with pytest.raises(RuntimeError, match="as planned"):
        train("training.fail_at=5", f"checkpoint.every={every}", "stop.training_iteration=60")
    (saved,) = {path.resolve().name for path in Path("run/checkpoints").iterdir()}
    assert 1 <= int(saved) < 5
    resume("training.fail_at=null", "stop.training_iteration=9")
    train("stop.training_iteration=9", run_dir="whole")
    assert_equal_runs("run", "whole")


def test_checkpoints_come_by_the_clock_unless_the_file_says_how_often(monkeypatch):
    """After the iteration that ends a minute after the last one, or 50 times what writing takes."""
    seconds = iter(range(0, 100_000, 16))
    monkeypatch.setattr("rlrun.experiment.run.perf_counter", lambda: float(next(seconds)))
    pace = Pace(60.0)
    due = [pace.is_due() for _ in range(5)]
    assert due == [False, False, False, True, True]
    with pace.timed():  # 16 seconds
        pass
    assert [pace.is_due() for _ in range(51)] == [False] * 49 + [True] * 2


class RaisesTwice:
    """A sink; it would raise again."""

    def __init__(self):
        self.written = 0

    def write(self, result):
        self.written += 1
        if self.written > 1:
            raise KeyError(f"lost at {result['training_iteration']}")

    def close(self):
        raise ZeroDivisionError("closing as well")


def test_a_sink_that_raises_is_reported_once_and_set_aside(capsys):
    outcome = train(f"report.sinks=[jsonl, '{__name__}:RaisesTwice']")
    assert outcome.end == "finished"
    assert iterations() == [1, 2, 3, 4, 5, 6]
    shown = capsys.readouterr().err
    assert shown.count("RaisesTwice: KeyError: 'lost at 2'; the run continues without it") == 1
    assert shown.count("RaisesTwice: ZeroDivisionError: closing as well") == 1
    log = Path("run/log.txt").read_text()
    assert log.count("Traceback") == 1
    assert "in write" in log


def test_a_job_that_is_started_again_goes_on_with_its_unfinished_run():
    """The newest of the same configuration that no process runs in; else it starts one."""

    def start(*overrides, run_dir=None):
        return run_experiment("fake.yaml", overrides, run_dir=run_dir, resume=True, console="quiet")

    real = counting_algorithm.CountingAlgorithm.train

    def fail_once(self):
        if self.iteration == 3:
            raise RuntimeError("the node is gone")
        return real(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counting_algorithm.CountingAlgorithm, "train", fail_once)
        with pytest.raises(RuntimeError):
            start()
    (failed,) = (path for path in Path("runs/fake").iterdir() if not path.is_symlink())
    with closing(RunFolder.open(failed)):
        others = [start("seed=4").folder, start().folder]
        with pytest.MonkeyPatch.context() as patch:  # another job locks it a moment later
            patch.setattr("rlrun.experiment.unfinished_run.is_in_use", lambda path: False)
            others.append(start().folder)
    assert start().folder == failed
    assert [session["outcome"] for session in meta(failed)["sessions"]] == ["failed", "finished"]
    assert start().folder not in (failed, *others)
    for _ in range(2):  # the second one has nothing left to do
        assert start(run_dir="there").end == "finished"
    assert iterations("there") == [1, 2, 3, 4, 5, 6]
    with pytest.raises(RunFolderError, match="a run of another configuration"):
        start("seed=9", run_dir="there")


def test_looking_whether_a_run_is_going_on_hinders_neither_a_look_nor_a_start():
    train()
    with Path("run/.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)  # as another look does, for a moment
        assert not is_in_use(Path("run"))
        threading.Timer(0.05, fcntl.flock, (lock, fcntl.LOCK_UN)).start()
        with closing(RunFolder.open(Path("run"))):
            assert is_in_use(Path("run"))


def test_a_full_disk_is_named_once_and_the_run_continues(monkeypatch, capsys):
    real = CheckpointFolder.save

    def refuse(self, checkpoint):
        if checkpoint.iteration < 6:
            raise CheckpointWriteError("disk: No space left on device")
        return real(self, checkpoint)

    monkeypatch.setattr(CheckpointFolder, "save", refuse)
    outcome = train()
    assert outcome.checkpoint.name == "000006"
    assert capsys.readouterr().err.count("No space left on device") == 1


def test_a_run_whose_results_have_no_room_at_the_end_fails(monkeypatch):
    real = os.write

    def full(descriptor, data):
        if Path("run/metrics.jsonl").exists() and os.path.samestat(
            os.fstat(descriptor), os.stat("run/metrics.jsonl")
        ):
            raise OSError(errno.EFBIG, "File too large")
        return real(descriptor, data)

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(
        DiskRefusedError, match="the last 6 results are lost: File too large"
    ) as ended:
        train()
    assert ended.value.exit_code == 1
    assert meta("run")["outcome"] == "failed"


def test_a_full_disk_at_the_last_checkpoint_fails_the_run(monkeypatch):
    def refuse(self, checkpoint):
        raise CheckpointWriteError("disk: No space left on device")

    monkeypatch.setattr(CheckpointFolder, "save", refuse)
    with pytest.raises(CheckpointWriteError):
        train()
    assert meta("run")["outcome"] == "failed"
    assert len(rows("run")) == 6


class DamagesItsFolder:
    """A sink that leaves no run folder, or one that takes no checkpoint, after the third result."""

    def __init__(self, path, put_a_file):
        self.path, self.put_a_file = Path(path), put_a_file

    def write(self, result):
        if result["training_iteration"] == 3:
            shutil.rmtree(self.path)
            if self.put_a_file:
                self.path.write_text("")

    def close(self):
        pass


@pytest.mark.parametrize(
    ("path", "put_a_file", "temporary", "saved_in"),
    [
        ("home/run", False, "tmp", "home"),
        pytest.param("home/run/checkpoints", True, "tmp", "home", marks=pytest.mark.faults),
        pytest.param("home", False, "tmp", "tmp", marks=pytest.mark.faults),
        ("home", False, "missing", None),
    ],
)
def test_a_run_that_loses_its_folder_ends_and_says_where_its_last_state_is(
    monkeypatch, record_fault, path, put_a_file, temporary, saved_in
):
    Path("tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", os.path.abspath(temporary))
    sink = f"{{use: '{__name__}:DamagesItsFolder', path: {path}, put_a_file: {put_a_file}}}"
    with pytest.raises(CheckpointWriteError) as caught:
        train(f"report.sinks=[jsonl, {sink}]", run_dir="home/run")
    assert caught.value.exit_code == 1
    (note,) = caught.value.__notes__
    if saved_in is None:
        assert note == "the run failed, and its last state could not be written anywhere"
        return
    (saved,) = Path(saved_in).absolute().glob("run-saved-*")
    assert note.endswith(f"is valid: rlrun train --resume {saved}")
    assert meta(saved)["sessions"][-1]["outcome"] == "failed"
    assert int((saved / "checkpoints/latest").readlink().name) == iterations(saved)[-1]
    repeated = [unsaved_env_steps(saved)]
    resume("stop.training_iteration=9", "report.sinks=[jsonl]", run_dir=saved)
    train("stop.training_iteration=9", run_dir="whole")
    assert_equal_runs(saved, "whole")
    record_fault(lost=[0], repeated=repeated)


def test_an_unknown_stop_key_ends_the_run_after_one_iteration_without_a_folder():
    with pytest.raises(InputError, match="did you mean env_runners/restarts"):
        train("stop={env_runners/restart: 1}")
    assert not Path("run").exists()
    train()


def test_a_wrong_sink_leaves_no_folder_behind():
    with pytest.raises(InputError, match=r"needs a method write\(\)"):
        train("report.sinks=['rich.text:Text']", run_dir=None)
    assert not Path("runs/fake").exists()


def test_a_custom_sink_receives_the_results_and_is_closed():
    counting_algorithm.CollectingSink.written.clear()
    closed = counting_algorithm.CollectingSink.closed
    train("report.sinks=[jsonl, 'counting_algorithm:CollectingSink']")
    written = counting_algorithm.CollectingSink.written
    assert {directory for directory, _ in written} == {Path("run").absolute()}
    assert [result["training_iteration"] for _, result in written] == [1, 2, 3, 4, 5, 6]
    assert counting_algorithm.CollectingSink.closed == closed + 1


def test_quiet_prints_only_the_summary(capsys):
    train()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Finished: training_iteration 6 >= 6"
    assert any("rlrun rollout run" in line for line in lines)


def test_plain_prints_one_line_an_iteration(capsys):
    train(console="lines")
    out = capsys.readouterr().out.splitlines()
    assert out[0].endswith("trains on CartPole-v1, seed 3, in run")
    assert [line.split()[0] for line in out[1:7]] == ["1", "2", "3", "4", "5", "6"]


def test_iterate_yields_the_stopping_result_last():
    algorithm = counting_algorithm.CountingAlgorithm(load_experiment("fake.yaml"))
    stop = StopCriteria({"env_steps": 250}, smoothing_episodes=1)
    assert [result["env_steps"] for result in iterate(algorithm, stop)] == [100, 200, 300]
    assert list(iterate(algorithm, stop, lambda: True)) == []
