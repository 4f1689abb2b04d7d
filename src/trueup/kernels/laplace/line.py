"""Sums of exp(-scale * distance) in one dimension: two sweeps over the sorted rows.

A sweep carries the sum of all rows behind it, seen from an anchor that is never far away. A row joins with the factor
exp(+scale * distance from the anchor), a point reads with its inverse, and before the distance grows large the anchor moves
on and the sum decays: nothing overflows. The sweeps are those of N. Langrené and X. Warin, "Fast multivariate empirical
cumulative distribution function with connection to kernel density estimation" (2020).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from trueup.kernels._jit import jit
from trueup.kernels.laplace.orders import in_order, pieces

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trueup.kernels.threads import Workers

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

__all__ = ["sums"]

REACH = 32.0  # how far from its anchor a sum is seen, in units of 1 / scale: exp(32) is 8e13, harmless in a product


def sums(
    points: Floats, columns: Floats, starts: Ints, targets: Floats | None, target_starts: Ints | None, scale: float,
    workers: Workers,
) -> Floats:  # fmt: skip
    """Sum the columns of the rows of each target's bin, weighed by the kernel, in O(n log n).

    Parameters
    ----------
    points : ndarray, shape (n, 1), of float64
        Finite. The rows of bin k are ``starts[k]:starts[k + 1]``.
    columns : ndarray, shape (n, c), of float64
    starts : ndarray, shape (b + 1,), of int64
    targets : ndarray, shape (m, 1), or None
        None: the points themselves, none of which counts for itself. A target's sums do not depend on the others.
    target_starts : ndarray, shape (b + 1,), or None
    scale : float
        Not negative.
    workers : Workers

    Returns
    -------
    ndarray, shape (m, c)
        What underflows is 0.
    """
    itself = int(targets is None or target_starts is None)
    asked = points if targets is None else targets
    bounds = starts if target_starts is None else target_starts
    x, at = (points[:, 0], asked[:, 0]) if scale > 0 else (np.zeros(len(points)), np.zeros(len(asked)))
    order = in_order(x, starts)
    places = order if itself else in_order(at, bounds)
    x, columns, at = x[order], columns[order], at[places]
    found = np.zeros((len(at), columns.shape[1]))

    def work(piece: tuple[int, int]) -> None:
        _sweep(x, columns, starts, at, bounds, *piece, scale, itself, found)

    workers.map(work, pieces(starts + bounds))
    out = np.empty_like(found)
    out[places] = found
    return out


@jit
def _sweep(
    x: Floats, columns: Floats, starts: Ints, at: Floats, bounds: Ints, first: int, last: int, scale: float, itself: int,
    out: Floats,
) -> None:  # fmt: skip
    """Add what lies below each target, then what lies above, for a run of bins. Rows at a target lie below it."""
    acc = np.zeros(columns.shape[1])
    for b in range(first, last):
        begin, end = starts[b], starts[b + 1]
        if begin == end:
            continue
        i = begin
        anchor = x[i]
        acc[:] = 0.0
        for t in range(bounds[b], bounds[b + 1]):
            while not itself and i < end and x[i] <= at[t]:
                anchor = _join(acc, x[i], anchor, columns[i], scale)
                i += 1
            _read(acc, abs(at[t] - anchor), scale, out[t])
            if itself:
                anchor = _join(acc, x[t], anchor, columns[t], scale)
        i = end - 1
        anchor = x[i]
        acc[:] = 0.0
        for t in range(bounds[b + 1] - 1, bounds[b] - 1, -1):
            while not itself and i >= begin and x[i] > at[t]:
                anchor = _join(acc, x[i], anchor, columns[i], scale)
                i -= 1
            _read(acc, abs(at[t] - anchor), scale, out[t])
            if itself:
                anchor = _join(acc, x[t], anchor, columns[t], scale)


@jit
def _join(acc: Floats, x: float, anchor: float, row: Floats, scale: float) -> float:
    """Take a row into the sum; give the anchor, which moves to the row where it is out of reach."""
    far = scale * abs(x - anchor)
    if far > REACH:
        fade = math.exp(-far)
        for c in range(acc.size):
            acc[c] = acc[c] * fade + row[c]
        return x
    grow = math.exp(far)
    for c in range(acc.size):
        acc[c] += row[c] * grow
    return anchor


@jit
def _read(acc: Floats, far: float, scale: float, out: Floats) -> None:
    """Add the sum as it is seen from a distance."""
    fade = math.exp(-scale * far)
    for c in range(acc.size):
        out[c] += acc[c] * fade
