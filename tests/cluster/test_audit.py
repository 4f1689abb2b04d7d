"""Audits of frames of Spark and Dask: the numbers of an audit in memory."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest

import trueup as tu
from same_audit import assert_same_audit
from trueup.audits import partitions

ROLES = {"outcome": "outcome", "prediction": "prediction", "by": ["region", "product", "age", "opened"], "weight": "w"}
CUTS = (0, 900, 900, 2_000, 3_000)  # the second part has no rows


@pytest.fixture(scope="module")
def loans():
    """3,000 loans; a level that only the first part has, and ages that are not known."""
    made, random = tu.simulate.lending(3_000, seed=0), np.random.default_rng(0)
    frame = pd.DataFrame({name: np.asarray(made[name]) for name in ("region", "product", "age", "outcome", "prediction")})
    opened = pd.Series(np.asarray(made["opened"]).astype("datetime64[us]"))
    frame = frame.assign(opened=opened, w=random.choice([0.0, 0.5, 1.0, 2.0], 3_000))
    frame.loc[:99, "product"] = "boat"
    frame["outcome"] = frame["outcome"].astype(float)
    frame.loc[random.random(3_000) < 0.05, "age"] = np.nan
    return frame.assign(customer=[f"customer {number}" for number in random.integers(0, 400, 3_000)])


@pytest.fixture(scope="module")
def frames(client, spark, loans):
    """Lay the same rows out in the parts of both."""
    import dask.dataframe as dd
    import pyarrow as pa

    parts = [loans[a:b] for a, b in itertools.pairwise(CUTS)]
    table = pa.Table.from_pandas(loans, preserve_index=False)
    made = spark.createDataFrame(table)
    rows = [tuple(row) for row in made.collect()]
    some = [rows[a:b] for a, b in itertools.pairwise(CUTS)]
    spread = spark.createDataFrame(spark.sparkContext.parallelize(some, len(some)).flatMap(list), made.schema)
    return {
        "dask": dd.from_delayed([client.submit(lambda part=part: part) for part in parts], meta=loans[:0]),
        "spark": spread.cache(),
    }


@pytest.fixture(scope="module")
def here(loans):
    return tu.audit(loans, **ROLES)


@pytest.mark.parametrize("engine", ["dask", "spark"])
def test_clusters_of_rows_are_kept_together(frames, loans, engine, monkeypatch):
    monkeypatch.setattr(partitions, "ROWS_PER_TASK", 500)
    assert_same_audit(tu.audit(loans, **ROLES, cluster="customer"), tu.audit(frames[engine], **ROLES, cluster="customer"))


@pytest.mark.parametrize("engine", ["dask", "spark"])
@pytest.mark.parametrize("ranges", [1, 6])
def test_an_audit_on_a_cluster_is_that_in_memory(frames, here, engine, ranges, monkeypatch):
    monkeypatch.setattr(partitions, "ROWS_PER_TASK", 3_000 // ranges)
    there = tu.audit(frames[engine], **ROLES)
    assert_same_audit(here, there)
    assert there["product=boat"].n == here["product=boat"].n > 50
    assert there["age is missing"].n > 50
    assert there.weightless > 0


@pytest.mark.parametrize("engine", ["dask", "spark"])
def test_real_outcomes_are_audited_on_the_cluster(frames, loans, engine, monkeypatch):
    roles = {"outcome": "w", "prediction": "prediction", "task": "regression", "by": ["region", "product"]}
    monkeypatch.setattr(partitions, "ROWS_PER_TASK", 500)
    here, there = tu.audit(loans, **roles), tu.audit(frames[engine], **roles)
    assert_same_audit(here, there)
