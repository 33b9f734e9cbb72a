"""One run from file to folder: results, stop, checkpoints, signals, failures."""

import errno
import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing, contextmanager
from pathlib import Path

import counting_algorithm
import pytest
from run_folders import assert_equal_runs, iterations, meta, resume, rows, train, unsaved_env_steps

from rlrun.checkpoint.checkpoint import (
    CheckpointWriteError,
    read_checkpoint,
)
from rlrun.checkpoint.checkpoint_folder import CheckpointFolder
from rlrun.config.loader import load_experiment
from rlrun.config.problems import ConfigError, InputError
from rlrun.experiment.report.sinks import DiskRefusedError
from rlrun.experiment.run import RunSession, iterate_experiment, run_experiment
from rlrun.experiment.run_folder import RunFolder, RunFolderError, is_in_use
from rlrun.experiment.stopping import ENDING_SIGNALS

pytestmark = pytest.mark.usefixtures("saving")


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
        ({"console": "loud"}, ValueError, "expected one of panel, lines, quiet, got 'loud'"),
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
        with pytest.raises(RunFolderError, match=f"another process .* process {os.getpid()} on "):
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
        assert start("connectors.clip_rewards=1", run_dir="there").end == "finished"
    assert iterations("there") == [1, 2, 3, 4, 5, 6]
    for other in ("seed=9", "connectors.clip_rewards=true"):
        with pytest.raises(RunFolderError, match="a run of another configuration"):
            start("connectors.clip_rewards=1", other, run_dir="there")


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


def test_on_a_full_disk_the_outcome_is_noted_in_the_room_that_its_file_has(monkeypatch):
    def full(path, text):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    train()
    monkeypatch.setattr("rlrun.experiment.run_folder.replace_text", full)
    folder = RunFolder(Path("run"))
    folder.end_session("failed", "no room", 3)
    assert meta("run")["outcome"] == "failed"
    assert meta("run")["sessions"][-1]["reason"] == "no room"
    with pytest.raises(OSError, match="No space left on device"):
        folder.end_session("finished", "a reason of a block" * 4096, 3)
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


def test_a_signal_before_the_config_is_written_leaves_no_folder_behind(monkeypatch):
    def interrupt(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(RunSession, "write_config", interrupt)
    with pytest.raises(KeyboardInterrupt):
        train(run_dir=None)
    assert not Path("runs/fake").exists()


def test_a_program_without_standard_streams_trains(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    assert train(console="lines").end == "finished"


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
    assert any(re.fullmatch(r"  checkpoint  000006, [\d.]+ kB", line) for line in lines)


def test_plain_prints_one_line_an_iteration(capsys):
    train(console="lines")
    out = capsys.readouterr().out.splitlines()
    assert out[0].endswith("trains on CartPole-v1, seed 3, in run")
    assert [line.split()[0] for line in out[1:7]] == ["1", "2", "3", "4", "5", "6"]
