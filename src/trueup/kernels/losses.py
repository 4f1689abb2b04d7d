"""Losses row by row, and how far they differ."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from trueup.kernels._jit import jit

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

__all__ = ["log_losses", "spread"]


@jit
def log_losses(y: Floats, p: Floats, smallest: float, out: Floats) -> None:
    """Give the log loss of each row, where 0 and 1 count as ``smallest`` from the end."""
    for i in range(len(y)):
        q = min(max(p[i], smallest), 1.0 - smallest)
        loss = 0.0
        if y[i] > 0:
            loss -= y[i] * math.log(q)
        if y[i] < 1:
            loss -= (1.0 - y[i]) * math.log1p(-q)
        out[i] = loss


@jit
def spread(difference: Floats, weight: Floats, mean: float, least: float = 0.0) -> tuple[float, float, float]:
    """Give the largest weighted deviation from a mean, and the sums of squares and of fourth powers of all over it.

    No weights are weights of 1. The largest is taken out of the powers, which would overflow for the largest of numbers;
    it is no smaller than ``least``, the largest of rows that are elsewhere.
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
