"""Learners for all level sets of a score at once: small regression trees, or straight lines.

Globus-Harris, Harrison, Kearns, Roth and Sorrell (2023), "Multicalibration as boosting for regression": each round of
their Algorithm 1 asks for one least squares fit on every level set. Level sets are disjoint, so one pass over the rows
serves all of them, and levels are shared out to threads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trueup.errors import ArgumentError, TrueupError
from trueup.kernels.binning import order_statistics
from trueup.kernels.levels import grow_levels, order_by_level, read_lines, walk_levels
from trueup.kernels.trees import KINDS, Forest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trueup._types import AnyArray, FloatArray, Int32Array, IntArray, UInt8Array
    from trueup.kernels.threads import Workers


SHARES = 4  # of the levels for each thread, so that none waits long for another
CHUNK = 65_536  # rows that are walked by one call
DUST = 1e-9  # of a weight: less is rounding
MOST_CELLS = 2**30  # numbers laid out for a regressor of another library: 8 GiB
LEAF = 20.0  # rows, the fewest of a leaf where levels have many
WIDEST = 500  # slopes of a line
SINGULAR = 1e-10  # of the largest eigenvalue: a direction in which the rows of a level do not differ


class Columns:
    """Features cut into bins once: 0 is missing, numbers by their cuts, categories by their code.

    Parameters
    ----------
    columns : sequence of ndarray
        float64 with NaN for missing, or int32 codes with -1 for missing.
    levels : sequence of int
        How many levels each has; -1 for a number.
    bins : int
        The most bins of a number. One of no more distinct values than that keeps them all apart.
    """

    def __init__(self, columns: Sequence[AnyArray], levels: Sequence[int], bins: int) -> None:
        self.raw, self.levels = list(columns), tuple(levels)
        self.cuts = [np.zeros(0) if many >= 0 else _cuts(c, bins) for c, many in zip(columns, levels, strict=True)]
        self.categorical = np.array([many >= 0 for many in levels], np.uint8)
        counts = [many + 1 if many >= 0 else len(cuts) + 2 for many, cuts in zip(levels, self.cuts, strict=True)]
        self.counts = np.array(counts, np.int64)
        rows = len(columns[0]) if columns else 0
        self.codes = np.empty((len(columns), rows), np.uint32 if self.counts.max(initial=0) > 2**16 else np.uint16)
        for at, (column, many) in enumerate(zip(columns, levels, strict=True)):
            if many >= 0:
                self.codes[at] = column + 1
            else:
                self.codes[at] = np.where(np.isnan(column), 0, np.searchsorted(self.cuts[at], column) + 1)


def _cuts(column: FloatArray, bins: int) -> FloatArray:
    """Cut a number between its distinct values where there are few, else at quantiles; a cut belongs to the left."""
    known = column[~np.isnan(column)]
    few = np.unique(known[:1000])
    distinct = np.unique(known) if len(few) <= bins else few
    if len(distinct) <= bins:
        with np.errstate(invalid="ignore", over="ignore"):
            middle = distinct[:-1] / 2 + distinct[1:] / 2
        inside = np.isfinite(middle) & (middle >= distinct[:-1]) & (middle < distinct[1:])
        return np.where(inside, middle, distinct[:-1])
    ranks = np.unique((np.arange(1, bins) * len(known)) // bins)
    return np.setdiff1d(order_statistics(known, ranks), [known.max()])


class Trees(NamedTuple):
    """A tree for each level, as a heap: features (-1 at leaves), cuts, ways of the missing, values of all nodes."""

    feature: Int32Array
    cut: Int32Array
    side: UInt8Array
    value: FloatArray


def level_edges(scores: FloatArray, weight: FloatArray, levels: int, least: float) -> FloatArray:
    """Cut scores into levels of about equal weight, none of less than ``least``; equal scores stay together.

    Examples
    --------
    >>> level_edges(np.array([.1, .2, .2, .3, .4, .9]), np.ones(6), 3, 1)
    array([0.2, 0.3])
    >>> level_edges(np.array([.1, .2, .2, .3, .4, .9]), np.ones(6), 3, 3)
    array([0.2])
    """
    values, at = np.unique(scores, return_inverse=True)
    below = np.cumsum(np.bincount(at.ravel(), weight))
    whole = float(below[-1])
    many = max(min(levels, math.floor(whole / max(least, 1e-300) + DUST)), 1)
    edges, last = [], 0.0
    for step in range(1, many):
        place = int(np.searchsorted(below, whole * step / many - DUST * whole))
        if below[place] - last >= least * (1 - DUST) and whole - below[place] >= max(least * (1 - DUST), DUST * whole):
            edges.append(values[place])
            last = float(below[place])
    return np.unique(np.array(edges, np.float64))


def min_leaf_rows(min_rows: float, depth: int) -> float:
    """Say how many rows a leaf has at least, on levels of no fewer than so many."""
    return min(LEAF, min_rows / 2.0**depth)


def grow_trees(
    data: Columns,
    level: Int32Array,
    rows: IntArray,
    levels: int,
    target: FloatArray,
    weight: FloatArray,
    *,
    depth: int,
    least: float,
    l2: float,
    workers: Workers,
) -> Trees:
    """Grow one tree on the rows of each level."""
    order, starts = order_by_level(level, rows, levels)
    nodes = 2 ** (depth + 1) - 1
    made = Trees(
        np.full((levels, nodes), -1, np.int32),
        np.zeros((levels, nodes), np.int32),
        np.zeros((levels, nodes), np.uint8),
        np.zeros((levels, nodes)),
    )

    def some(which: IntArray) -> None:
        grow_levels(
            which, order, starts, data.codes, data.counts, data.categorical, target, weight, float(least), float(l2), *made
        )

    workers.map(some, _shares(np.diff(starts), workers.threads))
    return made


def _shares(sizes: IntArray, threads: int) -> list[IntArray]:
    """Share levels out, the largest first, so that each share has about as many rows."""
    largest = np.argsort(-sizes, kind="stable")
    largest = largest[sizes[largest] > 0]
    shares = min(SHARES * threads if threads > 1 else 1, len(largest))
    return [largest[at::shares] for at in range(shares)]


def tree_values(data: Columns, trees: Trees, level: Int32Array, workers: Workers) -> FloatArray:
    """Give every row the value of its leaf in the tree of its level."""
    out = np.empty(len(level))

    def some(start: int) -> None:
        end = min(start + CHUNK, len(level))
        walk_levels(start, end, level, data.codes, data.categorical, *trees, out)

    workers.map(some, range(0, len(level), CHUNK))
    return out


def to_forest(data: Columns, trees: Trees) -> Forest:
    """Lay trees out as a forest, without what is not reached."""
    feature, cut = trees.feature, trees.cut
    count, nodes = feature.shape
    reached = np.zeros((count, nodes), bool)
    reached[:, :1] = True
    inner = np.zeros((count, nodes), bool)
    for k in range(nodes):
        inner[:, k] = reached[:, k] & (feature[:, k] >= 0)
        if 2 * k + 2 < nodes:
            reached[:, 2 * k + 1] = reached[:, 2 * k + 2] = inner[:, k]
    leaf = reached & ~inner
    link = np.where(inner.ravel(), np.cumsum(inner) - 1, ~(np.cumsum(leaf) - 1)).reshape(count, nodes)
    tree, at = np.nonzero(inner)
    own, cuts = feature[tree, at], cut[tree, at]
    categorical = data.categorical[own] > 0 if len(own) else np.zeros(0, bool)
    ends = [np.append(one, np.inf) for one in data.cuts]
    threshold = [0.0 if c else float(ends[f][b - 1]) for f, b, c in zip(own, cuts, categorical, strict=True)]
    words_in = np.where(categorical, cuts // 32 + 1, 0)
    words = np.zeros(int(words_in.sum()), np.uint32)
    begin = np.cumsum(words_in) - words_in
    words[begin[categorical] + cuts[categorical] // 32] = np.uint32(1) << (cuts[categorical] % 32).astype(np.uint32)
    arrays = {
        "root": link[:, 0],
        "output": np.zeros(count),
        "feature": own,
        "threshold": np.array(threshold),
        "left": link[tree, 2 * at + 1],
        "right": link[tree, 2 * at + 2],
        "missing_left": trees.side[tree, at],
        "words_at": np.where(categorical, begin, -1),
        "words_in": words_in,
        "words": words,
        "value": trees.value[leaf],
    }
    return Forest(**{name: np.asarray(array).astype(KINDS.get(name, np.int32)) for name, array in arrays.items()})


@dataclass(frozen=True, eq=False)
class Lines:
    """How features enter a straight line.

    A number by its distance from the centre in units of the scale, and in the place after it by a constant where it is
    missing or infinitely far; a category by a constant for each level, missing first.

    Attributes
    ----------
    place : ndarray of int64
        Where the slopes of each feature begin; place 0 is the constant.
    centre, scale : ndarray of float64
    width : int
        How many slopes there are.
    """

    place: IntArray
    centre: FloatArray
    scale: FloatArray
    width: int

    @classmethod
    def of(cls, data: Columns, weight: FloatArray) -> Lines:
        """Measure numbers by their weighted mean and spread; refuse categories that would make too many slopes."""
        sizes = [many + 1 if many >= 0 else 2 for many in data.levels]
        if 1 + sum(sizes) > WIDEST:
            raise ArgumentError(
                f"a line in these features has {1 + sum(sizes):,} slopes, more than {WIDEST}",
                hint='leave out columns of many categories, or use learner="tree"',
            )
        centre, scale = np.zeros(len(sizes)), np.ones(len(sizes))
        for at, (column, many) in enumerate(zip(data.raw, data.levels, strict=True)):
            known = np.isfinite(column)
            if many < 0 and known.any():
                centre[at], scale[at] = _spread(column[known], weight[known])
        return cls(1 + np.cumsum([0, *sizes[:-1]]).astype(np.int64)[: len(sizes)], centre, scale, 1 + sum(sizes))


def _spread(column: FloatArray, weight: FloatArray) -> tuple[float, float]:
    """Give the weighted mean and standard deviation of numbers of any size; of a constant, itself and 1."""
    low, high = float(column.min()), float(column.max())
    if low == high:
        return low, 1.0  # what rounding makes of its deviation is none
    unit = max(abs(low), abs(high))
    mean = float(np.average(column / unit, weights=weight))
    spread = float(np.sqrt(np.average((column / unit - mean) ** 2, weights=weight))) * unit
    return mean * unit, spread or 1.0


def fit_lines(
    data: Columns,
    lines: Lines,
    level: Int32Array,
    rows: IntArray,
    levels: int,
    target: FloatArray,
    weight: FloatArray,
    *,
    l2: float,
    workers: Workers,
) -> FloatArray:
    """Fit one line on the rows of each level by least squares: slopes (levels, width)."""
    order, starts = order_by_level(level, rows, levels)
    slopes = np.zeros((levels, lines.width))

    def one(v: int) -> None:
        gram, right = np.zeros((lines.width, lines.width)), np.zeros(lines.width)
        for start in range(starts[v], starts[v + 1], CHUNK):
            own = order[start : min(start + CHUNK, starts[v + 1])]
            A = _design(data, lines, own)
            heavy = weight[own, None] * A
            gram += A.T @ heavy
            right += heavy.T @ target[own]
        gram[np.arange(1, lines.width), np.arange(1, lines.width)] += l2
        values, vectors = np.linalg.eigh(gram)
        good = values > SINGULAR * max(values[-1], 0.0)
        slopes[v] = vectors[:, good] @ ((vectors.T @ right)[good] / values[good])

    workers.map(one, [int(v) for v in np.flatnonzero(np.diff(starts))])
    return slopes


def _design(data: Columns, lines: Lines, rows: IntArray) -> FloatArray:
    A = np.zeros((len(rows), lines.width))
    A[:, 0] = 1.0
    for at, many in enumerate(data.levels):
        begin = int(lines.place[at])
        if many >= 0:
            A[np.arange(len(rows)), begin + data.raw[at][rows] + 1] = 1.0
            continue
        with np.errstate(over="ignore"):
            far = (data.raw[at][rows] - lines.centre[at]) / lines.scale[at]
        missing = ~np.isfinite(far)
        A[:, begin] = np.where(missing, 0.0, far)
        A[:, begin + 1] = missing
    return A


def line_values(data: Columns, lines: Lines, slopes: FloatArray, level: Int32Array, workers: Workers) -> FloatArray:
    """Read the line of its level at every row, as the scorer does."""
    out = np.empty(len(level))

    def some(start: int) -> None:
        end = min(start + CHUNK, len(level))
        X = np.array([column[start:end] for column in data.raw], np.float64).reshape(len(data.raw), end - start)
        read_lines(
            level[start:end],
            X,
            np.array(data.levels, np.int64),
            lines.place,
            lines.centre,
            lines.scale,
            slopes,
            out[start:end],
        )

    workers.map(some, range(0, len(level), CHUNK))
    return out


def fit_external(regressor: Any, X: FloatArray, y: FloatArray, weight: FloatArray | None) -> Any:
    """Fit a regressor of another library to the rows of a level."""
    told = {} if weight is None else {"sample_weight": weight}
    try:
        return regressor.fit(X, y, **told)
    except (TypeError, ValueError) as error:
        raise TrueupError(
            f"{type(regressor).__name__} could not be fitted to a level of {len(y):,} rows: "
            f"{(str(error).splitlines() or [''])[0]}",
            hint="raise min_rows; fill in missing numbers; or leave weights out where it takes none",
        ) from error


def predict_external(regressor: Any, X: FloatArray) -> FloatArray:
    """Ask a regressor of another library for one number a row."""
    found = np.asarray(regressor.predict(X), np.float64)
    if found.shape != (len(X),) or not np.isfinite(found).all():
        raise TrueupError(
            f"{type(regressor).__name__} must predict one finite number a row; "
            f"got shape {found.shape} for {len(X):,} rows, finite {np.isfinite(found).all()}",
            hint="give it an outcome and features it can take, or another regressor",
        )
    return found


def matrix(columns: Sequence[AnyArray], levels: Sequence[int], rows: int) -> FloatArray:
    """Lay features out for a regressor: numbers as they are, NaN where missing; a category as one 0/1 column a level."""
    width = sum(max(many, 1) for many in levels)
    if rows * width > MOST_CELLS:
        raise ArgumentError(
            f"{rows:,} rows of {width:,} columns, one for each category, are too many for a regressor of another library",
            hint='leave out columns of many categories, or use learner="tree"',
        )
    parts: list[AnyArray] = []
    for column, many in zip(columns, levels, strict=True):
        parts.append(column[:, None] if many < 0 else column[:, None] == np.arange(many))
    return np.concatenate([np.zeros((rows, 0)), *parts], axis=1)
