"""Read curves of the score: lines, logistic curves, knots and steps, of each row's group, in one compiled call.

A row is read by the curve of the whole and, where it has a group, by the curve of its group; the answer lies between the
two, nearer to its own by the share of the group. Several classes are read one by one and made to add up to 1.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numba import uint64

from trueup.kernels._jit import jit
from trueup.kernels.cascade import SMALLEST

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int32]
    Longs = NDArray[np.int64]

__all__ = ["KNOTS", "LINE", "LOGIT", "SOFTMAX", "STEPS", "find_places", "interpolate", "read_rows"]

LINE, LOGIT, SOFTMAX, KNOTS, STEPS = 0, 1, 2, 3, 4
ROWS = 256  # scores that are looked up together
FEW = 16  # scores that are not worth the detour of going together


@jit
def _count_below(x: Floats, low: int, high: int, p: float) -> int:
    """Give the first place between low and high where x is not below p; high where it is everywhere."""
    first, left = low, high - low
    while left > 0:  # without a branch: the step is the same, whichever side p lies on
        half = (left + 1) >> 1
        first += half if x[uint64(first + half - 1)] < p else 0
        left -= half
    return first


@jit
def _between(x: Floats, value: Floats, low: int, high: int, p: float) -> float:
    """Read knots: their values, straight lines between them, and the value at the nearer end outside."""
    return _from(x, value, low, high, _count_below(x, low, high, p), p)


@jit
def _from(x: Floats, value: Floats, low: int, high: int, right: int, p: float) -> float:
    """Read knots where the first that is not below the score is known."""
    if right == high:
        return float(value[high - 1])
    if right == low or x[right] == p:
        return float(value[right])
    left = right - 1
    share = (p - x[left]) / (x[right] - x[left])
    # Rounding may carry a share just below 1 past the value on the right.
    return float(min(value[left] + share * (value[right] - value[left]), value[right]))


@jit
def _expit(f: float) -> float:
    e = math.exp(-abs(f))
    return 1.0 / (1.0 + e) if f >= 0 else e / (1.0 + e)


@jit
def _read(form: int, coefficient: Floats, at: Longs, x: Floats, value: Floats, curve: int, p: float) -> float:
    """Read one curve at one score."""
    if form == KNOTS:
        return _between(x, value, at[curve], at[curve + 1], p)
    if form == STEPS:
        return float(value[min(_count_below(x, at[curve], at[curve + 1], p), at[curve + 1] - 1)])
    a, b, c = coefficient[curve, 0], coefficient[curve, 1], coefficient[curve, 2]
    if form == LINE:
        return float(a * p + c)
    p = min(max(p, SMALLEST), 1.0 - SMALLEST)
    return _expit(a * math.log(p) - b * math.log1p(-p) + c)


@jit
def _softmax(factor: float, P: Floats, out: Floats) -> None:
    """Make the probabilities of classes sharper or flatter: the powers of all of them, made to add up to 1."""
    top = P[0]
    for c in range(1, len(P)):
        top = max(top, P[c])
    highest = math.log(max(top, SMALLEST))
    total = 0.0
    for c in range(len(P)):
        out[c] = math.exp(factor * (math.log(max(P[c], SMALLEST)) - highest))
        total += out[c]
    for c in range(len(P)):
        out[c] /= total


@jit
def _row(
    form: int, coefficient: Floats, at: Longs, x: Floats, value: Floats, groups: int, group: int, P: Floats, out: Floats
) -> None:
    """Read one row by the curves of one group; curves are in the order of classes, and of groups within a class."""
    if form == SOFTMAX:
        _softmax(coefficient[group, 0], P, out)
        return
    outputs = len(P)
    total = 0.0
    given = 0.0
    for c in range(outputs):
        out[c] = _read(form, coefficient, at, x, value, c * groups + group, P[c])
        total += out[c]
        given += P[c]
    if outputs > 1:
        for c in range(outputs):
            out[c] = out[c] / total if total > 0 else P[c] / given


@jit
def _places(x: Floats, p: Floats, place: Ints) -> None:
    """Count the knots below each score: each step of the search is the same for all, so that several go together."""
    place[: len(p)] = 0
    left = len(x)
    while left > 0:
        half = (left + 1) >> 1
        for i in range(len(p)):
            place[i] += half if x[uint64(place[i] + half - 1)] < p[i] else 0
        left -= half


@jit
def find_places(x: Floats, p: Floats, place: Ints) -> None:
    """Count the knots below each of many scores."""
    for start in range(0, len(p), ROWS):
        _places(x, p[start : start + ROWS], place[start : start + ROWS])


@jit
def _column(form: int, coefficient: Floats, at: Longs, x: Floats, value: Floats, p: Floats, out: Floats) -> None:
    """Read one curve at many scores."""
    if form < KNOTS or len(p) < FEW:
        for i in range(len(p)):
            out[i] = _read(form, coefficient, at, x, value, 0, p[i])
        return
    place = np.empty(ROWS, np.int32)
    for start in range(0, len(p), ROWS):
        some = p[start : start + ROWS]
        _places(x, some, place)
        for i in range(len(some)):
            out[start + i] = (
                value[min(place[i], len(x) - 1)] if form == STEPS else _from(x, value, 0, len(x), place[i], some[i])
            )


@jit
def read_rows(
    form: int, coefficient: Floats, at: Longs, x: Floats, value: Floats, groups: int, group: Ints, share: Floats,
    P: Floats, out: Floats,
) -> None:  # fmt: skip
    """Read rows: P (rows, outputs); ``group`` is empty where there are none, and 0 for a row of no group of its own."""
    if P.shape[1] == 1 and len(group) == 0:  # the usual case, by a shorter way to the same numbers
        _column(form, coefficient, at, x, value, P[:, 0], out[:, 0])
        return
    own = np.empty(P.shape[1])
    for i in range(len(P)):
        _row(form, coefficient, at, x, value, groups, 0, P[i], out[i])
        if len(group) == 0 or group[i] == 0:
            continue
        nearer = share[group[i]]
        _row(form, coefficient, at, x, value, groups, group[i], P[i], own)
        for c in range(len(own)):
            whole = out[i, c]
            mixed = whole + nearer * (own[c] - whole) if nearer < 1 else own[c]
            out[i, c] = min(max(mixed, min(whole, own[c])), max(whole, own[c]))


@jit
def interpolate(x: Floats, value: Floats, p: Floats, out: Floats) -> None:
    """Read one set of knots at many scores."""
    _column(KNOTS, np.empty((0, 3)), np.array([0, len(x)]), x, value, p, out)
