"""Audits of real outcomes: false alarms with skewed, heavy-tailed and unequal noise, and the power to find planted errors.

    python bench/real_outcomes.py [--repetitions 400] [--processes 2]

20,000 rows in 250 groups and three further columns; where 10% of the outcomes are claims, a group has 2 to 14 of them.
Beside the audit, the test of single columns with the variance of each segment's own rows and Student's t. Then calibrated
rows of which some have a rare large outcome, 1%, and else zero, among rows that are never zero.
"""

from __future__ import annotations

import argparse
import math
import os
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import stdtr
from scipy.stats import poisson

import trueup as tu
from common import check, save

if TYPE_CHECKING:
    from collections.abc import Callable

ALPHA = 0.05
ROWS = 20_000
LEVELS = {"group": 250, "region": 4, "product": 8, "channel": 10}
VARIED = np.array([1, 1, 1, 1, 1, 2, 3, 4])  # standard deviations of the products
# Outcomes with the given mean; those of ADDED noise have predictions of any sign, the others positive ones.
ADDED = {
    "normal": lambda random, n, _: random.normal(size=n),
    "Student's t, 3 degrees of freedom": lambda random, n, _: random.standard_t(3, n),
    "exponential, added": lambda random, n, _: random.exponential(size=n) - 1,
    "normal, products of different variance": lambda random, n, product: random.normal(size=n) * VARIED[product],
    "exponential, products of different variance":
        lambda random, n, product: (random.exponential(size=n) - 1) * VARIED[product],
}  # fmt: skip
MULTIPLIED = {
    "normal, sd proportional to the mean": lambda random, mean: mean * (1 + 0.7 * random.normal(size=len(mean))),
    "gamma, shape 2": lambda random, mean: mean * random.gamma(2, 0.5, len(mean)),
    "exponential": lambda random, mean: mean * random.exponential(size=len(mean)),
    "lognormal, sigma 1": lambda random, mean: mean * np.exp(random.normal(size=len(mean)) - 0.5),
    "lognormal, sigma 1.5": lambda random, mean: mean * np.exp(1.5 * random.normal(size=len(mean)) - 1.125),
    "claims, 10% not zero": lambda random, mean: _claims(random, mean, 0.1),
    "claims, 2% not zero": lambda random, mean: _claims(random, mean, 0.02),
    "Poisson, mean 0.05": lambda random, mean: random.poisson(0.05 * mean) / 0.05,
    "Poisson, mean 0.003": lambda random, mean: random.poisson(0.003 * mean) / 0.003,
    "negative binomial, mean 0.2": lambda random, mean: random.poisson(0.2 * mean * random.gamma(0.5, 2, len(mean))) / 0.2,
}
# Rows of mostly zeros, by columns a, b and c of 20, 4 and 3 levels, the prediction p and a random number u.
ZEROS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "one of 20 levels": lambda rows: rows["a"] == 0,
    "ten of 20 levels": lambda rows: rows["a"] < 10,
    "a pair of levels": lambda rows: (rows["a"] == 0) & (rows["b"] == 0),
    "five pairs of levels": lambda rows: (rows["a"] % 4 == 0) & (rows["b"] == 0),
    "low predictions in one of 20 levels": lambda rows: (rows["a"] == 0) & (rows["p"] < 0.6),
    "a combination of three levels": lambda rows: (rows["a"] == 0) & (rows["b"] == 0) & (rows["c"] == 0),
    "5% of all rows, at random": lambda rows: rows["u"] < 0.05,
}
ZERO_ROWS = (4000, 20_000)
CLAIMED = 0.01  # share of rows of mostly zeros that are not
WEIGHTED = ("normal", "gamma, shape 2", "claims, 10% not zero")
# Family, and outcomes per unit of exposure; the last two are not of the family.
FAMILIES = {
    "Poisson": ("poisson", lambda random, mean, w: random.poisson(0.2 * w * mean) / w / 0.2),
    "gamma": ("gamma", lambda random, mean, w: mean * random.gamma(2 * w, 0.5 / w)),
    "Tweedie 1.5": ("tweedie", lambda random, mean, w: _tweedie(random, mean, 5.0 / w)),
    "negative binomial as Poisson": (
        "poisson", lambda random, mean, w: random.poisson(0.2 * w * mean * random.gamma(0.2, 5, len(w))) / w / 0.2,
    ),
    "lognormal as gamma": ("gamma", lambda random, mean, w: mean * np.exp(random.normal(size=len(w)) - 0.5)),
}  # fmt: skip
# Noise, family, column and factor of the mean of its first level (with normal noise: the shift of it).
PLANTED = (
    ("normal", None, "product", 0.09), ("normal", None, "group", 0.55), ("gamma, shape 2", None, "group", 1.7),
    ("claims, 10% not zero", None, "product", 1.7), ("Poisson, mean 0.05", None, "product", 1.4),
    ("Poisson", "poisson", "product", 1.25), ("Poisson", "poisson", "product", 0.76), ("Poisson", "poisson", "group", 3.0),
)  # fmt: skip


def _claims(random: np.random.Generator, mean: Any, share: float) -> Any:
    """Draw claims: mostly zero, else lognormal."""
    return (random.random(len(mean)) < share) * mean / share * np.exp(random.normal(size=len(mean)) - 0.5)


def _tweedie(random: np.random.Generator, mean: Any, dispersion: Any, power: float = 1.5) -> Any:
    """Draw compound Poisson-gamma amounts (Jorgensen 1997)."""
    claims = random.poisson(mean ** (2 - power) / (dispersion * (2 - power)))
    shape, scale = (2 - power) / (power - 1), dispersion * (power - 1) * mean ** (power - 1)
    return np.where(claims > 0, random.gamma(np.maximum(claims, 1) * shape) * scale, 0.0)


def simulate(noise: str, seed: int, *, weighted: bool = False, column: str = "", factor: float = 1.0) -> dict[str, Any]:
    """Return columns, predictions "p", outcomes "y" and weights "w"; the mean of one level may have an error."""
    random = np.random.default_rng([seed, 1])
    codes = {name: random.integers(0, levels, ROWS) for name, levels in LEVELS.items()}
    effect = random.normal(0, 0.3, 8)[codes["product"]] + random.normal(0, 0.3, 4)[codes["region"]]
    mean = np.exp(0.5 * random.normal(size=ROWS) + effect)
    inside = codes[column] == 0 if column else np.zeros(ROWS, bool)
    truth = np.where(inside, factor * mean, mean)
    w = random.lognormal(0, 1, ROWS) if weighted else np.ones(ROWS)
    if noise in ADDED:
        p = np.log(mean)
        y = p + ADDED[noise](random, ROWS, codes["product"]) + factor * inside
    elif noise in FAMILIES:
        w = random.uniform(0.02, 1.0, ROWS)
        p, y = mean, FAMILIES[noise][1](random, truth, w)
        if FAMILIES[noise][0] == "poisson":
            p, y = 0.2 * p, 0.2 * y
    else:
        p, y = mean, MULTIPLIED[noise](random, truth)
    return codes | {"p": p, "y": y, "w": w}


def run_audit(data: dict[str, Any], family: str | None) -> tu.Audit:
    roles = {"outcome": "y", "prediction": "p", "weight": "w", "task": "regression", "by": list(LEVELS)}
    return tu.audit(data, **roles, categorical=list(LEVELS), family=family, threads=1)


def own_pvalues(data: dict[str, Any], column: str) -> Any:
    """Return the p-values of a column's levels with the variance of their own rows: successive differences, Student's t."""
    order = np.lexsort((data["p"], data[column]))
    u = (data["w"] * (data["y"] - data["p"]))[order]
    rows, x = np.bincount(data[column]), []
    for own in np.split(u, np.cumsum(rows)[:-1]):
        path = np.cumsum(own)
        variance = 0.5 * len(own) / (len(own) - 1) * np.sum(np.diff(own) ** 2)
        x.append((max(path.max(), 0.0) - min(path.min(), 0.0)) / math.sqrt(variance))
    k = np.arange(1, 40)[:, None]
    tails = (-1.0) ** (k - 1) * k * stdtr(2 * (rows - 1) / 3, -k * np.array(x))
    return np.clip(8 * tails.sum(axis=0), 0.0, 1.0)


def false_alarm(noise: str, weighted: bool, seed: int) -> dict[str, float]:
    data = simulate(noise, seed, weighted=weighted)
    family = FAMILIES[noise][0] if noise in FAMILIES else None
    audit = run_audit(data, family)
    own = math.nan
    if family is None:
        p = np.concatenate([own_pvalues(data, name) for name in LEVELS])
        own = float(p.min() * len(p) <= ALPHA)
    return {"alarm": audit.miscalibrated, "own": own, "segments": audit.tested}


def alarm_with_zeros(where: str, rows: int, seed: int) -> dict[str, float]:
    """Audit calibrated predictions of gamma outcomes, some of which are instead zero with probability 1 - CLAIMED."""
    random = np.random.default_rng([seed, 2])
    data = {name: random.integers(0, levels, rows) for name, levels in (("a", 20), ("b", 4), ("c", 3))}
    data |= {"p": random.lognormal(0, 0.6, rows), "u": random.random(rows)}
    p, inside = data["p"], ZEROS[where](data)
    claims = np.where(random.random(rows) < CLAIMED, p / CLAIMED, 0.0)
    data["y"] = np.where(inside, claims, p * random.gamma(4, 0.25, rows))
    roles = {"outcome": "y", "prediction": "p", "task": "regression", "by": [*"abc"], "categorical": [*"abc"]}
    audit = tu.audit(data, **roles, threads=1)
    return {"alarm": audit.miscalibrated, "segments": audit.tested}


def planted(noise: str, family: str | None, column: str, factor: float, seed: int) -> dict[str, float]:
    """Look for an error of one level; the reference is valid for that noise, and knows segment and (Poisson) direction."""
    data = simulate(noise, seed, column=column, factor=factor)
    audit = run_audit(data, family)
    level = ALPHA / 3 / len(LEVELS) / LEVELS[column]  # the share of alpha of this segment
    inside = data[column] == 0
    reference = math.nan
    if noise == "normal":
        reference = own_pvalues(data, column)[0]
    elif family == "poisson":
        expected, count = (float(np.sum((data["w"] * data[name])[inside])) for name in ("p", "y"))
        count = round(count)
        reference = poisson.sf(count - 1, expected) if factor > 1 else poisson.cdf(count, expected)
    return {"found": audit[f"{column}=0"].p_adjusted <= ALPHA, "reference": reference <= level or math.isnan(reference)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=400)
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    given = parser.parse_args()
    bar = ALPHA + 2 * math.sqrt(ALPHA * (1 - ALPHA) / given.repetitions)
    cells = [(noise, False) for noise in (*ADDED, *MULTIPLIED)] + [(noise, True) for noise in WEIGHTED]
    figures: dict[str, Any] = {"repetitions": given.repetitions, "cells": [], "families": [], "zeros": [], "planted": []}
    with ProcessPoolExecutor(given.processes) as pool:

        def mean(work: Any, repetitions: int) -> dict[str, float]:
            results = list(pool.map(work, range(repetitions), chunksize=10))
            return {name: float(np.mean([result[name] for result in results])) for name in results[0]}

        for noise, weighted in [*cells, *((noise, False) for noise in FAMILIES)]:
            found = mean(partial(false_alarm, noise, weighted), given.repetitions)
            name = f"{noise}, lognormal weights" if weighted else noise
            if noise in FAMILIES:
                del found["own"]
            held = check(f"{name} (own variance {found.get('own', math.nan):.2f})", found["alarm"], bar, at_most=True)
            figures["families" if noise in FAMILIES else "cells"].append({"noise": name, **found, "check": held})
        for where, rows in ((where, rows) for where in ZEROS for rows in ZERO_ROWS):
            found = mean(partial(alarm_with_zeros, where, rows), given.repetitions)
            print(where, rows, found)
            figures["zeros"].append({"where": where, "rows": rows, **found})
        for case in PLANTED:
            found = mean(partial(planted, *case), 100)
            has_reference = case[0] == "normal" or case[1] == "poisson"
            found |= {} if has_reference else {"reference": None}  # type: ignore[dict-item]
            print(case, found)
            figures["planted"].append({"case": case, **found})
    save("real_outcomes", figures)


if __name__ == "__main__":
    main()
