"""Columns cut into groups by a rule that can be asked again, of rows that come later."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trueup.data.columns import format_number
from trueup.data.cutting import DEFAULT_BINS, cut_edges, day_text, interval_labels
from trueup.kernels.binning import digitize

if TYPE_CHECKING:
    from trueup._types import AnyArray, FloatArray, Int32Array
    from trueup.data.schema import Feature


@dataclass(frozen=True, eq=False)
class Cut:
    """How one column falls into groups.

    Attributes
    ----------
    name : str
    edges : ndarray of float64, or None
        A number is in the group of how many edges are at most it; None for a category, which is its own group.
    labels : tuple of str
        "age=[18, 30)", "country=BR"; the last is that of missing values, and of categories not seen.
    """

    name: str
    edges: FloatArray | None
    labels: tuple[str, ...]

    def codes(self, column: AnyArray) -> Int32Array:
        """Give every row its group: codes of a category, or numbers, as a Table holds them."""
        missing = len(self.labels) - 1
        if self.edges is None:
            return np.where((column >= 0) & (column < missing), column, missing).astype(np.int32)
        found = np.empty(len(column), np.int32)
        digitize(np.ascontiguousarray(column, np.float64), self.edges, found)
        found[np.isnan(column)] = missing
        return found

    def code_of(self, value: float) -> int:
        """Give one value its group."""
        missing = len(self.labels) - 1
        if self.edges is None:
            return int(value) if 0 <= value < missing else missing
        return missing if np.isnan(value) else int(np.searchsorted(self.edges, value, side="right"))


def cut_column(feature: Feature, column: AnyArray, bins: int = DEFAULT_BINS) -> Cut:
    """Cut a column: a category by its levels, numbers and dates into as many bins of equal numbers of rows.

    Numbers of no more distinct values than bins keep them apart; one that later lies between two is with the lower.

    Examples
    --------
    >>> from trueup.data.schema import Feature
    >>> cut = cut_column(Feature("age", "numeric"), np.array([20.0, 30.0, 40.0, 50.0]), 2)
    >>> cut.labels, cut.codes(np.array([10.0, 35.0, 60.0, np.nan])).tolist()
    (('age<40', 'age>=40', 'age is missing'), [0, 0, 1, 2])
    """
    name = feature.name
    last = f"{name} is missing"
    if feature.kind == "categorical":
        return Cut(name, None, (*(f"{name}={level}" for level in feature.levels), last))
    write = day_text if feature.kind == "date" else format_number
    distinct, edges = cut_edges(column[~np.isnan(column)], bins)
    texts = [write(float(x)) for x in (edges if distinct is None else distinct)]
    labels = interval_labels(name, texts) if distinct is None else [f"{name}={text}" for text in texts] or [f"{name}=any"]
    return Cut(name, edges, (*labels, last))
