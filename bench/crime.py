"""Communities & Crime, setting 1 of "Local calibration: metrics and recalibration" (Luo et al. 2022, arXiv 2102.10809).

    python bench/crime.py [--seeds 60] [--processes 2]
    python bench/crime.py --curves
    python bench/crime.py --published
    python bench/crime.py --quick

Tables 1 to 3, and the curves of Figures 5, 14, 15 and 17.

Is the violent crime of a community above the median? A network of three hidden layers of 100 learns from 994 rows, 500
recalibrate it, 500 test it, dealt anew for every seed (the paper's 1,494 / 500 / 500 is more than there are: 1,994).
phi is the last hidden layer, by t-SNE to 2 dimensions (of recalibration and test rows together) or by PCA to 20.

Confidence is that of the class the network calls, hit is whether it came true; 5 equal bins of [0, 1], of which
confidences from 0.5 up fill three. The class called is the network's whatever the method, so that hits are the same for
all and confidences may fall below 0.5. Groups are the largest of the four shares of race that the data have (White, Black,
Hispanic, Asian), as they stand there: scaled each by itself to [0, 1], which cannot be undone. The paper has a fifth,
Indian, for which the data have no share but an income; the largest income per head of five is measured beside them. The
paper's networks were far too sure (error of confidence 15%, log loss .96) though trained until validation accuracy stopped
rising. Ours have relu for leaky relu and no dropout, which scikit-learn does not have; 200 epochs give errors of confidence
like the paper's (of 100, 200 and 400 tried on three seeds, before anything was recalibrated). Networks that stop early are
shown beside them.

The maximum over the bins of groups, however few their rows, is mostly chance: `by chance` is what the confidences of a
method would show were they the truth (hits drawn from them), and the same is measured over bins of 10 rows or more.

The curves are the maximum (Figure 5) and the mean (Figure 17) of the local calibration error as a function of the bandwidth
gamma of the metric, while LoRe keeps its own gamma. Figures 14 and 15 measure with other features than LoRe was given: the
paper has ImageNet and four networks there. Here t-SNE measures what LoRe did with PCA and the reverse, and the first 20
principal components of the inputs measure both. --curves measures the curves alone and keeps the other figures; --quick
takes two seeds, and does not replace the figures of full runs.
"""

from __future__ import annotations

import argparse
import json
import os
import warnings
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import pandas as pd

import trueup as tu
from cases import DATA
from common import ENVIRONMENTS, QUICK, RESULTS, save

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

KEPT = ENVIRONMENTS / "crime"
ROWS = (994, 500, 500)  # the network, recalibration, test
EPOCHS = {"200 epochs": 200, "stopped early": None}
BINS, LEAST, CLIP, DRAWS = 5, 10, 1e-6, 20
RACES = ("racePctWhite", "racepctblack", "racePctHisp", "racePctAsian")
INCOMES = ("whitePerCap", "blackPerCap", "indianPerCap", "AsianPerCap", "HispPerCap")
GAMMA = {"t-SNE": 0.2, "PCA": 0.4}
# The curves: bandwidths of the metric (at the last one neighbourhoods are whole bins), and the features it is measured on.
GAMMAS = (0.01, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 100.0)
FEATURES = ("t-SNE", "PCA", "inputs")
COMPONENTS = 20
CURVES_OF = "200 epochs"
CURVE_DRAWS = 5  # of hits, per seed and method
QUICK_SEEDS = 2
PUBLISHED = {
    "none": 0.588, "temperature": 0.521, "histogram": 0.515, "isotonic": 0.596, "group temperature": 0.423,
    "group histogram": 0.542, "LoRe (t-SNE, gamma 0.2)": 0.351, "LoRe (PCA, gamma 0.4)": 0.392,
}  # fmt: skip
PUBLISHED_MEANS = {  # Table 3: ECE, log loss, Brier
    "none": (0.151, 0.96, 0.17), "temperature": (0.049, 0.43, 0.14), "histogram": (0.033, 0.48, 0.15),
    "isotonic": (0.306, 0.79, 0.30), "LoRe (t-SNE, gamma 0.2)": (0.035, 0.42, 0.13),
    "LoRe (PCA, gamma 0.4)": (0.045, 0.44, 0.14),
}  # fmt: skip
# The ninth method trains the network by another loss: its figure in Table 1, and ECE, log loss and Brier of Table 3.
NOT_RUN = {"MMCE optimization": (0.526, 0.044, 0.43, 0.14)}
PUBLISHED_CORRELATIONS = {
    "ECE": 0.102, "MCE": 0.233, "log loss": 0.542, "Brier": 0.101, "MLCE (t-SNE, gamma 0.2)": 0.642,
    "MLCE (PCA, gamma 0.4)": 0.639,
}  # fmt: skip


def rows() -> tuple[pd.DataFrame, pd.DataFrame, NDArray[np.bool_]]:
    """Give the features, the columns that groups are made of, and the outcome."""
    frame = pd.read_parquet(DATA / "communities_crime.parquet")
    y = (frame["ViolentCrimesPerPop"] > frame["ViolentCrimesPerPop"].median()).to_numpy()
    gone = ("ViolentCrimesPerPop", "county", "community", "communityname", "fold", "state")
    X = frame.drop(columns=[name for name in gone if name in frame]).dropna(axis=1).astype(float)
    return X, frame[[*RACES, *INCOMES]], y


def network(kind: str, seed: int) -> dict[str, Any]:
    """Train a network and lay its last hidden layer out, once: what recalibration (first) and test rows look like."""
    place = KEPT / f"{kind.replace(' ', '-')}-{seed}.npz"
    if not place.exists():
        from sklearn.manifold import TSNE
        from sklearn.neural_network import MLPClassifier

        X, _, y = rows()
        order = np.random.default_rng([seed, 6]).permutation(len(y))
        own, later = order[: ROWS[0]], order[ROWS[0] :]
        stop: dict[str, Any] = {"max_iter": EPOCHS[kind]} if EPOCHS[kind] else {"max_iter": 500, "early_stopping": True}
        net = MLPClassifier((100, 100, 100), batch_size=64, learning_rate_init=3e-4, random_state=seed, **stop)
        net.fit(X.to_numpy()[own], y[own])
        hidden = X.to_numpy()[later]
        for weights, shift in zip(net.coefs_[:-1], net.intercepts_[:-1], strict=True):
            hidden = np.maximum(hidden @ weights + shift, 0)
        flat = TSNE(2, random_state=seed).fit_transform(hidden)
        p = net.predict_proba(X.to_numpy()[later])[:, 1]
        np.savez(place, rows=later, p=p, hidden=hidden, flat=flat.astype(float))
    return dict(np.load(place))


def embeddings(found: dict[str, Any]) -> tuple[dict[tuple[str, str], Floats], dict[str, float]]:
    """Make phi of recalibration and test rows: two recalibration rows 1 apart on average, and raw; and the factor."""
    made, units = {}, {}
    for name, X, components in (("t-SNE", found["flat"], None), ("PCA", found["hidden"], COMPONENTS)):
        fitted = tu.metrics.fit_features(X[: ROWS[1]], components=components, scaling="none")
        made[name, "scaled"], units[name] = fitted.transform(X), fitted.unit
        made[name, "raw"] = made[name, "scaled"] / fitted.unit
    return made, units


def binned(confidence: Floats) -> Ints:
    return tu.metrics.bins(confidence, n_bins=BINS)


def named(columns: Floats) -> dict[str, Floats]:
    return {f"z{at}": column for at, column in enumerate(columns.T)}


class Seed:
    """One network: its recalibration and test rows."""

    def __init__(self, kind: str, seed: int) -> None:
        found = network(kind, seed)
        X, columns, y = rows()
        p, at = found["p"], found["rows"]
        self.inputs = X.to_numpy()[at]
        self.phi, self.unit = embeddings(found)
        self.hidden = found["hidden"]
        self.p, self.up = p, p > 0.5
        self.confidence = np.maximum(p, 1 - p)
        self.hit = (self.up == y[at]).astype(float)
        self.y = y[at].astype(float)
        self.races = columns[list(RACES)].to_numpy()[at]
        self.groups = {
            "race": columns[list(RACES)].to_numpy()[at].argmax(axis=1),
            "income": columns[list(INCOMES)].to_numpy()[at].argmax(axis=1),
        }
        self.train, self.test = slice(ROWS[1]), slice(ROWS[1], None)

    def of_class(self, fix: Any, columns: dict[str, Any]) -> Floats:
        """Fit the probability of a high rate; give the confidence in the class called."""
        fix.fit({name: column[self.train] for name, column in columns.items()}, self.y[self.train])
        p = fix.predict({name: column[self.test] for name, column in columns.items()})
        return np.where(self.up[self.test], p, 1 - p)

    def of_confidence(self, fix: Any, columns: dict[str, Any]) -> Floats:
        """Fit the confidence itself."""
        fix.fit({name: column[self.train] for name, column in columns.items()}, self.hit[self.train])
        return fix.predict({name: column[self.test] for name, column in columns.items()})

    def local(self, which: str, scale: str) -> Floats:
        """Recalibrate locally; LoRe scales what it is given, so that a raw embedding has a gamma in its own unit."""
        gamma = GAMMA[which] * (self.unit[which] if scale == "raw" else 1.0)
        fix = tu.LoRe("p", gamma=gamma, bins=BINS, embedding="columns", threads=1)
        return self.of_confidence(fix, {"p": self.confidence, **named(self.phi[which, scale])})

    def published_methods(self) -> dict[str, Floats]:
        """Return the confidences of the test rows by every method of the paper that is run here."""
        race = np.array(RACES)[self.groups["race"]]
        width = {"bins": BINS, "strategy": "width"}
        p, c = {"p": self.p}, {"p": self.confidence}
        alone = {"by": ["race"], "prediction": "p", "shrinkage": 0.0, "min_rows": 1}
        return {
            "none": self.confidence[self.test],
            "temperature": self.of_class(tu.Temperature("p"), p),
            "histogram": self.of_confidence(tu.Histogram("p", **width), c),
            "isotonic": self.of_confidence(tu.Isotonic("p"), c),
            "group temperature": self.of_class(tu.Grouped(tu.Temperature(), **alone), {**p, "race": race}),
            "group histogram": self.of_confidence(tu.Grouped(tu.Histogram(**width), **alone), {**c, "race": race}),
            **{f"LoRe ({which}, gamma {gamma})": self.local(which, "scaled") for which, gamma in GAMMA.items()},
        }

    def methods(self) -> dict[str, Floats]:
        """Return the confidences of the test rows by every method."""
        p, c = {"p": self.p}, {"p": self.confidence}
        narrow = named(self.phi["PCA", "scaled"])
        races = dict(zip(RACES, self.races.T, strict=True))
        return {
            **self.published_methods(),
            **{f"LoRe ({which}, gamma {gamma}), raw": self.local(which, "raw") for which, gamma in GAMMA.items()},
            "LoRe (by itself)": self.of_confidence(tu.LoRe("p", threads=1), {**c, **named(self.hidden)}),
            "MCGrad (PCA)": self.of_class(tu.MCGrad("p", threads=1), {**p, **narrow}),
            "MCGrad (races)": self.of_class(tu.MCGrad("p", threads=1), {**p, **races}),
        }

    def measure(self, confidence: Floats) -> dict[str, float]:
        """Measure confidences of the test rows."""
        hit = self.hit[self.test]
        held = np.clip(confidence, CLIP, 1 - CLIP)
        found = {
            "ECE": tu.metrics.ece(hit, confidence, n_bins=BINS),
            "MCE": tu.metrics.mce(hit, confidence, n_bins=BINS),
            "log loss": float(-np.mean(hit * np.log(held) + (1 - hit) * np.log1p(-held))),
            "Brier": float(np.mean((confidence - hit) ** 2)),
        }
        for name, groups in self.groups.items():
            found[f"group MCE, {name}"], rows_there = worst(hit, confidence, groups[self.test], 1)
            found[f"group MCE, {name}, {LEAST} rows"], _ = worst(hit, confidence, groups[self.test], LEAST)
            found[f"rows of the worst bin, {name}"] = rows_there
        random = np.random.default_rng(0)
        drawn = (random.random((DRAWS, len(hit))) < confidence).astype(float)
        for least in (1, LEAST):
            chance = [worst(one, confidence, self.groups["race"][self.test], least)[0] for one in drawn]
            found[f"group MCE, race{f', {LEAST} rows' * (least > 1)}, by chance"] = float(np.mean(chance))
        for (which, scale), phi in self.phi.items():
            largest = tu.metrics.mlce(phi[self.test], confidence, hit, gamma=GAMMA[which], bins=BINS, threads=1)
            found[f"MLCE ({which}, gamma {GAMMA[which]}){', raw' * (scale == 'raw')}"] = largest
        return found

    def curves(self) -> dict[str, Any]:
        """Compute MLCE and mean LCE by gamma, features of the metric and method, and both by chance."""
        hit = self.hit[self.test]
        inputs = tu.metrics.fit_features(self.inputs[self.train], components=COMPONENTS, scaling="none")
        maps = {which: self.phi[which, "scaled"][self.test] for which in GAMMA} | {
            "inputs": inputs.transform(self.inputs[self.test])
        }
        random = np.random.default_rng(0)
        found: dict[str, Any] = {which: {} for which in maps}
        for method, confidence in self.published_methods().items():
            drawn = (random.random((CURVE_DRAWS, len(hit))) < confidence).astype(float)
            for which, phi in maps.items():
                measured = [
                    tu.metrics.lce_curve(phi, confidence, y, gammas=GAMMAS, bins=BINS, threads=1) for y in (hit, *drawn)
                ]
                found[which][method] = {
                    "MLCE": measured[0].mlce.tolist(),
                    "LCE": measured[0].mean.tolist(),
                    "MLCE by chance": np.mean([curve.mlce for curve in measured[1:]], axis=0).tolist(),
                    "LCE by chance": np.mean([curve.mean for curve in measured[1:]], axis=0).tolist(),
                }
        return found


def worst(hit: Floats, confidence: Floats, groups: Ints, least: int) -> tuple[float, int]:
    """Give the largest error of a bin of a group, of those with so many rows, and how many it has."""
    cell = groups * BINS + binned(confidence)
    n = np.bincount(cell)
    gap = np.abs(np.bincount(cell, confidence - hit))[n >= least] / n[n >= least]
    return float(gap.max()), int(n[n >= least][gap.argmax()])


def one(kind: str, seed: int) -> dict[str, dict[str, float]]:
    warnings.simplefilter("ignore")
    here = Seed(kind, seed)
    return {name: here.measure(confidence) for name, confidence in here.methods().items()}


def summary(found: list[dict[str, dict[str, float]]]) -> dict[str, Any]:
    """Give mean and standard deviation over the seeds, and how the measures go along with the error of the worst group."""
    methods, names = list(found[0]), list(found[0]["none"])
    cells = {
        method: {
            name: {"mean": float(np.mean(values)), "sd": float(np.std(values, ddof=1))}
            for name in names
            for values in [[seed[method][name] for seed in found]]
        }
        for method in methods
    }
    correlations: dict[str, Any] = {}
    for against in (name for name in names if name.startswith("group") and "chance" not in name):
        truth = [seed[method][against] for seed in found for method in methods if method in PUBLISHED]
        correlations[against] = {
            name: float(np.corrcoef([seed[m][name] for seed in found for m in methods if m in PUBLISHED], truth)[0, 1])
            for name in names
            if not name.startswith(("group", "rows"))
        }
    return {"methods": cells, "correlations": correlations}


def curves_of(seed: int) -> dict[str, Any]:
    """Compute the curves of one network."""
    warnings.simplefilter("ignore")
    return Seed(CURVES_OF, seed).curves()


def curve_summary(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Return means and standard errors of the curves over seeds, and LoRe compared with the other methods by gamma."""
    methods = list(found[0][FEATURES[0]])
    cells: dict[str, Any] = {}
    lowest: dict[str, Any] = {}
    for which in FEATURES:
        cells[which] = {
            method: {
                measure: {
                    "mean": np.mean([seed[which][method][measure] for seed in found], axis=0).tolist(),
                    "error": standard_error([seed[which][method][measure] for seed in found]),
                }
                for measure in found[0][which][method]
            }
            for method in methods
        }
        lowest[which] = {measure: compared(found, which, measure) for measure in ("MLCE", "LCE")}
    return {"seeds": len(found), "gammas": GAMMAS, "cells": cells, "LoRe": lowest}


def standard_error(values: Any) -> list[float]:
    """Return the standard error of the mean over seeds, by gamma."""
    return (np.std(values, axis=0, ddof=1) / len(values) ** 0.5).tolist()


def compared(found: list[dict[str, Any]], which: str, measure: str) -> dict[str, Any]:
    """Compare each variant of LoRe with the best other method, by gamma: difference of means and its standard error."""
    methods = found[0][which]
    values = {method: np.array([seed[which][method][measure] for seed in found]) for method in methods}
    others = [method for method in methods if "LoRe" not in method]
    best = [min(others, key=lambda method: values[method][:, at].mean()) for at in range(len(GAMMAS))]
    rival = np.column_stack([values[method][:, at] for at, method in enumerate(best)])
    return {
        "best other": best,
        **{
            method: {
                "difference": (values[method] - rival).mean(axis=0).tolist(),
                "error": standard_error(values[method] - rival),
            }
            for method in methods
            if "LoRe" in method
        },
    }


def show_curves(found: dict[str, Any]) -> None:
    """Print the curves as tables."""
    for measure in ("MLCE", "LCE"):
        for which in FEATURES:
            print(f"{measure}, features {which}, {found['seeds']} seeds; by gamma {found['gammas']}; by chance behind")
            for method, cell in found["cells"][which].items():
                lines = [
                    " ".join(f"{value:.3f}" for value in cell[name]["mean"]) for name in (measure, f"{measure} by chance")
                ]
                print(f"  {method:<24} {' | '.join(lines)}")


def show(kind: str, found: dict[str, Any]) -> None:
    names = [name for name in found["methods"]["none"] if "MLCE" not in name]
    print(f"{kind}: published, then means over seeds of {'; '.join(names)}")
    for method, cell in found["methods"].items():
        line = " ".join(f"{cell[name]['mean']:6.3f}" for name in names)
        print(f"  {method:<32} {PUBLISHED.get(method, float('nan')):6.3f} | {line}")
    for against, cell in found["correlations"].items():
        print(f"  correlation with {against}: " + ", ".join(f"{name} {value:.3f}" for name, value in cell.items()))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=60)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--published", action="store_true", help="only write the published figures to the results")
    parser.add_argument("--curves", action="store_true", help="only the curves; keeps the other figures")
    parser.add_argument("--quick", action="store_true", help="two seeds, one process")
    arguments = parser.parse_args()
    seeds, processes = (QUICK_SEEDS, 1) if arguments.quick else (arguments.seeds, arguments.processes)
    if arguments.published:
        found = json.loads((RESULTS / "crime.json").read_text())
        found |= {"published": PUBLISHED, "published means": PUBLISHED_MEANS, "correlations": PUBLISHED_CORRELATIONS,
                  "not run": NOT_RUN}  # fmt: skip
        (RESULTS / "crime.json").write_text(json.dumps(found, indent=2) + "\n")
        return
    KEPT.mkdir(parents=True, exist_ok=True)
    figures: dict[str, Any] = {
        "seeds": seeds, "published": PUBLISHED, "published means": PUBLISHED_MEANS,
        "correlations": PUBLISHED_CORRELATIONS, "not run": NOT_RUN,
    }  # fmt: skip
    if arguments.curves:
        figures = json.loads((RESULTS / "crime.json").read_text())
    else:
        for kind in EPOCHS:
            with ProcessPoolExecutor(processes) as pool:
                done = list(pool.map(one, [kind] * seeds, range(seeds)))
            figures[kind] = summary(done)
            show(kind, figures[kind])
    with ProcessPoolExecutor(processes) as pool:
        figures["curves"] = curve_summary(list(pool.map(curves_of, range(seeds))))
    show_curves(figures["curves"])
    if QUICK or seeds >= 60:
        save("crime", figures)


if __name__ == "__main__":
    main()
