"""Sections of a back-test: expected against observed events per grade and per vintage, with traffic lights."""

from __future__ import annotations

import math
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from trueup.audits.text import number, shorten
from trueup.errors import ArgumentError
from trueup.metrics.backtesting import binomial_test, jeffreys_interval, jeffreys_test
from trueup.reports import model
from trueup.reports.model import Cell, Column, Section, count_cell, interval_cell, make_table, number_cell, text_cell
from trueup.reports.profiles import Vocabulary, plural
from trueup.reports.profiles.levels import column_levels, is_missing, is_pooled, level_name
from trueup.reports.text import percent, without_rounding

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trueup.audits.result import Audit, Finding
    from trueup.reports.profiles import SectionPlan

MAX_GRADES = 200
MAX_SHOWN_PROBABILITY, MIN_SHOWN_PROBABILITY = 0.9999, 1e-16
MIN_EXPECTED = 5  # events; the ratio of fewer is mostly noise
SMALL_P = 0.001  # smaller p-values are not written out in a light
LIGHTS = (0.05, 0.01)  # p-values below which a light is amber, and red: a convention
JEFFREYS_ENDS = "It starts at 0 without events and ends at 1 if all rows are events (Brown, Cai & DasGupta 2001)"
CLUSTERED = (
    "Rows of one cluster are not independent: lights raise too many alarms here, the test of the audit allows for it."
)
WINDOW = "The latest periods have too few {outcomes} if their outcome window has not ended."


class Grade(NamedTuple):
    """A grade or a score band, its rows, mean outcome and mean score.

    ``finding`` is set if it is a segment of the audit, ``exposed`` if it is one of the audit weighted by exposure.
    """

    name: str
    rows: int
    observed: float
    expected: float
    finding: Finding | None = None
    exposed: Finding | None = None

    @property
    def events(self) -> float:
        """The number of events, an integer if it equals one up to rounding."""
        return without_rounding(min(max(self.observed, 0.0), 1.0) * self.rows)

    @property
    def rate(self) -> float:
        """The mean score, within [0, 1] in spite of rounding."""
        return min(max(self.expected, 0.0), 1.0)


def weight_name(audit: Audit) -> str | None:
    """Return the name of the weights of an audit, "sampling" for those of `sampling`; None if rows count equally."""
    if audit.schema.weight is not None:
        return audit.schema.weight
    return None if audit.sampling is None else "sampling"


def check_exposure(audit: Audit, exposure: Any) -> None:
    """Raise unless ``exposure`` is an audit of the same rows and scores as ``audit``, weighted by exposure."""
    hint = "pass the result of trueup.audit for the same rows and scores, with the exposure as weight"
    weighted = getattr(getattr(exposure, "schema", None), "weight", None)
    problem = ""
    if not hasattr(exposure, "overall"):
        problem = f"exposure must be an audit; got {type(exposure).__qualname__}"
    elif weighted is None:
        problem = "the audit passed as exposure has no weight"
    elif weight_name(audit) is not None:
        problem = f"the audit is itself weighted, by {weight_name(audit)!r}"
        hint = "audit the rows without weight; pass the audit weighted by exposure as exposure"
    elif exposure.schema.prediction != audit.schema.prediction:
        problem = f"the audits are of different scores: {audit.schema.prediction} and {exposure.schema.prediction}"
    elif exposure.rows + exposure.weightless != audit.rows:
        problem = f"the audits are of different rows: {audit.rows:,} and {exposure.rows + exposure.weightless:,}"
    if problem:
        raise ArgumentError(problem, hint=hint, parameter="exposure")


def grades_section(audit: Audit, vocabulary: Vocabulary, plan: SectionPlan, exposure: Audit | None = None) -> Section:
    """Compare mean score and event rate of every grade or, without a column of grades, of every score band."""
    index = _find_column(audit, plan)
    if index is not None:
        return _levels_section(audit, vocabulary, plan, index, exposure)
    curve = audit.overall.curve
    bins = [] if curve is None else zip(curve.rows, curve.observed, curve.predicted, strict=True)
    grades = [Grade(f"band {k}", int(n), float(y), float(p)) for k, (n, y, p) in enumerate(bins, start=1)]
    what = f"No column of grades forms {vocabulary.segments}: these are bands of the {vocabulary.score}, of equal weight."
    return _section(audit, vocabulary, plan, grades, f"{vocabulary.score} band", what, exposure)


def vintages_section(audit: Audit, vocabulary: Vocabulary, plan: SectionPlan, exposure: Audit | None = None) -> Section:
    """Compare mean score and event rate of every period of a column of dates."""
    index = _find_column(audit, plan)
    if index is None:
        levels = column_levels(audit)
        dates = (at for at, feature in enumerate(audit.schema.features) if feature.kind == "date" and levels[at])
        index = next(dates, None)
    if index is None:
        missing = f"No column of dates forms {vocabulary.segments}: name one (by= or --by) to compare periods."
        return Section(plan.title, missing)
    return _levels_section(audit, vocabulary, plan, index, exposure, by_name=True)


def _find_column(audit: Audit, plan: SectionPlan) -> int | None:
    """Return the first column that the plan names and the audit has, ignoring case."""
    levels = column_levels(audit)
    known = {feature.name.casefold(): index for index, feature in reversed(list(enumerate(audit.schema.features)))}
    present = [known[name] for name in map(str.casefold, plan.parameters.get("columns", ())) if name in known]
    return next((index for index in present if levels[index]), None)


def _levels_section(
    audit: Audit, vocabulary: Vocabulary, plan: SectionPlan, index: int, exposure: Audit | None, *, by_name: bool = False
) -> Section:
    """Compare mean score and event rate of every level of a column."""
    levels = column_levels(audit)[index]
    if any(audit.columns["n"][rank] < audit.settings.min_rows for rank in levels):  # rare levels are listed one by one
        levels = [rank for rank in levels if not is_pooled(audit, rank)]
    worst = set(sorted(levels)[:MAX_GRADES])
    shown = [rank for rank in levels if rank in worst]
    ranks, order = _sort_grades(audit, index, shown, vocabulary, by_name=by_name)
    grades = []
    for rank in ranks:
        finding, other = audit.finding(rank), None
        if exposure is not None:
            position = exposure.ranks.get(audit.keys.parts(rank))
            other = None if position is None else exposure.finding(position)
        name = level_name(audit, index, rank)
        grades.append(Grade(name, finding.n, finding.observed, finding.expected, finding, other))
    first, more = shorten(audit.schema.features[index].name, 60), len(levels) - len(ranks)
    what = f"One row per value of column {first!r}, {order}."
    what += f" Only the {len(ranks):,} values with the strongest evidence are listed." if more else ""
    what += f" {WINDOW.format(outcomes=vocabulary.outcomes)}" if by_name else ""
    return _section(audit, vocabulary, plan, grades, first, what, exposure, more)


def _sort_grades(
    audit: Audit, column: int, ranks: Sequence[int], vocabulary: Vocabulary, *, by_name: bool
) -> tuple[list[int], str]:
    """Sort grades and describe the order: numbers and dates by value, other names by mean score; missing values last."""
    missing = [rank for rank in ranks if is_missing(audit, column, rank)]
    known = [rank for rank in ranks if rank not in missing]
    if audit.schema.features[column].kind != "categorical":
        return [*known, *missing], "earliest first" if by_name else "lowest first"
    names = {rank: level_name(audit, column, rank) for rank in known}
    try:
        values = {rank: float(name) for rank, name in names.items()}
    except ValueError:
        values = {}
    if values.keys() == set(known) and all(map(math.isfinite, values.values())):
        return [*sorted(known, key=lambda rank: values[rank]), *missing], "in numerical order"
    if by_name:
        return [*sorted(known, key=lambda rank: names[rank]), *missing], "in alphabetical order"
    means = audit.columns["expected"]
    by_mean = sorted(known, key=lambda rank: float(means[rank]))
    return [*by_mean, *missing], f"sorted by {vocabulary.expected}, lowest first"


def _section(
    audit: Audit, vocabulary: Vocabulary, plan: SectionPlan, grades: list[Grade], first: str, what: str,
    exposure: Audit | None, more: int = 0,
) -> Section:  # fmt: skip
    """Return the section of some grades, to which all rows are added; ``what`` describes them."""
    overall, weight = audit.overall, weight_name(audit)
    alpha = 1 - float(plan.parameters.get("level", 1 - audit.settings.alpha))
    limits = tuple(plan.parameters.get("lights", LIGHTS))
    are_segments = any(grade.finding is not None for grade in grades)
    events = f"{vocabulary.rows} with the {vocabulary.outcome}"
    columns = [Column(first, lambda g: text_cell(g.name, rows=len(grades)), kind="name")]
    columns += _light_columns(vocabulary, limits) if weight is None else []
    columns.append(Column(vocabulary.rows, lambda g: count_cell(g.rows)))
    if weight is None:
        predicted = f"sum of the {plural(vocabulary.score)}: how many {vocabulary.outcomes} to expect"
        columns += [
            Column(vocabulary.outcomes, lambda g: count_cell(g.events), events),
            Column(f"expected {vocabulary.outcomes}", _expected_cell, predicted),
        ]
    columns += [
        Column(vocabulary.expected, lambda g: number_cell(g.expected), "mean score"),
        Column(vocabulary.observed, lambda g: number_cell(g.observed), "mean outcome"),
    ]
    leads, notes = [plan.lead], []
    if weight is None:
        meaning = f"Jeffreys interval of the {vocabulary.observed}. {JEFFREYS_ENDS}"
        columns.append(Column(f"{percent(1 - alpha)} interval", lambda g: _interval_cell(g, alpha), meaning, "interval"))
        leads += [count_lights(grades, limits, alpha, vocabulary), describe_ratios(grades, vocabulary), what]
        notes.append(describe_lights(limits, vocabulary))
        notes += [CLUSTERED] if audit.clusters else []
    else:
        leads.append(what)
        notes.append(
            f"Means are weighted by {weight!r}, and so is observed/expected. Tests by number of {vocabulary.outcomes} need "
            "an audit without weight; one with the exposure as weight can be shown beside it (exposure)."
        )
    by_number = f"observed/expected, {f'weighted by {weight!r}' if weight else f'by number of {vocabulary.outcomes}'}"
    columns.append(Column("obs/exp by number" if exposure else "obs/exp", lambda g: number_cell(_ratio(g)), by_number))
    if exposure is not None:
        by = exposure.schema.weight
        columns.append(Column("obs/exp by exposure", _exposed_cell, f"observed/expected, each row weighted by {by!r}"))
        notes.append(f"Observed/expected is given by number of {vocabulary.outcomes} and weighted by exposure ({by}).")
    if are_segments:
        columns += model.finding_columns(audit, vocabulary, attrgetter("finding"))[-2:]
        notes.append(
            f"State and adjusted p are the test of the audit, adjusted for all {vocabulary.segments}; they are its verdict "
            "where a light differs."
        )
    exposed = None if exposure is None else exposure.overall
    total = Grade("all rows", overall.n, overall.observed, overall.expected, overall, exposed)
    table = make_table(columns, [*grades, total], more)
    return Section(plan.title, " ".join(filter(None, leads)), table, note=" ".join(notes))


def _light_columns(vocabulary: Vocabulary, limits: tuple[float, ...]) -> list[Column]:
    """Return the traffic lights of the Jeffreys and of the binomial test."""
    one_sided = f"p-value that the true {vocabulary.observed} is at most the {vocabulary.expected}; not adjusted"

    def lights(test: Callable[[float, float, float], float]) -> Callable[[Grade], Cell]:
        return lambda grade: light_cell(test(grade.events, grade.rows, grade.rate), limits)

    return [
        Column("Jeffreys", lights(jeffreys_test), f"{one_sided}; posterior under the Jeffreys prior", "state"),
        Column("binomial", lights(binomial_test), f"{one_sided}; exact binomial test", "state"),
    ]


def _expected_cell(grade: Grade) -> Cell:
    return number_cell(grade.expected * grade.rows, f"{grade.expected * grade.rows:,.1f}")


def _interval_cell(grade: Grade, alpha: float) -> Cell:
    return interval_cell(*jeffreys_interval(grade.events, grade.rows, alpha=alpha))


def _ratio(grade: Grade) -> float:
    return grade.observed / grade.expected if grade.expected > 0 else math.nan


def _exposed_cell(grade: Grade) -> Cell:
    return number_cell(math.nan if grade.exposed is None else grade.exposed.ratio)


# Traffic lights


def light(p_value: float, limits: tuple[float, ...] = LIGHTS) -> str:
    """Return the traffic light of a p-value: amber below the first limit, red below the second."""
    amber, red = limits
    return "red" if p_value < red else "amber" if p_value < amber else "green"


def light_cell(p_value: float, limits: tuple[float, ...] = LIGHTS) -> Cell:
    """Return the cell of a traffic light: its colour as a word, and the p-value."""
    color = light(p_value, limits)
    exact = f"p = {probability_text(p_value)}"
    text = f"{color} {probability_text(p_value) if p_value >= SMALL_P else f'<{SMALL_P:g}'}"
    value = {"light": color, "p": p_value}
    return Cell(text, "state", f"{p_value:.7g}", title=exact, state=f"light {color}", value=value)


def count_lights(grades: Sequence[Grade], limits: tuple[float, ...], alpha: float, vocabulary: Vocabulary) -> str:
    """Count the lights of the Jeffreys test and the scores that are too high, and state what to expect by chance."""
    p_values = [jeffreys_test(grade.events, grade.rows, grade.rate) for grade in grades]
    colors = [light(p_value, limits) for p_value in p_values]
    counts = ", ".join(f"{colors.count(color)} {color}" for color in ("green", "amber", "red"))
    high = sum(p_value > 1 - alpha / 2 for p_value in p_values)
    counts += f"; {high} of the green have a {vocabulary.score} above the interval, too high" if high else ""
    return (
        f"Jeffreys test: {counts}. If every {vocabulary.score} were right, about {number(limits[0] * len(grades), 2)} of "
        f"{len(grades):,} lights would be amber or red by chance."
    )


def describe_ratios(grades: Sequence[Grade], vocabulary: Vocabulary) -> str:
    """State the lowest and the highest observed/expected, where enough events are expected: lights do not show its size."""
    ratios = {grade.name: _ratio(grade) for grade in grades if grade.expected * grade.rows >= MIN_EXPECTED}
    if len(ratios) < 2:
        return ""
    low, high = (choose(ratios, key=lambda name: ratios[name]) for choose in (min, max))
    return (
        f"Observed/expected ranges from {number(ratios[low])} ({shorten(low, 40)}) to {number(ratios[high])} "
        f"({shorten(high, 40)}), among those with {MIN_EXPECTED} or more expected {vocabulary.outcomes}."
    )


def describe_lights(limits: tuple[float, ...], vocabulary: Vocabulary) -> str:
    """State what traffic lights mean, and what they assume."""
    amber, red = map(percent, limits)
    return (
        f"Lights, by convention: amber is a p-value below {amber}, red below {red}. Both tests are one-sided, per row of "
        f"the table and not adjusted for their number, as is usual: a {vocabulary.score} that is too high stays green. "
        f"They assume independent {vocabulary.outcomes}."
    )


def probability_text(probability: float) -> str:
    """Format a probability; near 1 with enough digits to distinguish it from 1."""
    if probability > MAX_SHOWN_PROBABILITY:
        return f"> {MAX_SHOWN_PROBABILITY}"
    if probability < MIN_SHOWN_PROBABILITY:
        return f"< {MIN_SHOWN_PROBABILITY:g}"
    return f"{probability:.4f}" if probability > 0.99 else number(probability, 2)
