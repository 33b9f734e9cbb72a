"""Comparison of runs: their groups of equal configuration, and the numbers of each group.

Owns the grouping, the alignment of the curves and the choice of numbers. It must not know how
a comparison is shown.

    N   runs of a configuration
    P   points of the aligned curves
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rlrun.config.problems import ConfigError, InputError
from rlrun.data.results import RETURN
from rlrun.experiment.compare.runs import Numbers, ReadRun, Settings, find_runs, read_run
from rlrun.experiment.report.statistics import (
    MIN_RUNS,
    Estimate,
    bootstrap_interval,
    estimate,
    iqm,
    performance_profile,
    probability_of_improvement,
)
from rlrun.experiment.run_folder import RunFolderError
from rlrun.experiment.sweep.points import settings_text

POINTS = 101
AS_GIVEN = "as given"
"""Source of thresholds that the user has named."""
_CURVE_RESAMPLES = 1000


@dataclass(frozen=True)
class Configuration:
    """The runs whose settings differ only in the seed."""

    name: str
    """A letter."""
    settings: Settings
    """The settings that differ between configurations."""
    runs: tuple[ReadRun, ...]
    grid: Numbers
    """Env steps at which all curves are compared, [P]."""
    sign: float
    """1 if higher is better, else -1."""

    @property
    def label(self) -> str:
        """The letter, and the settings that differ."""
        return f"{self.name}: {settings_text(self.settings)}" if self.settings else self.name

    @cached_property
    def curves(self) -> Numbers:
        """The metric of each run at the points of the grid, linear in between, [P, N]."""
        curves = [np.interp(self.grid, run.env_steps, run.values) for run in self.runs]
        return np.stack(curves, axis=-1)

    @property
    def finals(self) -> Numbers:
        """The metric of each run at the last point of the grid, [N]."""
        return self.curves[-1]

    @property
    def areas(self) -> Numbers:
        """The area under each curve, divided by its env steps: the mean over training, [N]."""
        width = self.grid[-1] - self.grid[0]
        if not width:
            return self.finals
        return np.trapezoid(self.curves, self.grid, axis=0) / width

    def at(self, env_steps: float) -> Estimate:
        """Interquartile mean of the values at these env steps, linear between results."""
        values = [np.interp(env_steps, run.env_steps, run.values) for run in self.runs]
        return estimate(np.array(values))

    @property
    def final(self) -> Estimate:
        """Interquartile mean of the last values."""
        return estimate(self.finals)

    @property
    def area(self) -> Estimate:
        """Interquartile mean of the areas under the curves."""
        return estimate(self.areas)

    def reached(self, threshold: float) -> list[tuple[float, float] | None]:
        """Env steps and seconds until each run reaches a threshold; None if it never does."""
        found: list[tuple[float, float] | None] = []
        for run in self.runs:
            there = run.counts & (self.sign * run.values >= self.sign * threshold)
            at = int(np.argmax(there))
            found.append((run.env_steps[at], run.seconds[at]) if there[at] else None)
        return found

    def median_reached(self, threshold: float) -> tuple[float, float] | None:
        """The median env steps and seconds to a threshold; None if half of the runs miss it."""
        found = self.reached(threshold)
        reached = [(np.inf, np.inf) if pair is None else pair for pair in found]
        steps, seconds = (float(median) for median in np.median(reached, axis=0))
        return (steps, seconds) if np.isfinite(steps) else None

    def band(self) -> tuple[Numbers, Numbers, Numbers]:
        """Interquartile mean of the curves, and the bounds of its interval or range, [P] each."""
        middle = iqm(self.curves)
        if len(self.runs) < MIN_RUNS:
            return middle, self.curves.min(axis=-1), self.curves.max(axis=-1)
        low, high = bootstrap_interval(iqm, self.curves, resamples=_CURVE_RESAMPLES)
        return middle, low, high


@dataclass(frozen=True)
class Comparison:
    """Configurations, best first, on one axis of env steps."""

    metric: str
    mode: Literal["max", "min"]
    algorithms: tuple[str, ...]
    env: str
    grid: Numbers
    """Env steps of the aligned curves, [P]."""
    at: tuple[float, ...]
    """Env steps to compare at, ascending; the last is the end of the curves."""
    thresholds: tuple[float, ...]
    """Values to reach, the hardest last."""
    threshold_is: str
    """Source of the thresholds."""
    configurations: tuple[Configuration, ...]
    notes: tuple[str, ...]
    """Remarks for the reader: runs left out, too few seeds."""

    @property
    def threshold(self) -> float:
        """The hardest of the thresholds."""
        return self.thresholds[-1]

    @property
    def title(self) -> str:
        """The metric, algorithms, environment and the env steps at the end."""
        what = f"{self.metric} of {', '.join(self.algorithms)} on {self.env}"
        return f"{what} at {int(self.grid[-1]):,} env steps"

    def improvement(self, better: Configuration, other: Configuration) -> Estimate:
        """Probability that a run of one configuration ends better than one of another."""
        scores = (better.sign * better.finals, other.sign * other.finals)
        value = float(probability_of_improvement(*scores))
        if min(map(len, scores)) < MIN_RUNS:
            return Estimate(value)
        low, high = bootstrap_interval(probability_of_improvement, *scores)
        return Estimate(value, float(low), float(high), "interval")

    def profile_thresholds(self) -> Numbers:
        """Where the profiles can change: just below each final value and at it, and both ends."""
        every = np.unique(np.concatenate([each.finals for each in self.configurations]))
        margin = 0.05 * (float(every[-1] - every[0]) or abs(float(every[0])) or 1.0)
        edges = np.stack([np.nextafter(every, -np.inf), every], axis=-1).ravel()
        return np.concatenate([[every[0] - margin], edges, [every[-1] + margin]])

    def profile(self, configuration: Configuration) -> Numbers:
        """Share of the runs that end above each of ``profile_thresholds``."""
        return performance_profile(configuration.finals, self.profile_thresholds())


def compare(
    words: Iterable[str | Path],
    *,
    metric: str = RETURN,
    mode: Literal["max", "min"] = "max",
    threshold: float | Sequence[float] | None = None,
    at: int | Sequence[int] | None = None,
) -> Comparison:
    """Compare runs, sweeps and groups that are named by paths or patterns.

    Args:
        words: folders; a sweep stands for its trials, a pattern for all folders that match.
        metric: key of the results, ``a/b`` for nested ones.
        mode: whether a higher or a lower value is better.
        threshold: value to reach, or several; default the goal in all runs' ``stop:``, else the
            worst final value of the configurations, which all of them reach.
        at: env steps to compare at, or several, of which the last end the curves; shorter runs are
            left out. Default the most that all runs have.

    Raises:
        InputError: no such run, no such metric, or runs that cannot be compared. RunFolderError,
        ConfigError: no run's settings can be read.
    """
    sign = 1.0 if mode == "max" else -1.0
    thresholds = [] if threshold is None else sorted(np.ravel(threshold).tolist(), key=sign.__mul__)
    for value in thresholds:
        if not math.isfinite(value):
            raise InputError(f"threshold: expected a number, got {value}")
    places = [] if at is None else sorted(np.ravel(at).tolist())
    last = places[-1] if places else None
    notes: list[str] = []
    runs = _read(find_runs(words), metric, notes)
    runs = _long_enough(runs, last, notes)
    envs = dict.fromkeys(run.env for run in runs)
    if len(envs) > 1:
        names = ", ".join(envs)
        raise InputError(f"expected runs of one environment, got {len(envs)}: {names}")
    grid = _grid(runs, last, notes)
    if places and places[0] < grid[0]:
        raise InputError(f"at {places[0]:,}: the first value of all runs is at {int(grid[0]):,}")
    groups = _grouped(runs)
    settings = _differing([group[0].settings for group in groups])
    drafts = [
        Configuration("", own, tuple(group), grid, sign)
        for own, group in zip(settings, groups, strict=True)
    ]
    drafts.sort(key=lambda each: -sign * each.final.value)
    threshold_is = AS_GIVEN
    if not thresholds:
        value, threshold_is = _threshold(drafts, runs, sign)
        thresholds = [value]
    _note_few_seeds(drafts, notes)
    return Comparison(
        metric=metric,
        mode=mode,
        algorithms=tuple(dict.fromkeys(run.algorithm for run in runs)),
        env=runs[0].env,
        grid=grid,
        at=tuple(places) or (float(grid[-1]),),
        thresholds=tuple(thresholds),
        threshold_is=threshold_is,
        configurations=tuple(replace(each, name=_letter(i)) for i, each in enumerate(drafts)),
        notes=tuple(notes),
    )


def _read(paths: Sequence[Path], metric: str, notes: list[str]) -> list[ReadRun]:
    """The runs with a number for the metric; of runs with equal settings and seed, the last."""
    runs: dict[object, ReadRun] = {}
    damage: Exception | None = None
    for path in paths:
        try:
            run = read_run(path, metric)
        except (ConfigError, RunFolderError, PermissionError) as error:
            damage = error
            reason, *_ = str(error).splitlines()
            notes.append(f"{path} is left out: {reason}")
            continue
        if run is None:
            notes.append(f"{path} is left out: it has no {metric} yet")
            continue
        same = (run.seed, repr(sorted(run.settings.items())))
        if same in runs:
            notes.append(f"{runs[same].path} is left out: {path} has the same settings and seed")
        runs[same] = run
    if not runs:
        raise damage or InputError(f"none of these runs has a number for {metric} yet")
    return list(runs.values())


def _long_enough(runs: list[ReadRun], at: int | None, notes: list[str]) -> list[ReadRun]:
    """The runs with a value at the env steps to compare at."""
    end = at or min(run.last for run in runs)
    short = [run for run in runs if run.last < end]
    notes += [f"{run.path} is left out: it ends at {int(run.last):,} env steps" for run in short]
    if len(short) == len(runs):
        longest = int(max(run.last for run in runs))
        raise InputError(f"no run has {int(end):,} env steps; the longest has {longest:,}")
    late = [run for run in runs if run.env_steps[0] > end]
    notes += [
        f"{run.path} is left out: its first value is at {int(run.env_steps[0]):,} env steps, "
        f"after {int(end):,}"
        for run in late
    ]
    kept = [run for run in runs if run.env_steps[0] <= end <= run.last]
    if not kept:
        raise InputError(f"no run has a value within the first {int(end):,} env steps")
    return kept


def _grid(runs: Sequence[ReadRun], at: int | None, notes: list[str]) -> Numbers:
    """Env steps at which all runs have a value."""
    start = max(float(run.env_steps[0]) for run in runs)
    end = float(at or min(run.last for run in runs))
    longest = max(run.last for run in runs)
    if at is None and end < 0.95 * longest:
        first = min(runs, key=lambda run: run.last)
        notes.append(
            f"compared up to {int(end):,} env steps, where {first.path} ends; the longest run has "
            f"{int(longest):,} (--at {int(longest)} leaves the shorter ones out)"
        )
    return np.linspace(start, end, POINTS) if start < end else np.array([end])


def _grouped(runs: Sequence[ReadRun]) -> list[list[ReadRun]]:
    """The runs of each configuration, in the order of ``runs``."""
    groups: dict[str, list[ReadRun]] = {}
    for run in runs:
        groups.setdefault(repr(sorted(run.settings.items())), []).append(run)
    return list(groups.values())


def _differing(settings: Sequence[Settings]) -> list[dict[str, Any]]:
    """The settings of each configuration that differ between configurations."""
    keys = dict.fromkeys(key for each in settings for key in each)
    differ = [key for key in keys if len({repr(each.get(key)) for each in settings}) > 1]
    return [{key: each.get(key) for key in differ} for each in settings]


def _threshold(
    drafts: Sequence[Configuration], runs: Sequence[ReadRun], sign: float
) -> tuple[float, str]:
    goals = {run.goal for run in runs}
    if len(goals) == 1 and (goal := goals.pop()) is not None:
        return goal, "the goal of the runs' stop"
    worst: Callable[[Iterable[float]], float] = min if sign > 0 else max
    return worst(each.final.value for each in drafts), "the worst final value"


def _note_few_seeds(drafts: Sequence[Configuration], notes: list[str]) -> None:
    counts = {_letter(i): len(each.runs) for i, each in enumerate(drafts)}
    few = {name: count for name, count in counts.items() if count < MIN_RUNS}
    if not few:
        return
    named = ", ".join(f"{name} has {count}" for name, count in few.items())
    shown = "the range is shown" if max(few.values()) > 1 else "one run has no spread"
    advice = f"rlrun train FILE --seeds {MIN_RUNS}"
    notes.append(f"an interval needs {MIN_RUNS} seeds ({advice}): {named}; {shown}")


def _letter(index: int) -> str:
    """A, B, ..., Z, A2, B2, ..."""
    turn, place = divmod(index, 26)
    return f"{chr(ord('A') + place)}{turn + 1 if turn else ''}"
