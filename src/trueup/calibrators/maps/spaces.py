"""The spaces in which rows are near or far: features as numbers, as points, or as groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from trueup.calibrators.maps.grouped import number_cells
from trueup.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trueup._types import AnyArray, FloatArray, IntArray, UInt8Array
    from trueup.data.bins import ColumnBinner
    from trueup.metrics.features import FeatureMap


LARGEST = 1e100  # a feature beyond it counts as this: squares must stay finite
CHUNK = 2**23  # numbers that are laid out at once
FARTHEST = 1e30  # on the scale of deviations


class Embedding(Protocol):
    """What takes features to a point, and to the group that its neighbours must share."""

    @property
    def reads(self) -> int:
        """Count the features."""

    @property
    def width(self) -> int:
        """Count the numbers that one row is laid out in."""

    def check(self, columns: Sequence[AnyArray]) -> None:
        """Refuse features that have no place."""

    def place(self, columns: Sequence[AnyArray], rows: int) -> tuple[FloatArray, IntArray]:
        """Give the points of rows, (rows, d), and their groups; 0 is no group of its own."""

    def describe(self) -> str:
        """Say where neighbours are looked for: "in 20 dimensions"."""


@dataclass(frozen=True, eq=False)
class Design:
    """Features as numbers side by side: a number with a sign of its gaps, a category as one 0/1 column for each level.

    Attributes
    ----------
    levels : tuple of int
        How many levels each feature has, in the order of the schema; -1 for a number. Missing is a level more.
    fill : ndarray of float64
        What stands in for a missing number, its mean; 0 for a category.
    gaps : ndarray of uint8
        Whether a number has a column beside it that is 1 where it is missing.
    factor : ndarray of float64, shape (width,)
        What each column is multiplied by; 0 for one that says nothing.
    names : tuple of str
        Of the features.
    """

    levels: tuple[int, ...]
    fill: FloatArray
    gaps: UInt8Array
    factor: FloatArray
    names: tuple[str, ...]

    @property
    def sizes(self) -> list[int]:
        """Count the columns of each feature."""
        return design_sizes(self.levels, self.gaps)

    def check(self, columns: Sequence[AnyArray]) -> None:
        """Refuse infinite numbers, which are as far from each other as from all the rest."""
        refuse_infinite(self.names, columns)

    def lay(self, columns: Sequence[AnyArray], rows: int) -> FloatArray:
        """Lay features out, (rows, width)."""
        X = np.zeros((rows, len(self.factor)))
        at = 0
        for many, fill, gap, column, size in zip(self.levels, self.fill, self.gaps, columns, self.sizes, strict=True):
            if many >= 0:
                code = np.where((column >= 0) & (column < many), column, many).astype(np.int64)
                X[np.arange(rows), at + code] = self.factor[at + code]
            else:
                missing = np.isnan(column)
                X[:, at] = np.clip(np.where(missing, fill, column), -LARGEST, LARGEST) * self.factor[at]
                if gap:
                    X[:, at + 1] = missing * self.factor[at + 1]
            at += size
        return np.clip(X, -FARTHEST, FARTHEST, out=X)


def refuse_infinite(names: Sequence[str], columns: Sequence[AnyArray]) -> None:
    """Refuse infinite numbers: they have no distance, and one of them would leave a column without a deviation."""
    for name, column in zip(names, columns, strict=True):
        many = int(np.isinf(column).sum())
        if many:
            raise DataError(
                f"feature {name!r} is infinite in {many:,} of {len(column):,} rows: an infinite number is at no distance "
                "from others",
                hint="write it as missing, or as the largest number that makes sense; or leave the column out",
            )


def design_sizes(levels: Sequence[int], gaps: UInt8Array) -> list[int]:
    """Count the columns of each feature."""
    return [many + 1 if many >= 0 else 1 + int(gap) for many, gap in zip(levels, gaps, strict=True)]


@dataclass(frozen=True, eq=False)
class Space:
    """Points in a space of features, where near is alike.

    Attributes
    ----------
    design : Design or None
    features : FeatureMap or None
        From the columns of the design to a point. Without the two every row is the same point.
    """

    design: Design | None = None
    features: FeatureMap | None = None

    @property
    def reads(self) -> int:
        """Count the features."""
        return 0 if self.design is None else len(self.design.levels)

    @property
    def width(self) -> int:
        """Count the columns of the design."""
        return 1 if self.design is None else len(self.design.factor)

    def check(self, columns: Sequence[AnyArray]) -> None:
        """Refuse infinite numbers where distances count."""
        if self.design is not None:
            self.design.check(columns)

    def place(self, columns: Sequence[AnyArray], rows: int) -> tuple[FloatArray, IntArray]:
        """Lay the features out, and map them."""
        group = np.zeros(rows, np.int64)
        if self.design is None or self.features is None:
            return np.zeros((rows, 1)), group
        return self.features.transform(self.design.lay(columns, rows)), group

    def describe(self) -> str:
        """Count the dimensions."""
        many = 1 if self.features is None else self.features.dimensions
        return f"in {many} dimension{'' if many == 1 else 's'}"


@dataclass(frozen=True, eq=False)
class Groups:
    """Groups instead of distances: rows of one group are alike, others have nothing in common.

    Attributes
    ----------
    cuts : tuple of ColumnBinner
        How each column falls into groups, in the order of the schema.
    cells : ndarray of int64
        The combinations that were there in the fit, ascending; the first is group 1.
    """

    cuts: tuple[ColumnBinner, ...]
    cells: IntArray

    @property
    def reads(self) -> int:
        """Count the columns."""
        return len(self.cuts)

    @property
    def width(self) -> int:
        """Count the columns, one at least."""
        return max(len(self.cuts), 1)

    def check(self, columns: Sequence[AnyArray]) -> None:
        """Take everything: an infinite number is in the last group, or in the first."""

    def place(self, columns: Sequence[AnyArray], rows: int) -> tuple[FloatArray, IntArray]:
        """Find the group of every row, 0 for a combination that was not there."""
        number = number_cells(self.cuts, columns, rows)
        at = np.minimum(np.searchsorted(self.cells, number), len(self.cells) - 1)
        return np.zeros((rows, 1)), np.where(self.cells[at] == number, at + 1, 0)

    def describe(self) -> str:
        """Count the groups."""
        return f"in {len(self.cells):,} group{'' if len(self.cells) == 1 else 's'}"


def place_all(embedding: Embedding, columns: Sequence[AnyArray], rows: int) -> AnyArray:
    """Give the points of rows, as many at a time as memory allows; their groups where rows have groups instead."""
    embedding.check(columns)
    step, which = max(1, CHUNK // embedding.width), int(isinstance(embedding, Groups))
    found = [
        embedding.place([column[at : at + step] for column in columns], min(step, rows - at))[which]
        for at in range(0, max(rows, 1), step)
    ]
    return np.concatenate(found)
