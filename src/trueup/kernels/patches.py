"""Score rows through a list of patches, and sum the cells in which patches are searched.

A patch shifts the rows of one group whose score, after the patches before it, lies in one cell.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trueup.kernels._jit import jit
from trueup.kernels.trees import logit

if TYPE_CHECKING:
    from trueup._types import FloatArray, Int32Array, IntArray


class PatchProgram(NamedTuple):
    """All inputs of the scorer, as flat arrays."""

    levels: IntArray  # how many levels a feature has; -1 for a number
    edges_at: IntArray  # where the edges of each feature begin, and where the last ones end
    edges: FloatArray
    feature: IntArray  # (patches, 2): the features of the conditions, -1 for none
    code: IntArray  # (patches, 2): the group of that feature
    low: FloatArray
    high: FloatArray
    shift: FloatArray
    on_logits: bool
    bounds: FloatArray  # lowest and highest score; infinite where there are none


def shift_scores(values: FloatArray, shift: float, bounds: FloatArray) -> FloatArray:
    """Shift scores by a patch, within bounds."""
    return np.clip(values + shift, bounds[0], bounds[1])


@jit
def to_logits(values: FloatArray) -> FloatArray:
    """Compute logits exactly as the scorer does, so that rows on the edge of a cell stay on their side."""
    out = np.empty(values.size)
    for i in range(values.size):
        out[i] = logit(values[i])
    return out


@jit
def _group(value: float, levels: int, edges: FloatArray, start: int, stop: int) -> int:
    """Return the group of a value: its code, or the number of edges at most it; the last is for missing and unseen."""
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
    """Score rows, X of shape (features, rows); rows without a patch keep their score to the last bit."""
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
            out[i] = 1.0 / (1.0 + math.exp(-value))
        else:
            out[i] = value


@jit
def tally(
    groups: Int32Array, rows: IntArray, level: Int32Array, levels: int, weight: FloatArray, residual: FloatArray,
    square: FloatArray, null: FloatArray, out: FloatArray,
) -> None:  # fmt: skip
    """Add weights, residuals, their squares and their variances to cells (cells, 4), in the order of the rows.

    ``groups`` (sets of columns, all rows) is the group of each row in each set, -1 for none; the arrays after ``rows`` are
    of those rows alone.
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
    """Find the shift of logits that gives a mean probability between 0 and 1: Newton steps, or bisection."""
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
        if gap > 0.0:
            high = shift
        else:
            low = shift
        step = shift - gap * total / slope if slope > 0.0 else low - 1.0
        if not low < step < high:
            step = (low + high) / 2
        if abs(step - shift) <= 1e-14 * (1.0 + abs(shift)):
            shift = step
            break
        shift = step
    return shift
