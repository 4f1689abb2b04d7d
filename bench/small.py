"""Does a fix do harm where rows are few? Every method with validation on 500 to 2,000 rows, 30 seeds.

    python bench/small.py [--seeds 30] [--processes 2]

Simulated rows (scores that are right, and scores with planted errors; the loss is against the truth) and Communities &
Crime (violent crime above the median; a logistic regression trained on 500 of its rows). A cell is a method on one setting:
the mean change of log loss over the seeds with its standard error. A cell does harm where the change is significantly above
0 by two standard errors after Holm over all cells, and is at least .001 nats. HKRR as published, and Platt, Beta and
Isotonic without held-out rows (their defaults), stand beside them. The share of harm of a method is the share of all runs
(settings and seeds) after which the log loss of new rows is higher than that of the uncorrected scores. The time of `Auto`
is compared with that of `MCGrad` on 20,000 rows x 14 features, in CPU seconds and in seconds.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import pandas as pd
from scipy.special import ndtr

import trueup as tu
from cases import DATA
from common import check, save
from trueup.data.simulate import Shift, population

if TYPE_CHECKING:
    from collections.abc import Callable

SIZES = (500, 1000, 2000)
CRIME = (500, 1000)
LEAST = 1e-3  # nats
CURVES = ("Platt", "Beta", "Isotonic")
CLIP = 1e-6
CV = tu.CrossValidation(5)
METHODS: dict[str, Callable[[list[str]], Any]] = {
    "MCGrad": lambda by: tu.MCGrad("p", by, threads=1),
    "LSBoost": lambda by: tu.LSBoost("p", by, threads=1),
    "DepthTwo": lambda by: tu.DepthTwo("p", by, saturation=False, threads=1),
    "HKRR": lambda by: tu.HKRR("p", by),
    "Multiaccuracy": lambda by: tu.Multiaccuracy("p", by),
    "Isotonic": lambda _: tu.Isotonic("p", stopping=CV),
    "Platt": lambda _: tu.Platt("p", stopping=CV),
    "Temperature": lambda _: tu.Temperature("p", stopping=CV),
    "Beta": lambda _: tu.Beta("p", stopping=CV),
    "Histogram": lambda _: tu.Histogram("p", stopping=CV),
    "Grouped Platt": lambda by: tu.Grouped(tu.Platt(), by=by[:1], prediction="p", stopping=CV),
    "Auto": lambda by: tu.Auto("p", by, threads=1),
}
PUBLISHED = {
    "HKRR as published": lambda by: tu.HKRR("p", by, stopping=None),
    "Isotonic, all rows": lambda _: tu.Isotonic("p"),
    "Platt, all rows": lambda _: tu.Platt("p"),
    "Beta, all rows": lambda _: tu.Beta("p"),
}


def simulated(n: int, seed: int, *, shifted: bool) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """Make rows to fit and 20,000 to test, from one population."""
    shifts = [Shift({"c0": "c0_1"}, 0.9), Shift({"c1": "c1_0"}, -0.6)] if shifted else []
    data = population(n + 20_000, 1000 + seed, levels=(5, 3, 4), shifts=shifts)
    by = [name for name in data if name.startswith("c")]
    columns = {**{name: data[name] for name in by}, "p": data["prediction"], "y": data["outcome"], "t": data["truth"]}
    train, test = ({name: column[rows] for name, column in columns.items()} for rows in (slice(n), slice(n, None)))
    return train, test, by


def crime(n: int, seed: int) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """Train a logistic regression on 500 rows; fit on n others, test on the rest."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    frame = pd.read_parquet(DATA / "communities_crime.parquet")
    y = (frame["ViolentCrimesPerPop"] > frame["ViolentCrimesPerPop"].median()).to_numpy(int)
    gone = ("ViolentCrimesPerPop", "county", "community", "communityname", "fold", "state")
    numbers = frame.drop(columns=[name for name in gone if name in frame]).dropna(axis=1).astype(float)
    order = np.random.default_rng([seed, 8]).permutation(len(y))
    own, train, test = order[:500], order[500 : 500 + n], order[500 + n :]
    base = make_pipeline(StandardScaler(), LogisticRegression(C=0.05, max_iter=2000)).fit(numbers.iloc[own], y[own])
    p = base.predict_proba(numbers)[:, 1]
    by = ["racepctblack", "medIncome", "PctIlleg", "pctUrban"]
    columns = {**{name: numbers[name].to_numpy() for name in by}, "p": p, "y": y, "t": y.astype(float)}
    return *({name: column[rows] for name, column in columns.items()} for rows in (train, test)), by


def log_loss(truth: Any, p: Any) -> float:
    p = np.clip(p, CLIP, 1 - CLIP)
    return float(-np.mean(truth * np.log(p) + (1 - truth) * np.log1p(-p)))


def one(setting: str, n: int, seed: int) -> dict[str, tuple[float, bool]]:
    """Give the change of log loss by every method, and whether it changed anything."""
    warnings.simplefilter("ignore")
    train, test, by = crime(n, seed) if setting == "crime" else simulated(n, seed, shifted=setting == "shifted")
    base, found = log_loss(test["t"], test["p"]), {}
    for name, make in {**METHODS, **PUBLISHED}.items():
        fix = make(by).fit(train, train["y"])
        found[name] = (log_loss(test["t"], fix.predict(test)) - base, bool(fix.history_.chosen))
    return found


def time_auto(repeat: int = 3) -> dict[str, dict[str, float]]:
    """Return the best time of fits of MCGrad and Auto to 20,000 simulated rows x 14 features, two threads."""
    shifts = [Shift({"c0": "c0_1"}, 0.9), Shift({"c1": "c1_0"}, -0.6)]
    data = population(20_000, 5, levels=(5, 3, 4, 10, 6, 2, 8), shifts=shifts)
    random = np.random.default_rng(0)
    columns = {name: column for name, column in data.items() if name.startswith("c")}
    columns |= {f"n{number}": random.normal(size=20_000) for number in range(14 - len(columns))}
    columns["p"] = data["prediction"]
    times: dict[str, dict[str, float]] = {}
    for _ in range(repeat):
        for name, kind in (("MCGrad", tu.MCGrad), ("Auto", tu.Auto)):
            wall, cpu = time.perf_counter(), time.process_time()
            kind("p", threads=2).fit(columns, data["outcome"])
            own = {"seconds": time.perf_counter() - wall, "CPU seconds": time.process_time() - cpu}
            best = times.setdefault(name, own)
            times[name] = {what: min(value, best[what]) for what, value in own.items()}
    return times


def holm(p: list[float]) -> list[float]:
    order = np.argsort(p)
    adjusted, most = [0.0] * len(p), 0.0
    for rank, at in enumerate(order):
        most = max(most, min(1.0, (len(p) - rank) * p[at]))
        adjusted[at] = most
    return adjusted


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    settings = [(kind, n) for kind in ("calibrated", "shifted") for n in SIZES] + [("crime", n) for n in CRIME]
    jobs = [(kind, n, seed) for kind, n in settings for seed in range(arguments.seeds)]
    with ProcessPoolExecutor(arguments.processes) as pool:
        done = dict(zip(jobs, pool.map(one, *zip(*jobs, strict=True), chunksize=1), strict=True))
    cells = []
    for kind, n in settings:
        for name in (*METHODS, *PUBLISHED):
            changes = np.array([done[kind, n, seed][name][0] for seed in range(arguments.seeds)])
            error = float(changes.std(ddof=1) / np.sqrt(arguments.seeds))
            acted = float(np.mean([done[kind, n, seed][name][1] for seed in range(arguments.seeds)]))
            cells.append({"setting": kind, "rows": n, "method": name, "change": float(changes.mean()), "error": error,
                          "worst": float(changes.max()), "acted": acted})  # fmt: skip
    judged = [cell for cell in cells if cell["method"] in METHODS]
    p = [float(ndtr(-cell["change"] / cell["error"])) if cell["error"] else 1.0 for cell in judged]
    for cell, adjusted in zip(judged, holm(p), strict=True):
        cell["p_adjusted"] = adjusted
        cell["harm"] = bool(adjusted < ndtr(-2.0) and cell["change"] >= LEAST)
    for cell in cells:
        print(f"{cell['setting']:>10} {cell['rows']:>5} {cell['method']:<22} {cell['change']:+.5f} "
              f"(s.e. {cell['error']:.5f}) worst {cell['worst']:+.4f} acted {cell['acted']:.2f} "
              f"{'HARM' if cell.get('harm') else ''}")  # fmt: skip
    harmed = sum(cell["harm"] for cell in judged)
    checks = {"cells that do harm": check("cells that do harm", harmed, 0, at_most=True)}
    changes = {name: np.array([done[job][name][0] for job in jobs]) for name in (*METHODS, *PUBLISHED)}
    shares = {
        name: {"worse": float((own > 0).mean()), "better": float((own < 0).mean()), "mean": float(own.mean())}
        for name, own in changes.items()
    }
    for name, share in shares.items():
        print(f"{name:<22} worse {share['worse']:.3f}, better {share['better']:.3f}, mean change {share['mean']:+.5f}")
    lowest = min(shares[f"{name}, all rows"]["worse"] for name in CURVES)  # their defaults
    title = "share of runs that Auto makes worse (bar: the lowest of Platt, Beta, Isotonic)"
    checks[title] = check(title, shares["Auto"]["worse"], lowest, at_most=True)
    difference = changes["Auto"] - changes["MCGrad"]
    for n in (500, 1000):
        own = difference[[size == n for _, size, _ in jobs]]
        behind = float(own.mean() / max(own.std(ddof=1) / np.sqrt(len(own)), 1e-12))
        title = f"Auto behind MCGrad, {n:,} rows, standard errors"
        checks[title] = check(title, behind, 2.0, at_most=True)
    times = time_auto()
    for what in ("seconds", "CPU seconds"):
        title = f"Auto over MCGrad, 20,000 x 14, {what}"
        checks[title] = check(title, times["Auto"][what] / times["MCGrad"][what], 3.0, at_most=True)
    save("small", {
        "seeds": arguments.seeds, "cells": cells, "judged": len(judged), "shares": shares, "times": times,
        "checks": checks,
    })  # fmt: skip


if __name__ == "__main__":
    main()
