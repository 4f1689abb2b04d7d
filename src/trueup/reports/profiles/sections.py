"""Sections that a profile asks for; here fields, values, metrics, calibration slope and decision curve (net benefit)."""

from __future__ import annotations

import math
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.special import expit

from trueup.audits.text import number
from trueup.decisions.decision_curve import odds
from trueup.errors import ArgumentError
from trueup.metrics.inference import normal_quantile
from trueup.reports import model
from trueup.reports.model import Cell, Column, Section, count_cell, interval_cell, make_table, number_cell, text_cell
from trueup.reports.profiles import METRICS, Profile, SectionPlan, Vocabulary, load_profile, plural
from trueup.reports.profiles.grades import check_exposure, grades_section, vintages_section
from trueup.reports.profiles.levels import column_levels, level_name
from trueup.reports.profiles.validation import stability_section, validation_section
from trueup.reports.text import percent, summary_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from trueup._types import BoolArray, FloatArray
    from trueup.audits.result import Audit

MAX_VALUES = 200
ROWS_ARE_MISSING = "This section is computed from the rows, which this copy of the audit does not have."
ROBUST_ERRORS = "Standard errors and intervals are robust (sandwich estimator; Huber 1967, White 1982)."
NO_REGRESSION = (
    "The regression has no finite solution for these rows: they have one outcome, one score, or a score that separates the "
    "outcomes."
)
DEFAULT_THRESHOLDS = (0.01, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5)
MIN_TREATED_SHARE = 0.005  # the curve ends where fewer rows would be treated
MIN_CURVE_END = 0.1
MAX_DEPTH = 0.25  # how far below 0 the curve is drawn, as a share of its maximum
SIGNIFICANT = 1.96  # standard errors that a difference must exceed
MAX_STRETCHES = 3  # of thresholds, in a sentence
BEST = (
    f"A strategy is called best if it exceeds both others by more than {SIGNIFICANT} standard errors of the paired "
    "difference at that threshold: pointwise, not for all thresholds at once."
)
NO_BEST = "The rows are weighted, so the standard errors of the differences are unknown: no strategy is called best."


def build_sections(
    audit: Audit, profile: Profile | str = "general", *, reference: Any = None, exposure: Audit | None = None
) -> tuple[Section, ...]:
    """Return the sections that a profile asks for, filled from an audit; one that does not apply states why.

    ``reference`` and ``exposure`` are those of `trueup.report`; a profile without a section for them is an error.
    """
    profile = profile if isinstance(profile, Profile) else load_profile(profile)
    builders: dict[str, tuple[Callable[[Audit, Vocabulary, SectionPlan], Section], bool, bool]] = {
        # kind: function, whether it is for binary outcomes only, whether it needs the rows
        "grades": (partial(grades_section, exposure=exposure), True, False),
        "vintages": (partial(vintages_section, exposure=exposure), True, False),
        "validation": (partial(validation_section, reference=reference), True, True),
        "stability": (partial(stability_section, reference=reference), True, True),
        "fields": (fields_section, False, False),
        "values": (values_section, False, False),
        "metrics": (metrics_section, False, True),
        "slope": (slope_section, True, True),
        "decision": (decision_section, True, True),
    }
    if reference is not None:
        profile.require("reference")
    if exposure is not None:
        profile.require("exposure")
        check_exposure(audit, exposure)
    sections = []
    for plan in profile.sections:
        if plan.kind not in builders:
            raise ArgumentError(f"there is no section of kind {plan.kind!r}", hint=f"kinds are {', '.join(builders)}")
        build, binary_only, needs_rows = builders[plan.kind]
        if binary_only and audit.schema.task != "binary":
            task = "continuous" if audit.schema.task == "regression" else "multiclass"
            section = Section(plan.title, f"This section needs binary outcomes; these are {task}.")
        elif needs_rows and summary_of(audit) is None:
            section = Section(plan.title, ROWS_ARE_MISSING)
        else:
            section = build(audit, profile.vocabulary, plan)
        sections.append(section)
    return tuple(sections)


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
        Column("field", lambda item: text_cell(audit.schema.features[item[0]].name, rows=len(levels)), kind="name"),
        Column("values", lambda item: count_cell(len(item[1])), f"values with enough {vocabulary.rows} for a test"),
        Column("miscalibrated", flagged, "values whose adjusted p-value is at most alpha"),
        Column("worst value", worst, "by adjusted p-value, then by sigma", "interval"),
        *model.finding_columns(audit, vocabulary, itemgetter(2)),
    ]
    return Section(plan.title, plan.lead, make_table(columns, items))


def values_section(audit: Audit, vocabulary: Vocabulary, plan: SectionPlan) -> Section:
    """List the values of all columns, or of the fields that ``plan`` names, worst first."""
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
            Column(vocabulary.observed, lambda item: number_cell(item[2].observed), "mean outcome"),
            Column(vocabulary.expected, lambda item: number_cell(item[2].expected), "mean score"),
        ]
    else:
        events = f"weight of the {vocabulary.rows} with the {vocabulary.outcome}"
        predicted = f"{vocabulary.outcomes} predicted"
        sums = [
            Column(vocabulary.outcomes, lambda item: count_cell(item[2].observed * item[2].weight), events),
            Column(predicted, lambda item: count_cell(item[2].expected * item[2].weight), "sum of the scores"),
        ]
    columns = [
        Column("value", lambda item: text_cell(level_name(audit, item[1], item[0]), rows=len(shown)), kind="name"),
        Column("field", lambda item: text_cell(names[item[1]], "interval", len(shown)), kind="interval"),
        Column(vocabulary.rows, lambda item: count_cell(item[2].n)),
        *sums,
        *model.finding_columns(audit, vocabulary, itemgetter(2)),
    ]
    return Section(plan.title, plan.lead, make_table(columns, shown, len(listed) - len(shown)))


# Metrics of all rows


def metrics_section(audit: Audit, vocabulary: Vocabulary, plan: SectionPlan) -> Section:
    """List metrics of all rows, without those that are undefined for these outcomes."""
    scores = audit.summary.scores
    terms = {"observed": vocabulary.observed, "expected": vocabulary.expected}
    columns = [
        Column("metric", lambda name: Cell(terms.get(name, METRICS[name][0]), "name"), kind="name"),
        Column("value", lambda name: number_cell(scores[name], digits=4)),
        Column("meaning", lambda name: Cell(METRICS[name][1], "interval"), kind="interval"),
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
        difference = ("no significant difference between observed and", "more was observed than", "less was observed than")
        reading = f"{difference[_side(low, high, 1.0)]} predicted"
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
        Column("measure", lambda item: Cell(item[0], "name"), kind="name"),
        Column("value", lambda item: number_cell(item[1])),
        Column("standard error", lambda item: number_cell(item[2], digits=2), robust),
        Column(f"{percent(level)} interval", lambda item: interval_cell(item[3], item[4]), kind="interval"),
        Column("if calibrated", lambda item: count_cell(item[5])),
        Column("interpretation", lambda item: Cell(item[6], "interval"), kind="interval"),
    ]
    return Section(plan.title, lead.strip(), make_table(columns, items) if items else None)


def _side(low: float, high: float, ideal: float) -> int:
    """Return 1 if the interval lies above ``ideal``, -1 if below, 0 if it contains ``ideal``."""
    return 1 if low > ideal else -1 if high < ideal else 0


def interpret(name: str, value: float, high: float, side: int, scores: str = "risks") -> str:
    """Interpret calibration in the large, slope or intercept; ``side``, from `_side`, is 0 if it is not significant."""
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


# The decision curve


class NetBenefit(NamedTuple):
    """Net benefit per row at each threshold: of the model and of treating all; that of treating none is 0.

    ``share`` is the share of rows at or above the threshold; ``treated`` and ``events`` count them and their events.
    """

    threshold: FloatArray
    share: FloatArray
    model: FloatArray
    treat_all: FloatArray
    treated: FloatArray
    events: FloatArray


def net_benefit(audit: Audit) -> NetBenefit:
    """Compute net benefit at thresholds 0, 0.01, ..., 0.99: tp - fp t / (1 - t), per row (Vickers & Elkin 2006)."""
    called = audit.summary.called
    assert called is not None  # the section is built for binary outcomes only
    t, treated, events = called.threshold[:-1], called.rows[:-1], called.positives[:-1]
    total, rate = treated[0], events[0] / treated[0]
    share, hits = treated / total, events / total
    return NetBenefit(t, share, hits - (share - hits) * odds(t), rate - (1 - rate) * odds(t), treated, events)


def decision_section(audit: Audit, vocabulary: Vocabulary, plan: SectionPlan) -> Section:
    """Plot the decision curve and tabulate it at some thresholds."""
    benefit, weighted = net_benefit(audit), audit.weighted
    enough = benefit.threshold[benefit.share >= MIN_TREATED_SHARE]
    end = plan.parameters.get("max_threshold") or max(float(enough[-1]) if len(enough) else 0.0, MIN_CURVE_END)
    thresholds = plan.parameters.get("thresholds", DEFAULT_THRESHOLDS)
    indices = sorted({int(np.argmin(np.abs(benefit.threshold - t))) for t in thresholds})
    unit = f"net benefit per 1,000 {vocabulary.rows}"

    def per_1000(values: FloatArray) -> Callable[[int], Cell]:
        return lambda index: number_cell(1000 * float(values[index]), _per_1000(float(values[index])))

    def threshold(index: int) -> Cell:
        text = f"{benefit.threshold[index]:.2f}"
        return Cell(text, "name", text, value=float(text))

    def winner(index: int) -> Cell:
        gains = compare_strategies(benefit, index)
        tooltip = "; ".join(
            f"model - {other}: {_per_1000(gain)} ± {_per_1000(SIGNIFICANT * error)}"
            for other, (gain, error) in ((other, gains["model", other]) for other in ("treat all", "treat none"))
        )
        return Cell("", "interval") if weighted else Cell(best_strategy(benefit, index), "interval", title=tooltip)

    share = f"share of the {vocabulary.rows} at or above the threshold"
    meaning = "the strategy significantly better than both others, at this threshold alone"
    columns = [
        Column("threshold", threshold, kind="name"),
        Column("treated", lambda index: number_cell(float(benefit.share[index]), f"{benefit.share[index]:.1%}"), share),
        Column("model", per_1000(benefit.model), unit),
        Column("treat all", per_1000(benefit.treat_all), unit),
        Column("treat none", lambda _: number_cell(0, "0"), unit),
        Column("best", winner, meaning, "interval"),
    ]
    lead = (
        f"{plan.lead} Figures in the table are net true positives per 1,000 {vocabulary.rows}. "
        f"{_describe_losses(benefit, end)} {NO_BEST if weighted else BEST}"
    )
    return Section(plan.title, lead.strip(), make_table(columns, indices), _plot(benefit, end, unit))


# Which strategy is best


def compare_strategies(benefit: NetBenefit, index: int) -> dict[tuple[str, str], tuple[float, float]]:
    """Return the gain per row of each strategy over each other one, at the threshold ``index``, and its standard error.

    Two strategies differ on some rows, where treating gains y - (1 - y) cost, and treat the others alike, so the
    difference is paired and its standard error is that of a mean; for outcomes between 0 and 1 it is an upper bound.
    """
    total, cost = float(benefit.treated[0]), float(odds(benefit.threshold[index]))
    everyone = benefit.treated[0], benefit.events[0]
    treated = benefit.treated[index], benefit.events[index]
    untreated = everyone[0] - treated[0], everyone[1] - treated[1]
    gains = {}
    for first, second, (rows, events) in (
        ("model", "treat none", treated),
        ("treat all", "model", untreated),
        ("treat all", "treat none", everyone),
    ):
        mean = float(events - (rows - events) * cost) / total
        mean_square = float(events + (rows - events) * cost**2) / total
        error = math.sqrt(max(mean_square - mean**2, 0.0) / total)
        gains[first, second], gains[second, first] = (mean, error), (-mean, error)
    return gains


def best_strategy(benefit: NetBenefit, index: int) -> str:
    """Return the strategy that is significantly better than others (the model unless it treats all or none), if any."""
    better = {pair for pair, (gain, error) in compare_strategies(benefit, index).items() if gain > SIGNIFICANT * error}
    degenerate = benefit.treated[index] in (0.0, benefit.treated[0])
    strategies = ["treat none", "treat all", *([] if degenerate else ["model"])]
    for strategy in strategies:
        if all((strategy, other) in better for other in strategies if other != strategy):
            return strategy
    return "no clear winner"


def _per_1000(value: float) -> str:
    """Format a net benefit per row as net true positives per 1,000 rows."""
    value *= 1000
    return f"{round(value, 1) + 0.0:,.1f}" if abs(value) < 1e6 else number(value)  # + 0.0 removes the sign of -0.0


# Where the model is worse than treating all or none


def _describe_losses(benefit: NetBenefit, end: float) -> str:
    shown = (benefit.threshold > 0) & (benefit.threshold <= end + 1e-12)
    t, model = benefit.threshold[shown], benefit.model[shown]
    parts = [
        f"below {name} {stretches}"
        for name, other in (("treating none", 0.0 * model), ("treating all", benefit.treat_all[shown]))
        if (stretches := describe_stretches(t, model < other - 1e-12))
    ]
    shown_range = f"In the range shown, {t[0]:.2f} to {t[-1]:.2f}," if len(t) else "In the range shown"
    if not parts:
        return f"{shown_range} the model lies nowhere below treating none or all."
    return f"{shown_range} the model lies {', and '.join(parts)} (significant or not)."


def describe_stretches(t: FloatArray, inside: BoolArray) -> str:
    """Describe the ranges of increasing thresholds ``t`` in which ``inside`` is true."""
    changes = np.flatnonzero(np.diff(np.concatenate([[0], inside.astype(int), [0]]))).tolist()
    stretches = []
    for first, stop in zip(changes[::2], changes[1::2], strict=True):
        low, high, to_end = f"{t[first]:.2f}", f"{t[stop - 1]:.2f}", stop == len(t)
        text = f"at {low}" if first == stop - 1 else f"from {low} to {high}" if first else f"up to {high}"
        stretches.append(f"from {low} on" if to_end and first else "throughout" if to_end else text)
    more = len(stretches) - MAX_STRETCHES
    stretches = [*stretches[:MAX_STRETCHES], *([f"in {more:,} more places"] if more > 0 else [])]
    return " and ".join([part for part in (", ".join(stretches[:-1]), *stretches[-1:]) if part])


def _plot(benefit: NetBenefit, end: float, unit: str) -> dict[str, Any]:
    """Return SVG coordinates of the net benefit of the model and of treating all, which may leave the frame below."""
    shown = benefit.threshold <= end + 1e-12
    t, by_model, treat_all = benefit.threshold[shown], 1000 * benefit.model[shown], 1000 * benefit.treat_all[shown]
    highest = max(float(by_model.max()), float(treat_all.max()))
    highest = highest if highest > 0 else 1.0  # without events there is nothing to gain
    x_axis, y_axis = model.choose_axis(0.0, max(end, 0.01), 6), model.choose_axis(-MAX_DEPTH * highest, 1.06 * highest, 8)
    frame = model.Frame(x_axis, y_axis, 62, 30, 486, 230)
    return {"frame": frame, "model": frame.points(t, by_model), "treat_all": frame.points(t, treat_all), "unit": unit}
