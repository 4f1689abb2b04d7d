"""What a rule will cost on rows without labels."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trueup.data.frame import to_jsonable
from trueup.decisions.evidence import as_bound, as_evidence, compare_with, quantile, spread
from trueup.decisions.inputs import Target, check_level, check_target, say, unlabelled
from trueup.decisions.rules import as_actions, as_rule, check_squares

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import ArrayLike

    from trueup.decisions.evidence import Bound, Evidence
    from trueup.decisions.inputs import Unlabelled
    from trueup.decisions.rules import Rule


class Share(NamedTuple):
    """What falls to one action, by the scores alone: rows, positives among them, and what they cost."""

    action: str
    rows: float
    positives: float
    cost: float


@dataclass(frozen=True, eq=False)
class ExpectedCost:
    """What a rule will cost, with an interval.

    Attributes
    ----------
    estimate, low, high : float
        The total cost of these rows (target "rows"), or the cost a row of rows to come (target "population").
    level : float
        How often the interval holds the cost.
    target : {"rows", "population"}
    rule : Rule
    half_widths : mapping of str to float
        Half-widths that the interval is made of: "label noise" or "sampling", and "calibration" where there is evidence.
        Parts that are independent of each other add up in squares: the interval is at most as wide as their sum.
    correction : float
        What labelled rows add to the cost that the scores alone tell; part of the estimate.
    rows : float
        Their number, or their total weight.
    shares : tuple of Share
        What falls to each action, by the scores alone: their costs add up to the estimate less the correction.
    evidence : str
        Where the calibration part comes from; empty where scores are taken at their word.
    distance : float
        Of the distribution of the scores from that of the labelled ones, small moves forgiven; NaN where there are none.
    by_segment : mapping of str to ExpectedCost
        Each segment by itself, its interval as sure as that of the whole; without start-up costs, which are of no segment.
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
    distance: float
    by_segment: Mapping[str, ExpectedCost] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Give plain values fit for JSON; what is not finite becomes None."""
        nested = {
            "rule": self.rule.to_dict(),
            "shares": [share._asdict() for share in self.shares],
            "by_segment": {name: one.to_dict() for name, one in self.by_segment.items()},
        }
        return {name: to_jsonable(nested.get(name, getattr(self, name))) for name in self.__dataclass_fields__}

    def __repr__(self) -> str:
        what = f"of {self.rows:,.10g} row{'' if self.rows == 1 else 's'}" if self.target == "rows" else "a row"
        parts = ", ".join(f"{name} {say(half, 3)}" for name, half in self.half_widths.items())
        told = self.evidence or "scores taken at their word"
        if self.correction:
            parts += f"; correction {'+' if self.correction > 0 else ''}{say(self.correction, 3)}"
        span = f"{say(self.low)} to {say(self.high)}"
        return f"<ExpectedCost {say(self.estimate)} {what}, {span} at {100 * self.level:g}% ({parts}; {told})>"


def expected_cost(
    p: ArrayLike, costs: Any, rule: Any, labelled: Any = None, *,
    level: float = 0.9, target: Target = "rows", weight: ArrayLike | None = None, segments: Any = None,
    tuned: bool = False,
) -> ExpectedCost:  # fmt: skip
    """Say what a rule will cost on rows without labels, with an interval.

    Parameters
    ----------
    p : array-like, shape (n,)
        Scores of the rows.
    costs : mapping or list
        {"fn": 5, "fp": 1}, or actions: {name: (cost on a positive row, cost on a negative row)}.
    rule : float, mapping, list, Rule or BestRule
        A threshold (act where the score is that or more), {name: (from, below)}, or what `best_rule` gave.
    labelled : (y, p), Labelled, fitted calibrator, CalibrationBound, Audit or float, optional
        What is known of the scores' errors. Best are labelled rows that did not teach the model, or a calibrator, which
        held some out: they correct the estimate, too. A bound on c(f), or an audit's, only widens the interval. Without
        it the scores are taken at their word.
    level : float
    target : {"rows", "population"}
        The total cost that these rows will turn out to have, or the mean cost a row of the population they come from.
    weight : array-like, optional
    segments : array-like of labels, or mapping of column to values, optional
        The segment of each row; where the bound knows segments, each is corrected and bounded by its own. For an audit,
        write {"region": [..]}, so that they are named as it names them.
    tuned : bool
        Whether the labelled rows had a say in choosing the rule, as where thresholds were tried out on their outcomes.
        What they say of the cost then has to hold for all rules at once. `best_rule` sees no outcome, so its rules were
        not searched for in this sense.

    Warns
    -----
    ShiftWarning
        Where the scores come from elsewhere than the labelled ones.

    Notes
    -----
    L = sum_j (b_j N_j + (a_j - b_j) sum f) (Gao, Parameswaran & Peng 2017, section 2.4). With e = (a_j - b_j)(y - f) on n
    labelled rows, mean mu and spread tau: L + N mu +- z tau sqrt(N + N^2/n) for these rows; L/N + mu +- z sqrt(s^2/N +
    tau^2/n) for rows to come, s the spread of what a row is expected to cost, with the mu of its segment where there are
    some; spreads are bounds that hold for few events. Where the rule was searched for, the error of mu is bounded for all
    rules with these actions at once, and added. Where a bound c is all that is known, the estimate is L, and N c times the
    rule's swing is added, which is never above N c sum |a_j - b_j|, as Claim 1 has it. An interval ends where no outcomes
    could take the cost. Start-up costs belong to these rows, not to rows to come.

    Examples
    --------
    >>> expected_cost([0.1, 0.3, 0.9], {"fn": 5, "fp": 1}, 0.2)
    <ExpectedCost 1.3 of 3 rows, 0 to 4.096 at 90% (label noise 2.8; scores taken at their word)>
    """
    check_target(target)
    check_level(level)
    rows = unlabelled(p, weight, segments)
    actions = as_actions(costs)
    check_squares(actions)
    found = as_rule(rule, actions)
    known = as_bound(labelled)
    distance = compare_with(known, rows.p, rows.w)
    sides = (1 - level) / 2
    if rows.segments is None:
        return _put_together([_part(rows, found, known, sides, None, tuned=tuned)], found, level, target, rows, distance)
    whole, single = [], {}
    alone = replace(found, actions=tuple(replace(one, fixed=0.0) for one in found.actions))
    for name, part in rows.parts():
        single[name] = _put_together(
            [_part(part, alone, known, sides, name, tuned=tuned)], alone, level, target, part, math.nan
        )
        # Bounds of all segments must hold at once for the whole.
        whole.append(_part(part, found, known, sides / len(rows.segments.names), name, tuned=tuned))
    return _put_together(whole, found, level, target, rows, distance, single)


class _Part(NamedTuple):
    """Rows of one kind: their cost by the scores, the noise of their labels, and what is known of the error.

    ``squares`` sums w^2, ``around`` what w^2 times the cost of a row less their mean cost, and times its square, sum to.
    """

    cost: float
    weight: float
    squares: float
    around: tuple[float, float]
    noise: float
    known: Evidence | None


def _part(rows: Unlabelled, rule: Rule, known: Bound | None, sides: float, name: str | None, *, tuned: bool) -> _Part:
    p, w = rows.p, rows.w
    noise = float(np.sum((w * rule.differences[rule.action_index(p)]) ** 2 * p * (1 - p)))
    evidence = None if known is None else as_evidence(known, rule, sides, name, tuned=tuned)
    each = rule.expected_costs(p)
    cost, weight = float(w @ each), float(w.sum())
    away = w * (each - cost / weight)
    return _Part(cost, weight, float(np.sum(w**2)), (float(w @ away), float(away @ away)), noise, evidence)


def _put_together(
    parts: list[_Part], rule: Rule, level: float, target: Target, rows: Unlabelled, distance: float,
    by_segment: Mapping[str, ExpectedCost] | None = None,
) -> ExpectedCost:  # fmt: skip
    """Add the parts up: what labelled rows tell varies on its own in each, what is only bounded adds up."""
    z, total = quantile((1 - level) / 2), float(rows.w.sum())
    known = [(part, part.known) for part in parts if part.known is not None]
    correction = sum(part.weight * told.mean for part, told in known)
    by_scores = sum(part.cost for part in parts)
    if target == "rows":
        name, own, fixed, unit = "label noise", sum(_label_noise(part) for part in parts), rule.fixed, 1.0
    else:
        mean = (by_scores + correction) / total
        name, own, fixed, unit = "sampling", _sampling(parts, rows, rule, mean, (1 - level) / 2) ** 2, 0.0, total
    varies = sum((part.weight * (told.deviation or 0.0)) ** 2 / told.rows for part, told in known)
    bounded = sum(part.weight * told.bound for part, told in known)
    half = z * math.sqrt(own + varies) + bounded
    widths = {name: z * math.sqrt(own) / unit}
    if known:
        widths["calibration"] = (z * math.sqrt(varies) + bounded) / unit
    least, most = _possible(rows, rule, target)
    estimate, low, high = (
        min(max((by_scores + correction + side) / unit, least), most) + fixed for side in (0.0, -half, half)
    )
    told = (
        "; ".join(dict.fromkeys(one.told for _, one in known)) if len(known) < 2 else f"{len(known)} segments by their own"
    )
    return ExpectedCost(
        estimate, low, high, level, target, rule, widths, correction / unit, total, _shares(rows, rule), told, distance,
        by_segment or {},
    )  # fmt: skip


def _label_noise(part: _Part) -> float:
    """Give the variance of the cost of rows: by labelled rows where there are some, else by the scores."""
    if part.known is None or part.known.deviation is None:
        return part.noise
    return part.squares * part.known.deviation**2


def _sampling(parts: list[_Part], rows: Unlabelled, rule: Rule, mean: float, failing: float) -> float:
    """Bound the root of the variance of what rows are expected to cost, also where few of them cost much.

    What labelled rows add differs from part to part, and which part a row is of is chance, too.
    """
    ends = np.clip(rule.edges, 0.0, 1.0)
    reached = np.array(
        [one.negative + one.difference * np.array(both) for one, both in zip(rule.actions, pairwise(ends), strict=True)]
    )
    squares, most = 0.0, 0.0
    for part in parts:
        added = 0.0 if part.known is None else part.known.mean
        off, (once, twice) = part.cost / part.weight + added - mean, part.around
        squares += twice + 2 * off * once + off**2 * part.squares
        most = max(most, float(rows.w.max() * np.abs(reached + added - mean).max()))
    return spread(np.array([math.sqrt(max(squares, 0.0))]), most, failing)


def _possible(rows: Unlabelled, rule: Rule, target: Target) -> tuple[float, float]:
    """Give the least and the most that can come out, whatever the outcomes."""
    low, high = (np.array([side(one.positive, one.negative) for one in rule.actions]) for side in (min, max))
    if target == "population":
        return float(low.min()), float(high.max())
    at = rule.action_index(rows.p)
    return float(rows.w @ low[at]), float(rows.w @ high[at])


def _shares(rows: Unlabelled, rule: Rule) -> tuple[Share, ...]:
    """Say what each action takes."""
    at, many = rule.action_index(rows.p), len(rule.actions)
    taken, positive, cost = (
        np.bincount(at, rows.w * column, many) for column in (1.0, rows.p, rule.expected_costs(rows.p))
    )
    return tuple(
        Share(action.name, float(taken[k]), float(positive[k]), float(cost[k])) for k, action in enumerate(rule.actions)
    )
