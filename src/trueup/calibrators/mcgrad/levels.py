"""Numbers per level of a categorical feature: how many rows it has, and its mean residual in other folds.

Trees split categories one level against the rest. An error that many small levels share is then found level by level, if
at all; a split by the number of rows finds it at once. Levels of a wide column whose errors differ are ordered by their
residuals. Both are splits into sets of levels, and stored as such.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trueup.cluster.communicator import SINGLE_PROCESS, Communicator
from trueup.learners.lightgbm import LevelColumn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trueup._types import AnyArray, FloatArray
    from trueup.calibrators.stopping import Split
    from trueup.data.table import Table

COUNTED_LEVELS = 9  # a feature of fewer levels is split level by level
ENCODED_LEVELS = 33
MIN_FOLDS = 3  # residuals of a row's own fold and of the held-out fold are left out
BATCH_ROWS = 1 << 20


@dataclass(frozen=True, eq=False)
class LevelEncoding:
    """Mean residuals of the levels of one feature, shrunken towards 0.

    ``residual`` and ``information`` have the sums of residuals and of their variances, shape (folds, levels + 1), missing
    levels first. The effect u of a level has variance tau^2 over the levels, and the sum of its residuals has mean h u and
    variance h, h its information: the best linear predictor of u is the sum over h + 1 / tau^2.
    """

    feature: int
    residual: FloatArray
    information: FloatArray

    def effects(self, left_out: Sequence[int]) -> FloatArray:
        """Return the effect of every level without the rows of the folds ``left_out``."""
        kept = np.setdiff1d(np.arange(len(self.residual)), left_out)
        total, information = self.residual[kept].sum(axis=0), self.information[kept].sum(axis=0)
        effects: FloatArray = total / (information + 1.0 / max(variance_of_effects(total, information), 1e-12))
        return effects


def variance_of_effects(total: FloatArray, information: FloatArray) -> float:
    """Return the variance of the effects of levels by the method of moments, from E total^2 = h + h^2 tau^2; at least 0."""
    squares = float((information**2).sum())
    return max(0.0, float((total**2 - information).sum()) / squares) if squares > 0 else 0.0


@dataclass(frozen=True, eq=False)
class LevelStatistics:
    """The numbers of rows of levels, and their mean residuals, of the categorical features with many levels.

    ``folds`` has the fold of each row; None if residuals are not used.
    """

    counts: tuple[tuple[int, FloatArray], ...]  # pairs of feature and rows per level, missing first
    encodings: tuple[LevelEncoding, ...]
    folds: AnyArray | None

    @classmethod
    def of(
        cls,
        table: Table,
        splits: Sequence[Split],
        residuals: tuple[FloatArray, FloatArray] | None,
        communicator: Communicator = SINGLE_PROCESS,
    ) -> LevelStatistics:
        """Compute from the residuals of the base score and their variances; if they are None, levels are only counted."""
        use_residuals = residuals is not None and len(splits) >= MIN_FOLDS
        folds = splits[0].folds if use_residuals else None
        counts, encodings = [], []
        for position, feature in enumerate(table.schema.features):
            levels = table.schema.levels[position]
            if levels < COUNTED_LEVELS:
                continue
            count = 1 + (2 * len(splits) if use_residuals and levels >= ENCODED_LEVELS else 0)
            sums = np.zeros((count, levels + 1))
            column = table.columns[feature.name]
            for start in range(0, len(table), BATCH_ROWS):
                rows = slice(start, start + BATCH_ROWS)
                codes = np.asarray(column[rows]) + 1
                sums[0] += np.bincount(codes, minlength=levels + 1)
                if count > 1:
                    assert folds is not None
                    assert residuals is not None
                    cells = np.asarray(folds[rows], np.int64) * (levels + 1) + codes
                    for first, values in zip((1, 1 + len(splits)), residuals, strict=True):
                        added = np.bincount(cells, values[rows], len(splits) * (levels + 1))
                        sums[first : first + len(splits)] += added.reshape(len(splits), -1)
            sums = np.asarray(communicator.all_reduce_sum(sums.ravel())).reshape(sums.shape)
            counts.append((position, sums[0]))
            if count > 1:
                both = np.split(sums[1:], 2)
                if variance_of_effects(*(part.sum(axis=0) for part in both)) > 0:
                    encodings.append(LevelEncoding(position, *both))
        return cls(tuple(counts), tuple(encodings), folds)

    def count_columns(self, columns: Sequence[AnyArray]) -> list[LevelColumn]:
        """Return the number of rows of the level of each row, one column per feature; ``columns`` are all features."""
        return [LevelColumn(feature, columns[feature], counts) for feature, counts in self.counts]

    def residual_columns(self, columns: Sequence[AnyArray], fold: int) -> list[LevelColumn]:
        """Return the effects of levels for the model that holds out ``fold``, one column per feature."""
        return [
            LevelColumn(encoding.feature, columns[encoding.feature], encoding.effects([fold]))
            for encoding in self.encodings
        ]

    def encode_rows(self, columns: Sequence[AnyArray], fold: int) -> list[FloatArray]:
        """Return the same effects per row, without the rows of its own fold: no row contributes to its own number."""
        encoded = []
        for encoding in self.encodings:
            assert self.folds is not None
            tables = np.array([encoding.effects([fold, own]) for own in range(len(encoding.residual))])
            encoded.append(tables[np.asarray(self.folds, np.int64), np.asarray(columns[encoding.feature][:]) + 1])
        return encoded
