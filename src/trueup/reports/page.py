"""report(): results to one HTML file that needs nothing else."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from trueup.audits.result import Audit
from trueup.audits.text import shorten
from trueup.errors import ArgumentError
from trueup.reports.compare import compare
from trueup.reports.details import details
from trueup.reports.drawing import axes
from trueup.reports.provenance import about
from trueup.reports.sheet import view_sheet
from trueup.reports.view import view_audit, view_table
from trueup.storage import write_text

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from jinja2 import Environment

    from trueup.reports.profiles import Profile, Words
    from trueup.reports.view import Section

CONTROL = {
    "holm": "the chance that even one {one} is called off by mistake is at most {share}, over all {many} together",
    "max": "the chance that even one {one} is called off by mistake is at most {share}, over all {many} together",
    "bh": "of the {many} called off, no more than {share} are mistakes on average, if {many} depend positively",
    "by": "of the {many} called off, no more than {share} are mistakes on average",
}


def report(
    results: Audit | Sequence[Audit] | Mapping[str, Audit],
    path: str | os.PathLike[str],
    *,
    title: str | None = None,
    profile: Profile | str = "general",
    fix: Any = None,
) -> Path:
    """Write one audit, or several side by side, to a single HTML file, or in short to a Markdown file.

    The page holds everything it shows: it loads nothing, needs no network, and can be read without scripts, in print,
    and on a phone. The same results give the same file. It is written whole or not at all.

    Parameters
    ----------
    results : Audit, sequence of Audit, or mapping of str to Audit
        Two audits in a sequence are named "before" and "after"; a mapping gives the names.
    path : path
        The file to write; an existing one is replaced. Its directory must exist. A name that ends with ``.md`` gets a
        summary for a pull request, any other the page.
    title : str, optional
        What stands above the verdict.
    profile : str or Profile
        "general", or whose words and tables to use: "credit", "ads", "health", or the file of a profile. No number
        changes.
    fix : calibrator or Model, optional
        What was fitted between two audits: the page tells what it corrected.

    Returns
    -------
    Path
        The file that was written.

    Raises
    ------
    ArgumentError
        If there is no audit among the results, or something that is not one; if the profile is unknown; if the fix was
        not fitted.
    FileError
        If the file cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> import trueup as tu
    >>> data = tu.simulate.lending(2_000, seed=1)
    >>> found = tu.audit(data, outcome="outcome", prediction="prediction", by=["region", "product"])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     tu.report(found, f"{folder}/audit.html").name
    'audit.html'
    """
    if os.fspath(path).lower().endswith(".md"):
        from trueup.reports.markdown import markdown

        return write_text(path, [markdown(results, title=title, profile=profile, fix=fix)])
    return write_text(path, [render(results, title=title, profile=profile, fix=fix)])


def render(
    results: Audit | Sequence[Audit] | Mapping[str, Audit],
    *,
    title: str | None = None,
    profile: Profile | str = "general",
    fix: Any = None,
) -> str:
    """Give the page of `report` as a text."""
    named = name_audits(results)
    if len({(audit.settings.alpha, audit.settings.adjust) for audit in named.values()}) > 1:
        raise ArgumentError(
            "audits on one page must share alpha and adjust", hint="audit again with the same, or make a page of each"
        )
    trade, house = _profile(profile), _environment()
    words, found = trade.words, list(named.values())
    taught = fix is not None and _has_taught(fix, found)  # asked first: later the rows of the audits are gone
    shared = _shared(named, trade, title, house.get_template("script.html.j2").render())
    shared["fix"] = _fix(fix, found, words, taught=taught)
    if len(found) > 1:
        both = compare(named, words, taught=taught)
        return house.get_template("compare.html.j2").render(page=both, details=both.details, **shared)
    (first,) = found
    table = view_table(first, words)
    told = details(named, [[finding] for finding in first.worst(len(table.rows))], words)
    page, sheet = view_audit(first, words=words), view_sheet(first, words)
    return house.get_template("audit.html.j2").render(page=page, sheet=sheet, table=table, details=told, **shared)


def _shared(named: Mapping[str, Audit], trade: Profile, title: str | None, script: str) -> dict[str, Any]:
    """Give what pages of one audit and of several show alike; parts of a profile are those of the last audit."""
    several, words = len(named) > 1, trade.words
    usual = (
        ("Calibration audits" if trade.name == "general" else f"{trade.title},") + " compared" if several else trade.title
    )
    name, last = list(named.items())[-1]
    share = f"{100 * last.settings.alpha:g}%"
    return {
        "title": shorten(usual if title is None else str(title), 200),
        "script": script,
        # With the script's digest in the policy, a browser runs this script and no other, whatever the data holds.
        "digest": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        "about": about(named.values(), words),
        "words": words,
        "axes": axes(words),
        "amounts": last.schema.task == "regression",
        "alpha": share,
        "level": f"{100 * (1 - last.settings.alpha):g}%",
        "control": CONTROL[last.settings.adjust].format(share=share, one=words.segment, many=words.segments),
        "version": _version(),
        "sections": _sections(last, name if several else "", trade),
    }


def _profile(profile: Profile | str) -> Profile:
    from trueup.reports.profiles import Profile as Known
    from trueup.reports.profiles import load_profile

    return profile if isinstance(profile, Known) else load_profile(profile)


def _sections(audit: Audit, name: str, profile: Profile) -> tuple[Section, ...]:
    """Ask a profile for its parts of the page; the general one has none."""
    from trueup.reports.profiles import sections

    found = sections(audit, profile)
    return tuple(replace(part, title=f"{part.title}: {name}") for part in found) if name else found


def _has_taught(fix: Any, audits: Sequence[Audit]) -> bool:
    from trueup.reports.fix import has_taught

    return has_taught(fix, audits)


def _fix(fix: Any, audits: Sequence[Audit], words: Words, *, taught: bool) -> tuple[Section, ...]:
    if fix is None:
        return ()
    from trueup.reports.fix import view_fix

    return view_fix(fix, audits, words, taught=taught)


def name_audits(results: Audit | Sequence[Audit] | Mapping[str, Audit]) -> dict[str, Audit]:
    """Give every audit a name."""
    if isinstance(results, Audit):
        return {"": results}
    if isinstance(results, Mapping):
        found = {shorten(str(name), 40): audit for name, audit in results.items()}
        if len(found) < len(results):
            raise ArgumentError("two audits have the same name", hint="names are told apart by their first letters")
    elif isinstance(results, (list, tuple)):
        usual = ["before", "after"] if len(results) == 2 else [f"audit {at}" for at in range(1, len(results) + 1)]
        found = dict(zip(usual, results, strict=True))
    else:
        raise ArgumentError(
            f"a report is made of audits; got {type(results).__qualname__}", hint="pass what trueup.audit returned"
        )
    if not found:
        raise ArgumentError("a report needs at least one audit; got none", hint="pass what trueup.audit returned")
    for name, audit in found.items():
        if not isinstance(audit, Audit):
            raise ArgumentError(
                f"a report is made of audits; got {type(audit).__qualname__} as {name!r}",
                hint="pass what trueup.audit returned",
            )
    return found


def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("trueup.reports"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip


def _version() -> str:
    import trueup

    return str(trueup.__version__)
