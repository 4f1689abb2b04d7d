"""ROC and precision-recall curves of rows without labels, with bands."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trueup.data.frame import frame_like, to_jsonable
from trueup.decisions.drawn import draw_limits
from trueup.decisions.evidence import KEPT, Labelled, as_bound, compare_with, spread, told_of, upper_bound
from trueup.decisions.ground import Range, average_precision, divide, lay, rising, under
from trueup.decisions.inputs import Target, check_level, check_target, is_number, unlabelled
from trueup.errors import ArgumentError
from trueup.metrics.inference import range_quantile

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import ArrayLike

    from trueup._types import FloatArray, IntArray
    from trueup.decisions.evidence import Bound
    from trueup.decisions.ground import Ground, Kind
    from trueup.decisions.inputs import Unlabelled


AXES = {"roc": ("fpr", "tpr"), "pr": ("recall", "precision")}
SHOWN = 1001  # points that a dict holds, at most
COLUMNS = ("threshold", "x", "x_low", "x_high", "y", "y_low", "y_high")


class CurvePoint(NamedTuple):
    """One point of a curve with its limits; rows are called positive whose score is the threshold or more."""

    threshold: float
    x: float
    x_low: float
    x_high: float
    y: float
    y_low: float
    y_high: float


@dataclass(frozen=True, eq=False)
class ExpectedCurve:
    """A curve of rows without labels, with limits that hold at all thresholds at once.

    Attributes
    ----------
    kind : {"roc", "pr"}
    threshold : ndarray
        Descending, one a distinct score; rows are called positive whose score is that or more. The first is infinite: it
        calls none.
    x, y : ndarray
        False and true positive rate ("roc"), or recall and precision ("pr"). NaN where there is nothing to divide by: rates
        of positives where all scores are 0, rates of negatives where all are 1, precision where none is called.
    x_low, x_high, y_low, y_high : ndarray
        Limits; 0 and 1 where the estimate is NaN.
    area, area_low, area_high : float
        The area under the curve (AUC), ties counted half, or average precision, the step sum.
    half_widths : mapping of str to float
        By how much, as a share of all rows, the positives above a threshold may be off, and why: "calibration", where there
        is evidence, and "label noise" (target "rows") or "sampling" (target "population").
    level : float
        How often all limits hold at once.
    target : {"rows", "population"}
    evidence : str
        Where the calibration part comes from; empty where scores are taken at their word.
    distance : float
        Of the distribution of the scores from that of the labelled ones, small moves forgiven; NaN where there are none.
    by_segment : mapping of str to ExpectedCurve
        Each segment by itself, its limits as sure as those of the whole.
    """

    kind: Kind
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
    distance: float
    by_segment: Mapping[str, ExpectedCurve] = field(default_factory=dict)

    def at(self, threshold: float) -> CurvePoint:
        """Give the point where rows of this score or more are called positive.

        Examples
        --------
        >>> point = expected_roc([0.1, 0.4, 0.8]).at(0.4)
        >>> round(point.x, 3), round(point.y, 3)
        (0.471, 0.923)
        """
        if not is_number(threshold) or not (0 <= threshold <= 1 or threshold == math.inf):
            raise ArgumentError(
                f"the threshold must lie in [0, 1], as scores do; got {threshold!r:.60}",
                hint="write curve.at(0.2); infinity calls no row positive",
            )
        here = int(np.searchsorted(-self.threshold, -float(threshold), side="right")) - 1
        return CurvePoint(float(threshold), *(float(getattr(self, name)[here]) for name in COLUMNS[1:]))

    def to_dict(self) -> dict[str, Any]:
        """Give plain values fit for JSON: what is not finite becomes None.

        Of a curve with more than 1,001 points as many are kept, evenly along thresholds and positives; both ends are.
        """
        kept = self._thinned()
        points = {name: getattr(self, name)[kept] for name in COLUMNS}
        rest = {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in points}
        rest["by_segment"] = {name: one.to_dict() for name, one in self.by_segment.items()}
        return {name: to_jsonable(value) for name, value in {"kind": self.kind, **points, **rest}.items()}

    def _thinned(self) -> IntArray:
        """Choose the points to show."""
        many = len(self.threshold)
        if many <= SHOWN:
            return np.arange(many)
        found = self.y if self.kind == "roc" else self.x
        along = np.arange(many) / many + np.nan_to_num(found)
        near = np.searchsorted(along, np.linspace(along[0], along[-1], SHOWN)[:-1])
        return np.unique(np.append(near, many - 1))

    def to_frame(self, like: Any = None) -> Any:
        """Give one line a threshold, all of them, in the library of ``like``; a dict of arrays without it."""
        across, up = AXES[self.kind]
        named = {name: name.replace("x", across, 1).replace("y", up, 1) for name in COLUMNS[1:]}
        columns = {"threshold": self.threshold.copy()}
        return frame_like(columns | {name: getattr(self, at).copy() for at, name in named.items()}, like)

    def __repr__(self) -> str:
        name = "AUC" if self.kind == "roc" else "average precision"
        told = self.evidence or "scores taken at their word"
        span = f"{self.area_low:.4g} to {self.area_high:.4g} at {100 * self.level:g}%"
        return f"<ExpectedCurve {name} {self.area:.4g}, {span} ({told})>"


def expected_roc(
    p: ArrayLike, labelled: Any = None, *,
    level: float = 0.9, target: Target = "rows", weight: ArrayLike | None = None, segments: Any = None,
) -> ExpectedCurve:  # fmt: skip
    """Draw the ROC curve of rows without labels, with limits that hold at all thresholds at once.

    Parameters
    ----------
    p : array-like, shape (n,)
        Scores of the rows.
    labelled : (y, p), Labelled, fitted calibrator, CalibrationBound, Audit or float, optional
        What is known of the scores' errors. Best are labelled rows that did not teach the model, or a calibrator, which
        held some out: they correct the curve, too, and limits are far narrower than by a bound on c(f). Without it the
        scores are taken at their word.
    level : float
    target : {"rows", "population"}
        The curve that these rows will turn out to have, or that of the population they come from.
    weight : array-like, optional
    segments : array-like of labels, or mapping of column to values, optional
        The segment of each row. Each has a curve by what the bound knows of it; the whole goes by the bound of all rows.

    Warns
    -----
    ShiftWarning
        Where the scores come from elsewhere than the labelled ones.

    Notes
    -----
    TPR(t) = sum f 1[f >= t] / sum f, FPR(t) = sum (1 - f) 1[f >= t] / sum (1 - f) (Gao, Parameswaran & Peng 2017, section
    3.3).

    *With labelled rows*, or with nothing. Labelled rows add what they were off by, sum w (y - f) 1[f >= t] / W, taken at
    some thresholds and in between evenly. What is left is noise: of the labels of these rows and of the labelled ones; for
    the population, of which rows came in place of the former. Its sums over scores from t on are Brownian motion in their
    variance, a bound for few events as for `expected_cost`. 2,000 curves with such noise are drawn, always the same ones
    for the same rows; the limits, at each threshold so many times the spread of the curves there, hold all of a share
    ``level`` of them, both axes at once. The limits of the area are those of the areas drawn. Beyond a level of 0.99 too
    few curves are left, and limits grow as those of a normal distribution do.

    *With a bound on c.* Let A and B be the positives with scores from t on and below it, as shares of all rows, and let the
    share in no interval be off by more than c. Then TPR = A / (A + B) is largest with c more in A and c less in B, and is
    then above its estimate by c / (A + B): the limits are TPR +- n c / sum f and FPR +- n c / sum (1 - f), and both hold
    together, at all t. They are cut where there are no rows to be positive: A lies between 0 and the share of rows called.
    To c is added q sqrt(sum w^2 v) / W for what the labels of these rows happen to be, q the quantile of the range of
    Brownian motion. Here v = f (1 - f) where scores are right. Where an interval may be off by c, E[(y - f)^2] = E[f (1 -
    f)] + E[(1 - 2 f) (y - f)] is above that by up to c (|g_0| + |g_1| + |g_0 - g_1|) / 2, g the values of 1 - 2 f at both
    ends of the scores; v has that much more. For the population, sum w f over any interval is off by at most q sqrt(V), V a
    bound on sum w^2 f^2, and sum w (1 - f) likewise: a centred sum varies less than one that is not (Anderson 1955). What
    may go wrong is shared equally between calibration and the other part, and there between positives and negatives. The
    AUC is smallest along (largest FPR, smallest TPR): moving a point of a rising curve right or down takes area away.

    Examples
    --------
    >>> expected_roc([0.1, 0.4, 0.8])
    <ExpectedCurve AUC 0.8167, 0 to 1 at 90% (scores taken at their word)>
    """
    return _draw("roc", p, labelled, level, target, weight, segments)


def expected_pr(
    p: ArrayLike, labelled: Any = None, *,
    level: float = 0.9, target: Target = "rows", weight: ArrayLike | None = None, segments: Any = None,
) -> ExpectedCurve:  # fmt: skip
    """Draw the precision-recall curve of rows without labels, with limits that hold at all thresholds at once.

    Parameters
    ----------
    p, labelled, level, target, weight, segments
        As for `expected_roc`; so are warnings, and what the limits are made of.

    Notes
    -----
    Recall is the TPR of `expected_roc`; precision(t) = sum f 1[f >= t] / N_t, N_t the rows called, and +- n c / N_t. Where
    none is called, precision is NaN between 0 and 1. Average precision is the sum of precision times the growth of recall.
    Its limits: a recall of r is first reached at some threshold where recall may be r or more, and before which it may be
    less. Of the limits of precision at those thresholds the lowest and the highest are taken, and added up over r. The
    lower limit of precision first rises and then falls, the upper one falls, so that both are found at the ends.

    Examples
    --------
    >>> curve = expected_pr([0.1, 0.4, 0.8])
    >>> curve.y.round(3), round(curve.area, 3)
    (array([  nan, 0.8  , 0.6  , 0.433]), 0.71)
    """
    return _draw("pr", p, labelled, level, target, weight, segments)


class _Error(NamedTuple):
    """By how much a share of positives, and one of negatives, may be off in any interval."""

    positives: float
    negatives: float
    parts: dict[str, float]
    evidence: str


def _draw(
    kind: Kind, p: ArrayLike, labelled: Any, level: float, target: Target, weight: ArrayLike | None, segments: Any
) -> ExpectedCurve:
    """Check what is given, and draw the whole and its segments."""
    check_target(target)
    check_level(level)
    rows = unlabelled(p, weight, segments)
    known = as_bound(labelled)
    distance = compare_with(known, rows.p, rows.w)

    def one(part: Unlabelled, name: str | None, distance: float, single: Mapping[str, ExpectedCurve]) -> ExpectedCurve:
        ground = lay(part)
        if known is None or isinstance(known, Labelled):
            mine = None if known is None else known.of(name)
            across, up, areas, parts = draw_limits(kind, ground, mine, level, target)
            told = "" if mine is None else told_of(mine)
        else:
            error = _error(part, ground, known, level, target, name)
            across, up, areas = _bounded(kind, ground, error, target)
            parts, told = error.parts, error.evidence
        limits = (ground.threshold, across.estimate, up.estimate, across.low, across.high, up.low, up.high)
        for column in limits:
            column.setflags(write=False)
        return ExpectedCurve(kind, *limits, *areas, parts, level, target, told, distance, single)

    return one(rows, None, distance, {name: one(part, name, math.nan, {}) for name, part in rows.parts()})


def _error(rows: Unlabelled, ground: Ground, known: Bound, level: float, target: Target, segment: str | None) -> _Error:
    """Bound what shares of rows in an interval of scores may be off by, where a bound on c is all that is known."""
    failing = (1 - level) / 2
    c, told = upper_bound(known, failing, segment)
    if target == "rows":
        ends = 1 - 2 * ground.threshold[[-1, 1]]
        more = c * (np.abs(ends).sum() + np.ptp(ends)) / 2
        name, reach = "label noise", range_quantile(failing)
        sides = [reach * math.sqrt(ground.noise[-1] + more * ground.squares[-1])] * 2
    else:
        w = np.sort(rows.w)  # sums of what is sorted do not depend on the order of rows
        name, reach = "sampling", range_quantile(KEPT * failing / 2) / float(w.sum())
        sides = [reach * spread(np.sort(rows.w * share), w[-1], failing / 2) for share in (rows.p, 1 - rows.p)]
    return _Error(c + sides[0], c + sides[1], {"calibration": c, name: max(sides)}, told)


def _bounded(kind: Kind, ground: Ground, error: _Error, target: Target) -> tuple[Range, Range, tuple[float, float, float]]:
    """Give both axes with their limits, and the area with its own, where no interval is off by more than so much."""
    called, positive, negative = ground[1:4]
    rows_only = target == "rows"  # there, no more are positive than are called; a population may have called others
    most, rest = (called, called[-1] - called) if rows_only else (np.inf, np.inf)
    tp, fp, fn, tn = (
        _around(mass, off, limit)
        for mass, off, limit in (
            (positive, error.positives, most), (negative, error.negatives, most),
            (positive[-1] - positive, error.positives, rest), (negative[-1] - negative, error.negatives, rest),
        )
    )  # fmt: skip
    recall = rising(_share(tp, fn))
    if kind == "roc":
        across = rising(_share(fp, tn))
        pairs = ((across.estimate, recall.estimate), (across.high, recall.low), (across.low, recall.high))
        area, low, high = (float(under(*pair)) for pair in pairs)
        return across, recall, (area, low, high)
    precision = _share(tp, fp)
    return recall, precision, _average_precision(recall, precision)


def _around(mass: FloatArray, error: float, most: Any) -> Range:
    """Give what a share of rows may be: not below 0, nor above the rows that are there."""
    return Range(mass, np.maximum(mass - error, 0.0), np.maximum(np.minimum(mass + error, most), mass))


def _share(one: Range, other: Range) -> Range:
    """Give one over the sum of both; where nothing is expected in either it is NaN, between 0 and 1."""
    estimate = divide(one.estimate, one.estimate + other.estimate)
    # A limit is empty only where all rows are called, or none: the estimate then is what it must be.
    low, high = divide(one.low, one.low + other.high), divide(one.high, one.high + other.low)
    unknown = np.isnan(estimate)
    low, high = np.where(unknown, 0.0, np.fmin(low, estimate)), np.where(unknown, 1.0, np.fmax(high, estimate))
    return Range(estimate, low, high)


def _average_precision(recall: Range, precision: Range) -> tuple[float, float, float]:
    """Give average precision with its limits."""
    area = float(average_precision(recall.estimate, precision.estimate))
    cuts = np.unique(np.concatenate([[0.0, 1.0], recall.low, recall.high]))
    between, width = (cuts[1:] + cuts[:-1]) / 2, np.diff(cuts)
    end = len(recall.low) - 1
    first = np.minimum(np.searchsorted(recall.high, between), end)
    last = np.minimum(np.searchsorted(recall.low, between), end)
    low = float(width @ np.minimum(precision.low[first], precision.low[last]))
    high = float(width @ precision.high[first])
    return area, min(low, area) if area == area else low, max(high, area) if area == area else high
