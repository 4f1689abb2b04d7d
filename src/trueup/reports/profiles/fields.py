"""Fields and their values: what happened over what was predicted."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from trueup.reports.profiles.levels import interval_cell, p_cell, text_cell, value_of
from trueup.reports.view import (
    Cell,
    Heading,
    Section,
    TableView,
    finding_state,
    forest_cell,
    number_cell,
    scale_of,
    state_cell,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trueup.audits.result import Audit, Finding
    from trueup.reports.drawing import Scale
    from trueup.reports.profiles.declared import SectionPlan, Words
    from trueup.reports.profiles.levels import Levels

MOST_VALUES = 200


def draw_fields(audit: Audit, words: Words, plan: SectionPlan, levels: Levels) -> Section:
    """Give one line a field: how many of its values are off, and the worst of them."""
    scale = scale_of(audit)
    headings = (
        Heading("field", "", "name"), Heading("values", f"values with {words.rows} enough for a test"),
        Heading("off", "values whose adjusted p-value is at most alpha"),
        Heading("worst value", "by adjusted p-value, then by sigma", "interval"), *_headings(audit, words, scale),
    )  # fmt: skip
    rows = []
    for column, ranks in levels.items():
        tested = sorted(at for at in ranks if audit.columns["testable"][at])
        if not tested:
            continue
        off = int((audit.columns["p_adjusted"][tested] <= audit.settings.alpha).sum())
        rows.append((
            text_cell(audit.schema.features[column].name, rows=len(levels)), number_cell(len(tested), f"{len(tested):,}"),
            number_cell(off, f"{off:,}"), text_cell(value_of(audit, column, tested[0]), "interval", len(levels)),
            *_cells(audit, audit.finding(tested[0]), scale),
        ))  # fmt: skip
    lead = plan.lead if rows else f"{plan.lead} No field has a value with {words.rows} enough for a test.".strip()
    return Section(plan.title, lead, TableView(headings, tuple(rows), 0) if rows else None)


def draw_values(audit: Audit, words: Words, plan: SectionPlan, levels: Levels) -> Section:
    """List the values of every field, worst first."""
    most = int(plan.parameters.get("most", MOST_VALUES))
    wanted = {name.casefold() for name in plan.parameters.get("fields", ())}
    names = [feature.name for feature in audit.schema.features]
    listed = sorted(
        (at, column) for column, ranks in levels.items() for at in ranks if not wanted or names[column].casefold() in wanted
    )
    scale = scale_of(audit)
    headings = (
        Heading("value", "", "name"), Heading("field", "", "interval"), Heading(words.rows),
        *_amounts(audit, words), *_headings(audit, words, scale),
    )  # fmt: skip
    rows, many = [], min(most, len(listed))
    for at, column in listed[:most]:
        one = audit.finding(at)
        rows.append((
            text_cell(value_of(audit, column, at), rows=many), text_cell(names[column], "interval", many),
            number_cell(one.n, f"{one.n:,}"), *_amount_cells(audit, one), *_cells(audit, one, scale),
        ))  # fmt: skip
    lead = plan.lead if rows else f"{plan.lead} There is no field.".strip()
    return Section(plan.title, lead, TableView(headings, tuple(rows), len(listed) - len(rows)) if rows else None)


def _amounts(audit: Audit, words: Words) -> Sequence[Heading]:
    """Name what is counted: outcomes; or, where these are amounts, their means."""
    if audit.schema.task == "regression":
        return Heading(words.observed, "mean outcome"), Heading(words.expected, "mean of the scores")
    many = words.outcomes
    return Heading(many, f"weight of the {words.rows} with the {words.outcome}"), Heading(
        f"{many} predicted", "sum of the scores"
    )


def _amount_cells(audit: Audit, one: Finding) -> Sequence[Cell]:
    means = (one.observed, one.expected)
    if audit.schema.task == "regression":
        return [number_cell(mean) for mean in means]
    return [_count_cell(mean * one.weight) for mean in means]


def _headings(audit: Audit, words: Words, scale: Scale) -> tuple[Heading, ...]:
    level = f"{100 * (1 - audit.settings.alpha):g}%"
    return (
        Heading("ratio", f"{words.observed} / {words.expected}"),
        Heading(f"{level} interval", f"of the ratio, not adjusted for the number of {words.segments}", "interval"),
        Heading(scale.text, "the same on a line, logarithmic", "forest"),
        Heading("state", "off: the adjusted p-value is at most alpha", "state"),
        Heading("adjusted p", f"p-value adjusted for the number of {words.segments}"),
    )


def _cells(audit: Audit, finding: Finding, scale: Scale) -> tuple[Cell, ...]:
    return (
        number_cell(finding.ratio),
        interval_cell(finding.ratio_low, finding.ratio_high),
        forest_cell(audit, finding, scale),
        state_cell(finding_state(audit, finding), finding.note),
        p_cell(finding.p_adjusted),
    )


def _count_cell(value: float) -> Cell:
    """Show a sum: a whole number as one, others with a decimal."""
    near = math.floor(value + 0.5)
    whole = abs(value - near) < max(1e-6, 1e-9 * abs(value))
    return number_cell(near, f"{near:,}") if whole else number_cell(value, f"{value:,.1f}")
