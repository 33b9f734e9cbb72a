"""The plan of a sweep: points, seeds and scheduler, checked before anything starts.

Owns whether trials fit the machine, and whether a sweep that is resumed still has the points that
its file describes. It must not know how trials are run.
"""

from rlrun.actors.ray_runtime import cluster_resources, is_running, node_resources
from rlrun.config.layers import find
from rlrun.config.loader import Loaded
from rlrun.config.problems import COMMAND_LINE, ConfigError, Origin, Problem
from rlrun.config.schema import ExperimentConfig
from rlrun.config.sweep import is_sweep
from rlrun.config.warnings import find_warnings
from rlrun.config.yaml_tree import Node
from rlrun.experiment.run import seed_of
from rlrun.experiment.sweep.points import experiments_of, seeds_of, settings_text, space_of, walk
from rlrun.experiment.sweep.resources import Capacity, check_fits, local_capacity
from rlrun.experiment.sweep.trials import Settings, SweepFolder, TrialTable


class Plan:
    """The points, seeds and scheduler of a sweep, checked before anything starts."""

    def __init__(
        self, experiment: ExperimentConfig, origins: Node | None, address: str | None
    ) -> None:
        sweep = experiment.sweep
        if not is_sweep(sweep):
            origin = COMMAND_LINE if origins is None else Origin(origins.origin.source)
            message = "nothing to sweep; add a space: {training.lr: {loguniform: [1e-4, 1e-2]}}"
            raise ConfigError([Problem(origin, "sweep", message)])
        from rlrun.experiment.sweep.tune import make_scheduler

        self.sweep, self.seeds = sweep, seeds_of(experiment)
        self.points = [] if sweep.search == "optuna" else list(walk(sweep, seed_of(experiment)))
        self.num_points = len(self.points) or sweep.trials or 1
        self.experiments = experiments_of(experiment, self.points, origins) or [experiment]
        self.scheduler = make_scheduler(experiment, self.experiments)
        if address is None:
            running = is_running()
            there = capacity_of_ray("the running Ray") if running else local_capacity()
            check_fits(self.experiments, there)

    def warnings(self, loaded: Loaded) -> list[Problem]:
        """The warnings of the sweep's file, without those that do not hold at all points."""
        of_points = [{found.message for found in find_warnings(each)} for each in self.experiments]
        return [
            problem
            for problem in loaded.warnings
            # That a file was translated, which is not of a key, holds at all of them.
            if not problem.key or all(problem.message in messages for messages in of_points)
        ]

    def new_table(self, folder: SweepFolder) -> TrialTable:
        """A table with the trials of all points; Optuna adds its points later."""
        table = TrialTable(folder.trials, (), metric=self.sweep.metric, mode=self.sweep.mode)
        self._add_points(table)
        table.save()
        return table

    def _add_points(self, table: TrialTable) -> None:
        for number, settings in enumerate(self.points, 1):
            if number > table.num_points:
                table.add(number, settings, self.seeds)

    def complete(self, table: TrialTable, origins: Node) -> None:
        """Add the points that a sweep lacks that is resumed, as with more ``trials``.

        Raises:
            ConfigError: the sweep has other points or seeds than its file describes.
        """
        if problem := self._seeds_problem(table) or self._points_problem(table):
            key, message = problem
            origin = find(origins, key.split(".")).origin
            advice = "restore it in this file, or start a new sweep with the file"
            raise ConfigError([Problem(origin, key, f"{message}; {advice}")])
        self._add_points(table)

    def _seeds_problem(self, table: TrialTable) -> tuple[str, str] | None:
        seeds = [trial.seed for trial in table.of_point(1)]
        if not seeds or seeds == self.seeds:
            return None
        key = "seed" if self.sweep.seeds is None else "sweep.seeds"
        return key, f"the trials have the seeds {seeds}, and not {self.seeds}"

    def _points_problem(self, table: TrialTable) -> tuple[str, str] | None:
        varied = space_of(self.sweep)
        for number in range(1, table.num_points + 1):
            settings = table.of_point(number)[0].settings
            if settings.keys() != {each.address for each in varied}:
                has = ", ".join(settings) or "nothing"
                return "sweep.space", f"the trials vary {has}, and not what it describes"
            if not self._has_point(number, settings):
                found = settings_text(settings)
                return "sweep.space", f"the trials have the point {found}, which it does not give"
        return None

    def _has_point(self, number: int, settings: Settings) -> bool:
        if self.sweep.search == "optuna":
            return all(each.holds(settings[each.address]) for each in space_of(self.sweep))
        if number > len(self.points):
            return False
        if self.sweep.scheduler is not None and self.sweep.scheduler.use == "pbt":
            return True  # it has changed the values
        point = self.points[number - 1]
        # Sections count as equal, as those read from a run have all their defaults.
        return all(
            value == point[key] or isinstance(value, dict) or isinstance(point[key], dict)
            for key, value in settings.items()
        )


def capacity_of_ray(where: str) -> Capacity:
    """The resources of the Ray that this process is connected to."""
    return Capacity(cluster_resources(), tuple(node_resources()), where)
