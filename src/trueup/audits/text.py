"""Text of an audit for terminals and notebooks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.audits import materiality
from trueup.data.values import format_rows
from trueup.errors import ClusterWarning
from trueup.metrics.reliability import error_ranges

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trueup._types import BoolArray, FloatArray
    from trueup.audits.materiality import Tolerance
    from trueup.audits.result import Audit, Finding
    from trueup.metrics.reliability import ErrorRange

ADJUSTMENTS = {"holm": "Holm", "bh": "Benjamini-Hochberg", "by": "Benjamini-Yekutieli", "max": "max"}
HEADINGS = ("segment", "rows", "observed", "expected", "obs/exp", "95% interval", "excess", "adjusted p")
CROSS_FITTED = (
    "these scores are held-out predictions of a cross-fit, whose errors cancel within groups: an audit of them is nearly "
    "blind; audit rows that were not used for the fit"
)
FEW_NONZERO = "most outcomes are zero, more than the scores explain, and fewer than 10 are not"
MAX_NAME_WIDTH = 48
MAX_UNTESTED_SHARE = 0.1  # of the rows, in one segment that could not be tested
MAX_PLAIN_COUNT = 1e13  # amounts of money are sums over many rows
PERCENT_RATIOS = (0.007, 0.014)  # observed / expected if predictions below 1 are percentages


def number(value: float, digits: int = 3) -> str:
    """Format a number with a few significant digits.

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


def shorten(name: str, width: int = MAX_NAME_WIDTH) -> str:
    """Return a name on one line, without control characters, shortened in the middle to at most ``width`` characters."""
    clean = "".join(letter if letter.isprintable() else "·" for letter in name)
    return clean if len(clean) <= width else f"{clean[: width // 2 - 1]}…{clean[-(width // 2) :]}"


def significance_level(alpha: float) -> str:
    """Format the level of a test, such as "5%"."""
    return f"{alpha:.3g}" if alpha < 0.001 else f"{100 * alpha:g}%"


def describe_error(finding: Finding) -> str:
    """Describe the mean calibration error of a segment: as a ratio if that is meaningful, else as a difference.

    If the error is significant, and the mean hides most of it, too high at some scores and too low at others, the text
    states this, with the size unless `describe_scores` does.
    """
    has_ratio = math.isfinite(finding.ratio) and finding.expected > 0
    mean = f"observed/expected {finding.ratio:.2f}" if has_ratio else f"observed minus expected {finding.bias:+.3g}"
    if not is_hidden_by_mean(finding):
        return mean
    by_score = "" if describe_scores(finding) else f"errors varying with the score, ecce {number(finding.ecce, 2)}"
    if finding.ratio_low > 1 or finding.ratio_high < 1:
        return f"{mean}, with larger {by_score}" if by_score else mean
    return f"{mean}, within noise on average{f', {by_score}' if by_score else ''}"


def _is_significant(finding: Finding) -> bool:
    return finding.state not in (materiality.NOT_DETECTED, materiality.NOT_TESTABLE)


def is_hidden_by_mean(finding: Finding) -> bool:
    """Return whether an error is significant, and errors at some scores are more than twice that of the mean."""
    return _is_significant(finding) and abs(finding.bias) < 0.5 * finding.ecce


def varying_ranges(finding: Finding) -> list[ErrorRange]:
    """Return the score ranges of a significant error that varies with the score; none if its curve is not known.

    Errors vary if some scores are too low and others too high, if the mean hides most of the error, or if some scores have
    nearly all of it.
    """
    if finding.curve is None or not _is_significant(finding):
        return []
    ranges = error_ranges(finding.curve)
    some = any(math.isfinite(end) for found in ranges for end in (found.low, found.high))  # else they are all scores
    return ranges if some else []


def describe_scores(finding: Finding) -> str:
    """State which scores are too low or too high, with the excess there, if the error varies with the score; else "".

    For example "scores too high below 0.12 (40 fewer than expected) and too low above (52 more)".
    """
    parts: list[str] = []
    ranges = varying_ranges(finding)
    for low, high, excess, *_ in ranges:
        where = f"from {number(low, 2)} to {number(high, 2)}"
        if math.isinf(low) or math.isinf(high):
            again = parts and len(ranges) == 2 and low == ranges[0].high
            where = f"below {number(high, 2)}" if math.isinf(low) else "above" if again else f"above {number(low, 2)}"
        size = format_excess(excess) if not parts else format_excess(excess).removesuffix(" than expected")
        parts.append(f"too {'low' if excess > 0 else 'high'} {where} ({size})")
    return f"scores {' and '.join([', '.join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)}" if parts else ""


def score_lines(findings: Iterable[Finding], known: str = "") -> list[str]:
    """Return what `describe_scores` states about each of some findings, unless the text ``known`` contains it."""
    texts = [(finding.segment, describe_scores(finding)) for finding in findings]
    return [f"{shorten(name)}: {line}" for name, line in texts if line not in known]


def certain_size(finding: Finding, tolerance: Tolerance | None = None) -> float:
    """Return how far observed / expected certainly is from 1, as a factor of at least 1, by its simultaneous interval.

    With the ``tolerance`` it is 1 for an error that is material, but not by its mean.
    """
    if not math.isfinite(finding.ratio) or finding.expected <= 0:
        return 1.0
    if tolerance is not None and is_material_by_range(finding, tolerance):
        return 1.0
    low, high = finding.ratio_low_adjusted, finding.ratio_high_adjusted
    return max(1.0, low if low > 1 else (1.0 / high if 0 < high < 1 else 1.0))


def percent_off(ratio: float) -> str:
    """Format how far observed/expected is from 1, as tolerances are stated: both 1.25 and 1/1.25 are "25%".

    It is rounded towards 0, to two significant digits, so that an error of at least this size remains one.
    """
    if not 0 < ratio < math.inf:
        return "-"
    percent = 100 * (max(ratio, 1 / ratio) - 1)
    if percent < 1e-4:
        return "0%"
    scale = 10.0 ** max(1 - math.floor(math.log10(percent)), 0)
    return f"{math.floor(percent * scale + 1e-9) / scale:,.12g}%"


def certain_ratios(audit: Audit) -> FloatArray:
    """Return the end of the simultaneous interval of observed/expected that is closer to 1 of every segment.

    It is 1 if the interval contains 1, or is not known.
    """
    low, high = audit.derived["ratio_low_adjusted"], audit.derived["ratio_high_adjusted"]
    known = (audit.columns["expected"] > 0) & np.isfinite(audit.columns["ratio"])
    with np.errstate(invalid="ignore"):
        return np.select([known & (low > 1), known & (high < 1) & (high > 0)], [low, high], 1.0)


def largest_certain_error(audit: Audit) -> tuple[str, str]:
    """Return the largest certain error of the mean among all significant segments, such as "12%", and its segment.

    Both are empty if the interval of every segment contains 1.
    """
    ratios = certain_ratios(audit)[: audit.rejected]
    sizes = np.maximum(ratios, 1 / ratios)
    if not (sizes > 1).any():
        return "", ""
    rank = int(np.argmax(sizes))
    return percent_off(float(sizes[rank])), audit.keys.name(rank)


def describe_problem(finding: Finding, tolerance: Tolerance | None = None) -> str:
    """Describe the error of a problem with its certain size, excess events and share of the rows.

    If it is material by the range of cumulative differences, and not by its mean, the certain size is the ``tolerance``.
    """
    limit, scores = describe_limit(finding, tolerance), describe_scores(finding)
    scores = f", with {scores}" if scores else ""
    if tolerance is not None and is_material_by_range(finding, tolerance):
        limit = f"at some scores certainly off by more than {tolerance}"
    limit = f", {limit}" if limit else ""
    if is_hidden_by_mean(finding) and certain_size(finding, tolerance) == 1:
        return f"{describe_error(finding)}{limit} ({format_share(finding.share)} of rows){scores}"
    excess = f"{format_excess(finding.excess)} in {format_share(finding.share)} of rows"
    return f"{describe_error(finding)}{limit} ({excess}){scores}"


def describe_limit(finding: Finding, tolerance: Tolerance | None = None) -> str:
    """State the `certain_size` of an error as a limit of observed / expected, rounded towards 1: "certainly above 1.31"."""
    size = certain_size(finding, tolerance)
    if size == 1:
        return ""
    above = finding.ratio > 1
    decimals = max(2, -math.floor(math.log10(0.5 * (size - 1))))  # three for 1.008
    scale = 10.0**decimals
    limit = math.floor(scale * size + 1e-9) / scale if above else math.ceil(scale / size - 1e-9) / scale
    return f"certainly {'above' if above else 'below'} {limit:.{decimals}f}"


def is_material_by_range(finding: Finding, tolerance: Tolerance) -> bool:
    """Return whether a finding is material, though the interval of its mean is not outside the tolerance."""
    ratios = np.array([[finding.ratio_low_adjusted], [finding.ratio_high_adjusted]])
    return finding.state == materiality.MATERIAL and not tolerance.excludes(np.array([finding.expected]), ratios).any()


def format_excess(excess: float) -> str:
    """Format the sum of observed minus expected outcomes: "120 more than expected"."""
    size = abs(excess)
    amount = f"{size:,.0f}" if 100 <= size < MAX_PLAIN_COUNT else number(size, 2)
    return f"{amount} {'more' if excess > 0 else 'fewer'} than expected"


def signed_count(value: float) -> str:
    """Format a number of excess events with its sign, such as "+120" or "-2.5"."""
    return f"{value:+,.0f}" if 100 <= abs(value) < MAX_PLAIN_COUNT else f"{value:+.2g}"


def format_share(share: float) -> str:
    """Format a share of the rows, such as "12%" or "below 0.1%"."""
    return "below 0.1%" if share < 0.001 else f"{100 * share:.2g}%" if share < 0.995 else "100%"


def verdict(audit: Audit) -> str:
    """Return whether the scores are calibrated, in one sentence: how many segments are not, and the largest problem."""
    unmet = "; ".join(audit.unmet)
    if audit.untestable or not audit.tested:
        return f"{nothing_tested(audit)}{f'; {unmet}' if unmet else ''}"
    were = " of columns was" if len(audit.dropped) == 1 else "s of columns were"
    ending = f"; {len(audit.dropped):,} combination{were} not tested" if audit.dropped else ""
    ending += "; nearly blind: these are held-out scores of a cross-fit" if audit.cross_fitted else ""
    ending += f"; {dependence}" if (dependence := describe_dependence(audit)) else ""
    at = f"at {significance_level(audit.settings.alpha)} ({ADJUSTMENTS[audit.settings.adjust]})"
    if not audit.miscalibrated:
        tested = f"{audit.tested:,} segment{'' if audit.tested == 1 else 's'} tested {at}"
        if unmet:
            return f"{materiality.NOT_TESTABLE}: {unmet}; nothing found in {tested}{_name_untested(audit)}{ending}"
        return f"{materiality.NOT_DETECTED}: {tested}{_name_untested(audit)}{ending}"
    ending += f"; {unmet}" if unmet else ""
    problems, tolerance = audit.problems, audit.settings.tolerance
    distinct = f"{len(problems):,} distinct problem{'' if len(problems) == 1 else 's'}"
    worst = problems[0].finding
    largest = f"{largest_name(audit)} {shorten(worst.segment, 200)}: {describe_problem(worst, tolerance)}"
    if tolerance is None:
        count = f"{audit.rejected:,} of {audit.tested:,} segments {at}"
        size, _ = largest_certain_error(audit)
        count += f",{' some' if audit.rejected > 1 else ''} by {size} or more" if size else ""
        return f"{materiality.DETECTED}: {count}; {distinct}; {largest}{ending}"
    return f"{audit.state}: {', '.join(_count_states(audit, at))}; {distinct}; {largest}{ending}"


def nothing_tested(audit: Audit) -> str:
    """Return why an audit tested no segment."""
    from trueup.metrics.inference import MIN_CLUSTERS

    if audit.untestable:
        return f"{materiality.NOT_TESTABLE}: {audit.untestable}"
    clusters = f" in {MIN_CLUSTERS} effective clusters" if audit.clusters else ""
    reason = "; a few large clusters have most of the rows" if has_uneven_clusters(audit) else ""
    return f"nothing could be tested: no segment has {min_tested_rows(audit):,} rows{clusters}{reason}"


def largest_name(audit: Audit) -> str:
    """Return what the first of `Audit.problems` is called: "largest problem"; with the state if there are several."""
    states = {problem.finding.state for problem in audit.problems}
    return f"largest {audit.state} problem" if len(states) > 1 else "largest problem"


def _count_states(audit: Audit, at: str) -> list[str]:
    """Return how many segments are in each state, given a tolerance: "3 of 90 segments certainly beyond 10%", ..."""
    tolerance, tested = audit.settings.tolerance, f"of {audit.tested:,} segments"
    if audit.state == materiality.WITHIN_TOLERANCE:
        which = "the mean of each" if audit.rejected > 1 else "its mean"
        return [f"{audit.rejected:,} {tested} miscalibrated {at}", f"{which} certainly within {tolerance}"]
    counts = [f"{audit.count_state(materiality.MATERIAL):,} {tested} certainly beyond {tolerance} {at}"]
    if audit.state == materiality.POSSIBLE:
        counts = [f"{audit.rejected:,} {tested} miscalibrated {at}", f"none certainly beyond {tolerance}"]
    others = (materiality.POSSIBLE, "possibly"), (materiality.WITHIN_TOLERANCE, "within")
    return counts + [f"{count:,} {word}" for state, word in others if (count := audit.count_state(state))]


def min_tested_rows(audit: Audit) -> int:
    """Return the number of rows that a segment needs to be tested."""
    from trueup.audits.findings import MIN_REAL_ROWS

    return max(audit.settings.min_rows, MIN_REAL_ROWS if audit.schema.task == "regression" else 1)


def few_rows(audit: Audit) -> str:
    """Return why p-values of real outcomes are approximate; empty if they are not."""
    least = 0 if audit.noise is None else audit.noise.approximate_rows
    return f"fewer than {least:,} rows of a real outcome" if audit.rows < least else ""


def find_withheld(audit: Audit) -> tuple[BoolArray, BoolArray]:
    """Return which segments have too few real outcomes other than zero for a test, and which too few clusters."""
    none = np.zeros(len(audit), bool)
    if audit.untestable:
        return none, none
    withheld = ~audit.columns["testable"] & (audit.columns["n"] >= min_tested_rows(audit))
    few_nonzero = withheld & np.isnan(audit.columns["sigma"]) if audit.noise is not None else none
    return few_nonzero, withheld & ~few_nonzero


def largest_untested(audit: Audit) -> Finding | None:
    """Return the segment that `find_withheld` finds whose observed and expected sums differ most; None without any."""
    ranks = np.flatnonzero(np.logical_or(*find_withheld(audit)))
    return audit.finding(int(ranks[np.argmax(np.abs(audit.derived["excess"][ranks]))])) if len(ranks) else None


def has_large_untested(audit: Audit) -> bool:
    """Return whether nothing was found, and `largest_untested` has too many rows to call the scores calibrated."""
    if audit.state != materiality.NOT_DETECTED:
        return False
    untested = largest_untested(audit)
    return untested is not None and untested.share > MAX_UNTESTED_SHARE


def _name_untested(audit: Audit) -> str:
    untested = largest_untested(audit)
    if untested is None:
        return ""
    size = f"{format_excess(untested.excess)} in {format_share(untested.share)} of rows"
    return f"; not tested: {shorten(untested.segment, 200)}, {size}"


def more_problems(audit: Audit, shown: int) -> list[str]:
    """Return a remark on the number of problems beyond the first ``shown``; none if there are no more."""
    more = len(audit.problems) - shown
    return [f"{more:,} more: audit.problems"] if more > 0 else []


def noise_lines(audit: Audit) -> list[str]:
    """Return remarks on the noise of real outcomes: too few rows or non-zero outcomes to estimate it, dispersion."""
    lines = [f"p-values are approximate: {few_rows(audit)}"] if audit.tested and few_rows(audit) else []
    count = int(find_withheld(audit)[0].sum())
    if count:
        where = "1 segment" if count == 1 else f"{count:,} segments"
        hint = (
            "" if audit.noise is None or audit.noise.lowest_mean < 0 else "; the family tweedie can test amounts with zeros"
        )
        lines.append(f"not tested: {where}, where {FEW_NONZERO} (counted among the tests){hint}")
    return lines + ([] if audit.noise is None else audit.noise.remarks())


def is_possible_shift(audit: Audit, shift: float, expected: float) -> bool:
    """Return whether ``expected`` + or - ``shift`` is a possible mean outcome: in [0, 1], except for regression."""
    return audit.schema.task == "regression" or shift <= max(expected, 1 - expected)


def table_rows(findings: Iterable[Finding], *, states: bool = False) -> list[tuple[str, ...]]:
    """Return the text of the table of findings, one row per finding; with ``states``, these instead of p-values."""

    def last(finding: Finding) -> str:
        if states:
            return finding.state
        return number(finding.p_adjusted, 2) if finding.testable else "not tested"

    return [
        (
            finding.segment,
            f"{finding.n:,}",
            number(finding.observed),
            number(finding.expected),
            number(finding.ratio),
            f"{number(finding.ratio_low_adjusted)} to {number(finding.ratio_high_adjusted)}",
            signed_count(finding.excess),
            last(finding),
        )
        for finding in findings
    ]


def findings_table(audit: Audit, findings: Iterable[Finding]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return headings, with the level of the interval, and rows of the table of findings; states with a tolerance."""
    heads = tuple(f"{100 * (1 - audit.settings.alpha):g}% interval" if "%" in name else name for name in HEADINGS)
    if audit.settings.tolerance is None:
        return heads, table_rows(findings)
    return (*heads[:-1], "state"), table_rows(findings, states=True)


def plain_table(findings: Iterable[Finding]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return headings and rows of findings whose audit is not known: with states, and intervals of its level."""
    return (*(name.removeprefix("95% ") for name in HEADINGS[:-1]), "state"), table_rows(findings, states=True)


def notes(audit: Audit, *, count_thin: bool = True, power: bool = True, segments: str = "segments") -> list[str]:
    """Return remarks that qualify the result: excluded rows, segments not tested (small ones if ``count_thin``).

    With ``power``, one states which shift would have been found. ``segments`` is the word for segments.
    """
    lines = [*map(str, audit.warnings), *([CROSS_FITTED] if audit.cross_fitted else [])]
    if audit.schema.task == "binary" and PERCENT_RATIOS[0] <= audit.overall.ratio <= PERCENT_RATIOS[1]:
        lines.append("observed is about a hundredth of expected: are the predictions percentages?")
    overall = audit.overall
    if power and audit.tested and not audit.miscalibrated and not math.isnan(overall.mde):
        possible = is_possible_shift(audit, overall.mde, overall.expected)
        shift = f"a shift of {number(overall.mde, 2)}" if possible else "too few rows: no shift"
        lines.append(f"{shift} over all rows would have been found with 80% power")
    if audit.tested:
        total = "weighted sum" if audit.weighted else "sum"
        lines.append(
            f"{100 * (1 - audit.settings.alpha):g}% intervals hold for all {segments} at once; excess is the {total} of "
            "observed minus expected outcomes"
        )
    if audit.unexamined:
        examined = f"{audit.rejected - audit.unexamined:,} of {audit.rejected:,}"
        lines.append(f"distinct problems are those among the strongest {examined} findings")
    lines += noise_lines(audit) + cluster_lines(audit)
    if audit.thin and count_thin:
        has = " has" if audit.thin == 1 else "s have"
        lines.append(f"not tested: {audit.thin:,} segment{has} fewer than {audit.settings.min_rows:,} rows")
    if audit.dropped:
        shown = ", ".join(shorten(name) for name in audit.dropped[:3]) + (", ..." if len(audit.dropped) > 3 else "")
        lines.append(
            f"left out to stay within {audit.settings.max_cells:,} cells: {len(audit.dropped):,} combinations ({shown})"
        )
    if audit.sampling is not None:
        lines.append(sampling_line(audit))
    if audit.weight_ratio != 1:
        ratio = (
            f"rows of outcome 1 weigh {number(audit.weight_ratio, 2)} times as much as rows of outcome 0 with equal scores"
        )
        lines.append(f"weights are associated with the outcome: {ratio}; p-values allow for that")
    if audit.weight_spread != 1:
        times = f"residuals vary up to {number(audit.weight_spread, 2)} times as much as expected"
        lines.append(f"weights are associated with the outcome in some rows only: {times}; p-values allow for that")
    lines += excluded_lines(audit)
    if audit.settings.adjust == "bh":
        lines.append(
            "Benjamini-Hochberg assumes positive dependence, which overlapping segments do not guarantee; 'by' does not"
        )
    return lines


def unclustered_column(audit: Audit) -> str | None:
    """Return the column that an audit without clusters warned of: its p-values are too small where something was found."""
    columns = (record.column for record in audit.warnings if record.category == ClusterWarning.__name__)
    return next(columns, None) if audit.miscalibrated else None


def describe_dependence(audit: Audit) -> str:
    """Return why p-values are too small, if rows of the column of `unclustered_column` are not independent; else ""."""
    column = unclustered_column(audit)
    return "" if column is None else f"p-values are too small: rows with the same {shorten(column)} are not independent"


def sampling_line(audit: Audit) -> str:
    """Return the remark that rows are weighted by the shares of a sample and, if there are others, how both combine."""
    assert audit.sampling is not None
    line = f"the rows are a sample, {audit.sampling}: each is weighted by 1 / the share of its outcome"
    if audit.schema.weight is None:
        return line
    return f"{line}, times its weight ({shorten(audit.schema.weight)}), which must not contain that share"


def cluster_lines(audit: Audit) -> list[str]:
    """Return remarks on the clusters of an audit: their number, the design effect, and segments with too few of them."""
    if not audit.clusters:
        return []
    design = audit.columns["design_effect"]
    tested = design[audit.columns["testable"]]
    largest = f", at most {number(float(tested.max()), 2)} in a segment" if len(tested) else ""
    lines = [
        f"rows are in {audit.clusters:,} cluster{'' if audit.clusters == 1 else 's'} "
        f"(by {shorten(str(audit.schema.cluster))}): design effect "
        f"{number(audit.overall.design_effect or 1.0, 2)} over all rows{largest}"
    ]
    few = int(find_withheld(audit)[1].sum())
    if few:
        has = " has" if few == 1 else "s have"
        lines.append(f"not tested: {few:,} segment{has} too few clusters (counted among the tests)")
        if has_uneven_clusters(audit):
            lines.append(
                f"a few large clusters have most of the rows: the {audit.clusters:,} clusters count for "
                f"{number(audit.effective_clusters, 2)} of equal size; to test more segments, keep a random sample of the "
                "rows of the largest clusters, or weight each row by 1 / the number of rows of its cluster"
            )
    return lines


def has_uneven_clusters(audit: Audit) -> bool:
    """Return whether clusters differ so much in size that they count for less than half as many of equal size."""
    return audit.effective_clusters < audit.clusters / 2


def excluded_lines(result: Any) -> list[str]:
    """Return remarks on the columns and rows that a result leaves out."""
    lines = [f"column {shorten(name)} left out: {reason}" for name, reason in result.left_out.items()]
    if result.unlabelled:
        were = "was" if result.unlabelled == 1 else "were"
        lines.append(f"{format_rows(result.unlabelled)} without an outcome {were} set aside")
    if result.weightless:
        were = "was" if result.weightless == 1 else "were"
        lines.append(f"{format_rows(result.weightless)} of weight 0 {were} left out")
    return lines


def aligned_lines(rows: list[tuple[str, ...]], left: tuple[int, ...] = (0,)) -> list[str]:
    """Align the cells of a text table; columns in ``left`` to the left, others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
