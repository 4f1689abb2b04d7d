"""Rows in partitions are read as all rows at once are."""

from __future__ import annotations

import pickle
from functools import partial

import numpy as np
import pandas as pd
import pytest

from partitioned import Listed
from trueup._optional import require
from trueup.cluster.partitions import as_cluster_frame, open_cluster_frame, open_partitions, require_engine
from trueup.data import profile
from trueup.data.columns import engine_of
from trueup.data.frame import read
from trueup.data.scan import scan
from trueup.errors import ArgumentError, ColumnError, DataError, MissingPackageError, TrueupError

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


def _split(frame, *places):
    return Listed([frame.iloc[a:b] for a, b in zip([0, *places], [*places, len(frame)], strict=True)])


def _row_count(table, number):
    return {number: len(table)}


def _merge(a, b):
    return {**a, **b}


FULL = {**ROLES, "weight": "w", "unlabelled": "drop"}


def test_partitions_hold_the_rows_that_are_read_at_once():
    frame = _loans()
    expected = read(frame, **FULL)
    with open_cluster_frame(_split(frame, 100, 100, 450), **FULL) as partitions:
        tables = list(partitions.iter_tables())
        assert partitions.schema == expected.schema
        assert (partitions.rows, partitions.left_out, partitions.discrete_outcomes) == (600, {}, True)
        assert partitions.roles.weight == "w"
        assert partitions.map_reduce(_row_count, _merge) == {number: len(table) for number, table in enumerate(tables)}
        assert partitions.spill_directory.is_dir()
    assert not partitions.spill_directory.exists()
    assert len(tables[1]) == 0
    assert all(table.schema == expected.schema for table in tables)
    for name, column in expected.columns.items():
        np.testing.assert_array_equal(np.concatenate([table.columns[name] for table in tables]), column)
        assert {table.columns[name].dtype for table in tables} == {column.dtype}
    for role in ("prediction", "outcome", "weight"):
        np.testing.assert_array_equal(np.concatenate([getattr(table, role) for table in tables]), getattr(expected, role))
    assert sum(table.unlabelled for table in tables) == expected.unlabelled
    assert sum(table.weightless for table in tables) == expected.weightless


def test_classes_have_the_same_codes_in_all_partitions():
    outcomes = ["cat", "cat", "elk", "dog", None]
    frame = pd.DataFrame(
        {"y": outcomes, **{f"p_{item}": [1 / 3] * 5 for item in ("cat", "dog", "elk")}, "a": list("xyxyx")}
    )
    roles = {"outcome": "y", "prediction": ["p_cat", "p_dog", "p_elk"], "unlabelled": "drop"}
    with open_cluster_frame(_split(frame, 2, 2, 4), **roles) as partitions:
        tables = list(partitions.iter_tables())
        assert partitions.schema == read(frame, **roles).schema
        assert partitions.discrete_outcomes
    assert np.concatenate([table.outcome for table in tables]).tolist() == [0, 0, 2, 1]
    assert {table.prediction.shape[1] for table in tables} == {3}


def test_columns_and_outcomes_without_values_in_one_partition_are_read():
    frame = pd.DataFrame({
        "p": [0.2, 0.4, 0.6, 0.8], "y": pd.Series([0, 1, None, None], dtype=object),
        "flag": pd.Series([True, False, None, None], dtype=object), "age": pd.Series([3.5, 4, None, None], dtype=object),
    })  # fmt: skip
    with open_cluster_frame(_split(frame, 2), **ROLES, unlabelled="drop") as partitions:
        tables = list(partitions.iter_tables())
    assert [len(table) for table in tables] == [2, 0]
    with open_cluster_frame(_split(frame.assign(y=[0, 1, 0, 1]), 2), **ROLES) as partitions:
        tables = list(partitions.iter_tables())
    assert tables[1].columns["flag"].tolist() == [-1, -1]
    assert np.isnan(tables[1].columns["age"]).all()


def test_the_reader_can_be_pickled():
    with open_cluster_frame(_split(_loans(), 300), **FULL) as partitions:
        again = pickle.loads(pickle.dumps(partitions.reader))
    table = again(_loans(), 0)
    assert table.schema == partitions.schema


def test_values_are_a_sample_of_the_rows_with_outcome_and_weight(monkeypatch):
    frame = _loans()
    expected = read(frame, **FULL)
    with open_cluster_frame(_split(frame, 250), **FULL) as partitions:
        for name in ("age", "day"):
            values, every = partitions.sample(name)
            assert every
            np.testing.assert_array_equal(np.sort(values), np.sort(expected.columns[name]))
        assert partitions.sample("p")[0].shape == expected.prediction.shape
        full = partitions.distinct("age", 1000), partitions.distinct("day", 1000, days=True)
        assert [partitions.has_missing(name) for name in ("age", "country", "new", "day")] == [True, True, False, False]
    monkeypatch.setattr(profile, "MAX_SAMPLE_ROWS", 50)
    with open_cluster_frame(_split(frame, 250), **FULL) as partitions:
        values, every = partitions.sample("age")
        assert (len(values), every) == (50, False)
        np.testing.assert_array_equal(partitions.distinct("age", 1000), full[0])
        np.testing.assert_array_equal(partitions.distinct("day", 1000, days=True), full[1])
        some = partitions.distinct("age", 5)
        assert 5 < len(some) <= 8
        assert np.isnan(some[-1])


def test_an_invalid_row_is_reported_with_its_partition():
    frame = _loans().assign(y=1.0)
    frame.loc[307, "p"] = 7.5
    with (
        pytest.raises(DataError, match=r"got 7.5 at row 7 of partition 3\n"),
        open_cluster_frame(_split(frame, 100, 200, 300), **ROLES),
    ):
        pass
    names = ["p", "q"]
    classes = pd.DataFrame({"y": ["p", "q", "r"], "p": [0.5] * 3, "q": [0.5] * 3})
    with (
        open_cluster_frame(_split(classes, 1), outcome="y", prediction=names, classes=names) as partitions,
        pytest.raises(DataError, match=r"holds a class without a prediction column: 'r' at row 1 of partition 1\n"),
    ):
        partitions.map_reduce(_row_count, _merge)


def test_frames_without_rows_and_roles_that_are_not_names_are_rejected():
    frame = _loans()
    for frames, roles, error in (
        (_split(frame.iloc[:0], 0), ROLES, "the data has no rows"),
        (_split(frame), {**ROLES, "outcome": frame["y"]}, "the outcome must be the name of a column"),
        (_split(frame), {**ROLES, "weight": np.ones(600)}, "the weight must be the name of a column"),
    ):
        with pytest.raises((ArgumentError, DataError), match=error), open_cluster_frame(frames, **roles):
            pass


def test_the_spill_directory_is_deleted_after_an_error(tmp_path):
    with pytest.raises(KeyError), open_cluster_frame(_split(_loans(), 9), **FULL, spill=tmp_path) as partitions:
        (partitions.spill_directory / "rows").write_text(partitions.sample("no such column"))
    assert not list(tmp_path.iterdir())


def test_the_type_determines_the_engine(tmp_path):
    frame = _loans()
    assert engine_of(scan(tmp_path / "a.parquet")) == "scan"
    assert [engine_of(item) for item in (frame, frame["p"], {"p": [1]}, np.ones(3), None)] == [None] * 5
    dd = require("dask.dataframe", extra="dask")
    lazy = dd.from_pandas(frame, npartitions=2)
    assert (engine_of(lazy), engine_of(lazy["p"])) == ("dask", None)
    for place in ("pyspark.sql.classic.dataframe", "pyspark.sql.connect.dataframe"):
        assert engine_of(type("DataFrame", (), {"__module__": place})()) == "spark"
    with pytest.raises(ArgumentError, match="a dict is not a cluster frame"):
        as_cluster_frame({})


def test_a_scan_is_opened_by_the_same_function(tmp_path):
    frame = _loans().drop(columns="day")
    frame.to_parquet(tmp_path / "loans.parquet")
    with open_partitions(scan(tmp_path / "loans.parquet"), **FULL) as partitions:
        assert partitions.schema == read(frame, **FULL).schema


def test_installed_engines_are_accepted():
    require_engine("spark")
    require_engine("dask")
    require_engine("scan")


@pytest.mark.parametrize("scheduler", ["synchronous", "threads"])
def test_dask_without_a_cluster_maps_and_iterates(scheduler, monkeypatch):
    monkeypatch.setattr("trueup.cluster.dask.active_client", lambda: None)  # other tests may have made one
    dask = require("dask", extra="dask")
    dd = require("dask.dataframe", extra="dask")
    frame = _loans()
    lazy = dd.from_pandas(frame, npartitions=5, sort=False)
    expected = read(frame, **FULL)
    with dask.config.set(scheduler=scheduler), open_partitions(lazy, **FULL) as partitions:
        assert partitions.schema == expected.schema
        assert sum(partitions.map_reduce(_row_count, _merge).values()) == len(expected)
        np.testing.assert_array_equal(
            np.concatenate([table.prediction for table in partitions.iter_tables()]), expected.prediction
        )
        with pytest.raises(ArgumentError, match="there is no client"):
            partitions.run_workers(partial(len))
        with pytest.raises(DataError, match="at row 0 of partition "), open_partitions(lazy.assign(p=2.0), **FULL):
            pass
    with pytest.raises(ColumnError, match="column names of a Dask frame must be texts; got 3"):
        as_cluster_frame(lazy.rename(columns={"p": 3}))


class _ClientWithoutTrueup:
    """A client of workers that cannot import trueup."""

    def run(self, do, *args):
        raise ModuleNotFoundError("No module named 'trueup'")


def test_workers_without_trueup_are_reported(monkeypatch):
    from pyspark.errors import PySparkException

    from trueup.cluster import dask as on_dask
    from trueup.cluster import spark as on_spark

    dd = require("dask.dataframe", extra="dask")
    lazy = dd.from_pandas(_loans(), npartitions=2)
    monkeypatch.setattr(on_dask, "active_client", _ClientWithoutTrueup)
    with pytest.raises(MissingPackageError, match="the workers of the Dask cluster cannot import trueup"):
        as_cluster_frame(lazy)
    pages = "An error occurred while calling o1.collect.\n: org.apache.spark.SparkException: Job aborted\n\tat x.y\n"
    with pytest.raises(MissingPackageError, match="cannot import trueup"), on_spark.spark_errors():
        raise PySparkException(f"{pages}ModuleNotFoundError: No module named 'trueup'\n")
    with (
        pytest.raises(TrueupError, match=r"^Spark failed: org\.apache\.spark\.SparkException: Job aborted\n"),
        on_spark.spark_errors(),
    ):
        raise PySparkException(pages)
