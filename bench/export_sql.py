"""Size and speed of the SQL of a correction, and the largest difference from the model's scores in every engine.

    python bench/export_sql.py [--data ../shared/data/adult.parquet] [--rows 1000000] [--spark] [--repeat 3]

Two corrections by the default MCGrad: of a logistic regression on Adult, and of simulated scores with 12 features, of which
six interact with the score. DuckDB scores rows drawn from both with two threads, from a table in memory, and adds the
scores. PostgreSQL, if it is installed, and Spark (``--spark``) score the same rows; the largest difference from
`Model.predict` is recorded for each. CPU seconds stand beside the time, since other work on the machine slows the latter.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np

import trueup as tu
from common import save
from trueup.exports.lower import lower
from trueup.exports.sql import ROW_NUMBER, write_sql, write_statements

if TYPE_CHECKING:
    from trueup.calibrators.model import Model

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
Columns = dict[str, Any]


def simulated(rows: int, seed: int = 0) -> tuple[Columns, Any]:
    """Return 12 features, scores and outcomes."""
    random = np.random.default_rng(seed)
    data: Columns = {f"x{at}": random.normal(size=rows) for at in range(6)}
    data |= {f"n{at}": random.integers(0, 50, rows).astype(float) for at in range(2)}
    for at, levels in enumerate((4, 12, 30, 200)):
        texts = np.array([f"level {level}" for level in range(levels)], object)
        data[f"c{at}"] = texts[random.integers(0, levels, rows)]
    p = random.beta(1, 4, rows)
    logit = (
        np.log(p / (1 - p)) + 0.5 * (data["x0"] > 1) + 0.4 * data["x1"] * (data["x2"] > 0) - 0.5 * (data["c0"] == "level 1")
    )
    logit += 0.3 * (data["c1"] == "level 3") * (data["x3"] < 0) + 0.01 * data["n0"] - 0.4 * (data["c2"] == "level 7")
    return data | {"p": p}, (random.random(rows) < 1 / (1 + np.exp(-logit))).astype(float)


def adult(path: Path) -> tuple[Columns, Any]:
    """Return the features of Adult, the scores of a logistic regression on two of them, and the outcomes."""
    with duckdb.connect() as con:
        found = con.execute("SELECT * EXCLUDE (split, fnlwgt) FROM read_parquet(?)", [str(path)]).fetchnumpy()
    y = np.asarray(found.pop("income_over_50k"), float)
    data: Columns = {}
    for name, column in found.items():
        if column.dtype == object:
            data[name] = np.array(np.ma.filled(np.ma.asarray(column), None), object)
        else:
            data[name] = np.ma.filled(np.ma.asarray(column, float), np.nan)
    X = np.column_stack([np.ones(len(y)), data["age"] / 50 - 1, data["education_num"] / 10 - 1])
    w = np.zeros(3)
    for _ in range(20):
        p = 1 / (1 + np.exp(-X @ w))
        w += np.linalg.solve((X * (p * (1 - p))[:, None]).T @ X, X.T @ (y - p))
    return data | {"p": 1 / (1 + np.exp(-X @ w))}, y


def drawn(data: Columns, rows: int) -> Columns:
    """Draw rows with replacement, each column by itself for numbers: combinations that training has not seen."""
    random = np.random.default_rng(1)
    return {name: column[random.integers(0, len(column), rows)] for name, column in data.items()}


def measured(work: Any, repeat: int) -> dict[str, float]:
    """Return seconds and CPU seconds of the fastest of several runs."""
    runs = []
    for _ in range(repeat):
        before, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
        work()
        after, end = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
        runs.append((after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime, end - start))
    return {"cpu_seconds": min(cpu for cpu, _ in runs), "seconds": min(wall for _, wall in runs)}


def in_duckdb(model: Model, columns: Columns, expected: Any, repeat: int) -> dict[str, Any]:
    """Score rows in DuckDB."""
    program, rows = lower(model), len(expected)
    with duckdb.connect(config={"threads": 2}) as con:
        con.register("given", columns | {ROW_NUMBER: np.arange(rows)})
        con.execute("CREATE TABLE scores AS FROM given")
        *before, last = con.extract_statements(write_sql(program, keep=[ROW_NUMBER]))
        for statement in before:
            con.execute(statement)
        found = con.execute(f"FROM ({last.query}) ORDER BY {ROW_NUMBER}").fetchnumpy()["p_trueup"]
        difference = float(np.abs(np.asarray(found) - expected).max())
        times = measured(lambda: con.execute(f"SELECT sum(p_trueup) FROM ({last.query})").fetchall(), repeat)
        plan = measured(lambda: con.execute(f"EXPLAIN {last.query}").fetchall(), repeat)
    rates = {
        "rows_per_second": rows / times["seconds"],
        "rows_per_second_of_two_idle_cores": 2 * rows / times["cpu_seconds"],
    }
    return {"largest_difference": difference, **times, "planning_cpu_seconds": plan["cpu_seconds"], **rates}


def in_postgres(model: Model, columns: Columns, expected: Any) -> dict[str, Any] | None:
    """Score rows in a server of its own, or return None without PostgreSQL."""
    import postgres
    from sql_rows import as_csv

    if postgres.binaries() is None:
        return None
    *before, last = write_statements(lower(model), dialect="postgres", keep=[ROW_NUMBER])
    typed = ", ".join(f'"{name}" {"text" if column.dtype.kind == "O" else "float8"}' for name, column in columns.items())
    script = f"CREATE TABLE scores ({ROW_NUMBER} int, {typed});\nCOPY scores FROM STDIN (FORMAT csv);\n"
    with postgres.server() as server:
        server.query(f"{script}{as_csv(columns)}\\.\n")
        start = time.perf_counter()
        text = server.query("".join(f"{statement};\n" for statement in before) + f"COPY ({last}) TO STDOUT (FORMAT csv);")
        seconds = time.perf_counter() - start
    found = np.array([line.split(",") for line in text.splitlines()], float)
    difference = float(np.abs(found[np.argsort(found[:, 0]), 1] - expected).max())
    return {"largest_difference": difference, "rows_per_second": len(expected) / seconds}


def in_spark(model: Model, columns: Columns, expected: Any) -> dict[str, Any]:
    """Score rows in a session of its own on two cores."""
    import pandas as pd
    from pyspark.sql import SparkSession

    builder = (
        SparkSession.builder.master("local[2]").config("spark.driver.host", "127.0.0.1").config("spark.driver.memory", "4g")
    )
    session = builder.config("spark.driver.bindAddress", "127.0.0.1").config("spark.ui.enabled", "false").getOrCreate()
    session.conf.set("spark.sql.execution.arrow.pyspark.enabled", "true")
    session.createDataFrame(pd.DataFrame(columns | {ROW_NUMBER: np.arange(len(expected))})).createOrReplaceTempView(
        "scores"
    )
    start = time.perf_counter()
    for statement in write_statements(lower(model), dialect="spark", keep=[ROW_NUMBER]):
        selected = session.sql(statement)
    rows = np.array([tuple(row) for row in selected.collect()], float)
    seconds = time.perf_counter() - start
    session.stop()
    difference = float(np.abs(rows[np.argsort(rows[:, 0]), 1] - expected).max())
    return {"largest_difference": difference, "rows_per_second": len(expected) / seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data/adult.parquet"))
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--spark", action="store_true", help="also in Spark")
    parser.add_argument("--only", choices=["adult", "simulated"], help="one of the two corrections")
    given = parser.parse_args()
    result: dict[str, Any] = {"rows": given.rows}
    for name, make in (("adult", lambda: adult(given.data)), ("simulated", lambda: simulated(50_000))):
        if given.only not in (None, name):
            continue
        data, y = make()
        model = tu.MCGrad("p", [column for column in data if column != "p"]).fit(data, y).model_
        columns = drawn(data, given.rows)
        expected = model.predict(columns)
        found: dict[str, Any] = {"model": model.map.describe(), "features": len(data) - 1}
        found["characters"] = {
            d: len(write_sql(lower(model), dialect=d)) for d in ("duckdb", "postgres", "bigquery", "spark")
        }
        found["statements"] = len(write_statements(lower(model)))
        found["duckdb"] = in_duckdb(model, columns, expected, given.repeat)
        print(name, found, flush=True)
        found["postgres"] = in_postgres(model, columns, expected)
        print(name, "postgres", found["postgres"], flush=True)
        if given.spark:
            found["spark"] = in_spark(model, columns, expected)
            print(name, "spark", found["spark"], flush=True)
        result[name] = found
    save("export_sql", result)


if __name__ == "__main__":
    main()
