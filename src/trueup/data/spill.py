"""Rows of Tables spilled to disk: one file per column, appended Table by Table and memory-mapped as one Table."""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup import _temporary
from trueup.data.table import Schema, Table
from trueup.errors import DataError, FileError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from trueup._types import AnyArray

PREFIX = "trueup-rows-"
COPY_BYTES = 1 << 24  # copied at a time
WORKER_HINT = "free disk space there, or set TMPDIR on the workers to a directory that has more"


@dataclass
class TableSpill:
    """Rows in files of a private directory, which `close` deletes; another process can memory-map a pickled spill."""

    directory: Path
    hint: str = WORKER_HINT  # for a full disk, with suggested settings
    settings: Mapping[str, Any] = field(default_factory=dict)
    schema: Schema | None = None  # of all Tables
    dtypes: dict[str, tuple[str, int]] = field(default_factory=dict)  # of each array, and its width (0 for a vector)
    sizes: list[int] = field(default_factory=list)  # rows of each Table
    unlabelled: int = 0
    weightless: int = 0
    left_out: dict[str, str] = field(default_factory=dict)

    @classmethod
    def create(cls, parent: str | Path | None = None, label: str = "", **hints: Any) -> TableSpill:
        """Create an empty spill in a new directory in ``parent``, by default the system's; ``label`` is in its name."""
        return cls(_temporary.create_directory(parent, PREFIX + label), **hints)

    def add(self, table: Table) -> None:
        """Append the rows of a Table."""
        every = {"prediction": table.prediction, "outcome": table.outcome, "weight": table.weight, "cluster": table.cluster}
        every |= {f"column{index}": table.columns[feature.name] for index, feature in enumerate(table.schema.features)}
        arrays = {name: array for name, array in every.items() if array is not None}
        dtypes = {name: (array.dtype.str, array.shape[1] if array.ndim > 1 else 0) for name, array in arrays.items()}
        self._include(table, dtypes)
        try:
            for name, array in arrays.items():
                with (self.directory / name).open("ab") as file:
                    file.write(np.ascontiguousarray(array).data)
        except OSError as error:
            raise self._write_error(error) from error
        self.sizes.append(len(table))

    def take_over(self, other: TableSpill) -> None:
        """Append the rows of another spill and close it; at most one of its files exists twice at a time."""
        self._include(other, other.dtypes)
        try:
            for name in self.dtypes:
                source, target = other.directory / name, self.directory / name
                if not self.sizes:
                    source.replace(target)
                    continue
                with target.open("ab") as file, source.open("rb") as more:
                    shutil.copyfileobj(more, file, COPY_BYTES)
                source.unlink()
        except OSError as error:
            raise self._write_error(error) from error
        self.sizes += other.sizes
        other.close()

    def table(self) -> Table:
        """Return all rows as one memory-mapped Table; writing to its arrays does not change the files."""
        assert self.schema is not None
        arrays = {name: self._map(name) for name in self.dtypes}
        columns = {feature.name: arrays[f"column{index}"] for index, feature in enumerate(self.schema.features)}
        return Table(
            self.schema, columns, arrays["prediction"], arrays.get("outcome"), arrays.get("weight"),
            unlabelled=self.unlabelled, weightless=self.weightless, left_out=self.left_out, cluster=arrays.get("cluster"),
        )  # fmt: skip

    def close(self) -> None:
        """Delete the directory."""
        _temporary.remove(self.directory)

    def __enter__(self) -> TableSpill:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _include(self, other: Table | TableSpill, dtypes: dict[str, tuple[str, int]]) -> None:
        """Add the counts of more rows; raise unless they have the same columns."""
        if self.schema is None:
            self.schema, self.dtypes = other.schema, dtypes
        if (other.schema, dtypes) != (self.schema, self.dtypes):
            raise DataError("rows of different columns cannot be spilled together", hint="read all rows with one schema")
        self.unlabelled += other.unlabelled
        self.weightless += other.weightless
        self.left_out |= other.left_out

    def _map(self, name: str) -> AnyArray:
        dtype, width = self.dtypes[name]
        shape = (sum(self.sizes), width) if width else (sum(self.sizes),)
        if not shape[0]:
            return np.empty(shape, dtype)
        # Copied on write and not read-only: numba would compile every kernel again for read-only arrays.
        return np.asarray(np.memmap(self.directory / name, dtype, "c", shape=shape))

    def _write_error(self, error: OSError) -> FileError:
        bytes_per_row = sum(np.dtype(dtype).itemsize * max(width, 1) for dtype, width in self.dtypes.values())
        return FileError(
            f"cannot spill rows to {self.directory.parent} ({bytes_per_row} bytes per row): {error.strerror or error}",
            hint=self.hint,
            settings=self.settings,
        )


@contextlib.contextmanager
def temporary_directory(spill: Path | None) -> Iterator[str]:
    """Create a temporary directory in the directory ``spill``, by default the system's, and delete it at the end."""
    try:
        directory = _temporary.create_directory(spill)
    except OSError as error:
        raise FileError(f"cannot write to {spill}: {error.strerror}", hint="name another spill directory") from error
    try:
        yield str(directory)
    finally:
        _temporary.remove(directory)
