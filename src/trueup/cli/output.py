"""Files that a command writes: checked before the work, written whole or not at all."""

from __future__ import annotations

import contextlib
import glob
import os
import re
import secrets
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from trueup.cli.interrupts import unfinished
from trueup.data.paths import FORMATS
from trueup.errors import ArgumentError
from trueup.storage import cannot_write, check_writable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

QUOTED = re.compile(r"'([^'\0]+)'|\"([^\"\0]+)\"")


def check_output(path: str, sources: Iterable[str | Path], *, example: str) -> None:
    """Refuse a place that cannot be written to, and one from which something is read.

    Raises
    ------
    FileError, ArgumentError
    """
    check_writable(path, example=example)
    given = Path(path)
    with _telling(given, example):
        same = [source for source in sources if given.exists() and Path(source).exists() and given.samefile(source)]
    if given.exists() and not given.is_file():
        raise ArgumentError(f"{path} is not a file on disk", hint=f"name a file, such as {example}")
    if same:
        raise ArgumentError(f"{path} would overwrite what is read", hint=f"name another file, such as {example}")


def files_in_query(query: str | None) -> list[Path]:
    """Find the files that a query names in quotes, by path or by pattern: it may read them."""
    named = [os.path.expanduser(one or other) for one, other in QUOTED.findall(query or "")]  # noqa: PTH111
    patterns = [name for name in named if name.lower().removesuffix(".gz").endswith(tuple(FORMATS))]  # '*' may be a text
    found = [match for name in patterns for match in glob.glob(name, recursive=True)]  # noqa: PTH207
    return [Path(name) for name in (*filter(os.path.lexists, named), *found)]


@contextlib.contextmanager
def whole_file(path: str, *, example: str) -> Iterator[Path]:
    """Give a place beside a file; what was written there takes the file's place at the end, and is gone after an error.

    A link keeps pointing to its file, and a file that is replaced keeps its rights.
    """
    target = Path(os.path.realpath(path))
    beside = target.parent / f".trueup-{secrets.token_hex(8)}.tmp"
    unfinished.add(beside)
    try:
        with _telling(Path(path), example):
            rights = stat.S_IMODE(target.stat().st_mode) if target.exists() else None
            beside.touch(mode=0o666 if rights is None else 0o600, exist_ok=False)
        yield beside
        with _telling(Path(path), example):
            if rights is not None:
                beside.chmod(rights)
            with beside.open("rb") as stream:
                os.fsync(stream.fileno())
            beside.replace(target)
    finally:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        unfinished.discard(beside)


@contextlib.contextmanager
def _telling(path: Path, example: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        raise cannot_write(path, error, example=example) from error


def file_size(path: str | Path) -> str:
    """Write the size of a file for people.

    Examples
    --------
    >>> import os
    >>> file_size(os.devnull)
    '0 bytes'
    """
    size = float(Path(path).stat().st_size)
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"
