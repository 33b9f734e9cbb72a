"""Points of a sweep and their order, resources, schedulers, ranking of trials."""

import errno
import io
import math
import os
import re
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.console import Console
from sweep_files import FILE, experiment

from rlrun.actors.ray_runtime import ResourceError, Resources
from rlrun.config.checks import most_iterations
from rlrun.config.dump import dump_yaml
from rlrun.config.loader import resolve
from rlrun.config.problems import ConfigError, InputError
from rlrun.config.schema import MultiAgentConfig, SweepConfig
from rlrun.config.yaml_tree import parse_yaml
from rlrun.experiment.report.plots import draw_chart
from rlrun.experiment.run_folder import RunFolderError, resolve_run
from rlrun.experiment.sweep.effects import effects_of
from rlrun.experiment.sweep.plan import Plan
from rlrun.experiment.sweep.points import experiments_of, seeds_of, settings_text, walk
from rlrun.experiment.sweep.report import SweepOutcome, draw_table, sweep_lines
from rlrun.experiment.sweep.resources import Capacity, bundles_of, check_fits, trials_at_once
from rlrun.experiment.sweep.sweep import resume_sweep, run_sweep
from rlrun.experiment.sweep.trial import IDENTITY
from rlrun.experiment.sweep.trials import SweepFolder, Trial, TrialTable
from rlrun.experiment.sweep.tune import (
    Events,
    TrialSearch,
    failure,
    make_optuna,
    make_scheduler,
    recall,
    run_trials,
)


def points(space, seed=1, **settings):
    return list(walk(SweepConfig(space=space, **settings), seed))


def test_the_first_key_varies_fastest_in_any_alphabetical_order():
    found = points({"training.lr": {"grid": [1, 2]}, "env.a": {"grid": [3, 4, 5]}})
    assert [(p["training.lr"], p["env.a"]) for p in found] == [
        (1, 3), (2, 3), (1, 4), (2, 4), (1, 5), (2, 5),
    ]  # fmt: skip


def test_grids_are_compared_on_the_same_draws():
    space = {"a.x": {"uniform": [0, 1]}, "a.y": {"grid": [1, 2]}}
    found = points(space, trials=3)
    assert [p["a.y"] for p in found] == [1, 2] * 3
    draws = [p["a.x"] for p in found]
    assert draws[::2] == draws[1::2]
    assert len(set(draws)) == 3


def test_draws_follow_from_the_seed_and_more_trials_begin_with_the_same():
    space = {"a.x": {"loguniform": [1e-4, 1]}, "a.y": {"choice": ["p", "q"]}}
    assert points(space, trials=3) == points(space, trials=5)[:3]
    assert points(space, trials=3) != points(space, seed=2, trials=3)


@pytest.mark.parametrize(
    ("kind", "arguments", "allowed"),
    [
        ("uniform", [2, 3], lambda x: 2 <= x <= 3),
        ("loguniform", [1e-4, 1e-2], lambda x: 1e-4 <= x <= 1e-2),
        ("randint", [2, 5], lambda x: x in (2, 3, 4) and type(x) is int),
        ("quniform", [8, 32, 8], lambda x: x in (8, 16, 24, 32)),
        ("choice", [1, 9], lambda x: x in (1, 9)),
    ],
)
def test_draws_stay_in_their_bounds(kind, arguments, allowed):
    assert all(allowed(p["a"]) for p in points({"a": {kind: arguments}}, trials=50))


def test_the_seeds_of_a_point():
    assert seeds_of(experiment()) == [7]
    sweep = "sweep: {space: {training.lr: {grid: [1]}}, seeds: "
    assert seeds_of(experiment(sweep + "3}")) == [7, 8, 9]
    assert seeds_of(experiment(sweep + "[5, 1]}")) == [5, 1]


def test_a_point_with_contradicting_settings_is_refused():
    sweep = experiment("sweep: {space: {training.minibatch_size: {grid: [32, 128]}}}")
    with pytest.raises(ConfigError, match=r"with minibatch_size=128: a minibatch of 128 rows"):
        experiments_of(sweep, list(walk(sweep.sweep, 1)), None)


def test_an_algorithm_without_the_settings_of_the_file_s_is_one_problem():
    sweep = experiment("sweep: {space: {algorithm: {grid: [PPO, A2C]}}}")
    says = "algorithm: with algorithm=A2C: training.*unknown key.*write a file for each algorithm"
    with pytest.raises(ConfigError, match=says) as caught:
        experiments_of(sweep, list(walk(sweep.sweep, 1)), None)
    assert len(caught.value.problems) == 1


def test_settings_on_one_line():
    assert settings_text({"training.lr": 0.00012345, "a.gamma": 1}) == "lr=0.0001234 gamma=1"
    assert settings_text({"a.x": 1, "b.x": 2}) == "a.x=1 b.x=2"
    assert settings_text({"a": None, "b": True, "c": "text"}) == "a=null b=true c=text"


def capacity(*nodes):
    total = Resources(sum(n.get("CPU", 0) for n in nodes), sum(n.get("GPU", 0) for n in nodes))
    return Capacity(total, nodes, "this machine")


def test_a_trial_reserves_its_runners_and_devices():
    assert bundles_of(experiment()) == [{"CPU": 1.0}]
    runners = experiment("env_runners: {num_env_runners: 2, num_cpus_per_env_runner: 0.5}")
    assert bundles_of(runners) == [{}, {"CPU": 0.5}, {"CPU": 0.5}]
    nothing = experiment("env_runners: {num_env_runners: 1, num_cpus_per_env_runner: 0}")
    assert bundles_of(nothing) == [{"CPU": 1.0}]
    assert bundles_of(experiment("learners: {device: cuda}")) == [{"CPU": 1.0, "GPU": 1.0}]
    policies = MultiAgentConfig(
        policies={"p": {}, "q": {}, "frozen": {"train": False}, "scratch": {"use": "a:B"}}
    )
    learners = experiment("learners: {num_learners: 2}")
    several = learners.model_copy(update={"multi_agent": policies})
    assert bundles_of(several) == [{"CPU": 1.0}] * 5


def test_a_trial_that_needs_too_much_is_refused_with_the_arithmetic():
    check_fits([experiment("env_runners: {num_env_runners: 2}")], capacity({"CPU": 2.0}))
    with pytest.raises(
        ResourceError, match=r"need 8 CPUs, but this machine has 2: set env_runners"
    ):
        check_fits([experiment("env_runners: {num_env_runners: 8}")], capacity({"CPU": 2.0}))
    with pytest.raises(ResourceError, match=r"needs 1 CPU, 1 GPU on one machine; available: 2 CPU"):
        check_fits([experiment("learners: {device: cuda}")], capacity({"CPU": 2.0}))
    big = experiment("env_runners: {num_env_runners: 1, num_cpus_per_env_runner: 3}")
    with pytest.raises(ResourceError, match="an env runner needs 3 CPU on one machine"):
        check_fits([big], capacity({"CPU": 2.0}, {"CPU": 2.0}))


def test_as_many_trials_run_at_once_as_the_scarcest_resource_holds():
    total = Resources(8.0, 2.0, {"licence": 3.0})
    runners = experiment("env_runners: {num_env_runners: 2, num_cpus_per_env_runner: 0.5}")
    licensed = experiment(
        "env_runners: {num_env_runners: 2, custom_resources_per_env_runner: {licence: 1}}"
    )
    assert trials_at_once([experiment()], total) == 8
    assert trials_at_once([runners], total) == 8
    assert trials_at_once([licensed], total) == 1
    assert trials_at_once([experiment("learners: {device: cuda}")], total) == 2
    assert trials_at_once([licensed, experiment()], total) == 8
    assert trials_at_once([licensed], Resources(8.0)) == 1  # of a cluster that may grow


@pytest.mark.parametrize(
    ("section", "asked_for_points", "together"),
    [
        ("", None, 3),
        ("scheduler: asha", None, 3),
        ("", object(), 1),
        ("scheduler: hyperband", 0, 4),
    ],
)
def test_processes_start_together_unless_points_depend_on_results(
    section, asked_for_points, together, tmp_path, monkeypatch
):
    text = "space: {training.lr: {grid: [1e-4, 1e-3, 1e-2, 1e-1]}}\n  metric: episode_return_mean"
    sweep = experiment(f"sweep:\n  {text}\n  {section}\n")
    table = TrialTable(tmp_path / "trials.jsonl", (), metric="episode_return_mean", mode="max")
    for point, settings in enumerate(walk(sweep.sweep, 1), 1):
        table.add(point, settings, [7])
    starting = []
    monkeypatch.setattr(
        "ray.tune.run", lambda *_, **__: starting.append(os.environ["TUNE_MAX_PENDING_TRIALS_PG"])
    )
    run_trials(
        TrialSearch(table, lambda trial: {}, optuna=asked_for_points),
        make_scheduler(sweep),
        Events(tmp_path, table, lambda trial: None),
        sweep=sweep.sweep,
        at_once=3,
        home=tmp_path / "tune",
        interrupted=lambda: False,
    )
    assert starting == [str(together)]


def search_of_optuna(table, *, num_points, seeds=(7,)):
    pytest.importorskip("optuna")
    sweep = experiment(
        "sweep: {space: {training.lr: {loguniform: [1e-4, 1e-2]}}, trials: 1, search: optuna}"
    )
    optuna = partial(make_optuna, sweep)
    return TrialSearch(table, lambda trial: {}, optuna=optuna, num_points=num_points, seeds=seeds)


def test_a_resumed_search_of_optuna_goes_on_as_if_it_had_not_been_interrupted(tmp_path):
    found = []
    for sessions in ([14], [3, 12, 14]):  # Optuna's first ten points do not depend on others
        found.append(table(tmp_path))
        for last in sessions:
            search = search_of_optuna(found[-1], num_points=last)
            while search.num_trials:
                name = f"trial-{len(found[-1].trials)}"
                lr = search.suggest(name)["training.lr"]
                trial = found[-1].trials[-1]
                trial.status, trial.score = "finished", -abs(math.log(lr / 1e-3))
                search.on_trial_complete(name)
    points, again = ([trial.settings for trial in each.trials] for each in found)
    assert len({point["training.lr"] for point in points}) == 14
    assert points == again


def test_optuna_is_told_of_a_point_once_its_failed_trials_have_been_tried_again(
    tmp_path, monkeypatch
):
    found = table(tmp_path, (1, "failed", None), (1, "failed", None))
    told = []
    monkeypatch.setattr(
        "ray.tune.search.optuna.OptunaSearch.add_evaluated_point",
        lambda self, settings, score: told.append(score),
    )
    search = search_of_optuna(found, num_points=4)
    for name in ("first", "second", "third"):
        search.suggest(name)
    assert told == []
    for trial, name in zip(found.trials, ("first", "second"), strict=False):
        trial.status, trial.score = "finished", 2.0 * trial.trial
        search.on_trial_complete(name)
    search.suggest("fourth")
    assert told == [3.0]


@pytest.fixture
def killed_sweep(tmp_path, monkeypatch):
    """A sweep of two trials, both finished; one folder was removed. Ray is not started."""
    text = dump_yaml(experiment("sweep: {space: {training.lr: {grid: [1e-4, 1e-3]}}}"))
    (tmp_path / "sweep.yaml").write_text(text)
    (tmp_path / "meta.json").write_text('{"outcome": "running"}')
    found = table(tmp_path, (1, "finished", 5.0), (2, "finished", 6.0))
    for trial, lr in zip(found.trials, (1e-4, 1e-3), strict=True):
        trial.seed, trial.settings = 7, {"training.lr": lr}
    found.save()
    (tmp_path / "trials/0002").mkdir(parents=True)
    for name in ("start_ray", "stop_ray", "cluster_resources"):
        monkeypatch.setattr(f"rlrun.experiment.sweep.sweep.{name}", Mock())
    monkeypatch.setattr("rlrun.experiment.sweep.sweep.trials_at_once", Mock(return_value=1))
    return tmp_path


def test_a_trial_whose_folder_was_removed_is_run_again(killed_sweep, monkeypatch):
    left = []
    monkeypatch.setattr(
        "rlrun.experiment.sweep.tune.run_trials",
        lambda search, *_, **__: left.append(search.num_trials),
    )
    outcome = resume_sweep(killed_sweep, console="quiet")
    assert left == [1]
    assert [(each.status, each.score) for each in outcome.trials] == [
        ("waiting", None),
        ("finished", 6.0),
    ]
    assert "its process was killed\n" in (killed_sweep / "log.txt").read_text()


def test_the_table_of_a_new_sweep_has_its_metric_and_mode(tmp_path):
    space = "space: {training.lr: {grid: [1e-4, 1e-3]}}"
    sweep = experiment(f"sweep: {{{space}, metric: env_steps, mode: min}}")
    found = Plan(sweep, None, None).new_table(SweepFolder(tmp_path))
    for trial, score in zip(found.trials, (2.0, 1.0), strict=True):
        trial.status, trial.score = "finished", score
    assert found.best() is found.trials[1]
    assert found.metric == "env_steps"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("0.0001", "0.0002", "sweep.space: the trials have the point lr=0.0001, which"),
        ("0.0001, 0.001", "0.0001", "the trials have the point lr=0.001, which it does not give"),
        ("training.lr", "training.gamma", "the trials vary training.lr, and not what it describes"),
        ("seeds: null", "seeds: 2", "sweep.seeds: the trials have the seeds [7], and not [7, 8]"),
    ],
)
def test_a_sweep_whose_space_was_edited_is_not_resumed(killed_sweep, old, new, says):
    file = killed_sweep / "sweep.yaml"
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    before = (killed_sweep / "trials.jsonl").read_text()
    with pytest.raises(ConfigError, match=rf"sweep\.yaml:\d+:\d+: .*{re.escape(says)}"):
        resume_sweep(killed_sweep, console="quiet")
    assert (killed_sweep / "trials.jsonl").read_text() == before


@pytest.mark.parametrize(
    ("old", "new", "number"),
    [
        ('"trial": 1, ', "", 1),
        ('"trial": 1', '"trial": 2', 1),
        ("}\n", "}\n\n", 2),
        ("6.0", '"a"', 2),
    ],
)
def test_a_sweep_whose_table_was_damaged_is_not_resumed(killed_sweep, old, new, number):
    file = killed_sweep / "trials.jsonl"
    damaged = file.read_text().replace(old, new)
    file.write_text(damaged)
    says = rf"trials\.jsonl: cannot be read: line {number} is not that of trial {number}; restore"
    with pytest.raises(RunFolderError, match=says):
        resume_sweep(killed_sweep, console="quiet")
    assert file.read_text() == damaged


def test_a_resumed_sweep_has_the_points_that_were_added_to_its_file(killed_sweep, monkeypatch):
    file = killed_sweep / "sweep.yaml"
    file.write_text(file.read_text().replace("0.001]", "0.001, 0.01]"))
    monkeypatch.setattr("rlrun.experiment.sweep.tune.run_trials", Mock())
    outcome = resume_sweep(killed_sweep, console="quiet")
    assert [trial.settings["training.lr"] for trial in outcome.trials] == [1e-4, 1e-3, 1e-2]
    assert outcome.trials[2].status == "waiting"


def test_a_sweep_with_another_metric_ranks_by_it(killed_sweep, monkeypatch):
    found = TrialTable.read(killed_sweep / "trials.jsonl", metric="m", mode="max")
    for trial in found.trials:
        home = killed_sweep / trial.folder
        home.mkdir(parents=True, exist_ok=True)
        lines = [
            f'{{"training_iteration": {i}, "env_steps": {i * trial.trial}, "m": {i}}}\n'
            for i in (1, 2, 3)
        ]
        (home / "metrics.jsonl").write_text("".join(lines))
        trial.training_iteration, trial.metric = 2, "m"  # trained longer later
    found.save()
    file = killed_sweep / "sweep.yaml"
    file.write_text(file.read_text().replace("metric: episode_return_mean", "metric: env_steps"))
    monkeypatch.setattr("rlrun.experiment.sweep.sweep._Sweep._run_trials", Mock())
    outcome = resume_sweep(killed_sweep, console="quiet")
    assert [(trial.score, trial.training_iteration) for trial in outcome.trials] == [(2, 2), (4, 2)]


def test_a_resumed_sweep_without_a_best_trial_keeps_no_earlier_one(killed_sweep, monkeypatch):
    (killed_sweep / "best.yaml").write_text("# of an earlier session\n")
    monkeypatch.setattr("rlrun.experiment.sweep.sweep._Sweep._run_trials", Mock())
    assert resume_sweep(killed_sweep, console="quiet").best is None
    assert not (killed_sweep / "best.yaml").exists()


def test_a_sweep_is_resumed_again_whatever_form_its_settings_have(tmp_path, monkeypatch):
    wrapper = "TimeAwareObservation"
    grid = f"grid: [[], [{{use: {wrapper}}}]]"
    sweep = experiment(f"sweep: {{space: {{env_runners.env_wrappers: {{{grid}}}}}}}")
    (tmp_path / "sweep.yaml").write_text(dump_yaml(sweep))
    plan = Plan(sweep, None, None)
    found = plan.new_table(SweepFolder(tmp_path))
    for trial, one in zip(found.trials, plan.experiments, strict=True):
        trial.status = "interrupted"
        (tmp_path / trial.folder).mkdir(parents=True)
        (tmp_path / trial.folder / "config.yaml").write_text(dump_yaml(one))
    found.save()
    monkeypatch.setattr("rlrun.experiment.sweep.sweep._Sweep._run_trials", Mock())
    for _ in range(2):
        outcome = resume_sweep(tmp_path, console="quiet")
        assert [list(trial.settings.values()) for trial in outcome.trials] == [
            [[]],
            [[{"use": wrapper}]],
        ]


def test_a_sweep_continues_on_a_full_disk_and_says_at_its_end_how_to_resume_it(
    killed_sweep, monkeypatch
):
    def refused(path, text):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    def run_trials(search, scheduler, events, **_):
        monkeypatch.setattr("rlrun.experiment.sweep.trials.replace_text", refused)
        monkeypatch.setattr("rlrun.experiment.run_folder.replace_text", refused)
        trial = SimpleNamespace(config={IDENTITY: {"trial": 1}, "training.lr": 1e-4})
        events.on_trial_start(1, [], trial)
        events.on_trial_start(1, [], trial)

    monkeypatch.setattr("rlrun.experiment.sweep.tune.run_trials", run_trials)
    with pytest.raises(OSError, match="No space left") as caught:
        resume_sweep(killed_sweep, console="quiet")
    assert caught.value.__notes__ == [f"resume it with: rlrun sweep --resume {killed_sweep}"]
    warning = "trials.jsonl: No space left on device; the sweep continues, and tries again\n"
    assert (killed_sweep / "log.txt").read_text().count(warning) == 1


@pytest.mark.parametrize(("low", "high"), [(2e-4, 9e-3), (1e-4, 1e-1)])
def test_the_labels_of_a_log_scale_do_not_overlap(low, high, tmp_path):
    found = table(tmp_path, (1, "finished", 5.0), (2, "finished", 6.0))
    for trial, value in zip(found.trials, (low, high), strict=True):
        trial.settings = {"a": value}
    (effect,) = effects_of(found)
    figure = Figure(figsize=(4.2, 3.2), dpi=120, layout="constrained")
    canvas, axes = FigureCanvasAgg(figure), figure.subplots()
    draw_chart(axes, effect.chart("score", None))
    canvas.draw()
    boxes = [label.get_window_extent() for label in axes.get_xticklabels()]
    assert len(boxes) > 1
    assert all(left.x1 < right.x0 for left, right in pairwise(boxes))


def test_a_sweep_that_cannot_run_leaves_no_folder(tmp_path):
    file = tmp_path / "exp.yaml"
    file.write_text(FILE + "sweep: {space: {env_runners.num_env_runners: {grid: [1, 512]}}}")
    with pytest.raises((ResourceError, ConfigError)):
        run_sweep(file, ["training.train_batch_size=1024"], run_dir=tmp_path / "sweep")
    with pytest.raises(ConfigError, match="nothing to sweep"):
        run_sweep(experiment(), run_dir=tmp_path / "sweep")
    assert not (tmp_path / "sweep").exists()


def test_a_sweep_is_not_a_run(tmp_path):
    (tmp_path / "sweep.yaml").write_text("")
    with pytest.raises(RunFolderError, match="a sweep; name one of its trials"):
        resolve_run(tmp_path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "stop: {episode_return_mean: 475}\nsweep: {scheduler: asha",
            "need a bound on the length of runs",
        ),
        (
            "sweep: {scheduler: {use: asha, time_attr: time_s}",
            r"set stop.time_s or sweep.scheduler",
        ),
        ("sweep: {scheduler: {use: asha, grace_period: 0}", "wrong arguments of asha"),
        ("sweep: {scheduler: {use: pbt, quantile_fraction: 2}", "wrong arguments of pbt"),
    ],
)
def test_a_scheduler_that_tune_refuses_is_named(text, says):
    base = FILE.replace("stop: {env_steps: 6400}\n", "") if "stop" in text else FILE
    text = base + text + ", space: {training.lr: {grid: [1, 2]}}}"
    with pytest.raises(InputError, match=says):
        make_scheduler(resolve(parse_yaml(text, "exp.yaml")).experiment)


def test_the_longest_run_follows_from_its_stop_criteria():
    sweep = experiment("sweep: {space: {training.lr: {grid: [1, 2]}}, scheduler: asha}")
    assert most_iterations(sweep) == 100  # 6400 env steps of 64
    make_scheduler(sweep)


@pytest.mark.parametrize(("unit", "longest"), [("training_iteration", 200), ("env_steps", 6400)])
def test_a_scheduler_counts_in_the_unit_of_its_time_attr(unit, longest, monkeypatch):
    """Up to the end of the longest run, also in the results of trials of earlier sessions."""
    monkeypatch.setattr("rlrun.experiment.sweep.tune.AsyncHyperBandScheduler", made := Mock())
    sweep = experiment(
        f"sweep: {{scheduler: {{use: asha, time_attr: {unit}}}, metric: episode_return_mean, "
        "space: {training.train_batch_size: {grid: [64, 32]}}}"
    )
    points = experiments_of(sweep, list(walk(sweep.sweep, 1)), None)
    scheduler = make_scheduler(sweep, points)
    assert made.call_args.kwargs["max_t"] == longest
    rows = [
        {"training_iteration": i, "env_steps": 64 * i, "episode_return_mean": mean}
        for i, mean in enumerate([None, 5.0, 6.0], 1)
    ]
    recall(scheduler, Trial(1, 1, 7, {}), iter(rows), sweep.sweep)
    passed = [call.args[2] for call in scheduler.on_trial_result.call_args_list]
    assert [result[unit] for result in passed] == [row[unit] for row in rows[1:]]


def table(tmp_path, *rows, mode="max"):
    trials = [
        Trial(trial=i, point=point, seed=1, settings={"a": i}, status=status, score=score)
        for i, (point, status, score) in enumerate(rows, 1)
    ]
    return TrialTable(tmp_path / "trials.jsonl", trials, metric="m", mode=mode)


def test_trials_that_differ_in_their_seed_alone_are_a_group(tmp_path):
    assert not table(tmp_path).is_group, "as Optuna has suggested none yet"
    assert not table(tmp_path, (1, "waiting", None)).is_group
    seeds = [Trial(trial=i, point=1, seed=i, settings={}) for i in (1, 2)]
    assert TrialTable(tmp_path / "trials.jsonl", seeds, metric="m", mode="max").is_group


def test_trials_are_ranked_by_score_and_status(tmp_path):
    found = table(
        tmp_path,
        (1, "finished", 5.0),
        (2, "stopped", 9.0),
        (3, "failed", 8.0),
        (4, "finished", 7.0),
        (5, "running", None),
    )
    assert [trial.trial for trial in found.ranked()] == [4, 1, 5, 2, 3]
    assert found.best().trial == 4


def test_the_live_table_shows_the_best_trials_first(tmp_path):
    found = table(tmp_path, (1, "failed", None), (2, "running", 5.0), (3, "finished", 7.0))
    terminal = Console(width=80, file=io.StringIO())
    terminal.print(draw_table(found, "a sweep", elapsed_s=61, left_s=9, rows=2, width=80))
    title, heads, *trials, footer = terminal.file.getvalue().splitlines()
    assert (title, heads.split()) == ("a sweep", ["trial", "a", "m", "env", "steps"])
    assert [line.split()[:3] for line in trials] == [["3", "3", "7"], ["2", "2", "5"]]
    assert "1 failed · 1 running · 1 finished · 1 more not shown · 0:01:01 · ~0:00:09" in footer


def test_a_trial_is_one_line_of_the_terminal(tmp_path):
    found = table(tmp_path, (1, "finished", 9.0), (2, "failed", None))
    for trial in found.trials:
        trial.reason = "of a reason that is much too long " * 3
    terminal = Console(file=io.StringIO(), width=60)
    terminal.print(draw_table(found, "a sweep", elapsed_s=1, left_s=None, rows=9, width=60))
    lines = terminal.file.getvalue().splitlines()
    assert len(lines) == 5
    assert lines[2].rstrip().endswith("…")
    assert max(map(len, lines)) <= 60


def test_a_stopped_trial_is_not_the_best(tmp_path):
    found = table(tmp_path, (1, "finished", 90.0), (2, "stopped", 10.0), mode="min")
    assert found.best().trial == 1


def test_the_best_point_has_the_best_mean_over_seeds(tmp_path):
    rows = [(1, "finished", 9.0), (1, "finished", 1.0), (2, "finished", 6.0), (2, "finished", 7.0)]
    assert table(tmp_path, *rows).best().trial == 4
    assert table(tmp_path, *rows, mode="min").best().trial == 2


def test_the_commands_after_a_sweep_name_its_folder_and_the_stop_that_was_reached(tmp_path):
    found = table(tmp_path, (1, "finished", 9.0))
    found.trials[0].reason = "training_iteration 4 >= 4"
    outcome = SweepOutcome("finished", Path("my sweep"), tuple(found.trials), found.best())
    commands = [line.split(None, 1)[1] for line in sweep_lines(outcome, found) if "rlrun" in line]
    resume = "rlrun train --resume 'my sweep/trials/0001' stop.training_iteration=..."
    assert commands[-2:] == ["rlrun train 'my sweep/best.yaml'", resume]


def test_the_table_is_read_as_it_was_written(tmp_path):
    found = table(tmp_path, (1, "finished", 9.0), (2, "failed", None))
    found.save()
    again = TrialTable.read(tmp_path / "trials.jsonl", metric="m", mode="max")
    assert again.trials == found.trials


@pytest.mark.parametrize(
    ("last_lines", "reason"),
    [
        (["package.errors.LostError: gone"], "LostError: gone"),
        (
            ["RuntimeError: as planned", "step failed: env 'my.envs:Maze', runner 0, step 9"],
            "RuntimeError: as planned; step failed: env 'my.envs:Maze', runner 0, step 9",
        ),
        ([], "unknown"),
    ],
)
def test_the_reason_of_a_failure_has_the_exception_of_an_environment(last_lines, reason, tmp_path):
    traceback = ["Traceback (most recent call last):", "  in step"] if last_lines else []
    (tmp_path / "error.txt").write_text("\n".join([*traceback, *last_lines, ""]))
    assert failure(str(tmp_path / "error.txt")) == reason
