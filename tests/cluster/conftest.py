"""One Dask cluster and one Spark session for all tests of this directory."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

import remote

LAST = "test_a_spark_cluster_of_several_processes"
QUIET = "ignore:PySpark does not yet fully support pandas:FutureWarning"


def pytest_collection_modifyitems(items):
    """Ignore the warnings of Spark about pandas; run the test of the cluster in the background last."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings(QUIET))
    items.sort(key=lambda item: item.name == LAST)


@pytest.fixture(scope="session")
def client(tmp_path_factory):
    """Two Dask workers, with one process and one thread each, and a directory of their own."""
    distributed = pytest.importorskip("distributed")
    import dask

    with (
        dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"}),  # workers share their imports
        distributed.LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=True,
            dashboard_address="127.0.0.1:0",
            local_directory=str(tmp_path_factory.mktemp("dask")),
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    """A Spark session on this machine, on two cores."""
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        reason = "Spark needs Java 17"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    pytest.importorskip("pyspark")
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)  # the parent of Python workers is a module of these tests
    settings = remote.SPARK_SETTINGS | {
        "spark.sql.shuffle.partitions": "2", "spark.default.parallelism": "2",
        "spark.sql.execution.arrow.pyspark.enabled": "true", "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1", "spark.driver.memory": "1g", "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")), "spark.python.worker.reuse": "true",
    }  # fmt: skip
    builder = SparkSession.builder.master("local[2]").appName("trueup")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
