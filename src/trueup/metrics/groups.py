"""Measures by group: any measure on the rows of each group, the multicalibration error, and errors over level sets.

Level sets: Globus-Harris, Harrison, Kearns, Roth and Sorrell (2023), "Multicalibration as boosting for regression",
Definition 2.1 (K2, and with h = 1 the mean squared calibration error), Definition 4.1 (rounding) and appendix A (K1, Kinf
and how they compare). Kinf is printed there without its absolute value, which is intended and used here. All of them
require a predictor with a finite range and many rows on each level v = f(x). If nearly every row has a score of its own, a
level is one row, its mean residual is the noise of that row, and the measures are uninformative: apply `discretize` to such
scores first.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, SupportsFloat

import numpy as np

from trueup._validate import check_integer
from trueup.data.columns import check_aligned, frame_like, to_jsonable
from trueup.errors import ArgumentError, DataError
from trueup.kernels import tally as sums
from trueup.kernels.tally import concatenate_tallies, sort_rows, tally_groups
from trueup.metrics.inputs import (
    as_floats,
    as_labels,
    encode_labels,
    reject_rows,
    validate_array,
    validate_indicators,
    validate_scores,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike

    from trueup._types import AnyArray, BoolArray, FloatArray, Int32Array, IntArray


@dataclass(frozen=True, eq=False, repr=False)
class GroupErrors:
    """One error per group.

    ``groups`` are the labels, sorted, with None last for rows without a label; ``values`` their errors, NaN where the
    measure is undefined; ``rows`` the number of rows with positive weight.
    """

    measure: str
    groups: tuple[Any, ...]
    values: FloatArray
    rows: IntArray

    @property
    def worst(self) -> tuple[Any, float]:
        """The label of the group with the largest error (the first of equals), and the error."""
        index = int(np.argmax(np.where(np.isnan(self.values), -np.inf, self.values)))
        return self.groups[index], float(self.values[index])

    def __repr__(self) -> str:
        group, value = self.worst
        rows, undefined = self.rows[self.groups.index(group)], int(np.isnan(self.values).sum())
        note = f", {undefined:,} undefined" if undefined else ""
        worst = f"{self.measure} is largest in group {group!r}: {value:.4g} ({rows:,} rows)"
        return f"<GroupErrors: {worst}; {len(self.groups):,} group{'' if len(self.groups) == 1 else 's'}{note}>"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, except for the labels, which stay as they are; non-finite numbers become None."""
        columns = {"values": to_jsonable(self.values), "rows": self.rows.tolist()}
        return {"measure": self.measure, "groups": list(self.groups), **columns}

    def to_frame(self, like: Any = None) -> Any:
        """Return columns group, value and rows, as a frame of the library of ``like``, or as a dict of arrays."""
        groups = np.empty(len(self.groups), object)
        groups[:] = self.groups
        return frame_like({"group": groups, "value": self.values.copy(), "rows": self.rows.copy()}, like)


def by_group(
    measure: Callable[..., SupportsFloat],
    y: ArrayLike,
    p: ArrayLike,
    groups: ArrayLike,
    weight: ArrayLike | None = None,
    **options: Any,
) -> GroupErrors:
    """Compute any measure ``measure(y, p, weight, **options)``, larger for worse, on the rows of each group.

    ``groups`` has one label per row: None and NaN form one group, and a group without weight is left out. Or it has
    indicators of shape (n, g): groups are then named by column index and may overlap. Other arguments are passed to the
    measure; p may have shape (n, k).

    Examples
    --------
    >>> from trueup.metrics.binned import mce
    >>> by_group(mce, [0, 1, 1, 1], [0.25, 0.25, 0.5, 0.75], ["a", "a", "b", "b"])
    <GroupErrors: mce is largest in group 'b': 0.5 (2 rows); 2 groups>
    """
    if not callable(measure):
        raise ArgumentError(
            f"measure must be a function; got {measure!r}", hint="pass metrics.ece, not its name", parameter="measure"
        )
    check_aligned({"y": y, "p": p, "groups": groups, "weight": weight})
    ys, ps, labels = np.asarray(y), np.asarray(p), as_labels(groups)
    ws = np.ones(len(ys)) if weight is None and ys.ndim else np.asarray(weight)
    if not labels.shape[:1] == ws.shape == ys.shape[:1] == ps.shape[:1] or labels.ndim not in (1, 2):
        shapes = ", ".join(str(array.shape) for array in (ys, ps, labels, ws))
        hint = "one entry per row"
        raise DataError(f"y, p, groups and weight must have equal length; got shapes {shapes}", hint=hint)
    kept = np.flatnonzero(ws != 0)
    if not len(kept):
        raise DataError("no row has a positive weight", hint="a measure needs at least one row")
    members: dict[Any, IntArray] = {}
    if labels.ndim == 2:
        columns = enumerate(validate_indicators(labels)[kept].T)
        members = {index: kept[column] for index, column in columns if column.any()}
        if not members:
            raise DataError("every group is empty", hint="at least one row must be in a group")
    else:
        names, codes = encode_labels(labels[kept])
        ends = np.cumsum(np.bincount(codes))[:-1]
        members = dict(zip(names, np.split(kept[np.argsort(codes, kind="stable")], ends), strict=True))
    values = np.empty(len(members))
    for index, (name, rows) in enumerate(members.items()):
        try:
            result = measure(ys[rows], ps[rows], None if weight is None else ws[rows], **options)
        except DataError as error:
            message = f"group {name!r} (rows counted within it): {error.message}"
            raise DataError(message, hint=error.hint) from error
        try:
            values[index] = float(result)
        except TypeError as error:
            raise ArgumentError(
                f"measure must return a number; got {type(result).__name__}",
                hint="select one of its values, as measure=lambda *rows: corp(*rows).miscalibration",
                parameter="measure",
            ) from error
    name = getattr(measure, "__name__", "error")
    return GroupErrors(name, tuple(members), values, np.array([len(rows) for rows in members.values()]))


@dataclass(frozen=True, eq=False)
class MulticalibrationError:
    """The largest ECCE-R among groups, each in units of its standard error (Guy et al. 2025).

    Attributes
    ----------
    sigma : float
        max_g R_g / sigma_g, with R_g the ECCE-R of group g and sigma_g = sqrt(sum w^2 p(1-p)) / W over its rows.
    absolute, relative : float
        ``sigma`` times the standard error over all rows; this over min(prevalence, 1 - prevalence), or NaN if that is 0.
    worst : object
        The worst group: its label, or its column index.
    groups : tuple
        The groups that have rows.
    by_group : ndarray
        R_g / sigma_g of each of them. The largest of many is not a test: see `trueup.audit` for one.
    """

    sigma: float
    absolute: float
    relative: float
    worst: Any
    groups: tuple[Any, ...]
    by_group: FloatArray

    def __repr__(self) -> str:
        count = f"{len(self.groups)} group{'' if len(self.groups) == 1 else 's'}"
        return f"<{self.sigma:.3g} sigma in group {self.worst!r} of {count}; {self.absolute:.3g} absolute>"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, except for the label of the worst group; non-finite numbers become None."""
        names = ("sigma", "absolute", "relative")
        return {name: to_jsonable(getattr(self, name)) for name in names} | {"worst": self.worst}


def multicalibration_error(
    y: ArrayLike, p: ArrayLike, groups: ArrayLike, weight: ArrayLike | None = None
) -> MulticalibrationError:
    """Compute the largest ECCE-R among groups in units of its standard error; see `MulticalibrationError`.

    Parameters
    ----------
    y, p : array-like, shape (n,)
        Outcomes and scores in [0, 1].
    groups : array-like
        Labels of shape (n,) (numbers are labels too), None or NaN for rows in no group; or indicators of shape (n, g),
        whose groups may overlap.
    weight : array-like, shape (n,), optional

    References
    ----------
    Guy, Haimovich, Linder, Okati, Perini, Tax & Tygert (2025), "Measuring Multi-calibration", arXiv:2506.11251.

    Examples
    --------
    >>> y, p = [0, 0, 1, 1], [0.5, 0.5, 0.5, 0.5]
    >>> multicalibration_error(y, p, [0, 0, 1, 1])
    <1.41 sigma in group 0 of 2 groups; 0.354 absolute>
    """
    check_aligned({"y": y, "p": p, "groups": groups})
    names, indicators, codes = _read_groups(groups, len(np.atleast_1d(np.asarray(y))))
    data = validate_scores(y, p, weight)
    # Row numbers instead of scores: they come back for the rows that are kept.
    kept = validate_scores(np.zeros(len(codes)), np.arange(len(codes)), weight, real=True).p.astype(np.int64)
    rows = sort_rows(data.y, data.p, None if weight is None else data.w, real=False)
    overall = tally_groups(rows, np.zeros(len(data.y), np.int32), 1)
    if indicators is None:
        tallied = tally_groups(rows, codes[kept], len(names))
    else:
        tallied = concatenate_tallies(
            [tally_groups(rows, np.where(column[kept], 0, -1).astype(np.int32), 1) for column in indicators.T]
        )
    used = np.flatnonzero(tallied.rows > 0)
    if not len(used):
        raise DataError("every group is empty", hint="at least one row must be in a group")
    names, tallied = tuple(names[index] for index in used), tallied.take(used)
    with np.errstate(invalid="ignore", divide="ignore"):
        sigma = np.where(tallied.span > 0, tallied.span / np.sqrt(tallied.state[:, sums.VARIANCE]), 0.0)
    worst = int(np.argmax(sigma))
    noise = math.sqrt(float(overall.state[0, sums.VARIANCE])) / float(overall.weight[0])
    rate = float((overall.expected[0] + overall.residual[0]) / overall.weight[0])
    rarer = min(rate, 1 - rate)
    absolute = math.inf if math.isinf(sigma[worst]) else float(sigma[worst]) * noise
    relative = absolute / rarer if rarer > 0 else math.nan
    return MulticalibrationError(float(sigma[worst]), absolute, relative, names[worst], names, sigma)


def _read_groups(groups: ArrayLike, rows: int) -> tuple[tuple[Any, ...], BoolArray | None, Int32Array]:
    """Return group names, indicators (n, g) or None for labels, and codes (n,) of labels, -1 for rows in no group."""
    labels = as_labels(groups)
    if labels.ndim not in (1, 2) or len(labels) != rows:
        raise DataError(
            f"groups must have shape ({rows},) or ({rows}, g); got {labels.shape}", hint="one entry, or line, per row"
        )
    if labels.ndim == 2:
        return tuple(range(labels.shape[1])), validate_indicators(labels), np.zeros(rows, np.int32)
    names, codes = encode_labels(labels)
    if names and names[-1] is None:
        names, codes = names[:-1], np.where(codes == len(names) - 1, -1, codes)
    if not names:
        raise DataError("every group is empty", hint="at least one row must be in a group")
    return names, None, codes.astype(np.int32)


def discretized_error(
    y: ArrayLike, p: ArrayLike, groups: ArrayLike, weight: ArrayLike | None = None, *, m: int = 10
) -> float:
    """Compute the multicalibration error of the score rounded to multiples of 1/m: the largest K1 over the groups.

    Parameters
    ----------
    groups : array-like
        As in `multicalibration_error`.
    m : int
        10, 20, 50 and 100 are common; the error of a useful score hardly depends on it.

    Notes
    -----
    max_g sum_v Pr[f = v] |E[g (y - f) | f = v]| with f the rounded score (Discretization-free multicalibration,
    Definition 3.2).

    References
    ----------
    Jin, Ding, Ngo & Wu (2025), "Discretization-free Multicalibration through Loss Minimization over Tree Ensembles",
    arXiv:2505.17435, definition 3.2.

    Examples
    --------
    >>> discretized_error([0, 1, 1, 1], [0.5, 0.5, 0.5, 0.5], [[1, 0], [1, 0], [0, 1], [0, 1]])
    0.25
    """
    check_integer("m", m, 1, hint="10, 20, 50 or 100")
    check_aligned({"y": y, "p": p, "groups": groups})
    names, indicators, codes = _read_groups(groups, len(np.atleast_1d(np.asarray(y))))
    validate_scores(y, p, weight)  # rounding would hide scores outside [0, 1]
    if indicators is None:
        indicators = codes[:, None] == np.arange(len(names))
    return float(np.max(k1(y, discretize(p, m), indicators, weight)))


def k1(y: ArrayLike, f: ArrayLike, h: ArrayLike, weight: ArrayLike | None = None) -> FloatArray:
    """Compute the mean over the level sets of f of the absolute mean of h (y - f), for each function h.

    K1(f, h) = sum_v Pr[f = v] |E[h (y - v) | f = v]|.

    Parameters
    ----------
    y : array-like, shape (n,)
        Outcomes: any finite numbers.
    f : array-like, shape (n,)
        Predictions with few distinct values (see the module, and `discretize`).
    h : array-like, shape (n, q) or (n,)
        One function per column, evaluated at the rows: group indicators, features, or any finite numbers.
    weight : array-like, shape (n,), optional
        A weight of 2 counts the row twice.

    Returns
    -------
    ndarray of float64, shape (q,)
        One value per function; one value if h has one dimension. Takes a sort of f and one pass over h.

    Notes
    -----
    K1 <= sqrt(K2) and Kinf <= K1 <= m Kinf for m levels; K2 <= K1 where |h| <= 1 and y, v lie in [0, 1].

    References
    ----------
    Globus-Harris, Harrison, Kearns, Roth & Sorrell (2023), "Multicalibration as Boosting for Regression",
    arXiv:2301.13767.

    Examples
    --------
    Half the rows on level .25 with mean residual +.25, half on .75 with -.25; the second function keeps the first level:

    >>> y, f = [0, 1, 0, 1], [0.25, 0.25, 0.75, 0.75]
    >>> k1(y, f, [[1, 1], [1, 1], [1, 0], [1, 0]])
    array([0.25 , 0.125])
    """
    _, gaps = _level_gaps(y, f, h, weight)
    return np.asarray(np.abs(gaps).sum(axis=1), np.float64)


def k2(y: ArrayLike, f: ArrayLike, h: ArrayLike, weight: ArrayLike | None = None) -> FloatArray:
    """Compute the mean over the level sets of f of the squared mean of h (y - f), for each function h.

    K2(f, h) = sum_v Pr[f = v] (E[h (y - v) | f = v])^2. Arrays and result as in `k1`.

    References
    ----------
    Globus-Harris, Harrison, Kearns, Roth & Sorrell (2023), "Multicalibration as Boosting for Regression",
    arXiv:2301.13767, definition 2.1.

    Examples
    --------
    >>> k2([0, 1, 0, 1], [0.25, 0.25, 0.75, 0.75], [[1, 1], [1, 1], [1, 0], [1, 0]])
    array([0.0625 , 0.03125])
    """
    share, gaps = _level_gaps(y, f, h, weight)
    return np.asarray((gaps * (gaps / share)).sum(axis=1), np.float64)


def kinf(y: ArrayLike, f: ArrayLike, h: ArrayLike, weight: ArrayLike | None = None) -> FloatArray:
    """Compute the largest absolute mean of h (y - f) on one level set of f, times its share of the rows, for each h.

    Kinf(f, h) = max_v Pr[f = v] |E[h (y - v) | f = v]|. Arrays and result as in `k1`.

    References
    ----------
    Globus-Harris, Harrison, Kearns, Roth & Sorrell (2023), "Multicalibration as Boosting for Regression",
    arXiv:2301.13767.

    Examples
    --------
    >>> kinf([0, 1, 0, 1], [0.25, 0.25, 0.75, 0.75], [[1, 1], [1, 1], [1, 0], [1, 0]])
    array([0.125, 0.125])
    """
    _, gaps = _level_gaps(y, f, h, weight)
    return np.asarray(np.abs(gaps).max(axis=1), np.float64)


def msce(y: ArrayLike, f: ArrayLike, weight: ArrayLike | None = None) -> float:
    """Compute the mean squared calibration error, which is K2 of the constant function 1.

    MSCE(f) = sum_v Pr[f = v] (E[y | f = v] - v)^2. Arrays as in `k1`.

    References
    ----------
    Globus-Harris, Harrison, Kearns, Roth & Sorrell (2023), "Multicalibration as Boosting for Regression",
    arXiv:2301.13767, section 7.

    Examples
    --------
    >>> msce([0, 1, 0, 1], [0.25, 0.25, 0.75, 0.75])
    0.0625
    """
    return float(k2(y, f, np.ones(len(validate_array(f, "f"))), weight)[0])


def covariance_error(y: ArrayLike, f: ArrayLike, h: ArrayLike, weight: ArrayLike | None = None) -> FloatArray:
    """Compute the mean over the level sets of f of the absolute covariance of h and y, for each function h.

    sum_v Pr[f = v] |E[(h - E[h | v]) (y - E[y | v]) | f = v]|: the largest value over the functions of a class is the
    alpha of covariance multicalibration (Gopalan, Kalai, Reingold, Sharan & Wieder 2022; definition E.4 of Globus-Harris et
    al. 2023). It does not depend on the values of the levels, only on which rows share one. Arrays and result as in `k1`.

    Notes
    -----
    If K2 is at most alpha for h and for the constant 1, and h^2 at most B, this is at most sqrt(alpha) (1 + sqrt(B)) (lemma
    E.5 there, whose proof uses K2 of the constant: it is in a class that is closed under affine transformations). For every
    convex loss that is L-Lipschitz, `trueup.decisions.omnipredict` is then within 2 alpha L of the best function of the
    class, with alpha the largest value of this function: see `trueup.decisions.omni_gap`.

    References
    ----------
    Gopalan, Kalai, Reingold, Sharan & Wieder (2022), "Omnipredictors", arXiv:2109.05389;
    Globus-Harris, Harrison, Kearns, Roth & Sorrell (2023), "Multicalibration as Boosting for Regression",
    arXiv:2301.13767, definition E.4, lemma E.5.

    Examples
    --------
    On the first level h and y are equal, with variance 1/4; on the second h is constant:

    >>> covariance_error([0, 1, 0, 1], [0.25, 0.25, 0.75, 0.75], [0, 1, 1, 1])
    array([0.125])
    """
    share, gaps = _level_gaps(y, f, h, weight)  # Pr[v] E[h (y - v) | v]
    functions = np.asarray(h, np.float64)
    functions = functions[:, None] if functions.ndim == 1 else functions
    ones = np.ones((len(functions), 1))
    _, (bias,) = _level_gaps(y, f, ones, weight)  # Pr[v] (E[y | v] - v)
    # Pr[v] E[h | v]: a level gap too, of an outcome that exceeds f by 1 everywhere.
    _, means = _level_gaps(validate_array(f, "f") + 1.0, f, functions, weight)
    return np.asarray(np.abs(gaps - means * (bias / share)).sum(axis=1), np.float64)


def discretize(f: ArrayLike, m: int) -> FloatArray:
    """Round predictions to the nearest of 0, 1/m, ..., 1, ties down.

    Parameters
    ----------
    f : array-like, shape (n,)
        Any finite numbers; those outside [0, 1] are clipped.
    m : int
        Number of steps, 1 or more: m + 1 levels.

    Returns
    -------
    ndarray of float64, shape (n,)
        A new array; levels are exactly k/m, so that equal levels are equal numbers.

    References
    ----------
    Globus-Harris, Harrison, Kearns, Roth & Sorrell (2023), "Multicalibration as Boosting for Regression",
    arXiv:2301.13767, definition 4.1.

    Examples
    --------
    >>> discretize([-0.2, 0.125, 0.13, 0.9], 4).tolist()
    [0.0, 0.0, 0.25, 1.0]
    """
    check_integer("m", m, 1, hint="10 to 100 levels are common")
    steps = np.ceil(np.clip(validate_array(f, "f"), 0.0, 1.0) * m - 0.5)
    return np.asarray((steps + 0.0) / m, np.float64)  # adding zero avoids a negative zero


def _level_gaps(y: ArrayLike, f: ArrayLike, h: ArrayLike, weight: ArrayLike | None) -> tuple[FloatArray, FloatArray]:
    """Return Pr[f = v] by level, shape (m,), and Pr[f = v] E[h (y - v) | f = v] by function and level, shape (q, m)."""
    check_aligned({"y": y, "f": f, "h": h, "weight": weight})
    predicted = validate_array(f, "f")  # first, so that an error names f
    outcome, value, mass = validate_scores(y, predicted, weight, real=True)
    # An array keeps its own type: indicators stay at one byte per row.
    functions: AnyArray = h if isinstance(h, np.ndarray) and h.dtype.kind in "bfiu" else as_floats(h, "h")
    if functions.ndim not in (1, 2) or len(functions) != len(predicted):
        message = f"h must have shape ({len(predicted)},) or ({len(predicted)}, q); got {functions.shape}"
        raise DataError(message, hint="pass one row per prediction, and one function per column")
    functions = functions[:, None] if functions.ndim == 1 else functions
    # Rows of weight 0 are dropped column by column, so that h is never copied as a whole.
    rows = slice(None) if len(outcome) == len(functions) else np.asarray(weight, np.float64) > 0
    levels, index = np.unique(value, return_inverse=True)
    mass = mass / mass.max()  # the sum of large weights must not overflow
    total = mass.sum()
    residual = mass * (outcome - value)
    gaps = np.empty((functions.shape[1], len(levels)))
    for column in range(functions.shape[1]):
        values = np.asarray(functions[:, column], np.float64)
        reject_rows(~np.isfinite(values), f"column {column} of h must be finite", values, "leave those rows out")
        gaps[column] = np.bincount(index, residual * values[rows], len(levels))
    return np.asarray(np.bincount(index, mass) / total, np.float64), gaps / total
