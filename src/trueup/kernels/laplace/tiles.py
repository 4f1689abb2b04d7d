"""Sums over all pairs of rows of a bin, for any number of dimensions: how rows are laid out, measured and shared out.

Rows of a bin are ordered by halving it along its widest side until a block is left, so that blocks are compact: two blocks
whose boxes are too far apart to matter to any ratio are passed over. Memory is a constant number of copies of the rows.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trueup.kernels.laplace.pairs import BLOCK, TOGETHER, among, between

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trueup.kernels.threads import Workers

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

__all__ = ["Blocks", "sum_among", "sum_at"]

STEPS = 2.0**31 - 2**16  # no distance is longer; the rest is room for rounding
FINE = 7e-7  # how far three standard deviations of the rounding of a distance may move a kernel's value, as a share
MOST_STEPS = np.int32(2**31 - 1)
MOST_SHIFT = 30
PARTS = 256  # of the targets, at most
COPIES = 2**28  # bytes of partial sums, at most, where there is a choice
LOG2E = math.log2(math.e)


class Laid(NamedTuple):
    """Coordinates in whole steps or in float64: by row, by block, their sums modulo 2^32, and the boxes of the blocks."""

    rows: NDArray[Any]  # (places, d)
    lanes: NDArray[Any]  # (blocks, d, BLOCK)
    totals: NDArray[Any]  # (places,)
    low: NDArray[Any]  # (blocks, d)
    high: NDArray[Any]


class Blocks:
    """Rows in blocks, each of one bin; laid out on first use, and kept.

    Parameters
    ----------
    points : ndarray, shape (n, d)
    columns : ndarray, shape (n, c)
    starts : ndarray, shape (bins + 1,)
        Where the rows of each bin begin.

    Attributes
    ----------
    order, real : ndarray, shape (places,)
        The row at each place, and whether it is one: places that only fill a block repeat a row.
    firsts : ndarray, shape (bins + 1,)
        The first block of each bin.
    points : ndarray, shape (places, d)
        d is padded with zeros.
    """

    def __init__(self, points: Floats, columns: Floats, starts: Ints) -> None:
        self.n, self.columns = len(points), columns
        some = np.flatnonzero(np.diff(starts))  # most of very many bins are empty
        bins = [_compact(points, np.arange(*starts[k : k + 2])) for k in some]
        many = np.zeros(len(starts) - 1, np.int64)
        many[some] = [len(parts) for parts in bins]
        self.firsts = np.append(0, np.cumsum(many))
        parts = [part for one in bins for part in one]
        self.order = np.concatenate([np.append(part, np.repeat(part[-1:], BLOCK - len(part))) for part in parts])
        self.real = np.concatenate([np.arange(BLOCK) < len(part) for part in parts])
        d = points.shape[1]
        self.points = np.zeros((len(self.order), -(-d // TOGETHER) * TOGETHER))
        self.points[:, :d] = points[self.order]
        self.low, self.high = self.points.min(axis=0), self.points.max(axis=0)
        self.step = step_of(self.high - self.low)

    @cached_property
    def steps(self) -> Laid:
        """Lay out coordinates in whole steps."""
        return self.lay(self.in_steps(self.points, self.step))

    @cached_property
    def reals(self) -> Laid:
        """Lay out coordinates as they are."""
        return self.lay(self.points)

    @cached_property
    def lanes(self) -> Floats:
        """Give the columns, (blocks, c, BLOCK); 0 at places without a row."""
        return _in_blocks(np.where(self.real[:, None], self.columns[self.order], 0))

    @cached_property
    def filled(self) -> Ints:
        """Count the rows of each block."""
        return np.asarray(self.real.reshape(-1, BLOCK).sum(axis=1))

    @cached_property
    def place(self) -> Ints:
        """Give the place of each row."""
        place = np.empty(self.n, np.int64)
        place[self.order[self.real]] = np.flatnonzero(self.real)
        return place

    def in_steps(self, points: Floats, step: float) -> NDArray[np.int32]:
        """Count coordinates in steps."""
        found: NDArray[np.int32] = np.rint((points - self.low) / step).astype(np.int32)
        return found

    def lay(self, rows: NDArray[Any]) -> Laid:
        """Lay out coordinates."""
        cut = rows.reshape(-1, BLOCK, rows.shape[1])
        low, high = (np.ascontiguousarray(side) for side in (cut.min(axis=1), cut.max(axis=1)))
        return Laid(rows, _in_blocks(rows), _totals(rows), low, high)


def _compact(points: Floats, rows: Ints) -> list[Ints]:
    """Split rows into blocks along the widest side."""
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


def step_of(ranges: Floats) -> float:
    """Give the step in which coordinates of such ranges are counted."""
    return float(ranges.sum()) / STEPS or 1.0


def fine_enough(ranges: Floats, scale: float) -> bool:
    """Say whether coordinates of such ranges may be counted in whole steps at this scale."""
    return _error(step_of(ranges), scale, len(ranges)) <= FINE


def _error(step: float, scale: float, d: int) -> float:
    """Give three standard deviations of what the rounding of coordinates to steps adds to a distance times the scale.

    On a grid of hundreds of dimensions roundings do not cancel: sums may then be off by a few millionths; their ratios,
    in which what all distances share is gone, are not.
    """
    return 3 * math.sqrt(d / 6) * step * scale


def _in_blocks(values: NDArray[Any]) -> NDArray[Any]:
    """Turn (places, k) into (blocks, k, BLOCK)."""
    return np.ascontiguousarray(values.reshape(-1, BLOCK, values.shape[1]).transpose(0, 2, 1))


def _totals(rows: NDArray[Any]) -> NDArray[Any]:
    """Add up the coordinates of each row, modulo 2^32; real ones have no use for it."""
    if rows.dtype != np.int32:
        return np.zeros(len(rows))
    return np.asarray(rows.sum(axis=1, dtype=np.int64).astype(np.int32))


def unit_of(columns: Floats) -> float:
    """Give a power of two that brings the largest number near 1: float32 has no room for very large ones."""
    return 2.0 ** -math.frexp(float(np.abs(columns).max()))[1]


def sum_among(blocks: Blocks, scales: Floats, reach: float, workers: Workers) -> Floats:
    """Sum the columns of all other rows of each row's bin, shape (scales, n, c), plainly: sums may vanish.

    ``reach`` is the distance beyond which blocks of rows do not matter. Scales must be `fine_enough`.
    """
    step, shift = _binary_step(blocks, scales)
    laid, columns = blocks.steps if shift < 0 else blocks.lay(blocks.in_steps(blocks.points, step)), blocks.columns
    unit = unit_of(columns)
    C = np.where(blocks.real[:, None], columns[blocks.order] * unit, 0).astype(np.float32)
    shape = (len(scales), columns.shape[1], len(C))
    copies = int(np.clip(COPIES // (8 * math.prod(shape)), 4, 64))
    factors = scales * step * LOG2E
    given = laid.lanes, laid.rows, laid.totals, _in_blocks(C), C, laid.low, laid.high

    def work(part: Ints) -> Floats:
        out = np.zeros(shape)
        among(*given, part, factors, shift, reach / step, out)
        return out

    found = np.zeros(shape)
    for part in workers.map(work, _shares(blocks.firsts, copies)):
        found += part
    return np.asarray(found[:, :, blocks.place].transpose(0, 2, 1) / unit)


def _binary_step(blocks: Blocks, scales: Floats) -> tuple[float, int]:
    """Make the step a little longer, so that a distance times the one scale is its number of steps over a power of two.

    Gives the step and that power, -1 where there are several scales, or such steps would be too long.
    """
    factor = float(scales[0]) * blocks.step * LOG2E
    shift = math.floor(-math.log2(factor)) if factor > 0 else 0
    step = 2.0**-shift / (float(scales[0]) * LOG2E)
    fine = _error(step, float(scales[0]), len(blocks.low)) <= FINE
    return (step, shift) if len(scales) == 1 and 0 < shift <= MOST_SHIFT and fine else (blocks.step, -1)


def _shares(firsts: Ints, parts: int) -> list[Ints]:
    """Share out the blocks, each with the last block of its bin, so that every part has as many pairs of blocks."""
    stops = np.repeat(firsts[1:], np.diff(firsts))
    rows = np.column_stack([np.arange(len(stops)), stops])
    pairs = np.cumsum(stops - rows[:, 0])
    cuts = np.searchsorted(pairs, np.arange(1, parts) * pairs[-1] / parts)
    return [part for part in np.split(rows, np.unique(cuts)) if len(part)]


def sum_at(
    blocks: Blocks, targets: Floats, target_starts: Ints, scales: Floats, cut: float, workers: Workers,
    *, fine: bool, even: bool, skip: Ints | None = None,
) -> tuple[Floats, Floats]:  # fmt: skip
    """Sum the columns of each target's bin: totals (scales, targets, columns) and shifts (targets,), see `Sums`.

    Blocks of rows farther than a target's nearest row by more than ``cut`` are passed over. ``fine`` says that distances
    may be whole numbers, ``even`` that weights are of one size, more or less. ``skip`` names a row that does not count for
    each target.
    """
    d, low, high = targets.shape[1], blocks.low, blocks.high
    padded = np.zeros((len(targets), len(low)))
    # Outside the box of all rows a coordinate adds the same to every distance: it cancels.
    padded[:, :d] = np.clip(targets, low[:d], high[:d])
    outside = np.abs(targets - padded[:, :d]).sum(axis=1)
    unit = blocks.step if fine else 1.0
    given = blocks.in_steps(padded, unit) if fine else padded
    total, shift = _run(blocks, given, target_starts, scales * unit, cut / unit, workers, skip, even=even)
    return total, np.where(np.isfinite(shift), shift * unit + outside, 0.0)


def _run(
    blocks: Blocks, targets: NDArray[Any], target_starts: Ints, scales: Floats, cut: float, workers: Workers,
    skip: Ints | None, *, even: bool,
) -> tuple[Floats, Floats]:  # fmt: skip
    """Share the targets out, four at a time."""
    order, tasks = _fours(target_starts, blocks.firsts)
    A = np.ascontiguousarray(targets[order])
    laid, most = (blocks.steps, MOST_STEPS) if A.dtype == np.int32 else (blocks.reals, np.inf)
    left_out = np.full(len(order), -1) if skip is None else blocks.place[skip[order]]
    total = np.zeros((len(order), len(scales), blocks.columns.shape[1]))
    shift = np.full(len(order), most, A.dtype)
    rows = laid.lanes, laid.totals.reshape(-1, BLOCK), blocks.lanes, blocks.filled, laid.low, laid.high
    given = *rows, A, _totals(A), left_out

    def work(part: Ints) -> None:
        between(*given, part, scales * LOG2E, cut, most, int(even), total, shift)

    if len(tasks):
        workers.map(work, np.array_split(tasks, min(len(tasks), PARTS)))
    found, nearest = np.zeros((len(targets), *total.shape[1:])), np.full(len(targets), np.inf)
    found[order] = total
    nearest[order] = np.where(shift < most, shift, np.inf)
    return found.transpose(1, 0, 2), nearest


def _fours(target_starts: Ints, block_starts: Ints) -> tuple[Ints, Ints]:
    """List the targets of each bin in fours, the last one repeated, and what each four is to meet."""
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
