"""Running sums per segment over rows in score order.

Rows come sorted by score, once. A combination of columns gives each row a cell, ``parent * width + code`` (a negative
part leaves the row out), and ``slot`` gives each cell its segment, or -1. Every segment advances its own cumulative
differences as its rows pass by; rows of equal score (one ``step``) move it once. The plain NumPy twins that define these
kernels are in the tests. Unsigned indices save the test for a negative one, which NumPy's rules would ask for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import int64, uint32, uint64

from trueup.kernels._jit import jit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int32]
    Floats = NDArray[np.float64]

# Columns of the state, one cache line a segment: sums, then the path of the cumulative differences.
CUM, EXPECTED, VARIANCE, SKEW, HIGH, LOW, RISE, STEP = range(8)
# Columns of the state for real outcomes: the same places where the meaning is the same, the sums of squares within and
# between steps, then the step under way, the step before it, and the first one.
R_CUM, R_EXPECTED, R_WITHIN, R_BETWEEN, R_HIGH, R_LOW, R_STEP = range(7)
R_COUNT, R_MEAN, R_SS, R_LAST_MEAN, R_LAST_VAR, R_FIRST_MEAN, R_FIRST_VAR, R_STEPS = range(7, 15)
# Columns of the weight sums and of the curve sums.
WEIGHT, WEIGHT2 = range(2)
CURVE_ROWS, CURVE_WEIGHT, CURVE_WEIGHT2, CURVE_EXPECTED, CURVE_RESIDUAL, CURVE_RESIDUAL2 = range(6)


@jit
def find_dense(
    parent: Ints, code: Ints, height: int, width: int, min_rows: int
) -> tuple[NDArray[np.int64], Ints, int, Ints]:
    """Find the cells with rows enough: their numbers, their rows, how many others had rows, and the slot of every cell.

    A negative parent or code leaves a row out.
    """
    counts = np.zeros(height * width, np.int32)
    for i in range(parent.size):
        if parent[i] >= 0 and code[i] >= 0:
            counts[uint64(parent[i] * width + code[i])] += 1
    kept = 0
    thin = 0
    for cell in range(counts.size):
        if counts[cell] >= min_rows:
            kept += 1
        elif counts[cell] > 0:
            thin += 1
    numbers = np.empty(kept, np.int64)
    rows = np.empty(kept, np.int32)
    at = 0
    for cell in range(counts.size):
        if counts[cell] >= min_rows:
            numbers[at] = cell
            rows[at] = counts[cell]
            counts[cell] = at
            at += 1
        else:
            counts[cell] = -1
    return numbers, rows, thin, counts


@jit
def look_up(parent: Ints, code: Ints, width: int, slot: Ints, out: Ints) -> None:
    """Write the segment of each row, -1 where it is in none."""
    for i in range(parent.size):
        out[i] = slot[uint64(parent[i] * width + code[i])] if parent[i] >= 0 and code[i] >= 0 else -1


@jit
def tally(
    parent: Ints, code: Ints, width: int, slot: Ints, step: Ints, e: Floats, p: Floats, w: Floats | None,
    state: Floats, sums: Floats,
) -> None:  # fmt: skip
    """Advance the state of every segment over all rows: binary outcomes.

    ``e`` is w (y - p). The path (HIGH, LOW and RISE, the largest ascent from an earlier point) takes in the cumulative
    difference when the next step begins, so that tied scores count as one. ``w`` is None where every weight is 1: the
    kernel is then compiled without the branch.
    """
    for i in range(parent.size):
        if parent[i] < 0 or code[i] < 0:
            continue
        k = slot[uint64(parent[i] * width + code[i])]
        if k < 0:
            continue
        s = state[uint64(k)]
        total = s[CUM]
        q = p[i]
        v = q * (1.0 - q)
        third = v * (1.0 - 2.0 * q)
        if w is not None:
            a = w[i]
            sums[k, WEIGHT] += a
            sums[k, WEIGHT2] += a * a
            q *= a
            v *= a * a
            third *= a * a * a
        # Four neighbours are read, added to and written together: one instruction each, where the machine has it.
        following, expected, variance, skew = total + e[i], s[EXPECTED] + q, s[VARIANCE] + v, s[SKEW] + third
        if s[STEP] != step[i]:
            s[STEP] = step[i]
            low = s[LOW] if s[LOW] < total else total
            rise = total - low
            s[LOW] = low
            s[HIGH] = s[HIGH] if s[HIGH] > total else total
            s[RISE] = s[RISE] if s[RISE] > rise else rise
        s[CUM], s[EXPECTED], s[VARIANCE], s[SKEW] = following, expected, variance, skew
    for k in range(state.shape[0]):
        s = state[k]
        s[LOW] = min(s[LOW], s[CUM])
        s[HIGH] = max(s[HIGH], s[CUM])
        s[RISE] = max(s[RISE], s[CUM] - s[LOW])


@jit
def _close_step(s: Floats) -> None:
    """End the step under way of one segment with real outcomes."""
    s[R_LOW] = min(s[R_LOW], s[R_CUM])
    s[R_HIGH] = max(s[R_HIGH], s[R_CUM])
    variance = s[R_SS] / s[R_COUNT]
    s[R_WITHIN] += s[R_SS]
    if s[R_STEPS] == 0:
        s[R_FIRST_MEAN] = s[R_MEAN]
        s[R_FIRST_VAR] = variance
    else:
        jump = s[R_MEAN] - s[R_LAST_MEAN]
        s[R_BETWEEN] += variance + s[R_LAST_VAR] + jump * jump
    s[R_LAST_MEAN] = s[R_MEAN]
    s[R_LAST_VAR] = variance
    s[R_STEPS] += 1
    s[R_COUNT] = 0.0
    s[R_MEAN] = 0.0
    s[R_SS] = 0.0


@jit
def tally_real(
    parent: Ints, code: Ints, width: int, slot: Ints, step: Ints, e: Floats, p: Floats, w: Floats | None,
    state: Floats, sums: Floats,
) -> None:  # fmt: skip
    """Advance the state of every segment over all rows: real outcomes.

    Beside the path it keeps what the variance by successive differences needs: per step the mean and the sum of squares
    about it of e, over all steps the sum of squares within and the squared jumps between neighbours.
    """
    for i in range(parent.size):
        if parent[i] < 0 or code[i] < 0:
            continue
        k = slot[uint64(parent[i] * width + code[i])]
        if k < 0:
            continue
        s = state[uint64(k)]
        if s[R_STEP] != step[i]:
            s[R_STEP] = step[i]
            if s[R_COUNT] > 0:
                _close_step(s)
        s[R_CUM] += e[i]
        s[R_COUNT] += 1.0
        off = e[i] - s[R_MEAN]
        s[R_MEAN] += off / s[R_COUNT]
        s[R_SS] += off * (e[i] - s[R_MEAN])
        if w is not None:
            s[R_EXPECTED] += w[i] * p[i]
            sums[k, WEIGHT] += w[i]
            sums[k, WEIGHT2] += w[i] * w[i]
        else:
            s[R_EXPECTED] += p[i]
    for k in range(state.shape[0]):
        if state[k, R_COUNT] > 0:
            _close_step(state[k])


@jit
def cross(
    parent: Ints, code: Ints, height: int, width: int, min_rows: int,
    step: Ints, e: Floats, p: Floats, w: Floats | None,
) -> tuple[NDArray[np.int64], Ints, int, Floats, Floats]:  # fmt: skip
    """Find the cells of a combination and sum them up, binary outcomes; one call, so that threads never wait."""
    numbers, rows, thin, slot = find_dense(parent, code, height, width, min_rows)
    state = np.zeros((numbers.size, 8))
    sums = np.zeros((numbers.size, 2))
    tally(parent, code, width, slot, step, e, p, w, state, sums)
    return numbers, rows, thin, state, sums


@jit
def cross_real(
    parent: Ints, code: Ints, height: int, width: int, min_rows: int,
    step: Ints, e: Floats, p: Floats, w: Floats | None,
) -> tuple[NDArray[np.int64], Ints, int, Floats, Floats]:  # fmt: skip
    """Find the cells of a combination and sum them up, real outcomes."""
    numbers, rows, thin, slot = find_dense(parent, code, height, width, min_rows)
    state = np.zeros((numbers.size, 15))
    sums = np.zeros((numbers.size, 2))
    tally_real(parent, code, width, slot, step, e, p, w, state, sums)
    return numbers, rows, thin, state, sums


@jit
def renumber(wanted: Ints, column: int, move: Ints, place: Ints) -> int:
    """Number the codes of one column that some wanted segment has, from code -1 up; all others share the last number.

    The map is written to ``move`` and the number of each wanted segment to ``place``; the count of numbers is given.
    """
    move[:] = -1
    known = 0
    for j in range(wanted.shape[0]):
        at = wanted[j, column] + 1
        if move[at] < 0:
            move[at] = known
            known += 1
        place[j] = move[at]
    for at in range(move.size):
        if move[at] < 0:
            move[at] = known
    return known + 1


@jit
def scan(
    first: Ints, move_first: Ints, second: Ints, move_second: Ints, slot: Ints, width: int, at: Ints, ids: Ints
) -> np.int64:
    """Write the places and segments of the rows of two columns that are in some segment; give their number.

    There is no branch to guess wrong: every row is written, and most are written over.
    """
    found = int64(0)
    for i in range(first.size):
        k = slot[uint64(move_first[uint32(first[i] + 1)] * width + move_second[uint32(second[i] + 1)])]
        at[uint64(found)] = i
        ids[uint64(found)] = k
        found += int64(k >= 0)
    return found


@jit
def narrow(code: Ints, move: Ints, slot: Ints, width: int, at: Ints, ids: Ints) -> np.int64:
    """Keep, in place, those of the found rows that a third column leaves in some segment; give their number."""
    found = int64(0)
    for j in range(at.size):
        i = at[j]
        k = slot[uint64(ids[j] * width + move[uint32(code[i] + 1)])]
        at[uint64(found)] = i
        ids[uint64(found)] = k
        found += int64(k >= 0)
    return found


@jit
def draw_paths(at: Ints, ids: Ints, step: Ints, e: Floats, span: Floats, rise: Floats, work: Floats) -> None:
    """Follow the path of every segment for several draws of the outcomes.

    ``at`` and ``ids`` are collected rows, ``e`` is (draws, rows); ``span`` and ``rise`` (draws, segments) are written;
    ``work`` is (segments, 5) scratch.
    """
    for d in range(e.shape[0]):
        work[:] = 0.0
        work[:, 4] = -1.0
        for j in range(ids.size):
            i = at[j]
            s = work[ids[j]]
            if s[4] != step[i]:
                s[4] = step[i]
                s[1] = max(s[1], s[0])
                s[2] = min(s[2], s[0])
                s[3] = max(s[3], s[0] - s[2])
            s[0] += e[d, i]
        for k in range(work.shape[0]):
            s = work[k]
            s[1] = max(s[1], s[0])
            s[2] = min(s[2], s[0])
            span[d, k] = s[1] - s[2]
            rise[d, k] = max(s[3], s[0] - s[2])


@jit
def curves(
    at: Ints, ids: Ints, step: Ints, e: Floats, p: Floats, w: Floats, total: Floats, bins: Ints,
    out: Floats, seen: Floats,
) -> None:  # fmt: skip
    """Sum up equal-mass bins of the scores of each segment; rows of equal score stay together.

    ``at`` and ``ids`` are collected rows; ``total`` is the weight of each segment and ``bins`` its number of bins.
    ``out`` is (segments, most bins, 6) and ``seen`` (segments, 3) scratch, both zero: weight so far, the step under way
    counted from 1, its bin.
    """
    weighted = w.size > 0
    for j in range(ids.size):
        i = at[j]
        k = ids[j]
        if seen[k, 1] != step[i] + 1:
            seen[k, 1] = step[i] + 1
            # A hair is added so that a boundary met exactly does not depend on rounding.
            place = int(bins[k] * (seen[k, 0] / total[k]) + 1e-9)
            seen[k, 2] = min(place, bins[k] - 1)
        a = w[i] if weighted else 1.0
        cell = out[k, int(seen[k, 2])]
        cell[CURVE_ROWS] += 1.0
        cell[CURVE_WEIGHT] += a
        cell[CURVE_WEIGHT2] += a * a
        cell[CURVE_EXPECTED] += a * p[i]
        cell[CURVE_RESIDUAL] += e[i]
        cell[CURVE_RESIDUAL2] += e[i] * e[i]
        seen[k, 0] += a
