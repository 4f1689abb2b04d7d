"""Files larger than memory: rows in pieces, in the order of the files, with one schema for all of them."""

# ruff: noqa: S608  Columns are called c0, r0, ... in SQL, and what a user or a file says goes through quote.

from __future__ import annotations

import contextlib
import re
import tempfile
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trueup.data import checks
from trueup.data.checks import RowPosition, class_names, some_rows
from trueup.data.columns import FLAG_LEVELS, CodedColumn, encode_texts, from_array
from trueup.data.frame import read
from trueup.data.scan import BASE_MEMORY
from trueup.data.schema import Feature, Schema, sort_levels
from trueup.data.sql import (
    IS_NAN,
    SqlRows,
    as_names,
    choose,
    connect,
    describe,
    duckdb_errors,
    find_names,
    open_rows,
    quote,
    reader_call,
    refuse_gaps,
)
from trueup.errors import ArgumentError, ColumnError, DataError, FileError
from trueup.kernels.threads import cores

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from trueup._types import FloatArray, Int32Array
    from trueup.data.scan import Scan
    from trueup.data.table import Table

PARTITION_ROWS, MAX_CHUNK_ROWS = 50_000, 4_000_000  # rows
BYTES_A_LEVEL = 800  # of a text, its label and its numbers, and of what sorts them
MOST_OUTCOMES = 10_000  # of several classes


@dataclass(frozen=True, eq=False)
class ScanReader:
    """Rows that are open: their schema, and a way to go through them, as often as needed."""

    con: Any
    scan: Scan
    folder: Path
    files: tuple[tuple[str, int], ...]
    """The SQL of each file, its columns named c0, c1, ... and its row numbers ``place``; and how many rows it has."""
    plain: dict[str, str]
    texts: dict[str, str]
    words: dict[str, CodedColumn]
    """For each column of texts its levels, and the code of every word by its number; the last is for no word."""
    roles: dict[str, Any]
    schema: Schema
    left_out: dict[str, str] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    """The kinds that NumPy gives to the columns of values: a float may be NaN, which is missing as well."""

    @cached_property
    def rows(self) -> int:
        """Rows of the files, those that are set aside included."""
        return sum(rows for _, rows in self.files)

    @property
    def room(self) -> int:
        """Bytes that rows may take at once."""
        return max(self.scan.memory - BASE_MEMORY, 50 * 10**6) // 2

    @property
    def piece(self) -> int:
        """Rows of a piece."""
        width = 3 * 8 * (len(self.plain) + len(self.texts) + 4)
        rows = int(np.clip(self.room // (2 * width), PARTITION_ROWS, MAX_CHUNK_ROWS))
        return rows // PARTITION_ROWS * PARTITION_ROWS  # `engines.here` cuts them in parts of that many

    def spans(self) -> Iterator[tuple[int, str, int, int]]:
        """Cut the files into pieces: where each begins among all rows, its SQL, and its first and last row there."""
        before = 0
        for source, rows in self.files:
            for start in range(0, rows, self.piece):
                yield before + start, source, start, min(start + self.piece, rows)
            before += rows

    def tables(self) -> Iterator[Table]:
        """Read piece after piece, checked."""
        roles = {**self.roles, "features": [feature.name for feature in self.schema.features]}
        for first, source, start, stop in self.spans():
            data = self._fetch(source, start, stop)
            table = read(data, **roles, schema=self.schema, position=RowPosition(first))
            yield replace(table, schema=replace(self.schema, classes=table.schema.classes))

    def _fetch(self, source: str, start: int, stop: int) -> dict[str, Any]:
        """Read the rows of a range; texts as codes, by the words of all rows."""
        piece = piece_of(source, start, stop, self.plain, self.texts)
        with duckdb_errors(None, "read a piece of the rows"):
            found = read_range(self.con, piece, stop - start, len(self.plain), len(self.texts), -1)
        out: dict[str, Any] = {name: found[f"r{at}"] for at, name in enumerate(self.plain)}
        for at, (name, words) in enumerate(self.words.items()):
            out[name] = CodedColumn(words.codes[found[f"t{at}"]], words.levels)
        return out

    @cached_property
    def kept(self) -> str:
        """Say in SQL which rows are not set aside."""
        weight, present = self.roles["weight"], f"NOT ({self._absent(self.roles['outcome'])})"
        if self.kinds.get(weight, "M") not in "iufb":  # of none, or one that is refused when it is read
            return present
        return f"{present} AND CAST({self.plain[weight]} AS DOUBLE) > 0"

    def _absent(self, name: str) -> str:
        sql = (self.plain | self.texts)[name]
        return f"{sql} IS NULL OR {IS_NAN.format(sql)}" if self.kinds.get(name) == "f" else f"{sql} IS NULL"

    def values(self, name: str) -> tuple[FloatArray, bool]:
        """Read one column of numbers or dates, of rows not set aside; say whether it is whole.

        Of very many rows evenly spread ones are read, as many as memory holds.
        """
        every = -(-self.rows // max(self.room // 40, PARTITION_ROWS))
        parts, before = [], 0
        for source, rows in self.files:
            # By a hash: rows that come in turns, as one an hour, would else all be of one kind.
            some = f" AND hash(place + {before}) % {every} = 0" if every > 1 else ""
            parts.append(self._numbers(self.plain[name], source, f"{self.kept}{some}"))
            before += rows
        return np.concatenate(parts), every == 1

    def distinct(self, name: str, most: int, *, days: bool = False) -> FloatArray:
        """Give the distinct values of a column of numbers or dates, of rows not set aside; NaN if one is missing.

        Of more than ``most`` some are given, more than that. ``days`` rounds dates down to whole days.
        """
        sql = f"date_trunc('day', {self.plain[name]})" if days else self.plain[name]
        parts = []
        for source, _ in self.files:
            inner = f"(SELECT DISTINCT {sql} AS c0 FROM {source} WHERE {self.kept} LIMIT {most + 3})"
            parts.append(self._numbers("c0", inner, "true"))
        return np.unique(np.concatenate(parts))

    def _numbers(self, sql: str, source: str, where: str) -> FloatArray:
        with duckdb_errors(None, "read a column"):
            found = self.con.execute(f"SELECT {sql} AS r0 FROM {source} WHERE {where}").fetchnumpy()["r0"]
        values: FloatArray = from_array(found, "values").codes_or_values
        return values

    @cached_property
    def whole_outcomes(self) -> bool:
        """Whether every outcome is 0 or 1, or a class."""
        if self.schema.task == "multiclass" or self.roles["outcome"] not in self.plain:
            return self.schema.task == "multiclass"
        sql = f"CAST({self.plain[self.roles['outcome']]} AS DOUBLE)"
        return not self._some(f"{sql} NOT IN (0, 1)")

    def lacks(self, name: str) -> bool:
        """Say whether some row that is not set aside has no value in a column."""
        return self._some(self._absent(name))

    def _some(self, condition: str) -> bool:
        """Say whether something is so of some row that is not set aside."""
        with duckdb_errors(None, "read a column"):
            return any(
                self.con.execute(f"SELECT 1 FROM {source} WHERE {self.kept} AND ({condition}) LIMIT 1").fetchall()
                for source, _ in self.files
            )


@contextlib.contextmanager
def open_scan(
    given: Scan,
    *,
    outcome: str,
    prediction: str | Sequence[str],
    weight: str | None = None,
    features: Sequence[str] | str | None = None,
    task: str = "auto",
    categorical: Sequence[str] | str = (),
    unlabelled: str = "error",
    classes: Sequence[Any] | None = None,
) -> Iterator[ScanReader]:
    """Open the rows of a scan: settle their columns, and number the texts of all rows; what is written goes at the end."""
    scores, taken = _roles(outcome, prediction, weight)
    named = [name for name in as_names(categorical) if name not in taken]
    roles = {
        "outcome": outcome, "prediction": prediction if isinstance(prediction, str) else list(scores), "weight": weight,
        "task": task, "categorical": named, "unlabelled": unlabelled, "classes": classes,
    }  # fmt: skip
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(temporary_directory(given.spill)))
        con = stack.enter_context(connect(given.threads, memory=max(given.memory // 3, 120 * 10**6), spill=folder))
        rows = open_rows(con, given.paths, given.sql, named, role="categorical")
        for name, role in taken.items():
            find_names(rows.names, [name], role)
        chosen = None if features is None else find_names(rows.names, as_names(features), "feature")
        plain, texts = choose(rows, None if chosen is None else [*dict.fromkeys((*taken, *chosen))], named)
        order = [name for name in rows.names if name in plain or name in texts]
        with duckdb_errors(rows.files):
            refuse_gaps(con, rows.files, [*plain, *texts])
            files, plain, texts = _settle(con, rows, plain, texts, folder)
        some_rows(sum(count for _, count in files))
        opened = ScanReader(con, given, folder, files, plain, texts, {}, roles, Schema("binary", None, (), None, ()))
        yield _described(opened, [name for name in order if name not in taken] if chosen is None else chosen)


def _roles(outcome: str, prediction: str | Sequence[str], weight: str | None) -> tuple[tuple[str, ...], dict[str, str]]:
    """Give the names of the predictions, and the role of every column that has one; each is named, and has one."""
    given = {"outcome": [outcome], "prediction": prediction, "weight": [] if weight is None else [weight]}
    taken: dict[str, str] = {}
    for role, names in given.items():
        for name in as_names(names) if isinstance(names, (str, list, tuple)) else [names]:
            if not isinstance(name, str):
                raise ArgumentError(
                    f"the {role} must be the name of a column of the files; got {type(name).__name__}",
                    hint="values can be given where rows are in memory",
                )
            if name in taken:
                told = f"named twice as {role}" if taken[name] == role else f"named both as {taken[name]} and as {role}"
                raise ColumnError(f"column {name!r} is {told}", hint="a column has one role")
            taken[name] = role
    return tuple(name for name, role in taken.items() if role == "prediction"), taken


@contextlib.contextmanager
def temporary_directory(spill: Path | None) -> Iterator[str]:
    """Make a folder of our own for what does not fit."""
    try:
        made = tempfile.TemporaryDirectory(prefix="trueup-", dir=spill, ignore_cleanup_errors=True)
    except OSError as error:
        raise FileError(f"cannot write to {spill}: {error.strerror}", hint="name another folder to spill to") from error
    with made as name:
        yield name


def _settle(
    con: Any, rows: SqlRows, plain: dict[str, str], texts: dict[str, str], folder: Path
) -> tuple[tuple[tuple[str, int], ...], dict[str, str], dict[str, str]]:
    """Write the rows of each file as SQL that can be read by ranges; what is no Parquet is copied to such a file."""
    if has_ranges(rows):
        assert rows.files is not None
        return tuple(parquet_range(con, rows, path, {*plain, *texts}) for path in rows.files.paths), plain, texts
    path = folder / "rows.parquet"
    every = [*plain.items(), *texts.items()]
    listed = ", ".join(f"{sql} AS c{at}" for at, (_, sql) in enumerate(every))
    con.execute(f"COPY (SELECT {listed} FROM {rows.table}) TO {quote(str(path))} (FORMAT parquet, COMPRESSION snappy)")
    at = {name: f"c{place}" for place, (name, _) in enumerate(every)}
    source = f"(SELECT *, file_row_number AS place FROM read_parquet({quote(str(path))}, file_row_number = true))"
    count = int(con.execute(f"SELECT count(*) FROM read_parquet({quote(str(path))})").fetchall()[0][0])
    return ((source, count),), {name: at[name] for name in plain}, {name: at[name] for name in texts}


def _described(opened: ScanReader, chosen: Sequence[str]) -> ScanReader:
    """Number the texts of all rows, and say what each column is: by its type, which is that of all rows."""
    source, rows = opened.files[0]
    first = replace(opened, texts={})._fetch(source, 0, min(rows, 1000))
    opened = replace(opened, kinds={name: np.ma.getdata(column).dtype.kind for name, column in first.items()})
    words, left_out = _number(opened, chosen)
    opened = replace(opened, words=words, texts={name: opened.texts[name] for name in words})
    features = [_feature(name, first.get(name, words.get(name))) for name in chosen if name not in left_out]
    roles = dict(opened.roles)
    scores = as_names(roles["prediction"])
    kind: Any = "multiclass" if len(scores) > 1 else "regression" if roles["task"] == "regression" else "binary"
    if kind == "multiclass":
        roles["classes"] = class_names(_outcomes(opened), scores, roles["classes"])
    schema = Schema(kind, roles["outcome"], scores, roles["weight"], tuple(features))
    return replace(opened, roles=roles, schema=schema, left_out=left_out)


def _outcomes(opened: ScanReader) -> tuple[str, ...]:
    """List the outcomes of all rows, as categories; of very many some."""
    name = opened.roles["outcome"]
    if name in opened.words:
        return opened.words[name].levels
    found: set[str] = set()
    for source, _ in opened.files:
        with duckdb_errors(None, "read a column"):
            query = f"SELECT DISTINCT {opened.plain[name]} AS r0 FROM {source} LIMIT {MOST_OUTCOMES}"
            found.update(from_array(opened.con.execute(query).fetchnumpy()["r0"], name).categories().levels)
    return sort_levels(found)


def _feature(name: str, column: Any) -> Feature:
    if isinstance(column, CodedColumn):
        return Feature(name, "categorical", column.levels)
    raw = from_array(column, name)
    if raw.kind == "flag":
        return Feature(name, "categorical", FLAG_LEVELS)
    return Feature(name, "date" if raw.kind == "date" else "numeric")


def _number(opened: ScanReader, chosen: Sequence[str]) -> tuple[dict[str, CodedColumn], dict[str, str]]:
    """Number the texts of every column in all files; leave out identifiers, whose texts may be more than memory holds."""
    words: dict[str, CodedColumn] = {}
    left_out = {}
    for name, sql in opened.texts.items():
        table = f"words{len(words)}"
        is_outcome = name == opened.roles["outcome"]  # its classes are those of all rows
        where = f"{sql} IS NOT NULL" + ("" if is_outcome else f" AND {opened.kept}")
        union = " UNION ALL ".join(f"SELECT {sql} AS word FROM {source} WHERE {where}" for source, _ in opened.files)
        with duckdb_errors(None, "number the texts of a column"):
            query = f"SELECT word, count(*) AS times FROM ({union}) GROUP BY word"
            opened.con.execute(f"CREATE OR REPLACE TEMP TABLE counted AS {query}")
            counted = opened.con.execute("SELECT count(*), coalesce(sum(times), 0) FROM counted").fetchall()[0]
        levels, known = map(int, counted)
        if name in chosen and (reason := checks.identifier_reason(name, levels, known)) is not None:
            left_out[name] = reason
            continue
        if levels * BYTES_A_LEVEL > opened.scan.memory:
            raise DataError(
                f"column {name!r} has {levels:,} levels, more than {opened.scan.memory / 1e9:.3g} GB hold",
                hint="leave it out, or allow more memory",
            )
        words[name] = _words(opened, table)
    opened.con.execute("DROP TABLE IF EXISTS counted")
    return words, left_out


def _words(opened: ScanReader, table: str) -> CodedColumn:
    """Number the words that were counted; the code of each is at its number, and the last is for no word."""
    with duckdb_errors(None, "number the texts of a column"):
        code = "CAST(row_number() OVER (ORDER BY word) - 1 AS INTEGER)"
        opened.con.execute(f"CREATE TEMP TABLE {table} AS SELECT word, {code} AS code FROM counted")
        words = opened.con.execute(f"SELECT word FROM {table} ORDER BY code").fetchnumpy()["word"].tolist()
    numbers = np.append(np.arange(len(words), dtype=np.int32), np.int32(-1))
    return CodedColumn(numbers, tuple(words)) if sort_levels(words) == tuple(words) else encode_texts(numbers, words)


ROW_NUMBER = "file_row_number"


def has_ranges(rows: SqlRows) -> bool:
    """Say whether rows can be read by ranges as they are: those of Parquet, unless a column has the name of the numbers."""
    return rows.files is not None and rows.files.format == "parquet" and ROW_NUMBER not in map(str.lower, rows.names)


def parquet_range(con: Any, rows: SqlRows, path: Path, wanted: Collection[str]) -> tuple[str, int]:
    """Write the SQL of one file, its columns named and typed as those of all files together; and count its rows.

    Columns are called c0, c1, ... by their place among all, and the number of a row ``place``.
    """
    assert rows.files is not None
    one = rows.files._replace(paths=[path])
    names, types = describe(con, f"FROM {reader_call(one)}")
    own = {
        name.encode().lower(): (quote(name, '"'), kind) for name, kind in zip(names, types, strict=True)
    }  # as DuckDB folds
    read = [f"{ROW_NUMBER} AS place"]
    for at, (name, kind) in enumerate(zip(rows.names, rows.types, strict=True)):
        if name in wanted:
            sql, found = own[name.encode().lower()]
            read.append(f"{sql} AS c{at}" if found == kind else f"CAST({sql} AS {kind}) AS c{at}")
    (count,) = con.execute(f"SELECT count(*) FROM {reader_call(one)}").fetchall()[0]
    return f"(SELECT {', '.join(read)} FROM {reader_call(one, file_row_number='true')})", int(count)


def piece_of(source: str, start: int, stop: int, plain: dict[str, str], texts: dict[str, str]) -> str:
    """Write the SQL of a range of rows: its values as r0, r1, ..., its texts as t0, t1, ..., and their ``place``."""
    values = [f"{sql} AS r{at}" for at, sql in enumerate(plain.values())]
    words = [f"{sql} AS t{at}" for at, sql in enumerate(texts.values())]
    return f"(SELECT {', '.join([*values, *words, 'place'])} FROM {source} WHERE place >= {start} AND place < {stop})"


def read_range(con: Any, piece: str, rows: int, values: int, texts: int, unknown: int) -> dict[str, Any]:
    """Read what `piece_of` wrote, in the order of the rows; of texts the codes that the tables words0, ... have for them.

    A text that is missing has the code -1, one that no table knows the code ``unknown``.
    """
    every = range(texts)
    codes = [f"CASE WHEN t{at} IS NULL THEN -1 ELSE coalesce(words{at}.code, {unknown}) END AS t{at}" for at in every]
    joins = " ".join(f"LEFT JOIN words{at} ON words{at}.word = piece.t{at}" for at in every)
    shown = ", ".join([*(f"r{at}" for at in range(values)), *codes, "place"])
    found: dict[str, Any] = con.execute(f"SELECT {shown} FROM {piece} AS piece {joins}").fetchnumpy()
    place = found.pop("place")
    if len(place) != rows:
        raise FileError(f"{len(place):,} of {rows:,} rows came back", hint="were the files changed meanwhile?")
    order = slice(None) if (place[1:] > place[:-1]).all() else np.argsort(place)  # a join may mix the rows
    return {name: column[order] for name, column in found.items()}


LEAST_ROOM = 50 * 10**6  # bytes without which DuckDB does not work
A_THREAD = 50 * 10**6  # bytes that a thread of DuckDB takes to read and write
MIN_CHUNK_ROWS = 20_000  # rows
COPIES = 4  # of every value: in the result of the query, as it is given, as it is checked, and as it is scored
WORDS = 10_000  # distinct unknown texts of a portion that are told
UNKNOWN = -2  # the code of a text that is not among the known ones, until it is counted
ANY = ("",)  # the vocabulary of texts of which none is known
UNWRITTEN = re.compile(r"""Could not write file \\?"([^"\\]+)\\?": ([^"]+)""")  # within JSON, too
SPILLED = "duckdb_temp"  # in the names of its files


@dataclass(frozen=True, eq=False)
class ChunkSettings:
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
        return None if self.memory is None else max((self.memory - BASE_MEMORY) // 2, LEAST_ROOM // 2)

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

    def read(self, con: Any, rows: SqlRows, plain: dict[str, str], texts: dict[str, str]) -> Iterator[dict[str, Any]]:
        """Read portion after portion, at least one; columns as `trueup.data.sql.fetch` gives them."""
        with duckdb_errors(rows.files):
            view = _View(con, *_in_ranges(con, rows, plain, texts), self.known)
            view.number_words()
        most = self._rows_at_once(len(plain) + len(texts))
        total = sum(count for _, count in view.sources)
        done = 0
        for source, start, stop in _spans(view.sources, most):
            with duckdb_errors(rows.files):
                found = view.fetch(source, start, stop, self.tell)
            yield found
            done += stop - start
            if self.progress is not None:
                self.progress(done, total)

    def _rows_at_once(self, columns: int) -> int:
        assert self.most is not None
        if self._room is None:
            return self.most
        return min(self.most, max(self._room // (8 * COPIES * (columns + 2)), MIN_CHUNK_ROWS))


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

    def _coded(self, at: int, name: str, codes: Int32Array, piece: str, tell: Any) -> CodedColumn:
        """Count texts that are not known, and take them for missing."""
        levels = self.known.get(name)
        if levels is None:  # no column of texts to the model, which will refuse it unless it is empty
            return CodedColumn(np.where(codes == UNKNOWN, np.int32(0), codes), ANY)
        unknown = codes == UNKNOWN
        if unknown.any():
            if tell is not None:
                new = f"SELECT DISTINCT t{at} FROM {piece} AS piece ANTI JOIN words{at} ON words{at}.word = piece.t{at}"
                some = self.con.execute(f"{new} WHERE t{at} IS NOT NULL LIMIT {WORDS}").fetchall()
                tell(name, int(unknown.sum()), [word for (word,) in some])
            codes = np.where(unknown, np.int32(-1), codes)
        return CodedColumn(codes, tuple(levels))


def _is_unicode(word: str) -> bool:
    try:
        word.encode()
    except UnicodeError:
        return False
    return True


def _in_ranges(
    con: Any, rows: SqlRows, plain: dict[str, str], texts: dict[str, str]
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
