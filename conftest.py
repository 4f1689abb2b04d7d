"""Run every doctest in an empty directory of its own: pages may write files of the same name."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _own_directory(request, monkeypatch):
    if isinstance(request.node, pytest.DoctestItem):
        monkeypatch.chdir(request.getfixturevalue("tmp_path"))
