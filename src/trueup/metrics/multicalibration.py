"""Multicalibration over given groups: the worst of them, in units of noise, of the score, and of the rarer class."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.errors import ArgumentError, DataError
from trueup.kernels import cumulative as sums
from trueup.kernels.tally import Cells, join, sort_rows, tally
from trueup.metrics.inputs import scored
from trueup.metrics.levelsets import discretize, k1

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from trueup.kernels.tally import Rows, Tally

__all__ = ["MulticalibrationError", "discretised_error", "multicalibration_error"]


@dataclass(frozen=True, eq=False)
class MulticalibrationError:
    """The largest ECCE-R over its noise among groups (Guy et al. 2025).

    Attributes
    ----------
    sigma : float
        max_g R_g / sigma_g.
    absolute, relative : float
        The same times the noise of the whole; and that over min(prevalence, 1 - prevalence).
    worst : int
        Position of the worst group: its column, or its code.
    by_group : ndarray
        R_g / sigma_g of every group, NaN for empty ones. The largest of many is no test: see `trueup.audit` for that.
    """

    sigma: float
    absolute: float
    relative: float
    worst: int
    by_group: NDArray[np.float64]

    def __repr__(self) -> str:
        return f"<{self.sigma:.3g} sigma in group {self.worst} of {len(self.by_group)}; {self.absolute:.3g} absolute>"

    def to_dict(self) -> dict[str, Any]:
        """Give plain values."""
        return {name: getattr(self, name) for name in ("sigma", "absolute", "relative", "worst")}


def multicalibration_error(
    y: ArrayLike, p: ArrayLike, groups: ArrayLike, weight: ArrayLike | None = None
) -> MulticalibrationError:
    """Compute the multicalibration error over groups.

    Parameters
    ----------
    y, p : array-like, shape (n,)
        Outcomes and scores in [0, 1].
    groups : array-like
        Codes of shape (n,), 0 and up, -1 for rows in no group; or indicators of shape (n, g), groups may overlap.
    weight : array-like, shape (n,), optional

    Examples
    --------
    >>> y, p = [0, 0, 1, 1], [0.5, 0.5, 0.5, 0.5]
    >>> multicalibration_error(y, p, [0, 0, 1, 1])
    <1.41 sigma in group 0 of 2; 0.354 absolute>
    """
    given = np.asarray(groups)
    _check_groups(given, len(np.atleast_1d(np.asarray(y))))
    kept = np.ones(len(given), bool) if weight is None else np.asarray(weight) > 0
    data = scored(y, p, weight)
    rows = sort_rows(data.y, data.p, None if weight is None else data.w, real=False)
    whole = _tally(rows, np.zeros(len(data.y), np.int32), 1)
    found = _by_group(rows, given[kept])
    with np.errstate(invalid="ignore", divide="ignore"):
        noise = np.sqrt(found.state[:, sums.VARIANCE])
        sigma = np.where(found.rows > 0, np.where(found.span > 0, found.span / noise, 0.0), np.nan)
    if np.isnan(sigma).all():
        raise DataError("every group is empty", hint="at least one row must be in a group")
    worst = int(np.nanargmax(sigma))
    unit = math.sqrt(float(whole.state[0, sums.VARIANCE])) / float(whole.weight[0])
    rate = float((whole.expected[0] + whole.residual[0]) / whole.weight[0])
    rarer = min(rate, 1 - rate)
    absolute = float(sigma[worst]) * unit
    return MulticalibrationError(float(sigma[worst]), absolute, absolute / rarer if rarer > 0 else math.nan, worst, sigma)


def _check_groups(groups: NDArray[Any], rows: int) -> None:
    if groups.ndim not in (1, 2) or len(groups) != rows:
        raise DataError(
            f"groups must have shape ({rows},) or ({rows}, g); got {groups.shape}",
            hint="one entry, or one line, a row of data",
        )
    if groups.ndim == 1 and (groups.dtype.kind not in "iu" or groups.min(initial=0) < -1):
        raise DataError("groups as codes must be whole numbers from -1 up", hint="indicators are an (n, g) boolean array")
    if groups.ndim == 2 and not np.isin(groups, (0, 1)).all():
        raise DataError("groups as indicators must be 0 and 1, or booleans", hint="pass codes as a one-dimensional array")


def _by_group(rows: Rows, groups: NDArray[Any]) -> Tally:
    if groups.ndim == 1:
        return _tally(rows, groups.astype(np.int32), int(groups.max(initial=-1)) + 1)
    if not groups.shape[1]:
        raise DataError("no groups were given", hint="pass at least one column")
    return join([_tally(rows, np.where(column, 0, -1).astype(np.int32), 1) for column in groups.T])


def _tally(rows: Rows, codes: NDArray[np.int32], count: int) -> Tally:
    """Sum up the groups of one partition, empty ones too."""
    own = codes[rows.order]
    counts = np.bincount(own[own >= 0], minlength=count).astype(np.int32)
    return tally(rows, np.zeros(len(own), np.int32), own, (1, count), Cells(np.arange(count), counts))


def discretised_error(
    y: ArrayLike, p: ArrayLike, groups: ArrayLike, weight: ArrayLike | None = None, *, m: int = 10
) -> float:
    """Compute the multicalibration error of the score rounded to multiples of 1/m: the largest K1 over the groups.

    Parameters
    ----------
    groups : array-like, shape (n, g)
        Indicators; groups may overlap.
    m : int
        10, 20, 50 and 100 are usual: a score fit for use does not depend on it.

    Notes
    -----
    max_g sum_v Pr[f = v] |E[g (y - f) | f = v]| with f the rounded score (Discretization-free multicalibration,
    Definition 3.2).

    Examples
    --------
    >>> discretised_error([0, 1, 1, 1], [0.5, 0.5, 0.5, 0.5], [[1, 0], [1, 0], [0, 1], [0, 1]])
    0.25
    """
    if isinstance(m, bool) or not isinstance(m, (int, np.integer)) or m < 1:
        raise ArgumentError(f"m must be a whole number of at least 1; got {m!r}", hint="10, 20, 50 or 100")
    return float(np.max(k1(y, discretize(p, m), np.asarray(groups, np.float64), weight)))
