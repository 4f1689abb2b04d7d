"""The segments of an audit: how columns become levels, and which combinations of columns are tested."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.data.bins import fit_binner
from trueup.data.segments import bins_for, check_bins, check_segments, plan_combinations

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trueup._types import Int32Array, IntArray
    from trueup.audits.result import AuditSettings
    from trueup.cluster.partitions import PartitionedTable
    from trueup.data.bins import ColumnBinner
    from trueup.data.schema import Feature
    from trueup.data.segments import CombinationPlan
    from trueup.data.table import Table
    from trueup.kernels.threads import Workers

OVERALL = "all rows"
MAX_THIN_LEVELS = 1000  # a column with more levels below min_rows has them counted, not listed
MAX_DISTINCT_DAYS = 1 << 20


@dataclass(frozen=True, eq=False)
class SegmentColumns:
    """Names and level labels of the segment columns; segments passed by the user come last, with one level each."""

    names: tuple[str, ...]
    labels: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, eq=False)
class SegmentGrid:
    """Levels of the segment columns, and the combinations of columns to test; columns are known by their position.

    ``counts`` has the rows of every level of every column; columns from ``features`` on are segments passed by the user,
    which are not combined.
    """

    counts: Sequence[IntArray]
    features: int
    plan: CombinationPlan
    min_rows: int

    @cached_property
    def kept(self) -> list[IntArray]:
        """Levels of each column with at least ``min_rows`` rows: only these are combined."""
        return [np.flatnonzero(counts >= self.min_rows) for counts in self.counts[: self.features]]

    @cached_property
    def pairs(self) -> dict[tuple[int, int], list[int]]:
        """Pairs of columns to cross, and the third columns to cross each pair with.

        Columns with many levels come first: few of their pairs have enough rows, so the third column has little to cross.
        """
        position = np.argsort([-len(kept) for kept in self.kept], kind="stable").argsort()
        pairs: dict[tuple[int, int], list[int]] = defaultdict(list)
        for combination in self.plan.combinations:
            first, second, *third = sorted(combination, key=lambda column: position[column])
            pairs[first, second].extend(third)
        return pairs

    def listed_levels(self, column: int) -> tuple[IntArray, int]:
        """Return the levels of a column that are reported, and how many levels are below ``min_rows``.

        Thin levels are reported as not testable unless there are too many of them.
        """
        counts = self.counts[column]
        thin = (counts > 0) & (counts < self.min_rows)
        listed = counts > 0 if thin.sum() <= MAX_THIN_LEVELS else counts >= self.min_rows
        listed |= column >= self.features  # a segment passed by the user is reported even if it is empty
        return np.flatnonzero(listed), int(thin.sum())


def plan_grid(counts: Sequence[IntArray], features: int, rows: int, settings: AuditSettings, targets: int) -> SegmentGrid:
    """Choose the combinations of columns by the levels with enough rows; all audited scores share ``max_cells``."""
    levels = [int((count >= settings.min_rows).sum()) for count in counts[:features]]
    budget = settings.max_cells // targets
    plan = plan_combinations(levels, rows, depth=settings.depth, min_rows=settings.min_rows, max_cells=budget)
    return SegmentGrid(counts, features, plan, settings.min_rows)


def segment_codes(
    table: Table, bins: int | Mapping[str, Any], segments: Mapping[str, Any] | None, workers: Workers
) -> tuple[SegmentColumns, list[Int32Array], list[IntArray]]:
    """Code every segment column of a table in memory; return the columns, the codes of all rows and rows per level."""
    bins = check_bins(table.columns, bins)

    def encode(feature: Feature) -> tuple[tuple[str, ...], Int32Array, IntArray]:
        column = table.columns[feature.name]
        binner = fit_binner(feature, column, *bins_for(feature.name, bins))
        codes = binner.codes(column)
        counts = np.bincount(codes, minlength=len(binner.labels))
        if len(counts) > len(binner.labels):  # the kernels index by code without checking
            raise AssertionError(f"column {feature.name!r} has a code beyond its {len(binner.labels)} levels")
        return binner.labels, codes, counts

    names = [feature.name for feature in table.schema.features]
    encoded = workers.map(encode, table.schema.features)
    labels = [item[0] for item in encoded]
    codes = [item[1] for item in encoded]
    counts = [item[2] for item in encoded]
    taken = {OVERALL, *(label for column in labels for label in column)}
    rows_passed = len(table) + table.unlabelled + table.weightless
    for name, mask in check_segments(table, segments, rows_passed, taken).items():
        names.append(name)
        labels.append((name,))
        codes.append(np.where(mask, np.int32(0), np.int32(-1)))
        counts.append(np.array([np.sum(mask)]))
    return SegmentColumns(tuple(names), tuple(labels)), codes, counts


def fit_binners(rows: PartitionedTable, bins: int | Mapping[str, Any]) -> list[ColumnBinner]:
    """Fit the bins of every segment column on all rows, or on a sample of as many as memory holds."""
    features = rows.schema.features
    bins = check_bins([feature.name for feature in features], bins)
    return [_fit_binner(rows, feature, *bins_for(feature.name, bins)) for feature in features]


def _fit_binner(rows: PartitionedTable, feature: Feature, bins: Any, default_bins: int) -> ColumnBinner:
    name = feature.name
    if feature.kind == "categorical":
        return fit_binner(feature, np.array([-1] if rows.has_missing(name) else [], np.int32), bins)
    if feature.kind == "date" and (bins is None or isinstance(bins, str)):
        return fit_binner(feature, rows.distinct(name, MAX_DISTINCT_DAYS, days=True), bins)
    values, complete = rows.values(name)
    if complete:
        return fit_binner(feature, values, bins, default_bins)
    count = default_bins if bins is None else bins
    distinct = rows.distinct(name, int(count)) if isinstance(count, (int, np.integer)) else np.empty(0)
    if 0 < len(distinct) <= count + bool(np.isnan(distinct).any()):
        return fit_binner(feature, distinct, bins, default_bins)
    # With these values added, a sample with few distinct values is not mistaken for a column with few.
    values = np.concatenate([values, distinct])
    return fit_binner(feature, np.append(values, np.nan) if rows.has_missing(name) else values, bins, default_bins)
