"""Are exports exact on millions of rows, and how fast are they?

    python bench/exports.py [--rows 10000000] [--targets c,onnx,sql,postgres,spark] [--cases simulated,adult]

Two default MCGrad fits: 12 simulated features, and adult. Rows have every cut and the floats beside it, missing, unseen and
extreme values, and random ones; scores and sums of tables and trees are compared with those of the model, chunk by chunk.
Speed: rows per second of a batch, and microseconds of one row. PostgreSQL, Java (for Spark), gcc and onnxruntime are
needed for their targets.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import trueup as tu
from common import HERE, check, save
from trueup.exports import c
from trueup.exports.certificate import check_rows, exact_values
from trueup.exports.lower import lower

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from trueup.calibrators.model import Model
    from trueup.exports.program import Program

    Runner = Callable[[Mapping[str, np.ndarray]], np.ndarray]

DATA = Path(os.environ.get("TRUEUP_DATA", HERE.parent.parent / "shared" / "data"))
CHUNK = 500_000
TIMER = """\
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include "model.h"
static double next_number(void) {{ double x; if (fread(&x, sizeof x, 1, stdin) != 1) exit(1); return x; }}
int main(void) {{
  static trueup_row rows[{rows}];
  for (int i = 0; i < {rows}; i++) {{
    {fields}
  }}
  double best = 1e9, total = 0;
  for (int turn = 0; turn < {turns}; turn++) {{
    struct timespec a, b;
    timespec_get(&a, TIME_UTC);
    for (int i = 0; i < {rows}; i++) total += trueup_predict(rows + i);
    timespec_get(&b, TIME_UTC);
    const double taken = (double)(b.tv_sec - a.tv_sec) + 1e-9 * (double)(b.tv_nsec - a.tv_nsec);
    if (taken < best) best = taken;
  }}
  printf("%.17g %.17g\\n", best / {rows}, total);
  return 0;
}}
"""


def simulated() -> Model:
    """Fit the default MCGrad on 100,000 rows with six categories and six numbers."""
    rng, rows = np.random.default_rng(0), 100_000
    data: dict[str, Any] = {f"c{j}": rng.choice([f"level {k}" for k in range(4 + 3 * j)], rows) for j in range(6)}
    data |= {f"x{j}": np.where(rng.random(rows) < 0.02, np.nan, rng.normal(0, 1, rows)) for j in range(6)}
    p = rng.beta(1, 6, rows)
    shift = 0.7 * (data["c1"] == "level 2") + 0.5 * np.nan_to_num(data["x0"]) * (data["c2"] == "level 1")
    shift -= 0.6 * (np.nan_to_num(data["x3"]) > 1)
    y = rng.random(rows) < 1 / (1 + np.exp(-np.log(p / (1 - p)) - shift))
    data["p"] = p
    return tu.MCGrad("p", [name for name in data if name != "p"]).fit(data, y.astype(float)).model_


def adult() -> Model:
    """Fit the default MCGrad on the scores of a logistic regression on half of adult."""
    import pandas as pd
    from sklearn.compose import make_column_transformer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    frame = pd.read_parquet(DATA / "adult.parquet")
    y = frame["income_over_50k"].to_numpy(float)
    X = frame.drop(columns=["income_over_50k", "split", "fnlwgt"])
    names = [name for name in X.columns if not pd.api.types.is_numeric_dtype(X[name])]
    X[names] = X[names].astype(object).where(X[names].notna(), None)
    numbers = [name for name in X.columns if name not in names]
    base = make_pipeline(
        make_column_transformer((OneHotEncoder(handle_unknown="ignore", min_frequency=20), names), (StandardScaler(), numbers)),
        LogisticRegression(max_iter=500),
    )
    half = np.random.default_rng(0).random(len(X)) < 0.5
    base.fit(X[half], y[half])
    rest = X[~half].assign(p=base.predict_proba(X[~half])[:, 1])
    return tu.MCGrad("p", list(X.columns)).fit(rest, y[~half]).model_


CASES = {"simulated": simulated, "adult": adult}


def chunks(program: Program, rows: int) -> Iterator[dict[str, np.ndarray]]:
    """Yield rows in chunks: special values in new combinations in each."""
    for number, start in enumerate(range(0, rows, CHUNK)):
        yield check_rows(program, min(CHUNK, rows - start), seed=number)


def parity(model: Model, program: Program, run: Runner, rows: int) -> dict[str, Any]:
    """Compare the scores and sums of a target with the model; return the largest differences."""
    largest = sums = 0.0
    compared, width = 0, program.result.width
    for columns in chunks(program, rows):
        found = run(columns)
        expected = model.predict(columns, on_error="nan").reshape(len(found), -1)
        valid = ~np.isnan(expected).any(axis=1)
        assert (np.isnan(found[:, :width]) == np.isnan(expected)).all()
        exact = exact_values(program, columns)
        largest = max(largest, float(np.abs(found[valid, :width] - expected[valid]).max()))
        sums = max(sums, float(np.abs(found[valid, width:] - exact[valid]).max(initial=0.0)))
        compared += len(found)
    return {"rows": compared, "largest_difference": largest, "largest_difference_of_sums": sums}


def time_c(program: Program, text: str, compiler: str = "gcc") -> float:
    """Return the seconds of one row, the best of several passes over 2,000 rows in one thread."""
    columns, names, rows = check_rows(program, 2_000), c.field_names(program), 2_000
    columns = {name: column[:rows] for name, column in columns.items()}
    levels = {name: {level: code for code, level in enumerate(own)} for name, own in program.categories.items()}
    fields = "\n    ".join(f"rows[i].{field} = next_number();" for field in names.values()).replace("= next", "= next")
    values = [
        [levels[name].get(text, -1) for text in columns[name].tolist()] if name in levels else columns[name] for name in names
    ]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "model.h").write_text(text)
        Path(folder, "main.c").write_text(TIMER.format(rows=rows, fields=fields, turns=50))
        command = [compiler, "-std=c11", "-O2", "-o", f"{folder}/main", f"{folder}/main.c", "-lm"]
        subprocess.run(command, check=True)
        payload = np.column_stack([np.asarray(own, np.float64) for own in values]).astype("<f8").tobytes()
        done = subprocess.run([f"{folder}/main"], input=payload, capture_output=True, check=True)
    return float(done.stdout.split()[0])


def measure_c(model: Model, program: Program, rows: int) -> dict[str, Any]:
    text = c.write_c(program)
    found = parity(model, program, lambda columns: c.run_c(text, program, columns), rows)
    return found | {
        "size": len(text), "microseconds": 1e6 * time_c(program, text), "microseconds_clang": 1e6 * time_c(program, text, "clang"),
    }  # fmt: skip


MEASURES: dict[str, Callable[[Model, Program, int], dict[str, Any]]] = {"c": measure_c}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--targets", default=",".join(MEASURES))
    parser.add_argument("--cases", default=",".join(CASES))
    arguments = parser.parse_args()
    figures: dict[str, Any] = {"cases": {}}
    for case in arguments.cases.split(","):
        model = CASES[case]()
        program = lower(model)
        own = {"map": model.map.describe(), "features": len(program.schema.features)}
        print(case, own)
        for target in arguments.targets.split(","):
            start = time.perf_counter()
            own[target] = MEASURES[target](model, program, arguments.rows)
            print(f"  {target}: {own[target]} ({time.perf_counter() - start:.0f} s)", flush=True)
        figures["cases"][case] = own
    save("exports", figures)


if __name__ == "__main__":
    main()
