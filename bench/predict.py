"""How fast is `trueup predict`, and in how much memory? Rows a second from Parquet to Parquet, and what limits them.

    python bench/predict.py [--rows 10 30] [--repeat 3]

Ten columns (texts, numbers, score and outcome; about 13 bytes a row), the default MCGrad fitted on 100,000 of them. Each
run is a process of its own, from the start of Python to the file on disk: the best of several, with and without a limit of
memory. What is written must be the same, byte by byte. Beside it the time of each step, and the kernel alone.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl

import trueup as tu
from common import check, save, seconds
from trueup.kernels.threads import Workers

FEATURES = ["country", "device", "browser", "campaign", "format", "hour", "age", "bid"]
LIMITS = (None, "500MB", "2GB")
ROWS = """SELECT
 ['BR', 'US', 'DE', 'FR', 'IN', 'JP', 'MX', 'NG', 'PL', 'TR', 'GB', 'IT'][1 + (hash(i * 11) % 12)::INT] AS country,
 ['phone', 'tablet', 'desktop', 'tv'][1 + (hash(i * 12 + 1) % 4)::INT] AS device,
 ['a', 'b', 'c', 'd', 'e', 'f'][1 + (hash(i * 13 + 2) % 6)::INT] AS browser, 'c' || (hash(i * 17 + 3) % 200) AS campaign,
 ['x', 'y', 'z'][1 + (hash(i * 19 + 4) % 3)::INT] AS format, (hash(i * 23 + 5) % 24)::TINYINT AS hour,
 (18 + (hash(i * 29 + 6) % 60))::SMALLINT AS age, (hash(i * 31 + 7) % 100000) / 1000.0 AS bid,
 (hash(i * 37 + 8) % 1000000) / 1000000.0 AS p, ((hash(i * 41 + 9) % 1000000) / 1000000.0 < p)::TINYINT AS y
 FROM range({}) AS t(i)"""
RUN = """
import resource, subprocess, sys, time
start = time.perf_counter()
subprocess.run([sys.executable, "-m", "trueup", *sys.argv[1:]], check=True, stdout=subprocess.DEVNULL)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(time.perf_counter() - start, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024)
"""


def fit(path: Path, place: Path) -> Path:
    """Fit the default MCGrad on the first rows, with errors planted in three segments."""
    data = pl.read_parquet(path, n_rows=100_000)
    p = np.clip(data["p"].to_numpy(), 1e-6, 1 - 1e-6)
    tilt = 0.6 * (data["country"] == "BR").to_numpy() - 0.5 * (data["device"] == "tv").to_numpy()
    tilt = tilt + 0.01 * (data["age"].to_numpy() - 45.0) * (data["format"] == "x").to_numpy()
    right = 1 / (1 + np.exp(-np.log(p / (1 - p)) - tilt))
    y = (np.random.default_rng(0).random(len(p)) < right).astype(int)
    tu.save(tu.MCGrad("p", FEATURES).fit(data.with_columns(y=y), y), place / "model.trueup")
    return place / "model.trueup"


def run(model: Path, source: Path, out: Path, limit: str | None, repeat: int) -> dict[str, float]:
    """Score a file in processes of their own; the quickest, and the most memory that any has held."""
    more = [] if limit is None else ["--memory", limit, "--spill", str(out.parent)]
    command = [sys.executable, "-c", RUN, "predict", str(model), str(source), "-o", str(out), "--quiet", *more]
    found = [[*map(float, subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.split())]
             for _ in range(repeat)]  # fmt: skip
    wall, cpu, _ = min(found)
    return {"seconds": wall, "cpu_seconds": cpu, "peak_bytes": max(one[2] for one in found)}


def steps(model: Path, source: Path, out: Path) -> dict[str, float]:
    """Time each step within a process of its own."""
    command = [sys.executable, __file__, "steps", str(model), str(source), str(out)]
    return dict(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1]))


def steps_here(model: str, source: str, out: str) -> None:
    from trueup.calibrators.model import Model
    from trueup.cli import main as trueup
    from trueup.cli import predict
    from trueup.data import chunks

    took: dict[str, float] = {}

    def watch(owner: Any, name: str, label: str) -> None:
        usual = getattr(owner, name)

        def timed(*given: Any, **named: Any) -> Any:
            start = time.perf_counter()
            try:
                return usual(*given, **named)
            finally:
                took[label] = took.get(label, 0.0) + time.perf_counter() - start

        setattr(owner, name, timed)

    watch(chunks.ChunkReader, "fetch", "reading and coding texts")
    watch(predict, "read_like", "checking")
    watch(Model, "predict_table", "scoring")
    watch(chunks, "_store", "keeping the scores")
    watch(chunks, "_run", "reading again, joining and writing")
    start = time.perf_counter()
    trueup(["predict", model, source, "-o", out, "--quiet"])
    print(json.dumps({**took, "all": time.perf_counter() - start}))


def kernel(model: Path, rows: int = 4_000_000) -> dict[str, float]:
    """Score columns in memory: the map alone, which looks trees up in tables where it can."""
    one, random = tu.load(model), np.random.default_rng(0)
    columns = [
        random.integers(-1, len(f.levels), rows).astype(np.int32) if f.kind == "categorical" else random.random(rows) * 100
        for f in one.schema.features
    ]
    p, found = random.random(rows), {}
    for threads in (1, len(os.sched_getaffinity(0))):
        one.map.apply([column[:1000] for column in columns], p[:1000], Workers(threads))
        found[f"rows_per_second_{threads}_threads"] = rows / seconds(
            lambda t=threads: one.map.apply(columns, p, Workers(t))
        )
    return {**found, "trees": one.map.trees, "tables": len(one.map.program.table), "cells": one.map.cells}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, nargs="+", default=[10, 30], help="in millions")
    parser.add_argument("--repeat", type=int, default=3)
    arguments = parser.parse_args()
    figures: dict[str, Any] = {"runs": [], "checks": {}}
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        for millions in arguments.rows:
            source, whole = place / f"rows-{millions}.parquet", place / f"whole-{millions}.parquet"
            duckdb.sql(f"COPY ({ROWS.format(millions * 10**6)}) TO '{source}' (COMPRESSION zstd)")
            model = fit(source, place) if millions == arguments.rows[0] else place / "model.trueup"
            for limit in LIMITS:
                out = whole if limit is None else place / "out.parquet"
                one = {"million_rows": millions, "memory": limit, **run(model, source, out, limit, arguments.repeat)}
                one["rows_per_second"] = millions * 1e6 / one["seconds"]
                one["same_bytes"] = out.read_bytes() == whole.read_bytes()
                figures["runs"].append(one)
                pace, peak = one["rows_per_second"], one["peak_bytes"] / 1e6
                print(
                    f"{millions} million rows, {limit or 'no limit'}: {pace:,.0f} rows/s, peak {peak:,.0f} MB", flush=True
                )
            figures[f"steps_{millions}"] = steps(model, source, whole)
            print({label: round(value, 2) for label, value in figures[f"steps_{millions}"].items()})
        figures["kernel"] = kernel(model)
        print(figures["kernel"])
    free = [one for one in figures["runs"] if one["memory"] is None]
    limited = [one for one in figures["runs"] if one["memory"] == "2GB"]
    figures["checks"] = {
        "rows a second": check("rows a second", min(one["rows_per_second"] for one in free), 1e6, at_most=False),
        "rows a second in 2GB": check("rows a second, 2GB", min(o["rows_per_second"] for o in limited), 1e6, at_most=False),
        "peak in 2GB": check("peak of memory, 2GB", max(one["peak_bytes"] for one in limited), 2e9, at_most=True),
        "same bytes": check("outputs that differ", sum(not one["same_bytes"] for one in figures["runs"]), 0, at_most=True),
    }
    save("predict", figures)


if __name__ == "__main__":
    steps_here(*sys.argv[2:]) if sys.argv[1:2] == ["steps"] else main()
