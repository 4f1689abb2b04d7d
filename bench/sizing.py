"""What do more rows and more columns cost? Time, processor time, memory and disk of audits and fits of files.

    python bench/sizing.py [--memory 4GB] [--scratch DIR]

Rows are generated as in bench/scale.py, with errors planted for the fits. Each run is a process of its own. A cost of a row
and of a column of it is fitted to the audits and to the fits, by least squares without negative costs, and held against the
runs, and against the 100 million rows of bench/scale.py. The figures go to bench/results/sizing.json; bench/evidence.py
makes docs/sizing.md of them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
from scipy.optimize import nnls

from common import RESULTS, save
from scale import COLUMNS, MILLION

NAMES = ["country", "device", "format", "hour", "age", "bid", "browser", "campaign"]
AUDITS = [(rows, columns) for rows in (2, 6) for columns in (2, 5, 8)]
FITS = [(rows, columns) for rows in (1, 2, 4) for columns in (3, 8)]
# On the scale of the logit: Brazil, television sets, and age within one format are off.
OUTCOME = """((hash(i * 41 + 9) % 1000000000) / 1e9 < 1 / (1 + exp(-ln(p / (1 - p)) - 0.6 * (country = 'BR')::INT
    + 0.5 * (device = 'tv')::INT - 0.01 * (age - 45) * (format = 'video')::INT)))::TINYINT AS y"""
RUN = """
import json, resource, sys, time
import trueup as tu
what, path, memory, spill, names = sys.argv[1:]
names = names.split(",")
rows = tu.scan(path, memory=memory, spill=spill)
start = time.perf_counter()
found = {}
if what == "audit":
    found["segments"] = tu.audit(rows, outcome="y", prediction="p", by=names, depth=2).tested
else:
    fix = tu.MCGrad("p", names).fit(rows, "y")
    found |= {"trees": sum(one.trees for one in fix.history_.rounds), "rounds": fix.history_.chosen}
used = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps(found | {"seconds": time.perf_counter() - start, "cpu": used.ru_utime + used.ru_stime,
                          "peak_bytes": used.ru_maxrss * 1024}))
"""


def make(path: Path, rows: int) -> None:
    """Write the rows, unless they are there."""
    if path.exists():
        return
    with duckdb.connect() as con:
        con.execute("SET memory_limit = '2GB'; SET preserve_insertion_order = false; SET enable_progress_bar = false")
        inner = f"SELECT i, {COLUMNS} FROM range({rows}) AS rows(i)"
        known = f"SELECT * REPLACE (least(greatest(p, 1e-6), 1 - 1e-6) AS p) FROM ({inner})"
        con.execute(f"COPY (SELECT * EXCLUDE (i), {OUTCOME} FROM ({known})) TO '{path}.part' (FORMAT parquet)")
    Path(f"{path}.part").replace(path)


def run(what: str, path: Path, memory: str, scratch: Path, names: list[str]) -> dict[str, Any]:
    """Do it in a process of its own."""
    words = [sys.executable, "-c", RUN, what, str(path), memory, str(scratch), ",".join(names)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def terms(one: dict[str, Any]) -> list[float]:
    """Say what the cost of a run is a sum of: of a start, of rows (in millions), and of the columns of these rows."""
    return [1.0, one["million_rows"], one["million_rows"] * one["columns"]]


def model(runs: list[dict[str, Any]], of: str) -> dict[str, Any]:
    """Fit the cost of each term; by shares of the runs themselves, so that small ones count as large ones do."""
    A = np.array([terms(one) for one in runs])
    b = np.array([one[of] for one in runs])
    cost, _ = nnls(A / b[:, None], np.ones(len(b)))
    return {"cost": cost.tolist(), "worst_off": float(np.abs(A @ cost / b - 1).max())}


def costs(found: dict[str, Any]) -> dict[str, Any]:
    """Give the models of audits and fits, and what they say of the largest audit of bench/scale.py."""
    given = {what: {of: model(found[what], of) for of in ("seconds", "cpu", "peak_bytes")} for what in ("audit", "fit")}
    large = json.loads((RESULTS / "scale.json").read_text())["audits"][-1]
    asked = {"million_rows": large["million_rows"], "columns": 8}
    predicted = float(np.dot(terms(asked), given["audit"]["seconds"]["cost"]))
    return given | {"foretold": {**asked, "seconds": predicted, "measured": large["seconds"]}}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--memory", default="4GB")
    parser.add_argument("--scratch", type=Path, default=Path(tempfile.gettempdir()) / "trueup-sizing")
    given = parser.parse_args()
    given.scratch.mkdir(exist_ok=True)
    make(given.scratch / "warm.parquet", 50_000)
    found: dict[str, Any] = {"memory": given.memory}
    for what, cases in (("audit", AUDITS), ("fit", FITS)):
        run(what, given.scratch / "warm.parquet", given.memory, given.scratch, NAMES)  # lets what is compiled be compiled
        runs = []
        for millions, columns in cases:
            path = given.scratch / f"{millions}M.parquet"
            make(path, millions * MILLION)
            one = run(what, path, given.memory, given.scratch, NAMES[:columns])
            runs.append({"million_rows": millions, "columns": columns, **one})
            print(
                f"{what} of {millions}M x {columns}: {one['seconds']:.1f} s, {one['peak_bytes'] / 1e9:.2f} GB", flush=True
            )
        found[what] = runs
    save("sizing", found)


if __name__ == "__main__":
    main()
