"""The maximum local calibration error against the bandwidth, before and after each method: three networks on CIFAR-10.

    python bench/cifar.py [--seeds 5]

After "Local calibration: metrics and recalibration" (arXiv 2102.10809), Figures 2, 3 and 9 and Table 4. Softmax outputs of
10,000 test images; half of them recalibrate, half test, dealt anew for every seed. phi is the ten class probabilities,
times one number that puts two recalibration rows 1 apart on average (mean absolute difference of a column); 15 equal bins
of confidence. Methods other than temperature correct the confidence of the class called, and the other classes share what
is left as before. LoRe has those bins with gamma 0.4, as the paper, and its own, of equal weight, where it chooses gamma. A
worst row of 5,000 is never free of error: `by chance` is what confidences of temperature scaling would show were they the
truth; and at gamma 0.4 the worst row is also taken among those whose neighbours are worth 30 rows.
Pictures go to docs/pictures/.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

import trueup as tu
from cases import DATA
from common import PICTURES, save

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

NETS = ("vgg16", "wrn16_4", "lenet5")
BINS, CLIP = 15, 1e-6
GAMMAS = np.geomspace(0.01, 10, 13)
SHOWN = "lenet5"  # of the three its confidences are spread the most
SEEN, ENOUGH = 0.4, 30  # gamma at which only rows count that have neighbours worth so many rows
FLAT = 0.2  # gamma of the landscapes, as in the paper
LEAST = 200  # rows of a bin to be shown
NAMES = tuple(f"p{at}" for at in range(10))


@dataclass(frozen=True)
class Half:
    """Some rows of a network: probabilities of the classes, and which class came true."""

    p: Floats
    label: NDArray[np.int64]

    @property
    def confidence(self) -> Floats:
        """How sure the network is of the class it calls."""
        return self.p.max(axis=1)

    @property
    def hit(self) -> Floats:
        """1 where that class came true."""
        return (self.p.argmax(axis=1) == self.label).astype(float)

    @property
    def columns(self) -> dict[str, Floats]:
        """The probabilities by name."""
        return dict(zip(NAMES, self.p.T, strict=True))

    def reset(self, confidence: Floats) -> Floats:
        """Reset the probability of the class called; the others share what is left as before."""
        top = np.arange(10) == self.p.argmax(axis=1)[:, None]
        others = np.where(top, 0.0, self.p)
        left = others.sum(axis=1, keepdims=True)
        share = np.divide(others, left, out=np.where(top, 0.0, 1 / 9), where=left > 0)
        return np.where(top, confidence[:, None], share * (1 - confidence)[:, None])


def halves(frame: pd.DataFrame, net: str, seed: int) -> tuple[Half, Half]:
    p = frame[[f"{net}_{name}" for name in NAMES]].to_numpy(np.float64)
    p = p / p.sum(axis=1, keepdims=True)
    order = np.random.default_rng([seed, 7]).permutation(len(p))
    label = frame["label"].to_numpy(np.int64)
    first, second = np.array_split(order, 2)
    return Half(p[first], label[first]), Half(p[second], label[second])


def of_confidence(fix: Any, train: Half, test: Half, *, features: bool = False) -> Floats:
    """Correct the confidence by itself, or by the class probabilities beside it."""
    rows = [{"p": half.confidence, **(half.columns if features else {})} for half in (train, test)]
    return fix.fit(rows[0], train.hit).predict(rows[1])


def temperature(train: Half, test: Half) -> Floats:
    fix = tu.Temperature(list(NAMES), classes=list(range(10))).fit(train.columns, train.label)
    return fix.predict(test.columns)


def methods(train: Half, test: Half) -> dict[str, Floats]:
    """Give the class probabilities of the test rows by every method."""
    confidences = {
        "histogram": of_confidence(tu.Histogram("p", bins=BINS, strategy="width"), train, test),
        "isotonic": of_confidence(tu.Isotonic("p"), train, test),
        "LoRe, gamma 0.4": of_confidence(
            tu.LoRe("p", gamma=0.4, bins=BINS, embedding="columns"), train, test, features=True
        ),
        "LoRe, gamma chosen": of_confidence(tu.LoRe("p", embedding="columns"), train, test, features=True),
        "MCGrad": of_confidence(tu.MCGrad("p", threads=2), train, test, features=True),
    }
    reset = {name: test.reset(confidence) for name, confidence in confidences.items()}
    return {"none": test.p, "temperature": temperature(train, test), **reset}


def losses(p: Floats, test: Half, confidence: Floats) -> dict[str, float]:
    hot = np.arange(10) == test.label[:, None]
    return {
        "ECE": tu.metrics.ece(test.hit, confidence, n_bins=BINS),
        "NLL": float(-np.log(np.maximum(p[hot], CLIP)).mean()),
        "Brier": float(((p - hot) ** 2).sum(axis=1).mean()),
        "PRR": tu.metrics.prr(1 - test.hit, confidence),
    }


def seen(phi: Floats, confidence: Floats, hit: Floats) -> dict[str, float]:
    """Measure the worst row among those with enough neighbours, and the mean of all, at one gamma."""
    found = tu.metrics.local_errors(phi, confidence, hit, gamma=SEEN, bins=BINS)
    error = np.abs(found.error)
    return {"MLCE, enough rows": float(error[found.size >= ENOUGH].max()), "mean LCE": float(error.mean())}


def run(frame: pd.DataFrame, net: str, seed: int) -> tuple[dict[str, dict[str, float]], dict[str, Any]]:
    """Measure every method on one deal of the rows: numbers, and curves over gamma."""
    train, test = halves(frame, net, seed)
    phi = tu.metrics.fit_features(train.p, scaling="none").transform(test.p)
    top = test.p.argmax(axis=1)
    numbers, curves = {}, {}
    found = methods(train, test)
    for name, p in found.items():
        confidence = p[np.arange(len(p)), top]
        curves[name] = tu.metrics.lce_curve(phi, confidence, test.hit, gammas=GAMMAS, bins=BINS)
        numbers[name] = {**losses(p, test, confidence), **seen(phi, confidence, test.hit)}
    right = found["temperature"].max(axis=1)
    drawn = (np.random.default_rng([seed, 8]).random(len(right)) < right).astype(float)
    curves["by chance"] = tu.metrics.lce_curve(phi, right, drawn, gammas=GAMMAS, bins=BINS)
    numbers["by chance"] = seen(phi, right, drawn)
    return numbers, curves


def together(curves: list[Any]) -> Any:
    """Average curves over seeds."""
    parts = {name: np.mean([getattr(curve, name) for curve in curves], axis=0) for name in ("mlce", "mean", "mce")}
    return replace(curves[0], mlce=parts["mlce"], mean=parts["mean"], mce=float(parts["mce"]))


def landscape(frame: pd.DataFrame, net: str) -> dict[str, Any]:
    """Draw the local errors of the bins with the least and the largest error of their own, over a PCA of all test rows."""
    from matplotlib.figure import Figure

    train, test = halves(frame, net, 0)
    phi = tu.metrics.fit_features(train.p, components=2, scaling="none").transform(test.p)
    error = tu.metrics.lce(phi, test.confidence, test.hit, gamma=FLAT, bins=BINS)
    place = np.clip(np.ceil(test.confidence * BINS).astype(int) - 1, 0, BINS - 1)
    rows = np.bincount(place, minlength=BINS)
    gap = np.abs(np.bincount(place, test.confidence - test.hit, BINS)) / np.maximum(rows, 1)
    large = np.flatnonzero(rows >= LEAST)
    chosen = {"best": large[gap[large].argmin()], "worst": large[gap[large].argmax()]}
    names = {which: f"{which} bin, {at / BINS:.2f} to {(at + 1) / BINS:.2f}" for which, at in chosen.items()}
    picture = Figure(figsize=(8.6, 3.8), layout="constrained")
    highest = max(float(error[place == at].max()) for at in chosen.values())
    for ax, (which, at) in zip(picture.subplots(1, 2), chosen.items(), strict=True):
        tu.figures.draw_landscape(phi[place == at], error[place == at], ax, max_error=highest, title=names[which])
    picture.savefig(PICTURES / "local-landscape.png", dpi=90)
    errors = {names[which]: error[place == at] for which, at in chosen.items()}
    whole = {names[which]: float(gap[at]) for which, at in chosen.items()}
    ax = tu.figures.draw_lce_cdf(errors, bin_error=whole, title=f"{net}, local errors by bin")
    ax.figure.savefig(PICTURES / "local-cdf.png", dpi=90)
    return {
        which: {"from": float(at / BINS), "to": float((at + 1) / BINS), "rows": int(rows[at]), "error": float(gap[at]),
                "mean LCE": float(error[place == at].mean()), "MLCE": float(error[place == at].max())}
        for which, at in chosen.items()
    }  # fmt: skip


def show(net: str, found: dict[str, Any]) -> None:
    print(net)
    for name, cell in found["methods"].items():
        print(f"  {name:<20} " + " ".join(f"{what} {one['mean']:.4f} ({one['sd']:.4f})" for what, one in cell.items()))
    print(f"  {'gamma':<20} " + " ".join(f"{gamma:6.3f}" for gamma in GAMMAS))
    for name, curve in found["curves"].items():
        print(f"  {name:<20} " + " ".join(f"{value:6.3f}" for value in curve["mlce"]) + f"  MCE {curve['mce']:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=5)
    arguments = parser.parse_args()
    frame = pd.read_parquet(DATA / "cifar10_test_probs.parquet")
    PICTURES.mkdir(parents=True, exist_ok=True)
    figures: dict[str, Any] = {
        "seeds": arguments.seeds,
        "gammas": GAMMAS.tolist(),
        "bins": BINS,
        "seen": SEEN,
        "enough": ENOUGH,
        "nets": {},
    }
    for net in NETS:
        numbers, curves = zip(*(run(frame, net, seed) for seed in range(arguments.seeds)), strict=True)
        mean = {name: together([each[name] for each in curves]) for name in curves[0]}
        figures["nets"][net] = {
            "methods": {
                name: {
                    what: {"mean": float(np.mean(values)), "sd": float(np.std(values, ddof=1))}
                    for what in numbers[0][name]
                    for values in [[each[name][what] for each in numbers]]
                }
                for name in numbers[0]
            },
            "curves": {
                name: {"mlce": curve.mlce.tolist(), "mean": curve.mean.tolist(), "mce": curve.mce}
                for name, curve in mean.items()
            },
        }
        show(net, figures["nets"][net])
        title = f"{net}, CIFAR-10, mean of {arguments.seeds} deals"
        tu.figures.draw_mlce(mean, title=title).figure.savefig(PICTURES / f"local-mlce-{net}.png", dpi=90)
    figures["landscape"] = {"net": SHOWN, "gamma": FLAT, **landscape(frame, SHOWN)}
    print(figures["landscape"])
    save("cifar", figures)


if __name__ == "__main__":
    main()
