"""Sums of exp(-scale * distance) in one dimension: two sweeps over the sorted rows.

A sweep carries the sum of all rows behind it, relative to an anchor that is never far away. A row is added with the factor
exp(+scale * distance from the anchor), a point reads with its inverse, and before the distance grows large the anchor moves
and the sum decays: nothing overflows. N. Langrené and X. Warin, "Fast multivariate empirical cumulative distribution
function with connection to kernel density estimation" (2020).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from trueup.kernels._jit import jit

if TYPE_CHECKING:
    from trueup._types import FloatArray, IntArray
    from trueup.kernels.threads import Workers

ENOUGH = 50_000  # rows for one piece of work


def in_order(values: FloatArray, starts: IntArray) -> IntArray:
    """Return the order that sorts the values of each bin, stably."""
    order = np.argsort(values, kind="stable")
    sizes = np.diff(starts)
    return order if sizes.max(initial=0) == len(values) else _deal(order, np.repeat(np.arange(len(sizes)), sizes), starts)


@jit
def _deal(order: IntArray, bins: IntArray, starts: IntArray) -> IntArray:
    """Group an order of all rows by bin."""
    out = np.empty_like(order)
    at = starts[:-1].copy()
    for row in order:
        out[at[bins[row]]] = row
        at[bins[row]] += 1
    return out


@jit
def merged(
    values: FloatArray, starts: IntArray, order: IntArray, targets: FloatArray, target_starts: IntArray,
    target_order: IntArray,
) -> IntArray:  # fmt: skip
    """Merge the orders of rows and of targets, bin by bin; a target follows rows of its value.

    Targets are numbered from the number of rows on.
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


def pieces(starts: IntArray) -> list[tuple[int, int]]:
    """Split the bins into runs with enough rows for a thread, independently of the number of threads."""
    groups = starts[:-1] // ENOUGH
    cuts = np.flatnonzero(np.diff(groups, prepend=-1)).tolist()
    return list(zip(cuts, [*cuts, len(groups)][1:], strict=True))


REACH = 32.0  # how far from its anchor a sum is seen, in units of 1 / scale: exp(32) is 8e13, harmless in a product


def sums(
    points: FloatArray, columns: FloatArray, starts: IntArray, targets: FloatArray | None, target_starts: IntArray | None,
    scale: float, workers: Workers,
) -> FloatArray:  # fmt: skip
    """Sum the columns of the rows of each target's bin, weighted by the kernel, in O(n log n); underflow gives 0.

    The rows of bin k are ``starts[k]:starts[k + 1]``; coordinates are finite. Without targets, the sums of each point over
    all other points are computed. The sums of a target do not depend on other targets.
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
    x: FloatArray, columns: FloatArray, starts: IntArray, at: FloatArray, bounds: IntArray, first: int, last: int,
    scale: float, itself: int, out: FloatArray,
) -> None:  # fmt: skip
    """Add what lies below each target, then what lies above, for a run of bins. Rows at a target count as below it."""
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
def _join(acc: FloatArray, x: float, anchor: float, row: FloatArray, scale: float) -> float:
    """Add a row to the sum; return the anchor, which moves to the row if it is out of reach."""
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
def _read(acc: FloatArray, far: float, scale: float, out: FloatArray) -> None:
    """Add the sum, decayed by a distance."""
    fade = math.exp(-scale * far)
    for c in range(acc.size):
        out[c] += acc[c] * fade
