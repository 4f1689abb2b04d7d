"""Sums of exp(-scale * L1 distance) in two or three dimensions: divide and conquer, on all bins at once.

`quarters` has the method; here the rows are put in order, and the work is cut into pieces. The cuts depend on the rows
alone, and so does every order of additions: not on the targets, not on the threads.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trueup.kernels._jit import jit
from trueup.kernels.laplace.orders import in_order, merged, pieces
from trueup.kernels.laplace.quarters import FADE, FIRST, GROW, ORIGIN, SOURCE, TARGET, X, Z, sum_halves
from trueup.kernels.threads import Workers

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]
    Ids = NDArray[np.int32]
    Bytes = NDArray[np.uint8]

__all__ = ["sums"]

REACH = 32.0  # how far from its origin a sum is seen, in units of 1 / scale: exp(32) is 8e13, harmless in a product
SPLIT = 60_000  # a bin of more rows is more than one piece of work
TOPS = 4  # so many levels of halves, at most, are pieces of work of their own: each level holds sums of its own


def sums(
    points: Floats, columns: Floats, starts: Ints, targets: Floats | None, target_starts: Ints | None, scale: float,
    workers: Workers,
) -> Floats:  # fmt: skip
    """Sum the columns of the rows of each target's bin, weighed by the kernel, in O(n log^(d - 1) n).

    Parameters
    ----------
    points : ndarray, shape (n, d), of float64
        Finite; d is 2 or 3. The rows of bin k are ``starts[k]:starts[k + 1]``.
    columns : ndarray, shape (n, c), of float64
    starts : ndarray, shape (b + 1,), of int64
    targets : ndarray, shape (m, d), or None
        None: the points themselves, none of which counts for itself. A target's sums do not depend on the others.
    target_starts : ndarray, shape (b + 1,), or None
    scale : float
        Not negative.
    workers : Workers

    Returns
    -------
    ndarray, shape (m, c)
        What underflows is 0.
    """
    many = len(points) if targets is None else len(targets)
    out = np.zeros((many, columns.shape[1]))
    if not len(points) or not many:
        return out
    if targets is not None and target_starts is not None:
        points, columns, starts, target_starts = _leave_out(points, columns, starts, target_starts)
        size = 2 * max(len(points), SPLIT)
        if many > size:
            part = partial(_sum_part, points, columns, starts, targets, target_starts, scale, size)
            return np.concatenate(workers.map(part, range(0, many, size)))
    if not scale > 0:  # where all points are one, no difference can overflow
        points, targets = np.zeros_like(points), None if targets is None else np.zeros_like(targets)
    rows = _arrange(points, starts, targets, target_starts, scale, workers)
    for first in range(0, columns.shape[1], 2):
        pair = columns[:, first : first + 2]
        found = _sum_pair(rows, pair, scale, workers)
        out[:, first : first + 2] = found[rows.places, : pair.shape[1]]
    return out


def _leave_out(points: Floats, columns: Floats, starts: Ints, target_starts: Ints) -> tuple[Floats, Floats, Ints, Ints]:
    """Leave out the rows of bins without targets."""
    asked = np.diff(target_starts) > 0
    if asked.all():
        return points, columns, starts, target_starts
    sizes = np.diff(starts)
    kept = np.repeat(asked, sizes)
    starts = np.append(0, np.cumsum(sizes[asked]))
    return points[kept], columns[kept], starts, np.append(0, np.cumsum(np.diff(target_starts)[asked]))


def _sum_part(
    points: Floats, columns: Floats, starts: Ints, targets: Floats, target_starts: Ints, scale: float, size: int, at: int
) -> Floats:
    """Sum at some of the targets, from one place on."""
    part = targets[at : at + size]
    return sums(points, columns, starts, part, np.clip(target_starts - at, 0, len(part)), scale, Workers(1))


class _Rows(NamedTuple):
    """Rows, and targets among them, by bin and then by the first coordinate."""

    records: Floats  # see `quarters`
    kinds: Bytes
    by_y: Ids
    by_z: Ids
    sources: Ids  # where the rows are
    of: Ints  # which rows they are
    places: Ints  # where the targets are
    starts: Ints  # of the bins among the rows
    bounds: Ints  # of the bins among rows and targets
    planar: int  # two dimensions


def _arrange(
    points: Floats, starts: Ints, targets: Floats | None, target_starts: Ints | None, scale: float, workers: Workers
) -> _Rows:
    n, d = points.shape
    if targets is None or target_starts is None:
        bounds, every, both = starts, points, SOURCE | TARGET
    else:
        bounds, every, both = starts + target_starts, np.concatenate([points, targets]), SOURCE

    def order(k: int) -> Ints:
        rows = in_order(points[:, k], starts)
        if targets is None or target_starts is None:
            return rows
        asked = in_order(targets[:, k], target_starts)
        return merged(points[:, k], starts, rows, targets[:, k], target_starts, asked)

    orders = workers.map(order, range(d))
    place = np.empty(len(every), np.int32)
    place[orders[0]] = np.arange(len(every), dtype=np.int32)
    records = np.zeros((len(every), 8))
    records[:, Z + 1 - d : Z + 1] = every[orders[0]]
    records[:, X] = 0.0 if d == 2 else records[:, X]
    real = orders[0] < n
    kinds = np.where(real, both, TARGET).astype(np.uint8)
    by_z = place[orders[-1]]
    _set_origins(records, kinds, by_z, bounds, scale)
    sources = np.flatnonzero(real).astype(np.int32)
    places = place[n:] if len(every) > n else place
    return _Rows(
        records,
        kinds,
        place[orders[-2]],
        by_z,
        sources,
        orders[0][real],
        places.astype(np.int64),
        starts,
        bounds,
        int(d == 2),
    )


@jit
def _set_origins(records: Floats, kinds: Bytes, by_z: Ids, bounds: Ints, scale: float) -> None:
    """Set the origin of every row, never far below it, and the factors to and from it.

    Origins are rows. A target with none within reach is its own.
    """
    for b in range(bounds.size - 1):
        origin = math.nan
        for i in range(bounds[b], bounds[b + 1]):
            r = records[by_z[i]]
            far = scale * (r[Z] - origin)
            here = origin
            if not far <= REACH:  # the first, too
                here = r[Z]
                far = 0.0
                if kinds[by_z[i]] & SOURCE:
                    origin = here
            r[ORIGIN] = here
            r[FADE] = math.exp(-far)
            r[GROW] = math.exp(far)


def _sum_pair(rows: _Rows, columns: Floats, scale: float, workers: Workers) -> Floats:
    """Sum one or two columns at all rows and targets, in the order of the records."""
    rows.records[rows.sources, FIRST : FIRST + columns.shape[1]] = columns[rows.of]
    out = np.zeros((len(rows.records), 2))

    def work(jobs: Ints) -> Floats:
        deep = jobs[0, -1] != 0
        base, into = (0, out) if deep else (jobs[0, 2], np.zeros((jobs[0, 3] - jobs[0, 2], 2)))
        given = rows.records, rows.kinds, rows.by_y, rows.by_z, rows.sources, jobs, scale, rows.planar, base
        sum_halves(*given, *_scratch(jobs), into)
        return into

    todo = _cut(rows)
    for jobs, found in zip(todo, workers.map(work, todo), strict=True):
        if found is not out:
            out[jobs[0, 2] : jobs[0, 3]] += found
    return out


def _scratch(jobs: Ints) -> tuple[Floats, Floats]:
    """Give room for the largest of some jobs: NumPy asks for large pages, which are there sooner."""
    size = int((jobs[:, 3] - jobs[:, 2]).max())
    return np.empty((12, size + 40)), np.empty((size, 4))


def _cut(rows: _Rows) -> list[Ints]:
    """Cut the work into pieces: of a bin with many rows its upper halves one by one, then the lower; runs of other bins."""
    starts, bounds = rows.starts, rows.bounds
    jobs = np.stack([starts[:-1], starts[1:], *[bounds[:-1], bounds[1:]] * 2, np.ones(len(starts) - 1, np.int64)], axis=1)
    large = (np.diff(starts) > SPLIT) & (not rows.planar)
    todo = []
    for job in jobs[large]:
        level = job[None]
        for _ in range(TOPS):
            if level[0, 1] - level[0, 0] > SPLIT:
                todo += [np.append(half[:-1], 0)[None] for half in level]
                level = _halve(level, rows.sources)
        todo += list(level[:, None])
    small = jobs[~large]
    return todo + [small[i:j] for i, j in pieces(np.append(0, np.cumsum(small[:, 3] - small[:, 2])))]


def _halve(level: Ints, sources: Ids) -> Ints:
    """Halve each job."""
    first, last, lo, hi, begin, end, deep = level.T
    half = (first + last) >> 1
    mid = sources[half]
    left = np.stack([first, half, lo, mid, begin, end, deep], axis=1)
    right = np.stack([half, last, mid, hi, begin, end, deep], axis=1)
    return np.stack([left, right], axis=1).reshape(-1, level.shape[1])
