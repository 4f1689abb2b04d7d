"""Segments: columns become codes with readable labels, and combinations of columns are chosen within a budget."""

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
    """A column as segments: a code per row and a label per code; missing values have a code of their own."""

    name: str
    codes: Int32Array
    labels: tuple[str, ...]


def check_bins(columns: Collection[str], bins: int | Mapping[Any, Any]) -> int | dict[str, Any]:
    """Return the bins by column name, ``...`` for every other numeric column; raise if a column does not exist."""
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
    """Return the user's choice of bins for a column, if any, and the number of bins otherwise."""
    return (bins.get(name), bins.get(..., DEFAULT_BINS)) if isinstance(bins, Mapping) else (None, bins)


def segment_column(table: Table, feature: Feature, bins: int | Mapping[str, Any] = DEFAULT_BINS) -> SegmentColumn:
    """Divide one feature of a table into segments; ``bins`` is as in `check_bins`, each choice as in `fit_binner`."""
    column = table.columns[feature.name]
    binner = fit_binner(feature, column, *bins_for(feature.name, bins))
    return SegmentColumn(feature.name, binner.codes(column), binner.labels)


def check_segments(
    table: Table, segments: Mapping[str, Any] | None, rows: int, taken: Collection[str]
) -> dict[str, BoolArray]:
    """Return the user's own segments, boolean arrays with one entry per row of the input, of the rows that were kept."""
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


@dataclass(frozen=True)
class CombinationPlan:
    """The combinations of columns that are audited, and those dropped to stay within the budget of cells."""

    combinations: tuple[tuple[int, ...], ...]
    dropped: tuple[tuple[int, ...], ...]


def plan_combinations(levels: Sequence[int], rows: int, *, depth: int, min_rows: int, max_cells: int) -> CombinationPlan:
    """Choose the combinations of two or more columns, given the number of levels of each column with enough rows.

    A combination costs the maximum number of its segments: the product of its levels, or rows / min_rows if less. While the
    total exceeds ``max_cells``, the deepest and then the most expensive combination is dropped.
    """
    max_segments = max(rows // max(min_rows, 1), 1)
    columns = range(len(levels))
    every = [group for size in range(2, depth + 1) for group in itertools.combinations(columns, size)]
    cost = {group: min(math.prod(levels[column] for column in group), max_segments) for group in every}
    total = sum(levels) + sum(cost.values())
    dropped = set()
    for group in sorted(every, key=lambda group: (-len(group), -cost[group], group)):
        if total <= max_cells:
            break
        total -= cost[group]
        dropped.add(group)
    return CombinationPlan(tuple(group for group in every if group not in dropped), tuple(sorted(dropped)))
