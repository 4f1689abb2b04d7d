"""The segments of one audited score with their tallies: find every segment that has enough rows, and tally it.

Segments of one combination of columns are cells ``parent * width + code``: ``code`` is a level of the last column,
``parent`` a level of the first column or, for three columns, a segment of the first two.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from trueup.audits.partitions import MemoryRows
from trueup.audits.summary import Pool
from trueup.kernels.tally import Cells, RunningTally, Tally, assign, cross, find_cells, join, tally
from trueup.kernels.threads import Workers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trueup._types import BoolArray, Int32Array, IntArray
    from trueup.audits.grid import SegmentGrid
    from trueup.audits.partitions import AuditRows, ScorePartition, SortedChunk

    CellCounts = tuple[IntArray, IntArray]  # numbers of cells, ascending, and their rows

T = TypeVar("T")
MAX_DEPTH = 3
MAX_UNCOUNTED_CELLS = 200_000  # up to here all cells are tallied at once; beyond, those with enough rows are found first
BYTES_PER_TALLY = 8 * (15 + 2 + 1)
BYTES_PER_COUNT = 16


@dataclass(frozen=True, eq=False)
class SegmentBlock:
    """Segments of one combination of columns: level codes, one array row per segment, and their tally.

    ``thin`` counts the cells that have rows, but fewer than ``min_rows``.
    """

    columns: tuple[int, ...]
    codes: Int32Array
    tally: Tally
    thin: int = 0


@dataclass(frozen=True, eq=False)
class SegmentFamily:
    """All segments of one audited score, block by block."""

    label: str
    real: bool
    blocks: list[SegmentBlock]

    @cached_property
    def starts(self) -> IntArray:
        """Number of the first segment of each block, and of all segments at the end."""
        return np.concatenate([[0], np.cumsum([len(block.codes) for block in self.blocks])])

    def __len__(self) -> int:
        return int(self.starts[-1])

    def take(self, which: IntArray) -> Tally:
        """Return the tally of some segments."""
        owner = np.searchsorted(self.starts, which, side="right") - 1
        order = np.argsort(owner, kind="stable")
        parts = [self.blocks[at].tally.take(which[owner == at] - self.starts[at]) for at in np.unique(owner)]
        return join(parts or [self.blocks[0].tally.take(which)]).take(np.argsort(order, kind="stable"))

    @cached_property
    def keys(self) -> tuple[Int32Array, Int32Array]:
        """Columns and codes of every segment, padded with -1."""
        columns, codes = (np.full((len(self), MAX_DEPTH), -1, np.int32) for _ in range(2))
        for block, (start, stop) in zip(self.blocks, itertools.pairwise(self.starts), strict=True):
            columns[start:stop, : len(block.columns)] = block.columns
            codes[start:stop, : len(block.columns)] = block.codes
        return columns, codes


def find_families(rows: AuditRows, grid: SegmentGrid, workers: Workers) -> tuple[list[SegmentFamily], Pool | None]:
    """Find and tally the segments of every target; return also the pooled rows of the first, unless they are in memory."""
    if isinstance(rows, MemoryRows):
        blocks = [_tally_in_memory(chunk, workers) for chunk in rows.chunks]
        pool = None
    else:
        blocks, pool = _tally_partitions(rows, grid)
    families = [SegmentFamily(label, rows.real, own) for label, own in zip(rows.targets, blocks, strict=True)]
    return families, pool


# Rows in memory: cells are found and tallied in one call per combination


def _tally_in_memory(chunk: SortedChunk, workers: Workers) -> list[SegmentBlock]:
    grid = chunk.grid
    jobs: list[Callable[[], list[SegmentBlock]]] = [partial(_tally_overall, chunk)]
    jobs += [partial(_tally_column, chunk, column) for column in range(len(grid.counts))]
    jobs += [partial(_tally_pair, chunk, pair, thirds) for pair, thirds in grid.pairs.items()]
    chunk.zeros, chunk.kept_codes  # noqa: B018  # computed here, once, and not by every thread at the same time
    return list(itertools.chain.from_iterable(workers.map(lambda job: job(), jobs)))


def _tally_overall(chunk: SortedChunk) -> list[SegmentBlock]:
    cells = Cells(np.zeros(1, np.int64), np.array([len(chunk.rows)], np.int32))
    return [SegmentBlock((), np.empty((1, 0), np.int32), tally(chunk.rows, chunk.zeros, chunk.zeros, (1, 1), cells))]


def _tally_column(chunk: SortedChunk, column: int) -> list[SegmentBlock]:
    counts = chunk.grid.counts[column]
    levels, thin = chunk.grid.listed_levels(column)
    cells = Cells(levels, counts[levels].astype(np.int32))
    sums = tally(chunk.rows, chunk.zeros, chunk.codes[column], (1, len(counts)), cells)
    return [SegmentBlock((column,), levels[:, None].astype(np.int32), sums, thin)]


def _tally_pair(chunk: SortedChunk, pair: tuple[int, int], thirds: Sequence[int]) -> list[SegmentBlock]:
    """Cross two columns, and the segments found with each of some third columns."""
    kept, codes, min_rows = chunk.grid.kept, chunk.kept_codes, chunk.grid.min_rows
    first, second = pair
    combination = Combination.of_pair(chunk.grid, pair)
    cells, sums = cross(chunk.rows, codes[first], codes[second], combination.shape, min_rows)
    combination = replace(combination, cells=cells)
    blocks = [SegmentBlock(pair, combination.segments(), sums, cells.thin)]
    if thirds:
        parent = assign(codes[first], codes[second], combination.shape, cells.numbers)
        for third in thirds:
            triple = Combination((*pair, third), blocks[0].codes, kept[third])
            cells, sums = cross(chunk.rows, parent, codes[third], triple.shape, min_rows)
            triple = replace(triple, cells=cells)
            blocks.append(SegmentBlock(triple.columns, triple.segments(), sums, cells.thin))
    return [_in_column_order(block) for block in blocks]


def _in_column_order(block: SegmentBlock) -> SegmentBlock:
    order = sorted(range(len(block.columns)), key=lambda position: block.columns[position])
    return replace(block, columns=tuple(block.columns[position] for position in order), codes=block.codes[:, order])


# Rows in partitions: the tallies of partitions are added


@dataclass(frozen=True, eq=False)
class Combination:
    """The cells of one combination of columns; ``cells`` are those to tally, once they are known.

    ``parents`` has the codes of the parents, one array row each; ``levels`` the level that each code of the last column
    stands for. ``fixed`` cells are reported whatever their rows.
    """

    columns: tuple[int, ...]
    parents: Int32Array
    levels: IntArray
    cells: Cells | None = None
    fixed: bool = False

    @classmethod
    def of_pair(cls, grid: SegmentGrid, pair: tuple[int, int]) -> Combination:
        """Cross two columns."""
        first, second = pair
        return cls(pair, grid.kept[first][:, None].astype(np.int32), grid.kept[second])

    @property
    def shape(self) -> tuple[int, int]:
        """Number of parents and of levels."""
        return len(self.parents), len(self.levels)

    @property
    def size(self) -> int:
        """Number of cells."""
        return len(self.parents) * len(self.levels)

    def with_all_cells(self) -> Combination:
        """Return the combination with all its cells to tally."""
        numbers = np.arange(self.size)
        return replace(self, cells=Cells(numbers, np.zeros(len(numbers), np.int64)))

    def segments(self) -> Int32Array:
        """Return the codes of every cell, one array row each."""
        assert self.cells is not None
        codes = np.empty((len(self.cells), len(self.columns)), np.int32)
        if self.columns:
            codes[:, :-1] = self.parents[self.cells.numbers // self.shape[1]]
            codes[:, -1] = self.levels[self.cells.numbers % self.shape[1]]
        return codes


Group = list[Combination]  # one combination of at most two columns, then those of three that its segments are crossed for


def _cell_codes(group: Group, chunk: SortedChunk) -> list[tuple[Int32Array, Int32Array]]:
    """Return parent and code of every row, for each combination of a group."""
    head, *triples = group
    if len(head.columns) < 2:
        return [(chunk.zeros, chunk.codes[head.columns[0]] if head.columns else chunk.zeros)]
    first, second = (chunk.kept_codes[column] for column in head.columns)
    located = [(first, second)]
    if triples:
        assert head.cells is not None
        parent = assign(first, second, head.shape, head.cells.numbers)
        located += [(parent, chunk.kept_codes[triple.columns[2]]) for triple in triples]
    return located


@dataclass(frozen=True, eq=False)
class _CountPass:
    """Counts the rows of every cell of the combinations whose cells are not known: they are the same for all targets."""

    groups: list[Group]

    def __call__(self, partition: ScorePartition) -> list[CellCounts]:
        totals: list[CellCounts] = []
        for chunk in partition.chunks if partition.target == 0 else ():
            chunk.kept_codes  # noqa: B018  # computed here, once, and not by every thread at the same time
            counts = Workers(chunk.threads).map(partial(self._count, chunk), self.groups)
            flat = list(itertools.chain.from_iterable(counts))
            totals = _add_counts(totals, flat) if totals else flat
        return totals

    @staticmethod
    def _count(chunk: SortedChunk, group: Group) -> list[CellCounts]:
        found = []
        for combination, (parent, code) in zip(group, _cell_codes(group, chunk), strict=True):
            if combination.cells is None:
                cells = find_cells(parent, code, combination.shape, 1)
                found.append((cells.numbers, np.asarray(cells.rows, np.int64)))
        return found


def _add_counts(one: list[CellCounts], other: list[CellCounts]) -> list[CellCounts]:
    total = []
    for a, b in zip(one, other, strict=True):
        numbers, place = np.unique(np.append(a[0], b[0]), return_inverse=True)
        rows = np.zeros(len(numbers), np.int64)
        rows[place[: len(a[0])]] = a[1]
        rows[place[len(a[0]) :]] += b[1]
        total.append((numbers, rows))
    return total


@dataclass(frozen=True, eq=False)
class _TallyPass:
    """Tallies the cells of combinations; pools the rows of the first target, where ``pool_rows`` says how many in all."""

    groups: list[Group]
    weighted: bool
    pool_rows: int

    def __call__(self, partition: ScorePartition) -> tuple[list[Tally], Pool | None]:
        tallies: list[list[RunningTally]] = []
        pools = []
        for chunk in partition.chunks:
            real = chunk.rows.real
            if not tallies:
                tallies = [[_running_tally(one, real=real) for one in group] for group in self.groups]
            chunk.zeros, chunk.kept_codes  # noqa: B018
            Workers(chunk.threads).map(partial(self._advance, chunk), list(zip(self.groups, tallies, strict=True)))
            if self.pool_rows and partition.target == 0:
                pools.append(Pool.of(chunk.rows, self.pool_rows))
        finished = [one.finish(weighted=self.weighted) for group in tallies for one in group]
        return finished, Pool.join(pools) if pools else None

    @staticmethod
    def _advance(chunk: SortedChunk, job: tuple[Group, list[RunningTally]]) -> None:
        group, tallies = job
        for running, (parent, code) in zip(tallies, _cell_codes(group, chunk), strict=True):
            if len(running.numbers):
                running.advance(chunk.rows, parent, code)


def _running_tally(combination: Combination, *, real: bool) -> RunningTally:
    assert combination.cells is not None
    return RunningTally(combination.shape, combination.cells.numbers, real=real)


def _add_tallies(
    one: tuple[list[Tally], Pool | None], other: tuple[list[Tally], Pool | None]
) -> tuple[list[Tally], Pool | None]:
    pools = [pool for _, pool in (one, other) if pool is not None]
    return [a + b for a, b in zip(one[0], other[0], strict=True)], Pool.join(pools) if pools else None


def _tally_partitions(rows: AuditRows, grid: SegmentGrid) -> tuple[list[list[SegmentBlock]], Pool | None]:
    """Tally the segments of every target over partitions: the cells with enough rows are the same for all targets."""
    groups = _with_cells(rows, grid)
    groups = [*([one] for one in _fixed_combinations(rows.rows, grid)), *groups]
    sizes = [[BYTES_PER_TALLY * len(one.cells) for one in group if one.cells is not None] for group in groups]
    tallies: list[list[Tally]] = [[] for _ in rows.targets]
    pool = None
    for some in _batches(groups, [sum(size) for size in sizes], rows.max_result_bytes):
        first = pool is None
        results = rows.map_reduce(_TallyPass(some, rows.weighted, rows.rows if first else 0), _add_tallies)
        pool = results[0][1] if first else pool
        for own, (more, _) in zip(tallies, results, strict=True):
            own += more
    return [_blocks(groups, own, grid) for own in tallies], pool


def _fixed_combinations(rows: int, grid: SegmentGrid) -> list[Combination]:
    """Return the combinations of no column and of one, whose cells are known."""
    nothing = np.empty((1, 0), np.int32)
    cells = Cells(np.zeros(1, np.int64), np.array([rows]))
    fixed = [Combination((), nothing, np.zeros(1, np.int64), cells, fixed=True)]
    for column, counts in enumerate(grid.counts):
        levels, thin = grid.listed_levels(column)
        cells = Cells(levels, counts[levels], thin)
        fixed.append(Combination((column,), nothing, np.arange(len(counts)), cells, fixed=True))
    return fixed


def _with_cells(rows: AuditRows, grid: SegmentGrid) -> list[Group]:
    """Return the combinations of two and three columns with the cells to tally: all of them, unless there are many."""
    pairs, thirds = [Combination.of_pair(grid, pair) for pair in grid.pairs], list(grid.pairs.values())
    sizes = [pair.size * (1 + sum(len(grid.kept[third]) for third in own)) for pair, own in zip(pairs, thirds, strict=True)]
    if sum(sizes) <= MAX_UNCOUNTED_CELLS:
        groups = []
        for pair, own in zip(pairs, thirds, strict=True):
            head = pair.with_all_cells()
            triples = [Combination((*head.columns, third), head.segments(), grid.kept[third]) for third in own]
            groups.append([head, *(triple.with_all_cells() for triple in triples)])
        return groups
    counted = _count_cells([[pair] for pair in pairs], rows, grid)
    groups = []
    for (head,), own in zip(counted, thirds, strict=True):
        triples = [Combination((*head.columns, third), head.segments(), grid.kept[third]) for third in own]
        groups.append([head, *triples])
    return _count_cells(groups, rows, grid)


def _count_cells(groups: list[Group], rows: AuditRows, grid: SegmentGrid) -> list[Group]:
    """Find the cells with enough rows, where they are not known."""
    unknown = [[min(one.size, rows.rows) for one in group if one.cells is None] for group in groups]
    todo = [position for position, sizes in enumerate(unknown) if sizes]
    done = list(groups)
    for batch in _batches(todo, [BYTES_PER_COUNT * sum(unknown[at]) for at in todo], rows.max_result_bytes):
        (counts, *_) = rows.map_reduce(_CountPass([groups[at] for at in batch]), _add_counts)
        found = iter(counts)
        for at in batch:
            done[at] = [one if one.cells is not None else _keep_cells(one, *next(found), grid) for one in groups[at]]
    return done


def _keep_cells(combination: Combination, numbers: IntArray, rows: IntArray, grid: SegmentGrid) -> Combination:
    keep = rows >= grid.min_rows
    return replace(combination, cells=Cells(numbers[keep], rows[keep], int(len(keep) - keep.sum())))


def _batches(items: Sequence[T], sizes: Sequence[int], budget: float) -> list[list[T]]:
    """Divide items into batches of at most ``budget`` bytes; a larger item is a batch of its own."""
    batches: list[list[T]] = []
    total = 0
    for item, size in zip(items, sizes, strict=True):
        if not batches or total + size > budget:
            batches.append([])
            total = 0
        batches[-1].append(item)
        total += size
    return batches


def _blocks(groups: list[Group], tallies: list[Tally], grid: SegmentGrid) -> list[SegmentBlock]:
    """Name the segments, and leave out cells without enough rows."""
    blocks, remaining = [], iter(tallies)
    for group in groups:
        enough: BoolArray | None = None  # which cells of the pair have enough rows
        for combination in group:
            assert combination.cells is not None
            cells, sums, codes = combination.cells, next(remaining), combination.segments()
            thin = cells.thin
            if not combination.fixed:
                keep = sums.rows >= grid.min_rows
                thin_cells = (sums.rows > 0) & ~keep
                if enough is None:
                    enough = keep
                else:
                    parent = enough[cells.numbers // combination.shape[1]]
                    keep, thin_cells = keep & parent, thin_cells & parent
                thin += int(thin_cells.sum())
                if not keep.all():
                    sums, codes = sums.take(np.flatnonzero(keep)), codes[keep]
            blocks.append(_in_column_order(SegmentBlock(combination.columns, codes, sums, thin)))
    return blocks
