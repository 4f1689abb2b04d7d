"""Prevalence under label shift: coverage of the interval of `PriorCorrection`, and how often it refuses.

    python bench/prior.py [--repetitions 500]

Scores are calibrated at the old prevalence (normal given the outcome, a number of standard deviations apart), or too steep
by a factor of the logit. Labelled rows, if any, have the old prevalence, new rows the new one. "clusters": labelled and new
rows come in clusters of 4 equal scores and outcomes. In 95% of the simulations, less two standard errors, the interval must
cover the new prevalence, or ``fit`` must refuse. The coverage of the answers alone is reported, too: where nearly all
simulations are refused, the answers are a selection.
"""

from __future__ import annotations

import argparse
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import expit, logit

import trueup as tu
from common import QUICK, check, save
from trueup.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

LEVEL = 0.95
CLUSTER_ROWS = 4


@dataclass(frozen=True)
class Setting:
    """A population before and after the shift, and the rows."""

    name: str
    old: float = 0.1
    new: float = 0.2
    separation: float = 1.5
    labelled: int = 1000  # 0: the scores are taken to be calibrated
    rows: int = 1000
    steepness: float = 1.0
    clusters: bool = False


SETTINGS = (
    Setting("calibrated, no labels", labelled=0),
    Setting("labelled"),
    Setting("labelled, too steep", steepness=2.0),
    Setting("no shift", new=0.1),
    Setting("large shift", new=0.7),
    Setting("large shift, too steep", new=0.7, steepness=2.0),
    Setting("large shift, no labels", new=0.7, labelled=0),
    Setting("to a rarer outcome", old=0.3, new=0.02),
    Setting("weak scores", separation=0.5),
    Setting("weak scores, no labels", separation=0.5, labelled=0),
    Setting("very weak scores", separation=0.2),
    Setting("few labelled", labelled=150),
    Setting("few labelled, weak, large shift", labelled=200, separation=0.7, new=0.6),
    Setting("few labelled, weak, many new rows", labelled=300, separation=0.7, new=0.6, rows=20_000),
    Setting("few new rows", rows=60),
    Setting("rare", old=0.01, new=0.02, labelled=5000, rows=5000),
    Setting("rare, no labels", old=0.01, new=0.02, labelled=0, rows=5000),
    Setting("rare, large shift", old=0.01, new=0.2, labelled=3000, rows=3000),
    Setting("rarer still", old=0.02, new=0.002, labelled=3000, rows=3000),
    Setting("strong scores", separation=4.0, new=0.5),
    Setting("clusters", clusters=True),
)


def draw(random: np.random.Generator, setting: Setting, n: int, prevalence: float) -> tuple[Floats, Floats]:
    """Draw outcomes and scores."""
    n = n // CLUSTER_ROWS if setting.clusters else n
    y = (random.random(n) < prevalence).astype(float)
    x = random.normal(size=n) + setting.separation * y
    z = logit(setting.old) + setting.separation * x - setting.separation**2 / 2
    p = expit(logit(setting.old) + setting.steepness * (z - logit(setting.old)))
    return (np.repeat(y, CLUSTER_ROWS), np.repeat(p, CLUSTER_ROWS)) if setting.clusters else (y, p)


def numbers(n: int) -> NDArray[np.int64]:
    """Return the cluster of each row."""
    return np.arange(n) // CLUSTER_ROWS


def run(setting: Setting, repetitions: int) -> dict[str, Any]:
    """Estimate the prevalence many times; return the coverage and the share of refusals."""
    random = np.random.default_rng([1, SETTINGS.index(setting)])
    answers, refusals = [], {}
    for _ in range(repetitions):
        known, (_, p) = (
            draw(random, setting, setting.labelled, setting.old),
            draw(random, setting, setting.rows, setting.new),
        )
        evidence: dict[str, Any] = {"labelled": known} if setting.labelled else {"reference_prevalence": setting.old}
        options: dict[str, Any] = {"cluster": numbers(len(p))} if setting.clusters else {}
        try:
            if setting.clusters:  # labelled rows have clusters as the held-out rows of a fit
                held_out = tu.Additive(stopping=tu.CrossValidation(5)).fit(known[1], known[0], cluster=numbers(len(p)))
                evidence["labelled"] = held_out
            fix = tu.PriorCorrection(prevalence="estimate", level=LEVEL, **evidence).fit(p, **options)
        except DataError as error:
            known_reasons = ("cannot tell", "too few to learn", "no prevalence")
            reason = next(text for text in known_reasons if text in str(error))
            refusals[reason] = refusals.get(reason, 0) + 1
            continue
        found = fix.estimate_
        answers.append((found.estimate, found.low, found.high))
    estimate, low, high = np.array(answers).reshape(-1, 3).T
    covered = (low <= setting.new) & (setting.new <= high)
    return {
        "setting": setting.name, "old": setting.old, "new": setting.new, "labelled": setting.labelled,
        "rows": setting.rows, "repetitions": repetitions, "answers": len(answers), "refusals": refusals,
        "coverage": float(covered.mean()) if len(answers) else None,
        "too high": float((low > setting.new).mean()) if len(answers) else None,
        "too low": float((high < setting.new).mean()) if len(answers) else None,
        "mean": float(estimate.mean()) if len(answers) else None,
        "width": float(np.median(high - low)) if len(answers) else None,
    }  # fmt: skip


def main() -> None:
    """Run all settings."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repetitions", type=int, default=500)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    found, worst = [], -np.inf
    for setting in SETTINGS:
        cell = run(setting, arguments.repetitions)
        found.append(cell)
        print({name: round(value, 4) if isinstance(value, float) else value for name, value in cell.items()}, flush=True)
        misses = cell["answers"] * (1 - (cell["coverage"] or 0.0)) / arguments.repetitions
        error = np.sqrt(LEVEL * (1 - LEVEL) / arguments.repetitions)
        worst = max(worst, float((misses - (1 - LEVEL)) / error))
    checks = {
        "intervals that miss the prevalence, standard errors above 5% (worst setting)": check(
            "standard errors above 5%", worst, 2.0, at_most=True
        )
    }
    if QUICK or arguments.repetitions >= 500:
        save("prior", {"level": LEVEL, "settings": found, "checks": checks})


if __name__ == "__main__":
    main()
