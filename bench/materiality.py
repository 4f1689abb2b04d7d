"""Materiality and distinct problems: false calls at the tolerance, power beyond it, and how problems condense findings.

    python bench/materiality.py [--repetitions 400] [--processes 2]

Simulated rows of three columns whose errors lie exactly at the tolerance: the share of audits that call something material
must be at most alpha; where all rows are at the tolerance, so must the share that call something within tolerance. Then
scores of models of real data (bench/cases.py): findings, problems, and the largest share of rows that two problems share.
"""

from __future__ import annotations

import argparse
import math
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

import trueup as tu
from cases import cases
from common import check, save

ALPHA, ROWS = 0.05, 5_000
ROLES = {"outcome": "y", "prediction": "p"}
LEVELS = {"a": 4, "b": 8, "c": 12}
REAL = ("bank_marketing-forest-0", "adult-logistic-0", "adult-forest-0", "bank_marketing-logistic-0",
        "acs_employment_ma-own-0", "covertype-logistic-0")  # fmt: skip
NAMED = REAL[:2]  # those with a bar


def columns(random: np.random.Generator) -> dict[str, Any]:
    """Draw the levels of three columns."""
    return {name: np.array([f"{name}{level}" for level in range(count)])[random.integers(0, count, ROWS)]
            for name, count in LEVELS.items()}  # fmt: skip


def binary(
    random: np.random.Generator, factor: Any, low: float = 0.05, high: float = 0.4, shift: float = 0.0
) -> dict[str, Any]:
    """Draw outcomes of probability ``factor`` (a number, or a function of columns and scores) times the score + shift."""
    data = columns(random)
    p = random.uniform(low, high, ROWS)
    times = factor(data, p) if callable(factor) else factor
    return {**data, "p": p, "y": (random.random(ROWS) < times * p + shift).astype(float)}


def weighted(random: np.random.Generator) -> dict[str, Any]:
    """Draw rows with lognormal weights."""
    return {**binary(random, 1.1), "w": random.lognormal(0, 1, ROWS)}


def clustered(random: np.random.Generator) -> dict[str, Any]:
    """Draw clusters of five rows that share their random number with probability 1/2."""
    data = binary(random, 1.1)
    cluster = np.arange(ROWS) // 5
    uniform = np.where(random.random(ROWS) < 0.5, random.random(ROWS)[cluster], random.random(ROWS))
    return {**data, "y": (uniform < 1.1 * data["p"]).astype(float), "k": cluster}


def real(random: np.random.Generator, noise: str) -> dict[str, Any]:
    """Draw real outcomes whose mean is 1.1 times the prediction."""
    p = random.uniform(5, 15, ROWS)
    mean = 1.1 * p
    y = mean + random.normal(0, 4, ROWS) if noise == "normal" else mean * random.gamma(2, 0.5, ROWS)
    return {**columns(random), "p": p, "y": y}


AT_TOLERANCE: dict[str, tuple[Any, dict[str, Any]]] = {
    "10%, all rows at 1.1": (partial(binary, factor=1.1), {"tolerance": "10%"}),
    "10%, all rows at 1/1.1": (partial(binary, factor=1 / 1.1), {"tolerance": "10%"}),
    "10%, one level at 1.1": (partial(binary, factor=lambda d, _: np.where(d["a"] == "a1", 1.1, 1)), {"tolerance": "10%"}),
    "10%, low scores at 1.1, high at 1/1.1":
        (partial(binary, factor=lambda _, p: np.where(p < 0.2, 1.1, 1 / 1.1)), {"tolerance": "10%"}),
    "50%, rates of 1%, all rows at 1.5": (partial(binary, factor=1.5, low=0.002, high=0.02), {"tolerance": "50%"}),
    "10%, rates of 95%, all rows at 1/1.1": (partial(binary, factor=1 / 1.1, low=0.9, high=1.0), {"tolerance": "10%"}),
    "0.02, all rows 0.02 higher": (partial(binary, factor=1.0, shift=0.02), {"tolerance": 0.02}),
    "10%, lognormal weights": (weighted, {"tolerance": "10%", "weight": "w"}),
    "10%, clusters of five": (clustered, {"tolerance": "10%", "cluster": "k"}),
    "10%, normal amounts": (partial(real, noise="normal"), {"tolerance": "10%", "task": "regression"}),
    "10%, gamma amounts": (partial(real, noise="gamma"), {"tolerance": "10%", "task": "regression"}),
}  # fmt: skip
# Segments without the level, and means over all scores, are within the tolerance.
WITHIN_SOMEWHERE = ("10%, one level at 1.1", "10%, low scores at 1.1, high at 1/1.1")
BEYOND = {"10%, all rows at 1.3": partial(binary, factor=1.3), "10%, one level of four at 1.4":
          partial(binary, factor=lambda d, _: np.where(d["a"] == "a1", 1.4, 1))}  # fmt: skip


def at_tolerance(name: str, seed: int) -> tuple[bool, bool, bool]:
    """Audit one data set; return whether something is called miscalibrated, material, and within tolerance."""
    make, settings = AT_TOLERANCE[name]
    audit = tu.audit(make(np.random.default_rng([seed, 11])), **ROLES, by=list(LEVELS), **settings, threads=1)
    return audit.miscalibrated, bool(audit.is_material.any()), audit.count_state("within tolerance") > 0


def beyond(name: str, seed: int) -> bool:
    """Return whether an error beyond the tolerance is called material."""
    data = BEYOND[name](np.random.default_rng([seed, 12]))
    return bool(tu.audit(data, **ROLES, by=list(LEVELS), tolerance="10%", threads=1).is_material.any())


def condensed(path: Any) -> dict[str, Any]:
    """Audit the calibration and test rows of a model of real data; count findings and problems."""
    frame = pd.read_parquet(path).drop(columns="part")
    tu.audit(frame, **ROLES)
    start = time.process_time()
    audit = tu.audit(frame, **ROLES)
    middle = time.process_time()
    problems = audit.problems
    end = time.process_time()
    held = audit.held_rows
    codes = held.grid.encode([column.astype(np.int32) for column in held.codes])
    keys = [(held.families[0].keys[0][at], held.families[0].keys[1][at])
            for at in held.findings.order[[found.rank for found in held.problems]]]  # fmt: skip
    masks = []
    for wanted, levels in keys:
        mask = np.ones(len(frame), bool)
        for column, level in zip(wanted, levels, strict=True):
            mask &= True if column < 0 else codes[column] == level
        masks.append(mask)
    common = [(one & two).sum() / (one | two).sum() for at, one in enumerate(masks) for two in masks[:at]]
    return {
        "rows": len(frame), "segments": audit.tested, "findings": audit.rejected, "problems": len(problems),
        "examined": min(audit.rejected, 512), "common": float(max(common, default=0.0)),
        "audit_s": middle - start, "problems_s": end - middle,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=400)
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    n = given.repetitions
    limit = ALPHA + 2 * math.sqrt(ALPHA * (1 - ALPHA) / n)
    results: dict[str, Any] = {"repetitions": n, "alarms": {}, "power": {}, "problems": {}}
    with ProcessPoolExecutor(given.processes) as pool:
        for name in AT_TOLERANCE:
            calls = list(pool.map(partial(at_tolerance, name), range(n), chunksize=10))
            detected, material, within = (float(share) for share in np.mean(calls, axis=0))
            cell = {"detected": detected, "material": check(name, material, limit, at_most=True)}
            if name not in WITHIN_SOMEWHERE:
                cell["within"] = check(f"{name}: within", within, limit, at_most=True)
            results["alarms"][name] = cell
        for name in BEYOND:
            results["power"][name] = float(np.mean(list(pool.map(partial(beyond, name), range(n // 4)))))
            print(f"  {name}: material in {results['power'][name]:.2f}")
    for case in cases(1):
        if case.name in REAL:
            cell = condensed(case.path)
            results["problems"][case.name] = cell
            print(f"  {case.name}: {cell}")
            if case.name in NAMED:
                share = cell["problems"] / cell["findings"]
                cell["share"] = check(f"{case.name}: problems over findings", share, 0.2, at_most=True)
                cell["overlap"] = check(f"{case.name}: rows in common", cell["common"], 0.9, at_most=True)
    save("materiality", results)


if __name__ == "__main__":
    main()
