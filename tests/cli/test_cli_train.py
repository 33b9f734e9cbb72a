"""``rlrun train``: arguments, exit codes, and the messages of a failure in their order."""

import json
import math
import shlex
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import counting_algorithm
import pytest
from torch import nn

from rlrun import Callbacks
from rlrun.envs.errors import EnvError
from rlrun.experiment.sweep.report import SweepOutcome
from rlrun.experiment.sweep.trials import Trial


@pytest.fixture
def train(rlrun, counting):
    """Call ``rlrun train WORDS``; returns the exit code, stdout and stderr."""
    return partial(rlrun, "train")


def test_a_file_with_overrides(train):
    code, out, _ = train(
        "fake.yaml", "training.train_batch_size=50", "--run-dir", "run", "--seed", "9"
    )
    assert code == 0
    last = json.loads(Path("run/metrics.jsonl").read_text().splitlines()[-1])
    assert last["env_steps"] == 300
    assert "seed: 9" in Path("run/config.yaml").read_text()
    assert "Finished: training_iteration 6 >= 6" in out


def test_a_path_may_have_an_equals_sign(rlrun, train):
    Path("lr=3").mkdir()
    Path("fake.yaml").rename("lr=3/fake.yaml")
    assert train("lr=3/fake.yaml", "training.gain=2", "--run-dir", "lr=3/run", "--quiet")[0] == 0
    assert "lr=3/fake.yaml: failed" in rlrun("check", "lr=3")[2]  # its algorithm has no networks
    assert rlrun("rerun", "lr=3/run", "--run-dir", "again", "--quiet")[0] == 0
    assert "gain: 2" in Path("again/config.yaml").read_text()


@pytest.mark.parametrize("words", [["train", "ppo/cartpole"], ["ls"]])
def test_a_removed_working_directory_is_said(refused, tmp_path, monkeypatch, words):
    removed = tmp_path / "removed"
    removed.mkdir()
    monkeypatch.chdir(removed)
    removed.rmdir()
    refused(words, "the working directory was removed; change to another")


def test_without_a_file(train):
    algorithm = "counting_algorithm:CountingAlgorithm"
    words = ["--algorithm", algorithm, "--env", "CartPole-v1", "stop.training_iteration=1"]
    assert train(*words)[0] == 0
    assert Path("runs/countingalgorithm_cartpole-v1/latest/metrics.jsonl").exists()


def test_resume(train):
    train("fake.yaml", "--run-dir", "run")
    assert train("--resume", "run", "stop.training_iteration=8")[0] == 0
    assert len(Path("run/metrics.jsonl").read_text().splitlines()) == 8


@pytest.fixture
def sweeps(monkeypatch):
    """In place of a sweep: notes the calls; its trials end with the statuses in ``statuses``."""
    noted = SimpleNamespace(calls=[], statuses=["finished"])

    def outcome():
        trials = [Trial(1, 1, 1, {}, status=status) for status in noted.statuses]
        return SweepOutcome("finished", Path("f"), tuple(trials), None)

    def run(loaded, **options):
        noted.calls.append((loaded.experiment.sweep, options["resume"]))
        return outcome()

    def resume(path, overrides, **options):
        noted.calls.append((path, overrides))
        return outcome()

    monkeypatch.setattr("rlrun.experiment.sweep.sweep.run_sweep", run)
    monkeypatch.setattr("rlrun.experiment.sweep.sweep.resume_sweep", resume)
    return noted


def test_a_group_is_a_sweep_and_resumes_like_a_run(train, sweeps):
    assert train("fake.yaml", "--seeds", "11-13", "training.gain=1,2")[0] == 0
    sweeps.statuses = ["finished", "failed"]
    Path("runs/auto").mkdir(parents=True)  # a run of this name is not what `auto` means
    assert train("fake.yaml", "--seeds", "2", "--resume", "auto")[0] == 1
    Path("group").mkdir()
    Path("group/sweep.yaml").touch()
    assert train("--resume", "group", "stop.env_steps=9")[0] == 1
    (ranged, fresh), (counted, auto), resumed = sweeps.calls
    assert (ranged.seeds, ranged.space) == ((11, 12, 13), {"training.gain": {"grid": [1, 2]}})
    assert (counted.seeds, counted.space) == (2, {})
    assert (fresh, auto, resumed) == (False, True, (Path("group"), ["stop.env_steps=9"]))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "--resume RUN"),
        (["stop.env_steps=5"], "--algorithm and --env"),
        (["a.yaml", "b.yaml"], "one FILE.yaml"),
        (["--resume", "run", "--env", "CartPole-v1"], "--env"),
        (["fake.yaml", "--resume", "run"], "FILE"),
        (["--resume", "run", "--seed", "1"], "--seed"),
        (["--resume", "nowhere"], "no such run folder"),
        (["missing.yaml"], "missing.yaml"),
        (["fake.yaml", "training.nonsense=1"], "nonsense"),
        (["fake.yaml", "--seeds", "0"], "'0' is neither a number of seeds"),
        (["fake.yaml", "seed=1,2", "--seeds", "2"], "several seeds are given twice"),
        (["--resume", "run", "--seeds", "2"], "--seeds"),
        (["fake.yaml", "report.sinks=['counting_algorithm:Nothing']"], "Nothing"),
    ],
)
def test_wrong_input_is_exit_2_with_a_message(train, refused, words, says):
    refused(["train", *words], says)


def test_a_used_folder_is_exit_2(train, refused):
    assert "rlrun rollout 'a run'" in train("fake.yaml", "--run-dir", "a run")[1]
    refused(["train", "fake.yaml", "--run-dir", "a run"], "rlrun train --resume 'a run'")


def test_a_failure_is_exit_1_with_the_traceback_first_and_the_resume_command_last(train):
    words = ["fake.yaml", "training.fail_at=3", "checkpoint.every=1", "--run-dir", "my run"]
    code, _, err = train(*words)
    assert code == 1
    assert err.startswith("Traceback")
    log, resume = err.strip().splitlines()[-1].split("; ")
    assert log == "the run failed, see my run/log.txt"
    assert resume == "checkpoint 000002 is valid: rlrun train --resume 'my run'"
    assert err.count("checkpoint 000002") == 1


class _PoisonsWeights(Callbacks):
    """After the second iteration."""

    def on_train_result(self, algorithm, result):
        if result["training_iteration"] == 2:
            algorithm.learner.parameters.vector[3] = math.inf


def test_a_run_that_diverges_keeps_its_healthy_checkpoints(rlrun, monkeypatch):
    """And ends with exit code 1, in words and without a traceback."""
    settings = ["checkpoint={every: 1, keep: 1}", "env_runners.num_env_runners=0"]
    callbacks = f"callbacks=['{__name__}:_PoisonsWeights']"
    options = ["--algorithm", "PPO", "--env", "CartPole-v1", "--run-dir", "run", *settings]
    code, _, err = rlrun("train", *options, callbacks)
    assert code == 1
    assert "Traceback" not in err
    diverged, resume = err.strip().splitlines()[-2:]
    assert diverged.startswith("training diverged in iteration 3: ")
    assert "weights are not finite" in diverged
    assert resume.endswith("checkpoint 000001 is valid: rlrun train --resume run")


class _Fails(Callbacks):
    def on_learn_on_batch(self, algorithm, policy_id, batch):
        raise RuntimeError("no more disk") from KeyError("disk")


def _failing_loss(module, rows, loss, statistics):
    raise RuntimeError("no more disk") from KeyError("disk")


class _Cancelled(BaseException):
    """As of a library that cancels tasks."""


class _Ends(Callbacks):
    def __init__(self, how):
        self._how = how

    def on_train_result(self, algorithm, result):
        if result["training_iteration"] == 2:
            raise {"exit": SystemExit(0), "close": GeneratorExit, "cancel": _Cancelled}[self._how]


@pytest.mark.parametrize("how", ["exit", "close", "cancel"])
def test_code_of_the_user_that_ends_a_run_is_no_success(rlrun, how):
    callbacks = f"callbacks=[{{use: '{__name__}:_Ends', how: {how}}}]"
    options = ["--algorithm", "PPO", "--env", "CartPole-v1", "--run-dir", "run", callbacks]
    settings = ["env_runners.num_env_runners=0", "stop.training_iteration=3"]
    settings += ["training={train_batch_size: 64, minibatch_size: 32}"]
    code, _, err = rlrun("train", *options, *settings)
    assert code == 1
    assert err.startswith("Traceback")
    (frame,) = [line for line in err.splitlines() if line.startswith("  File ")]
    assert Path(__file__).name in frame
    assert err.strip().endswith("checkpoint 000001 is valid: rlrun train --resume run")
    assert json.loads(Path("run/meta.json").read_text())["sessions"][-1]["outcome"] == "failed"


class _FailingNetwork(nn.Module):
    def __init__(self, space):
        super().__init__()
        raise RuntimeError("no more disk") from KeyError("disk")


@pytest.mark.parametrize(
    "word", ["callbacks=['@_Fails']", "training.loss=@_failing_loss", "model.use=@_FailingNetwork"]
)
def test_an_error_of_the_users_code_is_shown_without_the_frames_around_it(rlrun, word):
    options = ["--algorithm", "PPO", "--env", "CartPole-v1", "--run-dir", "run"]
    settings = ["env_runners.num_env_runners=0", "stop.training_iteration=1"]
    code, _, err = rlrun("train", *options, *settings, word.replace("@", f"{__name__}:"))
    assert code == 1
    assert err.startswith("KeyError: 'disk'\n\nThe above exception")
    (frame,) = [line for line in err.splitlines() if line.startswith("  File ")]
    assert Path(__file__).name in frame
    assert err.splitlines()[-2].startswith("RuntimeError: no more disk")
    assert "rlrun/experiment/run.py" in Path("run/log.txt").read_text()


def test_an_env_error_shows_only_the_users_own_traceback(train, monkeypatch):
    def fail(self):
        raise EnvError(
            "my:Maze",
            "step",
            "KeyError: 3",
            user_traceback="Traceback (most recent call last):\n  user code\nKeyError: 3\n",
            runner_index=2,
            env_index=1,
            env_step=17,
        )

    monkeypatch.setattr(counting_algorithm.CountingAlgorithm, "train", fail)
    code, _, err = train("fake.yaml", "--run-dir", "run")
    assert code == 1
    lines = err.strip().splitlines()
    assert lines[:3] == ["Traceback (most recent call last):", "  user code", "KeyError: 3"]
    assert "env 'my:Maze', runner 2, sub-env 1, step 17" in lines[3]
    assert lines[4] == "the run failed before its first checkpoint; see run/log.txt"
    assert len(lines) == 5


def test_interruption_is_exit_130(train, monkeypatch):
    def interrupt(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(counting_algorithm.CountingAlgorithm, "train", interrupt)
    code, out, _ = train("fake.yaml", "--run-dir", "run", "--quiet")
    assert code == 130
    assert "rlrun train --resume run" in out


SIGNALS = """
import contextlib, signal
for name in ("SIGHUP", "SIGUSR1"):
    with contextlib.suppress(KeyboardInterrupt):
        signal.raise_signal(getattr(signal, name))
signal.raise_signal(signal.SIGTERM)
"""


def test_signals_before_the_run_begins_are_exit_130_too(tmp_path):
    """A scheduler's script that requeues a job on 130 requeues it; not handled, any is its end."""
    (tmp_path / "slow_to_import.py").write_text(SIGNALS)
    words = ["train", "--algorithm", "PPO", "--env", "slow_to_import:make", "stop.env_steps=1"]
    ended = subprocess.run([sys.executable, "-m", "rlrun", *words], cwd=tmp_path, check=False)
    assert ended.returncode == 130


LEAVES_OPEN = """
from rlrun import Callbacks
class LeavesOpen(Callbacks):
    def __init__(self):
        self.itself, self.file = self, open("left.txt", "w")
    def on_train_result(self, algorithm, result):
        self.file.write("trained")
"""


def test_what_a_callback_has_written_to_a_file_that_it_leaves_open_is_kept(tmp_path):
    """Also by one that only the garbage collector finds."""
    (tmp_path / "leaves_open.py").write_text(LEAVES_OPEN)
    words = ["train", "--algorithm", "PPO", "--env", "CartPole-v1", "stop.env_steps=1"]
    words += ["callbacks=['leaves_open:LeavesOpen']", "training.train_batch_size=128", "--quiet"]
    subprocess.run([sys.executable, "-m", "rlrun", *words], cwd=tmp_path, check=True)
    assert (tmp_path / "left.txt").read_text() == "trained"


def test_no_file_of_a_command_gets_the_number_of_a_stream_that_is_closed(tmp_path):
    """What is written to the streams would go into that file."""
    code = "from rlrun.cli.main import main; import os, sys; sys.argv[1:] = ['--version']\n"
    code += "try: main()\nexcept SystemExit: os.write(2, b'%d' % os.open('file', os.O_CREAT))"
    command = f"{shlex.join([sys.executable, '-c', code])} <&- >&- 2>error"
    subprocess.run(["sh", "-c", command], cwd=tmp_path, check=True)
    assert int((tmp_path / "error").read_text()) > 2
