"""Sums in one to three dimensions by divide and conquer over whole arrays, one level of halves at a time: for a GPU.

The method is that of `sweeps`: rows are halved in x, within these in y, and sweeps in the order of z sum the opposite
quarters of all halves of a level at once. Cells of few rows are summed pair by pair. Arrays are those of torch or of NumPy.
Sums are float64, except pair by pair; those of distances that underflow become 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

X_BITS = 15  # of the number of rows of a cell in x that is summed pair by pair
Y_BITS = 13  # and in y, where pairs are those across the cut in x


class ArrayTools(NamedTuple):
    """What differs between libraries of arrays."""

    xp: Any  # torch or numpy
    argsort: Callable[[Any], Any]  # stable
    repeat: Callable[[Any, Any], Any]


class Padding(NamedTuple):
    """Rows sorted by bin, each bin padded to full tiles."""

    index: Any  # the row at each position; padding repeats a row
    real: Any  # whether a position is no padding
    firsts: Any  # the first tile of each bin, and the number of tiles


def count_up(like: Any, tools: ArrayTools) -> Any:
    """Return 0, 1, 2, ..., as many as ``like`` has."""
    return tools.xp.cumsum(tools.xp.ones_like(like), 0) - 1


def bounds(counts: Any, tools: ArrayTools) -> Any:
    """Return 0 and the cumulative sums of ``counts``."""
    return tools.xp.concatenate([counts[:1] * 0, tools.xp.cumsum(counts, 0)])


def pad(counts: Any, side: int, tools: ArrayTools) -> Padding:
    """Pad bins of ``counts`` rows to tiles of ``side`` positions."""
    tiles = (counts + side - 1) // side
    bins = tools.repeat(count_up(counts, tools), tiles * side)
    firsts = bounds(tiles, tools)
    within = count_up(bins, tools) - side * firsts[bins]
    real = within < counts[bins]
    return Padding(bounds(counts, tools)[bins] + within * real, real, firsts)


def plan(rows: Any, targets: Any | None, run: int, tools: ArrayTools, *, across: bool = False) -> Any:
    """Return tasks (tile, first, last): a tile of targets and a run of at most ``run`` tiles of rows, ``last`` excluded.

    ``rows`` and ``targets`` are the first tiles of each bin. Without targets, each pair of tiles of a bin is met once; if
    ``across``, those of each bin of even number with the next bin.
    """
    many = (rows if targets is None else targets)[1:] - (rows if targets is None else targets)[:-1]
    bins = tools.repeat(count_up(many, tools), many)
    tile = count_up(bins, tools)
    first, last = (tile if targets is None else rows[bins]), rows[bins + 1]
    if across:
        first, last = last, tools.xp.where(bins % 2 == 0, rows[tools.xp.clip(bins + 2, 0, len(many))], last)
    runs = (last - first + run - 1) // run
    of = tools.repeat(tile, runs)
    start = first[of] + run * (count_up(of, tools) - bounds(runs, tools)[of])
    return tools.xp.stack([tile[of], start, tools.xp.clip(start + run, None, last[of])], 1)


class Halves:
    """The rows of each group (``groups``: numbers from 0) in the order of ``values``, to be halved by position."""

    def __init__(self, values: Any, groups: Any, tools: ArrayTools) -> None:
        self.values, self.groups, self.xp = values, groups, tools.xp
        order = tools.argsort(values)
        self.order = order[tools.argsort(groups[order])]
        ranked = groups[self.order]
        begin = self.xp.searchsorted(ranked, ranked)
        self.rank, self.begin = self.xp.empty_like(begin), self.xp.empty_like(begin)
        self.rank[self.order] = count_up(begin, tools) - begin
        self.begin[self.order] = begin
        self.bits = int(self.rank.max()).bit_length()

    def cells(self, bits: int) -> Any:
        """Return the cell of each row, numbered from 0, where a cell has 2^bits rows of a group."""
        cells = (self.groups << self.bits) + (self.rank >> bits)
        ranked = cells[self.order]
        numbers = self.xp.zeros_like(cells)
        numbers[self.order[1:]] = self.xp.cumsum(ranked[1:] != ranked[:-1], 0)
        return numbers

    def cut(self, bits: int, scale: float) -> tuple[Any, Any]:
        """Return the half of its cell that each row is in, and the kernel of its distance to the cut between the halves."""
        middle = self.begin + ((self.rank >> bits) << bits) + (1 << (bits - 1))
        cut = self.values[self.order[self.xp.clip(middle, 0, len(self.order) - 1)]]
        return (self.rank >> (bits - 1)) & 1, self.xp.exp(-scale * self.xp.abs(self.values - cut))


def sum_halves(
    points: Any, columns: Any, bins: Any, scale: float, tools: ArrayTools, scan: Callable[[Any, Any, Any, int], Any],
    pairs: Callable[[Any, Any], Any],
) -> Any:  # fmt: skip
    """Sum the columns over all other rows of each row's bin, weighted by exp(-scale * distance).

    ``scan(decay, codes, columns, opposite)`` is that of `scan.cu`; ``pairs(cells, sides)`` sums over the other rows of each
    row's cell, pair by pair: over those of the other side if ``sides`` is not None.
    """
    xp, out, dimensions = tools.xp, tools.xp.zeros_like(columns), points.shape[1]
    depth = points[:, dimensions - 1]
    by_depth = tools.argsort(depth)

    def sweep(cells: Any, codes: Any, fade: Any, opposite: int) -> None:
        """Add to each row those of its cell with the opposite code; ``fade`` is the kernel of the other coordinates."""
        order = by_depth[tools.argsort(cells[by_depth])]
        cell, z, share = cells[order], depth[order], fade[order][:, None]
        decay = xp.zeros_like(z)
        decay[1:] = xp.where(cell[1:] == cell[:-1], xp.exp(-scale * xp.abs(z[1:] - z[:-1])), decay[1:])
        out[order] += scan(decay, codes[order], columns[order] * share, opposite) * share

    def sum_plane(groups: Any, sides: Any, fade: Any) -> None:
        """Add to each row the rows of its group, those of the other side if there are ``sides``: halve in y."""
        halves = Halves(points[:, dimensions - 2], groups, tools)
        for bits in range(halves.bits, Y_BITS, -1):
            half, near = halves.cut(bits, scale)
            if sides is None:
                sweep(halves.cells(bits), half, near, 1)
            else:
                sweep(halves.cells(bits), 2 * sides + half, fade * near, 3)
        out[:] += pairs(halves.cells(min(Y_BITS, halves.bits)), sides)

    if dimensions == 1:
        sweep(bins, xp.zeros_like(bins), xp.ones_like(depth), 0)
    elif dimensions == 2:
        sum_plane(bins, None, None)
    else:
        halves = Halves(points[:, 0], bins, tools)
        for bits in range(halves.bits, X_BITS, -1):
            sum_plane(halves.cells(bits), *halves.cut(bits, scale))
        out[:] += pairs(halves.cells(min(X_BITS, halves.bits)), None)
    return out
