"""Statistical inference from sums: p-values that hold for small segments, multiple testing, and intervals.

The statistic is ECCE-R, the range of the cumulative differences (Arrieta-Ibarra et al. 2022), in units of its noise. Under
calibration it tends to the range of Brownian motion; with few expected events that limit rejects far too often if many
segments are tested, so the default p-value uses a Poisson-type exponent instead (Bennett 1962).
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import TYPE_CHECKING, Literal

import numpy as np

from trueup.errors import ArgumentError
from trueup.kernels import tails

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from trueup._types import BoolArray, FloatArray, IntArray


Adjustment = Literal["holm", "bh", "by", "max"]
POWER = 0.8
Z_POWER = NormalDist().inv_cdf(POWER)


def range_quantile(level: float, *, inflated: bool = False) -> float:
    """Return the smallest x for which the range of Brownian motion exceeds x with probability at most ``level``.

    ``inflated`` multiplies the tail by max(1, x/4), as the default p-value does for skewed sums.
    """
    low, high = 0.0, 64.0
    for _ in range(80):
        middle = 0.5 * (low + high)
        if tails.inflated_tail(middle, inflated) <= level:
            high = middle
        else:
            low = middle
    return high


def segment_pvalues(span: FloatArray, rise: FloatArray, variance: FloatArray, skew: FloatArray) -> FloatArray:
    """Return the default p-value of each segment.

    ``span`` is x = W R, the range of the unnormalised cumulative differences, and ``rise`` the largest ascent from an
    earlier to a later point, equal to ``span`` if the minimum comes before the maximum; ``variance`` is
    v = sum w^2 p(1-p) and ``skew`` k3 = sum w^3 p(1-p)(1-2p).

    With s = +1 if the minimum comes first, else -1; b = max(0, s k3/v); u = b x/v; r^2 = 2 (v/b^2) ((1+u) ln(1+u) - u), the
    p-value is F(r) max(1, r/4) if b > 0, else F(x/sqrt(v)), F the tail of the range.
    """
    x, top, v, k3 = (np.ascontiguousarray(sums, np.float64) for sums in (span, rise, variance, skew))
    out = np.empty(len(x))
    tails.segment_tails(x, top, v, k3, out)
    return out


def limit_pvalues(sigma_units: FloatArray) -> FloatArray:
    """Return P(range of Brownian motion > x) for each x = ECCE-R / sigma; it is too small if few events are expected."""
    return segment_pvalues(sigma_units, sigma_units, np.ones(len(sigma_units)), np.zeros(len(sigma_units)))


def adjust(p: ArrayLike, method: Adjustment = "holm") -> FloatArray:
    """Adjust p-values for multiple testing.

    "holm" controls the family-wise error rate under any dependence (Holm 1979). "bh" controls the false discovery rate
    under positive dependence (Benjamini & Hochberg 1995), which overlapping two-sided segments do not guarantee; "by" under
    any dependence (Benjamini & Yekutieli 2001).
    """
    values = np.asarray(p, np.float64)
    m = len(values)
    if np.isnan(values).any():
        raise ArgumentError(f"p-values must be numbers; {int(np.isnan(values).sum())} are NaN", hint="leave those out")
    if method == "holm":
        # Once a product (m - rank + 1) p reaches 1, it and all later ones are 1: the smallest few p-values are sorted.
        out, limit = np.ones(m), 64.0 / max(m, 1)
        while True:
            low = np.flatnonzero(values <= limit)
            low = low[np.argsort(values[low])]
            stepped = np.maximum.accumulate(values[low] * (m - np.arange(len(low))))
            if len(low) == m or (len(low) and stepped[-1] >= 1.0):
                out[low] = np.minimum(stepped, 1.0)
                return out
            limit *= 16.0
    if method not in ("bh", "by"):
        raise ArgumentError(f"adjust must be 'holm', 'bh' or 'by'; got {method!r}", parameter="adjust")
    order = np.argsort(values)
    rank = np.arange(1, m + 1)
    factor = m * (np.sum(1.0 / rank) if method == "by" else 1.0)
    stepped = np.minimum.accumulate((values[order] * factor / rank)[::-1])[::-1]
    out = np.empty(m)
    out[order] = np.minimum(stepped, 1.0)
    return out


def rejected(p: FloatArray, method: Adjustment, alpha: float, tested: int) -> BoolArray:
    """Return which p-values are rejected at alpha after adjustment for ``tested`` tests; those not tested must be 1.

    Only p-values of at most alpha are examined: no adjustment makes one smaller.
    """
    out = np.zeros(len(p), bool)
    low = np.flatnonzero(p <= alpha)
    if len(low):
        # The other p-values are larger: they come later in every order, and only their number matters.
        padded = np.concatenate([p[low], np.ones(max(tested - len(low), 0))])
        out[low] = adjust(padded, method)[: len(low)] <= alpha
    return out


def step_down(counts: IntArray, order: IntArray, draws: int) -> FloatArray:
    """Convert the counts of a step-down Monte Carlo null into adjusted p-values (Westfall & Young 1993, min-p).

    ``counts[k]`` is the number of draws in which the smallest p-value among the segments from rank k on was at most the
    observed one of rank k; ``order`` ranks the segments by their observed p-value.
    """
    out = np.empty(len(order))
    out[order] = np.maximum.accumulate((1.0 + counts) / (draws + 1.0)) if len(order) else 0.0
    return out


def likely_root(squares: FloatArray | float, largest: FloatArray | float, failing: float) -> FloatArray:
    """Return an upper bound on sqrt(sum of variances) from the observed sum of ``squares``, valid also for few events.

    sqrt(S + m^2 L/2) + m sqrt(L/2), with S the sum of squares, m the largest possible absolute value of a term and
    L = ln(5/failing): the bound uses a fifth of ``failing``, the probability that the interval it is part of fails.
    """
    half = math.log(5 / failing) / 2
    return np.asarray(np.sqrt(squares + np.square(largest) * half) + np.multiply(largest, math.sqrt(half)))


def normal_quantile(alpha: float) -> float:
    """Return the value that a standard normal variable exceeds in absolute value with probability alpha."""
    return NormalDist().inv_cdf(1 - alpha / 2)


def wilson(rate: FloatArray, size: FloatArray, alpha: float) -> tuple[FloatArray, FloatArray]:
    """Return Wilson's score interval for a rate from ``size`` rows (an effective number if there are weights)."""
    z2 = normal_quantile(alpha) ** 2
    with np.errstate(invalid="ignore", divide="ignore"):
        centre = (rate + z2 / (2 * size)) / (1 + z2 / size)
        half = np.sqrt(z2 * np.maximum(rate * (1 - rate), 0.0) / size + z2**2 / (4 * size**2)) / (1 + z2 / size)
    return np.maximum(centre - half, 0.0), np.minimum(centre + half, 1.0)


def check_draws(alpha: float, draws: int) -> None:
    """Raise unless alpha (draws + 1) is an integer: only then is the Monte Carlo test exact at alpha."""
    target = alpha * (draws + 1)
    if draws < 1 or not math.isclose(target, round(target), abs_tol=1e-9) or round(target) < 1:
        raise ArgumentError(
            f"alpha * (draws + 1) must be an integer; got {alpha} * {draws + 1}",
            hint="use 199 or 999 draws",
        )
