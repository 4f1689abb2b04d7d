"""Corrections as SQL in Spark: the scores of the model."""

import numpy as np
import pandas as pd
import pytest

import exported
from sql_rows import ROW, assert_same, dated_model, hostile_model, rows
from trueup.exports.lower import lower
from trueup.exports.sql import write_statements


def run(spark, model, columns, limit=200_000):
    """Return the numbers that the SQL selects, in the order of the rows."""
    frame = pd.DataFrame({ROW: np.arange(len(next(iter(columns.values()))))} | columns)
    spark.createDataFrame(frame).createOrReplaceTempView("scores")
    for statement in write_statements(lower(model), dialect="spark", keep=[ROW], checks=True, limit=limit):
        selected = spark.sql(statement)
    found = np.array([[np.nan if value is None else value for value in row] for row in selected.collect()], float)
    return found[np.argsort(found[:, 0]), 1:]


@pytest.mark.parametrize("name", ["mcgrad_default", "mcgrad_classes", "lsboost_lines", "hkrr", "grouped_isotonic"])
def test_spark_returns_the_scores_of_the_model(spark, name):
    model = exported.MODELS[name]()
    columns = rows(lower(model), 200)
    assert_same(run(spark, model, columns), model, columns)


def test_statements_are_divided_at_the_limit(spark):
    model = exported.MODELS["mcgrad_default"]()
    columns = rows(lower(model), 200)
    assert_same(run(spark, model, columns, limit=8_000), model, columns)


@pytest.mark.parametrize("make", [hostile_model, dated_model])
def test_names_levels_and_dates(spark, make):
    model = make()
    columns = rows(lower(model))
    assert_same(run(spark, model, columns), model, columns)
