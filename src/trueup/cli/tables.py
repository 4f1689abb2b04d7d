"""Tables and pages of text: laid out for the width of a terminal, or as plain text elsewhere."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple, TextIO

from trueup.audits.text import MAX_NAME_WIDTH, audit_page, headings, notes, shorten, table_rows
from trueup.cli import console

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from trueup.audits.result import Audit

NAME_WIDTH = 28
MIN_NAME_WIDTH = 10
COLUMN_GAP = 2
VERDICT_STYLES = {True: "bold red", False: "bold green", None: "bold yellow"}
AUDIT_OPTIONAL = (("interval",), ("observed", "expected"), ("sigma",), ("rows",))


class TextTable(NamedTuple):
    """A table whose first column is text and whose other columns are formatted numbers.

    ``optional`` names the columns that a narrow terminal omits, in this order. If ``bars``, the last column is a bar chart.
    """

    headings: tuple[str, ...]
    rows: list[tuple[str, ...]]
    optional: tuple[str, ...] = ()
    name_width: int = MAX_NAME_WIDTH
    bars: bool = False


def show_audit(audit: Audit, *, top: int, verdict: str) -> None:
    """Print the given verdict, the worst segments and the notes of an audit."""
    if _is_terminal():
        console.emit(lambda stream: _show_audit_in_colour(audit, top, verdict, stream))
    else:
        below = audit_page(audit, top).partition("\n")[2] if top else "\n".join(["", *notes(audit)])
        console.say(f"{verdict}\n{below}".rstrip())


def show_page(parts: Sequence[str | TextTable], *, first_bold: bool = True) -> None:
    """Print sentences and tables below each other; a terminal shows the first sentence in bold."""
    if _is_terminal():
        console.emit(lambda stream: _show_parts(parts, stream, first="bold" if first_bold else ""))
    else:
        console.say("\n".join(part if isinstance(part, str) else _plain_table(part) for part in parts))


def _is_terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()


def _show_audit_in_colour(audit: Audit, top: int, verdict: str, stream: TextIO) -> None:
    from rich.console import Console
    from rich.text import Text

    screen = Console(file=stream, highlight=False, markup=False, emoji=False)
    first, colon, rest = verdict.partition(": ")
    style = VERDICT_STYLES[audit.miscalibrated if audit.tested else None]
    parts: list[RenderableType] = [Text.assemble((first, style), colon + rest), Text()]
    if top:
        worst = audit.worst(top)
        if audit.overall.segment not in {finding.segment for finding in worst}:
            worst.append(audit.overall)
        table = TextTable(headings(audit), table_rows(worst))
        styles = ["red" if finding.p_adjusted <= audit.settings.alpha else "" for finding in worst]
        parts += [_rich_table(table, _fitting_columns(table, screen.width, AUDIT_OPTIONAL), styles), Text()]
    parts += [Text(shorten(note, 500), style="dim") for note in notes(audit)]
    for part in parts:
        screen.print(part)


def _show_parts(parts: Sequence[str | TextTable], stream: TextIO, *, first: str) -> None:
    from rich.console import Console
    from rich.text import Text

    screen = Console(file=stream, highlight=False, markup=False, emoji=False)
    for index, part in enumerate(parts):
        if isinstance(part, str):
            text = Text(console.printable(part), style="" if index else first)
            screen.print(text, soft_wrap=part.startswith("  trueup "))  # a command must be copied as one line
        else:
            kept = _fitting_columns(part, screen.width, [(word,) for word in part.optional])
            if part.bars and _min_width(part, kept) > screen.width:
                kept = kept[:-1]
            screen.print(_rich_table(part, kept, [""] * len(part.rows)))


def _rich_table(table: TextTable, kept: list[int], styles: list[str]) -> RenderableType:
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
    for row, style in zip(table.rows, styles, strict=True):
        cells = [Text(shorten(row[index], 200) if index == 0 else row[index]) for index in kept]
        result.add_row(*cells, style=style)
    return result


def _column_widths(table: TextTable) -> list[int]:
    return [max(map(len, column)) for column in zip(table.headings, *table.rows, strict=True)]


def _fitting_columns(table: TextTable, width: int, optional: Sequence[tuple[str, ...]]) -> list[int]:
    """Return the columns to show: optional ones are omitted until the names have enough space."""
    widths = [cells + COLUMN_GAP for cells in _column_widths(table)]
    kept = list(range(len(widths)))
    for words in optional:
        if sum(widths[index] for index in kept if index) + min(widths[0], NAME_WIDTH) <= width:
            break
        kept = [index for index in kept if not any(word in table.headings[index] for word in words)]
    return kept


def _min_width(table: TextTable, kept: list[int]) -> int:
    """Return the smallest width of a table whose names are wrapped."""
    first, *others = (_column_widths(table)[index] for index in kept)
    return min(first, MIN_NAME_WIDTH) + sum(others) + COLUMN_GAP * len(others)


def _plain_table(table: TextTable) -> str:
    rows = [(shorten(row[0], table.name_width), *row[1:]) for row in [table.headings, *table.rows]]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        first, *others = zip(row, widths, strict=True)
        cells = [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]
        lines.append("  ".join([*cells[:-1], row[-1]] if table.bars else cells).rstrip())
    return "\n".join(lines)
