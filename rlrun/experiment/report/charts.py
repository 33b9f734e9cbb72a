"""Charts as data: curves on common axes, their ticks, and parallel coordinates.

Owns what a chart consists of. Pages draw it as SVG (svg.py), pictures with matplotlib (plots.py).
It must not know what the numbers mean.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rlrun.experiment.report.numbers import short

Point = tuple[float, float]

_CHARACTERS = 44
"""Length of all names below an axis together."""


@dataclass(frozen=True)
class Curve:
    """One line of a chart, optionally with a band around it."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    dots: bool = False
    """Whether the points are drawn one by one, without a line."""

    @property
    def has_dots(self) -> bool:
        """Whether points are drawn; a line needs two."""
        return self.dots or len(self.x) == 1


@dataclass(frozen=True)
class Chart:
    """Curves on common axes."""

    title: str
    x_label: str
    curves: Sequence[Curve]
    log_x: bool = False
    """Whether the horizontal axis is logarithmic; all of x must be above 0."""
    x_names: Sequence[str] = ()
    """Names of 0, 1, ... on the horizontal axis."""
    goals: Sequence[float] = ()
    """Values of y with a dashed line."""

    @property
    def x_ends(self) -> tuple[float, float]:
        """The least and the greatest x."""
        xs = [x for curve in self.curves for x in curve.x]
        return min(xs), max(xs)

    @property
    def y_ends(self) -> tuple[float, float]:
        """The least and the greatest y, bands and dashed lines included."""
        ys = [y for curve in self.curves for y in (*curve.y, *curve.low, *curve.high)]
        return min([*ys, *self.goals]), max([*ys, *self.goals])

    @property
    def x_ticks(self) -> list[tuple[float, str]]:
        """Places on the horizontal axis, each with its text."""
        if self.x_names:
            most = max(3, _CHARACTERS // len(self.x_names))
            names = (n if len(n) <= most else f"{n[: most - 1]}…" for n in self.x_names)
            return list(enumerate(names))
        places = _log_ticks if self.log_x else ticks
        return [(x, short(x)) for x in places(*self.x_ends)]


def thinned(points: Sequence[Point], most: int) -> Sequence[Point]:
    """Every so many of the points, at most ``most``; the last is one of them."""
    every = -(-len(points) // most) or 1
    return points[::-1][::every][::-1]


class GrowingCurve:
    """Points of a curve that are thinned out evenly as they are added.

    Args:
        most: number of points that are kept, at most.

    Attributes:
        changes: whether not all values are equal.
    """

    def __init__(self, most: int) -> None:
        self.changes = False
        self._most = most
        self._points: list[Point] = []  # every so many of those that were added, the first included
        self._last = (0.0, 0.0)
        self._count, self._every = 0, 1

    def add(self, x: float, y: float) -> None:
        """Add a point."""
        self.changes |= self._count > 0 and y != self._last[1]
        self._last = (x, y)
        if self._count % self._every == 0:
            self._points.append(self._last)
            if len(self._points) == 2 * self._most:
                del self._points[1::2]
                self._every *= 2
        self._count += 1

    @property
    def points(self) -> Sequence[Point]:
        """What is kept, with the last point that was added."""
        has_last = (self._count - 1) % self._every == 0
        points = self._points if has_last else [*self._points, self._last]
        return thinned(points, self._most)

    def curve(self, label: str) -> Curve:
        """What is kept, as a line of a chart."""
        points = self.points
        return Curve(label, [x for x, _ in points], [y for _, y in points])


@dataclass(frozen=True)
class Axis:
    """One vertical axis of parallel coordinates."""

    name: str
    low: str
    """Text at the bottom."""
    high: str
    """Text at the top."""
    values: Sequence[float]
    """Value of each line."""


def ticks(low: float, high: float) -> list[float]:
    """Round numbers between two numbers, 1, 2 or 5 times a power of ten apart; at most six."""
    if not high > low:
        return [low]
    raw = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [i * step for i in range(first, last + 1)] or [low]


def _log_ticks(low: float, high: float) -> list[float]:
    """A few of 1, 2, 3 and 5 times powers of ten between two numbers."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1, 2, 5) if len(powers) < 3 else (1, 3) if len(powers) < 5 else (1,)
    found = [factor * 10.0**power for power in powers for factor in factors]
    return [tick for tick in found if low * 0.999 <= tick <= high * 1.001] or [low]
