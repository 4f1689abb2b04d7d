"""Choose how to sum: by the number of dimensions, of rows, by the scale and the device. No bit depends on the threads."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trueup.kernels.laplace import cuda
from trueup.kernels.laplace.equal import add_others, find_equal
from trueup.kernels.laplace.rows import Rows
from trueup.kernels.laplace.tiles import sum_among, sum_at
from trueup.kernels.threads import Workers

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]
    Flags = NDArray[np.bool_]

__all__ = ["EXACT", "Sources", "Sums", "sums"]

EXACT = 1e-15  # what is left out may not move any ratio by more: a rounding error
# Sums below this share of the largest weight are of distant rows: summed again, with care.
THIN = {"clever": 1e-200, "tiles": 2.0**-60, "cuda": 2.0**-10}
VANISHED = 88.0  # exp(-VANISHED) is nothing in float32


class Task(NamedTuple):
    """What is asked, whatever the rows."""

    scales: Floats
    tolerance: float
    workers: Workers
    device: str


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
    if device == "cuda" and not cuda.available():
        device = "cpu"
    task = Task(scales, tolerance, Workers(threads), device)
    if at is not None:
        return Sources(points, columns, bins)._ask(*at, task)
    found = _nothing(task, len(points), columns.shape[1])
    if len(points):
        _sum_among(np.ascontiguousarray(points, np.float64), columns, bins, task, found, own=own)
    return found


def _nothing(task: Task, points: int, columns: int) -> Sums:
    return Sums(np.zeros((len(task.scales), points, columns)), np.zeros((len(task.scales), points)))


class Sources:
    """Rows that are laid out once to be asked about at many points; see `sums`.

    Examples
    --------
    >>> rows = Sources(np.array([[0.0], [1.0]]), np.ones((2, 1)), np.zeros(2, np.int64))
    >>> rows.at(np.array([[0.5]]), np.array([0]), np.array([1.0])).total.round(3)
    array([[[1.213]]])
    """

    def __init__(self, points: Floats, columns: Floats, bins: Ints) -> None:
        self._columns = columns.shape[1]
        self._rows: Rows | None = None
        if not len(points):
            return
        points = np.ascontiguousarray(points, np.float64)
        equal = find_equal(points, bins)
        if equal is not None:
            points, columns, bins = points[equal.first], equal.add_up(columns), bins[equal.first]
        self._rows = Rows(points, columns, bins, int(bins.max()) + 2)  # the last one has no rows

    def at(self, points: Floats, bins: Ints, scales: Floats, threads: int | None = None) -> Sums:
        """Sum at points; what a point gets depends on it alone."""
        return self._ask(points, bins, Task(scales, EXACT, Workers(threads), "cpu"))

    def _ask(self, points: Floats, bins: Ints, task: Task) -> Sums:
        found, rows = _nothing(task, len(points), self._columns), self._rows
        if rows is None or not len(points):
            return found
        points, bins = np.ascontiguousarray(points, np.float64), np.minimum(bins, rows.bins - 1)
        equal = find_equal(points, bins)
        first, group = (np.arange(len(points)),) * 2 if equal is None else equal
        targets = Rows(points[first], np.ones((len(first), 1)), bins[first], rows.bins)
        place = _places(targets)
        for chosen in rows.parts(task.scales):
            total, shift = _at(rows, targets, task.scales[chosen], task)
            found.total[chosen], found.shift[chosen] = total[:, place[group]], shift[:, place[group]]
        return found


def _sum_among(points: Floats, columns: Floats, bins: Ints, task: Task, found: Sums, *, own: bool) -> None:
    """Sum at the rows themselves; equal rows are met as one."""
    equal = find_equal(points, bins)
    if equal is None:
        first = group = np.arange(len(points))
        pooled, count = columns, np.ones(len(points), np.int64)
    else:
        (first, group), pooled = equal, equal.add_up(columns)
        count = np.bincount(group)
    rows = Rows(points if equal is None else points[first], pooled, bins[first], int(bins.max()) + 1)
    place = None if equal is None and rows.sorted else _places(rows)[group]
    # At distance 0 of a row: its whole group, or the others of it.
    here = pooled[group] if own else np.zeros_like(columns) if equal is None else add_others(columns, group)
    alone = np.zeros(len(first), bool) if own else (count == 1)[rows.order]
    together = np.ones(len(group), bool) if own else count[group] > 1
    for chosen in rows.parts(task.scales):
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


def _places(rows: Rows) -> Ints:
    """Give the place of each row among those in the order of their bins."""
    place = np.empty(len(rows.order), np.int64)
    place[rows.order] = np.arange(len(rows.order))
    return place


def _others(rows: Rows, alone: Flags, scales: Floats, task: Task) -> Sums:
    """Sum over all other rows of the bin; ``alone`` marks rows that no other row is equal to and that do not count."""
    shift = np.zeros((len(scales), len(rows.points)))
    if not scales[0]:
        return Sums(add_others(rows.columns, rows.numbers)[None].repeat(len(scales), axis=0), shift)
    least = float(scales.min())
    if task.device == "cuda" and rows.even and rows.on_card(float(scales.max())):
        total, thin = cuda.sum_among(rows.points, rows.middle, rows.columns, rows.starts, scales), THIN["cuda"]
    elif rows.clever:
        total, thin = rows.low(None, None, scales, task.workers), THIN["clever"]
    elif rows.even and rows.fine(float(scales.max())):
        reach = VANISHED / least if alone.any() else rows.cut(least, task.tolerance)
        total, thin = sum_among(rows.blocks, scales, reach, task.workers), THIN["tiles"]
    else:
        total, thin = np.zeros((len(scales), *rows.columns.shape)), np.inf
        alone = np.ones(len(rows.points), bool)
    _mend(rows, rows.points, rows.starts, alone, thin, scales, task, Sums(total, shift), skip=True)
    return Sums(total, shift)


def _mend(
    rows: Rows, points: Floats, starts: Ints, which: Flags, thin: float, scales: Floats, task: Task, found: Sums,
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
    of = np.flatnonzero(weak.any(axis=1))  # no sum depends on which other scales are summed again
    total, shift = sum_at(
        rows.blocks, points[at], some, scales[of], cut, task.workers,
        fine=rows.fine(float(scales.max())), even=rows.even, skip=at if skip else None,
    )  # fmt: skip
    for k, g in enumerate(of):
        take = weak[g, at]
        found.total[g, at[take]], found.shift[g, at[take]] = total[k, take], shift[take]


def _at(rows: Rows, targets: Rows, scales: Floats, task: Task) -> Sums:
    many = len(targets.points)
    shift = np.zeros((len(scales), many))
    if not scales[0]:
        return Sums(rows.totals[targets.numbers][None].repeat(len(scales), axis=0), shift)
    if task.device == "cuda" and rows.even and rows.on_card(float(scales.max())):
        given = rows.points, rows.middle, rows.columns, rows.starts, targets.points, targets.starts
        total, thin = cuda.sum_at(*given, scales), THIN["cuda"]
    elif rows.clever:
        total, thin = rows.low(targets.points, targets.starts, scales, task.workers), THIN["clever"]
    else:
        total, thin = np.zeros((len(scales), many, rows.columns.shape[1])), np.inf
    found = Sums(total, shift)
    _mend(rows, targets.points, targets.starts, np.ones(many, bool), thin, scales, task, found, skip=False)
    return found
