"""Env steps per second of PPO on other kinds of work than CartPole's, beside Stable-Baselines3.

Equal work each: continuous actions, images, a memory, several agents, further terms of the loss;
1,024 steps a batch, 4 epochs x 4 minibatches, one thread, no GPU, no actors. The peers are in the
zoo's environment, which has sb3-contrib for the memory and SuperSuit for the agents. A third
contender steps the environments alone: what is left without their time is the framework's. A bare
numpy loop, for those works that it is written for, is the bound. With the defaults it takes ten
minutes, most of it for images and the memory.
"""

from collections.abc import Mapping

from benchmarks import harness, summary
from benchmarks.harness import Contender
from benchmarks.peers.driver import WORKS
from benchmarks.record import Record

BENCHMARK = "kinds_of_work"
KINDS = {
    "value-clipping": "CartPole-v1, clipped value loss",
    "kl": "CartPole-v1, a KL term (rlrun's alone)",
    "pendulum": "Pendulum-v1, continuous actions",
    "halfcheetah": "HalfCheetah-v5, continuous actions",
    "lstm": "CartPole-v1, LSTM of 64 units",
    "agents": "four cart-poles, one policy",
    "pong": "Pong, Nature CNN",
}
FRAMEWORKS = {
    "rlrun": ("rlrun", "rlrun"),
    "Stable-Baselines3": ("sb3", "zoo"),
    "environments alone": ("bare_env", "rlrun"),
}
"""Name -> its driver, and the virtual environment that this runs in."""
BARE = "bare numpy loop"
"""The bound of what a framework can reach, of the works that it has been written for."""
BARE_WORKS = ("value-clipping", "pendulum", "halfcheetah")
BFLOAT16 = "rlrun in bfloat16"
CONTENDERS = (
    *(
        Contender(f"{name}, {work}", f"{driver}-{work}", peer, ("--work", work), driver=driver)
        for work in KINDS
        for name, (driver, peer) in FRAMEWORKS.items()
        if (driver, work) != ("bare_env", "pong")  # each framework has an implementation of its own
    ),
    *(
        Contender(f"{BARE}, {work}", f"bare-{work}", "rlrun", ("--work", work), driver="bare_ppo")
        for work in BARE_WORKS
    ),
    Contender(
        f"{BFLOAT16}, pong",
        "rlrun-pong-bfloat16",
        "rlrun",
        ("--bfloat16", "--work", "pong"),
        driver="rlrun",
    ),
)


def table(record: Record) -> str:
    """A row a kind of work, with and without the time of its environments."""
    rows = []
    compared = [("rlrun", work, title) for work, title in KINDS.items()]
    compared.append((BFLOAT16, "pong", "the same, rlrun's convolutions in bfloat16"))
    for own, work, title in compared:
        names = [f"{name}, {work}" for name in (own, "Stable-Baselines3", "environments alone")]
        ours, theirs, alone = (record.values(name, "total_ms") for name in names)
        if not ours:
            continue
        rates = [summary.cell(record.values(name, "env_steps_per_s")) for name in names[:2]]
        without = summary.ratio_cell(_less(theirs, alone), _less(ours, alone))
        ratio = summary.ratio_cell(theirs, ours)
        share = summary.ratio_cell(record.values(f"{BARE}, {work}", "total_ms"), ours)
        rows.append([title, *rates, ratio, summary.cell(alone, 1), without, share])
    header = [
        "",
        "rlrun, steps/s",
        "Stable-Baselines3, steps/s",
        "rlrun is x times as fast",
        "environments alone, ms",
        "x without their time",
        "of a bare numpy loop's rate",
    ]
    return f"{summary.markdown_table(header, rows)}\n\n{summary.footer(record)}"


def _less(total_ms: Mapping[int, float], alone_ms: Mapping[int, float]) -> dict[int, float]:
    """What is left of each round's milliseconds, where that is a fifth of them or more.

    Of less, two measurements of the same environments differ by as much.
    """
    left = {r: total_ms[r] - alone_ms[r] for r in total_ms if r in alone_ms}
    return {r: rest for r, rest in left.items() if rest >= 0.2 * total_ms[r]}


def main() -> None:
    parser = harness.arguments_parser(__doc__, rounds=3)
    parser.add_argument("--steps", type=int, default=40_960, help="measured; default %(default)s")
    parser.add_argument("--image-steps", type=int, default=4_096, help="default %(default)s")
    options = parser.parse_args()
    settings = {
        "steps": options.steps,
        "image_steps": options.image_steps,
        "works": {name: WORKS[name].settings() for name in KINDS},
    }

    def measure(contender: Contender, round_: int) -> dict[str, object]:
        images = WORKS[contender.arguments[-1]].network == "cnn"
        steps, warmup_steps = (options.image_steps, 1_024) if images else (options.steps, 8_192)
        return harness.run_throughput(
            contender, steps=steps, warmup_steps=warmup_steps, seed=round_
        )

    record = harness.run_benchmark(BENCHMARK, CONTENDERS, options, settings, measure)
    harness.finish(record, table(record))


if __name__ == "__main__":
    main()
