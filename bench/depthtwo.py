"""DepthTwo on real rows: one fit, measured at any number of levels, compared with the algorithms that discretise.

    python bench/depthtwo.py [--seeds 5]
    python bench/depthtwo.py --comparison
    python bench/depthtwo.py --quick

After "Discretization-free Multicalibration through Loss Minimization over Tree Ensembles" (Jin, Ding, Ngo & Wu 2025, arXiv
2505.17435), Tables 1 and 2 and Figure 2: overlapping groups as features, one fit on calibration rows, test rows rounded to
10, 20, 50 and 100 levels. K1 and smECE of a sample are not 0 even where the score is right; `right` is what they would be
on average were the corrected scores the truth (outcomes drawn from them). And the counter-example of its Appendix B: an
exclusive or of three groups.

The comparison fits HKRR (the algorithm of the paper's MCBoost) and LSBoost once per number of levels m, and measures them
at the same m; DepthTwo is fitted once. Both discretising algorithms run twice: on all calibration rows until the training
error is within their tolerance, as published, and stopped on held-out rows. Four data sets, five seeds, at most 20,000
calibration and 40,000 test rows. One of them is close to the paper's income classification: American Community Survey of
2018, income above 50,000, and a linear support vector machine as base predictor (persons of 19 to 34 years; the paper has
California and all ages). --comparison runs the comparison alone and keeps the other figures; --quick takes fewer data sets,
seeds, levels and rows, and does not replace the figures of full runs.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

import trueup as tu
from cases import DATA, cases
from common import QUICK, RESULTS, check, save
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

# The comparison: data set, and its base predictor.
SETS = {"acs income": "svm", "acs_employment_ma": "own", "adult": "forest", "covertype": "logistic"}
SET_GROUPS = {
    **GROUPS,
    "acs income": ("RAC1P", "SEX", "AGEP", "SCHL", "COW", "MAR"),
    "covertype": ("wilderness_area", "soil_type", "elevation"),
}
INCOME = 50_000
INCOME_FEATURES = ["AGEP", "COW", "SCHL", "MAR", "RELP", "WKHP", "SEX", "RAC1P"]
BASE_ROWS, FIT_ROWS, TEST_ROWS = 50_000, 20_000, 40_000
QUICK_SETS, QUICK_SEEDS, QUICK_ROWS, QUICK_LEVELS = ("acs income", "adult"), 2, 3_000, (10, 50)
CHANCE_DRAWS = 5  # per seed
SMALLEST = 50  # rows of a level with a learner, for LSBoost stopped on held-out rows; HKRR's own default
DISCRETISING: dict[str, Any] = {
    "HKRR, all rows": lambda m: tu.HKRR("p", levels=m, spacing="equal", stopping=None),
    "HKRR, held out": lambda m: tu.HKRR("p", levels=m, spacing="equal"),
    "LSBoost, all rows": lambda m: tu.LSBoost.as_published("p", levels=m, threads=1),
    "LSBoost, held out": lambda m: tu.LSBoost("p", levels=m, spacing="equal", min_rows=SMALLEST, threads=1),
}
# Income classification (ACS, California) of the paper, from the files behind its Figure 2 and Table 2 in the repository of
# its authors (github.com/hjenryin/Discretization-free-MC, expr/fig/income_classification.json and
# expr/result/FolkDataset-income-classify-CA/*_wo_round.csv), means over its ten folds. Errors by m = 10, 20, 50, 100;
# squared loss and worst-group smECE times the share of the group are those of m = 50.
PUBLISHED = {
    "base": {"worst K1": (0.0883, 0.0901, 0.0907, 0.0908), "squared": 0.1832, "worst smECE x share": 0.0680},
    "DepthTwo": {"worst K1": (0.0119, 0.0114, 0.0123, 0.0143), "squared": 0.1432, "worst smECE x share": 0.0107},
    "MCBoost": {"worst K1": (0.0171, 0.0136, 0.0165, 0.0234), "squared": 0.1576, "worst smECE x share": 0.0128},
    "LSBoost": {"worst K1": (0.0132, 0.0133, 0.0122, 0.0165), "squared": 0.1500, "worst smECE x share": 0.0098},
}
PUBLISHED_AT = 50
# Table 1: the range of the gain of a second pass over six data sets.
PUBLISHED_EPS = (1e-7, 1e-3)
ERRORS = 2.0  # standard errors of a paired difference that count as a difference


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


def income(seed: int) -> pd.DataFrame:
    """Return calibration and test rows of the income classification, with the base predictor's score."""
    from sklearn.svm import LinearSVC

    frame = pd.read_parquet(DATA / "acs_mobility_2018.parquet").dropna(subset=["PINCP"])
    X = frame[INCOME_FEATURES].apply(lambda column: pd.to_numeric(column.astype(str), errors="coerce")).fillna(0)
    working = ((frame["PINCP"] > 100) & (X["WKHP"] > 0)).to_numpy()
    frame, X = frame[working], X[working].to_numpy(float)
    y = (frame["PINCP"] > INCOME).to_numpy()
    order = np.random.default_rng([seed, 7]).permutation(len(y))
    own, later = np.split(order, [BASE_ROWS])
    base = LinearSVC().fit(X[own], y[own])
    found = frame.iloc[later].assign(p=1 / (1 + np.exp(-base.decision_function(X[later]))), y=y[later].astype(int))
    return found.assign(part=np.where(np.arange(len(later)) < FIT_ROWS, "calibration", "test"))


def rows_of(name: str, seed: int, most: int | None) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the calibration and the test rows of a data set, at most as many as the comparison uses."""
    if name == "acs income":
        frame = income(seed)
    else:
        wanted = f"{name}-{SETS[name]}-{seed}"
        frame = pd.read_parquet(next(case.path for case in cases(seed + 1, wanted) if case.name == wanted))
    sizes = {"calibration": most or FIT_ROWS, "test": most or TEST_ROWS}
    parts = {part: frame[frame["part"] == part] for part in sizes}
    random = np.random.default_rng([seed, 8])
    drawn = [part.iloc[random.permutation(len(part))[: sizes[which]]] for which, part in parts.items()]
    return drawn[0], drawn[1]


def group_errors(y: Floats, p: Floats, members: NDArray[np.bool_]) -> dict[str, float]:
    """Compute the largest smECE of a group, and the largest of those weighted by the share of the group."""
    errors = np.array([smooth_ece(y[inside], p[inside]) for inside in members.T])
    return {"worst smECE": float(errors.max()), "worst smECE x share": float((errors * members.mean(axis=0)).max())}


def by_level(y: Floats, p: Floats, members: NDArray[np.bool_], levels: tuple[int, ...]) -> dict[str, dict[str, float]]:
    """Measure scores at each of the numbers of levels; only K1 depends on it."""
    whole = {"squared": float(np.mean((y - p) ** 2)), "log loss": float(log_loss(y, p).mean())}
    whole |= group_errors(y, p, members)
    return {str(m): {**whole, "worst K1": float(k1(y, discretize(p, m), members).max())} for m in levels}


def compare(name: str, seed: int, most: int | None, levels: tuple[int, ...]) -> dict[str, Any]:
    """Fit all methods to one data set and seed; return method -> number of levels -> measure."""
    train, test = rows_of(name, seed, most)
    flags, held = groups(train, test, SET_GROUPS[name])
    members = np.column_stack(list(held.values()))
    rows, more = ({**each, "p": part["p"].to_numpy(float)} for each, part in ((flags, train), (held, test)))
    y, truth = (part["y"].to_numpy(float) for part in (train, test))
    fix = tu.DepthTwo("p", saturation=False, threads=1).fit(rows, y)
    corrected = fix.predict(more)
    found = {"base": by_level(truth, more["p"], members, levels), "DepthTwo": by_level(truth, corrected, members, levels)}
    for method, make in DISCRETISING.items():
        found[method] = {}
        for m in levels:
            p = np.clip(make(m).fit(rows, y).predict(more), 0.0, 1.0)
            found[method] |= by_level(truth, p, members, (m,))
    random = np.random.default_rng([seed, 9])
    draws = [
        by_level((random.random(len(truth)) < corrected).astype(float), corrected, members, levels)
        for _ in range(CHANCE_DRAWS)
    ]
    found["by chance"] = {
        m: {measure: float(np.mean([draw[m][measure] for draw in draws])) for measure in draws[0][m]} for m in draws[0]
    }
    print(name, seed, f"{len(train):,} rows, {members.shape[1]} groups; {fix.history_.reason}", flush=True)
    return {"rows": len(train), "test rows": len(test), "groups": members.shape[1], "methods": found}


def mean_and_error(values: list[float]) -> dict[str, float]:
    """Return the mean over seeds and its standard error."""
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else float("nan")
    return {"mean": float(np.mean(values)), "error": spread / len(values) ** 0.5}


def comparison(
    seeds: int, names: tuple[str, ...] = tuple(SETS), most: int | None = None, levels: tuple[int, ...] = LEVELS
) -> dict[str, Any]:
    """Compare DepthTwo with the discretising algorithms: measures, and paired differences of DepthTwo from each."""
    sets: dict[str, Any] = {}
    for name in names:
        runs = [compare(name, seed, most, levels) for seed in range(seeds)]
        methods = [run["methods"] for run in runs]
        cells = {
            method: {
                m: {measure: mean_and_error([run[method][m][measure] for run in methods]) for measure in cell}
                for m, cell in by_m.items()
            }
            for method, by_m in methods[0].items()
        }
        differences = {
            method: {
                m: {
                    measure: mean_and_error([run["DepthTwo"][m][measure] - run[method][m][measure] for run in methods])
                    for measure in methods[0][method][m]
                }
                for m in methods[0][method]
            }
            for method in ("base", *DISCRETISING)
        }
        sets[name] = {
            "base": SETS[name], "rows": runs[0]["rows"], "test rows": runs[0]["test rows"],
            "groups": [min(run["groups"] for run in runs), max(run["groups"] for run in runs)],
            "methods": cells, "differences": differences,
        }  # fmt: skip
        show(name, sets[name])
    return {
        "seeds": seeds, "levels": list(levels), "sets": sets, "published": PUBLISHED, "published at": PUBLISHED_AT,
        "published eps": PUBLISHED_EPS, "outcomes": outcomes(sets),
    }  # fmt: skip


def outcomes(sets: dict[str, Any]) -> dict[str, dict[str, list[int]]]:
    """Count settings (data set and m) where DepthTwo is lower, not distinguishable and higher, for each method."""
    counted: dict[str, dict[str, list[int]]] = {}
    for method in DISCRETISING:
        counted[method] = {}
        for measure in ("worst K1", "worst smECE x share", "worst smECE", "squared", "log loss"):
            z = [
                cell[measure]["mean"] / max(cell[measure]["error"], 1e-12)
                for found in sets.values()
                for cell in found["differences"][method].values()
            ]
            lower, higher = sum(each < -ERRORS for each in z), sum(each > ERRORS for each in z)
            counted[method][measure] = [lower, len(z) - lower - higher, higher]
    return counted


def show(name: str, found: dict[str, Any]) -> None:
    """Print the measures of one data set."""
    print(
        f"{name}: {found['rows']:,} rows, {found['groups']} groups; by m: worst K1 | smECE x share | smECE | squared | log"
    )
    for method, by_m in found["methods"].items():
        parts = [
            " ".join(f"{cell[measure]['mean']:.{digits}f}" for cell in by_m.values())
            for measure, digits in (
                ("worst K1", 4), ("worst smECE x share", 4), ("worst smECE", 3), ("squared", 4), ("log loss", 3),
            )
        ]  # fmt: skip
        print(f"  {method:<18}", " | ".join(parts), flush=True)


def add_comparison(figures: dict[str, Any], seeds: int, *, quick: bool = False) -> None:
    """Add the comparison to the figures, with its checks."""
    compared = comparison(QUICK_SEEDS, QUICK_SETS, QUICK_ROWS, QUICK_LEVELS) if quick else comparison(seeds)
    figures["comparison"] = compared | {"checks": {}}
    closest = compared["sets"]["acs income"]["methods"]
    ratios = [closest["DepthTwo"][m]["worst K1"]["mean"] / closest["base"][m]["worst K1"]["mean"] for m in closest["base"]]
    lowest = [
        cells["methods"]["DepthTwo"][m]["worst K1"]["mean"]
        / min(cells["methods"][method][m]["worst K1"]["mean"] for method in DISCRETISING)
        for cells in compared["sets"].values()
        for m in cells["methods"]["DepthTwo"]
    ]
    higher = {
        measure: sum(counts[measure][2] for counts in compared["outcomes"].values())
        / sum(sum(counts[measure]) for counts in compared["outcomes"].values())
        for measure in ("worst K1", "squared")
    }
    for title, value, bar in (
        ("worst-group K1 of DepthTwo over that of the base, acs income, largest of all m", max(ratios), 0.5),
        ("worst-group K1 of DepthTwo over the lowest of four at the same m, geometric mean",
         float(np.exp(np.mean(np.log(lowest)))), 1.0),
        ("share of comparisons where K1 of DepthTwo is significantly higher", higher["worst K1"], 0.05),
        ("share of comparisons where the squared loss of DepthTwo is significantly higher", higher["squared"], 0.0),
    ):  # fmt: skip
        figures["comparison"]["checks"][title] = check(title, value, bar, at_most=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--comparison", action="store_true", help="only the comparison; keeps the other figures")
    parser.add_argument("--quick", action="store_true", help="fewer data sets, seeds, levels and rows")
    arguments = parser.parse_args()
    names = NAMES[:1] if arguments.quick else NAMES
    if arguments.comparison:
        figures = json.loads((RESULTS / "depthtwo.json").read_text())
        add_comparison(figures, arguments.seeds)
        save("depthtwo", figures)
        return
    paths = {case.name: (case.path, GROUPS[case.source.name]) for name in names for case in cases(1, name)}
    figures = {
        "real": {name: real(*paths[name]) for name in names},
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
    add_comparison(figures, arguments.seeds, quick=arguments.quick)
    if QUICK or not arguments.quick:
        save("depthtwo", figures)


if __name__ == "__main__":
    main()
