"""Neighbourhoods of local measures: validated rows, their bins and points, and the query points."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from trueup._validate import check_choice, check_fraction, check_integer, check_number
from trueup.errors import ArgumentError, DataError
from trueup.kernels.laplace import EXACT, Sums, sums
from trueup.kernels.laplace.summing import as_bytes
from trueup.metrics.binned import assign_bins
from trueup.metrics.inputs import (
    as_labels,
    check_unit_interval,
    encode_labels,
    validate_array,
    validate_points,
    validate_weights,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike

    from trueup._types import AnyArray, FloatArray, IntArray
    from trueup.metrics.binned import Strategy

    Query = tuple[ArrayLike, ArrayLike]

Kernel = Literal["laplace", "group"]
MAX_SCALE = 1e200  # of a distance: times the largest coordinate it is still finite
SMALLEST_WEIGHT = 1e-100  # relative to the largest: its square times a small kernel is still positive
MAX_BINS = 1_000_000


class Options(NamedTuple):
    """How the sums are computed; see `trueup.metrics.local.lce`."""

    bins: int = 15
    strategy: Strategy = "width"
    query: Query | None = None
    leave_one_out: bool = False
    kernel: Kernel = "laplace"
    tolerance: float | None = None
    threads: int | None = None
    device: str = "cpu"


@dataclass(frozen=True, eq=False)
class Neighbourhoods:
    """Rows with weight, and the query points.

    ``rows`` are the positions of the rows with weight; ``cell`` is a row's bin, or its bin and group. ``weight`` is
    relative to a power of two near the largest of the cell, which cancels in ratios of sums.
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
        """Return the factor of distances, 1 / (d gamma)."""
        return 1.0 / float(max(self.points.shape[1] * gamma, 1.0 / MAX_SCALE))

    def sums(self, columns: Sequence[FloatArray], scales: Sequence[float]) -> Sums:
        """Sum columns, the first of them weights, over the neighbourhood of each query point."""
        options = self.options
        stacked, steps = np.column_stack(columns), np.array(scales)
        tolerance = EXACT if options.tolerance is None else options.tolerance
        settings: dict[str, Any] = {"tolerance": tolerance, "threads": options.threads, "device": options.device}
        if options.query is not None:
            return sums(self.points, stacked, self.cell, steps, at=(self.query, self.query_cell), **settings)
        own = sums(self.points, stacked, self.cell, steps, own=not options.leave_one_out, **settings)
        if len(self.rows) == len(self.query):
            return own
        # Rows of weight 0 are query points without being rows.
        others = np.setdiff1d(np.arange(len(self.query)), self.rows)
        at = (self.query[others], self.query_cell[others])
        rest = sums(self.points, stacked, self.cell, steps, at=at, **settings)
        total = np.empty((len(steps), len(self.query), stacked.shape[1]))
        shift = np.empty((len(steps), len(self.query)))
        for index, part in ((self.rows, own), (others, rest)):
            total[:, index], shift[:, index] = part.total, part.shift
        return Sums(total, shift)

    def distinct(self, *, ignore_distance: bool) -> IntArray:
        """Return the neighbourhood number of each query point, equal for points that share all neighbours."""
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
    """Validate everything except gamma."""
    _check_options(options)
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
    cells = assign_bins(both, masses, int(options.bins), options.strategy)
    if options.kernel == "group":
        codes = encode_labels(points if options.query is None else np.append(points, query))[1]
        cells = np.unique(codes * int(options.bins) + cells, return_inverse=True)[1].astype(np.int64)
        points, query = np.zeros((len(p), 1)), np.zeros((len(level), 1))
    kept = np.flatnonzero(w > 0)
    cell = cells[: len(p)]
    # Weights relative to a power of two per cell: squares do not overflow.
    largest = np.zeros(int(cell[kept].max()) + 1)
    np.maximum.at(largest, cell[kept], w[kept])
    scaled = np.maximum(np.ldexp(w[kept], -np.frexp(largest)[1][cell[kept]]), SMALLEST_WEIGHT)
    return Neighbourhoods(
        p[kept],
        y[kept],
        scaled,
        points if len(kept) == len(points) else points[kept],
        cell[kept],
        kept,
        query,
        cell if options.query is None else cells[len(p) :],
        w if options.query is None else np.ones(len(level)),
        options,
    )


def check_gamma(gamma: float | None, kernel: Kernel) -> float:
    """Validate gamma; the group kernel has none, which is the same as an infinite one."""
    if kernel == "group":
        if gamma is not None:
            message = f"gamma belongs to the Laplace kernel; got {gamma!r}"
            raise ArgumentError(message, hint='leave it out for kernel="group"', parameter="gamma")
        return math.inf
    unit = "0.4 is 0.4 of the mean distance of two rows, if phi comes from fit_features"
    if gamma is None:
        raise ArgumentError(
            "gamma is required by the Laplace kernel: it is the reach of a neighbourhood",
            hint=f"in units of phi, per column: {unit}; lce_curve shows the errors for many gammas",
            parameter="gamma",
        )
    if not (isinstance(gamma, (float, np.floating)) and gamma == math.inf):
        check_number("gamma", gamma, 0, above=True, hint=unit)
    return float(gamma)


def _check_options(options: Options) -> None:
    check_choice("kernel", options.kernel, ("laplace", "group"))
    check_choice("strategy", options.strategy, ("width", "mass"))
    check_choice("device", options.device, ("cpu", "cuda"))
    check_integer("bins", options.bins, 1, MAX_BINS, hint="15 is common, 5 for few rows")
    check_integer("threads", options.threads, 1, optional=True, hint="leave it out to use all cores")
    check_fraction("tolerance", options.tolerance, optional=True, hint="None computes exact sums")
    if options.leave_one_out and options.query is not None:
        hint = "query points are not rows"
        raise ArgumentError("leave_one_out cannot be combined with query", hint=hint, parameter="leave_one_out")


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
