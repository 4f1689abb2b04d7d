"""Selective prediction: the reward of answering only confident rows over cost ratios, and risk over coverage."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trueup.data.columns import frame_like
from trueup.data.frame import describe_rows
from trueup.decisions.inputs import Segments, has_weight, read_unlabelled
from trueup.errors import ArgumentError, DataError
from trueup.kernels.sorting import argsort
from trueup.metrics.inputs import validate_array, validate_class_scores, validate_scores
from trueup.metrics.result import Result
from trueup.metrics.scores import prr

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import ArrayLike

    from trueup._types import AnyArray, BoolArray, FloatArray, IntArray


RATIOS = np.geomspace(1.0, 50.0, 50)
MAX_RATIO = 1e100
MAX_STEPS = 201  # of a risk-coverage curve in a dict


class Answers(NamedTuple):
    """Rows with the class that would be answered.

    ``confidence`` is the probability that the answer is correct, ``correct`` whether it was (None without outcomes).
    ``score`` is the probability of class 1 if the more probable of two classes is answered, else None.
    """

    confidence: FloatArray
    correct: FloatArray | None
    w: FloatArray
    score: FloatArray | None
    segments: Segments | None

    @property
    def error(self) -> FloatArray | None:
        """1 where the answer was wrong; None without outcomes."""
        return None if self.correct is None else 1.0 - self.correct

    @property
    def labels(self) -> AnyArray | None:
        """The name of each row's segment, or None."""
        return None if self.segments is None else np.array(self.segments.names)[self.segments.codes]

    def by_segment(self) -> Iterator[tuple[str, Answers]]:
        """Yield the name and the rows of each segment."""
        for name, index in ({} if self.segments is None else self.segments.indices()).items():
            correct, score = (None if column is None else column[index] for column in (self.correct, self.score))
            yield name, Answers(self.confidence[index], correct, self.w[index], score, None)


def read_answers(
    p: ArrayLike,
    y: ArrayLike | None = None,
    *,
    predicted_class: Any = None,
    weight: ArrayLike | None = None,
    segments: Any = None,
) -> Answers:
    """Validate scores of one or several classes, and return the answer of each row; see `abstain`.

    >>> read_answers([0.2, 0.7], [0, 0]).confidence
    array([0.8, 0.7])
    >>> read_answers([[0.2, 0.5, 0.3]], [1]).correct
    array([1.])
    """
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
    """Return the predicted class of the kept rows."""
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
    """Return the standard error of a weighted mean, from the sum of squared weighted deviations; NaN for a single row.

    >>> float(standard_error(1.0, 4.0, 4.0).round(3))  # of 0, 0, 1, 1
    0.289
    """
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

    Rows of equal confidence form one step: within a step rows are taken in random order, and areas are expectations.

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
        """The prediction-rejection ratio that belongs to `risk`."""
        return self.realised_prr if self.labelled else self.expected_prr

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that JSON can represent; about two hundred steps of a long curve, both ends included."""
        if len(self.threshold) <= MAX_STEPS:
            return super().to_dict()
        kept = np.unique(np.linspace(0, len(self.threshold) - 1, MAX_STEPS).round().astype(int))
        return replace(self, **{name: column[kept] for name, column in self.to_frame().items()}).to_dict()

    def to_frame(self, like: Any = None) -> Any:
        """Return one row per step, as a frame of the library of ``like``, or as a dict of arrays without it."""
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
    """Compute the reward of answering only confident rows, over cost ratios (Luo et al. 2022, Figure 4).

    Parameters
    ----------
    p, y, predicted_class, weight
        As for `abstain`. Without y, rewards are those expected by the confidences.
    ratios : array-like, optional
        Costs of a wrong answer relative to "unsure", each at least 1. By default 50 values from 1 to 50, evenly spaced on a
        logarithmic scale.

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
    return compute_rewards(answers, ConfidenceSteps(answers), values)


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
    With E(s) the errors among the share s of most confident rows, relative to all rows, the risk is E(s) / s. Within a step
    E is linear: its expectation over the order of rows of equal confidence. The area is the integral of E(s) / s. From a to
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
    answers = read_answers(p, y, predicted_class=predicted_class, weight=weight)
    return compute_risks(answers, ConfidenceSteps(answers))


class ConfidenceSteps:
    """Rows in descending order of confidence, one step per distinct confidence; cumulative sums start at 0."""

    def __init__(self, answers: Answers) -> None:
        self.order = argsort(-answers.confidence)
        confidence = answers.confidence[self.order]
        self.last = np.flatnonzero(np.append(confidence[1:] != confidence[:-1], True))
        self.threshold = confidence[self.last]
        self.weight = self.sums(answers.w)
        self.total = float(self.weight[-1])

    def sums(self, column: FloatArray) -> FloatArray:
        """Sum a column from the most confident row to the end of each step."""
        return np.append(0.0, np.cumsum(column[self.order])[self.last])

    def count(self, threshold: FloatArray) -> IntArray:
        """Return the number of steps with at least this confidence."""
        return np.searchsorted(-self.threshold, -threshold, side="right")


def compute_rewards(answers: Answers, steps: ConfidenceSteps, ratio: FloatArray) -> RewardCurve:
    """Compute the reward curve of validated answers."""
    w, error = answers.w, answers.error
    threshold = (ratio - 1.0) / ratio
    index = steps.count(threshold)
    answered = steps.weight[index] / steps.total

    def reward(wrong: FloatArray) -> tuple[FloatArray, float]:
        sums = steps.sums(w * wrong) / steps.total
        return -(1.0 - answered) - ratio * sums[index], float(sums[-1])

    expected, error_rate = reward(1.0 - answers.confidence)
    realised = noise = np.full(len(ratio), np.nan)
    if error is not None:
        realised, error_rate = reward(error)
        # Rows cost ratio x error if they are answered, else 1.
        squares, wrong, both = (steps.sums(w**2 * column) for column in (np.ones(len(w)), error, error**2))
        deviations = (squares[-1] - squares[index]) * (1.0 + realised) ** 2
        deviations += ratio**2 * both[index] + 2.0 * ratio * realised * wrong[index] + realised**2 * squares[index]
        # Rounding may leave a negative sum if all rows cost the same.
        noise = np.asarray(standard_error(np.maximum(deviations, 0.0), steps.total, float(squares[-1])))
    always, never, oracle = -ratio * error_rate, np.full(len(ratio), -1.0), np.full(len(ratio), -error_rate)
    baselines = always, never, oracle, -(1.0 - answered) - ratio * answered * error_rate
    rewards = ratio, threshold, answered, expected, realised, noise
    return RewardCurve(*rewards, *baselines, steps.total, error is not None)


def compute_risks(answers: Answers, steps: ConfidenceSteps) -> RiskCoverage:
    """Compute the risk-coverage curve of validated answers."""
    w, error = answers.w, answers.error
    coverage = steps.weight / steps.total

    def risks(wrong: FloatArray) -> tuple[FloatArray, float, float, float]:
        sums = steps.sums(w * wrong) / steps.total
        return sums[1:] / coverage[1:], _area(coverage, sums), prr(wrong, answers.confidence, w), float(sums[-1])

    expected, expected_area, expected_prr, error_rate = risks(1.0 - answers.confidence)
    realised, realised_area, realised_prr = np.full(len(expected), np.nan), np.nan, np.nan
    if error is not None:
        realised, realised_area, realised_prr, error_rate = risks(error)
    oracle = error_rate + (1.0 - error_rate) * float(np.log1p(-error_rate)) if error_rate < 1 else 1.0
    areas = expected_area, realised_area, oracle, error_rate
    curve = steps.threshold, coverage[1:], expected, realised
    return RiskCoverage(*curve, *areas, expected_prr, realised_prr, steps.total, error is not None)


def _area(coverage: FloatArray, errors: FloatArray) -> float:
    """Integrate errors / coverage, where errors are linear within each step."""
    width, increase = np.diff(coverage), np.diff(errors)
    rate = np.divide(increase, width, out=np.zeros_like(width), where=width > 0)  # a small weight may vanish in a sum
    intercept = errors[1:-1] - coverage[1:-1] * rate[1:]
    return float(increase.sum() + np.sum(intercept * np.log1p(width[1:] / coverage[1:-1])))
