"""Golden files: models written once, with rows and the scores they had then."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np

import trueup as tu
from trueup.modelfile import FORMAT

__all__ = ["heavy_packages", "names", "read", "write"]

USER = """
import sys, json, numpy as np, trueup as tu
for path in sys.argv[1:]:
    rows = json.loads(open(path[:-7] + ".json").read())["rows"]
    if "day" in rows:
        rows["day"] = np.array(rows["day"], "datetime64[D]")
    model = tu.load(path)
    row = {name: values[0] for name, values in rows.items()}
    model.predict(rows), model.predict_one(row), repr(model.explain(row)), repr(model.explain()), repr(model)
heavy = {"lightgbm", "sklearn", "pandas", "polars", "pyarrow", "duckdb"}
print(sorted(heavy & {name.split(".")[0] for name in sys.modules}))
"""


SINCE = {
    "additive": 2, "multiplicative": 2, "logistic": 2, "prior": 2, "matrix": 2, "grouped-logistic": 2, "kept": 2,
    "gaussian": 2, "matrix-mixed": 2,
}  # fmt: skip


def names(fits):
    """Return the names of the files of these fits: one for each format version since their method exists."""
    return {f"{name}-{version}" for name in fits for version in range(SINCE.get(name, 1), FORMAT + 1)}


def read(path):
    """Read the rows of a golden file, and the scores they had."""
    golden = json.loads(path.with_suffix(".json").read_text())
    golden["rows"]["day"] = np.array(golden["rows"]["day"], "datetime64[D]")
    return golden


def heavy_packages():
    """Load and use all golden files in a fresh process; return the heavy packages that it imported."""
    files = [str(path) for path in sorted(Path(__file__).with_name("golden").rglob("*.trueup"))]
    done = subprocess.run([sys.executable, "-c", USER, *files], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def write(directory, name, fix, shown, **more):
    """Write a golden file of the present format: once per format, by hand."""
    directory.mkdir(exist_ok=True)
    tu.save(fix, directory / f"{name}-{FORMAT}.trueup")
    plain = {key: [None if x != x else x for x in column.tolist()] for key, column in shown.items()}
    plain["day"] = [str(day) for day in shown["day"]]
    content = {"rows": plain, "expected": fix.predict(shown).tolist(), **more}
    (directory / f"{name}-{FORMAT}.json").write_text(json.dumps(content) + "\n")
