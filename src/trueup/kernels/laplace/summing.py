"""Sums of the kernel over the rows of a bin: equal rows are pooled, and the fastest exact method is chosen.

Results do not depend on the number of threads, to the last bit.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trueup.kernels._jit import jit
from trueup.kernels.laplace import cuda, halves, line
from trueup.kernels.laplace.tiles import Blocks, fine_enough, sum_among, sum_at
from trueup.kernels.threads import Workers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from trueup._types import BoolArray, FloatArray, IntArray, UInt64Array

MAX_GROUPS_PER_ROW = 0.9  # groups per row, at most
MIX = np.uint64(0x9E3779B97F4A7C15)
ZERO, MINUS_ZERO = np.uint64(0), np.uint64(1 << 63)  # two ways to write one number
LEFT, RIGHT = np.uint64(29), np.uint64(32)


class EqualRows(NamedTuple):
    """Groups of equal rows: the first of each group, and the group of each row."""

    first: IntArray
    group: IntArray

    def add_up(self, columns: FloatArray) -> FloatArray:
        """Sum the rows of each group."""
        return _add_up(columns, self.group, len(self.first))


def add_others(columns: FloatArray, group: IntArray) -> FloatArray:
    """Sum the other rows of each row's group; the first column holds weights.

    A row is subtracted from the sum of its group, except one that outweighs all others, which would cancel too much.
    """
    many = int(group.max()) + 1
    most = np.zeros(many)
    np.maximum.at(most, group, columns[:, 0])
    heavy = columns[:, 0] == most[group]
    heavy &= (np.bincount(group, heavy, many) == 1)[group]
    without = _add_up(np.where(heavy[:, None], 0.0, columns), group, many)[group]
    return np.where(heavy[:, None], without, _add_up(columns, group, many)[group] - columns)


def _add_up(columns: FloatArray, group: IntArray, many: int) -> FloatArray:
    found = np.empty((many, columns.shape[1]))
    for k in range(columns.shape[1]):
        found[:, k] = np.bincount(group, columns[:, k], many)
    return found


def find_equal(points: FloatArray, bins: IntArray) -> EqualRows | None:
    """Group rows of one bin and equal coordinates; None if too few are equal to be worth it."""
    marks = np.empty(len(points), np.uint64)
    _mark(points.view(np.uint64), bins, marks)
    rising = np.sort(marks)
    if 1 + np.count_nonzero(rising[1:] != rising[:-1]) > MAX_GROUPS_PER_ROW * len(points):
        return None
    _, first, group = np.unique(marks, return_index=True, return_inverse=True)
    of = first[group]
    same = (bins[of] == bins) & (points[of] == points).all(axis=1)
    return EqualRows(first, group) if same.all() else None  # different rows with the same hash: extremely rare


def as_bytes(rows: FloatArray) -> NDArray[np.void]:
    """View each row as one value, to be sorted and compared by its bytes: NaNs differ by their bits, and so does -0."""
    whole = np.ascontiguousarray(rows)
    return whole.view(np.dtype((np.void, whole.shape[1] * whole.itemsize))).ravel()


@jit
def _mark(words: UInt64Array, bins: IntArray, out: UInt64Array) -> None:
    """Hash the bits of each row."""
    for i in range(len(out)):
        mark = np.uint64(bins[i])
        for k in range(words.shape[1]):
            word = words[i, k]
            mark = (mark ^ (ZERO if word == MINUS_ZERO else word)) * MIX
            mark ^= (mark >> RIGHT) | (mark << LEFT)
        out[i] = mark


SCALES_PER_PASS = 8  # in one pass over the distances
MAX_FLOAT32_RATIO = 2.0**40  # weights within this ratio, and their squares, are in the range of float32
MIN_FAST_ROWS = (0, 1, 4000, 4000)  # by dimensions: bins with more rows are summed by `line` or `halves`


class BinnedRows:
    """Rows in the order of their bins; the first column holds weights."""

    def __init__(self, points: FloatArray, columns: FloatArray, numbers: IntArray, bins: int) -> None:
        self.bins = bins
        self.starts = np.append(0, np.cumsum(np.bincount(numbers, minlength=bins)))
        self.sorted = bool((numbers[1:] >= numbers[:-1]).all())
        if self.sorted:
            self.order, self.points, self.columns = np.arange(len(numbers)), points, columns
        else:
            self.order = np.argsort(numbers, kind="stable")
            self.points, self.columns = points[self.order], columns[self.order]
        self.weight = self.columns[:, 0]

    @cached_property
    def numbers(self) -> IntArray:
        """The bin of each row."""
        return np.repeat(np.arange(self.bins), np.diff(self.starts))

    @cached_property
    def blocks(self) -> Blocks:
        """The rows laid out for sums over all pairs."""
        return Blocks(self.points, self.columns, self.starts)

    @cached_property
    def box(self) -> tuple[FloatArray, FloatArray]:
        """The lowest and the highest corner of all rows."""
        return self.points.min(axis=0), self.points.max(axis=0)

    @property
    def middle(self) -> FloatArray:
        """The origin of coordinates on a GPU."""
        return (self.box[0] + self.box[1]) / 2

    @cached_property
    def has_fast_method(self) -> bool:
        """Whether there is a method that does not visit all pairs."""
        d = self.points.shape[1]
        return d < len(MIN_FAST_ROWS) and int(np.diff(self.starts).max()) > MIN_FAST_ROWS[d]

    @cached_property
    def even(self) -> bool:
        """Whether float32 has the range for all weights."""
        return bool(self.weight.max() <= MAX_FLOAT32_RATIO * self.weight.min())

    @cached_property
    def totals(self) -> FloatArray:
        """The sums of the columns of each bin."""
        found = np.zeros((self.bins, self.columns.shape[1]))
        some = np.flatnonzero(np.diff(self.starts))
        found[some] = np.add.reduceat(self.columns, self.starts[some], axis=0)
        return found

    def fine(self, scale: float) -> bool:
        """Return whether distances may be integers at this scale."""
        return fine_enough(self.box[1] - self.box[0], scale)

    def fits_gpu(self, scale: float) -> bool:
        """Return whether float32 on a GPU is accurate enough at this scale."""
        return cuda.fine_enough(self.points, self.middle, scale)

    def group_scales(self, scales: FloatArray) -> Iterator[IntArray]:
        """Group the scales: zero, those at which distances may be integers, and the others; at most 8 at once."""
        fine = np.array([self.fine(float(scale)) for scale in scales], bool)
        for kind in (scales == 0, (scales > 0) & fine, (scales > 0) & ~fine):
            chosen = np.flatnonzero(kind)
            yield from (chosen[start : start + SCALES_PER_PASS] for start in range(0, len(chosen), SCALES_PER_PASS))

    def cut(self, scale: float, tolerance: float) -> float:
        """Return the distance beyond a point's nearest row at which rows no longer matter."""
        ratio = self._spread - np.log(tolerance)
        return float(min(ratio / scale, np.finfo(float).max))

    @cached_property
    def _spread(self) -> float:
        return float(np.log(2 * self.weight.sum()) - np.log(self.weight.min()))

    def sum_low_dimensions(
        self, targets: FloatArray | None, target_starts: IntArray | None, scales: FloatArray, workers: Workers
    ) -> FloatArray:
        """Sum in one to three dimensions; sums may underflow."""
        way = line if self.points.shape[1] == 1 else halves
        given = (self.points, self.columns, self.starts, targets, target_starts)
        return np.stack([way.sums(*given, float(scale), workers) for scale in scales])


EXACT = 1e-15  # the largest change of a ratio by skipped rows: a rounding error
# Sums below this share of the largest weight are of distant rows: summed again, relative to the nearest row.
MIN_SHARE = {"fast": 1e-200, "tiles": 2.0**-60, "cuda": 2.0**-10}
FLOAT32_UNDERFLOW = 88.0  # exp(-FLOAT32_UNDERFLOW) is 0 in float32


class SumTask(NamedTuple):
    """What is computed, whatever the rows."""

    scales: FloatArray
    tolerance: float
    workers: Workers
    device: str


class Sums(NamedTuple):
    """Sums at m points, for g scales and c columns: ``total * exp(-scale * shift)``.

    ``shift`` is a distance, 0 unless a sum would nearly vanish; it cancels in ratios of totals of one point and scale. A
    point whose bin has no other rows has a total of 0.
    """

    total: FloatArray  # (g, m, c)
    shift: FloatArray  # (g, m)


def sums(
    points: FloatArray, columns: FloatArray, bins: IntArray, scales: FloatArray, *,
    at: tuple[FloatArray, IntArray] | None = None, own: bool = True, tolerance: float = EXACT,
    threads: int | None = None, device: str = "cpu",
) -> Sums:  # fmt: skip
    """Sum the columns of each point's bin, weighted by the kernel exp(-scale * L1 distance).

    The first column holds positive weights. ``at`` are other points and their bins, by default the points themselves;
    ``own`` says whether a row then counts for itself. ``tolerance`` bounds the error of a ratio of two totals, relative to
    the largest ratio of any row.
    """
    if device == "cuda" and not cuda.available():
        device = "cpu"
    task = SumTask(scales, tolerance, Workers(threads), device)
    if at is not None:
        return Sources(points, columns, bins)._ask(*at, task)
    found = _zeros(task, len(points), columns.shape[1])
    if len(points):
        _sum_among(np.ascontiguousarray(points, np.float64), columns, bins, task, found, own=own)
    return found


def _zeros(task: SumTask, points: int, columns: int) -> Sums:
    return Sums(np.zeros((len(task.scales), points, columns)), np.zeros((len(task.scales), points)))


class Sources:
    """Rows that are laid out once for sums at many points; see `sums`."""

    def __init__(self, points: FloatArray, columns: FloatArray, bins: IntArray) -> None:
        self._columns = columns.shape[1]
        self._rows: BinnedRows | None = None
        if not len(points):
            return
        points = np.ascontiguousarray(points, np.float64)
        equal = find_equal(points, bins)
        if equal is not None:
            points, columns, bins = points[equal.first], equal.add_up(columns), bins[equal.first]
        self._rows = BinnedRows(points, columns, bins, int(bins.max()) + 2)  # the last one has no rows

    def at(self, points: FloatArray, bins: IntArray, scales: FloatArray, threads: int | None = None) -> Sums:
        """Sum at points; the sums of a point depend on it alone."""
        return self._ask(points, bins, SumTask(scales, EXACT, Workers(threads), "cpu"))

    def _ask(self, points: FloatArray, bins: IntArray, task: SumTask) -> Sums:
        found, rows = _zeros(task, len(points), self._columns), self._rows
        if rows is None or not len(points):
            return found
        points, bins = np.ascontiguousarray(points, np.float64), np.minimum(bins, rows.bins - 1)
        equal = find_equal(points, bins)
        first, group = (np.arange(len(points)),) * 2 if equal is None else equal
        targets = BinnedRows(points[first], np.ones((len(first), 1)), bins[first], rows.bins)
        place = _places(targets)
        for chosen in rows.group_scales(task.scales):
            total, shift = _at(rows, targets, task.scales[chosen], task)
            found.total[chosen], found.shift[chosen] = total[:, place[group]], shift[:, place[group]]
        return found


def _sum_among(points: FloatArray, columns: FloatArray, bins: IntArray, task: SumTask, found: Sums, *, own: bool) -> None:
    """Sum at the rows themselves; equal rows are pooled."""
    equal = find_equal(points, bins)
    if equal is None:
        first = group = np.arange(len(points))
        pooled, count = columns, np.ones(len(points), np.int64)
    else:
        (first, group), pooled = equal, equal.add_up(columns)
        count = np.bincount(group)
    rows = BinnedRows(points if equal is None else points[first], pooled, bins[first], int(bins.max()) + 1)
    place = None if equal is None and rows.sorted else _places(rows)[group]
    # At distance 0 of a row: its whole group, or the others of it.
    here = pooled[group] if own else np.zeros_like(columns) if equal is None else add_others(columns, group)
    alone = np.zeros(len(first), bool) if own else (count == 1)[rows.order]
    together = np.ones(len(group), bool) if own else count[group] > 1
    for chosen in rows.group_scales(task.scales):
        total, shift = _others(rows, alone, task.scales[chosen], task)
        if place is not None:
            total, shift = total[:, place], shift[:, place]
        if own and not shift.any():
            found.total[chosen] = total + here
            continue
        near = np.exp(-task.scales[chosen][:, None] * shift)
        # A row or a group at distance 0 takes the shift away; a row alone keeps it.
        found.total[chosen] = np.where(together[:, None], total * near[:, :, None] + here, total)
        found.shift[chosen] = np.where(together, 0.0, shift)


def _places(rows: BinnedRows) -> IntArray:
    """Return the place of each row in the order of bins."""
    place = np.empty(len(rows.order), np.int64)
    place[rows.order] = np.arange(len(rows.order))
    return place


def _others(rows: BinnedRows, alone: BoolArray, scales: FloatArray, task: SumTask) -> Sums:
    """Sum over all other rows of the bin; ``alone`` marks rows without equal rows that do not count."""
    shift = np.zeros((len(scales), len(rows.points)))
    if not scales[0]:
        return Sums(add_others(rows.columns, rows.numbers)[None].repeat(len(scales), axis=0), shift)
    least = float(scales.min())
    if task.device == "cuda" and rows.even and rows.fits_gpu(float(scales.max())):
        total, thin = cuda.sum_among(rows.points, rows.middle, rows.columns, rows.starts, scales), MIN_SHARE["cuda"]
    elif rows.has_fast_method:
        total, thin = rows.sum_low_dimensions(None, None, scales, task.workers), MIN_SHARE["fast"]
    elif rows.even and rows.fine(float(scales.max())):
        reach = FLOAT32_UNDERFLOW / least if alone.any() else rows.cut(least, task.tolerance)
        total, thin = sum_among(rows.blocks, scales, reach, task.workers), MIN_SHARE["tiles"]
    else:
        total, thin = np.zeros((len(scales), *rows.columns.shape)), np.inf
        alone = np.ones(len(rows.points), bool)
    _sum_again(rows, rows.points, rows.starts, alone, thin, scales, task, Sums(total, shift), skip=True)
    return Sums(total, shift)


def _sum_again(
    rows: BinnedRows, points: FloatArray, starts: IntArray, which: BoolArray, thin: float, scales: FloatArray,
    task: SumTask, found: Sums, *, skip: bool,
) -> None:  # fmt: skip
    """Sum again, relative to the nearest row, where a sum nearly vanished."""
    floor = thin * rows.weight.max() if np.isfinite(thin) else np.inf
    weak = which & (found.total[:, :, 0] < floor)
    at = np.flatnonzero(weak.any(axis=0))
    if not len(at):
        return
    some = np.searchsorted(at, starts)
    cut = rows.cut(float(scales.min()), task.tolerance)
    of = np.flatnonzero(weak.any(axis=1))  # no sum depends on which other scales are summed again
    total, shift = sum_at(
        rows.blocks, points[at], some, scales[of], cut, task.workers,
        fine=rows.fine(float(scales.max())), even=rows.even, skip=at if skip else None,
    )  # fmt: skip
    for k, g in enumerate(of):
        take = weak[g, at]
        found.total[g, at[take]], found.shift[g, at[take]] = total[k, take], shift[take]


def _at(rows: BinnedRows, targets: BinnedRows, scales: FloatArray, task: SumTask) -> Sums:
    many = len(targets.points)
    shift = np.zeros((len(scales), many))
    if not scales[0]:
        return Sums(rows.totals[targets.numbers][None].repeat(len(scales), axis=0), shift)
    if task.device == "cuda" and rows.even and rows.fits_gpu(float(scales.max())):
        given = rows.points, rows.middle, rows.columns, rows.starts, targets.points, targets.starts
        total, thin = cuda.sum_at(*given, scales), MIN_SHARE["cuda"]
    elif rows.has_fast_method:
        total, thin = rows.sum_low_dimensions(targets.points, targets.starts, scales, task.workers), MIN_SHARE["fast"]
    else:
        total, thin = np.zeros((len(scales), many, rows.columns.shape[1])), np.inf
    found = Sums(total, shift)
    _sum_again(rows, targets.points, targets.starts, np.ones(many, bool), thin, scales, task, found, skip=False)
    return found
