"""report(): one audit or several, written to a self-contained HTML file or a Markdown summary."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

import trueup
from trueup.audits.audit import Audit
from trueup.audits.text import number, shorten
from trueup.errors import ArgumentError
from trueup.reports import model, plots, text
from trueup.reports.compare import Comparison, compare, fix_sections, looks_like_training_data
from trueup.reports.model import view_table
from trueup.reports.plots import axis_labels
from trueup.reports.profiles.profile import Profile, load_profile
from trueup.reports.profiles.sections import build_sections
from trueup.reports.text import count_text, interval_text, page_subject, percent
from trueup.storage import write_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from trueup.audits.audit import Finding
    from trueup.reports.model import Section, TableView

MAX_TITLE_LENGTH = 200
FAMILYWISE = "the probability of flagging any calibrated {segment} is at most {alpha}, over all {segments} together"
ERROR_CONTROL = {
    "holm": FAMILYWISE,
    "max": FAMILYWISE,
    "bh": "at most {alpha} of the flagged {segments} are calibrated on average, if {segments} depend positively",
    "by": "at most {alpha} of the flagged {segments} are calibrated on average",
}
# Characters that could end or open an element inside a script element.
JSON_ESCAPES = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


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
    if os.fspath(path).lower().endswith(".md"):
        from trueup.reports.export import markdown

        return write_text(path, [markdown(results, title=title, profile=profile, fix=fix)])
    return write_text(path, [render(results, title=title, profile=profile, fix=fix)])


def name_audits(results: Audit | Sequence[Audit] | Mapping[str, Audit]) -> dict[str, Audit]:
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
    """The contents of a page or a summary: audits, the comparison of several, and the table of segments.

    ``findings`` has per row of the table the finding of each audit; ``sections`` of a profile are those of the last audit.
    """

    title: str
    audits: Mapping[str, Audit]
    profile: Profile
    comparison: Comparison | None
    table: TableView
    findings: Sequence[Sequence[Finding | None]]
    sections: tuple[Section, ...]
    fix: tuple[Section, ...]


def build_page(
    results: Audit | Sequence[Audit] | Mapping[str, Audit],
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
    vocabulary = profile.vocabulary
    training_rows = looks_like_training_data(fix, audits)
    fix_parts = fix_sections(fix, audits, vocabulary, training_rows=training_rows)
    sections = build_sections(audits[-1], profile)
    comparison = None
    if len(audits) > 1:
        comparison = compare(named, vocabulary, training_rows=training_rows, max_rows=max_rows)
        table, findings = comparison.table, comparison.findings
        sections = tuple(replace(part, title=f"{part.title}: {list(named)[-1]}") for part in sections)
        default_title = f"{profile.title}, compared" if profile.name != "general" else "Calibration audits compared"
    else:
        default_title, table = profile.title, view_table(audits[0], vocabulary, max_rows)
        findings = tuple([finding] for finding in audits[0].worst(len(table.rows)))
    title = shorten(default_title if title is None else str(title), MAX_TITLE_LENGTH)
    return Page(title, named, profile, comparison, table, findings, sections, fix_parts)


def render(results: Audit | Sequence[Audit] | Mapping[str, Audit], **options: Any) -> str:
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
    script = environment.get_template("script.html.j2").render()
    alpha = percent(last.settings.alpha)
    template = "audit.html.j2" if page.comparison is None else "compare.html.j2"
    return environment.get_template(template).render(
        title=page.title,
        audits=page.audits,
        audit=last,
        page=page.comparison,
        table=page.table,
        sections=page.sections,
        fix=page.fix,
        details=_row_details(page),
        script=script,
        # The policy has the digest of the script: a browser runs this script and no other, whatever the data contain.
        digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        subject=page_subject(page.audits.values(), vocabulary),
        vocabulary=vocabulary,
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
        text = f"a shift of {number(finding.mde, 2)} or more" if finding.mde <= largest else "no shift"
        return "" if math.isnan(finding.mde) else text

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
