"""The reading paths of CONTRIBUTING.md list the files that a call runs through."""

from __future__ import annotations

import csv
import re
import sys
import threading
from pathlib import Path

import pytest

import trueup as tu
from trueup.cli import main
from trueup.kernels._jit import compiling_at_once

ROOT = Path(tu.__file__).parent
PAGE = Path(__file__).parents[1] / "CONTRIBUTING.md"
COLUMNS = ["region", "product", "age"]
ROLES = {"outcome": "outcome", "prediction": "prediction"}
# Named at the top of the section: definitions and helpers that explain themselves.
SUPPORT = {"__init__.py", "_forks.py", "_optional.py", "_temporary.py", "_validate.py", "storage.py", "data/table.py",
           "kernels/_jit.py", "kernels/_cache.py", "kernels/sorting.py", "kernels/threads.py",
           "cluster/communicator.py"}  # fmt: skip


def files_run_by(call):
    """Return the files of the package with a function that a call runs, once everything is imported and compiled."""
    with compiling_at_once():
        call()
    files = set()

    def record(frame, event, _):
        if event == "call":
            files.add(frame.f_code.co_filename)

    before = sys.getprofile()
    threading.setprofile(record)
    sys.setprofile(record)
    try:
        call()
    finally:
        sys.setprofile(before)
        threading.setprofile(before)
    return {Path(file).relative_to(ROOT).as_posix() for file in files if Path(file).is_relative_to(ROOT)}


@pytest.fixture(scope="module")
def calls(tmp_path_factory):
    """Return what each path starts from, by its name on the page."""
    folder = tmp_path_factory.mktemp("paths")
    loans = tu.simulate.lending(3_000, seed=0)
    with (folder / "loans.csv").open("w", newline="") as file:
        names = [*COLUMNS, *ROLES]
        csv.writer(file).writerows([names, *zip(*(loans[name] for name in names), strict=True)])
    audit = tu.audit(loans, **ROLES, by=COLUMNS)
    assert audit.summary.scores
    fix = tu.MCGrad("prediction", COLUMNS, rounds=2, trees=5)
    model = fix.fit(loans, loans["outcome"]).model_
    command = ["audit", str(folder / "loans.csv"), "--outcome", "outcome", "--prediction", "prediction"]
    return {
        "tu.audit": lambda: tu.audit(loans, **ROLES, by=COLUMNS),
        "MCGrad.fit": lambda: fix.fit(loans, loans["outcome"]),
        "model.predict": lambda: model.predict(loans),
        "trueup audit": lambda: main(command),
        "tu.report": lambda: tu.report(audit, folder / "page.html"),
    }


def listed_files(name):
    """Return the files of a path on the page."""
    section = re.search(rf"^\*\*`{re.escape(name)}`.*?(?=\n\*\*`|\n## )", PAGE.read_text(), re.M | re.S)
    return set(re.findall(r"^\d+\. `([\w/.]+)`", section[0], re.M))


@pytest.mark.parametrize("name", ["tu.audit", "MCGrad.fit", "model.predict", "trueup audit", "tu.report"])
def test_a_reading_path_lists_the_files_that_a_call_runs_through(name, calls, capsys):
    listed = listed_files(name) | (listed_files("tu.audit") if name == "trueup audit" else set())
    assert files_run_by(calls[name]) - SUPPORT == listed - SUPPORT
    capsys.readouterr()
