"""The maximum mean calibration error: a calibration error without bins, from a kernel between scores."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import numpy as np

from trueup._validate import check_choice, check_number
from trueup.kernels import laplace
from trueup.metrics.inputs import validate_scores

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from trueup._types import FloatArray

PAIRS_PER_CHUNK = 4_000_000  # of rows, in one chunk of the sum over all pairs


def mmce(
    y: ArrayLike,
    p: ArrayLike,
    weight: ArrayLike | None = None,
    *,
    kernel: Literal["laplace", "gaussian"] = "laplace",
    width: float = 0.4,
) -> float:
    """Compute the maximum mean calibration error of Kumar, Sarawagi & Jain (2018).

    The square root of (1/W^2) sum_ij w_i w_j (y_i - p_i) (y_j - p_j) k(p_i, p_j): the largest mean of (y - p) h(p) over
    functions h of norm 1 in the space of the kernel k. It is 0 in the population if and only if the scores are calibrated.

    Parameters
    ----------
    y, p, weight : array-like, shape (n,)
        Outcomes (0, 1 or between), scores in [0, 1], and weights (by default 1). For several classes pass whether the top
        label was right, and its probability: ``confidence, hit = top_label(y, p)``, ``mmce(hit, confidence)``.
    kernel : {"laplace", "gaussian"}
        exp(-|p - q| / width), as in the paper, or exp(-(p - q)^2 / (2 width^2)).
    width : float
        Scale of the kernel; 0.4 in the paper.

    Notes
    -----
    The sum over all pairs includes those of a row with itself, as in the paper: of a calibrated score it is about
    sqrt(E p (1 - p) / n). The Laplace kernel is summed exactly in O(n log n), since exp(-|p - q| / width) factorises along
    the sorted scores; the Gaussian one pair by pair, O(m^2) in m distinct scores, in chunks of limited memory.

    References
    ----------
    Kumar, Sarawagi & Jain (2018), "Trainable Calibration Measures for Neural Networks from Kernel Mean Embeddings",
    ICML, PMLR 80:2805-2814.

    Examples
    --------
    Two rows, both with residual -0.5, at a distance of 0: the kernel is 1 for all pairs.

    >>> mmce([0, 0], [0.5, 0.5])
    0.5
    >>> round(mmce([0, 1], [0.1, 0.9]), 4)  # .1 sqrt((1 - exp(-2)) / 2)
    0.0658
    """
    check_choice("kernel", kernel, ("laplace", "gaussian"))
    check_number("width", width, 0, above=True, hint="0.4, as in the paper")
    data = validate_scores(y, p, weight)
    score, index = np.unique(data.p, return_inverse=True)
    mass = np.asarray(np.bincount(index, data.w), np.float64)
    residual = np.asarray(np.bincount(index, data.w * (data.y - data.p)), np.float64)
    if kernel == "laplace":
        columns = np.column_stack([mass, residual])
        total = laplace.sums(score[:, None], columns, np.zeros(len(score), np.int64), np.array([1 / width]))
        smoothed = total.total[0, :, 1] * np.exp(-total.shift[0] / width)
    else:
        smoothed = _gaussian_sums(score / width, residual)
    return math.sqrt(max(0.0, float(residual @ smoothed))) / float(mass.sum())


def _gaussian_sums(score: FloatArray, values: FloatArray) -> FloatArray:
    """Return for each score the sum of ``values`` weighted by exp(-d^2 / 2), d its distance to their scores."""
    size = max(1, PAIRS_PER_CHUNK // len(score))
    chunks = (score[start : start + size, None] for start in range(0, len(score), size))
    return np.concatenate([np.exp(-((chunk - score) ** 2) / 2) @ values for chunk in chunks])
