"""Sentences of the page and of the Markdown summary: what could be detected, code to copy, and where the data came from."""

from __future__ import annotations

import inspect
import json
import math
import platform
import re
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

import trueup
from trueup.audits.text import is_possible_shift, notes, number, shorten
from trueup.data.values import class_names
from trueup.errors import DataError
from trueup.reports.profiles import DEFAULT_VOCABULARY, Vocabulary

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trueup.audits.result import Audit
    from trueup.audits.summary import AuditSummary
    from trueup.data.table import Feature, Schema

MAX_COLUMNS_IN_CALL = 60
MAX_NAME_IN_SENTENCE = 60  # characters
MAX_FILES = 20
MAX_FILES_IN_SUBJECT = 2
NUMBER = re.compile(r"-?\d+(\.\d+)?")  # the text of a level that is a number
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


def audit_notes(audit: Audit, vocabulary: Vocabulary = DEFAULT_VOCABULARY) -> list[str]:
    """Return the notes of an audit in the terms of the vocabulary."""
    # What could have been detected is stated by `detectable_shifts`, and below the verdict.
    lines = notes(audit, count_thin=False, power=False, segments=vocabulary.segments)
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
        shift = f"a shift of {format_shift(audit, overall.mde)}" if possible else "no shift"
        lines.append(
            f"Over all {vocabulary.rows}, {shift} between {vocabulary.observed} and {vocabulary.expected} would have been "
            "detected with 80% power."
        )
    if len(known) > 1:
        median, tested = float(np.median(mde)), f"half of the {len(mde):,} tested {vocabulary.segments}"
        if is_possible_shift(audit, median, 1.0):
            lines.append(f"In {tested}, only a shift of {format_shift(audit, median)} or more would have been detected.")
        else:
            lines.append(f"In at least {tested}, no shift would have been detected with 80% power.")
        rank = int(known[int(np.argmax(mde))])
        largest, expected, rows = (audit.columns[name][rank].item() for name in ("mde", "expected", "n"))
        possible = is_possible_shift(audit, largest, expected)
        shift = f"only a shift of {format_shift(audit, largest)} or more" if possible else "no shift, however large,"
        name = shorten(audit.keys.name(rank), MAX_NAME_IN_SENTENCE)
        lines.append(f"Power is lowest on {name} ({rows:,} {vocabulary.rows}): {shift} would have been detected.")
    return (*lines, "Smaller errors may exist: a test that finds no error does not prove that there is none.")


def format_shift(audit: Audit, value: float) -> str:
    """Format a shift of the mean: in percentage points for probabilities, else in the units of the outcome."""
    return number(value, 2) if audit.schema.task == "regression" else f"{number(100 * value, 2)} percentage points"


# Code


def fit_code(audit: Audit) -> str:
    """Write the Python line that fits MCGrad with the roles and columns of an audit, and with all that changes its rows.

    Roles that were passed as arrays are variables of their names: `outcome`, `weight`, `cluster`.
    """

    def quote(name: str) -> str:
        return json.dumps(shorten(name, 200), ensure_ascii=False)

    def listed(names: Iterable[str]) -> str:
        return f"[{', '.join(map(quote, names))}]"

    schema = audit.schema
    features = [feature.name for feature in schema.features]
    arguments = [quote(schema.prediction[0]) if len(schema.prediction) == 1 else listed(schema.prediction)]
    arguments += [listed(features)] if features else []
    codes = [feature.name for feature in schema.features if _has_numeric_levels(feature)]
    arguments += [f"categorical={listed(codes)}"] if codes else []
    arguments += ['task="regression"'] if schema.task == "regression" else []
    arguments += [f"classes={listed(schema.classes)}"] if _needs_classes(schema) else []
    arguments += ['unlabelled="drop"'] if audit.unlabelled else []

    def role(name: str, column: str) -> str:
        # Without a list of features every other column is one, except roles that are passed by name.
        return name if name in audit.arrays else f"rows[{quote(column)}]" if features else quote(column)

    fit = ["rows", role("outcome", schema.outcome) if schema.outcome else "outcome"]
    fit += [f"sample_weight={role('weight', schema.weight)}"] if schema.weight else []
    fit += [f"sampling={_sampling_code(audit)}"] if audit.sampling is not None else []
    fit += [f"cluster={'cluster' if 'cluster' in audit.arrays else quote(schema.cluster)}"] if schema.cluster else []
    return f"trueup.MCGrad({', '.join(arguments)}).fit({', '.join(fit)})"


def _needs_classes(schema: Schema) -> bool:
    """Return whether the names of the prediction columns do not determine their classes."""
    if not schema.classes:
        return False
    try:
        return class_names(schema.classes, schema.prediction, None) != schema.classes
    except DataError:
        return True


def _sampling_code(audit: Audit) -> str:
    assert audit.sampling is not None
    shares = (f'"{name}": {repr(share).removesuffix(".0")}' for name, share in audit.sampling._asdict().items())
    return f"{{{', '.join(shares)}}}"


def _has_numeric_levels(feature: Feature) -> bool:
    """Return whether a categorical column may be one of numbers, which are categories only if that is said."""
    return feature.kind == "categorical" and all(NUMBER.fullmatch(level) for level in feature.levels)


def cluster_code(audit: Audit, column: str) -> str:
    """Write the Python call that repeats an audit with the clusters of a column."""
    adjust = "holm" if audit.settings.adjust == "max" else audit.settings.adjust  # max draws independent rows
    settings = replace(audit.settings, adjust=adjust, draws=audit.settings.draws if adjust == audit.settings.adjust else 0)
    return audit_code(replace(audit, schema=replace(audit.schema, cluster=column), settings=settings))


def audit_code(audit: Audit) -> str:
    """Write the Python call that repeats an audit, except for the bins of columns, which an audit does not keep."""
    schema = audit.schema
    own_segments = [shorten(labels[0], 60) for labels in audit.keys.labels[len(schema.features) :]]
    names = [shorten(feature.name, 60) for feature in schema.features if feature.name != schema.cluster]
    prediction = schema.prediction[0] if len(schema.prediction) == 1 else list(schema.prediction[:MAX_COLUMNS_IN_CALL])
    arguments = ["data"]
    given = {"outcome": schema.outcome, "prediction": prediction, "weight": schema.weight, "cluster": schema.cluster}
    named = {role: role if role in audit.arrays else repr(column) for role, column in given.items() if column}
    arguments += [f"{role}={column}" for role, column in named.items()]
    arguments += [f"sampling={_sampling_code(audit)}"] if audit.sampling is not None else []
    arguments += [f"by={names!r}"] if len(names) <= MAX_COLUMNS_IN_CALL else []
    if own_segments:
        listed = ", ".join(f"{name!r}: ..." for name in own_segments[:MAX_COLUMNS_IN_CALL])
        arguments.append(f"segments={{{listed}}}")
    codes = [feature.name for feature in schema.features if _has_numeric_levels(feature)]
    arguments += [f"categorical={codes!r}"] if 0 < len(codes) <= MAX_COLUMNS_IN_CALL else []
    arguments += ["task='regression'"] if schema.task == "regression" else []
    arguments += [f"classes={list(schema.classes)!r}"] if _needs_classes(schema) else []
    arguments += ["unlabelled='drop'"] if audit.unlabelled else []
    parameters = inspect.signature(trueup.audit).parameters
    settings = {name: value for name, value in vars(audit.settings).items() if name != "draws" or value}
    if audit.settings.tolerance is not None:
        tolerance = audit.settings.tolerance
        settings["tolerance"] = str(tolerance) if tolerance.relative else tolerance.value
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
