"""Running the trials of a book with Ray Tune, silently.

Owns Tune's start and what its events mean for the book. It must not know how a sweep is planned,
shown or summed up.
"""

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune import Callback, Stopper
from ray.tune.schedulers import HyperBandScheduler
from ray.tune.stopper import NoopStopper

from rlrun.config.schema import SweepConfig
from rlrun.data.results import number_at
from rlrun.experiment.sweep.points import plain_settings
from rlrun.experiment.sweep.search import BookSearch
from rlrun.experiment.sweep.trainable import IDENTITY, REACHED, SHARE, SweepTrial
from rlrun.experiment.sweep.trials import Trial, TrialBook

Notice = Callable[[Trial], None]

_KEPT_CHECKPOINTS = 4  # of Tune's copies: PBT must still find the one that it told a trial to take

_DEATH = ("The actor is dead", "The actor died", "ActorDiedError", "RayActorError")
"""What Ray's errors say of a process that is gone."""

_SILENT = {
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # relative paths in the file mean what they mean to `train`
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # Interrupts handles it
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # a trial may end before it has the metric
    "TUNE_GLOBAL_CHECKPOINT_S": "3600",  # Tune's own state, which a resumed sweep does not need
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
    "TUNE_WARN_THRESHOLD_S": "3600",
}


def run_trials(
    search: BookSearch,
    scheduler: Any,
    events: "Events",
    *,
    sweep: SweepConfig,
    home: Path,
    interrupted: Callable[[], bool],
) -> None:
    """Run all trials that ``search`` names; returns when they have ended or at an interruption.

    A trial that fails ends nothing. Ray must have been started.
    """
    # A searcher is asked for a trial at a time; HyperBand halves a bracket once it is full.
    ahead = {"TUNE_MAX_PENDING_TRIALS_PG": str(search.num_trials)}
    fills_brackets = isinstance(scheduler, HyperBandScheduler)
    with _quiet_tune(_SILENT | ahead if fills_brackets else _SILENT):
        tune.run(
            SweepTrial,
            name=home.name,
            storage_path=str(home.parent),
            search_alg=search,
            scheduler=scheduler,
            num_samples=search.num_trials,
            max_concurrent_trials=sweep.concurrent,
            callbacks=[events],
            stop=_WhenInterrupted(interrupted),
            checkpoint_config=tune.CheckpointConfig(num_to_keep=_KEPT_CHECKPOINTS),
            reuse_actors=True,
            raise_on_failed_trial=False,
            verbose=0,
        )


class _WhenInterrupted(Stopper):
    """Ends all trials, each at the end of its iteration, once the sweep is interrupted."""

    def __init__(self, interrupted: Callable[[], bool]) -> None:
        self._interrupted = interrupted

    def __call__(self, trial_id: str, result: Any) -> bool:
        return False

    def __reduce__(self) -> tuple[type[NoopStopper], tuple[()]]:
        """Tune writes its stopper down; the signal of this session means nothing to another."""
        return (NoopStopper, ())

    def stop_all(self) -> bool:
        """Asked in every turn of Tune's loop."""
        return self._interrupted()


class Events(Callback):
    """Keeps the book up to date, and closes the runs of trials that Tune puts aside.

    Args:
        book: written whenever a trial's status changes.
        changed: called with a trial when anything about it has changed.
        tick: called in every turn of Tune's loop.
    """

    def __init__(
        self, book: TrialBook, changed: Notice, tick: Callable[[], None] = lambda: None
    ) -> None:
        self._book, self._changed, self._tick = book, changed, tick
        self._processes: dict[int, Any] = {}

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """A process has begun to serve the trial."""
        self._note(trial, "running", None)

    def on_trial_restore(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """It goes on from a checkpoint: its own, or another trial's with changed settings."""
        self._note(trial, "running", None)

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        """One iteration, or several without a number for the metric."""
        record = self._record(trial)
        record.take(result, self._book.metric)
        record.share = float(result.get(SHARE, record.share))
        self._processes[record.trial] = trial.temporary_state.ray_actor
        if REACHED in result:
            record.status, record.reason = "finished", result[REACHED]
        elif record.status != "running":
            self._note(trial, "running", None)
        self._changed(record)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """It has what it was asked for, or the scheduler stops it."""
        record = self._record(trial)
        if record.status != "finished":
            record.reason = "by the scheduler"
            self._put_aside(record, "finished", "stopped by the sweep's scheduler")
        record.share = 1.0
        self._note(trial, record.status, record.reason)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """It raised, or its process is gone; the others go on."""
        record = self._record(trial)
        record.log = f"{record.folder}/log.txt"
        self._note(trial, "failed", failure(trial.error_file))

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Have the processes of paused trials let go of the run folders.

        Tune keeps such a process for whichever trial comes next, and says nothing to it.
        """
        for trial in trials:
            record = self._record(trial)
            if trial.status == "PAUSED" and record.trial in self._processes:
                self._put_aside(record, "interrupted", "paused by the sweep's scheduler")
        self._tick()

    def _put_aside(self, record: Trial, outcome: str, reason: str) -> None:
        process = self._processes.pop(record.trial, None)
        if process is not None:
            process.finish.remote(outcome, reason)

    def _record(self, trial: Any) -> Trial:
        return self._book[trial.config[IDENTITY]["trial"]]

    def _note(self, trial: Any, status: Any, reason: str | None) -> None:
        record = self._record(trial)
        record.status, record.reason = status, reason
        record.settings = plain_settings({key: trial.config[key] for key in record.settings})
        self._book.save()
        self._changed(record)


def failure(error_file: str | None) -> str:
    """Why a trial failed, in one line, from the text that Tune keeps of its error."""
    text = "" if error_file is None else Path(error_file).read_text(encoding="utf-8")
    if any(words in text for words in _DEATH):
        return "its process died: killed, or out of memory"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "unknown"


def replay(scheduler: Any, trial: Trial, rows: Iterator[Mapping[str, Any]], metric: str) -> None:
    """Let a scheduler see what a trial of an earlier session had reached, so that it compares."""
    stub = tune.experiment.Trial(SweepTrial.__name__, stub=True, trial_id=f"earlier-{trial.trial}")
    scheduler.on_trial_add(None, stub)
    told: list[dict[str, Any]] = []
    for row in rows:
        score = number_at(row, metric)
        if score is not None:
            told.append({"training_iteration": row["training_iteration"], metric: score})
            scheduler.on_trial_result(_NoTrials(), stub, told[-1])
    if told:
        scheduler.on_trial_complete(None, stub, told[-1])


class _NoTrials:
    """The part of Tune's controller that schedulers ask about other trials."""

    def get_live_trials(self) -> list[Any]:
        """None: the earlier session is over."""
        return []


@contextmanager
def _quiet_tune(variables: Mapping[str, str]) -> Iterator[None]:
    """Tune as a library: no console, no files but its own, no log lines on the terminal."""
    before = {name: os.environ.get(name) for name in variables}
    ray_log = logging.getLogger("ray")
    level = ray_log.level
    os.environ.update(variables)
    ray_log.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        ray_log.setLevel(level)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
