"""The section `sweep`: the settings that vary, how each does, and the problems of the section.

Owns: the forms of a distribution, every relation between `sweep` and the rest of a file, and the
section that several values on the command line stand for (``training.lr=1e-3,1e-4``). Must not
know: files and lines, nor how a sweep runs. Its points are checked one by one when they are
known, at the start of the sweep.

===========  ====================  ============================================================
grid         [value, ...]          every value, combined with every other grid
choice       [value, ...]          one of the values, all alike
uniform      [low, high]           a number between
loguniform   [low, high]           a number between, its logarithm uniform
randint      [low, high]           a whole number from low to high - 1, as in Ray Tune
quniform     [low, high, step]     a multiple of step between, both ends included
===========  ====================  ============================================================
"""

import inspect
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rlrun.config import layers
from rlrun.config.checks import check_result_key
from rlrun.config.code_checks import check_code
from rlrun.config.describe import describe_value
from rlrun.config.dump import flow
from rlrun.config.env_checks import check_environment
from rlrun.config.problems import COMMAND_LINE, ConfigError, Finding, Path, Problem
from rlrun.config.registry import (
    import_object,
    install_hint,
    is_installed,
    nearest,
    no_such,
    no_such_argument,
)
from rlrun.config.schema import ExperimentConfig, SweepConfig, UseSpec
from rlrun.config.validate import validate
from rlrun.config.yaml_tree import Node, from_plain, parse_yaml

LISTS = ("grid", "choice")
RANGES = ("uniform", "loguniform", "randint", "quniform")
KINDS = (*LISTS, *RANGES)

SCHEDULERS: dict[str, str] = {
    "asha": "ray.tune.schedulers:AsyncHyperBandScheduler",
    "median": "ray.tune.schedulers:MedianStoppingRule",
    "hyperband": "ray.tune.schedulers:HyperBandScheduler",
    "pbt": "ray.tune.schedulers:PopulationBasedTraining",
}
"""Name -> Ray Tune's class."""

GIVEN_TO_SCHEDULERS = ("metric", "mode", "hyperparam_mutations", "custom_explore_fn")
"""Arguments that are set elsewhere in the file."""

_NOT_VARIED = {
    "seed": "seeds are set by sweep.seeds",
    "sweep": "a sweep does not vary itself",
    "name": "it only names the folder",
    "base": "base files are read once, at the start",
}
_OF_SEEDS = {"seeds", "metric", "mode", "concurrent"}
"""Keys with a meaning for seeds alone."""
_RESOURCES = ("num_env_runners", "num_cpus_per_env_runner", "num_gpus_per_env_runner")


@dataclass(frozen=True)
class Dimension:
    """One setting that varies."""

    address: str
    """The setting as on the command line: ``training.lr``."""
    kind: str
    """One of KINDS."""
    arguments: tuple[Any, ...]
    """The values of a list; low, high and perhaps a step of a range."""
    place: Path
    """Its address below ``sweep.space``."""

    @property
    def is_list(self) -> bool:
        """Whether its values are listed."""
        return self.kind in LISTS

    @property
    def path(self) -> tuple[str, ...]:
        """The address as keys."""
        return tuple(layers.split_address(self.address))

    def extremes(self) -> Iterator[Any]:
        """Values to check in place of all possible ones: a whole list; ends and middle of a range.

        The middle of a continuous range is not round, so that it is never a whole number.
        """
        if self.is_list:
            yield from self.arguments
            return
        low, high = self.arguments[:2]
        if self.kind == "randint":
            yield from (low, high - 1)
        elif self.kind == "quniform":
            yield from (low, high, low + self.arguments[2])
        else:
            yield from (low, high, low + (high - low) / math.pi)

    def holds(self, value: Any) -> bool:
        """Whether a value is of the list, or between the bounds."""
        if self.is_list:
            return value in self.arguments
        return isinstance(value, int | float) and self.arguments[0] <= value <= self.arguments[1]


def dimensions(space: dict[str, Any]) -> tuple[list[Dimension], list[Finding]]:
    """The valid dimensions of a space in the order of the file, and problems of the others."""
    found: list[Dimension] = []
    findings: list[Finding] = []
    for place, node in _leaves(space, ()):
        address = ".".join(str(part) for part in place)
        path: Path = ("sweep", "space", *place)
        if problem := _problem(node):
            findings.append(Finding(path, problem))
            continue
        (kind, arguments) = next(iter(node.items()))
        if problem := _wrong_arguments(kind, arguments):
            findings.append(Finding((*path, kind), problem))
            continue
        dimension = Dimension(address, kind, tuple(arguments), path)
        if any(dimension.path == other.path for other in found):
            findings.append(Finding(path, f"{address} is varied twice"))
        else:
            found.append(dimension)
    return found, findings


def _leaves(node: Any, place: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Sections may nest: a mapping that is not a distribution holds further addresses."""
    if isinstance(node, dict) and node and not _looks_like_distribution(node):
        for key, below in node.items():
            yield from _leaves(below, (*place, key))
    elif place:
        yield place, node


def _looks_like_distribution(node: dict[str, Any]) -> bool:
    return any(
        key in KINDS or (isinstance(value, list) and nearest(key, KINDS))
        for key, value in node.items()
    )


def _problem(node: Any) -> str | None:
    example = "such as {grid: [1, 2]} or {uniform: [0, 1]}"
    if not isinstance(node, dict) or not node:
        return f"expected a distribution, {example}, got {describe_value(node)}"
    if len(node) > 1:
        return f"expected one distribution for a setting, got {' and '.join(node)}"
    (kind,) = node
    return None if kind in KINDS else no_such("distribution", kind, KINDS)


def _wrong_arguments(kind: str, arguments: Any) -> str | None:
    if not isinstance(arguments, list) or not arguments:
        return f"expected a list of values, got {describe_value(arguments)}"
    if kind not in LISTS:
        return _wrong_range(kind, arguments)
    values = [(isinstance(value, bool), value) for value in arguments]  # true is not 1
    repeated = next((v for i, (_, v) in enumerate(values) if values[i] in values[:i]), None)
    return None if repeated is None or kind == "choice" else f"{repeated!r} is listed twice"


def _wrong_range(kind: str, arguments: list[Any]) -> str | None:
    expected = "[low, high, step]" if kind == "quniform" else "[low, high]"
    numbers = all(
        isinstance(n, int | float) and not isinstance(n, bool) and math.isfinite(n)
        for n in arguments
    )
    if not numbers or len(arguments) != (3 if kind == "quniform" else 2):
        return f"expected numbers {expected}, got {describe_value(arguments)}"
    low, high = arguments[:2]
    if low >= high:
        return f"the lower bound {low!r} is not below the upper bound {high!r}"
    if kind == "loguniform" and low <= 0:
        return f"a logarithm needs numbers above 0, got {low!r}"
    if kind == "randint" and not (float(low).is_integer() and float(high).is_integer()):
        return f"expected whole numbers {expected}, got {describe_value(arguments)}"
    return _wrong_steps(low, high, arguments[2]) if kind == "quniform" else None


def _wrong_steps(low: float, high: float, step: float) -> str | None:
    if step <= 0:
        return f"the step must be above 0, got {step!r}"
    for bound in (low, high):
        if abs(bound / step - round(bound / step)) > 1e-7:
            return f"both bounds must be multiples of the step {step!r}, but {bound!r} is not"
    return None


def check_sweep(experiment: ExperimentConfig, tree: Node) -> Iterator[Finding]:
    """Everything that is wrong with the section `sweep` of an otherwise valid experiment."""
    sweep = experiment.sweep
    if not sweep.space:
        yield from _unused(sweep)
    if not is_sweep(sweep):
        return
    varied, findings = dimensions(sweep.space)
    yield from findings
    for dimension in varied:
        yield from _check_dimension(dimension, tree)
    yield from _check_search(sweep, varied)
    yield from _check_metric(experiment)
    if sweep.scheduler is not None:
        yield from _check_scheduler(sweep, sweep.scheduler, varied)
    if isinstance(sweep.seeds, tuple) and len(set(sweep.seeds)) < len(sweep.seeds):
        yield Finding(("sweep", "seeds"), "a seed is listed twice")
    if sweep.seeds == ():
        yield Finding(("sweep", "seeds"), "expected at least one seed")


def is_sweep(sweep: SweepConfig) -> bool:
    """Whether there is anything to run: settings that vary, or seeds."""
    return bool(sweep.space) or sweep.seeds is not None


def _unused(sweep: SweepConfig) -> Iterator[Finding]:
    used = {"space"} | (_OF_SEEDS if is_sweep(sweep) else set())
    for key in sorted(sweep.model_fields_set - used):
        if getattr(sweep, key) != SweepConfig.model_fields[key].get_default():
            message = "sweep.space is empty; set, for example, space: {training.lr: {grid: [...]}}"
            yield Finding(("sweep", key), message)
            return


def _check_dimension(dimension: Dimension, tree: Node) -> Iterator[Finding]:
    section = dimension.path[0]
    if section in _NOT_VARIED:
        yield Finding(dimension.place, f"{section} cannot be varied: {_NOT_VARIED[section]}")
        return
    messages = (
        f"{message}{_whole_number_hint(dimension, message)}"
        for value in dimension.extremes()
        for message in _problems_of(dimension, value, tree)
    )
    for message in dict.fromkeys(messages):
        yield Finding(dimension.place, message)


def _problems_of(dimension: Dimension, value: Any, tree: Node) -> Iterator[str]:
    """Problems of the setting with this value: by the schema, and of the code that it names."""
    try:
        with_value = overlaid(tree, {dimension.address: value})
    except LookupError as error:
        yield str(error.args[0])
        return
    path = dimension.path
    experiment, findings = validate(with_value.plain())
    if experiment is not None:
        findings = [*check_environment(experiment), *check_code(experiment)]
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
        message = "missing; set the number of points to draw: trials: 16"
        yield Finding(("sweep", "trials"), message)
    changes = sweep.scheduler is not None and sweep.scheduler.use == "pbt"
    if grids and not drawn and not changes and sweep.trials is not None and sweep.trials > 1:
        message = f"nothing is drawn, so trials: {sweep.trials} would repeat equal runs; use seeds"
        yield Finding(("sweep", "trials"), f"{message}: {sweep.trials} for different seeds")
    if sweep.search == "grid" and drawn:
        message = f"search: grid takes grids only, not {drawn[0].kind}"
        yield Finding(drawn[0].place, f"{message}; search: random takes both")
    if sweep.search != "optuna":
        return
    if not is_installed("optuna"):
        yield Finding(("sweep", "search"), f"optuna is missing: {install_hint('optuna')}")
    for dimension in grids:
        message = "Optuna chooses the points itself and takes no grid; choice draws from a list"
        yield Finding(dimension.place, message)
    for dimension in drawn:
        if dimension.path[-1] in _RESOURCES:
            message = "resources must be known at the start, before Optuna has chosen all points"
            yield Finding(dimension.place, f"{message}; search: random can vary them")
        if any(isinstance(value, list | dict) for value in dimension.arguments):
            message = "Optuna chooses between numbers, texts and booleans, not lists or mappings"
            yield Finding(dimension.place, f"{message}; search: random takes them")


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


def _check_scheduler(
    sweep: SweepConfig, spec: UseSpec, varied: list[Dimension]
) -> Iterator[Finding]:
    path: Path = ("sweep", "scheduler")
    if spec.use not in SCHEDULERS:
        yield Finding(path, no_such("scheduler", spec.use, SCHEDULERS))
        return
    if spec.kwargs:
        yield from _check_scheduler_arguments(path, spec.use, spec.kwargs)
    if spec.use == "pbt":
        yield from _check_population(sweep, varied)
    if spec.use == "hyperband":
        yield from _check_brackets(sweep)


def _check_brackets(sweep: SweepConfig) -> Iterator[Finding]:
    """HyperBand fills a bracket before it halves it, so it needs all trials at the start."""
    if sweep.search == "optuna":
        message = "hyperband needs all points at the start; use asha with Optuna"
        yield Finding(("sweep", "search"), message)
    if sweep.concurrent is not None:
        message = "hyperband pauses trials until others catch up; remove this key, or use asha"
        yield Finding(("sweep", "concurrent"), message)


def _check_scheduler_arguments(path: Path, name: str, kwargs: dict[str, Any]) -> Iterator[Finding]:
    parameters = inspect.signature(import_object(SCHEDULERS[name])).parameters
    takes = [key for key in parameters if key not in GIVEN_TO_SCHEDULERS]
    for key in kwargs:
        if key in GIVEN_TO_SCHEDULERS:
            yield Finding((*path, key), f"{key} is set by the sweep section itself")
        elif key not in takes:
            yield Finding((*path, key), no_such_argument(name, key, takes))


def _check_population(sweep: SweepConfig, varied: list[Dimension]) -> Iterator[Finding]:
    for dimension in varied:
        if dimension.path[0] != "training":
            message = "pbt changes settings of running trials; only training.* can change then"
            yield Finding(dimension.place, message)
    if sweep.search == "optuna":
        message = "pbt changes its points itself; search: random draws the first ones"
        yield Finding(("sweep", "search"), message)
    if sweep.concurrent is not None:  # paused trials count, so others would never join them
        message = "pbt needs the whole population at once, and lets it take turns; remove this key"
        yield Finding(("sweep", "concurrent"), message)


Seeds = int | Sequence[int]
"""A number of seeds, counted from the experiment's own, or the seeds."""


def group_overrides(overrides: Sequence[str], seeds: Seeds | None = None) -> list[str] | None:
    """Overrides for a group: the first value of each setting, and all values as a section `sweep`.

    The section replaces the file's; overrides of ``sweep`` are merged over it.

    Returns:
        None if there are neither seeds nor an override with several values.

    Raises:
        ConfigError: a setting with several values is given twice.
    """
    varied: dict[str, list[Any]] = {}
    single: list[str] = []
    for override in overrides:
        address, _, text = override.partition("=")
        values = several_values(text)
        if values:
            varied[address.strip()] = values
        single.append(f"{address}={flow(values[0])}" if values else override)
    if not varied and seeds is None:
        return None
    _check_once(varied, overrides, seeds)
    own = [text for text in single if layers.split_address(text.partition("=")[0])[0] != "sweep"]
    listed = varied.pop("seed", None)
    section: dict[str, Any] = {"space": {key: {"grid": values} for key, values in varied.items()}}
    if listed is not None or seeds is not None:
        section["seeds"] = listed or (seeds if isinstance(seeds, int) else list(seeds or ()))
    of_sweep = [text for text in single if text not in own]
    return [*own, "sweep=null", f"sweep={flow(section)}", *of_sweep]


def several_values(text: str) -> list[Any]:
    """The values of ``a,b``; empty if the text is one value, such as ``[a, b]`` or ``"a,b"``."""
    if "," not in text:
        return []
    try:
        values = parse_yaml(f"[{text}]", COMMAND_LINE.source, lines=False).plain()
    except ConfigError:
        return []  # to be reported where the override is applied
    return values if isinstance(values, list) and len(values) > 1 else []


def _check_once(
    varied: dict[str, list[Any]], overrides: Sequence[str], seeds: Seeds | None
) -> None:
    given = [text.partition("=")[0].strip() for text in overrides]
    problems = [
        Problem(COMMAND_LINE, address, "given twice, once with several values")
        for address in varied
        if given.count(address) > 1
    ]
    if sum(("seed" in varied, seeds is not None, "sweep.seeds" in given)) > 1:
        message = "several seeds are given twice; give one of --seeds, seed=1,2 and sweep.seeds"
        problems.append(Problem(COMMAND_LINE, "seed", message))
    if problems:
        raise ConfigError(problems)
