"""What runs on each of two hosts: a bare worker, or the client of a Dask cluster. Hosts share a directory, and no address."""

from __future__ import annotations

import json
import os
import pickle
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np

import checks
from grower_workers import CascadeFit, run_fits
from trueup.cluster.communicator import DEFAULT_TIMEOUTS, Timeouts
from trueup.cluster.worker import RESUME_HINT, WorkerJob, local_address, reserve_address, run_worker
from trueup.data.frame import read
from trueup.data.spill import TableSpill
from trueup.errors import LostWorkerError

QUICK = Timeouts(connect=60.0, heartbeat=0.5, silent=6.0)
PARAMETERS = {"features": checks.FEATURES, "rounds": 1, "trees": 10, "repeats": 1}


def make_table(count=600):
    """Return the rows of both hosts, without those columns that are not features."""
    return read(checks.rows("binary", count), outcome="y", prediction="p", features=checks.FEATURES)


def make_work(directory=None):
    """Return the work of the workers: fits of half of the rows on each, for ever if there is a directory for the models."""
    table = make_table()
    fit = CascadeFit(table, np.arange(len(table)) % 3, np.arange(len(table)) * 2 // len(table))
    return partial(fit_on_hosts, fit=fit, directory=None if directory is None else str(directory))


def fit_on_hosts(table, sizes, communicator, *, fit, directory):
    """Fit cascades with the other host, and add sums that are not exact; return the first result, or write every one."""
    count = 0
    while True:
        (result,) = run_fits(table, sizes, communicator, fits=[fit])
        sums = communicator.all_reduce_sum(0.1 * np.arange(1, 6) / (3 + communicator.rank))
        result = comparable(result) | {"sums": sums}
        if directory is None:
            return result
        count += 1
        write_result(Path(directory), f"model-{communicator.rank}", result | {"count": count})


def comparable(result):
    """Return a fit of `run_fits` as plain data, every number with all its bits."""
    forests = [forest.arrays() for one in result["rounds"] for forest in one.forests]
    return {
        "rows": result["rows"], "difference": result["difference"], "chosen": result["chosen"],
        "evaluations": repr(result["evaluations"]), "thetas": repr([np.asarray(one.thetas).tolist() for one in result["rounds"]]),
        "forests": [{name: array.tobytes().hex() for name, array in arrays.items()} for arrays in forests],
    }  # fmt: skip


def exchange(directory, rank, address):
    """Write the address of this worker, and wait for that of the other."""
    (directory / f"new-{rank}").write_bytes(pickle.dumps(address))
    (directory / f"new-{rank}").rename(directory / f"address-{rank}")
    paths = [directory / f"address-{number}" for number in range(2)]
    until = time.monotonic() + 60
    while not all(path.exists() for path in paths):
        assert time.monotonic() < until
        time.sleep(0.05)
    return [pickle.loads(path.read_bytes()) for path in paths]


def run_bare_worker(directory, rank, other, timeouts):
    """Run the worker of this host until the other is lost; return the announced addresses and the error."""
    addresses = exchange(directory, rank, reserve_address(local_address(other)))
    job = WorkerJob(pickle.dumps(make_work(directory)), timeouts=timeouts)
    with TableSpill.create(directory) as spill:
        spill.add(make_table().take(np.arange(2)))
        try:
            run_worker(spill, job, addresses, rank)
        except LostWorkerError as error:
            return {"hosts": [one.host for one in addresses], "error": str(error), "lost": time.time()}


def announce_round(table, sizes, communicator, *, plan, rounds, directory):
    """Fit a round, after a pause in which the other host can be taken away."""
    from trueup.calibrators.mcgrad.partitioned import _fit_round

    write_result(Path(directory), f"model-{communicator.rank}", {"count": 1})
    time.sleep(2)
    return _fit_round(table, sizes, communicator, plan=plan, rounds=rounds)


def run_client(directory, make_frame, engine):
    """Fit on both hosts; then fit again, while the other host disappears; return both results."""
    import pandas as pd

    import trueup as tu
    from trueup.calibrators.mcgrad import partitioned

    rows = pd.DataFrame(checks.rows("binary", 1500)).astype({"day": "datetime64[ns]"})
    calibrator = tu.MCGrad("p", **PARAMETERS, stopping=tu.CrossValidation(2), engine=engine)
    frame = make_frame(rows)
    fitted = calibrator.fit(frame, "y")
    result = {"scores": fitted.predict(rows).tolist(), "trees": [one.trees for one in fitted.history_.rounds]}
    (directory / "fitted").touch()
    partitioned._fit_round, keep = partial(announce_round, directory=str(directory)), partitioned._fit_round
    try:
        calibrator.fit(frame, "y")
    except LostWorkerError as error:
        result |= {"error": str(error), "hint": error.hint, "lost": time.time()}
    finally:
        partitioned._fit_round = keep
    return result


def run_dask_client(directory, own):
    """Start the scheduler of a Dask cluster on this host, wait for a worker on each, and fit."""
    import dask
    import dask.dataframe as dd
    import distributed

    WorkerJob.__init__.__defaults__ = (RESUME_HINT, 1, QUICK)
    dask.config.set({"distributed.comm.timeouts.connect": "10s"})
    scheduler = {"cls": distributed.Scheduler, "options": {"host": own, "port": 8786, "dashboard": False}}
    with distributed.SpecCluster(workers={}, scheduler=scheduler) as cluster, distributed.Client(cluster) as client:
        client.wait_for_workers(2, timeout=90)
        result = run_client(directory, lambda rows: dd.from_pandas(rows, npartitions=4, sort=False), "dask")
        result["workers"] = sorted(client.nthreads())
        write_result(directory, "result-0", result)  # closing a cluster with a lost worker takes its time


def run_spark_client(directory, own):
    """Connect to the Spark master of this host, wait for an executor on each host, and fit."""
    from pyspark.sql import SparkSession

    import remote

    WorkerJob.__init__.__defaults__ = (RESUME_HINT, 1, QUICK)
    settings = remote.SPARK_SETTINGS | {
        "spark.driver.host": own, "spark.driver.bindAddress": own, "spark.driver.memory": "512m", "spark.executor.memory": "512m",
        "spark.executor.cores": "1", "spark.cores.max": "2", "spark.sql.shuffle.partitions": "2", "spark.default.parallelism": "2",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0", "spark.scheduler.maxRegisteredResourcesWaitingTime": "90s",
        "spark.sql.execution.arrow.pyspark.enabled": "true", "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(directory / "warehouse"), "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
    }  # fmt: skip
    builder = SparkSession.builder.master(f"spark://{own}:7077").appName("trueup")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    status = spark.sparkContext._jsc.sc()
    until = time.monotonic() + 90
    while status.getExecutorMemoryStatus().size() < 3 and time.monotonic() < until:
        time.sleep(0.1)
    addresses = status.getExecutorMemoryStatus().keys().mkString(" ").split()
    result = run_client(directory, lambda rows: spark.createDataFrame(rows).repartition(2), "spark")
    write_result(directory, "result-0", result | {"workers": addresses})
    os._exit(0)  # Spark waits for lost executors


def write_result(directory, name, result):
    """Write a result for the test, at once."""
    (directory / f"{name}.new").write_text(as_json(result))
    (directory / f"{name}.new").rename(directory / name)


def as_json(result):
    """Return a result as text that has all bits of its numbers."""
    return json.dumps(result, default=lambda value: np.asarray(value).tolist())


def main():
    """Run what the arguments name; functions that are sent to other processes must not be in a module __main__."""
    mode, folder, *more = sys.argv[1:]
    directory = Path(folder)
    if mode in ("dask", "spark"):
        {"dask": run_dask_client, "spark": run_spark_client}[mode](directory, more[0])
    else:
        rank, other = int(more[0]), more[1]
        timeouts = DEFAULT_TIMEOUTS if mode == "patient" else QUICK
        write_result(directory, f"result-{rank}", run_bare_worker(directory, rank, other, timeouts))
