"""How often does an audit cry wolf? Calibrated data, the share of audits that call it miscalibrated at 5%.

    python bench/null.py [--repetitions 500] [--peer]

Three sizes of the family, and for each: plain scores, scores rounded to two decimals, weights, 1% prevalence, and weights
with 1% prevalence; Holm and the Monte-Carlo null beside the plain Brownian limit with Holm, which is what one would
compute without the correction for few expected events.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np

import trueup as tu
from common import check, run_peer, save
from trueup.metrics.inference import adjust, limit_pvalues

ROWS = 3000
SIZES = {"4": (3,), "60": (4, 4, 4), "400": (4, 4, 4, 4, 4, 4, 4, 3)}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "rounded": {"decimals": 2},
    "weighted": {"weighted": True},
    "rare": {"prevalence": 0.01},
    "rare, weighted": {"prevalence": 0.01, "weighted": True},
}


def data(levels: tuple[int, ...], seed: int, weighted: bool = False, **options: Any) -> dict[str, Any]:
    """Draw one calibrated population."""
    found = tu.simulate.population(ROWS, seed, levels=levels, **options)
    found.pop("truth")
    if weighted:
        found["weight"] = np.random.default_rng([seed, 1]).lognormal(0.0, 1.0, ROWS)
    return found


def one(task: tuple[str, str, int]) -> dict[str, Any]:
    """Audit one population in every way."""
    size, variant, seed = task
    options = VARIANTS[variant]
    columns = data(SIZES[size], seed, **options)
    roles = {"outcome": "outcome", "prediction": "prediction", "weight": "weight" if options.get("weighted") else None}
    holm = tu.audit(columns, **roles, threads=1)
    shared = tu.audit(columns, **roles, threads=1, adjust="max", draws=199, random_state=seed)
    return {
        "key": (size, variant),
        "segments": holm.tested,
        "holm": holm.miscalibrated,
        "max": shared.miscalibrated,
        "limit": limit_verdict(holm),
    }


def limit_verdict(audit: tu.Audit) -> bool:
    """Say what Holm over the plain Brownian limit would have said."""
    sigma = audit.columns["sigma"][audit.columns["testable"]]
    return bool((adjust(limit_pvalues(sigma), "holm") <= 0.05).any())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=500)
    parser.add_argument("--peer", action="store_true", help="also count how often mcgrad 0.1.5 fires")
    given = parser.parse_args()
    tasks = [(s, v, seed) for s, v in itertools.product(SIZES, VARIANTS) for seed in range(given.repetitions)]
    counts: dict[tuple[str, str], list[dict[str, Any]]] = {}
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for result in pool.map(one, tasks, chunksize=20):
            counts.setdefault(result["key"], []).append(result)
    bar = 0.05 + 3 * math.sqrt(0.05 * 0.95 / given.repetitions)
    figures: dict[str, Any] = {"repetitions": given.repetitions, "cells": []}
    for (size, variant), results in counts.items():
        segments = float(np.mean([r["segments"] for r in results]))
        print(f"{variant}, {segments:.0f} segments")
        shares = {way: float(np.mean([r[way] for r in results])) for way in ("holm", "max", "limit")}
        checks = {way: check(way, shares[way], bar, at_most=True) for way in ("holm", "max")}
        if variant == "plain":
            checks["max is not useless"] = check("max", shares["max"], 0.02, at_most=False)
        print(f"         the plain limit: {shares['limit']:.3f}")
        figures["cells"].append(
            {"size": size, "variant": variant, "segments": segments, "shares": shares, "checks": checks}
        )
    if given.peer:
        figures["mcgrad"] = run_peer("mcgrad", "mcgrad_audit.py", "null", "100")
        print(f"mcgrad 0.1.5: {figures['mcgrad']}")
    save("null", figures)


if __name__ == "__main__":
    main()
