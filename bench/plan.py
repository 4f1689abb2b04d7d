"""Do plans hold? Errors of the planned size in as many rows as planned: how often they are found, by simulation.

    python bench/plan.py [--repetitions 4000]

Audits: single segments, whose scores have normal logits, at one share of alpha; the p-value is the default one, refined as
in an audit. Up to a prevalence of 0.5% only the rows with outcome 1 are drawn: between them the cumulative differences fall
as the expected outcomes add up. Monitors: the recursion on all 24 alternatives, week by week, on scores of 24 values. The
`mde` of audits: shifts of the size that the sums of a segment predict. Clusters: audits of all rows as one segment.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np

import trueup as tu
from common import check, save
from trueup.kernels import tails
from trueup.metrics import inference
from trueup.metrics.planning import PlannedScores, ScoreError, alarm_cost

PREVALENCES = (0.001, 0.02, 0.1, 0.5)
RATIOS = (0.5, 0.8, 1.25, 2.0)
LEVELS = (1e-2, 1e-4, 1e-6)
SPREAD = 1.0
RARE = 0.005
SHARED = 20  # repetitions with the same scores
CELLS = 2_000_000
POWER = 0.8
MANY = 5  # expected outcomes
MDE_ROWS = (100, 400, 4000)
CLUSTER = 10
MONITOR_RATIOS = (1.2, 1.5)
MONITOR_LEVELS = (0.05 * 0.1, 0.05 / 400)
CHANGE = 52
MONITOR_SCORES = 24
SHIFTS = np.array([s * 0.0125 * 2.0**k for s in (1, -1) for k in range(9)])
SLOPES = np.array([0.5, 0.7, 0.85, 1.2, 1.5, 2.0])
WEIGHTS = np.array(2 * [0.25, 0.5, 1, 2, 2, 2, 1, 0.5, 0.25])


def expit(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def logit(p: Any) -> Any:
    return np.log(p) - np.log1p(-p)


def draw_scores(random: np.random.Generator, prevalence: float, count: int, spread: float = SPREAD) -> Any:
    """Draw sorted scores whose logits are normal and whose mean is the prevalence."""
    grid = spread * quantiles(20_001)
    low, high = -30.0, 30.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if expit(middle + grid).mean() > prevalence else (middle, high)
    return np.sort(expit(high + spread * random.standard_normal(count)))


def quantiles(count: int) -> Any:
    from scipy.special import ndtri

    return ndtri((np.arange(count) + 0.5) / count)


def shift_of(p: Any, ratio: float) -> float:
    """Return the shift of the logits with which observed/expected of scores is the ratio."""
    low, high, own = -20.0, 20.0, logit(p)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if expit(own + middle).mean() < ratio * p.mean() else (low, middle)
    return high


def found(x: Any, rise: Any, p: Any, level: float, scale: float = 1.0) -> Any:
    """Return which segments an audit rejects: by the default p-value, or by the refined one, found by bisection.

    ``p`` are the scores, each of ``scale`` rows.
    """
    v, k3 = scale * (p * (1 - p)).sum(), scale * (p * (1 - p) * (1 - 2 * p)).sum()
    default = inference.segment_pvalues(x, rise, np.full(len(x), v), np.full(len(x), k3)) <= level
    goal = inference.range_quantile(level, inflated=True)
    limits = {}
    for s in (1.0, -1.0):
        low, high = 0.0, 40 * math.sqrt(v)
        for _ in range(25):
            middle = (low + high) / 2
            r = tails.saddlepoint(p, np.empty(0), middle / scale, s) * math.sqrt(scale)
            low, high = (low, middle) if r > goal else (middle, high)
        limits[s] = high
    return default | (x >= np.where(rise >= x * (1 - 1e-9), limits[1.0], limits[-1.0]))


def by_rows(random: np.random.Generator, draw: Any, shift: float, level: float, repetitions: int) -> float:
    """Simulate every row: return the share of repetitions that are found."""
    hits = done = 0
    while done < repetitions:
        p = draw()
        q, many = expit(logit(p) + shift), min(SHARED, repetitions - done)
        for start in range(0, many, max(1, CELLS // len(p))):
            count = min(max(1, CELLS // len(p)), many - start)
            path = np.zeros((count, len(p) + 1))
            np.cumsum((random.random((count, len(p))) < q) - p, axis=1, out=path[:, 1:])
            low = np.minimum.accumulate(path, axis=1)
            hits += found(path.max(axis=1) - low[:, -1], (path - low).max(axis=1), p, level).sum()
        done += many
    return hits / done


def by_events(
    random: np.random.Generator, prevalence: float, rows: int, shift: float, level: float, repetitions: int
) -> float:
    """Simulate rare outcomes: draw the rows with outcome 1, from scores at their quantiles."""
    p = draw_scores(np.random.default_rng(0), prevalence, 40_000)
    q, scale = expit(logit(p) + shift), rows / len(p)
    x, rise = np.empty(repetitions), np.empty(repetitions)
    before, chance = np.concatenate([[0], np.cumsum(p)]) * scale, np.concatenate([[0], np.cumsum(q)])
    counts = random.poisson(q.sum() * scale, repetitions)
    for k, count in enumerate(counts):
        compensator = np.interp(np.sort(random.random(count)) * chance[-1], chance, before)
        path = np.empty(2 * count + 2)
        path[0], path[-1] = 0.0, count - before[-1]
        path[1:-1:2], path[2:-1:2] = np.arange(count) - compensator, np.arange(1, count + 1) - compensator
        low = np.minimum.accumulate(path)
        x[k], rise[k] = path.max() - low[-1], (path - low).max()
    return float(found(x, rise, p, level, scale).mean())


def audit_cell(task: tuple[float, float, float, int]) -> dict[str, Any] | None:
    """Plan the rows of an error, and simulate as many."""
    prevalence, ratio, level, repetitions = task
    if ratio * prevalence > 0.95:
        return None
    error = ScoreError.of_ratio(PlannedScores.logit_normal(prevalence, SPREAD), ratio)
    rows = math.ceil(error.audit_rows(level, POWER))
    random = np.random.default_rng([int(1e6 * prevalence), int(100 * ratio), int(-10 * math.log10(level))])
    if prevalence <= RARE:
        share = by_events(random, prevalence, rows, error.shift, level, repetitions)
    else:
        share = by_rows(random, lambda: draw_scores(random, prevalence, rows), error.shift, level, repetitions)
    return {"prevalence": prevalence, "ratio": ratio, "level": level, "rows": rows, "power": share}


def mde_cell(task: tuple[float, int, float, int]) -> dict[str, Any] | None:
    """Shift a segment by the `mde` of its sums, and simulate."""
    prevalence, rows, level, repetitions = task
    random = np.random.default_rng([int(1e6 * prevalence), rows, int(-10 * math.log10(level)), 1])
    p = draw_scores(random, prevalence, rows)
    p = p if (p * (1 - p) * (1 - 2 * p)).sum() >= 0 else np.sort(1 - p)
    v, k3 = (p * (1 - p)).sum(), (p * (1 - p) * (1 - 2 * p)).sum()
    quantile = inference.range_quantile
    reach = tails.detectable(v, k3, quantile(level), quantile(level, inflated=True))
    shift = tails.detectable_shift(v, k3, reach, 1 / rows, inference.Z_POWER) / rows
    plain = (reach + inference.Z_POWER * math.sqrt(v)) / rows
    if p.mean() + max(shift, plain) > 0.97 or p.sum() < 0.5:
        return None
    shares = [by_rows(random, lambda: p, shift_of(p, 1 + own / p.mean()), level, repetitions) for own in (shift, plain)]
    return {
        "prevalence": prevalence, "rows": rows, "level": level, "expected": float(p.sum()), "ratio": 1 + shift / p.mean(),
        "power": shares[0], "plain": shares[1],
    }  # fmt: skip


def cluster_cell(task: tuple[float, float, int]) -> dict[str, Any]:
    """Audit as many rows in clusters as planned; two rows of a cluster share their random number with probability icc."""
    prevalence, icc, repetitions = task
    plan = tu.plan(prevalence=prevalence, ratio=1.25, cluster_size=CLUSTER, icc=icc)
    clusters = math.ceil(plan[0].rows / CLUSTER)
    hits = []
    for seed in range(repetitions):
        random = np.random.default_rng([seed, int(1000 * prevalence), int(100 * icc)])
        p = random.permutation(draw_scores(random, prevalence, clusters * CLUSTER))
        own, shared = random.random((clusters, CLUSTER)), random.random((clusters, 1))
        uniform = np.where(random.random((clusters, CLUSTER)) < math.sqrt(icc), shared, own).ravel()
        y = (uniform < expit(logit(p) + shift_of(p, 1.25))).astype(int)
        data = {"p": p, "y": y, "c": np.repeat(np.arange(clusters), CLUSTER)}
        audit = tu.audit(data, outcome="y", prediction="p", cluster="c", by=[], threads=1)
        hits.append(audit.overall.p_adjusted <= 0.05)
    return {"prevalence": prevalence, "icc": icc, "rows": clusters * CLUSTER, "power": float(np.mean(hits))}


def monitor_cell(task: tuple[float, float, float, bool, int]) -> dict[str, Any]:
    """Simulate monitors of one segment until the planned week; return the share that has raised its alarm, and delays."""
    prevalence, ratio, level, changes, repetitions = task
    random = np.random.default_rng([int(1e6 * prevalence), int(100 * ratio), int(-10 * math.log10(level)), changes, 2])
    p = draw_scores(np.random.default_rng(0), prevalence, 480_000).reshape(MONITOR_SCORES, -1).mean(axis=1)
    error = ScoreError.of_ratio(PlannedScores(p, np.full(len(p), 1 / len(p))), ratio)
    cost = alarm_cost(level, CHANGE if changes else None)
    planned = {power: error.monitor_rows(cost, power) for power in (POWER, None)}
    weekly = max(planned[POWER] / (26 if changes else 40), 1.0)
    onset = CHANGE - 1 if changes else 0  # weeks without an error
    last = onset + math.ceil(2.5 * planned[POWER] / weekly)
    centre, own = logit(p.mean()), logit(p)
    steps = np.array([*(np.full(len(p), d) for d in SHIFTS), *((b - 1) * (own - centre) for b in SLOPES)])
    base = np.log1p(p * np.expm1(steps))  # of a row, to be subtracted
    prior = np.log(np.concatenate([WEIGHTS / WEIGHTS.sum() * 0.8, np.full(len(SLOPES), 0.2 / len(SLOPES))]))
    steady = np.zeros((repetitions, len(prior)))
    changed = np.full_like(steady, -np.inf)
    delay = np.full(repetitions, np.inf)
    for week in range(1, last + 1):
        q = expit(own + error.shift) if week > onset else p
        rows = random.multinomial(random.poisson(weekly, repetitions), np.full(len(p), 1 / len(p)))
        factor = random.binomial(rows, q) @ steps.T - rows @ base.T
        steady += factor
        weight = 26 / ((26 + week - 1) * (26 + week))
        changed = np.logaddexp(changed, math.log(weight)) + factor
        evidence = np.logaddexp.reduce(steady + prior, axis=1)
        mixed = np.logaddexp(np.logaddexp.reduce(changed + prior, axis=1), math.log(26 / (26 + week)))
        alarm = np.logaddexp(evidence, mixed) - math.log(2) >= -math.log(level)
        if week <= onset:  # false alarms are left out
            steady[alarm], changed[alarm] = 0.0, -np.inf
        else:
            delay = np.where(alarm & np.isinf(delay), (week - onset) * weekly, delay)
    within = float(np.mean(delay <= math.ceil(planned[POWER] / weekly) * weekly))
    return {
        "prevalence": prevalence, "ratio": ratio, "level": level, "change": CHANGE if changes else None,
        "audit_rows": error.audit_rows(level, POWER), "rows": planned[POWER], "mean_rows": planned[None], "power": within,
        "delay_80": float(np.quantile(delay, POWER)), "delay_mean": float(np.mean(np.minimum(delay, last * weekly))),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=4000)
    parser.add_argument("--quick", action="store_true", help="fewer cells")
    arguments = parser.parse_args()
    many, levels = arguments.repetitions, LEVELS[1:2] if arguments.quick else LEVELS
    audits = [(p, ratio, level, many) for p in PREVALENCES for ratio in RATIOS for level in levels]
    shifts = [(p, rows, level, many) for p in PREVALENCES for rows in MDE_ROWS for level in levels]
    monitors = [
        (p, ratio, level, changes, max(many // 4, 100))
        for p in PREVALENCES[1:] for ratio in MONITOR_RATIOS for level in MONITOR_LEVELS for changes in (False, True)
        if ratio * p < 0.7 and not (arguments.quick and level < 1e-3)
    ]  # fmt: skip
    clusters = [(p, icc, max(many // 20, 20)) for p in (0.1, 0.5) for icc in (0.1, 0.5)]
    figures: dict[str, Any] = {"repetitions": many, "spread": SPREAD, "change": CHANGE, "cluster": CLUSTER, "checks": {}}
    work = {
        "audits": (audit_cell, audits, 0.77, 0.83), "mde": (mde_cell, shifts, 0.76, 0.84),
        "monitors": (monitor_cell, monitors, 0.75, 0.9), "clusters": (cluster_cell, clusters, None, None),
    }  # fmt: skip
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for name, (function, tasks, low, high) in work.items():
            start, cells = time.perf_counter(), []
            for cell in pool.map(function, tasks):
                if cell is not None:
                    cells.append(cell)
                    print(
                        name,
                        ", ".join(
                            f"{key} {value}" if value is None else f"{key} {value:.4g}" for key, value in cell.items()
                        ),
                        flush=True,
                    )
            figures[name] = cells
            print(f"{name}: {len(cells)} cells, {time.perf_counter() - start:.0f} s")
            if low is None:
                continue
            # With few expected outcomes a count has few values, and so has the power.
            powers = [cell["power"] for cell in cells if cell.get("expected", MANY) >= MANY]
            noise = 3 * math.sqrt(POWER * (1 - POWER) / tasks[0][-1]) if arguments.quick else 0.0
            figures["checks"] |= {
                f"{name}, lowest power": check(f"{name}, lowest power", min(powers), low - noise, at_most=False),
                f"{name}, highest power": check(f"{name}, highest power", max(powers), high + noise, at_most=True),
            }
    save("plan", figures)


if __name__ == "__main__":
    main()
