"""What opens under a row of the table: curves and figures as compact data, drawn by the script of the page."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.audits.text import deviation, number, shorten
from trueup.reports.drawing import axes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trueup._types import FloatArray
    from trueup.audits.result import Audit, Finding
    from trueup.reports.profiles import Words

HARMFUL = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}


def safe_json(value: Any) -> str:
    r"""Write JSON that can stand in a page: in ASCII, and without the letters that could end or open an element.

    Examples
    --------
    >>> safe_json(["</script>"])
    '["\\u003c/script\\u003e"]'
    """
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return "".join(HARMFUL.get(letter, letter) for letter in text) if any(letter in text for letter in HARMFUL) else text


def details(audits: Mapping[str, Audit], findings: Sequence[Sequence[Finding | None]], words: Words) -> str:
    """Write what the script needs: for each row of the table the figures and the curve of each audit."""
    results = list(audits.values())
    real = any(audit.schema.task == "regression" for audit in results)
    level = f"{100 * (1 - results[0].settings.alpha):g}%"
    counts = [] if real else [f"{words.outcomes}, observed", f"{words.outcomes}, expected"]
    labels = [
        words.rows, *counts, words.observed, words.expected, "observed/expected", f"{level} interval", "sigma",
        "p-value", "adjusted p", "detectable", "note",
    ]  # fmt: skip
    rows = [[None if f is None else [_figures(f, real=real), _curve(f)] for f in found] for found in findings]
    told = {
        "names": [name if len(audits) > 1 else "" for name in audits],
        "real": real,
        "axes": axes(words),
        "segments": words.segments,
        "labels": labels,
        "level": level,
        "rows": rows,
    }
    return safe_json(told)


def _figures(finding: Finding, *, real: bool) -> list[str]:
    sums = [] if real else [_count(finding.weight * finding.observed), _count(finding.weight * finding.expected)]
    most = math.inf if real else max(finding.expected, 1 - finding.expected)  # a rate lies between 0 and 1
    shift = f"a shift of {number(finding.mde, 2)} or more" if finding.mde <= most else "no shift"
    shift = "" if math.isnan(finding.mde) else shift
    return [
        f"{finding.n:,}", *sums, number(finding.observed, 4), number(finding.expected, 4), number(finding.ratio),
        f"{number(finding.ratio_low)} to {number(finding.ratio_high)}", deviation(finding.sigma, finding.sigma_bound),
        number(finding.p_value, 2), number(finding.p_adjusted, 2), shift, shorten(finding.note, 200),
    ]  # fmt: skip


def _count(value: float) -> str:
    if not math.isfinite(value):
        return number(value)
    return f"{value:,.0f}" if abs(value) >= 100 or abs(value - round(value)) < 1e-6 else f"{value:,.1f}"


def _curve(finding: Finding) -> list[list[float | None]] | None:
    """Give predicted, observed, its limits and the rows of each bin, rounded to what a drawing shows.

    None is a curve that was not kept; one without bins is empty.
    """
    curve = finding.curve
    if curve is None:
        return None
    if not len(curve):
        return []
    parts = (curve.predicted, curve.observed, curve.low, curve.high)
    digits = _digits(np.concatenate(parts[:2]))
    return [*(_rounded(part, digits) for part in parts), curve.rows.tolist()]


def _digits(values: FloatArray) -> int:
    """Say how many digits tell values apart in a drawing: more than four where they are large and lie close.

    Examples
    --------
    >>> _digits(np.array([0.1, 0.7])), _digits(np.array([2021.2, 2021.7])), _digits(np.array([5.0, 5.0]))
    (4, 7, 4)
    """
    known = values[np.isfinite(values)]
    span = float(np.ptp(known)) if len(known) else 0.0
    return min(4 + max(math.floor(math.log10(float(np.abs(known).max()) / span)), 0), 16) if span > 0 else 4


def _rounded(values: FloatArray, digits: int) -> list[float | None]:
    return [float(f"{value:.{digits}g}") if math.isfinite(value) else None for value in values.tolist()]
