"""Processes that work at the same time, a part of the rows each: what their workers do, on any engine.

LightGBM aborts its process where a socket fails, and spins for ever where a peer closes one. So the work is done in a
child of the worker, which dies with its worker, and a worker outlives its child. Ports are open to the network while a
gang works, and LightGBM asks no one who they are: this is for networks one trusts.
"""

from __future__ import annotations

import os
import pickle
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from trueup.cluster.communicator import LIMITS, SILENCE, Limits
from trueup.data.spill import Room
from trueup.errors import LostWorkerError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trueup.cluster.communicator import Communicator
    from trueup.data.table import Table

T = TypeVar("T")

HINT = "fit again with resume=: finished rounds are not grown again"
LOOK = 0.25  # seconds between two looks at a child
GRACE = 5.0  # seconds in which the others may still tell the cause
SILENT, STOPPED = 1000, 1001  # beside the exit status of a process
FAILED, RAISED, LOST = 70, 71, 75  # exit status: something is wrong; an error of ours is in the room; another is gone
OUT_OF_MEMORY = ("MemoryError", "bad_alloc", "bad allocation")  # as Python, NumPy and LightGBM say it
TAKEN = ("Address already in use", "Binding port")  # as Python and LightGBM say it
JOB, SAID, SIGN, RAISED_FILE, RESULT = "job", "said", "beat", "raised", "result"


@dataclass(frozen=True)
class Seat:
    """Where a worker can be reached: an IPv4 address of its machine, two free ports (LightGBM; the circle), a secret word.

    The word of the first counts for all.
    """

    host: str
    port: int
    hub: int
    word: str


@dataclass(frozen=True)
class Job:
    """What all workers are told alike.

    Attributes
    ----------
    work : bytes
        The pickled function.
    hint : str
        What to do where a process is lost.
    threads : int
        How many threads each process may use.
    limits : Limits
    """

    work: bytes
    hint: str = HINT
    threads: int = 1
    limits: Limits = LIMITS


@dataclass(frozen=True)
class Place:
    """What a child finds in its room: the job, where everyone is, which one it is itself, and its rows."""

    job: Job
    seats: tuple[Seat, ...]
    rank: int
    room: Room


def reserve(host: str) -> Seat:
    """Find two free ports of this machine. Another process may take them before they are used: then the gang fails."""
    with socket.create_server(("", 0)) as one, socket.create_server(("", 0)) as two:
        return Seat(host, one.getsockname()[1], two.getsockname()[1], secrets.token_hex(16))


def address_of(host: str) -> str:
    """Give the IPv4 address by which this machine reaches a host: LightGBM finds itself in the list by it, as text."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as door:
        door.connect((socket.gethostbyname(host), 9))  # nothing is sent
        return str(door.getsockname()[0])


def cause_of(errors: Sequence[BaseException]) -> BaseException:
    """Choose the error to be told: of the process that failed, not of those that missed it."""
    return min(errors, key=lambda error: getattr(error, "missed", False))


def run_here(
    parts: Sequence[Sequence[Table]],
    work: Callable[[Table, Sequence[int], Communicator], T],
    *,
    hint: str = HINT,
    threads: int = 1,
    limits: Limits = LIMITS,
) -> T:
    """Let processes of this machine work at the same time; give what the first of them found.

    Parameters
    ----------
    parts : sequence of sequence of Table
        One entry a process. An entry without Tables has no rows.
    work : callable
        Told a Table, how many rows each of its parts has, and the team. It must be one that another process can import.
    hint : str
        What to do where a process is lost.
    threads : int
        How many threads each process may use.
    limits : Limits

    Raises
    ------
    LostWorkerError
        Where a process is lost.
    """
    job = Job(pickle.dumps(work), hint, threads, limits)
    seats = [reserve("127.0.0.1") for _ in parts]
    none = next(table for tables in parts for table in tables).take(np.empty(0, np.int64))
    stop = threading.Event()
    with ExitStack() as held:
        rooms = [held.enter_context(Room.make()) for _ in parts]
        for room, tables in zip(rooms, parts, strict=True):
            for table in tables or [none]:
                room.add(table)
        pool = held.enter_context(ThreadPoolExecutor(len(parts)))
        held.callback(stop.set)  # before the pool waits for its threads, also at Ctrl-C
        members = [pool.submit(sit, room, job, seats, rank, stop.is_set) for rank, room in enumerate(rooms)]
        return pickle.loads(_first(members))  # type: ignore[no-any-return]  # noqa: S301


def _first(members: Sequence[Future[bytes | None]]) -> bytes:
    """Wait for all, and give what the first found."""
    wait(members, return_when=FIRST_EXCEPTION)
    done, _ = wait(members, GRACE)
    errors = [error for one in members if one in done and (error := one.exception()) is not None]
    if errors:
        raise cause_of(errors)
    found = members[0].result()
    assert found is not None
    return found


def sit(
    room: Room, job: Job, seats: Sequence[Seat], rank: int, stopped: Callable[[], bool] = lambda: False
) -> bytes | None:
    """Do the work on the rows of a room, in a child, with those in the other seats.

    Parameters
    ----------
    room : Room
        Who made it closes it.
    job : Job
    seats : sequence of Seat
    rank : int
    stopped : callable
        Asked several times a second whether to give up.

    Returns
    -------
    bytes or None
        What the work found, pickled, where this is the first seat.
    """
    (room.folder / JOB).write_bytes(pickle.dumps(Place(job, tuple(seats), rank, room)))
    with (room.folder / SAID).open("wb") as said:
        # A session of its own: Ctrl-C in a terminal is for the parent, which tidies up.
        child = subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", "trueup.cluster.worker_process", str(room.folder)],
            stdin=subprocess.PIPE, stdout=said, stderr=said, cwd=room.folder, env=_surroundings(job.threads),
            start_new_session=True,
        )  # fmt: skip
    try:
        status = _wait(child, room.folder / SIGN, job.limits, stopped)
    finally:  # also where a task is cancelled, or the user presses Ctrl-C
        child.kill()
        child.communicate()
    if status:
        raise _error(status, room.folder, rank, len(seats), job)
    return (room.folder / RESULT).read_bytes() if rank == 0 else None


def _surroundings(threads: int) -> dict[str, str]:
    """Let the child import what this process can, and take no more cores than it may."""
    path = os.pathsep.join(str(Path(one).absolute()) for one in sys.path)
    counts = dict.fromkeys(
        ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "NUMEXPR_NUM_THREADS"),
        str(threads),
    )
    # Threads that wait for each other do not take the others' cores.
    return {"OMP_WAIT_POLICY": "passive", **os.environ, **(counts if threads else {}), "PYTHONPATH": path}


def _wait(child: subprocess.Popen[bytes], sign: Path, limits: Limits, stopped: Callable[[], bool]) -> int:
    """Wait for the child to end, or to give no sign of life for long: one that is frozen does not end."""
    seen, stamp = time.monotonic() + limits.join, 0  # it may start slowly
    while True:
        try:
            return child.wait(LOOK)
        except subprocess.TimeoutExpired:
            now = sign.stat().st_mtime_ns if sign.exists() else 0
            if now != stamp:
                seen, stamp = time.monotonic(), now
            if stopped():
                return STOPPED
            if time.monotonic() - seen > limits.silent:
                return SILENT


def _error(status: int, folder: Path, rank: int, size: int, job: Job) -> Exception:
    """Say what became of the child; LightGBM aborts, or complains of a socket, where a peer is gone."""
    if status == RAISED:
        error: Exception = pickle.loads((folder / RAISED_FILE).read_bytes())  # noqa: S301, written by our own child
        if isinstance(error, LostWorkerError):
            return LostWorkerError(error.message, error.hint or job.hint, missed=error.missed)
        return error
    said = (folder / SAID).read_text(errors="replace")
    lines = [line for line in said.splitlines() if line.strip() and "[Info]" not in line]
    who, last = f"the process of worker {rank + 1} of {size}", lines[-1] if lines else f"status {status}"
    missed = status in (LOST, STOPPED) or (size > 1 and (status == -signal.SIGABRT or "Socket" in last))
    if status == SILENT:
        words = f"{SILENCE} for {job.limits.silent:g} s"
    elif missed:
        words = "lost the connection to another" + (f": {last}" if status == LOST and lines else "")
    elif status < 0:
        words = f"was killed by {signal.Signals(-status).name}" + (": out of memory?" if status == -signal.SIGKILL else "")
    elif any(one in last for one in OUT_OF_MEMORY):
        words = "ran out of memory"
    elif any(one in last for one in TAKEN):
        words = "found a port taken that was free a moment before"
    else:
        return RuntimeError(f"{who} failed: {last}\n\n{said[-4000:]}")
    return LostWorkerError(f"{who} {words}", job.hint, missed=missed)
