"""Expected costs, savings and confusion matrices of unlabelled rows, and the sums with intervals behind them.

All of these are linear in the outcomes: a row in score interval j contributes a_j if its outcome is 1 and b_j if it is 0.
A few sums per score interval, over the rows (`RowSums`) and over residuals of labelled rows (`ErrorSums`), then suffice for
the estimate and its interval. With d_j = a_j - b_j, scores f, weights w and their sum W_j in interval j, the scores alone
estimate L = sum_j (b_j W_j + d_j sum w f). Labelled rows, weighted so that their scores are distributed like those of the
rows (`post_stratify`), add sum W_j times their mean of d (y - f). See `expected_cost`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trueup.data.columns import frame_like
from trueup.decisions.clusters import (
    ClusterNorms,
    cluster_norms,
    design_effect,
    pair_sums,
    quadratic_form,
    threshold_pair_sums,
)
from trueup.decisions.evidence import (
    Labelled,
    Target,
    assumption_of,
    bound_for_all_intervals,
    describe_labelled,
    evidence_text,
    format_amount,
    mean_errors,
    quantile,
    read_inputs,
    upper_bound,
)
from trueup.decisions.rules import LARGEST_COST, Action, BestRule, Rule, Share, as_actions, as_rule, check_threshold
from trueup.errors import ArgumentError
from trueup.metrics.inference import likely_root
from trueup.metrics.result import Result

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import ArrayLike

    from trueup._types import BoolArray, FloatArray
    from trueup.decisions.evidence import Inputs, UnlabelledRows


UNIT_INTERVAL = np.array([0.0, 1.0])
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


# Sums and intervals


class RowSums(NamedTuple):
    """Sums over unlabelled rows with weights w and scores f; the last axis is the score interval, lowest scores first."""

    heaviest: float
    shift: tuple[float, float]  # the smallest and the largest g - f
    weight: FloatArray  # sum w
    positive: FloatArray  # sum w f
    noise: FloatArray  # sum w^2 f (1 - f)
    squares: FloatArray  # sum w^2
    squares_g: FloatArray  # sum w^2 g, with g = f plus the mean error of labelled rows of similar score
    squares_gg: FloatArray  # sum w^2 g^2


class ErrorSums(NamedTuple):
    """Sums over labelled rows with weights w, outcomes y and scores f, by score interval; W is their total weight."""

    heaviest: float  # max w / W
    size: float  # effective sample size W^2 / sum w^2
    residual: FloatArray  # sum w (y - f) / W
    squares: FloatArray  # sum (w (y - f) / W)^2
    pairs: FloatArray | None = None  # of rows of one cluster, as `pair_sums` or `threshold_pair_sums` returns them
    norms: ClusterNorms | None = None  # with clusters only
    design: float = 1.0  # the factor by which clusters raise the variance of sums

    def likely_variance(self, difference: FloatArray, failing: float) -> FloatArray:
        """Return an upper bound on the variance of sum d (y - f) / W of each quantity, ``difference`` d.

        It is at least that without clusters.
        """
        largest, variance = self.heaviest * np.abs(difference).max(axis=1), _dot(difference**2, self.squares)
        if self.pairs is not None:
            variance = variance + np.maximum(quadratic_form(difference, self.pairs), 0.0)
        likely = np.asarray(likely_root(variance, largest, failing) ** 2)
        if self.norms is None:
            return likely
        return np.maximum(likely, self.norms.likely_variance(difference, variance, failing))


class SegmentSums(NamedTuple):
    """Sums over the rows of one segment, and the evidence about the errors of their scores."""

    rows: RowSums
    errors: ErrorSums | None
    bound: float  # on the error per row over any score interval
    evidence: str
    failing: float  # error probability of one side for which the errors are bounded


def sum_segments(
    inputs: Inputs, edges: ArrayLike, *, thresholds: bool = False
) -> tuple[list[SegmentSums], dict[str, SegmentSums]]:
    """Sum rows and labelled residuals by the score intervals that ``edges`` separate.

    Return the segments as a list for one overall confidence interval, with the error probability divided among them, and as
    a dict for one interval per segment. With ``thresholds``, sums have shape (edges, 2): below each edge, and from it on.
    """
    rows, evidence, failing, cuts = inputs.rows, inputs.evidence, inputs.failing, np.asarray(edges, np.float64)
    segments: list[tuple[str | None, UnlabelledRows]] = list(rows.by_segment())
    overall: list[SegmentSums] = []
    single: dict[str, SegmentSums] = {}
    for name, part in segments or [(None, rows)]:
        p, w, _ = part
        known = evidence.of(name, part) if isinstance(evidence, Labelled) else None
        clusters = evidence.clusters_in(name) if isinstance(evidence, Labelled) else None
        moved = np.zeros(1)
        if isinstance(evidence, Labelled) and inputs.target == "population":
            moved = mean_errors(evidence.in_segment(name), part)
        g = p + moved
        powers = (w, w * p, w**2 * p * (1 - p), w**2, w**2 * g, w**2 * g**2)
        by_interval = _sum_by_interval(p, cuts, powers, thresholds=thresholds)
        sums = RowSums(float(w.max()), (float(moved.min()), float(moved.max())), *by_interval)
        errors = None
        if known is not None and len(known.y):
            total = float(known.w.sum())
            residuals = known.w * (known.y - known.p) / total
            columns = (residuals, residuals**2)
            size = float(total**2 / np.sum(known.w**2))
            residual, squares = _sum_by_interval(known.p, cuts, columns, thresholds=thresholds)
            errors = ErrorSums(float(known.w.max()) / total, size, residual, squares)
            if clusters is not None:
                index = np.searchsorted(cuts, known.p, side="right")
                sum_pairs, count = (threshold_pair_sums, len(cuts)) if thresholds else (pair_sums, len(cuts) + 1)
                errors = errors._replace(
                    pairs=sum_pairs(index, residuals, clusters, count),
                    norms=cluster_norms(known, index, clusters, count, thresholds=thresholds),
                    design=design_effect(known, clusters),
                )
        for probability in (failing, failing / len(segments)) if name is not None else (failing,):
            bound, source = 0.0, ""
            if evidence is not None and not isinstance(evidence, Labelled):
                bound, source = upper_bound(evidence, probability, name)
            elif known is not None and errors is not None:
                source = describe_labelled(known)
                if inputs.tuned:
                    bound = bound_for_all_intervals(known, probability, clusters)
                    source = f"{source}, for every rule at once"
            segment = SegmentSums(sums, errors, bound, source, probability)
            if name is not None:
                single.setdefault(name, segment)
        overall.append(segment)
    return overall, single


def _sum_by_interval(
    score: FloatArray, edges: FloatArray, columns: Sequence[FloatArray], *, thresholds: bool
) -> list[FloatArray]:
    """Sum each of ``columns`` by the score intervals that ``edges`` separate; ``thresholds`` as in `sum_segments`."""
    index = np.searchsorted(edges, score, side="right")
    sums = [np.bincount(index, column, len(edges) + 1).astype(np.float64, copy=False) for column in columns]
    if not thresholds:
        return sums
    return [np.stack([np.cumsum(one)[:-1], np.cumsum(one[::-1])[::-1][1:]], axis=1) for one in sums]


class Interval(NamedTuple):
    """Estimates of quantities, with limits and half-widths: totals of these rows, or means per row of the population."""

    estimate: FloatArray
    low: FloatArray
    high: FloatArray
    correction: FloatArray
    half_widths: dict[str, FloatArray]
    total: FloatArray  # of these rows, not limited to possible values, and its half-width
    half_width: FloatArray


def compute_interval(
    segments: Sequence[SegmentSums],
    positive: FloatArray,
    negative: FloatArray,
    inputs: Inputs,
    ends: FloatArray = UNIT_INTERVAL,
    *,
    z: float | None = None,
) -> Interval:
    """Estimate sums over rows, each with a confidence interval limited to values that some outcomes could produce.

    ``positive`` and ``negative``, of shape (quantities, score intervals), are what a row of outcome 1 or 0 adds. ``ends``
    are the lowest and the highest possible score of each score interval, shape (..., 2). ``z`` is the number of standard
    errors of an interval; by default that of a single one.
    """
    difference = positive - negative
    total, correction, own, known, bounded = np.zeros((5, len(positive)))
    for rows, errors, bound, _, failing in segments:
        weight = rows.weight.sum(axis=-1)
        total += _dot(negative, rows.weight) + _dot(difference, rows.positive)
        bounded += weight * bound * half_variation(difference)
        if errors is None:
            own += _dot(difference**2, rows.noise)
            continue
        correction += weight * _dot(difference, errors.residual)
        variance = errors.likely_variance(difference, failing)
        known += 0.0 if inputs.tuned else weight**2 * variance
        own += rows.squares.sum(axis=-1) * errors.size * variance
    total += correction
    low, high = np.minimum(positive, negative), np.maximum(positive, negative)
    weights = np.sum([segment.rows.weight for segment in segments], axis=0)
    if inputs.target == "rows":
        component, unit, least, most = "label noise", np.ones(1), _dot(low, weights), _dot(high, weights)
    else:
        component, unit, least, most = "sampling", weights.sum(axis=-1), low.min(axis=1), high.max(axis=1)
        own = _sampling_variance(segments, negative, difference, total / unit, ends, inputs.failing)
    z = quantile(inputs.failing) if z is None else z
    half_widths = {component: z * np.sqrt(own) / unit}
    if any(segment.evidence for segment in segments):
        half_widths["calibration"] = (z * np.sqrt(known) + bounded) / unit
    half = z * np.sqrt(own + known) + bounded
    estimate, lower, upper = (np.clip((total + side) / unit, least, most) for side in (0.0, -half, half))
    return Interval(estimate, lower, upper, correction / unit, half_widths, total, half)


def half_variation(difference: FloatArray) -> FloatArray:
    """Return the largest error per row of each quantity, in units of c, if no interval of scores has an error above c.

    ``difference`` has d_j = a_j - b_j per quantity. With C_j the sum of y - f, per row, up to the end of score interval j,
    the error is sum_j d_j (C_j - C_{j-1}) = sum_j C_j (d_j - d_{j+1}), d being 0 beyond both ends. The factors of C add up
    to 0, and all C_j lie within c of each other: the error is at most c times half of sum_j |d_j - d_{j+1}|, and some C
    attains it. This is at most c sum |d_j| of Claim 1 (Gao, Parameswaran & Peng 2017), and equal if the signs alternate.
    """
    return np.asarray(np.abs(np.diff(difference, prepend=0.0, append=0.0)).sum(axis=-1) / 2)


def _sampling_variance(
    segments: Sequence[SegmentSums],
    negative: FloatArray,
    difference: FloatArray,
    mean: FloatArray,
    ends: FloatArray,
    failing: float,
) -> FloatArray:
    """Bound the sampling variance of the sum of expected contributions of rows drawn from the population.

    Each segment has its own correction, and the segment of a drawn row is random too: deviations are from the overall mean.
    """
    squares, largest = np.zeros((2, len(negative)))
    base = negative - mean[:, None]
    for rows, *_ in segments:
        squares += _dot(base**2, rows.squares) + 2 * _dot(base * difference, rows.squares_g)
        squares += _dot(difference**2, rows.squares_gg)
        for side, moved in enumerate(rows.shift):
            end = np.clip(ends[..., side] + moved, 0.0, 1.0)
            largest = np.maximum(largest, np.abs(base + difference * end).max(axis=1))
    heaviest = max(segment.rows.heaviest for segment in segments)
    return np.asarray(likely_root(np.maximum(squares, 0.0), heaviest * largest, failing) ** 2)


def _dot(values: FloatArray, sums: FloatArray) -> FloatArray:
    return np.asarray((values * sums).sum(axis=-1))


def describe_evidence(segments: Sequence[SegmentSums]) -> str:
    """Describe where the corrections and error bounds of ``segments`` come from; empty without evidence."""
    sources = [segment.evidence for segment in segments if segment.evidence]
    return f"{len(sources)} segments, each by its own evidence" if len(sources) > 1 else "".join(sources)


# Costs and savings


@dataclass(frozen=True, eq=False)
class ExpectedCost(Result):
    """Expected cost of a rule, with an interval.

    Attributes
    ----------
    estimate, low, high : float
        Total cost of these rows (target "rows"), or cost per row of the population (target "population").
    level : float
        Coverage probability of the interval.
    target : {"rows", "population"}
    rule : Rule
    half_widths : mapping of str to float
        Components of the half-width: "label noise" or "sampling", and "calibration" if there is evidence. Independent
        components add in squares, so that the interval is at most as wide as their sum.
    correction : float
        What labelled rows add to the cost that the scores alone predict; part of the estimate.
    rows : float
        Number of rows, or their total weight.
    shares : tuple of Share
        Rows assigned to each action, by the scores alone: their costs add up to the estimate minus the correction.
    evidence : str
        Source of the calibration component; empty if the scores are assumed to be calibrated.
    distance : float
        Distance of the score distribution from that of the labelled rows, beyond a tolerance; NaN without labelled rows.
    by_segment : mapping of str to ExpectedCost
        Each segment, with an interval of the same level; without fixed costs, which belong to no segment.
    """

    estimate: float
    low: float
    high: float
    level: float
    target: Target
    rule: Rule
    half_widths: Mapping[str, float]
    correction: float
    rows: float
    shares: tuple[Share, ...]
    evidence: str
    distance: float = math.nan
    by_segment: Mapping[str, ExpectedCost] = field(default_factory=dict)
    derived = ("assumption",)

    @property
    def assumption(self) -> str:
        """What the interval assumes: calibrated scores, or that nothing has changed since the labelled rows."""
        return assumption_of(self.evidence)

    def __repr__(self) -> str:
        unit = f"of {self.rows:,.10g} row{'' if self.rows == 1 else 's'}" if self.target == "rows" else "per row"
        widths = ", ".join(f"{name} {format_amount(half, 3)}" for name, half in self.half_widths.items())
        if self.correction:
            widths += f"; correction {'+' if self.correction > 0 else ''}{format_amount(self.correction, 3)}"
        limits = f"{format_amount(self.low)} to {format_amount(self.high)} at {100 * self.level:g}%"
        evidence = evidence_text(self.evidence)
        return f"<ExpectedCost {format_amount(self.estimate)} {unit}, {limits} ({widths}; {evidence})>"


def expected_cost(
    p: ArrayLike,
    costs: Any,
    rule: Any,
    labelled: Any = None,
    *,
    level: float = 0.9,
    target: Target = "rows",
    weight: ArrayLike | None = None,
    segments: Any = None,
    tuned: bool = False,
) -> ExpectedCost:
    """Estimate the cost of a rule on unlabelled rows, with an interval.

    Parameters
    ----------
    p : array-like, shape (n,)
        Scores of the rows.
    costs : mapping or list
        {"fn": 5, "fp": 1}, or actions: {name: (cost on a positive row, cost on a negative row)}.
    rule : float, mapping, list, Rule or BestRule
        A threshold (act from that score on), {name: (from, below)}, or a result of `best_rule`.
    labelled : (y, p), Labelled, fitted calibrator, CalibrationBound, Audit or float, optional
        Evidence about the errors of the scores. Best are labelled rows that the model was not trained on, or a fitted
        calibrator, which kept its held-out rows: they also correct the estimate. A bound on c(f), or an audit, only widens
        the interval. Without it, the interval assumes calibrated scores.
    level : float
        Coverage probability of the interval.
    target : {"rows", "population"}
        The total cost of these rows, or the mean cost per row of the population that they come from.
    weight : array-like, optional
    segments : array-like of labels, or mapping of column to values, optional
        The segment of each row. Where the evidence has segments, each segment is corrected and bounded by its own. For an
        audit, pass {"region": [..]}, so that segments have the names of the audit.
    tuned : bool
        Whether the labelled rows were used to choose the rule, for example by trying thresholds on their outcomes. The
        correction is then bounded for all rules at once. `best_rule` uses no outcomes, so its rules are not tuned.

    Warns
    -----
    ShiftWarning
        If the score distribution differs from that of the labelled rows.

    Notes
    -----
    Every interval based on evidence holds if nothing has changed since the labelled rows: the probability of a positive
    outcome at a given score is the same. The distribution of the scores may change moderately: labelled rows are weighted
    so that each of up to 20 strata of scores has the weight that it has among the unlabelled rows (Holt & Smith 1979).

    Action j, taken on N_j of N rows, costs a_j on a positive and b_j on a negative row. The scores f alone predict the
    cost L = sum_j (b_j N_j + (a_j - b_j) sum f) (Gao, Parameswaran & Peng 2017, "On the Interpretability of Conditional
    Probability Estimates in the Agnostic Setting", doi:10.1214/17-EJS1376SI, section 3.3.4). With e = (a_j - b_j)(y - f)
    on n labelled rows, of weighted mean mu and standard deviation tau, the interval is L + N mu +- z tau sqrt(N + N^2/n)
    for these rows, and L/N + mu +- z sqrt(s^2/N + tau^2/n) for the population, where s is the standard deviation of the
    expected cost of a row, corrected by the mean error at similar scores. Standard deviations are upper bounds that hold
    for few events. With ``tuned``, the error of mu is bounded for all rules with these actions at once, and added. If only
    a bound c is known, the estimate is L, and N c times half the variation of a_j - b_j over the actions is added (at most
    N c sum |a_j - b_j|, Claim 1). An interval is limited to costs that some outcomes could produce. Fixed costs count for
    these rows, not for the population.

    Examples
    --------
    >>> expected_cost([0.1, 0.3, 0.9], {"fn": 5, "fp": 1}, 0.2)
    <ExpectedCost 1.3 of 3 rows, 0 to 4.096 at 90% (label noise 2.8; assuming calibrated scores)>
    """
    actions = as_actions(costs)
    largest = max(abs(cost) for action in actions for cost in (action.positive, action.negative))
    if 0 < largest < 1 / LARGEST_COST:  # squares would underflow, and the interval have no width
        raise ArgumentError(f"costs are too small to add; the largest is {largest:g}", hint="use another unit of cost")
    fitted = as_rule(rule, actions)
    inputs = read_inputs(p, labelled, level=level, target=target, weight=weight, segments=segments, tuned=tuned)
    overall, single = sum_segments(inputs, fitted.edges[1:-1])
    variable = replace(fitted, actions=tuple(replace(action, fixed=0.0) for action in fitted.actions))
    by_segment = {name: _cost_of([part], variable, inputs) for name, part in single.items()}
    return replace(_cost_of(overall, fitted, inputs), distance=inputs.distance, by_segment=by_segment)


def _cost_of(segments: Sequence[SegmentSums], rule: Rule, inputs: Inputs) -> ExpectedCost:
    ends = np.array(list(pairwise(np.clip(rule.edges, 0.0, 1.0))))
    interval = compute_interval(segments, rule.positive[None], rule.negative[None], inputs, ends)
    fixed = rule.fixed if inputs.target == "rows" else 0.0
    weight, positive = (np.sum([getattr(part.rows, name) for part in segments], axis=0) for name in ("weight", "positive"))
    cost = rule.negative * weight + (rule.positive - rule.negative) * positive
    columns = zip(rule.actions, weight.tolist(), positive.tolist(), cost.tolist(), strict=True)
    return ExpectedCost(
        estimate=float(interval.estimate[0]) + fixed,
        low=float(interval.low[0]) + fixed,
        high=float(interval.high[0]) + fixed,
        level=inputs.level,
        target=inputs.target,
        rule=rule,
        half_widths={name: float(half[0]) for name, half in interval.half_widths.items()},
        correction=float(interval.correction[0]),
        rows=float(weight.sum()),
        shares=tuple(Share(action.name, *sums) for action, *sums in columns),
        evidence=describe_evidence(segments),
    )


def expected_saving(
    p: ArrayLike,
    costs: Any,
    rule: Any,
    baseline: Any,
    labelled: Any = None,
    *,
    level: float = 0.9,
    target: Target = "rows",
    weight: ArrayLike | None = None,
    segments: Any = None,
    tuned: bool = False,
) -> ExpectedCost:
    """Estimate what a rule saves on unlabelled rows compared with another rule, with an interval.

    Parameters
    ----------
    p, costs, labelled, level, target, weight, segments, tuned
        As for `expected_cost`.
    rule, baseline : float, mapping, list, Rule or BestRule
        The rule to evaluate, and the one that would be used otherwise. A positive result means that the first is cheaper.

    Notes
    -----
    The difference of two costs is the cost of a rule whose actions cost the difference. Its interval is much narrower than
    two separate ones, because rows that both rules treat alike contribute no uncertainty.

    Examples
    --------
    >>> round(expected_saving([0.1, 0.3, 0.9], {"fn": 5, "fp": 1}, 0.2, 0.5).estimate, 9)    # 0.3: 5 x .3 less .7
    0.8
    """
    known = as_actions(costs)
    new, old = as_rule(rule, known), as_rule(baseline, known)
    # The rule whose cost is that of the baseline minus that of the rule.
    edges = sorted({*new.edges, *old.edges})
    starts = np.array(edges[:-1])
    actions = []
    for index, (j, k) in enumerate(zip(new.action_index(starts), old.action_index(starts), strict=True)):
        ours, theirs = new.actions[j], old.actions[k]
        name = ours.name if ours == theirs else f"{ours.name} for {theirs.name}"
        positive, negative = theirs.positive - ours.positive, theirs.negative - ours.negative
        actions.append(Action(f"{name} ({index})", positive, negative))
    actions[0] = replace(actions[0], fixed=old.fixed - new.fixed)
    saving = Rule(tuple(actions), tuple(edges))
    return expected_cost(
        p, actions, saving, labelled, level=level, target=target, weight=weight, segments=segments, tuned=tuned
    )


# Confusion matrices


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
