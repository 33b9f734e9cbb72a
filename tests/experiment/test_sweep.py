"""Sweeps on a real Ray: trials equal single runs, failures stay single, sweeps are resumed."""

import json
import os
import shutil
import sys

import numpy as np
import pytest
from counting_algorithm import CountingAlgorithm
from run_folders import assert_equal_runs, meta, rows, timeless

from rlrun.actors.ray_runtime import ResourceError
from rlrun.checkpoint.checkpoint import read_checkpoint
from rlrun.config.loader import load_experiment
from rlrun.config.problems import InputError
from rlrun.data.results import lookup
from rlrun.experiment.rollout import rollout
from rlrun.experiment.run import resume_experiment, run_experiment, unfinished_run
from rlrun.experiment.run_folder import RunFolderError
from rlrun.experiment.sweep.sweep import resume_sweep, run_sweep
from rlrun.experiment.sweep.trial import IDENTITY, SweepTrial, TrialRun
from rlrun.experiment.sweep.trials import SweepFolder

PPO = """
algorithm: PPO
env: CartPole-v1
seed: 5
stop: {training_iteration: 4}
env_runners: {num_envs_per_env_runner: 4}
model: {hidden: [8]}
training: {train_batch_size: 64, minibatch_size: 32, num_epochs: 1}
"""


pytestmark = pytest.mark.usefixtures("local_ray")


def sweep(folder, text):
    (folder / "exp.yaml").write_text(text)
    return run_sweep(folder / "exp.yaml", run_dir=folder / "sweep", console="quiet")


@pytest.fixture
def counting_sweep(counting):
    """Run a sweep of the counting algorithm, given its ``sweep:`` section."""

    def run(section, *, iterations=6):
        text = counting.read_text().replace("iteration: 6", f"iteration: {iterations}")
        return sweep(counting.parent, f"{text}sweep: {section}")

    return run


def test_a_trial_that_the_running_ray_cannot_hold_leaves_no_folder(tmp_path):
    grid = "{env_runners.num_env_runners: {grid: [512]}}"
    sized = PPO.replace("train_batch_size: 64", "train_batch_size: 2048")
    with pytest.raises(ResourceError, match="need 512 CPUs, but the running Ray has"):
        sweep(tmp_path, f"{sized}sweep: {{space: {grid}}}")
    assert not (tmp_path / "sweep").exists()


def trial_rows(outcome):
    text = (outcome.folder / "trials.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def statuses(outcome):
    return [trial.status for trial in outcome.trials]


@pytest.mark.faults
def test_trials_are_equal_to_single_runs(tmp_path, capfd):
    text = PPO + "sweep: {space: {training.lr: {grid: [1e-3, 1e-2]}}, seeds: 2}"
    outcome = sweep(tmp_path, text)
    assert capfd.readouterr().err == ""
    assert [(t.settings["training.lr"], t.seed, t.status) for t in outcome.trials] == [
        (1e-3, 5, "finished"), (1e-3, 6, "finished"), (1e-2, 5, "finished"), (1e-2, 6, "finished"),
    ]  # fmt: skip
    for trial in outcome.trials[1:3]:  # of two processes, or the first two of one process
        folder, alone = outcome.folder / trial.folder, tmp_path / f"alone-{trial.trial}"
        words = [f"training.lr={trial.settings['training.lr']}", f"seed={trial.seed}"]
        run_experiment(
            tmp_path / "exp.yaml", [*words, "sweep.space={}", "sweep.seeds=null"],
            run_dir=alone, console="quiet",
        )  # fmt: skip
        expected = load_experiment(tmp_path / "exp.yaml", words)
        found = load_experiment(folder / "config.yaml")
        assert found.model_copy(update={"sweep": expected.sweep}) == expected
        assert_equal_runs(folder, alone)
    folder = outcome.folder / "trials/0001"
    assert len(rollout(folder, episodes=2).episodes) == 2
    resume_experiment(folder, ["stop.training_iteration=5"], console="quiet")
    assert len(timeless(folder)) == 5
    assert load_experiment(outcome.folder / "best.yaml").seed == outcome.best.seed
    assert load_experiment(outcome.folder / "sweep.yaml").sweep.seeds == 2


@pytest.mark.parametrize(("scheduled", "steps"), [(False, [6]), (True, [1, 2, 3, 4, 5, 6])])
def test_quick_iterations_are_one_step_of_tune_unless_a_scheduler_decides(
    counting, scheduled, steps
):
    trial = counting_trial(counting, "episode_return_mean", scheduled=scheduled)
    results = [trial.step()]
    while not results[-1]["done"]:
        results.append(trial.step())
    assert [result["training_iteration"] for result in results] == steps
    assert len(rows(counting.parent / "sweep/trials/0001")) == 6
    trial.stop()


def counting_trial(counting, metric, *, scheduled=True):
    """The first trial of a sweep over the counting algorithm, without the sweep."""
    folder = counting.parent / "sweep"
    folder.mkdir()
    shutil.copy(counting, folder / "sweep.yaml")
    identity = {"sweep": str(folder), "cwd": os.getcwd(), "trial": 1, "seed": 3, "metric": metric}
    place = {"scheduled": scheduled, "bundles": [{"CPU": 1.0}], "envs": {}}
    return SweepTrial({IDENTITY: {**identity, **place}})


def test_a_trial_notes_the_command_that_runs_the_sweep(counting, monkeypatch):
    trial, command = counting_trial(counting, "episode_return_mean"), ["rlrun", "sweep", "a.yaml"]
    monkeypatch.setattr("sys.argv", ["worker.py", "--of-ray"])
    (counting.parent / "sweep/meta.json").write_text(json.dumps({"sessions": [{"argv": command}]}))
    trial.step()
    trial.stop()
    assert meta(counting.parent / "sweep/trials/0001")["sessions"][0]["argv"] == command


def test_a_metric_that_an_evaluation_may_bring_is_waited_for(counting):
    trial = counting_trial(counting, "evaluation/success_rate")
    assert trial.step()["done"], "to the end of the run, as the number never came"
    trial.stop()


def test_a_trial_says_why_it_failed_whatever_failed(counting):
    trial = counting_trial(counting, "no/such")
    with pytest.raises(InputError, match="no result has the key no/such"):
        trial.step()
    folder = counting.parent / "sweep/trials/0001"
    assert meta(folder)["outcome"] == "failed"
    assert "no result has the key no/such" in (folder / "log.txt").read_text()


def test_code_that_calls_sys_exit_does_not_end_the_process_of_its_trial(counting, monkeypatch):
    def exits(algorithm):
        sys.exit(3)

    trial = counting_trial(counting, "episode_return_mean")
    monkeypatch.setattr(CountingAlgorithm, "train", exits)
    with pytest.raises(RuntimeError, match="SystemExit: 3") as caught:
        trial.step()
    assert "in exits\n    sys.exit(3)" in caught.value.__notes__[-1]
    folder = counting.parent / "sweep/trials/0001"
    assert meta(folder)["sessions"][0]["reason"] == "SystemExit: 3"


@pytest.mark.faults
def test_a_failed_trial_does_not_end_the_others_and_is_run_again(counting_sweep):
    space = "{training.fail_at: {grid: [null, 3]}, training.gain: {grid: [1.0, 2.0]}}"
    outcome = counting_sweep(f"{{space: {space}}}")
    assert statuses(outcome) == ["finished", "failed"] * 2
    assert outcome.any_failed
    assert not outcome.all_failed
    assert meta(outcome.folder)["outcome"] == "failed"
    assert outcome.best.trial == 3
    failed = outcome.trials[1]
    assert failed.reason == "RuntimeError: the fake fails as planned"
    assert 'raise RuntimeError("the fake' in (outcome.folder / failed.log).read_text()
    assert [row["status"] for row in trial_rows(outcome)] == ["finished", "failed"] * 2
    log = outcome.folder / "trials/0001/log.txt"
    before = log.read_text()
    again = resume_sweep(outcome.folder, console="quiet")
    assert statuses(again) == ["finished", "failed"] * 2
    assert log.read_text() == before
    assert (outcome.folder / failed.log).read_text().count("the fake fails") > 2


@pytest.mark.faults
def test_seeds_alone_are_a_sweep_that_a_restarted_job_goes_on_with(counting, capsys):
    """A finished sweep is left alone."""

    def start():
        return run_sweep("fake.yaml", ["sweep.seeds=2"], resume=True, console="lines")

    first = start()
    assert [(trial.seed, trial.settings) for trial in first.trials] == [(3, {}), (4, {})]
    assert (first.best, first.plot, first.any_failed) == (None, None, False)
    mean = np.mean([trial.score for trial in first.trials])
    summary = capsys.readouterr().out
    assert f"episode_return_mean {mean:.2f}".rstrip("0").rstrip(".") in summary
    assert f"rlrun compare {first.folder}" in summary
    run_experiment("fake.yaml", ["seed=4"], run_dir="alone", console="quiet")
    assert_equal_runs(first.folder / "trials/0002", "alone")
    experiment = load_experiment("fake.yaml", ["sweep.seeds=2"])
    assert unfinished_run(SweepFolder, experiment, None) is None
    with pytest.raises(RunFolderError, match="another configuration; `rlrun sweep --resume"):
        unfinished_run(SweepFolder, load_experiment("fake.yaml"), first.folder)
    (first.folder / "meta.json").write_text(json.dumps({"outcome": "running"}))  # killed at the end
    again = start()
    assert (again.folder, statuses(again)) == (first.folder, ["finished"] * 2)


@pytest.mark.faults
def test_a_group_is_trained_longer(counting):
    longer = ["stop.training_iteration=9"]
    run_experiment("fake.yaml", ["seed=4", *longer], run_dir="alone", console="quiet")
    group = run_sweep("fake.yaml", ["sweep.seeds=2"], console="quiet").folder
    for wanted in (["stop.training_iteration=8"], longer, longer):  # and once more, after a kill
        outcome = resume_sweep(group, wanted, console="quiet")
    assert statuses(outcome) == ["finished"] * 2
    assert [row["training_iteration"] for row in trial_rows(outcome)] == [9, 9]
    assert len(rows(group / "trials/0001")) == 9
    assert_equal_runs(group / "trials/0002", "alone")
    assert statuses(resume_sweep(group, console="quiet")) == ["finished"] * 2


@pytest.mark.faults
@pytest.mark.parametrize(
    ("section", "overrides", "says"),
    [
        ("{seeds: 1}", ["training.gain=9"], "only stop can be changed"),
        ("{seeds: 1}", ["sweep.seeds=2"], "only stop can be changed"),
        (
            "{space: {stop.training_iteration: {grid: [1]}}}",
            [],
            "its search or scheduler decides",
        ),
        (
            "{space: {training.gain: {grid: [1]}}, scheduler: asha}",
            [],
            "its search or scheduler decides",
        ),
        ("{seeds: 1}", [], "0001 has finished without a checkpoint"),
    ],
)
def test_what_cannot_be_trained_longer_is_refused(counting_sweep, section, overrides, says):
    folder = counting_sweep(section, iterations=1).folder
    if "checkpoint" in says:
        shutil.rmtree(folder / "trials/0001/checkpoints")
    before = (folder / "sweep.yaml").read_text(), (folder / "trials.jsonl").read_text()
    with pytest.raises(RunFolderError, match=says):
        resume_sweep(folder, ["stop.training_iteration=9", *overrides], console="quiet")
    assert before == ((folder / "sweep.yaml").read_text(), (folder / "trials.jsonl").read_text())


@pytest.mark.faults
def test_a_sweep_of_failures_has_no_best(counting_sweep):
    outcome = counting_sweep("{space: {training.fail_at: {grid: [1]}}}")
    assert outcome.all_failed
    assert outcome.best is None
    assert not (outcome.folder / "best.yaml").exists()


@pytest.mark.faults
@pytest.mark.parametrize(
    "scheduler",
    [
        "{use: asha, grace_period: 2, reduction_factor: 2}",
        "{use: median, grace_period: 2, min_samples_required: 1}",
    ],
)
def test_a_scheduler_stops_worse_trials_and_leaves_whole_runs(counting_sweep, scheduler):
    space = "{training.gain: {grid: [4, 3, 2, 1]}}"
    outcome = counting_sweep(f"{{space: {space}, concurrent: 1, scheduler: {scheduler}}}")
    assert statuses(outcome) == ["finished"] + ["stopped"] * 3
    last = outcome.folder / outcome.trials[3].folder
    assert read_checkpoint(last / "checkpoints/latest").iteration == 2
    assert meta(last)["outcome"] == "finished"
    # A trial of a later session is compared with the trials of the first.
    found = trial_rows(outcome)
    found[3] |= {"status": "waiting", "score": None}
    (outcome.folder / "trials.jsonl").write_text("".join(json.dumps(row) + "\n" for row in found))
    shutil.rmtree(outcome.folder / "trials/0004")
    again = resume_sweep(outcome.folder, console="quiet")
    assert again.trials[3].status == "stopped"


@pytest.mark.faults
def test_hyperband_halves_a_full_bracket(counting_sweep):
    # max_t 9 and a factor of 3 make brackets of 3 trials (never halved) and of 5 (judged at 3).
    space = "{training.gain: {grid: [1, 2, 3, 4, 5, 6, 7, 8]}}"
    scheduler = "{use: hyperband, reduction_factor: 3}"
    outcome = counting_sweep(f"{{space: {space}, scheduler: {scheduler}}}", iterations=9)
    ended = {trial.settings["training.gain"]: trial.status for trial in outcome.trials}
    assert [ended[gain] for gain in (1, 2, 3)] == ["finished"] * 3
    assert [ended[gain] for gain in (4, 5, 6)] == ["stopped"] * 3
    assert [ended[gain] for gain in (7, 8)] == ["finished"] * 2


@pytest.mark.faults
def test_optuna_suggests_points_and_is_resumed(counting_sweep):
    pytest.importorskip("optuna")
    space = "{training.gain: {uniform: [0, 9]}}"
    outcome = counting_sweep(f"{{space: {space}, search: optuna, trials: 3, seeds: 2}}")
    assert [(t.point, t.seed) for t in outcome.trials] == [
        (1, 3), (1, 4), (2, 3), (2, 4), (3, 3), (3, 4),
    ]  # fmt: skip
    assert len({t.settings["training.gain"] for t in outcome.trials}) == 3
    lines = (outcome.folder / "trials.jsonl").read_text().splitlines(keepends=True)
    (outcome.folder / "trials.jsonl").write_text("".join(lines[:3]))
    again = resume_sweep(outcome.folder, console="quiet")
    assert [t.settings for t in again.trials[:3]] == [t.settings for t in outcome.trials[:3]]


@pytest.mark.faults
def test_a_population_shares_weights_and_settings(tmp_path):
    text = PPO.replace("iteration: 4", "iteration: 6") + (
        "sweep: {space: {training.lr: {loguniform: [1e-4, 1e-2]}}, trials: 3, "
        "metric: learners/default_policy/learner_stats/entropy, "
        "scheduler: {use: pbt, perturbation_interval: 2, quantile_fraction: 0.34}}"
    )
    outcome = sweep(tmp_path, text)
    assert statuses(outcome) == ["finished"] * 3
    folders = [outcome.folder / trial.folder for trial in outcome.trials]
    address = "learners/default_policy/learner_stats/lr"
    rates = [{lookup(row, address) for row in rows(folder)} for folder in folders]
    assert max(map(len, rates)) > 1
    for trial, folder in zip(outcome.trials, folders, strict=True):
        found = rows(folder)
        assert [row["training_iteration"] for row in found] == [1, 2, 3, 4, 5, 6]
        # The file, the table and the optimizer have the same settings.
        config = load_experiment(folder / "config.yaml")
        assert config.seed == 5
        assert config.training.lr == trial.settings["training.lr"]
        statistics = found[-1]["learners"]["default_policy"]["learner_stats"]
        assert statistics["lr"] == trial.settings["training.lr"]


def test_weights_and_settings_of_another_trial_reach_learner_and_runner(tmp_path, monkeypatch):
    (tmp_path / "exp.yaml").write_text(PPO)
    stop = "stop.training_iteration=3"
    start = "training.kl_coeff=0.2"
    file = tmp_path / "exp.yaml"
    run_experiment(file, [stop, start], run_dir=tmp_path / "donor", console="quiet")
    ahead = ["stop.training_iteration=5", "checkpoint.every=1", start, "seed=9"]
    run_experiment(file, ahead, run_dir=tmp_path / "taker", console="quiet")
    donor = read_checkpoint(tmp_path / "donor/checkpoints/latest")
    changed = load_experiment(
        file, ["training.lr=0.0123", "training.kl_coeff=0.7", "seed=9", "stop.training_iteration=9"]
    )
    run = TrialRun(tmp_path / "taker", changed, take_over=donor)
    kept = {path.resolve().name for path in (tmp_path / "taker/checkpoints").iterdir()}
    assert kept == {"000003"}, "none that is taken for damaged"
    for name, weights in run.algorithm.get_weights().items():
        np.testing.assert_array_equal(weights, donor.weights[name])

    from rlrun.learning.optimizers import FlatAdam

    used, acted = [], []
    runner, step = run.algorithm.env_runner_group.local_env_runner, FlatAdam.step
    sample = type(runner).sample_fragment

    def spy_step(self, lr):
        used.append(lr)
        step(self, lr)

    def spy_sample(self, request, weights=None, **options):
        acted.append(np.array(weights["default_policy"]))
        return sample(self, request, weights, **options)

    monkeypatch.setattr(FlatAdam, "step", spy_step)
    monkeypatch.setattr(type(runner), "sample_fragment", spy_sample)
    flat = run.algorithm.learner.get_weights()
    row = run.advance()
    assert row["training_iteration"] == 4
    assert set(used) == {0.0123}
    np.testing.assert_array_equal(acted[0], flat)
    assert row["learners"]["default_policy"]["learner_stats"]["kl_coeff"] == 0.7
    run.close("interrupted", "the test is over")
    found = timeless(tmp_path / "taker")
    assert found[2] == timeless(tmp_path / "donor")[2]
    assert [row["training_iteration"] for row in found] == [1, 2, 3, 4]
    again = TrialRun(
        tmp_path / "taker", changed
    )  # continues from its own checkpoint, not from the donor's
    assert again.last_row["training_iteration"] == 4
    again.close("interrupted", "the test is over")
