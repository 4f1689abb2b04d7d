"""Cells of the score for rows in parts: where they begin, and how many of them a segment has."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trueup._types import BoolArray, FloatArray, Int32Array, IntArray


MARKS = 4_096  # scores that a part tells of its own
MOST_MARKS = 1 << 17
MOST_CELLS, LEAST_CELLS = 8_192, 32
RATIO = 32  # places in each of the finest cells, for a second look
BUDGET = 16 * 10**6  # bytes of the cells of all segments
BYTES_A_CELL, BYTES_A_SEGMENT = 33, 64


@dataclass(frozen=True, eq=False)
class Marks:
    """Scores that cut the rows of some parts into equal shares, each with its rows; and from where to where parts reach."""

    scores: FloatArray
    rows: FloatArray
    ranges: FloatArray
    """One row a part that has rows: its lowest and its highest score."""

    @classmethod
    def of(cls, p: FloatArray) -> Marks:
        """Mark the scores of a part."""
        if not len(p):
            return cls(np.empty(0), np.empty(0), np.empty((0, 2)))
        ordered = np.sort(p)
        at = (np.arange(min(len(p), MARKS)) * len(p)) // min(len(p), MARKS)
        return cls(ordered[at], np.diff(np.append(at, len(p))).astype(np.float64), ordered[[0, -1]][None])

    def __add__(self, other: Marks) -> Marks:
        scores, rows = np.append(self.scores, other.scores), np.append(self.rows, other.rows)
        if len(scores) > MOST_MARKS:
            order = np.argsort(scores, kind="stable")
            scores, rows = scores[order][::2], np.add.reduceat(rows[order], np.arange(0, len(rows), 2))
        return Marks(scores, rows, np.concatenate([self.ranges, other.ranges]))

    def barriers(self) -> FloatArray:
        """Say where parts end and others begin: no part has scores on both sides, or but the one score where they meet."""
        ranges = self.ranges[np.lexsort(self.ranges.T[::-1])]
        reach = np.maximum.accumulate(ranges[:-1, 1])
        low = ranges[1:, 0]
        apart, meeting = low[reach < low], low[reach == low]
        return np.unique(np.concatenate([apart, meeting, np.nextafter(meeting, np.inf)]))

    def edges(self) -> tuple[FloatArray, FloatArray]:
        """Give the edges of the finest cells, and which of them are barriers; a score of many rows has its own cell."""
        order = np.argsort(self.scores, kind="stable")
        scores, reached = self.scores[order], np.cumsum(self.rows[order])
        if not len(scores):
            return np.empty(0), np.empty(0)
        wanted = np.arange(1, MOST_CELLS) * (reached[-1] / MOST_CELLS)
        marks, times = np.unique(scores[np.searchsorted(reached, wanted, side="right")], return_counts=True)
        heavy, barriers = marks[times > 1], self.barriers()
        edges = np.unique(np.concatenate([marks, heavy, np.nextafter(heavy, np.inf), barriers]))
        return edges, barriers


@dataclass(frozen=True, eq=False)
class Layout:
    """The finest cells of one score, and coarser ones: each level joins twice as many neighbours as the one before.

    ``maps`` has a row a level: the cell of every finest cell.
    """

    edges: FloatArray
    maps: Int32Array
    reach: tuple[float, float]
    """The lowest and the highest score."""

    @cached_property
    def sizes(self) -> IntArray:
        """Give how many cells each level has."""
        return self.maps[:, -1].astype(np.int64) + 1

    def place(self, p: FloatArray) -> Int32Array:
        """Give the finest cell of every score: equal scores share one."""
        return np.searchsorted(self.edges, p, side="right").astype(np.int32)

    def level(self, most: IntArray) -> Int32Array:
        """Give the finest level of at most so many cells, or the coarsest."""
        found = np.searchsorted(-self.sizes, -most, side="left")
        return np.minimum(found, len(self.maps) - 1).astype(np.int32)

    @cached_property
    def begins(self) -> Int32Array:
        """Give the finest cell with which each cell of every level begins."""
        out = np.zeros_like(self.maps)
        for into, cells in zip(out, self.maps, strict=True):
            found = np.flatnonzero(np.diff(cells, prepend=-1))
            into[: len(found)] = found
        return out

    def finer(self, p: FloatArray) -> Int32Array:
        """Give the place of every score when each of the finest cells is cut into `RATIO` of equal width."""
        low, high = self.reach
        if not len(self.edges):
            marks = np.linspace(low, high, RATIO + 1)[1:-1]
        else:
            ends = np.concatenate([[min(low, self.edges[0])], self.edges, [max(high, self.edges[-1])]])
            inner = ends[:-1, None] + np.diff(ends)[:, None] * (np.arange(RATIO) / RATIO)
            marks = np.minimum(inner, ends[1:, None]).ravel()[1:]  # the edges themselves among them, as they are
        return np.searchsorted(marks, p, side="right").astype(np.int32)

    def single(self, low: FloatArray, high: FloatArray) -> BoolArray:
        """Say of every level which cells hold but one score, from the lowest and highest of the finest cells."""
        out = np.zeros((len(self.maps), len(low)), bool)
        for at, cells in enumerate(self.maps):
            begins = np.flatnonzero(np.diff(cells, prepend=-1))
            out[at, : len(begins)] = np.minimum.reduceat(low, begins) == np.maximum.reduceat(high, begins)
        return out


def lay_out(marks: Marks) -> Layout:
    """Lay out the cells of a score; no cell crosses a barrier unless there are too many of them.

    Examples
    --------
    >>> found = lay_out(Marks.of(np.array([0.1, 0.3, 0.3])))
    >>> found.maps.tolist(), found.place(np.array([0.1, 0.2, 0.3, 0.4])).tolist()
    ([[0, 1, 2, 3, 4], [0, 0, 1, 1, 2], [0, 0, 0, 0, 1], [0, 0, 0, 0, 0]], [1, 2, 3, 4])
    """
    edges, barriers = marks.edges()
    finest = np.arange(len(edges) + 1)
    maps, width = [finest], 2
    stays = np.isin(edges, barriers)
    while maps[-1][-1] > 0 and width < 2 * len(finest):
        honoured = stays if stays.sum() <= len(finest) // (2 * width) else np.zeros_like(stays)
        region = np.append(0, np.cumsum(honoured))
        start = np.flatnonzero(np.diff(region, prepend=-1))[region]  # the finest cell with which the region begins
        begins = np.append(True, ((finest - start) % width == 0)[1:])
        maps.append(np.cumsum(begins) - 1)
        width *= 2
    reach = (float(marks.ranges[:, 0].min()), float(marks.ranges[:, 1].max())) if len(marks.ranges) else (0.0, 0.0)
    return Layout(edges, np.array(maps, np.int32), reach)


@dataclass(frozen=True, eq=False)
class Room:
    """Where the cells of each segment of one score lie: its level, and its first cell; one more at the end."""

    level: Int32Array
    first: IntArray

    def part(self, start: int, stop: int) -> Room:
        """Give the room of some segments, by itself."""
        return Room(self.level[start:stop], self.first[start : stop + 1] - self.first[start])


def share_out(layouts: Sequence[Layout], rows: IntArray, budget: int = BUDGET) -> list[Room]:
    """Share the room out among segments of so many rows: as many cells as fit, as many for each, few for few rows."""
    cap = 4 * rows
    for most in (MOST_CELLS << 1, MOST_CELLS, *(MOST_CELLS >> at for at in range(1, 9))):
        levels = [layout.level(np.minimum(cap, most)) for layout in layouts]
        sizes = [layout.sizes[level] for layout, level in zip(layouts, levels, strict=True)]
        if most <= LEAST_CELLS or BYTES_A_CELL * sum(int(size.sum()) for size in sizes) <= budget:
            break
    return [Room(level, np.append(0, np.cumsum(size))) for level, size in zip(levels, sizes, strict=True)]


@dataclass(frozen=True, eq=False)
class Pieces:
    """Which cells are looked at again in pieces: their positions, where the pieces of each begin, and how fine they are.

    ``shift`` has an entry a segment: pieces are so many powers of two coarser than `Layout.finer`.
    """

    cells: IntArray
    starts: IntArray
    shift: Int32Array

    def numbers(self, size: int) -> Int32Array:
        """Give the number of each of so many cells, -1 where it is not looked at again."""
        out = np.full(size, -1, np.int32)
        out[self.cells] = np.arange(len(self.cells), dtype=np.int32)
        return out


def cut_again(layout: Layout, room: Room, chosen: BoolArray, width: FloatArray, budget: int = BUDGET) -> Pieces:
    """Cut the chosen cells of segments into pieces: more where a bound is wide, and where few cells of it are chosen."""
    cells = np.flatnonzero(chosen)
    owner = np.searchsorted(room.first, cells, side="right") - 1
    many = np.bincount(owner, minlength=len(room.level))
    share = budget / BYTES_A_CELL * width / max(float(width[many > 0].sum()), 1e-300)
    pieces = np.log2(np.maximum(share / np.maximum(many, 1), 2.0)).astype(np.int32)  # of a cell, as a power of two
    shift = np.maximum(room.level + int(np.log2(RATIO)) - pieces, 0).astype(np.int32)
    cell, level = cells - room.first[owner], room.level[owner]
    finest, begins = layout.maps.shape[1], layout.begins[level, cell]
    last = cell + 1 == layout.sizes[level]
    ends = np.where(last, finest, layout.begins[level, np.minimum(cell + 1, finest - 1)])
    sizes = (((ends - begins).astype(np.int64) * RATIO - 1) >> shift[owner]) + 1
    return Pieces(cells, np.append(0, np.cumsum(sizes)), shift)
