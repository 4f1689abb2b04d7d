"""Does `calibration_bound` hold as often as it says? Populations whose calibration measure c is known in closed form.

    python bench/bound.py [--repetitions 2000]

Each bound must hold in at least 1 - delta of the repetitions, less three standard errors; the paper's form and the proved
one stand beside the default, with their half-widths.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

import trueup as tu
from common import check, save

if TYPE_CHECKING:
    from collections.abc import Callable

    Floats = np.ndarray[Any, np.dtype[np.float64]]

ROWS = (200, 2_000, 20_000)
DELTAS = (0.1, 0.01)
# Highest score, what the truth is for a score, and c: the largest mean error over any interval of scores.
POPULATIONS: dict[str, tuple[float, Callable[[Floats], Floats], float]] = {
    "calibrated": (0.9, lambda p: p, 0.0),
    "calibrated, rare": (0.02, lambda p: p, 0.0),
    "too low below 1/4": (0.5, lambda p: p + 0.08 * (p < 0.25), 0.04),
    "rare, twice as often": (0.04, lambda p: 2 * p, 0.02),
    "too low, then too high": (0.8, lambda p: p + np.where(p < 0.4, 0.1, -0.1), 0.05),
}


def one(task: tuple[str, int, int]) -> list[dict[str, Any]]:
    """Draw one sample and bound it in every way."""
    name, rows, seed = task
    top, truth, c = POPULATIONS[name]
    random = np.random.default_rng([seed, rows])
    p = random.uniform(0, top, rows)
    y = (random.random(rows) < truth(p)).astype(float)
    out = []
    for delta, method in itertools.product(DELTAS, ("normal", "bernstein", "paper")):
        bound = tu.metrics.calibration_bound(y, p, delta=delta, method=method)
        held = {"upper": c <= bound.upper, "lower": bound.lower <= c, "width": bound.upper - bound.value}
        out.append({"key": (name, rows, delta, method), **held})
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=2000)
    repetitions = parser.parse_args().repetitions
    tasks = [(name, rows, seed) for name, rows in itertools.product(POPULATIONS, ROWS) for seed in range(repetitions)]
    found: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for results in pool.map(one, tasks, chunksize=50):
            for result in results:
                found.setdefault(result["key"], []).append(result)
    cells = []
    for (name, rows, delta, method), results in found.items():
        share = {side: float(np.mean([r[side] for r in results])) for side in ("upper", "lower")}
        width = float(np.mean([r["width"] for r in results]))
        bar = 1 - delta - 3 * math.sqrt(delta * (1 - delta) / repetitions)
        print(f"{name}, {rows:,} rows, delta {delta}, {method}: half-width {width:.4f}")
        checks = {side: check(side, share[side], bar, at_most=False) for side in share}
        cells.append({"population": name, "rows": rows, "delta": delta, "method": method, "width": width, "checks": checks})
    save("bound", {"repetitions": repetitions, "cells": cells})


if __name__ == "__main__":
    main()
