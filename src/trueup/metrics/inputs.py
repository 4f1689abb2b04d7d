"""Validation of the arrays that measures take: outcomes, scores, weights, points and group labels."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trueup.data.columns import check_aligned
from trueup.data.values import MAX_VALUE, MAX_WEIGHT, SUM_TOLERANCE, describe_rows
from trueup.errors import DataError
from trueup.kernels.threads import Workers

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from trueup._types import AnyArray, BoolArray, FloatArray, IntArray

ROWS = 50_000  # of points that a thread validates at a time


class Scored(NamedTuple):
    """Outcomes, scores and weights as float64 arrays of equal length, not to be modified."""

    y: FloatArray
    p: FloatArray
    w: FloatArray


def as_floats(values: ArrayLike, name: str) -> FloatArray:
    """Return ``values``, of any shape, as a float64 array; errors call it ``name``."""
    if isinstance(values, np.ndarray) and values.dtype.kind == "c":
        raise DataError(f"{name} must hold real numbers; got {values.dtype}", hint="pass its real part: .real")
    try:
        return np.asarray(values, np.float64)
    except (TypeError, ValueError) as error:
        hint = "convert it first; of several classes, y is the index of the column of p: np.searchsorted(classes, y)"
        raise DataError(f"{name} must hold numbers ({error})", hint=hint if name == "y" else "convert it first") from error


def reject_rows(bad: BoolArray, rule: str, values: AnyArray, hint: str, spec: str = "g") -> None:
    """Raise if any row is ``bad``; the message states the rule, the first bad value and its row."""
    if bad.any():
        raise DataError(f"{rule}; got {values[bad][0]:{spec}} {describe_rows(bad)}", hint=hint)


def validate_array(values: ArrayLike, name: str, largest: float = math.inf) -> FloatArray:
    """Return a one-dimensional array of finite numbers of at most ``largest`` in absolute value."""
    array = as_floats(values, name)
    if array.ndim != 1:
        several = "log_loss, brier, top_label_ece, classwise_ece and ecce_classes take scores of several classes"
        raise DataError(
            f"{name} must be one-dimensional; got shape {array.shape}",
            hint=several if name == "p" and array.ndim == 2 and array.shape[1] > 1 else "pass one value per row",
        )
    bad = ~np.isfinite(array) if math.isinf(largest) else ~(np.abs(array) <= largest)
    limit = "" if math.isinf(largest) else f" and at most {largest:g} in absolute value"
    reject_rows(bad, f"{name} must be finite{limit}", array, "leave those rows out, or impute them first")
    return array


def validate_scores(
    y: ArrayLike, p: ArrayLike, weight: ArrayLike | None = None, *, real: bool = False, largest: float = math.inf
) -> Scored:
    """Validate outcomes, scores and weights, and drop rows of weight 0.

    Outcomes and scores lie in [0, 1], or are any finite numbers if ``real``. Weights are 1 by default.
    """
    data = validate_columns(y, p, weight, largest)
    if not real:
        hint = "outcomes are 0, 1 or between; scores are probabilities, not logits or percentages"
        for values, name in ((data.y, "y"), (data.p, "p")):
            check_unit_interval(values, name, hint)
    keep = data.w > 0
    return data if keep.all() else Scored(*(column[keep] for column in data))


def validate_columns(y: ArrayLike, p: ArrayLike, weight: ArrayLike | None, largest: float = math.inf) -> Scored:
    """Validate finite y, p and weights of equal length, keeping rows of weight 0."""
    check_aligned({"y": y, "p": p, "weight": weight})
    ys, ps = validate_array(y, "y", largest), validate_array(p, "p", largest)
    ws = np.ones(len(ys)) if weight is None else validate_array(weight, "weight")
    if not len(ys) == len(ps) == len(ws):
        lengths = f"{len(ys):,} and {len(ps):,}" + ("" if weight is None else f" and {len(ws):,}")
        message = f"outcomes, scores and weights must have equal length; got {lengths}"
        raise DataError(message, hint="pass one entry per row")
    if not len(ys):
        raise DataError("the arrays are empty", hint="a measure needs at least one row")
    return Scored(ys, ps, validate_weights(ws))


def check_unit_interval(values: FloatArray, name: str, hint: str) -> None:
    """Raise unless all values lie in [0, 1]."""
    reject_rows((values < 0) | (values > 1), f"{name} must lie in [0, 1]", values, hint, ".10g")


def validate_weights(w: FloatArray) -> FloatArray:
    """Validate weights, and rescale them if their powers would overflow or underflow."""
    reject_rows(w < 0, "weight must not be negative", w, "give rows to be left out weight 0")
    if not w.any():
        raise DataError(f"the weights are all zero ({len(w):,} rows)", hint="leave weight out to count rows equally")
    largest = float(w.max())
    # Third powers of such weights would overflow or underflow. A power of two changes nothing but the unit.
    return w if 1 / MAX_WEIGHT <= largest <= MAX_WEIGHT else np.ldexp(w, -math.frexp(largest)[1])


def validate_class_scores(y: ArrayLike, p: ArrayLike, weight: ArrayLike | None = None) -> Scored:
    """Validate class indices, scores of shape (n, k) and weights, and drop rows of weight 0."""
    check_aligned({"y": y, "p": p, "weight": weight})
    matrix = as_floats(p, "p")
    if matrix.ndim != 2 or matrix.shape[1] < 2:
        hint = "for one score per row use ece"
        raise DataError(f"p must have one column per class, two or more; got shape {matrix.shape}", hint=hint)
    # Row numbers instead of scores: they come back for the rows that are kept.
    kept = validate_scores(y, np.arange(len(matrix)), weight, real=True)
    total, least = matrix.sum(axis=1), matrix.min(axis=1)
    percentages = "divide percentages by 100; classes that do not exclude each other are measured one by one, with ece"
    for bad, rule, values, hint in (
        (~np.isfinite(matrix).all(axis=1), "p must be finite", total, "leave those rows out"),
        (least < 0, "p must not be negative", least, "pass logits through softmax"),
        (np.abs(total - 1) > SUM_TOLERANCE, "the probabilities of a row must add up to 1", total, percentages),
    ):
        reject_rows(np.asarray(bad), rule, values, hint, ".6g")
    index, classes = kept.p.astype(np.int64), matrix.shape[1]
    label = np.zeros(len(matrix))
    label[index] = kept.y
    outside = (label < 0) | (label >= classes) | (label != np.floor(label))
    hint = "pass the column of p that belongs to each row's class"
    reject_rows(outside, f"y must hold class indices 0 to {classes - 1}", label, hint)
    return Scored(kept.y, matrix if len(index) == len(matrix) else matrix[index], kept.w)


def validate_points(values: ArrayLike, name: str) -> FloatArray:
    """Return finite coordinates of shape (n, d) or (n,) as a C-ordered array of shape (n, d)."""
    try:
        array = np.asarray(values)
    except ValueError as error:  # rows of different lengths
        raise DataError(f"{name} must hold rows of equal length ({error})", hint="one column per coordinate") from error
    if array.dtype.kind == "O" and array.size and not any(isinstance(value, (str, bytes)) for value in array.flat):
        array = as_floats(array, name)
    if array.dtype.kind not in "biuf" and array.size:
        raise DataError(
            f"{name} must hold numbers; got {array.dtype} such as {array.flat[0]!r:.60}",
            hint='encode categories as numbers first, one column per category; group labels go with kernel="group"',
        )
    if array.ndim not in (1, 2) or (array.ndim == 2 and not array.shape[1]):
        raise DataError(f"{name} must have shape (n, d) or (n,), d at least 1; got {array.shape}", hint="one row per point")
    points = np.ascontiguousarray(array[:, None] if array.ndim == 1 else array, np.float64)
    # The extremes show whether all values are valid; rows are inspected only if not.
    parts = [points[start : start + ROWS] for start in range(0, len(points), ROWS)]
    low_high = np.array(Workers().map(lambda part: (part.min(), part.max()), parts))
    if points.size and not (low_high[:, 0].min() >= -MAX_VALUE and low_high[:, 1].max() <= MAX_VALUE):
        bad: BoolArray = np.asarray(~(np.abs(points) <= MAX_VALUE).all(axis=1))
        row = points[bad][0]
        value = row[~(np.abs(row) <= MAX_VALUE)][:1]
        rule = f"{name} must lie within {MAX_VALUE:g} of 0" if np.isfinite(value) else f"{name} must be finite"
        reject_rows(bad, rule, np.broadcast_to(value, len(bad)), "leave those rows out, or impute them first")
    return points


def as_labels(groups: ArrayLike) -> AnyArray:
    """Return an array of the labels unchanged: NumPy would turn lists of mixed types into text, and dates into numbers."""
    if isinstance(groups, (list, tuple)) and not any(isinstance(item, (list, tuple, np.ndarray)) for item in groups):
        labels = np.empty(len(groups), object)
        labels[:] = groups
        return labels
    array = np.asarray(groups)
    return array.astype("datetime64[us]").astype(object) if array.dtype.kind == "M" else array


def encode_labels(labels: AnyArray) -> tuple[tuple[Any, ...], IntArray]:
    """Return the distinct labels, sorted, with None last for missing ones, and the index of each row's label."""
    index: dict[Any, int] = {}
    missing = {"NoneType", "NAType", "NaTType"}
    values = (None if type(value).__name__ in missing or value != value else value for value in labels.tolist())
    codes = np.array([index.setdefault(value, len(index)) for value in values], np.int64)
    try:
        names = sorted(index, key=lambda name: (name is None, 0 if name is None else name))
    except TypeError:  # labels of several types have no order of their own
        names = sorted(index, key=lambda name: (name is None, type(name).__name__, str(name)))
    rank = np.empty(len(names), np.int64)
    rank[[index[name] for name in names]] = np.arange(len(names))
    return tuple(names), rank[codes]


def validate_indicators(groups: AnyArray) -> BoolArray:
    """Return group indicators of shape (n, g) as booleans."""
    if not groups.shape[1]:
        raise DataError("groups has no columns", hint="pass at least one column")
    if not np.isin(groups, (0, 1)).all():
        hint = "pass labels as a one-dimensional array"
        raise DataError("groups as indicators must be 0 and 1, or booleans", hint=hint)
    return groups.astype(bool)
