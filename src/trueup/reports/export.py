"""Audits in other formats: a Markdown summary for a pull request, segments as CSV, sections as plain data."""

from __future__ import annotations

import csv
import math
import re
from typing import TYPE_CHECKING, Any

from trueup._validate import check_integer
from trueup.audits.audit import COLUMNS
from trueup.audits.text import describe_error, shorten
from trueup.data.columns import to_jsonable
from trueup.reports.model import Section, audit_metrics, brier_terms, key_figures
from trueup.reports.page import build_page, name_audits
from trueup.reports.text import audit_notes, count_segments, next_step, provenance, verdict_statement

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from trueup.audits.audit import Audit
    from trueup.reports.model import Cell
    from trueup.reports.profiles.profile import Profile, Vocabulary
    from trueup.reports.text import NextStep

MAX_NOTES = 10
MAX_SECTION_ROWS = 40
MAX_CORRECTIONS = 10
MAX_FILES = 5
MAX_LEAD_LENGTH = 2_000  # characters
MAX_CODE_LENGTH = 120
MARKUP = re.compile(r"[\\`*_{}\[\]<>|~&]")
MARKUP_IN_CODE = re.compile(r"[`|\\<>]")
CSV_BATCH = 1_000  # rows taken from the columns at once
# A spreadsheet evaluates a cell that starts with one of these as a formula: ASCII signs, full-width forms, tab, line ends.
FORMULA_STARTS = tuple("=+-@＝＋－＠\t\r\n")


# Markdown


def markdown(
    results: Audit | Sequence[Audit] | Mapping[str, Audit],
    profile: str | Profile = "general",
    top: int = 10,
    fix: Any = None,
    title: str | None = None,
) -> str:
    """Return the Markdown summary of `report` in GitHub's syntax, with the ``top`` worst segments and without plots.

    Names from the data are shown as code, so that nothing in them acts as markup, link or mention.
    """
    check_integer("top", top, 0)
    page = build_page(results, title=title, profile=profile, fix=fix, max_rows=top)
    vocabulary, last = page.profile.vocabulary, list(page.audits.values())[-1]
    parts = [_verdict(audit, vocabulary) for audit in page.audits.values()]
    step = next_step(last, vocabulary)
    if page.comparison is not None:
        verdicts = [f"- {code(name)}: {verdict}" for name, verdict in zip(page.audits, parts, strict=True)]
        parts = ["\n".join(verdicts), prose(f"{page.comparison.headline}. {page.comparison.summary}")]
        step = page.comparison.step
    parts = [f"## {prose(page.title)}", *parts, _step(step), _figures(page.audits, vocabulary)]
    if page.table.rows:
        parts += _section(Section(f"Worst {vocabulary.segments}", "", page.table), top)
    for section in page.sections:
        parts += _section(section)
    for section in page.fix:
        parts += _section(section, MAX_CORRECTIONS)
    parts += _limits(last, vocabulary)
    items = [
        f"{prose(label)} {code(text, 400) if is_code else prose(text)}"
        for label, text, is_code in provenance(last, vocabulary)
    ]
    items.append(prose(f"at least {last.settings.min_rows:,} {vocabulary.rows} per {vocabulary.segment}"))
    parts.append(f"<sub>{' · '.join(items)}</sub>")
    return "\n\n".join(parts) + "\n"


def code(text: str, width: int = MAX_CODE_LENGTH) -> str:
    """Return a text from the data as code on one line, safe in a table."""
    short = shorten(text, width)
    if short == short.strip() and short and not MARKUP_IN_CODE.search(short):
        return f"`{short}`"
    # Markdown still applies inside the element: characters with a meaning become character references.
    escaped = "".join(c if c.isalnum() or c in " =.,·…-" or ord(c) > 127 else f"&#{ord(c)};" for c in short)
    return f"<code>{escaped.replace('www.', 'www&#46;')}</code>"


def prose(text: str, width: int = 400) -> str:
    r"""Return a text without anything that acts as markup, mention or link."""
    escaped = MARKUP.sub(lambda match: f"&#{ord(match.group())};", shorten(text, width))
    escaped = escaped.replace("://", "&#58;//").replace("www.", "www&#46;")
    return re.sub(r"(?<!&)([@#])(?=\w)", "\\1\u200b", escaped)  # a mention needs the letters right after the sign


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]], text_columns: Collection[int] = (0,)) -> str:
    """Return a table with text columns aligned left and the others right."""
    rule = ["---" if index in text_columns else "---:" for index in range(len(headings))]
    return "\n".join("| " + " | ".join(row) + " |" for row in [headings, rule, *rows])


def _verdict(audit: Audit, vocabulary: Vocabulary) -> str:
    statement = f"**{prose(verdict_statement(audit, vocabulary))}**"
    if not audit.tested:
        return statement
    worst = audit.finding(0)
    return f"{statement}, worst {code(worst.segment)}: {describe_error(worst)}"


def _step(step: NextStep) -> str:
    if not step.code:
        return prose(step.text)
    return f"{prose(step.text)} {code(step.code, 400)}" + (f", {prose(step.after)}" if step.after else "")


def _figures(audits: Mapping[str, Audit], vocabulary: Vocabulary) -> str:
    """Return a table of key figures and metrics, with a column per audit."""
    columns = [
        {
            figure.name: figure.value + f" ({figure.detail})" * bool(figure.detail)
            for figure in key_figures(audit, vocabulary)
        }
        | {item.name: item.value.lstrip("−+ ") for item in (*audit_metrics(audit, vocabulary), *brier_terms(audit)[1:3])}
        for audit in audits.values()
    ]
    labels = dict.fromkeys(label for column in columns for label in column)
    headings = ["", *(code(name) if name else "all rows" for name in audits)]
    return _table(headings, ([prose(label), *(column.get(label, "-") for column in columns)] for label in labels))


def _section(section: Section, max_rows: int = MAX_SECTION_ROWS) -> list[str]:
    parts = [f"### {prose(section.title)}"]
    parts += [prose(section.lead, MAX_LEAD_LENGTH)] if section.lead else []
    table = section.table
    if table is None:
        return parts
    groups = [name for name, span in table.groups for _ in range(span)] or [""] * len(table.headings)
    shown = [index for index, heading in enumerate(table.headings) if heading.kind != "forest"]
    kinds = [table.headings[index].kind for index in shown]
    headings = [
        f"{code(groups[i])} {prose(table.headings[i].text)}" if groups[i] else prose(table.headings[i].text) for i in shown
    ]
    rows = [[_cell(row[index]) for index in shown] for row in table.rows[:max_rows]]
    text_columns = [index for index, kind in enumerate(kinds) if kind != "number"]
    more = table.more + max(len(table.rows) - max_rows, 0)
    return [*parts, _table(headings, rows, text_columns), *([f"and {more:,} more"] if more else [])]


def _cell(cell: Cell) -> str:
    if cell.kind == "name":
        return code(cell.text)
    return f"**{prose(cell.text)}**" if cell.state == "flagged" else prose(cell.text)


def _limits(audit: Audit, vocabulary: Vocabulary) -> list[str]:
    lines = [prose(note) for note in audit_notes(audit, vocabulary)]
    untested = len(audit) - audit.tested
    if untested:
        lines.append(
            f"{prose(count_segments(untested, vocabulary))} listed but not tested: too few {prose(vocabulary.rows)}"
        )
    if not lines:
        return []
    more = [f"and {len(lines) - MAX_NOTES:,} more"] if len(lines) > MAX_NOTES else []
    return ["### Limits of this audit", "\n".join(f"- {line}" for line in [*lines[:MAX_NOTES], *more])]


# CSV


class _LineBuffer:
    """Keeps the line that was written last."""

    text = ""

    def write(self, text: str) -> None:
        self.text = text


def csv_lines(results: Audit | Sequence[Audit] | Mapping[str, Audit]) -> Iterator[str]:
    r"""Yield every segment as a line of CSV, worst first: the columns of ``Audit.to_frame``.

    Fields are quoted as in RFC 4180 and lines end with CR LF. Numbers have all their digits, missing ones are empty, and
    booleans are ``true`` and ``false``. The name of a segment that a spreadsheet would evaluate as a formula is preceded
    by an apostrophe. Several audits follow each other, with their name in the first column.
    """
    return _csv_lines(name_audits(results))


def _csv_lines(named: Mapping[str, Audit]) -> Iterator[str]:
    buffer = _LineBuffer()
    writer = csv.writer(buffer, lineterminator="\r\n")
    several = list(named) != [""]
    writer.writerow((*(["prediction"] if several else []), *COLUMNS))
    yield buffer.text
    for name, audit in named.items():
        first = [_csv_name(name)] if several else []
        for row in _csv_rows(audit):
            writer.writerow((*first, *row))
            yield buffer.text


def _csv_rows(audit: Audit) -> Iterator[tuple[Any, ...]]:
    for start in range(0, len(audit), CSV_BATCH):
        batch = slice(start, min(start + CSV_BATCH, len(audit)))
        columns: dict[str, list[Any]] = {name: column[batch].tolist() for name, column in audit.columns.items()}
        columns["segment"] = [_csv_name(audit.keys.name(rank)) for rank in range(batch.start, batch.stop)]
        columns["depth"] = audit.keys.depth[batch].tolist()
        for values in zip(*(columns[name] for name in COLUMNS), strict=True):
            yield tuple(_csv_value(value) for value in values)


def _csv_value(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if isinstance(value, float) and math.isnan(value) else value


def _csv_name(name: str) -> str:
    encodable = name.encode("utf-8", "replace").decode("utf-8")
    return f"'{encodable}" if encodable.startswith(FORMULA_STARTS) else encodable


# Plain data


def section_dict(section: Section) -> dict[str, Any]:
    """Return a section as plain values for JSON: title, lead, rows by column heading, and how many more there are.

    Numbers have all their digits and are None where missing, intervals are pairs; plots are left out.
    """
    table = section.table
    if table is None:
        return {"title": section.title, "lead": section.lead, "rows": [], "more": 0}
    shown = [index for index, heading in enumerate(table.headings) if heading.kind != "forest"]
    names = dict(zip(shown, _unique([table.headings[index].text for index in shown]), strict=True))
    rows = [{name: _data_value(row[index]) for index, name in names.items()} for row in table.rows]
    return {"title": section.title, "lead": section.lead, "rows": rows, "more": table.more}


def _unique(names: Sequence[str]) -> list[str]:
    """Number names that occur twice: terms of a vocabulary may coincide with other headings."""
    unique: list[str] = []
    for name in names:
        candidate, count = name, 2
        while candidate in unique:
            candidate, count = f"{name} ({count})", count + 1
        unique.append(candidate)
    return unique


def _data_value(cell: Cell) -> Any:
    if cell.value is not None:
        return to_jsonable(cell.value)
    return None if cell.text in ("", "-") else cell.text
