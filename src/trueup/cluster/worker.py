"""Workers that run at the same time, each with some of the rows: the same on every engine.

LightGBM aborts its process if a socket fails, and spins for ever if a peer closes one. So the work is done in a child
process of the worker: the child ends with its worker, and the worker outlives its child. Ports are open to the network
while workers run, and LightGBM does not authenticate its peers: use this on trusted networks.
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
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trueup.cluster.communicator import DEFAULT_TIMEOUTS, SILENT, Communicator, Timeouts
from trueup.errors import LostWorkerError, TrueupError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trueup.data.spill import TableSpill


RESUME_HINT = "fit again with resume=: completed rounds are not fitted again"
POLL_SECONDS = 0.25  # between two looks at a child process
GRACE_SECONDS = 5.0  # for the other workers to report the cause of a failure
EXIT_DELAY_SECONDS = 1.0  # between the loss of another worker and the end of a child process
SILENT_STATUS, STOPPED_STATUS = 1000, 1001  # in addition to the exit statuses of processes
FAILED, RAISED, LOST = 70, 71, 75  # exit statuses: unexpected error; TrueupError, in the file; another worker is lost
OUT_OF_MEMORY = ("MemoryError", "bad_alloc", "bad allocation")  # messages of Python, NumPy and LightGBM
PORT_TAKEN = ("Address already in use", "Binding port")  # messages of Python and LightGBM
# Files in the directory of the rows.
ASSIGNMENT_FILE, OUTPUT_FILE, HEARTBEAT_FILE = "assignment", "output", "heartbeat"
ERROR_FILE, RESULT_FILE = "error", "result"
CHILD_CODE = "import sys; from trueup.cluster.worker import run_child; run_child(sys.argv[1])"


@dataclass(frozen=True)
class WorkerAddress:
    """The IPv4 address of a worker, free ports for LightGBM and the communicator, and a token; rank 0's token is used."""

    host: str
    learner_port: int
    communicator_port: int
    token: str


@dataclass(frozen=True)
class WorkerJob:
    """What all workers run: a pickled function. ``hint`` is the advice in the error if a worker is lost."""

    work: bytes
    hint: str = RESUME_HINT
    threads: int = 1  # of each worker
    timeouts: Timeouts = DEFAULT_TIMEOUTS


@dataclass(frozen=True)
class WorkerAssignment:
    """What a child process reads from its directory: the job, the addresses of all workers, its rank and its rows."""

    job: WorkerJob
    addresses: tuple[WorkerAddress, ...]
    rank: int
    spill: TableSpill


def reserve_address(host: str) -> WorkerAddress:
    """Return an address with two free ports of this machine; if another process takes one before its use, the run fails."""
    with socket.create_server(("", 0)) as first, socket.create_server(("", 0)) as second:
        return WorkerAddress(host, first.getsockname()[1], second.getsockname()[1], secrets.token_hex(16))


def local_address(host: str) -> str:
    """Return the IPv4 address by which this machine reaches a host; LightGBM finds its own rank by this address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((socket.gethostbyname(host), 9))  # sends nothing
        return str(probe.getsockname()[0])


def root_cause(errors: Sequence[BaseException]) -> BaseException:
    """Return the error of the worker that failed, rather than of one that lost contact with it."""
    return min(errors, key=lambda error: getattr(error, "missed", False))


def run_worker(
    spill: TableSpill,
    job: WorkerJob,
    addresses: Sequence[WorkerAddress],
    rank: int,
    is_stopped: Callable[[], bool] = lambda: False,
) -> bytes | None:
    """Run the work on the rows of a spill in a child process, connected to the workers at the other addresses.

    The caller closes the spill. ``is_stopped`` is polled; if it returns true, the child is killed, and an error is raised.
    Returns the pickled result if the rank is 0.
    """
    directory = spill.directory
    (directory / ASSIGNMENT_FILE).write_bytes(pickle.dumps(WorkerAssignment(job, tuple(addresses), rank, spill)))
    with (directory / OUTPUT_FILE).open("wb") as output:
        # A session of its own: Ctrl-C in a terminal is for the parent, which cleans up.
        child = subprocess.Popen(  # noqa: S603
            [sys.executable, "-c", CHILD_CODE, str(directory)],
            stdin=subprocess.PIPE, stdout=output, stderr=output, cwd=directory, env=_child_environment(job.threads),
            start_new_session=True,
        )  # fmt: skip
    try:
        status = _wait_for_child(child, directory / HEARTBEAT_FILE, job.timeouts, is_stopped)
    finally:  # also if a task is cancelled, or after Ctrl-C
        child.kill()
        child.communicate()
    if status:
        raise _child_error(status, directory, rank, len(addresses), job)
    return (directory / RESULT_FILE).read_bytes() if rank == 0 else None


def _child_environment(threads: int) -> dict[str, str]:
    """Return the environment of a child: the import path of this process, and ``threads`` threads unless that is 0."""
    path = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path)
    variables = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "NUMEXPR_NUM_THREADS")
    counts = dict.fromkeys(variables, str(threads)) if threads else {}
    # Passive: threads that wait for each other leave the cores to other processes.
    return {"OMP_WAIT_POLICY": "passive", **os.environ, **counts, "PYTHONPATH": path}


def _wait_for_child(
    child: subprocess.Popen[bytes], heartbeat: Path, timeouts: Timeouts, is_stopped: Callable[[], bool]
) -> int:
    """Return the exit status of the child, STOPPED_STATUS if ``is_stopped()``, or SILENT_STATUS if heartbeats stop."""
    last_seen, last_stamp = time.monotonic() + timeouts.connect, 0  # it may start slowly
    while True:
        try:
            return child.wait(POLL_SECONDS)
        except subprocess.TimeoutExpired:
            stamp = heartbeat.stat().st_mtime_ns if heartbeat.exists() else 0
            if stamp != last_stamp:
                last_seen, last_stamp = time.monotonic(), stamp
            if is_stopped():
                return STOPPED_STATUS
            if time.monotonic() - last_seen > timeouts.silent:
                return SILENT_STATUS


def _child_error(status: int, directory: Path, rank: int, size: int, job: WorkerJob) -> Exception:
    """Return the error of a child that failed; LightGBM aborts, or reports a socket error, if a peer is gone."""
    if status == RAISED:
        error: Exception = pickle.loads((directory / ERROR_FILE).read_bytes())  # noqa: S301, written by our own child
        if isinstance(error, LostWorkerError):
            return LostWorkerError(error.message, error.hint or job.hint, missed=error.missed)
        return error
    output = (directory / OUTPUT_FILE).read_text(errors="replace")
    lines = [line for line in output.splitlines() if line.strip() and "[Info]" not in line]
    last = lines[-1] if lines else f"status {status}"
    missed = status in (LOST, STOPPED_STATUS) or (size > 1 and (status == -signal.SIGABRT or "Socket" in last))
    if status == SILENT_STATUS:
        reason = f"{SILENT} for {job.timeouts.silent:g} s"
    elif missed:
        reason = "lost the connection to another" + (f": {last}" if status == LOST and lines else "")
    elif status < 0:
        reason = f"was killed by {signal.Signals(-status).name}" + (": out of memory?" if status == -signal.SIGKILL else "")
    elif any(text in last for text in OUT_OF_MEMORY):
        reason = "ran out of memory"
    elif any(text in last for text in PORT_TAKEN):
        reason = "needed a port that another process took"
    else:
        return RuntimeError(f"the process of worker {rank + 1} of {size} failed: {last}\n\n{output[-4000:]}")
    return LostWorkerError(f"the process of worker {rank + 1} of {size} {reason}", job.hint, missed=missed)


_exiting = threading.Lock()  # held while the directory is deleted, so that no other thread writes or ends the process


def run_child(directory: str) -> None:
    """Run the assignment in a directory, then end this process; it also ends if its worker ends, or if another is lost."""
    # The directory was created for this user alone, by the worker that started this process: it may be unpickled.
    assignment: WorkerAssignment = pickle.loads(Path(directory, ASSIGNMENT_FILE).read_bytes())  # noqa: S301
    threading.Thread(target=_exit_with_worker, args=(assignment,), daemon=True).start()
    threading.Thread(target=_touch_heartbeat, args=(assignment,), daemon=True).start()
    status = 0
    try:
        _run_assignment(assignment)
    except TrueupError as error:
        Path(directory, ERROR_FILE).write_bytes(pickle.dumps(error))
        status = RAISED
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
        status = FAILED
    # The system closes LightGBM's connections: its own shutdown can wait for another worker.
    with _exiting:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _run_assignment(assignment: WorkerAssignment) -> None:
    addresses, job, spill = assignment.addresses, assignment.job, assignment.spill
    first = addresses[0]
    communicator = Communicator(
        assignment.rank, len(addresses), (first.host, first.communicator_port), first.token, _exit_lost,
        addresses=[(address.host, address.learner_port) for address in addresses], threads=job.threads,
        timeouts=job.timeouts,
    )  # fmt: skip
    work = pickle.loads(job.work)  # noqa: S301
    result = work(spill.table(), tuple(spill.sizes), communicator)
    if assignment.rank == 0:
        (spill.directory / RESULT_FILE).write_bytes(pickle.dumps(result))
    communicator.close()


def _touch_heartbeat(assignment: WorkerAssignment) -> None:
    while True:
        with _exiting:
            (assignment.spill.directory / HEARTBEAT_FILE).touch()
        time.sleep(assignment.job.timeouts.heartbeat)


def _exit_with_worker(assignment: WorkerAssignment) -> None:
    """End this process when its parent, the worker, ends, which closes the pipe to the standard input of this process."""
    sys.stdin.buffer.read()
    with _exiting:
        assignment.spill.close()  # no other process deletes it
        _exit("the worker is gone")


def _exit_lost(message: str) -> None:
    """End this process because another worker is lost, after a delay in which its own worker may end as well."""
    time.sleep(EXIT_DELAY_SECONDS)
    with _exiting:
        _exit(message)


def _exit(message: str) -> None:
    """End this process at once, whatever its other threads do."""
    sys.stderr.write(message + "\n")
    sys.stderr.flush()
    os._exit(LOST)
