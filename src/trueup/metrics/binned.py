"""Binned and smoothed calibration errors: mean outcome against mean score.

ECE and MCE: Naeini, Cooper and Hauskrecht (2015), "Obtaining well calibrated probabilities using Bayesian binning". ACE:
Nixon et al. (2019), "Measuring calibration in deep learning". Debiased: Kumar, Liang and Ma (2019), "Verified uncertainty
calibration". Top-label: Guo et al. (2017), "On calibration of modern neural networks". Classwise: Kull et al. (2019),
"Beyond temperature scaling". Smooth: Blasiok and Nakkiran (2023), "Smooth ECE: principled reliability diagrams via kernel
smoothing", arXiv:2309.12236: residuals smoothed along the score, at the bandwidth that the data determines. A weight of 2
counts the row twice, except for the noise that `debiased_ece` subtracts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from trueup._validate import check_choice, check_integer, check_number
from trueup.data.values import describe_rows
from trueup.errors import ArgumentError
from trueup.kernels.sorting import argsort, digitize
from trueup.metrics.groups import GroupErrors, by_group
from trueup.metrics.inputs import as_floats, validate_class_scores, validate_scores
from trueup.metrics.result import Result

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike

    from trueup._types import FloatArray, IntArray


Strategy = Literal["width", "mass"]
Closed = Literal["right", "left"]
Norm = Literal[1, 2, "max"]
EDGE_TOLERANCE = 1e-9  # of a bin: the sum of the weights is rounded
SINGLE_ROW = 1e-6  # an effective size of at most this above 1 counts as a single row
GRID = 4096  # cells of [0, 1]: they change the curve by about 1e-5 at a bandwidth of 8 cells, the fixed point by less
BISECTIONS = 30  # of [0, 1]: the fixed point to 1e-9
MAX_BANDWIDTH = 10.0  # a kernel this wide is constant to the last bit
CHUNK = 1 << 15  # rows at a time, so that intermediate arrays stay in the cache


def bins(
    p: ArrayLike,
    weight: ArrayLike | None = None,
    *,
    n_bins: int = 10,
    strategy: Strategy = "width",
    edges: ArrayLike | None = None,
    real: bool = False,
    closed: Closed = "right",
) -> IntArray:
    """Return the bin of each row, 0 to n_bins - 1.

    Parameters
    ----------
    p : array-like, shape (n,)
        Scores in [0, 1]; any finite numbers if ``real``.
    weight : array-like, shape (n,), optional
        A row of weight 0 gets a bin and has no influence.
    strategy : {"width", "mass"}
        "width": bin b holds b/n_bins < p <= (b+1)/n_bins, and bin 0 also p = 0 (if ``real``, the same between the lowest
        and the highest score). "mass": rows of equal score go to bin floor(n_bins S/W), where S is the weight of all lower
        scores and W the total, so that tied scores are never split; takes a sort.
    edges : array-like, optional
        Ascending limits of the bins, in place of ``n_bins`` and ``strategy``: bin b holds edges[b] < p <= edges[b+1], and
        bin 0 also p = edges[0]. Every score must lie between the first and the last.
    real : bool
        Whether the scores are real quantities rather than probabilities.
    closed : {"right", "left"}
        The end that bins of equal width, or of ``edges``, contain. "left": bin b holds b/n_bins <= p < (b+1)/n_bins, and
        the last bin also p = 1, as in Luo et al. (2022). It matters for scores on an edge only, not for equal weight.

    Examples
    --------
    >>> bins([0, 0.1, 0.3, 0.31, 1]).tolist()
    [0, 0, 2, 3, 9]
    >>> bins([0, 0.1, 0.3, 0.31, 1], closed="left").tolist()
    [0, 1, 3, 3, 9]
    >>> bins([0.5, 0.5, 0.5, 0.6, 0.7, 0.8], n_bins=3, strategy="mass").tolist()
    [0, 0, 0, 1, 2, 2]
    >>> bins([0, 0.1, 0.3, 0.31, 1], edges=[0, 0.1, 0.3, 1]).tolist()
    [0, 0, 1, 2, 2]
    """
    array = p if isinstance(p, np.ndarray) else np.asarray(p, object)  # of any type: validated next
    validate_scores(np.zeros(array.size), p, weight, real=real)
    ps = np.asarray(p, np.float64)
    ws = np.ones(len(ps)) if weight is None else np.asarray(weight, np.float64)
    return assign_bins(ps, ws, n_bins, strategy, edges=edges, real=real, closed=closed)


def assign_bins(
    p: FloatArray,
    w: FloatArray,
    n_bins: int,
    strategy: Strategy,
    *,
    edges: ArrayLike | None = None,
    real: bool = False,
    closed: Closed = "right",
) -> IntArray:
    """Return the bin of each validated score; see `bins`."""
    check_integer("n_bins", n_bins, 1)
    check_choice("strategy", strategy, ("width", "mass"))
    check_choice("closed", closed, ("right", "left"))
    if edges is not None:
        limits = _check_edges(edges, p)
        if closed == "left":
            return np.minimum(np.searchsorted(limits, p, side="right") - 1, len(limits) - 2)
        return np.maximum(np.searchsorted(limits, p, side="left") - 1, 0)
    if strategy == "mass":
        order = argsort(p)
        rising, total = p[order], np.cumsum(w[order])
        first = np.flatnonzero(np.append(True, rising[1:] != rising[:-1]))
        start = np.append(0.0, total)[first]
        index = np.minimum(np.floor(n_bins * (start / total[-1]) + EDGE_TOLERANCE), n_bins - 1).astype(np.int64)
        assigned = np.empty(len(p), np.int64)
        assigned[order] = np.repeat(index, np.diff(first, append=len(p)))
        return assigned
    low, high = (p[w > 0].min(), p[w > 0].max()) if real else (0.0, 1.0)
    # k/n is the float nearest to the edge, as the literal 0.3; multiples of 1/n are not.
    inner = np.arange(1, n_bins) / n_bins
    limits = low * (1 - inner) + high * inner
    out = np.empty(len(p), np.int32)
    # The kernel counts edges at or below a value; bins closed on the right need those strictly below.
    digitize(np.ascontiguousarray(p), np.nextafter(limits, np.inf) if closed == "right" else limits, out)
    return out.astype(np.int64)


def _check_edges(edges: ArrayLike, p: FloatArray) -> FloatArray:
    """Return the limits of bins as an array; raise unless they ascend, are two or more, and enclose all scores."""
    hint = "name the limits of all bins in ascending order, such as edges=[0, 0.1, 0.5, 1]"
    limits = as_floats(edges, "edges")
    if limits.ndim != 1 or len(limits) < 2 or not (np.diff(limits) > 0).all():
        raise ArgumentError(f"edges must be two or more ascending numbers; got {edges!r}", hint, parameter="edges")
    outside = (p < limits[0]) | (p > limits[-1])
    if outside.any():
        raise ArgumentError(
            f"edges go from {limits[0]:g} to {limits[-1]:g}; got a score of {p[outside][0]:g} {describe_rows(outside)}",
            hint="let the first and the last edge enclose all scores",
            parameter="edges",
        )
    return limits


def ece(
    y: ArrayLike,
    p: ArrayLike,
    weight: ArrayLike | None = None,
    *,
    n_bins: int = 10,
    strategy: Strategy = "width",
    norm: Norm = 1,
    real: bool = False,
    closed: Closed = "right",
) -> float:
    """Compute the expected calibration error: the gap between mean outcome and mean score, averaged over score bins.

    Parameters
    ----------
    y, p : array-like, shape (n,)
        Outcomes and scores in [0, 1]; any finite numbers if ``real``. For scores of shape (n, k) see `top_label_ece` and
        `classwise_ece`.
    weight, n_bins, strategy, real, closed
        As for `bins`.
    norm : {1, 2, "max"}
        With gap_b = ybar_b - pbar_b and share s_b = W_b/W: sum_b s_b |gap_b|; the square root of sum_b s_b gap_b^2; or
        max_b |gap_b|. Each is at most the next.

    Notes
    -----
    Noise alone makes it positive for a calibrated score, more so with more bins: see `debiased_ece`.

    References
    ----------
    Naeini, Cooper & Hauskrecht (2015), "Obtaining Well Calibrated Probabilities Using Bayesian Binning", AAAI,
    doi:10.1609/aaai.v29i1.9602.

    Examples
    --------
    >>> y, p = [0, 1, 1, 1], [0.25, 0.25, 0.75, 0.75]
    >>> ece(y, p), ece(y, p, [3, 1, 1, 1])
    (0.25, 0.0833...)
    """
    data = validate_scores(y, p, weight, real=real)
    index = assign_bins(data.p, data.w, n_bins, strategy, real=real, closed=closed)
    sums = np.bincount(index, data.w), np.abs(np.bincount(index, data.w * (data.y - data.p)))
    mass, total = (column[sums[0] > 0] for column in sums)
    if norm == 1:
        return float(total.sum() / mass.sum())
    gap = total / mass
    if norm == 2:
        return math.sqrt(np.sum(mass * gap**2) / mass.sum())
    if norm == "max":
        return float(gap.max())
    raise ArgumentError(f"norm must be 1, 2 or 'max'; got {norm!r}", parameter="norm")


def mce(
    y: ArrayLike,
    p: ArrayLike,
    weight: ArrayLike | None = None,
    *,
    n_bins: int = 10,
    strategy: Strategy = "width",
    real: bool = False,
    closed: Closed = "right",
) -> float:
    """Compute the maximum calibration error: the largest gap of any non-empty bin (`ece` with ``norm="max"``).

    References
    ----------
    Naeini, Cooper & Hauskrecht (2015), "Obtaining Well Calibrated Probabilities Using Bayesian Binning", AAAI,
    doi:10.1609/aaai.v29i1.9602.

    Examples
    --------
    >>> mce([0, 1, 1, 1], [0.25, 0.25, 0.75, 0.5])
    0.5
    """
    return ece(y, p, weight, n_bins=n_bins, strategy=strategy, norm="max", real=real, closed=closed)


def ace(
    y: ArrayLike, p: ArrayLike, weight: ArrayLike | None = None, *, n_bins: int = 10, norm: Norm = 1, real: bool = False
) -> float:
    """Compute the adaptive calibration error: `ece` over bins of equal weight.

    The paper's ACE for k classes is ``classwise_ece(..., strategy="mass")``.

    References
    ----------
    Nixon, Dusenberry, Jerfel, Nguyen, Liu, Zhang & Tran (2019), "Measuring Calibration in Deep Learning",
    arXiv:1904.01685.

    Examples
    --------
    >>> ace([0, 1, 1, 1], [0.25, 0.375, 0.75, 0.75], n_bins=2)
    0.21875
    """
    return ece(y, p, weight, n_bins=n_bins, strategy="mass", norm=norm, real=real)


def proportional_ece(
    y: ArrayLike, p: ArrayLike, weight: ArrayLike | None = None, *, n_bins: int = 10, strategy: Strategy = "width"
) -> float:
    """Compute the relative calibration error: the gap of each score bin divided by its mean score, averaged over bins.

    With gap_b = ybar_b - pbar_b and share s_b = W_b/W it is sum_b s_b |gap_b| / pbar_b: 0.1 means that outcomes differ from
    the scores by 10% in the mean. Infinite if outcomes contradict a bin of scores 0. With ``strategy="mass"`` it is the
    proportional form of `ace`.

    Examples
    --------
    >>> proportional_ece([0, 1, 1, 1], [0.25, 0.25, 0.75, 0.75])  # (1/2) 0.25/0.25 + (1/2) 0.25/0.75
    0.6666...
    """
    data = validate_scores(y, p, weight)
    index = assign_bins(data.p, data.w, n_bins, strategy)
    columns = (data.w, data.w * (data.y - data.p), data.w * data.p)
    mass, gap, expected = (np.bincount(index, column) for column in columns)
    wrong = gap != 0
    if (expected[wrong] == 0).any():
        return math.inf
    return float((mass[wrong] * np.abs(gap[wrong]) / expected[wrong]).sum() / mass.sum())


def rank_calibration_error(
    y: ArrayLike, p: ArrayLike, weight: ArrayLike | None = None, *, n_bins: int = 10, real: bool = False
) -> float:
    """Compute the rank-calibration error: whether higher scores have higher outcomes, whatever their values.

    Rows are divided into score bins of equal weight. The error is the mean over bins of the difference between the rank of
    a bin by mean outcome and its rank by score, as shares of the weight; bins of equal mean outcome share their mean rank.
    0 if mean outcomes rise from bin to bin; about 1/3 if they are in random order; at most 1/2.

    Parameters
    ----------
    y, p : array-like, shape (n,)
        Outcomes and scores in [0, 1]; any finite numbers if ``real``.
    weight, n_bins, real
        As for `bins`.

    References
    ----------
    Huang et al. (2024), "Uncertainty in language models: assessment through rank-calibration", arXiv:2404.03163, Definition
    2 and Equation 2, with bins of the score in place of the uncertainty.

    Examples
    --------
    >>> y, p = [0, 0, 0, 1, 1, 1], [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
    >>> rank_calibration_error(y, p, n_bins=2), rank_calibration_error(y[::-1], p, n_bins=2)
    (0.0, 0.5)
    """
    data = validate_scores(y, p, weight, real=real)
    index = assign_bins(data.p, data.w, n_bins, "mass", real=real)
    mass, total = np.bincount(index, data.w), np.bincount(index, data.w * data.y)
    used = mass > 0
    share, mean = mass[used] / mass.sum(), total[used] / mass[used]
    by_score = np.cumsum(share) - share / 2
    _, level = np.unique(mean, return_inverse=True)
    at_level = np.bincount(level, share)
    by_outcome = (np.cumsum(at_level) - at_level / 2)[level]
    return float((share * np.abs(by_outcome - by_score)).sum())


def top_label_ece(
    y: ArrayLike,
    p: ArrayLike,
    weight: ArrayLike | None = None,
    *,
    n_bins: int = 10,
    strategy: Strategy = "width",
    norm: Norm = 1,
    closed: Closed = "right",
) -> float:
    """Compute the calibration error of the confidence: `ece` of each row's highest score, against whether it was correct.

    Parameters
    ----------
    y : array-like of int, shape (n,)
        The class of each row, a column index of p.
    p : array-like, shape (n, k)
        The probabilities of the classes, adding up to 1. Of equal highest ones the first column is the top label.
    weight, n_bins, strategy, norm, closed
        As for `ece`.

    References
    ----------
    Guo, Pleiss, Sun & Weinberger (2017), "On Calibration of Modern Neural Networks", arXiv:1706.04599.

    Examples
    --------
    >>> top_label_ece([0, 1, 2], [[0.75, 0.25, 0], [0.75, 0.25, 0], [0, 0, 1]])
    0.1666...
    """
    data = validate_class_scores(y, p, weight)
    correct = (data.p.argmax(axis=1) == data.y).astype(np.float64)
    return ece(correct, data.p.max(axis=1), data.w, n_bins=n_bins, strategy=strategy, norm=norm, closed=closed)


def classwise_ece(
    y: ArrayLike,
    p: ArrayLike,
    weight: ArrayLike | None = None,
    *,
    n_bins: int = 10,
    strategy: Strategy = "width",
    norm: Norm = 1,
) -> float:
    """Compute the calibration error of all scores: the mean over classes j of the `ece` of column j against y = j.

    Parameters as for `top_label_ece`. Each class has its own bins and the same weight, however rare it is.

    References
    ----------
    Kull, Perello-Nieto, Kängsepp, Silva Filho, Song & Flach (2019), "Beyond temperature scaling: Obtaining well-calibrated
    multiclass probabilities with Dirichlet calibration", arXiv:1910.12656.

    Examples
    --------
    >>> classwise_ece([0, 1, 2], [[0.75, 0.25, 0], [0.75, 0.25, 0], [0, 0, 1]])
    0.1111...
    """
    data = validate_class_scores(y, p, weight)
    columns = enumerate(np.ascontiguousarray(data.p.T))
    errors = [ece(data.y == j, q, data.w, n_bins=n_bins, strategy=strategy, norm=norm) for j, q in columns]
    return float(np.mean(errors))


@dataclass(frozen=True, repr=False)
class DebiasedError(Result):
    """A binned error without the contribution of noise.

    ``squared`` estimates the mean squared gap; for a calibrated score it is often negative. ``value`` is its square root, 0
    if it is negative, NaN if every bin was left out. ``bins`` is the number of bins used; ``left_out`` counts bins with a
    single row, whose noise cannot be estimated: their weight is left out too.
    """

    value: float
    squared: float
    bins: int
    left_out: int

    def __float__(self) -> float:
        return self.value

    def __repr__(self) -> str:
        note = f", {self.left_out:,} of one row left out" if self.left_out else ""
        return f"<DebiasedError {self.value:.4g} over {self.bins:,} bin{'' if self.bins == 1 else 's'}{note}>"


def debiased_ece(
    y: ArrayLike,
    p: ArrayLike,
    weight: ArrayLike | None = None,
    *,
    n_bins: int = 10,
    strategy: Strategy = "width",
    real: bool = False,
) -> DebiasedError:
    """Estimate the L2 calibration error of the bins: `ece` with ``norm=2``, minus what noise adds to each squared gap.

    Notes
    -----
    ``squared`` is sum_b s_b (gap_b^2 - v_b), s_b the bin's share of the weight of kept bins. If every outcome is 0 or 1,
    v_b = ybar_b (1 - ybar_b)/(n_b - 1) (Kumar, Liang and Ma 2019, section 4.2), else v_b = var(y - p)/n_b with the
    sample variance of the bin. The two agree if all scores of a bin are equal; otherwise the first counts the spread of
    the scores in the bin as noise, and ``squared`` is too low by about var_b(p)/n_b.

    Weights are importance weights here: n_b is Kish's effective size (sum w)^2 / sum w^2, so that the noise of a row of
    weight 2 is not that of two rows. The scale of the weights does not matter.

    References
    ----------
    Kumar, Liang & Ma (2019), "Verified Uncertainty Calibration", arXiv:1909.10155, section 4.2.

    Examples
    --------
    >>> debiased_ece([0, 0, 1, 1], [0.25, 0.25, 0.25, 0.25])
    <DebiasedError 0 over 1 bin>
    >>> error = debiased_ece([1, 1, 1, 0], [0.25, 0.25, 0.25, 0.75])
    >>> error, error.squared
    (<DebiasedError 0.75 over 1 bin, 1 of one row left out>, 0.5625)
    """
    data = validate_scores(y, p, weight, real=real)
    index = np.unique(assign_bins(data.p, data.w, n_bins, strategy, real=real), return_inverse=True)[1]
    mass = np.bincount(index, data.w)
    excess = mass**2 / np.bincount(index, data.w**2) - 1
    residual = data.y - data.p
    gap = np.bincount(index, data.w * residual) / mass
    if ((data.y == 0) | (data.y == 1)).all():
        rate = np.bincount(index, data.w * data.y) / mass
        spread = rate * (1 - rate)
    else:
        spread = np.bincount(index, data.w * (residual - gap[index]) ** 2) / mass
    kept = excess > SINGLE_ROW
    if not (used := int(kept.sum())):
        return DebiasedError(math.nan, math.nan, 0, len(mass))
    squared = float(np.sum(mass[kept] * (gap[kept] ** 2 - spread[kept] / excess[kept])) / mass[kept].sum())
    return DebiasedError(math.sqrt(max(squared, 0.0)), squared, used, len(mass) - used)


def ece_by_group(
    y: ArrayLike,
    p: ArrayLike,
    groups: ArrayLike,
    weight: ArrayLike | None = None,
    *,
    n_bins: int = 10,
    strategy: Strategy = "width",
    norm: Norm = 1,
    real: bool = False,
) -> GroupErrors:
    """Compute the `ece` of each group, with bins of its own; groups as for `by_group`, options as for `ece`.

    Examples
    --------
    >>> ece_by_group([0, 1, 1, 1], [0.25, 0.25, 0.5, 0.75], ["a", "a", "b", "b"]).worst
    ('b', 0.375)
    """
    return by_group(ece, y, p, groups, weight, n_bins=n_bins, strategy=strategy, norm=norm, real=real)


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
    s* with E(s*) = s*, where E(s) is the curve of `smooth_ece_at`. Smoothing twice equals smoothing once at a larger s,
    and smoothing never increases an integral of absolute values; so E is non-increasing, the fixed point is unique, and
    bisection finds it.

    References
    ----------
    Blasiok & Nakkiran (2023), "Smooth ECE: Principled Reliability Diagrams via Kernel Smoothing", arXiv:2309.12236.

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

    References
    ----------
    Blasiok & Nakkiran (2023), "Smooth ECE: Principled Reliability Diagrams via Kernel Smoothing", arXiv:2309.12236.

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
