"""One fit of DepthTwo, read at any number of levels: worst-group errors on real rows beside MCGrad and the base score.

    python bench/depthtwo.py

After "Discretization-free Multicalibration through Loss Minimization over Tree Ensembles" (arXiv 2505.17435), Tables 1 and
2 and Figure 2: overlapping groups as features, one fit on calibration rows, test rows rounded to 10, 20, 50 and 100 levels.
K1 and smECE of a sample are not 0 even where the score is right; `right` is what they would be on average were the
corrected scores the truth (outcomes drawn from them). And the counter-example of its Appendix B: an exclusive or of three
groups.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

import trueup as tu
from cases import cases
from common import check, save
from quality import log_loss
from trueup.metrics import discretize, k1, smooth_ece

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

LEVELS = (10, 20, 50, 100)
LEAST = 0.01  # share of the calibration rows in a group
BANDS = 5
DRAWS = 20
GROUPS = {
    "adult": ("age", "sex", "race", "education", "marital_status", "occupation", "native_country"),
    "acs_employment_ma": ("RAC1P", "SEX", "AGEP", "SCHL", "DIS", "MAR", "year"),
}
NAMES = ("adult-logistic-0", "adult-forest-0", "acs_employment_ma-own-0")
GAMMA = 0.4


def groups(train: pd.DataFrame, test: pd.DataFrame, columns: tuple[str, ...]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Make flags of overlapping groups: the levels of text columns, fifths of numeric ones, each large enough."""
    found: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
    for name in columns:
        if pd.api.types.is_numeric_dtype(train[name]) and train[name].nunique() > BANDS:
            edges = np.unique(np.quantile(train[name], np.arange(1, BANDS) / BANDS))
            parts = [np.searchsorted(edges, frame[name]) for frame in (train, test)]
        else:
            parts = [frame[name].astype(object).to_numpy() for frame in (train, test)]
        for level in pd.unique(parts[0]):
            flags = [np.asarray(part == level) for part in parts]
            if LEAST <= flags[0].mean() <= 1 - LEAST:
                for out, flag in zip(found, flags, strict=True):
                    out[f"{name}={level}"] = flag
    return found


def measures(y: Floats, p: Floats, members: NDArray[np.bool_]) -> dict[str, Any]:
    """Measure scores: both losses, and the error of the worst group."""
    return {
        "squared": float(np.mean((y - p) ** 2)),
        "log loss": float(log_loss(y, p).mean()),
        "worst smECE": max(smooth_ece(y[inside], p[inside]) for inside in members.T),
        "worst K1": {str(m): float(k1(y, discretize(p, m), members).max()) for m in LEVELS},
    }


def chance(drawn: list[Floats], p: Floats, members: NDArray[np.bool_]) -> dict[str, float]:
    """Say what the worst group's smECE is by chance alone, where the scores are the truth: mean and standard deviation."""
    worst = [max(smooth_ece(y[inside], p[inside]) for inside in members.T) for y in drawn]
    return {"mean": float(np.mean(worst)), "spread": float(np.std(worst, ddof=1))}


def real(path: Any, columns: tuple[str, ...]) -> dict[str, Any]:
    """Fit once, and read the test rows at every number of levels."""
    frame = pd.read_parquet(path)
    train, test = (frame[frame["part"] == part] for part in ("calibration", "test"))
    flags, held = groups(train, test, columns)
    members = np.column_stack(list(held.values()))
    rows, more = ({**each, "p": part["p"].to_numpy()} for each, part in ((flags, train), (held, test)))
    y, truth = (part["y"].to_numpy(float) for part in (train, test))
    start = time.perf_counter()
    fix = tu.DepthTwo("p", threads=2).fit(rows, y)
    middle = time.perf_counter()
    peer = tu.MCGrad("p", threads=2).fit(rows, y)
    end = time.perf_counter()
    scores = {"base": more["p"], "depthtwo": fix.predict(more), "mcgrad": peer.predict(more)}
    random = np.random.default_rng(0)
    drawn = [(random.random(len(truth)) < scores["depthtwo"]).astype(float) for _ in range(DRAWS)]
    right = {
        str(m): float(np.mean([k1(one, discretize(scores["depthtwo"], m), members).max() for one in drawn])) for m in LEVELS
    }
    return {
        "rows": len(train), "groups": members.shape[1], "history": fix.history_.reason, "sweep": fix.sweep_.to_dict(),
        "saturation": fix.saturation_.to_dict(), "seconds": {"depthtwo": middle - start, "mcgrad": end - middle},
        "right K1": right, "right smECE": chance(drawn, scores["depthtwo"], members),
        **{name: measures(truth, p, members) for name, p in scores.items()},
    }  # fmt: skip


def exclusive_or(rows: int = 10_000) -> dict[str, Any]:
    """Fit the counter-example, where the squared error could fall by gamma^2 / 4."""
    random = np.random.default_rng(1)
    flags = random.random((rows, 3)) < 0.5
    sign = np.where(flags.sum(axis=1) % 2 == 1, 1, -1)
    y = (random.random(rows) < 0.5 + GAMMA / 2 * sign).astype(int)
    data = {f"g{at + 1}": flags[:, at] for at in range(3)} | {"p": np.full(rows, 0.5)}
    fix = tu.DepthTwo("p").fit(data, y)
    deep = tu.MCGrad("p", depth=4, feature_fraction=1.0).fit(data, y)
    return {
        "rows": rows, "to be gained": GAMMA**2 / 4, "saturation": fix.saturation_.to_dict(), "history": fix.history_.reason,
        "mcgrad, depth 4": deep.history_.reason,
    }  # fmt: skip


def main() -> None:
    paths = {case.name: (case.path, GROUPS[case.source.name]) for case in cases(1) if case.name in NAMES}
    figures: dict[str, Any] = {
        "real": {name: real(*paths[name]) for name in NAMES},
        "exclusive or": exclusive_or(),
        "checks": {},
    }
    held = []
    for name, found in figures["real"].items():
        print(f"{name}: {found['rows']:,} rows, {found['groups']} groups; {found['history']}")
        print(f"  {found['saturation']['sentence']}; {found['seconds']}")
        for which in ("base", "depthtwo", "mcgrad"):
            print(f"  {which:<9}", found[which])
        print(f"  {'right':<9}", found["right K1"], found["right smECE"])
        bounds = found["saturation"]["bounds"]
        held += [found["depthtwo"]["worst K1"][m] / (bounds[m] + found["right K1"][m]) for m in bounds]
    saturation = figures["exclusive or"]["saturation"]
    print("exclusive or:", saturation["sentence"])
    by_base = [one["depthtwo"]["worst smECE"] / one["base"]["worst smECE"] for one in figures["real"].values()]
    for title, value, bar, at_most in (
        ("worst-group K1 over its bound plus the noise of the sample, any levels", max(held), 1, True),
        ("worst-group smECE over that of the base score", max(by_base), 1, True),
        ("saturation eps on real rows", max(one["saturation"]["eps"] for one in figures["real"].values()), 1e-2, True),
        ("exclusive or of three: gain of the deeper pass", saturation["deeper"], 1e-2, False),
        ("exclusive or of three: called saturated", float(saturation["saturated"]), 0, True),
    ):
        figures["checks"][title] = check(title, value, bar, at_most=at_most)
    save("depthtwo", figures)


if __name__ == "__main__":
    main()
