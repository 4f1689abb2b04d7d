"""Scores of probabilities, their parts, and the classical tests of calibration.

Everywhere y are outcomes (0, 1 or between), p scores in [0, 1], w weights (1 unless given) and W their sum. A weight of 2
is the row twice in every value; in standard errors and tests weights say how much a row counts, not how often it was
seen: the variance of a weighted sum is sum w^2 var.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from trueup._validate import check_choice
from trueup.data.checks import describe_rows
from trueup.data.frame import to_jsonable
from trueup.errors import ArgumentError, DataError
from trueup.metrics.binned import bins as bin_numbers
from trueup.metrics.inference import wilson
from trueup.metrics.inputs import Scored, scored
from trueup.metrics.isotonic import isotonic

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from trueup._types import FloatArray


EPS = float(np.finfo(np.float64).eps)  # the gap between 1 and the next number: below it 1 - p has no digits left
LOGIT_EPS = 1e-6  # a score of 0 or 1 has no logit
LIGHT = 1e-9  # of the largest weight: a lighter row cannot keep a slope from infinity
STEPS = 200


class _Result:
    __dataclass_fields__: dict[str, Any]

    def to_dict(self) -> dict[str, float | int | None]:
        """Give plain values fit for JSON: what is not finite becomes None."""
        return {name: to_jsonable(getattr(self, name)) for name in self.__dataclass_fields__}


def _mean(values: FloatArray, w: FloatArray) -> float:
    return float((w * values).sum() / w.sum())


def _entropy(rate: FloatArray) -> FloatArray:
    """Give -r ln r - (1 - r) ln(1 - r), with 0 ln 0 = 0."""
    from scipy.special import entr

    return np.asarray(entr(rate) + entr(1.0 - rate), np.float64)


def log_loss(y: ArrayLike, p: ArrayLike, weight: ArrayLike | None = None, *, eps: float = EPS) -> float:
    """Compute the log loss, -(1/W) sum w (y ln p + (1 - y) ln(1 - p)) (Good 1952).

    Parameters
    ----------
    y, p, weight : array-like, shape (n,)
        Outcomes (0, 1 or between), scores in [0, 1], and weights (by default 1).
    eps : float
        Scores are moved into [eps, 1 - eps], so that a certain prediction contradicted costs -ln(eps); with ``eps=0`` it
        costs infinity, as in theory. The default is that of scikit-learn, 2.2e-16 (a cost of 36.04).

    Examples
    --------
    >>> round(log_loss([1, 0], [0.5, 0.75]), 4)  # (ln 2 + ln 4) / 2
    1.0397
    >>> log_loss([1, 0], [1, 0], eps=0), log_loss([1], [0], eps=0)
    (0.0, inf)
    """
    from scipy.special import xlog1py, xlogy

    if not 0 <= eps < 0.5:
        raise ArgumentError(f"eps must be at least 0 and below 0.5; got {eps!r}")
    data = scored(y, p, weight)
    q = np.clip(data.p, eps, 1.0 - eps)
    # "+ 0.0": a loss of nothing is 0, not -0.
    return _mean(np.asarray(-xlogy(data.y, q) - xlog1py(1.0 - data.y, -q), np.float64), data.w) + 0.0


def brier(y: ArrayLike, p: ArrayLike, weight: ArrayLike | None = None) -> float:
    """Compute the Brier score, (1/W) sum w (y - p)^2 (Brier 1950, for one of the two classes: from 0 to 1).

    Examples
    --------
    >>> brier([1, 0], [0.5, 0.75])  # (1/4 + 9/16) / 2
    0.40625
    """
    data = scored(y, p, weight)
    return _mean((data.y - data.p) ** 2, data.w)


def normalized_entropy(y: ArrayLike, p: ArrayLike, weight: ArrayLike | None = None) -> float:
    """Compute the log loss over that of the constant mean outcome (He et al. 2014).

    Below 1 the scores say more than the base rate does. NaN where all outcomes are 0 or all are 1.

    Examples
    --------
    >>> round(normalized_entropy([1, 0], [0.75, 0.25]), 4)  # ln(4/3) / ln 2
    0.415
    """
    data = scored(y, p, weight)
    base = float(_entropy(np.clip(_mean(data.y, data.w), 0.0, 1.0)))
    return log_loss(*data) / base if base > 0 else math.nan


@dataclass(frozen=True, repr=False)
class Corp(_Result):
    """A mean score in parts: score = miscalibration - discrimination + uncertainty."""

    score: float
    miscalibration: float
    discrimination: float
    uncertainty: float

    def __repr__(self) -> str:
        parts = f"discrimination {self.discrimination:.4g} + uncertainty {self.uncertainty:.4g}"
        return f"<score {self.score:.4g} = miscalibration {self.miscalibration:.4g} - {parts}>"


def corp(y: ArrayLike, p: ArrayLike, weight: ArrayLike | None = None, *, score: Literal["brier", "log"] = "brier") -> Corp:
    """Split a score into miscalibration, discrimination and uncertainty (Dimitriadis, Gneiting & Jordan 2021).

    With S the mean score, q the isotonic fit of y to p and r the mean outcome: miscalibration is S(p) - S(q),
    discrimination S(r) - S(q), uncertainty S(r). None of them is negative, to rounding. ``score="log"`` is `log_loss`
    with its default ``eps``.

    Examples
    --------
    >>> corp([0, 1, 0, 1], [0.25, 0.5, 0.5, 0.5])
    <score 0.2031 = miscalibration 0.03646 - discrimination 0.08333 + uncertainty 0.25>
    """
    check_choice("score", score, ("brier", "log"))
    data = scored(y, p, weight)
    fitted = np.clip(isotonic(*data).fitted, 0.0, 1.0)
    rate = np.clip(_mean(data.y, data.w), 0.0, 1.0)
    if score == "brier":
        own, best, base = brier(*data), _mean((data.y - fitted) ** 2, data.w), _mean((data.y - rate) ** 2, data.w)
    else:
        # In a block of the fit, and in the whole, the mean outcome is the value: the log loss is the entropy of the
        # value. So put, a value that is 0 or 1 costs nothing, and one that rounds to them not infinity.
        own, best, base = log_loss(*data), _mean(_entropy(fitted), data.w), float(_entropy(rate))
    return Corp(own, own - best, base - best, base)


@dataclass(frozen=True, repr=False)
class SlopeIntercept(_Result):
    """Logistic recalibration: a calibrated score has slope 1 and intercept 0.

    A slope below 1 says that the scores are too extreme. ``intercept_alone`` is calibration-in-the-large, the
    intercept with the slope fixed at 1: above 0 the scores are too low on the whole.
    """

    slope: float
    slope_se: float
    intercept: float
    intercept_se: float
    intercept_alone: float
    intercept_alone_se: float

    def __repr__(self) -> str:
        names = ("slope", "intercept", "intercept_alone")
        slope, both, alone = (f"{getattr(self, n):.3g} (se {getattr(self, n + '_se'):.2g})" for n in names)
        return f"<slope {slope} and intercept {both}; with the slope fixed at 1, intercept {alone}>"


def slope_intercept(y: ArrayLike, p: ArrayLike, weight: ArrayLike | None = None) -> SlopeIntercept:
    """Fit logit P(y = 1) = intercept + slope logit(p) by maximum likelihood (Cox 1958).

    Both outcomes and two scores are needed, and no score may part the outcomes: no finite slope is best then
    (Albert & Anderson 1984). Such data is refused.

    Parameters
    ----------
    y, p, weight : array-like, shape (n,)
        Outcomes (0, 1 or between), scores in [0, 1] (moved into [1e-6, 1 - 1e-6]: 0 and 1 have no logit), and weights.

    Notes
    -----
    With x = (1, logit p) and m the fitted probability, the covariance is A^-1 B A^-1, A = sum w m(1-m) x x',
    B = sum w^2 (y-m)^2 x x' (Huber 1967; White 1982): it holds for weights, for soft outcomes, and where the true curve is
    not logistic.

    Examples
    --------
    >>> slope_intercept([0, 1, 0, 0, 0, 1, 1, 0], [0.1, 0.2, 0.3, 0.4, 0.6, 0.7, 0.8, 0.9])
    <slope 0.241 (se 0.54) and intercept -0.525 (se 0.74); with the slope fixed at 1, intercept -0.724 (se 1.1)>
    """
    from scipy.special import logit

    data = scored(y, p, weight)
    x = logit(np.clip(data.p, LOGIT_EPS, 1.0 - LOGIT_EPS))
    counts = data.w > LIGHT * data.w.max()
    _refuse_parted(data.y[counts], x[counts])
    centre = _mean(x, data.w)
    spread = math.sqrt(_mean((x - centre) ** 2, data.w))
    ones = np.ones((len(x), 1))
    (a, b), cov = _logistic(np.column_stack([ones, (x - centre) / spread]), data, np.zeros(len(x)))
    back = np.array([[1.0, -centre / spread], [0.0, 1.0 / spread]])
    intercept, slope = back @ (a, b)
    errors = np.sqrt(np.diag(back @ cov @ back.T))
    (alone,), alone_cov = _logistic(ones, data, x)
    figures = (slope, errors[1], intercept, errors[0], alone, np.sqrt(alone_cov[0, 0]))
    return SlopeIntercept(*(float(figure) for figure in figures))


def _refuse_parted(y: FloatArray, x: FloatArray) -> None:
    """Refuse what has no finite best slope; a soft outcome counts as both an event and a non-event."""
    events, others = x[y > 0], x[y < 1]
    if not len(events) or not len(others):
        raise DataError(f"every outcome is {y[0]:g} ({len(y):,} rows)", hint="slope and intercept need both outcomes")
    if x.min() == x.max():
        raise DataError(f"every score is the same ({len(x):,} rows)", hint="observed_expected needs no slope")
    if others.max() <= events.min() or events.max() <= others.min():
        raise DataError("one score parts the outcomes: no finite slope is best", hint="use more rows")


def _logistic(X: FloatArray, data: Scored, offset: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Fit a logistic regression by Newton's method with halved steps; give coefficients and their sandwich covariance."""
    from scipy.special import expit

    w = data.w

    def loss(beta: FloatArray) -> float:
        eta = offset + X @ beta
        return float((w * (np.logaddexp(0.0, eta) - data.y * eta)).sum())

    beta = np.zeros(X.shape[1])
    now = loss(beta)
    for _ in range(STEPS):
        m = expit(offset + X @ beta)
        residual = w * (data.y - m)
        bread = (X * (w * m * (1.0 - m))[:, None]).T @ X
        try:
            step = np.linalg.solve(bread, X.T @ residual)
        except np.linalg.LinAlgError:
            break
        gain = float(step @ (X.T @ residual))
        # Far below the weight of any row that counts; what is left after this last step is of the order of its square.
        if gain <= 1e-24 * w.sum():
            meat = (X * (residual**2)[:, None]).T @ X
            inverse = np.linalg.inv(bread)
            return beta + step, np.asarray(inverse @ meat @ inverse, np.float64)
        while (ahead := loss(beta + step)) > now + 1e-12 * abs(now) and np.abs(step).max() > 1e-12:
            step = step / 2
        beta, now = beta + step, ahead
    raise DataError("one score all but parts the outcomes: no slope was found", hint="use more rows or more even weights")


@dataclass(frozen=True, repr=False)
class ObservedExpected(_Result):
    """The mean outcome, the mean score, their ratio and its confidence limits."""

    observed: float
    expected: float
    ratio: float
    low: float
    high: float

    def __repr__(self) -> str:
        ratio = f"{self.observed:.4g} / {self.expected:.4g} = {self.ratio:.4g}"
        return f"<observed / expected = {ratio}, between {self.low:.4g} and {self.high:.4g}>"


def observed_expected(
    y: ArrayLike, p: ArrayLike, weight: ArrayLike | None = None, *, alpha: float = 0.05
) -> ObservedExpected:
    """Compare the mean outcome with the mean score: sum w y / sum w p.

    The limits are Wilson's (1927) for the mean outcome, with Kish's (1965) effective size (sum w)^2 / sum w^2, over the
    mean score, which is taken as known. They take no help from the scores, and so hold however wrong these are: with
    probability 1 - alpha where scores are alike, and more where they tell rows apart or outcomes are soft. Scores that
    are all 0 are refused: there is no ratio to nothing.

    Examples
    --------
    >>> observed_expected([1, 0, 0, 1], [0.5, 0.25, 0.25, 0.25])
    <observed / expected = 0.5 / 0.3125 = 1.6, between 0.4801 and 2.72>
    """
    if not 0 < alpha < 1:
        raise ArgumentError(f"alpha must lie between 0 and 1; got {alpha!r}", hint="0.05 gives 95% limits")
    data = scored(y, p, weight)
    observed, expected = _mean(data.y, data.w), _mean(data.p, data.w)
    if expected == 0:
        raise DataError(f"every score is 0 ({len(data.p):,} rows): no ratio to what is expected", hint="check the scores")
    size = data.w.sum() ** 2 / (data.w**2).sum()
    low, high = (float(bound[0]) for bound in wilson(np.array([observed]), np.array([size]), alpha))
    return ObservedExpected(observed, expected, observed / expected, low / expected, high / expected)


@dataclass(frozen=True, repr=False)
class HosmerLemeshow(_Result):
    """The statistic, its degrees of freedom, its p-value under calibration, and the number of bins it was summed over."""

    statistic: float
    freedom: int
    p_value: float
    bins: int

    def __repr__(self) -> str:
        return f"<Hosmer-Lemeshow {self.statistic:.4g} on {self.freedom} degrees of freedom: p = {self.p_value:.3g}>"


def hosmer_lemeshow(
    y: ArrayLike, p: ArrayLike, weight: ArrayLike | None = None, *, n_bins: int = 10, fitted: bool = False
) -> HosmerLemeshow:
    """Test calibration by bins of about equal weight (Hosmer & Lemeshow 1980).

    Parameters
    ----------
    y, p, weight : array-like, shape (n,)
        Outcomes (0 and 1; soft ones give a p-value that is too large), scores in [0, 1], and weights.
    n_bins : int
        At most so many bins: rows of equal score share one, and bins without rows or noise are left out.
    fitted : bool
        Whether the scores were fitted to these rows: two degrees of freedom fewer.

    Notes
    -----
    The sum over bins of (sum w (y-p))^2 / sum w^2 p(1-p), chi-squared with as many degrees of freedom as bins. The textbook
    has n m(1-m) below, m the mean score of the bin, which is larger where scores differ within a bin. A bin whose
    scores are all 0 or 1 has no noise: contradicted, it makes the statistic infinite.

    Examples
    --------
    >>> hosmer_lemeshow([0, 1, 1, 1], [0.5, 0.5, 0.75, 0.75], n_bins=2)  # 0 + 0.25 / 0.375
    <Hosmer-Lemeshow 0.6667 on 2 degrees of freedom: p = 0.717>
    """
    from scipy.special import gammaincc

    if isinstance(n_bins, bool) or not isinstance(n_bins, (int, np.integer)) or n_bins < 1:
        raise ArgumentError(f"n_bins must be a whole number of at least 1; got {n_bins!r}")
    data = scored(y, p, weight)
    place = bin_numbers(data.p, data.w, n_bins=int(n_bins), strategy="mass")
    gap = np.bincount(place, weights=data.w * (data.y - data.p))
    noise = np.bincount(place, weights=data.w**2 * data.p * (1.0 - data.p))
    some = noise > 0
    bins, contradicted = int(some.sum()), bool(gap[~some].any())
    freedom = bins - 2 * fitted
    if freedom < 1 and not contradicted:
        raise DataError(f"too few bins to test: {bins}", hint="the test needs more distinct scores, or more bins")
    statistic = math.inf if contradicted else float((gap[some] ** 2 / noise[some]).sum())
    p_value = 0.0 if contradicted else float(gammaincc(freedom / 2, statistic / 2))
    return HosmerLemeshow(statistic, max(freedom, 0), p_value, bins)


def prr(error: ArrayLike, confidence: ArrayLike, weight: ArrayLike | None = None) -> float:
    """Compute the prediction-rejection ratio: how well confidence finds the errors, from -1 to 1; 0 is chance.

    The area gained by rejecting the least confident rows first, over that gained by rejecting the errors first
    (Malinin, Mlodozeniec & Gales 2020), which is 2 AUROC(error, -confidence) - 1: pairs of an error and a correct row of
    higher confidence, less pairs of lower, over all such pairs. NaN where the error rate is 0 or 1.

    Parameters
    ----------
    error : array-like, shape (n,)
        1 where the prediction was wrong, else 0 (or between).
    confidence : array-like, shape (n,)
        Any finite numbers; equal ones count half.

    Examples
    --------
    >>> prr([1, 0, 0], [0.6, 0.9, 0.6])  # one pair won, one tied
    0.5
    """
    data = scored(error, confidence, weight, real=True)
    errors = np.asarray(error, np.float64)  # as passed: rows are counted with those of weight 0
    bad = (errors < 0) | (errors > 1)
    if bad.any():
        raise DataError(
            f"error must lie in [0, 1]; got {errors[bad][0]:g} {describe_rows(bad)}", hint="1 where wrong, else 0"
        )
    _, at = np.unique(data.p, return_inverse=True)
    wrong, right = np.bincount(at, weights=data.w * data.y), np.bincount(at, weights=data.w * (1.0 - data.y))
    pairs = wrong.sum() * right.sum()
    higher_less_lower = right.sum() + right - 2.0 * np.cumsum(right)
    return float((wrong * higher_less_lower).sum() / pairs) if pairs > 0 else math.nan
