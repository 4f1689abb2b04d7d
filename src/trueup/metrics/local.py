"""Local calibration: the error of the confidence among similar rows of similar confidence.

Luo et al. (2022). The kernel depends on distances only, so that gamma is meaningless without the scaling of the features. A
`FeatureMap` scales each column, optionally rotates them to principal components, and applies one common factor that makes
the mean distance of two random rows 1 per column: gamma is then a share of that distance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from trueup._validate import check_choice, check_fraction, check_integer, check_number
from trueup.data.columns import check_aligned, frame_like
from trueup.data.values import MAX_VALUE
from trueup.errors import ArgumentError, DataError
from trueup.kernels.laplace import EXACT, Sums, as_bytes
from trueup.kernels.pairs import LAPLACE, check_device, kernel_scale, sums
from trueup.metrics.binned import Closed, Strategy, assign_bins
from trueup.metrics.inputs import (
    as_labels,
    check_unit_interval,
    encode_labels,
    validate_array,
    validate_class_scores,
    validate_points,
    validate_weights,
)
from trueup.metrics.result import Result

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import ArrayLike

    from trueup._types import AnyArray, FloatArray, IntArray

    Kernel = Literal["laplace", "gaussian", "group"] | Callable[[FloatArray, FloatArray], Any]
    Query = tuple[ArrayLike, ArrayLike]

MAX_SCALE = 1e200  # of a distance: times the largest coordinate it is still finite
SMALLEST_WEIGHT = 1e-100  # relative to the largest: its square times a small kernel is still positive
MAX_BINS = 1_000_000
Scaling = Literal["deviation", "range", "none"]
BLOCK = 4096  # rows rotated at a time: they stay in the cache, and their number changes no bit
TIE = 1e-6  # entries of a component within this of the largest count as equal when its sign is chosen
# Four per decade from 0.01 to 10, and one well beyond each end to show the limits.
GAMMAS = (0.001, *(10.0 ** (k / 4 - 2) for k in range(13)), 100.0)


class Options(NamedTuple):
    """The options that all local measures share; `lce` documents them."""

    bins: int = 15
    strategy: Strategy = "width"
    query: Query | None = None
    leave_one_out: bool = False
    kernel: Kernel = "laplace"
    tolerance: float | None = None
    threads: int | None = None
    device: str = "cpu"
    closed: Closed = "right"


@dataclass(frozen=True, eq=False)
class Neighbourhoods:
    """The rows of positive weight, and the query points at which local means are computed.

    ``rows`` are the indices of these rows in the input; ``cell`` is the bin of each row, with kernel "group" its bin and
    group. ``weight`` is divided by a power of two near the largest weight of the cell, which cancels in ratios of sums.
    """

    confidence: FloatArray
    hit: FloatArray
    weight: FloatArray
    points: FloatArray
    cell: IntArray
    rows: IntArray
    query: FloatArray
    query_cell: IntArray
    query_weight: FloatArray
    options: Options

    def scale(self, gamma: float) -> float:
        """Return the scale of the kernel exp(-scale * distance): 1 / (d gamma) for the Laplace kernel."""
        kernel = LAPLACE if self.options.kernel == "group" else self.options.kernel
        return kernel_scale(kernel, self.points.shape[1], gamma, MAX_SCALE)

    def sums(self, columns: Sequence[FloatArray], scales: Sequence[float]) -> Sums:
        """Return kernel-weighted sums of columns, the first of them weights, at each query point and scale."""
        options = self.options
        stacked, steps = np.column_stack(columns), np.array(scales)
        tolerance = EXACT if options.tolerance is None else options.tolerance
        settings: dict[str, Any] = {"threads": options.threads}
        if (kernel := LAPLACE if options.kernel == "group" else options.kernel) == LAPLACE:
            settings |= {"tolerance": tolerance, "device": options.device}
        if options.query is not None:
            return sums(kernel, self.points, stacked, self.cell, steps, at=(self.query, self.query_cell), **settings)
        own = sums(kernel, self.points, stacked, self.cell, steps, own=not options.leave_one_out, **settings)
        if len(self.rows) == len(self.query):
            return own
        # Rows of weight 0 are query points without being rows.
        others = np.setdiff1d(np.arange(len(self.query)), self.rows)
        at = (self.query[others], self.query_cell[others])
        rest = sums(kernel, self.points, stacked, self.cell, steps, at=at, **settings)
        place = np.argsort(np.append(self.rows, others))
        return Sums(*(np.concatenate(parts, axis=1)[:, place] for parts in zip(own, rest, strict=True)))

    def distinct(self, *, ignore_distance: bool) -> IntArray:
        """Return a number per query point, equal if all neighbours are the same: per cell if ``ignore_distance``."""
        if self.options.leave_one_out:
            return np.arange(len(self.query))
        if ignore_distance:
            return self.query_cell
        # Adding 0 makes the two zeros equal; rows are then compared as bytes.
        packed = as_bytes(np.column_stack([self.query + 0.0, self.query_cell]))
        return np.unique(packed, return_inverse=True)[1].astype(np.int64).ravel()


def read_neighbourhoods(
    phi: ArrayLike, confidence: ArrayLike, hit: ArrayLike, weight: ArrayLike | None, options: Options
) -> Neighbourhoods:
    """Validate the arguments of a local measure except gamma, and assign rows and query points to bins."""
    if not callable(options.kernel):
        check_choice("kernel", options.kernel, ("laplace", "gaussian", "group"))
    check_choice("strategy", options.strategy, ("width", "mass"))
    check_device(options.device, options.kernel)
    check_integer("bins", options.bins, 1, MAX_BINS, hint="15 is common, 5 for few rows")
    check_integer("threads", options.threads, 1, optional=True, hint="leave it out to use all cores")
    check_fraction("tolerance", options.tolerance, optional=True, hint="None computes exact sums")
    if options.leave_one_out and options.query is not None:
        hint = "query points are not rows"
        raise ArgumentError("leave_one_out cannot be combined with query", hint=hint, parameter="leave_one_out")
    check_aligned({"phi": phi, "confidence": confidence, "hit": hit, "weight": weight})
    p, y = _read_probabilities(confidence, "confidence"), _read_probabilities(hit, "hit")
    w = np.ones(len(p)) if weight is None else validate_array(weight, "weight")
    points = _read_points(phi, "phi", options.kernel)
    if not len(points) == len(p) == len(y) == len(w):
        lengths = ", ".join(str(len(column)) for column in (points, p, y, w)[: 3 if weight is None else 4])
        raise DataError(f"phi, confidence, hit and weight must have equal length; got {lengths}", hint="one entry per row")
    if not ((p > 0) & (p < 1)).any() and ((y > 0) & (y < 1)).any():
        raise DataError(
            "confidence and hit look swapped: every confidence is 0 or 1, and some hits lie between",
            hint="the order is phi, confidence, hit: probabilities first, then whether they came true",
        )
    w = validate_weights(w)
    query, level = (points, p) if options.query is None else _read_query(options.query, points, options.kernel)
    # Query points are binned with the rows, as rows of weight 0: bins of equal mass keep their edges.
    both, masses = (p, w) if options.query is None else (np.append(p, level), np.append(w, np.zeros(len(level))))
    cells = assign_bins(both, masses, int(options.bins), options.strategy, closed=options.closed)
    if options.kernel == "group":
        codes = encode_labels(points if options.query is None else np.append(points, query))[1]
        cells = np.unique(codes * int(options.bins) + cells, return_inverse=True)[1].astype(np.int64)
        points, query = np.zeros((len(p), 1)), np.zeros((len(level), 1))
    kept = np.flatnonzero(w > 0)
    cell = cells[: len(p)]
    query_cell, query_weight = (cell, w) if options.query is None else (cells[len(p) :], np.ones(len(level)))
    if len(kept) < len(w):
        p, y, w, points, cell = p[kept], y[kept], w[kept], points[kept], cell[kept]
    # Weights relative to a power of two per cell: squares do not overflow.
    scaled = np.full(len(w), 0.5)
    if weight is not None:
        largest = np.zeros(int(cell.max()) + 1)
        np.maximum.at(largest, cell, w)
        scaled = np.maximum(np.ldexp(w, -np.frexp(largest)[1][cell]), SMALLEST_WEIGHT)
    return Neighbourhoods(p, y, scaled, points, cell, kept, query, query_cell, query_weight, options)


def check_gamma(gamma: float | None, kernel: Kernel) -> float:
    """Validate and return gamma: infinity for the group kernel and 1 for a function, which have no gamma."""
    if kernel == "group" or callable(kernel):
        if gamma is not None:
            message = f"gamma belongs to the Laplace and the Gaussian kernel; got {gamma!r}"
            hint = (
                'leave it out for kernel="group"' if kernel == "group" else "leave it out; the function has its own reach"
            )
            raise ArgumentError(message, hint=hint, parameter="gamma")
        return 1.0 if callable(kernel) else math.inf
    unit = "0.4 is 0.4 of the mean distance of two rows, if phi comes from fit_features"
    if gamma is None:
        raise ArgumentError(
            "gamma is required by this kernel: it is the reach of a neighbourhood",
            hint=f"in units of phi, per column: {unit}; lce_curve shows the errors for many gammas",
            parameter="gamma",
        )
    if not (isinstance(gamma, (float, np.floating)) and gamma == math.inf):
        check_number("gamma", gamma, 0, above=True, hint=unit)
    return float(gamma)


def _read_probabilities(values: ArrayLike, name: str) -> FloatArray:
    array = validate_array(values, name)
    if not len(array):
        raise DataError(f"{name} is empty", hint="a measure needs at least one row")
    hint = "confidences are probabilities; hit is 1 where the prediction came true: top_label returns both"
    check_unit_interval(array, name, hint)
    return array


def _read_points(values: ArrayLike, name: str, kernel: Kernel) -> AnyArray:
    """Return points, or group labels for the group kernel."""
    if kernel != "group":
        return validate_points(values, name)
    labels = as_labels(values)
    labels = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
    if labels.ndim != 1:
        raise DataError(
            f'{name} must hold one label per row with kernel="group"; got shape {labels.shape}',
            hint="join several columns into one label first",
        )
    return labels.astype(object)


def _read_query(query: Query, points: AnyArray, kernel: Kernel) -> tuple[AnyArray, FloatArray]:
    if not isinstance(query, (tuple, list)) or len(query) != 2:
        raise ArgumentError(
            "query must be a pair (phi, confidence)",
            hint="the bin of a point is that of its confidence",
            parameter="query",
        )
    queried = _read_points(query[0], "the phi of query", kernel)
    level = _read_probabilities(query[1], "the confidence of query")
    if len(queried) != len(level):
        lengths = f"{len(queried)} and {len(level)}"
        raise DataError(f"the phi and the confidence of query must have equal length; got {lengths}", hint="one per point")
    if queried.shape[1:] != points.shape[1:]:
        raise DataError(
            f"the phi of query must have {points.shape[1]} columns, as phi has; got {queried.shape[1]}",
            hint="use the same feature map for both",
        )
    return queried, level


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
    closed: Closed = "right",
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
        distance 0. If it is infinite, all rows of the bin count equally. Its meaning depends on the scaling of phi: with
        `fit_features`, whose rows have a mean distance of d, it is a share of that distance. Required by the kernels
        "laplace" and "gaussian" (`lce_curve` helps to choose it), and not allowed with others.
    bins, strategy, closed
        Only rows in the same bin of confidence are neighbours; the bins are those of `trueup.metrics.bins`. Those of the
        paper are closed on the left.
    query : (phi, confidence), optional
        Other points at which to compute the error, instead of the rows. A point whose bin has no rows gets NaN.
    leave_one_out : bool
        Whether a row is excluded from its own neighbourhood. One that is alone in its bin then gets NaN.
    signed : bool
        Whether to keep the sign: positive if the confidence is too high.
    kernel : {"laplace", "gaussian", "group"} or function
        exp(-|phi - phi'|_1 / (d gamma)); exp(-|phi - phi'|_2^2 / (2 d gamma^2)); or 1 within a group and 0 between groups:
        the binned error group by group. A function of two arrays of points, (m, d) and (n, d), returns the (m, n)
        similarities, at least 0, as those of ``sklearn.metrics.pairwise`` do.
    tolerance : float, optional
        Permitted error of each value, for speed; by default sums are exact, with six digits or more.
    threads : int, optional
        All cores by default. Their number changes no bit.
    device : {"cpu", "auto", "cuda"}
        Where the sums are computed; "cuda" requires torch and a GPU, "auto" uses them if they are there and the CPU would
        take seconds. The last bits of a GPU's results may differ between calls.

    Returns
    -------
    ndarray
        One value per row, or per point of ``query``.

    Notes
    -----
    | sum_i w_i k_i (confidence_i - hit_i) | / sum_i w_i k_i over the rows i of the bin, including the row itself. As gamma
    tends to 0 only the nearest rows count, with equal weights; the row itself is the nearest unless it is left out. Noise
    alone makes it large if neighbours are few: see `local_errors`.

    References
    ----------
    Luo, Bhatnagar, Bai, Zhao, Wang, Xiong, Savarese, Ermon, Schmerling & Pavone (2022), "Local Calibration: Metrics and
    Recalibration", arXiv:2102.10809, equation 4.

    Examples
    --------
    >>> phi, confidence, hit = [0.0, 0.0, 1.0], [0.5, 0.5, 0.5], [1, 1, 0]
    >>> lce(phi, confidence, hit, gamma=0.1, signed=True).round(3)
    array([-0.5,  -0.5,   0.5])
    >>> lce(phi, confidence, hit, gamma=np.inf).round(3)
    array([0.167, 0.167, 0.167])
    """
    options = Options(bins, strategy, query, leave_one_out, kernel, tolerance, threads, device, closed)
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
    closed: Closed = "right",
) -> float:
    """Compute the maximum local calibration error: the largest `lce` of any point.

    Parameters as for `lce`, except ``signed``. Points without a value are left out; NaN if none has one.

    References
    ----------
    Luo et al. (2022), "Local Calibration: Metrics and Recalibration", arXiv:2102.10809, equation 5.

    Examples
    --------
    >>> mlce([0.0, 0.0, 1.0], [0.5, 0.5, 0.5], [1, 0, 0], gamma=0.001)
    0.5
    """
    options = Options(bins, strategy, query, leave_one_out, kernel, tolerance, threads, device, closed)
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
    closed: Closed = "right",
) -> float:
    """Compute the mean local calibration error: the weighted mean `lce` of the rows, or the plain mean over ``query``.

    Parameters as for `lce`, except ``signed``. Points without a value are left out; NaN if none has one.

    References
    ----------
    Luo et al. (2022), "Local Calibration: Metrics and Recalibration", arXiv:2102.10809.

    Examples
    --------
    >>> mean_lce([0.0, 0.0, 1.0], [0.5, 0.5, 0.5], [1, 0, 0], gamma=0.001)
    0.1666...
    """
    options = Options(bins, strategy, query, leave_one_out, kernel, tolerance, threads, device, closed)
    reach = check_gamma(gamma, kernel)
    rows = read_neighbourhoods(phi, confidence, hit, weight, options)
    return _average(rows, np.abs(_signed_errors(rows, [reach])[0]))


def _signed_errors(rows: Neighbourhoods, gammas: list[float]) -> FloatArray:
    """Return the signed errors, shape (gammas, query points); NaN for points without neighbours."""
    columns = (rows.weight, rows.weight * (rows.confidence - rows.hit))
    total = rows.sums(columns, [rows.scale(gamma) for gamma in gammas]).total
    with np.errstate(invalid="ignore"):
        return np.asarray(total[..., 1] / total[..., 0])


def _average(rows: Neighbourhoods, values: FloatArray) -> float:
    """Return the mean of the ``values`` that are not NaN, weighted by the weights of the query points."""
    used = np.isfinite(values) & (rows.query_weight > 0)
    return float(np.average(values[used], weights=rows.query_weight[used])) if used.any() else math.nan


@dataclass(frozen=True, eq=False, repr=False)
class LceCurve(Result):
    """The largest and the mean local calibration error for each ``gamma``.

    ``worst`` is the index of the point with the largest error (the first of equals; -1 if no point has one). ``mce`` is the
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
    kernel: Literal["laplace", "gaussian"] = "laplace",
    tolerance: float | None = None,
    threads: int | None = None,
    device: str = "cpu",
    closed: Closed = "right",
) -> LceCurve:
    """Compute `mlce` and `mean_lce` for many gammas in one pass over the distances.

    Parameters
    ----------
    gammas : array-like, optional
        Each above 0; by default a grid from 0.01 to 10, four per decade, with 0.001 and 100 to show the limits.

    Notes
    -----
    Other parameters as for `lce`, except ``gamma`` and ``signed``; ``kernel`` is "laplace" or "gaussian". Where the largest
    error is near 1, neighbourhoods are single rows; where it is near ``mce``, they are whole bins: a useful gamma lies
    between.

    References
    ----------
    Luo et al. (2022), "Local Calibration: Metrics and Recalibration", arXiv:2102.10809, figures 1 and 3.

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
    check_choice("kernel", kernel, ("laplace", "gaussian"))
    grid = [check_gamma(value, kernel) for value in values]
    rows = read_neighbourhoods(
        phi,
        confidence,
        hit,
        weight,
        Options(bins, strategy, query, leave_one_out, kernel, tolerance, threads, device, closed),
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
    """Fit a map from columns of numbers to the points ``phi`` of `lce`: scaled, optionally rotated, with one common unit.

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
    check_aligned({"X": X, "weight": weight})
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
    """Return center and scale of each column for this ``scaling``; "none" has center 0 if ``plain`` (not rotated later)."""
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
