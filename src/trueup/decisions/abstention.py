"""Abstention: answering only where confidence is high enough, and saying "unsure" elsewhere.

Computes the cost of that rule, its reward by cost ratio, and the share of wrong answers by the share of rows answered.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trueup._validate import check_number
from trueup.data.columns import check_aligned, frame_like
from trueup.data.values import describe_rows
from trueup.decisions.costs import ExpectedCost, expected_cost
from trueup.decisions.evidence import Segments, Target, evidence_text, format_amount, has_weight, read_unlabelled
from trueup.decisions.rules import Action, Rule
from trueup.errors import ArgumentError, DataError
from trueup.kernels.sorting import argsort
from trueup.metrics.inputs import validate_array, validate_class_scores, validate_scores
from trueup.metrics.result import Result
from trueup.metrics.scores import prr

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from trueup._types import BoolArray, FloatArray, IntArray


EXAMPLE = 'write ratio=10, or costs={"unsure": 1, "wrong": 10}, optionally with "right", negative if it earns'
RATIOS = np.geomspace(1.0, 50.0, 50)
MAX_RATIO = 1e100
MAX_STEPS = 201  # of a risk-coverage curve in a dict


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
        Share of wrong answers among those given: expected by the confidences, corrected by labelled rows; and observed.
        Both are NaN if no answer was given, ``risk`` also if outcomes are unknown.
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
    derived = ("expected_total", "expected_reward", "reward")

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
            return f"<Abstention {summary}; {cost} ({evidence_text(expected.evidence)})>"
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

    u is the cost of "unsure", w that of a wrong answer. No other rule is cheaper if the confidences are calibrated
    (Luo et al. 2022, "Local Calibration: Metrics and Recalibration", arXiv:2102.10809, section 5.4).

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
    """Costs of abstaining, of a wrong answer and of a correct answer."""

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
    """Return the costs from either ``ratio`` or ``costs``; raise if they leave nothing to decide."""
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
    """Estimate the cost of abstaining, as a rule on scores (which evidence is about) or, without scores, on confidences."""
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
    settings: dict[str, Any] = {"level": level, "target": target, "weight": answers.w, "segments": answers.segments}
    return expected_cost(scores, rule.actions, rule, labelled, **settings)


def _mirror(threshold: float) -> float:
    """Return the score below which class 0 is answered: the smallest float f with 1 - f < ``threshold``, above 1/2."""
    halfway = 1.0 - threshold + 2.0**-54  # exact: 1 - f lies in the middle of the threshold and the next lower float
    return halfway if 1.0 - halfway < threshold else math.nextafter(halfway, 1.0)


def _measure(answers: Answers, prices: _Prices, expected: ExpectedCost, by_segment: Mapping[str, Abstention]) -> Abstention:
    """Return the result of `abstain` for validated rows, given their expected cost and the results of their segments."""
    answered, total = answers.confidence >= prices.threshold, float(answers.w.sum())
    weight, steps = float(answers.w[answered].sum()), ConfidenceSteps(answers)

    def risk(error: FloatArray | None, correction: float = 0.0) -> float:
        if error is None or not weight:
            return math.nan
        return min(max((float(answers.w[answered] @ error[answered]) + correction) / weight, 0.0), 1.0)

    # The correction of the cost consists of wrong answers that the confidences did not predict.
    more_wrong = expected.correction * (1.0 if expected.target == "rows" else total) / (prices.wrong - prices.right)
    return Abstention(
        threshold=prices.threshold,
        ratio=prices.ratio,
        costs=prices._asdict(),
        rows=total,
        answered=weight / total,
        expected=expected,
        realised=_realised_cost(answers, prices, answered),
        expected_risk=risk(1.0 - answers.confidence, more_wrong),
        risk=risk(answers.error),
        curve=steps.rewards(RATIOS.copy()),
        coverage=steps.risks(),
        by_segment=by_segment,
    )


def _realised_cost(answers: Answers, prices: _Prices, answered: BoolArray) -> RealisedCost | None:
    if answers.correct is None:
        return None
    confidence, correct, w = answers.confidence, answers.correct, answers.w
    cost = np.where(answered, prices.wrong + (prices.right - prices.wrong) * correct, prices.unsure)
    weight, total = float(w.sum()), float(w @ cost)
    error = standard_error(float(np.sum((w * (cost - total / weight)) ** 2)), weight, float(np.sum(w**2)))
    excess = float((w * (confidence - correct))[answered].sum())
    noise = math.sqrt(float((w**2 * confidence * (1.0 - confidence))[answered].sum()))
    z_score = excess / noise if noise else math.copysign(math.inf, excess) if excess else 0.0
    return RealisedCost(total, total / weight, float(error), z_score)


# Reward and risk curves


class Answers(NamedTuple):
    """Per row: confidence in the class answered, whether it was correct if known, weight, score and segment."""

    confidence: FloatArray  # probability that the answer is correct
    correct: FloatArray | None  # whether it was; None without outcomes
    w: FloatArray
    score: FloatArray | None  # probability of class 1 if the more probable of two classes is answered, else None
    segments: Segments | None

    @property
    def error(self) -> FloatArray | None:
        """1 where the answer was wrong; None without outcomes."""
        return None if self.correct is None else 1.0 - self.correct

    def by_segment(self) -> Iterator[tuple[str, Answers]]:
        """Yield the name and the rows of each segment."""
        for name, index in ({} if self.segments is None else self.segments.indices()).items():
            correct = None if self.correct is None else self.correct[index]
            yield name, Answers(self.confidence[index], correct, self.w[index], None, None)


def read_answers(
    p: ArrayLike,
    y: ArrayLike | None = None,
    *,
    predicted_class: Any = None,
    weight: ArrayLike | None = None,
    segments: Any = None,
) -> Answers:
    """Validate scores of one or several classes, and return the answer of each row; parameters as for `abstain`."""
    named = {"p": p, "y": y, "predicted_class": predicted_class, "weight": weight, "segments": segments}
    check_aligned(named)
    try:
        several = np.ndim(p) == 2
    except ValueError:  # lists of unequal length
        several = validate_array(p, "p").ndim == 2
    rows = read_unlabelled(np.zeros(np.shape(p)[0]) if several else p, weight, segments)
    kept = has_weight(weight, p)
    if several:
        data = validate_class_scores(np.zeros(len(kept)) if y is None else y, p, weight)
        index = data.p.argmax(axis=1) if predicted_class is None else _read_classes(predicted_class, kept, data.p.shape[1])
        # Probabilities may add up to slightly more than 1; a confidence does not exceed 1.
        confidence = np.minimum(data.p[np.arange(len(index)), index], 1.0)
        correct = None if y is None else (index == data.y).astype(np.float64)
        return Answers(confidence, correct, rows.w, None, rows.segments)
    positive = rows.p >= 0.5 if predicted_class is None else _read_classes(predicted_class, kept, 2) == 1
    outcome = None if y is None else validate_scores(y, p, weight).y
    correct = None if outcome is None else np.where(positive, outcome, 1.0 - outcome)
    confidence = np.where(positive, rows.p, 1.0 - rows.p)
    return Answers(confidence, correct, rows.w, rows.p if predicted_class is None else None, rows.segments)


def _read_classes(predicted_class: Any, kept: BoolArray, classes: int) -> IntArray:
    """Validate ``predicted_class``, from 0 to ``classes`` - 1, and return it for the rows that ``kept`` marks."""
    values = np.full(len(kept), predicted_class) if np.ndim(predicted_class) == 0 else predicted_class
    array = validate_array(values, "predicted_class")
    if len(array) != len(kept):
        raise DataError(
            f"predicted_class must have one class per row; got {len(array):,} for {len(kept):,} rows",
            hint="one entry per row, or one for all",
            parameter="predicted_class",
        )
    bad = (array < 0) | (array >= classes) | (array != np.floor(array))
    if bad.any():
        raise ArgumentError(
            f"predicted_class must be from 0 to {classes - 1}; got {array[bad][0]:g} {describe_rows(bad)}",
            hint="leave it out to answer with the most probable class",
            parameter="predicted_class",
        )
    return array[kept].astype(np.int64)


def standard_error(squares: Any, weight: float, weights_squared: float) -> Any:
    """Return the standard error of a mean, from sum (w deviation)^2, sum w and sum w^2; NaN for a single row."""
    size = weight**2 / weights_squared
    return np.sqrt(squares * size / (size - 1)) / weight if size > 1 + 1e-9 else squares * math.nan


@dataclass(frozen=True, eq=False)
class RewardCurve(Result):
    """Reward of the rule "answer where confidence is at least 1 - 1/ratio", for each cost ratio.

    Rewards are means over rows in units of the cost of "unsure": it earns -1, a wrong answer -ratio, a correct one 0.

    Attributes
    ----------
    ratio, threshold, answered : ndarray
        Cost of a wrong answer relative to "unsure"; the confidence from which rows are answered; the share of those rows.
    expected : ndarray
        Reward if the confidences are calibrated.
    realised, standard_error : ndarray
        Observed reward and its standard error; NaN without outcomes.
    always, never, oracle, random : ndarray
        Reward of answering every row, no row, exactly the rows whose answer is correct, and a random subset of the same
        size (its expectation). By the outcomes if they are known, else by the confidences.
    rows : float
        Number of rows, or their total weight; multiplied by it, rewards are totals.
    labelled : bool
        Whether outcomes are known.
    """

    ratio: FloatArray
    threshold: FloatArray
    answered: FloatArray
    expected: FloatArray
    realised: FloatArray
    standard_error: FloatArray
    always: FloatArray
    never: FloatArray
    oracle: FloatArray
    random: FloatArray
    rows: float
    labelled: bool

    @property
    def reward(self) -> FloatArray:
        """The realised reward if outcomes are known, else the expected one."""
        return self.realised if self.labelled else self.expected

    def gain(self, over: RewardCurve) -> FloatArray:
        """Return the additional reward per row over another curve of the same ratios (Luo et al. 2022, Figure 4)."""
        if not np.array_equal(self.ratio, over.ratio):
            raise ArgumentError("the two curves have different ratios", hint="pass the same ratios= to both")
        if self.labelled != over.labelled:
            raise ArgumentError("one curve is realised, the other expected", hint="pass y to both, or to neither")
        return self.reward - over.reward

    def to_frame(self, like: Any = None) -> Any:
        """Return one row per ratio, as a frame of the library of ``like``, or as a dict of arrays without it."""
        names = [name for name in self.__dataclass_fields__ if name not in ("rows", "labelled")]
        return frame_like({name: getattr(self, name).copy() for name in names}, like)

    def __repr__(self) -> str:
        first, last = int(np.argmin(self.ratio)), int(np.argmax(self.ratio))
        ends = f"{self.reward[first]:.4g} per row at ratio {self.ratio[first]:g}"
        if first != last:
            ends += f" to {self.reward[last]:.4g} at {self.ratio[last]:g}"
        return f"<RewardCurve of {self.rows:,.10g} rows: {'reward' if self.labelled else 'expected reward'} {ends}>"


@dataclass(frozen=True, eq=False)
class RiskCoverage(Result):
    """Share of wrong answers among the most confident rows, for each share of rows answered.

    Rows of equal confidence are one step of the curve: they are answered in random order, and areas are expectations.

    Attributes
    ----------
    threshold, coverage : ndarray
        The distinct confidences, descending, and the share of rows with at least that confidence.
    expected, realised : ndarray
        The share of errors among them: if confidences are calibrated, and as observed (NaN without outcomes).
    expected_area, realised_area : float
        Areas under these curves (AURC): the risk averaged over all coverages.
    oracle_area, random_area : float
        The area for the best order, every error last, and for a random order, the error rate. By the outcomes if they are
        known, else by the confidences.
    expected_prr, realised_prr : float
        Prediction-rejection ratios (`metrics.prr`); NaN if no answer or every answer is wrong.
    rows : float
    labelled : bool
    """

    threshold: FloatArray
    coverage: FloatArray
    expected: FloatArray
    realised: FloatArray
    expected_area: float
    realised_area: float
    oracle_area: float
    random_area: float
    expected_prr: float
    realised_prr: float
    rows: float
    labelled: bool

    @property
    def risk(self) -> FloatArray:
        """The realised curve if outcomes are known, else the expected one."""
        return self.realised if self.labelled else self.expected

    @property
    def area(self) -> float:
        """The area under `risk`."""
        return self.realised_area if self.labelled else self.expected_area

    @property
    def prr(self) -> float:
        """The realised prediction-rejection ratio if outcomes are known, else the expected one."""
        return self.realised_prr if self.labelled else self.expected_prr

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that JSON can represent; a long curve is thinned to about 200 points, both ends included."""
        if len(self.threshold) <= MAX_STEPS:
            return super().to_dict()
        kept = np.unique(np.linspace(0, len(self.threshold) - 1, MAX_STEPS).round().astype(int))
        return replace(self, **{name: column[kept] for name, column in self.to_frame().items()}).to_dict()

    def to_frame(self, like: Any = None) -> Any:
        """Return one row per distinct confidence, as a frame of the library of ``like``, or a dict of arrays without it."""
        names = ("threshold", "coverage", "expected", "realised")
        return frame_like({name: getattr(self, name).copy() for name in names}, like)

    def __repr__(self) -> str:
        kind = "" if self.labelled else "expected "
        areas = f"{kind}area {self.area:.4g} (oracle {self.oracle_area:.4g}, random {self.random_area:.4g})"
        return f"<RiskCoverage of {self.rows:,.10g} rows: {areas}, {kind}PRR {self.prr:.4g}>"


def reward_curve(
    p: ArrayLike,
    y: ArrayLike | None = None,
    *,
    ratios: ArrayLike | None = None,
    predicted_class: Any = None,
    weight: ArrayLike | None = None,
) -> RewardCurve:
    """Compute the reward of answering only confident rows, over cost ratios.

    Parameters
    ----------
    p, y, predicted_class, weight
        As for `abstain`. Without y, rewards are those expected by the confidences.
    ratios : array-like, optional
        Costs of a wrong answer relative to "unsure", each at least 1. By default 50 values from 1 to 50, evenly spaced on a
        logarithmic scale.

    References
    ----------
    Luo, Bhatnagar, Bai, Zhao, Wang, Xiong, Savarese, Ermon, Schmerling & Pavone (2022), "Local Calibration: Metrics and
    Recalibration", arXiv:2102.10809, section 5.4.

    Examples
    --------
    Two of three answers are correct, and the wrong one is the least confident:

    >>> curve = reward_curve([0.9, 0.8, 0.6], [1, 1, 0], ratios=[1, 2, 4, 10])
    >>> curve.threshold
    array([0.  , 0.5 , 0.75, 0.9 ])
    >>> (3 * curve.reward).round(3)
    array([-1., -2., -1., -2.])
    >>> (3 * curve.always).round(3)
    array([ -1.,  -2.,  -4., -10.])
    >>> (3 * curve.expected).round(3)
    array([-0.7, -1.4, -2.2, -3. ])
    """
    answers = read_answers(p, y, predicted_class=predicted_class, weight=weight)
    hint = "numbers of 1 or more, such as np.geomspace(1, 50)"
    try:
        values = RATIOS.copy() if ratios is None else np.asarray(ratios, np.float64).ravel()
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"ratios must be numbers ({error})", hint=hint, parameter="ratios") from error
    if not values.size:
        raise ArgumentError("ratios is empty", hint="leave it out for 50 values from 1 to 50", parameter="ratios")
    bad = ~((values >= 1) & (values <= MAX_RATIO))
    if bad.any():
        raise ArgumentError(
            f'ratios must be finite and at least 1 (below, "unsure" costs more than an error); got {values[bad][0]:g}',
            hint=hint,
            parameter="ratios",
        )
    return ConfidenceSteps(answers).rewards(values)


def risk_coverage(
    p: ArrayLike, y: ArrayLike | None = None, *, predicted_class: Any = None, weight: ArrayLike | None = None
) -> RiskCoverage:
    """Compute the share of errors among the most confident rows, for every share of rows answered.

    Parameters
    ----------
    p, y, predicted_class, weight
        As for `abstain`. Without y, risks are those expected by the confidences: the mean of 1 - confidence.

    Notes
    -----
    With E(s) the errors among the share s of most confident rows, as a share of all rows, the risk is E(s) / s. Where rows
    have equal confidence, E is linear: its expectation over their order. The area is the integral of E(s) / s. From a to
    b, with a share d of errors between them, it is d (b - a) + (E(a) - a d) log(b / a). It does not change if every row is
    duplicated; the usual sum over rows (Geifman, Uziel & El-Yaniv 2019) tends to it.

    Examples
    --------
    >>> curve = risk_coverage([0.9, 0.8, 0.6, 0.6], [1, 1, 0, 1])
    >>> curve.coverage, curve.risk
    (array([0.25, 0.5 , 1.  ]), array([0.  , 0.  , 0.25]))
    >>> curve
    <RiskCoverage of 4 rows: area 0.07671 (oracle 0.03424, random 0.25), PRR 0.6667>
    """
    return ConfidenceSteps(read_answers(p, y, predicted_class=predicted_class, weight=weight)).risks()


class ConfidenceSteps:
    """Rows sorted by descending confidence, in steps of equal confidence; cumulative sums are 0 and one value per step."""

    def __init__(self, answers: Answers) -> None:
        self.answers, self.order = answers, argsort(-answers.confidence)
        confidence = answers.confidence[self.order]
        self.last = np.flatnonzero(np.append(confidence[1:] != confidence[:-1], True))
        self.threshold = confidence[self.last]
        self.weight = self._sums(answers.w)
        self.total = float(self.weight[-1])

    def _sums(self, column: FloatArray) -> FloatArray:
        """Return 0 and the sums of ``column`` from the most confident row to the end of each step of equal confidence."""
        return np.append(0.0, np.cumsum(column[self.order])[self.last])

    def rewards(self, ratio: FloatArray) -> RewardCurve:
        """Compute the reward curve at cost ratios ``ratio``."""
        w, error = self.answers.w, self.answers.error
        threshold = (ratio - 1.0) / ratio
        index = np.searchsorted(-self.threshold, -threshold, side="right")  # steps of at least this confidence
        answered = self.weight[index] / self.total

        def reward(wrong: FloatArray) -> tuple[FloatArray, float]:
            sums = self._sums(w * wrong) / self.total
            return -(1.0 - answered) - ratio * sums[index], float(sums[-1])

        expected, error_rate = reward(1.0 - self.answers.confidence)
        realised = noise = np.full(len(ratio), np.nan)
        if error is not None:
            realised, error_rate = reward(error)
            # Rows cost ratio x error if they are answered, else 1.
            squares, wrong, both = (self._sums(w**2 * column) for column in (np.ones(len(w)), error, error**2))
            deviations = (squares[-1] - squares[index]) * (1.0 + realised) ** 2
            deviations += ratio**2 * both[index] + 2.0 * ratio * realised * wrong[index] + realised**2 * squares[index]
            # Rounding may leave a negative sum if all rows cost the same.
            noise = np.asarray(standard_error(np.maximum(deviations, 0.0), self.total, float(squares[-1])))
        always, never, oracle = -ratio * error_rate, np.full(len(ratio), -1.0), np.full(len(ratio), -error_rate)
        random = -(1.0 - answered) - ratio * answered * error_rate
        rows, labelled = self.total, error is not None
        return RewardCurve(
            ratio, threshold, answered, expected, realised, noise, always, never, oracle, random, rows, labelled
        )

    def risks(self) -> RiskCoverage:
        """Compute the risk-coverage curve."""
        answers, coverage = self.answers, self.weight / self.total

        def risk(wrong: FloatArray) -> tuple[FloatArray, float, float, float]:
            sums = self._sums(answers.w * wrong) / self.total
            quality = prr(wrong, answers.confidence, answers.w)
            return sums[1:] / coverage[1:], _area(coverage, sums), quality, float(sums[-1])

        expected, expected_area, expected_prr, error_rate = risk(1.0 - answers.confidence)
        realised, realised_area, realised_prr = np.full(len(expected), np.nan), np.nan, np.nan
        if answers.error is not None:
            realised, realised_area, realised_prr, error_rate = risk(answers.error)
        return RiskCoverage(
            threshold=self.threshold,
            coverage=coverage[1:],
            expected=expected,
            realised=realised,
            expected_area=expected_area,
            realised_area=realised_area,
            oracle_area=error_rate + (1.0 - error_rate) * float(np.log1p(-error_rate)) if error_rate < 1 else 1.0,
            random_area=error_rate,
            expected_prr=expected_prr,
            realised_prr=realised_prr,
            rows=self.total,
            labelled=answers.correct is not None,
        )


def _area(coverage: FloatArray, errors: FloatArray) -> float:
    """Integrate errors / coverage over coverage; both are given at the ends of steps, between which errors are linear."""
    width, increase = np.diff(coverage), np.diff(errors)
    rate = np.divide(increase, width, out=np.zeros_like(width), where=width > 0)  # a small weight may vanish in a sum
    intercept = errors[1:-1] - coverage[1:-1] * rate[1:]
    return float(increase.sum() + np.sum(intercept * np.log1p(width[1:] / coverage[1:-1])))
