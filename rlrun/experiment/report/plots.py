"""Charts as a picture in one file.

Owns the use of matplotlib, an extra without which no picture is written. It must not know what is
drawn.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlrun.config.registry import is_installed
from rlrun.experiment.report.charts import Chart
from rlrun.experiment.report.numbers import short


def save_charts(
    path: Path, charts: Sequence[Chart], *, columns: int, panel_size: tuple[float, float], dpi: int
) -> bool:
    """Draw each chart into its own panel, row by row.

    Args:
        path: the file, as PNG or SVG.
        columns: maximum number of panels in a row.
        panel_size: width and height of a panel, in inches.
        dpi: dots per inch.

    Returns:
        Whether a picture was written: False without matplotlib or without charts.
    """
    if not charts or not is_installed("matplotlib"):
        return False
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(columns, len(charts))
    rows = -(-len(charts) // columns)
    width, height = panel_size
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    FigureCanvasAgg(figure)
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    explained: list[str] = []
    for axes, chart in zip(panels, charts, strict=False):
        draw_chart(axes, chart)
        labels = [curve.label for curve in chart.curves if curve.label]
        if labels and labels != explained:
            axes.legend(frameon=False, fontsize=8)
            explained = labels
    for axes in panels[len(charts) :]:
        axes.set_visible(False)
    figure.savefig(path, dpi=dpi)
    return True


def draw_chart(axes: Any, chart: Chart) -> None:
    """Draw a chart into matplotlib's axes, without a legend."""
    for curve in chart.curves:
        style = "o" if curve.has_dots else "-"
        (line,) = axes.plot(curve.x, curve.y, style, label=curve.label, linewidth=1.2)
        if curve.low:
            axes.fill_between(curve.x, curve.low, curve.high, alpha=0.2, color=line.get_color())
    for goal in chart.goals:
        axes.axhline(goal, color="0.4", linestyle="--", linewidth=0.8)
    axes.set_xscale("log" if chart.log_x else "linear")
    places, texts = zip(*chart.x_ticks, strict=True)
    axes.set_xticks(places, texts)
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda value, position: short(value))
    axes.grid(alpha=0.3)
    axes.set_title(chart.title, fontsize=9)
    axes.set_xlabel(chart.x_label, fontsize=8)
    axes.tick_params(labelsize=8)
