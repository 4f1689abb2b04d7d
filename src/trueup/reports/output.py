"""Write a file whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from trueup.audits.text import shorten
from trueup.errors import FileError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["check_place", "write_whole"]


def write_whole(path: str | os.PathLike[str], parts: Iterable[str]) -> Path:
    """Write a text file in UTF-8, so that a reader sees the old file or the new one and never half of it.

    The text goes to a temporary file in the same directory, which then takes the place of the old file. A link keeps
    pointing to its file; a device or a pipe is written to as it is.

    Parameters
    ----------
    path : path
        Where to write. Its directory must exist.
    parts : iterable of str
        The text, in pieces.

    Returns
    -------
    Path
        The path that was given.

    Raises
    ------
    FileError
        If there is no such directory, no permission, no room, or the path is a directory.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_whole(f"{folder}/note.txt", ["two ", "parts"]).read_text(encoding="utf-8")
    'two parts'
    """
    given = Path(path)
    try:
        target = Path(os.path.realpath(given))
        if target.is_dir():
            raise IsADirectoryError
        if target.exists() and not target.is_file():
            with target.open("w", encoding="utf-8", newline="\n") as stream:
                stream.writelines(parts)
        else:
            _replace(target, parts)
    except (OSError, ValueError) as error:
        raise _explain(given, error) from error
    return given


def check_place(path: str | os.PathLike[str]) -> None:
    """Refuse a path that nothing can be written to: one that is a directory, or in none.

    Raises
    ------
    FileError
    """
    given = Path(path)
    try:
        if given.is_dir():
            raise IsADirectoryError
        if not given.parent.is_dir():
            raise FileNotFoundError
    except (OSError, ValueError) as error:
        raise _explain(given, error) from error


def _replace(target: Path, parts: Iterable[str]) -> None:
    """Write beside the target, then put the new file in its place."""
    beside = target.parent / f".trueup-{secrets.token_hex(8)}.tmp"
    # Mode "x" refuses a file that is there already, and leaves the rights to the umask, as any new file would have them.
    with beside.open("x", encoding="utf-8", newline="\n") as stream:
        try:
            stream.writelines(parts)
            stream.flush()
            os.fsync(stream.fileno())
            if target.exists():
                beside.chmod(target.stat().st_mode & 0o7777)
            os.replace(beside, target)  # noqa: PTH105  (the same call; tests make it fail by this name)
        except BaseException:
            with contextlib.suppress(OSError):
                beside.unlink()
            raise


def _explain(path: Path, error: OSError | ValueError) -> FileError:
    """Say what is wrong with a path, and what to do."""
    name = shorten(str(path), 300)
    folder = shorten(str(path.parent), 300)
    if isinstance(error, IsADirectoryError):
        return FileError(f"cannot write to {name}: it is a directory", hint="name a file, such as audit.html")
    if isinstance(error, (FileNotFoundError, NotADirectoryError)):
        return FileError(f"cannot write {name}: there is no directory {folder}", hint="make the directory first")
    if isinstance(error, PermissionError):
        return FileError(f"cannot write {name}: no permission to write in {folder}", hint="choose another place")
    why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return FileError(f"cannot write {name}: {shorten(why, 300)}", hint="choose another name or place")
