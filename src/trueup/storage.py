"""An archive of named members in one file, with checksums, size limits and atomic writes; independent of models.

The file is a zip without compression: any tool lists it, no member is larger than the file, and the same members make the
same bytes on every machine. Its first member, ``index.json``, has the size and the SHA-256 of every other member; the
comment of the zip is the SHA-256 of the index: nothing is parsed before its checksum is verified. That detects damage;
it is no signature, so the reader of a member must still validate its content.

The zip is read and written here by its records (PKWARE, APPNOTE.TXT 6.3, sections 4.3.7, 4.3.12 and 4.3.16) and not by
``zipfile``, which builds the entire directory before it can be limited, and does not detect all inconsistencies.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
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

MAX_FILE_SIZE = 1 << 30  # bytes; four times that would need the 64-bit records of zip
MAX_MEMBERS = 4096
MAX_NAME_LENGTH = 100  # characters
MAX_INDEX_SIZE = 1 << 20  # bytes; MAX_MEMBERS entries with names of MAX_NAME_LENGTH take less
LAYOUT = 1
INDEX = "index.json"

# Lower case only, and no component begins or ends in a dot: names are distinct and harmless on every file system.
_COMPONENT = "[a-z0-9_]+(?:[.-][a-z0-9_]+)*"
_NAME = re.compile(f"{_COMPONENT}(?:/{_COMPONENT})*", re.ASCII)
_KIND = re.compile("[a-z][a-z0-9 _.-]{0,63}", re.ASCII)
_DIGEST = re.compile("[0-9a-f]{64}", re.ASCII)

_LOCAL, _CENTRAL, _END = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"
_MADE_BY = b"\x14\x03"  # version 2.0 of the format, on Unix, wherever it is written
# In both headers of a member: version, flags, method, time, date, CRC-32, stored size, size, lengths of name and extra.
_COMMON = struct.Struct("<5H3L2H")
_REST = struct.Struct("<3H2L")  # only in the directory: length of comment, disk, kind of content, permissions, offset
_TAIL = struct.Struct("<4s4H2LH")  # disks, members here and in all, length and offset of the directory, length of comment
_ENTRY = 46  # bytes of an entry of the directory, before its name
_DATE = 1 << 5 | 1  # 1980-01-01, the first date of zip
_PERMISSIONS = (stat.S_IFREG | 0o644) << 16

_DAMAGED = "it was damaged or changed after it was written: copy it again, or save it again"
_NOT_OURS = "name a file that trueup saved"
_BAD_DIRECTORY = "its directory is damaged"


class _ArchiveError(Exception):
    """An invalid archive; raised and caught in this module only, which raises a FileError that names the file."""

    def __init__(self, message: str, hint: str = _DAMAGED) -> None:
        super().__init__(message)
        self.message, self.hint = message, hint


class _Entry(NamedTuple):
    """A member as listed in the directory of the zip; the file must have ``header`` at ``start``, then the content."""

    name: str
    size: int
    start: int
    header: bytes


Target = str | os.PathLike[str] | BinaryIO
Source = str | os.PathLike[str] | bytes | bytearray | memoryview | BinaryIO


def write(target: Target, members: Mapping[str, bytes], *, kind: str) -> None:
    """Write an archive to a file, atomically, or to a binary file object.

    ``kind`` names its content, such as "trueup model", and `read` needs the same name.
    """
    if not isinstance(kind, str) or not _KIND.fullmatch(kind):
        raise ArgumentError(f"the kind of an archive must be a lower-case word; got {kind!r}")
    for name, content in members.items():
        if not _is_name(name) or name == INDEX:
            hint = f"lower-case letters, digits, _ . - and /, up to {MAX_NAME_LENGTH} characters, and not {INDEX}"
            raise ArgumentError(f"a member of an archive cannot be named {name!r}", hint=hint)
        if not isinstance(content, bytes):
            raise ArgumentError(f"member {name!r} of an archive must be bytes; got {type(content).__name__}")
    # The records of a member and its entry in the index take less than 512 bytes.
    total = sum(map(len, members.values())) + 512 * (len(members) + 1)
    for unit, count, limit in (("members", len(members), MAX_MEMBERS), ("bytes", total, MAX_FILE_SIZE)):
        if count > limit:
            hint = f"the maximum is {limit:,}"
            raise FileError(f"cannot write {describe_source(target)}: it would have {count:,} {unit}", hint=hint)
    table = {name: (len(members[name]), hashlib.sha256(members[name]).hexdigest()) for name in sorted(members)}
    records = _zip([(INDEX, _index(kind, table)), *((name, members[name]) for name in table)])
    if isinstance(target, (str, os.PathLike)):
        replace_file(target, records, example="model.trueup")
        return
    try:
        for record in records:
            target.write(record)
    except TypeError:
        hint = 'open it in binary mode: open(path, "wb")'
        raise ArgumentError("the file object takes text, not bytes", hint=hint) from None
    except (OSError, ValueError) as error:
        raise FileError(f"cannot write to {describe_source(target)}: {_reason(error)}", hint="is it open?") from error


def read(source: str | os.PathLike[str] | bytes, *, kind: str, max_size: int = MAX_FILE_SIZE) -> dict[str, bytes]:
    """Return the members of an archive (a path, or its bytes) of this ``kind`` by name; raise if a checksum is wrong."""
    try:
        if isinstance(source, bytes):
            return _read(io.BytesIO(source), len(source), kind)
        path = Path(source)
        _check_file(path.stat(), max_size)  # before opening: that alone can start a device
        with open(path, "rb", opener=_open) as stream:
            _check_file(status := os.fstat(stream.fileno()), max_size)
            return _read(stream, status.st_size, kind)
    except _ArchiveError as error:
        raise FileError(f"cannot read {describe_source(source)}: {error.message}", hint=error.hint) from None
    except (OSError, ValueError, MemoryError) as error:
        hint = "check the path and its permissions"
        raise FileError(f"cannot read {describe_source(source)}: {_reason(error)}", hint=hint) from error


def read_bytes(source: Any, max_size: int = MAX_FILE_SIZE) -> bytes:
    """Return bytes, or what a binary file object contains from its position on; raise if it is neither, or too large."""
    try:
        content = source.read(max_size + 1) if hasattr(source, "read") else source
    except (OSError, ValueError) as error:
        raise FileError(f"cannot read the file object: {_reason(error)}", hint="is it open for reading?") from error
    if not isinstance(content, (bytes, bytearray, memoryview)):
        text = "a file object of text" if isinstance(content, str) else f"a {type(source).__name__}"
        hint = 'pass a path, bytes, or a file that is opened in binary mode, as open(path, "rb")'
        raise ArgumentError(f"a file is read from a path, from bytes or from a binary file object; got {text}", hint=hint)
    if len(content) > max_size:
        raise FileError(f"cannot read more than {max_size:,} bytes", hint="is it the right file?")
    return bytes(content)


def describe_source(source: object) -> str:
    """Return a path on one line, or in words what the file is read from or written to instead."""
    if isinstance(source, (str, os.PathLike)):
        return _printable(os.fspath(source))
    return f"the {len(source):,} bytes" if isinstance(source, (bytes, bytearray, memoryview)) else "the file object"


def replace_file(path: str | os.PathLike[str], content: Iterable[bytes], *, example: str) -> Path:
    """Write a file atomically, unless it is a device or a pipe; return the path. ``example`` is a file name for hints."""
    given = Path(path)
    try:
        target = Path(os.path.realpath(given))
        if target.is_dir():
            raise IsADirectoryError
        if target.is_symlink():
            target.stat()  # resolved, and still a link: it points to itself, which the system reports
        if target.exists() and not target.is_file():
            with target.open("wb") as stream:
                stream.writelines(content)
        else:
            with replacing(target) as temporary, temporary.open("wb") as stream:
                stream.writelines(content)
    except (OSError, ValueError) as error:
        raise cannot_write(given, error, example=example) from error
    return given


def write_text(path: str | os.PathLike[str], content: Iterable[str], *, example: str = "audit.html") -> Path:
    """Write a UTF-8 text file atomically, as `replace_file` does."""
    return replace_file(path, (text.encode("utf-8") for text in content), example=example)


def check_writable(path: str | os.PathLike[str], *, example: str = "audit.html") -> None:
    """Raise FileError if the path is a directory, or if its parent directory does not exist."""
    given = Path(path)
    try:
        os.fsencode(given)  # raises for a name that no file can have
        if given.is_dir():
            raise IsADirectoryError
        if not given.parent.is_dir():
            raise FileNotFoundError
    except (OSError, ValueError) as error:
        raise cannot_write(given, error, example=example) from error


def cannot_write(path: Path, error: OSError | ValueError, *, example: str) -> FileError:
    """Return the FileError for a path that could not be written to because of ``error``, with a hint."""
    name, parent = _printable(path), _printable(path.parent)
    if isinstance(error, IsADirectoryError):
        return FileError(f"cannot write to {name}: it is a directory", hint=f"name a file, such as {example}")
    if isinstance(error, (FileNotFoundError, NotADirectoryError)) and not os.path.isdir(path.parent):  # noqa: PTH112
        return FileError(f"cannot write {name}: there is no directory {parent}", hint="make the directory first")
    if isinstance(error, (PermissionError, FileNotFoundError)):  # the latter in a directory without files, such as /proc
        return FileError(f"cannot write {name}: no permission to write in {parent}", hint="choose another place")
    return FileError(f"cannot write {name}: {_reason(error)}", hint="choose another name or place")


unfinished: set[Path] = set()  # temporary files, to be removed if the process has to be terminated


@contextlib.contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Yield a temporary file beside the target, which replaces it at the end of the block or is removed after an error."""
    temporary = target.parent / f".trueup-{secrets.token_hex(8)}.tmp"
    permissions = stat.S_IMODE(target.stat().st_mode) if target.exists() else None
    unfinished.add(temporary)
    try:
        # A new file has the permissions of the umask; the replacement of a private file is private from its first byte.
        temporary.touch(mode=0o666 if permissions is None else 0o600, exist_ok=False)
        yield temporary
        if permissions is not None:
            temporary.chmod(permissions)
        with temporary.open("rb") as stream:
            os.fsync(stream.fileno())
        os.replace(temporary, target)  # noqa: PTH105  (the same call; tests make it fail by this name)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    finally:
        unfinished.discard(temporary)
    # The new name survives a power failure only once the directory is on disk; not every system supports that.
    with contextlib.suppress(OSError):
        parent = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(parent)
        finally:
            os.close(parent)


def _zip(members: list[tuple[str, bytes]]) -> Iterator[bytes]:
    """Yield the bytes of a zip file: the members in this order, the directory, and the checksum of the index as comment."""
    directory, offset = [], 0
    for name, content in members:
        label, size = name.encode("ascii"), len(content)
        common = _COMMON.pack(20, 0, 0, 0, _DATE, zlib.crc32(content), size, size, len(label), 0)
        directory.append(_CENTRAL + _MADE_BY + common + _REST.pack(0, 0, 0, _PERMISSIONS, offset) + label)
        header = _LOCAL + common + label
        yield header
        yield content
        offset += len(header) + size
    listing = b"".join(directory)
    checksum = hashlib.sha256(members[0][1]).hexdigest().encode("ascii")
    yield listing
    yield _TAIL.pack(_END, 0, 0, len(members), len(members), len(listing), offset, len(checksum)) + checksum


def _index(kind: str, table: Mapping[str, tuple[int, str]]) -> bytes:
    entries = {name: {"size": size, "sha256": digest} for name, (size, digest) in table.items()}
    return json.dumps({"kind": kind, "layout": LAYOUT, "parts": entries}, sort_keys=True, indent=0).encode("ascii")


def _read(stream: BinaryIO, size: int, kind: str) -> dict[str, bytes]:
    """Return the members of an archive of this ``kind`` by name; raise unless directory, index and checksums agree."""
    entries, checksum = _read_directory(stream, size)
    if entries[0].name != INDEX or entries[0].size > MAX_INDEX_SIZE:
        raise _ArchiveError(f"it is a zip file without the {INDEX} of trueup", _NOT_OURS)
    raw = _content(stream, entries[0])
    if hashlib.sha256(raw).hexdigest() != checksum:
        raise _ArchiveError("its index does not have the checksum it was written with")
    table = _parse_index(raw, kind)
    sizes = {entry.name: entry.size for entry in entries[1:]}
    for name in sorted(sizes.keys() ^ table.keys()):
        raise _ArchiveError(f"member {name!r} is {'missing' if name in table else 'not in its index'}")
    for name, (expected, _) in table.items():
        if sizes[name] != expected:
            raise _ArchiveError(f"member {name!r} has {sizes[name]:,} bytes, and {expected:,} according to its index")
    members = dict.fromkeys(table, b"")
    for entry in entries[1:]:
        members[entry.name] = _content(stream, entry)
        if hashlib.sha256(members[entry.name]).hexdigest() != table[entry.name][1]:
            raise _ArchiveError(f"member {entry.name!r} does not have the checksum it was written with")
    return members


def _read_directory(stream: BinaryIO, size: int) -> tuple[list[_Entry], str]:
    """Return the entries of the directory of the zip, and the checksum of the index from its comment."""
    if size == 0:
        raise _ArchiveError("it is empty")
    # Bytes after the end of a zip and before its start do not change its content: they are ignored.
    tail = _take(stream, max(0, size - _TAIL.size - 0xFFFF), min(size, _TAIL.size + 0xFFFF))
    position = tail.rfind(_END)
    if not 0 <= position <= len(tail) - _TAIL.size:
        is_zip = _take(stream, 0, min(size, 4)) == _LOCAL
        raise _ArchiveError("it is incomplete") if is_zip else _ArchiveError("it is not an archive of trueup", _NOT_OURS)
    _, disk, start_disk, here, count, length, offset, comment_length = _TAIL.unpack_from(tail, position)
    comment = tail[position + _TAIL.size :][:comment_length].decode("latin-1")
    if not _DIGEST.fullmatch(comment):
        raise _ArchiveError("it is a zip file, but not one of trueup, or it was changed", _NOT_OURS)
    if count - 1 > MAX_MEMBERS:
        raise _ArchiveError(f"it has {count - 1:,} members; the maximum is {MAX_MEMBERS:,}")
    start = size - len(tail) + position - length
    if disk or start_disk or not 0 < count == here or start < offset or length > count * (_ENTRY + MAX_NAME_LENGTH):
        raise _ArchiveError(_BAD_DIRECTORY)
    return _parse_directory(_take(stream, start, length), count, start - offset, start), comment


def _parse_directory(listing: bytes, count: int, first: int, end: int) -> list[_Entry]:
    """Parse a directory of ``count`` members, which must fill the bytes from ``first`` to ``end`` without gaps."""
    entries: dict[str, _Entry] = {}
    position, start = 0, first
    for _ in range(count):
        head = listing[position : position + _ENTRY]
        if len(head) < _ENTRY or head[:4] != _CENTRAL:
            raise _ArchiveError(_BAD_DIRECTORY)
        common = head[6 : 6 + _COMMON.size]
        _, flags, method, _, _, _, stored, size, name_length, extra = _COMMON.unpack(common)
        comment_length, disk, _, _, offset = _REST.unpack_from(head, 6 + _COMMON.size)
        label = listing[position + _ENTRY : position + _ENTRY + name_length]
        name = label.decode("latin-1")
        if not _is_name(name):
            raise _ArchiveError(f"it has a member with a name that is not allowed: {name[:MAX_NAME_LENGTH]!r}")
        if name in entries:
            raise _ArchiveError(f"member {name!r} appears twice")
        if flags & 1:
            raise _ArchiveError(f"member {name!r} is encrypted")
        if method or stored != size:
            raise _ArchiveError(f"member {name!r} is compressed")
        if flags or extra or comment_length or disk or first + offset != start:
            raise _ArchiveError(f"its directory does not agree with member {name!r}")
        entries[name] = _Entry(name, size, start, _LOCAL + common + label)
        position, start = position + _ENTRY + name_length, start + len(entries[name].header) + size
        if start > end:
            raise _ArchiveError(f"member {name!r} has {size:,} bytes according to the directory, more than the file")
    if position != len(listing) or start != end:
        raise _ArchiveError(_BAD_DIRECTORY)
    return list(entries.values())


def _parse_index(raw: bytes, kind: str) -> dict[str, tuple[int, str]]:
    """Return size and digest of each member; validate the index, since anyone can compute its checksum."""
    try:
        index: Any = json.loads(raw.decode("ascii"))
    except (ValueError, RecursionError):  # RecursionError: thousands of nested brackets
        raise _ArchiveError(f"its {INDEX} is not JSON") from None
    match index:
        case {"layout": int(layout)} if layout > LAYOUT:
            raise _ArchiveError(f"written by a later version of trueup; this one reads layout {LAYOUT}", "upgrade trueup")
        case {"kind": str(own_kind), "parts": dict(entries)} if _KIND.fullmatch(own_kind):
            if own_kind != kind:
                raise _ArchiveError(f"this is an archive of {own_kind}, not of {kind}", f"name a file with {kind}")
        case _:
            raise _ArchiveError(f"its {INDEX} is not one of trueup")
    table = {}
    for name, entry in entries.items():
        match entry:
            case {"size": int(size), "sha256": str(digest)} if type(size) is int and _DIGEST.fullmatch(digest):
                table[name] = (size, digest)
            case _:
                raise _ArchiveError(f"its {INDEX} has a wrong entry for member {name[:MAX_NAME_LENGTH]!r}")
    # There is one way to write an index: this detects duplicate and unknown keys, and other layouts.
    if _index(kind, table) != raw:
        raise _ArchiveError(f"its {INDEX} is not as trueup writes it")
    return table


def _content(stream: BinaryIO, entry: _Entry) -> bytes:
    if _take(stream, entry.start, len(entry.header)) != entry.header:
        raise _ArchiveError(f"its directory does not agree with member {entry.name!r}")
    return _take(stream, entry.start + len(entry.header), entry.size)


def _take(stream: BinaryIO, start: int, length: int) -> bytes:
    """Return ``length`` bytes from ``start``; raise if the file has become shorter since its size was determined."""
    stream.seek(start)
    content = stream.read(length)
    if len(content) < length:
        raise _ArchiveError("it became shorter while it was read")
    return content


def _is_name(name: object) -> bool:
    return isinstance(name, str) and len(name) <= MAX_NAME_LENGTH and _NAME.fullmatch(name) is not None


def _open(path: str, flags: int) -> int:
    # If a pipe has replaced the file meanwhile, opening it must not wait for a writer.
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0))


def _check_file(status: os.stat_result, max_size: int) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise _ArchiveError("it is a directory", _NOT_OURS)
    if not stat.S_ISREG(status.st_mode):
        raise _ArchiveError("it is not a file on disk", "write its content to a file first")
    if status.st_size > max_size:
        raise _ArchiveError(f"it has {status.st_size:,} bytes; the maximum is {max_size:,}", "is it the right file?")


def _reason(error: Exception) -> str:
    known = {FileNotFoundError: "there is no such file", PermissionError: "no permission", MemoryError: "not enough memory"}
    return known.get(type(error)) or _printable(getattr(error, "strerror", None) or error)


def _printable(text: object) -> str:
    """Return a path or a reason on one line, without control characters, shortened in the middle if it is long."""
    clean = "".join(letter if letter.isprintable() else "·" for letter in str(text))
    return clean if len(clean) <= 300 else f"{clean[:149]}…{clean[-150:]}"
