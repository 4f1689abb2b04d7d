"""The summary that opens docs/evidence.md: claim, figure, peer, command. One line per claim, those we miss included."""

from __future__ import annotations

from typing import Any

from evidence_papers import lore_gaps
from pages import figures, measured, table


def _null() -> list[str]:
    found = figures("null")
    worst = max(share for cell in found["cells"] for share in (cell["shares"]["holm"], cell["shares"]["max"]) if share)
    peer = found.get("mcgrad")
    compared = f"mcgrad 0.1.5: {peer['fired'] / peer['repetitions']:.0%}" if peer else ""
    return [
        f"Calibrated models are called miscalibrated in at most 5% of audits, up to chance, {len(found['cells'])} settings",
        f"worst {worst:.1%}",
        compared or "the level, 5%",
    ]


def _clusters() -> list[str]:
    alarms = figures("clusters")["alarms"].values()
    worst, plain = (max(cell[name] for cell in alarms) for name in ("clusters", "plain"))
    return ["The same for customers with many rows, `cluster=`", f"worst {worst:.1%}", f"without it: {plain:.0%}"]


def _amounts() -> list[str]:
    cells = figures("real_outcomes")["cells"]
    worst, own = (max(cell[name] for cell in cells) for name in ("alarm", "own"))
    return ["The same for skewed amounts and counts", f"worst {worst:.1%}", f"t test per segment: {own:.0%}"]


def _material() -> list[str]:
    worst = max(cell["material"]["value"] for cell in figures("materiality")["alarms"].values())
    return [
        "An error exactly at the tolerance is called material in at most 5% of audits",
        f"worst {worst:.1%}",
        "the level, 5%",
    ]


def _monitor() -> list[str]:
    found = figures("monitor")
    worst = max(found["calibrated"], key=lambda cell: cell["share"])
    return [
        f"A monitor of a calibrated stream looked at every week ever alarms in at most 5%, {worst['looks']:,} looks",
        f"worst {worst['alarms']} of {worst['runs']}",
        f"by the order in which outcomes arrive: {found['delays']['arrival']:.0%}",
    ]


def _power() -> list[str]:
    cell = figures("power")["cells"][0]
    return [
        f"A category with 5% of 20,000 rows that is off by 1 logit is found among {cell['segments']:.0f} segments",
        f"{cell['found']['value']:.0%}",
        f"exact test of that segment alone: {cell['exact']:.0%}",
    ]


def _audit() -> list[str]:
    checks = figures("audit")["checks"]
    return [
        "An audit of 100,000 rows x 12 columns at depth 2",
        f"{checks['depth 2, times faster']['value']:.0f} times faster, "
        f"{checks['times the segments']['value']:.0f} times the segments at depth 3",
        "mcgrad 0.1.5",
    ]


def _better(measure: str, title: str, bar: str) -> list[str]:
    found = figures("quality")["summary"]
    shares = [f"{some['cases']} cases: {some[measure]['better than']['mcgrad']:.0%}" for some in found.values()]
    unseen = f", of which unseen data, {shares[1]}" if len(shares) > 1 else ""
    return [f"{title} below mcgrad's (aim {bar})", shares[0] + unseen, "mcgrad 0.1.5"]


def _quality() -> list[str]:
    return _better("log_loss", "`MCGrad`: log loss of test rows", "92%")


def _multicalibration() -> list[str]:
    return _better("sigma", "`MCGrad`: multicalibration error, by mcgrad's measure,", "80%")


def _fit_speed() -> list[str]:
    found = figures("mcgrad")
    real = [f"{one['times faster']:.1f}" for one in found.get("real", {}).values()]
    return [
        f"`MCGrad`: fit of {found['rows']:,} rows x 12 features (aim 8 times faster), of real data (aim 4)",
        f"{found['peer']['fit'] / found['ours']['fit']:.1f} times faster" + (f"; {', '.join(real)}" if real else ""),
        "mcgrad 0.1.5",
    ]


def _one_row() -> list[str]:
    found = figures("mcgrad")
    return [
        "`MCGrad`: score one row",
        f"{found['ours']['one'] * 1e6:.0f} microseconds",
        f"mcgrad 0.1.5: {found['peer']['one'] * 1e6:,.0f}",
    ]


def _harm() -> list[str]:
    rows = figures("harm")["calibrated"]
    changed = max(row["changed"] for row in rows)
    return [
        f"`MCGrad` and other methods with defaults change calibrated scores in at most 5% of fits ({len(rows)} settings)",
        f"worst {changed:.1%}",
        "the level, 5%",
    ]


def _rare() -> list[str]:
    found = figures("harm")
    shares = [check["value"] for name, check in found["checks"].items() if name.endswith("share corrected")]
    theirs = min(row["mcgrad"]["corrected"] for row in found["rare"])
    return [
        "`MCGrad` corrects an error shared by rare levels (20 to 100 rows each; aim 85%)",
        f"at least {min(shares):.0%}",
        f"mcgrad 0.1.5: at least {theirs:.0%} in single samples",
    ]


def _classes() -> list[str]:
    found = figures("classes")
    value = found["checks"]["standard errors of MatrixScaling and Auto above the best of probmetrics"]["value"]
    return [
        "Several classes: `MatrixScaling` and `Auto` at most 2 standard errors above the best method of the peer",
        f"worst {value:.1f}",
        "probmetrics 1.3.0",
    ]


def _measures() -> list[str]:
    checks = figures("metrics")["checks"]
    return [
        "Smooth and binned calibration error, the same values",
        f"{checks['smooth_ece, times faster than relplot']['value']:.0f} and "
        f"{checks['ece, times faster than netcal']['value']:.1f} times faster",
        "relplot, netcal",
    ]


def _lsboost() -> list[str]:
    found = figures("lsboost")
    ratios = [value["value"] for name, value in found["checks"].items() if name.startswith("time ratio")]
    text = f"{min(ratios):.0f} to {max(ratios):.0f} times faster than exact trees"
    if "stumps" in found:
        own = [level["ratio"] for level in found["stumps"]["levels"].values()]
        text += f", {min(own):.1f} to {max(own):.1f} than histogram stumps"
    return [f"`LSBoost`: {found['times'][0]['learners'] if isinstance(found['times'], list) else '1,000'} weak learners",
            text, "scikit-learn; LightGBM"]  # fmt: skip


def _local() -> list[str]:
    checks = figures("local")["checks"]
    ratios = [value["value"] for name, value in checks.items() if "times faster" in name]
    return [
        "Local calibration error of 25,000 rows in 50 dimensions, exact",
        f"{min(ratios):.0f} to {max(ratios):.0f} times faster",
        "distances of torch and scipy alone",
    ]


def _costs() -> list[str]:
    checks = figures("decide")["checks"]
    least = min(value["value"] for name, value in checks.items() if name.startswith("least coverage"))
    title = "90% intervals for the cost of a threshold without labels"
    return [title, f"hold in at least {least:.1%} of samples", "the level, 90%"]


def _roc() -> list[str]:
    found = figures("roc")
    pooled, panels = found["pooled"]["roc"], sum(len(models) for models in found["panels"].values())
    return [
        f"Limits at {found['level']:.0%} for ROC curves without labels contain the entire curve, {panels} models",
        f"in {pooled['all inside']:.0%} of repetitions",
        f"limits of the paper of 2017, by c_emp: {pooled['all inside by scores alone']:.0%}",
    ]


def _savings() -> list[str]:
    models = figures("agnostic")["models"]
    missed = [name for name, one in models.items() if not one["reproduced"]]
    return [
        "Isotonic regression reduces costs as published (Figure 3 of 2017)",
        f"{len(models) - len(missed)} of {len(models)} models" + (f"; **not** {', '.join(missed)}" if missed else ""),
        "published reductions",
    ]


def _depth_two() -> list[str]:
    outcomes = figures("depthtwo")["comparison"]["outcomes"].values()
    lower, alike, higher = (sum(one["worst K1"][at] for one in outcomes) for at in range(3))
    return [
        "`DepthTwo`, fitted once: error of the worst group at any number of levels",
        f"lower in {lower}, alike in {alike}, higher in {higher} of {lower + alike + higher} comparisons",
        "`HKRR` and `LSBoost`, fitted for that number of levels",
    ]


def _lore() -> list[str]:
    published, ours = lore_gaps(figures("crime"))
    return [
        "`LoRe`: error of the worst group below that of other methods (Table 1 of 2022)",
        f"{ours:+.3f} from the best other" + ("; **not** reproduced" if ours > published / 2 else ""),
        f"published: {published:+.3f}",
    ]


def _scale() -> list[str]:
    found = figures("scale")
    last = found["audits"][-1]
    return [
        f"An audit of {last['million_rows']} million rows x 10 columns in {found['memory']} on "
        f"{found['machine']['cores']} cores",
        f"{last['seconds']:.0f} s, peak {last['peak_bytes'] / 1e9:.1f} GB",
        "no peer measured",
    ]


CLAIMS: tuple[tuple[str, Any], ...] = (
    ("null", _null), ("clusters", _clusters), ("real_outcomes", _amounts), ("materiality", _material),
    ("monitor", _monitor), ("power", _power),
    ("audit", _audit), ("quality", _quality), ("quality", _multicalibration), ("mcgrad", _fit_speed), ("mcgrad", _one_row),
    ("harm", _harm), ("harm", _rare), ("classes", _classes), ("metrics", _measures), ("lsboost", _lsboost),
    ("local", _local), ("decide", _costs), ("roc", _roc), ("agnostic", _savings),
    ("depthtwo", _depth_two), ("crime", _lore), ("scale", _scale),
)  # fmt: skip


def summary() -> list[str]:
    """One line per claim whose benchmark has been run."""
    rows = []
    for bench, claim in CLAIMS:
        try:
            rows.append([*claim(), f"`bench/{bench}.py`"])
        except FileNotFoundError:
            continue
    return table(["claim", "measured", "compared with", "command"], rows)


def quick_time() -> str:
    """Return how long all quick versions took, in brackets, if a run of all was recorded (run.py)."""
    if not measured("run"):
        return ""
    run = figures("run")
    minutes, busy = run["seconds"] / 60, run["cpu_seconds"] / 60
    return f" (measured: {minutes:.0f} minutes on {run['cores']} cores, {busy:.0f} CPU minutes)"
