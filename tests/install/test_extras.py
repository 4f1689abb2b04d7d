"""A plain install has neither Spark nor Dask: everything but them works, and they say how to be had."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]

# As if these were not installed.
BLOCK = """
import sys

ABSENT = {"dask", "dask_expr", "distributed", "pyspark", "py4j", "pandas", "polars", "pyarrow"}


class Nowhere:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Nowhere())
"""

WORK = """
import numpy as np
import trueup as tu

random = np.random.default_rng(0)
p = random.uniform(0.1, 0.9, 400)
rows = {"p": p, "a": random.choice(["x", "y"], 400), "y": (random.random(400) < p).astype(int)}
audit = tu.audit(rows, outcome="y", prediction="p")
fix = tu.MCGrad("p", features=["a"], rounds=1, trees=5, stopping=None).fit(rows, rows["y"])
found = fix.predict(rows)
assert found.shape == (400,) and np.isfinite(found).all() and audit.overall.n == 400
assert not ABSENT & set(sys.modules)
print("all is well")
"""

ASK = """
from trueup.cluster.partitions import require_engine
from trueup.errors import MissingPackageError

for engine in ("spark", "dask"):
    try:
        require_engine(engine)
    except MissingPackageError as error:
        print(error)
"""

FIT = """
import trueup as tu
from trueup.errors import MissingPackageError

for engine in ("spark", "dask"):
    try:
        tu.MCGrad("p", engine=engine).fit({"p": [0.5, 0.5], "y": [0, 1]}, "y")
    except MissingPackageError as error:
        print(error)
"""


def _run(code):
    done = subprocess.run([sys.executable, "-c", BLOCK + code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_audit_fit_and_predict_need_no_extra():
    assert _run(WORK) == "all is well\n"


def test_an_engine_that_is_not_installed_says_which_extra_to_install():
    printed = _run(ASK + FIT)
    assert printed.count("'pyspark', which is not installed\nhint: pip install 'trueup[spark]'") == 2
    assert printed.count("'dask.dataframe', which is not installed\nhint: pip install 'trueup[dask]'") == 2


def test_a_plain_install_asks_for_neither_spark_nor_dask():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    for name in ("pyspark", "dask", "distributed", "pandas", "pyarrow"):
        assert not [one for one in project["dependencies"] if one.startswith(name)]
    assert [one.split(">")[0] for one in extras["spark"]] == ["pyspark", "pandas", "pyarrow"]
    assert [one.split(">")[0] for one in extras["dask"]] == ["dask[dataframe]", "distributed"]
