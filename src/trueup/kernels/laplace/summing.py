"""Choose how to sum: by the number of dimensions, of rows, by the scale and the device. No bit depends on the threads."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trueup.kernels.laplace.equal import find_equal
from trueup.kernels.laplace.tiles import Blocks, fine_enough, lay_out, sum_among, sum_at
from trueup.kernels.threads import Workers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]
    Flags = NDArray[np.bool_]

__all__ = ["EXACT", "Sums", "sums"]

EXACT = 1e-15  # what is left out may not move any ratio by more: a rounding error
SCALES = 8  # summed in one pass over the distances
CLEVER: tuple[
    int, ...
] = ()  # TEMP (0, 1, 4000, 4000)  # by dimensions: bins with more rows than this are summed by `line` or `halves`
THIN = {"clever": 1e-200, "tiles": 2.0**-60}  # sums below this share of a weight are of distant rows: summed with care
VANISHED = 88.0  # exp(-VANISHED) is nothing in float32


class Sums(NamedTuple):
    """Sums at m points, for g scales and c columns: ``total * exp(-scale * shift)``.

    ``shift`` is a distance, 0 wherever no sum comes near to vanishing; ratios of totals of one point and scale need not
    know it. A point whose bin has no rows (or none but itself, where it does not count) has a total of 0.
    """

    total: Floats  # (g, m, c)
    shift: Floats  # (g, m)


def sums(
    points: Floats, columns: Floats, bins: Ints, scales: Floats, *,
    at: tuple[Floats, Ints] | None = None, own: bool = True, tolerance: float = EXACT,
    threads: int | None = None, device: str = "cpu",
) -> Sums:  # fmt: skip
    """Sum the columns of each point's bin, weighed by the kernel.

    Parameters
    ----------
    points : ndarray, shape (n, d), of float64
        Finite.
    columns : ndarray, shape (n, c), of float64
        The first holds weights, above 0; the others anything finite.
    bins : ndarray, shape (n,), of int64
        Not negative.
    scales : ndarray, shape (g,), of float64
        Not negative; 1 / (d gamma).
    at : (ndarray of shape (m, d), ndarray of shape (m,)), optional
        Other points and their bins; by default the points themselves.
    own : bool
        Whether a row counts for itself (only without ``at``).
    tolerance : float
        How far a ratio of two totals may be off, as a share of the largest ratio of any row.
    threads : int, optional
        All cores by default. Their number changes no bit.
    device : {"cpu", "cuda"}

    Examples
    --------
    >>> found = sums(np.array([[0.0], [1.0]]), np.ones((2, 1)), np.zeros(2, np.int64), np.array([1.0]))
    >>> found.total[0, :, 0].round(3), found.shift[0]
    (array([1.368, 1.368]), array([0., 0.]))
    """
    points = np.ascontiguousarray(points, np.float64) + 0.0  # one zero, not two
    many = len(points) if at is None else len(at[0])
    found = Sums(np.zeros((len(scales), many, columns.shape[1])), np.zeros((len(scales), many)))
    if not len(points) or not many:
        return found
    places = bins if at is None else at[1]
    task = _Task(scales, tolerance, Workers(threads), device, int(max(bins.max(), places.max())) + 1)
    if at is None:
        _sum_among(points, columns, bins, task, found, own=own)
    else:
        _sum_at(points, columns, bins, (np.ascontiguousarray(at[0], np.float64) + 0.0, places), task, found)
    return found


class _Task(NamedTuple):
    """What is asked, whatever the rows."""

    scales: Floats
    tolerance: float
    workers: Workers
    device: str
    bins: int

    def parts(self, points: Floats) -> Iterator[Ints]:
        """Part the scales: those of 0, those at which distances may be whole numbers, the others; not too many at once."""
        fine = np.array([fine_enough(points, float(scale)) for scale in self.scales])
        for kind in (self.scales == 0, (self.scales > 0) & fine, (self.scales > 0) & ~fine):
            chosen = np.flatnonzero(kind)
            yield from (chosen[start : start + SCALES] for start in range(0, len(chosen), SCALES))


class _Rows:
    """Rows in the order of their bins."""

    def __init__(self, points: Floats, columns: Floats, bins: Ints, many: int) -> None:
        self.order = np.argsort(bins, kind="stable")
        self.starts = np.append(0, np.cumsum(np.bincount(bins, minlength=many)))
        self.points, self.columns = points[self.order], columns[self.order]
        self.weight = self.columns[:, 0]

    @cached_property
    def blocks(self) -> Blocks:
        return lay_out(self.points, self.starts)

    @property
    def clever(self) -> bool:
        d = self.points.shape[1]
        return d < len(CLEVER) and int(np.diff(self.starts).max()) > CLEVER[d]

    @property
    def totals(self) -> Floats:
        """Add up the columns of each bin."""
        runs = np.append(np.zeros((1, self.columns.shape[1])), np.cumsum(self.columns, axis=0), axis=0)
        found = runs[self.starts[1:]] - runs[self.starts[:-1]]
        single = np.diff(self.starts) == 1
        found[single] = self.columns[self.starts[:-1][single]]
        return np.asarray(found)

    def cut(self, scale: float, tolerance: float) -> float:
        """Give the distance beyond a point's nearest row at which rows no longer count."""
        ratio = np.log(2 * self.weight.sum()) - np.log(self.weight.min()) - np.log(tolerance)
        return float(min(ratio / scale, np.finfo(float).max))

    def low(self, targets: Floats | None, target_starts: Ints | None, scales: Floats, workers: Workers) -> Floats:
        """Sum in one to three dimensions, plainly."""
        from trueup.kernels.laplace import halves, line

        way = line if self.points.shape[1] == 1 else halves
        given = (self.points, self.columns, self.starts, targets, target_starts)
        return np.stack([way.sums(*given, float(scale), workers) for scale in scales])


def _sum_among(points: Floats, columns: Floats, bins: Ints, task: _Task, found: Sums, *, own: bool) -> None:
    """Sum at the rows themselves; equal rows are met as one."""
    equal = find_equal(points, bins)
    if equal is None:
        first = group = np.arange(len(points))
        pooled, count = columns, np.ones(len(points), np.int64)
    else:
        (first, group), pooled = equal, equal.add_up(columns)
        count = np.bincount(group)
    rows = _Rows(points[first], pooled, bins[first], task.bins)
    place = np.empty(len(first), np.int64)
    place[rows.order] = np.arange(len(first))
    # At distance 0 of a row: its whole group, or the others of it.
    here = pooled[group] if own else np.where((count > 1)[group][:, None], pooled[group] - columns, 0.0)
    alone = np.zeros(len(first), bool) if own else (count == 1)[rows.order]
    for chosen in task.parts(rows.points):
        total, shift = _others(rows, alone, task.scales[chosen], task)
        total, shift = total[:, place[group]], shift[:, place[group]]
        near = np.exp(-task.scales[chosen][:, None] * shift) if not own or shift.any() else np.ones_like(shift)
        together = count[group] > 1 if not own else np.ones(len(group), bool)
        # A group at distance 0 takes the shift away; a row alone keeps it.
        found.total[chosen] = np.where(together[:, None], total * near[:, :, None] + here, total)
        found.shift[chosen] = np.where(together, 0.0, shift)


def _others(rows: _Rows, alone: Flags, scales: Floats, task: _Task) -> Sums:
    """Sum over all other rows of the bin; ``alone`` marks rows that no other row is equal to and that do not count."""
    shift = np.zeros((len(scales), len(rows.points)))
    if not scales[0]:
        bins = np.repeat(np.arange(task.bins), np.diff(rows.starts))
        return Sums((rows.totals[bins] - rows.columns)[None].repeat(len(scales), axis=0), shift)
    least = float(scales.min())
    if rows.clever:
        total, thin = rows.low(None, None, scales, task.workers), THIN["clever"]
    elif fine_enough(rows.points, float(scales.max())):
        reach = VANISHED / least if alone.any() else rows.cut(least, task.tolerance)
        total, thin = sum_among(rows.blocks, rows.columns, scales, reach, task.workers), THIN["tiles"]
    else:
        total, thin = np.zeros((len(scales), *rows.columns.shape)), np.inf
        alone = np.ones(len(rows.points), bool)
    _mend(rows, rows.points, rows.starts, alone, thin, scales, task, Sums(total, shift), skip=True)
    return Sums(total, shift)


def _mend(
    rows: _Rows, points: Floats, starts: Ints, which: Flags, thin: float, scales: Floats, task: _Task, found: Sums,
    *, skip: bool,
) -> None:  # fmt: skip
    """Sum again, from the nearest row on, where a sum all but vanished."""
    floor = thin * rows.weight.max() if np.isfinite(thin) else np.inf
    weak = which & (found.total[:, :, 0] < floor)
    at = np.flatnonzero(weak.any(axis=0))
    if not len(at):
        return
    some = np.searchsorted(at, starts)
    cut = rows.cut(float(scales.min()), task.tolerance)
    total, shift = sum_at(rows.blocks, rows.columns, points[at], some, scales, cut, task.workers, skip=at if skip else None)
    take = weak[:, at]
    found.total[:, at] = np.where(take[:, :, None], total, found.total[:, at])
    found.shift[:, at] = np.where(take, shift, found.shift[:, at])


def _sum_at(points: Floats, columns: Floats, bins: Ints, at: tuple[Floats, Ints], task: _Task, found: Sums) -> None:
    """Sum at other points; equal ones are asked once, and equal rows met as one. What a point gets depends on it alone."""
    equal = find_equal(points, bins)
    if equal is not None:
        points, columns, bins = points[equal.first], equal.add_up(columns), bins[equal.first]
    rows = _Rows(points, columns, bins, task.bins)
    asked = find_equal(*at)
    first, group = asked if asked is not None else (np.arange(len(at[0])),) * 2
    targets = _Rows(at[0][first], np.ones((len(first), 1)), at[1][first], task.bins)
    place = np.empty(len(first), np.int64)
    place[targets.order] = np.arange(len(first))
    for chosen in task.parts(rows.points):
        total, shift = _at(rows, targets, task.scales[chosen], task)
        found.total[chosen] = total[:, place[group]]
        found.shift[chosen] = shift[:, place[group]]


def _at(rows: _Rows, targets: _Rows, scales: Floats, task: _Task) -> Sums:
    many = len(targets.points)
    shift = np.zeros((len(scales), many))
    if not scales[0]:
        bins = np.repeat(np.arange(task.bins), np.diff(targets.starts))
        return Sums(rows.totals[bins][None].repeat(len(scales), axis=0), shift)
    if rows.clever:
        total, thin = rows.low(targets.points, targets.starts, scales, task.workers), THIN["clever"]
    else:
        total, thin = np.zeros((len(scales), many, rows.columns.shape[1])), np.inf
    found = Sums(total, shift)
    _mend(rows, targets.points, targets.starts, np.ones(many, bool), thin, scales, task, found, skip=False)
    return found
