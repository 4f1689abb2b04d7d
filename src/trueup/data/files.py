"""Parquet, CSV and JSON files, and SQL, into NumPy columns. The only importer of duckdb.

Rows come in the order of the file. Only local files are read, and DuckDB is kept from fetching anything.

Columns of bytes, lists, structures, times of day and intervals, and the row index that pandas writes into Parquet, are
left out; asking for one by name is an error, unless it is to be read as text.

In CSV and JSON a column has the type that all its values have, not just the first thousands: numbers; dates, if each is
written as 2024-01-31 or 2024-01-31 09:30:00 (a zone is dropped, the clock time kept); true and false in CSV; or else
texts. Times in Parquet and SQL that have a zone are given by the clock of UTC.
"""

# ruff: noqa: S608  Columns are called c0, r0, ... in SQL, and what a user or a file says goes through _quote.

from __future__ import annotations

import contextlib
import csv
import difflib
import glob
import gzip
import os
import re
import tempfile
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

import duckdb
import numpy as np

from trueup.data.columns import Coded, Raw, merge_texts
from trueup.data.schema import sort_levels
from trueup.data.sources import Source
from trueup.errors import ArgumentError, ColumnError, FileError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from duckdb import DuckDBPyConnection as Connection
    from numpy.typing import NDArray

__all__ = ["column_names", "read_files"]

FORMATS = {".parquet": "parquet", ".pq": "parquet", ".csv": "csv", ".tsv": "csv", ".txt": "csv"}
FORMATS |= {".json": "json", ".jsonl": "json", ".ndjson": "json"}
QUOTE = '"'
SEPARATORS = (",", "\t", ";", "|")
LONGEST_LINE = 2_000_000  # characters: a file without line ends must not be read whole to find its header
AT_ONCE = 8  # text columns coded by one query: 1 or 100 took twice the time

NUMBERS = {"TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT", "FLOAT", "DOUBLE"}
DATES = {"DATE", "TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS"}
WIDE_NUMBERS = {"DECIMAL", "HUGEINT", "UHUGEINT", "BIGNUM", "VARINT"}
TEXTS = {"VARCHAR", "ENUM", "UUID", "NULL"}
NESTED = {"LIST", "STRUCT", "MAP", "UNION"}

# What DuckDB would decide by looking at the data is decided here: left alone, it skips lines that begin with # or have
# too few fields, takes "no" for a boolean, and 01/02/2024 for whichever of the two dates it tries first.
CSV_OPTIONS = {"header": "true", "skip": "0", "comment": "''", "quote": "'\"'", "escape": "'\"'"}
CSV_OPTIONS |= {"nullstr": "['', 'NA', 'N/A', 'NaN', 'nan', 'null', 'NULL']"}
CSV_OPTIONS |= {"auto_type_candidates": "['BIGINT', 'DOUBLE', 'VARCHAR']"}
JSON_OPTIONS = {"records": "true", "map_inference_threshold": "-1", "field_appearance_threshold": "0"}

# What else a text of CSV or JSON may be: how to tell, and how to read it. RE2 and casts do the work; the zone is cut off.
ISO_TIME = r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?( ?(Z|[+-]\d\d(:?\d\d)?))?)?"
TIME = r"TRY_CAST(regexp_replace({0}, '^(.{{11}}[0-9:.]+).*', '\1') AS TIMESTAMP)"
MEANINGS = {
    "TIMESTAMP": (f"regexp_full_match({{0}}, '{ISO_TIME.replace('{4}', '{{4}}')}') AND {TIME} IS NOT NULL", TIME),
    "BOOLEAN": ("lower({0}) IN ('true', 'false')", "lower({0}) = 'true'"),
}

PANDAS_INDEX = re.compile(r"__index_level_\d+__")
LAST_SEMICOLON = re.compile(r";(?:[\s;]|--[^\n]*|/\*.*?\*/)*$", re.DOTALL)
NOT_THE_FACT = re.compile(  # in what DuckDB says: advice on its options, an excerpt of SQL, the class of the error
    r"\n\s*(?:LINE \d|Possible|Try |Please |The search space|This can happen).*| Try (?:setting|auto).*"
    r"|^[A-Z]\w+(?: [A-Z]\w+)* Error: |Original Line:[^\n]*\n",
    re.DOTALL,
)
HINTS = {
    "parquet": "is it a Parquet file, and whole? write or copy it again",
    "csv": 'it must be UTF-8 text, with as many fields on every line as in the header, and quoted by "',
    "json": "it must hold records, {...} with the names of the columns, as one array or one a line",
    "sql": "DuckDB runs the query: name a file in quotes, as FROM 'f.parquet'; the files of paths are the table data",
}


def read_files(
    paths: Sequence[str | Path] | str | Path | None = None,
    *,
    sql: str | None = None,
    columns: Sequence[str] | None = None,
    text: Sequence[str] = (),
    threads: int | None = None,
) -> dict[str, NDArray[Any] | Coded]:
    """Read files, or the result of a query, as a dict of columns that `trueup.data.intake.read` takes.

    Parameters
    ----------
    paths : path, pattern, or several
        Parquet (.parquet, .pq), CSV (.csv, .tsv, .txt) or JSON (.json, .jsonl, .ndjson); the last two also with .gz.
        A pattern such as "data/*.parquet" reads the files it matches by order of name. Several files go one below the
        other, with columns matched by name. A path that exists is never taken for a pattern.
    sql : str, optional
        A query in DuckDB's SQL, run once; the files of ``paths`` are its table ``data``.
    columns : names, optional
        Read only these, in this order.
    text : names
        Read these as text whatever they look like: 01234 in CSV stays as it is. In formats with types of their own the
        text is that of the value.
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
    as_text = _several(text)
    with _connect(threads) as con:
        rows = _open(con, paths, sql, as_text)
        chosen = rows.choose(None if columns is None else _several(columns), as_text)
        with _telling(rows.files):
            return _fetch(con, rows, chosen)


def column_names(paths: Sequence[str | Path] | str | Path | None = None, sql: str | None = None) -> list[str]:
    """Name the columns that `read_files` reads, without reading rows (except in JSON, where rows name the columns).

    Examples
    --------
    >>> column_names(sql="SELECT 0.2 AS p, [1, 2] AS left_out, 'BR' AS country")
    ['p', 'country']
    """
    with _connect(None) as con:
        return [column.name for column in _open(con, paths, sql, (), names_only=True).choose(None, ())]


@dataclass(frozen=True)
class _Column:
    name: str
    sql: str
    is_text: bool = False


@dataclass(frozen=True)
class _Rows:
    """Rows to be read: the SQL that stands for them, and their columns, known to SQL as c0, c1, ..."""

    source: str
    names: tuple[str, ...]
    types: tuple[str, ...]
    files: _Files | None = None

    @property
    def table(self) -> str:
        return f"{self.source} AS rows({', '.join(f'c{at}' for at in range(len(self.names)))})"

    def choose(self, columns: Sequence[str] | None, as_text: Sequence[str]) -> list[_Column]:
        """Settle which columns are read, and how."""
        chosen, places = [], {name: at for at, name in enumerate(self.names)}
        for name in self.names if columns is None else _find_names(self.names, columns, "data"):
            at = places[name]
            column = _column(name, f"c{at}", _kind(self.types[at]), as_text=name in as_text)
            if column is None and columns is not None:
                raise ColumnError(
                    f"column {name!r} has a type trueup does not read: {self.types[at][:60]}",
                    hint=f"numbers, booleans, texts and dates are read; leave it out, or pass text=[{name!r}]",
                )
            if column is not None and (columns is not None or not PANDAS_INDEX.fullmatch(name)):
                chosen.append(column)
        if not chosen:
            raise ColumnError(f"no column to read among {', '.join(map(repr, self.names[:12]))}")
        return chosen


def _column(name: str, sql: str, kind: str, *, as_text: bool) -> _Column | None:
    if kind == "JSON":
        return _Column(name, f"{sql} ->> '$'", is_text=True)  # a cast would keep the quotes of a text
    if kind in TEXTS or as_text:
        return _Column(name, f"CAST({sql} AS VARCHAR)", is_text=True)
    if kind in WIDE_NUMBERS or kind == "TIMESTAMP WITH TIME ZONE":
        return _Column(name, f"CAST({sql} AS {'DOUBLE' if kind in WIDE_NUMBERS else 'TIMESTAMP'})")
    return _Column(name, sql) if kind in NUMBERS | DATES | {"BOOLEAN"} else None


def _kind(declared: str) -> str:
    return "LIST" if declared.endswith("]") else declared.split("(")[0].strip('"')


def _several(names: Sequence[str] | str) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _quote(value: str) -> str:
    value.encode()  # DuckDB has no word for a text that is no Unicode
    return "'" + value.replace("'", "''") + "'"


def _sql_list(paths: Iterable[Path]) -> str:
    """Write paths in SQL: escaped, a * stands for itself; absolute, a name cannot begin with ~ or a scheme."""
    return "[" + ", ".join(_quote(glob.escape(str(path.absolute()))) for path in paths) + "]"


def _sql_call(files: _Files, **options: str) -> str:
    """Write the SQL that reads files."""
    options |= {"hive_partitioning": "false"}  # no columns made of the names of folders
    if len(files.paths) > 1:
        options["union_by_name"] = "true"
    if files.format != "parquet":
        zipped = {_is_zipped(path) for path in files.paths}
        options["compression"] = "'auto'" if len(zipped) > 1 else "'gzip'" if True in zipped else "'none'"
    told = ", ".join(f"{option} = {value}" for option, value in options.items())
    return f"read_{files.format}({_sql_list(files.paths)}, {told})"


def _find_names(known: Iterable[str], wanted: Sequence[str], role: str) -> tuple[str, ...]:
    return cast("tuple[str, ...]", Source(tuple(known), 0, lambda _: Raw("text")).find_all(wanted, role))


@contextlib.contextmanager
def _connect(threads: int | None) -> Iterator[Connection]:
    if threads is not None and (isinstance(threads, bool) or not isinstance(threads, int) or threads < 1):
        raise ArgumentError(f"threads must be a whole number from 1; got {threads!r}")
    # Left alone, DuckDB spills beside the user's files, fetches what it lacks, and takes names in SQL for our variables.
    with tempfile.TemporaryDirectory(prefix="trueup-", ignore_cleanup_errors=True) as spill:
        config: dict[str, Any] = {"temp_directory": spill, "python_enable_replacements": "false"}
        config |= {"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"}
        with duckdb.connect(":memory:", config=config if threads is None else config | {"threads": threads}) as con:
            with contextlib.suppress(duckdb.Error):  # a build without zones knows only UTC
                con.execute("SET TimeZone = 'UTC'")  # the days of a file are the same on every machine
            yield con


@contextlib.contextmanager
def _telling(files: _Files | None) -> Iterator[None]:
    """Turn what DuckDB raises into errors of ours."""
    try:
        yield
    except (duckdb.Error, UnicodeError) as error:
        fact = " ".join(NOT_THE_FACT.sub("", str(error)).split())[:300].rstrip(".")
        if files is not None and files.format == "csv":
            fact = next(filter(None, (_uneven_line(path, files.separator) for path in files.paths)), fact)
        what = "run the query" if files is None else f"read {files}"
        raise FileError(f"cannot {what}: {fact}", hint=HINTS["sql" if files is None else files.format]) from error
    except RuntimeError as error:
        if "interrupted" in str(error):  # what DuckDB makes of Ctrl-C
            raise KeyboardInterrupt from None
        raise


def _open(con: Connection, paths: Any, sql: str | None, as_text: Sequence[str], *, names_only: bool = False) -> _Rows:
    """Find the rows and the names and types of their columns."""
    if paths is None and sql is None:
        raise ArgumentError("neither a file nor a query was given", hint="pass paths, sql or both")
    found: list[_Rows] = []
    if paths is not None:
        files = _find(paths)
        with _telling(files):
            # All rows settle the types: a later one may be the one that is no number, or in JSON has another column.
            brief = names_only and sql is None and files.format == "csv"
            found.append(_scan(con, files, as_text, sample="1" if brief else "-1"))
    if sql is not None:
        with _telling(None):
            found.append(_query(con, sql, *found))
    _find_names(dict.fromkeys(name for rows in found for name in rows.names), as_text, "text")
    return found[-1]


def _describe(con: Connection, query: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    described = con.execute(f"DESCRIBE\n{query}").fetchall()
    return tuple(row[0] for row in described), tuple(row[1] for row in described)


def _scan(con: Connection, files: _Files, as_text: Sequence[str], sample: str) -> _Rows:
    """Settle the types of the columns of files, so that they are looked for once."""
    options = {"csv": CSV_OPTIONS | {"delim": _quote(files.separator)}, "json": JSON_OPTIONS}.get(files.format, {})
    names, types = _describe(con, f"FROM {_sql_call(files, **options, **({'sample_size': sample} if options else {}))}")
    _refuse_renamed(con, files, names)
    if files.format == "parquet":
        return _Rows(_sql_call(files), names, types, files)
    kept = NUMBERS | NESTED | {"BOOLEAN"}
    types = tuple(
        declared if _kind(declared) in kept and name not in as_text else "VARCHAR"
        for name, declared in zip(names, types, strict=True)
    )
    listed = ", ".join(f"{_quote(name)}: {_quote(kind)}" for name, kind in zip(names, types, strict=True))
    options = options | {"sample_size": "1", "types": f"{{{listed}}}"}
    if files.format == "json":
        options = {"records": "true", "columns": f"{{{listed}}}"}
    rows = _Rows(_sql_call(files, **options), names, types, files)
    return rows if sample == "1" else _settle(con, rows, as_text)


def _settle(con: Connection, rows: _Rows, as_text: Sequence[str]) -> _Rows:
    """Read texts of CSV and JSON as dates, and in CSV as booleans, where every one is written as one."""
    kinds = list(MEANINGS) if rows.files is not None and rows.files.format == "csv" else ["TIMESTAMP"]
    texts = [at for at, name in enumerate(rows.names) if rows.types[at] == "VARCHAR" and name not in as_text]
    open_ones = [(at, kind) for at in texts for kind in kinds]
    # The first rows rule out most, so that the rest of the file is seldom looked at.
    for table, unknown in ((f"(FROM {rows.table} LIMIT 1000)", True), (rows.table, False)):
        if open_ones:
            tests = ((f"c{at}", MEANINGS[kind][0].format(f"c{at}")) for at, kind in open_ones)
            asked = ", ".join(f"bool_and({test}) FILTER ({column} IS NOT NULL)" for column, test in tests)
            answers = con.execute(f"SELECT {asked} FROM {table}").fetchall()[0]
            open_ones = [one for one, yes in zip(open_ones, answers, strict=True) if (unknown if yes is None else yes)]
    meant = dict(open_ones)
    read = [MEANINGS[meant[at]][1].format(f"c{at}") if at in meant else f"c{at}" for at in range(len(rows.names))]
    listed = ", ".join(f'{sql} AS "{name.replace(QUOTE, QUOTE * 2)}"' for sql, name in zip(read, rows.names, strict=True))
    types = tuple(meant.get(at, declared) for at, declared in enumerate(rows.types))
    return replace(rows, source=f"(SELECT {listed} FROM {rows.table})", types=types) if meant else rows


def _refuse_renamed(con: Connection, files: _Files, names: tuple[str, ...]) -> None:
    """Refuse a name that is there twice, or twice but for case: DuckDB calls the second a_1 and says nothing."""
    folded = {name.encode().lower() for name in names}  # bytes fold only ASCII, as DuckDB does
    cuts = [(name, name.rpartition("_")[0]) for name in names]
    doubtful = {name: cut for name, cut in cuts if cut.encode().lower() in folded}
    if not doubtful:
        return
    own = set(files.headers)
    if files.format != "csv":
        keys = f"unnest(json_keys(json)) FROM read_json_objects({_sql_list(files.paths)})"
        asked = keys if files.format == "json" else f"name FROM parquet_schema({_sql_list(files.paths)})"
        own = {row[0] for row in con.execute(f"SELECT DISTINCT {asked}").fetchall()}
    for name, cut in doubtful.items():
        if name not in own:
            raise ColumnError(
                f"column name {cut!r} appears more than once in {files}",
                hint="rename one; upper and lower case are one name",
            )


def _query(con: Connection, sql: str, data: _Rows | None = None) -> _Rows:
    """Run all statements but the last, which gives the rows."""
    sql.encode()  # as in _quote
    statements = con.extract_statements(sql)
    if not statements:
        raise FileError("the query is empty", hint=HINTS["sql"])
    if data is not None:
        con.execute(f"CREATE TEMP VIEW data AS FROM {data.source}")
    for statement in statements[:-1]:
        con.execute(statement)
    last = LAST_SEMICOLON.sub("", statements[-1].query)
    names, types = _describe(con, last)
    _find_names(names, (), "data")  # refuses a name that is there twice
    return _Rows(f"(\n{last}\n)", names, types)


def _fetch(con: Connection, rows: _Rows, columns: list[_Column]) -> dict[str, NDArray[Any] | Coded]:
    table = rows.table
    if any(column.is_text for column in columns) and (rows.files is None or rows.files.format != "parquet"):
        # Texts take two passes: run a query once, and parse CSV and JSON once. Parquet is quicker to read twice.
        con.execute(f"CREATE TEMP TABLE trueup_rows AS SELECT {_listed(columns)} FROM {table}")
        table, columns = "trueup_rows", [replace(column, sql=f"r{at}") for at, column in enumerate(columns)]
    plain, texts = ([column for column in columns if column.is_text == wanted] for wanted in (False, True))
    found: dict[str, Any] = {}
    if plain:
        arrays = con.execute(f"SELECT {_listed(plain)} FROM {table}").fetchnumpy()
        found = {column.name: arrays[f"r{at}"] for at, column in enumerate(plain)}
    for start in range(0, len(texts), AT_ONCE):
        group = texts[start : start + AT_ONCE]
        found |= zip([column.name for column in group], _code(con, table, group), strict=True)
    return {column.name: found[column.name] for column in columns}


def _listed(columns: Iterable[_Column]) -> str:
    return ", ".join(f"{column.sql} AS r{at}" for at, column in enumerate(columns))


def _code(con: Connection, table: str, columns: list[_Column]) -> Iterator[Coded]:
    """Number the distinct texts of each column by code point, and join the numbers to the rows.

    Casts to an ENUM took twice as long as the join, and eight times with a million levels.
    """
    every = range(len(columns))
    for at, column in enumerate(columns):
        con.execute(
            f"CREATE OR REPLACE TEMP TABLE words{at} AS "
            "SELECT word, CAST(row_number() OVER (ORDER BY word) - 1 AS INTEGER) AS code "
            f"FROM (SELECT DISTINCT {column.sql} AS word FROM {table}) WHERE word IS NOT NULL"
        )
    codes = ", ".join(f"coalesce(words{at}.code, -1) AS r{at}" for at in every)
    joins = " ".join(f"LEFT JOIN words{at} ON words{at}.word = numbered.r{at}" for at in every)
    numbered = f"(SELECT {_listed(columns)}, row_number() OVER () AS place FROM {table}) AS numbered"
    arrays = con.execute(f"SELECT {codes}, place FROM {numbered} {joins}").fetchnumpy()
    place = arrays["place"]
    order = None if (place[1:] > place[:-1]).all() else np.argsort(place)  # a join may mix the rows
    for at in every:
        words = con.execute(f"SELECT word FROM words{at} ORDER BY code").fetchnumpy()["word"].tolist()
        found = arrays[f"r{at}"] if order is None else arrays[f"r{at}"][order]
        levels = sort_levels(words)  # whole numbers are sorted otherwise
        yield Coded(found, levels) if levels == tuple(words) else merge_texts(found, words)


# Finding files: nothing from here on knows DuckDB.


@dataclass(frozen=True)
class _Files:
    """Files of one format; CSV files have one separator, and the names of their headers."""

    paths: tuple[Path, ...]
    format: str
    separator: str = ""
    headers: tuple[str, ...] = ()

    def __str__(self) -> str:
        first = repr(str(self.paths[0]))
        return first if len(self.paths) == 1 else f"{len(self.paths)} files ({first}, ...)"


def _find(paths: Any) -> _Files:
    """Find the files that are named, their format, and the header of CSV."""
    given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    found = [path for one in given for path in _locate(one)]
    if not found:
        raise ArgumentError("the list of files is empty", hint="name at least one")
    formats = {path.absolute(): _format(path) for path in found}
    if len(formats) < len(found):
        twice = next(path for path in found if found.count(path) > 1)
        raise FileError(f"file {str(twice)!r} is named twice", hint="its rows would count twice: name it once")
    if len(set(formats.values())) > 1:
        raise FileError(
            f"files of several formats cannot be read together: {', '.join(sorted(set(formats.values())))}",
            hint="read them one by one, or join them in sql",
        )
    if formats[found[0].absolute()] != "csv":
        return _Files(tuple(found), formats[found[0].absolute()])
    return _Files(tuple(found), "csv", *_headers(found))


def _locate(given: Any) -> list[Path]:
    """Find the file of a path, or the files of a pattern."""
    if not isinstance(given, (str, os.PathLike)):
        raise ArgumentError(f"a file is named by a text or a Path; got {given!r}")
    named = str(given)
    try:
        path = next((path for path in (Path(given), Path(os.path.expanduser(given))) if path.exists()), None)  # noqa: PTH111
        if path is None and re.match(r"[a-zA-Z][\w+.-]+:/", named):
            raise FileError(f"trueup reads local files only; got {named!r}", hint="download it first")
        if path is None and set("*?[") & set(named):
            matches = [Path(match) for match in sorted(glob.glob(named, recursive=True))]  # noqa: PTH207  takes roots
            if not any(match.is_file() for match in matches):
                raise FileError(f"no file matches {named!r}", hint=f"looked from {str(Path.cwd())!r}")
            return [_readable(match) for match in matches if match.is_file()]
        return [_readable(path) if path is not None else _missing(Path(given))]
    except OSError as error:
        raise FileError(f"cannot read {named!r}: {error.strerror}", hint="check the permissions on it") from error


def _readable(path: Path) -> Path:
    """Refuse what is no file, has nothing in it, or may not be opened."""
    shown = repr(str(path))
    if path.is_dir():
        inside = sorted({child.suffix for child in path.iterdir()} & set(FORMATS))
        pattern = str(path / f"*{inside[0] if inside else '.parquet'}")
        raise FileError(f"{shown} is a folder", hint=f"name its files, as {pattern!r}")
    if not path.is_file():
        raise FileError(f"{shown} is not a file on disk", hint="write its contents to a file first")
    with path.open("rb") as handle:
        if not handle.read(1):
            raise FileError(f"file {shown} is empty", hint="was it written to the end?")
    return path


def _missing(path: Path) -> Path:
    """Say that there is no such file, and which one comes nearest."""
    folder = path.parent
    near = difflib.get_close_matches(
        path.name, [child.name for child in folder.iterdir()] if folder.is_dir() else [], 1, 0.5
    )
    hint = f"did you mean {str(folder / near[0])!r}?" if near else f"looked in {str(folder.absolute())!r}"
    raise FileError(f"no file {str(path)!r}", hint=hint if folder.is_dir() else f"there is no folder {str(folder)!r}")


def _is_zipped(path: Path) -> bool:
    return path.suffix.lower() == ".gz"


def _format(path: Path) -> str:
    found = FORMATS.get(Path(path.name.lower().removesuffix(".gz")).suffix)
    if found is None or (found == "parquet" and _is_zipped(path)):
        raise FileError(
            f"cannot tell the format of {str(path)!r} by its name",
            hint=f"it must end in {', '.join(FORMATS)}; CSV and JSON also in .gz after that",
        )
    return found


def _headers(paths: list[Path]) -> tuple[str, tuple[str, ...]]:
    """Find the separator of CSV files and the names of their columns."""
    separators, names = set(), []
    for path in paths:
        tabs = path.name.lower().removesuffix(".gz").endswith(".tsv")
        separator = max("\t" if tabs else SEPARATORS, key=lambda one: len(_header(path, one)))
        header = _header(path, separator)
        if not any(header):
            raise FileError(f"the first line of {str(path)!r} is blank", hint="it must name the columns")
        names += [name or f"column{at}" for at, name in enumerate(header)]  # as DuckDB names what has no name
        separators |= {separator} if len(header) > 1 or len(paths) == 1 else set()
    if len(separators) > 1:
        listed = " and ".join(repr(one) for one in sorted(separators))
        raise FileError(f"the fields of these files are separated by {listed}", hint="read them one by one")
    return next(iter(separators), ","), tuple(names)


@contextlib.contextmanager
def _lines(path: Path) -> Iterator[TextIO]:
    """Open CSV as text, and say so if it is none."""
    try:
        opened = gzip.open if _is_zipped(path) else open
        with opened(path, "rt", encoding="utf-8-sig", newline="") as handle:
            yield cast("TextIO", handle)
    except UnicodeDecodeError as error:
        raise FileError(f"cannot read {str(path)!r}: it is not UTF-8 text", hint="save it again as UTF-8") from error
    except (csv.Error, EOFError, OSError, zlib.error) as error:
        raise FileError(f"cannot read {str(path)!r}: {error}", hint=HINTS["csv"]) from error


def _header(path: Path, separator: str) -> list[str]:
    with _lines(path) as handle:
        pieces = iter(lambda: handle.readline(LONGEST_LINE), "")
        return [name.strip() for name in next(csv.reader(pieces, delimiter=separator), [])]


def _uneven_line(path: Path, separator: str) -> str | None:
    """Find the first line of CSV with more or fewer fields than the header."""
    with _lines(path) as handle:
        reader, width, line = csv.reader(handle, delimiter=separator), 0, 1
        for fields in reader:
            width = width or len(fields)
            if fields and len(fields) != width:
                return f"line {line} has {len(fields)} field{'s' * (len(fields) > 1)} and the header has {width}"
            line = reader.line_num + 1
    return None
