"""Running the trials of a sweep with Ray Tune: searcher, scheduler, and events.

Owns Tune's objects, and the effect of its events on the table of trials. It must not know how a
sweep is planned or shown.
"""

import logging
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ray import tune
from ray.tune import Callback, Stopper
from ray.tune.schedulers import (
    AsyncHyperBandScheduler,
    FIFOScheduler,
    HyperBandScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
    TrialScheduler,
)
from ray.tune.search import Searcher
from ray.tune.stopper import NoopStopper

from rlrun.actors.ray_runtime import environment_variables
from rlrun.config.checks import most_iterations
from rlrun.config.problems import InputError
from rlrun.config.schema import ExperimentConfig, SweepConfig
from rlrun.config.sweep import Dimension
from rlrun.data.results import number_at
from rlrun.data.seeding import search_seed, seeded_generators
from rlrun.experiment.run import seed_of
from rlrun.experiment.run_folder import RunFolder
from rlrun.experiment.run_log import own_warnings
from rlrun.experiment.sweep.points import python_values, space_of, tune_space
from rlrun.experiment.sweep.trial import IDENTITY, REACHED, SHARE, SweepTrial
from rlrun.experiment.sweep.trials import Settings, Trial, TrialTable

_log = logging.getLogger(__name__)

Identify = Callable[[Trial], dict[str, Any]]

_TIME = "training_iteration"
_PBT_INTERVAL = 5


class TrialSearch(Searcher):
    """Suggests the trials of a table that have not ended, then the trials of Optuna's points.

    Args:
        table: new trials are added to it, and saved, before they start.
        identify: returns facts about a trial that its process needs besides the settings.
        optuna: makes the Optuna search that suggests the point of a number; None without Optuna.
        num_points, seeds: number of points of the whole search, and the seeds of each.
    """

    def __init__(
        self,
        table: TrialTable,
        identify: Identify,
        *,
        optuna: Callable[[int], Any] | None = None,
        num_points: int = 0,
        seeds: Sequence[int] = (),
    ) -> None:
        super().__init__()
        self._table, self._identify = table, identify
        self._queue = deque(trial for trial in table.trials if not trial.ended)
        self._optuna, self._seeds = optuna, seeds
        self._points_left = max(0, num_points - table.num_points) if optuna else 0
        self._numbers: dict[str, int] = {}

    @property
    def adapts(self) -> bool:
        """Whether new points depend on the results of earlier ones."""
        return self._optuna is not None

    @property
    def num_trials(self) -> int:
        """Number of trials that are left to suggest."""
        return len(self._queue) + self._points_left * len(self._seeds)

    def suggest(self, trial_id: str) -> Any:
        """The next trial's config."""
        if not self._queue and self._optuna and self._points_left:
            self._ask(self._optuna)
        if not self._queue:
            return Searcher.FINISHED
        trial = self._queue.popleft()
        if trial.status == "failed":
            trial.status = "waiting"  # to be tried again: its point is not over
        self._numbers[trial_id] = trial.trial
        return {**trial.settings, IDENTITY: self._identify(trial)}

    def on_trial_complete(
        self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False
    ) -> None:
        """Note the end of a trial."""
        trial = self._table[self._numbers[trial_id]]
        if error:
            trial.status = "failed"
        elif trial.status != "finished":  # as Events notes for a run that reached its stop
            trial.status = "stopped"

    def save(self, checkpoint_path: str) -> None:
        """Save nothing: the table is the state."""

    def restore(self, checkpoint_path: str) -> None:
        """Restore nothing."""

    def _ask(self, optuna: Callable[[int], Any]) -> None:
        """Add the trials of a new point, which depends on its number and the table alone.

        So a resumed search suggests what it would have suggested without the interruption.
        """
        number = self._table.num_points + 1
        search = optuna(number)
        for point in range(1, number):
            trials = self._table.of_point(point)
            score = self._table.score_of_point(point)
            if score is not None and all(trial.over for trial in trials):
                search.add_evaluated_point(trials[0].settings, score)
        settings = python_values(search.suggest(str(number)))
        self._points_left -= 1
        self._queue.extend(self._table.add(number, settings, self._seeds))
        self._table.save_if_possible()


def make_optuna(experiment: ExperimentConfig, point: int) -> Any:
    """Tune's Optuna search over the sweep's space, for the point of a number."""
    import optuna
    from ray.tune.search.optuna import OptunaSearch

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    sweep = experiment.sweep
    space = OptunaSearch.convert_search_space(tune_space(space_of(sweep)))
    return OptunaSearch(
        space=space,
        metric=sweep.metric,
        mode=sweep.mode,
        sampler=optuna.samplers.TPESampler(seed=search_seed(seed_of(experiment), point)),
    )


def make_scheduler(
    experiment: ExperimentConfig, points: Sequence[ExperimentConfig] = ()
) -> TrialScheduler:
    """Tune's scheduler with the arguments in the file. Raises InputError if Tune refuses them.

    Args:
        points: the experiment of each point, if points are known.
    """
    sweep = experiment.sweep
    if sweep.scheduler is None:
        return FIFOScheduler()  # type: ignore[no-untyped-call]
    name, given = sweep.scheduler.use, sweep.scheduler.arguments()
    given.setdefault("time_attr", _TIME)
    given |= {"metric": sweep.metric, "mode": sweep.mode}
    if name in ("asha", "hyperband") and "max_t" not in given:
        given["max_t"] = max(_length(each, given["time_attr"]) for each in points or [experiment])
    if name in ("asha", "hyperband"):
        given.setdefault("stop_last_trials", False)  # they end by their own ``stop:``
    try:
        match name:
            case "asha":
                return AsyncHyperBandScheduler(**given)
            case "hyperband":
                return HyperBandScheduler(**given)
            case "median":
                return MedianStoppingRule(**given)
        return _population(space_of(sweep), given, seed_of(experiment))
    except (AssertionError, TypeError, ValueError) as error:
        raise InputError(f"sweep.scheduler: wrong arguments of {name}: {error}") from error


def _length(experiment: ExperimentConfig, unit: str) -> int:
    """The length of the longest possible run, in the scheduler's unit."""
    if unit == _TIME:
        length, keys = most_iterations(experiment), "stop.training_iteration, stop.env_steps"
    else:
        bound, keys = experiment.stop.get(unit), f"stop.{unit}"
        length = None if bound is None else max(1, int(bound))
    if length is None:
        raise InputError(
            "sweep.scheduler: asha and hyperband need a bound on the length of runs; set "
            f"{keys} or sweep.scheduler.max_t"
        )
    return length


def _population(varied: Sequence[Dimension], given: dict[str, Any], seed: int) -> TrialScheduler:
    given.setdefault("perturbation_interval", _PBT_INTERVAL)
    # Without this, trials of a population larger than the machine continue from the same checkpoint
    # again and again while the trial that wrote it is paused.
    given.setdefault("synch", True)
    domains = tune_space([dimension for dimension in varied if not dimension.is_list])
    lists = {each.address: list(each.arguments) for each in varied if each.is_list}
    return Population(
        seed=seed,
        **given,
        hyperparam_mutations={**domains, **lists},
        custom_explore_fn=lambda config: bounded(config, varied),
        log_config=False,
        require_attrs=False,
    )


class Population(PopulationBasedTraining):
    """Tune's PBT; a trial that takes another's weights and settings keeps its identity.

    What a trial draws depends on the seed, its number and its time alone.
    """

    def __init__(self, *, seed: int, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._seed = seed

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        """Hide the searcher: PBT refuses any, as most cannot follow changes of settings."""
        controller: Any = SimpleNamespace(search_alg=None)
        super().on_trial_add(controller, trial)

    def on_trial_error(self, tune_controller: Any, trial: Any) -> None:
        """Let no other trial wait for a failed one, which Tune keeps among the live ones."""
        super().on_trial_error(tune_controller, trial)
        tune_controller.get_live_trials().discard(trial)

    def choose_trial_to_run(self, tune_controller: Any) -> Any:
        """The trial to run next. Where Tune's would wait for ever, all go on.

        They wait for a trial that has ended, or for a time that a resumed sweep is beyond.
        """
        chosen = super().choose_trial_to_run(tune_controller)
        live = [*tune_controller.get_live_trials()]
        if chosen is not None or not live or any(trial.status != "PAUSED" for trial in live):
            return chosen
        states: list[Any] = [self._trial_state[trial] for trial in live]
        since = [s.last_result[self._time_attr] - s.last_perturbation_time for s in states]
        if max(since) >= self._perturbation_interval:
            last = since.index(max(since))
            self.on_trial_result(tune_controller, live[last], states[last].last_result)
        else:
            furthest = max(state.last_train_time for state in states)
            self._next_perturbation_sync = furthest + self._perturbation_interval
        return super().choose_trial_to_run(tune_controller)

    def _checkpoint_or_exploit(self, trial: Any, *arguments: Any) -> None:
        number, time = trial.config[IDENTITY]["trial"], self._trial_state[trial].last_train_time
        key = self._seed, number, int(time)
        with seeded_generators(search_seed(*key)):  # Tune draws from the global ones
            super()._checkpoint_or_exploit(trial, *arguments)

    def _get_new_config(self, trial: Any, trial_to_clone: Any) -> Any:
        config, operations = super()._get_new_config(trial, trial_to_clone)
        return {**config, IDENTITY: trial.config[IDENTITY]}, operations


def bounded(config: dict[str, Any], varied: Sequence[Dimension]) -> dict[str, Any]:
    """The settings clipped to the space, as PBT's factors 0.8 and 1.2 ignore its bounds."""
    found: Settings = dict(config)
    for each in varied:
        if each.is_list:
            continue
        low, high = each.arguments[:2]
        high = high - 1 if each.kind == "randint" else high
        value = min(max(config[each.address], low), high)
        if each.kind == "quniform":
            value = min(max(round(value / each.arguments[2]) * each.arguments[2], low), high)
        found[each.address] = int(value) if each.kind == "randint" else value
    return found


_KEPT_CHECKPOINTS = 4  # of each trial, by Tune: PBT must still find the one that it has chosen

_MODULES = re.compile(r"^(?:\w+\.)+(?=\w+:)")
"""The module names before an exception's class in a traceback."""

_PLACE = re.compile(r"\w+ failed: env '")
"""Start of the last line of an `EnvError`, which comes after the environment's own exception."""
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
    at_once: int,
    home: Path,
    interrupted: Callable[[], bool],
) -> None:
    """Run all trials that ``search`` suggests, until they have ended or ``interrupted`` is true.

    A failed trial does not end the others. Ray must have been started.

    Args:
        at_once: number of trials that have room at the same time.
    """
    # HyperBand waits for a full bracket, and Optuna should know as many results as possible.
    # Otherwise all processes start at the same time, not one after another as Tune would do.
    starting = 1 if search.adapts else at_once
    if isinstance(scheduler, HyperBandScheduler):
        starting = search.num_trials
    with _quiet_tune(_SILENT | {"TUNE_MAX_PENDING_TRIALS_PG": str(starting)}):
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
    """Ends each trial after its iteration once the sweep is interrupted."""

    def __init__(self, interrupted: Callable[[], bool]) -> None:
        self._interrupted = interrupted

    def __call__(self, trial_id: str, result: Any) -> bool:
        return False

    def __reduce__(self) -> tuple[type[NoopStopper], tuple[()]]:
        """Tune pickles the stopper, without the signals of this session."""
        return (NoopStopper, ())

    def stop_all(self) -> bool:
        """Whether to end; called in every turn of Tune's loop."""
        return self._interrupted()


class Events(Callback):
    """Keeps the table up to date, closes the runs of paused trials, and passes on warnings.

    Args:
        home: the sweep's folder.
        table: written whenever a trial's status changes.
        changed: called with a trial when anything about it has changed.
    """

    def __init__(self, home: Path, table: TrialTable, changed: Callable[[Trial], None]) -> None:
        self._home, self._table, self._changed = home, table, changed
        self._processes: dict[int, Any] = {}
        self._warned: set[str] = set()  # warnings, which several trials may have

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Note that the trial starts, or continues from a checkpoint."""
        self._note(trial, "running", None)

    on_trial_restore = on_trial_start

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        """Note the numbers of a trial."""
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
        """Note that the trial reached its stop, or that the scheduler stopped it."""
        record = self._record(trial)
        if record.status != "finished":
            record.reason = "by the scheduler"
            self._close_run(record, "finished", "stopped by the sweep's scheduler")
        record.share = 1.0
        self._warn(record)
        self._note(trial, record.status, record.reason)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Note that the trial raised or its process died; the others continue."""
        record = self._record(trial)
        log = f"{record.folder}/log.txt"
        record.log = log if (self._home / log).exists() else None
        self._warn(record)
        self._note(trial, "failed", failure(trial.error_file))

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Close the runs of paused trials, whose processes Tune keeps without a notice."""
        for trial in trials:
            record = self._record(trial)
            if trial.status == "PAUSED" and record.trial in self._processes:
                self._close_run(record, "interrupted", "paused by the sweep's scheduler")

    def _warn(self, record: Trial) -> None:
        """Pass on what the trial's run has warned of, unless another trial has as well.

        That its process was killed is known.
        """
        for warning in own_warnings(self._home / record.folder / "log.txt"):
            if warning not in self._warned and RunFolder.KILLED not in warning:
                _log.warning("%s: %s", record.folder, warning)
            self._warned.add(warning)

    def _close_run(self, record: Trial, outcome: str, reason: str) -> None:
        process = self._processes.pop(record.trial, None)
        if process is not None:
            process.finish.remote(outcome, reason)

    def _record(self, trial: Any) -> Trial:
        return self._table[trial.config[IDENTITY]["trial"]]

    def _note(self, trial: Any, status: Any, reason: str | None) -> None:
        record = self._record(trial)
        record.status, record.reason = status, reason
        record.settings = python_values({key: trial.config[key] for key in record.settings})
        self._table.save_if_possible()
        self._changed(record)


def failure(error_file: str | None) -> str:
    """The reason of a failure in one line, from the file in which Tune stores the error."""
    text = "" if error_file is None else Path(error_file).read_text(encoding="utf-8")
    if any(words in text for words in _DEATH):
        return "its process died: killed, out of memory, or ended by its code"
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["unknown"]
    reason = _MODULES.sub("", lines[-1])
    return f"{lines[-2]}; {reason}" if _PLACE.match(reason) else reason


def recall(
    scheduler: Any, trial: Trial, rows: Iterator[Mapping[str, Any]], sweep: SweepConfig
) -> None:
    """Pass the results of a trial of an earlier session to a scheduler, for comparison."""
    assert sweep.metric is not None
    assert sweep.scheduler is not None
    metric, unit = sweep.metric, str(sweep.scheduler.kwargs.get("time_attr", _TIME))
    stub = tune.experiment.Trial(SweepTrial.__name__, stub=True, trial_id=f"earlier-{trial.trial}")
    scheduler.on_trial_add(None, stub)
    controller = SimpleNamespace(get_live_trials=list)  # none: the earlier session is over
    passed: list[dict[str, Any]] = []
    for row in rows:
        time, score = number_at(row, unit), number_at(row, metric)
        if time is not None and score is not None:
            passed.append({_TIME: row[_TIME], unit: time, metric: score})
            scheduler.on_trial_result(controller, stub, passed[-1])
    if passed:
        scheduler.on_trial_complete(None, stub, passed[-1])


@contextmanager
def _quiet_tune(variables: Mapping[str, str]) -> Iterator[None]:
    """Silence Tune: no console, no log lines on the terminal, and only its own files."""
    ray_log = logging.getLogger("ray")
    level = ray_log.level
    ray_log.setLevel(logging.CRITICAL + 1)
    try:
        with environment_variables(variables):
            yield
    finally:
        ray_log.setLevel(level)
