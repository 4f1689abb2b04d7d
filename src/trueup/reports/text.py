"""Sentences of the page and of the Markdown summary: what was found, what to do next, and where the data came from."""

from __future__ import annotations

import inspect
import json
import math
import platform
import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

import trueup
from trueup.audits.text import ADJUSTMENTS, describe_error, is_possible_shift, min_tested_rows, notes, number, shorten
from trueup.reports.profiles import DEFAULT_VOCABULARY, Vocabulary

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trueup.audits.result import Audit
    from trueup.audits.summary import AuditSummary

LARGE_UNDETECTED_ERROR = 0.25  # of the mean: collect more rows if an error of this size could go undetected
MAX_FEATURES_IN_CODE = 8
MAX_PREDICTIONS_IN_CODE = 20
MAX_COLUMNS_IN_CALL = 60
MAX_NAME_IN_SENTENCE = 60  # characters
MAX_FILES = 20
MAX_FILES_IN_SUBJECT = 2
AUDIT_AGAIN = "Audit again when the model, the data or the population changes; p-values are for one look."
TIME_WORD = re.compile(r"(before|after|now|then)\b", re.IGNORECASE)  # at the start of the name of an audit


# Numbers


def without_rounding(value: float) -> float:
    """Return the integer that a sum equals up to floating-point rounding, or else the sum."""
    nearest = round(value) if math.isfinite(value) else math.nan
    return nearest if abs(value - nearest) < max(1e-6, 1e-9 * abs(value)) else value


def count_text(value: float) -> str:
    """Format a count or a sum of weights: integers, up to rounding, without decimals, other values with one."""
    value = without_rounding(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}" if math.isfinite(value) else number(value)


def interval_text(low: float, high: float) -> str:
    """Format the ends of an interval."""
    return f"{number(low)} to {number(high)}"


def percent(fraction: float) -> str:
    """Format a level such as 0.05 as 5%."""
    return f"{100 * fraction:g}%"


def count_segments(count: int, vocabulary: Vocabulary) -> str:
    """Format a number of segments, singular or plural."""
    return f"{count:,} {vocabulary.segment if count == 1 else vocabulary.segments}"


def summary_of(audit: Audit) -> AuditSummary | None:
    """Return the summary of an audit, or None if it has none."""
    return None if audit.summary_source is None else audit.summary


# What was found


def verdict_statement(audit: Audit, vocabulary: Vocabulary = DEFAULT_VOCABULARY) -> str:
    """Return how many segments are miscalibrated, at which level, without naming the worst."""
    if audit.untestable:
        return f"not testable: {audit.untestable}"
    if not audit.tested:
        return f"nothing could be tested: no {vocabulary.segment} has {min_tested_rows(audit):,} {vocabulary.rows}"
    start = "miscalibrated" if audit.miscalibrated else "no miscalibration found"
    return f"{start}: {audit.rejected:,} of {audit.tested:,} {vocabulary.segments} {_significance(audit)}"


def _significance(audit: Audit) -> str:
    alpha = audit.settings.alpha
    return f"at {f'{alpha:.3g}' if alpha < 0.001 else percent(alpha)} ({ADJUSTMENTS[audit.settings.adjust]})"


def summarize(audit: Audit, vocabulary: Vocabulary = DEFAULT_VOCABULARY) -> str:
    """Describe the result: number of findings, segment with the strongest evidence, segment with the largest error."""
    if audit.untestable:
        return f"Not testable: {audit.untestable}."
    if not audit.tested:
        return f"No {vocabulary.segment} has {min_tested_rows(audit):,} {vocabulary.rows}."
    worst = audit.finding(0)
    verb = "is" if audit.rejected == 1 else "are"
    text = (
        f"{audit.rejected:,} of {audit.tested:,} {vocabulary.segments} {verb} miscalibrated {_significance(audit)}. "
        f"The evidence is strongest on {shorten(worst.segment, 200)}: {describe_error(worst)}"
        f"{'' if audit.miscalibrated else ', within sampling noise'}."
    )
    differences = np.abs(audit.columns["bias"][: audit.rejected])  # miscalibrated segments come first
    if not np.isfinite(differences).any() or (largest := int(np.nanargmax(differences))) == 0:
        return text
    finding = audit.finding(largest)
    return text + (
        f" The largest difference among them is on {shorten(finding.segment, 200)} ({finding.n:,} {vocabulary.rows}): "
        f"{vocabulary.observed} {number(finding.observed)}, {vocabulary.expected} {number(finding.expected)}."
    )


def audit_notes(audit: Audit, vocabulary: Vocabulary = DEFAULT_VOCABULARY) -> list[str]:
    """Return the notes of an audit in the terms of the vocabulary."""
    lines = notes(audit, count_thin=False, segments=vocabulary.segments)
    if audit.thin:
        verb = "has" if audit.thin == 1 else "have"
        lines.append(
            f"too small to test: {count_segments(audit.thin, vocabulary)} {verb} fewer than {audit.settings.min_rows:,} "
            f"{vocabulary.rows}"
        )
    return lines


def detectable_shifts(audit: Audit, vocabulary: Vocabulary = DEFAULT_VOCABULARY) -> tuple[str, ...]:
    """State which errors would have been detected: overall, in half of the segments, and where power is lowest."""
    known = np.flatnonzero(audit.columns["testable"] & np.isfinite(audit.columns["mde"]))
    if not len(known):
        return ()
    mde, overall = audit.columns["mde"][known], audit.overall
    lines = []
    if math.isfinite(overall.mde):
        possible = is_possible_shift(audit, overall.mde, overall.expected)
        shift = f"a shift of {_shift(audit, overall.mde)}" if possible else "no shift"
        lines.append(
            f"Over all {vocabulary.rows}, {shift} between {vocabulary.observed} and {vocabulary.expected} would have been "
            "detected with 80% power."
        )
    if len(known) > 1:
        median, tested = float(np.median(mde)), f"half of the {len(mde):,} tested {vocabulary.segments}"
        if is_possible_shift(audit, median, 1.0):
            lines.append(f"In {tested}, only a shift of {_shift(audit, median)} or more would have been detected.")
        else:
            lines.append(f"In at least {tested}, no shift would have been detected with 80% power.")
        rank = int(known[int(np.argmax(mde))])
        largest, expected, rows = (audit.columns[name][rank].item() for name in ("mde", "expected", "n"))
        possible = is_possible_shift(audit, largest, expected)
        shift = f"only a shift of {_shift(audit, largest)} or more" if possible else "no shift, however large,"
        name = shorten(audit.keys.name(rank), MAX_NAME_IN_SENTENCE)
        lines.append(f"Power is lowest on {name} ({rows:,} {vocabulary.rows}): {shift} would have been detected.")
    return (*lines, "Smaller errors may exist: a test that finds no error does not prove that there is none.")


def _shift(audit: Audit, value: float) -> str:
    """Format a shift of the mean: in percentage points for probabilities, else in the units of the outcome."""
    return number(value, 2) if audit.schema.task == "regression" else f"{number(100 * value, 2)} percentage points"


# What to do next


class NextStep(NamedTuple):
    """A recommendation: a sentence, the code or command that carries it out, if any, and what to do afterwards."""

    text: str
    code: str = ""
    after: str = ""


def next_step(audit: Audit, vocabulary: Vocabulary = DEFAULT_VOCABULARY) -> NextStep:
    """Recommend a step after one audit: fit a correction, collect more rows, or nothing."""
    if audit.untestable:
        return NextStep(f"Next: collect more {vocabulary.rows}: {audit.untestable}.")
    if not audit.tested:
        least = f"{min_tested_rows(audit):,}"
        return NextStep(
            f"Next: collect more {vocabulary.rows}. A {vocabulary.segment} needs at least {least} to be tested."
        )
    if audit.miscalibrated:
        command = "" if audit.source is None else shorten(audit.source.fit, 2000)
        after = f"then audit the corrected scores on {vocabulary.rows} that were not used for the fit."
        return NextStep(f"Next: fit a correction on these {vocabulary.rows},", command or fit_code(audit), after)
    overall = audit.overall
    scale = abs(overall.expected)
    if math.isfinite(overall.mde) and scale > 0 and overall.mde > LARGE_UNDETECTED_ERROR * scale:
        possible = is_possible_shift(audit, overall.mde, overall.expected)
        size = f"An error of {number(overall.mde, 2)}" if possible else "Any error"
        return NextStep(
            f"Next: collect more {vocabulary.rows} before relying on this result. {size} in a mean of "
            f"{number(overall.observed, 2)} could have gone undetected."
        )
    return NextStep(f"Next: no correction is needed. {AUDIT_AGAIN}")


# Code


def fit_code(audit: Audit) -> str:
    """Write the Python line that fits MCGrad with the roles of an audit; long lists of features are left out."""

    def quote(name: str) -> str:
        return json.dumps(shorten(name, 200), ensure_ascii=False)

    schema = audit.schema
    prediction, features = (
        [quote(name) for name in names[:MAX_PREDICTIONS_IN_CODE]]
        for names in (schema.prediction, [feature.name for feature in schema.features])
    )
    listed = 0 < len(schema.features) <= MAX_FEATURES_IN_CODE
    arguments = [prediction[0] if len(prediction) == 1 else f"[{', '.join(prediction)}]"]
    arguments += [f"[{', '.join(features)}]"] if listed else []
    arguments += ['task="regression"'] if schema.task == "regression" else []
    role = "rows[{}]" if listed else "{}"  # without a list, every other column is a feature, except roles passed by name
    fit = ["rows", role.format(quote(schema.outcome)) if schema.outcome else "outcome"]
    fit += [f"sample_weight={role.format(quote(schema.weight))}"] if schema.weight else []
    return f"trueup.MCGrad({', '.join(arguments)}).fit({', '.join(fit)})"


def audit_code(audit: Audit) -> str:
    """Write the Python call that repeats an audit, except for the bins of columns, which an audit does not keep."""
    schema = audit.schema
    names = [shorten(feature.name, 60) for feature in schema.features]
    own_segments = [shorten(labels[0], 60) for labels in audit.keys.labels[len(names) :]]
    prediction = schema.prediction[0] if len(schema.prediction) == 1 else list(schema.prediction[:MAX_COLUMNS_IN_CALL])
    arguments = ["data"]
    arguments += [f"outcome={schema.outcome!r}"] if schema.outcome else []
    arguments += [f"prediction={prediction!r}"]
    arguments += [f"weight={schema.weight!r}"] if schema.weight else []
    arguments += [f"by={names!r}"] if len(names) <= MAX_COLUMNS_IN_CALL else []
    if own_segments:
        listed = ", ".join(f"{name!r}: ..." for name in own_segments[:MAX_COLUMNS_IN_CALL])
        arguments.append(f"segments={{{listed}}}")
    arguments += ["task='regression'"] if schema.task == "regression" else []
    parameters = inspect.signature(trueup.audit).parameters
    settings = {name: value for name, value in vars(audit.settings).items() if name != "draws" or value}
    arguments += [f"{name}={value!r}" for name, value in settings.items() if parameters[name].default != value]
    return f"trueup.audit({', '.join(arguments)})"


# Provenance


def page_subject(audits: Iterable[Audit], vocabulary: Vocabulary = DEFAULT_VOCABULARY) -> tuple[str, ...]:
    """Return the file names of the audits, and their number of rows if it is the same for all."""
    audits = list(audits)
    sources = {tuple(name for name, _, _ in audit.source.files) if audit.source is not None else () for audit in audits}
    names = list(dict.fromkeys(name for files in sorted(sources) for name in files))
    more = len(names) - MAX_FILES_IN_SUBJECT
    files = ", ".join(shorten(name, 80) for name in names[:MAX_FILES_IN_SUBJECT])
    files += f" and {more:,} more" if more > 0 else ""
    rows = {audit.rows for audit in audits}
    count = [f"{rows.pop():,} {vocabulary.rows}"] if len(rows) == 1 else []
    return (*([files] if files else []), *count)


def provenance(audit: Audit, vocabulary: Vocabulary = DEFAULT_VOCABULARY) -> tuple[tuple[str, str, bool], ...]:
    """List what is needed to reproduce an audit: label, text, and whether the text is code."""
    excluded = [f"{audit.unlabelled:,} without an outcome"] if audit.unlabelled else []
    excluded += [f"{audit.weightless:,} with weight 0"] if audit.weightless else []
    rows = f"{audit.rows:,} audited" + (f"; excluded: {', '.join(excluded)}" if excluded else "")
    items = [
        (vocabulary.rows, rows, False),
        ("columns", f"{len(audit.schema.features):,} that form {vocabulary.segments}", False),
    ]
    files, command = (audit.source.files, audit.source.command) if audit.source is not None else ((), "")
    for name, size, digest in files[:MAX_FILES]:
        items += [("file", f"{shorten(name, 120)} ({size:,} bytes)", False), ("SHA-256", digest, True)]
    if len(files) > MAX_FILES:
        items.append(("", f"and {len(files) - MAX_FILES:,} more files", False))
    summary = summary_of(audit)
    if summary is not None:
        items.append(("fingerprint of outcomes, predictions and weights", summary.fingerprint, True))
    versions = f"trueup {trueup.__version__}, Python {platform.python_version()}, NumPy {np.__version__}"
    return (
        *items,
        ("reproduce with", shorten(command or audit_code(audit), 2000), True),
        ("seed", str(audit.settings.random_state), False),
        ("versions", versions, False),
    )


def sign_off_facts(audits: Iterable[Audit], vocabulary: Vocabulary = DEFAULT_VOCABULARY) -> tuple[tuple[str, str], ...]:
    """List what a signature refers to: model, data and verdict of the last audit; what is not known is left to fill in."""
    audit = list(audits)[-1]
    files = [] if audit.source is None else [shorten(name, 60) for name, _, _ in audit.source.files[:MAX_FILES]]
    summary = summary_of(audit)
    fingerprint = [] if summary is None else [f"fingerprint {summary.fingerprint[:16]}"]
    return (
        ("model", ""),
        ("version", ""),
        ("column of the scores", shorten(", ".join(audit.schema.prediction), 120)),
        ("data", "; ".join([*files, f"{audit.rows:,} {vocabulary.rows}", *fingerprint])),
        ("verdict", verdict_statement(audit, vocabulary)),
        ("audited with", f"trueup {trueup.__version__}"),
        ("audited by", ""),
        ("date", ""),
    )
