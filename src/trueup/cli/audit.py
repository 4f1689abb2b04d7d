"""`trueup audit`: test the calibration of the scores in files or a query, and write pages, tables or JSON."""

from __future__ import annotations

import hashlib
import re
import shlex
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trueup.audits.audit import MAX_CELLS, audit, warn_of_soft_outcomes
from trueup.audits.materiality import DETECTED, MATERIAL, NOT_DETECTED, NOT_TESTABLE, POSSIBLE, WITHIN_TOLERANCE, Tolerance
from trueup.audits.settings import Source, check_min_rows_total, parse_min_tested
from trueup.audits.text import findings_table, has_large_untested, notes, number, score_lines, shorten
from trueup.cli import console, io
from trueup.cli.console import FOUND, PASSED, UNTESTABLE
from trueup.cli.next_steps import after_audit, cluster_words, fit_words, option_words
from trueup.cli.output import TextTable, audit_notes, show_page, table_notes
from trueup.data.columns import open_mapping
from trueup.data.scan import REMOTE, RemoteFile
from trueup.data.table import HELD_OUT_SUFFIX
from trueup.data.values import are_hard, as_numbers
from trueup.errors import ArgumentError, FileError, LeakageWarning, TrainingRowsWarning
from trueup.metrics.backtesting import ScoreDistribution, sample_distribution
from trueup.reports.profiles import Profile, load_profile

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from trueup.audits.result import Audit
    from trueup.calibrators.model import Model
    from trueup.data.table import Table

DEFAULTS = {"depth": 2, "min_rows": 50, "alpha": 0.05, "adjust": "holm", "top": 20}  # unless the profile has others
HARD_PREDICTIONS = "every prediction is 0 or 1: labels rather than probabilities"
SCORES = {"log loss": "log loss", "brier": "Brier score", "rmse": "root mean squared error", "auc": "AUC",
          "observed": "observed", "expected": "expected"}  # fmt: skip
MAX_LISTED_COLUMNS = 6
OPTIONAL_COLUMNS = ("interval", "observed", "expected", "excess", "rows")
STYLES = {
    MATERIAL: "red", DETECTED: "red", POSSIBLE: "yellow", WITHIN_TOLERANCE: "yellow",
    NOT_DETECTED: "green", NOT_TESTABLE: "yellow",
}  # fmt: skip
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
    on_training_rows: bool = False  # whether the rows look like those that the model ``fix`` was fitted on
    hard_predictions: bool = False
    reference: ScoreDistribution | None = None
    exposure: Audit | None = None  # of the same rows, weighted by exposure

    @property
    def for_sections(self) -> dict[str, Any]:
        """Options of the sections of a profile."""
        return {"reference": self.reference, "exposure": self.exposure}

    @property
    def by_name(self) -> Audit | dict[str, Audit]:
        """The audit or, if two predictions are compared, a dict of both audits by name, that of --against first."""
        return self.audit if self.other is None else {self.other_name: self.other, self.name: self.audit}


class Gate(NamedTuple):
    """The exit code of an audit, and what determined it.

    ``fail_if``, ``min_tested`` and ``min_rows_total`` are as given; without any of them every audit passes. What was found
    counts before what could not be tested.
    """

    fail_if: tuple[str, ...]
    min_tested: int | str | None
    min_rows_total: int | None
    exit_code: int = PASSED
    reasons: tuple[str, ...] = ()

    @classmethod
    def of(cls, audit: Audit, arguments: argparse.Namespace) -> Gate:
        """Return the gate of the options for an audit."""
        fail_if = tuple(io.split_names(arguments.fail_if or ()))
        gate = cls(fail_if, audit.settings.min_tested, audit.settings.min_rows_total)
        if fail_if and audit.state in (MATERIAL, DETECTED, *([POSSIBLE] if "possibly-material" in fail_if else [])):
            count = audit.rejected if audit.state == DETECTED else audit.count_state(audit.state)
            segments = "segment" if audit.tested == 1 else "segments"
            return gate._replace(exit_code=FOUND, reasons=(f"{audit.state}: {count:,} of {audit.tested:,} {segments}",))
        named = io.split_names(arguments.by or ())
        left_out = [f"column {name!r} of --by was left out: {why}" for name, why in audit.left_out.items() if name in named]
        shortfalls = (*(audit.shortfalls if fail_if else audit.unmet), *left_out) if gate.is_set else ()
        return gate._replace(exit_code=UNTESTABLE, reasons=shortfalls) if shortfalls else gate

    @property
    def is_set(self) -> bool:
        """Whether any option of a gate was given."""
        return bool(self.fail_if) or self.min_tested is not None or self.min_rows_total is not None

    @property
    def line(self) -> str:
        """The exit code and its reasons in one line; empty without a gate."""
        if not self.is_set:
            return ""
        reasons = f": {'; '.join(self.reasons)}" if self.reasons else ""
        reasons += f" (--fail-if {','.join(self.fail_if)})" if self.exit_code == FOUND else ""
        word = "passed" if self.exit_code == PASSED else "failed"
        return f"gate {word} (exit code {self.exit_code}){reasons}"


def run(arguments: argparse.Namespace) -> int:
    """Run the command and return the exit code."""
    Tolerance.parse(arguments.tolerance)
    _check_gate(arguments)
    if arguments.family is not None and arguments.task == "auto":
        arguments.task = "regression"
    profile = load_profile(arguments.profile)
    fix = None
    if arguments.fix is not None:
        from trueup.modelfile import load  # imports all calibrators

        fix = load(arguments.fix)
    exports = find_exports(arguments)
    if arguments.title is not None and not arguments.title.strip():
        raise ArgumentError("--title is empty", hint="leave it out for the default title")
    if arguments.title is not None and not any(export.kind in ("page", "markdown") for export in exports):
        raise ArgumentError("--title needs a page or a summary to be written", hint="add -o report.html")
    _check_section_options(arguments, profile, exports)
    with console.ProgressDisplay(quiet=arguments.quiet, verbose=arguments.verbose) as progress:
        audits = _audit(arguments, profile, fix, progress)
        if any(export.kind != "csv" for export in exports):  # a CSV of segments does not contain the source
            progress.start("digest of the files")
            words = [] if audits.other is not None else fit_words(arguments, [Path(file).name for file in arguments.files])
            again = cluster_words(audits.audit, arguments)
            source = replace(
                find_source(arguments, progress, words), training_rows=audits.on_training_rows,
                again=shareable_command(again) if again else "",
            )  # fmt: skip
            progress.note(*(f"file {name}: {size:,} bytes, SHA-256 {digest}" for name, size, digest in source.files))
            other = None if audits.other is None else replace(audits.other, source=source)
            audits = audits._replace(audit=replace(audits.audit, source=source), other=other)
        if exports:
            progress.start("writing")
        for export in exports:
            if export.path != io.STANDARD_OUTPUT:
                _write(export, audits, arguments)
    to_standard_output = [export for export in exports if export.path == io.STANDARD_OUTPUT]
    for export in to_standard_output:
        _write(export, audits, arguments)
    if not to_standard_output:
        _show(audits, arguments, exports)
    gate = Gate.of(audits.audit, arguments)
    if gate.exit_code != PASSED:  # also where the report goes to standard output
        console.complain(gate.line)
    return gate.exit_code


def _check_gate(arguments: argparse.Namespace) -> None:
    """Raise if --fail-if names a state that only a tolerance defines, or a requirement is invalid."""
    parse_min_tested(arguments.min_tested)
    check_min_rows_total(arguments.min_rows_total)
    for state in io.split_names(arguments.fail_if or ()):
        if state in ("material", "possibly-material") and arguments.tolerance is None:
            hint = "add the largest error that does not matter, such as --tolerance 10%, or use --fail-if miscalibrated"
            raise ArgumentError(f"--fail-if {state} needs a tolerance", hint=hint)


def _check_section_options(arguments: argparse.Namespace, profile: Profile, exports: Sequence[Export]) -> None:
    """Raise if --reference or --exposure is given, and nothing that is written shows it."""
    for name in ("reference", "exposure"):
        if getattr(arguments, name) is None:
            continue
        profile.require(name)
        if not any(export.kind != "csv" for export in exports):
            raise ArgumentError(f"--{name} needs a page, a summary or JSON to be written", hint="add -o report.html")
    if arguments.exposure is not None and (arguments.weight is not None or arguments.sampling is not None):
        other = "weight" if arguments.weight is not None else "sampling"
        hint = f"leave --{other} out: tests go by number of rows, and observed/expected is also shown by exposure"
        raise ArgumentError(f"--exposure and --{other} cannot be combined", hint=hint)


# The audit


def _audit(
    arguments: argparse.Namespace, profile: Profile, fix: Model | None, progress: console.ProgressDisplay
) -> ScoreAudits:
    """Read the rows once and audit one or two predictions."""
    progress.start("reading")
    rows = io.InputRows(arguments)
    for name, value in profile.options(rows.columns).items():
        if getattr(arguments, name, None) is None:
            setattr(arguments, name, value)
            progress.note(f"{' '.join(option_words(name, value))} (from the profile {profile.name})")
    for name, default in DEFAULTS.items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, default)
    prediction = rows.find_prediction()
    other = rows.find_all(arguments.against, "other prediction")
    _check_scores(prediction, other, fix, arguments)
    name, other_name = (
        "" if not names else names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}" for names in (prediction, other)
    )
    if shorten(name, 40) == shorten(other_name, 40):  # they differ only beyond the characters that tables show
        name, other_name = "after", "before"
    run_audit = partial(
        audit, bins=io.parse_bins(arguments.bins), depth=arguments.depth, min_rows=arguments.min_rows,
        alpha=arguments.alpha, adjust=arguments.adjust, draws=arguments.draws, random_state=arguments.seed,
        threads=arguments.threads, max_cells=MAX_CELLS if arguments.max_cells is None else arguments.max_cells,
        family=arguments.family, variance_power=arguments.variance_power, tolerance=arguments.tolerance,
        min_tested=arguments.min_tested, min_rows_total=arguments.min_rows_total, progress=progress.step,
    )  # fmt: skip
    second, hard, on_training_rows = None, False, False
    exposure = rows.find_optional(arguments.exposure, "exposure")
    weighted_audit = partial(run_audit, depth=1, adjust="holm")  # its sums are shown, not its tests
    reference = _read_reference(arguments, prediction)
    if arguments.memory is not None:
        scan, roles = rows.scan([*prediction, *other], arguments.by, "segment column")
        progress.start("auditing in chunks")
        first = run_audit(scan, prediction=prediction, **roles)
        progress.note(*audit_notes(first))
        if arguments.positive is not None and first.overall.observed == 0:
            raise io.no_positive_rows(arguments.positive, roles["outcome"])
        if other:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", LeakageWarning)  # one is enough
                second = run_audit(scan, prediction=other, **roles)
        audit_weighted = partial(weighted_audit, scan, prediction=prediction, **{**roles, "weight": exposure})
    else:
        make_table = rows.load([*prediction, *other], arguments.by, "segment column")
        table = make_table(prediction)
        progress.note(*table_notes(arguments, table))
        if arguments.task == "auto":
            table = warn_of_soft_outcomes(table)
        progress.start("auditing")
        first = run_audit(table)
        progress.note(*audit_notes(first))
        hard = table.schema.task == "binary" and are_hard(table.prediction)
        audit_weighted = lambda: weighted_audit(make_table(prediction, exposure))  # type: ignore[assignment]  # noqa: E731
        if other:
            progress.start(f"auditing {shorten(', '.join(other), 40)}")
            before = make_table(other)
            second = run_audit(before)
            on_training_rows = fix is not None and _are_training_rows(fix, before, table)
    first = replace(first, cross_fitted=first.cross_fitted or f"{prediction[0]}{HELD_OUT_SUFFIX}" in rows.columns)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LeakageWarning)
        by_exposure = None if exposure is None else audit_weighted()
    return ScoreAudits(first, name, second, other_name, fix, on_training_rows, hard, reference, by_exposure)


def _are_training_rows(fix: Model, before: Table, after: Table) -> bool:
    """Return whether rows look like those that ``fix`` was fitted on, by their scores before and after; warn if so."""
    if not fix.looks_like_training_data(before.prediction, after.prediction, after.weight):
        return False
    warnings.warn(
        f"these {len(after):,} rows look like those the model was fitted on; results on them are optimistic\n"
        "hint: compare on rows that the model was not fitted on",
        TrainingRowsWarning,
        stacklevel=2,
    )
    return True


def _read_reference(arguments: argparse.Namespace, prediction: list[str]) -> ScoreDistribution | None:
    """Read the scores of the files of --reference, if it is given, and their weights if --weight is given."""
    if arguments.reference is None:
        return None
    if len(prediction) > 1:
        raise ArgumentError("--reference needs exactly one prediction column", hint="leave --reference out")
    rows = io.InputRows(arguments, arguments.reference)
    names = [rows.find(prediction[0], "prediction"), rows.find_optional(arguments.weight, "weight")]
    source = open_mapping(rows.read(names, []))
    scores, weight = (None if name is None else as_numbers(source.fetch(name), name, "reference") for name in names)
    assert scores is not None
    return sample_distribution(scores, weight, "reference")


def _check_scores(prediction: list[str], other: list[str], fix: Model | None, arguments: argparse.Namespace) -> None:
    """Validate --against: as many columns as --prediction, none in common, and those that the model ``fix`` corrects."""
    if arguments.against is not None and len(other) != len(prediction):
        raise ArgumentError(
            f"--against must name as many columns as --prediction, {len(prediction)}; got {len(other)}",
            hint="--prediction p_new --against p_old compares two scores; for classes name as many columns in both",
        )
    if set(other) & set(prediction):
        raise ArgumentError(f"--against {other[0]} is also the --prediction", hint="name another score of the same rows")
    if fix is not None and list(fix.schema.prediction) != other:
        corrects = ", ".join(map(repr, fix.schema.prediction)) or "no score: it predicts from the features alone"
        raise ArgumentError(
            f"--fix {arguments.fix} corrects {corrects}, but --against names {', '.join(map(repr, other))}",
            hint="name the score that it corrects with --against, or leave --fix out",
        )


# Output


def _show(audits: ScoreAudits, arguments: argparse.Namespace, exports: list[Export]) -> None:
    """Print the verdict, the worst segments, the written files and the next commands."""
    audit = audits.audit
    remarks = [HARD_PREDICTIONS] if audits.hard_predictions else []
    verdict = audit.verdict + (f" ({'; '.join(remarks)})" if remarks else "")
    if arguments.quiet:
        console.say(verdict)
        return
    parts: list[str | TextTable] = [verdict]
    below: list[str | TextTable] = []
    if arguments.top:
        worst = audit.shown(arguments.top)
        count = len(audit.problems) - arguments.top
        if count > 0:
            below.append(f"{count:,} more problem{'' if count == 1 else 's'}: --top {len(audit.problems)}")
        folded = audit.rejected - len(audit.problems) - audit.unexamined
        findings = f"{folded:,} finding{'' if folded == 1 else 's'}"
        listed = f"{findings} that these problems explain, and " if folded else ""
        below.append(f"{listed}all {len(audit):,} segments: -o segments.csv")
        styles = ["" if finding.state == NOT_DETECTED else STYLES[finding.state] for finding in worst]
        parts += ["", TextTable(*findings_table(audit, worst), OPTIONAL_COLUMNS, styles=styles)]
        parts += ["", *lines] if (lines := score_lines(worst, audit.verdict)) else []
    parts += ["", *lines] if (lines := notes(audit)) else []
    below += _default_columns(audit, arguments)
    below += [] if audits.other is None else ["", *_comparison(audits)]
    below += [*(f"wrote {export.path}" for export in exports), *after_audit(audits, arguments, exports)]
    parts += ["", *below] if below and below[0] != "" else below
    show_page(parts, style=f"bold {STYLES[NOT_TESTABLE if has_large_untested(audit) else audit.state]}")


def _default_columns(audit: Audit, arguments: argparse.Namespace) -> Iterator[str]:
    """Yield a line that lists the columns that form segments, if they were not named with --by."""
    names = [shorten(feature.name, 30) for feature in audit.schema.features]
    if arguments.by is not None or not names:
        return
    if len(names) > MAX_LISTED_COLUMNS:
        names = [*names[: MAX_LISTED_COLUMNS - 1], f"{len(names) - MAX_LISTED_COLUMNS + 1:,} more"]
    *first, last = names
    listed = f"{', '.join(first)} and {last}" if first else last
    yield f"segments of {listed}: all columns without a role; choose columns with --by"


def _comparison(audits: ScoreAudits) -> list[str | TextTable]:
    """Return a sentence and a table that compare the audits of two predictions of the same rows."""
    assert audits.other is not None
    pair = (audits.other, audits.audit)
    rows: list[tuple[str, ...]] = [
        ("significantly miscalibrated segments", *(f"{audit.rejected:,} of {audit.tested:,}" for audit in pair)),
        ("error of the worst segment, in sigma", *(number(audit.worst_sigma) for audit in pair)),
    ]
    scores = [audit.summary.scores for audit in pair]
    for name, label in SCORES.items():
        if all(name in values for values in scores):
            rows.append((label, *(number(values[name], 4) for values in scores)))
    names = [shorten(name, 24) for name in (audits.other_name, audits.name)]
    return [f"{audits.other_name}: {audits.other.verdict}", "", TextTable(("on the same rows", *names), rows), ""]


# Files to write


def find_exports(arguments: argparse.Namespace) -> list[Export]:
    """Return the files to write, as named by options; raise if one of them cannot be written."""
    exports = [Export(_kind(path), path) for path in arguments.output or ()]
    named = ((kind, getattr(arguments, option)) for option, kind in OPTIONS.items())
    exports += [Export(kind, path) for kind, path in named if path is not None]
    if sum(export.path == io.STANDARD_OUTPUT for export in exports) > 1:
        raise ArgumentError("only one output can go to standard output", hint="name a file for the others")
    if Export("page", io.STANDARD_OUTPUT) in exports:
        raise ArgumentError("--report cannot be standard output", hint="name a file, such as --report report.html")
    if exports:
        sources = [*io.source_files(arguments), *filter(None, (arguments.fix, arguments.profile))]
        sources += io.local_files(arguments, arguments.reference)
        io.check_outputs([(export.path, EXAMPLES[export.kind]) for export in exports], sources)
    return exports


def _kind(path: str) -> str:
    """Return the kind of output, such as page or csv, that the extension of a path stands for."""
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


def _write(export: Export, audits: ScoreAudits, arguments: argparse.Namespace) -> None:
    """Write one output with the vocabulary and tables of the profile."""
    from trueup.reports import page  # the text on the terminal needs neither this nor calibrators

    results, profile, fix, gate = audits.by_name, arguments.profile, audits.fix, Gate.of(audits.audit, arguments)
    if export.kind == "page":
        page.report(results, export.path, title=arguments.title, profile=profile, fix=fix, **audits.for_sections)
    elif export.kind == "markdown":
        options = {"profile": profile, "fix": fix, "title": arguments.title, **audits.for_sections}
        line = f"\n{page.prose(gate.line)}\n" if gate.line else ""
        io.write_chunks(export.path, [page.markdown(results, **options), line])
    elif export.kind == "csv":
        io.write_chunks(export.path, page.csv_lines(results))
    else:
        extra = {"gate": gate._asdict()} if gate.line else {}
        io.write_chunks(export.path, page.json_lines(results, profile, fix, extra=extra, **audits.for_sections))


# The source of the rows


def find_source(arguments: argparse.Namespace, progress: console.ProgressDisplay, fit: Sequence[str] = ()) -> Source:
    """Return name, size and digest of each input file, and the command; ``fit`` has the words of a suggested command."""
    paths = io.local_files(arguments, arguments.files)
    remote = io.remote_files(arguments)
    sizes = [path.stat().st_size for path in paths]
    files = []
    for index, (path, size) in enumerate(zip(paths, sizes, strict=True)):
        digest = NO_DIGEST if size > MAX_DIGEST_BYTES else _digest(path, progress, sum(sizes[:index]), sum(sizes))
        files.append((path.name, size, digest))
    files += [(path.shown, 0, "not computed: a remote file") for path in remote]
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
    """Return ``words`` as a command line, without queries that may contain credentials and without the home directory."""
    shown = []
    for previous, word in zip(["", *words], words, strict=False):
        option = "--sql=" if word.startswith("--sql=") else ""
        is_query = previous == "--sql" or option
        word = RemoteFile(word).shown if REMOTE.match(word) and CREDENTIALS.search(word) else word
        shown.append(f"{option}{OMITTED_QUERY}" if is_query and CREDENTIALS.search(word) else word)
    return " ".join(["trueup", *map(_quote_below_home, shown)])


def _quote_below_home(word: str) -> str:
    """Quote a word for the shell; a path below the home directory starts with ~."""
    try:
        home = f"{Path.home()}/"
    except RuntimeError:  # no home directory is known
        return shlex.quote(word)
    return f"~/{shlex.quote(word.removeprefix(home))}" if word.startswith(home) and word != home else shlex.quote(word)
