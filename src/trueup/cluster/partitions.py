"""Rows in the parts of a cluster's frame, with their roles settled: one schema, one vocabulary for all of them."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import partial
from operator import add as plus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, TypeVar

import numpy as np

from trueup._optional import require
from trueup.data.checks import RowPosition
from trueup.data.frame import NO_PREDICTION, read
from trueup.data.profile import TableProfile, assign_roles
from trueup.data.scan import BASE_MEMORY, Scan
from trueup.data.table import Table
from trueup.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from trueup._types import FloatArray
    from trueup.cluster.communicator import Communicator
    from trueup.data.profile import Roles
    from trueup.data.schema import Feature, Schema


T = TypeVar("T")
Engine = Literal["spark", "dask", "scan"]
MEMORY = 2 * 10**9  # bytes
PACKAGES = {"spark": ("pyspark", "pyarrow", "pandas"), "dask": ("dask.dataframe", "distributed")}


class ClusterFrame(ABC):
    """The frames of one engine, a part each: what Spark and Dask lend us.

    Functions that are passed on travel to other machines: they are functions of this package, `functools.partial` of
    them, or plain objects. What they raise of `TrueupError` is raised here again as it was.

    Attributes
    ----------
    names : tuple of str
        The columns.
    has_workers : bool
        Whether there are workers that keep shuffled records.
    """

    names: tuple[str, ...]
    has_workers: bool = True

    @abstractmethod
    def map_reduce(self, work: Callable[[Any, int], T], add: Callable[[T, T], T], columns: Sequence[str]) -> T:
        """Do the work on every part, told its frame (pyarrow or pandas) and its number; add up, in pairs of neighbours."""

    @abstractmethod
    def iter_partitions(self, columns: Sequence[str]) -> Iterator[Any]:
        """Give one frame after the other, in their order; no more than one is held here at a time."""

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
        """Let processes that hold all parts work at the same time; give what the first of them found.

        Each process has the rows of one part or of several, joined: the work is told them, how many rows each of these
        parts has, and the team. A process that is lost is a `LostWorkerError` within a minute.
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


class PartitionedTable(Protocol):
    """Rows in parts with their roles settled: one schema, one vocabulary for all.

    Attributes
    ----------
    schema : Schema
    roles : mapping of str to Any
        As they were given: outcome, prediction, weight, task, categorical, unlabelled, classes.
    left_out : mapping of str to str
        Columns that were left out of the features, and why.
    rows : int
        In all parts, those that are set aside included.
    memory_budget : int
        Bytes that rows may take here at once.
    spill_directory : Path
        For what does not fit; it goes when the rows are closed.
    discrete_outcomes : bool
        Whether every outcome is 0 or 1, or a class.
    """

    @property
    def schema(self) -> Schema:
        """Say what the columns are."""

    @property
    def roles(self) -> Mapping[str, Any]:
        """Give the roles as they were given."""

    @property
    def left_out(self) -> Mapping[str, str]:
        """Name the columns that were left out, and why."""

    @property
    def rows(self) -> int:
        """Count all rows."""

    @property
    def memory_budget(self) -> int:
        """Say how many bytes rows may take here."""

    @property
    def spill_directory(self) -> Path:
        """Give the folder for what does not fit."""

    @property
    def discrete_outcomes(self) -> bool:
        """Say whether every outcome is 0 or 1, or a class."""

    def map_reduce(self, work: Callable[[Table, int], T], add: Callable[[T, T], T]) -> T:
        """Do the work on the Table of every part, told its number too; add up what was found."""

    def iter_tables(self) -> Iterator[Table]:
        """Give one Table after the other, here."""

    def run_workers(self, work: Callable[[Table, Sequence[int], Communicator], T]) -> T:
        """Let processes that hold all parts work at the same time; see `ClusterFrame.run_workers`."""

    def values(self, name: str) -> tuple[FloatArray, bool]:
        """Give a column of numbers, dates or predictions, or a fair sample; say whether it is all of it.

        Of rows that are not set aside.
        """

    def distinct(self, name: str, most: int, *, days: bool = False) -> FloatArray:
        """Give the distinct values of a column of numbers or dates (whole days), NaN if one is missing.

        Of more than ``most`` some are given, more than that.
        """

    def has_missing(self, name: str) -> bool:
        """Say whether some row that is not set aside has no value in a column."""


def engine_of(data: Any) -> Engine | None:
    """Say which engine holds the rows, by the type of the data alone; None where they are in memory.

    Examples
    --------
    >>> from trueup.data.scan import scan
    >>> engine_of(scan("scores.parquet")), engine_of({"p": [0.1]})
    ('scan', None)
    """
    if isinstance(data, Scan):
        return "scan"
    for one in type(data).__mro__:
        if one.__name__ == "DataFrame" and one.__module__.startswith("pyspark.sql."):
            return "spark"
        if one.__name__ == "DataFrame" and one.__module__.split(".")[0] in ("dask", "dask_expr"):
            return "dask"
    return None


def need(engine: str) -> None:
    """Make sure that the packages of an engine are installed; say which extra to install where they are not."""
    for name in PACKAGES.get(engine, ()):
        require(name, extra=engine)


def as_cluster_frame(data: Any) -> ClusterFrame:
    """Take hold of the frame of a cluster."""
    engine = engine_of(data)
    if engine == "spark":
        from trueup.cluster.spark import SparkFrame

        return SparkFrame(data)
    if engine == "dask":
        from trueup.cluster.dask import DaskFrame

        return DaskFrame(data)
    raise ArgumentError(
        f"the rows of a {type(data).__name__} do not lie on a cluster", hint="pass a Spark or a Dask DataFrame"
    )


def open_partitions(
    data: Any, *, memory: int = MEMORY, spill: Path | None = None, **roles: Any
) -> AbstractContextManager[PartitionedTable]:
    """Open rows that lie in parts: a frame of Spark or Dask, or a scan of files, which brings its own memory and folder.

    Parameters
    ----------
    data : pyspark.sql.DataFrame, dask.dataframe.DataFrame, or Scan
    memory : int
        Bytes that rows may take here.
    spill : path, optional
        The folder for what does not fit.
    **roles
        outcome, prediction, weight, features, task, categorical, unlabelled and classes, as `trueup.data.frame.read` takes
        them; outcome, prediction and weight are names of columns.
    """
    if engine_of(data) == "scan":
        from trueup.cluster.files import open_scan_partitions

        return open_scan_partitions(data, **roles)
    return open_cluster_frame(as_cluster_frame(data), memory=memory, spill=spill, **roles)


@contextlib.contextmanager
def open_cluster_frame(
    frames: ClusterFrame, *, memory: int = MEMORY, spill: Path | None = None, **roles: Any
) -> Iterator[FramePartitions]:
    """Settle the roles of frames by one pass over them; what is written to the folder goes at the end."""
    from trueup.data.chunks import temporary_directory

    settled = assign_roles(frames.names, **roles)
    survey = frames.map_reduce(partial(_look, settled), plus, settled.columns)
    schema, left_out = survey.describe(settled)
    usual = {"weight": None, "task": "auto", "categorical": (), "unlabelled": "error", "classes": None}
    given = {**usual, **{name: value for name, value in roles.items() if name != "features"}}
    with temporary_directory(spill) as folder:
        reader = Reader(schema, settled)
        budget = max(memory - BASE_MEMORY, 50 * 10**6) // 2
        yield FramePartitions(frames, reader, survey, given, left_out, budget, Path(folder))


def _look(roles: Roles, frame: Any, number: int) -> TableProfile:
    return TableProfile.of(frame, number, roles)


@dataclass(frozen=True)
class Reader:
    """Reads one part after another by the schema of all of them. Travels to the parts."""

    schema: Schema
    roles: Roles

    @property
    def columns(self) -> tuple[str, ...]:
        """Name the columns that it reads."""
        return replace(self.roles, features=tuple(feature.name for feature in self.schema.features)).columns

    def __call__(self, frame: Any, number: int) -> Table:
        """Read a part."""
        schema, roles = self.schema, self.roles
        if not len(frame):
            return _no_rows(schema)
        table = read(
            frame, outcome=roles.outcome, prediction=list(roles.prediction) or NO_PREDICTION, weight=roles.weight,
            features=[feature.name for feature in schema.features],
            task="auto" if schema.task == "multiclass" else schema.task, unlabelled=roles.unlabelled,
            classes=schema.classes or None, schema=schema, position=RowPosition(0, number),
        )  # fmt: skip
        return replace(table, schema=schema)


def _no_rows(schema: Schema) -> Table:
    kinds = {feature.name: np.int32 if feature.kind == "categorical" else np.float64 for feature in schema.features}
    columns = {name: np.empty(0, kind) for name, kind in kinds.items()}
    scores = np.empty((0, len(schema.prediction)) if len(schema.prediction) > 1 else 0)
    outcome, weight = (None if name is None else np.empty(0) for name in (schema.outcome, schema.weight))
    return Table(schema, columns, scores, outcome, weight)


@dataclass(frozen=True, eq=False)
class FramePartitions:
    """Rows of a cluster's frame, as `PartitionedTable` has them.

    ``survey`` is what one pass found of all parts: the rows of each, its lowest and highest score, a sample of the rows.
    """

    frames: ClusterFrame
    reader: Reader
    survey: TableProfile
    roles: Mapping[str, Any]
    left_out: Mapping[str, str]
    memory_budget: int
    spill_directory: Path

    @property
    def schema(self) -> Schema:
        """Say what the columns are."""
        return self.reader.schema

    @property
    def rows(self) -> int:
        """Count all rows."""
        return self.survey.rows

    @property
    def discrete_outcomes(self) -> bool:
        """Say whether every outcome is 0 or 1, or a class."""
        return self.survey.discrete_outcomes

    def map_reduce(self, work: Callable[[Table, int], T], add: Callable[[T, T], T]) -> T:
        """Do the work on the Table of every part; add up what was found."""
        return self.frames.map_reduce(partial(_work, self.reader, work), add, self.reader.columns)

    def shuffle(
        self, split: Callable[[Table, int], tuple[T, Mapping[int, bytes]]], add: Callable[[T, T], T], partitions: int
    ) -> tuple[T, ShuffledRecords]:
        """Move the records of the Table of every part to new partitions; see `ClusterFrame.shuffle`."""
        return self.frames.shuffle(partial(_work, self.reader, split), add, self.reader.columns, partitions)

    def iter_tables(self) -> Iterator[Table]:
        """Read part after part, here."""
        for number, frame in enumerate(self.frames.iter_partitions(self.reader.columns)):
            yield self.reader(frame, number)

    def run_workers(self, work: Callable[[Table, Sequence[int], Communicator], T]) -> T:
        """Let processes that hold all parts work at the same time."""
        return self.frames.run_workers(self.reader, work, self.reader.columns)

    def values(self, name: str) -> tuple[FloatArray, bool]:
        """Give a column, or a fair sample of it; say whether it is all of it."""
        sample = self.survey.sample
        return sample.columns[name], len(sample.keys) == self.survey.kept

    def distinct(self, name: str, most: int, *, days: bool = False) -> FloatArray:
        """Give the distinct values of a column."""
        values, whole = self.values(name)
        if whole:
            return _distinct(values, most, days=days)
        reader = replace(self.reader, schema=replace(self.schema, features=(self._feature(name),)))
        work = partial(_work, reader, partial(_distinct_of, name, most, days))
        return self.frames.map_reduce(work, partial(_either, most), reader.columns)

    def has_missing(self, name: str) -> bool:
        """Say whether some row has no value in a column."""
        return name in self.survey.columns and self.survey.columns[name].has_missing

    def _feature(self, name: str) -> Feature:
        return next(feature for feature in self.schema.features if feature.name == name)


def _work(reader: Reader, work: Callable[[Table, int], T], frame: Any, number: int) -> T:
    return work(reader(frame, number), number)


def _distinct(values: FloatArray, most: int, *, days: bool) -> FloatArray:
    return np.unique(np.floor(values) if days else values)[-(most + 3) :]  # NaN is the last of them


def _distinct_of(name: str, most: int, days: bool, table: Table, _number: int) -> FloatArray:  # noqa: FBT001
    return _distinct(table.columns[name], most, days=days)


def _either(most: int, a: FloatArray, b: FloatArray) -> FloatArray:
    return _distinct(np.concatenate([a, b]), most, days=False)
