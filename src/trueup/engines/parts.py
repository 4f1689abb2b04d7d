"""Rows in the parts of a cluster's frame, with their roles settled: one schema, one vocabulary for all of them."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from functools import partial
from operator import add as plus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

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
    from trueup.data.profile import Roles
    from trueup.data.schema import Feature, Schema
    from trueup.engines.base import Frames, Parts, ShuffledRecords, Team


T = TypeVar("T")
Engine = Literal["spark", "dask", "scan"]
MEMORY = 2 * 10**9  # bytes
PACKAGES = {"spark": ("pyspark", "pyarrow", "pandas"), "dask": ("dask.dataframe", "distributed")}


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


def frames_of(data: Any) -> Frames:
    """Take hold of the frame of a cluster."""
    engine = engine_of(data)
    if engine == "spark":
        from trueup.engines.spark.frames import SparkFrames

        return SparkFrames(data)
    if engine == "dask":
        from trueup.engines.dask.frames import DaskFrames

        return DaskFrames(data)
    raise ArgumentError(
        f"the rows of a {type(data).__name__} do not lie on a cluster", hint="pass a Spark or a Dask DataFrame"
    )


def open_parts(
    data: Any, *, memory: int = MEMORY, spill: Path | None = None, **roles: Any
) -> AbstractContextManager[Parts]:
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
        from trueup.engines.here import open_here

        return open_here(data, **roles)
    return open_frames(frames_of(data), memory=memory, spill=spill, **roles)


@contextlib.contextmanager
def open_frames(frames: Frames, *, memory: int = MEMORY, spill: Path | None = None, **roles: Any) -> Iterator[FrameParts]:
    """Settle the roles of frames by one pass over them; what is written to the folder goes at the end."""
    from trueup.data.chunks import temporary_directory

    settled = assign_roles(frames.names, **roles)
    survey = frames.fold(partial(_look, settled), plus, settled.columns)
    schema, left_out = survey.describe(settled)
    usual = {"weight": None, "task": "auto", "categorical": (), "unlabelled": "error", "classes": None}
    given = {**usual, **{name: value for name, value in roles.items() if name != "features"}}
    with temporary_directory(spill) as folder:
        reader = Reader(schema, settled)
        yield FrameParts(frames, reader, survey, given, left_out, max(memory - BASE_MEMORY, 50 * 10**6) // 2, Path(folder))


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
class FrameParts:
    """Rows of a cluster's frame, as `trueup.engines.base.Parts` has them.

    ``survey`` is what one pass found of all parts: the rows of each, its lowest and highest score, a sample of the rows.
    """

    frames: Frames
    reader: Reader
    survey: TableProfile
    roles: Mapping[str, Any]
    left_out: Mapping[str, str]
    room: int
    folder: Path

    @property
    def schema(self) -> Schema:
        """Say what the columns are."""
        return self.reader.schema

    @property
    def rows(self) -> int:
        """Count all rows."""
        return self.survey.rows

    @property
    def whole_outcomes(self) -> bool:
        """Say whether every outcome is 0 or 1, or a class."""
        return self.survey.whole_outcomes

    def fold(self, work: Callable[[Table, int], T], add: Callable[[T, T], T]) -> T:
        """Do the work on the Table of every part; add up what was found."""
        return self.frames.fold(partial(_work, self.reader, work), add, self.reader.columns)

    def shuffle(
        self, split: Callable[[Table, int], tuple[T, Mapping[int, bytes]]], add: Callable[[T, T], T], partitions: int
    ) -> tuple[T, ShuffledRecords]:
        """Move the records of the Table of every part to new partitions; see `Frames.shuffle`."""
        return self.frames.shuffle(partial(_work, self.reader, split), add, self.reader.columns, partitions)

    def tables(self) -> Iterator[Table]:
        """Read part after part, here."""
        for number, frame in enumerate(self.frames.stream(self.reader.columns)):
            yield self.reader(frame, number)

    def gang(self, work: Callable[[Table, Sequence[int], Team], T]) -> T:
        """Let processes that hold all parts work at the same time."""
        return self.frames.gang(self.reader, work, self.reader.columns)

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
        return self.frames.fold(work, partial(_either, most), reader.columns)

    def lacks(self, name: str) -> bool:
        """Say whether some row has no value in a column."""
        return name in self.survey.columns and self.survey.columns[name].lacks

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
