"""Expected costs and savings of rules on unlabelled rows, with intervals."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.decisions.evidence import (
    Labelled,
    Target,
    UnlabelledRows,
    assumption_of,
    check_interval,
    evidence_text,
    format_amount,
    read_evidence,
    read_inputs,
    warn_of_shift,
)
from trueup.decisions.intervals import SegmentSums, compute_interval, describe_evidence, sum_segments
from trueup.decisions.rowwise import (
    RowEstimate,
    action_index,
    as_row_rule,
    differ_by_row,
    estimate_rows,
    fixed_cost,
    is_matrix,
    is_row_rule,
    read_class_evidence,
    read_known,
    read_region_bound,
    read_rows,
    region_factor,
    shares_of,
)
from trueup.decisions.rules import LARGEST_COST, Action, Rule, Share, as_actions, as_rule, check_threshold
from trueup.errors import ArgumentError
from trueup.metrics.result import Result

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import ArrayLike

    from trueup.decisions.evidence import Inputs


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
    rule: Any
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
        return f"<{type(self).__name__} {format_amount(self.estimate)} {unit}, {limits} ({widths}; {evidence})>"


class ExpectedSaving(ExpectedCost):
    """Expected saving of a rule compared with a baseline, with an interval; attributes are those of `ExpectedCost`."""

    @classmethod
    def of(cls, cost: ExpectedCost) -> ExpectedSaving:
        """Return a difference of two costs as a saving."""
        named = {name: getattr(cost, name) for name in cost.__dataclass_fields__}
        return cls(**named | {"by_segment": {name: cls.of(own) for name, own in cost.by_segment.items()}})


def expected_cost(
    p: ArrayLike,
    costs: Any,
    rule: Any = None,
    labelled: Any = None,
    *,
    threshold: float | None = None,
    level: float = 0.9,
    target: Target = "rows",
    weight: ArrayLike | None = None,
    segments: Any = None,
    tuned: bool = False,
) -> ExpectedCost:
    """Estimate the cost of a rule on unlabelled rows, with an interval.

    Parameters
    ----------
    p : array-like, shape (n,) or (n, k)
        Scores of the rows, or the probabilities of k classes, which add up to 1.
    costs : mapping, list or matrix
        {"fn": 5, "fp": 1}, or actions: {name: (cost on a positive row, cost on a negative row)}. Each cost is a number, or
        an array with one value per row, such as exposure times loss given default. For several classes {name: cost per
        class}, or a matrix of shape (classes, actions).
    rule : float, mapping, list, Rule, RowRule, BestRule or "cheapest", optional
        A threshold (act from that score on), {name: (from, below)}, or a result of `best_rule`. With "cheapest" each row
        gets the action of lowest expected cost at its own costs and probabilities; the default for several classes.
    labelled : (y, p), Labelled, fitted calibrator, CalibrationBound, Audit or float, optional
        Evidence about the errors of the scores. Best are labelled rows that the model was not trained on, or a fitted
        calibrator, which kept its held-out rows: they also correct the estimate. A bound on c(f), or an audit, only widens
        the interval. Without it, the interval assumes calibrated scores. Where costs differ by row, labelled rows need
        theirs: ``Labelled(y, p, costs=...)``. For several classes: (y, p), `LabelledClasses`, or a bound c on the errors of
        decision regions such as `trueup.metrics.region_error`.
    threshold : float, optional
        The rule as a threshold, by name, as on the command line.
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

    Where costs differ by row or class, a row costs l + s z, with l the smallest and s the range of its costs over the
    classes, and z in [0, 1]: the rows are weighted by s, and labelled rows correct the estimate by the mean of z less its
    expectation, weighted by their own s. Twice the amounts thus have twice the correction, and variances are those of
    calibrated z times a ratio observed on the labelled rows. With a bound c on the error of decision regions by class, N c
    sum_j sum_k |C_jk - median_k C_jk| is added for the actions j in use; for two classes this is Claim 1.

    Examples
    --------
    >>> expected_cost([0.1, 0.3, 0.9], {"fn": 5, "fp": 1}, threshold=0.2)
    <ExpectedCost 1.3 of 3 rows, 0 to 4.096 at 90% (label noise 2.8; assuming calibrated scores)>
    >>> round(expected_cost([0.1, 0.3, 0.9], {"fn": [5, 20, 2], "fp": 1}, "cheapest").estimate, 9)    # .5, .7 and .1
    1.3
    >>> chances = [[0.7, 0.2, 0.1], [0.2, 0.2, 0.6]]
    >>> expected_cost(chances, {"treat": [0, 2, 9], "wait": [5, 1, 0]}).shares
    (Share(action='treat', rows=1.0, positives=nan, cost=1.3), Share(action='wait', rows=1.0, positives=nan, cost=1.2))
    """
    if threshold is not None:
        if rule is not None:
            raise ArgumentError("rule and threshold are both given", hint="leave one of them out", parameter="threshold")
        rule = check_threshold(threshold, "write threshold=0.2 to act from 0.2 on; infinity never acts")
    if is_matrix(p) or differ_by_row(costs) or is_row_rule(rule):
        return _cost_by_row(
            p, costs, (rule, None), labelled, level=level, target=target, weight=weight, segments=segments, tuned=tuned
        )
    if rule is None:
        raise ArgumentError("no rule was given", hint='write threshold=0.2, or rule="cheapest"', parameter="rule")
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


def _cost_by_row(
    p: ArrayLike, costs: Any, rules: tuple[Any, Any], labelled: Any, *, level: float, target: Target,
    weight: ArrayLike | None, segments: Any, tuned: bool,
) -> ExpectedCost:  # fmt: skip
    """Estimate the cost of the first rule, or what it saves compared with the second, for costs by row or class."""
    check_interval(level, target)
    if tuned:
        raise ArgumentError(
            "tuned=True is for rules of one score with the same costs for all rows",
            hint="choose the rule by best_rule, which uses no outcomes",
            parameter="tuned",
        )
    rows = read_rows(p, weight, segments, costs)
    several = is_matrix(p)
    bound, source = read_region_bound(labelled) if several else (0.0, "")
    evidence = read_class_evidence(labelled) if several else read_evidence(labelled)
    known = None if source else read_known(evidence, rows, costs)
    chosen = [as_row_rule(rule, rows) for rule in rules[: 1 + (rules[1] is not None)]]
    index = [action_index(rule, rows) for rule in chosen]
    cost = rows.costs.taken(index[0])
    known_cost = None if known is None else known.rows.costs.taken(action_index(chosen[0], known.rows))
    factor = region_factor(rows.costs, index[0]) if source else 0.0
    fixed = fixed_cost(chosen[0], index[0])
    if len(chosen) == 2:
        cost = rows.costs.taken(index[1]) - cost
        if known is not None and known_cost is not None:
            known_cost = known.rows.costs.taken(action_index(chosen[1], known.rows)) - known_cost
        factor += region_factor(rows.costs, index[1]) if source else 0.0
        fixed = fixed_cost(chosen[1], index[1]) - fixed
    total, by_segment, distance = estimate_rows(
        cost, rows, known_cost, known, level=level, target=target, extra=bound * factor
    )
    if not several and isinstance(evidence, Labelled):
        distance = warn_of_shift(evidence, UnlabelledRows(rows.chance[:, 1], rows.w))
    saved = len(chosen) == 2
    shares = () if saved else tuple(share for share in shares_of(rows, index[0]) if share.rows)

    def result(found: RowEstimate, fixed: float) -> ExpectedCost:
        return ExpectedCost(
            estimate=found.estimate + fixed,
            low=found.low + fixed,
            high=found.high + fixed,
            level=level,
            target=target,
            rule=chosen[0],
            half_widths=found.half_widths,
            correction=found.correction,
            rows=found.rows,
            shares=shares,
            evidence=source or found.evidence,
        )

    parts = {name: replace(result(found, 0.0), shares=()) for name, found in by_segment.items()}
    return replace(result(total, fixed if target == "rows" else 0.0), distance=distance, by_segment=parts)


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
) -> ExpectedSaving:
    """Estimate what a rule saves on unlabelled rows compared with another rule, with an interval.

    Parameters
    ----------
    p, costs, labelled, level, target, weight, segments, tuned
        As for `expected_cost`.
    rule, baseline : float, mapping, list, Rule or BestRule
        The rule to evaluate, and the one that would be used otherwise. A positive result means that the first is cheaper.
        For several classes a rule is "cheapest", or a result of `best_rule`, perhaps for other costs: best_rule(p, 1 -
        numpy.eye(k)) calls the most probable class.

    Notes
    -----
    The difference of two costs is the cost of a rule whose actions cost the difference. Its interval is much narrower than
    two separate ones, because rows that both rules treat alike contribute no uncertainty.

    Examples
    --------
    >>> round(expected_saving([0.1, 0.3, 0.9], {"fn": 5, "fp": 1}, 0.2, 0.5).estimate, 9)    # 0.3: 5 x .3 less .7
    0.8
    """
    if is_matrix(p) or differ_by_row(costs) or is_row_rule(rule) or is_row_rule(baseline):
        by_row = _cost_by_row(
            p, costs, (rule, baseline), labelled, level=level, target=target, weight=weight, segments=segments, tuned=tuned
        )
        return ExpectedSaving.of(by_row)
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
    cost = expected_cost(
        p, actions, saving, labelled, level=level, target=target, weight=weight, segments=segments, tuned=tuned
    )
    return ExpectedSaving.of(cost)
