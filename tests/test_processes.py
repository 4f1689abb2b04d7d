"""Fits, scores and audits in processes that are forked or started after the parent has fitted equal those of the parent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.process_work import FORKED, WAYS

import trueup as tu

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
COUNTS = {"fork": FORKED, "spawn": 1, "forkserver": 1, "loky": 2, "preload": FORKED}


@pytest.fixture(scope="module")
def computed(tmp_path_factory):
    """Return what the parent and its processes compute, by the way they are started."""
    path = tmp_path_factory.mktemp("processes") / "rows.parquet"
    data = tu.simulate.lending(3_000, seed=1)
    pq.write_table(pa.table({name: data[name] for name in ("outcome", "prediction", "region", "age")}), path)
    script = Path(__file__).parent / "process_work.py"
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, str(script), str(path), *WAYS], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("way", WAYS)
def test_processes_compute_what_the_parent_computes(computed, way):
    assert computed[way] == computed["parent"] * COUNTS[way]


def test_lightgbm_has_one_thread_only_in_processes_forked_after_it_was_imported():
    code = """
import os, sys
def forked(work):
    if (child := os.fork()) == 0:
        work()
        os._exit(0)
    os.waitpid(child, 0)
def show():
    from trueup.learners.lightgbm import usable_threads
    print(usable_threads(4), flush=True)
forked(show)             # imported in the child alone
show()
forked(show)             # imported in the parent
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["4", "4", "1"]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs the process flags of Linux")
def test_a_process_that_imports_trueup_after_a_fork_notices_it():
    code = """
import lightgbm, os
if os.fork() == 0:
    from trueup._forks import usable_threads
    print(usable_threads(4), flush=True)
    os._exit(0)
os.wait()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1"]
