"""Rows of an audit, partitioned by score range: in memory, in files, or on the workers of a cluster.

No score is in two partitions, so that the tallies of partitions add exactly (`trueup.kernels.tally.Tally`). Rows in
memory are one partition. Files are read once and written to one file per score range. On a cluster one shuffle moves every
row to the task of its score range. With several classes, the top label and every class are audited scores (targets), each
with its own score ranges: each row is moved once per target, all in the same shuffle. With clusters, each row is also
moved to a partition of whole clusters, by a hash of its cluster.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import operator
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import IO, TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from trueup.audits.segments import (
    AuditRows,
    ScorePartition,
    SegmentColumns,
    SortedChunk,
    plan_grid,
    score_quartiles,
    target_labels,
    target_scores,
)
from trueup.audits.summary import row_digests
from trueup.cluster.partitions import FramePartitions, PartitionedTable, ShuffledRecords
from trueup.data.frame import RowSummary
from trueup.data.leakage import warn_of_leakage
from trueup.data.table import Table
from trueup.errors import FileError
from trueup.kernels.tally import cluster_rows, sort_rows
from trueup.kernels.threads import Workers
from trueup.metrics import inference

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import ExitStack
    from pathlib import Path

    from trueup._types import AnyArray, FloatArray, IntArray
    from trueup.audits.segments import SegmentGrid
    from trueup.audits.settings import AuditSettings
    from trueup.data.bins import ColumnBinner
    from trueup.data.table import Schema
    from trueup.errors import WarningRecord

T = TypeVar("T")
BYTES_PER_ROW = 120  # of a chunk in memory, and 12 more per column
MIN_CHUNK_ROWS = 100_000
ROWS_PER_TASK = 250_000  # of a score range on a cluster
MAX_TIED_ROWS = 1_000_000  # a score shared by more rows is read in several chunks
BYTES_PER_HELD_ROW = 50  # where p-values are refined
MAX_HELD_ROWS = 20_000_000
MAX_RESULT_BYTES = 32_000_000  # of one pass over a cluster: the driver may hold 16 results at once
CLUSTER_PASSES = 4  # over the rows, unless there are many segments: shuffle, tallies, weights, curves
NOISE_PASSES = 4  # more of them for real outcomes
LEAKAGE_ROWS, MAX_LEAKAGE_VALUES = 20_000, 4_000_000  # of the sample on which warnings of leakage are decided
MAX_OPEN_FILES = 256  # a process may often have no more than 1,024


@dataclass(frozen=True, eq=False, kw_only=True)
class PartitionedRows(AuditRows):
    """Rows as records in files or on a cluster; partitions are numbered by audited score, then by score range."""

    records: ShuffledRecords
    layout: RecordLayout
    grid: SegmentGrid
    report_pass: Callable[[], None]

    def map_reduce(self, work: Callable[[ScorePartition], T], add: Callable[[T, T], T]) -> list[T]:
        """Call ``work`` on every partition where it is stored, in one pass; return the sum (``add``) per audited score."""
        return self._map_records(partial(_call_on_records, work, self.layout, self.grid), add)

    def map_clusters(self, work: Callable[[ScorePartition], T], add: Callable[[T, T], T]) -> list[T]:
        """Call ``work`` on every partition of whole clusters; return the sum (``add``) per audited score."""
        return self._map_records(partial(_call_on_clusters, work, self.layout, self.grid), add)

    def _map_records(self, task: Callable[[list[bytes], int], dict[int, T]], add: Callable[[T, T], T]) -> list[T]:
        sums = self.records.map_reduce(task, partial(_add_by_target, add))
        self.report_pass()
        return [sums[target] for target in range(len(self.targets))]


class RecordLayout(NamedTuple):
    """Data type of records, first partition per audited score, whether outcomes are real, and number of reading threads."""

    dtype: np.dtype[Any]
    first: tuple[int, ...]  # number of the first partition of every target
    real: bool
    threads: int
    ratios: tuple[float, ...] = ()  # see `AuditRows`; empty until they are known
    cluster_first: tuple[int, ...] = ()  # number of the first partition of whole clusters of every target

    @property
    def cluster_start(self) -> float:
        """The number of the first partition of whole clusters; those before are score ranges."""
        return self.cluster_first[0] if self.cluster_first else math.inf


def _call_on_records(
    work: Callable[[ScorePartition], T], layout: RecordLayout, grid: SegmentGrid, blobs: list[bytes], number: int
) -> dict[int, T]:
    """Call ``work`` on partition ``number``, with records ``blobs``; return the result by index of the audited score."""
    if number >= layout.cluster_start:
        return {}
    target = int(np.searchsorted(layout.first, number, side="right")) - 1
    records = np.frombuffer(blobs[0] if len(blobs) == 1 else b"".join(blobs), layout.dtype)
    tied = len(records) > MAX_TIED_ROWS and bool((records["p"] == records["p"][0]).all())
    size = MAX_TIED_ROWS if tied else len(records)
    items = (records[start : start + size] for start in range(0, len(records), size))
    ratio = layout.ratios[target] if layout.ratios else 1.0
    chunks = (_sort_records(item, layout, grid, ratio) for item in items)
    return {target: work(ScorePartition(target, number - layout.first[target], chunks))}


def _sort_records(records: AnyArray, layout: RecordLayout, grid: SegmentGrid, ratio: float) -> SortedChunk:
    names = records.dtype.names or ()
    weights = np.ascontiguousarray(records["w"]) if "w" in names else None
    rows = sort_rows(records["y"].astype(np.float64), np.ascontiguousarray(records["p"]), weights, real=layout.real)
    ordered = [records[name][rows.order] for name in names if name.startswith("c")]
    codes = np.array(grid.encode(ordered), np.int32).reshape(len(grid.counts), len(records))
    return SortedChunk(replace(rows, ratio=ratio), codes, grid, layout.threads)


def _call_on_clusters(
    work: Callable[[ScorePartition], T], layout: RecordLayout, grid: SegmentGrid, blobs: list[bytes], number: int
) -> dict[int, T]:
    """Call ``work`` on partition ``number`` if it has whole clusters; return the result by index of the audited score."""
    if number < layout.cluster_start:
        return {}
    target = int(np.searchsorted(layout.cluster_first, number, side="right")) - 1
    records = np.frombuffer(blobs[0] if len(blobs) == 1 else b"".join(blobs), layout.dtype)
    order = np.argsort(records["k"], kind="stable")
    chunks = _cluster_chunks(records, order, layout, grid, layout.ratios[target] if layout.ratios else 1.0)
    return {target: work(ScorePartition(target, number - layout.cluster_first[target], chunks))}


def _cluster_chunks(
    records: AnyArray, order: IntArray, layout: RecordLayout, grid: SegmentGrid, ratio: float
) -> Iterator[SortedChunk]:
    """Yield records in cluster order, some at a time; clusters are numbered through all of them."""
    first, last = 0, None
    for start in range(0, len(order), MAX_TIED_ROWS):
        part = records[order[start : start + MAX_TIED_ROWS]]
        names, keys = part.dtype.names or (), part["k"]
        weights = np.ascontiguousarray(part["w"]) if "w" in names else None
        place = np.arange(len(part))
        rows = cluster_rows(part["y"].astype(np.float64), np.ascontiguousarray(part["p"]), weights, keys, place)
        first += int(last is not None and keys[0] != last)
        columns = [part[name] for name in names if name.startswith("c")]
        codes = np.array(grid.encode(columns), np.int32).reshape(len(grid.counts), len(part))
        yield SortedChunk(replace(rows, step=rows.step + np.int32(first), ratio=ratio), codes, grid, layout.threads)
        first, last = first + int(rows.step[-1]), keys[-1]


def _compare_weights(rows: PartitionedRows) -> PartitionedRows:
    """Find in two passes whether weights depend on the outcome; return the rows with what was found, and ``heaviest``."""
    sums = rows.map_reduce(_weight_pass, _add_weights)
    models = [inference.WeightModel.fit(own) for own, _ in sums]
    residuals = rows.map_reduce(partial(_residual_pass, models), operator.add)
    dependent = tuple(model.is_incomplete(own) for model, own in zip(models, residuals, strict=True))
    ratios = tuple(model.ratio for model in models)
    layout = rows.layout._replace(ratios=ratios)
    return replace(rows, ratios=ratios, dependent=dependent, heaviest=sums[0][1], layout=layout)


def _weight_pass(partition: ScorePartition) -> tuple[FloatArray, float]:
    parts = [(inference.weight_sums(chunk.rows), float(chunk.rows.w.max())) for chunk in partition.chunks]
    return reduce(_add_weights, parts)


def _residual_pass(models: list[inference.WeightModel], partition: ScorePartition) -> FloatArray:
    parts = [models[partition.target].residual_sums(chunk.rows) for chunk in partition.chunks]
    return reduce(operator.add, parts)


def _add_weights(one: tuple[FloatArray, float], other: tuple[FloatArray, float]) -> tuple[FloatArray, float]:
    return one[0] + other[0], max(one[1], other[1])


def _add_by_target(add: Callable[[Any, Any], Any], a: dict[int, Any], b: dict[int, Any]) -> dict[int, Any]:
    return {t: add(a[t], b[t]) if t in a and t in b else a.get(t, b.get(t)) for t in {**a, **b}}


@dataclass(frozen=True, eq=False)
class RowFacts:
    """Facts about rows that add over partitions: rows per level of every column, digests, and a summary for validation."""

    schema: Schema
    counts: list[IntArray]
    digests: tuple[int, ...]
    summary: RowSummary
    samples: tuple[Table, ...]  # random rows of each partition
    warnings: tuple[WarningRecord, ...] = ()

    def __add__(self, other: RowFacts) -> RowFacts:
        counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        digests = tuple((a + b) % 2**64 for a, b in zip(self.digests, other.digests, strict=True))
        return RowFacts(self.schema, counts, digests, self.summary + other.summary, self.samples + other.samples)

    def sample(self) -> Table:
        """Return the random rows of all partitions as one table, with their outcomes."""
        tables = self.samples
        columns = {name: np.concatenate([table.columns[name] for table in tables]) for name in tables[0].columns}
        scores, outcomes = ([getattr(table, role) for table in tables] for role in ("prediction", "outcome"))
        return Table(self.schema, columns, np.concatenate(scores), np.concatenate(outcomes))


@dataclass(frozen=True, eq=False)
class RecordEncoder:
    """A callable that can be sent to the workers of a cluster and encodes rows of a table as records by partition."""

    binners: Sequence[ColumnBinner]
    dtype: np.dtype[Any]
    edges: tuple[FloatArray, ...]  # lowest scores of all partitions of a target but the first
    first: tuple[int, ...]
    quartiles: tuple[FloatArray, ...] = ()  # of the scores of each target; empty without clusters
    cluster_partitions: int = 0  # of whole clusters, per target
    sampled_share: float = 0.0  # of the rows, for `RowFacts.sample`

    @classmethod
    def of(cls, table: PartitionedTable, binners: Sequence[ColumnBinner], ranges: int) -> RecordEncoder:
        """Return an encoder with the smallest integers for codes, and about ``ranges`` score ranges by sample quantiles."""
        discrete = table.schema.task != "regression" and table.discrete_outcomes
        levels = [len(binner.labels) for binner in binners]
        codes = [(f"c{column}", "u1" if n <= 2**8 else "u2" if n <= 2**16 else "i4") for column, n in enumerate(levels)]
        weight = [("w", "f8")] if table.schema.weight is not None else []
        samples = [table.sample(name)[0] for name in table.schema.prediction]
        if len(samples) > 1:
            samples.insert(0, np.max([sample[: min(map(len, samples))] for sample in samples], axis=0))
        edges = tuple(score_edges(sample, ranges) for sample in samples)
        first = itertools.accumulate((len(own) + 1 for own in edges[:-1]), initial=0)
        sampled = min(LEAKAGE_ROWS, MAX_LEAKAGE_VALUES // (len(binners) + len(samples)))
        share = min(1.0, sampled / table.rows)
        fields = [("p", "f8"), ("y", "u1" if discrete else "f8"), *weight, *codes]
        if table.schema.cluster is None:
            return cls(binners, np.dtype(fields), edges, tuple(first), sampled_share=share)
        quartiles = tuple(map(score_quartiles, samples))
        return cls(binners, np.dtype([*fields, ("k", "u8")]), edges, tuple(first), quartiles, max(ranges, 1), share)

    @property
    def score_partitions(self) -> int:
        """The number of score ranges of all audited scores."""
        return self.first[-1] + len(self.edges[-1]) + 1

    @property
    def cluster_first(self) -> tuple[int, ...]:
        """The number of the first partition of whole clusters of each audited score; empty without clusters."""
        return tuple(self.score_partitions + number * self.cluster_partitions for number in range(len(self.quartiles)))

    @property
    def partitions(self) -> int:
        """The number of partitions: score ranges of all audited scores and, with clusters, as many of whole clusters."""
        return self.score_partitions + len(self.quartiles) * self.cluster_partitions

    def __call__(self, table: Table, number: int = 0, threads: int = 1) -> tuple[RowFacts, dict[int, bytes]]:
        """Return facts about the rows of ``table``, and the bytes of their records by partition number."""
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
            if table.cluster is not None:
                records["k"] = table.cluster
                places = (table.cluster % np.uint64(self.cluster_partitions)).astype(np.int64)
                for number, part in _split(records, places, self.cluster_partitions):
                    moved[self.cluster_first[target] + number] = part.tobytes()
            for number, part in split_by_score(records, self.edges[target]):
                moved[self.first[target] + number] = part.tobytes()
            if target == 0 and len(table):
                w = np.ones(len(y)) if table.weight is None else table.weight
                digests = row_digests(p, w * (y - p), w)
        drawn = np.flatnonzero(np.random.default_rng(number).random(len(table)) < self.sampled_share)
        return RowFacts(table.schema, counts, digests, RowSummary().include(table), (table.take(drawn),)), moved


def score_edges(sample: FloatArray, ranges: int) -> FloatArray:
    """Return edges that divide ``sample`` into about ``ranges`` ranges of equal counts; a frequent score has its own."""
    if ranges < 2 or not len(sample):
        return np.empty(0)
    ordered = np.sort(sample)
    marks, times = np.unique(ordered[(np.arange(1, ranges) * len(ordered)) // ranges], return_counts=True)
    frequent = marks[times > 1]
    return np.unique(np.concatenate([marks, frequent, np.nextafter(frequent, np.inf)]))


def split_by_score(records: AnyArray, edges: FloatArray) -> Iterator[tuple[int, AnyArray]]:
    """Return number and records of every non-empty score range between ``edges``; equal scores are in the same range."""
    return _split(records, np.searchsorted(edges, records["p"], side="right"), len(edges) + 1)


def _split(records: AnyArray, place: IntArray, count: int) -> Iterator[tuple[int, AnyArray]]:
    """Yield number and records of every non-empty partition; ``place`` is the partition of each record, below ``count``."""
    order = np.argsort(place, kind="stable")
    ends = np.searchsorted(place[order], np.arange(count + 1))
    for number in np.flatnonzero(np.diff(ends)):
        yield int(number), records[order[ends[number] : ends[number + 1]]]


def partition_by_score(
    table: PartitionedTable, binners: Sequence[ColumnBinner], settings: AuditSettings, workers: Workers, stack: ExitStack
) -> tuple[RowFacts, SegmentColumns, PartitionedRows]:
    """Partition rows of files or of a cluster by score range: by a shuffle of the workers or, without workers, into files.

    Return facts about the rows, the segment columns, and the partitioned rows, released when ``stack`` is closed.
    """
    records: ShuffledRecords
    if isinstance(table, FramePartitions) and table.frame.has_workers:
        encoder = RecordEncoder.of(table, binners, math.ceil(table.rows / ROWS_PER_TASK))
        facts, records = table.shuffle(encoder, RowFacts.__add__, encoder.partitions)
        passes = itertools.count(1)
        total = CLUSTER_PASSES + (NOISE_PASSES if table.schema.task == "regression" else 0)
        total += table.schema.cluster is not None
        max_result_bytes, threads, sequential = MAX_RESULT_BYTES, 1, False

        def report_pass() -> None:
            if workers.progress is not None:
                workers.progress(min(next(passes), total), total)

        report_pass()
    else:
        max_rows = max(table.memory_budget // (BYTES_PER_ROW + 12 * len(binners)), MIN_CHUNK_ROWS)
        encoder = RecordEncoder.of(table, binners, math.ceil(2 * table.rows / max_rows))
        facts, records = _spill(table, encoder, workers, stack)
        max_result_bytes, threads, sequential = table.memory_budget // 4, workers.threads, True
        report_pass = lambda: None  # noqa: E731
    stack.enter_context(records)
    schema, count = facts.schema, facts.summary.rows
    found = facts.summary.check(schema, stacklevel=5)
    found += warn_of_leakage(facts.sample(), default_features=table.roles.default_features, stacklevel=5)
    facts = replace(facts, warnings=(*table.warnings, *found))
    targets, real = target_labels(schema), schema.task == "regression"
    columns = SegmentColumns.of(binners)
    columns, grid = plan_grid(columns, facts.counts, len(binners), count, settings, len(targets))
    rows = PartitionedRows(
        targets=targets, rows=count, real=real, weighted=schema.weight is not None, sequential=sequential,
        max_result_bytes=max_result_bytes, max_held_rows=min(MAX_HELD_ROWS, table.memory_budget // BYTES_PER_HELD_ROW),
        records=records, report_pass=report_pass, score_edges=encoder.quartiles,
        layout=RecordLayout(encoder.dtype, encoder.first, real, threads, cluster_first=encoder.cluster_first),
        grid=grid, ratios=(1.0,) * len(targets),
    )  # fmt: skip
    return facts, columns, _compare_weights(rows) if rows.weighted and not real else rows


def _spill(
    table: PartitionedTable, encoder: RecordEncoder, workers: Workers, stack: ExitStack
) -> tuple[RowFacts, SpilledRecords]:
    """Write each row, once per audited score (top label, each class), to its score-range file; return facts and files."""
    directory = table.spill_directory / "scores"
    directory.mkdir()
    records = SpilledRecords(directory, encoder.dtype.itemsize, encoder.partitions, workers.progress)
    stack.callback(records.close)
    facts: RowFacts | None = None
    done = 0
    for number, chunk in enumerate(table.iter_tables()):
        more, moved = encoder(chunk, number, workers.threads)
        facts = more if facts is None else facts + more
        records.write(moved)
        done += len(chunk) + chunk.unlabelled + chunk.weightless
        if workers.progress is not None:
            workers.progress(done, table.rows)
    assert facts is not None
    records.flush()
    return facts, records


class SpilledRecords(ShuffledRecords):
    """Records in one file per partition of ``directory``; ``progress(done, total)`` counts the records of each pass."""

    def __init__(
        self, directory: Path, record_bytes: int, partitions: int, progress: Callable[[int, int], None] | None = None
    ) -> None:
        self.directory, self.record_bytes, self.progress = directory, record_bytes, progress
        self.sizes = [0] * partitions
        self._open: dict[int, IO[bytes]] = {}

    def write(self, records: Mapping[int, bytes]) -> None:
        """Append records, given by partition number; files beyond the first `MAX_OPEN_FILES` are reopened each time."""
        try:
            for number, data in records.items():
                if number not in self._open and len(self._open) < MAX_OPEN_FILES:
                    self._open[number] = self._path(number).open("ab")
                if number in self._open:
                    self._open[number].write(data)
                else:
                    with self._path(number).open("ab") as file:
                        file.write(data)
                self.sizes[number] += len(data)
        except OSError as error:
            raise self._write_error(error) from error

    def flush(self) -> None:
        """Write buffered records to the files."""
        try:
            for file in self._open.values():
                file.flush()
        except OSError as error:
            raise self._write_error(error) from error

    def map_reduce(self, work: Callable[[list[bytes], int], T], add: Callable[[T, T], T]) -> T:
        """Call ``work`` on one memory-mapped partition after the other; ``add`` the results in this order."""
        total: T | None = None
        done = 0
        for number, size in enumerate(self.sizes):
            if not size:
                continue
            path = self._path(number)
            if path.stat().st_size != size:
                raise FileError(f"{path} has lost rows", hint="another process may be writing to this directory")
            result = work([np.memmap(path, np.uint8, "r").data], number)  # type: ignore[list-item]
            total = result if total is None else add(total, result)
            done += size
            if self.progress is not None:
                self.progress(done // self.record_bytes, sum(self.sizes) // self.record_bytes)
        assert total is not None
        return total

    def close(self) -> None:
        """Close the files; ignore errors, so that buffered records that cannot be written are lost."""
        for file in self._open.values():
            with contextlib.suppress(OSError):
                file.close()
        self._open = {}

    def _path(self, number: int) -> Path:
        return self.directory / f"range-{number}"

    def _write_error(self, error: OSError) -> FileError:
        return FileError(
            f"cannot spill to {self.directory}: {error.strerror or error}",
            hint=f"each row takes {self.record_bytes} bytes per score: free disk space, or use another spill directory",
        )
