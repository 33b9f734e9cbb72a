"""Env steps per second, updates included, of DQN on CartPole-v1 and SAC on Pendulum-v1.

Equal work: the same networks, minibatches and updates per env step, one environment, one thread, no
GPU. Each round runs every contender once, in a process of its own, and measures after a warm-up in
which learning has begun. With the defaults it takes about half an hour on two cores, most of it
RLlib's.
"""

from dataclasses import asdict

from benchmarks import harness, summary
from benchmarks.harness import Contender
from benchmarks.peers.replay_driver import DQNWork, SACWork
from benchmarks.record import Record

BENCHMARK = "replay_work"
FRAMEWORKS = {
    "rlrun": "rlrun",
    "sb3": "Stable-Baselines3",
    "cleanrl": "CleanRL",
    "rllib": "RLlib",
}
CONTENDERS = tuple(
    Contender(
        f"{name}, {algorithm.upper()}",
        f"{peer}-{algorithm}",
        peer,
        ("--algorithm", algorithm),
        driver=f"{peer}_replay",
    )
    for algorithm in ("dqn", "sac")
    for peer, name in FRAMEWORKS.items()
)
CONTENDERS += (
    Contender(
        "bare numpy loop, DQN", "bare-dqn", "rlrun", ("--algorithm", "dqn"), driver="bare_replay"
    ),
)
"""And the bound of what a framework can reach."""


def table(record: Record) -> str:
    """Rates, and how many times as fast rlrun is at the same algorithm."""
    rows = []
    for name in record.contenders:
        rates = record.values(name, "env_steps_per_s")
        ours = record.values(f"rlrun, {name.rpartition(', ')[2]}", "env_steps_per_s")
        phases = [
            summary.cell(record.values(name, f"{phase}_ms"), 1)
            for phase in ("sampling", "learning")
        ]
        rows.append([name, summary.cell(rates), *phases, summary.ratio_cell(ours, rates)])
    header = ["", "env steps/s", "sampling ms", "learning ms", "rlrun is x times as fast"]
    return f"{summary.markdown_table(header, rows)}\n\n{summary.footer(record)}"


def main() -> None:
    parser = harness.arguments_parser(__doc__, rounds=3)
    parser.add_argument("--dqn-steps", type=int, default=40_000, help="default %(default)s")
    parser.add_argument("--sac-steps", type=int, default=2_000, help="default %(default)s")
    options = parser.parse_args()
    steps = {"dqn": options.dqn_steps, "sac": options.sac_steps}
    settings = {
        "steps": steps,
        "dqn": {**asdict(DQNWork()), "hidden": list(DQNWork().hidden)},
        "sac": {**asdict(SACWork()), "hidden": list(SACWork().hidden)},
    }
    warmup = {"dqn": 2 * DQNWork().learning_starts, "sac": 2 * SACWork().learning_starts}

    def measure(contender: Contender, round_: int) -> dict[str, object]:
        algorithm = contender.arguments[-1]
        return harness.run_driver(
            contender,
            *("--warmup-steps", str(warmup[algorithm]), "--steps", str(steps[algorithm])),
            *("--seed", str(round_)),
        )

    record = harness.run_benchmark(BENCHMARK, CONTENDERS, options, settings, measure)
    harness.finish(record, table(record))


if __name__ == "__main__":
    main()
