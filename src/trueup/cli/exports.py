"""Files that an audit writes: a page, a summary, a table of segments or JSON, with the source of the rows."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from trueup.audits.audit import Source
from trueup.cli import console, io
from trueup.data.scan import find_files
from trueup.errors import ArgumentError, FileError
from trueup.reports.compare import fix_sections
from trueup.reports.page import csv_lines, markdown, report, section_dict
from trueup.reports.profiles import load_profile
from trueup.reports.profiles.sections import build_sections

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator, Sequence

    from trueup.audits.audit import Audit
    from trueup.calibrators.model import Model

EXTENSIONS = {".html": "page", ".htm": "page", ".md": "markdown", ".csv": "csv", ".json": "json"}
EXAMPLES = {"page": "report.html", "markdown": "summary.md", "csv": "segments.csv", "json": "audit.json"}
OPTIONS = {"report": "page", "markdown": "markdown", "csv": "csv", "json": "json"}
MAX_DIGEST_BYTES = 4_000_000_000  # the digest of a larger file would take longer than the audit
NO_DIGEST = f"not computed: more than {MAX_DIGEST_BYTES // 10**9} GB"
READ_BYTES = 1 << 22
# A query with credentials must not appear on a page: it is omitted entirely.
CREDENTIALS = re.compile(
    r"""(?:passw|passphrase|\bpass\b|\bpw\b|pwd|secret|token|credential|cookie|key_id|signature
        |(?:api|access|account|private|encryption|parquet|master|shared)[-_]?key)[\w-]*
        (?:\s|/\*(?:[^*]|\*(?!/))*\*/)*(?:to\b\s*)?e?[=:'"($]
    |[?&][^\s'"&=]*(?:key|auth|sig)[^\s'"&=]*=           # in a URL
    |\bsig=|authorization|bearer\s|connection_?string
    |\bA[KS]IA[0-9A-Z]{16}\b                            # an AWS access key
    |://[^\s/'"]*@|://[^\s/'":]+:[^\s'"]*@              # user and password before a host
    """,
    re.IGNORECASE | re.VERBOSE,
)
OMITTED_QUERY = "(omitted: it may contain a password or a key)"


class Export(NamedTuple):
    """A kind of output and the path to write it to; - is standard output."""

    kind: str
    path: str


class ScoreAudits(NamedTuple):
    """The audit of a prediction and, if two are compared, that of the other one, with their display names."""

    audit: Audit
    name: str
    other: Audit | None = None
    other_name: str = ""
    fix: Model | None = None
    title: str | None = None
    on_training_rows: bool = False  # whether the rows look like those that the model ``fix`` was fitted on
    hard_predictions: bool = False

    @property
    def by_name(self) -> Audit | dict[str, Audit]:
        """The audit, or both by name, the one to compare with first."""
        return self.audit if self.other is None else {self.other_name: self.other, self.name: self.audit}


def find_exports(arguments: argparse.Namespace) -> list[Export]:
    """Return the files to write; raise before the work if one cannot be written."""
    exports = [Export(_kind(path), path) for path in arguments.output or ()]
    named = ((kind, getattr(arguments, option)) for option, kind in OPTIONS.items())
    exports += [Export(kind, path) for kind, path in named if path is not None]
    if sum(export.path == io.STANDARD_OUTPUT for export in exports) > 1:
        raise ArgumentError("only one output can go to standard output", hint="name a file for the others")
    if Export("page", io.STANDARD_OUTPUT) in exports:
        raise ArgumentError("--report cannot be standard output", hint="name a file, such as --report report.html")
    if exports:
        sources = [*io.source_files(arguments), *filter(None, (arguments.fix, arguments.profile))]
        io.check_outputs([(export.path, EXAMPLES[export.kind]) for export in exports], sources)
    return exports


def _kind(path: str) -> str:
    """Return the kind of output that an extension stands for."""
    extension = Path(path).suffix.lower()
    kind = EXTENSIONS.get(extension)
    if kind is None and path != io.STANDARD_OUTPUT and Path(path).is_dir():
        raise ArgumentError(f"-o {path} is a directory", hint=f"name a file in it, such as {Path(path) / 'report.html'}")
    if extension == ".pdf":
        raise ArgumentError(f"-o {path}: PDF is not supported", hint="write .html and print it to PDF in a browser")
    if kind is None:
        raise ArgumentError(
            f"-o {path} has no known extension",
            hint="-o report.html is the page, summary.md a summary, segments.csv all segments, audit.json all results",
        )
    return kind


def write_export(export: Export, audits: ScoreAudits, profile: str) -> None:
    """Write one output with the vocabulary and tables of a profile."""
    if export.kind == "page":
        report(audits.by_name, export.path, title=audits.title, profile=profile, fix=audits.fix)
        return
    if export.kind == "markdown":
        chunks: Iterable[str] = [markdown(audits.by_name, profile=profile, fix=audits.fix, title=audits.title)]
    else:
        chunks = csv_lines(audits.by_name) if export.kind == "csv" else _json(audits, profile)
    io.write_chunks(export.path, chunks)


def _json(audits: ScoreAudits, profile: str) -> Iterator[str]:
    yield from _audit_json(audits.audit, profile)
    if audits.other is not None:
        yield ',\n"against": '
        yield from _audit_json(audits.other, profile)
        yield "}"
    if audits.fix is not None:
        pair = [audit for audit in (audits.other, audits.audit) if audit is not None]
        vocabulary = load_profile(profile).vocabulary
        sections = fix_sections(audits.fix, pair, vocabulary, training_rows=audits.on_training_rows)
        yield f',\n"fix": {json.dumps([section_dict(section) for section in sections], allow_nan=False)}'
        yield f',\n"training_rows": {json.dumps(audits.on_training_rows)}'
    yield "}\n"


def _audit_json(audit: Audit, profile: str) -> Iterator[str]:
    """Write an audit as strict JSON, one segment per line, without the last brace; segments are not held in memory."""
    head = {key: value for key, value in audit.to_dict(most=0).items() if key != "findings"}
    if audit.source is not None:
        files = [{"name": name, "bytes": size, "sha256": digest} for name, size, digest in audit.source.files]
        head["source"] = {"files": files, "command": audit.source.command}
    head["summary"] = audit.summary.to_dict()
    head["sections"] = [section_dict(section) for section in build_sections(audit, profile)]
    yield json.dumps(head, allow_nan=False)[:-1] + ', "findings": ['
    for index in range(len(audit)):
        yield (",\n" if index else "\n") + json.dumps(audit.finding(index).to_dict(), allow_nan=False)
    yield "\n]"


# The source of the rows


def find_source(arguments: argparse.Namespace, progress: console.ProgressDisplay, fit: Sequence[str] = ()) -> Source:
    """Return the names, sizes and digests of the files, and the command; ``fit`` are the words of a suggested fit."""
    paths = find_files(arguments.files).paths if arguments.files else []
    sizes = [path.stat().st_size for path in paths]
    files = []
    for index, (path, size) in enumerate(zip(paths, sizes, strict=True)):
        digest = NO_DIGEST if size > MAX_DIGEST_BYTES else _digest(path, progress, sum(sizes[:index]), sum(sizes))
        files.append((path.name, size, digest))
    return Source(tuple(files), shareable_command(arguments.words), shareable_command(fit) if fit else "")


def _digest(path: Path, progress: console.ProgressDisplay, done: int, total: int) -> str:
    digest = hashlib.sha256()
    try:
        with path.open("rb") as stream:
            while chunk := stream.read(READ_BYTES):
                digest.update(chunk)
                done += len(chunk)
                progress.step(min(done, total), total)
    except OSError as error:
        reason = error.strerror or error
        raise FileError(f"cannot read {path}: {reason}", hint="check the path and its permissions") from error
    return digest.hexdigest()


def shareable_command(words: Sequence[str]) -> str:
    """Return a command without queries that may contain credentials, and without the path of the home directory."""
    shown = []
    for previous, word in zip(["", *words], words, strict=False):
        option = "--sql=" if word.startswith("--sql=") else ""
        is_query = previous == "--sql" or option
        shown.append(f"{option}{OMITTED_QUERY}" if is_query and CREDENTIALS.search(word) else word)
    return " ".join(["trueup", *map(_quote_below_home, shown)])


def _quote_below_home(word: str) -> str:
    """Quote a word for the shell; a path below the home directory starts with ~."""
    try:
        home = f"{Path.home()}/"
    except RuntimeError:  # no home directory is known
        return shlex.quote(word)
    return f"~/{shlex.quote(word.removeprefix(home))}" if word.startswith(home) and word != home else shlex.quote(word)
