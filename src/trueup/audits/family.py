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
from trueup.kernels.tally import Cells, RunningTally, Tally, assign, concatenate_tallies, cross, find_cells, tally
from trueup.kernels.threads import Workers

if TYPE_CHECKING:
    from collections.abc import Sequence

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
        return concatenate_tallies(parts or [self.blocks[0].tally.take(which)]).take(np.argsort(order, kind="stable"))

    @cached_property
    def keys(self) -> tuple[Int32Array, Int32Array]:
        """Columns and codes of every segment, padded with -1."""
        columns, codes = (np.full((len(self), MAX_DEPTH), -1, np.int32) for _ in range(2))
        for block, (start, stop) in zip(self.blocks, itertools.pairwise(self.starts), strict=True):
            columns[start:stop, : len(block.columns)] = block.columns
            codes[start:stop, : len(block.columns)] = block.codes
        return columns, codes


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

    @property
    def shape(self) -> tuple[int, int]:
        """Number of parents and of levels."""
        return len(self.parents), len(self.levels)

    @property
    def size(self) -> int:
        """Number of cells."""
        return len(self.parents) * len(self.levels)

    def segments(self) -> Int32Array:
        """Return the codes of every cell to tally, one array row each."""
        assert self.cells is not None
        codes = np.empty((len(self.cells), len(self.columns)), np.int32)
        if self.columns:
            codes[:, :-1] = self.parents[self.cells.numbers // self.shape[1]]
            codes[:, -1] = self.levels[self.cells.numbers % self.shape[1]]
        return codes

    def block(self, sums: Tally, keep: BoolArray | None = None, thin: int | None = None) -> SegmentBlock:
        """Return the segments with their tally; columns are in the order of the data."""
        assert self.cells is not None
        order = sorted(range(len(self.columns)), key=lambda position: self.columns[position])
        codes = self.segments()[:, order]
        if keep is not None and not keep.all():
            sums, codes = sums.take(np.flatnonzero(keep)), codes[keep]
        columns = tuple(self.columns[position] for position in order)
        return SegmentBlock(columns, codes, sums, self.cells.thin if thin is None else thin)


Group = list[Combination]  # one combination of at most two columns, then those of three that its segments are crossed for


def find_families(rows: AuditRows, grid: SegmentGrid, workers: Workers) -> tuple[list[SegmentFamily], Pool | None]:
    """Find and tally the segments of every target; return also the pooled rows of the first, unless they are in memory."""
    fixed = [[combination] for combination in _fixed_combinations(rows.rows, grid)]
    pairs = [Combination(pair, _as_parents(grid, pair[0]), grid.kept[pair[1]]) for pair in grid.pairs]
    pool = None
    if isinstance(rows, MemoryRows):
        groups = fixed + [[pair, *_cross(pair, pair.parents[:0], grid)] for pair in pairs]
        blocks = []
        for chunk in rows.chunks:
            chunk.zeros, chunk.kept_codes  # noqa: B018  # computed here, once, and not by every thread at the same time
            found = workers.map(partial(_tally_in_memory, chunk), groups)
            blocks.append(list(itertools.chain.from_iterable(found)))
    else:
        blocks, pool = _tally_partitions(rows, grid, fixed + _with_cells(pairs, rows, grid))
    families = [SegmentFamily(label, rows.real, own) for label, own in zip(rows.targets, blocks, strict=True)]
    return families, pool


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


def _as_parents(grid: SegmentGrid, column: int) -> Int32Array:
    return grid.kept[column][:, None].astype(np.int32)


def _cross(pair: Combination, parents: Int32Array, grid: SegmentGrid) -> list[Combination]:
    """Cross segments of a pair with each of its third columns."""
    first, second = pair.columns
    return [Combination((first, second, third), parents, grid.kept[third]) for third in grid.pairs[first, second]]


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


def _tally_in_memory(chunk: SortedChunk, group: Group) -> list[SegmentBlock]:
    """Find and tally the cells of a group, in one kernel call per combination."""
    head, *triples = group
    parent, code = _cell_codes([head], chunk)[0]
    if head.cells is not None:
        return [head.block(tally(chunk.rows, parent, code, head.shape, head.cells))]
    cells, sums = cross(chunk.rows, parent, code, head.shape, chunk.grid.min_rows)
    head = replace(head, cells=cells)
    blocks = [head.block(sums)]
    triples = [replace(triple, parents=head.segments()) for triple in triples]
    for triple, (parent, code) in zip(triples, _cell_codes([head, *triples], chunk)[1:], strict=True):
        cells, sums = cross(chunk.rows, parent, code, triple.shape, chunk.grid.min_rows)
        blocks.append(replace(triple, cells=cells).block(sums))
    return blocks


# Rows in partitions: the tallies of partitions are added


def _with_cells(pairs: Group, rows: AuditRows, grid: SegmentGrid) -> list[Group]:
    """Return the combinations of two and three columns with the cells to tally: all of them, unless there are many."""
    sizes = [pair.size * (1 + sum(len(triple.levels) for triple in _cross(pair, pair.parents, grid))) for pair in pairs]
    if sum(sizes) <= MAX_UNCOUNTED_CELLS:
        complete = map(_with_all_cells, pairs)
        return [[pair, *map(_with_all_cells, _cross(pair, pair.segments(), grid))] for pair in complete]
    counted = _count_cells([[pair] for pair in pairs], rows, grid)
    return _count_cells([[pair, *_cross(pair, pair.segments(), grid)] for (pair,) in counted], rows, grid)


def _with_all_cells(combination: Combination) -> Combination:
    numbers = np.arange(combination.size)
    return replace(combination, cells=Cells(numbers, np.zeros(len(numbers), np.int64)))


def _count_cells(groups: list[Group], rows: AuditRows, grid: SegmentGrid) -> list[Group]:
    """Find the cells with enough rows of the combinations whose cells are not known."""
    sizes = [BYTES_PER_COUNT * sum(min(one.size, rows.rows) for one in group if one.cells is None) for group in groups]
    known: list[Group] = []
    for batch in batches(groups, sizes, rows.max_result_bytes):
        counts = iter(rows.map_reduce(_CountPass(batch), _add_counts)[0]) if any(sizes) else iter(())
        for group in batch:
            known.append([])
            for combination in group:
                if combination.cells is None:
                    numbers, count = next(counts)
                    keep = count >= grid.min_rows
                    cells = Cells(numbers[keep], count[keep], int(len(keep) - keep.sum()))
                    combination = replace(combination, cells=cells)
                known[-1].append(combination)
    return known


def batches(items: Sequence[T], sizes: Sequence[int], budget: float) -> list[list[T]]:
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


@dataclass(frozen=True, eq=False)
class _CountPass:
    """Counts the rows of every cell of the combinations whose cells are not known: they are the same for all targets."""

    groups: list[Group]

    def __call__(self, partition: ScorePartition) -> list[CellCounts]:
        totals: list[CellCounts] = []
        for chunk in partition.chunks if partition.target == 0 else ():
            chunk.kept_codes  # noqa: B018
            counts = Workers(chunk.threads).map(partial(self._count, chunk), self.groups)
            flat = list(itertools.chain.from_iterable(counts))
            totals = _add_counts(totals, flat) if totals else flat
        return totals

    @staticmethod
    def _count(chunk: SortedChunk, group: Group) -> list[CellCounts]:
        counts = []
        for combination, (parent, code) in zip(group, _cell_codes(group, chunk), strict=True):
            if combination.cells is None:
                cells = find_cells(parent, code, combination.shape, 1)
                counts.append((cells.numbers, np.asarray(cells.rows, np.int64)))
        return counts


def _add_counts(one: list[CellCounts], other: list[CellCounts]) -> list[CellCounts]:
    total = []
    for a, b in zip(one, other, strict=True):
        numbers, place = np.unique(np.append(a[0], b[0]), return_inverse=True)
        total.append((numbers, np.bincount(place, np.append(a[1], b[1]), len(numbers)).astype(np.int64)))
    return total


def _tally_partitions(
    rows: AuditRows, grid: SegmentGrid, groups: list[Group]
) -> tuple[list[list[SegmentBlock]], Pool | None]:
    """Tally the segments of every target over partitions; pool the rows of the first."""
    sizes = [BYTES_PER_TALLY * sum(len(one.cells) for one in group if one.cells is not None) for group in groups]
    tallies: list[list[Tally]] = [[] for _ in rows.targets]
    pool = None
    for batch in batches(groups, sizes, rows.max_result_bytes):
        work = _TallyPass(batch, rows.real, rows.weighted, rows.rows if pool is None else 0)
        results = rows.map_reduce(work, _add_tallies)
        pool = results[0][1] or pool
        for own, (more, _) in zip(tallies, results, strict=True):
            own += more
    return [_blocks(groups, own, grid.min_rows) for own in tallies], pool


@dataclass(frozen=True, eq=False)
class _TallyPass:
    """Tallies the cells of combinations; pools the rows of the first target, where ``pool_rows`` says how many in all."""

    groups: list[Group]
    real: bool
    weighted: bool
    pool_rows: int

    def __call__(self, partition: ScorePartition) -> tuple[list[Tally], Pool | None]:
        tallies = [[RunningTally(one.shape, one.cells, real=self.real) for one in group] for group in self.groups]  # type: ignore[arg-type]
        pools = []
        for chunk in partition.chunks:
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
            if len(running.cells):
                running.advance(chunk.rows, parent, code)


def _add_tallies(
    one: tuple[list[Tally], Pool | None], other: tuple[list[Tally], Pool | None]
) -> tuple[list[Tally], Pool | None]:
    pools = [pool for _, pool in (one, other) if pool is not None]
    return [a + b for a, b in zip(one[0], other[0], strict=True)], Pool.join(pools) if pools else None


def _blocks(groups: list[Group], tallies: list[Tally], min_rows: int) -> list[SegmentBlock]:
    """Return the segments of all combinations, without cells that have too few rows."""
    blocks, remaining = [], iter(tallies)
    for group in groups:
        enough: BoolArray | None = None  # which cells of the pair have enough rows
        for combination in group:
            sums = next(remaining)
            if combination.fixed:
                blocks.append(combination.block(sums))
                continue
            assert combination.cells is not None
            keep, thin = sums.rows >= min_rows, (sums.rows > 0) & (sums.rows < min_rows)
            if enough is None:
                enough = keep
            else:
                parent = enough[combination.cells.numbers // combination.shape[1]]
                keep, thin = keep & parent, thin & parent
            blocks.append(combination.block(sums, keep, combination.cells.thin + int(thin.sum())))
    return blocks
