"""Draw the pictures of docs/concepts.md: simulated scores whose truth is known.

    python bench/concepts.py

They go to docs/pictures/concept-*.svg. The same run gives the same files.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

import trueup as tu
from trueup.reports.figures.style import COLOURS, GREY, INK, style_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"
BLUE, ORANGE, GREEN = COLOURS[:3]
SMALL = {"fontsize": 9, "color": INK}


def canvas(panels: int, height: float = 3.4) -> tuple[Figure, Any]:
    figure = Figure(figsize=(3.9 * panels if panels > 1 else 6.4, height), layout="constrained", facecolor="white")
    return figure, figure.subplots(1, panels, squeeze=False)[0]


def keep(figure: Figure, name: str) -> None:
    path = PICTURES / f"concept-{name}.svg"
    with mpl.rc_context({"svg.hashsalt": name, "svg.fonttype": "path"}):
        figure.savefig(path, metadata={"Date": None, "Creator": None}, dpi=150)
    path.write_text("\n".join(line.rstrip() for line in path.read_text().splitlines()) + "\n")
    print(f"wrote docs/pictures/{path.name}")


def diagram(ax: Axes, y: Floats, p: Floats, *, colour: str, label: str, marker: str = "o") -> None:
    """Mean outcome against mean score in ten bins of equal width."""
    at = np.clip((p * 10).astype(int), 0, 9)
    full = np.bincount(at, minlength=10) >= 50
    rows = np.maximum(np.bincount(at, minlength=10), 1)
    score, rate = (np.bincount(at, values, 10)[full] / rows[full] for values in (p, y))
    ax.plot(score, rate, color=colour, marker=marker, markersize=5, linewidth=1.6, label=label)


def square(ax: Axes, title: str) -> None:
    ax.plot([0, 1], [0, 1], color="#999999", linewidth=1, linestyle="--", zorder=0)
    style_axes(ax, title, "predicted", "what happened")
    ax.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")


def expit(x: Floats) -> Floats:
    return 1 / (1 + np.exp(-x))


def calibration(random: np.random.Generator) -> None:
    logit = random.normal(0, 1.3, 40_000)
    y = (random.random(len(logit)) < expit(logit)).astype(float)
    figure, (left, right) = canvas(2)
    diagram(left, y, expit(logit), colour=BLUE, label="")
    square(left, "Calibrated: 30% means 30%")
    diagram(right, y, expit(2 * logit), colour=ORANGE, label="")
    square(right, "Too sure of itself")
    right.annotate("90% said,\n75% came", (0.9, 0.75), (0.5, 0.87), arrowprops={"arrowstyle": "-", "color": INK}, **SMALL)
    keep(figure, "calibration")


def segments(random: np.random.Generator) -> None:
    n = 60_000
    logit, old = random.normal(0, 1.2, n), random.random(n) < 0.5
    y = (random.random(n) < expit(logit + np.where(old, 0.8, -0.8))).astype(float)
    p = expit(0.87 * logit)
    figure, (left, right) = canvas(2)
    diagram(left, y, p, colour=BLUE, label="everybody")
    square(left, "All rows: right")
    diagram(right, y[old], p[old], colour=ORANGE, label="one half", marker="^")
    diagram(right, y[~old], p[~old], colour=GREEN, label="the other half", marker="s")
    square(right, "The same rows by segment: wrong twice")
    right.legend(frameon=False, loc="upper left", fontsize=9, labelcolor=INK)
    keep(figure, "segments")


def cumulative(random: np.random.Generator) -> None:
    n = 4_000
    p = np.sort(random.beta(2, 4, n))
    share = np.arange(1, n + 1) / n
    figure, (ax,) = canvas(1)
    noise = np.sqrt(np.cumsum(p * (1 - p))) / n
    ax.fill_between(
        share[::10], -2 * noise[::10], 2 * noise[::10], color=GREY, alpha=0.5, linewidth=0, label="chance (two noises)"
    )
    shift = np.where((share > 0.55) & (share < 0.8), 0.12, 0.0)
    drawn = random.random(n)
    for truth, colour, stroke, label in ((p, BLUE, "-", "calibrated"), (p + shift, ORANGE, "--", "12 points too low here")):
        path = np.cumsum((drawn < truth) - p) / n
        ax.plot(share[::10], path[::10], color=colour, linestyle=stroke, linewidth=1.6, label=label)
    ax.axvspan(0.55, 0.8, color=ORANGE, alpha=0.08, linewidth=0)
    style_axes(
        ax,
        "Cumulative differences: a slope is an error",
        "share of rows, lowest scores first",
        "outcomes minus scores, summed",
    )
    ax.legend(frameon=False, loc="upper left", fontsize=9, labelcolor=INK)
    ax.set_xlim(0, 1)
    keep(figure, "cumulative")


def many(random: np.random.Generator) -> None:
    names = [f"k{at}" for at in range(1000)]
    rows = {"p": random.beta(2, 5, 200_000), "segment": random.choice(names, 200_000)}
    rows["y"] = (random.random(200_000) < rows["p"]).astype(float)
    found = tu.audit(rows, outcome="y", prediction="p", by=["segment"]).to_frame()
    tested = found["testable"]
    value, adjusted = found["p_value"][tested], found["p_adjusted"][tested]
    figure, (ax,) = canvas(1)
    low = value <= 0.05
    place = random.random(len(value))
    for which, colour, label in ((~low, GREY, "above"), (low, ORANGE, "below")):
        ax.scatter(value[which], place[which], s=9, color=colour, linewidth=0, label=label, rasterized=True)
    ax.axvline(0.05, color=INK, linewidth=1, linestyle="--")
    title = f"{len(value) - 1:,} segments and the whole, all calibrated: {low.sum()} have p below 0.05"
    style_axes(ax, title, f"p-value of a segment (after Holm's adjustment: {(adjusted <= 0.05).sum()} below 0.05)", "")
    ax.set(xscale="log", yticks=[])
    ax.grid(visible=False)
    ax.spines["left"].set_visible(False)
    keep(figure, "many")


def detectable() -> None:
    rows = np.geomspace(50, 50_000, 13).astype(int)
    figure, (ax,) = canvas(1)
    for rate, colour, stroke in ((0.3, BLUE, "-"), (0.1, ORANGE, "--"), (0.02, GREEN, "-.")):
        found = []
        for n in rows:
            y = np.zeros(n)
            y[: round(rate * n)] = 1
            found.append(tu.audit({"p": np.full(n, rate)}, outcome=y, prediction="p").overall.mde)
        ax.plot(rows, np.array(found) / rate, color=colour, linestyle=stroke, linewidth=1.8, label=f"events of {rate:.0%}")
    style_axes(ax, "What would have been found", "rows of the segment", "smallest error that shows, relative")
    ax.set(xscale="log", yscale="log", yticks=[0.01, 0.1, 1, 5], yticklabels=["1%", "10%", "100%", "500%"])
    ax.set(xticks=[100, 1000, 10_000], xticklabels=["100", "1,000", "10,000"])
    ax.minorticks_off()
    ax.legend(frameon=False, fontsize=9, labelcolor=INK)
    keep(figure, "detectable")


def noise() -> None:
    rows = np.geomspace(100, 100_000, 60)
    rate, off = 0.08, 0.005
    figure, (ax,) = canvas(1)
    both = np.hypot(off, 1.645 * np.sqrt(rate * (1 - rate) / rows))  # the two are independent: they add in quadrature
    ax.fill_between(rows, rate - both, rate + both, color=BLUE, alpha=0.25, linewidth=0, label="with label noise")
    ax.fill_between(rows, rate - off, rate + off, color=ORANGE, alpha=0.55, linewidth=0, label="calibration alone")
    ax.axhline(rate, color=INK, linewidth=1)
    ax.annotate("scores say 8%", (60_000, rate), (20_000, 0.1), arrowprops={"arrowstyle": "-", "color": INK}, **SMALL)
    style_axes(ax, "How many of the next n loans will default?", "n", "share, at 90%")
    ax.set(
        xscale="log",
        xlim=(100, 100_000),
        ylim=(0, 0.14),
        yticks=[0, 0.04, 0.08, 0.12],
        yticklabels=["0", "4%", "8%", "12%"],
    )
    ax.set(xticks=[100, 1000, 10_000, 100_000], xticklabels=["100", "1,000", "10,000", "100,000"])
    ax.minorticks_off()
    ax.legend(frameon=False, loc="lower right", fontsize=9, labelcolor=INK)
    keep(figure, "noise")


def main() -> None:
    calibration(np.random.default_rng(0))
    segments(np.random.default_rng(1))
    cumulative(np.random.default_rng(2))
    many(np.random.default_rng(3))
    detectable()
    noise()


if __name__ == "__main__":
    main()
