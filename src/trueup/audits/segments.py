"""Segments of an audit and their tallies: levels of columns, combinations of columns, and the cells with enough rows.

Segments of one combination of columns are cells ``parent * width + code``: ``code`` is a level of the last column,
``parent`` a level of the first column or, for three columns, a segment of the first two.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections import defaultdict
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from trueup.audits.summary import Pool
from trueup.data.bins import ColumnBinner, bins_for, check_bins, check_segments, fit_binner, plan_combinations
from trueup.errors import ArgumentError
from trueup.kernels.tally import (
    REAL_COLUMNS,
    Cells,
    RunningTally,
    Tally,
    assign,
    cluster_rows,
    concatenate_tallies,
    cross,
    find_cells,
    group_rows,
    sort_rows,
    tally,
)
from trueup.kernels.threads import Workers
from trueup.metrics import inference
from trueup.metrics.inference import SCORE_GROUPS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from trueup._types import BoolArray, FloatArray, Int32Array, IntArray
    from trueup.audits.dispersion import Noise
    from trueup.audits.settings import AuditSettings
    from trueup.cluster.partitions import PartitionedTable
    from trueup.data.table import Feature, Schema, Table
    from trueup.kernels.tally import SortedRows

    CellCounts = tuple[IntArray, IntArray]  # numbers of cells, ascending, and their rows

OVERALL = "all rows"
MAX_THIN_LEVELS = 1000  # a column with more levels below min_rows has them counted, not listed
MAX_DISTINCT_DAYS = 1 << 20
T = TypeVar("T")
MAX_DEPTH = 3
MAX_UNCOUNTED_CELLS = 200_000  # up to here all cells are tallied at once; beyond, those with enough rows are found first
BYTES_PER_TALLY = 8 * (REAL_COLUMNS + 4 + 1)
BYTES_PER_COUNT = 16


@dataclass(frozen=True, eq=False)
class SegmentColumns:
    """Names and level labels of the segment columns; segments passed by the user come last, with one level each.

    ``edges`` has, for columns of numbers by position, the lowest value of every level but the first. ``pooled`` has the
    positions of the columns whose last level is that of the pooled rare levels.
    """

    names: tuple[str, ...]
    labels: tuple[tuple[str, ...], ...]
    edges: Mapping[int, FloatArray]
    pooled: frozenset[int] = frozenset()

    @classmethod
    def of(cls, binners: Sequence[ColumnBinner], segments: Sequence[str] = ()) -> SegmentColumns:
        """Return the columns with these bins, followed by segments passed by the user."""
        names, labels = [binner.name for binner in binners], [binner.labels for binner in binners]
        edges = {at: own.edges for at, own in enumerate(binners) if own.edges is not None and not own.unit}
        return cls((*names, *segments), (*labels, *((name,) for name in segments)), edges)


@dataclass(frozen=True, eq=False)
class SegmentGrid:
    """Levels of the segment columns, and the combinations of columns to test; columns are identified by position.

    Levels of a column with fewer than ``min_rows`` rows are pooled: together they are one more level, the last. ``counts``
    has the rows of every level of every column, ``pooled`` for some columns the level that each original level becomes.
    Columns from ``features`` on are segments passed by the user, which are not combined; then comes a copy of each column
    in ``unpooled``, whose rare levels are listed but not tested.
    """

    counts: Sequence[IntArray]
    features: int
    min_rows: int
    combinations: Sequence[tuple[int, ...]]
    dropped: Sequence[tuple[int, ...]]  # combinations left out to stay within ``max_cells``
    pooled: Mapping[int, Int32Array]
    unpooled: tuple[int, ...]

    @property
    def columns(self) -> IntArray:
        """Position of each column of the grid among the segment columns; a copy has that of its original."""
        return np.array([*range(len(self.counts) - len(self.unpooled)), *self.unpooled], np.int64)

    def encode(self, codes: Sequence[Int32Array]) -> list[Int32Array]:
        """Return codes of the columns of the grid, given those of the segment columns."""
        recoded = [self.pooled[at][own] if at in self.pooled else own for at, own in enumerate(codes)]
        return recoded + [codes[at] for at in self.unpooled]

    @cached_property
    def kept(self) -> list[IntArray]:
        """Levels of each column with at least ``min_rows`` rows: only these are combined."""
        return [np.flatnonzero(counts >= self.min_rows) for counts in self.counts[: self.features]]

    @cached_property
    def pairs(self) -> dict[tuple[int, int], list[int]]:
        """Pairs of columns to cross, and the third columns to cross each pair with.

        Columns with many levels come first: few of their pairs have enough rows, so the third column has little to cross.
        """
        position = np.argsort([-len(kept) for kept in self.kept], kind="stable").argsort()
        pairs: dict[tuple[int, int], list[int]] = defaultdict(list)
        for combination in self.combinations:
            first, second, *third = sorted(combination, key=lambda column: position[column])
            pairs[first, second].extend(third)
        return pairs


def plan_grid(
    columns: SegmentColumns, counts: Sequence[IntArray], features: int, rows: int, settings: AuditSettings, targets: int
) -> tuple[SegmentColumns, SegmentGrid]:
    """Pool rare levels of the first ``features`` columns, and choose their combinations within ``max_cells`` cells.

    Return the columns with labels of the pooled levels, and the grid. Levels that have all rows are not pooled. No other
    level or segment has the label of a pooled one.
    """
    taken = {label for column in columns.labels for label in column}
    labels, grid_counts = list(columns.labels), list(counts)
    pooled, unpooled, copies = {}, [], []
    for column, own in enumerate(counts[:features]):
        rare = (own > 0) & (own < settings.min_rows)
        if not rare.any():
            continue
        together = int(own[rare].sum())
        pooled[column] = np.where(rare, len(own), np.arange(len(own))).astype(np.int32)
        grid_counts[column] = np.append(np.where(rare, 0, own), together if together < rows else 0)
        text = f"{int(rare.sum()):,} rare levels"
        while (label := f"{columns.names[column]}=({text})") in taken:
            text += ", pooled"
        taken.add(label)
        labels[column] = (*labels[column], label)
        if rare.sum() <= MAX_THIN_LEVELS:
            unpooled.append(column)
            copies.append(np.where(rare, own, 0))
    levels = [int((count >= settings.min_rows).sum()) for count in grid_counts[:features]]
    plan = plan_combinations(
        dict(zip(columns.names, levels, strict=False)), rows, depth=settings.depth, min_rows=settings.min_rows,
        max_cells=settings.max_cells // targets,
    )  # fmt: skip
    grid = SegmentGrid([*grid_counts, *copies], features, settings.min_rows, *plan, pooled, tuple(unpooled))
    return replace(columns, labels=tuple(labels), pooled=frozenset(pooled)), grid


def segment_codes(
    table: Table, bins: int | Mapping[str, Any], segments: Mapping[str, Any] | None, workers: Workers
) -> tuple[SegmentColumns, list[Int32Array], list[IntArray]]:
    """Encode segment columns of a table in memory; return names and labels, codes of all rows, and rows per level."""
    bins = check_bins(table.columns, bins)

    def encode(feature: Feature) -> tuple[ColumnBinner, Int32Array, IntArray]:
        column = table.columns[feature.name]
        binner = fit_binner(feature, column, *bins_for(feature.name, bins))
        codes = binner.codes(column)
        counts = np.bincount(codes, minlength=len(binner.labels))
        if len(counts) > len(binner.labels):  # the kernels index by code without checking
            raise AssertionError(f"column {feature.name!r} has a code beyond its {len(binner.labels)} levels")
        return binner, codes, counts

    encoded = workers.map(encode, table.schema.features)
    binners = [item[0] for item in encoded]
    codes = [item[1] for item in encoded]
    counts = [item[2] for item in encoded]
    taken = {OVERALL, *(label for binner in binners for label in binner.labels)}
    rows_passed = len(table) + table.unlabelled + table.weightless
    masks = check_segments(table, segments, rows_passed, taken)
    for mask in masks.values():
        codes.append(np.where(mask, np.int32(0), np.int32(-1)))
        counts.append(np.array([np.sum(mask)]))
    return SegmentColumns.of(binners, list(masks)), codes, counts


def fit_binners(rows: PartitionedTable, bins: int | Mapping[str, Any]) -> list[ColumnBinner]:
    """Fit the bins of every segment column on all rows, or on a sample of as many as memory holds."""
    features = rows.schema.features
    bins = check_bins([feature.name for feature in features], bins)
    return [_fit_binner(rows, feature, *bins_for(feature.name, bins)) for feature in features]


def _fit_binner(rows: PartitionedTable, feature: Feature, bins: Any, default_bins: int) -> ColumnBinner:
    name = feature.name
    if feature.kind == "categorical":
        return fit_binner(feature, np.array([-1] if rows.has_missing(name) else [], np.int32), bins)
    if feature.kind == "date" and (bins is None or isinstance(bins, str)):
        return fit_binner(feature, rows.distinct(name, MAX_DISTINCT_DAYS, days=True), bins)
    values, complete = rows.sample(name)
    if complete:
        return fit_binner(feature, values, bins, default_bins)
    count = default_bins if bins is None else bins
    distinct = rows.distinct(name, int(count)) if isinstance(count, (int, np.integer)) else np.empty(0)
    if 0 < len(distinct) <= count + bool(np.isnan(distinct).any()):
        return fit_binner(feature, distinct, bins, default_bins)
    # With these values added, a sample with few distinct values is not mistaken for a column with few.
    values = np.concatenate([values, distinct])
    return fit_binner(feature, np.append(values, np.nan) if rows.has_missing(name) else values, bins, default_bins)


@dataclass(frozen=True, eq=False)
class SortedChunk:
    """Rows in ascending score order, with the code of every segment column (one array row per column)."""

    rows: SortedRows
    codes: Int32Array
    grid: SegmentGrid
    threads: int | None = None

    @cached_property
    def zeros(self) -> Int32Array:
        """Zeros, one per row: the ``parent`` (see the module) of segments of at most one column."""
        return np.zeros(len(self.rows), np.int32)

    @cached_property
    def kept_codes(self) -> list[Int32Array]:
        """Per column, the position of each row's level among levels with enough rows (``grid.kept``), -1 for others."""
        recoded = []
        for counts, codes, kept in zip(self.grid.counts, self.codes, self.grid.kept, strict=False):
            position = np.full(len(counts), -1, np.int32)
            position[kept] = np.arange(len(kept), dtype=np.int32)
            recoded.append(codes if len(kept) == len(counts) else position[codes])
        return recoded

    @cached_property
    def index(self) -> tuple[Int32Array, Int32Array, Int32Array]:
        """Triple: rows sorted by level, per column; start of each level in them; start of each column in these starts."""
        sizes = [len(counts) + 1 for counts in self.grid.counts]
        first = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
        order, start = np.empty_like(self.codes), np.zeros(first[-1], np.int32)

        def group(column: int) -> None:
            group_rows(self.codes[column], start[first[column] : first[column + 1]], order[column])

        Workers(self.threads).map(group, range(len(sizes)))
        return order, start, first

    def segment_of_rows(self, columns: tuple[int, ...], codes: Int32Array) -> Int32Array:
        """Return the segment index of each row or -1; ``codes`` has levels of ``columns``, one array row per segment."""
        if not columns:
            return self.zeros
        levels = [len(self.grid.counts[column]) for column in columns]
        ids, place, height = self.codes[columns[0]], codes[:, 0].astype(np.int64), levels[0]
        for depth in range(1, len(columns)):
            cells, place = np.unique(place * levels[depth] + codes[:, depth], return_inverse=True)
            ids, height = assign(ids, self.codes[columns[depth]], (height, levels[depth]), cells), len(cells)
        segment = np.full(height + 1, -1, np.int32)  # the last entry is for rows in no cell
        segment[place] = np.arange(len(codes), dtype=np.int32)
        return np.asarray(segment[ids])


@dataclass(frozen=True, eq=False)
class ScorePartition:
    """Rows of one audited score in one score range, to be read once: one sorted chunk, or several if scores are equal."""

    target: int
    number: int
    chunks: Iterable[SortedChunk]


@dataclass(frozen=True, eq=False, kw_only=True)
class AuditRows(ABC):
    """The rows of an audit by audited score and score range: `MemoryRows` or `trueup.audits.partitions.PartitionedRows`."""

    targets: tuple[str, ...]  # labels of the audited scores
    rows: int
    real: bool
    weighted: bool
    sequential: bool = True  # whether partitions are read in ascending score order, in this process
    max_result_bytes: float = math.inf  # of one pass
    max_held_rows: float = math.inf  # whose scores may be held at once
    ratios: tuple[float, ...] = ()  # of the weights of outcomes 1 and 0, per audited score
    dependent: tuple[bool, ...] = ()  # whether weights depend on the outcome in another way, per audited score
    heaviest: float = 1.0  # the largest weight of a row
    score_edges: tuple[FloatArray, ...] = ()  # per audited score, edges of groups of similar scores; empty without clusters

    @abstractmethod
    def map_clusters(self, work: Callable[[ScorePartition], T], add: Callable[[T, T], T]) -> list[T]:
        """Call ``work`` on every partition of whole clusters, in cluster order; return the sum per audited score.

        The ``step`` of a row is the number of its cluster in the partition.
        """

    @abstractmethod
    def map_reduce(self, work: Callable[[ScorePartition], T], add: Callable[[T, T], T]) -> list[T]:
        """Call ``work`` on every partition; return the sum per audited score, by ``add`` in ascending score order."""


@dataclass(frozen=True, eq=False, kw_only=True)
class MemoryRows(AuditRows):
    """Rows in memory: one partition of one chunk per audited score.

    ``clusters`` has the same rows in cluster order, with the number of the cluster as ``step``; empty without clusters.
    """

    chunks: tuple[SortedChunk, ...]
    clusters: tuple[SortedChunk, ...] = ()

    @classmethod
    def from_table(cls, table: Table, codes: Sequence[Int32Array], grid: SegmentGrid, threads: int | None) -> MemoryRows:
        """Sort the rows of a table, with their segment ``codes``, by every audited score."""
        real, known = table.schema.task == "regression", 1.0 if table.sampling is None else table.sampling.ratio
        codes, given, dependent = grid.encode(codes), table.given_weight, []

        def sort(p: FloatArray, y: FloatArray) -> SortedChunk:
            rows, found = sort_rows(y, p, table.weight, real=real), (known, False)
            own = rows if given is table.weight else sort_rows(y, p, given, real=real)  # may depend on y besides
            if not real and (own.w != own.w[:1]).any():
                model = inference.WeightModel.fit(inference.weight_sums(own))
                found = known * model.ratio, model.is_incomplete(model.residual_sums(own))
            dependent.append(found[1])
            return SortedChunk(replace(rows, ratio=found[0]), reorder(rows.order), grid, threads)

        def reorder(order: IntArray) -> Int32Array:
            ordered = np.empty((len(codes), len(order)), np.int32)
            take = lambda column: np.take(codes[column], order, out=ordered[column], mode="clip")  # noqa: E731
            Workers(threads).map(take, range(len(codes)))
            return ordered

        chunks = tuple(sort(p, y) for p, y in target_scores(table))
        clusters: tuple[SortedChunk, ...] = ()
        if table.cluster is not None:
            order = np.argsort(table.cluster, kind="stable")
            ordered = reorder(order)
            clusters = tuple(
                SortedChunk(
                    replace(cluster_rows(y, p, table.weight, table.cluster, order), ratio=chunk.rows.ratio),
                    ordered, grid, threads,
                )
                for (p, y), chunk in zip(target_scores(table), chunks, strict=True)
            )  # fmt: skip
        return cls(
            targets=target_labels(table.schema), rows=len(table), real=real, weighted=table.weight is not None,
            chunks=chunks, clusters=clusters, score_edges=tuple(score_quartiles(chunk.rows.p) for chunk in clusters),
            ratios=tuple(chunk.rows.ratio for chunk in chunks), dependent=tuple(dependent),
            heaviest=float(table.weight.max(initial=0.0)) if table.weight is not None else 1.0,
        )  # fmt: skip

    def map_clusters(self, work: Callable[[ScorePartition], T], add: Callable[[T, T], T]) -> list[T]:  # noqa: ARG002
        """Call ``work`` on the rows of every audited score, in cluster order; return the results."""
        return [work(ScorePartition(target, 0, (chunk,))) for target, chunk in enumerate(self.clusters)]

    def map_reduce(self, work: Callable[[ScorePartition], T], add: Callable[[T, T], T]) -> list[T]:  # noqa: ARG002
        """Call ``work`` on the rows of every audited score; return the results."""
        return [work(ScorePartition(target, 0, (chunk,))) for target, chunk in enumerate(self.chunks)]


def require_outcome(outcome: object) -> None:
    """Raise if there is no outcome."""
    if outcome is None:
        hint, example = "name its column: {outcome}", {"outcome": "y"}
        raise ArgumentError("an audit needs the outcome", hint, parameter="outcome", settings=example)


def score_quartiles(p: FloatArray) -> FloatArray:
    """Return the scores that separate groups of similar scores: quartiles, equal scores being in one group."""
    if not len(p):
        return np.empty(0)
    ranks = (np.arange(1, SCORE_GROUPS) * len(p)) // SCORE_GROUPS
    return np.asarray(np.partition(p, ranks)[ranks])


def target_labels(schema: Schema) -> tuple[str, ...]:
    """Return labels of the audited scores: an empty one for a single score, else "top label" and "class=..." per class."""
    return ("top label", *(f"class={name}" for name in schema.classes)) if len(schema.prediction) > 1 else ("",)


def target_scores(table: Table) -> Iterator[tuple[FloatArray, FloatArray]]:
    """Yield scores and outcomes of a single prediction or, with several classes, of the top label and of each class."""
    p, y = table.prediction, table.y
    if p.ndim == 1:
        yield p, y
        return
    top = np.argmax(p, axis=1) if len(p) else np.empty(0, np.int64)
    yield p[np.arange(len(p)), top], (y == top).astype(np.float64)
    for position in range(p.shape[1]):
        yield np.ascontiguousarray(p[:, position]), (y == position).astype(np.float64)


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
    """All segments of one audited score; each block has those of one combination of columns."""

    label: str
    real: bool
    blocks: list[SegmentBlock]
    noise: Noise | None = None  # of real outcomes

    @cached_property
    def starts(self) -> IntArray:
        """Index of the first segment of each block, and the number of all segments at the end."""
        return np.concatenate([[0], np.cumsum([len(block.codes) for block in self.blocks])])

    def __len__(self) -> int:
        return int(self.starts[-1])

    def take(self, which: IntArray) -> Tally:
        """Return the tally of the segments with indices ``which``."""
        owner = np.searchsorted(self.starts, which, side="right") - 1
        order = np.argsort(owner, kind="stable")
        parts = [self.blocks[at].tally.take(which[owner == at] - self.starts[at]) for at in np.unique(owner)]
        return concatenate_tallies(parts or [self.blocks[0].tally.take(which)]).take(np.argsort(order, kind="stable"))

    @cached_property
    def keys(self) -> tuple[Int32Array, Int32Array]:
        """Columns and level codes of every segment, shape (segments, MAX_DEPTH) each, padded with -1."""
        columns, codes = (np.full((len(self), MAX_DEPTH), -1, np.int32) for _ in range(2))
        for block, (start, stop) in zip(self.blocks, itertools.pairwise(self.starts), strict=True):
            columns[start:stop, : len(block.columns)] = block.columns
            codes[start:stop, : len(block.columns)] = block.codes
        return columns, codes


@dataclass(frozen=True, eq=False)
class Combination:
    """One combination of columns; ``cells`` (see the module) are those to tally, None until they are known.

    ``parents`` has the level codes of each parent, one array row per parent; ``levels`` the level of the last column that
    each ``code`` stands for. ``fixed`` cells are reported even if they have fewer than ``min_rows`` rows.
    """

    columns: tuple[int, ...]
    parents: Int32Array
    levels: IntArray
    cells: Cells | None = None
    fixed: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        """Number of parents and number of levels of the last column."""
        return len(self.parents), len(self.levels)

    def segments(self) -> Int32Array:
        """Return the level codes of every cell to tally, one array row per cell."""
        assert self.cells is not None
        codes = np.empty((len(self.cells), len(self.columns)), np.int32)
        if self.columns:
            codes[:, :-1] = self.parents[self.cells.numbers // self.shape[1]]
            codes[:, -1] = self.levels[self.cells.numbers % self.shape[1]]
        return codes

    def block(self, sums: Tally, keep: BoolArray | None = None, thin: int | None = None) -> SegmentBlock:
        """Return the cells (those to ``keep``) with tally ``sums``, columns in data order; ``thin``: see `SegmentBlock`."""
        assert self.cells is not None
        order = sorted(range(len(self.columns)), key=lambda position: self.columns[position])
        codes = self.segments()[:, order]
        if keep is not None and not keep.all():
            sums, codes = sums.take(np.flatnonzero(keep)), codes[keep]
        columns = tuple(self.columns[position] for position in order)
        return SegmentBlock(columns, codes, sums, self.cells.thin if thin is None else thin)


Group = list[Combination]  # one combination of at most two columns, then those of three that its segments are crossed for


def find_families(
    rows: AuditRows, grid: SegmentGrid, workers: Workers, noise: Noise | None = None
) -> tuple[list[SegmentFamily], Pool | None]:
    """Find and tally the segments of every audited score; return also, if not in memory, the pooled rows of the first.

    ``noise`` is the model of the noise of real outcomes.
    """
    combinations = single_and_paired_columns(rows.rows, grid)
    fixed, pairs = [[one] for one in combinations if one.fixed], [one for one in combinations if not one.fixed]
    pool = None
    if isinstance(rows, MemoryRows):
        groups = fixed + [[pair, *_cross(pair, pair.parents[:0], grid)] for pair in pairs]
        blocks = []
        for chunk in rows.chunks if noise is None else map(noise.apply, rows.chunks):
            chunk.zeros, chunk.kept_codes  # noqa: B018  # computed here, once, and not by every thread at the same time
            blocks.append(list(itertools.chain(*workers.map(partial(_tally_in_memory, chunk), groups))))
    else:
        blocks, pool = _tally_partitions(rows, grid, fixed + _with_cells(pairs, rows, grid), noise)
    families = [SegmentFamily(label, rows.real, own, noise) for label, own in zip(rows.targets, blocks, strict=True)]
    return families, pool


def single_and_paired_columns(rows: int, grid: SegmentGrid) -> list[Combination]:
    """Return the combinations of no column (all rows) and of one column, with their cells, then those of two columns."""
    nothing = np.empty((1, 0), np.int32)
    cells = Cells(np.zeros(1, np.int64), np.array([rows]))
    fixed = [Combination((), nothing, np.zeros(1, np.int64), cells, fixed=True)]
    passed = range(grid.features, len(grid.counts) - len(grid.unpooled))
    for column, counts in enumerate(grid.counts):
        # Segments passed by the user are reported even if they are empty, rare levels (in a copy) although not testable.
        listed = counts >= (0 if column in passed else grid.min_rows if column < grid.features else 1)
        rare = int((grid.pooled[column] == len(counts) - 1).sum()) if column in grid.pooled else 0
        cells = Cells(np.flatnonzero(listed), counts[listed], rare)
        fixed.append(Combination((column,), nothing, np.arange(len(counts)), cells, fixed=True))
    parents = [kept[:, None].astype(np.int32) for kept in grid.kept]
    return fixed + [Combination(pair, parents[pair[0]], grid.kept[pair[1]]) for pair in grid.pairs]


def _cross(pair: Combination, parents: Int32Array, grid: SegmentGrid) -> list[Combination]:
    """Return three-column combinations of a pair, whose segments are ``parents``, with each column in ``grid.pairs``."""
    first, second = pair.columns
    return [Combination((first, second, third), parents, grid.kept[third]) for third in grid.pairs[first, second]]


def cell_codes(group: Group, chunk: SortedChunk) -> list[tuple[Int32Array, Int32Array]]:
    """Return ``parent`` and ``code`` (see the module) of every row of a chunk, for each combination of a group."""
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
    """Find and tally the cells of a group (one combination, then triples that extend it), by one kernel call for each."""
    head, *triples = group
    parent, code = cell_codes([head], chunk)[0]
    if head.cells is not None:
        return [head.block(tally(chunk.rows, parent, code, head.shape, head.cells))]
    cells, sums = cross(chunk.rows, parent, code, head.shape, chunk.grid.min_rows)
    head = replace(head, cells=cells)
    blocks = [head.block(sums)]
    triples = [replace(triple, parents=head.segments()) for triple in triples]
    for triple, (parent, code) in zip(triples, cell_codes([head, *triples], chunk)[1:], strict=True):
        cells, sums = cross(chunk.rows, parent, code, triple.shape, chunk.grid.min_rows)
        blocks.append(replace(triple, cells=cells).block(sums))
    return blocks


def _with_cells(pairs: Group, rows: AuditRows, grid: SegmentGrid) -> list[Group]:
    """Return groups of a pair and its triples with cells to tally: all, or those with enough rows if all are too many."""
    sizes = [
        math.prod(pair.shape) * (1 + sum(len(triple.levels) for triple in _cross(pair, pair.parents, grid)))
        for pair in pairs
    ]
    if sum(sizes) <= MAX_UNCOUNTED_CELLS:
        complete = map(_with_all_cells, pairs)
        return [[pair, *map(_with_all_cells, _cross(pair, pair.segments(), grid))] for pair in complete]
    counted = _count_cells([[pair] for pair in pairs], rows, grid)
    return _count_cells([[pair, *_cross(pair, pair.segments(), grid)] for (pair,) in counted], rows, grid)


def _with_all_cells(combination: Combination) -> Combination:
    numbers = np.arange(math.prod(combination.shape))
    return replace(combination, cells=Cells(numbers, np.zeros(len(numbers), np.int64)))


def _count_cells(groups: list[Group], rows: AuditRows, grid: SegmentGrid) -> list[Group]:
    """Find the cells with enough rows, in a pass over the rows, of the combinations whose ``cells`` are None."""
    sizes = [
        BYTES_PER_COUNT * sum(min(math.prod(one.shape), rows.rows) for one in group if one.cells is None)
        for group in groups
    ]
    known: list[Group] = []
    for batch in batches(groups, sizes, rows.max_result_bytes):
        counts = iter(rows.map_reduce(partial(_count_pass, batch), _add_counts)[0]) if any(sizes) else iter(())
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
    """Divide items into batches whose ``sizes`` add up to at most ``budget``; a larger item is a batch of its own."""
    batches: list[list[T]] = []
    total = 0
    for item, size in zip(items, sizes, strict=True):
        if not batches or total + size > budget:
            batches.append([])
            total = 0
        batches[-1].append(item)
        total += size
    return batches


def _count_pass(groups: list[Group], partition: ScorePartition) -> list[CellCounts]:
    """Count rows per cell where ``cells`` is None, for the first audited score only, since all scores have equal counts."""
    totals: list[CellCounts] = []

    def count(group: Group) -> list[CellCounts]:
        located = zip(group, cell_codes(group, chunk), strict=True)
        found = [find_cells(*codes, combination.shape, 1) for combination, codes in located if combination.cells is None]
        return [(cells.numbers, np.asarray(cells.rows, np.int64)) for cells in found]

    for chunk in partition.chunks if partition.target == 0 else ():
        chunk.kept_codes  # noqa: B018
        counts = list(itertools.chain.from_iterable(Workers(chunk.threads).map(count, groups)))
        totals = _add_counts(totals, counts) if totals else counts
    return totals


def _add_counts(one: list[CellCounts], other: list[CellCounts]) -> list[CellCounts]:
    total = []
    for a, b in zip(one, other, strict=True):
        numbers, place = np.unique(np.append(a[0], b[0]), return_inverse=True)
        total.append((numbers, np.bincount(place, np.append(a[1], b[1]), len(numbers)).astype(np.int64)))
    return total


def _tally_partitions(
    rows: AuditRows, grid: SegmentGrid, groups: list[Group], noise: Noise | None
) -> tuple[list[list[SegmentBlock]], Pool | None]:
    """Return the blocks of all groups per audited score, tallied over its partitions, and pooled rows of the first."""
    sizes = [BYTES_PER_TALLY * sum(len(one.cells) for one in group if one.cells is not None) for group in groups]
    tallies: list[list[Tally]] = [[] for _ in rows.targets]
    pool = None
    for batch in batches(groups, sizes, rows.max_result_bytes):
        pool_rows = rows.rows if pool is None else 0
        work = partial(_tally_pass, batch, noise, real=rows.real, weighted=rows.weighted, pool_rows=pool_rows)
        results = rows.map_reduce(work, _add_tallies)
        pool = results[0][1] or pool
        for own, (more, _) in zip(tallies, results, strict=True):
            own += more
    return [_blocks(groups, own, grid.min_rows) for own in tallies], pool


def _tally_pass(
    groups: list[Group], noise: Noise | None, partition: ScorePartition, *, real: bool, weighted: bool, pool_rows: int
) -> tuple[list[Tally], Pool | None]:
    """Tally cells of one partition; pool rows of the first audited score if ``pool_rows``, the row count, is not 0."""
    tallies = [[RunningTally(one.shape, one.cells, real=real) for one in group] for group in groups]  # type: ignore[arg-type]
    pools = []

    def advance(number: int) -> None:
        for running, (parent, code) in zip(tallies[number], cell_codes(groups[number], chunk), strict=True):
            if len(running.cells):
                running.advance(chunk.rows, parent, code)

    for chunk in partition.chunks if noise is None else map(noise.apply, partition.chunks):
        chunk.zeros, chunk.kept_codes  # noqa: B018
        Workers(chunk.threads).map(advance, range(len(groups)))
        if pool_rows and partition.target == 0:
            pools.append(Pool.of(chunk.rows, pool_rows))
    finished = [one.finish(weighted=weighted) for group in tallies for one in group]
    return finished, Pool.join(pools) if pools else None


def _add_tallies(
    one: tuple[list[Tally], Pool | None], other: tuple[list[Tally], Pool | None]
) -> tuple[list[Tally], Pool | None]:
    pools = [pool for _, pool in (one, other) if pool is not None]
    return [a + b for a, b in zip(one[0], other[0], strict=True)], Pool.join(pools) if pools else None


def _blocks(groups: list[Group], tallies: list[Tally], min_rows: int) -> list[SegmentBlock]:
    """Return one block per combination; unless it is ``fixed``, without cells that have fewer than ``min_rows`` rows."""
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
