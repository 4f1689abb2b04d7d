"""An archive is read exactly as written or rejected with a reason; writing never leaves half a file."""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import stat
import struct
import subprocess
import sys
import time
import tracemalloc
import warnings
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trueup import storage
from trueup.errors import ArgumentError, FileError
from trueup.storage import read, replace_file, write

MEMBERS = {"manifest.json": b'{"a": 1}', "trees/left": bytes(range(256)), "trees/right": b"\x00" * 64, "zero": b""}
PIECE = st.from_regex(r"[a-z0-9_]{1,6}([.-][a-z0-9_]{1,6}){0,2}", fullmatch=True)
NAMES = st.lists(PIECE, min_size=1, max_size=3).map("/".join).filter(lambda name: name != "index.json")


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("archives")


@pytest.fixture
def box(tmp_path):
    """The path of an archive of MEMBERS."""
    save(tmp_path / "box", MEMBERS)
    return tmp_path / "box"


def index_of(members, /, **changes):
    entries = {name: {"size": len(part), "sha256": hashlib.sha256(part).hexdigest()} for name, part in members.items()}
    return {"kind": "toys", "layout": 1, "parts": entries} | changes


def forge(parts, index=None, *, comment=None, method=zipfile.ZIP_STORED):
    """Make a zip with the standard library, with the correct checksum of the index unless a comment is given."""
    index = index_of(dict(parts)) if index is None else index
    raw = index if isinstance(index, bytes) else json.dumps(index, sort_keys=True, indent=0).encode()
    stream = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about duplicate names
        with zipfile.ZipFile(stream, "w", method) as archive:
            for name, part in [("index.json", raw), *(parts.items() if isinstance(parts, dict) else parts)]:
                archive.writestr(zipfile.ZipInfo(name), part, compress_type=method)
            archive.comment = hashlib.sha256(raw).hexdigest().encode() if comment is None else comment
    return stream.getvalue()


def save(path, parts):
    """Write an archive without waiting for the disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        write(path, parts, kind="toys")


def put(path, content):
    """Make a new file: some file systems wait for the disk when an old one is emptied and written again."""
    path.unlink(missing_ok=True)
    path.write_bytes(content)


def assert_rejected(path, content, match, **options):
    put(path, content)
    with pytest.raises(FileError, match=match) as caught:
        read(path, **{"kind": "toys"} | options)
    assert caught.value.message.startswith(f"cannot read {path}: ")
    assert caught.value.hint


def patched(content, where, record, at):
    """Return the content with a record replaced, at an offset from a text."""
    start = content.rindex(where) + at
    return content[:start] + record + content[start + len(record) :]


@given(st.dictionaries(NAMES, st.binary(max_size=300), max_size=6))
def test_members_are_read_as_written(directory, parts):
    save(directory / "box", parts)
    result = read(directory / "box", kind="toys")
    assert result == parts
    assert list(result) == sorted(parts)


@given(st.dictionaries(NAMES, st.binary(max_size=30), max_size=6), st.randoms(use_true_random=False))
def test_the_order_of_the_members_does_not_matter(directory, parts, shuffler):
    names = list(parts)
    shuffler.shuffle(names)
    save(directory / "one", parts)
    save(directory / "two", {name: parts[name] for name in names})
    assert (directory / "one").read_bytes() == (directory / "two").read_bytes()


def test_the_same_members_make_the_same_bytes(box):
    # Changes only with the layout: then the number of the layout must change with it.
    assert (
        hashlib.sha256(box.read_bytes()).hexdigest() == "536337c61d34b00a61914c1df702cf465d99e8927b9202f3995492e19177462d"
    )


def test_the_file_is_identical_to_that_of_zipfile(box):
    with zipfile.ZipFile(box) as archive:
        assert archive.testzip() is None
        assert archive.namelist() == ["index.json", *sorted(MEMBERS)]
        assert {name: archive.read(name) for name in MEMBERS} == MEMBERS
        for info in archive.infolist():
            assert info.date_time == (1980, 1, 1, 0, 0, 0)
            assert info.compress_type == zipfile.ZIP_STORED
            assert (info.create_system, info.external_attr >> 16) == (3, 0o100644)
        assert archive.comment.decode() == hashlib.sha256(archive.read("index.json")).hexdigest()
        assert json.loads(archive.read("index.json")) == index_of(MEMBERS)


def test_an_archive_zipped_by_another_tool_is_read(tmp_path):
    (tmp_path / "box").write_bytes(forge(MEMBERS))
    assert read(tmp_path / "box", kind="toys") == MEMBERS


def test_bytes_before_and_after_a_zip_are_ignored(box):
    box.write_bytes(b"#!/bin/sh\n" + box.read_bytes() + b"\r\n")
    assert read(box, kind="toys") == MEMBERS


def test_the_maximum_number_of_members_with_the_longest_names_fits(tmp_path):
    parts = {f"{number:0100d}": b"" for number in range(storage.MAX_MEMBERS)}
    write(tmp_path / "box", parts, kind="k" * 64)
    assert read(tmp_path / "box", kind="k" * 64) == parts
    estimate = 512 * (len(parts) + 1)
    assert (tmp_path / "box").stat().st_size < estimate


@pytest.mark.parametrize(
    "name",
    [
        "",
        "/a",
        "a/",
        "a//b",
        "..",
        "../a",
        "a/../b",
        "a..b",
        ".a",
        "a.",
        "a/.",
        "a\\b",
        "c:a",
        "A",
        "é",
        "a b",
        "a\n",
        "a\x00",
        "a" * 101,
        "index.json",
        3,
    ],
)
def test_an_invalid_name_is_not_written(tmp_path, name):
    with pytest.raises(ArgumentError, match="a member of an archive cannot be named"):
        write(tmp_path / "box", {name: b""}, kind="toys")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["/etc/passwd", "../a", "a/../b", "a\\b", "A", "é", "a" * 101, "a/", "", "a\nb"])
def test_an_invalid_name_is_not_read(tmp_path, name):
    assert_rejected(
        tmp_path / "box", forge({name: b"x"}), "it has a member with a name that is not allowed|its directory is damaged"
    )


def test_content_must_be_bytes_and_the_kind_a_word(tmp_path):
    with pytest.raises(ArgumentError, match="member 'a' of an archive must be bytes; got str"):
        write(tmp_path / "box", {"a": "text"}, kind="toys")
    for kind in ("", "Toys", "a\nb", 3):
        with pytest.raises(ArgumentError, match="the kind of an archive must be a lower-case word; got"):
            write(tmp_path / "box", {}, kind=kind)


def test_archives_beyond_the_limits_are_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "MAX_FILE_SIZE", 10_000)
    with pytest.raises(FileError, match="box: it would have 11,024 bytes\nhint: the maximum is 10,000"):
        write(tmp_path / "box", {"a": b"x" * 10_000}, kind="toys")
    monkeypatch.setattr(storage, "MAX_MEMBERS", 2)
    with pytest.raises(FileError, match="box: it would have 3 members\nhint: the maximum is 2"):
        write(tmp_path / "box", dict.fromkeys("abc", b""), kind="toys")


def test_an_archive_of_another_kind_is_rejected(box):
    assert_rejected(
        box,
        box.read_bytes(),
        "this is an archive of toys, not of models\nhint: name a file with models",
        kind="models",
    )


def test_a_later_layout_is_rejected(tmp_path):
    later = {"layout": 2, "kind": ["new"], "more": None}
    assert_rejected(
        tmp_path / "box", forge({}, later), "written by a later version of trueup; this one reads layout 1\nhint: upgrade"
    )


def test_a_file_that_is_no_archive_is_rejected(tmp_path):
    path = tmp_path / "box"
    assert_rejected(path, b"", "it is empty")
    assert_rejected(path, b"P", "it is not an archive of trueup\nhint: name a file that trueup saved")
    assert_rejected(path, random.Random(0).randbytes(100_000), "it is not an archive of trueup")
    assert_rejected(path, forge({"a": b"x"}, comment=b""), "it is a zip file, but not one of trueup")
    assert_rejected(path, b"PK\x05\x06" + bytes(18), "it is a zip file, but not one of trueup")


def test_a_zip_without_our_index_is_rejected(tmp_path):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("a", b"x")
        archive.comment = b"0" * 64
    assert_rejected(tmp_path / "box", stream.getvalue(), "it is a zip file without the index.json of trueup")
    assert_rejected(
        tmp_path / "box", forge({}, b" " * (1 << 20) + b"{}"), "it is a zip file without the index.json of trueup"
    )


def test_a_truncated_file_is_rejected(box):
    intact = box.read_bytes()
    for length in range(len(intact)):
        assert_rejected(box, intact[:length], "is empty|incomplete|not an archive of trueup|not one of trueup")
    assert_rejected(box, intact[:-100], "box: it is incomplete\nhint: it was damaged")


def test_a_file_beyond_the_size_limit_is_rejected_unread(box):
    size = box.stat().st_size
    assert read(box, kind="toys", max_size=size) == MEMBERS
    assert_rejected(box, box.read_bytes(), f"it has {size:,} bytes; the maximum is {size - 1:,}", max_size=size - 1)


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_zip_bomb_is_rejected_without_unpacking(tmp_path, method):
    bomb = forge({"a": bytes(5_000_000)}, method=method)
    tracemalloc.start()
    assert_rejected(tmp_path / "box", bomb, "member 'index.json' is compressed")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 500_000


def test_a_compressed_or_encrypted_member_is_rejected(box):
    intact = box.read_bytes()
    name = b"zero"  # found last in the directory, 46 bytes after its entry begins
    assert_rejected(box, patched(intact, name, b"\x01", 8 - 46), "member 'zero' is encrypted")
    assert_rejected(box, patched(intact, name, b"\x08", 10 - 46), "member 'zero' is compressed")
    assert_rejected(box, patched(intact, name, b"\x08", 8 - 46), "its directory does not agree with member 'zero'")


def test_a_declared_size_takes_no_memory(box):
    intact = patched(box.read_bytes(), b"trees/left", struct.pack("<2L", 0xFFFFFFFF, 0xFFFFFFFF), 20 - 46)
    tracemalloc.start()
    assert_rejected(
        box, intact, "member 'trees/left' has 4,294,967,295 bytes according to the directory, more than the file"
    )
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 500_000


def test_overlapping_members_are_rejected(box):
    intact = box.read_bytes()
    offset = intact.index(b"trees/left") - 30
    assert_rejected(
        box, patched(intact, b"trees/right", struct.pack("<L", offset), 42 - 46), "does not agree with member 'trees/right'"
    )


def test_a_header_that_differs_from_the_directory_is_rejected(box):
    intact = box.read_bytes()
    assert_rejected(
        box, intact.replace(b"zero", b"hero", 2).replace(b"hero", b"zero", 1), "does not agree with member 'zero'"
    )


@pytest.mark.parametrize(
    ("at", "record"),
    [
        (4, struct.pack("<H", 1)),  # on another disk
        (6, struct.pack("<H", 1)),
        (8, struct.pack("<2H", 0, 0)),  # members
        (8, struct.pack("<2H", 4, 5)),
        (8, struct.pack("<2H", 4, 4)),
        (8, struct.pack("<2H", 6, 6)),
        (12, struct.pack("<L", 3)),  # length of the directory
        (12, struct.pack("<L", 0xFFFFFFFF)),
        (16, struct.pack("<L", 0xFFFFFFFF)),  # where it begins
    ],
)
def test_a_wrong_end_of_the_zip_is_rejected(box, at, record):
    assert_rejected(box, patched(box.read_bytes(), b"PK\x05\x06", record, at), "its directory is damaged")


@pytest.mark.parametrize(("at", "value"), [(8, 8), (30, 1), (32, 1), (34, 1)])
def test_flags_extras_comments_and_disks_of_a_member_are_rejected(box, at, value):
    changed = patched(box.read_bytes(), b"zero", struct.pack("<H", value), at - 46)
    assert_rejected(box, changed, "its directory does not agree with member 'zero'")


def test_space_between_the_members_and_the_directory_is_rejected(box):
    intact = box.read_bytes()
    start = intact.index(b"PK\x01\x02")
    moved = patched(intact, b"PK\x05\x06", struct.pack("<L", start + 3), 16)
    assert_rejected(box, moved[:start] + b"xyz" + moved[start:], "its directory is damaged")


def test_too_many_members_are_rejected(tmp_path):
    parts = {f"a{number}": b"" for number in range(storage.MAX_MEMBERS + 1)}
    assert_rejected(tmp_path / "box", forge(parts), "it has 4,097 members; the maximum is 4,096")


def test_duplicate_missing_and_extra_members_are_rejected(tmp_path):
    path = tmp_path / "box"
    assert_rejected(path, forge([("a", b"x"), ("a", b"x")]), "member 'a' appears twice")
    assert_rejected(path, forge([("index.json", b"x")], index_of({})), "member 'index.json' appears twice")
    assert_rejected(path, forge({"a": b"x"}, index_of({"a": b"x", "b": b"y"})), "member 'b' is missing")
    assert_rejected(path, forge({"a": b"x", "b": b"y"}, index_of({"a": b"x"})), "member 'b' is not in its index")


def test_a_member_of_another_size_or_content_is_rejected(tmp_path):
    path = tmp_path / "box"
    assert_rejected(
        path, forge({"a": b"xy"}, index_of({"a": b"x"})), "member 'a' has 2 bytes, and 1 according to its index"
    )
    assert_rejected(
        path, forge({"a": b"x"}, index_of({"a": b"y"})), "member 'a' does not have the checksum it was written with"
    )


def test_the_index_is_parsed_only_after_its_checksum_is_verified(tmp_path, monkeypatch):
    content = forge({"a": b"x"}, comment=b"0" * 64)
    monkeypatch.setattr(json, "loads", None)
    assert_rejected(tmp_path / "box", content, "its index does not have the checksum it was written with")


@pytest.mark.parametrize(
    "index",
    [
        b"",
        b"\xff",
        b"[" * 200_000,
        b'{"layout":' * 50_000,
        b'{"layout": ' + b"9" * 10_000 + b"}",
        b"NaN",
        b"null",
        b"[]",
        b"{}",
        json.dumps(index_of({"a": b"x"})).encode("utf-16"),
        json.dumps(index_of({"a": b"x"})).encode(),
        json.dumps(index_of({"a": b"x"}), sort_keys=True, indent=0).replace('"kind"', '"kind": "x", "kind"').encode(),
        *(index_of({"a": b"x"}, layout=layout) for layout in (0, -1, 1.0, "1", True, None)),
        *(index_of({"a": b"x"}, kind=kind) for kind in (None, 1, "", "To\nys", ["toys"])),
        *(index_of({"a": b"x"}, parts=parts) for parts in (None, [], "a", {"a": None}, {"a": []}, {"a": {}})),
        *(
            index_of({}, parts={"a": index_of({"a": b"x"})["parts"]["a"] | {"size": size}})
            for size in (True, 1.0, "1", None, -1, 10**30)
        ),
        *(index_of({}, parts={"a": {"size": 1, "sha256": digest}}) for digest in (None, "", "0" * 63, "F" * 64, "0" * 64)),
        index_of({"a": b"x"}, more=1),
        index_of({}, parts={"a": index_of({"a": b"x"})["parts"]["a"] | {"more": 1}}),
        index_of({"a": b"x", "../b": b"x"}),
        index_of({"a": b"x", "\ud800": b"x"}),
    ],
    ids=lambda index: repr(index)[:40],
)
def test_a_forged_index_is_rejected(tmp_path, index):
    assert_rejected(tmp_path / "box", forge({"a": b"x"}, index), r"its index\.json |member '.*' (has|is|does)")


def flip(rng, intact):
    changed = bytearray(intact)
    for _ in range(rng.randint(1, 3)):
        changed[rng.randrange(len(intact))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def cut(rng, intact):
    start, stop = sorted(rng.choices(range(len(intact) + 1), k=2))
    return rng.choice([intact[:start], intact[start:], intact[:start] + intact[stop:]])


def insert(rng, intact):
    at = rng.randrange(len(intact) + 1)
    return intact[:at] + rng.choice([rng.randbytes(rng.randint(1, 40)), intact[at : at + 50], intact]) + intact[at:]


def overwrite(rng, intact):
    at, number = rng.randrange(len(intact)), rng.choice([0, 1, 0x7FFFFFFF, 0xFFFFFFFF, len(intact)])
    return (intact[:at] + struct.pack("<L", number) + intact[at + 4 :])[: len(intact)]


def exchange(rng, intact):
    """Swap contents or names, with a matching index or that of the other names."""
    names, contents = list(MEMBERS), list(MEMBERS.values())
    rng.shuffle(rng.choice([names, contents]))
    return forge(list(zip(names, contents, strict=True)), index_of(MEMBERS))


def misname(rng, intact):
    old = rng.choice([b"zero", b"trees/left", b"index.json", b"manifest.json"])
    new = rng.choice([b"../", b"/", b"\\", b"\x00", b"Z", b"ze", b"trees/right"])
    return intact.replace(old, new.ljust(len(old), b"x")[: len(old)], rng.choice([1, 2, -1]))


def repeat(rng, intact):
    return forge([*MEMBERS.items(), rng.choice(list(MEMBERS.items()))], index_of(MEMBERS))


def foreign(rng, intact):
    bomb = forge({"a": bytes(10_000)}, method=zipfile.ZIP_DEFLATED)
    other = forge({"a": rng.randbytes(9)}, comment=rng.choice([b"", b"hello", b"0" * 64]))
    return rng.choice([bomb, other, rng.randbytes(rng.randrange(500)), b"", intact[-86:], b"PK\x05\x06" * 30])


@pytest.mark.parametrize("mutate", [flip, cut, insert, overwrite, exchange, misname, repeat, foreign])
def test_a_changed_file_is_rejected_or_gives_the_same_members(box, mutate):
    rng, intact, named = random.Random(mutate.__name__), box.read_bytes(), []
    for _ in range(250):
        put(box, mutate(rng, intact))
        try:
            assert read(box, kind="toys") == MEMBERS
        except FileError as error:
            named.append(error.message.startswith(f"cannot read {box}: "))
    assert all(named)
    assert len(named) > 50


def test_the_error_for_a_missing_file_names_the_path(tmp_path):
    with pytest.raises(FileError, match=r"cannot read .*box: there is no such file\nhint: check the path"):
        read(tmp_path / "box", kind="toys")
    for path in (f"{tmp_path}/a\x00b", "a" * 5000, f"{tmp_path}/\ud800"):
        with pytest.raises(FileError, match="cannot read "):
            read(path, kind="toys")
        with pytest.raises(FileError, match="cannot write "):
            write(path, MEMBERS, kind="toys")


def test_the_error_for_an_unreadable_file_names_the_permission(box, monkeypatch):
    # Root can read every file: make the system raise instead.
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(FileError, match="box: no permission\nhint: check the path and its permissions"):
        read(box, kind="toys")


def test_directories_and_devices_are_not_read(tmp_path):
    with pytest.raises(FileError, match="it is a directory\nhint: name a file"):
        read(tmp_path, kind="toys")
    with pytest.raises(FileError, match="it is not a file on disk\nhint: write its content to a file first"):
        read(os.devnull, kind="toys")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
def test_reading_a_pipe_does_not_wait(box, tmp_path, monkeypatch):
    pipe, regular = tmp_path / "pipe", box.stat()
    os.mkfifo(pipe)
    with pytest.raises(FileError, match="it is not a file on disk"):
        read(pipe, kind="toys")
    monkeypatch.setattr(Path, "stat", lambda _: regular)  # as if the pipe had just replaced a file
    with pytest.raises(FileError, match="it is not a file on disk"):
        read(pipe, kind="toys")


def test_a_file_that_shrinks_while_it_is_read_is_rejected(box, monkeypatch):
    parse = json.loads

    def shrink(text):
        os.truncate(box, 100)
        return parse(text)

    write(box, {"a": bytes(100_000)}, kind="toys")  # more than is buffered
    monkeypatch.setattr(json, "loads", shrink)
    assert_rejected(box, box.read_bytes(), "it became shorter while it was read")


def test_the_error_for_an_unwritable_path_suggests_what_to_do(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(FileError, match=r"there is no directory .*nowhere\nhint: make the directory first"):
        write(tmp_path / "nowhere" / "box", MEMBERS, kind="toys")
    with pytest.raises(FileError, match="there is no directory"):
        write(tmp_path / "file" / "box", MEMBERS, kind="toys")
    with pytest.raises(FileError, match=r"it is a directory\nhint: name a file, such as model\.trueup"):
        write(tmp_path, MEMBERS, kind="toys")


def test_the_error_for_an_unwritable_directory_names_the_permission(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(FileError, match=r"no permission to write in .*\nhint: choose another place"):
        write(tmp_path / "box", MEMBERS, kind="toys")


@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), RuntimeError("x"), KeyboardInterrupt(), MemoryError()]
)
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(box, monkeypatch, step, error):
    def fail(*_):
        raise error

    monkeypatch.setattr(os, step, fail)
    with pytest.raises(FileError if isinstance(error, OSError) else type(error)):
        write(box, {"new": b"x"}, kind="toys")
    assert read(box, kind="toys") == MEMBERS
    assert list(box.parent.iterdir()) == [box]


def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(box):
    def pieces():
        yield b"x" * 100_000
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        replace_file(box, pieces(), example="box")
    assert read(box, kind="toys") == MEMBERS
    assert list(box.parent.iterdir()) == [box]


def test_the_replacement_of_a_private_file_is_always_private(box):
    box.chmod(0o600)
    seen = []

    def pieces():
        seen.extend(stat.S_IMODE(path.stat().st_mode) for path in box.parent.iterdir())
        yield b"x"

    usual = os.umask(0)
    try:
        replace_file(box, pieces(), example="box")
    finally:
        os.umask(usual)
    assert [*seen, stat.S_IMODE(box.stat().st_mode)] == [0o600] * 4  # with the temporary file and its lock file


def test_a_file_has_the_permissions_of_the_old_one_or_of_the_umask(box):
    box.chmod(0o440)
    usual = os.umask(0o027)
    try:
        write(box, {}, kind="toys")
        write(box.parent / "new", {}, kind="toys")
    finally:
        os.umask(usual)
    assert [stat.S_IMODE((box.parent / name).stat().st_mode) for name in ("box", "new")] == [0o440, 0o640]


def test_a_link_keeps_pointing_to_its_file_and_a_loop_is_rejected(box, tmp_path):
    link, dangling, loop = tmp_path / "link", tmp_path / "dangling", tmp_path / "loop"
    link.symlink_to("box")
    dangling.symlink_to("new")
    loop.symlink_to("loop")
    write(link, {"a": b"new"}, kind="toys")
    write(dangling, {"a": b"new"}, kind="toys")
    assert link.is_symlink()
    assert dangling.is_symlink()
    assert read(box, kind="toys") == read(tmp_path / "new", kind="toys") == {"a": b"new"}
    with pytest.raises(FileError, match=r"cannot write .*loop: "):
        write(loop, MEMBERS, kind="toys")
    assert loop.is_symlink()


SAVER = """
import sys
from itertools import count
from trueup.storage import write
for version in count():
    mark = version.to_bytes(4, "big")
    write(sys.argv[1], {"a": mark * 50_000, "b": mark * (200_000 + version % 7)}, kind="toys")
"""


def test_a_process_killed_while_it_saves_leaves_a_complete_archive(tmp_path):
    path, rng, versions = tmp_path / "box", random.Random(0), set()
    for _ in range(8):
        path.unlink(missing_ok=True)
        with subprocess.Popen([sys.executable, "-c", SAVER, str(path)]) as saver:
            give_up = time.monotonic() + 60
            while not path.exists() and time.monotonic() < give_up:
                time.sleep(0.001)
            time.sleep(rng.uniform(0, 0.1))
            saver.kill()
        parts = read(path, kind="toys")
        mark = parts["a"][:4]
        version = int.from_bytes(mark, "big")
        assert parts == {"a": mark * 50_000, "b": mark * (200_000 + version % 7)}
        versions.add(version)
    assert len(versions) > 1  # it was killed in the middle of the loop, not at its start each time
