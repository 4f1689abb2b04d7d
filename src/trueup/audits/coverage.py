"""What an audit could test, and what was asked of it: an audit that tested less does not pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trueup.audits import text

if TYPE_CHECKING:
    from trueup.audits.result import Audit


def count_segments(audit: Audit) -> int:
    """Return the number of segments that have rows, tested or not."""
    enough = int((audit.columns["n"] >= audit.settings.min_rows).sum())
    return max(len(audit), enough + audit.thin)


def unmet_requirements(audit: Audit) -> list[str]:
    """Return which requirements of the settings, on the number of segments and rows, an audit does not meet."""
    settings, reasons = audit.settings, []
    asked = settings.min_tested
    if isinstance(asked, int) and audit.tested < asked:
        which = "1 segment was tested" if audit.tested == 1 else f"{audit.tested:,} segments were tested"
        reasons.append(f"{which}, fewer than the {asked:,} required")
    if isinstance(asked, str):
        total = count_segments(audit)
        if 100 * audit.tested < float(asked.removesuffix("%")) * total:
            which = f"{audit.tested:,} of {total:,} segments {'was' if audit.tested == 1 else 'were'} tested"
            reasons.append(f"{which}, less than the {asked} required")
        elif audit.dropped:
            reasons.append(f"combinations were left out, so the share tested is not known; {asked} is required")
    if settings.min_rows_total is not None and audit.rows < settings.min_rows_total:
        which = "1 row has an outcome" if audit.rows == 1 else f"{audit.rows:,} rows have outcomes"
        reasons.append(f"{which}, fewer than the {settings.min_rows_total:,} required")
    return reasons


def find_shortfalls(audit: Audit) -> list[str]:
    """Return why an audit that finds nothing shows too little for the scores to pass; empty if they pass."""
    reasons = []
    if audit.untestable or not audit.tested:
        reasons.append(text.nothing_tested(audit))
    elif text.has_large_untested(audit) and (untested := text.largest_untested(audit)) is not None:
        share = text.format_share(untested.share)
        reasons.append(f"{text.shorten(untested.segment, 200)}, {share} of rows, could not be tested")
    if audit.cross_fitted:
        reasons.append("the scores are held-out predictions of a cross-fit, of which an audit is nearly blind")
    return [*reasons, *unmet_requirements(audit)]
