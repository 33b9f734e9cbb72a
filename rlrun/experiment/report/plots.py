"""Pictures of several panels in one file.

Owns the use of matplotlib, an extra without which no picture is written. It must not know what is
drawn.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from rlrun.config.registry import is_installed

Item = TypeVar("Item")


def save_panels(
    path: Path,
    items: Sequence[Item],
    draw: Callable[[Any, Item], None],
    *,
    columns: int,
    panel_size: tuple[float, float],
    dpi: int,
    share_y: bool = False,
) -> bool:
    """Draw each item into its own panel with ``draw(axes, item)``.

    Args:
        path: the file, as PNG or SVG.
        items: items in the order of the panels, row by row.
        draw: called once for each item.
        columns: maximum number of panels in a row.
        panel_size: width and height of a panel, in inches.
        dpi: dots per inch.
        share_y: whether all panels have the same vertical axis.

    Returns:
        Whether a picture was written: False without matplotlib or without items.
    """
    if not items or not is_installed("matplotlib"):
        return False
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(columns, len(items))
    rows = -(-len(items) // columns)
    width, height = panel_size
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    FigureCanvasAgg(figure)
    panels = list(figure.subplots(rows, columns, squeeze=False, sharey=share_y).flat)
    for axes, item in zip(panels, items, strict=False):
        draw(axes, item)
    for axes in panels[len(items) :]:
        axes.set_visible(False)
    figure.savefig(path, dpi=dpi)
    return True
