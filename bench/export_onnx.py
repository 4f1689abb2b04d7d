"""How fast are models exported to ONNX in onnxruntime? Rows a second in batches, microseconds a row alone, and agreement.

    python bench/export_onnx.py [--rows 1000000] [--batch 1000] [--threads 2] [--repeat 3]

Default fits of MCGrad: of adult (13 features, a logistic regression on four of them as the score), and of a simulated model
of twelve features whose errors are in three segments. Batches are computed by threads of Python that share one session of
one thread: most operators between the large ones are too small to be divided. Categories are strings, encoded inside the
graph. Times are by the clock, which other work on the machine prolongs, and of the processor.
"""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import onnxruntime
from sklearn.linear_model import LogisticRegression

import trueup as tu
from common import check, save
from trueup.exports.lower import lower
from trueup.exports.onnx import write_onnx

ADULT = Path(__file__).parents[2] / "shared" / "data" / "adult.parquet"
BASE = ["age", "education_num", "capital_gain", "hours_per_week"]
ROW_LIMIT, BATCH_LIMIT = 50.0, 1e6


def adult() -> tuple[Any, dict[str, Any]]:
    """Fit the default MCGrad on adult."""
    frame = duckdb.sql(f"SELECT * EXCLUDE (fnlwgt, split) FROM '{ADULT}'").df()
    y = frame.pop("income_over_50k").to_numpy(float)
    data = {
        name: column.to_numpy(float) if column.dtype.kind in "if" else as_texts(column) for name, column in frame.items()
    }
    X = np.column_stack([data[name] for name in BASE])
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    features = list(data)
    data["p"] = LogisticRegression().fit(X, y).predict_proba(X)[:, 1]
    return tu.MCGrad("p", features).fit(data, y).model_, data


def as_texts(column: Any) -> Any:
    return np.array([value if isinstance(value, str) else None for value in column], object)


def simulated(rows: int = 100_000) -> tuple[Any, dict[str, Any]]:
    """Fit the default MCGrad on eight numbers and four categories, with errors in three segments."""
    rng = np.random.default_rng(0)
    data: dict[str, Any] = {f"x{j}": rng.normal(size=rows) for j in range(8)}
    for j, levels in enumerate((4, 12, 30, 200)):
        data[f"c{j}"] = np.array([f"level {k}" for k in range(levels)], object)[rng.integers(0, levels, rows)]
    features, p = list(data), rng.beta(1, 4, rows)
    z = np.log(p / (1 - p)) + 0.6 * (data["x0"] > 0.5) - 0.5 * (data["c0"] == "level 1") * (data["x1"] > 0) - 0.3
    z += 0.3 * data["x2"] * (data["c1"] == "level 3") + 0.4 * np.abs(data["x3"])
    y = (rng.random(rows) < 1 / (1 + np.exp(-z))).astype(float)
    data["p"] = p
    return tu.MCGrad("p", features).fit(data, y).model_, data


def measure(model: Any, data: dict[str, Any], arguments: argparse.Namespace) -> dict[str, Any]:
    """Export a model and time it."""
    start = time.perf_counter()
    exported = write_onnx(lower(model))
    written = time.perf_counter() - start
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(exported, options, providers=["CPUExecutionProvider"])
    names = [entry.name for entry in session.get_inputs()]
    feed = {name: texts(data[name]) if data[name].dtype == object else data[name] for name in names}
    found, expected = session.run(None, feed)[0], model.predict(data)
    some = np.random.default_rng(0).integers(0, len(expected), arguments.rows)
    feed = {name: values[some] for name, values in feed.items()}
    batches = [
        {name: values[first : first + arguments.batch] for name, values in feed.items()}
        for first in range(0, arguments.rows, arguments.batch)
    ]
    alone = [{name: values[at : at + 1] for name, values in feed.items()} for at in range(min(2_000, arguments.rows))]
    with ThreadPoolExecutor(arguments.threads) as pool:
        batched = timed(lambda: list(pool.map(lambda own: session.run(None, own) and None, batches)), arguments.repeat)
    single = timed(lambda: [session.run(None, own) for own in alone], arguments.repeat)
    return {
        "corrections": model.map.describe(),
        "bytes": len(exported),
        "seconds_to_write": written,
        "largest_difference": float(np.abs(found - expected).max()),
        "rows_per_second": arguments.rows / batched[0],
        "processor_us_per_row": 1e6 * batched[1] / arguments.rows,
        "us_alone": 1e6 * single[0] / len(alone),
        "processor_us_alone": 1e6 * single[1] / len(alone),
    }


def texts(column: Any) -> Any:
    return np.array(["" if value is None else value for value in column], object)


def timed(work: Any, repeat: int) -> tuple[float, float]:
    """Return the shortest of several times, by the clock and of the processor."""
    clock, processor = [], []
    for _ in range(repeat):
        start = time.perf_counter(), time.process_time()
        work()
        clock.append(time.perf_counter() - start[0])
        processor.append(time.process_time() - start[1])
    return min(clock), min(processor)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=1_000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=3)
    arguments = parser.parse_args()
    figures: dict[str, Any] = {"settings": vars(arguments), "checks": {}, "onnxruntime": onnxruntime.__version__}
    for make in (simulated, adult):
        name = make.__name__
        own = figures[name] = measure(*make(), arguments)
        print(f"{name}: {own['corrections']}; {own['bytes'] / 1e6:.1f} MB")
        print({key: value for key, value in own.items() if isinstance(value, float)}, flush=True)
        figures["checks"] |= {
            f"{name}, difference": check(f"{name}, difference", own["largest_difference"], 4e-16, at_most=True),
            f"{name}, us alone": check(f"{name}, us alone", own["us_alone"], ROW_LIMIT, at_most=True),
            f"{name}, rows a second": check(f"{name}, rows a second", own["rows_per_second"], BATCH_LIMIT, at_most=False),
        }
    save("export_onnx", figures)


if __name__ == "__main__":
    main()
