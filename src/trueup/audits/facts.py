"""What is known of all rows of an audit that come in pieces, and how their columns are cut."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.data.bins import ColumnBinner, fit_binner
from trueup.data.checks import RowSummary
from trueup.data.segments import bins_for

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trueup._types import Int32Array, IntArray
    from trueup.cluster.partitions import PartitionedTable
    from trueup.data.schema import Feature, Schema
    from trueup.data.table import Table

MANY_LEVELS = 1 << 20


@dataclass(eq=False)
class Facts:
    """What is known of all rows once they have been gone through."""

    schema: Schema
    left_out: Mapping[str, str]
    counts: list[IntArray]
    """Rows of every level of every column."""
    seen: RowSummary = field(default_factory=RowSummary)

    def __len__(self) -> int:
        return self.seen.rows

    @property
    def unlabelled(self) -> int:
        """Count the rows that were set aside because they have no outcome."""
        return self.seen.unlabelled

    @property
    def weightless(self) -> int:
        """Count the rows that were set aside because they weigh nothing."""
        return self.seen.weightless

    def add(self, table: Table, codes: Sequence[Int32Array]) -> None:
        """Take in a piece."""
        self.seen, self.schema = self.seen.include(table), table.schema
        for count, some in zip(self.counts, codes, strict=True):
            count += np.bincount(some, minlength=len(count))

    def __add__(self, other: Facts) -> Facts:
        """Take in what is known of other rows."""
        counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        return Facts((self if len(self) else other).schema, self.left_out, counts, self.seen + other.seen)

    def check(self) -> None:
        """Refuse and warn of what all rows have in common, as is done for rows in memory."""
        self.seen.check(self.schema)


def cutter_of(rows: PartitionedTable, feature: Feature, bins: int | Mapping[str, Any]) -> ColumnBinner:
    """Settle how a column is cut, by the values of all rows, or of as many as memory holds."""
    name = feature.name
    told, usual = bins_for(name, bins)
    if feature.kind == "categorical":
        return fit_binner(feature, np.array([-1] if rows.has_missing(name) else [], np.int32), told)
    if feature.kind == "date" and (told is None or isinstance(told, str)):
        return fit_binner(feature, rows.distinct(name, MANY_LEVELS, days=True), told)
    values, whole = rows.values(name)
    if whole:
        return fit_binner(feature, values, told, usual)
    count = usual if told is None else told
    few = rows.distinct(name, int(count)) if isinstance(count, (int, np.integer)) else np.empty(0)
    if 0 < len(few) <= count + bool(np.isnan(few).any()):
        return fit_binner(feature, few, told, usual)
    # With these among them, too few distinct values among the rows that were read are not taken for all there are.
    values = np.concatenate([values, few])
    return fit_binner(feature, np.append(values, np.nan) if rows.has_missing(name) else values, told, usual)
