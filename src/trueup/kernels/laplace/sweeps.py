"""Sums of exp(-scale * L1 distance) in one to three dimensions: sweeps over sorted rows, and divide and conquer.

In one dimension a sweep upwards and one downwards carry the sum of all rows behind them. In more, rows are halved by
their order in x. Between a row s of the left half and t of the right one, with m the value at the cut, exp(-scale (x_t
- x_s)) is exp(-scale (x_t - m)) exp(-scale (m - x_s)): a factor of each row alone, which eliminates x. Two dimensions
remain, halved by the order in y in the same way, and then one: a sweep in the order of z. All four quarters (left or
right, low or high) add to their opposite in one sweep. Halves of few rows are summed pair by pair. Every pair is met
once, whatever is equal: halves are made by position. O(n log n) and, in three dimensions, O(n log^2 n), memory O(n); N.
Langrené and X. Warin, "Fast multivariate empirical cumulative distribution function with connection to kernel density
estimation" (2020).

In a sweep a row is added with the factor exp(+scale (z - origin)) and read with its inverse. Origins are rows not far
away, so that no factor is large, and sums decay when a sweep reaches the next one: nothing overflows. Targets never cut a
half, choose an origin or move a sum: the sums of a target do not depend on other targets.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from trueup.kernels._jit import answer, jit
from trueup.kernels.threads import Workers

if TYPE_CHECKING:
    from trueup._types import FloatArray, Int32Array, IntArray, UInt8Array

    Targets = tuple[FloatArray, IntArray]  # points, and the start of each bin

int64, uint64 = cast("Any", np.int64), cast("Any", np.uint64)
REACH = 32.0  # the largest distance to an origin, in units of 1 / scale: exp(32) is 8e13, harmless in a product
ENOUGH = 50_000  # rows for one task
SPLIT = 60_000  # a bin of more rows is split among threads
TOPS = 4  # levels of halves that are split among threads, at most: each level has its own sums
PAIRS = 128  # a half in x of at most so many rows is summed pair by pair
FEW = 32  # and in y
BLOCK = 256  # targets at a time
LANES = 8  # and of these
X, Y, Z, ORIGIN, FADE, GROW, FIRST, SECOND, HEIGHT, OUT, _, SHARE = range(12)  # a row of the records has the first eight
SIDE, SOURCE, TARGET = 1, 2, 4  # marks of a row
MAGIC = 6755399441055744.0  # 1.5 * 2^52: a sum with it ends in the nearest integer, in the low bits
LOG2E, LN2_HIGH, LN2_LOW = 1.4426950408889634, 0.6931471803691238, 1.9082149292705877e-10
ROW_STEPS = 1.0  # microseconds per row, uncompiled
ORIGIN_STEPS = 300.0  # per origin of a line
TARGET_STEPS = (20_000.0, 4_000.0)  # and per target of `sum_halves`, in three dimensions and in two
NOTHING = 708.0  # beyond it exp(-u) is near the smallest float, and set to 0


def sums(
    points: FloatArray, columns: FloatArray, starts: IntArray, targets: Targets | None, scale: float, workers: Workers
) -> FloatArray:
    """Sum the columns of the rows of each target's bin, weighted by exp(-scale * distance); what underflows becomes 0.

    The rows of bin k are ``starts[k]:starts[k + 1]``; coordinates are finite. Without targets, the sums are at each row
    over all other rows of its bin.
    """
    if not scale > 0:  # where all points are one, no difference can overflow
        points, targets = np.zeros_like(points), None if targets is None else (np.zeros_like(targets[0]), targets[1])
    if targets is not None:
        queries, bounds = targets
        asked = np.diff(bounds) > 0
        if not asked.all():  # rows of bins without targets do not matter
            kept = np.repeat(asked, np.diff(starts))
            points, columns = points[kept], columns[kept]
            starts, bounds = (np.append(0, np.cumsum(np.diff(ends)[asked])) for ends in (starts, bounds))
        targets = queries, bounds
    if points.shape[1] == 1:
        return _sum_line(points[:, 0], columns, starts, targets, scale, workers)
    out = np.zeros((len(points) if targets is None else len(targets[0]), columns.shape[1]))
    if targets is not None:
        size = 2 * max(len(points), SPLIT)
        if len(points) and len(queries) > size:

            def sum_some(first: int) -> FloatArray:
                some = queries[first : first + size]
                return sums(points, columns, starts, (some, np.clip(bounds - first, 0, len(some))), scale, Workers(1))

            return np.concatenate(workers.map(sum_some, range(0, len(queries), size)))
    if len(points) and len(out):
        rows = _arrange(points, starts, targets, scale, workers)
        for first in range(0, columns.shape[1], 2):
            pair = columns[:, first : first + 2]
            out[:, first : first + 2] = _sum_pair(rows, pair, scale, workers)[rows.places, : pair.shape[1]]
    return out


def in_order(values: FloatArray, starts: IntArray) -> IntArray:
    """Return the stable argsort of the values within each bin; bin k is ``starts[k]:starts[k + 1]``."""
    order = np.argsort(values, kind="stable")
    sizes = np.diff(starts)
    if sizes.max(initial=0) == len(values):
        return order
    bins = np.repeat(np.arange(len(sizes)), sizes)
    grouped: IntArray = answer(_deal, ROW_STEPS * len(values), order, bins, starts)
    return grouped


@jit
def _deal(order: IntArray, bins: IntArray, starts: IntArray) -> IntArray:
    """Return ``order``, a permutation of all rows, sorted by bin, stably; bin k begins at ``starts[k]``."""
    out = np.empty_like(order)
    place = starts[:-1].copy()
    for row in order:
        out[place[bins[row]]] = row
        place[bins[row]] += 1
    return out


@jit
def merged(
    values: FloatArray, starts: IntArray, order: IntArray, targets: FloatArray, target_starts: IntArray,
    target_order: IntArray,
) -> IntArray:  # fmt: skip
    """Merge the argsorts of rows and of targets, bin by bin; a target follows rows of equal value.

    In the result target j is n + j, where n is the number of rows.
    """
    n = order.size
    out = np.empty(n + target_order.size, np.int64)
    k = 0
    for b in range(starts.size - 1):
        i, j = starts[b], target_starts[b]
        while i < starts[b + 1] or j < target_starts[b + 1]:
            if i < starts[b + 1] and (j == target_starts[b + 1] or values[order[i]] <= targets[target_order[j]]):
                out[k] = order[i]
                i += 1
            else:
                out[k] = n + target_order[j]
                j += 1
            k += 1
    return out


def split_bins(starts: IntArray) -> list[tuple[int, int]]:
    """Return runs (first bin, last bin + 1) of about ENOUGH rows each, independently of the number of threads."""
    groups = starts[:-1] // ENOUGH
    cuts = np.flatnonzero(np.diff(groups, prepend=-1)).tolist()
    return list(zip(cuts, [*cuts, len(groups)][1:], strict=True))


def _sum_line(
    x: FloatArray, columns: FloatArray, starts: IntArray, targets: Targets | None, scale: float, workers: Workers
) -> FloatArray:
    """Compute the sums of `sums` for points with one coordinate, ``x``."""
    order = in_order(x, starts)
    x, columns = x[order], columns[order]
    if targets is None:
        places, queries, bounds = order, x, starts
    else:
        places, bounds = in_order(targets[0][:, 0], targets[1]), targets[1]
        queries = targets[0][places, 0]
    total = np.zeros((len(queries), columns.shape[1]))

    origins = min(float(np.ptp(x)) * scale / REACH, len(x)) if len(x) else 0.0
    steps = ROW_STEPS * (len(x) + len(queries)) + ORIGIN_STEPS * origins

    def work(run: tuple[int, int]) -> None:
        answer(_sweep_line, steps, x, columns, starts, queries, bounds, *run, scale, int(targets is None), total)

    workers.map(work, split_bins(starts + bounds))
    out = np.empty_like(total)
    out[places] = total
    return out


@jit
def _sweep_line(
    x: FloatArray, columns: FloatArray, starts: IntArray, queries: FloatArray, bounds: IntArray, first: int, last: int,
    scale: float, itself: int, out: FloatArray,
) -> None:  # fmt: skip
    """Add to ``out`` the sums over rows up to, then above, each query of bins first:last; ``itself``: 1 if queries = x."""
    acc = np.zeros(columns.shape[1])
    for b in range(first, last):
        begin, end = starts[b], starts[b + 1]
        if begin == end:
            continue
        for way in range(2):
            i = end - 1 if way else begin
            origin = x[i]
            acc[:] = 0.0
            for j in range(bounds[b + 1] - bounds[b]):
                t = bounds[b + 1] - 1 - j if way else bounds[b] + j
                while not itself and begin <= i < end and (x[i] > queries[t]) == (way == 1):
                    origin = _join(acc, x[i], origin, columns[i], scale)
                    i += -1 if way else 1
                _read(acc, abs(queries[t] - origin), scale, out[t])
                if itself:
                    origin = _join(acc, x[t], origin, columns[t], scale)


@jit
def _join(acc: FloatArray, x: float, origin: float, row: FloatArray, scale: float) -> float:
    """Add a ``row`` at ``x`` to the sums ``acc``, which are relative to ``origin``; return their new origin."""
    far = scale * abs(x - origin)
    if far > REACH:
        fade = math.exp(-far)
        for c in range(acc.size):
            acc[c] = acc[c] * fade + row[c]
        return x
    grow = math.exp(far)
    for c in range(acc.size):
        acc[c] += row[c] * grow
    return origin


@jit
def _read(acc: FloatArray, far: float, scale: float, out: FloatArray) -> None:
    """Add the sums ``acc`` times exp(-scale * far) to ``out``."""
    fade = math.exp(-scale * far)
    for c in range(acc.size):
        out[c] += acc[c] * fade


@jit
def _series(v: Any) -> Any:
    """Compute exp(-v), 0 <= v <= NOTHING, of a number or an array, by 2^n and the series of exp on [-ln(2)/2, ln(2)/2]."""
    t = MAGIC - v * LOG2E
    n = t - MAGIC
    r = (-v - n * LN2_HIGH) - n * LN2_LOW
    p = 1.0 / 39916800 + r * (1.0 / 479001600)
    p = 1.0 / 362880 + r * (1.0 / 3628800 + r * p)
    p = 1.0 / 5040 + r * (1.0 / 40320 + r * p)
    p = 1.0 / 120 + r * (1.0 / 720 + r * p)
    p = 1.0 / 6 + r * (1.0 / 24 + r * p)
    p = 1.0 + r * (1.0 + r * (0.5 + r * p))
    return p * np.int64((np.float64(t).view(np.int64) + 1023) << 52).view(np.float64)


@jit
def _decay(u: float) -> float:
    """Compute exp(-u), u >= 0 or infinite, without a branch, so that LLVM vectorises."""
    p: float = _series(u if u < NOTHING else NOTHING)
    return p if u < NOTHING else 0.0


class _Rows(NamedTuple):
    """The ``records`` of rows and targets, sorted by bin and then by the first coordinate, with their orders in y and z."""

    records: FloatArray  # columns X to SECOND
    kinds: UInt8Array
    by_y: Int32Array
    by_z: Int32Array
    sources: Int32Array  # the positions of the rows among the records
    of: IntArray  # the input rows at these positions
    places: IntArray  # the positions of the targets among the records
    starts: IntArray  # of the bins among the rows
    bounds: IntArray  # of the bins among rows and targets
    planar: int  # 1 in two dimensions, else 0


class _Scratch(NamedTuple):
    """The rows and targets of a bin, or of a half of it by x, in the order of y, and scratch space."""

    v: FloatArray  # rows X to SHARE
    flow: FloatArray  # what each row adds to a sweep and receives from it: two columns upwards, two downwards
    marks: UInt8Array
    codes: Int32Array  # (2, rows), in the order of z: twice the row, plus the side
    place: Int32Array  # positions of the sources
    of: FloatArray  # sources of sums pair by pair
    to: FloatArray  # and their targets


@jit
def _give(of: FloatArray, j: int, to: FloatArray, many: int, scale: float) -> None:
    """Add row ``j`` of ``of``, weighted by the kernel, to the ``many`` targets ``to`` (and to padding up to full lanes)."""
    x, y, z, first, second = of[0, j], of[1, j], of[2, j], of[3, j], of[4, j]
    tx, ty, tz, t1, t2 = to[0], to[1], to[2], to[3], to[4]
    for i in range((many + LANES - 1) // LANES * LANES):
        k = _decay(scale * (abs(tx[i] - x) + abs(ty[i] - y) + abs(tz[i] - z)))
        t1[i] += k * first
        t2[i] += k * second


@jit
def _gather(rows: _Scratch, begin: int, end: int, mask: int, want: int, box: FloatArray) -> int:
    """Copy rows begin:end with marks & mask == want to ``box``, values as 0 unless sources are wanted; return how many."""
    v, n, keep = rows.v, 0, 1.0 if want & SOURCE else 0.0
    for r in range(begin, end):
        box[0, n] = v[X, r]
        box[1, n] = v[Y, r]
        box[2, n] = v[Z, r]
        box[3, n] = v[FIRST, r] * keep
        box[4, n] = v[SECOND, r] * keep
        n += (rows.marks[r] & mask) == want
    return n


@jit
def _leaf(rows: _Scratch, lo: int, hi: int, scale: float, whole: int) -> None:
    """Add to each target of ``lo:hi``, pair by pair, all other rows if ``whole``, else those across the cut in x."""
    v, marks, of, to = rows.v, rows.marks, rows.of, rows.to
    mask = 0 if whole else SIDE
    for side in range(1 if whole else 2):
        n = _gather(rows, lo, hi, SOURCE | mask, SOURCE | side, of)
        for begin in range(lo, hi, BLOCK):
            end = min(begin + BLOCK, hi)
            wanted = TARGET | ((1 - side) & mask)
            m = _gather(rows, begin, end, TARGET | mask, wanted, to)
            itself = whole and (marks[lo] & (SOURCE | TARGET)) == (SOURCE | TARGET)
            for j in range(n):
                first, second = to[3, j], to[4, j]
                _give(of, j, to, m, scale)
                if itself:  # a row is not among the others
                    to[3, j], to[4, j] = first, second
            i = 0
            for r in range(begin, end):
                if (marks[r] & (TARGET | mask)) == wanted:
                    v[OUT, r] += to[3, i]
                    v[OUT + 1, r] += to[4, i]
                    i += 1


@jit
def _weigh(v: FloatArray, flow: FloatArray, lo: int, hi: int, mid: int, scale: float) -> None:
    """Write to ``flow`` what rows lo:hi, cut in y at ``mid``, add to the upward (two columns) and downward sweep (two)."""
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
def _sweep(
    v: FloatArray, flow: FloatArray, marks: UInt8Array, codes: Int32Array, mid: int, across: int, scale: float
) -> None:
    """Sweep over the rows in the order of z, upwards and downwards at once; each row receives the sums of its opposites.

    A code is twice the row plus its side of x; rows from ``mid`` on are high in y. Opposites differ in y and, if ``across``
    is 6 rather than 4, also in x. In ``flow`` what a row receives replaces what it added. Only sources move a sum's origin.
    """
    acc = np.zeros((2, 8))
    n, origin = codes.size, v[ORIGIN]
    here = np.array([origin[codes[0] >> 1], origin[codes[n - 1] >> 1]])
    several = here[0] != here[1]  # origins rise with z: if the first is the last there is no other to look up
    for i in range(n):
        for way in range(2):
            code = codes[n - 1 - i if way else i]
            r = uint64(code >> 1)
            k = uint64((((code >> 1) >= mid) << 2) | ((code & 1) << 1))
            factor = 1.0
            if several and origin[r] != here[way]:
                factor = _decay(scale * abs(origin[r] - here[way]))
                if marks[r] & SOURCE:  # the sums move to its origin
                    for quarter in range(8):
                        acc[way, quarter] *= factor
                    here[way], factor = origin[r], 1.0
            acc[way, k] += flow[r, 2 * way]
            acc[way, k + uint64(1)] += flow[r, 2 * way + 1]
            k ^= uint64(across)
            flow[r, 2 * way] = acc[way, k] * factor
            flow[r, 2 * way + 1] = acc[way, k + uint64(1)] * factor


@jit
def _collect(v: FloatArray, flow: FloatArray, lo: int, hi: int) -> None:
    """Add the sums in ``flow`` that rows ``lo:hi`` received from `_sweep`, times their factors, to their results."""
    height, fade, grow = v[HEIGHT, lo:hi], v[FADE, lo:hi], v[GROW, lo:hi]
    first, second, finds = v[OUT, lo:hi], v[OUT + 1, lo:hi], flow[lo:hi]
    for r in range(height.size):
        up = height[r] * fade[r]
        down = height[r] * grow[r]
        first[r] += up * finds[r, 0] + down * finds[r, 2]
        second[r] += up * finds[r, 1] + down * finds[r, 3]


@jit
def _part(codes: Int32Array, cut: int, low: Int32Array, high: Int32Array) -> None:
    """Copy the codes below ``cut`` to ``low`` and the others to ``high``, stably."""
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
    """Move values below ``mid`` to the front of ``ids``, a permutation of lo, lo + 1, ..., stably; ``spare`` is scratch."""
    for k in range(ids.size):
        spare[k] = ids[k]
    _part(spare[: ids.size], mid, ids[: mid - lo], ids[mid - lo :])


@jit
def _plane(rows: _Scratch, n: int, sources: int, few: int, scale: float, whole: int) -> None:
    """Sum over all other rows if ``whole``, else those across the cut in x: halve in y to ``few`` sources, sweep in z."""
    marks, codes = rows.marks, rows.codes
    stack = np.zeros((64, 5), np.int64)
    stack[0, 1], stack[0, 3] = sources, n
    top = 1
    while top:
        top -= 1
        first, last, lo, hi, which = stack[top, 0], stack[top, 1], stack[top, 2], stack[top, 3], stack[top, 4]
        if hi == lo or (hi - lo == last - first and not marks[lo] & TARGET):
            continue  # no targets
        if last - first <= few:
            _leaf(rows, lo, hi, scale, whole)
        elif whole or 0 < (marks[lo:hi] & SIDE).sum() < hi - lo:  # rows on both sides
            half = (first + last) >> 1
            mid = int64(rows.place[half])
            _weigh(rows.v, rows.flow, lo, hi, mid, scale)
            _sweep(rows.v, rows.flow, marks, codes[which, lo:hi], mid, 4 if whole else 6, scale)
            _collect(rows.v, rows.flow, lo, hi)
            _part(codes[which, lo:hi], 2 * mid, codes[1 - which, lo:mid], codes[1 - which, mid:hi])
            stack[top, :] = half, last, mid, hi, 1 - which
            stack[top + 1, :] = first, half, lo, mid, 1 - which
            top += 2


@jit
def _load(rows: _Rows, ids: Int32Array, lo: int, mid: int, scale: float, whole: int, to: _Scratch, rank: Int32Array) -> int:
    """Copy rows ``ids`` (in y order) to ``to``, times the factor of x unless ``whole``; return the number of sources."""
    v, n = to.v, 0
    for k in range(ids.size):
        row = ids[k]
        rank[row - lo] = k
        r = rows.records[row]
        share = 1.0 if whole else _decay(scale * abs(r[X] - rows.records[mid, X]))
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
        to.marks[k] = rows.kinds[row] | (0 if whole else row >= mid)
        to.place[n] = k
        n += (rows.kinds[row] & SOURCE) != 0
    return n


@jit
def sum_halves(
    rows: _Rows, jobs: IntArray, scale: float, base: int, v: FloatArray, flow: FloatArray, out: FloatArray
) -> None:
    """Add the sums of each job (start and stop of sources, rows and bin; 1 to halve further) to ``out``, from ``base``."""
    size = flow.shape[0]
    codes, rank, spare = np.empty((2, size), np.int32), np.empty(size, np.int32), np.empty(size, np.int32)
    of, to = np.empty((5, PAIRS + 1)), np.zeros((5, BLOCK + LANES))
    scratch = _Scratch(v, flow, np.empty(size, np.uint8), codes, np.empty(size + 1, np.int32), of, to)
    ids = np.empty((2, size), np.int32)
    stack = np.empty((64, 4), np.int64)
    for k in range(jobs.shape[0]):
        start = jobs[k, 2]
        for axis in range(2):
            order = (rows.by_z if axis else rows.by_y)[jobs[k, 4] : jobs[k, 5]]
            own = order[(order >= start) & (order < jobs[k, 3])]
            ids[axis, : own.size] = own
        stack[0, :] = jobs[k, :4]
        top = 1
        while top:
            top -= 1
            first, last, lo, hi = stack[top, 0], stack[top, 1], stack[top, 2], stack[top, 3]
            if hi == lo or (hi - lo == last - first and not rows.kinds[lo] & TARGET):
                continue
            few = last - first <= PAIRS
            whole = 1 if few else rows.planar
            half = (first + last) >> 1
            mid = hi if whole else int64(rows.sources[half])
            ys, zs = ids[0, lo - start : hi - start], ids[1, lo - start : hi - start]
            sources = _load(rows, ys, lo, mid, scale, whole, scratch, rank)
            for i in range(0 if few else zs.size):
                codes[0, i] = 2 * rank[zs[i] - lo] + (0 if whole else zs[i] >= mid)
            _plane(scratch, hi - lo, sources, PAIRS if few else FEW, scale, whole)
            for i in range(ys.size):
                out[ys[i] - base, 0] += v[OUT, i] * v[SHARE, i]
                out[ys[i] - base, 1] += v[OUT + 1, i] * v[SHARE, i]
            if jobs[k, 6] and not whole:
                _split(ys, spare, lo, mid)
                _split(zs, spare, lo, mid)
                stack[top, :] = half, last, mid, hi
                stack[top + 1, :] = first, half, lo, mid
                top += 2


def _arrange(points: FloatArray, starts: IntArray, targets: Targets | None, scale: float, workers: Workers) -> _Rows:
    """Return the records of rows and targets, with their orders by each coordinate."""
    n, d = points.shape

    def order(k: int) -> IntArray:
        rows = in_order(points[:, k], starts)
        if targets is None:
            return rows
        queries = targets[0][:, k]
        given = points[:, k], starts, rows, queries, targets[1], in_order(queries, targets[1])
        result: IntArray = answer(merged, ROW_STEPS * len(points), *given)
        return result

    orders = workers.map(order, range(d))
    every, bounds = points, starts
    if targets is not None:
        every, bounds = np.concatenate([points, targets[0]]), starts + targets[1]
    place = np.empty(len(every), np.int32)
    place[orders[0]] = np.arange(len(every), dtype=np.int32)
    records = np.zeros((len(every), 8))
    records[:, Z + 1 - d : Z + 1] = every[orders[0]]
    real = orders[0] < n
    kinds = np.where(real, SOURCE if targets is not None else SOURCE | TARGET, TARGET).astype(np.uint8)
    by_z = place[orders[-1]]
    answer(_set_origins, ROW_STEPS * len(every), records, kinds, by_z, bounds, scale)
    sources = np.flatnonzero(real).astype(np.int32)
    places = (place if targets is None else place[n:]).astype(np.int64)
    return _Rows(records, kinds, place[orders[-2]], by_z, sources, orders[0][real], places, starts, bounds, int(d == 2))


@jit
def _set_origins(records: FloatArray, kinds: UInt8Array, by_z: Int32Array, bounds: IntArray, scale: float) -> None:
    """Write the origin in z of every row, at most REACH / scale below it, and the factors exp(-+ scale (z - origin)).

    Origins are the z of rows; a target with no origin in reach is its own.
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
    """Return the sums of one or two columns at all rows and targets, in the order of the records."""
    rows.records[rows.sources, FIRST : FIRST + columns.shape[1]] = columns[rows.of]
    out = np.zeros((len(rows.records), 2))
    steps = ROW_STEPS * len(rows.sources) + TARGET_STEPS[rows.planar] * len(rows.places)

    def work(jobs: IntArray) -> FloatArray:
        deep = jobs[0, -1] != 0
        base, into = (0, out) if deep else (jobs[0, 2], np.zeros((jobs[0, 3] - jobs[0, 2], 2)))
        size = int((jobs[:, 3] - jobs[:, 2]).max())
        # NumPy requests large pages for its arrays, which are faster.
        answer(sum_halves, steps, rows, jobs, scale, base, np.empty((12, size + 40)), np.empty((size, 4)), into)
        return into

    todo = _cut(rows)
    for jobs, found in zip(todo, workers.map(work, todo), strict=True):
        if found is not out:
            out[jobs[0, 2] : jobs[0, 3]] += found
    return out


def _cut(rows: _Rows) -> list[IntArray]:
    """List the jobs of `sum_halves`: of large bins, each half of TOPS levels and then the rest; and runs of small bins."""
    starts, bounds = rows.starts, rows.bounds
    jobs = np.stack([starts[:-1], starts[1:], *[bounds[:-1], bounds[1:]] * 2, np.ones(len(starts) - 1, np.int64)], axis=1)
    large = (np.diff(starts) > SPLIT) & (not rows.planar)
    todo = []
    for job in jobs[large]:
        level = job[None]
        for _ in range(TOPS):
            if level[0, 1] - level[0, 0] > SPLIT:
                todo += [np.append(half[:-1], 0)[None] for half in level]
                middle = (level[:, 0] + level[:, 1]) >> 1
                level = np.repeat(level, 2, axis=0)
                level[::2, 1] = level[1::2, 0] = middle
                level[::2, 3] = level[1::2, 2] = rows.sources[middle]
        todo += list(level[:, None])
    small = jobs[~large]
    return todo + [small[i:j] for i, j in split_bins(np.append(0, np.cumsum(small[:, 3] - small[:, 2])))]
