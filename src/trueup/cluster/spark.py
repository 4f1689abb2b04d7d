"""Spark: every partition by `mapInArrow`, what was found added up in a second stage, few results at the driver.

Takes nothing but the DataFrame's own methods. Parts are numbered as Spark numbers partitions: the numbers mean the same
rows in every pass as long as Spark computes the frame the same way each time; one that is shuffled should be cached.
"""

from __future__ import annotations

import contextlib
import pickle
import sys
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypeVar

from trueup._optional import require
from trueup.cluster.partitions import ClusterFrame, ShuffledRecords
from trueup.errors import ColumnError, LostWorkerError, MissingPackageError, TrueupError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from trueup.cluster.communicator import Communicator
    from trueup.data.table import Table

T = TypeVar("T")
AT_THE_DRIVER = 16  # results that are added up there
FOUND = "part int, place int, found binary"
ROWS = "part int, rows binary"
RECORDS = "key int, part int, data binary"
# What Spark calls a type, and what Arrow calls one that is read alike.
ARROW = {
    "byte": "int8", "short": "int16", "integer": "int32", "long": "int64", "float": "float32", "double": "float64",
    "decimal": "float64", "boolean": "bool", "string": "string", "char": "string", "varchar": "string", "date": "date32",
    "timestamp": "timestamp[us]", "timestamp_ntz": "timestamp[us]", "void": "null",
}  # fmt: skip
LOST = (
    "Python worker exited", "Python worker failed", "ExecutorLostFailure", "Could not recover", "executor lost",
    "SparkContext was shut down", "Connection refused", "Answer from Java side is empty",
)  # fmt: skip


class SparkFrame(ClusterFrame):
    """The partitions of a Spark DataFrame, which are read as Arrow tables."""

    def __init__(self, frame: Any) -> None:
        for name in ("pyspark", "pyarrow", "pandas"):
            require(name, extra="spark")
        self.frame = frame
        self.names = tuple(frame.columns)
        self._parts: int | None = None  # known after the first pass

    def map_reduce(self, work: Callable[[Any, int], T], add: Callable[[T, T], T], columns: Sequence[str]) -> T:
        """Do the work on every partition; add up in pairs of neighbours, most of them on the cluster.

        How many partitions there are is not known before the first pass, which adds up those that lie 16 apart.
        """
        frame, types = self._select(columns)
        parts = self._parts
        with telling():
            found = frame.mapInArrow(_working(work, types, parts), FOUND)
            if parts is None or parts > AT_THE_DRIVER:
                found = found.repartition(AT_THE_DRIVER, "place").mapInArrow(_adding(add), FOUND)
            rows = [(row.place, row.part, bytes(row.found)) for row in found.collect()]
        if not rows:  # a frame that Spark knows to be empty has no partition at all
            return work(without_rows(types), 0)
        self._parts = max(part for _, part, _ in rows) + 1
        return _unpack(_add_up(add, [one for _, _, one in sorted(rows)]))  # type: ignore[no-any-return]

    def iter_partitions(self, columns: Sequence[str]) -> Iterator[Any]:
        """Fetch one partition after the other: its Arrow batches as bytes, so that no row becomes a Python object."""
        import pyarrow as pa

        frame, types = self._select(columns)
        with telling():
            found = frame.mapInArrow(_packing(types), ROWS).toLocalIterator()
            for _, rows in groupby(found, key=lambda row: row.part):
                tables = [pa.ipc.open_stream(row.rows).read_all() for row in rows]
                yield pa.concat_tables(tables)

    def shuffle(
        self,
        split: Callable[[Any, int], tuple[T, Mapping[int, bytes]]],
        add: Callable[[T, T], T],
        columns: Sequence[str],
        partitions: int,
    ) -> tuple[T, SparkShuffledRecords]:
        """Move the records to new partitions: few large binary values, which Spark moves without looking inside.

        Spark places them by a hash of their number, so that a task may hold several new partitions, or none.
        """
        frame, types = self._select(columns)
        records = frame.mapInArrow(_splitting(split, types), RECORDS).repartition(partitions, "key").persist()
        shuffled = SparkShuffledRecords(records, partitions)
        try:
            with telling():
                rows = records.mapInArrow(_adding_values(add), FOUND).collect()
            if not rows:
                return split(without_rows(types), 0)[0], shuffled
            return _unpack(_add_up(add, [bytes(row.found) for row in sorted(rows, key=lambda row: row.part)])), shuffled
        except BaseException:
            shuffled.close()
            raise

    def run_workers(
        self,
        prepare: Callable[[Any, int], Table],
        work: Callable[[Table, Sequence[int], Communicator], T],
        columns: Sequence[str],
    ) -> T:
        """Let one task for every partition work at the same time."""
        from trueup.cluster.spark_workers import gang

        return gang(self.frame, prepare, work, columns)

    def _select(self, columns: Sequence[str]) -> tuple[Any, dict[str, str]]:
        types = arrow_types(self.frame, columns)
        with telling():
            return numbered(self.frame.select(*map(quoted, columns))), types


class SparkShuffledRecords(ShuffledRecords):
    """Records in a cached Spark DataFrame: numbers of the new and of the old partition, and bytes."""

    def __init__(self, records: Any, partitions: int) -> None:
        self.records = records
        self.partitions = partitions

    def map_reduce(self, work: Callable[[list[bytes], int], T], add: Callable[[T, T], T]) -> T:
        """Call ``work`` on every partition; add the results in pairs of neighbours, most of them on the cluster."""
        with telling():
            found = self.records.mapInArrow(_working_on_records(work, self.partitions), FOUND)
            if self.partitions > AT_THE_DRIVER:
                found = found.repartition(AT_THE_DRIVER, "place").mapInArrow(_adding(add), FOUND)
            rows = [(row.place, row.part, bytes(row.found)) for row in found.collect()]
        return _unpack(_add_up(add, [value for _, _, value in sorted(rows)]))  # type: ignore[no-any-return]

    def close(self) -> None:
        """Take the records out of Spark's cache."""
        with contextlib.suppress(Exception):  # the session may be gone
            self.records.unpersist()


def quoted(name: str) -> str:
    """Write the name of a column so that a point in it is a point."""
    return "`" + name.replace("`", "``") + "`"


def numbered(frame: Any) -> Any:
    """Call the columns c0, c1, ...: `mapInArrow` takes a point in a name for a field of a struct."""
    return frame.toDF(*(f"c{at}" for at in range(len(frame.columns))))


def arrow_types(frame: Any, columns: Iterable[str]) -> dict[str, str]:
    """Name the Arrow types of columns; refuse those that are not read."""
    found = {field.name: field.dataType for field in frame.schema.fields}
    types = {}
    for name in columns:
        kind = found[name]
        if kind.typeName() not in ARROW:
            raise ColumnError(
                f"column {name!r} has a type trueup does not read: {kind.simpleString()}",
                hint="numbers, booleans, texts, categories and dates are read; convert it, or leave it out",
            )
        types[name] = ARROW[kind.typeName()]
    return types


def without_rows(types: dict[str, str]) -> Any:
    """Make an Arrow table of these columns that has no rows."""
    import pyarrow as pa

    return pa.table({name: pa.array([], pa.type_for_alias(kind)) for name, kind in types.items()})


def part_number() -> int:
    """Say, within a task, which partition it works on."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    return int(context.partitionId())


def _table(batches: Iterable[Any], types: dict[str, str]) -> Any:
    import pyarrow as pa

    some = list(batches)
    return pa.Table.from_batches(some).rename_columns(list(types)) if some else without_rows(types)


def _working(
    work: Callable[[Any, int], Any], types: dict[str, str], parts: int | None
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    def run(batches: Iterator[Any]) -> Iterator[Any]:
        part = part_number()
        place = part % AT_THE_DRIVER if parts is None else part * AT_THE_DRIVER // parts
        yield _row(part, place, _pack(lambda: work(_table(batches, types), part), part))

    return run


def _adding(add: Callable[[Any, Any], Any]) -> Callable[[Iterator[Any]], Iterator[Any]]:
    def run(batches: Iterator[Any]) -> Iterator[Any]:
        rows = sorted(
            tuple(row.values()) for batch in batches for row in batch.select(["place", "part", "found"]).to_pylist()
        )
        for place, some in groupby(rows, key=lambda row: row[0]):
            group = list(some)
            yield _row(group[-1][1], place, _add_up(add, [found for _, _, found in group]))

    return run


def _splitting(
    split: Callable[[Any, int], tuple[Any, Mapping[int, bytes]]], types: dict[str, str]
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Split the records of a task's partition; the value, or an error, travels with them under a negative number."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        part = part_number()
        records: Mapping[int, bytes] = {}

        def value() -> Any:
            nonlocal records
            result, records = split(_table(batches, types), part)
            return result

        packed = _pack(value, part)
        yield _records_batch(
            [(-1 - part % AT_THE_DRIVER, part, packed), *((key, part, data) for key, data in records.items())]
        )

    return run


def _records_batch(rows: Sequence[tuple[int, int, bytes]]) -> Any:
    import pyarrow as pa

    keys, parts, data = zip(*rows, strict=True)
    columns = {"key": pa.array(keys, pa.int32()), "part": pa.array(parts, pa.int32()), "data": pa.array(data, pa.binary())}
    return pa.RecordBatch.from_pydict(columns)


def _by_key(batches: Iterator[Any]) -> dict[int, list[tuple[int, bytes]]]:
    """Group the records of a task by their number, in the order of the partitions that they come from."""
    rows = sorted(tuple(row.values()) for batch in batches for row in batch.select(["key", "part", "data"]).to_pylist())
    return {key: [(part, data) for _, part, data in some] for key, some in groupby(rows, key=lambda row: row[0])}


def _adding_values(add: Callable[[Any, Any], Any]) -> Callable[[Iterator[Any]], Iterator[Any]]:
    def run(batches: Iterator[Any]) -> Iterator[Any]:
        for key, rows in _by_key(batches).items():
            if key < 0:
                yield _row(rows[0][0], 0, _add_up(add, [data for _, data in rows]))

    return run


def _working_on_records(
    work: Callable[[list[bytes], int], Any], partitions: int
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    def run(batches: Iterator[Any]) -> Iterator[Any]:
        for key, rows in _by_key(batches).items():
            if key >= 0:
                place = key * AT_THE_DRIVER // partitions
                yield _row(key, place, _pack(partial(work, [data for _, data in rows], key), key))

    return run


def _packing(types: dict[str, str]) -> Callable[[Iterator[Any]], Iterator[Any]]:
    def run(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        part, empty = part_number(), True
        for batch in batches:
            empty = False
            yield _bytes_row(part, pa.Table.from_batches([batch]).rename_columns(list(types)))
        if empty:
            yield _bytes_row(part, without_rows(types))

    return run


def _bytes_row(part: int, table: Any) -> Any:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    columns = {"part": pa.array([part], pa.int32()), "rows": pa.array([sink.getvalue().to_pybytes()], pa.binary())}
    return pa.RecordBatch.from_pydict(columns)


def _row(part: int, place: int, found: bytes) -> Any:
    import pyarrow as pa

    numbers = {"part": pa.array([part], pa.int32()), "place": pa.array([place], pa.int32())}
    return pa.RecordBatch.from_pydict({**numbers, "found": pa.array([found], pa.binary())})


def _pack(do: Callable[[], Any], part: int | None) -> bytes:
    """Do something and pickle what comes of it, errors too: Spark would bury those under its own."""
    try:
        return pickle.dumps((True, do()))
    except TrueupError as error:
        return pickle.dumps((False, error))
    except Exception as error:  # noqa: BLE001
        what = "adding up" if part is None else f"the work on part {part}"
        return pickle.dumps((False, TrueupError(f"{what} failed: {type(error).__name__}: {error}")))


def _unpack(found: bytes) -> Any:
    ok, value = pickle.loads(found)  # noqa: S301  written by our own tasks
    if not ok:
        raise value
    return value


def _add_up(add: Callable[[Any, Any], Any], found: Iterable[bytes]) -> bytes:
    return _pack(lambda: _sum(add, map(_unpack, found)), None)


def _sum(add: Callable[[T, T], T], values: Iterable[T]) -> T:
    """Add in pairs of neighbours, holding few at a time."""
    heap: list[tuple[int, T]] = []
    for value in values:
        size, total = 1, value
        while heap and heap[-1][0] == size:
            total, size = add(heap.pop()[1], total), 2 * size
        heap.append((size, total))
    _, total = heap.pop()
    while heap:
        total = add(heap.pop()[1], total)
    return total


@contextlib.contextmanager
def telling() -> Iterator[None]:
    """Tell of Spark's troubles in a line."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise _in_short(str(error)) from None  # it is pages long, and Spark has logged it


def _in_short(text: str) -> TrueupError:
    lines = [line.strip().removeprefix(": ") for line in text.splitlines() if line.strip()]
    if "No module named 'trueup" in text:
        return MissingPackageError(
            "the workers of Spark cannot import trueup",
            hint="install it there, in the same version; if they run another Python than this, set PYSPARK_PYTHON "
            f"before Spark starts (here it is {sys.executable})",
        )
    lost = next((line for line in lines if any(mark in line for mark in LOST)), None)
    if lost is not None:
        return LostWorkerError(
            f"a Spark worker was lost: {lost[:300]}",
            hint="did it run out of memory? Its log tells; smaller partitions take less",
        )
    noise = ("An error occurred while calling", "at ")
    told = next((line for line in lines if not line.startswith(noise)), "no reason was given")
    return TrueupError(f"Spark failed: {told[:300]}", hint="its log tells more")
