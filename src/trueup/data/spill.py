"""A room: the rows of one or several Tables as files in a folder, one after the other, for another process to map."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from trueup.data.table import Table
from trueup.errors import FileError

if TYPE_CHECKING:
    from types import TracebackType

    from trueup._types import AnyArray
    from trueup.data.schema import Schema

PREFIX = "trueup-gang-"
CHUNK = 1 << 24  # bytes that are copied at a time


@dataclass
class Room:
    """Rows in a folder that only this user can read; it goes when the room is closed.

    Attributes
    ----------
    folder : Path
    schema : Schema or None
        Of the first Table; all must have the same.
    kinds : dict
        The type of each array, and how many columns it has (0 for a vector).
    sizes : list of int
        The rows of each Table.
    """

    folder: Path
    schema: Schema | None = None
    kinds: dict[str, tuple[str, int]] = field(default_factory=dict)
    sizes: list[int] = field(default_factory=list)
    unlabelled: int = 0
    weightless: int = 0
    left_out: dict[str, str] = field(default_factory=dict)

    @classmethod
    def make(cls, parent: str | Path | None = None, mark: str = "") -> Room:
        """Make an empty room, where temporary files go; by a mark in its name it can be found again."""
        return cls(Path(tempfile.mkdtemp(prefix=PREFIX + mark, dir=parent)))

    def add(self, table: Table) -> None:
        """Lay the rows of a Table down behind those that are there."""
        arrays = _arrays(table)
        self._agree(
            table.schema, {name: (one.dtype.str, one.shape[1] if one.ndim > 1 else 0) for name, one in arrays.items()}
        )
        for name, array in arrays.items():
            try:
                with (self.folder / name).open("ab") as file:
                    np.ascontiguousarray(array).tofile(file)
            except OSError as error:
                raise self._full(error) from error
        self.sizes.append(len(table))
        self.unlabelled += table.unlabelled
        self.weightless += table.weightless
        self.left_out |= table.left_out

    def move(self, other: Room) -> None:
        """Take the rows of another room over, file by file: no more than one file is there twice."""
        assert other.schema is not None
        self._agree(other.schema, other.kinds)
        for name in self.kinds:
            try:
                if not self.sizes:
                    (other.folder / name).replace(self.folder / name)
                else:
                    with (self.folder / name).open("ab") as file, (other.folder / name).open("rb") as more:
                        shutil.copyfileobj(more, file, CHUNK)
                    (other.folder / name).unlink()
            except OSError as error:
                raise self._full(error) from error
        self.sizes += other.sizes
        self.unlabelled += other.unlabelled
        self.weightless += other.weightless
        self.left_out |= other.left_out
        other.close()

    def table(self) -> Table:
        """Map all rows to one Table.

        What is written to its arrays reaches no file. They are not marked as read-only, since numba would compile every
        kernel anew for arrays that are.
        """
        assert self.schema is not None
        found = {name: self._map(name) for name in self.kinds}
        columns = {one.name: found[f"column{at}"] for at, one in enumerate(self.schema.features)}
        return Table(
            self.schema, columns, found["prediction"], found.get("outcome"), found.get("weight"),
            unlabelled=self.unlabelled, weightless=self.weightless, left_out=self.left_out,
        )  # fmt: skip

    def close(self) -> None:
        """Take the folder away."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Room:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _agree(self, schema: Schema, kinds: dict[str, tuple[str, int]]) -> None:
        if self.schema is None:
            self.schema, self.kinds = schema, kinds
        elif (schema, kinds) != (self.schema, self.kinds):
            raise AssertionError(
                f"parts of different columns: {kinds} is not {self.kinds}, or {schema} is not {self.schema}"
            )

    def _map(self, name: str) -> AnyArray:
        kind, width = self.kinds[name]
        shape = (sum(self.sizes), width) if width else (sum(self.sizes),)
        if not shape[0]:
            return np.empty(shape, kind)
        return np.asarray(np.memmap(self.folder / name, kind, "c", shape=shape))

    def _full(self, error: OSError) -> FileError:
        return FileError(
            f"the rows of a worker could not be laid down in {self.folder.parent} ({error.strerror or error})",
            hint="free room there, or set TMPDIR on the workers to a folder that has it",
        )


def _arrays(table: Table) -> dict[str, AnyArray]:
    """Name the arrays of a Table, in the order of its schema."""
    found = {"prediction": table.prediction, "outcome": table.outcome, "weight": table.weight}
    names = [one.name for one in table.schema.features]
    found |= {f"column{at}": table.columns[name] for at, name in enumerate(names)}
    return {name: array for name, array in found.items() if array is not None}
