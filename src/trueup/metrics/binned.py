"""Binned calibration errors: mean outcome against mean score, bin by bin.

ECE and MCE: Naeini, Cooper and Hauskrecht (2015), "Obtaining well calibrated probabilities using Bayesian binning". ACE:
Nixon et al. (2019), "Measuring calibration in deep learning". Debiased: Kumar, Liang and Ma (2019), "Verified uncertainty
calibration". Top-label: Guo et al. (2017), "On calibration of modern neural networks". Classwise: Kull et al. (2019),
"Beyond temperature scaling". A weight of 2 counts the row twice, except for the noise that `debiased_ece` subtracts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from trueup._validate import check_choice, check_integer
from trueup.errors import ArgumentError
from trueup.kernels.sorting import argsort, digitize
from trueup.metrics.groups import GroupErrors, by_group
from trueup.metrics.inputs import validate_class_scores, validate_scores
from trueup.metrics.result import Result

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from trueup._types import FloatArray, IntArray


Strategy = Literal["width", "mass"]
Norm = Literal[1, 2, "max"]
EDGE_TOLERANCE = 1e-9  # of a bin: the sum of the weights is rounded
SINGLE_ROW = 1e-6  # an effective size of at most this above 1 counts as a single row


def bins(
    p: ArrayLike, weight: ArrayLike | None = None, *, n_bins: int = 10, strategy: Strategy = "width", real: bool = False
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
    real : bool
        Whether the scores are real quantities rather than probabilities.

    Examples
    --------
    >>> bins([0, 0.1, 0.3, 0.31, 1]).tolist()
    [0, 0, 2, 3, 9]
    >>> bins([0.5, 0.5, 0.5, 0.6, 0.7, 0.8], n_bins=3, strategy="mass").tolist()
    [0, 0, 0, 1, 2, 2]
    """
    array = p if isinstance(p, np.ndarray) else np.asarray(p, object)  # of any type: validated next
    validate_scores(np.zeros(array.size), p, weight, real=real)
    ps = np.asarray(p, np.float64)
    ws = np.ones(len(ps)) if weight is None else np.asarray(weight, np.float64)
    return assign_bins(ps, ws, n_bins, strategy, real=real)


def assign_bins(p: FloatArray, w: FloatArray, n_bins: int, strategy: Strategy, *, real: bool = False) -> IntArray:
    """Return the bin of each validated score; see `bins`."""
    check_integer("n_bins", n_bins, 1)
    check_choice("strategy", strategy, ("width", "mass"))
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
    edges = low * (1 - inner) + high * inner
    out = np.empty(len(p), np.int32)
    # The kernel counts edges at or below a value; bins closed on the right need those strictly below.
    digitize(np.ascontiguousarray(p), np.nextafter(edges, np.inf), out)
    return out.astype(np.int64)


def ece(
    y: ArrayLike,
    p: ArrayLike,
    weight: ArrayLike | None = None,
    *,
    n_bins: int = 10,
    strategy: Strategy = "width",
    norm: Norm = 1,
    real: bool = False,
) -> float:
    """Compute the expected calibration error: the gap between mean outcome and mean score, averaged over score bins.

    Parameters
    ----------
    y, p : array-like, shape (n,)
        Outcomes and scores in [0, 1]; any finite numbers if ``real``. For scores of shape (n, k) see `top_label_ece` and
        `classwise_ece`.
    weight, n_bins, strategy, real
        As for `bins`.
    norm : {1, 2, "max"}
        With gap_b = ybar_b - pbar_b and share s_b = W_b/W: sum_b s_b |gap_b|; the square root of sum_b s_b gap_b^2; or
        max_b |gap_b|. Each is at most the next.

    Notes
    -----
    Noise alone makes it positive for a calibrated score, more so with more bins: see `debiased_ece`.

    Examples
    --------
    >>> y, p = [0, 1, 1, 1], [0.25, 0.25, 0.75, 0.75]
    >>> ece(y, p), ece(y, p, [3, 1, 1, 1])
    (0.25, 0.0833...)
    """
    data = validate_scores(y, p, weight, real=real)
    index = assign_bins(data.p, data.w, n_bins, strategy, real=real)
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
) -> float:
    """Compute the maximum calibration error: the largest gap of any non-empty bin (`ece` with ``norm="max"``).

    Examples
    --------
    >>> mce([0, 1, 1, 1], [0.25, 0.25, 0.75, 0.5])
    0.5
    """
    return ece(y, p, weight, n_bins=n_bins, strategy=strategy, norm="max", real=real)


def ace(
    y: ArrayLike, p: ArrayLike, weight: ArrayLike | None = None, *, n_bins: int = 10, norm: Norm = 1, real: bool = False
) -> float:
    """Compute the adaptive calibration error: `ece` over bins of equal weight.

    The paper's ACE for k classes is ``classwise_ece(..., strategy="mass")``.

    Examples
    --------
    >>> ace([0, 1, 1, 1], [0.25, 0.375, 0.75, 0.75], n_bins=2)
    0.21875
    """
    return ece(y, p, weight, n_bins=n_bins, strategy="mass", norm=norm, real=real)


def top_label_ece(
    y: ArrayLike,
    p: ArrayLike,
    weight: ArrayLike | None = None,
    *,
    n_bins: int = 10,
    strategy: Strategy = "width",
    norm: Norm = 1,
) -> float:
    """Compute the calibration error of the confidence: `ece` of each row's highest score, against whether it was correct.

    Parameters
    ----------
    y : array-like of int, shape (n,)
        The class of each row, a column index of p.
    p : array-like, shape (n, k)
        The probabilities of the classes, adding up to 1. Of equal highest ones the first column is the top label.
    weight, n_bins, strategy, norm
        As for `ece`.

    Examples
    --------
    >>> top_label_ece([0, 1, 2], [[0.75, 0.25, 0], [0.75, 0.25, 0], [0, 0, 1]])
    0.1666...
    """
    data = validate_class_scores(y, p, weight)
    correct = (data.p.argmax(axis=1) == data.y).astype(np.float64)
    return ece(correct, data.p.max(axis=1), data.w, n_bins=n_bins, strategy=strategy, norm=norm)


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
    sum_b s_b (gap_b^2 - v_b), s_b the share of the bin in the weight of the bins kept. If every outcome is 0 or 1,
    v_b = ybar_b (1 - ybar_b)/(n_b - 1) (Kumar, Liang and Ma 2019, section 4.2), else v_b = var(y - p)/n_b with the
    sample variance of the bin. The two agree if all scores of a bin are equal; otherwise the first counts the spread of
    the scores in the bin as noise, and ``squared`` is too low by about var_b(p)/n_b.

    Weights are importance weights here: n_b is Kish's effective size (sum w)^2 / sum w^2, so that the noise of a row of
    weight 2 is not that of two rows. The scale of the weights does not matter.

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
