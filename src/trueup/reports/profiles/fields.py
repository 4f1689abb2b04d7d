"""Fields and their values: what happened over what was predicted."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from trueup.audits.text import number
from trueup.reports.profiles.grades import levels_of, value_of
from trueup.reports.view import (
    Cell,
    Heading,
    Section,
    TableView,
    finding_state,
    forest_cell,
    name_cell,
    number_cell,
    scale_of,
    state_cell,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trueup.audits.result import Audit, Finding
    from trueup.reports.drawing import Scale
    from trueup.reports.profiles.declared import SectionPlan, Words

__all__ = ["draw_fields", "draw_values"]

MOST_VALUES = 200


def draw_fields(audit: Audit, plan: SectionPlan) -> Section:
    """Give one line a field: how many of its values are off, and the worst of them."""
    scale = scale_of(audit)
    headings = (
        Heading("field", "", "name"), Heading("values", "values with rows enough for a test"),
        Heading("off", "values whose adjusted p-value is at most alpha"),
        Heading("worst value", "by adjusted p-value, then by sigma", "interval"), *_headings(audit, scale),
    )  # fmt: skip
    rows = []
    for column, ranks in _fields(audit, ()):
        tested = sorted(at for at in ranks if audit.columns["testable"][at])
        if not tested:
            continue
        worst = audit.finding(tested[0])
        off = int((audit.columns["p_adjusted"][tested] <= audit.settings.alpha).sum())
        value = name_cell(value_of(audit, column, tested[0]))
        rows.append((
            name_cell(audit.schema.features[column].name), number_cell(len(tested), f"{len(tested):,}"),
            number_cell(off, f"{off:,}"), Cell(value.text, "interval", title=value.title), *_cells(audit, worst, scale),
        ))  # fmt: skip
    lead = plan.lead if rows else f"{plan.lead} No field has a value with rows enough for a test.".strip()
    return Section(plan.title, lead, TableView(headings, tuple(rows), 0) if rows else None)


def draw_values(audit: Audit, words: Words, plan: SectionPlan) -> Section:
    """List the values of every field; of many, those that are worst, in the order of fields and values."""
    most = int(plan.parameters.get("most", MOST_VALUES))
    listed = [(column, at) for column, ranks in _fields(audit, plan.parameters.get("fields", ())) for at in ranks]
    kept = {at for _, at in sorted(listed, key=lambda one: one[1])[:most]}
    counts, scale = audit.schema.task != "regression", scale_of(audit)
    headings = (
        Heading("value", "", "name"), Heading("field", "", "interval"), Heading("rows"),
        *((Heading(words.outcomes, "weight of the rows with the outcome"), Heading("predicted", "sum of the scores"))
          if counts else ()),
        *_headings(audit, scale),
    )  # fmt: skip
    rows = []
    for column, at in listed:
        if at not in kept:
            continue
        one = audit.finding(at)
        field = name_cell(audit.schema.features[column].name)
        sums = [number_cell(mean * one.weight, _count(mean * one.weight)) for mean in (one.observed, one.expected)]
        rows.append((
            name_cell(value_of(audit, column, at)), Cell(field.text, "interval", title=field.title),
            number_cell(one.n, f"{one.n:,}"), *(sums if counts else ()), *_cells(audit, one, scale),
        ))  # fmt: skip
    lead = plan.lead if rows else f"{plan.lead} There is no field.".strip()
    return Section(plan.title, lead, TableView(headings, tuple(rows), len(listed) - len(rows)) if rows else None)


def _fields(audit: Audit, names: Sequence[str]) -> list[tuple[int, list[int]]]:
    """Give every column, or those of these names, with the ranks of its values."""
    wanted = {name.casefold() for name in names}
    return [
        (at, levels_of(audit, at))
        for at, feature in enumerate(audit.schema.features)
        if not wanted or feature.name.casefold() in wanted
    ]


def _headings(audit: Audit, scale: Scale) -> tuple[Heading, ...]:
    level = f"{100 * (1 - audit.settings.alpha):g}%"
    return (
        Heading("ratio", "observed / expected"),
        Heading(f"{level} interval", "of the ratio, not adjusted for the number of segments", "interval"),
        Heading(scale.text, "the same on a line, logarithmic", "forest"),
        Heading("state", "off: the adjusted p-value is at most alpha", "state"),
        Heading("adjusted p", "p-value adjusted for the number of segments"),
    )


def _cells(audit: Audit, finding: Finding, scale: Scale) -> tuple[Cell, ...]:
    return (
        number_cell(finding.ratio),
        Cell(f"{number(finding.ratio_low)} to {number(finding.ratio_high)}", "interval"),
        forest_cell(audit, finding, scale),
        state_cell(finding_state(audit, finding), finding.note),
        number_cell(finding.p_adjusted, number(finding.p_adjusted, 2)),
    )


def _count(value: float) -> str:
    """Write a sum: whole numbers with all their digits, others as they are."""
    near = math.floor(value + 0.5)
    return f"{near:,}" if abs(value - near) < 1e-6 * max(1.0, abs(value)) else f"{value:,.1f}"
