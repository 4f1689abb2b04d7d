"""Exactness and speed of exports in every target.

    python bench/exports.py [--rows 10000000] [--speed-rows 1000000] [--targets c,onnx,duckdb] [--cases adult]

Three default MCGrad fits: 12 features with errors that tables correct, 12 features with errors that need trees, and adult.
Exactness: rows with every cut and the floats beside it, missing, unseen, extreme and invalid values, and random ones;
scores and sums of tables and trees are compared with those of the model, chunk by chunk. Speed: rows per second of random
rows on two cores, by the clock and by processor time (in PostgreSQL and Spark of at most 100,000 and 20,000 rows), and one
row alone. PostgreSQL, Java (for Spark), gcc, clang and onnxruntime are needed for their targets.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np

import trueup as tu
from common import HERE, check, save
from trueup.exports import c
from trueup.exports.certificate import check_rows, exact_values
from trueup.exports.dialects import DIALECTS
from trueup.exports.lower import lower
from trueup.exports.onnx import run_onnx, write_onnx
from trueup.exports.sql import ROW_NUMBER, run_sql, write_sql, write_statements

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trueup.calibrators.model import Model
    from trueup.exports.program import Program

    Runner = Callable[[Mapping[str, np.ndarray]], np.ndarray]
    Columns = dict[str, Any]

sys.path.insert(0, str(HERE.parent / "tests"))
DATA = Path(os.environ.get("TRUEUP_DATA", HERE.parent.parent / "shared" / "data"))
CHUNK, BATCH, ALONE = 500_000, 1_000, 2_000
SPEED_ROWS = {"postgres": 100_000, "spark": 20_000}
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


def simulated(rows: int = 100_000, seed: int = 0) -> tuple[Columns, np.ndarray]:
    """Return 12 features, and scores."""
    rng = np.random.default_rng(seed)
    data: Columns = {f"x{at}": np.where(rng.random(rows) < 0.02, np.nan, rng.normal(size=rows)) for at in range(8)}
    for at, levels in enumerate((4, 12, 30, 200)):
        data[f"c{at}"] = np.array([f"level {level}" for level in range(levels)], object)[rng.integers(0, levels, rows)]
    p = rng.beta(1, 4, rows)
    return data | {"p": p}, rng.random(rows)


def tables() -> tuple[Model, Columns]:
    """Fit the default MCGrad to errors of three segments."""
    data, draw = simulated()
    shift = 0.7 * (data["c1"] == "level 2") - 0.6 * (np.nan_to_num(data["x3"]) > 1) + 0.5 * (data["c0"] == "level 1")
    return fit(data, draw, shift)


def trees() -> tuple[Model, Columns]:
    """Fit the default MCGrad to errors that depend on the score and on several features together."""
    data, draw = simulated(seed=1)
    x = [np.nan_to_num(data[f"x{at}"]) for at in range(8)]
    shift = 0.5 * (x[0] > 1) + 0.4 * x[1] * (x[2] > 0) - 0.5 * (data["c0"] == "level 1") * (x[4] > 0)
    return fit(data, draw, shift + 0.3 * (data["c1"] == "level 3") * (x[3] < 0) - 0.4 * (data["c2"] == "level 7"))


def fit(data: Columns, draw: np.ndarray, shift: np.ndarray) -> tuple[Model, Columns]:
    """Fit the default MCGrad to scores that are wrong by ``shift`` on the scale of logits."""
    p = data["p"]
    y = (draw < 1 / (1 + np.exp(-np.log(p / (1 - p)) - shift))).astype(float)
    return tu.MCGrad("p", [name for name in data if name != "p"]).fit(data, y).model_, data


def adult() -> tuple[Model, Columns]:
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
        make_column_transformer(
            (OneHotEncoder(handle_unknown="ignore", min_frequency=20), names), (StandardScaler(), numbers)
        ),
        LogisticRegression(max_iter=500),
    )
    half = np.random.default_rng(0).random(len(X)) < 0.5
    base.fit(X[half], y[half])
    rest = X[~half].assign(p=base.predict_proba(X[~half])[:, 1])
    model = tu.MCGrad("p", list(X.columns)).fit(rest, y[~half]).model_
    return model, {name: column.to_numpy(object if name in names else float) for name, column in rest.items()}


CASES = {"tables": tables, "trees": trees, "adult": adult}


def parity(model: Model, program: Program, run: Runner, rows: int) -> dict[str, Any]:
    """Compare the scores and sums of a target with the model, on special values in new combinations in every chunk."""
    largest = sums = 0.0
    compared, width = 0, program.result.width
    for number, start in enumerate(range(0, rows, CHUNK)):
        columns = check_rows(program, min(CHUNK, rows - start), seed=number)
        found = run(columns)
        expected = model.predict(columns, on_error="nan").reshape(len(found), -1)
        valid = ~np.isnan(expected).any(axis=1)
        if (np.isnan(found[:, :width]) != np.isnan(expected)).any():
            raise SystemExit("other rows have no score than in the model")
        exact = exact_values(program, columns)
        largest = max(largest, float(np.abs(found[valid, :width] - expected[valid]).max()))
        sums = max(sums, float(np.abs(found[valid, width:] - exact[valid]).max(initial=0.0)))
        compared += len(found)
    return {"rows": compared, "largest_difference": largest, "largest_difference_of_sums": sums}


def drawn(data: Columns, rows: int) -> Columns:
    """Draw rows, each column by itself: combinations that training has not seen."""
    rng = np.random.default_rng(1)
    return {name: column[rng.integers(0, len(column), rows)] for name, column in data.items()}


def timed(work: Callable[[], Any], repeat: int = 3) -> tuple[float, float]:
    """Return the least of several times, by the clock and of the processor."""
    clock, processor = [], []
    for _ in range(repeat):
        start = time.perf_counter(), time.process_time()
        work()
        clock.append(time.perf_counter() - start[0])
        processor.append(time.process_time() - start[1])
    return min(clock), min(processor)


def rates(rows: int, times: tuple[float, float]) -> dict[str, float]:
    """Return rows per second by the clock, and of two cores that do nothing else, from processor time."""
    return {"rows_per_second": rows / times[0], "rows_per_second_of_two_idle_cores": 2 * rows / times[1]}


def time_c(program: Program, text: str, data: Columns, compiler: str) -> float:
    """Return the seconds of one row, the best of several passes in one thread."""
    names, columns = c.field_names(program), drawn(data, ALONE)
    levels = {name: {level: code for code, level in enumerate(own)} for name, own in program.categories.items()}
    values = [
        [levels[name].get(own, -1) for own in columns[name].tolist()] if name in levels else columns[name] for name in names
    ]
    fields = "\n    ".join(f"rows[i].{field} = next_number();" for field in names.values())
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "model.h").write_text(text)
        Path(folder, "main.c").write_text(TIMER.format(rows=ALONE, fields=fields, turns=50))
        command = [compiler, "-std=c11", "-O2", "-o", f"{folder}/main", f"{folder}/main.c", "-lm"]
        subprocess.run(command, check=True)
        payload = np.column_stack([np.asarray(own, np.float64) for own in values]).astype("<f8").tobytes()
        done = subprocess.run([f"{folder}/main"], input=payload, capture_output=True, check=True)
    return float(done.stdout.split()[0])


def measure_c(model: Model, program: Program, data: Columns, rows: int, _: int) -> dict[str, Any]:
    text = c.write_c(program)
    found = parity(model, program, lambda columns: c.run_c(text, program, columns), rows)
    times = {f"microseconds_{compiler}": 1e6 * time_c(program, text, data, compiler) for compiler in ("gcc", "clang")}
    return found | {"size": len(text), **times}


def measure_onnx(model: Model, program: Program, data: Columns, rows: int, speed_rows: int) -> dict[str, Any]:
    import onnxruntime

    found = parity(model, program, partial(run_onnx, write_onnx(program, checks=True)), rows)
    content, options = write_onnx(program), onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    columns = drawn(data, speed_rows)
    feed = {
        name: np.array(["" if own is None else own for own in column], object) if column.dtype == object else column
        for name, column in columns.items()
    }
    batches = [{name: own[at : at + BATCH] for name, own in feed.items()} for at in range(0, speed_rows, BATCH)]
    alone = [{name: own[at : at + 1] for name, own in feed.items()} for at in range(min(ALONE, speed_rows))]
    with ThreadPoolExecutor(2) as pool:
        times = timed(lambda: list(pool.map(lambda own: session.run(None, own) and None, batches)))
    single = timed(lambda: [session.run(None, own) for own in alone])
    microseconds = {"microseconds": 1e6 * single[0] / len(alone), "processor_microseconds": 1e6 * single[1] / len(alone)}
    return found | {"size": len(content), **rates(speed_rows, times), **microseconds}


def measure_duckdb(model: Model, program: Program, data: Columns, rows: int, speed_rows: int) -> dict[str, Any]:
    checked = write_sql(program, keep=[ROW_NUMBER], checks=True)
    found = parity(model, program, lambda columns: run_sql(checked, columns, "scores"), rows)
    text = write_sql(program, keep=[ROW_NUMBER])
    with duckdb.connect(config={"threads": 2}) as con:
        con.register("given", drawn(data, speed_rows) | {ROW_NUMBER: np.arange(speed_rows)})
        con.execute("CREATE TABLE scores AS FROM given")
        *before, last = con.extract_statements(text)
        for statement in before:
            con.execute(statement)
        times = timed(lambda: con.execute(f"SELECT sum(p_trueup) FROM ({last.query})").fetchall())
    return found | {"size": len(text), "statements": len(write_statements(program)), **rates(speed_rows, times)}


def measure_postgres(model: Model, program: Program, data: Columns, rows: int, speed_rows: int) -> dict[str, Any]:
    import postgres
    from sql_rows import as_csv

    def run(columns: Mapping[str, np.ndarray], *, checks: bool = True) -> np.ndarray:
        *before, last = write_statements(program, dialect="postgres", keep=[ROW_NUMBER], checks=checks)
        typed = ", ".join(
            f'"{name}" {"text" if column.dtype.kind == "O" else "float8"}' for name, column in columns.items()
        )
        script = f"CREATE TABLE scores ({ROW_NUMBER} int, {typed});\nCOPY scores FROM STDIN (FORMAT csv);\n"
        with postgres.server() as server:
            server.query(f"{script}{as_csv(columns)}\\.\n")
            start = time.perf_counter()
            head = "".join(f"{statement};\n" for statement in before)
            text = server.query(f"{head}COPY ({last}) TO STDOUT (FORMAT csv);")
            seconds.append(time.perf_counter() - start)
        found = np.array([[float(own) if own else np.nan for own in line.split(",")] for line in text.splitlines()])
        return found[np.argsort(found[:, 0]), 1:]

    seconds: list[float] = []
    found = parity(model, program, run, rows)
    speed_rows = min(speed_rows, SPEED_ROWS["postgres"])
    run(drawn(data, speed_rows), checks=False)
    return found | {"rows_per_second": speed_rows / seconds[-1]}


def measure_spark(model: Model, program: Program, data: Columns, rows: int, speed_rows: int) -> dict[str, Any]:
    import pandas as pd
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.driver.host", "127.0.0.1")
    builder = builder.config("spark.driver.memory", "4g").config("spark.driver.bindAddress", "127.0.0.1")
    session = builder.config("spark.ui.enabled", "false").getOrCreate()
    session.conf.set("spark.sql.execution.arrow.pyspark.enabled", "true")

    def run(columns: Mapping[str, np.ndarray], *, checks: bool = True) -> np.ndarray:
        count = len(next(iter(columns.values())))
        frame = session.createDataFrame(pd.DataFrame({**columns, ROW_NUMBER: np.arange(count)}))
        frame.createOrReplaceTempView("scores")
        start = time.perf_counter()
        for statement in write_statements(program, dialect="spark", keep=[ROW_NUMBER], checks=checks):
            selected = session.sql(statement)
        found = np.array([tuple(row) for row in selected.collect()], float)
        seconds.append(time.perf_counter() - start)
        return found[np.argsort(found[:, 0]), 1:]

    seconds: list[float] = []
    found = parity(model, program, run, rows)
    speed_rows = min(speed_rows, SPEED_ROWS["spark"])
    run(drawn(data, speed_rows), checks=False)
    session.stop()
    return found | {"rows_per_second": speed_rows / seconds[-1]}


MEASURES: dict[str, Callable[[Model, Program, Columns, int, int], dict[str, Any]]] = {
    "c": measure_c,
    "onnx": measure_onnx,
    "duckdb": measure_duckdb,
    "postgres": measure_postgres,
    "spark": measure_spark,
}


def sql_sizes(program: Program) -> dict[str, dict[str, int]]:
    """Return by dialect the characters of the SQL, the number of its statements, and the characters of the longest."""
    written = {dialect: list(map(len, write_statements(program, dialect=dialect))) for dialect in DIALECTS}
    return {name: {"size": sum(own), "statements": len(own), "longest": max(own)} for name, own in written.items()}


def bars(case: str, target: str, own: dict[str, Any]) -> dict[str, Any]:
    """Compare the figures of one export with their bars."""
    found = {
        f"{case}, {target}: largest difference": check("difference", own["largest_difference"], 4e-16, at_most=True),
        f"{case}, {target}: sums": check("sums", own["largest_difference_of_sums"], 0.0, at_most=True),
    }
    limits = {"c": ("microseconds_gcc", 1.0, True), "onnx": ("microseconds", 50.0, True)}
    if target in limits:
        name, bar, at_most = limits[target]
        found[f"{case}, {target}: one row, microseconds"] = check("one row", own[name], bar, at_most=at_most)
    least = {"onnx": 1e6, "duckdb": 2e6}
    if target in least:
        rate = own["rows_per_second_of_two_idle_cores"]
        found[f"{case}, {target}: rows per second"] = check("rows per second", rate, least[target], at_most=False)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--speed-rows", type=int, default=1_000_000)
    parser.add_argument("--targets", default=",".join(MEASURES))
    parser.add_argument("--cases", default=",".join(CASES))
    arguments = parser.parse_args()
    figures: dict[str, Any] = {"cases": {}, "checks": {}}
    for case in arguments.cases.split(","):
        model, data = CASES[case]()
        program = lower(model)
        own: dict[str, Any] = {"map": model.map.describe(), "features": len(program.schema.features), "targets": {}}
        own["sql"] = sql_sizes(program)
        print(f"{case}: {own['map']}, SQL of {own['sql']}", flush=True)
        for target in arguments.targets.split(","):
            start = time.perf_counter()
            found = MEASURES[target](model, program, data, arguments.rows, arguments.speed_rows)
            own["targets"][target] = found
            print(f"  {target}: {found} ({time.perf_counter() - start:.0f} s)", flush=True)
            figures["checks"] |= bars(case, target, found)
        figures["cases"][case] = own
    save("exports", figures)


if __name__ == "__main__":
    main()
