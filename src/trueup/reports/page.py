"""report(): one audit or several as a self-contained HTML page, a Markdown summary, CSV or plain data."""

from __future__ import annotations

import base64
import csv
import functools
import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

import trueup
from trueup._validate import check_integer
from trueup.audits.result import Audit, Finding
from trueup.audits.text import format_share, is_possible_shift, number, shorten, signed_count
from trueup.data.columns import to_jsonable
from trueup.errors import ArgumentError
from trueup.monitoring.monitor import Monitor
from trueup.reports import compare, model, summary, text
from trueup.reports.model import Cell, Section, TableView, view_table
from trueup.reports.profiles import Profile, load_profile
from trueup.reports.text import count_text, interval_text, percent
from trueup.storage import write_text

if TYPE_CHECKING:
    from pathlib import Path

    from jinja2 import Environment

    Results = Audit | Sequence[Audit] | Mapping[str, Audit]

MAX_TITLE_LENGTH = 200
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
    results: Audit | Sequence[Audit] | Mapping[str, Audit] | Monitor,
    path: str | os.PathLike[str],
    *,
    title: str | None = None,
    profile: Profile | str = "general",
    fix: Any = None,
    reference: Any = None,
    exposure: Audit | None = None,
) -> Path:
    """Write one audit, or several side by side, to a self-contained HTML page or a Markdown summary.

    The page loads nothing, needs no network, and can be read without scripts, in print and on a phone. The same results
    give the same file. The file is written atomically.

    Parameters
    ----------
    results : Audit, sequence of Audit, mapping of str to Audit, or Monitor
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
    reference : Audit or array-like, optional
        Scores to compare those of the last audit with, such as those at development: an audit of them, or the scores as
        an array. The profile "credit" shows the population stability index and, of an audit, Gini and KS.
    exposure : Audit, optional
        An audit of the rows of the last audit with the exposure as ``weight``. The profile "credit" shows its
        observed/expected beside that by number.

    Returns
    -------
    Path
        The file that was written.

    Raises
    ------
    ArgumentError
        If the results are empty or contain anything but audits, if the profile is unknown or has no section for
        ``reference`` or ``exposure``, or if the fix is not fitted.
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
    is_summary = os.fspath(path).lower().endswith(".md")
    if isinstance(results, Monitor):
        from trueup.reports import watch  # pages of audits need it not

        if fix is not None or reference is not None or exposure is not None:
            raise ArgumentError("fix, reference and exposure are for audits", hint="leave them out for a monitor")
        return write_text(path, [(watch.markdown if is_summary else watch.page)(results, profile=profile, title=title)])
    write = markdown if is_summary else render
    options = {"title": title, "profile": profile, "fix": fix, "reference": reference, "exposure": exposure}
    return write_text(path, [write(results, **options)])


def name_audits(results: Results) -> dict[str, Audit]:
    """Return audits by name: as in a mapping; no name for one audit; "before" and "after" for two; else "audit 1", ..."""
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

    ``findings`` has, per row of ``table``, the finding of each audit; ``sections`` are those of the profile, for the last
    audit, ``fix`` those on the fix; ``training_rows`` is whether the rows look like those that the fix was fitted on;
    ``top`` is how many problems and segments a summary lists.
    """

    title: str
    audits: Mapping[str, Audit]
    profile: Profile
    table: TableView
    findings: Sequence[Sequence[Finding | None]]
    sections: tuple[Section, ...]
    fix: tuple[Section, ...]
    training_rows: bool
    top: int = 0


def build_page(
    results: Results,
    *,
    title: str | None = None,
    profile: Profile | str = "general",
    fix: Any = None,
    reference: Any = None,
    exposure: Audit | None = None,
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
    if profile.sections or reference is not None or exposure is not None:
        from trueup.reports.profiles.sections import build_sections  # a page without them needs no decisions

        sections = build_sections(audits[-1], profile, reference=reference, exposure=exposure)
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
    return Page(title, named, profile, table, findings, sections, fix_parts, training_rows, max_rows or 0)


@functools.cache
def environment() -> Environment:
    """Return the environment of the templates, which keeps them compiled."""
    from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

    templates = Environment(
        loader=PackageLoader("trueup.reports"),
        autoescape=select_autoescape(disabled_extensions=["md.j2"], default=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= {"code": code, "prose": prose}
    modules = {"compare": compare, "model": model, "summary": summary, "text": text}
    templates.globals |= {**modules, "version": trueup.__version__}
    return templates


def render(results: Results, template: str = "page.html.j2", **options: Any) -> str:
    """Return the HTML page of `report`, or another template; ``options`` are those of `build_page`."""
    page, templates = build_page(results, **options), environment()
    vocabulary, last = page.profile.vocabulary, list(page.audits.values())[-1]
    assets: Any = templates.get_template("assets.html.j2").module
    script, alpha = assets.script(), percent(last.settings.alpha)
    return templates.get_template(template).render(
        page=page,
        audit=last,
        details=_row_details(page),
        assets=assets,
        script=script,
        # The policy has the digest of the script: a browser runs this script and no other, whatever the data contain.
        digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        vocabulary=vocabulary,
        axes=model.axis_labels(vocabulary),
        regression=last.schema.task == "regression",
        alpha=alpha,
        level=percent(1 - last.settings.alpha),
        error_control=ERROR_CONTROL[last.settings.adjust].format(
            alpha=alpha, segment=vocabulary.segment, segments=vocabulary.segments
        ),
    )


# What the script of the page draws when a table row is opened


def _row_details(page: Page) -> str:
    """Return as JSON the figures and curves that the page shows when a table row is opened."""
    audits, vocabulary = list(page.audits.values()), page.profile.vocabulary
    regression, level = any(audit.schema.task == "regression" for audit in audits), percent(1 - audits[0].settings.alpha)

    def shift(finding: Finding) -> str:
        possible = is_possible_shift(audits[0], finding.mde, finding.expected)
        size = f"a shift of {number(finding.mde, 2)} or more" if possible else "no shift"
        return "" if math.isnan(finding.mde) else size

    counts: dict[str, Callable[[Finding], str]] = {
        f"{vocabulary.outcomes}, observed": lambda f: count_text(f.weight * f.observed),
        f"{vocabulary.outcomes}, expected": lambda f: count_text(f.weight * f.expected),
    }
    figures: list[tuple[str, Callable[[Finding], str]]] = [
        (vocabulary.rows, lambda f: f"{f.n:,} ({format_share(f.share)})"),
        *([] if regression else counts.items()),
        (vocabulary.observed, lambda f: number(f.observed, 4)),
        (vocabulary.expected, lambda f: number(f.expected, 4)),
        ("excess", lambda f: signed_count(f.excess)),
        ("observed/expected", lambda f: number(f.ratio)),
        (f"{level} interval", lambda f: interval_text(f.ratio_low_adjusted, f.ratio_high_adjusted)),
        (f"{level} interval, this one alone", lambda f: interval_text(f.ratio_low, f.ratio_high)),
        ("adjusted p", lambda f: number(f.p_adjusted, 2)),
        ("p-value, not adjusted", lambda f: number(f.p_value, 2)),
        ("sigma", lambda f: number(f.sigma)),
        ("detectable", shift),
        ("note", lambda f: shorten(f.note, 200)),
    ]
    details = {
        "names": [name if len(audits) > 1 else "" for name in page.audits],
        "regression": regression,
        "axes": model.axis_labels(vocabulary),
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


def markdown(results: Results, profile: str | Profile = "general", top: int = 10, **options: Any) -> str:
    """Return the Markdown summary of `report` with ``top`` problems and segments; ``options`` are those of `build_page`."""
    check_integer("top", top, 0)
    text = render(results, "page.md.j2", profile=profile, max_rows=top, **options)
    return re.sub("\n{3,}", "\n\n", text).strip() + "\n"


def code(text: str, width: int = MAX_CODE_LENGTH) -> str:
    """Return a text from the data as Markdown code on one line, safe in a table."""
    short = shorten(text, width)
    if short == short.strip() and short and not MARKUP_IN_CODE.search(short):
        return f"`{short}`"
    # Markdown still applies inside the element: characters with a meaning become character references.
    escaped = "".join(c if c.isalnum() or c in " =.,·…-" or ord(c) > 127 else f"&#{ord(c)};" for c in short)
    return f"<code>{escaped.replace('www.', 'www&#46;')}</code>"


def prose(text: str, width: int = 400) -> str:
    r"""Return a text for Markdown, with all characters escaped that would act as markup, mention or link."""
    escaped = MARKUP.sub(lambda match: f"&#{ord(match.group())};", shorten(text, width))
    escaped = escaped.replace("://", "&#58;//").replace("www.", "www&#46;")
    return re.sub(r"(?<!&)([@#])(?=\w)", "\\1\u200b", escaped)  # a mention needs the letters right after the sign


# CSV


def csv_lines(results: Results) -> Iterator[str]:
    r"""Yield every segment as a line of CSV, worst first: the columns of ``Audit.to_frame``, and the problem it belongs to.

    Fields are quoted as in RFC 4180 and lines end with CR LF. Numbers have all their digits, missing ones are empty, and
    booleans are ``true`` and ``false``. The name of a segment that a spreadsheet would evaluate as a formula is preceded
    by an apostrophe. Several audits follow each other, with their name in the first column.
    """
    return _csv_lines(name_audits(results))


def _csv_lines(named: Mapping[str, Audit]) -> Iterator[str]:
    sink: Any = SimpleNamespace(write=str)  # a writer returns what this does: the line
    writer, several = csv.writer(sink, lineterminator="\r\n"), list(named) != [""]
    names = max((audit.column_names for audit in named.values()), key=len)  # of all, if only some have clusters
    names = (*names, "problem")
    yield writer.writerow((*(["prediction"] if several else []), *names))
    for name, audit in named.items():
        first, values = [csv_value(name)] if several else [], {**audit.columns, **audit.derived}
        problem_of = audit.explained_by if audit.miscalibrated else {}
        for start in range(0, len(audit), CSV_BATCH):
            batch = slice(start, min(start + CSV_BATCH, len(audit)))
            columns: dict[str, Any] = {key: column[batch].tolist() for key, column in values.items()}
            columns["segment"] = map(audit.keys.name, range(batch.start, batch.stop))
            columns["depth"] = audit.keys.depth[batch].tolist()
            ranks = range(batch.start, batch.stop)
            columns["problem"] = [audit.keys.name(problem_of[rank]) if rank in problem_of else "" for rank in ranks]
            missing = [None] * (batch.stop - batch.start)
            for row in zip(*(columns.get(key, missing) for key in names), strict=True):
                yield writer.writerow((*first, *map(csv_value, row)))


def csv_value(value: Any) -> Any:
    """Return a value as it is written to CSV; a text that a spreadsheet would evaluate is preceded by an apostrophe."""
    if isinstance(value, str):
        encodable = value.encode("utf-8", "replace").decode("utf-8")
        return f"'{encodable}" if encodable.startswith(FORMULA_STARTS) else encodable
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if isinstance(value, float) and math.isnan(value) else value


# JSON


def json_lines(
    results: Results, profile: str = "general", fix: Any = None, *, extra: Mapping[str, Any] | None = None, **options: Any
) -> Iterator[str]:
    """Yield the last audit as strict JSON, one segment per line, with earlier audits and what ``fix`` corrected.

    ``extra`` are further values by key; ``options`` are those of `build_sections`, for the last audit.
    """
    named, vocabulary = name_audits(results), load_profile(profile).vocabulary
    audits = list(named.values())
    source = audits[-1].source
    training_rows = source is not None and source.training_rows
    yield from _audit_json(audits[-1], profile, **options)
    for other in audits[:-1]:
        yield ',\n"against": '
        yield from _audit_json(other, profile)
        yield "}"
    if fix is not None:
        sections = compare.fix_sections(fix, audits, vocabulary, training_rows=training_rows)
        yield f',\n"fix": {json.dumps([section_dict(section) for section in sections], allow_nan=False)}'
        yield f',\n"training_rows": {json.dumps(training_rows)}'
    step = summary.next_step(audits[0], vocabulary)
    if len(audits) > 1:
        step = compare.compared_step(named, vocabulary, training_rows=training_rows)
    for key, value in {"next": step._asdict(), **(extra or {})}.items():
        yield f",\n{json.dumps(key)}: {json.dumps(value, allow_nan=False)}"
    yield "}\n"


def _audit_json(audit: Audit, profile: str, **options: Any) -> Iterator[str]:
    """Yield an audit as JSON without the closing brace, one segment at a time."""
    from trueup.reports.profiles.sections import build_sections

    head = {key: value for key, value in audit.to_dict(most=0).items() if key != "findings"}
    if audit.source is not None:
        files = [{"name": name, "bytes": size, "sha256": digest} for name, size, digest in audit.source.files]
        head["source"] = {"files": files, "command": audit.source.command}
    head["summary"] = audit.summary.to_dict()
    head["sections"] = [section_dict(section) for section in build_sections(audit, profile, **options)]
    yield json.dumps(head, allow_nan=False)[:-1] + ', "findings": ['
    for index in range(len(audit)):
        yield (",\n" if index else "\n") + json.dumps(audit.finding(index).to_dict(), allow_nan=False)
    yield "\n]"


def section_dict(section: Section) -> dict[str, Any]:
    """Return a section as plain values for JSON: title, lead, rows by column heading, how many more there are, and note.

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
    return {"title": section.title, "lead": section.lead, "rows": rows, "more": table.more, "note": section.note}


def _data_value(cell: Cell) -> Any:
    if cell.value is not None:
        return to_jsonable(cell.value)
    return None if cell.text in ("", "-") else cell.text
