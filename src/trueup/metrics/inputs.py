"""What every measure asks of its arrays, checked once and in the same words."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trueup.data.checks import where
from trueup.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Floats = NDArray[np.float64]

__all__ = ["Scored", "numbers", "scored"]


class Scored(NamedTuple):
    """Outcomes, scores and weights as float64, equally long; never to be written to."""

    y: Floats
    p: Floats
    w: Floats


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
                    f"{name} must lie in [0, 1]; got {values[bad][0]:g} {where(bad)}",
                    hint="outcomes are 0, 1 or between; scores are probabilities, not logits or percentages",
                )
    bad = ws < 0
    if bad.any():
        raise DataError(f"weight must not be negative; got {ws[bad][0]:g} {where(bad)}", hint="a row left out has weight 0")
    if not ws.any():
        raise DataError("the weights are all zero", hint="leave weight out to count rows alike")
    keep = ws > 0
    return Scored(ys, ps, ws) if keep.all() else Scored(ys[keep], ps[keep], ws[keep])


def numbers(values: ArrayLike, name: str) -> Floats:
    """Check one array: numbers, one-dimensional, finite."""
    try:
        array = np.asarray(values, np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"{name} must hold numbers ({error})", hint="convert it first") from error
    if array.ndim != 1:
        raise DataError(f"{name} must be one-dimensional; got shape {array.shape}", hint="pass one value a row")
    bad = ~np.isfinite(array)
    if bad.any():
        raise DataError(f"{name} must be finite; got {array[bad][0]} {where(bad)}", hint="leave those rows out")
    return array
