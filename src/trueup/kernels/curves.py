"""Evaluate curves of the score, per group of rows: lines, logistic curves, knots and steps.

A row is evaluated by the pooled curve and, if it has a group, by the curve of its group; the result lies between the two,
by the share of the group. Several classes are evaluated one by one and normalised to sum to 1.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from trueup.kernels._jit import jit
from trueup.kernels.sorting import lower_bound, lower_bounds
from trueup.kernels.trees import MIN_PROBABILITY, expit

if TYPE_CHECKING:
    from trueup._types import FloatArray, Int32Array, IntArray


LINE, LOGIT, SOFTMAX, KNOTS, STEPS = 0, 1, 2, 3, 4
ROWS = 256  # scores that are searched together
FEW = 16  # fewer scores are not vectorised


@jit
def _from(x: FloatArray, value: FloatArray, low: int, high: int, right: int, p: float) -> float:
    """Interpolate knots, given the first knot that is not below the score."""
    if right == high:
        return float(value[high - 1])
    if right == low or x[right] == p:
        return float(value[right])
    left = right - 1
    share = (p - x[left]) / (x[right] - x[left])
    # Rounding may carry a share just below 1 past the value on the right.
    return float(min(value[left] + share * (value[right] - value[left]), value[right]))


@jit
def _read(
    form: int, coefficient: FloatArray, at: IntArray, x: FloatArray, value: FloatArray, curve: int, p: float
) -> float:
    """Evaluate one curve at one score."""
    low, high = at[curve], at[curve + 1]
    if form == KNOTS:
        return _from(x, value, low, high, lower_bound(x, low, high, p), p)
    if form == STEPS:
        return float(value[min(lower_bound(x, low, high, p), high - 1)])
    a, b, c = coefficient[curve, 0], coefficient[curve, 1], coefficient[curve, 2]
    if form == LINE:
        return float(a * p + c)
    p = min(max(p, MIN_PROBABILITY), 1.0 - MIN_PROBABILITY)
    return expit(a * math.log(p) - b * math.log1p(-p) + c)


@jit
def _softmax(factor: float, P: FloatArray, out: FloatArray) -> None:
    """Raise the probabilities of classes to a power and normalise them."""
    top = P[0]
    for c in range(1, len(P)):
        top = max(top, P[c])
    highest = math.log(max(top, MIN_PROBABILITY))
    total = 0.0
    for c in range(len(P)):
        out[c] = math.exp(factor * (math.log(max(P[c], MIN_PROBABILITY)) - highest))
        total += out[c]
    for c in range(len(P)):
        out[c] /= total


@jit
def _row(
    form: int, coefficient: FloatArray, at: IntArray, x: FloatArray, value: FloatArray, groups: int, group: int,
    P: FloatArray, out: FloatArray,
) -> None:  # fmt: skip
    """Evaluate one row by the curves of one group; curves are ordered by class, then by group."""
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
def count_below(x: FloatArray, p: FloatArray, place: Int32Array) -> None:
    """Count the knots below each of many scores."""
    for start in range(0, len(p), ROWS):
        lower_bounds(x, p[start : start + ROWS], place[start : start + ROWS])


@jit
def _column(
    form: int, coefficient: FloatArray, at: IntArray, x: FloatArray, value: FloatArray, p: FloatArray, out: FloatArray
) -> None:
    """Evaluate one curve at many scores."""
    if form < KNOTS or len(p) < FEW:
        for i in range(len(p)):
            out[i] = _read(form, coefficient, at, x, value, 0, p[i])
        return
    place = np.empty(ROWS, np.int32)
    for start in range(0, len(p), ROWS):
        some = p[start : start + ROWS]
        lower_bounds(x, some, place)
        for i in range(len(some)):
            out[start + i] = (
                value[min(place[i], len(x) - 1)] if form == STEPS else _from(x, value, 0, len(x), place[i], some[i])
            )


@jit
def read_rows(
    form: int, coefficient: FloatArray, at: IntArray, x: FloatArray, value: FloatArray, groups: int, group: Int32Array,
    share: FloatArray, P: FloatArray, out: FloatArray,
) -> None:  # fmt: skip
    """Evaluate rows: P (rows, outputs); ``group`` is empty if there are no groups, and 0 for a row without one."""
    if P.shape[1] == 1 and len(group) == 0:  # the common case, by a faster way to the same numbers
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
def interpolate(x: FloatArray, value: FloatArray, p: FloatArray, out: FloatArray) -> None:
    """Interpolate one set of knots at many scores."""
    _column(KNOTS, np.empty((0, 3)), np.array([0, len(x)]), x, value, p, out)
