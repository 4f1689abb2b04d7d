"""Contents of a page: cells, tables and plots of an audit, as text and coordinates for the templates to lay out."""

from __future__ import annotations

import html
import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.audits.materiality import DETECTED, MATERIAL, NOT_DETECTED, NOT_TESTABLE, POSSIBLE, WITHIN_TOLERANCE
from trueup.audits.text import (
    ADJUSTMENTS,
    certain_ratios,
    describe_error,
    describe_scores,
    number,
    percent_off,
    shorten,
    signed_count,
)
from trueup.reports.profiles import DEFAULT_VOCABULARY, METRICS, Vocabulary
from trueup.reports.text import audit_notes, count_text, interval_text, percent, summary_of, without_rounding

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import ArrayLike

    from trueup.audits.result import Audit, Finding
    from trueup.audits.settings import AuditSettings
    from trueup.audits.summary import AuditSummary
    from trueup.metrics.reliability import ReliabilityCurve

MAX_TABLE_ROWS = 1000
MAX_CURVES = 4
MAX_UNTESTED = 20
MAX_NOTES = 30
MAX_LISTED_NAMES = 60
MAX_NAME_LENGTH = 90
MAX_TOOLTIP_LENGTH = 1000
MAX_TOOLTIP_LENGTH_IN_LONG_TABLE = 160  # keeps the page small
LONG_TABLE_ROWS = 100
MAX_TOOLTIP_BYTES_PER_CHARACTER = 2  # an escaped quotation mark takes six bytes
MAX_MAP_COLUMNS = 16
MAX_MAP_NAME_LENGTH = 24
MAP_SHADES = (1.02, 1.05, 1.1, 1.25)  # certain errors, as factors, from which the next darker shade is used
LARGE_SIDE, SMALL_SIDE = 440, 196  # of a reliability curve, in SVG units
HISTOGRAM_HEIGHT, HISTOGRAM_GAP = 76, 10
PATH_BAND = 2.0  # standard errors
MAX_AXIS_LABEL = 16  # characters
# Words of a table for the states of findings, and the kinds of states: colours and icons.
STATES = {
    MATERIAL: ("material", "flagged"),
    DETECTED: ("miscalibrated", "flagged"),
    POSSIBLE: ("possibly material", "possible"),
    WITHIN_TOLERANCE: ("within tolerance", "within"),
    NOT_DETECTED: ("within noise", "passed"),
    NOT_TESTABLE: ("not tested", "untested"),
}
STATE_SHADES = {MATERIAL: "material", POSSIBLE: "possible", WITHIN_TOLERANCE: "within"}  # of the map, with a tolerance
ABSENT = ("absent", "absent")
STATE_MEANING = (
    "significant after adjustment for the number of tests and, with a tolerance, whether it certainly exceeds it, may "
    "exceed it, or is certainly within it on average"
)
RATIO_MEANING = "observed/expected and its interval on a logarithmic axis; the shaded range is the tolerance"
DETECTABLE_MEANING = "the shift that would have been detected with 80% power"
METRICS_OF_A_PAGE = (
    "brier", "log loss", "normalized entropy", "auc", "slope", "intercept", "in the large", "rmse"
)  # fmt: skip


@dataclass(frozen=True)
class Figure:
    """A key figure or a metric: name, value, and a remark or its meaning.

    A term of the Brier decomposition has a bar of ``width`` from ``start``, both in percent of the longest bar.
    """

    name: str
    value: str
    detail: str = ""
    start: float = 0.0
    width: float = 0.0
    kind: str = "plain"


@dataclass(frozen=True)
class Cell:
    """A table cell: ``sort`` is its sort key, or empty, ``value`` its value as data, ``detail`` a remark below the text."""

    text: str
    kind: str = "number"
    sort: str = ""
    title: str = ""
    state: str = ""
    ratio: RatioMark | None = None
    value: Any = None
    detail: str = ""


@dataclass(frozen=True)
class Column:
    """A column of a table: its heading, the function that makes the cell of an item, and an explanation."""

    text: str
    cell: Callable[[Any], Cell] = field(compare=False)
    meaning: str = ""
    kind: str = "number"


@dataclass(frozen=True)
class TableView:
    """A table and the number of rows that were left out of it.

    ``groups`` are headings over several columns. ``filters`` has, per segment, the indices of the data columns that form it
    and its number of rows of data; ``columns_to_filter`` are the data columns, as index and name.
    """

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    more: int = 0
    groups: tuple[tuple[str, int], ...] = ()
    filters: tuple[tuple[str, int], ...] = ()
    columns_to_filter: tuple[tuple[int, str], ...] = ()

    @property
    def groups_of_columns(self) -> list[str]:
        """The name of the group of each column, empty without groups."""
        return [name for name, span in self.groups for _ in range(span)] or [""] * len(self.columns)


@dataclass(frozen=True)
class Section:
    """A section of a page that comes from a profile or a fix: title, lead, and a table or the plot of a decision curve.

    ``note``, below the table, explains how to read it.
    """

    title: str
    lead: str
    table: TableView | None = None
    plot: Any = None
    note: str = ""


# Cells


def number_cell(value: float, text: str = "", digits: int = 3) -> Cell:
    """Return the cell of a number, as ``text`` or with ``digits`` significant digits; NaN sorts last."""
    infinity = "Infinity" if value > 0 else "-Infinity"  # as JavaScript spells it
    sort = "" if math.isnan(value) else infinity if math.isinf(value) else f"{value:.7g}"
    return Cell(text or number(value, digits), "number", sort, value=value)


def count_cell(value: float) -> Cell:
    """Return the cell of a count or a sum of weights; as data, an integer if it equals one up to rounding."""
    return number_cell(without_rounding(value), count_text(value))


def interval_cell(low: float, high: float) -> Cell:
    """Return the cell of an interval; as data it is the pair [low, high]."""
    return Cell(interval_text(low, high), "interval", value=[low, high])


def text_cell(text: str, kind: str = "name", rows: int = 1, width: int = MAX_NAME_LENGTH) -> Cell:
    """Return the cell of a text cut to ``width`` characters; the ``rows`` of the table limit the length of its tooltip."""
    limit = MAX_TOOLTIP_LENGTH if rows <= LONG_TABLE_ROWS else MAX_TOOLTIP_LENGTH_IN_LONG_TABLE
    short, full = shorten(text, width), shorten(text, limit)
    while len(full) > len(short) and len(html.escape(full).encode()) > MAX_TOOLTIP_BYTES_PER_CHARACTER * limit:
        full = shorten(full, 3 * len(full) // 4)
    return Cell(short, kind, title=full if len(full) > len(short) else "", value=text)


def state_kind(finding: Finding | None) -> str:
    """Return the kind of the state of a segment, for colours; a finding of None is a segment that the audit lacks."""
    return (ABSENT if finding is None else STATES[finding.state])[1]


def state_cell(finding: Finding | None) -> Cell:
    """Return the cell that states whether a segment is miscalibrated."""
    text, kind = ABSENT if finding is None else STATES[finding.state]
    order = len(STATES) if finding is None else list(STATES).index(finding.state)
    return Cell(text, "state", str(order), title="" if finding is None else finding.note, state=kind)


def ratio_cell(audit: Audit, finding: Finding, scale: RatioScale, before: float = -1.0) -> Cell:
    """Return the cell that draws observed/expected with its interval, and the earlier ratio ``before`` unless negative."""
    ends = finding.ratio_low_adjusted, finding.ratio_high_adjusted
    known = finding.ratio >= 0 and finding.expected > 0 and all(end >= 0 for end in ends)
    mark = RatioMark(scale, finding.ratio, *ends, before, tolerated_ratios(audit, finding)) if known else None
    return Cell("", "forest", state=state_kind(finding), ratio=mark)


# Tables


def make_table(columns: Sequence[Column], items: Iterable[Any], more: int = 0, **parts: Any) -> TableView:
    """Return a table with one row per item; ``more`` items were left out, ``parts`` are other fields of `TableView`."""
    return TableView(tuple(columns), tuple(tuple(c.cell(item) for c in columns) for item in items), more, **parts)


def make_filters(used: Sequence[Sequence[int]], rows: Iterable[int], names: Sequence[str]) -> dict[str, Any]:
    """Return the `TableView` fields that filter segments by the data columns ``used`` (indices) and numbers of rows."""
    choices = sorted({index for indices in used for index in indices})
    return {
        "filters": tuple((" ".join(map(str, indices)), n) for indices, n in zip(used, rows, strict=True)),
        "columns_to_filter": tuple((index, shorten(names[index], 60)) for index in choices),
    }


def finding_columns(
    audit: Audit,
    vocabulary: Vocabulary,
    finding_of: Callable[[Any], Finding] = lambda item: item,
    scale: RatioScale | None = None,
) -> list[Column]:
    """Return table columns obs/exp, interval, plot, state and adjusted p; ``finding_of`` returns the Finding of an item."""
    scale, count = scale or ratio_scale(audit), f"adjusted for the number of {vocabulary.segments}"
    level = percent(1 - audit.settings.alpha)

    def interval(item: Any) -> Cell:
        return interval_cell(finding_of(item).ratio_low_adjusted, finding_of(item).ratio_high_adjusted)

    meaning = f"of observed/expected; the intervals of all {vocabulary.segments} hold at once"
    return [
        Column("obs/exp", lambda item: number_cell(finding_of(item).ratio), "observed/expected"),
        Column(f"{level} interval", interval, meaning, "interval"),
        Column(scale.text, lambda item: ratio_cell(audit, finding_of(item), scale), RATIO_MEANING, "forest"),
        Column("state", lambda item: state_cell(finding_of(item)), STATE_MEANING, "state"),
        Column("adjusted p", lambda item: number_cell(finding_of(item).p_adjusted, digits=2), f"p-value {count}"),
    ]


# Plots: values become coordinates


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
        """Return the SVG points of a polyline or polygon, not clipped; non-finite ones are left out."""
        across = (np.ravel(x) - self.x_axis.low) / (self.x_axis.high - self.x_axis.low)
        up = (np.ravel(y) - self.y_axis.low) / (self.y_axis.high - self.y_axis.low)
        places = zip(self.left + self.width * across, self.top + self.height * (1 - up), strict=True)
        return " ".join(f"{a:.1f},{b:.1f}" for a, b in places if math.isfinite(a) and math.isfinite(b))


def plot_curve(
    finding: Finding, axis: Axis, vocabulary: Vocabulary, summary: AuditSummary | None = None, *, large: bool = False
) -> dict[str, Any] | None:
    """Return the SVG coordinates of the reliability curve of a segment; with ``summary``, also of its band and histogram.

    ``bins`` has per bin x, y, ends of the interval and tooltip; bins with non-finite means are left out, and if none is
    left, the result is None. ``band`` is the polygon of the consistency band. ``bars`` is the histogram of the scores below
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
    """Return the SVG coordinates of cumulative outcome minus prediction by score, with a band of two standard errors.

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
    frame = Frame(choose_axis(0.0, 1.0, 5), choose_axis(bottom - margin, top + margin, 6), 84, 8, 600, 380)
    lowest, highest = ((frame.x(share[k]), frame.y(value[k])) for k in (np.argmin(value), np.argmax(value)))
    caption = f"range {number(overall.ecce)}"
    if overall.testable and not math.isnan(overall.p_adjusted):
        p = "< 1e-16" if overall.p_adjusted < 1e-16 else f"= {number(overall.p_adjusted, 2)}"
        caption += f", adjusted p {p}"
    unit = "weight" if audit.weighted else vocabulary.rows
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
    for low, limit in (("0.91", 1.1), ("0.8", 1.25), ("⅔", 1.5), ("½", 2.0), ("⅓", 3.0), ("¼", 4.0))
)


@dataclass(frozen=True)
class RatioMark:
    """The mark of a segment on a scale: observed/expected, its interval, the earlier ratio, and the tolerated ratios."""

    scale: RatioScale
    ratio: float
    low: float
    high: float
    before: float = -1.0
    tolerated: tuple[float, float] | None = None


def tolerated_ratios(audit: Audit, finding: Finding) -> tuple[float, float] | None:
    """Return the lowest and highest observed/expected of a finding within the tolerance; None without one."""
    tolerance = audit.settings.tolerance
    if tolerance is None or not tolerance.value or finding.expected <= 0:
        return None
    low, high = (float(end[0]) / finding.expected for end in tolerance.limits(np.array([finding.expected])))
    return max(low, 0.0), high


def ratio_scale(*audits: Audit, findings: Sequence[Finding] = ()) -> RatioScale:
    """Choose the narrowest scale that shows 90% of the ratios and, if any scale does, all miscalibrated segments.

    If ``findings`` are given, it shows those, with intervals of at most twice their reach.
    """
    known = []
    for audit in audits:
        ratio = audit.columns["ratio"][: audit.tested]
        valid = np.isfinite(ratio) & (ratio > 0)
        known.append((np.abs(np.log(ratio[valid])), np.flatnonzero(valid) < audit.rejected))
    distances, flagged = (np.concatenate(parts) for parts in zip(*known, strict=True))
    if not len(distances):
        return RATIO_SCALES[-1]
    reach = max(float(np.quantile(distances, 0.9)), float(distances[flagged].max(initial=0.0)))
    if findings:
        reach = max((abs(math.log(f.ratio)) for f in findings if 0 < f.ratio < math.inf), default=reach)
        ends = [abs(math.log(end)) for f in findings for end in (f.ratio_low_adjusted, f.ratio_high_adjusted) if end > 0]
        reach = max([reach, *(min(end, 2 * reach) for end in ends)])
    return next((scale for scale in RATIO_SCALES if math.log(scale.limit) >= reach), RATIO_SCALES[-1])


def view_curve(
    audit: Audit, finding: Finding, vocabulary: Vocabulary, axis: Axis | None = None, *, large: bool = False
) -> dict[str, Any]:
    """Return name, caption, state and plot of the reliability curve of a segment; a large one has band and histogram."""
    probabilities = audit.schema.task != "regression"
    axis = axis or curve_axis([finding.curve], probabilities=probabilities, ticks=7 if large else 5)
    plot = plot_curve(finding, axis, vocabulary, summary_of(audit) if large else None, large=large)
    parts = (f"{finding.n:,} {vocabulary.rows}", describe_error(finding), describe_scores(finding))
    caption = ", ".join(part for part in parts if part)
    return {"name": text_cell(finding.segment), "caption": caption, "state": state_cell(finding), "plot": plot}


# One audit


def problem_curves(audit: Audit, vocabulary: Vocabulary) -> list[dict[str, Any]]:
    """Return the reliability curves of the first MAX_CURVES problems, as `view_curve` does; all rows have their own."""
    problems = (problem.finding for problem in (audit.problems if audit.miscalibrated else ()))
    shown = [finding for finding in problems if finding.segment != audit.overall.segment]
    return [view_curve(audit, finding, vocabulary) for finding in shown[:MAX_CURVES]]


def audit_metrics(audit: Audit, vocabulary: Vocabulary) -> tuple[Figure, ...]:
    """Return the metrics over all rows defined for these outcomes, with 95% confidence intervals where known."""
    summary = summary_of(audit)
    scores = {} if summary is None else summary.scores
    metrics = []
    for key in METRICS_OF_A_PAGE:
        value, half = scores.get(key, math.nan), 1.96 * scores.get(f"{key}_se", math.nan)
        text = number(value, 4)
        if half > 0 and math.isfinite(half):
            decimals = min(max(1 - math.floor(math.log10(half)), 0), 12)
            text = f"{value:.{decimals}f} ± {half:.{decimals}f}"
        metrics += [Figure(METRICS[key][0], text, METRICS[key][1])] if math.isfinite(value) else []
    if math.isfinite(audit.mce_absolute):
        meaning = f"strongest evidence in any of the {vocabulary.segments}, in the units of the score; lower is better"
        metrics.append(Figure("multicalibration error", number(audit.mce_absolute, 4), meaning))
    return tuple(metrics)


def brier_terms(audit: Audit) -> tuple[Figure, ...]:
    """Decompose the Brier score: uncertainty - discrimination + miscalibration (CORP; Dimitriadis et al. 2021)."""
    summary = summary_of(audit)
    names = ("uncertainty", "discrimination", "miscalibration", "brier")
    values = [math.nan if summary is None else summary.scores.get(name, math.nan) for name in names]
    if not all(map(math.isfinite, values)):
        return ()
    uncertainty, discrimination, miscalibration, brier = values
    scale = 100 / (max(uncertainty, brier) or 1.0)
    remainder = scale * max(uncertainty - discrimination, 0.0)
    terms = (
        ("uncertainty", uncertainty, "", "the score of always predicting the mean", 0.0, "plain"),
        ("discrimination", discrimination, "− ", "gain from ranking rows by risk", remainder, "gain"),
        ("miscalibration", miscalibration, "+ ", "loss that recalibration can remove", remainder, "loss"),
        ("Brier score", brier, "= ", "total", 0.0, "total"),
    )
    return tuple(
        Figure(name, sign + number(value, 4), meaning, round(start, 2), round(scale * max(value, 0.0), 2), kind)
        for name, value, sign, meaning, start, kind in terms
    )


def metrics_and_terms(audit: Audit, vocabulary: Vocabulary) -> list[Figure]:
    """Return the metrics over all rows, followed by the discrimination and miscalibration terms of the Brier score."""
    terms = [replace(term, value=term.value.lstrip("−+ ")) for term in brier_terms(audit)[1:3]]
    return [*audit_metrics(audit, vocabulary), *terms]


def shown_notes(audit: Audit, vocabulary: Vocabulary) -> list[str]:
    """Return at most MAX_NOTES notes of the audit, each shortened, and a line on how many more there are."""
    notes = [shorten(note, 400) for note in audit_notes(audit, vocabulary)]
    more = len(notes) - MAX_NOTES
    return [*notes[:MAX_NOTES], *([f"and {more:,} more notes"] if more > 0 else [])]


def untested_segments(audit: Audit) -> list[tuple[Cell, str]]:
    """Return names of segments that were listed but not tested, and why."""
    ranks = range(audit.tested, min(audit.tested + MAX_UNTESTED, len(audit)))
    return [(text_cell(finding.segment), finding.note) for finding in map(audit.finding, ranks)]


def audit_settings(audit: Audit, vocabulary: Vocabulary) -> tuple[tuple[str, str], ...]:
    """Return the roles of the columns and the settings of the audit, as pairs of label and text."""
    schema, settings = audit.schema, audit.settings

    def listed(names: Iterable[str], default: str = "none") -> str:
        names = list(names)
        more = len(names) - MAX_LISTED_NAMES
        shown = ", ".join(shorten(name, 60) for name in names[:MAX_LISTED_NAMES])
        return shown + (f" and {more:,} more" if more > 0 else "") or default

    categorical = (feature.name for feature in schema.features if feature.kind == "categorical")
    items = [
        ("task", schema.task),
        ("outcome", shorten(schema.outcome or "passed as values", 60)),
        ("prediction", listed(schema.prediction)),
        ("classes", listed(schema.classes, "")),
        ("weight", shorten(schema.weight or "none", 60)),
        ("sampling", "" if audit.sampling is None else str(audit.sampling)),
        ("cluster", shorten(schema.cluster or "", 60)),
        ("family", _family_text(settings)),
        (f"columns that form {vocabulary.segments}", listed(feature.name for feature in schema.features)),
        ("categorical columns", listed(categorical)),
        (f"maximum columns per {vocabulary.segment}", str(settings.depth)),
        (f"minimum {vocabulary.rows} per {vocabulary.segment}", f"{settings.min_rows:,}"),
        ("significance level (alpha)", f"{settings.alpha:g}"),
        ("p-values adjusted by", ADJUSTMENTS[settings.adjust]),
        ("tolerance", "none" if settings.tolerance is None else str(settings.tolerance)),
        ("draws", f"{settings.draws:,}" if settings.draws else ""),
        ("seed", str(settings.random_state) if settings.draws else ""),
        (f"maximum number of {vocabulary.segments}", f"{settings.max_cells:,}"),
    ]
    return tuple((label, value) for label, value in items if value)


def _family_text(settings: AuditSettings) -> str:
    power = "" if settings.variance_power is None else f", variance power {settings.variance_power:g}"
    return f"{settings.family}{power}" if settings.family else ""


# Segments


def column_names(audit: Audit) -> list[str]:
    """Return the names of the columns that form segments, in order of their index; user-defined segments last."""
    names = [feature.name for feature in audit.schema.features]
    return [*names, *(labels[0] for labels in audit.keys.labels[len(names) :])]


def excess_meaning(audit: Audit) -> str:
    """Return what the excess of a segment is."""
    return f"observed minus expected, summed{' with weights' if audit.weighted else ''}"


def view_table(audit: Audit, vocabulary: Vocabulary, max_rows: int | None = None) -> TableView:
    """Return the table of the worst segments, at most ``max_rows``."""
    findings = audit.worst(min(MAX_TABLE_ROWS if max_rows is None else max_rows, audit.tested))
    *ratio, state, p_adjusted = finding_columns(audit, vocabulary)
    weight = Column("weight", lambda f: number_cell(f.weight), "sum of the weights")
    columns = [
        Column(vocabulary.segment, lambda f: text_cell(f.segment, rows=len(findings)), kind="name"),
        state,
        Column(vocabulary.rows, lambda f: count_cell(f.n)),
        *([weight] if audit.weighted else []),
        Column(vocabulary.observed, lambda f: number_cell(f.observed), "mean outcome"),
        Column(vocabulary.expected, lambda f: number_cell(f.expected), "mean prediction"),
        *ratio,
        Column("excess", lambda f: number_cell(f.excess, signed_count(f.excess)), excess_meaning(audit)),
        p_adjusted,
        Column("detectable", lambda f: number_cell(f.mde, digits=2), DETECTABLE_MEANING),
    ]
    used = [[int(index) for index in audit.keys.columns[rank] if index >= 0] for rank in range(len(findings))]
    filters = make_filters(used, (f.n for f in findings), column_names(audit))
    return make_table(columns, findings, audit.tested - len(findings), **filters)


def map_columns(
    audit: Audit, vocabulary: Vocabulary = DEFAULT_VOCABULARY
) -> tuple[list[Cell], list[list[dict[str, Any] | None]], int] | None:
    """Return the largest certain error of the segments of every pair of columns as a triangle; the diagonal has columns.

    The result has the names of the columns, the rows of the triangle, and how many columns were left out. The shade of a
    cell is 0 without significant segments, else it grows with the largest certain error; with a tolerance it is that of the
    most serious state.
    """
    features, columns, sigma = len(audit.schema.features), audit.keys.columns, audit.columns["sigma"]
    count, last = (columns >= 0).sum(axis=1), columns.max(axis=1, initial=-1)
    first = np.where(columns >= 0, columns, features).min(axis=1, initial=features)
    tested = np.flatnonzero(((count == 1) | (count == 2)) & (last < features) & audit.columns["testable"])
    pairs = first.astype(np.int64)[tested] * features + last[tested]
    order = np.argsort(pairs, kind="stable")
    keys, starts = np.unique(pairs[order], return_index=True)
    ranks = dict(zip(keys.tolist(), np.split(tested[order], starts[1:]), strict=True)) if len(keys) else {}
    strongest: dict[int, float] = {}
    for key, members in ranks.items():
        for column in divmod(key, features):
            strongest[column] = max(strongest.get(column, -math.inf), float(sigma[members].max()))
    if len(strongest) < 2:
        return None
    certain = certain_ratios(audit)
    factors = np.maximum(certain, 1 / certain)

    def cell(first: int, second: int) -> dict[str, Any] | None:
        members = ranks.get(first * features + second)
        if members is None:
            return None
        found = members[audit.columns["p_adjusted"][members] <= audit.settings.alpha]  # strongest first
        largest = int(found[np.argmax(factors[found])]) if len(found) else -1
        factor = float(factors[largest]) if len(found) else 1.0
        counts = f"{len(found):,} of {len(members):,} {vocabulary.segments} miscalibrated"
        shade: int | str = 1 + sum(factor >= limit for limit in MAP_SHADES) if len(found) else 0
        if audit.settings.tolerance is not None and len(found):
            shade = STATE_SHADES[min(set(audit.derived["state"][found]), key=list(STATES).index)]
        return {
            "first": first,
            "second": second,
            "error": percent_off(float(certain[largest])) if factor > 1 else "–",
            "shade": shade,
            "flagged": len(found),
            "tested": len(members),
            "title": f"strongest: {shorten(audit.keys.name(int(found[0])), 120)}; {counts}" if len(found) else counts,
        }

    shown = sorted(sorted(sorted(strongest), key=lambda column: -strongest[column])[:MAX_MAP_COLUMNS])
    rows = [[cell(first, second) for first in shown if first <= second] for second in shown]
    names = column_names(audit)
    return [text_cell(names[column], width=MAX_MAP_NAME_LENGTH) for column in shown], rows, len(strongest) - len(shown)


def map_legend(audit: Audit) -> list[tuple[int | str, str]]:
    """Return the shades of the map and what they mean."""
    if audit.settings.tolerance is not None:
        return [(0, "none found"), *((shade, STATES[state][0]) for state, shade in reversed(STATE_SHADES.items()))]
    limits = [f"{100 * (limit - 1):.0f}%" for limit in MAP_SHADES]
    return [
        (0, "none found"),
        (1, f"below {limits[0]}"),
        *((at + 2, f"{limit} or more") for at, limit in enumerate(limits)),
    ]
