"""Expected cost of a rule on unlabelled rows, and what it saves compared with another rule."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.decisions.counts import compute_interval, describe_evidence, sum_segments
from trueup.decisions.evidence import read_inputs
from trueup.decisions.inputs import Target, format_amount
from trueup.decisions.rules import LARGEST_COST, Action, Rule, Share, as_actions, as_rule
from trueup.errors import ArgumentError
from trueup.metrics.result import Result

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import ArrayLike

    from trueup.decisions.counts import SegmentSums
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
    rule: Rule
    half_widths: Mapping[str, float]
    correction: float
    rows: float
    shares: tuple[Share, ...]
    evidence: str
    distance: float = math.nan
    by_segment: Mapping[str, ExpectedCost] = field(default_factory=dict)

    def __repr__(self) -> str:
        unit = f"of {self.rows:,.10g} row{'' if self.rows == 1 else 's'}" if self.target == "rows" else "per row"
        widths = ", ".join(f"{name} {format_amount(half, 3)}" for name, half in self.half_widths.items())
        if self.correction:
            widths += f"; correction {'+' if self.correction > 0 else ''}{format_amount(self.correction, 3)}"
        limits = f"{format_amount(self.low)} to {format_amount(self.high)} at {100 * self.level:g}%"
        evidence = self.evidence or "assuming calibrated scores"
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
    L = sum_j (b_j N_j + (a_j - b_j) sum f) (Gao, Parameswaran & Peng 2017, section 2.4). With e = (a_j - b_j)(y - f) on n
    labelled rows, of mean mu and standard deviation tau, the interval is L + N mu +- z tau sqrt(N + N^2/n) for these rows,
    and L/N + mu +- z sqrt(s^2/N + tau^2/n) for the population, where s is the standard deviation of the expected cost of a
    row, corrected by the mu of its segment. Standard deviations are upper bounds that hold for few events. With ``tuned``,
    the error of mu is bounded for all rules with these actions at once, and added. If only a bound c is known, the estimate
    is L, and N c times half the variation of a_j - b_j over the intervals is added, which never exceeds the
    N c sum |a_j - b_j| of Claim 1. An interval is limited to costs that some outcomes could produce. Fixed costs count for
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
    estimate, low, high = (float(limit[0]) + fixed for limit in interval[:3])
    weight, positive = (np.sum([getattr(part.rows, name) for part in segments], axis=0) for name in ("weight", "positive"))
    cost = rule.negative * weight + (rule.positive - rule.negative) * positive
    columns = zip(rule.actions, weight.tolist(), positive.tolist(), cost.tolist(), strict=True)
    shares = tuple(Share(action.name, *sums) for action, *sums in columns)
    half_widths = {name: float(half[0]) for name, half in interval.half_widths.items()}
    correction, rows, evidence = float(interval.correction[0]), float(weight.sum()), describe_evidence(segments)
    limits = estimate, low, high, inputs.level, inputs.target
    return ExpectedCost(*limits, rule, half_widths, correction, rows, shares, evidence)


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
    actions = as_actions(costs)
    saving = _difference(as_rule(rule, actions), as_rule(baseline, actions))
    costs = list(saving.actions)
    return expected_cost(
        p, costs, saving, labelled, level=level, target=target, weight=weight, segments=segments, tuned=tuned
    )


def _difference(rule: Rule, baseline: Rule) -> Rule:
    """Return the rule whose cost is that of ``baseline`` minus that of ``rule``."""
    edges = sorted({*rule.edges, *baseline.edges})
    starts = np.array(edges[:-1])
    actions = []
    for index, (j, k) in enumerate(zip(rule.action_index(starts), baseline.action_index(starts), strict=True)):
        ours, theirs = rule.actions[j], baseline.actions[k]
        name = ours.name if ours == theirs else f"{ours.name} for {theirs.name}"
        positive, negative = theirs.positive - ours.positive, theirs.negative - ours.negative
        actions.append(Action(f"{name} ({index})", positive, negative))
    actions[0] = replace(actions[0], fixed=baseline.fixed - rule.fixed)
    return Rule(tuple(actions), tuple(edges))
