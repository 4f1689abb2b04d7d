"""report(): one audit or several as a self-contained HTML page, a Markdown summary, CSV or plain data."""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

import trueup
from trueup._validate import check_integer
from trueup.audits.audit import COLUMNS, Audit
from trueup.audits.text import describe_error, number, shorten
from trueup.data.columns import to_jsonable
from trueup.errors import ArgumentError
from trueup.reports import compare, model, plots, text
from trueup.reports.model import Section, TableView, audit_metrics, brier_terms, key_figures, view_table
from trueup.reports.plots import axis_labels
from trueup.reports.profiles import Profile, load_profile
from trueup.reports.text import count_segments, count_text, interval_text, next_step, percent
from trueup.storage import write_text

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
    from pathlib import Path

    from trueup.audits.audit import Finding
    from trueup.reports.model import Cell
    from trueup.reports.profiles import Vocabulary

    Results = Audit | Sequence[Audit] | Mapping[str, Audit]

MAX_TITLE_LENGTH = 200
MAX_NOTES = 10
MAX_SECTION_ROWS = 40
MAX_CORRECTIONS = 10
MAX_LEAD_LENGTH = 2_000  # characters
MAX_CODE_LENGTH = 120
CSV_BATCH = 1_000  # rows taken from the columns at once
FAMILYWISE = "the probability of flagging any calibrated {segment} is at most {alpha}, over all {segments} together"
ERROR_CONTROL = {
    "holm": FAMILYWISE,
    "max": FAMILYWISE,
    "bh": "at most {alpha} of the flagged {segments} are calibrated on average, if {segments} depend positively",
    "by": "at most {alpha} of the flagged {segments} are calibrated on average",
}
# Characters that could end or open an element inside a script element.
JSON_ESCAPES = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})
MARKUP = re.compile(r"[\\`*_{}\[\]<>|~&]")
MARKUP_IN_CODE = re.compile(r"[`|\\<>]")
# A spreadsheet evaluates a cell that starts with one of these as a formula: ASCII signs, full-width forms, tab, line ends.
FORMULA_STARTS = tuple("=+-@＝＋－＠\t\r\n")


def report(
    results: Audit | Sequence[Audit] | Mapping[str, Audit],
    path: str | os.PathLike[str],
    *,
    title: str | None = None,
    profile: Profile | str = "general",
    fix: Any = None,
) -> Path:
    """Write one audit, or several side by side, to a self-contained HTML page or a Markdown summary.

    The page loads nothing, needs no network, and can be read without scripts, in print and on a phone. The same results
    give the same file. The file is written atomically.

    Parameters
    ----------
    results : Audit, sequence of Audit, or mapping of str to Audit
        Two audits in a sequence are named "before" and "after"; a mapping provides the names.
    path : path
        File to write; an existing file is replaced, and the directory must exist. A name that ends with ``.md`` selects
        the Markdown summary for a pull request, any other name the page.
    title : str, optional
        Title above the verdict; by default that of the profile.
    profile : str or Profile
        Vocabulary and sections of a domain: "general", "credit", "ads", "health", or the path of a profile. It changes no
        number.
    fix : calibrator or Model, optional
        The model fitted between two audits; the page then shows what it corrected.

    Returns
    -------
    Path
        The file that was written.

    Raises
    ------
    ArgumentError
        If the results are empty or contain anything but audits, if the profile is unknown, or if the fix is not fitted.
    FileError
        If the file cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> import trueup as tu
    >>> data = tu.simulate.lending(2_000, seed=1)
    >>> audit = tu.audit(data, outcome="outcome", prediction="prediction", by=["region", "product"])
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     tu.report(audit, f"{directory}/audit.html").name
    'audit.html'
    """
    write = markdown if os.fspath(path).lower().endswith(".md") else render
    return write_text(path, [write(results, title=title, profile=profile, fix=fix)])


def name_audits(results: Results) -> dict[str, Audit]:
    """Return the audits by name: a mapping has names, one audit has none, two are "before" and "after"."""
    hint = "pass the result of trueup.audit"
    if isinstance(results, Audit):
        return {"": results}
    if isinstance(results, Mapping):
        audits = {shorten(str(name), 40): audit for name, audit in results.items()}
        if len(audits) < len(results):
            raise ArgumentError("two audits have the same name", hint="names must differ in their first characters")
    elif isinstance(results, (list, tuple)):
        names = ["before", "after"] if len(results) == 2 else [f"audit {k}" for k in range(1, len(results) + 1)]
        audits = dict(zip(names, results, strict=True))
    else:
        raise ArgumentError(f"a report is made of audits; got {type(results).__qualname__}", hint=hint)
    if not audits:
        raise ArgumentError("a report needs at least one audit; got none", hint=hint)
    for name, audit in audits.items():
        if not isinstance(audit, Audit):
            raise ArgumentError(f"a report is made of audits; got {type(audit).__qualname__} as {name!r}", hint=hint)
    return audits


@dataclass(frozen=True)
class Page:
    """The contents of a page or a summary.

    ``findings`` has per row of the table of segments the finding of each audit; ``sections`` of a profile are those of the
    last audit; ``training_rows`` is whether the rows look like those that the fix was fitted on.
    """

    title: str
    audits: Mapping[str, Audit]
    profile: Profile
    table: TableView
    findings: Sequence[Sequence[Finding | None]]
    sections: tuple[Section, ...]
    fix: tuple[Section, ...]
    training_rows: bool


def build_page(
    results: Results,
    *,
    title: str | None = None,
    profile: Profile | str = "general",
    fix: Any = None,
    max_rows: int | None = None,
) -> Page:
    """Collect the contents of a page; the parameters are those of `report`, ``max_rows`` limits the table of segments."""
    named = name_audits(results)
    audits = list(named.values())
    if len({(audit.settings.alpha, audit.settings.adjust) for audit in audits}) > 1:
        raise ArgumentError(
            "audits on one page must share alpha and adjust", hint="audit again with the same settings, or write two pages"
        )
    profile = profile if isinstance(profile, Profile) else load_profile(profile)
    vocabulary, training_rows = profile.vocabulary, False
    sections: tuple[Section, ...] = ()
    fix_parts: tuple[Section, ...] = ()
    if profile.sections:
        from trueup.reports.profiles.sections import build_sections

        sections = build_sections(audits[-1], profile)
    if fix is not None:
        training_rows = compare.looks_like_training_data(fix, audits)
        fix_parts = compare.fix_sections(fix, audits, vocabulary, training_rows=training_rows)
    if len(audits) > 1:
        table, findings = compare.compare_segments(named, vocabulary, max_rows)
        sections = tuple(replace(part, title=f"{part.title}: {list(named)[-1]}") for part in sections)
        default_title = f"{profile.title}, compared" if profile.name != "general" else "Calibration audits compared"
    else:
        default_title, table = profile.title, view_table(audits[0], vocabulary, max_rows)
        findings = [[finding] for finding in audits[0].worst(len(table.rows))]
    title = shorten(default_title if title is None else str(title), MAX_TITLE_LENGTH)
    return Page(title, named, profile, table, findings, sections, fix_parts, training_rows)


def render(results: Results, **options: Any) -> str:
    """Return the HTML page of `report`; ``options`` are those of `build_page`."""
    page = build_page(results, **options)
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("trueup.reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    vocabulary, last = page.profile.vocabulary, list(page.audits.values())[-1]
    assets: Any = environment.get_template("assets.html.j2").module
    script, alpha = assets.script(), percent(last.settings.alpha)
    return environment.get_template("page.html.j2").render(
        page=page,
        audit=last,
        details=_row_details(page),
        assets=assets,
        script=script,
        # The policy has the digest of the script: a browser runs this script and no other, whatever the data contain.
        digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        vocabulary=vocabulary,
        compare=compare,
        model=model,
        plots=plots,
        text=text,
        axes=axis_labels(vocabulary),
        regression=last.schema.task == "regression",
        alpha=alpha,
        level=percent(1 - last.settings.alpha),
        error_control=ERROR_CONTROL[last.settings.adjust].format(
            alpha=alpha, segment=vocabulary.segment, segments=vocabulary.segments
        ),
        version=trueup.__version__,
    )


# What the script of the page draws when a table row is opened


def _row_details(page: Page) -> str:
    """Return the figures and curves behind each table row as JSON."""
    audits, vocabulary = list(page.audits.values()), page.profile.vocabulary
    regression = any(audit.schema.task == "regression" for audit in audits)

    def shift(finding: Finding) -> str:
        largest = math.inf if regression else max(finding.expected, 1 - finding.expected)  # a rate lies in [0, 1]
        size = f"a shift of {number(finding.mde, 2)} or more" if finding.mde <= largest else "no shift"
        return "" if math.isnan(finding.mde) else size

    counts: dict[str, Callable[[Finding], str]] = {
        f"{vocabulary.outcomes}, observed": lambda f: count_text(f.weight * f.observed),
        f"{vocabulary.outcomes}, expected": lambda f: count_text(f.weight * f.expected),
    }
    figures: list[tuple[str, Callable[[Finding], str]]] = [
        (vocabulary.rows, lambda f: f"{f.n:,}"),
        *([] if regression else counts.items()),
        (vocabulary.observed, lambda f: number(f.observed, 4)),
        (vocabulary.expected, lambda f: number(f.expected, 4)),
        ("observed/expected", lambda f: number(f.ratio)),
        (f"{percent(1 - audits[0].settings.alpha)} interval", lambda f: interval_text(f.ratio_low, f.ratio_high)),
        ("sigma", lambda f: number(f.sigma)),
        ("p-value", lambda f: number(f.p_value, 2)),
        ("adjusted p", lambda f: number(f.p_adjusted, 2)),
        ("detectable", shift),
        ("note", lambda f: shorten(f.note, 200)),
    ]
    details = {
        "names": [name if len(audits) > 1 else "" for name in page.audits],
        "regression": regression,
        "axes": axis_labels(vocabulary),
        "segments": vocabulary.segments,
        "labels": [label for label, _ in figures],
        "rows": [
            [None if f is None else [[value(f) for _, value in figures], _rounded_curve(f)] for f in row]
            for row in page.findings
        ],
    }
    return json.dumps(details, allow_nan=False, separators=(",", ":")).translate(JSON_ESCAPES)


def _rounded_curve(finding: Finding) -> list[list[float | None]] | None:
    """Return predicted, observed, interval ends and rows per bin; None if no curve was kept, [] if it has no bins."""
    curve = finding.curve
    if curve is None or not len(curve):
        return None if curve is None else []
    # Four significant digits, and more for large values that lie close together.
    means = np.concatenate([curve.predicted, curve.observed])
    means = means[np.isfinite(means)]
    span = float(np.ptp(means)) if len(means) else 0.0
    extra = math.floor(math.log10(float(np.abs(means).max()) / span)) if span > 0 else 0
    digits = min(4 + max(extra, 0), 16)
    columns = (curve.predicted, curve.observed, curve.low, curve.high)
    rounded = (
        [float(f"{value:.{digits}g}") if math.isfinite(value) else None for value in column.tolist()] for column in columns
    )
    return [*rounded, curve.rows.tolist()]


# Markdown


def markdown(
    results: Results, profile: str | Profile = "general", top: int = 10, fix: Any = None, title: str | None = None
) -> str:
    """Return the Markdown summary of `report` in GitHub's syntax, with the ``top`` worst segments and without plots.

    Names from the data are shown as code, so that nothing in them acts as markup, link or mention.
    """
    check_integer("top", top, 0)
    page = build_page(results, title=title, profile=profile, fix=fix, max_rows=top)
    vocabulary, last = page.profile.vocabulary, list(page.audits.values())[-1]
    parts, step = [], next_step(last, vocabulary)
    for audit in page.audits.values():
        worst = f", worst {code(audit.finding(0).segment)}: {describe_error(audit.finding(0))}" if audit.tested else ""
        parts.append(f"**{prose(text.verdict_statement(audit, vocabulary))}**{worst}")
    if len(page.audits) > 1:
        verdicts = [f"- {code(name)}: {verdict}" for name, verdict in zip(page.audits, parts, strict=True)]
        headline, summary = compare.compared_sentences(page.audits, vocabulary)
        parts = ["\n".join(verdicts), prose(f"{headline}. {summary}")]
        step = compare.compared_step(page.audits, vocabulary, training_rows=page.training_rows)
    call = f" {code(step.code, 400)}, {prose(step.after)}" if step.code else ""
    parts = [f"## {prose(page.title)}", *parts, prose(step.text) + call, _figures(page.audits, vocabulary)]
    worst_segments = Section(f"Worst {vocabulary.segments}", "", page.table)
    for sections, max_rows in (
        ([worst_segments] if page.table.rows else [], top),
        (page.sections, MAX_SECTION_ROWS),
        (page.fix, MAX_CORRECTIONS),
    ):
        parts += [part for section in sections for part in _section(section, max_rows)]
    parts += _limits(last, vocabulary)
    items = [
        f"{prose(label)} {code(value, 400) if is_code else prose(value)}"
        for label, value, is_code in text.provenance(last, vocabulary)
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


def _figures(audits: Mapping[str, Audit], vocabulary: Vocabulary) -> str:
    """Return a table of key figures and metrics, with a column per audit."""
    columns = []
    for audit in audits.values():
        metrics = (*audit_metrics(audit, vocabulary), *brier_terms(audit)[1:3])
        figures = {
            item.name: item.value + f" ({item.detail})" * bool(item.detail) for item in key_figures(audit, vocabulary)
        }
        columns.append(figures | {item.name: item.value.lstrip("−+ ") for item in metrics})
    labels = dict.fromkeys(label for column in columns for label in column)
    headings = ["", *(code(name) if name else "all rows" for name in audits)]
    return _table(headings, ([prose(label), *(column.get(label, "-") for column in columns)] for label in labels))


def _section(section: Section, max_rows: int) -> list[str]:
    parts = [f"### {prose(section.title)}"]
    parts += [prose(section.lead, MAX_LEAD_LENGTH)] if section.lead else []
    table = section.table
    if table is None:
        return parts
    groups = [name for name, span in table.groups for _ in range(span)] or [""] * len(table.columns)
    shown = [(index, column) for index, column in enumerate(table.columns) if column.kind != "forest"]
    headings = [f"{code(groups[i])} {prose(c.text)}" if groups[i] else prose(c.text) for i, c in shown]
    rows = [[_cell(row[index]) for index, _ in shown] for row in table.rows[:max_rows]]
    text_columns = [place for place, (_, column) in enumerate(shown) if column.kind != "number"]
    more = table.more + max(len(table.rows) - max_rows, 0)
    return [*parts, _table(headings, rows, text_columns), *([f"and {more:,} more"] if more else [])]


def _cell(cell: Cell) -> str:
    if cell.kind == "name":
        return code(cell.text)
    return f"**{prose(cell.text)}**" if cell.state == "flagged" else prose(cell.text)


def _limits(audit: Audit, vocabulary: Vocabulary) -> list[str]:
    lines = [prose(note) for note in text.audit_notes(audit, vocabulary)]
    untested = len(audit) - audit.tested
    if untested:
        counted = prose(count_segments(untested, vocabulary))
        lines.append(f"{counted} listed but not tested: too few {prose(vocabulary.rows)}")
    more = [f"and {len(lines) - MAX_NOTES:,} more"] if len(lines) > MAX_NOTES else []
    items = "\n".join(f"- {line}" for line in [*lines[:MAX_NOTES], *more])
    return ["### Limits of this audit", items] if lines else []


# CSV


class _LineBuffer:
    """Keeps the line that was written last."""

    text = ""

    def write(self, text: str) -> None:
        self.text = text


def csv_lines(results: Results) -> Iterator[str]:
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
        first = [_csv_value(name)] if several else []
        for start in range(0, len(audit), CSV_BATCH):
            batch = slice(start, min(start + CSV_BATCH, len(audit)))
            columns: dict[str, Any] = {key: column[batch].tolist() for key, column in audit.columns.items()}
            columns["segment"] = map(audit.keys.name, range(batch.start, batch.stop))
            columns["depth"] = audit.keys.depth[batch].tolist()
            for row in zip(*(columns[key] for key in COLUMNS), strict=True):
                writer.writerow((*first, *map(_csv_value, row)))
                yield buffer.text


def _csv_value(value: Any) -> Any:
    if isinstance(value, str):
        encodable = value.encode("utf-8", "replace").decode("utf-8")
        return f"'{encodable}" if encodable.startswith(FORMULA_STARTS) else encodable
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if isinstance(value, float) and math.isnan(value) else value


# Plain data


def section_dict(section: Section) -> dict[str, Any]:
    """Return a section as plain values for JSON: title, lead, rows by column heading, and how many more there are.

    Numbers have all their digits and are None where missing, intervals are pairs; plots are left out. Headings that occur
    twice are numbered: terms of a vocabulary may coincide with others.
    """
    table, names = section.table or TableView((), ()), dict[str, int]()
    for index, column in enumerate(table.columns):
        name, count = column.text, 2
        while name in names:
            name, count = f"{column.text} ({count})", count + 1
        names |= {name: index} if column.kind != "forest" else {}
    rows = [{name: _data_value(row[index]) for name, index in names.items()} for row in table.rows]
    return {"title": section.title, "lead": section.lead, "rows": rows, "more": table.more}


def _data_value(cell: Cell) -> Any:
    if cell.value is not None:
        return to_jsonable(cell.value)
    return None if cell.text in ("", "-") else cell.text
