"""Rows in partitions: the interface of cluster frames, Tables read from their partitions with one schema, and predictions.

A cluster frame has three operations: `map_reduce` (each partition by itself, results added), `shuffle` (records move to new
partitions) and `run_workers` (all partitions at the same time, in workers that communicate).
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import add as plus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar

import numpy as np

from trueup._optional import require
from trueup.data.columns import check_kind, engine_of, open_source, unread_type
from trueup.data.frame import read_labelled, read_like
from trueup.data.identifiers import unread_reason, warn_of_integers, warn_of_large_integers, warn_of_unread
from trueup.data.profile import Roles, TableProfile, assign_roles
from trueup.data.scan import row_memory
from trueup.data.spill import temporary_directory
from trueup.data.table import Schema, Table
from trueup.data.values import RowPosition
from trueup.errors import ArgumentError, DataError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from trueup._types import FloatArray
    from trueup.cluster.communicator import Communicator
    from trueup.cluster.files import ScanPartitions
    from trueup.errors import WarningRecord

T = TypeVar("T")
Add = Callable[[T, T], T]
Work = Callable[[Any, int], T]  # of the frame or Table of a partition and its number
Split = Work[tuple[T, Mapping[int, bytes]]]  # a value, and records by number of their new partition
WorkerFunction = Callable[[Table, Sequence[int], "Communicator"], T]
PartitionedTable: TypeAlias = "ScanPartitions | FramePartitions"
DEFAULT_MEMORY = 2 * 10**9  # bytes
PACKAGES = {"spark": ("pyspark", "pyarrow", "pandas"), "dask": ("dask.dataframe", "distributed")}


class ClusterFrame(ABC):
    """A Spark or Dask DataFrame.

    Functions that are passed are sent to other machines: they must be functions of this package, `functools.partial` of
    them, or plain objects. A `TrueupError` that they raise is raised unchanged in this process.
    """

    names: tuple[str, ...]  # of the columns

    def unread_types(self, names: Sequence[str]) -> dict[str, str]:  # noqa: ARG002
        """Return the types of those columns that trueup does not read, as far as they are known before rows are read."""
        return {}

    has_workers: bool = True  # which keep shuffled records; without, partitions are read in this process

    @abstractmethod
    def map_reduce(self, work: Work[T], add: Add[T], columns: Sequence[str], *, ordered: bool = True) -> T:
        """Return the sum by ``add`` of ``work(partition, number)``, on pyarrow or pandas; empty partitions may be skipped.

        Results are added in a fixed order. If it does not matter, pass ``ordered=False``: fewer results may be sent.
        """

    def iter_partitions(self, columns: Sequence[str]) -> Iterator[Any]:
        """Yield one partition after the other, in this process; for frames without workers."""
        raise NotImplementedError

    @abstractmethod
    def shuffle(self, split: Split[T], add: Add[T], columns: Sequence[str], partitions: int) -> tuple[T, ShuffledRecords]:
        """Call ``split`` on each partition, and move the records (bytes) it returns to the new partitions that it names.

        ``split`` also returns a value per partition: their sum by ``add`` is returned with the new partitions, numbered
        from 0 to ``partitions - 1``, which are kept until they are closed.
        """

    @abstractmethod
    def run_workers(self, prepare: Work[Table], work: WorkerFunction[T], columns: Sequence[str]) -> T:
        """Run ``work`` in workers that hold all partitions and run at the same time; return the result of rank 0.

        ``prepare`` reads a partition as a Table. Each worker calls ``work`` with the joined Table of its partitions, the
        number of rows of each, and the communicator. A lost worker raises `LostWorkerError` within a minute.
        """


class ShuffledRecords(ABC):
    """Records in new partitions, numbered from 0, kept by the workers of a cluster until they are closed."""

    @abstractmethod
    def map_reduce(self, work: Callable[[list[bytes], int], T], add: Add[T]) -> T:
        """Call ``work`` on the records and the number of every partition that has records; add the results in that order.

        Records come as one item per partition of the frame that they were moved from, in its order.
        """

    @abstractmethod
    def close(self) -> None:
        """Release the records."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def require_engine(engine: str) -> None:
    """Raise if a package that an engine needs is not installed, naming the extra to install."""
    for name in PACKAGES.get(engine, ()):
        require(name, extra=engine)


def as_cluster_frame(data: Any) -> ClusterFrame:
    """Wrap a Spark or Dask DataFrame."""
    engine = engine_of(data)
    if engine == "spark":
        from trueup.cluster.spark import SparkFrame

        return SparkFrame(data)
    if engine == "dask":
        from trueup.cluster.dask import DaskFrame

        return DaskFrame(data)
    raise ArgumentError(f"a {type(data).__name__} is not a cluster frame", hint="pass a Spark or a Dask DataFrame")


def open_partitions(data: Any, **options: Any) -> AbstractContextManager[PartitionedTable]:
    """Open rows in partitions: those of a Scan, which has its own memory budget, or those of a Spark or Dask DataFrame.

    ``options`` are the roles, as `trueup.data.frame.read` takes them (outcome, prediction, weight and cluster are names of
    columns), and those of `open_cluster_frame`.
    """
    if engine_of(data) == "scan":
        from trueup.cluster.files import open_scan_partitions

        return open_scan_partitions(data, **options)
    return open_cluster_frame(as_cluster_frame(data), **options)


@contextlib.contextmanager
def open_cluster_frame(
    frame: ClusterFrame, *, memory: int = DEFAULT_MEMORY, spill: Path | None = None, **roles: Any
) -> Iterator[FramePartitions]:
    """Yield the partitions of a cluster frame, after one pass over its columns that determines the schema."""
    assigned = assign_roles(frame.names, **roles)
    types = frame.unread_types(assigned.features) if assigned.default_features else {}
    unread = {name: unread_reason(name, unread_type(name, declared)) for name, declared in types.items()}
    warn_of_unread(unread, stacklevel=4)
    assigned = replace(assigned, features=tuple(name for name in assigned.features if name not in unread))
    profile = frame.map_reduce(partial(TableProfile.of, roles=assigned), plus, assigned.columns, ordered=False)
    large = profile.large_integers()
    if large:  # their levels are those of all partitions, also of those that have only small integers
        assigned = replace(assigned, categorical=assigned.categorical | set(large))
        profile = frame.map_reduce(partial(TableProfile.of, roles=assigned), plus, assigned.columns, ordered=False)
    schema, left_out = profile.describe(assigned)
    left_out = {**unread, **left_out}
    warned = [warn_of_large_integers(name, stacklevel=4) for name in large if name not in left_out]
    for feature in schema.features:
        if profile.columns[feature.name].kind == "number" and feature.kind == "numeric":
            warned += warn_of_integers(feature.name, profile.sample.columns[feature.name], stacklevel=4)
    budget = row_memory(memory)
    with temporary_directory(spill) as directory:
        reader = PartitionReader(schema, assigned)
        yield FramePartitions(
            schema, assigned, left_out, profile.rows, budget, Path(directory), frame, reader, profile, tuple(warned)
        )


@dataclass(frozen=True)
class PartitionReader:
    """Reads partitions as Tables of one schema; it is sent to the workers."""

    schema: Schema
    roles: Roles

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns to read."""
        return replace(self.roles, features=tuple(feature.name for feature in self.schema.features)).columns

    def __call__(self, frame: Any, number: int) -> Table:
        """Read ``frame``, the partition of this number, as a Table; it may be empty."""
        schema = self.schema
        if len(frame):
            return read_labelled(frame, schema, self.roles.unlabelled, RowPosition(0, number))
        dtypes = {feature.name: np.int32 if feature.kind == "categorical" else np.float64 for feature in schema.features}
        columns = {name: np.empty(0, dtype) for name, dtype in dtypes.items()}
        scores = np.empty((0, len(schema.prediction)) if len(schema.prediction) > 1 else 0)
        outcome, weight = (None if name is None else np.empty(0) for name in (schema.outcome, schema.weight))
        cluster = None if schema.cluster is None else np.empty(0, np.uint64)
        return Table(schema, columns, scores, outcome, weight, cluster=cluster)


@dataclass(frozen=True, eq=False)
class FramePartitions:
    """Rows of a cluster frame, with one schema; `trueup.cluster.files.ScanPartitions` is the same for files.

    ``profile`` has row counts, the types and levels of columns, and a sample of rows.
    """

    schema: Schema
    roles: Roles
    left_out: Mapping[str, str]  # columns that are not used as features, and why
    rows: int  # of all partitions, including rows without outcome or weight
    memory_budget: int  # bytes that rows may occupy at once in this process
    spill_directory: Path  # for rows beyond the budget; deleted at the end
    frame: ClusterFrame
    reader: PartitionReader
    profile: TableProfile
    warnings: tuple[WarningRecord, ...] = ()  # that were issued when the rows were opened

    @property
    def discrete_outcomes(self) -> bool:
        """Whether every outcome is 0 or 1, or a class."""
        return self.profile.discrete_outcomes

    def map_reduce(self, work: Work[T], add: Add[T]) -> T:
        """Return the sum by ``add`` of ``work(table, number)`` over all partitions."""
        return self.frame.map_reduce(partial(_read_and_call, self.reader, work), add, self.reader.columns)

    def shuffle(self, split: Split[T], add: Add[T], partitions: int) -> tuple[T, ShuffledRecords]:
        """Move the records that ``split`` makes of each Table to new partitions; see `ClusterFrame.shuffle`."""
        return self.frame.shuffle(partial(_read_and_call, self.reader, split), add, self.reader.columns, partitions)

    def iter_tables(self) -> Iterator[Table]:
        """Yield one Table after the other, in this process."""
        for number, frame in enumerate(self.frame.iter_partitions(self.reader.columns)):
            yield self.reader(frame, number)

    def run_workers(self, work: WorkerFunction[T]) -> T:
        """Run ``work`` in workers that hold all partitions; see `ClusterFrame.run_workers`."""
        return self.frame.run_workers(self.reader, work, self.reader.columns)

    def sample(self, name: str) -> tuple[FloatArray, bool]:
        """Return a numeric, date or prediction column or a random sample of it, and whether it is complete.

        Rows without outcome or weight are not included, here and in the methods below.
        """
        sample = self.profile.sample
        return sample.columns[name], len(sample.keys) == self.profile.kept

    def distinct(self, name: str, limit: int, *, days: bool = False) -> FloatArray:
        """Return the distinct values of a number or date column (``days`` rounds dates down), with NaN if one is missing.

        If there are more than ``limit``, only some are returned, but more than ``limit``.
        """
        values, complete = self.sample(name)
        if complete:
            return _distinct(values, limit, days=days)
        features = tuple(feature for feature in self.schema.features if feature.name == name)
        reader = replace(self.reader, schema=replace(self.schema, features=features))
        work = partial(_read_and_call, reader, partial(_distinct_in_table, name, limit, days))
        return self.frame.map_reduce(work, partial(_merge_distinct, limit), reader.columns)

    def has_missing(self, name: str) -> bool:
        """Return whether some row has no value in a column."""
        return name in self.profile.columns and self.profile.columns[name].has_missing


def _read_and_call(reader: PartitionReader, work: Work[T], frame: Any, number: int) -> T:
    return work(reader(frame, number), number)


def _distinct(values: FloatArray, limit: int, *, days: bool) -> FloatArray:
    return np.unique(np.floor(values) if days else values)[-(limit + 3) :]  # NaN is the last of them


def _distinct_in_table(name: str, limit: int, days: bool, table: Table, _number: int) -> FloatArray:  # noqa: FBT001
    return _distinct(table.columns[name], limit, days=days)


def _merge_distinct(limit: int, a: FloatArray, b: FloatArray) -> FloatArray:
    return _distinct(np.concatenate([a, b]), limit, days=False)


def predict_cluster_frame(model: Any, data: Any, threads: int | None = None, on_error: str = "raise") -> Any:
    """Return predictions that are computed lazily, partition by partition, and equal those of rows in memory.

    For Spark it is the frame with one more column per prediction, ``p_trueup`` for a prediction ``p``. For Dask it is a
    Series with the index of the frame, or a DataFrame with one column per class.
    """
    engine = engine_of(data)
    assert engine is not None
    require_engine(engine)
    if engine == "spark":
        from trueup.cluster.spark import predict_frame
    else:
        from trueup.cluster.dask import predict_frame
    lenient = on_error == "nan"
    return predict_frame(model, data, threads or 1, lenient=lenient)  # a task has one core, however many the machine has


def predict_rows(model: Any, frame: Any, threads: int, position: RowPosition, *, lenient: bool = False) -> FloatArray:
    """Return the corrected predictions of rows of a partition, one column each; errors name ``position``.

    If ``lenient``, rows without a valid score are predicted as NaN.
    """
    size = len(model.schema.score_names)
    if not len(frame):
        return np.empty((0, size))
    predict = model.predict_valid_rows if lenient else model.predict_table
    scores: FloatArray = predict(read_like(frame, model.schema, position, lenient=lenient), threads=threads)
    return scores.reshape(len(scores), size)


def required_columns(schema: Schema) -> list[str]:
    """Return the columns that a model reads."""
    return list(dict.fromkeys([*schema.prediction, *(feature.name for feature in schema.features)]))


def check_columns(schema: Schema, empty: Any, untyped: Sequence[str]) -> None:
    """Raise if the empty frame ``empty`` lacks a column of the schema or has another type, except for ``untyped`` ones."""
    source = open_source(empty)
    read_like({key: np.empty(0) for key in source.keys}, schema)  # raises if a column is missing
    columns = {name: source.fetch(name) for name in required_columns(schema) if name not in untyped}
    for name in schema.prediction:
        if name in columns and columns[name].kind in ("text", "date"):
            raise DataError(
                f"prediction column {name!r} must hold numbers; got {columns[name].kind}s", hint="convert the column first"
            )
    for feature in schema.features:
        if feature.name in columns:
            check_kind(columns[feature.name], feature)
