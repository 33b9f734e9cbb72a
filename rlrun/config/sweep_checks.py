"""Is a sweep's section right: its settings exist, no draw can leave their bounds, nothing lacks?

Owns: every relation between ``sweep:`` and the rest of a file. Must not know: files and lines, nor
how a sweep runs. Points are checked as a whole when they are known, at the start of the sweep.
"""

import inspect
from collections.abc import Iterator
from typing import Any

from rlrun.config import code_checks, layers
from rlrun.config.checks import check_result_key
from rlrun.config.problems import COMMAND_LINE, Path
from rlrun.config.registry import import_object, is_installed, nearest, suggestion
from rlrun.config.schema import ExperimentConfig, SweepConfig
from rlrun.config.sweep_space import Dimension, dimensions
from rlrun.config.validate import Finding, validate
from rlrun.config.yaml_tree import Node, from_plain

SCHEDULERS: dict[str, str] = {
    "asha": "ray.tune.schedulers:AsyncHyperBandScheduler",
    "median": "ray.tune.schedulers:MedianStoppingRule",
    "hyperband": "ray.tune.schedulers:HyperBandScheduler",
    "pbt": "ray.tune.schedulers:PopulationBasedTraining",
}
"""Name -> Ray Tune's class."""

GIVEN_TO_SCHEDULERS = ("metric", "mode", "hyperparam_mutations", "custom_explore_fn")
"""Arguments that come from elsewhere in the file."""

_NOT_VARIED = {
    "seed": "seeds are named by sweep.seeds",
    "sweep": "a sweep does not vary itself",
    "name": "it names the folder and nothing else",
    "base": "the file below it is read once",
}
_RESOURCES = ("num_env_runners", "num_cpus_per_env_runner", "num_gpus_per_env_runner")


def check_sweep(experiment: ExperimentConfig, tree: Node) -> Iterator[Finding]:
    """Everything that is wrong with the ``sweep:`` section of an experiment that is right."""
    sweep = experiment.sweep
    if not sweep.space:
        yield from _unused(sweep)
        return
    varied, findings = dimensions(sweep.space)
    yield from findings
    for dimension in varied:
        yield from _check_dimension(dimension, tree)
    yield from _check_search(sweep, varied)
    yield from _check_metric(experiment)
    if sweep.scheduler is not None:
        yield from _check_scheduler(experiment, varied)
    if isinstance(sweep.seeds, tuple) and len(set(sweep.seeds)) < max(1, len(sweep.seeds)):
        yield Finding(("sweep", "seeds"), "a seed stands there twice")
    if sweep.seeds == ():
        yield Finding(("sweep", "seeds"), "expected at least one seed")


def _unused(sweep: SweepConfig) -> Iterator[Finding]:
    for key in sorted(sweep.model_fields_set - {"space"}):
        if getattr(sweep, key) != SweepConfig.model_fields[key].get_default():
            message = "nothing is varied: sweep.space is empty; space: {training.lr: {grid: [...]}}"
            yield Finding(("sweep", key), message)
            return


def _check_dimension(dimension: Dimension, tree: Node) -> Iterator[Finding]:
    path = layers.split_address(dimension.address)
    reason = _NOT_VARIED.get(path[0])
    if reason is not None:
        yield Finding(dimension.place, f"{path[0]} cannot be varied: {reason}")
        return
    said: set[str] = set()
    for value in dimension.extremes():
        for message in _problems_of(dimension, value, tree):
            text = f"{message}{_whole_number_hint(dimension, message)}"
            if text not in said:
                said.add(text)
                yield Finding(dimension.place, text)


def _problems_of(dimension: Dimension, value: Any, tree: Node) -> Iterator[str]:
    """What the schema and the named code say about the setting when it has this value."""
    try:
        with_value = overlaid(tree, {dimension.address: value})
    except LookupError as error:
        yield str(error.args[0])
        return
    path = tuple(layers.split_address(dimension.address))
    experiment, findings = validate(with_value.plain())
    if experiment is not None:
        findings = list(code_checks.check_code(experiment))
    for finding in findings:
        own = tuple(str(part) for part in finding.path if part != "kwargs")
        if own[: len(path)] == path or path[: len(own)] == own != ():
            yield finding.message


def _whole_number_hint(dimension: Dimension, message: str) -> str:
    wants_whole = "whole number" in message and dimension.kind in ("uniform", "loguniform")
    return "; randint and quniform draw whole numbers" if wants_whole else ""


def overlaid(tree: Node, settings: dict[str, Any]) -> Node:
    """The tree with settings laid over it, each as KEY=VALUE of the command line would be.

    Raises LookupError for a position that a list does not have.
    """
    for address, value in settings.items():
        path = layers.split_address(address)
        tree = layers.set_value(tree, path, from_plain(value, COMMAND_LINE))
    return tree


def _check_search(sweep: SweepConfig, varied: list[Dimension]) -> Iterator[Finding]:
    grids = [dimension for dimension in varied if dimension.kind == "grid"]
    drawn = [dimension for dimension in varied if dimension.kind != "grid"]
    if drawn and sweep.trials is None:
        message = "missing; it says how many points are drawn: trials: 16"
        yield Finding(("sweep", "trials"), message)
    if sweep.search == "grid" and drawn:
        message = f"search: grid walks grids, and {drawn[0].address} is drawn by {drawn[0].kind}"
        yield Finding(drawn[0].place, f"{message}; search: random takes both")
    if sweep.search != "optuna":
        return
    if not is_installed("optuna"):
        yield Finding(("sweep", "search"), 'optuna is missing: pip install "rlrun[optuna]"')
    for dimension in grids:
        message = "Optuna names the points itself and walks no grid; choice draws from a list"
        yield Finding(dimension.place, message)
    for dimension in drawn:
        if layers.split_address(dimension.address)[-1] in _RESOURCES:
            message = "Optuna names points on the way, and resources must be known at the start"
            yield Finding(dimension.place, f"{message}; search: random can vary them")
        if any(isinstance(value, list | dict) for value in dimension.arguments):
            message = "Optuna chooses among numbers, texts and booleans, not lists or mappings"
            yield Finding(dimension.place, message)


def _check_metric(experiment: ExperimentConfig) -> Iterator[Finding]:
    sweep, path = experiment.sweep, ("sweep", "metric")
    if sweep.metric is not None:
        yield from check_result_key(experiment, path, sweep.metric)
        return
    works = "metric: episode_return_mean works"
    if sweep.search == "optuna":
        yield Finding(path, f"Optuna compares points by a metric, and there is none; {works}")
    if sweep.scheduler is not None:
        name = sweep.scheduler.use
        yield Finding(path, f"{name} compares trials by a metric, and there is none; {works}")


def _check_scheduler(experiment: ExperimentConfig, varied: list[Dimension]) -> Iterator[Finding]:
    spec = experiment.sweep.scheduler
    assert spec is not None
    path: Path = ("sweep", "scheduler")
    if spec.use not in SCHEDULERS:
        known = ", ".join(SCHEDULERS)
        hint = suggestion(spec.use, SCHEDULERS)
        yield Finding(path, f"there is no scheduler {spec.use!r}, there is {known}{hint}")
        return
    if spec.kwargs:
        yield from _check_scheduler_arguments(path, spec.use, spec.kwargs)
    if spec.use == "pbt":
        yield from _check_population(experiment.sweep, varied)
    if spec.use == "hyperband":
        yield from _check_brackets(experiment.sweep)


def _check_brackets(sweep: SweepConfig) -> Iterator[Finding]:
    """HyperBand fills a bracket before it halves it, so it must know all trials at the start."""
    if sweep.search == "optuna":
        message = "hyperband wants to know all points at the start; asha goes with Optuna"
        yield Finding(("sweep", "search"), message)
    if sweep.concurrent is not None:
        message = "hyperband pauses trials to wait for others and cannot do with a few at a time; "
        message += "leave it out (trials take turns on the cores there are), or use asha"
        yield Finding(("sweep", "concurrent"), message)


def _check_scheduler_arguments(path: Path, name: str, kwargs: dict[str, Any]) -> Iterator[Finding]:
    parameters = inspect.signature(import_object(SCHEDULERS[name])).parameters
    takes = [key for key in parameters if key not in GIVEN_TO_SCHEDULERS]
    for key in kwargs:
        if key in GIVEN_TO_SCHEDULERS:
            yield Finding((*path, key), f"{key} comes from the sweep section itself")
        elif key not in takes:
            near = nearest(key, takes)
            hint = f" - did you mean {near}?" if near else ""
            message = f"{name} takes no such argument, it takes {', '.join(takes)}{hint}"
            yield Finding((*path, key), message)


def _check_population(sweep: SweepConfig, varied: list[Dimension]) -> Iterator[Finding]:
    for dimension in varied:
        if layers.split_address(dimension.address)[0] != "training":
            message = "pbt changes settings while trials go on, which only training.* can bear"
            yield Finding(dimension.place, message)
    if sweep.search == "optuna":
        message = "pbt moves its population itself; search: random names where it starts"
        yield Finding(("sweep", "search"), message)
