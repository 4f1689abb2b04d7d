"""All pairs of rows, a block of rows at a time: distances in whole numbers, sixteen and more pairs an instruction.

A coordinate is a whole number of steps (`tiles`), so that distances are exact sums, in any order. With S the sum of
a row's coordinates, |a - b|_1 = 2 sum max(a, b) - S_a - S_b; what overflows on the way comes back at the end, for whole
numbers are added modulo 2^32. Where steps would be too coarse the coordinates are float64.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numba import float32, float64, int32, types
from numba.extending import overload

from trueup.kernels._jit import jit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Singles = NDArray[np.float32]
    Steps = NDArray[np.int32]
    Ints = NDArray[np.int64]

__all__ = ["BLOCK", "TOGETHER", "among", "between"]

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


@jit
def _box_distance(low: NDArray[Any], high: NDArray[Any], one: int, other: int) -> float:
    """Give the L1 distance between the boxes of two blocks; low and high have shape (blocks, d)."""
    far = 0.0
    for k in range(low.shape[1]):
        gap = max(low[one, k], low[other, k]) - min(high[one, k], high[other, k])
        if gap > 0:
            far += gap
    return far


@jit
def _weigh(far: NDArray[Any], less: float, factor: float, bits: Steps, powers: Singles, near: Singles) -> None:
    """Give 2^-(factor * (far - less)), lane by lane. ``powers`` is ``bits`` read as float32."""
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
def _weigh_wide(far: NDArray[Any], less: float, factor: float, wide: Floats) -> None:
    """Give 2^-(factor * (far - less)) with the range of float64, one by one."""
    for s in range(BLOCK):
        wide[s] = 2.0 ** -((float64(far[s]) - less) * factor)


@jit
def _weigh_steps(far: Steps, shift: Any, mask: Any, unit: Any, bits: Steps, powers: Singles, near: Singles) -> None:
    """Give 2^-(far * 2^-shift): the whole part of the exponent is what a shift leaves over."""
    for s in range(BLOCK):
        whole = min(far[s] >> shift, int32(BIAS))
        x = float32(far[s] & mask) * unit
        near[s] = P0 + x * (P1 + x * (P2 + x * (P3 + x * (P4 + x * (P5 + x * P6)))))
        bits[s] = int32(int32(BIAS) - whole) << int32(MANTISSA)
    for s in range(BLOCK):
        near[s] *= powers[s]


@jit
def _far_among(Q: Steps, A: Steps, total: Steps, mine: Steps, i: int, far: Steps) -> None:
    """Give the distances of rows i to i + 3 of A to a block of rows Q, shape (d, BLOCK), as whole numbers."""
    for s in range(BLOCK):
        far[0, s] = 0
        far[1, s] = 0
        far[2, s] = 0
        far[3, s] = 0
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
    Q: Steps, A: Steps, mine: Steps, lanes: Singles, C: Singles, low: Steps, high: Steps,
    rows: Ints, factors: Floats, shift: int, reach: float, out: Floats,
) -> None:  # fmt: skip
    """Add up the columns of all other rows of a bin, for every row of the blocks paired; each pair of rows is met once.

    Parameters
    ----------
    Q : (blocks, d, BLOCK), A : (rows, d)
        The coordinates, twice.
    mine : (rows,)
        The sum of each row's coordinates, modulo 2^32.
    lanes : (blocks, c, BLOCK), C : (rows, c)
        The columns, twice; 0 in rows that only fill a block.
    low, high : (blocks, d)
        The box of each block.
    rows : (r, 2)
        A block, and where the blocks of its bin end: it meets itself and all after it.
    factors : (g,), shift : int
        k = 2^-(factor * distance); where ``shift`` is not negative, the one factor is 2^-shift.
    reach : float
        Blocks farther apart are passed over.
    out : (g, c, rows)
        Is added to.
    """
    c = C.shape[1]
    far = np.empty((TOGETHER, BLOCK), np.int32)
    bits = np.empty(BLOCK, np.int32)
    powers = bits.view(np.float32)
    near = np.empty((TOGETHER, BLOCK), np.float32)
    back = np.empty((len(factors), c, BLOCK), np.float32)
    bit, mask, unit = int32(shift), int32((1 << max(shift, 0)) - 1), float32(2.0**-shift)
    for at in range(len(rows)):
        one = rows[at, 0]
        for other in range(one, rows[at, 1]):
            if _box_distance(low, high, one, other) > reach:
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
                _add_back(back, start, out)


@jit
def _add_back(back: Singles, start: int, out: Floats) -> None:
    for g in range(back.shape[0]):
        for k in range(back.shape[1]):
            for s in range(BLOCK):
                out[g, k, start + s] += back[g, k, s]


@jit
def _give(near: Singles, lanes: Singles, i: int, out: Floats) -> None:
    """Add the columns of a block to the sums of four rows."""
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
def _add_lanes(near: NDArray[Any], column: NDArray[Any], part: NDArray[Any]) -> None:
    """Add up products, every sixteenth together."""
    for s in range(LANES):
        part[s] = (
            ((near[s] * column[s] + near[s + 16] * column[s + 16])
             + (near[s + 32] * column[s + 32] + near[s + 48] * column[s + 48]))
            + ((near[s + 64] * column[s + 64] + near[s + 80] * column[s + 80])
               + (near[s + 96] * column[s + 96] + near[s + 112] * column[s + 112]))
        )  # fmt: skip


@jit
def _give_back(near: Singles, C: Singles, i: int, back: Singles) -> None:
    """Add the columns of four rows to the sums of a block."""
    for k in range(C.shape[1]):
        c0, c1, c2, c3 = C[i, k], C[i + 1, k], C[i + 2, k], C[i + 3, k]
        for s in range(BLOCK):
            back[k, s] += (c0 * near[0, s] + c1 * near[1, s]) + (c2 * near[2, s] + c3 * near[3, s])


@jit
def _far_reals(Q: Floats, A: Floats, i: int, far: Floats) -> None:
    """Give the distances of rows i to i + 3 of A to a block of rows Q, shape (d, BLOCK)."""
    for t in range(TOGETHER):
        for s in range(BLOCK):
            far[t, s] = 0
        for k in range(0, Q.shape[0], TOGETHER):
            a0, a1, a2, a3 = A[i + t, k], A[i + t, k + 1], A[i + t, k + 2], A[i + t, k + 3]
            for s in range(BLOCK):
                far[t, s] += (abs(a0 - Q[k, s]) + abs(a1 - Q[k + 1, s])) + (abs(a2 - Q[k + 2, s]) + abs(a3 - Q[k + 3, s]))


def _measure(Q: Any, A: Any, total: Any, mine: Any, i: int, far: Any) -> None:
    """Give the distances of four rows to a block, in steps or in reals."""
    raise NotImplementedError  # compiled code alone calls it


@overload(_measure, strict=False)
def _measure_compiled(Q: Any, A: Any, total: Any, mine: Any, i: Any, far: Any) -> Any:  # noqa: ARG001
    if isinstance(Q.dtype, types.Integer):
        return lambda Q, A, total, mine, i, far: _far_among(Q, A, total, mine, i, far)
    return lambda Q, A, total, mine, i, far: _far_reals(Q, A, i, far)  # noqa: ARG005


@jit
def _boxes(A: NDArray[Any], i: int, low: NDArray[Any], high: NDArray[Any], first: int, last: int, apart: Floats) -> int:
    """Give the distance of a row to the box of each block, and the first of the nearest blocks."""
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
def _hide(far: NDArray[Any], filled: int, skip: int, most: Any) -> Any:
    """Move lanes without a row, and the row left out, out of reach; give the smallest distance of the others."""
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
    far: NDArray[Any], skip: int, least: Any, less: NDArray[Any], lanes: Floats, factors: Floats, total: Floats,
    even: int, bits: Steps, powers: Singles, near: Singles, wide: Floats, part: Floats,
) -> None:  # fmt: skip
    """Add a block to the sums of one row; distances count from ``less``, the smallest one met so far."""
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
            _weigh_wide(far, float64(less[0]), factors[g], wide)
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
    Q: NDArray[Any], sums: NDArray[Any], lanes: Floats, filled: Ints, low: NDArray[Any], high: NDArray[Any],
    A: NDArray[Any], mine: NDArray[Any], skip: Ints, tasks: Ints, factors: Floats, cut: float, most: Any,
    even: int, total: Floats, shift: NDArray[Any],
) -> None:  # fmt: skip
    """Add up the columns of the rows of a bin for other rows, the targets; what a target gets depends on it alone.

    Parameters
    ----------
    Q : (blocks, d, BLOCK), sums : (blocks, BLOCK), lanes : (blocks, c, BLOCK), filled : (blocks,), low, high : (blocks, d)
        Blocks of rows: coordinates, their sums modulo 2^32, columns, the number of rows, boxes. Coordinates are whole
        numbers (int32) or float64.
    A : (targets, d), mine : (targets,), skip : (targets,)
        Coordinates, their sums, and a place among the rows of all blocks that does not count (-1 for none).
    tasks : (t, 4)
        First and last target, first and last block; targets come in fours.
    factors : (g,), cut : float
        k = 2^-(factor * distance); blocks farther than the nearest row by more than ``cut`` are passed over.
    most
        A distance that counts as out of reach.
    even
        Whether 2^-127 of a weight is nothing beside any other; if not, kernels are float64.
    total : (targets, g, c), shift : (targets,)
        Written: the sums times 2^(factor * shift), and the smallest distance; ``most`` where no row counts.
    """
    dtype = Q.dtype
    far = np.empty((TOGETHER, BLOCK), dtype)
    less = np.empty((TOGETHER, 1), dtype)
    bits = np.empty(BLOCK, np.int32)
    powers, near, part = bits.view(np.float32), np.empty(BLOCK, np.float32), np.empty(LANES)
    wide, reach = np.empty(BLOCK), np.empty(TOGETHER)
    for at in range(len(tasks)):
        first, last = tasks[at, 2], tasks[at, 3]
        apart = np.empty((TOGETHER, last - first))
        for i in range(tasks[at, 0], tasks[at, 1], TOGETHER):
            for t in range(TOGETHER):
                b = _boxes(A, i + t, low, high, first, last, apart[t])
                less[t, 0] = most
                total[i + t] = 0
                _measure(Q[b], A, sums[b], mine, i, far)
                reach[t] = (cut + _hide(far[t], filled[b], skip[i + t] - BLOCK * b, most)) * ROUNDED
            for b in range(first, last):
                if _any_within(apart[:, b - first], reach):
                    _measure(Q[b], A, sums[b], mine, i, far)
                for t in range(TOGETHER):
                    own = skip[i + t] - BLOCK * b
                    least = _hide(far[t], filled[b], own, most) if apart[t, b - first] <= reach[t] else most
                    if least < most:
                        to = total[i + t]
                        _collect(far[t], own, least, less[t], lanes[b], factors, to, even, bits, powers, near, wide, part)
            for t in range(TOGETHER):
                shift[i + t] = less[t, 0]


@jit
def _any_within(apart: Floats, reach: Floats) -> bool:
    found = False
    for t in range(TOGETHER):
        found |= apart[t] <= reach[t]
    return found
