"""Reliability curves as values: observed against predicted, with a band that says which question it answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from trueup._validate import check_choice
from trueup.errors import ArgumentError
from trueup.kernels import cumulative as sums
from trueup.kernels.tally import sort_rows
from trueup.metrics.curves import ReliabilityCurve, curves_from_sums
from trueup.metrics.inference import wilson
from trueup.metrics.inputs import scored
from trueup.metrics.isotonic import isotonic
from trueup.metrics.smooth import smooth_ece

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike

    from trueup._types import FloatArray, IntArray
    from trueup.metrics.inputs import Scored

    Curve = Callable[[FloatArray, FloatArray], FloatArray]

KERNEL_POINTS = 101
KERNEL_CELLS = 2000  # the rows are gridded this finely before they are smoothed
NARROWEST = 0.01  # a kernel narrower than this shows noise


def reliability(
    y: ArrayLike,
    p: ArrayLike,
    weight: ArrayLike | None = None,
    *,
    kind: Literal["binned", "pav", "kernel"] = "binned",
    band: Literal["confidence", "consistency"] = "confidence",
    n_bins: int = 10,
    alpha: float = 0.05,
    draws: int = 200,
    random_state: int = 0,
) -> ReliabilityCurve:
    """Draw up a reliability curve.

    Parameters
    ----------
    y, p : array-like, shape (n,)
        Outcomes and scores in [0, 1].
    weight : array-like, shape (n,), optional
    kind : {"binned", "pav", "kernel"}
        Bins of about equal weight, rows of equal score together; isotonic regression (CORP: Dimitriadis, Gneiting & Jordan
        2021); or a Gaussian kernel reflected at 0 and 1, as wide as the smooth calibration error (Blasiok & Nakkiran 2023).
    band : {"confidence", "consistency"}
        A confidence band stands around the curve and says where the observed rates may lie: Wilson's limits for the rows
        of a bin, of an isotonic block (never narrower than the bootstrap of rows, which cannot move an end that is all 0
        or all 1) or under the kernel; the bias of smoothing is not in it. A consistency band stands around the diagonal
        and says where the curve of a calibrated score would lie (outcomes drawn from the scores). Both are pointwise, at
        1 - alpha.
    n_bins, alpha, draws, random_state
        Number of bins, level, number of resamples and their seed.

    Examples
    --------
    >>> curve = reliability([0, 0, 1, 0, 1, 1], [.1, .2, .3, .6, .7, .8], n_bins=2)
    >>> curve.predicted.round(3), curve.observed.round(3)
    (array([0.2, 0.7]), array([0.333, 0.667]))
    """
    check_choice("kind", kind, ("binned", "pav", "kernel"))
    check_choice("band", band, ("confidence", "consistency"))
    for name, value in (("n_bins", n_bins), ("draws", draws)):
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
            raise ArgumentError(f"{name} must be a whole number of at least 1; got {value!r}", hint="10 bins, 200 draws")
    if not 0 < alpha < 1:
        raise ArgumentError(f"alpha must lie between 0 and 1; got {alpha!r}", hint="0.05 gives a 95% band")
    data = scored(y, p, weight)
    # Draws go to rows in an order of their own, so that the order they came in does not matter.
    order = np.lexsort((data.w, data.y, data.p))
    data = type(data)(*(column[order] for column in data))
    random = np.random.default_rng(random_state)
    if kind == "binned":
        return _binned(data, band, int(n_bins), alpha, int(draws), random)
    places, curve, size = _isotonic_curve(data) if kind == "pav" else _kernel_curve(data)
    observed = curve(data.y, data.w)
    if band == "consistency":
        low, high = _resampled(data, curve, band, alpha, int(draws), random)
    else:
        low, high = wilson(np.clip(observed, 0.0, 1.0), size, alpha)
        if kind == "pav":
            bounds = _resampled(data, curve, band, alpha, int(draws), random)
            low, high = np.minimum(low, bounds[0]), np.maximum(high, bounds[1])
    rows, weights = _shares(data, places)
    return ReliabilityCurve(places, observed, low, high, rows, weights, kind, band)


def _binned(
    data: Scored, band: str, n_bins: int, alpha: float, draws: int, random: np.random.Generator
) -> ReliabilityCurve:
    rows = sort_rows(data.y, data.p, data.w, real=False)
    cells = np.zeros((n_bins, 6))
    at = np.arange(len(rows), dtype=np.int32)
    sums.curve(at, rows.step, rows.e, rows.p, rows.w, float(data.w.sum()), n_bins, cells, np.array([0.0, -1.0, 0.0]))
    made = curves_from_sums([0], cells[None], alpha=alpha, real=False)[0]
    if band == "confidence":
        return made
    # The bins are neighbours in score order: sums from one start to the next.
    starts = np.concatenate([[0], np.cumsum(made.rows)[:-1]])
    drawn = np.empty((draws, len(made)))
    for at_draw in range(draws):
        outcomes = (random.random(len(rows)) < rows.p) * rows.w
        drawn[at_draw] = np.add.reduceat(outcomes, starts) / made.weight
    low, high = np.quantile(drawn, (alpha / 2, 1 - alpha / 2), axis=0)
    return ReliabilityCurve(made.predicted, made.observed, low, high, made.rows, made.weight, "binned", band)


def _isotonic_curve(data: Scored) -> tuple[FloatArray, Curve, FloatArray]:
    """Give the knots of the isotonic fit, the function that fits other outcomes there, and the sizes of the blocks."""
    fit = isotonic(data.y, data.p, data.w)
    _, block = np.unique(fit.fitted, return_inverse=True)
    mass, squares = np.bincount(block, data.w), np.bincount(block, data.w**2)
    values = np.unique(fit.fitted)
    own = np.searchsorted(values, fit.values).clip(0, len(values) - 1)

    def curve(y: FloatArray, w: FloatArray) -> FloatArray:
        return isotonic(y, data.p, w).predict(fit.thresholds)

    return fit.thresholds, curve, mass[own] ** 2 / squares[own]


def _kernel_curve(data: Scored) -> tuple[FloatArray, Curve, FloatArray]:
    """Give evenly spaced places among the scores, the function that smooths outcomes there, and effective sizes."""
    sigma = max(smooth_ece(data.y, data.p, data.w), NARROWEST)
    places = np.linspace(data.p.min(), data.p.max(), KERNEL_POINTS if data.p.min() < data.p.max() else 1)
    centres = np.linspace(0, 1, KERNEL_CELLS + 1)
    cell = np.rint(data.p * KERNEL_CELLS).astype(np.int64)
    distance = places[:, None] - np.stack([centres, -centres, 2 - centres])[:, None, :]
    kernel: FloatArray = np.exp(-0.5 * (distance / sigma) ** 2).sum(axis=0)
    mass = kernel @ np.bincount(cell, data.w, KERNEL_CELLS + 1)
    size = mass**2 / np.maximum(kernel**2 @ np.bincount(cell, data.w**2, KERNEL_CELLS + 1), 1e-300)
    some = mass >= 0.01 * data.w.mean()  # where no score is near there is nothing to show
    kernel = kernel[some]

    def curve(y: FloatArray, w: FloatArray) -> FloatArray:
        with np.errstate(invalid="ignore", divide="ignore"):
            found: FloatArray = (
                kernel @ np.bincount(cell, w * y, KERNEL_CELLS + 1) / (kernel @ np.bincount(cell, w, KERNEL_CELLS + 1))
            )
        return found

    return places[some], curve, size[some]


def _resampled(
    data: Scored, curve: Curve, band: str, alpha: float, draws: int, random: np.random.Generator
) -> tuple[FloatArray, FloatArray]:
    """Give pointwise quantiles of the curves of drawn outcomes (consistency) or of drawn rows (confidence)."""
    n = len(data.y)
    found = []
    for _ in range(draws):
        if band == "consistency":
            found.append(curve((random.random(n) < data.p).astype(np.float64), data.w))
        else:
            times = np.bincount(random.integers(0, n, n), minlength=n)
            found.append(curve(data.y, data.w * times))
    low, high = np.nanquantile(np.array(found), (alpha / 2, 1 - alpha / 2), axis=0)
    return low, high


def _shares(data: Scored, places: FloatArray) -> tuple[IntArray, FloatArray]:
    """Count the rows, and their weight, that lie nearest to each place."""
    nearest = np.searchsorted(0.5 * (places[1:] + places[:-1]), data.p)
    rows = np.bincount(nearest, minlength=len(places)).astype(np.int64)
    return rows, np.bincount(nearest, data.w, len(places)).astype(np.float64)
