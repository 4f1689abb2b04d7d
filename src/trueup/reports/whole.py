"""The whole of an audit in drawings: its reliability with the scores beneath, and the path of its differences."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from trueup.audits.text import deviation, number
from trueup.reports.advice import USUAL
from trueup.reports.drawing import Bar, Range, Tick, marked, plot

if TYPE_CHECKING:
    from trueup.audits.portrait import Histogram, Portrait
    from trueup.audits.result import Audit, Finding
    from trueup.reports.drawing import Plot
    from trueup.reports.profiles import Words

BENEATH, GAP = 76, 10  # how high the histogram is, and how far below the curve
WIDE, HIGH = 430, 260
LEFT, RIGHT, TOP, BOTTOM = 66, 18, 8, 38
MANY_NOISES = 2.0


@dataclass(frozen=True)
class PathView:
    """Cumulative differences in the coordinates of their drawing; ``low`` and ``high`` are where the range ends."""

    width: float
    height: float
    left: float
    right: float
    top: float
    bottom: float
    zero: float
    line: str
    band: str
    low: tuple[float, float]
    high: tuple[float, float]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    caption: str
    across: str


def portrait_of(audit: Audit) -> Portrait | None:
    """Give the portrait of an audit; none where its rows are gone, as in a changed copy of an audit."""
    known = bool(audit.whole_rows)
    return audit.portrait if known else None


def draw_whole(finding: Finding, shown: Range, portrait: Portrait | None, words: Words = USUAL) -> Plot | None:
    """Draw the curve of the whole with the band in which a calibrated score would lie, and the scores beneath it."""
    if finding.curve is None or not len(finding.curve):
        return None
    drawn = plot(finding.curve, shown, large=True)
    if not drawn.points:
        return None
    if portrait is None:
        return drawn
    what = words.rows if finding.weight == finding.n else "weights"
    bars = _bars(portrait.histogram, shown, drawn, what)
    beyond = _beyond(portrait.histogram, shown, what) if bars else ""
    drawn = replace(drawn, band=_band(finding, portrait, shown, drawn), bars=bars, beyond=beyond, what=what)
    return replace(drawn, height=drawn.height + GAP + BENEATH, foot=drawn.foot + GAP + BENEATH) if bars else drawn


def _band(finding: Finding, portrait: Portrait, shown: Range, drawn: Plot) -> str:
    curve = finding.curve
    if curve is None or len(portrait.low) != len(curve):
        return ""
    fits = np.isfinite(curve.predicted) & np.isfinite(portrait.low) & np.isfinite(portrait.high)
    x = [drawn.left + drawn.side * shown.place(value) for value in curve.predicted[fits]]
    low, high = (
        [drawn.top + drawn.side * (1 - shown.place(value)) for value in limit[fits]]
        for limit in (portrait.low, portrait.high)
    )
    around = [*zip(x, high, strict=True), *reversed([*zip(x, low, strict=True)])]
    return " ".join(f"{a:.1f},{b:.1f}" for a, b in around)


def _bars(found: Histogram, shown: Range, drawn: Plot, what: str) -> tuple[Bar, ...]:
    """Place the cells that the axis shows; none where there is nothing to tell them apart by."""
    inside = (found.edges[1:] > shown.low) & (found.edges[:-1] < shown.high) & (found.weight > 0)
    most, base = float(found.weight[inside].max(initial=0.0)), drawn.top + drawn.side + GAP + BENEATH
    if not most > 0:
        return ()
    bars = []
    for at in np.flatnonzero(inside).tolist():
        start, end = (drawn.left + drawn.side * shown.place(float(edge)) for edge in found.edges[at : at + 2])
        weight, positives = float(found.weight[at]), float(found.positives[at])
        height = max(BENEATH * weight / most, 0.6)
        happened = BENEATH * min(max(positives / most, 0.0), weight / most)
        told = f"weight {_count(weight)}" if what == "weights" else f"{_count(weight)} {what}"
        text = f"scores {number(found.edges[at])} to {number(found.edges[at + 1])}: {told}"
        bars.append(
            Bar(
                round(start, 1), round(base - height, 1), round(max(end - start - 1, 1.0), 1), round(height, 1),
                round(happened, 1), text,
            )
        )  # fmt: skip
    return tuple(bars)


def _beyond(found: Histogram, shown: Range, what: str) -> str:
    """Say how much of the histogram lies beyond the axis, which ends where the points do."""
    outside = (found.edges[1:] <= shown.low) | (found.edges[:-1] >= shown.high)
    share = float(found.weight[outside].sum() / found.weight.sum())
    return f"{number(100 * share, 2)}% of the {what} have scores beyond this axis." if share > 0 else ""


def _count(weight: float) -> str:
    return f"{weight:,.0f}" if weight == round(weight) else number(weight)


def draw_path(audit: Audit, portrait: Portrait | None, words: Words = USUAL) -> PathView | None:
    """Draw the sum of outcome minus prediction, from the lowest score to the highest, with twice its noise."""
    if portrait is None:
        return None
    share, value, noise = (np.asarray(part, np.float64) for part in portrait.path)
    limit = MANY_NOISES * noise
    if len(share) < 2 or not (np.isfinite(value).all() and np.isfinite(limit).all()):
        return None
    room = 0.06 * (max(value.max(), limit.max()) - min(value.min(), -limit.max()))
    y = marked(min(value.min(), -limit.max()) - room, max(value.max(), limit.max()) + room, 6)
    x = marked(0.0, 1.0, 5)
    right, bottom = LEFT + WIDE, TOP + HIGH

    def at(across: float, up: float) -> tuple[float, float]:
        return round(LEFT + WIDE * x.place(across), 1), round(TOP + HIGH * (1 - y.place(up)), 1)

    around = [
        *(at(a, b) for a, b in zip(share, limit, strict=True)),
        *(at(a, -b) for a, b in zip(share[::-1], limit[::-1], strict=True)),
    ]
    what = words.rows if audit.schema.weight is None else "weight"
    lowest, highest = int(np.argmin(value)), int(np.argmax(value))
    return PathView(
        LEFT + WIDE + RIGHT, TOP + HIGH + BOTTOM, LEFT, right, TOP, bottom, at(0.0, 0.0)[1],
        _points([at(a, b) for a, b in zip(share, value, strict=True)]), _points(around),
        at(share[lowest], value[lowest]), at(share[highest], value[highest]),
        tuple(Tick(at(tick, 0)[0], f"{100 * tick:.0f}%") for tick in x.ticks),
        tuple(Tick(at(0, tick)[1], y.text(tick)) for tick in y.ticks), _told(audit.overall),
        f"share of the {what}, from the lowest score to the highest",
    )  # fmt: skip


def _points(places: list[tuple[float, float]]) -> str:
    return " ".join(f"{x},{y}" for x, y in places)


def _told(whole: Finding) -> str:
    """Say how wide the path swings, and how surprising that is."""
    if not whole.testable or math.isnan(whole.sigma):
        return f"range {number(whole.ecce)}"
    p = "p < 1e-16" if whole.p_value < 1e-16 else f"p = {number(whole.p_value, 2)}"
    sigma = deviation(whole.sigma, whole.sigma_bound)
    return f"range {number(whole.ecce)}, {sigma} sigma, {p} (adjusted {number(whole.p_adjusted, 2)})"
