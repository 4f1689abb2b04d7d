"""Score rows through a cascade of forests in one compiled call.

A cascade starts at the link of the prediction, F, and each stage sets it to ``theta * (F + sum of trees(features, F))``. A
model may have several cascades, whose mean is returned. Collapsed stages are looked up in pair tables; the trees of others
are walked.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numba import uint64

from trueup.kernels._jit import jit
from trueup.kernels.trees import MAX_CELLS, NUMERIC, Forest, ForestBins, PairTables, collapse, find_bins, join_forests

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trueup._types import FloatArray, Int32Array, IntArray, UInt8Array, UInt32Array


IDENTITY, LOGIT, SOFTMAX = 0, 1, 2
MIN_PROBABILITY = 1e-6  # probabilities are clipped to this distance from 0 and 1
ROWS = 256  # rows that are scored together: their bins stay in the nearest cache
FEW = 16  # fewer rows are not vectorised


class Stage(NamedTuple):
    """One round of one cascade."""

    cascade: int
    theta: float
    forest: Forest


class CascadeProgram(NamedTuple):
    """All inputs of the scorer, as flat arrays."""

    sizes: IntArray  # features, outputs, cascades, stages, link
    categorical: UInt8Array
    cuts_at: IntArray  # of features, then of the prediction columns of every stage
    cuts: FloatArray
    classes_at: IntArray  # a categorical feature has one class for each level and, first, one for missing or unseen
    classes: Int32Array
    cascade: IntArray
    theta: FloatArray
    tables_at: IntArray
    table: IntArray  # a, b, output, start, rows and columns of each table
    places: Int32Array
    values: FloatArray
    trees_at: IntArray
    tree: Int32Array  # root and output of each tree
    node: Int32Array  # feature, left, right, where missing goes, where the words are and how many
    threshold: FloatArray
    words: UInt32Array
    leaf: FloatArray

    @property
    def collapsed(self) -> int:
        """The number of stages without trees to walk."""
        return int((np.diff(self.trees_at) == 0).sum())


def build(stages: Sequence[Stage], levels: Sequence[int], outputs: int, cascades: int, link: int) -> CascadeProgram:
    """Lay out the stages for the scorer, collapsing stages while the tables stay within bounds.

    Stages are in the order of execution; features are numbered, prediction columns last. ``levels`` is the number of levels
    of each feature, -1 for a number.
    """
    features = len(levels)
    shared = find_bins(join_forests([stage.forest for stage in stages]), [*levels, *[NUMERIC] * outputs])
    cuts, trees, tables = [*shared.cuts[:features]], [], _Joined()
    tables_at, trees_at = [0], [0]
    for stage in stages:
        read = range(features, features + outputs)
        own = [np.unique(stage.forest.threshold[stage.forest.feature == at]) for at in read]
        cuts += own
        bins = ForestBins(shared.categorical, (*shared.cuts[:features], *own), shared.classes)
        found = collapse(stage.forest, bins, MAX_CELLS - tables.cells)
        if found is None:
            trees.append(stage.forest)
        else:
            tables.add(found)
        tables_at.append(tables.count)
        trees_at.append(sum(map(len, trees)))
    walked, classes = join_forests(trees), shared.classes[:features]
    node = (walked.feature, walked.left, walked.right, walked.missing_left, walked.words_at, walked.words_in)
    return CascadeProgram(
        np.array([features, outputs, cascades, len(stages), link], np.int64),
        shared.categorical[:features].astype(np.uint8),
        _starts(cuts), np.concatenate([np.zeros(0), *cuts]),
        _starts(classes), np.concatenate([np.zeros(0, np.int32), *classes]),
        np.array([stage.cascade for stage in stages], np.int64), np.array([stage.theta for stage in stages], np.float64),
        np.array(tables_at, np.int64), np.concatenate(tables.table),
        np.concatenate(tables.places), np.concatenate(tables.values),
        np.array(trees_at, np.int64), np.ascontiguousarray(np.column_stack([walked.root, walked.output]), np.int32),
        np.ascontiguousarray(np.column_stack(node), np.int32), walked.threshold, walked.words, walked.value,
    )  # fmt: skip


class _Joined:
    """The tables of several stages, concatenated."""

    def __init__(self) -> None:
        self.count = self.cells = self._length = 0
        self.table: list[IntArray] = [np.zeros((0, 6), np.int64)]
        self.places: list[Int32Array] = [np.zeros(0, np.int32)]
        self.values: list[FloatArray] = [np.zeros(0)]

    def add(self, found: PairTables) -> None:
        rows, columns = found.rows_at + self._length, found.columns_at + self._length
        self.table.append(np.column_stack([found.a, found.b, found.output, found.start + self.cells, rows, columns]))
        self.places.append(found.places)
        self.values.append(found.values)
        self.count += len(found.a)
        self.cells += len(found.values)
        self._length += len(found.places)


def _starts(pieces: Sequence[FloatArray] | Sequence[Int32Array]) -> IntArray:
    return np.cumsum([0, *map(len, pieces)], dtype=np.int64)


@jit
def _code(value: float, classes: int) -> int:
    """Return 1 + the code of a category; 0 if it is missing or unseen."""
    return int(value) + 1 if 0.0 <= value < classes - 1 else 0


@jit
def _bin_one(value: float, cuts: FloatArray, low: int, high: int) -> int:
    """Count the cuts below a value; NaN is one beyond the last bin."""
    if math.isnan(value):
        return high - low + 1
    first, left = low, high - low
    while left > 0:
        half = (left + 1) >> 1
        first += half if cuts[uint64(first + half - 1)] < value else 0
        left -= half
    return first - low


@jit
def _bin(x: FloatArray, cuts: FloatArray, low: int, high: int, bins: Int32Array) -> None:
    """Bin many rows as `_bin_one` does: the steps of the search are the same for all, so that they are vectorised."""
    if len(x) < FEW:
        for i in range(len(x)):
            bins[i] = _bin_one(x[i], cuts, low, high)
        return
    left = high - low
    bins[: len(x)] = 0
    while left > 0:
        half = (left + 1) >> 1
        for i in range(len(x)):
            bins[i] += half if cuts[uint64(low + bins[i] + half - 1)] < x[i] else 0
        left -= half
    for i in range(len(x)):
        if math.isnan(x[i]):
            bins[i] = high - low + 1


@jit
def _bin_features(
    X: FloatArray, start: int, rows: int, categorical: UInt8Array, cuts_at: IntArray, cuts: FloatArray,
    classes_at: IntArray, classes: Int32Array, bins: Int32Array,
) -> None:  # fmt: skip
    for j in range(len(X)):
        x, b = X[j][start : start + rows], bins[j]
        if categorical[j]:
            low, many = classes_at[j], classes_at[j + 1] - classes_at[j]
            for i in range(rows):
                b[i] = classes[uint64(low + _code(x[i], many))]
        else:
            _bin(x, cuts, cuts_at[j], cuts_at[j + 1], b)


@jit
def _walk(
    here: int, X: FloatArray, at: int, F: FloatArray, i: int, classes_at: IntArray, node: Int32Array,
    threshold: FloatArray, words: UInt32Array,
) -> int:  # fmt: skip
    """Return the leaf of one row in one tree."""
    features = len(X)
    while here >= 0:
        feature = node[here, 0]
        value = X[feature, at] if feature < features else F[feature - features, i]
        if node[here, 4] >= 0:
            code = _code(value, classes_at[feature + 1] - classes_at[feature])
            word = code >> 5
            left = word < node[here, 5] and (words[node[here, 4] + word] >> np.uint32(code & 31)) & np.uint32(1) == 1
        elif math.isnan(value):
            left = node[here, 3] == 1
        else:
            left = value <= threshold[here]
        here = node[here, 1] if left else node[here, 2]
    return ~here


@jit
def _enter(P: FloatArray, start: int, rows: int, link: int, F: FloatArray) -> None:
    """Apply the link to predictions."""
    for c in range(len(F)):
        for i in range(rows):
            p = P[start + i, c]
            if link == LOGIT:
                p = min(max(p, MIN_PROBABILITY), 1.0 - MIN_PROBABILITY)
                p = math.log(p) - math.log1p(-p)
            elif link == SOFTMAX:
                p = math.log(max(p, MIN_PROBABILITY))
            F[c, i] = p


@jit
def _softmax(F: FloatArray, i: int, out: FloatArray) -> None:
    top = F[0, i]
    for c in range(1, len(out)):
        top = max(top, F[c, i])
    total = 0.0
    for c in range(len(out)):
        out[c] = math.exp(F[c, i] - top)
        total += out[c]
    for c in range(len(out)):
        out[c] /= total


@jit
def _leave(F: FloatArray, start: int, rows: int, link: int, out: FloatArray) -> None:
    """Apply the inverse link."""
    for i in range(rows):
        if link == SOFTMAX:
            _softmax(F, i, out[start + i])
            continue
        for c in range(len(F)):
            f = F[c, i]
            if link == LOGIT:
                e = math.exp(-abs(f))
                f = 1.0 / (1.0 + e) if f >= 0 else e / (1.0 + e)
            out[start + i, c] = f


@jit
def _look_up(
    first: int, last: int, table: IntArray, places: Int32Array, values: FloatArray, bins: Int32Array, rows: int,
    added: FloatArray,
) -> None:  # fmt: skip
    """Add the values of each table to the sums of all rows."""
    for t in range(first, last):
        a, b, c = bins[table[t, 0]], bins[table[t, 1]], added[table[t, 2]]
        begin, across, down = table[t, 3], table[t, 4], table[t, 5]
        for i in range(rows):
            c[i] += values[uint64(begin + places[uint64(across + a[i])] + places[uint64(down + b[i])])]


@jit
def _step(F: FloatArray, added: FloatArray, rows: int, theta: float) -> None:
    """Complete a stage."""
    for c in range(len(F)):
        for i in range(rows):
            F[c, i] = theta * (F[c, i] + added[c, i])


@jit
def _mean(F: FloatArray, rows: int) -> None:
    """Store the mean of all cascades in the first."""
    for c in range(F.shape[1]):
        for i in range(rows):
            total = F[0, c, i]
            for k in range(1, len(F)):
                total += F[k, c, i]
            F[0, c, i] = total / len(F)


@jit
def score(
    sizes: IntArray, categorical: UInt8Array, cuts_at: IntArray, cuts: FloatArray, classes_at: IntArray,
    classes: Int32Array, cascade: IntArray, theta: FloatArray, tables_at: IntArray, table: IntArray, places: Int32Array,
    values: FloatArray, trees_at: IntArray, tree: Int32Array, node: Int32Array, threshold: FloatArray, words: UInt32Array,
    leaf: FloatArray, X: FloatArray, P: FloatArray, out: FloatArray,
) -> None:  # fmt: skip
    """Score rows: X (features, rows) with codes as numbers, P (rows, outputs)."""
    features, outputs = sizes[0], sizes[1]
    link = sizes[4]
    most = min(ROWS, len(P))
    bins = np.empty((features + outputs, most), np.int32)
    F, added = np.empty((sizes[2], outputs, most)), np.empty((outputs, most))
    for start in range(0, len(P), ROWS):
        rows = min(ROWS, len(P) - start)
        _enter(P, start, rows, link, F[0])
        F[1:] = F[0]
        _bin_features(X, start, rows, categorical, cuts_at, cuts, classes_at, classes, bins)
        for s in range(sizes[3]):
            own = F[cascade[s]]
            added[:] = 0.0
            for c in range(outputs):
                at = features + s * outputs + c
                _bin(own[c][:rows], cuts, cuts_at[at], cuts_at[at + 1], bins[features + c])
            _look_up(tables_at[s], tables_at[s + 1], table, places, values, bins, rows, added)
            for t in range(trees_at[s], trees_at[s + 1]):
                sums = added[tree[t, 1]]
                for i in range(rows):
                    sums[i] += leaf[_walk(tree[t, 0], X, start + i, own, i, classes_at, node, threshold, words)]
            _step(own, added, rows, theta[s])
        _mean(F, rows)
        _leave(F[0], start, rows, link, out)
