"""Dask: a task for every partition, and a tree of tasks that adds up what they found."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, TypeVar

from trueup._optional import require
from trueup.engines.base import Frames
from trueup.errors import ArgumentError, ColumnError, LostWorkerError, MissingPackageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trueup.data.table import Table
    from trueup.engines.base import Team

T = TypeVar("T")


class DaskFrames(Frames):
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
        workers_are_able()

    def fold(self, work: Callable[[Any, int], T], add: Callable[[T, T], T], columns: Sequence[str]) -> T:
        """Do the work on every partition; add up in pairs of neighbours."""
        import dask

        # What travels is one node of the graph, however many tasks read it.
        tool, plus = (dask.delayed(_Tool(one), pure=False) for one in (work, add))
        found = [dask.delayed(_call)(tool, part, at) for at, part in enumerate(self._parts(columns))]
        while len(found) > 1:
            pairs = [found[at : at + 2] for at in range(0, len(found), 2)]
            found = [dask.delayed(_call)(plus, *pair) if len(pair) == 2 else pair[0] for pair in pairs]
        with telling():
            (total,) = dask.compute(found[0])
        return total  # type: ignore[no-any-return]

    def stream(self, columns: Sequence[str]) -> Iterator[Any]:
        """Fetch one partition after the other."""
        for part in self._parts(columns):
            with telling():
                frame = part.compute()
            yield frame

    def gang(
        self,
        prepare: Callable[[Any, int], Table],
        work: Callable[[Table, Sequence[int], Team], T],
        columns: Sequence[str],
    ) -> T:
        """Let the workers that hold the partitions work at the same time."""
        from trueup.engines.dask.launch import gang

        if active_client() is None:
            raise ArgumentError(
                "trees are grown by the workers of a Dask cluster, and there is no client of one",
                hint="make one first: distributed.Client() for this machine, or Client(address)",
            )
        return gang(self.frame, prepare, work, columns)

    def _parts(self, columns: Sequence[str]) -> list[Any]:
        return list(self.frame[list(columns)].to_delayed())


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
