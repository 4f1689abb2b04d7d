"""Grades: the scores' mean beside the rate of outcomes, with Jeffreys intervals."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from trueup.audits.text import number, shorten
from trueup.reports.profiles.levels import interval_cell, is_missing, p_cell, text_cell, value_of
from trueup.reports.view import Cell, Heading, Section, TableView, finding_state, number_cell, state_cell

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trueup.audits.result import Audit, Finding
    from trueup.reports.profiles.declared import SectionPlan, Words
    from trueup.reports.profiles.levels import Levels

ALONE = "The interval and p look at one line alone, at its mean only, and are not adjusted"
ENDS = "Without an event it begins with 0, with nothing but events it ends with 1 (Brown, Cai & DasGupta 2001)"
MOST_GRADES = 200  # a line each, so that the page stays small
MOST, LEAST = 0.9999, 1e-16  # chances beyond are not told apart


class Grade(NamedTuple):
    """One line: its name, its rows, the means of outcome and score, and what the audit found, where it is a segment."""

    name: str
    rows: int
    observed: float
    expected: float
    verdict: tuple[Cell, ...] = ()


def jeffreys(events: float, rows: float, level: float) -> tuple[float, float]:
    """Give Jeffreys's interval of a rate: quantiles of Beta(events + 1/2, rows - events + 1/2).

    Without events it begins with 0, with nothing else it ends with 1 (Brown, Cai & DasGupta 2001).

    Examples
    --------
    >>> low, high = jeffreys(1, 10, 0.95)
    >>> f"{low:.4f} to {high:.4f}"
    '0.0110 to 0.3813'
    """
    from scipy.special import betaincinv

    tail = (1 - level) / 2
    a, b = events + 0.5, rows - events + 0.5
    low = 0.0 if events <= 0 else float(betaincinv(a, b, tail))
    high = 1.0 if events >= rows else float(betaincinv(a, b, 1 - tail))
    return low, high


def jeffreys_below(events: float, rows: float, rate: float) -> float:
    """Give the chance, by Jeffreys's posterior, that the true rate is at most ``rate``: small where that is too low.

    Examples
    --------
    >>> round(jeffreys_below(1, 1, 0.5), 4)
    0.1817
    """
    from scipy.special import betainc

    return float(betainc(events + 0.5, rows - events + 0.5, min(max(rate, 0.0), 1.0)))


def draw_grades(audit: Audit, words: Words, plan: SectionPlan, levels: Levels) -> Section:
    """Set the scores' mean of every grade beside its rate; without a column of grades, of bands of the score."""
    level = float(plan.parameters.get("level", 1 - audit.settings.alpha))
    column, more = _column(audit, plan.parameters.get("columns", ()), levels), 0
    if column is None:
        grades = _bands(audit)
        said = f"No column of grades forms {words.segments}: these are bands of the {words.score}, of about equal weight. "
        said += f"{ALONE}."
    else:
        name = audit.schema.features[column].name
        worst = set(sorted(levels[column])[:MOST_GRADES])
        ranks, order = _in_order(audit, column, [at for at in levels[column] if at in worst], words)
        more = len(levels[column]) - len(ranks)
        grades = [_grade(audit, value_of(audit, column, at), audit.finding(at)) for at in ranks]
        said = f"One line a value of column {shorten(name, 60)!r}, {order}. {ALONE}; the last two columns are the audit's "
        said += f"own test, adjusted for all {words.segments}."
        said += f" Of its values these are the {len(ranks):,} with the strongest evidence." if more else ""
    if audit.schema.weight is not None:
        said += " Means are weighted; intervals are as wide as the number of rows makes them, however uneven the weights."
    total = _grade(audit, "all rows", audit.overall)
    first = f"{words.score} band" if column is None else shorten(audit.schema.features[column].name, 60)
    rows = tuple(_row(one, level, len(grades), tested=column is not None) for one in [*grades, total])
    headings = _headings(words, first, level, tested=column is not None)
    return Section(plan.title, " ".join(part for part in (plan.lead, said) if part), TableView(headings, rows, more))


def _headings(words: Words, first: str, level: float, *, tested: bool) -> tuple[Heading, ...]:
    found = (
        Heading(first, "", "name"),
        Heading(words.rows),
        Heading(words.outcomes, f"{words.rows} with the {words.outcome}; where weighted, the {words.observed} times these"),
        Heading(words.expected, "mean of the scores"),
        Heading(words.observed, "mean outcome"),
        Heading(f"{100 * level:g}% interval", f"Jeffreys's, of the {words.observed}. {ENDS}", "interval"),
        Heading(f"{words.score} is", f"where the {words.expected} lies against the interval", "interval"),
        Heading("p", f"chance that the true {words.observed} is at most the {words.expected}; of one line alone"),
    )
    if not tested:
        return found
    return (
        *found,
        Heading("state", "the audit's own: off where the adjusted p-value is at most alpha", "state"),
        Heading("adjusted p", f"the audit's own p-value, adjusted for the number of {words.segments}"),
    )


def _column(audit: Audit, names: Sequence[str], levels: Levels) -> int | None:
    """Find the first of these names among the columns that form segments."""
    there = {feature.name.casefold(): at for at, feature in reversed(list(enumerate(audit.schema.features)))}
    found = (there[name.casefold()] for name in names if name.casefold() in there)
    return next((at for at in found if levels[at]), None)


def _in_order(audit: Audit, column: int, ranks: Sequence[int], words: Words) -> tuple[list[int], str]:
    """Sort the values of a column, and say how: texts by the mean score, numbers and dates as they are; missing last."""
    feature = audit.schema.features[column]
    last = [at for at in ranks if is_missing(audit, column, at)]
    known = [at for at in ranks if at not in last]
    if feature.kind != "categorical":
        return [*known, *last], "lowest first"
    numbers = [_number(value_of(audit, column, at)) for at in known]
    if all(map(math.isfinite, numbers)):
        by = dict(zip(known, numbers, strict=True))
        return [*sorted(known, key=lambda at: by[at]), *last], "in the order of their numbers"
    means = audit.columns["expected"]
    return [*sorted(known, key=lambda at: float(means[at])), *last], f"sorted by {words.expected}, lowest first"


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _grade(audit: Audit, name: str, finding: Finding) -> Grade:
    verdict = (state_cell(finding_state(audit, finding), finding.note), p_cell(finding.p_adjusted))
    return Grade(name, finding.n, finding.observed, finding.expected, verdict)


def _bands(audit: Audit) -> list[Grade]:
    """Take the bins of the reliability curve of the whole; a band is named by its number, the lowest score first."""
    curve = audit.overall.curve
    if curve is None:
        return []
    bins = zip(curve.rows.tolist(), curve.observed.tolist(), curve.predicted.tolist(), strict=True)
    return [Grade(f"band {at}", *values) for at, values in enumerate(bins, start=1)]


def _row(grade: Grade, level: float, many: int, *, tested: bool) -> tuple[Cell, ...]:
    events = min(max(grade.observed, 0.0), 1.0) * grade.rows
    near = round(events)
    whole = abs(events - near) < max(1e-6, 1e-9 * events)
    events = near if whole else events  # sums leave a trace of an event where there is none
    low, high = jeffreys(events, grade.rows, level)
    place = "too low" if grade.expected < low else "too high" if grade.expected > high else "inside"
    chance = jeffreys_below(events, grade.rows, grade.expected)
    return (
        text_cell(grade.name, rows=many), number_cell(grade.rows, f"{grade.rows:,}"),
        number_cell(events, f"{near:,}" if whole else f"{events:,.1f}"), number_cell(grade.expected),
        number_cell(grade.observed), interval_cell(low, high), Cell(place, "interval"),
        number_cell(chance, tell_chance(chance)), *(grade.verdict if tested else ()),
    )  # fmt: skip


def tell_chance(chance: float) -> str:
    """Write a chance for people: near 1 with digits that tell it from 1.

    Examples
    --------
    >>> [tell_chance(p) for p in (1 - 1e-15, 0.9963, 0.512, 3e-9, 1e-20)]
    ['> 0.9999', '0.9963', '0.51', '3e-09', '< 1e-16']
    """
    if chance > MOST:
        return f"> {MOST}"
    if chance < LEAST:
        return f"< {LEAST:g}"
    return f"{chance:.4f}" if chance > 0.99 else number(chance, 2)
