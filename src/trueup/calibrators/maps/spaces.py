"""The spaces in which rows are near or far: features as numbers, as points, or as groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from trueup.calibrators.maps.grouped import number_cells

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from trueup.data.groups import Cut
    from trueup.metrics.features import FeatureMap

    Floats = NDArray[np.float64]
    Longs = NDArray[np.int64]

__all__ = ["FARTHEST", "LARGEST", "Design", "Embedding", "Groups", "Space", "design_sizes"]

LARGEST = 1e100  # a feature beyond it counts as this: squares must stay finite
FARTHEST = 1e30  # on the scale of deviations


class Embedding(Protocol):
    """What takes features to a point, and to the group that its neighbours must share."""

    @property
    def reads(self) -> int:
        """Count the features."""

    @property
    def width(self) -> int:
        """Count the numbers that one row is laid out in."""

    def place(self, columns: Sequence[NDArray[Any]], rows: int) -> tuple[Floats, Longs]:
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
    """

    levels: tuple[int, ...]
    fill: Floats
    gaps: NDArray[np.uint8]
    factor: Floats

    @property
    def sizes(self) -> list[int]:
        """Count the columns of each feature."""
        return design_sizes(self.levels, self.gaps)

    def lay(self, columns: Sequence[NDArray[Any]], rows: int) -> Floats:
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


def design_sizes(levels: Sequence[int], gaps: NDArray[np.uint8]) -> list[int]:
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

    def place(self, columns: Sequence[NDArray[Any]], rows: int) -> tuple[Floats, Longs]:
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
    cuts : tuple of Cut
        How each column falls into groups, in the order of the schema.
    cells : ndarray of int64
        The combinations that were there in the fit, ascending; the first is group 1.
    """

    cuts: tuple[Cut, ...]
    cells: Longs

    @property
    def reads(self) -> int:
        """Count the columns."""
        return len(self.cuts)

    @property
    def width(self) -> int:
        """Count the columns, one at least."""
        return max(len(self.cuts), 1)

    def place(self, columns: Sequence[NDArray[Any]], rows: int) -> tuple[Floats, Longs]:
        """Find the group of every row, 0 for a combination that was not there."""
        number = number_cells(self.cuts, columns, rows)
        at = np.minimum(np.searchsorted(self.cells, number), len(self.cells) - 1)
        return np.zeros((rows, 1)), np.where(self.cells[at] == number, at + 1, 0)

    def describe(self) -> str:
        """Count the groups."""
        return f"in {len(self.cells):,} group{'' if len(self.cells) == 1 else 's'}"
