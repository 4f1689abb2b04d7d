"""Processes and machines that are lost while a gang works: what is told, how soon, and what is left behind."""

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

import gangs
from trueup.data.spill import PREFIX
from trueup.errors import LostWorkerError

ROWS = gangs.loans(100)
COLUMNS = list(ROWS)
SCHEMA = "region string, age double, p double, y double, w double"


class Runs:
    """A gang whose processes are watched from outside."""

    def __init__(self, run, shown):
        self.run, self.shown = run, shown

    def loses(self, work, words):
        """Lose one of them: told within a minute, and nothing is left behind."""
        began = time.monotonic()
        with pytest.raises(LostWorkerError, match=words) as caught:
            self.run(partial(work, shown=str(self.shown)))
        assert time.monotonic() - began < 60
        assert "resume=" in caught.value.hint
        self.leaves_nothing()

    def interrupted(self):
        """Press Ctrl-C: nothing is left behind, and the next gang works, as it does after a loss."""
        threading.Thread(target=self._press, daemon=True).start()
        with pytest.raises(KeyboardInterrupt):
            self.run(partial(gangs.linger, shown=str(self.shown)))
        self.leaves_nothing()
        assert [member[0] for member in self.run(gangs.overview)["members"]] == [50, 50]

    def _press(self):
        self._until(lambda: len(gangs.alive(self.shown)) == 2)
        os.kill(os.getpid(), signal.SIGINT)

    def leaves_nothing(self):
        """Wait until neither a process nor a room is there."""
        assert len(list(self.shown.iterdir())) == 2
        self._until(lambda: not gangs.alive(self.shown) and not gangs.rooms(self.shown))

    def _until(self, true):
        until = time.monotonic() + 30
        while not true():
            assert time.monotonic() < until, f"left: {gangs.alive(self.shown)}, {gangs.rooms(self.shown)}"
            time.sleep(0.1)


@pytest.fixture
def dask(client, tmp_path):
    """Run gangs on Dask, on both workers."""
    import dask.dataframe as dd
    import pandas as pd

    from trueup.cluster.dask_workers import gang

    client.wait_for_workers(2, timeout=60)
    frame = dd.from_pandas(pd.DataFrame(ROWS), npartitions=4, sort=False)
    yield Runs(lambda work: gang(frame, gangs.prepare, work, COLUMNS), tmp_path)
    client.wait_for_workers(2, timeout=60)


@pytest.fixture
def spark_runs(spark, tmp_path):
    """Run gangs on Spark, in two partitions."""
    from trueup.cluster.spark_workers import gang

    spark.sparkContext.addPyFile(gangs.__file__)
    rows = spark.sparkContext.parallelize(list(zip(*(ROWS[name].tolist() for name in COLUMNS), strict=True)), 2)
    frame = spark.createDataFrame(rows, SCHEMA)

    def run(work):
        return gang(frame, gangs.prepare, work, COLUMNS)

    return Runs(run, tmp_path)


def test_a_process_that_is_killed_on_dask(dask):
    dask.loses(gangs.killed, "worker 2 of 2 was killed by SIGKILL")


def test_a_dask_worker_that_is_killed(dask):
    dask.loses(gangs.orphaned, "Dask worker tcp://.* was lost")


def test_ctrl_c_on_dask_leaves_nothing_behind(dask):
    dask.interrupted()


def test_a_process_that_is_killed_on_spark(spark_runs):
    spark_runs.loses(gangs.killed, "worker 2 of 2 was killed by SIGKILL")


def test_a_python_worker_of_spark_that_is_killed(spark_runs):
    spark_runs.loses(gangs.orphaned, "the Python worker of a Spark task ended unexpectedly")


def test_ctrl_c_on_spark_leaves_nothing_behind(spark_runs):
    spark_runs.interrupted()


CLUSTER = """
import json, sys, time, warnings
import gangs
from pyspark.sql import SparkSession
from trueup.cluster.spark import SparkFrame
from trueup.errors import LostWorkerError

warnings.simplefilter("ignore")
builder = SparkSession.builder.master("local-cluster[2,1,512]")
for name in ("spark.driver.memory", "spark.executor.memory"):
    builder = builder.config(name, "512m")
spark = builder.config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
spark.sparkContext.addPyFile(gangs.__file__)
rows = gangs.loans(100)
frame = spark.createDataFrame(
    spark.sparkContext.parallelize(list(zip(*(one.tolist() for one in rows.values()))), 2),
    "region string, age double, p double, y double, w double",
)
frames = SparkFrame(frame)
told = {"rows": frames.map_reduce(gangs.count, gangs.plus, list(rows))}
until = time.monotonic() + 60
while spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() < 3 and time.monotonic() < until:
    time.sleep(0.1)
told["found"] = frames.run_workers(gangs.prepare, gangs.overview, list(rows))
for name in ("killed", "unhosted"):
    began = time.monotonic()
    try:
        frames.run_workers(gangs.prepare, getattr(gangs, name), list(rows))
    except LostWorkerError as error:
        told[name] = [str(error), time.monotonic() - began]
print("told: " + json.dumps(told), flush=True)
spark.stop()
"""


@pytest.fixture(scope="session", autouse=True)
def cluster(request, tmp_path_factory):
    """Start a cluster of several processes before the first test of this module, where the one that asks for it is run.

    It takes its time, most of it waiting: all other tests are done meanwhile, and then this one is looked at.
    """
    asked = any(item.name == test_a_spark_cluster_of_several_processes.__name__ for item in request.session.items)
    if not asked or find_spec("pyspark") is None or (shutil.which("java") is None and "JAVA_HOME" not in os.environ):
        yield None
        return
    import pyspark

    folder = tmp_path_factory.mktemp("cluster")
    surroundings = {
        **os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "SPARK_LOCAL_DIRS": str(folder), "SPARK_WORKER_DIR": str(folder / "work"), gangs.SHOWN: str(folder),
        "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable,
    }  # fmt: skip
    with (folder / "said").open("w+") as said:
        process = subprocess.Popen(
            [sys.executable, "-c", CLUSTER],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            env=surroundings,
            cwd=folder,
        )
        try:
            yield process, folder
        finally:
            process.kill()
            process.wait()


def test_a_spark_cluster_of_several_processes(spark, cluster):
    process, folder = cluster
    process.wait(timeout=240)
    said = (folder / "said").read_text()
    line = next((line for line in said.splitlines() if "told: " in line), None)
    assert line is not None, said[-3000:]
    told = json.loads(line.partition("told: ")[2])
    assert told["rows"] == 100
    assert told["found"]["parts"] == [[0], [1]]
    assert told["killed"][0].startswith("the process of worker 2 of 2 was killed by SIGKILL")
    assert told["unhosted"][0].startswith("a Spark executor was lost")
    assert max(told["killed"][1], told["unhosted"][1]) < 60
    assert list(folder.rglob(PREFIX + "*")) == []
