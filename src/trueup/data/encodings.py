"""Text encodings and compressed files, as Python reads them."""

from __future__ import annotations

import bz2
import codecs
import gzip
from typing import IO, TYPE_CHECKING, cast

from trueup.errors import ArgumentError, FileError

if TYPE_CHECKING:
    from pathlib import Path


def open_binary(path: Path) -> IO[bytes]:
    """Open a file for reading bytes, decompressed by Python if its name ends in .gz or .bz2."""
    if path.suffix.lower() == ".gz":
        return cast("IO[bytes]", gzip.open(path, "rb"))
    return bz2.open(path, "rb") if path.suffix.lower() == ".bz2" else path.open("rb")


def check_encoding(encoding: str | None) -> str:
    """Return the name of an encoding as Python knows it, "" for UTF-8 or None; raise if there is no such encoding."""
    if encoding is None:
        return ""
    try:
        name = codecs.lookup(encoding).name
        is_text = isinstance("".encode(encoding), bytes)
    except (LookupError, TypeError, ValueError):
        is_text = False
    if not is_text:
        raise ArgumentError(
            f"encoding {encoding!r} is not known", hint="such as utf-8, utf-16, latin-1 or cp1252", parameter="encoding"
        )
    return "" if name in ("utf-8", "utf-8-sig", "ascii") else name


def wrong_encoding(path: Path, encoding: str) -> FileError:
    """Return the error for a file that is not text in an encoding."""
    with open_binary(path) as stream:
        has_mark = stream.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    return FileError(
        f"cannot read {str(path)!r}: it is not {encoding or 'UTF-8'} text",
        hint="name its encoding, as {encoding}, or save it again as UTF-8",
        settings={"encoding": "utf-16" if has_mark else ...},
    )


def damaged(path: object, error: object) -> FileError:
    """Return the error for a compressed file that cannot be decompressed."""
    return FileError(
        f"cannot decompress {str(path)!r}: {error}",
        hint="was it compressed as its name says, and copied or downloaded to its end? Write it again",
    )
