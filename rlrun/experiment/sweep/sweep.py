"""Running and resuming a sweep: runs of one experiment with settings that Ray Tune searches.

Owns the order of the steps: plan, check, make the folder, run the trials, sum up. It must not know
their details.
"""

import logging
import os
import shutil
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from rlrun.actors.ray_runtime import cluster_resources, is_running, start_ray, stop_ray
from rlrun.checkpoint.checkpoint_folder import newest_checkpoint
from rlrun.checkpoint.files import replace_text
from rlrun.checkpoint.initial_weights import read_sources, with_links_followed
from rlrun.config import registry
from rlrun.config.builder import GivenExperiment, given_experiment
from rlrun.config.dump import to_plain
from rlrun.config.loader import load
from rlrun.config.problems import ConfigError, Problem
from rlrun.config.schema import EnvRunnersConfig, ExperimentConfig
from rlrun.config.trust import TrustError, code_of, signed_yaml, untrusted
from rlrun.config.yaml_tree import Node
from rlrun.data.results import number_at
from rlrun.experiment.report.console import ConsoleStyle, choose_style, known_style, print_error
from rlrun.experiment.report.sinks import read_rows
from rlrun.experiment.run import seed_of, with_seed
from rlrun.experiment.run_folder import FolderLostError, RunFolder, RunFolderError, in_shell
from rlrun.experiment.run_log import RunLog
from rlrun.experiment.stopping import Interrupts
from rlrun.experiment.sweep.plan import Plan, capacity_of_ray
from rlrun.experiment.sweep.points import base_of_points, experiment_at
from rlrun.experiment.sweep.report import (
    SweepConsole,
    SweepOutcome,
    make_sweep_console,
    plot_sweep,
    sweep_lines,
    write_best,
)
from rlrun.experiment.sweep.resources import bundles_of, check_fits, trials_at_once
from rlrun.experiment.sweep.trials import SweepFolder, Trial, TrialTable
from rlrun.experiment.unfinished_run import unfinished_run

log = logging.getLogger(__name__)

_COMPARING = ("asha", "median")
"""Schedulers that compare trials with earlier ones."""


def run_sweep(
    experiment: GivenExperiment,
    overrides: Sequence[str] = (),
    *,
    run_dir: Path | str | None = None,
    resume: bool = False,
    address: str | None = None,
    console: ConsoleStyle | None = None,
) -> SweepOutcome:
    """Run the ``sweep:`` section of an experiment in a new folder, each trial a run folder in it.

    Args:
        experiment, overrides: see `run_experiment`.
        run_dir: the exact folder; default ``runs/<name>/<date>-<time>-sweep-s<seed>``.
        resume: resume the newest unfinished sweep of this configuration, or the one in ``run_dir``,
            if there is one.
        address: Ray cluster to join, whose nodes must see the folder; default a local Ray.
        console: "panel", "lines" or "quiet"; default a panel if the terminal can show it.

    Raises:
        ConfigError: the sweep or one of its points is wrong. ResourceError: a trial needs more
        than is available. RunFolderError: the folder cannot be used. Nothing is started then.
    """
    console = known_style(console)
    experiment, loaded = given_experiment(experiment, overrides)
    unfinished = unfinished_run(SweepFolder, experiment, run_dir) if resume else None
    if unfinished is not None:
        return _resumed(unfinished, (), address=address, console=console, trust=True)
    experiment = with_links_followed(with_seed(experiment))
    planned = Plan(experiment, loaded.tree if loaded else None, address)
    try:
        for each in {repr(one.initial_weights): one for one in planned.experiments}.values():
            read_sources(each)
    except ConfigError as error:
        raise (loaded.placed(error) if loaded else error) from None
    folder = SweepFolder.create(experiment.name, seed_of(experiment), at=run_dir)
    with closing(folder), RunLog(folder.log, print_error) as run_log:
        replace_text(folder.config, signed_yaml(experiment))
        session = _Sweep(experiment, folder, planned.new_table(folder), planned, address, console)
        return session.run(run_log, overrides, planned.warnings(loaded) if loaded else ())


def resume_sweep(
    sweep: Path | str,
    overrides: Sequence[str] = (),
    *,
    address: str | None = None,
    console: ConsoleStyle | None = None,
    trust: bool = False,
) -> SweepOutcome:
    """Resume a sweep: trials that have not ended, or have failed, continue from their checkpoints.

    Args:
        overrides: another ``stop`` as ``KEY=VALUE`` texts; finished trials continue up to it.
        trust: import the code that the sweep names, even if this user has not signed it.

    Raises:
        RunFolderError, ConfigError, ResourceError: it cannot be resumed; the folder is unchanged.
        TrustError: the sweep names code that this user has not signed.
    """
    console = known_style(console)
    folder = SweepFolder.open(Path(sweep))
    return _resumed(folder, overrides, address=address, console=console, trust=trust)


def _resumed(
    folder: SweepFolder,
    overrides: Sequence[str],
    *,
    address: str | None,
    console: ConsoleStyle | None,
    trust: bool,
) -> SweepOutcome:
    with closing(folder), RunLog(folder.log, print_error) as run_log:
        loaded = load(folder.config, overrides, trust=trust)
        experiment = loaded.experiment
        settings = experiment.sweep
        if overrides:
            _require_other_stop_alone(folder, experiment)
        planned = Plan(experiment, loaded.tree, address)
        if folder.trials.exists():
            table = TrialTable.read(folder.trials, metric=settings.metric, mode=settings.mode)
            table.renew([t for t in table.trials if not (folder.path / t.folder).is_dir()])
            if not trust:
                _require_known_code(folder, table, experiment)
            planned.complete(table, loaded.tree)
            _score_anew(folder, table)
            if settings.scheduler is not None and settings.scheduler.use == "pbt":
                _read_settings(folder, table, trust=trust)
        else:
            table = planned.new_table(folder)
        if overrides:
            _move_stop(folder, table, experiment)
        session = _Sweep(experiment, folder, table, planned, address, console)
        return session.run(run_log, overrides, planned.warnings(loaded))


def _require_other_stop_alone(folder: SweepFolder, experiment: ExperimentConfig) -> None:
    """Raise RunFolderError if an experiment differs from the folder's by more than its stop."""
    before = load(folder.config, trust=True).experiment
    if before.model_copy(update={"stop": experiment.stop}) != experiment:
        raise RunFolderError(f"{folder.path}: only stop can be changed")


def _move_stop(folder: SweepFolder, table: TrialTable, experiment: ExperimentConfig) -> None:
    """Let finished trials continue to the experiment's stop, and write it to the folder.

    Raises:
        RunFolderError: the trials have their own stops, or one has no checkpoint to continue from.
    """
    searched = {name.partition(".")[0] for trial in table.trials for name in trial.settings}
    finished = [trial for trial in table.trials if trial.status == "finished"]
    lacking = [
        trial.folder
        for trial in finished
        if newest_checkpoint(RunFolder(folder.path / trial.folder).checkpoints, replay=False)
        is None
    ]
    if experiment.sweep.scheduler is not None or "stop" in searched:
        problem = "its search or scheduler decides when trials stop; resume single trials instead"
    elif lacking:
        problem = f"{lacking[0]} has finished without a checkpoint to continue from"
    else:
        replace_text(folder.config, signed_yaml(experiment))
        for trial in finished:
            trial.status, trial.reason = "interrupted", None
        table.save()
        return
    raise RunFolderError(f"{folder.path}: {problem}")


def _require_known_code(
    folder: SweepFolder, table: TrialTable, experiment: ExperimentConfig
) -> None:
    """Raise TrustError if settings of trials name code that is not in the sweep's own file."""
    known = [value for _, value in code_of(to_plain(experiment))]
    code = [
        found
        for trial in table.trials
        for found in code_of(dict(trial.settings))
        if found[1] not in known
    ]
    if code:
        raise TrustError(untrusted(str(folder.trials), code))


def _score_anew(folder: SweepFolder, table: TrialTable) -> None:
    """Score trials by the file's metric where they have been scored by another one."""
    for trial in table.trials:
        last = trial.training_iteration
        if last is None or trial.metric == table.metric:
            continue
        trial.score = trial.metric = None
        for row in read_rows(folder.path / trial.folder / "metrics.jsonl", warn=False):
            # Later rows are of a trial that was trained longer by itself.
            if (number_at(row, "training_iteration") or 0) <= last:
                trial.take(row, table.metric)


def _read_settings(folder: SweepFolder, table: TrialTable, *, trust: bool) -> None:
    """Read the settings from the trials' own files, since PBT has changed them.

    Other sweeps keep what they have: a file may say the same in another form.
    """
    for trial in table.trials:
        config = folder.path / trial.folder / "config.yaml"
        if not trial.ended and config.is_file():
            tree = load(config, trust=trust).tree
            trial.settings = {
                address: value_at(tree, address, old) for address, old in trial.settings.items()
            }


def value_at(tree: Node, address: str, default: Any) -> Any:
    """The value at an address of a resolved file."""
    node: Node | None = tree
    for part in address.split("."):
        node = None if node is None else node.child(int(part) if part.isdecimal() else part)
    return default if node is None else node.plain()


class _Sweep:
    """One session of a sweep in its folder, used once."""

    def __init__(
        self,
        experiment: ExperimentConfig,
        folder: SweepFolder,
        table: TrialTable,
        plan: Plan,
        address: str | None,
        console: ConsoleStyle | None,
    ) -> None:
        self.experiment, self.folder, self.table = experiment, folder, table
        self.plan, self.address = plan, address
        table.metric = experiment.sweep.metric
        self.num_trials = max(len(table.trials), plan.num_points * len(plan.seeds))
        self.style: ConsoleStyle = console or choose_style()
        self.console: SweepConsole

    def run(
        self, run_log: RunLog, overrides: Sequence[str], warnings: Sequence[Problem]
    ) -> SweepOutcome:
        """Run to the end; in any case note the outcome and close everything."""
        with ExitStack() as stack:
            self.folder.begin_session(resumed_from=None, overrides=overrides)
            self.console = make_sweep_console(
                self.style, self.table, self._title(), self.num_trials
            )
            stack.callback(self.console.close)
            run_log.notice = self.console.notice
            for problem in warnings:
                log.warning("%s", problem.render())
            interrupts = stack.enter_context(Interrupts(self._on_signal))
            try:
                outcome = self._outcome(stack, interrupts)
            except BaseException as error:
                self._require_folder()
                log.error("the sweep failed", exc_info=True)
                with suppress(OSError):  # the disk may be full
                    self.folder.end_session("failed", f"{type(error).__name__}: {error}", None)
                error.add_note(f"resume it with: {SweepFolder.RESUME} {in_shell(self.folder.path)}")
                raise
            end = "failed" if outcome.end == "finished" and outcome.any_failed else outcome.end
            counts = (f"{count} {status}" for status, count in self.table.counts().items())
            self.folder.end_session(end, ", ".join(counts), None)
            self.console.close()
            self.console.summary(sweep_lines(outcome, self.table))
            return outcome

    def _outcome(self, stack: ExitStack, interrupts: Interrupts) -> SweepOutcome:
        """Run the trials until they end or a signal comes, and sum up."""
        try:
            self._run_trials(stack, interrupts)
        except KeyboardInterrupt:
            interrupts.cause = interrupts.cause or "SIGINT"
        self._require_folder()  # trials may have failed before anything else was written
        for trial in self.table.trials:
            if trial.status == "running":
                trial.status, trial.reason = "interrupted", "with the sweep"
        shutil.rmtree(self.folder.tune, ignore_errors=True)  # first, as the disk may be full
        self.table.save()
        return SweepOutcome(
            end="interrupted" if interrupts.requested else "finished",
            folder=self.folder.path,
            trials=tuple(self.table.trials),
            best=write_best(self.folder, self.table),
            plot=self._plot(),
        )

    def _require_folder(self) -> None:
        if not self.folder.config.is_file():
            message = f"{self.folder.path}: the folder of the sweep has disappeared"
            raise FolderLostError(message) from None

    def _run_trials(self, stack: ExitStack, interrupts: Interrupts) -> None:
        from rlrun.experiment.sweep import tune as sweep_tune

        sweep = self.experiment.sweep
        make_optuna = partial(sweep_tune.make_optuna, self.experiment)
        search = sweep_tune.TrialSearch(
            self.table,
            self._identify,
            optuna=make_optuna if sweep.search == "optuna" else None,
            num_points=self.plan.num_points,
            seeds=self.plan.seeds,
        )
        if not search.num_trials:
            return
        self._recall_ended_trials()
        self._start_ray(stack)
        interrupts.defer()
        sweep_tune.run_trials(
            search,
            self.plan.scheduler,
            sweep_tune.Events(self.folder.home, self.table, self.console.changed),
            sweep=sweep,
            at_once=trials_at_once(self.plan.experiments, cluster_resources()),
            home=self.folder.tune.absolute(),
            interrupted=lambda: interrupts.requested,
        )

    def _recall_ended_trials(self) -> None:
        """Pass the scheduler the results of trials that ended in earlier sessions."""
        from rlrun.experiment.sweep.tune import recall

        sweep = self.experiment.sweep
        if sweep.metric is None or sweep.scheduler is None or sweep.scheduler.use not in _COMPARING:
            return
        for trial in self.table.trials:
            if trial.ended:
                rows = read_rows(self.folder.path / trial.folder / "metrics.jsonl")
                recall(self.plan.scheduler, trial, rows, sweep)

    def _start_ray(self, stack: ExitStack) -> None:
        if not is_running():
            stack.callback(stop_ray)
        # Checked for each trial, as all together may need more and take turns.
        limit_s = self.experiment.fault_tolerance.env_runner_start_timeout_s
        start_ray(EnvRunnersConfig(), self.address, start_timeout_s=limit_s)
        if self.address:
            check_fits(self.plan.experiments, capacity_of_ray(f"the cluster at {self.address}"))

    def _identify(self, trial: Trial) -> dict[str, Any]:
        creator, experiment = registry.ENVS.get(self.experiment.env.use), self.experiment
        if self.plan.points:  # Optuna never varies resources
            experiment = experiment_at(self._base, trial.settings, trial.seed)
        return {
            "sweep": os.path.abspath(self.folder.path),
            "cwd": os.getcwd(),
            "trial": trial.trial,
            "seed": trial.seed,
            "metric": self.table.metric,
            "scheduled": self.experiment.sweep.scheduler is not None,
            "bundles": bundles_of(experiment),
            "envs": {} if creator is None else {self.experiment.env.use: creator},
        }

    @cached_property
    def _base(self) -> Node:
        text = self.folder.config.read_text(encoding="utf-8")
        return base_of_points(text, str(self.folder.config))

    def _plot(self) -> Path | None:
        try:
            return plot_sweep(self.table, self.folder.plot)
        except Exception as error:  # of matplotlib: a missing picture must not fail the sweep
            log.warning("no plot: %s: %s", type(error).__name__, error)
            return None

    def _title(self) -> str:
        experiment = self.experiment
        scheduler = experiment.sweep.scheduler
        by = f", {scheduler.use}" if scheduler else ""
        kind, what = ("group", "seeds") if self.table.is_group else ("sweep", "trials")
        return (
            f"rlrun {kind} · {experiment.algorithm} · {experiment.env.use} · "
            f"{self.num_trials} {what}{by}, in {self.folder.path}"
        )

    def _on_signal(self, name: str) -> None:
        again = "; Ctrl-C again stops at once" if name == "SIGINT" else ""
        self.console.notice(f"{name}: finishing the trials' iterations, then saving{again}")
