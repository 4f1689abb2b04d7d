"""Rewards of saying "unsure" where confidence is low, before and after each method: three networks on CIFAR-10.

    python bench/abstain.py [--seeds 5]

After "Local calibration: metrics and recalibration" (arXiv 2102.10809), section 5.4, Figure 4 and Table 4, which have
ImageNet. "Unsure" costs u, a wrong answer w, a right one nothing; rows are answered whose confidence is at least 1 - u/w.
Data and methods are those of bench/cifar.py: half of 10,000 test images recalibrate, half test, dealt anew for every seed,
and each method corrects the confidence of the class that the network calls. Rewards are in units of u. A gain is over no
recalibration, on the same rows; its standard error is that of the mean over seeds, whose test rows overlap. Beside it is
that of one deal, from differences row by row: what other 5,000 images would change.
The picture goes to docs/pictures/.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

import trueup as tu
from cases import DATA
from cifar import BINS, NETS, halves, of_confidence, temperature
from common import PICTURES, save

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from cifar import Half

    Floats = NDArray[np.float64]

RATIOS = np.geomspace(1, 50, 25)
SHOWN = (2, 5, 10, 20, 50)  # ratios of the tables
DIGITS = 6
NONE, LOCAL = "none", ("LoRe, gamma 0.4", "LoRe, gamma chosen")
ARRAYS = ("answered", "expected", "realised", "standard_error", "always", "never", "oracle", "random")


def confidences(train: Half, test: Half) -> dict[str, Floats]:
    """Give the confidence of the class called by every method."""
    top = test.p.argmax(axis=1)
    return {
        NONE: test.confidence,
        "temperature": temperature(train, test)[np.arange(len(top)), top],
        "histogram": of_confidence(tu.Histogram("p", bins=BINS, strategy="width"), train, test),
        "isotonic": of_confidence(tu.Isotonic("p"), train, test),
        LOCAL[0]: of_confidence(tu.LoRe("p", gamma=0.4, bins=BINS, embedding="columns"), train, test, features=True),
        LOCAL[1]: of_confidence(tu.LoRe("p", embedding="columns"), train, test, features=True),
    }


def earned(confidence: Floats, hit: Floats) -> Floats:
    """Give the reward of each row at each ratio."""
    return np.where(confidence >= ((RATIOS - 1) / RATIOS)[:, None], -RATIOS[:, None] * (1 - hit), -1.0)


def one_deal(frame: pd.DataFrame, net: str, seed: int) -> dict[str, dict[str, Any]]:
    """Measure every method on one deal of the rows."""
    train, test = halves(frame, net, seed)
    found, plain = {}, earned(test.confidence, test.hit)
    for name, confidence in confidences(train, test).items():
        more = earned(confidence, test.hit) - plain
        numbers = {}
        for ratio in SHOWN:
            one = tu.decisions.abstain(confidence, test.hit, ratio=ratio, predicted_class=1)
            numbers |= {
                f"reward at {ratio}": one.reward,
                f"answered at {ratio}": one.answered, f"above expected at {ratio}": one.reward - one.expected_reward,
            }  # fmt: skip
        found[name] = {
            "curve": tu.decisions.reward_curve(confidence, test.hit, ratios=RATIOS, predicted_class=1),
            "rows": more.std(axis=1, ddof=1) / np.sqrt(more.shape[1]),
            "numbers": {
                "PRR": one.coverage.realised_prr, "expected PRR": one.coverage.expected_prr, "AURC": one.coverage.area,
                **numbers,
            },
        }  # fmt: skip
    return found


def mean_and_error(values: Any) -> dict[str, Any]:
    """Average over seeds, with the standard error of that mean."""
    stacked = np.array(values)
    error = stacked.std(axis=0, ddof=1) / np.sqrt(len(stacked)) if len(stacked) > 1 else np.full_like(stacked[0], np.nan)
    return {"mean": stacked.mean(axis=0).round(DIGITS).tolist(), "error": error.round(DIGITS).tolist()}


def together(deals: list[dict[str, dict[str, Any]]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Put the deals of one network together: figures, and mean curves for the picture."""
    methods, curves = {}, {}
    for name in deals[0]:
        each = [deal[name]["curve"] for deal in deals]
        curves[name] = replace(each[0], **{part: np.mean([getattr(one, part) for one in each], axis=0) for part in ARRAYS})
        gains = [deal[name]["curve"].gain(deal[NONE]["curve"]) for deal in deals]
        numbers = {what: [deal[name]["numbers"][what] for deal in deals] for what in deals[0][name]["numbers"]}
        before = [deal[NONE]["numbers"]["PRR"] for deal in deals]
        methods[name] = {
            "gain": mean_and_error(gains)
            | {"one_deal_error": np.mean([deal[name]["rows"] for deal in deals], axis=0).round(DIGITS).tolist()},
            "gain a row, mean of ratios": mean_and_error([gain.mean() for gain in gains]),
            "PRR gain": mean_and_error(np.subtract(numbers["PRR"], before)),
            "numbers": {what: mean_and_error(values) for what, values in numbers.items()},
        }
    held_against(methods, deals)
    return {
        "methods": methods,
        "always": curves[NONE].always.round(DIGITS).tolist(),
        "oracle": curves[NONE].oracle.round(DIGITS).tolist(),
    }, curves


def held_against(methods: dict[str, Any], deals: list[dict[str, dict[str, Any]]]) -> None:
    """Count where each method alone earns most, and hold LoRe against the best other method at each ratio, by its mean."""
    means = np.array([cell["gain"]["mean"] for cell in methods.values()])
    for cell, mean in zip(methods.values(), means, strict=True):
        cell["alone best"] = int(np.sum((mean > means).sum(axis=0) == len(means) - 1))
    rivals = [name for name in methods if name not in LOCAL]
    other = np.argmax([methods[name]["gain"]["mean"] for name in rivals], axis=0)
    for name in LOCAL:
        less = []
        for deal in deals:
            rewards = np.array([deal[rival]["curve"].reward for rival in rivals])
            less.append(deal[name]["curve"].reward - rewards[other, np.arange(len(other))])
        methods[name]["less the best other"] = mean_and_error(less)
        methods[name]["less the best other, mean of ratios"] = mean_and_error([one.mean() for one in less])


def show(net: str, found: dict[str, Any]) -> None:
    """Print tables: gains per 1,000 rows, rewards beside what was expected, PRR."""
    near = [int(np.argmin(np.abs(RATIOS - ratio))) for ratio in SHOWN]
    shown = ", ".join(f"{RATIOS[at]:.3g}" for at in near)
    print(
        f"{net}\n  gain over none in u per 1,000 rows (error over seeds; of one deal) at ratios {shown}; mean of all ratios"
    )
    for name, cell in found["methods"].items():
        gain, whole = cell["gain"], cell["gain a row, mean of ratios"]
        parts = (
            f"{1e3 * gain['mean'][at]:7.1f} ({1e3 * gain['error'][at]:.1f}; {1e3 * gain['one_deal_error'][at]:.1f})"
            for at in near
        )
        print(
            f"  {name:<20} {' '.join(parts)}  mean {1e3 * whole['mean']:.1f} ({1e3 * whole['error']:.1f}), "
            f"alone best at {cell['alone best']} of {len(RATIOS)}"
        )
    print("  reward a row, the same less what was expected (error over seeds), at ratios", *SHOWN)
    for name, cell in found["methods"].items():
        n = cell["numbers"]
        parts = (
            f"{n[f'reward at {r}']['mean']:.4f} {n[f'above expected at {r}']['mean']:+.4f} "
            f"({n[f'above expected at {r}']['error']:.4f}) |"
            for r in SHOWN
        )
        print(f"  {name:<20} {' '.join(parts)}")
    for name, cell in found["methods"].items():
        n, gain = cell["numbers"], cell["PRR gain"]
        print(
            f"  {name:<20} PRR {n['PRR']['mean']:.4f} (over none {gain['mean']:+.4f}, {gain['error']:.4f}), "
            f"expected {n['expected PRR']['mean']:.4f}, AURC {n['AURC']['mean']:.5f}"
        )
    for name in LOCAL:
        cell = found["methods"][name]
        less, whole = cell["less the best other"], cell["less the best other, mean of ratios"]
        parts = (f"{1e3 * less['mean'][at]:.1f} ({1e3 * less['error'][at]:.1f})" for at in near)
        summary = f"mean {1e3 * whole['mean']:.1f} ({1e3 * whole['error']:.1f})"
        print(f"  {name}, less the best other, per 1,000 rows: {' '.join(parts)}  {summary}")


def draw(curves: dict[str, dict[str, Any]], seeds: int) -> None:
    """Draw the gain over no recalibration against the ratio, a panel a network."""
    from matplotlib.figure import Figure

    picture = Figure(figsize=(7.4, 3.0 * len(curves)), layout="constrained")
    axes = picture.subplots(len(curves), 1, sharex=True)
    for ax, (net, one) in zip(axes, curves.items(), strict=True):
        tu.figures.draw_reward(one, against=NONE, ax=ax, title=f"{net}, CIFAR-10, mean of {seeds} deals")
    for ax in axes[1:]:
        ax.get_legend().remove()
    for ax in axes:
        ax.label_outer()
    picture.savefig(PICTURES / "abstain.png", dpi=90)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=5)
    arguments = parser.parse_args()
    frame = pd.read_parquet(DATA / "cifar10_test_probs.parquet")
    figures: dict[str, Any] = {"seeds": arguments.seeds, "ratios": RATIOS.tolist(), "shown": list(SHOWN), "nets": {}}
    drawn = {}
    for net in NETS:
        figures["nets"][net], drawn[net] = together([one_deal(frame, net, seed) for seed in range(arguments.seeds)])
        show(net, figures["nets"][net])
    save("abstain", figures)
    PICTURES.mkdir(parents=True, exist_ok=True)
    draw(drawn, arguments.seeds)


if __name__ == "__main__":
    main()
