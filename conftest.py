"""Run doctests in directories of their own, compare pictures, close figures, repeat random experiments."""

from __future__ import annotations

import os
import sys
from pathlib import Path

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


@pytest.fixture(autouse=True)
def _pictures_are_current(request, _close_figures, _own_directory):
    """Compare the pictures of a page with what its code has drawn and written."""
    yield
    page = request.node.path
    if isinstance(request.node, pytest.DoctestItem) and page.suffix == ".md":
        from pictures import outdated

        plt = sys.modules.get("matplotlib.pyplot")
        figures = [plt.figure(number) for number in plt.get_fignums()] if plt else []
        wrong = outdated(page, Path.cwd(), figures)
        assert not wrong, f"{', '.join(wrong)}: not what {page.name} draws; make them again: python bench/screens.py"


@pytest.fixture
def repetitions(request):
    """Return the number of repetitions of a test marked ``repeated(few, all)``."""
    few, full = request.node.get_closest_marker("repeated").args
    return full if request.config.getoption("full") else few
