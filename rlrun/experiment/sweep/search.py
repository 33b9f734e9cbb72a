"""The searcher and the scheduler of a sweep, objects of Ray Tune.

Owns how they are set up. It must not know how a trial is run.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ray.tune.schedulers import (
    AsyncHyperBandScheduler,
    FIFOScheduler,
    HyperBandScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
    TrialScheduler,
)
from ray.tune.search import Searcher

from rlrun.config.checks import most_iterations
from rlrun.config.schema import ExperimentConfig
from rlrun.config.sweep import Dimension
from rlrun.experiment.sweep.points import plain_settings, space_of, tune_space
from rlrun.experiment.sweep.trial import IDENTITY
from rlrun.experiment.sweep.trials import Settings, Trial, TrialTable

Identify = Callable[[Trial], dict[str, Any]]

_TIME = "training_iteration"
_PBT_INTERVAL = 5


class SchedulerError(Exception):
    """The scheduler cannot be made from the arguments in the file."""

    exit_code = 2


class TrialSearch(Searcher):
    """Suggests the trials of a table that have not ended, then the trials of Optuna's points.

    Args:
        table: new trials are added to it, and saved, before they start.
        identify: returns the facts about a trial that its process needs besides the settings.
        optuna: Tune's Optuna search, if that suggests points.
        num_points, seeds: of the whole search.
    """

    def __init__(
        self,
        table: TrialTable,
        identify: Identify,
        *,
        optuna: Any = None,
        num_points: int = 0,
        seeds: Sequence[int] = (),
    ) -> None:
        super().__init__()
        self._table, self._identify = table, identify
        self._queue = deque(trial for trial in table.trials if not trial.ended)
        self._optuna, self._seeds = optuna, seeds
        self._points_left = max(0, num_points - table.num_points) if optuna else 0
        self._numbers: dict[str, int] = {}
        self._asked: set[int] = set()
        self._told: set[int] = set()
        if optuna:
            for point in range(1, table.num_points + 1):
                self._tell(point)

    @property
    def num_trials(self) -> int:
        """Number of trials that are left to suggest."""
        return len(self._queue) + self._points_left * len(self._seeds)

    def suggest(self, trial_id: str) -> Any:
        """The next trial's config."""
        if not self._queue and self._points_left:
            self._ask()
        if not self._queue:
            return Searcher.FINISHED
        trial = self._queue.popleft()
        self._numbers[trial_id] = trial.trial
        return {**trial.settings, IDENTITY: self._identify(trial)}

    def on_trial_complete(
        self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False
    ) -> None:
        """Note the end of a trial; after the last seed of a point, pass its score to Optuna."""
        trial = self._table[self._numbers[trial_id]]
        if error:
            trial.status = "failed"
        elif trial.status != "finished":  # as Events notes for a run that reached its stop
            trial.status = "stopped"
        if self._optuna:
            self._tell(trial.point)

    def save(self, checkpoint_path: str) -> None:
        """Save nothing: the table is the state."""

    def restore(self, checkpoint_path: str) -> None:
        """Restore nothing."""

    def _ask(self) -> None:
        point = self._table.num_points + 1
        settings = plain_settings(self._optuna.suggest(str(point)))
        self._asked.add(point)
        self._points_left -= 1
        self._queue.extend(self._table.add(point, settings, self._seeds))
        self._table.save()

    def _tell(self, point: int) -> None:
        """Pass the mean score over a point's seeds to Optuna, once."""
        trials = self._table.of_point(point)
        if point in self._told or not all(trial.over for trial in trials):
            return
        score = self._table.score_of_point(point)
        failed = all(trial.status == "failed" for trial in trials)
        if point not in self._asked:  # a point of an earlier session
            if score is not None:
                self._optuna.add_evaluated_point(trials[0].settings, score)
        else:
            result = None if score is None else {self._table.metric: score}
            self._optuna.on_trial_complete(str(point), result, error=failed)
        self._told.add(point)


def make_optuna(experiment: ExperimentConfig, seed: int) -> Any:
    """Tune's Optuna search over the sweep's space."""
    import optuna
    from ray.tune.search.optuna import OptunaSearch

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    sweep = experiment.sweep
    space = OptunaSearch.convert_search_space(tune_space(space_of(sweep)))
    return OptunaSearch(
        space=space,
        metric=sweep.metric,
        mode=sweep.mode,
        sampler=optuna.samplers.TPESampler(seed=seed % 2**32),
    )


def make_scheduler(experiment: ExperimentConfig) -> TrialScheduler:
    """Tune's scheduler with the arguments in the file; SchedulerError if Tune refuses them."""
    sweep = experiment.sweep
    if sweep.scheduler is None:
        return FIFOScheduler()  # type: ignore[no-untyped-call]
    name, given = sweep.scheduler.use, dict(sweep.scheduler.kwargs)
    given.setdefault("time_attr", _TIME)
    given |= {"metric": sweep.metric, "mode": sweep.mode}
    if name in ("asha", "hyperband") and "max_t" not in given:
        longest = most_iterations(experiment)
        if longest is None:
            raise SchedulerError(
                f"sweep.scheduler: {name} needs the length of the longest run, and stop: does not "
                "bound it; set stop.training_iteration, stop.env_steps or sweep.scheduler.max_t"
            )
        given["max_t"] = longest
    if name in ("asha", "hyperband"):
        given.setdefault("stop_last_trials", False)  # their own stop: ends them
    try:
        match name:
            case "asha":
                return AsyncHyperBandScheduler(**given)
            case "hyperband":
                return HyperBandScheduler(**given)
            case "median":
                return MedianStoppingRule(**given)
        return _population(space_of(sweep), given)
    except (AssertionError, TypeError, ValueError) as error:
        raise SchedulerError(f"sweep.scheduler: {name} refuses its arguments: {error}") from error


def _population(varied: Sequence[Dimension], given: dict[str, Any]) -> TrialScheduler:
    given.setdefault("perturbation_interval", _PBT_INTERVAL)
    # Without this, a population larger than the machine takes the same checkpoint again and again
    # while the trial that wrote it is paused.
    given.setdefault("synch", True)
    domains = tune_space([dimension for dimension in varied if not dimension.is_list])
    lists = {each.address: list(each.arguments) for each in varied if each.is_list}
    return Population(
        **given,
        hyperparam_mutations={**domains, **lists},
        custom_explore_fn=lambda config: bounded(config, varied),
        log_config=False,
        require_attrs=False,
    )


class Population(PopulationBasedTraining):
    """Tune's PBT; a trial that takes another's weights and settings keeps its identity."""

    def on_trial_add(self, tune_controller: Any, trial: Any) -> None:
        """Hide the searcher: Tune refuses all, as most could not follow changes of settings."""
        without: Any = _WithoutSearcher()
        super().on_trial_add(without, trial)

    def _get_new_config(self, trial: Any, trial_to_clone: Any) -> Any:
        config, operations = super()._get_new_config(trial, trial_to_clone)
        return {**config, IDENTITY: trial.config[IDENTITY]}, operations


class _WithoutSearcher:
    """The part of Tune's controller that PBT uses when a trial is added."""

    search_alg = None


def bounded(config: dict[str, Any], varied: Sequence[Dimension]) -> dict[str, Any]:
    """The settings clipped to the space, whose bounds PBT's factors 0.8 and 1.2 ignore."""
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
