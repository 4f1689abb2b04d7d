"""ROC and precision-recall curves estimated without labels, beside the true ones (Gao, Parameswaran & Peng 2017, Figure 4).

    python bench/roc.py [--quick]

The ten panels of the figure: five models on adult and covertype (bench/agnostic.py fits them), calibrated by isotonic
regression on 2,000 rows. A further 2,000 labelled rows measure the errors that remain. The curves of the test rows are
estimated without their labels and compared with the true ones.
Two bands: ours, around the curve corrected by labelled rows, which is to contain the entire true curve nine times in ten;
and that of the paper, around the curve of the scores alone, from c_emp of the same labelled rows. The text of the paper has
no areas to compare with. Pictures are written to docs/pictures/: all panels, and adult with the random forest.
"""

from __future__ import annotations

import argparse
import math
import time
from typing import TYPE_CHECKING, Any

import numpy as np

import trueup as tu
from agnostic import DATA_SETS, FULL, MODELS, SMALL, partitions
from common import PICTURES, QUICK, check, save
from trueup.reports.figures.decisions import band_outline
from trueup.reports.figures.style import COLOURS, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from agnostic import Partition
    from trueup.decisions import ExpectedCurve

LEVEL = 0.9
KINDS = {"roc": ("AUC", "FPR", "TPR"), "pr": ("average precision", "recall", "precision")}
SHOWN = ("adult", "random forest")  # in a picture of its own


def calibrate(part: Partition) -> Partition:
    """Return the partition with scores calibrated by isotonic regression on its calibration rows."""
    y, p = part.calibration
    isotonic = tu.Isotonic().fit(p, y)
    subsets = (part.calibration, part.validation, part.test)
    return type(part)(*((outcome, isotonic.predict(score)) for outcome, score in subsets))


def realised(kind: str, y: np.ndarray, p: np.ndarray, thresholds: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Return the true curve at the thresholds of an estimated one, and the area under it."""
    predicted = p[:, None] >= thresholds
    hits, alarms = (y[:, None] * predicted).sum(axis=0), ((1 - y)[:, None] * predicted).sum(axis=0)
    recall = hits / hits[-1]
    if kind == "pr":
        with np.errstate(invalid="ignore"):
            precision = hits / (hits + alarms)
        return recall, precision, float(np.diff(recall) @ precision[1:])
    fpr = alarms / alarms[-1]
    return fpr, recall, float(np.diff(fpr) @ (recall[1:] + recall[:-1]) / 2)


def inside(curve: ExpectedCurve, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return at which thresholds the true point is within the limits of both its coordinates.

    Ends that all curves have, or that are not defined, do not count.
    """
    rounding = 1e-12
    x_held = (curve.x_low - rounding <= x) & (x <= curve.x_high + rounding)
    held = x_held & (curve.y_low - rounding <= y) & (y <= curve.y_high + rounding)
    return held[1:-1] if curve.kind == "roc" else held[1:]


def measure(kind: str, part: Partition) -> dict[str, float]:
    """Compare the curve estimated with labelled rows, and that of the scores alone, with the true one."""
    y, p = part.test
    estimate = tu.decisions.expected_roc if kind == "roc" else tu.decisions.expected_pr
    corrected = estimate(p, labelled=part.validation, level=LEVEL)
    plain = estimate(p, labelled=part.validation, band="paper")
    x_true, y_true, area = realised(kind, y, p, corrected.threshold)
    figures = {"area": area, "area held": float(corrected.area_low <= area <= corrected.area_high)}
    figures |= {"low": corrected.area_low, "high": corrected.area_high, "c_emp": plain.half_widths["calibration"]}
    for suffix, curve in (("", corrected), (" by scores alone", plain)):
        held = inside(curve, x_true, y_true)
        figures |= {
            f"estimate{suffix}": curve.area,
            f"area off{suffix}": abs(curve.area - area),
            f"distance{suffix}": float(max(np.nanmax(np.abs(curve.x - x_true)), np.nanmax(np.abs(curve.y - y_true)))),
            f"inside{suffix}": float(held.mean()),
            f"all inside{suffix}": float(held.all()),
            f"half-width{suffix}": float(np.mean((curve.y_high - curve.y_low)[1:])) / 2,
        }
    return figures


def draw_panel(kind: str, part: Partition, ax: Axes, title: str) -> None:
    """Draw the curves as in the paper: estimated, true, and that of the calibration rows, with both bands."""
    estimate = getattr(tu.decisions, f"expected_{kind}")
    curve = estimate(part.test[1], labelled=part.validation, level=LEVEL)
    plain = estimate(part.test[1], labelled=part.validation, band="paper")
    getattr(tu.figures, f"draw_{kind}")(curve, ax, truth=part.test, title=title)
    ax.fill(
        *band_outline(plain), facecolor="none", edgecolor="#666666", linestyle=":", label="band by c_emp, as in the paper"
    )
    fitted = np.append(math.inf, np.unique(part.calibration[1])[::-1])
    x, y, area = realised(kind, *part.calibration, fitted)
    label = f"calibration rows: {KINDS[kind][0]} {area:.3f}"
    ax.plot(x, y, color=COLOURS[6], linewidth=1.2, linestyle="--", label=label)


def draw_shown(part: Partition) -> None:
    """Draw both curves of one panel."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 5), layout="constrained", facecolor="white")
    for kind, ax in zip(KINDS, figure.subplots(1, 2), strict=True):
        draw_panel(kind, part, ax, f"{', '.join(SHOWN)}: {len(part.test[0]):,} rows without labels")
        place = "lower right" if kind == "roc" else "lower left"
        ax.legend(loc=place, frameon=False, fontsize=9, labelcolor=INK)
    figure.savefig(PICTURES / "roc.png", dpi=90)


def draw_panels(parts: dict[tuple[str, str], Partition]) -> None:
    """Draw the ROC curves of all panels."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(14, 6.4), layout="constrained", facecolor="white")
    axes = figure.subplots(len(DATA_SETS), len(MODELS), sharex=True, sharey=True)
    for ((data, model), part), ax in zip(parts.items(), axes.flat, strict=True):
        draw_panel("roc", part, ax, f"{data}, {model}")
        handles, labels = ax.get_legend_handles_labels()
        areas = [label.rpartition("AUC ")[2].partition(" ")[0] for label in labels if "AUC" in label]
        ax.get_legend().remove()
        ax.text(0.97, 0.05, f"AUC {areas[0]} estimated\n{areas[1]} true", ha="right", fontsize=8, color=INK)
        ax.set(
            xticks=(0, 0.5, 1),
            yticks=(0, 0.5, 1),
            xlabel="" if ax in axes[0] else ax.get_xlabel(),
            ylabel=ax.get_ylabel() if ax in axes[:, 0] else "",
        )
    names = ["estimated, corrected by labelled rows"]
    names += [label.partition(":")[0].replace("realised", "true") if "AUC" in label else label for label in labels[1:]]
    figure.legend(handles, names, loc="outside lower center", ncols=len(names), frameon=False, fontsize=9, labelcolor=INK)
    figure.savefig(PICTURES / "roc-panels.png", dpi=72)


def pool(kind: str, panels: dict[str, dict[str, Any]]) -> dict[str, float]:
    """Return the means over all panels."""
    cells = [panels[data][model][kind] for data in DATA_SETS for model in MODELS]
    return {name: float(np.mean([cell[name] for cell in cells])) for name in cells[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few rows and fits; figures are not kept")
    arguments = parser.parse_args()
    sizes, kept = (SMALL if arguments.quick else FULL), bool(QUICK) or not arguments.quick
    start = time.perf_counter()
    panels: dict[str, dict[str, Any]] = {data: {} for data in DATA_SETS}
    first = {}
    for data in DATA_SETS:
        for model in MODELS:
            runs: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
            for part in map(calibrate, partitions(data, model, sizes)):
                first.setdefault((data, model), part)
                for kind in KINDS:
                    runs[kind].append(measure(kind, part))
            cell = panels[data][model] = {
                kind: {name: float(np.mean([run[name] for run in some])) for name in some[0]} for kind, some in runs.items()
            }
            one = cell["roc"]
            print(
                f"{data:10} {model:20} AUC {one['area']:.4f}, estimated {one['estimate']:.4f} (by scores alone "
                f"{one['estimate by scores alone']:.4f}), distance {one['distance']:.3f} "
                f"({one['distance by scores alone']:.3f}), inside {one['inside']:.3f}, entire curves "
                f"{one['all inside']:.2f} (c_emp: {one['inside by scores alone']:.3f}, "
                f"{one['all inside by scores alone']:.2f}), c_emp {one['c_emp']:.4f}",
                flush=True,
            )
    pooled, checks = {kind: pool(kind, panels) for kind in KINDS}, {}
    fits = len(DATA_SETS) * len(MODELS) * sizes.fits  # partitions of one fit share rows
    least = LEVEL - 3 * math.sqrt(LEVEL * (1 - LEVEL) / fits)
    for kind, (area, _, _) in KINDS.items():
        for what, key, bar in (
            ("share of thresholds where the true curve is inside the band", "inside", LEVEL),
            ("share of repetitions whose entire true curve is inside", "all inside", least),
            (f"share of repetitions whose true {area} is within its limits", "area held", least),
        ):
            name = f"{kind.upper()}: {what}"
            checks[name] = check(name, pooled[kind][key], bar, at_most=False)
    if kept:
        PICTURES.mkdir(parents=True, exist_ok=True)
        draw_shown(first[SHOWN])
        draw_panels(first)
        rows = {
            "training": sizes.train, "calibration": sizes.calibration, "validation": sizes.validation,
            "without labels": sizes.held_out - sizes.calibration - sizes.validation,
        }  # fmt: skip
        save("roc", {
            "rows": rows, "fits": sizes.fits, "partitions": sizes.partitions, "level": LEVEL,
            "seconds": time.perf_counter() - start, "panels": panels, "pooled": pooled, "checks": checks,
        })  # fmt: skip


if __name__ == "__main__":
    main()
