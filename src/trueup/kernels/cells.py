"""Running sums per segment and cell of the score: tallies of parts whose rows interleave add up to a true bound.

A part holds some of the rows, in the order of their scores. Of each segment and cell it keeps what its own rows make of
the cumulative differences from the start of the cell on: their sum T, the highest and the lowest point (0 among them) H and
L, and the largest ascent A. Take several parts that have rows in a cell. After every distinct score the path of all rows is
the sum of the paths of the parts, each of them at one of its own points. So T adds; no point lies above sum H or below
sum L; no ascent exceeds sum A, and no descent sum (H - L). What is sure is the path at the ends of the cell. Where one part
alone has rows, or all rows of the cell have one score, H, L and A are known, and nothing is lost. The plain NumPy twin is
in the tests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numba import uint64

from trueup.kernels._jit import jit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int32]
    Places = NDArray[np.int64]
    Floats = NDArray[np.float64]

__all__ = ["CellTally", "advance", "advance_finer", "bound", "choose", "close", "gather", "sharpen", "spread_curves"]

# Columns of the sums of a cell, and of those of a segment.
TOTAL, TOP, BOTTOM, ASCENT = range(4)
CUM, EXPECTED, VARIANCE, SKEW = range(4)
WEIGHT, WEIGHT2 = range(2)
# What `bound` writes: the ends of the path, its range and its largest ascent, from below and from above, and the largest
# descent from above; and whether nothing was lost.
SURE_HIGH, SURE_LOW, SPAN_FROM, SPAN_TO, RISE_FROM, RISE_TO, FALL_TO, EXACT = range(8)
# Where `_follow` keeps what it knows.
_START, _HIGH, _LOW, _RISE, _FALL, _SURE_HIGH, _SURE_LOW, _SURE_RISE, _LOST = range(9)
SEVERAL = 2  # parts: it does not matter how many


@jit
def _take_in(cell: Floats) -> None:
    """Let the path of a cell take in the step that has ended."""
    total = cell[TOTAL]
    cell[BOTTOM] = min(cell[BOTTOM], total)
    cell[TOP] = max(cell[TOP], total)
    cell[ASCENT] = max(cell[ASCENT], total - cell[BOTTOM])


@jit
def advance(
    parent: Ints, code: Ints, width: int, slot: Ints, step: Ints, e: Floats, p: Floats, w: Floats | None,
    place: Ints, maps: Ints, level: Ints, first: Places, state: Floats, weights: Floats,
    cells: Floats, parts: NDArray[np.uint8], last: Places, at_step: Ints,
) -> None:  # fmt: skip
    """Sum up the rows of a part, in the order of their scores, by segment (as `cumulative.advance` has it) and cell.

    ``place`` is the finest cell of each row; ``maps[level]`` joins finest cells to those of a segment of that level, which
    begin at its ``first`` in ``cells``. Rows of equal score move a cell once: when the next step begins, or in `close`.
    ``last`` and ``at_step`` are the cell and the step under way of each segment, at first -1.
    """
    for i in range(parent.size):
        k = slot[uint64(slot.size - 1 if (parent[i] | code[i]) < 0 else parent[i] * width + code[i])]
        if k < 0:
            continue
        q = p[i]
        v = q * (1.0 - q)
        third = v * (1.0 - 2.0 * q)
        if w is not None:
            a = w[i]
            weights[k, WEIGHT] += a
            weights[k, WEIGHT2] += a * a
            q *= a
            v *= a * a
            third *= a * a * a
        s = state[uint64(k)]
        s[CUM] += e[i]
        s[EXPECTED] += q
        s[VARIANCE] += v
        s[SKEW] += third
        if at_step[k] != step[i]:
            if last[k] >= 0:
                _take_in(cells[uint64(last[k])])
            at_step[k] = step[i]
            last[k] = first[k] + maps[level[k], place[i]]
            parts[uint64(last[k])] = 1
        cells[uint64(last[k]), TOTAL] += e[i]


@jit
def close(cells: Floats, last: Places) -> None:
    """End the step under way of every segment."""
    for k in range(last.size):
        if last[k] >= 0:
            _take_in(cells[last[k]])


@jit
def advance_finer(
    parent: Ints, code: Ints, width: int, slot: Ints, step: Ints, e: Floats,
    place: Ints, ratio: int, maps: Ints, begins: Ints, level: Ints, first: Places, shift: Ints, chosen: Ints,
    starts: Places, cells: Floats, parts: NDArray[np.uint8], last: Places, at_step: Ints,
) -> None:  # fmt: skip
    """Sum up the rows of a part once more, in pieces of the cells that are ``chosen`` (by their number, -1 the others).

    ``place`` counts places that are ``ratio`` times as fine as the finest cells; ``begins[level]`` is where each cell
    begins among the finest. A piece of a chosen cell lies ``places from there >> shift`` behind the cell's ``starts``.
    """
    for i in range(parent.size):
        k = slot[uint64(slot.size - 1 if (parent[i] | code[i]) < 0 else parent[i] * width + code[i])]
        if k < 0:
            continue
        if at_step[k] != step[i]:
            if last[k] >= 0:
                _take_in(cells[uint64(last[k])])
            at_step[k] = step[i]
            cell = maps[level[k], place[i] // ratio]
            number = chosen[first[k] + cell]
            last[k] = -1
            if number >= 0:
                last[k] = starts[number] + ((place[i] - begins[level[k], cell] * ratio) >> shift[k])
                parts[uint64(last[k])] = 1
        if last[k] >= 0:
            cells[uint64(last[k]), TOTAL] += e[i]


@jit
def _follow(s: Floats, cell: Floats, known: bool) -> None:  # noqa: FBT001
    """Let the limits of a path go on over a cell: s has the path at its start, its limits, what is sure, and FALL_TO."""
    top, bottom, ascent = s[_START] + cell[TOP], s[_START] + cell[BOTTOM], cell[ASCENT]
    s[_RISE] = max(s[_RISE], ascent, top - s[_LOW])
    s[_FALL] = max(s[_FALL], cell[TOP] - cell[BOTTOM], s[_HIGH] - bottom)
    s[_HIGH], s[_LOW] = max(s[_HIGH], top), min(s[_LOW], bottom)
    if known:
        s[_SURE_RISE] = max(s[_SURE_RISE], ascent, top - s[_SURE_LOW])
        s[_SURE_HIGH], s[_SURE_LOW] = max(s[_SURE_HIGH], top), min(s[_SURE_LOW], bottom)
    else:
        s[_LOST] = 1.0
    s[_START] += cell[TOTAL]
    s[_SURE_RISE] = max(s[_SURE_RISE], s[_START] - s[_SURE_LOW])
    s[_SURE_HIGH], s[_SURE_LOW] = max(s[_SURE_HIGH], s[_START]), min(s[_SURE_LOW], s[_START])


@jit
def bound(
    first: Places, level: Ints, single: NDArray[np.bool_], cells: Floats, parts: NDArray[np.uint8],
    chosen: Ints, starts: Places, finer: Floats, finer_parts: NDArray[np.uint8], out: Floats,
) -> None:  # fmt: skip
    """Bound the path of every segment: from above and below by all cells, and by what is sure.

    ``single[level]`` says which cells hold rows of one score only. Cells that are ``chosen`` are gone through in pieces,
    which `advance_finer` has summed up; where it is empty, none is.
    """
    s = np.empty(9)
    one = np.empty(4)
    for k in range(level.size):
        s[:] = 0.0
        for c in range(first[k], first[k + 1]):
            number = chosen[c] if chosen.size > 0 else -1
            if number >= 0:
                for piece in range(starts[number], starts[number + 1]):
                    if finer_parts[piece] > 0:
                        _follow(s, finer[piece], known=finer_parts[piece] == 1)
            elif parts[c] > 1 and single[level[k], c - first[k]]:
                total = cells[c, TOTAL]
                one[TOTAL], one[TOP], one[BOTTOM], one[ASCENT] = total, max(total, 0.0), min(total, 0.0), max(total, 0.0)
                _follow(s, one, known=True)
            elif parts[c] > 0:
                _follow(s, cells[c], known=parts[c] == 1)
        span = s[_SURE_HIGH] - s[_SURE_LOW]
        exact = s[_LOST] == 0.0
        out[k, SURE_HIGH], out[k, SURE_LOW], out[k, EXACT] = s[_SURE_HIGH], s[_SURE_LOW], 1.0 if exact else 0.0
        out[k, SPAN_FROM], out[k, SPAN_TO] = span, span if exact else max(span, s[_RISE], s[_FALL])
        out[k, RISE_FROM], out[k, RISE_TO] = s[_SURE_RISE], s[_SURE_RISE] if exact else s[_RISE]
        out[k, FALL_TO] = s[_FALL]


@jit
def sharpen(
    chosen: Places, starts: Places, finer: Floats, finer_parts: NDArray[np.uint8], cells: Floats, parts: NDArray[np.uint8]
) -> None:
    """Write what pieces say of the ends and the ascent of the cells ``chosen`` in place of what was known of them."""
    s = np.empty(9)
    for number in range(chosen.size):
        s[:] = 0.0
        for piece in range(starts[number], starts[number + 1]):
            if finer_parts[piece] > 0:
                _follow(s, finer[piece], known=finer_parts[piece] == 1)
        c = chosen[number]
        cells[c, TOP], cells[c, BOTTOM], cells[c, ASCENT] = s[_HIGH], s[_LOW], s[_RISE]
        if s[_LOST] == 0.0:
            parts[c] = 1


@jit
def choose(
    first: Places, level: Ints, single: NDArray[np.bool_], cells: Floats, parts: NDArray[np.uint8],
    limits: Floats, wanted: NDArray[np.bool_], out: NDArray[np.bool_],
) -> None:  # fmt: skip
    """Say in which cells of some segments the path may pass what is sure of its ends."""
    for k in range(level.size):
        start = 0.0
        for c in range(first[k], first[k + 1]):
            if wanted[k] and parts[c] > 1 and not single[level[k], c - first[k]]:
                above = start + cells[c, TOP] > limits[k, SURE_HIGH]
                out[c] = above or start + cells[c, BOTTOM] < limits[k, SURE_LOW]
            start += cells[c, TOTAL]


@jit
def gather(at: Ints, cell: Ints, e: Floats, p: Floats, w: Floats, out: Floats) -> None:
    """Add the sums of a curve (`cumulative.CURVE_ROWS` and so on) of the rows ``at`` to their cells."""
    for j in range(at.size):
        i = at[j]
        a = w[i] if w.size > 0 else 1.0
        one = out[uint64(cell[i])]
        one[0] += 1.0
        one[1] += a
        one[2] += a * a
        one[3] += a * p[i]
        one[4] += e[i]
        one[5] += e[i] * e[i]


@jit
def spread_curves(first: Places, cells: Floats, total: Floats, bins: Ints, out: Floats) -> None:
    """Join cells to bins of about equal weight, as `cumulative.curve` does with scores; ``out`` comes as zeros."""
    for k in range(total.size):
        seen = 0.0
        for c in range(first[k], first[k + 1]):
            at = min(int(bins[k] * (seen / total[k]) + 1e-9), bins[k] - 1)
            out[k, at] += cells[c]
            seen += cells[c, 1]


@dataclass(eq=False)
class CellTally:
    """Sums of some segments and of their cells; those of two parts add, in any order.

    ``cells`` has a row a cell: T, H, L and A. ``parts`` says whether nobody, one part or several have rows there.
    ``state`` has the sums of every segment: of e = w (y - p), w p, w^2 p (1 - p) and w^3 p (1 - p) (1 - 2 p).
    """

    state: Floats
    weights: Floats
    cells: Floats
    parts: NDArray[np.uint8]

    @classmethod
    def empty(cls, segments: int, cells: int) -> CellTally:
        """Make room."""
        return cls(np.zeros((segments, 4)), np.zeros((segments, 2)), np.zeros((cells, 4)), np.zeros(cells, np.uint8))

    def __add__(self, other: CellTally) -> CellTally:
        state, weights, cells = (getattr(self, name) + getattr(other, name) for name in ("state", "weights", "cells"))
        return CellTally(state, weights, cells, np.minimum(self.parts + other.parts, SEVERAL).astype(np.uint8))

    def __getstate__(self) -> dict[str, Any]:
        """Leave empty cells behind: of few rows there are many."""
        some = np.flatnonzero(self.parts)
        if 2 * len(some) > len(self.parts):
            return dict(self.__dict__)
        kept = {"some": some.astype(np.int32), "cells": self.cells[some], "parts": self.parts[some]}
        return {"state": self.state, "weights": self.weights, "size": len(self.parts)} | kept

    def __setstate__(self, state: dict[str, Any]) -> None:
        size, some = state.pop("size", None), state.pop("some", None)
        if size is not None:
            cells, parts = np.zeros((size, 4)), np.zeros(size, np.uint8)
            cells[some], parts[some] = state["cells"], state["parts"]
            state |= {"cells": cells, "parts": parts}
        self.__dict__.update(state)
