"""Charts as SVG inside HTML, in the colours of web_page.py, light or dark.

Owns the geometry. Every text is escaped. It must not know what is shown.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from html import escape

from rlrun.experiment.report.charts import Axis, Chart, ticks
from rlrun.experiment.report.numbers import short

_NUM_COLOURS = 8
_WIDTH, _HEIGHT = 400.0, 250.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 62.0, 26.0, 8.0, 44.0


def figure(chart: Chart) -> str:
    """A chart with its title and legend, in HTML."""
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
    scale: Callable[[float], float] = math.log10 if chart.log_x else float
    y_ends, x_ends = chart.y_ends, tuple(map(scale, chart.x_ends))
    if any(curve.dots for curve in chart.curves):
        margin = 0.04 * (x_ends[1] - x_ends[0])
        x_ends = (x_ends[0] - margin, x_ends[1] + margin)
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
        for y in ticks(*y_ends)
    ]
    parts += [
        f'<text x="{x_at(x):.1f}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">'
        f"{escape(text)}</text>"
        for x, text in chart.x_ticks
    ]
    parts += [
        f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y_at(y):.1f}" y2="{y_at(y):.1f}" '
        'stroke="var(--soft)" stroke-dasharray="4"/>'
        for y in chart.goals
    ]
    for curve, colour in zip(chart.curves, colours, strict=True):
        if curve.low:
            edge = points([*curve.x, *reversed(curve.x)], [*curve.high, *reversed(curve.low)])
            parts.append(f'<polygon points="{edge}" fill="{colour}" opacity="0.18"/>')
    for curve, colour in zip(chart.curves, colours, strict=True):
        if curve.has_dots:
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


def parallel_figure(title: str, axes: Sequence[Axis]) -> str:
    """Parallel coordinates: lines through all axes, coloured by their place on the last."""
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
    shares = [[_share(x, min(axis.values), max(axis.values)) for x in axis.values] for axis in axes]
    for line in sorted(zip(*shares, strict=True), key=lambda line: line[-1]):
        points = " ".join(
            f"{x:.1f},{top + height * (1.0 - share):.1f}" for x, share in zip(at, line, strict=True)
        )
        colour = f"color-mix(in oklab, var(--c1) {line[-1]:.0%}, var(--line))"
        style = f'style="stroke: {colour}" fill="none" stroke-width="1.8"'
        parts.append(f'<polyline points="{points}" {style}/>')
    size = f'viewBox="0 0 {width:g} {top + height + 26:g}" style="min-width: {width * 0.8:g}px; '
    size += f'max-width: {width:g}px"'
    label = f'role="img" aria-label="{escape(title, quote=True)}"'
    caption = f'<figure class="wide"><figcaption>{escape(title)}</figcaption>'
    return f"{caption}<svg {size} {label}>{''.join(parts)}</svg></figure>"


def _share(value: float, low: float, high: float) -> float:
    return (value - low) / (high - low) if high > low else 0.5
