"""Checks of files that are read in chunks, which need all rows: texts among scores, missing outcomes, large integers."""

# ruff: noqa: S608  Columns are called c0, r0, ... in SQL, and texts of a user or a file go through quote.

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from trueup.data import sql as db
from trueup.data.columns import MAX_EXACT, RawColumn, encode_texts, from_array
from trueup.data.identifiers import may_be_identifier, warn_of_integers, warn_of_large_integers
from trueup.data.values import RowPosition, as_numbers, no_outcomes
from trueup.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trueup.data.chunks import ScanReader
    from trueup.errors import WarningRecord

ReaderT = TypeVar("ReaderT", bound="ScanReader")
MAX_SAMPLE_ROWS = 200_000  # of a column that may be an identifier


def check_roles(reader: ScanReader) -> None:
    """Raise if a prediction is text, or if no row has an outcome."""
    roles = reader.roles
    for name in roles.prediction:
        for source, _ in reader.sources if name in reader.texts else ():
            raise text_score(reader.con, name, reader.texts[name], source)
    if roles.outcome is not None:
        sql = {**reader.values, **reader.texts}[roles.outcome]
        if not any(map(len, reader.query(f"1 AS r0 FROM {{source}} WHERE {sql} IS NOT NULL LIMIT 1"))):
            raise no_outcomes(roles.outcome, reader.rows)


def text_score(con: Any, name: str, sql: str, source: str) -> DataError:
    """Return the error for a prediction column of texts, with the first one that is not a number."""
    texts = f"(SELECT {sql} AS t, row_number() OVER () - 1 AS n FROM {source}) WHERE t IS NOT NULL"
    query = f"SELECT t, n FROM {texts} ORDER BY TRY_CAST(t AS DOUBLE) IS NOT NULL, n LIMIT 1"
    with db.duckdb_errors(None, "read a column"):
        found = con.execute(query).fetchall()
    coded = encode_texts(np.zeros(len(found), np.int64), [text for text, _ in found])
    try:
        as_numbers(RawColumn("text", coded=coded), name, "prediction", RowPosition(int(found[0][1]) if found else 0))
    except DataError as error:
        return error
    raise AssertionError("texts are no numbers")


def numbers_of_texts(con: Any, rows: db.SqlRows, names: Sequence[str]) -> db.SqlRows:
    """Return the rows with predictions that are texts as numbers, other texts as missing; raise if none is a number."""
    values, texts = dict(rows.values), dict(rows.texts)
    for name in names:
        if name in texts:
            number = f"TRY_CAST({texts[name]} AS DOUBLE)"
            if con.execute(f"SELECT count({number}) FROM {rows.table}").fetchall() == [(0,)]:
                raise text_score(con, name, texts[name], rows.table)
            values[name] = number
            del texts[name]
    return rows._replace(values=values, texts=texts)


def separate_integers(reader: ReaderT, rows: db.SqlRows) -> tuple[ReaderT, list[str]]:
    """Return the reader with integers that floats cannot tell apart as texts, others as numbers, and the former names.

    Columns of types that may hold such integers are examined in all rows.
    """
    types = dict(zip(rows.names, rows.types, strict=True))
    values, texts = dict(reader.values), dict(reader.texts)
    bigints = [name for name in reader.roles.features if name in values and types[name] in ("BIGINT", "UBIGINT")]
    wide = [name for name in rows.wide if name in texts]
    limit, large = int(MAX_EXACT), []
    for name in (*bigints, *wide):
        sql = values.get(name) or f"CAST({texts[name]} AS DOUBLE)"
        union = " UNION ALL ".join(
            f"SELECT bool_or({sql} >= {limit} OR {sql} <= -{limit}) AS large FROM {source}" for source, _ in reader.sources
        )
        with db.duckdb_errors(None, "read a column"):
            (exceeds,) = reader.con.execute(f"SELECT bool_or(large) FROM ({union})").fetchall()[0]
        if exceeds and name in reader.roles.features:
            large.append(name)
        if exceeds and name in values:
            texts[name] = f"CAST({values.pop(name)} AS VARCHAR)"
        elif not exceeds and name in texts:
            values[name] = f"CAST({texts.pop(name)} AS DOUBLE)"
    return replace(reader, values=values, texts=texts), large


def integer_warnings(reader: ScanReader, large: Sequence[str]) -> list[WarningRecord]:
    """Warn of integers that are read as categories, and of numeric features that look like identifiers."""
    records = [warn_of_large_integers(name, stacklevel=7) for name in large if name not in reader.left_out]
    source, _ = reader.sources[0]
    for feature in reader.schema.features:
        if feature.kind != "numeric":
            continue
        sql = f"CAST({reader.values[feature.name]} AS DOUBLE)"
        with db.duckdb_errors(None, "read a column"):
            first = reader.con.execute(f"SELECT {sql} AS r0 FROM {source} WHERE place < 1000").fetchnumpy()["r0"]
        known = from_array(first, "values").codes_or_values
        if may_be_identifier(known):
            every = -(-reader.rows // MAX_SAMPLE_ROWS)
            chosen = f" WHERE hash(place + {{before}}) % {every} = 0" if every > 1 else ""
            columns = reader.query(f"{sql} AS r0 FROM {{source}}{chosen}")
            values = np.concatenate([column.codes_or_values for column in columns])
            records += warn_of_integers(feature.name, values, stacklevel=7)
    return records
