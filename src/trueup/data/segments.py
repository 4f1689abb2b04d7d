"""Columns become codes with readable labels, and codes become combinations of columns."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.data.checks import one_of
from trueup.data.columns import days_of, format_number
from trueup.errors import ArgumentError, ColumnError
from trueup.kernels.binning import digitize, order_statistics

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trueup.data.schema import Feature
    from trueup.data.table import Table

__all__ = [
    "Plan",
    "SegmentColumn",
    "calendar_unit",
    "cut_edges",
    "day_text",
    "interval_labels",
    "named_bins",
    "own_segments",
    "plan",
    "segment_column",
]

CALENDAR = ("year", "quarter", "month", "week", "day")
# The finest period that a column of so many days is cut by unless told: some 20 of them, or fewer.
PERIODS = ((21, "day"), (140, "week"), (550, "month"), (8 * 366, "quarter"))
DEFAULT_BINS = 10


@dataclass(frozen=True, eq=False)
class SegmentColumn:
    """A column as segments: every row has a code, missing is a level of its own, and each level has a label."""

    name: str
    codes: NDArray[np.int32]
    labels: tuple[str, ...]


def named_bins(table: Table, bins: int | Mapping[Any, Any]) -> int | dict[str, Any]:
    """Check that bins are given for columns that are there; a column of an array may be named by its position."""
    if not isinstance(bins, Mapping):
        return _check_count("every numeric column", bins)
    found = {}
    for key, told in bins.items():
        name = next((name for name in (key, str(key), f"x{key}") if name in table.columns), None)
        if name is None:
            known = ", ".join(list(table.columns)[:12]) or "none"
            raise ColumnError(
                f"bins are given for column {key!r}, which is not among the segment columns",
                hint=f"the segment columns are {known}",
            )
        found[str(name)] = told
    return found


def segment_column(table: Table, feature: Feature, bins: int | Mapping[str, Any] = DEFAULT_BINS) -> SegmentColumn:
    """Turn one feature of a table into segments.

    Parameters
    ----------
    table : Table
    feature : Feature
        One of its schema's.
    bins : int or mapping
        How numeric columns are cut: a number of quantile bins, or per column a number or ascending edges (bins are
        closed on the left). A numeric column of no more distinct values than bins keeps them as they are. Dates are
        cut by the calendar, as finely as `calendar_unit` says; per column "year", "quarter", "month", "week" or "day",
        or edges, say otherwise.

    Examples
    --------
    >>> from trueup.data.intake import read
    >>> table = read({"p": [.1, .2, .3], "y": [0, 1, 0], "age": [17, 40, None]}, outcome="y", prediction="p")
    >>> segment_column(table, table.schema.features[0], {"age": [18, 30]}).labels
    ('age<18', 'age=[18, 30)', 'age>=30', 'age is missing')
    """
    if isinstance(bins, Mapping):
        return _segment(feature, table.columns[feature.name], bins.get(feature.name), DEFAULT_BINS)
    return _segment(feature, table.columns[feature.name], None, bins)


def _segment(feature: Feature, column: NDArray[Any], told: Any, usual: int) -> SegmentColumn:
    name = feature.name
    if feature.kind == "categorical":
        if told is not None:
            raise ArgumentError(
                f"bins are given for column {name!r}, which is categorical",
                hint="only numbers and dates are cut into bins",
            )
        return _with_missing(name, column, [f"{name}={level}" for level in feature.levels], column < 0)
    missing = np.isnan(column)
    write = day_text if feature.kind == "date" else format_number
    if feature.kind == "date" and (told is None or isinstance(told, str)):
        codes, texts = _calendar(column, missing, told or calendar_unit(column))
        return _with_missing(name, codes, [f"{name}={text}" for text in texts], missing)
    if told is None or isinstance(told, (int, np.integer)):
        count = _check_count(name, usual if told is None else told)
        distinct, edges = cut_edges(column[~missing] if missing.any() else column, count)
        if distinct is not None:
            codes = np.searchsorted(distinct, column).astype(np.int32)
            return _with_missing(name, codes, [f"{name}={write(float(x))}" for x in distinct], missing)
    else:
        edges = _check_edges(name, told, dates=feature.kind == "date")
    codes = np.empty(len(column), np.int32)
    digitize(column, edges, codes)
    return _with_missing(name, codes, interval_labels(name, [write(float(x)) for x in edges]), missing)


def _with_missing(name: str, codes: NDArray[Any], labels: list[str], missing: NDArray[np.bool_]) -> SegmentColumn:
    """Give missing rows a level of their own, the last, where there are any."""
    if missing.any():
        codes = np.where(missing, np.int32(len(labels)), codes)
        labels = [*labels, f"{name} is missing"]
    return SegmentColumn(name, np.ascontiguousarray(codes, np.int32), tuple(labels))


def interval_labels(name: str, edges: Sequence[str]) -> list[str]:
    """Write the bins between edges."""
    if not edges:
        return [f"{name}=any"]
    inner = [f"{name}=[{low}, {high})" for low, high in itertools.pairwise(edges)]
    return [f"{name}<{edges[0]}", *inner, f"{name}>={edges[-1]}"]


def _check_count(name: str, count: Any) -> int:
    if isinstance(count, bool) or not isinstance(count, (int, np.integer)) or not 1 <= count <= 10_000:
        raise ArgumentError(f"the number of bins of {name!r} must be a whole number from 1 to 10,000; got {count!r}")
    return int(count)


def _check_edges(name: str, given: Any, *, dates: bool) -> NDArray[np.float64]:
    try:
        edges = days_of(np.array(given, "datetime64[us]")) if dates else np.array(given, np.float64)
    except (TypeError, ValueError):
        edges = np.empty((0, 0))
    if edges.ndim != 1 or not len(edges) or not np.isfinite(edges).all() or (np.diff(edges) <= 0).any():
        kinds = f"ascending dates, or one of {', '.join(CALENDAR)}" if dates else "ascending finite numbers"
        raise ArgumentError(f"bins of column {name!r} must be a number of bins or a list of {kinds}; got {given!r}")
    return edges


def cut_edges(values: NDArray[np.float64], count: int) -> tuple[NDArray[np.float64] | None, NDArray[np.float64]]:
    """Cut numbers, none missing: give the distinct values where they are kept apart, else None; and the edges of bins."""
    distinct = _few_distinct(values, count)
    return (None, _quantile_edges(values, count)) if distinct is None else (distinct, distinct[1:])


def _few_distinct(values: NDArray[np.float64], count: int) -> NDArray[np.float64] | None:
    """Give the distinct values where there are no more than ``count`` of them."""
    if len(np.unique(values[:1000])) > count:
        return None
    distinct = np.unique(values)
    return distinct if len(distinct) <= count else None


def _quantile_edges(values: NDArray[np.float64], count: int) -> NDArray[np.float64]:
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


def _after(value: float, rest: NDArray[np.float64]) -> float:
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


def calendar_unit(days: NDArray[np.float64]) -> str:
    """Choose the period by which dates are cut: days where there are few, else weeks, months, quarters or years.

    Examples
    --------
    >>> calendar_unit(np.array([19723.0, 19730.0])), calendar_unit(np.array([19000.0, np.nan, 19723.0]))
    ('day', 'quarter')
    """
    known = days[np.isfinite(days)]
    span = np.floor(known.max()) - np.floor(known.min()) + 1 if len(known) else 0
    return next((unit for most, unit in PERIODS if span <= most), "year")


def _calendar(column: NDArray[np.float64], missing: NDArray[np.bool_], unit: str) -> tuple[NDArray[np.int32], list[str]]:
    """Code dates by calendar period; give the text of each period that occurs."""
    one_of("the calendar bins of a date column", unit, CALENDAR, hint="a day is the finest; dates as edges cut anywhere")
    whole = np.floor(np.where(missing, 0.0, column)).astype(np.int64)
    days = whole.astype("datetime64[D]")
    if unit == "day":
        period = whole
    elif unit == "week":
        period = (whole + 3) // 7  # 1970-01-01 was a Thursday; weeks begin on Monday
    else:
        months = days.astype("datetime64[M]").astype(np.int64)
        period = months // {"year": 12, "quarter": 3, "month": 1}[unit]
    found, codes = np.unique(period[~missing], return_inverse=True)
    out = np.zeros(len(column), np.int32)
    out[~missing] = codes
    return out, [_period_text(int(at), unit) for at in found]


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


def own_segments(
    table: Table, segments: Mapping[str, Any] | None, rows: int, taken: Collection[str]
) -> dict[str, NDArray[np.bool_]]:
    """Check the user's own segments: boolean arrays, one entry a row of the data as it came in, with names not taken."""
    if segments is not None and not isinstance(segments, Mapping):
        raise ArgumentError(
            f"segments must be a dict of names and boolean arrays; got {type(segments).__name__}",
            hint='write it as segments={"over 70": age > 70}',
        )
    checked: dict[str, NDArray[np.bool_]] = {}
    for name, given in (segments or {}).items():
        if not str(name) or str(name) in {*checked, *taken}:
            raise ArgumentError(
                f"a segment cannot be called {str(name)!r}", hint="each needs a name that no other segment has"
            )
        mask = np.asarray(given)
        if mask.dtype != np.bool_ or mask.ndim != 1:
            raise ArgumentError(
                f"segment {name!r} must be a one-dimensional boolean array; got {mask.dtype} of shape {mask.shape}",
                hint="write it as a comparison, such as age > 70, with missing values decided",
            )
        if len(mask) != rows:
            raise ArgumentError(f"segment {name!r} has {len(mask)} entries and the data {rows} rows")
        checked[str(name)] = mask if table.kept is None else mask[table.kept]
    return checked


@dataclass(frozen=True)
class Plan:
    """Which combinations of columns are audited, and which were dropped to stay within the budget of cells."""

    combinations: tuple[tuple[int, ...], ...]
    dropped: tuple[tuple[int, ...], ...]


def plan(levels: Sequence[int], rows: int, *, depth: int, min_rows: int, max_cells: int) -> Plan:
    """Choose the combinations of two columns and more; the deepest and largest are dropped first where too many.

    Parameters
    ----------
    levels : sequence of int
        How many levels of each column have rows enough.
    rows, depth, min_rows, max_cells : int
        A combination costs the most segments it can have: the product of its levels, or rows / min_rows if less.

    Examples
    --------
    >>> plan([10, 10, 2], 10_000, depth=3, min_rows=10, max_cells=200)
    Plan(combinations=((0, 1), (0, 2), (1, 2)), dropped=((0, 1, 2),))
    """
    most = max(rows // max(min_rows, 1), 1)
    columns = range(len(levels))
    chosen = [c for d in range(2, depth + 1) for c in itertools.combinations(columns, d)]
    cost = {c: min(math.prod(levels[at] for at in c), most) for c in chosen}
    total = sum(levels) + sum(cost.values())
    dropped = []
    for combination in sorted(chosen, key=lambda c: (-len(c), -cost[c], c)):
        if total <= max_cells:
            break
        total -= cost[combination]
        dropped.append(combination)
    gone = set(dropped)
    return Plan(tuple(c for c in chosen if c not in gone), tuple(sorted(dropped)))
