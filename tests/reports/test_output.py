"""A file is written whole or not at all, and errors name what is wrong with a path."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

import trueup as tu
from trueup.errors import FileError
from trueup.storage import write_text


@pytest.fixture(scope="module")
def found():
    return tu.audit(tu.simulate.lending(1000), outcome="outcome", prediction="prediction", by=["region"])


def test_a_failed_write_leaves_the_old_file_and_nothing_else(found, tmp_path, monkeypatch):
    path = tmp_path / "audit.html"
    path.write_text("old")

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(FileError, match="No space left on device"):
        tu.report(found, path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "page.html"
    path.write_text("old")

    def parts():
        yield "new"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_text(path, parts())
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_missing_directory_is_named(found, tmp_path):
    with pytest.raises(FileError, match=r"there is no directory .*nowhere\nhint: make the directory first"):
        tu.report(found, tmp_path / "nowhere" / "audit.html")


def test_a_path_through_a_file_is_refused(found, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="there is no directory"):
        tu.report(found, tmp_path / "file" / "audit.html")


def test_a_directory_is_refused_as_a_file(found, tmp_path):
    with pytest.raises(FileError, match="it is a directory\nhint: name a file"):
        tu.report(found, tmp_path)


def test_a_path_with_a_nul_is_refused(found, tmp_path):
    with pytest.raises(FileError, match="cannot write"):
        tu.report(found, f"{tmp_path}/a\x00b.html")


def test_no_permission_is_told_with_a_hint(tmp_path, monkeypatch):
    # As root every directory can be written to: let the system refuse instead.
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.open", refuse)
    with pytest.raises(FileError, match=r"no permission to write in .*\nhint: choose another place"):
        write_text(tmp_path / "page.html", ["x"])


def test_a_replaced_file_keeps_its_rights_and_a_new_one_has_the_usual(tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_text("x")
    old.chmod(0o640)
    usual = os.umask(0o022)
    try:
        write_text(old, ["y"])
        write_text(new, ["y"])
    finally:
        os.umask(usual)
    assert stat.S_IMODE(old.stat().st_mode) == 0o640
    assert stat.S_IMODE(new.stat().st_mode) == 0o644


def test_a_link_keeps_pointing_to_its_file(tmp_path):
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    write_text(link, ["new"])
    assert link.is_symlink()
    assert target.read_text() == "new"


def test_a_device_is_written_to_and_stays_a_device():
    write_text("/dev/null", ["x"])
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)
