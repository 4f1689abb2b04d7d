"""Exact sums over the rows of a bin, weighted by a Gaussian kernel or by a kernel of the user's: all pairs, in blocks.

The interface is that of `trueup.kernels.laplace`: a kernel is exp(-scale * distance), where the distance of the Gaussian is
the squared Euclidean one. A kernel of the user's is a function of two arrays of points, (m, d) and (n, d), that returns the
(m, n) similarities; it is raised to the power ``scale``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from trueup._validate import check_choice
from trueup.errors import ArgumentError, DataError
from trueup.kernels import laplace
from trueup.kernels.laplace import Sums
from trueup.kernels.threads import Workers

if TYPE_CHECKING:
    from trueup._types import FloatArray, IntArray

GAUSSIAN, LAPLACE = "gaussian", "laplace"
DEVICES = ("cpu", "auto", "cuda")
BLOCK_NUMBERS = 2**22  # similarities computed at once
FEW_POINTS = 16  # a process that scores so few rows does not import scipy
SMALL_BLOCK = 128  # rows at a time, of which only the similarity to themselves is used


def check_device(device: str, kernel: Any) -> None:
    """Raise if there is no such ``device``, or if it does not sum this kernel."""
    check_choice("device", device, DEVICES)
    if device == "cuda" and not (isinstance(kernel, str) and kernel in (LAPLACE, "group")):
        raise ArgumentError(
            "the GPU sums the Laplace kernel only", hint="leave device out for other kernels", parameter="device"
        )


def kernel_scale(kernel: Any, dimensions: int, gamma: float, largest: float) -> float:
    """Return the scale of a kernel: 1/(d gamma), Gaussian 1/(2 d gamma^2), 1 for one of the user's; at most ``largest``."""
    if np.isinf(gamma):
        return 0.0
    if kernel == LAPLACE:
        return 1.0 / float(max(dimensions * gamma, 1.0 / largest))
    return 1.0 if kernel != GAUSSIAN else 1.0 / max(2.0 * dimensions * float(gamma) ** 2, 1.0 / largest)


def sums(
    kernel: Any, points: FloatArray, columns: FloatArray, bins: IntArray, scales: FloatArray, *,
    at: tuple[FloatArray, IntArray] | None = None, own: bool = True, threads: int | None = None, **settings: Any,
) -> Sums:  # fmt: skip
    """Sum the columns over the rows of each point's bin, weighted by a ``kernel``; see `trueup.kernels.laplace.sums`."""
    if isinstance(kernel, str) and kernel == LAPLACE:
        return laplace.sums(points, columns, bins, scales, at=at, own=own, threads=threads, **settings)
    if at is not None:
        return PairSources(kernel, points, columns, bins).at(*at, scales, threads)
    return PairSources(kernel, points, columns, bins).at(points, bins, scales, threads, own=own)


def sources(kernel: Any, points: FloatArray, columns: FloatArray, bins: IntArray) -> laplace.Sources | PairSources:
    """Prepare rows once for sums at points that arrive later."""
    if isinstance(kernel, str) and kernel == LAPLACE:
        return laplace.Sources(points, columns, bins)
    return PairSources(kernel, points, columns, bins)


def distances(kernel: Any, points: FloatArray, others: FloatArray) -> FloatArray:
    """Return the distances whose exponential is the kernel, shape (points, others): minus logarithms of similarities."""
    if isinstance(kernel, str):
        if len(points) <= FEW_POINTS:
            return _distances_uncompiled(kernel, points, others)
        try:
            from scipy.spatial.distance import cdist
        except ImportError:  # a model scores without scipy
            return _distances_uncompiled(kernel, points, others)
        return np.asarray(cdist(points, others, "cityblock" if kernel == LAPLACE else "sqeuclidean"))
    values = np.asarray(kernel(points, others), np.float64)
    if values.shape != (len(points), len(others)):
        raise DataError(
            f"the kernel must return an array of shape {(len(points), len(others))}, one similarity per pair of points; "
            f"got shape {values.shape}",
            hint="it is called with two arrays of points, (m, d) and (n, d), as those of sklearn.metrics.pairwise are",
        )
    invalid = ~(np.isfinite(values) & (values >= 0))
    if invalid.any():
        raise DataError(
            f"the kernel must return finite similarities of at least 0; got {values[invalid][0]}",
            hint="use a similarity that falls with the distance, such as exp(-distance)",
        )
    with np.errstate(divide="ignore"):
        return -np.log(values)


def _distances_uncompiled(kernel: str, points: FloatArray, others: FloatArray) -> FloatArray:
    """Return the distances that scipy computes, to the same bits: coordinates are added one after the other."""
    far = np.zeros((len(points), len(others)))
    for k in range(points.shape[1]):
        gap = points[:, k, None] - others[:, k]
        far += np.abs(gap) if kernel == LAPLACE else gap * gap
    return far


def self_distances(kernel: Any, points: FloatArray) -> FloatArray:
    """Return the distance of each point to itself: 0, but for a kernel of the user's minus the logarithm of k(x, x)."""
    if isinstance(kernel, str):
        return np.zeros(len(points))
    blocks = (points[start : start + SMALL_BLOCK] for start in range(0, len(points), SMALL_BLOCK))
    return np.concatenate([np.zeros(0), *(distances(kernel, block, block).diagonal() for block in blocks)])


class PairSources:
    """Rows prepared once for sums at points that arrive later; arguments as for `sums`."""

    def __init__(self, kernel: Any, points: FloatArray, columns: FloatArray, bins: IntArray) -> None:
        self.kernel, self.points, self.columns = kernel, points, columns
        self.order = np.argsort(bins, kind="stable")
        self.numbers = bins[self.order]

    def at(
        self, points: FloatArray, bins: IntArray, scales: FloatArray, threads: int | None = None, *, own: bool = True
    ) -> Sums:
        """Return the sums at ``points`` in ``bins``; without ``own``, these are the rows, and leave themselves out."""
        result = Sums(np.zeros((len(scales), len(points), self.columns.shape[1])), np.zeros((len(scales), len(points))))

        def sum_block(block: tuple[IntArray, IntArray]) -> None:
            asked, rows = block
            far = distances(self.kernel, points[asked], self.points[rows])
            if not own:
                far[asked[:, None] == rows] = np.inf
            nearest = far.min(axis=1)
            nearest[np.isinf(nearest)] = 0.0  # no other rows, or none of any similarity
            if not isinstance(self.kernel, str):
                nearest[:] = 0.0  # similarities are summed as they are
            for number, scale in enumerate(scales):
                with np.errstate(over="ignore", invalid="ignore"):
                    weight = np.where(np.isinf(far), 0.0, np.exp(-scale * (far - nearest[:, None])))
                for column in range(self.columns.shape[1]):
                    # Unlike a matrix product, the sums of a point do not depend on the other points.
                    values = np.ascontiguousarray(self.columns[rows, column])
                    result.total[number, asked, column] = np.einsum("ij,j->i", weight, values)
                result.shift[number, asked] = nearest

        Workers(threads).map(sum_block, list(self._blocks(bins)))
        return result

    def _blocks(self, bins: IntArray) -> list[tuple[IntArray, IntArray]]:
        """Return blocks of point indices in one bin, and the rows of that bin."""
        order, blocks = np.argsort(bins, kind="stable"), []
        for number, start, count in zip(*np.unique(bins[order], return_index=True, return_counts=True), strict=True):
            rows = self.order[slice(*np.searchsorted(self.numbers, [number, number + 1]))]
            if len(rows):
                step = max(1, BLOCK_NUMBERS // len(rows))
                blocks += [(order[i : min(i + step, start + count)], rows) for i in range(start, start + count, step)]
        return blocks
