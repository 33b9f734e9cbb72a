"""Runs that begin with what other runs have learned, and go on without them."""

import shutil
from pathlib import Path

import pytest
from run_folders import assert_equal_runs, rows

from rlrun.checkpoint.checkpoint_folder import newest_checkpoint
from rlrun.config.loader import load_experiment
from rlrun.config.problems import ConfigError
from rlrun.experiment.rollout import rollout
from rlrun.experiment.run import iterate_experiment, resume_experiment, run_experiment
from rlrun.experiment.run_folder import RunFolderError
from rlrun.experiment.sweep.sweep import run_sweep
from rlrun.experiment.sweep.trial import TrialRun

FILE = """\
algorithm: PPO
env: CartPole-v1
seed: 1
env_runners: {num_envs_per_env_runner: 2, observation_filter: MeanStdFilter}
model: {hidden: [8]}
training: {train_batch_size: 64, minibatch_size: 32, num_epochs: 1}
checkpoint: {every: 1}
stop: {training_iteration: 2}
"""


def run(*overrides, **options):
    return run_experiment("a.yaml", overrides, console="quiet", **options).folder


@pytest.fixture(autouse=True)
def source(tmp_path, monkeypatch):
    """The latest of runs/a."""
    monkeypatch.chdir(tmp_path)
    Path("a.yaml").write_text(FILE)
    return run()


@pytest.mark.parametrize("place", ["runs/a", "runs/a/latest", "runs/a/latest/checkpoints/best"])
def test_a_run_is_resumed_without_the_run_that_it_began_with(source, place):
    begun, one = f"initial_weights={place}", "stop.training_iteration=1"
    run(begun, run_dir="whole")
    run(begun, one, run_dir="run")
    shutil.rmtree(source)
    resume_experiment("run", ["stop.training_iteration=2"], console="quiet")
    assert_equal_runs("run", "whole")
    named = Path(load_experiment("run/config.yaml").initial_weights)
    assert source in (named, named.parent.parent)
    assert rollout("run", seed=3).episodes == rollout("whole", seed=3).episodes


def test_a_run_that_learns_nothing_plays_as_the_other_does(source):
    frozen = "training.lr=0", "env_runners.use_worker_filter_stats=false"
    begun = run("initial_weights=runs/a", *frozen, "seed=7", run_dir="begun")
    assert rollout(begun, seed=3).episodes == rollout(source, seed=3).episodes


@pytest.mark.parametrize("place", ["runs/a", "runs/a/latest/checkpoints/best"])
def test_the_latest_run_is_the_one_before_and_a_restarted_job_goes_on(source, place):
    begun = f"initial_weights={place}"
    whole = run(begun, "seed=2")  # in runs/a, too
    shutil.rmtree(whole)
    Path("runs/a/latest").unlink()
    Path("runs/a/latest").symlink_to(source.name)
    for row in iterate_experiment("a.yaml", [begun, "seed=2"], console="quiet"):
        if row["training_iteration"] == 1:
            break
    unfinished = Path("runs/a/latest").resolve()
    again = run(begun, "seed=2", resume=True)
    assert again.resolve() == unfinished
    assert load_experiment(again / "config.yaml").initial_weights.startswith(str(source))
    assert [row["training_iteration"] for row in rows(again)] == [1, 2]


def test_a_run_that_has_begun_takes_no_other_weights(source):
    begun = run("initial_weights=runs/a", run_dir="run")
    with pytest.raises(RunFolderError, match="the run has begun; initial_weights is for new runs"):
        resume_experiment(begun, ["initial_weights=null", "stop.training_iteration=3"])
    assert load_experiment("run/config.yaml").initial_weights == str(source)


def test_a_run_that_was_refused_leaves_no_folder():
    with pytest.raises(ConfigError, match=r"model.hidden is \[8\] there and \[9\] here"):
        run("initial_weights=runs/a", "model.hidden=[9]", run_dir="run")
    assert not Path("run").exists()


def test_a_trial_that_goes_on_from_another_trials_checkpoint_reads_no_other_run(source):
    gone = load_experiment("a.yaml", ["initial_weights=gone", "stop.training_iteration=3"])
    checkpoint = newest_checkpoint(source / "checkpoints")
    trial = TrialRun(Path("trial"), gone, take_over=checkpoint)
    assert trial.advance()["training_iteration"] == 3
    trial.close("finished", "")
    run("stop.training_iteration=3", run_dir="whole")
    assert rows("trial")[-1]["episode_return_mean"] == rows("whole")[-1]["episode_return_mean"]


@pytest.mark.faults
def test_trials_of_a_sweep_are_equal_to_single_runs(local_ray, source):
    """Also where paths are relative, and Ray has begun in another folder."""
    space = "{training.lr: {grid: [0.01]}, initial_weights: {grid: [runs/a]}}"
    Path("b.yaml").write_text(f"{FILE}sweep: {{space: {space}}}\n")
    outcome = run_sweep("b.yaml", run_dir="sweep", console="quiet")
    run(f"initial_weights={source}", "training.lr=0.01", run_dir="run")
    assert_equal_runs("run", outcome.folder / outcome.trials[0].folder)
