"""Log losses of rows, and moments of deviations."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from trueup.kernels._jit import jit

if TYPE_CHECKING:
    from trueup._types import FloatArray


@jit
def log_losses(y: FloatArray, p: FloatArray, smallest: float, out: FloatArray) -> None:
    """Compute the log loss of each row; probabilities are clipped to ``smallest`` from 0 and 1."""
    for i in range(len(y)):
        q = min(max(p[i], smallest), 1.0 - smallest)
        loss = 0.0
        if y[i] > 0:
            loss -= y[i] * math.log(q)
        if y[i] < 1:
            loss -= (1.0 - y[i]) * math.log1p(-q)
        out[i] = loss


@jit
def deviation_moments(
    difference: FloatArray, weight: FloatArray, mean: float, least: float = 0.0
) -> tuple[float, float, float]:
    """Return the largest weighted deviation from a mean, and the sums of squares and fourth powers relative to it.

    Empty weights are weights of 1. The largest is at least ``least``, that of rows elsewhere; dividing by it prevents
    overflow.
    """
    largest = least
    for i in range(len(difference)):
        largest = max(largest, abs(difference[i] - mean) * (weight[i] if len(weight) else 1.0))
    squares, fourth = 0.0, 0.0
    for i in range(len(difference)):
        u = (difference[i] - mean) * (weight[i] if len(weight) else 1.0) / largest if largest > 0 else 0.0
        squares += u * u
        fourth += u * u * u * u
    return largest, squares, fourth
