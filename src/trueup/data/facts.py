"""What is known of all rows once every part of them has been gone through; what parts know adds up."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from trueup.data import checks
from trueup.data.features import Copies

if TYPE_CHECKING:
    from trueup.data.schema import Schema
    from trueup.data.table import Table


@dataclass(frozen=True)
class Seen:
    """Rows that were seen, and what they have in common.

    Attributes
    ----------
    rows, unlabelled, weightless : int
        Rows that count, and rows that were set aside because they have no outcome or weigh nothing.
    lowest, highest : float
        Of the outcomes.
    hard : bool
        Whether every prediction is 0 or 1.
    copies : Copies
    """

    rows: int = 0
    unlabelled: int = 0
    weightless: int = 0
    lowest: float = np.inf
    highest: float = -np.inf
    hard: bool = True
    copies: Copies = field(default_factory=Copies)

    @classmethod
    def of(cls, table: Table) -> Seen:
        """Look at the rows of one part."""
        return cls().then(table)

    def then(self, table: Table) -> Seen:
        """Look at the rows of one more part; this is used up: columns that are no copies are not looked at again."""
        assert table.outcome is not None
        unlabelled, weightless = self.unlabelled + table.unlabelled, self.weightless + table.weightless
        if not len(table):
            return replace(self, unlabelled=unlabelled, weightless=weightless)
        self.copies.add(table)
        hard = self.hard and table.prediction.ndim == 1 and bool(np.isin(table.prediction, (0.0, 1.0)).all())
        lowest, highest = min(self.lowest, float(table.outcome.min())), max(self.highest, float(table.outcome.max()))
        return Seen(self.rows + len(table), unlabelled, weightless, lowest, highest, hard, self.copies)

    def __add__(self, other: Seen) -> Seen:
        return Seen(
            self.rows + other.rows, self.unlabelled + other.unlabelled, self.weightless + other.weightless,
            min(self.lowest, other.lowest), max(self.highest, other.highest), self.hard and other.hard,
            self.copies + other.copies,
        )  # fmt: skip

    def check(self, schema: Schema) -> None:
        """Refuse and warn of what all rows have in common, as is done for rows in memory."""
        checks.rows_are_left(self.rows, self.unlabelled, self.weightless)
        self.copies.check(schema, self.rows)
        if self.hard and schema.task == "binary" and self.rows >= checks.COPY_ROWS:
            checks.hard_predictions(np.tile([0.0, 1.0], checks.COPY_ROWS), schema.prediction, schema.task)
        one = self.lowest == self.highest and not (schema.task == "binary" and 0 < self.lowest < 1)
        if schema.task != "regression" and one:
            checks.one_class(schema.outcome, self.lowest, self.rows)
