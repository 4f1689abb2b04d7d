"""Rows on disk in ranges of the score, read back in its order: what an audit sorts where memory does not hold them."""

from __future__ import annotations

import contextlib
import math
import shutil
from dataclasses import dataclass, field
from functools import cached_property
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from trueup.audits.family import Target
from trueup.errors import FileError
from trueup.kernels.tally import Rows, sort_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from trueup._types import AnyArray, FloatArray, Int32Array
    from trueup.audits.family import Grid


LARGEST_STEP = 2**31 - 1
MOST_RANGES = 256
MOST_SAMPLED = 1_000_000  # scores by which a range is cut again
MOST_OPEN = 256  # files of all scores together: a process may often have no more than 1,024


@dataclass(frozen=True, eq=False)
class Part(Target):
    """Some rows of a target, next to each other in the order of the scores; their codes come with them."""

    given: Int32Array = field(default_factory=lambda: np.empty((0, 0), np.int32))

    @cached_property
    def codes(self) -> Int32Array:
        """Codes of every column, one row a column, in the order of the scores."""
        return self.given


def record_of(levels: Sequence[int], *, weighted: bool, exact: bool) -> np.dtype[Any]:
    """Lay out a row: score, outcome (a byte where it is 0 or 1), weight, and a code of each column in few bytes.

    Examples
    --------
    >>> record_of([12, 300], weighted=False, exact=False).itemsize
    12
    """
    codes = [(f"c{at}", "u1" if many <= 2**8 else "u2" if many <= 2**16 else "i4") for at, many in enumerate(levels)]
    return np.dtype([("p", "f8"), ("y", "f8" if exact else "u1"), *([("w", "f8")] if weighted else []), *codes])


def choose_edges(sample: FloatArray, rows: int, most: int) -> FloatArray:
    """Cut scores into ranges of about half as many rows as may be read at once; a score of many rows has its own range.

    Examples
    --------
    >>> choose_edges(np.linspace(0, 1, 101), 400, 200).tolist()
    [0.25, 0.5, 0.75]
    """
    ranges = min(math.ceil(2 * rows / most), MOST_RANGES)  # what is still too large is cut again
    if ranges < 2 or not len(sample):
        return np.empty(0)
    ordered = np.sort(sample)
    marks, times = np.unique(ordered[(np.arange(1, ranges) * len(ordered)) // ranges], return_counts=True)
    heavy = marks[times > 1]
    return np.unique(np.concatenate([marks, heavy, np.nextafter(heavy, np.inf)]))


class Spill:
    """The rows of one target on disk.

    Parameters
    ----------
    folder : Path
        Of its own; it must be there.
    record : dtype
        How a row is laid out: see `record_of`.
    edges : ndarray
        Where ranges of the score begin, but for the first.
    most : int
        Rows to be read at once.
    handles : int
        Files to be kept open; the others are opened anew for all that is written to them.
    """

    def __init__(self, folder: Path, record: np.dtype[Any], edges: FloatArray, most: int, handles: int = MOST_OPEN) -> None:
        self.folder, self.record, self.edges, self.most, self.handles = folder, record, edges, most, handles
        self.counts = [0] * (len(edges) + 1)
        self._open: dict[int, IO[bytes]] = {}

    def _path(self, at: int) -> Path:
        return self.folder / f"range-{at}"

    def add(self, rows: AnyArray) -> None:
        """Write rows, each to its range."""
        place = np.searchsorted(self.edges, rows["p"], side="right")
        order = np.argsort(place, kind="stable")
        rows, ends = rows[order], np.searchsorted(place[order], np.arange(len(self.counts) + 1))
        for at in range(len(self.counts)):
            some = rows[ends[at] : ends[at + 1]]
            if len(some):
                self._write(at, some)

    def _write(self, at: int, rows: AnyArray) -> None:
        try:
            if at not in self._open and len(self._open) < self.handles:
                self._open[at] = self._path(at).open("ab")
            if at in self._open:
                self._open[at].write(np.ascontiguousarray(rows).data)
            else:
                with self._path(at).open("ab") as file:
                    file.write(np.ascontiguousarray(rows).data)
        except OSError as error:
            raise self._full(error) from error
        self.counts[at] += len(rows)

    def _full(self, error: OSError) -> FileError:
        return FileError(
            f"cannot spill to {self.folder}: {error.strerror or error}",
            hint=f"{self.record.itemsize} bytes a row and score go there: free some room, or name a folder with more",
        )

    def finish(self) -> None:
        """End the writing; cut again what is larger than may be read at once, unless it is of one score."""
        try:
            for file in self._open.values():
                file.flush()
        except OSError as error:
            raise self._full(error) from error
        self.close()
        for at in range(len(self.counts)):
            if self.counts[at] > self.most:
                self._cut(at)

    def close(self) -> None:
        """Close the files, also after an error: what was not written yet is then lost."""
        for file in self._open.values():
            with contextlib.suppress(OSError):
                file.close()
        self._open = {}

    def _cut(self, at: int) -> None:
        """Sort a range that is too large to be read at once, on disk: as a spill of its own, range by range."""
        size = max(self.most // 4, 1)
        sample = np.concatenate([rows["p"][:: 1 + self.counts[at] // MOST_SAMPLED] for rows in self._stored(at, size)])
        if all((rows["p"] == sample[0]).all() for rows in self._stored(at, size)):
            return  # of one score: any order will do
        inner = self.folder / f"inner-{at}"
        inner.mkdir()
        finer = Spill(inner, self.record, choose_edges(sample, self.counts[at], self.most), self.most, self.handles)
        try:
            for rows in self._stored(at, size):
                finer.add(rows)
            finer.finish()
            with self._path(at).open("wb") as out:
                for rows in finer.pieces():
                    out.write(np.ascontiguousarray(rows[np.argsort(rows["p"], kind="stable")]).data)
        except OSError as error:
            raise self._full(error) from error
        finally:
            finer.close()
        shutil.rmtree(inner, ignore_errors=True)  # for the room

    def _stored(self, at: int, size: int) -> Iterator[AnyArray]:
        """Read a range back, some rows at a time, as they were written."""
        with self._path(at).open("rb") as file:
            for start in range(0, self.counts[at], size):
                wanted = min(size, self.counts[at] - start)
                rows = np.fromfile(file, self.record, wanted)
                if len(rows) != wanted:
                    raise FileError(f"{self._path(at)} has lost rows", hint="is somebody else writing to this folder?")
                yield rows

    def pieces(self) -> Iterator[AnyArray]:
        """Give the rows back, range by range; the rows of a piece come in no order."""
        for at, count in enumerate(self.counts):
            if count:
                yield from self._stored(at, self.most)

    def parts(self, label: str, grid: Grid, *, real: bool, threads: int | None) -> Iterator[Part]:
        """Give the rows back in the order of the scores, part by part; steps go on from part to part."""
        base, last = 0, -math.inf
        names = [name for name in self.record.names or () if name.startswith("c")]
        for piece in self.pieces():
            weights = np.ascontiguousarray(piece["w"]) if "w" in (self.record.names or ()) else None
            found = sort_rows(piece["y"].astype(np.float64), np.ascontiguousarray(piece["p"]), weights, real=real)
            if not found.p[0] >= last:
                raise AssertionError(f"scores came back out of order: {found.p[0]} after {last}")
            base += found.p[0] != last
            step = ((found.step.astype(np.int64) + base) & LARGEST_STEP).astype(np.int32)
            base, last = base + int(found.step[-1]), float(found.p[-1])
            codes = np.empty((len(names), len(piece)), np.int32)
            for at, name in enumerate(names):
                codes[at] = piece[name][found.order]
            rows = Rows(found.order, step, found.e, found.p, found.w, real)
            yield Part(label, rows, grid, threads, codes)
