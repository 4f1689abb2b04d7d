"""Rows to be scored, a portion at a time: in the order of the files, texts in the words that a model knows."""

# ruff: noqa: S608  Columns are called c0, r0, ... in SQL, and what a user or a file says goes through quote.

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trueup.data.columns import Coded
from trueup.data.files import Rows, connect, telling
from trueup.data.ranges import has_ranges, parquet_range, piece_of, read_range
from trueup.data.scan import OURS
from trueup.errors import FileError
from trueup.kernels.threads import cores

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from trueup._types import Int32Array

LEAST_ROOM = 50 * 10**6  # bytes without which DuckDB does not work
A_THREAD = 50 * 10**6  # bytes that a thread of DuckDB takes to read and write
FEWEST = 20_000  # rows
COPIES = 4  # of every value: in the result of the query, as it is given, as it is checked, and as it is scored
WORDS = 10_000  # distinct unknown texts of a portion that are told
UNKNOWN = -2  # the code of a text that is not among the known ones, until it is counted
ANY = ("",)  # the vocabulary of texts of which none is known
UNWRITTEN = re.compile(r"""Could not write file \\?"([^"\\]+)\\?": ([^"]+)""")  # within JSON, too
SPILLED = "duckdb_temp"  # in the names of its files


@dataclass(frozen=True, eq=False)
class Portions:
    """How many rows are read at once, and where what does not fit goes.

    Attributes
    ----------
    most : int, optional
        Rows of a portion; all by default.
    memory : int, optional
        Bytes that may be held at once. The more columns are read, the fewer rows a portion then has.
    spill : Path, optional
        A folder for what does not fit; by default in the system's temporary folder.
    known : mapping of str to texts
        The levels of columns of texts, in the order of their codes; any other text is missing.
    tell : callable, optional
        Told of such texts: the column, how many rows have one, and which they are (the first thousands).
    progress : callable, optional
        Told how many rows are done, and how many there are.
    """

    most: int | None = None
    memory: int | None = None
    spill: Path | None = None
    known: Mapping[str, Sequence[str]] = field(default_factory=dict)
    tell: Callable[[str, int, list[str]], None] | None = None
    progress: Callable[[int, int], None] | None = None

    @property
    def _room(self) -> int | None:
        """Give the half of what rows may take: one is DuckDB's, the other is for a portion."""
        return None if self.memory is None else max((self.memory - OURS) // 2, LEAST_ROOM // 2)

    def connect(self, threads: int | None) -> contextlib.AbstractContextManager[Any]:
        """Open a connection that keeps within the memory."""
        if self._room is None:
            return connect(threads, spill=self.spill)
        room = max(self._room, LEAST_ROOM)
        return connect(min(threads or cores(), max(room // A_THREAD, 1)), memory=room, spill=self.spill)

    @contextlib.contextmanager
    def telling_of_room(self) -> Iterator[None]:
        """Say plainly what is full where memory, the folder for what does not fit, or the disk is; and what to do."""
        try:
            yield
        except FileError as error:
            cause = error.__cause__
            if cause is None or (found := self._full(cause)) is None:
                raise
            raise found from cause

    def _full(self, cause: BaseException) -> FileError | None:
        """Tell by what DuckDB says which of them it is."""
        told, unwritten = str(cause), UNWRITTEN.search(str(cause))
        short = type(cause).__name__ == "OutOfMemoryException"
        if (short and "offload" in told) or (unwritten and SPILLED in unwritten[1]):
            where = "the system's temporary folder" if self.spill is None else str(self.spill)
            what = f"what does not fit in memory finds no room in {where}{f' ({unwritten[2]})' if unwritten else ''}"
            hint = "name a folder on a disk with room with --spill, or allow more memory with --memory"
            return FileError(what, hint=hint if self.most else "make room there")
        if short:
            within = "in memory" if self.memory is None else f"in {self.memory / 1e9:.3g} GB"
            hint = "allow more with --memory" if self.memory is not None else "end other work, or take fewer rows"
            return FileError(f"the rows cannot be read and written {within}", hint=hint)
        if unwritten:
            return FileError(f"cannot write the result: {unwritten[2]}", hint="make room, or write to another place")
        return None

    def read(self, con: Any, rows: Rows, plain: dict[str, str], texts: dict[str, str]) -> Iterator[dict[str, Any]]:
        """Read portion after portion, at least one; columns as `trueup.data.files.fetch` gives them."""
        with telling(rows.files):
            view = _View(con, *_in_ranges(con, rows, plain, texts), self.known)
            view.number_words()
        most = self._rows_at_once(len(plain) + len(texts))
        total = sum(count for _, count in view.sources)
        done = 0
        for source, start, stop in _spans(view.sources, most):
            with telling(rows.files):
                found = view.fetch(source, start, stop, self.tell)
            yield found
            done += stop - start
            if self.progress is not None:
                self.progress(done, total)

    def _rows_at_once(self, columns: int) -> int:
        assert self.most is not None
        if self._room is None:
            return self.most
        return min(self.most, max(self._room // (8 * COPIES * (columns + 2)), FEWEST))


def _spans(sources: Sequence[tuple[str, int]], most: int) -> Iterator[tuple[str, int, int]]:
    """Cut every file into ranges of rows; where there are no rows at all, give an empty range."""
    found = False
    for source, count in sources:
        for start in range(0, count, most):
            found = True
            yield source, start, min(start + most, count)
    if not found:
        yield sources[0][0], 0, 0


class _View(NamedTuple):
    """Rows that can be read by ranges: the SQL of each file with its number of rows, and the SQL of each column."""

    con: Any
    sources: Sequence[tuple[str, int]]
    plain: dict[str, str]
    texts: dict[str, str]
    known: Mapping[str, Sequence[str]]

    def number_words(self) -> None:
        """Make a table of the known texts of each column."""
        for at, name in enumerate(self.texts):
            self.con.execute(f"CREATE OR REPLACE TEMP TABLE words{at} (word VARCHAR, code INTEGER)")
            words = [(word, code) for code, word in enumerate(self.known.get(name, ())) if _is_unicode(word)]
            if words:
                given = {"word": np.array([word for word, _ in words], object), "code": np.array([c for _, c in words])}
                self.con.register("trueup_words", given)
                self.con.execute(f"INSERT INTO words{at} SELECT word, code FROM trueup_words")
                self.con.unregister("trueup_words")

    def fetch(self, source: str, start: int, stop: int, tell: Any) -> dict[str, Any]:
        """Read the rows of a range."""
        piece = piece_of(source, start, stop, self.plain, self.texts)
        found = read_range(self.con, piece, stop - start, len(self.plain), len(self.texts), UNKNOWN)
        out: dict[str, Any] = {name: found[f"r{at}"] for at, name in enumerate(self.plain)}
        for at, name in enumerate(self.texts):
            out[name] = self._coded(at, name, found[f"t{at}"], piece, tell)
        return out

    def _coded(self, at: int, name: str, codes: Int32Array, piece: str, tell: Any) -> Coded:
        """Count texts that are not known, and take them for missing."""
        levels = self.known.get(name)
        if levels is None:  # no column of texts to the model, which will refuse it unless it is empty
            return Coded(np.where(codes == UNKNOWN, np.int32(0), codes), ANY)
        unknown = codes == UNKNOWN
        if unknown.any():
            if tell is not None:
                new = f"SELECT DISTINCT t{at} FROM {piece} AS piece ANTI JOIN words{at} ON words{at}.word = piece.t{at}"
                some = self.con.execute(f"{new} WHERE t{at} IS NOT NULL LIMIT {WORDS}").fetchall()
                tell(name, int(unknown.sum()), [word for (word,) in some])
            codes = np.where(unknown, np.int32(-1), codes)
        return Coded(codes, tuple(levels))


def _is_unicode(word: str) -> bool:
    try:
        word.encode()
    except UnicodeError:
        return False
    return True


def _in_ranges(
    con: Any, rows: Rows, plain: dict[str, str], texts: dict[str, str]
) -> tuple[list[tuple[str, int]], dict[str, str], dict[str, str]]:
    """Write rows so that a range of them is quick to read: Parquet as it is, of others a table of what is needed."""
    if has_ranges(rows):
        assert rows.files is not None
        return [parquet_range(con, rows, path, {*plain, *texts}) for path in rows.files.paths], plain, texts
    listed = ", ".join(f"{sql} AS r{at}" for at, sql in enumerate([*plain.values(), *texts.values()]))
    con.execute(f"CREATE TEMP TABLE trueup_needed AS SELECT {listed} FROM {rows.table}")
    (count,) = con.execute("SELECT count(*) FROM trueup_needed").fetchall()[0]
    place = {name: f"r{at}" for at, name in enumerate([*plain, *texts])}
    source = "(SELECT *, rowid AS place FROM trueup_needed)"
    return [(source, count)], {name: place[name] for name in plain}, {name: place[name] for name in texts}
