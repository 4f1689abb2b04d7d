"""Rows that are alike, added up in an order of their content: whatever order they came in, and however often."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trueup.calibrators import splits
from trueup.kernels.laplace.equal import as_bytes

if TYPE_CHECKING:
    from trueup._types import FloatArray, IntArray
    from trueup.data.table import Table


@dataclass(frozen=True, eq=False)
class Units:
    """Rows alike in features, prediction and outcome, taken together; in an order of their own.

    Attributes
    ----------
    first : ndarray of int64
        A row of the table for each unit.
    unit : ndarray of int64, shape (rows of the table,)
        The unit of each row.
    alike : ndarray of int64, ascending
        Units with the same number differ in nothing but the outcome.
    weight : ndarray of float64
        On the scale of rows: counts, or a sum equal to the effective number of rows.
    rows : ndarray of int64
        How many rows; weights that are counts count them.
    """

    first: IntArray
    unit: IntArray
    alike: IntArray
    weight: FloatArray
    rows: IntArray


def pool_rows(table: Table) -> Units:
    """Add up rows that are alike."""
    assert table.outcome is not None
    given = splits.scale_weights(table.weight, len(table))
    weight = np.ones(len(table)) if given is None else given
    parts = [*table.columns.values(), *table.prediction.reshape(len(table), -1).T, table.outcome]
    content = np.column_stack([np.where(np.isnan(part), np.nan, part + 0.0) for part in parts])  # one NaN, no minus zero
    order, starts = sort_alike(content, weight)
    unit = np.empty(len(table), np.int64)
    unit[order] = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(order)))
    total = np.add.reduceat(weight[order], starts)
    counted = splits.are_row_counts(weight)
    rows = np.rint(total).astype(np.int64) if counted else np.diff(starts, append=len(order))
    but_outcome = as_bytes(content[order[starts], :-1])
    alike = np.cumsum(np.append(False, but_outcome[1:] != but_outcome[:-1]))
    return Units(order[starts], unit, alike, total, rows)


def sort_alike(content: FloatArray, weight: FloatArray | None = None) -> tuple[IntArray, IntArray]:
    """Sort rows by their bytes; say where runs of equal rows begin. Equal rows come in the order of their weights."""
    before = np.arange(len(content)) if weight is None else np.argsort(weight, kind="stable")
    found = as_bytes(content[before])
    order = np.argsort(found, kind="stable")
    found = found[order]
    return before[order], np.flatnonzero(np.append(True, found[1:] != found[:-1])[: len(found)])
