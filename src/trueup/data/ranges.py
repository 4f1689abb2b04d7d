"""Ranges of the rows of files: what reading in pieces rests on, for audits and for scoring."""

# ruff: noqa: S608  Columns are called c0, r0, ... in SQL, and what a user or a file says goes through quote.

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.data.files import Rows, call, describe, quote
from trueup.errors import FileError

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

ROW_NUMBER = "file_row_number"


def has_ranges(rows: Rows) -> bool:
    """Say whether rows can be read by ranges as they are: those of Parquet, unless a column has the name of the numbers."""
    return rows.files is not None and rows.files.format == "parquet" and ROW_NUMBER not in map(str.lower, rows.names)


def parquet_range(con: Any, rows: Rows, path: Path, wanted: Collection[str]) -> tuple[str, int]:
    """Write the SQL of one file, its columns named and typed as those of all files together; and count its rows.

    Columns are called c0, c1, ... by their place among all, and the number of a row ``place``.
    """
    assert rows.files is not None
    one = rows.files._replace(paths=[path])
    names, types = describe(con, f"FROM {call(one)}")
    own = {
        name.encode().lower(): (quote(name, '"'), kind) for name, kind in zip(names, types, strict=True)
    }  # as DuckDB folds
    read = [f"{ROW_NUMBER} AS place"]
    for at, (name, kind) in enumerate(zip(rows.names, rows.types, strict=True)):
        if name in wanted:
            sql, found = own[name.encode().lower()]
            read.append(f"{sql} AS c{at}" if found == kind else f"CAST({sql} AS {kind}) AS c{at}")
    (count,) = con.execute(f"SELECT count(*) FROM {call(one)}").fetchall()[0]
    return f"(SELECT {', '.join(read)} FROM {call(one, file_row_number='true')})", int(count)


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
