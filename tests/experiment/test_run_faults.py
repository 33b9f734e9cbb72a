"""Runs that are killed on the way: what is left resumes and ends as if nothing had happened."""

import os
import signal
import subprocess
import sys
import time

import pytest

from rlrun.algorithms.result import is_wall_clock
from rlrun.checkpoint.checkpoint import read_checkpoint
from rlrun.data.results import addresses, lookup
from rlrun.experiment.report.jsonl import read_rows
from rlrun.experiment.run import resume_experiment, run_experiment

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
"""


def timeless(folder):
    return [
        {key: lookup(row, key) for key in addresses(row) if not is_wall_clock(key)}
        for row in read_rows(folder / "metrics.jsonl")
    ]


def start(folder):
    file = folder.parent / "ppo.yaml"
    arguments = ["train", str(file), "--run-dir", str(folder), "--quiet"]
    return subprocess.Popen([sys.executable, "-m", "rlrun", *arguments])


def wait_for_rows(folder, count):
    deadline = time.monotonic() + 60
    while len(list(read_rows(folder / "metrics.jsonl"))) < count:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nobody disturbed; the others stand beside it."""
    root = tmp_path_factory.mktemp("faults")
    (root / "ppo.yaml").write_text(FILE)
    run_experiment(root / "ppo.yaml", run_dir=root / "whole", console="quiet")
    return root / "whole"


@pytest.mark.parametrize("rows", [1, 5, 12])
def test_kill_9_and_resume_equals_a_run_left_alone(whole, rows):
    folder = whole.parent / f"killed-{rows}"
    with start(folder) as process:
        wait_for_rows(folder, rows)
        process.kill()
    resume_experiment(folder, console="quiet")
    assert timeless(folder) == timeless(whole)
    left, right = (read_checkpoint(path / "checkpoints/000030") for path in (folder, whole))
    for name, weights in left.weights.items():
        assert weights.tobytes() == right.weights[name].tobytes()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_exit_130_with_a_checkpoint_of_the_last_row(whole, number):
    folder = whole.parent / number.name
    with start(folder) as process:
        wait_for_rows(folder, 3)
        os.kill(process.pid, number)
        assert process.wait(30) == 130
    last = timeless(folder)[-1]["training_iteration"]
    assert read_checkpoint(folder / "checkpoints/latest").iteration == last
    resume_experiment(folder, console="quiet")
    assert timeless(folder) == timeless(whole)
