"""One score for every loss beside one model for each loss, on adult.

    python bench/omni.py [--seeds 5]

One score: gradient boosting for the log loss, corrected by MCGrad (`CalibratedClassifier`), then `omnipredict`. The others
see the same rows and features, and are trained for each loss: LightGBM with the objective of that loss, with a weighted
hinge loss, and with class weights. Of two sizes of trees and all of these, the best on a fifth of the training rows, by the
loss that is asked for, is fitted again on all of them. What counts is the loss of test rows, the difference row by row, and
its standard error. Logistic regression in the place of the boosting shows what a weak base costs.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before any OpenMP is loaded

import lightgbm as lgb
import numpy as np
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import trueup as tu
from cases import DATA, SHARES, SOURCES
from common import QUICK, check, save
from trueup.decisions import omniloss, omnipredict

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

CLIP = 1e-6
BASES = ("boosting", "logistic")
SHAPES = (7, 31)  # leaves of a tree
RATE, MOST, PATIENCE = 0.1, 1000, 50
LOSSES: dict[str, Any] = {
    "squared": "squared",
    "log": "log",
    "absolute": "absolute",
    "quantile 0.9": ("quantile", 0.9),
    "quantile 0.1": ("quantile", 0.1),
    "hinge": "hinge",
    "costs fn 5, fp 1": {"fn": 5, "fp": 1},
    "costs fn 1, fp 5": {"fn": 1, "fp": 5},
}


class Split(NamedTuple):
    """Rows of one seed: to learn from, and to test."""

    X: pd.DataFrame
    y: Floats
    Z: pd.DataFrame
    z: Floats


class Objective(NamedTuple):
    """What a model is trained for: LightGBM's objective or a hinge, and how much a positive row weighs to a negative."""

    name: str
    alpha: float = 0.5
    positive: float = 1.0


class Trained(NamedTuple):
    """A model, and what it gives for held-out rows."""

    fit_all: Callable[[], Callable[[pd.DataFrame], Floats]]
    held_out: Floats


def rows(seed: int) -> Split:
    """Deal the rows as the quality study does: what the base and the calibrator have there is all to learn from here."""
    source = SOURCES[0]
    frame = pd.read_parquet(DATA / f"{source.name}.parquet")
    y = frame[source.label].to_numpy(float)
    X = frame.drop(columns=[source.label, *source.leave_out])
    for name in X.columns:
        if not pd.api.types.is_numeric_dtype(X[name]):
            X[name] = X[name].astype("category")
    order = np.random.default_rng([seed, 4]).permutation(len(X))
    train, test = np.split(order, [sum(int(share * len(X)) for share in SHARES[:2])])
    return Split(X.iloc[train], y[train], X.iloc[test], y[test])


def one_score(split: Split, base: str, seed: int) -> tuple[Floats, Floats]:
    """Fit a base model and MCGrad on all rows; give the test scores of both."""
    texts = split.X.select_dtypes("category").columns.tolist()
    numeric = [name for name in split.X.columns if name not in texts]
    hot = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore", min_frequency=20), texts), (StandardScaler(), numeric)
    )
    estimator: Any = {
        "boosting": HistGradientBoostingClassifier(
            learning_rate=0.05, max_iter=1000, early_stopping=True, categorical_features="from_dtype", random_state=seed
        ),
        "logistic": make_pipeline(hot, LogisticRegression(max_iter=1000)),
    }[base]
    model = tu.CalibratedClassifier(estimator, tu.MCGrad(threads=2), cv=5).fit(split.X, split.y)
    return model.predict_proba(split.Z)[:, 1], model.estimator_.predict_proba(split.Z)[:, 1]


def objectives(name: str) -> list[tuple[Objective, str]]:
    """Say what may be trained for a loss, and how what comes out is read."""
    likely = (Objective("binary"), "probability")
    if name in ("squared", "log"):
        return [likely] if name == "log" else [(Objective("l2"), "probability"), likely]
    loss = LOSSES[name]
    if name in ("absolute", "hinge"):
        odds, own = 1.0, [(Objective("l1"), "clipped")] if name == "absolute" else []
    elif isinstance(loss, tuple):
        odds, own = loss[1] / (1 - loss[1]), [(Objective("quantile", alpha=loss[1]), "clipped")]
    else:
        odds, own = loss["fn"] / loss["fp"], []
    if name == "hinge":
        own = [(Objective("hinge"), "margin")]
    return [*own, (Objective("hinge", positive=odds), "sign"), (Objective("binary", positive=odds), "half")]


def read(raw: Floats, how: str, loss: str) -> Floats:
    """Turn what a model gives into predictions for a loss."""
    lowest = -1.0 if loss == "hinge" else 0.0
    if how == "probability":
        return np.clip(raw, CLIP, 1 - CLIP) if loss == "log" else np.clip(raw, 0, 1)
    if how in ("clipped", "margin"):
        return np.clip(raw, 0.0 if how == "clipped" else -1.0, 1.0)
    return np.where(raw > (0.0 if how == "sign" else 0.5), 1.0, lowest)


def sides_and_weights(data: lgb.Dataset) -> tuple[Floats, Floats]:
    """Give outcomes as -1 and 1, and weights; LightGBM forgets weights that are all 1."""
    side, weight = 2 * np.asarray(data.get_label(), float) - 1, data.get_weight()
    return side, np.ones(len(side)) if weight is None else np.asarray(weight, float)


def hinge(raw: Floats, data: lgb.Dataset) -> tuple[Floats, Floats]:
    """Give the gradient of max(0, 1 - y t), y in {-1, 1}; its curvature is zero, so steps assume a curvature of one."""
    side, weight = sides_and_weights(data)
    return np.where(side * raw < 1, -side, 0.0) * weight, weight


def hinge_left(raw: Floats, data: lgb.Dataset) -> tuple[str, float, bool]:
    side, weight = sides_and_weights(data)
    return "hinge", float(np.average(np.maximum(0, 1 - side * raw), weights=weight)), False


def train(split: Split, held: NDArray[np.bool_], asked: Objective, leaves: int, seed: int) -> Trained:
    """Train for an objective until held-out rows no longer gain; be ready to fit again on all."""
    own: Any = hinge if asked.name == "hinge" else asked.name
    settings = {
        "objective": own, "alpha": asked.alpha, "num_leaves": leaves, "learning_rate": RATE, "verbose": -1,
        "num_threads": 2, "bagging_fraction": 0.8, "bagging_freq": 1, "seed": seed,
    }  # fmt: skip
    if asked.name == "hinge":
        settings["metric"] = "none"
    weight = np.where(split.y == 1, asked.positive, 1.0)

    def data(at: NDArray[np.bool_]) -> lgb.Dataset:
        return lgb.Dataset(split.X[at], split.y[at], weight=weight[at])

    stop = lgb.early_stopping(PATIENCE, verbose=False)
    judge = hinge_left if asked.name == "hinge" else None
    first = lgb.train(settings, data(~held), MOST, valid_sets=[data(held)], feval=judge, callbacks=[stop])
    trees = max(first.best_iteration, 1)

    def fit_all() -> Callable[[pd.DataFrame], Floats]:
        return lgb.train(settings, data(np.ones(len(held), bool)), trees).predict

    return Trained(fit_all, np.asarray(first.predict(split.X[held], num_iteration=trees)))


def one_for_each(split: Split, seed: int) -> dict[str, tuple[Floats, str]]:
    """Give, for each loss, the predictions of the model that was best on held-out rows, and what it is."""
    held = np.random.default_rng([seed, 9]).random(len(split.y)) < 0.2
    known: dict[tuple[Objective, int], Trained] = {}
    again: dict[tuple[Objective, int], Floats] = {}
    found = {}
    for name, loss in LOSSES.items():
        tried = []
        for asked, how in objectives(name):
            for leaves in SHAPES:
                key = (asked, leaves)
                if key not in known:
                    known[key] = train(split, held, asked, leaves, seed)
                left = omniloss(split.y[held], read(known[key].held_out, how, name), loss).mean()
                tried.append((float(left), asked, leaves, how))
        _, asked, leaves, how = min(tried, key=lambda one: one[0])
        key = (asked, leaves)
        if key not in again:
            again[key] = np.asarray(known[key].fit_all()(split.Z))
        weight = f" {asked.positive:.3g}:1" if asked.positive != 1 else ""
        found[name] = read(again[key], how, name), f"{asked.name}{weight}, {leaves} leaves, {how}"
    return found


def measure(seed: int) -> dict[str, Any]:
    """Compare on one split."""
    split = rows(seed)
    start = time.perf_counter()
    scores = {base: one_score(split, base, seed) for base in BASES}
    between = time.perf_counter()
    theirs = one_for_each(split, seed)
    figures: dict[str, Any] = {
        "seed": seed, "rows": len(split.y), "test_rows": len(split.z),
        "seconds": {"two scores": between - start, "one model a loss": time.perf_counter() - between}, "losses": {},
    }  # fmt: skip
    for name, loss in LOSSES.items():

        def lost(p: Floats, name: str = name, loss: Any = loss) -> Floats:
            sure = np.clip(p, CLIP, 1 - CLIP) if name == "log" else p
            return omniloss(split.z, omnipredict(sure, loss), loss)

        other, what = theirs[name]
        against = omniloss(split.z, other, loss)
        cell: dict[str, Any] = {"theirs": float(against.mean()), "model": what}
        for base, (p, alone) in scores.items():
            apart = lost(p) - against
            error = float(apart.std(ddof=1) / np.sqrt(len(apart)))
            cell[base] = {
                "loss": float(lost(p).mean()), "base alone": float(lost(alone).mean()),
                "difference": float(apart.mean()), "error": error, "sigmas": float(apart.mean() / error) if error else 0.0,
            }  # fmt: skip
        figures["losses"][name] = cell
    return figures


def summary(found: list[dict[str, Any]], base: str) -> dict[str, dict[str, float]]:
    """Average over the splits. Their test rows overlap, so the mean difference is held against the error of one split."""
    summary = {}
    for name in LOSSES:
        cells = [one["losses"][name] for one in found]
        difference, error = (float(np.mean([cell[base][what] for cell in cells])) for what in ("difference", "error"))
        summary[name] = {
            "ours": float(np.mean([cell[base]["loss"] for cell in cells])),
            "theirs": float(np.mean([cell["theirs"] for cell in cells])),
            "base alone": float(np.mean([cell[base]["base alone"] for cell in cells])),
            "difference": difference, "error": error, "sigmas": difference / error if error else 0.0,
            "worst_sigmas": max(cell[base]["sigmas"] for cell in cells),
            "splits_beyond_two": sum(cell[base]["sigmas"] > 2 for cell in cells),
            "splits_better": sum(cell[base]["difference"] <= 0 for cell in cells),
        }  # fmt: skip
    return summary


def show(summary: dict[str, dict[str, float]], base: str, many: int) -> None:
    print(f"\n{base}, MCGrad, omnipredict; test loss, mean of {many} splits (below 0: ours is better)")
    heads = ("ours", "theirs", "difference", "s.e.", "in s.e.", "worst", "no MCGrad")
    print(f"{'loss':18s} " + " ".join(f"{head:>10s}" for head in heads))
    for name, one in summary.items():
        values = [one[what] for what in ("ours", "theirs", "difference", "error", "sigmas", "worst_sigmas", "base alone")]
        digits = (5, 5, 5, 5, 2, 2, 5)
        print(f"{name:18s} " + " ".join(f"{value:10.{length}f}" for value, length in zip(values, digits, strict=True)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=5)
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", category=UserWarning, module="lightgbm")
    start, found = time.perf_counter(), []
    for seed in range(arguments.seeds):
        found.append(measure(seed))
        print(f"split {seed}: {found[-1]['seconds']}", flush=True)
    means = {base: summary(found, base) for base in BASES}
    for base, one in means.items():
        show(one, base, arguments.seeds)
    print(f"{time.perf_counter() - start:.0f} s")
    checks = {
        f"{name}: ours less theirs in paired standard errors, mean of {arguments.seeds} splits": check(
            name, one["sigmas"], 2.0, at_most=True
        )
        for name, one in means["boosting"].items()
    }
    if QUICK or arguments.seeds == 5:
        save("omni", {"checks": checks, "summary": means, "splits": found})


if __name__ == "__main__":
    main()
