"""Sums of exp(-scale * L1 distance) in two or three dimensions: divide and conquer.

Rows are halved by their order in x. Between a row s of the left half and t of the right one, with m the value at the cut,
exp(-scale (x_t - x_s)) is exp(-scale (x_t - m)) exp(-scale (m - x_s)): a factor of each row alone, which eliminates x. Two
dimensions remain, halved by the order in y in the same way, and then one: a sweep in the order of z. All four quarters
(left or right, low or high) add to their opposite in one sweep. Halves of few rows are summed pair by pair. Every pair is
met once, whatever is equal: halves are made by position. O(n log n) and O(n log^2 n), memory O(n); N. Langrené and X.
Warin, "Fast multivariate empirical cumulative distribution function with connection to kernel density estimation" (2020).

In a sweep a row is added with the factor exp(+scale (z - origin)) and read with its inverse. Origins are rows not far
below, so that no factor is large, and sums decay when a sweep reaches the next one: factors are computed once, not in every
sweep. Targets never cut a half, choose an origin or move a sum: the sums of a target do not depend on other targets.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
from numba import int64, types, uint64
from numba.extending import intrinsic

from trueup.kernels._jit import jit
from trueup.kernels.laplace.line import in_order, merged, pieces
from trueup.kernels.threads import Workers

if TYPE_CHECKING:
    from collections.abc import Callable

    from trueup._types import FloatArray, Int32Array, IntArray, UInt8Array

PAIRS = 128  # a half in x of at most so many rows is summed pair by pair
FEW = 32  # and in y
BLOCK = 256  # targets at a time
LANES = 8  # and of these
X, Y, Z, ORIGIN, FADE, GROW, FIRST, SECOND, HEIGHT, OUT, _, SHARE = range(12)  # a row of the records has the first eight
SIDE, SOURCE, TARGET = 1, 2, 4  # marks of a row


# ---------------------------------------------------------------------------------------------------------------------
# exp(-u), in a form that LLVM vectorises


def _bits(_context: Any, of: Any) -> tuple[Any, Any]:
    """Reinterpret the bits of a double as an integer, or the reverse."""
    to = types.int64 if of == types.float64 else types.float64

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], context.get_value_type(to))

    return to(of), generate


_recast = cast("Callable[[Any], Any]", intrinsic(_bits))

MAGIC = 6755399441055744.0  # 1.5 * 2^52: a sum with it ends in the nearest integer, in the low bits
LOG2E, LN2_HIGH, LN2_LOW = 1.4426950408889634, 0.6931471803691238, 1.9082149292705877e-10
NOTHING = 708.0  # beyond it exp(-u) is near the smallest float, and set to 0


@jit
def _decay(u: float) -> float:
    """Compute exp(-u), u >= 0 or infinite, as 2^n times the series of exp on [-ln(2)/2, ln(2)/2]: LLVM vectorises it."""
    v = u if u < NOTHING else NOTHING
    t = MAGIC - v * LOG2E
    n = t - MAGIC
    r = (-v - n * LN2_HIGH) - n * LN2_LOW
    p = 1.0 / 39916800 + r * (1.0 / 479001600)
    p = 1.0 / 362880 + r * (1.0 / 3628800 + r * p)
    p = 1.0 / 5040 + r * (1.0 / 40320 + r * p)
    p = 1.0 / 120 + r * (1.0 / 720 + r * p)
    p = 1.0 / 6 + r * (1.0 / 24 + r * p)
    p = 1.0 + r * (1.0 + r * (0.5 + r * p))
    p *= _recast((_recast(t) + 1023) << 52)
    return p if u < NOTHING else 0.0


# ---------------------------------------------------------------------------------------------------------------------
# Few rows: all pairs


@jit
def _give(of: FloatArray, j: int, to: FloatArray, many: int, scale: float) -> None:
    """Add row j, weighted by the kernel, to the targets, and to the padding behind them up to a full set of lanes."""
    x, y, z, first, second = of[0, j], of[1, j], of[2, j], of[3, j], of[4, j]
    tx, ty, tz, t1, t2 = to[0], to[1], to[2], to[3], to[4]
    for i in range((many + LANES - 1) // LANES * LANES):
        k = _decay(scale * (abs(tx[i] - x) + abs(ty[i] - y) + abs(tz[i] - z)))
        t1[i] += k * first
        t2[i] += k * second


@jit
def _gather(v: FloatArray, marks: UInt8Array, begin: int, end: int, mask: int, want: int, box: FloatArray) -> int:
    """Copy the rows with the wanted marks, targets with sums of 0; return their number."""
    n = 0
    keep = 1.0 if want & SOURCE else 0.0
    for r in range(begin, end):
        box[0, n] = v[X, r]
        box[1, n] = v[Y, r]
        box[2, n] = v[Z, r]
        box[3, n] = v[FIRST, r] * keep
        box[4, n] = v[SECOND, r] * keep
        n += (marks[r] & mask) == want
    return n


@jit
def _leaf(
    v: FloatArray, marks: UInt8Array, lo: int, hi: int, scale: float, whole: int, of: FloatArray, to: FloatArray
) -> None:
    """Sum pair by pair over all other rows if ``whole``, otherwise over the rows of the other side."""
    mask = 0 if whole else SIDE
    for side in range(1 if whole else 2):
        n = _gather(v, marks, lo, hi, SOURCE | mask, SOURCE | side, of)
        for begin in range(lo, hi, BLOCK):
            end = min(begin + BLOCK, hi)
            m = _gather(v, marks, begin, end, TARGET | mask, TARGET | ((1 - side) & mask), to)
            itself = whole and (marks[lo] & (SOURCE | TARGET)) == (SOURCE | TARGET)
            for j in range(n):
                first, second = to[3, j], to[4, j]
                _give(of, j, to, m, scale)
                if itself:  # a row is not among the others
                    to[3, j], to[4, j] = first, second
            i = 0
            for r in range(begin, end):
                if (marks[r] & (TARGET | mask)) == TARGET | ((1 - side) & mask):
                    v[OUT, r] += to[3, i]
                    v[OUT + 1, r] += to[4, i]
                    i += 1


# ---------------------------------------------------------------------------------------------------------------------
# Halves in y: from each quarter to the opposite one


@jit
def _weigh(v: FloatArray, flow: FloatArray, lo: int, hi: int, mid: int, scale: float) -> None:
    """Set what every row adds to the sweep upwards (two columns) and downwards (two)."""
    y, height, first, second = v[Y, lo:hi], v[HEIGHT, lo:hi], v[FIRST, lo:hi], v[SECOND, lo:hi]
    fade, grow, brings = v[FADE, lo:hi], v[GROW, lo:hi], flow[lo:hi]
    cut = v[Y, mid]
    for r in range(y.size):
        height[r] = _decay(scale * abs(y[r] - cut))
    for r in range(y.size):
        up = height[r] * grow[r]
        down = height[r] * fade[r]
        brings[r, 0] = up * first[r]
        brings[r, 1] = up * second[r]
        brings[r, 2] = down * first[r]
        brings[r, 3] = down * second[r]


@jit
def _move(acc: FloatArray, origin: float, to: float, scale: float) -> float:
    """Move the sums of a sweep to the next origin."""
    fade = _decay(scale * abs(to - origin))
    for k in range(8):
        acc[k] *= fade
    return to


@jit
def _sweep(
    v: FloatArray, flow: FloatArray, marks: UInt8Array, codes: Int32Array, mid: int, across: int, scale: float
) -> None:
    """Sweep over the rows in the order of z, upwards and downwards at once; each row receives the sums of its opposites.

    A code is twice the row, plus the side; a quarter is twice (is it high), plus the side. What a row receives replaces
    what it added. A target alone never moves a sum.
    """
    acc = np.zeros((2, 8))
    up, down = acc[0], acc[1]
    n = codes.size
    origin = v[ORIGIN]
    here, there = origin[codes[0] >> 1], origin[codes[n - 1] >> 1]
    several = here != there  # origins rise with z: if the first is the last there is no other to look up
    for i in range(n):
        code = codes[i]
        r = uint64(code >> 1)
        k = uint64((((code >> 1) >= mid) << 2) | ((code & 1) << 1))
        factor = 1.0
        if several and origin[r] != here:
            if marks[r] & SOURCE:
                here = _move(up, here, origin[r], scale)
            else:
                factor = _decay(scale * abs(origin[r] - here))
        up[k] += flow[r, 0]
        up[k + uint64(1)] += flow[r, 1]
        k ^= uint64(across)
        flow[r, 0] = up[k] * factor
        flow[r, 1] = up[k + uint64(1)] * factor

        code = codes[n - 1 - i]
        r = uint64(code >> 1)
        k = uint64((((code >> 1) >= mid) << 2) | ((code & 1) << 1))
        factor = 1.0
        if several and origin[r] != there:
            if marks[r] & SOURCE:
                there = _move(down, there, origin[r], scale)
            else:
                factor = _decay(scale * abs(origin[r] - there))
        down[k] += flow[r, 2]
        down[k + uint64(1)] += flow[r, 3]
        k ^= uint64(across)
        flow[r, 2] = down[k] * factor
        flow[r, 3] = down[k + uint64(1)] * factor


@jit
def _collect(v: FloatArray, flow: FloatArray, lo: int, hi: int) -> None:
    """Add what the rows received."""
    height, fade, grow = v[HEIGHT, lo:hi], v[FADE, lo:hi], v[GROW, lo:hi]
    first, second, finds = v[OUT, lo:hi], v[OUT + 1, lo:hi], flow[lo:hi]
    for r in range(height.size):
        up = height[r] * fade[r]
        down = height[r] * grow[r]
        first[r] += up * finds[r, 0] + down * finds[r, 2]
        second[r] += up * finds[r, 1] + down * finds[r, 3]


@jit
def _part(codes: Int32Array, cut: int, low: Int32Array, high: Int32Array) -> None:
    """Split codes at the cut; both parts keep their order."""
    i = uint64(0)
    j = uint64(0)
    for k in range(codes.size):
        code = codes[k]
        below = code < cut
        if i < uint64(low.size):
            low[i] = code
        if j < uint64(high.size):
            high[j] = code
        i += uint64(below)
        j += uint64(not below)


@jit
def _split(ids: Int32Array, spare: Int32Array, lo: int, mid: int) -> None:
    """Split the rows of a half in place."""
    for k in range(ids.size):
        spare[k] = ids[k]
    _part(spare[: ids.size], mid, ids[: mid - lo], ids[mid - lo :])


@jit
def _push(stack: IntArray, at: int, first: int, last: int, lo: int, hi: int, which: int) -> None:
    """Push a half on the stack."""
    stack[at, 0], stack[at, 1], stack[at, 2], stack[at, 3], stack[at, 4] = first, last, lo, hi, which


@jit
def _one_sided(marks: UInt8Array, lo: int, hi: int) -> bool:
    """Return whether all rows are on one side."""
    right = 0
    for r in range(lo, hi):
        right += marks[r] & SIDE
    return right == 0 or right == hi - lo


@jit
def _plane(
    v: FloatArray, flow: FloatArray, marks: UInt8Array, codes: Int32Array, place: Int32Array, n: int, sources: int,
    few: int, scale: float, whole: int, of: FloatArray, to: FloatArray,
) -> None:  # fmt: skip
    """Sum in y and z: over all other rows if ``whole``, otherwise over the rows on the other side of x.

    Rows are in the order of y; ``codes[0]`` has them in the order of z, and ``place`` the sources among them.
    """
    stack = np.zeros((64, 5), np.int64)
    stack[0, 1] = sources
    stack[0, 3] = n
    top = 1
    while top:
        top -= 1
        first, last, lo, hi, which = stack[top, 0], stack[top, 1], stack[top, 2], stack[top, 3], stack[top, 4]
        if hi == lo or (hi - lo == last - first and not marks[lo] & TARGET):
            continue  # no targets
        if last - first <= few:
            _leaf(v, marks, lo, hi, scale, whole, of, to)
        elif whole or not _one_sided(marks, lo, hi):
            half = (first + last) >> 1
            mid = int64(place[half])
            _weigh(v, flow, lo, hi, mid, scale)
            _sweep(v, flow, marks, codes[which, lo:hi], mid, 4 if whole else 6, scale)
            _collect(v, flow, lo, hi)
            _part(codes[which, lo:hi], 2 * mid, codes[1 - which, lo:mid], codes[1 - which, mid:hi])
            _push(stack, top, half, last, mid, hi, 1 - which)
            _push(stack, top + 1, first, half, lo, mid, 1 - which)
            top += 2


# ---------------------------------------------------------------------------------------------------------------------
# Halves in x


@jit
def _load(
    records: FloatArray, kinds: UInt8Array, ids: Int32Array, lo: int, mid: int, scale: float, whole: int, v: FloatArray,
    marks: UInt8Array, place: Int32Array, rank: Int32Array,
) -> int:  # fmt: skip
    """Load the rows of a half of x in the order of y; return the number of sources. Unless ``whole``, x is eliminated."""
    n = 0
    for k in range(ids.size):
        row = ids[k]
        rank[row - lo] = k
        r = records[row]
        share = 1.0 if whole else _decay(scale * abs(r[X] - records[mid, X]))
        v[X, k] = r[X] if whole else 0.0
        v[Y, k] = r[Y]
        v[Z, k] = r[Z]
        v[ORIGIN, k] = r[ORIGIN]
        v[FADE, k] = r[FADE]
        v[GROW, k] = r[GROW]
        v[FIRST, k] = r[FIRST] * share
        v[SECOND, k] = r[SECOND] * share
        v[SHARE, k] = share
        v[OUT, k] = 0.0
        v[OUT + 1, k] = 0.0
        marks[k] = kinds[row] | (0 if whole else row >= mid)
        place[n] = k
        n += (kinds[row] & SOURCE) != 0
    return n


@jit
def _encode(ids: Int32Array, rank: Int32Array, lo: int, mid: int, whole: int, codes: Int32Array) -> None:
    """Write the codes of the rows in the order of z."""
    for i in range(ids.size):
        codes[i] = 2 * rank[ids[i] - lo] + (0 if whole else ids[i] >= mid)


@jit
def _return(v: FloatArray, ids: Int32Array, base: int, out: FloatArray) -> None:
    """Add the sums of the rows to the output."""
    for k in range(ids.size):
        out[ids[k] - base, 0] += v[OUT, k] * v[SHARE, k]
        out[ids[k] - base, 1] += v[OUT + 1, k] * v[SHARE, k]


@jit
def _pick(ids: Int32Array, lo: int, hi: int, out: Int32Array) -> None:
    """Copy the ids within bounds."""
    n = 0
    for row in ids:
        if lo <= row < hi:
            out[n] = row
            n += 1


@jit
def sum_halves(
    records: FloatArray, kinds: UInt8Array, by_y: Int32Array, by_z: Int32Array, place: Int32Array, jobs: IntArray,
    scale: float, planar: int, base: int, v: FloatArray, flow: FloatArray, out: FloatArray,
) -> None:  # fmt: skip
    """Run jobs, each a half in x: (first and last source, first and last row, rows of its bin, whether to halve it)."""
    size = flow.shape[0]
    marks = np.empty(size, np.uint8)
    codes = np.empty((2, size), np.int32)
    rank, spare, local = np.empty(size, np.int32), np.empty(size, np.int32), np.empty(size + 1, np.int32)
    ids = np.empty((2, size), np.int32)
    of, to = np.empty((5, PAIRS + 1)), np.zeros((5, BLOCK + LANES))
    stack = np.empty((64, 5), np.int64)
    for k in range(jobs.shape[0]):
        start = jobs[k, 2]
        _pick(by_y[jobs[k, 4] : jobs[k, 5]], start, jobs[k, 3], ids[0])
        _pick(by_z[jobs[k, 4] : jobs[k, 5]], start, jobs[k, 3], ids[1])
        top = 0
        _push(stack, top, jobs[k, 0], jobs[k, 1], start, jobs[k, 3], jobs[k, 6])
        top += 1
        while top:
            top -= 1
            first, last, lo, hi = stack[top, 0], stack[top, 1], stack[top, 2], stack[top, 3]
            if hi == lo or (hi - lo == last - first and not kinds[lo] & TARGET):
                continue
            few = last - first <= PAIRS
            whole = 1 if few else planar
            half = (first + last) >> 1
            mid = hi if whole else int64(place[half])
            ys, zs = ids[0, lo - start : hi - start], ids[1, lo - start : hi - start]
            sources = _load(records, kinds, ys, lo, mid, scale, whole, v, marks, local, rank)
            if not few:
                _encode(zs, rank, lo, mid, whole, codes[0])
            _plane(v, flow, marks, codes, local, hi - lo, sources, PAIRS if few else FEW, scale, whole, of, to)
            _return(v, ys, base, out)
            if jobs[k, 6] and not whole:
                _split(ys, spare, lo, mid)
                _split(zs, spare, lo, mid)
                _push(stack, top, half, last, mid, hi, jobs[k, 6])
                _push(stack, top + 1, first, half, lo, mid, jobs[k, 6])
                top += 2


REACH = 32.0  # the largest distance to an origin, in units of 1 / scale: exp(32) is 8e13, harmless in a product
SPLIT = 60_000  # a bin of more rows is split among threads
TOPS = 4  # levels of halves that are split among threads, at most: each level has its own sums


def sums(
    points: FloatArray, columns: FloatArray, starts: IntArray, targets: FloatArray | None, target_starts: IntArray | None,
    scale: float, workers: Workers,
) -> FloatArray:  # fmt: skip
    """Sum the columns of the rows of each target's bin, weighted by the kernel, in O(n log^(d - 1) n); underflow gives 0.

    See `trueup.kernels.laplace.line.sums`; the number of dimensions d is 2 or 3.
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


def _leave_out(
    points: FloatArray, columns: FloatArray, starts: IntArray, target_starts: IntArray
) -> tuple[FloatArray, FloatArray, IntArray, IntArray]:
    """Drop the rows of bins without targets."""
    asked = np.diff(target_starts) > 0
    if asked.all():
        return points, columns, starts, target_starts
    sizes = np.diff(starts)
    kept = np.repeat(asked, sizes)
    starts = np.append(0, np.cumsum(sizes[asked]))
    return points[kept], columns[kept], starts, np.append(0, np.cumsum(np.diff(target_starts)[asked]))


def _sum_part(
    points: FloatArray, columns: FloatArray, starts: IntArray, targets: FloatArray, target_starts: IntArray, scale: float,
    size: int, at: int,
) -> FloatArray:  # fmt: skip
    """Sum at some of the targets."""
    part = targets[at : at + size]
    return sums(points, columns, starts, part, np.clip(target_starts - at, 0, len(part)), scale, Workers(1))


class _Rows(NamedTuple):
    """Rows, and targets among them, by bin and then by the first coordinate."""

    records: FloatArray  # columns X to SECOND
    kinds: UInt8Array
    by_y: Int32Array
    by_z: Int32Array
    sources: Int32Array  # where the rows are
    of: IntArray  # which rows they are
    places: IntArray  # where the targets are
    starts: IntArray  # of the bins among the rows
    bounds: IntArray  # of the bins among rows and targets
    planar: int  # two dimensions


def _arrange(
    points: FloatArray, starts: IntArray, targets: FloatArray | None, target_starts: IntArray | None, scale: float,
    workers: Workers,
) -> _Rows:  # fmt: skip
    n, d = points.shape
    if targets is None or target_starts is None:
        bounds, every, both = starts, points, SOURCE | TARGET
    else:
        bounds, every, both = starts + target_starts, np.concatenate([points, targets]), SOURCE

    def order(k: int) -> IntArray:
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
def _set_origins(records: FloatArray, kinds: UInt8Array, by_z: Int32Array, bounds: IntArray, scale: float) -> None:
    """Set the origin of every row, not far below it, and the factors to and from it.

    Origins are rows. A target without an origin in reach is its own.
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


def _sum_pair(rows: _Rows, columns: FloatArray, scale: float, workers: Workers) -> FloatArray:
    """Sum one or two columns at all rows and targets, in the order of the records."""
    rows.records[rows.sources, FIRST : FIRST + columns.shape[1]] = columns[rows.of]
    out = np.zeros((len(rows.records), 2))

    def work(jobs: IntArray) -> FloatArray:
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


def _scratch(jobs: IntArray) -> tuple[FloatArray, FloatArray]:
    """Allocate scratch space for the largest of some jobs: NumPy requests large pages, which are faster."""
    size = int((jobs[:, 3] - jobs[:, 2]).max())
    return np.empty((12, size + 40)), np.empty((size, 4))


def _cut(rows: _Rows) -> list[IntArray]:
    """Split the work: the upper halves of a large bin one by one, then the lower; runs of other bins."""
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


def _halve(level: IntArray, sources: Int32Array) -> IntArray:
    """Halve each job."""
    first, last, lo, hi, begin, end, deep = level.T
    half = (first + last) >> 1
    mid = sources[half]
    left = np.stack([first, half, lo, mid, begin, end, deep], axis=1)
    right = np.stack([half, last, mid, hi, begin, end, deep], axis=1)
    return np.stack([left, right], axis=1).reshape(-1, level.shape[1])
