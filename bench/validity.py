"""Adjusted p-values with awkward weights, and errors hidden by irrelevant columns, rare levels or rare events.

    python bench/validity.py [--repetitions 400]

False alarms at 5% on calibrated data with unequal weights and with weights that depend on the outcome. Planted errors: in
all rows and in a sample of them; in over-predicted rare segments, beside a saddlepoint test of that segment alone at its
share of alpha; in single columns, beside the same p-values with equal shares; in many rare levels of a column. Adult: the
adjusted p-value over all rows, with more and more columns of noise.
"""

from __future__ import annotations

import argparse
import os
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import numpy as np
from scipy.special import expit, logit
from scipy.stats import norm

import trueup as tu
from cases import DATA
from common import check, save
from trueup.kernels import tails
from trueup.metrics.inference import adjust

ALPHA = 0.05
ROLES = {"outcome": "y", "prediction": "p"}
WEIGHTS = ("exposures, PD proportional to 1/w", "0.5% of rows at weight 60", "positives kept 1/10", "negatives kept 1/10",
           "negatives kept 1/10, lognormal weights", "lognormal weights, rare")  # fmt: skip
SOME = ("positives with scores up to 0.2 kept 1/10", "positives of 4 of 8 levels kept 1/10",
        "positives of 4 of 8 levels kept 1/10, lognormal weights", "positives of 1 of 8 levels kept 1/20",
        "positives of 4 of 8 levels kept 1/10, column left out", "positives of 1 of 8 levels kept 1/20, column left out",
        "negatives of 4 of 8 levels kept 1/10")  # fmt: skip
RARE = ((0.005, 3200, 0.0), (0.005, 8000, 0.3), (0.01, 2000, 0.2), (0.02, 1200, 0.25), (0.02, 3000, 0.5))
RARE_LEVELS = (20, 100, 300)
NOISE = (0, 1, 5, 20, 50, 100, 150)


def categories(random: np.random.Generator, rows: int, columns: int = 6, levels: int = 5) -> dict[str, Any]:
    """Draw columns that have nothing to do with the outcome."""
    names = np.array([f"l{level}" for level in range(levels)], object)
    return {f"c{column}": names[random.integers(0, levels, rows)] for column in range(columns)}


def weighted_rows(kind: str, random: np.random.Generator, rows: int = 3000) -> tuple[Any, Any, Any]:
    """Return scores, calibrated outcomes and weights."""
    if "kept" in kind:
        p = random.beta(1, 9 if "positives" in kind else 30, 8 * rows)
        y = random.random(len(p)) < p
        whole = ~y if "positives" in kind else y
        kept = np.flatnonzero(whole | (random.random(len(p)) < 0.1))[:rows]
        w = np.where(whole[kept], 1.0, 10.0)
        return p[kept], y[kept], w * random.lognormal(0, 0.7, len(kept)) if "lognormal" in kind else w
    if "exposures" in kind:
        w = 1 + random.pareto(1.5, rows)
        p = np.clip(0.2 / w, 1e-4, 0.9)
    else:
        w = np.where(random.random(rows) < 0.005, 60.0, 1.0) if "60" in kind else random.lognormal(0, 1, rows)
        p = random.beta(1, 20 if "60" in kind else 60, rows)
    return p, random.random(rows) < p, w


def partly_sampled(kind: str, random: np.random.Generator, rows: int) -> dict[str, Any]:
    """Return calibrated rows of which some were sampled by their outcome."""
    level = random.integers(0, 8, rows)
    p = random.beta(1, 4, rows)
    y = random.random(rows) < p
    some = p <= 0.2 if "scores" in kind else level < (4 if "4 of 8" in kind else 1)
    rate = 0.05 if "1/20" in kind else 0.1
    left_out = some & (~y if "negatives" in kind else y)
    kept = np.flatnonzero(~left_out | (random.random(rows) < rate))
    w = np.where(left_out[kept], 1 / rate, 1.0)
    data = categories(random, len(kept), 2)
    if "left out" not in kind:
        data["level"] = np.array([f"l{at}" for at in range(8)], object)[level[kept]]
    return data | {"p": p[kept], "y": y[kept], "w": w * random.lognormal(0, 0.7, len(w)) if "lognormal" in kind else w}


def false_alarm(kind: str, seed: int, rows: int = 20_000) -> dict[str, float]:
    random = np.random.default_rng([seed, 1])
    if kind in SOME:
        data = partly_sampled(kind, random, rows)
    else:
        p, y, w = weighted_rows(kind, random)
        data = categories(random, len(p)) | {"p": p, "y": y, "w": w}
    audit = tu.audit(data, **ROLES, weight="w", min_rows=30)
    single = [finding for finding in audit if finding.depth == 1]
    covered = np.mean([finding.ratio_low <= 1 <= finding.ratio_high for finding in single])
    return {"alarm": audit.miscalibrated, "covered": float(covered), "segments": audit.tested}


def planted_in_sample(seed: int) -> dict[str, float]:
    """Look for +0.6 logits in one level, in all rows and in those kept when nine of ten negatives are left out."""
    random = np.random.default_rng([seed, 2])
    rows = 30_000
    data = categories(random, rows, 4)
    p = random.beta(1, 30, rows)
    y = random.random(rows) < expit(logit(p) + 0.6 * (data["c0"] == "l0"))
    data |= {"p": p, "y": y}
    kept = y | (random.random(rows) < 0.1)
    sample = {name: column[kept] for name, column in data.items()}
    rates = {"positive": 1.0, "negative": 0.1}
    audits = tu.audit(data, **ROLES), tu.audit(sample, **ROLES, sampling=rates)
    return dict(zip(("all", "sample"), (audit["c0=l0"].p_adjusted <= ALPHA for audit in audits), strict=True))


def over_predicted(prevalence: float, size: int, factor: float, seed: int) -> dict[str, float]:
    """Look for a segment with too few rare events; the reference knows the segment and the direction."""
    random = np.random.default_rng([seed, 3])
    rows = 20_000
    inside = np.arange(rows) < size
    p = prevalence * random.uniform(0.8, 1.2, rows)
    y = random.random(rows) < np.where(inside, factor, 1.0) * p
    data = categories(random, rows, 4) | {"s": np.where(inside, "x", "o").astype(object), "p": p, "y": y}
    found = tu.audit(data, **ROLES)["s=x"].p_adjusted <= ALPHA
    shortfall = float((p - y)[inside].sum())
    root = tails.saddlepoint(p[inside], np.empty(0), shortfall, -1.0) if shortfall > 0 else 0.0
    return {"found": found, "reference": norm.sf(root) <= ALPHA / 3 / 5 / 2}


def single_column(seed: int) -> dict[str, float]:
    """Look for a mean shift of one level that a z test of that level alone, at 5%, finds in half of all cases."""
    random = np.random.default_rng([seed, 4])
    rows = 20_000
    data = categories(random, rows, 6, 5)
    inside = data["c0"] == "l0"
    p = random.beta(2, 8, rows)
    spread = np.sqrt((p * (1 - p))[inside].sum()) / inside.sum()
    audits = [
        tu.audit(data | {"p": p, "y": random.random(rows) < np.clip(p + times * spread * inside, 0, 1)}, **ROLES)
        for times in (1.96, 4.0)
    ]
    found = {}
    for name, audit in zip(("z 50%", "shift of 4 s.e."), audits, strict=True):
        rank = [audit.keys.name(at) for at in range(len(audit))].index("c0=l0")
        equal = adjust(audit.columns["p_value"], "holm")
        found |= {name: audit.columns["p_adjusted"][rank] <= ALPHA, f"{name}, equal shares": equal[rank] <= ALPHA}
    return found


def rare_levels(levels: int, seed: int) -> dict[str, float]:
    """Look for twice the expected rate in many levels of 20 rows each, among 100,000 rows."""
    random = np.random.default_rng([seed, 5])
    rows = 100_000
    number = np.arange(rows)
    code = np.where(number < 20 * levels, number // 20, levels + random.integers(0, 20, rows))
    p = random.uniform(0.05, 0.15, rows)
    y = random.random(rows) < np.where(code < levels, 2, 1) * p
    audit = tu.audit({"c": np.char.add("l", code.astype(str)), "p": p, "y": y}, **ROLES)
    return {"found": audit[f"c=({levels} rare levels)"].p_adjusted <= ALPHA}


def adult() -> list[dict[str, Any]]:
    """Audit the score of a gradient boosting that fits too closely, by race and columns of noise."""
    import pandas as pd
    from sklearn.ensemble import HistGradientBoostingClassifier

    frame = pd.read_parquet(DATA / "adult.parquet")
    train, test = (frame[frame["split"] == name] for name in ("train", "test"))
    features = [name for name in frame if name not in ("split", "fnlwgt", "income_over_50k")]
    numbers = frame[features].select_dtypes("number").columns
    coded = frame[features].apply(lambda column: column if column.name in numbers else column.astype("category").cat.codes)
    model = HistGradientBoostingClassifier(max_iter=500, early_stopping=False, random_state=0)
    model.fit(coded.loc[train.index], train["income_over_50k"])
    random = np.random.default_rng(0)
    data = {"race": test["race"].astype(str).to_numpy(object), "y": test["income_over_50k"].to_numpy(int)}
    data |= {"p": model.predict_proba(coded.loc[test.index])[:, 1]} | {
        f"noise{k}": random.choice(["a", "b", "c", "d"], len(test)).astype(object) for k in range(max(NOISE))
    }
    rows = []
    for count in NOISE:
        audit = tu.audit(data, **ROLES, by=["race", *(f"noise{k}" for k in range(count))])
        equal = float(adjust(audit.columns["p_value"], "holm")[audit.overall_rank])
        found = {"p_value": audit.overall.p_value, "p_adjusted": audit.overall.p_adjusted, "equal_shares": equal}
        rows.append({"noise": count, "segments": audit.tested, "miscalibrated": audit.miscalibrated} | found)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=400)
    given = parser.parse_args()
    bar = ALPHA + 2 * np.sqrt(ALPHA * (1 - ALPHA) / given.repetitions)
    figures: dict[str, Any] = {"repetitions": given.repetitions}
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:

        def mean(work: Any, repetitions: int = given.repetitions) -> dict[str, float]:
            results = list(pool.map(work, range(repetitions), chunksize=5))
            return {name: float(np.mean([result[name] for result in results])) for name in results[0]}

        figures["weights"] = []
        for kind in WEIGHTS + SOME:
            found = mean(partial(false_alarm, kind))
            figures["weights"].append({"kind": kind, **found, "check": check(kind, found["alarm"], bar, at_most=True)})
        figures["few_heavy"] = mean(partial(false_alarm, "positives of 1 of 8 levels kept 1/20", rows=3000))
        found = mean(planted_in_sample, 100)
        figures["sample"] = {**found, "check": check("sample", found["sample"], found["all"] - 0.1, at_most=False)}
        figures["over_predicted"] = []
        for case in RARE:
            found = mean(partial(over_predicted, *case), 100)
            name = f"{case[1]} rows, prevalence {case[0]}, {case[2]:g} times"
            held = check(name, found["found"], 0.8 * found["reference"], at_most=False)
            figures["over_predicted"].append({"case": case, **found, "check": held})
        figures["single_column"] = mean(single_column)
        print(figures["single_column"])
        figures["rare_levels"] = []
        for levels in RARE_LEVELS:
            found = mean(partial(rare_levels, levels), 20)
            held = check(f"{levels} rare levels", found["found"], 0.95, at_most=False)
            figures["rare_levels"].append({"levels": levels, **found, "check": held})
    figures["adult"] = adult()
    for row in figures["adult"]:
        depths = min(row["noise"], 1) + 2
        row["check"] = check(f"{row['noise']} columns of noise", row["p_adjusted"] / row["p_value"], depths, at_most=True)
    save("validity", figures)


if __name__ == "__main__":
    main()
