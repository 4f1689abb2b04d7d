"""Simultaneous limits of ROC and precision-recall curves: by simulation of their noise, or by a bound on c."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from trueup.decisions.evidence import NORMAL_SHARE
from trueup.kernels.sorting import argsort
from trueup.metrics.inference import likely_root, range_quantile

if TYPE_CHECKING:
    from trueup._types import FloatArray, IntArray
    from trueup.decisions.inputs import Target, UnlabelledRows
    from trueup.metrics.inputs import Scored


CurveKind = Literal["roc", "pr"]
SMALLEST_SCORE = 1e-100  # a smaller one counts as 0: its shares could not be divided
ROUNDING = 1e-12  # a share of rows up to this is rounding error
DRAWS = 2000  # simulated curves
GRID, HIGHEST = 256, 24  # thresholds at which curves are simulated, and how many of them are the highest scores
KNOTS, ROWS_PER_KNOT = 64, 25  # of the correction: more would follow the noise of the labelled rows
HIGHEST_LEVEL = 0.99  # above it too few draws are left
OVERSHOOT = 0.5826  # of a step's spread: what a path reaches between two steps (Broadie, Glasserman & Kou 1997)


class RateLimits(NamedTuple):
    """One estimate per threshold, with limits."""

    estimate: FloatArray
    low: FloatArray
    high: FloatArray


class CurveLimits(NamedTuple):
    """Both axes with limits, the area with its limits, and the components of the half-width."""

    x: RateLimits
    y: RateLimits
    area: tuple[float, float, float]
    half_widths: dict[str, float]


class CumulativeShares(NamedTuple):
    """Shares of all rows with scores from each threshold on; the first threshold is infinite.

    ``positive`` and ``negative`` are expected by the scores; ``squares`` and ``noise`` are the sums of w^2 and
    w^2 f (1 - f), over the squared total weight; ``heaviest`` is the share of the heaviest row.
    """

    heaviest: float
    threshold: FloatArray
    predicted: FloatArray
    positive: FloatArray
    negative: FloatArray
    squares: FloatArray
    noise: FloatArray

    def take(self, index: IntArray) -> CumulativeShares:
        """Keep some thresholds."""
        return CumulativeShares(self.heaviest, *(column[index] for column in self[1:]))

    def corrected(self, more: FloatArray) -> CumulativeShares:
        """Move a share of rows from the negatives to the positives at each threshold, as far as there are any.

        Both remain non-decreasing, and between two thresholds no more are added than there are rows.
        """
        positive = np.maximum.accumulate(np.clip(self.positive + more, 0.0, self.predicted))
        negative = np.maximum.accumulate(_without_rounding(self.predicted - positive))
        positive = np.maximum.accumulate(_without_rounding(self.predicted - negative))
        return self._replace(positive=positive, negative=negative)


def _without_rounding(share: FloatArray) -> FloatArray:
    return np.where(share > ROUNDING, share, 0.0)


def sum_shares(p: FloatArray, w: FloatArray) -> CumulativeShares:
    """Accumulate rows from the highest score down, tied scores together; the order of the rows does not matter."""
    order = argsort(-p) if w.min() == w.max() else np.lexsort((w, -p))
    p, w = p[order], w[order]
    p = np.where(p < SMALLEST_SCORE, 0.0, p)
    w = w / w.sum()
    last = np.flatnonzero(np.append(p[1:] != p[:-1], True))
    sums = (np.append(0.0, np.cumsum(column)[last]) for column in (w, w * p, w * (1 - p), w**2, w**2 * p * (1 - p)))
    return CumulativeShares(float(w.max()), np.append(math.inf, p[last]), *sums)


def compute_axes(kind: CurveKind, positive: FloatArray, negative: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return FPR and TPR, or recall and precision, one curve per row; NaN where the denominator is 0."""
    recall = divide(positive, positive[..., -1:])
    if kind == "roc":
        return divide(negative, negative[..., -1:]), recall
    return recall, divide(positive, positive + negative)


def divide(numerator: FloatArray, denominator: FloatArray) -> FloatArray:
    """Divide where the denominator is above 0; NaN elsewhere."""
    defined = denominator > 0
    return np.where(defined, numerator / np.where(defined, denominator, 1.0), math.nan)


def make_monotone(rate: RateLimits) -> RateLimits:
    """Make a rate non-decreasing to the last bit."""
    return RateLimits(*(np.maximum.accumulate(column) for column in rate))


def area_under(x: FloatArray, y: FloatArray) -> FloatArray:
    """Return the area under each curve from (0, 0) to (1, 1)."""
    ends = [(0, 0)] * (x.ndim - 1) + [(1, 1)]
    xs, ys = (np.pad(side, ends, constant_values=((0.0, 1.0),)) for side in (x, y))
    return np.asarray(np.clip(np.sum(np.diff(xs) * (ys[..., 1:] + ys[..., :-1]), axis=-1) / 2, 0.0, 1.0))


def average_precision(recall: FloatArray, precision: FloatArray) -> FloatArray:
    """Sum precision over the growth of recall."""
    return np.asarray(np.sum(np.diff(recall) * precision[..., 1:], axis=-1))


def simulated_limits(
    kind: CurveKind, shares: CumulativeShares, labelled: Scored | None, level: float, target: Target
) -> CurveLimits:
    """Simulate curves with the noise of labels and rows, and return limits that contain a share ``level`` of them.

    Labelled rows correct the curve first; without them, scores are assumed to be calibrated.
    """
    residuals = None if labelled is None else _Residuals(labelled)
    full = shares if residuals is None else shares.corrected(residuals.smoothed(shares))
    index = _choose_thresholds(full)
    grid = full.take(index)
    steps = _step_variances(grid, residuals, target)
    errors, *simulated_shares = _simulate_shares(grid, steps, target)
    simulated = compute_axes(kind, *simulated_shares)
    on_grid = compute_axes(kind, grid.positive, grid.negative)
    estimate = compute_axes(kind, full.positive, full.negative)
    ones = np.ones(len(index))
    recall, fpr, precision = (
        np.nan_to_num(divide(ones, ones * share)) for share in (grid.positive[-1], grid.negative[-1], grid.predicted)
    )  # change per share of all rows
    scales = (fpr, recall) if kind == "roc" else (recall, precision)
    axes = [_AxisErrors(*sides, steps.heaviest) for sides in zip(on_grid, simulated, scales, strict=True)]
    factor = _upper_quantile(np.maximum(axes[0].largest, axes[1].largest), level)
    # If no labelled row was wrong, a few others may still be; but with a single score the AUC is 1/2 in any case.
    least = 0.0 if residuals is None or (kind == "roc" and len(index) == 2) else 1.0
    slack = math.sqrt(math.log(5 / (1 - level)) / 2)
    overshoot = OVERSHOOT * np.sqrt(steps.variance) * (np.diff(index, prepend=0) > 1)
    limits = []
    for values, axis in zip(estimate, axes, strict=True):
        half = np.interp(full.predicted, grid.predicted, axis.half_width(max(factor, least), slack, overshoot))
        unknown = np.isnan(values)
        low, high = np.clip(values - half, 0.0, 1.0), np.clip(values + half, 0.0, 1.0)
        limits.append(RateLimits(values, np.where(unknown, 0.0, low), np.where(unknown, 1.0, high)))
    # Precision need not increase.
    x, y = _limit_rate(limits[0], target), _limit_rate(limits[1], target) if kind == "roc" else limits[1]
    if kind == "roc":
        area, area_errors = float(area_under(*estimate)), area_under(*simulated) - area_under(*on_grid)
    else:
        area = float(average_precision(estimate[0], np.nan_to_num(estimate[1])))
        area_errors = _precision_errors(grid, errors)
    row_effect = slack * axes[1 if kind == "roc" else 0].row_effect[-1]
    # The possible error of the positives above a threshold, as a share of all rows, by source.
    reach = _upper_quantile(np.abs(errors[0]).max(axis=1), level)
    own, known = float((steps.labels + steps.rows * steps.mean**2).sum()), float(steps.known.sum())
    variances = {} if residuals is None else {"calibration": known}
    variances["label noise" if target == "rows" else "sampling"] = own
    total = own + known or 1.0
    half_widths = {name: reach * math.sqrt(variance / total) for name, variance in variances.items()}
    return CurveLimits(x, y, _limit_area(area, area_errors, level, row_effect, least), half_widths)


def _upper_quantile(sizes: FloatArray, level: float) -> float:
    return float(np.quantile(sizes, min(level, HIGHEST_LEVEL))) * _extrapolation(level)


def _extrapolation(level: float) -> float:
    """Return the factor from the highest simulated level to ``level``: the normal tail is heavier than that of maxima."""
    highest, wanted = (-NormalDist().inv_cdf((1 - one) / 2) for one in (HIGHEST_LEVEL, max(level, HIGHEST_LEVEL)))
    return wanted / highest


class _AxisErrors:
    """Errors of the simulated curves on one axis, and their maximum in units of their spread at each threshold.

    ``row_effect`` is the change that a single row makes: no limit is narrower than that.
    """

    def __init__(self, exact: FloatArray, simulated: FloatArray, scale: FloatArray, heaviest: float) -> None:
        # A simulated curve without a denominator may be anywhere; an exact one without a denominator has no error.
        errors = np.where(np.isnan(exact), 0.0, np.where(np.isnan(simulated), 1.0, simulated - exact))
        self.scale, self.row_effect = scale, heaviest * scale
        self.spread = np.sqrt(np.mean(errors**2, axis=0))
        unit = np.maximum(np.hypot(self.spread, self.row_effect), np.finfo(float).tiny)
        self.largest = np.max(np.abs(errors) / unit, axis=1)

    def half_width(self, factor: float, slack: float, overshoot: FloatArray) -> FloatArray:
        """Return half-widths; ``slack`` allows for few rows, ``overshoot`` for what happens between thresholds."""
        few = slack * self.row_effect
        return np.asarray(factor * (np.hypot(self.spread, few) + few) + overshoot * self.scale)


class _Residuals:
    """Cumulative residuals of labelled rows from the highest score down, as shares of their weight."""

    def __init__(self, rows: Scored) -> None:
        order = np.lexsort((rows.w, rows.y, -rows.p))
        y, f, w = (column[order] for column in rows)
        errors = w * (y - f) / w.sum()
        self.score, self.rows = f, len(f)
        self.sums, self.squares = (np.append(0.0, np.cumsum(column)) for column in (errors, errors**2))
        self.heaviest = float(w.max() / w.sum())
        self.size = float(w.sum() ** 2 / np.sum(w**2))
        # If few or no events were observed, the expected ones count.
        self.variance = max(float(self.squares[-1]), float(np.sum(w**2 * f * (1 - f)) / w.sum() ** 2))

    def at(self, sums: FloatArray, threshold: FloatArray) -> FloatArray:
        """Return a cumulative sum over the rows with scores from each threshold on."""
        return np.asarray(sums[np.searchsorted(-self.score, -threshold, side="right")])

    def smoothed(self, shares: CumulativeShares) -> FloatArray:
        """Return the residuals from each threshold on, interpolated between a few thresholds."""
        position = shares.predicted + divide(shares.positive, shares.positive[-1:])
        position = np.where(np.isnan(position), 2 * shares.predicted, position)
        knots = int(np.clip(self.rows // ROWS_PER_KNOT, 1, KNOTS))
        index = np.searchsorted(position, np.linspace(0.0, position[-1], knots + 1)).clip(0, len(position) - 1)
        index = np.unique(index)
        return np.interp(position, position[index], self.at(self.sums, shares.threshold[index]))


def _choose_thresholds(shares: CumulativeShares) -> IntArray:
    """Choose thresholds to simulate at: the highest, then evenly along rows and positives, both ends included."""
    count = len(shares.threshold)
    if count <= GRID:
        return np.arange(count)
    position = shares.predicted + np.nan_to_num(divide(shares.positive, shares.positive[-1:]))
    even = np.searchsorted(position, np.linspace(position[0], position[-1], GRID - HIGHEST))
    return np.unique(np.concatenate([np.arange(HIGHEST), even.clip(0, count - 1), [count - 1]]))


class _StepVariances(NamedTuple):
    """Variances of what the rows between two thresholds add to the shares above them.

    ``labels`` by their outcomes, ``known`` by the correction from labelled rows, ``rows`` by the number of rows drawn, of
    which a share ``mean`` is positive; ``heaviest`` is the most that one row adds.
    """

    labels: FloatArray
    known: FloatArray
    rows: FloatArray
    mean: FloatArray
    heaviest: float

    @property
    def variance(self) -> FloatArray:
        """The total variance for positives, or for negatives if larger."""
        return np.asarray(self.labels + self.known + self.rows * np.maximum(self.mean, 1 - self.mean) ** 2)


def _step_variances(grid: CumulativeShares, residuals: _Residuals | None, target: Target) -> _StepVariances:
    labels, squares = (np.diff(column, prepend=0.0) for column in (grid.noise, grid.squares))
    zeros = np.zeros(len(labels))
    known = zeros
    if residuals is not None:
        # The position of errors is taken half from the labelled rows and half from the scores: either may have gaps.
        shapes = [np.diff(residuals.at(residuals.squares, grid.threshold), prepend=0.0), labels]
        shapes = [shape for shape in shapes if shape.sum() > 0] or [squares]  # no error seen or expected: anywhere
        known = residuals.variance * np.mean([shape / shape.sum() for shape in shapes], axis=0)
        labels = known * residuals.size * grid.squares[-1]
    heaviest = grid.heaviest + (0.0 if residuals is None else residuals.heaviest)
    mean = np.nan_to_num(divide(np.diff(grid.positive, prepend=0.0), np.diff(grid.predicted, prepend=0.0)))
    if target == "rows":
        return _StepVariances(labels, known, zeros, mean, heaviest)
    return _StepVariances(zeros, known, squares, mean, heaviest)


def _simulate_shares(
    grid: CumulativeShares, steps: _StepVariances, target: Target
) -> tuple[tuple[FloatArray, FloatArray], FloatArray, FloatArray]:
    """Draw errors of the shares of positives and of negatives from each threshold on, one curve per row; add them."""
    random = np.random.default_rng(0)
    size = (DRAWS, len(grid.threshold))
    errors = np.cumsum(random.normal(size=size) * np.sqrt(steps.labels + steps.known), axis=1)
    if target == "rows":
        positive = np.clip(grid.positive + errors, 0.0, grid.predicted)
        return (errors, -errors), positive, grid.predicted - positive
    rows = random.normal(size=size) * np.sqrt(steps.rows)
    rows -= rows.sum(axis=1, keepdims=True) * np.diff(grid.predicted, prepend=0.0)  # the number of rows is fixed
    positive, negative = (np.cumsum(rows * share, axis=1) for share in (steps.mean, 1 - steps.mean))
    both = positive + errors, negative - errors
    return both, np.maximum(grid.positive + both[0], 0.0), np.maximum(grid.negative + both[1], 0.0)


def _limit_rate(rate: RateLimits, target: Target) -> RateLimits:
    """Make a rate non-decreasing; of these rows, it starts at 0 and ends at 1."""
    if target == "rows" and not math.isnan(rate.estimate[0]):
        for column in (rate.low, rate.high):
            column[0], column[-1] = 0.0, 1.0
    return make_monotone(rate)


def _limit_area(
    area: float, errors: FloatArray, level: float, row_effect: float, least: float
) -> tuple[float, float, float]:
    """Return an area with limits from its simulated errors, at least ``least`` standard deviations wide."""
    if math.isnan(area):
        return area, 0.0, 1.0
    # A curve without a denominator may have any area: the largest error to either side.
    lowest, highest = (np.where(np.isnan(errors), end, errors) for end in (-1.0, 1.0))
    sd = float(np.sqrt(np.mean(highest**2)))
    unit = (math.hypot(sd, row_effect) + row_effect) * _extrapolation(level)
    tail = (1 - min(level, HIGHEST_LEVEL)) / 2
    low, high = (
        float(np.quantile(side, probability)) / sd if sd > 0 else 0.0
        for side, probability in ((lowest, tail), (highest, (1 + min(level, HIGHEST_LEVEL)) / 2))
    )
    low, high = min(low, -least) * unit, max(high, least) * unit
    return area, max(0.0, min(area, area + low)), min(1.0, max(area, area + high))


def _precision_errors(grid: CumulativeShares, errors: tuple[FloatArray, FloatArray]) -> FloatArray:
    """Return the first-order errors of average precision, which the noise does not bias.

    AP = sum P dA / A_end with P = A / (A + B), A the positives and B the negatives from each threshold on.
    """
    recall, precision = (np.nan_to_num(axis) for axis in compute_axes("pr", grid.positive, grid.negative))
    per_row = np.nan_to_num(divide(np.ones(len(precision)), grid.predicted))
    precision_errors = (errors[0] * (1 - precision) - errors[1] * precision) * per_row
    change = np.diff(errors[0]) @ precision[1:] + precision_errors[:, 1:] @ np.diff(grid.positive)
    change -= float(average_precision(recall, precision)) * errors[0][:, -1]
    return np.asarray(divide(change, np.full(len(change), float(grid.positive[-1]))))


def bounded_limits(
    kind: CurveKind, shares: CumulativeShares, rows: UnlabelledRows, c: float, level: float, target: Target
) -> CurveLimits:
    """Return limits for scores whose error is at most c over any interval; the notes of `expected_roc` derive them."""
    failing = (1 - level) / 2
    if target == "rows":
        ends = 1 - 2 * shares.threshold[[-1, 1]]
        excess = c * (np.abs(ends).sum() + np.ptp(ends)) / 2
        component = "label noise"
        errors = [range_quantile(failing) * math.sqrt(shares.noise[-1] + excess * shares.squares[-1])] * 2
    else:
        w = np.sort(rows.w)  # sums of sorted values do not depend on the order of rows
        component, factor = "sampling", range_quantile(NORMAL_SHARE * failing / 2) / float(w.sum())
        errors = [
            factor * float(likely_root(float(np.sum(np.sort(rows.w * share) ** 2)), w[-1], failing / 2))
            for share in (rows.p, 1 - rows.p)
        ]
    limits = limit_by_errors(kind, shares, c + errors[0], c + errors[1], target)
    return CurveLimits(*limits, {"calibration": c, component: max(errors)})


def limit_by_errors(
    kind: CurveKind, shares: CumulativeShares, positives: float, negatives: float, target: Target
) -> tuple[RateLimits, RateLimits, tuple[float, float, float]]:
    """Return both axes and the area with limits, if shares of positives and negatives have at most these errors."""
    predicted, positive, negative = shares.predicted, shares.positive, shares.negative
    # Of these rows, no more can be positive than there are; in the population, others might have been drawn.
    most, rest = (predicted, predicted[-1] - predicted) if target == "rows" else (np.inf, np.inf)
    tp, fp = _limit_mass(positive, positives, most), _limit_mass(negative, negatives, most)
    fn = _limit_mass(positive[-1] - positive, positives, rest)
    tn = _limit_mass(negative[-1] - negative, negatives, rest)
    recall = make_monotone(_ratio(tp, fn))
    if kind == "roc":
        fpr = make_monotone(_ratio(fp, tn))
        pairs = ((fpr.estimate, recall.estimate), (fpr.high, recall.low), (fpr.low, recall.high))
        area, low, high = (float(area_under(*pair)) for pair in pairs)
        return fpr, recall, (area, low, high)
    precision = _ratio(tp, fp)
    return recall, precision, _average_precision_limits(recall, precision)


def _limit_mass(mass: FloatArray, error: float, most: Any) -> RateLimits:
    return RateLimits(mass, np.maximum(mass - error, 0.0), np.maximum(np.minimum(mass + error, most), mass))


def _ratio(part: RateLimits, rest: RateLimits) -> RateLimits:
    """Return part / (part + rest); NaN with limits 0 and 1 where both are 0."""
    estimate = divide(part.estimate, part.estimate + rest.estimate)
    # A limit is NaN only if all rows are predicted positive, or none: the estimate is then exact.
    low, high = divide(part.low, part.low + rest.high), divide(part.high, part.high + rest.low)
    unknown = np.isnan(estimate)
    low, high = np.where(unknown, 0.0, np.fmin(low, estimate)), np.where(unknown, 1.0, np.fmax(high, estimate))
    return RateLimits(estimate, low, high)


def _average_precision_limits(recall: RateLimits, precision: RateLimits) -> tuple[float, float, float]:
    area = float(average_precision(recall.estimate, precision.estimate))
    cuts = np.unique(np.concatenate([[0.0, 1.0], recall.low, recall.high]))
    middle, width = (cuts[1:] + cuts[:-1]) / 2, np.diff(cuts)
    end = len(recall.low) - 1
    first = np.minimum(np.searchsorted(recall.high, middle), end)
    last = np.minimum(np.searchsorted(recall.low, middle), end)
    low = float(width @ np.minimum(precision.low[first], precision.low[last]))
    high = float(width @ precision.high[first])
    return (area, low, high) if math.isnan(area) else (area, min(low, area), max(high, area))
