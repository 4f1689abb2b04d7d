"""What an audit says of itself, in a terminal and in a notebook."""

from __future__ import annotations

import html
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trueup.audits.result import Audit, Finding

ADJUSTMENTS = {"holm": "Holm", "bh": "Benjamini-Hochberg", "by": "Benjamini-Yekutieli", "max": "max"}
HEADINGS = ("segment", "rows", "observed", "expected", "obs/exp", "95% interval", "sigma", "adjusted p")
WIDEST_NAME = 48
HUNDREDTH = (0.007, 0.014)  # observed / expected where scores below 1 were meant as percent


def number(value: float, digits: int = 3) -> str:
    """Write a number for people.

    Examples
    --------
    >>> number(0.12345), number(1234.5), number(0.009996), number(float("nan")), number(2e-17), number(float("inf"))
    ('0.123', '1230', '0.0100', '-', '2e-17', 'inf')
    """
    if math.isnan(value):
        return "-"
    rounded = float(f"{value:.{digits}g}")
    if rounded != 0 and 1e-4 <= abs(rounded) < 1e7:
        return f"{rounded:.{max(0, digits - 1 - math.floor(math.log10(abs(rounded))))}f}"
    return f"{value:.{digits}g}"


def shorten(name: str, width: int = WIDEST_NAME) -> str:
    """Cut a long segment text in the middle, on one line and without control characters."""
    clean = "".join(letter if letter.isprintable() else "·" for letter in name)
    return clean if len(clean) <= width else f"{clean[: width // 2 - 1]}…{clean[-(width // 2) :]}"


def how_far(finding: Finding) -> str:
    """Say how far a segment is off: as a ratio where that has a meaning, else as a difference.

    Where the mean hides most of the error, too high at some scores and too low at others, say that instead.
    """
    ratio = math.isfinite(finding.ratio) and finding.expected > 0
    mean = f"observed/expected {finding.ratio:.2f}" if ratio else f"observed minus expected {finding.bias:+.3g}"
    if abs(finding.bias) >= 0.5 * finding.ecce:
        return mean
    by_score = f"off by score (ecce {number(finding.ecce, 2)})"
    mean_is_off = finding.ratio_low > 1 or finding.ratio_high < 1  # though less than the scores
    return f"{mean}, more {by_score}" if mean_is_off else f"right on average, {by_score}"


def family(audit: Audit, found: str = "") -> str:
    """Say how many of how many segments are off, at which level and how adjusted; ``found`` goes before the level."""
    level = f"{audit.settings.alpha:.3g}" if audit.settings.alpha < 0.001 else f"{100 * audit.settings.alpha:g}%"
    words = ["segments", *([found] if found else []), "at", level, f"({ADJUSTMENTS[audit.settings.adjust]})"]
    return f"{audit.rejected:,} of {audit.tested:,} {' '.join(words)}"


def least_rows(audit: Audit) -> int:
    """Say how many rows a segment needs to be tested: real outcomes need some to have a variance."""
    from trueup.audits.findings import MIN_REAL_ROWS

    return max(audit.settings.min_rows, MIN_REAL_ROWS if audit.schema.task == "regression" else 1)


def can_be(audit: Audit, shift: float, expected: float) -> bool:
    """Say whether a mean can be off by so much: a rate lies between 0 and 1."""
    return audit.schema.task == "regression" or shift <= max(expected, 1 - expected)


def verdict(audit: Audit) -> str:
    """Answer in one sentence."""
    if not audit.tested:
        return f"nothing could be tested: no segment has {least_rows(audit):,} rows"
    worst = audit.finding(0)
    start = "miscalibrated" if audit.miscalibrated else "no miscalibration found"
    return f"{start}: {family(audit)}, worst {shorten(worst.segment, 200)}: {how_far(worst)}"


def finding_line(finding: Finding) -> str:
    """Say the most of one segment on one line."""
    interval = f"{number(finding.ratio_low)} to {number(finding.ratio_high)}"
    tail = f"adjusted p {number(finding.p_adjusted, 2)}" if finding.testable else finding.note
    return (
        f"<{shorten(finding.segment, 80)}: {finding.n:,} rows, observed {number(finding.observed)}, "
        f"expected {number(finding.expected)}, ratio {number(finding.ratio)} ({interval}), "
        f"{number(finding.sigma)} sigma, {tail}>"
    )


def table_rows(findings: list[Finding]) -> list[tuple[str, ...]]:
    """Write the cells of the table of findings."""
    return [
        (
            finding.segment,
            f"{finding.n:,}",
            number(finding.observed),
            number(finding.expected),
            number(finding.ratio),
            f"{number(finding.ratio_low)} to {number(finding.ratio_high)}",
            number(finding.sigma),
            number(finding.p_adjusted, 2) if finding.testable else "not tested",
        )
        for finding in findings
    ]


def headings(audit: Audit) -> tuple[str, ...]:
    """Name the columns of the table; the interval by its level."""
    return tuple(f"{100 * (1 - audit.settings.alpha):g}% interval" if "%" in name else name for name in HEADINGS)


def notes(audit: Audit) -> list[str]:
    """Say what the numbers do not show: what was set aside, dropped, too thin, and what could have been found."""
    lines = []
    if audit.schema.task == "binary" and HUNDREDTH[0] <= audit.overall.ratio <= HUNDREDTH[1]:
        lines.append("observed is about a hundredth of expected: are the predictions percentages?")
    if audit.tested and not audit.miscalibrated:
        whole = audit.overall
        if not math.isnan(whole.mde):
            told = can_be(audit, whole.mde, whole.expected)
            shift = f"a shift of {number(whole.mde, 2)}" if told else "too few rows: no shift"
            lines.append(f"{shift} over all rows would have been found with 80% power")
    if audit.thin:
        has = " has" if audit.thin == 1 else "s have"
        lines.append(f"too thin to tell: {audit.thin:,} segment{has} fewer than {audit.settings.min_rows:,} rows")
    if audit.dropped:
        shown = ", ".join(shorten(name) for name in audit.dropped[:3]) + (", ..." if len(audit.dropped) > 3 else "")
        lines.append(
            f"left out to stay within {audit.settings.max_cells:,} cells: {len(audit.dropped):,} combinations ({shown})"
        )
    lines += [f"column {shorten(name)} left out: {reason}" for name, reason in audit.left_out.items()]
    if audit.unlabelled:
        lines.append(f"{audit.unlabelled:,} rows without an outcome were set aside")
    if audit.weightless:
        lines.append(f"{audit.weightless:,} rows of weight 0 were left out")
    if audit.settings.adjust == "bh":
        lines.append(
            "Benjamini-Hochberg assumes positive dependence, which overlapping segments do not promise; 'by' does not"
        )
    return lines


def audit_page(audit: Audit, count: int = 8) -> str:
    """Write the verdict, the worst segments and the notes for a terminal."""
    rows = [headings(audit), *table_rows(_shown(audit, count))]
    rows = [(shorten(row[0]), *row[1:]) for row in rows]
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(w) if at == 0 else cell.rjust(w) for at, (cell, w) in enumerate(zip(row, widths, strict=True)))
        for row in rows
    ]
    return "\n".join([audit.verdict, "", *lines, "", *notes(audit)]).rstrip()


def _shown(audit: Audit, count: int) -> list[Finding]:
    """Give the worst segments, and the whole if it is not among them."""
    worst = audit.worst(count)
    return worst if any(f.segment == audit.overall.segment for f in worst) else [*worst, audit.overall]


def audit_html(audit: Audit, count: int = 10) -> str:
    """Write the same for a notebook: nothing but elements and their looks, readable on light and on dark."""
    cell = "padding:3px 9px;border-bottom:1px solid rgba(128,128,128,.3);background:none;color:inherit;text-align:{}"
    left, right = (f' style="{cell.format(side)}"' for side in ("left", "right;white-space:nowrap"))
    head = "".join(
        f"<th scope=col{right if at else left}>{html.escape(name)}</th>" for at, name in enumerate(headings(audit))
    )
    shown = _shown(audit, count)
    body = []
    for finding, row in zip(shown, table_rows(shown), strict=True):
        off = finding.testable and finding.p_adjusted <= audit.settings.alpha
        name = f"<bdi>{html.escape(shorten(row[0], 200))}</bdi>"
        cells = [html.escape(shorten(text, 200)) for text in row[1:-1]]
        last = f"<b>{html.escape(row[-1])} (off)</b>" if off else html.escape(row[-1])
        body.append(
            f'<tr><th scope=row{left[:-1]};font-weight:normal">{name}</th>'
            + "".join(f"<td{right}>{text}</td>" for text in (*cells, last))
            + "</tr>"
        )
    below = "".join(f"<li>{html.escape(note)}</li>" for note in notes(audit))
    told = f"<ul>{below}</ul>" if below else ""
    return (
        f'<div><p><strong>{html.escape(audit.verdict)}</strong></p><div style="overflow-x:auto">'
        f'<table style="border-collapse:collapse;color:inherit;font-variant-numeric:tabular-nums">'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table></div>{told}</div>"
    )
