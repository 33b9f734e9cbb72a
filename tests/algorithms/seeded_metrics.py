"""The part of results that a seed decides, which is what two runs are compared by."""

from collections.abc import Iterator, Mapping
from typing import Any

from rlrun.algorithms.result import is_wall_clock


def flat(result: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """``a/b/c`` and value of each leaf."""
    for key, value in result.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}/")
        else:
            yield f"{prefix}{key}", value


def seeded_part(result: Mapping[str, Any]) -> dict[str, Any]:
    """A result without what the clock says."""
    return {key: value for key, value in flat(result) if not is_wall_clock(key)}
