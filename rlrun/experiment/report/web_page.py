"""Self-contained web pages: headings, tables and charts in one file, light or dark.

Owns the HTML and the style; svg.py draws the charts. Pages have no script and load
nothing, and every text is escaped. It must not know what is shown.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape

from rlrun.experiment.report.charts import Axis, Chart
from rlrun.experiment.report.svg import figure, parallel_figure
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
        figures = "".join(map(figure, charts))
        self.parts.append(f'<div class="charts">{figures}</div>')

    def parallel(self, title: str, axes: Sequence[Axis]) -> None:
        """Add parallel coordinates: lines through all axes, coloured by their place on the last."""
        self.parts.append(parallel_figure(title, axes))

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
