"""Isotonic regression: the best fit that never falls as the score rises.

Pool adjacent violators: Ayer, Brunk, Ewing, Reid and Silverman (1955), "An empirical distribution function for sampling
with incomplete information", Annals of Mathematical Statistics 26(4). As a calibration map: Gao, Parameswaran and Peng
(2017), Algorithm 1, whose Claim 6 says that c_emp is 0 on the rows it was fitted to.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from trueup.data.checks import describe_rows
from trueup.errors import DataError
from trueup.kernels.pav import pool_adjacent_violators
from trueup.kernels.pooling import pool
from trueup.kernels.scores import interpolate

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from trueup._types import FloatArray

LIGHTEST = 2.0**-500  # of the largest weight: the product of a lighter one and an outcome may vanish
LARGEST = 1e300  # beyond it, sums and differences may overflow


@dataclass(frozen=True, eq=False, repr=False)
class Isotonic:
    """A fit that never falls: constant on blocks of scores, straight lines between them.

    Attributes
    ----------
    fitted : ndarray of float64, shape (n,)
        The value of each row, in the order of the input.
    thresholds : ndarray of float64, shape (k,)
        The lowest and the highest score of each block (one number where they are the same), strictly ascending.
    values : ndarray of float64, shape (k,)
        The value of the block at each threshold: the weighted mean of its outcomes. It rises from block to block.
    """

    fitted: FloatArray
    thresholds: FloatArray
    values: FloatArray

    def __repr__(self) -> str:
        blocks = len(np.unique(self.values))
        return (
            f"<Isotonic fit of {len(self.fitted):,} rows: {blocks:,} block{'s' if blocks > 1 else ''}, "
            f"values {self.values[0]:.4g} to {self.values[-1]:.4g}>"
        )

    def predict(self, p: ArrayLike) -> FloatArray:
        """Read the fit at any scores.

        Parameters
        ----------
        p : array-like of float, shape (m,)
            Inside a block the value is that of the block; between the last score of one block and the first of the
            next it is a straight line; outside the scores of the fit it is the value at the nearer end.

        Returns
        -------
        ndarray of float64, shape (m,)
            Exact at the scores of the fit, and never falling in p, to the last bit.

        Examples
        --------
        >>> from trueup.metrics.isotonic import isotonic
        >>> isotonic([0, 1, 0, 1], [0.25, 0.5, 0.625, 0.75]).predict([0.125, 0.375, 0.55, 0.6875, 1.0]).tolist()
        [0.0, 0.25, 0.5, 0.75, 1.0]
        """
        scores = _numbers(p, "p")
        out = np.empty(len(scores))
        interpolate(self.thresholds, self.values, np.ascontiguousarray(scores), out)
        return out


def isotonic(y: ArrayLike, p: ArrayLike, weight: ArrayLike | None = None) -> Isotonic:
    """Fit outcomes by a function of the score that never falls, by weighted least squares.

    Rows of equal score are pooled first, so that the order of the rows does not matter. Takes a sort of the scores and
    one pass over the distinct ones.

    Parameters
    ----------
    y : array-like of float, shape (n,)
        Outcomes: 0 and 1, probabilities, or any finite numbers.
    p : array-like of float, shape (n,)
        Scores: any finite numbers.
    weight : array-like of float, shape (n,), optional
        Not negative. A weight of 2 is the row twice; a row of weight 0 gets a fitted value and has no influence.

    Returns
    -------
    Isotonic
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
    <Isotonic fit of 4 rows: 3 blocks, values 0 to 1>
    >>> fit.fitted.tolist()
    [0.0, 0.5, 0.5, 1.0]
    >>> fit.thresholds.tolist(), fit.values.tolist()
    ([0.1, 0.2, 0.4, 0.6], [0.0, 0.5, 0.5, 1.0])
    """
    outcome, score, mass = _checked(y, p, weight)
    mass = np.ldexp(mass, -int(np.frexp(mass.max())[1]))  # by a power of two, near 1 at most: no digit is lost
    counts = mass > LIGHTEST
    pooled = pool(score[counts], outcome[counts], None if weight is None else mass[counts])
    fit = Isotonic(np.empty(0), *find_knots(pooled.score, pooled.total, pooled.weight))
    return replace(fit, fitted=fit.predict(score))


def find_knots(scores: FloatArray, total: FloatArray, weight: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Fit sums at distinct scores, ascending: give the scores where blocks begin and end, and the value at each.

    Examples
    --------
    >>> knots, values = find_knots(np.array([0.1, 0.2, 0.4]), np.array([1.0, 0.0, 1.0]), np.ones(3))
    >>> knots.tolist(), values.tolist()
    ([0.1, 0.2, 0.4], [0.5, 0.5, 1.0])
    """
    first, mean = pool_adjacent_violators(total, weight)
    last = np.append(first[1:], len(scores)) - 1
    ends = np.stack([first, last], axis=1).ravel()
    # A block of one score has one knot: knots ascend strictly, and no line between them is upright.
    keep = np.append(True, ends[1:] != ends[:-1])
    return scores[ends[keep]], np.repeat(mean, 2)[keep]


def _checked(y: ArrayLike, p: ArrayLike, weight: ArrayLike | None) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Read outcomes, scores and weights; refuse what has no fit."""
    outcome, score = _numbers(y, "y"), _numbers(p, "p")
    mass = np.ones(len(outcome)) if weight is None else _numbers(weight, "weight")
    if not len(outcome) == len(score) == len(mass):
        lengths = f"{len(outcome):,} and {len(score):,}" + ("" if weight is None else f" and {len(mass):,}")
        raise DataError(
            f"y, p and weight must be of one length; got {lengths}", hint="pass one outcome and one weight a score"
        )
    if not len(outcome):
        raise DataError("the data has no rows", hint="check the filter or file that it comes from")
    bad = mass < 0
    if bad.any():
        raise DataError(
            f"weight must not be negative; got {mass[bad][0]:g} {describe_rows(bad)}",
            hint="a row that should not count has weight 0",
        )
    if not mass.any():
        raise DataError(f"the weights are all zero ({len(mass):,} rows)", hint="leave weight out to count rows alike")
    return outcome, score, mass


def _numbers(values: ArrayLike, name: str) -> FloatArray:
    """Read a one-dimensional array of finite numbers."""
    try:
        numbers = np.asarray(values, np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"{name} must hold numbers ({error})", hint="convert it to numbers first") from error
    if numbers.ndim != 1:
        raise DataError(f"{name} must be one-dimensional; got shape {numbers.shape}", hint="pass one number a row")
    bad = ~(np.abs(numbers) <= LARGEST)  # so put, it is true of NaN
    if bad.any():
        raise DataError(
            f"{name} must hold finite numbers, of size {LARGEST:g} at most; got {numbers[bad][0]:g} {describe_rows(bad)}",
            hint="drop the rows that have none, or fill them in first",
        )
    return numbers
