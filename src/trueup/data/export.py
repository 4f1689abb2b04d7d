"""Files, or the result of a query, written again with columns added: Parquet, CSV or JSON.

What the file had stays as it was. Parquet keeps its types. CSV written as CSV, and JSON as JSON, keep every value as it is
written there; otherwise columns of CSV have the types that `trueup.data.sql` finds, but for numbers that would lose
digits (postal codes with leading zeros, long identifiers), which stay texts.

Rows may come in portions, for files that are larger than memory. The new columns then wait in a table of DuckDB, which
writes to its folder what does not fit, until all of them are put beside the rows in one pass: 8 bytes a row and column.
"""

# ruff: noqa: S608  Columns are called c0, n0, ... in SQL, and what a user or a file says goes through quote.

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.data.chunks import ChunkSettings
from trueup.data.paths import FORMATS, is_zipped
from trueup.data.sql import (
    CSV,
    SqlRows,
    choose,
    describe,
    duckdb_errors,
    fetch,
    find_names,
    open_rows,
    quote,
    reader_call,
    refuse_gaps,
    scan,
)
from trueup.errors import ColumnError, FileError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from trueup._types import AnyArray, FloatArray, IntArray
    from trueup.data.paths import Files

    Make = Callable[[dict[str, Any]], Mapping[str, AnyArray]]

# Numbers in CSV that are names: read as a number and written again, they would not be the same.
NAMES = {"BIGINT": r"[+-]?0\d+", "DOUBLE": r"[+-]?(0\d+|\d{16,})"}
NUMBERS = {"TINYINT", "SMALLINT", "INTEGER", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL"}
NUMBERS |= {"UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT"}
CHANGED = "the rows are not those that were read before"


def format_to_write(path: str | Path) -> str:
    r"""Tell by the end of its name how a file is to be written: the options of DuckDB's COPY.

    Examples
    --------
    >>> format_to_write("scores.tsv.gz")
    "FORMAT csv, HEADER true, DELIMITER '\t', COMPRESSION gzip"
    """
    given = Path(path)
    ending = Path(given.name.lower().removesuffix(".gz")).suffix
    found, zipped = FORMATS.get(ending), is_zipped(given)
    if found is None or (found == "parquet" and zipped):
        raise FileError(
            f"cannot tell by its name how to write {str(path)!r}",
            hint="let it end in .parquet, .csv, .tsv, .json (one array) or .jsonl (one record a line); all but the first"
            " also in .gz after that",
        )
    options = {
        "parquet": "FORMAT parquet",
        "csv": f"FORMAT csv, HEADER true, DELIMITER '{chr(9) if ending == '.tsv' else ','}'",
        "json": f"FORMAT json, ARRAY {'true' if ending == '.json' else 'false'}",
    }[found]
    return f"{options}, COMPRESSION gzip" if zipped else options


def add_columns(
    paths: Sequence[str | Path] | str | Path | None,
    place: Path,
    make: Make,
    *,
    sql: str | None = None,
    roles: Mapping[str, Sequence[str]],
    text: Sequence[str] = (),
    written: str,
    only: bool = False,
    some: IntArray | None = None,
    threads: int | None = None,
    portions: ChunkSettings | None = None,
) -> int:
    """Read columns, make new ones of them, and write everything into one file, row by row as it was.

    Parameters
    ----------
    paths, sql, text, threads
        As in `trueup.data.sql.read_files`. A query is run once.
    place : Path
        Where to write. What is there is overwritten, and half a file is left where writing fails: name a temporary one.
    make : callable
        Given the columns of ``roles`` as `read_files` gives them, returns the new ones: names, and one number a row
        (texts where the array holds objects).
    roles : mapping of str to names
        What is needed, by what it is needed as; the first column of numbers among them is the one by which rows are
        compared when they are read again.
    written : str
        How, by `format_to_write`.
    only : bool
        Write the new columns and no others.
    some : ndarray of int64, optional
        Write these rows alone, in the order of the file.
    portions : Portions, optional
        Read so many rows at once, and call ``make`` for each portion, in the order of the file; all rows by default.

    Returns
    -------
    int
        How many rows were written.
    """
    told = portions or ChunkSettings()
    with told.connect(threads) as con, told.telling_of_room():
        rows = _once(con, open_rows(con, paths, sql, text, role="feature"))
        needed = [name for role, names in roles.items() for name in find_names(rows.names, names, role)]
        plain, texts = choose(rows, needed, text)
        with duckdb_errors(rows.files):
            refuse_gaps(con, rows.files, [*plain, *texts])
        key = next((name for name in needed if _is_number(rows, name)), None)
        parts = told.read(con, rows, plain, texts) if told.most else _at_once(con, rows, plain, texts)
        new, count = [], 0
        for found in parts:
            made = make({name: found[name] for name in needed})
            if not only:
                _refuse_taken(made, rows.names)
            count = _keep(con, made, None if key is None else found[key], count, some, whole=not told.most)
            new = list(made)
        with duckdb_errors(rows.files):
            kept = rows if only else _kept(con, rows, set(needed) - set(text), written)
        with duckdb_errors(rows.files, "write the result"):
            query, target = _joined(kept, key, new, only=only), quote(str(place.absolute()))
            query += "" if some is None else " WHERE trueup_new.taken"
            _run(con, f"COPY ({query}) TO {target} ({written}, USE_TMP_FILE false)")
        return count if some is None else len(some)


def _is_number(rows: SqlRows, name: str) -> bool:
    return rows.types[rows.names.index(name)].split("(")[0] in NUMBERS


def _at_once(con: Any, rows: SqlRows, plain: dict[str, str], texts: dict[str, str]) -> Iterator[dict[str, Any]]:
    with duckdb_errors(rows.files):
        found = fetch(con, rows, plain, texts)
    yield found


def _keep(con: Any, made: Mapping[str, AnyArray], key: Any, first: int, some: IntArray | None, *, whole: bool) -> int:
    """Put new columns where SQL finds them, below those of the portions before; count the rows so far."""
    count = first + len(next(iter(made.values())))
    base = np.full(count - first, np.nan) if key is None else _numbers(key)
    added = {"base": base, **{f"n{at}": _column(array) for at, array in enumerate(made.values())}}
    if some is not None:
        added["taken"] = np.isin(np.arange(first, count), some)
    if whole:
        con.register("trueup_new", added)
        return count
    with duckdb_errors(None, "keep the new columns"):
        if not first:
            kinds = {name: "VARCHAR" if array.dtype == object else "DOUBLE" for name, array in added.items()}
            kinds |= {"taken": "BOOLEAN"} if some is not None else {}
            listed = ", ".join(f"{name} {kind}" for name, kind in kinds.items())
            con.execute(f"CREATE OR REPLACE TEMP TABLE trueup_new ({listed})")
        con.register("trueup_portion", added)
        con.execute("INSERT INTO trueup_new FROM trueup_portion")
        con.unregister("trueup_portion")
    return count


def _numbers(key: Any) -> FloatArray:
    """Give the values by which rows are compared, NaN where there is none, which is NULL to DuckDB."""
    values: FloatArray = np.ma.getdata(key).astype(np.float64)
    return np.where(np.ma.getmaskarray(key), np.nan, values) if np.ma.is_masked(key) else values


def _column(array: AnyArray) -> AnyArray:
    return array if array.dtype == object else np.ascontiguousarray(array, np.float64)


def _once(con: Any, rows: SqlRows) -> SqlRows:
    """Keep the result of a query: run twice, it may give other rows or another order."""
    if rows.files is not None:
        return rows
    with duckdb_errors(None):
        con.execute(f"CREATE TEMP TABLE trueup_query AS SELECT * FROM {rows.table}")
    return rows._replace(source="trueup_query")


def _refuse_taken(new: Mapping[str, Any], names: Sequence[str]) -> None:
    folded = {name.encode().lower() for name in names}
    for name in new:
        if name.encode().lower() in folded:
            raise ColumnError(f"there is a column {name!r} already", hint="name the new one with --as")


def _kept(con: Any, rows: SqlRows, numbers: set[str], written: str) -> SqlRows:
    """Read what is only passed on as it is written, as far as the format to be written allows."""
    files = rows.files
    if files is None or files.format == "parquet":
        return rows
    typed = "parquet" in written
    if files.format == "json":
        return scan(con, files, (), brief=False, settled=typed)
    verbatim = _verbatim(con, files)
    if "csv" in written:
        return verbatim
    return scan(con, files, _names_of_digits(con, rows, verbatim, numbers), brief=False, settled=typed)


def _verbatim(con: Any, files: Files) -> SqlRows:
    """Read CSV as texts: an empty field is missing, and nothing else."""
    options = {**CSV, "delim": quote(files.separator), "nullstr": "''", "all_varchar": "true", "sample_size": "1"}
    source = reader_call(files, **options)
    return SqlRows(source, *describe(con, f"FROM {source}"), files)


def _names_of_digits(con: Any, rows: SqlRows, verbatim: SqlRows, numbers: set[str]) -> list[str]:
    """Find columns of numbers that would lose digits, but for those that are needed as numbers."""
    typed = enumerate(zip(rows.names, rows.types, strict=True))
    doubtful = [at for at, (name, kind) in typed if kind in NAMES and name not in numbers]
    if not doubtful:
        return []
    tests = [f"bool_or(regexp_full_match(trim(c{at}), {quote(NAMES[rows.types[at]])}))" for at in doubtful]
    answers = con.execute(f"SELECT {', '.join(tests)} FROM {verbatim.table}").fetchall()[0]
    return [rows.names[at] for at, yes in zip(doubtful, answers, strict=True) if yes]


def _joined(rows: SqlRows, key: str | None, new: Sequence[str], *, only: bool) -> str:
    """Put the new columns beside the rows, and make sure that each stands by its own."""
    added = [f"n{at} AS {quote(name, chr(34))}" for at, name in enumerate(new)]
    if only:
        return f"SELECT {', '.join(added)} FROM trueup_new"
    kept = [f"c{at} AS {quote(name, chr(34))}" for at, name in enumerate(rows.names)]
    if key is not None:
        value = f"nullif(TRY_CAST(c{rows.names.index(key)} AS DOUBLE), 'nan'::DOUBLE)"
        same = f"trueup_new.base IS NOT DISTINCT FROM {value}"
        added[0] = f"CASE WHEN {same} THEN n0 ELSE error({quote(CHANGED)}) END AS {quote(new[0], chr(34))}"
    return f"SELECT {', '.join([*kept, *added])} FROM {rows.table} POSITIONAL JOIN trueup_new"


def _run(con: Any, query: str) -> None:
    """Run a statement so that Ctrl-C ends it at once: DuckDB does not listen while it writes."""
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(con.execute, query)
        try:
            running.result()
        except KeyboardInterrupt:
            con.interrupt()
            raise
