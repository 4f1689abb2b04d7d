"""Records of rows in files, one per score range, for rows that do not fit in memory."""

from __future__ import annotations

import contextlib
from typing import IO, TYPE_CHECKING, TypeVar

import numpy as np

from trueup.cluster.partitions import ShuffledRecords
from trueup.errors import FileError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

T = TypeVar("T")
MAX_OPEN_FILES = 256  # a process may often have no more than 1,024


class SpilledRecords(ShuffledRecords):
    """Records in one file per partition, in a directory of their own; ``progress`` counts the records of every pass."""

    def __init__(
        self, directory: Path, record_bytes: int, partitions: int, progress: Callable[[int, int], None] | None = None
    ) -> None:
        self.directory, self.record_bytes, self.progress = directory, record_bytes, progress
        self.sizes = [0] * partitions
        self._open: dict[int, IO[bytes]] = {}

    def write(self, records: Mapping[int, bytes]) -> None:
        """Append records, by number of their partition; files beyond `MAX_OPEN_FILES` are opened for every write."""
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
        """Finish writing."""
        try:
            for file in self._open.values():
                file.flush()
        except OSError as error:
            raise self._write_error(error) from error

    def map_reduce(self, work: Callable[[list[bytes], int], T], add: Callable[[T, T], T]) -> T:
        """Call ``work`` on one partition after the other, mapped to memory; add the results in their order."""
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
        """Close the files, also after an error: unwritten records are then lost."""
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
