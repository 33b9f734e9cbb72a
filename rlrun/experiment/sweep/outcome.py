"""The outcome of a sweep: the best settings as a file, a plot, and the last lines on the console.

Owns the words and the picture. It must not know how a sweep is run.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlrun.checkpoint.files import replace_text
from rlrun.config.sweep import Dimension
from rlrun.experiment.outcome import End
from rlrun.experiment.report.plots import save_panels
from rlrun.experiment.stopping import number
from rlrun.experiment.sweep.points import settings_text
from rlrun.experiment.sweep.trials import SweepFolder, Trial, TrialTable

_COLOURS = {"finished": "tab:blue", "stopped": "tab:gray"}


@dataclass(frozen=True)
class SweepOutcome:
    """How a sweep ended."""

    end: End
    folder: Path
    trials: tuple[Trial, ...]
    """In the order of their numbers."""
    best: Trial | None
    """The best trial of the best point; None without scores."""
    plot: Path | None = None
    """Picture of the settings against the score; None without matplotlib."""

    @property
    def all_failed(self) -> bool:
        """Whether there are trials and all of them failed."""
        return bool(self.trials) and all(trial.status == "failed" for trial in self.trials)


def write_best(folder: SweepFolder, table: TrialTable) -> Trial | None:
    """Write the best trial's experiment as best.yaml; None without scores."""
    best = table.best()
    if best is None or best.score is None:
        return None
    source = folder.path / best.folder / "config.yaml"
    if not source.is_file():
        return None
    point = table.score_of_point(best.point)
    seeds = len(table.of_point(best.point))
    mean = f", mean over {seeds} seeds {number(point)}" if seeds > 1 and point is not None else ""
    head = (
        f"# The best of {len(table.trials)} trials: number {best.trial}, "
        f"{table.metric} {number(best.score)}{mean}\n"
        f"# {settings_text(best.settings)}\n"
        f"# rlrun train {folder.best}\n"
    )
    replace_text(folder.best, head + source.read_text(encoding="utf-8"))
    return best


def sweep_lines(outcome: SweepOutcome, table: TrialTable) -> list[str]:
    """The outcome in a few lines, with the commands that may follow; the first is the headline."""
    counts = ", ".join(f"{count} {status}" for status, count in table.counts().items())
    headline = "Finished" if outcome.end == "finished" else "Interrupted"
    lines = [f"{headline}: {len(table.trials)} trials, {counts}"]
    failed = [trial for trial in table.trials if trial.status == "failed"]
    lines += [
        f"  failed      trial {trial.trial}: {trial.reason}; see {outcome.folder / str(trial.log)}"
        for trial in failed
    ]
    best, home = outcome.best, outcome.folder
    if best is not None and best.score is not None:
        score = f"{table.metric} {number(round(best.score, 4))}"
        lines.append(f"  best        trial {best.trial}: {score}, {settings_text(best.settings)}")
    lines.append(f"  sweep       {home}")
    if outcome.plot is not None:
        lines.append(f"  plot        {outcome.plot}")
    if best is not None:
        lines.append(f"  roll out    rlrun rollout {home / best.folder}")
        lines.append(f"  train       rlrun train {home / 'best.yaml'}")
    if outcome.end == "interrupted" or failed:
        lines.append(f"  resume      rlrun sweep --resume {home}")
    elif best is not None:
        lines.append(f"  resume      rlrun train --resume {home / best.folder} stop.env_steps=...")
    return lines


def plot_sweep(table: TrialTable, varied: list[Dimension], path: Path) -> Path | None:
    """Draw the settings against the score; None without matplotlib or without scores."""
    scored = [trial for trial in table.trials if trial.score is not None]
    best = table.best()

    def draw(axes: Any, dimension: Dimension) -> None:
        _draw_panel(axes, dimension, scored, best)
        axes.set_ylabel(table.metric)

    items = varied if scored else []
    drawn = save_panels(path, items, draw, columns=3, panel_size=(4.2, 3.2), dpi=120, share_y=True)
    return path if drawn else None


def _draw_panel(axes: Any, dimension: Dimension, scored: list[Trial], best: Trial | None) -> None:
    values = [trial.settings[dimension.address] for trial in scored]
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
    if numbers:
        positions: list[Any] = values
        if dimension.kind == "loguniform" or _spans_decades(values):
            _use_log_scale(axes)
    else:
        names = list(dict.fromkeys(map(str, values)))
        positions = [names.index(str(value)) for value in values]
        axes.set_xticks(range(len(names)), names)
    colours = [_COLOURS.get(trial.status, "tab:orange") for trial in scored]
    axes.scatter(positions, [trial.score for trial in scored], c=colours, alpha=0.8)
    if best is not None and best in scored:
        at = positions[scored.index(best)]
        axes.scatter([at], [best.score], marker="*", s=180, c="tab:red", zorder=3)
    axes.set_xlabel(dimension.address)


def _use_log_scale(axes: Any) -> None:
    """With labels at 1, 2 and 5 of each decade: the range may hold no power of ten."""
    from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(FormatStrFormatter("%g"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _spans_decades(values: list[Any]) -> bool:
    return min(values) > 0 and max(values) / min(values) >= 100
