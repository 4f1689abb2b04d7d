"""Records of rows, partitioned by score range: their layout, and files of them for rows that do not fit in memory."""

from __future__ import annotations

import contextlib
import math
import shutil
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from trueup.errors import FileError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from trueup._types import AnyArray, FloatArray, Int32Array

MAX_FILES = 256  # score ranges of a spill; a range that is still too large is divided again
MAX_OPEN_FILES = 256  # of all scores together: a process may often have no more than 1,024
MAX_SAMPLED_SCORES = 1_000_000  # by which a range is divided again


def record_dtype(levels: Sequence[int], *, weighted: bool, discrete: bool) -> np.dtype[Any]:
    """Lay out a record: score, outcome (one byte if all are 0 or 1), weight, and one code per column in few bytes.

    Examples
    --------
    >>> record_dtype([12, 300], weighted=False, discrete=True).itemsize
    12
    """
    codes = [(f"c{column}", "u1" if n <= 2**8 else "u2" if n <= 2**16 else "i4") for column, n in enumerate(levels)]
    return np.dtype([("p", "f8"), ("y", "u1" if discrete else "f8"), *([("w", "f8")] if weighted else []), *codes])


def make_records(
    dtype: np.dtype[Any], p: FloatArray, y: FloatArray, w: FloatArray | None, codes: Sequence[Int32Array]
) -> AnyArray:
    """Return rows as records."""
    records = np.empty(len(p), dtype)
    records["p"], records["y"] = p, y
    if w is not None:
        records["w"] = w
    for column, values in enumerate(codes):
        records[f"c{column}"] = values
    return records


def score_edges(sample: FloatArray, ranges: int) -> FloatArray:
    """Return edges that divide scores into ranges of about equal numbers of rows; a frequent score has its own range.

    Examples
    --------
    >>> score_edges(np.linspace(0, 1, 101), 4).tolist()
    [0.25, 0.5, 0.75]
    """
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


class ScoreSpill:
    """Records in files, one per score range.

    Parameters
    ----------
    directory : Path
        An empty directory.
    dtype : dtype
        The layout of a record; see `record_dtype`.
    edges : ndarray
        Lowest score of every range but the first.
    max_rows : int
        Records to read at once.
    max_open_files : int
        Further files are opened anew for each write.
    """

    def __init__(
        self, directory: Path, dtype: np.dtype[Any], edges: FloatArray, max_rows: int, max_open_files: int = MAX_OPEN_FILES
    ) -> None:
        self.directory, self.dtype, self.edges = directory, dtype, edges
        self.max_rows, self.max_open_files = max_rows, max_open_files
        self.counts = [0] * (len(edges) + 1)
        self._open: dict[int, IO[bytes]] = {}

    def add(self, records: AnyArray) -> None:
        """Write records, each to the file of its score range."""
        for number, some in split_by_score(records, self.edges):
            try:
                if number not in self._open and len(self._open) < self.max_open_files:
                    self._open[number] = self._path(number).open("ab")
                if number in self._open:
                    self._open[number].write(np.ascontiguousarray(some).data)
                else:
                    with self._path(number).open("ab") as file:
                        file.write(np.ascontiguousarray(some).data)
            except OSError as error:
                raise self._write_error(error) from error
            self.counts[number] += len(some)

    def finish(self) -> None:
        """Finish writing; sort ranges that are too large to be read at once, unless they have a single score."""
        try:
            for file in self._open.values():
                file.flush()
        except OSError as error:
            raise self._write_error(error) from error
        self.close()
        for number, count in enumerate(self.counts):
            if count > self.max_rows:
                self._sort_on_disk(number)

    def close(self) -> None:
        """Close the files, also after an error: unwritten records are then lost."""
        for file in self._open.values():
            with contextlib.suppress(OSError):
                file.close()
        self._open = {}

    def read(self, number: int) -> Iterator[AnyArray]:
        """Yield the records of a range, at most ``max_rows`` at a time.

        Records of one item are in no order; no score is below those of the item before.
        """
        return self._read(number, self.max_rows)

    def _read(self, number: int, size: int) -> Iterator[AnyArray]:
        path = self._path(number)
        with path.open("rb") as file:
            for start in range(0, self.counts[number], size):
                expected = min(size, self.counts[number] - start)
                records = np.fromfile(file, self.dtype, expected)
                if len(records) != expected:
                    raise FileError(f"{path} has lost rows", hint="another process may be writing to this directory")
                yield records

    def _sort_on_disk(self, number: int) -> None:
        """Sort the records of a range by a spill of its own, with finer ranges."""
        size, count = max(self.max_rows // 4, 1), self.counts[number]
        sample = np.concatenate([some["p"][:: 1 + count // MAX_SAMPLED_SCORES] for some in self._read(number, size)])
        if all((some["p"] == sample[0]).all() for some in self._read(number, size)):
            return
        inner = self.directory / f"inner-{number}"
        inner.mkdir()
        edges = score_edges(sample, spill_ranges(count, self.max_rows))
        finer = ScoreSpill(inner, self.dtype, edges, self.max_rows, self.max_open_files)
        try:
            for some in self._read(number, size):
                finer.add(some)
            finer.finish()
            with self._path(number).open("wb") as file:
                for inner_number in range(len(finer.counts)):
                    for some in finer.read(inner_number) if finer.counts[inner_number] else ():
                        file.write(np.ascontiguousarray(some[np.argsort(some["p"], kind="stable")]).data)
        except OSError as error:
            raise self._write_error(error) from error
        finally:
            finer.close()
        shutil.rmtree(inner, ignore_errors=True)

    def _path(self, number: int) -> Path:
        return self.directory / f"range-{number}"

    def _write_error(self, error: OSError) -> FileError:
        return FileError(
            f"cannot spill to {self.directory}: {error.strerror or error}",
            hint=f"each row takes {self.dtype.itemsize} bytes per score: free disk space, or use another spill directory",
        )


def spill_ranges(rows: int, max_rows: int) -> int:
    """Return how many score ranges to make: about half as many rows each as may be read at once."""
    return min(math.ceil(2 * rows / max_rows), MAX_FILES)
