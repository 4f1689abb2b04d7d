"""Rows of a batch, period by period: those of files and of cluster frames are never all in memory."""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trueup.data import sql as db
from trueup.data.columns import ColumnSource, engine_of, open_mapping, open_source
from trueup.data.scan import row_memory
from trueup.data.values import check_has_rows
from trueup.errors import ArgumentError, DataError
from trueup.monitoring.periods import period_numbers, period_start

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence

    from trueup.data.scan import Scan

MARGIN_DAYS = 1 / 24  # by which a query is wider than its period; the period of a row is computed in one place only
ZONE_DAYS = 1.25  # the same for Spark, which compares times of its session's zone
REFERENCE_ROWS = 1_000_000  # of a scan that starts a monitor: its first rows
MICROS_PER_DAY = 86_400e6


class Rows(NamedTuple):
    """Rows in memory, and the number of the only period whose rows are meant; None for all of them."""

    source: ColumnSource
    number: int | None


class RowSlices(NamedTuple):
    """Rows by period: the latest time, the rows to start with if nothing was started, and a function that iterates."""

    latest: float
    first: Callable[[], ColumnSource]
    iterate: Callable[[], Iterator[Rows]]


@contextlib.contextmanager
def open_slices(
    data: Any, columns: Sequence[Hashable] | None, categorical: Sequence[Hashable], time: Hashable | None, age: float,
    length: float, *, may_be_empty: bool,
) -> Iterator[RowSlices]:  # fmt: skip
    """Yield the rows of a frame, of a scan or of a cluster frame by the period in which they enter, ``age`` days later.

    A frame or a file without rows is valid for a monitor that has started: a week may have none.
    """
    engine = engine_of(data)
    if engine is None:
        yield _in_memory(open_source(data), time, may_be_empty=may_be_empty)
        return
    if time is None:
        raise ArgumentError(
            "rows that are not in memory are read by period, and there is no time column",
            "name it: {time}", settings={"time": "date"},
        )  # fmt: skip
    names = None if columns is None else [str(name) for name in columns]
    if engine == "scan":
        with _open_scan(data, names, [str(name) for name in categorical], str(time), age, length,
                        may_be_empty=may_be_empty) as slices:  # fmt: skip
            yield slices
    else:
        yield _cluster_slices(data, engine, names, str(time), age, length)


def _no_rows(source: Callable[[], ColumnSource]) -> RowSlices:
    return RowSlices(-math.inf, source, lambda: iter(()))


def _in_memory(source: ColumnSource, time: Hashable | None, *, may_be_empty: bool) -> RowSlices:
    if not source.rows and may_be_empty:
        return _no_rows(lambda: source)
    check_has_rows(source.rows)
    latest = -math.inf
    if time is not None:
        raw = source.fetch(source.find(time, "time"))
        if raw.kind == "date":  # else reading the rows raises
            latest = float(np.nanmax(raw.codes_or_values, initial=-math.inf))
    return RowSlices(latest, lambda: source, lambda: iter([Rows(source, None)]))


def _numbers(first: float, last: float, age: float, length: float) -> range:
    """Return the numbers of the periods in which rows of these times enter."""
    low, high = period_numbers(np.array([first, last]) + age, length).tolist()
    return range(low, high + 1)


def _bounds(number: int, age: float, length: float, margin: float = MARGIN_DAYS) -> tuple[np.datetime64, np.datetime64]:
    """Return the times between which rows of a period were scored, with a margin."""
    ends = (period_start(number, length) - age - margin, period_start(number + 1, length) - age + margin)
    low, high = (np.datetime64(math.floor(day * MICROS_PER_DAY), "us") for day in ends)
    return low, high


# Files


@contextlib.contextmanager
def _open_scan(
    scan: Scan, names: list[str] | None, categorical: list[str], time: str, age: float, length: float, *, may_be_empty: bool
) -> Iterator[RowSlices]:
    with db.connect(scan.threads, memory=row_memory(scan.memory), spill=scan.spill) as con:
        opened = db.open_rows(con, scan.paths, scan.sql, categorical)
        columns = list(opened.names) if names is None else list(db.find_names(opened.names, names, "data"))
        if time not in columns:
            columns.append(str(db.find_names(opened.names, [time], "time")[0]))
        rows = db.select_columns(opened, columns if names is not None else None, categorical, exact=opened.names)
        with db.duckdb_errors(rows.files):
            db.check_columns_everywhere(con, rows)
            if rows.files is None or rows.files.format != "parquet":  # a query is run once, and a text is parsed once
                con.execute(f"CREATE TEMP TABLE trueup_scan AS SELECT * FROM {rows.table}")  # noqa: S608
                rows = rows._replace(source="trueup_scan")
            if time not in rows.values:
                raise DataError(f"time column {time!r} must hold dates", hint="convert it to dates first")
            when = rows.values[time]
            span = con.execute(f"SELECT min({when}), max({when}), count(*), count({when}) FROM {rows.table}").fetchall()  # noqa: S608
        first, last, count, known = span[0]
        if not count and may_be_empty:
            yield _no_rows(lambda: open_mapping(db.fetch_all(con, rows)))
            return
        check_has_rows(count)
        if known < count:
            raise DataError(f"time column {time!r} is missing in {count - known:,} rows", hint="fill it in, or drop them")
        ends = [float(np.datetime64(end, "us").astype(np.int64) / MICROS_PER_DAY) for end in (first, last)]

        def fetch(condition: str) -> ColumnSource:
            some = f"(SELECT * FROM {rows.table} {condition})"  # noqa: S608
            with db.duckdb_errors(rows.files):
                con.execute("DROP TABLE IF EXISTS trueup_rows")
                return open_mapping(db.fetch_all(con, rows._replace(source=some)))

        def iterate() -> Iterator[Rows]:
            for number in _numbers(ends[0], ends[1], age, length):
                low, high = _bounds(number, age, length)
                source = fetch(f"WHERE {when} >= TIMESTAMP '{low}' AND {when} < TIMESTAMP '{high}'")
                if source.rows:
                    yield Rows(source, number)

        yield RowSlices(ends[1], lambda: fetch(f"LIMIT {REFERENCE_ROWS}"), iterate)


# Spark and Dask


def _cluster_slices(
    data: Any, engine: str, names: list[str] | None, time: str, age: float, length: float
) -> RowSlices:  # fmt: skip
    known = ColumnSource.of_names(data.columns)
    columns = [str(key) for key in (known.keys if names is None else known.find_all(names, "data"))]
    known.find(time, "time")

    def no_reference() -> ColumnSource:
        raise ArgumentError(
            f"the segments of a monitor are not fixed by a {engine.title()} frame",
            "pass reference rows in memory to Monitor.start, such as those of the last audit",
        )

    if engine == "spark":
        from trueup.cluster import spark

        name = spark.quote_name(time)
        with spark.spark_errors():
            span = open_source(data.selectExpr(f"min({name}) AS low", f"max({name}) AS high").toArrow())
        ends = [_only_day(span, key, time) for key in ("low", "high")]

        def read(low: np.datetime64, high: np.datetime64) -> Iterator[Any]:
            with spark.spark_errors():
                some = data.where(f"{name} >= TIMESTAMP '{low}' AND {name} < TIMESTAMP '{high}'")
                yield some.select(*map(spark.quote_name, columns)).toArrow()
    else:
        from trueup.cluster import dask

        with dask.dask_errors():
            spans = dask.time_spans(data, time)
        check_has_rows(len(spans))
        bounds = [[float(np.datetime64(end, "us").astype(np.int64) / MICROS_PER_DAY) for end in span] for _, *span in spans]
        ends = [min(low for low, _ in bounds), max(high for _, high in bounds)]

        def read(low: np.datetime64, high: np.datetime64) -> Iterator[Any]:
            with dask.dask_errors():
                yield dask.rows_between(data, columns, time, low, high, spans)

    def iterate() -> Iterator[Rows]:
        for number in _numbers(ends[0], ends[1], age, length):
            for frame in read(*_bounds(number, age, length, ZONE_DAYS if engine == "spark" else MARGIN_DAYS)):
                if len(frame):
                    yield Rows(open_source(frame), number)

    return RowSlices(ends[1], no_reference, iterate)


def _only_day(source: ColumnSource, key: str, time: str) -> float:
    raw = source.fetch(key)
    if raw.kind != "date" or raw.missing().any():
        raise DataError(f"time column {time!r} must hold dates, in at least one row", hint="convert it to dates first")
    return float(raw.codes_or_values[0])
