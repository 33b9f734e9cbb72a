"""Medians, ranges, paired ratios, and the markdown tables made of them. Pure functions."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.record import Record


@dataclass(frozen=True)
class Range:
    """Median of some measurements with the lowest and the highest of them."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> "Range | None":
        """None of no values."""
        known = sorted(values)
        return cls(statistics.median(known), known[0], known[-1]) if known else None

    def text(self, digits: int = 0) -> str:
        """`median (low-high)` with so many digits after the point."""
        numbers = [f"{value:,.{digits}f}" for value in (self.median, self.low, self.high)]
        return f"{numbers[0]} ({numbers[1]}\N{EN DASH}{numbers[2]})"


def paired_ratio(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Range | None:
    """Range of ours / theirs, round by round.

    The contenders of a round ran within a minute of each other, so a machine that is slower for
    a while slows both sides of a ratio and leaves the ratio as it is.
    """
    return Range.of(ours[r] / theirs[r] for r in ours if theirs.get(r))


def cell(values: Mapping[int, float], digits: int = 0) -> str:
    """Range of the values as text; a dash where there are none."""
    found = Range.of(values.values())
    return found.text(digits) if found else "\N{EN DASH}"


def ratio_cell(ours: Mapping[int, float], theirs: Mapping[int, float]) -> str:
    """Paired ratio as text; a dash where no round has both."""
    found = paired_ratio(ours, theirs)
    return found.text(2) if found else "\N{EN DASH}"


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A markdown table, its first column left-aligned and the others right-aligned."""
    rule = [":---", *["---:"] * (len(header) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in [header, rule, *rows])


def footer(record: Record) -> str:
    """Machine, versions, rounds and failures: what a reader needs to judge a table."""
    about = record.machine
    rounds = len({entry["round"] for entry in record.measurements})
    load = max((entry.get("load", 0.0) for entry in record.measurements), default=0.0)
    lines = [
        f"{about['cores']} cores of {about['cpu']}, {about['memory_gb']} GB, {about['system']}, "
        f"Python {about['python']}, commit {about['commit']}, {about['date']}; "
        f"{rounds} interleaved round{'s' if rounds != 1 else ''}"
        f"{f' in {record.sessions} sessions' if record.sessions > 1 else ''}, "
        f"highest load average before a measurement {load:.1f}."
    ]
    # Contenders of one framework report the same versions: say them once.
    frameworks: dict[tuple[tuple[str, str], ...], dict[str, None]] = {}
    for name, versions in record.versions().items():
        known = sorted(pair for pair in versions.items() if pair[1] != "not installed")
        frameworks.setdefault(tuple(known), {})[name.split(",")[0]] = None
    for key, names in frameworks.items():
        lines.append(f"{', '.join(names)}: {', '.join(' '.join(pair) for pair in key)}.")
    for name, error in record.errors().items():
        lines.append(f"**Failed**: {name}: {error.splitlines()[-1]}")
    return "\n".join(f"- {line}" for line in lines)
