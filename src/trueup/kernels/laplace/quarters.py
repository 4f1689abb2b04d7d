"""Sums of exp(-scale * L1 distance) in two or three dimensions: divide and conquer.

The rows are halved by their order in x. Between a row s of the left half and t of the right one, with m the value at the
cut, exp(-scale (x_t - x_s)) is exp(-scale (x_t - m)) exp(-scale (m - x_s)): a factor of each row alone, so that x is gone.
What is left are two dimensions, halved by the order in y in the same way, and then one: a sweep in the order of z. All
four quarters (left or right, low or high) give to their opposite in one sweep. Halves of few rows are summed pair by pair.
Every pair is met once, whatever is equal: halves are made by position. O(n log n) and O(n log^2 n), memory O(n); N.
Langrené and X. Warin, "Fast multivariate empirical cumulative distribution function with connection to kernel density
estimation" (2020).

In a sweep a row joins with the factor exp(+scale (z - origin)) and reads with its inverse. Origins are rows never far
below, so that no factor is large, and when a sweep comes to another one its sums decay: factors are found once, not for
every sweep anew.

Targets travel with the rows, but never cut a half, choose an origin or move a sum: what one of them gets does not depend on
the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numba import int64, types, uint64
from numba.extending import intrinsic

from trueup.kernels._jit import jit

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]
    Ids = NDArray[np.int32]
    Bytes = NDArray[np.uint8]

__all__ = ["sum_halves"]

PAIRS = 128  # a half in x of no more rows is summed pair by pair
FEW = 32  # and in y
BLOCK = 256  # targets at a time
LANES = 8  # and of these
X, Y, Z, ORIGIN, FADE, GROW, FIRST, SECOND, HEIGHT, OUT, _, SHARE = range(12)  # a row of the records has the first eight
SIDE, SOURCE, TARGET = 1, 2, 4  # marks of a row


# ---------------------------------------------------------------------------------------------------------------------
# exp(-u), in a form that LLVM can do several at a time


def _bits(_context: Any, of: Any) -> tuple[Any, Any]:
    """Take the bits of a double for an integer, or the other way round."""
    to = types.int64 if of == types.float64 else types.float64

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], context.get_value_type(to))

    return to(of), generate


_recast = cast("Callable[[Any], Any]", intrinsic(_bits))

MAGIC = 6755399441055744.0  # 1.5 * 2^52: a sum with it ends in the nearest integer, in the low bits
LOG2E, LN2_HIGH, LN2_LOW = 1.4426950408889634, 0.6931471803691238, 1.9082149292705877e-10
NOTHING = 708.0  # beyond it exp(-u) is next to the smallest number there is, and counts as 0


@jit
def _decay(u: float) -> float:
    """Give exp(-u), u not negative and perhaps infinite: 2^n times the series of exp on [-ln(2)/2, ln(2)/2]."""
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
def _give(of: Floats, j: int, to: Floats, many: int, scale: float) -> None:
    """Add row j, weighed by the kernel, to the targets, and to what lies behind them up to a full set of lanes."""
    x, y, z, first, second = of[0, j], of[1, j], of[2, j], of[3, j], of[4, j]
    tx, ty, tz, t1, t2 = to[0], to[1], to[2], to[3], to[4]
    for i in range((many + LANES - 1) // LANES * LANES):
        k = _decay(scale * (abs(tx[i] - x) + abs(ty[i] - y) + abs(tz[i] - z)))
        t1[i] += k * first
        t2[i] += k * second


@jit
def _gather(v: Floats, marks: Bytes, begin: int, end: int, mask: int, want: int, box: Floats) -> int:
    """Copy the rows with the wanted marks, targets with sums of 0. Give their number."""
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
def _leaf(v: Floats, marks: Bytes, lo: int, hi: int, scale: float, whole: int, of: Floats, to: Floats) -> None:
    """Sum pair by pair: whole, every other row; otherwise the rows of the other side."""
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
                if itself:  # a row takes nothing from itself
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
def _weigh(v: Floats, flow: Floats, lo: int, hi: int, mid: int, scale: float) -> None:
    """Set what every row brings to the sweep upwards (two columns) and downwards (two)."""
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
def _move(acc: Floats, origin: float, to: float, scale: float) -> float:
    """See the sums of a sweep from another origin, further on."""
    fade = _decay(scale * abs(to - origin))
    for k in range(8):
        acc[k] *= fade
    return to


@jit
def _sweep(v: Floats, flow: Floats, marks: Bytes, codes: Ids, mid: int, across: int, scale: float) -> None:
    """Go through the rows in the order of z, upwards and downwards at once; each finds what its opposites brought.

    A code is twice the row, plus the side; a quarter is twice (is it high), plus the side. What a row finds takes the
    place of what it brought. A target alone never moves a sum.
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
def _collect(v: Floats, flow: Floats, lo: int, hi: int) -> None:
    """Add what the rows found."""
    height, fade, grow = v[HEIGHT, lo:hi], v[FADE, lo:hi], v[GROW, lo:hi]
    first, second, finds = v[OUT, lo:hi], v[OUT + 1, lo:hi], flow[lo:hi]
    for r in range(height.size):
        up = height[r] * fade[r]
        down = height[r] * grow[r]
        first[r] += up * finds[r, 0] + down * finds[r, 2]
        second[r] += up * finds[r, 1] + down * finds[r, 3]


@jit
def _part(codes: Ids, cut: int, low: Ids, high: Ids) -> None:
    """Deal out what is below the cut and what is not; both keep their order."""
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
def _split(ids: Ids, spare: Ids, lo: int, mid: int) -> None:
    """Part the rows of a half in place."""
    for k in range(ids.size):
        spare[k] = ids[k]
    _part(spare[: ids.size], mid, ids[: mid - lo], ids[mid - lo :])


@jit
def _push(stack: Ints, at: int, first: int, last: int, lo: int, hi: int, which: int) -> None:
    """Write down a half to be done."""
    stack[at, 0], stack[at, 1], stack[at, 2], stack[at, 3], stack[at, 4] = first, last, lo, hi, which


@jit
def _one_sided(marks: Bytes, lo: int, hi: int) -> bool:
    """Tell whether all rows are on one side."""
    right = 0
    for r in range(lo, hi):
        right += marks[r] & SIDE
    return right == 0 or right == hi - lo


@jit
def _plane(
    v: Floats, flow: Floats, marks: Bytes, codes: Ids, place: Ids, n: int, sources: int, few: int, scale: float,
    whole: int, of: Floats, to: Floats,
) -> None:  # fmt: skip
    """Sum in y and z: whole, from every row to every other; otherwise to the rows on the other side of x.

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
            continue  # nobody asks
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
    records: Floats, kinds: Bytes, ids: Ids, lo: int, mid: int, scale: float, whole: int, v: Floats, marks: Bytes,
    place: Ids, rank: Ids,
) -> int:  # fmt: skip
    """Take in the rows of a half of x, in the order of y. Unless whole, x is gone. Give the number of sources."""
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
def _encode(ids: Ids, rank: Ids, lo: int, mid: int, whole: int, codes: Ids) -> None:
    """Write the codes of the rows in the order of z."""
    for i in range(ids.size):
        codes[i] = 2 * rank[ids[i] - lo] + (0 if whole else ids[i] >= mid)


@jit
def _return(v: Floats, ids: Ids, base: int, out: Floats) -> None:
    """Add the sums of the rows to their places."""
    for k in range(ids.size):
        out[ids[k] - base, 0] += v[OUT, k] * v[SHARE, k]
        out[ids[k] - base, 1] += v[OUT + 1, k] * v[SHARE, k]


@jit
def _pick(ids: Ids, lo: int, hi: int, out: Ids) -> None:
    """Copy those within bounds."""
    n = 0
    for row in ids:
        if lo <= row < hi:
            out[n] = row
            n += 1


@jit
def sum_halves(
    records: Floats, kinds: Bytes, by_y: Ids, by_z: Ids, place: Ids, jobs: Ints, scale: float, planar: int, base: int,
    v: Floats, flow: Floats, out: Floats,
) -> None:  # fmt: skip
    """Do some jobs, each a half in x: (first and last source, first and last row, rows of its bin, halve on or not)."""
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
