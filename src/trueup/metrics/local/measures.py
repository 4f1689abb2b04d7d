"""Local calibration errors: per point, their maximum and mean, and both over a grid of gamma."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.data.columns import frame_like
from trueup.errors import ArgumentError
from trueup.metrics.inputs import validate_class_scores
from trueup.metrics.local.neighbourhoods import Kernel, Neighbourhoods, Options, check_gamma, read_neighbourhoods
from trueup.metrics.result import Result

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from trueup._types import FloatArray, IntArray
    from trueup.metrics.binned import Strategy
    from trueup.metrics.local.neighbourhoods import Query

# Four per decade from 0.01 to 10, and one well beyond each end to show the limits.
GAMMAS = (0.001, *(10.0 ** (k / 4 - 2) for k in range(13)), 100.0)


def lce(
    phi: ArrayLike,
    confidence: ArrayLike,
    hit: ArrayLike,
    weight: ArrayLike | None = None,
    *,
    gamma: float | None = None,
    bins: int = 15,
    strategy: Strategy = "width",
    query: Query | None = None,
    leave_one_out: bool = False,
    signed: bool = False,
    kernel: Kernel = "laplace",
    tolerance: float | None = None,
    threads: int | None = None,
    device: str = "cpu",
) -> FloatArray:
    """Compute the local calibration error of each row: mean confidence against mean hit among similar rows.

    Parameters
    ----------
    phi : array-like, shape (n, d) or (n,)
        The position of each row: finite numbers, such as those of `fit_features`, of any transformer, or of an embedding.
        Group labels if ``kernel`` is "group".
    confidence, hit : array-like, shape (n,)
        The probability of an event, and 1 if it occurred, else 0; in [0, 1]. For several classes see `top_label`.
    weight : array-like, shape (n,), optional
        A weight of 2 counts the row twice. A row of weight 0 has no influence, but still gets a value.
    gamma : float, optional
        The reach of a neighbourhood, above 0: a row at distance |phi - phi'|_1 = d gamma has 1/e of the weight of one at
        distance 0. Infinite, it is the whole bin. Its meaning depends on the scaling of phi: with `fit_features`, whose
        rows have a mean distance of d, it is a share of that distance. Required by the Laplace kernel, and `lce_curve`
        helps to choose it; groups have none.
    bins, strategy
        Only rows in the same bin of confidence are neighbours; the bins are those of `trueup.metrics.bins`.
    query : (phi, confidence), optional
        Other points at which to compute the error, instead of the rows. A point whose bin has no rows gets NaN.
    leave_one_out : bool
        Whether a row is excluded from its own neighbourhood. One that is alone in its bin then gets NaN.
    signed : bool
        Whether to keep the sign: positive if the confidence is too high.
    kernel : {"laplace", "group"}
        exp(-|phi - phi'|_1 / (d gamma)), or 1 within a group and 0 between groups: the binned error group by group.
    tolerance : float, optional
        Permitted error of each value, for speed; by default sums are exact, with six digits or more.
    threads : int, optional
        All cores by default. Their number changes no bit.
    device : {"cpu", "cuda"}
        Where the sums are computed; "cuda" requires torch and a GPU.

    Returns
    -------
    ndarray
        One value per row, or per point of ``query``.

    Notes
    -----
    | sum_i w_i k_i (confidence_i - hit_i) | / sum_i w_i k_i over the rows i of the bin, including the row itself (Luo et
    al. 2022, equation 4). As gamma tends to 0 only the nearest rows count, with equal weights; the row itself is the
    nearest unless it is left out.

    Noise alone makes it large if neighbours are few: see `local_errors`.

    Examples
    --------
    >>> phi, confidence, hit = [0.0, 0.0, 1.0], [0.5, 0.5, 0.5], [1, 1, 0]
    >>> lce(phi, confidence, hit, gamma=0.1, signed=True).round(3)
    array([-0.5,  -0.5,   0.5])
    >>> lce(phi, confidence, hit, gamma=np.inf).round(3)
    array([0.167, 0.167, 0.167])
    """
    options = Options(bins, strategy, query, leave_one_out, kernel, tolerance, threads, device)
    reach = check_gamma(gamma, kernel)
    errors = _signed_errors(read_neighbourhoods(phi, confidence, hit, weight, options), [reach])[0]
    return np.asarray(errors if signed else np.abs(errors))


def mlce(
    phi: ArrayLike,
    confidence: ArrayLike,
    hit: ArrayLike,
    weight: ArrayLike | None = None,
    *,
    gamma: float | None = None,
    bins: int = 15,
    strategy: Strategy = "width",
    query: Query | None = None,
    leave_one_out: bool = False,
    kernel: Kernel = "laplace",
    tolerance: float | None = None,
    threads: int | None = None,
    device: str = "cpu",
) -> float:
    """Compute the maximum local calibration error (Luo et al. 2022, equation 5): the largest `lce` of any point.

    Parameters as for `lce`, except ``signed``. Points without a value are left out; NaN if none has one.

    Examples
    --------
    >>> mlce([0.0, 0.0, 1.0], [0.5, 0.5, 0.5], [1, 0, 0], gamma=0.001)
    0.5
    """
    options = Options(bins, strategy, query, leave_one_out, kernel, tolerance, threads, device)
    reach = check_gamma(gamma, kernel)
    errors = np.abs(_signed_errors(read_neighbourhoods(phi, confidence, hit, weight, options), [reach])[0])
    return float(np.nanmax(errors)) if np.isfinite(errors).any() else math.nan


def mean_lce(
    phi: ArrayLike,
    confidence: ArrayLike,
    hit: ArrayLike,
    weight: ArrayLike | None = None,
    *,
    gamma: float | None = None,
    bins: int = 15,
    strategy: Strategy = "width",
    query: Query | None = None,
    leave_one_out: bool = False,
    kernel: Kernel = "laplace",
    tolerance: float | None = None,
    threads: int | None = None,
    device: str = "cpu",
) -> float:
    """Compute the mean local calibration error: the weighted mean `lce` of the rows, or the plain mean over ``query``.

    Parameters as for `lce`, except ``signed``. Points without a value are left out; NaN if none has one.

    Examples
    --------
    >>> mean_lce([0.0, 0.0, 1.0], [0.5, 0.5, 0.5], [1, 0, 0], gamma=0.001)
    0.1666...
    """
    options = Options(bins, strategy, query, leave_one_out, kernel, tolerance, threads, device)
    reach = check_gamma(gamma, kernel)
    rows = read_neighbourhoods(phi, confidence, hit, weight, options)
    return _average(rows, np.abs(_signed_errors(rows, [reach])[0]))


def _signed_errors(rows: Neighbourhoods, gammas: list[float]) -> FloatArray:
    """Return the signed errors, one line per gamma; NaN without neighbours."""
    columns = (rows.weight, rows.weight * (rows.confidence - rows.hit))
    total = rows.sums(columns, [rows.scale(gamma) for gamma in gammas]).total
    with np.errstate(invalid="ignore"):
        return np.asarray(total[..., 1] / total[..., 0])


def _average(rows: Neighbourhoods, values: FloatArray) -> float:
    """Average over the query points that have a value."""
    used = np.isfinite(values) & (rows.query_weight > 0)
    return float(np.average(values[used], weights=rows.query_weight[used])) if used.any() else math.nan


@dataclass(frozen=True, eq=False, repr=False)
class LceCurve(Result):
    """The largest and the mean local calibration error for each ``gamma``.

    ``worst`` is the index of the point with the largest, the first of equals, -1 if no point has a value. ``mce`` is the
    limit of ``mlce`` for large gamma: the maximum calibration error of the bins.
    """

    gamma: FloatArray
    mlce: FloatArray
    mean: FloatArray
    worst: IntArray
    mce: float

    def __len__(self) -> int:
        return len(self.gamma)

    def __repr__(self) -> str:
        first, last = int(np.argmin(self.gamma)), int(np.argmax(self.gamma))
        ends = f"MLCE {self.mlce[first]:.3g} at gamma {self.gamma[first]:.3g}"
        if last != first:
            ends += f" to {self.mlce[last]:.3g} at {self.gamma[last]:.3g}"
        return f"<LceCurve of {len(self)} gamma{'' if len(self) == 1 else 's'}: {ends}; MCE {self.mce:.3g}>"

    def to_frame(self, like: Any = None) -> Any:
        """Return columns gamma, mlce, mean and worst, as a frame of the library of ``like``, or as a dict of arrays."""
        return frame_like({name: getattr(self, name).copy() for name in ("gamma", "mlce", "mean", "worst")}, like)


def lce_curve(
    phi: ArrayLike,
    confidence: ArrayLike,
    hit: ArrayLike,
    weight: ArrayLike | None = None,
    *,
    gammas: ArrayLike | None = None,
    bins: int = 15,
    strategy: Strategy = "width",
    query: Query | None = None,
    leave_one_out: bool = False,
    tolerance: float | None = None,
    threads: int | None = None,
    device: str = "cpu",
) -> LceCurve:
    """Compute `mlce` and `mean_lce` for many gammas in one pass over the distances (Luo et al. 2022, figures 1 and 3).

    Parameters
    ----------
    gammas : array-like, optional
        Each above 0; by default a grid from 0.01 to 10, four per decade, with 0.001 and 100 to show the limits.

    Notes
    -----
    Other parameters as for `lce`, except ``gamma``, ``signed`` and ``kernel``. Where the largest error is near 1,
    neighbourhoods are single rows; where it is near ``mce``, they are whole bins: a useful gamma lies between.

    Examples
    --------
    >>> curve = lce_curve([0.0, 0.0, 1.0, 1.0], [0.5] * 4, [1, 1, 0, 0], gammas=[0.1, 1, 10])
    >>> curve
    <LceCurve of 3 gammas: MLCE 0.5 at gamma 0.1 to 0.025 at 10; MCE 0>
    >>> curve.mlce.round(3)
    array([0.5  , 0.231, 0.025])
    """
    values = GAMMAS if gammas is None else np.asarray(gammas, object).ravel().tolist()
    if not len(values):
        raise ArgumentError("gammas is empty", hint="leave it out for a grid from 0.01 to 10", parameter="gammas")
    grid = [check_gamma(value, "laplace") for value in values]
    rows = read_neighbourhoods(
        phi, confidence, hit, weight, Options(bins, strategy, query, leave_one_out, "laplace", tolerance, threads, device)
    )
    errors = np.abs(_signed_errors(rows, [*grid, math.inf]))  # the last line is the limit
    filled = np.where(np.isnan(errors), -1.0, errors)
    largest, worst = filled.max(axis=1), filled.argmax(axis=1)
    largest, worst = np.where(largest < 0, math.nan, largest), np.where(largest < 0, -1, worst)
    means = np.array([_average(rows, line) for line in errors])
    return LceCurve(np.array(grid), largest[:-1], means[:-1], worst[:-1].astype(np.int64), float(largest[-1]))


def top_label(y: ArrayLike, p: ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Return the confidence and the hit of each row with scores of several classes, for the local measures.

    Parameters
    ----------
    y : array-like of int, shape (n,)
        The class of each row, a column index of p.
    p : array-like, shape (n, k)
        The probabilities of the classes, adding up to 1.

    Returns
    -------
    confidence, hit : ndarray, shape (n,)
        The highest score, and 1 if its class is the row's. Of equal highest scores the first column is the top label.

    Examples
    --------
    >>> top_label([0, 1], [[0.75, 0.25, 0], [0.75, 0.25, 0]])
    (array([0.75, 0.75]), array([1., 0.]))
    """
    data = validate_class_scores(y, p)
    # Probabilities may add up to slightly more than 1; a confidence does not exceed 1.
    return np.minimum(data.p.max(axis=1), 1.0), (data.p.argmax(axis=1) == data.y).astype(np.float64)
