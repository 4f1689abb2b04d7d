"""Functions that tests run in worker processes, and rows for them; an importable module without heavy imports."""

from __future__ import annotations

import os
import pickle
import signal
import threading
import time
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np

from trueup.cluster.communicator import DEFAULT_TIMEOUTS
from trueup.cluster.worker import GRACE_SECONDS, RESUME_HINT, WorkerJob, reserve_address, root_cause, run_worker
from trueup.data.spill import PREFIX, TableSpill
from trueup.data.table import Feature, Schema, Table
from trueup.errors import DataError

SCHEMA = Schema("binary", "y", ("p",), "w", (Feature("region", "categorical", ("a", "b", "c")), Feature("age", "numeric")))
# Java runs for seconds: it compiles quickly rather than well.
_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SPARK_SETTINGS = {
    "spark.ui.enabled": "false", "spark.driver.extraJavaOptions": _JAVA_OPTIONS, "spark.executor.extraJavaOptions": _JAVA_OPTIONS,
    "spark.python.daemon.module": "spark_daemon",
}  # fmt: skip
PID_DIRECTORY = "TRUEUP_TEST_PIDS"  # environment variable: a directory in which every process leaves its number


def make_table(count, seed=0):
    """Return a random Table: a region, an age, a prediction, an outcome, a weight."""
    random = np.random.default_rng(seed)
    p = random.uniform(0.05, 0.95, count)
    columns = {"region": random.integers(-1, 3, count).astype(np.int32), "age": random.normal(40, 9, count)}
    y = (random.random(count) < p * (0.7 + 0.1 * columns["region"])).astype(float)
    return Table(SCHEMA, columns, p, y, random.exponential(1, count))


def split_table(table, cuts):
    """Split a Table at row numbers."""
    return [table.take(part) for part in np.split(np.arange(len(table)), cuts)]


def make_columns(count, seed=0):
    """Return the columns of a random user's frame."""
    table = make_table(count, seed)
    region = np.array(["a", "b", "c", None], object)[table.columns["region"]]
    return {"region": region, "age": table.columns["age"], "p": table.prediction, "y": table.outcome, "w": table.weight}


def record_process(directory=None):
    """Leave the number of this process, and its working directory."""
    if directory := directory or os.environ.get(PID_DIRECTORY):
        Path(directory, str(os.getpid())).write_text(str(Path.cwd()))


def running_processes(directory):
    """List the recorded processes that are running."""
    return [int(path.name) for path in Path(directory).iterdir() if _is_running(int(path.name))]


def remaining_directories(directory):
    """List the working directories of recorded processes that exist."""
    paths = [path.read_text() for path in Path(directory).iterdir()]
    return [path for path in paths if path and Path(path).exists()]


def _is_running(number):
    try:
        state = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


# Work on the rows of a worker.


def describe_workers(table, sizes, communicator):
    """Return what every worker has, and sums and maxima of numbers that do not add exactly."""
    record_process()
    own = np.zeros((communicator.size, 4))
    own[communicator.rank] = len(table), len(sizes), table.columns["region"].sum(), communicator.threads
    total = communicator.all_reduce_sum(0.1 * np.arange(1, 6) / (3 + communicator.rank))
    received = np.zeros((communicator.size, 5))
    received[communicator.rank] = total
    return {
        "each": communicator.all_reduce_sum(own),
        "total": total,
        "received": communicator.all_reduce_sum(received),
        "max": communicator.all_reduce_max(np.array([-float(communicator.rank), len(table)])),
        "scalar": communicator.all_reduce_sum(2.5),
    }


def raise_data_error(table, sizes, communicator):
    """Raise a DataError in the last worker, while the others wait."""
    record_process()
    if communicator.rank == communicator.size - 1:
        raise DataError("column 'age' has no rows", hint="look at it")
    return communicator.all_reduce_sum(1.0)


def raise_key_error(table, sizes, communicator):
    """Raise an unexpected error in the last worker."""
    if communicator.rank == communicator.size - 1:
        return {}["no such key"]
    return communicator.all_reduce_sum(1.0)


def interrupt_worker(table, sizes, communicator, *, by=signal.SIGKILL, process=os.getpid, directory=None):
    """Send a signal to a process of the second worker in the middle of sums."""
    record_process(directory)
    for step in range(10_000):
        communicator.all_reduce_sum(np.ones(100))
        if step == 20 and communicator.rank == 1:
            os.kill(process(), by)
            time.sleep(60)
        time.sleep(0.01)


def find_executor():
    """Return the number of the Java process above this one."""
    number = os.getpid()
    while Path(f"/proc/{number}/comm").read_text() != "java\n":
        number = int(Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[1])
    return number


kill_process = interrupt_worker
freeze_process = partial(interrupt_worker, by=signal.SIGSTOP)  # as if its machine were down
kill_parent = partial(interrupt_worker, process=os.getppid)
kill_executor = partial(interrupt_worker, process=find_executor)


def run_for_long(table, sizes, communicator, *, directory=None):
    """Add numbers for ever."""
    record_process(directory)
    while True:
        communicator.all_reduce_sum(1.0)
        time.sleep(0.05)


def describe_partitions(table, sizes, communicator):
    """Return the rows and partitions of every worker, and sums over all; `prepare` makes the age a partition number."""
    record_process()
    pieces = np.split(table.columns["age"], np.cumsum(sizes)[:-1])
    assert all(np.ptp(piece) == 0 for piece in pieces if len(piece))
    numbers = [piece[0] if len(piece) else -1.0 for piece in pieces]
    workers = np.zeros((communicator.size, 3))
    workers[communicator.rank] = len(table), len(sizes), communicator.threads
    listed = np.zeros((communicator.size, 16))
    listed[communicator.rank, : len(numbers)] = np.array(numbers) + 1
    sums = communicator.all_reduce_sum(
        [table.prediction.sum(), table.outcome.sum(), table.weight.sum(), table.columns["region"].sum()]
    )
    return {
        "workers": communicator.all_reduce_sum(workers).tolist(),
        "partitions": [[int(value) - 1 for value in line if value] for line in communicator.all_reduce_sum(listed)],
        "sums": sums.tolist(),
        "directory": str(Path.cwd().parent),
    }


# Work on partitions.


def prepare(frame, number):
    """Read a frame as a Table; its age is the number of the partition."""
    columns = {name: np.asarray(frame[name].to_numpy()) for name in ("region", "p", "y", "w")}
    codes = np.array(["abc".find(str(region)) for region in columns["region"]], np.int32)
    p, y, w = (columns[name].astype(float) for name in ("p", "y", "w"))
    return Table(SCHEMA, {"region": codes, "age": np.full(len(p), float(number))}, p, y, w)


def fail_to_prepare(frame, number):
    """Raise a DataError for the second partition."""
    if number == 1:
        raise DataError("partition 1 is invalid")
    return prepare(frame, number)


def identity(part):
    return part


def count_rows(frame, number):
    return len(frame)


def partition_sizes(frame, number):
    return {number: len(frame)}


def number_table(table, number):
    return {number: table}


def count_table(table, number):
    return {number: len(table) + table.unlabelled + table.weightless}


def id_range(frame, number):
    ids = frame["id"].to_pylist()
    return [(ids[0], ids[-1])]


def fail_on_partition(frame, number):
    raise KeyError(f"no such thing in partition {number}")


def kill_on_partition_2(frame, number):
    if number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return 0


def split_by_score(frame, number):
    """Move scores below 0.5 to partition 0 and others to partition 2; partition 1 stays empty."""
    scores = np.asarray(frame["p"], float)
    target = np.where(scores < 0.5, 0, 2)
    return {number: len(frame)}, {int(key): scores[target == key].tobytes() for key in np.unique(target)}


def sorted_scores(records, key):
    return [(key, np.sort(np.frombuffer(b"".join(records))).tolist())]


def add(a, b):
    return a + b


def merge(a, b):
    return {**a, **b}


# Functions of Dask workers and schedulers.


def dask_directories(dask_worker):
    """List the spill directories of all Dask workers of this machine."""
    return [path.name for path in Path(dask_worker.local_directory).parent.glob(f"*/{PREFIX}*")]


def set_allowed_failures(dask_scheduler, failures):
    dask_scheduler.allowed_failures = failures


def run_local_workers(partitions, work, *, hint=RESUME_HINT, threads=1, timeouts=DEFAULT_TIMEOUTS):
    """Run workers on this machine, one per entry of ``partitions``; return the result of rank 0.

    ``work`` is called with the rows of all Tables of the entry (which may have none), the number of rows of each, and the
    communicator; it must be importable by other processes.
    """
    job = WorkerJob(pickle.dumps(work), hint, threads, timeouts)
    addresses = [reserve_address("127.0.0.1") for _ in partitions]
    no_rows = next(table for tables in partitions for table in tables).take(np.empty(0, np.int64))
    stop = threading.Event()
    with ExitStack() as stack:
        spills = [stack.enter_context(TableSpill.create()) for _ in partitions]
        for spill, tables in zip(spills, partitions, strict=True):
            for table in tables or [no_rows]:
                spill.add(table)
        pool = stack.enter_context(ThreadPoolExecutor(len(partitions)))
        stack.callback(stop.set)  # before the pool waits for its threads, also after Ctrl-C
        workers = [pool.submit(run_worker, spill, job, addresses, rank, stop.is_set) for rank, spill in enumerate(spills)]
        wait(workers, return_when=FIRST_EXCEPTION)
        done, _ = wait(workers, GRACE_SECONDS)
        errors = [error for worker in workers if worker in done and (error := worker.exception()) is not None]
        if errors:
            raise root_cause(errors)
        result = workers[0].result()
        assert result is not None
        return pickle.loads(result)
