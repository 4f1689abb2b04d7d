"""Tables and pages of text: laid out for the width of a terminal, or as plain text elsewhere."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple, TextIO

from trueup.audits.text import MAX_NAME_WIDTH, shorten
from trueup.cli import console

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

NAME_WIDTH = 28
MIN_NAME_WIDTH = 10
COLUMN_GAP = 2


class TextTable(NamedTuple):
    """A table whose first column is text and whose other columns are formatted numbers."""

    headings: tuple[str, ...]
    rows: list[tuple[str, ...]]
    optional: tuple[str, ...] = ()  # the columns that a narrow terminal omits, in this order
    name_width: int = MAX_NAME_WIDTH
    bars: bool = False  # whether the last column is a bar chart
    styles: Sequence[str] = ()  # of the rows, on a terminal


def show_page(parts: Sequence[str | TextTable], *, style: str = "bold") -> None:
    """Print sentences and tables below each other; a terminal styles the first sentence up to its colon."""
    if sys.stdout is not None and sys.stdout.isatty():
        console.emit(lambda stream: _show_on_terminal(parts, stream, style))
    else:
        console.say("\n".join(part if isinstance(part, str) else _plain_table(part) for part in parts))


def _show_on_terminal(parts: Sequence[str | TextTable], stream: TextIO, style: str) -> None:
    from rich.console import Console
    from rich.text import Text

    screen = Console(file=stream, highlight=False, markup=False, emoji=False)
    for index, part in enumerate(parts):
        if isinstance(part, str):
            start, colon, rest = console.printable(part).partition(": ")
            text = Text.assemble((start, "" if index else style), colon + rest)
            screen.print(text, soft_wrap=part.startswith("  trueup "))  # a command must be copied as one line
        else:
            screen.print(_rich_table(part, _fitting_columns(part, screen.width)))


def _rich_table(table: TextTable, kept: list[int]) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    left_aligned = {0, *([len(table.headings) - 1] if table.bars else [])}
    result = Table(box=None, pad_edge=False, padding=(0, COLUMN_GAP, 0, 0), header_style="bold")
    for index in kept:
        result.add_column(
            Text(table.headings[index]),
            justify="left" if index in left_aligned else "right",
            no_wrap=index > 0,
            overflow="fold",
            min_width=min(MIN_NAME_WIDTH, max(len(row[0]) for row in table.rows)) if index == 0 and table.rows else None,
        )
    for row, style in zip(table.rows, table.styles or [""] * len(table.rows), strict=True):
        cells = [Text(shorten(row[index], 200) if index == 0 else row[index]) for index in kept]
        result.add_row(*cells, style=style)
    return result


def _fitting_columns(table: TextTable, width: int) -> list[int]:
    """Return the columns to show: optional ones are omitted until the names have enough space."""
    widths = [max(map(len, column)) + COLUMN_GAP for column in zip(table.headings, *table.rows, strict=True)]
    kept = list(range(len(widths)))
    for word in table.optional:
        if sum(widths[index] for index in kept if index) + min(widths[0], NAME_WIDTH) <= width:
            break
        kept = [index for index in kept if word not in table.headings[index]]
    needed = min(widths[0], MIN_NAME_WIDTH + COLUMN_GAP) + sum(widths[index] for index in kept if index) - COLUMN_GAP
    return kept[:-1] if table.bars and needed > width else kept


def _plain_table(table: TextTable) -> str:
    rows = [(shorten(row[0], table.name_width), *row[1:]) for row in [table.headings, *table.rows]]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        first, *others = zip(row, widths, strict=True)
        cells = [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]
        lines.append("  ".join([*cells[:-1], row[-1]] if table.bars else cells).rstrip())
    return "\n".join(lines)
