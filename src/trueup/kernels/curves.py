"""Evaluate curves of the score, per group of rows (lines, logistic curves, knots and steps), linear logits, and patches.

The result for a row is pooled(p) or, if the row has a group, pooled(p) + share (own(p) - pooled(p)), with the curve and the
share of its group. Several classes are evaluated one by one and normalised to sum to 1. Logarithms are those of
probabilities that keep the distances ``floors`` from 0 and 1.

A patch shifts the scores of one group that lie in one interval after all earlier patches; all others stay bitwise equal.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trueup.kernels._jit import answer, jit, run
from trueup.kernels.sorting import lower_bound, lower_bounds
from trueup.kernels.trees import expit, logit

if TYPE_CHECKING:
    from trueup._types import FloatArray, Int32Array, IntArray


LINE, BOUNDED, LOGIT, SOFTMAX, KNOTS, STEPS = 0, 1, 2, 3, 4, 5  # KNOTS and STEPS last: they need a search
ROWS = 256  # scores that are searched together
FEW = 16  # fewer scores are not vectorised
MAX_EXPONENT = 709.782712893384  # the exponential of a larger number is infinite


@jit
def _from(x: FloatArray, value: FloatArray, low: int, high: int, right: int, p: float) -> float:
    """Interpolate ``value`` at score ``p`` between the knots x[low:high]; ``right`` is the first with x >= p, or high."""
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
    form: int,
    coefficient: FloatArray,
    at: IntArray,
    x: FloatArray,
    value: FloatArray,
    floors: FloatArray,
    curve: int,
    p: float,
) -> float:
    """Return curve ``curve`` of a form (LINE to STEPS) at score p; its knots, if any, are at[curve]:at[curve + 1]."""
    if form >= KNOTS:
        low, high = at[curve], at[curve + 1]
        place = lower_bound(x, low, high, p)
        return _from(x, value, low, high, place, p) if form == KNOTS else float(value[min(place, high - 1)])
    a, b, c = coefficient[curve, 0], coefficient[curve, 1], coefficient[curve, 2]
    if form == LINE:
        return float(a * p + c)
    if form == BOUNDED:
        return float(min(max(a * p + c, 0.0), 1.0))
    p = min(max(p, floors[0]), 1.0 - floors[1])
    return expit(a * math.log(p) - b * math.log1p(-p) + c)


@jit
def _softmax(factor: float, smallest: float, P: FloatArray, out: FloatArray) -> None:
    """Write to ``out`` the class probabilities P, at least ``smallest``, to the power ``factor``, normalised to 1."""
    top = P[0]
    for c in range(1, len(P)):
        top = max(top, P[c])
    highest = math.log(max(top, smallest))
    total = 0.0
    for c in range(len(P)):
        out[c] = math.exp(factor * (math.log(max(P[c], smallest)) - highest))
        total += out[c]
    for c in range(len(P)):
        out[c] /= total


@jit
def _row(
    form: int, coefficient: FloatArray, at: IntArray, x: FloatArray, value: FloatArray, floors: FloatArray, groups: int,
    group: int, P: FloatArray, out: FloatArray,
) -> None:  # fmt: skip
    """Write to ``out`` the curves of ``group`` at the class scores P of one row; class c has curve c * groups + group."""
    if form == SOFTMAX:
        _softmax(coefficient[group, 0], floors[0], P, out)
        return
    outputs = len(P)
    total = 0.0
    given = 0.0
    for c in range(outputs):
        out[c] = _read(form, coefficient, at, x, value, floors, c * groups + group, P[c])
        total += out[c]
        given += P[c]
    if outputs > 1:
        for c in range(outputs):
            out[c] = out[c] / total if total > 0 else P[c] / given


@jit
def count_below(x: FloatArray, p: FloatArray, place: Int32Array) -> None:
    """Write to ``place[i]`` the number of values in the ascending ``x`` that are below ``p[i]``."""
    for start in range(0, len(p), ROWS):
        lower_bounds(x, p[start : start + ROWS], place[start : start + ROWS])


@jit
def _column(
    form: int, coefficient: FloatArray, at: IntArray, x: FloatArray, value: FloatArray, floors: FloatArray, p: FloatArray,
    out: FloatArray,
) -> None:  # fmt: skip
    """Write to ``out`` curve number 0, the only one, at each of the scores ``p``; other arguments as for `_read`."""
    if form < KNOTS or len(p) < FEW:
        for i in range(len(p)):
            out[i] = _read(form, coefficient, at, x, value, floors, 0, p[i])
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
    form: int, coefficient: FloatArray, at: IntArray, x: FloatArray, value: FloatArray, floors: FloatArray, groups: int,
    group: Int32Array, share: FloatArray, P: FloatArray, out: FloatArray,
) -> None:  # fmt: skip
    """Write to ``out`` the curves at P (rows, outputs), see the module; ``group`` is empty, or 0 if a row has no group."""
    if P.shape[1] == 1 and len(group) == 0:  # the common case, by a faster way to the same numbers
        _column(form, coefficient, at, x, value, floors, P[:, 0], out[:, 0])
        return
    own = np.empty(P.shape[1])
    for i in range(len(P)):
        _row(form, coefficient, at, x, value, floors, groups, 0, P[i], out[i])
        if len(group) == 0 or group[i] == 0:
            continue
        nearer = share[group[i]]
        _row(form, coefficient, at, x, value, floors, groups, group[i], P[i], own)
        for c in range(len(own)):
            whole = out[i, c]
            mixed = whole + nearer * (own[c] - whole) if nearer < 1 else own[c]
            out[i, c] = min(max(mixed, min(whole, own[c])), max(whole, own[c]))


@jit
def interpolate(x: FloatArray, value: FloatArray, p: FloatArray, out: FloatArray) -> None:
    """Write to ``out`` the linear interpolation of the knots (``x``, ``value``) at many scores ``p``."""
    _column(KNOTS, np.empty((0, 3)), np.array([0, len(x)]), x, value, np.zeros(2), p, out)


@jit
def add_effects(
    slope: float, intercept: float, levels: IntArray, at: IntArray, effects: FloatArray, ranges: FloatArray,
    floors: FloatArray, X: FloatArray, P: FloatArray, out: FloatArray,
) -> None:  # fmt: skip
    """Write to ``out`` the probabilities with the logits ``slope logit(P) + intercept`` plus effects of X (features, rows).

    ``levels`` has the number of levels of each feature, -1 for numbers, ``at`` the start of its effects: one per level (of
    numbers one, per unit from the centre), then that of missing values. ``ranges`` has centre, lowest and highest value.
    """
    for i in range(P.size):
        p = min(max(P[i], floors[0]), 1.0 - floors[1])
        value = slope * (math.log(p) - math.log1p(-p)) + intercept
        for j in range(levels.size):
            x = X[j, i]
            if levels[j] >= 0:
                value += effects[at[j] + (int(x) if 0 <= x < levels[j] else levels[j])]
            elif math.isnan(x):
                value += effects[at[j] + 1]
            else:
                value += effects[at[j]] * (min(max(x, ranges[j, 1]), ranges[j, 2]) - ranges[j, 0])
        out[i] = expit(value)


class PatchProgram(NamedTuple):
    """A list of patches as flat arrays: all arguments of `score` before X."""

    levels: IntArray  # the number of levels of each feature; -1 if it is numeric
    edges_at: IntArray  # the start of the edges of each feature, and the end of the last ones
    edges: FloatArray
    feature: IntArray  # (patches, 2): the features of the conditions, -1 for none
    code: IntArray  # (patches, 2): the group of that feature
    low: FloatArray
    high: FloatArray
    shift: FloatArray
    on_logits: bool
    bounds: FloatArray  # lowest and highest score; infinite where there are none

    def score(self, X: FloatArray, P: FloatArray, out: FloatArray, rows: int) -> None:
        """Write to ``out`` the scores P of rows with features X after all patches, see `score`; of ``rows`` rows in all.

        A few rows are scored uncompiled until the scorer is compiled.
        """
        answer(score, rows * (10.0 + 5 * len(self.levels) + 2 * len(self.shift)), *self, X, P, out)


def shift_scores(values: FloatArray, shift: float, bounds: FloatArray) -> FloatArray:
    """Return ``values + shift``, clipped to the two ``bounds``."""
    return np.clip(values + shift, bounds[0], bounds[1])


def to_logits(values: FloatArray) -> FloatArray:
    """Compute logits exactly as `score` does, so that rounding moves no score over the edge of a patch's interval."""
    return np.asarray(run(_to_logits, 3 * values.size, values))


@jit
def _to_logits(values: FloatArray) -> FloatArray:
    """Return the logit of every value."""
    out = np.empty(values.size)
    for i in range(values.size):
        out[i] = logit(values[i])
    return out


@jit
def _group(value: float, levels: int, edges: FloatArray, start: int, stop: int) -> int:
    """Return the group of a category (its code) or number (how many of edges[start:stop] are <= it); missing is last."""
    if levels >= 0:
        return int(value) if 0 <= value < levels else levels
    if math.isnan(value):
        return stop - start + 1
    low, high = start, stop
    while low < high:
        middle = (low + high) // 2
        if value >= edges[middle]:
            low = middle + 1
        else:
            high = middle
    return low - start


@jit
def score(
    levels: IntArray, edges_at: IntArray, edges: FloatArray, feature: IntArray, code: IntArray, low: FloatArray,
    high: FloatArray, shift: FloatArray, on_logits: bool, bounds: FloatArray,  # noqa: FBT001  (a kernel takes no names)
    X: FloatArray, P: FloatArray, out: FloatArray,
) -> None:  # fmt: skip
    """Write to ``out`` the scores P, of rows with features X (features, rows), after all patches of a `PatchProgram`."""
    own = np.empty(levels.size, np.int64)
    for i in range(P.size):
        for j in range(levels.size):
            own[j] = _group(X[j, i], levels[j], edges, edges_at[j], edges_at[j + 1])
        value = logit(P[i]) if on_logits else P[i]
        touched = False
        for k in range(shift.size):
            a, b = feature[k, 0], feature[k, 1]
            if (a >= 0 and own[a] != code[k, 0]) or (b >= 0 and own[b] != code[k, 1]):
                continue
            if low[k] <= value < high[k]:
                value = min(max(value + shift[k], bounds[0]), bounds[1])
                touched = True
        if not touched:
            out[i] = P[i]
        elif on_logits:
            out[i] = 1.0 / (1.0 + math.exp(-value)) if value > -MAX_EXPONENT else 0.0
        else:
            out[i] = value


@jit
def tally(
    groups: Int32Array, rows: IntArray, level: Int32Array, levels: int, weight: FloatArray, residual: FloatArray,
    square: FloatArray, null: FloatArray, out: FloatArray,
) -> None:  # fmt: skip
    """Add weight, residual, squared residual and variance under calibration of each row to ``out[group * levels + level]``.

    ``groups`` (sets of columns, all rows) is the group of each row by each set of columns, -1 for none. ``rows`` are the
    rows to add; the other arrays have one entry for each of them, and ``null`` is the variance.
    """
    for s in range(groups.shape[0]):
        for i in range(rows.size):
            group = groups[s, rows[i]]
            if group >= 0:
                cell = group * levels + level[i]
                out[cell, 0] += weight[i]
                out[cell, 1] += residual[i]
                out[cell, 2] += square[i]
                out[cell, 3] += null[i]


@jit
def find_shift(F: FloatArray, weight: FloatArray, target: float) -> float:
    """Return the shift of the logits F for a weighted mean probability of ``target``, by Newton's method and bisection."""
    total, least, most = 0.0, np.inf, -np.inf
    for i in range(F.size):
        total += weight[i]
        least, most = min(least, F[i]), max(most, F[i])
    aim = math.log(target) - math.log1p(-target)
    low, high = aim - most, aim - least
    shift = min(max(0.0, low), high)
    for _ in range(100):
        mean, slope = 0.0, 0.0
        for i in range(F.size):
            p = 1.0 / (1.0 + math.exp(-(F[i] + shift)))
            mean += weight[i] * p
            slope += weight[i] * p * (1.0 - p)
        gap = mean / total - target
        if gap == 0.0:
            break
        low, high = (low, shift) if gap > 0.0 else (shift, high)
        step = shift - gap * total / slope if slope > 0.0 else low - 1.0
        if not low < step < high:
            step = (low + high) / 2
        done = abs(step - shift) <= 1e-14 * (1.0 + abs(shift))
        shift = step
        if done:
            break
    return shift


@jit
def _write_logits(P: FloatArray, smallest: float, factor: float, mixture: float, z: FloatArray) -> None:
    """Write to ``z`` the logits of the probabilities P of a row, as for `scale_logits`."""
    classes, mean, top = len(z), 0.0, -np.inf
    for c in range(classes):
        z[c] = math.log(max(P[c], smallest))
        mean += z[c]
        top = max(top, z[c])
    if factor == 0:
        mean /= classes
        for c in range(classes):
            z[c] -= mean
        return
    total = 0.0
    for c in range(classes):
        z[c] = math.exp(factor * (z[c] - top))
        total += z[c]
    for c in range(classes):
        z[c] = math.log((1 - mixture) * z[c] / total + mixture / classes)


@jit
def scale_logits(
    scale: FloatArray, intercept: FloatArray, left: FloatArray, right: FloatArray, smallest: float, factor: float,
    mixture: float, P: FloatArray, out: FloatArray,
) -> None:  # fmt: skip
    """Write to ``out`` the softmax of ``scale z + left (right' z) + intercept``.

    z are the logarithms of ``(1 - mixture) softmax(factor ln P) + mixture / classes``; with a factor of 0 they are ln P
    less its mean over the classes. P (rows, classes) has the probabilities, of which those below ``smallest`` are raised to
    it; left and right have shape (classes, rank).
    """
    classes, rank = left.shape
    z, inner = np.empty(classes), np.empty(rank)
    for i in range(len(P)):
        _write_logits(P[i], smallest, factor, mixture, z)
        inner[:] = 0.0
        for c in range(classes):
            for r in range(rank):
                inner[r] += right[c, r] * z[c]
        top = -np.inf
        for c in range(classes):
            value = scale[c] * z[c] + intercept[c]
            for r in range(rank):
                value += left[c, r] * inner[r]
            out[i, c] = value
            top = max(top, value)
        total = 0.0
        for c in range(classes):
            out[i, c] = math.exp(out[i, c] - top)
            total += out[i, c]
        for c in range(classes):
            out[i, c] /= total
