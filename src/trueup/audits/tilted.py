"""P-values of a witness: how likely a sum of weighted residuals is under calibration, with few rows and rare outcomes too.

For outcomes of 0 and 1 calibration says how the sum is spread, to the last cumulant; so its tail is found by tilting the
outcomes until the sum is what it was observed to be (Lugannani & Rice 1980), with half a jump taken off since such sums
jump (Daniels 1987, section 6, his second correction). For a real outcome nothing is known but the rows: Student's t, with
no more degrees of freedom than rows that carry the error, corrected for their skewness where that hides large rows.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from trueup._types import FloatArray


FLAT = 1e-3  # of a standard deviation: so near its mean, a saddlepoint is all rounding
STEPS = 200
CLOSE = 1e-12
LARGEST = 600.0  # exponents beyond this are as good as infinite


class Mean(NamedTuple):
    """A weighted mean, its standard error, and how many rows carry that error."""

    value: float
    error: float
    carried: float


def sum_tail(c: FloatArray, p: FloatArray, total: float) -> float:
    """Give the chance that ``sum c (Y - p)`` reaches a total, for independent Y of 0 and 1 with probabilities p.

    For soft outcomes, Y in [0, 1] of mean p, the sum is spread no wider.

    Parameters
    ----------
    c : ndarray
        Weight times shift of each row.
    p : ndarray
    total : float

    Examples
    --------
    >>> exact = 1 - 0.98**50 - 50 * 0.02 * 0.98**49 - 1225 * 0.02**2 * 0.98**48  # three events or more where one is due
    >>> round(exact, 4), round(sum_tail(np.ones(50), np.full(50, 0.02), 3 - 50 * 0.02), 4)
    (0.0784, 0.0791)
    """
    from scipy.special import ndtr

    moves = (c != 0) & (p > 0) & (p < 1)
    c, p = c[moves], p[moves]
    v = float((c**2 * p * (1 - p)).sum())
    if v <= 0:
        return 0.0 if total > 0 else 1.0
    unit = math.sqrt(v)
    c, x = c / unit, total / unit
    jump = float((np.abs(c) ** 3 * p * (1 - p)).sum())  # the mean size of a jump, by what each adds to the variance
    x -= jump / 2
    if x == 0:
        return 0.5
    if x >= float(np.where(c > 0, c * (1 - p), -c * p).sum()) * (1 - CLOSE):
        return 0.0  # only predictions of 0 or 1 that were wrong can take it so far
    if x <= float(np.where(c > 0, -c * p, c * (1 - p)).sum()) * (1 - CLOSE):
        return 1.0
    s, height, spread = _tilt(c, p, x)
    r = math.copysign(math.sqrt(max(0.0, 2 * (s * x - height))), s)
    tail = float(ndtr(-r))
    if abs(r) < FLAT:
        return tail
    half = min(abs(s) * jump / 2, LARGEST)
    u = math.copysign(2 * math.sinh(half) / jump * math.sqrt(spread), s)
    density = math.exp(-r * r / 2) / math.sqrt(2 * math.pi)
    return min(1.0, max(0.0, tail + density * (1 / u - 1 / r)))


def _tilt(c: FloatArray, p: FloatArray, x: float) -> tuple[float, float, float]:
    """Find the tilt s under which the sum has mean x; give also the cumulant function and the variance there."""
    odds, none = np.log(p) - np.log1p(-p), np.log1p(-p)

    def at(s: float) -> FloatArray:
        with np.errstate(over="ignore"):
            tilted: FloatArray = 1 / (1 + np.exp(-(odds + s * c)))
        return tilted

    low, high, s = (0.0, math.inf, x) if x > 0 else (-math.inf, 0.0, x)  # without a tilt the mean is 0
    for _ in range(STEPS):
        q = at(s)
        gap = float((c * (q - p)).sum()) - x
        low, high = (s, high) if gap < 0 else (low, s)
        if abs(gap) <= CLOSE * max(1.0, abs(x)) or high - low <= CLOSE * abs(s):
            break
        slope = float((c**2 * q * (1 - q)).sum())
        step = s - gap / slope if slope > 0 else math.nan
        if not low < step < high:  # a step too far: halve the bracket, or widen it
            step = (low + high) / 2 if math.isfinite(low + high) else 2 * s
        s = step
    q = at(s)
    height = float((none + np.logaddexp(0.0, odds + s * c) - s * c * p).sum())
    return s, height, float((c**2 * q * (1 - q)).sum())


def mean_of(values: FloatArray, w: FloatArray) -> Mean:
    """Give a weighted mean with its standard error; weights are importance weights.

    The rows that carry the error number ``(sum u^2)^2 / sum u^4`` of the weighted deviations u, and no more than the
    effective number of rows: a handful of rare events or heavy rows count as a handful.

    Examples
    --------
    >>> mean_of(np.array([1.0, 3.0, 1.0, 3.0]), np.ones(4))  # the error is sqrt(4 / 3) / sqrt(4)
    Mean(value=2.0, error=0.5773502691896257, carried=4.0)
    """
    total = float(w.sum())
    value = float((w * values).sum()) / total
    u = w * (values - value)
    largest = float(np.abs(u).max(initial=0.0))
    rows = total**2 / float((w**2).sum())
    if largest == 0:
        return Mean(value, 0.0, rows)
    squares, fourth = float(((u / largest) ** 2).sum()), float(((u / largest) ** 4).sum())
    carried = min(rows, squares**2 / fourth)
    error = largest * math.sqrt(squares) / total
    return Mean(value, error * math.sqrt(carried / (carried - 1)) if carried > 1 else math.inf, carried)


def mean_tail(values: FloatArray, w: FloatArray) -> float:
    """Give the one-sided p-value of a weighted mean against 0, for values of any distribution.

    Where the values have a long tail below, large rows that would pull the mean down are missing from most samples; then
    the statistic is bent by the cubic of Hall (1992), which takes their skewness into account. A long tail above makes
    Student's test too careful already, and is left alone.

    Examples
    --------
    >>> round(mean_tail(np.array([1.0, 3.0, 1.0, 3.0]), np.ones(4)), 4)  # t = 3.464 with 3 degrees of freedom
    0.0203
    """
    from scipy.special import stdtr

    mean = mean_of(values, w)
    if mean.error == 0 or not math.isfinite(mean.error):
        return 0.0 if mean.error == 0 and mean.value > 0 else 1.0
    t = mean.value / mean.error
    if t > 0:
        u = w * (values - mean.value)
        u = u / np.abs(u).max()
        skew = min(0.0, float((u**3).sum() / (u**2).sum() ** 1.5))  # of the sum, not of a row
        t = t + skew * t**2 / 3 + skew**2 * t**3 / 27 + skew / 6
    return float(stdtr(max(mean.carried - 1, 0.1), -t))
