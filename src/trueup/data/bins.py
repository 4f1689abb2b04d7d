"""Columns as segments: the levels of a category, intervals of numbers or calendar periods, and combinations of columns."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup._validate import check_choice, check_integer
from trueup.data.columns import days_of, format_number
from trueup.errors import ArgumentError, ColumnError
from trueup.kernels.sorting import digitize, order_statistics

if TYPE_CHECKING:
    from trueup._types import AnyArray, BoolArray, FloatArray, Int32Array, IntArray
    from trueup.data.table import Feature, Table

CALENDAR = ("year", "quarter", "month", "week", "day")
# The finest default period for dates that span so many days: about 20 periods at most, then years.
MAX_SPANS = ((21, "day"), (140, "week"), (550, "month"), (8 * 366, "quarter"))
DEFAULT_BINS = 10
MAX_BINS = 10_000
QUICK_ROWS = 1_000  # rows looked at first: most columns have too many distinct values already here


@dataclass(frozen=True, eq=False)
class ColumnBinner:
    """Bins of one column, fitted on some rows and applied to any; the bin of a number is how many edges are <= it."""

    name: str
    edges: AnyArray | None  # None for a categorical column, whose codes are its bins; with a unit, the periods with rows
    labels: tuple[str, ...]  # such as "income=[18.5, 30)", "age=18 to 29" or "country=BR"
    unit: str = ""  # of the calendar
    has_missing_bin: bool = True  # the last, for missing values and levels without a label

    def codes(self, column: AnyArray) -> Int32Array:
        """Return the bin of every row of a ``column`` of a Table."""
        missing_bin = len(self.labels) - 1
        if self.edges is None:
            codes = np.ascontiguousarray(column, np.int32)
            if not self.has_missing_bin:
                return codes
            missing = (codes < 0) | (codes >= missing_bin)
        else:
            missing = np.isnan(column)
            if self.unit:
                codes = np.searchsorted(self.edges, _periods(column, missing, self.unit)).astype(np.int32)
            else:
                codes = np.empty(len(column), np.int32)
                digitize(np.ascontiguousarray(column, np.float64), self.edges, codes)
        return np.where(missing, np.int32(missing_bin), codes) if self.has_missing_bin else codes

    def code_of(self, value: float) -> int:
        """Return the bin of one level code or number; not for binners of calendar periods."""
        missing_bin = len(self.labels) - 1
        if self.edges is None:
            return int(value) if 0 <= value < missing_bin else missing_bin
        return missing_bin if np.isnan(value) else int(np.searchsorted(self.edges, value, side="right"))


def fit_binner(
    feature: Feature, column: AnyArray, bins: Any = None, default_bins: int = DEFAULT_BINS, *, for_new_rows: bool = False
) -> ColumnBinner:
    """Find the bins of a column: one per level, calendar period or distinct number; quantile bins for many numbers.

    ``bins`` is the user's choice for this column: a number of bins, their edges, or for dates a calendar period. Bins
    ``for_new_rows``, not known yet, always include one for missing values, and dates have quantile bins, since the periods
    of later rows would not be among those found here.
    """
    name, is_date = feature.name, feature.kind == "date"
    if feature.kind == "categorical":
        if bins is not None:
            raise ArgumentError(
                f"bins are given for column {name!r}, which is categorical",
                hint="only numbers and dates are divided into bins",
                parameter="bins",
            )
        return _binner(name, None, [f"{name}={level}" for level in feature.levels], column < 0, for_new_rows=for_new_rows)
    missing = np.isnan(column)
    if is_date and (isinstance(bins, str) or (bins is None and not for_new_rows)):
        unit = bins or calendar_unit(column)
        hint = "a day is the shortest period; dates as edges divide anywhere"
        check_choice(f"bins[{name!r}]", unit, CALENDAR, hint)
        periods = np.unique(_periods(column, missing, unit)[~missing])
        labels = [f"{name}={_format_period(int(period), unit)}" for period in periods]
        return _binner(name, periods, labels, missing, unit, for_new_rows=for_new_rows)
    write = format_date if is_date else format_number
    if bins is not None and not isinstance(bins, (int, np.integer)):
        edges, distinct = _check_edges(name, bins, dates=is_date), None
    else:
        count = default_bins if bins is None else check_bin_count(f"bins[{name!r}]", bins)
        distinct, edges = find_edges(column[~missing] if missing.any() else column, count)
    if distinct is None:
        texts = [write(float(edge)) for edge in edges]
        integers = not is_date and _are_integers(edges) and _are_integers(column)
        ranges = itertools.pairwise(edges.tolist() if integers else texts)
        labels = [f"{name}={_format_range(low, high)}" for low, high in ranges]
        labels = [f"{name}<{texts[0]}", *labels, f"{name}>={texts[-1]}"] if texts else [f"{name}=any"]
    else:
        labels = [f"{name}={write(float(value))}" for value in distinct]
        labels = labels or ([f"{name}=any"] if for_new_rows else [])
    return _binner(name, edges, labels, missing, for_new_rows=for_new_rows)


def _are_integers(column: FloatArray) -> bool:
    """Return whether all values, except missing ones, are integers that can be counted."""
    parts = (column[:QUICK_ROWS], column)
    return all(bool((np.isnan(part) | ((part == np.floor(part)) & (np.abs(part) < 1e15))).all()) for part in parts)


def _format_range(low: float | str, high: float | str) -> str:
    """Format a bin that is closed on the left: "[low, high)" of texts, "low to high - 1" of integers."""
    if isinstance(low, str) or isinstance(high, str):
        return f"[{low}, {high})"
    return format_number(low) if high - low == 1 else f"{format_number(low)} to {format_number(high - 1)}"


def _binner(
    name: str, edges: AnyArray | None, labels: list[str], missing: BoolArray, unit: str = "", *, for_new_rows: bool
) -> ColumnBinner:
    has_missing_bin = for_new_rows or bool(missing.any())
    return ColumnBinner(
        name, edges, tuple([*labels, f"{name} is missing"] if has_missing_bin else labels), unit, has_missing_bin
    )


def check_bin_count(name: str, count: Any) -> int:
    """Raise unless ``count`` is a valid number of bins; return it."""
    check_integer(name, count, 1, MAX_BINS)
    return int(count)


def _check_edges(name: str, bins: Any, *, dates: bool) -> FloatArray:
    try:
        edges = days_of(np.array(bins, "datetime64[us]")) if dates else np.array(bins, np.float64)
    except (TypeError, ValueError):
        edges = np.empty((0, 0))
    if edges.ndim != 1 or not len(edges) or not np.isfinite(edges).all() or (np.diff(edges) <= 0).any():
        kinds = f"ascending dates, or one of {', '.join(CALENDAR)}" if dates else "ascending finite numbers"
        raise ArgumentError(
            f"bins of column {name!r} must be a number of bins or a list of {kinds}; got {bins!r}", parameter="bins"
        )
    return edges


def find_edges(values: FloatArray, count: int) -> tuple[FloatArray | None, FloatArray]:
    """Return the distinct values if at most ``count``, each with its own bin, else None; and the edges between bins."""
    if len(np.unique(values[:QUICK_ROWS])) <= count:
        distinct = np.unique(values)
        if len(distinct) <= count:
            return distinct, distinct[1:]
    return None, _quantile_edges(values, count)


def _quantile_edges(values: FloatArray, count: int) -> FloatArray:
    """Return the edges of ``count`` bins with equal numbers of rows, rounded where that moves no edge far.

    A value with more rows than a bin has a bin of its own, and the quantiles are those of the other rows: a column
    that is 0 in nine rows of ten would have a single bin otherwise.
    """
    ranks = np.unique((np.arange(1, count) * len(values)) // count)
    if not len(ranks) or not len(values):
        return np.empty(0)
    edges, times = np.unique(order_statistics(values, ranks), return_counts=True)
    heavy = edges[(times > 1) & np.isfinite(edges)]
    heavy_edges = np.empty(0)
    if len(heavy):
        rest = values[~np.isin(values, heavy)]
        heavy_edges = np.concatenate([heavy, [_next_edge(value, rest) for value in heavy]])
        ranks = np.unique((np.arange(1, max(count - len(heavy), 1)) * len(rest)) // max(count - len(heavy), 1))
        edges = np.unique(order_statistics(rest, ranks)) if len(rest) and len(ranks) else np.empty(0)
        edges = np.setdiff1d(edges, heavy_edges)
    # The lowest value of all would leave the first bin empty. An infinite edge cannot be rounded or written.
    edges, heavy_edges = (some[(some > values.min()) & np.isfinite(some)] for some in (edges, heavy_edges))
    gaps = np.diff(edges, prepend=edges[:1] - 1.0, append=edges[-1:] + 1.0)
    if len(edges) > 1:
        gaps[0], gaps[-1] = gaps[1], gaps[-2]
    rounded = (_round(edge, 0.05 * min(gaps[index], gaps[index + 1])) for index, edge in enumerate(edges))
    return np.unique([*heavy_edges, *rounded])


def _next_edge(value: float, rest: FloatArray) -> float:
    """Return the next larger value of ``rest`` (infinity if none), or ``value + 1`` if it is an integer and not larger."""
    above = rest[rest > value]
    if not len(above):
        return float("inf")
    lowest = float(above.min())
    return value + 1.0 if float(value).is_integer() and value + 1.0 <= lowest else lowest


def _round(value: float, slack: float) -> float:
    """Round to the fewest decimals that move the value by at most ``slack``: 37.28 to 37.3 for 0.05."""
    if slack <= 0 or value == 0:
        return value
    first = -math.ceil(math.log10(max(abs(value), slack)))
    for decimals in range(first, first + 18):
        rounded = round(value, decimals)
        if abs(rounded - value) <= slack:
            return float(rounded)
    return value


def format_date(value: float) -> str:
    """Format days since 1970-01-01 as a date, with the time of day unless it is midnight."""
    if value.is_integer():
        return str(np.datetime64(int(value), "D"))
    return str(np.datetime64(round(value * 86_400), "s"))


def calendar_unit(days: FloatArray) -> str:
    """Choose the calendar period for bins of dates by their span: days for a few weeks, then weeks, months and so on."""
    known = days[np.isfinite(days)]
    span = np.floor(known.max()) - np.floor(known.min()) + 1 if len(known) else 0
    return next((unit for longest, unit in MAX_SPANS if span <= longest), "year")


def _periods(column: FloatArray, missing: BoolArray, unit: str) -> IntArray:
    """Return the calendar period of every date, counted from that of 1970-01-01; missing dates get 0."""
    days = np.floor(np.where(missing, 0.0, column)).astype(np.int64)
    if unit == "day":
        return days
    if unit == "week":
        return (days + 3) // 7  # 1970-01-01 was a Thursday; weeks begin on Monday
    months = days.astype("datetime64[D]").astype("datetime64[M]").astype(np.int64)
    periods: IntArray = months // {"year": 12, "quarter": 3, "month": 1}[unit]
    return periods


def _format_period(period: int, unit: str) -> str:
    if unit == "year":
        return str(1970 + period)
    if unit == "quarter":
        return f"{1970 + period // 4}Q{period % 4 + 1}"
    if unit == "week":
        return f"{np.datetime64(period * 7 - 3, 'D')} to {np.datetime64(period * 7 + 3, 'D')}"
    return str(np.datetime64(period, "M" if unit == "month" else "D"))


@dataclass(frozen=True, eq=False)
class SegmentColumn:
    """A column as segments: a code per row and a label per code; missing values have a code of their own."""

    name: str
    codes: Int32Array
    labels: tuple[str, ...]


def check_bins(columns: Collection[str], bins: int | Mapping[Any, Any]) -> int | dict[str, Any]:
    """Validate ``bins``, a number or a choice per column (``...`` for all others); return it with column names as keys."""
    if not isinstance(bins, Mapping):
        return check_bin_count("bins", bins)
    checked: dict[Any, Any] = {}
    for key, choice in bins.items():
        if key is ...:
            checked[key] = check_bin_count("bins[...]", choice)
            continue
        name = next((name for name in (key, str(key), f"x{key}") if name in columns), None)  # x0 is the first of an array
        if name is None:
            raise ColumnError(
                f"bins are given for column {key!r}, which is not among the segment columns",
                hint=f"the segment columns are {', '.join(list(columns)[:12]) or 'none'}",
                parameter="bins",
            )
        checked[str(name)] = choice
    return checked


def bins_for(name: str, bins: int | Mapping[Any, Any]) -> tuple[Any, int]:
    """Return the user's choice of bins for the column ``name`` (None without one), and the default number of bins."""
    return (bins.get(name), bins.get(..., DEFAULT_BINS)) if isinstance(bins, Mapping) else (None, bins)


def segment_column(table: Table, feature: Feature, bins: int | Mapping[str, Any] = DEFAULT_BINS) -> SegmentColumn:
    """Divide one feature of a table into segments; ``bins`` is as in `check_bins`, each choice as in `fit_binner`."""
    column = table.columns[feature.name]
    binner = fit_binner(feature, column, *bins_for(feature.name, bins))
    return SegmentColumn(feature.name, binner.codes(column), binner.labels)


def check_segments(
    table: Table, segments: Mapping[str, Any] | None, rows: int, taken: Collection[str]
) -> dict[str, BoolArray]:
    """Validate user ``segments``: masks of ``rows`` input rows by names not in ``taken``; return masks of the rows kept."""
    if segments is not None and not isinstance(segments, Mapping):
        raise ArgumentError(
            f"segments must be a dict of names and boolean arrays; got {type(segments).__name__}",
            hint='write it as segments={"over 70": age > 70}',
            parameter="segments",
        )
    checked: dict[str, BoolArray] = {}
    for name, given in (segments or {}).items():
        if not str(name) or str(name) in {*checked, *taken}:
            raise ArgumentError(
                f"a segment cannot be called {str(name)!r}", hint="each needs a name that no other segment has"
            )
        mask = np.asarray(given)
        if mask.dtype != np.bool_ or mask.ndim != 1:
            raise ArgumentError(
                f"segment {name!r} must be a one-dimensional boolean array; got {mask.dtype} of shape {mask.shape}",
                hint="write it as a comparison, such as age > 70, and decide about missing values",
            )
        if len(mask) != rows:
            raise ArgumentError(f"segment {name!r} has {len(mask)} entries and the data {rows} rows")
        checked[str(name)] = mask if table.kept is None else mask[table.kept]
    return checked


def plan_combinations(
    levels: Mapping[str, int], rows: int, *, depth: int, min_rows: int, max_cells: int
) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """Return the combinations of 2 to ``depth`` columns to test, and those dropped; ``levels`` has the levels by column.

    A combination costs the maximum number of its segments: the product of its levels, or rows / min_rows if less. While the
    total exceeds ``max_cells``, the deepest and then the most expensive combination is dropped; of equally expensive ones
    the last by column names, so that the order of the columns does not matter.
    """
    names, counts = list(levels), list(levels.values())
    max_segments = max(rows // max(min_rows, 1), 1)
    columns = range(len(counts))
    every = [group for size in range(2, depth + 1) for group in itertools.combinations(columns, size)]
    cost = {group: min(math.prod(counts[column] for column in group), max_segments) for group in every}
    total = sum(counts) + sum(cost.values())
    dropped = set()
    by_name = {group: sorted(names[column] for column in group) for group in every}
    for group in sorted(every, key=lambda group: (len(group), cost[group], by_name[group]), reverse=True):
        if total <= max_cells:
            break
        total -= cost[group]
        dropped.add(group)
    return [group for group in every if group not in dropped], sorted(dropped)
