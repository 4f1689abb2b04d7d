"""Dask: the processes of a gang, one for each worker that holds partitions."""

from __future__ import annotations

import pickle
import secrets
import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlparse

from trueup.cluster.dask import active_client, telling
from trueup.cluster.worker import GRACE, Job, Seat, address_of, cause_of, reserve, sit
from trueup.data.spill import PREFIX, Room
from trueup.errors import LostWorkerError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trueup.cluster.communicator import Communicator
    from trueup.data.table import Table

T = TypeVar("T")

LOOK = 0.2  # seconds between two looks at the tasks


def gang(
    frame: Any,
    prepare: Callable[[Any, int], Table],
    work: Callable[[Table, Sequence[int], Communicator], T],
    columns: Sequence[str],
) -> T:
    """Let the workers that hold partitions work at the same time; see `Frames.gang`.

    All partitions of a worker make one member. A frame that is persisted is worked on where it lies; otherwise the first
    partitions go to the first worker, and so on, the same way each time. Rows are laid down in the workers' own folders
    for temporary files (``local_directory``), which Dask takes away where a worker is killed.
    """
    job, client, mark = Job(pickle.dumps(work)), active_client(), secrets.token_hex(8)
    homes = _homes(client, frame)
    tasks: list[Any] = []
    try:
        with telling():
            tasks += _lay(client, frame, _Lay(prepare, mark), columns, homes)
            laid = _results(client, tasks, homes, job)
            members: dict[str, list[Room]] = {}
            for one in laid:
                members.setdefault(one.home, []).append(one.room)
            seats = [client.submit(_reserve, workers=[home], pure=False) for home in members]
            tasks += seats
            places = _results(client, seats, list(members), job)
            working = [
                client.submit(_work, rooms, job, places, rank, workers=[home], pure=False)
                for rank, (home, rooms) in enumerate(members.items())
            ]
            tasks += working
            found = _results(client, working, list(members), job)
            return pickle.loads(found[0])  # type: ignore[no-any-return]  # noqa: S301
    finally:
        _tidy(client, tasks, mark)


@dataclass(frozen=True)
class _Laid:
    """A partition that lies in a room of a worker."""

    home: str
    room: Room


@dataclass(frozen=True)
class _Lay:
    """Lays a partition down in a room of the worker that this is."""

    prepare: Callable[[Any, int], Table]
    mark: str

    def __call__(self, part: Any, number: int) -> _Laid:
        from distributed import get_worker

        worker, stopped = get_worker(), _stopped()
        room = Room.make(worker.local_directory, self.mark)
        try:
            room.add(self.prepare(part, number))
            if stopped():
                room.close()
        except BaseException:
            room.close()
            raise
        return _Laid(worker.address, room)


def _homes(client: Any, frame: Any) -> list[str]:
    """Choose a worker for every partition: one that holds it, or blocks of neighbours."""
    from distributed import futures_of

    workers, count = sorted(client.nthreads()), frame.npartitions
    if not workers:
        raise LostWorkerError("the Dask cluster has no workers", hint="wait for them: client.wait_for_workers(1)")
    held = {
        key[1]: sorted(where)[0]
        for key, where in client.who_has(futures_of(frame)).items()
        if isinstance(key, tuple) and len(key) == 2 and where
    }
    if sorted(held) != list(range(count)):
        held = {at: workers[at * len(workers) // count] for at in range(count)}
    return [held[at] for at in range(count)]


def _lay(client: Any, frame: Any, lay: _Lay, columns: Sequence[str], homes: Sequence[str]) -> list[Any]:
    """Lay every partition down in a room of its worker; no more of them are in memory than tasks run at a time."""
    import dask

    tool = dask.delayed([lay], pure=False)  # what travels is one node of the graph, however many tasks read it
    found = []
    for at, part in enumerate(frame[list(columns)].to_delayed()):
        with dask.annotate(workers=[homes[at]], allow_other_workers=False):
            found.append(dask.delayed(_call, pure=False)(tool, part, at))
    return list(client.compute(found))


def _call(tool: list[_Lay], part: Any, number: int) -> _Laid:
    return tool[0](part, number)


def _reserve() -> Seat:
    """Reserve a seat at the address by which the other workers reach this one."""
    from distributed import get_worker

    return reserve(address_of(urlparse(get_worker().address).hostname or "127.0.0.1"))


def _work(rooms: list[Room], job: Job, seats: Sequence[Seat], rank: int) -> bytes | None:
    from distributed import get_worker

    worker, whole = get_worker(), rooms[0]
    try:
        if not whole.folder.exists():  # Dask does a task again where a worker comes back
            raise LostWorkerError(f"Dask worker {worker.address} was lost and has come back without its rows", job.hint)
        for room in rooms[1:]:
            whole.move(room)
        return sit(whole, replace(job, threads=worker.state.nthreads), seats, rank, _stopped())
    finally:
        for room in rooms:
            room.close()


def _stopped() -> Callable[[], bool]:
    """Give what tells, in a task, whether no one wants it any more: Dask itself does not stop what runs."""
    from distributed import get_worker

    worker = get_worker()
    key = worker.get_current_task()

    def stopped() -> bool:
        task = worker.state.tasks.get(key)
        return task is None or task.state == "cancelled"

    return stopped


def _results(client: Any, tasks: Sequence[Any], homes: Sequence[str], job: Job) -> list[Any]:
    """Wait until all are done, and give what they found."""
    _watch(client, tasks, homes, job)
    try:
        return [task.result(timeout=GRACE) for task in tasks]
    except TimeoutError:
        raise LostWorkerError("a Dask worker was lost with what it had found", job.hint) from None


def _watch(client: Any, tasks: Sequence[Any], homes: Sequence[str], job: Job) -> None:
    """Wait until all are done; raise where one failed, or where its worker is gone: a task would wait for it for ever."""
    told: float | None = None
    while not all(task.status == "finished" for task in tasks):
        # Of one that was lost with its worker Dask knows no error, and would be asked for ever: `gone` tells.
        errors = [error for task in tasks if task.status == "error" and (error := _error_of(task)) is not None]
        if any(task.status == "cancelled" for task in tasks):
            errors.append(LostWorkerError("the work was cancelled by the Dask cluster", job.hint))
        if errors and not all(getattr(error, "missed", False) for error in errors):
            raise cause_of(errors)
        there = client.nthreads()
        gone = sorted(set(homes) - set(there))
        if gone:
            raise LostWorkerError(f"Dask worker {', '.join(gone)} was lost", job.hint)
        told = time.monotonic() if errors and told is None else told
        if told is not None and time.monotonic() - told > GRACE:
            raise cause_of(errors)
        time.sleep(LOOK)


def _error_of(task: Any) -> BaseException | None:
    """Give the error of a task that failed; none where its worker was lost since, and Dask has begun to do it again."""
    try:
        found: BaseException | None = task.exception(timeout=GRACE)
    except TimeoutError:
        return None
    return found


def _tidy(client: Any, tasks: Sequence[Any], mark: str) -> None:
    """Leave nothing behind: neither tasks that wait, nor children that work, nor rooms."""
    if client.status == "running":
        client.cancel(tasks, force=True)
        client.run(_sweep, mark, on_error="ignore")


def _sweep(mark: str, dask_worker: Any = None) -> None:
    for folder in Path(dask_worker.local_directory).glob(f"{PREFIX}{mark}*"):
        shutil.rmtree(folder, ignore_errors=True)
