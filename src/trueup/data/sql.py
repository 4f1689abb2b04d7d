"""Parquet, CSV and JSON files, and SQL, into NumPy columns. The only importer of duckdb.

Rows come in the order of the file. Only local files are read, and DuckDB is kept from fetching anything.

Columns of bytes, lists, structures, times of day and intervals, and the row index that pandas writes into Parquet, are
left out; asking for one by name is an error, unless it is to be read as text. Files with a name twice, or twice but
for upper and lower case, are refused: SQL could not tell the columns apart.

In CSV and JSON a column has the type that all its values have, not just the first thousands: numbers; dates, if each is
written as 2024-01-31 or 2024-01-31 09:30:00 (a zone is dropped, the clock time kept); true and false in CSV; or else
texts. Times in Parquet and SQL that have a zone are given by the clock of UTC.
"""

# ruff: noqa: S608  Columns are called c0, r0, ... in SQL, and what a user or a file says goes through quote.

from __future__ import annotations

import contextlib
import glob
import re
import tempfile
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import duckdb
import numpy as np

from trueup.data.columns import CodedColumn, ColumnSource, RawColumn, encode_texts
from trueup.data.paths import HINTS, Files, find_files, is_zipped, uneven_line
from trueup.data.schema import sort_levels
from trueup.errors import ArgumentError, ColumnError, FileError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from duckdb import DuckDBPyConnection as Connection

    from trueup._types import AnyArray

# What follows these two is for `trueup.data.export`.

AT_ONCE = 8  # text columns coded by one query: 1 or 100 took twice the time

# How SQL reads a column of each type. A type that is not here is not read.
PLAIN = "BOOLEAN TINYINT SMALLINT INTEGER BIGINT UTINYINT USMALLINT UINTEGER UBIGINT FLOAT DOUBLE"
DATES = "DATE TIMESTAMP TIMESTAMP_S TIMESTAMP_MS TIMESTAMP_NS"
VALUES = dict.fromkeys(f"{PLAIN} {DATES}".split(), "{}") | {"TIMESTAMP WITH TIME ZONE": "CAST({} AS TIMESTAMP)"}
VALUES |= dict.fromkeys(("DECIMAL", "HUGEINT", "UHUGEINT", "BIGNUM", "VARINT"), "CAST({} AS DOUBLE)")
TEXTS = dict.fromkeys(("VARCHAR", "ENUM", "UUID", "NULL"), "CAST({} AS VARCHAR)")
TEXTS |= {"JSON": "{} ->> '$'"}  # a cast would keep the quotes of a text
# The statistics in a Parquet file pass over NaN, and DuckDB believes them: isnan is false, and NaN < 1 true, of a column
# whose statistics lie below 1. What is finite it looks up in the rows.
IS_NAN = "(NOT isfinite({0}) AND NOT isinf({0}))"
WHOLE = "CASE WHEN isfinite({0}) AND {0} = floor({0}) AND abs({0}) < 1e15 THEN CAST(CAST({0} AS BIGINT) AS VARCHAR) "
WHOLE += f"WHEN NOT {IS_NAN} THEN CAST({{0}} AS VARCHAR) END"  # as columns.format_number writes numbers
AS_TEXT = dict.fromkeys(("FLOAT", "DOUBLE"), WHOLE)

# What DuckDB would decide by looking at the data is decided here: left alone, it skips lines that begin with # or have
# too few fields, takes "no" for a boolean, and 01/02/2024 for whichever of the two dates it tries first.
CSV = {"header": "true", "skip": "0", "comment": "''", "quote": "'\"'", "escape": "'\"'"}
CSV |= {"nullstr": "['', 'NA', 'N/A', 'NaN', 'nan', 'null', 'NULL']"}
CSV |= {"auto_type_candidates": "['BIGINT', 'DOUBLE', 'VARCHAR']"}
JSON = {"records": "true", "map_inference_threshold": "-1", "field_appearance_threshold": "0"}

# What else a text of CSV or JSON may be: how to tell, and how to read it.
ISO = r"\d\d\d\d-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?( ?(Z|[+-]\d\d(:?\d\d)?))?)?"
TIME = r"TRY_CAST(regexp_replace({0}, '^(...........[0-9:.]+).*', '\1') AS TIMESTAMP)"
TRIALS = {"TIMESTAMP": (f"regexp_full_match({{0}}, '{ISO}') AND {TIME} IS NOT NULL", TIME)}
TRIALS |= {"BOOLEAN": ("lower({0}) IN ('true', 'false')", "lower({0}) = 'true'")}

LAST_SEMICOLON = re.compile(r";(?:[\s;]|--[^\n]*|/\*.*?\*/)*$", re.DOTALL)
NOT_THE_FACT = re.compile(  # in what DuckDB says: advice on its options, an excerpt of SQL, the class of the error
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
) -> dict[str, AnyArray | CodedColumn]:
    """Read files, or the result of a query, as a dict of columns that `trueup.data.frame.read` takes.

    Parameters
    ----------
    paths : path, pattern, or several
        Parquet (.parquet, .pq), CSV (.csv, .tsv, .txt) or JSON (.json, .jsonl, .ndjson); the last two also with .gz.
        A pattern such as "data/*.parquet" reads the files it matches by order of name. Several files go one below the
        other, with columns matched by name; each must have every column that is read (JSON records may leave some out).
        A path that exists is never taken for a pattern.
    sql : str, optional
        A query in DuckDB's SQL, run once; the files of ``paths`` are its table ``data``.
    columns : names, optional
        Read only these, in this order.
    text : names
        Read these as text whatever they look like: 01234 in CSV stays as it is. Where the file has types of its own,
        the text is that of the value.
    threads : int, optional
        By default one a core.

    Returns
    -------
    dict of str to ndarray or Coded
        Numbers, booleans and datetime64, as masked arrays where values are missing; texts as codes into sorted levels,
        -1 for missing. In CSV an empty field, NA, N/A, NaN, nan, null and NULL are missing, quoted or not; to keep the
        NA of Namibia, query the file: ``sql="FROM read_csv('f.csv', nullstr = '')"``.

    Examples
    --------
    >>> read_files(sql="SELECT * FROM (VALUES (0.2, 'BR'), (0.7, NULL)) AS scores(p, country)")
    {'p': array([0.2, 0.7]), 'country': Coded(codes=array([ 0, -1], dtype=int32), levels=('BR',))}
    """
    as_text = as_names(text)
    with connect(threads) as con:
        rows = open_rows(con, paths, sql, as_text)
        plain, texts = choose(rows, None if columns is None else as_names(columns), as_text)
        with duckdb_errors(rows.files):
            refuse_gaps(con, rows.files, [*plain, *texts])
            found = fetch(con, rows, plain, texts)
        return {name: found[name] for name in (rows.names if columns is None else as_names(columns)) if name in found}


def column_names(paths: Sequence[str | Path] | str | Path | None = None, sql: str | None = None) -> list[str]:
    """Name the columns that `read_files` reads, without reading rows (except in JSON, where rows name the columns).

    Examples
    --------
    >>> column_names(sql="SELECT 0.2 AS p, [1, 2] AS left_out, 'BR' AS country")
    ['p', 'country']
    """
    with connect(None) as con:
        rows = open_rows(con, paths, sql, (), names_only=True)
        plain, texts = choose(rows, None, ())
        return [name for name in rows.names if name in plain or name in texts]


class SqlRows(NamedTuple):
    """Rows to be read: the SQL that stands for them, and their columns, known to SQL as c0, c1, ..."""

    source: str
    names: tuple[str, ...]
    types: tuple[str, ...]
    files: Files | None = None

    @property
    def table(self) -> str:
        """Write the rows as SQL reads them."""
        return f"{self.source} AS rows({', '.join(f'c{at}' for at in range(len(self.names)))})"


def _kind(declared: str) -> str:
    return "LIST" if declared.endswith("]") else declared.split("(")[0].strip('"')


def as_names(names: Sequence[str] | str) -> tuple[str, ...]:
    """Take one name for a list of one."""
    return (names,) if isinstance(names, str) else tuple(names)


def quote(value: str, mark: str = "'") -> str:
    """Write a text, or with double marks a name, in SQL."""
    value.encode()  # a text that is no Unicode is refused here: DuckDB would call it a wrong argument
    return mark + value.replace(mark, mark * 2) + mark


def _listed_paths(files: Files) -> str:
    """Write paths in SQL: escaped, a * stands for itself; absolute, a name cannot begin with ~ or a scheme."""
    return f"[{', '.join(quote(glob.escape(str(path.absolute()))) for path in files.paths)}]"


def reader_call(files: Files, **options: str) -> str:
    """Write the SQL that reads files."""
    options |= {"hive_partitioning": "false"}  # no columns made of the names of folders
    options |= {"union_by_name": "true"} if len(files.paths) > 1 else {}
    options |= {"compression": "'gzip'"} if all(map(is_zipped, files.paths)) else {}  # else by name: .gz, not .GZ
    return f"read_{files.format}({_listed_paths(files)}, {', '.join(f'{key} = {told}' for key, told in options.items())})"


def find_names(known: Iterable[str], wanted: Sequence[str], role: str) -> tuple[str, ...]:
    """Find names among those that are there; say which is nearest where one is not."""
    return cast("tuple[str, ...]", ColumnSource(tuple(known), 0, lambda _: RawColumn("text")).find_all(wanted, role))


def choose(rows: SqlRows, columns: Sequence[str] | None, as_text: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Settle which columns are read, and by which SQL: those of values, and those of texts."""
    plain, texts = {}, {}
    wanted = None if columns is None else set(find_names(rows.names, columns, "data"))
    for at, (name, declared) in enumerate(zip(rows.names, rows.types, strict=True)):
        kind = _kind(declared)
        if re.fullmatch(r"__index_level_\d+__", name) if wanted is None else name not in wanted:
            continue
        if kind in TEXTS or name in as_text:
            texts[name] = (TEXTS | AS_TEXT).get(kind, TEXTS["VARCHAR"]).format(f"c{at}")
        elif kind in VALUES:
            plain[name] = VALUES[kind].format(f"c{at}")
        elif wanted is not None:
            raise ColumnError(
                f"column {name!r} has a type trueup does not read: {declared[:60]}",
                hint=f"numbers, booleans, texts and dates are read; leave it out, or pass text=[{name!r}]",
            )
    if not plain and not texts:
        raise ColumnError(f"no column to read among {', '.join(map(repr, rows.names[:12]))}")
    return plain, texts


@contextlib.contextmanager
def connect(threads: int | None, memory: int | None = None, spill: Path | None = None) -> Iterator[Connection]:
    """Open a connection that touches nothing but the files it is told to, and spills to a folder of its own."""
    if threads is not None and (isinstance(threads, bool) or not isinstance(threads, int) or threads < 1):
        raise ArgumentError(f"threads must be a whole number from 1; got {threads!r}")
    # Left alone, DuckDB spills beside the user's files, fetches what it lacks, and takes names in SQL for our variables.
    with tempfile.TemporaryDirectory(prefix="trueup-", dir=spill, ignore_cleanup_errors=True) as folder:
        config: dict[str, Any] = {"temp_directory": folder, "python_enable_replacements": "false"}
        config |= {} if memory is None else {"memory_limit": f"{memory}B"}
        config |= {"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"}
        with duckdb.connect(":memory:", config=config if threads is None else config | {"threads": threads}) as con:
            con.execute("SET enable_progress_bar = false")  # it would be written into the JSON on standard output
            with contextlib.suppress(duckdb.Error):  # a build without zones knows only UTC
                con.execute("SET TimeZone = 'UTC'")  # the days of a file are the same on every machine
            yield con


@contextlib.contextmanager
def duckdb_errors(files: Files | None, doing: str | None = None) -> Iterator[None]:
    """Turn what DuckDB raises into errors of ours."""
    try:
        yield
    except (duckdb.Error, UnicodeError) as error:
        fact = " ".join(NOT_THE_FACT.sub("", str(error)).split())[:300].rstrip(".")
        if doing is not None:
            raise FileError(f"cannot {doing}: {fact}", hint="is there room, and are its sources left alone?") from error
        if files is not None and files.format == "csv":
            fact = next(filter(None, (uneven_line(path, files.separator) for path in files.paths)), fact)
        what = "run the query" if files is None else f"read {files}"
        raise FileError(f"cannot {what}: {fact}", hint=HINTS["sql" if files is None else files.format]) from error
    except RuntimeError as error:
        if "interrupted" in str(error):  # what DuckDB makes of Ctrl-C
            raise KeyboardInterrupt from None
        raise


def open_rows(
    con: Connection, paths: Any, sql: str | None, as_text: Sequence[str], *, names_only: bool = False, role: str = "text"
) -> SqlRows:
    """Find the rows and the names and types of their columns."""
    if paths is None and sql is None:
        raise ArgumentError("neither a file nor a query was given", hint="pass paths, sql or both")
    found: list[SqlRows] = []
    if paths is not None:
        files = find_files(paths)
        with duckdb_errors(files):
            found.append(scan(con, files, as_text, brief=names_only and sql is None))
    if sql is not None:
        with duckdb_errors(None):
            found.append(_query(con, sql, *found))
    find_names(dict.fromkeys(name for rows in found for name in rows.names), as_text, role)
    return found[-1]


def describe(con: Connection, query: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Name the columns of a query and their types."""
    described = con.execute(f"DESCRIBE\n{query}").fetchall()
    return tuple(row[0] for row in described), tuple(row[1] for row in described)


def scan(con: Connection, files: Files, as_text: Sequence[str], *, brief: bool, settled: bool = True) -> SqlRows:
    """Settle the types of the columns of files, by all rows: a late one may be no number, or have another column."""
    options = {"parquet": {}, "csv": CSV | {"delim": quote(files.separator)}, "json": JSON}[files.format]
    sample = {"sample_size": "1" if brief and files.format == "csv" else "-1"} if options else {}
    names, types = describe(con, f"FROM {reader_call(files, **options, **sample)}")
    _refuse_renamed(con, files, names)
    if files.format == "parquet":
        return SqlRows(reader_call(files), names, types, files)
    kept = {*PLAIN.split(), "LIST", "STRUCT", "MAP", "UNION"}
    types = tuple(
        "VARCHAR" if name in as_text or _kind(declared) not in kept else declared
        for name, declared in zip(names, types, strict=True)
    )
    told = ", ".join(f"{quote(name)}: {quote(kind)}" for name, kind in zip(names, types, strict=True))
    if files.format == "json":
        source = reader_call(files, records="true", columns=f"{{{told}}}")
    else:
        source = reader_call(files, **options, types=f"{{{told}}}", sample_size="1")
    rows = SqlRows(source, names, types, files)
    return rows if brief or not settled else _settle(con, rows, as_text)


def _settle(con: Connection, rows: SqlRows, as_text: Sequence[str]) -> SqlRows:
    """Read texts of CSV and JSON as dates, and in CSV as booleans, where every one is written as one."""
    kinds = list(TRIALS) if rows.files and rows.files.format == "csv" else ["TIMESTAMP"]
    texts = [at for at, name in enumerate(rows.names) if rows.types[at] == "VARCHAR" and name not in as_text]
    likely = [(at, kind) for at in texts for kind in kinds]
    # The first rows rule most out, so that the others are seldom looked at. No values say nothing.
    for table, silence in ((f"(FROM {rows.table} LIMIT 1000)", True), (rows.table, False)):
        tests = [f"bool_and({TRIALS[kind][0].format(f'c{at}')}) FILTER (c{at} IS NOT NULL)" for at, kind in likely]
        answers = con.execute(f"SELECT {', '.join(tests)} FROM {table}").fetchall()[0] if likely else ()
        likely = [one for one, yes in zip(likely, answers, strict=True) if (silence if yes is None else yes)]
    meant = dict(likely)
    read = [TRIALS[meant[at]][1].format(f"c{at}") if at in meant else f"c{at}" for at in range(len(rows.names))]
    listed = ", ".join(f"{sql} AS {quote(name, chr(34))}" for sql, name in zip(read, rows.names, strict=True))
    types = tuple(meant.get(at, declared) for at, declared in enumerate(rows.types))
    return rows._replace(source=f"(SELECT {listed} FROM {rows.table})", types=types)


def refuse_gaps(con: Connection, files: Files | None, wanted: Sequence[str]) -> None:
    """Refuse files of which one lacks a column that is read: its rows would look as if the values were missing."""
    if files is None or len(files.paths) == 1 or files.format == "json":  # the rows of JSON name what they have
        return
    for at, path in enumerate(files.paths):
        one = files._replace(paths=[path])
        names = files.headers[at] if files.headers else describe(con, f"FROM {reader_call(one)}")[0]
        for name in wanted:
            if name.lower() not in {known.lower() for known in names}:
                raise ColumnError(
                    f"file {str(path)!r} has no column {name!r}, which the others have",
                    hint="leave the file out, or the column",
                )


def _refuse_renamed(con: Connection, files: Files, names: tuple[str, ...]) -> None:
    """Refuse a name that is there twice, or twice but for case: DuckDB calls the second a_1 and says nothing."""
    folded = {name.encode().lower() for name in names}  # bytes fold only ASCII, as DuckDB does
    doubtful = {name: cut for name in names if (cut := name.rpartition("_")[0]).encode().lower() in folded}
    if not doubtful or files.format == "csv":  # the headers of CSV have been looked at
        return
    keys = f"unnest(json_keys(json)) FROM read_json_objects({_listed_paths(files)}, format = 'auto')"
    keys = keys if files.format == "json" else f"name FROM parquet_schema({_listed_paths(files)})"
    own = {row[0] for row in con.execute(f"SELECT DISTINCT {keys}").fetchall()}
    for name, cut in doubtful.items():
        if name not in own:
            raise ColumnError(f"column name {cut!r} appears more than once in {files}", hint=HINTS["twice"])


def _query(con: Connection, sql: str, data: SqlRows | None = None) -> SqlRows:
    """Run all statements but the last, which gives the rows."""
    sql.encode()  # as in quote
    statements = con.extract_statements(sql)
    if not statements:
        raise FileError("the query is empty", hint=HINTS["sql"])
    if data is not None:
        con.execute(f"CREATE TEMP VIEW data AS FROM {data.source}")
    for statement in statements[:-1]:
        con.execute(statement)
    last = LAST_SEMICOLON.sub("", statements[-1].query)
    names, types = describe(con, last)
    find_names(names, (), "data")  # refuses a name that is there twice
    return SqlRows(f"(\n{last}\n)", names, types)


def _listed(columns: Iterable[str]) -> str:
    return ", ".join(f"{sql} AS r{at}" for at, sql in enumerate(columns))


def fetch(con: Connection, rows: SqlRows, plain: dict[str, str], texts: dict[str, str]) -> dict[str, Any]:
    """Read the columns that were chosen."""
    table = rows.table
    if texts and (rows.files is None or rows.files.format != "parquet"):
        # Texts take two passes: run a query once, and parse CSV and JSON once. Parquet is quicker to read twice.
        con.execute(f"CREATE TEMP TABLE trueup_rows AS SELECT {_listed([*plain.values(), *texts.values()])} FROM {table}")
        table, plain = "trueup_rows", {name: f"r{at}" for at, name in enumerate(plain)}
        texts = {name: f"r{at}" for at, name in enumerate(texts, len(plain))}
    found: dict[str, Any] = {}
    if plain:
        arrays = con.execute(f"SELECT {_listed(plain.values())} FROM {table}").fetchnumpy()
        found |= zip(plain, arrays.values(), strict=True)
    for start in range(0, len(texts), AT_ONCE):
        group = list(texts)[start : start + AT_ONCE]
        found |= zip(group, _code(con, table, [texts[name] for name in group]), strict=True)
    return found


def _code(con: Connection, table: str, columns: list[str]) -> Iterator[CodedColumn]:
    """Number the distinct texts of each column by code point, and join the numbers to the rows.

    Casts to an ENUM took twice as long as the join, and eight times with a million levels.
    """
    every = range(len(columns))
    for at in every:
        con.execute(
            f"CREATE OR REPLACE TEMP TABLE words{at} AS "
            "SELECT word, CAST(row_number() OVER (ORDER BY word) - 1 AS INTEGER) AS code "
            f"FROM (SELECT DISTINCT {columns[at]} AS word FROM {table}) WHERE word IS NOT NULL"
        )
    codes = ", ".join(f"coalesce(words{at}.code, -1) AS r{at}" for at in every)
    joins = " ".join(f"LEFT JOIN words{at} ON words{at}.word = numbered.r{at}" for at in every)
    numbered = f"(SELECT {_listed(columns)}, row_number() OVER () AS place FROM {table}) AS numbered"
    arrays = con.execute(f"SELECT {codes}, place FROM {numbered} {joins}").fetchnumpy()
    place = arrays["place"]
    order = slice(None) if (place[1:] > place[:-1]).all() else np.argsort(place)  # a join may mix the rows
    for at in every:
        words = con.execute(f"SELECT word FROM words{at} ORDER BY code").fetchnumpy()["word"].tolist()
        levels = sort_levels(words)  # whole numbers are sorted otherwise
        found = arrays[f"r{at}"][order]
        yield CodedColumn(found, levels) if levels == tuple(words) else encode_texts(found, words)
