"""The part of docs/evidence.md that is about decisions."""

from __future__ import annotations

from typing import Any

from pages import figures, held, table


def deciding() -> list[str]:
    """Assemble the section."""
    return [*costs(), *claims(), *agnostic(), *documents(), *curves(), *silence(), *losses()]


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


def agnostic() -> list[str]:
    """Show the calibration error of five models, and what isotonic regression saves."""
    found = figures("agnostic")
    shown = ("0.1", "0.3", "0.5", "0.7", "0.9")
    rows = [
        [data if at == 0 else "", model, f"{cell['c_emp']:.4f}", f"{cell['by chance']:.4f}", f"{cell['after']:.4f}",
         f"{cell['ratio']:.3f} ({cell['ratio, sd over fits']:.3f})", *(f"{cell['ratios'][p]:.2f}" for p in shown)]
        for data, cells in found["measured"].items()
        for at, (model, cell) in enumerate(cells.items())
    ]  # fmt: skip

    def percent_range(low: float, high: float) -> str:
        return f"{100 * low:.0f}%" if low == high else f"{100 * low:.0f}% to {100 * high:.0f}%"

    beside = [
        [model, one["published error"],
         *(f"{found['measured'][data][model]['c_emp']:.3f}" for data in found["measured"]),
         percent_range(*one["published"]), f"{100 * one['reduction']:.1f}%", "yes" if one["reproduced"] else "**no**",
         f"{100 * found['fewer rows'][model]['reduction']:.1f}%",
         "; ".join(f"{name}: {100 * other['reduction']:.1f}%" for name, other in found["variants"].items()
                   if other["of"] == model)]
        for model, one in found["models"].items()
    ]  # fmt: skip
    sizes = found["rows"]
    missed, missed_by_few = (
        " and ".join(model for model, one in found["models"].items() if not one[key]) or "none"
        for key in ("reproduced", "reproduced, fewer rows")
    )
    verdict = f"Not reproduced: {missed}; with {sizes['few']:,} training rows: {missed_by_few}."
    return [
        "## Calibration error and what calibration saves: five models",
        "",
        "Figures 2 and 3 of Gao, Parameswaran & Peng (2017). Five models trained on "
        f"{sizes['training']:,} rows of adult and of covertype (the largest class against the rest), measured on "
        f"{sizes['test']:,} test rows: c_emp of the scores as they are, and after isotonic regression on "
        f"{sizes['calibration']:,} other rows. A false negative costs 1 - p, a false positive p, and 1 is predicted from a "
        "probability of p on; the loss ratio is the average loss after calibration relative to that before. Means of "
        f"{found['fits']} fits and {found['partitions']} partitions of the held-out rows of each (in brackets the standard "
        "deviation of fits).",
        "",
        "The paper states the mean reduction of the loss for each model and describes c_emp in words; its bars and curves "
        f"have no numbers in the text. A reduction counts as reproduced within {100 * found['tolerance']:.0f} percentage "
        f"points. {verdict} The paper states neither the number of training rows nor the settings of the models: the last "
        f"columns have the reduction with {sizes['few']:,} training rows, and with other settings (one fit). Ours are "
        "naive Bayes on ten quantile bins, AdaBoost of trees of depth 3, a linear SVM, logistic regression, and a random "
        "forest of fully grown trees.",
        "",
        *table(
            ["model", "c_emp, published", *(f"c_emp, {data}" for data in found["measured"]), "reduction, published",
             "measured", "reproduced", f"{sizes['few']:,} training rows", "other settings"],
            beside,
        ),
        "",
        "By chance: the expected c_emp if the scores were calibrated. The loss ratio is the mean over p = 0.1, "
        "0.2, ..., 0.9.",
        "",
        *table(["data", "model", "c_emp", "by chance", "calibrated", "loss ratio", *(f"p = {p}" for p in shown)], rows),
        "",
        *table(
            ["figure", "measured", "bar", "holds"],
            held({name: one for name, one in found["checks"].items() if name.startswith("Figure")}),
        ),
        "",
        "`python bench/agnostic.py`",
        "",
    ]  # fmt: skip


def documents() -> list[str]:
    """Show that a logistic regression on simulated documents has a large l1 error and a small c_emp."""
    found = figures("agnostic")
    cell = found["documents"]
    columns = ("l1", "c_emp", "by chance", "trivial l1", "rate")

    def mean_and_sd(one: dict[str, Any]) -> list[str]:
        return [f"{one[name]['mean']:.4f} ± {one[name]['sd']:.4f}" if name in one else "" for name in columns]

    exact = [f"{cell['exact'][name]:.4f}" if name in cell["exact"] else "" for name in columns]
    samples = cell["measured"]
    rows = [
        ["published", "", *mean_and_sd(cell["published"])],
        ["exact", "", *exact],
        *(["measured", sample, *mean_and_sd(one)] for sample, one in samples.items()),
        *(
            [name if at == 0 else "", sample, *(f"{one[column]:.4f}" for column in columns)]
            for name, variant in cell["variants"].items()
            for at, (sample, one) in enumerate(variant.items())
        ),
    ]
    trained, new = samples["training documents"], samples["new documents"]
    checks = {name: one for name, one in found["checks"].items() if name.startswith("Table 1")}
    verdict = "is reproduced" if all(one["holds"] for one in checks.values()) else "is **not** reproduced"
    return [
        "## Far from the true probabilities, and nearly calibrated: simulated documents",
        "",
        f"Table 1 of Gao, Parameswaran & Peng (2017): {cell['documents']:,} documents of 200 words on average, "
        "drawn from 20 "
        "topics over 1,000 words (latent Dirichlet allocation, uniform prior, power law). Ten labels are drawn from the "
        "topics of a document; the outcome is whether a given topic is among them, which has the probability "
        "1 - (1 - share)^10. A logistic regression on word counts without penalty; l1 is the mean distance of its "
        "probabilities from the true ones, trivial that of the constant rate. Means and standard deviations of "
        f"{cell['runs']} "
        f"runs, {cell['topics']} topics each.",
        "",
        f"The table {verdict}, if errors are measured on the documents that the model was fitted on. On as many "
        "new documents "
        f"c_emp is {new['c_emp']['mean']:.4f}, {new['c_emp']['mean'] / trained['c_emp']['mean']:.1f} times as high, and l1 "
        f"{new['l1']['mean']:.4f}: c_emp of training rows is optimistic. The paper states neither on which documents it "
        "measures, nor the exponent of the power law (1 here), nor a penalty; the lower rows have other choices, "
        "one run of "
        f"{cell['variant topics']} topics.",
        "",
        *table(["", "measured on", "l1", "c_emp", "c_emp by chance", "trivial l1", "rate of labels"], rows),
        "",
        *table(["figure", "measured", "bar", "holds"], held(checks)),
        "",
        "`python bench/agnostic.py`",
        "",
    ]


def curves() -> list[str]:
    """Show ROC and precision-recall curves without labels beside the true ones."""
    found = figures("roc")
    pooled = found["pooled"]

    def cells(one: dict[str, float]) -> list[str]:
        return [
            f"{one['area']:.4f}", f"{one['estimate by scores alone']:.4f}", f"{one['estimate']:.4f}",
            f"{one['low']:.3f} to {one['high']:.3f}",
            f"{one['distance by scores alone']:.3f}", f"{one['distance']:.3f}",
            f"{100 * one['inside']:.1f}% ({100 * one['all inside']:.0f}%)", f"{one['half-width']:.3f}",
            f"{100 * one['inside by scores alone']:.1f}% ({100 * one['all inside by scores alone']:.0f}%)",
            f"{one['half-width by scores alone']:.3f}", f"{one['c_emp']:.4f}",
        ]  # fmt: skip

    rows = [
        [data if at == 0 else "", model, *cells(cell["roc"])]
        for data, models in found["panels"].items()
        for at, (model, cell) in enumerate(models.items())
    ]
    rows += [
        ["all", f"{kind}, mean", *cells(pooled[short])] for short, kind in (("roc", "ROC"), ("pr", "precision-recall"))
    ]
    sizes, roc = found["rows"], pooled["roc"]
    worst = min(
        cell["roc"]["all inside by scores alone"] for models in found["panels"].values() for cell in models.values()
    )
    verdict = "is reproduced" if roc["all inside by scores alone"] >= found["level"] else "is **not** reproduced"
    return [
        "## ROC without labels",
        "",
        "The ten panels of Figure 4 of Gao, Parameswaran & Peng (2017): five models on adult and covertype, isotonic "
        f"regression on {sizes['calibration']:,} rows, {sizes['validation']:,} others as labelled rows, curves of "
        f"{sizes['without labels']:,} rows without labels compared with the true ones ({found['fits']} fits, "
        f"{found['partitions']} partitions of the held-out rows of each). By scores alone is the estimate of the "
        "paper; ours "
        "is corrected by the labelled rows. Farthest: the largest distance of the estimated from the true curve at any "
        "threshold, on either axis. Inside: the share of thresholds at which the true curve lies within the limits on both "
        "axes, and in brackets the share of repetitions in which the entire curve does; half-widths are those of the upper "
        "axis. Limits by c_emp are those of the paper, from c_emp of the labelled rows.",
        "",
        "The paper finds that estimated and true curves match reasonably well and that its limits match the "
        "deviations; its "
        f"text has no areas to compare with. This {verdict}: the areas differ by {roc['area off by scores alone']:.4f} on "
        f"average by scores alone, by {roc['area off']:.4f} with the correction. The limits of the paper contain "
        "the entire "
        f"true curve in {100 * roc['all inside by scores alone']:.0f}% of repetitions ({100 * worst:.0f}% in the "
        "worst panel), "
        f"ours, which have a level of {100 * found['level']:g}%, in {100 * roc['all inside']:.0f}%.",
        "",
        *table(
            ["data", "model", "true area", "by scores alone", "ours", f"limits at {100 * found['level']:g}%",
             "farthest by scores alone", "farthest, ours",
             "inside", "half-width", "inside by c_emp", "half-width", "c_emp"],
            rows,
        ),
        "",
        *table(["figure", "measured", "bar", "holds"], held(found["checks"])),
        "",
        "![ROC curves of five models on two data sets estimated without labels, with limits, and the true curves]"
        "(pictures/roc-panels.png)",
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
