"""Smooth calibration error: residuals smoothed along the score, at the bandwidth that the data determines.

Blasiok and Nakkiran (2023), "Smooth ECE: principled reliability diagrams via kernel smoothing", arXiv:2309.12236.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trueup._validate import check_integer, check_number
from trueup.metrics.inputs import validate_scores

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike


GRID = 4096  # cells of [0, 1]: they change the curve by about 1e-5 at a bandwidth of 8 cells, the fixed point by less
BISECTIONS = 30  # of [0, 1]: the fixed point to 1e-9
MAX_BANDWIDTH = 10.0  # a kernel this wide is constant to the last bit
CHUNK = 1 << 15  # rows at a time, so that intermediate arrays stay in the cache


def smooth_ece(y: ArrayLike, p: ArrayLike, weight: ArrayLike | None = None, *, grid: int = GRID) -> float:
    """Compute smECE: the bandwidth at which the smoothed calibration error equals the bandwidth.

    It needs no bins, and changes little when scores change little. It is positive on samples of a calibrated predictor:
    with continuous scores it decreases as n^(-1/3).

    Parameters
    ----------
    y, p : array-like, shape (n,)
        Outcomes and scores in [0, 1].
    weight : array-like, shape (n,), optional
        A weight of 2 counts the row twice.
    grid : int
        Number of cells of [0, 1]. Values far below 1/grid are not resolved.

    Returns
    -------
    float
        In [0, 1]; takes O(n) to bin the rows and then O(grid log grid), whatever n.

    Notes
    -----
    s* with E(s*) = s*, where E(s) is the curve of `smooth_ece_at`. Smoothing by s and then by more is smoothing by more,
    and smoothing never increases an integral of absolute values; so E is non-increasing, the fixed point is unique, and
    bisection finds it.

    Examples
    --------
    Scores of .4 where every second row has an event are .1 too low:

    >>> round(smooth_ece([0, 1, 0, 1], [0.4, 0.4, 0.4, 0.4]), 6)
    0.1
    """
    curve = _error_curve(y, p, weight, grid)
    low, high = 0.0, 1.0
    if curve(high) >= high * (1 - 1e-12):  # every outcome is as far from its score as possible
        return high
    for _ in range(BISECTIONS):
        middle = 0.5 * (low + high)
        if curve(middle) >= middle:
            low = middle
        else:
            high = middle
    return low  # exactly 0 if every residual is


def smooth_ece_at(y: ArrayLike, p: ArrayLike, sigma: float, weight: ArrayLike | None = None, *, grid: int = GRID) -> float:
    """Compute the smoothed calibration error at one bandwidth.

    Parameters
    ----------
    y, p : array-like, shape (n,)
        Outcomes and scores in [0, 1].
    sigma : float
        Standard deviation of the kernel, in units of the score. From about 8/grid on the result agrees with the formula to
        some 1e-5, at 2/grid to 1e-3; towards 0 it tends to the absolute sums of residuals by grid point.
    weight : array-like, shape (n,), optional
    grid : int
        Number of cells of [0, 1].

    Notes
    -----
    E(s) = integral over t in [0, 1] of |sum_i w_i (y_i - p_i) K_s(t, p_i)| / W, K_s the Gaussian of standard deviation s,
    reflected repeatedly at 0 and 1: K_s(t, p) = 1 + 2 sum_k exp(-(k pi s)^2 / 2) cos(k pi t) cos(k pi p).

    Examples
    --------
    Opposite residuals of .5 at two scores count fully with a narrow kernel, and cancel with a wide one:

    >>> y, p = [1, 0], [0.5, 0.5 + 1 / 8]
    >>> round(smooth_ece_at(y, p, 0.01), 4), round(smooth_ece_at(y, p, 10), 4)
    (0.5625, 0.0625)
    """
    check_number("sigma", sigma, 0, above=True, hint="scores lie in [0, 1]: try 0.05")
    return _error_curve(y, p, weight, grid)(float(sigma))


def _error_curve(y: ArrayLike, p: ArrayLike, weight: ArrayLike | None, cells: int) -> Callable[[float], float]:
    """Return the smoothed error as a function of the bandwidth.

    Each weighted residual is split linearly between the two adjacent grid points, which preserves the sum and the mean
    score. The kernel is that of a continuous-time random walk on the grid, reflected at both ends: its multipliers are
    exp(-(s m)^2 (1 - cos(k pi / m))), which tend to those of the Gaussian. Unlike a Gaussian truncated at the frequency of
    the grid it is never negative and sums to 1 at every s, so that the curve is non-increasing even below one cell.
    """
    from scipy.fft import dct

    check_integer("grid", cells, 2, hint=f"leave it at {GRID}")
    outcome, score, mass = validate_scores(y, p, weight)
    mass = mass / mass.max()  # the sum of large weights must not overflow
    sums, upper = np.zeros(cells + 1), np.zeros(cells + 1)
    for start in range(0, len(score), CHUNK):
        rows = slice(start, start + CHUNK)
        position = score[rows] * cells
        cell = position.astype(np.intp)
        residual = (outcome[rows] - score[rows]) * mass[rows]
        sums += np.bincount(cell, residual, cells + 1)
        upper += np.bincount(cell, residual * (position - cell), cells + 1)
    sums -= upper
    sums[1:] += upper[:-1]  # a score of 1 is a grid point itself
    sums[1:-1] *= 0.5  # DCT-I counts interior points twice
    waves, total = np.asarray(dct(sums, type=1), np.float64), float(mass.sum())
    decay = 2.0 * (cells * np.sin(np.arange(cells + 1) * (0.5 * np.pi / cells))) ** 2

    def error(sigma: float) -> float:
        density = np.abs(dct(waves * np.exp(-(min(sigma, MAX_BANDWIDTH) ** 2) * decay), type=1))
        ends = 0.5 * (density[0] + density[-1])
        return float((density[1:-1].sum() + ends) / (cells * total))

    return error
