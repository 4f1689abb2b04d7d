"""Rows in the order of their bins, and what follows from them alone: how they may be summed."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from trueup.kernels.laplace import cuda, halves, line
from trueup.kernels.laplace.tiles import Blocks, fine_enough

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from trueup.kernels.threads import Workers

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

__all__ = ["Rows"]

SCALES = 8  # summed in one pass over the distances
EVEN = 2.0**40  # weights that differ by no more may meet float32, and so may their squares
CLEVER = (0, 1, 4000, 4000)  # by dimensions: bins with more rows than this are summed by `line` or `halves`


class Rows:
    """Rows in the order of their bins, of which there are ``bins``; the first column holds weights."""

    def __init__(self, points: Floats, columns: Floats, numbers: Ints, bins: int) -> None:
        self.bins = bins
        self.starts = np.append(0, np.cumsum(np.bincount(numbers, minlength=bins)))
        self.sorted = bool((numbers[1:] >= numbers[:-1]).all())
        if self.sorted:
            self.order, self.points, self.columns = np.arange(len(numbers)), points, columns
        else:
            self.order = np.argsort(numbers, kind="stable")
            self.points, self.columns = points[self.order], columns[self.order]
        self.weight = self.columns[:, 0]

    @cached_property
    def numbers(self) -> Ints:
        """Give the bin of each row."""
        return np.repeat(np.arange(self.bins), np.diff(self.starts))

    @cached_property
    def blocks(self) -> Blocks:
        """Lay the rows out for sums over all pairs."""
        return Blocks(self.points, self.columns, self.starts)

    @cached_property
    def box(self) -> tuple[Floats, Floats]:
        """Give the lowest and the highest corner of all rows."""
        return self.points.min(axis=0), self.points.max(axis=0)

    @property
    def middle(self) -> Floats:
        """Give the point that a card counts coordinates from."""
        return (self.box[0] + self.box[1]) / 2

    @cached_property
    def clever(self) -> bool:
        """Say whether there is a way that need not meet all pairs."""
        d = self.points.shape[1]
        return d < len(CLEVER) and int(np.diff(self.starts).max()) > CLEVER[d]

    @cached_property
    def even(self) -> bool:
        """Say whether no weight is so small beside another that the range of float32 is too narrow for both."""
        return bool(self.weight.max() <= EVEN * self.weight.min())

    @cached_property
    def totals(self) -> Floats:
        """Add up the columns of each bin."""
        found = np.zeros((self.bins, self.columns.shape[1]))
        some = np.flatnonzero(np.diff(self.starts))
        found[some] = np.add.reduceat(self.columns, self.starts[some], axis=0)
        return found

    def fine(self, scale: float) -> bool:
        """Say whether distances may be whole numbers at this scale."""
        return fine_enough(self.box[1] - self.box[0], scale)

    def on_card(self, scale: float) -> bool:
        """Say whether a graphics card may sum them at this scale."""
        return cuda.fine_enough(self.points, self.middle, scale)

    def parts(self, scales: Floats) -> Iterator[Ints]:
        """Part the scales: those of 0, those at which distances may be whole numbers, the others; not too many at once."""
        fine = np.array([self.fine(float(scale)) for scale in scales], bool)
        for kind in (scales == 0, (scales > 0) & fine, (scales > 0) & ~fine):
            chosen = np.flatnonzero(kind)
            yield from (chosen[start : start + SCALES] for start in range(0, len(chosen), SCALES))

    def cut(self, scale: float, tolerance: float) -> float:
        """Give the distance beyond a point's nearest row at which rows no longer count."""
        ratio = self._spread - np.log(tolerance)
        return float(min(ratio / scale, np.finfo(float).max))

    @cached_property
    def _spread(self) -> float:
        return float(np.log(2 * self.weight.sum()) - np.log(self.weight.min()))

    def low(self, targets: Floats | None, target_starts: Ints | None, scales: Floats, workers: Workers) -> Floats:
        """Sum in one to three dimensions, plainly."""
        way = line if self.points.shape[1] == 1 else halves
        given = (self.points, self.columns, self.starts, targets, target_starts)
        return np.stack([way.sums(*given, float(scale), workers) for scale in scales])
