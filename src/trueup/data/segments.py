"""Columns become codes with readable labels, and codes become combinations of columns."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.data.bins import DEFAULT_BINS, check_bin_count, fit_binner
from trueup.errors import ArgumentError, ColumnError

if TYPE_CHECKING:
    from trueup._types import BoolArray, Int32Array
    from trueup.data.schema import Feature
    from trueup.data.table import Table


@dataclass(frozen=True, eq=False)
class SegmentColumn:
    """A column as segments: every row has a code, missing is a level of its own, and each level has a label."""

    name: str
    codes: Int32Array
    labels: tuple[str, ...]


def check_bins(columns: Collection[str], bins: int | Mapping[Any, Any]) -> int | dict[str, Any]:
    """Check that bins are given for columns that are there; a column of an array may be named by its position.

    The key ``...`` stands for every other numeric column; so does a number by itself.
    """
    if not isinstance(bins, Mapping):
        return check_bin_count("bins", bins)
    found: dict[Any, Any] = {}
    for key, told in bins.items():
        if key is ...:
            found[key] = check_bin_count("bins[...]", told)
            continue
        name = next((name for name in (key, str(key), f"x{key}") if name in columns), None)
        if name is None:
            known = ", ".join(list(columns)[:12]) or "none"
            raise ColumnError(
                f"bins are given for column {key!r}, which is not among the segment columns",
                hint=f"the segment columns are {known}",
            )
        found[str(name)] = told
    return found


def bins_for(name: str, bins: int | Mapping[Any, Any]) -> tuple[Any, int]:
    """Give what is said of the bins of a column, and how many there are where nothing is."""
    return (bins.get(name), bins.get(..., DEFAULT_BINS)) if isinstance(bins, Mapping) else (None, bins)


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
    >>> from trueup.data.frame import read
    >>> table = read({"p": [.1, .2, .3], "y": [0, 1, 0], "age": [17, 40, None]}, outcome="y", prediction="p")
    >>> segment_column(table, table.schema.features[0], {"age": [18, 30]}).labels
    ('age<18', 'age=[18, 30)', 'age>=30', 'age is missing')
    """
    column = table.columns[feature.name]
    told, usual = bins_for(feature.name, bins)
    cutter = fit_binner(feature, column, told, usual)
    return SegmentColumn(feature.name, cutter.codes(column), cutter.labels)


def check_segments(
    table: Table, segments: Mapping[str, Any] | None, rows: int, taken: Collection[str]
) -> dict[str, BoolArray]:
    """Check the user's own segments: boolean arrays, one entry a row of the data as it came in, with names not taken."""
    if segments is not None and not isinstance(segments, Mapping):
        raise ArgumentError(
            f"segments must be a dict of names and boolean arrays; got {type(segments).__name__}",
            hint='write it as segments={"over 70": age > 70}',
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
                hint="write it as a comparison, such as age > 70, with missing values decided",
            )
        if len(mask) != rows:
            raise ArgumentError(f"segment {name!r} has {len(mask)} entries and the data {rows} rows")
        checked[str(name)] = mask if table.kept is None else mask[table.kept]
    return checked


@dataclass(frozen=True)
class CombinationPlan:
    """Which combinations of columns are audited, and which were dropped to stay within the budget of cells."""

    combinations: tuple[tuple[int, ...], ...]
    dropped: tuple[tuple[int, ...], ...]


def plan_combinations(levels: Sequence[int], rows: int, *, depth: int, min_rows: int, max_cells: int) -> CombinationPlan:
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
    return CombinationPlan(tuple(c for c in chosen if c not in gone), tuple(sorted(dropped)))
