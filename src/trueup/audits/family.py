"""The family of segments: find them, sum them up, and follow some of them through the rows again."""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trueup.data.segments import plan_combinations
from trueup.kernels.cumulative import group_rows
from trueup.kernels.tally import Cells, Rows, Tally, assign, cross, join, tally
from trueup.kernels.threads import Workers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trueup._types import AnyArray, FloatArray, Int32Array, IntArray
    from trueup.audits.result import Settings
    from trueup.data.segments import CombinationPlan, SegmentColumn
    from trueup.data.table import Table


MOST_THIN_LEVELS = 1000  # a column with more thin levels than this has them counted, not listed
WIDEST = 3


@dataclass(frozen=True, eq=False)
class Grid:
    """The segment columns and the plan of their combinations; the user's own segments come after them as columns."""

    columns: Sequence[SegmentColumn]
    own: Sequence[SegmentColumn]
    plan: CombinationPlan
    min_rows: int
    counts: Sequence[IntArray]
    """Rows of every level of every column, the user's own segments included."""

    @cached_property
    def kept(self) -> list[IntArray]:
        """Of each column, the levels with rows enough: only these can be part of a combination."""
        return [np.flatnonzero(counts >= self.min_rows) for counts in self.counts[: len(self.columns)]]

    @property
    def all_columns(self) -> list[SegmentColumn]:
        """Give the columns that codes refer to by position."""
        return [*self.columns, *self.own]


@dataclass(frozen=True, eq=False)
class Target:
    """One score to be audited against one outcome: the only one, one class of several, or the top label."""

    label: str
    rows: Rows
    grid: Grid
    threads: int | None = None

    @cached_property
    def codes(self) -> Int32Array:
        """Codes of every column, one row a column, in the order of this target's scores."""
        columns = self.grid.all_columns
        out = np.empty((len(columns), len(self.rows)), np.int32)
        work = lambda at: np.take(columns[at].codes, self.rows.order, out=out[at], mode="clip")  # noqa: E731
        Workers(self.threads).map(work, range(len(columns)))
        return out

    @cached_property
    def nought(self) -> Int32Array:
        """A code of 0 for every row: the parent where there is none."""
        return np.zeros(len(self.rows), np.int32)

    @cached_property
    def pruned(self) -> list[Int32Array]:
        """Codes among the levels with rows enough, -1 for the others."""
        out = []
        for column, codes, kept in zip(self.grid.columns, self.codes, self.grid.kept, strict=False):
            if len(kept) == len(column.labels):
                out.append(codes)
                continue
            move = np.full(len(column.labels), -1, np.int32)
            move[kept] = np.arange(len(kept), dtype=np.int32)
            out.append(move[codes])
        return out

    @cached_property
    def index(self) -> tuple[Int32Array, Int32Array, Int32Array]:
        """Of each column, the rows of every level one after the other; where each level and each column starts."""
        levels = [len(column.labels) + 1 for column in self.grid.all_columns]
        first = np.concatenate([[0], np.cumsum(levels)]).astype(np.int32)
        order, start = np.empty_like(self.codes), np.zeros(first[-1], np.int32)
        work = lambda at: group_rows(self.codes[at], start[first[at] : first[at + 1]], order[at])  # noqa: E731
        Workers(self.threads).map(work, range(len(levels)))
        return order, start, first

    def ids(self, block: Block) -> Int32Array:
        """Say for each row in which segment of a block it is, -1 for none."""
        if not block.columns:
            return self.nought
        levels = [len(self.grid.all_columns[column].labels) for column in block.columns]
        ids, place, height = self.codes[block.columns[0]], block.codes[:, 0].astype(np.int64), levels[0]
        for at in range(1, len(block.columns)):
            cells, place = np.unique(place * levels[at] + block.codes[:, at], return_inverse=True)
            ids, height = assign(ids, self.codes[block.columns[at]], (height, levels[at]), cells), len(cells)
        back = np.full(height + 1, -1, np.int32)  # the spare last entry serves rows that are in no cell
        back[place] = np.arange(len(block.codes), dtype=np.int32)
        found: Int32Array = back[ids]
        return found


@dataclass(frozen=True, eq=False)
class Block:
    """The segments of one combination of columns: their codes, one row a segment, and their tally."""

    columns: tuple[int, ...]
    codes: Int32Array
    tally: Tally
    thin: int = 0


class Margin(NamedTuple):
    """What is not known of the segments of a family: half the width of sigma, and p-values that hold all the same."""

    half: FloatArray
    p_value: FloatArray


@dataclass(frozen=True, eq=False)
class Family:
    """All segments of one target, block by block."""

    target: Target
    blocks: list[Block]
    held: int | None = None
    """Rows whose scores may be held at once, where rows come in parts."""

    def parts(self) -> Iterator[Target]:
        """Go through the rows, in the order of their scores, once more."""
        yield self.target

    @property
    def margin(self) -> Margin | None:
        """What is not known, where rows could not be put in one order."""
        return None

    def curve_sums(self, which: IntArray, bins: Int32Array, most: int) -> FloatArray | None:  # noqa: ARG002
        """Sum up the curves of some segments where that is not done row by row: (segments, ``most``, 6)."""
        return None

    @cached_property
    def starts(self) -> IntArray:
        """Number of the first segment of each block, and at the end that of all."""
        return np.concatenate([[0], np.cumsum([len(block.codes) for block in self.blocks])])

    def __len__(self) -> int:
        return int(self.starts[-1])

    def take(self, which: IntArray) -> Tally:
        """Give the sums of some segments. The sums of all stay where they were made, block by block."""
        owner = np.searchsorted(self.starts, which, side="right") - 1
        used = np.unique(owner)
        order = np.argsort(owner, kind="stable")
        parts = [self.blocks[at].tally.take(which[owner == at] - self.starts[at]) for at in used]
        return join(parts or [self.blocks[0].tally.take(which)]).take(np.argsort(order, kind="stable"))

    @cached_property
    def keys(self) -> tuple[Int32Array, Int32Array]:
        """Give the columns and codes of every segment, padded with -1."""
        columns, codes = (np.full((len(self), WIDEST), -1, np.int32) for _ in range(2))
        for block, (start, stop) in zip(self.blocks, itertools.pairwise(self.starts), strict=True):
            columns[start:stop, : len(block.columns)] = block.columns
            codes[start:stop, : len(block.columns)] = block.codes
        return columns, codes


def find_family(target: Target, workers: Workers) -> Family:
    """Find every segment of a target and sum it up: rows sorted once, one pass a combination, threads over them."""
    grid = target.grid
    jobs: list[Callable[[], list[Block]]] = [partial(_whole, target)]
    jobs += [partial(_column, target, at) for at in range(len(grid.all_columns))]
    jobs += [partial(_pair, target, a, b, third) for (a, b), third in pairs_of(grid).items()]
    target.nought, target.pruned  # noqa: B018  # made here, once, and not by every thread at the same time
    return Family(target, list(itertools.chain.from_iterable(workers.map(lambda job: job(), jobs))))


def scores_of(table: Table) -> Iterator[tuple[str, FloatArray, FloatArray]]:
    """Give what is to be audited: one score and its outcome, or those of the top label and of every class."""
    p, y = table.prediction, table.outcome
    assert y is not None
    if p.ndim == 1:
        yield "", p, y
        return
    top = np.argmax(p, axis=1) if len(p) else np.empty(0, np.int64)
    yield "top label", p[np.arange(len(p)), top], (y == top).astype(np.float64)
    for at, name in enumerate(table.schema.classes):
        yield f"class={name}", np.ascontiguousarray(p[:, at]), (y == at).astype(np.float64)


def plan_grid(
    columns: Sequence[SegmentColumn], own: Sequence[SegmentColumn], counts: Sequence[IntArray], rows: int,
    settings: Settings, scores: int,
) -> Grid:  # fmt: skip
    """Plan the combinations of columns, by how many of their levels have rows enough; scores share the budget of cells."""
    levels = [int((count >= settings.min_rows).sum()) for count in counts[: len(columns)]]
    budget = settings.max_cells // scores
    chosen = plan_combinations(levels, rows, depth=settings.depth, min_rows=settings.min_rows, max_cells=budget)
    return Grid(columns, own, chosen, settings.min_rows, counts)


def pairs_of(grid: Grid) -> dict[tuple[int, int], list[int]]:
    """Give the pairs of columns to be crossed, and the third columns to cross each with.

    Columns of many levels come first: few of their pairs have rows enough, so that the third column has little to cross.
    """
    place = np.argsort([-len(kept) for kept in grid.kept], kind="stable").argsort()
    deeper: dict[tuple[int, int], list[int]] = defaultdict(list)
    for combination in grid.plan.combinations:
        first, second, *third = sorted(combination, key=lambda at: place[at])
        deeper[first, second].extend(third)
    return deeper


def listed_levels(grid: Grid, at: int) -> tuple[IntArray, int]:
    """Give the levels of one column that are listed, thin ones too where they are not too many; and how many are thin."""
    counts = grid.counts[at]
    thin = (counts > 0) & (counts < grid.min_rows)
    listed = counts > 0 if thin.sum() <= MOST_THIN_LEVELS else counts >= grid.min_rows
    listed |= at >= len(grid.columns)  # a segment the user named is answered, even if nobody is in it
    return np.flatnonzero(listed), int(thin.sum())


def _whole(target: Target) -> list[Block]:
    cells = Cells(np.zeros(1, np.int64), np.array([len(target.rows)], np.int32))
    return [Block((), np.empty((1, 0), np.int32), tally(target.rows, target.nought, target.nought, (1, 1), cells))]


def _column(target: Target, at: int) -> list[Block]:
    """Sum up the levels of one column that are listed."""
    counts = target.grid.counts[at]
    levels, thin = listed_levels(target.grid, at)
    cells = Cells(levels, counts[levels].astype(np.int32))
    found = tally(target.rows, target.nought, target.codes[at], (1, len(counts)), cells)
    return [Block((at,), levels[:, None].astype(np.int32), found, thin)]


def _pair(target: Target, a: int, b: int, third: Sequence[int]) -> list[Block]:
    """Sum up the combinations of two columns, and of these with each of some third ones."""
    kept = target.grid.kept
    block, cells = _cross(target, kept[a][:, None], (a, b), target.pruned[a])
    if third:
        ids = assign(target.pruned[a], target.pruned[b], (len(kept[a]), len(kept[b])), cells.numbers)
        blocks = [block, *(_cross(target, block.codes, (a, b, c), ids)[0] for c in third)]
    else:
        blocks = [block]
    return [in_order(block) for block in blocks]


def _cross(target: Target, codes: AnyArray, columns: tuple[int, ...], parent: Int32Array) -> tuple[Block, Cells]:
    """Cross segments, whose codes are the rows of ``codes``, with the last of the columns."""
    kept = target.grid.kept[columns[-1]]
    shape = len(codes), len(kept)
    cells, found = cross(target.rows, parent, target.pruned[columns[-1]], shape, target.grid.min_rows)
    own = np.empty((len(cells), len(columns)), np.int32)
    own[:, :-1] = codes[cells.numbers // shape[1]]
    own[:, -1] = kept[cells.numbers % shape[1]]
    return Block(columns, own, found, cells.thin), cells


def in_order(block: Block) -> Block:
    """Name the columns of a block in the order in which the user did."""
    order = sorted(range(len(block.columns)), key=lambda at: block.columns[at])
    return replace(block, columns=tuple(block.columns[at] for at in order), codes=block.codes[:, order])
