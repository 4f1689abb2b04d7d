"""Dask: one task per partition, and a tree of tasks that adds their results; one worker per Dask worker with partitions."""

from __future__ import annotations

import contextlib
import pickle
import secrets
import shutil
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlparse

import numpy as np

from trueup._optional import require
from trueup.cluster.partitions import ClusterFrame, ShuffledRecords, check_columns, predict_rows, required_columns
from trueup.cluster.worker import (
    GRACE_SECONDS,
    WorkerAddress,
    WorkerJob,
    local_address,
    reserve_address,
    root_cause,
    run_worker,
)
from trueup.data.spill import PREFIX, TableSpill
from trueup.data.values import RowPosition
from trueup.errors import ArgumentError, ColumnError, LostWorkerError, MissingPackageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trueup.cluster.partitions import Add, Split, Work, WorkerFunction
    from trueup.data.table import Table

T = TypeVar("T")

POLL_SECONDS = 0.2  # between two looks at the tasks
CLEANUP_SECONDS = 5.0  # for all workers to delete their rows
UNTYPED = "object"  # the NumPy type that does not determine the kind of a column


class DaskFrame(ClusterFrame):
    """The partitions of a Dask DataFrame, which are pandas frames.

    Work goes to the active `distributed.Client` if there is one, else to Dask's own threads or processes.
    """

    def __init__(self, frame: Any) -> None:
        require("dask.dataframe", extra="dask")
        other = [name for name in frame.columns if not isinstance(name, str)]
        if other:
            raise ColumnError(
                f"column names of a Dask frame must be texts; got {other[0]!r}",
                hint="rename it: frame.rename(columns=str)",
            )
        self.frame = frame
        self.names = tuple(frame.columns)
        self.has_workers = active_client() is not None
        check_workers()

    def map_reduce(self, work: Work[T], add: Add[T], columns: Sequence[str], *, ordered: bool = True) -> T:  # noqa: ARG002
        """Call ``work`` on every partition; add the results of neighbouring partitions in pairs."""
        import dask

        call = _shared(work)
        parts = self._delayed_partitions(columns)
        total = _sum_in_pairs([dask.delayed(_call)(call, part, number) for number, part in enumerate(parts)], add)
        with dask_errors():
            return total.compute()  # type: ignore[no-any-return]

    def shuffle(self, split: Split[T], add: Add[T], columns: Sequence[str], partitions: int) -> tuple[T, ShuffledRecords]:
        """Move the records that ``split`` returns to new partitions, by Dask's own shuffle; see `ClusterFrame.shuffle`."""
        import dask
        import dask.dataframe as dd

        call = _shared(split)
        parts = self._delayed_partitions(columns)
        with dask_errors():
            results = dask.persist(*(dask.delayed(_split)(call, part, number) for number, part in enumerate(parts)))
            total = _sum_in_pairs([result[0] for result in results], add).compute()
            records = dd.from_delayed([result[1] for result in results], meta=_records_frame([]), verify_meta=False)
            moved = records.set_index("key", divisions=(*range(partitions), partitions - 1)).persist()
        return total, DaskShuffledRecords(moved)

    def iter_partitions(self, columns: Sequence[str]) -> Iterator[Any]:
        """Yield one partition after the other."""
        for part in self._delayed_partitions(columns):
            with dask_errors():
                frame = part.compute()
            yield frame

    def run_workers(self, prepare: Work[Table], work: WorkerFunction[T], columns: Sequence[str]) -> T:
        """Run one worker on each Dask worker that holds partitions, at the same time; see `ClusterFrame.run_workers`.

        A persisted frame is used in place; otherwise consecutive partitions go to the same worker, the same way each time.
        Rows are spilled to the temporary directories of the Dask workers (``local_directory``), which Dask deletes if a
        worker is killed.
        """
        import dask

        client = active_client()
        if client is None:
            raise ArgumentError(
                "a fit on Dask runs on the workers of a Dask cluster, and there is no client of one",
                hint="make one first: distributed.Client() for this machine, or Client(address)",
            )
        job, run_id = WorkerJob(pickle.dumps(work)), secrets.token_hex(8)
        homes = _assign_homes(client, self.frame)
        tasks: list[Any] = []
        try:
            with dask_errors():
                # Each partition on its worker; at most as many are in memory as tasks run at a time.
                call, delayed = _shared(partial(_spill_partition, prepare, run_id)), []
                for number, part in enumerate(self._delayed_partitions(columns)):
                    with dask.annotate(workers=[homes[number]], allow_other_workers=False):
                        delayed.append(dask.delayed(_call, pure=False)(call, part, number))
                tasks += client.compute(delayed)
                spills: dict[str, list[TableSpill]] = {}
                for home, spill in _wait_for_results(client, tasks, homes, job):
                    spills.setdefault(home, []).append(spill)
                reserved = [client.submit(_reserve_address, workers=[home], pure=False) for home in spills]
                tasks += reserved
                addresses = _wait_for_results(client, reserved, list(spills), job)
                running = [
                    client.submit(_run_worker, own, job, addresses, rank, workers=[home], pure=False)
                    for rank, (home, own) in enumerate(spills.items())
                ]
                tasks += running
                results = _wait_for_results(client, running, list(spills), job)
                return pickle.loads(results[0])  # type: ignore[no-any-return]  # noqa: S301
        finally:
            _clean_up(client, tasks, run_id)

    def _delayed_partitions(self, columns: Sequence[str]) -> list[Any]:
        return list(self.frame[list(columns)].to_delayed())


class DaskShuffledRecords(ShuffledRecords):
    """Records in a persisted Dask DataFrame: number of the new partition, of the old one, and bytes."""

    def __init__(self, records: Any) -> None:
        self.records = records

    def map_reduce(self, work: Callable[[list[bytes], int], T], add: Add[T]) -> T:
        """Call ``work`` on the records of every partition; add the results of neighbouring partitions in pairs."""
        import dask

        call = _shared(work)
        parts = self.records.to_delayed()
        results = [dask.delayed(_call_on_records)(call, part, number) for number, part in enumerate(parts)]
        total = _sum_in_pairs(results, partial(_add_unless_none, add))
        with dask_errors():
            return total.compute()  # type: ignore[no-any-return]

    def close(self) -> None:
        """Let the workers release the records."""
        self.records = None


def active_client() -> Any:
    """Return the active client of a cluster, or None."""
    try:
        import distributed
    except ImportError:
        return None
    try:
        return distributed.default_client()
    except ValueError:
        return None


def check_workers() -> None:
    """Raise if the workers of a cluster cannot import trueup: their first task would end them without an explanation."""
    client = active_client()
    if client is None:
        return
    try:
        client.run(exec, f"import {__name__}")
    except ImportError as error:
        raise MissingPackageError(
            f"the workers of the Dask cluster cannot import trueup: {error}", hint="install it there, in the same version"
        ) from error


@contextlib.contextmanager
def dask_errors() -> Iterator[None]:
    """Raise Dask's errors as `LostWorkerError`; errors of the work itself pass unchanged."""
    try:
        yield
    except Exception as error:
        if type(error).__module__.split(".")[0] != "distributed":
            raise
        first_line = str(error).strip().partition("\n")[0]
        raise LostWorkerError(
            f"a Dask worker was lost: {type(error).__name__}: {first_line[:300]}",
            hint="did it run out of memory? See its log; smaller partitions need less",
        ) from error


class _Opaque:
    """A wrapper around a function, so that Dask does not traverse it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function


def _shared(function: Callable[..., Any]) -> Any:
    """Return a function as one node of Dask's task graph, which all tasks that call it share."""
    import dask

    return dask.delayed(_Opaque(function), pure=False)


def _call(opaque: _Opaque, *args: Any) -> Any:
    return opaque.function(*args)


def _sum_in_pairs(values: list[Any], add: Add[Any]) -> Any:
    """Add delayed values in pairs of neighbours."""
    import dask

    call = _shared(add)
    while len(values) > 1:
        pairs = [values[index : index + 2] for index in range(0, len(values), 2)]
        values = [dask.delayed(_call)(call, *pair) if len(pair) == 2 else pair[0] for pair in pairs]
    return values[0]


def _records_frame(rows: Sequence[tuple[int, int, bytes]]) -> Any:
    import pandas as pd
    import pyarrow as pa

    keys, parts, data = zip(*rows, strict=True) if rows else ((), (), ())
    binary = pd.ArrowDtype(pa.large_binary())
    return pd.DataFrame(
        {"key": pd.array(keys, "int64"), "part": pd.array(parts, "int64"), "data": pd.array(data, dtype=binary)}
    )


def _split(opaque: _Opaque, frame: Any, part: int) -> tuple[Any, Any]:
    value, records = opaque.function(frame, part)
    return value, _records_frame([(key, part, data) for key, data in records.items()])


def _call_on_records(opaque: _Opaque, records: Any, key: int) -> Any:
    """Call the function on the records, in the order of the partitions they come from; return None without records."""
    return opaque.function(records.sort_values("part")["data"].tolist(), key) if len(records) else None


def _add_unless_none(add: Add[Any], a: Any, b: Any) -> Any:
    return add(a, b) if a is not None and b is not None else b if a is None else a


def _assign_homes(client: Any, frame: Any) -> list[str]:
    """Return a Dask worker for each partition: one that holds it, or else the same one for consecutive partitions."""
    from distributed import futures_of

    workers, count = sorted(client.nthreads()), frame.npartitions
    if not workers:
        raise LostWorkerError("the Dask cluster has no workers", hint="wait for them: client.wait_for_workers(1)")
    homes = {
        key[1]: sorted(holders)[0]
        for key, holders in client.who_has(futures_of(frame)).items()
        if isinstance(key, tuple) and len(key) == 2 and holders
    }
    if sorted(homes) != list(range(count)):
        return [workers[number * len(workers) // count] for number in range(count)]
    return [homes[number] for number in range(count)]


def _spill_partition(prepare: Work[Table], run_id: str, part: Any, number: int) -> tuple[str, TableSpill]:
    """Spill a partition on the worker that runs the task; return the worker's address and the spill."""
    from distributed import get_worker

    worker, is_stopped = get_worker(), _stop_check()
    spill = TableSpill.create(worker.local_directory, run_id)
    try:
        spill.add(prepare(part, number))
        if is_stopped():
            spill.close()
    except BaseException:
        spill.close()
        raise
    return worker.address, spill


def _reserve_address() -> WorkerAddress:
    """Reserve ports at the address by which the other workers reach this one."""
    from distributed import get_worker

    return reserve_address(local_address(urlparse(get_worker().address).hostname or "127.0.0.1"))


def _run_worker(spills: list[TableSpill], job: WorkerJob, addresses: Sequence[WorkerAddress], rank: int) -> bytes | None:
    from distributed import get_worker

    worker, joined = get_worker(), spills[0]
    try:
        if not joined.directory.exists():  # Dask runs a task again when a worker comes back
            raise LostWorkerError(f"Dask worker {worker.address} was lost and has come back without its rows", job.hint)
        for spill in spills[1:]:
            joined.take_over(spill)
        return run_worker(joined, replace(job, threads=worker.state.nthreads), addresses, rank, _stop_check())
    finally:
        for spill in spills:
            spill.close()


def _stop_check() -> Callable[[], bool]:
    """Return a function that returns whether the current task was cancelled: Dask does not stop running tasks."""
    from distributed import get_worker

    worker = get_worker()
    key = worker.get_current_task()

    def is_stopped() -> bool:
        task = worker.state.tasks.get(key)
        return task is None or task.state == "cancelled"

    return is_stopped


def _wait_for_results(client: Any, tasks: Sequence[Any], homes: Sequence[str], job: WorkerJob) -> list[Any]:
    """Return the results of all tasks; raise if one failed, or if its worker, of ``homes``, is gone: it would never end."""
    first_error: float | None = None
    while not all(task.status == "finished" for task in tasks):
        errors = [error for task in tasks if task.status == "error" and (error := _task_error(task)) is not None]
        if any(task.status == "cancelled" for task in tasks):
            errors.append(LostWorkerError("the work was cancelled by the Dask cluster", job.hint))
        if errors and not all(getattr(error, "missed", False) for error in errors):
            raise root_cause(errors)
        gone = sorted(set(homes) - set(client.nthreads()))
        if gone:
            raise LostWorkerError(f"Dask worker {', '.join(gone)} was lost", job.hint)
        if errors and first_error is None:
            first_error = time.monotonic()
        if first_error is not None and time.monotonic() - first_error > GRACE_SECONDS:
            raise root_cause(errors)
        time.sleep(POLL_SECONDS)
    try:
        return [task.result(timeout=GRACE_SECONDS) for task in tasks]
    except TimeoutError:
        raise LostWorkerError("a Dask worker was lost with its results", job.hint) from None


def _task_error(task: Any) -> BaseException | None:
    """Return the error of a failed task; None if its worker was lost since, and Dask has started it again."""
    try:
        error: BaseException | None = task.exception(timeout=GRACE_SECONDS)
    except TimeoutError:
        return None
    return error


def _clean_up(client: Any, tasks: Sequence[Any], run_id: str) -> None:
    """Cancel tasks and delete spills on all workers; wait only some seconds for workers that cannot be reached.

    An error here, such as a timeout, would replace that of the work. A worker deletes its directory itself when it ends.
    """

    def cancel_and_delete() -> None:
        with contextlib.suppress(Exception):
            client.cancel(tasks, force=True)
            client.run(_delete_spills, run_id, on_error="ignore")

    if client.status == "running":
        thread = threading.Thread(target=cancel_and_delete, daemon=True)
        thread.start()
        thread.join(CLEANUP_SECONDS)


def _delete_spills(run_id: str, dask_worker: Any = None) -> None:
    for directory in Path(dask_worker.local_directory).glob(f"{PREFIX}{run_id}*"):
        shutil.rmtree(directory, ignore_errors=True)


def predict_frame(model: Any, frame: Any, threads: int, *, lenient: bool = False) -> Any:
    """Return the corrected predictions of a Dask frame, lazily: a Series, or a DataFrame for several classes."""
    import pandas as pd

    schema, empty = model.schema, frame._meta
    names = [name for name in required_columns(schema) if name in empty.columns]
    check_columns(schema, empty[names], [name for name in names if empty[name].dtype == UNTYPED])
    check_workers()
    meta = pd.DataFrame({name: np.empty(0) for name in schema.score_names}, index=empty.index)
    meta = meta[schema.score_names[0]] if len(schema.score_names) == 1 else meta
    return frame[names].map_partitions(_predict_partition, model, threads, lenient=lenient, meta=meta)


def _predict_partition(part: Any, model: Any, threads: int, partition_info: Any = None, *, lenient: bool = False) -> Any:
    import pandas as pd

    names, number = model.schema.score_names, None if partition_info is None else partition_info["number"]
    scores = predict_rows(model, part, threads, RowPosition(0, number), lenient=lenient)
    frame = pd.DataFrame(scores, columns=list(names), index=part.index)
    return frame[names[0]] if len(names) == 1 else frame
