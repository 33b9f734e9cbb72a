"""Writes what tests of faults have measured into the table of docs/faults.md.

    FAULT_FIGURES=build/faults.jsonl pytest -m faults
    python -m tests.fault_figures build/faults.jsonl

Tests record with the fixture `record_fault`. A test that has not run keeps its figures in the page.
"""

import json
import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "docs" / "faults.md"
FIGURES = ("lost", "repeated", "recovery_s", "memory_mb")
_TEST = re.compile(r"`(tests/[\w/]+\.py::\w+)`")


def read_figures(path: Path) -> dict[str, dict[str, list[float]]]:
    """What was measured by test and figure, over all of its cases."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for line in map(json.loads, path.read_text().splitlines()):
        for figure in FIGURES:
            found[line["test"]][figure] += line.get(figure, [])
    return found


def cell(values: Sequence[float]) -> str:
    """The median and the most of several measurements; empty without any."""
    if not values:
        return ""
    middle, most = (f"{value:,.3g}" for value in (statistics.median(values), max(values)))
    several = f"{middle}, at most {most} of {len(values)}"
    return middle if len(values) == 1 or middle == most else several


def with_figures(text: str, figures: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    """A page with the figures in the last cells of the rows of these tests."""

    def replaced(line: str) -> str:
        found = _TEST.search(line)
        if found is None or found[1] not in figures or not line.startswith("|"):
            return line
        cells = line.strip("|").split("|")[: -len(FIGURES)]
        new = [f" {cell(figures[found[1]][figure])} " for figure in FIGURES]
        return "|" + "|".join([*cells, *new]) + "|"

    return "\n".join(map(replaced, text.split("\n")))


if __name__ == "__main__":
    PAGE.write_text(with_figures(PAGE.read_text(), read_figures(Path(sys.argv[1]))))
