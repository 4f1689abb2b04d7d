"""Table: validated NumPy columns of equal length and their Schema."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trueup._types import AnyArray, FloatArray, IntArray
    from trueup.data.schema import Schema


@dataclass(frozen=True, eq=False)
class Table:
    """Rows in memory: all checks are done, and no frame library is involved any more.

    Attributes
    ----------
    schema : Schema
        What the columns mean.
    columns : mapping of str to ndarray
        The features. Numeric and date columns are float64 with NaN for missing (dates in days since 1970-01-01);
        categorical ones are int32 codes into the vocabulary of the schema, -1 for missing or unseen.
    prediction : ndarray of float64, shape (n,) or (n, k)
    outcome : ndarray of float64, shape (n,), or None
        For several classes the index of the class.
    weight : ndarray of float64, shape (n,), or None
        Positive: rows of weight 0 were left out.
    kept : ndarray of int64, or None
        The indices of these rows in the input, if some were left out.
    unlabelled : int
        Number of rows left out because they have no outcome.
    weightless : int
        Number of rows left out because their weight is 0.
    left_out : mapping of str to str
        Columns that were left out of the features, and why.
    """

    schema: Schema
    columns: Mapping[str, AnyArray]
    prediction: FloatArray
    outcome: FloatArray | None = None
    weight: FloatArray | None = None
    kept: IntArray | None = None
    unlabelled: int = 0
    weightless: int = 0
    left_out: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        lengths = {len(column) for column in (*self.columns.values(), self.outcome, self.weight) if column is not None}
        if lengths - {len(self.prediction)}:
            raise AssertionError(f"a Table of unequal columns: {sorted(lengths | {len(self.prediction)})}")

    def __len__(self) -> int:
        return len(self.prediction)

    def take(self, rows: IntArray | slice) -> Table:
        """Return some of the rows, in the given order; a slice copies nothing."""
        columns = {name: column[rows] for name, column in self.columns.items()}
        outcome, weight = (None if array is None else array[rows] for array in (self.outcome, self.weight))
        return replace(self, columns=columns, prediction=self.prediction[rows], outcome=outcome, weight=weight, kept=None)

    def __repr__(self) -> str:
        return f"<Table of {len(self):,} rows, task {self.schema.task}, features {', '.join(self.columns) or 'none'}>"
