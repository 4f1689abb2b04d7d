"""Lost processes and machines while workers run: the error, how soon it is raised, and what is left behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest

import remote
from trueup.cluster.partitions import as_cluster_frame
from trueup.data.spill import PREFIX
from trueup.errors import LostWorkerError

ROWS = remote.make_columns(100)
COLUMNS = list(ROWS)
SCHEMA = "region string, age double, p double, y double, w double"


class WatchedRuns:
    """Runs of workers whose processes are recorded in a directory."""

    def __init__(self, run, directory):
        self.run, self.directory = run, directory

    def assert_lost(self, work, message):
        """Lose a worker: reported within a minute, and nothing is left behind."""
        began = time.monotonic()
        with pytest.raises(LostWorkerError, match=message) as caught:
            self.run(partial(work, directory=str(self.directory)))
        assert time.monotonic() - began < 60
        assert "resume=" in caught.value.hint
        self._assert_nothing_left()

    def assert_interruptible(self):
        """Press Ctrl-C: nothing is left behind, and the next run succeeds, as it does after a loss."""
        threading.Thread(target=self._press_ctrl_c, daemon=True).start()
        with pytest.raises(KeyboardInterrupt):
            self.run(partial(remote.run_for_long, directory=str(self.directory)))
        self._assert_nothing_left()
        assert [worker[0] for worker in self.run(remote.describe_partitions)["workers"]] == [50, 50]

    def _press_ctrl_c(self):
        self._wait_until(lambda: len(remote.running_processes(self.directory)) == 2)
        os.kill(os.getpid(), signal.SIGINT)

    def _assert_nothing_left(self):
        """Wait until neither processes nor directories are left."""
        assert len(list(self.directory.iterdir())) == 2
        self._wait_until(
            lambda: not remote.running_processes(self.directory) and not remote.remaining_directories(self.directory)
        )

    def _wait_until(self, condition):
        until = time.monotonic() + 30
        while not condition():
            assert time.monotonic() < until, (
                f"left: {remote.running_processes(self.directory)}, {remote.remaining_directories(self.directory)}"
            )
            time.sleep(0.1)


@pytest.fixture
def dask_runs(client, tmp_path):
    """Run workers on both workers of Dask."""
    import dask.dataframe as dd
    import pandas as pd

    client.wait_for_workers(2, timeout=60)
    frame = dd.from_pandas(pd.DataFrame(ROWS), npartitions=4, sort=False)
    cluster_frame = as_cluster_frame(frame)
    yield WatchedRuns(lambda work: cluster_frame.run_workers(remote.prepare, work, COLUMNS), tmp_path)
    client.wait_for_workers(2, timeout=60)


@pytest.fixture
def spark_runs(spark, tmp_path):
    """Run workers on two partitions of Spark."""
    spark.sparkContext.addPyFile(remote.__file__)
    rows = spark.sparkContext.parallelize(list(zip(*(ROWS[name].tolist() for name in COLUMNS), strict=True)), 2)
    cluster_frame = as_cluster_frame(spark.createDataFrame(rows, SCHEMA))
    return WatchedRuns(lambda work: cluster_frame.run_workers(remote.prepare, work, COLUMNS), tmp_path)


def test_a_killed_process_on_dask_is_reported(dask_runs):
    dask_runs.assert_lost(remote.kill_process, "worker 2 of 2 was killed by SIGKILL")


def test_a_killed_dask_worker_is_reported(dask_runs):
    dask_runs.assert_lost(remote.kill_parent, "Dask worker tcp://.* was lost")


def test_ctrl_c_on_dask_leaves_nothing_behind(dask_runs):
    dask_runs.assert_interruptible()


def test_a_killed_process_on_spark_is_reported(spark_runs):
    spark_runs.assert_lost(remote.kill_process, "worker 2 of 2 was killed by SIGKILL")


def test_a_killed_python_worker_of_spark_is_reported(spark_runs):
    spark_runs.assert_lost(remote.kill_parent, "the Python worker of a Spark task ended unexpectedly")


def test_ctrl_c_on_spark_leaves_nothing_behind(spark_runs):
    spark_runs.assert_interruptible()


CLUSTER = """
import json, sys, time, warnings
import remote
from pyspark.sql import SparkSession
from trueup.cluster.spark import SparkFrame
from trueup.errors import LostWorkerError

warnings.simplefilter("ignore")
builder = SparkSession.builder.master("local-cluster[2,1,512]")
for name in ("spark.driver.memory", "spark.executor.memory"):
    builder = builder.config(name, "512m")
for name, value in remote.SPARK_SETTINGS.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel("OFF")
spark.sparkContext.addPyFile(remote.__file__)
rows = remote.make_columns(100)
frame = spark.createDataFrame(
    spark.sparkContext.parallelize(list(zip(*(one.tolist() for one in rows.values()))), 2),
    "region string, age double, p double, y double, w double",
)
frames = SparkFrame(frame)
results = {"rows": frames.map_reduce(remote.count_rows, remote.add, list(rows))}
until = time.monotonic() + 60
while spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() < 3 and time.monotonic() < until:
    time.sleep(0.1)
results["result"] = frames.run_workers(remote.prepare, remote.describe_partitions, list(rows))
for name in ("kill_process", "kill_executor"):
    began = time.monotonic()
    try:
        frames.run_workers(remote.prepare, getattr(remote, name), list(rows))
    except LostWorkerError as error:
        results[name] = [str(error), time.monotonic() - began]
print("results: " + json.dumps(results), flush=True)
spark.stop()
"""


@pytest.fixture(scope="session", autouse=True)
def cluster(request, tmp_path_factory):
    """Start a cluster of several processes before the first test of this module, if the test that uses it is run.

    It spends most of its time waiting: the other tests run meanwhile, and that test runs last.
    """
    requested = any(item.name == test_a_spark_cluster_of_several_processes.__name__ for item in request.session.items)
    if not requested or find_spec("pyspark") is None or (shutil.which("java") is None and "JAVA_HOME" not in os.environ):
        yield None
        return
    import pyspark

    directory = tmp_path_factory.mktemp("cluster")
    environment = {
        **os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "SPARK_LOCAL_DIRS": str(directory), "SPARK_WORKER_DIR": str(directory / "work"), remote.PID_DIRECTORY: str(directory),
        "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable,
    }  # fmt: skip
    with (directory / "output").open("w+") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", CLUSTER],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            cwd=directory,
        )
        try:
            yield process, directory
        finally:
            process.kill()
            process.wait()


def test_a_spark_cluster_of_several_processes(spark, cluster):
    process, directory = cluster
    process.wait(timeout=240)
    output = (directory / "output").read_text()
    line = next((line for line in output.splitlines() if "results: " in line), None)
    assert line is not None, output[-3000:]
    results = json.loads(line.partition("results: ")[2])
    assert results["rows"] == 100
    assert results["result"]["partitions"] == [[0], [1]]
    assert results["kill_process"][0].startswith("the process of worker 2 of 2 was killed by SIGKILL")
    assert results["kill_executor"][0].startswith("a Spark executor was lost")
    assert max(results["kill_process"][1], results["kill_executor"][1]) < 60
    assert list(directory.rglob(PREFIX + "*")) == []
