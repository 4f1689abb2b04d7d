"""Golden files: models written once, with rows and the scores they had then."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np

import trueup as tu
from trueup.modelfile import FORMAT

__all__ = ["heavy_packages", "names", "told", "write"]

USER = """
import sys, json, numpy as np, trueup as tu
for path in sys.argv[1:]:
    told = json.loads(open(path[:-7] + ".json").read())
    told["rows"]["day"] = np.array(told["rows"]["day"], "datetime64[D]")
    model = tu.load(path)
    model.predict(told["rows"]), model.explain({name: values[0] for name, values in told["rows"].items()}), repr(model)
print([name for name in ("sklearn", "lightgbm") if name in sys.modules])
"""


def names(fits):
    """What the files of these fits are called: one for each format there was."""
    return {f"{name}-{version}" for name in fits for version in range(1, FORMAT + 1)}


def told(path):
    """Read the rows of a file, and the scores they had."""
    found = json.loads(path.with_suffix(".json").read_text())
    found["rows"]["day"] = np.array(found["rows"]["day"], "datetime64[D]")
    return found


def heavy_packages(folder):
    """Load and use all files of a folder in a fresh process; list the heavy packages it took."""
    files = [str(path) for path in sorted(folder.glob("*.trueup"))]
    done = subprocess.run([sys.executable, "-c", USER, *files], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def write(folder, name, fix, shown, **more):
    """Write a golden file of the present format: once for each, by hand, and never again."""
    folder.mkdir(exist_ok=True)
    tu.save(fix, folder / f"{name}-{FORMAT}.trueup")
    plain = {key: [None if x != x else x for x in column.tolist()] for key, column in shown.items()}
    plain["day"] = [str(day) for day in shown["day"]]
    content = {"rows": plain, "expected": fix.predict(shown).tolist(), **more}
    (folder / f"{name}-{FORMAT}.json").write_text(json.dumps(content) + "\n")
