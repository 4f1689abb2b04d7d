"""Speed and memory of MCGrad beside mcgrad 0.1.5, in one run on the same rows, two threads each, both with their defaults.

    python bench/mcgrad.py
    python bench/mcgrad.py --real

200,000 simulated rows x 12 features (6 categorical with up to 200 levels, 6 numeric), 100,000 more to be scored; with
--real the fits of real calibration rows from the quality study in their place.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before any OpenMP is loaded

import numpy as np
import pandas as pd

import trueup as tu
from cases import CASES, cases
from common import ENVIRONMENTS, RESULTS, check, measured_again, run_peer, save, seconds
from quality import log_loss
from trueup.data.frame import read_like

if TYPE_CHECKING:
    from pathlib import Path

LEVELS = (200, 50, 20, 10, 6, 3)
ROWS, SCORED = 200_000, 100_000
REAL = ("adult-logistic-0", "bank_marketing-logistic-0", "acs_employment_ma-own-0", "acs_employment_ma-forest-0",
        "covertype-boosting-0")  # fmt: skip
FRESH = """
import json, resource, sys, pandas as pd, trueup as tu
frame = pd.read_parquet(sys.argv[1])
frame = frame[frame["part"] == "calibration"].drop(columns="part")
tu.MCGrad("p", threads=2).fit(frame, "y")
print(json.dumps(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024))
"""


def simulate(path: Path, train: int) -> None:
    """Draw rows whose score is off on segments, pairs of segments, and more so at high scores."""
    random = np.random.default_rng(4)
    rows = train + SCORED
    columns: dict[str, Any] = {}
    off = np.zeros(rows)
    for at, levels in enumerate(LEVELS):
        share = 1.0 / np.arange(1, levels + 1) ** 0.5
        codes = random.choice(levels, rows, p=share / share.sum())
        off += random.normal(0, 0.3, levels)[codes]
        columns[f"c{at}"] = np.array([f"c{at}_{code:03d}" for code in range(levels)], object)[codes]
        if at == 3:
            off += random.normal(0, 0.4, (levels, 6))[codes, random.integers(0, 6, rows)]
    for at in range(6):
        columns[f"x{at}"] = random.normal(size=rows)
    off += 0.4 * np.sin(2 * columns["x0"]) + 0.3 * columns["x1"] * (columns["x2"] > 0)
    score = random.normal(-1.5, 1.0, rows)
    off += 0.3 * (columns["c5"] == "c5_001") * score
    y = (random.random(rows) < 1 / (1 + np.exp(-score - off))).astype(int)
    part = np.where(np.arange(rows) < train, "calibration", "test")
    pd.DataFrame({**columns, "p": 1 / (1 + np.exp(-score)), "y": y, "part": part}).to_parquet(path)


def beside(path: Path, figures: dict[str, Any]) -> None:
    """Fit, score and hold the quality against each other."""
    theirs = run_peer("mcgrad", "mcgrad_fit.py", "score", str(path), str(SCORED), "5")
    frame = pd.read_parquet(path)
    train, test = (frame[frame["part"] == part].drop(columns="part") for part in ("calibration", "test"))
    fix = tu.MCGrad("p", threads=2).fit(train, "y")
    model = fix.model_
    table = read_like(test, model.schema)
    row = dict(zip(test.columns, test.iloc[0].tolist(), strict=True))
    ones = []
    for _ in range(5000):
        start = time.perf_counter()
        model.predict_one(row)
        ones.append(time.perf_counter() - start)
    done = subprocess.run([sys.executable, "-c", FRESH, str(path)], check=True, capture_output=True, text=True)
    ours = {
        "fit": seconds(lambda: tu.MCGrad("p", threads=2).fit(train, "y"), 3),
        "frame": seconds(lambda: model.predict(test, threads=2)),
        "table": seconds(lambda: model.predict_table(table, threads=2)),
        "one": float(np.median(ones)),
        "peak": json.loads(done.stdout.splitlines()[-1]),
        "rounds": fix.history_.chosen, "trees": model.map.trees, "cells": model.map.cells,
    }  # fmt: skip
    print("mcgrad", theirs, "\ntrueup", ours)
    figures |= {"peer": theirs, "ours": ours}
    figures["checks"] |= {
        name: check(name, value, bar, at_most=at_most)
        for name, value, bar, at_most in (
            ("fit, times faster", theirs["fit"] / ours["fit"], 8, False),
            ("scoring a frame, times faster", theirs["batch"] / ours["frame"], 8, False),
            ("scoring a Table, times faster", theirs["batch"] / ours["table"], 20, False),
            ("one row, times faster", theirs["one"] / ours["one"], 300, False),
            ("one row, microseconds", ours["one"] * 1e6, 30, True),
            ("peak memory over mcgrad's", ours["peak"] / theirs["peak"], 1, True),
        )
    }


def quality(path: Path, figures: dict[str, Any]) -> None:
    """Hold log loss and multicalibration error of the simulated test rows against mcgrad's."""
    out = ENVIRONMENTS / "simulated"
    out.mkdir(exist_ok=True)
    (out / f"{path.stem}.npz").unlink(missing_ok=True)
    run_peer("mcgrad", "mcgrad_fit.py", "fit", str(out), str(path))
    frame = pd.read_parquet(path)
    train, test = (frame[frame["part"] == part].drop(columns="part") for part in ("calibration", "test"))
    p = tu.MCGrad("p", threads=2).fit(train, "y").predict(test)
    scores = {"base": test["p"].to_numpy(), "trueup": p, "mcgrad": np.load(out / f"{path.stem}.npz")["p"]}
    np.savez(out / "scores.npz", **scores)
    by = [name for name in test.columns if name not in ("p", "y")]
    found = {
        "log_loss": {name: float(log_loss(test["y"].to_numpy(float), one).mean()) for name, one in scores.items()},
        "sigma": run_peer("mcgrad", "mcgrad_fit.py", "sigma", str(out / "scores.npz"), str(path))[0],
        "sigma_ours": {
            name: float(tu.audit(test.assign(p=one), outcome="y", prediction="p", by=by).worst_sigma)
            for name, one in scores.items()
        },
    }
    print(found)
    figures["quality"] = found
    figures["checks"] |= {
        f"{name} over mcgrad's": check(f"{name} over mcgrad's", each["trueup"] / each["mcgrad"], 1, at_most=True)
        for name, each in found.items()
    }


def real(figures: dict[str, Any], only: str) -> None:
    """Time the fit of real calibration rows."""
    figures["real"] = {}
    for name in (case.name for case in cases(1, only) if case.name in REAL):
        path = CASES / f"{name}.parquet"
        theirs = run_peer("mcgrad", "mcgrad_fit.py", "time", str(path))
        frame = pd.read_parquet(path)
        train = frame[frame["part"] == "calibration"].drop(columns="part")
        ours = seconds(lambda train=train: tu.MCGrad("p", threads=2).fit(train, "y"), 2)
        figures["real"][name] = {"rows": len(train), "mcgrad": theirs, "trueup": ours, "times faster": theirs / ours}
        print(name, figures["real"][name])
        title = f"fit of {name}, times faster"
        figures["checks"][title] = check(title, theirs / ours, 4, at_most=False)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--real", action="store_true")
    parser.add_argument("--rows", type=int, default=ROWS, help="simulated rows to fit")
    parser.add_argument("--only", default=",".join(REAL), help="parts of the names of real cases")
    arguments = parser.parse_args()
    CASES.mkdir(parents=True, exist_ok=True)
    path = ENVIRONMENTS / "simulated.parquet"
    simulate(path, arguments.rows)
    kept = RESULTS / "mcgrad.json"
    figures: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {"checks": {}}
    if arguments.real:
        real(figures, arguments.only)
    else:
        figures["rows"] = arguments.rows
        beside(path, figures)
        quality(path, figures)
    measured_again(figures, {"fits of real rows" if arguments.real else "simulated rows"})
    save("mcgrad", figures)


if __name__ == "__main__":
    main()
