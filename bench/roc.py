"""ROC and precision-recall curves estimated without labels, beside the true ones (Gao, Parameswaran & Peng 2017, Figure 4).

python bench/roc.py

Adult: a random forest, calibrated by isotonic regression on 2,000 rows. A further 2,000 labelled rows say what is left of
its errors. The curves of all other rows are then estimated without their labels and held against these.
Two bands: ours, around the curve that labelled rows correct, which is to hold the whole true curve nine times in ten; and
the paper's, around the curve of the scores alone, by the measure c_emp of the same labelled rows as it is. The picture goes
to docs/pictures/.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.ensemble import RandomForestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OrdinalEncoder

import trueup as tu
from cases import DATA, SOURCES
from common import HERE, check, save
from trueup.reports.figures.decisions import band_outline
from trueup.reports.figures.style import INK

if TYPE_CHECKING:
    from trueup.decisions import ExpectedCurve

SEEDS, TREES, LEVEL = 20, 100, 0.9
TRAIN, CALIBRATION, VALIDATION = 32_561, 2_000, 2_000  # to train on: as many as in the data's own split
PICTURE = HERE.parent / "docs" / "pictures" / "roc.png"
KINDS = {"roc": ("AUC", "FPR", "TPR"), "pr": ("average precision", "recall", "precision")}


@dataclass(frozen=True)
class Parts:
    """Outcomes and calibrated scores of one seed's rows."""

    calibration: tuple[np.ndarray, np.ndarray]
    validation: tuple[np.ndarray, np.ndarray]
    rest: tuple[np.ndarray, np.ndarray]


def parts(frame: pd.DataFrame, y: np.ndarray, seed: int) -> Parts:
    """Train the forest, calibrate it, and score the rows that neither has seen."""
    order = np.random.default_rng([seed, 7]).permutation(len(frame))
    train, fitted, validation, rest = np.split(order, np.cumsum([TRAIN, CALIBRATION, VALIDATION]))
    categorical = [name for name in frame.columns if not pd.api.types.is_numeric_dtype(frame[name])]
    codes = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1, encoded_missing_value=-1)
    forest = make_pipeline(
        make_column_transformer((codes, categorical), remainder="passthrough"),
        RandomForestClassifier(TREES, n_jobs=2, random_state=seed),
    )
    forest.fit(frame.iloc[train], y[train])
    p = forest.predict_proba(frame)[:, 1]
    isotonic = tu.Isotonic().fit(p[fitted], y[fitted])
    return Parts(*((y[at], isotonic.predict(p[at])) for at in (fitted, validation, rest)))


def realised(kind: str, y: np.ndarray, p: np.ndarray, thresholds: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Give the true curve at the thresholds of an estimated one, and the area under it."""
    called = p[:, None] >= thresholds
    hits, alarms = (y[:, None] * called).sum(axis=0), ((1 - y)[:, None] * called).sum(axis=0)
    recall = hits / hits[-1]
    if kind == "pr":
        with np.errstate(invalid="ignore"):
            precision = hits / (hits + alarms)
        return recall, precision, float(np.diff(recall) @ precision[1:])
    fpr = alarms / alarms[-1]
    return fpr, recall, float(np.diff(fpr) @ (recall[1:] + recall[:-1]) / 2)


def inside(curve: ExpectedCurve, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Say at which thresholds the true point is within the limits of both its coordinates.

    Ends that all curves have, or that are not defined, do not count; a hair is for rounding.
    """
    hair = 1e-12
    held = (curve.x_low - hair <= x) & (x <= curve.x_high + hair) & (curve.y_low - hair <= y) & (y <= curve.y_high + hair)
    return held[1:-1] if curve.kind == "roc" else held[1:]


def measured(kind: str, found: Parts) -> dict[str, Any]:
    """Hold one estimated curve against the true one."""
    y, p = found.rest
    estimate = tu.decisions.expected_roc if kind == "roc" else tu.decisions.expected_pr
    curve = estimate(p, labelled=found.validation, level=LEVEL)
    bound = tu.metrics.calibration_bound(*found.validation, delta=(1 - LEVEL) / 2)
    plain = estimate(p, labelled=found.validation, band="paper")
    x_true, y_true, area = realised(kind, y, p, curve.threshold)
    _, across, up = KINDS[kind]
    ours, papers = inside(curve, x_true, y_true), inside(plain, x_true, y_true)
    return {
        "area": area, "estimate": curve.area, "low": curve.area_low, "high": curve.area_high,
        "estimate by scores alone": plain.area, "area held": bool(curve.area_low <= area <= curve.area_high),
        f"largest distance of {across}": float(np.nanmax(np.abs(curve.x - x_true))),
        f"largest distance of {up}": float(np.nanmax(np.abs(curve.y - y_true))),
        "thresholds": len(curve.threshold),
        "inside": float(ours.mean()), "all inside": bool(ours.all()), "half-width": _half_width(curve),
        "inside by c_emp": float(papers.mean()), "all inside by c_emp": bool(papers.all()),
        "half-width by c_emp": _half_width(plain),
        **curve.half_widths, "c upper": bound.upper, "c_emp": bound.value,
    }  # fmt: skip


def _half_width(curve: ExpectedCurve) -> float:
    return float(np.mean((curve.y_high - curve.y_low)[1:])) / 2


def picture(found: Parts) -> None:
    """Draw one seed in the manner of the paper: estimated, true, and the curve of the calibration rows, with both bands."""
    from matplotlib.figure import Figure

    axes = Figure(figsize=(10, 5), layout="constrained", facecolor="white").subplots(1, 2)
    y, p = found.rest
    for kind, ax in zip(KINDS, axes, strict=True):
        estimate = getattr(tu.decisions, f"expected_{kind}")
        curve = estimate(p, labelled=found.validation, level=LEVEL)
        plain = estimate(p, labelled=found.validation, band="paper")
        draw = getattr(tu.figures, f"draw_{kind}")
        draw(curve, ax, truth=(y, p), title=f"adult, random forest: {len(y):,} rows without labels")
        ax.fill(
            *band_outline(plain),
            facecolor="none",
            edgecolor="#666666",
            linestyle=":",
            label="band by c_emp, as in the paper",
        )
        fitted = np.append(math.inf, np.unique(found.calibration[1])[::-1])
        x_fitted, y_fitted, area = realised(kind, *found.calibration, fitted)
        ax.plot(
            x_fitted, y_fitted, color="#E69F00", linewidth=1.2, linestyle="--",
            label=f"calibration rows: {KINDS[kind][0]} {area:.3f}",
        )  # fmt: skip
        place = "lower right" if kind == "roc" else "lower left"
        ax.legend(loc=place, frameon=False, fontsize=9, labelcolor=INK)
    axes[0].figure.savefig(PICTURE, dpi=90)
    print(f"picture in {PICTURE.relative_to(HERE.parent)}")


def summarise(kind: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Sum the seeds up, and print a table."""
    area, across, up = KINDS[kind]
    mean = {name: float(np.mean([run[name] for run in runs])) for name in runs[0]}
    off, alone = ([abs(run["area"] - run[name]) for run in runs] for name in ("estimate", "estimate by scores alone"))
    worst = {axis: max(run[f"largest distance of {axis}"] for run in runs) for axis in (across, up)}
    print(f"{area}: true {mean['area']:.4f}, estimated {mean['estimate']:.4f} ({mean['low']:.4f} to {mean['high']:.4f})")
    for name, one in (("", off), (", by scores alone", alone)):
        print(f"  off by {np.mean(one):.4f} on average, {max(one):.4f} at most{name}")
    for axis in (across, up):
        print(
            f"  largest distance of {axis}: {mean[f'largest distance of {axis}']:.4f} on average, {worst[axis]:.4f} at most"
        )
    print(f"  {'band':<28}{'thresholds inside':>18}{'curves inside':>15}{'half-width of ' + up:>24}")
    for name, suffix in (("ours, by labelled rows", ""), ("c_emp, as in the paper", " by c_emp")):
        print(
            f"  {name:<28}{mean['inside' + suffix]:>18.4f}{mean['all inside' + suffix]:>15.2f}"
            f"{mean['half-width' + suffix]:>24.4f}"
        )
    return {
        "mean": mean, "area off": {"mean": float(np.mean(off)), "most": max(off)},
        "area off by scores alone": {"mean": float(np.mean(alone)), "most": max(alone)}, "farthest": worst, "seeds": runs,
    }  # fmt: skip


def main() -> None:
    source = next(one for one in SOURCES if one.name == "adult")
    frame = pd.read_parquet(DATA / "adult.parquet")
    y = frame[source.label].to_numpy(float)
    frame = frame.drop(columns=[source.label, *source.leave_out])
    start, runs = time.perf_counter(), {kind: [] for kind in KINDS}
    for seed in range(SEEDS):
        found = parts(frame, y, seed)
        for kind in KINDS:
            runs[kind].append(measured(kind, found))
        if seed == 0:
            picture(found)
    seconds = time.perf_counter() - start
    figures, checks = {kind: summarise(kind, runs[kind]) for kind in KINDS}, {}
    least = LEVEL - 3 * math.sqrt(LEVEL * (1 - LEVEL) / SEEDS)
    for kind, (area, _, _) in KINDS.items():
        mean, name = figures[kind]["mean"], kind.upper()
        for what, key, bar in (
            ("share of thresholds where the true curve is inside the band", "inside", LEVEL),
            ("share of seeds whose whole true curve is inside", "all inside", least),
            (f"share of seeds whose true {area} is within its limits", "area held", least),
        ):
            checks[f"{name}: {what}"] = check(f"{name}: {what}", mean[key], bar, at_most=False)
    rows = {"training": TRAIN, "calibration": CALIBRATION, "validation": VALIDATION, "without labels": len(found.rest[0])}
    save("roc", {"rows": rows, "level": LEVEL, "seconds": seconds, **figures, "checks": checks})


if __name__ == "__main__":
    main()
