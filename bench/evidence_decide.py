"""The part of docs/evidence.md that is about decisions."""

from __future__ import annotations

from typing import Any

from pages import figures, held, table


def deciding() -> list[str]:
    """Assemble the section."""
    return [*costs(), *claims(), *curves(), *silence(), *losses()]


def costs() -> list[str]:
    """Show how often intervals for costs held, and how wide they were."""
    found = figures("decide")
    ways = list(dict.fromkeys(cell["way"] for cell in found["cells"]))
    cells = {(cell["kind"], cell["rows"], cell["labelled"], cell["way"]): cell for cell in found["cells"]}
    places = list(dict.fromkeys(key[:3] for key in cells))

    def said(cell: dict[str, Any]) -> str:
        return f"{cell['held']:.3f} ({cell['width']:.3f})"

    rows = [
        [kind, f"{rows:,}", f"{many:,}", *(said(cells[kind, rows, many, way]) for way in ways),
         f"{cells[kind, rows, many, ways[0]]['known']:.3f}"]
        for kind, rows, many in places
    ]  # fmt: skip
    ratios = "; ".join(f"{name}: {ratio:.2f}" for name, ratio in found["ratios"].items())
    return [
        "## What a rule will cost, without labels",
        "",
        f"{found['repetitions']:,} simulations per line, intervals at 90%: how often they contained the realised cost, and "
        "their width per row. A miss costs 5, a false alarm 1. *given*: the threshold 0.2 (0.0133 for rare "
        "events), for these rows and for the population; *best*: that of `best_rule`; *searched*: the one that "
        "was cheapest "
        "on the labelled rows; *bound*: only an upper bound on c is used, as in Claim 1; *at word*: no labelled rows, "
        "scores assumed to be calibrated. The last column is the width for these rows if the distribution were known.",
        "",
        *table(["figure", "measured", "bar", "holds"], held(found["checks"])),
        "",
        *table(["scores", "rows", "labelled", *ways, "law known"], rows),
        "",
        "Intervals that assume calibrated scores are narrow, and too narrow if scores are miscalibrated: "
        "labelled rows are needed. Intervals "
        "for all rules simultaneously are wide and nearly always hold.",
        "",
        f"The cheapest rule of 1,000,000 rows, relative to the time of one sort: {ratios}.",
        "",
        "`python bench/decide.py`",
        "",
    ]


def claims() -> list[str]:
    """Show intervals of shifted scores, verdicts on equally good scores, and selected gains."""
    found = figures("claims")
    measures = list(found["shift"][0]["held"])
    shifted = [
        [f"{cell['shift']:g}", cell["scores"],
         *(f"{cell['held'][name]:.3f} ({cell['one stratum'][name]:.3f})" for name in measures)]
        for cell in found["shift"]
    ]  # fmt: skip
    equal = [
        [f"{cell['rows']:,}", f"{cell['prevalence']:.2f}", f"{cell['verdict']:.3f}", f"{cell['pointwise']:.3f}"]
        for cell in found["equal"]
    ]
    selected = [
        [cell["method"], f"{cell['rows']:,}", f"{cell['size']:g}", f"{cell['kept']:.2f}", f"{cell['reported']:.2f}",
         f"{cell['shrunken']:.2f}", f"{cell['new']:.2f} ({cell['error']:.2f})"]
        for cell in found["selected"]
    ]  # fmt: skip
    return [
        "## If the scores shift, if scores are equally good, and what a fit gains on new rows",
        "",
        f"{found['repetitions']:,} simulations per line.",
        "",
        *table(["figure", "measured", "bar", "holds"], held(found["checks"])),
        "",
        "Scores of 5,000 rows without labels are shifted by so many standard deviations from those of 2,000 labelled rows. "
        "How often 90% intervals hold; in brackets with one stratum of scores, that is without post-stratification.",
        "",
        *table(["shift", "scores", *measures], shifted),
        "",
        "Two scores with errors of the same distribution: how often the verdict of `decision_curve` at 90% says that they "
        "differ, and how often some pointwise interval of the 99 does.",
        "",
        *table(["rows", "prevalence", "verdict", "some pointwise interval"], equal),
        "",
        "Fits on few rows with planted errors of so many logits, a fifth of the simulations: of the fits that kept "
        "something, the mean gain that is reported, the shrunken one, and that on new rows with its standard error, in "
        "thousandths of the loss (squared error for `DepthTwo`).",
        "",
        *table(["method", "rows", "logits", "kept", "reported", "shrunken", "new rows"], selected),
        "",
        "`python bench/claims.py`",
        "",
    ]


def curves() -> list[str]:
    """Show ROC and precision-recall curves without labels beside the true ones."""
    found = figures("roc")
    rows = []
    for kind, across, up in (("roc", "FPR", "TPR"), ("pr", "recall", "precision")):
        mean, far = found[kind]["mean"], found[kind]["farthest"]
        rows.append([
            kind.upper(), f"{mean['area']:.4f}", f"{mean['estimate']:.4f}", f"{mean['low']:.3f} to {mean['high']:.3f}",
            f"{far[across]:.3f}, {far[up]:.3f}",
            f"{100 * mean['inside']:.1f}% ({100 * mean['all inside']:.0f}%)", f"{mean['half-width']:.3f}",
            f"{100 * mean['inside by c_emp']:.1f}% ({100 * mean['all inside by c_emp']:.0f}%)",
            f"{mean['half-width by c_emp']:.3f}",
        ])  # fmt: skip
    sizes = found["rows"]
    return [
        "## ROC without labels",
        "",
        f"Adult, a random forest, isotonic regression on {sizes['calibration']:,} rows, {sizes['validation']:,} others as "
        f"labelled rows, curves of {sizes['without labels']:,} rows without labels compared with the true ones "
        f"({len(found['roc']['seeds'])} splits), as in Figure 4 of Gao, Parameswaran & Peng (2017). Inside: the share of "
        "thresholds at which the true curve lies within the limits on both axes, and in brackets the share of splits in "
        "which the entire curve does. The "
        "published limits use c_emp of the labelled rows alone.",
        "",
        *table(
            ["curve", "true area", "estimated", f"limits at {100 * found['level']:g}%", "farthest across, up", "inside",
             "half-width", "inside by c_emp", "half-width"],
            rows,
        ),
        "",
        "![ROC curve estimated without labels, with limits that hold at all thresholds, and the true curve]"
        "(pictures/roc.png)",
        "",
        "`python bench/roc.py`",
        "",
    ]  # fmt: skip


def silence() -> list[str]:
    """Show the reward of answering only where confidence is high."""
    found = figures("abstain")
    rows, leads = [], []
    for net, cell in found["nets"].items():
        for name, one in cell["methods"].items():
            gain = one["gain a row, mean of ratios"]
            prr = one["numbers"]["PRR"]
            rows.append([net if name == "none" else "", name, f"{1000 * gain['mean']:.1f} ({1000 * gain['error']:.1f})",
                         f"{prr['mean']:.3f}", str(one["alone best"])])  # fmt: skip
            if "less the best other, mean of ratios" in one:
                less = one["less the best other, mean of ratios"]
                leads.append(f"{net}, {name}: {1000 * less['mean']:+.1f} ({1000 * less['error']:.1f})")
    ratios = found["ratios"]
    return [
        "## Abstention: CIFAR-10",
        "",
        f"Three networks, half of 10,000 test images to recalibrate, half to measure, {found['seeds']} splits. A wrong "
        f"prediction costs {ratios[0]:g} to {ratios[-1]:g} times as much as an abstention ({len(ratios)} "
        f"ratios), and predictions "
        "are made from a confidence of 1 - u/w on (Luo et al. 2022, section 5.4). Gain over no recalibration, in costs of "
        "an abstention per 1,000 rows, mean over the ratios (standard error over splits, which share their rows), the "
        "prediction-rejection ratio, and the number of ratios at which the method alone was best.",
        "",
        *table(["net", "method", "gain", "PRR", "alone best"], rows),
        "",
        f"LoRe minus the best other method at each ratio: {'; '.join(leads)}.",
        "",
        "![Reward of five methods above that of none, against the cost of a wrong answer, for three networks]"
        "(pictures/abstain.png)",
        "",
        "`python bench/abstain.py`",
        "",
    ]  # fmt: skip


def losses() -> list[str]:
    """Show one score for many losses against a model for each."""
    found = figures("omni")
    rows = [
        [base if at == 0 else "", name, f"{one['ours']:.5f}", f"{one['theirs']:.5f}", f"{one['base alone']:.5f}",
         f"{one['sigmas']:+.2f}", f"{one['worst_sigmas']:+.2f}"]
        for base, cell in found["summary"].items()
        for at, (name, one) in enumerate(cell.items())
    ]  # fmt: skip
    return [
        "## One score for every loss",
        "",
        "Adult: one score, corrected by `MCGrad`, turned by `omnipredict` into the prediction for each loss, "
        "compared with a "
        f"model trained for that loss on the same rows and features. Test loss, mean of {len(found['splits'])} splits; the "
        "difference in paired "
        "standard errors of one split (aim: at most 2), mean and worst split. Base alone is the "
        "uncorrected score.",
        "",
        *table(["base", "loss", "one score", "own model", "base alone", "difference, s.e.", "worst split"], rows),
        "",
        "`python bench/omni.py`",
        "",
    ]
