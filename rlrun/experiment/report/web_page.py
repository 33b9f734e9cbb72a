"""Self-contained web pages: headings, tables and charts in one file, light or dark.

Owns the HTML, the style and the drawing of charts as inline SVG. Pages have no script and load
nothing, and every text is escaped. It must not know what is shown.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from html import escape

from rlrun.experiment.report.numbers import short
from rlrun.experiment.report.tables import Table

_STYLE = """
:root { color-scheme: light dark; --ink: #1d2430; --soft: #5c6675; --line: #d9dee6; --paper: #fff;
  --panel: #f6f8fa; --c0: #0b6fb8; --c1: #c9520a; --c2: #23824a; --c3: #a33a8f; --c4: #8a6d00;
  --c5: #5b52c7; --c6: #b8323c; --c7: #56616e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ee; --soft: #9aa5b4; --line: #343c48;
  --paper: #14181e; --panel: #1c222b; --c0: #62b4f0; --c1: #f29a5b; --c2: #6fce93; --c3: #e08fd0;
  --c4: #dcc158; --c5: #a8a1ff; --c6: #f58a92; --c7: #aab4c0; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 1180px; color: var(--ink);
  background: var(--paper); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.45rem; line-height: 1.25; margin: 0 0 .3rem; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 2.2rem 0 .6rem; }
p { margin: .35rem 0; overflow-wrap: anywhere; } .soft { color: var(--soft); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .92rem; }
th, td { padding: .28rem .9rem .28rem 0; text-align: left; border-bottom: 1px solid var(--line);
  vertical-align: top; }
th { color: var(--soft); font-weight: 600; } .number { text-align: right; white-space: nowrap; }
.charts { display: grid; column-gap: 1rem;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 310px), 1fr)); }
td:last-child:not(.number) { min-width: 9rem; }
figure { margin: 0 0 1rem; padding: .8rem; background: var(--panel); border-radius: 8px;
  min-width: 0; }
figcaption { font-weight: 600; font-size: .92rem; margin-bottom: .3rem; overflow-wrap: anywhere; }
svg { display: block; width: 100%; height: auto; } svg text { fill: var(--soft); font-size: 13px; }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1rem; font-size: .85rem; color: var(--soft); }
.legend span::before { content: ""; display: inline-block; width: 1em; height: .22em;
  margin-right: .4em; vertical-align: middle; background: var(--own); }
details { margin: .5rem 0; } summary { cursor: pointer; color: var(--soft); }
"""
_NUM_COLOURS = 8
_WIDTH, _HEIGHT = 400.0, 250.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 62.0, 26.0, 8.0, 44.0


@dataclass(frozen=True)
class Curve:
    """One line of a chart, optionally with a band around it."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    dots: bool = False
    """Whether the points are drawn one by one, without a line."""


@dataclass(frozen=True)
class Chart:
    """Curves on common axes."""

    title: str
    x_label: str
    curves: Sequence[Curve]
    log_x: bool = False
    """Whether the horizontal axis is logarithmic; all of x must be above 0."""


@dataclass(frozen=True)
class Axis:
    """One vertical axis of parallel coordinates."""

    name: str
    low: str
    """Text at the bottom."""
    high: str
    """Text at the top."""
    positions: Sequence[float]
    """Position of each line on the axis, 0 to 1."""


@dataclass
class WebPage:
    """A page, from top to bottom."""

    title: str
    parts: list[str] = field(default_factory=list)

    def heading(self, text: str) -> None:
        """Begin a section."""
        self.parts.append(f"<h2>{escape(text)}</h2>")

    def text(self, text: str, *, soft: bool = False) -> None:
        """Add a paragraph; ``soft`` is for less important text."""
        self.parts.append(f"<p{' class=soft' if soft else ''}>{escape(text)}</p>")

    def table(self, table: Table, *, folded: str | None = None) -> None:
        """Add a table; ``folded`` is a line that opens it."""
        html = _table(table)
        if folded is not None:
            html = f"<details><summary>{escape(folded)}</summary>{html}</details>"
        self.parts.append(html)

    def charts(self, charts: Iterable[Chart]) -> None:
        """Add charts, side by side if the page is wide enough."""
        figures = "".join(map(_figure, charts))
        self.parts.append(f'<div class="charts">{figures}</div>')

    def parallel(self, title: str, axes: Sequence[Axis]) -> None:
        """Add parallel coordinates: lines through all axes, coloured by their place on the last."""
        svg = _parallel_svg(title, axes)
        figure = f'<figure class="wide"><figcaption>{escape(title)}</figcaption>{svg}</figure>'
        self.parts.append(figure)

    def html(self) -> str:
        """The whole page."""
        title = escape(self.title)
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>{title}</title>\n<style>{_STYLE}</style></head>\n"
            f"<body>\n<h1>{title}</h1>\n{chr(10).join(self.parts)}\n</body></html>\n"
        )


def _table(table: Table) -> str:
    def row(tag: str, cells: Sequence[str]) -> str:
        found = "".join(
            f"<{tag}{' class=number' if head in table.numeric else ''}>{escape(cell)}</{tag}>"
            for head, cell in zip(table.heads, cells, strict=True)
        )
        return f"<tr>{found}</tr>"

    head = [row("th", table.heads)] if any(map(str.strip, table.heads)) else []
    body = "\n".join([*head, *(row("td", cells) for cells in table.rows)])
    return f'<div class="wide"><table>\n{body}\n</table></div>'


def _figure(chart: Chart) -> str:
    colours = [f"var(--c{i % _NUM_COLOURS})" for i in range(len(chart.curves))]
    legend = "".join(
        f'<span style="--own: {colour}">{escape(curve.label)}</span>'
        for colour, curve in zip(colours, chart.curves, strict=True)
        if curve.label
    )
    return (
        f"<figure><figcaption>{escape(chart.title)}</figcaption>{_svg(chart, colours)}"
        f'<div class="legend">{legend}</div></figure>\n'
    )


def _svg(chart: Chart, colours: Sequence[str]) -> str:
    """The axes and curves of a chart."""
    xs = [x for curve in chart.curves for x in curve.x]
    ys = [y for curve in chart.curves for y in (*curve.y, *curve.low, *curve.high)]
    scale: Callable[[float], float] = math.log10 if chart.log_x else float
    y_ends, x_ends = (min(ys), max(ys)), (scale(min(xs)), scale(max(xs)))
    if any(curve.dots for curve in chart.curves):
        margin = 0.04 * (x_ends[1] - x_ends[0])
        x_ends = (x_ends[0] - margin, x_ends[1] + margin)
    x_ticks = _log_ticks(min(xs), max(xs)) if chart.log_x else ticks(min(xs), max(xs))
    y_ticks = ticks(*y_ends)
    across, up = (_WIDTH - _LEFT - _RIGHT), (_HEIGHT - _TOP - _BOTTOM)

    def x_at(x: float) -> float:
        return _LEFT + across * _share(scale(x), *x_ends)

    def y_at(y: float) -> float:
        return _TOP + up * (1.0 - _share(y, *y_ends))

    def points(x: Iterable[float], y: Iterable[float]) -> str:
        return " ".join(f"{x_at(a):.1f},{y_at(b):.1f}" for a, b in zip(x, y, strict=True))

    parts = [
        f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y_at(y):.1f}" y2="{y_at(y):.1f}" '
        f'stroke="var(--line)"/><text x="{_LEFT - 8}" y="{y_at(y) + 4:.1f}" text-anchor="end">'
        f"{short(y)}</text>"
        for y in y_ticks
    ]
    parts += [
        f'<text x="{x_at(x):.1f}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">{short(x)}'
        "</text>"
        for x in x_ticks
    ]
    for curve, colour in zip(chart.curves, colours, strict=True):
        if curve.low:
            edge = points([*curve.x, *reversed(curve.x)], [*curve.high, *reversed(curve.low)])
            parts.append(f'<polygon points="{edge}" fill="{colour}" opacity="0.18"/>')
    for curve, colour in zip(chart.curves, colours, strict=True):
        if curve.dots or len(curve.x) == 1:
            parts += [
                f'<circle cx="{x_at(x):.1f}" cy="{y_at(y):.1f}" r="4" fill="{colour}"/>'
                for x, y in zip(curve.x, curve.y, strict=True)
            ]
            continue
        shape = f'points="{points(curve.x, curve.y)}" fill="none" stroke="{colour}"'
        parts.append(f'<polyline {shape} stroke-width="2" stroke-linejoin="round"/>')
    label = f'x="{_LEFT + across / 2}" y="{_HEIGHT - 6}" text-anchor="middle"'
    parts.append(f"<text {label}>{escape(chart.x_label)}</text>")
    name = escape(chart.title, quote=True)
    size = f'viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}" role="img" aria-label="{name}"'
    return f"<svg {size}>{''.join(parts)}</svg>"


def _parallel_svg(title: str, axes: Sequence[Axis]) -> str:
    gap, top, height = 170.0, 40.0, 190.0
    width = gap * len(axes)
    at = [gap * (i + 0.5) for i in range(len(axes))]
    parts = []
    for x, axis in zip(at, axes, strict=True):
        for y, text in ((16, axis.name), (top - 8, axis.high), (top + height + 17, axis.low)):
            name = ' font-weight="600"' if y == 16 else ""
            parts.append(f'<text x="{x}" y="{y}" text-anchor="middle"{name}>{escape(text)}</text>')
        ends = f'y1="{top}" y2="{top + height}"'
        parts.append(f'<line x1="{x}" x2="{x}" {ends} stroke="var(--line)"/>')
    lines = sorted(zip(*(axis.positions for axis in axes), strict=True), key=lambda line: line[-1])
    for line in lines:
        points = " ".join(
            f"{x:.1f},{top + height * (1.0 - share):.1f}" for x, share in zip(at, line, strict=True)
        )
        colour = f"color-mix(in oklab, var(--c1) {line[-1]:.0%}, var(--line))"
        style = f'style="stroke: {colour}" fill="none" stroke-width="1.8"'
        parts.append(f'<polyline points="{points}" {style}/>')
    size = f'viewBox="0 0 {width:g} {top + height + 26:g}" style="min-width: {width * 0.8:g}px; '
    size += f'max-width: {width:g}px"'
    label = f'role="img" aria-label="{escape(title, quote=True)}"'
    return f"<svg {size} {label}>{''.join(parts)}</svg>"


def _share(value: float, low: float, high: float) -> float:
    return (value - low) / (high - low) if high > low else 0.5


def ticks(low: float, high: float) -> list[float]:
    """Round numbers between two numbers, 1, 2 or 5 times a power of ten apart; at most six."""
    if not high > low:
        return [low]
    raw = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [i * step for i in range(first, last + 1)] or [low]


def _log_ticks(low: float, high: float) -> list[float]:
    """A few of 1, 2, 3 and 5 times powers of ten between two numbers."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1, 2, 5) if len(powers) < 3 else (1, 3) if len(powers) < 5 else (1,)
    found = [factor * 10.0**power for power in powers for factor in factors]
    return [tick for tick in found if low * 0.999 <= tick <= high * 1.001] or [low]
