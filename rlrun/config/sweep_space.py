"""The ``space:`` of a sweep: which settings vary, and how.

Owns: the form of a distribution and what is wrong with one. Must not know: Ray Tune, nor which
settings there are (sweep_checks.py holds the two against each other).

===========  ====================  ============================================================
grid         [value, ...]          every value, combined with those of every other grid
choice       [value, ...]          one of the values, all alike
uniform      [low, high]           a number between
loguniform   [low, high]           a number between, its logarithm uniform
randint      [low, high]           a whole number from low to high - 1, as in Ray Tune
quniform     [low, high, step]     a multiple of step between, both ends included
===========  ====================  ============================================================
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rlrun.config.describe import describe_value
from rlrun.config.layers import split_address
from rlrun.config.problems import Path
from rlrun.config.registry import nearest, suggestion
from rlrun.config.validate import Finding

LISTS = ("grid", "choice")
RANGES = ("uniform", "loguniform", "randint", "quniform")
KINDS = (*LISTS, *RANGES)


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
    """Where the file says so, below ``sweep.space``."""

    @property
    def is_list(self) -> bool:
        """Whether it names its values one by one."""
        return self.kind in LISTS

    def extremes(self) -> Iterator[Any]:
        """Values that stand for all that can be drawn: each of a list; ends and middle of a range.

        The middle of a continuous range is no round number, so that it is no whole one by chance.
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


def dimensions(space: dict[str, Any]) -> tuple[list[Dimension], list[Finding]]:
    """All dimensions of a space in the order of the file, and what is wrong with the others."""
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
        elif any(_normal(address) == _normal(other.address) for other in found):
            findings.append(Finding(path, f"{address} is varied twice"))
        else:
            found.append(Dimension(address, kind, tuple(arguments), path))
    return found, findings


def _normal(address: str) -> tuple[str, ...]:
    return tuple(split_address(address))


def _leaves(node: Any, place: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Sections may nest: a mapping that is no distribution holds further addresses."""
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
        return f"one distribution for each setting, got {' and '.join(node)}"
    (kind,) = node
    if kind not in KINDS:
        known = ", ".join(KINDS)
        return f"there is no distribution {kind!r}, there is {known}{suggestion(kind, KINDS)}"
    return None


def _wrong_arguments(kind: str, arguments: Any) -> str | None:
    if not isinstance(arguments, list) or not arguments:
        return f"expected a list of values, got {describe_value(arguments)}"
    if kind not in LISTS:
        return _wrong_range(kind, arguments)
    repeated = next((v for i, v in enumerate(arguments) if v in arguments[:i]), None)
    return None if repeated is None or kind == "choice" else f"{repeated!r} stands there twice"


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
            return f"both bounds must be multiples of the step {step!r}, {bound!r} is none"
    return None
