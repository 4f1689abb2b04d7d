"""Run every doctest in a directory of its own, close figures, repeat random experiments a few times or often."""

from __future__ import annotations

import os
import sys

import pytest

os.environ.setdefault("MPLBACKEND", "Agg")


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")


def pytest_addoption(parser):
    """Add the option of `make slow`."""
    parser.addoption("--full", action="store_true", help="repeat random experiments as often as in `make slow`")


@pytest.fixture(autouse=True)
def _own_directory(request, monkeypatch):
    """Change to an empty directory: pages may write files of the same name."""
    if isinstance(request.node, pytest.DoctestItem):
        monkeypatch.chdir(request.getfixturevalue("tmp_path"))


@pytest.fixture
def repetitions(request):
    """Return the number of repetitions of a test marked ``repeated(few, all)``."""
    few, full = request.node.get_closest_marker("repeated").args
    return full if request.config.getoption("full") else few
