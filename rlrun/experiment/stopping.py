"""Stop criteria: when a run has what it was asked for.

Owns the rule of the ``stop:`` section: the run ends at the first iteration whose result holds any
of the named numbers at its bound or above (``>=``, so a return of -150 works as well). It must not
know who iterates. A mean return counts only once its window of episodes is full.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlrun.data.results import addresses, counts_already, lookup, number_at

COUNTERS = frozenset({"training_iteration", "env_steps", "agent_steps", "episodes", "time_s"})
"""Result keys that only grow: as criteria they are budgets, all others are goals."""


class StopKeyError(Exception):
    """A stop criterion names something that no result of this run holds."""

    exit_code = 2


@dataclass(frozen=True)
class Criterion:
    """One line of the ``stop:`` section."""

    address: str
    """Result key, ``a/b`` for nesting."""
    bound: float
    """Value that ends the run, itself included."""


@dataclass(frozen=True)
class Reached:
    """Why a run stopped."""

    address: str
    bound: float
    value: float

    def __str__(self) -> str:
        return f"{self.address} {number(self.value)} >= {number(self.bound)}"


class StopCriteria:
    """All criteria of a run; the first that is reached ends it."""

    def __init__(self, stop: Mapping[str, float], *, smoothing_episodes: int) -> None:
        self.criteria = tuple(Criterion(address, bound) for address, bound in stop.items())
        self.smoothing_episodes = smoothing_episodes

    def reached(self, result: Mapping[str, Any]) -> list[Reached]:
        """The criteria that ``result`` fulfils; null fulfils none."""
        found = []
        for criterion in self.criteria:
            value = number_at(result, criterion.address)
            if value is None or value < criterion.bound:
                continue
            if counts_already(criterion.address, result, self.smoothing_episodes):
                found.append(Reached(criterion.address, criterion.bound, value))
        return found

    def missed(self, result: Mapping[str, Any]) -> list[str]:
        """The goals that ``result`` does not reach, each with how far it got."""
        done = COUNTERS | {found.address for found in self.reached(result)}
        texts = []
        for criterion in self.criteria:
            if criterion.address not in done:
                value = number_at(result, criterion.address)
                got = "unknown" if value is None else number(value)
                texts.append(f"{criterion.address} {got} of {number(criterion.bound)}")
        return texts

    def check_keys(self, result: Mapping[str, Any]) -> None:
        """Raise StopKeyError for criteria that can never be reached, given one whole result.

        All results of a run have the keys of the first, so a key missing there is missing for good.
        """
        problems = []
        for criterion in self.criteria:
            try:
                value = lookup(result, criterion.address)
            except KeyError:
                problems.append(f"stop: {criterion.address}: {_suggest(criterion.address, result)}")
                continue
            if isinstance(value, Mapping):
                inside = ", ".join(f"{criterion.address}/{key}" for key in list(value)[:4])
                problems.append(
                    f"stop: {criterion.address}: a group, not a number; it has {inside}"
                )
        if problems:
            raise StopKeyError("\n".join(problems))


def _suggest(address: str, result: Mapping[str, Any]) -> str:
    known = list(addresses(result))
    last_part = address.rpartition("/")[2]
    same_last_part = [name for name in known if name.rpartition("/")[2] == last_part]
    near = same_last_part or difflib.get_close_matches(address, known, n=1, cutoff=0.5)
    return "no such result key" + (f" - did you mean {near[0]}?" if near else "")


def number(value: float) -> str:
    """A number as a person writes it: 300,000 and 475 and 412.53 and 0.00012."""
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.2f}" if abs(value) >= 1 else f"{value:.4g}"
