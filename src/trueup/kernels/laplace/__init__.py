"""Exact sums over the rows of a bin, weighted by the kernel exp(-scale * L1 distance).

At a point x, with s the scale and c_j the value of a column at row j of the bin of x: sum_j c_j exp(-s |x - x_j|_1). The
modules are `sweeps` (one to three dimensions), `tiles` (any: all pairs, a block at a time) and `cuda` (any, on a GPU, with
`halves` in one to three dimensions). Equal rows are pooled. Results of the CPU do not depend on the number of threads, to
the last bit.
"""

from __future__ import annotations

import sys
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trueup.kernels._jit import answer, jit
from trueup.kernels.laplace import cuda, tiles
from trueup.kernels.threads import Workers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from trueup._types import BoolArray, FloatArray, IntArray, UInt64Array

__all__ = ["EXACT", "Sources", "Sums", "as_bytes", "sums"]

EXACT = 1e-15  # the largest change of a ratio by skipped rows: a rounding error
# Sums below this share of the largest weight are of distant rows: summed again, relative to the nearest row.
MIN_SHARE = {"sweeps": 1e-200, "tiles": 2.0**-60, "cuda": 2.0**-10}
FLOAT32_UNDERFLOW = 88.0  # exp(-FLOAT32_UNDERFLOW) is 0 in float32
MAX_FLOAT32_RATIO = 2.0**40  # weights within this ratio, and their squares, are in the range of float32
MIN_SWEPT_ROWS = (0, 1, 4000, 4000)  # by dimensions: bins with more rows are summed by `sweeps`
# Additions of coordinates, of which a core of the CPU does some 10^11 per second, to use a GPU with device="auto".
MIN_STEPS, MIN_STEPS_TO_IMPORT = 2e11, 2e12
SWEPT_STEPS = 50_000  # as many as a row and coordinate take `sweeps`
SCALES_PER_PASS = 8  # in one pass over the distances
MARKED = 50_000  # rows of a thread at a time
MARK_STEPS = 0.02  # microseconds per coordinate, uncompiled
MAX_GROUPS_PER_ROW = 0.9  # more groups of equal rows per row are not worth pooling
MIX = np.uint64(0x9E3779B97F4A7C15)
ZERO, MINUS_ZERO = np.uint64(0), np.uint64(1 << 63)  # two ways to write one number
LEFT, RIGHT = np.uint64(29), np.uint64(32)


def choose_device(device: str, points: FloatArray, bins: IntArray, others: IntArray, scales: FloatArray) -> str:
    """Return "cpu" or "cuda", where "auto" is the GPU if torch finds one and the CPU would take far longer.

    The sums are at ``points`` in ``bins`` over rows of the bins ``others``. Torch is imported only if it pays.
    """
    if device == "auto":
        d = points.shape[1]
        counts, rows = (np.bincount(numbers).astype(np.float64) for numbers in (bins, others))
        both = min(len(counts), len(rows))
        swept = d < len(MIN_SWEPT_ROWS) and rows.max() > MIN_SWEPT_ROWS[d]
        steps = SWEPT_STEPS * d * (len(bins) + len(others)) if swept else d * float(counts[:both] @ rows[:both])
        pays = steps * np.count_nonzero(scales) > (MIN_STEPS if "torch" in sys.modules else MIN_STEPS_TO_IMPORT)
        return "cuda" if pays and find_spec("torch") is not None and cuda.available(required=False) else "cpu"
    return "cuda" if device == "cuda" and cuda.available() else "cpu"


def add_up(columns: FloatArray, group: IntArray, count: int) -> FloatArray:
    """Return the sums of ``columns`` over the rows of each of ``count`` groups, shape (count, columns)."""
    return np.column_stack([np.bincount(group, column, count) for column in columns.T])


def add_others(columns: FloatArray, group: IntArray) -> FloatArray:
    """Return for each row the sums of ``columns`` over the other rows of its group; the first column holds weights.

    The row is subtracted from the sum of its group; if it outweighs all others, they are added up, to avoid cancellation.
    """
    count = int(group.max()) + 1
    most = np.zeros(count)
    np.maximum.at(most, group, columns[:, 0])
    heavy = columns[:, 0] == most[group]
    heavy &= (np.bincount(group, heavy, count) == 1)[group]
    without = add_up(np.where(heavy[:, None], 0.0, columns), group, count)[group]
    return np.where(heavy[:, None], without, add_up(columns, group, count)[group] - columns)


def find_equal(points: FloatArray, bins: IntArray, workers: Workers) -> tuple[IntArray, IntArray] | None:
    """Group rows of equal bin and equal coordinates; return the first row of each group, and the group of each row.

    None if so few rows are equal that pooling them would not save time.
    """
    marks = np.empty(len(points), np.uint64)
    slices = [slice(start, start + MARKED) for start in range(0, len(points), MARKED)]
    steps = MARK_STEPS * points.size
    workers.map(lambda some: answer(_mark, steps, points[some].view(np.uint64), bins[some], marks[some]), slices)
    rising = np.sort(marks)
    if 1 + np.count_nonzero(rising[1:] != rising[:-1]) > MAX_GROUPS_PER_ROW * len(points):
        return None
    _, first, group = np.unique(marks, return_index=True, return_inverse=True)
    own = first[group]
    same = (bins[own] == bins) & (points[own] == points).all(axis=1)
    return (first, group) if same.all() else None  # different rows with the same hash: extremely rare


def as_bytes(rows: FloatArray) -> NDArray[np.void]:
    """View each row as one value, to be sorted and compared by its bytes; 0 and -0 differ, and so may two NaNs."""
    whole = np.ascontiguousarray(rows)
    return whole.view(np.dtype((np.void, whole.shape[1] * whole.itemsize))).ravel()


@jit
def _mark(words: UInt64Array, bins: IntArray, out: UInt64Array) -> None:
    """Write to ``out`` a hash of the bin and the coordinates (bits of float64, -0 as 0) of each row."""
    for i in range(len(out)):
        mark = np.uint64(bins[i])
        for k in range(words.shape[1]):
            word = words[i, k]
            mark = (mark ^ (ZERO if word == MINUS_ZERO else word)) * MIX
            mark ^= (mark >> RIGHT) | (mark << LEFT)
        out[i] = mark


class BinnedRows:
    """Rows sorted by bin (``numbers``, below ``bins``): coordinates ``points``, and ``columns`` to sum, weights first."""

    def __init__(self, points: FloatArray, columns: FloatArray, numbers: IntArray, bins: int) -> None:
        self.bins = bins
        self.starts = np.append(0, np.cumsum(np.bincount(numbers, minlength=bins)))
        self.given = points
        self.there: Any = points  # or the same on the GPU
        self.sorted = bool((numbers[1:] >= numbers[:-1]).all())
        self.order = np.arange(len(numbers)) if self.sorted else np.argsort(numbers, kind="stable")
        self.columns = columns if self.sorted else columns[self.order]
        self.weight = self.columns[:, 0]
        # Whether float32 has the range for all weights.
        self.even = bool(self.weight.max() <= MAX_FLOAT32_RATIO * self.weight.min())

    @cached_property
    def points(self) -> FloatArray:
        """The coordinates of the rows."""
        return self.given if self.sorted else self.given[self.order]

    @cached_property
    def ranges(self) -> FloatArray:
        """The range of each coordinate."""
        return np.asarray(self.given.max(axis=0) - self.given.min(axis=0))

    @cached_property
    def numbers(self) -> IntArray:
        """The bin of each row, ascending."""
        return np.repeat(np.arange(self.bins), np.diff(self.starts))

    @property
    def places(self) -> IntArray:
        """The index of each input row among the rows sorted by bin."""
        place = np.empty(len(self.order), np.int64)
        place[self.order] = np.arange(len(self.order))
        return place

    @cached_property
    def blocks(self) -> tiles.Blocks:
        """The rows in blocks, for sums over all pairs."""
        return tiles.Blocks(self.points, self.columns, self.starts)

    @cached_property
    def totals(self) -> FloatArray:
        """The sums of the columns of each bin."""
        totals = np.zeros((self.bins, self.columns.shape[1]))
        some = np.flatnonzero(np.diff(self.starts))
        totals[some] = np.add.reduceat(self.columns, self.starts[some], axis=0)
        return totals

    def fine(self, scale: float) -> bool:
        """Return whether integer distances are accurate enough at this scale."""
        return tiles.fine_enough(self.ranges, scale)

    def group_scales(self, scales: FloatArray, device: str) -> Iterator[IntArray]:
        """Yield arrays of at most 8 indices of scales to sum in one pass: scales of zero, then `fine` ones, then others."""
        fine = np.array([device == "cuda" or self.fine(float(scale)) for scale in scales], bool)
        for kind in (scales == 0, (scales > 0) & fine, (scales > 0) & ~fine):
            chosen = np.flatnonzero(kind)
            yield from (chosen[start : start + SCALES_PER_PASS] for start in range(0, len(chosen), SCALES_PER_PASS))

    def cut(self, scale: float, tolerance: float) -> float:
        """Return how much farther than the nearest row others must be to change ratios of sums by at most ``tolerance``."""
        ratio = float(np.log(2 * self.weight.sum()) - np.log(self.weight.min())) - np.log(tolerance)
        return float(min(ratio / scale, np.finfo(float).max))


class SumTask(NamedTuple):
    """The settings of a sum: arguments of `sums`, and the threads as `Workers`."""

    scales: FloatArray
    tolerance: float
    workers: Workers
    device: str


class Sums(NamedTuple):
    """Sums at m points, for g scales and c columns: ``total * exp(-scale * shift)``.

    ``shift`` is the distance to the nearest row where a sum would otherwise underflow, else 0; it cancels in ratios of
    totals of one point and scale. A point whose bin has no other rows has a total of 0.
    """

    total: FloatArray  # (g, m, c)
    shift: FloatArray  # (g, m)


def sums(
    points: FloatArray, columns: FloatArray, bins: IntArray, scales: FloatArray, *,
    at: tuple[FloatArray, IntArray] | None = None, own: bool = True, tolerance: float = EXACT,
    threads: int | None = None, device: str = "cpu",
) -> Sums:  # fmt: skip
    """Sum the columns over the rows of each point's bin, weighted by the kernel exp(-scale * L1 distance).

    The first column holds positive weights. ``at`` are other points and their bins, by default the points themselves; then
    a row counts in its own sums if ``own``. ``tolerance`` bounds the error of a ratio of two totals, relative to the
    largest ratio of any row. ``device`` is "cpu", "cuda", or "auto" (see `choose_device`).
    """
    if at is not None:
        return Sources(points, columns, bins, threads).at(*at, scales, threads, tolerance, device)
    task = SumTask(scales, tolerance, Workers(threads), choose_device(device, points, bins, bins, scales))
    result = Sums(np.zeros((len(scales), len(points), columns.shape[1])), np.zeros((len(scales), len(points))))
    if len(points):
        _sum_among(np.ascontiguousarray(points, np.float64), columns, bins, task, result, own=own)
    return result


class Sources:
    """Rows prepared once for sums at points that arrive later; arguments as for `sums`."""

    def __init__(self, points: FloatArray, columns: FloatArray, bins: IntArray, threads: int | None = None) -> None:
        self._columns = columns.shape[1]
        self._bins = bins
        self._rows: BinnedRows | None = None
        if not len(points):
            return
        points = np.ascontiguousarray(points, np.float64)
        if (equal := find_equal(points, bins, Workers(threads))) is not None:
            first, group = equal
            points, columns, bins = points[first], add_up(columns, group, len(first)), bins[first]
        self._rows = BinnedRows(points, columns, bins, int(bins.max()) + 2)  # the last one has no rows

    def at(
        self, points: FloatArray, bins: IntArray, scales: FloatArray, threads: int | None = None,
        tolerance: float = EXACT, device: str = "cpu",
    ) -> Sums:  # fmt: skip
        """Return the sums at ``points`` in ``bins``, as `sums` does; those of a point do not depend on the other points."""
        result = Sums(np.zeros((len(scales), len(points), self._columns)), np.zeros((len(scales), len(points))))
        rows = self._rows
        if rows is None or not len(points):
            return result
        task = SumTask(scales, tolerance, Workers(threads), choose_device(device, points, bins, self._bins, scales))
        points, bins = np.ascontiguousarray(points, np.float64), np.minimum(bins, rows.bins - 1)
        first, group = find_equal(points, bins, task.workers) or (np.arange(len(points)),) * 2
        targets = BinnedRows(points[first], np.ones((len(first), 1)), bins[first], rows.bins)
        place = targets.places[group]
        for chosen in rows.group_scales(task.scales, task.device):
            total, shift = _sum_over(rows, targets, np.ones(len(first), bool), task.scales[chosen], task)
            result.total[chosen], result.shift[chosen] = total[:, place], shift[:, place]
        return result


def _sum_among(points: FloatArray, columns: FloatArray, bins: IntArray, task: SumTask, result: Sums, *, own: bool) -> None:
    """Write to ``result`` the sums at the rows themselves, each row counting in its own if ``own``; pool equal rows."""
    there = cuda.put(points) if task.device == "cuda" else None
    distinct = there is not None and cuda.differ(there, bins, MAX_GROUPS_PER_ROW)
    equal = None if distinct else find_equal(points, bins, task.workers)
    first, group = equal or (slice(None), slice(None))
    pooled = columns if equal is None else add_up(columns, equal[1], len(equal[0]))
    count = np.ones(len(points), np.int64) if equal is None else np.bincount(equal[1])
    rows = BinnedRows(points[first], pooled, bins[first], int(bins.max()) + 1)
    rows.there = there if distinct else rows.there
    place = None if equal is None and rows.sorted else rows.places[group]
    # At distance 0 of a row: its whole group, or the others of it.
    here = pooled[group] if own else np.zeros_like(columns) if equal is None else add_others(columns, equal[1])
    alone = np.zeros(len(pooled), bool) if own else (count == 1)[rows.order]
    together = np.ones(len(points), bool) if own else count[group] > 1
    for chosen in rows.group_scales(task.scales, task.device):
        total, shift = _sum_over(rows, None, alone, task.scales[chosen], task)
        if place is not None:
            total, shift = total[:, place], shift[:, place]
        if own and not shift.any():
            result.total[chosen] = np.add(total, here, out=total)
            continue
        near = np.exp(-task.scales[chosen][:, None] * shift)
        # A row or a group at distance 0 takes the shift away; a row alone keeps it.
        result.total[chosen] = np.where(together[:, None], total * near[:, :, None] + here, total)
        result.shift[chosen] = np.where(together, 0.0, shift)


def _sum_over(rows: BinnedRows, targets: BinnedRows | None, alone: BoolArray, scales: FloatArray, task: SumTask) -> Sums:
    """Sum over the rows of each target's bin by the fastest exact method; without targets, for each row over the others.

    A sum that nearly underflowed is computed again, relative to the nearest row, if the point is ``alone``, which means
    that no row with the same coordinates counts.
    """
    asked = rows if targets is None else targets
    shift = np.zeros((len(scales), len(asked.order)))
    if not scales[0]:
        same = add_others(rows.columns, rows.numbers) if targets is None else rows.totals[targets.numbers]
        return Sums(same[None].repeat(len(scales), axis=0), shift)
    queries = None if targets is None else (targets.points, targets.starts)
    d, most, least = rows.given.shape[1], float(scales.max()), float(scales.min())
    total, method = None, "cuda"
    if task.device == "cuda" and rows.even:
        order = None if rows.sorted else rows.order
        total = cuda.sums(rows.there, order, rows.columns, rows.starts, queries, scales)
    if total is not None:
        pass
    elif d < len(MIN_SWEPT_ROWS) and int(np.diff(rows.starts).max()) > MIN_SWEPT_ROWS[d]:
        from trueup.kernels.laplace import sweeps

        given = rows.points, rows.columns, rows.starts, queries
        total = np.stack([sweeps.sums(*given, float(scale), task.workers) for scale in scales])
        method = "sweeps"
    elif targets is None and rows.even and rows.fine(most):
        reach = FLOAT32_UNDERFLOW / least if alone.any() else rows.cut(least, task.tolerance)
        total, method = tiles.sum_among(rows.blocks, scales, reach, task.workers), "tiles"
    else:
        total, method = np.zeros((*shift.shape, rows.columns.shape[1])), ""
        alone = np.ones(len(asked.order), bool)
    weak = alone & (total[:, :, 0] < (MIN_SHARE[method] * rows.weight.max() if method else np.inf))
    again = np.flatnonzero(weak.any(axis=0))
    if len(again):
        chosen = np.flatnonzero(weak.any(axis=1))  # no sum depends on which other scales are summed again
        cut = rows.cut(least, task.tolerance)
        exact, nearest = tiles.sum_at(
            rows.blocks, asked.points[again], np.searchsorted(again, asked.starts), scales[chosen], cut, task.workers,
            fine=rows.fine(most), even=rows.even, skip=again if targets is None else None,
        )  # fmt: skip
        for k, g in enumerate(chosen):
            take = weak[g, again]
            total[g, again[take]], shift[g, again[take]] = exact[k, take], nearest[take]
    return Sums(total, shift)
