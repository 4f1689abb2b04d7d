"""Sort columns, take order statistics, search ascending values, and assign values to bins."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from trueup.kernels._jit import jit, run

if TYPE_CHECKING:
    from trueup._types import FloatArray, Int32Array, IntArray

BUCKETS = 8192
WORTH_THREADS = WORTH_BUCKETS = 50_000  # below this many rows a plain sort is as quick


def digitize(values: FloatArray, edges: FloatArray, out: Int32Array) -> None:
    """Write to ``out``, for each value, the number of ascending ``edges`` that are at most the value; 0 for NaN."""
    run(_digitize, 0.1 * values.size, values, edges, out, instead=_digitize_uncompiled)


def _digitize_uncompiled(values: FloatArray, edges: FloatArray, out: Int32Array) -> None:
    """Do as `_digitize` does."""
    out[:] = np.searchsorted(edges, values, side="right")
    out[np.isnan(values)] = 0


@jit
def _digitize(values: FloatArray, edges: FloatArray, out: Int32Array) -> None:
    """Write to ``out``, for each value, the number of ``edges`` that are at most the value; 0 for NaN."""
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
def lower_bound(x: FloatArray, low: int, high: int, value: float) -> int:
    """Return the first index from ``low`` to ``high - 1`` where ascending ``x`` is at least ``value``; else ``high``."""
    first, left = low, high - low
    while left > 0:  # without a branch: the step is the same on both sides
        half = (left + 1) >> 1
        first += half if x[np.uint64(first + half - 1)] < value else 0
        left -= half
    return first


@jit
def lower_bounds(x: FloatArray, values: FloatArray, out: Int32Array) -> None:
    """Write to ``out[i]`` how many of the ascending ``x`` are below ``values[i]``; the searches are vectorised."""
    out[: len(values)] = 0
    left = len(x)
    while left > 0:
        half = (left + 1) >> 1
        for i in range(len(values)):
            out[i] += half if x[np.uint64(out[i] + half - 1)] < values[i] else 0
        left -= half


@jit
def _bucket(values: FloatArray, low: float, scale: float, counts: IntArray) -> None:
    """Add to ``counts`` the values per bucket of width 1 / ``scale`` from ``low`` on; the end buckets are unbounded."""
    last = counts.size - 1
    for i in range(values.size):
        counts[max(0, min(last, int((values[i] - low) * scale)))] += 1


@jit
def _gather(values: FloatArray, low: float, scale: float, start: IntArray, out: FloatArray) -> None:
    """Copy the values of bucket b (see `_bucket`) to ``out`` from ``start[b]`` on, unless that is -1; advance ``start``."""
    last = start.size - 1
    for i in range(values.size):
        bucket = max(0, min(last, int((values[i] - low) * scale)))
        if start[bucket] >= 0:
            out[start[bucket]] = values[i]
            start[bucket] += 1


def order_statistics(values: FloatArray, ranks: IntArray) -> FloatArray:
    """Return ``sort(values)[ranks]`` for values without NaN; only buckets that contain one of the ranks are sorted."""
    low, high = float(values.min()), float(values.max())
    span = high - low
    if len(values) < WORTH_BUCKETS or not np.isfinite(span) or not span > 0 or not np.isfinite(BUCKETS / span):
        return np.asarray(np.partition(values, ranks)[ranks])
    scale = BUCKETS / span
    counts = np.zeros(BUCKETS, np.int64)
    _bucket(values, low, scale, counts)
    ends = np.cumsum(counts)
    holding = np.searchsorted(ends, ranks, side="right")
    used = np.unique(holding)
    sizes = counts[used]
    first = np.full(BUCKETS, -1, np.int64)
    first[used] = np.cumsum(sizes) - sizes
    pool = np.empty(int(sizes.sum()))
    _gather(values, low, scale, first.copy(), pool)
    for bucket, size in zip(used, sizes, strict=True):
        pool[first[bucket] : first[bucket] + size].sort()
    return np.asarray(pool[first[holding] + ranks - (ends[holding] - counts[holding])])


@jit
def _merge(values: FloatArray, left: IntArray, right: IntArray, shift: int, out: IntArray) -> None:
    """Write to ``out`` the merged argsorts of two halves, the right one starting at ``shift``; left comes first in ties."""
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
    if len(values) < WORTH_THREADS:
        return np.argsort(values)
    half = len(values) // 2
    with ThreadPoolExecutor(2) as pool:
        left, right = pool.map(np.argsort, (values[:half], values[half:]))
    out = np.empty(len(values), np.int64)
    _merge(values, left, right, half, out)
    return out
