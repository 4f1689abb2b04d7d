"""How SQL dialects write numbers, texts, names, arrays, dates and relations of constants.

Names and texts of users are quoted here and nowhere else. A floating-point literal has the shortest digits that are read
back as the same float, and a form that no dialect takes for a decimal number.
"""

# ruff: noqa: S608  Names and texts of users go through `identifier` and `text`.

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from trueup.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from trueup._types import AnyArray, FloatArray

CASE_CUTS = 3  # so few cuts are compared in turn by dialects that have a function for more


class Dialect:
    """DuckDB's dialect, and what the others replace."""

    name, title = "duckdb", "DuckDB"
    ignores_case = True  # in the names of columns, also in quotes
    double, integer_type, bigint, text_type, array_of = "DOUBLE", "INTEGER", "BIGINT", "VARCHAR", "{}[]"
    first = 1  # the index of the first element of an array
    name_mark = '"'
    # Longer arrays are columns of a relation of one row: DuckDB copies a literal for each 2,048 rows.
    longest_literal: float = 128
    joins_arrays = True  # to that relation; else each array is read by a subquery
    raises = False  # whether exponentials and products that overflow or underflow are errors
    fence = ""  # ends a SELECT whose expressions must not be merged with those of the query around it
    materialized = " MATERIALIZED"
    division = "{} / {}"

    def number(self, value: float) -> str:
        """Return a float as a literal, in parentheses if it is negative."""
        if not math.isfinite(value):
            return self.cast(self.text("Infinity" if value > 0 else "-Infinity"), self.double)
        return self._signed(self._digits(value), value)

    def integer(self, value: int) -> str:
        """Return an integer as a literal."""
        return self._signed(str(value), value)

    def _signed(self, written: str, value: float) -> str:
        return f"({written})" if math.copysign(1.0, value) < 0 else written  # -- begins a comment

    def _digits(self, value: float) -> str:
        """Return digits with an exponent: without one they would be a decimal number."""
        digits = repr(float(value))
        return digits if "e" in digits else f"{digits.removesuffix('.0')}e0"

    def text(self, value: str) -> str:
        """Return a text as a literal, which holds whatever characters it has."""
        parts = [f"'{part.replace(chr(39), chr(39) * 2)}'" for part in value.split("\0")]
        return parts[0] if len(parts) == 1 else f"({' || chr(0) || '.join(parts)})"

    def identifier(self, value: str) -> str:
        """Return the quoted name of a column; raise if the dialect cannot write it."""
        if "\0" in value or not _is_unicode(value):
            raise ArgumentError(f"SQL cannot name a column {value!r}", hint="rename it before the fit")
        return self.name_mark + value.replace(self.name_mark, self.name_mark * 2) + self.name_mark

    def table(self, value: str) -> str:
        """Return the quoted name of a table; dots separate database, schema and table."""
        return ".".join(map(self.identifier, value.split(".")))

    def check_names(self, values: Iterable[str]) -> None:
        """Raise if the dialect cannot tell the columns of a table apart."""
        known: dict[str, str] = {}
        for value in values if self.ignores_case else ():
            other = known.setdefault(value.lower(), value)
            if other != value:
                raise ArgumentError(
                    f"{self.title} cannot tell the columns {other!r} and {value!r} apart, whose names differ only by case",
                    hint="rename one of them before the fit",
                )

    def can_hold(self, level: str, column: str) -> bool:
        """Return whether a text column can have this value; raise if it is no text in Unicode."""
        if not _is_unicode(level):
            raise ArgumentError(
                f"column {column!r} has a level that is no valid text: {level!r}", hint="replace it before the fit"
            )
        return True

    def cast(self, value: str, kind: str) -> str:
        """Return a conversion to a type."""
        return f"CAST({value} AS {kind})"

    def known(self, value: str) -> str:
        """Return NULL for NaN."""
        # DuckDB relies on statistics of Parquet files, which ignore NaN, for isnan but not for isfinite.
        return f"CASE WHEN isfinite({value}) OR isinf({value}) THEN {value} END"

    def array(self, values: AnyArray, kind: str) -> str:
        """Return an array of numbers as a literal."""
        listed = ",".join(map(repr, values.tolist()))
        return self.cast(f"'[{listed}]'", self.array_of.format(kind))

    def element(self, array: str, index: str) -> str:
        """Return the element of an array."""
        return f"{array}[{index}]"

    def collect(self, of: int) -> str:
        """Return an aggregate: the array number ``of`` of a relation with the columns a, i and v."""
        return f"array_agg(v ORDER BY i) FILTER (WHERE a = {of})"

    def count(self, x: str, array: str, missing: int) -> str:
        """Return a function call that counts cuts in the array that `counted` returned; NULL counts as ``missing``."""
        raise NotImplementedError

    def counted(self, cuts: FloatArray, closed: str) -> FloatArray | None:  # noqa: ARG002
        """Return the array in which `count` finds the number of cuts below x, or at most x if closed on the left.

        Without a function for it, and for few cuts, there is none: None is returned.
        """
        return None

    def days(self, column: str) -> str:
        """Return the days since 1970-01-01 of a date or time."""
        return f"(epoch_us({self.cast(column, 'TIMESTAMP')}) / {self.number(86_400e6)})"

    def ceil(self, x: str) -> str:
        """Return the smallest integer that is at least x, as a float."""
        return f"ceil({x})"

    def rows(self, columns: Mapping[str, str], rows: Sequence[str]) -> str:
        """Return a query whose rows are written as "(1, 'a')"; ``columns`` have types."""
        return f"SELECT * FROM (VALUES {', '.join(rows)}) AS constants({', '.join(columns)})"

    def create(self, name: str, query: str) -> list[str]:
        """Return statements that make a query known by a name, for the session."""
        return [f"CREATE OR REPLACE TEMPORARY VIEW {name} AS\n{query}"]


class Postgres(Dialect):
    """PostgreSQL from version 12 on."""

    name, title = "postgres", "PostgreSQL"
    ignores_case = False
    double, text_type = "float8", "text"
    longest_literal = math.inf
    joins_arrays = False
    raises = True
    fence = "\nOFFSET 0"  # the planner copies expressions into the query around it without one
    division = "{} / NULLIF({}, 0)"

    def number(self, value: float) -> str:
        """Return a float as a literal: digits alone would be of type numeric."""
        return f"'{'Infinity' if value == math.inf else '-Infinity' if value == -math.inf else repr(float(value))}'::float8"

    def text(self, value: str) -> str:
        """Return a text as a literal that means the same whatever standard_conforming_strings is."""
        doubled = value.replace("'", "''")
        return f"E'{doubled.replace(chr(92), chr(92) * 2)}'" if "\\" in value else f"'{doubled}'"

    def can_hold(self, level: str, column: str) -> bool:
        """Return whether a text column can have this value: none has the character NUL."""
        return super().can_hold(level, column) and "\0" not in level

    def known(self, value: str) -> str:
        """Return NULL for NaN, which equals itself."""
        return f"NULLIF({value}, 'NaN'::float8)"

    def array(self, values: AnyArray, kind: str) -> str:
        """Return an array of numbers as a literal."""
        return f"'{{{','.join(map(repr, values.tolist()))}}}'::{kind}[]"

    def element(self, array: str, index: str) -> str:
        """Return the element of an array, by an index of type integer."""
        return f"({array})[({index})::int]"

    def count(self, x: str, array: str, missing: int) -> str:
        """Return a call of a function that bisects."""
        return f"COALESCE(width_bucket({x}, {array}), {missing})"

    def counted(self, cuts: FloatArray, closed: str) -> FloatArray | None:
        """Return cuts for a function that counts those that are at most x: the next float is, if a cut is below x."""
        if len(cuts) <= CASE_CUTS:
            return None
        return cuts if closed == "left" else np.asarray(np.nextafter(cuts[cuts < np.inf], np.inf))  # none is above inf

    def days(self, column: str) -> str:
        """Return the days since 1970-01-01 of a date or time; the epoch is an exact decimal number."""
        micros = f"EXTRACT(EPOCH FROM {self.cast(column, 'timestamp')}) * 1000000"
        return f"({self.cast(micros, 'float8')} / {self.number(86_400e6)})"

    def create(self, name: str, query: str) -> list[str]:
        """Return statements that make a query known by a name, for the session."""
        return [f"DROP VIEW IF EXISTS pg_temp.{name} CASCADE", f"CREATE TEMPORARY VIEW {name} AS\n{query}"]


class BigQuery(Dialect):
    """GoogleSQL of BigQuery."""

    name, title = "bigquery", "BigQuery"
    double, integer_type, bigint, text_type, array_of = "FLOAT64", "INT64", "INT64", "STRING", "ARRAY<{}>"
    first = 0
    name_mark = "`"
    longest_literal = math.inf
    joins_arrays = False
    raises = True
    materialized = ""
    division = "{} / NULLIF({}, 0)"

    def text(self, value: str) -> str:
        """Return a text as a literal; backslashes escape."""
        return f"'{_backslashed(value)}'"

    def identifier(self, value: str) -> str:
        """Return the quoted name of a column."""
        super().identifier(value)
        return f"`{_backslashed(value).replace('`', chr(92) + '`')}`"

    def known(self, value: str) -> str:
        """Return NULL for NaN."""
        return f"IF(IS_NAN({value}), NULL, {value})"

    def array(self, values: AnyArray, kind: str) -> str:
        """Return an array of numbers as a literal."""
        write = self.number if values.dtype.kind == "f" else str
        return f"ARRAY<{kind}>[{', '.join(map(write, values.tolist()))}]"

    def element(self, array: str, index: str) -> str:
        """Return the element of an array."""
        return f"{array}[OFFSET({index})]"

    def collect(self, of: int) -> str:
        """Return an aggregate: the array number ``of`` of a relation with the columns a, i and v."""
        return f"ARRAY_AGG(IF(a = {of}, v, NULL) IGNORE NULLS ORDER BY i)"

    def count(self, x: str, array: str, missing: int) -> str:
        """Return a call of a function that bisects."""
        return f"COALESCE(RANGE_BUCKET({x}, {array}), {missing})"

    counted = Postgres.counted

    def days(self, column: str) -> str:
        """Return the days since 1970-01-01 of a date or time."""
        micros = f"DATETIME_DIFF({self.cast(column, 'DATETIME')}, DATETIME '1970-01-01', MICROSECOND)"
        return f"({micros} / {self.number(86_400e6)})"

    def rows(self, columns: Mapping[str, str], rows: Sequence[str]) -> str:
        """Return a query whose rows are constants."""
        typed = ", ".join(f"{name} {kind}" for name, kind in columns.items())
        return f"SELECT * FROM UNNEST(ARRAY<STRUCT<{typed}>>[{', '.join(rows)}])"

    def create(self, name: str, query: str) -> list[str]:
        """Return statements that keep the rows of a query in a table of the session: there are no temporary views."""
        return [f"CREATE OR REPLACE TEMP TABLE {name} AS\n{query}"]


class Spark(Dialect):
    """Spark SQL from version 3.4 on, ANSI mode or not."""

    name, title = "spark", "Spark SQL"
    text_type, array_of = "STRING", "ARRAY<{}>"
    first = 0
    name_mark = "`"
    longest_literal = math.inf
    materialized = ""
    division = "{} / NULLIF({}, 0)"

    def _digits(self, value: float) -> str:
        """Return digits with an exponent and the mark of a double."""
        return f"{super()._digits(value)}D"

    def text(self, value: str) -> str:
        """Return a text as a literal; backslashes escape, and ${name} would be replaced by a variable."""
        return f"'{_backslashed(value).replace('$', chr(92) + 'u0024')}'"

    def identifier(self, value: str) -> str:
        """Return the quoted name of a column."""
        if "${" in value:
            raise ArgumentError(
                f"Spark SQL cannot name a column {value!r}: ${{...}} is a variable", hint="rename it before the fit"
            )
        return super().identifier(value)

    def known(self, value: str) -> str:
        """Return NULL for NaN."""
        return f"CASE WHEN NOT isnan({value}) THEN {value} END"

    def array(self, values: AnyArray, kind: str) -> str:  # noqa: ARG002
        """Return an array of numbers as a literal."""
        write = self.number if values.dtype.kind == "f" else str
        return f"array({', '.join(map(write, values.tolist()))})"

    def collect(self, of: int) -> str:
        """Return an aggregate: the array number ``of`` of a relation with the columns a, i and v."""
        return f"transform(array_sort(collect_list(struct(i, v)) FILTER (WHERE a = {of})), x -> x.v)"

    def days(self, column: str) -> str:
        """Return the days since 1970-01-01 of a date or time, by its own clock in any time zone."""
        micros = f"timestampdiff(MICROSECOND, TIMESTAMP_NTZ '1970-01-01 00:00:00', {self.cast(column, 'TIMESTAMP_NTZ')})"
        return f"({self.cast(micros, 'DOUBLE')} / {self.number(86_400e6)})"

    def ceil(self, x: str) -> str:
        """Return the smallest integer that is at least x, as a float: Spark's ceil returns a BIGINT."""
        return f"CASE WHEN abs({x}) < 4503599627370496e0D THEN CAST(ceil({x}) AS DOUBLE) ELSE {x} END"


DIALECTS: dict[str, Dialect] = {dialect.name: dialect for dialect in (Dialect(), Postgres(), BigQuery(), Spark())}


def chunks(rows: Iterable[str], longest: int) -> list[list[str]]:
    """Divide rows of constants into chunks of at most ``longest`` characters."""
    found: list[list[str]] = []
    size = longest + 1
    for row in rows:
        size += len(row) + 12
        if size > longest:
            found.append([])
            size = len(row) + 12
        found[-1].append(row)
    return found


def _is_unicode(value: str) -> bool:
    return value.encode(errors="ignore").decode() == value


def _backslashed(value: str) -> str:
    """Escape a text for dialects with backslashes: quotes, backslashes and characters that are not printed."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return "".join(
        f"\\u{ord(character):04x}" if ord(character) < 32 or character in "\x7f\x85\u2028\u2029" else character
        for character in escaped
    )
