"""Orders of rows within their bins, for the sums that sweep over sorted rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trueup.kernels._jit import jit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

__all__ = ["in_order", "merged", "pieces"]

ENOUGH = 50_000  # rows for one piece of work


def in_order(values: Floats, starts: Ints) -> Ints:
    """Give the order that sorts the values of each bin; equal ones stay as they came.

    Examples
    --------
    >>> in_order(np.array([3.0, 1.0, 2.0, 0.0]), np.array([0, 2, 4]))
    array([1, 0, 3, 2])
    """
    order = np.argsort(values, kind="stable")
    sizes = np.diff(starts)
    return order if sizes.max(initial=0) == len(values) else _deal(order, np.repeat(np.arange(len(sizes)), sizes), starts)


@jit
def _deal(order: Ints, bins: Ints, starts: Ints) -> Ints:
    """Bring an order of all rows into the bins."""
    out = np.empty_like(order)
    at = starts[:-1].copy()
    for row in order:
        out[at[bins[row]]] = row
        at[bins[row]] += 1
    return out


@jit
def merged(values: Floats, starts: Ints, order: Ints, targets: Floats, target_starts: Ints, target_order: Ints) -> Ints:
    """Merge the orders of rows and of targets, bin by bin; a target comes after rows of its value.

    A target is known by its place plus the number of rows.
    """
    n = order.size
    out = np.empty(n + target_order.size, np.int64)
    k = 0
    for b in range(starts.size - 1):
        i = starts[b]
        for j in range(target_starts[b], target_starts[b + 1]):
            t = target_order[j]
            while i < starts[b + 1] and values[order[i]] <= targets[t]:
                out[k] = order[i]
                i += 1
                k += 1
            out[k] = n + t
            k += 1
        while i < starts[b + 1]:
            out[k] = order[i]
            i += 1
            k += 1
    return out


def pieces(starts: Ints) -> list[tuple[int, int]]:
    """Cut the bins into runs with rows enough to be worth a thread; the cuts know nothing of the threads.

    Examples
    --------
    >>> pieces(np.array([0, 70_000, 70_001, 90_000, 200_000]))
    [(0, 1), (1, 4)]
    """
    groups = starts[:-1] // ENOUGH
    cuts = np.flatnonzero(np.diff(groups, prepend=-1)).tolist()
    return list(zip(cuts, [*cuts, len(groups)][1:], strict=True))
