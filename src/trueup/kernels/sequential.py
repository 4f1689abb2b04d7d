"""Factors of sequential tests of calibration, and their sums over segments as exact integers.

Every factor is a logarithm, rounded down to a multiple of 1 / SCALE, so that no evidence is added. Integers add exactly:
sums depend neither on the order of the rows nor on how they are divided into batches.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from trueup.kernels._jit import jit

if TYPE_CHECKING:
    from trueup._types import FloatArray, Int32Array, IntArray

SCALE = 2.0**30
MAX_SHIFT = 30.0  # of an alternative, in logits
OUTCOMES, SCORES, ROWS, CONTRADICTIONS = range(4)  # columns after those of the alternatives
EXTRA_COLUMNS = 4


@jit
def row_factors(
    y: FloatArray,
    p: FloatArray,
    shifts: FloatArray,
    slopes: FloatArray,
    centre: float,
    tolerance: float,
    odds: float,
    out: FloatArray,
) -> None:
    """Write to ``out``, one array row per row, the log likelihood ratio of every alternative against the score.

    Alternative j moves the logit l of the score by A = shift + (slope - 1) (l - centre), limited to MAX_SHIFT: the factor
    is log(1 + y (e^A - 1)) - log(1 + q (e^A - 1)), whose exponential has mean 1 if the mean of y is q. Here q is the score
    p, raised by the factor ``tolerance`` (at most to 1) if A > 0, and lowered by it if A < 0, so that the mean is at most 1
    for errors within the tolerance. That is done to the score of the population, whose odds the sample multiplies by
    ``odds``. Scores of exactly 0, and of 1 without a tolerance, have factors of 0; where the outcome
    contradicts one, it is counted. The last columns are y, p, 1, and that count.
    """
    alternatives = shifts.size
    growths = np.empty(alternatives)
    for j in range(alternatives):
        growths[j] = math.expm1(shifts[j])
    for i in range(y.size):
        certain = p[i] <= 0.0 or (p[i] >= 1.0 and tolerance <= 1.0)
        logit = 0.0 if certain else math.inf if p[i] >= 1.0 else math.log(p[i]) - math.log1p(-p[i])
        for j in range(alternatives):
            if certain:
                out[i, j] = 0.0
                continue
            move, growth = shifts[j], growths[j]
            if slopes[j] != 1.0:
                move = min(max(move + (slopes[j] - 1.0) * (logit - centre), -MAX_SHIFT), MAX_SHIFT)
                growth = math.expm1(move)
            mean = p[i]
            if tolerance > 1.0:
                mean /= mean + odds * (1.0 - mean)
                mean = min(1.0, mean * tolerance) if move > 0.0 else mean / tolerance
                mean *= odds / (odds * mean + 1.0 - mean)
            out[i, j] = math.log1p(y[i] * growth) - math.log1p(mean * growth)
        out[i, alternatives + OUTCOMES] = y[i]
        out[i, alternatives + SCORES] = p[i]
        out[i, alternatives + ROWS] = 1.0
        out[i, alternatives + CONTRADICTIONS] = 1.0 if certain and y[i] != p[i] else 0.0


@jit
def add_rows(segments: Int32Array, factors: FloatArray, sums: IntArray) -> None:
    """Add the factors of rows to the sums of their segments: one array row of ``segments`` per combination of columns.

    A row that is in no segment of a combination has segment -1 there.
    """
    columns = factors.shape[1]
    row = np.empty(columns, np.int64)
    for i in range(factors.shape[0]):
        for j in range(columns):
            row[j] = math.floor(factors[i, j] * SCALE)
        for combination in range(segments.shape[0]):
            segment = segments[combination, i]
            if segment < 0:
                continue
            for j in range(columns):
                sums[segment, j] += row[j]


@jit
def add_clusters(
    segment: Int32Array, cluster: Int32Array, order: IntArray, factors: FloatArray, extra: int, sums: IntArray
) -> None:
    """Add to the sums of each segment the log of the mean likelihood ratio of the rows of each cluster.

    ``order`` sorts the rows by segment, then by cluster. Of the last ``extra`` columns the mean of the cluster is added, so
    that a cluster counts as one observation, except of the last, whose sum is added.
    """
    columns = factors.shape[1]
    start, rows = 0, order.size
    while start < rows:
        first = order[start]
        stop = start + 1
        while stop < rows and segment[order[stop]] == segment[first] and cluster[order[stop]] == cluster[first]:
            stop += 1
        if segment[first] >= 0:
            for j in range(columns):
                if j >= columns - extra:
                    count = 0.0
                    for k in range(start, stop):
                        count += factors[order[k], j]
                    count /= 1 if j == columns - 1 else stop - start
                    sums[segment[first], j] += math.floor(count * SCALE)
                    continue
                highest = factors[first, j]
                for k in range(start + 1, stop):
                    highest = max(highest, factors[order[k], j])
                total = 0.0
                for k in range(start, stop):
                    total += math.exp(factors[order[k], j] - highest)
                mean = highest + math.log(total / (stop - start))
                sums[segment[first], j] += math.floor(mean * SCALE)
        start = stop
