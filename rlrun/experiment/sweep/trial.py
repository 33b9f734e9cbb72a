"""One trial of a sweep: an ordinary run that Ray Tune drives step by step.

Owns opening, advancing and closing a run that Tune may end, continuing from another trial's
checkpoint, and the interface for Tune. It must not know which trials there are.
"""

import json
import shutil
import sys
import time
import traceback
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from ray import tune

from rlrun.actors.runner_host import errors_for_the_driver
from rlrun.checkpoint.checkpoint import Checkpoint, read_checkpoint
from rlrun.checkpoint.checkpoint_folder import newest_checkpoint
from rlrun.checkpoint.initial_weights import with_paths_from
from rlrun.config import registry
from rlrun.config.problems import InputError
from rlrun.config.schema import ExperimentConfig
from rlrun.config.yaml_tree import Node
from rlrun.data.results import Row, addresses, flat_numbers, lookup, number_at
from rlrun.experiment.report.console import print_error
from rlrun.experiment.run import RunSession
from rlrun.experiment.run_folder import FolderLostError, RunFolder, RunFolderError
from rlrun.experiment.run_log import RunLog
from rlrun.experiment.session import last_session
from rlrun.experiment.stopping import may_come
from rlrun.experiment.sweep.points import base_of_points, experiment_at, python_values
from rlrun.experiment.sweep.trials import SweepFolder, trial_name

IDENTITY = "_trial"
"""Key of the config for facts about the trial; all other keys are addresses of settings."""

REACHED = "_reached"
"""Key of a result: the reason of the run's end; missing if Tune stopped it."""

SHARE = "_share"
"""Key of a result: the used share of the run's budget."""

STEP_S = 1.0
"""Seconds of iterations in one step of Tune, unless a scheduler decides after each iteration. A
step costs Tune a few milliseconds, as much as an iteration of a small environment. The table of
trials is updated this often, and an interrupted trial continues for this long."""

_CHECKPOINT = "checkpoint"
_OWNER = "owner.json"
_LOCK_TIMEOUT_S = 60.0  # for another process that is closing the folder


class TrialRun(RunSession):
    """A session of a new or resumed run in its folder, one iteration at a time.

    Args:
        path: the run folder, which may be missing.
        experiment: experiment of the trial, with its seed.
        take_over: another trial's checkpoint to continue from instead of the folder's newest; its
            row becomes the last row of this run.
    """

    def __init__(
        self, path: Path, experiment: ExperimentConfig, *, take_over: Checkpoint | None = None
    ) -> None:
        with ExitStack() as stack:
            folder = stack.enter_context(closing(_opened(path)))
            run_log = stack.enter_context(RunLog(folder.log, print_error))
            checkpoint = take_over or newest_checkpoint(folder.checkpoints)
            super().__init__(experiment, folder, checkpoint, None, "quiet")
            if not folder.config.exists():
                self.write_config()
            self.begin(stack, run_log, ())
            self._was_done = self.done
            if not self._was_done:
                self._start(stack, take_over)
            self._stack = stack.pop_all()

    def _start(self, stack: ExitStack, take_over: Checkpoint | None) -> None:
        try:
            self.algorithm = self.build(stack)
            if take_over is not None:
                self.checkpoints.files.forget_from(take_over.iteration)
                self.save(self.algorithm, take_over.row)
        except BaseException as error:
            self.note_failure(error)
            raise

    @property
    def share(self) -> float:
        """The used share of the run's budget, 0 to 1; goals count only when they are reached."""
        if self.last_row is None:
            return 0.0
        return 1.0 if self.done else self.stop.used_budget(self.last_row) or 0.0

    def advance(self) -> Row:
        """Run and report one iteration, and write a checkpoint if one is due."""
        return self.end_iteration(self.algorithm, self.algorithm.train())

    def saved(self) -> Path | None:
        """The newest checkpoint, written now unless the run is done; None if there is none."""
        if self.last_row is not None and not self.done:
            self.save(self.algorithm, self.last_row)
        return self.checkpoints.newest

    def close(self, outcome: str, reason: str) -> None:
        """Write a last checkpoint if wanted, end the session, and close everything."""
        with self._stack:
            wanted = self.experiment.checkpoint.at_end or outcome == "interrupted"
            try:
                if wanted and self.last_row is not None and not self._was_done:
                    self.save(self.algorithm, self.last_row)
            except BaseException as error:
                self.note_failure(error)
                raise
            self.note_end(outcome, reason)

    def abandon(self, error: BaseException) -> None:
        """Note the reason of a failure, and close everything.

        Raises:
            FolderLostError: the folder is lost, and the last state was saved elsewhere.
        """
        lost = self.folder.path
        with self._stack:
            self.note_failure(error)
        if self.folder.path != lost:
            message = f"{error}; its last state is in {self.folder.path}"
            raise FolderLostError(message) from error


def _opened(path: Path) -> RunFolder:
    """Open or make the folder and lock it; another process may be about to close it."""
    deadline = time.monotonic() + _LOCK_TIMEOUT_S
    while True:
        try:
            if (path / RunFolder.CONFIG).is_file():
                return RunFolder.open(path)
            shutil.rmtree(path, ignore_errors=True)  # killed before its first file
            return RunFolder.create_at(path)
        except RunFolderError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


class SweepTrial(tune.Trainable):
    """One trial of a sweep, as Ray Tune sees it.

    A process serves one trial after another. A run is opened by its first step and closed when its
    trial ends or is paused, so that the folder is whole and unlocked.

    The config holds settings by address and, under IDENTITY:

    ===========  ==========================================================
    sweep        the sweep's folder
    cwd          the sweep's working directory
    trial, seed  numbers
    metric       result key to compare by, or None
    scheduled    whether a scheduler decides by the trial's results
    bundles      Ray resources: of this process, then of each env runner
    envs         environments of `register_env` that the experiment uses
    ===========  ==========================================================
    """

    _base: Node | None = None  # of the sweep, whatever the trial
    _run: TrialRun | None = None
    _take_over: Checkpoint | None = None

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> Any:
        """The trial's bundles as a placement group, reserved whole or not at all."""
        return tune.PlacementGroupFactory(config[IDENTITY]["bundles"])

    def setup(self, config: dict[str, Any]) -> None:
        """Store the facts about the trial; the first step opens its run."""
        self._identity = config[IDENTITY]
        self._settings = {key: value for key, value in config.items() if key != IDENTITY}
        self._take_over = None

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Become another trial, or the same one with other settings."""
        self.finish("interrupted", "paused by the sweep")
        self.setup(new_config)
        return True

    @errors_for_the_driver()
    def step(self) -> dict[str, Any]:
        """Iterate until the metric has a number, as Tune's schedulers require.

        Without a scheduler, iterations of `STEP_S` are one step.
        """
        try:
            run, metric = self._opened(), self._identity["metric"]
            earliest = time.monotonic() + (0.0 if self._identity["scheduled"] else STEP_S)
            while not run.done:
                row = run.advance()
                known = metric is None or _number(row, metric) is not None
                if known and time.monotonic() >= earliest:
                    break
            numbers = self._numbers(run)
            if run.done:
                self.finish("finished", run.stop_reason())
            return numbers
        except BaseException as error:
            self._fail(error)
            raise

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Copy the run's newest checkpoint to Tune's directory, for other trials."""
        source = self._opened().saved()
        if source is not None:
            shutil.copytree(source, Path(checkpoint_dir) / _CHECKPOINT)
        (Path(checkpoint_dir) / _OWNER).write_text(json.dumps(self._identity["trial"]))

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Continue from a checkpoint of another trial; its own ones are in the run folder."""
        owner = json.loads((Path(checkpoint) / _OWNER).read_text())
        if owner != self._identity["trial"]:
            self.finish("interrupted", f"continues from trial {owner}")
            self._take_over = read_checkpoint(Path(checkpoint) / _CHECKPOINT)

    def finish(self, outcome: str, reason: str) -> None:
        """Close the run, if one is open."""
        run, self._run = self._run, None
        if run is not None:
            run.close(outcome, reason)

    def cleanup(self) -> None:
        """End the process; a run that is still open is interrupted with the sweep."""
        self.finish("interrupted", "with the sweep")

    def _opened(self) -> TrialRun:
        if self._run is None:
            registry.ENVS.update(self._identity["envs"])
            if self._base is None:
                folder = SweepFolder(Path(self._identity["sweep"]))
                text = folder.config.read_text(encoding="utf-8")
                self._base = base_of_points(text, str(folder.config))
                # For meta.json; a worker's own are Ray's.
                sys.argv = last_session(folder.read_meta()).get("argv", sys.argv)
            settings, seed = python_values(self._settings), self._identity["seed"]
            experiment = experiment_at(self._base, settings, seed)
            experiment = with_paths_from(experiment, self._identity["cwd"])
            self._run = TrialRun(self._path(), experiment, take_over=self._take_over)
            self._take_over = None
        return self._run

    def _path(self) -> Path:
        return Path(self._identity["sweep"]) / trial_name(self._identity["trial"])

    def _numbers(self, run: TrialRun) -> dict[str, Any]:
        """The numbers of the last result by address, with the keys for Tune and the driver."""
        row: Row = run.last_row or {}
        whole = {key: lookup(row, key) for key in ("training_iteration", "env_steps")}
        reached = {REACHED: run.stop_reason()} if run.done else {}
        return {**flat_numbers(row), **whole, **reached, SHARE: run.share, "done": run.done}

    def _fail(self, error: BaseException) -> None:
        """Write the traceback to the trial's log, unless the run has done so."""
        run, self._run = self._run, None
        if run is not None:
            run.abandon(error)
            return
        log = RunFolder(self._path()).log
        if not log.exists():
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_text("".join(traceback.format_exception(error)), encoding="utf-8")


def _number(row: Row, metric: str) -> float | None:
    """The number of the metric; None if there is none yet."""
    try:
        lookup(row, metric)
    except KeyError:
        if may_come(metric, row):
            return None
        hint = registry.suggestion(metric, addresses(row))
        raise InputError(f"sweep.metric: no result has the key {metric}{hint}") from None
    return number_at(row, metric)
