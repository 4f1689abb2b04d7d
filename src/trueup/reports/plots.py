"""Geometry of the SVG plots of a page: values become coordinates here, the templates draw them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from trueup.audits.text import number
from trueup.reports.text import count_text, interval_text, summary_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trueup._types import FloatArray
    from trueup.audits.result import Audit, Finding
    from trueup.audits.summary import AuditSummary, Histogram
    from trueup.metrics.reliability import ReliabilityCurve
    from trueup.reports.profiles.profile import Vocabulary

# Reliability curves: margins and side lengths in SVG units.
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 8, 36
LARGE_SIDE, SMALL_SIDE = 440, 196
LARGE_EXTRA_LEFT = 16  # labels are larger on a phone
HISTOGRAM_HEIGHT, HISTOGRAM_GAP = 76, 10
MAX_AXIS_LABEL = 16  # characters
# Cumulative differences.
PATH_WIDTH, PATH_HEIGHT = 430, 260
PATH_LEFT, PATH_RIGHT, PATH_TOP, PATH_BOTTOM = 66, 18, 8, 38
PATH_BAND = 2.0  # standard errors


@dataclass(frozen=True)
class Axis:
    """Limits and ticks of an axis; both axes of a reliability curve share one."""

    low: float
    high: float
    ticks: tuple[float, ...]
    decimals: int

    def position(self, value: float) -> float:
        """Return the position of a value as a fraction of the axis, clipped to [0, 1]."""
        return min(max((value - self.low) / (self.high - self.low), 0.0), 1.0)

    def label(self, tick: float) -> str:
        """Return the label of a tick, with thousands as 20k on axes that reach 10,000.

        Examples
        --------
        >>> Axis(0.0, 60000.0, (), 0).label(20000.0), Axis(0.0, 1.0, (), 1).label(0.2)
        ('20k', '0.2')
        """
        if 1e4 <= max(abs(self.low), abs(self.high)) < 1e7 and tick % 100 == 0:
            return f"{tick / 1000:g}k" if tick else "0"
        return f"{tick:.{self.decimals}f}" if self.decimals <= 6 and abs(tick) < 1e7 else number(tick, 2)


@dataclass(frozen=True)
class Tick:
    """A tick: its coordinate along the axis, and its label."""

    position: float
    text: str


@dataclass(frozen=True)
class BinMark:
    """A bin of a reliability curve: its marker, the ends of its interval, and its tooltip."""

    x: float
    y: float
    low: float
    high: float
    text: str


@dataclass(frozen=True)
class HistogramBar:
    """A bar of the score histogram, and its tooltip."""

    x: float
    y: float
    width: float
    height: float
    text: str


@dataclass(frozen=True)
class ReliabilityPlot:
    """A reliability curve in SVG coordinates.

    ``band`` is the polygon of the consistency band; ``bars`` is the histogram of the scores below the curve, in ``unit``,
    with its foot at ``baseline``; ``outside`` states what share of the scores lies outside the axis.
    """

    width: float
    height: float
    left: float
    top: float
    side: float
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    points: tuple[BinMark, ...]
    large: bool
    baseline: float
    band: str = ""
    bars: tuple[HistogramBar, ...] = ()
    outside: str = ""
    unit: str = "rows"

    @property
    def line(self) -> str:
        """The points of the curve as an SVG polyline."""
        return _polyline((point.x, point.y) for point in self.points)


def _polyline(points: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x},{y}" for x, y in points)


def axis_labels(vocabulary: Vocabulary) -> tuple[str, str]:
    """Return the labels for observed and predicted, from the vocabulary unless its terms are too long.

    Examples
    --------
    >>> from trueup.reports.profiles.profile import Vocabulary
    >>> axis_labels(Vocabulary()), axis_labels(Vocabulary(observed="default rate", expected="mean PD"))
    (('observed', 'predicted'), ('default rate', 'mean PD'))
    """
    longest = max(len(vocabulary.observed), len(vocabulary.expected))
    if vocabulary.expected == "expected" or longest > MAX_AXIS_LABEL:
        return "observed", "predicted"
    return vocabulary.observed, vocabulary.expected


def curve_axis(curves: Iterable[ReliabilityCurve | None], *, probabilities: bool, ticks: int = 5) -> Axis:
    """Choose an axis that shows all points; for probabilities it starts at 0 and ends at 1 or before.

    Interval bars widen the axis only as far as they do not squeeze the points; longer bars are clipped.

    Examples
    --------
    >>> curve_axis([], probabilities=True)
    Axis(low=0.0, high=1.0, ticks=(0.0, 0.2, 0.4, 0.6, 0.8, 1.0), decimals=1)
    """
    known = [curve for curve in curves if curve is not None]
    points = _finite([values for curve in known for values in (curve.predicted, curve.observed)])
    ends = _finite([values for curve in known for values in (curve.low, curve.high)])
    if not len(points):
        return choose_axis(0.0, 1.0, ticks)
    low, high = float(points.min()), float(points.max())
    if probabilities:
        reach = min(float(ends.max(initial=high)), 1.35 * high)
        return choose_axis(0.0, min(1.04 * max(high, reach), 1.0) or 1.0, ticks)
    margin = 0.35 * (high - low)
    low, high = max(float(ends.min(initial=low)), low - margin), min(float(ends.max(initial=high)), high + margin)
    margin = 0.04 * (high - low)
    return choose_axis(low - margin, high + margin, ticks)


def _finite(parts: Sequence[FloatArray]) -> FloatArray:
    values = np.concatenate(parts) if parts else np.empty(0)
    return np.asarray(values[np.isfinite(values)], np.float64)


def choose_axis(low: float, high: float, ticks: int) -> Axis:
    """Return an axis with at most about ``ticks`` ticks, at multiples of 1, 2 or 5 times a power of ten."""
    width = high - low
    if not math.isfinite(width) or not width > 1e-9 * max(abs(low), abs(high), 1e-200):
        # A single value, up to rounding: show it in the middle.
        middle = low if abs(low) < 1e300 else 0.0
        half = max(abs(middle) / 2, 0.5)
        low, high, width = middle - half, middle + half, 2 * half
    size = 10.0 ** math.floor(math.log10(width / ticks))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor * ticks >= width * 0.999)
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return Axis(low, high, tuple(round(k * step, min(decimals, 300)) for k in range(first, last + 1)), decimals)


def plot_curve(curve: ReliabilityCurve, axis: Axis, *, large: bool = False) -> ReliabilityPlot:
    """Place a reliability curve on a square; bins with non-finite means are left out."""
    side, left = (LARGE_SIDE, LEFT + LARGE_EXTRA_LEFT) if large else (SMALL_SIDE, LEFT)

    def x(value: float) -> float:
        return round(left + side * axis.position(value), 1)

    def y(value: float) -> float:
        return round(TOP + side * (1.0 - axis.position(value)), 1)

    points = []
    for predicted, observed, low, high, rows in zip(
        curve.predicted, curve.observed, curve.low, curve.high, curve.rows, strict=True
    ):
        if not (math.isfinite(predicted) and math.isfinite(observed)):
            continue
        low, high = (end if math.isfinite(end) else observed for end in (low, high))
        text = (
            f"predicted {number(predicted)}, observed {number(observed)} ({interval_text(low, high)}), {int(rows):,} rows"
        )
        points.append(BinMark(x(predicted), y(observed), y(low), y(high), text))
    return ReliabilityPlot(
        left + side + RIGHT, TOP + side + BOTTOM, left, TOP, side,
        tuple(Tick(x(tick), axis.label(tick)) for tick in axis.ticks),
        tuple(Tick(y(tick), axis.label(tick)) for tick in axis.ticks), tuple(points), large, TOP + side,
    )  # fmt: skip


def plot_overall(
    finding: Finding, axis: Axis, summary: AuditSummary | None, vocabulary: Vocabulary
) -> ReliabilityPlot | None:
    """Place the overall reliability curve with its consistency band and the histogram of the scores."""
    if finding.curve is None or not len(finding.curve):
        return None
    plot = plot_curve(finding.curve, axis, large=True)
    if not plot.points or summary is None:
        return plot if plot.points else None
    unit = vocabulary.rows if finding.weight == finding.n else "weights"
    bars = _histogram_bars(summary.histogram, axis, plot, unit)
    plot = replace(plot, band=_band(finding.curve, summary, axis, plot), bars=bars, unit=unit)
    if not bars:
        return plot
    extra = HISTOGRAM_GAP + HISTOGRAM_HEIGHT
    outside = _outside(summary.histogram, axis, unit)
    return replace(plot, height=plot.height + extra, baseline=plot.baseline + extra, outside=outside)


def _band(curve: ReliabilityCurve, summary: AuditSummary, axis: Axis, plot: ReliabilityPlot) -> str:
    if len(summary.low) != len(curve):
        return ""
    known = np.isfinite(curve.predicted) & np.isfinite(summary.low) & np.isfinite(summary.high)
    x = [plot.left + plot.side * axis.position(value) for value in curve.predicted[known]]
    low, high = (
        [plot.top + plot.side * (1 - axis.position(value)) for value in limit[known]]
        for limit in (summary.low, summary.high)
    )
    outline = [*zip(x, high, strict=True), *reversed([*zip(x, low, strict=True)])]
    return " ".join(f"{a:.1f},{b:.1f}" for a, b in outline)


def _histogram_bars(histogram: Histogram, axis: Axis, plot: ReliabilityPlot, unit: str) -> tuple[HistogramBar, ...]:
    inside = (histogram.edges[1:] > axis.low) & (histogram.edges[:-1] < axis.high) & (histogram.weight > 0)
    largest = float(histogram.weight[inside].max(initial=0.0))
    baseline = plot.top + plot.side + HISTOGRAM_GAP + HISTOGRAM_HEIGHT
    bars = []
    for index in np.flatnonzero(inside).tolist():
        edges = histogram.edges[index : index + 2]
        start, end = (plot.left + plot.side * axis.position(float(edge)) for edge in edges)
        weight = float(histogram.weight[index])
        height = max(HISTOGRAM_HEIGHT * weight / largest, 0.6)
        count = f"weight {count_text(weight)}" if unit == "weights" else f"{count_text(weight)} {unit}"
        bars.append(
            HistogramBar(
                round(start, 1), round(baseline - height, 1), round(max(end - start - 1, 1.0), 1), round(height, 1),
                f"scores {interval_text(*edges)}: {count}",
            )
        )  # fmt: skip
    return tuple(bars)


def _outside(histogram: Histogram, axis: Axis, unit: str) -> str:
    outside = (histogram.edges[1:] <= axis.low) | (histogram.edges[:-1] >= axis.high)
    share = float(histogram.weight[outside].sum() / histogram.weight.sum())
    return f"{number(100 * share, 2)}% of the {unit} have scores outside this axis." if share > 0 else ""


@dataclass(frozen=True)
class PathPlot:
    """Cumulative differences in SVG coordinates; ``low`` and ``high`` are the lowest and the highest point."""

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
    x_label: str


def plot_path(audit: Audit, vocabulary: Vocabulary) -> PathPlot | None:
    """Place the cumulative sum of outcome minus prediction in order of score, with a band of two standard errors."""
    summary = summary_of(audit)
    if summary is None:
        return None
    share, value, noise = (np.asarray(part, np.float64) for part in summary.path)
    limit = PATH_BAND * noise
    if len(share) < 2 or not (np.isfinite(value).all() and np.isfinite(limit).all()):
        return None
    bottom, top = min(value.min(), -limit.max()), max(value.max(), limit.max())
    margin = 0.06 * (top - bottom)
    x_axis, y_axis = choose_axis(0.0, 1.0, 5), choose_axis(bottom - margin, top + margin, 6)

    def place(x: float, y: float) -> tuple[float, float]:
        return (
            round(PATH_LEFT + PATH_WIDTH * x_axis.position(x), 1),
            round(PATH_TOP + PATH_HEIGHT * (1 - y_axis.position(y)), 1),
        )

    band = [*zip(share, limit, strict=True), *zip(share[::-1], -limit[::-1], strict=True)]
    unit = vocabulary.rows if audit.schema.weight is None else "weight"
    lowest, highest = int(np.argmin(value)), int(np.argmax(value))
    return PathPlot(
        PATH_LEFT + PATH_WIDTH + PATH_RIGHT, PATH_TOP + PATH_HEIGHT + PATH_BOTTOM,
        PATH_LEFT, PATH_LEFT + PATH_WIDTH, PATH_TOP, PATH_TOP + PATH_HEIGHT, place(0.0, 0.0)[1],
        _polyline(place(*point) for point in zip(share, value, strict=True)), _polyline(place(*point) for point in band),
        place(share[lowest], value[lowest]), place(share[highest], value[highest]),
        tuple(Tick(place(tick, 0)[0], f"{100 * tick:.0f}%") for tick in x_axis.ticks),
        tuple(Tick(place(0, tick)[1], y_axis.label(tick)) for tick in y_axis.ticks), _path_caption(audit.overall),
        f"share of the {unit}, from the lowest score to the highest",
    )  # fmt: skip


def _path_caption(overall: Finding) -> str:
    if not overall.testable or math.isnan(overall.sigma):
        return f"range {number(overall.ecce)}"
    p = "p < 1e-16" if overall.p_value < 1e-16 else f"p = {number(overall.p_value, 2)}"
    return f"range {number(overall.ecce)}, {number(overall.sigma)} sigma, {p} (adjusted {number(overall.p_adjusted, 2)})"


@dataclass(frozen=True)
class RatioScale:
    """A logarithmic axis of ratios from 1 / ``limit`` to ``limit``, and the heading that states its ends."""

    limit: float
    text: str


RATIO_SCALES = tuple(
    RatioScale(limit, f"{low} – 1 – {limit:g}")
    for low, limit in (("0.91", 1.1), ("0.8", 1.25), ("⅔", 1.5), ("½", 2.0), ("¼", 4.0))
)


def ratio_scale(*audits: Audit) -> RatioScale:
    """Choose the narrowest scale that shows 90% of the ratios and, if any scale does, all miscalibrated segments."""
    distances: list[float] = []
    flagged: list[float] = []
    for audit in audits:
        for rank, ratio in enumerate(audit.columns["ratio"][: audit.tested].tolist()):
            if math.isfinite(ratio) and ratio > 0:
                distances.append(abs(math.log(ratio)))
                flagged += distances[-1:] if rank < audit.rejected else []
    if not distances:
        return RATIO_SCALES[-1]
    reach = max([float(np.quantile(distances, 0.9)), *flagged])
    return next((scale for scale in RATIO_SCALES if math.log(scale.limit) >= reach), RATIO_SCALES[-1])


@dataclass(frozen=True)
class RatioMark:
    """A ratio and its interval on a `RatioScale`, in percent of its width, 1 at 50; ``before`` is an earlier ratio."""

    ratio: float
    low: float
    high: float
    beyond_low: bool
    beyond_high: bool
    before: float | None = None


def ratio_mark(ratio: float, low: float, high: float, before: float = math.nan, *, limit: float) -> RatioMark | None:
    """Place a ratio and its interval on a scale from 1 / ``limit`` to ``limit``; None without a ratio.

    Examples
    --------
    >>> ratio_mark(1.0, 0.5, 8.0, limit=4.0)
    RatioMark(ratio=50.0, low=25.0, high=100.0, beyond_low=False, beyond_high=True, before=None)
    """
    if any(math.isnan(value) or value < 0 for value in (ratio, low, high)):
        return None

    def place(value: float) -> float:
        return round(50.0 * (1.0 + math.log(min(max(value, 1 / limit), limit)) / math.log(limit)), 1)

    earlier = place(before) if before >= 0 else None
    return RatioMark(place(ratio), place(low), place(high), low < 1 / limit, high > limit, earlier)
