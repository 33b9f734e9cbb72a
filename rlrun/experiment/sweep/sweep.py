"""A sweep: many runs of one experiment with other settings, searched by Ray Tune.

Owns the order of things: plan, refuse what cannot work, write the folder, run the trials, sum up;
and going on with a sweep. It must not know how any of them is done.
"""

import logging
import os
import secrets
import shutil
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from rlrun.actors.ray_runtime import (
    cluster_resources,
    is_running,
    local_resources,
    node_resources,
    start_ray,
    stop_ray,
)
from rlrun.checkpoint.files import replace_text
from rlrun.config import registry
from rlrun.config.dump import dump_yaml
from rlrun.config.loader import Loaded, load
from rlrun.config.problems import COMMAND_LINE, ConfigError, Origin, Problem
from rlrun.config.schema import EnvRunnersConfig, ExperimentConfig
from rlrun.config.yaml_tree import Node
from rlrun.experiment.interrupts import Interrupts
from rlrun.experiment.report.console import ConsoleStyle, choose_style, print_error
from rlrun.experiment.report.jsonl import read_rows
from rlrun.experiment.run_log import RunLog
from rlrun.experiment.sweep.console import SweepConsole, make_sweep_console
from rlrun.experiment.sweep.folder import SweepFolder
from rlrun.experiment.sweep.outcome import SweepOutcome, sweep_lines, write_best
from rlrun.experiment.sweep.plot import plot_sweep
from rlrun.experiment.sweep.points import PointBuilder, experiments_of, seeds_of, space_of, walk
from rlrun.experiment.sweep.resources import Capacity, bundles_of, check_fits, local_capacity
from rlrun.experiment.sweep.trials import Trial, TrialBook

log = logging.getLogger(__name__)

_REMEMBER = ("asha", "median")
"""Schedulers that compare with what earlier trials had reached, and can be told."""


def run_sweep(
    experiment: ExperimentConfig | Loaded | str | Path,
    overrides: Sequence[str] = (),
    *,
    run_dir: Path | str | None = None,
    address: str | None = None,
    console: ConsoleStyle | None = None,
) -> SweepOutcome:
    """Run the ``sweep:`` section of an experiment in a new folder, each trial a run folder in it.

    Args:
        experiment: path of an experiment file, or what ``load_experiment`` or ``load`` gives.
        overrides: ``KEY=VALUE`` texts that win over the file; only with a path.
        run_dir: the exact folder; default ``runs/<name>/<date>-<time>-sweep-s<seed>``.
        address: of a Ray cluster, whose nodes must see the folder; default is a local Ray.
        console: "panel", "lines" or "quiet"; default is what the terminal can do.

    Raises:
        ConfigError: the sweep is wrong, or one of its points; ResourceError: a trial could never
        start; RunFolderError: the folder cannot be used. Nothing has been started then.

    """
    origins: Node | None = None
    if isinstance(experiment, str | Path):
        experiment = load(experiment, overrides)
    elif overrides:
        raise TypeError("overrides go with the path of an experiment file")
    if isinstance(experiment, Loaded):
        origins, experiment = experiment.tree, experiment.experiment
    if experiment.seed is None:
        experiment = experiment.model_copy(update={"seed": secrets.randbelow(2**31)})
    planned = _Plan(experiment, origins, address)
    assert experiment.seed is not None
    if run_dir is None:
        folder = SweepFolder.create(experiment.name, experiment.seed)
    else:
        folder = SweepFolder.create_at(Path(run_dir))
    with closing(folder), RunLog(folder.log, print_error) as run_log:
        replace_text(folder.config, dump_yaml(experiment))
        book = planned.new_book(folder)
        return _Sweep(experiment, folder, book, planned, address, console).go(run_log, overrides)


def resume_sweep(
    sweep: Path | str, *, address: str | None = None, console: ConsoleStyle | None = None
) -> SweepOutcome:
    """Go on with a sweep: trials that ended are not run again, others from their checkpoints.

    Trials that failed are tried again, too.

    Raises:
        RunFolderError, ConfigError, ResourceError: it cannot be resumed; the folder is unchanged.

    """
    folder = SweepFolder.open(Path(sweep))
    with closing(folder), RunLog(folder.log, print_error) as run_log:
        experiment = load(folder.config).experiment
        settings = experiment.sweep
        planned = _Plan(experiment, None, address)
        if folder.trials.exists():
            book = TrialBook.read(folder.trials, metric=settings.metric, mode=settings.mode)
            _take_over_settings(folder, book)
        else:
            book = planned.new_book(folder)
        return _Sweep(experiment, folder, book, planned, address, console).go(run_log, ())


def _take_over_settings(folder: SweepFolder, book: TrialBook) -> None:
    """What PBT has changed on the way stands in the trials' own files, which are the truth."""
    for trial in book.trials:
        config = folder.path / trial.folder / "config.yaml"
        if not trial.ended and config.is_file():
            tree = load(config).tree
            trial.settings = {
                address: value_at(tree, address, old) for address, old in trial.settings.items()
            }


def value_at(tree: Node, address: str, default: Any) -> Any:
    """The value that a resolved file holds at an address."""
    node: Node | None = tree
    for part in address.split("."):
        node = None if node is None else node.child(int(part) if part.isdigit() else part)
    return default if node is None else node.plain()


class _Plan:
    """What is known before anything starts: points, seeds, scheduler; and that all can run."""

    def __init__(
        self, experiment: ExperimentConfig, origins: Node | None, address: str | None
    ) -> None:
        sweep = experiment.sweep
        if not sweep.space:
            origin = COMMAND_LINE if origins is None else Origin(origins.origin.source)
            message = "nothing to sweep: {space: {training.lr: {loguniform: [1e-4, 1e-2]}}}"
            raise ConfigError([Problem(origin, "sweep", message)])
        from rlrun.experiment.sweep.search import make_scheduler

        assert experiment.seed is not None
        self.seeds = seeds_of(experiment)
        self.points = [] if sweep.search == "optuna" else list(walk(sweep, experiment.seed))
        self.num_points = len(self.points) or sweep.trials or 1
        self.scheduler = make_scheduler(experiment)
        self.experiments = experiments_of(experiment, self.points, origins) or [experiment]
        if address is None and not is_running():
            check_fits(self.experiments, local_capacity(local_resources()))

    def new_book(self, folder: SweepFolder) -> TrialBook:
        """The trials of all points that are known already."""
        sweep = self.experiments[0].sweep
        book = TrialBook(folder.trials, (), metric=sweep.metric, mode=sweep.mode)
        for number, settings in enumerate(self.points, 1):
            book.add(number, settings, self.seeds)
        book.save()
        return book


class _Sweep:
    """One session of a sweep in its folder; used once."""

    def __init__(
        self,
        experiment: ExperimentConfig,
        folder: SweepFolder,
        book: TrialBook,
        plan: _Plan,
        address: str | None,
        console: ConsoleStyle | None,
    ) -> None:
        self.experiment, self.folder, self.book = experiment, folder, book
        self.plan, self.address = plan, address
        book.metric = experiment.sweep.metric
        self.num_trials = max(len(book.trials), plan.num_points * len(plan.seeds))
        self.style: ConsoleStyle = console or choose_style()
        self.console: SweepConsole

    def go(self, run_log: RunLog, overrides: Sequence[str]) -> SweepOutcome:
        """Run to the end; every way out notes the outcome and frees what was taken."""
        with ExitStack() as stack:
            self.folder.begin_session(resumed_from=None, overrides=overrides)
            self.console = make_sweep_console(self.style, self.book, self._title(), self.num_trials)
            stack.callback(self.console.close)
            run_log.notice = self.console.notice
            interrupts = stack.enter_context(Interrupts(self._on_signal))
            try:
                self._run_trials(stack, interrupts)
            except KeyboardInterrupt:
                interrupts.signal_name = interrupts.signal_name or "SIGINT"
            except BaseException as error:
                log.error("the sweep failed", exc_info=True)
                self.folder.end_session("failed", f"{type(error).__name__}: {error}", None)
                error.add_note(f"go on with it by: rlrun sweep --resume {self.folder.path}")
                raise
            outcome = self._sum_up(interrupts.requested)
            self.folder.end_session(outcome.end, str(self.book.counts()), None)
            self.console.close()
            self.console.summary(sweep_lines(outcome, self.book))
            return outcome

    def _run_trials(self, stack: ExitStack, interrupts: Interrupts) -> None:
        from rlrun.experiment.sweep import search as sweep_search
        from rlrun.experiment.sweep import tune as sweep_tune

        sweep = self.experiment.sweep
        assert self.experiment.seed is not None
        optuna = None
        if sweep.search == "optuna":
            optuna = sweep_search.make_optuna(self.experiment, self.experiment.seed)
        search = sweep_search.BookSearch(
            self.book,
            self._identify,
            optuna=optuna,
            num_points=self.plan.num_points,
            seeds=self.plan.seeds,
        )
        if not search.num_trials:
            return
        self._remember()
        self._start_ray(stack)
        interrupts.defer()
        sweep_tune.run_trials(
            search,
            self.plan.scheduler,
            sweep_tune.Events(self.book, self.console.changed),
            sweep=sweep,
            home=self.folder.tune.absolute(),
            interrupted=lambda: interrupts.requested,
        )

    def _remember(self) -> None:
        """Tell the scheduler of trials that ended in earlier sessions."""
        from rlrun.experiment.sweep.tune import replay

        sweep = self.experiment.sweep
        if sweep.scheduler is None or sweep.scheduler.use not in _REMEMBER:
            return
        assert sweep.metric is not None
        for trial in self.book.trials:
            if trial.ended:
                rows = read_rows(self.folder.path / trial.folder / "metrics.jsonl")
                replay(self.plan.scheduler, trial, rows, sweep.metric)

    def _start_ray(self, stack: ExitStack) -> None:
        if not is_running():
            stack.callback(stop_ray)
        started_here = self.address is None and not is_running()
        # The trials are checked one by one below; all together they may wait for each other.
        start_ray(EnvRunnersConfig(), self.address)
        if not started_here:
            where = f"the cluster at {self.address}" if self.address else "the running Ray"
            capacity = Capacity(cluster_resources(), tuple(node_resources()), where)
            check_fits(self.plan.experiments, capacity)

    def _identify(self, trial: Trial) -> dict[str, Any]:
        creator = registry.ENVS.get(self.experiment.env.use)
        return {
            "sweep": os.path.abspath(self.folder.path),
            "trial": trial.trial,
            "seed": trial.seed,
            "metric": self.book.metric,
            "bundles": bundles_of(self._experiment_of(trial)),
            "envs": {} if creator is None else {self.experiment.env.use: creator},
        }

    def _experiment_of(self, trial: Trial) -> ExperimentConfig:
        if not self.plan.points:  # Optuna does not vary resources
            return self.experiment
        text = self.folder.config.read_text(encoding="utf-8")
        return PointBuilder(text, str(self.folder.config)).build(trial.settings, trial.seed)

    def _sum_up(self, interrupted: bool) -> SweepOutcome:
        for trial in self.book.trials:
            if trial.status == "running":
                trial.status, trial.reason = "interrupted", "with the sweep"
        self.book.save()
        shutil.rmtree(self.folder.tune, ignore_errors=True)
        return SweepOutcome(
            end="interrupted" if interrupted else "finished",
            folder=self.folder.path,
            trials=tuple(self.book.trials),
            best=write_best(self.folder, self.book),
            plot=self._plot(),
        )

    def _plot(self) -> Path | None:
        try:
            return plot_sweep(self.book, space_of(self.experiment.sweep), self.folder.plot)
        except Exception as error:  # of matplotlib's; a picture is not worth the sweep
            log.warning("no plot: %s: %s", type(error).__name__, error)
            return None

    def _title(self) -> str:
        experiment = self.experiment
        scheduler = experiment.sweep.scheduler
        by = f", {scheduler.use}" if scheduler else ""
        return (
            f"rlrun sweep · {experiment.algorithm} · {experiment.env.use} · "
            f"{self.num_trials} trials{by}, in {self.folder.path}"
        )

    def _on_signal(self, name: str) -> None:
        again = "; Ctrl-C again stops at once" if name == "SIGINT" else ""
        self.console.notice(f"{name}: trials finish their iteration and save{again}")
