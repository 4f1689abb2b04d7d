"""Isotonic regression by the pool-adjacent-violators algorithm.

Ayer, Brunk, Ewing, Reid and Silverman (1955), "An empirical distribution function for sampling with incomplete
information", Annals of Mathematical Statistics 26(4). As a calibration map: Gao, Parameswaran and Peng (2017), Algorithm 1,
whose Claim 6 states that c_emp is 0 on the rows it was fitted on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from trueup.kernels.curves import interpolate
from trueup.kernels.fitting import pool_adjacent_violators, pool_scores
from trueup.metrics.inputs import validate_array, validate_columns

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from trueup._types import FloatArray

SMALLEST_WEIGHT = 2.0**-500  # relative to the largest: the product of a smaller one and an outcome may underflow
LARGEST = 1e300  # beyond it, sums and differences may overflow


@dataclass(frozen=True, eq=False, repr=False)
class IsotonicFit:
    """A non-decreasing fit: constant on blocks of scores, linear between them.

    Attributes
    ----------
    fitted : ndarray of float64, shape (n,)
        The value of each row, in the order of the input.
    thresholds : ndarray of float64, shape (k,)
        The lowest and the highest score of each block (one number if they are equal), strictly ascending.
    values : ndarray of float64, shape (k,)
        The value of the block at each threshold: the weighted mean of its outcomes, which increases from block to block.
    """

    fitted: FloatArray
    thresholds: FloatArray
    values: FloatArray

    def __repr__(self) -> str:
        blocks = len(np.unique(self.values))
        return (
            f"<IsotonicFit of {len(self.fitted):,} rows: {blocks:,} block{'s' if blocks > 1 else ''}, "
            f"values {self.values[0]:.4g} to {self.values[-1]:.4g}>"
        )

    def predict(self, p: ArrayLike) -> FloatArray:
        """Evaluate the fit at any scores.

        Parameters
        ----------
        p : array-like of float, shape (m,)
            Scores. Within a block the result is the value of the block; between the last score of one block and the first
            of the next it is linear; outside the scores of the fit it is the value at the nearer end.

        Returns
        -------
        ndarray of float64, shape (m,)
            Exact at the scores of the fit, and non-decreasing in p to the last bit.

        Examples
        --------
        >>> from trueup.metrics.isotonic import isotonic
        >>> isotonic([0, 1, 0, 1], [0.25, 0.5, 0.625, 0.75]).predict([0.125, 0.375, 0.55, 0.6875, 1.0]).tolist()
        [0.0, 0.25, 0.5, 0.75, 1.0]
        """
        scores = validate_array(p, "p", LARGEST)
        out = np.empty(len(scores))
        interpolate(self.thresholds, self.values, np.ascontiguousarray(scores), out)
        return out


def isotonic(y: ArrayLike, p: ArrayLike, weight: ArrayLike | None = None) -> IsotonicFit:
    """Fit a non-decreasing function of the score to outcomes by weighted least squares.

    Tied scores are pooled first, so that the order of the rows does not matter. Takes a sort of the scores and one pass
    over the distinct ones.

    Parameters
    ----------
    y : array-like of float, shape (n,)
        Outcomes: 0 and 1, probabilities, or any finite numbers.
    p : array-like of float, shape (n,)
        Scores: any finite numbers.
    weight : array-like of float, shape (n,), optional
        Not negative. A weight of 2 counts the row twice; a row of weight 0 gets a fitted value and has no influence.

    Returns
    -------
    IsotonicFit
        The fitted value of each row, and the fit as a function of the score.

    Raises
    ------
    DataError
        If there are no rows, lengths differ, a number is missing or infinite, or no weight is positive.

    Examples
    --------
    >>> from trueup.metrics.isotonic import isotonic
    >>> fit = isotonic([0, 1, 0, 1], [0.1, 0.2, 0.4, 0.6])
    >>> fit
    <IsotonicFit of 4 rows: 3 blocks, values 0 to 1>
    >>> fit.fitted.tolist()
    [0.0, 0.5, 0.5, 1.0]
    >>> fit.thresholds.tolist(), fit.values.tolist()
    ([0.1, 0.2, 0.4, 0.6], [0.0, 0.5, 0.5, 1.0])
    """
    outcome, score, mass = validate_columns(y, p, weight, LARGEST)
    mass = np.ldexp(mass, -int(np.frexp(mass.max())[1]))  # a power of two, so that no digit is lost; at most 1
    counts = mass > SMALLEST_WEIGHT
    pooled = pool_scores(score[counts], outcome[counts], None if weight is None else mass[counts])
    fit = IsotonicFit(np.empty(0), *find_knots(pooled.score, pooled.total, pooled.weight))
    return replace(fit, fitted=fit.predict(score))


def find_knots(scores: FloatArray, total: FloatArray, weight: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Fit sums at ascending distinct scores; return the scores where blocks begin and end, and the value at each."""
    first, mean = pool_adjacent_violators(total, weight)
    last = np.append(first[1:], len(scores)) - 1
    ends = np.stack([first, last], axis=1).ravel()
    # A block of one score has one knot, so that knots ascend strictly.
    keep = np.append(True, ends[1:] != ends[:-1])
    return scores[ends[keep]], np.repeat(mean, 2)[keep]
