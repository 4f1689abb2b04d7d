"""Files larger than memory: read in chunks of consecutive rows, and written again with columns added.

`ScanReader` reads rows for audits and fits, `add_columns` for scoring. Parquet keeps its types. CSV written as CSV, and
JSON as JSON, keep every value as it is written there; otherwise columns of CSV have the types that `trueup.data.sql` finds,
except numbers that would lose digits (postal codes with leading zeros, long identifiers), which stay texts. New columns of
chunks are collected in a table of DuckDB until all have been made.
"""

# ruff: noqa: S608  Columns are called c0, r0, ... in SQL, and texts of a user or a file go through quote.

from __future__ import annotations

import contextlib
import re
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np

from trueup.data import sql as db
from trueup.data.chunk_checks import check_roles, integer_warnings, numbers_of_texts, separate_integers, text_score
from trueup.data.clusters import IDENTIFIER_NAME, MIN_IDENTIFIERS, IdentifierSample, warn_of_sampled_identifiers
from trueup.data.columns import FEATURE_KINDS, FLAG_LEVELS, CodedColumn, RawColumn, as_tuple, from_array
from trueup.data.folds import text_hash_sql
from trueup.data.frame import read_labelled
from trueup.data.identifiers import identifier_reason, unread_reason, warn_of_unread
from trueup.data.profile import Roles, assign_roles
from trueup.data.scan import Files, Scan, file_format, fold_case, is_compressed, row_memory, without_compression
from trueup.data.spill import temporary_directory
from trueup.data.table import Feature, Schema, Table, sort_levels
from trueup.data.values import RowPosition, check_has_rows, class_names
from trueup.errors import ColumnError, DataError, FileError
from trueup.kernels.threads import cores

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from trueup._types import AnyArray, FloatArray, IntArray
    from trueup.errors import WarningRecord

    MakeColumns = Callable[[dict[str, Any]], Mapping[str, AnyArray]]

ROW_NUMBER = "file_row_number"  # DuckDB's name for the number of a row in a Parquet file
PARTITION_ROWS, MAX_CHUNK_ROWS = 50_000, 4_000_000  # a chunk of a scan is a number of partitions of so many rows
MIN_CHUNK_ROWS = 20_000  # of rows to be scored
BYTES_PER_LEVEL = 800  # of a text, its label and its statistics, and of sorting them
MAX_OUTCOMES = 10_000  # of several classes
MIN_DUCKDB_MEMORY = 50 * 10**6  # bytes; DuckDB does not work with less
BYTES_PER_THREAD = 50 * 10**6  # that DuckDB needs to read and write
INTERRUPT_INTERVAL_S = 0.1  # between attempts to stop a statement
COPIES = 4  # of every value: in the result of the query, returned from it, validated, and scored
MAX_UNKNOWN_TEXTS = 10_000  # distinct unknown texts of a chunk that are reported
UNKNOWN = -2  # the code of a text that is not in the vocabulary, until it is counted
UNWRITTEN = re.compile(r"""Could not write file \\?"([^"\\]+)\\?": ([^"]+)""")  # in DuckDB's messages, also within JSON
DUCKDB_SPILL = "duckdb_temp"  # in the names of the files that DuckDB spills to
# Numbers in CSV that are identifiers: read as a number and written again, they would not be the same.
IDENTIFIERS = {"BIGINT": r"[+-]?0\d+", "DOUBLE": r"[+-]?(0\d+|\d{16,})", "HUGEINT": r"[+-]?(0\d+|\d{16,})"}
NUMBER_TYPES = {"TINYINT", "SMALLINT", "INTEGER", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL"}
NUMBER_TYPES |= {"UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT"}
MAX_SAMPLE_ROWS = 200_000  # of an identifier and the residuals of its rows
MIN_SAMPLE_VALUES = 1_000  # of an identifier of which only some values are sampled, with all their rows
NO_SCHEMA = Schema("binary", None, (), None, ())  # until the columns of a scan are described
CHANGED = "the rows are not those that were read before"


@dataclass(frozen=True, eq=False)
class ChunkReader:
    """Rows of files or of a query that are read range by range, with texts as codes into vocabularies."""

    con: Any
    sources: tuple[tuple[str, int], ...]  # SQL of each file, with the number of a row as ``place``, and number of rows
    values: Mapping[str, str]  # the SQL of each column
    texts: Mapping[str, str]
    vocabularies: Mapping[str, Sequence[str]] = field(default_factory=dict)  # of texts, in the order of their codes

    @classmethod
    def open(cls, con: Any, rows: db.SqlRows, directory: Path | None = None, **more: Any) -> Self:
        """Return a reader of row ranges: of Parquet files in place, else of a copy in ``directory`` or a DuckDB table."""
        files = rows.files
        if files is not None and files.format == "parquet" and ROW_NUMBER not in map(str.lower, rows.names):
            sources = tuple(_parquet_source(con, rows, files._replace(paths=[path])) for path in files.paths)
            return cls(con, sources, rows.values, rows.texts, **more)
        copied = f"SELECT {db.list_columns([*rows.values.values(), *rows.texts.values()], 'c')} FROM {rows.table}"
        if directory is None:
            con.execute(f"CREATE TEMP TABLE trueup_needed AS {copied}")
            source = "(SELECT *, rowid AS place FROM trueup_needed)"
        else:
            path = db.quote(str(directory / "rows.parquet"))
            con.execute(f"COPY ({copied}) TO {path} (FORMAT parquet, COMPRESSION snappy)")
            source = f"(SELECT *, {ROW_NUMBER} AS place FROM read_parquet({path}, {ROW_NUMBER} = true))"
        (count,) = con.execute(f"SELECT count(*) FROM {source}").fetchall()[0]
        values, texts = (
            {name: f"c{index}" for index, name in enumerate(rows.columns) if name in some}
            for some in (rows.values, rows.texts)
        )
        return cls(con, ((source, int(count)),), values, texts, **more)

    @property
    def rows(self) -> int:
        """The number of rows."""
        return sum(count for _, count in self.sources)

    def spans(self, size: int) -> Iterator[tuple[int, str, int, int]]:
        """Yield ranges of at most ``size`` rows: first row among all rows, SQL of the file, start and stop in the file."""
        before = 0
        for source, count in self.sources:
            for start in range(0, count, size):
                yield before + start, source, start, min(start + size, count)
            before += count

    def fetch(
        self, source: str, start: int, stop: int, on_unknown: Callable[[str, int, list[str]], None] | None = None
    ) -> dict[str, Any]:
        """Read rows ``start`` to ``stop`` of a file; texts outside the vocabulary are missing; ``on_unknown`` gets them."""
        listed = [db.list_columns(self.values.values(), "r"), db.list_columns(self.texts.values(), "t"), "place"]
        query = f"SELECT {', '.join(filter(None, listed))} FROM {source} WHERE place >= {start} AND place < {stop}"
        unknown = -1 if on_unknown is None else UNKNOWN
        arrays = db.fetch_encoded(
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
        """Yield column r0 of a SELECT on each file: {source} in ``selection`` is the file, {before} the rows before it."""
        before = 0
        for source, count in self.sources:
            with db.duckdb_errors(None, "read a column"):
                query = f"SELECT {selection.format(source=source, before=before)}"
                column = self.con.execute(query).fetchnumpy()["r0"]
            yield from_array(column, "values")
            before += count


def _parquet_source(con: Any, rows: db.SqlRows, file: Files) -> tuple[str, int]:
    """Return the SQL of one Parquet file, with names and types of the columns of all files, and its number of rows."""
    names, types = db.describe(con, f"FROM {db.reader_call(file._replace(partitions=()))}")
    folders = {name: db.partition_sql(value) for name, value in file.partition_values(file.paths[0]).items()}
    own = {fold_case(name): (db.quote(name, '"'), declared) for name, declared in zip(names, types, strict=True)}
    listed = [f"{ROW_NUMBER} AS place"]
    for index, (name, declared) in enumerate(zip(rows.names, rows.types, strict=True)):
        if name in folders:
            listed.append(f"CAST({folders[name]} AS {declared}) AS c{index}")
        elif name in rows.columns:
            sql, own_type = own[fold_case(name)]
            listed.append(f"{sql} AS c{index}" if own_type == declared else f"CAST({sql} AS {declared}) AS c{index}")
    file = file._replace(partitions=())
    (count,) = con.execute(f"SELECT count(*) FROM {db.reader_call(file)}").fetchall()[0]
    return f"(SELECT {', '.join(listed)} FROM {db.reader_call(file, file_row_number='true')})", int(count)


@dataclass(frozen=True, eq=False)
class ChunkSettings:
    """How files to be scored are read: in chunks of at most ``rows``, within ``memory``; by default all rows at once."""

    rows: int | None = None
    memory: int | None = None
    spill: Path | None = None
    vocabularies: Mapping[str, Sequence[str]] = field(default_factory=dict)  # of texts, in the order of their codes
    # Called with a column, the number of rows with unknown texts, which are read as missing, and some of these texts.
    on_unknown: Callable[[str, int, list[str]], None] = lambda _name, _rows, _texts: None
    progress: Callable[[int, int], None] | None = None  # called with the rows done and all rows after every chunk
    lenient: bool = False  # whether a score that is no number is missing, rather than an error

    def connect(self, threads: int | None) -> contextlib.AbstractContextManager[Any]:
        """Open a DuckDB connection; half of the memory budget is for DuckDB, the other half for a chunk of rows."""
        if self.memory is None:
            return db.connect(threads, spill=self.spill)
        memory = max(row_memory(self.memory), MIN_DUCKDB_MEMORY)
        return db.connect(min(threads or cores(), max(memory // BYTES_PER_THREAD, 1)), memory=memory, spill=self.spill)

    @contextlib.contextmanager
    def space_errors(self) -> Iterator[None]:
        """Turn errors of DuckDB into ones that name what is full: memory, spill directory, or disk of the result."""
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

    def read(self, con: Any, rows: db.SqlRows) -> Iterator[dict[str, Any]]:
        """Yield chunk after chunk, at least one; columns are as from `trueup.data.sql.fetch`."""
        if self.rows is None:
            with db.duckdb_errors(rows.files):
                columns = db.fetch(con, rows)
            yield columns
            return
        with db.duckdb_errors(rows.files):
            reader = replace(ChunkReader.open(con, rows), vocabularies=self.vocabularies)
            for index, name in enumerate(rows.texts):  # a column without levels has only unknown texts
                db.store_vocabulary(con, index, self.vocabularies.get(name, ()))
        size = self.chunk_rows(len(rows.columns))
        for first, source, start, stop in reader.spans(size) if reader.rows else [(0, reader.sources[0][0], 0, 0)]:
            with db.duckdb_errors(rows.files):
                columns = reader.fetch(source, start, stop, self.on_unknown)
            yield columns
            if self.progress is not None:
                self.progress(first + stop - start, reader.rows)

    def chunk_rows(self, columns: int) -> int:
        """Return the number of rows of a chunk of this many columns, within the memory budget."""
        assert self.rows is not None
        if self.memory is None:
            return self.rows
        return min(self.rows, max(row_memory(self.memory) // (8 * COPIES * (columns + 2)), MIN_CHUNK_ROWS))


@dataclass(frozen=True, eq=False, kw_only=True)
class ScanReader(ChunkReader):
    """An open scan: its schema, and its rows, which can be read repeatedly."""

    scan: Scan
    spill_directory: Path
    roles: Roles
    schema: Schema = NO_SCHEMA
    left_out: dict[str, str] = field(default_factory=dict)
    warnings: tuple[WarningRecord, ...] = ()
    kinds: dict[str, str] = field(default_factory=dict)  # NumPy's, of values: floats may be NaN, missing as well

    @property
    def memory_budget(self) -> int:
        """The number of bytes that rows in memory may take at once."""
        return row_memory(self.scan.memory)

    @property
    def chunk_rows(self) -> int:
        """The number of rows of a chunk, within the memory budget."""
        width = 3 * 8 * (len(self.values) + len(self.texts) + 4)
        rows = int(np.clip(self.memory_budget // (2 * width), PARTITION_ROWS, MAX_CHUNK_ROWS))
        return rows // PARTITION_ROWS * PARTITION_ROWS

    def iter_tables(self) -> Iterator[Table]:
        """Yield chunk after chunk as a validated Table."""
        for first, source, start, stop in self.spans(self.chunk_rows):
            with db.duckdb_errors(None, "read a chunk of the rows"):
                columns = self.fetch(source, start, stop)
            yield read_labelled(columns, self.schema, self.roles.unlabelled, RowPosition(first))

    def iter_partitions(self) -> Iterator[Table]:
        """Yield partitions of PARTITION_ROWS rows; the first of each chunk counts all rows set aside in that chunk."""
        for table, (_, _, start, stop) in zip(self.iter_tables(), self.spans(self.chunk_rows), strict=True):
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
        """The SQL condition for kept rows, those with an outcome and a positive weight."""
        weight, outcome = self.roles.weight, self.roles.outcome
        assert outcome is not None
        has_outcome = f"NOT ({self._is_missing(outcome)})"
        if weight is None or self.kinds.get(weight, "M") not in "iufb":  # one that is no number raises when it is read
            return has_outcome
        return f"{has_outcome} AND CAST({self.values[weight]} AS DOUBLE) > 0"

    def _is_missing(self, name: str) -> str:
        sql = {**self.values, **self.texts}[name]
        return f"{sql} IS NULL OR {db.IS_NAN.format(sql)}" if self.kinds.get(name) == "f" else f"{sql} IS NULL"

    def sample(self, name: str) -> tuple[FloatArray, bool]:
        """Return a column of the kept rows, or a random sample of it if it is too large, and whether it is complete."""
        every = -(-self.rows // max(self.memory_budget // 40, PARTITION_ROWS))
        # By a hash: if kinds of rows alternate, such as one per hour, every n-th row would be of one kind.
        sampled = f" AND hash(place + {{before}}) % {every} = 0" if every > 1 else ""
        columns = self.query(f"{self.values[name]} AS r0 FROM {{source}} WHERE {self.is_kept}{sampled}")
        return np.concatenate([column.codes_or_values for column in columns]), every == 1

    def distinct(self, name: str, limit: int, *, days: bool = False) -> FloatArray:
        """Return the distinct values of a column of the kept rows, NaN for missing: all, or some (more than ``limit``).

        ``days`` truncates dates to days.
        """
        sql = f"date_trunc('day', {self.values[name]})" if days else self.values[name]
        columns = self.query(f"DISTINCT {sql} AS r0 FROM {{source}} WHERE {self.is_kept} LIMIT {limit + 3}")
        return np.unique(np.concatenate([column.codes_or_values for column in columns]))

    @cached_property
    def discrete_outcomes(self) -> bool:
        """Whether every outcome is 0 or 1, or a class."""
        outcome = self.roles.outcome
        if outcome is None or self.schema.task == "multiclass" or outcome not in self.values:
            return self.schema.task == "multiclass"
        return not self._any_row(f"CAST({self.values[outcome]} AS DOUBLE) NOT IN (0, 1)")

    def sample_identifier(self, sql: str) -> IdentifierSample:
        """Return a column of numbers with outcomes and scores, of the kept rows or of a sample.

        The sample has all rows of some values or, if a sample would have few values, some rows of all.
        """
        outcome, (prediction,) = self.values[str(self.roles.outcome)], self.roles.prediction
        every, sampled = -(-self.rows // MAX_SAMPLE_ROWS), ""
        by_value = False
        if every > 1:
            union = " UNION ALL ".join(f"SELECT {sql} AS r0 FROM {source}" for source, _ in self.sources)
            with db.duckdb_errors(None, "count the values of a column"):
                (count,) = self.con.execute(f"SELECT approx_count_distinct(r0) FROM ({union})").fetchall()[0]
            by_value = count >= MIN_SAMPLE_VALUES * every
            sampled = f" AND hash({f'CAST({sql} AS DOUBLE)' if by_value else 'place + {before}'}) % {every} = 0"
        listed = f"{sql} AS r0, {outcome} AS r1, {self.values[prediction]} AS r2"
        parts, before = [], 0
        for source, rows in self.sources:
            where = f"{self.is_kept} AND {sql} IS NOT NULL{sampled.format(before=before)}"
            with db.duckdb_errors(None, "read a column"):
                arrays = self.con.execute(f"SELECT {listed} FROM {source} WHERE {where}").fetchnumpy()
            parts.append([from_array(array, "values").codes_or_values.astype(np.float64) for array in arrays.values()])
            before += rows
        values, y, p = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        return IdentifierSample(values, y, p, 1 if by_value else every)

    def has_missing(self, name: str) -> bool:
        """Return whether a value of a column is missing in a kept row."""
        return self._any_row(self._is_missing(name))

    def _any_row(self, condition: str) -> bool:
        return any(map(len, self.query(f"1 AS r0 FROM {{source}} WHERE {self.is_kept} AND ({condition}) LIMIT 1")))


ReaderT = TypeVar("ReaderT", bound=ScanReader)


@contextlib.contextmanager
def open_scan(
    scan: Scan,
    reader_class: type[ReaderT] = ScanReader,  # type: ignore[assignment]
    *,
    features: Sequence[str] | str | None = None,
    categorical: Sequence[str] | str = (),
    **options: Any,
) -> Iterator[ReaderT]:
    """Yield an open reader of a scan, with schema and vocabularies of all rows; ``options`` are those of `assign_roles`."""
    taken = (options["outcome"], options.get("weight"), options.get("cluster"), *as_tuple(options["prediction"]))
    as_text = [name for name in as_tuple(categorical) if name not in taken]
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(temporary_directory(scan.spill)))
        con = stack.enter_context(db.connect(scan.threads, memory=max(scan.memory // 3, 120 * 10**6), spill=directory))
        rows = db.open_rows(con, scan.input, scan.sql, as_text, role="categorical")
        roles = assign_roles(rows.names, features=features, categorical=as_text, **options)
        known = None if features is None else roles.columns
        rows = db.select_columns(rows, known, as_text, exact={*roles.features, str(roles.cluster)})
        if error := next((rows.unread[name] for name in replace(roles, features=()).columns if name in rows.unread), None):
            raise error
        unread = {name: unread_reason(name, rows.unread[name]) for name in roles.features if name in rows.unread}
        warn_of_unread(unread, stacklevel=6)
        roles = replace(roles, features=tuple(name for name in roles.features if name in rows.columns))
        check = roles.cluster is None and roles.task != "multiclass" and len(roles.prediction) == 1
        more = db.identifier_columns(con, rows, rows.columns) if check else {}
        with db.duckdb_errors(rows.files):
            db.check_columns_everywhere(con, rows)
            rows = rows._replace(values={**rows.values, **more})
            reader = reader_class.open(con, rows, directory, scan=scan, spill_directory=directory, roles=roles)
        check_has_rows(reader.rows)
        others = {name: sql for name, sql in reader.values.items() if name in more}
        values = {name: sql for name, sql in reader.values.items() if name not in more}
        check_roles(reader)
        with db.duckdb_errors(rows.files):  # damage that shows only when rows are read
            reader, large = separate_integers(replace(reader, values=values), rows)
            reader = _describe(reader)
        reader = replace(reader, left_out={**unread, **reader.left_out}, warnings=tuple(integer_warnings(reader, large)))
        if check and roles.outcome in reader.values and roles.prediction[0] in reader.values:
            reader = replace(reader, warnings=(*reader.warnings, *_check_identifiers(reader, others)))
        yield reader


def _describe(reader: ReaderT) -> ReaderT:
    """Return the reader with its schema, and with the vocabularies of all rows."""
    if reader.roles.cluster is not None:
        reader = _hash_identifiers(reader, reader.roles.cluster)
    roles, (source, count) = reader.roles, reader.sources[0]
    first = replace(reader, texts={}).fetch(source, 0, min(count, 1000))
    reader = replace(reader, kinds={name: np.ma.getdata(column).dtype.kind for name, column in first.items()})
    vocabularies, left_out = _find_vocabularies(reader)
    texts = {name: reader.texts[name] for name in vocabularies}
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
    schema = Schema(
        roles.task, roles.outcome, roles.prediction, roles.weight, tuple(features), classes, roles.cluster, roles.logits,
    )  # fmt: skip
    return replace(reader, texts=texts, vocabularies=vocabularies, schema=schema, left_out=left_out)


def _check_identifiers(reader: ScanReader, others: Mapping[str, str]) -> list[WarningRecord]:
    """Warn of rows that belong together, by columns named like identifiers and by texts of at least 100 levels."""
    columns = dict(others)
    for feature in reader.schema.features:
        is_named = bool(IDENTIFIER_NAME.search(feature.name))
        if feature.name in reader.texts and (is_named or len(feature.levels) >= MIN_IDENTIFIERS):
            columns[feature.name] = text_hash_sql(reader.texts[feature.name])
        elif feature.kind == "numeric" and is_named:
            columns[feature.name] = reader.values[feature.name]
    samples = ((name, reader.sample_identifier(sql)) for name, sql in columns.items())
    return warn_of_sampled_identifiers(samples, stacklevel=6)


def _hash_identifiers(reader: ReaderT, name: str) -> ReaderT:
    """Return the reader with hashes in place of the texts that identify clusters, of which there may be very many.

    52 bits, which a float represents exactly: of a million clusters, two have the same hash once in 10,000 scans.
    """
    if name not in reader.texts:
        return reader
    texts = dict(reader.texts)
    return replace(reader, values={**reader.values, name: text_hash_sql(texts.pop(name))}, texts=texts)


def _find_vocabularies(reader: ScanReader) -> tuple[dict[str, tuple[str, ...]], dict[str, str]]:
    """Return the levels of every text column over all files, and the columns left out as identifiers, with the reason."""
    vocabularies: dict[str, tuple[str, ...]] = {}
    left_out = {}
    con, memory = reader.con, reader.scan.memory
    for name, sql in reader.texts.items():
        is_outcome = name == reader.roles.outcome  # its classes are those of all rows
        condition = f"{sql} IS NOT NULL" + ("" if is_outcome else f" AND {reader.is_kept}")
        union = " UNION ALL ".join(f"SELECT {sql} AS word FROM {source} WHERE {condition}" for source, _ in reader.sources)
        with db.duckdb_errors(None, "find the levels of a column"):
            query = f"SELECT word, count(*) AS times FROM ({union}) GROUP BY word"
            con.execute(f"CREATE OR REPLACE TEMP TABLE counted AS {query}")
            levels, known = map(int, con.execute("SELECT count(*), coalesce(sum(times), 0) FROM counted").fetchall()[0])
        if name in reader.roles.features and (reason := identifier_reason(name, levels, known)) is not None:
            left_out[name] = reason
            continue
        if levels * BYTES_PER_LEVEL > memory:
            raise DataError(
                f"column {name!r} has {levels:,} levels, more than fit in {memory / 1e9:.3g} GB",
                hint="leave it out, or allow more memory, as {memory}",
                settings={"memory": ...},
            )
        with db.duckdb_errors(None, "find the levels of a column"):
            vocabularies[name] = db.create_vocabulary(con, len(vocabularies), "counted")
    con.execute("DROP TABLE IF EXISTS counted")
    return vocabularies, left_out


def format_to_write(path: str | Path) -> str:
    """Return the options of DuckDB's COPY for a file, by its extension."""
    path = Path(path)
    name, suffix = file_format(path), Path(without_compression(path.name.lower())).suffix
    if name is None or is_compressed(path, ".bz2"):
        raise FileError(
            f"cannot tell the format of {str(path)!r} by its name",
            hint="it must end in .parquet, .csv, .tsv, .json (one array) or .jsonl (one record per line); all but the first"
            " also in .gz or .zst after that",
        )
    options = {
        "parquet": "FORMAT parquet",
        "csv": f"FORMAT csv, HEADER true, DELIMITER '{chr(9) if suffix == '.tsv' else ','}'",
        "json": f"FORMAT json, ARRAY {'true' if suffix == '.json' else 'false'}",
    }[name]
    compression = {".gz": ", COMPRESSION gzip", ".zst": ", COMPRESSION zstd"}.get(path.suffix.lower(), "")
    return f"{options}{compression}"


def add_columns(
    paths: Any,
    target: Path,
    make: MakeColumns,
    *,
    sql: str | None = None,
    roles: Mapping[str, Sequence[str]],
    text: Sequence[str] = (),
    written: str,
    only: bool = False,
    some: IntArray | None = None,
    threads: int | None = None,
    chunks: ChunkSettings | None = None,
) -> int:
    """Read columns, compute new ones from them, write all into one file in the order of the rows; return its row count.

    ``make`` is called with the columns of ``roles``, chunk by chunk, and returns the new ones by name: numbers, or texts if
    the array contains objects. ``written`` is the format, from `format_to_write`; ``only`` writes the new columns alone,
    ``some`` only these rows. If writing fails, half a file is left at the target: pass the path of a temporary file.
    """
    settings = chunks or ChunkSettings()
    with settings.connect(threads) as con, settings.space_errors():
        rows = db.open_rows(con, paths, sql, text, role="feature")
        if rows.repeated and not only:
            name = min(rows.repeated)
            raise ColumnError(
                f"column {name!r} appears more than once in {rows.files}: names differ only in case",
                hint="rename one, or write the corrected scores alone, as {only}", settings={"only": True},
            )  # fmt: skip
        if rows.files is None:  # run twice, a query may return other rows or another order
            with db.duckdb_errors(None):
                con.execute(f"CREATE TEMP TABLE trueup_query AS SELECT * FROM {rows.table}")
            rows = rows._replace(source="trueup_query")
        needed = [name for role, names in roles.items() for name in db.find_names(rows.names, names, role)]
        rows = db.select_columns(rows, needed, text)
        with db.duckdb_errors(rows.files):
            db.check_columns_everywhere(con, rows)
        scores = [name for name in roles.get("prediction", ()) if name in rows.texts]
        if scores and not settings.lenient:
            raise text_score(con, scores[0], rows.texts[scores[0]], rows.table)
        rows = numbers_of_texts(con, rows, scores)
        types = dict(zip(rows.names, rows.types, strict=True))
        key = next((name for name in needed if name in rows.values and types[name].split("(")[0] in NUMBER_TYPES), None)
        new, count = [], 0
        for columns in settings.read(con, rows):
            made = make({name: columns[name] for name in needed})
            taken = set() if only else {fold_case(name) for name in rows.names}
            if (same := next((name for name in made if fold_case(name) in taken), None)) is not None:
                hint = "choose another name, as {name}"
                raise ColumnError(f"there is a column {same!r} already", hint=hint, settings={"name": ...})
            count = _store(con, made, None if key is None else columns[key], count, some, chunked=bool(settings.rows))
            new = list(made)
        with db.duckdb_errors(rows.files):
            original = rows if only else _as_written(con, rows, set(needed) - set(text), written)
        with db.duckdb_errors(rows.files, "write the result"):
            query = _join_new_columns(original, key, new, only=only)
            query += "" if some is None else " WHERE trueup_new.taken"
            _run(con, f"COPY ({query}) TO {db.quote(str(target.absolute()))} ({written}, USE_TMP_FILE false)")
        return count if some is None else len(some)


def _store(con: Any, made: Mapping[str, AnyArray], key: Any, first: int, some: IntArray | None, *, chunked: bool) -> int:
    """Append columns ``made`` and ``key`` (identifies rows) of a chunk to the table trueup_new; return the rows so far."""
    count = first + len(next(iter(made.values())))
    # Rows are compared by their key: NaN if missing, which is NULL to DuckDB.
    base = np.full(count - first, np.nan) if key is None else np.ma.filled(key.astype(np.float64), np.nan)
    stored = {"base": base}
    for index, array in enumerate(made.values()):
        stored[f"n{index}"] = array if array.dtype == object else np.ascontiguousarray(array, np.float64)
    if some is not None:
        stored["taken"] = np.isin(np.arange(first, count), some)
    if not chunked:
        con.register("trueup_new", stored)
        return count
    with db.duckdb_errors(None, "store the new columns"):
        if not first:
            types = {name: "VARCHAR" if array.dtype == object else "DOUBLE" for name, array in stored.items()}
            types |= {"taken": "BOOLEAN"} if some is not None else {}
            listed = ", ".join(f"{name} {declared}" for name, declared in types.items())
            con.execute(f"CREATE OR REPLACE TEMP TABLE trueup_new ({listed})")
        con.register("trueup_chunk", stored)
        con.execute("INSERT INTO trueup_new FROM trueup_chunk")
        con.unregister("trueup_chunk")
    return count


def _as_written(con: Any, rows: db.SqlRows, numbers: set[str], written: str) -> db.SqlRows:
    """Return the rows to copy: columns not in ``numbers`` keep the text of the file if the format ``written`` allows it."""
    files = rows.files
    if files is None or files.format == "parquet":
        return rows
    has_types = "parquet" in written
    if files.format == "json":
        return db.describe_files(con, files, (), convert_texts=has_types)
    texts = db.csv_texts(con, files)
    if "csv" in written:
        return texts
    # Numbers that would lose digits stay texts, unless they are needed as numbers.
    columns = enumerate(zip(rows.names, rows.types, strict=True))
    doubtful = [index for index, (name, declared) in columns if declared in IDENTIFIERS and name not in numbers]
    as_text = []
    if doubtful:
        tests = [f"bool_or(regexp_full_match(trim(c{i}), {db.quote(IDENTIFIERS[rows.types[i]])}))" for i in doubtful]
        answers = con.execute(f"SELECT {', '.join(tests)} FROM {texts.table}").fetchall()[0]
        as_text = [rows.names[index] for index, is_identifier in zip(doubtful, answers, strict=True) if is_identifier]
    return db.describe_files(con, files, as_text, convert_texts=has_types)


def _join_new_columns(rows: db.SqlRows, key: str | None, new: Sequence[str], *, only: bool) -> str:
    """Return SQL for old and ``new`` columns, or ``only`` new ones; joined by position, it fails if ``key`` has changed."""
    added = [f"n{index} AS {db.quote(name, chr(34))}" for index, name in enumerate(new)]
    if only:
        return f"SELECT {', '.join(added)} FROM trueup_new"
    kept = [f"c{index} AS {db.quote(name, chr(34))}" for index, name in enumerate(rows.names)]
    if key is not None:
        value = f"nullif(TRY_CAST(c{rows.names.index(key)} AS DOUBLE), 'nan'::DOUBLE)"
        same = f"trueup_new.base IS NOT DISTINCT FROM {value}"
        added[0] = f"CASE WHEN {same} THEN n0 ELSE error({db.quote(CHANGED)}) END AS {db.quote(new[0], chr(34))}"
    return f"SELECT {', '.join([*kept, *added])} FROM {rows.table} POSITIONAL JOIN trueup_new"


def _run(con: Any, query: str) -> None:
    """Run a statement in a thread, so that Ctrl-C stops it at once; DuckDB ignores Ctrl-C while it writes."""
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(con.execute, query)
        try:
            running.result()
        except KeyboardInterrupt:
            while not running.done():  # a statement that has not begun yet does not notice
                con.interrupt()
                wait([running], INTERRUPT_INTERVAL_S)
            raise
