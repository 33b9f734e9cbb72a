"""Running trials with Ray Tune, silently.

Owns the call of Tune, and what its events mean for the table of trials. It must not know how a
sweep is planned or shown.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune import Callback, Stopper
from ray.tune.schedulers import HyperBandScheduler
from ray.tune.stopper import NoopStopper

from rlrun.actors.ray_runtime import environment_variables
from rlrun.config.schema import SweepConfig
from rlrun.data.results import number_at
from rlrun.experiment.sweep.points import plain_settings
from rlrun.experiment.sweep.search import TrialSearch
from rlrun.experiment.sweep.trial import IDENTITY, REACHED, SHARE, SweepTrial
from rlrun.experiment.sweep.trials import Trial, TrialTable

_KEPT_CHECKPOINTS = 4  # Tune's copies of a trial: PBT must still find the one that it has chosen

_DEATH = ("The actor is dead", "The actor died", "ActorDiedError", "RayActorError")
"""Texts in Ray's errors for a process that has died."""

_SILENT = {
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # relative paths in the file mean what they mean to `train`
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # experiment/stopping.py handles it
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # a trial may end without the metric
    "TUNE_GLOBAL_CHECKPOINT_S": "3600",  # Tune's own state, which a resumed sweep does not need
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
    "TUNE_WARN_THRESHOLD_S": "3600",
}


def run_trials(
    search: TrialSearch,
    scheduler: Any,
    events: "Events",
    *,
    sweep: SweepConfig,
    home: Path,
    interrupted: Callable[[], bool],
) -> None:
    """Run all trials that ``search`` suggests, until they have ended or ``interrupted`` is true.

    A failed trial does not end the others. Ray must have been started.
    """
    # Tune asks a searcher for one trial at a time, but HyperBand waits for a full bracket.
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
    """Ends all trials, each after its iteration, once the sweep is interrupted."""

    def __init__(self, interrupted: Callable[[], bool]) -> None:
        self._interrupted = interrupted

    def __call__(self, trial_id: str, result: Any) -> bool:
        return False

    def __reduce__(self) -> tuple[type[NoopStopper], tuple[()]]:
        """Pickled by Tune, without the signal of this session."""
        return (NoopStopper, ())

    def stop_all(self) -> bool:
        """Called in every turn of Tune's loop."""
        return self._interrupted()


class Events(Callback):
    """Keeps the table up to date, and closes the runs of trials that Tune pauses.

    Args:
        table: written whenever a trial's status changes.
        changed: called with a trial when anything about it has changed.
    """

    def __init__(self, table: TrialTable, changed: Callable[[Trial], None]) -> None:
        self._table, self._changed = table, changed
        self._processes: dict[int, Any] = {}

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """The trial has a process."""
        self._note(trial, "running", None)

    def on_trial_restore(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """The trial continues from its own checkpoint, or from another's with changed settings."""
        self._note(trial, "running", None)

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        """The trial has a number for the metric."""
        record = self._record(trial)
        record.take(result, self._table.metric)
        record.share = float(result.get(SHARE, record.share))
        self._processes[record.trial] = trial.temporary_state.ray_actor
        if REACHED in result:
            record.status, record.reason = "finished", result[REACHED]
        elif record.status != "running":
            self._note(trial, "running", None)
        self._changed(record)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """The trial has reached its stop, or the scheduler stops it."""
        record = self._record(trial)
        if record.status != "finished":
            record.reason = "by the scheduler"
            self._close_run(record, "finished", "stopped by the sweep's scheduler")
        record.share = 1.0
        self._note(trial, record.status, record.reason)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """The trial has raised, or its process has died; the others continue."""
        record = self._record(trial)
        record.log = f"{record.folder}/log.txt"
        self._note(trial, "failed", failure(trial.error_file))

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Close the runs of paused trials, whose processes Tune keeps without telling them."""
        for trial in trials:
            record = self._record(trial)
            if trial.status == "PAUSED" and record.trial in self._processes:
                self._close_run(record, "interrupted", "paused by the sweep's scheduler")

    def _close_run(self, record: Trial, outcome: str, reason: str) -> None:
        process = self._processes.pop(record.trial, None)
        if process is not None:
            process.finish.remote(outcome, reason)

    def _record(self, trial: Any) -> Trial:
        return self._table[trial.config[IDENTITY]["trial"]]

    def _note(self, trial: Any, status: Any, reason: str | None) -> None:
        record = self._record(trial)
        record.status, record.reason = status, reason
        record.settings = plain_settings({key: trial.config[key] for key in record.settings})
        self._table.save()
        self._changed(record)


def failure(error_file: str | None) -> str:
    """The reason of a failure in one line, from the file in which Tune keeps the error."""
    text = "" if error_file is None else Path(error_file).read_text(encoding="utf-8")
    if any(words in text for words in _DEATH):
        return "its process died: killed, or out of memory"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "unknown"


def recall(scheduler: Any, trial: Trial, rows: Iterator[Mapping[str, Any]], metric: str) -> None:
    """Pass a scheduler the results of a trial of an earlier session, to compare with."""
    stub = tune.experiment.Trial(SweepTrial.__name__, stub=True, trial_id=f"earlier-{trial.trial}")
    scheduler.on_trial_add(None, stub)
    passed: list[dict[str, Any]] = []
    for row in rows:
        score = number_at(row, metric)
        if score is not None:
            passed.append({"training_iteration": row["training_iteration"], metric: score})
            scheduler.on_trial_result(_NoTrials(), stub, passed[-1])
    if passed:
        scheduler.on_trial_complete(None, stub, passed[-1])


class _NoTrials:
    """The part of Tune's controller that schedulers ask about other trials."""

    def get_live_trials(self) -> list[Any]:
        """No trials: the earlier session is over."""
        return []


@contextmanager
def _quiet_tune(variables: Mapping[str, str]) -> Iterator[None]:
    """Silence Tune: no console, no files besides its own, no log lines on the terminal."""
    ray_log = logging.getLogger("ray")
    level = ray_log.level
    ray_log.setLevel(logging.CRITICAL + 1)
    try:
        with environment_variables(variables):
            yield
    finally:
        ray_log.setLevel(level)
