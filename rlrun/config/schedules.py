"""Numbers that change during a run: their forms in a file, their bounds and their values.

    3e-4                                   a constant
    [[0, 1.0], [10_000, 0.05]]             points [env_steps, value], linear between them
    {kind: polynomial, start: 1e-3, end: 0, env_steps: 1e6, power: 2}
                                           end + (start - end) (1 - t)^power
    {kind: exponential, start: 1e-3, end: 1e-5, env_steps: 1e6}
                                           start (end / start)^t
    {kind: cosine, start: 1e-3, end: 0, env_steps: 1e6}
                                           end + (start - end) (1 + cos(pi t)) / 2

t is the fraction of `env_steps` that is over. After its last point or step a schedule is constant.
"""

import math
import sys
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from rlrun.config.describe import describe_bounds, describe_value
from rlrun.config.registry import suggestion
from rlrun.config.section import MOST

Points = tuple[tuple[int, float], ...]

_KEYS = {
    "cosine": ("kind", "start", "end", "env_steps"),
    "exponential": ("kind", "start", "end", "env_steps"),
    "polynomial": ("kind", "start", "end", "env_steps", "power"),
}
_MOST_ENV_STEPS = 10**15


@dataclass(frozen=True)
class Decay:
    """A value that goes from `start` to `end` within `env_steps`; only a polynomial has a power."""

    kind: str
    start: float
    end: float
    env_steps: int
    power: float = 1.0

    def to_plain(self) -> dict[str, Any]:
        """The form that a file holds."""
        return {key: getattr(self, key) for key in _KEYS[self.kind]}


def value_at(schedule: float | Points | Decay, env_steps: int) -> float:
    """The value of a schedule.

    Args:
        env_steps: env steps sampled before the update that uses the value.
    """
    if isinstance(schedule, Decay):
        return _decayed(schedule, env_steps / schedule.env_steps)
    if not isinstance(schedule, tuple):
        return float(schedule)
    after = bisect_right(schedule, env_steps, key=lambda point: point[0])
    if after == len(schedule):
        return schedule[-1][1]
    (begin, first), (end, last) = schedule[after - 1], schedule[after]
    return (last - first) / (end - begin) * (env_steps - begin) + first


def _decayed(decay: Decay, part: float) -> float:
    if part >= 1.0:
        return decay.end
    if decay.kind == "exponential":
        return decay.start * (decay.end / decay.start) ** part
    if decay.kind == "cosine":
        return decay.end + (decay.start - decay.end) * (1.0 + math.cos(math.pi * part)) / 2
    return decay.end + (decay.start - decay.end) * (1.0 - part) ** decay.power


@dataclass(frozen=True)
class Bounds:
    """Bounds of all values of a schedule; pydantic's validator for schedules.

    Of several annotations the last one counts, so that a section can narrow `Schedule`.
    """

    ge: float = -sys.float_info.max
    le: float = sys.float_info.max

    def __get_pydantic_core_schema__(self, _: Any, __: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.schedule)

    @property
    def words(self) -> str:
        """The values of a key with these bounds, in words."""
        return f"a number or schedule{describe_bounds([self])}"

    def schedule(self, value: Any) -> float | Points | Decay:
        """Parse a schedule from a value of a file; errors name the item that is wrong."""
        if isinstance(value, Mapping):
            return self._decay(value)
        if isinstance(value, Sequence) and not isinstance(value, str):
            return self._points(value)
        if isinstance(value, Decay):
            return self._decay(value.to_plain())
        return self._number(value, ())

    def _points(self, items: Sequence[Any]) -> Points:
        points: list[tuple[int, float]] = []
        if not items:
            raise _error("a schedule needs at least one [env_steps, value] pair")
        for i, item in enumerate(items):
            if not isinstance(item, (list, tuple)) or len(item) != 2:
                raise _error(f"expected a pair [env_steps, value], got {item!r}", i)
            env_steps = _env_steps(item[0], i, 0)
            if i == 0 and env_steps:
                raise _error(f"a schedule starts at env step 0, not at {env_steps}", 0, 0)
            if i and env_steps <= points[-1][0]:
                raise _error(f"env steps must rise: {env_steps} follows {points[-1][0]}", i, 0)
            points.append((env_steps, self._number(item[1], (i, 1))))
        return tuple(points)

    def _decay(self, items: Mapping[str, Any]) -> Decay:
        kind = items.get("kind")
        if not isinstance(kind, str) or kind not in _KEYS:
            near = suggestion(kind, _KEYS) if isinstance(kind, str) else ""
            expected = f"expected kind: {' or kind: '.join(_KEYS)}"
            raise _error(
                f"{expected}, got {describe_value(kind)}{near}",
                *(["kind"] if "kind" in items else []),
            )
        for key in items:
            if key not in _KEYS[kind]:
                message = f"unknown key of {kind} decay{suggestion(str(key), _KEYS[kind])}"
                raise _error(message, key)
        for key in ("start", "end", "env_steps"):
            if key not in items:
                raise _error(f"{kind} decay needs {key}")
        start, end = (self._number(items[key], (key,)) for key in ("start", "end"))
        for key, value in (("start", start), ("end", end)):
            if kind == "exponential" and value <= 0:
                raise _error(f"exponential decay stays above 0, got {value:g}", key)
        power = Bounds(ge=1e-3, le=1e3)._number(items.get("power", 1.0), ("power",))
        env_steps = _env_steps(items["env_steps"], "env_steps")
        if not env_steps:
            raise _error("expected at least 1 env step, got 0", "env_steps")
        return Decay(kind, start, end, env_steps, power)

    def _number(self, value: Any, at: tuple[str | int, ...]) -> float:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if is_number and self.ge <= value <= self.le:
            return float(value)
        if is_number and value > self.le >= MOST:
            raise _error(f"expected at most {self.le:g}, got {describe_value(value)}", *at)
        if at:
            expected = f"expected a number{describe_bounds([self])}"
            raise _error(f"{expected}, got {describe_value(value)}", *at)
        raise PydanticCustomError("schedule_type", "expected a number or schedule")


Schedule = Annotated[float | Points | Decay, Bounds()]
"""A number, or one that changes with the env steps of the run, in one of the forms above."""
Coefficient = Annotated[Schedule, Bounds(ge=0, le=MOST)]
"""A weight, never negative."""
LearningRate = Annotated[Schedule, Bounds(ge=0, le=10)]
"""Steps of an optimizer; above 10 no network survives them."""
Probability = Annotated[Schedule, Bounds(ge=0, le=1)]
"""A number from 0 to 1."""
Temperature = Annotated[Schedule, Bounds(ge=1e-6, le=MOST)]
"""A divisor of values, never 0."""


def _env_steps(value: Any, *at: str | int) -> int:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if is_number and 0 <= value <= _MOST_ENV_STEPS and value == int(value):
        return int(value)
    expected = f"expected a whole number of env steps, at most {_MOST_ENV_STEPS:,}"
    raise _error(f"{expected}, got {describe_value(value)}", *at)


def _error(message: str, *at: str | int) -> PydanticCustomError:
    return PydanticCustomError("schedule", "{message}", {"message": message, "at": at})
