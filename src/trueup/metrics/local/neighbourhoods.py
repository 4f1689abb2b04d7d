"""What is asked of a local measure, checked once: rows, their bins and points, and where the measure is taken."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from trueup._validate import check_choice
from trueup.data.checks import describe_rows
from trueup.errors import ArgumentError, DataError
from trueup.kernels.laplace import EXACT, Sums, sums
from trueup.kernels.laplace.equal import as_bytes
from trueup.metrics.binned import _number
from trueup.metrics.features import as_points
from trueup.metrics.grouped import as_labels, labelled
from trueup.metrics.inputs import checked_weights, numbers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike

    from trueup._types import AnyArray, FloatArray, IntArray
    from trueup.metrics.binned import Strategy

    At = tuple[ArrayLike, ArrayLike]

Kernel = Literal["laplace", "group"]
LARGEST_SCALE = 1e200  # of a distance; times the largest that a point may hold it is still a number
SMALLEST = 1e-100  # of a weight beside the largest: its square is still a number, also where its kernel is tiny
MOST_BINS = 1_000_000  # each has an edge


class Options(NamedTuple):
    """How the sums are taken; see `trueup.metrics.local.lce`."""

    bins: int
    strategy: Strategy
    at: At | None
    leave_one_out: bool
    kernel: Kernel
    tolerance: float | None
    threads: int | None
    device: str


@dataclass(frozen=True, eq=False)
class Neighbourhoods:
    """Rows with weight, and the points asked about.

    ``rows`` are the positions of the rows with weight; ``cell`` is a row's bin, or its bin and group. ``weight`` is as
    given; ``relative`` is in units of a power of two near the largest of the cell, which no ratio of sums can tell.
    """

    confidence: FloatArray
    hit: FloatArray
    weight: FloatArray
    relative: FloatArray
    points: FloatArray
    cell: IntArray
    rows: IntArray
    asked: FloatArray
    asked_cell: IntArray
    asked_weight: FloatArray
    options: Options

    def scale(self, gamma: float) -> float:
        """Give what distances are multiplied by: 1 / (d gamma)."""
        return 1.0 / float(max(self.points.shape[1] * gamma, 1.0 / LARGEST_SCALE))

    def sums(self, columns: Sequence[FloatArray], scales: Sequence[float]) -> Sums:
        """Sum columns, the first of them weights, over the neighbourhood of each point asked about."""
        options = self.options
        stacked, steps = np.column_stack(columns), np.array(scales)
        told: dict[str, Any] = {
            "tolerance": EXACT if options.tolerance is None else options.tolerance,
            "threads": options.threads, "device": options.device,
        }  # fmt: skip
        if options.at is not None:
            return sums(self.points, stacked, self.cell, steps, at=(self.asked, self.asked_cell), **told)
        own = sums(self.points, stacked, self.cell, steps, own=not options.leave_one_out, **told)
        if len(self.rows) == len(self.asked):
            return own
        # Rows of weight 0 are asked about as if they were other points.
        rest = np.setdiff1d(np.arange(len(self.asked)), self.rows)
        others = sums(self.points, stacked, self.cell, steps, at=(self.asked[rest], self.asked_cell[rest]), **told)
        total = np.empty((len(steps), len(self.asked), stacked.shape[1]))
        shift = np.empty((len(steps), len(self.asked)))
        for at, part in ((self.rows, own), (rest, others)):
            total[:, at], shift[:, at] = part.total, part.shift
        return Sums(total, shift)

    def distinct(self, *, blind: bool) -> IntArray:
        """Give each point asked about the number of its neighbourhood, the same for points that share all neighbours.

        ``blind`` says that distances do not count.
        """
        if self.options.leave_one_out:
            return np.arange(len(self.asked))
        if blind:
            return self.asked_cell
        # Adding 0 makes one of the two zeros; whole rows are then compared as bytes.
        packed = as_bytes(np.column_stack([self.asked + 0.0, self.asked_cell]))
        return np.unique(packed, return_inverse=True)[1].astype(np.int64).ravel()


def ask(
    phi: ArrayLike, confidence: ArrayLike, hit: ArrayLike, weight: ArrayLike | None, options: Options
) -> Neighbourhoods:
    """Check everything but gamma."""
    _check_options(options)
    p, y = _shares(confidence, "confidence"), _shares(hit, "hit")
    w = np.ones(len(p)) if weight is None else numbers(weight, "weight")
    group = options.kernel == "group"
    points: AnyArray = _labels(phi, "phi") if group else as_points(phi, "phi")
    if not len(points) == len(p) == len(y) == len(w):
        lengths = ", ".join(str(len(one)) for one in (points, p, y, w)[: 3 if weight is None else 4])
        raise DataError(f"phi, confidence, hit and weight must be equally long; got {lengths}", hint="one entry a row")
    if not ((p > 0) & (p < 1)).any() and ((y > 0) & (y < 1)).any():
        raise DataError(
            "confidence and hit look swapped: every confidence is 0 or 1, and some hits lie between",
            hint="the order is phi, confidence, hit: probabilities first, then what came true",
        )
    w = checked_weights(w)
    asked, level = (points, p) if options.at is None else _other_points(options.at, points, group=group)
    # Other points are numbered along with the rows, as rows without weight: bins of equal mass have no other edges.
    both, masses = (p, w) if options.at is None else (np.append(p, level), np.append(w, np.zeros(len(level))))
    number = _number(both, masses, int(options.bins), options.strategy, real=False)
    if group:
        codes = labelled(points if options.at is None else np.append(points, asked))[1]
        number = np.unique(codes * int(options.bins) + number, return_inverse=True)[1].astype(np.int64)
        points, asked = np.zeros((len(p), 1)), np.zeros((len(level), 1))
    kept = np.flatnonzero(w > 0)
    cell = number[: len(p)]
    rows = points if len(kept) == len(points) else points[kept]
    return Neighbourhoods(
        p[kept], y[kept], w[kept], _relative(w[kept], cell[kept]), rows, cell[kept], kept, asked,
        cell if options.at is None else number[len(p) :], w if options.at is None else np.ones(len(level)), options,
    )  # fmt: skip


def check_gamma(gamma: float | None, kernel: Kernel) -> float:
    """Check gamma; labels of groups have none, and count alike as with an infinite one."""
    if kernel == "group":
        if gamma is not None:
            raise ArgumentError(
                f"gamma goes with the Laplace kernel; got {gamma!r}", hint='leave it out for kernel="group"'
            )
        return np.inf
    if gamma is None:
        raise ArgumentError(
            "the Laplace kernel needs gamma, which says how far a neighbourhood reaches",
            hint="in units of phi, a column: gamma=0.4 is 0.4 of the mean distance of two rows, if phi comes from "
            "fit_features; lce_curve shows the errors for many gammas, to choose one",
        )
    value = _real(gamma)
    if not value > 0:
        raise ArgumentError(
            f"gamma must be a number above 0; got {gamma!r}",
            hint="0.4 is 0.4 of the mean distance of two rows, if phi comes from fit_features",
        )
    return value


def _real(value: Any) -> float:
    """Read a number; NaN for anything else."""
    if isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool):
        with suppress(OverflowError):
            return float(value)
    return math.nan


def _check_options(options: Options) -> None:
    check_choice("kernel", options.kernel, ("laplace", "group"))
    check_choice("strategy", options.strategy, ("width", "mass"))
    check_choice("device", options.device, ("cpu", "cuda"))
    for name, value in (("bins", options.bins), ("threads", options.threads)):
        if name == "threads" and value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
            hint = "15 is usual, 5 for few rows" if name == "bins" else "leave it out to use all cores"
            raise ArgumentError(f"{name} must be a whole number of at least 1; got {value!r}", hint=hint)
    if options.bins > MOST_BINS:
        raise ArgumentError(f"bins must be at most {MOST_BINS:,}; got {options.bins}", hint="15 is usual, 5 for few rows")
    if options.tolerance is not None and not 0 < _real(options.tolerance) < 1:
        raise ArgumentError(
            f"tolerance must lie between 0 and 1, or be None; got {options.tolerance!r}", hint="None gives exact sums"
        )
    if options.leave_one_out and options.at is not None:
        raise ArgumentError("leave_one_out goes with the rows themselves, not with at", hint="no other point is a row")


def _shares(values: ArrayLike, name: str) -> FloatArray:
    """Check numbers in [0, 1]."""
    array = numbers(values, name)
    if not len(array):
        raise DataError(f"{name} is empty", hint="a measure needs at least one row")
    bad = (array < 0) | (array > 1)
    if bad.any():
        raise DataError(
            f"{name} must lie in [0, 1]; got {array[bad][0]:.10g} {describe_rows(bad)}",
            hint="confidences are probabilities; hit is 1 where the prediction came true: top_label gives both",
        )
    return array


def _labels(values: ArrayLike, name: str) -> AnyArray:
    """Check labels of groups: one a row."""
    labels = as_labels(values)
    labels = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
    if labels.ndim != 1:
        raise DataError(
            f'{name} must hold one label a row with kernel="group"; got shape {labels.shape}',
            hint="join several columns into one label first",
        )
    return labels.astype(object)


def _other_points(at: At, points: AnyArray, *, group: bool) -> tuple[AnyArray, FloatArray]:
    """Check the points and confidences of ``at``."""
    if not isinstance(at, (tuple, list)) or len(at) != 2:
        raise ArgumentError("at must be a pair (phi, confidence)", hint="a point's bin is that of its confidence")
    asked: AnyArray = _labels(at[0], "the phi of at") if group else as_points(at[0], "the phi of at")
    level = _shares(at[1], "the confidence of at")
    if len(asked) != len(level):
        raise DataError(
            f"the phi and the confidence of at must be equally long; got {len(asked)} and {len(level)}", hint="one a point"
        )
    if asked.shape[1:] != points.shape[1:]:
        raise DataError(
            f"the phi of at must have {points.shape[1]} columns, as phi has; got {asked.shape[1]}",
            hint="make both by the same feature map",
        )
    return asked, level


def _relative(w: FloatArray, cell: IntArray) -> FloatArray:
    """Divide weights by a power of two, so that the largest of each cell lies in [1/2, 1): squares do not overflow."""
    most = np.zeros(int(cell.max()) + 1)
    np.maximum.at(most, cell, w)
    return np.maximum(np.ldexp(w, -np.frexp(most)[1][cell]), SMALLEST)
