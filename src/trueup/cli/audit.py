"""`trueup audit`: files or a query to a verdict."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trueup.audits.run import MAX_CELLS, audit
from trueup.audits.text import number, shorten
from trueup.cli import console, reasons
from trueup.cli.exports import STANDARD, Told, find_exports, write_export
from trueup.cli.following import fit_words, next_commands
from trueup.cli.names import parse_bins
from trueup.cli.provenance import find_source
from trueup.cli.reading import check_positive, find_columns, name_scan, need_rows, read_rows
from trueup.cli.terminal import Grid, show_audit, show_page
from trueup.data.checks import are_hard
from trueup.errors import ArgumentError, DataError, TrainingRowsWarning
from trueup.modelfile import load
from trueup.reports.profiles import load_profile

if TYPE_CHECKING:
    import argparse

    from trueup.audits.result import Audit
    from trueup.calibrators.model import Model
    from trueup.cli.exports import Export
    from trueup.cli.names import Columns
    from trueup.data.scan import Scan
    from trueup.data.table import Table
    from trueup.reports.profiles import Profile

# What is taken where neither the command nor the profile says anything.
USUAL = {"depth": 2, "min_rows": 50, "alpha": 0.05, "adjust": "holm", "top": 20}
HARD = "every prediction is 0 or 1: labels rather than probabilities"
MEASURES = {"log loss": "log loss", "brier": "Brier score", "rmse": "root mean squared error", "auc": "AUC",
            "observed": "observed", "expected": "expected"}  # fmt: skip
MOST_NAMES = 6  # of columns in a sentence


def run(arguments: argparse.Namespace) -> int:
    """Audit, write what was asked for, print; give the exit code."""
    need_rows(arguments)
    _check_together(arguments)
    profile = load_profile(arguments.profile)
    fix = None if arguments.fix is None else load(arguments.fix)
    exports = find_exports(arguments)
    _check_title(arguments, exports)
    with console.Watch(quiet=arguments.quiet, verbose=arguments.verbose) as watch:
        told, hard = _audit(arguments, profile, fix, watch)
        if any(one.kind != "csv" for one in exports):  # a table of segments has no place for where it comes from
            watch.say("digest of the files")
            told = _with_source(told, arguments, watch)
        if exports:
            watch.say("writing")
        for one in exports:
            if one.place != STANDARD:
                write_export(one, told, arguments.profile)
    spoken = next((one for one in exports if one.place == STANDARD), None)
    if spoken is not None:
        write_export(spoken, told, arguments.profile)
    else:
        _show(told, arguments, exports, hard=hard)
    return 1 if _failing(told.audit, arguments) else 0


def _check_together(arguments: argparse.Namespace) -> None:
    """Refuse options that do not go together."""
    if arguments.spill is not None and arguments.memory is None:
        raise ArgumentError("--spill goes with --memory", hint="say how much may be held at once, such as --memory 2GB")
    if arguments.tolerance is not None and arguments.fail_if is None:
        raise ArgumentError("--tolerance goes with --fail-if", hint="add --fail-if miscalibrated")
    if arguments.fix is not None and arguments.against is None:
        raise ArgumentError(
            "--fix goes with --against: it is what was fitted between two scores",
            hint="name the score before it: --prediction p_trueup --against p",
        )


def _check_title(arguments: argparse.Namespace, exports: list[Export]) -> None:
    if arguments.title is not None and not arguments.title.strip():
        raise ArgumentError("--title has no letters", hint="leave it out for the usual one")
    if arguments.title is not None and not any(one.kind in ("page", "markdown") for one in exports):
        raise ArgumentError("--title goes with a page or a summary, above the verdict", hint="add -o report.html")


def _audit(arguments: argparse.Namespace, profile: Profile, fix: Model | None, watch: console.Watch) -> tuple[Told, bool]:
    """Read the rows once, and audit one prediction or two; say too whether the first is but labels."""
    watch.say("reading")
    columns = find_columns(arguments)
    _settle(arguments, profile, columns, watch)
    prediction = columns.several(arguments.prediction, "prediction")
    other = columns.several(arguments.against or [], "other prediction")
    _check_against(prediction, other, arguments)
    _check_fix(fix, other, arguments)
    check_positive(arguments, prediction)
    if arguments.memory is not None:
        watch.say("auditing in pieces")
        return _audit_in_pieces(arguments, columns, prediction, other, fix, watch), False
    rows = read_rows(arguments, columns, [*prediction, *other], arguments.by, "segment column")
    table = rows.table(prediction)
    watch.note(*reasons.of_table(arguments, table))
    watch.say("auditing")
    found = _audited(table, arguments, watch)
    watch.note(*reasons.of_audit(found))
    hard = table.schema.task == "binary" and are_hard(table.prediction)
    if not other:
        return Told(found, prediction[0], title=arguments.title), hard
    watch.say(f"auditing {shorten(', '.join(other), 40)}")
    before = rows.table(other)
    second = _audited(before, arguments, watch)
    taught = fix is not None and _has_taught(fix, before, table)
    name, other_name = _names(prediction, other)
    return Told(found, name, second, other_name, fix, title=arguments.title, taught=taught), hard


def _names(prediction: list[str], other: list[str]) -> tuple[str, str]:
    """Name two scores; where they are told apart by their ends only, which no table has room for, by their order."""
    name, other_name = _named(prediction), _named(other)
    return ("after", "before") if shorten(name, 40) == shorten(other_name, 40) else (name, other_name)


def _audit_in_pieces(
    arguments: argparse.Namespace, columns: Columns, prediction: list[str], other: list[str], fix: Model | None,
    watch: console.Watch,
) -> Told:  # fmt: skip
    """Audit one prediction or two of files that need not fit in memory; the files are read once for each."""
    rows = name_scan(arguments, columns, [*prediction, *other], arguments.by, "segment column")
    found = _audited(rows.scan, arguments, watch, prediction=rows.score(prediction), **rows.roles)
    if arguments.positive is not None and found.overall.observed == 0:
        raise DataError(
            f"no row that counts has the outcome {arguments.positive!r} in column {rows.roles['outcome']!r}",
            hint="is it written in another way there?",
        )
    watch.note(*reasons.of_audit(found))
    if not other:
        return Told(found, prediction[0], title=arguments.title)
    second = _audited(rows.scan, arguments, watch, prediction=rows.score(other), **rows.roles)
    name, other_name = _names(prediction, other)
    return Told(found, name, second, other_name, fix, title=arguments.title)


def _audited(data: Table | Scan, arguments: argparse.Namespace, watch: console.Watch, **roles: Any) -> Audit:
    usual, single = parse_bins(arguments.bins or [])
    bins: dict[Any, Any] = {**single, ...: 10 if usual is None else usual}
    return audit(
        data, **roles, bins=bins, depth=arguments.depth, min_rows=arguments.min_rows, alpha=arguments.alpha,
        adjust=arguments.adjust, draws=arguments.draws, random_state=arguments.seed, threads=arguments.threads,
        max_cells=MAX_CELLS if arguments.max_cells is None else arguments.max_cells, progress=watch.step,
    )  # fmt: skip


def _settle(arguments: argparse.Namespace, profile: Profile, columns: Columns, watch: console.Watch) -> None:
    """Take from the profile, and then from what is usual, what the command does not say."""
    for name, value in profile.options(columns.known).items():
        if getattr(arguments, name, None) is None:
            setattr(arguments, name, value)
            shown = ", ".join(value) if isinstance(value, list) else value
            watch.note(f"--{name.replace('_', '-')} {shown}, by the profile {profile.name}")
    for name, value in USUAL.items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, value)


def _check_against(prediction: list[str], other: list[str], arguments: argparse.Namespace) -> None:
    if arguments.against is not None and len(other) != len(prediction):
        raise ArgumentError(
            f"--against must name as many columns as --prediction: {len(prediction)}; got {len(other)}",
            hint="--prediction p_new --against p_old compares two scores; for classes name as many columns in both",
        )
    if set(other) & set(prediction):
        raise ArgumentError(f"--against {other[0]} is the prediction itself", hint="name another score of the same rows")


def _check_fix(fix: Model | None, other: list[str], arguments: argparse.Namespace) -> None:
    """Refuse a model that was not fitted to the score that is compared with."""
    if fix is None or list(fix.schema.prediction) == other:
        return
    corrects = ", ".join(map(repr, fix.schema.prediction)) or "no score: it predicts from the features alone"
    raise ArgumentError(
        f"{arguments.fix} corrects {corrects}, which is not what --against names ({', '.join(map(repr, other))})",
        hint="name the score that it was fitted to with --against, or leave --fix out",
    )


def _has_taught(fix: Model, before: Table, after: Table) -> bool:
    """Say whether rows look like those of the fit, and warn."""
    if not fix.looks_like_training_data(before.prediction, after.prediction, after.weight):
        return False
    warnings.warn(
        f"these look like the rows that taught the fix: {len(after):,}, moved by it as far as those were; what it learned "
        "from always looks right\nhint: compare on rows that the fix has not seen",
        TrainingRowsWarning, stacklevel=2,
    )  # fmt: skip
    return True


def _named(prediction: list[str]) -> str:
    return prediction[0] if len(prediction) == 1 else f"{prediction[0]} to {prediction[-1]}"


def _with_source(told: Told, arguments: argparse.Namespace, watch: console.Watch) -> Told:
    words = [] if told.other is not None else fit_words(arguments, [Path(one).name for one in arguments.files])
    source = replace(find_source(arguments, watch, words), training_rows=told.taught)
    watch.note(*(f"file {name}: {size:,} bytes, SHA-256 {digest}" for name, size, digest in source.files))
    second = None if told.other is None else replace(told.other, source=source)
    return told._replace(audit=replace(told.audit, source=source), other=second)


def _failing(found: Audit, arguments: argparse.Namespace) -> int:
    """Count the segments for which the command fails: those off beyond chance, and by more than is tolerated.

    The error is ecce, the range of the cumulative differences: it is never below the size of the mean error, and sees
    errors that cancel on average. Noise makes it larger and never smaller on average, so no error is talked away.
    """
    if arguments.fail_if != "miscalibrated":
        return 0
    off = found.columns["p_adjusted"] <= found.settings.alpha
    return int((off & (found.columns["ecce"] > (0.0 if arguments.tolerance is None else arguments.tolerance))).sum())


def _show(told: Told, arguments: argparse.Namespace, exports: list[Export], *, hard: bool) -> None:
    """Print the verdict, what it rests on, what was written, and what to do next."""
    found = told.audit
    remarks = [HARD] if hard else []
    if arguments.tolerance is not None:
        remarks.append(f"{_failing(found, arguments):,} off by more than {arguments.tolerance:g}")
    line = found.verdict + (f" ({'; '.join(remarks)})" if remarks else "")
    if arguments.quiet:
        console.say(line)
        return
    show_audit(found, top=arguments.top, verdict=line)
    below: list[str | Grid] = [*_more(found, arguments.top), *_made_of(found, arguments)]
    if told.other is not None:
        below += ["", *_side_by_side(told)]
    below += [f"wrote {one.place}" for one in exports]
    below += next_commands(told, arguments, exports)
    if below:
        show_page(["", *below] if isinstance(below[0], str) and below[0] else below, first_bold=False)


def _more(found: Audit, top: int) -> list[str]:
    """Say how many segments the table does not show."""
    if not top:
        return []
    beside = found.overall.segment not in {one.segment for one in found.worst(top)}  # all rows are shown in any case
    left = found.tested - min(top, found.tested) - (beside and found.overall.testable)
    if left <= 0:
        return []
    off = max(0, found.rejected - top - (beside and found.overall.p_adjusted <= found.settings.alpha))
    also = f", {off:,} of them off beyond chance" if off else ""
    return [f"{left:,} more segment{'' if left == 1 else 's'}{also}: --top {found.tested}, or -o segments.csv"]


def _made_of(found: Audit, arguments: argparse.Namespace) -> list[str]:
    """Say which columns made the segments, where nobody named them."""
    names = [shorten(feature.name, 30) for feature in found.schema.features]
    if arguments.by is not None or not names:
        return []
    left = len(names) - MOST_NAMES
    *first, last = names if left <= 0 else [*names[: MOST_NAMES - 1], f"{left + 1:,} more"]
    listed = f"{', '.join(first)} and {last}" if first else last
    return [f"segments of {listed}: every column without a role; --by names others"]


def _side_by_side(told: Told) -> list[str | Grid]:
    """Compare two predictions of the same rows."""
    assert told.other is not None
    both = (told.other, told.audit)
    rows: list[tuple[str, ...]] = [
        ("segments off beyond chance", *(f"{one.rejected:,} of {one.tested:,}" for one in both)),
        ("error of the worst segment, in sigma", *(number(one.worst_sigma) for one in both)),
    ]
    scores = [one.portrait.scores for one in both]
    rows += [
        (text, *(number(one[name], 4) for one in scores))
        for name, text in MEASURES.items()
        if all(name in one for one in scores)
    ]
    heads = [shorten(name, 24) for name in (told.other_name, told.name)]
    return [f"{told.other_name}: {told.other.verdict}", "", Grid(("on the same rows", *heads), rows), ""]
