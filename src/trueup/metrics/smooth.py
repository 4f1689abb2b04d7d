"""Smooth calibration error: residuals smoothed along the score, at the bandwidth the data itself sets.

Blasiok and Nakkiran (2023), "Smooth ECE: principled reliability diagrams via kernel smoothing", arXiv:2309.12236.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from trueup.errors import ArgumentError
from trueup.metrics.inputs import scored

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from trueup._types import FloatArray


GRID = 4096  # cells of [0, 1]: gridding moves the curve by about 1e-5 at a bandwidth of 8 cells, the fixed point less
STEPS = 30  # halvings of [0, 1]: the fixed point to 1e-9
WIDEST = 10.0  # a kernel this wide is flat to the last bit
CHUNK = 1 << 15  # rows at a time, so that what lies between two passes stays in cache


def smooth_ece(y: ArrayLike, p: ArrayLike, weight: ArrayLike | None = None, *, grid: int = GRID) -> float:
    """Give smECE: the bandwidth at which the smoothed calibration error equals the bandwidth.

    It needs no bins, and changes little when scores change little. It is not 0 on a sample of a calibrated predictor: with
    scores spread out it falls as n^(-1/3).

    Parameters
    ----------
    y, p : array-like, shape (n,)
        Outcomes and scores in [0, 1].
    weight : array-like, shape (n,), optional
        A weight of 2 is the row twice.
    grid : int
        Number of cells that [0, 1] is cut into. Values far below 1/grid are not resolved.

    Returns
    -------
    float
        In [0, 1]; takes O(n) to grid the rows and then O(grid log grid), whatever n.

    Notes
    -----
    s* with E(s*) = s*, E(s) the curve that `smooth_ece_at` gives. Smoothing by s and then by more is smoothing by more,
    and smoothing never raises an integral of absolute values; so E never rises, the fixed point is unique, and halving
    finds it.

    Examples
    --------
    Scores of .4 where every second row has an event are .1 too low:

    >>> round(smooth_ece([0, 1, 0, 1], [0.4, 0.4, 0.4, 0.4]), 6)
    0.1
    """
    curve = _Curve(*_gridded(y, p, weight, grid))
    low, high = 0.0, 1.0
    if curve(high) >= high * (1 - 1e-12):  # every outcome as far from its score as can be
        return high
    for _ in range(STEPS):
        middle = 0.5 * (low + high)
        if curve(middle) >= middle:
            low = middle
        else:
            high = middle
    return low  # which is exactly 0 where every residual is


def smooth_ece_at(y: ArrayLike, p: ArrayLike, sigma: float, weight: ArrayLike | None = None, *, grid: int = GRID) -> float:
    """Give the smoothed calibration error at one bandwidth.

    Parameters
    ----------
    y, p : array-like, shape (n,)
        Outcomes and scores in [0, 1].
    sigma : float
        Standard deviation of the kernel, in units of the score. From about 8/grid up the result is that of the formula
        to some 1e-5, at 2/grid to 1e-3; towards 0 it tends to the absolute sums of residuals by grid point.
    weight : array-like, shape (n,), optional
    grid : int
        Number of cells that [0, 1] is cut into.

    Notes
    -----
    E(s) = integral over t in [0, 1] of |sum_i w_i (y_i - p_i) K_s(t, p_i)| / W, K_s the Gaussian of standard deviation s
    reflected at 0 and at 1 as often as it takes: K_s(t, p) = 1 + 2 sum_k exp(-(k pi s)^2 / 2) cos(k pi t) cos(k pi p).

    Examples
    --------
    Opposite residuals of .5 at two scores count in full through a narrow kernel, and cancel through a wide one:

    >>> y, p = [1, 0], [0.5, 0.5 + 1 / 8]
    >>> round(smooth_ece_at(y, p, 0.01), 4), round(smooth_ece_at(y, p, 10), 4)
    (0.5625, 0.0625)
    """
    try:
        width = float(sigma)
    except (TypeError, ValueError):
        width = math.nan
    if not (math.isfinite(width) and width > 0):
        raise ArgumentError(f"sigma must be a positive number; got {sigma!r}", hint="scores lie in [0, 1]: try 0.05")
    return _Curve(*_gridded(y, p, weight, grid))(width)


class _Curve:
    """Smoothed error as a function of the bandwidth, from residuals on the points of a grid.

    The kernel is that of a random walk in continuous time on the grid, reflected at both ends: its multipliers are
    exp(-(s m)^2 (1 - cos(k pi / m))), which tend to those of the Gaussian. Unlike a Gaussian cut off at the frequency of
    the grid it is never negative and adds up to 1 at every s, so the curve cannot rise even at bandwidths below a cell.
    """

    def __init__(self, residual: FloatArray, total: float) -> None:
        from scipy.fft import dct

        self._cells = len(residual) - 1
        self._total = total
        doubled = residual.copy()  # DCT-I counts the points between the ends twice
        doubled[1:-1] *= 0.5
        self._waves = np.asarray(dct(doubled, type=1), np.float64)
        self._decay = 2.0 * (self._cells * np.sin(np.arange(self._cells + 1) * (0.5 * np.pi / self._cells))) ** 2

    def __call__(self, sigma: float) -> float:
        from scipy.fft import dct

        density = np.abs(dct(self._waves * np.exp(-(min(sigma, WIDEST) ** 2) * self._decay), type=1))
        ends = 0.5 * (density[0] + density[-1])
        return float((density[1:-1].sum() + ends) / (self._cells * self._total))


def _gridded(y: ArrayLike, p: ArrayLike, weight: ArrayLike | None, cells: int) -> tuple[FloatArray, float]:
    """Share each weighted residual between the two grid points beside its score; give their sums and the total weight.

    The shares are linear, which keeps the sum and the mean score of the residuals.
    """
    if isinstance(cells, bool) or not isinstance(cells, (int, np.integer)) or cells < 2:
        raise ArgumentError(f"grid must be a whole number, 2 or more; got {cells!r}", hint=f"leave it at {GRID}")
    outcome, score, mass = scored(y, p, weight)
    largest = mass.max()  # weights of any size, without overflow of their sum
    whole, upper = np.zeros(cells + 1), np.zeros(cells + 1)
    for start in range(0, len(score), CHUNK):
        rows = slice(start, start + CHUNK)
        at = score[rows] * cells
        cell = at.astype(np.intp)
        residual = (outcome[rows] - score[rows]) * (mass[rows] / largest)
        whole += np.bincount(cell, residual, cells + 1)
        upper += np.bincount(cell, residual * (at - cell), cells + 1)
    whole -= upper
    whole[1:] += upper[:-1]  # a score of 1 is a grid point itself: nothing is left above the last
    return whole, float((mass / largest).sum())
