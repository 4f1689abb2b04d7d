"""Results in the terminal: tables that fit its width, or plain text where nobody looks on."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple, TextIO

from trueup.audits.text import WIDEST_NAME, audit_page, headings, notes, shorten, table_rows
from trueup.cli import console

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from trueup.audits.result import Audit

NAME_ROOM = 28
LEAST_NAME = 10
GAP = 2
COLOURS = {True: "bold red", False: "bold green", None: "bold yellow"}
DROPPED_FIRST = (("interval",), ("observed", "expected"), ("sigma",), ("rows",))


class Grid(NamedTuple):
    """A table: the first column is text, the others are numbers as they are to be shown, or the last one bars.

    ``dropped`` names what is left out where the terminal is narrow, in this order.
    """

    headings: tuple[str, ...]
    rows: list[tuple[str, ...]]
    dropped: tuple[str, ...] = ()
    widest: int = WIDEST_NAME
    bars: bool = False


def show_audit(found: Audit, *, top: int, verdict: str) -> None:
    """Print the verdict in the words that are given, the worst segments and the notes."""
    if sys.stdout is not None and sys.stdout.isatty():
        console.emit(lambda stream: _show_in_colour(found, top, verdict, stream))
    else:
        below = audit_page(found, top).partition("\n")[2] if top else "\n".join(["", *notes(found)])
        console.say(f"{verdict}\n{below}".rstrip())


def _show_in_colour(found: Audit, top: int, verdict: str, stream: TextIO) -> None:
    from rich.console import Console
    from rich.text import Text

    screen = Console(file=stream, highlight=False, markup=False, emoji=False)
    state = found.miscalibrated if found.tested else None
    first, colon, rest = verdict.partition(": ")
    parts: list[RenderableType] = [Text.assemble((first, COLOURS[state]), colon + rest), Text()]
    if top:
        parts += [_table(found, top, screen.width), Text()]
    parts += [Text(shorten(note, 500), style="dim") for note in notes(found)]
    for part in parts:
        screen.print(part)


def _table(found: Audit, top: int, width: int) -> RenderableType:
    """Lay the worst segments out; where the terminal is narrow, leave out the columns that say least."""
    worst = found.worst(top)
    if found.overall.segment not in {finding.segment for finding in worst}:
        worst.append(found.overall)
    names, rows = headings(found), table_rows(worst)
    kept = _kept(names, rows, width, DROPPED_FIRST)
    off = [finding.p_adjusted <= found.settings.alpha for finding in worst]
    return _laid_out(Grid(names, rows), kept, ["red" if one else "" for one in off])


def _laid_out(grid: Grid, kept: list[int], styles: list[str]) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    names, rows = grid.headings, grid.rows
    left = {0, *([len(names) - 1] if grid.bars else [])}

    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    for at in kept:
        table.add_column(
            Text(names[at]), justify="left" if at in left else "right", no_wrap=at > 0, overflow="fold",
            min_width=min(LEAST_NAME, max(len(row[at]) for row in rows)) if at == 0 and rows else None,
        )  # fmt: skip
    for row, style in zip(rows, styles, strict=True):
        table.add_row(*[Text(shorten(row[at], 200) if at == 0 else row[at]) for at in kept], style=style)
    return table


def _kept(names: tuple[str, ...], rows: list[tuple[str, ...]], width: int, dropped: Sequence[tuple[str, ...]]) -> list[int]:
    """Choose the columns that leave room for the names of segments."""
    wide = [max(len(row[at]) for row in [names, *rows]) + GAP for at in range(len(names))]
    kept = list(range(len(names)))
    for words in dropped:
        if sum(wide[at] for at in kept if at) + min(wide[0], NAME_ROOM) <= width:
            break
        kept = [at for at in kept if not any(word in names[at] for word in words)]
    return kept


def _width(grid: Grid, kept: list[int]) -> int:
    """Say how wide a table is at least: the names of its rows may be broken."""
    wide = [max(len(row[at]) for row in [grid.headings, *grid.rows]) for at in kept]
    return min(wide[0], LEAST_NAME) + sum(wide[1:]) + GAP * (len(wide) - 1)


def show_page(parts: Sequence[str | Grid], *, first_bold: bool = True) -> None:
    """Print sentences and tables, one below the other; the first sentence stands out in a terminal."""
    if sys.stdout is not None and sys.stdout.isatty():
        console.emit(lambda stream: _show_parts(parts, stream, first="bold" if first_bold else ""))
    else:
        console.say("\n".join(part if isinstance(part, str) else _plain(part) for part in parts))


def _show_parts(parts: Sequence[str | Grid], stream: TextIO, *, first: str) -> None:
    from rich.console import Console
    from rich.text import Text

    screen = Console(file=stream, highlight=False, markup=False, emoji=False)
    for at, part in enumerate(parts):
        if isinstance(part, str):
            screen.print(Text(console.printable(part), style="" if at else first), soft_wrap=part.startswith("  trueup "))
        else:
            kept = _kept(part.headings, part.rows, screen.width, [(word,) for word in part.dropped])
            if part.bars and _width(part, kept) > screen.width:
                kept = kept[:-1]
            screen.print(_laid_out(part, kept, [""] * len(part.rows)))


def _plain(grid: Grid) -> str:
    rows = [(shorten(row[0], grid.widest), *row[1:]) for row in [grid.headings, *grid.rows]]
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = []
    for row in rows:
        first, *others = zip(row, widths, strict=True)
        cells = [first[0].ljust(first[1]), *(cell.rjust(wide) for cell, wide in others)]
        lines.append("  ".join([*cells[:-1], row[-1]] if grid.bars else cells).rstrip())
    return "\n".join(lines)
