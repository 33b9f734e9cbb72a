"""Microseconds of the parts of an iteration: acting, stepping, GAE, gradient steps, Ray's calls.

A single action, loading the policy that chooses it, and prioritised replay too.
What they are and how they are timed is in `benchmarks/peers/parts.py`; each group runs in a
process of its own, `--contenders` chooses groups. Three minutes with the defaults.
"""

from typing import Any

from benchmarks import harness, summary
from benchmarks.harness import Contender, MeasurementError
from benchmarks.record import Record

BENCHMARK = "parts"
GROUPS = ("policy", "single", "env", "gae", "update", "sac", "replay", "ray")
CONTENDERS = tuple(Contender(group, group, "parts", ("--group", group)) for group in GROUPS)


def table(record: Record) -> str:
    """One row a part, in microseconds; the first of a group is the unit of its ratios."""
    rows = []
    for group in record.contenders:
        parts = part_names(record, group)
        for part in parts:
            values = record.values(group, f"us/{part}")
            digits = 1 if max(values.values()) < 1000 else 0
            first = record.values(group, f"us/{parts[0]}")
            rows.append([part, summary.cell(values, digits), summary.ratio_cell(values, first)])
    header = ["", "microseconds", "x of the first of its group"]
    return f"{summary.markdown_table(header, rows)}\n\n{summary.footer(record)}"


def part_names(record: Record, group: str) -> list[str]:
    """Names of the parts of a group, in the order they were measured."""
    results: list[dict[str, Any]] = [
        entry["result"]["us"]
        for entry in record.measurements
        if entry["contender"] == group and "result" in entry
    ]
    return list(dict.fromkeys(name for result in results for name in result))


def main() -> None:
    parser = harness.arguments_parser(__doc__, rounds=5)
    options = parser.parse_args()

    def measure(contender: Contender, _: int) -> dict[str, Any]:
        result = harness.run_driver(contender, timeout_s=300)
        if not result["us"]:
            raise MeasurementError("the group has no parts")
        return result

    record = harness.run_benchmark(BENCHMARK, CONTENDERS, options, {}, measure)
    harness.finish(record, table(record))


if __name__ == "__main__":
    main()
