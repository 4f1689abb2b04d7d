"""Score rows through a whole cascade of forests in one compiled call.

A cascade starts at the link of the prediction, F, and each stage makes it ``theta * (F + sum of trees(features, F))``.
A model may hold several cascades: each keeps its own F, and the mean of all of them is the answer. Stages that were
collapsed are looked up in pair tables; the others are walked tree by tree.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numba import uint64

from trueup.kernels._jit import jit
from trueup.kernels.trees import MOST_CELLS, NUMERIC, Bins, Forest, PairTables, collapse, find_bins, join_forests

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int32]
    Longs = NDArray[np.int64]
    Words = NDArray[np.uint32]
    Flags = NDArray[np.uint8]

__all__ = ["IDENTITY", "LOGIT", "SMALLEST", "SOFTMAX", "Program", "Stage", "build", "score"]

IDENTITY, LOGIT, SOFTMAX = 0, 1, 2
SMALLEST = 1e-6  # probabilities nearer to 0 or 1 than this are taken for it before the logit
ROWS = 256  # rows that go through the stages together: their bins stay in the nearest cache
FEW = 16  # rows that are not worth the detour of going together


class Stage(NamedTuple):
    """One round of one cascade."""

    cascade: int
    theta: float
    forest: Forest


class Program(NamedTuple):
    """Everything the scorer reads, as flat arrays."""

    sizes: Longs  # features, outputs, cascades, stages, link
    categorical: Flags
    cuts_at: Longs  # of features, then of the prediction columns of every stage
    cuts: Floats
    classes_at: Longs  # a categorical feature has one class for each level and, first, one for missing or unseen
    classes: Ints
    cascade: Longs
    theta: Floats
    tables_at: Longs
    table: Longs  # a, b, output, start, rows and columns of each table
    places: Ints
    values: Floats
    trees_at: Longs
    tree: Ints  # root and output of each tree
    node: Ints  # feature, left, right, where missing goes, where the words are and how many
    threshold: Floats
    words: Words
    leaf: Floats

    @property
    def collapsed(self) -> int:
        """Count the stages that need no walk."""
        return int((np.diff(self.trees_at) == 0).sum())


def build(stages: Sequence[Stage], levels: Sequence[int], outputs: int, cascades: int, link: int) -> Program:
    """Lay out the stages for the scorer, collapsing what can be collapsed while all tables together are within bounds.

    Parameters
    ----------
    stages : sequence of Stage
        In the order in which they run. Features are numbered, the prediction columns last.
    levels : sequence of int
        How many levels each feature has, -1 for a number.
    outputs, cascades, link : int
    """
    features = len(levels)
    shared = find_bins(join_forests([stage.forest for stage in stages]), [*levels, *[NUMERIC] * outputs])
    cuts, trees, tables = [*shared.cuts[:features]], [], _Joined()
    tables_at, trees_at = [0], [0]
    for stage in stages:
        read = range(features, features + outputs)
        own = [np.unique(stage.forest.threshold[stage.forest.feature == at]) for at in read]
        cuts += own
        bins = Bins(shared.categorical, (*shared.cuts[:features], *own), shared.classes)
        found = collapse(stage.forest, bins, MOST_CELLS - tables.cells)
        if found is None:
            trees.append(stage.forest)
        else:
            tables.add(found)
        tables_at.append(tables.count)
        trees_at.append(sum(map(len, trees)))
    walked, classes = join_forests(trees), shared.classes[:features]
    node = (walked.feature, walked.left, walked.right, walked.missing_left, walked.words_at, walked.words_in)
    return Program(
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
    """The tables of several stages, one after the other."""

    def __init__(self) -> None:
        self.count = self.cells = self._length = 0
        self.table: list[Longs] = [np.zeros((0, 6), np.int64)]
        self.places: list[Ints] = [np.zeros(0, np.int32)]
        self.values: list[Floats] = [np.zeros(0)]

    def add(self, found: PairTables) -> None:
        rows, columns = found.rows_at + self._length, found.columns_at + self._length
        self.table.append(np.column_stack([found.a, found.b, found.output, found.start + self.cells, rows, columns]))
        self.places.append(found.places)
        self.values.append(found.values)
        self.count += len(found.a)
        self.cells += len(found.values)
        self._length += len(found.places)


def _starts(pieces: Sequence[Floats] | Sequence[Ints]) -> Longs:
    return np.cumsum([0, *map(len, pieces)], dtype=np.int64)


@jit
def _code(value: float, classes: int) -> int:
    """Give 1 + the code of a category; 0 where it is missing or beyond the known ones, whatever its size."""
    return int(value) + 1 if 0.0 <= value < classes - 1 else 0


@jit
def _bin_one(value: float, cuts: Floats, low: int, high: int) -> int:
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
def _bin(x: Floats, cuts: Floats, low: int, high: int, bins: Ints) -> None:
    """Do `_bin_one` for many rows: each step of the search is the same for all, so that several rows go together."""
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
    X: Floats, start: int, rows: int, categorical: Flags, cuts_at: Longs, cuts: Floats, classes_at: Longs, classes: Ints,
    bins: Ints,
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
    here: int, X: Floats, at: int, F: Floats, i: int, classes_at: Longs, node: Ints, threshold: Floats, words: Words
) -> int:
    """Follow one row down one tree; give its leaf."""
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
def _enter(P: Floats, start: int, rows: int, link: int, F: Floats) -> None:
    """Take the predictions to the scale of the trees."""
    for c in range(len(F)):
        for i in range(rows):
            p = P[start + i, c]
            if link == LOGIT:
                p = min(max(p, SMALLEST), 1.0 - SMALLEST)
                p = math.log(p) - math.log1p(-p)
            elif link == SOFTMAX:
                p = math.log(max(p, SMALLEST))
            F[c, i] = p


@jit
def _softmax(F: Floats, i: int, out: Floats) -> None:
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
def _leave(F: Floats, start: int, rows: int, link: int, out: Floats) -> None:
    """Take the sums back to the scale of the predictions."""
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
    first: int, last: int, table: Longs, places: Ints, values: Floats, bins: Ints, rows: int, added: Floats
) -> None:
    """Add one table after another to the sums of all rows."""
    for t in range(first, last):
        a, b, c = bins[table[t, 0]], bins[table[t, 1]], added[table[t, 2]]
        begin, across, down = table[t, 3], table[t, 4], table[t, 5]
        for i in range(rows):
            c[i] += values[uint64(begin + places[uint64(across + a[i])] + places[uint64(down + b[i])])]


@jit
def _step(F: Floats, added: Floats, rows: int, theta: float) -> None:
    """End a stage."""
    for c in range(len(F)):
        for i in range(rows):
            F[c, i] = theta * (F[c, i] + added[c, i])


@jit
def _mean(F: Floats, rows: int) -> None:
    """Put the mean of all cascades into the first."""
    for c in range(F.shape[1]):
        for i in range(rows):
            total = F[0, c, i]
            for k in range(1, len(F)):
                total += F[k, c, i]
            F[0, c, i] = total / len(F)


@jit
def score(
    sizes: Longs, categorical: Flags, cuts_at: Longs, cuts: Floats, classes_at: Longs, classes: Ints, cascade: Longs,
    theta: Floats, tables_at: Longs, table: Longs, places: Ints, values: Floats, trees_at: Longs, tree: Ints, node: Ints,
    threshold: Floats, words: Words, leaf: Floats, X: Floats, P: Floats, out: Floats,
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
