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
from trueup.kernels.sorting import lower_bound, lower_bounds
from trueup.kernels.trees import (
    MAX_CELLS,
    NUMERIC,
    Forest,
    ForestBins,
    code_of,
    collapse,
    find_bins,
    find_leaf,
    join_forests,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trueup._types import FloatArray, Int32Array, IntArray, UInt32Array


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
    levels: IntArray  # how many levels a feature has; -1 for a number
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


def build(stages: Sequence[Stage], levels: Sequence[int], outputs: int, cascades: int, link: int) -> CascadeProgram:
    """Lay out the stages for the scorer, collapsing stages while the tables stay within bounds.

    Stages are in the order of execution; features are numbered, prediction columns last. ``levels`` is the number of levels
    of each feature, -1 for a number.
    """
    features = len(levels)
    shared = find_bins(join_forests([stage.forest for stage in stages]), [*levels, *[NUMERIC] * outputs])
    cuts, trees, places, values = [*shared.cuts[:features]], [], [np.zeros(0, np.int32)], [np.zeros(0)]
    table, tables_at, trees_at = [np.zeros((0, 6), np.int64)], [0], [0]
    length = cells = 0
    for stage in stages:
        read = range(features, features + outputs)
        own = [np.unique(stage.forest.threshold[stage.forest.feature == feature]) for feature in read]
        cuts += own
        bins = ForestBins(shared.categorical, (*shared.cuts[:features], *own), shared.classes)
        tables = collapse(stage.forest, bins, MAX_CELLS - cells)
        if tables is None:
            trees.append(stage.forest)
        else:
            table.append(tables.table + np.array([0, 0, 0, cells, length, length]))
            places.append(tables.places)
            values.append(tables.values)
            length, cells = length + len(tables.places), cells + len(tables.values)
        tables_at.append(sum(map(len, table)))
        trees_at.append(sum(map(len, trees)))
    walked, classes = join_forests(trees), shared.classes[:features]
    node = (walked.feature, walked.left, walked.right, walked.missing_left, walked.words_at, walked.words_in)
    return CascadeProgram(
        np.array([features, outputs, cascades, len(stages), link], np.int64),
        np.array(levels, np.int64),
        _starts(cuts), np.concatenate([np.zeros(0), *cuts]),
        _starts(classes), np.concatenate([np.zeros(0, np.int32), *classes]),
        np.array([stage.cascade for stage in stages], np.int64), np.array([stage.theta for stage in stages], np.float64),
        np.array(tables_at, np.int64), np.concatenate(table),
        np.concatenate(places), np.concatenate(values),
        np.array(trees_at, np.int64), np.ascontiguousarray(np.column_stack([walked.root, walked.output]), np.int32),
        np.ascontiguousarray(np.column_stack(node), np.int32), walked.threshold, walked.words, walked.value,
    )  # fmt: skip


def _starts(pieces: Sequence[FloatArray] | Sequence[Int32Array]) -> IntArray:
    return np.cumsum([0, *map(len, pieces)], dtype=np.int64)


@jit
def _bin(x: FloatArray, cuts: FloatArray, bins: Int32Array) -> None:
    """Count the cuts below each number; NaN is one beyond the last bin."""
    if len(x) >= FEW:
        lower_bounds(cuts, x, bins)
    for i in range(len(x)):
        if math.isnan(x[i]):
            bins[i] = len(cuts) + 1
        elif len(x) < FEW:
            bins[i] = lower_bound(cuts, 0, len(cuts), x[i])


@jit
def expit(f: float) -> float:
    """Compute the logistic function without overflow."""
    e = math.exp(-abs(f))
    return 1.0 / (1.0 + e) if f >= 0 else e / (1.0 + e)


@jit
def logit(p: float) -> float:
    """Compute the logit of a clipped probability."""
    p = min(max(p, MIN_PROBABILITY), 1.0 - MIN_PROBABILITY)
    return math.log(p) - math.log1p(-p)


@jit
def _enter(P: FloatArray, start: int, rows: int, link: int, F: FloatArray) -> None:
    """Apply the link to predictions."""
    for c in range(len(F)):
        for i in range(rows):
            p = P[start + i, c]
            if link == LOGIT:
                p = logit(p)
            elif link == SOFTMAX:
                p = math.log(max(p, MIN_PROBABILITY))
            F[c, i] = p


@jit
def _leave(F: FloatArray, start: int, rows: int, link: int, out: FloatArray) -> None:
    """Apply the inverse link."""
    for i in range(rows):
        row, top, total = out[start + i], F[0, i], 0.0
        for c in range(len(F)):
            top = max(top, F[c, i])
        for c in range(len(F)):
            if link == IDENTITY:
                row[c] = F[c, i]
            else:
                row[c] = expit(F[c, i]) if link == LOGIT else math.exp(F[c, i] - top)
            total += row[c]
        for c in range(len(F) if link == SOFTMAX else 0):
            row[c] /= total


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
    sizes: IntArray, levels: IntArray, cuts_at: IntArray, cuts: FloatArray, classes_at: IntArray,
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
        for j in range(features):
            x, b = X[j][start : start + rows], bins[j]
            if levels[j] >= 0:
                for i in range(rows):
                    b[i] = classes[uint64(classes_at[j] + code_of(x[i], levels[j]))]
            else:
                _bin(x, cuts[cuts_at[j] : cuts_at[j + 1]], b)
        for s in range(sizes[3]):
            own = F[cascade[s]]
            added[:] = 0.0
            for c in range(outputs):
                at = features + s * outputs + c
                _bin(own[c][:rows], cuts[cuts_at[at] : cuts_at[at + 1]], bins[features + c])
            _look_up(tables_at[s], tables_at[s + 1], table, places, values, bins, rows, added)
            for t in range(trees_at[s], trees_at[s + 1]):
                sums = added[tree[t, 1]]
                for i in range(rows):
                    sums[i] += leaf[find_leaf(tree[t, 0], X, start + i, own, i, levels, node, threshold, words)]
            for c in range(outputs):
                for i in range(rows):
                    own[c, i] = theta[s] * (own[c, i] + added[c, i])
        _mean(F, rows)
        _leave(F[0], start, rows, link, out)
