"""Forests as plain arrays, and their exact collapse into one table for each pair of features.

A node sends a row left where its number is at most the threshold, or its category is in the node's set; a missing number
goes where the node says. Where no leaf of a forest tests more than two features, the sum of all its trees is a sum over
pairs of features of one table each: a leaf adds its value to every cell its conditions allow, whatever their number.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trueup.kernels._jit import jit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int32]
    Longs = NDArray[np.int64]
    Words = NDArray[np.uint32]
    Flags = NDArray[np.uint8]

__all__ = ["DEEPEST", "MOST_CELLS", "NUMERIC", "Bins", "Forest", "PairTables", "collapse", "find_bins", "join_forests"]

MOST_CELLS = MOST_PLACES = 1 << 22  # 32 MiB of float64 and 16 MiB of int32; beyond them trees are walked
MOST_WORK = 1 << 32  # additions of leaves to cells
DEEPEST = 64  # no tree is deeper
NUMERIC = -1
KINDS = {"threshold": np.float64, "value": np.float64, "missing_left": np.uint8, "words": np.uint32}  # all others int32


@dataclass(frozen=True, eq=False)
class Forest:
    """Trees as arrays; every node and every leaf belongs to one tree.

    Attributes
    ----------
    root : ndarray of int32, one a tree
        Where the tree begins: a node, or the complement (~) of a leaf.
    output : ndarray of int32, one a tree
        Which output (class) the tree adds to.
    feature : ndarray of int32, one a node
    threshold : ndarray of float64, one a node
        A number at most this goes left.
    left, right : ndarray of int32, one a node
        A node, or the complement (~) of a leaf.
    missing_left : ndarray of uint8, one a node
        Whether a missing number goes left.
    words_at : ndarray of int32, one a node
        Where the set of a categorical node begins among the words; -1 for a numeric node.
    words_in : ndarray of int32, one a node
        How many words the set has.
    words : ndarray of uint32
        Sets of categories, bit code + 1 (bit 0 is missing or unseen); what is in the set goes left.
    value : ndarray of float64, one a leaf
    """

    root: Ints
    output: Ints
    feature: Ints
    threshold: Floats
    left: Ints
    right: Ints
    missing_left: Flags
    words_at: Ints
    words_in: Ints
    words: Words
    value: Floats

    def __len__(self) -> int:
        return len(self.root)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Give the arrays by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def scaled(self, by: float) -> Forest:
        """Multiply every leaf."""
        return Forest(**{**self.arrays(), "value": self.value * by})


def join_forests(forests: Sequence[Forest]) -> Forest:
    """Put the trees of several forests into one; their sum is the sum of the sums."""
    parts: dict[str, list[NDArray[Any]]] = {field.name: [] for field in fields(Forest)}
    nodes = leaves = words = 0
    for forest in forests:
        for name, array in forest.arrays().items():
            if name in ("root", "left", "right"):
                array = np.where(array >= 0, array + nodes, array - leaves).astype(np.int32)
            elif name == "words_at":
                array = np.where(array >= 0, array + words, array).astype(np.int32)
            parts[name].append(array)
        nodes, leaves, words = nodes + len(forest.feature), leaves + len(forest.value), words + len(forest.words)
    return Forest(**{name: np.concatenate([np.zeros(0, KINDS.get(name, np.int32)), *parts[name]]) for name in parts})


@dataclass(frozen=True, eq=False)
class Bins:
    """How values become bins, feature by feature: by ascending cuts, or by the class of a category.

    A number's bin is how many cuts lie below it; one more bin than that is for a missing number. ``classes`` has the bin
    of code + 1, so that entry 0 is for missing or unseen; its bins are numbered without a gap.
    """

    categorical: NDArray[np.bool_]
    cuts: tuple[Floats, ...]
    classes: tuple[Ints, ...]

    def count(self, feature: int) -> int:
        """Count the bins of a feature."""
        if self.categorical[feature]:
            return int(self.classes[feature].max(initial=0)) + 1
        return len(self.cuts[feature]) + 2


def find_bins(forest: Forest, levels: Sequence[int]) -> Bins:
    """Find the bins that tell apart whatever the forest tells apart; ``levels`` is -1 for a number."""
    cuts, classes = [], []
    for at, count in enumerate(levels):
        nodes = np.flatnonzero(forest.feature == at)
        cuts.append(np.unique(forest.threshold[nodes]) if count == NUMERIC else np.zeros(0))
        classes.append(np.zeros(0 if count == NUMERIC else count + 1, np.int32))
        if count != NUMERIC:
            _tell_apart(nodes, forest.words_at, forest.words_in, forest.words, classes[at])
    return Bins(np.array([count != NUMERIC for count in levels], bool), tuple(cuts), tuple(classes))


@dataclass(frozen=True, eq=False)
class PairTables:
    """The sum of a forest, as tables.

    Table k adds ``values[start[k] + rows[bin of a[k]] + columns[bin of b[k]]]`` to output ``output[k]``, where ``rows`` and
    ``columns`` are the pieces of ``places`` that begin at ``rows_at[k]`` and ``columns_at[k]``. Where b is a, the columns
    are all 0.
    """

    a: Ints
    b: Ints
    output: Ints
    rows_at: Longs
    columns_at: Longs
    places: Ints
    start: Longs
    values: Floats


def collapse(forest: Forest, bins: Bins, most_cells: int = MOST_CELLS) -> PairTables | None:
    """Collapse a forest into pair tables; None where a leaf tests three features, or the tables would be too large.

    Bins that no leaf of a table tells apart share a place in it. Nothing is allocated before its size is known to be
    within bounds.

    Parameters
    ----------
    forest : Forest
    bins : Bins
        At least as fine as what the forest tells apart.
    most_cells : int
        The bound on the cells of all tables together.
    """
    paths, flat = _find_paths(forest), _flatten(bins)
    tested = np.empty((len(forest.value), 3), np.int32)
    if not _features_of_leaves(paths, tested):
        return None
    pairs, table_of = _choose_tables(tested)
    # What tests nothing reads feature 0, or the other feature of the pair: its places are then all 0.
    reads = np.where(pairs < 0, np.maximum(pairs[:, :1], 0), pairs)
    lengths = flat.counts[reads[:, :2]]
    if lengths.sum() > MOST_PLACES:
        return None
    at = (np.cumsum(lengths) - lengths.ravel()).reshape(-1, 2)
    tables = _Tables(pairs, table_of, at, np.zeros(int(lengths.sum()), np.int32), np.ones((len(pairs), 2), np.int64))
    _mark(paths, flat, tables)
    _settle(flat, tables)
    cells = tables.wide.prod(axis=1)
    if cells.sum() > min(most_cells, np.iinfo(np.int32).max) or cells[table_of].sum() > MOST_WORK:
        return None
    start, values = np.cumsum(cells) - cells, np.zeros(int(cells.sum()))
    _fill(paths, flat, tables, forest.value, start, np.empty((2, int(tables.wide.max(initial=1))), np.uint8), values)
    units = np.column_stack([tables.wide[:, 1], np.ones(len(pairs), np.int64)])
    places = (tables.places * np.repeat(units.ravel(), lengths.ravel())).astype(np.int32)
    a, b, output = (np.ascontiguousarray(column) for column in reads.T)
    return PairTables(a, b, output, at[:, 0].copy(), at[:, 1].copy(), places, start, values)


class _Paths(NamedTuple):
    """What leads to every node and, after the nodes, to every leaf: parent, side (1 is left), output of a root."""

    feature: Ints
    threshold: Floats
    missing_left: Flags
    words_at: Ints
    words_in: Ints
    words: Words
    parent: Ints
    side: Flags
    output: Ints


class _Flat(NamedTuple):
    """Bins as flat arrays, with one category for each class to try."""

    categorical: Flags
    counts: Longs
    cuts_at: Longs
    cuts: Floats
    codes_at: Longs
    codes: Longs


class _Tables(NamedTuple):
    """Tables in the making: features and output, the table of each leaf, and the places of bins on both sides.

    ``wide`` is how many places a side has; those of rows are not yet multiplied by the columns.
    """

    pairs: Ints
    table_of: Ints
    at: Longs
    places: Ints
    wide: Longs


def _find_paths(forest: Forest) -> _Paths:
    nodes, size = len(forest.feature), len(forest.feature) + len(forest.value)
    parent, side, output = np.full(size, -1, np.int32), np.zeros(size, np.uint8), np.zeros(size, np.int32)
    for turn, child in enumerate((forest.right, forest.left)):
        at = np.where(child >= 0, child, nodes + ~child)
        parent[at], side[at] = np.arange(nodes), turn
    output[np.where(forest.root >= 0, forest.root, nodes + ~forest.root)] = forest.output
    sets = forest.words_at, forest.words_in, forest.words
    return _Paths(forest.feature, forest.threshold, forest.missing_left, *sets, parent, side, output)


def _flatten(bins: Bins) -> _Flat:
    tried = [np.unique(found, return_index=True)[1] for found in bins.classes]
    counts = [bins.count(feature) for feature in range(len(bins.categorical))]
    return _Flat(
        bins.categorical.astype(np.uint8), np.array(counts, np.int64),
        np.cumsum([0, *map(len, bins.cuts)], dtype=np.int64), np.concatenate([np.zeros(0), *bins.cuts]),
        np.cumsum([0, *map(len, tried)], dtype=np.int64), np.concatenate([np.zeros(0, np.int64), *tried]),
    )  # fmt: skip


def _choose_tables(tested: Ints) -> tuple[Ints, Ints]:
    """Give each leaf a table: its pair's; a leaf of fewer features joins a pair that has them, where there is one."""
    pairs, found = np.unique(tested, axis=0, return_inverse=True)
    home = np.arange(len(pairs))
    first: dict[tuple[int, int], int] = {}
    for at, (a, b, c) in enumerate(pairs.tolist()):
        if b >= 0:
            for feature in (-1, a, b):
                first.setdefault((feature, c), at)
    for at, (a, b, c) in enumerate(pairs.tolist()):
        if b < 0:
            home[at] = first.get((a, c), at)
    kept, moved = np.unique(home, return_inverse=True)
    return np.ascontiguousarray(pairs[kept], np.int32), moved.ravel()[found.ravel()].astype(np.int32)


@jit
def _in_set(words: Words, at: int, many: int, code: int) -> bool:
    """Say whether a category (code + 1) is in a set."""
    word = code >> 5
    return word < many and (words[at + word] >> np.uint32(code & 31)) & np.uint32(1) == np.uint32(1)


@jit
def _split(labels: Ints, groups: int, codes: Longs, words: Words, at: int, many: int) -> int:
    """Split every group of labels into what is in a set and what is not; give the number of groups."""
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
def _tell_apart(nodes: Longs, words_at: Ints, words_in: Ints, words: Words, labels: Ints) -> None:
    """Give the same label to the categories that no node tells apart."""
    groups = 1
    codes = np.arange(len(labels))
    for node in nodes:
        groups = _split(labels, groups, codes, words, words_at[node], words_in[node])


@jit
def _features_of_leaves(paths: _Paths, tested: Ints) -> bool:
    """Write the two features each leaf tests, ascending and -1 for none, and its output; False where one tests more."""
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
    """Give the number of a threshold among the cuts of its feature."""
    return int(np.searchsorted(flat.cuts[flat.cuts_at[feature] : flat.cuts_at[feature + 1]], threshold))


@jit
def _mark(paths: _Paths, flat: _Flat, tables: _Tables) -> None:
    """Mark the bins where a place begins: above each cut that a leaf of the table uses; label classes told apart."""
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
    """Number the places of numeric features from the marks; missing has a place of its own."""
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
def _narrow(paths: _Paths, flat: _Flat, places: Ints, wide: int, node: int, side: int, allowed: Flags) -> None:
    """Take away the places that a node sends to the other side."""
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
def _fill(paths: _Paths, flat: _Flat, tables: _Tables, value: Floats, start: Longs, allowed: Flags, values: Floats) -> None:
    """Add every leaf's value to the cells its conditions allow; ``allowed`` is room to work in."""
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
