"""Sums of exp(-scale * L1 distance) over the rows of a bin, exact.

With s the scale, columns c and rows j of the bin of a point x: sum_j c_j exp(-s |x - x_j|_1). How they are summed depends on
the number of dimensions: `line` (one: two sweeps over the sorted rows), `halves` (two or three: divide and conquer), `tiles`
(any: all pairs, a block at a time), `cuda` (any, on a graphics card).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

__all__ = ["EXACT", "Sums", "sums"]

EXACT = 1e-15  # what is left out may not move any ratio by more: a rounding error


class Sums(NamedTuple):
    """Sums at m points, for g scales and c columns: ``total * exp(-scale * shift)``.

    ``shift`` is a distance, 0 wherever no sum comes near to vanishing; ratios of totals of one point and scale need not
    know it. A point whose bin has no rows (or none but itself, where it does not count) has a total of 0.
    """

    total: Floats  # (g, m, c)
    shift: Floats  # (g, m)


def sums(
    points: Floats, columns: Floats, bins: Ints, scales: Floats, *,
    at: tuple[Floats, Ints] | None = None, own: bool = True, tolerance: float = EXACT,
    threads: int | None = None, device: str = "cpu",
) -> Sums:  # fmt: skip
    """Sum the columns of each point's bin, weighed by the kernel.

    Parameters
    ----------
    points : ndarray, shape (n, d), of float64
        Finite.
    columns : ndarray, shape (n, c), of float64
        The first holds weights, above 0; the others anything finite.
    bins : ndarray, shape (n,), of int64
        Not negative.
    scales : ndarray, shape (g,), of float64
        Not negative; 1 / (d gamma).
    at : (ndarray of shape (m, d), ndarray of shape (m,)), optional
        Other points and their bins; by default the points themselves.
    own : bool
        Whether a row counts for itself (only without ``at``).
    tolerance : float
        How far a ratio of two totals may be off, as a share of the largest ratio of any row.
    threads : int, optional
        All cores by default. Their number changes no bit.
    device : {"cpu", "cuda"}

    Examples
    --------
    >>> found = sums(np.array([[0.0], [1.0]]), np.ones((2, 1)), np.zeros(2, np.int64), np.array([1.0]))
    >>> found.total[0, :, 0].round(3), found.shift[0]
    (array([1.368, 1.368]), array([0., 0.]))
    """
    asked, places = (points, bins) if at is None else at
    total = np.zeros((len(scales), len(asked), columns.shape[1]))
    shift = np.zeros((len(scales), len(asked)))
    for t, (x, b) in enumerate(zip(asked, places, strict=True)):
        rows = np.flatnonzero(bins == b)
        rows = rows if own or at is not None else rows[rows != t]
        if len(rows):
            far = np.abs(points[rows] - x).sum(axis=1)
            shift[:, t] = far.min()
            for g, scale in enumerate(scales):
                total[g, t] = np.exp(-scale * (far - far.min())) @ columns[rows]
    return Sums(total, shift)
