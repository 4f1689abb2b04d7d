"""P-values of segments, from the tail of the range of cumulative differences; values far below 1e-16 are accurate."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from trueup.kernels._jit import jit
from trueup.kernels.tally import CUM, EXPECTED, FOURTHS, HIGH, LOW, RISE, SKEW, SQUARES, VARIANCE, WEIGHT, WEIGHT2

if TYPE_CHECKING:
    from trueup._types import FloatArray, IntArray


SQRT_HALF = math.sqrt(0.5)
SYMMETRIC = 1e-9  # a skewness below this is rounding: its sign would depend on the order of the rows
FINDINGS = (
    "weight", "observed", "expected", "ratio", "ratio_low", "ratio_high", "bias", "ecce", "sigma", "mde", "p_value",
    "size",
)  # fmt: skip
OUT_WEIGHT, OUT_OBSERVED, OUT_EXPECTED, OUT_RATIO, OUT_RATIO_LOW, OUT_RATIO_HIGH = range(6)  # rows, as in FINDINGS
OUT_BIAS, OUT_ECCE, OUT_SIGMA, OUT_MDE, OUT_P_VALUE, OUT_SIZE = range(6, 12)


@jit
def _alternating(x: float, step: int) -> float:
    """Return Q(x) - 2 Q(2x) + 3 Q(3x) - ... if ``step`` is 1, Q(x) - Q(3x) + Q(5x) - ... if 2; Q is the normal tail."""
    total, sign = 0.0, 1.0
    for n in range(1, 60 * step, step):
        term = (n if step == 1 else 1.0) * 0.5 * math.erfc(n * x * SQRT_HALF)
        total += sign * term
        if term < 1e-17 * total:
            break
        sign = -sign
    return total


@jit
def range_tail(x: float) -> float:
    """Return F(x) = P(range of Brownian motion on [0, 1] > x) = 8 sum_{k>=1} (-1)^(k-1) k Q(kx) (Feller 1951)."""
    # Below 0.3 the complement is below 1e-22 (and NaN does not reject).
    return min(1.0, 8.0 * _alternating(x, 1)) if x >= 0.3 else 1.0


@jit
def mad_tail(x: float) -> float:
    """Return P(largest absolute value of Brownian motion on [0, 1] > x) = 4 sum_{k>=0} (-1)^k Q((2k+1)x)."""
    return min(1.0, 4.0 * _alternating(x, 2)) if x >= 0.15 else 1.0


@jit
def signed_root(x: float, v: float, b: float) -> float:
    """Return the normal deviate r as unlikely as the value ``x`` of a sum of variance ``v`` with jumps of size ``b``.

    r^2 = 2 (v/b^2) ((1+u) ln(1+u) - u) with u = b x / v: twice the exponent of Bennett's inequality (1962), as if the sum
    were a Poisson count in units of b. With b = 0 it is the normal case, r = x / sqrt(v).
    """
    if v <= 0.0:
        return math.inf if x > 0.0 else 0.0
    u = b * x / v
    if u < 1e-4:
        return x / math.sqrt(v) * math.sqrt(max(0.0, 1.0 - u / 3.0 + u * u / 6.0))
    if u > 1e300:
        return math.inf
    return math.sqrt(2.0 * v * ((1.0 + u) * math.log1p(u) - u)) / b


@jit
def inflated_tail(r: float, skewed: bool) -> float:  # noqa: FBT001
    """Return F(r) of `range_tail`, times max(1, r/4) if the sum is ``skewed`` (see `refined_tail`), and at most 1."""
    tail = range_tail(r)
    if skewed and r > 4.0 and tail > 0.0:
        tail *= r / 4.0
    return min(1.0, tail)


@jit
def segment_tail(x: float, rise: float, v: float, k3: float) -> float:
    """Return the default p-value of a segment with range ``x``; rise, v, k3: see `metrics.inference.segment_pvalues`."""
    if x <= 0.0:
        return 1.0
    if v <= 0.0:
        return 0.0  # a certain prediction contradicted
    up = rise >= x * (1.0 - 1e-9)
    b = max(0.0, k3 / v if up else -k3 / v)
    if b * x < SYMMETRIC * v:
        b = 0.0
    return inflated_tail(signed_root(x, v, b), b > 0.0)


@jit
def segment_tails(span: FloatArray, rise: FloatArray, v: FloatArray, k3: FloatArray, out: FloatArray) -> None:
    """Write to ``out`` the default p-value of each segment, `segment_tail`; ``span`` has the ranges x."""
    for k in range(span.size):
        out[k] = segment_tail(span[k], rise[k], v[k], k3[k])


@jit
def detectable(v: float, k3: float, plain: float, skewed: float) -> float:
    """Return the smallest range x whose default p-value is at most a level, in the direction of the skewness ``k3``.

    ``plain`` and ``skewed`` are the deviates r at which `inflated_tail` without and with its factor equals the level.
    """
    if v <= 0.0:
        return 0.0
    b = abs(k3) / v
    flat = b * skewed / math.sqrt(v)
    if flat < SYMMETRIC:
        return plain * math.sqrt(v)
    if flat < 1e-4:  # the series that `signed_root` takes there
        return skewed * math.sqrt(v) / math.sqrt(1.0 - flat / 3.0 + flat * flat / 6.0)
    goal = 0.5 * flat * flat
    u = flat + goal / 3.0
    for _ in range(50):  # Newton on a convex function
        move = ((1.0 + u) * math.log1p(u) - u - goal) / math.log1p(u)
        u = max(u - move, u / 16.0)
        if abs(move) <= 1e-7 * u:  # Newton's next step would be its square
            break
    return max(u * v / b, plain * math.sqrt(v))


@jit
def shortfall_exponent(ratio: float) -> float:
    """Return the root a > 0 of ratio (1 - exp(-a)) = a, to three digits; ``ratio`` is above 1.

    A sum of Poisson jumps of 1, ``ratio`` times as frequent as its compensator allows, falls below its start by m with
    probability of order exp(-a m) (Lundberg 1903).
    """
    a = ratio if ratio > 3.0 else math.sqrt(12.0 * ratio - 3.0) - 3.0
    for _ in range(2):  # Newton's method on a / (1 - exp(-a)) - ratio, which is convex
        left = -math.expm1(-a)
        a -= (a / left - ratio) * left * left / (left - a * (1.0 - left))
    return a


@jit
def detectable_shift(v: float, k3: float, reach: float, per_row: float, power: float) -> float:
    """Return the shift of a sum of residuals that moves its range beyond ``reach`` with a probability of Q(-``power``).

    The sum has variance ``v`` and third cumulant ``k3`` under calibration and is shifted in the direction of its skewness,
    which raises its variance to v + b x - per_row x^2: x is the shift, b = |k3| / v and ``per_row`` sum w^2 / (sum w)^2.
    The range exceeds the sum by 2 b / a on average, a of `shortfall_exponent` at the ratio 1 + b x / v of the frequency of
    jumps, times the share of the variance v + b x that remains. The quantile of the sum is that of Cornish & Fisher (1938).
    """
    if not v > 0.0 or math.isnan(reach):
        return 0.0 * reach
    b = abs(k3) / v
    x = reach + power * math.sqrt(v)
    for _ in range(50):
        raised = max(v + (b - per_row * x) * x, 0.0)
        relative = b * x / v
        beyond = raised / x
        if relative > 1e-3:
            beyond = 2.0 * b / shortfall_exponent(1.0 + relative) * raised / (v + b * x)
        lean = (b - 2.0 * per_row * x) * (power * power - 1.0) / 6.0
        following = max(reach - beyond + power * math.sqrt(raised) - lean, 0.5 * reach)
        move = following - x
        x = following
        if abs(move) <= 1e-6 * x:
            break
    return x


@jit
def detectable_shifts(
    v: FloatArray, k3: FloatArray, reach: FloatArray, per_row: float, power: float, out: FloatArray
) -> None:  # fmt: skip
    """Write `detectable_shift` of each segment to ``out``."""
    for k in range(out.size):
        out[k] = detectable_shift(v[k], k3[k], reach[k], per_row, power)


@jit
def gamma_root(x: float, v: float, b: float) -> float:
    """Return the normal deviate r as unlikely as the value ``x`` of a gamma-distributed sum of variance ``v``.

    r^2 = 8 (v/b^2) (t - ln(1+t)) with t = b x / (2 v): twice the exponent of the Chernoff bound of a gamma distribution
    whose third cumulant is b v. Its tail is heavier than that of `signed_root`.
    """
    if v <= 0.0:
        return math.inf if x > 0.0 else 0.0
    t = 0.5 * b * x / v
    if t < 1e-4:
        return x / math.sqrt(v) * math.sqrt(max(0.0, 1.0 - 2.0 * t / 3.0))
    return math.sqrt(8.0 * v * (t - math.log1p(t))) / b


@jit
def poisson_low_root(x: float, v: float) -> float:
    """Return the deviate r of a Poisson count of variance ``v`` that falls short by ``x``: the lower side of `signed_root`.

    r^2 = 2 v ((1-u) ln(1-u) + u) with u = x/v, at most 1.
    """
    u = min(x / v, 1.0)
    if u < 1e-4:
        return x / math.sqrt(v) * math.sqrt(1.0 + u / 3.0)
    return math.sqrt(2.0 * v * ((1.0 - u) * math.log1p(-u) + u if u < 1.0 else 1.0))


@jit
def family_tail(x: float, rise: float, v: float, k3: float, counts: bool) -> float:  # noqa: FBT001
    """Return the p-value of a segment of a family with known variance; ``counts`` of a Poisson family, else amounts.

    If the minimum comes first, F(r) max(1, r/4) with r of `signed_root` for counts and of `gamma_root` for amounts; else
    F(x / sqrt(v)) and for counts the smaller of that and 4 exp(-r^2/2), r of `poisson_low_root`.
    """
    if x <= 0.0:
        return 1.0
    if v <= 0.0:
        return 0.0
    if rise >= x * (1.0 - 1e-9):
        return inflated_tail(signed_root(x, v, k3 / v) if counts else gamma_root(x, v, k3 / v), True)  # noqa: FBT003
    tail = range_tail(x / math.sqrt(v))
    if not counts:
        return tail
    r = poisson_low_root(x, v)
    return min(tail, 4.0 * math.exp(-0.5 * (r * r)))


@jit
def family_tails(
    span: FloatArray, rise: FloatArray, v: FloatArray, k3: FloatArray, counts: bool, out: FloatArray,  # noqa: FBT001
) -> None:  # fmt: skip
    """Write `family_tail` of each segment to ``out``."""
    for k in range(out.size):
        out[k] = family_tail(span[k], rise[k], v[k], k3[k], counts)


@jit
def gamma_detectable(v: FloatArray, k3: FloatArray, skewed: float, out: FloatArray) -> None:
    """Write to ``out`` the range x of each segment at which `gamma_root` is ``skewed``."""
    for k in range(out.size):
        out[k] = 0.0
        if v[k] > 0.0:
            b = k3[k] / v[k]
            goal = skewed * skewed * b * b / (8.0 * v[k])
            t = goal + math.sqrt(2.0 * goal)
            for _ in range(50):  # Newton on a convex function
                move = (t - math.log1p(t) - goal) * (1.0 + t) / t if t > 0.0 else 0.0
                t = max(t - move, t / 16.0)
                if abs(move) <= 1e-9 * t:
                    break
            out[k] = 2.0 * v[k] * t / b if t > 1e-4 else skewed * math.sqrt(v[k])


@jit
def detectable_ranges(v: FloatArray, k3: FloatArray, plain: float, skewed: float, out: FloatArray) -> None:
    """Write `detectable` of each segment to ``out``."""
    for k in range(out.size):
        out[k] = detectable(v[k], k3[k], plain, skewed)


@jit
def findings(
    rows: IntArray, sums: FloatArray, state: FloatArray, z: float, plain: float, skewed: float, power: float, start: int,
    out: FloatArray,
) -> None:  # fmt: skip
    """Write the numbers named in FINDINGS, including the p-value, of each segment with binary outcomes.

    The size is the effective number of rows, for intervals of the mean outcome (Korn & Graubard 1998).

    ``out`` has one row per number and one column per segment, here from column ``start`` on. ``rows``, ``sums`` and
    ``state`` are the arrays of a `trueup.kernels.tally.Tally`. ``z`` and ``power`` are the normal quantiles of the interval
    of the ratio and of the power of ``mde``; for ``plain`` and ``skewed`` see `detectable`.
    """
    for at in range(state.shape[0]):
        w, w2 = sums[at, WEIGHT], sums[at, WEIGHT2]
        s = state[at]
        k = start + at
        residual, expected, v, k3, rise = s[CUM], s[EXPECTED], s[VARIANCE], s[SKEW], s[RISE]
        span = s[HIGH] - s[LOW]
        noise = math.sqrt(v)
        events = expected + residual
        # Recovered from two other sums; a whole number where outcomes are 0 and 1 and weights are 1.
        whole = math.floor(events + 0.5)
        if w == w2 and abs(events - whole) <= 1e-9 * w:
            events = whole
        rate = min(max(events, 0.0), w) / w
        mean = expected / w
        size, t = w * w / w2, z
        squares = sums[at, SQUARES]
        if squares > 0.0 and 0.0 < rate < 1.0 and w2 * rows[at] > w * w * (1.0 + 1e-9):
            # The variance of a weighted rate is estimated, from about ``count`` squares of similar size: Student's t.
            count = max(squares * squares / sums[at, FOURTHS], 2.0)
            size = w * w * rate * (1.0 - rate) / squares
            t = z + (z * z * z + z) / (4.0 * (count - 1.0))
        middle = rate + t * t / (2.0 * size)
        half = t * math.sqrt(rate * (1.0 - rate) / size + t * t / (4.0 * size * size))
        shrink = 1.0 + t * t / size
        out[OUT_WEIGHT, k], out[OUT_OBSERVED, k], out[OUT_EXPECTED, k], out[OUT_RATIO, k] = w, rate, mean, rate / mean
        # Rates of 0 and 1 are an end of their interval; the formula would miss it by rounding.
        out[OUT_RATIO_LOW, k] = (max(middle - half, 0.0) / shrink if rate > 0.0 else 0.0) / mean
        out[OUT_RATIO_HIGH, k] = (min((middle + half) / shrink, 1.0) if rate < 1.0 else 1.0) / mean
        out[OUT_BIAS, k], out[OUT_ECCE, k] = residual / w, span / w
        out[OUT_SIGMA, k] = span / noise if span > 0.0 else (0.0 if w > 0.0 else math.nan)
        out[OUT_MDE, k] = detectable_shift(v, k3, detectable(v, k3, plain, skewed), w2 / (w * w), power) / w
        out[OUT_P_VALUE, k] = segment_tail(span, rise, v, k3)
        out[OUT_SIZE, k] = size * (z / t) * (z / t)


@jit
def _deviance_limit(rate: float, size: float, z: float, upper: bool) -> float:  # noqa: FBT001
    """Return the mean q above (``upper``) or below ``rate`` at which the deviance of ``size`` outcomes is z^2.

    The deviance is 2 size (a ln(a/q) + (1-a) ln((1-a)/(1-q))) with a = ``rate``; it is convex in q: Newton's method,
    and bisection where it leaves the bracket.
    """
    if (upper and rate >= 1.0) or (not upper and rate <= 0.0):
        return rate
    goal = z * z / (2.0 * size)
    entropy = (rate * math.log(rate) if rate > 0.0 else 0.0) + (1.0 - rate) * (math.log1p(-rate) if rate < 1.0 else 0.0)
    low, high = (rate, 1.0) if upper else (0.0, rate)
    half = z * math.sqrt(max(rate * (1.0 - rate), 1.0 / size) / size)
    q = min(rate + half, 0.5 * (rate + 1.0)) if upper else max(rate - half, 0.5 * rate)
    for _ in range(60):
        excess = entropy - rate * math.log(q) - (1.0 - rate) * math.log1p(-q) - goal
        if (excess > 0.0) == upper:
            high = q
        else:
            low = q
        slope = (q - rate) / (q * (1.0 - q))
        following = q - excess / slope if slope != 0.0 else q
        if not low < following < high:
            following = 0.5 * (low + high)
        if abs(following - q) <= 1e-10 * min(q, 1.0 - q):
            break
        q = following
    return following


@jit
def rate_limits(rate: FloatArray, size: FloatArray, z: FloatArray, out: FloatArray) -> None:
    """Write lower and upper limits, the rows of ``out``, of the mean of ``size`` outcomes whose observed mean is ``rate``.

    ``z`` has normal deviates. The limits are those of the signed root of the deviance with counts moved outwards by 1/2
    to 2/3, which are slightly wider than the exact limits of Clopper & Pearson (1934), as tested for levels down to 1e-9.
    Since outcomes with different means vary less than outcomes with equal ones (Hoeffding 1956), they hold for those, too.
    """
    for k in range(rate.size):
        if math.isnan(z[k]) or not size[k] > 0.0:
            out[0, k] = out[1, k] = math.nan
            continue
        down, up = (3.0 + rate[k]) / 6.0 / size[k], (4.0 - rate[k]) / 6.0 / size[k]
        out[0, k] = _deviance_limit(max(rate[k] - down, 0.0), size[k], z[k], False)  # noqa: FBT003
        out[1, k] = _deviance_limit(min(rate[k] + up, 1.0), size[k], z[k], True)  # noqa: FBT003


@jit
def _tilt(p: FloatArray, w: FloatArray, s: float, l: float) -> tuple[float, float, float]:  # noqa: E741
    """Return the cumulant generating function of sum s w (y - p) at ``l``, and its first two derivatives.

    A row adds ln(1 - p + p e^t) - t p with t = l s w. For t > 0 the outcomes are swapped (p to 1 - p, t to -t), so that no
    exponential grows and no two large numbers are subtracted. ``w`` is empty if every weight is 1.
    """
    value = 0.0
    first = 0.0
    second = 0.0
    weighted = w.size > 0
    for i in range(p.size):
        a = s * (w[i] if weighted else 1.0)
        t = l * a
        q = p[i]
        if t > 0.0:
            t = -t
            q = 1.0 - q
            a = -a
        shrunk = math.exp(t)
        base = (1.0 - q) + q * shrunk
        if base > 0.0:
            value += (math.log1p(q * math.expm1(t)) if q < 0.5 else math.log(base)) - t * q
            tilted = q * shrunk / base
        else:  # q = 1 and nothing left of e^t: a certain row has no cumulants
            tilted = 1.0
        first += a * (tilted - q)
        second += a * a * tilted * (1.0 - tilted)
    return value, first, second


@jit
def saddlepoint(p: FloatArray, w: FloatArray, x: float, s: float) -> float:
    """Return r = sqrt(2 sup_{l>0} [l x - K(l)]), K the exact cumulant generating function of sum s w (y - p).

    K(l) = sum ln(1 - p + p e^{s l w}) - s l w p. If ``x`` is the largest possible value, the supremum is reached only in
    the limit: l stops at 60 / min w. If x is impossible, since a prediction of 0 or 1 is contradicted, r is infinite.
    """
    possible = 0.0
    for i in range(p.size):
        if 0.0 < p[i] < 1.0:
            possible += (w[i] if w.size > 0 else 1.0) * (1.0 - p[i] if s > 0.0 else p[i])
    if x > possible * (1.0 + 1e-9):
        return math.inf
    heaviest = w.max() if w.size > 0 else 1.0
    most = 60.0 / (w.min() if w.size > 0 else 1.0)
    low = 0.0
    high = most
    l = 0.0  # noqa: E741
    best = 0.0
    for _ in range(200):
        value, first, second = _tilt(p, w, s, l)
        best = max(best, l * x - value)
        if first < x:
            low = l
        else:
            high = l
        following = l + (x - first) / second if second > 0.0 else high
        if not low < following < high:
            following = 0.5 * (low + high)
        # A step of Newton's may leap far where the variance dies out: no more than doubling, past a few units.
        following = min(following, 2.0 * l + 8.0 / heaviest)
        if abs(following - l) * abs(x - first) <= 1e-13 * (1.0 + best):
            break
        l = following  # noqa: E741
    return math.sqrt(2.0 * best)


@jit
def refined_tail(
    p: FloatArray, w: FloatArray, x: float, rise: float, v: float, k3: float, design: float = 1.0
) -> float:  # fmt: skip
    """Return the p-value of a segment as in `segment_tail`, but with the exact deviate r of `saddlepoint` of its rows.

    F(r) max(1, r/4) with F = `range_tail`, in the direction of the skewness and, if that is smaller than the Brownian limit
    F(x / sqrt(v)), against it. The factor max(1, r/4) is not derived but checked by simulation (docs/statistics.md). From
    r = 40 on F underflows to 0, and r may be infinite: the p-value is set to 0, since 0 times infinity is NaN. ``w`` is
    empty if every weight is 1. With a ``design`` effect D the sum counts as one of n/D rows of D times their weight: its
    cumulant function is K(D l) / D, and so r^2 is divided by D.
    """
    s = 1.0 if rise >= x * (1.0 - 1e-9) else -1.0
    r = saddlepoint(p, w, x, s) / math.sqrt(design)
    tail = min(1.0, range_tail(r) * max(1.0, r / 4.0)) if r < 40.0 else 0.0
    return tail if s * k3 * x >= -SYMMETRIC * v * v else min(range_tail(x / math.sqrt(v * design)), tail)
