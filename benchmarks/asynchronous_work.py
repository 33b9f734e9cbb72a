"""Env steps per second of asynchronous algorithms on CartPole-v1 at equal work.

APPO with the batches and coefficients that are Sample Factory's defaults: a gradient step on each
batch of 1,024 as it arrives, fragments of 32 steps; separate 64 x 64 tanh MLPs, 16 environments in
each of the processes that sample. Sample Factory computes actions in a process of its own and
advantages by GAE, rlrun and RLlib act where they sample and compute V-trace. Counted are env steps
that were learned from, of RLlib those sampled, for 10 s after a warm-up of 5 s. Ten minutes with
the defaults, on two cores.
"""

from benchmarks import harness, summary
from benchmarks.harness import Contender
from benchmarks.peers.asynchronous_driver import AsynchronousWork
from benchmarks.record import Record

BENCHMARK = "asynchronous_work"


def _contender(name: str, key: str, peer: str, driver: str, *arguments: str) -> Contender:
    return Contender(name, key, peer, arguments, driver=driver)


RLRUN, SAMPLE_FACTORY, RLLIB = (
    ("rlrun", "rlrun_asynchronous"),
    ("sample_factory", "sample_factory"),
    ("rllib", "rllib_asynchronous"),
)
ONE, IMPALA = ("--runners", "1"), ("--algorithm", "impala")
OURS = _contender("rlrun, APPO, 2 runners", "rlrun-2", *RLRUN)
PEERS = {
    "Sample Factory": _contender(
        "Sample Factory, APPO, 2 workers", "sample-factory-2", *SAMPLE_FACTORY
    ),
    "RLlib": _contender("RLlib, APPO, 2 runners", "rllib-2", *RLLIB),
}
"""With two processes that sample, as `OURS` has."""
CONTENDERS = (
    OURS,
    _contender("rlrun, IMPALA, 2 runners", "impala-2", *RLRUN, *IMPALA),
    _contender("rlrun, APPO, 1 runner", "rlrun-1", *RLRUN, *ONE),
    _contender("rlrun, 1 runner, nothing learned", "alone-1", *RLRUN, *ONE, "--sampling-alone"),
    PEERS["Sample Factory"],
    _contender("Sample Factory, APPO, 1 worker", "sample-factory-1", *SAMPLE_FACTORY, *ONE),
    PEERS["RLlib"],
    _contender("RLlib, IMPALA, 2 runners", "rllib-impala-2", *RLLIB, *IMPALA),
)


def table(record: Record) -> str:
    """Rates, and how many times faster rlrun's APPO with 2 runners is."""
    ours = record.values(OURS.name, "env_steps_per_s")
    rows = []
    for name in record.contenders:
        rates = record.values(name, "env_steps_per_s")
        rows.append([name, summary.cell(rates), summary.ratio_cell(ours, rates)])
    header = ["", "env steps/s", "rlrun (APPO, 2 runners) is x times as fast"]
    return f"{summary.markdown_table(header, rows)}\n\n{summary.footer(record)}"


def main() -> None:
    parser = harness.arguments_parser(__doc__, rounds=3)
    parser.add_argument("--seconds", type=float, default=10.0, help="measured; default %(default)s")
    parser.add_argument("--warmup-s", type=float, default=5.0, help="default %(default)s")
    options = parser.parse_args()
    settings = {
        "seconds": options.seconds,
        "warmup_s": options.warmup_s,
        "work": AsynchronousWork().settings(),
    }

    def measure(contender: Contender, round_: int) -> dict[str, object]:
        clock = "--seconds", str(options.seconds), "--warmup-s", str(options.warmup_s)
        return harness.run_driver(contender, *clock, "--seed", str(round_))

    record = harness.run_benchmark(BENCHMARK, CONTENDERS, options, settings, measure)
    harness.finish(record, table(record))


if __name__ == "__main__":
    main()
