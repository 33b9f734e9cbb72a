"""Env steps per second of PPO on CartPole-v1 at equal work: the same networks, batch and epochs.

8 envs x 128 steps = 1,024 a batch, separate 64 x 64 tanh MLPs, 4 epochs x 4 minibatches of 256,
Adam 2.5e-4, one thread, no GPU. Each round runs every contender once, in a process of its own,
and measures after a warm-up. With the defaults it takes about six minutes on two cores.
"""

from benchmarks import harness, summary
from benchmarks.harness import Contender
from benchmarks.peers.driver import EqualWork
from benchmarks.record import Record

BENCHMARK = "equal_work"
CONTENDERS = (
    harness.RLRUN,
    harness.RLRUN_VECTOR,
    harness.RLRUN_COMPILED,
    harness.RLRUN_1,
    harness.RLRUN_2,
    harness.RLRUN_1_AHEAD,
    harness.RLRUN_2_AHEAD,
    harness.SB3,
    harness.CLEANRL,
    harness.RLLIB,
    harness.RLLIB_2,
    harness.BARE,
)


def table(record: Record) -> str:
    """Rates, milliseconds per 1,024 steps, and how many times faster rlrun with 0 runners is."""
    ours = record.values(harness.RLRUN.name, "env_steps_per_s")
    rows = []
    for name in record.contenders:
        rates = record.values(name, "env_steps_per_s")
        phases = [
            summary.cell(record.values(name, f"{phase}_ms"), 1)
            for phase in ("sampling", "learning")
        ]
        rows.append([name, summary.cell(rates), *phases, summary.ratio_cell(ours, rates)])
    header = [
        "",
        "env steps/s",
        "sampling ms",
        "learning ms",
        "rlrun (0 runners) is x times as fast",
    ]
    return f"{summary.markdown_table(header, rows)}\n\n{summary.footer(record)}"


def main() -> None:
    parser = harness.arguments_parser(__doc__, rounds=3)
    parser.add_argument("--steps", type=int, default=81_920, help="measured; default %(default)s")
    parser.add_argument("--warmup-steps", type=int, default=8_192, help="default %(default)s")
    options = parser.parse_args()
    settings = {
        "steps": options.steps,
        "warmup_steps": options.warmup_steps,
        "work": EqualWork().settings(),
    }

    def measure(contender: Contender, round_: int) -> dict[str, object]:
        return harness.run_throughput(
            contender,
            steps=options.steps,
            warmup_steps=options.warmup_steps,
            seed=round_,
        )

    record = harness.run_benchmark(BENCHMARK, CONTENDERS, options, settings, measure)
    harness.finish(record, table(record))


if __name__ == "__main__":
    main()
