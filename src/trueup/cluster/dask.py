"""Dask: a task for every partition, and a tree of tasks that adds up what they found."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from trueup._optional import require
from trueup.cluster.partitions import ClusterFrame, ShuffledRecords
from trueup.errors import ArgumentError, ColumnError, LostWorkerError, MissingPackageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from trueup.cluster.communicator import Communicator
    from trueup.data.table import Table

T = TypeVar("T")


class DaskFrame(ClusterFrame):
    """The partitions of a Dask DataFrame, which are pandas frames.

    Work goes to the active `distributed.Client` where there is one, else to Dask's own threads or processes.
    """

    def __init__(self, frame: Any) -> None:
        require("dask.dataframe", extra="dask")
        strange = [name for name in frame.columns if not isinstance(name, str)]
        if strange:
            raise ColumnError(
                f"the columns of a Dask frame must be named by texts; got {strange[0]!r}",
                hint="rename it: frame.rename(columns=str)",
            )
        self.frame = frame
        self.names = tuple(frame.columns)
        self.has_workers = active_client() is not None
        workers_are_able()

    def map_reduce(self, work: Callable[[Any, int], T], add: Callable[[T, T], T], columns: Sequence[str]) -> T:
        """Do the work on every partition; add up in pairs of neighbours."""
        import dask

        # What travels is one node of the graph, however many tasks read it.
        tool = dask.delayed(_Tool(work), pure=False)
        total = _sum([dask.delayed(_call)(tool, part, at) for at, part in enumerate(self._parts(columns))], add)
        with telling():
            return total.compute()  # type: ignore[no-any-return]

    def shuffle(
        self,
        split: Callable[[Any, int], tuple[T, Mapping[int, bytes]]],
        add: Callable[[T, T], T],
        columns: Sequence[str],
        partitions: int,
    ) -> tuple[T, DaskShuffledRecords]:
        """Move the records to new partitions by Dask's own shuffle of few large binary values."""
        import dask
        import dask.dataframe as dd

        tool = dask.delayed(_Tool(split), pure=False)
        parts = self._parts(columns)
        with telling():
            results = dask.persist(*(dask.delayed(_split)(tool, part, at) for at, part in enumerate(parts)))
            total = _sum([result[0] for result in results], add).compute()
            records = dd.from_delayed([result[1] for result in results], meta=_records_frame([]), verify_meta=False)
            moved = records.set_index("key", divisions=(*range(partitions), partitions - 1)).persist()
        return total, DaskShuffledRecords(moved)

    def iter_partitions(self, columns: Sequence[str]) -> Iterator[Any]:
        """Fetch one partition after the other."""
        for part in self._parts(columns):
            with telling():
                frame = part.compute()
            yield frame

    def run_workers(
        self,
        prepare: Callable[[Any, int], Table],
        work: Callable[[Table, Sequence[int], Communicator], T],
        columns: Sequence[str],
    ) -> T:
        """Let the workers that hold the partitions work at the same time."""
        from trueup.cluster.dask_workers import gang

        if active_client() is None:
            raise ArgumentError(
                "trees are grown by the workers of a Dask cluster, and there is no client of one",
                hint="make one first: distributed.Client() for this machine, or Client(address)",
            )
        return gang(self.frame, prepare, work, columns)

    def _parts(self, columns: Sequence[str]) -> list[Any]:
        return list(self.frame[list(columns)].to_delayed())


class DaskShuffledRecords(ShuffledRecords):
    """Records in a persisted Dask DataFrame: number of the new partition, of the old one, and bytes."""

    def __init__(self, records: Any) -> None:
        self.records = records

    def map_reduce(self, work: Callable[[list[bytes], int], T], add: Callable[[T, T], T]) -> T:
        """Call ``work`` on every partition; add the results in pairs of neighbours."""
        import dask

        tool = dask.delayed(_Tool(work), pure=False)
        parts = self.records.to_delayed()
        total = _sum(
            [dask.delayed(_work_on_records)(tool, part, at) for at, part in enumerate(parts)], partial(_add_some, add)
        )
        with telling():
            return total.compute()  # type: ignore[no-any-return]

    def close(self) -> None:
        """Let the workers forget the records."""
        self.records = None


def _sum(values: list[Any], add: Callable[[Any, Any], Any]) -> Any:
    """Add delayed values in pairs of neighbours."""
    import dask

    plus = dask.delayed(_Tool(add), pure=False)
    while len(values) > 1:
        pairs = [values[at : at + 2] for at in range(0, len(values), 2)]
        values = [dask.delayed(_call)(plus, *pair) if len(pair) == 2 else pair[0] for pair in pairs]
    return values[0]


def _records_frame(rows: Sequence[tuple[int, int, bytes]]) -> Any:
    import pandas as pd
    import pyarrow as pa

    keys, parts, data = zip(*rows, strict=True) if rows else ((), (), ())
    binary = pd.ArrowDtype(pa.large_binary())
    return pd.DataFrame(
        {"key": pd.array(keys, "int64"), "part": pd.array(parts, "int64"), "data": pd.array(data, dtype=binary)}
    )


def _split(tool: _Tool, frame: Any, part: int) -> tuple[Any, Any]:
    value, records = tool.do(frame, part)
    return value, _records_frame([(key, part, data) for key, data in records.items()])


def _work_on_records(tool: _Tool, records: Any, key: int) -> Any:
    """Do the work on the records of a partition, in the order of the partitions that they come from; None without any."""
    return tool.do(records.sort_values("part")["data"].tolist(), key) if len(records) else None


def _add_some(add: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
    return add(a, b) if a is not None and b is not None else b if a is None else a


class _Tool:
    """What is done with the parts; Dask does not look inside."""

    def __init__(self, do: Callable[..., Any]) -> None:
        self.do = do


def _call(tool: _Tool, *args: Any) -> Any:
    return tool.do(*args)


def active_client() -> Any:
    """Give the active client of a cluster, or None."""
    try:
        import distributed
    except ImportError:
        return None
    try:
        return distributed.default_client()
    except ValueError:
        return None


def workers_are_able() -> None:
    """Make sure that the workers of a cluster have this package: one without it dies of its first task, and none tells."""
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
def telling() -> Iterator[None]:
    """Tell of lost workers in our own words; what the work itself raised comes as it is."""
    try:
        yield
    except Exception as error:
        if type(error).__module__.split(".")[0] != "distributed":
            raise
        raise LostWorkerError(
            f"a Dask worker was lost: {type(error).__name__}: {_first_words(str(error))}",
            hint="did it run out of memory? Its log tells; smaller partitions take less",
        ) from error


def _first_words(text: str) -> str:
    first = text.strip().partition("\n")[0]
    return first if len(first) <= 300 else f"{first[:300]} ..."
