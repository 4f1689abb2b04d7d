"""How often an audit raises a false alarm: calibrated data, and the share of audits that call it miscalibrated at 5%.

    python bench/null.py [--repetitions 400] [--peer]

Three sizes of the family, and for each plain scores, scores rounded to two decimals and scores of 1% prevalence: without
weights, with lognormal and with Pareto weights, and in clusters of 12 rows. Holm, the Monte-Carlo null (not for
clusters), and for comparison Holm with the plain Brownian limit, without the
correction for few expected events, for unequal weights and for clusters.
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
SCORES: dict[str, dict[str, Any]] = {"plain": {}, "rounded": {"decimals": 2}, "rare": {"prevalence": 0.01}}
ROWS_ARE = ("", "lognormal weights", "Pareto weights", "clusters of 12")
VARIANTS = [", ".join(filter(None, pair)) for pair in itertools.product(SCORES, ROWS_ARE)]


def data(levels: tuple[int, ...], seed: int, variant: str) -> dict[str, Any]:
    """Draw one calibrated population."""
    scores, _, rows = variant.partition(", ")
    found = tu.simulate.population(ROWS, seed, levels=levels, **SCORES[scores])
    found.pop("truth")
    random = np.random.default_rng([seed, 1])
    if "weights" in rows:
        found["weight"] = random.lognormal(0.0, 1.0, ROWS) if "lognormal" in rows else 1 + random.pareto(1.5, ROWS)
    if "clusters" in rows:
        found["cluster"] = np.arange(ROWS) // 12
        # Three tenths of the rows share the random number of their cluster.
        common = random.random(ROWS // 12)[found["cluster"]]
        uniform = np.where(random.random(ROWS) < 0.3, common, random.random(ROWS))
        found["outcome"] = (uniform < found["prediction"]).astype(int)
    return found


def one(task: tuple[str, str, int, bool]) -> dict[str, Any]:
    """Audit one population in every way."""
    size, variant, seed, draw = task
    columns = data(SIZES[size], seed, variant)
    roles = {name: name for name in ("outcome", "prediction", "weight", "cluster") if name in columns}
    holm = tu.audit(columns, **roles, threads=1)
    drawn = tu.audit(columns, **roles, threads=1, adjust="max", draws=199, random_state=seed) if draw else None
    return {
        "key": (size, variant),
        "segments": holm.tested,
        "holm": holm.miscalibrated,
        "max": np.nan if drawn is None else drawn.miscalibrated,
        "limit": limit_verdict(holm),
    }


def limit_verdict(audit: tu.Audit) -> bool:
    """Return whether Holm over the plain Brownian limit, with equal shares, finds an error."""
    sigma = audit.columns["sigma"][audit.columns["testable"]]
    return bool((adjust(limit_pvalues(sigma), "holm") <= 0.05).any())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=400)
    parser.add_argument("--peer", action="store_true", help="also count how often mcgrad 0.1.5 finds an error")
    given = parser.parse_args()
    tasks = [
        (size, variant, seed, "clusters" not in variant)
        for size, variant in itertools.product(SIZES, VARIANTS)
        for seed in range(given.repetitions)
    ]
    counts: dict[tuple[str, str], list[dict[str, Any]]] = {}
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for result in pool.map(one, tasks, chunksize=20):
            counts.setdefault(result["key"], []).append(result)
    figures: dict[str, Any] = {"repetitions": given.repetitions, "cells": []}
    for (size, variant), results in counts.items():
        segments = float(np.mean([result["segments"] for result in results]))
        print(f"{variant}, {segments:.0f} segments")
        shares, checks = {}, {}
        for way in ("holm", "max", "limit"):
            values = [result[way] for result in results if not np.isnan(result[way])]
            shares[way] = float(np.mean(values)) if values else None
            if values and way != "limit":
                bar = 0.05 + 2 * math.sqrt(0.05 * 0.95 / len(values))
                checks[way] = check(way, shares[way], bar, at_most=True)
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
