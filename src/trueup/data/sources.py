"""Copies of files that DuckDB cannot read as they are: standard input, bz2, and text in other encodings than UTF-8."""

from __future__ import annotations

import bz2
import codecs
import gzip
import re
import shutil
import zlib
from pathlib import Path
from typing import IO, TYPE_CHECKING, BinaryIO

from trueup.data.encodings import damaged, open_binary, wrong_encoding
from trueup.data.scan import Files, RemoteFile, is_compressed, without_compression
from trueup.errors import FileError

if TYPE_CHECKING:
    from collections.abc import Iterator

CHUNK_BYTES = 1 << 20
SNIFFED_BYTES = 1 << 16
MAGIC = {b"\x1f\x8b": ".gz", b"BZh": ".bz2", b"\x28\xb5\x2f\xfd": ".zst"}
JSON_START = re.compile(r'\{\s*["}]|\[\s*[{\]]')  # of a record, or of an array of them; a CSV header may begin with [ or {
COPY_HINT = "free some space there, or name another spill directory"


def copy_for_duckdb(files: Files, directory: str | Path) -> Files:
    """Return files that DuckDB can read: those that it cannot are copied to ``directory``, decompressed and as UTF-8."""
    if not files.needs_copy:
        return files
    paths: list[Path | RemoteFile] = []
    for index, path in enumerate(files.paths):
        if isinstance(path, RemoteFile) or (files.encoding and is_compressed(path, ".zst")):
            what = "a remote file" if isinstance(path, RemoteFile) else "compressed with zstd"
            raise FileError(
                f"{str(path)!r} is {what}, and can only be read as it is: UTF-8, and not bz2",
                hint="download it first" if isinstance(path, RemoteFile) else "decompress it first, with zstd -d",
            )
        if not files.encoding and not is_compressed(path, ".bz2"):
            paths.append(path)
            continue
        # The directories of the copy name the same partitions.
        target = Path(directory) / f"input-{index}" / Path(*path.parts[-1 - len(files.partitions) : -1])
        target /= without_compression(path.name)
        _copy(path, target, files.encoding)
        paths.append(target)
    return files._replace(paths=paths, encoding="", originals=files.originals or tuple(files.paths))


def _copy(path: Path, target: Path, encoding: str) -> None:
    """Copy one file, decompressed, from its ``encoding`` to UTF-8."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with open_binary(path) as source, target.open("wb") as copy:
            if encoding:
                copy.writelines(text.encode() for text in decode_chunks(source, encoding))
            else:
                shutil.copyfileobj(source, copy, CHUNK_BYTES)
    except UnicodeError as error:
        raise wrong_encoding(path, encoding) from error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise damaged(path, error) from error
    except OSError as error:
        if error.errno is None:  # bz2's error for invalid data
            raise damaged(path, error) from error
        raise FileError(f"cannot copy {str(path)!r} to {target.parent}: {error.strerror}", hint=COPY_HINT) from error


def decode_chunks(source: IO[bytes], encoding: str) -> Iterator[str]:
    """Yield the text of a file; a byte order mark at its start is no text."""
    decoder, is_first = codecs.getincrementaldecoder(encoding)(), True
    while chunk := source.read(CHUNK_BYTES):
        text = decoder.decode(chunk)
        yield text.removeprefix("\ufeff") if is_first else text
        is_first = is_first and not text
    yield decoder.decode(b"", final=True)


def spool(stream: BinaryIO, directory: Path, kind: str | None, encoding: str) -> Path:
    """Copy a stream, such as standard input, to a file of the directory whose name states its format; return the path."""
    path = directory / "standard-input"
    try:
        with path.open("wb") as copy:
            shutil.copyfileobj(stream, copy, CHUNK_BYTES)
        if not path.stat().st_size:
            raise FileError("standard input is empty", hint="did the command before it fail?")
        suffix = sniff_suffix(path, kind, encoding)
        target = path.rename(path.with_name(path.name + suffix))
    except OSError as error:
        raise FileError(f"cannot copy standard input to {directory}: {error.strerror}", hint=COPY_HINT) from error
    return target


def sniff_suffix(path: Path, kind: str | None, encoding: str) -> str:
    """Return the suffixes for the format, ``kind`` if it is given, and the compression of the content of a file."""
    with path.open("rb") as stream:
        start = stream.read(SNIFFED_BYTES)
    if start.startswith(b"PAR1"):
        return ".parquet"
    compression = next((suffix for magic, suffix in MAGIC.items() if start.startswith(magic)), "")
    if kind is None and compression == ".zst":
        raise FileError(
            "cannot tell the format of standard input: it is compressed with zstd", hint="name it: --format csv"
        )
    if kind is None and compression:
        try:
            with gzip.open(path, "rb") if compression == ".gz" else bz2.open(path, "rb") as content:
                start = content.read(SNIFFED_BYTES)
        except (EOFError, OSError, zlib.error) as error:
            raise damaged("standard input", error) from error
    text = start.decode(encoding or "utf-8", errors="replace").lstrip("\ufeff \t\r\n")
    return f".{kind or ('json' if JSON_START.match(text) else 'csv')}{compression}"
