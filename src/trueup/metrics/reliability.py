"""Reliability curves: observed against predicted rates, with confidence or consistency bands; isotonic regression.

Isotonic regression by pool-adjacent-violators: Ayer, Brunk, Ewing, Reid and Silverman (1955), "An empirical distribution
function for sampling with incomplete information", Annals of Mathematical Statistics 26(4). As a calibration map: Gao,
Parameswaran and Peng (2017), Algorithm 1, whose Claim 6 states that c_emp is 0 on the rows it was fitted on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from trueup._validate import check_choice, check_fraction, check_integer
from trueup.errors import ArgumentError
from trueup.kernels import tally as sums
from trueup.kernels.curves import interpolate
from trueup.kernels.fitting import pool_adjacent_violators, pool_scores
from trueup.metrics.binned import Strategy, assign_bins, smooth_ece
from trueup.metrics.inference import normal_quantile, wilson
from trueup.metrics.inputs import Scored, validate_array, validate_columns, validate_scores
from trueup.metrics.result import Result

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from trueup._types import AnyArray, FloatArray, IntArray

    Smoother = Callable[[FloatArray, FloatArray], FloatArray]  # from outcomes and weights to a curve

KERNEL_POINTS = 101
KERNEL_CELLS = 2000  # of the grid on which rows are smoothed
MIN_BANDWIDTH = 0.01  # a narrower kernel shows noise
SMALLEST_WEIGHT = 2.0**-500  # relative to the largest: the product of a smaller one and an outcome may underflow
LARGEST = 1e300  # beyond it, sums and differences may overflow
MAX_RANGES = 3  # of scores, in a description of errors
MIN_RANGE_SHARE = 0.1  # of the largest excess, in each of them
MIN_CONCENTRATION = 0.8  # of an error of one sign: a range with less of it does not describe it


@dataclass(frozen=True, eq=False)
class ReliabilityCurve(Result):
    """Observed against predicted rates, by default in bins of about equal weight; tied scores share a bin.

    ``low`` and ``high`` are pointwise limits: of the observed rate if ``band`` is "confidence", of the curve of a
    calibrated score if it is "consistency". ``rows`` and ``weight`` count the rows of each point.
    """

    predicted: FloatArray
    observed: FloatArray
    low: FloatArray
    high: FloatArray
    rows: IntArray
    weight: FloatArray
    kind: str = "binned"
    band: str = "confidence"

    def __len__(self) -> int:
        return len(self.predicted)

    def __repr__(self) -> str:
        if not len(self):
            return f"<empty {self.kind} reliability curve>"
        index = int(np.nanargmax(np.abs(self.observed - self.predicted)))
        largest = f"predicted {self.predicted[index]:.3g}, observed {self.observed[index]:.3g}"
        return f"<{self.kind} reliability curve of {len(self)} points with a {self.band} band; largest gap: {largest}>"


class ErrorRange(NamedTuple):
    """A range of scores whose errors have one sign: its ends (infinite at either end of the scores), and sums over it.

    ``excess`` is the sum of observed minus predicted, ``margin`` half the width of its interval, ``expected`` the sum of
    the predictions and ``weight`` that of the weights.
    """

    low: float
    high: float
    excess: float
    margin: float
    expected: float
    weight: float


def error_ranges(curve: ReliabilityCurve) -> list[ErrorRange]:
    """Return the ranges of scores in which predictions are too low or too high, ascending; at most three.

    Neighbouring bins with errors of one sign are one range; ranges end where the curve crosses the diagonal. The range with
    the smallest excess is merged with its neighbours until there are at most MAX_RANGES, each with an excess whose interval
    excludes 0 and that is a tenth of the largest. If all scores are merged, though most of their error cancels, the range
    with the largest excess is returned: that of the cumulative differences. If it does not cancel, and some scores have
    nearly all of it, theirs.
    """
    excess, half = curve.weight * (curve.observed - curve.predicted), curve.weight * (curve.high - curve.low) / 2
    if not len(curve) or not (np.isfinite(excess).all() and np.isfinite(half).all()):
        return []
    starts = np.flatnonzero(np.r_[True, np.diff(excess > 0)])
    while True:
        sizes, margins = np.abs(np.add.reduceat(excess, starts)), np.sqrt(np.add.reduceat(half**2, starts))
        small = (sizes <= margins) | (sizes < MIN_RANGE_SHARE * sizes.max())
        if len(starts) == 1 or (len(starts) <= MAX_RANGES and not small.any()):
            break
        smallest = int(np.argmin(np.where(small, sizes, np.inf) if small.any() else sizes))
        starts = np.delete(starts, [k for k in (smallest, smallest + 1) if 0 < k < len(starts)])
    ranges = list(pairwise([*starts.tolist(), len(curve)]))
    total = np.r_[0.0, np.cumsum(excess)]
    if len(starts) == 1 and (small[0] or np.ptp(total) > 2.0 * sizes[0]):
        ranges = [(min(ends), max(ends)) for ends in [(int(np.argmin(total)), int(np.argmax(total)))]]
    elif len(starts) == 1:
        ranges = [_concentrated_bins(curve, excess, half)]
    return [
        ErrorRange(
            _crossing(curve, first), _crossing(curve, end), float(excess[first:end].sum()),
            math.sqrt((half[first:end] ** 2).sum()), float((curve.weight * curve.predicted)[first:end].sum()),
            float(curve.weight[first:end].sum()),
        )
        for first, end in ranges if end > first
    ]  # fmt: skip


def _concentrated_bins(curve: ReliabilityCurve, excess: FloatArray, half: FloatArray) -> tuple[int, int]:
    """Return the first bin and the end of the bins with nearly all of an error of one sign; all bins if none have it.

    With the same relative error at all scores, ``excess`` would be proportional to the predicted sums. The cumulative
    differences from that are a Brownian bridge, whose range exceeds 1.96 standard deviations with probability 0.013
    (Kuiper 1960).
    """
    predicted = np.abs(curve.weight * curve.predicted)
    share = predicted / predicted.sum() if predicted.any() else np.full(len(curve), 1 / len(curve))
    error = excess / excess.sum()
    path = np.r_[0.0, np.cumsum(error - share)[:-1], 0.0]
    first, end = int(np.argmin(path)), int(np.argmax(path)) or len(curve)
    part = error[first:end].sum()
    varies = np.ptp(path) * abs(excess.sum()) > np.sqrt((half**2).sum())
    if first < end and varies and part >= MIN_CONCENTRATION and part >= 2 * share[first:end].sum():
        return first, end
    return 0, len(curve)


def _crossing(curve: ReliabilityCurve, index: int) -> float:
    """Return the score at which a curve crosses the diagonal just before bin ``index``; infinite at its ends.

    If it does not, this is the middle between the two bins.
    """
    if index in (0, len(curve)):
        return -np.inf if index == 0 else np.inf
    (p, q), (before, after) = (
        curve.predicted[index - 1 : index + 1],
        (curve.observed - curve.predicted)[index - 1 : index + 1],
    )
    return float(p + (q - p) * (before / (before - after) if before * after < 0 else 0.5))


@dataclass(frozen=True, eq=False)
class CurveSet(Mapping[int, ReliabilityCurve]):
    """Reliability curves by the rank of their segment, stored as a few long arrays; each curve is created on access."""

    numbers: dict[int, int]
    """Position of each numbered curve."""
    ends: IntArray
    """End of each curve in the arrays."""
    columns: tuple[AnyArray, ...]

    def __getitem__(self, number: int) -> ReliabilityCurve:
        position = self.numbers[number]
        start = self.ends[position - 1] if position else 0
        predicted, observed, low, high, rows, weight = (column[start : self.ends[position]] for column in self.columns)
        return ReliabilityCurve(predicted, observed, low, high, rows, weight)

    def __iter__(self) -> Iterator[int]:
        return iter(self.numbers)

    def __len__(self) -> int:
        return len(self.numbers)


def curves_from_sums(numbers: Sequence[int], cells: FloatArray, *, alpha: float, real: bool) -> CurveSet:
    """Make curves from bin sums ``cells`` (curves, bins, 6) of `trueup.kernels.tally.curves`; empty bins are dropped.

    Limits are Wilson's with Kish's effective size for probabilities, and normal ones from the squared residuals for real
    outcomes. ``numbers`` are the keys of the curves.
    """
    used = cells[..., sums.CURVE_ROWS] > 0
    flat = cells[used]
    rows, weight, residual = (flat[:, c] for c in (sums.CURVE_ROWS, sums.CURVE_WEIGHT, sums.CURVE_RESIDUAL))
    predicted = flat[:, sums.CURVE_EXPECTED] / weight
    observed = predicted + residual / weight
    if real:
        # Residuals vary about the mean of their bin; a bin of one row has no width.
        spread = np.maximum(flat[:, sums.CURVE_RESIDUAL2] - residual**2 / rows, 0.0) * rows / np.maximum(rows - 1, 1)
        half = normal_quantile(alpha) * np.sqrt(spread) / weight
        low, high = observed - half, observed + half
    else:
        observed = np.clip(observed, 0.0, 1.0)
        low, high = wilson(observed, weight**2 / flat[:, sums.CURVE_WEIGHT2], alpha)
    columns = (predicted, observed, low, high, rows.astype(np.int64), weight.copy())
    positions = {number: position for position, number in enumerate(numbers)}
    return CurveSet(positions, np.cumsum(used.sum(axis=1)), columns)


def reliability(
    y: ArrayLike,
    p: ArrayLike,
    weight: ArrayLike | None = None,
    *,
    kind: Literal["binned", "pav", "kernel"] = "binned",
    band: Literal["confidence", "consistency"] = "confidence",
    n_bins: int = 10,
    strategy: Strategy = "mass",
    edges: ArrayLike | None = None,
    alpha: float = 0.05,
    draws: int = 200,
    random_state: int = 0,
) -> ReliabilityCurve:
    """Compute a reliability curve.

    Parameters
    ----------
    y, p : array-like, shape (n,)
        Outcomes and scores in [0, 1].
    weight : array-like, shape (n,), optional
    kind : {"binned", "pav", "kernel"}
        Bins, by default of about equal weight, tied scores together; isotonic regression (CORP: Dimitriadis, Gneiting &
        Jordan 2021); or a Gaussian kernel reflected at 0 and 1, with the smooth calibration error as its bandwidth (Blasiok
        & Nakkiran 2023).
    band : {"confidence", "consistency"}
        A confidence band around the curve contains the observed rates: Wilson's limits for the rows of a bin, of an
        isotonic block (never narrower than the bootstrap of rows, which cannot move an end that is all 0 or all 1) or under
        the kernel; it does not include the bias of smoothing. A consistency band around the diagonal contains each point of
        the curve of a calibrated score (outcomes drawn from the scores) with probability 1 - alpha. Both are pointwise: an
        entire curve lies inside less often.
    n_bins, strategy, edges
        The bins, as for `bins`; empty ones are left out.
    alpha, draws, random_state
        Level, number of resamples and their seed.

    Examples
    --------
    >>> curve = reliability([0, 0, 1, 0, 1, 1], [.1, .2, .3, .6, .7, .8], n_bins=2)
    >>> curve.predicted.round(3), curve.observed.round(3)
    (array([0.2, 0.7]), array([0.333, 0.667]))
    >>> reliability([0, 0, 1, 0, 1, 1], [.1, .2, .3, .6, .7, .8], edges=[0, 0.25, 1]).rows
    array([2, 4])
    """
    check_choice("kind", kind, ("binned", "pav", "kernel"))
    check_choice("band", band, ("confidence", "consistency"))
    check_integer("n_bins", n_bins, 1)
    check_integer("draws", draws, 1)
    check_fraction("alpha", alpha, hint="0.05 gives a 95% band")
    if kind != "binned" and edges is not None:
        raise ArgumentError(
            f"edges are those of bins; a curve of kind {kind!r} has none", hint='leave kind="binned"', parameter="edges"
        )
    data = validate_scores(y, p, weight)
    # Sorted rows: the draws must not depend on the order of the input.
    order = np.lexsort((data.w, data.y, data.p))
    data = Scored(*(column[order] for column in data))
    random = np.random.default_rng(random_state)
    if kind == "binned":
        index = assign_bins(data.p, data.w, int(n_bins), strategy, edges=edges)
        return _binned_curve(data, index, band, alpha, int(draws), random)
    places, smooth, size = _isotonic_smoother(data) if kind == "pav" else _kernel_smoother(data)
    observed = smooth(data.y, data.w)
    if band == "consistency":
        low, high = _resample(data, smooth, band, alpha, int(draws), random)
    else:
        low, high = wilson(np.clip(observed, 0.0, 1.0), size, alpha)
        if kind == "pav":
            bootstrap = _resample(data, smooth, band, alpha, int(draws), random)
            low, high = np.minimum(low, bootstrap[0]), np.maximum(high, bootstrap[1])
    nearest = np.searchsorted(0.5 * (places[1:] + places[:-1]), data.p)
    rows = np.bincount(nearest, minlength=len(places)).astype(np.int64)
    weights = np.bincount(nearest, data.w, len(places)).astype(np.float64)
    return ReliabilityCurve(places, observed, low, high, rows, weights, kind, band)


def sum_bins(index: IntArray, p: FloatArray, e: FloatArray, w: FloatArray) -> FloatArray:
    """Return the sums of bins that `curves_from_sums` takes, (1, bins, 6), given each row's bin and ``e`` = w (y - p)."""
    cells = np.zeros((1, int(index.max(initial=-1)) + 1, 6))
    columns = {
        sums.CURVE_ROWS: None, sums.CURVE_WEIGHT: w, sums.CURVE_WEIGHT2: w**2, sums.CURVE_EXPECTED: w * p,
        sums.CURVE_RESIDUAL: e, sums.CURVE_RESIDUAL2: e**2,
    }  # fmt: skip
    for column, values in columns.items():
        cells[0, :, column] = np.bincount(index, values)
    return cells


def _binned_curve(
    data: Scored, index: IntArray, band: str, alpha: float, draws: int, random: np.random.Generator
) -> ReliabilityCurve:
    cells = sum_bins(index, data.p, data.w * (data.y - data.p), data.w)
    curve = curves_from_sums([0], cells, alpha=alpha, real=False)[0]
    if band == "confidence":
        return curve
    # Bins are contiguous in score order.
    starts = np.concatenate([[0], np.cumsum(curve.rows)[:-1]])
    drawn = np.empty((draws, len(curve)))
    for draw in range(draws):
        outcomes = (random.random(len(data.p)) < data.p) * data.w
        drawn[draw] = np.add.reduceat(outcomes, starts) / curve.weight
    low, high = np.quantile(drawn, (alpha / 2, 1 - alpha / 2), axis=0)
    return replace(curve, low=low, high=high, band=band)


def _isotonic_smoother(data: Scored) -> tuple[FloatArray, Smoother, FloatArray]:
    """Return knots of the isotonic fit, a function from outcomes and weights to a fit there, and effective sizes."""
    fit = isotonic(data.y, data.p, data.w)
    values, block = np.unique(fit.fitted, return_inverse=True)
    mass, squares = np.bincount(block, data.w), np.bincount(block, data.w**2)
    own = np.searchsorted(values, fit.values).clip(0, len(values) - 1)

    def smooth(y: FloatArray, w: FloatArray) -> FloatArray:
        return isotonic(y, data.p, w).predict(fit.thresholds)

    return fit.thresholds, smooth, mass[own] ** 2 / squares[own]


def _kernel_smoother(data: Scored) -> tuple[FloatArray, Smoother, FloatArray]:
    """Return even scores, a function from outcomes and weights to smoothed means there, and effective sizes."""
    sigma = max(smooth_ece(data.y, data.p, data.w), MIN_BANDWIDTH)
    places = np.linspace(data.p.min(), data.p.max(), KERNEL_POINTS if data.p.min() < data.p.max() else 1)
    centres = np.linspace(0, 1, KERNEL_CELLS + 1)
    cell = np.rint(data.p * KERNEL_CELLS).astype(np.int64)
    distance = places[:, None] - np.stack([centres, -centres, 2 - centres])[:, None, :]
    kernel: FloatArray = np.exp(-0.5 * (distance / sigma) ** 2).sum(axis=0)
    mass = kernel @ np.bincount(cell, data.w, KERNEL_CELLS + 1)
    size = mass**2 / np.maximum(kernel**2 @ np.bincount(cell, data.w**2, KERNEL_CELLS + 1), 1e-300)
    used = mass >= 0.01 * data.w.mean()  # elsewhere no score is near
    kernel = kernel[used]

    def smooth(y: FloatArray, w: FloatArray) -> FloatArray:
        total, positive = (np.bincount(cell, column, KERNEL_CELLS + 1) for column in (w, w * y))
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(kernel @ positive / (kernel @ total))

    return places[used], smooth, size[used]


def _resample(
    data: Scored, smooth: Smoother, band: str, alpha: float, draws: int, random: np.random.Generator
) -> tuple[FloatArray, FloatArray]:
    """Return pointwise quantiles of the curves of drawn outcomes (consistency) or of resampled rows (confidence)."""
    n = len(data.y)
    curves = []
    for _ in range(draws):
        if band == "consistency":
            curves.append(smooth((random.random(n) < data.p).astype(np.float64), data.w))
        else:
            times = np.bincount(random.integers(0, n, n), minlength=n)
            curves.append(smooth(data.y, data.w * times))
    low, high = np.nanquantile(np.array(curves), (alpha / 2, 1 - alpha / 2), axis=0)
    return low, high


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
        >>> from trueup.metrics import isotonic
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

    References
    ----------
    Gao, Parameswaran & Peng (2017), "On the Interpretability of Conditional Probability Estimates in the Agnostic
    Setting", Electronic Journal of Statistics 11(2), doi:10.1214/17-EJS1376SI, Algorithm 1 and Claim 6.

    Examples
    --------
    >>> from trueup.metrics import isotonic
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
    """Fit isotonic means total / weight; return the scores at which blocks begin and end, and the value at each."""
    first, mean = pool_adjacent_violators(total, weight)
    last = np.append(first[1:], len(scores)) - 1
    ends = np.stack([first, last], axis=1).ravel()
    # A block of one score has one knot, so that knots ascend strictly.
    keep = np.append(True, ends[1:] != ends[:-1])
    return scores[ends[keep]], np.repeat(mean, 2)[keep]
