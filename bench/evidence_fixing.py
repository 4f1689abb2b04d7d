"""The part of docs/evidence.md that is about the quality, the speed and the harmlessness of fixes."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.stats import wilcoxon

from cases import BASES, SOURCES
from pages import earlier, figures, held, table

SEEDS = 5  # of every data set and base model, if all cases are measured


def fixing() -> list[str]:
    """Compare the default fix with mcgrad, isotonic regression and a refit."""
    found = figures("quality")
    methods = ("base", "trueup", "mcgrad", "isotonic", "refit")
    summary, unseen = found["summary"]["all"], found["summary"]["unseen"]
    rows = []
    for measured, title in (
        ("log_loss", "log loss"),
        ("sigma", "multicalibration error, mcgrad's measure (sigma)"),
        ("sigma_ours", "multicalibration error, trueup's measure (sigma)"),
    ):
        each = summary[measured]
        rows.append([title, "mean", *(f"{each['mean'][name]:.4f}" for name in methods)])
        rows.append(["", "median", *(f"{each['median'][name]:.4f}" for name in methods)])
        rows.append(["", "mean rank", *(f"{each['mean rank'][name]:.2f}" for name in methods)])
        better = each["better than"]
        rows.append(["", "trueup is better", *("" if name == "trueup" else f"{better[name]:.0%}" for name in methods)])
        better = unseen[measured]["better than"]
        rows.append(["", "the same, unseen data", *("" if name == "trueup" else f"{better[name]:.0%}" for name in methods)])
        if measured == "sigma_ours":
            rows += [
                [
                    "",
                    f"by chance, {kind}",
                    *(f"{found['by chance'][kind]:.4f}" if name == "base" else "" for name in methods),
                ]
                for kind in ("mean", "median")
            ]
    sets: dict[str, list[dict[str, Any]]] = {}
    for case in found["cases"]:
        sets.setdefault(case["case"].rsplit("-", 1)[0], []).append(case)
    by_set = [
        [name, f"{cases[0]['rows']:,}", *(f"{sum(c['log_loss'][m] for c in cases) / len(cases):.5f}" for m in methods)]
        for name, cases in sets.items()
    ]
    return [
        "## Quality of the fix",
        "",
        f"{len(found['cases'])} cases of real data, three base models and a real score; calibration rows that the base "
        "models were not trained on, measured on test rows. Refit is LightGBM trained on features and score, the better of "
        f"two configurations. MCGrad has its defaults. {unseen['cases']} cases are of data that was not looked at before "
        "(acs_mobility_2018, communities_crime).",
        "",
        *table(["", "", *methods], rows),
        "",
        "By chance: the worst segment of the base scores with outcomes drawn from them, as if they were calibrated. "
        + chance_of_mcgrad(found)
        + single_cases(found["cases"], methods),
        "",
        beside_mcgrad(found),
        "",
        cases_left_out(found["cases"]) + beside_refits(found),
        "",
        "Mean log loss over the seeds:",
        "",
        *table(["data and base model", "calibration rows", *methods], by_set),
        "",
        *table(["figure", "measured", "bar", "holds"], held(found["checks"])),
        "",
        "`python bench/quality.py`",
        "",
    ]


def chance_of_mcgrad(found: dict[str, Any]) -> str:
    """State what mcgrad's measure is for scores that are calibrated exactly."""
    chance = found.get("by chance, mcgrad's measure")
    if chance is None:
        return ""
    rows = [case["sigma"] for case in found["cases"]]
    close = sum(abs(own["trueup"] - own["mcgrad"]) < chance["deviation"] for own in rows)
    return (
        f"By mcgrad's measure, corrected scores with outcomes drawn from them have {chance['mean']:.2f} on average, with a "
        f"standard deviation of {chance['deviation']:.2f} between cases; in {close} of {len(rows)} cases the two methods "
        "differ by less than that. "
    )


def beside_mcgrad(found: dict[str, Any]) -> str:
    """Count the cases below and above mcgrad's, test the differences, and state what calibrated scores would reach."""
    sentences = []
    for measured, title in (("log_loss", "Log loss"), ("sigma", "Multicalibration error by mcgrad's measure")):
        pairs = {case["case"]: case[measured]["trueup"] - case[measured]["mcgrad"] for case in found["cases"]}
        differences = np.array(list(pairs.values()))
        worse: dict[str, int] = {}
        for name in (name for name, difference in pairs.items() if difference > 0):
            worse[name.split("-")[0]] = worse.get(name.split("-")[0], 0) + 1
        sentences.append(
            f"{title}: lower than mcgrad's in {(differences < 0).sum()} cases, the same in {(differences == 0).sum()}, "
            f"higher in {(differences > 0).sum()} ({', '.join(f'{count} {name}' for name, count in worse.items())}); "
            f"median difference {np.median(differences):+.3g}, signed-rank test p = {wilcoxon(differences).pvalue:.1g}, "
            "as if cases were independent (seeds share rows)."
        )
    chance = found.get("by chance, mcgrad's measure")
    if chance is not None:
        sentences.append(_reachable(found["cases"], np.array(list(chance["cases"].values())), chance["deviation"]))
    return " ".join(sentences)


def _reachable(cases: list[dict[str, Any]], drawn: Any, deviation: float) -> str:
    """State in how many cases scores that are calibrated exactly would have a lower error, and how many are far behind."""
    shares = {
        name: np.mean([(drawn < case["sigma"]["mcgrad"]).mean() for case in some])
        for name, some in (("all", cases), ("unseen", [case for case in cases if case["unseen"]]))
    }
    far = [(case["sigma"]["trueup"] - case["sigma"]["mcgrad"]) / deviation for case in cases]
    return (
        f"Scores that are calibrated exactly would have a lower error than mcgrad's in about {shares['all']:.0%} of the "
        f"cases ({shares['unseen']:.0%} of the unseen ones), by the draws of all cases: the worst of many segments is "
        "mostly chance. trueup is lower by more than a standard deviation of these draws in "
        f"{sum(each < -1 for each in far)} cases, and higher by more than that in {sum(each > 1 for each in far)}."
    )


def cases_left_out(cases: list[dict[str, Any]]) -> str:
    """Name the data sets and base models that were not measured with all seeds."""
    seeds: dict[str, int] = {}
    for case in cases:
        name = case["case"].rsplit("-", 1)[0]
        seeds[name] = seeds.get(name, 0) + 1
    every = [f"{source.name}-{base}" for source in SOURCES for base in (*BASES, *(["own"] if source.score else []))]
    fewer = [f"{name} ({seeds[name]})" for name in every if 0 < seeds.get(name, 0) < SEEDS]
    never = [name for name in every if name not in seeds]
    text = f"Fewer than {SEEDS} seeds: {', '.join(fewer)}. " if fewer else ""
    return text + (f"Not in this run: {', '.join(never)}." if never else "")


def beside_refits(found: dict[str, Any]) -> str:
    """State the log loss of cases that were fitted by us and by a refit alone."""
    each = [
        f"{name}, base {losses['base']:.3f}, trueup {losses['trueup']:.3f}, refit {losses['refit']:.3f}"
        for name, losses in found.get("beside a refit", {}).items()
    ]
    return f" Log loss without mcgrad, of which a fit takes minutes there: {'; '.join(each)}." if each else ""


def single_cases(cases: list[dict[str, Any]], methods: tuple[str, ...]) -> str:
    """Name the cases that alone make up more than half of a mean error, so that the median is what to compare."""
    sentences = []
    for measured, title in (("sigma", "mcgrad's"), ("sigma_ours", "trueup's")):
        for name in methods:
            values = sorted(((case[measured][name], case["case"]) for case in cases), reverse=True)
            (largest, which), rest = values[0], [value for value, _ in values[1:]]
            if largest > sum(rest):
                sentences.append(
                    f"One case decides the mean of {name} by {title} measure: {which}, with {largest:,.0f}; the "
                    f"mean of the others is {sum(rest) / len(rest):.2f}. Compare medians."
                )
    return " ".join(sentences)


def fixing_speed() -> list[str]:
    """Compare the time of fits and predictions."""
    found = figures("mcgrad")
    peer, ours = found["peer"], found["ours"]
    rows = [
        [name, f"{one['rows']:,}", f"{one['mcgrad']:.2f}", f"{one['trueup']:.2f}", f"{one['times faster']:.1f}"]
        for name, one in found["real"].items()
    ]
    return [
        "## Speed of the fix",
        "",
        *earlier(found),
        f"{found['rows']:,} simulated rows x 12 features, two threads each, both with their defaults, in one run: mcgrad "
        f"0.1.5 fits in {peer['fit']:.1f} s, scores 100,000 rows in {peer['batch']:.2f} s and one in "
        f"{peer['one'] * 1e3:.1f} ms; trueup fits in {ours['fit']:.1f} s ({ours['trees']:,} trees), scores them in "
        f"{ours['frame']:.3f} s from a frame and {ours['table']:.3f} s from a Table, and one in "
        f"{ours['one'] * 1e6:.0f} microseconds.",
        "",
        *table(["figure", "measured", "bar", "holds"], held(found["checks"])),
        "",
        "Fits of real calibration rows, in seconds:",
        "",
        *table(["data and base model", "rows", "mcgrad", "trueup", "times faster"], rows),
        "",
        "`python bench/mcgrad.py` and `python bench/mcgrad.py --real`",
        "",
    ]


def no_harm() -> list[str]:
    """Show what the default fix does to calibrated scores, and what it recovers from few rows and rare levels."""
    found = figures("harm")
    calibrated = [
        [row["method"], f"{row['cell'][0]:,}", str(row["cell"][1]), f"{row['cell'][2]:g}", str(row["seeds"]),
         f"{row['changed']:.3f}", f"{1e3 * row['harm']:+.3f} ({1e3 * row['error']:.3f})"]
        for row in found["calibrated"]
    ]  # fmt: skip
    clusters = [
        [
            str(row["cell"][0]),
            f"{row['cell'][1]:g}",
            str(row["seeds"]),
            f"{row['changed']:.3f}",
            f"{1e3 * row['harm']:+.3f} ({1e3 * row['error']:.3f})",
        ]
        for row in found["clusters"]
    ]
    lines = [
        [
            str(row["cell"][0]),
            f"{row['cell'][1]:g}",
            row["cell"][2],
            f"{row['Platt']:.4f}",
            f"{row['MCGrad']:.4f}",
            f"{row['share']:.2f}",
        ]
        for row in found["line"]
    ]
    rare = [
        [row["case"], *(f"{row[who][what]:.{digits}f}" for what, digits in (("corrected", 2), ("gain", 5))
                        for who in ("trueup", "mcgrad"))]
        for row in found["rare"]
    ]  # fmt: skip
    return [
        "## No harm, few rows, rare levels",
        "",
        *earlier(found),
        "Calibrated scores: share of fits that change anything, and mean change of log loss on new rows (standard error), "
        "in thousandths of a nat.",
        "",
        *table(["method", "rows", "features", "events", "seeds", "changed", "change of log loss"], calibrated),
        "",
        "400 calibrated patients with several rows each, `cluster=`: change of log loss on new patients.",
        "",
        *table(["rows a patient", "correlation", "seeds", "changed", "change of log loss"], clusters),
        "",
        "Scores that need a line: gain in log loss.",
        "",
        *table(["rows", "events", "error", "Platt", "MCGrad", "share of Platt's"], lines),
        "",
        "An error that rare levels share (levels x rows of each, seed) among 50,000 rows: share corrected, and gain.",
        "",
        *table(["case", "corrected", "mcgrad", "gain", "mcgrad"], rare),
        "",
        *table(["figure", "measured", "bar", "holds"], held(found["checks"])),
        "",
        "`python bench/harm.py`",
        "",
    ]


def classes() -> list[str]:
    """Compare methods of several classes with probmetrics."""
    found = figures("classes")
    rows = []
    for one in found["settings"]:
        for name, cell in one["methods"].items():
            losses = [
                f"{cell[measure]['mean']:.4f} ({1e3 * cell[measure]['behind']:+.1f}, {1e3 * cell[measure]['error']:.1f})"
                for measure in ("log loss", "Brier")
            ]
            times = [f"{cell[kind]:.2f}" if kind in cell else "" for kind in ("seconds", "CPU seconds")]
            choices = ", ".join(f"{choice} {count}" for choice, count in cell.get("choices", {}).items())
            setting = f"{one['setting']}, {one['rows']:,} rows, {one['seeds']} seeds" if name == "none" else ""
            rows.append([setting, name, *losses, *times, choices])
    return [
        "## Several classes",
        "",
        "Log loss and Brier score of test rows; in brackets, in thousandths, the mean difference from the best method of "
        "probmetrics in the setting and its standard error, paired by test row; rows of one image count as one. CIFAR-10: "
        "three networks, random halves of 10,000 test images, which the seeds share. 100 classes: simulated logits of "
        "overconfident networks whose errors differ per class. Seconds are of the fit, median of the seeds, on a machine "
        "that also did other work: limits are for CPU seconds, which a fit on an idle machine does not exceed. The "
        "most standard errors above the best of probmetrics "
        f"(`MatrixScaling` and `Auto`): {found['worst']}; from the differences between seeds, whose images overlap, the "
        f"most are {found['worst between seeds']:.2f}. `MCGrad` alone, here without any features but the scores, is behind "
        "matrix scaling on CIFAR-10; `Temperature` has one parameter, and is compared with ts-mix.",
        "",
        *table(["setting", "method", "log loss", "Brier score", "seconds", "CPU seconds", "chosen by Auto (seeds)"], rows),
        "",
        *table(["figure", "measured", "bar", "holds"], held(found["checks"])),
        "",
        "`python bench/classes.py`",
        "",
    ]


def prior() -> list[str]:
    """Show the coverage of the interval of the prevalence under label shift, and the refusals."""
    found = figures("prior")
    rows = []
    for cell in found["settings"]:
        answered = cell["answers"] > 0
        rows.append([
            cell["setting"], f"{cell['old']:g} -> {cell['new']:g}", f"{cell['labelled']:,}", f"{cell['rows']:,}",
            f"{cell['answers'] / cell['repetitions']:.1%}",
            f"{cell['coverage']:.1%}" if answered else "",
            f"{cell['answers'] / cell['repetitions'] * (1 - cell['coverage']):.1%}" if answered else "0.0%",
            f"{cell['mean']:.4f}" if answered else "", f"{cell['width']:.3f}" if answered else "",
        ])  # fmt: skip
    return [
        "## Prevalence under label shift",
        "",
        f"{found['settings'][0]['repetitions']} simulations per setting: how often `PriorCorrection` answers instead of "
        f"refusing, how often its {found['level']:.0%} interval covers the new prevalence if it answers (a selection where "
        "most are refused: information at the limit is found by chance), the share of all simulations with an interval "
        "that misses it, the mean estimate and the median width of the interval. Without labelled rows scores "
        "are calibrated.",
        "",
        *table(
            ["setting", "prevalence", "labelled", "new rows", "answers", "coverage", "misses", "mean estimate", "width"],
            rows,
        ),
        "",
        *table(["figure", "measured", "bar", "holds"], held(found["checks"])),
        "",
        "`python bench/prior.py`",
        "",
    ]
