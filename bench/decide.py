"""How often intervals for costs hold on rows without labels, how wide they are, and how fast the cheapest rule is found.

    python bench/decide.py [--repetitions 1000]

Scores of four kinds: right, too sure, rare (right, one event in sixty rows) and rounded (too low, two decimals); 500, 5,000
and 50,000 rows without labels; 500 and 2,000 labelled rows of the same law. Costs: a miss 5, a false alarm 1. Told at 90%:

given     the threshold 0.2 (0.0133 where events are rare), the total cost of these rows, then the cost a row to come
best      the cheapest threshold by the scores, `best_rule`
searched  the threshold that was cheapest on the labelled rows themselves, `tuned=True`
bound     the threshold 0.2, and nothing known but an upper bound on c, as Claim 1 has it
at word   the threshold 0.2, and nothing known at all: what happens without labelled rows

Width is the whole interval a row, beside that of the costs themselves if the law were known (2 z tau / sqrt(N)).
"""

from __future__ import annotations

import argparse
import math
import os
import warnings
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import trueup as tu
from common import check, save, seconds
from trueup.errors import ShiftWarning

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

COSTS = {"fn": 5, "fp": 1}
SIZES, LABELLED = (500, 5000, 50_000), (500, 2000)
KINDS = ("right", "too sure", "rare", "rounded")
WAYS = ("given", "given, population", "best", "searched", "bound", "bound, population", "at word")
LEVEL = 0.9
TRUTH = 4_000_000
TRIED = np.linspace(0, 1, 101)


class Drawn(NamedTuple):
    """Scores, the chance that they stand for, and outcomes."""

    p: Floats
    chance: Floats
    y: Floats


def draw(random: np.random.Generator, rows: int, kind: str) -> Drawn:
    """Draw rows of one kind."""
    p = random.beta(1, 3, rows)
    if kind == "rare":
        p = p / 15
    if kind == "rounded":
        p = np.round(p, 2)
    chance = {"too sure": 0.1 + 0.6 * p, "rounded": np.minimum(1.0, 1.25 * p)}.get(kind, p)
    return Drawn(p, chance, (random.random(rows) < chance).astype(float))


def threshold_of(kind: str) -> float:
    """Give the threshold that is judged as given."""
    return 0.2 / (15 if kind == "rare" else 1)


def total(rows: Drawn, threshold: float) -> float:
    """Give what came out."""
    return float(np.sum(np.where(rows.p >= threshold, 1 - rows.y, 5 * rows.y)))


def searched(labelled: Drawn, kind: str) -> float:
    """Give the threshold that was cheapest on the labelled rows."""
    tried = TRIED * (0.1 if kind == "rare" else 1)
    return float(tried[np.argmin([total(labelled, at) for at in tried])])


def one(task: tuple[str, int, int, int]) -> dict[str, tuple[bool, float]]:
    """Draw once, and say for each way whether the interval held, and how wide it was."""
    kind, rows, many, seed = task
    warnings.simplefilter("ignore", ShiftWarning)  # one in a thousand by chance
    random = np.random.default_rng([KINDS.index(kind), rows, many, seed])
    here, labelled = draw(random, rows, kind), draw(random, many, kind)
    known = (labelled.y, labelled.p)
    bound = tu.metrics.calibration_bound(*known, delta=(1 - LEVEL) / 2)
    given, best, chosen = threshold_of(kind), tu.decisions.best_rule(here.p, COSTS), searched(labelled, kind)
    cost = tu.decisions.expected_cost
    at = best.threshold if len(best.rule.actions) == 2 else (0.0 if best.rule.actions[0].name == "act" else math.inf)
    truth = TRUTHS[kind]
    intervals = {
        "given": (cost(here.p, COSTS, given, known), total(here, given)),
        "given, population": (cost(here.p, COSTS, given, known, target="population"), truth),
        "best": (cost(here.p, COSTS, best, known), total(here, at)),
        "searched": (cost(here.p, COSTS, chosen, known, tuned=True), total(here, chosen)),
        "bound": (cost(here.p, COSTS, given, bound), total(here, given)),
        "bound, population": (cost(here.p, COSTS, given, bound, target="population"), truth),
        "at word": (cost(here.p, COSTS, given), total(here, given)),
    }
    return {
        way: (bool(found.low <= came <= found.high), (found.high - found.low) / (1 if "population" in way else rows))
        for way, (found, came) in intervals.items()
    }


def known_width(kind: str, rows: int) -> float:
    """Give how wide an interval for these rows would be if the law were known, a row."""
    many = draw(np.random.default_rng(1), TRUTH // 4, kind)
    tau = float(np.where(many.p >= threshold_of(kind), many.y - many.chance, 5 * (many.y - many.chance)).std())
    return 2 * 1.6449 * tau / math.sqrt(rows)


def find_truths() -> dict[str, float]:
    """Find the cost a row of each kind, from very many rows and the chances behind them."""
    found = {}
    for kind in KINDS:
        many = draw(np.random.default_rng(0), TRUTH, kind)
        found[kind] = float(np.mean(np.where(many.p >= threshold_of(kind), 1 - many.chance, 5 * many.chance)))
    return found


TRUTHS: dict[str, float] = {}


def prepare(truths: dict[str, float]) -> None:
    """Tell a process what is true."""
    TRUTHS.update(truths)


def coverage(repetitions: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Run the study."""
    cells, checks = [], {}
    least = LEVEL - 3 * math.sqrt(LEVEL * (1 - LEVEL) / repetitions)
    with ProcessPoolExecutor(len(os.sched_getaffinity(0)), initializer=prepare, initargs=(find_truths(),)) as pool:
        for kind in KINDS:
            for rows in SIZES:
                for many in LABELLED:
                    tasks = [(kind, rows, many, seed) for seed in range(repetitions)]
                    found = list(pool.map(one, tasks, chunksize=25))
                    known = known_width(kind, rows)
                    for way in WAYS:
                        held, wide = (float(np.mean([each[way][at] for each in found])) for at in (0, 1))
                        cells.append({"kind": kind, "rows": rows, "labelled": many, "way": way, "held": held, "width": wide,
                                      "known": known})  # fmt: skip
                        print(f"{kind:9} {rows:6,} rows {many:5,} labelled  {way:18} held {held:.3f}  width {wide:.4f}")
    for way in WAYS[:-1]:
        worst = min(cell["held"] for cell in cells if cell["way"] == way)
        checks[f"least coverage: {way}"] = check(f"least coverage: {way}", worst, least, at_most=False)
    return cells, checks


def speed() -> dict[str, Any]:
    """Hold the search for the cheapest rule of a million rows against a sort of them."""
    p = np.random.default_rng(0).random(1_000_000)
    tu.decisions.best_rule(p[:1000], COSTS)
    three = {"grant": (100, -10), "review": (5, -4), "refuse": (0, 0)}
    tu.decisions.best_rule(p[:1000], three, capacity={"review": 100})
    sort = seconds(lambda: np.sort(p))
    ratios = {
        "two actions": seconds(lambda: tu.decisions.best_rule(p, COSTS)) / sort,
        "three actions": seconds(lambda: tu.decisions.best_rule(p, three)) / sort,
        "three actions, one with a capacity": seconds(
            lambda: tu.decisions.best_rule(p, three, capacity={"review": 5000})
        ) / sort,
    }  # fmt: skip
    for name, ratio in ratios.items():
        print(f"best_rule, 1,000,000 rows, {name}: {ratio:.2f} times a sort")
    return {"ratios": ratios, "check": check("best_rule of two actions, in sorts", ratios["two actions"], 3, at_most=True)}


def main() -> None:
    """Run everything and save it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=1000)
    asked = parser.parse_args()
    found = speed()
    cells, checks = coverage(asked.repetitions)
    checks["best_rule of two actions, in sorts"] = found["check"]
    save("decide", {"repetitions": asked.repetitions, "cells": cells, "ratios": found["ratios"], "checks": checks})


if __name__ == "__main__":
    main()
