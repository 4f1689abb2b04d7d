"""report(): results to one HTML file that needs nothing else."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trueup.audits.result import Audit
from trueup.audits.text import shorten
from trueup.errors import ArgumentError
from trueup.reports.compare import compare
from trueup.reports.output import write_whole
from trueup.reports.view import view_audit, view_table

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence
    from pathlib import Path

    from jinja2 import Environment

__all__ = ["render", "report"]

CONTROL = {
    "holm": "the chance that even one segment is called off by mistake is at most {share}, over all segments together",
    "max": "the chance that even one segment is called off by mistake is at most {share}, over all segments together",
    "bh": "of the segments called off, no more than {share} are mistakes on average, if segments depend positively",
    "by": "of the segments called off, no more than {share} are mistakes on average",
}


def report(
    results: Audit | Sequence[Audit] | Mapping[str, Audit],
    path: str | os.PathLike[str],
    *,
    title: str | None = None,
) -> Path:
    """Write one audit, or several side by side, to a single HTML file.

    The file holds everything it shows: it loads nothing, needs no network, and can be read without scripts, in print,
    and on a phone. The same results give the same file. It is written whole or not at all.

    Parameters
    ----------
    results : Audit, sequence of Audit, or mapping of str to Audit
        Two audits in a sequence are named "before" and "after"; a mapping gives the names.
    path : path
        The file to write; an existing one is replaced. Its directory must exist.
    title : str, optional
        What stands above the verdict.

    Returns
    -------
    Path
        The file that was written.

    Raises
    ------
    ArgumentError
        If there is no audit among the results, or something that is not one.
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
    return write_whole(path, [render(results, title=title)])


def render(results: Audit | Sequence[Audit] | Mapping[str, Audit], *, title: str | None = None) -> str:
    """Give the page of `report` as a text."""
    named = _named(results)
    several = len(named) > 1
    if len({(audit.settings.alpha, audit.settings.adjust) for audit in named.values()}) > 1:
        raise ArgumentError(
            "audits on one page must share alpha and adjust", hint="audit again with the same, or make a page of each"
        )
    house = _environment()
    script = house.get_template("script.html.j2").render()
    usual = "Calibration audits compared" if several else "Calibration audit"
    first = next(iter(named.values()))
    shared: dict[str, Any] = {
        "title": shorten(usual if title is None else str(title), 200),
        "script": script,
        # With the script's digest in the policy, a browser runs this script and no other, whatever the data holds.
        "digest": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        "alpha": f"{100 * first.settings.alpha:g}%",
        "level": f"{100 * (1 - first.settings.alpha):g}%",
        "control": CONTROL[first.settings.adjust].format(share=f"{100 * first.settings.alpha:g}%"),
        "version": _version(),
    }
    if several:
        return house.get_template("compare.html.j2").render(page=compare(named), **shared)
    return house.get_template("audit.html.j2").render(page=view_audit(first), table=view_table(first), **shared)


def _named(results: Audit | Sequence[Audit] | Mapping[str, Audit]) -> dict[str, Audit]:
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
