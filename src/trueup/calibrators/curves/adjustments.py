"""Additive and Multiplicative: one number that makes the mean score equal the mean outcome."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trueup.calibrators.curves.estimators import ScoreCalibrator
from trueup.errors import DataError

if TYPE_CHECKING:
    from trueup._types import FloatArray, Int32Array
    from trueup.calibrators.curves.map import CurveMap
    from trueup.data.table import Table, Task
    from trueup.kernels.fitting import PooledScores

MAX_FACTOR = 1e100  # a larger quotient of sums is rounding


def _sums(pooled: PooledScores) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the weight, the sum of outcomes and the sum of scores of each group."""
    columns = (pooled.weight, pooled.total, pooled.weight * pooled.score)
    weight, total, expected = (np.add.reduceat(column, pooled.at[:-1]) for column in columns)
    return weight, total, expected


class Additive(ScoreCalibrator):
    """Add one number to all scores, so that the mean score equals the mean outcome.

    With weights w, outcomes y and scores p the number is ``sum w (y - p) / sum w``. Corrected probabilities are clipped to
    [0, 1]; several classes are corrected one by one and normalised to add up to 1. Inside `Grouped` it is one number per
    group, shrunk towards that of all rows.

    Parameters
    ----------
    prediction : column name, or several
        The score to correct: a probability, a real number (``task="regression"``), or one column per class. For an array
        a position; by default all columns, one per class. A one-dimensional array is the prediction itself.
    exclude : column names
        Columns that the correction must not use, such as protected attributes. It uses the score alone; `explain` reports
        what it does on the levels of these columns.
    task : {"auto", "binary", "regression"}
        "auto" is binary for one prediction column, multiclass for several.
    classes : sequence, optional
        For several prediction columns, the outcome that each stands for, in their order.
    logits : bool
        Whether prediction columns hold logits: of the classes, for which a softmax gives probabilities, or of one
        probability, by a sigmoid. Corrected predictions are probabilities.
    unlabelled : {"error", "drop"}
        What to do with rows without an outcome.
    stopping : CrossValidation, Holdout, Validation or None
        The held-out rows that decide whether the correction is kept; scores are left unchanged unless it lowers their
        loss significantly. None fits all rows and keeps the result.

    Attributes
    ----------
    shift_ : float, or ndarray of shape (k,) for k classes
        What is added; 0 means no change.
    model_ : Model
        The fitted model, which is saved and shipped.
    history_ : History
        The loss before and after, and the rows it was evaluated on.
    held_out_, held_out_rows_, held_out_before_
        As in `trueup.MCGrad`.

    Notes
    -----
    Where scores are clipped, the mean of the corrected scores differs from the mean outcome; `Platt` shifts logits, which
    needs no clipping.

    Examples
    --------
    >>> import numpy as np, trueup as tu
    >>> p, y = np.tile([0.1, 0.2, 0.3, 0.4], 5), np.tile([0, 0, 1, 1], 5)
    >>> fix = tu.Additive().fit(p, y)
    >>> fix.shift_, fix.predict(np.array([0.5, 0.9])).tolist()
    (0.25, [0.75, 1.0])
    """

    form = "bounded"

    shift_ = property(lambda self: self._coefficient(2, 0.0), doc="What is added to scores; 0 if left unchanged.")

    def _fit_output(self, pooled: PooledScores, sizes: FloatArray, task: Task) -> FloatArray:  # noqa: ARG002
        weight, total, expected = _sums(pooled)
        return np.column_stack([np.ones(len(sizes)), np.zeros(len(sizes)), (total - expected) / weight])


class Multiplicative(ScoreCalibrator):
    """Multiply all scores by one number, so that the mean score equals the mean outcome.

    With weights w, outcomes y and scores p the number is ``sum w y / sum w p``. Corrected probabilities are clipped to
    [0, 1]; several classes are corrected one by one and normalised to add up to 1. Inside `Grouped` it is one number per
    group, shrunk towards that of all rows.

    Parameters
    ----------
    prediction : column name, or several
        The score to correct: a probability, a real number that is not negative (``task="regression"``), or one column per
        class. For an array a position; by default all columns, one per class. A one-dimensional array is the prediction
        itself.
    exclude : column names
        Columns that the correction must not use, such as protected attributes. It uses the score alone; `explain` reports
        what it does on the levels of these columns.
    task : {"auto", "binary", "regression"}
        "auto" is binary for one prediction column, multiclass for several.
    classes : sequence, optional
        For several prediction columns, the outcome that each stands for, in their order.
    logits : bool
        Whether prediction columns hold logits: of the classes, for which a softmax gives probabilities, or of one
        probability, by a sigmoid. Corrected predictions are probabilities.
    unlabelled : {"error", "drop"}
        What to do with rows without an outcome.
    stopping : CrossValidation, Holdout, Validation or None
        The held-out rows that decide whether the correction is kept; scores are left unchanged unless it lowers their
        loss significantly. None fits all rows and keeps the result.

    Attributes
    ----------
    factor_ : float, or ndarray of shape (k,) for k classes
        What scores are multiplied by; 1 means no change, also if all scores are 0.
    model_ : Model
        The fitted model, which is saved and shipped.
    history_ : History
        The loss before and after, and the rows it was evaluated on.
    held_out_, held_out_rows_, held_out_before_
        As in `trueup.MCGrad`.

    Notes
    -----
    Where scores are clipped, the mean of the corrected scores is below the mean outcome. If no outcome is positive, all
    corrected scores are 0.

    Examples
    --------
    >>> import numpy as np, trueup as tu
    >>> p, y = np.tile([0.1, 0.2, 0.3, 0.4], 5), np.tile([0, 0, 1, 1], 5)
    >>> fix = tu.Multiplicative().fit(p, y)
    >>> fix.factor_, fix.predict(np.array([0.25, 0.75])).tolist()
    (2.0, [0.5, 1.0])
    """

    form = "bounded"

    factor_ = property(lambda self: self._coefficient(0, 1.0), doc="The factor of scores; 1 if left unchanged.")

    def _fit_curves(self, table: Table, sizes: FloatArray, group: Int32Array | None = None) -> CurveMap:
        negative = table.prediction < 0
        if negative.any():
            raise DataError(
                f"Multiplicative corrects scores that are not negative; got {int(negative.sum()):,} that are, such as "
                f"{table.prediction[negative][0]:g}",
                hint="Additive and Platt (a straight line) accept scores of both signs",
            )
        return super()._fit_curves(table, sizes, group)

    def _fit_output(self, pooled: PooledScores, sizes: FloatArray, task: Task) -> FloatArray:  # noqa: ARG002
        _, total, expected = _sums(pooled)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            factor = total / expected
        factor = np.where(np.abs(factor) <= MAX_FACTOR, factor, 1.0)
        return np.column_stack([factor, np.zeros((len(sizes), 2))])
