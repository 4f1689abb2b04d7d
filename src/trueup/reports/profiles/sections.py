"""Sections that a profile asks for: grades, fields, values, metrics, calibration slope and decision curve."""

from __future__ import annotations

import math
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.special import betainc, betaincinv, expit

from trueup.audits.text import number, shorten
from trueup.errors import ArgumentError
from trueup.metrics.inference import normal_quantile
from trueup.reports import model
from trueup.reports.model import (
    Cell,
    Section,
    column,
    count_cell,
    interval_cell,
    make_table,
    number_cell,
    ratio_columns,
    significance_columns,
    text_cell,
)
from trueup.reports.profiles.decision import decision_section
from trueup.reports.profiles.profile import METRICS, Profile, load_profile, plural
from trueup.reports.text import nearest_integer, percent, summary_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trueup.audits.audit import Audit
    from trueup.reports.profiles.profile import SectionPlan, Vocabulary

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
OE_READINGS = {
    0: "no significant difference between observed and predicted",
    1: "more was observed than predicted",
    -1: "less was observed than predicted",
}
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
    levels: dict[int, list[int]] = {index: [] for index in range(len(audit.schema.features))}
    for index, rank in zip(columns[order].tolist(), single[order].tolist(), strict=True):
        if index in levels:  # user-defined segments come after the columns
            levels[index].append(rank)
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
    levels = column_levels(audit)
    tested = {index: sorted(rank for rank in ranks if audit.columns["testable"][rank]) for index, ranks in levels.items()}
    items = [(index, ranks, audit.finding(ranks[0])) for index, ranks in tested.items() if ranks]
    if not items:
        return Section(plan.title, f"{plan.lead} No field has a value with enough {vocabulary.rows} for a test.".strip())

    def flagged(item: Any) -> Cell:
        return count_cell(int((audit.columns["p_adjusted"][item[1]] <= audit.settings.alpha).sum()))

    def worst(item: Any) -> Cell:
        return text_cell(level_name(audit, item[0], item[1][0]), "interval", len(levels))

    columns = [
        column("field", lambda item: text_cell(audit.schema.features[item[0]].name, rows=len(levels)), kind="name"),
        column("values", lambda item: count_cell(len(item[1])), f"values with enough {vocabulary.rows} for a test"),
        column("miscalibrated", flagged, "values whose adjusted p-value is at most alpha"),
        column("worst value", worst, "by adjusted p-value, then by sigma", "interval"),
        *ratio_columns(audit, vocabulary, itemgetter(2)),
        *significance_columns(audit, vocabulary, itemgetter(2)),
    ]
    return Section(plan.title, plan.lead, make_table(columns, items))


def values_section(audit: Audit, vocabulary: Vocabulary, plan: SectionPlan) -> Section:
    """List the values of all columns, or of some, worst first."""
    max_rows = int(plan.parameters.get("max_rows", MAX_VALUES))
    fields = {name.casefold() for name in plan.parameters.get("fields", ())}
    names = [feature.name for feature in audit.schema.features]
    listed = sorted(
        (rank, index)
        for index, ranks in column_levels(audit).items()
        if not fields or names[index].casefold() in fields
        for rank in ranks
    )
    if not listed:
        return Section(plan.title, f"{plan.lead} There is no field.".strip())
    shown = [(rank, index, audit.finding(rank)) for rank, index in listed[:max_rows]]
    if audit.schema.task == "regression":
        sums = [
            column(vocabulary.observed, lambda item: number_cell(item[2].observed), "mean outcome"),
            column(vocabulary.expected, lambda item: number_cell(item[2].expected), "mean score"),
        ]
    else:
        events = f"weight of the {vocabulary.rows} with the {vocabulary.outcome}"
        predicted = f"{vocabulary.outcomes} predicted"
        sums = [
            column(vocabulary.outcomes, lambda item: count_cell(item[2].observed * item[2].weight), events),
            column(predicted, lambda item: count_cell(item[2].expected * item[2].weight), "sum of the scores"),
        ]
    columns = [
        column("value", lambda item: text_cell(level_name(audit, item[1], item[0]), rows=len(shown)), kind="name"),
        column("field", lambda item: text_cell(names[item[1]], "interval", len(shown)), kind="interval"),
        column(vocabulary.rows, lambda item: count_cell(item[2].n)),
        *sums,
        *ratio_columns(audit, vocabulary, itemgetter(2)),
        *significance_columns(audit, vocabulary, itemgetter(2)),
    ]
    return Section(plan.title, plan.lead, make_table(columns, shown, len(listed) - len(shown)))


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


class Grade(NamedTuple):
    """A grade or a score band, its rows, events, mean outcome and mean score; ``finding`` if it is a segment."""

    name: str
    rows: int
    events: float
    observed: float
    expected: float
    finding: Any = None

    @classmethod
    def of(cls, name: str, rows: int, observed: float, expected: float, finding: Any = None) -> Grade:
        """Compute the number of events; sums of scores may leave a trace of an event where there is none."""
        events = min(max(observed, 0.0), 1.0) * rows
        nearest = nearest_integer(events)
        return cls(name, rows, events if nearest is None else nearest, observed, expected, finding)


def grades_section(audit: Audit, vocabulary: Vocabulary, plan: SectionPlan) -> Section:
    """Compare the mean score of every grade with its rate; without a column of grades, that of score bands."""
    level = float(plan.parameters.get("level", 1 - audit.settings.alpha))
    levels, overall, more = column_levels(audit), audit.overall, 0
    known = {feature.name.casefold(): index for index, feature in reversed(list(enumerate(audit.schema.features)))}
    present = [known[name] for name in map(str.casefold, plan.parameters.get("columns", ())) if name in known]
    index = next((index for index in present if levels[index]), None)
    if index is None:
        curve = overall.curve
        bins = [] if curve is None else zip(curve.rows, curve.observed, curve.predicted, strict=True)
        grades = [Grade.of(f"band {k}", int(n), float(y), float(p)) for k, (n, y, p) in enumerate(bins, start=1)]
        first = f"{vocabulary.score} band"
        lead = (
            f"No column of grades forms {vocabulary.segments}: these are bands of the {vocabulary.score}, of about equal "
            f"weight. {UNADJUSTED}."
        )
    else:
        worst = set(sorted(levels[index])[:MAX_GRADES])
        ranks, order = _sort_grades(audit, index, [rank for rank in levels[index] if rank in worst], vocabulary)
        more = len(levels[index]) - len(ranks)
        named = ((level_name(audit, index, rank), audit.finding(rank)) for rank in ranks)
        grades = [Grade.of(name, f.n, f.observed, f.expected, f) for name, f in named]
        first = shorten(audit.schema.features[index].name, 60)
        lead = (
            f"One row per value of column {first!r}, {order}. {UNADJUSTED}; the last two columns are the test of the "
            f"audit, adjusted for all {vocabulary.segments}."
        )
        lead += f" Only the {len(ranks):,} values with the strongest evidence are listed." if more else ""
    if audit.schema.weight is not None:
        lead += " Means are weighted; the width of the intervals depends on the number of rows, not on the weights."
    count = f"{vocabulary.rows} with the {vocabulary.outcome}; if weighted, {vocabulary.observed} times {vocabulary.rows}"
    probability = f"probability that the true {vocabulary.observed} is at most the {vocabulary.expected}; not adjusted"

    def position(grade: Grade) -> Cell:
        low, high = jeffreys_interval(grade.events, grade.rows, level)
        return Cell("too low" if grade.expected < low else "too high" if grade.expected > high else "inside", "interval")

    def chance(grade: Grade) -> Cell:
        value = jeffreys_probability(grade.events, grade.rows, grade.expected)
        return number_cell(value, probability_text(value))

    columns = [
        column(first, lambda g: text_cell(g.name, rows=len(grades)), kind="name"),
        column(vocabulary.rows, lambda g: count_cell(g.rows)),
        column(vocabulary.outcomes, lambda g: count_cell(g.events), count),
        column(vocabulary.expected, lambda g: number_cell(g.expected), "mean score"),
        column(vocabulary.observed, lambda g: number_cell(g.observed), "mean outcome"),
        column(
            f"{percent(level)} interval",
            lambda g: interval_cell(*jeffreys_interval(g.events, g.rows, level)),
            f"Jeffreys interval of the {vocabulary.observed}. {JEFFREYS_ENDS}",
            "interval",
        ),
        column(f"{vocabulary.score} is", position, f"the {vocabulary.expected} relative to the interval", "interval"),
        column("p", chance, probability),
        *(significance_columns(audit, vocabulary, attrgetter("finding")) if index is not None else []),
    ]
    grades.append(Grade.of("all rows", overall.n, overall.observed, overall.expected, overall))
    return Section(plan.title, f"{plan.lead} {lead}".strip(), make_table(columns, grades, more))


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


# Metrics of all rows


def metrics_section(audit: Audit, vocabulary: Vocabulary, plan: SectionPlan) -> Section:
    """List metrics of all rows, without those that are undefined for these outcomes."""
    scores = audit.summary.scores
    means = {"observed": (vocabulary.observed, "mean outcome"), "expected": (vocabulary.expected, "mean score")}
    texts = {**model.METRICS, **BRIER_TERMS, **means}
    columns = [
        column("metric", lambda name: Cell(texts[name][0], "name"), kind="name"),
        column("value", lambda name: number_cell(scores[name], number(scores[name], 4))),
        column("meaning", lambda name: Cell(texts[name][1], "interval"), kind="interval"),
    ]
    shown = [name for name in plan.parameters.get("show", METRICS) if math.isfinite(scores.get(name, math.nan))]
    return Section(plan.title, plan.lead, make_table(columns, shown))


# Calibration in the large, slope and intercept


def slope_section(audit: Audit, vocabulary: Vocabulary, plan: SectionPlan) -> Section:
    """Show O/E, calibration in the large, slope and intercept, each with an interval and its interpretation."""
    level = float(plan.parameters.get("level", 1 - audit.settings.alpha))
    z = normal_quantile(1 - level)
    scores, overall = audit.summary.scores, audit.overall
    items: list[tuple[str, float, float, float, float, int, str]] = []
    if level == 1 - audit.settings.alpha and math.isfinite(overall.ratio):
        low, high = overall.ratio_low, overall.ratio_high
        reading = OE_READINGS[_side(low, high, 1.0)]
        items.append(("observed/expected (O/E)", overall.ratio, math.nan, low, high, 1, reading))
    for name, ideal in (("in the large", 0), ("slope", 1), ("intercept", 0)):
        value, error = scores.get(name, math.nan), scores.get(f"{name}_se", math.nan)
        if math.isfinite(value) and math.isfinite(error):
            low, high = value - z * error, value + z * error
            reading = interpret(name, value, high, _side(low, high, ideal), plural(vocabulary.score))
            items.append((f"calibration {name}", value, error, low, high, ideal, reading))
    lead = f"{plan.lead} {ROBUST_ERRORS if math.isfinite(scores.get('slope', math.nan)) else NO_REGRESSION}"
    robust = "robust (sandwich): valid with weights, and if the logistic model is misspecified"
    columns = [
        column("measure", lambda item: Cell(item[0], "name"), kind="name"),
        column("value", lambda item: number_cell(item[1])),
        column("standard error", lambda item: number_cell(item[2], number(item[2], 2)), robust),
        column(f"{percent(level)} interval", lambda item: interval_cell(item[3], item[4]), kind="interval"),
        column("if calibrated", lambda item: count_cell(item[5])),
        column("interpretation", lambda item: Cell(item[6], "interval"), kind="interval"),
    ]
    return Section(plan.title, lead.strip(), make_table(columns, items) if items else None)


def _side(low: float, high: float, ideal: float) -> int:
    """Return 1 if the interval lies above the ideal value, -1 if below, 0 if it contains it."""
    return 1 if low > ideal else -1 if high < ideal else 0


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
