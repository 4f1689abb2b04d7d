"""Sections that a profile asks for: grades, fields, values, metrics, calibration slope and decision curve."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import betainc, betaincinv, expit

from trueup.audits.text import number, shorten
from trueup.errors import ArgumentError
from trueup.metrics.inference import normal_quantile
from trueup.reports import model
from trueup.reports.model import (
    Cell,
    Heading,
    Section,
    TableView,
    count_cell,
    interval_cell,
    number_cell,
    p_cell,
    ratio_cell,
    state_cell,
    text_cell,
)
from trueup.reports.plots import ratio_scale
from trueup.reports.profiles.decision import decision_section
from trueup.reports.profiles.profile import METRICS, Profile, load_profile, plural
from trueup.reports.text import nearest_integer, percent, summary_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trueup.audits.result import Audit, Finding
    from trueup.reports.plots import RatioScale
    from trueup.reports.profiles.profile import SectionPlan, Vocabulary

    Levels = Mapping[int, list[int]]  # column index -> ranks of its single-column segments

MAX_VALUES = 200
MAX_GRADES = 200
MAX_SHOWN_PROBABILITY, MIN_SHOWN_PROBABILITY = 0.9999, 1e-16
BRIER_TERMS = {
    "miscalibration": ("miscalibration", "part of the Brier score that recalibration can remove"),
    "discrimination": ("discrimination", "part of the Brier score gained by ranking rows by risk"),
    "uncertainty": ("uncertainty", "Brier score of always predicting the mean"),
}
BINARY_ONLY = {"grades", "slope", "decision"}
NEEDS_ROWS = {"metrics", "slope", "decision"}
UNADJUSTED = "The interval and p consider the mean of one row of the table only, and are not adjusted"
JEFFREYS_ENDS = "It starts at 0 without events and ends at 1 if all rows are events (Brown, Cai & DasGupta 2001)"
ROBUST_ERRORS = "Standard errors and intervals are robust (sandwich estimator; Huber 1967, White 1982)."
NO_REGRESSION = (
    "The regression has no finite solution for these rows: they have one outcome, one score, or a score that separates the "
    "outcomes."
)


def build_sections(audit: Audit, profile: Profile | str = "general") -> tuple[Section, ...]:
    """Build the sections of a profile."""
    profile = profile if isinstance(profile, Profile) else load_profile(profile)
    return tuple(_build(audit, profile.vocabulary, plan) for plan in profile.sections)


def _build(audit: Audit, vocabulary: Vocabulary, plan: SectionPlan) -> Section:
    builders: dict[str, Callable[[Audit, Vocabulary, SectionPlan], Section]] = {
        "grades": grades_section,
        "fields": fields_section,
        "values": values_section,
        "metrics": metrics_section,
        "slope": slope_section,
        "decision": decision_section,
    }
    if plan.kind not in builders:
        raise ArgumentError(f"there is no section of kind {plan.kind!r}", hint=f"kinds are {', '.join(builders)}")
    if plan.kind in BINARY_ONLY and audit.schema.task != "binary":
        task = "continuous" if audit.schema.task == "regression" else "multiclass"
        return Section(plan.title, f"This section needs binary outcomes; these are {task}.")
    if plan.kind in NEEDS_ROWS and summary_of(audit) is None:
        return Section(plan.title, "This section is computed from the rows, which this copy of the audit does not have.")
    return builders[plan.kind](audit, vocabulary, plan)


# Levels of single columns


def column_levels(audit: Audit) -> dict[int, list[int]]:
    """Return for every column the ranks of its single-column segments, in order of its levels."""
    keys = audit.keys
    single = np.flatnonzero((keys.depth == 1) & (keys.target == 0))
    columns, codes = (part[single].max(axis=1) for part in (keys.columns, keys.codes))  # unused places hold -1
    order = np.lexsort((codes, columns))
    levels: dict[int, list[int]] = {column: [] for column in range(len(audit.schema.features))}
    for column, rank in zip(columns[order].tolist(), single[order].tolist(), strict=True):
        if column in levels:  # user-defined segments come after the columns
            levels[column].append(rank)
    return levels


def level_name(audit: Audit, column: int, rank: int) -> str:
    """Return the level of a single-column segment, without the name of the column."""
    feature = audit.schema.features[column]
    level = _label(audit, column, rank).removeprefix(feature.name)
    if level.startswith("="):
        return level[1:]
    if _is_missing(audit, column, rank):
        return "is missing" if "missing" in feature.levels else "missing"
    sign = ">=" if level.startswith(">=") else "<"
    return f"{sign} {level.removeprefix(sign)}"


def _label(audit: Audit, column: int, rank: int) -> str:
    return audit.keys.labels[column][int(audit.keys.codes[rank].max())]


def _is_missing(audit: Audit, column: int, rank: int) -> bool:
    return _label(audit, column, rank) == f"{audit.schema.features[column].name} is missing"


# Fields and values


def fields_section(audit: Audit, vocabulary: Vocabulary, plan: SectionPlan) -> Section:
    """List the columns: how many of their values are miscalibrated, and the worst value."""
    scale, levels = ratio_scale(audit), column_levels(audit)
    headings = (
        Heading("field", "", "name"),
        Heading("values", f"values with enough {vocabulary.rows} for a test"),
        Heading("miscalibrated", "values whose adjusted p-value is at most alpha"),
        Heading("worst value", "by adjusted p-value, then by sigma", "interval"),
        *_ratio_headings(audit, vocabulary, scale),
    )
    rows = []
    for column, ranks in levels.items():
        tested = sorted(rank for rank in ranks if audit.columns["testable"][rank])
        if tested:
            flagged = int((audit.columns["p_adjusted"][tested] <= audit.settings.alpha).sum())
            rows.append(
                (
                    text_cell(audit.schema.features[column].name, rows=len(levels)),
                    count_cell(len(tested)),
                    count_cell(flagged),
                    text_cell(level_name(audit, column, tested[0]), "interval", len(levels)),
                    *_ratio_cells(audit, audit.finding(tested[0]), scale),
                )
            )
    if not rows:
        return Section(plan.title, f"{plan.lead} No field has a value with enough {vocabulary.rows} for a test.".strip())
    return Section(plan.title, plan.lead, TableView(headings, tuple(rows)))


def values_section(audit: Audit, vocabulary: Vocabulary, plan: SectionPlan) -> Section:
    """List the values of all columns, or of some, worst first."""
    max_rows = int(plan.parameters.get("max_rows", MAX_VALUES))
    fields = {name.casefold() for name in plan.parameters.get("fields", ())}
    names = [feature.name for feature in audit.schema.features]
    listed = sorted(
        (rank, column)
        for column, ranks in column_levels(audit).items()
        if not fields or names[column].casefold() in fields
        for rank in ranks
    )
    if not listed:
        return Section(plan.title, f"{plan.lead} There is no field.".strip())
    scale, count = ratio_scale(audit), min(max_rows, len(listed))
    regression = audit.schema.task == "regression"
    sums = (
        (Heading(vocabulary.observed, "mean outcome"), Heading(vocabulary.expected, "mean score"))
        if regression
        else (
            Heading(vocabulary.outcomes, f"weight of the {vocabulary.rows} with the {vocabulary.outcome}"),
            Heading(f"{vocabulary.outcomes} predicted", "sum of the scores"),
        )
    )
    headings = (
        Heading("value", "", "name"),
        Heading("field", "", "interval"),
        Heading(vocabulary.rows),
        *sums,
        *_ratio_headings(audit, vocabulary, scale),
    )
    rows = []
    for rank, column in listed[:max_rows]:
        finding = audit.finding(rank)
        means = (finding.observed, finding.expected)
        rows.append(
            (
                text_cell(level_name(audit, column, rank), rows=count),
                text_cell(names[column], "interval", count),
                count_cell(finding.n),
                *(number_cell(mean) if regression else count_cell(mean * finding.weight) for mean in means),
                *_ratio_cells(audit, finding, scale),
            )
        )
    return Section(plan.title, plan.lead, TableView(headings, tuple(rows), len(listed) - count))


def _ratio_headings(audit: Audit, vocabulary: Vocabulary, scale: RatioScale) -> tuple[Heading, ...]:
    level, unadjusted = percent(1 - audit.settings.alpha), f"not adjusted for the number of {vocabulary.segments}"
    return (
        Heading("ratio", f"{vocabulary.observed} / {vocabulary.expected}"),
        Heading(f"{level} interval", f"of the ratio, {unadjusted}", "interval"),
        Heading(scale.text, "the ratio and its interval on a logarithmic axis", "forest"),
        Heading("state", model.STATE_MEANING, "state"),
        Heading("adjusted p", f"p-value adjusted for the number of {vocabulary.segments}"),
    )


def _ratio_cells(audit: Audit, finding: Finding, scale: RatioScale) -> tuple[Cell, ...]:
    return (
        number_cell(finding.ratio),
        interval_cell(finding.ratio_low, finding.ratio_high),
        ratio_cell(audit, finding, scale),
        state_cell(audit, finding),
        p_cell(finding.p_adjusted),
    )


# Grades


def jeffreys_interval(events: float, rows: float, level: float) -> tuple[float, float]:
    """Return the Jeffreys interval of a rate: quantiles of Beta(events + 1/2, rows - events + 1/2).

    The lower end is 0 without events, the upper end 1 if all rows are events (Brown, Cai & DasGupta 2001).
    """
    tail = (1 - level) / 2
    a, b = events + 0.5, rows - events + 0.5
    low = 0.0 if events <= 0 else float(betaincinv(a, b, tail))
    high = 1.0 if events >= rows else float(betaincinv(a, b, 1 - tail))
    return low, high


def jeffreys_probability(events: float, rows: float, rate: float) -> float:
    """Return the posterior probability under the Jeffreys prior that the true rate is at most ``rate``."""
    return float(betainc(events + 0.5, rows - events + 0.5, min(max(rate, 0.0), 1.0)))


def probability_text(probability: float) -> str:
    """Format a probability; near 1 with enough digits to distinguish it from 1."""
    if probability > MAX_SHOWN_PROBABILITY:
        return f"> {MAX_SHOWN_PROBABILITY}"
    if probability < MIN_SHOWN_PROBABILITY:
        return f"< {MIN_SHOWN_PROBABILITY:g}"
    return f"{probability:.4f}" if probability > 0.99 else number(probability, 2)


def grades_section(audit: Audit, vocabulary: Vocabulary, plan: SectionPlan) -> Section:
    """Compare the mean score of every grade with its rate; without a column of grades, that of score bands."""
    level = float(plan.parameters.get("level", 1 - audit.settings.alpha))
    levels = column_levels(audit)
    column, more = _grade_column(audit, plan.parameters.get("columns", ()), levels), 0
    if column is None:
        curve = audit.overall.curve
        bins = [] if curve is None else zip(curve.rows, curve.observed, curve.predicted, strict=True)
        rows = [_rate_cells(f"band {k}", int(n), y, p, level) for k, (n, y, p) in enumerate(bins, start=1)]
        rows.append(_grade_cells(audit, "all rows", audit.overall, level)[:-2])
        first = f"{vocabulary.score} band"
        lead = (
            f"No column of grades forms {vocabulary.segments}: these are bands of the {vocabulary.score}, of about equal "
            f"weight. {UNADJUSTED}."
        )
    else:
        worst = set(sorted(levels[column])[:MAX_GRADES])
        ranks, order = _sort_grades(audit, column, [rank for rank in levels[column] if rank in worst], vocabulary)
        more = len(levels[column]) - len(ranks)
        rows = [_grade_cells(audit, level_name(audit, column, r), audit.finding(r), level, len(ranks)) for r in ranks]
        rows.append(_grade_cells(audit, "all rows", audit.overall, level))
        first = shorten(audit.schema.features[column].name, 60)
        lead = (
            f"One row per value of column {first!r}, {order}. {UNADJUSTED}; the last two columns are the test of the "
            f"audit, adjusted for all {vocabulary.segments}."
        )
        lead += f" Only the {len(ranks):,} values with the strongest evidence are listed." if more else ""
    if audit.schema.weight is not None:
        lead += " Means are weighted; the width of the intervals depends on the number of rows, not on the weights."
    headings = [
        Heading(first, "", "name"),
        Heading(vocabulary.rows),
        Heading(
            vocabulary.outcomes,
            f"{vocabulary.rows} with the {vocabulary.outcome}; if weighted, {vocabulary.observed} times {vocabulary.rows}",
        ),
        Heading(vocabulary.expected, "mean score"),
        Heading(vocabulary.observed, "mean outcome"),
        Heading(
            f"{percent(level)} interval", f"Jeffreys interval of the {vocabulary.observed}. {JEFFREYS_ENDS}", "interval"
        ),
        Heading(f"{vocabulary.score} is", f"the {vocabulary.expected} relative to the interval", "interval"),
        Heading("p", f"probability that the true {vocabulary.observed} is at most the {vocabulary.expected}; not adjusted"),
    ]
    if column is not None:
        headings += [
            Heading("state", f"of the audit; {model.STATE_MEANING}", "state"),
            Heading("adjusted p", f"p-value of the audit, adjusted for the number of {vocabulary.segments}"),
        ]
    return Section(plan.title, f"{plan.lead} {lead}".strip(), TableView(tuple(headings), tuple(rows), more))


def _grade_column(audit: Audit, names: Sequence[str], levels: Levels) -> int | None:
    """Return the first of these columns that forms segments; case is ignored."""
    known = {feature.name.casefold(): index for index, feature in reversed(list(enumerate(audit.schema.features)))}
    present = (known[name.casefold()] for name in names if name.casefold() in known)
    return next((column for column in present if levels[column]), None)


def _sort_grades(audit: Audit, column: int, ranks: Sequence[int], vocabulary: Vocabulary) -> tuple[list[int], str]:
    """Sort grades and describe the order: numbers and dates by value, other names by mean score; missing values last."""
    missing = [rank for rank in ranks if _is_missing(audit, column, rank)]
    known = [rank for rank in ranks if rank not in missing]
    if audit.schema.features[column].kind != "categorical":
        return [*known, *missing], "lowest first"
    try:
        values = {rank: float(level_name(audit, column, rank)) for rank in known}
    except ValueError:
        values = {}
    if values.keys() == set(known) and all(map(math.isfinite, values.values())):
        return [*sorted(known, key=lambda rank: values[rank]), *missing], "in numerical order"
    means = audit.columns["expected"]
    by_mean = sorted(known, key=lambda rank: float(means[rank]))
    return [*by_mean, *missing], f"sorted by {vocabulary.expected}, lowest first"


def _rate_cells(name: str, rows: int, observed: float, expected: float, level: float, count: int = 1) -> tuple[Cell, ...]:
    """Compare the mean score of a grade or band with its rate; ``count`` is the number of grades in the table."""
    events = min(max(observed, 0.0), 1.0) * rows
    nearest = nearest_integer(events)  # sums of scores may leave a trace of an event where there is none
    events = events if nearest is None else nearest
    low, high = jeffreys_interval(events, rows, level)
    position = "too low" if expected < low else "too high" if expected > high else "inside"
    probability = jeffreys_probability(events, rows, expected)
    return (
        text_cell(name, rows=count),
        count_cell(rows),
        count_cell(events),
        number_cell(expected),
        number_cell(observed),
        interval_cell(low, high),
        Cell(position, "interval"),
        number_cell(probability, probability_text(probability)),
    )


def _grade_cells(audit: Audit, name: str, finding: Finding, level: float, count: int = 1) -> tuple[Cell, ...]:
    rates = _rate_cells(name, finding.n, finding.observed, finding.expected, level, count)
    return (*rates, state_cell(audit, finding), p_cell(finding.p_adjusted))


# Metrics of all rows


def metrics_section(audit: Audit, vocabulary: Vocabulary, plan: SectionPlan) -> Section:
    """List metrics of all rows, without those that are undefined for these outcomes."""
    scores = audit.summary.scores
    means = {"observed": (vocabulary.observed, "mean outcome"), "expected": (vocabulary.expected, "mean score")}
    texts = {**model.METRICS, **BRIER_TERMS, **means}
    rows = tuple(
        (
            Cell(texts[name][0], "name"),
            number_cell(scores[name], number(scores[name], 4)),
            Cell(texts[name][1], "interval"),
        )
        for name in plan.parameters.get("show", METRICS)
        if math.isfinite(scores.get(name, math.nan))
    )
    headings = (Heading("metric", "", "name"), Heading("value"), Heading("meaning", "", "interval"))
    return Section(plan.title, plan.lead, TableView(headings, rows))


# Calibration in the large, slope and intercept


def slope_section(audit: Audit, vocabulary: Vocabulary, plan: SectionPlan) -> Section:
    """Show O/E, calibration in the large, slope and intercept, each with an interval and its interpretation."""
    level = float(plan.parameters.get("level", 1 - audit.settings.alpha))
    z = normal_quantile(1 - level)
    scores, overall = audit.summary.scores, audit.overall
    rows = []
    if level == 1 - audit.settings.alpha and math.isfinite(overall.ratio):
        low, high = overall.ratio_low, overall.ratio_high
        reading = ("no significant difference between observed and predicted", "more was observed than predicted",
                   "less was observed than predicted")[_side(low, high, 1.0)]  # fmt: skip
        rows.append(_slope_row("observed/expected (O/E)", overall.ratio, math.nan, (low, high), 1, reading))
    for name, ideal in (("in the large", 0), ("slope", 1), ("intercept", 0)):
        value, error = scores.get(name, math.nan), scores.get(f"{name}_se", math.nan)
        if math.isfinite(value) and math.isfinite(error):
            low, high = value - z * error, value + z * error
            reading = interpret(name, value, high, _side(low, high, ideal), plural(vocabulary.score))
            rows.append(_slope_row(f"calibration {name}", value, error, (low, high), ideal, reading))
    lead = f"{plan.lead} {ROBUST_ERRORS if math.isfinite(scores.get('slope', math.nan)) else NO_REGRESSION}"
    headings = (
        Heading("measure", "", "name"),
        Heading("value"),
        Heading("standard error", "robust (sandwich): valid with weights, and if the logistic model is misspecified"),
        Heading(f"{percent(level)} interval", "", "interval"),
        Heading("if calibrated"),
        Heading("interpretation", "", "interval"),
    )
    return Section(plan.title, lead.strip(), TableView(headings, tuple(rows)) if rows else None)


def _side(low: float, high: float, ideal: float) -> int:
    """Return 1 if the interval lies above the ideal value, -1 if below, 0 if it contains it."""
    return 1 if low > ideal else -1 if high < ideal else 0


def _slope_row(
    name: str, value: float, error: float, interval: tuple[float, float], ideal: int, reading: str
) -> tuple[Cell, ...]:
    return (
        Cell(name, "name"),
        number_cell(value),
        number_cell(error, number(error, 2)),
        interval_cell(*interval),
        count_cell(ideal),
        Cell(reading, "interval"),
    )


def interpret(name: str, value: float, high: float, side: int, scores: str = "risks") -> str:
    """Interpret calibration in the large, slope or intercept; ``side`` is that of `_side`."""
    if name == "intercept":
        return f"on this line, a predicted 50% corresponds to an observed {100 * expit(value):.3g}%; read it with the slope"
    if name == "in the large":
        if not side:
            return f"no evidence that {scores} are too low or too high on average"
        direction, correction = ("low", "multiplied") if side > 0 else ("high", "divided")
        factor = number(math.exp(min(abs(value), 700.0)))
        return f"{scores} are too {direction} on average: the odds would have to be {correction} by {factor}"
    if high < 0:
        return f"{scores} are inverted: the higher they are, the fewer events occur"
    if not side:
        return f"the interval contains 1: no evidence that {scores} are too extreme or too moderate"
    comparison = "above 1: {} are too moderate" if side > 0 else "below 1: {} are too extreme"
    return f"{comparison.format(scores)} on the logit scale; the reliability curve shows where"
