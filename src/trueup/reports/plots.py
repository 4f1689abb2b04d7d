"""Geometry of the SVG plots of a page: values become coordinates here, the templates draw them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.audits.text import number
from trueup.reports.text import count_text, interval_text, summary_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import ArrayLike

    from trueup.audits.audit import Audit, Finding
    from trueup.audits.summary import AuditSummary
    from trueup.metrics.reliability import ReliabilityCurve
    from trueup.reports.profiles import Vocabulary

LARGE_SIDE, SMALL_SIDE = 440, 196  # of a reliability curve, in SVG units
HISTOGRAM_HEIGHT, HISTOGRAM_GAP = 76, 10
PATH_BAND = 2.0  # standard errors
MAX_AXIS_LABEL = 16  # characters


@dataclass(frozen=True)
class Axis:
    """Limits and ticks of an axis."""

    low: float
    high: float
    ticks: tuple[float, ...]
    decimals: int

    def position(self, value: float) -> float:
        """Return the position of a value as a fraction of the axis, clipped to [0, 1]."""
        return min(max((value - self.low) / (self.high - self.low), 0.0), 1.0)

    def label(self, tick: float) -> str:
        """Return the label of a tick, with thousands as 20k on axes that reach 10,000."""
        if 1e4 <= max(abs(self.low), abs(self.high)) < 1e7 and tick % 100 == 0:
            return f"{tick / 1000:g}k" if tick else "0"
        return f"{tick:.{self.decimals}f}" if self.decimals <= 6 and abs(tick) < 1e7 else number(tick, 2)


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


def curve_axis(curves: Iterable[ReliabilityCurve | None], *, probabilities: bool, ticks: int = 5) -> Axis:
    """Choose an axis that shows all points; for probabilities it starts at 0 and ends at 1 or before.

    Interval bars widen the axis only as far as they do not squeeze the points; longer bars are clipped.
    """
    known = [curve for curve in curves if curve is not None]
    points = np.array([value for curve in known for part in (curve.predicted, curve.observed) for value in part])
    ends = np.array([value for curve in known for part in (curve.low, curve.high) for value in part])
    points, ends = points[np.isfinite(points)], ends[np.isfinite(ends)]
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


def axis_labels(vocabulary: Vocabulary) -> tuple[str, str]:
    """Return the labels for observed and predicted, from the vocabulary unless its terms are too long."""
    longest = max(len(vocabulary.observed), len(vocabulary.expected))
    if vocabulary.expected == "expected" or longest > MAX_AXIS_LABEL:
        return "observed", "predicted"
    return vocabulary.observed, vocabulary.expected


@dataclass(frozen=True)
class Frame:
    """The plotting area of an SVG: two axes, and coordinates of values on them."""

    x_axis: Axis
    y_axis: Axis
    left: float
    top: float
    width: float
    height: float

    def x(self, value: float) -> float:
        """Return the horizontal coordinate of a value."""
        return round(self.left + self.width * self.x_axis.position(value), 1)

    def y(self, value: float) -> float:
        """Return the vertical coordinate of a value."""
        return round(self.top + self.height * (1.0 - self.y_axis.position(value)), 1)

    def points(self, x: ArrayLike, y: ArrayLike) -> str:
        """Return the points of a polyline or polygon, not clipped; non-finite ones are left out."""
        across = (np.ravel(x) - self.x_axis.low) / (self.x_axis.high - self.x_axis.low)
        up = (np.ravel(y) - self.y_axis.low) / (self.y_axis.high - self.y_axis.low)
        places = zip(self.left + self.width * across, self.top + self.height * (1 - up), strict=True)
        return " ".join(f"{a:.1f},{b:.1f}" for a, b in places if math.isfinite(a) and math.isfinite(b))


def plot_curve(
    finding: Finding, axis: Axis, vocabulary: Vocabulary, summary: AuditSummary | None = None, *, large: bool = False
) -> dict[str, Any] | None:
    """Place the reliability curve of a segment; with the summary of an audit, its band and histogram too.

    ``bins`` has per bin x, y, ends of the interval and tooltip; bins with non-finite means are left out, and without any
    other there is no plot. ``band`` is the polygon of the consistency band. ``bars`` is the histogram of the scores below
    the curve, in ``unit``, as x, y, width, height and tooltip; ``outside`` states what share of them the axis leaves out.
    """
    curve = finding.curve
    if curve is None:
        return None
    side = LARGE_SIDE if large else SMALL_SIDE
    frame = Frame(axis, axis, 62 if large else 46, 8, side, side)  # labels of a large curve are larger on a phone
    bins = []
    for predicted, observed, *ends, rows in zip(
        curve.predicted, curve.observed, curve.low, curve.high, curve.rows, strict=True
    ):
        if math.isfinite(predicted) and math.isfinite(observed):
            low, high = (end if math.isfinite(end) else observed for end in ends)
            means = f"predicted {number(predicted)}, observed {number(observed)} ({interval_text(low, high)})"
            text = f"{means}, {int(rows):,} rows"
            bins.append((frame.x(predicted), frame.y(observed), frame.y(low), frame.y(high), text))
    if not bins:
        return None
    line, baseline = frame.points(curve.predicted, curve.observed), frame.top + side
    plot = {"frame": frame, "line": line, "bins": bins, "large": large, "baseline": baseline, "band": "", "bars": ()}
    if summary is None:
        return plot
    if len(summary.low) == len(curve):
        limits = np.where(np.isfinite(summary.low) & np.isfinite(summary.high), [summary.low, summary.high], math.nan)
        plot["band"] = frame.points([curve.predicted, curve.predicted[::-1]], [limits[1], limits[0][::-1]])
    histogram, unit = summary.histogram, vocabulary.rows if finding.weight == finding.n else "weights"
    shown = (histogram.edges[1:] > axis.low) & (histogram.edges[:-1] < axis.high)
    if not (histogram.weight[shown] > 0).any():
        return plot
    largest, baseline = float(histogram.weight[shown].max()), baseline + HISTOGRAM_GAP + HISTOGRAM_HEIGHT
    bars = []
    for index in np.flatnonzero(shown & (histogram.weight > 0)).tolist():
        edges, weight = histogram.edges[index : index + 2], float(histogram.weight[index])
        start, end = map(frame.x, edges)
        height = max(HISTOGRAM_HEIGHT * weight / largest, 0.6)
        count = f"weight {count_text(weight)}" if unit == "weights" else f"{count_text(weight)} {unit}"
        text = f"scores {interval_text(*edges)}: {count}"
        bars.append((start, round(baseline - height, 1), round(max(end - start - 1, 1.0), 1), round(height, 1), text))
    share = float(histogram.weight[~shown].sum() / histogram.weight.sum())
    outside = f"{number(100 * share, 2)}% of the {unit} have scores outside this axis." if share > 0 else ""
    return plot | {"bars": bars, "baseline": baseline, "outside": outside, "unit": unit}


def plot_path(audit: Audit, vocabulary: Vocabulary) -> dict[str, Any] | None:
    """Place the cumulative sum of outcome minus prediction in order of score, with a band of two standard errors.

    ``low`` and ``high`` are the coordinates of the lowest and the highest point.
    """
    summary, overall = summary_of(audit), audit.overall
    if summary is None:
        return None
    share, value, noise = (np.asarray(part, np.float64) for part in summary.path)
    limit = PATH_BAND * noise
    if len(share) < 2 or not (np.isfinite(value).all() and np.isfinite(limit).all()):
        return None
    bottom, top = min(value.min(), -limit.max()), max(value.max(), limit.max())
    margin = 0.06 * (top - bottom)
    frame = Frame(choose_axis(0.0, 1.0, 5), choose_axis(bottom - margin, top + margin, 6), 66, 8, 430, 260)
    lowest, highest = ((frame.x(share[k]), frame.y(value[k])) for k in (np.argmin(value), np.argmax(value)))
    caption = f"range {number(overall.ecce)}"
    if overall.testable and not math.isnan(overall.sigma):
        p = "p < 1e-16" if overall.p_value < 1e-16 else f"p = {number(overall.p_value, 2)}"
        caption += f", {number(overall.sigma)} sigma, {p} (adjusted {number(overall.p_adjusted, 2)})"
    unit = vocabulary.rows if audit.schema.weight is None else "weight"
    return {
        "frame": frame,
        "line": frame.points(share, value),
        "band": frame.points([share, share[::-1]], [limit, -limit[::-1]]),
        "low": lowest,
        "high": highest,
        "caption": caption,
        "x_label": f"share of the {unit}, from the lowest score to the highest",
    }


@dataclass(frozen=True)
class RatioScale:
    """A logarithmic axis of ratios from 1 / ``limit`` to ``limit``, and the heading that states its ends."""

    limit: float
    text: str

    def position(self, ratio: float) -> float:
        """Return the position of a ratio in percent of the axis, clipped to its ends; 1 is at 50."""
        return round(50.0 * (1.0 + math.log(min(max(ratio, 1 / self.limit), self.limit)) / math.log(self.limit)), 1)


RATIO_SCALES = tuple(
    RatioScale(limit, f"{low} – 1 – {limit:g}")
    for low, limit in (("0.91", 1.1), ("0.8", 1.25), ("⅔", 1.5), ("½", 2.0), ("¼", 4.0))
)


def ratio_scale(*audits: Audit) -> RatioScale:
    """Choose the narrowest scale that shows 90% of the ratios and, if any scale does, all miscalibrated segments."""
    known = []
    for audit in audits:
        ratio = audit.columns["ratio"][: audit.tested]
        valid = np.isfinite(ratio) & (ratio > 0)
        known.append((np.abs(np.log(ratio[valid])), np.flatnonzero(valid) < audit.rejected))
    distances, flagged = (np.concatenate(parts) for parts in zip(*known, strict=True))
    if not len(distances):
        return RATIO_SCALES[-1]
    reach = max(float(np.quantile(distances, 0.9)), float(distances[flagged].max(initial=0.0)))
    return next((scale for scale in RATIO_SCALES if math.log(scale.limit) >= reach), RATIO_SCALES[-1])
