"""Spark: tasks read partitions as Arrow tables (`mapInArrow`); workers are the tasks of a barrier stage, without a jar.

Uses only public methods of the DataFrame, except to count partitions and task slots. Partition numbers are Spark's: they
mean the same rows in every pass if Spark computes the frame the same way each time, so a shuffled frame should be cached.
Errors of trueup travel as values, since Spark would hide them in its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import re
import secrets
import sys
import time
from concurrent.futures import Future
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from trueup.cluster import worker
from trueup.cluster.communicator import SILENT
from trueup.cluster.partitions import (
    ClusterFrame,
    ShuffledRecords,
    check_columns,
    predict_rows,
    require_engine,
    required_columns,
)
from trueup.data.columns import unread_type
from trueup.data.spill import TableSpill
from trueup.data.values import RowPosition
from trueup.errors import ArgumentError, ColumnError, LostWorkerError, MissingPackageError, TrueupError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from trueup.cluster.partitions import Add, Split, Work, WorkerFunction
    from trueup.data.table import Table

T = TypeVar("T")

DRIVER_RESULTS = 16  # results that the driver adds
TASKS_PER_CORE = 4
RECORDS = "key int, part int, data binary"  # what tasks return: a number to group by, the partition, and bytes
PART, HOME = "trueup:part", "trueup:home"  # columns of rows that move to another task: their partition, and the new key
EXECUTOR_SECONDS = 30.0  # for the first executors to start
MEMORY_HINT = "did it run out of memory? See its log; smaller partitions need less"
UINT32 = 0xFFFFFFFF
UNTYPED = "null"  # the Arrow type that does not determine the kind of a column
# Spark's types, and the Arrow types that are read in the same way.
ARROW_TYPES = {
    "byte": "int8", "short": "int16", "integer": "int32", "long": "int64", "float": "float32", "double": "float64",
    "decimal": "float64", "boolean": "bool", "string": "string", "char": "string", "varchar": "string", "date": "date32",
    "timestamp": "timestamp[us]", "timestamp_ntz": "timestamp[us]", "void": "null", "daytimeinterval": "duration[us]",
}  # fmt: skip
# What Spark's errors say of a lost worker, and our message.
LOSSES = (
    (r"LostWorkerError: (.*)", "{}"),
    (r"ExecutorLostFailure \((.*?)\)(?: Reason: ([^\n]{0,200}))?", "a Spark executor was lost: {}: {}"),
    (r"Python worker (?:exited|failed)", "the Python worker of a Spark task ended unexpectedly (out of memory?)"),
    (
        r"([^\n]*(?:Could not recover|executor lost|SparkContext was shut down|Connection refused|Answer from Java side is"
        r" empty)[^\n]{0,300})",
        "a Spark worker was lost: {}",
    ),
)


class SparkFrame(ClusterFrame):
    """The partitions of a Spark DataFrame, read as Arrow tables."""

    def __init__(self, frame: Any) -> None:
        require_engine("spark")
        self.frame = frame
        self.names = tuple(frame.columns)
        self._partitions: int | None = None  # known after the first pass

    def unread_types(self, names: Sequence[str]) -> dict[str, str]:
        """Return the types of those columns that trueup does not read."""
        types = {field.name: field.dataType for field in self.frame.schema.fields}
        return {name: types[name].simpleString() for name in names if types[name].typeName() not in ARROW_TYPES}

    def map_reduce(self, work: Work[T], add: Add[T], columns: Sequence[str], *, ordered: bool = True) -> T:
        """Call ``work`` on every partition; add results of neighbours in pairs, most of them on the cluster.

        The number of partitions is not known before the first pass, which adds results of partitions that are 16 apart.
        """
        frame, types = self._select(columns)
        partitions = self._partitions
        with spark_errors():
            frame = frame.selectExpr("*", "spark_partition_id() AS part").coalesce(self._max_tasks)
            task = partial(_map_task, work, types, partitions, None if ordered else add)
            records = frame.mapInArrow(task, RECORDS)
            results = partitions if ordered else self._max_tasks
            rows = _collect_sums(records, add, on_cluster=results is None or results > DRIVER_RESULTS)
        if not rows:  # a frame that Spark knows to be empty has no partition at all
            return work(empty_table(types), 0)
        self._partitions = max(part for _, part, _ in rows) + 1
        return _unpack(_sum_packed(add, [data for _, _, data in rows]))  # type: ignore[no-any-return]

    def shuffle(self, split: Split[T], add: Add[T], columns: Sequence[str], partitions: int) -> tuple[T, ShuffledRecords]:
        """Move the records that ``split`` returns, few large binary values, to new partitions; see `ClusterFrame.shuffle`.

        Spark places records by a hash of their new partition, so that a task may hold several new partitions, or none.
        Small partitions of the frame are read together, as long as every core has work, since Python tasks start slowly.
        """
        frame, types = self._select(columns)
        frame = frame.coalesce(max(partitions, self._max_tasks))
        records = frame.mapInArrow(partial(_split_task, split, types), RECORDS).repartition(partitions, "key").persist()
        shuffled = SparkShuffledRecords(records, partitions)
        try:
            with spark_errors():
                values = records.where("key < 0")
                rows = values.mapInArrow(partial(_sum_task, add), RECORDS).collect()
            if not rows:
                return split(empty_table(types), 0)[0], shuffled
            packed = [bytes(row.data) for row in sorted(rows, key=lambda row: -row.key)]
            return _unpack(_sum_packed(add, packed)), shuffled
        except BaseException:
            shuffled.close()
            raise

    def run_workers(self, prepare: Work[Table], work: WorkerFunction[T], columns: Sequence[str]) -> T:
        """Run the tasks of a barrier stage at the same time; see `ClusterFrame.run_workers`.

        Each partition has a worker, if all can run at once. If there are more partitions than task slots, or if Spark
        rejects a barrier stage on them (a union, `coalesce` or `limit` within the stage), a shuffle joins neighbouring
        partitions. It moves all rows in every run; a frame that is repartitioned to the number of slots and cached is
        used in place. Spark does not retry a barrier stage whose results go to the driver, so a lost worker is reported
        at once.
        """
        frame = self.frame
        types = arrow_types(frame, columns)
        with spark_errors(worker.RESUME_HINT):
            partitions, workers, in_place = _worker_layout(frame)
            rows = frame.select(*map(quote_name, columns))
            if not in_place:
                rows = _join_neighbours(rows, partitions, workers)
            task = _WorkerTask(pickle.dumps(prepare), worker.WorkerJob(pickle.dumps(work)), types, partitions, in_place)
            records = _collect_interruptible(rows.mapInArrow(task, RECORDS, barrier=True))
        results = [pickle.loads(record.data) for record in sorted(records, key=lambda record: record.key)]  # noqa: S301
        errors = [error for error, _ in results if error is not None]
        if errors:
            raise worker.root_cause(errors)
        return next(pickle.loads(result) for _, result in results if result is not None)  # type: ignore[no-any-return]  # noqa: S301

    @property
    def _max_tasks(self) -> int:
        """The maximum number of tasks that read the frame: small partitions share one, since Python tasks start slowly."""
        return TASKS_PER_CORE * int(self.frame.sparkSession.sparkContext.defaultParallelism)

    def _select(self, columns: Sequence[str]) -> tuple[Any, dict[str, str]]:
        types = arrow_types(self.frame, columns)
        with spark_errors():
            return number_columns(self.frame.select(*map(quote_name, columns))), types


class SparkShuffledRecords(ShuffledRecords):
    """Records in a cached Spark DataFrame: numbers of the new and of the old partition, and bytes."""

    def __init__(self, records: Any, partitions: int) -> None:
        self.records = records
        self.partitions = partitions

    def map_reduce(self, work: Callable[[list[bytes], int], T], add: Add[T]) -> T:
        """Call ``work`` on the records of every partition; add results of neighbours in pairs, mostly on the cluster."""
        with spark_errors():
            records = self.records.mapInArrow(partial(_map_records_task, work, self.partitions), RECORDS)
            rows = _collect_sums(records, add, on_cluster=self.partitions > DRIVER_RESULTS)
        return _unpack(_sum_packed(add, [data for _, _, data in rows]))  # type: ignore[no-any-return]

    def close(self) -> None:
        """Remove the records from Spark's cache."""
        with contextlib.suppress(Exception):  # the session may be stopped
            self.records.unpersist()


def quote_name(name: str) -> str:
    """Quote a column name, so that Spark does not read a dot in it as a field of a struct."""
    return "`" + name.replace("`", "``") + "`"


def number_columns(frame: Any) -> Any:
    """Rename the columns to c0, c1, ...: `mapInArrow` reads a dot in a name as a field of a struct."""
    return frame.toDF(*(f"c{index}" for index in range(len(frame.columns))))


def arrow_types(frame: Any, columns: Iterable[str]) -> dict[str, str]:
    """Return the Arrow types of columns; raise for types that trueup does not read."""
    spark_types = {field.name: field.dataType for field in frame.schema.fields}
    types = {}
    for name in columns:
        kind = spark_types[name]
        if kind.typeName() not in ARROW_TYPES:
            raise unread_type(name, kind.simpleString())
        types[name] = ARROW_TYPES[kind.typeName()]
    return types


def empty_table(types: dict[str, str]) -> Any:
    """Return an Arrow table with these columns and no rows."""
    import pyarrow as pa

    return pa.table({name: pa.array([], pa.type_for_alias(kind)) for name, kind in types.items()})


def partition_number() -> int:
    """Return, within a task, the number of its partition."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    return int(context.partitionId())


@contextlib.contextmanager
def spark_errors(lost_hint: str = MEMORY_HINT) -> Iterator[None]:
    """Raise Spark's errors, which are pages long and in its log, as errors of one line."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        text = str(error)
        if "No module named 'trueup" in text:
            raise MissingPackageError(
                "the workers of Spark cannot import trueup",
                hint="install it there, in the same version; if they run another Python than this, set PYSPARK_PYTHON "
                f"before Spark starts (here it is {sys.executable})",
            ) from None
        for pattern, message in LOSSES:
            if match := re.search(pattern, text):
                raise LostWorkerError(message.format(*match.groups("no reason given")), lost_hint) from None
        lines = [line.strip().removeprefix(": ") for line in text.splitlines() if line.strip()]
        noise = ("An error occurred while calling", "at ")
        reason = next((line for line in lines if not line.startswith(noise)), "no reason given")
        raise TrueupError(f"Spark failed: {reason[:300]}", hint="see its log") from None


def _collect_sums(records: Any, add: Add[Any], *, on_cluster: bool) -> list[tuple[int, int, bytes]]:
    """Return (key, partition, bytes) per record, sorted; records of equal key are added first if ``on_cluster``."""
    if on_cluster:
        records = records.repartition(DRIVER_RESULTS, "key").mapInArrow(partial(_sum_task, add), RECORDS)
    return sorted((row.key, row.part, bytes(row.data)) for row in records.collect())


def _call_on_table(work: Work[T], batches: Iterable[Any], types: dict[str, str], part: int) -> T:
    """Call ``work`` with the batches of a partition as one table, and the number of the partition."""
    import pyarrow as pa

    loaded = list(batches)
    return work(pa.Table.from_batches(loaded).rename_columns(list(types)) if loaded else empty_table(types), part)


def _record_batch(records: Sequence[tuple[int, int, bytes]]) -> Any:
    import pyarrow as pa

    keys, parts, data = zip(*records, strict=True)
    columns = {"key": pa.array(keys, pa.int32()), "part": pa.array(parts, pa.int32()), "data": pa.array(data, pa.binary())}
    return pa.RecordBatch.from_pydict(columns)


def _group_records(batches: Iterator[Any]) -> dict[int, list[tuple[int, bytes]]]:
    """Group the records of a task by key, each in the order of the partitions that they come from."""
    rows = sorted(tuple(row.values()) for batch in batches for row in batch.select(["key", "part", "data"]).to_pylist())
    return {key: [(part, data) for _, part, data in group] for key, group in groupby(rows, key=lambda row: row[0])}


def _map_task(
    work: Work[Any], types: dict[str, str], partitions: int | None, add: Add[Any] | None, batches: Iterator[Any]
) -> Iterator[Any]:
    """Call ``work`` on every partition of a task, one after the other; add the results in the task if ``add`` is given."""
    total, last = None, -1
    for part, loaded in _batches_by_partition(batches):
        packed = pickle.dumps(_attempt(f"the work on partition {part}", _call_on_table, work, loaded, types, part))
        if add is None:
            key = part % DRIVER_RESULTS if partitions is None else part * DRIVER_RESULTS // partitions
            yield _record_batch([(key, part, packed)])
        else:
            total, last = packed if total is None else _sum_packed(add, [total, packed]), max(last, part)
    if total is not None:
        yield _record_batch([(last % DRIVER_RESULTS, last, total)])


def _batches_by_partition(batches: Iterator[Any]) -> Iterator[tuple[int, list[Any]]]:
    """Yield the number of each partition with its batches, without the column of numbers, which is the last."""
    current = -1
    loaded: list[Any] = []
    for batch in batches:
        numbers = batch.column(batch.num_columns - 1).to_numpy()
        starts = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
        for start, stop in pairwise(starts):
            if stop > start and numbers[start] != current:
                if loaded:
                    yield current, loaded
                current, loaded = int(numbers[start]), []
            loaded.append(batch.slice(start, stop - start).select(range(batch.num_columns - 1)))
    if loaded:
        yield current, loaded


def _sum_task(add: Add[Any], batches: Iterator[Any]) -> Iterator[Any]:
    """Yield one record per key of a task: the sum of its results."""
    for key, group in _group_records(batches).items():
        yield _record_batch([(key, group[-1][0], _sum_packed(add, [data for _, data in group]))])


def _split_task(split: Split[Any], types: dict[str, str], batches: Iterator[Any]) -> Iterator[Any]:
    """Call ``split`` on the partition of a task; yield its records by new partition, its value under a negative key."""
    part = partition_number()
    succeeded, result = _attempt(f"the work on partition {part}", _call_on_table, split, batches, types, part)
    value, records = result if succeeded else (result, {})
    packed = pickle.dumps((succeeded, value))
    value_key = -1 - part % DRIVER_RESULTS
    yield _record_batch([(value_key, part, packed), *((key, part, data) for key, data in records.items())])


def _map_records_task(work: Callable[[list[bytes], int], Any], partitions: int, batches: Iterator[Any]) -> Iterator[Any]:
    """Call ``work`` on the records of each new partition of a task; yield its packed results."""
    for number, group in _group_records(batches).items():
        if number >= 0:
            packed = pickle.dumps(_attempt(f"the work on partition {number}", work, [data for _, data in group], number))
            yield _record_batch([(number * DRIVER_RESULTS // partitions, number, packed)])


def _attempt(what: str, function: Callable[..., Any], *args: Any) -> tuple[bool, Any]:
    """Return whether a call succeeded, and its result or its error, in which ``what`` names the call."""
    try:
        return True, function(*args)
    except TrueupError as error:
        return False, error
    except Exception as error:  # noqa: BLE001
        return False, TrueupError(f"{what} failed: {type(error).__name__}: {error}")


def _unpack(packed: bytes) -> Any:
    succeeded, value = pickle.loads(packed)  # noqa: S301  written by our own tasks
    if not succeeded:
        raise value
    return value


def _sum_packed(add: Add[Any], packed: Iterable[bytes]) -> bytes:
    return pickle.dumps(_attempt("adding results", _sum_in_pairs, add, map(_unpack, packed)))


def _sum_in_pairs(add: Add[T], values: Iterable[T]) -> T:
    """Add neighbours in pairs, then the sums, holding about log2(n) values at a time."""
    stack: list[tuple[int, T]] = []
    for value in values:
        size, total = 1, value
        while stack and stack[-1][0] == size:
            total, size = add(stack.pop()[1], total), 2 * size
        stack.append((size, total))
    _, total = stack.pop()
    while stack:
        total = add(stack.pop()[1], total)
    return total


def _collect_interruptible(frame: Any) -> list[Any]:
    """Collect in another thread: Ctrl-C in a thread that waits for Java breaks its connection, and the stage goes on."""
    from pyspark import InheritableThread

    context, tag = frame.sparkSession.sparkContext, f"trueup-{secrets.token_hex(8)}"
    done: Future[list[Any]] = Future()

    def run() -> None:
        try:
            context.addJobTag(tag)
            done.set_result(list(frame.collect()))
        except BaseException as error:  # noqa: BLE001
            done.set_exception(error)

    InheritableThread(target=run, daemon=True).start()
    try:
        return done.result()
    finally:
        if not done.done():
            context.cancelJobsWithTag(tag)


def _worker_layout(frame: Any) -> tuple[int, int, bool]:
    """Return the numbers of partitions and workers, and whether each worker reads one partition, without a shuffle."""
    if not hasattr(frame, "_jdf"):
        raise ArgumentError(
            "a fit on Spark needs a session of its own driver; this one is of Spark Connect",
            hint="run the fit where the driver runs",
        )
    if frame.sparkSession.conf.get("spark.dynamicAllocation.enabled", "false") == "true":
        raise ArgumentError(
            "a fit on Spark uses tasks that run at the same time, which Spark refuses with dynamic allocation",
            hint="start the session with spark.dynamicAllocation.enabled=false",
        )
    rdd = frame._jdf.queryExecution().toRdd()
    partitions, slots = int(rdd.getNumPartitions()), _count_slots(frame.sparkSession.sparkContext)
    in_place = 0 < partitions <= slots and _is_barrier_compatible(rdd, partitions)
    return partitions, max(min(partitions, slots), 1), in_place


def _count_slots(context: Any) -> int:
    """Count the tasks that can run at once, a number that Spark compares with the tasks of a barrier stage."""
    spark = context._jsc.sc()
    profile = spark.resourceProfileManager().defaultResourceProfile()
    deadline = time.monotonic() + EXECUTOR_SECONDS
    while not (slots := int(spark.maxNumConcurrentTasks(profile))) and time.monotonic() < deadline:
        time.sleep(0.2)
    if not slots:
        raise LostWorkerError("Spark has no executors", hint="check the cluster: it has assigned no cores to this session")
    return slots


def _is_barrier_compatible(rdd: Any, partitions: int) -> bool:
    """Return whether all RDDs of the stage have the same number of partitions, as Spark demands of a barrier stage."""
    pending, seen = [rdd], set()
    while pending:
        current = pending.pop()
        if current.getNumPartitions() != partitions:
            return False
        dependencies = current.dependencies()
        for index in range(dependencies.size()):
            dependency = dependencies.apply(index)
            if dependency.getClass().getSimpleName() != "ShuffleDependency" and dependency.rdd().id() not in seen:
                seen.add(dependency.rdd().id())
                pending.append(dependency.rdd())
    return True


def _join_neighbours(rows: Any, partitions: int, workers: int) -> Any:
    """Send neighbouring partitions to the same worker; every row keeps the number of its partition."""
    keys = ", ".join(map(str, _partition_keys(workers)))
    home = f"element_at(array({keys}), cast(floor(`{PART}` * {workers} / {max(partitions, 1)}) as int) + 1)"
    numbered = rows.selectExpr("*", f"spark_partition_id() as `{PART}`")
    return numbered.selectExpr("*", f"{home} as `{HOME}`").repartition(workers, quote_name(HOME))


def _partition_keys(workers: int) -> list[int]:
    """Return a key per worker that Spark's hash partitioner sends to this worker."""
    keys: dict[int, int] = {}
    key = 0
    while len(keys) < workers:
        keys.setdefault(_spark_hash(key) % workers, key)
        key += 1
    return [keys[number] for number in range(workers)]


def _spark_hash(key: int) -> int:
    """Hash a 32-bit number as Spark's partitioner does: MurmurHash3 (Appleby), seed 42, signed."""
    k = _rotate_left(key * 0xCC9E2D51 & UINT32, 15) * 0x1B873593 & UINT32
    h = (_rotate_left(42 ^ k, 13) * 5 + 0xE6546B64 & UINT32) ^ 4
    h = (h ^ h >> 16) * 0x85EBCA6B & UINT32
    h = (h ^ h >> 13) * 0xC2B2AE35 & UINT32
    h ^= h >> 16
    return h - (1 << 32) if h >> 31 else h


def _rotate_left(word: int, bits: int) -> int:
    return (word << bits | word >> (32 - bits)) & UINT32


@dataclass(frozen=True)
class _WorkerTask:
    """The task of a barrier stage: spill the rows, exchange addresses, run a worker."""

    prepare: bytes
    job: worker.WorkerJob
    types: dict[str, str]
    partitions: int
    in_place: bool

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import BarrierTaskContext

        context = BarrierTaskContext.get()
        rank = context.partitionId()
        error = result = None
        parent = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]  # deleted by Spark in the end
        with TableSpill.create(parent or None) as spill:
            try:
                result = self._run(spill, batches, context)
            except Exception as caught:
                if getattr(caught, "missed", False) and SILENT in str(caught):
                    raise  # Spark may wait minutes for the silent worker
                error = caught
        if rank == 0 or error is not None:
            yield _record_batch([(rank, rank, pickle.dumps((error, result)))])

    def _run(self, spill: TableSpill, batches: Iterator[Any], context: Any) -> bytes | None:
        rank, tasks = context.partitionId(), context.getTaskInfos()
        what = f"the work on the rows of worker {rank + 1}"
        succeeded, result = _attempt(what, self._spill_rows, spill, batches, rank, tasks)
        address = json.dumps(asdict(result) if succeeded else None)
        addresses = [json.loads(text) for text in context.allGather(address)]
        if not succeeded:
            raise result
        if not all(addresses):
            raise LostWorkerError("another worker could not prepare its rows", missed=True)
        job = replace(self.job, threads=max(int(context.cpus()), 1))
        return worker.run_worker(spill, job, [worker.WorkerAddress(**fields) for fields in addresses], rank)

    def _spill_rows(
        self, spill: TableSpill, batches: Iterator[Any], rank: int, tasks: Sequence[Any]
    ) -> worker.WorkerAddress:
        """Spill the rows, each partition by itself; return the address that this worker has reserved."""
        import pyarrow as pa
        import pyarrow.compute as pc

        prepare = pickle.loads(self.prepare)  # noqa: S301
        loaded = list(batches)
        table = pa.Table.from_batches(loaded) if loaded else empty_table(self.types)
        del loaded
        if self.in_place:
            spill.add(prepare(table, rank))
        elif not len(table):
            spill.add(prepare(empty_table(self.types), -(-rank * self.partitions // len(tasks))))
        else:
            for number in sorted(pc.unique(table[PART]).to_pylist()):
                rows = table.filter(pc.equal(table[PART], number)).drop_columns([PART, HOME])
                spill.add(prepare(rows, number))
        return worker.reserve_address(worker.local_address(tasks[0].address.rsplit(":", 1)[0]))


def predict_frame(model: Any, frame: Any, threads: int, *, lenient: bool = False) -> Any:
    """Return a Spark frame with columns of corrected predictions added, lazily."""
    from pyspark.sql.types import DoubleType, StructField, StructType

    schema, names = model.schema, list(frame.columns)
    needed = required_columns(schema)
    types = arrow_types(frame, [name for name in needed if name in names])
    check_columns(schema, empty_table(types), [name for name, kind in types.items() if kind == UNTYPED])
    lower_names = {name.lower() for name in names}
    for name in schema.score_names:
        if name.lower() in lower_names:
            raise ColumnError(f"there is a column {name!r} already", hint="rename it, or drop it first")
    numbers = {name: f"c{names.index(name)}" for name in needed}
    with spark_errors():
        numbered = number_columns(frame)
        new = [StructField(f"n{index}", DoubleType(), nullable=False) for index in range(len(schema.score_names))]
        task = partial(_predict_task, model, numbers, threads, lenient)
        return numbered.mapInArrow(task, StructType([*numbered.schema.fields, *new])).toDF(*names, *schema.score_names)


def _predict_task(
    model: Any,
    numbers: dict[str, str],
    threads: int,
    lenient: bool,  # noqa: FBT001  (the last argument is that of Spark)
    batches: Iterator[Any],
) -> Iterator[Any]:
    import pyarrow as pa

    first, part = 0, partition_number()
    for batch in batches:
        table = pa.Table.from_batches([batch])
        frame = table.select(list(numbers.values())).rename_columns(list(numbers))
        scores = predict_rows(model, frame, threads, RowPosition(first, part), lenient=lenient)
        first += len(scores)
        for index, column in enumerate(scores.T):
            table = table.append_column(f"n{index}", pa.array(np.ascontiguousarray(column)))
        yield from table.to_batches()
