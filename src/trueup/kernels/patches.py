"""Score rows through a list of patches, and add up the cells that patches are looked for in.

A patch moves the rows of one group whose score, as the patches before it have left it, lies in one cell.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trueup.kernels._jit import jit
from trueup.kernels.cascade import SMALLEST

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int32]
    Longs = NDArray[np.int64]

__all__ = ["Program", "moved", "score", "shift_to", "tally", "to_logits"]


class Program(NamedTuple):
    """Everything the scorer reads, as flat arrays."""

    levels: Longs  # how many levels a feature has; -1 for a number
    edges_at: Longs  # where the edges of each feature begin, and where the last ones end
    edges: Floats
    feature: Longs  # (patches, 2): the features of the conditions, -1 for none
    code: Longs  # (patches, 2): the group of that feature
    low: Floats
    high: Floats
    shift: Floats
    logit: bool
    bounds: Floats  # lowest and highest score; infinite where there are none


@jit
def moved(values: Floats, shift: float, bounds: Floats) -> Floats:
    """Move scores by a patch, within bounds."""
    out = np.empty(values.size)
    for i in range(values.size):
        out[i] = min(max(values[i] + shift, bounds[0]), bounds[1])
    return out


@jit
def _to_logit(p: float) -> float:
    p = min(max(p, SMALLEST), 1.0 - SMALLEST)
    return math.log(p) - math.log1p(-p)


@jit
def to_logits(values: Floats) -> Floats:
    """Take probabilities to logits exactly as the scorer does: a row on the edge of a cell must stay on its side."""
    out = np.empty(values.size)
    for i in range(values.size):
        out[i] = _to_logit(values[i])
    return out


@jit
def _group(value: float, levels: int, edges: Floats, start: int, stop: int) -> int:
    """Give a value its group: its code, or how many edges are at most it; the last is that of missing and unseen."""
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
    levels: Longs,
    edges_at: Longs,
    edges: Floats,
    feature: Longs,
    code: Longs,
    low: Floats,
    high: Floats,
    shift: Floats,
    logit: bool,  # noqa: FBT001  (a kernel takes no names)
    bounds: Floats,
    X: Floats,
    P: Floats,
    out: Floats,
) -> None:
    """Score rows, X of shape (features, rows); a row that no patch is for keeps its score to the last bit."""
    own = np.empty(levels.size, np.int64)
    for i in range(P.size):
        for j in range(levels.size):
            own[j] = _group(X[j, i], levels[j], edges, edges_at[j], edges_at[j + 1])
        value = P[i]
        if logit:
            value = _to_logit(value)
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
        elif logit:
            out[i] = 1.0 / (1.0 + math.exp(-value))
        else:
            out[i] = value


@jit
def tally(
    groups: Ints,
    rows: Longs,
    level: Ints,
    levels: int,
    weight: Floats,
    residual: Floats,
    square: Floats,
    null: Floats,
    out: Floats,
) -> None:
    """Add weights, residuals, their squares and their variances to cells, (cells, 4), in the order of the rows.

    ``groups`` is (sets of columns, all rows): the group of each row in each set, -1 for none that counts. What follows
    ``rows`` is of those rows alone.
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
def shift_to(F: Floats, weight: Floats, target: float) -> float:
    """Find the shift of logits that gives them a mean probability: Newton's steps, or halving where they leave the bracket.

    The target lies between 0 and 1, both excluded.
    """
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
