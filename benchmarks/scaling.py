"""Weak scaling: 1 to 64 env runners on a Ray cluster of four nodes, all on this machine.

An env step sleeps 10 ms, as if the simulator were elsewhere, so a few cores hold 64 runners; each
of them samples the same number of env steps in an iteration of PPO. Driver, Ray and what runners do
between two steps take processor time nevertheless: above 32 runners two cores are the limit.
Ten minutes a round.
"""

from benchmarks import harness, summary
from benchmarks.environments import SLEEP_S
from benchmarks.harness import Contender
from benchmarks.record import Record

BENCHMARK = "scaling"
NODES = 4
STEPS_PER_RUNNER = 128


def runners(number: int) -> Contender:
    """rlrun with so many runners."""
    name = f"rlrun, {number} runner{'s' if number > 1 else ''}"
    arguments = ("--runners", str(number), "--nodes", str(NODES), "--steps", str(STEPS_PER_RUNNER))
    return Contender(name, str(number), "rlrun", arguments, driver="rlrun_cluster")


CONTENDERS = tuple(runners(2**power) for power in range(7))


def table(record: Record) -> str:
    """Rates, efficiency beside one runner, and what the driver does and moves."""
    alone = CONTENDERS[0].name
    rows = []
    for name in record.contenders:
        row = [name, summary.cell(record.values(name, "env_steps_per_s"))]
        for phase in ("sampling_ms", "iteration_ms"):
            row.append(summary.ratio_cell(record.values(alone, phase), record.values(name, phase)))
        row.append(summary.cell(record.values(name, "learning_ms"), 1))
        for part in ("main_thread", "ray", "process"):
            row.append(summary.cell(record.values(name, f"{part}_ms_per_runner"), 2))
        moved, once = (
            {r: value / 1e3 for r, value in record.values(name, f"bytes/{key}").items()}
            for key in ("moved", "once")
        )
        row += [summary.cell(moved), summary.ratio_cell(moved, once)]
        rows.append([*row, summary.cell(record.values(name, "runner_pss_mb"))])
    header = [
        *("", "env steps/s", "efficiency, sampling", "efficiency, iteration", "learning ms"),
        *("driver's main thread, ms a runner", "of it in Ray's functions"),
        "all its threads, ms a runner",
        *("KB moved", "x of weights and samples", "MB a runner"),
    ]
    return f"{summary.markdown_table(header, rows)}\n\n{summary.footer(record)}"


def main() -> None:
    parser = harness.arguments_parser(__doc__, rounds=3)
    parser.add_argument("--iterations", type=int, default=12, help="measured; default %(default)s")
    options = parser.parse_args()
    settings = {
        "iterations": options.iterations,
        "nodes": NODES,
        "steps_per_runner": STEPS_PER_RUNNER,
        "env_step_s": SLEEP_S,
    }

    def measure(contender: Contender, round_: int) -> dict[str, object]:
        task = ("--iterations", str(options.iterations), "--seed", str(round_))
        return harness.run_driver(contender, *task)

    record = harness.run_benchmark(BENCHMARK, CONTENDERS, options, settings, measure)
    harness.finish(record, table(record))


if __name__ == "__main__":
    main()
