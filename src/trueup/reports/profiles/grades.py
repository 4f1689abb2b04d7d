"""Grades: the scores' mean beside the rate of outcomes, with Jeffreys intervals."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trueup.audits.text import number, shorten
from trueup.reports.view import Cell, Heading, Section, TableView, name_cell, number_cell

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trueup.audits.result import Audit
    from trueup.reports.profiles.declared import SectionPlan, Words

__all__ = ["draw_grades", "jeffreys", "jeffreys_below", "levels_of"]


STATES = ("too low", "too high", "inside")


class Grade(NamedTuple):
    """One line: its name, its rows, and the means of outcome and score."""

    name: str
    rows: int
    observed: float
    expected: float


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


def levels_of(audit: Audit, column: int) -> list[int]:
    """Give the ranks of the segments of one column alone, in the order of its levels."""
    keys = audit.keys
    alone = (keys.columns == column).any(axis=1) & (keys.depth == 1) & (keys.target == 0)
    found = np.flatnonzero(alone)
    codes = np.where(keys.columns[found] == column, keys.codes[found], -1).max(axis=1)
    return [int(at) for at in found[np.argsort(codes, kind="stable")]]


def value_of(audit: Audit, column: int, at: int) -> str:
    """Write the value that a segment of one column stands for, without the column's name where it reads as well."""
    name = audit.keys.name(at)
    label = audit.keys.targets[0]
    name = name.removeprefix(f"{label} & ") if label else name
    return name.removeprefix(f"{audit.schema.features[column].name}=")


def draw_grades(audit: Audit, words: Words, plan: SectionPlan) -> Section:
    """Set the scores' mean of every grade beside its rate; without a column of grades, of bands of the score."""
    level = float(plan.parameters.get("level", 1 - audit.settings.alpha))
    column = _column(audit, plan.parameters.get("columns", ()))
    if column is None:
        grades = _bands(audit)
        said = f"No column of grades is there: these are bands of the {words.score}, of about equal weight."
    else:
        name = audit.schema.features[column].name
        grades = _levels(audit, column)
        said = f"Grades are the values of column {shorten(name, 60)!r}."
    if audit.schema.weight is not None:
        said += " Means are weighted; intervals are as wide as the number of rows makes them, however uneven the weights."
    whole = audit.overall
    total = Grade("all rows", whole.n, whole.observed, whole.expected)
    share = f"{100 * level:g}%"
    headings = (
        Heading("grade" if column is not None else f"{words.score} band", "", "name"),
        Heading("rows"),
        Heading(words.outcomes, f"rows with the outcome; where weighted, the {words.observed} times the rows"),
        Heading(words.expected, "mean of the scores"),
        Heading(words.observed, "mean outcome"),
        Heading(f"{share} interval", f"Jeffreys's, of the {words.observed}", "interval"),
        Heading(f"{words.score} is", f"where the {words.expected} lies against the interval", "state"),
        Heading("p", f"chance that the true {words.observed} is at most the {words.expected}"),
    )
    rows = tuple(_row(one, level) for one in [*grades, total])
    return Section(plan.title, " ".join(part for part in (plan.lead, said) if part), TableView(headings, rows, 0))


def _column(audit: Audit, names: Sequence[str]) -> int | None:
    """Find the first of these names among the columns that form segments."""
    there = {feature.name.casefold(): at for at, feature in reversed(list(enumerate(audit.schema.features)))}
    found = (there[name.casefold()] for name in names if name.casefold() in there)
    return next((at for at in found if levels_of(audit, at)), None)


def _levels(audit: Audit, column: int) -> list[Grade]:
    found = audit.columns
    return [
        Grade(value_of(audit, column, at), *(found[name][at].item() for name in ("n", "observed", "expected")))
        for at in levels_of(audit, column)
    ]


def _bands(audit: Audit) -> list[Grade]:
    """Take the bins of the reliability curve of the whole; a band is named by its number, the lowest score first."""
    curve = audit.overall.curve
    if curve is None:
        return []
    bins = zip(curve.rows.tolist(), curve.observed.tolist(), curve.predicted.tolist(), strict=True)
    return [Grade(f"band {at}", *values) for at, values in enumerate(bins, start=1)]


def _row(grade: Grade, level: float) -> tuple[Cell, ...]:
    events = min(max(grade.observed, 0.0), 1.0) * grade.rows
    near = round(events)
    whole = abs(events - near) < 1e-6 * max(1.0, events)
    events = float(near) if whole else events  # sums leave a trace of an event where there is none
    low, high = jeffreys(events, grade.rows, level)
    state = "too low" if grade.expected < low else "too high" if grade.expected > high else "inside"
    chance = jeffreys_below(events, grade.rows, grade.expected)
    told = f"{near:,}" if whole else f"{events:,.1f}"
    return (
        name_cell(grade.name), number_cell(grade.rows, f"{grade.rows:,}"), number_cell(events, told),
        number_cell(grade.expected), number_cell(grade.observed), Cell(f"{number(low)} to {number(high)}", "interval"),
        Cell(state, "state", str(STATES.index(state)), state="fine" if state == "inside" else "off"),
        number_cell(chance, number(chance, 2)),
    )  # fmt: skip
