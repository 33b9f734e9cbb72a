"""Result rows: a result as plain JSON values, addressed as ``a/b``.

Owns the values that metrics.jsonl may hold: numbers of numpy and torch become Python's, numbers
that are not finite become None (JSON has no NaN), and every row has the keys of the first. It knows
the few addresses that several rooms read, and must not know how their numbers are computed
(algorithms/result.py).
"""

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from rlrun.data.media import Media

Row = dict[str, Any]
"""Nested: text -> bool, int, float, text, None, or another such dict."""
RETURN = "episode_return_mean"
"""Address of a run's mean return; with ``evaluation/`` before it, of the last evaluation's."""
SUCCESS_RATE = "env_runners/success_rate"
"""Address of the share of episodes whose last info says that they were successful."""
_OVER_THE_WINDOW = re.compile(
    r"episode_(return_mean|return_min|return_max|len_mean)$|custom_metrics/"
    r"|env_runners/(success_rate$|policy_|agent_return_)"
)
"""Addresses of numbers over the last `report.smoothing_episodes` episodes."""


def plain_row(result: Mapping[str, Any]) -> Row:
    """A copy of a result as plain JSON values: exact floats, None for NaN and infinities.

    Integers beyond the largest float are infinities, too. Histograms, images and videos are left
    out.
    """
    numbers = ((key, value) for key, value in result.items() if not isinstance(value, Media))
    return {str(key): _plain(value) for key, value in numbers}


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        value = value.tolist()
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int | float):
        return value if _finite(value) is not None else None
    if isinstance(value, Mapping):
        return plain_row(value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value)


def lookup(row: Mapping[str, Any], address: str) -> Any:
    """The value at ``a/b``; KeyError if there is none. Keys may contain slashes: the longest wins.

    So every address of `addresses` is found, such as ``stop/evaluation/episode_return_mean`` in a
    config whose section ``stop`` has a key with a slash.
    """
    if address in row:
        return row[address]
    end = len(address)
    while (end := address.rfind("/", 0, end)) > 0:
        inner = row.get(address[:end])
        if isinstance(inner, Mapping):
            with suppress(KeyError):
                return lookup(inner, address[end + 1 :])
    raise KeyError(address)


def number_at(row: Mapping[str, Any], address: str) -> float | None:
    """The finite number at ``a/b``; None if it is missing or not a number."""
    try:
        return _finite(lookup(row, address))
    except KeyError:
        return None


def _finite(value: Any) -> float | None:
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, int | float) and not isinstance(value, bool):
        with suppress(OverflowError):  # of an integer beyond the largest float
            return float(value) if math.isfinite(value) else None
    return None


def is_by_name(address: str) -> bool:
    """Whether a value is of one policy or agent; the keys of these change during a run."""
    tables = address.split("/")[:-1]
    return any(name.startswith(("learners", "policy_", "agent_return_")) for name in tables)


def comes_later(address: str) -> bool:
    """Whether a key may appear only after the first episode or evaluation that adds it."""
    group, _, name = address.partition("/")
    if group == "env_runners":
        return name.partition("/")[0] in ("success_rate", "policy_success_rate")
    return group in ("custom_metrics", "evaluation")


def addresses(row: Mapping[str, Any]) -> Iterator[str]:
    """Addresses of all values that are not dicts, in the row's order."""
    return iter(flat(row))


def flat(row: Mapping[str, Any], separator: str = "/") -> dict[str, Any]:
    """Address -> value for all values that are not dicts, in the row's order."""
    found: dict[str, Any] = {}
    for key, value in row.items():
        name = str(key).replace("/", separator)
        if isinstance(value, Mapping):
            below = flat(value, separator).items()
            found |= {f"{name}{separator}{further}": leaf for further, leaf in below}
        else:
            found[name] = value
    return found


def flat_numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """Address -> value for all finite numbers."""
    found = {key: _finite(value) for key, value in flat(row).items()}
    return {key: value for key, value in found.items() if value is not None}


def with_keys_of(template: Mapping[str, Any], row: Row) -> Row:
    """``row`` with the template's keys in their order, None if missing; other keys come last."""
    filled: Row = {}
    for key, expected in template.items():
        value = row.get(key)
        if isinstance(expected, Mapping):
            filled[key] = with_keys_of(expected, value if isinstance(value, dict) else {})
        else:
            filled[key] = value
    for key, value in row.items():
        filled.setdefault(key, value)
    return filled


def with_later_keys(template: Row, row: Row, prefix: str = "") -> Row:
    """The template, extended by the row's further keys, except those that are `is_by_name`."""
    grown = dict(template)
    for key, value in row.items():
        address = f"{prefix}{key}"
        if isinstance(value, dict):
            inner = template.get(key)
            known = inner if isinstance(inner, dict) else {}
            if found := with_later_keys(known, value, f"{address}/"):
                grown[key] = found
        elif not is_by_name(address):
            grown.setdefault(key, value)
    return grown


def counts_already(address: str, row: Mapping[str, Any], smoothing_episodes: int) -> bool:
    """Whether the number at ``address`` is meaningful: one over a window needs it to be full.

    The mean of three lucky episodes would otherwise end a run or name a best checkpoint; the first
    to end are the short ones.
    """
    if _OVER_THE_WINDOW.match(address) is None:
        return True
    episodes = number_at(row, "episodes_in_mean")
    return episodes is None or episodes >= smoothing_episodes
