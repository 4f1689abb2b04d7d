"""Abstention: the cost of answering only where confidence is high enough, and saying "unsure" elsewhere."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trueup._validate import check_number
from trueup.data.columns import to_jsonable
from trueup.decisions.costs import ExpectedCost, expected_cost
from trueup.decisions.inputs import Target, format_amount
from trueup.decisions.rules import Action, Rule
from trueup.decisions.selective import (
    MAX_RATIO,
    RATIOS,
    ConfidenceSteps,
    RewardCurve,
    RiskCoverage,
    compute_rewards,
    compute_risks,
    read_answers,
    standard_error,
)
from trueup.errors import ArgumentError
from trueup.metrics.result import Result

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from trueup._types import BoolArray, FloatArray
    from trueup.decisions.selective import Answers


EXAMPLE = 'write ratio=10, or costs={"unsure": 1, "wrong": 10}, optionally with "right", negative if it earns'


@dataclass(frozen=True)
class RealisedCost(Result):
    """Observed cost of answering and abstaining, once outcomes are known.

    Attributes
    ----------
    total, mean : float
        Cost of these rows, in total and per row.
    standard_error : float
        Standard error of the mean, for rows drawn from the same population; NaN for a single row.
    z_score : float
        Total cost minus its expectation by the confidences, in standard deviations of label noise: above 3 the confidences
        are too high where it matters, below -3 too low.
    """

    total: float
    mean: float
    standard_error: float
    z_score: float


@dataclass(frozen=True, eq=False)
class Abstention(Result):
    """Cost of answering confident rows and saying "unsure" elsewhere; rewards are negative costs.

    Attributes
    ----------
    threshold : float
        Rows of at least this confidence are answered.
    ratio : float
        (wrong - right) / (unsure - right): cost of a wrong answer relative to "unsure", both minus that of a correct one.
    costs : mapping of str to float
        "unsure", "wrong" and "right".
    rows : float
        Number of rows, or their total weight.
    answered : float
        Share of rows answered.
    expected : ExpectedCost
        Cost expected by the confidences, with an interval.
    realised : RealisedCost or None
        Observed cost, if outcomes are known.
    expected_risk, risk : float
        Share of wrong answers among those given: expected by the confidences and their correction, and observed. NaN if no
        answer was given, or outcomes are unknown.
    curve : RewardCurve
        The same rule at other cost ratios, in units of unsure - right.
    coverage : RiskCoverage
        Risk over the share of rows answered, areas and prediction-rejection ratios.
    by_segment : mapping of str to Abstention
    """

    threshold: float
    ratio: float
    costs: Mapping[str, float]
    rows: float
    answered: float
    expected: ExpectedCost
    realised: RealisedCost | None
    expected_risk: float
    risk: float
    curve: RewardCurve
    coverage: RiskCoverage
    by_segment: Mapping[str, Abstention] = field(default_factory=dict)

    @property
    def expected_total(self) -> float:
        """The expected cost of all these rows."""
        return self.expected.estimate if self.expected.target == "rows" else self.expected.estimate * self.rows

    @property
    def expected_reward(self) -> float:
        """The expected reward per row."""
        return -self.expected_total / self.rows

    @property
    def reward(self) -> float:
        """The observed reward per row; NaN without outcomes."""
        return math.nan if self.realised is None else -self.realised.mean

    @property
    def prr(self) -> float:
        """The prediction-rejection ratio: observed if outcomes are known, else expected."""
        return self.coverage.prr

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that JSON can represent; non-finite numbers become None."""
        derived = ("expected_total", "expected_reward", "reward")
        return super().to_dict() | {name: to_jsonable(getattr(self, name)) for name in derived}

    def __repr__(self) -> str:
        summary = f"unsure below {self.threshold:.4g}: answers {100 * self.answered:.3g}% of {self.rows:,.10g} rows"
        if self.answered:
            summary += f", {100 * (self.expected_risk if self.realised is None else self.risk):.3g}% of them wrong"
            summary += "" if self.realised is None else f" (expected {100 * self.expected_risk:.3g}%)"
        expected = self.expected
        unit = "" if expected.target == "rows" else " per row"
        limits = f"{format_amount(expected.low)} to {format_amount(expected.high)} at {100 * expected.level:g}%"
        cost = f"expected cost {format_amount(expected.estimate)}{unit}, {limits}"
        if self.realised is None:
            return f"<Abstention {summary}; {cost} ({expected.evidence or 'assuming calibrated scores'})>"
        realised = self.realised.mean if unit else self.realised.total
        return f"<Abstention {summary}; cost {format_amount(realised)}{unit}, {cost}>"


def abstain(
    p: ArrayLike,
    y: ArrayLike | None = None,
    *,
    ratio: float | None = None,
    costs: Mapping[str, float] | None = None,
    labelled: Any = None,
    level: float = 0.9,
    target: Target = "rows",
    predicted_class: Any = None,
    weight: ArrayLike | None = None,
    segments: Any = None,
) -> Abstention:
    """Compute the cost of answering where confidence is at least 1 - u/w, and saying "unsure" elsewhere.

    u is the cost of "unsure", w that of a wrong answer. No other rule is cheaper if the confidences are calibrated (Luo et
    al. 2022, section 5.4).

    Parameters
    ----------
    p : array-like, shape (n,) or (n, k)
        Probability of class 1, or of each of k classes. The most probable class is answered (class 1 at 0.5; the first of
        equal columns), and its probability is the confidence.
    y : array-like, shape (n,), optional
        The class of each row: 0 or 1, or a column index of p. Adds the realised cost to the expected one.
    ratio : float, optional
        w/u, at least 1; costs are then in units of u.
    costs : mapping, optional
        Instead of ratio: {"unsure": u, "wrong": w}, optionally with "right": r, by default 0. Rows are answered whose
        confidence is at least (w - u) / (w - r). Requires r <= u <= w: otherwise one would answer never, or always.
    labelled : optional
        Evidence about the errors of the scores, as for `expected_cost`: of p if it has one column, of the confidence (with
        y whether the answer was correct) if it has several or ``predicted_class`` is given. A tuple (y, p) with several
        columns is converted to that.
    level, target : optional
        Of the interval of the expected cost, as for `expected_cost`.
    predicted_class : int or array-like of int, optional
        The class that is answered, if it is not the most probable. For confidences themselves pass predicted_class=1, and
        as y whether the answer was correct.
    weight : array-like, shape (n,), optional
    segments : array-like of labels, or mapping of column to values, optional

    Examples
    --------
    A wrong answer costs four times as much as "unsure":

    >>> abstain([0.95, 0.9, 0.7, 0.2], ratio=4)
    <Abstention unsure below 0.75: answers 75% of 4 rows, 11.7% of them wrong; expected cost 2.4, 1 to 6.22 at 90%
    (assuming calibrated scores)>
    >>> result = abstain([0.95, 0.9, 0.7, 0.2], [1, 0, 1, 0], ratio=4)
    >>> result.realised.total, round(result.prr, 3)
    (5.0, -0.333)

    Correct answers earn 1, wrong ones cost 3, and abstaining is free:

    >>> abstain([[0.6, 0.3, 0.1], [0.2, 0.1, 0.7]], costs={"unsure": 0, "wrong": 3, "right": -1}).threshold
    0.75
    """
    prices = _read_prices(ratio, costs)
    answers = read_answers(p, y, predicted_class=predicted_class, weight=weight, segments=segments)
    several = isinstance(labelled, tuple) and len(labelled) in (2, 3) and np.ndim(labelled[1]) == 2
    if answers.score is None and several:
        if predicted_class is not None:
            raise ArgumentError(
                "labelled has scores of several classes, and the predicted class of its rows is unknown",
                hint="pass labelled=(correct, confidence): whether each answer was correct, and its confidence",
                parameter="labelled",
            )
        known = read_answers(labelled[1], labelled[0], weight=labelled[2] if len(labelled) == 3 else None)
        labelled = known.correct, known.confidence, known.w
    expected = _expected_cost(answers, prices, labelled, level, target)
    by_segment = {name: _measure(part, prices, expected.by_segment[name], {}) for name, part in answers.by_segment()}
    return _measure(answers, prices, expected, by_segment)


class _Prices(NamedTuple):
    """Costs of the three things that can happen to a row."""

    unsure: float
    wrong: float
    right: float

    @property
    def threshold(self) -> float:
        """The confidence from which answering costs no more than abstaining."""
        return (self.wrong - self.unsure) / (self.wrong - self.right)

    @property
    def ratio(self) -> float:
        """The cost of a wrong answer relative to abstaining, both minus that of a correct one."""
        return (self.wrong - self.right) / (self.unsure - self.right) if self.unsure > self.right else math.inf


def _read_prices(ratio: Any, costs: Any) -> _Prices:
    """Validate costs; raise if they leave nothing to decide."""
    if (ratio is None) == (costs is None):
        got = "neither" if ratio is None else "both"
        raise ArgumentError(f"pass either ratio or costs; got {got}", hint=EXAMPLE)
    if costs is None:
        check_number("ratio", ratio, 1, MAX_RATIO, hint=f'below 1 a wrong answer costs less than "unsure"; {EXAMPLE}')
        return _Prices(1.0, float(ratio), 0.0)
    if not isinstance(costs, Mapping) or not {"unsure", "wrong"} <= set(costs) <= {"unsure", "wrong", "right"}:
        names = sorted(map(str, costs)) if isinstance(costs, Mapping) else costs
        raise ArgumentError(
            f"costs must have 'unsure' and 'wrong', and may have 'right'; got {names!r:.80}",
            hint=EXAMPLE,
            parameter="costs",
        )
    values = [costs.get(name, 0.0) for name in _Prices._fields]
    for name, value in zip(_Prices._fields, values, strict=True):
        check_number(f"the cost {name!r}", value, -MAX_RATIO, MAX_RATIO, hint=EXAMPLE)
    prices = _Prices(*map(float, values))
    if prices.wrong <= prices.right:
        problem = f"a wrong answer costs {prices.wrong:g}, no more than a right one ({prices.right:g}): nothing to decide"
    elif prices.unsure > prices.wrong:
        problem = f'"unsure" costs {prices.unsure:g}, more than a wrong answer ({prices.wrong:g}): one would always answer'
    elif prices.unsure < prices.right:
        problem = f'"unsure" costs {prices.unsure:g}, less than a right answer ({prices.right:g}): one would never answer'
    else:
        return prices
    raise ArgumentError(problem, hint=EXAMPLE, parameter="costs")


def _expected_cost(answers: Answers, prices: _Prices, labelled: Any, level: float, target: Target) -> ExpectedCost:
    """Estimate the cost: as a rule on the score if there is one, so that evidence about scores applies to it."""
    u, w, r = prices
    scores: FloatArray
    if answers.score is None:
        scores, actions, cuts = answers.confidence, [("unsure", u, u), ("answer", r, w)], [prices.threshold]
    elif prices.threshold <= 0.5:
        scores, actions, cuts = answers.score, [("answer 0", w, r), ("answer 1", r, w)], [0.5]
    else:
        scores, actions = answers.score, [("answer 0", w, r), ("unsure", u, u), ("answer 1", r, w)]
        cuts = [_mirror(prices.threshold), prices.threshold]
    rule = Rule(tuple(Action(*action) for action in actions), (-math.inf, *cuts, math.inf))
    return expected_cost(
        scores, list(rule.actions), rule, labelled, level=level, target=target, weight=answers.w, segments=answers.labels
    )


def _mirror(threshold: float) -> float:
    """Return the smallest float f with 1 - f < threshold, by bisection on the bits of non-negative floats."""
    low, high = 0, int(np.float64(1.0).view(np.int64))
    while high - low > 1:
        middle = (low + high) // 2
        if 1.0 - float(np.int64(middle).view(np.float64)) >= threshold:
            low = middle
        else:
            high = middle
    return float(np.int64(high).view(np.float64))


def _measure(answers: Answers, prices: _Prices, expected: ExpectedCost, by_segment: Mapping[str, Abstention]) -> Abstention:
    """Compute the result for validated rows."""
    answered, total = answers.confidence >= prices.threshold, float(answers.w.sum())
    weight, steps = float(answers.w[answered].sum()), ConfidenceSteps(answers)

    def risk(error: FloatArray | None, correction: float = 0.0) -> float:
        if error is None or not weight:
            return math.nan
        return min(max((float(answers.w[answered] @ error[answered]) + correction) / weight, 0.0), 1.0)

    # The correction of the cost consists of wrong answers that the confidences did not predict.
    more_wrong = expected.correction * (1.0 if expected.target == "rows" else total) / (prices.wrong - prices.right)
    rule = prices.threshold, prices.ratio, prices._asdict(), total, weight / total
    costs = expected, _realised_cost(answers, prices, answered)
    risks = risk(1.0 - answers.confidence, more_wrong), risk(answers.error)
    curves = compute_rewards(answers, steps, RATIOS.copy()), compute_risks(answers, steps)
    return Abstention(*rule, *costs, *risks, *curves, by_segment)


def _realised_cost(answers: Answers, prices: _Prices, answered: BoolArray) -> RealisedCost | None:
    if answers.correct is None:
        return None
    confidence, correct, w = answers.confidence, answers.correct, answers.w
    cost = np.where(answered, prices.wrong + (prices.right - prices.wrong) * correct, prices.unsure)
    total = float(w.sum())
    mean = float(w @ cost) / total
    error = standard_error(float(np.sum((w * (cost - mean)) ** 2)), total, float(np.sum(w**2)))
    excess = float((w * (confidence - correct))[answered].sum())
    noise = math.sqrt(float((w**2 * confidence * (1.0 - confidence))[answered].sum()))
    z_score = excess / noise if noise else math.copysign(math.inf, excess) if excess else 0.0
    return RealisedCost(float(w @ cost), mean, float(error), z_score)
