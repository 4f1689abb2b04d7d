"""Expected confusion matrices of unlabelled rows, and their rates, with intervals."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trueup.data.columns import frame_like
from trueup.decisions.evidence import Target, assumption_of, evidence_text, format_amount, read_inputs
from trueup.decisions.intervals import (
    SegmentSums,
    compute_interval,
    describe_evidence,
    sum_segments,
)
from trueup.decisions.rules import BestRule, check_threshold
from trueup.metrics.result import Result

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import ArrayLike

    from trueup._types import BoolArray, FloatArray
    from trueup.decisions.evidence import Inputs


COUNTS = ("tp", "fp", "fn", "tn")
# Numerator and denominator of each rate: multiples of tp, fp, fn and tn.
RATES = {
    "prevalence": ((1, 0, 1, 0), (1, 1, 1, 1)),
    "predicted_positive": ((1, 1, 0, 0), (1, 1, 1, 1)),
    "precision": ((1, 0, 0, 0), (1, 1, 0, 0)),
    "recall": ((1, 0, 0, 0), (1, 0, 1, 0)),
    "specificity": ((0, 0, 0, 1), (0, 1, 0, 1)),
    "npv": ((0, 0, 0, 1), (0, 0, 1, 1)),
    "accuracy": ((1, 0, 0, 1), (1, 1, 1, 1)),
    "f1": ((2, 0, 0, 0), (2, 1, 1, 0)),
}
BISECTIONS = 40  # steps to find the end of an interval of a rate


class Estimate(NamedTuple):
    """An estimate and the limits of its interval."""

    estimate: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class ExpectedConfusion(Result):
    """Expected confusion matrix of unlabelled rows, and its rates, each with an interval of its own.

    Attributes
    ----------
    threshold : float
        Rows of this score or more are predicted positive.
    tp, fp, fn, tn : Estimate
        True and false positives, false and true negatives: numbers of rows (target "rows"), or shares ("population").
    prevalence, predicted_positive : Estimate
        Share of positive rows, and of rows predicted positive.
    precision, recall, specificity, npv, accuracy, f1 : Estimate
        NaN with limits 0 and 1 where the expected denominator is 0.
    level : float
        Coverage probability of each interval by itself.
    target : {"rows", "population"}
    rows : float
        Number of rows, or their total weight.
    evidence : str
        Source of corrections and bounds; empty if the scores are assumed to be calibrated.
    distance : float
        Distance of the score distribution from that of the labelled rows, beyond a tolerance; NaN without labelled rows.
    by_segment : mapping of str to ExpectedConfusion
    """

    threshold: float
    tp: Estimate
    fp: Estimate
    fn: Estimate
    tn: Estimate
    prevalence: Estimate
    predicted_positive: Estimate
    precision: Estimate
    recall: Estimate
    specificity: Estimate
    npv: Estimate
    accuracy: Estimate
    f1: Estimate
    level: float
    target: Target
    rows: float
    evidence: str
    distance: float = math.nan
    by_segment: Mapping[str, ExpectedConfusion] = field(default_factory=dict)
    derived = ("assumption",)

    @property
    def assumption(self) -> str:
        """What the intervals assume: calibrated scores, or that nothing has changed since the labelled rows."""
        return assumption_of(self.evidence)

    def to_frame(self, like: Any = None) -> Any:
        """Return one row per count and rate, as a frame of the library of ``like``, or as a dict of arrays without it."""
        names = [*COUNTS, *RATES]
        values = np.array([getattr(self, name) for name in names])
        columns = {"measure": np.array(names, object)}
        return frame_like(columns | {name: values[:, k] for k, name in enumerate(Estimate._fields)}, like)

    def __repr__(self) -> str:
        counts = ", ".join(f"{name} {format_amount(getattr(self, name).estimate)}" for name in COUNTS)
        rates = ", ".join(
            f"{name} {rate.estimate:.3g} ({rate.low:.3g} to {rate.high:.3g})"
            for name, rate in (("precision", self.precision), ("recall", self.recall))
        )
        evidence = evidence_text(self.evidence)
        return f"<ExpectedConfusion at {self.threshold:.4g}: {counts}; {rates} at {100 * self.level:g}% ({evidence})>"


def expected_confusion(
    p: ArrayLike,
    threshold: float | BestRule,
    labelled: Any = None,
    *,
    level: float = 0.9,
    target: Target = "rows",
    weight: ArrayLike | None = None,
    segments: Any = None,
    tuned: bool = False,
) -> ExpectedConfusion:
    """Estimate the confusion matrix of unlabelled rows, and its rates, with intervals.

    Parameters
    ----------
    p : array-like, shape (n,)
        Scores of the rows.
    threshold : float, or BestRule of two actions
        Rows of this score or more are predicted positive; infinity predicts none.
    labelled, level, target, weight, segments, tuned
        As for `expected_cost`: labelled rows correct the estimates, a bound only widens the intervals. ``tuned`` states
        that the labelled rows were used to choose the threshold.

    Warns
    -----
    ShiftWarning
        If the score distribution differs from that of the labelled rows.

    Notes
    -----
    A count is a cost: true positives are the cost of paying 1 for each positive row predicted positive. Its interval is
    that of `expected_cost`. The interval of a rate R = A / B, such as recall = tp / (tp + fn), contains the R for which the
    cost A - R B may be 0 (Fieller 1954); this also holds for small B. Where these R form two ranges, the interval covers
    both. For the population, the spread of the cost of a row is bounded over all scores in [0, 1], since few or no rows may
    be predicted positive; intervals of counts are never narrower than those of costs.

    Examples
    --------
    >>> confusion = expected_confusion([0.1, 0.3, 0.9], 0.2)
    >>> confusion
    <ExpectedConfusion at 0.2: tp 1.2, fp 0.8, fn 0.1, tn 0.9; precision 0.6 (0.121 to 1), recall ...>
    >>> round(confusion.recall.estimate, 3)
    0.923
    """
    cut = check_threshold(
        threshold.threshold if isinstance(threshold, BestRule) else threshold,
        "threshold=0.2 predicts rows of 0.2 or more positive, 0 all of them, infinity none; a BestRule of one action has "
        "no threshold",
    )
    inputs = read_inputs(p, labelled, level=level, target=target, weight=weight, segments=segments, tuned=tuned)
    overall, single = sum_segments(inputs, [cut])
    by_segment = {name: _confusion_of([part], cut, inputs) for name, part in single.items()}
    return replace(_confusion_of(overall, cut, inputs), distance=inputs.distance, by_segment=by_segment)


def _outcomes(multiples: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Split coefficients (k, 4) of tp, fp, fn, tn into positive and negative rows, each (k, 2): below, above threshold."""
    return multiples[:, [2, 0]], multiples[:, [3, 1]]


def _confusion_of(segments: Sequence[SegmentSums], threshold: float, inputs: Inputs) -> ExpectedConfusion:
    interval = compute_interval(segments, *_outcomes(np.eye(4)), inputs)
    counts = np.array(interval[:3])
    weight = np.sum([part.rows.weight for part in segments], axis=0)
    # Of these rows the number predicted positive is known: tp and fp are among them, fn and tn among the others.
    possible = weight[[1, 1, 0, 0]] > 0 if inputs.target == "rows" else np.ones(4, bool)
    values = np.hstack([counts, _rates(segments, counts[0], possible, inputs)]).T.tolist()
    estimates: dict[str, Any] = {name: Estimate(*value) for name, value in zip((*COUNTS, *RATES), values, strict=True)}
    return ExpectedConfusion(
        threshold,
        **estimates,
        level=inputs.level,
        target=inputs.target,
        rows=float(weight.sum()),
        evidence=describe_evidence(segments),
    )


def _rates(segments: Sequence[SegmentSums], counts: FloatArray, possible: BoolArray, inputs: Inputs) -> FloatArray:
    """Return estimates and limits of all `RATES`; ``possible`` marks which ``counts`` (tp, fp, fn, tn) can exceed 0."""
    numerator, denominator = (np.array(side, np.float64) for side in zip(*RATES.values(), strict=True))
    below = denominator @ counts
    defined = below > 0
    rate = np.minimum(numerator @ counts / np.where(defined, below, 1.0), 1.0)
    low, high = _fieller_limits(segments, numerator, denominator, rate, inputs)
    # A rate is a mean of numerator / denominator over the counts in its denominator: it lies between the extremes.
    counted = (denominator > 0) & possible
    each = numerator / np.where(counted, denominator, 1.0)
    least, most = np.where(counted, each, 1.0).min(axis=1), np.where(counted, each, 0.0).max(axis=1)
    low, high = np.minimum(np.maximum(low, least), rate), np.maximum(np.minimum(high, most), rate)
    return np.where(defined, [rate, low, high], [[math.nan], [0.0], [1.0]])


def _fieller_limits(
    segments: Sequence[SegmentSums],
    numerator: FloatArray,
    denominator: FloatArray,
    rate: FloatArray,
    inputs: Inputs,
) -> FloatArray:
    """Find the lowest and the highest R for which the interval of numerator - R x denominator contains 0.

    Half-widths are convex in R: as R moves from the estimate ``rate`` to 0 or 1, 0 leaves the interval at most once.
    """
    numerator, denominator = np.tile(numerator, (2, 1)), np.tile(denominator, (2, 1))
    limit = np.repeat([0.0, 1.0], len(rate))

    def is_inside(trial: FloatArray) -> BoolArray:
        interval = compute_interval(segments, *_outcomes(numerator - trial[:, None] * denominator), inputs)
        return np.asarray(np.where(limit == 0, interval.total, -interval.total) <= interval.half_width)

    start = np.tile(rate, 2)
    reaches_limit, moves = is_inside(limit), is_inside(start)
    inner, outer = start, limit
    for _ in range(BISECTIONS):
        middle = (inner + outer) / 2
        inside = is_inside(middle)
        inner, outer = np.where(inside, middle, inner), np.where(inside, outer, middle)
    return np.where(reaches_limit, limit, np.where(moves, inner, start)).reshape(2, -1)
