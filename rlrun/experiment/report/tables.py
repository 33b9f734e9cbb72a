"""Tables of text cells, for terminals, pipes and Markdown pages.

Owns how headings and rows are laid out. It must not know what the cells mean.
"""

import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Cells = tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """Headings and rows of cells."""

    heads: Cells
    rows: Sequence[Cells]
    numeric: Collection[str] = ()
    """Headings of the columns that are aligned to the right."""

    def plain_lines(self) -> list[str]:
        """The table in columns of spaces."""
        widths = [max(map(len, column)) for column in zip(self.heads, *self.rows, strict=True)]
        return [
            "  ".join(
                cell.rjust(width) if head in self.numeric else cell.ljust(width)
                for cell, width, head in zip(row, widths, self.heads, strict=True)
            ).rstrip()
            for row in (self.heads, *self.rows)
        ]

    def cut(self, width: int) -> "Table":
        """The table with its last column cut, so that lines have at most ``width`` columns."""
        others = [max(map(len, cells)) for cells in zip(self.heads, *self.rows, strict=True)][:-1]
        room = max(8, width - sum(others) - 2 * len(others))
        rows = [
            (*row[:-1], row[-1] if len(row[-1]) <= room else f"{row[-1][: room - 1]}…")
            for row in self.rows
        ]
        return Table(self.heads, rows, self.numeric)

    def markdown_lines(self) -> list[str]:
        """The table in Markdown."""
        rule = tuple("---:" if head in self.numeric else "---" for head in self.heads)
        return [f"| {' | '.join(row)} |" for row in (self.heads, rule, *self.rows)]

    def drawn(self, style_of: Callable[[Cells], str | None]) -> Any:
        """The table as a rich renderable; ``style_of`` gives the style of a row."""
        from rich.table import Table as RichTable
        from rich.text import Text

        drawn = RichTable(box=None, pad_edge=False, header_style="bright_black")
        for head in self.heads:
            side: Literal["left", "right"] = "right" if head in self.numeric else "left"
            drawn.add_column(head, justify=side, overflow="fold")  # names stay whole
        for row in self.rows:
            drawn.add_row(*map(Text, row), style=style_of(row))  # a str would be rich's markup
        return drawn


def printable(text: str) -> str:
    """The text with escapes for control characters, with which a folder could steer a terminal."""
    return "".join(
        each if each.isprintable() or each == "\n" else ascii(each)[1:-1] for each in text
    )


def print_table(table: Table, style_of: Callable[[Cells], str | None] = lambda row: None) -> None:
    """Print a table to stdout, in colour if that is a terminal."""
    rows = [tuple(map(printable, row)) for row in table.rows]
    table = Table(table.heads, rows, table.numeric)
    if sys.stdout.isatty():
        from rich.console import Console

        Console().print(table.drawn(style_of))
    else:
        sys.stdout.write("\n".join([*table.plain_lines(), ""]))
