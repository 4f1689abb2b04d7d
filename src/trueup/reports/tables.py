"""What a page shows, as data: every segment as CSV, the sections of a profile as plain values."""

from __future__ import annotations

import csv
import math
from typing import TYPE_CHECKING, Any

from trueup.audits.result import BOUND, COLUMNS
from trueup.data.frame import to_jsonable
from trueup.reports.page import name_audits

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from trueup.audits.result import Audit
    from trueup.reports.view import Cell, Section

BATCH = 1_000  # rows that are taken from the columns at once
# Spreadsheets run a cell that begins so as a formula: the ASCII signs, their full-width forms, tab and line ends.
FORMULAS = tuple("=+-@＝＋－＠\t\r\n")


def csv_lines(results: Audit | Sequence[Audit] | Mapping[str, Audit]) -> Iterator[str]:
    r"""Write every segment as CSV, worst first, a line at a time: the columns of ``Audit.to_frame``.

    Fields are quoted as in RFC 4180 and lines end with CR LF. Numbers have all their digits, a missing one is empty,
    and yes and no are ``true`` and ``false``. The name of a segment that a spreadsheet would run as a formula, because
    it begins with ``=``, ``+``, ``-``, ``@`` or a tab, gets an apostrophe in front; numbers are left as they are. Several
    audits come one below the other, with a first column that says which.

    Examples
    --------
    >>> import trueup as tu
    >>> data = tu.simulate.lending(2_000, seed=1)
    >>> lines = csv_lines(tu.audit(data, outcome="outcome", prediction="prediction", by=["region"]))
    >>> next(lines)[:30], next(lines)[:24]
    ('segment,depth,n,weight,observe', 'region=harbour,1,221,221')
    """
    named = name_audits(results)
    several = not (len(named) == 1 and "" in named)
    return _lines(named, several=several)


def _lines(named: Mapping[str, Audit], *, several: bool) -> Iterator[str]:
    told = _Told()
    writer = csv.writer(told, lineterminator="\r\n")
    columns = (*COLUMNS, *([BOUND] if any(audit.bounded for audit in named.values()) else []))
    writer.writerow((*(["prediction"] if several else []), *columns))
    yield told.text
    for name, audit in named.items():
        first = [_safe(name)] if several else []
        for row in _rows(audit, columns):
            writer.writerow((*first, *row))
            yield told.text


class _Told:
    """Keeps the line that was written last."""

    text = ""

    def write(self, text: str) -> None:
        self.text = text


def _rows(audit: Audit, names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """Give the values of every segment."""
    depth = audit.keys.depth
    for start in range(0, len(audit), BATCH):
        part = slice(start, min(start + BATCH, len(audit)))
        columns: dict[str, list[Any]] = {name: column[part].tolist() for name, column in audit.columns.items()}
        columns["segment"] = [_safe(audit.keys.name(at)) for at in range(part.start, part.stop)]
        columns["depth"] = depth[part].tolist()
        columns.setdefault(BOUND, [0.0] * (part.stop - part.start))  # of an audit that knows no bound, beside one that does
        for values in zip(*(columns[name] for name in names), strict=True):
            yield tuple(_plain(value) for value in values)


def _plain(value: Any) -> Any:
    """Write what is missing as nothing, and yes and no as most readers of CSV know them."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if isinstance(value, float) and math.isnan(value) else value


def _safe(name: str) -> str:
    """Keep a spreadsheet from running a name, and a name from breaking the file."""
    known = name.encode("utf-8", "replace").decode("utf-8")
    return f"'{known}" if known.startswith(FORMULAS) else known


def section_dict(section: Section) -> dict[str, Any]:
    """Give a section as plain values fit for JSON: words, rows by the names of the columns, and how many more there are.

    Numbers are numbers with all their digits and None where they are missing, an interval is its two ends; what is only
    drawn is left out.
    """
    found: dict[str, Any] = {"title": section.title, "lead": section.lead, "rows": [], "more": 0}
    if section.table is None:
        return found
    headings = section.table.headings
    shown = [at for at, heading in enumerate(headings) if heading.kind != "forest"]
    names = dict(zip(shown, _apart([headings[at].text for at in shown]), strict=True))
    found["rows"] = [{name: _value(row[at]) for at, name in names.items()} for row in section.table.rows]
    return found | {"more": section.table.more}


def _apart(names: Sequence[str]) -> list[str]:
    """Tell columns of one name apart: the words of a trade, or a column of the data, may be those of another."""
    found: list[str] = []
    for name in names:
        own, count = name, 2
        while own in found:
            own, count = f"{name} ({count})", count + 1
        found.append(own)
    return found


def _value(cell: Cell) -> Any:
    if cell.value is not None:
        return to_jsonable(cell.value)
    return None if cell.text in ("", "-") else cell.text
