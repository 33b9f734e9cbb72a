"""What a person sees of a sweep: a live table on a terminal, a line for each ended trial elsewhere.

Owns when and where text appears. It must not know how the table is drawn (sweep_table.py).
"""

import time
from collections.abc import Sequence
from typing import Any

from rlrun.experiment.report.console import ConsoleStyle, print_error, print_line
from rlrun.experiment.report.progress import clock_time
from rlrun.experiment.stopping import number
from rlrun.experiment.sweep.points import settings_text
from rlrun.experiment.sweep.trials import Trial, TrialBook

_FRAMES_PER_S = 2


class SweepConsole:
    """Says only what must not be missed, on stderr, and how it ended."""

    def __init__(self, book: TrialBook, title: str, num_trials: int) -> None:
        self.book, self.title, self.num_trials = book, title, num_trials
        self.started = time.monotonic()
        self._done_before = self.share()

    @property
    def elapsed_s(self) -> float:
        """Seconds since this session started."""
        return time.monotonic() - self.started

    def share(self) -> float:
        """How much of all trials' budgets is used, 0 to 1."""
        done = sum(1.0 if t.ended or t.status == "failed" else t.share for t in self.book.trials)
        return done / max(1, self.num_trials)

    def left_s(self) -> float | None:
        """Seconds until all trials have ended, at this session's pace; None if unknowable."""
        share = self.share()
        gained = share - self._done_before
        return None if gained <= 0 else (1.0 - share) * self.elapsed_s / gained

    def changed(self, trial: Trial) -> None:
        """Something about a trial is new."""

    def notice(self, text: str) -> None:
        """One line that a person should see."""
        print_error(text)

    def close(self) -> None:
        """No more will change; may be called twice."""

    def summary(self, lines: Sequence[str]) -> None:
        """How the sweep ended."""
        for line in lines:
            print_line(line)


class SweepLines(SweepConsole):
    """One line for each trial that has ended, for files and pipes."""

    def __init__(self, book: TrialBook, title: str, num_trials: int) -> None:
        super().__init__(book, title, num_trials)
        self._said: set[int] = {trial.trial for trial in book.trials if trial.ended}
        print_line(title)

    def changed(self, trial: Trial) -> None:
        """Print the line of a trial that has just ended."""
        if trial.trial in self._said or not (trial.ended or trial.status == "failed"):
            return
        self._said.add(trial.trial)
        score = "-" if trial.score is None else number(round(trial.score, 2))
        steps = f"{trial.env_steps or 0:,} env steps"
        parts = [
            f"trial {trial.trial:>3}  {trial.status:<8} {score:>9}",
            f"{steps:>18}",
            settings_text(trial.settings),
            trial.reason or "",
            f"({len(self._said)} of {self.num_trials}, {clock_time(self.elapsed_s)})",
        ]
        print_line("  ".join(part for part in parts if part))


class SweepPanel(SweepConsole):
    """The live table."""

    def __init__(self, book: TrialBook, title: str, num_trials: int) -> None:
        super().__init__(book, title, num_trials)
        from rich.console import Console
        from rich.live import Live

        self._console = Console()
        self._live = Live(
            console=self._console, get_renderable=self._draw, refresh_per_second=_FRAMES_PER_S
        )
        self._live.start(refresh=True)

    def _draw(self) -> Any:
        from rlrun.experiment.sweep.table import draw_table

        return draw_table(
            self.book,
            self.title,
            elapsed_s=self.elapsed_s,
            left_s=self.left_s(),
            rows=max(5, self._console.height - 6),
        )

    def notice(self, text: str) -> None:
        """Shown above the table."""
        self._console.print(text, style="yellow", markup=False, highlight=False)

    def close(self) -> None:
        """Leave the last frame standing."""
        self._live.stop()


def make_sweep_console(
    style: ConsoleStyle, book: TrialBook, title: str, num_trials: int
) -> SweepConsole:
    """Make the console of a style."""
    kinds = {"panel": SweepPanel, "lines": SweepLines, "quiet": SweepConsole}
    return kinds[style](book, title, num_trials)
