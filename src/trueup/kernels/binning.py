"""Cut a numeric column into bins without sorting it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trueup.kernels._jit import jit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

__all__ = ["digitize", "order_statistics"]

BUCKETS = 8192
WORTH_BUCKETS = 50_000  # below this many rows a partial sort is as quick


@jit
def digitize(values: Floats, edges: Floats, out: NDArray[np.int32]) -> None:
    """Count for each value the ascending edges that are not above it: NaN gets 0."""
    if edges.size <= 32:
        for i in range(values.size):
            place = 0
            for j in range(edges.size):
                place += values[i] >= edges[j]
            out[i] = place
    else:
        for i in range(values.size):
            low = 0
            high = edges.size
            while low < high:
                middle = (low + high) // 2
                if values[i] >= edges[middle]:
                    low = middle + 1
                else:
                    high = middle
            out[i] = low


@jit
def _bucket(values: Floats, low: float, scale: float, counts: NDArray[np.int64]) -> None:
    """Count values in equal buckets from ``low`` up; what lies beyond an end counts in the bucket there."""
    last = counts.size - 1
    for i in range(values.size):
        counts[max(0, min(last, int((values[i] - low) * scale)))] += 1


@jit
def _gather(
    values: Floats, low: float, scale: float, wanted: NDArray[np.int64], start: NDArray[np.int64], out: Floats
) -> None:
    """Copy the values of wanted buckets out, each bucket to its own start (which moves on)."""
    last = wanted.size - 1
    for i in range(values.size):
        bucket = max(0, min(last, int((values[i] - low) * scale)))
        if wanted[bucket] >= 0:
            out[start[bucket]] = values[i]
            start[bucket] += 1


def order_statistics(values: Floats, ranks: NDArray[np.int64]) -> Floats:
    """Give the values at some ranks, as if the column were sorted; no NaN among the values.

    A histogram finds the buckets that hold the ranks, and only these are sorted.

    Examples
    --------
    >>> order_statistics(np.array([3.0, 1.0, 2.0]), np.array([0, 2]))
    array([1., 3.])
    """
    low, high = float(values.min()), float(values.max())
    span = high - low
    if len(values) < WORTH_BUCKETS or not np.isfinite(span) or not span > 0 or not np.isfinite(BUCKETS / span):
        found: Floats = np.partition(values, ranks)[ranks]
        return found
    scale = BUCKETS / span
    counts = np.zeros(BUCKETS, np.int64)
    _bucket(values, low, scale, counts)
    ends = np.cumsum(counts)
    holding = np.searchsorted(ends, ranks, side="right")
    wanted = np.full(BUCKETS, -1, np.int64)
    used = np.unique(holding)
    wanted[used] = used
    sizes = counts[used]
    start = np.zeros(BUCKETS, np.int64)
    start[used] = np.cumsum(sizes) - sizes
    first = start.copy()
    pool = np.empty(int(sizes.sum()))
    _gather(values, low, scale, wanted, start, pool)
    for bucket, size in zip(used, sizes, strict=True):
        pool[first[bucket] : first[bucket] + size].sort()
    answer: Floats = pool[first[holding] + ranks - (ends[holding] - counts[holding])]
    return answer
