"""The points of a sweep: the settings to try, in order, and their experiments.

Owns the conversion of ``sweep.space`` to settings, and of settings to an experiment. Grids and
random draws are Ray Tune's. It must not know how trials are run.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rlrun.config.dump import dump_yaml
from rlrun.config.layers import find, without
from rlrun.config.loader import Loaded, resolve
from rlrun.config.problems import ConfigError, Origin, Problem
from rlrun.config.schema import ExperimentConfig, SweepConfig
from rlrun.config.sweep import Dimension, dimensions, overlaid
from rlrun.config.yaml_tree import Node, parse_yaml
from rlrun.experiment.run import seed_of, with_seed
from rlrun.experiment.sweep.trials import Settings


def space_of(sweep: SweepConfig) -> list[Dimension]:
    """The dimensions of a checked sweep."""
    return dimensions(sweep.space)[0]


def tune_space(varied: Sequence[Dimension]) -> dict[str, Any]:
    """The dimensions as Ray Tune's own objects."""
    from ray import tune

    makers: dict[str, Any] = {
        "grid": lambda *values: tune.grid_search(list(values)),
        "choice": lambda *values: tune.choice(list(values)),
        "uniform": tune.uniform,
        "loguniform": tune.loguniform,
        "randint": lambda low, high: tune.randint(int(low), int(high)),
        "quniform": tune.quniform,
    }
    return {each.address: makers[each.kind](*each.arguments) for each in varied}


def walk(sweep: SweepConfig, seed: int) -> Iterator[Settings]:
    """All points of a grid or random search.

    The first key of a grid varies fastest. Random values are drawn once for each of ``trials`` and
    combined with every point of the grids, so that grid points are compared on equal draws.
    """
    import numpy as np
    from ray.tune.search.variant_generator import generate_variants

    space = tune_space(space_of(sweep))
    # Tune walks grids in the alphabetical order of their names, so they get names in order.
    names = {f"{i:04d}": address for i, address in enumerate(space)}
    numbered = dict(zip(names, space.values(), strict=True))
    random_state = np.random.RandomState(seed % 2**32)
    for _ in range(sweep.trials or 1):
        variants = generate_variants(
            {"config": numbered}, constant_grid_search=True, random_state=random_state
        )
        for _, variant in variants:
            values = variant["config"]
            yield python_values({names[name]: values[name] for name in names})


def python_values(settings: Mapping[str, Any]) -> Settings:
    """The settings with Python's numbers instead of numpy's."""
    return {
        address: value.item() if hasattr(value, "item") else value
        for address, value in settings.items()
    }


def seeds_of(experiment: ExperimentConfig) -> list[int]:
    """The seeds of each point."""
    first, seeds = seed_of(experiment), experiment.sweep.seeds
    if isinstance(seeds, tuple):
        return list(seeds)
    return [first + i for i in range(seeds or 1)]


def base_of_points(sweep_yaml: str, source: str) -> Node:
    """The settings that all points of a sweep share, from its resolved file.

    Args:
        sweep_yaml: text of the file.
        source: name of the file in messages.
    """
    tree = without(parse_yaml(sweep_yaml, source), "sweep")
    # With `model.use: null` a point's model would replace all of `model`.
    return without(tree, "model.use") if find(tree, ("model", "use")).value is None else tree


def experiment_at(base: Node, settings: Mapping[str, Any], seed: int) -> ExperimentConfig:
    """The experiment of a point. Raises ConfigError if settings contradict each other."""
    return resolve(overlaid(base, {**settings, "seed": seed})).experiment


def experiments_of(
    experiment: ExperimentConfig, points: Sequence[Settings], origins: Node | None
) -> list[ExperimentConfig]:
    """The experiment of each point, with the first seed.

    Raises:
        ConfigError: with all problems of all points, at the place of the sweep's space.
    """
    base = base_of_points(dump_yaml(experiment), "sweep.yaml")
    origin = find(origins, ("sweep", "space")).origin if origins else Origin("sweep")
    found: list[ExperimentConfig] = []
    problems: list[Problem] = []
    for settings in points:
        try:
            found.append(experiment_at(base, settings, seeds_of(experiment)[0]))
        except ConfigError as error:
            where = settings_text(settings)
            if settings.get("algorithm", experiment.algorithm) != experiment.algorithm:
                # The file has all settings of its own algorithm by now, those by default too.
                first = error.problems[0]
                advice = f"a sweep keeps the settings of {experiment.algorithm}; write a file for"
                message = f"{first.key}: {first.message}; {advice} each algorithm, and compare them"
                problems.append(Problem(origin, "algorithm", f"with {where}: {message}"))
                continue
            problems += [
                Problem(origin, p.key, f"with {where}: {p.message}") for p in error.problems
            ]
    if problems:
        raise ConfigError(problems)
    return found


def check_points(loaded: Loaded) -> None:
    """Raise ConfigError if settings of a point contradict each other."""
    experiment = with_seed(loaded.experiment)
    points = list(walk(experiment.sweep, seed_of(experiment)))
    experiments_of(experiment, points, loaded.tree)


def settings_text(settings: Mapping[str, Any]) -> str:
    """Settings on one line: ``lr=0.001 gamma=0.99``."""
    names = short_names(settings)
    return " ".join(f"{names[key]}={value_text(value)}" for key, value in settings.items())


def short_names(addresses: Mapping[str, Any]) -> dict[str, str]:
    """Address -> its last part, or all of it if two addresses have the same last part."""
    last = {address: address.rpartition(".")[2] for address in addresses}
    return {
        address: name if list(last.values()).count(name) == 1 else address
        for address, name in last.items()
    }


def value_text(value: Any) -> str:
    """A value as short text; null, true and false as in YAML."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return f"{value:.4g}" if isinstance(value, float) else str(value)
