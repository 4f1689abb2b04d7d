"""Risks: calibration in the large, slope and intercept in words, and the decision curve."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trueup.audits.text import number
from trueup.decisions.gains import odds
from trueup.metrics.inference import normal_quantile
from trueup.reports.drawing import marked
from trueup.reports.view import Cell, Heading, Section, TableView, number_cell

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from trueup.audits.result import Audit
    from trueup.reports.profiles.declared import SectionPlan

    Floats = NDArray[np.float64]

__all__ = ["Benefit", "draw_decision", "draw_line", "net_benefit"]

USUAL = (0.01, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5)
FEW = 0.005  # the curve ends where fewer than this share of the rows would be treated
SHORTEST = 0.1
HARM = 0.25  # how far below 0 the curve is drawn, in shares of the most
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 560, 300, 62, 12, 30, 40
LOOK = 'fill="currentColor" font-size="11"'
NO_LINE = "No line is best for these rows: they have one outcome, one score, or a score that parts the outcomes."


# The line


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
            rows.append(_line_row(NAMES[name], value, number(error, 2), (low, high), f"{right:g}", told))
    lead = plan.lead if math.isfinite(scores.get("slope", math.nan)) else f"{plan.lead} {NO_LINE}"
    headings = (
        Heading("measure", "", "name"), Heading("value"), Heading("standard error"),
        Heading(f"{100 * level:g}% interval", "", "interval"), Heading("if right"), Heading("what it says", "", "interval"),
    )  # fmt: skip
    return Section(plan.title, lead.strip(), TableView(headings, tuple(rows), 0) if rows else None)


NAMES = {"in the large": "calibration in the large", "slope": "calibration slope", "intercept": "calibration intercept"}


def _ratio_row(audit: Audit) -> tuple[Cell, ...]:
    whole = audit.overall
    side = 1 if whole.ratio_low > 1 else -1 if whole.ratio_high < 1 else 0
    told = ("as much happened as was predicted, as far as chance lets us see", "more happened than was predicted",
            "less happened than was predicted")[side]  # fmt: skip
    return _line_row("observed / expected (O/E)", whole.ratio, "", (whole.ratio_low, whole.ratio_high), "1", told)


def _line_row(name: str, value: float, error: str, ends: tuple[float, float], right: str, told: str) -> tuple[Cell, ...]:
    interval = f"{number(ends[0])} to {number(ends[1])}"
    cells = (Cell(name, "name"), number_cell(value), Cell(error), Cell(interval, "interval"), Cell(right))
    return (*cells, Cell(told, "interval"))


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
        "no sign that risks are too extreme or too moderate",
        "risks are too moderate: high ones too low, low ones too high",
        "risks are too extreme: high ones too high, low ones too low",
    )[side]


def _intercept(value: float, _: float, __: int) -> str:
    happens = 1 / (1 + math.exp(-min(max(value, -500.0), 500.0)))
    return f"where 50% is predicted, about {100 * happens:.3g}% happens; read it with the slope"


READINGS = {"in the large": _large, "slope": _slope, "intercept": _intercept}


# The decision curve


class Benefit(NamedTuple):
    """Net benefit at each threshold: of the model, and of treating all; treating none has 0."""

    threshold: Floats
    treated: Floats
    model: Floats
    all: Floats


def net_benefit(audit: Audit) -> Benefit:
    """Give the net benefit at hundredths from 0 to 0.99 (Vickers & Elkin 2006): tp - fp t / (1 - t), a row."""
    called = audit.portrait.called
    assert called is not None  # outcomes happen or do not: made sure of where sections are drawn
    t = called.threshold[:-1]
    total, events = called.rows[0], called.positives[0]
    treated, hits = called.rows[:-1] / total, called.positives[:-1] / total
    rate = events / total
    return Benefit(t, treated, hits - (treated - hits) * odds(t), rate - (1 - rate) * odds(t))


def draw_decision(audit: Audit, plan: SectionPlan) -> Section:
    """Draw the decision curve, and write it down at some thresholds."""
    found = net_benefit(audit)
    wanted = plan.parameters.get("thresholds", USUAL)
    at = [int(np.argmin(np.abs(found.threshold - t))) for t in wanted]
    headings = (
        Heading("threshold", "", "name"), Heading("treated", "share of the rows at or above the threshold"),
        Heading("model", "net benefit per 1,000 rows"), Heading("treat all", "net benefit per 1,000 rows"),
        Heading("treat none"), Heading("best", "", "interval"),
    )  # fmt: skip
    rows = tuple(_benefit_row(found, k) for k in dict.fromkeys(at))
    lead = f"{plan.lead} Figures in the table are net true positives per 1,000 rows.".strip()
    return Section(plan.title, lead, TableView(headings, rows, 0), _svg(found, plan.parameters.get("highest")))


def _benefit_row(found: Benefit, at: int) -> tuple[Cell, ...]:
    model, every = 1000 * float(found.model[at]), 1000 * float(found.all[at])
    best = max(model, every, 0.0)
    # Of equals the simplest is named: to do nothing is simpler than to treat all, which needs no model.
    said = "treat none" if best == 0 else "treat all" if every >= model * (1 - 1e-9) else "model"
    return (
        Cell(f"{found.threshold[at]:.2f}", "name", f"{found.threshold[at]:.2f}"),
        number_cell(float(found.treated[at]), f"{100 * found.treated[at]:.1f}%"),
        number_cell(model, _per_mille(model)), number_cell(every, _per_mille(every)), number_cell(0.0, "0"),
        Cell(said, "interval"),
    )  # fmt: skip


def _per_mille(value: float) -> str:
    return f"{round(value, 1) + 0.0:,.1f}" if abs(value) < 1e6 else number(value)  # + 0.0: nought has no sign


def _svg(found: Benefit, highest: float | None) -> str:
    """Draw both curves and the line of treating none; all texts are our own or numbers."""
    end = highest if highest is not None else _end(found)
    seen = found.threshold <= end + 1e-12
    t, model, every = found.threshold[seen], 1000 * found.model[seen], 1000 * found.all[seen]
    most = max(float(model.max()), float(every.max()), 1e-9)
    across = marked(0.0, max(end, 0.01), 6)
    up = marked(-HARM * most, 1.06 * most, 8)

    def x(value: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * across.place(value), 1)

    def y(value: float) -> float:
        return round(TOP + (HEIGHT - TOP - BOTTOM) * (1 - up.place(value)), 1)

    def line(values: Floats) -> str:
        # What lies below the picture is cut where it leaves it.
        ends = np.flatnonzero(values < up.low)
        upto = int(ends[0]) + 1 if len(ends) else len(values)
        return " ".join(f"{x(float(a))},{y(float(b))}" for a, b in zip(t[:upto], values[:upto], strict=True))

    floor = HEIGHT - BOTTOM
    parts = [
        f'<svg class="curve large" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" fill="none" stroke="none">',
        "<title>Decision curve: net benefit per 1,000 rows of the model, of treating all and none, by threshold</title>",
        *(f'<line class="grid" stroke="#ddd" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(v)}" y2="{y(v)}"/>'
          f'<text {LOOK} x="{LEFT - 6}" y="{y(v) + 3.5}" text-anchor="end">{up.text(v)}</text>'
          for v in up.ticks),
        *(f'<text {LOOK} x="{x(v)}" y="{floor + 15}" text-anchor="middle">{across.text(v)}</text>' for v in across.ticks),
        f'<line stroke="currentColor" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(0.0)}" y2="{y(0.0)}"/>',
        f'<polyline class="ideal" stroke="currentColor" stroke-dasharray="4 4" points="{line(every)}"/>',
        f'<polyline class="path" stroke="currentColor" stroke-width="2" points="{line(model)}"/>',
        _words(floor),
        "</svg>",
    ]  # fmt: skip
    return "".join(parts)


def _words(floor: float) -> str:
    """Name the axes and the three lines."""
    middle, side = (LEFT + WIDTH - RIGHT) / 2, (TOP + floor) / 2
    text = f'<text {LOOK} text-anchor="{{}}" {{}}>{{}}</text>'
    lines: Sequence[tuple[float, str, str]] = (
        (LEFT, 'class="path" stroke="currentColor" stroke-width="2"', "model"),
        (LEFT + 90, 'class="ideal" stroke="currentColor" stroke-dasharray="4 4"', "treat all"),
        (LEFT + 190, 'stroke="currentColor"', "treat none"),
    )
    return "".join((
        text.format("middle", f'x="{middle}" y="{floor + 33}"', "threshold to treat from"),
        text.format("middle", f'transform="translate(12 {side}) rotate(-90)"', "net benefit per 1,000 rows"),
        *(f'<line {look} x1="{at}" x2="{at + 24}" y1="12" y2="12"/>' + text.format("start", f'x="{at + 30}" y="16"', name)
          for at, look, name in lines),
    ))  # fmt: skip


def _end(found: Benefit) -> float:
    """Say up to where the curve is drawn: while more than a few rows are treated."""
    some = np.flatnonzero(found.treated >= FEW)
    return max(float(found.threshold[some[-1]]) if len(some) else 0.0, SHORTEST)
