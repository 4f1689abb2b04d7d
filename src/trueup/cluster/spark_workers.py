"""Spark: the processes of a gang, the tasks of one barrier stage; native LightGBM, no jar.

Spark does not try a barrier stage again whose results go straight to the driver, as they do here: a lost worker is told
when it is lost. Errors of ours travel as values, since Spark would bury them under its own.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import secrets
import time
from concurrent.futures import Future
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from trueup.cluster.communicator import SILENCE
from trueup.cluster.spark import arrow_types, quoted, telling, without_rows
from trueup.cluster.worker import HINT, Job, Seat, address_of, cause_of, reserve, sit
from trueup.data.spill import Room
from trueup.errors import ArgumentError, LostWorkerError, TrueupError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trueup.cluster.communicator import Communicator
    from trueup.data.table import Table

T = TypeVar("T")

PART, HOME = "trueup:part", "trueup:home"  # columns that travel with rows that are moved
FOUND = "rank int, found binary"
PATIENCE = 30.0  # seconds in which the first executors must have come
WORDS = 0xFFFFFFFF
# What Spark says of a loss, and how it is told.
LOSSES = (
    (r"LostWorkerError: (.*)", "{}"),
    (r"ExecutorLostFailure \((.*?)\)(?: Reason: ([^\n]{0,200}))?", "a Spark executor was lost: {}: {}"),
    (r"Python worker (?:exited|failed)", "the Python worker of a Spark task ended unexpectedly: out of memory?"),
)


def gang(
    frame: Any,
    prepare: Callable[[Any, int], Table],
    work: Callable[[Table, Sequence[int], Communicator], T],
    columns: Sequence[str],
) -> T:
    """Let the tasks of a barrier stage work at the same time; see `Frames.gang`.

    Each partition is a member, where all can run at once. Where there are more partitions than task slots, or where Spark
    refuses a barrier stage on them (a union, `coalesce` or `limit` within the stage), neighbours are put together by a
    shuffle, each of them whole. It moves all rows for every gang: a frame that has been repartitioned to the number of
    slots, and is cached, is worked on where it lies.
    """
    types = arrow_types(frame, columns)
    with telling():
        parts, members, plain = _arrangement(frame)
        rows = frame.select(*map(quoted, columns))
        if not plain:
            rows = _bring_together(rows, parts, members)
        run = _Member(pickle.dumps(prepare), Job(pickle.dumps(work)), types, parts, plain)
        found = [(row.rank, *pickle.loads(row.found)) for row in _collect(rows.mapInArrow(run, FOUND, barrier=True))]  # noqa: S301
    errors = [error for _, error, _ in sorted(found, key=lambda one: one[0]) if error is not None]
    if errors:
        raise cause_of(errors)
    return next(pickle.loads(result) for _, _, result in found if result is not None)  # type: ignore[no-any-return]  # noqa: S301


def _collect(frame: Any) -> list[Any]:
    """Run the stage; find in Spark's many words those that tell what was lost.

    In a thread of its own: Ctrl-C in a thread that waits for Java breaks its connection, and the stage would go on.
    """
    from py4j.protocol import Py4JError
    from pyspark import InheritableThread
    from pyspark.errors import PySparkException

    context, mark = frame.sparkSession.sparkContext, f"trueup-{secrets.token_hex(8)}"
    done: Future[list[Any]] = Future()

    def run() -> None:
        try:
            context.addJobTag(mark)
            done.set_result(list(frame.collect()))
        except BaseException as error:  # noqa: BLE001
            done.set_exception(error)

    InheritableThread(target=run, daemon=True).start()
    try:
        return done.result()
    except (PySparkException, Py4JError) as error:
        words = next((found for mark, as_told in LOSSES if (found := _told(str(error), mark, as_told))), None)
        if words is None:
            raise
        raise LostWorkerError(words, HINT) from None  # it is pages long, and Spark has logged it
    finally:
        if not done.done():
            context.cancelJobsWithTag(mark)


def _told(text: str, mark: str, as_told: str) -> str | None:
    found = re.search(mark, text)
    return found and as_told.format(*found.groups())


def _arrangement(frame: Any) -> tuple[int, int, bool]:
    """Count the partitions and the members; say whether each member is a partition as it lies."""
    if not hasattr(frame, "_jdf"):
        raise ArgumentError(
            "trees are grown on Spark from a session of its own driver; this one is of Spark Connect",
            hint="run the fit where the driver runs",
        )
    if frame.sparkSession.conf.get("spark.dynamicAllocation.enabled", "false") == "true":
        raise ArgumentError(
            "trees are grown by tasks that run at the same time, which Spark refuses with dynamic allocation",
            hint="start the session with spark.dynamicAllocation.enabled=false",
        )
    rdd = frame._jdf.queryExecution().toRdd()
    parts, slots = int(rdd.getNumPartitions()), _slots(frame.sparkSession.sparkContext)
    plain = 0 < parts <= slots and _is_plain(rdd, parts)
    return parts, max(min(parts, slots), 1), plain


def _slots(context: Any) -> int:
    """Count the tasks that can run at once: what Spark itself compares to the tasks of a barrier stage."""
    spark = context._jsc.sc()
    profile = spark.resourceProfileManager().defaultResourceProfile()
    until = time.monotonic() + PATIENCE
    while not (found := int(spark.maxNumConcurrentTasks(profile))) and time.monotonic() < until:
        time.sleep(0.2)
    if not found:
        raise LostWorkerError("Spark has no executors", hint="look at the cluster: it lends this session no cores")
    return found


def _is_plain(rdd: Any, parts: int) -> bool:
    """Say whether all that is computed in one stage has as many partitions: Spark refuses others as a barrier."""
    waiting, seen = [rdd], set()
    while waiting:
        one = waiting.pop()
        if one.getNumPartitions() != parts:
            return False
        needs = one.dependencies()
        for at in range(needs.size()):
            need = needs.apply(at)
            if need.getClass().getSimpleName() != "ShuffleDependency" and need.rdd().id() not in seen:
                seen.add(need.rdd().id())
                waiting.append(need.rdd())
    return True


def _bring_together(rows: Any, parts: int, members: int) -> Any:
    """Send neighbouring partitions to the same member; every row keeps the number of its partition."""
    keys = ", ".join(map(str, _keys(members)))
    home = f"element_at(array({keys}), cast(floor(`{PART}` * {members} / {max(parts, 1)}) as int) + 1)"
    numbered = rows.selectExpr("*", f"spark_partition_id() as `{PART}`")
    return numbered.selectExpr("*", f"{home} as `{HOME}`").repartition(members, quoted(HOME))


def _keys(members: int) -> list[int]:
    """Find for every member a number that Spark's hash sends there."""
    found: dict[int, int] = {}
    key = 0
    while len(found) < members:
        found.setdefault(_hash(key) % members, key)
        key += 1
    return [found[member] for member in range(members)]


def _hash(key: int) -> int:
    """Hash a 32-bit number as Spark's partitioner does: MurmurHash3 (Appleby), seed 42, signed."""
    k = _turn(key * 0xCC9E2D51 & WORDS, 15) * 0x1B873593 & WORDS
    h = (_turn(42 ^ k, 13) * 5 + 0xE6546B64 & WORDS) ^ 4
    h = (h ^ h >> 16) * 0x85EBCA6B & WORDS
    h = (h ^ h >> 13) * 0xC2B2AE35 & WORDS
    h ^= h >> 16
    return h - (1 << 32) if h >> 31 else h


def _turn(word: int, by: int) -> int:
    return (word << by | word >> (32 - by)) & WORDS


@dataclass(frozen=True)
class _Member:
    """What a task does."""

    prepare: bytes
    job: Job
    types: dict[str, str]
    parts: int
    plain: bool

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa
        from pyspark import BarrierTaskContext

        context = BarrierTaskContext.get()
        rank = context.partitionId()
        error = result = None
        folder = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]  # Spark takes it away in the end
        with Room.make(folder or None) as room:
            try:
                result = self._work(room, batches, context)
            except Exception as caught:
                if getattr(caught, "missed", False) and SILENCE in str(caught):
                    raise  # Spark may wait for the silent one for minutes
                error = caught
        if rank == 0 or error is not None:
            found = pa.array([pickle.dumps((error, result))], pa.binary())
            yield pa.RecordBatch.from_pydict({"rank": pa.array([rank], pa.int32()), "found": found})

    def _work(self, room: Room, batches: Iterator[Any], context: Any) -> bytes | None:
        rank = context.partitionId()
        wrong = seat = None
        try:
            self._lay(room, batches, rank, len(context.getTaskInfos()))
            seat = reserve(address_of(context.getTaskInfos()[0].address.rsplit(":", 1)[0]))
        except TrueupError as error:
            wrong = error
        except Exception as error:  # noqa: BLE001
            wrong = TrueupError(f"the work on the rows of worker {rank + 1} failed: {type(error).__name__}: {error}")
        told = [json.loads(one) for one in context.allGather(json.dumps(seat and asdict(seat)))]
        if wrong is not None:
            raise wrong
        if not all(told):
            raise LostWorkerError("another worker could not prepare its rows", missed=True)
        job = replace(self.job, threads=max(int(context.cpus()), 1))
        return sit(room, job, [Seat(**one) for one in told], rank)

    def _lay(self, room: Room, batches: Iterator[Any], rank: int, size: int) -> None:
        """Lay the rows down, each partition by itself."""
        import pyarrow as pa
        import pyarrow.compute as pc

        prepare = pickle.loads(self.prepare)  # noqa: S301
        some = list(batches)
        table = pa.Table.from_batches(some) if some else without_rows(self.types)
        del some
        if self.plain or not len(table):
            room.add(
                prepare(
                    table if self.plain else without_rows(self.types), rank if self.plain else -(-rank * self.parts // size)
                )
            )
            return
        for number in sorted(pc.unique(table[PART]).to_pylist()):
            part = table.filter(pc.equal(table[PART], number)).drop_columns([PART, HOME])
            room.add(prepare(part, number))
