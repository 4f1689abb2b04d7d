"""The summary at the top of a page: whether errors matter, how large they are, the main problems, and what to do next."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

import trueup
from trueup.audits.materiality import DETECTED, MATERIAL, NOT_DETECTED, NOT_TESTABLE, POSSIBLE, WITHIN_TOLERANCE
from trueup.audits.text import (
    ADJUSTMENTS,
    certain_size,
    describe_dependence,
    describe_scores,
    format_excess,
    format_share,
    has_large_untested,
    is_hidden_by_mean,
    is_material_by_range,
    is_possible_shift,
    largest_certain_error,
    largest_name,
    largest_untested,
    min_tested_rows,
    number,
    percent_off,
    shorten,
    signed_count,
    significance_level,
    unclustered_column,
    varying_ranges,
)
from trueup.metrics.inference import MIN_CLUSTERS
from trueup.reports.model import (
    STATES,
    Cell,
    Column,
    Figure,
    TableView,
    count_cell,
    excess_meaning,
    finding_columns,
    make_table,
    number_cell,
    ratio_scale,
    text_cell,
)
from trueup.reports.profiles import DEFAULT_VOCABULARY, Vocabulary, plural
from trueup.reports.text import MAX_FILES, cluster_code, fit_code, format_shift, interval_text, summary_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trueup.audits.problems import Problem
    from trueup.audits.result import Audit, Finding

MAIN_PROBLEMS = 3
MINOR = "number minor"  # a column that a phone does not show
MAX_PROBLEMS = 100  # in the table of all problems
MAX_FOLDED = 3  # explained segments that this table names
MAX_NAME_LENGTH = 120  # characters, in a sentence
MAX_CODE_LENGTH = 2_000
LARGE_UNDETECTED_ERROR = 0.25  # of the mean: collect more rows if an error of this size could go undetected
AUDIT_AGAIN = "Audit again when the model, the data or the population changes; p-values are for one look."
HEADLINES = {DETECTED: "Miscalibrated", NOT_DETECTED: "No miscalibration found", NOT_TESTABLE: "Not testable"}
HEADLINES_WITH_TOLERANCE = {
    MATERIAL: "Material: miscalibrated by more than {}",
    POSSIBLE: "Possibly material: some errors may exceed {}",
    WITHIN_TOLERANCE: "Miscalibrated, within the tolerance of {}",
}


def problems_of(audit: Audit) -> tuple[Problem, ...]:
    """Return the distinct problems of an audit, none if nothing is significant."""
    return audit.problems if audit.miscalibrated else ()


# Sizes in words


def tolerance_text(audit: Audit) -> str:
    """Format the tolerance of an audit: "10%", or "2 percentage points" for a difference of probabilities."""
    tolerance = audit.settings.tolerance
    assert tolerance is not None
    if tolerance.relative or audit.schema.task == "regression":
        return str(tolerance)
    return f"{100 * tolerance.value:g} percentage point{'' if tolerance.value == 0.01 else 's'}"


def describe_certain(audit: Audit, finding: Finding, vocabulary: Vocabulary) -> str:
    """Return the certain error of a finding in words, such as "at least 35% more defaults than predicted"."""
    size = f"at least {percent_off(certain_size(finding))}"
    if finding.ratio < 1:
        return f"{plural(vocabulary.score)} {size} too high"
    if audit.schema.task == "regression":
        return f"outcomes {size} higher than predicted"
    return f"{size} more {vocabulary.outcomes} than predicted"


def unsure_at_scores(audit: Audit) -> str:
    """Return the first problem that is within the tolerance on average, and may be beyond it at the scores that are off.

    The interval of a range of scores holds by itself, not for all segments at once.
    """
    tolerance = audit.settings.tolerance
    assert tolerance is not None
    for problem in problems_of(audit):
        finding = problem.finding
        for found in varying_ranges(finding):
            low, high = tolerance.limits(np.array([found.expected / found.weight]))
            mean = (found.expected + found.excess) / found.weight
            margin = found.margin / found.weight
            if not (low <= mean - margin and mean + margin <= high):
                return finding.segment
    return ""


# Verdict


def headline(audit: Audit) -> str:
    """Return the verdict in a few words, with its size: "Miscalibrated: some errors are at least 12%"."""
    dependent = ", if rows were independent" if describe_dependence(audit) else ""
    return f"{_state_headline(audit)}{dependent}"


def _state_headline(audit: Audit) -> str:
    state = audit.state
    if state in HEADLINES_WITH_TOLERANCE:
        return HEADLINES_WITH_TOLERANCE[state].format(tolerance_text(audit))
    if state == DETECTED and (size := largest_certain_error(audit)[0]):
        return f"Miscalibrated: {'some errors are' if audit.rejected > 1 else 'by'} at least {size}"
    if has_large_untested(audit):
        return f"{HEADLINES[state]} where it could be tested"
    return HEADLINES[state]


def verdict_kind(audit: Audit) -> str:
    """Return the kind of the state of an audit, for its colour: not that of a passed one if much could not be tested."""
    return STATES[NOT_TESTABLE if has_large_untested(audit) else audit.state][1]


def lead(audit: Audit, vocabulary: Vocabulary = DEFAULT_VOCABULARY) -> list[str]:
    """Return the sentences below the headline: how many findings and problems, how large, and what qualifies them."""
    if audit.untestable:
        return [f"{audit.untestable[0].upper()}{audit.untestable[1:]}."]
    if not audit.tested:
        clusters = " in enough clusters" if audit.clusters else ""
        return [f"No {vocabulary.segment} has {min_tested_rows(audit):,} {vocabulary.rows}{clusters}."]
    sentences = [*(f"{reason[0].upper()}{reason[1:]}." for reason in audit.unmet), _count_findings(audit, vocabulary)]
    sentences += _sizes(audit, vocabulary)
    listed = [problem.finding.segment for problem in problems_of(audit)[:MAIN_PROBLEMS]]
    if audit.overall.segment not in listed and (scores := describe_scores(audit.overall)):
        sentences.append(f"Over all {vocabulary.rows}, {scores.replace('scores', 'scores are', 1)}.")
    if not audit.miscalibrated and (untested := largest_untested(audit)) is not None:
        size = f"{format_excess(untested.excess)} in {format_share(untested.share)} of {vocabulary.rows}"
        sentences.append(f"Not tested: {shorten(untested.segment, MAX_NAME_LENGTH)}, {size}.")
    if audit.dropped:
        count = f"{len(audit.dropped):,} combination{' of columns was' if len(audit.dropped) == 1 else 's of columns were'}"
        sentences.append(f"{count} not tested.")
    if audit.cross_fitted:
        sentences.append("This audit is nearly blind: the scores are held-out predictions of a cross-fit.")
    if dependence := describe_dependence(audit):  # before all that follows from the p-values
        sentences.insert(0, f"{dependence[0].upper()}{dependence[1:]}.")
    return sentences


def significance(audit: Audit) -> str:
    """Return the level of the tests and the adjustment for their number, such as "at 5% (Holm)"."""
    return f"at {significance_level(audit.settings.alpha)} ({ADJUSTMENTS[audit.settings.adjust]})"


def count_problems(audit: Audit) -> str:
    """Return the number of distinct problems, such as "3 distinct problems"."""
    count = len(problems_of(audit))
    return f"{count:,} distinct problem{'' if count == 1 else 's'}"


def _count_findings(audit: Audit, vocabulary: Vocabulary) -> str:
    if not audit.miscalibrated:
        tested = f"the {audit.tested:,} {vocabulary.segments}" if audit.tested > 1 else f"the {vocabulary.segment}"
        return (
            f"{'None of ' if audit.tested > 1 else 'Not even '}{tested} tested {significance(audit)} shows more than noise."
        )
    verb = "is" if audit.rejected == 1 else "are"
    findings = f"{audit.rejected:,} of {audit.tested:,} {vocabulary.segments} {verb} miscalibrated {significance(audit)}"
    distinct, states = count_problems(audit), [problem.finding.state for problem in audit.problems]
    possible = f"{states.count(POSSIBLE):,}" if POSSIBLE in states else ""
    if audit.state == MATERIAL:
        distinct += f", {states.count(MATERIAL):,} of them certainly beyond {tolerance_text(audit)}"
        distinct += f", {possible} possibly" if possible else ""
    elif possible:
        distinct += f", {possible} of them possibly beyond {tolerance_text(audit)}"
    return f"{findings}: {distinct}."


def _sizes(audit: Audit, vocabulary: Vocabulary) -> list[str]:
    """Return what is known about the size of errors."""
    if not audit.miscalibrated:
        overall = audit.overall
        if math.isnan(overall.mde) or not is_possible_shift(audit, overall.mde, overall.expected):
            return []
        shift = format_shift(audit, overall.mde)
        return [f"An error of {shift} over all {vocabulary.rows} would have been found with 80% power."]
    sentences, tolerance = [], "" if audit.settings.tolerance is None else tolerance_text(audit)
    if audit.state == POSSIBLE:
        which = f"None of these {vocabulary.segments}" if audit.rejected > 1 else f"This {vocabulary.segment}"
        sentences.append(f"{which} is {'' if audit.rejected > 1 else 'not '}certainly off by more than {tolerance}.")
    if audit.state == WITHIN_TOLERANCE:
        which = f"The mean error of each of these {vocabulary.segments}" if audit.rejected > 1 else "Its mean error"
        sentences.append(f"{which} is certainly within {tolerance}.")
        if name := unsure_at_scores(audit):
            sentences.append(f"Errors at some scores in {shorten(name, MAX_NAME_LENGTH)} may be larger.")
    return [*sentences, describe_largest(audit, vocabulary)] if problems_of(audit) else sentences


def describe_largest(audit: Audit, vocabulary: Vocabulary) -> str:
    """Return a sentence on the largest problem, the first of `Audit.problems`: its excess, share of rows, certain error."""
    largest, tolerance = audit.problems[0].finding, audit.settings.tolerance
    start = f"{largest_name(audit).capitalize()}: {shorten(largest.segment, MAX_NAME_LENGTH)}"
    share = f"{format_share(largest.share)} of {vocabulary.rows}"
    if tolerance is not None and is_material_by_range(largest, tolerance):
        limit = f"errors at some scores certainly exceed {tolerance_text(audit)}; the mean error may be smaller"
        return f"{start} ({share}): {limit}."
    size = certain_size(largest)
    if size == 1 and is_hidden_by_mean(largest):
        scores = describe_scores(largest).replace("scores", f"{plural(vocabulary.score)} are", 1)
        return f"{start} ({share}): {scores or 'errors vary with the score'}."
    limit = f": {describe_certain(audit, largest, vocabulary)}" if size > 1 else ""
    what = "" if audit.schema.task == "regression" else f" {vocabulary.outcomes}"
    return f"{start}, {format_excess(largest.excess).replace(' than', f'{what} than')} in {share}{limit}."


# Figures


def key_figures(audit: Audit, vocabulary: Vocabulary) -> tuple[Figure, ...]:
    """Return the figures of the summary: problems, excess of the largest one, largest certain error, error of all rows."""
    overall, rows = audit.overall, vocabulary.rows
    what = "outcome" if audit.schema.task == "regression" else vocabulary.outcomes
    net = f"{signed_count(overall.excess)}{'' if audit.schema.task == 'regression' else f' {what}'}"
    error = Figure(f"observed - expected, all {rows}", f"{overall.bias:+.3g}", net)
    if math.isfinite(overall.ratio) and overall.expected > 0:
        interval = f"{interval_text(overall.ratio_low_adjusted, overall.ratio_high_adjusted)}; " if overall.testable else ""
        error = Figure(f"observed/expected, all {rows}", number(overall.ratio), f"{interval}{net}")
    problems = problems_of(audit)
    if not problems:
        weight = f"total weight {number(overall.weight)}" if audit.weighted else ""
        tested = Figure(f"{vocabulary.segments} tested", f"{audit.tested:,}", f"of up to {audit.settings.depth} columns")
        return Figure(rows, f"{audit.rows:,}", weight), tested, error
    findings = f"{audit.rejected:,} of {audit.tested:,} {vocabulary.segments}"
    count = Figure("distinct problems", f"{len(problems):,}", findings)
    largest = problems[0].finding
    share = f"{format_share(largest.share)} of {rows}"
    place = largest.segment if largest.depth == 0 else f"{share}: {shorten(largest.segment, 60)}"
    ranges = varying_ranges(largest) if is_hidden_by_mean(largest) else []
    excess = Figure(
        f"largest problem: {'excess' if largest.excess >= 0 else 'shortfall'} of {what}",
        signed_count(largest.excess),
        place,
    )
    if len(ranges) > 1:  # what cancels in the sum
        by_score = ", ".join(signed_count(found.excess) for found in ranges)
        excess = Figure(f"largest problem: excess of {what}, by score", by_score, place)
    value, name = largest_certain_error(audit)
    size = Figure("largest certain error", value or "-", shorten(name, 60) or "no interval excludes 1")
    if audit.state == MATERIAL and not _has_material_mean(audit):
        size = Figure(
            "largest certain error", f"over {audit.settings.tolerance}", f"at some scores: {shorten(largest.segment, 60)}"
        )
    return count, excess, size, error


def _has_material_mean(audit: Audit) -> bool:
    """Return whether some segment is material by its mean, not only by the range of cumulative differences."""
    assert audit.settings.tolerance is not None
    material = audit.is_material
    ratios = np.array([audit.derived[f"ratio_{end}_adjusted"][material] for end in ("low", "high")])
    return bool(audit.settings.tolerance.excludes(audit.columns["expected"][material], ratios).any())


def problem_cell(finding: Finding) -> Cell:
    """Return the cell that names a problem and, if its error varies with the score, states which scores are off."""
    scores = describe_scores(finding)
    return replace(text_cell(finding.segment), detail=scores and f"{scores[0].upper()}{scores[1:]}")


def problem_table(
    audit: Audit, vocabulary: Vocabulary, most: int = MAIN_PROBLEMS, *, intervals: bool = False, folded: bool = False
) -> TableView:
    """Return the table of the first problems, the largest one first.

    It has ``intervals`` also as text, and with ``folded`` the number and some names of the segments that each explains.
    """
    shown = problems_of(audit)[:most]
    scale = ratio_scale(audit, findings=[problem.finding for problem in shown])
    ratio, interval, forest, state, _ = finding_columns(audit, vocabulary, lambda problem: problem.finding, scale)
    outcomes = "" if audit.schema.task == "regression" else f" {vocabulary.outcomes}"
    share = f"share of all {vocabulary.rows}, or of their weight"

    def explains(problem: Problem) -> Cell:
        names = ", ".join(shorten(name, 60) for name in problem.folded[:MAX_FOLDED])
        more = len(problem.folded) - MAX_FOLDED
        return Cell(names + (f" and {more:,} more" if more > 0 else ""), "meaning", value=list(problem.folded))

    count = Column("explains", lambda p: count_cell(len(p.folded)), f"other {vocabulary.segments} whose error it explains")
    columns = [
        Column("problem", lambda p: problem_cell(p.finding), kind="name"),
        *([state] if audit.settings.tolerance is not None else []),
        Column(vocabulary.rows, lambda p: number_cell(p.finding.share, format_share(p.finding.share)), share),
        Column(vocabulary.observed, lambda p: number_cell(p.finding.observed), "mean outcome", MINOR),
        Column(vocabulary.expected, lambda p: number_cell(p.finding.expected), "mean prediction", MINOR),
        Column(
            f"excess{outcomes}",
            lambda p: number_cell(p.finding.excess, signed_count(p.finding.excess)),
            excess_meaning(audit),
        ),
        ratio,
        forest,
        *([interval] if intervals else []),
        *([count, Column("such as", explains, kind="meaning")] if folded else []),
    ]
    return make_table(columns, shown, len(problems_of(audit)) - len(shown))


# What to do next


class NextStep(NamedTuple):
    """Recommended steps, one sentence each, and the code or command that carries them out, if any."""

    steps: tuple[str, ...]
    code: str = ""


def next_step(audit: Audit, vocabulary: Vocabulary = DEFAULT_VOCABULARY) -> NextStep:
    """Recommend steps after one audit: fit a correction, state a tolerance, collect more rows, or nothing."""
    rows = vocabulary.rows
    if (column := unclustered_column(audit)) is not None:
        return _with_clusters(audit, column, vocabulary)
    if audit.untestable:
        return NextStep((f"Collect more {rows}: {audit.untestable}.",))
    if not audit.tested:
        least = f"{min_tested_rows(audit):,}"
        if audit.clusters and audit.rows >= min_tested_rows(audit):
            few = f"{least} {rows} in {MIN_CLUSTERS} clusters of similar size"
            return NextStep((f"Collect {rows} of more clusters. A {vocabulary.segment} needs {few} to be tested.",))
        return NextStep((f"Collect more {rows}. A {vocabulary.segment} needs at least {least} to be tested.",))
    if audit.miscalibrated:
        return _after_findings(audit, vocabulary)
    if has_large_untested(audit):
        return _after_untested(audit, vocabulary)
    if audit.unmet:
        return NextStep((f"Collect more {rows}: {'; '.join(audit.unmet)}.",))
    overall = audit.overall
    scale = abs(overall.expected)
    if math.isfinite(overall.mde) and scale > 0 and overall.mde > LARGE_UNDETECTED_ERROR * scale:
        possible = is_possible_shift(audit, overall.mde, overall.expected)
        size = f"An error of {number(overall.mde, 2)}" if possible else "Any error"
        undetected = f"{size} in a mean of {number(overall.observed, 2)} could have gone undetected."
        return NextStep((f"Collect more {rows} before relying on this result. {undetected}",))
    return NextStep(("No correction is needed.", AUDIT_AGAIN))


def _with_clusters(audit: Audit, column: str, vocabulary: Vocabulary) -> NextStep:
    """Recommend to repeat an audit of rows that are not independent with their clusters, before anything else."""
    name = shorten(column, MAX_NAME_LENGTH)
    option = f"cluster={json.dumps(name, ensure_ascii=False)}" if audit.source is None else f"--cluster {name}"
    features = any(feature.name == column for feature in audit.schema.features)
    leave = ", and leave that column out of the segments" if features else ""
    step = f"Audit again with {option}{leave}: {vocabulary.rows} with the same {name} are not independent."
    code = cluster_code(audit, column) if audit.source is None else audit.source.again
    return NextStep((step,), code if len(code) <= MAX_CODE_LENGTH else "")


def _after_untested(audit: Audit, vocabulary: Vocabulary) -> NextStep:
    untested = largest_untested(audit)
    assert untested is not None
    name = shorten(untested.segment, MAX_NAME_LENGTH)
    avoid = f"Do not rely on the scores in {name}, which could not be tested."
    if audit.noise is None or audit.noise.lowest_mean < 0 or not math.isnan(untested.sigma):
        return NextStep((avoid, f"Collect more {vocabulary.rows} of it."))
    return NextStep(
        (avoid, f"Collect more {vocabulary.rows} of it, or audit with the family tweedie, for amounts with zeros.")
    )


def _after_findings(audit: Audit, vocabulary: Vocabulary) -> NextStep:
    rows, command = vocabulary.rows, "" if audit.source is None else audit.source.fit
    code = command or fit_code(audit)
    if len(code) > MAX_CODE_LENGTH:  # half of a list of columns would not run
        code = ""
    held_out = f"audit the corrected scores on {rows} that were not used for the fit."
    fit = f"{_before_fit(audit)}fit a correction on these {rows}, and {held_out}"
    if audit.state == MATERIAL:
        avoid = f"Do not rely on the scores in these {vocabulary.segments} until they are corrected."
        return NextStep((avoid, f"Correct the scores: {fit}"), code)
    if audit.state == DETECTED:
        option = 'tolerance="10%"' if audit.source is None else "--tolerance 10%"
        decide = f"Decide how large an error matters, and audit again with it, for example {option}."
        return NextStep((decide, f"If these errors matter, {fit}"), code)
    tolerance = tolerance_text(audit)
    if audit.state == WITHIN_TOLERANCE:
        steps = [f"No correction is required for mean errors of up to {tolerance}."]
        if name := unsure_at_scores(audit):
            steps.append(f"Look at the curve of {shorten(name, MAX_NAME_LENGTH)}: errors at some scores may be larger.")
        return NextStep((*steps, AUDIT_AGAIN))
    learn = f"Collect more {rows} to learn whether errors exceed {tolerance}."
    return NextStep((learn, f"To reduce them now, {fit}"), code)


def _before_fit(audit: Audit) -> str:
    """Return what the rows lack before the code of `fit_code` corrects all that was audited; empty if nothing."""
    own = [shorten(labels[0], 60) for labels in audit.keys.labels[len(audit.schema.features) :]]
    columns = [f"the scores (as {audit.schema.prediction[0]})"] if "prediction" in audit.arrays else []
    columns += [f"the {'segment' if len(own) == 1 else 'segments'} {', '.join(own[:MAX_FOLDED])}"] if own else []
    more = " (and so on)" if len(own) > MAX_FOLDED else ""
    return f"make {' and '.join(columns)}{more} columns of these rows, " if columns else ""


# Sign-off


def sign_off_facts(audits: Iterable[Audit], vocabulary: Vocabulary = DEFAULT_VOCABULARY) -> tuple[tuple[str, str], ...]:
    """List what a signature refers to: model, data and verdict of the last audit; what is not known is left to fill in."""
    audit = list(audits)[-1]
    files = [] if audit.source is None else [shorten(name, 60) for name, _, _ in audit.source.files[:MAX_FILES]]
    summary = summary_of(audit)
    fingerprint = [] if summary is None else [f"fingerprint {summary.fingerprint[:16]}"]
    return (
        ("model", ""),
        ("version", ""),
        ("column of the scores", shorten(", ".join(audit.schema.prediction), 120)),
        ("data", "; ".join([*files, f"{audit.rows:,} {vocabulary.rows}", *fingerprint])),
        ("verdict", ". ".join([headline(audit), *(sentence.rstrip(".") for sentence in lead(audit, vocabulary))])),
        ("audited with", f"trueup {trueup.__version__}"),
        ("audited by", ""),
        ("date", ""),
    )
