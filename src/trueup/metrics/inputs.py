"""What every measure asks of its arrays, checked once and in the same words."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trueup.data.checks import MAX_WEIGHT, SUM_TOLERANCE, describe_rows
from trueup.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from trueup._types import BoolArray, FloatArray


class Scored(NamedTuple):
    """Outcomes, scores and weights as float64, equally long; never to be written to."""

    y: FloatArray
    p: FloatArray
    w: FloatArray


def scored(y: ArrayLike, p: ArrayLike, weight: ArrayLike | None = None, *, real: bool = False) -> Scored:
    """Check outcomes, scores and weights, and leave out rows of weight 0.

    Parameters
    ----------
    y, p : array-like, shape (n,)
        Outcomes and scores in [0, 1]; any finite numbers where ``real``.
    weight : array-like, shape (n,), optional
        Not negative, not all zero. By default 1.
    real : bool
        Whether y and p are real quantities rather than probabilities.

    Examples
    --------
    >>> scored([0, 1, 1], [0.2, 0.7, 0.9], [1, 2, 0]).w
    array([1., 2.])
    """
    ys, ps = numbers(y, "y"), numbers(p, "p")
    ws = np.ones(len(ys)) if weight is None else numbers(weight, "weight")
    if not len(ys) == len(ps) == len(ws):
        lengths = f"{len(ys)} and {len(ps)}" + ("" if weight is None else f" and {len(ws)}")
        raise DataError(f"outcomes, scores and weights must be equally long; got {lengths}", hint="one entry a row")
    if not len(ys):
        raise DataError("the arrays are empty", hint="a measure needs at least one row")
    if not real:
        for values, name in ((ys, "y"), (ps, "p")):
            bad = (values < 0) | (values > 1)
            if bad.any():
                raise DataError(
                    f"{name} must lie in [0, 1]; got {values[bad][0]:.10g} {describe_rows(bad)}",
                    hint="outcomes are 0, 1 or between; scores are probabilities, not logits or percentages",
                )
    ws = checked_weights(ws)
    keep = ws > 0
    return Scored(ys, ps, ws) if keep.all() else Scored(ys[keep], ps[keep], ws[keep])


def checked_weights(w: FloatArray) -> FloatArray:
    """Check weights, and measure them in another unit where powers of them would overflow or vanish.

    Examples
    --------
    >>> checked_weights(np.array([0.0, 2.0, 1.0]))
    array([0., 2., 1.])
    """
    if (bad := w < 0).any():
        raise DataError(
            f"weight must not be negative; got {w[bad][0]:g} {describe_rows(bad)}", hint="a row left out has weight 0"
        )
    if not w.any():
        raise DataError("the weights are all zero", hint="leave weight out to count rows alike")
    most = float(w.max())
    # Third powers of such weights would overflow or vanish. A power of two changes nothing but the unit.
    return w if 1 / MAX_WEIGHT <= most <= MAX_WEIGHT else np.ldexp(w, -math.frexp(most)[1])


def scored_classes(y: ArrayLike, p: ArrayLike, weight: ArrayLike | None = None) -> Scored:
    """Check positions of classes, scores of shape (n, k) and weights, and leave out rows of weight 0.

    Examples
    --------
    >>> scored_classes([0, 1], [[0.9, 0.1], [0.4, 0.6]]).p.shape
    (2, 2)
    """
    try:
        matrix = np.asarray(p, np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"p must hold numbers ({error})", hint="convert it first") from error
    if matrix.ndim != 2 or matrix.shape[1] < 2:
        raise DataError(
            f"p must have one column a class, two or more; got shape {matrix.shape}", hint="for one score a row use ece"
        )
    # Row numbers in the place of the scores: they come back for the rows that stay.
    kept = scored(y, np.arange(len(matrix)), weight, real=True)
    _check_shares(matrix)
    at, classes = kept.p.astype(np.int64), matrix.shape[1]
    bad = np.zeros(len(matrix), bool)
    bad[at] = wrong = (kept.y < 0) | (kept.y >= classes) | (kept.y != np.floor(kept.y))
    if bad.any():
        raise DataError(
            f"y must hold class positions 0 to {classes - 1}; got {kept.y[wrong][0]:g} {describe_rows(bad)}",
            hint="give the column of p that belongs to each row's class",
        )
    return Scored(kept.y, matrix if len(at) == len(matrix) else matrix[at], kept.w)


def _check_shares(matrix: FloatArray) -> None:
    """Refuse rows that are no probabilities of classes."""
    bad: BoolArray = np.asarray(~np.isfinite(matrix).all(axis=1))
    if bad.any():
        raise DataError(f"p must be finite; got a row that is not {describe_rows(bad)}", hint="leave those rows out")
    bad = np.asarray((matrix < 0).any(axis=1))
    if bad.any():
        least = matrix[bad][0].min()
        raise DataError(f"p must not be negative; got {least:g} {describe_rows(bad)}", hint="pass logits through softmax")
    total = matrix.sum(axis=1)
    bad = np.asarray(np.abs(total - 1) > SUM_TOLERANCE)
    if bad.any():
        raise DataError(
            f"the probabilities of a row must add up to 1; got {total[bad][0]:.6g} {describe_rows(bad)}",
            hint="divide percentages by 100; classes that do not exclude each other are measured one by one, with ece",
        )


def numbers(values: ArrayLike, name: str) -> FloatArray:
    """Check one array: numbers, one-dimensional, finite."""
    try:
        array = np.asarray(values, np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"{name} must hold numbers ({error})", hint="convert it first") from error
    if array.ndim != 1:
        several = "top_label_ece, classwise_ece and ecce_classes take scores of several classes"
        raise DataError(
            f"{name} must be one-dimensional; got shape {array.shape}",
            hint=several if name == "p" and array.ndim == 2 and array.shape[1] > 1 else "pass one value a row",
        )
    bad = ~np.isfinite(array)
    if bad.any():
        raise DataError(f"{name} must be finite; got {array[bad][0]} {describe_rows(bad)}", hint="leave those rows out")
    return array
