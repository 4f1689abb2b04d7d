"""Rows in parts, with their roles settled: what is read of them is what is read of all rows at once."""

from __future__ import annotations

import pickle
from functools import partial

import numpy as np
import pandas as pd
import pytest

from partitioned import Listed
from trueup._optional import require
from trueup.cluster.partitions import as_cluster_frame, engine_of, need, open_cluster_frame, open_partitions
from trueup.data import profile
from trueup.data.frame import read
from trueup.data.scan import scan
from trueup.errors import ArgumentError, ColumnError, DataError, MissingPackageError

ROLES = {"outcome": "y", "prediction": "p"}


def _loans(rows=600):
    random = np.random.default_rng(3)
    p = random.uniform(0.05, 0.95, rows)
    return pd.DataFrame({
        "p": p,
        "y": np.where(random.random(rows) < 0.1, np.nan, random.random(rows) < p),
        "w": random.choice([0.0, 1.0, 2.0], rows),
        "country": random.choice(np.array(["BR", "DE", "US", None], object), rows),
        "age": np.where(random.random(rows) < 0.1, np.nan, random.integers(18, 80, rows)),
        "new": random.random(rows) < 0.3,
        "day": pd.Timestamp("2022-01-01") + pd.to_timedelta(random.integers(0, 86_400 * 5, rows), "s"),
    })  # fmt: skip


def _cut(frame, *places):
    return Listed([frame.iloc[a:b] for a, b in zip([0, *places], [*places, len(frame)], strict=True)])


def _row_count(table, number):
    return {number: len(table)}


def _merge(a, b):
    return {**a, **b}


FULL = {**ROLES, "weight": "w", "unlabelled": "drop"}


def test_parts_hold_the_rows_that_are_read_at_once():
    frame = _loans()
    whole = read(frame, **FULL)
    with open_cluster_frame(_cut(frame, 100, 100, 450), **FULL) as parts:
        tables = list(parts.iter_tables())
        assert parts.schema == whole.schema
        assert (parts.rows, parts.left_out, parts.discrete_outcomes) == (600, {}, True)
        assert parts.roles["weight"] == "w"
        assert parts.map_reduce(_row_count, _merge) == {at: len(table) for at, table in enumerate(tables)}
        assert parts.spill_directory.is_dir()
    assert not parts.spill_directory.exists()
    assert len(tables[1]) == 0
    assert all(table.schema == whole.schema for table in tables)
    for name, column in whole.columns.items():
        np.testing.assert_array_equal(np.concatenate([table.columns[name] for table in tables]), column)
        assert {table.columns[name].dtype for table in tables} == {column.dtype}
    for role in ("prediction", "outcome", "weight"):
        np.testing.assert_array_equal(np.concatenate([getattr(table, role) for table in tables]), getattr(whole, role))
    assert sum(table.unlabelled for table in tables) == whole.unlabelled
    assert sum(table.weightless for table in tables) == whole.weightless


def test_several_classes_have_one_place_each_in_all_parts():
    outcomes = ["cat", "cat", "elk", "dog", None]
    frame = pd.DataFrame({"y": outcomes, **{f"p_{one}": [1 / 3] * 5 for one in ("cat", "dog", "elk")}, "a": list("xyxyx")})
    roles = {"outcome": "y", "prediction": ["p_cat", "p_dog", "p_elk"], "unlabelled": "drop"}
    with open_cluster_frame(_cut(frame, 2, 2, 4), **roles) as parts:
        tables = list(parts.iter_tables())
        assert parts.schema == read(frame, **roles).schema
        assert parts.discrete_outcomes
    assert np.concatenate([table.outcome for table in tables]).tolist() == [0, 0, 2, 1]
    assert {table.prediction.shape[1] for table in tables} == {3}


def test_columns_and_outcomes_without_a_value_in_one_part_are_read():
    frame = pd.DataFrame({
        "p": [0.2, 0.4, 0.6, 0.8], "y": pd.Series([0, 1, None, None], dtype=object),
        "flag": pd.Series([True, False, None, None], dtype=object), "age": pd.Series([3.5, 4, None, None], dtype=object),
    })  # fmt: skip
    with open_cluster_frame(_cut(frame, 2), **ROLES, unlabelled="drop") as parts:
        tables = list(parts.iter_tables())
    assert [len(table) for table in tables] == [2, 0]
    with open_cluster_frame(_cut(frame.assign(y=[0, 1, 0, 1]), 2), **ROLES) as parts:
        tables = list(parts.iter_tables())
    assert tables[1].columns["flag"].tolist() == [-1, -1]
    assert np.isnan(tables[1].columns["age"]).all()


def test_what_travels_is_pickled_plainly():
    with open_cluster_frame(_cut(_loans(), 300), **FULL) as parts:
        again = pickle.loads(pickle.dumps(parts.reader))
    table = again(_loans(), 0)
    assert table.schema == parts.schema


def test_values_are_a_sample_of_the_rows_that_count(monkeypatch):
    frame = _loans()
    whole = read(frame, **FULL)
    with open_cluster_frame(_cut(frame, 250), **FULL) as parts:
        for name in ("age", "day"):
            values, every = parts.values(name)
            assert every
            np.testing.assert_array_equal(np.sort(values), np.sort(whole.columns[name]))
        assert parts.values("p")[0].shape == whole.prediction.shape
        full = parts.distinct("age", 1000), parts.distinct("day", 1000, days=True)
        assert [parts.has_missing(name) for name in ("age", "country", "new", "day")] == [True, True, False, False]
    monkeypatch.setattr(profile, "MAX_SAMPLE_ROWS", 50)
    with open_cluster_frame(_cut(frame, 250), **FULL) as parts:
        values, every = parts.values("age")
        assert (len(values), every) == (50, False)
        np.testing.assert_array_equal(parts.distinct("age", 1000), full[0])
        np.testing.assert_array_equal(parts.distinct("day", 1000, days=True), full[1])
        some = parts.distinct("age", 5)
        assert 5 < len(some) <= 8
        assert np.isnan(some[-1])


def test_a_bad_row_is_told_with_its_part():
    frame = _loans().assign(y=1.0)
    frame.loc[307, "p"] = 7.5
    with (
        pytest.raises(DataError, match=r"got 7.5 at row 7 of partition 3\n"),
        open_cluster_frame(_cut(frame, 100, 200, 300), **ROLES),
    ):
        pass
    names = ["p", "q"]
    classes = pd.DataFrame({"y": ["p", "q", "r"], "p": [0.5] * 3, "q": [0.5] * 3})
    with (
        open_cluster_frame(_cut(classes, 1), outcome="y", prediction=names, classes=names) as parts,
        pytest.raises(DataError, match=r"holds a class without a prediction column: 'r' at row 1 of partition 1\n"),
    ):
        parts.map_reduce(_row_count, _merge)


def test_rows_that_are_not_there_and_roles_that_are_no_names_are_refused():
    frame = _loans()
    for frames, roles, error in (
        (_cut(frame.iloc[:0], 0), ROLES, "the data has no rows"),
        (_cut(frame), {**ROLES, "outcome": frame["y"]}, "the outcome must be the name of a column"),
        (_cut(frame), {**ROLES, "weight": np.ones(600)}, "the weight must be the name of a column"),
    ):
        with pytest.raises((ArgumentError, DataError), match=error), open_cluster_frame(frames, **roles):
            pass


def test_the_folder_goes_with_an_error_too(tmp_path):
    with pytest.raises(KeyError), open_cluster_frame(_cut(_loans(), 9), **FULL, spill=tmp_path) as parts:
        (parts.spill_directory / "rows").write_text(parts.values("no such column"))
    assert not list(tmp_path.iterdir())


def test_the_engine_is_told_by_the_type(tmp_path):
    frame = _loans()
    assert engine_of(scan(tmp_path / "a.parquet")) == "scan"
    assert [engine_of(one) for one in (frame, frame["p"], {"p": [1]}, np.ones(3), None)] == [None] * 5
    dd = require("dask.dataframe", extra="dask")
    lazy = dd.from_pandas(frame, npartitions=2)
    assert (engine_of(lazy), engine_of(lazy["p"])) == ("dask", None)
    for place in ("pyspark.sql.classic.dataframe", "pyspark.sql.connect.dataframe"):
        assert engine_of(type("DataFrame", (), {"__module__": place})()) == "spark"
    with pytest.raises(ArgumentError, match="the rows of a dict do not lie on a cluster"):
        as_cluster_frame({})


def test_a_scan_is_opened_by_the_same_door(tmp_path):
    frame = _loans().drop(columns="day")
    frame.to_parquet(tmp_path / "loans.parquet")
    with open_partitions(scan(tmp_path / "loans.parquet"), **FULL) as parts:
        assert parts.schema == read(frame, **FULL).schema


def test_installed_engines_are_there():
    need("spark")
    need("dask")
    need("scan")


@pytest.mark.parametrize("scheduler", ["synchronous", "threads"])
def test_dask_without_a_cluster_folds_and_streams(scheduler):
    dask = require("dask", extra="dask")
    dd = require("dask.dataframe", extra="dask")
    frame = _loans()
    lazy = dd.from_pandas(frame, npartitions=5, sort=False)
    whole = read(frame, **FULL)
    with dask.config.set(scheduler=scheduler), open_partitions(lazy, **FULL) as parts:
        assert parts.schema == whole.schema
        assert sum(parts.map_reduce(_row_count, _merge).values()) == len(whole)
        np.testing.assert_array_equal(np.concatenate([table.prediction for table in parts.iter_tables()]), whole.prediction)
        with pytest.raises(ArgumentError, match="there is no client"):
            parts.run_workers(partial(len))
        with pytest.raises(DataError, match="at row 0 of partition "), open_partitions(lazy.assign(p=2.0), **FULL):
            pass
    with pytest.raises(ColumnError, match="must be named by texts; got 3"):
        as_cluster_frame(lazy.rename(columns={"p": 3}))


class _Bare:
    """A client of workers that lack this package."""

    def run(self, do, *args):
        raise ModuleNotFoundError("No module named 'trueup'")


def test_workers_without_this_package_are_told_of(monkeypatch):
    from trueup.cluster import dask as on_dask
    from trueup.cluster import spark as on_spark

    dd = require("dask.dataframe", extra="dask")
    lazy = dd.from_pandas(_loans(), npartitions=2)
    monkeypatch.setattr(on_dask, "active_client", _Bare)
    with pytest.raises(MissingPackageError, match="the workers of the Dask cluster cannot import trueup"):
        as_cluster_frame(lazy)
    pages = "An error occurred while calling o1.collect.\n: org.apache.spark.SparkException: Job aborted\n\tat x.y\n"
    assert "cannot import trueup" in str(on_spark._in_short(f"{pages}ModuleNotFoundError: No module named 'trueup'\n"))
    assert str(on_spark._in_short(pages)).startswith("Spark failed: org.apache.spark.SparkException: Job aborted\nhint")
