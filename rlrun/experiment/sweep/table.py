"""The live table of a sweep: one frame for a terminal, best trial first.

Owns the drawing. It must not know where the numbers come from nor when it is drawn.
"""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rlrun.experiment.report.progress import clock_time
from rlrun.experiment.stopping import number
from rlrun.experiment.sweep.points import short_names, value_text
from rlrun.experiment.sweep.trials import Status, Trial, TrialBook

_STYLES: dict[Status, str] = {
    "waiting": "bright_black",
    "running": "cyan",
    "interrupted": "yellow",
    "finished": "green",
    "stopped": "bright_black",
    "failed": "red",
}


def draw_table(
    book: TrialBook, title: str, *, elapsed_s: float, left_s: float | None, rows: int
) -> RenderableType:
    """Draw one frame with at most ``rows`` trials."""
    ranked = [trial for trial in book.ranked() if trial.status != "waiting"]
    table = Table(box=None, pad_edge=False, header_style="bright_black")
    settings = book.trials[0].settings if book.trials else {}
    names = short_names(settings)
    table.add_column("trial", justify="right")
    for address in settings:
        table.add_column(names[address], justify="right")
    several = len({trial.seed for trial in book.trials}) > 1
    if several:
        table.add_column("seed", justify="right")
    table.add_column((book.metric or "").rpartition("/")[2], justify="right")
    table.add_column("env steps", justify="right")
    table.add_column("", justify="left")
    for trial in ranked[:rows]:
        table.add_row(*_cells(trial, list(settings), several), style=_row_style(trial))
    return Group(
        Text(title, style="bold cyan"), table, _footer(book, ranked, rows, elapsed_s, left_s)
    )


def _cells(trial: Trial, addresses: list[str], several: bool) -> list[str]:
    score = "-" if trial.score is None else number(round(trial.score, 2))
    steps = "-" if trial.env_steps is None else f"{trial.env_steps:,}"
    state = f"running {trial.share:.0%}" if trial.status == "running" else trial.status
    if trial.reason and trial.status in ("finished", "failed"):
        state += f"  {trial.reason}"
    seed = [str(trial.seed)] if several else []
    values = [value_text(trial.settings[address]) for address in addresses]
    return [str(trial.trial), *values, *seed, score, steps, state]


def _row_style(trial: Trial) -> str:
    return _STYLES[trial.status]


def _footer(
    book: TrialBook, ranked: list[Trial], rows: int, elapsed_s: float, left_s: float | None
) -> Text:
    parts = [f"{count} {status}" for status, count in book.counts().items()]
    if len(ranked) > rows:
        parts.append(f"{len(ranked) - rows} more not shown")
    parts.append(clock_time(elapsed_s))
    if left_s is not None:
        parts.append(f"~{clock_time(left_s)} left")
    return Text(" · ".join(parts), style="bright_black")
