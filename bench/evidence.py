"""Write docs/evidence.md from the figures in bench/results: no figure on that page is typed in by hand.

python bench/evidence.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "evidence.md"


def figures(name: str) -> dict[str, Any]:
    """Read the figures of one benchmark."""
    found: dict[str, Any] = json.loads((HERE / "results" / f"{name}.json").read_text())
    return found


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    """Write a table."""
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(cells)} |" for cells in lines]


def held(checks: dict[str, Any]) -> list[list[str]]:
    """Write each figure beside its bar."""
    return [
        [
            name,
            f"{c['value']:.3g}",
            f"{'at most' if c['at_most'] else 'at least'} {c['bar']:.3g}",
            "yes" if c["holds"] else "**no**",
        ]
        for name, c in checks.items()
    ]


def false_alarms() -> list[str]:
    found = figures("null")
    rows = [
        [
            f"{cell['segments']:.0f}",
            cell["variant"],
            *(f"{cell['shares'][way]:.3f}" for way in ("holm", "max", "limit")),
        ]
        for cell in found["cells"]
    ]
    lines = [
        "## False alarms",
        "",
        f"Calibrated data of 3,000 rows, {found['repetitions']:,} repetitions a line: the share of audits that call it "
        "miscalibrated at 5%. The last column is what Holm over the plain Brownian limit would have said.",
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
    return [*lines, "`python bench/null.py --repetitions 1000 --peer`", ""]


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
        f"Planted errors of +1 logit, Holm over all segments, {found['repetitions']} repetitions a line. The last column "
        "is the exact test of the planted segment alone, told where to look: hardly any valid test finds more.",
        "",
        *table(["planted", "prevalence", "segments", "share found", "exact test"], rows),
        "",
        "`python bench/power.py --repetitions 100`",
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
        f"{found['machine']['cores']} cores. 1,000,000 rows at depth 2: {found['million']['audit_s']:.2f} s once read in.",
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
        "## Bounds on the calibration of the population",
        "",
        f"`calibration_bound` where c is known in closed form, {found['repetitions']:,} repetitions a line: how often each "
        "bound holds (1 - delta is promised), and how far above c_emp the upper one lies.",
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
        f"{found['rows']:,} rows, beside the peers in the same run.",
        "",
        *table(["figure", "measured", "bar", "holds"], held(found["checks"])),
        "",
        "`python bench/metrics.py`",
        "",
    ]


def fixing() -> list[str]:
    found = figures("quality")
    summary, methods = found["summary"], ("base", "trueup", "mcgrad", "isotonic", "refit")
    rows = []
    for measured, title in (
        ("log_loss", "log loss"),
        ("sigma", "multicalibration error, mcgrad's measure (sigma)"),
        ("sigma_ours", "multicalibration error, trueup's measure (sigma)"),
    ):
        each = summary[measured]
        rows.append([title, "mean", *(f"{each['mean'][name]:.4f}" for name in methods)])
        rows.append(["", "mean rank", *(f"{each['mean rank'][name]:.2f}" for name in methods)])
        better = each["better than"]
        rows.append(["", "trueup is better", *("" if name == "trueup" else f"{better[name]:.0%}" for name in methods)])
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
        f"{len(found['cases'])} cases of real data: four data sets, three base models and a real score, up to five seeds; "
        "calibration rows that no base model saw, measured on test rows. Refit is LightGBM trained anew on features and "
        "score, the better of two shapes. MCGrad with its defaults, which were chosen on these data sets.",
        "",
        *table(["", "", *methods], rows),
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


def fixing_speed() -> list[str]:
    found = figures("mcgrad")
    peer, ours = found["peer"], found["ours"]
    rows = [
        [name, f"{one['rows']:,}", f"{one['mcgrad']:.2f}", f"{one['trueup']:.2f}", f"{one['times faster']:.1f}"]
        for name, one in found["real"].items()
    ]
    return [
        "## Speed of the fix",
        "",
        "200,000 simulated rows x 12 features, two threads each, both with their defaults, in one run: mcgrad 0.1.5 fits "
        f"in {peer['fit']:.1f} s, scores 100,000 rows in {peer['batch']:.2f} s and one in {peer['one'] * 1e3:.1f} ms; "
        f"trueup fits in {ours['fit']:.1f} s ({ours['trees']:,} trees), scores them in {ours['frame']:.3f} s from a frame "
        f"and {ours['table']:.3f} s from a Table, and one in {ours['one'] * 1e6:.0f} microseconds.",
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


def page() -> str:
    """Put the page together."""
    head = [
        "# Evidence",
        "",
        "Measured, each by one command, on the machine the results name. `bench/results/` has all figures.",
        "",
    ]
    return "\n".join([*head, *false_alarms(), *power(), *speed(), *bounds(), *measures(), *fixing(), *fixing_speed()])


if __name__ == "__main__":
    PAGE.write_text(page())
