"""Workers on Spark and Dask: which rows each has, and their results."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import remote
from trueup.cluster.partitions import as_cluster_frame
from trueup.data.spill import PREFIX
from trueup.errors import ArgumentError, DataError

ROWS = remote.make_columns(100)
COLUMNS = list(ROWS)
SCHEMA = "region string, age double, p double, y double, w double"
SUMS = [ROWS["p"].sum(), ROWS["y"].sum(), ROWS["w"].sum(), remote.make_table(100).columns["region"].sum()]


@pytest.fixture
def on_dask(client):
    """Run workers on Dask."""

    def run(frame, work=remote.describe_partitions, prepare=remote.prepare):
        return as_cluster_frame(frame).run_workers(prepare, work, COLUMNS)

    yield run
    assert all(directories == [] for directories in client.run(remote.dask_directories).values())


def _dask_frame(parts):
    import dask.dataframe as dd
    import pandas as pd

    return dd.from_pandas(pd.DataFrame(ROWS), npartitions=parts, sort=False)


def test_dask_workers_have_neighbouring_partitions(on_dask):
    result = on_dask(_dask_frame(5))
    assert result["partitions"] == [[0, 1, 2], [3, 4]]
    assert [worker[:2] for worker in result["workers"]] == [[60, 3], [40, 2]]
    np.testing.assert_allclose(result["sums"], SUMS, rtol=1e-12)


def test_a_persisted_dask_frame_is_used_in_place(on_dask, client):
    import distributed

    frame = _dask_frame(4).persist(workers=[max(client.nthreads())])
    distributed.wait(frame)
    result = on_dask(frame)
    assert result["partitions"] == [[0, 1, 2, 3]]
    np.testing.assert_allclose(result["sums"], SUMS, rtol=1e-12)


def test_an_error_in_a_dask_partition_is_raised_unchanged(on_dask):
    with pytest.raises(DataError, match="partition 1 is invalid"):
        on_dask(_dask_frame(2), prepare=remote.fail_to_prepare)


@pytest.fixture
def on_spark(spark):
    """Run workers on Spark."""
    spark.sparkContext.addPyFile(remote.__file__)

    def run(frame, work=remote.describe_partitions, prepare=remote.prepare):
        result = as_cluster_frame(frame).run_workers(prepare, work, COLUMNS)
        assert list(Path(result["directory"]).glob(PREFIX + "*")) == []
        return result

    return run


@pytest.fixture
def frame(spark):
    """Return rows in two partitions of a Spark frame."""
    rows = [
        tuple(None if one is None else one for one in row)
        for row in zip(*(ROWS[name].tolist() for name in COLUMNS), strict=True)
    ]
    return spark.createDataFrame(spark.sparkContext.parallelize(rows, 2), SCHEMA)


def test_every_spark_partition_has_a_worker_if_slots_suffice(on_spark, frame):
    result = on_spark(frame)
    assert result["partitions"] == [[0], [1]]
    assert [worker[0] for worker in result["workers"]] == [50, 50]
    np.testing.assert_allclose(result["sums"], SUMS, rtol=1e-12)


def test_spark_partitions_are_joined_if_there_are_more_than_slots(on_spark, frame):
    """The union has more partitions than slots, and Spark rejects it as a barrier stage; its last partition is empty."""
    result = on_spark(frame.union(frame.repartition(3)).union(frame.where("p > 2")))
    assert result["partitions"] == [[0, 1, 2, 3], [4]]
    assert [worker[0] for worker in result["workers"]] == pytest.approx([167, 33], abs=1)
    np.testing.assert_allclose(result["sums"], 2 * np.array(SUMS), rtol=1e-12)


def test_an_error_in_a_spark_partition_is_raised_unchanged(on_spark, frame):
    with pytest.raises(DataError, match="partition 1 is invalid"):
        on_spark(frame, prepare=remote.fail_to_prepare)


def test_spark_with_dynamic_allocation_is_rejected(frame):
    from trueup.cluster.spark import _worker_layout

    class Session:
        conf = {"spark.dynamicAllocation.enabled": "true"}  # noqa: RUF012

    class Frame:
        _jdf, sparkSession = None, Session  # noqa: N815

    with pytest.raises(ArgumentError, match="dynamic allocation"):
        _worker_layout(Frame)


def test_the_hash_of_keys_is_that_of_spark(spark):
    from trueup.cluster.spark import _partition_keys, _spark_hash

    rows = spark.sql("select cast(id as int) as id, hash(cast(id as int)) as hashed from range(0, 10000, 1111)").collect()
    assert [_spark_hash(row.id) for row in rows] == [row.hashed for row in rows]
    assert [_spark_hash(key) % 7 for key in _partition_keys(7)] == list(range(7))
