"""Processes that work together: sums, the end of one of them, and what is left behind."""

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

import gangs
from trueup.cluster.communicator import HEAD, HELLO, MARK, MOST, SUM, Limits, SocketCommunicator
from trueup.cluster.dask_workers import _watch
from trueup.cluster.worker import SAID, Job, _error, run_here
from trueup.data.spill import PREFIX, Room
from trueup.errors import DataError, FileError, LostWorkerError

QUICK = Limits(join=30, beat=0.3, silent=2)


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Give where processes leave their numbers; when the test is over neither they nor their rooms may be there."""
    rooms, numbers = tmp_path / "rooms", tmp_path / "numbers"
    rooms.mkdir()
    numbers.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(rooms))
    monkeypatch.setenv(gangs.SHOWN, str(numbers))
    yield rooms, numbers
    assert list(rooms.iterdir()) == []
    assert gangs.alive(numbers) == []


def test_all_hear_the_same_sums_whether_they_have_rows_or_not(folders):
    one, two = gangs.halves(gangs.rows(50), [20])
    found = run_here([[one, two], [], [two.take(np.arange(0))]], gangs.facts, threads=2)
    region = int(one.columns["region"].sum() + two.columns["region"].sum())
    assert found["each"].tolist() == [[50, 2, region, 2], [0, 1, 0, 2], [0, 1, 0, 2]]
    assert found["most"].tolist() == [0, 50]
    assert found["one"] == 7.5
    values = 0.1 * np.arange(1, 6)
    wanted = values / 3 + values / 4 + values / 5  # in the order of ranks
    assert found["total"].tobytes() == wanted.tobytes()
    assert [heard.tobytes() for heard in found["heard"]] == [wanted.tobytes()] * 3
    assert len(list(folders[1].iterdir())) == 3


def test_one_alone_works_too(folders):
    found = run_here([[gangs.rows(7)]], gangs.facts)
    assert found["each"][0, :2].tolist() == [7, 1]


def test_an_error_of_ours_arrives_as_it_was(folders):
    with pytest.raises(DataError, match="column 'age' has no rows") as caught:
        run_here([[gangs.rows(5)]] * 2, gangs.refuse)
    assert caught.value.hint == "look at it"


def test_a_mistake_is_not_called_a_lost_worker(folders):
    with pytest.raises(RuntimeError, match=r"worker 1 of 1 failed: KeyError: 'no such key'(.|\n)*Traceback"):
        run_here([[gangs.rows(5)]], gangs.fail)


@pytest.mark.parametrize(
    ("status", "said", "words"),
    [
        (70, "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 9 TiB", "ran out of memory"),
        (70, "MemoryError", "ran out of memory"),
        (70, "lightgbm.basic.LightGBMError: std::bad_alloc", "ran out of memory"),
        (70, "OSError: [Errno 98] Address already in use", "found a port taken"),
        (70, "lightgbm.basic.LightGBMError: Binding port 12400 failed", "found a port taken"),
        (-signal.SIGKILL, "", "was killed by SIGKILL: out of memory?"),
    ],
)
def test_what_is_nobodys_mistake_is_told_as_a_lost_worker(tmp_path, status, said, words):
    (tmp_path / SAID).write_text(f"Traceback\n{said}\n")
    error = _error(status, tmp_path, 1, 3, Job(b""))
    assert isinstance(error, LostWorkerError)
    assert error.message.startswith(f"the process of worker 2 of 3 {words}")
    assert "resume=" in error.hint
    assert not error.missed


def test_a_process_that_is_killed_is_told_within_seconds(folders):
    began = time.monotonic()
    with pytest.raises(LostWorkerError, match="worker 2 of 2 was killed by SIGKILL: out of memory") as caught:
        run_here([[gangs.rows(5)]] * 2, gangs.killed)
    assert time.monotonic() - began < 60
    assert "resume=" in caught.value.hint
    assert not caught.value.missed


def test_a_process_that_is_frozen_is_told(folders):
    limits = Limits(join=30, beat=0.2, silent=1)
    with pytest.raises(LostWorkerError, match="gave no sign of life for 1 s") as caught:
        run_here([[gangs.rows(5)]] * 2, gangs.frozen, limits=limits, hint="try again")
    assert caught.value.hint == "try again"


def test_ctrl_c_leaves_nothing_behind(folders):
    _ends(folders, signal.SIGINT, -signal.SIGINT)


def test_processes_end_with_a_parent_that_is_killed(folders):
    _ends(folders, signal.SIGKILL, -signal.SIGKILL)


def _ends(folders, by, status):
    rooms, numbers = folders
    code = "import gangs; from trueup.cluster.worker import run_here; run_here([[gangs.rows(5)]] * 2, gangs.linger)"
    path = os.pathsep.join([str(Path(gangs.__file__).parent), os.environ.get("PYTHONPATH", "")])
    parent = subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path, "TMPDIR": str(rooms)}, stderr=subprocess.PIPE
    )
    _until(lambda: len(list(numbers.iterdir())) == 2)
    assert len(gangs.alive(numbers)) == 2
    parent.send_signal(by)
    parent.communicate(timeout=20)
    assert parent.returncode == status
    _until(lambda: not gangs.alive(numbers) and not list(rooms.iterdir()))


def _until(true, seconds=30):
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until
        time.sleep(0.05)


class Ring:
    """Circles in threads of this process."""

    def __init__(self, size, limits=QUICK):
        self.hub, self.size, self.limits = ("127.0.0.1", _free()), size, limits
        self.word, self.told = "a" * 32, []

    def join(self, rank, **own):
        return SocketCommunicator(rank, self.size, self.hub, self.word, self.told.append, limits=self.limits, **own)


def _free():
    with socket.create_server(("127.0.0.1", 0)) as door:
        return door.getsockname()[1]


def _both(one, two):
    found = [None, None]

    def run(at, what):
        try:
            found[at] = what()
        except Exception as error:  # noqa: BLE001
            found[at] = error

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate([one, two])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return found


def _knock(ring):
    until = time.monotonic() + 10
    while True:
        try:
            return socket.create_connection(ring.hub, timeout=5)
        except ConnectionRefusedError:
            assert time.monotonic() < until
            time.sleep(0.02)


def test_strangers_are_turned_away_and_keep_no_one_waiting(monkeypatch):
    monkeypatch.setattr("trueup.cluster.communicator.GREETING", 60.0)
    ring = Ring(2)

    def come():
        silent, loud, liar = _knock(ring), _knock(ring), _knock(ring)
        loud.sendall(b"GET / HTTP/1.1\r\n" + b"x" * 100)
        liar.sendall(HELLO.pack(MARK, b"b" * 32, 1, 2))
        assert liar.recv(1) == b""
        found = ring.join(1)
        silent.close()
        loud.close()
        liar.close()
        return found

    began = time.monotonic()
    circles = _both(lambda: ring.join(0), come)
    assert time.monotonic() - began < 30  # the silent one was not waited for
    sums = _both(*(lambda circle=circle: circle.all_reduce_sum([1.0, 2.0]).tolist() for circle in circles))
    assert sums == [[2, 4], [2, 4]]
    _both(*(circle.part for circle in circles))
    assert ring.told == []


def test_the_end_is_no_loss():
    for _ in range(10):
        ring = Ring(2)
        circles = _both(lambda ring=ring: ring.join(0), lambda ring=ring: ring.join(1))
        _both(*(lambda circle=circle: (circle.all_reduce_sum(1.0), circle.part()) for circle in circles))
        assert ring.told == []


def test_words_that_no_process_of_ours_says_are_a_loss():
    for head in (HEAD.pack(SUM, 1, MOST + 1), HEAD.pack(SUM, 1, -1), HEAD.pack(200, 1, 8)):
        ring = Ring(2)

        def talk(ring=ring, head=head):
            line = _knock(ring)
            line.sendall(HELLO.pack(MARK, ring.word.encode(), 1, 2) + head)
            return line

        first, line = _both(lambda ring=ring: ring.join(0), talk)
        with pytest.raises(LostWorkerError, match="process 2 of 2 is gone"):
            first.all_reduce_sum(1.0)
        assert len(ring.told) == 1
        first.leave()
        line.close()


def test_many_who_come_at_once_are_let_in_before_they_lose_patience(monkeypatch):
    monkeypatch.setattr("trueup.cluster.communicator.GREETING", 1.0)
    ring = Ring(60)
    with ThreadPoolExecutor(60) as pool:
        circles = list(pool.map(ring.join, range(60)))
        sums = list(pool.map(lambda circle: float(circle.all_reduce_sum(circle.rank)), circles))
        assert sums == [60 * 59 / 2] * 60
        list(pool.map(lambda circle: circle.part(), circles))
    assert ring.told == []


def test_processes_that_are_out_of_step_do_not_wait():
    ring = Ring(2)
    one, two = _both(lambda: ring.join(0), lambda: ring.join(1))
    found = _both(lambda: one.all_reduce_sum([1.0, 2.0]), lambda: (two._send(two._peers[0], SUM, b"12345678"), one))
    assert "out of step" in str(found[0])
    one.leave()
    two.leave()


def test_one_that_does_not_come_is_named():
    ring = Ring(3, Limits(join=0.5, beat=0.3, silent=2.5))
    found = _both(lambda: ring.join(0), lambda: ring.join(2))
    assert str(found[0]) == "process 2 of 3 did not come within 0.5 s"
    with pytest.raises(LostWorkerError, match=r"could not be reached within 0.5 s"):
        ring.join(1)
    found[1].leave()


class Task:
    """A task of Dask as its client sees it."""

    def __init__(self, status, error=None):
        self.status, self.error = status, error

    def exception(self, timeout):
        assert self.status == "error", "of no other does Dask know an error: it would be waited for"
        if self.error is None:  # lost since: Dask has begun it again
            raise TimeoutError(f"{timeout} s")
        return self.error


class Client:
    def __init__(self, *workers):
        self.workers = workers

    def nthreads(self):
        return dict.fromkeys(self.workers, 1)


@pytest.mark.parametrize("status", ["lost", "error"])
def test_a_dask_task_that_is_lost_with_its_worker_is_not_waited_for(status):
    tasks = [Task(status), Task("pending")]
    with pytest.raises(LostWorkerError, match="Dask worker a was lost"):
        _watch(Client("b"), tasks, ["a", "b"], Job(b""))
    with pytest.raises(LostWorkerError, match="the work was cancelled by the Dask cluster"):
        _watch(Client("a", "b"), [Task("cancelled"), Task("pending")], ["a", "b"], Job(b""))
    with pytest.raises(DataError, match="no good"):
        _watch(Client("b"), [Task("error", DataError("no good")), Task("lost")], ["a", "b"], Job(b""))


def test_rooms_hold_the_rows_of_several_tables_and_of_other_rooms(tmp_path):
    one, two, three = gangs.halves(gangs.rows(30), [10, 10])
    first, second = Room.make(tmp_path), Room.make(tmp_path)
    with first, second:
        assert first.folder.stat().st_mode & 0o777 == 0o700
        for part in (one, two):
            first.add(part)
        second.add(three)
        first.move(second)
        assert not second.folder.exists()
        table, whole = first.table(), gangs.rows(30)
        assert first.sizes == [10, 0, 20]
        for name in whole.columns:
            np.testing.assert_array_equal(table.columns[name], whole.columns[name])
            assert table.columns[name].dtype == whole.columns[name].dtype
        for name in ("prediction", "outcome", "weight"):
            np.testing.assert_array_equal(getattr(table, name), getattr(whole, name))
        table.weight[:] = 0  # as in memory; but not in the file
        np.testing.assert_array_equal(first.table().weight, whole.weight)
    assert list(tmp_path.glob(PREFIX + "*")) == []


def test_a_full_disk_is_told(tmp_path):
    code = """
        import resource, signal, sys
        import gangs
        from trueup.data.spill import Room
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
        with Room.make(sys.argv[1]) as room:
            room.add(gangs.rows(10_000))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(tmp_path)], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(gangs.__file__).parent), os.environ.get("PYTHONPATH", "")])},
    )  # fmt: skip
    assert f"{FileError.__name__}: the rows of a worker could not be laid down in {tmp_path}" in done.stderr
    assert "TMPDIR" in done.stderr
    assert list(tmp_path.iterdir()) == []
