"""Measure whether the default fix leaves calibrated scores unchanged, and recovers errors from few rows and rare levels.

    python bench/harm.py [--only calibrated] [--seeds 200] [--processes 2]

With --only, the other parts are those of the last run.

calibrated  calibrated scores, 200 to 10,000 rows, 5 to 60 noise features, events in 1% to 50%: share of fits that change
            anything, and the mean change of log loss on new rows. MCGrad, DepthTwo and Auto.
clusters    calibrated scores of patients with 5 or 20 rows, correlation .3 or .6, `cluster="patient"`: on new patients.
line        slope and offset errors at 200 and 500 rows: the gain of MCGrad as a share of that of Platt.
rare        an error shared by 20 to 300 rare levels among 50,000 rows: the share corrected, beside mcgrad 0.1.5.
"""

from __future__ import annotations

import argparse
import json
import os
import warnings
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import pandas as pd
from scipy.special import expit, logit
from scipy.stats import norm

import trueup as tu
from cases import CASES
from common import ENVIRONMENTS, RESULTS, check, measured_again, run_peer, save

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

TEST_ROWS = 20_000
METHODS = {
    "MCGrad": lambda features: tu.MCGrad("p", features, threads=1),
    "DepthTwo": lambda features: tu.DepthTwo("p", features, threads=1),
    "Auto": lambda features: tu.Auto("p", features, threads=1),
}
CALIBRATED = [(n, k, rate) for n in (200, 1000, 2000, 10_000) for k in (5, 60) for rate in (0.01, 0.5)]
OTHERS = (2000, 5)  # rows and features with which DepthTwo and Auto are measured, too
CLUSTERS = [(size, icc) for size in (5, 20) for icc in (0.3, 0.6)]
LINES = [(n, rate, kind) for n in (200, 500) for rate in (0.5, 0.1) for kind in ("slope", "offset")]
RARE = [(100, 20), (20, 100), (300, 20)]
PEER = ENVIRONMENTS / "peer"


def log_loss(truth: Floats, p: Floats) -> float:
    p = np.clip(p, 1e-6, 1 - 1e-6)
    return float(-np.mean(truth * np.log(p) + (1 - truth) * np.log1p(-p)))


def scores(random: np.random.Generator, n: int, rate: float) -> Floats:
    return expit(logit(rate) + random.normal(0, 1, n))


def calibrated(n: int, features: int, rate: float, seed: int) -> dict[str, tuple[bool, float]]:
    """Fit every method on calibrated scores; return whether it changed anything, and the change of log loss."""
    random = np.random.default_rng([seed, n, features, int(1000 * rate)])
    total = n + TEST_ROWS
    data: dict[str, Any] = {f"x{k}": random.normal(size=total) for k in range(features - 2)}
    data |= {f"c{k}": random.integers(0, 6, total).astype(str) for k in range(2)}
    names, p = list(data), scores(random, total, rate)
    y = (random.random(total) < p).astype(float)
    train = {name: column[:n] for name, column in data.items()} | {"p": p[:n], "y": y[:n]}
    test = {name: column[n:] for name, column in data.items()} | {"p": p[n:]}
    if len(np.unique(train["y"])) < 2:
        return dict.fromkeys(METHODS if (n, features) == OTHERS else ["MCGrad"], (False, 0.0))
    found = {}
    for name, make in METHODS.items():
        if name != "MCGrad" and (n, features) != OTHERS:
            continue
        fix = make(names).fit(train, "y")
        after = fix.predict(test)
        found[name] = (bool((after != test["p"]).any()), log_loss(p[n:], after) - log_loss(p[n:], p[n:]))
    return found


def clusters(size: int, icc: float, seed: int) -> dict[str, tuple[bool, float]]:
    """Fit MCGrad on 400 patients with features of their own and correlated outcomes; measure on new patients."""
    random = np.random.default_rng([seed, size, int(10 * icc)])
    patients = 400 + TEST_ROWS // size
    of_row = np.repeat(np.arange(patients), size)
    effect = random.normal(size=patients)
    features = {f"x{k}": random.normal(size=patients)[of_row] for k in range(8)}
    p = scores(random, patients, 0.3)[of_row]
    latent = np.sqrt(icc) * effect[of_row] + np.sqrt(1 - icc) * random.normal(size=len(of_row))
    y = (latent < norm.ppf(p)).astype(float)
    rows = of_row < 400
    train = {name: column[rows] for name, column in features.items()} | {
        "p": p[rows],
        "y": y[rows],
        "patient": of_row[rows],
    }
    test = {name: column[~rows] for name, column in features.items()} | {"p": p[~rows]}
    fix = tu.MCGrad("p", list(features), threads=1).fit(train, "y", cluster="patient")
    after = fix.predict(test)
    return {"MCGrad": (bool((after != test["p"]).any()), log_loss(p[~rows], after) - log_loss(p[~rows], test["p"]))}


def line(n: int, rate: float, kind: str, seed: int) -> dict[str, float]:
    """Return the gain in log loss of MCGrad and of Platt where scores need a line."""
    random = np.random.default_rng([seed, n, int(100 * rate)])
    total = n + TEST_ROWS
    truth = logit(rate) + random.normal(0, 1.5, total)
    F = logit(rate) + 2.0 * (truth - logit(rate)) if kind == "slope" else truth + 1.0
    y = (random.random(total) < expit(truth)).astype(float)
    data = {f"x{k}": random.normal(size=total) for k in range(5)} | {"p": expit(F), "y": y}
    train, test = ({name: column[rows] for name, column in data.items()} for rows in (slice(n), slice(n, None)))
    before = log_loss(expit(truth[n:]), test["p"])
    made = {"MCGrad": tu.MCGrad("p", [f"x{k}" for k in range(5)], threads=1), "Platt": tu.Platt("p")}
    return {name: before - log_loss(expit(truth[n:]), fix.fit(train, "y").predict(test)) for name, fix in made.items()}


def rare(levels: int, rows: int, seed: int) -> tuple[pd.DataFrame, pd.DataFrame, Floats]:
    """Make 50,000 rows for calibration and as many for the test; rare levels have twice the predicted odds."""
    random = np.random.default_rng([seed, levels, rows])
    half, inside = 50_000, levels * rows

    def draw() -> tuple[pd.DataFrame, Floats]:
        names = [f"common{k}" for k in range(10)]
        level = np.concatenate([
            np.repeat([f"rare{k}" for k in range(levels)], rows), random.choice(names, half - inside),
        ]).astype(object)  # fmt: skip
        p = scores(random, half, 0.15)
        truth = expit(logit(p) + np.log(2.5) * np.char.startswith(level.astype(str), "rare"))
        y = (random.random(half) < truth).astype(np.int8)
        other = random.integers(0, 5, half).astype(str).astype(object)
        return pd.DataFrame({"level": level, "other": other, "x": random.normal(size=half), "p": p, "y": y}), truth

    train, _ = draw()
    test, truth = draw()
    return train, test, truth


def rare_levels(seeds: int) -> list[dict[str, Any]]:
    """Measure the share of the error of rare levels that is corrected, and the gain, by us and by mcgrad."""
    CASES.mkdir(parents=True, exist_ok=True)
    PEER.mkdir(parents=True, exist_ok=True)
    made = {}
    for levels, rows in RARE:
        for seed in range(seeds):
            train, test, truth = rare(levels, rows, seed)
            name = f"rare-{levels}x{rows}-{seed}"
            both = pd.concat([train.assign(part="calibration"), test.assign(part="test")])
            both.to_parquet(CASES / f"{name}.parquet")
            made[name] = (levels, rows, train, test, truth)
    run_peer("mcgrad", "mcgrad_fit.py", "fit", str(PEER), *(str(CASES / f"{name}.parquet") for name in made))
    found = []
    for name, (levels, rows, train, test, truth) in made.items():
        inside, base = test["level"].str.startswith("rare").to_numpy(), test["p"].to_numpy()
        predicted = {
            "trueup": tu.MCGrad("p", threads=2).fit(train, "y").predict(test),
            "mcgrad": np.load(PEER / f"{name}.npz")["p"],
        }
        row: dict[str, Any] = {"case": name, "levels": levels, "rows": rows}
        for who, p in predicted.items():
            error = (truth - base)[inside].mean()
            row[who] = {
                "corrected": float((p - base)[inside].mean() / error),
                "gain": log_loss(truth, base) - log_loss(truth, p),
            }
        found.append(row)
        print(row, flush=True)
    return found


def job(arguments: tuple[str, tuple[Any, ...], int]) -> Any:
    warnings.simplefilter("ignore")
    kind, cell, seed = arguments
    return {"calibrated": calibrated, "clusters": clusters, "line": line}[kind](*cell, seed)


def summarise(kind: str, cell: tuple[Any, ...], results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if kind == "line":
        gains = {name: float(np.mean([result[name] for result in results])) for name in ("MCGrad", "Platt")}
        return [{"cell": list(cell), "seeds": len(results), **gains, "share": gains["MCGrad"] / gains["Platt"]}]
    rows = []
    for name in results[0]:
        changes = np.array([result[name][1] for result in results])
        rows.append({
            "cell": list(cell), "seeds": len(results), "method": name,
            "changed": float(np.mean([result[name][0] for result in results])),
            "harm": float(changes.mean()), "error": float(changes.std(ddof=1) / np.sqrt(len(changes))),
        })  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--rare-seeds", type=int, default=8)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--most", type=int, default=10_000, help="rows of the largest calibrated samples")
    arguments = parser.parse_args()
    grids: dict[str, list[Any]] = {"calibrated": CALIBRATED, "clusters": CLUSTERS, "line": LINES}
    grids["calibrated"] = [cell for cell in CALIBRATED if cell[0] <= arguments.most]
    grids = {kind: cells for kind, cells in grids.items() if arguments.only in ("", kind)}
    kept = RESULTS / "harm.json"
    found: dict[str, Any] = json.loads(kept.read_text()) if arguments.only and kept.exists() else {}
    with ProcessPoolExecutor(arguments.processes) as pool:
        for kind, cells in grids.items():
            found[kind] = []
            for cell in cells:
                results = list(pool.map(job, [(kind, cell, seed) for seed in range(arguments.seeds)], chunksize=5))
                rows = summarise(kind, cell, results)
                for row in rows:
                    print(kind, row, flush=True)
                found[kind] += rows
    if arguments.only in ("", "rare"):
        found["rare"] = rare_levels(arguments.rare_seeds)
    checks = {}
    if "calibrated" in found:
        # A share of 5% is exceeded by chance: two standard errors of it.
        most = 0.05 + 2 * np.sqrt(0.05 * 0.95 / min(row["seeds"] for row in found["calibrated"]))
        changed = max(row["changed"] for row in found["calibrated"])
        harm = max(row["harm"] / max(row["error"], 1e-12) for row in found["calibrated"])
        checks["calibrated scores changed"] = check("calibrated scores changed", changed, most, at_most=True)
        checks["harm in standard errors"] = check("harm in standard errors", harm, 2.0, at_most=True)
    if "clusters" in found:
        harm = max(row["harm"] / max(row["error"], 1e-12) for row in found["clusters"])
        checks["harm to new patients"] = check("harm to new patients, in standard errors", harm, 2.0, at_most=True)
    if "line" in found:
        least = min(row["share"] for row in found["line"])
        checks["share of Platt's gain"] = check("share of Platt's gain", least, 0.8, at_most=False)
    if "rare" in found:
        for levels, rows in RARE:
            own = [row for row in found["rare"] if (row["levels"], row["rows"]) == (levels, rows)]
            name = f"{levels} levels of {rows} rows, share corrected"
            checks[name] = check(name, float(np.mean([row["trueup"]["corrected"] for row in own])), 0.85, at_most=False)
            name = f"{levels} levels of {rows} rows, gain over mcgrad's"
            ratio = sum(row["trueup"]["gain"] for row in own) / sum(row["mcgrad"]["gain"] for row in own)
            checks[name] = check(name, ratio, 1.0, at_most=False)
    measured_again(found, {*grids, *(["rare"] if arguments.only in ("", "rare") else [])})
    save("harm", {**found, "checks": checks})


if __name__ == "__main__":
    main()
