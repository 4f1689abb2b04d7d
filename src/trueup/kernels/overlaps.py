"""Sums over the rows that segments have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trueup.kernels._jit import jit
from trueup.kernels.tally import rows_of

if TYPE_CHECKING:
    from trueup._types import FloatArray, Int32Array, IntArray


@jit
def overlaps(
    columns: Int32Array, wanted: Int32Array, codes: Int32Array, order: Int32Array, start: Int32Array, first: Int32Array,
    position: Int32Array, band: Int32Array, e: FloatArray, u: FloatArray, residual: FloatArray, common: IntArray,
    shared: FloatArray,
) -> None:  # fmt: skip
    """Add rows to the sums of segments, and of pairs of some of the segments with every segment.

    ``columns`` and ``wanted`` have the columns and level codes of each segment; ``codes`` to ``first`` are the levels of
    the rows, see `rows_of`; ``band`` is the score band of each row. ``position`` is the first index of the pairs of a
    segment, -1 if its pairs are not wanted. Written are ``residual``, the sum of ``e`` by segment and band; ``common``, the
    number of rows of each pair; and ``shared``, the sum of ``u`` of each pair by band.
    """
    n = codes.shape[1]
    listed = np.empty(n, np.int32)
    ends = np.zeros(n + 1, np.int64)
    for segment in range(columns.shape[0]):
        for j in range(rows_of(columns[segment], wanted[segment], codes, order, start, first, listed)):
            ends[listed[j] + 1] += 1
    for row in range(n):
        ends[row + 1] += ends[row]
    members = np.empty(ends[n], np.int16)
    free = ends[:n].copy()
    for segment in range(columns.shape[0]):
        for j in range(rows_of(columns[segment], wanted[segment], codes, order, start, first, listed)):
            members[free[listed[j]]] = segment
            free[listed[j]] += 1
    for row in range(n):
        b = band[row]
        for i in range(ends[row], ends[row + 1]):
            residual[members[i], b] += e[row]
            pair = position[members[i]]
            if pair >= 0:
                for j in range(ends[row], ends[row + 1]):
                    common[pair, members[j]] += 1
                    shared[pair, members[j], b] += u[row]
