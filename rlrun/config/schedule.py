"""The type `Schedule`: a number that may change while the run goes on.

Owns what a schedule may look like, and the errors that name the item that is wrong. Must not know
which settings are schedules (schema.py), nor what one is worth at a step (`value_at`).
"""

from typing import Annotated, Any

from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError


def check_schedule(value: Any) -> Any:
    """Turn ``[[env_steps, value], ...]`` into tuples; errors name the item that is wrong."""
    if not isinstance(value, (list, tuple)):
        return value
    points: list[tuple[int, float]] = []
    if not value:
        raise _schedule_error("a schedule needs at least one [env_steps, value] pair", [])
    for i, point in enumerate(value):
        if not isinstance(point, (list, tuple)) or len(point) != 2:
            raise _schedule_error(f"expected a pair [env_steps, value], got {point!r}", [i])
        for j, number in enumerate(point):
            if isinstance(number, bool) or not isinstance(number, (int, float)):
                raise _schedule_error(f"expected a number, got {number!r}", [i, j])
        if point[0] != int(point[0]) or point[0] < 0:
            raise _schedule_error(f"env_steps is a whole number, got {point[0]!r}", [i, 0])
        if i == 0 and point[0] != 0:
            raise _schedule_error(f"a schedule starts at env step 0, not at {point[0]}", [0, 0])
        if i and point[0] <= points[-1][0]:
            message = f"env steps must rise: {point[0]} follows {points[-1][0]}"
            raise _schedule_error(message, [i, 0])
        points.append((int(point[0]), float(point[1])))
    return tuple(points)


def _schedule_error(message: str, at: list[int]) -> PydanticCustomError:
    return PydanticCustomError("schedule", "{message}", {"message": message, "at": at})


Schedule = Annotated[float | tuple[tuple[int, float], ...], BeforeValidator(check_schedule)]
"""A number, or ``[[env_steps, value], ...]``: linear between points, constant after the last."""
