"""Cumulative differences: calibration without bins, with p-values and bounds for the population.

Sort the distinct scores s_1 < s_2 < ..., let W be the total weight, C_0 = 0 and C_j = (1/W) sum_{p <= s_j} w (y - p). The
range of C is ECCE-R (Arrieta-Ibarra, Gujral, Tannen, Tygert & Xu 2022), which is also the empirical calibration measure
c_emp of Gao, Parameswaran & Peng (2017): the largest error of the scores over any score interval. Rows of equal score form
one step, so that the order of the rows does not matter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Literal

import numpy as np

from trueup._validate import check_choice, check_fraction, check_integer
from trueup.errors import ArgumentError
from trueup.kernels import tails
from trueup.kernels import tally as sums
from trueup.kernels._jit import run
from trueup.kernels.tally import SortedRows, Tally, sort_rows, tally_groups
from trueup.metrics.inference import likely_root, range_quantile, segment_pvalues
from trueup.metrics.inputs import Scored, validate_class_scores, validate_scores
from trueup.metrics.result import Result

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

Statistic = Literal["range", "mad"]
MAX_BATCH = 4_000_000  # numbers in one batch of Monte Carlo draws
TIE = 1e-9  # relative: sums this close are equal up to rounding


def _tally_all(data: Scored) -> tuple[SortedRows, Tally]:
    """Sort the rows by score and tally them as one segment; return the sorted rows and the tally."""
    rows = sort_rows(data.y, data.p, None if (data.w == 1).all() else data.w, real=False)
    return rows, tally_groups(rows, np.zeros(len(rows), np.int32), 1)


def ecce(y: ArrayLike, p: ArrayLike, weight: ArrayLike | None = None) -> float:
    """Compute ECCE-R, the range of the cumulative differences: max C - min C, C_0 = 0 included.

    Parameters
    ----------
    y, p : array-like, shape (n,)
        Outcomes (0, 1 or between) and scores in [0, 1].
    weight : array-like, shape (n,), optional

    References
    ----------
    Arrieta-Ibarra, Gujral, Tannen, Tygert & Xu (2022), "Metrics of Calibration for Probabilistic Predictions", JMLR
    23(351), arXiv:2205.09680; Gao, Parameswaran & Peng (2017), "On the Interpretability of Conditional Probability
    Estimates in the Agnostic Setting", Electronic Journal of Statistics 11(2), doi:10.1214/17-EJS1376SI: the measure
    c_emp.

    Examples
    --------
    C is 0.2 after the two rows of score 0.2, and 0 after the row of score 0.6:

    >>> round(ecce([0, 1, 0], [0.2, 0.2, 0.6]), 6)
    0.2
    """
    tallied = _tally_all(validate_scores(y, p, weight))[1]
    return float(tallied.span[0] / tallied.weight[0])


def ecce_mad(y: ArrayLike, p: ArrayLike, weight: ArrayLike | None = None) -> float:
    """Compute ECCE-MAD, the largest absolute value of the cumulative differences.

    References
    ----------
    Arrieta-Ibarra, Gujral, Tannen, Tygert & Xu (2022), "Metrics of Calibration for Probabilistic Predictions", JMLR
    23(351), arXiv:2205.09680.

    Examples
    --------
    >>> round(ecce_mad([1, 0], [0.2, 0.6]), 6)
    0.4
    """
    tallied = _tally_all(validate_scores(y, p, weight))[1]
    return float(tallied.reach[0] / tallied.weight[0])


def ecce_sigma(y: ArrayLike, p: ArrayLike, weight: ArrayLike | None = None, *, statistic: Statistic = "range") -> float:
    """Compute ECCE-R or ECCE-MAD (``statistic``) in units of its standard error, sqrt(sum w^2 p(1-p)) / W.

    If every score is 0 or 1 the standard error is 0: the result is infinite if an outcome contradicts its score, else 0.

    References
    ----------
    Arrieta-Ibarra, Gujral, Tannen, Tygert & Xu (2022), "Metrics of Calibration for Probabilistic Predictions", JMLR
    23(351), arXiv:2205.09680.

    Examples
    --------
    A constant score of 0.3 with 300 events among 1,000 rows is calibrated, however the rows are sorted:

    >>> round(ecce_sigma([1] * 300 + [0] * 700, [0.3] * 1000), 9)
    0.0
    """
    check_choice("statistic", statistic, ("range", "mad"))
    tallied = _tally_all(validate_scores(y, p, weight))[1]
    distance = float((tallied.span if statistic == "range" else tallied.reach)[0])
    noise = math.sqrt(float(tallied.state[0, sums.VARIANCE]))
    if noise == 0.0:
        return math.inf if distance > 0 else 0.0
    return distance / noise


def ecce_pvalue(
    y: ArrayLike,
    p: ArrayLike,
    weight: ArrayLike | None = None,
    *,
    statistic: Statistic = "range",
    draws: int = 0,
    random_state: int = 0,
) -> float:
    """Compute the p-value of the hypothesis that the score is calibrated.

    Parameters
    ----------
    statistic : {"range", "mad"}
    draws : int
        0 for the analytic tail: that of Brownian motion, adjusted if few events are expected (see
        `trueup.metrics.inference.segment_pvalues`), accurate far below 1e-16. Otherwise the number of draws of outcomes
        from the scores; the p-value is then (1 + number of draws at least as extreme) / (1 + draws).
    random_state : int
        Seed of the draws.

    References
    ----------
    Arrieta-Ibarra, Gujral, Tannen, Tygert & Xu (2022), "Metrics of Calibration for Probabilistic Predictions", JMLR
    23(351), arXiv:2205.09680.

    Examples
    --------
    >>> ecce_pvalue([1] * 60 + [0] * 40, [0.3] * 100) < 1e-6
    True
    """
    check_choice("statistic", statistic, ("range", "mad"))
    check_integer("draws", draws, 0, hint="199 or 999 are common; 0 for the analytic tail")
    rows, tallied = _tally_all(validate_scores(y, p, weight))
    if draws:
        return _monte_carlo(rows, tallied, statistic, draws, random_state)
    state = tallied.state
    if statistic == "range":
        return float(segment_pvalues(tallied.span, state[:, sums.RISE], state[:, sums.VARIANCE], state[:, sums.SKEW])[0])
    state = state[0]
    reach, skew = float(tallied.reach[0]), float(state[sums.SKEW])
    if abs(state[sums.HIGH] + state[sums.LOW]) <= TIE * reach:
        skew = abs(skew)  # both directions tie: return the larger p-value, so that the order of the rows does not matter
    elif state[sums.HIGH] < -state[sums.LOW]:
        skew = -skew
    variance = float(state[sums.VARIANCE])
    if reach <= 0 or variance <= 0:
        return 1.0 if reach <= 0 else 0.0
    # Adjusted for skewness like the p-value of the range.
    b = max(0.0, skew / variance)
    r = run(tails.signed_root, 2, reach, variance, b if b * reach >= tails.SYMMETRIC * variance else 0.0)
    return float(min(1.0, run(tails.mad_tail, 20, r) * (max(1.0, r / 4) if b > 0 and r < 40 else 1.0)))


def _monte_carlo(rows: SortedRows, tallied: Tally, statistic: Statistic, draws: int, random_state: int) -> float:
    random = np.random.default_rng(random_state)
    last = np.flatnonzero(np.append(rows.step[1:] != rows.step[:-1], True))  # the last row of each distinct score
    observed = float((tallied.span if statistic == "range" else tallied.reach)[0])
    observed -= TIE * (rows.w.max() if len(rows.w) else 1.0)
    size = max(1, MAX_BATCH // len(rows))
    extreme = 0
    for start in range(0, draws, size):
        count = min(size, draws - start)
        e = (random.random((count, len(rows))) < rows.p) - rows.p
        path = np.cumsum(e * rows.w if len(rows.w) else e, axis=1)[:, last]
        high, low = np.maximum(path.max(axis=1), 0.0), np.minimum(path.min(axis=1), 0.0)
        drawn = high - low if statistic == "range" else np.maximum(high, -low)
        extreme += int(np.sum(drawn >= observed))
    return (1 + extreme) / (1 + draws)


def ecce_classes(y: ArrayLike, p: ArrayLike, weight: ArrayLike | None = None) -> float:
    """Compute the calibration measure for several classes: the largest ECCE-R over the classes.

    Parameters
    ----------
    y : array-like of int, shape (n,)
        The class of each row, a column index of p.
    p : array-like, shape (n, k)
        Probability of each class.

    References
    ----------
    Gao, Parameswaran & Peng (2017), "On the Interpretability of Conditional Probability Estimates in the Agnostic
    Setting", Electronic Journal of Statistics 11(2), doi:10.1214/17-EJS1376SI, section 5.

    Examples
    --------
    >>> round(ecce_classes([0, 1], [[0.9, 0.1], [0.4, 0.6]]), 6)
    0.2
    """
    data = validate_class_scores(y, p, weight)
    return max(ecce((data.y == k).astype(float), data.p[:, k], data.w) for k in range(data.p.shape[1]))


@dataclass(frozen=True)
class CalibrationBound(Result):
    """Bounds on c, the measure of `calibration_bound`, in the population, each valid with probability 1 - delta.

    ``value`` is c_emp, the measure in the sample.
    """

    value: float
    lower: float
    upper: float
    delta: float
    method: str

    def __repr__(self) -> str:
        bounds = f"c at most {self.upper:.4g}, at least {self.lower:.4g}"
        return f"<c_emp {self.value:.4g}; {bounds} ({100 * (1 - self.delta):g}% each, {self.method})>"


def calibration_bound(
    y: ArrayLike,
    p: ArrayLike,
    weight: ArrayLike | None = None,
    *,
    delta: float = 0.1,
    method: Literal["normal", "bernstein", "paper"] = "normal",
) -> CalibrationBound:
    """Bound the calibration measure c(f) = sup over (a, b] of |E[(y - f) 1[a < f <= b]]| from held-out rows.

    Parameters
    ----------
    y, p : array-like, shape (n,)
        Held-out rows: the score was not fitted on them.
    delta : float
        Each of the two bounds fails with at most this probability.
    method : {"normal", "bernstein", "paper"}
        "normal" (the default) holds in simulations from 200 rows on. "bernstein" is proved for any number of rows and
        only bounds c from above. "paper" is Claim 4 of Gao, Parameswaran & Peng (2017) as printed: without weights, with a
        wide lower bound, and invalid for delta below about 7e-4.

    Notes
    -----
    With e = y - p, m = max w, S = sum w^2 e^2, L = ln(5/delta), V = (sqrt(S + m^2 L/2) + m sqrt(L/2))^2 and d = 0.8 delta:
    upper = c_emp + z_{1-d} sqrt(V) / W; lower = c_emp - q_{1-d} sqrt(V) / W, q the quantile of the range of Brownian
    motion.
    "bernstein": upper = c_emp + sqrt(2 V ln(1/d)) / W + 2 m ln(1/d) / (3 W).

    References
    ----------
    Gao, Parameswaran & Peng (2017), "On the Interpretability of Conditional Probability Estimates in the Agnostic
    Setting", Electronic Journal of Statistics 11(2), doi:10.1214/17-EJS1376SI, Claim 4.

    Examples
    --------
    >>> random = np.random.default_rng(0)
    >>> p = random.random(2000)
    >>> calibration_bound(random.random(2000) < p, p)
    <c_emp 0.01036; c at most 0.02408, at least 0 (90% each, normal)>
    """
    check_choice("method", method, ("normal", "bernstein", "paper"))
    check_fraction("delta", delta, hint="0.1 bounds c with 90% confidence")
    data = validate_scores(y, p, weight)
    tallied = _tally_all(data)[1]
    total = float(tallied.weight[0])
    value = float(tallied.span[0]) / total
    if method == "paper":
        if weight is not None:
            raise ArgumentError(
                "method 'paper' does not support weights",
                hint='use {method}, or "bernstein"',
                parameter="method",
                settings={"method": "normal"},
            )
        n = len(data.y)
        below = (16 * math.sqrt(2 * math.pi) + 2 * math.sqrt(2 * math.log(8 / delta))) / math.sqrt(n)
        above = math.sqrt(math.log(2 / delta) / (2 * n))
    else:
        m, d = float(data.w.max()), 0.8 * delta
        root = float(likely_root(float(np.sum((data.w * (data.y - data.p)) ** 2)), m, delta))
        if method == "bernstein":
            above = (math.sqrt(2 * math.log(1 / d)) * root + 2 * m * math.log(1 / d) / 3) / total
            below = math.inf
        else:
            # For a delta above 1/2 the upper bound would lie below c_emp; c_emp is its minimum.
            above, below = max(0.0, -NormalDist().inv_cdf(d)) * root / total, range_quantile(d) * root / total
    return CalibrationBound(value, max(0.0, value - below), min(1.0, value + above), float(delta), method)
