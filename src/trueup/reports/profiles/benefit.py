"""The decision curve: what acting on the scores wins over treating all or none, and whether that is more than noise."""

from __future__ import annotations

import html
import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trueup.audits.text import number
from trueup.decisions.gains import odds
from trueup.reports.drawing import marked
from trueup.reports.view import Cell, Heading, Section, TableView, number_cell

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trueup._types import BoolArray, FloatArray
    from trueup.audits.result import Audit
    from trueup.reports.profiles.declared import SectionPlan, Words


USUAL = (0.01, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5)
FEW = 0.005  # the curve ends where fewer than this share of the rows would be treated
SHORTEST = 0.1
HARM = 0.25  # how far below 0 the curve is drawn, in shares of the most
MANY_ERRORS = 1.96  # standard errors that a difference must exceed
MOST_PARTS = 3  # of the range, in a sentence
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 560, 300, 62, 12, 30, 40
GAP = 18  # below the drawing
LOOK = 'fill="currentColor" font-size="11"'


class Benefit(NamedTuple):
    """Net benefit at each threshold: of the model, and of treating all; treating none has 0.

    ``called`` and ``hits`` are the rows at or above the threshold and the outcomes among them, of ``called[0]`` in all.
    """

    threshold: FloatArray
    treated: FloatArray
    model: FloatArray
    all: FloatArray
    called: FloatArray
    hits: FloatArray


def net_benefit(audit: Audit) -> Benefit:
    """Give the net benefit at hundredths from 0 to 0.99 (Vickers & Elkin 2006): tp - fp t / (1 - t), a row."""
    called = audit.portrait.called
    assert called is not None  # outcomes happen or do not: made sure of where sections are drawn
    t = called.threshold[:-1]
    total, events = called.rows[0], called.positives[0]
    treated, hits = called.rows[:-1] / total, called.positives[:-1] / total
    rate = events / total
    return Benefit(
        t, treated, hits - (treated - hits) * odds(t), rate - (1 - rate) * odds(t), called.rows[:-1], called.positives[:-1]
    )


def draw_decision(audit: Audit, words: Words, plan: SectionPlan) -> Section:
    """Draw the decision curve, and write it down at some thresholds."""
    found, weighed = net_benefit(audit), audit.schema.weight is not None
    end = plan.parameters.get("highest") or _end(found)
    wanted = plan.parameters.get("thresholds", USUAL)
    at = [int(np.argmin(np.abs(found.threshold - t))) for t in wanted]
    each = f"net benefit per 1,000 {words.rows}"
    headings = (
        Heading("threshold", "", "name"), Heading("treated", f"share of the {words.rows} at or above the threshold"),
        Heading("model", each), Heading("treat all", each), Heading("treat none", each),
        Heading("best", "what exceeds both others by more than their noise, at this threshold alone", "interval"),
    )  # fmt: skip
    rows = tuple(_row(found, k, weighed=weighed) for k in dict.fromkeys(at))
    said = (
        f"Figures in the table are net true positives per 1,000 {words.rows}. {_below(found, end)} "
        f"{UNTOLD if weighed else BEST.format(words.rows)}"
    )
    return Section(plan.title, f"{plan.lead} {said}".strip(), TableView(headings, rows, 0), _svg(found, end, each))


BEST = (
    f"Best is only what exceeds both others by more than {MANY_ERRORS} standard errors of the difference, on the same {{}}."
)
UNTOLD = "Rows are weighted, so that the noise of the differences is not known here: none is called best."


# What is best


class Lead(NamedTuple):
    """By how much one way exceeds another, a row, and the standard error of that."""

    value: float
    error: float

    @property
    def clear(self) -> bool:
        """Whether it is more than noise."""
        return self.value > MANY_ERRORS * self.error


def lead_of(rows: float, events: float, total: float, cost: float) -> Lead:
    """Say what treating some rows wins over not treating them: the mean of y - (1 - y) cost over them, 0 elsewhere.

    Both ways treat the other rows alike, so that the difference is one of pairs and its error that of a mean. Of outcomes
    between 0 and 1 the error is at most this.

    Examples
    --------
    >>> lead_of(rows=4, events=2, total=10, cost=0.25).value  # (2 - 2 / 4) / 10
    0.15
    """
    won = (events - (rows - events) * cost) / total
    squares = (events + (rows - events) * cost**2) / total
    return Lead(won, math.sqrt(max(squares - won**2, 0.0) / total))


def leads(found: Benefit, at: int) -> dict[tuple[str, str], Lead]:
    """Compare the three ways at a threshold, two by two."""
    total, events = float(found.called[0]), float(found.hits[0])
    rows, hits, cost = float(found.called[at]), float(found.hits[at]), float(odds(found.threshold[at]))
    pairs = {
        ("model", "treat none"): lead_of(rows, hits, total, cost),
        ("treat all", "model"): lead_of(total - rows, events - hits, total, cost),
        ("treat all", "treat none"): lead_of(total, events, total, cost),
    }
    return pairs | {(other, one): Lead(-lead.value, lead.error) for (one, other), lead in pairs.items()}


def best(found: Benefit, at: int) -> str:
    """Name the way that clearly exceeds the others; a model that treats all, or none, is no other way than that."""
    compared = leads(found, at)
    same = {0.0: "treat none", float(found.called[0]): "treat all"}.get(float(found.called[at]))
    ways = ["treat none", "treat all", *([] if same else ["model"])]
    for one in ways:
        if all(compared[one, other].clear for other in ways if other != one):
            return one
    return "no clear winner"


def _row(found: Benefit, at: int, *, weighed: bool) -> tuple[Cell, ...]:
    model, every, t = 1000 * float(found.model[at]), 1000 * float(found.all[at]), float(found.threshold[at])
    told = "" if weighed else best(found, at)
    return (
        Cell(f"{t:.2f}", "name", f"{t:.2f}", value=round(t, 2)),
        number_cell(float(found.treated[at]), f"{100 * found.treated[at]:.1f}%"),
        number_cell(model, _per_mille(model)), number_cell(every, _per_mille(every)), number_cell(0, "0"),
        Cell(told, "interval", title="" if weighed else _margins(found, at)),
    )  # fmt: skip


def _margins(found: Benefit, at: int) -> str:
    """Write what the model wins over the others, with its noise."""
    compared = {other: leads(found, at)["model", other] for other in ("treat all", "treat none")}
    return "; ".join(
        f"model - {other}: {_per_mille(1000 * lead.value)} ± {_per_mille(1000 * MANY_ERRORS * lead.error)}"
        for other, lead in compared.items()
    )


def _per_mille(value: float) -> str:
    return f"{round(value, 1) + 0.0:,.1f}" if abs(value) < 1e6 else number(value)  # + 0.0: nought has no sign


# Where the model is of no use


def _below(found: Benefit, end: float) -> str:
    """Say where, of the range that is drawn, the model lies below treating none or all."""
    seen = (found.threshold > 0) & (found.threshold <= end + 1e-12)
    t, model = found.threshold[seen], found.model[seen]
    parts = [
        f"below {name} {told}"
        for name, other in (("treating none", 0.0 * model), ("treating all", found.all[seen]))
        if (told := _parts(t, model < other - 1e-12))
    ]
    between = f"In the range shown, {t[0]:.2f} to {t[-1]:.2f}," if len(t) else "In the range shown"
    if not parts:
        return f"{between} the model lies nowhere below treating none or all."
    return f"{between} the model lies {', and '.join(parts)}, noise aside."


def _parts(t: FloatArray, inside: BoolArray) -> str:
    """Write the parts of a range.

    Examples
    --------
    >>> _parts(np.array([0.1, 0.2, 0.3, 0.4, 0.5]), np.array([True, True, False, True, False]))
    'up to 0.20 and at 0.40'
    """
    ends = np.flatnonzero(np.diff(np.concatenate([[0], inside.astype(int), [0]]))).tolist()
    told = [_part(t, first, stop - 1) for first, stop in zip(ends[::2], ends[1::2], strict=True)]
    more = len(told) - MOST_PARTS
    told = [*told[:MOST_PARTS], *([f"in {more:,} more places"] if more > 0 else [])]
    return " and ".join([part for part in (", ".join(told[:-1]), *told[-1:]) if part])


def _part(t: FloatArray, first: int, last: int) -> str:
    if first == 0 and last == len(t) - 1:
        return "throughout"
    if first == last and last < len(t) - 1:
        return f"at {t[first]:.2f}"
    if last == len(t) - 1:
        return f"from {t[first]:.2f} on"
    return f"up to {t[last]:.2f}" if first == 0 else f"from {t[first]:.2f} to {t[last]:.2f}"


# The drawing


def _svg(found: Benefit, end: float, each: str) -> str:
    """Draw both curves and the line of treating none."""
    seen = found.threshold <= end + 1e-12
    t, model, every = found.threshold[seen], 1000 * found.model[seen], 1000 * found.all[seen]
    most = max(float(model.max()), float(every.max()))
    most = most if most > 0 else 1.0  # nothing happened: there is nothing to win
    across = marked(0.0, max(end, 0.01), 6)
    up = marked(-HARM * most, 1.06 * most, 8)

    def x(value: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * across.place(value), 1)

    def y(value: float) -> float:
        return round(TOP + (HEIGHT - TOP - BOTTOM) * (1 - up.place(value)), 1)

    def lines(values: FloatArray, look: str) -> str:
        drawn = (" ".join(f"{x(a)},{y(b)}" for a, b in piece) for piece in clipped(t, values, up.low))
        return "".join(f'<polyline {look} points="{points}"/>' for points in drawn)

    floor = HEIGHT - BOTTOM
    parts = [
        f'<svg class="curve large" viewBox="0 0 {WIDTH} {HEIGHT + GAP}" role="img" fill="none" stroke="none">',
        f"<title>Decision curve: {html.escape(each)} of the model, of treating all and none, by threshold</title>",
        *(f'<line class="grid" stroke="#ddd" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(v)}" y2="{y(v)}"/>'
          f'<text {LOOK} x="{LEFT - 6}" y="{y(v) + 3.5}" text-anchor="end">{up.text(v)}</text>'
          for v in up.ticks),
        *(f'<text {LOOK} x="{x(v)}" y="{floor + 15}" text-anchor="middle">{across.text(v)}</text>' for v in across.ticks),
        f'<line stroke="currentColor" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(0.0)}" y2="{y(0.0)}"/>',
        lines(every, 'class="ideal" stroke="currentColor" stroke-dasharray="4 4"'),
        lines(model, 'class="path" stroke="currentColor" stroke-width="2"'),
        _words(floor, each),
        "</svg>",
    ]  # fmt: skip
    return "".join(parts)


def clipped(t: FloatArray, values: FloatArray, floor: float) -> list[list[tuple[float, float]]]:
    """Cut a line where it leaves the picture, and where it comes back: the pieces that lie inside.

    Examples
    --------
    >>> clipped(np.array([0.0, 1.0, 2.0, 3.0]), np.array([4.0, -4.0, -4.0, 4.0]), 0.0)
    [[(0.0, 4.0), (0.5, 0.0)], [(2.5, 0.0), (3.0, 4.0)]]
    """
    points = list(zip(t.tolist(), values.tolist(), strict=True))
    pieces: list[list[tuple[float, float]]] = [[]]
    before = None
    for point in points:
        if before is not None and (point[1] < floor) != (before[1] < floor):
            share = (floor - before[1]) / (point[1] - before[1])
            crossing = (before[0] + share * (point[0] - before[0]), floor)
            pieces += [[]] if before[1] < floor and pieces[-1] else []
            pieces[-1].append(crossing)
        if point[1] >= floor:
            pieces[-1].append(point)
        before = point
    return [piece for piece in pieces if piece]


def _words(floor: float, each: str) -> str:
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
        text.format("middle", f'transform="translate(12 {side}) rotate(-90)"', html.escape(each)),
        *(f'<line {look} x1="{at}" x2="{at + 24}" y1="12" y2="12"/>' + text.format("start", f'x="{at + 30}" y="16"', name)
          for at, look, name in lines),
    ))  # fmt: skip


def _end(found: Benefit) -> float:
    """Say up to where the curve is drawn: while more than a few rows are treated."""
    some = np.flatnonzero(found.treated >= FEW)
    return max(float(found.threshold[some[-1]]) if len(some) else 0.0, SHORTEST)
