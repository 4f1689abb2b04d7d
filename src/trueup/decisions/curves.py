"""Expected ROC and precision-recall curves of unlabelled rows, with simultaneous limits.

Limits come from a simulation of label noise and sampling, or from a bound c on the error of the scores over any interval.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from trueup._validate import check_choice
from trueup.data.columns import frame_like
from trueup.decisions.clusters import likely_variance
from trueup.decisions.evidence import (
    NORMAL_SHARE,
    Labelled,
    assumption_of,
    describe_labelled,
    evidence_text,
    measured_error,
    read_inputs,
    upper_bound,
)
from trueup.decisions.rules import check_threshold
from trueup.errors import ArgumentError
from trueup.kernels.sorting import argsort
from trueup.metrics.inference import likely_root, range_quantile
from trueup.metrics.result import Result

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import ArrayLike

    from trueup._types import FloatArray, IntArray
    from trueup.decisions.evidence import Inputs, Target, UnlabelledRows
    from trueup.metrics.inputs import Scored


CurveKind = Literal["roc", "pr"]
Band = Literal["joint", "paper"]
SMALLEST_SCORE = 1e-100  # a smaller one counts as 0: its shares could not be divided
ROUNDING = 1e-12  # a share of rows up to this is rounding error
DRAWS = 2000  # simulated curves
GRID, HIGHEST = 256, 24  # thresholds at which curves are simulated, and how many of them are the highest scores
KNOTS, ROWS_PER_KNOT = 64, 25  # of the correction: more would follow the noise of the labelled rows
HIGHEST_LEVEL = 0.99  # above it too few draws are left
OVERSHOOT = 0.5826  # of a step's spread: what a path reaches between two steps (Broadie, Glasserman & Kou 1997)
AXES = {"roc": ("fpr", "tpr"), "pr": ("recall", "precision")}
MAX_POINTS = 1001  # in a dict
COLUMNS = ("threshold", "x", "x_low", "x_high", "y", "y_low", "y_high")


class CurvePoint(NamedTuple):
    """One point of a curve with its limits; rows of the threshold or more are predicted positive."""

    threshold: float
    x: float
    x_low: float
    x_high: float
    y: float
    y_low: float
    y_high: float


@dataclass(frozen=True, eq=False)
class ExpectedCurve(Result):
    """A curve of unlabelled rows, with limits that hold at all thresholds at once.

    Attributes
    ----------
    kind : {"roc", "pr"}
    threshold : ndarray
        Descending, one per distinct score; rows of that score or more are predicted positive. The first is infinite: it
        predicts none.
    x, y : ndarray
        False and true positive rate ("roc"), or recall and precision ("pr"). NaN where the denominator is 0: rates of
        positives if all scores are 0, rates of negatives if all are 1, precision if none is predicted positive.
    x_low, x_high, y_low, y_high : ndarray
        Limits; 0 and 1 where the estimate is NaN.
    area, area_low, area_high : float
        Area under the ROC curve (ties count half), or average precision (step sum).
    half_widths : mapping of str to float
        Possible error of the share of positives above a threshold, as a share of all rows, by source: "calibration", if
        there is evidence, and "label noise" (target "rows") or "sampling" (target "population").
    level : float
        Probability that all limits hold at once; NaN for the band of the paper.
    target : {"rows", "population"}
    evidence : str
        Source of the calibration component; empty if the scores are assumed to be calibrated.
    distance : float
        Distance of the score distribution from that of the labelled rows, beyond a tolerance; NaN without labelled rows.
    by_segment : mapping of str to ExpectedCurve
        Each segment, with limits of the same level.
    """

    kind: CurveKind
    threshold: FloatArray
    x: FloatArray
    y: FloatArray
    x_low: FloatArray
    x_high: FloatArray
    y_low: FloatArray
    y_high: FloatArray
    area: float
    area_low: float
    area_high: float
    half_widths: Mapping[str, float]
    level: float
    target: Target
    evidence: str
    distance: float = math.nan
    by_segment: Mapping[str, ExpectedCurve] = field(default_factory=dict)
    derived = ("assumption",)

    @property
    def assumption(self) -> str:
        """What the limits assume: calibrated scores, or that nothing has changed since the labelled rows."""
        return assumption_of(self.evidence)

    def at(self, threshold: float) -> CurvePoint:
        """Return the point where rows of this score or more are predicted positive.

        Examples
        --------
        >>> point = expected_roc([0.1, 0.4, 0.8]).at(0.4)
        >>> round(point.x, 3), round(point.y, 3)
        (0.471, 0.923)
        """
        value = check_threshold(threshold, "write curve.at(0.2); infinity predicts no row positive")
        index = int(np.searchsorted(-self.threshold, -value, side="right")) - 1
        return CurvePoint(value, *(float(getattr(self, name)[index]) for name in COLUMNS[1:]))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that JSON can represent; non-finite numbers become None.

        A curve of more than 1,001 points is thinned to that many, evenly along thresholds and positives.
        """
        count = len(self.threshold)
        if count <= MAX_POINTS:
            return super().to_dict()
        recall = self.y if self.kind == "roc" else self.x
        position = np.arange(count) / count + np.nan_to_num(recall)
        nearest = np.searchsorted(position, np.linspace(position[0], position[-1], MAX_POINTS)[:-1])
        kept = np.unique(np.append(nearest, count - 1))
        return replace(self, **{name: getattr(self, name)[kept] for name in COLUMNS}).to_dict()

    def to_frame(self, like: Any = None) -> Any:
        """Return one row per threshold, as a frame of the library of ``like``, or as a dict of arrays without it."""
        x, y = AXES[self.kind]
        names = {name: name.replace("x", x, 1).replace("y", y, 1) for name in COLUMNS[1:]}
        columns = {"threshold": self.threshold.copy()}
        return frame_like(columns | {named: getattr(self, name).copy() for name, named in names.items()}, like)

    def __repr__(self) -> str:
        name = "AUC" if self.kind == "roc" else "average precision"
        level = "by c alone" if math.isnan(self.level) else f"at {100 * self.level:g}%"
        limits = f"{self.area_low:.4g} to {self.area_high:.4g} {level}"
        return f"<ExpectedCurve {name} {self.area:.4g}, {limits} ({evidence_text(self.evidence)})>"


def expected_roc(
    p: ArrayLike,
    labelled: Any = None,
    *,
    level: float = 0.9,
    target: Target = "rows",
    band: Band = "joint",
    weight: ArrayLike | None = None,
    segments: Any = None,
) -> ExpectedCurve:
    """Estimate the ROC curve of unlabelled rows, with limits that hold at all thresholds at once.

    Parameters
    ----------
    p : array-like, shape (n,)
        Scores of the rows.
    labelled : (y, p), Labelled, fitted calibrator, CalibrationBound, Audit or float, optional
        Evidence about the errors of the scores. Best are labelled rows that the model was not trained on, or a fitted
        calibrator, which kept its held-out rows: they also correct the curve, and limits are much narrower than with a
        bound on c(f). Without it, the limits assume calibrated scores.
    level : float
        Probability that all limits hold at once.
    target : {"rows", "population"}
        The curve of these rows, or that of the population that they come from.
    band : {"joint", "paper"}
        "joint" limits hold at all thresholds at once with probability ``level``: they include the noise of labels or the
        sampling of rows. "paper" is the deviation region of the paper as printed, around the curve of the scores alone:
        TPR +- n c / sum f and FPR +- n c / sum (1 - f), clipped to [0, 1], where c is the number given, or c_emp of the
        labelled rows (of a bound its ``value``, of an audit the ECCE). It contains no noise and has no level: it holds for
        these rows if c is at least their own c_emp, which it usually is not if c was estimated on others.
    weight : array-like, optional
    segments : array-like of labels, or mapping of column to values, optional
        The segment of each row. Each segment has a curve by its own evidence; the overall curve uses that of all rows.

    Warns
    -----
    ShiftWarning
        If the score distribution differs from that of the labelled rows.

    Notes
    -----
    TPR(t) = sum f 1[f >= t] / sum f, FPR(t) = sum (1 - f) 1[f >= t] / sum (1 - f) (Gao, Parameswaran & Peng 2017, section
    4, which prints f < p for f >= t and omits n in its deviation region).

    *With labelled rows, or without evidence.* Labelled rows, weighted by strata of scores as in `expected_cost`, add their
    residuals, sum w (y - f) 1[f >= t] / W, evaluated at some thresholds and interpolated between them. The rest is noise:
    of the outcomes of these rows and of the labelled ones and, for the population, of the sampling of rows. Its sum over
    scores of at least t is simulated as Brownian motion with the same variance, bounded for few events as in
    `expected_cost`: 2,000 curves, with a fixed seed.
    The limits are multiples of the spread of the simulated curves at each threshold, and contain a share ``level`` of them
    entirely, on both axes. The limits of the area are those of the simulated areas. Above a level of 0.99 too few curves
    are left, and limits grow as those of a normal distribution.

    *With a bound on c.* Let A and B be the positives with scores from t on and below t, as shares of all rows, and let
    no interval of scores have an error above c. Then TPR = A / (A + B) is largest with c more in A and c less in B, and
    exceeds its estimate by c / (A + B): the limits TPR +- n c / sum f and FPR +- n c / sum (1 - f) hold together, at all
    t. They are clipped to possible values: A lies between 0 and the share of rows predicted positive. For label noise,
    q sqrt(sum w^2 v) / W is added to c, where q is a quantile of the range of Brownian motion and v = f (1 - f) if scores
    are calibrated. If an interval may have error c, E[(y - f)^2] = E[f (1 - f)] + E[(1 - 2 f) (y - f)] exceeds that by up
    to c (|g_0| + |g_1| + |g_0 - g_1|) / 2, with g the values of 1 - 2 f at the lowest and the highest score, and v is
    increased accordingly. For the population, sum w f over any interval has an error of at most q sqrt(V), V a bound on
    sum w^2 f^2, and sum w (1 - f) likewise, as a centred sum varies less than one that is not (Anderson 1955). The error
    probability is split equally between calibration and the other component, and there between positives and negatives. The
    AUC is smallest along (largest FPR, smallest TPR): moving a point of a rising curve right or down removes area.

    References
    ----------
    Gao, Parameswaran & Peng (2017), "On the Interpretability of Conditional Probability Estimates in the Agnostic Setting",
    Electronic Journal of Statistics 11(2), doi:10.1214/17-EJS1376SI, arXiv:1506.03018.

    Examples
    --------
    >>> expected_roc([0.1, 0.4, 0.8])
    <ExpectedCurve AUC 0.8167, 0 to 1 at 90% (assuming calibrated scores)>
    >>> expected_roc([0.1, 0.4, 0.8], 0.01, band="paper")
    <ExpectedCurve AUC 0.8167, 0.7785 to 0.8455 by c alone (c 0.01, as given)>
    """
    inputs = read_inputs(p, labelled, level=level, target=target, weight=weight, segments=segments)
    return _estimate_curve("roc", inputs, band)


def expected_pr(
    p: ArrayLike,
    labelled: Any = None,
    *,
    level: float = 0.9,
    target: Target = "rows",
    band: Band = "joint",
    weight: ArrayLike | None = None,
    segments: Any = None,
) -> ExpectedCurve:
    """Estimate the precision-recall curve of unlabelled rows, with limits that hold at all thresholds at once.

    Parameters
    ----------
    p, labelled, level, target, band, weight, segments
        As for `expected_roc`, as are warnings and the components of the limits. The paper has no such curve; its band is
        here recall +- n c / sum f and precision +- n c / N_t.

    Notes
    -----
    Recall is the TPR of `expected_roc`; precision(t) = sum f 1[f >= t] / N_t, with N_t of n rows predicted positive, and
    with a calibration bound c its limits are +- n c / N_t. If N_t = 0, it is NaN with limits 0 and 1. Average precision is
    the sum of precision times the increase of recall. For its limits, take for each recall r all thresholds at which r may
    be reached first, and sum over r the lowest (highest) limit of precision among them. As the threshold falls, the lower
    limit rises and then falls, the upper one falls: lowest and highest lie at the ends of that range of thresholds.

    Examples
    --------
    >>> curve = expected_pr([0.1, 0.4, 0.8])
    >>> curve.y.round(3), round(curve.area, 3)
    (array([  nan, 0.8  , 0.6  , 0.433]), 0.71)
    """
    inputs = read_inputs(p, labelled, level=level, target=target, weight=weight, segments=segments)
    return _estimate_curve("pr", inputs, band)


def _estimate_curve(kind: CurveKind, inputs: Inputs, band: Band) -> ExpectedCurve:
    rows, evidence, level, target, _, distance = inputs
    check_choice("band", band, ("joint", "paper"))
    if band == "paper":
        level = math.nan
        if evidence is None:
            raise ArgumentError(
                'band="paper" is computed from the error c of the scores, and there is none',
                hint="pass it, or labelled rows, as labelled=",
                parameter="labelled",
            )

    def curve_of(part: UnlabelledRows, name: str | None) -> ExpectedCurve:
        shares = sum_shares(part.p, part.w)
        if band == "paper" and evidence is not None:
            c, source = measured_error(evidence, name)
            x, y, areas = plain_limits(kind, shares, c)
            half_widths = {"calibration": c}
        elif evidence is None or isinstance(evidence, Labelled):
            known = None if evidence is None else evidence.of(name, part)
            clusters = None if evidence is None else evidence.clusters_in(name)
            x, y, areas, half_widths = simulated_limits(kind, shares, known, level, target, clusters)
            source = "" if known is None else describe_labelled(known)
        else:
            c, source = upper_bound(evidence, inputs.failing, name)
            x, y, areas, half_widths = bounded_limits(kind, shares, part, c, level, target)
        columns = (shares.threshold, x.estimate, y.estimate, x.low, x.high, y.low, y.high)
        for column in columns:
            column.setflags(write=False)
        return ExpectedCurve(kind, *columns, *areas, half_widths, level, target, source)

    by_segment = {name: curve_of(part, name) for name, part in rows.by_segment()}
    return replace(curve_of(rows, None), distance=distance, by_segment=by_segment)


# Sums and rates


class RateLimits(NamedTuple):
    """Estimates of a rate with lower and upper limits, one per threshold."""

    estimate: FloatArray
    low: FloatArray
    high: FloatArray


# Both axes with limits, the area with its limits, and the components of the half-width.
CurveLimits = tuple[RateLimits, RateLimits, tuple[float, float, float], dict[str, float]]


class CumulativeShares(NamedTuple):
    """Sums over rows with scores of at least each threshold, as shares of all rows; the first threshold is infinite."""

    heaviest: float  # the share of the heaviest row
    threshold: FloatArray
    predicted: FloatArray
    positive: FloatArray  # expected by the scores, as are negatives
    negative: FloatArray
    squares: FloatArray  # sum w^2, over the squared total weight
    noise: FloatArray  # sum w^2 f (1 - f), over the same

    def take(self, index: IntArray) -> CumulativeShares:
        """Return the shares at the thresholds with these indices."""
        return CumulativeShares(self.heaviest, *(column[index] for column in self[1:]))

    def corrected(self, added: FloatArray) -> CumulativeShares:
        """Move the share ``added`` of all rows from negatives to positives at each threshold, as far as there are any.

        Both remain non-decreasing, and between two thresholds neither increases by more than the share of rows there.
        """
        positive = np.maximum.accumulate(np.clip(self.positive + added, 0.0, self.predicted))
        negative = np.maximum.accumulate(_without_rounding(self.predicted - positive))
        positive = np.maximum.accumulate(_without_rounding(self.predicted - negative))
        return self._replace(positive=positive, negative=negative)


def _without_rounding(share: FloatArray) -> FloatArray:
    return np.where(share > ROUNDING, share, 0.0)


def sum_shares(p: FloatArray, w: FloatArray) -> CumulativeShares:
    """Return cumulative shares of rows with scores ``p``, one threshold per distinct score, whatever the order of rows."""
    order = argsort(-p) if w.min() == w.max() else np.lexsort((w, -p))
    p, w = p[order], w[order]
    p = np.where(p < SMALLEST_SCORE, 0.0, p)
    w = w / w.sum()
    last = np.flatnonzero(np.append(p[1:] != p[:-1], True))
    sums = (np.append(0.0, np.cumsum(column)[last]) for column in (w, w * p, w * (1 - p), w**2, w**2 * p * (1 - p)))
    return CumulativeShares(float(w.max()), np.append(math.inf, p[last]), *sums)


def compute_axes(kind: CurveKind, positive: FloatArray, negative: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return FPR and TPR, or recall and precision, from shares by threshold (last axis); NaN where a denominator is 0."""
    recall = divide(positive, positive[..., -1:])
    if kind == "roc":
        return divide(negative, negative[..., -1:]), recall
    return recall, divide(positive, positive + negative)


def divide(numerator: FloatArray, denominator: FloatArray) -> FloatArray:
    """Divide where the denominator is above 0; NaN elsewhere."""
    defined = denominator > 0
    return np.where(defined, numerator / np.where(defined, denominator, 1.0), math.nan)


def make_monotone(rate: RateLimits) -> RateLimits:
    """Return a rate and its limits as running maxima along the thresholds, since rounding may have decreased them."""
    return RateLimits(*(np.maximum.accumulate(column) for column in rate))


def area_under(x: FloatArray, y: FloatArray) -> FloatArray:
    """Return the trapezoidal area under curves, extended to (0, 0) and (1, 1); their points lie along the last axis."""
    ends = [(0, 0)] * (x.ndim - 1) + [(1, 1)]
    xs, ys = (np.pad(side, ends, constant_values=((0.0, 1.0),)) for side in (x, y))
    return np.asarray(np.clip(np.sum(np.diff(xs) * (ys[..., 1:] + ys[..., :-1]), axis=-1) / 2, 0.0, 1.0))


def average_precision(recall: FloatArray, precision: FloatArray) -> FloatArray:
    """Return the sum of precision times the increase of recall, along the last axis."""
    return np.asarray(np.sum(np.diff(recall) * precision[..., 1:], axis=-1))


def simulated_limits(
    kind: CurveKind,
    shares: CumulativeShares,
    labelled: Scored | None,
    level: float,
    target: Target,
    clusters: IntArray | None = None,
) -> CurveLimits:
    """Correct a curve by labelled rows, simulate its noise, and return limits that contain a share ``level`` of curves."""
    residuals = None if labelled is None else _Residuals(labelled, clusters, (1 - level) / 2)
    full = shares if residuals is None else shares.corrected(residuals.smoothed(shares))
    index = _choose_thresholds(full)
    grid = full.take(index)
    steps = _StepVariances(grid, residuals, target)
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
    factor = upper_quantile(np.maximum(axes[0].largest, axes[1].largest), level)
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
    reach = upper_quantile(np.abs(errors[0]).max(axis=1), level)
    own, known = float((steps.labels + steps.rows * steps.mean**2).sum()), float(steps.known.sum())
    variances = {} if residuals is None else {"calibration": known}
    variances["label noise" if target == "rows" else "sampling"] = own
    total = own + known or 1.0
    half_widths = {name: reach * math.sqrt(variance / total) for name, variance in variances.items()}
    return x, y, _limit_area(area, area_errors, level, row_effect, least), half_widths


def upper_quantile(sizes: FloatArray, level: float) -> float:
    """Return the quantile of simulated sizes, extrapolated as that of a normal distribution above HIGHEST_LEVEL."""
    return float(np.quantile(sizes, min(level, HIGHEST_LEVEL))) * _extrapolation(level)


def _extrapolation(level: float) -> float:
    """Return the ratio (at least 1) of normal quantiles of ``level`` and HIGHEST_LEVEL, conservative for maxima."""
    highest, wanted = (-NormalDist().inv_cdf((1 - one) / 2) for one in (HIGHEST_LEVEL, max(level, HIGHEST_LEVEL)))
    return wanted / highest


class _AxisErrors:
    """Errors of simulated curves on one axis and, per curve, the largest one, in units of the spread at its threshold."""

    def __init__(self, exact: FloatArray, simulated: FloatArray, scale: FloatArray, heaviest: float) -> None:
        # A simulated curve without a denominator may be anywhere; an exact one without a denominator has no error.
        errors = np.where(np.isnan(exact), 0.0, np.where(np.isnan(simulated), 1.0, simulated - exact))
        self.scale = scale
        self.row_effect = heaviest * scale  # the change that a single row makes: no limit is narrower than that
        self.spread = np.sqrt(np.mean(errors**2, axis=0))
        unit = np.maximum(np.hypot(self.spread, self.row_effect), np.finfo(float).tiny)
        self.largest = np.max(np.abs(errors) / unit, axis=1)

    def half_width(self, factor: float, slack: float, overshoot: FloatArray) -> FloatArray:
        """Return half-widths of ``factor`` spreads, plus ``overshoot`` between thresholds; ``slack`` is for few rows."""
        few = slack * self.row_effect
        return np.asarray(factor * (np.hypot(self.spread, few) + few) + overshoot * self.scale)


class _Residuals:
    """Cumulative residuals of labelled rows from the highest score down, as shares of their weight."""

    def __init__(self, rows: Scored, clusters: IntArray | None = None, failing: float = 0.05) -> None:
        order = np.lexsort((rows.w, rows.y, -rows.p))
        y, f, w = (column[order] for column in rows)
        errors = w * (y - f) / w.sum()
        self.score, self.rows = f, len(f)
        self.sums, self.squares = (np.append(0.0, np.cumsum(column)) for column in (errors, errors**2))
        self.heaviest = float(w.max() / w.sum())
        self.size = float(w.sum() ** 2 / np.sum(w**2))
        # If few or no events were observed, the expected ones count.
        self.variance = max(float(self.squares[-1]), float(np.sum(w**2 * f * (1 - f)) / w.sum() ** 2))
        if clusters is not None:
            self.variance = max(self.variance, likely_variance(rows, clusters, failing) / float(w.sum()) ** 2)

    def at(self, sums: FloatArray, threshold: FloatArray) -> FloatArray:
        """Return a cumulative sum, `sums` or `squares`, over the labelled rows with scores of at least each threshold."""
        return np.asarray(sums[np.searchsorted(-self.score, -threshold, side="right")])

    def smoothed(self, shares: CumulativeShares) -> FloatArray:
        """Return the cumulative residuals at each threshold of ``shares``, interpolated between a few of the thresholds."""
        position = shares.predicted + divide(shares.positive, shares.positive[-1:])
        position = np.where(np.isnan(position), 2 * shares.predicted, position)
        knots = int(np.clip(self.rows // ROWS_PER_KNOT, 1, KNOTS))
        index = np.searchsorted(position, np.linspace(0.0, position[-1], knots + 1)).clip(0, len(position) - 1)
        index = np.unique(index)
        return np.interp(position, position[index], self.at(self.sums, shares.threshold[index]))


def _choose_thresholds(shares: CumulativeShares) -> IntArray:
    """Return indices of thresholds to simulate: the highest, then evenly along rows and positives, both ends included."""
    count = len(shares.threshold)
    if count <= GRID:
        return np.arange(count)
    position = shares.predicted + np.nan_to_num(divide(shares.positive, shares.positive[-1:]))
    even = np.searchsorted(position, np.linspace(position[0], position[-1], GRID - HIGHEST))
    return np.unique(np.concatenate([np.arange(HIGHEST), even.clip(0, count - 1), [count - 1]]))


class _StepVariances:
    """Variances, by source, of what the rows between two adjacent thresholds add to the cumulative shares.

    ``labels`` is label noise, ``known`` the error of the correction from labelled rows, ``rows`` the sampling of rows, of
    which a share ``mean`` is positive; ``heaviest`` is the largest change by a single row.
    """

    def __init__(self, grid: CumulativeShares, residuals: _Residuals | None, target: Target) -> None:
        labels, squares = (np.diff(column, prepend=0.0) for column in (grid.noise, grid.squares))
        self.known, self.heaviest, zeros = np.zeros(len(labels)), grid.heaviest, np.zeros(len(labels))
        if residuals is not None:
            # The position of errors is taken half from the labelled rows and half from the scores: either may have gaps.
            shapes = [np.diff(residuals.at(residuals.squares, grid.threshold), prepend=0.0), labels]
            shapes = [shape for shape in shapes if shape.sum() > 0] or [squares]  # no error seen or expected: anywhere
            self.known = residuals.variance * np.mean([shape / shape.sum() for shape in shapes], axis=0)
            labels = self.known * residuals.size * grid.squares[-1]
            self.heaviest += residuals.heaviest
        self.mean = np.nan_to_num(divide(np.diff(grid.positive, prepend=0.0), np.diff(grid.predicted, prepend=0.0)))
        self.labels: FloatArray = labels if target == "rows" else zeros
        self.rows: FloatArray = zeros if target == "rows" else squares
        # The total variance for positives, or for negatives if larger.
        self.variance = self.labels + self.known + self.rows * np.maximum(self.mean, 1 - self.mean) ** 2


def _simulate_shares(
    grid: CumulativeShares, steps: _StepVariances, target: Target
) -> tuple[tuple[FloatArray, FloatArray], FloatArray, FloatArray]:
    """Return simulated errors, (draws, thresholds), of the shares of positives and negatives, and the shares with them."""
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
    """Return a rate with limits made non-decreasing; with target "rows", the first limits are 0 and the last ones 1."""
    if target == "rows" and not math.isnan(rate.estimate[0]):
        for column in (rate.low, rate.high):
            column[0], column[-1] = 0.0, 1.0
    return make_monotone(rate)


def _limit_area(
    area: float, errors: FloatArray, level: float, row_effect: float, least: float
) -> tuple[float, float, float]:
    """Return an area and limits by simulated ``errors``, ``least`` or more SDs (widened by ``row_effect``) away from it."""
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
    """Return the errors of average precision that simulated ``errors`` of shares cause, to first order, without bias.

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
    return *limits, {"calibration": c, component: max(errors)}


def plain_limits(
    kind: CurveKind, shares: CumulativeShares, c: float
) -> tuple[RateLimits, RateLimits, tuple[float, float, float]]:
    """Return both axes and the area with the band of the paper: rates +- n c over what they are divided by, clipped."""
    estimates = compute_axes(kind, shares.positive, shares.negative)
    recall, fpr = (np.full(len(shares.predicted), share[-1]) for share in (shares.positive, shares.negative))
    axes = []
    for estimate, by in zip(estimates, (fpr, recall) if kind == "roc" else (recall, shares.predicted), strict=True):
        half = divide(np.full(len(by), c), by)
        known = ~np.isnan(estimate)
        low, high = (
            np.where(known, np.clip(estimate - half, 0, 1), 0.0),
            np.where(known, np.clip(estimate + half, 0, 1), 1.0),
        )
        axes.append(RateLimits(estimate, low, high))
    x, y = axes
    if kind == "roc":
        pairs = ((x.estimate, y.estimate), (x.high, y.low), (x.low, y.high))
        areas = [float(area_under(*pair)) for pair in pairs]
        return x, y, (areas[0], areas[1], areas[2])
    return x, y, _average_precision_limits(make_monotone(x), y)


def limit_by_errors(
    kind: CurveKind, shares: CumulativeShares, positives: float, negatives: float, target: Target
) -> tuple[RateLimits, RateLimits, tuple[float, float, float]]:
    """Return both axes and the area with limits, for errors of the shares of up to ``positives`` and ``negatives``."""
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
