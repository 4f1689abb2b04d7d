"""From a section that a profile asks for to what the page shows."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from trueup.audits.text import number
from trueup.errors import ArgumentError
from trueup.reports.measures import WORDS
from trueup.reports.profiles.benefit import draw_decision
from trueup.reports.profiles.declared import MEASURES
from trueup.reports.profiles.fields import draw_fields, draw_values
from trueup.reports.profiles.grades import draw_grades
from trueup.reports.profiles.levels import levels_of
from trueup.reports.profiles.risks import draw_line
from trueup.reports.view import Cell, Heading, Section, TableView, number_cell
from trueup.reports.whole import portrait_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from trueup.audits.result import Audit
    from trueup.reports.profiles.declared import Profile, SectionPlan, Words
    from trueup.reports.profiles.levels import Levels

# What the words of measures do not have.
MORE = {
    "miscalibration": ("miscalibration", "the part of the Brier score that wrong levels lose: a fix can win it back"),
    "discrimination": ("discrimination", "the part of the Brier score that telling rows apart wins"),
    "uncertainty": ("uncertainty", "the Brier score of always saying the mean"),
}
ONE_SCORE = {"grades", "line", "decision"}
OF_COLUMNS = {"grades", "fields", "values"}
OF_ROWS = {"scores", "line", "decision"}


def draw(audit: Audit, profile: Profile) -> tuple[Section, ...]:
    """Draw the sections of a profile."""
    levels = levels_of(audit) if any(plan.kind in OF_COLUMNS for plan in profile.sections) else {}
    return tuple(_draw(audit, profile.words, plan, levels) for plan in profile.sections)


def _draw(audit: Audit, words: Words, plan: SectionPlan, levels: Levels) -> Section:
    """Draw one section; where the outcomes are not such as it is made for, say so in its place."""
    drawers: dict[str, Callable[[], Section]] = {
        "grades": lambda: draw_grades(audit, words, plan, levels),
        "fields": lambda: draw_fields(audit, words, plan, levels),
        "values": lambda: draw_values(audit, words, plan, levels),
        "scores": lambda: _draw_scores(audit, words, plan),
        "line": lambda: draw_line(audit, plan), "decision": lambda: draw_decision(audit, words, plan),
    }  # fmt: skip
    if plan.kind not in drawers:
        raise ArgumentError(f"there is no section of kind {plan.kind!r}", hint=f"kinds are {', '.join(drawers)}")
    if plan.kind in ONE_SCORE and audit.schema.task != "binary":
        got = "amounts" if audit.schema.task == "regression" else "several classes"
        return Section(plan.title, f"This part is made for outcomes that happen or do not; these are {got}.")
    if plan.kind in OF_ROWS and portrait_of(audit) is None:
        return Section(plan.title, "This part is made from the rows, which this copy of the audit does not have.")
    return drawers[plan.kind]()


def _draw_scores(audit: Audit, words: Words, plan: SectionPlan) -> Section:
    """List measures of the whole; those that have no meaning for these outcomes are left out."""
    scores = audit.portrait.scores
    means = {"observed": (words.observed, "mean outcome"), "expected": (words.expected, "mean score")}
    meanings = {**WORDS, **MORE, **means}
    rows = tuple(
        (Cell(meanings[name][0], "name"), number_cell(scores[name], number(scores[name], 4)),
         Cell(meanings[name][1], "interval"))
        for name in plan.parameters.get("show", MEASURES)
        if math.isfinite(scores.get(name, math.nan))
    )  # fmt: skip
    headings = (Heading("measure", "", "name"), Heading("value"), Heading("what it says", "", "interval"))
    return Section(plan.title, plan.lead, TableView(headings, rows, 0))
