"""Compiled kernels on disk: one file per kernel and types of arguments, named by a hash of all that it depends on.

``NUMBA_CACHE_DIR`` names the directory; otherwise it is ``__pycache__`` beside the kernels and then, if that cannot be
written to, the cache directory of the user. A directory that can only be read is read. A file is written under another
name and then renamed, so that processes that start at the same time never read half of one. Files are pickles: they are
read from these directories alone, which belong to the user or to the installation.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import pickle
import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

VARIABLE = "NUMBA_CACHE_DIR"
SUFFIX = ".kernel"
STAMP_DIGITS, KEY_DIGITS = 12, 24
# What reading a damaged file, or one of another numba, may raise.
READ_ERRORS = (
    OSError,
    EOFError,
    pickle.UnpicklingError,
    ImportError,
    AttributeError,
    ValueError,
    TypeError,
    KeyError,
    IndexError,
)


def directories() -> list[Path]:
    """Return the directories that kernels are looked up in; new ones are written to the first that can be written to."""
    chosen = os.environ.get(VARIABLE)
    if chosen:
        return [Path(chosen, "trueup")]
    return [Path(__file__).parent / "__pycache__", *_user_directory()]


def writable_directory() -> Path | None:
    """Return the directory that new kernels are written to; None if none can be written to."""
    for directory in directories():
        with contextlib.suppress(OSError):
            directory.mkdir(parents=True, exist_ok=True)
            if os.access(directory, os.W_OK):
                return directory
    return None


def kernels_in(directory: Path) -> list[str]:
    """Return the names of the files of compiled kernels in a directory."""
    return sorted(path.name for path in directory.glob(f"*{SUFFIX}"))


def _user_directory() -> Iterable[Path]:
    """Return the cache directory of the user in a list, which is empty if there is none."""
    try:
        if sys.platform == "win32":
            base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
        elif sys.platform == "darwin":
            base = Path.home() / "Library" / "Caches"
        else:
            base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:  # nobody's home
        return []
    return [base / "trueup"] if base.is_absolute() else []


@functools.cache
def _file_hash(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def source_stamp(sources: tuple[set[str], dict[str, Any]]) -> str:
    """Return a hash of source files and of constants by name; raise OSError if a file cannot be read."""
    files, constants = sources
    text = repr((sorted(map(_file_hash, files)), sorted((name, repr(value)) for name, value in constants.items())))
    return hashlib.sha256(text.encode()).hexdigest()[:STAMP_DIGITS]


class KernelCache:
    """The files of one kernel, with the methods that numba's dispatchers call.

    ``stamp`` returns a hash of what the kernel is compiled from, or raises OSError if that cannot be read: it is then
    compiled in each process.
    """

    def __init__(self, name: str, stamp: Callable[[], str]) -> None:
        self.name = name
        self._make_stamp = stamp

    @functools.cached_property
    def stamp(self) -> str | None:
        """The hash of what the kernel is compiled from, if that can be read."""
        try:
            return self._make_stamp()
        except OSError:
            return None

    @property
    def cache_path(self) -> str | None:
        """The directory that new files are written to first; read by numba's statistics."""
        return str(directories()[0])

    def lock_path(self) -> Path | None:
        """Return the file to lock while the kernel is compiled; None if its directory cannot be written to."""
        directory = writable_directory()
        return None if directory is None else directory / f"{self.name}.lock"

    def file_name(self, signature: Any, codegen: Any) -> str:
        """Return the name of the file with the kernel for the types ``signature`` on this processor."""
        import numba

        parts = (
            numba.__version__, sys.version_info[:2], sys.implementation.cache_tag,
            codegen.magic_tuple(), repr(signature),
        )  # fmt: skip
        key = hashlib.sha256(repr(parts).encode()).hexdigest()[:KEY_DIGITS]
        return f"{self.name}.{self.stamp}.{key}{SUFFIX}"

    def has_any(self) -> bool:
        """Return whether there is a file for some types, perhaps of another processor; numba is not imported."""
        if self.stamp is None:
            return False
        pattern = f"{self.name}.{self.stamp}.*{SUFFIX}"
        return any(next(directory.glob(pattern), None) is not None for directory in directories())

    def contains(self, signature: Any, context: Any) -> bool:
        """Return whether there is a file for these types."""
        if self.stamp is None:
            return False
        name = self.file_name(signature, context.codegen())
        return any((directory / name).exists() for directory in directories())

    def load_overload(self, signature: Any, context: Any) -> Any:
        """Return the compiled kernel for these types, or None."""
        from numba.core.compiler import CompileResult

        if self.stamp is None:
            return None
        context.refresh()
        name = self.file_name(signature, context.codegen())
        for directory in directories():
            with contextlib.suppress(*READ_ERRORS):
                payload = pickle.loads((directory / name).read_bytes())  # noqa: S301  (see the module)
                return CompileResult._rebuild(context, *payload)  # type: ignore[no-untyped-call]
        return None

    def save_overload(self, signature: Any, compiled: Any) -> None:
        """Write the compiled kernel for these types; if no directory can be written to, it is for this process only."""
        from numba.core.serialize import dumps

        if self.stamp is None or compiled.library.has_dynamic_globals or compiled.lifted:
            return
        name, content = self.file_name(signature, compiled.codegen), dumps(compiled._reduce())  # type: ignore[no-untyped-call]
        for directory in directories():
            try:
                directory.mkdir(parents=True, exist_ok=True)
                _write(directory / name, content)
            except OSError:
                continue
            if directory.name == "__pycache__":  # of one version of the sources
                self._remove_outdated(directory)
            return

    def _remove_outdated(self, directory: Path) -> None:
        for path in directory.glob(f"{self.name}.*{SUFFIX}"):
            if not path.name.startswith(f"{self.name}.{self.stamp}."):
                with contextlib.suppress(OSError):
                    path.unlink()

    def enable(self) -> None:
        """Do nothing: the cache is always enabled."""

    def disable(self) -> None:
        """Do nothing: the cache is always enabled."""

    def flush(self) -> None:
        """Do nothing: files are written at once."""


def _write(path: Path, content: bytes) -> None:
    """Write a file under another name and rename it; raise and leave nothing if that fails."""
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
