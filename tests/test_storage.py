"""An archive gives back exactly what was put in, or says what is wrong with it; writing never leaves half a file."""

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

PARTS = {"manifest.json": b'{"a": 1}', "trees/left": bytes(range(256)), "trees/right": b"\x00" * 64, "zero": b""}
PIECE = st.from_regex(r"[a-z0-9_]{1,6}([.-][a-z0-9_]{1,6}){0,2}", fullmatch=True)
NAMES = st.lists(PIECE, min_size=1, max_size=3).map("/".join).filter(lambda name: name != "index.json")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("archives")


@pytest.fixture
def box(tmp_path):
    """Give the path of an archive of PARTS."""
    save(tmp_path / "box", PARTS)
    return tmp_path / "box"


def index_of(held, /, **changes):
    entries = {name: {"size": len(part), "sha256": hashlib.sha256(part).hexdigest()} for name, part in held.items()}
    return {"kind": "toys", "layout": 1, "parts": entries} | changes


def forge(parts, index=None, *, comment=None, method=zipfile.ZIP_STORED):
    """Zip what one likes with the standard library, with the right checksum of the index unless told otherwise."""
    index = index_of(dict(parts)) if index is None else index
    raw = index if isinstance(index, bytes) else json.dumps(index, sort_keys=True, indent=0).encode()
    stream = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of names that are there twice
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


def refused(path, content, match, **options):
    put(path, content)
    with pytest.raises(FileError, match=match) as caught:
        read(path, **{"kind": "toys"} | options)
    assert caught.value.message.startswith(f"cannot read {path}: ")
    assert caught.value.hint


def patched(content, where, record, at):
    """Put a record in the file, so many bytes after the place of a text."""
    start = content.rindex(where) + at
    return content[:start] + record + content[start + len(record) :]


@given(st.dictionaries(NAMES, st.binary(max_size=300), max_size=6))
def test_what_is_written_is_read(folder, parts):
    save(folder / "box", parts)
    found = read(folder / "box", kind="toys")
    assert found == parts
    assert list(found) == sorted(parts)


@given(st.dictionaries(NAMES, st.binary(max_size=30), max_size=6), st.randoms(use_true_random=False))
def test_the_order_of_the_parts_makes_no_difference(folder, parts, shuffler):
    names = list(parts)
    shuffler.shuffle(names)
    save(folder / "one", parts)
    save(folder / "two", {name: parts[name] for name in names})
    assert (folder / "one").read_bytes() == (folder / "two").read_bytes()


def test_the_same_parts_make_the_same_bytes_everywhere(box):
    # Changes only with the layout: then the number of the layout must change with it.
    assert (
        hashlib.sha256(box.read_bytes()).hexdigest() == "536337c61d34b00a61914c1df702cf465d99e8927b9202f3995492e19177462d"
    )


def test_the_file_is_the_one_that_zipfile_makes(box):
    with zipfile.ZipFile(box) as archive:
        assert archive.testzip() is None
        assert archive.namelist() == ["index.json", *sorted(PARTS)]
        assert {name: archive.read(name) for name in PARTS} == PARTS
        for info in archive.infolist():
            assert info.date_time == (1980, 1, 1, 0, 0, 0)
            assert info.compress_type == zipfile.ZIP_STORED
            assert (info.create_system, info.external_attr >> 16) == (3, 0o100644)
        assert archive.comment.decode() == hashlib.sha256(archive.read("index.json")).hexdigest()
        assert json.loads(archive.read("index.json")) == index_of(PARTS)


def test_an_archive_zipped_by_another_tool_is_read(tmp_path):
    (tmp_path / "box").write_bytes(forge(PARTS))
    assert read(tmp_path / "box", kind="toys") == PARTS


def test_bytes_before_and_after_a_zip_change_nothing(box):
    box.write_bytes(b"#!/bin/sh\n" + box.read_bytes() + b"\r\n")
    assert read(box, kind="toys") == PARTS


def test_as_many_parts_as_are_allowed_with_the_longest_names_fit(tmp_path):
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
def test_a_bad_name_is_not_written(tmp_path, name):
    with pytest.raises(ArgumentError, match="a member of an archive cannot be named"):
        write(tmp_path / "box", {name: b""}, kind="toys")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["/etc/passwd", "../a", "a/../b", "a\\b", "A", "é", "a" * 101, "a/", "", "a\nb"])
def test_a_bad_name_is_not_read(tmp_path, name):
    refused(
        tmp_path / "box", forge({name: b"x"}), "it has a member with a name that is not allowed|its directory is damaged"
    )


def test_what_is_not_bytes_and_a_bad_kind_are_not_written(tmp_path):
    with pytest.raises(ArgumentError, match="member 'a' of an archive must be bytes; got str"):
        write(tmp_path / "box", {"a": "text"}, kind="toys")
    for kind in ("", "Toys", "a\nb", 3):
        with pytest.raises(ArgumentError, match="the kind of an archive must be a lower-case word; got"):
            write(tmp_path / "box", {}, kind=kind)


def test_too_much_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "MAX_FILE_SIZE", 10_000)
    with pytest.raises(FileError, match="box: it would have 11,024 bytes\nhint: the maximum is 10,000"):
        write(tmp_path / "box", {"a": b"x" * 10_000}, kind="toys")
    monkeypatch.setattr(storage, "MAX_MEMBERS", 2)
    with pytest.raises(FileError, match="box: it would have 3 members\nhint: the maximum is 2"):
        write(tmp_path / "box", dict.fromkeys("abc", b""), kind="toys")


def test_an_archive_of_another_kind_is_refused(box):
    refused(
        box,
        box.read_bytes(),
        "this is an archive of toys, not of models\nhint: name a file with models",
        kind="models",
    )


def test_a_later_layout_is_refused(tmp_path):
    later = {"layout": 2, "kind": ["new"], "more": None}
    refused(
        tmp_path / "box", forge({}, later), "written by a later version of trueup; this one reads layout 1\nhint: upgrade"
    )


def test_what_is_no_archive_is_refused(tmp_path):
    path = tmp_path / "box"
    refused(path, b"", "it is empty")
    refused(path, b"P", "it is not an archive of trueup\nhint: name a file that trueup saved")
    refused(path, random.Random(0).randbytes(100_000), "it is not an archive of trueup")
    refused(path, forge({"a": b"x"}, comment=b""), "it is a zip file, but not one of trueup")
    refused(path, b"PK\x05\x06" + bytes(18), "it is a zip file, but not one of trueup")


def test_a_zip_without_our_index_is_refused(tmp_path):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("a", b"x")
        archive.comment = b"0" * 64
    refused(tmp_path / "box", stream.getvalue(), "it is a zip file without the index.json of trueup")
    refused(tmp_path / "box", forge({}, b" " * (1 << 20) + b"{}"), "it is a zip file without the index.json of trueup")


def test_a_file_cut_anywhere_is_refused(box):
    whole = box.read_bytes()
    for length in range(len(whole)):
        refused(box, whole[:length], "is empty|incomplete|not an archive of trueup|not one of trueup")
    refused(box, whole[:-100], "box: it is incomplete\nhint: it was damaged")


def test_a_larger_file_than_allowed_is_refused_unread(box):
    size = box.stat().st_size
    assert read(box, kind="toys", max_size=size) == PARTS
    refused(box, box.read_bytes(), f"it has {size:,} bytes; the maximum is {size - 1:,}", max_size=size - 1)


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_zip_bomb_is_refused_without_unpacking(tmp_path, method):
    bomb = forge({"a": bytes(5_000_000)}, method=method)
    tracemalloc.start()
    refused(tmp_path / "box", bomb, "member 'index.json' is compressed")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 500_000


def test_a_compressed_or_encrypted_part_is_refused(box):
    whole = box.read_bytes()
    name = b"zero"  # found last in the directory, 46 bytes after its entry begins
    refused(box, patched(whole, name, b"\x01", 8 - 46), "member 'zero' is encrypted")
    refused(box, patched(whole, name, b"\x08", 10 - 46), "member 'zero' is compressed")
    refused(box, patched(whole, name, b"\x08", 8 - 46), "its directory does not agree with member 'zero'")


def test_a_declared_size_takes_no_memory(box):
    whole = patched(box.read_bytes(), b"trees/left", struct.pack("<2L", 0xFFFFFFFF, 0xFFFFFFFF), 20 - 46)
    tracemalloc.start()
    refused(box, whole, "member 'trees/left' has 4,294,967,295 bytes according to the directory, more than the file")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 500_000


def test_parts_that_overlap_are_refused(box):
    whole = box.read_bytes()
    offset = whole.index(b"trees/left") - 30
    refused(
        box, patched(whole, b"trees/right", struct.pack("<L", offset), 42 - 46), "does not agree with member 'trees/right'"
    )


def test_a_header_that_differs_from_the_directory_is_refused(box):
    whole = box.read_bytes()
    refused(box, whole.replace(b"zero", b"hero", 2).replace(b"hero", b"zero", 1), "does not agree with member 'zero'")


@pytest.mark.parametrize(
    ("at", "record"),
    [
        (4, struct.pack("<H", 1)),  # on another disk
        (6, struct.pack("<H", 1)),
        (8, struct.pack("<2H", 0, 0)),  # parts
        (8, struct.pack("<2H", 4, 5)),
        (8, struct.pack("<2H", 4, 4)),
        (8, struct.pack("<2H", 6, 6)),
        (12, struct.pack("<L", 3)),  # length of the directory
        (12, struct.pack("<L", 0xFFFFFFFF)),
        (16, struct.pack("<L", 0xFFFFFFFF)),  # where it begins
    ],
)
def test_a_wrong_end_of_the_zip_is_refused(box, at, record):
    refused(box, patched(box.read_bytes(), b"PK\x05\x06", record, at), "its directory is damaged")


@pytest.mark.parametrize(("at", "value"), [(8, 8), (30, 1), (32, 1), (34, 1)])
def test_flags_extras_comments_and_disks_of_a_part_are_refused(box, at, value):
    changed = patched(box.read_bytes(), b"zero", struct.pack("<H", value), at - 46)
    refused(box, changed, "its directory does not agree with member 'zero'")


def test_space_between_the_parts_and_the_directory_is_refused(box):
    whole = box.read_bytes()
    start = whole.index(b"PK\x01\x02")
    moved = patched(whole, b"PK\x05\x06", struct.pack("<L", start + 3), 16)
    refused(box, moved[:start] + b"xyz" + moved[start:], "its directory is damaged")


def test_too_many_parts_are_refused(tmp_path):
    parts = {f"a{number}": b"" for number in range(storage.MAX_MEMBERS + 1)}
    refused(tmp_path / "box", forge(parts), "it has 4,097 members; the maximum is 4,096")


def test_a_part_that_is_there_twice_missing_or_too_much_is_refused(tmp_path):
    path = tmp_path / "box"
    refused(path, forge([("a", b"x"), ("a", b"x")]), "member 'a' appears twice")
    refused(path, forge([("index.json", b"x")], index_of({})), "member 'index.json' appears twice")
    refused(path, forge({"a": b"x"}, index_of({"a": b"x", "b": b"y"})), "member 'b' is missing")
    refused(path, forge({"a": b"x", "b": b"y"}, index_of({"a": b"x"})), "member 'b' is not in its index")


def test_a_part_of_another_size_or_content_is_refused(tmp_path):
    path = tmp_path / "box"
    refused(path, forge({"a": b"xy"}, index_of({"a": b"x"})), "member 'a' has 2 bytes, and 1 according to its index")
    refused(path, forge({"a": b"x"}, index_of({"a": b"y"})), "member 'a' does not have the checksum it was written with")


def test_nothing_of_the_index_is_parsed_before_its_checksum_is_right(tmp_path, monkeypatch):
    content = forge({"a": b"x"}, comment=b"0" * 64)
    monkeypatch.setattr(json, "loads", None)
    refused(tmp_path / "box", content, "its index does not have the checksum it was written with")


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
def test_a_forged_index_is_refused(tmp_path, index):
    refused(tmp_path / "box", forge({"a": b"x"}, index), r"its index\.json |member '.*' (has|is|does)")


def flip(chance, whole):
    changed = bytearray(whole)
    for _ in range(chance.randint(1, 3)):
        changed[chance.randrange(len(whole))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def cut(chance, whole):
    start, stop = sorted(chance.choices(range(len(whole) + 1), k=2))
    return chance.choice([whole[:start], whole[start:], whole[:start] + whole[stop:]])


def insert(chance, whole):
    at = chance.randrange(len(whole) + 1)
    return whole[:at] + chance.choice([chance.randbytes(chance.randint(1, 40)), whole[at : at + 50], whole]) + whole[at:]


def overwrite(chance, whole):
    at, number = chance.randrange(len(whole)), chance.choice([0, 1, 0x7FFFFFFF, 0xFFFFFFFF, len(whole)])
    return (whole[:at] + struct.pack("<L", number) + whole[at + 4 :])[: len(whole)]


def exchange(chance, whole):
    """Swap contents or names, with an index that is right, or one of the other names."""
    names, contents = list(PARTS), list(PARTS.values())
    chance.shuffle(chance.choice([names, contents]))
    return forge(list(zip(names, contents, strict=True)), index_of(PARTS))


def misname(chance, whole):
    old = chance.choice([b"zero", b"trees/left", b"index.json", b"manifest.json"])
    new = chance.choice([b"../", b"/", b"\\", b"\x00", b"Z", b"ze", b"trees/right"])
    return whole.replace(old, new.ljust(len(old), b"x")[: len(old)], chance.choice([1, 2, -1]))


def repeat(chance, whole):
    return forge([*PARTS.items(), chance.choice(list(PARTS.items()))], index_of(PARTS))


def foreign(chance, whole):
    bomb = forge({"a": bytes(10_000)}, method=zipfile.ZIP_DEFLATED)
    other = forge({"a": chance.randbytes(9)}, comment=chance.choice([b"", b"hello", b"0" * 64]))
    return chance.choice([bomb, other, chance.randbytes(chance.randrange(500)), b"", whole[-86:], b"PK\x05\x06" * 30])


@pytest.mark.parametrize("mutate", [flip, cut, insert, overwrite, exchange, misname, repeat, foreign])
def test_a_changed_file_is_refused_or_gives_the_same_parts(box, mutate):
    chance, whole, named = random.Random(mutate.__name__), box.read_bytes(), []
    for _ in range(250):
        put(box, mutate(chance, whole))
        try:
            assert read(box, kind="toys") == PARTS
        except FileError as error:
            named.append(error.message.startswith(f"cannot read {box}: "))
    assert all(named)
    assert len(named) > 50


def test_a_missing_file_and_a_bad_path_are_told(tmp_path):
    with pytest.raises(FileError, match=r"cannot read .*box: there is no such file\nhint: check the path"):
        read(tmp_path / "box", kind="toys")
    for path in (f"{tmp_path}/a\x00b", "a" * 5000, f"{tmp_path}/\ud800"):
        with pytest.raises(FileError, match="cannot read "):
            read(path, kind="toys")
        with pytest.raises(FileError, match="cannot write "):
            write(path, PARTS, kind="toys")


def test_a_file_that_may_not_be_read_is_told(box, monkeypatch):
    # As root every file can be read: let the system refuse instead.
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
def test_a_pipe_is_never_waited_for(box, tmp_path, monkeypatch):
    pipe, regular = tmp_path / "pipe", box.stat()
    os.mkfifo(pipe)
    with pytest.raises(FileError, match="it is not a file on disk"):
        read(pipe, kind="toys")
    monkeypatch.setattr(Path, "stat", lambda _: regular)  # as if the pipe had taken the place of a file just now
    with pytest.raises(FileError, match="it is not a file on disk"):
        read(pipe, kind="toys")


def test_a_file_that_shrinks_while_it_is_read_is_refused(box, monkeypatch):
    parse = json.loads

    def shrink(text):
        os.truncate(box, 100)
        return parse(text)

    write(box, {"a": bytes(100_000)}, kind="toys")  # more than is buffered
    monkeypatch.setattr(json, "loads", shrink)
    refused(box, box.read_bytes(), "it became shorter while it was read")


def test_no_place_to_write_is_told(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(FileError, match=r"there is no directory .*nowhere\nhint: make the directory first"):
        write(tmp_path / "nowhere" / "box", PARTS, kind="toys")
    with pytest.raises(FileError, match="there is no directory"):
        write(tmp_path / "file" / "box", PARTS, kind="toys")
    with pytest.raises(FileError, match=r"it is a directory\nhint: name a file, such as model\.trueup"):
        write(tmp_path, PARTS, kind="toys")


def test_a_directory_that_may_not_be_written_to_is_told(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(FileError, match=r"no permission to write in .*\nhint: choose another place"):
        write(tmp_path / "box", PARTS, kind="toys")


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
    assert read(box, kind="toys") == PARTS
    assert list(box.parent.iterdir()) == [box]


def test_an_interrupt_between_pieces_leaves_the_old_file_and_nothing_else(box):
    def pieces():
        yield b"x" * 100_000
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        replace_file(box, pieces(), example="box")
    assert read(box, kind="toys") == PARTS
    assert list(box.parent.iterdir()) == [box]


def test_what_replaces_a_private_file_is_private_while_it_is_written(box):
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
    assert [*seen, stat.S_IMODE(box.stat().st_mode)] == [0o600] * 3


def test_a_file_has_the_rights_of_the_old_one_or_those_of_the_umask(box):
    box.chmod(0o440)
    usual = os.umask(0o027)
    try:
        write(box, {}, kind="toys")
        write(box.parent / "new", {}, kind="toys")
    finally:
        os.umask(usual)
    assert [stat.S_IMODE((box.parent / name).stat().st_mode) for name in ("box", "new")] == [0o440, 0o640]


def test_a_link_keeps_pointing_to_its_file_and_a_loop_is_told(box, tmp_path):
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
        write(loop, PARTS, kind="toys")
    assert loop.is_symlink()


SAVER = """
import sys
from itertools import count
from trueup.storage import write
for version in count():
    mark = version.to_bytes(4, "big")
    write(sys.argv[1], {"a": mark * 50_000, "b": mark * (200_000 + version % 7)}, kind="toys")
"""


def test_a_process_killed_while_it_saves_leaves_a_whole_archive(tmp_path):
    path, chance, versions = tmp_path / "box", random.Random(0), set()
    for _ in range(8):
        path.unlink(missing_ok=True)
        with subprocess.Popen([sys.executable, "-c", SAVER, str(path)]) as saver:
            give_up = time.monotonic() + 60
            while not path.exists() and time.monotonic() < give_up:
                time.sleep(0.001)
            time.sleep(chance.uniform(0, 0.1))
            saver.kill()
        parts = read(path, kind="toys")
        mark = parts["a"][:4]
        version = int.from_bytes(mark, "big")
        assert parts == {"a": mark * 50_000, "b": mark * (200_000 + version % 7)}
        versions.add(version)
    assert len(versions) > 1  # it was killed in the middle of the loop, not at its start each time
