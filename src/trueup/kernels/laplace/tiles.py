"""Sums over all pairs of rows of a bin, for any number of dimensions, one block of rows at a time.

Rows of a bin are ordered by halving it along its widest side until a block is left, so that blocks are compact: blocks
whose boxes are too far apart to change any ratio of sums are skipped. Coordinates are integer multiples of a step, so that
distances are exact sums in any order. With S the sum of a row's coordinates, |a - b|_1 = 2 sum max(a, b) - S_a - S_b;
overflow on the way cancels, since integers are added modulo 2^32. If steps would be too coarse, coordinates are float64.
Memory is a constant number of copies of the rows.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy import float32, float64, int32

from trueup.kernels._jit import answer, jit

if TYPE_CHECKING:
    from trueup._types import AnyArray, Float32Array, FloatArray, Int32Array, IntArray
    from trueup.kernels.threads import Workers

BLOCK = 128  # rows of a block
LANES = 16  # partial sums of a block: added lane by lane, then in float64
TOGETHER = 4  # targets that share what is read of a block; also by how many the dimensions are padded
# 2^-x for 0 <= x < 1: interpolated at seven Chebyshev nodes, off by less than 3e-9.
_SERIES = np.polynomial.chebyshev.Chebyshev.interpolate(lambda x: 2.0**-x, 6, [0, 1])
P0, P1, P2, P3, P4, P5, P6 = _SERIES.convert(kind=np.polynomial.Polynomial).coef.astype(np.float32)
FARTHEST = 127.0  # 2^-127 counts as nothing
ROUNDED = 1 + 1e-12  # a row and its box may be as far away but for roundings: added up in different orders
BIAS = 127
MANTISSA = 23
STEPS = 2.0**31 - 2**16  # no distance is longer; the rest is room for rounding
FINE = 7e-7  # how far three standard deviations of the rounding of a distance may move a kernel's value, as a share
MOST_STEPS = np.int32(2**31 - 1)
MOST_SHIFT = 30
PARTS = 256  # of the targets, at most
COPIES = 2**28  # bytes of partial sums, at most, where there is a choice
LOG2E = math.log2(math.e)
PAIR_STEPS = 100.0  # microseconds per target, block and scale, uncompiled


@jit
def _weigh(far: AnyArray, less: float, factor: float, bits: Int32Array, powers: Float32Array, near: Float32Array) -> None:
    """Write 2^-(factor * (far - less)) of BLOCK distances ``far`` to ``near``; ``powers`` is ``bits`` viewed as float32."""
    for s in range(BLOCK):
        # In float64: the exponent of a distant row is as exact as that of a near one.
        z = min((float64(far[s]) - less) * factor, FARTHEST)
        whole = int32(z)
        x = float32(z - whole)
        near[s] = P0 + x * (P1 + x * (P2 + x * (P3 + x * (P4 + x * (P5 + x * P6)))))
        bits[s] = int32(int32(BIAS) - whole) << int32(MANTISSA)
    for s in range(BLOCK):
        near[s] *= powers[s]


@jit
def _weigh_steps(
    far: Int32Array, shift: Any, mask: Any, unit: Any, bits: Int32Array, powers: Float32Array, near: Float32Array
) -> None:
    """Write 2^-(far / 2^shift) of integer distances to ``near``, as `_weigh`; mask is 2^shift - 1, unit 2^-shift."""
    for s in range(BLOCK):
        whole = min(far[s] >> shift, int32(BIAS))
        x = float32(far[s] & mask) * unit
        near[s] = P0 + x * (P1 + x * (P2 + x * (P3 + x * (P4 + x * (P5 + x * P6)))))
        bits[s] = int32(int32(BIAS) - whole) << int32(MANTISSA)
    for s in range(BLOCK):
        near[s] *= powers[s]


@jit
def _far_among(Q: Int32Array, A: Int32Array, total: Int32Array, mine: Int32Array, i: int, far: Int32Array) -> None:
    """Write integer distances of rows i to i + 3 of A to block Q; ``mine`` and ``total`` are their coordinate sums."""
    far[:] = 0
    for k in range(0, Q.shape[0], TOGETHER):
        a0, a1, a2, a3 = A[i, k], A[i, k + 1], A[i, k + 2], A[i, k + 3]
        b0, b1, b2, b3 = A[i + 1, k], A[i + 1, k + 1], A[i + 1, k + 2], A[i + 1, k + 3]
        c0, c1, c2, c3 = A[i + 2, k], A[i + 2, k + 1], A[i + 2, k + 2], A[i + 2, k + 3]
        d0, d1, d2, d3 = A[i + 3, k], A[i + 3, k + 1], A[i + 3, k + 2], A[i + 3, k + 3]
        for s in range(BLOCK):
            q0, q1, q2, q3 = Q[k, s], Q[k + 1, s], Q[k + 2, s], Q[k + 3, s]
            far[0, s] = int32(far[0, s] + int32(max(a0, q0)) + int32(max(a1, q1)) + int32(max(a2, q2)) + int32(max(a3, q3)))
            far[1, s] = int32(far[1, s] + int32(max(b0, q0)) + int32(max(b1, q1)) + int32(max(b2, q2)) + int32(max(b3, q3)))
            far[2, s] = int32(far[2, s] + int32(max(c0, q0)) + int32(max(c1, q1)) + int32(max(c2, q2)) + int32(max(c3, q3)))
            far[3, s] = int32(far[3, s] + int32(max(d0, q0)) + int32(max(d1, q1)) + int32(max(d2, q2)) + int32(max(d3, q3)))
    for t in range(TOGETHER):
        less = mine[i + t]
        for s in range(BLOCK):
            far[t, s] = int32(2 * far[t, s] - less - total[s])


@jit
def among(
    Q: Int32Array, A: Int32Array, mine: Int32Array, lanes: Float32Array, C: Float32Array, low: Int32Array, high: Int32Array,
    rows: IntArray, factors: FloatArray, shift: int, reach: float, out: FloatArray,
) -> None:  # fmt: skip
    """Add to the sums of each row the columns of the other rows of its bin, for some pairs of blocks; each is met once.

    Q (blocks, d, BLOCK) and A (rows, d) are the coordinates, ``mine`` (rows,) their sums modulo 2^32; ``lanes`` (blocks, c,
    BLOCK) and C (rows, c) the columns, 0 in padding; ``rows`` (r, 2) a block and the end of the blocks paired with it. The
    kernel is 2^-(factor * distance); if ``shift`` is not negative, the one factor is 2^-shift. Blocks farther apart than
    ``reach`` are skipped. ``out`` (g, c, rows), for g factors, is added to.
    """
    c = C.shape[1]
    far = np.empty((TOGETHER, BLOCK), np.int32)
    bits = np.empty(BLOCK, np.int32)
    powers = bits.view(np.float32)
    near = np.empty((TOGETHER, BLOCK), np.float32)
    back = np.empty((len(factors), c, BLOCK), np.float32)
    bit, mask, unit = int32(shift), int32((1 << max(shift, 0)) - 1), float32(2.0**-shift)
    for row in range(len(rows)):
        one = rows[row, 0]
        for other in range(one, rows[row, 1]):
            apart = 0.0  # the L1 distance between the boxes of the two blocks
            for k in range(low.shape[1]):
                apart += max(max(low[one, k], low[other, k]) - min(high[one, k], high[other, k]), 0)
            if apart > reach:
                continue
            start = BLOCK * other
            back[:] = 0
            for i in range(BLOCK * one, BLOCK * (one + 1), TOGETHER):
                _far_among(Q[other], A, mine[start : start + BLOCK], mine, i, far)
                for g in range(len(factors)):
                    for t in range(TOGETHER):
                        if shift < 0:
                            _weigh(far[t], 0.0, factors[g], bits, powers, near[t])
                        else:
                            _weigh_steps(far[t], bit, mask, unit, bits, powers, near[t])
                        if one == other:
                            near[t, i + t - start] = 0  # a row is not among the others
                    _give(near, lanes[other], i, out[g])
                    _give_back(near, C, i, back[g])
            if one != other:
                out[:, :, start : start + BLOCK] += back


@jit
def _give(near: Float32Array, lanes: Float32Array, i: int, out: FloatArray) -> None:
    """Add the columns of a block (``lanes``), weighted by the kernel ``near``, to the sums ``out`` of rows i to i + 3."""
    part = np.empty(LANES, np.float32)
    for t in range(TOGETHER):
        for k in range(lanes.shape[0]):
            _add_lanes(near[t], lanes[k], part)
            for s in range(8):
                part[s] += part[s + 8]
            for s in range(4):
                part[s] += part[s + 4]
            out[k, i + t] += (float64(part[0]) + float64(part[1])) + (float64(part[2]) + float64(part[3]))


@jit
def _add_lanes(near: AnyArray, column: AnyArray, part: AnyArray) -> None:
    """Write to part[s] the sum of near[j] * column[j] over j = s, s + 16, s + 32, ..."""
    for s in range(LANES):
        part[s] = (
            ((near[s] * column[s] + near[s + 16] * column[s + 16])
             + (near[s + 32] * column[s + 32] + near[s + 48] * column[s + 48]))
            + ((near[s + 64] * column[s + 64] + near[s + 80] * column[s + 80])
               + (near[s + 96] * column[s + 96] + near[s + 112] * column[s + 112]))
        )  # fmt: skip


@jit
def _give_back(near: Float32Array, C: Float32Array, i: int, back: Float32Array) -> None:
    """Add the columns C of rows i to i + 3, weighted by the kernel ``near``, to the sums ``back`` of a block of rows."""
    for k in range(C.shape[1]):
        c0, c1, c2, c3 = C[i, k], C[i + 1, k], C[i + 2, k], C[i + 3, k]
        for s in range(BLOCK):
            back[k, s] += (c0 * near[0, s] + c1 * near[1, s]) + (c2 * near[2, s] + c3 * near[3, s])


@jit
def _far_reals(Q: FloatArray, A: FloatArray, i: int, far: FloatArray) -> None:
    """Write to ``far`` the float64 distances of rows i to i + 3 of A to a block of rows Q, shape (d, BLOCK)."""
    far[:] = 0
    for t in range(TOGETHER):
        for k in range(0, Q.shape[0], TOGETHER):
            a0, a1, a2, a3 = A[i + t, k], A[i + t, k + 1], A[i + t, k + 2], A[i + t, k + 3]
            for s in range(BLOCK):
                far[t, s] += (abs(a0 - Q[k, s]) + abs(a1 - Q[k + 1, s])) + (abs(a2 - Q[k + 2, s]) + abs(a3 - Q[k + 3, s]))


@jit
def _measure(
    Q: AnyArray, A: AnyArray, totals: Int32Array | None, mine: Int32Array | None, b: int, i: int, far: AnyArray
) -> None:
    """Write to ``far`` the distances of rows i to i + 3 of A to block b of Q: float64 if ``totals`` is None, or integer."""
    if totals is None or mine is None:
        _far_reals(Q[b], A, i, far)
    else:
        _far_among(Q[b], A, totals[b], mine, i, far)


@jit
def _boxes(A: AnyArray, i: int, low: AnyArray, high: AnyArray, first: int, last: int, apart: FloatArray) -> int:
    """Write to ``apart`` the distances of row i to the boxes of blocks first to last - 1; return the nearest block."""
    best = first
    for b in range(first, last):
        far = 0.0
        for k in range(low.shape[1]):
            gap = max(low[b, k] - A[i, k], A[i, k] - high[b, k])
            if gap > 0:
                far += gap
        apart[b - first] = far
        if far < apart[best - first]:
            best = b
    return best


@jit
def _hide(far: AnyArray, filled: int, skip: int, most: Any) -> Any:
    """Set the distances of padding (from ``filled`` on) and of row ``skip`` to ``most``; return the smallest distance."""
    for s in range(filled, BLOCK):
        far[s] = most
    if 0 <= skip < BLOCK:
        far[skip] = most
    least = far[0]
    for s in range(1, BLOCK):
        least = min(least, far[s])
    return least


@jit
def _collect(
    far: AnyArray, skip: int, least: Any, less: AnyArray, lanes: FloatArray, factors: FloatArray, total: FloatArray,
    even: int, bits: Int32Array, powers: Float32Array, near: Float32Array, wide: FloatArray, part: FloatArray,
) -> None:  # fmt: skip
    """Add a block (``lanes``) to the sums ``total`` of one row, relative to ``less``; bits to part are scratch space."""
    if least < less[0]:
        for g in range(len(factors)):
            shrunk = 2.0 ** -(float(less[0] - least) * factors[g])
            for k in range(lanes.shape[0]):
                total[g, k] *= shrunk
        less[0] = least
    for g in range(len(factors)):
        if even:
            _weigh(far, float64(less[0]), factors[g], bits, powers, near)
        else:
            for s in range(BLOCK):  # with the range of float64
                wide[s] = 2.0 ** -((float64(far[s]) - float64(less[0])) * factors[g])
        if 0 <= skip < BLOCK:
            near[skip] = 0
            wide[skip] = 0
        for k in range(lanes.shape[0]):
            if even:
                _add_lanes(near, lanes[k], part)
            else:
                _add_lanes(wide, lanes[k], part)
            for s in range(LANES):
                total[g, k] += part[s]


@jit
def between(
    Q: AnyArray, totals: AnyArray | None, lanes: FloatArray, filled: IntArray, low: AnyArray, high: AnyArray,
    A: AnyArray, mine: AnyArray | None, skip: IntArray, tasks: IntArray, factors: FloatArray, cut: float, most: Any,
    even: int, total: FloatArray, shift: AnyArray,
) -> None:  # fmt: skip
    """Sum the columns of the rows of a bin at other points, the targets; a target's sums do not depend on other targets.

    Blocks of rows: coordinates Q (int32 or float64), their sums ``totals`` (None for float64), columns ``lanes``, numbers
    ``filled``, boxes. Targets: coordinates A, their sums ``mine``, and in ``skip`` a position that does not count (-1 for
    none). ``tasks`` (t, 4) are start and stop of targets, in fours, and of blocks. Blocks farther than the nearest row by
    more than ``cut`` are skipped; ``most`` is a distance out of reach. Unless ``even``, kernels are float64, since 2^-127
    of a weight may matter. ``total`` (targets, g, c) receives the sums times 2^(factor * shift), ``shift`` the smallest
    distance, or ``most`` if no row counts.
    """
    dtype = Q.dtype
    far = np.empty((TOGETHER, BLOCK), dtype)
    less = np.empty((TOGETHER, 1), dtype)
    bits = np.empty(BLOCK, np.int32)
    powers, near, part = bits.view(np.float32), np.empty(BLOCK, np.float32), np.empty(LANES)
    wide, reach = np.empty(BLOCK), np.empty(TOGETHER)
    for task in range(len(tasks)):
        first, last = tasks[task, 2], tasks[task, 3]
        apart = np.empty((TOGETHER, last - first))
        for i in range(tasks[task, 0], tasks[task, 1], TOGETHER):
            for t in range(TOGETHER):
                b = _boxes(A, i + t, low, high, first, last, apart[t])
                less[t, 0] = most
                total[i + t] = 0
                _measure(Q, A, totals, mine, b, i, far)
                reach[t] = (cut + _hide(far[t], filled[b], skip[i + t] - BLOCK * b, most)) * ROUNDED
            for b in range(first, last):
                within = False
                for t in range(TOGETHER):
                    within |= apart[t, b - first] <= reach[t]
                if within:
                    _measure(Q, A, totals, mine, b, i, far)
                for t in range(TOGETHER):
                    own = skip[i + t] - BLOCK * b
                    least = _hide(far[t], filled[b], own, most) if apart[t, b - first] <= reach[t] else most
                    if least < most:
                        to = total[i + t]
                        _collect(far[t], own, least, less[t], lanes[b], factors, to, even, bits, powers, near, wide, part)
            for t in range(TOGETHER):
                shift[i + t] = less[t, 0]


class BlockCoordinates(NamedTuple):
    """Coordinates of all rows, as integer multiples of a step or as float64, in the layouts that the kernels read."""

    rows: AnyArray  # (positions, d)
    lanes: AnyArray  # (blocks, d, BLOCK)
    totals: Any  # (positions,) of int32: the sum of the coordinates of each row modulo 2^32; None for float64
    low: AnyArray  # (blocks, d): the smallest coordinates of each block
    high: AnyArray


class Blocks:
    """Rows in blocks of BLOCK positions; each block has rows of one bin.

    ``order`` is the row at each position, ``real`` is false for padding, which repeats a row; ``place`` is the position of
    each row. ``firsts`` is the first block of each bin, ``filled`` the number of rows of each block; ``points`` (positions,
    d) are padded with columns of 0; ``lanes`` (blocks, c, BLOCK) are the columns, 0 in padding.
    """

    def __init__(self, points: FloatArray, columns: FloatArray, starts: IntArray) -> None:
        self.columns = columns
        some = np.flatnonzero(np.diff(starts))  # most of very many bins are empty
        bins = [_compact(points, np.arange(*starts[k : k + 2])) for k in some]
        many = np.zeros(len(starts) - 1, np.int64)
        many[some] = [len(parts) for parts in bins]
        self.firsts = np.append(0, np.cumsum(many))
        parts = [part for blocks in bins for part in blocks]
        self.order = np.concatenate([np.append(part, np.repeat(part[-1:], BLOCK - len(part))) for part in parts])
        self.real = np.concatenate([np.arange(BLOCK) < len(part) for part in parts])
        d = points.shape[1]
        self.points = np.zeros((len(self.order), -(-d // TOGETHER) * TOGETHER))
        self.points[:, :d] = points[self.order]
        self.low, self.high = self.points.min(axis=0), self.points.max(axis=0)
        self.step = step_of(self.high - self.low)
        self.lanes = _in_blocks(np.where(self.real[:, None], columns[self.order], 0))
        self.filled = np.asarray(self.real.reshape(-1, BLOCK).sum(axis=1))
        self.place = np.empty(len(points), np.int64)
        self.place[self.order[self.real]] = np.flatnonzero(self.real)

    @cached_property
    def steps(self) -> BlockCoordinates:
        """The coordinates as integer multiples of ``step``."""
        return lay_out(self.in_steps(self.points, self.step))

    @cached_property
    def reals(self) -> BlockCoordinates:
        """The coordinates as float64."""
        return lay_out(self.points)

    def in_steps(self, points: FloatArray, step: float) -> Int32Array:
        """Return ``points`` minus ``low`` (the smallest coordinates of all rows) as integer multiples of ``step``."""
        return np.asarray(np.rint((points - self.low) / step).astype(np.int32))


def lay_out(rows: AnyArray) -> BlockCoordinates:
    """Return the coordinates of rows, BLOCK consecutive rows to a block, in all layouts."""
    cut = rows.reshape(-1, BLOCK, rows.shape[1])
    low, high = (np.ascontiguousarray(side) for side in (cut.min(axis=1), cut.max(axis=1)))
    return BlockCoordinates(rows, _in_blocks(rows), _totals(rows), low, high)


def _compact(points: FloatArray, rows: IntArray) -> list[IntArray]:
    """Split rows into blocks of at most BLOCK by halving them along their widest coordinate."""
    done, stack = [], [rows]
    while stack:
        rows = stack.pop()
        if len(rows) <= BLOCK:
            done.append(rows)
            continue
        here = points[rows]
        widest = int(np.argmax(here.max(axis=0) - here.min(axis=0)))
        half = BLOCK * (-(-len(rows) // BLOCK) // 2)
        halves = np.argpartition(here[:, widest], half)
        stack += [rows[halves[half:]], rows[halves[:half]]]
    return done


def step_of(ranges: FloatArray) -> float:
    """Return the step of integer coordinates: the sum of the ranges of all coordinates is STEPS steps.

    A step that is 0 or subnormal, and so rounded, would make coordinates overflow: it is 1, and they are all the same.
    """
    step = float(ranges.sum()) / STEPS
    return step if step >= np.finfo(np.float64).tiny else 1.0


def fine_enough(ranges: FloatArray, scale: float) -> bool:
    """Return whether integer coordinates with these ranges are accurate enough for kernels of this scale."""
    return _error(step_of(ranges), scale, len(ranges)) <= FINE


def _error(step: float, scale: float, d: int) -> float:
    """Return three standard deviations of the rounding error of a distance in ``d`` dimensions, times the scale.

    On a grid of hundreds of dimensions roundings do not cancel: sums may then be off by a few millionths; their ratios are
    not.
    """
    return 3 * math.sqrt(d / 6) * step * scale


def _in_blocks(values: AnyArray) -> AnyArray:
    """Reshape (positions, k) to (blocks, k, BLOCK)."""
    return np.ascontiguousarray(values.reshape(-1, BLOCK, values.shape[1]).transpose(0, 2, 1))


def _totals(rows: AnyArray) -> Int32Array | None:
    """Return the sum of the coordinates of each row modulo 2^32, or None if they are float64."""
    return np.asarray(rows.sum(axis=1, dtype=np.int64).astype(np.int32)) if rows.dtype == np.int32 else None


def sum_among(blocks: Blocks, scales: FloatArray, reach: float, workers: Workers) -> FloatArray:
    """Sum the columns of all other rows of each row's bin, weighted by the kernel, shape (scales, n, c); may underflow.

    Blocks of rows farther apart than ``reach`` are skipped. Scales must be `fine_enough`.
    """
    step, shift = _binary_step(blocks, scales)
    laid, columns = blocks.steps if shift < 0 else lay_out(blocks.in_steps(blocks.points, step)), blocks.columns
    unit = 2.0 ** -math.frexp(float(np.abs(columns).max()))[1]  # the largest value is near 1
    C = np.where(blocks.real[:, None], columns[blocks.order] * unit, 0).astype(np.float32)
    shape = (len(scales), columns.shape[1], len(C))
    copies = int(np.clip(COPIES // (8 * math.prod(shape)), 4, 64))
    factors = scales * step * LOG2E
    given = laid.lanes, laid.rows, laid.totals, _in_blocks(C), C, laid.low, laid.high

    def work(part: IntArray) -> FloatArray:
        out = np.zeros(shape)
        among(*given, part, factors, shift, reach / step, out)
        return out

    total = np.zeros(shape)
    for part in workers.map(work, _shares(blocks.firsts, copies)):
        total += part
    return np.asarray(total[:, :, blocks.place].transpose(0, 2, 1) / unit)


def _binary_step(blocks: Blocks, scales: FloatArray) -> tuple[float, int]:
    """Return a longer step and a shift such that the kernel of a distance of n steps is 2^-(n * 2^-shift).

    Returns the step of the blocks and -1 if there are several scales, or if the longer step would be too inaccurate.
    """
    factor = float(scales[0]) * blocks.step * LOG2E
    shift = math.floor(-math.log2(factor)) if factor > 0 else 0
    step = 2.0**-shift / (float(scales[0]) * LOG2E)
    fine = _error(step, float(scales[0]), len(blocks.low)) <= FINE
    return (step, shift) if len(scales) == 1 and 0 < shift <= MOST_SHIFT and fine else (blocks.step, -1)


def _shares(firsts: IntArray, parts: int) -> list[IntArray]:
    """Split blocks into about ``parts`` arrays of (block, end of its bin), with equal pair counts; see `Blocks.firsts`."""
    stops = np.repeat(firsts[1:], np.diff(firsts))
    rows = np.column_stack([np.arange(len(stops)), stops])
    pairs = np.cumsum(stops - rows[:, 0])
    cuts = np.searchsorted(pairs, np.arange(1, parts) * pairs[-1] / parts)
    return [part for part in np.split(rows, np.unique(cuts)) if len(part)]


def sum_at(
    blocks: Blocks, targets: FloatArray, target_starts: IntArray, scales: FloatArray, cut: float, workers: Workers,
    *, fine: bool, even: bool, skip: IntArray | None = None,
) -> tuple[FloatArray, FloatArray]:  # fmt: skip
    """Sum the columns of each target's bin: totals (scales, targets, columns) and shifts (targets,), see `Sums`.

    Blocks of rows farther than the nearest row of a target by more than ``cut`` are skipped. Distances are integers if
    ``fine``; ``even`` is true if float32 has the range of all weights; row skip[k] does not count for target k.
    """
    d, low, high = targets.shape[1], blocks.low, blocks.high
    padded = np.zeros((len(targets), len(low)))
    # Outside the box of all rows a coordinate adds the same to every distance: it cancels.
    padded[:, :d] = np.clip(targets, low[:d], high[:d])
    outside = np.abs(targets - padded[:, :d]).sum(axis=1)
    laid, most, unit = (blocks.steps, MOST_STEPS, blocks.step) if fine else (blocks.reals, np.inf, 1.0)
    order, tasks = _fours(target_starts, blocks.firsts)
    A = np.ascontiguousarray((blocks.in_steps(padded, unit) if fine else padded)[order])
    left_out = np.full(len(order), -1) if skip is None else blocks.place[skip[order]]
    total = np.zeros((len(order), len(scales), blocks.columns.shape[1]))
    shift = np.full(len(order), most, A.dtype)
    totals = None if laid.totals is None else laid.totals.reshape(-1, BLOCK)
    steps = PAIR_STEPS * len(scales) * float(np.diff(target_starts) @ np.diff(blocks.firsts))
    given = laid.lanes, totals, blocks.lanes, blocks.filled, laid.low, laid.high, A, _totals(A), left_out

    def work(part: IntArray) -> None:  # four targets at a time
        answer(between, steps, *given, part, scales * unit * LOG2E, cut / unit, most, int(even), total, shift)

    if len(tasks):
        workers.map(work, np.array_split(tasks, min(len(tasks), PARTS)))
    sums, nearest = np.zeros((len(targets), *total.shape[1:])), np.full(len(targets), np.inf)
    sums[order], nearest[order] = total, np.where(shift < most, shift, np.inf)
    return sums.transpose(1, 0, 2), np.where(np.isfinite(nearest), nearest * unit + outside, 0.0)


def _fours(target_starts: IntArray, block_starts: IntArray) -> tuple[IntArray, IntArray]:
    """Return targets in fours of one bin (the last repeated), and tasks: start and stop of targets and of blocks."""
    order, tasks, done = [np.zeros(0, np.int64)], [np.zeros((0, 4), np.int64)], 0
    for k in np.flatnonzero((np.diff(target_starts) > 0) & (np.diff(block_starts) > 0)):
        start, stop = target_starts[k : k + 2].tolist()
        fours = -(-(stop - start) // TOGETHER)
        order.append(np.minimum(np.arange(start, start + TOGETHER * fours), stop - 1))
        first = done + TOGETHER * np.arange(fours)
        blocks = np.tile(block_starts[k : k + 2], (fours, 1))
        tasks.append(np.column_stack([first, first + TOGETHER, blocks]))
        done += TOGETHER * fours
    return np.concatenate(order), np.concatenate(tasks)
