"""Binned calibration errors: the mean outcome against the mean score, bin by bin.

ECE and MCE: Naeini, Cooper and Hauskrecht (2015), "Obtaining well calibrated probabilities using Bayesian binning". ACE:
Nixon et al. (2019), "Measuring calibration in deep learning". Debiased: Kumar, Liang and Ma (2019), "Verified uncertainty
calibration". Top-label: Guo et al. (2017), "On calibration of modern neural networks". Classwise: Kull et al. (2019),
"Beyond temperature scaling". A row of weight 2 counts as the row twice, but for the noise that `debiased_ece` subtracts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from trueup._validate import check_choice
from trueup.errors import ArgumentError
from trueup.kernels.binning import digitize
from trueup.kernels.sorting import argsort
from trueup.metrics.grouped import GroupErrors, by_group
from trueup.metrics.inputs import Scored, scored, scored_classes

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from trueup._types import FloatArray, IntArray


Strategy = Literal["width", "mass"]
Norm = Literal[1, 2, "max"]
SLACK = 1e-9  # of a bin: a start so little short of an edge is on it, and the sum of the weights was rounded
ALONE = 1e-6  # an effective size no more than this above 1 is one row and dust


def bins(
    p: ArrayLike, weight: ArrayLike | None = None, *, n_bins: int = 10, strategy: Strategy = "width", real: bool = False
) -> IntArray:
    """Give each row the number of its bin, 0 to n_bins - 1.

    Parameters
    ----------
    p : array-like, shape (n,)
        Scores in [0, 1]; any finite numbers where ``real``.
    weight : array-like, shape (n,), optional
        A row of weight 0 gets a number too, and has no influence.
    strategy : {"width", "mass"}
        "width": bin b holds b/n_bins < p <= (b+1)/n_bins, and p = 0 too where b is 0 (where ``real``, the same between the
        lowest and the highest score). "mass": all rows of one score go to bin floor(n_bins S/W), where S is the weight
        of all lower scores and W the whole, so that tied scores are never split; takes a sort.
    real : bool
        Whether they are real quantities rather than probabilities.

    Examples
    --------
    >>> bins([0, 0.1, 0.3, 0.31, 1]).tolist()
    [0, 0, 2, 3, 9]
    >>> bins([0.5, 0.5, 0.5, 0.6, 0.7, 0.8], n_bins=3, strategy="mass").tolist()
    [0, 0, 0, 1, 2, 2]
    """
    array = p if isinstance(p, np.ndarray) else np.asarray(p, object)  # of any content: the check comes next
    scored(np.zeros(array.size), p, weight, real=real)
    ps = np.asarray(p, np.float64)
    return _number(ps, np.ones(len(ps)) if weight is None else np.asarray(weight, np.float64), n_bins, strategy, real=real)


def _number(p: FloatArray, w: FloatArray, n_bins: int, strategy: Strategy, *, real: bool) -> IntArray:
    """Number checked scores."""
    if isinstance(n_bins, bool) or not isinstance(n_bins, (int, np.integer)) or n_bins < 1:
        raise ArgumentError(f"n_bins must be a whole number of at least 1; got {n_bins!r}")
    check_choice("strategy", strategy, ("width", "mass"))
    if strategy == "mass":
        order = argsort(p)
        rising, total = p[order], np.cumsum(w[order])
        first = np.flatnonzero(np.append(True, rising[1:] != rising[:-1]))
        start = np.append(0.0, total)[first]
        number = np.minimum(np.floor(n_bins * (start / total[-1]) + SLACK), n_bins - 1).astype(np.int64)
        found = np.empty(len(p), np.int64)
        found[order] = np.repeat(number, np.diff(first, append=len(p)))
        return found
    low, high = (p[w > 0].min(), p[w > 0].max()) if real else (0.0, 1.0)
    # k/n is the float nearest to the edge, as the literal 0.3 is; multiples of 1/n are not.
    inner = np.arange(1, n_bins) / n_bins
    edges = low * (1 - inner) + high * inner
    out = np.empty(len(p), np.int32)
    # The kernel counts edges at or below a value; closed on the right means strictly below.
    digitize(np.ascontiguousarray(p), np.nextafter(edges, np.inf), out)
    return out.astype(np.int64)


def ece(
    y: ArrayLike, p: ArrayLike, weight: ArrayLike | None = None, *,
    n_bins: int = 10, strategy: Strategy = "width", norm: Norm = 1, real: bool = False,
) -> float:  # fmt: skip
    """Measure the expected calibration error: the gap between mean outcome and mean score, over bins of the score.

    Parameters
    ----------
    y, p : array-like, shape (n,)
        Outcomes and scores in [0, 1]; any finite numbers where ``real``. For (n, k) scores see `top_label_ece` and
        `classwise_ece`.
    weight, n_bins, strategy, real
        As for `bins`.
    norm : {1, 2, "max"}
        With gap_b = ybar_b - pbar_b and share s_b = W_b/W: sum_b s_b |gap_b|; the root of sum_b s_b gap_b^2; or
        max_b |gap_b|. Each is at most the next.

    Notes
    -----
    Noise alone makes it positive for a calibrated score, the more so the more bins: see `debiased_ece`.

    Examples
    --------
    >>> y, p = [0, 1, 1, 1], [0.25, 0.25, 0.75, 0.75]
    >>> ece(y, p), ece(y, p, [3, 1, 1, 1])
    (0.25, 0.0833...)
    """
    data = scored(y, p, weight, real=real)
    return _normed(data, _number(data.p, data.w, n_bins, strategy, real=real), norm)


def _normed(data: Scored, number: IntArray, norm: Norm) -> float:
    """Take the norm of the gaps of the bins."""
    sums = np.bincount(number, data.w), np.abs(np.bincount(number, data.w * (data.y - data.p)))
    mass, total = (column[sums[0] > 0] for column in sums)
    if norm == 1:
        return float(total.sum() / mass.sum())
    gap = total / mass
    if norm == 2:
        return math.sqrt(np.sum(mass * gap**2) / mass.sum())
    if norm == "max":
        return float(gap.max())
    raise ArgumentError(f"norm must be 1, 2 or 'max'; got {norm!r}")


def mce(
    y: ArrayLike, p: ArrayLike, weight: ArrayLike | None = None, *,
    n_bins: int = 10, strategy: Strategy = "width", real: bool = False,
) -> float:  # fmt: skip
    """Measure the maximum calibration error: the largest gap of any bin with rows, however few (``norm="max"``).

    Examples
    --------
    >>> mce([0, 1, 1, 1], [0.25, 0.25, 0.75, 0.5])
    0.5
    """
    return ece(y, p, weight, n_bins=n_bins, strategy=strategy, norm="max", real=real)


def ace(
    y: ArrayLike, p: ArrayLike, weight: ArrayLike | None = None, *, n_bins: int = 10, norm: Norm = 1, real: bool = False
) -> float:
    """Measure the adaptive calibration error: `ece` over bins of equal weight.

    The paper's ACE for k classes is ``classwise_ece(..., strategy="mass")``.

    Examples
    --------
    >>> ace([0, 1, 1, 1], [0.25, 0.375, 0.75, 0.75], n_bins=2)
    0.21875
    """
    return ece(y, p, weight, n_bins=n_bins, strategy="mass", norm=norm, real=real)


def top_label_ece(
    y: ArrayLike, p: ArrayLike, weight: ArrayLike | None = None, *,
    n_bins: int = 10, strategy: Strategy = "width", norm: Norm = 1,
) -> float:  # fmt: skip
    """Measure the error of the confidence: `ece` of the highest score of each row, against whether its class came true.

    Parameters
    ----------
    y : array-like of int, shape (n,)
        The class of each row, a position 0 to k - 1 among the columns of p.
    p : array-like, shape (n, k)
        The probabilities of the classes, adding up to 1. Among equal highest ones the first column is the top label.

    Examples
    --------
    >>> top_label_ece([0, 1, 2], [[0.75, 0.25, 0], [0.75, 0.25, 0], [0, 0, 1]])
    0.1666...
    """
    data = scored_classes(y, p, weight)
    right = (data.p.argmax(axis=1) == data.y).astype(np.float64)
    return ece(right, data.p.max(axis=1), data.w, n_bins=n_bins, strategy=strategy, norm=norm)


def classwise_ece(
    y: ArrayLike, p: ArrayLike, weight: ArrayLike | None = None, *,
    n_bins: int = 10, strategy: Strategy = "width", norm: Norm = 1,
) -> float:  # fmt: skip
    """Measure the error of all scores: the mean over classes j of the `ece` of column j against y = j.

    Takes what `top_label_ece` takes. Each class has bins of its own and counts alike, however rare.

    Examples
    --------
    >>> classwise_ece([0, 1, 2], [[0.75, 0.25, 0], [0.75, 0.25, 0], [0, 0, 1]])
    0.1111...
    """
    data = scored_classes(y, p, weight)
    columns = enumerate(np.ascontiguousarray(data.p.T))
    return float(np.mean([ece(data.y == j, q, data.w, n_bins=n_bins, strategy=strategy, norm=norm) for j, q in columns]))


@dataclass(frozen=True, repr=False)
class DebiasedError:
    """A binned error without the part that noise adds.

    ``squared`` estimates the mean squared gap; it is often below 0 where there is none. ``value`` is its
    root, 0 where it is negative, NaN where every bin was left out. It is taken over ``bins`` bins; ``left_out`` counts
    those of one row only, which says nothing of its noise: their weight is left out too.
    """

    value: float
    squared: float
    bins: int
    left_out: int

    def __float__(self) -> float:
        return self.value

    def to_dict(self) -> dict[str, Any]:
        """Give plain values fit for JSON; what is not finite becomes None."""
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {name: None if value != value else value for name, value in plain.items()}

    def __repr__(self) -> str:
        aside = f", {self.left_out:,} of one row left out" if self.left_out else ""
        return f"<DebiasedError {self.value:.4g} over {self.bins:,} bin{'' if self.bins == 1 else 's'}{aside}>"


def debiased_ece(
    y: ArrayLike, p: ArrayLike, weight: ArrayLike | None = None, *,
    n_bins: int = 10, strategy: Strategy = "width", real: bool = False,
) -> DebiasedError:  # fmt: skip
    """Estimate the L2 calibration error of the bins themselves: `ece`, less what noise adds to each squared gap.

    Notes
    -----
    sum_b s_b (gap_b^2 - v_b), s_b the share of the bin in the weight of the bins kept. If every outcome is 0 or 1,
    v_b = ybar_b (1 - ybar_b)/(n_b - 1) (Kumar, Liang and Ma 2019, section 4.2), else v_b = var(y - p)/n_b with the
    sample variance of the bin. The two agree where all scores of a bin are equal; elsewhere the first counts the spread
    of the scores in the bin as noise, and ``squared`` is too low by about var_b(p)/n_b.

    Weights are importance weights here: n_b is Kish's effective size (sum w)^2 / sum w^2, so that the noise of a row of
    weight 2 is not that of two rows. To multiply all weights by one number changes nothing.

    Examples
    --------
    >>> debiased_ece([0, 0, 1, 1], [0.25, 0.25, 0.25, 0.25])
    <DebiasedError 0 over 1 bin>
    >>> error = debiased_ece([1, 1, 1, 0], [0.25, 0.25, 0.25, 0.75])
    >>> error, error.squared
    (<DebiasedError 0.75 over 1 bin, 1 of one row left out>, 0.5625)
    """
    data = scored(y, p, weight, real=real)
    number = np.unique(_number(data.p, data.w, n_bins, strategy, real=real), return_inverse=True)[1]
    mass = np.bincount(number, data.w)
    excess = mass**2 / np.bincount(number, data.w**2) - 1
    residual = data.y - data.p
    gap = np.bincount(number, data.w * residual) / mass
    if ((data.y == 0) | (data.y == 1)).all():
        rate = np.bincount(number, data.w * data.y) / mass
        spread = rate * (1 - rate)
    else:
        spread = np.bincount(number, data.w * (residual - gap[number]) ** 2) / mass
    kept = excess > ALONE
    if not (used := int(kept.sum())):
        return DebiasedError(math.nan, math.nan, 0, len(mass))
    squared = float(np.sum(mass[kept] * (gap[kept] ** 2 - spread[kept] / excess[kept])) / mass[kept].sum())
    return DebiasedError(math.sqrt(max(squared, 0.0)), squared, used, len(mass) - used)


def ece_by_group(
    y: ArrayLike, p: ArrayLike, groups: ArrayLike, weight: ArrayLike | None = None, *,
    n_bins: int = 10, strategy: Strategy = "width", norm: Norm = 1, real: bool = False,
) -> GroupErrors:  # fmt: skip
    """Measure the `ece` of each group, with bins of its own.

    Examples
    --------
    >>> ece_by_group([0, 1, 1, 1], [0.25, 0.25, 0.5, 0.75], ["a", "a", "b", "b"]).worst
    ('b', 0.375)
    """
    return by_group(ece, y, p, groups, weight, n_bins=n_bins, strategy=strategy, norm=norm, real=real)
