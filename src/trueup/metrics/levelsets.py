"""Multicalibration over the level sets of a predictor, against real functions of the features.

Globus-Harris, Harrison, Kearns, Roth and Sorrell (2023), "Multicalibration as boosting for regression", Definition 2.1 (K2,
and with h = 1 the mean squared calibration error), Definition 4.1 (rounding) and appendix A (K1, Kinf and how they
compare). Kinf is printed there without its absolute value, which is intended and used here.

All of them require a predictor with a finite range and many rows on each level v = f(x). If nearly every row has a score of
its own, a level is one row, its mean residual is the noise of that row, and the measures are uninformative: apply
`discretize` to such scores first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trueup._validate import check_integer
from trueup.data.frame import describe_rows
from trueup.errors import DataError
from trueup.metrics.inputs import validate_array, validate_scores

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from trueup._types import FloatArray


def k1(y: ArrayLike, f: ArrayLike, h: ArrayLike, weight: ArrayLike | None = None) -> FloatArray:
    """Compute the mean absolute error of each function over the level sets.

    K1(f, h) = sum_v Pr[f = v] |E[h (y - v) | f = v]|.

    Parameters
    ----------
    y : array-like, shape (n,)
        Outcomes: any finite numbers.
    f : array-like, shape (n,)
        Predictions with few distinct values (see the module, and `discretize`).
    h : array-like, shape (n, q) or (n,)
        One function per column, evaluated at the rows: group indicators, features, or any finite numbers.
    weight : array-like, shape (n,), optional
        A weight of 2 counts the row twice.

    Returns
    -------
    ndarray of float64, shape (q,)
        One value per function; one value if h has one dimension. Takes a sort of f and one pass over h.

    Notes
    -----
    K1 <= sqrt(K2) and Kinf <= K1 <= m Kinf for m levels; K2 <= K1 where |h| <= 1 and y, v lie in [0, 1].

    Examples
    --------
    Half the rows on level .25 with mean residual +.25, half on .75 with -.25; the second function keeps the first level:

    >>> y, f = [0, 1, 0, 1], [0.25, 0.25, 0.75, 0.75]
    >>> k1(y, f, [[1, 1], [1, 1], [1, 0], [1, 0]])
    array([0.25 , 0.125])
    """
    _, gaps = _level_gaps(y, f, h, weight)
    return np.asarray(np.abs(gaps).sum(axis=1), np.float64)


def k2(y: ArrayLike, f: ArrayLike, h: ArrayLike, weight: ArrayLike | None = None) -> FloatArray:
    """Compute the mean squared error of each function over the level sets.

    K2(f, h) = sum_v Pr[f = v] (E[h (y - v) | f = v])^2. Arrays and result as in `k1`.

    Examples
    --------
    >>> k2([0, 1, 0, 1], [0.25, 0.25, 0.75, 0.75], [[1, 1], [1, 1], [1, 0], [1, 0]])
    array([0.0625 , 0.03125])
    """
    share, gaps = _level_gaps(y, f, h, weight)
    return np.asarray((gaps * (gaps / share)).sum(axis=1), np.float64)


def kinf(y: ArrayLike, f: ArrayLike, h: ArrayLike, weight: ArrayLike | None = None) -> FloatArray:
    """Compute the largest error of each function on one level set, times the share of rows there.

    Kinf(f, h) = max_v Pr[f = v] |E[h (y - v) | f = v]|. Arrays and result as in `k1`.

    Examples
    --------
    >>> kinf([0, 1, 0, 1], [0.25, 0.25, 0.75, 0.75], [[1, 1], [1, 1], [1, 0], [1, 0]])
    array([0.125, 0.125])
    """
    _, gaps = _level_gaps(y, f, h, weight)
    return np.asarray(np.abs(gaps).max(axis=1), np.float64)


def msce(y: ArrayLike, f: ArrayLike, weight: ArrayLike | None = None) -> float:
    """Compute the mean squared calibration error, which is K2 of the constant function 1.

    MSCE(f) = sum_v Pr[f = v] (E[y | f = v] - v)^2. Arrays as in `k1`.

    Examples
    --------
    >>> msce([0, 1, 0, 1], [0.25, 0.25, 0.75, 0.75])
    0.0625
    """
    return float(k2(y, f, np.ones(len(validate_array(f, "f"))), weight)[0])


def discretize(f: ArrayLike, m: int) -> FloatArray:
    """Round predictions to the nearest of 0, 1/m, ..., 1, ties down.

    Parameters
    ----------
    f : array-like, shape (n,)
        Any finite numbers; those outside [0, 1] are clipped.
    m : int
        Number of steps, 1 or more: m + 1 levels.

    Returns
    -------
    ndarray of float64, shape (n,)
        A new array; levels are exactly k/m, so that equal levels are equal numbers.

    Examples
    --------
    >>> discretize([-0.2, 0.125, 0.13, 0.9], 4).tolist()
    [0.0, 0.0, 0.25, 1.0]
    """
    check_integer("m", m, 1, hint="10 to 100 levels are common")
    steps = np.ceil(np.clip(validate_array(f, "f"), 0.0, 1.0) * m - 0.5)
    return np.asarray((steps + 0.0) / m, np.float64)  # adding zero avoids a negative zero


def _level_gaps(y: ArrayLike, f: ArrayLike, h: ArrayLike, weight: ArrayLike | None) -> tuple[FloatArray, FloatArray]:
    """Return Pr[f = v] by level, shape (m,), and Pr[f = v] E[h (y - v) | f = v] by function and level, shape (q, m)."""
    predicted = validate_array(f, "f")  # first, so that an error names f
    outcome, value, mass = validate_scores(y, predicted, weight, real=True)
    functions = _read_functions(h, len(predicted))
    # Rows of weight 0 are dropped column by column, so that h is never copied as a whole.
    rows = slice(None) if len(outcome) == len(functions) else np.asarray(weight, np.float64) > 0
    levels, index = np.unique(value, return_inverse=True)
    mass = mass / mass.max()  # the sum of large weights must not overflow
    total = mass.sum()
    residual = mass * (outcome - value)
    gaps = np.empty((functions.shape[1], len(levels)))
    for column in range(functions.shape[1]):
        values = np.asarray(functions[:, column], np.float64)
        bad = ~np.isfinite(values)
        if bad.any():
            message = f"h must be finite; got {values[bad][0]} {describe_rows(bad)} of column {column}"
            raise DataError(message, hint="leave those rows out")
        gaps[column] = np.bincount(index, residual * values[rows], len(levels))
    return np.asarray(np.bincount(index, mass) / total, np.float64), gaps / total


def _read_functions(h: ArrayLike, rows: int) -> NDArray[np.number | np.bool_]:
    """Return h with one column per function, in its own type: indicators stay at one byte per row."""
    try:
        array = np.asarray(h)
        if array.dtype.kind not in "bfiu":
            array = np.asarray(h, np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"h must hold numbers ({error})", hint="convert it first") from error
    if array.ndim not in (1, 2):
        hint = "pass one function per column"
        raise DataError(f"h must have one or two dimensions; got shape {array.shape}", hint=hint)
    if len(array) != rows:
        hint = "pass one function per column"
        raise DataError(f"h must have one row per prediction; got {len(array)} and {rows}", hint=hint)
    return array[:, None] if array.ndim == 1 else array
