"""Feature maps: from the columns of a table to points with meaningful distances.

The kernel of local calibration depends on distances only, so that gamma is meaningless without the scaling of the features.
A `FeatureMap` scales each column, optionally rotates them to principal components, and applies one common factor that makes
the mean distance of two random rows 1: gamma is then a share of that distance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from trueup._validate import check_choice, check_integer
from trueup.data.frame import MAX_VALUE
from trueup.errors import DataError
from trueup.metrics.inputs import validate_array, validate_points, validate_weights

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from trueup._types import FloatArray


Scaling = Literal["deviation", "range", "none"]
BLOCK = 4096  # rows rotated at a time: they stay in the cache, and their number changes no bit
TIE = 1e-6  # entries of a component within this of the largest count as equal when its sign is chosen


@dataclass(frozen=True, eq=False, repr=False)
class FeatureMap:
    """A fitted map from the columns X to points: ((X - center) / scale) @ rotation * unit.

    Parameters
    ----------
    center, scale : ndarray, shape (columns,)
    rotation : ndarray, shape (columns, d), optional
        The principal components, one per column; None leaves the columns as they are.
    unit : float
        The final common factor.

    Notes
    -----
    The point of a row does not depend on other rows, to the last bit.
    """

    center: FloatArray
    scale: FloatArray
    rotation: FloatArray | None
    unit: float

    @property
    def dimensions(self) -> int:
        """Number of coordinates of a point."""
        return len(self.center) if self.rotation is None else int(self.rotation.shape[1])

    def transform(self, X: ArrayLike) -> FloatArray:
        """Return the points, shape (n, d), of rows with the columns of the fit.

        Examples
        --------
        >>> fit_features([[0.0], [1.0]], scaling="none").transform([3.0]).tolist()
        [[6.0]]
        """
        rows = validate_points(X, "X")
        if rows.shape[1] != len(self.center):
            raise DataError(
                f"X must have the {len(self.center)} columns of the fit; got {rows.shape[1]}", hint="in the same order"
            )
        scaled = (rows - self.center) / self.scale
        points = scaled if self.rotation is None else _rotate(scaled, self.rotation)
        points *= self.unit
        return points

    def __repr__(self) -> str:
        kind = "columns" if self.rotation is None else "principal components"
        kept = f"{self.dimensions:,} {kind if self.dimensions != 1 else kind[:-1]}"
        source = "" if self.rotation is None else f" of {len(self.center):,} columns"
        return f"<FeatureMap to {kept}{source}, times {self.unit:.4g}>"


def fit_features(
    X: ArrayLike,
    *,
    components: int | None = None,
    scaling: Scaling = "deviation",
    weight: ArrayLike | None = None,
    unit: bool = True,
) -> FeatureMap:
    """Fit a feature map.

    Parameters
    ----------
    X : array-like, shape (n, columns) or (n,)
        Finite numbers.
    components : int, optional
        Rotate the scaled columns to this many principal components; by default they stay as they are. Components of equal
        variance have no unique direction: the result then depends on rounding.
    scaling : {"deviation", "range", "none"}
        What each column is divided by: its standard deviation, the width of its range, or nothing. A constant column is
        divided by 1.
    weight : array-like, shape (n,), optional
        A weight of 2 counts the row twice; a row of weight 0 has no influence.
    unit : bool
        Whether to multiply by a common factor that makes the mean of |phi - phi'|_1 / d over two rows of the fit, drawn
        with replacement by their weights, equal to 1. Gamma is then a share of the distance between two random rows. False
        leaves distances as they are, as for the raw embeddings of the paper; so do rows that are all equal.

    Notes
    -----
    The mean distance is exact, computed per coordinate from the sorted values in O(n log n).

    Examples
    --------
    >>> features = fit_features([[0.0, 5.0], [2.0, 5.0], [4.0, 5.0]])
    >>> features
    <FeatureMap to 2 columns, times 1.837>
    >>> features.transform([[0.0, 5.0], [2.0, 5.0]]).round(3).tolist()
    [[-2.25, 0.0], [0.0, 0.0]]
    """
    check_choice("scaling", scaling, ("deviation", "range", "none"))
    rows = validate_points(X, "X")
    if not len(rows):
        raise DataError("X has no rows", hint="a feature map is fitted on at least one row")
    w = np.ones(len(rows)) if weight is None else validate_array(weight, "weight")
    if len(w) != len(rows):
        raise DataError(f"X and weight must have equal length; got {len(rows)} and {len(w)}", hint="one entry per row")
    w = validate_weights(w)
    w = w / w.max()
    rows, w = (rows, w) if w.all() else (rows[w > 0], w[w > 0])
    shape = f"there are {rows.shape[0]:,} rows of {rows.shape[1]:,} columns"
    check_integer("components", components, 1, min(rows.shape), optional=True, hint=shape)
    center, scale = _scaling(rows, w, scaling, plain=components is None)
    scaled = (rows - center) / scale
    rotation = None if components is None else _components(scaled, w, int(components))
    points = scaled if rotation is None else _rotate(scaled, rotation)
    distance = _mean_distance(points, w) if unit else 0.0
    return FeatureMap(center, scale, rotation, 1.0 / distance if distance * MAX_VALUE > 1 else 1.0)


def _scaling(rows: FloatArray, w: FloatArray, scaling: Scaling, *, plain: bool) -> tuple[FloatArray, FloatArray]:
    """Return the center and the scale of each column; 0 and 1 if columns stay as they are."""
    low, high = rows.min(axis=0), rows.max(axis=0)
    ones = np.ones(rows.shape[1])
    if scaling == "none" and plain:
        return np.zeros(rows.shape[1]), ones
    # The mean of equal values is that value, in spite of rounding.
    center = np.clip(_mean(rows, w), low, high)
    if scaling == "none":
        return center, ones
    width = high - low
    if scaling == "deviation":
        # In units of the range, so that no square underflows or overflows.
        inner = np.where(width > 0, width, 1.0)
        width = inner * np.sqrt(_mean(((rows - center) / inner) ** 2, w))
    return center, np.where(high > low, width, 1.0)


def _mean(values: FloatArray, w: FloatArray) -> FloatArray:
    return np.asarray((w @ values) / w.sum())


def _components(scaled: FloatArray, w: FloatArray, components: int) -> FloatArray:
    """Return the directions of largest variance, one per column, each with its largest entry positive."""
    centred = scaled - _mean(scaled, w)
    centred *= np.sqrt(w / w.sum())[:, None]
    if len(centred) <= centred.shape[1]:
        rotation = np.linalg.svd(centred, full_matrices=False)[2][:components].T
    else:
        rotation = np.linalg.eigh(centred.T @ centred)[1][:, ::-1][:, :components]
    size = np.abs(rotation)
    first = np.argmax(size >= (1 - TIE) * size.max(axis=0), axis=0)
    signs = np.where(rotation[first, np.arange(components)] < 0, -1.0, 1.0)
    return np.ascontiguousarray(rotation * signs)


def _rotate(scaled: FloatArray, rotation: FloatArray) -> FloatArray:
    """Multiply by the rotation column by column: the summation order of a matrix product depends on its shape."""
    points = np.zeros((len(scaled), rotation.shape[1]))
    for start in range(0, len(scaled), BLOCK):
        columns = np.ascontiguousarray(scaled[start : start + BLOCK].T)
        out = points[start : start + BLOCK]
        term = np.empty_like(out)
        for column, direction in zip(columns, rotation, strict=True):
            np.multiply(column[:, None], direction, out=term)
            out += term
    return points


def _mean_distance(points: FloatArray, w: FloatArray) -> float:
    """Return the mean of |a - b|_1 / d over two rows drawn by their weights.

    The gap between two adjacent values of a coordinate separates the weight C below from W - C above: the mean is
    2 sum gap C (W - C) / W^2.
    """
    total, equal = 0.0, bool((w == w[0]).all())
    for column in points.T:
        # With equal weights the order is not needed: sorting values is faster.
        order = None if equal else np.argsort(column, kind="stable")
        rising = np.sort(column) if order is None else column[order]
        below = np.arange(1.0, len(w) + 1) if order is None else np.cumsum(w[order])
        share = below[:-1] / below[-1]
        total += 2.0 * float(np.sum(np.diff(rising) * share * (1.0 - share)))
    return total / len(points.T)
