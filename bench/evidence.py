"""Write docs/evidence.md from the figures in bench/results: no figure on that page is typed in by hand.

python bench/evidence.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from common import QUICK
from evidence_decide import deciding
from evidence_exports import exporting
from evidence_fixing import classes, fixing, fixing_speed, no_harm, prior
from evidence_materiality import materiality
from evidence_monitor import monitoring
from evidence_papers import crime_curves, discretising, lore_gaps
from evidence_plan import plans
from evidence_scale import scaling
from evidence_start import starting
from evidence_summary import quick_time, summary
from page_sizing import sizing_page
from pages import figures, held, measured, table

HERE = Path(__file__).parent
COUNTS, MEASURED = ("100", "300", "500", "1000"), ("10", "20", "50", "100")
PAGE = HERE.parent / "docs" / "evidence.md"
SIZING = PAGE.with_name("sizing.md")


def false_alarms() -> list[str]:
    found = figures("null")
    rows = [
        [
            f"{cell['segments']:.0f}",
            cell["variant"],
            *("-" if cell["shares"][way] is None else f"{cell['shares'][way]:.3f}" for way in ("holm", "max", "limit")),
        ]
        for cell in found["cells"]
    ]
    lines = [
        "## False alarms",
        "",
        f"Calibrated data of 3,000 rows, {found['repetitions']:,} repetitions per line: the share of audits that call it "
        "miscalibrated at 5%. The last column is Holm's adjustment, with equal "
        "shares, of p-values from the plain Brownian limit.",
        "",
        *table(["segments", "data", "Holm", "max", "plain limit"], rows),
        "",
    ]
    if "mcgrad" in found:
        peer = found["mcgrad"]
        lines += [
            f"mcgrad 0.1.5 with its documented rule (p < 0.05) calls calibrated data miscalibrated in {peer['fired']} of "
            f"{peer['repetitions']} repetitions with {peer['segments']} segments.",
            "",
        ]
    return [*lines, f"`python bench/null.py --repetitions {found['repetitions']} --peer`", ""]


def power() -> list[str]:
    found = figures("power")
    names = {
        "one_category": "a category with 5% of 20,000 rows: the worst finding, adjusted p < 1e-6",
        "interaction": "an interaction with 2% of 100,000 rows: found at depth 2",
    }
    rows = [
        [
            names[cell["case"]],
            f"{cell['prevalence']:g}",
            f"{cell['segments']:.0f}",
            f"{cell['found']['value']:.2f}",
            "-" if cell["exact"] is None else f"{cell['exact']:.2f}",
        ]
        for cell in found["cells"]
    ]
    return [
        "## Power",
        "",
        f"Planted errors of +1 logit, Holm over all segments, {found['repetitions']} repetitions per line. The last column "
        "is the exact test of the planted segment alone. All errors in this table are upward.",
        "",
        *table(["planted", "prevalence", "segments", "share found", "exact test"], rows),
        "",
        "`python bench/power.py --repetitions 100`",
        "",
    ]


def validity() -> list[str]:
    found = figures("validity")
    weights = [
        [cell["kind"], f"{cell['segments']:.0f}", f"{cell['alarm']:.3f}", f"{cell['covered']:.3f}"]
        for cell in found["weights"]
    ]
    rare = [
        [f"{size:,}", f"{prevalence:g}", f"{factor:g}", f"{cell['found']:.2f}", f"{cell['reference']:.2f}"]
        for cell in found["over_predicted"]
        for prevalence, size, factor in [cell["case"]]
    ]
    noise = [
        [str(row["noise"]), f"{row['segments']:,}", *(f"{row[name]:.2g}" for name in ("p_adjusted", "equal_shares"))]
        for row in found["adult"]
    ]
    single, levels = found["single_column"], found["rare_levels"]
    shares = ", ".join(f"{cell['found']:.2f} of {cell['levels']}" for cell in levels)
    return [
        "## Weights, rare events, rare levels and irrelevant columns",
        "",
        "Calibrated data of 3,000 rows with awkward weights (20,000 where some levels or scores were sampled), "
        f"{found['repetitions']} repetitions per line: the share of audits that call it miscalibrated at 5%, and how many "
        "95% intervals of observed/expected of single columns contain 1.",
        "",
        *table(["weights", "segments", "false alarms", "coverage"], weights),
        "",
        "Of 3,000 rows, positives of 1 of 8 levels kept 1/20 are about four heavy rows. So few cannot be recognised "
        f"reliably: {found['few_heavy']['alarm']:.2f} of audits raise a false alarm.",
        "",
        "An error of +0.6 logits in a fifth of 30,000 rows with 3% events is found in "
        f"{found['sample']['all']:.2f} of audits of all rows and {found['sample']['sample']:.2f} of audits of a sample "
        "without nine tenths of the negatives (`sampling=`).",
        "",
        "Segments with too few rare events, among 20,000 rows and about 200 segments. The reference is a saddlepoint test "
        "of that segment and that direction alone, at the segment's share of alpha.",
        "",
        *table(["rows", "prevalence", "times expected", "share found", "reference"], rare),
        "",
        "A shift of one level of one column by 4 standard errors, among six columns, is found in "
        f"{single['shift of 4 s.e.']:.2f} of audits ({single['shift of 4 s.e., equal shares']:.2f} with equal shares of "
        f"alpha for all segments); a shift of 1.96 standard errors in {single['z 50%']:.2f} "
        f"({single['z 50%, equal shares']:.2f}).",
        "",
        "Twice the expected rate in levels of 20 rows each, among 100,000 rows: the pooled rare levels are found to be "
        f"miscalibrated in {shares} levels.",
        "",
        "Adult, the score of a gradient boosting that fits too closely, by race and columns of noise: the p-value over all "
        f"rows is {found['adult'][0]['p_value']:.2g}.",
        "",
        *table(["columns of noise", "segments", "adjusted p over all rows", "with equal shares"], noise),
        "",
        f"`python bench/validity.py --repetitions {found['repetitions']}`",
        "",
    ]


def real_outcomes() -> list[str]:
    found = figures("real_outcomes")
    cells = [
        [cell["noise"], f"{cell['segments']:.0f}", f"{cell['alarm']:.3f}", f"{cell['own']:.3f}"] for cell in found["cells"]
    ]
    families = [[cell["noise"], f"{cell['segments']:.0f}", f"{cell['alarm']:.3f}"] for cell in found["families"]]
    zeros = [
        [cell["where"], f"{cell['rows']:,}", f"{cell['segments']:.0f}", f"{cell['alarm']:.3f}"] for cell in found["zeros"]
    ]
    planted = [
        [
            noise if family is None else f"{noise}, `family`",
            f"{column}, {'mean +' if noise == 'normal' else 'mean times '}{factor:g}",
            f"{cell['found']:.2f}",
            "-" if cell["reference"] is None else f"{cell['reference']:.2f}",
        ]
        for cell in found["planted"]
        for noise, family, column, factor in [cell["case"]]
    ]
    return [
        "## Real outcomes",
        "",
        "Calibrated predictions of 20,000 rows in 250 groups and three further columns, "
        f"{found['repetitions']} repetitions per line: the share of audits that call them miscalibrated at 5%, and that of "
        "a test of single columns with the variance of each segment's own rows and Student's t. Where 10% of the outcomes "
        "are not zero, a group has 2 to 14 of them.",
        "",
        *table(["noise", "segments", "false alarms", "own variance"], cells),
        "",
        "With a `family` and exposures of 0.02 to 1 as weights; the outcomes of the last two lines are not of the family:",
        "",
        *table(["outcome", "segments", "false alarms"], families),
        "",
        "Calibrated predictions of gamma outcomes, but in some rows 99% of the outcomes are zero and 1% a hundred times "
        "the prediction. Zeros that stand out in levels and pairs of levels raise the variance, and few other outcomes "
        "there make a segment untestable. Where such rows are hidden within levels and pairs, as in the last three kinds, "
        "nothing shows that large outcomes, which the rows lack by chance, are possible: then predictions look too high.",
        "",
        *table(["rows of mostly zeros", "rows in all", "segments", "false alarms"], zeros),
        "",
        "Planted errors in one group of 250 (80 rows) or one product of 8, 100 repetitions per line. The reference is a "
        "test of that segment alone at its share of alpha: with normal noise by its own variance and Student's t, for "
        "Poisson outcomes the exact test of its count, which knows the direction.",
        "",
        *table(["outcome", "error", "share found", "reference"], planted),
        "",
        f"`python bench/real_outcomes.py --repetitions {found['repetitions']}`",
        "",
    ]


def clusters() -> list[str]:
    found = figures("clusters")
    alarms = [
        [name, f"{cell['design']:.1f}", f"{cell['tested']:.0f}", f"{cell['clusters']:.3f}", f"{cell['plain']:.3f}"]
        for name, cell in found["alarms"].items()
    ]
    shares = [[name, f"{cell['found']:.2f}", f"{cell['oracle']:.2f}"] for name, cell in found["power"].items()]
    cost = [
        [name, *(f"{cell[way]:.3f}" for way in ("plain", "clusters")), f"{cell['multiple']:.2f}"]
        for name, cell in found["cost"].items()
    ]
    return [
        "## Clusters",
        "",
        f"Calibrated data of 6,000 rows in clusters (24,000 with Zipf sizes), about 265 segments, {found['repetitions']} "
        "repetitions per line: the share of audits that call it miscalibrated at 5%, with `cluster=` and without. Two rows "
        "of a cluster share their random number with probability icc. Segments with fewer than 10 effective clusters are "
        "not tested.",
        "",
        *table(["data", "design effect", "tested", "with clusters", "without"], alarms),
        "",
        "An error planted in one level of a column. The oracle is the same test with the true correlation.",
        "",
        *table(["data", "share found", "oracle"], shares),
        "",
        "100,000 rows x 12 columns at depth 2 on one core, CPU seconds:",
        "",
        *table(["data", "without clusters", "with clusters", "multiple"], cost),
        "",
        f"`python bench/clusters.py --repetitions {found['repetitions']}`",
        "",
    ]


def speed() -> list[str]:
    found = figures("audit")
    peer, ours = found["peer"], found["ours"]
    return [
        "## Speed, memory and agreement",
        "",
        f"100,000 rows x 12 columns, from a pandas frame: mcgrad 0.1.5 takes {peer['seconds']:.2f} s for "
        f"{peer['segments']:,} segments (its defaults), trueup {ours['2']['seconds']:.2f} s for "
        f"{ours['2']['segments']:,} at depth 2 and "
        f"{ours['3']['seconds']:.2f} s for {ours['3']['segments']:,} at depth 3, in the same run on "
        f"{found['machine']['cores']} cores. 1,000,000 rows at depth 2: {found['million']['audit_s']:.2f} s "
        f"without reading the frame.",
        "",
        *table(["figure", "measured", "bar", "holds"], held(found["checks"])),
        "",
        "`python bench/audit.py`",
        "",
    ]


def bounds() -> list[str]:
    found = figures("bound")
    rows = []
    for cell in found["cells"]:
        shares = [f"{cell['checks'][side]['value']:.3f}" for side in ("upper", "lower")]
        rows.append(
            [cell["population"], f"{cell['rows']:,}", f"{cell['delta']:g}", cell["method"], *shares, f"{cell['width']:.4f}"]
        )
    return [
        "## Bounds on the calibration error of the population",
        "",
        f"`calibration_bound` where c is known in closed form, {found['repetitions']:,} repetitions per line: "
        f"how often each "
        "bound holds (nominal: 1 - delta), and the distance of the upper bound from c_emp.",
        "",
        *table(["population", "rows", "delta", "method", "upper holds", "lower holds", "half-width"], rows),
        "",
        "`python bench/bound.py`",
        "",
    ]


def measures() -> list[str]:
    found = figures("metrics")
    return [
        "## Speed of the measures",
        "",
        f"{found['rows']:,} rows, with the other packages in the same run.",
        "",
        *table(["figure", "measured", "bar", "holds"], held(found["checks"])),
        "",
        "`python bench/metrics.py`",
        "",
    ]


def _seconds_to_best(cell: dict[str, Any]) -> str:
    """Give the seconds of LSBoost to the lowest error of gradient boosting, and the latter's seconds, or its own lowest."""
    best = min(cell["gradient boosting"], key=lambda point: point["mse"])
    ours = [point["seconds"] for point in cell["lsboost"] if point["mse"] <= best["mse"]]
    if not ours:
        return f"not within {max(point['rounds'] for point in cell['lsboost'])} rounds against {best['seconds']:.1f} s"
    return f"{min(ours):.2g} s against {best['seconds']:.1f} s"


def level_sets() -> list[str]:
    found, surfaces = figures("lsboost"), figures("surfaces")
    rounds = ("1", "5", "10", "20", "50", "100")
    stumps = found["stumps"]
    rows, times = [], []
    for name, cell in found["by_round"].items():
        for who in ("lsboost", "gradient boosting"):
            if who in cell:
                rows += [
                    [name if what == "mse" else "", who, what.upper(), *(f"{cell[who][at][what]:.5f}" for at in rounds), ""]
                    for what in ("mse", "msce")
                ]
        default = cell["default"]
        rows += [
            ["", "LSBoost, default", what.upper(), *[""] * len(rounds), f"{default[what]:.5f}"] for what in ("mse", "msce")
        ]
    for name, cell in found["times"].items():
        for levels in (50, 100, 300):
            own = cell[f"{levels} levels"]
            ratios = [
                f"{own['ratio'][many]:.0f}" if many in own["ratio"] else "-" for many in ("100", "300", "500", "1000")
            ]
            times.append([name, str(levels), *ratios, f"{cell['gradient boosting']['1000']:.1f}"])
    maps = [
        [name, depth, str(one["rounds"]), f"{one['mse_out_of_sample']:.1e}", f"{100 * one['share_explained']:.2f}%"]
        for name in ("C0", "C1")
        for depth, one in surfaces[name].items()
        if depth.startswith("depth") or depth == "linear"
    ]
    speed = [
        [name if who == "lsboost" else "", who, *cells]
        for name, cell in found["by_time"].items()
        for who in ("lsboost", "gradient boosting")
        for cells in [[f"{point['seconds']:.2g} s: {point['mse']:.4f}" for point in cell[who]]]
    ]
    reached = ", ".join(f"{_seconds_to_best(cell)} ({name})" for name, cell in found["by_time"].items())
    shown = {name: ", ".join(map(str, surfaces[name]["pictured_rounds"])) for name in ("C0", "C1")}
    return [
        "## LSBoost",
        "",
        f"Incomes of a census of persons of {found['ages'][0]} to {found['ages'][1]} years (the paper has all ages, and "
        f"other columns; {found['rows']:,} training rows, {found['test_rows']:,} test rows), capped and scaled to [0, 1]; "
        "`LSBoost.as_published` with 50 levels (Globus-Harris et al. 2023, Figures 3 and 5), compared with scikit-learn's "
        "GradientBoostingRegressor with learning rate 0.1. Test errors by round; the last column is LSBoost with "
        "its defaults, which use held-out rows. Trees of depth 2 and 3 overfit without them, as the paper reports.",
        "",
        *table(["learner", "", "", *(f"round {at}" for at in rounds), "default"], rows),
        "",
        "Time of gradient boosting over time of LSBoost for the same number of weak learners (their Table 2; "
        "its best figure is "
        "12), and the seconds of gradient boosting for 1,000:",
        "",
        *table(["learner", "levels", "100", "300", "500", "1,000", "seconds"], times),
        "",
        "That compares a learner of histograms with one of exact trees. On one thread, LightGBM "
        f"{stumps['lightgbm']} trains {stumps['learners']:,} stumps in {stumps['cpu_seconds']:.1f} CPU seconds; as many "
        "of LSBoost:",
        "",
        *table(
            ["levels", "rounds", "CPU seconds", "LightGBM's over LSBoost's"],
            [
                [levels, str(one["rounds"]), f"{one['cpu_seconds']:.2f}", f"{one['ratio']:.1f}"]
                for levels, one in stumps["levels"].items()
            ],
        ),
        "",
        *table(["figure", "measured", "bar", "holds"], held(found["checks"])),
        "",
        "Test error against training time (their Figure 6): seconds and test MSE after 1, 2, 5, 10, 20, 50 and 100 rounds, "
        "or as many as there are, and as many trees of gradient boosting. A round of LSBoost trains a tree on each level. "
        "Each time is the shortest of three, on a machine that did other work. Seconds until the lowest of these errors of "
        "gradient boosting is reached, and its own: "
        f"{reached}.",
        "",
        *table(["trees", "", *(f"round {at}" for at in ("1", "2", "5", "10", "20", "50", "100"))], speed),
        "",
        "`python bench/lsboost.py`, `python bench/lsboost.py --stumps`",
        "",
        f"The paper's two surfaces, {surfaces['C0']['rows']:,} points, `LSBoost.as_published` with "
        f"{surfaces['C0']['levels']} levels (and 255 bins): squared error against the true surface on as many new points, "
        "in units where it spans 0 to 1. Linear "
        f"functions explain {100 * surfaces['C1']['linear']['share_explained']:.1f}% of C1, which the paper's Figure 8 "
        f"shows as a noisy map, and, in {surfaces['C0']['linear']['rounds']} rounds, nothing of C0, where no line improves "
        "on the mean.",
        "",
        *table(["surface", "learner", "rounds", "error", "explained"], maps),
        "",
        "![Surface C0 as LSBoost predicts it after six numbers of rounds, and the true surface](pictures/lsboost-c0.png)",
        "",
        f"C0 after rounds {shown['C0']} with trees of depth 1, and the true surface.",
        "",
        "![Surface C1 as LSBoost predicts it after six numbers of rounds, and the true surface](pictures/lsboost-c1.png)",
        "",
        f"C1 after rounds {shown['C1']}, and the true surface.",
        "",
        "`python bench/surfaces.py`",
        "",
    ]


def depth_two() -> list[str]:
    found, rows = figures("depthtwo"), []
    for name, case in found["real"].items():
        saturation = case["saturation"]
        for who in ("base", "depthtwo", "mcgrad"):
            one = case[who]
            rows.append(
                [
                    name if who == "base" else "", who, f"{one['log loss']:.4f}", f"{one['worst smECE']:.3f}",
                    *(f"{one['worst K1'][m]:.4f}" for m in MEASURED),
                    f"{saturation['eps']:.1e} (s.e. {saturation['error']:.0e})" if who == "depthtwo" else "",
                ]
            )  # fmt: skip
        chance = [f"{case['right K1'][m]:.4f}" for m in MEASURED]
        rows.append(["", "by chance alone", "", f"{case['right smECE']['mean']:.3f}", *chance, ""])
    xor = found["exclusive or"]
    return [
        "## DepthTwo",
        "",
        "One fit, measured on test rows at m = 10, 20, 50 and 100 levels without refitting (as in the figure of arXiv "
        "2505.17435): the worst group's smooth calibration error and K1, over 28 to 44 overlapping groups, and the values "
        "of calibrated scores by chance. On adult the groups are too small to distinguish the methods from chance.",
        "",
        *table(["data", "", "log loss", "worst smECE", *(f"K1, m={m}" for m in (10, 20, 50, 100)), "saturation eps"], rows),
        "",
        f'The counter-example, an outcome that depends on the parity of three groups: "{xor["saturation"]["sentence"]}"',
        "",
        *table(["figure", "measured", "bar", "holds"], held(found["checks"])),
        "",
        "`python bench/depthtwo.py`",
        "",
    ]


def small_data() -> list[str]:
    found = figures("small")
    settings = list(dict.fromkeys((cell["setting"], cell["rows"]) for cell in found["cells"]))
    cells = {(cell["method"], cell["setting"], cell["rows"]): cell for cell in found["cells"]}
    methods = list(dict.fromkeys(cell["method"] for cell in found["cells"]))

    def format_change(cell: dict[str, Any]) -> str:
        return "0" if not cell["acted"] else f"{1e3 * cell['change']:+.1f} ({1e3 * cell['error']:.1f})"

    rows = [[method, *(format_change(cells[method, *setting]) for setting in settings)] for method in methods]
    return [
        "## Small data",
        "",
        f"Change of log loss by a fix, in thousandths of a nat, mean of {found['seeds']} seeds (standard error); 0 if "
        "no fit changed anything. Classical methods use cross-validation here, the others their defaults; the last "
        "four lines are fitted without held-out rows. Crime is Communities & Crime, whose seeds share rows.",
        "",
        *table(["method", *(f"{kind}, {n:,}" for kind, n in settings)], rows),
        "",
        "Least harm: the share of all runs after which the log loss of new rows is higher than that of the uncorrected "
        "scores, the share after which it is lower (all others change nothing), and the mean change in thousandths. "
        "Curves with cross-validation hardly ever act on so few rows.",
        "",
        *table(
            ["method", "worse", "better", "mean change"],
            [
                [name, f"{own['worse']:.1%}", f"{own['better']:.1%}", f"{1e3 * own['mean']:+.2f}"]
                for name, own in found["shares"].items()
            ],
        ),
        "",
        *table(["figure", "measured", "bar", "holds"], held(found["checks"])),
        "",
        "`python bench/small.py`",
        "",
    ]


def isotonic() -> list[str]:
    found = figures("isotonic")
    return [
        "## Isotonic regression",
        "",
        f"{found['rows']:,} rows, `tu.Isotonic` from an array (with validation, history and explanation) compared with "
        "scikit-learn's IsotonicRegression in one run.",
        "",
        *table(["figure", "measured", "bar", "holds"], held(found["checks"])),
        "",
        "`python bench/isotonic.py`",
        "",
    ]


def crime() -> list[str]:
    found = figures("crime")
    long, early, means = found["200 epochs"], found["stopped early"], found["published means"]

    def mean_and_sd(cell: dict[str, Any], what: str) -> str:
        return f"{cell[what]['mean']:.3f} ({cell[what]['sd']:.3f})"

    rows = [
        [
            name,
            f"{found['published'][name]:.3f}" if name in found["published"] else "",
            mean_and_sd(cell, "group MCE, race"), f"{cell['group MCE, race, by chance']['mean']:.3f}",
            mean_and_sd(cell, "group MCE, race, 10 rows"), f"{cell['group MCE, race, 10 rows, by chance']['mean']:.3f}",
            *(
                f"{cell[what]['mean']:.3f}" + (f" ({means[name][at]:g})" if name in means else "")
                for at, what in enumerate(("ECE", "log loss", "Brier"))
            ),
            f"{early['methods'][name]['group MCE, race']['mean']:.3f}",
            f"{early['methods'][name]['group MCE, race, 10 rows']['mean']:.3f}",
            f"{early['methods'][name]['log loss']['mean']:.3f}",
        ]
        for name, cell in long["methods"].items()
    ]  # fmt: skip
    for name, (published, *others) in found["not run"].items():
        rows.append([name, f"{published:.3f}", "not run", "", "", "", *(f"({value:g})" for value in others), "", "", ""])
    compared = len(found["published"])
    against = ("group MCE, race", "group MCE, race, 10 rows", "group MCE, income")
    beside = [
        [name, f"{found['correlations'][name]:.3f}" if name in found["correlations"] else ""]
        + [f"{kind['correlations'][one][name]:.3f}" for kind in (long, early) for one in against]
        for name in long["correlations"][against[0]]
    ]
    words = ("race", "race, 10 rows", "income")
    plain, large = "group MCE, race", "group MCE, race, 10 rows"
    rows_there = sorted(cell["rows of the worst bin, race"]["mean"] for cell in long["methods"].values())
    chance = f"{plain}, by chance"
    beyond = [name for name, cell in long["methods"].items() if cell[plain]["mean"] > cell[chance]["mean"] + 0.1]
    best = [min((cell[large]["mean"], name) for name, cell in kind["methods"].items())[1] for kind in (long, early)]
    error = max(cell[plain]["sd"] for name, cell in long["methods"].items() if "LoRe" in name) / found["seeds"] ** 0.5
    gaps = lore_gaps(found)
    verdict = "is not reproduced" if gaps[1] > gaps[0] / 2 else "is reproduced"
    alike = (large, plain)
    leading = [
        max((value, name) for name, value in kind["correlations"][one].items())[1]
        for kind in (long, early)
        for one in alike
    ]
    return [
        "## Local recalibration: Communities & Crime",
        "",
        f"Setting 1 of Luo et al. (2022), {found['seeds']} seeds, each with its own split and network: the "
        "largest calibration error in any of 5 bins of any group of communities (by plurality of race), mean and standard "
        "deviation, compared with their Table 1; ECE, log loss and Brier score, theirs (Table 3) in brackets. "
        "Networks of 200 "
        "epochs were chosen to be as overconfident as theirs; the last three columns are networks stopped early. By "
        "chance: the value of a method if its confidences were calibrated. Raw: an embedding that is not scaled to a "
        "mean distance of 1. By itself: LoRe with its defaults on the entire last layer, with gamma chosen.",
        "",
        f"**The published advantage of LoRe {verdict}.** In the error of the worst group the better of its two variants is "
        f"{gaps[0]:+.3f} from the best of temperature, histogram and isotonic as published, {gaps[1]:+.3f} here (standard "
        f"errors of the means up to {error:.3f}, and seeds share rows). The deciding bin has "
        f"{rows_there[len(rows_there) // 2]:.1f} rows on average (the median method). By more than 0.1 above "
        f"the chance level of calibrated "
        f"confidences: {' and '.join(beyond) or 'none'}. Over bins of 10 rows or more the lowest is "
        f"that of {best[0]} with 200 epochs, of {best[1]} with networks stopped early.",
        "",
        *table(
            ["method", "published", "worst group", "by chance", "10 rows or more", "by chance", "ECE", "log loss", "Brier",
             "early: worst group", "early: 10 rows", "early: log loss"],
            rows,
        ),
        "",
        f"Correlation of measures with the error of the worst group, over seeds and {compared} of the "
        f"{compared + len(found['not run'])} methods of the paper (without {' and '.join(found['not run'])}, which trains "
        "the network by another loss), beside its Table 2; 200 epochs first, then stopped early. Income: groups by the "
        f"largest of five incomes per head. The highest with 200 epochs is that of {leading[1]}, of {leading[0]} if bins "
        f"of fewer than 10 rows are left out; stopped early, of {leading[3]} and of {leading[2]}.",
        "",
        *table(["measure", "published", *words, *(f"early: {one}" for one in words)], beside),
        "",
        "`python bench/crime.py`",
        "",
    ]  # fmt: skip


def cifar() -> list[str]:
    found, rows = figures("cifar"), []
    wanted = (0.03, 0.1, 0.3, 1)
    shown = [at for at, gamma in enumerate(found["gammas"]) if any(abs(gamma / one - 1) < 0.1 for one in wanted)]
    measures = ("ECE", "NLL", "Brier", "PRR", "mean LCE", "MLCE, enough rows")
    for net, cell in found["nets"].items():
        for name, curve in cell["curves"].items():
            one = cell["methods"][name]
            numbers = [f"{one[what]['mean']:.4f}" if what in one else "" for what in measures]
            curved = [f"{curve['mlce'][at]:.3f}" for at in shown]
            rows.append([net if name == "none" else "", name, *numbers, *curved, f"{curve['mce']:.3f}"])
    land = found["landscape"]
    best, worst = land["best"], land["worst"]
    summaries = [
        f"{net} {means['none']:.4f}, {means['LoRe, gamma 0.4']:.4f} and {means['by chance']:.4f}"
        for net, cell in found["nets"].items()
        for means in [{name: one["mean LCE"]["mean"] for name, one in cell["methods"].items()}]
    ]
    leads = {
        what: [
            f"{pick(known)[1]} ({net})"
            for net, cell in found["nets"].items()
            for known in [[(one[what]["mean"], name) for name, one in cell["methods"].items() if what in one]]
        ]
        for what, pick in (("NLL", min), ("PRR", max))
    }
    return [
        "## Local calibration: CIFAR-10",
        "",
        f"Three networks, 5,000 test images to recalibrate and 5,000 to measure, mean of {found['seeds']} splits. phi is "
        f"the ten class probabilities, scaled to a mean distance of 1; {found['bins']} bins. MLCE is the local calibration "
        "error of the worst row, by gamma; next to it that of the worst row with an effective size of at least "
        f"{found['enough']} rows, and the mean over rows, both at gamma {found['seen']}. By chance: the value "
        f"of temperature "
        "scaling if its confidences were calibrated. With gamma 0.4 the bins of LoRe have equal width, as in the "
        "paper; if it chooses gamma they have equal weight. (The paper's Figure 9 has 3-D t-SNE features.)",
        "",
        f"Mean local error before, after LoRe with gamma 0.4, and by chance: {'; '.join(summaries)}. The lowest "
        f"log loss is "
        f"that of {', '.join(leads['NLL'])}; the highest PRR that of {', '.join(leads['PRR'])}.",
        "",
        *table(
            ["net", "method", "ECE", "NLL", "Brier", "PRR", "mean LCE", "MLCE, enough rows",
             *(f"MLCE, gamma {found['gammas'][at]:.2g}" for at in shown), "MCE"],
            rows,
        ),
        "",
        *(
            line
            for net in found["nets"]
            for line in (
                f"![Largest local calibration error of {net} against the bandwidth gamma](pictures/local-mlce-{net}.png)",
                "",
            )
        ),
        f"Local errors of {land['net']}, gamma {land['gamma']}, two principal components: the best-calibrated bin "
        f"(error {best['error']:.3f}) has local errors up to {best['MLCE']:.3f}, mean {best['mean LCE']:.3f}; "
        f"the worst ({worst['error']:.3f}) up to {worst['MLCE']:.3f}, mean {worst['mean LCE']:.3f}.",
        "",
        "![Points of an embedding of CIFAR-10 coloured by local calibration error](pictures/local-landscape.png)",
        "",
        "![Distribution of the local calibration errors of all rows](pictures/local-cdf.png)",
        "",
        "`python bench/cifar.py`",
        "",
    ]  # fmt: skip


def local() -> list[str]:
    """Show the speed of local sums: on the CPU, by number of rows, and on a GPU."""
    found = figures("local")
    card = figures("local-card") if measured("local-card") else None  # needs a GPU
    binned = {size: cell.get("fifteen_bins_s") for size, cell in card["figures"]["sizes"].items()} if card else {}
    spread = ", ".join(f"{seconds:.2g} s ({size})" for size, seconds in binned.items() if seconds)
    grown = [
        [
            dimensions if at == 0 else "", size, f"{cell['s']:.3g}", f"{cell['cpu_s']:.3g}", f"{cell['bytes_a_row']:.0f}"
        ]
        for dimensions, sizes in found["growth"].items()
        for at, (size, cell) in enumerate(sizes.items())
    ]  # fmt: skip
    return [
        "## Speed of local calibration",
        "",
        "The local calibration error of every row, all rows in one bin, so that every pair of rows contributes.",
        "",
        *table(["figure", "measured", "bar", "holds"], held({**found["checks"], **(card["checks"] if card else {})})),
        "",
        *table(["dimensions", "rows", "seconds", "CPU seconds", "bytes per row"], grown),
        "",
        f"On the GPU, with the rows spread over 15 bins: {spread}. The time of torch.cdist there is extrapolated from its "
        "first blocks."
        if card
        else "Not measured here: a GPU.",
        "",
        "`python bench/local.py`, `python bench/local.py --card`",
        "",
    ]


SECTIONS = (
    false_alarms, power, validity, real_outcomes, clusters, materiality, monitoring, plans, speed, bounds, measures,
    fixing, fixing_speed, no_harm, small_data, classes, prior, level_sets, depth_two, discretising,
    isotonic, local, cifar, crime, crime_curves, deciding, scaling, exporting, starting,
)  # fmt: skip


def page() -> str:
    """Assemble the page: a summary, then a section per benchmark that has been run."""
    quick = "Figures of quick versions, with few repetitions, seeds or rows: they show that every benchmark runs."
    lines = [
        "# Evidence",
        "",
        *([quick, ""] if QUICK else []),
        "What we claim, what was measured, and what it is compared with; the sections below have every figure. Aims that "
        "are missed are stated. Each section is measured by one command, on the machine named in the results; "
        f"`make evidence` runs quick versions of all{quick_time()}, `make evidence-full` the full ones; of those, "
        "`bench/results/` has all figures.",
        "",
        *summary(),
        "",
    ]
    for section in SECTIONS:
        try:
            lines += section()
        except FileNotFoundError as error:
            lines += [f"Not measured here: {Path(error.filename).stem}.", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    if QUICK:
        Path(QUICK, "evidence.md").write_text(page())
    else:
        PAGE.write_text(page())
        SIZING.write_text(sizing_page())
