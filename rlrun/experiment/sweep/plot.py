"""Each setting of a sweep against its score, one panel a setting.

Owns the picture. matplotlib is an extra: without it there is none.
"""

from pathlib import Path
from typing import Any

from rlrun.config.registry import is_installed
from rlrun.config.sweep import Dimension
from rlrun.experiment.sweep.trials import Trial, TrialBook

_MOST_COLUMNS = 3
_COLOURS = {"finished": "tab:blue", "stopped": "tab:gray"}


def plot_sweep(book: TrialBook, varied: list[Dimension], path: Path) -> Path | None:
    """Draw all scored trials into ``path``; None without matplotlib or without scores."""
    scored = [trial for trial in book.trials if trial.score is not None]
    if not scored or not varied or not is_installed("matplotlib"):
        return None
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(_MOST_COLUMNS, len(varied))
    rows = -(-len(varied) // columns)
    figure = Figure(figsize=(4.2 * columns, 3.2 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(rows, columns, squeeze=False, sharey=True).flat
    best = book.best()
    for panel, dimension in zip(panels, varied, strict=False):
        _draw_panel(panel, dimension, scored, best)
        panel.set_ylabel(book.metric)
    for panel in list(panels)[len(varied) :]:
        panel.set_visible(False)
    figure.savefig(path, dpi=120)
    return path


def _draw_panel(panel: Any, dimension: Dimension, scored: list[Trial], best: Trial | None) -> None:
    values = [trial.settings[dimension.address] for trial in scored]
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
    if numbers:
        positions: list[Any] = values
        if dimension.kind == "loguniform" or _spans_decades(values):
            _use_log_scale(panel)
    else:
        names = list(dict.fromkeys(map(str, values)))
        positions = [names.index(str(value)) for value in values]
        panel.set_xticks(range(len(names)), names)
    colours = [_COLOURS.get(trial.status, "tab:orange") for trial in scored]
    panel.scatter(positions, [trial.score for trial in scored], c=colours, alpha=0.8)
    if best is not None and best in scored:
        at = positions[scored.index(best)]
        panel.scatter([at], [best.score], marker="*", s=180, c="tab:red", zorder=3)
    panel.set_xlabel(dimension.address)


def _use_log_scale(panel: Any) -> None:
    """Labels at 1, 2 and 5 of each decade: a range may hold no power of ten at all."""
    from matplotlib.ticker import FormatStrFormatter, LogLocator, NullFormatter

    panel.set_xscale("log")
    panel.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    panel.xaxis.set_major_formatter(FormatStrFormatter("%g"))
    panel.xaxis.set_minor_formatter(NullFormatter())


def _spans_decades(values: list[Any]) -> bool:
    return min(values) > 0 and max(values) / min(values) >= 100
