"""Held-out quality of MCGrad beside mcgrad 0.1.5, isotonic regression, and refitting LightGBM on features and score.

    python bench/quality.py [--seeds 5] [--only adult,crime] [--kept]
    python bench/quality.py --ours
    python bench/quality.py --chance
    python bench/quality.py --refit covertype-forest,covertype-boosting

With --only, the other cases are those of the last run. With --ours the cases of the last run are fitted again by us alone:
the figures of the others are those of that run (the base scores must have the same loss up to 1e-5).

Real data sets, three base models each (and one real score), calibration rows that no base model saw. Two of the data sets
were kept apart while defaults were chosen (`Source.unseen`). For every case:
log loss of the test rows, and the multicalibration error of the test rows in sigmas, by mcgrad's own MulticalibrationError
and by ours. Predictions of the peers are kept under .bench/ and made once. With --chance only what the measures are by
chance, added to the results there are, for their cases: ours of the base scores with outcomes drawn from them, mcgrad's of
the corrected scores of the last run, drawn alike. With --refit the log loss of ours and of a refit alone is added, of seed
0 of these cases: where a fit of mcgrad takes minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from typing import TYPE_CHECKING, Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before any OpenMP is loaded

import numpy as np
import pandas as pd

import trueup as tu
from cases import Case, cases, features
from common import ENVIRONMENTS, RESULTS, check, run_peer, save

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

PEER = ENVIRONMENTS / "peer"
KEPT = ENVIRONMENTS / "quality"
METHODS = ("trueup", "mcgrad", "isotonic", "refit")
CLIP = 1e-6
BESIDE_REFIT = "beside a refit"  # cases without the other methods


def log_loss(y: Floats, p: Floats) -> Floats:
    p = np.clip(p, CLIP, 1 - CLIP)
    return -(y * np.log(p) + (1 - y) * np.log1p(-p))


def refit(train: pd.DataFrame, test: pd.DataFrame, seed: int) -> Floats:
    """Train LightGBM on features and score: the better of two shapes and its number of trees by a fifth held out."""
    import lightgbm as lgb

    names = [name for name in train.columns if name not in ("p", "y", "part")]
    both = pd.concat([train, test])[[*names, "p"]]
    for name in features(train)[0]:
        both[name] = both[name].astype("category")
    X, Z = both.iloc[: len(train)], both.iloc[len(train) :]
    held = np.random.default_rng([seed, 9]).random(len(X)) < 0.2
    y = train["y"].to_numpy()
    best: tuple[float, Any] = (np.inf, None)
    for leaves, rate in ((7, 0.1), (31, 0.1)):
        model = lgb.LGBMClassifier(
            n_estimators=1000, num_leaves=leaves, learning_rate=rate, n_jobs=2, verbose=-1, subsample=0.8, subsample_freq=1
        )
        stop = lgb.early_stopping(50, verbose=False)
        model.fit(X[~held], y[~held], eval_set=[(X[held], y[held])], callbacks=[stop])
        loss = model.best_score_["valid_0"]["binary_logloss"]
        best = min(best, (loss, model), key=lambda found: found[0])
    return best[1].predict_proba(Z)[:, 1]


def parts(case: Case) -> tuple[pd.DataFrame, pd.DataFrame]:
    frame = pd.read_parquet(case.path)
    train, test = (frame[frame["part"] == part].drop(columns="part") for part in ("calibration", "test"))
    return train, test


def others(case: Case) -> dict[str, Floats]:
    """Give what the others predict for the test rows, made once."""
    place = KEPT / f"{case.name}.npz"
    if not place.exists():
        from sklearn.isotonic import IsotonicRegression

        train, test = parts(case)
        flat = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(train["p"], train["y"]).predict(test["p"])
        theirs = np.load(PEER / f"{case.name}.npz")["p"]
        scores = {"base": test["p"].to_numpy(), "mcgrad": theirs, "isotonic": flat, "refit": refit(train, test, case.seed)}
        np.savez(place, **scores)
    return dict(np.load(place))


def our_sigmas(case: Case, scores: dict[str, Floats]) -> dict[str, float]:
    _, test = parts(case)
    by = [name for name in test.columns if name not in ("p", "y")]
    return {
        name: float(tu.audit(test.assign(p=p), outcome="y", prediction="p", by=by).worst_sigma)
        for name, p in scores.items()
    }


def by_chance(case: Case) -> float:
    """Measure the base scores of the test rows against outcomes drawn from them: the worst of many segments, by chance."""
    _, test = parts(case)
    p = test["p"].to_numpy(float)
    drawn = (np.random.default_rng([case.seed, 11]).random(len(p)) < p).astype(float)
    by = [name for name in test.columns if name not in ("p", "y")]
    return float(tu.audit(test.assign(y=drawn), outcome="y", prediction="p", by=by).worst_sigma)


def add_chance() -> None:
    """Write to the results what the worst segment of each case is by chance, by our measure and by mcgrad's."""
    found = json.loads((RESULTS / "quality.json").read_text())
    chosen = cases(5, named={row["case"] for row in found["cases"]})
    values = {case.name: by_chance(case) for case in chosen}
    all_values = list(values.values())
    found["by chance"] = {"mean": float(np.mean(all_values)), "median": float(np.median(all_values)), "cases": values}
    ours = [case for case in chosen if (KEPT / "ours" / f"{case.name}.npz").exists()]
    pairs = [str(one) for case in ours for one in (KEPT / "ours" / f"{case.name}.npz", case.path)]
    results = run_peer("mcgrad", "mcgrad_fit.py", "chance", *pairs)
    drawn = {case.name: each["trueup"] for case, each in zip(ours, results, strict=True)}
    sigmas = list(drawn.values())
    found["by chance, mcgrad's measure"] = {
        "mean": float(np.mean(sigmas)), "median": float(np.median(sigmas)), "deviation": float(np.std(sigmas, ddof=1)),
        "cases": drawn,
    }  # fmt: skip
    (RESULTS / "quality.json").write_text(json.dumps(found, indent=2) + "\n")


def add_refits(only: str) -> None:
    """Write to the results the log loss of ours and of a refit for more cases, without the other methods."""
    found = json.loads((RESULTS / "quality.json").read_text())
    for case in cases(1, only):
        train, test = parts(case)
        y, base = test["y"].to_numpy(float), test["p"].to_numpy()
        ours = tu.MCGrad("p", threads=2).fit(train, "y").predict(test)
        scores = {"base": base, "trueup": ours, "refit": refit(train, test, case.seed)}
        losses = {name: float(log_loss(y, p).mean()) for name, p in scores.items()}
        found.setdefault(BESIDE_REFIT, {})[case.name] = losses
        print(case.name, losses, flush=True)
    found["checks"] |= check_refits({row["case"]: row["log_loss"] for row in found["cases"]} | found[BESIDE_REFIT])
    (RESULTS / "quality.json").write_text(json.dumps(found, indent=2) + "\n")


def check_refits(losses: dict[str, dict[str, float]]) -> dict[str, Any]:
    """Hold our log loss on covertype against that of a refit."""
    ratios = [own["trueup"] / own["refit"] for name, own in losses.items() if name.startswith("covertype")]
    text = "covertype, log loss as a multiple of a refit's, worst case"
    return {text: check(text, max(ratios), 1.05, at_most=True)} if ratios else {}


def others_sigmas(chosen: list[Case]) -> dict[str, dict[str, dict[str, float]]]:
    """Measure the others' multicalibration error once, by both measures."""
    missing = [case for case in chosen if not (KEPT / f"{case.name}.json").exists()]
    for start in range(0, len(missing), 5):
        some = missing[start : start + 5]
        arguments = [str(one) for case in some for one in (KEPT / f"{case.name}.npz", case.path)]
        for case, found in zip(some, run_peer("mcgrad", "mcgrad_fit.py", "sigma", *arguments), strict=True):
            both = {"sigma": found, "sigma_ours": our_sigmas(case, others(case))}
            (KEPT / f"{case.name}.json").write_text(json.dumps(both))
    return {case.name: json.loads((KEPT / f"{case.name}.json").read_text()) for case in chosen}


def measure(case: Case) -> dict[str, Any]:
    """Fit one case, beside the others."""
    row = fit(case)
    y = parts(case)[1]["y"].to_numpy(float)
    row["log_loss"] |= {name: float(log_loss(y, p).mean()) for name, p in others(case).items()}
    return row


def fit(case: Case) -> dict[str, Any]:
    """Fit one case; keep what it predicts."""
    train, test = parts(case)
    start = time.perf_counter()
    fix = tu.MCGrad("p", threads=2).fit(train, "y")
    seconds = time.perf_counter() - start
    y, base = test["y"].to_numpy(float), test["p"].to_numpy()
    ours = fix.predict(test)
    (KEPT / "ours").mkdir(exist_ok=True)
    np.savez(KEPT / "ours" / f"{case.name}.npz", trueup=ours)
    losses = {"trueup": log_loss(y, ours), "base": log_loss(y, base)}
    change = losses["trueup"] - losses["base"]
    return {
        "case": case.name, "unseen": case.source.unseen, "rows": len(train), "seconds": seconds,
        "capacity": next((trial.name for trial in fix.history_.capacities if trial.chosen), ""),
        "rounds": fix.history_.chosen,
        "trees": fix.model_.map.trees, "log_loss": {name: float(loss.mean()) for name, loss in losses.items()},
        "sigma_ours": our_sigmas(case, {"trueup": ours}),
        "harm": float(change.mean()), "harm_error": float(change.std() / np.sqrt(len(change))),
    }  # fmt: skip


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean rank and win rate of every method."""
    found: dict[str, Any] = {}
    for measured in ("log_loss", "sigma", "sigma_ours"):
        table = np.array([[row[measured][name] for name in ("base", *METHODS)] for row in rows])
        ranks = table.argsort(axis=1).argsort(axis=1) + 1
        found[measured] = {
            "mean": dict(zip(("base", *METHODS), table.mean(axis=0).tolist(), strict=True)),
            "median": dict(zip(("base", *METHODS), np.median(table, axis=0).tolist(), strict=True)),
            "mean rank": dict(zip(("base", *METHODS), ranks.mean(axis=0).tolist(), strict=True)),
            "better than": {
                name: float(np.mean(table[:, 1] < table[:, at])) for at, name in enumerate(("base", *METHODS)) if at != 1
            },
        }
    found["cases"] = len(rows)
    found["worse than base by two standard errors"] = sum(row["harm"] > 2 * row["harm_error"] for row in rows)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", default="")
    parser.add_argument("--kept", action="store_true", help="only cases that mcgrad was run on before")
    parser.add_argument("--ours", action="store_true", help="fit only ours again, on the cases of the last run")
    parser.add_argument("--chance", action="store_true", help="only the worst segment of calibrated scores")
    parser.add_argument("--refit", default="", help="only ours and a refit, of cases whose names contain one of these")
    arguments = parser.parse_args()
    if arguments.refit:
        add_refits(arguments.refit)
        return
    if arguments.ours:
        fit_again(arguments.only)
        return
    if arguments.chance:
        add_chance()
        return
    chosen = cases(arguments.seeds, arguments.only)
    PEER.mkdir(parents=True, exist_ok=True)
    KEPT.mkdir(parents=True, exist_ok=True)
    missing = [str(case.path) for case in chosen if not (PEER / f"{case.name}.npz").exists()]
    if arguments.kept:
        chosen = [case for case in chosen if (PEER / f"{case.name}.npz").exists()]
    elif missing:
        run_peer("mcgrad", "mcgrad_fit.py", "fit", str(PEER), *missing)
    rows = []
    for case in chosen:
        others(case)
        rows.append(measure(case))
        row = rows[-1]
        shown = " ".join(f"{name} {row['log_loss'][name]:.5f}" for name in ("base", *METHODS))
        print(f"{case.name:32s} {shown}  {row['rounds']} rounds {row['seconds']:.1f} s", flush=True)
    kept = others_sigmas(chosen)
    told_ours = [str(one) for case in chosen for one in (KEPT / "ours" / f"{case.name}.npz", case.path)]
    for row, found in zip(rows, run_peer("mcgrad", "mcgrad_fit.py", "sigma", *told_ours), strict=True):
        row["sigma"] = {**kept[row["case"]]["sigma"], **found}
        row["sigma_ours"] |= kept[row["case"]]["sigma_ours"]
    if arguments.only and (RESULTS / "quality.json").exists():
        again = {row["case"] for row in rows}
        last = json.loads((RESULTS / "quality.json").read_text())["cases"]
        rows = [row for row in last if row["case"] not in again] + rows
        order = {row["case"]: at for at, row in enumerate(last)}
        rows.sort(key=lambda row: order.get(row["case"], len(order)))
    write(rows)


def fit_again(only: str) -> None:
    """Fit the cases of the last run again, those whose name contains ``only``, and keep the figures of the others."""
    last = {row["case"]: row for row in json.loads((RESULTS / "quality.json").read_text())["cases"]}
    every = cases(5, only, set(last))
    rows = [row for row in last.values() if only not in row["case"]]
    (KEPT / "ours").mkdir(parents=True, exist_ok=True)
    for case in every:
        row = fit(case)
        known = last[case.name]
        if not np.isclose(row["log_loss"]["base"], known["log_loss"]["base"], rtol=1e-5):
            raise SystemExit(f"{case.name}: these are not the rows of the last run")
        row["log_loss"] = {**known["log_loss"], **row["log_loss"]}
        row["sigma_ours"] = {**known["sigma_ours"], **row["sigma_ours"]}
        row["sigma"] = known["sigma"]
        rows.append(row)
        print(
            f"{case.name:32s} {row['log_loss']['trueup']:.5f} {known['log_loss']['trueup']:.5f} {row['seconds']:.1f} s",
            flush=True,
        )
    predictions = [str(one) for case in every for one in (KEPT / "ours" / f"{case.name}.npz", case.path)]
    for row, found in zip(rows[-len(every) :], run_peer("mcgrad", "mcgrad_fit.py", "sigma", *predictions), strict=True):
        row["sigma"] = {**row["sigma"], **found}
    order = {name: at for at, name in enumerate(last)}
    write(sorted(rows, key=lambda row: order[row["case"]]))


def write(rows: list[dict[str, Any]]) -> None:
    """Summarise the rows, hold them against the bars, and write the results."""
    parts_of = {"all": rows, "unseen": [row for row in rows if row["unseen"]]}
    found = {name: summary(some) for name, some in parts_of.items() if some}
    checks = {}
    for name, each in found.items():
        for measured, title, bar in (("log_loss", "log loss", 0.92), ("sigma", "multicalibration error", 0.8)):
            text = f"{title} below mcgrad's, {name} cases"
            checks[text] = check(text, each[measured]["better than"]["mcgrad"], bar, at_most=False)
    harmed = found["all"]["worse than base by two standard errors"]
    checks["cases harmed"] = check("cases harmed", harmed, 0, at_most=True)
    last = json.loads((RESULTS / "quality.json").read_text()) if (RESULTS / "quality.json").exists() else {}
    added = {name: figures for name, figures in last.items() if name.startswith(("by chance", BESIDE_REFIT))}
    checks |= check_refits({row["case"]: row["log_loss"] for row in rows} | added.get(BESIDE_REFIT, {}))
    save("quality", {"checks": checks, "summary": found, "cases": rows, **added})


if __name__ == "__main__":
    main()
