"""Files larger than memory as rows in parts: all of them are here, and lie on disk."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from trueup.cluster.communicator import SINGLE_PROCESS
from trueup.data import chunks
from trueup.data.table import Table
from trueup.errors import FileError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from trueup._types import AnyArray, FloatArray
    from trueup.cluster.communicator import Communicator
    from trueup.data.chunks import ScanReader
    from trueup.data.scan import Scan
    from trueup.data.schema import Schema


T = TypeVar("T")
# Parameters of glibc's malloc.h; the bytes from which it asks the system each time here, and those to which it raises them
# itself, in a process that works with large arrays.
MMAP_THRESHOLD, TRIM_THRESHOLD, LARGE, USUAL = -3, -1, 1 << 20, 1 << 25
PREDICTION, OUTCOME, WEIGHT = "prediction", "outcome", "weight"


@contextlib.contextmanager
def open_scan_partitions(given: Scan, **roles: Any) -> Iterator[ScanPartitions]:
    """Open the rows of a scan, by the roles that `trueup.data.chunks.open_scan` takes."""
    with chunks.open_scan(given, **roles) as opened:
        yield ScanPartitions(opened)


@dataclass(frozen=True, eq=False)
class ScanPartitions:
    """Rows of files in parts, as `trueup.cluster.partitions.PartitionedTable` has them.

    A part is 50,000 rows of a file: what is done part by part depends on the files, and not on the memory that there is.
    """

    opened: ScanReader

    @property
    def schema(self) -> Schema:
        """Say what the columns are."""
        return self.opened.schema

    @property
    def roles(self) -> Mapping[str, Any]:
        """Give the roles as they were given."""
        return self.opened.roles

    @property
    def left_out(self) -> Mapping[str, str]:
        """Name the columns that were left out, and why."""
        return self.opened.left_out

    @property
    def rows(self) -> int:
        """Count all rows."""
        return self.opened.rows

    @property
    def memory_budget(self) -> int:
        """Say how many bytes rows may take at once."""
        return self.opened.memory_budget

    @property
    def memory(self) -> int:
        """Say how many bytes may be taken in all."""
        return self.opened.scan.memory

    @property
    def spill_directory(self) -> Path:
        """Give the folder for what does not fit."""
        return self.opened.spill_directory

    @property
    def discrete_outcomes(self) -> bool:
        """Say whether every outcome is 0 or 1, or a class."""
        return self.opened.discrete_outcomes

    def iter_tables(self) -> Iterator[Table]:
        """Read piece after piece."""
        return self.opened.iter_tables()

    def values(self, name: str) -> tuple[FloatArray, bool]:
        """Give a column, or a fair sample of it; say whether it is all of it."""
        return self.opened.values(name)

    def distinct(self, name: str, most: int, *, days: bool = False) -> FloatArray:
        """Give the distinct values of a column."""
        return self.opened.distinct(name, most, days=days)

    def has_missing(self, name: str) -> bool:
        """Say whether some row has no value in a column."""
        return self.opened.has_missing(name)

    def map_reduce(self, work: Callable[[Table, int], T], add: Callable[[T, T], T]) -> T:
        """Do the work on the Table of every part; add up what was found."""
        total: T | None = None
        for number, table in enumerate(self.opened.iter_partitions()):
            found = work(table, number)
            total = found if total is None else add(total, found)
        assert total is not None  # a scan has rows
        return total

    def run_workers(self, work: Callable[[Table, Sequence[int], Communicator], T]) -> T:
        """Do the work here, on all rows; their columns are mapped from files, which are written once."""
        table, sizes = self._mapped
        with _giving_back():
            return work(table, sizes, SINGLE_PROCESS)

    @cached_property
    def _mapped(self) -> tuple[Table, list[int]]:
        folder = self.spill_directory / "columns"
        folder.mkdir()
        columns = _Columns(folder)
        sizes = []
        try:
            last = None
            for last in self.opened.iter_partitions():
                columns.add(last)
                sizes.append(len(last))
            columns.flush()
        finally:
            columns.close()
        assert last is not None
        return columns.table(last), sizes


class _Columns:
    """The columns of a Table, written part after part, a file each."""

    def __init__(self, folder: Path) -> None:
        self.spill_directory = folder
        self._files: dict[str, Any] = {}
        self._kinds: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {}
        self._rows = 0

    def add(self, table: Table) -> None:
        """Write the rows of one more part."""
        arrays = {f"c{at}": column for at, column in enumerate(table.columns.values())}
        roles = {PREDICTION: table.prediction, OUTCOME: table.outcome, WEIGHT: table.weight}
        arrays |= {name: column for name, column in roles.items() if column is not None}
        self._kinds = {name: (array.dtype, array.shape[1:]) for name, array in arrays.items()}
        with self._telling():
            for name, array in arrays.items():
                if name not in self._files:
                    self._files[name] = (self.spill_directory / name).open("wb")
                self._files[name].write(np.ascontiguousarray(array).data)
        self._rows += len(table)

    def flush(self) -> None:
        """End the writing."""
        with self._telling():
            for file in self._files.values():
                file.flush()

    def close(self) -> None:
        """Close the files, also after an error."""
        for file in self._files.values():
            with contextlib.suppress(OSError):
                file.close()

    def table(self, like: Table) -> Table:
        """Map the files to a Table of all rows."""
        names = list(like.columns)
        columns = {name: self._map(f"c{at}") for at, name in enumerate(names)}
        weight = self._map(WEIGHT) if WEIGHT in self._files else None
        return Table(like.schema, columns, self._map(PREDICTION), self._map(OUTCOME), weight)

    def _map(self, name: str) -> AnyArray:
        kind, shape = self._kinds[name]
        if not self._rows:
            return np.empty((0, *shape), kind)
        return np.asarray(np.memmap(self.spill_directory / name, kind, "r", shape=(self._rows, *shape)))

    @contextlib.contextmanager
    def _telling(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            width = sum(kind.itemsize * int(np.prod(shape)) for kind, shape in self._kinds.values())
            raise FileError(
                f"cannot spill to {self.spill_directory.parent}: {error.strerror or error}",
                hint=f"{width} bytes a row go there: free some room, or name a folder with more",
            ) from error


@contextlib.contextmanager
def _giving_back() -> Iterator[None]:
    """Let the C library give back what is freed of many bytes: it would keep a third of what rows take, here and there.

    Only meanwhile: it makes arrays of some megabytes slow to work with, and the process may have other work to do.
    """
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    if not hasattr(library, "mallopt"):  # which only glibc has
        yield
        return
    assert library is not None
    library.mallopt(MMAP_THRESHOLD, LARGE)
    try:
        yield
    finally:
        library.mallopt(MMAP_THRESHOLD, USUAL)
        library.mallopt(TRIM_THRESHOLD, 2 * USUAL)
