"""Fit curves of the score to sums at each distinct score: all that log loss and squared error ask of the rows.

Segments (the whole, groups, classes) lie one after the other; each is fitted on its own, in one compiled call.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from trueup.kernels._jit import jit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Longs = NDArray[np.int64]

__all__ = ["fit_lines", "fit_logistic", "fit_powers"]

MOST_STEPS = 100
HALVINGS = 40
FARTHEST = 8.0  # what a first step may change a logit by: far out the curve is flat, and Newton's step is no guide
SNAP = 1e-12  # a coefficient so near to its bound is on it
UPRIGHT = 1e200  # a line so steep stands upright; the largest score times it is finite
RIDGE = 1e-12  # of the curvature: keeps a step finite where scores say nothing about a coefficient
ENOUGH = 1e-11  # of the weight: a step that lowers the loss by less is the last, and leaves about the square of that


@jit
def fit_lines(at: Longs, x: Floats, weight: Floats, total: Floats, out: Floats) -> None:
    """Fit a straight line to each segment by least squares; where all scores are alike, or all but, the slope is 1.

    ``out`` (segments, 2) takes slope and intercept.
    """
    for k in range(len(out)):
        mass, mean_x, mean_y = 0.0, 0.0, 0.0
        for i in range(at[k], at[k + 1]):
            mass += weight[i]
            mean_x += (x[i] - mean_x) * (weight[i] / mass)
            mean_y += (total[i] / weight[i] - mean_y) * (weight[i] / mass)
        widest = 0.0
        for i in range(at[k], at[k + 1]):
            widest = max(widest, abs(x[i] - mean_x))
        across, along = 0.0, 0.0
        for i in range(at[k], at[k + 1]):
            d = (x[i] - mean_x) / widest if widest > 0 else 0.0
            across += weight[i] * d * d
            along += weight[i] * d * (total[i] / weight[i] - mean_y)
        slope = along / across / widest if across > 0 and at[k + 1] - at[k] > 1 else 1.0
        slope = slope if abs(slope) <= UPRIGHT else 1.0
        out[k, 0], out[k, 1] = slope, mean_y - slope * mean_x


@jit
def _derive(X: Floats, weight: Floats, total: Floats, theta: Floats, slope: Floats, bend: Floats) -> float:
    """Give the log loss at some coefficients, with its first and second derivatives."""
    d = len(theta)
    slope[:] = 0.0
    bend[:] = 0.0
    loss = 0.0
    for i in range(len(X)):
        f = 0.0
        for j in range(d):
            f += X[i, j] * theta[j]
        e = math.exp(-abs(f))
        p = 1.0 / (1.0 + e) if f >= 0 else e / (1.0 + e)
        loss += weight[i] * (max(f, 0.0) + math.log1p(e)) - total[i] * f
        first, second = weight[i] * p - total[i], weight[i] * e / ((1.0 + e) * (1.0 + e))
        for j in range(d):
            slope[j] += first * X[i, j]
            for k in range(j + 1):
                bend[j, k] += second * X[i, j] * X[i, k]
    return loss


@jit
def _solve(bend: Floats, slope: Floats, free: NDArray[np.bool_], step: Floats) -> None:
    """Solve for Newton's step in the free coefficients, by Cholesky's method with a ridge."""
    d = len(slope)
    L = np.zeros((d, d))
    z = np.zeros(d)
    for j in range(d):
        for k in range(j + 1):
            s = bend[j, k] if free[j] and free[k] else 0.0
            if j == k:
                s = s * (1.0 + RIDGE) if free[j] else 1.0
            for m in range(k):
                s -= L[j, m] * L[k, m]
            if j == k:
                L[j, j] = math.sqrt(max(s, RIDGE * bend[j, j])) if free[j] else 1.0
            else:
                L[j, k] = s / L[k, k] if L[k, k] > 0 else 0.0
    for j in range(d):
        s = -slope[j] if free[j] else 0.0
        for m in range(j):
            s -= L[j, m] * z[m]
        z[j] = s / L[j, j] if L[j, j] > 0 else 0.0
    for back in range(d):
        j = d - 1 - back
        s = z[j]
        for m in range(j + 1, d):
            s -= L[m, j] * step[m]
        step[j] = s / L[j, j] if L[j, j] > 0 and free[j] else 0.0


@jit
def _aim(
    theta: Floats, low: Floats, high: Floats, slope: Floats, bend: Floats, free: NDArray[np.bool_], step: Floats
) -> float:
    """Find Newton's step in the coefficients that no bound holds; give how far the loss would fall along it."""
    for j in range(len(theta)):
        held = (theta[j] <= low[j] and slope[j] > 0) or (theta[j] >= high[j] and slope[j] < 0) or low[j] == high[j]
        free[j] = not held
    for _ in range(len(theta)):
        _solve(bend, slope, free, step)
        outward = False
        for j in range(len(theta)):
            if free[j] and ((theta[j] <= low[j] and step[j] < 0) or (theta[j] >= high[j] and step[j] > 0)):
                free[j] = False  # the others would pull it over its bound
                outward = True
        if not outward:
            break
    hope = 0.0
    for j in range(len(theta)):
        hope -= slope[j] * step[j] if free[j] else 0.0
    return hope


@jit
def _within(x: float, low: float, high: float) -> float:
    """Keep a coefficient within its bounds, and put it on one that it all but reaches."""
    if x - low < SNAP:
        return low
    return high if high - x < SNAP else x


@jit
def _longest(X: Floats, theta: Floats, low: Floats, high: Floats, step: Floats, trusted: float) -> float:
    """Say how much of a step to try: up to the first bound, and no farther than the curvature can be trusted.

    ``trusted`` is how far the logit of a row may move.
    """
    size, reach = 1.0, 0.0
    for j in range(len(theta)):
        room = high[j] - theta[j] if step[j] > 0 else theta[j] - low[j]
        if abs(step[j]) * size > room:
            size = room / abs(step[j])
    for i in range(len(X)):
        moved = 0.0
        for j in range(len(theta)):
            moved += X[i, j] * step[j]
        reach = max(reach, abs(moved))
    return min(size, trusted / reach) if reach > 0 else size


@jit
def _descend(X: Floats, weight: Floats, total: Floats, low: Floats, high: Floats, theta: Floats) -> None:
    """Minimise log loss within bounds: Newton's method on the coefficients that no bound holds, with a line search.

    Bertsekas (1982), "Projected Newton methods for optimization problems with simple constraints", SIAM Journal on Control
    and Optimization 20(2).
    """
    d = len(theta)
    slope, step, moved, bend, free = np.empty(d), np.empty(d), np.empty(d), np.empty((d, d)), np.ones(d, np.bool_)
    mass, trusted = weight.sum(), FARTHEST
    loss = _derive(X, weight, total, theta, slope, bend)
    for _ in range(MOST_STEPS):
        hope = _aim(theta, low, high, slope, bend, free, step)
        if not hope > ENOUGH * mass:  # too little for a line search to see through rounding
            for j in range(d):
                theta[j] = _within(theta[j] + step[j], low[j], high[j])
            return
        size, after, gain = _longest(X, theta, low, high, step, trusted), loss, 0.0
        for _ in range(HALVINGS):
            gain = 0.0
            for j in range(d):
                moved[j] = _within(theta[j] + size * step[j], low[j], high[j])
                gain += slope[j] * (theta[j] - moved[j])
            after = _derive(X, weight, total, moved, slope, bend)
            if after <= loss - 1e-4 * gain:
                break
            size /= 2
            _derive(X, weight, total, theta, slope, bend)
        if not after < loss:
            return
        trusted *= 4.0 if loss - after > 0.4 * gain else 1.0
        theta[:], loss = moved, after


@jit
def fit_logistic(at: Longs, X: Floats, weight: Floats, total: Floats, low: Floats, high: Floats, theta: Floats) -> None:
    """Fit each segment by maximum likelihood, from the coefficients in ``theta`` (segments, d), within its own bounds."""
    for k in range(len(theta)):
        rows = slice(at[k], at[k + 1])
        if at[k + 1] > at[k]:
            _descend(X[rows], weight[rows], total[rows], low[k], high[k], theta[k])


@jit
def _power(F: Floats, target: Floats, weight: Floats, factor: float) -> tuple[float, float]:
    """Give the first and second derivative of the log loss of classes in the factor of their log scores."""
    slope, bend = 0.0, 0.0
    for i in range(len(F)):
        top = F[i].max() * factor
        total, first, second = 0.0, 0.0, 0.0
        for c in range(F.shape[1]):
            e = math.exp(F[i, c] * factor - top)
            total += e
            first += e * F[i, c]
            second += e * F[i, c] * F[i, c]
        mean = first / total
        slope += weight[i] * mean - target[i]
        bend += weight[i] * (second / total - mean * mean)
    return slope, bend


@jit
def fit_powers(at: Longs, F: Floats, target: Floats, weight: Floats, low: float, high: float, out: Floats) -> None:
    """Fit one factor of the log scores (rows, classes) of each segment by maximum likelihood, within bounds.

    ``target`` is what each row would have for the mean of its log scores: weight times the log score of its class. The
    loss is convex: Newton's method, halving the bracket where a step leaves it.
    """
    for k in range(len(out)):
        rows = slice(at[k], at[k + 1])
        below, above, factor = low, high, 1.0
        for _ in range(MOST_STEPS):
            slope, bend = _power(F[rows], target[rows], weight[rows], factor)
            if slope == 0:
                break
            below, above = (below, factor) if slope > 0 else (factor, above)
            moved = min(max(factor - slope / bend, low), high) if bend > 0 else below - 1
            if not below <= moved <= above:
                moved = (below + above) / 2
            done = abs(moved - factor) <= 1e-13 * factor
            factor = moved
            if done:
                break
        out[k] = factor
