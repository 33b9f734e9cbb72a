"""What Ray actors gain when an env step costs 100 us of CPU: 0, 1 and 2 runners side by side.

With the settings of `benchmarks.equal_work`; only the env differs. The peers are there for
comparison: `--contenders rlrun rlrun-2` leaves them out. Seven minutes with the defaults.
"""

from benchmarks import harness, summary
from benchmarks.environments import STEP_S
from benchmarks.harness import Contender
from benchmarks.peers.driver import WORKS
from benchmarks.record import Record

BENCHMARK = "slow_env"
WORK = "slow-cartpole"
CONTENDERS = (
    harness.RLRUN,
    harness.RLRUN_1,
    harness.RLRUN_2,
    harness.RLRUN_1_AHEAD,
    harness.RLRUN_2_AHEAD,
    harness.SB3,
    harness.RLLIB,
    harness.RLLIB_2,
)


def table(record: Record) -> str:
    """Rates, and each one as a multiple of the same framework with 0 runners and of rlrun's."""
    rlrun = record.values(harness.RLRUN.name, "env_steps_per_s")
    rows = []
    for name in record.contenders:
        rates = record.values(name, "env_steps_per_s")
        framework = name.split(",")[0]
        alone = record.values(f"{framework}, 0 runners", "env_steps_per_s")
        phases = [
            summary.cell(record.values(name, f"{phase}_ms"), 1)
            for phase in ("sampling", "learning")
        ]
        gain, ratio = summary.ratio_cell(rates, alone), summary.ratio_cell(rlrun, rates)
        rows.append([name, summary.cell(rates), *phases, gain, ratio])
    header = [
        *("", "env steps/s", "sampling ms", "learning ms"),
        *("x of its 0 runners", "rlrun (0 runners) is x times as fast"),
    ]
    return f"{summary.markdown_table(header, rows)}\n\n{summary.footer(record)}"


def main() -> None:
    parser = harness.arguments_parser(__doc__, rounds=3)
    parser.add_argument("--steps", type=int, default=40_960, help="measured; default %(default)s")
    parser.add_argument("--warmup-steps", type=int, default=8_192, help="default %(default)s")
    options = parser.parse_args()
    settings = {
        "steps": options.steps,
        "warmup_steps": options.warmup_steps,
        "env_step_s": STEP_S,
        "work": WORKS[WORK].settings(),
    }

    def measure(contender: Contender, round_: int) -> dict[str, object]:
        return harness.run_throughput(
            contender,
            *("--work", WORK),
            steps=options.steps,
            warmup_steps=options.warmup_steps,
            seed=round_,
        )

    record = harness.run_benchmark(BENCHMARK, CONTENDERS, options, settings, measure)
    harness.finish(record, table(record))


if __name__ == "__main__":
    main()
