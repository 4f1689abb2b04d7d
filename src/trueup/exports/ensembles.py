"""Searches and trees in the form of ONNX: attributes of TreeEnsembleRegressor, and bit masks of leaves per code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence

    from trueup._types import AnyArray, FloatArray, IntArray
    from trueup.exports.program import CodeTrees

    # A node is a leaf with its weight, or (column, threshold, left, right): rows of at most the threshold go left.
    Expand = Callable[[Any], float | tuple[int, float, Hashable, Hashable]]

MASK_LEAVES = 31  # leaves of a tree that fit into 32 bits without the sign
PRIME = 37  # the first 36 powers of 2 have different remainders
MAX_JOINT = 128  # masks by several columns at once
MAX_WEIGHT = 2**24  # integers below it are exact in single precision, in which TreeEnsembleRegressor adds


@dataclass(frozen=True, eq=False)
class SetTests:
    """Columns of zeros and ones that turn tests of membership into comparisons: per tested column one table per code."""

    columns: tuple[int, ...]
    tables: tuple[AnyArray, ...]  # (codes, sets): 0 for members


def ensemble(roots: Iterable[Hashable], expand: Expand, dtype: Any) -> dict[str, Any]:
    """Return the attributes of a TreeEnsembleRegressor with one target per tree.

    A target has a single weight in each row, so that no sum is rounded and its value does not depend on threads.
    """
    nodes: list[tuple[int, int, int, float, int, int]] = []  # tree, place, column, threshold, left, right
    leaves: list[tuple[int, int, float]] = []
    tree = -1
    for tree, root in enumerate(roots):
        stack, known = [(0, expand(root))], 1
        while stack:
            place, node = stack.pop()
            if not isinstance(node, tuple):
                assert abs(node) < MAX_WEIGHT, "weights are integers that single precision represents"
                nodes.append((tree, place, 0, 0.0, 0, 0))
                leaves.append((tree, place, node))
                continue
            column, threshold, left, right = node
            nodes.append((tree, place, column, threshold, known, known + 1))
            stack += [(known + 1, expand(right)), (known, expand(left))]
            known += 2
    trees, places, columns, thresholds, lefts, rights = zip(*nodes, strict=True)
    leaf_trees, leaf_places, weights = zip(*leaves, strict=True)
    return {
        "nodes_treeids": trees, "nodes_nodeids": places, "nodes_featureids": columns,
        "nodes_values": np.array(thresholds, dtype),
        "nodes_modes": ["BRANCH_LEQ" if right else "LEAF" for right in rights],
        "nodes_truenodeids": lefts, "nodes_falsenodeids": rights,
        "target_treeids": leaf_trees, "target_nodeids": leaf_places, "target_ids": leaf_trees,
        "target_weights": np.array(weights, dtype),
        "n_targets": tree + 1, "aggregate_function": "SUM", "post_transform": "NONE",
    }  # fmt: skip


def counts(cuts: Sequence[tuple[FloatArray, str]]) -> dict[str, Any]:
    """Return the ensemble that counts how many cuts are below each column, or at most it if they are closed on the left.

    NaN is above all cuts and infinity.
    """
    # "At least a cut" is "above the float below it"; a NaN is not at most infinity.
    own = [np.nextafter(one, -np.inf) if closed == "left" else one for one, closed in cuts]
    ends = [np.append(one, np.inf).tolist() for one in own]

    def expand(node: tuple[int, int, int]) -> float | tuple[int, float, Hashable, Hashable]:
        column, low, high = node
        if low == high:
            return float(low)
        middle = (low + high) // 2
        return column, ends[column][middle], (column, low, middle), (column, middle + 1, high)

    return ensemble([(column, 0, len(one)) for column, one in enumerate(ends)], expand, np.float64)


def counts_in(cuts: Sequence[FloatArray]) -> dict[str, Any]:
    """Return the ensemble that counts how many of the cuts of list number ``x[1]`` are below ``x[0]``."""
    lists = [one.tolist() for one in cuts]

    def expand(node: tuple[int, int, int]) -> float | tuple[int, float, Hashable, Hashable]:
        own, low, high = node
        middle = (low + high) // 2
        if own < 0:  # not yet decided which list
            if low == high:
                return expand((low, 0, len(lists[low])))
            return 1, float(middle), (-1, low, middle), (-1, middle + 1, high)
        if low == high:
            return float(low)
        return 0, lists[own][middle], (own, low, middle), (own, middle + 1, high)

    return ensemble([(-1, 0, len(lists) - 1)], expand, np.float64)


def positions(values: IntArray, width: int) -> dict[str, Any]:
    """Return the ensemble of 1 + the position of each column among ascending integers, 0 if it is not among them."""
    ends = np.union1d(values - 1, values)
    found = np.append(np.where(np.isin(ends, values), np.searchsorted(values, ends) + 1, 0), 0).tolist()
    cuts = ends.astype(np.float64).tolist()

    def expand(node: tuple[int, int, int]) -> float | tuple[int, float, Hashable, Hashable]:
        column, low, high = node
        if low == high:
            return float(found[low])
        middle = (low + high) // 2
        return column, cuts[middle], (column, low, middle), (column, middle + 1, high)

    return ensemble([(column, 0, len(cuts)) for column in range(width)], expand, np.float64)


def walked(trees: CodeTrees, sizes: Sequence[int]) -> tuple[dict[str, Any], SetTests, FloatArray]:
    """Return the ensemble of the place of the leaf in each tree, its columns of sets, and the values by tree and place.

    ``sizes`` has the number of codes of each column. The columns of sets follow those of the codes. A code of missing
    numbers that goes left is tested as a set, too.
    """
    sets: dict[int, dict[bytes, tuple[int, AnyArray]]] = {}
    tests: dict[int, tuple[int, float, bool] | tuple[int, int, bool]] = {}
    for node, column in enumerate(trees.column.tolist()):
        left = goes_left(trees, node, sizes[column])
        flipped, left = bool(not left[0]), left if left[0] else ~left  # code 0 goes left, so that complements are one
        prefix = int(left.argmin()) if not left.all() else len(left)
        if not left[prefix:].any():
            tests[node] = (column, prefix - 0.5, flipped)
            continue
        own = sets.setdefault(column, {})
        place, _ = own.setdefault(left.tobytes(), (len(own), left))
        tests[node] = (-1 - column, place, flipped)
    starts, start = {}, len(sizes)
    for column, own in sets.items():
        starts[column], start = start, start + len(own)
    places: list[dict[int, int]] = [{} for _ in trees.root]

    def expand(node: tuple[int, int]) -> float | tuple[int, float, Hashable, Hashable]:
        tree, own = node
        if own < 0:
            return float(places[tree].setdefault(~own, len(places[tree])))
        column, threshold, flipped = tests[own]
        if column < 0:
            column, threshold = starts[-1 - column] + int(threshold), 0.5
        left, right = (tree, int(trees.left[own])), (tree, int(trees.right[own]))
        return (column, threshold, right, left) if flipped else (column, threshold, left, right)

    attributes = ensemble(list(enumerate(trees.root.tolist())), expand, np.float32)
    values = np.zeros((len(trees), max(map(len, places))))
    for tree, found in enumerate(places):
        values[tree, : len(found)] = trees.value[list(found)]
    tables = [1.0 - np.column_stack([left for _, left in own.values()]).astype(np.float32) for own in sets.values()]
    return attributes, SetTests(tuple(sets), tuple(tables)), values


def goes_left(trees: CodeTrees, node: int, size: int) -> AnyArray:
    """Return which of the codes 0 to ``size`` - 1 a node sends left."""
    codes, members = np.arange(size), trees.members[node]
    if members is not None:
        left = np.zeros(size, np.bool_)
        left[[member for member in members if member < size]] = True
        return left
    return np.asarray(np.where(codes == trees.missing[node], trees.missing_left[node] == 1, codes <= trees.cut[node]))


def masks(trees: CodeTrees, sizes: Sequence[int]) -> tuple[dict[int, AnyArray], FloatArray] | None:
    """Return per tested column which leaves of each tree its codes leave, and the values of the leaves by their bit.

    The only leaf that all columns leave is the one that a row reaches (as in QuickScorer, Lucchese et al., 2015). Bits are
    those of leaves from left to right; a word has those of tree t below those of tree t + (T + 1) // 2. None if a tree has
    too many leaves, or none a test. The value of bit b is at place 2^b modulo `PRIME`.
    """
    half, full = (len(trees) + 1) // 2, 2**64 - 1
    kept = np.full(half, full, np.uint64)  # bits of leaves
    tables: dict[int, AnyArray] = {}
    values = np.zeros((len(trees), PRIME))
    for tree, root in enumerate(trees.root.tolist()):
        leaves, nodes = _spans(trees, root)
        if len(leaves) > MASK_LEAVES:
            return None
        values[tree, [2**bit % PRIME for bit in range(len(leaves))]] = trees.value[leaves]
        word, shift = tree % half, 32 * (tree // half)
        kept[word] &= np.uint64(full ^ (_bits(len(leaves), 32) << shift))
        for node, first, middle, last in nodes:
            column = int(trees.column[node])
            if column not in tables:
                tables[column] = np.full((sizes[column], half), full, np.uint64)
            goes = (full ^ (_bits(first, middle) << shift), full ^ (_bits(middle, last) << shift))  # right, left
            tables[column][:, word] &= np.array(goes, np.uint64)[goes_left(trees, node, sizes[column]).astype(np.int64)]
    if not tables:
        return None
    tables[min(tables)] &= kept
    return tables, values


def joint(tables: Mapping[int, AnyArray]) -> list[tuple[tuple[int, ...], AnyArray]]:
    """Return groups of columns with few codes together: the columns, and the masks by their codes in mixed radix."""
    groups: list[tuple[tuple[int, ...], AnyArray]] = []
    for column, table in sorted(tables.items(), key=lambda own: len(own[1])):
        if groups and len(groups[-1][1]) * len(table) <= MAX_JOINT:
            columns, first = groups.pop()
            groups.append(((*columns, column), (first[:, None] & table[None]).reshape(-1, table.shape[1])))
        else:
            groups.append(((column,), table))
    return groups


def _bits(first: int, last: int) -> int:
    return (1 << last) - (1 << first)


def _spans(trees: CodeTrees, root: int) -> tuple[list[int], list[tuple[int, int, int, int]]]:
    """Return the leaves of a tree from left to right, and for each node the first leaf of both sides and the last's end."""
    leaves: list[int] = []
    nodes: list[tuple[int, int, int, int]] = []
    stack: list[tuple[int, int, int, int]] = [(root, 0, 0, 0)]  # a node, its state, where its sides start
    while stack:
        node, state, first, middle = stack.pop()
        if node < 0:
            leaves.append(~node)
        elif state == 0:
            stack += [(node, 1, len(leaves), 0), (int(trees.left[node]), 0, 0, 0)]
        elif state == 1:
            stack += [(node, 2, first, len(leaves)), (int(trees.right[node]), 0, 0, 0)]
        else:
            nodes.append((node, first, middle, len(leaves)))
    return leaves, nodes
