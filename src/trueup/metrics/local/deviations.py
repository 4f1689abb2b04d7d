"""Large-deviation bounds for local means, valid for few neighbours and for rates near 0 and 1.

A local mean is sum a_i y_i / sum a_i with a_i = w_i k_i and outcomes of rates r_i. With a = sum a_i and A the largest a_i,
the probability that it deviates by x or more to one side is at most exp(-E) for each of three exponents:

- x^2 n / (2 G), n = a^2 / sum a_i^2 (Kish): a Bernoulli sum is no wider than a normal one of variance G. Towards 1, with
  rate r: G = (1 - 2r) / (2 ln((1-r)/r)) for r < 1/2 (Kearns and Saul 1998, "Large deviation methods for approximate
  probabilistic inference"), and r (1-r) for r >= 1/2, where any tilt towards 1 reduces the variance.
- Bennett's (1962), (v/b^2) h(bx/v) with v = r (1-r) / n, b = A/a and h(u) = (1+u) ln(1+u) - u.
- (a/A) KL(observed, expected), as for a/A rows of equal weight (Hoeffding 1963): ln E exp(t a_i y_i) is convex in a_i and 0
  at 0, hence at most a_i/A of its value at A, and concave in the rate.

Each bounds the same event, so that the largest exponent does too. The first is exact for one neighbour, the third best for
equally weighted neighbours, the second for many small weights. G and r (1-r) are concave in r: at the mean rate, weighted
by a_i^2, they are at least their average.

With many neighbours exp(-E) is several times too large; there Q(sqrt(2 E(x - b))) is the smaller bound, Q the normal tail
and x - b the deviation minus one jump. For equally weighted neighbours and outcomes of 0 and 1 it is a theorem (Zubkov and
Serov 2013, "A complete proof of universal inequalities for the distribution function of the binomial law"; Hoeffding 1956
for unequal rates). For others it is an extension, which the tests compare with exact distributions.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from trueup._types import BoolArray, FloatArray


BISECTIONS = 24  # limits are accurate to 1e-7 of their width, and never too narrow
BLOCK = 4096  # points at a time: they stay in the cache
SERIES_BELOW = 1e-4  # arguments for which a series is more accurate than the formula


class LocalMeans(NamedTuple):
    """Means over the neighbourhood of each point.

    ``expected`` is the mean confidence weighted by a_i and ``expected2`` by a_i^2, ``size`` is n, ``largest`` is A/a.
    """

    expected: FloatArray
    expected2: FloatArray
    size: FloatArray
    largest: FloatArray


def log_pvalue(means: LocalMeans, observed: FloatArray) -> FloatArray:
    """Return the logarithm of the two-sided p-value of a mean outcome, if the confidences are calibrated."""
    return np.minimum(0.0, math.log(2.0) - _log_bound(means, means.expected, observed))


def limit_rates(means: LocalMeans, observed: FloatArray, level: float) -> tuple[FloatArray, FloatArray]:
    """Return the lowest and the highest mean rate that the observation does not exclude, each side at (1 - level)/2.

    The mean rate weighted by a_i^2 is assumed to differ from the one by a_i as the confidences do.
    """
    low, high = np.empty(len(observed)), np.empty(len(observed))
    for start in range(0, len(observed), BLOCK):
        block = slice(start, start + BLOCK)
        some = LocalMeans(*(column[block] for column in means))
        low[block], high[block] = _bisect(some, observed[block], math.log(2.0 / (1.0 - level)))
    return low, high


def _bisect(means: LocalMeans, observed: FloatArray, threshold: float) -> list[FloatArray]:
    """Bisect between an excluded rate and one that is not."""
    reach = np.sqrt(threshold / (2.0 * means.size))  # Hoeffding's: the first exponent reaches the threshold there
    limits = []
    for end in (np.maximum(observed - reach, 0.0), np.minimum(observed + reach, 1.0)):
        outer, inner = end.copy(), observed.copy()
        for _ in range(BISECTIONS):
            middle = 0.5 * (outer + inner)
            excluded = _log_bound(means, middle, observed) >= threshold
            outer = np.where(excluded, middle, outer)
            inner = np.where(excluded, inner, middle)
        limits.append(outer)
    return limits


def _log_bound(means: LocalMeans, rate: FloatArray, observed: FloatArray) -> FloatArray:
    """Return minus the logarithm of the bound: the larger of E and -ln Q."""
    from scipy.special import log_ndtr

    jump = means.largest
    nearer = np.where(observed > rate, np.maximum(observed - jump, rate), np.minimum(observed + jump, rate))
    tail = log_ndtr(-np.sqrt(2.0 * _exponent(means, rate, nearer)))
    return np.where(observed == rate, 0.0, np.maximum(_exponent(means, rate, observed), -tail))


def _exponent(means: LocalMeans, rate: FloatArray, observed: FloatArray) -> FloatArray:
    """Return the largest of the three exponents."""
    from scipy.special import rel_entr

    distance = np.abs(observed - rate)
    shifted = np.clip(rate + (means.expected2 - means.expected), 0.0, 1.0)
    upward = observed > rate
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        # If the shift leaves [0, 1], the rate itself is used; otherwise it makes the bounds slightly wider.
        spread = np.maximum(_proxy_variance(rate, upward), _proxy_variance(shifted, upward))
        normal = distance**2 * means.size / (2.0 * spread)
        variance = np.maximum(rate * (1.0 - rate), shifted * (1.0 - shifted)) / means.size
        bennett = _bennett(distance, variance, means.largest)
        hoeffding = (rel_entr(observed, rate) + rel_entr(1.0 - observed, 1.0 - rate)) / means.largest
        return np.where(distance > 0, np.fmax(np.fmax(normal, bennett), hoeffding), 0.0)


def _proxy_variance(rate: FloatArray, upward: BoolArray) -> FloatArray:
    """Return G for deviations towards 1 or, mirrored, towards 0."""
    other = 1.0 - rate
    odds = np.where(upward, 1.0, -1.0) * (np.log1p(-rate) - np.log(rate))  # positive for a rare outcome
    tilt = np.abs(other - rate)
    near = tilt < SERIES_BELOW
    wide = np.where(near, 0.25 * (1.0 - tilt**2 / 3.0), tilt / (2.0 * np.where(near, 1.0, np.abs(odds))))
    return np.where(odds > 0, wide, rate * other)


def _bennett(distance: FloatArray, variance: FloatArray, largest: FloatArray) -> FloatArray:
    """Return (v/b^2) h(bx/v)."""
    u = largest * distance / variance
    series = distance**2 / (2.0 * variance) * (1.0 - u / 3.0 + u**2 / 6.0)
    return np.where(u < SERIES_BELOW, series, variance / largest**2 * ((1.0 + u) * np.log1p(u) - u))
