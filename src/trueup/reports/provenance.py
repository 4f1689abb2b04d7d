"""Where a page comes from: rows, columns, a digest of the data, versions, and how to make it again."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

import numpy as np

from trueup.audits.run import MAX_CELLS
from trueup.audits.text import shorten
from trueup.reports.advice import USUAL

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trueup.audits.portrait import Portrait
    from trueup.audits.result import Audit
    from trueup.reports.profiles import Words

MOST_FILES = 20
FEW_FILES = 2  # named above the verdict
MOST_NAMES = 60
DEFAULTS = {
    "depth": 2, "min_rows": 50, "alpha": 0.05, "adjust": "holm", "max_cells": MAX_CELLS, "draws": 199, "random_state": 0,
}  # fmt: skip


def about(audits: Iterable[Audit], words: Words = USUAL) -> tuple[str, ...]:
    """Say what a page is about, in short: the files by name, and how many rows; nothing that is not known of all audits."""
    listed = list(audits)
    files = {tuple(name for name, _, _ in one.source.files) if one.source is not None else () for one in listed}
    names = list(dict.fromkeys(name for some in sorted(files) for name in some))
    told = ", ".join(shorten(name, 80) for name in names[:FEW_FILES])
    more = len(names) - FEW_FILES
    told += f" and {more:,} more" if more > 0 else ""
    rows = {one.rows for one in listed}
    counted = [f"{next(iter(rows)):,} {words.rows}"] if len(rows) == 1 else []
    return (*([told] if told else []), *counted)


def provenance(audit: Audit, portrait: Portrait | None, words: Words = USUAL) -> tuple[tuple[str, str, bool], ...]:
    """List what a reader needs to make the page again: a label, a text, and whether it is to be read as code."""
    source = audit.source
    rows = [
        (words.rows, f"{audit.rows:,} audited" + _aside(audit), False),
        ("columns", f"{len(audit.schema.features):,} that form {words.segments}", False),
    ]
    for name, size, digest in source.files[:MOST_FILES] if source is not None else ():
        rows += [("file", f"{shorten(name, 120)} ({size:,} bytes)", False), ("its SHA-256", digest, True)]
    more = len(source.files) - MOST_FILES if source is not None else 0
    rows += [("", f"and {more:,} more files", False)] if more > 0 else []
    if portrait is not None:
        rows.append(("fingerprint of outcomes, predictions, weights", portrait.fingerprint, True))
    import trueup

    told = source.command if source is not None and source.command else python_call(audit)
    return (
        *rows,
        ("made again by", shorten(told, 2000), True),
        ("seed", str(audit.settings.random_state), False),
        ("versions", f"trueup {trueup.__version__}, Python {platform.python_version()}, NumPy {np.__version__}", False),
    )


def _aside(audit: Audit) -> str:
    parts = [f"{audit.unlabelled:,} without an outcome"] if audit.unlabelled else []
    parts += [f"{audit.weightless:,} of weight 0"] if audit.weightless else []
    return f"; set aside: {', '.join(parts)}" if parts else ""


def python_call(audit: Audit) -> str:
    """Write the call that makes this audit, as far as the audit knows it: how columns were cut, it does not."""
    schema = audit.schema
    names = [shorten(feature.name, 60) for feature in schema.features]
    prediction = schema.prediction[0] if len(schema.prediction) == 1 else list(schema.prediction[:MOST_NAMES])
    parts = ["data"]
    parts += [f"outcome={schema.outcome!r}"] if schema.outcome else []
    parts += [f"prediction={prediction!r}"]
    parts += [f"weight={schema.weight!r}"] if schema.weight else []
    parts += [f"by={names!r}"] if len(names) <= MOST_NAMES else []
    own = [shorten(labels[0], 60) for labels in audit.keys.labels[len(names) :]]
    parts += [f"segments={{{', '.join(f'{name!r}: ...' for name in own[:MOST_NAMES])}}}"] if own else []
    parts += ["task='regression'"] if schema.task == "regression" else []
    told = {name: value for name, value in vars(audit.settings).items() if name != "draws" or value}
    parts += [f"{name}={value!r}" for name, value in told.items() if DEFAULTS.get(name) != value]
    return f"trueup.audit({', '.join(parts)})"
