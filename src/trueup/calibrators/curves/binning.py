"""Isotonic and Histogram: the mean outcome of blocks or bins of scores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from trueup._validate import check_choice, check_integer
from trueup.calibrators.curves.base import ScoreCalibrator
from trueup.calibrators.curves.map import ScoreCurves
from trueup.metrics.isotonic import find_knots

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trueup._types import FloatArray, IntArray
    from trueup.calibrators.stopping import Stopping
    from trueup.data.schema import Task
    from trueup.kernels.fitting import PooledScores


MAX_BINS = 100_000
ROUNDING = 1e-9  # a score at which a multiple of the weight of a bin is reached up to rounding starts a bin


class Isotonic(ScoreCalibrator):
    """Correct scores by the best-fitting non-decreasing function: isotonic regression.

    On the training rows the cumulative error is 0 in every interval of corrected scores (Claim 6 of the reference), and
    no threshold decides at a higher cost than before. Several classes are corrected one against the rest and normalised
    to add up to 1; a row whose corrected probabilities are all 0 keeps the given ones.

    Parameters
    ----------
    prediction : column name, or several
        The score to correct: a probability, a real number (``task="regression"``), or one column per class. For an array
        a position, 0 by default; a one-dimensional array is the prediction itself.
    task : {"auto", "binary", "regression"}
        "auto" is binary for one prediction column, multiclass for several.
    classes : sequence, optional
        For several prediction columns, the outcome that each stands for, in their order.
    unlabelled : {"error", "drop"}
        What to do with rows without an outcome.
    stopping : CrossValidation, Holdout, Validation or None
        The held-out rows that decide whether the correction is kept; scores are left unchanged unless it lowers their
        loss significantly. None fits all rows and keeps the result.

    Attributes
    ----------
    knots_, values_ : ndarray, or a list with one per class
        The lowest and highest score of each block, and the mean outcome of the block; empty if scores are left unchanged.
    model_ : Model
        The fitted model, which is saved and shipped.
    history_ : History
        The loss before and after, and the rows it was evaluated on.
    held_out_, held_out_rows_, held_out_before_
        As in `trueup.MCGrad`.

    Notes
    -----
    The fit is constant on a block. Between the last score of one block and the first of the next the data contain no
    information: a straight line there keeps the order of scores, has no jump, and leaves every training score at the mean
    of its block. Outside the range of training scores, the value at the nearer end applies.

    References
    ----------
    Gao, Parameswaran & Peng (2017), Algorithm 1 and Claim 6. Zadrozny & Elkan (2002), "Transforming classifier scores into
    accurate multiclass probability estimates".

    Examples
    --------
    >>> import numpy as np, trueup as tu
    >>> p, y = np.repeat([0.1, 0.2, 0.4, 0.6], 5), np.repeat([0, 1, 0, 1], 5)
    >>> fix = tu.Isotonic().fit(p, y)
    >>> fix.knots_.tolist(), fix.values_.tolist()
    ([0.1, 0.2, 0.4, 0.6], [0.0, 0.5, 0.5, 1.0])
    >>> fix.predict(np.array([0.0, 0.3, 0.5])).tolist()
    [0.0, 0.5, 0.75]
    """

    @property
    def knots_(self) -> Any:
        """The scores at which blocks begin and end."""
        return self._pieces(0)

    @property
    def values_(self) -> Any:
        """The value at each knot."""
        return self._pieces(1)

    def _fit_output(self, pooled: PooledScores, sizes: FloatArray, task: Task) -> ScoreCurves:  # noqa: ARG002
        return ScoreCurves.of_pieces(
            "knots", [find_knots(score, total, weight) for score, weight, total in _groups(pooled)]
        )


class Histogram(ScoreCalibrator):
    """Correct scores by the mean outcome of the bin they fall in: histogram binning.

    Several classes are corrected one against the rest and normalised to add up to 1; a row whose corrected probabilities
    are all 0 keeps the given ones.

    Parameters
    ----------
    prediction : column name, or several
        The score to correct: a probability, a real number (``task="regression"``), or one column per class. For an array
        a position, 0 by default; a one-dimensional array is the prediction itself.
    bins : int
        The maximum number of bins; rows of equal score are always in one bin.
    strategy : {"mass", "width"}
        Bins of equal weight, or of equal width: of [0, 1], or between the lowest and the highest score for a real outcome.
        `trueup.metrics.ece` has the same options.
    task : {"auto", "binary", "regression"}
        "auto" is binary for one prediction column, multiclass for several.
    classes : sequence, optional
        For several prediction columns, the outcome that each stands for, in their order.
    unlabelled : {"error", "drop"}
        What to do with rows without an outcome.
    stopping : CrossValidation, Holdout, Validation or None
        The held-out rows that decide whether the correction is kept; scores are left unchanged unless it lowers their
        loss significantly. None fits all rows and keeps the result.

    Attributes
    ----------
    edges_, values_ : ndarray, or a list with one per class
        The upper edge of each bin, which belongs to it, and the value of the bin; empty if scores are left unchanged. The
        last bin also contains all higher scores.
    model_ : Model
        The fitted model, which is saved and shipped.
    history_ : History
        The loss before and after, and the rows it was evaluated on.
    held_out_, held_out_rows_, held_out_before_
        As in `trueup.MCGrad`.

    Notes
    -----
    An edge between bins of equal weight is midway between the neighbouring scores. The value of an empty bin of equal
    width is interpolated linearly between the nearest bins with rows; at an end, it is that of the nearest one.

    References
    ----------
    Zadrozny & Elkan (2001), "Obtaining calibrated probability estimates from decision trees and naive Bayesian
    classifiers".

    Examples
    --------
    >>> import numpy as np, trueup as tu
    >>> p, y = np.repeat([0.1, 0.2, 0.4, 0.6], 5), np.repeat([0, 1, 0, 1], 5)
    >>> fix = tu.Histogram(bins=2).fit(p, y)
    >>> fix.edges_.round(6).tolist(), fix.values_.tolist()
    ([0.3, 1.0], [0.5, 0.5])
    >>> tu.Histogram(bins=4, strategy="width").fit(p, y).values_.tolist()
    [0.5, 0.0, 1.0, 1.0]
    """

    def __init__(
        self,
        prediction: Any = None,
        *,
        bins: int = 10,
        strategy: str = "mass",
        task: str = "auto",
        classes: Any = None,
        unlabelled: str = "error",
        stopping: Stopping = None,
    ) -> None:
        super().__init__(prediction, task=task, classes=classes, unlabelled=unlabelled, stopping=stopping)
        self.bins = bins
        self.strategy = strategy

    @property
    def edges_(self) -> Any:
        """The upper edge of each bin."""
        return self._pieces(0)

    @property
    def values_(self) -> Any:
        """The value of each bin."""
        return self._pieces(1)

    def _check(self, task: Task) -> None:
        super()._check(task)
        check_integer("bins", self.bins, 1, MAX_BINS)
        check_choice("strategy", self.strategy, ("mass", "width"))

    def _fit_output(self, pooled: PooledScores, sizes: FloatArray, task: Task) -> ScoreCurves:  # noqa: ARG002
        fit = _fit_equal_mass if self.strategy == "mass" else _fit_equal_width
        real = task == "regression"
        return ScoreCurves.of_pieces("steps", [fit(*group, int(self.bins), real=real) for group in _groups(pooled)])


def _groups(pooled: PooledScores) -> Iterator[tuple[FloatArray, FloatArray, FloatArray]]:
    """Iterate over groups: their distinct scores, the weight and the sum of outcomes at each."""
    for start, end in zip(pooled.at[:-1].tolist(), pooled.at[1:].tolist(), strict=True):
        yield pooled.score[start:end], pooled.weight[start:end], pooled.total[start:end]


def _fit_equal_mass(
    score: FloatArray, weight: FloatArray, total: FloatArray, bins: int, *, real: bool
) -> tuple[FloatArray, FloatArray]:
    """Return the upper edges and means of bins of equal weight."""
    inner, first = cut_by_mass(score, weight, bins)
    return np.append(inner, score[-1] if real else 1.0), np.add.reduceat(total, first) / np.add.reduceat(weight, first)


def cut_by_mass(score: FloatArray, weight: FloatArray, bins: int) -> tuple[FloatArray, IntArray]:
    """Cut distinct ascending scores into bins of equal weight.

    Return the edges between bins, each midway between two scores, and the position of the first score of each bin.
    """
    mass = np.cumsum(weight)
    below = np.append(0.0, mass[:-1])
    number = np.minimum(np.floor(bins * (below / mass[-1]) + ROUNDING), bins - 1)
    first = np.flatnonzero(np.append(True, number[1:] != number[:-1]))
    left, right = score[first[1:] - 1], score[first[1:]]
    middle = left + (right - left) / 2
    return np.where(middle < right, middle, left), first


def _fit_equal_width(
    score: FloatArray, weight: FloatArray, total: FloatArray, bins: int, *, real: bool
) -> tuple[FloatArray, FloatArray]:
    """Return the upper edges and means of bins of equal width; interpolate the means of empty bins."""
    low, high = (float(score[0]), float(score[-1])) if real else (0.0, 1.0)
    inner = np.arange(1, bins) / bins
    edges = np.unique(low * (1 - inner) + high * inner)
    edges = edges[edges < high]
    number = np.searchsorted(edges, score, side="left")
    mass, sums = (np.bincount(number, values, len(edges) + 1) for values in (weight, total))
    filled = np.flatnonzero(mass > 0)
    values = np.interp(np.arange(len(mass)), filled, sums[filled] / mass[filled])
    return np.append(edges, high), values
