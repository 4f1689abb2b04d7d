"""The local calibration error of each point, its maximum and its mean."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trueup.metrics.inputs import scored_classes
from trueup.metrics.local.neighbourhoods import Kernel, Neighbourhoods, Options, ask, check_gamma

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from trueup._types import FloatArray
    from trueup.metrics.binned import Strategy
    from trueup.metrics.local.neighbourhoods import At


def lce(
    phi: ArrayLike, confidence: ArrayLike, hit: ArrayLike, weight: ArrayLike | None = None, *,
    gamma: float | None = None, bins: int = 15, strategy: Strategy = "width", at: At | None = None,
    leave_one_out: bool = False, signed: bool = False, kernel: Kernel = "laplace", tolerance: float | None = None,
    threads: int | None = None, device: str = "cpu",
) -> FloatArray:  # fmt: skip
    """Measure the local calibration error of each row: mean confidence against mean hit among the rows like it.

    Parameters
    ----------
    phi : array-like, shape (n, d) or (n,)
        Where each row lies: finite numbers, such as those of `fit_features`, of any transformer, or of an embedding. Labels
        of groups where ``kernel`` is "group".
    confidence, hit : array-like, shape (n,)
        The probability given to an event, and 1 where it came true, 0 where not; in [0, 1]. For several classes see
        `top_label`.
    weight : array-like, shape (n,), optional
        A weight of 2 is the row twice. A row of weight 0 has no influence, and a value nonetheless.
    gamma : float, optional
        How far a neighbourhood reaches, above 0: a row at distance |phi - phi'|_1 = d gamma counts 1/e of one on the spot.
        Infinite, it is the whole bin. It means nothing without the scaling of phi: with `fit_features`, whose rows lie
        at a mean distance of d, it is a share of that distance. The Laplace kernel needs one, and `lce_curve` helps to
        choose it; groups have none.
    bins, strategy
        Only rows in the same bin of confidence are neighbours; the bins are those of `trueup.metrics.bins`.
    at : (phi, confidence), optional
        Other points to take the error at, in place of the rows. One whose bin has no rows gives NaN.
    leave_one_out : bool
        Whether a row is kept out of its own neighbourhood. One that is alone in its bin then gives NaN.
    signed : bool
        Whether to keep the sign: above 0 where the confidence is too high.
    kernel : {"laplace", "group"}
        exp(-|phi - phi'|_1 / (d gamma)), or 1 within a group and 0 between groups: the binned error group by group.
    tolerance : float, optional
        How far each error may be off, for speed; by default nothing is left out, and six digits or more are right.
    threads : int, optional
        All cores by default. Their number changes no bit.
    device : {"cpu", "cuda"}
        Where the sums are taken; "cuda" needs torch and a graphics card.

    Returns
    -------
    ndarray
        One value a row, or a point of ``at``.

    Notes
    -----
    | sum_i w_i k_i (confidence_i - hit_i) | / sum_i w_i k_i over the rows i of the bin, the row itself included (Luo et
    al. 2022, equation 4). As gamma falls to 0 only the nearest rows count, equally near ones alike; the row itself is the
    nearest of all unless it is left out.

    Noise alone makes it large where neighbours are few: see `local_errors`.

    Examples
    --------
    >>> phi, confidence, hit = [0.0, 0.0, 1.0], [0.5, 0.5, 0.5], [1, 1, 0]
    >>> lce(phi, confidence, hit, gamma=0.1, signed=True).round(3)
    array([-0.5,  -0.5,   0.5])
    >>> lce(phi, confidence, hit, gamma=np.inf).round(3)
    array([0.167, 0.167, 0.167])
    """
    options = Options(bins, strategy, at, leave_one_out, kernel, tolerance, threads, device)
    reach = check_gamma(gamma, kernel)
    found: FloatArray = signed_errors(ask(phi, confidence, hit, weight, options), [reach])[0]
    return found if signed else np.abs(found)


def mlce(
    phi: ArrayLike, confidence: ArrayLike, hit: ArrayLike, weight: ArrayLike | None = None, *,
    gamma: float | None = None, bins: int = 15, strategy: Strategy = "width", at: At | None = None,
    leave_one_out: bool = False, kernel: Kernel = "laplace", tolerance: float | None = None,
    threads: int | None = None, device: str = "cpu",
) -> float:  # fmt: skip
    """Measure the maximum local calibration error (Luo et al. 2022, equation 5): the largest `lce` of any point.

    Takes what `lce` takes. Points without a value are left out; NaN if none has one.

    Examples
    --------
    >>> mlce([0.0, 0.0, 1.0], [0.5, 0.5, 0.5], [1, 0, 0], gamma=0.001)
    0.5
    """
    options = Options(bins, strategy, at, leave_one_out, kernel, tolerance, threads, device)
    reach = check_gamma(gamma, kernel)
    found = np.abs(signed_errors(ask(phi, confidence, hit, weight, options), [reach])[0])
    return float(np.nanmax(found)) if np.isfinite(found).any() else np.nan


def mean_lce(
    phi: ArrayLike, confidence: ArrayLike, hit: ArrayLike, weight: ArrayLike | None = None, *,
    gamma: float | None = None, bins: int = 15, strategy: Strategy = "width", at: At | None = None,
    leave_one_out: bool = False, kernel: Kernel = "laplace", tolerance: float | None = None,
    threads: int | None = None, device: str = "cpu",
) -> float:  # fmt: skip
    """Measure the mean local calibration error: the mean `lce` of the rows, by weight; of the points of ``at``, plain.

    Takes what `lce` takes. Points without a value are left out; NaN if none has one.

    Examples
    --------
    >>> mean_lce([0.0, 0.0, 1.0], [0.5, 0.5, 0.5], [1, 0, 0], gamma=0.001)
    0.1666...
    """
    options = Options(bins, strategy, at, leave_one_out, kernel, tolerance, threads, device)
    reach = check_gamma(gamma, kernel)
    asked = ask(phi, confidence, hit, weight, options)
    return average(asked, np.abs(signed_errors(asked, [reach])[0]))


def signed_errors(asked: Neighbourhoods, gammas: list[float]) -> FloatArray:
    """Give the signed errors, one line a gamma; NaN where there are no neighbours."""
    columns = (asked.relative, asked.relative * (asked.confidence - asked.hit))
    total = asked.sums(columns, [asked.scale(gamma) for gamma in gammas]).total
    with np.errstate(invalid="ignore"):
        return np.asarray(total[..., 1] / total[..., 0])


def average(asked: Neighbourhoods, values: FloatArray) -> float:
    """Average over the points asked about that have a value."""
    some = np.isfinite(values) & (asked.asked_weight > 0)
    return float(np.average(values[some], weights=asked.asked_weight[some])) if some.any() else np.nan


def top_label(y: ArrayLike, p: ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Give the confidence and the hit of each row with scores of several classes, as the local measures take them.

    Parameters
    ----------
    y : array-like of int, shape (n,)
        The class of each row, a position 0 to k - 1 among the columns of p.
    p : array-like, shape (n, k)
        The probabilities of the classes, adding up to 1.

    Returns
    -------
    confidence, hit : ndarray, shape (n,)
        The highest score, and 1 where its class came true. Among equal highest scores the first column is the top label.

    Examples
    --------
    >>> top_label([0, 1], [[0.75, 0.25, 0], [0.75, 0.25, 0]])
    (array([0.75, 0.75]), array([1., 0.]))
    """
    data = scored_classes(y, p)
    # Scores may add up to 1 by a hair too much: a confidence does not exceed 1.
    return np.minimum(data.p.max(axis=1), 1.0), (data.p.argmax(axis=1) == data.y).astype(np.float64)
