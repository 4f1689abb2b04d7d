"""Write a file whole or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trueup.storage import cannot_write, replace_file

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

EXAMPLE = "audit.html"


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
    return replace_file(path, (part.encode("utf-8") for part in parts), example=EXAMPLE)


def check_place(path: str | os.PathLike[str], *, example: str = EXAMPLE) -> None:
    """Refuse a path that nothing can be written to: one that is a directory, or in none; the hint names the example.

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
        raise cannot_write(given, error, example=example) from error
