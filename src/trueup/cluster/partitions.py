"""Rows in partitions: the interface of cluster frames, and Tables read from their partitions with one schema.

A cluster frame has three operations: `map_reduce` (each partition by itself, results added), `shuffle` (records move to new
partitions) and `run_workers` (all partitions at the same time, in workers that communicate).
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import partial
from operator import add as plus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np

from trueup._optional import require
from trueup.data.columns import engine_of
from trueup.data.frame import RowPosition, read_labelled
from trueup.data.profile import TableProfile, assign_roles
from trueup.data.scan import row_memory
from trueup.data.table import Table
from trueup.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from trueup._types import FloatArray
    from trueup.cluster.communicator import Communicator
    from trueup.data.profile import Roles
    from trueup.data.table import Schema


T = TypeVar("T")
DEFAULT_MEMORY = 2 * 10**9  # bytes
PACKAGES = {"spark": ("pyspark", "pyarrow", "pandas"), "dask": ("dask.dataframe", "distributed")}


class ClusterFrame(ABC):
    """A Spark or Dask DataFrame.

    Functions that are passed are sent to other machines: they must be functions of this package, `functools.partial` of
    them, or plain objects. A `TrueupError` that they raise is raised unchanged in this process.
    """

    names: tuple[str, ...]  # of the columns
    has_workers: bool = True  # which keep shuffled records; without, partitions are read in this process

    @abstractmethod
    def map_reduce(
        self, work: Callable[[Any, int], T], add: Callable[[T, T], T], columns: Sequence[str], *, ordered: bool = True
    ) -> T:
        """Call ``work`` with each partition that has rows (pyarrow or pandas) and its number; add results of neighbours.

        If the order of addition does not matter, ``ordered=False`` may send fewer results.
        """

    def iter_partitions(self, columns: Sequence[str]) -> Iterator[Any]:
        """Yield one partition after the other, in this process; for frames without workers."""
        raise NotImplementedError

    @abstractmethod
    def shuffle(
        self,
        split: Callable[[Any, int], tuple[T, Mapping[int, bytes]]],
        add: Callable[[T, T], T],
        columns: Sequence[str],
        partitions: int,
    ) -> tuple[T, ShuffledRecords]:
        """Move the records of all rows to new partitions, in one pass over the frame.

        ``split`` is called with the frame of a partition and its number; it returns a value and the records by number of
        their new partition. The values are added up in pairs of neighbours and returned with the new partitions, which are
        kept until they are closed.
        """

    @abstractmethod
    def run_workers(
        self,
        prepare: Callable[[Any, int], Table],
        work: Callable[[Table, Sequence[int], Communicator], T],
        columns: Sequence[str],
    ) -> T:
        """Run ``work`` in workers that hold all partitions and run at the same time; return the result of rank 0.

        Each worker calls ``work`` with the rows of its partitions, joined, the number of rows of each of these partitions,
        and the communicator. A lost worker raises `LostWorkerError` within a minute.
        """


class ShuffledRecords(ABC):
    """Records in new partitions, numbered from 0, kept by the workers of a cluster until they are closed."""

    @abstractmethod
    def map_reduce(self, work: Callable[[list[bytes], int], T], add: Callable[[T, T], T]) -> T:
        """Call ``work`` on the records and the number of every partition that has some; add the results in their order.

        Records come as one item per partition of the frame that they were moved from, in its order.
        """

    @abstractmethod
    def close(self) -> None:
        """Release the records."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


@dataclass(frozen=True, eq=False)
class PartitionedTable(ABC):
    """Rows in partitions, with one schema for all of them."""

    schema: Schema
    roles: Roles
    left_out: Mapping[str, str]  # columns that are not used as features, and why
    rows: int  # of all partitions, including rows without outcome or weight
    memory_budget: int  # bytes that rows may occupy at once in this process
    spill_directory: Path  # for rows beyond the budget; deleted at the end

    @property
    @abstractmethod
    def discrete_outcomes(self) -> bool:
        """Whether every outcome is 0 or 1, or a class."""

    @abstractmethod
    def map_reduce(self, work: Callable[[Table, int], T], add: Callable[[T, T], T]) -> T:
        """Call ``work`` with the Table and the number of each partition; add the results."""

    @abstractmethod
    def iter_tables(self) -> Iterator[Table]:
        """Yield one Table after the other, in this process."""

    @abstractmethod
    def run_workers(self, work: Callable[[Table, Sequence[int], Communicator], T]) -> T:
        """Run ``work`` in workers that hold all partitions; see `ClusterFrame.run_workers`."""

    @abstractmethod
    def values(self, name: str) -> tuple[FloatArray, bool]:
        """Return a numeric, date or prediction column or a random sample of it, and whether it is complete.

        Rows without outcome or weight are not included, here and in the methods below.
        """

    @abstractmethod
    def distinct(self, name: str, most: int, *, days: bool = False) -> FloatArray:
        """Return the distinct values of a numeric or date column (rounded down to days), NaN if one is missing.

        If there are more than ``most``, only some are returned, but more than ``most``.
        """

    @abstractmethod
    def has_missing(self, name: str) -> bool:
        """Return whether some row has no value in a column."""


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

    ``options`` are the roles, as `trueup.data.frame.read` takes them (outcome, prediction and weight are column names),
    and those of `open_cluster_frame`.
    """
    if engine_of(data) == "scan":
        from trueup.cluster.files import open_scan_partitions

        return open_scan_partitions(data, **options)
    return open_cluster_frame(as_cluster_frame(data), **options)


@contextlib.contextmanager
def open_cluster_frame(
    frame: ClusterFrame, *, memory: int = DEFAULT_MEMORY, spill: Path | None = None, **roles: Any
) -> Iterator[FramePartitions]:
    """Profile the columns of a cluster frame in one pass, which determines the schema."""
    from trueup.data.chunks import temporary_directory

    assigned = assign_roles(frame.names, **roles)
    profile = frame.map_reduce(partial(_profile_partition, assigned), plus, assigned.columns, ordered=False)
    schema, left_out = profile.describe(assigned)
    budget = row_memory(memory)
    with temporary_directory(spill) as directory:
        reader = PartitionReader(schema, assigned)
        yield FramePartitions(schema, assigned, left_out, profile.rows, budget, Path(directory), frame, reader, profile)


def _profile_partition(roles: Roles, frame: Any, number: int) -> TableProfile:
    return TableProfile.of(frame, number, roles)


@dataclass(frozen=True)
class PartitionReader:
    """Reads partitions as Tables of one schema; sent to the workers."""

    schema: Schema
    roles: Roles

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns to read."""
        return replace(self.roles, features=tuple(feature.name for feature in self.schema.features)).columns

    def __call__(self, frame: Any, number: int) -> Table:
        """Read the partition of this number."""
        if not len(frame):
            return _empty_table(self.schema)
        return read_labelled(frame, self.schema, self.roles.unlabelled, RowPosition(0, number))


def _empty_table(schema: Schema) -> Table:
    dtypes = {feature.name: np.int32 if feature.kind == "categorical" else np.float64 for feature in schema.features}
    columns = {name: np.empty(0, dtype) for name, dtype in dtypes.items()}
    scores = np.empty((0, len(schema.prediction)) if len(schema.prediction) > 1 else 0)
    outcome, weight = (None if name is None else np.empty(0) for name in (schema.outcome, schema.weight))
    return Table(schema, columns, scores, outcome, weight)


@dataclass(frozen=True, eq=False)
class FramePartitions(PartitionedTable):
    """Rows of a cluster frame. ``profile`` has the rows of each partition, its range of scores, and a sample of rows."""

    frame: ClusterFrame
    reader: PartitionReader
    profile: TableProfile

    @property
    def discrete_outcomes(self) -> bool:
        """Whether every outcome is 0 or 1, or a class."""
        return self.profile.discrete_outcomes

    def map_reduce(self, work: Callable[[Table, int], T], add: Callable[[T, T], T]) -> T:
        """Call ``work`` with the Table and the number of each partition; add the results."""
        return self.frame.map_reduce(partial(_read_and_call, self.reader, work), add, self.reader.columns)

    def shuffle(
        self, split: Callable[[Table, int], tuple[T, Mapping[int, bytes]]], add: Callable[[T, T], T], partitions: int
    ) -> tuple[T, ShuffledRecords]:
        """Move the records of the Table of every partition to new partitions; see `ClusterFrame.shuffle`."""
        return self.frame.shuffle(partial(_read_and_call, self.reader, split), add, self.reader.columns, partitions)

    def iter_tables(self) -> Iterator[Table]:
        """Yield one Table after the other, in this process."""
        for number, frame in enumerate(self.frame.iter_partitions(self.reader.columns)):
            yield self.reader(frame, number)

    def run_workers(self, work: Callable[[Table, Sequence[int], Communicator], T]) -> T:
        """Run ``work`` in workers that hold all partitions."""
        return self.frame.run_workers(self.reader, work, self.reader.columns)

    def values(self, name: str) -> tuple[FloatArray, bool]:
        """Return a column or a random sample of it, and whether it is complete."""
        sample = self.profile.sample
        return sample.columns[name], len(sample.keys) == self.profile.kept

    def distinct(self, name: str, most: int, *, days: bool = False) -> FloatArray:
        """Return the distinct values of a column."""
        values, complete = self.values(name)
        if complete:
            return _distinct(values, most, days=days)
        features = tuple(feature for feature in self.schema.features if feature.name == name)
        reader = replace(self.reader, schema=replace(self.schema, features=features))
        work = partial(_read_and_call, reader, partial(_distinct_in_table, name, most, days))
        return self.frame.map_reduce(work, partial(_merge_distinct, most), reader.columns)

    def has_missing(self, name: str) -> bool:
        """Return whether some row has no value in a column."""
        return name in self.profile.columns and self.profile.columns[name].has_missing


def _read_and_call(reader: PartitionReader, work: Callable[[Table, int], T], frame: Any, number: int) -> T:
    return work(reader(frame, number), number)


def _distinct(values: FloatArray, most: int, *, days: bool) -> FloatArray:
    return np.unique(np.floor(values) if days else values)[-(most + 3) :]  # NaN is the last of them


def _distinct_in_table(name: str, most: int, days: bool, table: Table, _number: int) -> FloatArray:  # noqa: FBT001
    return _distinct(table.columns[name], most, days=days)


def _merge_distinct(most: int, a: FloatArray, b: FloatArray) -> FloatArray:
    return _distinct(np.concatenate([a, b]), most, days=False)
