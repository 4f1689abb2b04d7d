"""Statistical inference from sums: p-values that hold for small segments, multiple testing, and intervals.

The statistic is ECCE-R, the range of the cumulative differences (Arrieta-Ibarra et al. 2022), in units of its noise. Under
calibration it tends to the range of Brownian motion; with few expected events that limit rejects far too often if many
segments are tested, so the default p-value uses a Poisson-type exponent instead (Bennett 1962).
"""

from __future__ import annotations

import functools
import math
from statistics import NormalDist
from typing import TYPE_CHECKING, Literal

import numpy as np

from trueup.errors import ArgumentError
from trueup.kernels import tails

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from trueup._types import FloatArray, IntArray
    from trueup.kernels.tally import SortedRows


Adjustment = Literal["holm", "bh", "by", "max"]
MIN_CLUSTERS = 10  # effective; with fewer, neither the variance nor the tail of their sum is known
MIN_EXCESS = 0.1  # below, clusters cannot raise a variance by more than this: rows count as independent
SCORE_GROUPS = 4  # of similar scores, in which clusters may have errors of opposite sign
POWER = 0.8
Z_POWER = NormalDist().inv_cdf(POWER)


@functools.cache
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


def adjust(p: ArrayLike, method: Adjustment = "holm", shares: FloatArray | None = None) -> FloatArray:
    """Adjust p-values for multiple testing, each with its share of alpha (``shares``, which add up to 1; equal by default).

    "holm" controls the family-wise error rate under any dependence: with p/share in ascending order, the adjusted p-value
    is the largest, up to there, of p/share times the sum of the shares from there on (Holm 1979, weighted). "bh" controls
    the false discovery rate under positive dependence (Benjamini & Hochberg 1995; Genovese, Roeder & Wasserman 2006 with
    weights), which overlapping two-sided segments do not guarantee; "by" under any dependence (Benjamini & Yekutieli 2001).
    """
    values = np.asarray(p, np.float64)
    m = len(values)
    if np.isnan(values).any():
        raise ArgumentError(f"p-values must be numbers; {int(np.isnan(values).sum())} are NaN", hint="leave those out")
    ratio = values * m if shares is None else values / shares
    if method == "holm":
        # Once a product reaches 1, it and all later ones are 1: only the smallest few ratios are sorted.
        out, limit = np.ones(m), 64.0
        while True:
            low = np.flatnonzero(ratio <= limit)
            low = low[np.argsort(ratio[low], kind="stable")]
            spent = np.arange(len(low)) / max(m, 1) if shares is None else np.cumsum(shares[low]) - shares[low]
            stepped = np.maximum.accumulate(ratio[low] * (1.0 - spent))
            if len(low) == m or (len(low) and stepped[-1] >= 1.0):
                out[low] = np.clip(stepped, values[low], 1.0)
                return out
            limit *= 16.0
    if method not in ("bh", "by"):
        raise ArgumentError(f"adjust must be 'holm', 'bh' or 'by'; got {method!r}", parameter="adjust")
    order = np.argsort(ratio, kind="stable")
    rank = np.arange(1, m + 1)
    factor = np.sum(1.0 / rank) if method == "by" else 1.0
    stepped = np.minimum.accumulate((ratio[order] * factor / rank)[::-1])[::-1]
    out = np.empty(m)
    out[order] = np.clip(stepped, values[order], 1.0)  # a large share must not make a p-value smaller
    return out


def step_down(counts: IntArray, order: IntArray, draws: int) -> FloatArray:
    """Convert the counts of a step-down Monte Carlo null into adjusted p-values (Westfall & Young 1993, min-p).

    ``counts[k]`` is the number of draws in which the smallest p-value among the segments from rank k on was at most the
    observed one of rank k; ``order`` ranks the segments by their observed p-value (each divided by its share of alpha, if
    shares differ).
    """
    out = np.empty(len(order))
    out[order] = np.maximum.accumulate((1.0 + counts) / (draws + 1.0)) if len(order) else 0.0
    return out


def optimistic_pvalues(span: FloatArray, rise: FloatArray, variance: FloatArray, skew: FloatArray) -> FloatArray:
    """Return roughly the smallest p-values that refinement can find; arguments as in `segment_pvalues`.

    They are tails F of the range at x / sqrt(v), in the direction of the skewness, and against it (far too few rare events)
    at r + 0.3, with the Poisson exponent of a lower tail: r^2 = 2 (v/b^2) ((1-u) ln(1-u) + u), b = |k3| / v, u = b x / v.
    """
    deviate = span / np.sqrt(variance)
    b = np.abs(skew) / variance
    u = np.minimum(b * span / variance, 1.0)
    against = np.where(rise >= span * (1.0 - 1e-9), skew < 0, skew > 0) & (u > 1e-4)
    with np.errstate(divide="ignore", invalid="ignore"):
        root = np.sqrt(2.0 * variance / b**2 * (np.where(u < 1.0, (1.0 - u) * np.log1p(-u), 0.0) + u))
    return limit_pvalues(np.where(against, np.maximum(deviate, root + 0.3), deviate))


def bennett_pvalues(span: FloatArray, variance: FloatArray, largest: FloatArray) -> FloatArray:
    """Return the bound 4 exp(-r^2 / 2) on the p-values of segments whose rows add at most ``largest`` (Bennett 1962)."""
    u = largest * span / variance
    return np.minimum(1.0, 4.0 * np.exp(-variance / largest**2 * ((1.0 + u) * np.log1p(u) - u)))


OUTCOME_WEIGHTS = 1.1  # ratio from which weights are modelled as depending on the outcome
LOGIT_WIDTH, LOGIT_LIMIT = 0.25, 10.0  # of the score bins within which weights are compared
EQUAL_LOGS = 0.01  # logarithms of weights that differ by less count as equal
Z_RATIO, Z_DEPENDENCE = 5.0, 3.0  # standard errors
BRIDGE = 2.0  # exceeded by a Brownian bridge with probability 0.0007


def weight_moments(rows: SortedRows) -> FloatArray:
    """Return sums over rows, by score bin, (bins, 17), which add over rows.

    With l = ln w and x = logit p, less the lower end of the bin, they are sums of l^k for k = 0 to 4, of y l^k, and of y^2,
    x, x^2, x y, x l, x y l and x l^2.
    """
    p, w = rows.p, rows.w
    y, logs = p + rows.e / w, np.log(w)
    with np.errstate(divide="ignore"):
        x = np.clip(np.log(p) - np.log1p(-p), -LOGIT_LIMIT, LOGIT_LIMIT)
    place = np.floor((x + LOGIT_LIMIT) / LOGIT_WIDTH).astype(np.int64)
    x += LOGIT_LIMIT - place * LOGIT_WIDTH
    square = logs * logs
    powers = [np.ones(len(p)), logs, square, square * logs, square * square]
    columns = [*powers, *(y * power for power in powers), y * y, x, x * x, x * y, x * logs, x * y * logs, x * square]
    bins = int(2 * LOGIT_LIMIT / LOGIT_WIDTH) + 1
    return np.stack([np.bincount(place, column, bins) for column in columns], axis=1, dtype=np.float64)


def weight_ratio(moments: FloatArray) -> tuple[float, bool]:
    """Return how many times as much rows of outcome 1 weigh as rows of outcome 0 with equal scores, 1 within noise.

    By least squares of ln w on y and logit p within score bins; ``moments`` are those of `weight_moments`. Also return
    whether weights depend on the outcome in another way than by that ratio: by a ratio close to 1, by ratios that differ
    between low and high scores, or because their spread differs, as where only some of the rows were sampled by outcome.
    """
    moments = moments[moments[:, 0] > 0]
    n, l1, y1, yl, (y2, x1, x2, xy, xl, xyl, xll) = *moments.T[[0, 1, 5, 6]], moments.T[10:]
    xx, yx = x2 - x1**2 / n, xy - x1 * y1 / n
    # In each bin, y less its regression on x: no function of the score is related to it.
    on_x = np.where(xx > 1e-9 * n, yx / np.maximum(xx, 1e-300), 0.0)
    yy, yl = y2 - y1**2 / n - on_x * yx, yl - y1 * l1 / n - on_x * (xl - x1 * l1 / n)
    if yy.sum() <= 1e-9 * n.sum():
        return 1.0, False
    slope = float(yl.sum() / yy.sum())
    # Sums of r^k, y r^2 and x r^2 with r = ln w - slope y, less its mean in the bin, for outcomes of 0 and 1.
    positive = _shifted(moments[:, 5:10], np.full(len(n), slope))
    mean = (l1 - slope * y1) / n
    r = _shifted(moments[:, :5] - moments[:, 5:10] + positive, mean).T
    yr = _shifted(positive, mean)[:, 2]
    xr = xll - 2 * slope * xyl - 2 * mean * xl + (slope**2 + 2 * slope * mean) * xy + mean**2 * x1
    spread = yr - y1 * r[2] / n - on_x * (xr - x1 * r[2] / n)
    noise = math.sqrt(np.sum(yy * np.maximum(r[2] / n, EQUAL_LOGS**2)))
    z, drift = abs(yl.sum()) / noise, np.abs(np.cumsum(yl - slope * yy)).max() / noise
    differ = abs(spread.sum()) / math.sqrt(np.sum(yy * np.maximum(r[4] / n - (r[2] / n) ** 2, EQUAL_LOGS**4)))
    ratio = math.exp(slope) if abs(slope) > math.log(OUTCOME_WEIGHTS) and z > Z_RATIO else 1.0
    return ratio, bool((ratio == 1 and z > Z_DEPENDENCE) or drift > BRIDGE or differ > Z_DEPENDENCE)


def _shifted(powers: FloatArray, by: FloatArray) -> FloatArray:
    """Return sums of (l - by)^k, given those of l^k, k = 0 to 4, in the columns of ``powers``."""
    terms = [[math.comb(k, j) * powers[:, j] * (-by) ** (k - j) for j in range(k + 1)] for k in range(5)]
    return np.stack([np.sum(term, axis=0) for term in terms], axis=1)


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
