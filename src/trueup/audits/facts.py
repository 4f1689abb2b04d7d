"""What is known of all rows of an audit that come in pieces, and how their columns are cut."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from trueup.data import checks
from trueup.data.cutting import Cutter, cut
from trueup.data.features import Copies
from trueup.data.segments import bins_of
from trueup.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from trueup.data.schema import Feature, Schema
    from trueup.data.table import Table

    Floats = NDArray[np.float64]

__all__ = ["Facts", "Pieces", "cutter_of"]

MANY_LEVELS = 1 << 20


class Pieces(Protocol):
    """Rows that are gone through piece by piece, here: files that are open, or what `trueup.engines.base.Parts` has."""

    @property
    def schema(self) -> Schema:
        """Say what the columns are."""

    @property
    def left_out(self) -> Mapping[str, str]:
        """Name the columns that were left out, and why."""

    @property
    def rows(self) -> int:
        """Count all rows, those that are set aside included."""

    @property
    def room(self) -> int:
        """Say how many bytes rows may take at once."""

    @property
    def folder(self) -> Path:
        """Give the folder for what does not fit."""

    @property
    def whole_outcomes(self) -> bool:
        """Say whether every outcome is 0 or 1, or a class."""

    def tables(self) -> Iterator[Table]:
        """Give one Table after the other."""

    def values(self, name: str) -> tuple[Floats, bool]:
        """Give a column, or a fair sample; say whether it is all of it."""

    def distinct(self, name: str, most: int, *, days: bool = False) -> Floats:
        """Give the distinct values of a column."""

    def lacks(self, name: str) -> bool:
        """Say whether some row has no value in a column."""


@dataclass(eq=False)
class Facts:
    """What is known of all rows once they have been gone through."""

    schema: Schema
    left_out: Mapping[str, str]
    counts: list[NDArray[np.int64]]
    rows: int = 0
    unlabelled: int = 0
    weightless: int = 0
    lowest: float = np.inf
    highest: float = -np.inf
    hard: bool = True
    copies: Copies = field(default_factory=Copies)

    def __len__(self) -> int:
        return self.rows

    def add(self, table: Table, codes: Sequence[NDArray[np.int32]]) -> None:
        """Take in a piece."""
        assert table.outcome is not None
        self.rows += len(table)
        self.unlabelled += table.unlabelled
        self.weightless += table.weightless
        self.schema = table.schema
        for count, some in zip(self.counts, codes, strict=True):
            count += np.bincount(some, minlength=len(count))
        if len(table):
            self.copies.add(table)
            self.lowest = min(self.lowest, float(table.outcome.min()))
            self.highest = max(self.highest, float(table.outcome.max()))
            self.hard &= table.prediction.ndim == 1 and bool(np.isin(table.prediction, (0.0, 1.0)).all())

    def __add__(self, other: Facts) -> Facts:
        """Take in what is known of other rows."""
        some = self if self.rows else other
        counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        return Facts(
            some.schema, self.left_out, counts, self.rows + other.rows, self.unlabelled + other.unlabelled,
            self.weightless + other.weightless, min(self.lowest, other.lowest), max(self.highest, other.highest),
            self.hard and other.hard, self.copies + other.copies,
        )  # fmt: skip

    def check(self) -> None:
        """Warn of what all rows have in common, as is done for rows in memory."""
        if not self.rows:
            raise DataError(
                f"no rows are left: {self.unlabelled:,} have no outcome and {self.weightless:,} weigh nothing",
                hint="check the outcome and weight columns",
            )
        self.copies.check(self.schema, self.rows)
        task = self.schema.task
        if self.hard and task == "binary" and self.rows >= checks.COPY_ROWS:
            checks.hard_predictions(np.tile([0.0, 1.0], checks.COPY_ROWS), self.schema.prediction, task)
        if task != "regression" and self.lowest == self.highest and not (task == "binary" and 0 < self.lowest < 1):
            checks.one_class(self.schema.outcome, self.lowest, self.rows)


def cutter_of(rows: Pieces, feature: Feature, bins: int | Mapping[str, Any]) -> Cutter:
    """Settle how a column is cut, by the values of all rows, or of as many as memory holds."""
    name = feature.name
    told, usual = bins_of(name, bins)
    if feature.kind == "categorical":
        return cut(feature, np.array([-1] if rows.lacks(name) else [], np.int32), told)
    if feature.kind == "date" and (told is None or isinstance(told, str)):
        return cut(feature, rows.distinct(name, MANY_LEVELS, days=True), told)
    values, whole = rows.values(name)
    if whole:
        return cut(feature, values, told, usual)
    count = usual if told is None else told
    few = rows.distinct(name, int(count)) if isinstance(count, (int, np.integer)) else np.empty(0)
    if 0 < len(few) <= count + bool(np.isnan(few).any()):
        return cut(feature, few, told, usual)
    # With these among them, too few distinct values among the rows that were read are not taken for all there are.
    values = np.concatenate([values, few])
    return cut(feature, np.append(values, np.nan) if rows.lacks(name) else values, told, usual)
