"""Sums over pairs of rows of one cluster, per segment, in one pass over rows in cluster order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trueup.kernels._jit import jit

if TYPE_CHECKING:
    from trueup._types import FloatArray, Int32Array


# Columns of the state: sums over pairs of different rows, then the cluster under way.
PAIR_T, PAIR_U, PAIR_UW, PAIR_W, FOURTH, ROW_U, ROW_UW, ROW_W, RUN_T, RUN_U, RUN_W, LAST = range(12)
COLUMNS = 12


@jit
def add_pairs(
    segment: Int32Array, cluster: Int32Array, u: FloatArray, t: FloatArray, w: FloatArray | None, state: FloatArray
) -> None:
    """Add rows, those of a cluster one after the other, to the sums of their segments (-1: none).

    With u = w (y - p) and its standard deviation t, over all ordered pairs i != j of rows of one cluster and
    segment: PAIR_T = sum t_i t_j, PAIR_U = sum u_i u_j, PAIR_UW = sum u_i w_j, PAIR_W = sum w_i w_j; over clusters,
    FOURTH = sum (sum t)^4, to which `close_pairs` adds the last cluster. Sums over pairs are exactly 0 in clusters of one
    row. The column LAST of ``state`` is -1 at first. ``w`` is None if every weight is 1.
    """
    for i in range(segment.size):
        k = segment[i]
        if k < 0:
            continue
        s = state[np.uint64(k)]
        if s[LAST] != cluster[i]:
            s[LAST] = cluster[i]
            square = s[RUN_T] * s[RUN_T]
            s[FOURTH] += square * square
            s[RUN_T] = s[RUN_U] = s[RUN_W] = 0.0
        a = 1.0 if w is None else w[i]
        s[PAIR_T] += 2.0 * t[i] * s[RUN_T]
        s[PAIR_U] += 2.0 * u[i] * s[RUN_U]
        s[PAIR_UW] += u[i] * s[RUN_W] + a * s[RUN_U]
        s[PAIR_W] += 2.0 * a * s[RUN_W]
        s[ROW_U] += u[i] * u[i]
        s[ROW_UW] += u[i] * a
        s[ROW_W] += a * a
        s[RUN_T] += t[i]
        s[RUN_U] += u[i]
        s[RUN_W] += a


@jit
def close_pairs(state: FloatArray) -> None:
    """Add the last cluster of every segment to the sum FOURTH."""
    for k in range(state.shape[0]):
        square = state[k, RUN_T] * state[k, RUN_T]
        state[k, FOURTH] += square * square
        state[k, RUN_T] = 0.0
