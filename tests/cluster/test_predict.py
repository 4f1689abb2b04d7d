"""A model predicts the same in memory, on Spark and on Dask."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import trueup as tu
from trueup.errors import ColumnError, DataError

ROWS = 600


def _loans(seed):
    random = np.random.default_rng(seed)
    p = random.uniform(0.05, 0.95, ROWS)
    country = random.choice(np.array(["BR", "DE", "US", None], object), ROWS)
    return pd.DataFrame({
        "p": p,
        "country": country,
        "age": np.where(random.random(ROWS) < 0.1, np.nan, random.integers(18, 80, ROWS)),
        "new": random.random(ROWS) < 0.3,
        "day": pd.Timestamp("2022-01-01") + pd.to_timedelta(random.integers(0, 40, ROWS), "D"),
        "note.s": "left alone",
        "y": (random.random(ROWS) < np.clip(p + 0.2 * (country == "BR"), 0, 1)).astype(int),
    })  # fmt: skip


FEATURES = ["country", "age", "new", "day"]


@pytest.fixture(scope="module")
def fix():
    train = _loans(0)
    return tu.MCGrad("p", features=FEATURES, rounds=1, trees=10, stopping=None).fit(train, train["y"])


@pytest.fixture(scope="module")
def live():
    """Other rows; the last hundred have a country that was not seen in training."""
    rows = _loans(1)
    rows.loc[500:, "country"] = "FR"
    rows.loc[:99, "country"] = None
    return rows


def test_spark_adds_the_predictions_of_rows_in_memory(spark, fix, live):
    expected = fix.predict(live)
    assert np.abs(expected - live["p"]).max() > 0.01
    frame = spark.createDataFrame(live).repartition(3)
    for scored in (fix.predict(frame), fix.model_.predict(frame, threads=1)):
        assert scored.columns == [*live.columns, "p_trueup"]
        assert dict(scored.dtypes)["p_trueup"] == "double"
    found = fix.predict(frame).toArrow().to_pandas().sort_values("p", ignore_index=True)
    order = np.argsort(live["p"].to_numpy())
    np.testing.assert_array_equal(found["p_trueup"], expected[order])
    np.testing.assert_array_equal(found["p"], live["p"].to_numpy()[order])
    assert set(found["note.s"]) == {"left alone"}
    few = frame.filter("p < 0").cache()  # no rows at all
    assert fix.predict(few).collect() == []


def test_dask_returns_a_series_with_the_index_of_the_frame(client, fix, live):
    import dask.dataframe as dd

    live = live.set_index(np.arange(1000, 1000 + ROWS))
    frame = dd.from_pandas(live, npartitions=4)
    scored = fix.predict(frame)
    assert (scored.name, scored.dtype, scored.npartitions) == ("p_trueup", np.float64, 4)
    found = scored.compute()
    np.testing.assert_array_equal(found.index, live.index)
    np.testing.assert_array_equal(found.to_numpy(), fix.predict(live))
    beside = frame.assign(fixed=scored).compute()
    np.testing.assert_array_equal(beside["fixed"], found)


def test_several_classes_give_several_columns(client, spark):
    import dask.dataframe as dd

    random = np.random.default_rng(2)
    scores = random.dirichlet(np.ones(3), ROWS)
    names = ["p_a", "p_b", "p_c"]
    rows = pd.DataFrame(scores, columns=names).assign(
        kind=random.choice(["x", "y"], ROWS), y=random.choice(list("abc"), ROWS)
    )
    fix = tu.Temperature(names).fit(rows, "y")
    expected = fix.predict(rows)
    new = [f"{name}_trueup" for name in names]
    found = fix.predict(dd.from_pandas(rows, npartitions=2)).compute()
    assert list(found) == new
    np.testing.assert_array_equal(found.to_numpy(), expected)
    there = fix.predict(spark.createDataFrame(rows).repartition(2)).toArrow().to_pandas().sort_values("p_a")
    np.testing.assert_array_equal(there[new], expected[np.argsort(rows["p_a"].to_numpy())])


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda rows: rows.drop(columns="age"), ColumnError, "no column 'age', which the model needs as feature"),
        (lambda rows: rows.drop(columns="p"), ColumnError, "no column 'p', which the model needs as prediction"),
        (
            lambda rows: rows.assign(age=rows["country"].fillna("?")),
            ColumnError,
            "column 'age' was numeric and now holds texts",
        ),
        (lambda rows: rows.assign(p=rows["day"]), DataError, "prediction column 'p' must hold numbers; got dates"),
    ],
)
def test_wrong_columns_are_rejected_before_anything_runs(client, spark, fix, live, change, error, message):
    import dask.dataframe as dd

    rows = change(live)
    for frame in (dd.from_pandas(rows, npartitions=2), spark.createDataFrame(rows)):
        with pytest.raises(error, match=message):
            fix.predict(frame)


def test_existing_names_and_unsupported_types_are_rejected(spark, fix, live):
    frame = spark.createDataFrame(live)
    with pytest.raises(ColumnError, match="there is a column 'p_trueup' already"):
        fix.predict(frame.withColumnRenamed("note.s", "P_Trueup"))
    from pyspark.sql import functions

    with pytest.raises(ColumnError, match="column 'age' has a type that trueup does not read: array<double>"):
        fix.predict(frame.withColumn("age", functions.array("age")))


def test_an_invalid_row_is_reported_when_it_is_computed(client, fix, live):
    import dask.dataframe as dd

    rows = live.copy()
    rows.loc[307, "p"] = 7.5
    with pytest.raises(DataError, match=r"got 7\.5 at row 7 of partition 2"):
        fix.predict(dd.from_pandas(rows, npartitions=4)).compute()
