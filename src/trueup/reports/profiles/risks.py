"""Risks: calibration in the large, slope and intercept, in words."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from trueup.audits.text import number
from trueup.metrics.inference import normal_quantile
from trueup.reports.profiles.levels import interval_cell
from trueup.reports.view import Cell, Heading, Section, TableView, number_cell

if TYPE_CHECKING:
    from trueup.audits.result import Audit
    from trueup.reports.profiles.declared import SectionPlan

ROBUST = "Standard errors and their intervals are robust (sandwich; Huber 1967, White 1982)."
NO_LINE = "No line is best for these rows: they have one outcome, one score, or a score that parts the outcomes."


def draw_line(audit: Audit, plan: SectionPlan) -> Section:
    """Tell calibration in the large, slope and intercept, each with its interval and what that says."""
    level = float(plan.parameters.get("level", 1 - audit.settings.alpha))
    half = normal_quantile(1 - level)
    scores, whole = audit.portrait.scores, audit.overall
    rows = [_ratio_row(audit)] if level == 1 - audit.settings.alpha and math.isfinite(whole.ratio) else []
    for name, right in (("in the large", 0.0), ("slope", 1.0), ("intercept", 0.0)):
        value, error = scores.get(name, math.nan), scores.get(f"{name}_se", math.nan)
        if math.isfinite(value) and math.isfinite(error):
            low, high = value - half * error, value + half * error
            told = READINGS[name](value, high, -1 if high < right else 1 if low > right else 0)
            rows.append(_line_row(NAMES[name], value, error, (low, high), int(right), told))
    lead = f"{plan.lead} {ROBUST if math.isfinite(scores.get('slope', math.nan)) else NO_LINE}"
    headings = (
        Heading("measure", "", "name"), Heading("value"),
        Heading("standard error", "robust (sandwich): it holds for weights, and where the true curve is no such line"),
        Heading(f"{100 * level:g}% interval", "", "interval"), Heading("if right"), Heading("what it says", "", "interval"),
    )  # fmt: skip
    return Section(plan.title, lead.strip(), TableView(headings, tuple(rows), 0) if rows else None)


NAMES = {"in the large": "calibration in the large", "slope": "calibration slope", "intercept": "calibration intercept"}


def _ratio_row(audit: Audit) -> tuple[Cell, ...]:
    whole = audit.overall
    side = 1 if whole.ratio_low > 1 else -1 if whole.ratio_high < 1 else 0
    told = ("as much happened as was predicted, as far as chance lets us see", "more happened than was predicted",
            "less happened than was predicted")[side]  # fmt: skip
    return _line_row("observed/expected (O/E)", whole.ratio, math.nan, (whole.ratio_low, whole.ratio_high), 1, told)


def _line_row(name: str, value: float, error: float, ends: tuple[float, float], right: int, told: str) -> tuple[Cell, ...]:
    return (
        Cell(name, "name"), number_cell(value), number_cell(error, number(error, 2)), interval_cell(*ends),
        number_cell(right, str(right)), Cell(told, "interval"),
    )  # fmt: skip


def _large(value: float, _: float, side: int) -> str:
    if not side:
        return "no sign that risks are too low or too high as a whole"
    way, more = ("low", "multiplied") if side > 0 else ("high", "divided")
    return (
        f"risks are too {way} as a whole: their odds would have to be {more} by {number(math.exp(min(abs(value), 700.0)))}"
    )


def _slope(_: float, high: float, side: int) -> str:
    if high < 0:
        return "risks are upside down: where they are higher, less happens"
    return (
        "1 is inside the limits: no sign, along the line of log odds, that risks are too extreme or too moderate",
        "above 1: along the line of log odds the risks are more moderate than what happened; the curve shows where",
        "below 1: along the line of log odds the risks are more extreme than what happened; the curve shows where",
    )[side]


def _intercept(value: float, _: float, __: int) -> str:
    happens = 1 / (1 + math.exp(-min(max(value, -500.0), 500.0)))
    return f"by this line, where 50% is predicted, about {100 * happens:.3g}% happens; read it with the slope"


READINGS = {"in the large": _large, "slope": _slope, "intercept": _intercept}
