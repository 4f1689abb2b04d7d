"""Multicalibration over given groups: the worst of them, in units of noise, of the score, and of the rarer class."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.data.frame import to_jsonable
from trueup.errors import ArgumentError, DataError
from trueup.kernels import cumulative as sums
from trueup.kernels.tally import Cells, join, sort_rows, tally
from trueup.metrics.grouped import as_labels, labelled
from trueup.metrics.inputs import scored
from trueup.metrics.levelsets import discretize, k1

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from trueup._types import BoolArray, FloatArray, Int32Array
    from trueup.kernels.tally import Rows, Tally


@dataclass(frozen=True, eq=False)
class MulticalibrationError:
    """The largest ECCE-R over its noise among groups (Guy et al. 2025).

    Attributes
    ----------
    sigma : float
        max_g R_g / sigma_g.
    absolute, relative : float
        The same times the noise of the whole; and that over min(prevalence, 1 - prevalence), NaN where that is 0.
    worst : object
        The worst group: its label, or the number of its column.
    groups : tuple
        The groups that have rows.
    by_group : ndarray
        R_g / sigma_g of each of them. The largest of many is no test: see `trueup.audit` for that.
    """

    sigma: float
    absolute: float
    relative: float
    worst: Any
    groups: tuple[Any, ...]
    by_group: FloatArray

    def __repr__(self) -> str:
        many = f"{len(self.groups)} group{'' if len(self.groups) == 1 else 's'}"
        return f"<{self.sigma:.3g} sigma in group {self.worst!r} of {many}; {self.absolute:.3g} absolute>"

    def to_dict(self) -> dict[str, Any]:
        """Give plain values fit for JSON, but for the label of the worst; what is not finite becomes None."""
        return {name: to_jsonable(getattr(self, name)) for name in ("sigma", "absolute", "relative")} | {
            "worst": self.worst
        }


def multicalibration_error(
    y: ArrayLike, p: ArrayLike, groups: ArrayLike, weight: ArrayLike | None = None
) -> MulticalibrationError:
    """Compute the multicalibration error over groups.

    Parameters
    ----------
    y, p : array-like, shape (n,)
        Outcomes and scores in [0, 1].
    groups : array-like
        Labels of shape (n,) (numbers are labels too), None or NaN for rows in no group; or indicators of shape (n, g),
        groups may overlap.
    weight : array-like, shape (n,), optional

    Examples
    --------
    >>> y, p = [0, 0, 1, 1], [0.5, 0.5, 0.5, 0.5]
    >>> multicalibration_error(y, p, [0, 0, 1, 1])
    <1.41 sigma in group 0 of 2 groups; 0.354 absolute>
    """
    names, indicators, codes = _groups(groups, len(np.atleast_1d(np.asarray(y))))
    data = scored(y, p, weight)
    # Row numbers in the place of the scores: they come back for the rows that stay.
    kept = scored(np.zeros(len(codes)), np.arange(len(codes)), weight, real=True).p.astype(np.int64)
    rows = sort_rows(data.y, data.p, None if weight is None else data.w, real=False)
    whole = _tally(rows, np.zeros(len(data.y), np.int32), 1)
    if indicators is None:
        found = _tally(rows, codes[kept], len(names))
    else:
        found = join([_tally(rows, np.where(column[kept], 0, -1).astype(np.int32), 1) for column in indicators.T])
    some = found.rows > 0
    if not some.any():
        raise DataError("every group is empty", hint="at least one row must be in a group")
    names, found = tuple(name for name, yes in zip(names, some, strict=True) if yes), found.take(np.flatnonzero(some))
    with np.errstate(invalid="ignore", divide="ignore"):
        sigma = np.where(found.span > 0, found.span / np.sqrt(found.state[:, sums.VARIANCE]), 0.0)
    worst = int(np.argmax(sigma))
    unit = math.sqrt(float(whole.state[0, sums.VARIANCE])) / float(whole.weight[0])
    rate = float((whole.expected[0] + whole.residual[0]) / whole.weight[0])
    rarer = min(rate, 1 - rate)
    absolute = math.inf if math.isinf(sigma[worst]) else float(sigma[worst]) * unit
    relative = absolute / rarer if rarer > 0 else math.nan
    return MulticalibrationError(float(sigma[worst]), absolute, relative, names[worst], names, sigma)


def _groups(groups: ArrayLike, rows: int) -> tuple[tuple[Any, ...], BoolArray | None, Int32Array]:
    """Give the names of the groups, and who is in them: as indicators where they may overlap, else as codes."""
    given = as_labels(groups)
    if given.ndim not in (1, 2) or len(given) != rows:
        raise DataError(
            f"groups must have shape ({rows},) or ({rows}, g); got {given.shape}",
            hint="one entry, or line, a row of data",
        )
    if given.ndim == 1:
        names, codes = labelled(given)
        if names and names[-1] is None:  # rows without a label are in no group
            names, codes = names[:-1], np.where(codes == len(names) - 1, -1, codes)
        if not names:
            raise DataError("every group is empty", hint="at least one row must be in a group")
        return names, None, codes.astype(np.int32)
    if not given.shape[1]:
        raise DataError("no groups were given", hint="pass at least one column")
    if not np.isin(given, (0, 1)).all():
        raise DataError("groups as indicators must be 0 and 1, or booleans", hint="pass labels as a one-dimensional array")
    return tuple(range(given.shape[1])), given.astype(bool), np.zeros(rows, np.int32)


def _tally(rows: Rows, codes: Int32Array, count: int) -> Tally:
    """Sum up the groups of one partition, empty ones too."""
    own = codes[rows.order]
    counts = np.bincount(own[own >= 0], minlength=count).astype(np.int32)
    return tally(rows, np.zeros(len(own), np.int32), own, (1, count), Cells(np.arange(count), counts))


def discretized_error(
    y: ArrayLike, p: ArrayLike, groups: ArrayLike, weight: ArrayLike | None = None, *, m: int = 10
) -> float:
    """Compute the multicalibration error of the score rounded to multiples of 1/m: the largest K1 over the groups.

    Parameters
    ----------
    groups : array-like
        As in `multicalibration_error`.
    m : int
        10, 20, 50 and 100 are usual: a score fit for use does not depend on it.

    Notes
    -----
    max_g sum_v Pr[f = v] |E[g (y - f) | f = v]| with f the rounded score (Discretization-free multicalibration,
    Definition 3.2).

    Examples
    --------
    >>> discretized_error([0, 1, 1, 1], [0.5, 0.5, 0.5, 0.5], [[1, 0], [1, 0], [0, 1], [0, 1]])
    0.25
    """
    if isinstance(m, bool) or not isinstance(m, (int, np.integer)) or m < 1:
        raise ArgumentError(f"m must be a whole number of at least 1; got {m!r}", hint="10, 20, 50 or 100")
    names, indicators, codes = _groups(groups, len(np.atleast_1d(np.asarray(y))))
    scored(y, p, weight)  # refuses what is no probability: rounding would hide it
    if indicators is None:
        indicators = codes[:, None] == np.arange(len(names))
    return float(np.max(k1(y, discretize(p, m), indicators, weight)))
