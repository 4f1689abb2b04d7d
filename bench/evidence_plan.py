"""The section of docs/evidence.md on plans and detectable shifts."""

from __future__ import annotations

from typing import Any

from pages import figures, held, table


def _grid(cells: list[dict[str, Any]], rows: str, value: str) -> tuple[list[str], list[list[str]]]:
    """Return headings and rows of a table of one figure by prevalence and ``rows``, with a column per level."""
    levels = sorted({cell["level"] for cell in cells}, reverse=True)
    known = {(cell["prevalence"], cell[rows], cell["level"]): shown(cell, value) for cell in cells}
    lines = [
        [f"{first:g}", f"{second:,g}", *(known.get((first, second, level), "-") for level in levels)]
        for first, second in dict.fromkeys((cell["prevalence"], cell[rows]) for cell in cells)
    ]
    return [f"level {level:g}" for level in levels], lines


def shown(cell: dict[str, Any], value: str) -> str:
    """Write the power of a cell with its other figure."""
    other = f"{cell['rows']:,} rows" if value == "rows" else f"{cell['plain']:.2f}"
    return f"{cell['power']:.3f} ({other})"


def plans() -> list[str]:
    """Show the simulated power of planned rows, of detectable shifts and of monitors."""
    found = figures("plan")
    audits, audit_rows = _grid(found["audits"], "ratio", "rows")
    shifts, shift_rows = _grid(found["mde"], "rows", "plain")
    monitors = [
        [
            f"{cell['prevalence']:g}", f"{cell['ratio']:g}", f"{cell['level']:.2g}",
            "the start" if cell["change"] is None else f"week {cell['change']}", f"{cell['audit_rows']:,.0f}",
            f"{cell['rows']:,.0f}", f"{cell['power']:.2f}", f"{cell['mean_rows']:,.0f}", f"{cell['delay_mean']:,.0f}",
        ]
        for cell in found["monitors"]
    ]  # fmt: skip
    clusters = [
        [f"{cell['prevalence']:g}", f"{cell['icc']:g}", f"{cell['rows']:,}", f"{cell['power']:.2f}"]
        for cell in found["clusters"]
    ]
    return [
        "## Plans",
        "",
        "Rows that `tu.plan` states for 80% power, and the share of simulations in which an audit of a segment of that "
        f"size finds the error, {found['repetitions']:,} repetitions per cell (rows in brackets). Scores have normal "
        f"logits with standard deviation {found['spread']:g}.",
        "",
        *table(["prevalence", "observed/expected", *audits], audit_rows),
        "",
        "Segments shifted by the `mde` of their sums: the share found, and in brackets that of the shift x*/W + 0.84 "
        "sigma, which takes the noise of calibrated outcomes. The bars are for at least 5 expected outcomes.",
        "",
        *table(["prevalence", "rows", *shifts], shift_rows),
        "",
        f"Monitors of one segment, {max(found['repetitions'] // 4, 100):,} repetitions: rows that an audit needs, rows "
        "planned for an alarm with 80% power and the share that has raised it by then, planned and simulated rows until "
        "the alarm on average. Rows are those of the segment since the error began.",
        "",
        *table(
            ["prevalence", "observed/expected", "level", "error from", "audit", "planned", "found", "planned mean", "mean"],
            monitors,
        ),
        "",
        f"Audits of all rows in clusters of {found['cluster']}, observed/expected 1.25, at 5%, "
        f"{max(found['repetitions'] // 20, 20):,} repetitions; with two dozen clusters the check of their own variance "
        "costs power:",
        "",
        *table(["prevalence", "icc", "rows", "found"], clusters),
        "",
        *table(["figure", "measured", "bar", "holds"], held(found["checks"])),
        "",
        f"`python bench/plan.py --repetitions {found['repetitions']}`",
        "",
    ]
