"""How one column is cut: its levels, its values, bins between edges, or periods of the calendar; and their labels."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from trueup._validate import check_choice
from trueup.data.columns import days_of, format_number
from trueup.errors import ArgumentError
from trueup.kernels.binning import digitize, order_statistics

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trueup._types import AnyArray, BoolArray, FloatArray, Int32Array, IntArray
    from trueup.data.schema import Feature


CALENDAR = ("year", "quarter", "month", "week", "day")
# The finest period that a column of so many days is cut by unless told: some 20 of them, or fewer.
PERIODS = ((21, "day"), (140, "week"), (550, "month"), (8 * 366, "quarter"))
DEFAULT_BINS = 10


@dataclass(frozen=True, eq=False)
class Cutter:
    """How a column is cut, so that rows that come later, or in pieces, are cut alike.

    ``marks`` are the distinct values, the edges of bins, or the periods of the calendar, by ``how``; missing is the last
    label, where there are such rows.
    """

    name: str
    how: Literal["levels", "values", "edges", "periods"]
    labels: tuple[str, ...]
    marks: AnyArray
    missing: bool
    unit: str = ""

    def codes(self, column: AnyArray) -> Int32Array:
        """Give every row its code: the position of its label."""
        absent = column < 0 if self.how == "levels" else np.isnan(column)
        if self.how == "levels":
            out = np.ascontiguousarray(column, np.int32)
        elif self.how == "edges":
            out = np.empty(len(column), np.int32)
            digitize(column, self.marks, out)
        else:
            known = _periods(column, absent, self.unit) if self.how == "periods" else column
            out = np.searchsorted(self.marks, known).astype(np.int32)
        return np.where(absent, np.int32(len(self.labels) - 1), out) if self.missing else out


def cut(feature: Feature, column: AnyArray, told: Any = None, usual: int = DEFAULT_BINS) -> Cutter:
    """Settle how a column is cut, by its values; ``told`` is what the user says of it, if anything."""
    name = feature.name
    if feature.kind == "categorical":
        if told is not None:
            raise ArgumentError(
                f"bins are given for column {name!r}, which is categorical",
                hint="only numbers and dates are cut into bins",
            )
        return _cutter(name, "levels", [f"{name}={level}" for level in feature.levels], np.empty(0), column < 0)
    absent = np.isnan(column)
    write = day_text if feature.kind == "date" else format_number
    if feature.kind == "date" and (told is None or isinstance(told, str)):
        unit = told or calendar_unit(column)
        check_choice(
            "the calendar bins of a date column", unit, CALENDAR, "a day is the finest; dates as edges cut anywhere"
        )
        periods = np.unique(_periods(column, absent, unit)[~absent])
        return _cutter(name, "periods", [f"{name}={_period_text(int(at), unit)}" for at in periods], periods, absent, unit)
    if told is None or isinstance(told, (int, np.integer)):
        distinct, edges = cut_edges(
            column[~absent] if absent.any() else column, check_count(name, usual if told is None else told)
        )
        if distinct is not None:
            return _cutter(name, "values", [f"{name}={write(float(x))}" for x in distinct], distinct, absent)
    else:
        edges = _check_edges(name, told, dates=feature.kind == "date")
    return _cutter(name, "edges", interval_labels(name, [write(float(x)) for x in edges]), edges, absent)


def _cutter(name: str, how: Any, labels: list[str], marks: AnyArray, absent: BoolArray, unit: str = "") -> Cutter:
    """Give missing rows a level of their own, the last, where there are any."""
    some = bool(absent.any())
    return Cutter(name, how, tuple([*labels, f"{name} is missing"] if some else labels), marks, some, unit)


def interval_labels(name: str, edges: Sequence[str]) -> list[str]:
    """Write the bins between edges."""
    if not edges:
        return [f"{name}=any"]
    inner = [f"{name}=[{low}, {high})" for low, high in itertools.pairwise(edges)]
    return [f"{name}<{edges[0]}", *inner, f"{name}>={edges[-1]}"]


def check_count(name: str, count: Any) -> int:
    """Refuse what is no number of bins."""
    if isinstance(count, bool) or not isinstance(count, (int, np.integer)) or not 1 <= count <= 10_000:
        raise ArgumentError(f"the number of bins of {name!r} must be a whole number from 1 to 10,000; got {count!r}")
    return int(count)


def _check_edges(name: str, given: Any, *, dates: bool) -> FloatArray:
    try:
        edges = days_of(np.array(given, "datetime64[us]")) if dates else np.array(given, np.float64)
    except (TypeError, ValueError):
        edges = np.empty((0, 0))
    if edges.ndim != 1 or not len(edges) or not np.isfinite(edges).all() or (np.diff(edges) <= 0).any():
        kinds = f"ascending dates, or one of {', '.join(CALENDAR)}" if dates else "ascending finite numbers"
        raise ArgumentError(f"bins of column {name!r} must be a number of bins or a list of {kinds}; got {given!r}")
    return edges


def cut_edges(values: FloatArray, count: int) -> tuple[FloatArray | None, FloatArray]:
    """Cut numbers, none missing: give the distinct values where they are kept apart, else None; and the edges of bins."""
    distinct = _few_distinct(values, count)
    return (None, _quantile_edges(values, count)) if distinct is None else (distinct, distinct[1:])


def _few_distinct(values: FloatArray, count: int) -> FloatArray | None:
    """Give the distinct values where there are no more than ``count`` of them."""
    if len(np.unique(values[:1000])) > count:
        return None
    distinct = np.unique(values)
    return distinct if len(distinct) <= count else None


def _quantile_edges(values: FloatArray, count: int) -> FloatArray:
    """Cut into bins of equal numbers of rows, at round numbers where that moves no edge far.

    A value that fills more than a bin has one of its own, and the quantiles are those of the other rows: a column that is 0
    nine times in ten would be one bin otherwise.
    """
    ranks = np.unique((np.arange(1, count) * len(values)) // count)
    if not len(ranks) or not len(values):
        return np.empty(0)
    edges, times = np.unique(order_statistics(values, ranks), return_counts=True)
    heavy = edges[(times > 1) & np.isfinite(edges)]
    kept = np.empty(0)
    if len(heavy):
        rest = values[~np.isin(values, heavy)]
        kept = np.concatenate([heavy, [_after(value, rest) for value in heavy]])
        ranks = np.unique((np.arange(1, max(count - len(heavy), 1)) * len(rest)) // max(count - len(heavy), 1))
        edges = np.unique(order_statistics(rest, ranks)) if len(rest) and len(ranks) else np.empty(0)
        edges = np.setdiff1d(edges, kept)
    # The lowest value of all would leave the first bin empty. An infinite edge cannot be rounded or written.
    edges, kept = (some[(some > values.min()) & np.isfinite(some)] for some in (edges, kept))
    gaps = np.diff(edges, prepend=edges[:1] - 1.0, append=edges[-1:] + 1.0)
    if len(edges) > 1:
        gaps[0], gaps[-1] = gaps[1], gaps[-2]
    return np.unique([*kept, *(_round(edge, 0.05 * min(gaps[at], gaps[at + 1])) for at, edge in enumerate(edges))])


def _after(value: float, rest: FloatArray) -> float:
    """Give an edge just above a value: the next whole number where that passes none of the others, else the next value."""
    above = rest[rest > value]
    if not len(above):
        return float("inf")
    lowest = float(above.min())
    return value + 1.0 if float(value).is_integer() and value + 1.0 <= lowest else lowest


def _round(value: float, slack: float) -> float:
    """Round to the fewest decimals that move the value by no more than ``slack``.

    Examples
    --------
    >>> _round(37.28411, 0.05), _round(12345.6, 100), _round(3.0, 0.0)
    (37.3, 12300.0, 3.0)
    """
    if slack <= 0 or value == 0:
        return value
    first = -math.ceil(math.log10(max(abs(value), slack)))
    for decimals in range(first, first + 18):
        rounded = round(value, decimals)
        if abs(rounded - value) <= slack:
            return float(rounded)
    return value


def day_text(value: float) -> str:
    """Write a time given in days: the date, and the time of day where it is not midnight.

    Examples
    --------
    >>> day_text(19723.0), day_text(19723.5)
    ('2024-01-01', '2024-01-01T12:00:00')
    """
    if value.is_integer():
        return str(np.datetime64(int(value), "D"))
    return str(np.datetime64(round(value * 86_400), "s"))


def calendar_unit(days: FloatArray) -> str:
    """Choose the period by which dates are cut: days where there are few, else weeks, months, quarters or years.

    Examples
    --------
    >>> calendar_unit(np.array([19723.0, 19730.0])), calendar_unit(np.array([19000.0, np.nan, 19723.0]))
    ('day', 'quarter')
    """
    known = days[np.isfinite(days)]
    span = np.floor(known.max()) - np.floor(known.min()) + 1 if len(known) else 0
    return next((unit for most, unit in PERIODS if span <= most), "year")


def _periods(column: FloatArray, absent: BoolArray, unit: str) -> IntArray:
    """Number the calendar period of every date; what is missing gets any."""
    whole = np.floor(np.where(absent, 0.0, column)).astype(np.int64)
    if unit == "day":
        return whole
    if unit == "week":
        return (whole + 3) // 7  # 1970-01-01 was a Thursday; weeks begin on Monday
    months = whole.astype("datetime64[D]").astype("datetime64[M]").astype(np.int64)
    period: IntArray = months // {"year": 12, "quarter": 3, "month": 1}[unit]
    return period


def _period_text(at: int, unit: str) -> str:
    if unit == "year":
        return str(1970 + at)
    if unit == "quarter":
        return f"{1970 + at // 4}Q{at % 4 + 1}"
    if unit == "month":
        return str(np.datetime64(at, "M"))
    if unit == "week":
        return f"{np.datetime64(at * 7 - 3, 'D')} to {np.datetime64(at * 7 + 3, 'D')}"
    return str(np.datetime64(at, "D"))
