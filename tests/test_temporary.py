"""Temporary files and directories: removed by their process, or by a later one if it is dead, and by no other."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trueup import _temporary
from trueup.storage import replacing

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs flock and fork")

HOLD = """
import sys, time
from pathlib import Path
from trueup import _temporary
directory = _temporary.create_directory(sys.argv[1])
(directory / "rows").write_bytes(b"x")
temporary = _temporary.claim_name(sys.argv[1], ".trueup-", ".tmp")
temporary.write_bytes(b"x")
print("ready", flush=True)
time.sleep(60)
"""


@pytest.fixture
def swept_again(monkeypatch):
    """Sweep every directory once more, as a new process does."""
    monkeypatch.setattr(_temporary, "_swept", set())


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def started(folder):
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


def test_what_a_killed_process_left_is_swept_and_that_of_a_living_one_is_kept(tmp_path, swept_again, monkeypatch):
    (tmp_path / "trueup-mine").mkdir()  # without a lock file: of the user
    (tmp_path / "trueup.lock").write_text("of the user")
    before = names(tmp_path)
    with started(tmp_path) as process:
        held = names(tmp_path)
        assert len(held) == len(before) + 4
        with _temporary.temporary_directory(tmp_path):
            assert set(held) < set(names(tmp_path))
        assert names(tmp_path) == held
        process.kill()
    assert names(tmp_path) == held
    monkeypatch.setattr(_temporary, "_swept", set())
    with _temporary.temporary_directory(tmp_path) as directory:
        assert names(tmp_path) == sorted([*before, Path(directory).name, Path(directory).name + ".lock"])
    assert names(tmp_path) == before


def test_a_directory_of_outputs_is_swept_when_one_is_written(tmp_path, swept_again):
    with started(tmp_path) as process:
        process.kill()
    with replacing(tmp_path / "o.csv") as temporary:
        temporary.write_text("new")
    assert names(tmp_path) == ["o.csv"]


@pytest.mark.skipif(not _temporary.BOOT_ID.exists(), reason="the system does not tell when it was started")
def test_names_from_before_the_machine_was_started_again_are_swept(tmp_path, swept_again):
    (tmp_path / "trueup-a").mkdir()
    lock = tmp_path / "trueup-a.lock"
    lock.write_text("another boot\n" + _temporary._machine().split("\n")[1] + "\n")
    os.utime(lock, (1e9, 1e9))
    _temporary.sweep(tmp_path)
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("machine", "is_swept"),
    [
        (_temporary._machine(), True),
        ("another boot\nanother host\n", False),  # a network file system may not know its locks
        (_temporary._machine().split("\n")[0] + "\nanother container\n", _temporary.BOOT_ID.exists()),
        ("another boot\n" + _temporary._machine().split("\n")[1] + "\n", False),  # another machine of the same name
        ("not of trueup", False),
        ("", False),
    ],
)
def test_only_names_of_this_machine_are_swept(tmp_path, swept_again, machine, is_swept):
    (tmp_path / "trueup-a").mkdir()
    (tmp_path / "trueup-a.lock").write_text(machine)
    _temporary.sweep(tmp_path)
    assert (tmp_path / "trueup-a").exists() != is_swept
    assert (tmp_path / "trueup-a.lock").exists() != (is_swept or not machine)


def test_links_are_not_followed(tmp_path, swept_again):
    other = tmp_path / "other"
    other.mkdir()
    (other / "data").write_text("x")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "trueup-a").symlink_to(other)
    (folder / "trueup-a.lock").write_text(_temporary._machine())
    (folder / "trueup-b.lock").symlink_to(other / "data")
    _temporary.sweep(folder)
    assert names(folder) == ["trueup-b.lock"]
    assert (other / "data").read_text() == "x"


def test_a_forked_process_removes_nothing_of_its_parent(tmp_path):
    code = """
import os, sys
from trueup import _temporary
with _temporary.temporary_directory(sys.argv[1]) as directory:
    if os.fork() == 0:
        _temporary.remove_all()
        sys.exit(0)  # leaves the block
    os.wait()
    print(os.path.isdir(directory), os.path.exists(directory + ".lock"), flush=True)
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout == "True True\n"
    assert names(tmp_path) == []


def test_a_forked_process_does_not_keep_the_locks_of_its_parent(tmp_path, swept_again):
    code = """
import os, sys, time
from trueup import _temporary
_temporary.create_directory(sys.argv[1])
if os.fork() == 0:
    print("ready", os.getpid(), flush=True)
    time.sleep(60)
os._exit(0)
"""
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline().split()[1])
        process.wait()
        try:
            assert len(names(tmp_path)) == 2
            _temporary.sweep(tmp_path)
            assert names(tmp_path) == []
        finally:
            os.kill(child, 9)


def test_a_file_system_without_locks_is_used_without(tmp_path, monkeypatch, swept_again):
    def refuse(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(_temporary.fcntl, "flock", refuse)
    with _temporary.temporary_directory(tmp_path) as directory:
        assert names(tmp_path) == [Path(directory).name]
    assert names(tmp_path) == []


def test_a_directory_inside_another_needs_no_lock_of_its_own(tmp_path):
    with _temporary.temporary_directory(tmp_path) as outer, _temporary.temporary_directory(outer) as inner:
        assert names(Path(outer)) == [Path(inner).name]


def test_a_name_is_never_given_while_a_sweep_holds_its_lock(tmp_path, monkeypatch, swept_again):
    usual, calls = _temporary.fcntl.flock, []

    def busy_once(file, how):
        calls.append(how)
        if len(calls) == 1:
            raise BlockingIOError
        usual(file, how)

    monkeypatch.setattr(_temporary.fcntl, "flock", busy_once)
    with _temporary.temporary_directory(tmp_path) as directory:
        assert Path(directory).is_dir()
        assert Path(f"{directory}.lock").exists()
    assert len(calls) == 2
