"""Sort columns, take order statistics, and assign values to bins."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from trueup.kernels._jit import jit

if TYPE_CHECKING:
    from trueup._types import FloatArray, Int32Array, IntArray

BUCKETS = 8192
WORTH_BUCKETS = 50_000  # below this many rows a partial sort is as quick


@jit
def digitize(values: FloatArray, edges: FloatArray, out: Int32Array) -> None:
    """Count for each value the ascending edges that are not above it; NaN gives 0."""
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
def _bucket(values: FloatArray, low: float, scale: float, counts: IntArray) -> None:
    """Count values in equal buckets from ``low`` up; values beyond an end count in the bucket there."""
    last = counts.size - 1
    for i in range(values.size):
        counts[max(0, min(last, int((values[i] - low) * scale)))] += 1


@jit
def _gather(values: FloatArray, low: float, scale: float, wanted: IntArray, start: IntArray, out: FloatArray) -> None:
    """Copy the values of the wanted buckets, each bucket from its own start, which advances."""
    last = wanted.size - 1
    for i in range(values.size):
        bucket = max(0, min(last, int((values[i] - low) * scale)))
        if wanted[bucket] >= 0:
            out[start[bucket]] = values[i]
            start[bucket] += 1


def order_statistics(values: FloatArray, ranks: IntArray) -> FloatArray:
    """Return the values at some ranks of the sorted column, without NaN; only the buckets that hold them are sorted."""
    low, high = float(values.min()), float(values.max())
    span = high - low
    if len(values) < WORTH_BUCKETS or not np.isfinite(span) or not span > 0 or not np.isfinite(BUCKETS / span):
        found: FloatArray = np.partition(values, ranks)[ranks]
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
    answer: FloatArray = pool[first[holding] + ranks - (ends[holding] - counts[holding])]
    return answer


WORTH_HALVING = 50_000


@jit
def _merge(values: FloatArray, left: IntArray, right: IntArray, shift: int, out: IntArray) -> None:
    """Merge the orders of two halves; equal values come from the left first. ``shift`` is the start of the right half."""
    i = 0
    j = 0
    for k in range(out.size):
        if j == right.size or (i < left.size and values[left[i]] <= values[right[j] + shift]):
            out[k] = left[i]
            i += 1
        else:
            out[k] = right[j] + shift
            j += 1


def argsort(values: FloatArray) -> IntArray:
    """Return the order that sorts values without NaN; it does not depend on the number of threads."""
    if len(values) < WORTH_HALVING:
        return np.argsort(values)
    half = len(values) // 2
    with ThreadPoolExecutor(2) as pool:
        left, right = pool.map(np.argsort, (values[:half], values[half:]))
    out = np.empty(len(values), np.int64)
    _merge(values, left, right, half, out)
    return out
