"""Workers on this machine: sums over all, lost processes, and what is left behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import remote
from trueup.cluster.communicator import HEADER, HELLO, MAGIC, MAX_MESSAGE_BYTES, SUM, WELCOME, Communicator, Timeouts
from trueup.cluster.dask import _wait_for_results
from trueup.cluster.worker import OUTPUT_FILE, WorkerJob, _child_error
from trueup.data.spill import PREFIX, TableSpill
from trueup.errors import DataError, FileError, LostWorkerError

SHORT_TIMEOUTS = Timeouts(connect=30, heartbeat=0.3, silent=2)
PYTHONPATH = os.pathsep.join([str(Path(remote.__file__).parent), os.environ.get("PYTHONPATH", "")])


@pytest.fixture
def directories(tmp_path, monkeypatch):
    """Directories for spilled rows and for process numbers; after the test no process and no row may be left."""
    spilled, pids = tmp_path / "spilled", tmp_path / "pids"
    spilled.mkdir()
    pids.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(spilled))
    monkeypatch.setenv(remote.PID_DIRECTORY, str(pids))
    yield spilled, pids
    assert list(spilled.iterdir()) == []
    assert remote.running_processes(pids) == []


def test_all_workers_receive_the_same_sums_with_and_without_rows(directories):
    first, second = remote.split_table(remote.make_table(50), [20])
    partitions = [[first, second], [], [second.take(np.arange(0))]]
    result = remote.run_local_workers(partitions, remote.describe_workers, threads=2)
    region = int(first.columns["region"].sum() + second.columns["region"].sum())
    assert result["each"].tolist() == [[50, 2, region, 2], [0, 1, 0, 2], [0, 1, 0, 2]]
    assert result["max"].tolist() == [0, 50]
    assert result["scalar"] == 7.5
    values = 0.1 * np.arange(1, 6)
    expected = values / 3 + values / 4 + values / 5  # in the order of ranks
    assert result["total"].tobytes() == expected.tobytes()
    assert [received.tobytes() for received in result["received"]] == [expected.tobytes()] * 3
    assert len(list(directories[1].iterdir())) == 3


def test_a_single_worker_runs(directories):
    result = remote.run_local_workers([[remote.make_table(7)]], remote.describe_workers)
    assert result["each"][0, :2].tolist() == [7, 1]


def test_an_error_of_trueup_is_raised_unchanged(directories):
    with pytest.raises(DataError, match="column 'age' has no rows") as caught:
        remote.run_local_workers([[remote.make_table(5)]] * 2, remote.raise_data_error)
    assert caught.value.hint == "look at it"


def test_an_unexpected_error_is_not_reported_as_a_lost_worker(directories):
    with pytest.raises(RuntimeError, match=r"worker 1 of 1 failed: KeyError: 'no such key'(.|\n)*Traceback"):
        remote.run_local_workers([[remote.make_table(5)]], remote.raise_key_error)


@pytest.mark.parametrize(
    ("status", "output", "reason"),
    [
        (70, "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 9 TiB", "ran out of memory"),
        (70, "MemoryError", "ran out of memory"),
        (70, "lightgbm.basic.LightGBMError: std::bad_alloc", "ran out of memory"),
        (70, "OSError: [Errno 98] Address already in use", "needed a port that another process took"),
        (70, "lightgbm.basic.LightGBMError: Binding port 12400 failed", "needed a port that another process took"),
        (-signal.SIGKILL, "", "was killed by SIGKILL: out of memory?"),
    ],
)
def test_lack_of_memory_or_ports_is_reported_as_a_lost_worker(tmp_path, status, output, reason):
    (tmp_path / OUTPUT_FILE).write_text(f"Traceback\n{output}\n")
    error = _child_error(status, tmp_path, 1, 3, WorkerJob(b""))
    assert isinstance(error, LostWorkerError)
    assert error.message.startswith(f"the process of worker 2 of 3 {reason}")
    assert "resume=" in error.hint
    assert not error.missed


def test_a_killed_process_is_reported_within_seconds(directories):
    start = time.monotonic()
    with pytest.raises(LostWorkerError, match="worker 2 of 2 was killed by SIGKILL: out of memory") as caught:
        remote.run_local_workers([[remote.make_table(5)]] * 2, remote.kill_process)
    assert time.monotonic() - start < 60
    assert "resume=" in caught.value.hint
    assert not caught.value.missed


def test_a_frozen_process_is_reported(directories):
    timeouts = Timeouts(connect=30, heartbeat=0.2, silent=1)
    with pytest.raises(LostWorkerError, match="gave no sign of life for 1 s") as caught:
        remote.run_local_workers([[remote.make_table(5)]] * 2, remote.freeze_process, timeouts=timeouts, hint="try again")
    assert caught.value.hint == "try again"


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_if_the_parent_is_interrupted_or_killed(directories, by):
    spilled, pids = directories
    code = """
        import remote
        remote.run_local_workers([[remote.make_table(5)]] * 2, remote.run_for_long)
    """
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH, "TMPDIR": str(spilled)}
    parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], env=environment, stderr=subprocess.PIPE)
    _wait_until(lambda: len(list(pids.iterdir())) == 2)
    assert len(remote.running_processes(pids)) == 2
    parent.send_signal(by)
    parent.communicate(timeout=20)
    assert parent.returncode == -by
    _wait_until(lambda: not remote.running_processes(pids) and not list(spilled.iterdir()))


def _wait_until(condition, seconds=30):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


class Run:
    """Communicators in threads of this process."""

    def __init__(self, size, timeouts=SHORT_TIMEOUTS):
        with socket.create_server(("127.0.0.1", 0)) as server:
            self.hub = "127.0.0.1", server.getsockname()[1]
        self.size, self.timeouts, self.token, self.losses = size, timeouts, "a" * 32, []

    def join(self, rank):
        return Communicator(rank, self.size, self.hub, self.token, self.losses.append, timeouts=self.timeouts)

    def join_both(self):
        return _run_both(lambda: self.join(0), lambda: self.join(1))

    def connect(self):
        """Connect without a handshake."""
        deadline = time.monotonic() + 10
        while True:
            try:
                return socket.create_connection(self.hub, timeout=5)
            except ConnectionRefusedError:
                assert time.monotonic() < deadline
                time.sleep(0.02)


def _run_both(first, second):
    """Return the results, or errors, of two functions that run in threads."""
    results = [None, None]

    def run(index, function):
        try:
            results[index] = function()
        except Exception as error:  # noqa: BLE001
            results[index] = error

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate([first, second])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return results


def test_unknown_peers_are_rejected_and_delay_no_worker(monkeypatch):
    monkeypatch.setattr("trueup.cluster.communicator.HANDSHAKE_SECONDS", 60.0)
    run = Run(2)

    def connect_all():
        silent, other_protocol, wrong_token = run.connect(), run.connect(), run.connect()
        other_protocol.sendall(b"GET / HTTP/1.1\r\n" + b"x" * 100)
        wrong_token.sendall(HELLO.pack(MAGIC, b"b" * 32, 1, 2))
        assert wrong_token.recv(1) == b""
        communicator = run.join(1)
        for connection in (silent, other_protocol, wrong_token):
            connection.close()
        return communicator

    start = time.monotonic()
    first, second = _run_both(lambda: run.join(0), connect_all)
    assert time.monotonic() - start < 30  # the silent peer was not waited for
    sums = _run_both(lambda: first.all_reduce_sum([1.0, 2.0]).tolist(), lambda: second.all_reduce_sum([1.0, 2.0]).tolist())
    assert sums == [[2, 4], [2, 4]]
    _run_both(first.close, second.close)
    assert run.losses == []


def test_the_end_of_a_run_is_not_a_loss():
    for _ in range(10):
        run = Run(2)
        first, second = run.join_both()
        _run_both(
            lambda first=first: (first.all_reduce_sum(1.0), first.close()),
            lambda second=second: (second.all_reduce_sum(1.0), second.close()),
        )
        assert run.losses == []


@pytest.mark.parametrize(("kind", "size"), [(SUM, MAX_MESSAGE_BYTES + 1), (SUM, -1), (200, 8)])
def test_unknown_messages_are_a_loss(kind, size):
    run = Run(2)

    def send():
        connection = run.connect()
        token = run.token.encode()
        connection.sendall(HELLO.pack(MAGIC, token, 1, 2) + WELCOME.pack(MAGIC, token) + HEADER.pack(kind, 1, size))
        return connection

    first, connection = _run_both(lambda: run.join(0), send)
    with pytest.raises(LostWorkerError, match="worker 2 of 2 is gone"):
        first.all_reduce_sum(1.0)
    assert len(run.losses) == 1
    first.abort()
    connection.close()


def test_a_worker_that_missed_the_welcome_connects_again():
    run = Run(2)

    def connect_twice():
        with run.connect() as connection:
            connection.sendall(HELLO.pack(MAGIC, run.token.encode(), 1, 2))
        return run.join(1)

    first, second = _run_both(lambda: run.join(0), connect_twice)
    sums = _run_both(lambda: float(first.all_reduce_sum(1.0)), lambda: float(second.all_reduce_sum(2.0)))
    assert sums == [3.0, 3.0]
    _run_both(first.close, second.close)
    assert run.losses == []


def test_many_workers_can_connect_at_once(monkeypatch):
    monkeypatch.setattr("trueup.cluster.communicator.HANDSHAKE_SECONDS", 1.0)
    run = Run(60)
    with ThreadPoolExecutor(60) as pool:
        communicators = list(pool.map(run.join, range(60)))
        sums = list(pool.map(lambda communicator: float(communicator.all_reduce_sum(communicator.rank)), communicators))
        assert sums == [60 * 59 / 2] * 60
        list(pool.map(lambda communicator: communicator.close(), communicators))
    assert run.losses == []


def test_workers_that_are_out_of_step_do_not_wait():
    first, second = Run(2).join_both()

    def add_two():
        try:
            first.all_reduce_sum([1.0, 2.0])
        finally:
            first.abort()

    errors = _run_both(add_two, lambda: second.all_reduce_sum(1.0))
    assert "out of step" in str(errors[0])
    assert isinstance(errors[1], LostWorkerError)
    second.abort()


def test_a_worker_that_does_not_connect_is_named():
    run = Run(3, Timeouts(connect=0.5, heartbeat=0.3, silent=2.5))
    error, third = _run_both(lambda: run.join(0), lambda: run.join(2))
    assert str(error) == "worker 2 of 3 did not connect within 0.5 s"
    with pytest.raises(LostWorkerError, match=r"could not be reached within 0.5 s"):
        run.join(1)
    third.abort()


class Task:
    """A task of Dask as its client sees it."""

    def __init__(self, status, error=None):
        self.status, self.error = status, error

    def exception(self, timeout):
        assert self.status == "error", "Dask waits for the error of a task that has not failed"
        if self.error is None:  # lost since: Dask has started it again
            raise TimeoutError(f"{timeout} s")
        return self.error


class Client:
    def __init__(self, *workers):
        self.workers = workers

    def nthreads(self):
        return dict.fromkeys(self.workers, 1)


@pytest.mark.parametrize("status", ["lost", "error"])
def test_a_dask_task_that_is_lost_with_its_worker_is_not_waited_for(status):
    with pytest.raises(LostWorkerError, match="Dask worker a was lost"):
        _wait_for_results(Client("b"), [Task(status), Task("pending")], ["a", "b"], WorkerJob(b""))


def test_cancelled_and_failed_dask_tasks_are_reported():
    with pytest.raises(LostWorkerError, match="the work was cancelled by the Dask cluster"):
        _wait_for_results(Client("a", "b"), [Task("cancelled"), Task("pending")], ["a", "b"], WorkerJob(b""))
    with pytest.raises(DataError, match="invalid"):
        _wait_for_results(Client("b"), [Task("error", DataError("invalid")), Task("lost")], ["a", "b"], WorkerJob(b""))


def test_a_spill_holds_the_rows_of_several_tables_and_of_other_spills(tmp_path):
    tables, expected = remote.split_table(remote.make_table(30), [10, 10]), remote.make_table(30)
    with TableSpill.create(tmp_path) as first, TableSpill.create(tmp_path) as second:
        assert first.directory.stat().st_mode & 0o777 == 0o700
        for table in tables[:2]:
            first.add(table)
        second.add(tables[2])
        first.take_over(second)
        assert not second.directory.exists()
        table = first.table()
        assert first.sizes == [10, 0, 20]
        for name, column in expected.columns.items():
            np.testing.assert_array_equal(table.columns[name], column)
            assert table.columns[name].dtype == column.dtype
        for name in ("prediction", "outcome", "weight"):
            np.testing.assert_array_equal(getattr(table, name), getattr(expected, name))
        table.weight[:] = 0  # writable, but the file does not change
        np.testing.assert_array_equal(first.table().weight, expected.weight)
    assert list(tmp_path.glob(PREFIX + "*")) == []


def test_a_full_disk_is_reported(tmp_path):
    code = """
        import resource, signal, sys
        import remote
        from trueup.data.spill import TableSpill
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
        with TableSpill.create(sys.argv[1]) as spill:
            spill.add(remote.make_table(10_000))
    """
    process = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(tmp_path)], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": PYTHONPATH},
    )  # fmt: skip
    assert f"{FileError.__name__}: cannot spill rows to {tmp_path} (36 bytes per row)" in process.stderr
    assert "TMPDIR" in process.stderr
    assert list(tmp_path.iterdir()) == []
