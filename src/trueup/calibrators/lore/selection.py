"""The choice of bandwidth, shrinkage and kind of correction of LoRe, by the loss of rows without their own outcomes."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trueup.calibrators import splits
from trueup.calibrators.lore.map import (
    LocalMap,
    Neighbours,
    TransformerMap,
    confidence_of,
    mix_reset,
    mix_shift,
    number_bins,
    reset,
    scale_of,
)  # fmt: skip
from trueup.calibrators.lore.spaces import FeatureSpace, GroupSpace
from trueup.calibrators.stopping import LATER_ROUND_ERRORS, paired_gain, required_gain
from trueup.data.folds import MAX_DUPLICATES
from trueup.kernels.cascade import MIN_PROBABILITY
from trueup.kernels.laplace import sums
from trueup.kernels.laplace.summing import as_bytes
from trueup.kernels.losses import log_losses

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trueup._types import FloatArray, IntArray
    from trueup.calibrators.lore.spaces import Embedding
    from trueup.data.table import Table


RESET, SHIFT = "reset", "shift"
TIE = 1e-9  # relative difference of losses below which the smoother candidate is preferred


# ------------------------------------------------------------------ rows


@dataclass(frozen=True, eq=False)
class PooledRows:
    """Rows that are equal in features, prediction and outcome, pooled; sorted by content, whatever their order was."""

    first: IntArray  # a row of the table for each pooled row
    index: IntArray  # the pooled row of each row of the table
    alike: IntArray  # ascending; pooled rows with the same number differ in the outcome alone
    weight: FloatArray  # counts, or with a sum equal to the effective number of rows
    rows: IntArray  # the number of rows; weights that are counts are counted


def pool_rows(table: Table) -> PooledRows:
    """Pool the rows of a table that are equal."""
    assert table.outcome is not None
    scaled = splits.scale_weights(table.weight, len(table))
    weight = np.ones(len(table)) if scaled is None else scaled
    columns = [*table.columns.values(), *table.prediction.reshape(len(table), -1).T, table.outcome]
    content = np.column_stack([np.where(np.isnan(c), np.nan, c + 0.0) for c in columns])  # one NaN, no minus zero
    order, starts = sort_equal(content, weight)
    index = np.empty(len(table), np.int64)
    index[order] = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(order)))
    total = np.add.reduceat(weight[order], starts)
    counts = splits.are_row_counts(weight)
    rows = np.rint(total).astype(np.int64) if counts else np.diff(starts, append=len(order))
    without_outcome = as_bytes(content[order[starts], :-1])
    alike = np.cumsum(np.append(False, without_outcome[1:] != without_outcome[:-1]))
    return PooledRows(order[starts], index, alike, total, rows)


def sort_equal(content: FloatArray, weight: FloatArray | None = None) -> tuple[IntArray, IntArray]:
    """Sort rows by their bytes, equal rows by weight; return the order and where runs of equal rows start."""
    order = np.arange(len(content)) if weight is None else np.argsort(weight, kind="stable")
    keys = as_bytes(content[order])
    by_content = np.argsort(keys, kind="stable")
    keys = keys[by_content]
    return order[by_content], np.flatnonzero(np.append(True, keys[1:] != keys[:-1])[: len(keys)])


@dataclass(frozen=True, eq=False)
class PlacedRows:
    """Rows in the space of an embedding."""

    confidence: FloatArray  # the score; for several classes the highest
    hit: FloatArray  # the outcome; for several classes whether the predicted class is correct
    share: FloatArray  # of the true class in what the confidence leaves to other classes; 1 if it is the predicted one
    points: FloatArray  # (n, d)
    group: IntArray
    bin: IntArray

    def targets(self, *, shifts: bool) -> FloatArray:
        """Return what is averaged over neighbours: outcomes, or residuals if scores are shifted."""
        return self.hit - self.confidence if shifts else self.hit

    def losses(self, rate: FloatArray) -> FloatArray:
        """Return the log loss of every row with these confidences."""
        out = np.empty(len(rate))
        log_losses(self.hit, np.where(self.share < 1, 1.0 - (1.0 - rate) * self.share, rate), MIN_PROBABILITY, out)
        return out


def place_rows(table: Table, embedding: Embedding, edges: FloatArray) -> PlacedRows:
    """Place the rows of a table in the space of an embedding, with their outcomes."""
    assert table.outcome is not None
    points, group = embedding.place([table.columns[feature.name] for feature in table.schema.features], len(table))
    confidence, top = confidence_of(table.prediction)
    hit, share = table.outcome, np.ones(len(table))
    if top is not None:
        hit = (table.outcome == top).astype(np.float64)
        others = reset(table.prediction, top, np.zeros(len(table)))
        share = np.where(hit == 1, 1.0, others[np.arange(len(table)), table.outcome.astype(np.int64)])
    return PlacedRows(np.ascontiguousarray(confidence), hit, share, points, group, number_bins(confidence, edges))


def make_neighbours(placed: PlacedRows, weight: FloatArray, groups: int, *, near: bool, shifts: bool) -> Neighbours:
    """Sum rows of one bin and one point; of one bin alone if distances do not count.

    With several groups every row counts for its own group, and for the group of all rows of its bin.
    """
    rows, targets = np.arange(len(weight)), placed.targets(shifts=shifts)
    key, points = placed.bin * groups, placed.points if near else np.zeros((len(weight), 1))
    if groups > 1:
        rows, key = np.concatenate([rows, rows]), np.concatenate([key, key + placed.group])
    content = np.column_stack([key.astype(np.float64), points[rows] + 0.0])
    order, starts = sort_equal(content, weight[rows])
    mass, total = (np.add.reduceat(column[rows][order], starts) for column in (weight, weight * targets))
    first = order[starts]
    in_order = np.argsort(key[first], kind="stable")  # bytes do not sort as numbers
    keys, place = np.unique(key[first][in_order], return_inverse=True)
    kept = rows[first][in_order]
    return Neighbours(keys, place.ravel(), np.ascontiguousarray(points[kept]), mass[in_order], total[in_order])


# ------------------------------------------------------------------ sums over neighbours


class NeighbourSums(NamedTuple):
    """Kernel sums over the neighbours of rows, of weights, hits and residuals; times ``factor`` these are row counts."""

    columns: FloatArray  # (gammas, rows, 3)
    factor: FloatArray  # (gammas, rows)

    def rates(self, number: int, confidence: FloatArray, shrinkage: float, *, shifts: bool) -> FloatArray:
        """Return corrected confidences for one gamma; rows without neighbours keep theirs."""
        weight, hits, residuals = self.columns[number].T
        empty = weight <= 0
        total, mix = (residuals, mix_shift) if shifts else (hits, mix_reset)
        mixed = mix(np.where(empty, 1.0, weight), total, self.factor[number], confidence, shrinkage)
        return np.where(empty, confidence, mixed)


class _Cells(NamedTuple):
    """Pooled rows with the same content, summed."""

    first: IntArray  # a pooled row of each cell
    cell: IntArray  # of each pooled row
    columns: FloatArray  # sums of each cell
    rest: FloatArray  # of each pooled row's cell, without the row; exactly 0 if nothing else is in the cell


def _sum_cells(content: FloatArray, columns: FloatArray, left_out: FloatArray, sizes: IntArray) -> _Cells:
    """Sum ``columns`` over rows of equal content; ``left_out`` and ``sizes`` are what each row is left out with."""
    order, starts = sort_equal(content)
    cell, size = np.empty(len(order), np.int64), np.diff(starts, append=len(order))
    cell[order] = np.repeat(np.arange(len(starts)), size)
    summed = np.column_stack([np.bincount(cell, column, len(starts)) for column in columns.T]).astype(np.float64)
    rest = np.where((size[cell] == sizes)[:, None], 0.0, summed[cell] - left_out)
    return _Cells(order[starts], cell, summed, rest)


# ------------------------------------------------------------------ the choice


class LocalCandidate(NamedTuple):
    """One way to correct, and the mean loss of the rows it was evaluated on."""

    gamma: float
    shrinkage: float
    move: str
    loss: float


@dataclass(frozen=True, eq=False)
class Selection:
    """All candidates, the best of them, and whether it is significantly better than no correction.

    ``scores`` are the predictions of the evaluated rows by the best candidate.
    """

    candidates: tuple[LocalCandidate, ...]
    chosen: LocalCandidate
    before: float
    gain: float
    error: float
    kept: bool
    scores: FloatArray


@dataclass(frozen=True, eq=False)
class MapSelector:
    """Evaluates every combination of gammas, shrinkages and moves in one embedding and one set of bins."""

    embedding: Embedding
    edges: FloatArray
    gammas: tuple[float, ...]
    shrinkages: tuple[float, ...]
    moves: tuple[str, ...]
    threads: int | None

    def build(self, placed: PlacedRows, weight: FloatArray, gamma: float, shrinkage: float, move: str) -> LocalMap:
        """Return the map of all rows."""
        infinite, shifts = math.isinf(gamma), move == SHIFT
        space = FeatureSpace() if infinite else self.embedding
        groups = 1 + len(space.index) if isinstance(space, GroupSpace) else 1
        kind = TransformerMap if isinstance(space, FeatureSpace) and space.transformer is not None else LocalMap
        near = make_neighbours(placed, weight, groups, near=not infinite, shifts=shifts)
        return kind(space, near, self.edges, groups, gamma, shrinkage, shifts)

    def by_leave_one_out(self, placed: PlacedRows, pooled: PooledRows, table: Table) -> Selection:
        """Evaluate on every row, without its own outcome.

        Rows equal in features and prediction are left out together if there are at most ten of them, so that a copy does
        not predict its original; of more, which is common in discrete data, one is left out.
        """
        targets = (np.ones(len(pooled.weight)), placed.targets(shifts=False), placed.targets(shifts=True))
        rows = np.column_stack([pooled.weight * target for target in targets])
        together = np.column_stack([np.bincount(pooled.alike, column)[pooled.alike] for column in rows.T])
        common = np.bincount(pooled.alike, pooled.rows)[pooled.alike] > MAX_DUPLICATES
        left_out = np.where(common[:, None], rows / pooled.rows[:, None], together)
        sizes = np.where(common, 0, np.bincount(pooled.alike)[pooled.alike])
        groups = int(placed.group.max()) + 1 if isinstance(self.embedding, GroupSpace) else 1
        key = placed.bin * groups + (placed.group if groups > 1 else 0)
        content = np.column_stack([key.astype(np.float64), placed.points + 0.0])
        cells = _sum_cells(content, rows, left_out, sizes)
        whole_bin = _sum_cells(placed.bin[:, None].astype(np.float64), rows, left_out, sizes).rest
        occupied = cells.rest[:, 0] > 0  # by other rows at the same point
        found = self._empty_sums(len(rows))
        finite = [number for number, gamma in enumerate(self.gammas) if not math.isinf(gamma)]
        if finite:
            scales = self._scales(finite, placed.points.shape[1])
            numbers = np.unique(key[cells.first], return_inverse=True)[1].ravel()
            others = sums(placed.points[cells.first], cells.columns, numbers, scales, own=False, threads=self.threads)
            for number, scale, total, shift in zip(finite, scales, *others, strict=True):
                decay = np.exp(-scale * shift)[cells.cell]
                found.columns[number] = total[cells.cell] * np.where(occupied, decay, 1.0)[:, None] + cells.rest
                found.factor[number] = np.where(occupied, 1.0, decay)
        for columns, factor in zip(*found, strict=True):
            alone = columns[:, 0] <= 0  # no neighbours, or distances do not count: use the rest of the bin
            columns[alone], factor[alone] = whole_bin[alone], 1.0
        return self._select(found, placed, pooled, table)

    def by_holdout(self, table: Table, train: IntArray, valid: IntArray) -> Selection:
        """Evaluate on held-out rows."""
        sides = [table.take(rows) for rows in (train, valid)]
        pooled, held_pooled = (pool_rows(side) for side in sides)
        placed, held = (
            place_rows(side.take(rows.first), self.embedding, self.edges)
            for side, rows in zip(sides, (pooled, held_pooled), strict=True)
        )
        rows = len(held.hit)
        found = self._empty_sums(rows)
        for infinite in (False, True):
            chosen = [number for number, gamma in enumerate(self.gammas) if math.isinf(gamma) == infinite]
            if not chosen:
                continue
            gamma = self.gammas[chosen[0]]
            by_hits, by_residuals = (self.build(placed, pooled.weight, gamma, 0.0, move) for move in (RESET, SHIFT))
            near = by_hits.neighbours
            scales = self._scales(chosen, near.points.shape[1])
            points, group = (np.zeros((rows, 1)), np.zeros(rows, np.int64)) if infinite else (held.points, held.group)
            sources = np.column_stack([near.weight, near.total, by_residuals.neighbours.total])
            targets = (points, by_hits.keys_of(held.confidence, group))
            total, shift = sums(near.points, sources, near.place, scales, at=targets, threads=self.threads)
            found.columns[chosen], found.factor[chosen] = total, np.exp(-scales[:, None] * shift)
        return self._select(found, held, held_pooled, sides[1])

    def _empty_sums(self, rows: int) -> NeighbourSums:
        gammas = len(self.gammas)
        return NeighbourSums(np.zeros((gammas, rows, 3)), np.ones((gammas, rows)))

    def _scales(self, numbers: Sequence[int], dimensions: int) -> FloatArray:
        return np.array([scale_of(self.gammas[number], dimensions) for number in numbers])

    def _select(self, sums: NeighbourSums, placed: PlacedRows, pooled: PooledRows, table: Table) -> Selection:
        """Find the lowest loss, and compare it with that of the base score row by row.

        The gain must be two standard errors, as that of a later round: the best of many looks better than it is.
        """
        base, weight = placed.losses(placed.confidence), pooled.weight
        before = float(np.average(base, weights=weight))
        candidates: list[LocalCandidate] = []
        lowest, best, best_losses, best_rates = math.inf, 0, base, placed.confidence
        # The smoother first: of two that tie, the first is chosen.
        numbers = sorted(range(len(self.gammas)), key=lambda number: -self.gammas[number])
        for number, m, move in itertools.product(numbers, sorted(self.shrinkages, reverse=True), self.moves):
            rates = sums.rates(number, placed.confidence, m, shifts=move == SHIFT)
            losses = placed.losses(rates)
            loss = float(np.average(losses, weights=weight))
            if loss < lowest * (1 - TIE) or not candidates:
                lowest, best, best_losses, best_rates = loss, len(candidates), losses, rates
            candidates.append(LocalCandidate(self.gammas[number], m, move, loss))
        rows = pooled.rows
        gain, error, effective_rows = paired_gain(np.repeat(base - best_losses, rows), np.repeat(weight / rows, rows))
        kept = gain > required_gain(LATER_ROUND_ERRORS, error, effective_rows, before)
        scores = reset(table.prediction, confidence_of(table.prediction)[1], best_rates[pooled.index])
        return Selection(tuple(candidates), candidates[best], before, gain, error, kept, scores)
