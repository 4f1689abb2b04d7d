"""The decorator `jit`: kernels are compiled on first use, release the global interpreter lock, and are cached on disk."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar, cast

import numba
from numba import config

if sys.platform != "win32":
    import fcntl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


F = TypeVar("F", bound="Callable[..., Any]")
PACKING = "SLP_VECTORIZE"  # numba's own name for it, set when the environment is read
LOCK_SECONDS = 60.0  # a kernel is compiled within a few; a process that was stopped meanwhile does not block others
_compiling = threading.RLock()


def jit(function: F) -> F:
    """Return a kernel that numba compiles on first use.

    Fast-math is off, since the order of additions changes results. Without a writable cache directory, kernels are compiled
    in each process; with one, processes that start at the same time compile each kernel once.
    """
    try:
        kernel = numba.njit(function, nogil=True, cache=True, error_model="numpy")
    except RuntimeError:
        kernel = numba.njit(function, nogil=True, error_model="numpy")
    compile_plain, name = kernel.compile, f"{function.__module__}.{function.__qualname__}"

    def compile_packed(signature: Any) -> Any:
        with _packing(), _other_processes_waiting(kernel.stats.cache_path, name):
            return compile_plain(signature)

    kernel.compile = compile_packed
    return cast("F", kernel)


@contextmanager
def _packing() -> Iterator[None]:
    """Let LLVM pack adjacent additions into one instruction while a kernel is compiled; then restore numba's setting.

    Each sum is still added in the same order: the result is the same to the last bit, in about four fifths of the time.
    """
    with _compiling:
        before = getattr(config, PACKING)
        setattr(config, PACKING, 1)
        try:
            yield
        finally:
            setattr(config, PACKING, before)


@contextmanager
def _other_processes_waiting(directory: str | None, name: str) -> Iterator[None]:
    """Lock a file in the cache ``directory`` while kernel ``name`` is compiled: others wait, then read it from there."""
    file = None if directory is None else _lock(Path(directory, f"{name}.lock"))
    try:
        yield
    finally:
        if file is not None and sys.platform != "win32":
            fcntl.flock(file, fcntl.LOCK_UN)  # a process forked meanwhile has the file open too
            file.close()


def _lock(path: Path) -> IO[str] | None:
    """Lock the file ``path`` and return it; return None if that is not possible, or takes longer than LOCK_SECONDS."""
    if sys.platform == "win32":
        return None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("w")
    except OSError:
        return None
    deadline = time.monotonic() + LOCK_SECONDS
    while time.monotonic() < deadline:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.02)
        except OSError:  # a file system without locks
            break
        else:
            return file
    file.close()
    return None
