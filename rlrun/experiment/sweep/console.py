"""What a sweep shows on the terminal: a live table, or a line for each trial that has ended.

Owns when and where text appears, and the frame of the table. It must not know how trials are run.
"""

import time
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from rlrun.experiment.report.console import Console, ConsoleStyle, LiveFrame, print_line
from rlrun.experiment.report.progress import clock_time
from rlrun.experiment.report.tables import Table
from rlrun.experiment.stopping import number
from rlrun.experiment.sweep.points import settings_text, short_names, value_text
from rlrun.experiment.sweep.trials import Status, Trial, TrialTable

_STYLES: dict[Status, str] = {
    "waiting": "bright_black",
    "running": "cyan",
    "interrupted": "yellow",
    "finished": "green",
    "stopped": "bright_black",
    "failed": "red",
}


class SweepConsole(Console):
    """The console of a sweep; by itself it is the quiet one."""

    def __init__(self, table: TrialTable, title: str, num_trials: int) -> None:
        self.table, self.title, self.num_trials = table, title, num_trials
        self.started = time.monotonic()
        self._share_before = self.share()

    @property
    def elapsed_s(self) -> float:
        """Seconds since this session started."""
        return time.monotonic() - self.started

    def share(self) -> float:
        """Used share of all trials' budgets, 0 to 1."""
        used = sum(1.0 if trial.over else trial.share for trial in self.table.trials)
        return used / max(1, self.num_trials)

    def left_s(self) -> float | None:
        """Seconds until all trials have ended, at this session's pace; None if unknown."""
        share = self.share()
        gained = share - self._share_before
        return None if gained <= 0 else (1.0 - share) * self.elapsed_s / gained

    def changed(self, trial: Trial) -> None:
        """Something about a trial has changed."""


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
        steps = f"{trial.env_steps or 0:,} env steps"
        parts = [
            f"trial {trial.trial:>3}  {trial.status:<8} {_score(trial):>9}",
            f"{steps:>18}",
            settings_text(trial.settings),
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
        )


def make_sweep_console(
    style: ConsoleStyle, table: TrialTable, title: str, num_trials: int
) -> SweepConsole:
    """The console of a style."""
    kinds = {"panel": SweepPanel, "lines": SweepLines, "quiet": SweepConsole}
    return kinds[style](table, title, num_trials)


def draw_table(
    table: TrialTable, title: str, *, elapsed_s: float, left_s: float | None, rows: int
) -> RenderableType:
    """One frame, with at most ``rows`` trials."""
    shown = [trial for trial in table.ranked() if trial.status != "waiting"]
    settings = table.trials[0].settings if table.trials else {}
    names = short_names(settings)
    seed = ("seed",) if len({trial.seed for trial in table.trials}) > 1 else ()
    metric = (table.metric or "").rpartition("/")[2]
    numeric = ("trial", *(names[address] for address in settings), *seed, metric, "env steps")
    status = {str(trial.trial): _STYLES[trial.status] for trial in shown}
    cells = [_cells(trial, list(settings), bool(seed)) for trial in shown[:rows]]
    drawn = Table((*numeric, ""), cells, numeric).drawn(lambda row: status[row[0]])
    footer = [f"{count} {name}" for name, count in table.counts().items()]
    if len(shown) > rows:
        footer.append(f"{len(shown) - rows} more not shown")
    footer.append(clock_time(elapsed_s))
    if left_s is not None:
        footer.append(f"~{clock_time(left_s)} left")
    return Group(
        Text(title, style="bold cyan"), drawn, Text(" · ".join(footer), style="bright_black")
    )


def _cells(trial: Trial, addresses: list[str], with_seed: bool) -> tuple[str, ...]:
    steps = "-" if trial.env_steps is None else f"{trial.env_steps:,}"
    state = f"running {trial.share:.0%}" if trial.status == "running" else trial.status
    if trial.reason and trial.status in ("finished", "failed"):
        state += f"  {trial.reason}"
    seed = [str(trial.seed)] if with_seed else []
    values = [value_text(trial.settings[address]) for address in addresses]
    return (str(trial.trial), *values, *seed, _score(trial), steps, state)


def _score(trial: Trial) -> str:
    return "-" if trial.score is None else number(round(trial.score, 2))
