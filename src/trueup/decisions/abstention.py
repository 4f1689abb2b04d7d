"""When to say "unsure": what it costs to answer only where confidence is high enough."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trueup.data.frame import to_jsonable
from trueup.decisions.answers import answers_of, standard_error
from trueup.decisions.costs import expected_cost
from trueup.decisions.inputs import Target, number, say
from trueup.decisions.rejection import MOST_RATIO, RATIOS, Falling, rewards, risks
from trueup.decisions.rules import Action, Rule
from trueup.errors import ArgumentError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from trueup._types import BoolArray, FloatArray
    from trueup.decisions.answers import Answers
    from trueup.decisions.costs import ExpectedCost
    from trueup.decisions.rejection import RewardCurve, RiskCoverage


EXAMPLE = 'write ratio=10, or costs={"unsure": 1, "wrong": 10}, perhaps with "right", which is below 0 where it earns'


@dataclass(frozen=True)
class RealisedCost:
    """What answering and keeping silent came to, once outcomes were known.

    Attributes
    ----------
    total, mean : float
        Of these rows, and a row.
    standard_error : float
        Standard error of the mean, for rows drawn from the same population; NaN for a single row.
    z_score : float
        By how many standard deviations of label noise the total is above what the confidences promised: beyond 3 they are
        too high where it matters, below -3 too low.
    """

    total: float
    mean: float
    standard_error: float
    z_score: float


@dataclass(frozen=True, eq=False)
class Abstention:
    """What it costs to answer where confidence is high enough, and to say "unsure" elsewhere; rewards are costs below 0.

    Attributes
    ----------
    threshold : float
        Rows of at least this confidence are answered.
    ratio : float
        (wrong - right) / (unsure - right): how many times as much a wrong answer costs as "unsure", both beside a right
        one.
    costs : mapping of str to float
        "unsure", "wrong" and "right".
    rows : float
        Their number, or their total weight.
    answered : float
        The share of rows that is answered.
    expected : ExpectedCost
        What the confidences promise, with an interval.
    realised : RealisedCost or None
        What came out, where outcomes are known.
    expected_risk, risk : float
        The share of wrong answers among those given: expected, by the confidences and what corrects them, and as it came
        out. NaN where none was given or known.
    curve : RewardCurve
        The same rule at other cost ratios; in units of unsure - right.
    coverage : RiskCoverage
        Risk against the share of rows answered, the areas below, and prediction-rejection ratios.
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
        """Give the expected cost of all these rows."""
        return self.expected.estimate if self.expected.target == "rows" else self.expected.estimate * self.rows

    @property
    def expected_reward(self) -> float:
        """Give the expected reward of a row."""
        return -self.expected_total / self.rows

    @property
    def reward(self) -> float:
        """Give the reward of a row as it came out; NaN where outcomes are not known."""
        return math.nan if self.realised is None else -self.realised.mean

    @property
    def prr(self) -> float:
        """Give the prediction-rejection ratio: as it came out where that is known, else what is expected."""
        return self.coverage.prr

    def to_dict(self) -> dict[str, Any]:
        """Give plain values fit for JSON; what is not finite becomes None."""
        nested = {
            "expected": self.expected.to_dict(),
            "realised": None if self.realised is None else asdict(self.realised),
            "curve": self.curve.to_dict(),
            "coverage": self.coverage.to_dict(),
            "by_segment": {name: one.to_dict() for name, one in self.by_segment.items()},
        }
        found = {name: to_jsonable(nested.get(name, getattr(self, name))) for name in self.__dataclass_fields__}
        more = ("expected_total", "expected_reward", "reward")
        return found | {name: to_jsonable(getattr(self, name)) for name in more}

    def __repr__(self) -> str:
        known = self.realised
        said = f"unsure below {self.threshold:.4g}: answers {100 * self.answered:.3g}% of {self.rows:,.10g} rows"
        if self.answered:
            said += f", {100 * (self.expected_risk if known is None else self.risk):.3g}% of them wrong"
            said += "" if known is None else f" (expected {100 * self.expected_risk:.3g}%)"
        unit = "" if self.expected.target == "rows" else " a row"
        span = f"{say(self.expected.low)} to {say(self.expected.high)} at {100 * self.expected.level:g}%"
        told = f"expected cost {say(self.expected.estimate)}{unit}, {span}"
        if known is None:
            return f"<Abstention {said}; {told} ({self.expected.evidence or 'scores taken at their word'})>"
        cost = known.mean if unit else known.total
        return f"<Abstention {said}; cost {say(cost)}{unit}, {told}>"


def abstain(
    p: ArrayLike, y: ArrayLike | None = None, *,
    ratio: float | None = None, costs: Mapping[str, float] | None = None, labelled: Any = None, level: float = 0.9,
    target: Target = "rows", predicted_class: Any = None, weight: ArrayLike | None = None, segments: Any = None,
) -> Abstention:  # fmt: skip
    """Say what it costs to answer where confidence is at least 1 - u/w, and to say "unsure" elsewhere.

    u is what "unsure" costs, w what a wrong answer does. Where confidences are right no other rule is cheaper (Luo et al.
    2022, section 5.4).

    Parameters
    ----------
    p : array-like, shape (n,) or (n, k)
        The probability of class 1, or of each of k classes. The likeliest class is answered (at 0.5, class 1; among equal
        columns the first), and its probability is the confidence.
    y : array-like, shape (n,), optional
        The class of each row: 0 or 1, or a position among the columns of p. With it, what came out stands beside what
        was expected.
    ratio : float, optional
        w/u, 1 or more; costs are then in units of u.
    costs : mapping, optional
        In place of ratio: {"unsure": u, "wrong": w}, perhaps with "right": r, by default 0. Rows are answered whose
        confidence is at least (w - u) / (w - r). r <= u <= w is asked for: otherwise one would answer never, or always.
    labelled : optional
        What is known of the errors of the scores, as for `expected_cost`: of p where it has one column, of the confidence
        (with y whether the answer was right) where it has several or ``predicted_class`` is given. A tuple (y, p) with
        several columns is turned into that.
    level, target : optional
        Of the interval around the expected cost, as for `expected_cost`.
    predicted_class : int or array-like of int, optional
        The class that is answered, where it is not the likeliest. Of confidences themselves write predicted_class=1, and as
        y whether the answer was right.
    weight : array-like, shape (n,), optional
    segments : array-like of labels, or mapping of column to values, optional

    Examples
    --------
    A wrong answer costs four times what "unsure" does:

    >>> abstain([0.95, 0.9, 0.7, 0.2], ratio=4)
    <Abstention unsure below 0.75: answers 75% of 4 rows, 11.7% of them wrong; expected cost 2.4, 1 to 6.22 at 90%
    (scores taken at their word)>
    >>> found = abstain([0.95, 0.9, 0.7, 0.2], [1, 0, 1, 0], ratio=4)
    >>> found.realised.total, round(found.prr, 3)
    (5.0, -0.333)

    Right answers earn 1, wrong ones cost 3, and silence is free:

    >>> abstain([[0.6, 0.3, 0.1], [0.2, 0.1, 0.7]], costs={"unsure": 0, "wrong": 3, "right": -1}).threshold
    0.75
    """
    prices = _prices(ratio, costs)
    answers = answers_of(p, y, predicted_class=predicted_class, weight=weight, segments=segments)
    if answers.score is None:
        labelled = _of_answers(labelled, predicted_class)
    expected = _expected(answers, prices, labelled, level, target)
    single = {name: _put_together(part, prices, expected.by_segment[name], {}) for name, part in answers.parts()}
    return _put_together(answers, prices, expected, single)


class _Prices(NamedTuple):
    """What each thing costs that can happen to a row."""

    unsure: float
    wrong: float
    right: float

    @property
    def threshold(self) -> float:
        """Give the confidence from which an answer is no dearer than silence."""
        return (self.wrong - self.unsure) / (self.wrong - self.right)

    @property
    def ratio(self) -> float:
        """Give how many times as much a wrong answer costs as silence, both beside a right one."""
        return (self.wrong - self.right) / (self.unsure - self.right) if self.unsure > self.right else math.inf


def _prices(ratio: Any, costs: Any) -> _Prices:
    """Read what things cost; refuse what leaves nothing to decide."""
    if (ratio is None) == (costs is None):
        told = "neither is given" if ratio is None else "both are given"
        raise ArgumentError(f"say what answers cost by either ratio or costs; {told}", hint=EXAMPLE)
    if costs is None:
        asked = 'ratio (below 1 "unsure" costs more than a wrong answer, and one would always answer)'
        return _Prices(1.0, number(ratio, asked, EXAMPLE, low=1.0, high=MOST_RATIO), 0.0)
    if not isinstance(costs, Mapping) or not {"unsure", "wrong"} <= set(costs) <= {"unsure", "wrong", "right"}:
        got = sorted(map(str, costs)) if isinstance(costs, Mapping) else costs
        raise ArgumentError(f"costs must name 'unsure' and 'wrong', and may name 'right'; got {got!r:.80}", hint=EXAMPLE)
    found = _Prices(
        *(
            number(costs.get(name, 0.0), f"the cost {name!r}", EXAMPLE, low=-MOST_RATIO, high=MOST_RATIO)
            for name in _Prices._fields
        )
    )
    if found.wrong <= found.right:
        told = f"a wrong answer costs {found.wrong:g}, no more than a right one ({found.right:g})"
        raise ArgumentError(f"{told}: confidence decides nothing", hint=EXAMPLE)
    if found.unsure > found.wrong:
        told = f'"unsure" costs {found.unsure:g}, more than a wrong answer ({found.wrong:g})'
        raise ArgumentError(f"{told}: one would always answer", hint=EXAMPLE)
    if found.unsure < found.right:
        told = f'"unsure" costs {found.unsure:g}, less than a right answer ({found.right:g})'
        raise ArgumentError(f"{told}: one would never answer", hint=EXAMPLE)
    return found


def _of_answers(bound: Any, predicted_class: Any) -> Any:
    """Turn labelled rows with scores of several classes into confidences, and whether they came true."""
    if isinstance(bound, tuple) and len(bound) in (2, 3) and np.ndim(bound[1]) == 2:
        if predicted_class is not None:
            raise ArgumentError(
                "the labelled rows have scores of several classes, and which of them would be predicted is not known",
                hint="pass labelled=(right, confidence): whether each answer was right, and how sure it was",
            )
        rows = answers_of(bound[1], bound[0], weight=bound[2] if len(bound) == 3 else None)
        return rows.hit, rows.confidence, rows.w
    return bound


def _expected(answers: Answers, prices: _Prices, bound: Any, level: float, target: Target) -> ExpectedCost:
    """Ask what the rule will cost: a rule on the score itself where there is one, so that bounds on scores hold for it."""
    u, w, r = prices
    scores: FloatArray
    if answers.score is None:
        scores, rule = answers.confidence, _rule([("unsure", u, u), ("answer", r, w)], [prices.threshold])
    elif prices.threshold <= 0.5:
        scores, rule = answers.score, _rule([("answer 0", w, r), ("answer 1", r, w)], [0.5])
    else:
        actions = [("answer 0", w, r), ("unsure", u, u), ("answer 1", r, w)]
        scores, rule = answers.score, _rule(actions, [_mirrored(prices.threshold), prices.threshold])
    return expected_cost(
        scores, list(rule.actions), rule, bound, level=level, target=target, weight=answers.w, segments=answers.labels
    )


def _rule(actions: list[tuple[str, float, float]], cuts: list[float]) -> Rule:
    return Rule(tuple(Action(*one) for one in actions), (-math.inf, *cuts, math.inf))


def _mirrored(threshold: float) -> float:
    """Give the smallest score f for which 1 - f is below a threshold, to the last bit.

    Floats that are not negative are in the order of their bits, and there the place is found by halving.
    """
    low, high = 0, int(np.float64(1.0).view(np.int64))
    while high - low > 1:
        middle = (low + high) // 2
        if 1.0 - float(np.int64(middle).view(np.float64)) >= threshold:
            low = middle
        else:
            high = middle
    return float(np.int64(high).view(np.float64))


def _put_together(
    answers: Answers, prices: _Prices, expected: ExpectedCost, by_segment: Mapping[str, Abstention]
) -> Abstention:
    """Measure the rule on rows that have been read."""
    taken, total = answers.confidence >= prices.threshold, float(answers.w.sum())
    mass, falling = float(answers.w[taken].sum()), Falling(answers)

    def risk(error: FloatArray | None, more: float = 0.0) -> float:
        if error is None or not mass:
            return math.nan
        return min(max((float(answers.w[taken] @ error[taken]) + more) / mass, 0.0), 1.0)

    # What labelled rows add to the cost are wrong answers that the confidences did not tell of.
    added = expected.correction * (1.0 if expected.target == "rows" else total) / (prices.wrong - prices.right)
    return Abstention(
        prices.threshold, prices.ratio, prices._asdict(), total, mass / total, expected,
        _realised(answers, prices, taken), risk(1.0 - answers.confidence, added), risk(answers.error),
        rewards(answers, falling, RATIOS.copy()), risks(answers, falling), by_segment,
    )  # fmt: skip


def _realised(answers: Answers, prices: _Prices, taken: BoolArray) -> RealisedCost | None:
    """Add up what came out."""
    if answers.hit is None:
        return None
    c, hit, w = answers.confidence, answers.hit, answers.w
    answer = prices.wrong + (prices.right - prices.wrong) * hit
    cost, total = np.where(taken, answer, prices.unsure), float(w.sum())
    mean = float(w @ cost) / total
    error = standard_error(float(np.sum((w * (cost - mean)) ** 2)), total, float(np.sum(w**2)))
    # What the labels of answered rows add: each is off by its error less the probability of one.
    above = float((w * (c - hit))[taken].sum())
    noise = math.sqrt(float((w**2 * c * (1.0 - c))[taken].sum()))
    z_score = above / noise if noise else math.copysign(math.inf, above) if above else 0.0
    return RealisedCost(float(w @ cost), mean, float(error), z_score)
