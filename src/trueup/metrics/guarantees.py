"""Bounds that hold for all scores of a class at once, and the numbers of rows that they require.

Gao, Parameswaran & Peng (2017), "On the interpretability of conditional probability estimates in the agnostic setting":
theorem 2 and claim 2, for c(f) over a class of scores. Globus-Harris, Harrison, Kearns, Roth & Sorrell (2023),
"Multicalibration as boosting for regression", appendix C: lemma C.7, theorems C.8 and C.9, for LSBoost. For a single score
and rows that it was not fitted on, `calibration_bound` is far narrower: these functions are for rows that chose the score.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trueup._validate import check_fraction, check_integer, check_number
from trueup.errors import ArgumentError, DataError
from trueup.metrics.inputs import as_floats, reject_rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike

LARGEST_ROWS = 1e300  # a larger number of rows is reported as infinite
BATCH = 4_000_000  # numbers in one batch of draws


class Complexity(NamedTuple):
    """A Monte Carlo estimate of a Rademacher complexity, and its standard error."""

    value: float
    error: float


def interval_complexity(p: ArrayLike, *, draws: int = 200, random_state: int = 0) -> Complexity:
    """Estimate the Rademacher complexity R_D(H) of score intervals, E sup (1/n) sum sigma_i 1[a < f(x_i) <= b].

    Parameters
    ----------
    p : array-like, shape (n,) or (n, q)
        The scores of n rows: of one score f, or of q scores, over which the supremum extends too (a finite class F).
    draws : int
        Number of draws of the random signs sigma.
    random_state : int
        Seed of the draws.

    Notes
    -----
    H are the indicators of {a < f(x) <= b}, f in F (Gao, Parameswaran & Peng 2017, theorem 2). For each draw the supremum
    is exact: the largest sum of consecutive signs in the order of the scores, rows of equal score being one step. For a
    single score of n distinct values it is about 1.25 / sqrt(n) (the mean of the range of Brownian motion is 2 sqrt(2/pi);
    that of its largest rise sqrt(pi/2)), far below the bound sqrt(32 pi / n) of claim 4.

    References
    ----------
    Gao, Parameswaran & Peng (2017), "On the Interpretability of Conditional Probability Estimates in the Agnostic
    Setting", Electronic Journal of Statistics 11(2), doi:10.1214/17-EJS1376SI, section 3.1, theorem 2.

    Examples
    --------
    >>> found = interval_complexity(np.arange(400) / 400)
    >>> 1.0 < found.value * 20 < 1.4
    True
    """
    check_integer("draws", draws, 2, 10_000_000)
    check_integer("random_state", random_state, 0)
    scores = as_floats(p, "p")
    scores = scores[:, None] if scores.ndim == 1 else scores
    if scores.ndim != 2 or not scores.size:
        raise DataError(f"p must have shape (n,) or (n, q); got {scores.shape}", hint="one row per observation")
    reject_rows(np.asarray(~np.isfinite(scores).all(axis=1)), "p must be finite", scores[:, 0], "leave those rows out")
    rows = len(scores)
    orders = [np.argsort(column, kind="stable") for column in scores.T]
    ends = [np.flatnonzero(np.diff(column[order], append=math.inf)) for column, order in zip(scores.T, orders, strict=True)]
    random = np.random.default_rng(random_state)
    suprema = np.zeros(0)
    size = max(1, BATCH // rows)
    for start in range(0, draws, size):
        signs = random.choice(np.array([-1.0, 1.0]), (min(size, draws - start), rows))
        largest = np.zeros(len(signs))
        for order, end in zip(orders, ends, strict=True):
            path = np.cumsum(signs[:, order], axis=1)[:, end]
            lowest = np.minimum.accumulate(np.column_stack([np.zeros(len(path)), path]), axis=1)[:, :-1]
            largest = np.maximum(largest, (path - lowest).max(axis=1))
        suprema = np.append(suprema, largest / rows)
    return Complexity(float(suprema.mean()), float(suprema.std(ddof=1) / math.sqrt(draws)))


def complexity_bound(rows: int, *, dimension: int, values: int) -> float:
    """Bound the Rademacher complexity of score intervals over a class of scores with few values.

    sqrt((2 d (ln(n/d) + 1) + 4 ln(V + 1)) / n) (Gao, Parameswaran & Peng 2017, claim 2).

    Parameters
    ----------
    rows : int
        Number of rows n; more than ``dimension`` + 1.
    dimension : int
        VC dimension d of {1[a < f(x) <= b]: f in F} for every fixed a and b.
    values : int
        Number V of values that the scores of F take; the same values for all of them.

    Notes
    -----
    Assumes that every score of F maps into one finite set: example 2 of the paper shows that without it the complexity may
    be 1/2 for d = 2. The bound holds for every sample, and so for the expected complexity in theorem 2.

    References
    ----------
    Gao, Parameswaran & Peng (2017), "On the Interpretability of Conditional Probability Estimates in the Agnostic
    Setting", Electronic Journal of Statistics 11(2), doi:10.1214/17-EJS1376SI, claim 2.

    Examples
    --------
    Stumps on one feature (d = 2), rounded to eleven values:

    >>> round(complexity_bound(100_000, dimension=2, values=11), 4)
    0.0239
    """
    check_integer("dimension", dimension, 1)
    check_integer("values", values, 1)
    check_integer("rows", rows, dimension + 2, hint="claim 2 requires n > d + 1")
    return _claim_two(float(rows), dimension, values)


def _claim_two(n: float, d: int, values: int) -> float:
    return math.sqrt((2 * d * (math.log(n / d) + 1) + 4 * math.log(values + 1)) / n)


def uniform_bound(rows: int, complexity: float, *, delta: float = 0.1) -> float:
    """Bound the largest difference of c(f) and c_emp(f) over a class of scores, from its Rademacher complexity.

    With probability 1 - delta no score f of the class has |c(f) - c_emp(f, D)| > 4 R + 2 sqrt(2 ln(8/delta) / n) (theorem 2
    of Gao, Parameswaran & Peng 2017, solved for epsilon).

    Parameters
    ----------
    rows : int
        Number of rows n; they may be those that chose f from the class.
    complexity : float
        The expected Rademacher complexity R of the score intervals of the class: from `complexity_bound`, or estimated by
        `interval_complexity` (then take its error into account).
    delta : float

    Notes
    -----
    Assumes independent rows of one distribution, without weights. A bound above 1 says nothing.

    References
    ----------
    Gao, Parameswaran & Peng (2017), "On the Interpretability of Conditional Probability Estimates in the Agnostic
    Setting", Electronic Journal of Statistics 11(2), doi:10.1214/17-EJS1376SI, theorem 2.

    Examples
    --------
    >>> round(uniform_bound(100_000, complexity_bound(100_000, dimension=2, values=11)), 4)
    0.1144
    """
    check_integer("rows", rows, 1)
    check_number("complexity", complexity, 0)
    check_fraction("delta", delta)
    return 4 * complexity + 2 * math.sqrt(2 * math.log(8 / delta) / rows)


def uniform_rows(epsilon: float, *, dimension: int, values: int, delta: float = 0.1) -> int:
    """Return the number of rows from which c_emp is within epsilon of c for all scores of a class (theorem 2, claim 2).

    Parameters
    ----------
    epsilon : float
    dimension, values : int
        Of the class of scores, as for `complexity_bound`.
    delta : float
        Probability that it fails.

    References
    ----------
    Gao, Parameswaran & Peng (2017), "On the Interpretability of Conditional Probability Estimates in the Agnostic
    Setting", Electronic Journal of Statistics 11(2), doi:10.1214/17-EJS1376SI, theorem 2 and claim 2.

    Examples
    --------
    >>> rows = uniform_rows(0.05, dimension=2, values=11)
    >>> uniform_bound(rows, complexity_bound(rows, dimension=2, values=11)) <= 0.05
    True
    """
    check_number("epsilon", epsilon, 0, 1, above=True)
    check_integer("dimension", dimension, 1)
    check_integer("values", values, 1)
    check_fraction("delta", delta)

    def error(n: float) -> float:
        return 4 * _claim_two(n, dimension, values) + 2 * math.sqrt(2 * math.log(8 / delta) / n)

    return int(_smallest_rows(error, epsilon, dimension + 2))


def natarajan_bound(alpha: float, bound: float, *, dimension: int) -> float:
    """Bound the Natarajan dimension of the models that LSBoost can return: 24 (B/alpha)^3 d ln((2B/alpha)^3 d).

    Parameters
    ----------
    alpha, bound : float
        The parameters alpha and B of Algorithm 1.
    dimension : int
        Pseudodimension d of the weak learners: p + 1 for linear functions of p features.

    Notes
    -----
    Lemma C.7 of Globus-Harris et al. (2023): a model is a function of (2B/alpha)^3 thresholds of weak learners. Two
    displays of the proof print 24 (B/alpha) without the exponent, which the lemma has, and which 3 (2B/alpha)^3 requires.

    References
    ----------
    Globus-Harris, Harrison, Kearns, Roth & Sorrell (2023), "Multicalibration as Boosting for Regression",
    arXiv:2301.13767, lemma C.7.

    Examples
    --------
    >>> round(natarajan_bound(0.5, 1.0, dimension=2))  # 24 x 8 x 2 x ln(128)
    1863
    """
    _check_lsboost(alpha, bound, dimension)
    ratio = bound / alpha
    return 24 * ratio**3 * dimension * math.log((2 * ratio) ** 3 * dimension)


def lsboost_rows(
    epsilon: float, *, alpha: float, bound: float, dimension: int, delta: float = 0.1, constant: float | None = None
) -> float:
    """Return the number of rows from which the squared error of LSBoost on them is within epsilon of that of new rows.

    It holds with probability 1 - delta for all models that LSBoost can return at once (theorem C.8 of Globus-Harris et al.
    2023), outcomes being in [0, 1].

    Parameters
    ----------
    epsilon, delta : float
    alpha, bound, dimension
        As for `natarajan_bound`.
    constant : float, optional
        The theorem states an order, C (d B^3 ln^2(d B/alpha) / (alpha^3 epsilon^2) + ln(1/delta) / epsilon^2) without the
        constant C; with ``constant``, that number. By default an explicit number: the smallest n with
        2 sqrt(2 N (ln n + 2 ln k) / n) + sqrt(2 ln(4/delta) / n) <= epsilon, N the bound of `natarajan_bound` and k the
        number of levels: Natarajan's lemma counts at most n^N k^(2N) models on n rows, Massart's lemma bounds their
        Rademacher complexity, and uniform convergence follows (Shalev-Shwartz & Ben-David 2014, lemmas 29.4 and 26.8,
        theorem 26.5).

    Notes
    -----
    Assumes independent rows of one distribution, exact regression oracles, rounding to multiples of alpha/(2B), and as many
    rounds as the algorithm may take. The numbers are far larger than practice needs: hold rows out to measure instead.

    References
    ----------
    Globus-Harris, Harrison, Kearns, Roth & Sorrell (2023), "Multicalibration as Boosting for Regression",
    arXiv:2301.13767, theorem C.8.

    Examples
    --------
    >>> f"{lsboost_rows(0.05, alpha=0.1, bound=1.0, dimension=3):.1e}"
    '7.2e+10'
    >>> f"{lsboost_rows(0.05, alpha=0.1, bound=1.0, dimension=3, constant=1.0):.1e}"
    '1.4e+07'
    """
    check_number("epsilon", epsilon, 0, 1, above=True)
    check_fraction("delta", delta)
    _check_lsboost(alpha, bound, dimension)
    check_number("constant", constant, 0, above=True, optional=True)
    if constant is not None:
        ratio = bound / alpha
        order = dimension * ratio**3 * math.log(dimension * ratio) ** 2 + math.log(1 / delta)
        return constant * order / epsilon**2
    natarajan = natarajan_bound(alpha, bound, dimension=dimension)
    levels = math.ceil(2 * bound / alpha) + 1

    def error(n: float) -> float:
        models = natarajan * (math.log(n) + 2 * math.log(levels))
        return 2 * math.sqrt(2 * models / n) + math.sqrt(2 * math.log(4 / delta) / n)

    return _smallest_rows(error, epsilon, 3)


def multicalibration_rows(
    *, alpha: float, bound: float, dimension: int, delta: float = 0.1, constant: float | None = None
) -> float:
    """Return the number of rows from which the result of LSBoost is 2 alpha-multicalibrated on new rows.

    Parameters
    ----------
    alpha, bound, dimension, constant
        As for `lsboost_rows`.
    delta : float
        Probability that it fails; theorem C.9 holds with 1 - 2 delta' for the delta' of theorem C.8.

    Notes
    -----
    Theorem C.9 of Globus-Harris et al. (2023): `lsboost_rows` with epsilon = alpha / (4B) and delta / 2. Multicalibration
    is that of definition 2.1 (`k2` at most 2 alpha) for the functions h of the class with h^2 <= B, closed under affine
    transformations. Assumptions as for `lsboost_rows`.

    References
    ----------
    Globus-Harris, Harrison, Kearns, Roth & Sorrell (2023), "Multicalibration as Boosting for Regression",
    arXiv:2301.13767, theorem C.9.

    Examples
    --------
    >>> f"{multicalibration_rows(alpha=0.5, bound=1.0, dimension=2, constant=1.0):.0f}"
    '2160'
    """
    _check_lsboost(alpha, bound, dimension)
    check_fraction("delta", delta)
    epsilon = alpha / (4 * bound)
    return lsboost_rows(epsilon, alpha=alpha, bound=bound, dimension=dimension, delta=delta / 2, constant=constant)


def _check_lsboost(alpha: float, bound: float, dimension: int) -> None:
    check_number("alpha", alpha, 0, above=True)
    check_number("bound", bound, 0, above=True)
    check_integer("dimension", dimension, 1)
    if alpha > bound:
        raise ArgumentError(
            f"alpha must be at most the bound B of h^2; got {alpha:g} and {bound:g}",
            hint="with outcomes in [0, 1], every alpha of interest is far below B = 1",
            parameter="alpha",
        )


def _smallest_rows(error: Callable[[float], float], epsilon: float, least: float) -> float:
    """Return the smallest number of rows whose ``error``, falling where it is below 1, is at most epsilon."""
    high = float(max(least, 16))
    while error(high) > epsilon:
        high *= 2
        if high > LARGEST_ROWS:
            return math.inf
    low = max(float(least), high / 2)
    if error(low) <= epsilon:
        return low
    while high - low > max(1.0, 1e-12 * high):
        middle = math.floor((low + high) / 2) if high < 2**52 else (low + high) / 2
        low, high = (low, middle) if error(middle) <= epsilon else (middle, high)
    return high
