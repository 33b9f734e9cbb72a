"""One picture of all recorded benchmarks: how many times as fast rlrun is as each peer.

A bar is the median of the ratios that were taken round by round, a line the lowest to the highest.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks import (
    asynchronous_work,
    equal_work,
    harness,
    kinds_of_work,
    replay_work,
    slow_env,
    time_to_solve,
)
from benchmarks.record import Record
from benchmarks.summary import Range, paired_ratio

COLORS = {
    "Stable-Baselines3": "#4c78a8",
    "CleanRL": "#f58518",
    "RLlib": "#54a24b",
    "Sample Factory": "#b279a2",
}


@dataclass(frozen=True)
class Row:
    """One kind of work: contenders by their names in the record.

    Args:
        value: measured of each; ``lower`` says that less of it is faster.
    """

    title: str
    benchmark: str
    ours: str
    peers: dict[str, str]
    value: str = "env_steps_per_s"
    lower: bool = False

    def ratios(self, folder: Path) -> Iterator[tuple[str, Range]]:
        """The peers that were measured, each with rlrun's ratio to it."""
        path = folder / f"{self.benchmark}.json"
        if not path.exists():
            return
        record = Record.load(path)
        ours = record.values(self.ours, self.value)
        for peer, name in self.peers.items():
            theirs = record.values(name, self.value)
            ratio = paired_ratio(theirs, ours) if self.lower else paired_ratio(ours, theirs)
            if ratio is not None:
                yield peer, ratio


def rows() -> list[Row]:
    """All kinds of work, from the top to the bottom of the picture."""
    sb3 = "Stable-Baselines3"
    peers = {sb3: harness.SB3.name, "CleanRL": harness.CLEANRL.name, "RLlib": harness.RLLIB.name}
    return [
        Row("PPO, CartPole-v1", equal_work.BENCHMARK, harness.RLRUN.name, peers),
        Row(
            "the same, sampled ahead by one runner",
            equal_work.BENCHMARK,
            harness.RLRUN_1_AHEAD.name,
            {sb3: harness.SB3.name},
        ),
        Row(
            "the same, two processes, env steps of 100 µs",
            slow_env.BENCHMARK,
            harness.RLRUN_2.name,
            {sb3: harness.SB3.name, "RLlib": harness.RLLIB_2.name},
        ),
        Row(
            "APPO, CartPole-v1, two processes that sample",
            asynchronous_work.BENCHMARK,
            asynchronous_work.OURS.name,
            {peer: contender.name for peer, contender in asynchronous_work.PEERS.items()},
        ),
        *(
            Row(f"PPO, {title}", kinds_of_work.BENCHMARK, f"rlrun, {work}", {sb3: f"{sb3}, {work}"})
            for work, title in kinds_of_work.KINDS.items()
        ),
        *(
            Row(
                f"{algorithm}, {env}",
                replay_work.BENCHMARK,
                f"rlrun, {algorithm}",
                {peer: f"{peer}, {algorithm}" for peer in COLORS},
            )
            for algorithm, env in (("DQN", "CartPole-v1"), ("SAC", "Pendulum-v1"))
        ),
        Row(
            "CartPole-v1 solved, from process start",
            time_to_solve.BENCHMARK,
            time_to_solve.RLRUN.name,
            {sb3: time_to_solve.SB3.name},
            "solved_s",
            lower=True,
        ),
    ]


def draw(folder: Path, target: Path) -> None:
    """Write the picture of the records in a folder."""
    drawn = [(row.title, [*row.ratios(folder)]) for row in rows()]
    drawn = [(title, ratios) for title, ratios in drawn if ratios]
    num_bars = sum(len(ratios) for _, ratios in drawn)
    figure = Figure(figsize=(8, 0.8 + 0.24 * num_bars + 0.16 * len(drawn)), layout="constrained")
    FigureCanvasAgg(figure)
    axes, place, ticks = figure.subplots(), 0.0, list[float]()
    for _, ratios in drawn:
        ticks.append(place - 0.5 * (len(ratios) - 1))
        for peer, ratio in ratios:
            around = [[ratio.median - ratio.low], [ratio.high - ratio.median]]
            width, color = ratio.median - 1.0, COLORS[peer]
            axes.barh(place, width, left=1.0, height=0.8, color=color, xerr=around)
            axes.text(ratio.high * 1.04, place, f"{ratio.median:.1f}", va="center", fontsize=8)
            place -= 1.0
        place -= 0.7
    axes.set_yticks(ticks, [title for title, _ in drawn], fontsize=8)
    axes.set_xscale("log", base=2)
    lowest = min(ratio.low for _, ratios in drawn for _, ratio in ratios)
    highest = max(ratio.high for _, ratios in drawn for _, ratio in ratios)
    axes.set_xlim(0.9 * min(lowest, 1.0), highest * 1.5)
    marks = [2**power for power in range(8) if 2**power <= highest * 1.5]
    axes.set_xticks(marks, [str(mark) for mark in marks])
    axes.minorticks_off()
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_xlabel("rlrun is so many times as fast")
    for peer, color in COLORS.items():
        axes.bar(1.0, 0.0, color=color, label=peer)
    axes.legend(loc="lower right", fontsize=8)
    figure.savefig(target, dpi=110, metadata={"Software": None})
