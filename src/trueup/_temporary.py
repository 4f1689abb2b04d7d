"""Temporary files and directories of this process, which are removed when it ends, or swept by a later process.

Beside each lies a lock file, NAME.lock, which its process keeps locked (``flock``) as long as it lives. A lock that can be
taken belongs to a dead process: what lies beside it is removed by the next process that creates something in the same
directory. Locks hold across process ids, namespaces and containers that share a directory. On another machine a network
file system may not know them, so the lock file names the machine, and only names of this one are swept.
"""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import re
import secrets
import shutil
import stat
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if sys.platform != "win32":
    import fcntl

if TYPE_CHECKING:
    from collections.abc import Iterator

LOCK = ".lock"
PREFIX, HIDDEN_PREFIX, FILE_SUFFIX = "trueup-", ".trueup-", ".tmp"  # of directories; of files beside an output
LOCK_NAME = re.compile(r"\.?trueup-[\w-]+(?:\.tmp)?\.lock", re.ASCII)
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")  # the same in all containers of a machine
UPTIME = Path("/proc/uptime")


class _Claim(NamedTuple):
    """The process that created a name, and the descriptor of its locked lock file (-1: it could not be locked)."""

    process: int
    lock: int


_claims: dict[Path, _Claim] = {}
_swept: set[Path] = set()


@contextlib.contextmanager
def temporary_directory(parent: str | Path | None = None, prefix: str = PREFIX) -> Iterator[str]:
    """Create a private directory in ``parent``, by default the system's; remove it at the end of the block."""
    directory = create_directory(parent, prefix)
    try:
        yield str(directory)
    finally:
        remove(directory)


def create_directory(parent: str | Path | None = None, prefix: str = PREFIX) -> Path:
    """Create a private directory in ``parent``, by default the system's; `remove` removes it."""
    directory = claim_name(tempfile.gettempdir() if parent is None else parent, prefix)
    try:
        directory.mkdir(mode=0o700)
    except BaseException:
        remove(directory)
        raise
    return directory


def claim_name(parent: str | Path, prefix: str, suffix: str = "") -> Path:
    """Return a new name in ``parent`` and lock it; the caller creates a file or directory there, then calls `remove`.

    What dead processes left in ``parent`` is removed first. Inside a directory of this process no lock is needed.
    """
    directory = Path(parent).absolute()
    nested = any(folder in _claims for folder in (directory, *directory.parents))
    if not nested:
        sweep(directory)
    while True:
        path = directory / f"{prefix}{secrets.token_hex(8)}{suffix}"
        if nested:
            return path
        lock = _create_lock(path)
        if lock is not None:
            _claims[path] = _Claim(os.getpid(), lock)
            return path


def remove(path: Path) -> None:
    """Remove a file or directory and its lock file, unless it belongs to the process that this one was forked from."""
    claim = _claims.get(path)
    if claim is not None and claim.process != os.getpid():
        return
    _remove_with_lock(path)
    if _claims.pop(path, None) is not None and claim is not None and claim.lock >= 0:
        os.close(claim.lock)


def remove_all() -> None:
    """Remove all temporary files and directories of this process, which is about to end."""
    for path in list(_claims):
        with contextlib.suppress(OSError):
            remove(path)


def sweep(directory: Path) -> None:
    """Remove what dead processes of this user left in a directory; once per process and directory."""
    if sys.platform == "win32" or directory in _swept:
        return
    _swept.add(directory)
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for name in [entry.name for entry in entries if LOCK_NAME.fullmatch(entry.name)]:
            with contextlib.suppress(OSError):
                _sweep_name(directory / name.removesuffix(LOCK))


def _lock_path(path: Path) -> Path:
    return path.with_name(path.name + LOCK)


def _remove_with_lock(path: Path) -> None:
    """Remove a file or directory, then its lock file; if something is left, the lock file stays for the next sweep."""
    with contextlib.suppress(OSError):
        if stat.S_ISDIR(path.lstat().st_mode):
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()
    if not os.path.lexists(path):
        with contextlib.suppress(OSError):
            _lock_path(path).unlink()


def _create_lock(path: Path) -> int | None:
    """Create and lock the lock file of ``path``; return -1 without locks, None if a sweep has removed it meanwhile."""
    if sys.platform == "win32":
        return -1
    lock = _lock_path(path)
    file = os.open(lock, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.write(file, _machine().encode())
        if os.path.samestat(os.fstat(file), os.lstat(lock)):
            return file
    except (BlockingIOError, FileNotFoundError):  # a sweep holds it, or has removed it
        pass
    except OSError:  # a file system without locks: a process that is killed leaves its files
        os.close(file)
        with contextlib.suppress(OSError):
            lock.unlink()
        return -1
    except BaseException:
        os.close(file)
        raise
    os.close(file)
    return None


def _sweep_name(path: Path) -> None:
    """Remove ``path`` and its lock file if the process that created it on this machine, as this user, is dead."""
    lock = _lock_path(path)
    file = os.open(lock, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises while its process lives
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_size > 1000:
            return
        if not os.path.samestat(status, os.lstat(lock)):
            return  # swept by another process
        machine = os.pread(file, 1000, 0).decode(errors="replace")
        if not machine:  # killed before anything was created
            lock.unlink()
        elif _is_here(machine, status.st_mtime) and (not os.path.lexists(path) or path.lstat().st_uid == status.st_uid):
            _remove_with_lock(path)
    finally:
        os.close(file)


@functools.cache
def _machine() -> str:
    """Return two lines that identify this machine since its last start, and its name."""
    try:
        boot = BOOT_ID.read_text("ascii").strip()
    except OSError:
        boot = ""
    return f"{boot}\n{platform.node()}\n"


def _is_here(machine: str, written: float) -> bool:
    """Return whether a lock file, ``written`` at this time, is of this machine, perhaps from before it was started again.

    Machines may share a name: one that started at another time is only taken for this one if the file is older than that.
    """
    own, other = _machine().split("\n"), machine.split("\n")
    if len(other) != 3:
        return False
    if own[0] and other[0]:
        return own[0] == other[0] or (own[1] == other[1] and written < _started())
    return own[1] == other[1]


@functools.cache
def _started() -> float:
    """Return the time at which this machine was started, in seconds since 1970; 0 if it is not known."""
    try:
        return time.time() - float(UPTIME.read_text("ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return 0.0


def _close_inherited() -> None:
    """In a forked process: close the locks of the parent, so that they do not outlive it."""
    for path, claim in list(_claims.items()):
        if claim.lock >= 0:
            with contextlib.suppress(OSError):
                os.close(claim.lock)
        _claims[path] = claim._replace(lock=-1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_inherited)
