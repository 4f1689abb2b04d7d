"""Rows in clusters, such as several rows of one customer: design effects and p-values that allow for their correlation.

With u = w (y - p), t = w sqrt(p(1-p)) and v = sum t^2, the variance of sum u is v if rows are independent. In clusters it
is v D: the design effect D comes from a correlation pooled over all rows and from the pairs of rows that the segment has
within clusters (Kish 1965), and a second one from the cluster sums of the segment itself (Liang & Zeger 1986).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from trueup.errors import ArgumentError
from trueup.kernels import clusters as pairs
from trueup.kernels import tally as sums
from trueup.kernels.tally import Tally, concatenate_tallies
from trueup.metrics import inference

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trueup._types import BoolArray, FloatArray, Int32Array, IntArray
    from trueup.audits.segments import MemoryRows, SegmentBlock, SegmentFamily, SortedChunk
    from trueup.kernels.threads import Workers

MIN_CLUSTERS = 10  # effective; with fewer, neither the variance nor the tail of their sum is known
MIN_EXCESS = 0.1  # below, clusters cannot raise the variance of the segment by more than this: rows count as independent
SCORE_GROUPS = 4


@dataclass(frozen=True, eq=False)
class ClusterEffects:
    """What clusters do to the variance of each segment.

    ``pooled`` is the design effect by the correlation pooled over all rows, ``own`` that by the cluster sums of the segment
    itself; ``effective`` is the effective number of clusters, infinite where clusters can hardly matter.
    """

    pooled: FloatArray
    own: FloatArray
    effective: FloatArray

    @property
    def design(self) -> FloatArray:
        """The design effect of each segment: the larger of the pooled one and its own."""
        return np.maximum(self.pooled, self.own)

    @property
    def few(self) -> BoolArray:
        """Which segments have too few effective clusters for a test."""
        return self.effective < MIN_CLUSTERS

    def take(self, which: IntArray) -> ClusterEffects:
        """Return the effects of the segments with indices ``which``."""
        return ClusterEffects(self.pooled[which], self.own[which], self.effective[which])

    def pvalues(self, tally: Tally) -> FloatArray:
        """Return the p-value of each segment: the default one with the pooled design effect, and not below `floor`.

        The cumulants of a sum of v/D terms, each D times as large: variance v D, third cumulant k3 D^2.
        """
        v, k3 = tally.state[:, sums.VARIANCE], tally.state[:, sums.SKEW]
        rise = tally.state[:, sums.RISE]
        p = inference.segment_pvalues(tally.span, rise, v * self.pooled, k3 * self.pooled**2)
        return np.maximum(p, self.floor(tally))

    def floor(self, tally: Tally) -> FloatArray:
        """Return the lowest p-value of each segment: the Brownian limit with its own design effect, if that is larger."""
        out = np.zeros(len(tally))
        larger = self.own > self.pooled
        scale = np.sqrt(tally.state[larger, sums.VARIANCE] * self.own[larger])
        out[larger] = inference.limit_pvalues(tally.span[larger] / scale)
        return out


def check_supported(task: str, adjust: str) -> None:
    """Raise if clusters cannot be combined with this task or adjustment."""
    if task == "regression":
        hint = "audit one row per cluster: the mean outcome and the mean prediction"
        raise ArgumentError("clusters of real outcomes cannot be tested", hint, parameter="cluster")
    if adjust == "max":
        reason = "draws rows independently, and cannot be used with clusters"
        raise ArgumentError(f"adjust='max' {reason}", "use {adjust}", parameter="adjust", settings={"adjust": "holm"})


def cluster_effects(rows: MemoryRows, families: Sequence[SegmentFamily], workers: Workers) -> ClusterEffects:
    """Compute the effects of clusters on the segments of all audited scores, one after the other."""
    effects = [_effects(chunk, family, workers) for chunk, family in zip(rows.clusters, families, strict=True)]
    return ClusterEffects(
        *(np.concatenate([getattr(own, name) for own in effects]) for name in ("pooled", "own", "effective"))
    )


def inflate(tally: Tally, design: FloatArray) -> Tally:
    """Return the tally with the cumulants and the effective size of a sum whose variance is ``design`` times as large."""
    state, weights = tally.state.copy(), tally.weights.copy()
    state[:, sums.VARIANCE] *= design
    state[:, sums.SKEW] *= design**2
    weights[:, [sums.WEIGHT2, sums.SQUARES]] *= design[:, None]
    weights[:, sums.FOURTHS] *= design**2
    return Tally(tally.rows, state, weights, tally.real)


def _effects(chunk: SortedChunk, family: SegmentFamily, workers: Workers) -> ClusterEffects:
    """Compute the effects of clusters on the segments of one audited score; ``chunk`` has its rows in cluster order."""
    chunk.zeros  # noqa: B018  # computed here, once, and not by every thread at the same time
    state = np.concatenate(workers.map(partial(_block_pairs, chunk), family.blocks))
    tally = concatenate_tallies([block.tally for block in family.blocks])
    correlation = pooled_correlation(state[:1], pair_sums(chunk, *_score_groups(chunk.rows.p)))
    v, weight = tally.state[:, sums.VARIANCE], tally.weight
    excess, fourth = state[:, pairs.PAIR_T], state[:, pairs.FOURTH]
    with np.errstate(invalid="ignore", divide="ignore"):
        effective = (v + excess) ** 2 / fourth
        mean = tally.residual / weight
        squares = state[:, pairs.PAIR_U] - 2 * mean * state[:, pairs.PAIR_UW] + mean**2 * state[:, pairs.PAIR_W]
        own = 1 + squares * effective / (np.maximum(effective - 1, 0.5) * v)
        pooled = 1 + correlation * excess / v
    known = v > 0  # without variance, rows are certain: clusters change nothing
    return ClusterEffects(
        np.where(known, pooled, 1.0),
        np.where(known, np.maximum(own, 1.0), 1.0),
        np.where(known & (excess > MIN_EXCESS * v), effective, np.inf),
    )


def pooled_correlation(*states: FloatArray) -> float:
    """Return the largest correlation of residuals of one cluster by the pairs of rows of each state, and at least 0.

    A state has the sums of `add_pairs`, of all rows or of groups of similar scores: pairs of similar scores show
    errors that have opposite signs at low and at high scores.
    """
    largest = 0.0
    for state in states:
        possible = state[:, pairs.PAIR_T].sum()
        if possible > 0:
            largest = max(largest, float(state[:, pairs.PAIR_U].sum() / possible))
    return largest


def _score_groups(p: FloatArray) -> tuple[Int32Array, int]:
    """Return the group of each row by quartiles of the score, and the number of groups; equal scores share one."""
    ranks = (np.arange(1, SCORE_GROUPS) * len(p)) // SCORE_GROUPS
    edges = np.partition(p, ranks)[ranks]
    return np.searchsorted(edges, p, side="right").astype(np.int32), SCORE_GROUPS


def _block_pairs(chunk: SortedChunk, block: SegmentBlock) -> FloatArray:
    return pair_sums(chunk, chunk.segment_of_rows(block.columns, block.codes), len(block.codes))


def pair_sums(chunk: SortedChunk, segment: Int32Array, count: int) -> FloatArray:
    """Return the sums of `trueup.kernels.clusters.add_pairs` of ``count`` segments; ``segment`` is that of each row."""
    state = np.zeros((count, pairs.COLUMNS))
    state[:, pairs.LAST] = -1
    p, w = chunk.rows.null_rows(slice(None))
    pairs.add_pairs(segment, chunk.rows.step, chunk.rows.e, p, w if len(w) else None, state)
    pairs.close_pairs(state)
    return state
