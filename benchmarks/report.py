"""Writes the tables of all recorded benchmarks into docs/benchmarks.md, and one picture of them."""

import argparse
from pathlib import Path

from benchmarks import (
    asynchronous_work,
    equal_work,
    gpu_work,
    kinds_of_work,
    learning,
    parts,
    plot,
    replay_work,
    scaling,
    slow_env,
    start_up,
    sweep,
    time_to_solve,
)
from benchmarks.machine import REPOSITORY
from benchmarks.record import RESULTS, Record

PAGE = REPOSITORY / "docs" / "benchmarks.md"
BEGIN = "<!-- results: begin (written by `python -m benchmarks.report`, do not edit) -->"
END = "<!-- results: end -->"
SECTIONS = (
    (equal_work, "Equal work: CartPole-v1, env steps per second"),
    (kinds_of_work, "Equal work of other kinds: PPO, steps per second"),
    (replay_work, "Equal work with replay: DQN on CartPole-v1, SAC on Pendulum-v1"),
    (asynchronous_work, "Asynchronous work: APPO on CartPole-v1, env steps per second"),
    (slow_env, "An env step that costs 100 µs"),
    (scaling, "Weak scaling: an env step that sleeps 10 ms, a cluster of four nodes"),
    (sweep, "A sweep of 64 trials"),
    (start_up, "Start-up and memory"),
    (time_to_solve, "Time to solve CartPole-v1"),
    (gpu_work, "Updates on a GPU"),
    (parts, "Parts"),
)
NOTHING = "No measurement is recorded yet."


def results(folder: Path) -> str:
    """One section a recorded benchmark; medians with the lowest and highest in parentheses."""
    sections = []
    for benchmark, title in SECTIONS:
        path = folder / f"{benchmark.BENCHMARK}.json"
        if path.exists():
            sections.append(f"### {title}\n\n{benchmark.table(Record.load(path))}")
    if learned := learning.table(folder):
        sections.append(f"### What is learned\n\n{learned}")
    return "\n\n".join(sections) or NOTHING


def insert(page: str, text: str) -> str:
    """The page with `text` between the markers."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"the page has no {BEGIN} ... {END}")
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{after}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the JSON files")
    parser.add_argument("--page", type=Path, default=PAGE, help="default docs/benchmarks.md")
    options = parser.parse_args()
    options.page.write_text(insert(options.page.read_text(), results(options.results)))
    plot.draw(options.results, options.page.with_suffix(".png"))
    print(f"wrote {options.page} and its picture")


if __name__ == "__main__":
    main()
