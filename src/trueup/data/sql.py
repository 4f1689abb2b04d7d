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
import tempfile
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import duckdb
import numpy as np

from trueup._validate import check_integer
from trueup.data.clusters import IDENTIFIER_NAME
from trueup.data.columns import CodedColumn, ColumnSource, as_tuple
from trueup.data.folds import text_hash_sql
from trueup.data.scan import HINTS, Files, find_files, find_uneven_line, fold_case, is_gzipped
from trueup.data.table import sort_levels
from trueup.errors import ArgumentError, ColumnError, FileError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from duckdb import DuckDBPyConnection as Connection

    from trueup._types import AnyArray

TEXTS_PER_QUERY = 8  # text columns encoded by one query: 1 or 100 took twice the time

# The SQL that reads a column of each type. Other types are not read.
NUMERIC_TYPES = "BOOLEAN TINYINT SMALLINT INTEGER BIGINT UTINYINT USMALLINT UINTEGER UBIGINT FLOAT DOUBLE"
DATE_TYPES = "DATE TIMESTAMP TIMESTAMP_S TIMESTAMP_MS TIMESTAMP_NS"
VALUES = dict.fromkeys(f"{NUMERIC_TYPES} {DATE_TYPES}".split(), "{}")
VALUES |= {"TIMESTAMP WITH TIME ZONE": "CAST({} AS TIMESTAMP)"}
VALUES |= dict.fromkeys(("DECIMAL", "HUGEINT", "UHUGEINT", "BIGNUM", "VARINT"), "CAST({} AS DOUBLE)")
TEXTS = dict.fromkeys(("VARCHAR", "ENUM", "UUID", "NULL"), "CAST({} AS VARCHAR)")
TEXTS |= {"JSON": "{} ->> '$'"}  # a cast would keep the quotes of a text
# The statistics in a Parquet file ignore NaN, and DuckDB relies on them: isnan is false, and NaN < 1 true, for a column
# whose statistics lie below 1. For isfinite it reads the rows.
IS_NAN = "(NOT isfinite({0}) AND NOT isinf({0}))"
FLOAT_TEXT = "CASE WHEN isfinite({0}) AND {0} = floor({0}) AND abs({0}) < 1e15 THEN CAST(CAST({0} AS BIGINT) AS VARCHAR) "
FLOAT_TEXT += f"WHEN NOT {IS_NAN} THEN CAST({{0}} AS VARCHAR) END"  # as columns.format_number writes numbers
AS_TEXT = dict.fromkeys(("FLOAT", "DOUBLE"), FLOAT_TEXT)

# Options that DuckDB would otherwise guess from the data: it skips lines that begin with # or have too few fields, takes
# "no" for a boolean, and 01/02/2024 for the first of the two dates that it tries.
CSV = {"header": "true", "skip": "0", "comment": "''", "quote": "'\"'", "escape": "'\"'"}
CSV |= {"nullstr": "['', 'NA', 'N/A', 'NaN', 'nan', 'null', 'NULL']"}
CSV |= {"auto_type_candidates": "['BIGINT', 'DOUBLE', 'VARCHAR']"}
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
    paths: Sequence[str | Path] | str | Path | None = None,
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
        rows = select_columns(open_rows(con, paths, sql, as_text), chosen, as_text)
        more = identifier_columns(con, rows, rows.columns) if identifiers else {}
        with duckdb_errors(rows.files):
            check_columns_everywhere(con, rows)
            arrays = fetch(con, rows._replace(values={**rows.values, **more}))
        return {name: arrays[name] for name in (*(rows.names if chosen is None else chosen), *more) if name in arrays}


def column_names(paths: Sequence[str | Path] | str | Path | None = None, sql: str | None = None) -> list[str]:
    """Return the columns that `read_files` reads, without reading rows (except in JSON, where rows name the columns)."""
    with connect(None) as con:
        rows = select_columns(open_rows(con, paths, sql, (), names_only=True), None, ())
        return [name for name in rows.names if name in rows.columns]


class SqlRows(NamedTuple):
    """Rows to be read: their SQL, their columns, called c0, c1, ... in SQL, and the SQL of the columns to be read."""

    source: str
    names: tuple[str, ...]
    types: tuple[str, ...]
    files: Files | None = None
    values: Mapping[str, str] = MappingProxyType({})
    texts: Mapping[str, str] = MappingProxyType({})

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
    return f"[{', '.join(quote(glob.escape(str(path.absolute()))) for path in files.paths)}]"


def reader_call(files: Files, **options: str) -> str:
    """Return the SQL that reads files, with the options of DuckDB's reader."""
    options |= {"hive_partitioning": "false"}  # no columns made of the names of directories
    options |= {"union_by_name": "true"} if len(files.paths) > 1 else {}
    options |= {"compression": "'gzip'"} if all(map(is_gzipped, files.paths)) else {}  # by default .gz but not .GZ
    listed = ", ".join(f"{key} = {value}" for key, value in options.items())
    return f"read_{files.format}({_quote_paths(files)}, {listed})"


def find_names(known: Iterable[str], names: Sequence[str], role: str) -> tuple[str, ...]:
    """Return ``names``; raise if one appears twice, or is not ``known`` (the error then suggests the most similar name)."""
    return cast("tuple[str, ...]", ColumnSource.of_names(known).find_all(names, role))


def select_columns(rows: SqlRows, columns: Sequence[str] | None, as_text: Sequence[str]) -> SqlRows:
    """Return ``rows`` with the SQL of the columns to read (None: all readable ones), of values and of texts."""
    values, texts = {}, {}
    wanted = None if columns is None else set(find_names(rows.names, columns, "data"))
    for index, (name, declared) in enumerate(zip(rows.names, rows.types, strict=True)):
        if re.fullmatch(r"__index_level_\d+__", name) if wanted is None else name not in wanted:
            continue
        base, column = _base_type(declared), f"c{index}"
        if base in TEXTS or name in as_text:
            texts[name] = (TEXTS | AS_TEXT).get(base, TEXTS["VARCHAR"]).format(column)
        elif base in VALUES:
            values[name] = VALUES[base].format(column)
        elif wanted is not None:
            raise ColumnError(
                f"column {name!r} has a type that trueup does not read: {declared[:60]}",
                hint="numbers, booleans, texts and dates are read; leave it out, or pass {categorical}",
                settings={"categorical": [name]},
            )
    if not values and not texts:
        raise ColumnError(f"no column to read among {', '.join(map(repr, rows.names[:12]))}")
    return rows._replace(values=values, texts=texts)


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
    with tempfile.TemporaryDirectory(prefix="trueup-", dir=spill, ignore_cleanup_errors=True) as directory:
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
        files = find_files(paths)
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
    names, types = describe(con, f"FROM {reader_call(files, **options, **sample)}")
    _check_duplicate_names(con, files, names)
    if files.format == "parquet":
        return SqlRows(reader_call(files), names, types, files)
    kept = {*NUMERIC_TYPES.split(), "LIST", "STRUCT", "MAP", "UNION"}
    types = tuple(
        "VARCHAR" if name in as_text or _base_type(declared) not in kept else declared
        for name, declared in zip(names, types, strict=True)
    )
    listed = ", ".join(f"{quote(name)}: {quote(declared)}" for name, declared in zip(names, types, strict=True))
    if files.format == "json":
        source = reader_call(files, records="true", columns=f"{{{listed}}}")
    else:
        source = reader_call(files, **options, types=f"{{{listed}}}", sample_size="1")
    rows = SqlRows(source, names, types, files)
    return _convert_texts(con, rows, as_text) if convert_texts and not names_only else rows


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
        call = reader_call(files._replace(paths=[path]))
        names = files.headers[index] if files.headers else describe(con, f"FROM {call}")[0]
        folded = {name.lower() for name in names}
        for name in rows.columns:
            if name.lower() not in folded:
                raise ColumnError(
                    f"file {str(path)!r} has no column {name!r}, which the others have",
                    hint="leave the file out, or the column",
                )


def _check_duplicate_names(con: Connection, files: Files, names: tuple[str, ...]) -> None:
    """Raise if a name such as "a" appears twice, ignoring case, since DuckDB silently calls the second a_1."""
    folded = {fold_case(name) for name in names}
    doubtful = {name: stem for name in names if fold_case(stem := name.rpartition("_")[0]) in folded}
    if not doubtful or files.format == "csv":  # the headers of CSV have been checked
        return
    keys = f"unnest(json_keys(json)) FROM read_json_objects({_quote_paths(files)}, format = 'auto')"
    keys = keys if files.format == "json" else f"name FROM parquet_schema({_quote_paths(files)})"
    own = {row[0] for row in con.execute(f"SELECT DISTINCT {keys}").fetchall()}
    for name, stem in doubtful.items():
        if name not in own:
            raise ColumnError(f"column name {stem!r} appears more than once in {files}", hint=HINTS["duplicate"])


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
