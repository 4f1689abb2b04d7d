"""What a fix corrected, as a table: the segments it moved, or its patches in order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.audits.text import number, shorten
from trueup.calibrators.maps.patches import Patches
from trueup.calibrators.model import Model
from trueup.errors import ArgumentError
from trueup.kernels.tally import Rows
from trueup.reports.advice import USUAL
from trueup.reports.view import Cell, Heading, Section, TableView, name_cell, number_cell

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trueup._types import FloatArray
    from trueup.audits.result import Audit
    from trueup.calibrators.explain import Correction
    from trueup.reports.profiles import Words

MOST_PATCHES = 100


def view_fix(fix: Any, audits: Sequence[Audit] = (), words: Words = USUAL, *, taught: bool = False) -> tuple[Section, ...]:
    """Say what a fitted calibrator or a model corrected, and how that fits the audits of the page.

    ``taught`` says that the rows of the page look like those of the fit (`has_taught`).

    Raises
    ------
    ArgumentError
        If it is neither, or was not fitted.
    """
    if fix is None:
        return ()
    model = _model_of(fix)
    if model is None:
        raise ArgumentError(
            f"fix must be a fitted calibrator or a model; got {type(fix).__qualname__}",
            hint="pass what was fitted, such as trueup.MCGrad().fit(...), or what trueup.load gave",
        )
    sections = [_corrections(model, audits, words, taught=taught)]
    if isinstance(model.map, Patches) and model.map.patches:
        sections.append(_patches(model.map))
    return tuple(sections)


def _model_of(fix: Any) -> Model | None:
    found = fix if isinstance(fix, Model) else getattr(fix, "model_", None)
    return found if isinstance(found, Model) else None


def _corrections(model: Model, audits: Sequence[Audit], words: Words, *, taught: bool) -> Section:
    title, found, method = "What the fix corrected", model.explanation, model.about.method
    if not found.corrections:
        told = f"{method} corrected nothing: the scores stay as they were. {_other_score(model, audits)}"
        return Section(title, told.strip())
    these = (
        f", and the {words.rows} of this page look like the same: what is right on them need not be right on others"
        if taught else f", not of the {words.rows} of this page"
    )  # fmt: skip
    lead = (
        f"{method} moved scores by {number(found.moved, 2)} on average. {_other_score(model, audits)}The figures are those "
        f"of the {found.rows:,} {words.rows} that it was fitted on{these}. The {words.segments} below account for "
        f"{100 * found.accounted:.0f}% of the squared changes, largest first."
    )
    share = (
        ("share of weight", "of the weight") if model.schema.weight else (f"share of {words.rows}", f"of the {words.rows}")
    )
    headings = (
        Heading(words.segment, "", "name"), Heading("scores", "the band of scores before the fix", "interval"),
        Heading(words.rows), Heading(share[0], f"{share[1]} that it was fitted on"),
        Heading("before", "mean score before the fix"), Heading("after", "mean score after the fix"),
        Heading(words.observed, "mean outcome"),
    )  # fmt: skip
    table = TableView(headings, tuple(_correction(one) for one in found.corrections))
    return Section(title, lead, table)


def _other_score(model: Model, audits: Sequence[Audit]) -> str:
    """Say where the fix corrects another score than the one before it."""
    corrected = model.schema.prediction
    before = audits[0].schema.prediction if len(audits) > 1 else ()
    if not corrected or not before or corrected == before:
        return ""
    taught, here = (", ".join(repr(shorten(name, 60)) for name in names[:3]) for names in (corrected, before))
    return f"It was fitted to correct {taught}, which is not the score before it here ({here}). "


def has_taught(fix: Any, audits: Sequence[Audit]) -> bool:
    """Say whether the rows of two audits look like those that taught the fix between them, as far as can be known.

    The command line has seen the rows; elsewhere they are asked of the audits, which may have let them go.
    """
    model = _model_of(fix)
    if model is None or len(audits) < 2:
        return False
    if any(audit.source is not None and audit.source.training_rows for audit in audits):
        return True
    before, after = (audit.whole_rows[0] if audit.whole_rows else None for audit in (audits[0], audits[-1]))
    if not isinstance(before, Rows) or not isinstance(after, Rows) or len(before) != len(after):
        return False
    weight = _as_read(after, after.w) if len(after.w) else None
    return model.looks_like_training_data(_as_read(before, before.p), _as_read(after, after.p), weight)


def _as_read(rows: Rows, values: FloatArray) -> FloatArray:
    """Put values of sorted rows back in the order in which the rows were read."""
    out = np.empty_like(values)
    out[rows.order] = values
    return out


def _correction(one: Correction) -> tuple[Cell, ...]:
    return (
        name_cell(one.segment), Cell(f"{number(one.low)} to {number(one.high)}", "interval"),
        number_cell(one.rows, f"{one.rows:,}"), number_cell(one.share, f"{100 * one.share:.1f}%"),
        number_cell(one.before), number_cell(one.after), number_cell(one.observed),
    )  # fmt: skip


def _patches(found: Patches) -> Section:
    listed = found.listed
    rows = tuple(
        (
            name_cell(f"{at}. {one.group}"), Cell(str(one.cell), "interval"), number_cell(one.rows, f"{one.rows:,}"),
            number_cell(one.before), number_cell(one.observed), number_cell(one.shift, f"{one.shift:+.4g}"),
        )
        for at, one in enumerate(listed.patches[:MOST_PATCHES], start=1)
    )  # fmt: skip
    headings = (
        Heading("patch", "", "name"), Heading("scores", "", "interval"), Heading("rows"), Heading("predicted"),
        Heading("observed"), Heading(f"{listed.scale} moved"),
    )  # fmt: skip
    lead = "Each corrects what the ones before it left, on the rows that it was fitted on."
    return Section("Patches, in order", lead, TableView(headings, rows))
