"""Runs to compare: finding them by paths and patterns, and reading them from their folders.

Owns which folders a word names, and what is read from a run: its settings, and the curve of one
metric. No code of a run is executed or imported. It must not know how runs are grouped or shown.

    K   results of a run that have the metric
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlrun.config.problems import InputError
from rlrun.config.registry import suggestion
from rlrun.data.results import Row, addresses, counts_already, flat, lookup, number_at
from rlrun.experiment.report.sinks import read_rows
from rlrun.experiment.run_folder import RunFolder, plain_settings
from rlrun.experiment.run_index import find_entry, matching

Settings = Mapping[str, Any]
"""Address -> plain value, as on the command line."""

Numbers = NDArray[np.float64]

_NOT_COMPARED = ("name", "seed", "stop", "checkpoint", "sweep", "report.sinks")
"""Settings that are not compared: the seed, and those without effect on learning."""


@dataclass(frozen=True)
class ReadRun:
    """One run, as read from its folder."""

    path: Path
    algorithm: str
    env: str
    seed: int | None
    settings: Settings
    """The settings that runs are grouped by."""
    goal: float | None
    """The value of the metric that ends the run; None if it does not end the run."""
    env_steps: Numbers
    """Env steps of the results with the metric, ascending, [K]."""
    values: Numbers
    """The metric, [K]."""
    seconds: Numbers
    """Seconds trained, [K]."""
    counts: NDArray[np.bool_]
    """Whether the value is meaningful yet: a mean over a full window of episodes, [K]."""

    @property
    def last(self) -> float:
        """Env steps of the last result."""
        return float(self.env_steps[-1])


def find_runs(words: Iterable[str | Path]) -> list[Path]:
    """The run folders of paths and patterns, each once; a sweep gives all of its trials.

    Raises:
        InputError: a word names no run.
    """
    found: dict[Path, Path] = {}
    for entry in map(find_entry, matching(words)):
        if entry.is_sweep and not entry.members:
            raise InputError(f"{entry.path}: no trial of this sweep has started")
        for run in entry.members or (entry,):
            found.setdefault(run.path.resolve(), run.path)
    return list(found.values())


def read_run(path: Path, metric: str) -> ReadRun | None:
    """The run in a folder; None if it has no number for the metric yet.

    Raises:
        InputError: its results have no such key, or count no env steps. ConfigError: its settings
            cannot be read.
    """
    plain = plain_settings(RunFolder(path).config)
    window = int(number_at(plain, "report/smoothing_episodes") or 1)
    points = list(_points(path, metric, window))
    if not points:
        return None
    # A trial of a population may have taken over another's state, and its env steps.
    points.sort(key=lambda point: point[0])
    env_steps, values, seconds, counts = map(np.array, zip(*points, strict=True))
    stop = plain.get("stop")
    return ReadRun(
        path=path,
        algorithm=plain["algorithm"],
        env=str(plain["env"]["use"]),
        seed=plain.get("seed"),
        settings={
            key: value
            for key, value in flat(plain, ".").items()
            if not any(key == name or key.startswith(f"{name}.") for name in _NOT_COMPARED)
        },
        goal=number_at(stop, metric) if isinstance(stop, dict) else None,
        env_steps=env_steps,
        values=values,
        seconds=seconds,
        counts=counts,
    )


def _points(path: Path, metric: str, window: int) -> Iterator[tuple[float, float, float, bool]]:
    """Env steps, value, seconds, and whether the value counts, of each result that has all."""
    row: Row = {}
    counts_env_steps = False
    for row in read_rows(RunFolder(path).metrics):
        env_steps, value = number_at(row, "env_steps"), number_at(row, metric)
        if not env_steps:
            continue
        counts_env_steps = True
        if value is not None:
            seconds = number_at(row, "time_s") or 0.0
            yield env_steps, value, seconds, counts_already(metric, row, window)
    if row and not counts_env_steps:
        message = "its results count no env steps, over which runs are compared"
        raise InputError(f"{path}: {message}; `rlrun show` has its last numbers")
    try:
        lookup(row or {metric: None}, metric)  # the last row has all keys of the others
    except KeyError:
        hint = suggestion(metric, addresses(row))
        raise InputError(f"{path}: no result has the key {metric}{hint}") from None
