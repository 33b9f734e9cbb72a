"""Runs that are killed and resumed end as if nothing had happened."""

import os
import pty
import signal
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE

import pytest
from run_folders import (
    assert_equal_runs,
    meta,
    rows,
    start_rlrun,
    timeless,
    unsaved_env_steps,
    wait_for,
)

from rlrun.checkpoint.checkpoint import read_checkpoint
from rlrun.experiment.run import resume_experiment, run_experiment
from rlrun.experiment.stopping import ENDING_SIGNALS

pytestmark = pytest.mark.faults

FILE = """
algorithm: PPO
env: CartPole-v1
seed: 5
stop: {training_iteration: 30}
env_runners: {num_envs_per_env_runner: 4}
model: {hidden: [16]}
training: {train_batch_size: 256, minibatch_size: 64, num_epochs: 4}
checkpoint: {every: 2, keep: 2}
callbacks: [{use: "run_folders:Pause"}]
"""


HANGING = """
algorithm: PPO
env: {use: "hanging_envs:Hanging"}
seed: 5
stop: {training_iteration: 30}
env_runners: {num_env_runners: 0}
training: {train_batch_size: 240, minibatch_size: 60, num_epochs: 1}
checkpoint: {every: 3}
"""  # its 5th iteration does not end


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run without faults; the others are beside it."""
    root = tmp_path_factory.mktemp("faults")
    (root / "ppo.yaml").write_text(FILE)
    run_experiment(root / "ppo.yaml", run_dir=root / "whole", console="quiet")
    return root / "whole"


def start(folder, num_rows):
    """A run that has written some rows."""
    file = folder.parent / "ppo.yaml"
    process = start_rlrun("train", file, "--run-dir", folder, "--quiet")
    wait_for(lambda: len(rows(folder)) >= num_rows)
    return process


@pytest.mark.parametrize("num_rows", [1, 5, 12])
def test_a_killed_and_resumed_run_equals_an_undisturbed_one(whole, num_rows):
    folder = whole.parent / f"killed-{num_rows}"
    with start(folder, num_rows) as process:
        process.kill()
    resume_experiment(folder, console="quiet")
    assert_equal_runs(folder, whole)
    assert "the last session ended without an outcome" in (folder / "log.txt").read_text()


@pytest.mark.parametrize("num_env_runners", [0, 1])
def test_a_run_whose_terminal_is_closed_is_saved(whole, record_fault, num_env_runners):
    folder = whole.parent / f"closed-{num_env_runners}"
    child, terminal = pty.fork()
    if not child:
        words = ["train", whole.parent / "ppo.yaml", "--run-dir", folder]
        words += [f"env_runners={{num_env_runners: {num_env_runners}, num_cpus_per_env_runner: 1}}"]
        os.execv(sys.executable, [sys.executable, "-m", "rlrun", *map(str, words)])
    drain = threading.Thread(target=_read_to_the_end, args=(terminal,), daemon=True)
    drain.start()
    wait_for(lambda: len(rows(folder)) >= 3)
    os.kill(child, signal.SIGSTOP)  # the run must not end before its terminal does
    os.close(os.dup2(os.open(os.devnull, os.O_RDONLY), terminal))
    os.kill(child, signal.SIGCONT)
    ended = []
    wait_for(lambda: ended.append(os.waitpid(child, os.WNOHANG)) or ended[-1][0], seconds=60)
    assert os.waitstatus_to_exitcode(ended[-1][1]) == 130
    last = timeless(folder)[-1]["training_iteration"]
    assert read_checkpoint(folder / "checkpoints/latest").iteration == last
    if not num_env_runners:
        repeated = [unsaved_env_steps(folder)]
        resume_experiment(folder, console="quiet")
        assert_equal_runs(folder, whole)
        record_fault(lost=[0], repeated=repeated)


def _read_to_the_end(terminal):
    with suppress(OSError):
        while os.read(terminal, 65536):
            pass


@pytest.mark.parametrize(
    ("number", "settings"),
    [
        (signal.SIGTERM, "num_env_runners: 1, num_cpus_per_env_runner: 0.5"),
        (signal.SIGTERM, "gym_env_vectorize_mode: async"),
        (signal.SIGHUP, "gym_env_vectorize_mode: async"),
    ],
)
def test_a_run_is_saved_when_all_of_its_processes_get_a_signal(
    whole, record_fault, number, settings
):
    """As a scheduler and a terminal send it; Ray's session folder goes with the run."""
    folder = whole.parent / f"group-{number.name}-{settings[:3]}"
    with start_rlrun(
        *("train", whole.parent / "ppo.yaml", "--run-dir", folder, "--quiet"),
        f"env_runners={{{settings}, num_envs_per_env_runner: 4}}",
        start_new_session=True,
    ) as process:
        wait_for(lambda: len(rows(folder)) >= 3)
        assert len(ray_sessions(process)) == ("num_env_runners" in settings)
        os.killpg(process.pid, number)
        assert process.wait(60) == 130
    assert not ray_sessions(process)
    last = timeless(folder)[-1]["training_iteration"]
    assert read_checkpoint(folder / "checkpoints/latest").iteration == last
    record_fault(repeated=[unsaved_env_steps(folder)])


def test_the_next_run_removes_the_ray_session_of_a_killed_one(whole):
    runner = "env_runners={num_env_runners: 1, num_cpus_per_env_runner: 0.5}"
    words = ["train", whole.parent / "ppo.yaml", "--quiet", runner]
    folder = whole.parent / "killed-with-ray"
    with start_rlrun(*words, "--run-dir", folder) as process:
        wait_for(lambda: len(rows(folder)) >= 1)
        process.kill()
    assert ray_sessions(process)
    after = [*words, "stop.training_iteration=1", "--run-dir", whole.parent / "next"]
    with start_rlrun(*after) as other:
        assert other.wait(60) == 0
    assert not ray_sessions(process)


def ray_sessions(process):
    """Folders of the Ray that a process has started; another one's may have the same number."""
    home = Path(os.environ.get("RAY_TMPDIR", tempfile.gettempdir())) / "ray"
    return list(home.glob(f"session_*_{process.pid}/rlrun.lock"))


@pytest.mark.parametrize("number", ENDING_SIGNALS)
def test_a_signal_is_exit_130_with_a_checkpoint_of_the_last_row(whole, record_fault, number):
    folder = whole.parent / number.name
    with start(folder, 3) as process:
        os.kill(process.pid, number)
        assert process.wait(30) == 130
    last = timeless(folder)[-1]["training_iteration"]
    assert read_checkpoint(folder / "checkpoints/latest").iteration == last
    repeated = [unsaved_env_steps(folder)]
    resume_experiment(folder, console="quiet")
    assert_equal_runs(folder, whole)
    record_fault(lost=[0], repeated=repeated)


@pytest.mark.parametrize(
    ("number", "how", "mode", "runners"),
    [
        (signal.SIGINT, "sleep", "sync", 0),
        (signal.SIGTERM, "loop", "sync", 0),
        (signal.SIGTERM, "sleep", "async", 0),
        (signal.SIGINT, "sleep", "sync", 1),
    ],
)
def test_one_signal_ends_a_run_whose_environment_hangs(tmp_path, number, how, mode, runners):
    settings = [f"env.how={how}", "env.at=1000", f"env_runners.gym_env_vectorize_mode={mode}"]
    settings += [f"env_runners.num_env_runners={runners}"]
    (tmp_path / "hanging.yaml").write_text(HANGING)
    run = start_rlrun(
        "train", "hanging.yaml", *settings, "--run-dir", "run", "--plain", cwd=tmp_path
    )
    folder = tmp_path / "run"
    wait_for(lambda: len(rows(folder)) == 4 or run.poll() is not None)
    run.send_signal(number)
    assert run.wait(timeout=30) == 130
    assert meta(folder)["sessions"][-1]["outcome"] == "interrupted"
    assert (folder / "checkpoints" / "000003").is_dir()


@pytest.mark.parametrize(
    ("how", "settings", "told"),
    [
        ("chdir", "num_env_runners: 0", b""),
        ("thread", "num_env_runners: 0", b"these threads have not ended, and were killed"),
        ("fork", "num_env_runners: 0", b"an environment forked returned"),
        ("fork, and the child exits", "num_env_runners: 0", b"an environment forked returned"),
        (
            "fork, and the child exits",
            "gym_env_vectorize_mode: async",
            b"an environment forked returned",
        ),
        ("fork, and the child exits", "num_env_runners: 1", b""),
    ],
)
def test_a_run_survives_what_its_environment_does_to_the_process(tmp_path, how, settings, told):
    (tmp_path / "hanging.yaml").write_text(HANGING)
    words = f"env.how='{how}'", f"env_runners={{{settings}}}", "stop.training_iteration=6"
    options = {"cwd": tmp_path, "stderr": PIPE}
    train = "train", "hanging.yaml", *words, "env.at=1000", "--quiet", "--run-dir", "odd"
    with start_rlrun(*train, **options) as run:
        _, errors = run.communicate(timeout=100)
    assert (run.returncode, b"Traceback" in errors, told in errors) == (0, False, True)
    plain = [*words, "env.at=1000000"]
    run_experiment(tmp_path / "hanging.yaml", plain, run_dir=tmp_path / "plain", console="quiet")
    assert_equal_runs(tmp_path / "odd", tmp_path / "plain")


def test_a_signal_ends_a_run_whose_environment_has_replaced_the_handlers(tmp_path):
    (tmp_path / "hanging.yaml").write_text(HANGING)
    words = "env.how=signal", "env.at=1000", "stop={env_steps: 1e9}", "--quiet"
    with start_rlrun("train", "hanging.yaml", *words, "--run-dir", "run", cwd=tmp_path) as run:
        wait_for(lambda: len(rows(tmp_path / "run")) > 6)
        run.terminate()
        assert run.wait(60) == 130


def test_quit_shows_where_a_call_hangs_that_ctrl_c_does_not_end(tmp_path):
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)  # a shell's background jobs ignore it
    (tmp_path / "hanging.yaml").write_text(HANGING)
    settings = ["env.how=keep lock", "env.at=1000"]
    words = ["train", "hanging.yaml", *settings, "--run-dir", "run", "--quiet"]
    with start_rlrun(*words, cwd=tmp_path, stderr=PIPE, text=True) as run:
        wait_for(lambda: len(rows(tmp_path / "run")) == 4)
        time.sleep(1.0)
        run.send_signal(signal.SIGQUIT)
        _, said = run.communicate(timeout=30)
    assert run.returncode == -signal.SIGQUIT
    assert "hanging_envs.py" in said
    assert (tmp_path / "run/checkpoints/000003").is_dir()


@pytest.mark.parametrize(("how", "code"), [("os._exit", 7), ("os._exit(0)", 1)])
def test_an_environment_that_exits_is_shown_and_is_no_success(tmp_path, how, code):
    (tmp_path / "hanging.yaml").write_text(HANGING)
    words = ["train", "hanging.yaml", f"env.how={how}", "env.at=1000", "--run-dir", "run"]
    with start_rlrun(*words, "--quiet", cwd=tmp_path, stderr=PIPE, text=True) as run:
        _, said = run.communicate(timeout=60)
    assert run.returncode == code
    assert said.startswith("os._exit(")
    assert "hanging_envs.py" in said
    assert (tmp_path / "run/checkpoints/000003").is_dir()
