"""Who is called positive rightly and wrongly at a threshold, among rows without labels."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trueup.data.frame import frame_like, to_jsonable
from trueup.decisions.evidence import Labelled, as_bound, compare_with, quantile, reach_of_all, told_of, upper_bound
from trueup.decisions.inputs import Target, check_level, check_target, is_number, say, unlabelled
from trueup.errors import ArgumentError
from trueup.metrics.inference import likely_root

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import ArrayLike

    from trueup._types import BoolArray, FloatArray
    from trueup.decisions.evidence import Bound
    from trueup.decisions.inputs import Unlabelled


COUNTS = ("tp", "fp", "fn", "tn")
# What a rate divides, and by what: how often tp, fp, fn and tn count in both.
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
HALVINGS = 40  # of an interval of rates, to find where it ends


class Estimate(NamedTuple):
    """An estimate and its limits."""

    estimate: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class ExpectedConfusion:
    """The confusion matrix of rows without labels, and the rates that come from it, each with an interval of its own.

    Attributes
    ----------
    threshold : float
        Rows are called positive whose score is that or more.
    tp, fp, fn, tn : Estimate
        True and false positives, false and true negatives: rows (target "rows"), or shares of rows to come ("population").
    prevalence, predicted_positive : Estimate
        The share of rows that are positive, and of those called so.
    precision, recall, specificity, npv, accuracy, f1 : Estimate
        NaN between 0 and 1 where nothing is expected to divide by.
    level : float
        How often an interval holds what it is about; each by itself.
    target : {"rows", "population"}
    rows : float
        Their number, or their total weight.
    evidence : str
        Where corrections, and what they may be off by, come from; empty where scores are taken at their word.
    distance : float
        Of the distribution of the scores from that of the labelled ones, small moves forgiven; NaN where there are none.
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
    distance: float
    by_segment: Mapping[str, ExpectedConfusion] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Give plain values fit for JSON; what is not finite becomes None."""
        out = {name: getattr(self, name) for name in self.__dataclass_fields__}
        out |= {name: out[name]._asdict() for name in (*COUNTS, *RATES)}
        out["by_segment"] = {name: one.to_dict() for name, one in self.by_segment.items()}
        return {name: to_jsonable(value) for name, value in out.items()}

    def to_frame(self, like: Any = None) -> Any:
        """Give one line a count or rate, in the library of ``like``; a dict of arrays without it."""
        names = [*COUNTS, *RATES]
        found = np.array([getattr(self, name) for name in names])
        columns = {"measure": np.array(names, object)}
        return frame_like(columns | {name: found[:, k] for k, name in enumerate(Estimate._fields)}, like)

    def __repr__(self) -> str:
        counts = ", ".join(f"{name} {say(getattr(self, name).estimate)}" for name in COUNTS)
        rates = ", ".join(
            f"{name} {one.estimate:.3g} ({one.low:.3g} to {one.high:.3g})"
            for name, one in (("precision", self.precision), ("recall", self.recall))
        )
        told = self.evidence or "scores taken at their word"
        return f"<ExpectedConfusion at {self.threshold:.4g}: {counts}; {rates} at {100 * self.level:g}% ({told})>"


def expected_confusion(
    p: ArrayLike, threshold: float, labelled: Any = None, *,
    level: float = 0.9, target: Target = "rows", weight: ArrayLike | None = None, segments: Any = None,
    tuned: bool = False,
) -> ExpectedConfusion:  # fmt: skip
    """Say how many rows without labels are called positive rightly and wrongly, with intervals.

    Parameters
    ----------
    p : array-like, shape (n,)
        Scores of the rows.
    threshold : float, or BestRule of two actions
        Rows are called positive whose score is that or more; infinity calls none.
    labelled, level, target, weight, segments, tuned
        As for `expected_cost`: labelled rows correct the estimates, a bound only widens the intervals. ``tuned`` says
        that the labelled rows had a say in choosing the threshold.

    Warns
    -----
    ShiftWarning
        Where the scores come from elsewhere than the labelled ones.

    Notes
    -----
    A count is a cost: true positives are what it costs to pay 1 for each positive row that is called. Its interval is that
    of `expected_cost`. A rate R = A / B, as recall = tp / (tp + fn), is in its interval where the cost A - R B may be 0
    (Fieller 1954): that holds for small B, too, where a rate minus or plus so much would not. Where the rates that pass are
    in two pieces, the interval reaches over both. For the population, the spread of what rows cost is bounded as that of
    labelled rows is, because none of few rows may be called; intervals of counts are never narrower than those of costs.

    Examples
    --------
    >>> found = expected_confusion([0.1, 0.3, 0.9], 0.2)
    >>> found
    <ExpectedConfusion at 0.2: tp 1.2, fp 0.8, fn 0.1, tn 0.9; precision 0.6 (0.121 to 1), recall ...>
    >>> round(found.recall.estimate, 3)
    0.923
    """
    check_target(target)
    check_level(level)
    at = _threshold(threshold)
    rows = unlabelled(p, weight, segments)
    known = as_bound(labelled)
    distance = compare_with(known, rows.p, rows.w)
    sides = (1 - level) / 2
    if rows.segments is None:
        return _tell([_part(rows, at, known, sides, None, tuned=tuned)], at, level, target, distance, {})
    whole, single = [], {}
    for name, part in rows.parts():
        alone = _part(part, at, known, sides, name, tuned=tuned)
        single[name] = _tell([alone], at, level, target, math.nan, {})
        # Bounds of all segments must hold at once for the whole.
        whole.append(_part(part, at, known, sides / len(rows.segments.names), name, tuned=tuned))
    return _tell(whole, at, level, target, distance, single)


def _threshold(value: Any) -> float:
    value = getattr(value, "threshold", value)
    if not is_number(value) or not (0 <= value <= 1 or value == math.inf):
        raise ArgumentError(
            f"the threshold must lie in [0, 1], as scores do; got {value!r:.60}",
            hint="write threshold=0.2 to call rows of 0.2 or more positive; 0 calls all of them, infinity none; a BestRule "
            "of one action has no threshold",
        )
    return float(value)


class _Known(NamedTuple):
    """Sums of the errors of labelled rows, those called first: enough for the interval of any cost."""

    mean: FloatArray  # sum w (y - f) / W
    squares: FloatArray  # sum w^2 (y - f)^2 / W^2
    heaviest: float  # max w / W
    rows: float  # W^2 / sum w^2
    sides: float


class _Part(NamedTuple):
    """Sums of rows of one kind, those called first, and what is known of their errors."""

    weight: FloatArray  # sum w
    positive: FloatArray  # sum w f
    noise: FloatArray  # sum w^2 f (1 - f)
    moments: FloatArray  # sum w^2 times 1, f, f^2, in columns
    heaviest: float
    known: _Known | None
    bound: float  # on the error of any interval, a row
    evidence: str


def _part(rows: Unlabelled, at: float, bound: Bound | None, sides: float, name: str | None, *, tuned: bool) -> _Part:
    """Sum rows up."""
    p, w = rows.p, rows.w
    weight, positive, noise, *moments = _sums(p >= at, w, w * p, w**2 * p * (1 - p), w**2, w**2 * p, w**2 * p**2)
    known, most, told = None, 0.0, ""
    if isinstance(bound, Labelled):
        y, f, v = mine = bound.of(name)
        total, heaviest, errors = float(v.sum()), float(v.max()), v * (y - f)
        mean, squares = _sums(f >= at, errors / total, (errors / total) ** 2)
        known = _Known(mean, squares, heaviest / total, float(total**2 / np.sum(v**2)), sides)
        told = told_of(mine)
        if tuned:
            most = reach_of_all(mine, sides)
            told += ", for every threshold at once"
    elif bound is not None:
        most, told = upper_bound(bound, sides, name)
    return _Part(weight, positive, noise, np.stack(moments, axis=1), float(w.max()), known, most, told)


def _sums(called: BoolArray, *columns: FloatArray) -> list[FloatArray]:
    """Sum columns over the rows that are called, and over the others."""
    return [np.array([column[called].sum(), column[~called].sum()]) for column in columns]


def _interval(parts: list[_Part], costs: FloatArray, level: float, target: Target) -> tuple[FloatArray, FloatArray]:
    """Give the total of what rows cost, and its half-width, as `expected_cost` does; a line is what tp, fp, fn, tn cost."""
    base, difference = costs[:, 1::2], costs[:, ::2] - costs[:, 1::2]
    by_scores, correction, own, varies, bounded = np.zeros((5, len(costs)))
    swing = np.abs(np.diff(difference, prepend=0.0, append=0.0)).sum(axis=1) / 2
    for part in parts:
        total = part.weight.sum()
        by_scores += base @ part.weight + difference @ part.positive
        bounded += total * part.bound * swing
        noise = difference**2 @ part.noise
        if part.known is not None:
            correction += total * (difference @ part.known.mean)
            variance = _variance(part.known, difference)
            varies += 0.0 if part.bound else total**2 * variance
            noise = part.moments[:, 0].sum() * part.known.rows * variance
        own += noise
    middle, sides = by_scores + correction, (1 - level) / 2
    if target == "population":
        own = _sampling(parts, costs, middle, sides)
    return middle, quantile(sides) * np.sqrt(own + varies) + bounded


def _variance(known: _Known, difference: FloatArray) -> FloatArray:
    """Bound the variance of the mean error of a labelled row."""
    largest = known.heaviest * np.abs(difference).max(axis=1)
    return np.asarray(likely_root(difference**2 @ known.squares, largest, known.sides) ** 2)


def _sampling(parts: list[_Part], costs: FloatArray, middle: FloatArray, failing: float) -> FloatArray:
    """Bound the variance of what rows of the population cost: few of them, or none, may have been called here.

    What labelled rows add differs from part to part, and which part a row is of is chance, too.
    """
    mean = middle / sum(part.weight.sum() for part in parts)
    difference = costs[:, ::2] - costs[:, 1::2]
    squares, most = np.zeros((2, len(costs)))
    for part in parts:
        added = 0.0 if part.known is None else difference @ part.known.mean
        around = costs + (added - mean)[:, None]
        base, moments = around[:, 1::2], part.moments
        squares += base**2 @ moments[:, 0] + 2 * (base * difference) @ moments[:, 1] + difference**2 @ moments[:, 2]
        most = np.maximum(most, np.abs(around).max(axis=1))
    heaviest = max(part.heaviest for part in parts)
    return np.asarray(likely_root(np.maximum(squares, 0.0), heaviest * most, failing) ** 2)


def _tell(
    parts: list[_Part], at: float, level: float, target: Target, distance: float, single: Mapping[str, ExpectedConfusion]
) -> ExpectedConfusion:
    """Give all counts and rates."""
    weight = np.sum([part.weight for part in parts], axis=0)
    total = float(weight.sum())
    # Of these rows it is known how many are called: tp and fp are among those, fn and tn among the others.
    most, unit = (np.repeat(weight, 2), 1.0) if target == "rows" else (np.full(4, total), total)
    middle, half = _interval(parts, np.eye(4), level, target)
    counts = np.clip([middle, middle - half, middle + half], 0.0, most) / unit
    lines = np.hstack([counts, _rates(parts, counts[0], most > 0, level, target)]).T.tolist()
    found = {name: Estimate(*line) for name, line in zip((*COUNTS, *RATES), lines, strict=True)}
    told = parts[0].evidence if len(parts) == 1 else f"{len(parts)} segments by their own" if parts[0].evidence else ""
    return ExpectedConfusion(
        at, **found, level=level, target=target, rows=total, evidence=told, distance=distance, by_segment=single
    )


def _rates(parts: list[_Part], counts: FloatArray, there: BoolArray, level: float, target: Target) -> FloatArray:
    """Give rates and how far they may go; ``there`` says which of tp, fp, fn and tn can be at all."""
    of, by = (np.array(side, np.float64) for side in zip(*RATES.values(), strict=True))
    below = by @ counts
    known = below > 0
    rate = np.minimum(of @ counts / np.where(known, below, 1.0), 1.0)
    low, high = _ends(parts, of, by, rate, level, target)
    # A rate is a mean over those that it is divided by, each of them of / by: it is never outside them.
    counted = (by > 0) & there
    each = of / np.where(counted, by, 1.0)
    least, most = np.where(counted, each, 1.0).min(axis=1), np.where(counted, each, 0.0).max(axis=1)
    low, high = np.minimum(np.maximum(low, least), rate), np.maximum(np.minimum(high, most), rate)
    return np.where(known, [rate, low, high], [[math.nan], [0.0], [1.0]])


def _ends(parts: list[_Part], of: FloatArray, by: FloatArray, rate: FloatArray, level: float, target: Target) -> FloatArray:
    """Find how far down and up a rate R may go, until what is divided, less R times what it is divided by, is not 0.

    Half-widths are convex in R: on the way from the estimate to 0 or 1, it stops being inside once.
    """
    of, by = np.tile(of, (2, 1)), np.tile(by, (2, 1))
    limit = np.repeat([0.0, 1.0], len(rate))

    def inside(trial: FloatArray) -> BoolArray:
        middle, half = _interval(parts, of - trial[:, None] * by, level, target)
        return np.asarray(np.where(limit == 0, middle, -middle) <= half)

    start = np.tile(rate, 2)
    all_the_way, moves = inside(limit), inside(start)
    here, beyond = start, limit
    for _ in range(HALVINGS):
        middle = (here + beyond) / 2
        within = inside(middle)
        here, beyond = np.where(within, middle, here), np.where(within, beyond, middle)
    return np.where(all_the_way, limit, np.where(moves, here, start)).reshape(2, -1)
