"""Does an audit find what is wrong? Planted errors of +1 logit, Holm over the whole family.

    python bench/power.py [--repetitions 50]

A category with 5% of 20,000 rows among some 400 segments must be the worst finding (or a refinement of it) with adjusted
p < 1e-6; a two-way interaction with 2% of 100,000 rows must be found at depth 2. Prevalence 5%, 20% and 50%. Beside the
first stands a reference: the exact tail probability of the planted segment's number of events, known to be the one to look
at, times the number of segments. All planted errors are upward shifts of a mean; the figures say nothing about others.
"""

from __future__ import annotations

import argparse
import os
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np

import trueup as tu
from common import check, save

PREVALENCES = (0.05, 0.2, 0.5)


def planted(rows: int, seed: int, share: dict[str, float], where: dict[str, str], prevalence: float) -> dict[str, Any]:
    """Draw a calibrated population of seven columns and plant an error of +1 logit in a segment of known size.

    ``share`` gives, for the columns of the segment, the probability of the level "planted".
    """
    random = np.random.default_rng([seed, 1])  # a stream of its own, apart from the population's
    base = tu.simulate.population(rows, seed, levels=(4, 4, 4, 4, 4, 4), prevalence=prevalence)
    columns = {name: column for name, column in base.items() if name.startswith("c")}
    for name, chance in share.items():
        others = random.choice(["u", "v", "w", "x"], rows)
        columns[name] = np.where(random.random(rows) < chance, "planted", others).astype(object)
    inside = np.logical_and.reduce([columns[name] == level for name, level in where.items()])
    p = base["prediction"]
    logit = np.log(p / (1 - p)) + inside
    columns |= {"p": p, "y": (random.random(rows) < 1 / (1 + np.exp(-logit))).astype(int)}
    return columns


def one_category(task: tuple[float, int]) -> dict[str, Any]:
    prevalence, seed = task
    data = planted(20_000, seed, {"group": 0.05}, {"group": "planted"}, prevalence)
    audit = tu.audit(data, outcome="y", prediction="p", threads=1)
    worst = audit.worst(1)[0]
    found = "group=planted" in worst.segment.split(" & ") and worst.p_adjusted < 1e-6
    inside = data["group"] == "planted"
    exact = tail(data["p"][inside], int(data["y"][inside].sum())) * audit.tested < 1e-6
    return {"found": found, "segments": audit.tested, "p": worst.p_adjusted, "exact": exact}


def tail(p: np.ndarray[Any, Any], events: int) -> float:
    """Give the exact probability of at least so many events among independent rows."""
    chances = np.array([1.0])
    for q in p:
        chances = np.convolve(chances, [1 - q, q])
    return float(chances[events:].sum())


def interaction(task: tuple[float, int]) -> dict[str, Any]:
    prevalence, seed = task
    share = {"first": np.sqrt(0.02), "second": np.sqrt(0.02)}
    data = planted(100_000, seed, share, {"first": "planted", "second": "planted"}, prevalence)
    audit = tu.audit(data, outcome="y", prediction="p", threads=1)
    finding = audit["first=planted & second=planted"]
    return {"found": finding.p_adjusted <= 0.05, "segments": audit.tested, "p": finding.p_adjusted}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=50)
    repetitions = parser.parse_args().repetitions
    figures: dict[str, Any] = {"repetitions": repetitions, "cells": []}
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for work in (one_category, interaction):
            for prevalence in PREVALENCES:
                results = list(pool.map(work, [(prevalence, seed) for seed in range(repetitions)]))
                share = float(np.mean([r["found"] for r in results]))
                segments = float(np.mean([r["segments"] for r in results]))
                largest = max(r["p"] for r in results)
                print(
                    f"{work.__name__}, prevalence {prevalence:g}, {segments:.0f} segments, largest adjusted p {largest:.1e}"
                )
                exact = float(np.mean([r["exact"] for r in results])) if "exact" in results[0] else None
                held = check(f"share found (exact test: {exact})", share, 0.9, at_most=False)
                cell = {
                    "case": work.__name__,
                    "prevalence": prevalence,
                    "segments": segments,
                    "largest_p": largest,
                    "exact": exact,
                }
                figures["cells"].append({**cell, "found": held})
    save("power", figures)


if __name__ == "__main__":
    main()
