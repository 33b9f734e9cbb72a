"""The state of the console, updated in constant time by each result.

Owns the numbers in the console: shares of the stop criteria, time left, history of returns, time
by phase. It must not know how they are drawn.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlrun.data.results import RETURN, counts_already, number_at
from rlrun.experiment.report.charts import GrowingCurve
from rlrun.experiment.stopping import COUNTERS, StopCriteria

_MOST_POINTS = 512
_TIMER_WEIGHT = 0.1
_DRY_ITERATIONS = 10


@dataclass(frozen=True)
class RunHeader:
    """Facts about a run that never change."""

    algorithm: str
    env: str
    seed: int
    folder: Path
    num_env_runners: int
    stop: StopCriteria
    resumed_from: int | None = None


class ConsoleState:
    """The progress of a run, from its results."""

    def __init__(self, header: RunHeader, clock: Callable[[], float] = time.monotonic) -> None:
        self.header = header
        self.status = "starting"
        """Step of the start, shown until the first result."""
        self.result: Mapping[str, Any] | None = None
        self.returns = GrowingCurve(_MOST_POINTS)
        """Mean return by iteration."""
        self.best_return: float | None = None
        self.timers_s: dict[str, float] = {}
        """Recent seconds per iteration by phase, in the result's order."""
        self.evaluation: tuple[int, float, float | None] | None = None
        """Iteration, mean return and standard deviation of the last evaluation."""
        self.saved: str | None = None
        """Name of the newest checkpoint."""
        self.best_saved: str | None = None
        self._clock = clock
        self._started = clock()
        self._stopped: float | None = None
        self._first: dict[str, tuple[float, float]] = {}  # key of a criterion -> (time, value)
        self._dry = 0

    def update(self, result: Mapping[str, Any]) -> None:
        """Update from a result."""
        now = self._clock()
        self.result = result
        self.header.stop.note(result)
        for key in self.header.stop.bounds:
            value = number_at(result, key)
            if value is not None:
                self._first.setdefault(key, (now, value))
        self.recall([result])
        for name, value in (result.get("timers") or {}).items():
            if isinstance(value, int | float):
                phase = name.removesuffix("_s")
                old = self.timers_s.get(phase, float(value))
                self.timers_s[phase] = old + _TIMER_WEIGHT * (value - old)
        evaluated = number_at(result, "evaluation/episode_return_mean")
        if evaluated is not None:
            spread = number_at(result, "evaluation/episode_return_std")
            self.evaluation = (int(result.get("training_iteration", 0)), evaluated, spread)
        samples = result.get("env_steps_this_iter") != 0  # not while learning from a file
        self._dry = self._dry + 1 if samples and not result.get("episodes_this_iter") else 0

    def recall(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add the returns of results, as of earlier sessions, to their history."""
        for row in rows:
            mean = number_at(row, RETURN)
            if mean is None:
                continue
            if counts_already(RETURN, row, self.header.stop.smoothing_episodes):
                self.best_return = mean if self.best_return is None else max(self.best_return, mean)
            self.returns.add(float(row.get("training_iteration", 0)), mean)

    @property
    def elapsed_s(self) -> float:
        """Seconds since this session started, or its length if it has ended."""
        return (self._stopped or self._clock()) - self._started

    def stop_clock(self) -> None:
        """Stop the clock at the end of the run."""
        self._stopped = self._clock()

    def value(self, address: str) -> float | None:
        """A number of the newest result."""
        return None if self.result is None else number_at(self.result, address)

    def share(self, key: str) -> float:
        """Share of the way to the bound, 0 to 1, from 0 or, for returns, from the first value."""
        if key not in self._first:
            return 0.0
        value, bound = self.header.stop.latest[key], self.header.stop.bounds[key]
        start = 0.0 if key in COUNTERS else self._first[key][1]
        if bound <= start:
            return 1.0 if value >= bound else 0.0
        return min(1.0, max(0.0, (value - start) / (bound - start)))

    def left_s(self, key: str) -> float | None:
        """Seconds until a counter reaches its bound at this session's speed; None if unknown."""
        value = self.value(key)
        if value is None or key not in COUNTERS:
            return None
        then, first = self._first[key]
        gained, took = value - first, self._clock() - then
        if gained <= 0 or took <= 0:
            return None
        return max(0.0, (self.header.stop.bounds[key] - value) * took / gained)

    def dry_spell(self) -> str | None:
        """A warning, once, after several iterations in which no episode ended; None otherwise."""
        if self._dry != _DRY_ITERATIONS:
            return None
        steps = self.value("env_steps_this_iter")
        text = f"no episode has ended in the last {_DRY_ITERATIONS} iterations"
        if steps is not None:
            text += f" ({int(steps) * _DRY_ITERATIONS:,} env steps)"
        longest = self.value("env_runners/longest_running_episode")
        if longest is not None:
            text += f"; the longest running one has {int(longest):,} env steps"
        return text + ". The return is unknown until one ends; does the env have a time limit?"
