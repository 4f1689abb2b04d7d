"""Statements about decisions and fits: do they hold for shifted scores, equally good scores and selected gains.

    python bench/claims.py [--repetitions 400]

shift     Scores of rows without labels are shifted by 0, 0.1 and 0.2 standard deviations from those of 2,000 labelled rows;
          they are too extreme or not extreme enough. How often 90% intervals hold, and how often they do with one stratum
          of scores, that is without post-stratification.
equal     Two scores with the same distribution of errors: how often the verdict of `decision_curve` at 90% says that they
          differ, and how often some pointwise interval of the 99 does.
selected  `MCGrad`, `DepthTwo` and `Auto` on few rows: the gain that is reported, the shrunken one, and that on new rows, of
          fits that kept something (thousandths); a fifth of the repetitions.
"""

from __future__ import annotations

import argparse
import math
import os
import warnings
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

import trueup as tu
from common import check, save
from trueup.decisions import evidence

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

SHIFTS, SLOPES = (0.0, 0.1, 0.2), {"too extreme": 0.5, "not extreme enough": 1.6}
MEASURES = ("average precision", "AUC", "cost", "recall", "precision")
LABELLED = 2000
EQUAL = ((500, -1.8), (2000, -1.8), (20_000, 0.0))
SELECTED = ((1000, 0.8), (4000, 0.3))
NEW_ROWS = 60_000


def expit(x: Floats) -> Floats:
    """Return the logistic function."""
    return np.asarray(1 / (1 + np.exp(-x)))


def covered(task: tuple[float, str, int]) -> list[list[bool]]:
    """Draw once, and return for each measure whether its interval held, with strata and without."""
    shift, kind, seed = task
    warnings.simplefilter("ignore")
    random = np.random.default_rng([SHIFTS.index(shift), list(SLOPES).index(kind), seed])
    x, new = random.normal(size=LABELLED), random.normal(size=5000) + shift
    y, outcome = (random.random(len(z)) < expit(1.2 * SLOPES[kind] * z - 2) for z in (x, new))
    known, p = (y.astype(float), expit(1.2 * x - 1.6)), expit(1.2 * new - 1.6)
    ranked = outcome[np.argsort(-p)]
    precision = float((np.cumsum(ranked) / np.arange(1, 5001))[ranked].mean())
    rank = np.argsort(np.argsort(p)) + 1.0
    positive = int(outcome.sum())
    auc = (rank[outcome].sum() - positive * (positive + 1) / 2) / (positive * (5000 - positive))
    acted = p >= 0.25
    tp = int(outcome[acted].sum())
    realised = (precision, auc, 5.0 * outcome[~acted].sum() + (~outcome[acted]).sum(), tp / positive, tp / acted.sum())
    found = []
    for strata in (20, 1):
        evidence.STRATA = strata
        pr, roc = tu.decisions.expected_pr(p, known), tu.decisions.expected_roc(p, known)
        cost = tu.decisions.expected_cost(p, {"fn": 5, "fp": 1}, 0.25, known)
        confusion = tu.decisions.expected_confusion(p, 0.25, known)
        limits = [(curve.area_low, curve.area_high) for curve in (pr, roc)]
        limits += [(one.low, one.high) for one in (cost, confusion.recall, confusion.precision)]
        found.append([bool(low <= value <= high) for (low, high), value in zip(limits, realised, strict=True)])
    return found


def differ(task: tuple[int, float, int]) -> tuple[bool, bool]:
    """Compare two equally good scores; return whether the verdict says that they differ, and whether some interval does."""
    rows, centre, seed = task
    random = np.random.default_rng([rows, round(-10 * centre), seed])
    x, errors = random.normal(size=rows), 0.7 * random.normal(size=(2, rows))
    first, second = expit(x + errors + centre)
    y = random.random(rows) < expit(x + centre)
    gain = tu.decisions.decision_curve(y, {"first": first, "second": second}).difference["second"]
    return tuple(bool(((low > 0) | (high < 0)).any()) for low, high in ((gain.band_low, gain.band_high), gain[1:3]))


def population(rows: int, seed: int, size: float) -> dict[str, Any]:
    """Draw rows with three columns, and errors of up to about ``size`` logits on some of their levels."""
    random = np.random.default_rng(seed)
    a, b, c = (random.integers(0, levels, rows) for levels in (4, 3, 5))
    x, age = random.normal(size=(2, rows))
    truth = expit(x - 1.5 + size * ((a == 0) - 0.8 * (b == 1) + (c == 2) * (age > 0)))
    columns = {"a": a.astype(str), "b": b.astype(str), "c": c.astype(str), "age": age, "p": expit(x - 1.5)}
    return {**columns, "y": (random.random(rows) < truth).astype(float), "truth": truth}


def selected(task: tuple[str, int, float, int]) -> tuple[float, float, float] | None:
    """Fit once; return the reported gain, the shrunken one and that on new rows; None if nothing was kept."""
    method, rows, size, seed = task
    warnings.simplefilter("ignore")
    data, new = population(rows, seed, size), population(NEW_ROWS, 10**6, size)
    settings = {"saturation": False} if method == "DepthTwo" else {}
    fix = getattr(tu, method)("p", ["a", "b", "c", "age"], threads=1, **settings).fit(data, data["y"])
    history = fix.history_
    if not history.chosen:
        return None
    reported, shrunken = history.loss_before - history.loss_after, history.shrunken_gain
    if method == "Auto":
        reported = next(one.gain for one in fix.choice_.candidates if one.chosen)
        shrunken = fix.choice_.shrunken_gain
    truth, before, after = new["truth"], new["p"], np.clip(fix.predict(new), 1e-9, 1 - 1e-9)
    if history.measure == "squared error" and method != "Auto":
        return reported, shrunken, float(np.mean((truth - before) ** 2 - (truth - after) ** 2))
    gained = truth * np.log(after / before) + (1 - truth) * np.log((1 - after) / (1 - before))
    return reported, shrunken, float(np.mean(gained))


def main() -> None:
    """Run everything and save it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=400)
    repetitions = parser.parse_args().repetitions
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:

        def run(work: Callable[[Any], Any], *setting: Any, count: int = repetitions) -> list[Any]:
            return list(pool.map(work, [(*setting, seed) for seed in range(count)], chunksize=5))

        shifted = _shifted(run)
        equal = []
        for rows, centre in EQUAL:
            simultaneous, pointwise = np.mean(run(differ, rows, centre), axis=0).tolist()
            equal.append({"rows": rows, "prevalence": _prevalence(centre), "verdict": simultaneous, "pointwise": pointwise})
            print(equal[-1])
        gains = []
        for method in ("MCGrad", "DepthTwo", "Auto"):
            for rows, size in SELECTED:
                count = max(10, repetitions // 5)
                kept = [found for found in run(selected, method, rows, size, count=count) if found is not None]
                reported, shrunken, new = (1000 * np.mean(kept, axis=0)).tolist()
                error = 1000 * float(np.std([found[2] for found in kept])) / math.sqrt(len(kept))
                gains.append({"method": method, "rows": rows, "size": size, "kept": len(kept) / count,
                              "reported": reported, "shrunken": shrunken, "new": new, "error": error})  # fmt: skip
                print(gains[-1])
    error = math.sqrt(0.09 / repetitions)
    checks = {
        name: check(name, value, bar, at_most=at_most)
        for name, value, bar, at_most in (
            ("least coverage of shifted scores", min(min(one["held"].values()) for one in shifted), 0.9 - 2 * error, False),
            ("equally good scores that differ", max(one["verdict"] for one in equal), 0.1 + 2 * error, True),
        )
    }
    save("claims", {"repetitions": repetitions, "shift": shifted, "equal": equal, "selected": gains, "checks": checks})


def _shifted(run: Callable[..., list[Any]]) -> list[dict[str, Any]]:
    cells = []
    for shift in SHIFTS:
        for kind in SLOPES:
            held, plain = np.mean(run(covered, shift, kind), axis=0)
            cells.append({"shift": shift, "scores": kind, "held": _named(held), "one stratum": _named(plain)})
            print(cells[-1])
    return cells


def _named(shares: Sequence[float]) -> dict[str, float]:
    return dict(zip(MEASURES, map(float, shares), strict=True))


def _prevalence(centre: float) -> float:
    return float(np.mean(expit(np.random.default_rng(0).normal(size=100_000) + centre)))


if __name__ == "__main__":
    main()
