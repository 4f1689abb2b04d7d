"""Forests as arrays, their exact collapse into one table per pair of features, and cascades that score rows with them.

A node sends a row left if its number is at most the threshold, or its category is in the set of the node; missing numbers
follow ``missing_left``. If no path to a leaf tests more than two features, the sum of the trees equals a sum over pairs of
features of one table each: a leaf adds its value to every cell that satisfies its conditions.

A cascade starts with F, the link function of the prediction; each stage sets F to ``theta * (F + sum of trees(features,
F))``. A model may have several cascades, whose mean is returned. Collapsed stages are looked up in pair tables; the trees
of other stages are walked.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trueup.kernels._jit import answer, jit, run
from trueup.kernels.sorting import lower_bound, lower_bounds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trueup._types import AnyArray, BoolArray, FloatArray, Int32Array, IntArray, UInt8Array, UInt32Array


MAX_CELLS = MAX_PLACES = 1 << 22  # 32 MiB of float64 and 16 MiB of int32; otherwise trees are walked
MAX_WORK = 1 << 32  # additions of leaves to cells
MAX_DEPTH = 64  # of all trees
NUMERIC = -1
IDENTITY, LOGIT, SOFTMAX = 0, 1, 2
MIN_PROBABILITY = 1e-6  # probabilities are clipped to this distance from 0 and 1
ROWS = 256  # rows that are scored together: their bins stay in the nearest cache
FEW = 16  # fewer rows are not vectorised
ARRAY_TYPES = {
    "threshold": np.float64,
    "value": np.float64,
    "missing_left": np.uint8,
    "words": np.uint32,
    "left_share": np.uint8,
}  # others int32
HALF = 128  # a share of rows that is not known, in 255ths


@dataclass(frozen=True, eq=False)
class Forest:
    """Trees as arrays; every node and every leaf belongs to one tree."""

    root: Int32Array  # per tree: a node, or the complement (~) of a leaf
    output: Int32Array  # per tree: the output (class) it adds to
    feature: Int32Array
    threshold: FloatArray
    left: Int32Array  # a node, or the complement (~) of a leaf
    right: Int32Array
    missing_left: UInt8Array
    words_at: Int32Array  # start of the set of a categorical node among the words; -1 for a numeric node
    words_in: Int32Array  # number of words of the set
    words: UInt32Array  # sets of categories that go left: bit code + 1, bit 0 for missing or unseen
    value: FloatArray  # per leaf
    # Per node, the share of its training rows that went left, in 255ths, for explanations; empty if it is not known.
    left_share: UInt8Array = field(default_factory=lambda: np.zeros(0, np.uint8))

    def __len__(self) -> int:
        return len(self.root)

    def arrays(self) -> dict[str, AnyArray]:
        """Return the arrays of the forest by field name."""
        return {item.name: getattr(self, item.name) for item in fields(self)}

    def left_shares(self) -> UInt8Array:
        """Return ``left_share``, or a half per node if it is not known."""
        return self.left_share if len(self.left_share) else np.full(len(self.feature), HALF, np.uint8)

    def scaled(self, by: float) -> Forest:
        """Return the forest with the value of every leaf multiplied by ``by``."""
        return Forest(**{**self.arrays(), "value": self.value * by})


def join_forests(forests: Sequence[Forest]) -> Forest:
    """Concatenate the trees of several forests."""
    parts: dict[str, list[AnyArray]] = {item.name: [] for item in fields(Forest)}
    known = any(len(forest.left_share) for forest in forests)
    nodes = leaves = words = 0
    for forest in forests:
        for name, array in forest.arrays().items():
            if name in ("root", "left", "right"):
                array = np.where(array >= 0, array + nodes, array - leaves).astype(np.int32)
            elif name == "words_at":
                array = np.where(array >= 0, array + words, array).astype(np.int32)
            elif name == "left_share" and known:
                array = forest.left_shares()
            parts[name].append(array)
        nodes, leaves, words = nodes + len(forest.feature), leaves + len(forest.value), words + len(forest.words)
    return Forest(**{name: np.concatenate([np.zeros(0, ARRAY_TYPES.get(name, np.int32)), *parts[name]]) for name in parts})


def constant_forest(values: FloatArray) -> Forest:
    """Return a forest of one leaf per output, which adds ``values`` to every row."""
    outputs = np.arange(len(values), dtype=np.int32)
    empty = {item.name: np.zeros(0, ARRAY_TYPES.get(item.name, np.int32)) for item in fields(Forest)}
    return Forest(**{**empty, "root": ~outputs, "output": outputs, "value": np.asarray(values, np.float64)})


def move_scores(forest: Forest, features: int, factor: float, added: FloatArray) -> Forest:
    """Return a forest that tests the scores F as ``forest`` tests factor (F + added); ``features`` precede the scores."""
    threshold, is_score = forest.threshold.copy(), forest.feature >= features
    threshold[is_score] = threshold[is_score] / factor - added[forest.feature[is_score] - features]
    return Forest(**{**forest.arrays(), "threshold": threshold})


@dataclass(frozen=True, eq=False)
class ForestBins:
    """Bins of each feature: ascending cuts of a number, or classes of categories.

    The bin of a number is the number of cuts below it; missing numbers have one more bin. ``classes`` has the bin of a
    category at index code + 1; index 0 is for missing or unseen categories.
    """

    categorical: BoolArray
    cuts: tuple[FloatArray, ...]
    classes: tuple[Int32Array, ...]

    def count(self, feature: int) -> int:
        """Count the bins of a feature."""
        if self.categorical[feature]:
            return int(self.classes[feature].max(initial=0)) + 1
        return len(self.cuts[feature]) + 2


def find_bins(forest: Forest, levels: Sequence[int]) -> ForestBins:
    """Return the coarsest bins such that the forest treats all values of a bin alike; ``levels`` as for `build`."""
    cuts, classes = [], []
    for feature, count in enumerate(levels):
        nodes = np.flatnonzero(forest.feature == feature)
        cuts.append(np.unique(forest.threshold[nodes]) if count == NUMERIC else np.zeros(0))
        classes.append(np.zeros(0 if count == NUMERIC else count + 1, np.int32))
        if count != NUMERIC:
            sets = forest.words_at, forest.words_in, forest.words
            run(_tell_apart, 3 * len(nodes) * (count + 1), nodes, *sets, classes[feature])
    return ForestBins(np.array([count != NUMERIC for count in levels], bool), tuple(cuts), tuple(classes))


class PairTables(NamedTuple):
    """A forest as a sum of tables; a row of ``table`` is (feature a, feature b, output, start, first row, first column).

    A table adds ``values[start + rows[bin of a] + columns[bin of b]]`` to its output, where ``rows`` and ``columns`` are
    slices of ``places`` that begin at its first row and first column. If b is a, the columns are all 0.
    """

    table: IntArray
    places: Int32Array
    values: FloatArray


def collapse(forest: Forest, bins: ForestBins, most_cells: int = MAX_CELLS) -> PairTables | None:
    """Collapse a forest into pair tables; None if a path to a leaf tests three features, or the tables would be too large.

    The forest must treat all values of one of the ``bins`` alike. Bins that all leaves of a table treat alike share a row
    or a column of it. Sizes are checked before anything is allocated.
    """
    nodes, size = len(forest.feature), len(forest.feature) + len(forest.value)
    parent, side, output = np.full(size, -1, np.int32), np.zeros(size, np.uint8), np.zeros(size, np.int32)
    for turn, child in enumerate((forest.right, forest.left)):
        below = np.where(child >= 0, child, nodes + ~child)
        parent[below], side[below] = np.arange(nodes), turn
    output[np.where(forest.root >= 0, forest.root, nodes + ~forest.root)] = forest.output
    sets = forest.words_at, forest.words_in, forest.words
    paths = _Paths(forest.feature, forest.threshold, forest.missing_left, *sets, parent, side, output)
    tried = [np.unique(classes, return_index=True)[1] for classes in bins.classes]
    flat = _Flat(
        bins.categorical.astype(np.uint8), np.array([bins.count(k) for k in range(len(bins.cuts))], np.int64),
        np.cumsum([0, *map(len, bins.cuts)], dtype=np.int64), np.concatenate([np.zeros(0), *bins.cuts]),
        np.cumsum([0, *map(len, tried)], dtype=np.int64), np.concatenate([np.zeros(0, np.int64), *tried]),
    )  # fmt: skip
    tested = np.empty((len(forest.value), 3), np.int32)
    if not run(_features_of_leaves, 8 * len(tested), paths, tested):
        return None
    pairs, table_of = _choose_tables(tested)
    # What tests nothing reads feature 0, or the other feature of the pair: its places are then all 0.
    reads = np.where(pairs < 0, np.maximum(pairs[:, :1], 0), pairs)
    lengths = flat.counts[reads[:, :2]]
    if lengths.sum() > MAX_PLACES:
        return None
    at = (np.cumsum(lengths) - lengths.ravel()).reshape(-1, 2)
    tables = _Tables(pairs, table_of, at, np.zeros(int(lengths.sum()), np.int32), np.ones((len(pairs), 2), np.int64))
    conditions = len(forest.value) * int(5 + max((len(codes) for codes in tried), default=0))
    run(_mark, 5 * conditions, paths, flat, tables)
    run(_settle, len(tables.places), flat, tables)
    cells = tables.wide.prod(axis=1)
    if cells.sum() > min(most_cells, np.iinfo(np.int32).max) or cells[table_of].sum() > MAX_WORK:
        return None
    start, values = np.cumsum(cells) - cells, np.zeros(int(cells.sum()))
    allowed, work = np.empty((2, int(tables.wide.max(initial=1))), np.uint8), tables.wide.sum(axis=1) + 0.3 * cells
    run(_fill, float(work[table_of].sum()), paths, flat, tables, forest.value, start, allowed, values)
    units = np.column_stack([tables.wide[:, 1], np.ones(len(pairs), np.int64)])
    places = (tables.places * np.repeat(units.ravel(), lengths.ravel())).astype(np.int32)
    return PairTables(np.column_stack([reads, start, at]), places, values)


class _Paths(NamedTuple):
    """The nodes of a forest; and of all nodes, then all leaves: parent, side (1 if a left child), and output if a root."""

    feature: Int32Array
    threshold: FloatArray
    missing_left: UInt8Array
    words_at: Int32Array
    words_in: Int32Array
    words: UInt32Array
    parent: Int32Array
    side: UInt8Array
    output: Int32Array


class _Flat(NamedTuple):
    """`ForestBins` as flat arrays: ``counts`` of bins per feature, cuts, and in ``codes`` a category + 1 of each class."""

    categorical: UInt8Array
    counts: IntArray
    cuts_at: IntArray
    cuts: FloatArray
    codes_at: IntArray
    codes: IntArray


class _Tables(NamedTuple):
    """Tables of a forest before they are filled: features and output, shape, and the row or column of each bin."""

    pairs: Int32Array  # per table: the two features (-1 for none) and the output
    table_of: Int32Array  # per leaf
    at: IntArray  # per table: where the rows and the columns of its bins begin among the places
    places: Int32Array  # row or column of each bin
    wide: IntArray  # per table: number of rows and of columns


def _choose_tables(tested: Int32Array) -> tuple[Int32Array, Int32Array]:
    """Return the distinct rows of ``tested`` as tables, and each leaf's table; with one feature, a pair that has it."""
    pairs, pair_of = np.unique(tested, axis=0, return_inverse=True)
    home = np.arange(len(pairs))
    first: dict[tuple[int, int], int] = {}
    for index, (a, b, c) in enumerate(pairs.tolist()):
        if b >= 0:
            for feature in (-1, a, b):
                first.setdefault((feature, c), index)
    for index, (a, b, c) in enumerate(pairs.tolist()):
        if b < 0:
            home[index] = first.get((a, c), index)
    kept, moved = np.unique(home, return_inverse=True)
    return np.ascontiguousarray(pairs[kept], np.int32), moved.ravel()[pair_of.ravel()].astype(np.int32)


@jit
def _in_set(words: UInt32Array, at: int, many: int, code: int) -> bool:
    """Return whether ``code`` (code of the category + 1) is in the set of ``many`` words that begins at ``words[at]``."""
    word = code >> 5
    return word < many and (words[at + word] >> np.uint32(code & 31)) & np.uint32(1) == np.uint32(1)


@jit
def code_of(value: float, levels: int) -> int:
    """Return 1 + the code of a category; 0 if it is missing or unseen."""
    return int(value) + 1 if 0.0 <= value < levels else 0


@jit
def find_leaf(
    here: int, X: FloatArray, at: int, F: FloatArray, i: int, levels: IntArray, node: Int32Array, threshold: FloatArray,
    words: UInt32Array,
) -> int:  # fmt: skip
    """Return the leaf of a row (features X[:, at], then scores F[:, i]) in the tree with root ``here``; see `Forest`."""
    features = len(X)
    while here >= 0:
        feature = node[here, 0]
        value = X[feature, at] if feature < features else F[feature - features, i]
        if node[here, 4] >= 0:
            left = _in_set(words, node[here, 4], node[here, 5], code_of(value, levels[feature]))
        elif math.isnan(value):
            left = node[here, 3] == 1
        else:
            left = value <= threshold[here]
        here = node[here, 1] if left else node[here, 2]
    return ~here


@jit
def _split(labels: Int32Array, groups: int, codes: IntArray, words: UInt32Array, at: int, many: int) -> int:
    """Split groups of categories, numbered in ``labels``, by membership of ``codes`` in one set; return how many result."""
    size, inside, fresh = np.zeros(groups, np.int64), np.zeros(groups, np.int64), np.zeros(groups, np.int32)
    for i in range(len(labels)):
        size[labels[i]] += 1
        inside[labels[i]] += _in_set(words, at, many, codes[i])
    for i in range(len(labels)):
        label = labels[i]
        if inside[label] < size[label] and _in_set(words, at, many, codes[i]):
            if fresh[label] == 0:
                fresh[label] = groups
                groups += 1
            labels[i] = fresh[label]
    return groups


@jit
def _tell_apart(
    nodes: IntArray, words_at: Int32Array, words_in: Int32Array, words: UInt32Array, labels: Int32Array
) -> None:
    """Write equal ``labels`` for two categories if and only if each of the nodes sends both to the same side."""
    groups = 1
    codes = np.arange(len(labels))
    for node in nodes:
        groups = _split(labels, groups, codes, words, words_at[node], words_in[node])


@jit
def _features_of_leaves(paths: _Paths, tested: Int32Array) -> bool:
    """Write per leaf the one or two features on its path (-1 for none) and its output; False if a path tests three."""
    for leaf in range(len(tested)):
        a, b = -1, -1
        top = len(paths.feature) + leaf
        node = paths.parent[top]
        while node >= 0:
            this = paths.feature[node]
            if a < 0:
                a = this
            elif this != a and b < 0:
                b = this
            elif this not in (a, b):
                return False
            top, node = node, paths.parent[node]
        if 0 <= b < a:
            a, b = b, a
        tested[leaf, 0], tested[leaf, 1], tested[leaf, 2] = a, b, paths.output[top]
    return True


@jit
def _cut(flat: _Flat, feature: int, threshold: float) -> int:
    """Return the index of ``threshold`` among the cuts of ``feature``."""
    return int(np.searchsorted(flat.cuts[flat.cuts_at[feature] : flat.cuts_at[feature + 1]], threshold))


@jit
def _mark(paths: _Paths, flat: _Flat, tables: _Tables) -> None:
    """Mark in ``tables.places`` the first bin above each cut on a table's paths; for categories, number the classes."""
    for leaf in range(len(tables.table_of)):
        table = tables.table_of[leaf]
        node = paths.parent[len(paths.feature) + leaf]
        while node >= 0:
            feature = paths.feature[node]
            which = 0 if tables.pairs[table, 0] == feature else 1
            at = tables.at[table, which]
            if flat.categorical[feature]:
                labels = tables.places[at : at + flat.counts[feature]]
                codes = flat.codes[flat.codes_at[feature] : flat.codes_at[feature + 1]]
                groups, words_at, many = tables.wide[table, which], paths.words_at[node], paths.words_in[node]
                tables.wide[table, which] = _split(labels, groups, codes, paths.words, words_at, many)
            else:
                tables.places[at + _cut(flat, feature, paths.threshold[node]) + 1] = 1
            node = paths.parent[node]


@jit
def _settle(flat: _Flat, tables: _Tables) -> None:
    """Turn the marks of `_mark` on numeric features into row and column indices; missing values have their own index."""
    for table in range(len(tables.pairs)):
        for which in range(2):
            feature = tables.pairs[table, which]
            if feature >= 0 and not flat.categorical[feature]:
                at = tables.at[table, which]
                last = at + flat.counts[feature] - 1
                for place in range(at + 1, last):
                    tables.places[place] += tables.places[place - 1]
                tables.places[last] = tables.places[last - 1] + 1
                tables.wide[table, which] = tables.places[last] + 1


@jit
def _narrow(paths: _Paths, flat: _Flat, places: Int32Array, wide: int, node: int, side: int, allowed: UInt8Array) -> None:
    """Set ``allowed`` to 0 for the rows or columns of a table that ``node`` sends to the side other than ``side``."""
    feature = paths.feature[node]
    if flat.categorical[feature]:
        for class_ in range(flat.counts[feature]):
            code = flat.codes[flat.codes_at[feature] + class_]
            if _in_set(paths.words, paths.words_at[node], paths.words_in[node], code) != (side == 1):
                allowed[places[class_]] = 0
        return
    last = places[_cut(flat, feature, paths.threshold[node])]
    for place in range(wide - 1):
        if (place <= last) != (side == 1):
            allowed[place] = 0
    if paths.missing_left[node] != side:
        allowed[wide - 1] = 0


@jit
def _fill(
    paths: _Paths, flat: _Flat, tables: _Tables, value: FloatArray, start: IntArray, allowed: UInt8Array, values: FloatArray
) -> None:
    """Add the value of each leaf to the cells of its table that satisfy its conditions; ``allowed`` is scratch space."""
    for leaf in range(len(value)):
        table = tables.table_of[leaf]
        rows, columns = tables.wide[table]
        allowed[0, :rows] = 1
        allowed[1, :columns] = 1
        below = len(paths.feature) + leaf
        while paths.parent[below] >= 0:
            node = paths.parent[below]
            which = 0 if tables.pairs[table, 0] == paths.feature[node] else 1
            places = tables.places[tables.at[table, which] :]
            _narrow(paths, flat, places, tables.wide[table, which], node, paths.side[below], allowed[which])
            below = node
        for row in range(rows):
            if allowed[0, row] == 1:
                cell = start[table] + row * columns
                for column in range(columns):
                    if allowed[1, column] == 1:
                        values[cell + column] += value[leaf]


class Stage(NamedTuple):
    """One round of cascade number ``cascade``: F becomes ``theta * (F + sum of the trees of forest)``."""

    cascade: int
    theta: float
    forest: Forest


class CascadeProgram(NamedTuple):
    """The stages of all cascades as flat arrays: all arguments of `score` before X."""

    sizes: IntArray  # features, outputs, cascades, stages, link
    levels: IntArray  # the number of levels of each feature; -1 if it is numeric
    cuts_at: IntArray  # start of the cuts of each feature, then of the prediction columns of every stage
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
    node: Int32Array  # columns feature, left, right, missing_left, words_at and words_in of `Forest`
    threshold: FloatArray
    words: UInt32Array
    leaf: FloatArray
    floors: FloatArray  # the distances from 0 and 1 that probabilities keep before the link

    def score(self, X: FloatArray, P: FloatArray, out: FloatArray, rows: int | None = None) -> None:
        """Write to ``out`` the scores of predictions P with features X, see `score`; ``rows`` is the number to be scored.

        A few rows are scored uncompiled until the scorer is compiled.
        """
        lookups = len(self.levels) + len(self.cuts_at) + len(self.table) + len(self.tree)
        answer(score, 6.0 * lookups * (len(P) if rows is None else rows), *self, X, P, out)


def build(
    stages: Sequence[Stage], levels: Sequence[int], outputs: int, cascades: int, link: int,
    floors: tuple[float, float] = (MIN_PROBABILITY, MIN_PROBABILITY),
) -> CascadeProgram:  # fmt: skip
    """Return the program of the stages, in order of execution; a stage is collapsed into pair tables if MAX_CELLS allows.

    Trees number the features as ``levels`` does, then the prediction columns. ``levels`` has the number of levels of each
    feature, -1 for a number; ``link`` is IDENTITY, LOGIT or SOFTMAX.
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
        np.cumsum([0, *map(len, cuts)], dtype=np.int64), np.concatenate([np.zeros(0), *cuts]),
        np.cumsum([0, *map(len, classes)], dtype=np.int64), np.concatenate([np.zeros(0, np.int32), *classes]),
        np.array([stage.cascade for stage in stages], np.int64), np.array([stage.theta for stage in stages], np.float64),
        np.array(tables_at, np.int64), np.concatenate(table),
        np.concatenate(places), np.concatenate(values),
        np.array(trees_at, np.int64), np.ascontiguousarray(np.column_stack([walked.root, walked.output]), np.int32),
        np.ascontiguousarray(np.column_stack(node), np.int32), walked.threshold, walked.words, walked.value,
        np.array(floors, np.float64),
    )  # fmt: skip


@jit
def _bin(x: FloatArray, cuts: FloatArray, bins: Int32Array) -> None:
    """Write to ``bins[i]`` the number of ``cuts`` below ``x[i]``, or len(cuts) + 1 if it is NaN."""
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
    """Return the logit of ``p``, clipped to MIN_PROBABILITY from 0 and 1."""
    p = min(max(p, MIN_PROBABILITY), 1.0 - MIN_PROBABILITY)
    return math.log(p) - math.log1p(-p)


@jit
def _enter(P: FloatArray, start: int, rows: int, link: int, floors: FloatArray, F: FloatArray) -> None:
    """Write to F (outputs, rows) the link function of ``rows`` rows of P from ``start`` on, kept ``floors`` from 0, 1."""
    for c in range(len(F)):
        for i in range(rows):
            p = P[start + i, c]
            if link == LOGIT:
                p = min(max(p, floors[0]), 1.0 - floors[1])
                # Of floors below the precision of 1 - p, that of 1 is the logarithm of its own floor.
                p = math.log(p) - (math.log1p(-p) if p < 1.0 else math.log(floors[1]))
            elif link == SOFTMAX:
                p = math.log(max(p, floors[0]))
            F[c, i] = p


@jit
def _leave(F: FloatArray, start: int, rows: int, link: int, out: FloatArray) -> None:
    """Write to ``out``, from row ``start`` on, the inverse link function of F (outputs, rows)."""
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
    """Add to ``added`` (outputs, rows) tables ``first`` to ``last - 1`` of `PairTables` at ``bins`` (features, rows)."""
    for t in range(first, last):
        a, b, c = bins[table[t, 0]], bins[table[t, 1]], added[table[t, 2]]
        begin, across, down = table[t, 3], table[t, 4], table[t, 5]
        for i in range(rows):
            c[i] += values[np.uint64(begin + places[np.uint64(across + a[i])] + places[np.uint64(down + b[i])])]


@jit
def _mean(F: FloatArray, rows: int) -> None:
    """Write the mean of F (cascades, outputs, rows) over the cascades to F[0]."""
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
    leaf: FloatArray, floors: FloatArray, X: FloatArray, P: FloatArray, out: FloatArray,
) -> None:  # fmt: skip
    """Apply a `CascadeProgram` to predictions P (rows, outputs) with features X (features, rows), categories as codes."""
    features, outputs = sizes[0], sizes[1]
    link = sizes[4]
    most = min(ROWS, len(P))
    bins = np.empty((features + outputs, most), np.int32)
    F, added = np.empty((sizes[2], outputs, most)), np.empty((outputs, most))
    for start in range(0, len(P), ROWS):
        rows = min(ROWS, len(P) - start)
        _enter(P, start, rows, link, floors, F[0])
        F[1:] = F[0]
        for j in range(features):
            x, b = X[j][start : start + rows], bins[j]
            if levels[j] >= 0:
                for i in range(rows):
                    b[i] = classes[np.uint64(classes_at[j] + code_of(x[i], levels[j]))]
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
