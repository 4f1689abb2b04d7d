"""How far a local mean may stray by chance: bounds that hold for few neighbours and for rates near 0 and 1.

A local mean is sum a_i y_i / sum a_i with a_i = w_i k_i and outcomes of rates r_i. With a = sum a_i and A the largest a_i,
the chance that it strays by x or more to one side is at most exp(-E) for each of three exponents:

- x^2 n / (2 G), n = a^2 / sum a_i^2 (Kish): a Bernoulli sum is no wider than a normal one of variance G. Towards 1, with
  rate r: G = (1 - 2r) / (2 ln((1-r)/r)) for r < 1/2 (Kearns and Saul 1998, "Large deviation methods for approximate
  probabilistic inference"), and r (1-r) for r >= 1/2, where any tilt towards 1 makes the variance smaller.
- Bennett's (1962), (v/b^2) h(bx/v) with v = r (1-r) / n, b = A/a and h(u) = (1+u) ln(1+u) - u.
- (a/A) KL(seen, expected), as for a/A rows that count alike (Hoeffding 1963): ln E exp(t a_i y_i) is convex in a_i and 0
  at 0, hence at most a_i/A of what it is at A, and concave in the rate.

Each is a bound for the same event, so the largest exponent is one too. The first is exact for one neighbour, the third best
for neighbours that count alike, the second where many count little. G and r (1-r) are concave in r: at the mean rate, by
a_i^2, they are at least what they are on average.

With many neighbours exp(-E) is several times too large; there Q(sqrt(2 E(x - b))) is the smaller bound, Q the normal tail
and x - b the deviation less one jump. For neighbours that count alike and outcomes of 0 and 1 it is a theorem (Zubkov and
Serov 2013, "A complete proof of universal inequalities for the distribution function of the binomial law"; Hoeffding 1956
for unequal rates). For others it is an extension, which the tests hold against exact distributions.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from trueup._types import BoolArray, FloatArray


STEPS = 24  # halvings: the limits are right to a ten-millionth of their width, and never too narrow
BLOCK = 4096  # points at a time: they stay in the cache
NEARLY = 1e-4  # nearer to 0 than this a series is more exact than the formula


class Means(NamedTuple):
    """One entry a point: what its neighbourhood says.

    ``expected`` is the mean confidence by a_i and ``expected2`` the same by a_i^2, ``size`` is n, ``largest`` is A/a.
    """

    expected: FloatArray
    expected2: FloatArray
    size: FloatArray
    largest: FloatArray


def log_pvalue(means: Means, seen: FloatArray) -> FloatArray:
    """Give the logarithm of the two-sided p-value of a mean outcome, if the confidences are right."""
    return np.minimum(0.0, math.log(2.0) - _surprise(means, means.expected, seen))


def limits(means: Means, seen: FloatArray, level: float) -> tuple[FloatArray, FloatArray]:
    """Give the lowest and the highest mean rate that make what was seen no surprise, each side at half of 1 - level.

    The mean rate by a_i^2 is taken to differ from the one by a_i as the confidences do: neighbours are off alike.
    """
    low, high = np.empty(len(seen)), np.empty(len(seen))
    for start in range(0, len(seen), BLOCK):
        part = slice(start, start + BLOCK)
        low[part], high[part] = _limits(
            Means(*(column[part] for column in means)), seen[part], math.log(2.0 / (1.0 - level))
        )
    return low, high


def _limits(means: Means, seen: FloatArray, enough: float) -> tuple[FloatArray, FloatArray]:
    """Halve the stretch between a rate that is ruled out and one that is not."""
    reach = np.sqrt(enough / (2.0 * means.size))  # Hoeffding's: the first exponent has reached the level there
    found = []
    for end in (np.maximum(seen - reach, 0.0), np.minimum(seen + reach, 1.0)):
        outer, inner = end.copy(), seen.copy()
        for _ in range(STEPS):
            middle = 0.5 * (outer + inner)
            ruled_out = _surprise(means, middle, seen) >= enough
            outer = np.where(ruled_out, middle, outer)
            inner = np.where(ruled_out, inner, middle)
        found.append(outer)
    return found[0], found[1]


def _surprise(means: Means, rate: FloatArray, seen: FloatArray) -> FloatArray:
    """Give the larger of E and -ln Q: minus the logarithm of the bound."""
    from scipy.special import log_ndtr

    nearer = np.where(seen > rate, np.maximum(seen - means.largest, rate), np.minimum(seen + means.largest, rate))
    tail = log_ndtr(-np.sqrt(2.0 * _exponent(means, rate, nearer)))
    return np.where(seen == rate, 0.0, np.maximum(_exponent(means, rate, seen), -tail))


def _exponent(means: Means, rate: FloatArray, seen: FloatArray) -> FloatArray:
    """Give the largest of the three exponents at ``seen`` where the mean rate is ``rate``."""
    from scipy.special import rel_entr

    far = np.abs(seen - rate)
    shifted = np.clip(rate + (means.expected2 - means.expected), 0.0, 1.0)
    upward = seen > rate
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        # Where the shift leaves [0, 1] the rate itself stands in; elsewhere it makes the bounds a little wider.
        spread = np.maximum(_proxy(rate, upward), _proxy(shifted, upward))
        normal = far**2 * means.size / (2.0 * spread)
        variance = np.maximum(rate * (1.0 - rate), shifted * (1.0 - shifted)) / means.size
        few = _bennett(far, variance, means.largest)
        alike = (rel_entr(seen, rate) + rel_entr(1.0 - seen, 1.0 - rate)) / means.largest
        return np.where(far > 0, np.fmax(np.fmax(normal, few), alike), 0.0)


def _proxy(rate: FloatArray, upward: BoolArray) -> FloatArray:
    """Give G, for outcomes that stray towards 1 or, mirrored, towards 0."""
    other = 1.0 - rate
    variance = rate * other
    odds = np.where(upward, 1.0, -1.0) * (np.log1p(-rate) - np.log(rate))  # above 0 for a rare outcome
    tilt = np.abs(other - rate)
    near = tilt < NEARLY
    wide = np.where(near, 0.25 * (1.0 - tilt**2 / 3.0), tilt / (2.0 * np.where(near, 1.0, np.abs(odds))))
    return np.where(odds > 0, wide, variance)


def _bennett(far: FloatArray, variance: FloatArray, largest: FloatArray) -> FloatArray:
    """Give (v/b^2) h(bx/v)."""
    u = largest * far / variance
    series = far**2 / (2.0 * variance) * (1.0 - u / 3.0 + u**2 / 6.0)
    return np.where(u < NEARLY, series, variance / largest**2 * ((1.0 + u) * np.log1p(u) - u))
