"""Statistical inference from sums: p-values that hold for small segments, multiple testing, and intervals.

The statistic is ECCE-R, the range of the cumulative differences (Arrieta-Ibarra et al. 2022), in units of its noise. Under
calibration it tends to the range of Brownian motion; with few expected events that limit rejects far too often if many
segments are tested, so the default p-value uses a Poisson-type exponent instead (Bennett 1962).
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Literal

import numpy as np

from trueup.errors import ArgumentError
from trueup.kernels import tails
from trueup.kernels._jit import run

if TYPE_CHECKING:
    from collections.abc import Sequence

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
        if run(tails.inflated_tail, 2, middle, inflated) <= level:
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
    run(tails.segment_tails, 4 * len(x), x, top, v, k3, out)
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
MIN_VARIANCE = 1e-9  # of outcomes or scores in a bin; below, they are equal but for rounding
EQUAL_LOGS = 0.01  # logarithms of weights that differ by less count as equal
Z_RATIO, Z_DEPENDENCE = 5.0, 2.5  # standard errors
BRIDGE = 2.0  # exceeded by a Brownian bridge with probability 0.0007
POWERS = (1, 2, 3)  # of residual log weights that are compared between outcomes


@dataclass(frozen=True, eq=False)
class WeightModel:
    """Regressions within score bins that show whether weights depend on the outcome y.

    With x = logit p, the outcome is a + b x + d in each bin (``outcome`` has a and b by bin), and the logarithm of the
    weight is y ln ratio + a + b x + r (``logs`` has a and b by bin): rows of outcome 1 weigh ``ratio`` times as much as
    rows of outcome 0 with equal scores, 1 within noise. ``squares`` has the sum of d^2 by bin.
    """

    outcome: FloatArray
    logs: FloatArray
    ratio: float
    squares: FloatArray

    @classmethod
    def fit(cls, sums: FloatArray) -> WeightModel:
        """Fit the regressions by least squares; ``sums`` are those of `weight_sums` over all rows."""
        n, x, xx, y, xy, yy, logs, xl, yl, ll = sums.T
        outcome, plain = _regress(n, x, xx, y, xy), _regress(n, x, xx, logs, xl)
        squares = yy - outcome[0] * y - outcome[1] * xy
        varies = squares > MIN_VARIANCE * n
        squares = np.where(varies, squares, 0.0)
        # The residual d is orthogonal to x: sum d l / sum d^2 is the coefficient of y in the regression on y and x.
        product = np.where(varies, yl - outcome[0] * logs - outcome[1] * xl, 0.0)
        slope = float(product.sum() / squares.sum()) if varies.any() else 0.0
        rest = ll - plain[0] * logs - plain[1] * xl - 2.0 * slope * product + slope**2 * squares
        noise = np.sum(squares * np.maximum(rest / np.maximum(n, 1.0), EQUAL_LOGS**2))
        if abs(slope) < math.log(OUTCOME_WEIGHTS) or abs(slope) * squares.sum() < Z_RATIO * math.sqrt(noise):
            slope = 0.0
        return cls(outcome, _regress(n, x, xx, logs - slope * y, xl - slope * xy), math.exp(slope), squares)

    def residual_sums(self, rows: SortedRows) -> FloatArray:
        """Return sums over rows by score bin, (bins, 1 + 3 len(POWERS)): rows, and for k in POWERS d r^k, r^k and r^2k."""
        place, x, y, logs = _weight_columns(rows)
        d = y - self.outcome[0, place] - self.outcome[1, place] * x
        r = logs - math.log(self.ratio) * y - self.logs[0, place] - self.logs[1, place] * x
        columns: list[FloatArray | None] = [None]
        for power in (r**k for k in POWERS):
            columns += [d * power, power, power * power]
        return _sum_by_bin(place, columns)

    def is_incomplete(self, sums: FloatArray) -> bool:
        """Return whether weights depend on the outcome in another way than by the ratio; ``sums``: of `residual_sums`.

        Their mean, spread or skewness may differ between the outcomes, as where only some of the rows were sampled by
        outcome, or by ratios that differ between low and high scores.
        """
        some = self.squares > 0
        if not some.any():
            return False
        (n, *rest), squares = sums[some].T, self.squares[some]
        for k, covariance, power, power2 in zip(POWERS, rest[::3], rest[1::3], rest[2::3], strict=True):
            variance = np.maximum(power2 / n - (power / n) ** 2, EQUAL_LOGS ** (2 * k))
            noise = math.sqrt(np.sum(squares * variance))
            if abs(covariance.sum()) > Z_DEPENDENCE * noise:
                return True
            centred = covariance - squares * covariance.sum() / squares.sum()
            if k == 1 and np.abs(np.cumsum(centred)).max() > BRIDGE * noise:
                return True
        return False


def weight_sums(rows: SortedRows) -> FloatArray:
    """Return sums over rows by score bin, (bins, 10): 1, x, x^2, y, xy, y^2, l, xl, yl and l^2, x = logit p, l = ln w."""
    place, x, y, logs = _weight_columns(rows)
    return _sum_by_bin(place, [None, x, x * x, y, x * y, y * y, logs, x * logs, y * logs, logs * logs])


def _weight_columns(rows: SortedRows) -> tuple[IntArray, FloatArray, FloatArray, FloatArray]:
    """Return score bin, logit of the score less the lower end of the bin, outcome and logarithm of the weight of rows."""
    p, w = rows.p, rows.w
    with np.errstate(divide="ignore"):
        x = np.clip(np.log(p) - np.log1p(-p), -LOGIT_LIMIT, LOGIT_LIMIT)
    place = np.floor((x + LOGIT_LIMIT) / LOGIT_WIDTH).astype(np.int64)
    return place, x + LOGIT_LIMIT - place * LOGIT_WIDTH, p + rows.e / w, np.log(w)


def _sum_by_bin(place: IntArray, columns: Sequence[FloatArray | None]) -> FloatArray:
    bins = int(2 * LOGIT_LIMIT / LOGIT_WIDTH) + 1
    return np.stack([np.bincount(place, column, bins) for column in columns], axis=1, dtype=np.float64)


def _regress(n: FloatArray, x: FloatArray, xx: FloatArray, y: FloatArray, xy: FloatArray) -> FloatArray:
    """Return intercept and slope of y on x by bin, (2, bins); the slope is 0 where x does not vary, as in empty bins."""
    n = np.maximum(n, 1.0)
    spread = xx - x * x / n
    slope = np.where(spread > MIN_VARIANCE * n, (xy - x * y / n) / np.maximum(spread, 1e-300), 0.0)
    return np.stack([(y - slope * x) / n, slope])


def likely_root(squares: FloatArray | float, largest: FloatArray | float, failing: float) -> FloatArray:
    """Return an upper bound on sqrt(sum of variances) from the observed sum of ``squares``, valid also for few events.

    sqrt(S + m^2 L/2) + m sqrt(L/2), with S the sum of squares, m the largest possible absolute value of a term and
    L = ln(5/failing): the bound uses a fifth of ``failing``, the probability that the interval it is part of fails.
    """
    half = math.log(5 / failing) / 2
    return np.asarray(np.sqrt(squares + np.square(largest) * half) + np.multiply(largest, math.sqrt(half)))


def normal_quantile(alpha: float) -> float:
    """Return the value that a standard normal variable exceeds in absolute value with probability alpha."""
    if alpha < 1e-9:  # 1 - alpha/2 would be rounded, and 1 in the end
        return -NormalDist().inv_cdf(max(alpha / 2, 5e-324))
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
