"""Feature maps: from the columns of a table to points whose distances mean something.

The kernel of local calibration sees nothing but distances, so gamma means nothing without the scaling of the features. A
`FeatureMap` scales each column, turns them by principal components if asked, and ends with one common factor that makes the
distance of two rows drawn at random 1 on average: gamma is then a share of that distance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from trueup._validate import check_choice
from trueup.data.checks import MAX_VALUE, describe_rows
from trueup.errors import ArgumentError, DataError
from trueup.metrics.inputs import checked_weights, numbers

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from trueup._types import BoolArray, FloatArray


Scaling = Literal["deviation", "range", "none"]
BLOCK = 4096  # rows turned at a time: they stay in the cache, and their number changes no bit
ALIKE = 1e-6  # entries of a component so nearly as large as the largest count as equal where its sign is chosen


@dataclass(frozen=True, eq=False, repr=False)
class FeatureMap:
    """A fitted map from the columns X to points: ((X - center) / scale) @ rotation * unit.

    Parameters
    ----------
    center, scale : ndarray, shape (columns,)
    rotation : ndarray, shape (columns, d), optional
        The principal components, one a column; None leaves the columns as they are.
    unit : float
        The common factor that comes last.

    Notes
    -----
    A row's point depends on no other row, to the last bit.
    """

    center: FloatArray
    scale: FloatArray
    rotation: FloatArray | None
    unit: float

    @property
    def dimensions(self) -> int:
        """The number of coordinates of a point."""
        return len(self.center) if self.rotation is None else int(self.rotation.shape[1])

    def transform(self, X: ArrayLike) -> FloatArray:
        """Give the points, (n, d), of rows with the columns of the fit.

        Examples
        --------
        >>> fit_features([[0.0], [1.0]], scaling="none").transform([3.0]).tolist()
        [[6.0]]
        """
        rows = as_points(X, "X")
        if rows.shape[1] != len(self.center):
            raise DataError(
                f"X must have the {len(self.center)} columns of the fit; got {rows.shape[1]}", hint="in the same order"
            )
        scaled = (rows - self.center) / self.scale
        points = scaled if self.rotation is None else _turn(scaled, self.rotation)
        points *= self.unit
        return points

    def __repr__(self) -> str:
        made = "columns" if self.rotation is None else "principal components"
        kept = f"{self.dimensions:,} {made if self.dimensions != 1 else made[:-1]}"
        whole = "" if self.rotation is None else f" of {len(self.center):,} columns"
        return f"<FeatureMap to {kept}{whole}, times {self.unit:.4g}>"


def fit_features(
    X: ArrayLike, *, components: int | None = None, scaling: Scaling = "deviation", weight: ArrayLike | None = None,
    unit: bool = True,
) -> FeatureMap:  # fmt: skip
    """Fit a feature map.

    Parameters
    ----------
    X : array-like, shape (n, columns) or (n,)
        Finite numbers.
    components : int, optional
        Turn the scaled columns to this many principal components; by default they stay as they are. Components of equal
        variance have no direction of their own: which one is found then depends on rounding.
    scaling : {"deviation", "range", "none"}
        What each column is divided by: its standard deviation, the width of its range, or nothing. A constant column is
        divided by 1; no two rows of the fit differ in it.
    weight : array-like, shape (n,), optional
        A weight of 2 is the row twice; a row of weight 0 has no influence.
    unit : bool
        Whether to end with one common factor that makes the mean of |phi - phi'|_1 / d over two rows of the fit, drawn
        one after the other with their weights, equal to 1. It is what gives gamma its meaning: a share of the distance
        between two rows drawn at random. False leaves distances as they are, as for the raw embeddings of the paper; so
        do rows that are all equal.

    Notes
    -----
    The mean distance is exact: coordinate by coordinate, over the sorted values, in O(n log n).

    Examples
    --------
    >>> features = fit_features([[0.0, 5.0], [2.0, 5.0], [4.0, 5.0]])
    >>> features
    <FeatureMap to 2 columns, times 1.837>
    >>> features.transform([[0.0, 5.0], [2.0, 5.0]]).round(3).tolist()
    [[-2.25, 0.0], [0.0, 0.0]]
    """
    check_choice("scaling", scaling, ("deviation", "range", "none"))
    rows = as_points(X, "X")
    if not len(rows):
        raise DataError("X has no rows", hint="a feature map is fitted to at least one row")
    w = _weights(weight, len(rows))
    rows, w = (rows, w) if w.all() else (rows[w > 0], w[w > 0])
    if components is not None:
        _check_components(components, rows.shape)
    center, scale = _scaling(rows, w, scaling, plain=components is None)
    scaled = (rows - center) / scale
    rotation = None if components is None else _components(scaled, w, int(components))
    points = scaled if rotation is None else _turn(scaled, rotation)
    distance = _mean_distance(points, w) if unit else 0.0
    return FeatureMap(center, scale, rotation, 1.0 / distance if distance * MAX_VALUE > 1 else 1.0)


def as_points(values: ArrayLike, name: str) -> FloatArray:
    """Check points: numbers, (n, d) or (n,) for d = 1, finite; in C order.

    Examples
    --------
    >>> as_points([1, 2, 3], "phi").shape
    (3, 1)
    """
    try:
        given = np.asarray(values)
    except ValueError as error:  # rows of different lengths
        raise DataError(f"{name} must hold rows of equal length ({error})", hint="one column a coordinate") from error
    if given.dtype.kind == "O" and given.size and not any(isinstance(one, (str, bytes)) for one in given.flat):
        try:
            given = given.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise DataError(f"{name} must hold numbers ({error})", hint="convert it first") from error
    if given.dtype.kind not in "biuf" and given.size:
        raise DataError(
            f"{name} must hold numbers; got {given.dtype} such as {given.flat[0]!r:.60}",
            hint='make numbers of categories first, one column a category; labels of groups go with kernel="group"',
        )
    if given.ndim not in (1, 2) or (given.ndim == 2 and not given.shape[1]):
        raise DataError(f"{name} must have shape (n, d) or (n,), d at least 1; got {given.shape}", hint="one row a point")
    points = np.ascontiguousarray(
        given.reshape(len(given), -1) if len(given) else given.reshape(0, _width(given)), np.float64
    )
    # Two numbers tell whether all is well; rows are looked at one by one only where it is not.
    if points.size and not (points.min() >= -MAX_VALUE and points.max() <= MAX_VALUE):
        bad: BoolArray = np.asarray(~(np.abs(points) <= MAX_VALUE).all(axis=1))
        row = points[bad][0]
        value = row[~(np.abs(row) <= MAX_VALUE)][0]
        rule = f"lie within {MAX_VALUE:g} of 0" if np.isfinite(value) else "be finite"
        raise DataError(
            f"{name} must {rule}; got {value:g} {describe_rows(bad)}", hint="leave those rows out, or fill the gaps"
        )
    return points


def _width(given: NDArray[np.generic]) -> int:
    """Give the number of columns of an array without rows."""
    return 1 if given.ndim == 1 else int(given.shape[1])


def _weights(weight: ArrayLike | None, rows: int) -> FloatArray:
    """Check weights; their unit is of no account."""
    if weight is None:
        return np.ones(rows)
    w = numbers(weight, "weight")
    if len(w) != rows:
        raise DataError(f"X and weight must be equally long; got {rows} and {len(w)}", hint="one entry a row")
    w = checked_weights(w)
    scaled: FloatArray = w / w.max()
    return scaled


def _check_components(components: int, shape: tuple[int, ...]) -> None:
    most = min(shape)
    if isinstance(components, bool) or not isinstance(components, (int, np.integer)) or not 1 <= components <= most:
        raise ArgumentError(
            f"components must be a whole number from 1 to {most}, or None; got {components!r}",
            hint=f"there are {shape[0]:,} rows of {shape[1]:,} columns",
        )


def _scaling(rows: FloatArray, w: FloatArray, scaling: Scaling, *, plain: bool) -> tuple[FloatArray, FloatArray]:
    """Give the center and the scale of each column; neither where columns stay as they are."""
    low, high = rows.min(axis=0), rows.max(axis=0)
    ones = np.ones(rows.shape[1])
    if scaling == "none" and plain:
        return np.zeros(rows.shape[1]), ones
    # The mean of equal values is that value, whatever rounding says.
    center = np.clip(_mean(rows, w), low, high)
    if scaling == "none":
        return center, ones
    width = high - low
    if scaling == "deviation":
        # In units of the range, so that no square vanishes or overflows.
        inner = np.where(width > 0, width, 1.0)
        width = inner * np.sqrt(_mean(((rows - center) / inner) ** 2, w))
    return center, np.where(high > low, width, 1.0)


def _mean(values: FloatArray, w: FloatArray) -> FloatArray:
    return np.asarray((w @ values) / w.sum())


def _components(scaled: FloatArray, w: FloatArray, components: int) -> FloatArray:
    """Give the directions of the largest variance, one a column, each with its largest entry positive."""
    centred = scaled - _mean(scaled, w)
    centred *= np.sqrt(w / w.sum())[:, None]
    if len(centred) <= centred.shape[1]:
        rotation = np.linalg.svd(centred, full_matrices=False)[2][:components].T
    else:
        rotation = np.linalg.eigh(centred.T @ centred)[1][:, ::-1][:, :components]
    size = np.abs(rotation)
    first = np.argmax(size >= (1 - ALIKE) * size.max(axis=0), axis=0)
    signs = np.where(rotation[first, np.arange(components)] < 0, -1.0, 1.0)
    return np.ascontiguousarray(rotation * signs)


def _turn(scaled: FloatArray, rotation: FloatArray) -> FloatArray:
    """Multiply by the rotation, column after column: a matrix product adds in an order that depends on the shape."""
    points = np.zeros((len(scaled), rotation.shape[1]))
    for start in range(0, len(scaled), BLOCK):
        columns = np.ascontiguousarray(scaled[start : start + BLOCK].T)
        out = points[start : start + BLOCK]
        part = np.empty_like(out)
        for column, direction in zip(columns, rotation, strict=True):
            np.multiply(column[:, None], direction, out=part)
            out += part
    return points


def _mean_distance(points: FloatArray, w: FloatArray) -> float:
    """Give the mean of |a - b|_1 / d over two rows drawn with their weights.

    Between two neighbours in the order of a coordinate lies what separates the C weight below from the W - C above:
    the mean is 2 sum gap C (W - C) / W^2.
    """
    total, alike = 0.0, bool((w == w[0]).all())
    for column in points.T:
        # Where rows count alike their order is of no account: sorted values are found sooner.
        order = None if alike else np.argsort(column, kind="stable")
        rising = np.sort(column) if order is None else column[order]
        below = np.arange(1.0, len(w) + 1) if order is None else np.cumsum(w[order])
        share = below[:-1] / below[-1]
        total += 2.0 * float(np.sum(np.diff(rising) * share * (1.0 - share)))
    return total / len(points.T)
