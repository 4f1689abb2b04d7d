"""Rows of an audit, partitioned by score range: in memory, in files, or on the workers of a cluster.

No score is in two partitions, so that the tallies of partitions add exactly (`trueup.kernels.tally.Tally`). Rows in
memory are one partition. Files are read once and written to one file per score range. On a cluster one shuffle moves every
row to the task of its score range. With several classes, the top label and every class is a target with score ranges of its
own: each row is moved once per target, all in the same shuffle.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from trueup.audits.spill import SpilledRecords
from trueup.cluster.partitions import FramePartitions
from trueup.data.checks import RowSummary
from trueup.data.folds import digest_rows
from trueup.kernels.cumulative import group_rows
from trueup.kernels.tally import assign, sort_rows
from trueup.kernels.threads import Workers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from contextlib import ExitStack

    from trueup._types import AnyArray, FloatArray, Int32Array, IntArray
    from trueup.audits.grid import SegmentGrid
    from trueup.cluster.partitions import PartitionedTable, ShuffledRecords
    from trueup.data.bins import ColumnBinner
    from trueup.data.schema import Schema
    from trueup.data.table import Table
    from trueup.kernels.tally import SortedRows

T = TypeVar("T")
BYTES_PER_ROW = 120  # of a chunk in memory, and 12 more per column
MIN_CHUNK_ROWS = 100_000
ROWS_PER_TASK = 250_000  # of a score range on a cluster
MAX_TIED_ROWS = 1_000_000  # a score shared by more rows is read in several chunks
BYTES_PER_HELD_ROW = 50  # where p-values are refined
MAX_HELD_ROWS = 20_000_000
MAX_RESULT_BYTES = 32_000_000  # of one pass over a cluster: the driver may hold 16 results at once
CLUSTER_PASSES = 4  # over the rows, unless there are many segments: shuffle, tallies, weights, curves


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
            position = np.full(len(counts), -1, np.int32)
            position[kept] = np.arange(len(kept), dtype=np.int32)
            recoded.append(codes if len(kept) == len(counts) else position[codes])
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
        """Return for each row which of the segments with these codes it is in, -1 for none."""
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
    """Rows of one target in one score range, to be read once: one sorted chunk, or several of a single score."""

    target: int
    number: int
    chunks: Iterable[SortedChunk]


@dataclass(frozen=True, eq=False, kw_only=True)
class AuditRows(ABC):
    """The rows of an audit by target and score range; ``targets`` are the labels of the audited scores."""

    targets: tuple[str, ...]
    rows: int
    real: bool
    weighted: bool
    sequential: bool = True  # whether partitions are read in ascending score order, in this process
    max_result_bytes: float = math.inf  # of one pass
    max_held_rows: float = math.inf  # whose scores may be held at once

    @abstractmethod
    def map_reduce(self, work: Callable[[ScorePartition], T], add: Callable[[T, T], T]) -> list[T]:
        """Call ``work`` on every partition; return the sum per target, added in ascending score order."""


@dataclass(frozen=True, eq=False, kw_only=True)
class MemoryRows(AuditRows):
    """Rows in memory: one partition of one chunk per target."""

    chunks: tuple[SortedChunk, ...]

    @classmethod
    def from_table(cls, table: Table, codes: Sequence[Int32Array], grid: SegmentGrid, threads: int | None) -> MemoryRows:
        """Sort the rows of a table by every score that is audited."""
        real = table.schema.task == "regression"
        chunks = []
        for p, y in target_scores(table):
            rows = sort_rows(y, p, table.weight, real=real)
            ordered = np.empty((len(codes), len(rows)), np.int32)
            take = partial(_take_codes, codes, rows.order, ordered)
            Workers(threads).map(take, range(len(codes)))
            chunks.append(SortedChunk(rows, ordered, grid, threads))
        return cls(
            targets=target_labels(table.schema), rows=len(table), real=real, weighted=table.weight is not None,
            chunks=tuple(chunks),
        )  # fmt: skip

    def map_reduce(self, work: Callable[[ScorePartition], T], add: Callable[[T, T], T]) -> list[T]:  # noqa: ARG002
        """Call ``work`` on the rows of every target."""
        return [work(ScorePartition(target, 0, (chunk,))) for target, chunk in enumerate(self.chunks)]


def _take_codes(codes: Sequence[Int32Array], order: IntArray, out: Int32Array, column: int) -> None:
    np.take(codes[column], order, out=out[column], mode="clip")


def target_labels(schema: Schema) -> tuple[str, ...]:
    """Return the labels of the targets: none for a single score, else the top label and every class."""
    return ("top label", *(f"class={name}" for name in schema.classes)) if len(schema.prediction) > 1 else ("",)


def target_scores(table: Table) -> Iterator[tuple[FloatArray, FloatArray]]:
    """Yield score and outcome of every target."""
    p, y = table.prediction, table.outcome
    assert y is not None
    if p.ndim == 1:
        yield p, y
        return
    top = np.argmax(p, axis=1) if len(p) else np.empty(0, np.int64)
    yield p[np.arange(len(p)), top], (y == top).astype(np.float64)
    for position in range(p.shape[1]):
        yield np.ascontiguousarray(p[:, position]), (y == position).astype(np.float64)


# Rows in files and on clusters: encoded as records, which are moved to the partition of their score range


@dataclass(frozen=True, eq=False, kw_only=True)
class PartitionedRows(AuditRows):
    """Rows as records in files or on a cluster; partitions count the score ranges of one target after the other."""

    records: ShuffledRecords
    layout: RecordLayout
    grid: SegmentGrid
    report_pass: Callable[[], None]

    def map_reduce(self, work: Callable[[ScorePartition], T], add: Callable[[T, T], T]) -> list[T]:
        """Call ``work`` on every partition, where it is stored, in one pass for all targets."""
        task = partial(_call_on_records, work, self.layout, self.grid)
        sums = self.records.map_reduce(task, partial(_add_by_target, add))
        self.report_pass()
        return [sums[target] for target in range(len(self.targets))]


class RecordLayout(NamedTuple):
    """How records are stored, and how many threads read them."""

    dtype: np.dtype[Any]
    first: tuple[int, ...]  # number of the first partition of every target
    real: bool
    threads: int


def _call_on_records(
    work: Callable[[ScorePartition], T], layout: RecordLayout, grid: SegmentGrid, blobs: list[bytes], number: int
) -> dict[int, T]:
    """Call ``work`` on the records of one partition."""
    target = int(np.searchsorted(layout.first, number, side="right")) - 1
    records = np.frombuffer(blobs[0] if len(blobs) == 1 else b"".join(blobs), layout.dtype)
    tied = len(records) > MAX_TIED_ROWS and bool((records["p"] == records["p"][0]).all())
    size = MAX_TIED_ROWS if tied else len(records)
    items = (records[start : start + size] for start in range(0, len(records), size))
    chunks = (_sort_records(item, layout, grid) for item in items)
    return {target: work(ScorePartition(target, number - layout.first[target], chunks))}


def _sort_records(records: AnyArray, layout: RecordLayout, grid: SegmentGrid) -> SortedChunk:
    names = records.dtype.names or ()
    weights = np.ascontiguousarray(records["w"]) if "w" in names else None
    rows = sort_rows(records["y"].astype(np.float64), np.ascontiguousarray(records["p"]), weights, real=layout.real)
    columns = [name for name in names if name.startswith("c")]
    codes = np.empty((len(columns), len(records)), np.int32)
    for column, name in enumerate(columns):
        codes[column] = records[name][rows.order]
    return SortedChunk(rows, codes, grid, layout.threads)


def _add_by_target(add: Callable[[Any, Any], Any], a: dict[int, Any], b: dict[int, Any]) -> dict[int, Any]:
    return {t: add(a[t], b[t]) if t in a and t in b else a.get(t, b.get(t)) for t in {**a, **b}}


@dataclass(frozen=True, eq=False)
class RowFacts:
    """Facts about rows that add over partitions: what is checked, rows per level of every column, digests of the rows."""

    schema: Schema
    counts: list[IntArray]
    digests: tuple[int, ...]
    summary: RowSummary = field(default_factory=RowSummary)

    def __add__(self, other: RowFacts) -> RowFacts:
        counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        digests = tuple((a + b) % 2**64 for a, b in zip(self.digests, other.digests, strict=True))
        return RowFacts(self.schema, counts, digests, self.summary + other.summary)

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
    """Encodes tables as records of every target, by partition. Travels to the workers of a cluster."""

    binners: Sequence[ColumnBinner]
    dtype: np.dtype[Any]
    edges: tuple[FloatArray, ...]  # lowest scores of all partitions of a target but the first
    first: tuple[int, ...]

    @classmethod
    def of(cls, table: PartitionedTable, binners: Sequence[ColumnBinner], ranges: int) -> RecordEncoder:
        """Choose the layout of records, with few bytes per code, and score ranges by quantiles of a sample."""
        discrete = table.schema.task != "regression" and table.discrete_outcomes
        levels = [len(binner.labels) for binner in binners]
        codes = [(f"c{column}", "u1" if n <= 2**8 else "u2" if n <= 2**16 else "i4") for column, n in enumerate(levels)]
        weight = [("w", "f8")] if table.schema.weight is not None else []
        samples = [table.values(name)[0] for name in table.schema.prediction]
        if len(samples) > 1:
            samples.insert(0, np.max([sample[: min(map(len, samples))] for sample in samples], axis=0))
        edges = tuple(score_edges(sample, ranges) for sample in samples)
        first = itertools.accumulate((len(own) + 1 for own in edges[:-1]), initial=0)
        return cls(
            binners, np.dtype([("p", "f8"), ("y", "u1" if discrete else "f8"), *weight, *codes]), edges, tuple(first)
        )

    def __call__(self, table: Table, _: int = 0, threads: int = 1) -> tuple[RowFacts, dict[int, bytes]]:
        """Return facts about the rows of a table, and their records by number of the partition."""
        codes = Workers(threads).map(lambda binner: binner.codes(table.columns[binner.name]), self.binners)
        counts = [
            np.bincount(column, minlength=len(binner.labels)) for column, binner in zip(codes, self.binners, strict=True)
        ]
        moved: dict[int, bytes] = {}
        digests: tuple[int, ...] = (0, 0)
        for target, (p, y) in enumerate(target_scores(table)):
            records = np.empty(len(p), self.dtype)
            records["p"], records["y"] = p, y
            if table.weight is not None:
                records["w"] = table.weight
            for column, values in enumerate(codes):
                records[f"c{column}"] = values
            for number, part in split_by_score(records, self.edges[target]):
                moved[self.first[target] + number] = part.tobytes()
            if target == 0 and len(table):
                w = np.ones(len(y)) if table.weight is None else table.weight
                digests = row_digests(p, w * (y - p), w)
        return RowFacts(table.schema, counts, digests), moved

    def with_summary(self, table: Table, number: int) -> tuple[RowFacts, dict[int, bytes]]:
        """Return the same, with the facts that are checked."""
        facts, moved = self(table, number)
        return replace(facts, summary=RowSummary().include(table)), moved


def score_edges(sample: FloatArray, ranges: int) -> FloatArray:
    """Return edges that divide scores into ranges of about equal numbers of rows; a frequent score has its own range."""
    if ranges < 2 or not len(sample):
        return np.empty(0)
    ordered = np.sort(sample)
    marks, times = np.unique(ordered[(np.arange(1, ranges) * len(ordered)) // ranges], return_counts=True)
    frequent = marks[times > 1]
    return np.unique(np.concatenate([marks, frequent, np.nextafter(frequent, np.inf)]))


def split_by_score(records: AnyArray, edges: FloatArray) -> Iterator[tuple[int, AnyArray]]:
    """Yield the number and the records of every score range that has some; records of equal score stay together."""
    place = np.searchsorted(edges, records["p"], side="right")
    order = np.argsort(place, kind="stable")
    ends = np.searchsorted(place[order], np.arange(len(edges) + 2))
    for number in np.flatnonzero(np.diff(ends)):
        yield int(number), records[order[ends[number] : ends[number + 1]]]


def partition_by_score(
    table: PartitionedTable, binners: Sequence[ColumnBinner], workers: Workers, stack: ExitStack
) -> tuple[RowFacts, Callable[[SegmentGrid], PartitionedRows]]:
    """Partition rows of files or of a cluster by score range: shuffled by the workers, or spilled if there are none.

    Return facts about the rows, and a function that returns the rows by the grid of their segments. They are released
    with the stack.
    """
    records: ShuffledRecords
    if isinstance(table, FramePartitions) and table.frame.has_workers:
        encoder = RecordEncoder.of(table, binners, math.ceil(table.rows / ROWS_PER_TASK))
        partitions = encoder.first[-1] + len(encoder.edges[-1]) + 1
        facts, records = table.shuffle(encoder.with_summary, RowFacts.__add__, partitions)
        passes = itertools.count(1)
        max_result_bytes, threads, sequential = MAX_RESULT_BYTES, 1, False

        def report_pass() -> None:
            if workers.progress is not None:
                workers.progress(min(next(passes), CLUSTER_PASSES), CLUSTER_PASSES)

        report_pass()
        facts.summary.check(facts.schema)
    else:
        max_rows = max(table.memory_budget // (BYTES_PER_ROW + 12 * len(binners)), MIN_CHUNK_ROWS)
        encoder = RecordEncoder.of(table, binners, math.ceil(2 * table.rows / max_rows))
        facts, records = _spill(table, encoder, workers, stack)
        max_result_bytes, threads, sequential = table.memory_budget // 4, workers.threads, True
        report_pass = lambda: None  # noqa: E731
    stack.enter_context(records)
    real = facts.schema.task == "regression"
    rows = partial(
        PartitionedRows, targets=target_labels(facts.schema), rows=facts.summary.rows, real=real,
        weighted=facts.schema.weight is not None, sequential=sequential, max_result_bytes=max_result_bytes,
        max_held_rows=min(MAX_HELD_ROWS, table.memory_budget // BYTES_PER_HELD_ROW), records=records,
        layout=RecordLayout(encoder.dtype, encoder.first, real, threads), report_pass=report_pass,
    )  # fmt: skip
    return facts, lambda grid: rows(grid=grid)


def _spill(
    table: PartitionedTable, encoder: RecordEncoder, workers: Workers, stack: ExitStack
) -> tuple[RowFacts, SpilledRecords]:
    """Write every row to the file of its score range, for every target."""
    directory = table.spill_directory / "scores"
    directory.mkdir()
    partitions = encoder.first[-1] + len(encoder.edges[-1]) + 1
    records = SpilledRecords(directory, encoder.dtype.itemsize, partitions, workers.progress)
    stack.callback(records.close)
    facts: RowFacts | None = None
    summary = RowSummary()
    done = 0
    for chunk in table.iter_tables():
        more, moved = encoder(chunk, threads=workers.threads)
        facts, summary = more if facts is None else facts + more, summary.include(chunk)
        records.write(moved)
        done += len(chunk) + chunk.unlabelled + chunk.weightless
        if workers.progress is not None:
            workers.progress(done, table.rows)
    assert facts is not None
    records.flush()
    summary.check(facts.schema)
    return replace(facts, summary=summary), records
