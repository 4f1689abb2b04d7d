"""Rows of an audit, partitioned by score range: in memory, in files, or on the workers of a cluster.

No score is in two partitions, so that the tallies of partitions add exactly (`trueup.kernels.tally.Tally`). Rows in
memory are one partition. Files are read once and written to one file per score range. On a cluster one shuffle moves every
row to the task of its score range. With several classes, the top label and every class is a target with score ranges of its
own: each row is moved once per target, all in the same shuffle.
"""

from __future__ import annotations

import functools
import itertools
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from trueup.audits.spill import (
    MAX_OPEN_FILES,
    ScoreSpill,
    make_records,
    record_dtype,
    score_edges,
    spill_ranges,
    split_by_score,
)
from trueup.cluster.partitions import FramePartitions
from trueup.data.checks import RowSummary
from trueup.data.folds import digest_rows
from trueup.kernels.cumulative import group_rows
from trueup.kernels.tally import SortedRows, assign, sort_rows
from trueup.kernels.threads import Workers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from contextlib import ExitStack

    from trueup._types import AnyArray, FloatArray, Int32Array, IntArray
    from trueup.audits.grid import SegmentGrid
    from trueup.cluster.partitions import PartitionedTable, ShuffledRecords
    from trueup.data.bins import ColumnBinner
    from trueup.data.schema import Schema
    from trueup.data.table import Table

T = TypeVar("T")
MAX_STEP = 2**31 - 1
BYTES_PER_ROW = 120  # of a chunk in memory, and 12 more per column
MIN_CHUNK_ROWS = 100_000
ROWS_PER_TASK = 250_000  # of a score range on a cluster
MAX_CHUNK_ROWS = 1_000_000  # of a task: a score shared by more rows is read in several chunks
BYTES_PER_HELD_ROW = 50  # where p-values are refined
MAX_HELD_ROWS = 20_000_000
MAX_RESULT_BYTES = 32_000_000  # of one pass over a cluster: the driver may hold 16 results at once
CLUSTER_PASSES = 4  # over the rows, unless there are many segments: shuffle, tallies, weights, curves


# Chunks and partitions


@dataclass(frozen=True, eq=False)
class SortedChunk:
    """Rows in ascending score order, with the code of every segment column (one array row per column)."""

    rows: SortedRows
    codes: Int32Array
    grid: SegmentGrid
    threads: int | None = None

    @cached_property
    def zeros(self) -> Int32Array:
        """A code of 0 for every row: the parent of segments of one column."""
        return np.zeros(len(self.rows), np.int32)

    @cached_property
    def kept_codes(self) -> list[Int32Array]:
        """Codes among the levels with enough rows, -1 for the others."""
        recoded = []
        for counts, codes, kept in zip(self.grid.counts, self.codes, self.grid.kept, strict=False):
            if len(kept) == len(counts):
                recoded.append(codes)
                continue
            position = np.full(len(counts), -1, np.int32)
            position[kept] = np.arange(len(kept), dtype=np.int32)
            recoded.append(position[codes])
        return recoded

    @cached_property
    def index(self) -> tuple[Int32Array, Int32Array, Int32Array]:
        """Rows of each column grouped by level; where each level starts; where the levels of each column start."""
        sizes = [len(counts) + 1 for counts in self.grid.counts]
        first = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
        order, start = np.empty_like(self.codes), np.zeros(first[-1], np.int32)

        def group(column: int) -> None:
            group_rows(self.codes[column], start[first[column] : first[column + 1]], order[column])

        Workers(self.threads).map(group, range(len(sizes)))
        return order, start, first

    def segment_of_rows(self, columns: tuple[int, ...], codes: Int32Array) -> Int32Array:
        """Return for each row which segment of a combination of columns it is in, -1 for none.

        ``codes`` are those of the segments, one array row each.
        """
        if not columns:
            return self.zeros
        levels = [len(self.grid.counts[column]) for column in columns]
        ids, place, height = self.codes[columns[0]], codes[:, 0].astype(np.int64), levels[0]
        for depth in range(1, len(columns)):
            cells, place = np.unique(place * levels[depth] + codes[:, depth], return_inverse=True)
            ids, height = assign(ids, self.codes[columns[depth]], (height, levels[depth]), cells), len(cells)
        segment = np.full(height + 1, -1, np.int32)  # the last entry is for rows in no cell
        segment[place] = np.arange(len(codes), dtype=np.int32)
        found: Int32Array = segment[ids]
        return found


@dataclass(frozen=True, eq=False)
class ScorePartition:
    """Rows of one target in one score range: sorted chunks, to be read once.

    No score of a chunk is below those of the chunk before; a score may go on from one chunk to the next, with the same
    step number.
    """

    target: int
    number: int
    chunks: Iterable[SortedChunk]


def sorted_chunks(
    items: Iterable[AnyArray], grid: SegmentGrid, *, real: bool, threads: int | None
) -> Iterator[SortedChunk]:
    """Sort records item by item; no score of an item is below those of the item before."""
    base, last = 0, -math.inf
    for records in items:
        names = records.dtype.names or ()
        weights = np.ascontiguousarray(records["w"]) if "w" in names else None
        rows = sort_rows(records["y"].astype(np.float64), np.ascontiguousarray(records["p"]), weights, real=real)
        if not rows.p[0] >= last:
            raise AssertionError(f"scores are out of order: {rows.p[0]} after {last}")
        base += rows.p[0] != last
        step = ((rows.step.astype(np.int64) + base) & MAX_STEP).astype(np.int32)
        base, last = base + int(rows.step[-1]), float(rows.p[-1])
        columns = [name for name in names if name.startswith("c")]
        codes = np.empty((len(columns), len(records)), np.int32)
        for column, name in enumerate(columns):
            codes[column] = records[name][rows.order]
        yield SortedChunk(SortedRows(rows.order, step, rows.e, rows.p, rows.w, real), codes, grid, threads)


class AuditRows(ABC):
    """The rows of an audit by target and score range.

    Attributes
    ----------
    targets : tuple of str
        Labels of the audited scores: one without a name, or the top label and every class.
    rows : int
    real, weighted : bool
        Whether outcomes are real numbers rather than probabilities, and whether rows have weights.
    max_result_bytes, max_held_rows : float
        How large the result of a pass may be, and the scores of how many rows may be held at once.
    """

    targets: tuple[str, ...]
    rows: int
    real: bool
    weighted: bool
    max_result_bytes: float
    max_held_rows: float

    @abstractmethod
    def map_reduce(self, work: Callable[[ScorePartition], T], add: Callable[[T, T], T]) -> list[T]:
        """Call ``work`` on every partition; return the sum per target, added in ascending score order."""


# Rows in memory


@dataclass(frozen=True, eq=False, kw_only=True)
class MemoryRows(AuditRows):
    """Rows in memory: one partition of one chunk per target."""

    targets: tuple[str, ...]
    rows: int
    real: bool
    weighted: bool
    chunks: tuple[SortedChunk, ...]
    max_result_bytes: float = math.inf
    max_held_rows: float = math.inf

    @classmethod
    def from_table(cls, table: Table, codes: Sequence[Int32Array], grid: SegmentGrid, threads: int | None) -> MemoryRows:
        """Sort the rows of a table by every score that is audited."""
        real = table.schema.task == "regression"
        targets, chunks = [], []
        for label, p, y in target_scores(table):
            rows = sort_rows(y, p, table.weight, real=real)
            ordered = np.empty((len(codes), len(rows)), np.int32)
            work = partial(_take_codes, codes, rows.order, ordered)
            Workers(threads).map(work, range(len(codes)))
            targets.append(label)
            chunks.append(SortedChunk(rows, ordered, grid, threads))
        return cls(
            targets=tuple(targets), rows=len(table), real=real, weighted=table.weight is not None, chunks=tuple(chunks)
        )

    def map_reduce(self, work: Callable[[ScorePartition], T], add: Callable[[T, T], T]) -> list[T]:  # noqa: ARG002
        """Call ``work`` on the rows of every target."""
        return [work(ScorePartition(target, 0, (chunk,))) for target, chunk in enumerate(self.chunks)]


def _take_codes(codes: Sequence[Int32Array], order: IntArray, out: Int32Array, column: int) -> None:
    np.take(codes[column], order, out=out[column], mode="clip")


def target_scores(table: Table) -> Iterator[tuple[str, FloatArray, FloatArray]]:
    """Yield label, score and outcome of every target: the only score, or the top label and every class."""
    p, y = table.prediction, table.outcome
    assert y is not None
    if p.ndim == 1:
        yield "", p, y
        return
    top = np.argmax(p, axis=1) if len(p) else np.empty(0, np.int64)
    yield "top label", p[np.arange(len(p)), top], (y == top).astype(np.float64)
    for position, name in enumerate(table.schema.classes):
        yield f"class={name}", np.ascontiguousarray(p[:, position]), (y == position).astype(np.float64)


def target_labels(schema: Schema) -> tuple[str, ...]:
    """Return the labels of the targets, as `target_scores` yields them."""
    return ("top label", *(f"class={name}" for name in schema.classes)) if len(schema.prediction) > 1 else ("",)


# Rows in files and on clusters


@dataclass(frozen=True, eq=False)
class RowFacts:
    """Facts about rows that add over partitions: counts, checks, rows per level, and digests of the rows."""

    schema: Schema
    summary: RowSummary
    counts: list[IntArray]
    """Rows of every level of every segment column."""
    digests: tuple[int, ...]

    def __add__(self, other: RowFacts) -> RowFacts:
        return RowFacts(
            self.schema,
            self.summary + other.summary,
            [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)],
            tuple((a + b) % 2**64 for a, b in zip(self.digests, other.digests, strict=True)),
        )

    @property
    def fingerprint(self) -> str:
        """A digest of outcomes, predictions and weights that does not depend on the order of rows."""
        return format_fingerprint(self.digests)


def format_fingerprint(digests: Sequence[int]) -> str:
    """Write digests as hexadecimal digits."""
    return "".join(f"{digest:016x}" for digest in digests)


def row_digests(p: FloatArray, e: FloatArray, w: FloatArray) -> tuple[int, ...]:
    """Return two digests of the rows that do not depend on their order; ``e`` is w (y - p)."""
    y = recover_outcomes(p, e, w)
    return tuple(int(digest_rows([y, p, w], [], seed)) for seed in (1, 2))


def recover_outcomes(p: FloatArray, e: FloatArray, w: FloatArray) -> FloatArray:
    """Return the outcomes y of differences e = w (y - p), rounded where they are an integer but for rounding error."""
    y = p + e / w
    integer = np.rint(y) + 0.0  # no negative zero
    return np.where(np.abs(y - integer) < 1e-12, integer, y)


@dataclass(frozen=True, eq=False)
class RecordEncoder:
    """Turns tables into records of every target, and into facts. Travels to the workers of a cluster."""

    binners: Sequence[ColumnBinner]
    dtype: np.dtype[Any]

    @classmethod
    def of(cls, table: PartitionedTable, binners: Sequence[ColumnBinner]) -> RecordEncoder:
        """Choose the layout of records."""
        discrete = table.schema.task != "regression" and table.discrete_outcomes
        levels = [len(binner.labels) for binner in binners]
        return cls(binners, record_dtype(levels, weighted=table.schema.weight is not None, discrete=discrete))

    def encode(self, table: Table, workers: Workers) -> tuple[RowFacts, list[AnyArray]]:
        """Return the facts about the rows of a table, but for their summary, and their records for every target."""
        codes = workers.map(lambda binner: binner.codes(table.columns[binner.name]), self.binners)
        counts = [
            np.bincount(column, minlength=len(binner.labels)) for column, binner in zip(codes, self.binners, strict=True)
        ]
        records: list[AnyArray] = []
        digests: tuple[int, ...] = (0, 0)
        for target, (_, p, y) in enumerate(target_scores(table)):
            records.append(make_records(self.dtype, p, y, table.weight, codes))
            if target == 0 and len(table):
                w = np.ones(len(y)) if table.weight is None else table.weight
                digests = row_digests(p, w * (y - p), w)
        return RowFacts(table.schema, RowSummary(), counts, digests), records


@dataclass(frozen=True, eq=False, kw_only=True)
class SpilledRows(AuditRows):
    """Rows in files, one per target and score range."""

    targets: tuple[str, ...]
    rows: int
    real: bool
    weighted: bool
    max_result_bytes: float
    max_held_rows: float
    spills: tuple[ScoreSpill, ...]
    grid: SegmentGrid
    workers: Workers

    def map_reduce(self, work: Callable[[ScorePartition], T], add: Callable[[T, T], T]) -> list[T]:
        """Call ``work`` on one partition after the other."""
        return [functools.reduce(add, self._results(target, work)) for target in range(len(self.spills))]

    def _results(self, target: int, work: Callable[[ScorePartition], T]) -> Iterator[T]:
        spill, done = self.spills[target], 0
        for number, count in enumerate(spill.counts):
            if count:
                chunks = sorted_chunks(spill.read(number), self.grid, real=self.real, threads=self.workers.threads)
                yield work(ScorePartition(target, number, chunks))
                done += count
                if self.workers.progress is not None:
                    self.workers.progress(done, self.rows)


def _spill(
    table: PartitionedTable, binners: Sequence[ColumnBinner], workers: Workers, stack: ExitStack
) -> tuple[RowFacts, tuple[ScoreSpill, ...]]:
    """Write every row to the file of its score range, for every target; files are closed with the stack."""
    encoder, schema = RecordEncoder.of(table, binners), table.schema
    max_rows = max(table.memory_budget // (BYTES_PER_ROW + 12 * len(binners)), MIN_CHUNK_ROWS)
    labels = target_labels(schema)
    max_open_files = MAX_OPEN_FILES // len(labels)
    spills: list[ScoreSpill] = []
    facts: RowFacts | None = None
    summary = RowSummary()
    done, quiet = 0, Workers(workers.threads)
    for chunk in table.iter_tables():
        more, records = encoder.encode(chunk, quiet)
        facts, summary = more if facts is None else facts + more, summary.include(chunk)
        for target, some in enumerate(records):
            if target == len(spills):
                sample = table.values(schema.prediction[0])[0] if len(labels) == 1 else some["p"]
                directory = table.spill_directory / f"score-{target}"
                directory.mkdir()
                edges = score_edges(sample, spill_ranges(table.rows, max_rows))
                spills.append(ScoreSpill(directory, encoder.dtype, edges, max_rows, max_open_files))
                stack.callback(spills[target].close)
            spills[target].add(some)
        done += len(chunk) + chunk.unlabelled + chunk.weightless
        if workers.progress is not None:
            workers.progress(done, table.rows)
    assert facts is not None
    summary.check(facts.schema)
    for spill in spills:
        spill.finish()
    return replace(facts, summary=summary), tuple(spills)


@dataclass(frozen=True, eq=False, kw_only=True)
class ShuffledRows(AuditRows):
    """Rows on the workers of a cluster: partition numbers count the score ranges of one target after the other."""

    targets: tuple[str, ...]
    rows: int
    real: bool
    weighted: bool
    max_held_rows: float
    records: ShuffledRecords
    dtype: np.dtype[Any]
    first: tuple[int, ...]
    """Number of the first partition of every target."""
    grid: SegmentGrid
    workers: Workers
    passes: Iterator[int]
    """Numbers of the passes to come, for the report of progress."""
    max_result_bytes: float = MAX_RESULT_BYTES

    def map_reduce(self, work: Callable[[ScorePartition], T], add: Callable[[T, T], T]) -> list[T]:
        """Call ``work`` on every partition, where it lies, in one job for all targets."""
        task = _ScoreRangeTask(work, self.dtype, self.first, self.grid, self.real)
        sums = self.records.map_reduce(task, partial(_add_by_target, add))
        if self.workers.progress is not None:
            self.workers.progress(min(next(self.passes), CLUSTER_PASSES), CLUSTER_PASSES)
        return [sums[target] for target in range(len(self.targets))]


@dataclass(frozen=True, eq=False)
class _ScoreRangeTask:
    work: Callable[[ScorePartition], Any]
    dtype: np.dtype[Any]
    first: tuple[int, ...]
    grid: SegmentGrid
    real: bool

    def __call__(self, blobs: list[bytes], number: int) -> dict[int, Any]:
        target = int(np.searchsorted(self.first, number, side="right")) - 1
        records = np.frombuffer(b"".join(blobs), self.dtype)
        chunks = sorted_chunks(_items(records), self.grid, real=self.real, threads=1)
        return {target: self.work(ScorePartition(target, number - self.first[target], chunks))}


def _items(records: AnyArray) -> Iterator[AnyArray]:
    """Divide many records of a single score: any others are sorted at once."""
    if len(records) <= MAX_CHUNK_ROWS or (records["p"] != records["p"][0]).any():
        yield records
        return
    for start in range(0, len(records), MAX_CHUNK_ROWS):
        yield records[start : start + MAX_CHUNK_ROWS]


def _add_by_target(add: Callable[[Any, Any], Any], a: dict[int, Any], b: dict[int, Any]) -> dict[int, Any]:
    return {t: add(a[t], b[t]) if t in a and t in b else a.get(t, b.get(t)) for t in {**a, **b}}


@dataclass(frozen=True, eq=False)
class _Split:
    """Sends the records of a table to the partitions of their score ranges."""

    encoder: RecordEncoder
    edges: tuple[FloatArray, ...]
    first: tuple[int, ...]

    def __call__(self, table: Table, _: int) -> tuple[RowFacts, Mapping[int, bytes]]:
        facts, records = self.encoder.encode(table, Workers(1))
        moved = {}
        for some, edges, first in zip(records, self.edges, self.first, strict=True):
            moved.update({first + number: part.tobytes() for number, part in split_by_score(some, edges)})
        return replace(facts, summary=RowSummary.of(table)), moved


def _shuffle(
    table: FramePartitions, binners: Sequence[ColumnBinner]
) -> tuple[RowFacts, ShuffledRecords, np.dtype[Any], tuple[int, ...]]:
    """Move every row of a cluster's frame to the partition of its score range, in one pass.

    Return the facts, the records, their layout and the number of the first partition of every target.
    """
    schema, encoder = table.schema, RecordEncoder.of(table, binners)
    scores = np.column_stack([table.values(name)[0] for name in schema.prediction])
    samples = [scores[:, 0]] if scores.shape[1] == 1 else [scores.max(axis=1), *scores.T]
    edges = tuple(score_edges(sample, math.ceil(table.rows / ROWS_PER_TASK)) for sample in samples)
    *first, partitions = itertools.accumulate((len(some) + 1 for some in edges), initial=0)
    facts, records = table.shuffle(_Split(encoder, edges, tuple(first)), RowFacts.__add__, partitions)
    return facts, records, encoder.dtype, tuple(first)


def partition_by_score(
    table: PartitionedTable, binners: Sequence[ColumnBinner], workers: Workers, stack: ExitStack
) -> tuple[RowFacts, Callable[[SegmentGrid], AuditRows]]:
    """Partition rows of files or of a cluster by score range: shuffled by the workers, or spilled if there are none.

    Return facts about the rows, and a function that returns the rows by the grid of their segments. They are released
    with the stack.
    """
    if isinstance(table, FramePartitions) and table.frame.has_workers:
        facts, records, dtype, first = _shuffle(table, binners)
        stack.enter_context(records)
        make: Callable[..., AuditRows] = partial(
            ShuffledRows, records=records, dtype=dtype, first=first, passes=itertools.count(2)
        )
        if workers.progress is not None:
            workers.progress(1, CLUSTER_PASSES)
        facts.summary.check(facts.schema)
    else:
        facts, spills = _spill(table, binners, workers, stack)
        make = partial(SpilledRows, spills=spills, max_result_bytes=table.memory_budget // 4)
    rows_by_score = partial(
        make, targets=target_labels(facts.schema), rows=facts.summary.rows, real=facts.schema.task == "regression",
        weighted=facts.schema.weight is not None, workers=workers,
        max_held_rows=min(MAX_HELD_ROWS, table.memory_budget // BYTES_PER_HELD_ROW),
    )  # fmt: skip
    return facts, lambda grid: rows_by_score(grid=grid)
