"""Small trees, one per level of the score (rows of similar score), grown in one call; and the scorer that walks them.

A tree is laid out as a heap: node k has children 2k + 1 and 2k + 2, and is a leaf if its feature is -1. Features are bins:
0 is missing, a number has 1 + the number of cuts below it, a category 1 + its code. The NumPy twin in the tests defines the
growth. Without regularisation, a tree of depth 1 is the exact least-squares fit among all splits.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trueup.kernels._jit import jit
from trueup.kernels.sorting import lower_bound
from trueup.kernels.trees import code_of, find_leaf

if TYPE_CHECKING:
    from trueup._types import FloatArray, Int32Array, IntArray, UInt8Array, UInt16Array, UInt32Array


BETTER = 1.0 + 1e-9  # a split must be better by more than rounding, so that the order of rows does not matter
NO_LEARNER = -(2**31)  # no learner for this level
DUST = 1e-12  # of the weight of a node: a smaller remainder is rounding
LEAST = 1e-12  # of the sum of squares of a node: a smaller drop is rounding
SPARSE = 8  # bins per row of a node: of more, the bins with rows are sorted instead of visiting all bins


@jit
def order_by_level(level: Int32Array, rows: IntArray, levels: int) -> tuple[IntArray, IntArray]:
    """Sort the indices ``rows`` by level, stably; return them, and starts: level v is result[starts[v]:starts[v + 1]]."""
    starts = np.zeros(levels + 1, np.int64)
    for i in range(len(rows)):
        starts[level[rows[i]] + 1] += 1
    for v in range(levels):
        starts[v + 1] += starts[v]
    place = starts[:-1].copy()
    order = np.empty(len(rows), np.int64)
    for i in range(len(rows)):
        v = level[rows[i]]
        order[place[v]] = rows[i]
        place[v] += 1
    return order, starts


@jit
def _best_bin(
    mass: FloatArray, total: FloatArray, bins: IntArray, categorical: int, W: float, S: float, least: float, l2: float,
    best: float,
) -> tuple[float, int, int]:  # fmt: skip
    """Find the best split of a node by one feature: a cut of a number, or one category against all others.

    ``mass`` and ``total`` are weight and weighted target by bin, W and S their sums over ``bins``, which ascend and contain
    every bin with rows; each side has at least weight ``least``. Returns the sum of S^2 / (W + l2) over both sides
    (``best`` if no split exceeds it), the last bin on the left
    or the category (-1 for none), and 1 if missing numbers go left.
    """
    chosen, side = -1, 0
    missing = bins[0] == 0 and mass[0] > 0.0 and not categorical
    for missing_left in range(2 if missing else 1):
        w, s = (mass[0], total[0]) if missing_left == 1 else (0.0, 0.0)
        for b in bins:
            if mass[b] == 0.0 or (b == 0 and not categorical):
                continue
            w, s = (mass[b], total[b]) if categorical else (w + mass[b], s + total[b])
            rest = W - w
            if w < least or rest < least or rest <= DUST * W:
                continue
            drop = s * s / (w + l2) + (S - s) * (S - s) / (rest + l2)
            if drop > best * BETTER:
                best, chosen, side = drop, b, missing_left
    return best, chosen, side


@jit
def _goes_left(code: int, cut: int, missing_left: int, categorical: int) -> bool:
    if categorical:
        return code == cut
    return missing_left == 1 if code == 0 else code <= cut


@jit
def _split(rows: IntArray, spare: IntArray, codes: UInt16Array, cut: int, missing_left: int, categorical: int) -> int:
    """Move the rows whose ``codes`` go left to the front of ``rows``, stably; return how many. ``spare`` is scratch."""
    left = right = 0
    for i in range(len(rows)):
        if _goes_left(codes[rows[i]], cut, missing_left, categorical):
            rows[left] = rows[i]
            left += 1
        else:
            spare[right] = rows[i]
            right += 1
    rows[left:] = spare[:right]
    return left


@jit
def _bins_of(own: IntArray, codes: UInt16Array, spare: IntArray) -> IntArray:
    """Return the distinct bins of the rows ``own``, ascending, in the memory of ``spare``."""
    for i in range(len(own)):
        spare[i] = codes[own[i]]
    spare[: len(own)].sort()
    many = 0
    for i in range(len(own)):
        if many == 0 or spare[i] != spare[many - 1]:
            spare[many] = spare[i]
            many += 1
    return spare[:many]


@jit
def _best_split(
    own: IntArray, codes: UInt16Array, counts: IntArray, categorical: UInt8Array, target: FloatArray, weight: FloatArray,
    W: float, S: float, least: float, l2: float, best: float, mass: FloatArray, total: FloatArray, every: IntArray,
    spare: IntArray,
) -> tuple[int, int, int]:  # fmt: skip
    """Find the best split of rows ``own`` by `_best_bin`; return feature (-1 for none), cut, and 1 if missing goes left.

    ``every`` lists all bins of the widest feature; mass, total and spare are scratch.
    """
    feature, cut, side = -1, 0, 0
    for f in range(len(counts)):
        here = codes[f]
        if counts[f] <= SPARSE * len(own):
            bins = every[: counts[f]]
            mass[: counts[f]] = 0.0
            total[: counts[f]] = 0.0
        else:
            bins = _bins_of(own, here, spare)
            for b in bins:
                mass[b] = total[b] = 0.0
        for i in range(len(own)):
            b, w = here[own[i]], weight[own[i]]
            mass[b] += w
            total[b] += w * target[own[i]]
        drop, chosen, way = _best_bin(mass, total, bins, categorical[f], W, S, least, l2, best)
        if chosen >= 0:
            best, feature, cut, side = drop, f, chosen, way
    return feature, cut, side


@jit
def _grow_one(
    rows: IntArray, spare: IntArray, codes: UInt16Array, counts: IntArray, categorical: UInt8Array, target: FloatArray,
    weight: FloatArray, least: float, l2: float, mass: FloatArray, total: FloatArray, every: IntArray, feature: Int32Array,
    cut: Int32Array, side: UInt8Array, value: FloatArray,
) -> None:  # fmt: skip
    """Grow the tree of one level on its ``rows``, which are reordered; see `grow_levels`, and `_best_split` for scratch."""
    nodes = len(value)
    low, high = np.zeros(nodes, np.int64), np.full(nodes, -1, np.int64)
    high[0] = len(rows)
    for k in range(nodes):
        feature[k] = -1
        if high[k] <= low[k]:
            continue
        own = rows[low[k] : high[k]]
        W = S = Q = 0.0
        for i in own:
            w, t = weight[i], target[i]
            W += w
            S += w * t
            Q += w * t * t
        if W + l2 <= 0.0:
            continue
        value[k] = S / (W + l2)
        if 2 * k + 2 >= nodes or Q <= 0.0 or len(own) == 1:  # one row cannot be split
            continue
        floor = S * S / (W + l2) + LEAST * Q
        f, at, way = _best_split(
            own, codes, counts, categorical, target, weight, W, S, least, l2, floor, mass, total, every, spare
        )
        if f >= 0:
            feature[k], cut[k], side[k] = f, at, way
            many = _split(own, spare, codes[f], at, way, categorical[f])
            low[2 * k + 1], high[2 * k + 1] = low[k], low[k] + many
            low[2 * k + 2], high[2 * k + 2] = low[k] + many, high[k]


@jit
def grow_levels(
    levels: IntArray, order: IntArray, starts: IntArray, codes: UInt16Array, counts: IntArray, categorical: UInt8Array,
    target: FloatArray, weight: FloatArray, least: float, l2: float, feature: Int32Array, cut: Int32Array,
    side: UInt8Array, value: FloatArray,
) -> None:  # fmt: skip
    """Grow the trees of the given ``levels`` and write their rows of feature, cut, side and value, shape (levels, nodes).

    ``order`` (reordered here) and ``starts`` are from `order_by_level`; ``codes`` (features, rows) are bins, ``counts``
    their numbers. ``least`` is the smallest weight of a leaf, ``l2`` the ridge penalty; ``side`` is 1 if missing goes left.
    """
    longest = 0
    for v in levels:
        longest = max(longest, starts[v + 1] - starts[v])
    spare = np.empty(longest, np.int64)
    widest = 1
    for f in range(len(counts)):
        widest = max(widest, counts[f])
    mass, total, every = np.empty(widest), np.empty(widest), np.arange(widest)
    for v in levels:
        _grow_one(
            order[starts[v] : starts[v + 1]], spare, codes, counts, categorical, target, weight, least, l2,
            mass, total, every, feature[v], cut[v], side[v], value[v],
        )  # fmt: skip


@jit
def walk_levels(
    start: int, end: int, level: Int32Array, codes: UInt16Array, categorical: UInt8Array, feature: Int32Array,
    cut: Int32Array, side: UInt8Array, value: FloatArray, out: FloatArray,
) -> None:  # fmt: skip
    """Write to ``out`` the leaf value of rows ``start`` to ``end - 1`` in the tree of their level."""
    for i in range(start, end):
        v, k = level[i], 0
        while feature[v, k] >= 0:
            f = feature[v, k]
            k = 2 * k + (1 if _goes_left(codes[f, i], cut[v, k], side[v, k], categorical[f]) else 2)
        out[i] = value[v, k]


@jit
def _line(
    at: int, X: FloatArray, i: int, levels: IntArray, place: IntArray, centre: FloatArray, scale: FloatArray,
    slopes: FloatArray,
) -> float:  # fmt: skip
    """Return the linear function with coefficients ``slopes[at]`` at row ``i``; those of feature f start at place[f]."""
    found = float(slopes[at, 0])
    for f in range(len(levels)):
        value, p = X[f, i], place[f]
        if levels[f] >= 0:
            found += slopes[at, p + code_of(value, levels[f])]
            continue
        far = (value - centre[f]) / scale[f]
        found += slopes[at, p] * far if math.isfinite(far) else slopes[at, p + 1]
    return found


@jit
def read_lines(
    which: Int32Array, X: FloatArray, levels: IntArray, place: IntArray, centre: FloatArray, scale: FloatArray,
    slopes: FloatArray, out: FloatArray,
) -> None:  # fmt: skip
    """Write to ``out[i]``, for every row i, the linear function with coefficients ``slopes[which[i]]``; see `_line`."""
    for i in range(len(which)):
        out[i] = _line(which[i], X, i, levels, place, centre, scale, slopes)


@jit
def advance(f: float, value: float, rate: float, grid: int, low: float, high: float, hold: float) -> float:
    """Return f + rate * value, keeping a share ``hold`` of the distance to low and high, and a multiple of 1 / ``grid``."""
    moved = f + rate * value
    if math.isnan(moved):
        return f  # slopes that overflow
    moved = min(max(moved, low + hold * (f - low)), high - hold * (high - f))
    moved = min(max(moved, low), high)
    if grid > 0:
        return (float(math.ceil(moved * grid - 0.5)) + 0.0) / grid
    return moved


@jit
def advance_all(
    F: FloatArray, value: FloatArray, kept: UInt8Array, level: Int32Array, rate: float, grid: int, low: float, high: float,
    hold: float, out: FloatArray,
) -> None:  # fmt: skip
    """Write to ``out[i]`` the score F[i], changed by `advance` with ``value[i]`` if ``kept[level[i]]``, else unchanged."""
    for i in range(len(F)):
        out[i] = advance(F[i], value[i], rate, grid, low, high, hold) if kept[level[i]] else F[i]


class LevelProgram(NamedTuple):
    """The rounds of all models as flat arrays: the first arguments of `step_levels`, which documents them."""

    sizes: IntArray
    bounds: FloatArray
    levels: IntArray
    edges_at: IntArray
    edges: FloatArray
    learner_at: IntArray
    learner: Int32Array
    node: Int32Array
    threshold: FloatArray
    words: UInt32Array
    leaf: FloatArray
    place: IntArray
    centre: FloatArray
    scale: FloatArray
    slopes: FloatArray


@jit
def start_levels(sizes: IntArray, bounds: FloatArray, P: FloatArray, F: FloatArray) -> None:
    """Write to F (models, rows) the scores before round 0, from predictions P; ``sizes``, ``bounds``: see `step_levels`."""
    for i in range(len(P)):
        begin = min(max(bounds[5] if sizes[4] else (P[i] - bounds[3]) / bounds[4], bounds[0]), bounds[1])
        if sizes[2] > 0:
            begin = advance(begin, 0.0, 1.0, sizes[2], bounds[0], bounds[1], 0.0)
        for m in range(len(F)):
            F[m, i] = begin


@jit
def step_levels(
    sizes: IntArray, bounds: FloatArray, levels: IntArray, edges_at: IntArray, edges: FloatArray, learner_at: IntArray,
    learner: Int32Array, node: Int32Array, threshold: FloatArray, words: UInt32Array, leaf: FloatArray, place: IntArray,
    centre: FloatArray, scale: FloatArray, slopes: FloatArray, t: int, X: FloatArray, F: FloatArray,
) -> None:  # fmt: skip
    """Update the scores F (models, rows) by round ``t`` of every model.

    ``sizes`` is (models, rounds, grid, linear, has a start); ``bounds`` is (lowest, highest, rate, offset, unit, start,
    hold). Entry m * rounds + t of ``edges_at`` and ``learner_at`` is round t of model m; a learner is a root or a line.
    """
    for m in range(len(F)):
        at = m * sizes[1] + t
        for i in range(F.shape[1]):
            level = lower_bound(edges, edges_at[at], edges_at[at + 1], F[m, i]) - edges_at[at]
            which = learner[learner_at[at] + level]
            if which == NO_LEARNER:
                continue
            if sizes[3]:
                value = _line(which, X, i, levels, place, centre, scale, slopes)
            else:
                value = leaf[find_leaf(which, X, i, F, i, levels, node, threshold, words)]
            F[m, i] = advance(F[m, i], value, bounds[2], sizes[2], bounds[0], bounds[1], bounds[6])


@jit
def end_levels(bounds: FloatArray, F: FloatArray, out: FloatArray) -> None:
    """Write to ``out`` the mean of F over the models, times unit plus offset; see ``bounds`` of `step_levels`."""
    for i in range(len(out)):
        total = 0.0
        for m in range(len(F)):
            total += F[m, i]
        out[i] = bounds[3] + bounds[4] * (total / len(F))
