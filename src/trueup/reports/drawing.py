"""Where the marks of a drawing go: values become positions, templates draw them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trueup.audits.text import number

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trueup._types import FloatArray
    from trueup.metrics.curves import ReliabilityCurve
    from trueup.reports.profiles import Words

LEFT, RIGHT, TOP, BOTTOM = 46, 10, 8, 36
LARGE, SMALL = 440, 196
WIDER = 16  # more room at the left of a large curve: on a phone its texts are larger
LONGEST_AXIS = 16  # letters beside an axis


@dataclass(frozen=True)
class Range:
    """What both axes of a reliability curve show, from ``low`` to ``high``, and where they are marked."""

    low: float
    high: float
    ticks: tuple[float, ...]
    decimals: int

    def place(self, value: float) -> float:
        """Give the share of the way from low to high, held to [0, 1]."""
        return min(max((value - self.low) / (self.high - self.low), 0.0), 1.0)

    def text(self, tick: float) -> str:
        """Write a mark with the decimals that all marks share; thousands, where it is large, as 20k.

        Examples
        --------
        >>> Range(0.0, 60000.0, (), 0).text(20000.0), Range(0.0, 1.0, (), 1).text(0.2)
        ('20k', '0.2')
        """
        if 1e4 <= max(abs(self.low), abs(self.high)) < 1e7 and tick % 100 == 0:
            return f"{tick / 1000:g}k" if tick else "0"
        return f"{tick:.{self.decimals}f}" if self.decimals <= 6 and abs(tick) < 1e7 else number(tick, 2)


@dataclass(frozen=True)
class Tick:
    """A mark on an axis."""

    at: float
    text: str


@dataclass(frozen=True)
class Point:
    """One bin: its mark, its interval bar, and what it says when pointed at."""

    x: float
    y: float
    low: float
    high: float
    text: str


@dataclass(frozen=True)
class Bar:
    """One cell of a histogram, and what it says when pointed at; ``happened`` is the part of it with the outcome."""

    x: float
    y: float
    width: float
    height: float
    happened: float
    text: str


@dataclass(frozen=True)
class Plot:
    """A reliability curve in the coordinates of its drawing.

    ``band`` goes around the limits of a calibrated score; ``bars`` are the scores beneath; their foot is ``foot``;
    ``beyond`` says how many of them the axis does not show,
    and ``what`` they count.
    """

    width: float
    height: float
    left: float
    top: float
    side: float
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    points: tuple[Point, ...]
    large: bool
    foot: float
    band: str = ""
    bars: tuple[Bar, ...] = ()
    beyond: str = ""
    what: str = "rows"

    @property
    def line(self) -> str:
        """The points joined, as an SVG polyline wants them."""
        return " ".join(f"{point.x},{point.y}" for point in self.points)


def axes(words: Words) -> tuple[str, str]:
    """Name the axes, observed and predicted, in the words of a trade where they are short.

    Examples
    --------
    >>> from trueup.reports.profiles import Words
    >>> axes(Words()), axes(Words(observed="default rate", expected="mean PD"))
    (('observed', 'predicted'), ('default rate', 'mean PD'))
    """
    if words.expected == "expected" or max(len(words.observed), len(words.expected)) > LONGEST_AXIS:
        return "observed", "predicted"
    return words.observed, words.expected


def common_range(curves: Iterable[ReliabilityCurve | None], *, probabilities: bool, marks: int = 5) -> Range:
    """Choose a range that shows all points; for probabilities it begins at 0 and ends at 1 at the latest.

    Interval bars are shown whole as far as they do not squeeze the points: a bar that leaves the range is cut there.

    Examples
    --------
    >>> common_range([], probabilities=True)
    Range(low=0.0, high=1.0, ticks=(0.0, 0.2, 0.4, 0.6, 0.8, 1.0), decimals=1)
    """
    known = [curve for curve in curves if curve is not None]
    points = _finite([values for curve in known for values in (curve.predicted, curve.observed)])
    bars = _finite([values for curve in known for values in (curve.low, curve.high)])
    if not len(points):
        return marked(0.0, 1.0, marks)
    low, high = float(points.min()), float(points.max())
    if probabilities:
        reach = min(float(bars.max(initial=high)), 1.35 * high)
        return marked(0.0, min(1.04 * max(high, reach), 1.0) or 1.0, marks)
    room = 0.35 * (high - low)
    low, high = max(float(bars.min(initial=low)), low - room), min(float(bars.max(initial=high)), high + room)
    room = 0.04 * (high - low)
    return marked(low - room, high + room, marks)


def _finite(parts: list[FloatArray]) -> FloatArray:
    values = np.concatenate(parts) if parts else np.empty(0)
    found: FloatArray = values[np.isfinite(values)]
    return found


def marked(low: float, high: float, marks: int) -> Range:
    """Mark a range at whole steps of 1, 2 or 5 times a power of ten, ``marks`` of them or a few less."""
    wide = high - low
    if not math.isfinite(wide) or not wide > 1e-9 * max(abs(low), abs(high), 1e-200):
        # One value, or a width that cannot be told from none: show the value in the middle.
        middle = low if abs(low) < 1e300 else 0.0
        half = max(abs(middle) / 2, 0.5)
        low, high, wide = middle - half, middle + half, 2 * half
    size = 10.0 ** math.floor(math.log10(wide / marks))
    step = next(size * times for times in (1, 2, 5, 10) if size * times * marks >= wide * 0.999)
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return Range(low, high, tuple(round(at * step, min(decimals, 300)) for at in range(first, last + 1)), decimals)


def plot(curve: ReliabilityCurve, shown: Range, *, large: bool = False) -> Plot:
    """Place a reliability curve on a square; bins that are not finite are left out."""
    side, left = (LARGE, LEFT + WIDER) if large else (SMALL, LEFT)

    def across(value: float) -> float:
        return round(left + side * shown.place(value), 1)

    def down(value: float) -> float:
        return round(TOP + side * (1.0 - shown.place(value)), 1)

    points = []
    for x, y, low, high, rows in zip(curve.predicted, curve.observed, curve.low, curve.high, curve.rows, strict=True):
        if not (math.isfinite(x) and math.isfinite(y)):
            continue
        low, high = (end if math.isfinite(end) else y for end in (low, high))
        text = f"predicted {number(x)}, observed {number(y)} ({number(low)} to {number(high)}), {int(rows):,} rows"
        points.append(Point(across(x), down(y), down(low), down(high), text))
    return Plot(
        left + side + RIGHT, TOP + side + BOTTOM, left, TOP, side,
        tuple(Tick(across(tick), shown.text(tick)) for tick in shown.ticks),
        tuple(Tick(down(tick), shown.text(tick)) for tick in shown.ticks), tuple(points), large, TOP + side,
    )  # fmt: skip


@dataclass(frozen=True)
class Scale:
    """How far a line of ratios reaches, from 1 / ``widest`` to ``widest``, and how its ends are written."""

    widest: float
    text: str


SCALES = tuple(
    Scale(widest, f"{low} – 1 – {widest:g}")
    for low, widest in (("0.91", 1.1), ("0.8", 1.25), ("⅔", 1.5), ("½", 2.0), ("¼", 4.0))
)


def ratio_scale(ratios: Iterable[float], wanted: Iterable[float] = ()) -> Scale:
    """Choose the narrowest scale that shows nine of ten ratios, and every one that is wanted as far as any scale can.

    Examples
    --------
    >>> ratio_scale([1.01, 1.02, 0.97]).text, ratio_scale([1.01, 1.02], wanted=[1.7]).text, ratio_scale([]).text
    ('0.91 – 1 – 1.1', '½ – 1 – 2', '¼ – 1 – 4')
    """
    far, must = (
        [abs(math.log(ratio)) for ratio in some if math.isfinite(ratio) and ratio > 0] for some in (ratios, wanted)
    )
    if not far:
        return SCALES[-1]
    reach = max([float(np.quantile(far, 0.9)), *must])
    return next((scale for scale in SCALES if math.log(scale.widest) >= reach), SCALES[-1])


@dataclass(frozen=True)
class Forest:
    """A ratio and its interval on a logarithmic scale, in hundredths of the width; 1 is at 50.

    ``was`` is where the ratio was before.
    """

    at: float
    low: float
    high: float
    beyond_low: bool
    beyond_high: bool
    was: float | None = None


def forest(ratio: float, low: float, high: float, was: float = math.nan, *, widest: float) -> Forest | None:
    """Place a ratio and its interval on a scale from 1 / ``widest`` to ``widest``; none where there is no ratio to show.

    Examples
    --------
    >>> forest(1.0, 0.5, 8.0, widest=4.0)
    Forest(at=50.0, low=25.0, high=100.0, beyond_low=False, beyond_high=True, was=None)
    >>> forest(float("nan"), 0.5, 2.0, widest=4.0)
    """
    if any(math.isnan(value) or value < 0 for value in (ratio, low, high)):
        return None
    at, start, end = (_hundredths(value, widest) for value in (ratio, low, high))
    moved = _hundredths(was, widest) if was >= 0 else None
    return Forest(at, start, end, low < 1 / widest, high > widest, moved)


def _hundredths(ratio: float, widest: float) -> float:
    held = min(max(ratio, 1 / widest), widest)
    return round(50.0 * (1.0 + math.log(held) / math.log(widest)), 1)
