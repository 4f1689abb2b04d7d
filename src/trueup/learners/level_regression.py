"""Regressions on all level sets of a score at once: small trees, or linear functions.

Globus-Harris, Harrison, Kearns, Roth and Sorrell (2023), "Multicalibration as boosting for regression": each round of
their Algorithm 1 needs one least squares fit per level set. Level sets are disjoint, so one pass over the rows fits all of
them, and threads take different levels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trueup.errors import ArgumentError, TrueupError
from trueup.kernels.levels import grow_levels, order_by_level, read_lines, walk_levels
from trueup.kernels.sorting import order_statistics
from trueup.kernels.trees import ARRAY_TYPES, Forest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trueup._types import AnyArray, BoolArray, FloatArray, Int32Array, IntArray, UInt8Array
    from trueup.kernels.threads import Workers


BATCHES_PER_THREAD = 4  # of levels, to balance the load
CHUNK_ROWS = 65_536  # rows evaluated by one call
WEIGHT_TOLERANCE = 1e-9  # relative; a smaller difference of weights is rounding error
MAX_MATRIX_CELLS = 2**30  # numbers of a design matrix for a regressor of another library: 8 GiB
MIN_LEAF_ROWS = 20.0  # on levels of many rows
MAX_SLOPES = 500
SINGULAR = 1e-10  # of the largest eigenvalue: the rows of a level do not differ in a direction below it


class BinnedColumns:
    """Features as bin codes, computed once: 0 for missing values, then intervals of a number or levels of a category.

    Columns are float64 with NaN for missing, or int32 codes with -1 for missing; ``levels`` counts the levels of each, -1
    for a number. A number with at most ``bins`` distinct values has one bin per value, every number if ``bins`` is None.
    """

    def __init__(self, columns: Sequence[AnyArray], levels: Sequence[int], bins: int | None) -> None:
        self.raw, self.levels = list(columns), tuple(levels)
        self.cuts = [np.zeros(0) if count >= 0 else _find_cuts(c, bins) for c, count in zip(columns, levels, strict=True)]
        self.categorical = np.array([count >= 0 for count in levels], np.uint8)
        counts = [count + 1 if count >= 0 else len(cuts) + 2 for count, cuts in zip(levels, self.cuts, strict=True)]
        self.counts = np.array(counts, np.int64)
        rows = len(columns[0]) if columns else 0
        self.codes = np.empty((len(columns), rows), np.uint32 if self.counts.max(initial=0) > 2**16 else np.uint16)
        for index, (column, count) in enumerate(zip(columns, levels, strict=True)):
            if count >= 0:
                self.codes[index] = column + 1
            else:
                self.codes[index] = np.where(np.isnan(column), 0, np.searchsorted(self.cuts[index], column) + 1)


def _find_cuts(column: FloatArray, bins: int | None) -> FloatArray:
    """Return cuts between the distinct values if at most ``bins``, else quantiles; a value equal to a cut is left of it."""
    known = column[~np.isnan(column)]
    bins = max(len(known), 2) if bins is None else bins
    first = np.unique(known[:1000])
    distinct = np.unique(known) if len(first) <= bins else first
    if len(distinct) <= bins:
        with np.errstate(invalid="ignore", over="ignore"):
            middle = distinct[:-1] / 2 + distinct[1:] / 2
        inside = np.isfinite(middle) & (middle >= distinct[:-1]) & (middle < distinct[1:])
        return np.where(inside, middle, distinct[:-1])
    ranks = np.unique((np.arange(1, bins) * len(known)) // bins)
    return np.setdiff1d(order_statistics(known, ranks), [known.max()])


class LevelTrees(NamedTuple):
    """One tree per level, (levels, nodes) in heap order: feature (-1 at leaves), cut, side (1: missing is left), value."""

    feature: Int32Array
    cut: Int32Array
    side: UInt8Array
    value: FloatArray


def level_edges(scores: FloatArray, weight: FloatArray, levels: int, least: float) -> FloatArray:
    """Return the edges of at most ``levels`` levels of similar weight, at least ``least``; equal scores share a level."""
    values, inverse = np.unique(scores, return_inverse=True)
    below = np.cumsum(np.bincount(inverse.ravel(), weight))
    total = float(below[-1])
    count = max(min(levels, math.floor(total / max(least, 1e-300) + WEIGHT_TOLERANCE)), 1)
    enough = least * (1 - WEIGHT_TOLERANCE)
    edges, last = [], 0.0
    for step in range(1, count):
        index = int(np.searchsorted(below, total * step / count - WEIGHT_TOLERANCE * total))
        if below[index] - last >= enough and total - below[index] >= max(enough, WEIGHT_TOLERANCE * total):
            edges.append(values[index])
            last = float(below[index])
    return np.unique(np.array(edges, np.float64))


@dataclass(eq=False)
class TreeLearner:
    """One regression tree of small depth per level, by least squares on binned features; its values add to the score."""

    data: BinnedColumns
    weight: FloatArray
    depth: int
    min_rows: float  # of a level
    l2: float

    def fit(
        self, level: Int32Array, rows: IntArray, levels: int, y: FloatArray, F: FloatArray | float, workers: Workers
    ) -> LevelTrees:
        """Grow a tree per level on the residuals ``y - F`` of the training ``rows``; ``level`` is the level of each row."""
        order, starts = order_by_level(level, rows, levels)
        target, shape = y - F, (levels, 2 ** (self.depth + 1) - 1)
        leaf_rows = min(MIN_LEAF_ROWS, self.min_rows / 2.0**self.depth)
        trees = LevelTrees(
            np.full(shape, -1, np.int32), np.zeros(shape, np.int32), np.zeros(shape, np.uint8), np.zeros(shape)
        )
        # Batches of levels, the largest first, of about equal numbers of rows.
        sizes = np.diff(starts)
        largest = np.argsort(-sizes, kind="stable")
        largest = largest[sizes[largest] > 0]
        batches = min(BATCHES_PER_THREAD * workers.threads if workers.threads > 1 else 1, len(largest))
        workers.map(
            lambda start: grow_levels(
                largest[start::batches], order, starts, self.data.codes, self.data.counts, self.data.categorical, target,
                self.weight, leaf_rows, float(self.l2), *trees,
            ),
            range(batches),
        )  # fmt: skip
        return trees

    def values(self, trees: LevelTrees, level: Int32Array, F: FloatArray | float, workers: Workers) -> FloatArray:  # noqa: ARG002
        """Return for every row the value of its leaf in the tree of its level."""
        out = np.empty(len(level))

        def evaluate_chunk(start: int) -> None:
            end = min(start + CHUNK_ROWS, len(level))
            walk_levels(start, end, level, self.data.codes, self.data.categorical, *trees, out)

        workers.map(evaluate_chunk, range(0, len(level), CHUNK_ROWS))
        return out

    def cut(self, trees: LevelTrees, depth: IntArray) -> LevelTrees:
        """Cut the tree of each level at its ``depth``; a tree of depth 0 is the mean of the level."""
        below = np.arange(trees.feature.shape[1]) >= (2**depth - 1)[:, None]
        return trees._replace(feature=np.where(below, np.int32(-1), trees.feature))

    def keep(self, trees: LevelTrees, kept: BoolArray) -> LevelTrees:
        """Return the trees of the levels where ``kept`` is true."""
        return LevelTrees._make(array[kept] for array in trees)


def to_forest(data: BinnedColumns, trees: LevelTrees) -> Forest:
    """Convert one tree per level to a forest that tests raw values instead of bins, without unreachable nodes."""
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
    tree, node = np.nonzero(inner)
    tested, cuts = feature[tree, node], cut[tree, node]
    categorical = data.categorical[tested] > 0 if len(tested) else np.zeros(0, bool)
    ends = [np.append(column_cuts, np.inf) for column_cuts in data.cuts]
    threshold = [0.0 if c else float(ends[f][b - 1]) for f, b, c in zip(tested, cuts, categorical, strict=True)]
    words_in = np.where(categorical, cuts // 32 + 1, 0)
    words = np.zeros(int(words_in.sum()), np.uint32)
    begin = np.cumsum(words_in) - words_in
    words[begin[categorical] + cuts[categorical] // 32] = np.uint32(1) << (cuts[categorical] % 32).astype(np.uint32)
    arrays = {
        "root": link[:, 0],
        "output": np.zeros(count),
        "feature": tested,
        "threshold": np.array(threshold),
        "left": link[tree, 2 * node + 1],
        "right": link[tree, 2 * node + 2],
        "missing_left": trees.side[tree, node],
        "words_at": np.where(categorical, begin, -1),
        "words_in": words_in,
        "words": words,
        "value": trees.value[leaf],
    }
    return Forest(**{name: np.asarray(array).astype(ARRAY_TYPES.get(name, np.int32)) for name, array in arrays.items()})


class LineLearner:
    """One linear function of the features per level, by least squares; its values add to the score.

    A number is standardised by its weighted mean ``centre`` and standard deviation ``scale``; it has one slope, and a
    constant for missing or infinite values. A category has a constant per level, missing first. The slopes of a
    feature begin at index ``place``, after the intercept at index 0; ``width`` counts all of them.
    """

    def __init__(self, data: BinnedColumns, weight: FloatArray, l2: float) -> None:
        self.data, self.weight, self.l2 = data, weight, l2
        sizes = [count + 1 if count >= 0 else 2 for count in data.levels]
        self.width = 1 + sum(sizes)
        if self.width > MAX_SLOPES:
            raise ArgumentError(
                f"a linear function of these features has {self.width:,} slopes, more than {MAX_SLOPES}",
                hint="leave out columns of many categories, or use {learner}",
                settings={"learner": "tree"},
            )
        self.centre, self.scale = np.zeros(len(sizes)), np.ones(len(sizes))
        for index, (column, count) in enumerate(zip(data.raw, data.levels, strict=True)):
            known = np.isfinite(column)
            if count < 0 and known.any():
                self.centre[index], self.scale[index] = _mean_and_deviation(column[known], weight[known])
        self.place = 1 + np.cumsum([0, *sizes[:-1]]).astype(np.int64)[: len(sizes)]

    def fit(
        self, level: Int32Array, rows: IntArray, levels: int, y: FloatArray, F: FloatArray | float, workers: Workers
    ) -> FloatArray:
        """Fit a linear function per level to the residuals ``y - F`` of its ``rows``; return slopes (levels, width)."""
        order, starts = order_by_level(level, rows, levels)
        target, slopes = y - F, np.zeros((levels, self.width))

        def fit_level(v: int) -> None:
            gram, right = np.zeros((self.width, self.width)), np.zeros(self.width)
            for start in range(starts[v], starts[v + 1], CHUNK_ROWS):
                chunk = order[start : min(start + CHUNK_ROWS, starts[v + 1])]
                A = self._design(chunk)
                weighted = self.weight[chunk, None] * A
                gram += A.T @ weighted
                right += weighted.T @ target[chunk]
            gram[np.arange(1, self.width), np.arange(1, self.width)] += self.l2
            values, vectors = np.linalg.eigh(gram)
            regular = values > SINGULAR * max(values[-1], 0.0)
            slopes[v] = vectors[:, regular] @ ((vectors.T @ right)[regular] / values[regular])

        workers.map(fit_level, [int(v) for v in np.flatnonzero(np.diff(starts))])
        return slopes

    def _design(self, rows: IntArray) -> FloatArray:
        A = np.zeros((len(rows), self.width))
        A[:, 0] = 1.0
        for index, count in enumerate(self.data.levels):
            begin = int(self.place[index])
            if count >= 0:
                A[np.arange(len(rows)), begin + self.data.raw[index][rows] + 1] = 1.0
                continue
            with np.errstate(over="ignore"):
                distance = (self.data.raw[index][rows] - self.centre[index]) / self.scale[index]
            missing = ~np.isfinite(distance)
            A[:, begin] = np.where(missing, 0.0, distance)
            A[:, begin + 1] = missing
        return A

    def values(self, slopes: FloatArray, level: Int32Array, F: FloatArray | float, workers: Workers) -> FloatArray:  # noqa: ARG002
        """Return for every row the value of the linear function of its level."""
        raw, levels, out = self.data.raw, np.array(self.data.levels, np.int64), np.empty(len(level))

        def evaluate_chunk(start: int) -> None:
            end = min(start + CHUNK_ROWS, len(level))
            X = np.array([column[start:end] for column in raw], np.float64).reshape(len(raw), end - start)
            read_lines(level[start:end], X, levels, self.place, self.centre, self.scale, slopes, out[start:end])

        workers.map(evaluate_chunk, range(0, len(level), CHUNK_ROWS))
        return out

    def keep(self, slopes: FloatArray, kept: BoolArray) -> FloatArray:
        """Return the slopes of the levels where ``kept`` is true."""
        return slopes[kept]


def _mean_and_deviation(column: FloatArray, weight: FloatArray) -> tuple[float, float]:
    """Return the weighted mean and standard deviation of a column; of a constant column, the constant and 1."""
    low, high = float(column.min()), float(column.max())
    if low == high:
        return low, 1.0
    unit = max(abs(low), abs(high))
    mean = float(np.average(column / unit, weights=weight))
    spread = float(np.sqrt(np.average((column / unit - mean) ** 2, weights=weight))) * unit
    return mean * unit, spread or 1.0


@dataclass(eq=False)
class ExternalLearner:
    """A regressor of another library per level, fitted to the outcomes in threads."""

    make: Callable[[], Any]  # returns an unfitted regressor
    X: FloatArray  # the features of all rows, as `design_matrix` returns them
    weight: FloatArray | None
    name: str = "a regressor"

    def fit(self, level: Int32Array, rows: IntArray, levels: int, y: FloatArray, F: Any, workers: Workers) -> list[Any]:  # noqa: ARG002
        """Fit a regressor to the outcomes of each level; return one per level, None for levels without rows."""
        order, starts = order_by_level(level, rows, levels)

        def fit_level(v: int) -> Any:
            own = order[starts[v] : starts[v + 1]]
            if not len(own):
                return None
            regressor, weights = self.make(), {} if self.weight is None else {"sample_weight": self.weight[own]}
            try:
                regressor.fit(self.X[own], y[own], **weights)
            except (TypeError, ValueError) as error:
                raise TrueupError(
                    f"{type(regressor).__name__} could not be fitted to a level of {len(own):,} rows: "
                    f"{(str(error).splitlines() or [''])[0]}",
                    hint="increase min_rows; fill in missing numbers; or leave out weights if it does not support them",
                ) from error
            return regressor

        return workers.map(fit_level, range(levels))

    def values(self, fitted: Sequence[Any], level: Int32Array, F: FloatArray | float, workers: Workers) -> FloatArray:
        """Return for every row the prediction of its level's regressor minus the score ``F``; NaN if the level has none."""
        return predict_levels(fitted, self.X, level, workers) - F

    def keep(self, fitted: Sequence[Any], kept: BoolArray) -> list[Any]:
        """Return the regressors of the levels where ``kept`` is true, None for the others."""
        return [regressor if keep else None for regressor, keep in zip(fitted, kept, strict=True)]


def predict_levels(fitted: Sequence[Any], X: FloatArray, level: Int32Array, workers: Workers) -> FloatArray:
    """Predict every row by the regressor of its level; NaN if the level has none. Raise if a prediction is not finite."""
    order, starts = order_by_level(level, np.arange(len(level)), len(fitted))
    out = np.full(len(level), np.nan)

    def predict_level(v: int) -> None:
        own = order[starts[v] : starts[v + 1]]
        if not len(own) or fitted[v] is None:
            return
        values = np.asarray(fitted[v].predict(X[own]), np.float64)
        if values.shape != (len(own),) or not np.isfinite(values).all():
            raise TrueupError(
                f"{type(fitted[v]).__name__} must predict one finite number per row; "
                f"got shape {values.shape} for {len(own):,} rows, finite {np.isfinite(values).all()}",
                hint="use an outcome and features it supports, or another regressor",
            )
        out[own] = values

    workers.map(predict_level, range(len(fitted)))
    return out


def design_matrix(columns: Sequence[AnyArray], levels: Sequence[int], rows: int) -> FloatArray:
    """Return features as a matrix for a regressor: numbers unchanged, NaN if missing; categories one-hot encoded."""
    width = sum(max(count, 1) for count in levels)
    if rows * width > MAX_MATRIX_CELLS:
        raise ArgumentError(
            f"{rows:,} rows of {width:,} columns, one per category, are too many for a regressor of another library",
            hint="leave out columns of many categories, or use {learner}",
            settings={"learner": "tree"},
        )
    blocks: list[AnyArray] = []
    for column, count in zip(columns, levels, strict=True):
        blocks.append(column[:, None] if count < 0 else column[:, None] == np.arange(count))
    return np.concatenate([np.zeros((rows, 0)), *blocks], axis=1)
