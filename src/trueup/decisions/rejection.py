"""How much is gained by keeping silent where confidence is low: rewards over cost ratios, risk over coverage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.data.frame import frame_like, to_jsonable
from trueup.decisions.answers import answers_of, standard_error
from trueup.errors import ArgumentError
from trueup.kernels.sorting import argsort
from trueup.metrics.scores import prr

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from trueup._types import FloatArray, IntArray
    from trueup.decisions.answers import Answers


RATIOS = np.geomspace(1.0, 50.0, 50)
MOST_RATIO = 1e100
SHOWN = 201  # steps of a risk-coverage curve in a dict, at most


@dataclass(frozen=True, eq=False)
class RewardCurve:
    """The reward of the rule "answer where confidence is at least 1 - 1/ratio", for each cost ratio.

    Rewards are means over rows in units of u, what "unsure" costs: it earns -1, a wrong answer -ratio, a right one 0.

    Attributes
    ----------
    ratio, threshold, answered : ndarray
        How many times as much a wrong answer costs as "unsure"; from which confidence on rows are answered; their share.
    expected : ndarray
        The reward if confidences are right.
    realised, standard_error : ndarray
        What came out, and its standard error; NaN where no outcomes are known.
    always, never, oracle, random : ndarray
        The reward of answering every row, no row, exactly the rows whose answer is right, and as many rows as the rule
        does but drawn blindly (its mean over all draws). By the outcomes where they are known, else by the confidences.
    rows : float
        Their number, or their total weight: times this, rewards are totals.
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
        """Give what came out where that is known, else what is expected."""
        return self.realised if self.labelled else self.expected

    def gain(self, over: RewardCurve) -> FloatArray:
        """Give how much more a row earns than by another curve at the same ratios (Luo et al. 2022, Figure 4)."""
        if not np.array_equal(self.ratio, over.ratio):
            raise ArgumentError("the two curves have different ratios", hint="pass the same ratios= to both")
        if self.labelled != over.labelled:
            raise ArgumentError(
                "one curve is of what came out, the other of what is expected", hint="pass y to both, or to neither"
            )
        return self.reward - over.reward

    def to_dict(self) -> dict[str, Any]:
        """Give plain values fit for JSON; what is not finite becomes None."""
        return {name: to_jsonable(getattr(self, name)) for name in self.__dataclass_fields__}

    def to_frame(self, like: Any = None) -> Any:
        """Give one line a ratio, in the library of ``like``; a dict of arrays without it."""
        names = [name for name in self.__dataclass_fields__ if name not in ("rows", "labelled")]
        return frame_like({name: getattr(self, name).copy() for name in names}, like)

    def __repr__(self) -> str:
        first, last = int(np.argmin(self.ratio)), int(np.argmax(self.ratio))
        ends = f"{self.reward[first]:.4g} a row at ratio {self.ratio[first]:g}"
        if first != last:
            ends += f" to {self.reward[last]:.4g} at {self.ratio[last]:g}"
        return f"<RewardCurve of {self.rows:,.10g} rows: {'reward' if self.labelled else 'expected reward'} {ends}>"


@dataclass(frozen=True, eq=False)
class RiskCoverage:
    """How many answers are wrong among the most confident rows, for each share of rows that is answered.

    Rows of equal confidence are one step: between two steps rows are taken in any order, and areas are means over orders.

    Attributes
    ----------
    threshold, coverage : ndarray
        The distinct confidences, descending, and the share of rows that is as confident or more.
    expected, realised : ndarray
        The share of errors among them: if confidences are right, and as it came out (NaN where outcomes are not known).
    expected_area, realised_area : float
        Areas under these curves (AURC): the risk, averaged over all coverages.
    oracle_area, random_area : float
        The same for the best order, every error last, and for a blind one: the share of errors. By the outcomes where
        they are known, else by the confidences.
    expected_prr, realised_prr : float
        Prediction-rejection ratios (`metrics.prr`); NaN where no answer or every answer is wrong.
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
        """Give the curve as it came out where that is known, else what is expected."""
        return self.realised if self.labelled else self.expected

    @property
    def area(self) -> float:
        """Give the area under `risk`."""
        return self.realised_area if self.labelled else self.expected_area

    @property
    def prr(self) -> float:
        """Give the prediction-rejection ratio that goes with `risk`."""
        return self.realised_prr if self.labelled else self.expected_prr

    def to_dict(self) -> dict[str, Any]:
        """Give plain values fit for JSON: of many steps about two hundred, the first and the last among them."""
        shown = np.unique(np.linspace(0, len(self.threshold) - 1, SHOWN).round().astype(int))
        found = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {name: to_jsonable(one[shown] if isinstance(one, np.ndarray) else one) for name, one in found.items()}

    def to_frame(self, like: Any = None) -> Any:
        """Give one line a step, in the library of ``like``; a dict of arrays without it."""
        names = ("threshold", "coverage", "expected", "realised")
        return frame_like({name: getattr(self, name).copy() for name in names}, like)

    def __repr__(self) -> str:
        what = "" if self.labelled else "expected "
        areas = f"{what}area {self.area:.4g} (oracle {self.oracle_area:.4g}, random {self.random_area:.4g})"
        return f"<RiskCoverage of {self.rows:,.10g} rows: {areas}, {what}PRR {self.prr:.4g}>"


def reward_curve(
    p: ArrayLike, y: ArrayLike | None = None, *, ratios: ArrayLike | None = None, predicted_class: Any = None,
    weight: ArrayLike | None = None,
) -> RewardCurve:  # fmt: skip
    """Compute the reward of answering only where it is worth the risk, over cost ratios (Luo et al. 2022, Figure 4).

    Parameters
    ----------
    p, y, predicted_class, weight
        As for `abstain`. Without y, rewards are those that the confidences promise.
    ratios : array-like, optional
        Each 1 or more: how many times as much a wrong answer costs as "unsure". By default 50 from 1 to 50, evenly spaced
        in their logarithms.

    Examples
    --------
    Two answers in three are right, and the wrong one is the least sure:

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
    answers = answers_of(p, y, predicted_class=predicted_class, weight=weight)
    return rewards(answers, Falling(answers), read_ratios(ratios))


def risk_coverage(
    p: ArrayLike, y: ArrayLike | None = None, *, predicted_class: Any = None, weight: ArrayLike | None = None
) -> RiskCoverage:
    """Compute the share of errors among the most confident rows, for every share of rows that is answered.

    Parameters
    ----------
    p, y, predicted_class, weight
        As for `abstain`. Without y, risks are those that the confidences admit: the mean of 1 - confidence.

    Notes
    -----
    With E(s) the errors among the share s of most confident rows, over all rows, the risk is E(s) / s. Between steps E is
    a straight line: its mean over the orders of rows of one confidence. The area is the integral of E(s) / s. From a to b,
    with a share d of errors between, that is d (b - a) + (E(a) - a d) log(b / a). It does not change where every row is
    taken twice; the usual sum over single rows (Geifman, Uziel & El-Yaniv 2019) tends to it.

    Examples
    --------
    >>> found = risk_coverage([0.9, 0.8, 0.6, 0.6], [1, 1, 0, 1])
    >>> found.coverage, found.risk
    (array([0.25, 0.5 , 1.  ]), array([0.  , 0.  , 0.25]))
    >>> found
    <RiskCoverage of 4 rows: area 0.07671 (oracle 0.03424, random 0.25), PRR 0.6667>
    """
    answers = answers_of(p, y, predicted_class=predicted_class, weight=weight)
    return risks(answers, Falling(answers))


def read_ratios(ratios: ArrayLike | None) -> FloatArray:
    """Check cost ratios."""
    if ratios is None:
        return RATIOS.copy()
    hint = "numbers of 1 or more, such as np.geomspace(1, 50)"
    try:
        found = np.asarray(ratios, np.float64).ravel()
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"ratios must be numbers ({error})", hint=hint) from error
    if not found.size:
        raise ArgumentError("ratios is empty", hint="leave it out for 50 from 1 to 50")
    bad = ~((found >= 1) & (found <= MOST_RATIO))
    if bad.any():
        raise ArgumentError(
            f'ratios must be finite and 1 or more: below it "unsure" costs more than a wrong answer; got {found[bad][0]:g}',
            hint=hint,
        )
    return found


class Falling:
    """Rows from the most confident down, one step a distinct confidence; running sums begin with none."""

    def __init__(self, answers: Answers) -> None:
        self.order = argsort(-answers.confidence)
        sure = answers.confidence[self.order]
        self.last = np.flatnonzero(np.append(sure[1:] != sure[:-1], True))
        self.threshold = sure[self.last]
        self.taken = self.sums(answers.w)
        self.total = float(self.taken[-1])

    def sums(self, column: FloatArray) -> FloatArray:
        """Add up a column from the most confident row to the end of each step."""
        return np.append(0.0, np.cumsum(column[self.order])[self.last])

    def steps(self, threshold: FloatArray) -> IntArray:
        """Give how many steps are at least as confident."""
        return np.searchsorted(-self.threshold, -threshold, side="right")


def rewards(answers: Answers, falling: Falling, ratio: FloatArray) -> RewardCurve:
    """Compute the curve of rewards of answers that have been read."""
    w, error = answers.w, answers.error
    threshold = (ratio - 1.0) / ratio
    at = falling.steps(threshold)
    answered = falling.taken[at] / falling.total

    def earned(wrong: FloatArray) -> tuple[FloatArray, float]:
        sums = falling.sums(w * wrong) / falling.total
        return -(1.0 - answered) - ratio * sums[at], float(sums[-1])

    expected, share = earned(1.0 - answers.confidence)
    realised = noise = np.full(len(ratio), np.nan)
    if error is not None:
        realised, share = earned(error)
        noise = _noise(falling, w, error, -realised, ratio, at)
    blind = -(1.0 - answered) - ratio * answered * share
    never, oracle = np.full(len(ratio), -1.0), np.full(len(ratio), -share)
    return RewardCurve(
        ratio, threshold, answered, expected, realised, noise, -ratio * share, never, oracle, blind, falling.total,
        error is not None,
    )  # fmt: skip


def _noise(
    falling: Falling, w: FloatArray, error: FloatArray, mean: FloatArray, ratio: FloatArray, at: IntArray
) -> FloatArray:
    """Give the standard error of the mean cost of rows: ratio x error where they are answered, else 1."""
    squares, wrong, both = (falling.sums(w**2 * column) for column in (np.ones(len(w)), error, error**2))
    silent = (squares[-1] - squares[at]) * (1.0 - mean) ** 2
    answered = ratio**2 * both[at] - 2.0 * ratio * mean * wrong[at] + mean**2 * squares[at]
    # Where all rows cost the same, rounding may leave less than nothing.
    return np.asarray(standard_error(np.maximum(silent + answered, 0.0), falling.total, float(squares[-1])))


def risks(answers: Answers, falling: Falling) -> RiskCoverage:
    """Compute the risk-coverage curve of answers that have been read."""
    w, error = answers.w, answers.error
    coverage = falling.taken / falling.total
    doubt = 1.0 - answers.confidence
    sums = falling.sums(w * doubt) / falling.total
    expected, area, ratio = sums[1:] / coverage[1:], _area(coverage, sums), prr(doubt, answers.confidence, w)
    realised, real_area, real_ratio = np.full(len(expected), np.nan), np.nan, np.nan
    if error is not None:
        sums = falling.sums(w * error) / falling.total
        realised, real_area, real_ratio = sums[1:] / coverage[1:], _area(coverage, sums), prr(error, answers.confidence, w)
    share = float(sums[-1])
    oracle = share + (1.0 - share) * float(np.log1p(-share)) if share < 1 else 1.0
    return RiskCoverage(
        falling.threshold, coverage[1:], expected, realised, area, real_area, oracle, share, ratio, real_ratio,
        falling.total, error is not None,
    )  # fmt: skip


def _area(coverage: FloatArray, errors: FloatArray) -> float:
    """Integrate errors / coverage, errors a straight line within each step."""
    wide, more = np.diff(coverage), np.diff(errors)
    rate = np.divide(more, wide, out=np.zeros_like(wide), where=wide > 0)  # a weight may be lost beside the others
    before = errors[1:-1] - coverage[1:-1] * rate[1:]
    return float(more.sum() + np.sum(before * np.log1p(wide[1:] / coverage[1:-1])))
