"""Rows in score order, the cells they fall in, and the Tally: sums per segment that add."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trueup.kernels import cumulative as sums
from trueup.kernels.sorting import argsort

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trueup._types import AnyArray, FloatArray, Int32Array, IntArray


DENSE_CELLS = 1 << 22  # up to here a table of all cells is cheaper than sorting the rows' cells


@dataclass(frozen=True, eq=False)
class SortedRows:
    """Outcome and score of every row, in score order.

    ``order`` sorts the input, ``step`` numbers the distinct scores, ``e`` is w (y - p), ``w`` is empty if every weight is
    1, and ``real`` is true if outcomes are not probabilities.
    """

    order: IntArray
    step: Int32Array
    e: FloatArray
    p: FloatArray
    w: FloatArray
    real: bool

    def __len__(self) -> int:
        return len(self.order)


def sort_rows(y: FloatArray, p: FloatArray, w: FloatArray | None, *, real: bool) -> SortedRows:
    """Sort rows by score."""
    order = argsort(p)
    scores = p[order]
    step = np.zeros(len(p), np.int32)
    np.cumsum(scores[1:] != scores[:-1], out=step[1:])
    weights = np.empty(0) if w is None else w[order]
    e = y[order] - scores
    if w is not None:
        e *= weights
    return SortedRows(order, step, e, scores, weights, real)


@dataclass(frozen=True, eq=False)
class Cells:
    """The cells ``parent * width + code`` with enough rows, ascending, their rows, and the number of cells with too few."""

    numbers: IntArray
    rows: AnyArray
    thin: int = 0

    def __len__(self) -> int:
        return len(self.numbers)


def find_cells(parent: Int32Array, code: Int32Array, shape: tuple[int, int], min_rows: int) -> Cells:
    """Find the cells with at least ``min_rows`` rows; a negative parent or code excludes a row."""
    height, width = shape
    if _dense(shape, len(parent)):
        numbers, rows, thin, _ = sums.find_dense(parent, code, height, width, min_rows)
        return Cells(numbers, rows, thin)
    cell = parent.astype(np.int64) * width + code
    numbers, counts = np.unique(cell[(parent >= 0) & (code >= 0)], return_counts=True)
    keep = counts >= min_rows
    return Cells(numbers[keep], counts[keep].astype(np.int32), int(len(keep) - keep.sum()))


def slots(size: int, numbers: IntArray) -> Int32Array:
    """Return the index of each cell in ``numbers``, -1 elsewhere; the last entry is for excluded rows."""
    slot = np.full(size + 1, -1, np.int32)
    slot[numbers] = np.arange(len(numbers), dtype=np.int32)
    return slot


def assign(parent: Int32Array, code: Int32Array, shape: tuple[int, int], numbers: IntArray) -> Int32Array:
    """Return the index of the cell of each row, -1 for none."""
    height, width = shape
    if _dense(shape, len(parent)):
        out = np.empty(len(parent), np.int32)
        sums.look_up(parent, code, width, slots(height * width, numbers), out)
        return out
    if not len(numbers):
        return np.full(len(parent), -1, np.int32)
    cell = parent.astype(np.int64) * width + code
    place = np.minimum(np.searchsorted(numbers, cell), len(numbers) - 1)
    known = (parent >= 0) & (code >= 0) & (numbers[place] == cell)
    return np.where(known, place, -1).astype(np.int32)


def _dense(shape: tuple[int, int], rows: int) -> bool:
    return shape[0] * shape[1] <= max(DENSE_CELLS, rows)


@dataclass(frozen=True, eq=False)
class Tally:
    """Running sums of some segments over rows in score order.

    Two tallies add (``first + second``) if every score of the second lies above every score of the first. The columns of
    ``state`` are named in `trueup.kernels.cumulative`.
    """

    rows: IntArray
    state: FloatArray
    weights: FloatArray
    real: bool

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def weight(self) -> FloatArray:
        """Total weight of each segment."""
        return self.weights[:, sums.WEIGHT]

    @property
    def residual(self) -> FloatArray:
        """Sum of w (y - p)."""
        return self.state[:, sums.CUM]

    @property
    def expected(self) -> FloatArray:
        """Sum of w p."""
        return self.state[:, sums.EXPECTED]

    @property
    def span(self) -> FloatArray:
        """Largest minus smallest cumulative difference, C_0 = 0 included: W times ECCE-R."""
        return np.asarray(self.state[:, sums.HIGH] - self.state[:, sums.LOW])

    @property
    def reach(self) -> FloatArray:
        """Largest modulus of the cumulative difference: W times ECCE-MAD."""
        return np.maximum(self.state[:, sums.HIGH], -self.state[:, sums.LOW])

    def take(self, which: IntArray) -> Tally:
        """Return the tally of some segments."""
        return Tally(self.rows[which], self.state[which], self.weights[which], self.real)

    def __add__(self, other: Tally) -> Tally:
        """Add the tally of rows whose scores all lie above these."""
        a, b = self.state, other.state
        out = a + b
        start = a[:, sums.CUM]
        out[:, sums.HIGH] = np.maximum(a[:, sums.HIGH], start + b[:, sums.HIGH])
        out[:, sums.LOW] = np.minimum(a[:, sums.LOW], start + b[:, sums.LOW])
        if self.real:
            # One more jump, where the two meet.
            some_a, some_b = a[:, sums.R_STEPS] > 0, b[:, sums.R_STEPS] > 0
            jump = a[:, sums.R_LAST_MEAN] - b[:, sums.R_FIRST_MEAN]
            meeting = a[:, sums.R_LAST_VAR] + b[:, sums.R_FIRST_VAR] + jump**2
            out[:, sums.R_BETWEEN] += np.where(some_a & some_b, meeting, 0.0)
            for column in (sums.R_FIRST_MEAN, sums.R_FIRST_VAR):
                out[:, column] = np.where(some_a, a[:, column], b[:, column])
            for column in (sums.R_LAST_MEAN, sums.R_LAST_VAR):
                out[:, column] = np.where(some_b, b[:, column], a[:, column])
        else:
            leap = start + b[:, sums.HIGH] - a[:, sums.LOW]
            out[:, sums.RISE] = np.maximum(np.maximum(a[:, sums.RISE], b[:, sums.RISE]), leap)
        return Tally(self.rows + other.rows, out, self.weights + other.weights, self.real)


def concatenate_tallies(tallies: Sequence[Tally]) -> Tally:
    """Concatenate the segments of several tallies."""
    rows, state, weights = (np.concatenate([getattr(t, name) for t in tallies]) for name in ("rows", "state", "weights"))
    return Tally(rows, state, weights, tallies[0].real)


class RunningTally:
    """The tally of the cells ``parent * width + code`` over chunks of rows in ascending score order.

    A score may continue from one chunk to the next, with the same step number.
    """

    def __init__(self, shape: tuple[int, int], cells: Cells, *, real: bool) -> None:
        self.shape, self.cells, self.real = shape, cells, real
        self.rows = np.zeros(len(cells), np.int64)
        self.state = np.zeros((len(cells), sums.REAL_COLUMNS if real else sums.BINARY_COLUMNS))
        self.weights = np.zeros((len(cells), 2))

    def advance(self, rows: SortedRows, parent: Int32Array, code: Int32Array, *, count: bool = True) -> None:
        """Add the rows of the next chunk; ``count`` them too."""
        (height, width), numbers = self.shape, self.cells.numbers
        if _dense(self.shape, len(parent)):
            slot = slots(height * width, numbers)
        else:
            parent = code = assign(parent, code, self.shape, numbers)
            width, slot = 0, slots(len(numbers), np.arange(len(numbers)))
        if count:
            sums.count_rows(parent, code, width, slot, self.rows)
        w = rows.w if len(rows.w) else None
        advance = sums.advance_real if self.real else sums.advance
        advance(parent, code, width, slot, rows.step, rows.e, rows.p, w, self.state, self.weights)

    def finish(self, *, weighted: bool) -> Tally:
        """Return the tally of all chunks; without weights, the number of rows is the weight."""
        (sums.close_real if self.real else sums.close)(self.state)
        if not weighted:
            self.weights[:] = self.rows[:, None]
        return Tally(self.rows, self.state, self.weights, self.real)


def tally(rows: SortedRows, parent: Int32Array, code: Int32Array, shape: tuple[int, int], cells: Cells) -> Tally:
    """Sum every segment among the cells ``parent * width + code`` in one pass over the rows."""
    running = RunningTally(shape, cells, real=rows.real)
    running.rows[:] = cells.rows
    running.advance(rows, parent, code, count=False)
    return running.finish(weighted=len(rows.w) > 0)


def tally_groups(rows: SortedRows, codes: Int32Array, count: int) -> Tally:
    """Tally groups by the code of each input row, empty groups included; rows of code -1 are in none."""
    own = codes[rows.order]
    counts = np.bincount(own[own >= 0], minlength=count).astype(np.int32)
    return tally(rows, np.zeros(len(own), np.int32), own, (1, count), Cells(np.arange(count), counts))


def cross(
    rows: SortedRows, parent: Int32Array, code: Int32Array, shape: tuple[int, int], min_rows: int
) -> tuple[Cells, Tally]:
    """Find the cells ``parent * width + code`` with enough rows, and sum them."""
    if not _dense(shape, len(parent)):
        cells = find_cells(parent, code, shape, min_rows)
        return cells, tally(rows, parent, code, shape, cells)
    w, real = rows.w if len(rows.w) else None, 1 if rows.real else None
    numbers, counts, thin, state, weights = sums.cross(parent, code, *shape, min_rows, rows.step, rows.e, rows.p, w, real)
    if w is None:
        weights[:] = counts[:, None]
    return Cells(numbers, counts, thin), Tally(counts.astype(np.int64), state, weights, rows.real)
