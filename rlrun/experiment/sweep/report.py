"""Reports of a sweep: a table or lines of its trials, and its outcome as lines, a plot and a file.

Owns the words, the picture, and when text appears. It must not know how trials are run.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from rlrun.checkpoint.files import replace_text
from rlrun.experiment.outcome import End, resume_command
from rlrun.experiment.report.console import Console, ConsoleStyle, LiveFrame, print_line
from rlrun.experiment.report.numbers import clock_time, number, rounded, two_decimals
from rlrun.experiment.report.plots import save_charts
from rlrun.experiment.report.statistics import iqm
from rlrun.experiment.report.tables import Table
from rlrun.experiment.run_folder import in_shell
from rlrun.experiment.sweep.effects import effects_of
from rlrun.experiment.sweep.points import settings_text, short_names, value_text
from rlrun.experiment.sweep.trials import Status, SweepFolder, Trial, TrialTable

_STYLES: dict[Status, str] = {
    "waiting": "bright_black",
    "running": "cyan",
    "interrupted": "yellow",
    "finished": "green",
    "stopped": "bright_black",
    "failed": "red",
}


class SweepConsole(Console):
    """The console of a sweep. This base class is the quiet one."""

    def __init__(self, table: TrialTable, title: str, num_trials: int) -> None:
        self.table, self.title, self.num_trials = table, title, num_trials
        self.started = time.monotonic()
        self._share_before = self.share()

    @property
    def elapsed_s(self) -> float:
        """Seconds since this session started."""
        return time.monotonic() - self.started

    def share(self) -> float:
        """The used share of all trials' budgets, 0 to 1."""
        used = sum(1.0 if trial.over else trial.share for trial in self.table.trials)
        return used / max(1, self.num_trials)

    def left_s(self) -> float | None:
        """Seconds until all trials have ended, at this session's speed; None if unknown."""
        share = self.share()
        gained = share - self._share_before
        return None if gained <= 0 else (1.0 - share) * self.elapsed_s / gained

    def changed(self, trial: Trial) -> None:
        """Receive a trial that has changed."""


class SweepLines(SweepConsole):
    """One line for each trial that has ended, for files and pipes."""

    def __init__(self, table: TrialTable, title: str, num_trials: int) -> None:
        super().__init__(table, title, num_trials)
        self._printed: set[int] = {trial.trial for trial in table.trials if trial.ended}
        print_line(title)

    def changed(self, trial: Trial) -> None:
        """Print the line of a trial that has just ended."""
        if trial.trial in self._printed or not trial.over:
            return
        self._printed.add(trial.trial)
        run = "run" if self.table.is_group else "trial"
        steps = f"{trial.env_steps or 0:,} env steps"
        seed = {"seed": trial.seed} if self.table.num_points < self.num_trials else {}
        parts = [
            f"{run} {trial.trial:>3}  {trial.status:<8} {two_decimals(trial.score):>9}",
            f"{steps:>18}",
            settings_text(trial.settings | seed),
            trial.reason or "",
            f"({len(self._printed)} of {self.num_trials}, {clock_time(self.elapsed_s)})",
        ]
        print_line("  ".join(part for part in parts if part))


class SweepPanel(LiveFrame, SweepConsole):
    """The live table, best trial first."""

    def __init__(self, table: TrialTable, title: str, num_trials: int) -> None:
        SweepConsole.__init__(self, table, title, num_trials)
        self.start_frame(self._draw, frames_per_s=2)

    def _draw(self, width: int, height: int) -> Any:
        return draw_table(
            self.table,
            self.title,
            elapsed_s=self.elapsed_s,
            left_s=self.left_s(),
            rows=max(5, height - 6),
            width=width,
        )


def make_sweep_console(
    style: ConsoleStyle, table: TrialTable, title: str, num_trials: int
) -> SweepConsole:
    """The console of a style."""
    kinds = {"panel": SweepPanel, "lines": SweepLines, "quiet": SweepConsole}
    return kinds[style](table, title, num_trials)


def draw_table(
    table: TrialTable, title: str, *, elapsed_s: float, left_s: float | None, rows: int, width: int
) -> RenderableType:
    """One frame, with at most ``rows`` trials, ``width`` columns wide."""
    shown = [trial for trial in table.ranked() if trial.status != "waiting"]
    status = {str(trial.trial): _STYLES[trial.status] for trial in shown}
    shortened = trial_table(table, shown[:rows]).cut(width)
    drawn = shortened.drawn(lambda row: status[row[0]])
    footer = [f"{count} {name}" for name, count in table.counts().items()]
    if len(shown) > rows:
        footer.append(f"{len(shown) - rows} more not shown")
    footer.append(clock_time(elapsed_s))
    if left_s is not None:
        footer.append(f"~{clock_time(left_s)} left")
    return Group(
        Text(title, style="bold cyan"), drawn, Text(" · ".join(footer), style="bright_black")
    )


def trial_table(table: TrialTable, trials: Sequence[Trial]) -> Table:
    """A row for each of some trials; with the seed if not all have the same one."""
    names = short_names(table.trials[0].settings if table.trials else {})
    seeds = len({trial.seed for trial in table.trials}) > 1
    metric = (table.metric or "score").rpartition("/")[2]
    numeric = ("trial", *names.values(), *(["seed"] if seeds else []), metric, "env steps")
    rows = []
    for trial in trials:
        steps = "-" if trial.env_steps is None else f"{trial.env_steps:,}"
        state = f"running {trial.share:.0%}" if trial.status == "running" else trial.status
        if trial.reason and trial.status in ("finished", "failed"):
            state += f"  {trial.reason}"
        values = [value_text(trial.settings.get(address)) for address in names]
        seed = [str(trial.seed)] if seeds else []
        score = rounded(trial.score, "-")
        rows.append((str(trial.trial), *values, *seed, score, steps, state))
    return Table((*numeric, ""), rows, numeric)


@dataclass(frozen=True)
class SweepOutcome:
    """How a sweep ended."""

    end: End
    folder: Path
    trials: tuple[Trial, ...]
    """The trials in the order of their numbers."""
    best: Trial | None
    """The best trial of the best point; None without scores."""
    plot: Path | None = None
    """Picture of the settings against the score; None without matplotlib."""

    @property
    def any_failed(self) -> bool:
        """Whether a trial failed."""
        return any(trial.status == "failed" for trial in self.trials)

    @property
    def all_failed(self) -> bool:
        """Whether there are trials and all of them failed."""
        return bool(self.trials) and all(trial.status == "failed" for trial in self.trials)


def write_best(folder: SweepFolder, table: TrialTable) -> Trial | None:
    """Write the best experiment as best.yaml; None without scores, or if only seeds differ.

    There is no best.yaml then, not even one of an earlier session.
    """
    best = table.best()
    source = folder.path / (best.folder if best else "") / "config.yaml"
    if best is None or best.score is None or not best.settings or not source.is_file():
        folder.best.unlink(missing_ok=True)
        return None
    point = table.score_of_point(best.point)
    seeds = len(table.of_point(best.point))
    mean = f", mean over {seeds} seeds {number(point)}" if seeds > 1 and point is not None else ""
    head = (
        f"# The best of {len(table.trials)} trials: number {best.trial}, "
        f"{table.metric} {number(best.score)}{mean}\n"
        f"# {settings_text(best.settings)}\n"
        f"# rlrun train {in_shell(folder.best)}\n"
    )
    replace_text(folder.best, head + source.read_text(encoding="utf-8"))
    return best


def sweep_lines(outcome: SweepOutcome, table: TrialTable) -> list[str]:
    """The outcome in a few lines, with commands to continue; the first is the headline."""
    counts = ", ".join(f"{count} {status}" for status, count in table.counts().items())
    headline = "Finished" if outcome.end == "finished" else "Interrupted"
    run, kind = ("run", "group") if table.is_group else ("trial", "sweep")
    lines = [f"{headline}: {len(table.trials)} {run}s, {counts}"]
    failed = [trial for trial in table.trials if trial.status == "failed"]
    lines += [
        f"  failed      {run} {trial.trial}: {trial.reason}"
        + (f"; see {outcome.folder / trial.log}" if trial.log else "")
        for trial in failed
    ]
    best, home = outcome.best, outcome.folder
    if best is not None and best.score is not None:
        score = f"{table.metric} {number(round(best.score, 4))}"
        lines.append(f"  best        {run} {best.trial}: {score}, {settings_text(best.settings)}")
    elif scores := [trial.score for trial in table.trials if trial.score is not None]:
        mean = two_decimals(float(iqm(scores)))
        lines.append(f"  mean        {table.metric} {mean}, interquartile, of {len(scores)} {run}s")
    lines.append(f"  {kind:<12}{home}")
    if table.num_points < len(table.trials):
        lines.append(f"  compare     rlrun compare {in_shell(home)}")
    if outcome.plot is not None:
        lines.append(f"  plot        {outcome.plot}")
    if best is not None:
        lines.append(f"  roll out    rlrun rollout {in_shell(home / best.folder)}")
        lines.append(f"  train       rlrun train {in_shell(home / 'best.yaml')}")
    if outcome.end == "interrupted" or failed:
        command = "train" if table.is_group else "sweep"
        lines.append(f"  resume      rlrun {command} --resume {in_shell(home)}")
    elif best is not None:
        command = resume_command(home / best.folder, end=best.status, reason=best.reason)
        lines.append(f"  resume      {command}")
    return lines


def plot_sweep(table: TrialTable, path: Path) -> Path | None:
    """Draw each setting against the score; None without matplotlib or if none varies."""
    charts = [effect.chart(table.metric or "score", table.best()) for effect in effects_of(table)]
    return path if save_charts(path, charts, columns=3, panel_size=(4.2, 3.2), dpi=120) else None
