"""What a fix corrected, as a table: the segments it moved, or its patches in order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trueup.audits.text import number
from trueup.calibrators.maps.patches import Patches
from trueup.calibrators.model import Model
from trueup.errors import ArgumentError
from trueup.reports.view import Cell, Heading, Section, TableView, name_cell, number_cell

if TYPE_CHECKING:
    from trueup.calibrators.explain import Correction, Explanation

__all__ = ["view_fix"]

MOST_PATCHES = 100


def view_fix(fix: Any) -> tuple[Section, ...]:
    """Say what a fitted calibrator or a model corrected.

    Raises
    ------
    ArgumentError
        If it is neither, or was not fitted.
    """
    if fix is None:
        return ()
    model = fix if isinstance(fix, Model) else getattr(fix, "model_", None)
    if not isinstance(model, Model):
        raise ArgumentError(
            f"fix must be a fitted calibrator or a model; got {type(fix).__qualname__}",
            hint="pass what was fitted, such as trueup.MCGrad().fit(...), or what trueup.load gave",
        )
    sections = [_corrections(model.explanation, model.info().method)]
    if isinstance(model.map, Patches) and model.map.patches:
        sections.append(_patches(model.map))
    return tuple(sections)


def _corrections(found: Explanation, method: str) -> Section:
    title = "What the fix corrected"
    if not found.corrections:
        return Section(title, f"{method} corrected nothing: the scores stay as they were.")
    lead = (
        f"{method} moved scores by {number(found.moved, 2)} on average over {found.rows:,} rows. The segments below "
        f"account for {100 * found.accounted:.0f}% of it, largest first."
    )
    headings = (
        Heading("segment", "", "name"), Heading("scores", "the band of scores before the fix", "interval"),
        Heading("rows"), Heading("share", "of the weight of all rows"), Heading("before", "mean score before the fix"),
        Heading("after", "mean score after the fix"), Heading("observed", "mean outcome"),
    )  # fmt: skip
    return Section(title, lead, TableView(headings, tuple(_correction(one) for one in found.corrections)))


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
    return Section("Patches, in order", "Each corrects what the ones before it left.", TableView(headings, rows))
