"""Scoring rules for probabilities, their decomposition, and classical tests of calibration.

Throughout, y are outcomes (0, 1 or between), p scores in [0, 1], w weights (1 by default) and W their sum. In all values a
weight of 2 counts the row twice; in standard errors and tests weights state importance, not frequency: the variance of a
weighted sum is sum w^2 var.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from trueup._validate import check_choice, check_fraction, check_integer, check_number
from trueup.errors import DataError
from trueup.kernels.curves import find_shift
from trueup.metrics.binned import assign_bins
from trueup.metrics.inference import wilson
from trueup.metrics.inputs import Scored, check_unit_interval, validate_class_scores, validate_scores
from trueup.metrics.reliability import isotonic
from trueup.metrics.result import Result

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from trueup._types import FloatArray, IntArray


EPS = float(np.finfo(np.float64).eps)  # below it 1 - p has no digits left
LOGIT_EPS = 1e-6  # scores of 0 and 1 have no logit
NEGLIGIBLE_WEIGHT = 1e-9  # relative to the largest: a lighter row does not keep a slope finite
MAX_ITERATIONS = 200


def _mean(values: FloatArray, w: FloatArray) -> float:
    return float((w * values).sum() / w.sum())


def _has_classes(p: ArrayLike) -> bool:
    """Return whether scores have a column per class."""
    try:
        shape = np.shape(p)
    except ValueError:  # lists of unequal lengths, which the validation of scores reports
        return False
    return len(shape) == 2 and shape[1] > 1


def _outcome_scores(data: Scored) -> FloatArray:
    """Return the score of the class that occurred, per row."""
    return np.asarray(data.p[np.arange(len(data.y)), data.y.astype(np.int64)])


def _entropy(rate: FloatArray) -> FloatArray:
    """Return -r ln r - (1 - r) ln(1 - r), with 0 ln 0 = 0."""
    from scipy.special import entr

    return np.asarray(entr(rate) + entr(1.0 - rate), np.float64)


def log_loss(y: ArrayLike, p: ArrayLike, weight: ArrayLike | None = None, *, eps: float = EPS) -> float:
    """Compute the log loss, -(1/W) sum w (y ln p + (1 - y) ln(1 - p)) (Good 1952); for classes -(1/W) sum w ln p_y.

    Parameters
    ----------
    y, p, weight : array-like, shape (n,)
        Outcomes (0, 1 or between), scores in [0, 1], and weights (by default 1). For k classes ``y`` holds the column of
        ``p``, 0 to k - 1, and ``p`` has shape (n, k), with rows that add up to 1.
    eps : float
        Scores are clipped to [eps, 1 - eps], so that a certain prediction that is wrong costs -ln(eps); with ``eps=0`` it
        costs infinity, as in theory. The default is that of scikit-learn, 2.2e-16 (a cost of 36.04).

    Examples
    --------
    >>> round(log_loss([1, 0], [0.5, 0.75]), 4)  # (ln 2 + ln 4) / 2
    1.0397
    >>> log_loss([1, 0], [1, 0], eps=0), log_loss([1], [0], eps=0)
    (0.0, inf)
    >>> round(log_loss([2, 0], [[0.25, 0.25, 0.5], [0.5, 0.5, 0]]), 4)  # ln 2 for both rows
    0.6931
    """
    from scipy.special import xlog1py, xlogy

    check_number("eps", eps, 0, 0.5, below=True)
    if _has_classes(p):
        data = validate_class_scores(y, p, weight)
        q = np.clip(_outcome_scores(data), eps, 1.0 - eps)
        with np.errstate(divide="ignore"):
            return _mean(-np.log(q), data.w) + 0.0
    data = validate_scores(y, p, weight)
    q = np.clip(data.p, eps, 1.0 - eps)
    # Adding 0.0 turns a loss of -0 into 0.
    return _mean(np.asarray(-xlogy(data.y, q) - xlog1py(1.0 - data.y, -q), np.float64), data.w) + 0.0


def brier(y: ArrayLike, p: ArrayLike, weight: ArrayLike | None = None) -> float:
    """Compute the Brier score, (1/W) sum w (y - p)^2, from 0 to 1; of several classes the sum over them, from 0 to 2.

    For k classes ``y`` holds the column of ``p``, 0 to k - 1, and ``p`` has shape (n, k), with rows that add up to 1. With
    the columns 1 - p and p the score (as in Brier 1950) is twice that of p alone.

    Examples
    --------
    >>> brier([1, 0], [0.5, 0.75])  # (1/4 + 9/16) / 2
    0.40625
    >>> brier([2, 0], [[0.25, 0.25, 0.5], [0.5, 0.5, 0]])  # (1/16 + 1/16 + 1/4 + 1/4 + 1/4) / 2
    0.4375
    """
    if _has_classes(p):
        data = validate_class_scores(y, p, weight)
        squares = (data.p**2).sum(axis=1) - 2 * _outcome_scores(data) + 1
        return max(_mean(squares, data.w), 0.0)
    data = validate_scores(y, p, weight)
    return _mean((data.y - data.p) ** 2, data.w)


def normalized_entropy(y: ArrayLike, p: ArrayLike, weight: ArrayLike | None = None) -> float:
    """Compute the log loss divided by that of the constant mean outcome (He et al. 2014).

    Below 1 the scores are more informative than the base rate. NaN if all outcomes are 0 or all are 1.

    Examples
    --------
    >>> round(normalized_entropy([1, 0], [0.75, 0.25]), 4)  # ln(4/3) / ln 2
    0.415
    """
    data = validate_scores(y, p, weight)
    base = float(_entropy(np.clip(_mean(data.y, data.w), 0.0, 1.0)))
    return log_loss(*data) / base if base > 0 else math.nan


def calibration_free_normalized_entropy(y: ArrayLike, p: ArrayLike, weight: ArrayLike | None = None) -> float:
    """Compute the normalized entropy after one factor of the odds has made the mean score the mean outcome.

    A model whose scores are all too high or too low by one factor of the odds, as after a change of the base rate, has the
    same value as the corrected model: what remains is how well it ranks and spreads. Scores of 0 and 1 have no odds and
    stay as they are. NaN if all outcomes are 0 or all are 1, or if no factor exists because of scores of 0 and 1.

    Examples
    --------
    >>> round(calibration_free_normalized_entropy([1, 0], [0.9, 0.5]), 4)  # odds 9 and 1, divided by 3: ln(4/3) / ln 2
    0.415
    """
    from scipy.special import expit, logit

    data = validate_scores(y, p, weight)
    inner = (data.p > 0) & (data.p < 1)
    target = float((data.w * data.y).sum() - data.w[data.p == 1].sum())
    mass = float(data.w[inner].sum())
    q = data.p.copy()
    if 0 < target < mass:
        logits = np.asarray(logit(data.p[inner]), np.float64)
        q[inner] = expit(logits + find_shift(logits, data.w[inner], target / mass))
    elif mass > 0 or target != 0:
        return math.nan
    return normalized_entropy(data.y, q, data.w)


@dataclass(frozen=True, repr=False)
class Corp(Result):
    """The decomposition of a mean score: score = miscalibration - discrimination + uncertainty."""

    score: float
    miscalibration: float
    discrimination: float
    uncertainty: float

    def __repr__(self) -> str:
        parts = f"discrimination {self.discrimination:.4g} + uncertainty {self.uncertainty:.4g}"
        return f"<score {self.score:.4g} = miscalibration {self.miscalibration:.4g} - {parts}>"


def corp(y: ArrayLike, p: ArrayLike, weight: ArrayLike | None = None, *, score: Literal["brier", "log"] = "brier") -> Corp:
    """Decompose a score into miscalibration, discrimination and uncertainty (Dimitriadis, Gneiting & Jordan 2021).

    With S the mean score, q the isotonic fit of y to p and r the mean outcome: miscalibration is S(p) - S(q),
    discrimination S(r) - S(q), uncertainty S(r). None of them is negative, up to rounding. ``score="log"`` is `log_loss`
    with its default ``eps``.

    References
    ----------
    Dimitriadis, Gneiting & Jordan (2021), "Stable reliability diagrams for probabilistic classifiers", PNAS 118(8),
    doi:10.1073/pnas.2016191118.

    Examples
    --------
    >>> corp([0, 1, 0, 1], [0.25, 0.5, 0.5, 0.5])
    <score 0.2031 = miscalibration 0.03646 - discrimination 0.08333 + uncertainty 0.25>
    """
    check_choice("score", score, ("brier", "log"))
    data = validate_scores(y, p, weight)
    fitted = np.clip(isotonic(*data).fitted, 0.0, 1.0)
    rate = np.clip(_mean(data.y, data.w), 0.0, 1.0)
    if score == "brier":
        own, best, base = brier(*data), _mean((data.y - fitted) ** 2, data.w), _mean((data.y - rate) ** 2, data.w)
    else:
        # In a block of the fit, and overall, the mean outcome equals the value, so that the log loss is the entropy of the
        # value. In this form a value of 0 or 1 costs nothing, and rounding cannot make it infinite.
        own, best, base = log_loss(*data), _mean(_entropy(fitted), data.w), float(_entropy(rate))
    return Corp(own, own - best, base - best, base)


@dataclass(frozen=True, repr=False)
class SlopeIntercept(Result):
    """Logistic recalibration: a calibrated score has slope 1 and intercept 0.

    A slope below 1 means that the scores are too extreme. ``calibration_in_the_large`` is the intercept with the slope
    fixed at 1: above 0 the scores are too low overall.
    """

    slope: float
    slope_se: float
    intercept: float
    intercept_se: float
    calibration_in_the_large: float
    calibration_in_the_large_se: float

    def __repr__(self) -> str:
        names = ("slope", "intercept", "calibration_in_the_large")
        slope, intercept, large = (f"{getattr(self, n):.3g} (se {getattr(self, n + '_se'):.2g})" for n in names)
        return f"<slope {slope} and intercept {intercept}; with the slope fixed at 1, intercept {large}>"


def slope_intercept(y: ArrayLike, p: ArrayLike, weight: ArrayLike | None = None) -> SlopeIntercept:
    """Fit logit P(y = 1) = intercept + slope logit(p) by maximum likelihood (Cox 1958).

    Both outcomes and two distinct scores are required, and no score may separate the outcomes: the slope would be infinite
    (Albert & Anderson 1984), and an error is raised.

    Parameters
    ----------
    y, p, weight : array-like, shape (n,)
        Outcomes (0, 1 or between), scores in [0, 1] (clipped to [1e-6, 1 - 1e-6]: 0 and 1 have no logit), and weights.

    Notes
    -----
    With x = (1, logit p) and m the fitted probability, the covariance is A^-1 B A^-1, A = sum w m(1-m) x x',
    B = sum w^2 (y-m)^2 x x' (Huber 1967; White 1982): it holds for weights, for soft outcomes, and if the true curve is not
    logistic.

    Examples
    --------
    >>> slope_intercept([0, 1, 0, 0, 0, 1, 1, 0], [0.1, 0.2, 0.3, 0.4, 0.6, 0.7, 0.8, 0.9])
    <slope 0.241 (se 0.54) and intercept -0.525 (se 0.74); with the slope fixed at 1, intercept -0.724 (se 1.1)>
    """
    from scipy.special import logit

    data = validate_scores(y, p, weight)
    x = logit(np.clip(data.p, LOGIT_EPS, 1.0 - LOGIT_EPS))
    counts = data.w > NEGLIGIBLE_WEIGHT * data.w.max()
    # No finite slope is optimal if one score separates the outcomes; a soft outcome counts as both.
    events, others = x[counts & (data.y > 0)], x[counts & (data.y < 1)]
    if not len(events) or not len(others):
        hint = "slope and intercept need both outcomes"
        raise DataError(f"every outcome is {data.y[counts][0]:g} ({counts.sum():,} rows)", hint=hint)
    if x[counts].min() == x[counts].max():
        raise DataError(f"every score is the same ({counts.sum():,} rows)", hint="observed_expected needs no slope")
    if others.max() <= events.min() or events.max() <= others.min():
        raise DataError("one score separates the outcomes: the slope would be infinite", hint="use more rows")
    centre = _mean(x, data.w)
    spread = math.sqrt(_mean((x - centre) ** 2, data.w))
    ones = np.ones((len(x), 1))
    scaled, cov = _fit_logistic(np.column_stack([ones, (x - centre) / spread]), data, np.zeros(len(x)))
    back = np.array([[1.0, -centre / spread], [0.0, 1.0 / spread]])
    intercept, slope = back @ scaled
    errors = np.sqrt(np.diag(back @ cov @ back.T))
    (large,), large_cov = _fit_logistic(ones, data, x)
    values = (slope, errors[1], intercept, errors[0], large, np.sqrt(large_cov[0, 0]))
    return SlopeIntercept(*map(float, values))


def _fit_logistic(X: FloatArray, data: Scored, offset: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Fit a logistic regression by Newton's method with step halving; return coefficients and sandwich covariance."""
    from scipy.special import expit

    w = data.w

    def loss(beta: FloatArray) -> float:
        eta = offset + X @ beta
        return float((w * (np.logaddexp(0.0, eta) - data.y * eta)).sum())

    beta = np.zeros(X.shape[1])
    current = loss(beta)
    for _ in range(MAX_ITERATIONS):
        m = expit(offset + X @ beta)
        residual = w * (data.y - m)
        bread = (X * (w * m * (1.0 - m))[:, None]).T @ X
        try:
            step = np.linalg.solve(bread, X.T @ residual)
        except np.linalg.LinAlgError:
            break
        gain = float(step @ (X.T @ residual))
        # Far below the weight of any row that counts; the error after this last step is of the order of its square.
        if gain <= 1e-24 * w.sum():
            meat = (X * (residual**2)[:, None]).T @ X
            inverse = np.linalg.inv(bread)
            return beta + step, np.asarray(inverse @ meat @ inverse, np.float64)
        while (ahead := loss(beta + step)) > current + 1e-12 * abs(current) and np.abs(step).max() > 1e-12:
            step = step / 2
        beta, current = beta + step, ahead
    raise DataError("one score nearly separates the outcomes: no slope was found", hint="use more rows or other weights")


@dataclass(frozen=True, repr=False)
class ObservedExpected(Result):
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

    The limits are Wilson's (1927) for the mean outcome, with Kish's (1965) effective size (sum w)^2 / sum w^2, divided by
    the mean score, which is treated as known. They do not use the scores, and so hold however wrong these are: with
    probability 1 - alpha if scores are equal, and higher if they discriminate or outcomes are soft. Raises if all scores
    are 0.

    Examples
    --------
    >>> observed_expected([1, 0, 0, 1], [0.5, 0.25, 0.25, 0.25])
    <observed / expected = 0.5 / 0.3125 = 1.6, between 0.4801 and 2.72>
    """
    check_fraction("alpha", alpha, hint="0.05 gives 95% limits")
    data = validate_scores(y, p, weight)
    observed, expected = _mean(data.y, data.w), _mean(data.p, data.w)
    if expected == 0:
        raise DataError(f"every score is 0 ({len(data.p):,} rows): the ratio is undefined", hint="check the scores")
    size = data.w.sum() ** 2 / (data.w**2).sum()
    low, high = (float(bound[0]) for bound in wilson(np.array([observed]), np.array([size]), alpha))
    return ObservedExpected(observed, expected, observed / expected, low / expected, high / expected)


@dataclass(frozen=True, repr=False)
class HosmerLemeshow(Result):
    """The statistic, its degrees of freedom, its p-value under calibration, and the number of bins in the sum."""

    statistic: float
    degrees_of_freedom: int
    p_value: float
    bins: int

    def __repr__(self) -> str:
        degrees = f"{self.degrees_of_freedom} degrees of freedom"
        return f"<Hosmer-Lemeshow {self.statistic:.4g} on {degrees}: p = {self.p_value:.3g}>"


def hosmer_lemeshow(
    y: ArrayLike, p: ArrayLike, weight: ArrayLike | None = None, *, n_bins: int = 10, fitted: bool = False
) -> HosmerLemeshow:
    """Test calibration with bins of about equal weight (Hosmer & Lemeshow 1980).

    Parameters
    ----------
    y, p, weight : array-like, shape (n,)
        Outcomes (0 and 1; soft ones make the p-value too large), scores in [0, 1], and weights.
    n_bins : int
        Maximum number of bins: tied scores share one, and bins without rows or noise are left out.
    fitted : bool
        Whether the scores were fitted on these rows; the test then has two degrees of freedom fewer.

    Notes
    -----
    The sum over bins of (sum w (y-p))^2 / sum w^2 p(1-p), chi-squared with as many degrees of freedom as bins. The textbook
    denominator is n m(1-m), m the mean score of the bin, which is larger if scores differ within a bin. A bin whose scores
    are all 0 or 1 has no noise: a contradiction there makes the statistic infinite.

    Examples
    --------
    >>> hosmer_lemeshow([0, 1, 1, 1], [0.5, 0.5, 0.75, 0.75], n_bins=2)  # 0 + 0.25 / 0.375
    <Hosmer-Lemeshow 0.6667 on 2 degrees of freedom: p = 0.717>
    """
    check_integer("n_bins", n_bins, 1)
    data = validate_scores(y, p, weight)
    index = assign_bins(data.p, data.w, int(n_bins), "mass")
    return compare_bins(index, data.w * (data.y - data.p), data.w**2 * data.p * (1.0 - data.p), fitted=fitted)


def compare_bins(index: IntArray, residual: FloatArray, variance: FloatArray, *, fitted: bool = False) -> HosmerLemeshow:
    """Test the sums per bin of residuals w (y - p) against their variances under calibration; ``index`` is the bin."""
    from scipy.special import gammaincc

    gap, noise = np.bincount(index, residual), np.bincount(index, variance)
    used = noise > 0
    bins, contradicted = int(used.sum()), bool(gap[~used].any())
    degrees = bins - 2 * fitted
    if degrees < 1 and not contradicted:
        raise DataError(f"too few bins to test: {bins}", hint="the test needs more distinct scores, or more bins")
    with np.errstate(over="ignore"):  # of scores that are nearly 0, and wrong: infinite
        statistic = math.inf if contradicted else float((gap[used] ** 2 / noise[used]).sum())
    p_value = 0.0 if contradicted else float(gammaincc(degrees / 2, statistic / 2))
    return HosmerLemeshow(statistic, max(degrees, 0), p_value, bins)


def prr(error: ArrayLike, confidence: ArrayLike, weight: ArrayLike | None = None) -> float:
    """Compute the prediction-rejection ratio: how well confidence ranks the errors, from -1 to 1; 0 is random.

    The area gained by rejecting the least confident rows first, relative to that gained by rejecting the errors first
    (Malinin, Mlodozeniec & Gales 2020). It equals 2 AUROC(error, -confidence) - 1: the share of pairs of an error and a
    correct row in which the correct row is more confident, minus the share in which it is less. NaN if the error rate is 0
    or 1.

    Parameters
    ----------
    error : array-like, shape (n,)
        1 where the prediction was wrong, else 0 (or between).
    confidence : array-like, shape (n,)
        Any finite numbers; ties count half.

    References
    ----------
    Malinin, Mlodozeniec & Gales (2020), "Ensemble Distribution Distillation", ICLR, arXiv:1905.00076.

    Examples
    --------
    >>> prr([1, 0, 0], [0.6, 0.9, 0.6])  # one pair won, one tied
    0.5
    """
    data = validate_scores(error, confidence, weight, real=True)
    check_unit_interval(np.asarray(error, np.float64), "error", "1 where wrong, else 0")
    _, index = np.unique(data.p, return_inverse=True)
    wrong, correct = np.bincount(index, weights=data.w * data.y), np.bincount(index, weights=data.w * (1.0 - data.y))
    pairs = wrong.sum() * correct.sum()
    higher_minus_lower = correct.sum() + correct - 2.0 * np.cumsum(correct)
    return float((wrong * higher_minus_lower).sum() / pairs) if pairs > 0 else math.nan
