"""Runs that are killed and resumed end as if nothing had happened."""

import os
import signal

import pytest
from run_folders import assert_equal_runs, rows, start_rlrun, timeless, wait_for

from rlrun.checkpoint.checkpoint import read_checkpoint
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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_exit_130_with_a_checkpoint_of_the_last_row(whole, number):
    folder = whole.parent / number.name
    with start(folder, 3) as process:
        os.kill(process.pid, number)
        assert process.wait(30) == 130
    last = timeless(folder)[-1]["training_iteration"]
    assert read_checkpoint(folder / "checkpoints/latest").iteration == last
    resume_experiment(folder, console="quiet")
    assert_equal_runs(folder, whole)
