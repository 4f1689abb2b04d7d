"""Files larger than memory, read in chunks of consecutive rows: for audits and fits (`ScanReader`) and for scoring."""

# ruff: noqa: S608  Columns are called c0, r0, ... in SQL, and texts of a user or a file go through quote.

from __future__ import annotations

import contextlib
import re
import tempfile
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.data.columns import FEATURE_KINDS, FLAG_LEVELS, CodedColumn, as_tuple, from_array
from trueup.data.frame import RowPosition, check_has_rows, class_names, identifier_reason, read_labelled
from trueup.data.profile import assign_roles
from trueup.data.scan import fold_case, row_memory
from trueup.data.sql import (
    IS_NAN,
    SqlRows,
    check_columns_everywhere,
    connect,
    create_vocabulary,
    describe,
    duckdb_errors,
    fetch,
    fetch_encoded,
    list_columns,
    open_rows,
    quote,
    reader_call,
    select_columns,
    store_vocabulary,
)
from trueup.data.table import Feature, Schema, sort_levels
from trueup.errors import DataError, FileError
from trueup.kernels.threads import cores

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from trueup._types import FloatArray
    from trueup.data.columns import RawColumn
    from trueup.data.profile import Roles
    from trueup.data.scan import Scan
    from trueup.data.table import Table

ROW_NUMBER = "file_row_number"  # DuckDB's name for the number of a row in a Parquet file
PARTITION_ROWS, MAX_CHUNK_ROWS = 50_000, 4_000_000  # a chunk of a scan is a number of partitions of so many rows
MIN_CHUNK_ROWS = 20_000  # of rows to be scored
BYTES_PER_LEVEL = 800  # of a text, its label and its statistics, and of sorting them
MAX_OUTCOMES = 10_000  # of several classes
MIN_DUCKDB_MEMORY = 50 * 10**6  # bytes; DuckDB does not work with less
BYTES_PER_THREAD = 50 * 10**6  # that DuckDB needs to read and write
COPIES = 4  # of every value: in the result of the query, returned from it, validated, and scored
MAX_UNKNOWN_TEXTS = 10_000  # distinct unknown texts of a chunk that are reported
UNKNOWN = -2  # the code of a text that is not in the vocabulary, until it is counted
UNWRITTEN = re.compile(r"""Could not write file \\?"([^"\\]+)\\?": ([^"]+)""")  # in DuckDB's messages, also within JSON
DUCKDB_SPILL = "duckdb_temp"  # in the names of the files that DuckDB spills to


@dataclass(frozen=True, eq=False)
class ChunkReader:
    """Rows that are read by ranges, with texts as codes."""

    con: Any
    sources: tuple[tuple[str, int], ...]  # SQL of each file, with the number of a row as ``place``, and number of rows
    values: dict[str, str]  # the SQL of each column
    texts: dict[str, str]
    vocabularies: Mapping[str, Sequence[str]] = field(default_factory=dict)  # of texts, in the order of their codes

    @classmethod
    def open(
        cls, con: Any, rows: SqlRows, values: dict[str, str], texts: dict[str, str], directory: Path | None = None
    ) -> ChunkReader:
        """Make rows readable by ranges: Parquet as it is, others as a copy, in the directory or in a table of DuckDB."""
        if rows.is_parquet and ROW_NUMBER not in map(str.lower, rows.names):
            assert rows.files is not None
            columns = {*values, *texts}
            return cls(con, tuple(_parquet_source(con, rows, path, columns) for path in rows.files.paths), values, texts)
        copied = f"SELECT {list_columns([*values.values(), *texts.values()], 'c')} FROM {rows.table}"
        if directory is None:
            con.execute(f"CREATE TEMP TABLE trueup_needed AS {copied}")
            source = "(SELECT *, rowid AS place FROM trueup_needed)"
        else:
            path = quote(str(directory / "rows.parquet"))
            con.execute(f"COPY ({copied}) TO {path} (FORMAT parquet, COMPRESSION snappy)")
            source = f"(SELECT *, {ROW_NUMBER} AS place FROM read_parquet({path}, {ROW_NUMBER} = true))"
        (count,) = con.execute(f"SELECT count(*) FROM {source}").fetchall()[0]
        name = {column: f"c{index}" for index, column in enumerate([*values, *texts])}
        return cls(
            con,
            ((source, int(count)),),
            {column: name[column] for column in values},
            {column: name[column] for column in texts},
        )

    @property
    def rows(self) -> int:
        """The number of rows."""
        return sum(count for _, count in self.sources)

    def spans(self, size: int) -> Iterator[tuple[int, str, int, int]]:
        """Return ranges of at most ``size`` rows: first row among all rows, SQL of the file, start and stop there."""
        before = 0
        for source, count in self.sources:
            for start in range(0, count, size):
                yield before + start, source, start, min(start + size, count)
            before += count

    def fetch(
        self, source: str, start: int, stop: int, on_unknown: Callable[[str, int, list[str]], None] | None = None
    ) -> dict[str, Any]:
        """Read a range of rows; texts that are not in the vocabulary are missing, and reported to ``on_unknown``."""
        listed = [list_columns(self.values.values(), "r"), list_columns(self.texts.values(), "t"), "place"]
        query = f"SELECT {', '.join(filter(None, listed))} FROM {source} WHERE place >= {start} AND place < {stop}"
        unknown = -1 if on_unknown is None else UNKNOWN
        arrays = fetch_encoded(
            self.con, f"({query})", len(self.values), len(self.texts), unknown=unknown, rows=stop - start
        )
        columns: dict[str, Any] = {name: arrays[f"r{index}"] for index, name in enumerate(self.values)}
        for index, name in enumerate(self.texts):
            codes, levels = arrays[f"t{index}"], self.vocabularies.get(name)
            if on_unknown is not None and (is_unknown := codes == UNKNOWN).any():
                if levels is None:  # to the model this is no column of texts: it raises unless all values are missing
                    codes, levels = np.where(is_unknown, np.int32(0), codes), ("",)
                else:
                    new = f"SELECT DISTINCT t{index} FROM ({query}) AS source ANTI JOIN words{index} ON word = t{index}"
                    some = self.con.execute(f"{new} WHERE t{index} IS NOT NULL LIMIT {MAX_UNKNOWN_TEXTS}").fetchall()
                    on_unknown(name, int(is_unknown.sum()), [text for (text,) in some])
                    codes = np.where(is_unknown, np.int32(-1), codes)
            columns[name] = CodedColumn(codes, tuple(levels or ()))
        return columns

    def query(self, selection: str) -> Iterator[RawColumn]:
        """Select the column r0 of each file, the ``{source}``, after ``{before}`` rows of other files."""
        before = 0
        for source, count in self.sources:
            with duckdb_errors(None, "read a column"):
                query = f"SELECT {selection.format(source=source, before=before)}"
                column = self.con.execute(query).fetchnumpy()["r0"]
            yield from_array(column, "values")
            before += count


def _parquet_source(con: Any, rows: SqlRows, path: Path, columns: Collection[str]) -> tuple[str, int]:
    """Return the SQL of one Parquet file, with names and types of the columns of all files, and its number of rows."""
    assert rows.files is not None
    file = rows.files._replace(paths=[path])
    names, types = describe(con, f"FROM {reader_call(file)}")
    own = {fold_case(name): (quote(name, '"'), declared) for name, declared in zip(names, types, strict=True)}
    listed = [f"{ROW_NUMBER} AS place"]
    for index, (name, declared) in enumerate(zip(rows.names, rows.types, strict=True)):
        if name in columns:
            sql, own_type = own[fold_case(name)]
            listed.append(f"{sql} AS c{index}" if own_type == declared else f"CAST({sql} AS {declared}) AS c{index}")
    (count,) = con.execute(f"SELECT count(*) FROM {reader_call(file)}").fetchall()[0]
    return f"(SELECT {', '.join(listed)} FROM {reader_call(file, file_row_number='true')})", int(count)


@dataclass(frozen=True, eq=False)
class ChunkSettings:
    """How files to be scored are read: in chunks of at most ``rows``, or fewer within a memory budget; all by default."""

    rows: int | None = None
    memory: int | None = None
    spill: Path | None = None
    vocabularies: Mapping[str, Sequence[str]] = field(default_factory=dict)  # of texts, in the order of their codes
    # Called with a column, the number of rows with unknown texts, which are read as missing, and some of these texts.
    on_unknown: Callable[[str, int, list[str]], None] = lambda _name, _rows, _texts: None
    progress: Callable[[int, int], None] | None = None  # called with the rows done and all rows after every chunk

    def connect(self, threads: int | None) -> contextlib.AbstractContextManager[Any]:
        """Open a connection within the memory budget, half of which is DuckDB's and half for a chunk."""
        if self.memory is None:
            return connect(threads, spill=self.spill)
        memory = max(row_memory(self.memory), MIN_DUCKDB_MEMORY)
        return connect(min(threads or cores(), max(memory // BYTES_PER_THREAD, 1)), memory=memory, spill=self.spill)

    @contextlib.contextmanager
    def space_errors(self) -> Iterator[None]:
        """Raise errors that name what is full: memory, the spill directory, or the disk of the result."""
        try:
            yield
        except FileError as error:
            cause = error.__cause__
            unwritten, out_of_memory = UNWRITTEN.search(str(cause)), type(cause).__name__ == "OutOfMemoryException"
            settings: dict[str, Any] | None = None
            if (out_of_memory and "offload" in str(cause)) or (unwritten and DUCKDB_SPILL in unwritten[1]):
                where = "the system's temporary directory" if self.spill is None else str(self.spill)
                reason = f" ({unwritten[2]})" if unwritten else ""
                message, hint = f"rows that do not fit in memory do not fit in {where}{reason}", "free some space there"
                if self.rows:
                    hint = "name a directory on a disk with more space, as {spill}, or allow more memory, as {memory}"
                    settings = {"spill": ..., "memory": ...}
            elif out_of_memory and self.memory is not None:
                message = f"the rows cannot be read and written in {self.memory / 1e9:.3g} GB"
                hint, settings = "allow more, as {memory}", {"memory": ...}
            elif out_of_memory:
                message = "the rows cannot be read and written in memory"
                hint = "stop other programs, or take fewer rows"
            elif unwritten:
                message, hint = f"cannot write the result: {unwritten[2]}", "free some space, or write to another place"
            else:
                raise
            raise FileError(message, hint=hint, settings=settings) from cause

    def read(self, con: Any, rows: SqlRows, values: dict[str, str], texts: dict[str, str]) -> Iterator[dict[str, Any]]:
        """Read chunk after chunk, at least one; columns are as from `trueup.data.sql.fetch`."""
        if self.rows is None:
            with duckdb_errors(rows.files):
                columns = fetch(con, rows, values, texts)
            yield columns
            return
        with duckdb_errors(rows.files):
            reader = replace(ChunkReader.open(con, rows, values, texts), vocabularies=self.vocabularies)
            for index, name in enumerate(texts):  # a column without levels has only unknown texts
                store_vocabulary(con, index, self.vocabularies.get(name, ()))
        spans = (
            reader.spans(self.chunk_rows(len(values) + len(texts))) if reader.rows else [(0, reader.sources[0][0], 0, 0)]
        )
        for first, source, start, stop in spans:
            with duckdb_errors(rows.files):
                columns = reader.fetch(source, start, stop, self.on_unknown)
            yield columns
            if self.progress is not None:
                self.progress(first + stop - start, reader.rows)

    def chunk_rows(self, columns: int) -> int:
        """Return the number of rows of a chunk with so many columns."""
        assert self.rows is not None
        if self.memory is None:
            return self.rows
        return min(self.rows, max(row_memory(self.memory) // (8 * COPIES * (columns + 2)), MIN_CHUNK_ROWS))


@dataclass(frozen=True, eq=False)
class ScanReader:
    """An open scan: its schema, and its rows, which can be read repeatedly."""

    reader: ChunkReader
    scan: Scan
    spill_directory: Path
    roles: Roles
    schema: Schema
    left_out: dict[str, str] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)  # NumPy's, of values: floats may be NaN, missing as well

    @property
    def rows(self) -> int:
        """The number of rows of the files, those that are set aside included."""
        return self.reader.rows

    @property
    def memory_budget(self) -> int:
        """Bytes for rows that are held at once."""
        return row_memory(self.scan.memory)

    @property
    def chunk_rows(self) -> int:
        """Rows of a chunk."""
        width = 3 * 8 * (len(self.reader.values) + len(self.reader.texts) + 4)
        rows = int(np.clip(self.memory_budget // (2 * width), PARTITION_ROWS, MAX_CHUNK_ROWS))
        return rows // PARTITION_ROWS * PARTITION_ROWS

    def iter_tables(self) -> Iterator[Table]:
        """Read and validate chunk after chunk."""
        for first, source, start, stop in self.reader.spans(self.chunk_rows):
            with duckdb_errors(None, "read a chunk of the rows"):
                columns = self.reader.fetch(source, start, stop)
            yield read_labelled(columns, self.schema, self.roles.unlabelled, RowPosition(first))

    def iter_partitions(self) -> Iterator[Table]:
        """Read the rows in partitions of `PARTITION_ROWS`; the first of a chunk counts all its rows that were set aside."""
        for table, (_, _, start, stop) in zip(self.iter_tables(), self.reader.spans(self.chunk_rows), strict=True):
            ends = np.minimum(np.arange(0, stop - start, PARTITION_ROWS) + PARTITION_ROWS, stop - start)
            if table.kept is not None:
                ends = np.searchsorted(table.kept, ends)
            begin = 0
            for index, end in enumerate(ends):
                partition = table.take(slice(begin, end))
                yield replace(partition, unlabelled=0, weightless=0) if index else partition
                begin = end

    @cached_property
    def is_kept(self) -> str:
        """SQL that is true for rows that are not set aside."""
        weight, outcome = self.roles.weight, self.roles.outcome
        assert outcome is not None
        has_outcome = f"NOT ({self._is_missing(outcome)})"
        if weight is None or self.kinds.get(weight, "M") not in "iufb":  # one that is no number raises when it is read
            return has_outcome
        return f"{has_outcome} AND CAST({self.reader.values[weight]} AS DOUBLE) > 0"

    def _is_missing(self, name: str) -> str:
        sql = (self.reader.values | self.reader.texts)[name]
        return f"{sql} IS NULL OR {IS_NAN.format(sql)}" if self.kinds.get(name) == "f" else f"{sql} IS NULL"

    def values(self, name: str) -> tuple[FloatArray, bool]:
        """Return a column, of rows not set aside, and whether it is complete: if it is too large, it is a random sample."""
        every = -(-self.rows // max(self.memory_budget // 40, PARTITION_ROWS))
        # By a hash: if kinds of rows alternate, such as one per hour, every n-th row would be of one kind.
        sampled = f" AND hash(place + {{before}}) % {every} = 0" if every > 1 else ""
        columns = self.reader.query(f"{self.reader.values[name]} AS r0 FROM {{source}} WHERE {self.is_kept}{sampled}")
        return np.concatenate([column.codes_or_values for column in columns]), every == 1

    def distinct(self, name: str, limit: int, *, days: bool = False) -> FloatArray:
        """Return the distinct values of a column, of rows not set aside: all, or more than ``limit``; NaN is missing.

        ``days`` truncates dates to days.
        """
        sql = f"date_trunc('day', {self.reader.values[name]})" if days else self.reader.values[name]
        columns = self.reader.query(f"DISTINCT {sql} AS r0 FROM {{source}} WHERE {self.is_kept} LIMIT {limit + 3}")
        return np.unique(np.concatenate([column.codes_or_values for column in columns]))

    @cached_property
    def discrete_outcomes(self) -> bool:
        """Whether every outcome is 0 or 1, or a class."""
        outcome = self.roles.outcome
        if outcome is None or self.schema.task == "multiclass" or outcome not in self.reader.values:
            return self.schema.task == "multiclass"
        return not self._any_row(f"CAST({self.reader.values[outcome]} AS DOUBLE) NOT IN (0, 1)")

    def has_missing(self, name: str) -> bool:
        """Return whether some row that is not set aside has no value in a column."""
        return self._any_row(self._is_missing(name))

    def _any_row(self, condition: str) -> bool:
        return any(map(len, self.reader.query(f"1 AS r0 FROM {{source}} WHERE {self.is_kept} AND ({condition}) LIMIT 1")))


@contextlib.contextmanager
def open_scan(
    scan: Scan, *, features: Sequence[str] | str | None = None, categorical: Sequence[str] | str = (), **options: Any
) -> Iterator[ScanReader]:
    """Open the rows of a scan, with options of `assign_roles`: find its columns and the vocabularies of all rows."""
    taken = (options["outcome"], options.get("weight"), *as_tuple(options["prediction"]))
    as_text = [name for name in as_tuple(categorical) if name not in taken]
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(temporary_directory(scan.spill)))
        con = stack.enter_context(connect(scan.threads, memory=max(scan.memory // 3, 120 * 10**6), spill=directory))
        rows = open_rows(con, scan.paths, scan.sql, as_text, role="categorical")
        roles = assign_roles(rows.names, features=features, categorical=as_text, **options)
        values, texts = select_columns(rows, None if features is None else roles.columns, as_text)
        with duckdb_errors(rows.files):
            check_columns_everywhere(con, rows.files, [*values, *texts])
            reader = ChunkReader.open(con, rows, values, texts, directory)
        check_has_rows(reader.rows)
        roles = replace(roles, features=tuple(name for name in roles.features if name in values or name in texts))
        yield _describe(ScanReader(reader, scan, directory, roles, Schema("binary", None, (), None, ())))


@contextlib.contextmanager
def temporary_directory(spill: Path | None) -> Iterator[str]:
    """Create a temporary directory in the spill directory."""
    try:
        directory = tempfile.TemporaryDirectory(prefix="trueup-", dir=spill, ignore_cleanup_errors=True)
    except OSError as error:
        raise FileError(f"cannot write to {spill}: {error.strerror}", hint="name another spill directory") from error
    with directory as name:
        yield name


def _describe(scan: ScanReader) -> ScanReader:
    """Find the vocabularies of all rows and the schema; the type of a column is that of all rows."""
    reader, roles = scan.reader, scan.roles
    source, count = reader.sources[0]
    first = replace(reader, texts={}).fetch(source, 0, min(count, 1000))
    scan = replace(scan, kinds={name: np.ma.getdata(column).dtype.kind for name, column in first.items()})
    vocabularies, left_out = _find_vocabularies(scan)
    texts = {name: reader.texts[name] for name in vocabularies}
    scan = replace(scan, reader=replace(reader, texts=texts, vocabularies=vocabularies))
    features = []
    for name in roles.features:
        if name in vocabularies:
            features.append(Feature(name, "categorical", vocabularies[name]))
        elif name not in left_out:
            kind = FEATURE_KINDS[from_array(first[name], name).kind]
            features.append(Feature(name, kind, FLAG_LEVELS if kind == "categorical" else ()))
    classes: tuple[str, ...] = ()
    if roles.task == "multiclass":
        outcome = roles.outcome or ""
        outcomes = set(vocabularies.get(outcome, ()))
        if outcome not in vocabularies:
            selection = f"DISTINCT {reader.values[outcome]} AS r0 FROM {{source}} LIMIT {MAX_OUTCOMES}"
            outcomes.update(level for column in reader.query(selection) for level in column.categories().levels)
        classes = class_names(sort_levels(outcomes), roles.prediction, roles.classes)
    schema = Schema(roles.task, roles.outcome, roles.prediction, roles.weight, tuple(features), classes)
    return replace(scan, schema=schema, left_out=left_out)


def _find_vocabularies(scan: ScanReader) -> tuple[dict[str, tuple[str, ...]], dict[str, str]]:
    """Return the levels of every column of texts in all files, and the identifiers, whose texts may not fit in memory."""
    vocabularies: dict[str, tuple[str, ...]] = {}
    left_out = {}
    con, sources, memory = scan.reader.con, scan.reader.sources, scan.scan.memory
    for name, sql in scan.reader.texts.items():
        is_outcome = name == scan.roles.outcome  # its classes are those of all rows
        condition = f"{sql} IS NOT NULL" + ("" if is_outcome else f" AND {scan.is_kept}")
        union = " UNION ALL ".join(f"SELECT {sql} AS word FROM {source} WHERE {condition}" for source, _ in sources)
        with duckdb_errors(None, "find the levels of a column"):
            query = f"SELECT word, count(*) AS times FROM ({union}) GROUP BY word"
            con.execute(f"CREATE OR REPLACE TEMP TABLE counted AS {query}")
            levels, known = map(int, con.execute("SELECT count(*), coalesce(sum(times), 0) FROM counted").fetchall()[0])
        if name in scan.roles.features and (reason := identifier_reason(name, levels, known)) is not None:
            left_out[name] = reason
            continue
        if levels * BYTES_PER_LEVEL > memory:
            raise DataError(
                f"column {name!r} has {levels:,} levels, more than fit in {memory / 1e9:.3g} GB",
                hint="leave it out, or allow more memory, as {memory}",
                settings={"memory": ...},
            )
        with duckdb_errors(None, "find the levels of a column"):
            vocabularies[name] = create_vocabulary(con, len(vocabularies), "counted")
    con.execute("DROP TABLE IF EXISTS counted")
    return vocabularies, left_out
