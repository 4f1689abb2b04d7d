"""Large integers, columns that look like identifiers, and columns of types that are not read."""

from __future__ import annotations

import datetime as dt
import decimal
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import trueup as tu
from trueup.cluster.partitions import open_partitions
from trueup.data.frame import read
from trueup.data.identifiers import warn_of_integers
from trueup.data.profile import TableProfile, assign_roles
from trueup.data.sql import read_files
from trueup.errors import ColumnError, IdentifierWarning, UnreadColumnWarning

LARGE = 2**53
CODES = [LARGE, LARGE + 1, LARGE + 2]  # the second is equal to the first as a float
N = 120
ROWS = {"y": np.tile([0, 1], N // 2), "p": np.linspace(0.2, 0.8, N)}
CODE = np.array(CODES, np.int64)[np.arange(N) % 3]
LEVELS = tuple(map(str, CODES))


def frames():
    unsigned = CODE.astype(np.uint64)
    decimals = [decimal.Decimal(int(value)) for value in CODE]
    arrow = pa.array(decimals, pa.decimal128(20, 0))
    return {
        "int64": {**ROWS, "code": CODE},
        "uint64": {**ROWS, "code": unsigned},
        "masked": {**ROWS, "code": np.ma.array(CODE)},
        "objects": {**ROWS, "code": np.array(CODE.tolist(), object)},
        "pandas": pd.DataFrame({**ROWS, "code": unsigned}),
        "pandas Int64": pd.DataFrame({**ROWS, "code": pd.array(CODE, "Int64")}),
        "pandas decimals": pd.DataFrame({**ROWS, "code": decimals}),
        "polars": pl.DataFrame({**ROWS, "code": CODE}),
        "polars decimals": pl.DataFrame({**ROWS, "code": pl.Series(decimals, dtype=pl.Decimal(20, 0))}),
        "arrow": pa.table({**ROWS, "code": CODE}),
        "arrow decimals": pa.table({**ROWS, "code": arrow}),
    }


@pytest.mark.parametrize("name", frames())
def test_large_integers_are_categories_with_a_note(name):
    with pytest.warns(IdentifierWarning, match=r"column 'code' holds integers beyond 2\*\*53"):
        table = read(frames()[name], outcome="y", prediction="p")
    assert table.schema.features[0].levels == LEVELS
    assert np.array_equal(table.columns["code"], np.arange(N) % 3)
    assert [record.column for record in table.warnings] == ["code"]


def test_missing_values_among_large_integers_stay_missing():
    frame = pl.DataFrame({**ROWS, "code": [None, *CODE.tolist()[1:]]})
    with pytest.warns(IdentifierWarning):
        table = read(frame, outcome="y", prediction="p")
    assert table.columns["code"].tolist()[:3] == [-1, 1, 2]


def test_large_floats_are_numbers():
    table = read({**ROWS, "x": np.linspace(1e17, 1e18, N)}, outcome="y", prediction="p")
    assert table.schema.features[0].kind == "numeric"
    objects = np.array(np.linspace(1e17, 1e18, N).tolist(), object)
    assert read({**ROWS, "x": objects}, outcome="y", prediction="p").schema.features[0].kind == "numeric"


def test_levels_of_integers_do_not_depend_on_the_largest_of_the_rows():
    few = read({**ROWS, "code": np.full(N, 2 * 10**15)}, outcome="y", prediction="p", categorical=["code"])
    assert few.schema.features[0].levels == ("2000000000000000",)


def write_codes(directory, ending):
    """Write rows with a column of large integers; return the path and a query, if it is one that reads it."""
    path = directory / f"codes.{ending.split()[0]}"
    wide = [LARGE * 2048 + value - LARGE for value in CODE.tolist()]  # beyond 64 bits
    if ending == "parquet decimal":
        column = pa.array([decimal.Decimal(value) for value in CODE.tolist()], pa.decimal128(38, 0))
        pq.write_table(pa.table({**ROWS, "code": column}), path)
    elif ending == "csv wide":
        pl.DataFrame({**ROWS, "code": [str(value) for value in wide]}).write_csv(path, quote_style="never")
    elif ending == "jsonl":
        pl.DataFrame({**ROWS, "code": CODE}).write_ndjson(path)
    else:
        getattr(pl.DataFrame({**ROWS, "code": CODE}), f"write_{path.suffix[1:]}")(path)
    return path


@pytest.mark.parametrize("ending", ["parquet", "parquet decimal", "csv", "csv wide", "jsonl"])
def test_large_integers_of_files_are_categories_in_memory_and_in_chunks(ending, tmp_path):
    path = write_codes(tmp_path, ending)
    with pytest.warns(IdentifierWarning, match="beyond"):
        table = read(read_files(path), outcome="y", prediction="p")
    assert np.array_equal(table.columns["code"], np.arange(N) % 3)
    with (
        pytest.warns(IdentifierWarning, match="beyond"),
        open_partitions(tu.scan(path), outcome="y", prediction="p") as partitions,
    ):
        (chunk,) = partitions.iter_tables()
    assert chunk.schema.features == table.schema.features
    assert np.array_equal(chunk.columns["code"], table.columns["code"])


def test_wide_integers_of_a_query_are_numbers_if_they_are_small(tmp_path):
    pl.DataFrame({**ROWS, "x": np.arange(N) % 7}).write_parquet(path := tmp_path / "rows.parquet")
    query = "SELECT y, p, x::HUGEINT AS x FROM data"
    table = read(read_files(path, sql=query), outcome="y", prediction="p")
    assert table.schema.features[0].kind == "numeric"
    assert np.array_equal(table.columns["x"], np.arange(N) % 7)
    with open_partitions(tu.scan(path, sql=query), outcome="y", prediction="p") as partitions:
        (chunk,) = partitions.iter_tables()
    assert np.array_equal(chunk.columns["x"], table.columns["x"])


def test_digits_are_kept_by_versions_of_duckdb_without_wide_integers_in_csv(tmp_path, monkeypatch):
    from trueup.data import sql

    path = write_codes(tmp_path, "csv wide")
    monkeypatch.setitem(sql.CSV, "auto_type_candidates", "['BIGINT', 'UBIGINT', 'DOUBLE', 'VARCHAR']")  # rejected
    assert len(read_files(path, columns=["code"])["code"].levels) == 3


def test_partitions_agree_that_integers_are_large():
    frames = [{**ROWS, "code": np.full(N, 7)}, {**ROWS, "code": CODE}]
    roles = assign_roles(["y", "p", "code"], outcome="y", prediction="p")
    profiles = [TableProfile.of(frame, number, roles) for number, frame in enumerate(frames)]
    assert (profiles[0] + profiles[1]).large_integers() == ["code"]
    as_categories = assign_roles(["y", "p", "code"], outcome="y", prediction="p", categorical=["code"])
    first, second = (TableProfile.of(frame, number, as_categories) for number, frame in enumerate(frames))
    schema, _ = (first + second).describe(as_categories)
    assert schema.features[0].levels == ("7", *LEVELS)


# Likely identifiers


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("row", np.arange(5000.0)),
        ("row", np.random.default_rng(0).permutation(8000)[:5000] + 1e9),
        ("customer_id", np.random.default_rng(0).permutation(10**6)[:200] + 1.0),
    ],
)
def test_distinct_integers_are_named_as_likely_identifiers(name, values):
    with pytest.warns(IdentifierWarning, match=f"column '{name}' looks like an identifier"):
        (record,) = warn_of_integers(name, values.astype(float), stacklevel=1)
    assert record.column == name


def quantities():
    rng = np.random.default_rng(1)
    return {
        "age": rng.integers(18, 90, 5000),
        "income": np.round(rng.lognormal(10.5, 0.5, 2000)),
        "amount": rng.permutation(100_000)[:150],  # few, and distinct by chance
        "uniform": rng.integers(0, 20_000, 2000),
        "score": rng.uniform(size=2000),
        "few": np.arange(90),
    }


@pytest.mark.parametrize("name", quantities())
def test_ages_and_amounts_are_not_called_identifiers(name):
    assert warn_of_integers(name, quantities()[name].astype(float), stacklevel=1) == []


@pytest.mark.repeated(200, 5000)
def test_random_integers_are_not_called_identifiers(repetitions):
    rng = np.random.default_rng(2)
    for _ in range(repetitions):
        size = int(rng.integers(100, 3000))
        values = rng.integers(0, max(int(size**2 / 60), 1), size).astype(float)  # of which 30 repeat
        assert warn_of_integers("amount", values, stacklevel=1) == []


def test_likely_identifiers_of_scans_are_named(tmp_path):
    n = 2000
    data = {"y": np.tile([0, 1], n // 2), "p": np.full(n, 0.5), "row": np.arange(n), "age": np.arange(n) % 70}
    pl.DataFrame(data).write_parquet(path := tmp_path / "rows.parquet")
    with pytest.warns(IdentifierWarning, match="'row' looks like an identifier: 2,000 distinct integers") as warned:
        tu.audit(tu.scan(path), outcome="y", prediction="p", by=["row", "age"])
    assert len(warned) == 1


# Types that are not read


def unread():
    lists, blobs = [[1, 2]] * N, [b"\xff"] * N
    return {
        "pandas": (pd.DataFrame({**ROWS, "odd": lists}), "list"),
        "pandas blobs": (pd.DataFrame({**ROWS, "odd": blobs}), "bytes"),
        "polars": (pl.DataFrame({**ROWS, "odd": lists}), "List"),
        "polars structs": (pl.DataFrame({**ROWS, "odd": [{"a": 1}] * N}), "Struct"),
        "polars blobs": (pl.DataFrame({**ROWS, "odd": blobs}), "Binary"),
        "arrow": (pa.table({**ROWS, "odd": lists}), "List"),
        "arrow maps": (pa.table({**ROWS, "odd": pa.array([[("a", 1)]] * N, pa.map_(pa.string(), pa.int64()))}), ""),
        "objects": ({**ROWS, "odd": np.array([{"a": 1}] * N, object)}, "dict"),
    }


@pytest.mark.parametrize("name", unread())
def test_a_column_of_an_unread_type_is_left_out_with_the_reason_or_rejected_if_it_is_named(name):
    frame, kind = unread()[name]
    reason = f"it has a type that trueup does not read: {kind}"
    with pytest.warns(UnreadColumnWarning, match=f"1 column is left out: 'odd', {reason}"):
        audit = tu.audit(frame, outcome="y", prediction="p")
    assert audit.left_out["odd"].startswith(reason)
    assert any(note.startswith("column odd left out: it has a type") for note in audit.notes)
    with pytest.raises(ColumnError, match=f"column 'odd' has a type that trueup does not read: {kind}"):
        tu.audit(frame, outcome="y", prediction="p", by=["odd"])


def test_fits_name_the_columns_that_they_do_not_read():
    with pytest.warns(UnreadColumnWarning, match="'odd', it has a type that trueup does not read: List"):
        tu.MCGrad(prediction="p").fit(unread()["polars"][0].drop("y"), ROWS["y"])


def test_scans_name_the_columns_that_they_do_not_read(tmp_path):
    pl.DataFrame({**ROWS, "odd": [[1]] * N, "s": [{"a": 1}] * N}).write_parquet(path := tmp_path / "rows.parquet")
    with pytest.warns(UnreadColumnWarning, match=r"2 columns are left out: 'odd', .*BIGINT\[\]; 's', .*STRUCT"):
        audit = tu.audit(tu.scan(path), outcome="y", prediction="p")
    assert set(audit.left_out) == {"odd", "s"}
    with pytest.raises(ColumnError, match=r"column 'odd' has a type that trueup does not read: BIGINT\[\]"):
        tu.audit(tu.scan(path), outcome="y", prediction="p", by=["odd"])


def test_a_column_that_one_partition_cannot_read_is_left_out_of_all():
    odd = np.empty(N, object)
    odd[:] = [[1]] * N
    roles = assign_roles(["y", "p", "odd"], outcome="y", prediction="p")
    one, other = (
        TableProfile.of({**ROWS, "odd": column}, number, roles) for number, column in enumerate((odd, np.array([None] * N)))
    )
    for total in (one + other, other + one):
        with pytest.warns(UnreadColumnWarning, match="list"):
            schema, left_out = total.describe(roles)
        assert schema.features == ()
        assert list(left_out) == ["odd"]
    with pytest.raises(ColumnError, match="list"):
        TableProfile.of(
            {**ROWS, "odd": odd}, 0, assign_roles(["y", "p", "odd"], outcome="y", prediction="p", features=["odd"])
        )


def test_spark_types_that_are_not_read_are_named():
    types = pytest.importorskip("pyspark.sql.types")
    from types import SimpleNamespace

    from trueup.cluster.spark import SparkFrame, arrow_types

    fields = [types.StructField("a", types.ArrayType(types.IntegerType())), types.StructField("x", types.LongType())]
    fields += [types.StructField("blob", types.BinaryType()), types.StructField("wait", types.DayTimeIntervalType())]
    frame = SimpleNamespace(schema=types.StructType(fields), columns=[field.name for field in fields])
    assert SparkFrame(frame).unread_types(frame.columns) == {"a": "array<int>", "blob": "binary"}
    with pytest.raises(ColumnError, match="column 'blob' has a type that trueup does not read: binary"):
        arrow_types(frame, ["blob"])
    assert arrow_types(frame, ["wait"]) == {"wait": "duration[us]"}


# Times of day and durations


def times():
    clock = [dt.time(9, 30), None, dt.time(23, 15, 36)] * (N // 3)
    wait = [dt.timedelta(seconds=90), None, dt.timedelta(days=2, microseconds=500_000)] * (N // 3)
    columns = {**ROWS, "clock": clock, "wait": wait}
    return {
        "pandas": pd.DataFrame(columns).astype({"wait": "timedelta64[ns]"}),
        "polars": pl.DataFrame(columns),
        "arrow": pa.table(columns),
        "objects": {
            name: np.array(list(column), object) if name in ("clock", "wait") else column
            for name, column in columns.items()
        },
    }


@pytest.mark.parametrize("name", times())
def test_times_are_hours_and_durations_seconds(name):
    table = read(times()[name], outcome="y", prediction="p")
    np.testing.assert_allclose(table.columns["clock"][:3], [9.5, np.nan, 23.26], rtol=1e-15)
    np.testing.assert_allclose(table.columns["wait"][:3], [90, np.nan, 172800.5], rtol=1e-15)


def test_times_and_intervals_of_files_are_read_as_those_of_frames(tmp_path):
    pl.DataFrame({"clock": times()["polars"]["clock"]}).write_parquet(path := tmp_path / "rows.parquet")
    query = "SELECT clock, INTERVAL '1 day 90 seconds' AS wait FROM data"
    columns = read_files(path, sql=query)
    expected = read(times()["polars"], outcome="y", prediction="p").columns["clock"]
    np.testing.assert_array_equal(np.ma.filled(columns["clock"], np.nan), expected)
    assert set(columns["wait"].tolist()) == {86490.0}
    texts = read_files(path, sql=query, text=["clock", "wait"])
    frame = {**ROWS, "clock": np.array(list(times()["polars"]["clock"]), object)}
    table = read(frame, outcome="y", prediction="p", categorical=["clock"])
    assert texts["clock"].levels == table.schema.features[0].levels == ("23.26", "9.5")
    assert texts["wait"].levels == ("86490",)


def test_a_row_may_hold_times():
    frame = times()["polars"]
    with warnings.catch_warnings():
        model = tu.MCGrad(prediction="p", features=["clock", "wait"]).fit(frame, frame["y"]).model_
    row = {"p": 0.4, "clock": dt.time(9, 30), "wait": dt.timedelta(seconds=90)}
    assert model.predict_one(row) == model.predict(pl.DataFrame({name: [value] for name, value in row.items()}))[0]
