"""What an audit leaves behind: a page, a summary, a table, or everything as JSON; chosen by an option or an ending."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trueup.cli import console
from trueup.cli.output import check_output, files_in_query
from trueup.data.paths import find_files
from trueup.errors import ArgumentError
from trueup.storage import write_text

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from trueup.audits.result import Audit
    from trueup.calibrators.model import Model

ENDINGS = {".html": "page", ".htm": "page", ".md": "markdown", ".csv": "csv", ".json": "json"}
EXAMPLES = {"page": "report.html", "markdown": "summary.md", "csv": "segments.csv", "json": "audit.json"}
OPTIONS = {"report": "page", "markdown": "markdown", "csv": "csv", "json": "json"}
STANDARD = "-"


class Export(NamedTuple):
    """Something to be written, and where; - is standard output."""

    kind: str
    place: str


class Told(NamedTuple):
    """What was found: of the prediction, and of another one of the same rows, each by its name."""

    audit: Audit
    name: str
    other: Audit | None = None
    other_name: str = ""
    fix: Model | None = None
    title: str | None = None
    taught: bool = False
    """Whether the rows look like those that taught the fix."""

    @property
    def results(self) -> Audit | dict[str, Audit]:
        """Give the audit, or both by name, the one to compare with first."""
        return self.audit if self.other is None else {self.other_name: self.other, self.name: self.audit}


def find_exports(arguments: argparse.Namespace) -> list[Export]:
    """List what is to be written; refuse before the work what could not be written after it."""
    found = [Export(_kind(place), place) for place in arguments.output or ()]
    named = ((kind, getattr(arguments, option)) for option, kind in OPTIONS.items())
    found += [Export(kind, place) for kind, place in named if place is not None]
    if sum(one.place == STANDARD for one in found) > 1:
        raise ArgumentError("only one thing can go to standard output", hint="name a file for the others")
    if Export("page", STANDARD) in found:
        raise ArgumentError("--report - : the page goes to a file", hint="name one, such as --report report.html")
    sources: list[str | Path] = [*find_files(arguments.files).paths] if arguments.files and found else []
    sources += [*files_in_query(arguments.sql), *(one for one in (arguments.fix, arguments.profile) if one is not None)]
    seen: list[Path] = []
    for one in found:
        if one.place == STANDARD:
            continue
        check_output(one.place, sources, example=EXAMPLES[one.kind])
        if Path(one.place).resolve() in seen:
            raise ArgumentError(f"{one.place} would be written twice", hint="name another file")
        seen.append(Path(one.place).resolve())
    return found


def _kind(place: str) -> str:
    """Say by the ending of a file what it is to hold."""
    ending = Path(place).suffix.lower()
    kind = ENDINGS.get(ending)
    if kind is None and place != STANDARD and Path(place).is_dir():
        raise ArgumentError(f"-o {place} is a directory", hint=f"name a file in it, such as {Path(place) / 'report.html'}")
    if ending == ".pdf":
        raise ArgumentError(f"-o {place}: trueup writes no PDF", hint="write .html and print it to PDF in a browser")
    if kind is None:
        raise ArgumentError(
            f"-o {place} does not say by its ending what to write",
            hint="-o report.html is the page, summary.md a summary, segments.csv every segment, audit.json everything",
        )
    return kind


def write_export(one: Export, told: Told, profile: str) -> None:
    """Write one of them, with the words and tables of a profile."""
    if one.kind == "page":
        from trueup.reports.page import report

        report(told.results, one.place, title=told.title, profile=profile, fix=told.fix)
        return
    parts = {"markdown": _markdown_parts, "csv": _csv_parts, "json": _json_parts}[one.kind](told, profile)
    if one.place == STANDARD:
        console.emit(lambda stream: stream.writelines(parts), data=True)
    else:
        write_text(one.place, parts)


def _markdown_parts(told: Told, profile: str) -> Iterator[str]:
    from trueup.reports.markdown import markdown

    yield markdown(told.results, profile=profile, fix=told.fix, title=told.title)


def _csv_parts(told: Told, profile: str) -> Iterator[str]:  # noqa: ARG001
    from trueup.reports.tables import csv_lines

    return csv_lines(told.results)


def _json_parts(told: Told, profile: str) -> Iterator[str]:
    yield from _parts_of(told.audit, profile)
    if told.other is not None:
        yield ',\n"against": '
        yield from _parts_of(told.other, profile)
        yield "}"
    if told.fix is not None:
        yield f',\n"fix": {json.dumps(_fix_parts(told, profile), allow_nan=False)}'
        yield f',\n"training_rows": {json.dumps(told.taught)}'
    yield "}\n"


def _fix_parts(told: Told, profile: str) -> list[dict[str, Any]]:
    """Give what a fix corrected as data."""
    from trueup.reports.fix import view_fix
    from trueup.reports.profiles import load_profile
    from trueup.reports.tables import section_dict

    audits = [told.audit] if told.other is None else [told.other, told.audit]
    return [section_dict(one) for one in view_fix(told.fix, audits, load_profile(profile).words, taught=told.taught)]


def _parts_of(found: Audit, profile: str) -> Iterator[str]:
    """Write an audit as strict JSON, one segment a line, without holding them all; the last brace is left to the caller."""
    from trueup.reports.profiles import sections
    from trueup.reports.tables import section_dict

    head = {key: value for key, value in found.to_dict(most=0).items() if key != "findings"}
    if found.source is not None:
        files = [{"name": name, "bytes": size, "sha256": digest} for name, size, digest in found.source.files]
        head["source"] = {"files": files, "command": found.source.command}
    head["portrait"] = found.portrait.to_dict()
    head["sections"] = [section_dict(one) for one in sections(found, profile)]
    yield json.dumps(head, allow_nan=False)[:-1] + ', "findings": ['
    for at in range(len(found)):
        yield ("\n" if at == 0 else ",\n") + json.dumps(found.finding(at).to_dict(), allow_nan=False)
    yield "\n]"
