"""Sums over all pairs of rows of a bin, for any number of dimensions: how rows are laid out, measured and shared out.

Rows of a bin are ordered by halving it along its widest side until a block is left, so that blocks are compact: two blocks
whose boxes are too far apart to matter to any ratio are passed over. Memory is a constant number of copies of the rows.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trueup.kernels.laplace.pairs import BLOCK, TOGETHER, among, between

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trueup.kernels.threads import Workers

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

__all__ = ["Blocks", "fine_enough", "lay_out", "sum_among", "sum_at"]

STEPS = 2.0**31 - 2**16  # no distance is longer; the rest is room for rounding
FINE = 7e-7  # how far three standard deviations of the rounding of a distance may move a kernel's value, as a share
MOST_STEPS = np.int32(2**31 - 1)
COPIES = 2**28  # bytes of partial sums, at most, where there is a choice
LOG2E = math.log2(math.e)


class Blocks(NamedTuple):
    """Rows in blocks, each of one bin.

    Attributes
    ----------
    order : (rows,)
        The row at each place; places that only fill a block repeat one.
    real : (rows,)
        Whether a place holds a row.
    starts : (bins + 1,)
        The first block of each bin.
    points : (rows, d)
        Coordinates, of d padded with zeros.
    """

    order: Ints
    real: NDArray[np.bool_]
    starts: Ints
    points: Floats


def lay_out(points: Floats, starts: Ints) -> Blocks:
    """Order the rows of each bin, and fill up its last block."""
    parts, counts = [], []
    for start, stop in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        whole = _compact(points, np.arange(start, stop))
        parts += whole
        counts.append(len(whole))
    rows = [np.append(part, np.repeat(part[-1:], BLOCK - len(part))) for part in parts]
    real = [np.arange(BLOCK) < len(part) for part in parts]
    order = np.concatenate(rows) if rows else np.zeros(0, np.int64)
    d = points.shape[1]
    padded = np.zeros((len(order), -(-d // TOGETHER) * TOGETHER))
    padded[:, :d] = points[order]
    return Blocks(order, np.concatenate(real) if real else np.zeros(0, bool), np.append(0, np.cumsum(counts)), padded)


def _compact(points: Floats, rows: Ints) -> list[Ints]:
    """Split rows into blocks along the widest side."""
    done, stack = [], [rows] if len(rows) else []
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


def step_of(points: Floats) -> tuple[Floats, float]:
    """Give the lowest corner of the rows, and the step in which coordinates are counted."""
    low = points.min(axis=0)
    return low, float((points.max(axis=0) - low).sum()) / STEPS or 1.0


def fine_enough(points: Floats, scale: float) -> bool:
    """Say whether coordinates may be counted in whole steps at this scale."""
    with np.errstate(over="ignore"):
        error = 3 * step_of(points)[1] * scale * math.sqrt(points.shape[1] / 6)
    return bool(error <= FINE)


def _in_blocks(values: NDArray[Any]) -> NDArray[Any]:
    """Turn (rows, k) into (blocks, k, BLOCK)."""
    return np.ascontiguousarray(values.reshape(-1, BLOCK, values.shape[1]).transpose(0, 2, 1))


def _in_steps(points: Floats, low: Floats, step: float) -> NDArray[np.int32]:
    return np.rint((points - low) / step).astype(np.int32)


def _total(steps: NDArray[np.int32]) -> NDArray[np.int32]:
    """Add up the coordinates of each row, modulo 2^32."""
    found: NDArray[np.int32] = steps.sum(axis=1, dtype=np.int64).astype(np.int32)
    return found


def _boxes(A: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    cut = A.reshape(-1, BLOCK, A.shape[1])
    return np.ascontiguousarray(cut.min(axis=1)), np.ascontiguousarray(cut.max(axis=1))


def sum_among(blocks: Blocks, columns: Floats, scales: Floats, reach: float, workers: Workers) -> Floats:
    """Sum the columns of all other rows of each row's bin, shape (scales, rows, columns), plainly: sums may vanish.

    ``reach`` is the distance beyond which blocks of rows do not matter. Scales must be `fine_enough`.
    """
    low, step = step_of(blocks.points)
    A = _in_steps(blocks.points, low, step)
    unit = 2.0 ** -math.frexp(float(np.abs(columns).max()))[1]
    C = np.where(blocks.real[:, None], columns[blocks.order] * unit, 0).astype(np.float32)
    shape = (len(scales), columns.shape[1], len(A))
    copies = int(np.clip(COPIES // (8 * math.prod(shape)), 4, 64))
    factors = scales * step * LOG2E
    laid = _in_blocks(A), A, _total(A), _in_blocks(C), C, *_boxes(A)

    def work(part: Ints) -> Floats:
        out = np.zeros(shape)
        among(*laid, part, factors, reach / step, out)
        return out

    found = np.zeros(shape)
    for part in workers.map(work, _shares(blocks.starts, copies)):
        found += part
    total = np.empty((shape[0], int(blocks.real.sum()), shape[1]))
    total[:, blocks.order[blocks.real]] = found[:, :, blocks.real].transpose(0, 2, 1) / unit
    return total


def _shares(starts: Ints, parts: int) -> list[Ints]:
    """Share out the blocks, each with the last block of its bin, so that every part has as many pairs of blocks."""
    stops = np.repeat(starts[1:], np.diff(starts))
    rows = np.column_stack([np.arange(len(stops)), stops])
    pairs = np.cumsum(stops - rows[:, 0])
    cuts = np.searchsorted(pairs, np.arange(1, parts) * pairs[-1] / parts)
    return [part for part in np.split(rows, np.unique(cuts)) if len(part)]


def sum_at(
    blocks: Blocks, columns: Floats, targets: Floats, target_starts: Ints, scales: Floats, cut: float, workers: Workers,
    *, skip: Ints | None = None,
) -> tuple[Floats, Floats]:  # fmt: skip
    """Sum the columns of each target's bin: totals (scales, targets, columns) and shifts (targets,), see `Sums`.

    Blocks of rows farther than a target's nearest row by more than ``cut`` are passed over. ``skip`` names a row that does
    not count for each target, or -1.
    """
    d, real = targets.shape[1], not fine_enough(blocks.points[:, : targets.shape[1]], float(scales.max()))
    low, step = step_of(blocks.points)
    high = blocks.points.max(axis=0)
    padded = np.zeros((len(targets), len(low)))
    # Outside the box of all rows a coordinate adds the same to every distance: it cancels.
    padded[:, :d] = np.clip(targets, low[:d], high[:d])
    outside = np.abs(targets - padded[:, :d]).sum(axis=1)
    B, T = (blocks.points, padded) if real else (_in_steps(blocks.points, low, step), _in_steps(padded, low, step))
    unit = 1.0 if real else step
    total, shift = _run(blocks, columns, B, T, target_starts, scales * unit, cut / unit, workers, skip)
    return total, np.where(np.isfinite(shift), shift * unit + outside, 0.0)


def _run(
    blocks: Blocks, columns: Floats, B: NDArray[Any], T: NDArray[Any], target_starts: Ints, scales: Floats, cut: float,
    workers: Workers, skip: Ints | None,
) -> tuple[Floats, Floats]:  # fmt: skip
    """Share the targets out, four at a time."""
    order, tasks = _fours(target_starts, blocks.starts)
    A = np.ascontiguousarray(T[order])
    most = MOST_STEPS if B.dtype == np.int32 else np.inf
    place = np.full(len(blocks.order), -1)
    place[blocks.order[blocks.real]] = np.flatnonzero(blocks.real)
    left_out = np.full(len(order), -1) if skip is None else np.where(skip[order] >= 0, place[skip[order]], -1)
    sums = _total(B) if B.dtype == np.int32 else np.zeros(len(B))
    mine = _total(A) if B.dtype == np.int32 else np.zeros(len(A))
    lanes = _in_blocks(np.where(blocks.real[:, None], columns[blocks.order], 0))
    filled = blocks.real.reshape(-1, BLOCK).sum(axis=1)
    total = np.zeros((len(order), len(scales), columns.shape[1]))
    shift = np.full(len(order), most, B.dtype)
    laid = _in_blocks(B), sums.reshape(-1, BLOCK), lanes, filled, *_boxes(B), A, mine, left_out

    def work(part: Ints) -> None:
        between(*laid, part, scales * LOG2E, cut, most, total, shift)

    if len(tasks):
        workers.map(work, np.array_split(tasks, min(len(tasks), 256)))
    found, nearest = np.zeros((len(T), *total.shape[1:])), np.full(len(T), np.inf)
    found[order] = total
    nearest[order] = np.where(shift < most, shift, np.inf)
    return found.transpose(1, 0, 2), nearest


def _fours(target_starts: Ints, block_starts: Ints) -> tuple[Ints, Ints]:
    """List the targets of each bin in fours, the last one repeated, and what each four is to meet."""
    order, tasks, done = [np.zeros(0, np.int64)], [np.zeros((0, 4), np.int64)], 0
    for k, (start, stop) in enumerate(zip(target_starts[:-1].tolist(), target_starts[1:].tolist(), strict=True)):
        if stop > start and block_starts[k + 1] > block_starts[k]:
            fours = -(-(stop - start) // TOGETHER)
            order.append(np.minimum(np.arange(start, start + TOGETHER * fours), stop - 1))
            first = done + TOGETHER * np.arange(fours)
            blocks = np.tile(block_starts[k : k + 2], (fours, 1))
            tasks.append(np.column_stack([first, first + TOGETHER, blocks]))
            done += TOGETHER * fours
    return np.concatenate(order), np.concatenate(tasks)
