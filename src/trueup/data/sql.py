"""Parquet, CSV and JSON files, and SQL, into NumPy columns, in the order of the rows. The only importer of duckdb.

Columns of types other than numbers, booleans, texts and dates, and the row index that pandas writes into Parquet, are left
out; naming one is an error, unless it is to be read as text. In CSV and JSON a column has the type that all its values
have: numbers; dates, if each is written as 2024-01-31 or 2024-01-31 09:30:00 (a time zone is dropped, the clock time kept);
true and false in CSV; or else texts. Times with a zone in Parquet and SQL are converted to UTC.
"""

# ruff: noqa: S608  Columns are called c0, r0, ... in SQL, and texts of a user or a file go through quote.

from __future__ import annotations

import contextlib
import glob
import re
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import duckdb
import numpy as np

from trueup._temporary import temporary_directory
from trueup._validate import check_integer
from trueup.data.clusters import IDENTIFIER_NAME
from trueup.data.columns import MAX_EXACT, CodedColumn, ColumnSource, UnreadColumn, as_tuple
from trueup.data.folds import text_hash_sql
from trueup.data.scan import (
    HINTS,
    Files,
    RemoteFile,
    display_name,
    find_files,
    find_uneven_line,
    fold_case,
    is_gzipped,
    parse_header,
    path_partitions,
)
from trueup.data.sources import copy_for_duckdb
from trueup.data.table import sort_levels
from trueup.errors import ArgumentError, ColumnError, FileError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from duckdb import DuckDBPyConnection as Connection

    from trueup._types import AnyArray

TEXTS_PER_QUERY = 8  # text columns encoded by one query: 1 or 100 took twice the time

# The SQL that reads a column of each type. Other types are not read.
WIDE_TYPES = ("HUGEINT", "UHUGEINT", "BIGNUM", "VARINT")  # integers that do not fit in 64 bits
WIDE_DECIMAL = re.compile(r"DECIMAL\((?:1[6-9]|[23]\d),0\)")  # integers beyond 2**53
NUMERIC_TYPES = "BOOLEAN TINYINT SMALLINT INTEGER BIGINT UTINYINT USMALLINT UINTEGER UBIGINT FLOAT DOUBLE"
DATE_TYPES = "DATE TIMESTAMP TIMESTAMP_S TIMESTAMP_MS TIMESTAMP_NS"
VALUES = dict.fromkeys(f"{NUMERIC_TYPES} {DATE_TYPES}".split(), "{}")
VALUES |= {"TIMESTAMP WITH TIME ZONE": "CAST({} AS TIMESTAMP)"}
VALUES |= dict.fromkeys(("DECIMAL", *WIDE_TYPES), "CAST({} AS DOUBLE)")
VALUES |= dict.fromkeys(("TIME", "TIME_NS", "TIME WITH TIME ZONE"), "(epoch(CAST({} AS TIME)) / 3600)")  # in hours
VALUES |= {"INTERVAL": "epoch({})"}  # in seconds
TEXTS = dict.fromkeys(("VARCHAR", "ENUM", "UUID", "NULL"), "CAST({} AS VARCHAR)")
TEXTS |= {"JSON": "{} ->> '$'"}  # a cast would keep the quotes of a text
# The statistics in a Parquet file ignore NaN, and DuckDB relies on them: isnan is false, and NaN < 1 true, for a column
# whose statistics lie below 1. For isfinite it reads the rows.
IS_NAN = "(NOT isfinite({0}) AND NOT isinf({0}))"
FLOAT_TEXT = "CASE WHEN isfinite({0}) AND {0} = floor({0}) AND abs({0}) < 9007199254740992 "
FLOAT_TEXT += "THEN CAST(CAST({0} AS BIGINT) AS VARCHAR) "
FLOAT_TEXT += f"WHEN NOT {IS_NAN} THEN CAST({{0}} AS VARCHAR) END"  # as columns.format_number writes numbers
AS_TEXT = dict.fromkeys(("FLOAT", "DOUBLE"), FLOAT_TEXT)
AS_TEXT |= {
    kind: FLOAT_TEXT.format(VALUES[kind].replace("{}", "{0}"))
    for kind in ("TIME", "TIME_NS", "TIME WITH TIME ZONE", "INTERVAL")
}

# Options that DuckDB would otherwise guess from the data: it skips lines that begin with # or have too few fields, takes
# "no" for a boolean, and 01/02/2024 for the first of the two dates that it tries.
CSV = {"header": "true", "skip": "0", "comment": "''", "quote": "'\"'", "escape": "'\"'"}
CSV |= {"nullstr": "['', 'NA', 'N/A', 'NaN', 'nan', 'null', 'NULL']"}
CSV |= {"auto_type_candidates": "['BIGINT', 'HUGEINT', 'DOUBLE', 'VARCHAR']"}
HTTPFS = "httpfs"  # the extension of DuckDB that reads remote files
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"  # the value of a missing one
PARTITION_TYPES = {"BIGINT": re.compile(r"-?\d{1,18}"), "DATE": re.compile(r"\d\d\d\d-\d\d-\d\d")}
JSON = {"records": "true", "map_inference_threshold": "-1", "field_appearance_threshold": "0"}

# What a text of CSV or JSON may stand for: the SQL that tests all values, and the SQL that reads them.
ISO_DATE = r"\d\d\d\d-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?( ?(Z|[+-]\d\d(:?\d\d)?))?)?"
TIME = r"TRY_CAST(regexp_replace({0}, '^(...........[0-9:.]+).*', '\1') AS TIMESTAMP)"
TEXT_TYPES = {"TIMESTAMP": (f"regexp_full_match({{0}}, '{ISO_DATE}') AND {TIME} IS NOT NULL", TIME)}
TEXT_TYPES |= {"BOOLEAN": ("lower({0}) IN ('true', 'false')", "lower({0}) = 'true'")}

LAST_SEMICOLON = re.compile(r";(?:[\s;]|--[^\n]*|/\*.*?\*/)*$", re.DOTALL)
DUCKDB_ADVICE = re.compile(  # in DuckDB's messages: advice on its options, an excerpt of SQL, the class of the error
    r"\n\s*(?:LINE \d|Possible|Try |Please |The search space|This can happen).*| Try (?:setting|auto).*"
    r"|^[A-Z]\w+(?: [A-Z]\w+)* Error: |Original Line:[^\n]*\n",
    re.DOTALL,
)


def read_files(
    paths: Any = None,
    *,
    sql: str | None = None,
    columns: Sequence[str] | None = None,
    text: Sequence[str] = (),
    threads: int | None = None,
    identifiers: bool = False,
) -> dict[str, AnyArray | CodedColumn]:
    """Read files, or the result of a query, as a dict of columns that `trueup.data.frame.read` accepts.

    Several files, or those of a pattern, are concatenated, with columns matched by name; each must have every column that
    is read (JSON records may lack some). ``sql`` is a query in DuckDB's SQL, run once; the files of ``paths`` are its table
    ``data``. Columns in ``text`` are read as text whatever they look like: 01234 in CSV is kept as it is. Columns with
    missing values are masked arrays; texts are codes into sorted levels. With ``identifiers``, columns not in ``columns``
    that are named like identifiers are read as well, texts as numbers (`identifier_columns`).
    """
    as_text, chosen = as_tuple(text), None if columns is None else as_tuple(columns)
    with connect(threads) as con:
        rows = open_rows(con, paths, sql, as_text)
        rows = select_columns(rows, chosen, as_text, exact=rows.names)
        more = identifier_columns(con, rows, rows.columns) if identifiers else {}
        with duckdb_errors(rows.files):
            check_columns_everywhere(con, rows)
            arrays = fetch_all(con, rows._replace(values={**rows.values, **more}))
        return {name: arrays[name] for name in (*(rows.names if chosen is None else chosen), *more) if name in arrays}


def fetch_all(con: Connection, rows: SqlRows) -> dict[str, Any]:
    """Read the selected columns of all rows as `fetch` does, with integers as integers, and columns that are not read."""
    arrays = fetch(con, rows)
    arrays |= {name: _from_wide(arrays[name]) for name in rows.wide}
    count = len(next(iter(arrays.values())))
    return arrays | {name: UnreadColumn(error, count) for name, error in rows.unread.items()}


def _from_wide(column: CodedColumn) -> AnyArray:
    """Return integers that were read as texts: as floats if these are exact, else as Python's integers."""
    numbers = [int(level) for level in column.levels]
    if any(abs(number) >= MAX_EXACT for number in numbers):
        return np.array([*numbers, None], object)[column.codes]
    return np.ma.masked_invalid(np.array([*numbers, np.nan], np.float64)[column.codes])


def describe_columns(paths: Any = None, sql: str | None = None) -> dict[str, ColumnError | None]:
    """Return the names of the columns, each with the error that reading it raises, None if it can be read.

    Rows are not read, except in JSON, where rows name the columns.
    """
    with connect(None) as con:
        rows = select_columns(open_rows(con, paths, sql, (), names_only=True), None, ())
        return {name: rows.unread.get(name) for name in rows.names if name in rows.columns or name in rows.unread}


def column_names(paths: Any = None, sql: str | None = None) -> list[str]:
    """Return the names of the columns, without reading rows (except in JSON, where rows name the columns)."""
    return list(describe_columns(paths, sql))


class SqlRows(NamedTuple):
    """Rows to be read: their SQL, their columns, called c0, c1, ... in SQL, and the SQL of the columns to be read."""

    source: str
    names: tuple[str, ...]
    types: tuple[str, ...]
    files: Files | None = None
    values: Mapping[str, str] = MappingProxyType({})
    texts: Mapping[str, str] = MappingProxyType({})
    wide: tuple[str, ...] = ()  # integers among the texts, which may be numbers if they are small enough
    repeated: frozenset[str] = frozenset()  # names that differ from another one only in case, which DuckDB changes
    unread: Mapping[str, ColumnError] = MappingProxyType({})  # columns without a role that cannot be read, and why

    @property
    def table(self) -> str:
        """The rows as an SQL table expression with the columns c0, c1, ..."""
        return f"{self.source} AS rows({', '.join(f'c{index}' for index in range(len(self.names)))})"

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns to be read."""
        return (*self.values, *self.texts)


def _base_type(declared: str) -> str:
    return "LIST" if declared.endswith("]") else declared.split("(")[0].strip('"')


def quote(value: str, mark: str = "'") -> str:
    """Quote a text for SQL, or a name if the mark is a double quote."""
    value.encode()  # raises for text that is not Unicode: DuckDB would report a wrong argument
    return mark + value.replace(mark, mark * 2) + mark


def _quote_paths(files: Files) -> str:
    """Return paths as SQL: escaped, so that * stands for itself; absolute, so that no name begins with ~ or a scheme."""
    names = (path if isinstance(path, RemoteFile) else glob.escape(str(path.absolute())) for path in files.paths)
    return f"[{', '.join(map(quote, names))}]"


def reader_call(files: Files, **options: str) -> str:
    """Return the SQL that reads files, with the options of DuckDB's reader."""
    if files.partitions:
        listed = ", ".join(f"{quote(name)}: VARCHAR" for name in files.partitions)
        options |= {"hive_partitioning": "true", "hive_types": f"{{{listed}}}"}
    else:
        options |= {"hive_partitioning": "false"}  # no columns made of the names of directories
    options |= {"union_by_name": "true"} if len(files.paths) > 1 else {}
    options |= {"compression": "'gzip'"} if all(map(is_gzipped, files.paths)) else {}  # by default .gz but not .GZ
    listed = ", ".join(f"{key} = {value}" for key, value in options.items())
    return f"read_{files.format}({_quote_paths(files)}, {listed})"


def find_names(known: Iterable[str], names: Sequence[str], role: str) -> tuple[str, ...]:
    """Return ``names``; raise if one appears twice, or is not ``known`` (the error then suggests the most similar name)."""
    return cast("tuple[str, ...]", ColumnSource.of_names(known).find_all(names, role))


def select_columns(
    rows: SqlRows, columns: Sequence[str] | None, as_text: Sequence[str], exact: Collection[str] = ()
) -> SqlRows:
    """Return ``rows`` with the SQL of the columns to read (None: all readable ones), of values and of texts.

    Integers in ``exact`` of a type that floats cannot represent are read as texts, and named in ``wide``.
    """
    values, texts, wide, unread = {}, {}, [], {}
    wanted = None if columns is None else set(find_names(rows.names, columns, "data"))
    for index, (name, declared) in enumerate(zip(rows.names, rows.types, strict=True)):
        if re.fullmatch(r"__index_level_\d+__", name) if wanted is None else name not in wanted:
            continue
        base, column = _base_type(declared), f"c{index}"
        if name in rows.repeated:
            unread[name] = _repeated_name(name, rows.files)
        elif base in TEXTS or name in as_text:
            texts[name] = (TEXTS | AS_TEXT).get(base, TEXTS["VARCHAR"]).format(column)
        elif name in exact and (base in WIDE_TYPES or WIDE_DECIMAL.fullmatch(declared)):
            texts[name] = TEXTS["VARCHAR"].format(column)
            wide.append(name)
        elif base in VALUES:
            values[name] = VALUES[base].format(column)
        else:
            unread[name] = ColumnError(
                f"column {name!r} has a type that trueup does not read: {declared[:60]}",
                hint="numbers, booleans, texts, dates, times and durations are read; leave it out, or pass {categorical}",
                settings={"categorical": [name]},
            )
    if unread and wanted is not None:
        raise next(iter(unread.values()))
    if not values and not texts:
        raise ColumnError(f"no column to read among {', '.join(map(repr, rows.names[:12]))}")
    return rows._replace(values=values, texts=texts, wide=tuple(wide), unread=unread)


def _repeated_name(name: str, files: Files | None) -> ColumnError:
    return ColumnError(f"column {name!r} appears more than once in {files}: names differ only in case", hint=HINTS["case"])


def identifier_columns(con: Connection, rows: SqlRows, taken: Sequence[str]) -> dict[str, str]:
    """Return the SQL of the columns that are not ``taken`` and named like identifiers: numbers, and hashes of texts.

    Columns that some file does not have, and those of other types, are left out.
    """
    found = {}
    for index, (name, declared) in enumerate(zip(rows.names, rows.types, strict=True)):
        if name in taken or not IDENTIFIER_NAME.search(name):
            continue
        base, column = _base_type(declared), f"c{index}"
        if base in TEXTS:
            found[name] = text_hash_sql(TEXTS[base].format(column))
        elif base in VALUES and base not in DATE_TYPES.split() and base not in ("BOOLEAN", "TIMESTAMP WITH TIME ZONE"):
            found[name] = VALUES[base].format(column)
    try:
        check_columns_everywhere(con, rows._replace(values=found, texts={}))
    except ColumnError:
        return {}
    return found


@contextlib.contextmanager
def connect(threads: int | None, memory: int | None = None, spill: Path | None = None) -> Iterator[Connection]:
    """Open a connection that reads only the files named in its queries, and spills to a directory of its own."""
    check_integer("threads", threads, 1, optional=True)
    # By default DuckDB spills beside the user's files, downloads extensions, and takes names in SQL for Python variables.
    with temporary_directory(spill) as directory:
        config: dict[str, Any] = {"temp_directory": directory, "python_enable_replacements": "false"}
        config |= {} if memory is None else {"memory_limit": f"{memory}B"}
        config |= {"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"}
        with duckdb.connect(":memory:", config=config if threads is None else config | {"threads": threads}) as con:
            con.execute("SET enable_progress_bar = false")  # it would be written into the JSON on standard output
            with contextlib.suppress(duckdb.Error):  # a build without time zones knows only UTC
                con.execute("SET TimeZone = 'UTC'")  # the days of a file are the same on every machine
            yield con


@contextlib.contextmanager
def duckdb_errors(files: Files | None, action: str | None = None) -> Iterator[None]:
    """Turn errors of DuckDB into a FileError; the ``action`` is by default to read ``files`` or to run the query."""
    try:
        yield
    except (duckdb.Error, UnicodeError) as error:
        reason = " ".join(DUCKDB_ADVICE.sub("", str(error)).split())[:300].rstrip(".")
        if type(error).__name__ == "OutOfMemoryException":
            what = action or ("run the query" if files is None else f"read {files}")
            hint = "name fewer columns, read fewer rows, or read them in chunks, as {memory}"
            raise FileError(f"not enough memory to {what}: {reason}", hint=hint, settings={"memory": "2GB"}) from error
        if action is not None:
            hint = "is there enough disk space, and are the files unchanged?"
            raise FileError(f"cannot {action}: {reason}", hint=hint) from error
        if files is not None and files.format == "csv":
            reason = next(filter(None, (find_uneven_line(path, files.separator) for path in files.paths)), reason)
        what = "run the query" if files is None else f"read {files}"
        raise FileError(f"cannot {what}: {reason}", hint=HINTS["sql" if files is None else files.format]) from error
    except RuntimeError as error:
        if "interrupted" in str(error):  # DuckDB's error after Ctrl-C
            raise KeyboardInterrupt from None
        raise


def open_rows(
    con: Connection, paths: Any, sql: str | None, as_text: Sequence[str], *, names_only: bool = False, role: str = "text"
) -> SqlRows:
    """Return the rows of files or of the last statement of a query, with the names and types of their columns."""
    if paths is None and sql is None:
        raise ArgumentError("neither a file nor a query was given", hint="pass paths, sql or both")
    opened: list[SqlRows] = []
    if paths is not None:
        files = _complete(con, find_files(paths))
        with duckdb_errors(files):
            opened.append(describe_files(con, files, as_text, names_only=names_only and sql is None))
    if sql is not None:
        with duckdb_errors(None):
            sql.encode()  # as in quote
            statements = con.extract_statements(sql)
            if not statements:
                raise FileError("the query is empty", hint=HINTS["sql"])
            if opened:
                con.execute(f"CREATE TEMP VIEW data AS FROM {opened[0].source}")
            for statement in statements[:-1]:
                con.execute(statement)
            last = LAST_SEMICOLON.sub("", statements[-1].query)
            names, types = describe(con, last)
            find_names(names, (), "data")  # raises if a name appears twice
            opened.append(SqlRows(f"(\n{last}\n)", names, types))
    find_names(dict.fromkeys(name for rows in opened for name in rows.names), as_text, role)
    return opened[-1]


def _complete(con: Connection, files: Files) -> Files:
    """Return files that DuckDB can read, with the header of CSV: copied to the temporary directory of DuckDB if needed."""
    if files.is_remote:
        _load_httpfs(con, files)
        with duckdb_errors(files):
            paths: list[Path | RemoteFile] = [RemoteFile(name) for path in files.paths for name in _expand(con, str(path))]
        if not paths:
            raise FileError(f"no file matches {files}", hint="check the pattern, and the credentials of DuckDB")
        files = files._replace(paths=paths)
    if files.needs_copy:
        (directory,) = con.execute("SELECT current_setting('temp_directory')").fetchall()[0]
        files = copy_for_duckdb(files, directory)
    if files.format != "csv" or files.headers:
        return files
    headers = []
    for path in files.paths:
        # One column that no letter separates: the lines of the file.
        line = {"delim": "'\x01'", "quote": "''", "escape": "''", "comment": "''", "columns": "{'line': 'VARCHAR'}"}
        call = reader_call(files._replace(paths=[path], partitions=()), header="false", auto_detect="false", **line)
        with duckdb_errors(files):
            first = con.execute(f"SELECT line FROM {call} LIMIT 1").fetchall()
        headers.append(parse_header(path, [text or "" for (text,) in first]))
    return files._replace(separator=headers[0][0], headers=tuple(names for _, names in headers))


def _expand(con: Connection, url: str) -> list[str]:
    """Return the files of a URL, which may be a pattern."""
    if not set("*[") & set(url):
        return [url]
    return [name for (name,) in con.execute("SELECT file FROM glob(?)", [url]).fetchall()]


def _load_httpfs(con: Connection, files: Files) -> None:
    """Load DuckDB's extension for remote files; raise if it is not installed: nothing is downloaded unasked."""
    query = "SELECT installed FROM duckdb_extensions() WHERE extension_name = ?"
    if con.execute(query, [HTTPFS]).fetchall() != [(True,)]:
        raise FileError(
            f"cannot read {files}: DuckDB's extension httpfs, which reads remote files, is not installed",
            hint="download the file first, or install the extension once: python -c \"import duckdb; duckdb.sql('INSTALL "
            "httpfs')\"",
        )
    with duckdb_errors(files):
        con.execute(f"LOAD {HTTPFS}")


def describe(con: Connection, query: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names and types of the columns of a query."""
    described = con.execute(f"DESCRIBE\n{query}").fetchall()
    return tuple(row[0] for row in described), tuple(row[1] for row in described)


def describe_files(
    con: Connection, files: Files, as_text: Sequence[str], *, names_only: bool = False, convert_texts: bool = True
) -> SqlRows:
    """Return the rows of files, with column types found on all rows, since a late row may have another type or column."""
    options = {"parquet": {}, "csv": CSV | {"delim": quote(files.separator)}, "json": JSON}[files.format]
    sample = {"sample_size": "1" if names_only and files.format == "csv" else "-1"} if options else {}
    try:
        names, types = describe(con, f"FROM {reader_call(files._replace(partitions=()), **options, **sample)}")
    except duckdb.BinderException as error:
        if "Auto Type Candidate" not in str(error):
            raise
        options |= {"auto_type_candidates": "['BIGINT', 'DOUBLE', 'VARCHAR']"}  # of versions of DuckDB that know no others
        names, types = describe(con, f"FROM {reader_call(files._replace(partitions=()), **options, **sample)}")
        types = _keep_digits(con, SqlRows("", names, types, files))
    repeated = _find_repeated_names(con, files, names)
    if files.format == "parquet":
        return add_partitions(SqlRows(reader_call(files), names, types, files, repeated=repeated), as_text)
    kept = {*NUMERIC_TYPES.split(), "LIST", "STRUCT", "MAP", "UNION"} | ({"HUGEINT"} if files.format == "csv" else set())
    types = tuple(
        "VARCHAR" if name in as_text or _base_type(declared) not in kept else declared
        for name, declared in zip(names, types, strict=True)
    )
    listed = ", ".join(f"{quote(name)}: {quote(declared)}" for name, declared in zip(names, types, strict=True))
    if files.format == "json":
        source = reader_call(files, records="true", columns=f"{{{listed}}}")
    else:
        source = reader_call(files, **options, types=f"{{{listed}}}", sample_size="1")
    rows = add_partitions(SqlRows(source, names, types, files, repeated=repeated), as_text)
    return _convert_texts(con, rows, as_text) if convert_texts and not names_only else rows


def partition_sql(value: str) -> str:
    """Return the value of a partition column in one file, a text, as SQL."""
    return "NULL" if value == NULL_PARTITION else quote(value)


def csv_texts(con: Connection, files: Files) -> SqlRows:
    """Return the rows of CSV as texts, of which an empty one is missing, and nothing else."""
    options = {**CSV, "delim": quote(files.separator), "nullstr": "''", "all_varchar": "true", "sample_size": "1"}
    del options["auto_type_candidates"]
    names, types = describe(con, f"FROM {reader_call(files._replace(partitions=()), **options)}")
    return add_partitions(SqlRows(reader_call(files, **options), names, types, files), files.partitions)


def _keep_digits(con: Connection, rows: SqlRows) -> tuple[str, ...]:
    """Return the types of CSV, with VARCHAR for integers that do not fit in 64 bits: as DOUBLE they would be rounded."""
    assert rows.files is not None
    texts = csv_texts(con, rows.files)
    doubtful = [index for index, declared in enumerate(rows.types) if declared == "DOUBLE"]
    tests = [f"bool_or(regexp_full_match(trim(c{index}), '[+-]?\\d{{19,}}'))" for index in doubtful]
    answers = con.execute(f"SELECT {', '.join(tests)} FROM {texts.table}").fetchall()[0] if tests else ()
    large = {index for index, is_large in zip(doubtful, answers, strict=True) if is_large}
    return tuple("VARCHAR" if index in large else declared for index, declared in enumerate(rows.types))


def add_partitions(rows: SqlRows, as_text: Sequence[str] = ()) -> SqlRows:
    """Return rows of files with the columns that directories such as year=2026 stand for, after those of the files.

    Such a column holds integers or dates if all its values are, else texts. A column of the same name in the files is not
    read, as in DuckDB, Spark and Arrow.
    """
    files = rows.files
    if files is None or not files.partitions:
        return rows
    above = {name.lower() for path in files.paths for name, _ in path_partitions(path)}
    above -= {name.lower() for name in files.partitions}
    if conflict := next((name for name in rows.names if name.lower() in above), None):
        raise FileError(
            f"column {conflict!r} of {files} has the name of a directory above them", hint="rename the directory"
        )
    own = {name.lower() for name in files.partitions}
    kept = [(name, declared) for name, declared in zip(rows.names, rows.types, strict=True) if name.lower() not in own]
    listed = [quote(name, '"') for name, _ in kept]
    for name in files.partitions:
        texts = {files.partition_values(path)[name] for path in files.paths} - {NULL_PARTITION}
        kinds = (kind for kind, pattern in PARTITION_TYPES.items() if texts and all(map(pattern.fullmatch, texts)))
        declared = "VARCHAR" if name in as_text else next(kinds, "VARCHAR")
        kept.append((name, declared))
        column = quote(name, '"')
        listed.append(f"CAST(nullif({column}, {quote(NULL_PARTITION)}) AS {declared}) AS {column}")
    names, types = zip(*kept, strict=True)
    return rows._replace(source=f"(SELECT {', '.join(listed)} FROM {rows.source})", names=names, types=types)


def _convert_texts(con: Connection, rows: SqlRows, as_text: Sequence[str]) -> SqlRows:
    """Read texts of CSV and JSON as dates, and in CSV as booleans, if all of them are written so."""
    types = list(TEXT_TYPES) if rows.files and rows.files.format == "csv" else ["TIMESTAMP"]
    texts = [i for i, name in enumerate(rows.names) if rows.types[i] == "VARCHAR" and name not in as_text]
    likely = [(index, kind) for index in texts for kind in types]
    # The first rows exclude most columns, so that the others are rarely read. In the end, no values mean no conversion.
    for table, if_no_values in ((f"(FROM {rows.table} LIMIT 1000)", True), (rows.table, False)):
        tests = [f"bool_and({TEXT_TYPES[kind][0].format(f'c{i}')}) FILTER (c{i} IS NOT NULL)" for i, kind in likely]
        answers = con.execute(f"SELECT {', '.join(tests)} FROM {table}").fetchall()[0] if likely else ()
        likely = [
            pair for pair, passed in zip(likely, answers, strict=True) if (if_no_values if passed is None else passed)
        ]
    converted = dict(likely)
    columns = [TEXT_TYPES[converted[i]][1].format(f"c{i}") if i in converted else f"c{i}" for i in range(len(rows.names))]
    listed = ", ".join(f"{sql} AS {quote(name, chr(34))}" for sql, name in zip(columns, rows.names, strict=True))
    new_types = tuple(converted.get(index, declared) for index, declared in enumerate(rows.types))
    return rows._replace(source=f"(SELECT {listed} FROM {rows.table})", types=new_types)


def check_columns_everywhere(con: Connection, rows: SqlRows) -> None:
    """Raise if one of several files lacks a column that is read, since its values would look missing."""
    files = rows.files
    if files is None or len(files.paths) == 1 or files.format == "json":  # the records of JSON name what they have
        return
    for index, path in enumerate(files.paths):
        call = reader_call(files._replace(paths=[path], partitions=()))
        names = files.headers[index] if files.headers else describe(con, f"FROM {call}")[0]
        folded = {name.lower() for name in (*names, *files.partitions)}
        for name in rows.columns:
            if name.lower() not in folded:
                raise ColumnError(
                    f"file {display_name(path)!r} has no column {name!r}, which the others have",
                    hint="leave the file out, or the column",
                )


def _find_repeated_names(con: Connection, files: Files, names: tuple[str, ...]) -> frozenset[str]:
    """Return the names that differ only in case: DuckDB calls the second of "a" and "A" A_1; raise if they are equal."""
    folded = {fold_case(name) for name in names}
    doubtful = {name: stem for name in names if fold_case(stem := name.rpartition("_")[0]) in folded}
    if not doubtful:
        return frozenset()
    if files.format == "csv":
        own = {name for header in files.headers for name in header}
        new = {name: stem for name, stem in doubtful.items() if name not in own}
        stems = {fold_case(stem) for stem in new.values()}
        return frozenset({*new, *(name for name in names if fold_case(name) in stems)})
    keys = f"unnest(json_keys(json)) FROM read_json_objects({_quote_paths(files)}, format = 'auto')"
    keys = keys if files.format == "json" else f"name FROM parquet_schema({_quote_paths(files)})"
    own = {row[0] for row in con.execute(f"SELECT DISTINCT {keys}").fetchall()}
    repeated = set()
    for name, stem in doubtful.items():
        if name in own:
            continue
        same = {known for known in own if fold_case(known) == fold_case(stem)}
        if len(same) == 1:
            raise ColumnError(f"column name {stem!r} appears more than once in {files}", hint=HINTS["duplicate"])
        repeated |= {name, *(known for known in names if fold_case(known) == fold_case(stem))}
    return frozenset(repeated)


def list_columns(columns: Iterable[str], prefix: str) -> str:
    """Return SQL that selects expressions as columns called by a prefix and their number: "a AS c0, b AS c1"."""
    return ", ".join(f"{sql} AS {prefix}{index}" for index, sql in enumerate(columns))


def fetch(con: Connection, rows: SqlRows) -> dict[str, Any]:
    """Read the selected columns of all rows: arrays of values, and texts as `CodedColumn`, by name."""
    table, values, texts = rows.table, rows.values, rows.texts
    if texts and (rows.files is None or rows.files.format != "parquet"):
        # Texts take two passes: a query is run once, and CSV and JSON are parsed once. Parquet is faster to read twice.
        listed = list_columns([*values.values(), *texts.values()], "r")
        con.execute(f"CREATE TEMP TABLE trueup_rows AS SELECT {listed} FROM {table}")
        table, values = "trueup_rows", {name: f"r{index}" for index, name in enumerate(values)}
        texts = {name: f"r{index}" for index, name in enumerate(texts, len(values))}
    columns: dict[str, Any] = {}
    if values:
        arrays = con.execute(f"SELECT {list_columns(values.values(), 'r')} FROM {table}").fetchnumpy()
        columns |= zip(values, arrays.values(), strict=True)
    for start in range(0, len(texts), TEXTS_PER_QUERY):
        group = list(texts.items())[start : start + TEXTS_PER_QUERY]
        vocabularies = {}
        for index, (name, sql) in enumerate(group):
            vocabularies[name] = create_vocabulary(con, index, f"(SELECT DISTINCT {sql} AS word FROM {table})")
        listed = list_columns((sql for _, sql in group), "t")
        numbered = f"(SELECT {listed}, row_number() OVER () AS place FROM {table})"
        arrays = fetch_encoded(con, numbered, 0, len(group))
        columns |= {name: CodedColumn(arrays[f"t{i}"], levels) for i, (name, levels) in enumerate(vocabularies.items())}
    return columns


def create_vocabulary(con: Connection, index: int, source: str) -> tuple[str, ...]:
    """Create the table words<index>, with a code per distinct ``word`` of the table ``source``; return the sorted words."""
    # Casts to an ENUM took twice as long as a join with such a table, and eight times with a million levels.
    code = "CAST(row_number() OVER (ORDER BY word) - 1 AS INTEGER) AS code"
    con.execute(f"CREATE OR REPLACE TEMP TABLE words{index} AS SELECT word, {code} FROM {source} WHERE word IS NOT NULL")
    words = con.execute(f"SELECT word FROM words{index} ORDER BY code").fetchnumpy()["word"].tolist()
    levels = sort_levels(words)
    if levels != tuple(words):  # integers are sorted as numbers
        store_vocabulary(con, index, levels)
    return levels


def store_vocabulary(con: Connection, index: int, levels: Sequence[str]) -> None:
    """Create the table words<index> with the code of each of the given levels."""
    con.execute(f"CREATE OR REPLACE TEMP TABLE words{index} (word VARCHAR, code INTEGER)")
    known = [(word, code) for code, word in enumerate(levels) if word.encode(errors="ignore").decode() == word]  # Unicode
    if known:
        words, codes = zip(*known, strict=True)
        con.register("trueup_words", {"word": np.array(words, object), "code": np.array(codes, np.int32)})
        con.execute(f"INSERT INTO words{index} SELECT word, code FROM trueup_words")
        con.unregister("trueup_words")


def fetch_encoded(
    con: Connection, source: str, values: int, texts: int, *, unknown: int = -1, rows: int | None = None
) -> dict[str, Any]:
    """Read columns of values, r0, ..., and texts, t0, ..., in the order of ``place``; raise unless there are ``rows`` rows.

    Texts are read as codes in the tables words0, ...; -1 if they are missing, ``unknown`` if they are not in the table.
    """
    every = range(texts)
    code = "coalesce(words{0}.code, {1})"
    code = code if unknown == -1 else f"CASE WHEN t{{0}} IS NULL THEN -1 ELSE {code} END"
    codes = [f"{code.format(i, unknown)} AS t{i}" for i in every]
    joins = " ".join(f"LEFT JOIN words{i} ON words{i}.word = source.t{i}" for i in every)
    listed = ", ".join([*(f"r{i}" for i in range(values)), *codes, "place"])
    arrays: dict[str, Any] = con.execute(f"SELECT {listed} FROM {source} AS source {joins}").fetchnumpy()
    place = arrays.pop("place")
    if rows is not None and len(place) != rows:
        raise FileError(f"{len(place):,} of {rows:,} rows could be read", hint="were the files changed meanwhile?")
    order = slice(None) if (place[1:] > place[:-1]).all() else np.argsort(place)  # a join may reorder rows
    return {name: column[order] for name, column in arrays.items()}
