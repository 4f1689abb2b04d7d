"""Expected ROC and precision-recall curves of unlabelled rows, with simultaneous limits."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trueup.data.columns import frame_like
from trueup.decisions.curve_limits import CurveKind, bounded_limits, simulated_limits, sum_shares
from trueup.decisions.evidence import Inputs, Labelled, describe_labelled, read_inputs, upper_bound
from trueup.decisions.rules import check_threshold
from trueup.metrics.result import Result

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import ArrayLike

    from trueup._types import FloatArray
    from trueup.decisions.inputs import Target, UnlabelledRows


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
        Probability that all limits hold at once.
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
        limits = f"{self.area_low:.4g} to {self.area_high:.4g} at {100 * self.level:g}%"
        return f"<ExpectedCurve {name} {self.area:.4g}, {limits} ({self.evidence or 'assuming calibrated scores'})>"


def expected_roc(
    p: ArrayLike,
    labelled: Any = None,
    *,
    level: float = 0.9,
    target: Target = "rows",
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
    3.3).

    *With labelled rows, or without evidence.* Labelled rows add their residuals, sum w (y - f) 1[f >= t] / W, evaluated at
    some thresholds and interpolated between them. The rest is noise: of the labels of these rows and of the labelled ones;
    for the population, also of which rows were drawn. Its sums over scores from t on are Brownian motion in their variance,
    which is bounded for few events as in `expected_cost`. 2,000 curves with such noise are simulated, with a fixed seed.
    The limits are multiples of the spread of the simulated curves at each threshold, and contain a share ``level`` of them
    entirely, on both axes. The limits of the area are those of the simulated areas. Above a level of 0.99 too few curves
    are left, and limits grow as those of a normal distribution.

    *With a bound on c.* Let A and B be the positives with scores from t on and below t, as shares of all rows, and let
    no interval of scores have an error above c. Then TPR = A / (A + B) is largest with c more in A and c less in B, and
    exceeds its estimate by c / (A + B): the limits TPR +- n c / sum f and FPR +- n c / sum (1 - f) hold together, at all
    t. They are cut to what rows there are: A lies between 0 and the share of rows predicted positive. For label noise,
    q sqrt(sum w^2 v) / W is added to c, where q is a quantile of the range of Brownian motion and v = f (1 - f) if scores
    are calibrated. If an interval may be off by c, E[(y - f)^2] = E[f (1 - f)] + E[(1 - 2 f) (y - f)] exceeds that by up
    to c (|g_0| + |g_1| + |g_0 - g_1|) / 2, with g the values of 1 - 2 f at the lowest and the highest score, and v is
    increased accordingly. For the population, sum w f over any interval is off by at most q sqrt(V), V a bound on sum w^2
    f^2, and sum w (1 - f) likewise, because a centred sum varies less than one that is not (Anderson 1955). The error
    probability is split equally between calibration and the other component, and there between positives and negatives. The
    AUC is smallest along (largest FPR, smallest TPR): moving a point of a rising curve right or down removes area.

    Examples
    --------
    >>> expected_roc([0.1, 0.4, 0.8])
    <ExpectedCurve AUC 0.8167, 0 to 1 at 90% (assuming calibrated scores)>
    """
    inputs = read_inputs(p, labelled, level=level, target=target, weight=weight, segments=segments)
    return _estimate_curve("roc", inputs)


def expected_pr(
    p: ArrayLike,
    labelled: Any = None,
    *,
    level: float = 0.9,
    target: Target = "rows",
    weight: ArrayLike | None = None,
    segments: Any = None,
) -> ExpectedCurve:
    """Estimate the precision-recall curve of unlabelled rows, with limits that hold at all thresholds at once.

    Parameters
    ----------
    p, labelled, level, target, weight, segments
        As for `expected_roc`, as are warnings and the components of the limits.

    Notes
    -----
    Recall is the TPR of `expected_roc`; precision(t) = sum f 1[f >= t] / N_t, with N_t the rows predicted positive, and
    limits +- n c / N_t. If none is, precision is NaN with limits 0 and 1. Average precision is the sum of precision times
    the growth of recall. Its limits: a recall of r is first reached at some threshold where recall may be r or more, and
    before which it may be less. The lowest and the highest limit of precision at those thresholds are summed over r. The
    lower limit of precision first rises and then falls, the upper one falls, so that both are found at the ends.

    Examples
    --------
    >>> curve = expected_pr([0.1, 0.4, 0.8])
    >>> curve.y.round(3), round(curve.area, 3)
    (array([  nan, 0.8  , 0.6  , 0.433]), 0.71)
    """
    inputs = read_inputs(p, labelled, level=level, target=target, weight=weight, segments=segments)
    return _estimate_curve("pr", inputs)


def _estimate_curve(kind: CurveKind, inputs: Inputs) -> ExpectedCurve:
    rows, evidence, level, target, _, distance = inputs

    def curve_of(part: UnlabelledRows, name: str | None) -> ExpectedCurve:
        shares = sum_shares(part.p, part.w)
        if evidence is None or isinstance(evidence, Labelled):
            known = None if evidence is None else evidence.of(name)
            x, y, areas, half_widths = simulated_limits(kind, shares, known, level, target)
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
