"""What a verification has come to, as rows of text: for the terminal, for pipes and for the page.

Owns the columns and how a number is written. It must not know where the text goes.
"""

from collections.abc import Iterable, Sequence

from rlrun.experiment.stopping import number
from rlrun.experiment.verify.cases import Case
from rlrun.experiment.verify.verify import CaseResult

Table = tuple[tuple[str, ...], list[tuple[str, ...]]]
"""Headings, rows of cells."""

NUMERIC = frozenset(
    {
        "env steps",
        "budget",
        "expected",
        "reached",
        "95% interval",
        "seed",
        "training",
        "goal",
        "evaluation",
    }
)
"""Headings of columns that are aligned to the right."""


def case_table(cases: Sequence[Case]) -> Table:
    """The cases and the numbers they are held against."""
    heads = ("case", "algorithm", "env", "budget", "kind", "expected", "published", "source")
    rows: list[tuple[str, ...]] = [
        (
            case.name,
            case.algorithm,
            case.env,
            f"{case.reference.env_steps:,}",
            case.reference.kind,
            number(case.reference.number),
            case.reference.published,
            case.reference.source,
        )
        for case in cases
    ]
    return heads, rows


def result_table(results: Sequence[CaseResult]) -> Table:
    """Expected and reached, side by side."""
    heads = (
        "case",
        "kind",
        "budget",
        "env steps",
        "expected",
        "reached",
        "95% interval",
        "verdict",
    )
    rows: list[tuple[str, ...]] = [
        (
            result.case.name,
            result.case.reference.kind,
            f"{result.case.reference.env_steps:,}",
            _range(seed.env_steps for seed in result.seeds),
            number(result.case.reference.number),
            _rounded(result.iqm),
            " to ".join(map(_rounded, result.interval or ())),
            _verdict(result),
        )
        for result in results
    ]
    return heads, rows


def seed_table(results: Sequence[CaseResult]) -> Table:
    """Everything that was measured, a row a seed."""
    heads = ("case", "seed", "env steps", "training", "goal", "evaluation")
    rows: list[tuple[str, ...]] = [
        (
            result.case.name,
            str(seed.seed),
            f"{seed.env_steps:,}",
            _rounded(seed.training),
            _rounded(seed.goal),
            _rounded(seed.evaluation),
        )
        for result in results
        for seed in result.seeds
    ]
    return heads, rows


def _rounded(value: float | None) -> str:
    return "" if value is None else number(round(value, 2))


def _range(counts: Iterable[int]) -> str:
    ends = sorted(counts)
    return " to ".join(f"{end:,}" for end in dict.fromkeys((ends[0], ends[-1]))) if ends else ""


def _verdict(result: CaseResult) -> str:
    if result.verdict == "unfinished":
        return f"unfinished, {len(result.numbers)} of {result.wanted} seeds"
    return result.verdict


def plain_lines(table: Table) -> list[str]:
    """The table in columns of spaces."""
    heads, rows = table
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if head in NUMERIC else cell.ljust(width)
            for cell, width, head in zip(row, widths, heads, strict=True)
        ).rstrip()
        for row in (heads, *rows)
    ]


def markdown_lines(table: Table) -> list[str]:
    """The table in Markdown."""
    heads, rows = table
    rule = ["---:" if head in NUMERIC else "---" for head in heads]
    return [f"| {' | '.join(row)} |" for row in (heads, tuple(rule), *rows)]
