"""Files, or the result of a query, written again with columns added: Parquet, CSV or JSON.

Parquet keeps its types. CSV written as CSV, and JSON as JSON, keep every value as it is written there; otherwise columns of
CSV have the types that `trueup.data.sql` finds, except numbers that would lose digits (postal codes with leading zeros,
long identifiers), which stay texts. New columns of chunks are collected in a table of DuckDB until all have been made.
"""

# ruff: noqa: S608  Columns are called c0, n0, ... in SQL, and texts of a user or a file go through quote.

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.data.chunks import ChunkSettings
from trueup.data.scan import file_format, fold_case, is_gzipped
from trueup.data.sql import (
    CSV,
    SqlRows,
    check_columns_everywhere,
    describe,
    describe_files,
    duckdb_errors,
    find_names,
    open_rows,
    quote,
    reader_call,
    select_columns,
)
from trueup.errors import ColumnError, FileError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trueup._types import AnyArray, IntArray

    MakeColumns = Callable[[dict[str, Any]], Mapping[str, AnyArray]]

# Numbers in CSV that are identifiers: read as a number and written again, they would not be the same.
IDENTIFIERS = {"BIGINT": r"[+-]?0\d+", "DOUBLE": r"[+-]?(0\d+|\d{16,})"}
NUMBER_TYPES = {"TINYINT", "SMALLINT", "INTEGER", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL"}
NUMBER_TYPES |= {"UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT"}
CHANGED = "the rows are not those that were read before"


def format_to_write(path: str | Path) -> str:
    """Return the options of DuckDB's COPY for a file, by its name."""
    path = Path(path)
    name, suffix = file_format(path), Path(path.name.lower().removesuffix(".gz")).suffix
    if name is None:
        raise FileError(
            f"cannot tell the format of {str(path)!r} by its name",
            hint="it must end in .parquet, .csv, .tsv, .json (one array) or .jsonl (one record per line); all but the first"
            " also in .gz after that",
        )
    options = {
        "parquet": "FORMAT parquet",
        "csv": f"FORMAT csv, HEADER true, DELIMITER '{chr(9) if suffix == '.tsv' else ','}'",
        "json": f"FORMAT json, ARRAY {'true' if suffix == '.json' else 'false'}",
    }[name]
    return f"{options}, COMPRESSION gzip" if is_gzipped(path) else options


def add_columns(
    paths: Sequence[str | Path] | str | Path | None,
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
    """Read columns, compute new ones from them, and write all into one file in the order of the rows; count its rows.

    ``make`` is called with the columns of ``roles``, chunk by chunk, and returns the new ones by name: numbers, or texts if
    the array contains objects. ``written`` is the format, from `format_to_write`; ``only`` writes the new columns alone,
    ``some`` only these rows. If writing fails, half a file is left at the target: pass the path of a temporary file.
    """
    settings = chunks or ChunkSettings()
    with settings.connect(threads) as con, settings.space_errors():
        rows = open_rows(con, paths, sql, text, role="feature")
        if rows.files is None:  # run twice, a query may return other rows or another order
            with duckdb_errors(None):
                con.execute(f"CREATE TEMP TABLE trueup_query AS SELECT * FROM {rows.table}")
            rows = rows._replace(source="trueup_query")
        needed = [name for role, names in roles.items() for name in find_names(rows.names, names, role)]
        values, texts = select_columns(rows, needed, text)
        with duckdb_errors(rows.files):
            check_columns_everywhere(con, rows.files, [*values, *texts])
        types = dict(zip(rows.names, rows.types, strict=True))
        key = next((name for name in needed if name in values and types[name].split("(")[0] in NUMBER_TYPES), None)
        new, count = [], 0
        for columns in settings.read(con, rows, values, texts):
            made = make({name: columns[name] for name in needed})
            taken = set() if only else {fold_case(name) for name in rows.names}
            if (name := next((name for name in made if fold_case(name) in taken), None)) is not None:
                hint = "choose another name, as {name}"
                raise ColumnError(f"there is a column {name!r} already", hint=hint, settings={"name": ...})
            count = _store(con, made, None if key is None else columns[key], count, some, chunked=bool(settings.rows))
            new = list(made)
        with duckdb_errors(rows.files):
            original = rows if only else _as_written(con, rows, set(needed) - set(text), written)
        with duckdb_errors(rows.files, "write the result"):
            query = _join_new_columns(original, key, new, only=only)
            query += "" if some is None else " WHERE trueup_new.taken"
            _run(con, f"COPY ({query}) TO {quote(str(target.absolute()))} ({written}, USE_TMP_FILE false)")
        return count if some is None else len(some)


def _store(con: Any, made: Mapping[str, AnyArray], key: Any, first: int, some: IntArray | None, *, chunked: bool) -> int:
    """Store new columns in the table trueup_new, below those of the chunks before; return the number of rows so far."""
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
    with duckdb_errors(None, "store the new columns"):
        if not first:
            types = {name: "VARCHAR" if array.dtype == object else "DOUBLE" for name, array in stored.items()}
            types |= {"taken": "BOOLEAN"} if some is not None else {}
            listed = ", ".join(f"{name} {declared}" for name, declared in types.items())
            con.execute(f"CREATE OR REPLACE TEMP TABLE trueup_new ({listed})")
        con.register("trueup_chunk", stored)
        con.execute("INSERT INTO trueup_new FROM trueup_chunk")
        con.unregister("trueup_chunk")
    return count


def _as_written(con: Any, rows: SqlRows, numbers: set[str], written: str) -> SqlRows:
    """Read columns that are only passed on as they are written, as far as the target format allows."""
    files = rows.files
    if files is None or files.format == "parquet":
        return rows
    has_types = "parquet" in written
    if files.format == "json":
        return describe_files(con, files, (), convert_texts=has_types)
    # CSV as texts: an empty field is missing, and nothing else.
    options = {**CSV, "delim": quote(files.separator), "nullstr": "''", "all_varchar": "true", "sample_size": "1"}
    source = reader_call(files, **options)
    texts = SqlRows(source, *describe(con, f"FROM {source}"), files)
    if "csv" in written:
        return texts
    # Numbers that would lose digits stay texts, unless they are needed as numbers.
    columns = enumerate(zip(rows.names, rows.types, strict=True))
    doubtful = [index for index, (name, declared) in columns if declared in IDENTIFIERS and name not in numbers]
    as_text = []
    if doubtful:
        tests = [f"bool_or(regexp_full_match(trim(c{i}), {quote(IDENTIFIERS[rows.types[i]])}))" for i in doubtful]
        answers = con.execute(f"SELECT {', '.join(tests)} FROM {texts.table}").fetchall()[0]
        as_text = [rows.names[index] for index, is_identifier in zip(doubtful, answers, strict=True) if is_identifier]
    return describe_files(con, files, as_text, convert_texts=has_types)


def _join_new_columns(rows: SqlRows, key: str | None, new: Sequence[str], *, only: bool) -> str:
    """Return SQL that joins the new columns to the rows by position, and fails if the rows have changed."""
    added = [f"n{index} AS {quote(name, chr(34))}" for index, name in enumerate(new)]
    if only:
        return f"SELECT {', '.join(added)} FROM trueup_new"
    kept = [f"c{index} AS {quote(name, chr(34))}" for index, name in enumerate(rows.names)]
    if key is not None:
        value = f"nullif(TRY_CAST(c{rows.names.index(key)} AS DOUBLE), 'nan'::DOUBLE)"
        same = f"trueup_new.base IS NOT DISTINCT FROM {value}"
        added[0] = f"CASE WHEN {same} THEN n0 ELSE error({quote(CHANGED)}) END AS {quote(new[0], chr(34))}"
    return f"SELECT {', '.join([*kept, *added])} FROM {rows.table} POSITIONAL JOIN trueup_new"


def _run(con: Any, query: str) -> None:
    """Run a statement that Ctrl-C stops at once: DuckDB ignores it while it writes."""
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(con.execute, query)
        try:
            running.result()
        except KeyboardInterrupt:
            con.interrupt()
            raise
