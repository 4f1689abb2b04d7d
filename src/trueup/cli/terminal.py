"""An audit in the terminal: a table that fits its width, or plain text where nobody looks on."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TextIO

from trueup.audits.text import audit_page, headings, notes, shorten, table_rows
from trueup.cli import console

if TYPE_CHECKING:
    from rich.console import RenderableType

    from trueup.audits.result import Audit

__all__ = ["show_audit"]

NAME_ROOM = 28
GAP = 2
DROPPED_FIRST = (("interval",), ("observed", "expected"), ("sigma",), ("rows",))
COLOURS = {True: "bold red", False: "bold green", None: "bold yellow"}


def show_audit(found: Audit, *, top: int, quiet: bool = False) -> None:
    """Print the verdict, the worst segments and the notes."""
    if quiet:
        console.say(found.verdict)
    elif sys.stdout is not None and sys.stdout.isatty():
        console.emit(lambda stream: _show_in_colour(found, top, stream))
    else:
        console.say(audit_page(found, top) if top else "\n".join([found.verdict, "", *notes(found)]).rstrip())


def _show_in_colour(found: Audit, top: int, stream: TextIO) -> None:
    from rich.console import Console
    from rich.text import Text

    screen = Console(file=stream, highlight=False, markup=False, emoji=False)
    state = found.miscalibrated if found.tested else None
    first, colon, rest = found.verdict.partition(": ")
    parts: list[RenderableType] = [Text.assemble((first, COLOURS[state]), colon + rest), Text()]
    if top:
        parts += [_table(found, top, screen.width), Text()]
    parts += [Text(shorten(note, 500), style="dim") for note in notes(found)]
    for part in parts:
        screen.print(part)


def _table(found: Audit, top: int, width: int) -> RenderableType:
    """Lay the worst segments out; where the terminal is narrow, leave out the columns that say least."""
    from rich.table import Table
    from rich.text import Text

    worst = found.worst(top)
    if found.overall.segment not in {finding.segment for finding in worst}:
        worst.append(found.overall)
    names, rows = headings(found), table_rows(worst)
    kept = _kept(names, rows, width)
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    for at in kept:
        table.add_column(Text(names[at]), justify="left" if at == 0 else "right", no_wrap=at > 0, overflow="fold")
    for finding, row in zip(worst, rows, strict=True):
        off = finding.p_adjusted <= found.settings.alpha
        cells = [Text(shorten(row[at], 200) if at == 0 else row[at]) for at in kept]
        table.add_row(*cells, style="red" if off else "")
    return table


def _kept(names: tuple[str, ...], rows: list[tuple[str, ...]], width: int) -> list[int]:
    """Choose the columns that leave room for the names of segments."""
    wide = [max(len(row[at]) for row in [names, *rows]) + GAP for at in range(len(names))]
    kept = list(range(len(names)))
    for words in DROPPED_FIRST:
        if sum(wide[at] for at in kept if at) + min(wide[0], NAME_ROOM) <= width:
            break
        kept = [at for at in kept if not any(word in names[at] for word in words)]
    return kept
