"""Isotonic and Histogram: the mean outcome of blocks or bins of scores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from trueup._validate import check_choice
from trueup.calibrators.checking import check_whole
from trueup.calibrators.curves.classic import Classic
from trueup.calibrators.maps.scores import Curves
from trueup.metrics.isotonic import find_knots

if TYPE_CHECKING:
    from trueup._types import FloatArray, IntArray
    from trueup.calibrators.stopping import Stopping
    from trueup.data.schema import Task
    from trueup.kernels.pooling import Pooled


MOST_BINS = 100_000
SLACK = 1e-9  # a score that begins at a multiple of the mass of a bin, but for rounding, begins a bin


class Isotonic(Classic):
    """Correct scores by the best fit that never falls as the score rises: isotonic regression.

    On the rows of the fit the cumulative error is 0 in every interval of corrected scores (Claim 6 of the reference), and
    no threshold decides at a higher cost than before. Several classes are corrected one against the rest and made to add
    up to 1; a row to which every class gives 0 keeps the given probabilities.

    Parameters
    ----------
    prediction : column name, or several
        The score to be corrected: a probability, a real number (``task="regression"``), or one column for each class. For
        an array a position, 0 by default; a one-dimensional array is the prediction itself.
    task : {"auto", "binary", "regression"}
        "auto" is binary for one prediction column, several classes for several.
    classes : sequence, optional
        For several prediction columns, the outcome that each stands for, in their order.
    unlabelled : {"error", "drop"}
        What to do with rows without an outcome.
    stopping : CrossValidation, Holdout, Validation or None
        Which rows judge whether the correction is kept; where it lowers their loss by no more than noise, scores are left
        unchanged. None fits all rows and keeps the result.

    Attributes
    ----------
    knots_, values_ : ndarray, or a list of one for each class
        The lowest and highest score of each block, and the mean outcome of the block; empty where scores are left
        unchanged.
    model_ : Model
        What is saved and shipped.
    history_ : History
        The loss before and after, and of which rows.
    held_out_, held_out_rows_, held_out_before_
        As in `trueup.MCGrad`.

    Notes
    -----
    The fit is constant on a block. Between the last score of one block and the first of the next the data say nothing: a
    straight line there keeps the order of scores, has no jump, and leaves every score of the fit at the mean of its block.
    Outside the scores of the fit it is the value at the nearer end.

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

    def __init__(
        self,
        prediction: Any = None,
        *,
        task: str = "auto",
        classes: Any = None,
        unlabelled: str = "error",
        stopping: Stopping = None,
    ) -> None:
        self.prediction = prediction
        self.task = task
        self.classes = classes
        self.unlabelled = unlabelled
        self.stopping = stopping

    @property
    def knots_(self) -> Any:
        """The scores at which blocks begin and end."""
        return self._side(0)

    @property
    def values_(self) -> Any:
        """The value at each knot."""
        return self._side(1)

    def _fit_output(self, pooled: Pooled, worth: FloatArray, task: Task) -> Curves:  # noqa: ARG002
        ends = zip(pooled.at[:-1].tolist(), pooled.at[1:].tolist(), strict=True)
        return Curves.of_pieces(
            "knots", [find_knots(pooled.score[a:b], pooled.total[a:b], pooled.weight[a:b]) for a, b in ends]
        )


class Histogram(Classic):
    """Correct scores by the mean outcome of the bin they fall in: histogram binning.

    Several classes are corrected one against the rest and made to add up to 1; a row to which every class gives 0 keeps
    the given probabilities.

    Parameters
    ----------
    prediction : column name, or several
        The score to be corrected: a probability, a real number (``task="regression"``), or one column for each class. For
        an array a position, 0 by default; a one-dimensional array is the prediction itself.
    bins : int
        The most bins; rows of equal score are never parted.
    strategy : {"mass", "width"}
        Bins of equal weight, or of equal width: of [0, 1], or between the lowest and the highest score for a real outcome.
        The words are those of `trueup.metrics.ece`.
    task : {"auto", "binary", "regression"}
        "auto" is binary for one prediction column, several classes for several.
    classes : sequence, optional
        For several prediction columns, the outcome that each stands for, in their order.
    unlabelled : {"error", "drop"}
        What to do with rows without an outcome.
    stopping : CrossValidation, Holdout, Validation or None
        Which rows judge whether the correction is kept; where it lowers their loss by no more than noise, scores are left
        unchanged. None fits all rows and keeps the result.

    Attributes
    ----------
    edges_, values_ : ndarray, or a list of one for each class
        The upper edge of each bin, which belongs to it, and its value; empty where scores are left unchanged. The last bin
        also takes whatever lies above.
    model_ : Model
        What is saved and shipped.
    history_ : History
        The loss before and after, and of which rows.
    held_out_, held_out_rows_, held_out_before_
        As in `trueup.MCGrad`.

    Notes
    -----
    An edge between bins of equal weight lies half-way between the scores at its sides. A bin of equal width without rows
    takes its value from the nearest bins with rows at its sides, by a straight line over the bins between them; at an end,
    that of the nearest one.

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
        self.prediction = prediction
        self.bins = bins
        self.strategy = strategy
        self.task = task
        self.classes = classes
        self.unlabelled = unlabelled
        self.stopping = stopping

    @property
    def edges_(self) -> Any:
        """The upper edge of each bin."""
        return self._side(0)

    @property
    def values_(self) -> Any:
        """The value of each bin."""
        return self._side(1)

    def _check(self, task: Task) -> None:
        super()._check(task)
        check_whole(self, {"bins": (1, MOST_BINS)})
        check_choice("strategy", self.strategy, ("mass", "width"))

    def _fit_output(self, pooled: Pooled, worth: FloatArray, task: Task) -> Curves:  # noqa: ARG002
        cut = _equal_mass if self.strategy == "mass" else _equal_width
        ends = zip(pooled.at[:-1].tolist(), pooled.at[1:].tolist(), strict=True)
        sums = ((pooled.score[a:b], pooled.weight[a:b], pooled.total[a:b]) for a, b in ends)
        return Curves.of_pieces("steps", [cut(*one, int(self.bins), real=task == "regression") for one in sums])


def _equal_mass(
    score: FloatArray, weight: FloatArray, total: FloatArray, bins: int, *, real: bool
) -> tuple[FloatArray, FloatArray]:
    """Cut into bins of equal weight; give upper edges and means."""
    inner, first = cut_by_mass(score, weight, bins)
    return np.append(inner, score[-1] if real else 1.0), np.add.reduceat(total, first) / np.add.reduceat(weight, first)


def cut_by_mass(score: FloatArray, weight: FloatArray, bins: int) -> tuple[FloatArray, IntArray]:
    """Cut where the weight below a score passes multiples of the mass of a bin.

    Scores rise, no two are equal. Give the edges between bins, each half-way between two scores, and where bins begin.
    """
    mass = np.cumsum(weight)
    below = np.append(0.0, mass[:-1])
    number = np.minimum(np.floor(bins * (below / mass[-1]) + SLACK), bins - 1)
    first = np.flatnonzero(np.append(True, number[1:] != number[:-1]))
    left, right = score[first[1:] - 1], score[first[1:]]
    middle = left + (right - left) / 2
    return np.where(middle < right, middle, left), first


def _equal_width(
    score: FloatArray, weight: FloatArray, total: FloatArray, bins: int, *, real: bool
) -> tuple[FloatArray, FloatArray]:
    """Cut the range of scores into equal parts; a part without rows lies on the line between its neighbours."""
    low, high = (float(score[0]), float(score[-1])) if real else (0.0, 1.0)
    inner = np.arange(1, bins) / bins
    edges = np.unique(low * (1 - inner) + high * inner)
    edges = edges[edges < high]
    number = np.searchsorted(edges, score, side="left")
    mass, sums = (np.bincount(number, values, len(edges) + 1) for values in (weight, total))
    filled = np.flatnonzero(mass > 0)
    values = np.interp(np.arange(len(mass)), filled, sums[filled] / mass[filled])
    return np.append(edges, high), values
