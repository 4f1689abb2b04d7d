"""Rows in score order, the cells they fall in, and the Tally: sums per segment that add."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.kernels import cumulative as sums
from trueup.kernels.sorting import argsort

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Ints = NDArray[np.int32]
    Floats = NDArray[np.float64]

DENSE_CELLS = 1 << 22  # up to here a table of all cells is cheaper than sorting the rows' cells


@dataclass(frozen=True, eq=False)
class SortedRows:
    """Outcome and score of every row, in the order of the scores.

    ``order`` sorts the input, ``step`` numbers the distinct scores, ``e`` is w (y - p), ``w`` is empty where every
    weight is 1, and ``real`` says that the outcomes are not probabilities.
    """

    order: NDArray[np.int64]
    step: Ints
    e: Floats
    p: Floats
    w: Floats
    real: bool

    def __len__(self) -> int:
        return len(self.order)


def sort_rows(y: Floats, p: Floats, w: Floats | None, *, real: bool) -> SortedRows:
    """Sort rows by score.

    Examples
    --------
    >>> sort_rows(np.array([1., 0., 1.]), np.array([.5, .2, .5]), None, real=False).step
    array([0, 1, 1], dtype=int32)
    """
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
    """The cells ``parent * width + code`` with rows enough, ascending, their rows, and how many had too few."""

    numbers: NDArray[np.int64]
    rows: NDArray[Any]
    thin: int = 0

    def __len__(self) -> int:
        return len(self.numbers)


def find_cells(parent: Ints, code: Ints, shape: tuple[int, int], min_rows: int) -> Cells:
    """Find the cells that have at least ``min_rows`` rows; a negative parent or code leaves a row out.

    Examples
    --------
    >>> find_cells(np.array([0, 0, 1], np.int32), np.array([1, 1, -1], np.int32), (2, 2), 1)
    Cells(numbers=array([1]), rows=array([2], dtype=int32), thin=0)
    """
    height, width = shape
    if _dense(shape, len(parent)):
        numbers, rows, thin, _ = sums.find_dense(parent, code, height, width, min_rows)
        return Cells(numbers, rows, thin)
    cell = parent.astype(np.int64) * width + code
    numbers, counts = np.unique(cell[(parent >= 0) & (code >= 0)], return_counts=True)
    keep = counts >= min_rows
    return Cells(numbers[keep], counts[keep].astype(np.int32), int(len(keep) - keep.sum()))


def slots(size: int, numbers: NDArray[np.int64]) -> Ints:
    """Make the table that gives each cell its place in ``numbers``, -1 elsewhere; the last entry is for rows left out."""
    slot = np.full(size + 1, -1, np.int32)
    slot[numbers] = np.arange(len(numbers), dtype=np.int32)
    return slot


def assign(parent: Ints, code: Ints, shape: tuple[int, int], numbers: NDArray[np.int64]) -> Ints:
    """Say for each row which of the ascending cells it is in, -1 for none.

    Examples
    --------
    >>> assign(np.array([0, 0, 1], np.int32), np.array([1, 0, -1], np.int32), (2, 2), np.array([1]))
    array([ 0, -1, -1], dtype=int32)
    """
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

    The tallies of two parts add (``first + second``) where every score of the second lies above every score of the
    first. The columns of ``state`` are named in `trueup.kernels.cumulative`.
    """

    rows: NDArray[np.int64]
    state: Floats
    weights: Floats
    real: bool

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def weight(self) -> Floats:
        """Total weight of each segment."""
        return self.weights[:, sums.WEIGHT]

    @property
    def residual(self) -> Floats:
        """Sum of w (y - p)."""
        return self.state[:, sums.CUM]

    @property
    def expected(self) -> Floats:
        """Sum of w p."""
        return self.state[:, sums.EXPECTED]

    @property
    def span(self) -> Floats:
        """Largest minus smallest cumulative difference, C_0 = 0 included: W times ECCE-R."""
        span: Floats = self.state[:, sums.HIGH] - self.state[:, sums.LOW]
        return span

    @property
    def reach(self) -> Floats:
        """Largest modulus of the cumulative difference: W times ECCE-MAD."""
        return np.maximum(self.state[:, sums.HIGH], -self.state[:, sums.LOW])

    def take(self, which: NDArray[np.int64]) -> Tally:
        """Keep some segments."""
        return Tally(self.rows[which], self.state[which], self.weights[which], self.real)

    def __add__(self, other: Tally) -> Tally:
        """Add the tally of rows whose scores all lie above mine."""
        a, b = self.state, other.state
        out = a + b
        start = a[:, sums.CUM]
        out[:, sums.HIGH] = np.maximum(a[:, sums.HIGH], start + b[:, sums.HIGH])
        out[:, sums.LOW] = np.minimum(a[:, sums.LOW], start + b[:, sums.LOW])
        if self.real:
            _join_steps(a, b, out)
        else:
            leap = start + b[:, sums.HIGH] - a[:, sums.LOW]
            out[:, sums.RISE] = np.maximum(np.maximum(a[:, sums.RISE], b[:, sums.RISE]), leap)
        return Tally(self.rows + other.rows, out, self.weights + other.weights, self.real)


def join(tallies: Sequence[Tally]) -> Tally:
    """Put the segments of several tallies one after the other."""
    rows, state, weights = (np.concatenate([getattr(t, name) for t in tallies]) for name in ("rows", "state", "weights"))
    return Tally(rows, state, weights, tallies[0].real)


def _join_steps(a: Floats, b: Floats, out: Floats) -> None:
    """Join the successive differences of two parts: one more jump where they meet."""
    some_a, some_b = a[:, sums.R_STEPS] > 0, b[:, sums.R_STEPS] > 0
    jump = a[:, sums.R_LAST_MEAN] - b[:, sums.R_FIRST_MEAN]
    meeting = a[:, sums.R_LAST_VAR] + b[:, sums.R_FIRST_VAR] + jump**2
    out[:, sums.R_BETWEEN] += np.where(some_a & some_b, meeting, 0.0)
    for column in (sums.R_FIRST_MEAN, sums.R_FIRST_VAR):
        out[:, column] = np.where(some_a, a[:, column], b[:, column])
    for column in (sums.R_LAST_MEAN, sums.R_LAST_VAR):
        out[:, column] = np.where(some_b, b[:, column], a[:, column])


def _slots(parent: Ints, code: Ints, shape: tuple[int, int], numbers: NDArray[np.int64]) -> tuple[Ints, Ints, int, Ints]:
    """Return parent, code, width and slots as the kernels of `cumulative` take them."""
    height, width = shape
    if _dense(shape, len(parent)):
        return parent, code, width, slots(height * width, numbers)
    segment = assign(parent, code, shape, numbers)
    return segment, segment, 0, slots(len(numbers), np.arange(len(numbers)))


def tally(rows: SortedRows, parent: Ints, code: Ints, shape: tuple[int, int], cells: Cells) -> Tally:
    """Run over the rows once and sum up every segment among the cells ``parent * width + code``."""
    parent, code, width, slot = _slots(parent, code, shape, cells.numbers)
    weights = np.zeros((len(cells), 2))
    state = np.zeros((len(cells), 15 if rows.real else 8))
    advance = sums.advance_real if rows.real else sums.advance
    advance(parent, code, width, slot, rows.step, rows.e, rows.p, rows.w if len(rows.w) else None, state, weights)
    (sums.close_real if rows.real else sums.close)(state)
    return _finish(rows, cells, state, weights)


class RunningTally:
    """The tally of the cells ``parent * width + code`` over chunks of rows in ascending score order.

    A score may go on from one chunk to the next, with the same step number.
    """

    def __init__(self, shape: tuple[int, int], cells: Cells, *, real: bool) -> None:
        self.shape, self.cells, self.real = shape, cells, real
        self.rows = np.zeros(len(cells), np.int64)
        self.state, self.weights = np.zeros((len(cells), 15 if real else 8)), np.zeros((len(cells), 2))

    def advance(self, rows: SortedRows, parent: Ints, code: Ints) -> None:
        """Add the rows of the next chunk."""
        parent, code, width, slot = _slots(parent, code, self.shape, self.cells.numbers)
        sums.count_rows(parent, code, width, slot, self.rows)
        w = rows.w if len(rows.w) else None
        advance = sums.advance_real if self.real else sums.advance
        advance(parent, code, width, slot, rows.step, rows.e, rows.p, w, self.state, self.weights)

    def finish(self, *, weighted: bool) -> Tally:
        """Return the tally of all chunks."""
        (sums.close_real if self.real else sums.close)(self.state)
        if not weighted:
            self.weights[:] = self.rows[:, None]
        return Tally(self.rows, self.state, self.weights, self.real)


def cross(rows: SortedRows, parent: Ints, code: Ints, shape: tuple[int, int], min_rows: int) -> tuple[Cells, Tally]:
    """Find the cells ``parent * width + code`` that have rows enough, and sum them up."""
    if not _dense(shape, len(parent)):
        cells = find_cells(parent, code, shape, min_rows)
        return cells, tally(rows, parent, code, shape, cells)
    run = sums.cross_real if rows.real else sums.cross
    w = rows.w if len(rows.w) else None
    numbers, counts, thin, state, weights = run(parent, code, *shape, min_rows, rows.step, rows.e, rows.p, w)
    cells = Cells(numbers, counts, thin)
    return cells, _finish(rows, cells, state, weights)


def _finish(rows: SortedRows, cells: Cells, state: Floats, weights: Floats) -> Tally:
    """Put a tally together; where every weight is 1, the number of rows is the weight."""
    if not len(rows.w):
        weights[:] = cells.rows[:, None]
    return Tally(cells.rows.astype(np.int64), state, weights, rows.real)
