"""An archive of named parts in one file: checksums, size limits, atomic write. Knows nothing of models.

The file is a zip in which nothing is compressed: any tool lists it, no part is larger than the file, and the same parts
make the same bytes on every machine. Its first part, ``index.json``, has the size and the SHA-256 of every other part;
the comment of the zip is the SHA-256 of the index: nothing is parsed before its checksum was compared. That finds
damage; it is no signature, so who reads a part must still check what it says.

The zip is read and written here by its records (PKWARE, APPNOTE.TXT 6.3, sections 4.3.7, 4.3.12 and 4.3.16) and not by
``zipfile``, which builds the whole directory before it can be limited and leaves disagreements to be found later.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import stat
import struct
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from trueup.errors import ArgumentError, FileError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

LARGEST_FILE = 1 << 30  # bytes; four times that would need the 64-bit records of zip
MOST_PARTS = 4096
LONGEST_NAME = 100  # characters
LARGEST_INDEX = 1 << 20  # bytes; MOST_PARTS entries with names of LONGEST_NAME take less
LAYOUT = 1
INDEX = "index.json"

# Lower case only, and no piece begins or ends in a dot: names stay apart and harmless on every file system.
_PIECE = "[a-z0-9_]+(?:[.-][a-z0-9_]+)*"
_NAME = re.compile(f"{_PIECE}(?:/{_PIECE})*", re.ASCII)
_KIND = re.compile("[a-z][a-z0-9 _.-]{0,63}", re.ASCII)
_DIGEST = re.compile("[0-9a-f]{64}", re.ASCII)

_LOCAL, _CENTRAL, _END = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"
_MADE_BY = b"\x14\x03"  # version 2.0 of the format, on Unix, wherever it is written
# In both headers of a part: version, flags, method, time, date, CRC-32, stored size, size, lengths of name and extra.
_COMMON = struct.Struct("<5H3L2H")
_REST = struct.Struct("<3H2L")  # in the directory alone: length of comment, disk, kind of content, rights, offset
_TAIL = struct.Struct("<4s4H2LH")  # disks, parts here and in all, length and offset of the directory, length of comment
_ENTRY = 46  # bytes of an entry of the directory, before its name
_DAY = 1 << 5 | 1  # 1980-01-01, the first day that zip knows
_RIGHTS = (stat.S_IFREG | 0o644) << 16

_AGAIN = "it was damaged or changed after it was written: copy it again, or save it again"
_OTHER = "name a file that trueup saved"


class _Refusal(Exception):  # noqa: N818  (never leaves this module: it becomes a FileError that names the file)
    def __init__(self, message: str, hint: str = _AGAIN) -> None:
        super().__init__(message)
        self.message, self.hint = message, hint


class _Entry(NamedTuple):
    """A part as the directory of the zip has it: at the start the file must have the header, then the content."""

    name: str
    size: int
    start: int
    header: bytes


def write(path: str | os.PathLike[str], parts: Mapping[str, bytes], *, kind: str) -> None:
    """Write an archive, whole or not at all.

    Parameters
    ----------
    path : path
        Where to write. Its directory must exist. A link keeps pointing to its file.
    parts : mapping of str to bytes
        At most 4,096. Names are of lower-case letters, digits and ``_``, with single ``.`` or ``-`` between them and
        ``/`` between pieces, up to 100 characters. The order makes no difference.
    kind : str
        What the archive holds, in a lower-case word or two: `read` asks for it again.

    Raises
    ------
    ArgumentError
        If the kind, a name or the type of a part is none of these.
    FileError
        If the parts are too many or too large, or the file cannot be written.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write(f"{folder}/box", {"b": b"two", "a/x.txt": b"one"}, kind="toys")
    ...     read(f"{folder}/box", kind="toys")
    {'a/x.txt': b'one', 'b': b'two'}
    """
    given = Path(path)
    if not isinstance(kind, str) or not _KIND.fullmatch(kind):
        raise ArgumentError(f"the kind of an archive must be a lower-case word; got {kind!r}")
    for name, content in parts.items():
        if not _is_name(name) or name == INDEX:
            hint = f"lower-case letters, digits, _ . - and /, up to {LONGEST_NAME} characters, and not {INDEX}"
            raise ArgumentError(f"a part of an archive cannot be named {name!r}", hint=hint)
        if not isinstance(content, bytes):
            raise ArgumentError(f"part {name!r} of an archive must be bytes; got {type(content).__name__}")
    # 512 bytes are more than a part takes for its records and in the index.
    total = sum(map(len, parts.values())) + 512 * (len(parts) + 1)
    for what, got, most in (("parts", len(parts), MOST_PARTS), ("bytes", total, LARGEST_FILE)):
        if got > most:
            raise FileError(f"cannot write {_shown(given)}: it would have {got:,} {what}", hint=f"{most:,} are the most")
    table = {name: (len(parts[name]), hashlib.sha256(parts[name]).hexdigest()) for name in sorted(parts)}
    records = _zip([(INDEX, _index(kind, table)), *((name, parts[name]) for name in table)])
    replace_file(given, records, example="model.trueup")


def read(path: str | os.PathLike[str], *, kind: str, largest: int = LARGEST_FILE) -> dict[str, bytes]:
    """Read an archive whose every byte agrees with its checksums.

    Parameters
    ----------
    path : path
        A file; a directory, a pipe or a device is refused and never waited for.
    kind : str
        What the archive must hold.
    largest : int
        Bytes; a larger file is refused unread. It bounds the memory too: nothing is decompressed.

    Returns
    -------
    dict of str to bytes
        The parts, by name.

    Raises
    ------
    FileError
        If the file cannot be read, is no archive of this kind, or is not as it was written.
    """
    given = Path(path)
    try:
        _check_file(given.stat(), largest)  # before opening: that alone can start a device
        with open(given, "rb", opener=_open) as stream:
            _check_file(found := os.fstat(stream.fileno()), largest)
            return _read(stream, found.st_size, kind)
    except _Refusal as refusal:
        raise FileError(f"cannot read {_shown(given)}: {refusal.message}", hint=refusal.hint) from None
    except (OSError, ValueError, MemoryError) as error:
        raise FileError(f"cannot read {_shown(given)}: {_reason(error)}", hint="check the path and its rights") from error


def replace_file(path: str | os.PathLike[str], parts: Iterable[bytes], *, example: str) -> Path:
    """Write a file, so that a reader sees the old file or the new one and never half of it.

    The bytes go to a temporary file in the same directory, which then takes the place of the old file and its rights.
    A link keeps pointing to its file; a device or a pipe is written to as it is.

    `example` is the name of such a file, told to who named a directory. The path is returned as it was given.

    Raises
    ------
    FileError
        If there is no such directory, no permission, no room, or the path is a directory.
    """
    given = Path(path)
    try:
        target = Path(os.path.realpath(given))
        if target.is_dir():
            raise IsADirectoryError
        if target.is_symlink():
            target.stat()  # resolved, and a link still: it leads to itself, and the system says so
        if target.exists() and not target.is_file():
            with target.open("wb") as stream:
                stream.writelines(parts)
        else:
            _replace(target, parts)
    except (OSError, ValueError) as error:
        raise cannot_write(given, error, example=example) from error
    return given


def write_text(path: str | os.PathLike[str], parts: Iterable[str], *, example: str = "audit.html") -> Path:
    """Write a UTF-8 text file atomically, as `replace_file` does."""
    return replace_file(path, (part.encode("utf-8") for part in parts), example=example)


def check_writable(path: str | os.PathLike[str], *, example: str = "audit.html") -> None:
    """Raise FileError if the path is a directory, or if its parent directory does not exist."""
    given = Path(path)
    try:
        if given.is_dir():
            raise IsADirectoryError
        if not given.parent.is_dir():
            raise FileNotFoundError
    except (OSError, ValueError) as error:
        raise cannot_write(given, error, example=example) from error


def cannot_write(path: Path, error: OSError | ValueError, *, example: str) -> FileError:
    """Say why a path cannot be written to, and what to do.

    Examples
    --------
    >>> print(cannot_write(Path("box"), IsADirectoryError(), example="box.zip"))
    cannot write to box: it is a directory
    hint: name a file, such as box.zip
    """
    name, folder = _shown(path), _shown(path.parent)
    if isinstance(error, IsADirectoryError):
        return FileError(f"cannot write to {name}: it is a directory", hint=f"name a file, such as {example}")
    if isinstance(error, (FileNotFoundError, NotADirectoryError)) and not os.path.isdir(path.parent):  # noqa: PTH112
        return FileError(f"cannot write {name}: there is no directory {folder}", hint="make the directory first")
    if isinstance(error, (PermissionError, FileNotFoundError)):  # the latter where a folder takes no files, such as /proc
        return FileError(f"cannot write {name}: no permission to write in {folder}", hint="choose another place")
    return FileError(f"cannot write {name}: {_reason(error)}", hint="choose another name or place")


def _replace(target: Path, parts: Iterable[bytes]) -> None:
    """Write beside the target, then put the new file in its place."""
    beside = target.parent / f".trueup-{secrets.token_hex(8)}.tmp"
    rights = stat.S_IMODE(target.stat().st_mode) if target.exists() else None
    try:
        # A new file has the rights that the umask leaves; what replaces a private file is private from its first byte.
        beside.touch(mode=0o666 if rights is None else 0o600, exist_ok=False)
        with beside.open("wb") as stream:
            stream.writelines(parts)
            stream.flush()
            if rights is not None:
                beside.chmod(rights)
            os.fsync(stream.fileno())
        os.replace(beside, target)  # noqa: PTH105  (the same call; tests make it fail by this name)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        raise
    # The new name lasts through a loss of power only when the directory is on disk; not every system can do that.
    with contextlib.suppress(OSError):
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _zip(parts: list[tuple[str, bytes]]) -> Iterator[bytes]:
    """Make the records of a zip of these parts, the index first."""
    directory, offset = [], 0
    for name, content in parts:
        label, size = name.encode("ascii"), len(content)
        common = _COMMON.pack(20, 0, 0, 0, _DAY, zlib.crc32(content), size, size, len(label), 0)
        directory.append(_CENTRAL + _MADE_BY + common + _REST.pack(0, 0, 0, _RIGHTS, offset) + label)
        header = _LOCAL + common + label
        yield header
        yield content
        offset += len(header) + size
    listing = b"".join(directory)
    checksum = hashlib.sha256(parts[0][1]).hexdigest().encode("ascii")
    yield listing
    yield _TAIL.pack(_END, 0, 0, len(parts), len(parts), len(listing), offset, len(checksum)) + checksum


def _index(kind: str, table: Mapping[str, tuple[int, str]]) -> bytes:
    parts = {name: {"size": size, "sha256": digest} for name, (size, digest) in table.items()}
    return json.dumps({"kind": kind, "layout": LAYOUT, "parts": parts}, sort_keys=True, indent=0).encode("ascii")


def _read(stream: BinaryIO, size: int, kind: str) -> dict[str, bytes]:
    """Read the parts, each only when all before it was found right."""
    entries, checksum = _directory(stream, size)
    if entries[0].name != INDEX or entries[0].size > LARGEST_INDEX:
        raise _Refusal(f"it is a zip file without the {INDEX} of trueup", _OTHER)
    raw = _content(stream, entries[0])
    if hashlib.sha256(raw).hexdigest() != checksum:
        raise _Refusal("its index does not have the checksum it was written with")
    table = _parse_index(raw, kind)
    sizes = {entry.name: entry.size for entry in entries[1:]}
    for name in sorted(sizes.keys() ^ table.keys()):
        raise _Refusal(f"part {name!r} is {'missing' if name in table else 'not in its index'}")
    for name, (expected, _) in table.items():
        if sizes[name] != expected:
            raise _Refusal(f"part {name!r} has {sizes[name]:,} bytes, and its index says {expected:,}")
    parts = dict.fromkeys(table, b"")
    for entry in entries[1:]:
        parts[entry.name] = _content(stream, entry)
        if hashlib.sha256(parts[entry.name]).hexdigest() != table[entry.name][1]:
            raise _Refusal(f"part {entry.name!r} does not have the checksum it was written with")
    return parts


def _directory(stream: BinaryIO, size: int) -> tuple[list[_Entry], str]:
    """Read the directory of the zip, and the checksum of the index from its comment."""
    if size == 0:
        raise _Refusal("it is empty")
    # Bytes after the end of a zip and before its start change nothing of what is in it: they are let be.
    tail = _take(stream, max(0, size - _TAIL.size - 0xFFFF), min(size, _TAIL.size + 0xFFFF))
    at = tail.rfind(_END)
    if not 0 <= at <= len(tail) - _TAIL.size:
        begun = _take(stream, 0, min(size, 4)) == _LOCAL
        raise _Refusal("it is cut short") if begun else _Refusal("it is not an archive of trueup", _OTHER)
    _, disk, start_disk, here, count, length, offset, commented = _TAIL.unpack_from(tail, at)
    comment = tail[at + _TAIL.size :][:commented].decode("latin-1")
    if not _DIGEST.fullmatch(comment):
        raise _Refusal("it is a zip file, but not one of trueup, or it was changed", _OTHER)
    if count - 1 > MOST_PARTS:
        raise _Refusal(f"it has {count - 1:,} parts, and {MOST_PARTS:,} are the most")
    start = size - len(tail) + at - length
    if disk or start_disk or not 0 < count == here or start < offset or length > count * (_ENTRY + LONGEST_NAME):
        raise _Refusal("its directory is damaged")
    return _entries(_take(stream, start, length), count, start - offset, start), comment


def _entries(listing: bytes, count: int, first: int, end: int) -> list[_Entry]:
    """Take the directory apart: its parts must follow each other from the first byte to the end, so none overlap."""
    entries: dict[str, _Entry] = {}
    at, start = 0, first
    for _ in range(count):
        head = listing[at : at + _ENTRY]
        if len(head) < _ENTRY or head[:4] != _CENTRAL:
            raise _Refusal("its directory is damaged")
        common = head[6 : 6 + _COMMON.size]
        _, flags, method, _, _, _, stored, size, named, extra = _COMMON.unpack(common)
        commented, disk, _, _, offset = _REST.unpack_from(head, 6 + _COMMON.size)
        label = listing[at + _ENTRY : at + _ENTRY + named]
        name = label.decode("latin-1")
        if not _is_name(name):
            raise _Refusal(f"it has a part of a name that is not allowed: {name[:LONGEST_NAME]!r}")
        if name in entries:
            raise _Refusal(f"part {name!r} is in it twice")
        if flags & 1:
            raise _Refusal(f"part {name!r} is encrypted")
        if method or stored != size:
            raise _Refusal(f"part {name!r} is compressed")
        if flags or extra or commented or disk or first + offset != start:
            raise _Refusal(f"its directory does not agree with part {name!r}")
        entries[name] = _Entry(name, size, start, _LOCAL + common + label)
        at, start = at + _ENTRY + named, start + len(entries[name].header) + size
        if start > end:
            raise _Refusal(f"part {name!r} is said to have {size:,} bytes, more than there are")
    if at != len(listing) or start != end:
        raise _Refusal("its directory is damaged")
    return list(entries.values())


def _parse_index(raw: bytes, kind: str) -> dict[str, tuple[int, str]]:
    """Check everything an index says: its checksum was right, but anyone can make one."""
    try:
        index: Any = json.loads(raw.decode("ascii"))
    except (ValueError, RecursionError):  # RecursionError: brackets in brackets, thousands deep
        raise _Refusal(f"its {INDEX} is not JSON") from None
    match index:
        case {"layout": int(layout)} if layout > LAYOUT:
            raise _Refusal(f"written by a later version of trueup; this one reads layout {LAYOUT}", "upgrade trueup")
        case {"kind": str(found), "parts": dict(parts)} if _KIND.fullmatch(found):
            if found != kind:
                raise _Refusal(f"this is an archive of {found}, not of {kind}", f"name a file that holds {kind}")
        case _:
            raise _Refusal(f"its {INDEX} is not one of trueup")
    table = {}
    for name, entry in parts.items():
        match entry:
            case {"size": int(size), "sha256": str(digest)} if type(size) is int and _DIGEST.fullmatch(digest):
                table[name] = (size, digest)
            case _:
                raise _Refusal(f"its {INDEX} has a wrong entry for part {name[:LONGEST_NAME]!r}")
    # There is one way to write an index: this finds keys that are there twice or unknown, and other layouts.
    if _index(kind, table) != raw:
        raise _Refusal(f"its {INDEX} is not as trueup writes it")
    return table


def _content(stream: BinaryIO, entry: _Entry) -> bytes:
    if _take(stream, entry.start, len(entry.header)) != entry.header:
        raise _Refusal(f"its directory does not agree with part {entry.name!r}")
    return _take(stream, entry.start + len(entry.header), entry.size)


def _take(stream: BinaryIO, start: int, length: int) -> bytes:
    """Read so many bytes: the caller has made sure that the file had them."""
    stream.seek(start)
    taken = stream.read(length)
    if len(taken) < length:
        raise _Refusal("it became shorter while it was read")
    return taken


def _is_name(name: object) -> bool:
    return isinstance(name, str) and len(name) <= LONGEST_NAME and _NAME.fullmatch(name) is not None


def _open(path: str, flags: int) -> int:
    # Should a pipe have taken the place of the file, opening it must not wait for a writer.
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0))


def _check_file(found: os.stat_result, largest: int) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise _Refusal("it is a directory", _OTHER)
    if not stat.S_ISREG(found.st_mode):
        raise _Refusal("it is not a file on disk", "write what it gives to a file first")
    if found.st_size > largest:
        raise _Refusal(f"it has {found.st_size:,} bytes, and {largest:,} are allowed", "is it the right file?")


def _reason(error: Exception) -> str:
    known = {FileNotFoundError: "there is no such file", PermissionError: "no permission", MemoryError: "not enough memory"}
    return known.get(type(error)) or _shown(getattr(error, "strerror", None) or error)


def _shown(text: object) -> str:
    """Write a path or a reason on one line, without control characters, cut in the middle if it is long."""
    clean = "".join(letter if letter.isprintable() else "·" for letter in str(text))
    return clean if len(clean) <= 300 else f"{clean[:149]}…{clean[-150:]}"
