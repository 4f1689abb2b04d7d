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

    Numeric and date features are float64 with NaN for missing (dates in days since 1970-01-01); categorical ones are int32
    codes into the vocabulary of the schema, -1 for missing or unseen.
    """

    schema: Schema
    columns: Mapping[str, AnyArray]  # the features
    prediction: FloatArray  # one column, or one per class
    outcome: FloatArray | None = None  # for several classes the index of the class
    weight: FloatArray | None = None  # positive
    kept: IntArray | None = None  # the indices of these rows in the input, if some were set aside
    unlabelled: int = 0  # rows that were set aside because they have no outcome
    weightless: int = 0  # rows that were set aside because their weight is 0
    left_out: Mapping[str, str] = field(default_factory=dict)  # columns left out of the features, and why

    def __post_init__(self) -> None:
        lengths = {len(column) for column in (*self.columns.values(), self.outcome, self.weight) if column is not None}
        if lengths - {len(self.prediction)}:
            raise AssertionError(f"a Table of unequal columns: {sorted(lengths | {len(self.prediction)})}")

    def __len__(self) -> int:
        return len(self.prediction)

    @property
    def y(self) -> FloatArray:
        """The outcome of a Table that was read with one."""
        assert self.outcome is not None
        return self.outcome

    def take(self, rows: IntArray | slice) -> Table:
        """Return some of the rows, in the given order; a slice copies nothing."""
        columns = {name: column[rows] for name, column in self.columns.items()}
        outcome, weight = (None if array is None else array[rows] for array in (self.outcome, self.weight))
        return replace(self, columns=columns, prediction=self.prediction[rows], outcome=outcome, weight=weight, kept=None)

    def __repr__(self) -> str:
        return f"<Table of {len(self):,} rows, task {self.schema.task}, features {', '.join(self.columns) or 'none'}>"
