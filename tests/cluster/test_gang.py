"""Processes of a cluster that work together: who has which rows, and what they find."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gangs
from trueup.data.spill import PREFIX
from trueup.errors import ArgumentError, DataError

ROWS = gangs.loans(100)
COLUMNS = list(ROWS)
SCHEMA = "region string, age double, p double, y double, w double"
SUMS = [ROWS["p"].sum(), ROWS["y"].sum(), ROWS["w"].sum(), gangs.rows(100).columns["region"].sum()]


@pytest.fixture
def on_dask(client):
    """Run a gang on Dask."""
    from trueup.cluster.dask_workers import gang

    def run(frame, work=gangs.overview, prepare=gangs.prepare):
        return gang(frame, prepare, work, COLUMNS)

    yield run
    assert all(rooms == [] for rooms in client.run(gangs.dask_rooms).values())


def _frame(parts):
    import dask.dataframe as dd
    import pandas as pd

    return dd.from_pandas(pd.DataFrame(ROWS), npartitions=parts, sort=False)


def test_dask_workers_have_neighbouring_partitions(on_dask):
    found = on_dask(_frame(5))
    assert found["parts"] == [[0, 1, 2], [3, 4]]
    assert [member[:2] for member in found["members"]] == [[60, 3], [40, 2]]
    np.testing.assert_allclose(found["sums"], SUMS, rtol=1e-12)


def test_a_dask_frame_that_is_persisted_is_worked_on_where_it_lies(on_dask, client):
    import distributed

    frame = _frame(4).persist(workers=[max(client.nthreads())])
    distributed.wait(frame)
    found = on_dask(frame)
    assert found["parts"] == [[0, 1, 2, 3]]
    np.testing.assert_allclose(found["sums"], SUMS, rtol=1e-12)


def test_an_error_in_a_dask_partition_arrives_as_it_was(on_dask):
    with pytest.raises(DataError, match="part 99 is no good"):
        on_dask(_frame(2), prepare=gangs.prepare_badly)


@pytest.fixture
def on_spark(spark):
    """Run a gang on Spark."""
    from trueup.cluster.spark_workers import gang

    spark.sparkContext.addPyFile(gangs.__file__)

    def run(frame, work=gangs.overview, prepare=gangs.prepare):
        found = gang(frame, prepare, work, COLUMNS)
        assert list(Path(found["rooms"]).glob(PREFIX + "*")) == []
        return found

    return run


@pytest.fixture
def frame(spark):
    """Give rows to Spark in two partitions."""
    rows = [
        tuple(None if one is None else one for one in row)
        for row in zip(*(ROWS[name].tolist() for name in COLUMNS), strict=True)
    ]
    return spark.createDataFrame(spark.sparkContext.parallelize(rows, 2), SCHEMA)


def test_every_partition_of_spark_is_a_member_where_slots_suffice(on_spark, frame):
    found = on_spark(frame)
    assert found["parts"] == [[0], [1]]
    assert [member[0] for member in found["members"]] == [50, 50]
    np.testing.assert_allclose(found["sums"], SUMS, rtol=1e-12)


def test_partitions_of_spark_stay_whole_where_there_are_more_than_slots(on_spark, frame):
    """A union is more than slots, and one that a barrier stage would refuse; its last part has no rows."""
    found = on_spark(frame.union(frame.repartition(3)).union(frame.where("p > 2")))
    assert found["parts"] == [[0, 1, 2, 3], [4]]
    assert [member[0] for member in found["members"]] == pytest.approx([167, 33], abs=1)
    np.testing.assert_allclose(found["sums"], 2 * np.array(SUMS), rtol=1e-12)


def test_an_error_in_a_spark_partition_arrives_as_it_was(on_spark, frame):
    with pytest.raises(DataError, match="part 99 is no good"):
        on_spark(frame, prepare=gangs.prepare_badly)


def test_spark_with_dynamic_allocation_is_refused(frame):
    from trueup.cluster.spark_workers import _arrangement

    class Session:
        conf = {"spark.dynamicAllocation.enabled": "true"}  # noqa: RUF012

    class Frame:
        _jdf, sparkSession = None, Session  # noqa: N815

    with pytest.raises(ArgumentError, match="dynamic allocation"):
        _arrangement(Frame)


def test_a_part_is_sent_where_spark_would_send_its_key(spark):
    from trueup.cluster.spark_workers import _hash, _keys

    said = spark.sql("select cast(id as int) as id, hash(cast(id as int)) as hashed from range(0, 10000, 1111)").collect()
    assert [_hash(row.id) for row in said] == [row.hashed for row in said]
    assert [_hash(key) % 7 for key in _keys(7)] == list(range(7))
