"""False alarms and power of audits with clusters, and what they cost.

    python bench/clusters.py [--repetitions 400] [--cells NAME ...]

A cell is a kind of calibrated data whose rows are in clusters: the share of audits with ``cluster=`` that call it
miscalibrated at 5%, beside the share without. Two rows of a cluster use the same random number with probability ``icc``.
Power: an error is planted in one segment; the oracle is the same test with the true correlation in every segment. Cost:
100,000 rows, 12 columns, depth 2, with clusters as a multiple of the audit without.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from typing import Any
from unittest import mock

import numpy as np
from scipy.special import expit, logit

import trueup as tu
from common import RESULTS, check, save
from trueup.audits import clusters

ROWS = 6000
LEVELS = (4, 4, 4, 4, 4, 4)
ROLES = {"outcome": "outcome", "prediction": "prediction"}
CELLS: dict[str, dict[str, Any]] = {
    **{f"{m} rows, icc {icc}": {"size": m, "icc": icc} for m in (4, 12, 50) for icc in (0.02, 0.1, 0.3, 1.0)},
    "clusters of one": {"size": 1, "icc": 1.0},
    "scores vary within clusters": {"size": 12, "icc": 0.5, "vary": "scores"},
    "segments vary within clusters": {"size": 12, "icc": 0.5, "vary": "segments"},
    "both vary within clusters": {"size": 12, "icc": 1.0, "vary": "scores segments"},
    "Zipf sizes": {"size": 12, "icc": 0.3, "zipf": True, "rows": 24_000},
    "Zipf sizes, icc 1": {"size": 12, "icc": 1.0, "zipf": True, "rows": 24_000},
    "2% events, 4 rows": {"size": 4, "icc": 0.3, "prevalence": 0.02},
    "2% events, 12 rows": {"size": 12, "icc": 0.3, "prevalence": 0.02},
    "2% events, 12 rows, icc 1": {"size": 12, "icc": 1.0, "prevalence": 0.02},
    "0.5% events, 12 rows": {"size": 12, "icc": 0.3, "prevalence": 0.005},
    "95% events, 12 rows": {"size": 12, "icc": 0.3, "prevalence": 0.95},
    "weights of rows": {"size": 12, "icc": 0.3, "weights": "rows"},
    "weights of clusters": {"size": 12, "icc": 0.3, "weights": "clusters"},
    "weights of clusters, 2% events": {"size": 12, "icc": 0.3, "weights": "clusters", "prevalence": 0.02},
    "icc four times as large in one category": {"size": 12, "icc": 0.1, "uneven": 4},
    "icc 1 in one category of icc 0": {"size": 12, "icc": 0.0, "uneven": 1},
    "opposite errors at low and high scores": {"size": 12, "icc": 0.0, "opposite": True},
    "some rows repeated": {"size": 1, "icc": 1.0, "repeated": 0.1},
    "100 clusters of 60": {"size": 60, "icc": 0.3},
    "30 clusters of 200": {"size": 200, "icc": 0.1},
    "three classes": {"size": 12, "icc": 0.5, "classes": 3},
    **{f"amounts: {kind}, 12 rows, factor {spread}": {"amounts": kind, "size": 12, "spread": spread}
       for kind in ("gamma", "lognormal", "poisson", "claims") for spread in (0.3, 1.0)},
    "amounts: copies": {"amounts": "copies", "size": 8, "spread": 0.0},
    "amounts: gamma, 50 rows, factor 0.5": {"amounts": "gamma", "size": 50, "spread": 0.5},
}  # fmt: skip
POWER: dict[str, dict[str, Any]] = {
    "12 rows, icc 0.1": {"size": 12, "icc": 0.1, "shift": 0.34},
    "12 rows, icc 0.3": {"size": 12, "icc": 0.3, "shift": 0.47},
    "4 rows, icc 0.3": {"size": 4, "icc": 0.3, "shift": 0.34},
    "50 rows, icc 0.1": {"size": 50, "icc": 0.1, "shift": 0.55},
    "segments vary within clusters": {"size": 12, "icc": 0.5, "vary": "segments", "shift": 0.34},
    "2% events, 12 rows": {"size": 12, "icc": 0.1, "prevalence": 0.02, "shift": 0.8},
    "Zipf sizes": {"size": 12, "icc": 0.1, "zipf": True, "rows": 24_000, "shift": 0.5},
}  # fmt: skip


def data(
    seed: int, size: int, icc: float, *, vary: str = "", zipf: bool = False, prevalence: float = 0.3, weights: str = "",
    uneven: float = 0.0, opposite: bool = False, repeated: float = 0.0, classes: int = 0, shift: float = 0.0,
    rows: int = ROWS, levels: tuple[int, ...] = LEVELS,
) -> dict[str, Any]:  # fmt: skip
    """Draw one population; ``shift`` is added to the log odds of the outcomes in one level of the first column."""
    random = np.random.default_rng([seed, 12])
    count = max(rows // size, 2)
    sizes = np.full(count, size)
    if zipf:
        share = np.arange(1, count + 1) ** -0.7
        sizes = np.maximum(np.round(rows * share / share.sum()), 1).astype(int)
    cluster = np.repeat(np.arange(count), sizes)
    if repeated:
        cluster = np.concatenate([cluster, random.choice(count, int(repeated * count))])
    n = len(cluster)
    within = 0.3 + 0.7 * ("scores" in vary)
    spread = np.sqrt(1 - within**2) * random.normal(size=count)[cluster] + within * random.normal(size=n)
    found: dict[str, Any] = {"customer": cluster}
    for column, width in enumerate(levels):
        drawn = random.integers(0, width, n if "segments" in vary else count)
        found[f"f{column}"] = np.array(list("abcdefghij"))[drawn if "segments" in vary else drawn[cluster]]
    rate = np.full(n, icc)
    if uneven:
        rate = np.where(found["f0"] == "a", uneven if icc == 0 else uneven * icc, icc)
    is_shared = random.random(n) < np.sqrt(rate)
    uniform = np.where(is_shared, random.random(count)[cluster], random.random(n))
    if weights:
        drawn_weights = random.lognormal(0.0, 1.0, count if weights == "clusters" else n)
        found["weight"] = drawn_weights[cluster] if weights == "clusters" else drawn_weights
    if classes:
        scores = expit(np.stack([spread, random.normal(size=n), np.zeros(n)], axis=1))
        scores /= scores.sum(axis=1, keepdims=True)
        found |= {f"p{label}": scores[:, label] for label in range(classes)}
        found["outcome"] = (uniform[:, None] >= np.cumsum(scores, axis=1)).sum(axis=1).clip(0, classes - 1)
        return found
    log_odds = logit(prevalence) + 0.8 * spread
    found["prediction"] = expit(log_odds)
    if opposite:
        # The errors of a cluster have one sign at its low scores and the other at its high ones.
        shared = random.random(count)[cluster]
        uniform = np.where(spread > 0, shared, 1 - shared)
    truth = expit(log_odds + shift * (found["f0"] == "a"))
    found["outcome"] = (uniform < truth).astype(float)
    return found


def draw_amounts(seed: int, size: int, amounts: str, spread: float) -> dict[str, Any]:
    """Draw real outcomes with the prediction as their mean, and a lognormal factor shared by the rows of a cluster."""
    random = np.random.default_rng([seed, 13])
    count = ROWS // size
    cluster = np.repeat(np.arange(count), size)
    p = np.exp(0.5 * random.normal(size=count)[cluster] + 0.2 * random.normal(size=len(cluster)) * (amounts != "copies"))
    mean = p * np.exp(spread * random.normal(size=count) - spread**2 / 2)[cluster]
    n = len(p)
    y = {
        "gamma": mean * random.gamma(2.0, 0.5, n), "lognormal": mean * random.lognormal(-0.5, 1.0, n),
        "poisson": random.poisson(mean * 0.5) / 0.5, "copies": mean * random.gamma(2.0, 0.5, count)[cluster],
        "claims": np.where(random.random(n) < 0.1, mean * random.exponential(10.0, n), 0.0),
    }[amounts]  # fmt: skip
    found: dict[str, Any] = {"customer": cluster, "prediction": p, "outcome": y}
    for column, width in enumerate(LEVELS):
        found[f"f{column}"] = np.array(list("abcd"))[random.integers(0, width, count)[cluster]]
    return found


def audit(columns: dict[str, Any], *, clustered: bool = True) -> tu.Audit:
    """Audit one population with or without its clusters."""
    roles: dict[str, Any] = {**ROLES, "weight": "weight" if "weight" in columns else None}
    if "p0" in columns:
        roles["prediction"] = [name for name in columns if name.startswith("p")]
    roles["task"] = "auto" if "p0" in columns or columns["outcome"].max() == 1 else "regression"
    columns = columns if clustered else {name: column for name, column in columns.items() if name != "customer"}
    return tu.audit(columns, **roles, cluster="customer" if clustered else None, threads=1)


def alarm(task: tuple[str, int]) -> dict[str, Any]:
    """Audit one calibrated population in both ways."""
    cell, seed = task
    columns = (draw_amounts if "amounts" in CELLS[cell] else data)(seed, **CELLS[cell])
    found = audit(columns)
    few = int((~found.columns["testable"] & (found.columns["n"] >= found.settings.min_rows)).sum())
    tested = found.columns["testable"]
    return {
        "key": cell, "clusters": found.miscalibrated, "plain": audit(columns, clustered=False).miscalibrated,
        "few": few, "tested": found.tested, "design": float(found.overall.design_effect or 1.0),
        "smallest": float(np.nanmin(found.columns["p_adjusted"])) if tested.any() else 1.0,
    }  # fmt: skip


def power(task: tuple[str, int]) -> dict[str, Any]:
    """Audit one population with a planted error, by the test and by its oracle."""
    cell, seed = task
    options = POWER[cell]
    columns, truth = data(seed, **options), true_correlation(cell)
    segment = "f0=a"
    found = audit(columns)
    with (
        mock.patch.object(clusters, "pooled_correlation", return_value=truth),
        mock.patch.object(clusters.ClusterEffects, "floor", no_floor),
    ):
        oracle = audit(columns)
    return {
        "key": cell, "found": found[segment].p_adjusted <= 0.05, "oracle": oracle[segment].p_adjusted <= 0.05,
    }  # fmt: skip


@cache
def true_correlation(cell: str) -> float:
    """Estimate the correlation of residuals within clusters from calibrated populations."""
    options = {**POWER[cell], "shift": 0.0}
    return float(np.mean([correlation(data(9999 + index, **options)) for index in range(40)]))


def no_floor(_: clusters.ClusterEffects, tally: Any, noise: Any = None) -> Any:  # noqa: ARG001
    """Skip the own check of segments."""
    return np.zeros(len(tally))


def correlation(columns: dict[str, Any]) -> float:
    """Estimate the correlation of residuals within clusters of one population."""
    e, p, cluster = columns["outcome"] - columns["prediction"], columns["prediction"], columns["customer"]
    t = np.sqrt(p * (1 - p))
    pairs = [float((np.bincount(cluster, values) ** 2).sum() - (values**2).sum()) for values in (e, t)]
    return pairs[0] / pairs[1]


def cost() -> dict[str, Any]:
    """Time audits of 100,000 rows and 12 columns at depth 2, for several sizes of clusters, in CPU seconds."""
    figures = {}
    for size in (1, 10, 1000):
        columns = data(1, size, 0.1, rows=100_000, levels=(10,) * 12)
        times: dict[bool, list[float]] = {False: [], True: []}
        for _ in range(9):
            for clustered, own in times.items():
                start = time.process_time()
                audit(columns, clustered=clustered)
                own.append(time.process_time() - start)
        plain, with_clusters = (min(own) for own in times.values())
        multiple = with_clusters / plain
        figures[f"{size} rows per cluster"] = {"plain": plain, "clusters": with_clusters, "multiple": multiple}
        print(f"{size} rows per cluster: {plain:.3f} s plain, {with_clusters:.3f} s with clusters, x{multiple:.2f}")
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=400)
    parser.add_argument("--cells", nargs="*", help="parts of the names of cells; by default all, and power and cost")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    given = parser.parse_args()
    chosen = CELLS if given.cells is None else [cell for cell in CELLS if any(part in cell for part in given.cells)]
    bar = 0.05 + 2 * math.sqrt(0.05 * 0.95 / given.repetitions)
    figures: dict[str, Any] = {"repetitions": given.repetitions, "alarms": {}, "power": {}}
    if given.cells is not None and (RESULTS / "clusters.json").exists():  # other figures stay as they are
        figures = json.loads((RESULTS / "clusters.json").read_text())
    with ProcessPoolExecutor(given.processes) as pool:
        for cell in chosen:
            results = list(pool.map(alarm, [(cell, seed) for seed in range(given.repetitions)], chunksize=10))
            means = {name: float(np.mean([r[name] for r in results])) for name in results[0] if name != "key"}
            print(f"{cell}: {means['tested']:.0f} segments, {means['few']:.0f} not testable, design effect "
                  f"{means['design']:.2f}, without clusters {means['plain']:.3f}", flush=True)  # fmt: skip
            figures["alarms"][cell] = {**means, "check": check("false alarms", means["clusters"], bar, at_most=True)}
        for cell in POWER if given.cells is None else ():
            results = list(pool.map(power, [(cell, seed) for seed in range(given.repetitions)], chunksize=10))
            means = {name: float(np.mean([r[name] for r in results])) for name in ("found", "oracle")}
            print(f"{cell}: found {means['found']:.2f}, oracle {means['oracle']:.2f}", flush=True)
            figures["power"][cell] = means
    if given.cells is None:
        figures["cost"] = cost()
    save("clusters", figures)


if __name__ == "__main__":
    main()
