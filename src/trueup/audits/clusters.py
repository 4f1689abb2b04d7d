"""Rows in clusters, such as several rows of one customer: design effects and p-values that allow for their correlation.

With u = w (y - p), t = w sqrt(p(1-p)) and v = sum t^2, the variance of sum u is v if rows are independent. In clusters it
is v D: the design effect D comes from a correlation pooled over all rows and from the pairs of rows that the segment has
within clusters (Kish 1965), and a second one from the cluster sums of the segment itself (Liang & Zeger 1986).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trueup.audits.segments import batches
from trueup.errors import ArgumentError
from trueup.kernels import clusters as pairs
from trueup.kernels import tally as sums
from trueup.kernels.tally import Tally, concatenate_tallies
from trueup.kernels.threads import Workers
from trueup.metrics import inference
from trueup.metrics.inference import MIN_CLUSTERS, MIN_EXCESS, SCORE_GROUPS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trueup._types import BoolArray, FloatArray, Int32Array, IntArray
    from trueup.audits.dispersion import Noise
    from trueup.audits.segments import AuditRows, ScorePartition, SegmentFamily, SortedChunk

BYTES_PER_SEGMENT = 8 * pairs.COLUMNS
# Clusters of the rarer outcome that are expected if all rows of a cluster have the same outcome. With fewer, there may be
# none by chance, and nothing is known about the correlation: it is then taken for 1.
MIN_EVENT_CLUSTERS = 4
MIN_VARIANCE = 1e-150  # of a segment; the square of a smaller one is zero in floating point


@dataclass(frozen=True, eq=False)
class ClusterEffects:
    """What clusters do to the variance of each segment.

    ``pooled`` is the design effect by the correlation pooled over all rows, ``own`` that by the cluster sums of the segment
    itself; ``effective`` is the effective number of clusters, infinite where clusters can hardly matter. ``clusters`` is
    the number of all clusters, and ``equal`` how many clusters of equal weight they count for (Kish 1965).
    """

    pooled: FloatArray
    own: FloatArray
    effective: FloatArray
    clusters: int = 0
    equal: float = np.inf

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

    def pvalues(self, tally: Tally, noise: Noise | None = None) -> FloatArray:
        """Return the p-value of each segment: the usual one with the pooled design effect, and not below `floor`.

        The cumulants of a sum of v/D terms, each D times as large: variance v D, third cumulant k3 D^2. ``noise`` is the
        model of the noise of real outcomes.
        """
        stretched = inflate(tally, self.pooled)
        if noise is not None:
            p = noise.pvalues(stretched)
        else:
            state = stretched.state
            p = inference.segment_pvalues(tally.span, *(state[:, at] for at in (sums.RISE, sums.VARIANCE, sums.SKEW)))
        return np.maximum(p, self.floor(tally, noise))

    def floor(self, tally: Tally, noise: Noise | None = None) -> FloatArray:
        """Return the lowest p-value of each segment: the Brownian limit with its own design effect, if that is larger.

        Where real outcomes are higher than predicted, their own variance is divided by ``noise.allowance``.
        """
        out = np.zeros(len(tally))
        larger = np.flatnonzero(self.own > self.pooled)
        variance = tally.state[larger, sums.VARIANCE] * self.own[larger]
        if noise is not None:
            variance = variance / noise.allowance(tally.take(larger))
        out[larger] = inference.limit_pvalues(tally.span[larger] / np.sqrt(variance))
        return out


def check_supported(adjust: str) -> None:
    """Raise if clusters cannot be combined with this adjustment."""
    if adjust == "max":
        reason = "draws rows independently, and cannot be used with clusters"
        raise ArgumentError(f"adjust='max' {reason}", "use {adjust}", parameter="adjust", settings={"adjust": "holm"})


class PairSums(NamedTuple):
    """Sums over pairs of rows of one cluster, as `trueup.kernels.clusters` computes them."""

    blocks: list[FloatArray]  # of the segments of each combination of columns
    near: FloatArray  # of groups of similar scores
    clusters: int  # their number


def cluster_effects(rows: AuditRows, families: Sequence[SegmentFamily]) -> ClusterEffects:
    """Compute the effects of clusters on the segments of all audited scores, one after the other."""
    sizes = [
        BYTES_PER_SEGMENT * max(len(family.blocks[at].codes) for family in families if at < len(family.blocks))
        for at in range(max(len(family.blocks) for family in families))
    ]
    states: list[list[FloatArray]] = [[] for _ in families]
    for batch in batches(range(len(sizes)), sizes, rows.max_result_bytes):
        wanted = [
            [(block.columns, block.codes) for block in family.blocks[batch[0] : batch[-1] + 1]] for family in families
        ]
        noises = [family.noise for family in families]
        found = rows.map_clusters(partial(_pair_pass, wanted, rows.score_edges, noises), _add_pairs)
        for target, more in enumerate(found):
            states[target] += more.blocks
    effects = [
        _effects(np.concatenate(states[target]), found[target].near, family) for target, family in enumerate(families)
    ]
    pooled, own, effective = (
        np.concatenate([getattr(one, name) for one in effects]) for name in ("pooled", "own", "effective")
    )
    return ClusterEffects(pooled, own, effective, found[0].clusters, effects[0].equal)


def inflate(tally: Tally, design: FloatArray) -> Tally:
    """Return the tally with the cumulants and the effective size of a sum whose variance is ``design`` times as large."""
    state, weights = tally.state.copy(), tally.weights.copy()
    state[:, sums.VARIANCE] *= design
    state[:, sums.SKEW] *= design**2
    if tally.real:
        state[:, [sums.WITHIN, sums.BETWEEN]] *= design[:, None]
    weights[:, [sums.WEIGHT2, sums.SQUARES]] *= design[:, None]
    weights[:, sums.FOURTHS] *= design**2
    return Tally(tally.rows, state, weights, tally.real)


def _effects(state: FloatArray, near: FloatArray, family: SegmentFamily) -> ClusterEffects:
    """Compute the effects of clusters on the segments of one audited score, from the sums over their pairs of rows."""
    tally = concatenate_tallies([block.tally for block in family.blocks])
    v, weight = tally.state[:, sums.VARIANCE], tally.weight
    excess, fourth = state[:, pairs.PAIR_T], state[:, pairs.FOURTH]
    correlation = pooled_correlation(state[:1], near)
    if family.noise is None:
        rarer = min(tally.expected[0], weight[0] - tally.expected[0])
        if rarer**2 < MIN_EVENT_CLUSTERS * (v[0] + excess[0]):
            correlation = 1.0
    with np.errstate(invalid="ignore", divide="ignore"):
        effective = (v + excess) ** 2 / fourth
        mean = tally.residual / weight
        squares = state[:, pairs.PAIR_U] - 2 * mean * state[:, pairs.PAIR_UW] + mean**2 * state[:, pairs.PAIR_W]
        matters = excess > MIN_EXCESS * v
        if family.noise is not None:  # the variance of rows is a model, too: the segment itself may have more
            rows = state[:, pairs.ROW_U] - 2 * mean * state[:, pairs.ROW_UW] + mean**2 * state[:, pairs.ROW_W]
            squares += np.where(matters, rows - v, 0.0)
        own = 1 + squares * effective / (np.maximum(effective - 1, 0.5) * v)
        pooled = 1 + correlation * excess / v
    known = v > MIN_VARIANCE  # without variance, rows are certain: clusters change nothing
    return ClusterEffects(
        np.where(known, pooled, 1.0),
        np.where(known, np.maximum(own, 1.0), 1.0),
        np.where(known & matters, effective, np.inf),
        equal=float(weight[0] ** 2 / (state[0, pairs.PAIR_W] + tally.weights[0, sums.WEIGHT2])),
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


def _pair_pass(
    wanted: list[list[tuple[tuple[int, ...], Int32Array]]], edges: tuple[FloatArray, ...],
    noises: Sequence[Noise | None], partition: ScorePartition,
) -> PairSums:  # fmt: skip
    """Sum the pairs of one partition of whole clusters; ``wanted`` has the combinations of each audited score."""
    blocks = wanted[partition.target]
    states = [_new_state(len(codes)) for _, codes in blocks]
    near, last = _new_state(SCORE_GROUPS), -1

    def add(number: int) -> None:
        _add_rows(chunk, deviations, chunk.segment_of_rows(*blocks[number]), states[number])

    for chunk in partition.chunks:
        chunk.zeros  # noqa: B018  # computed here, once, and not by every thread at the same time
        deviations = _deviations(chunk, noises[partition.target])
        Workers(chunk.threads).map(add, range(len(blocks)))
        groups = np.searchsorted(edges[partition.target], chunk.rows.p, side="right").astype(np.int32)
        _add_rows(chunk, deviations, groups, near)
        last = int(chunk.rows.step[-1]) if len(chunk.rows) else last
    for state in (*states, near):
        pairs.close_pairs(state)
    return PairSums(states, near, last + 1)


def _add_pairs(one: PairSums, other: PairSums) -> PairSums:
    """Add the sums of two partitions: no cluster is in both."""
    blocks = [a + b for a, b in zip(one.blocks, other.blocks, strict=True)]
    return PairSums(blocks, one.near + other.near, one.clusters + other.clusters)


def _new_state(segments: int) -> FloatArray:
    state = np.zeros((segments, pairs.COLUMNS))
    state[:, pairs.LAST] = -1
    return state


def _deviations(chunk: SortedChunk, noise: Noise | None) -> FloatArray:
    """Return the standard deviation of w (y - p) of each row: w sqrt(p(1-p)), or that of the model of real outcomes."""
    if noise is None:
        p, w = chunk.rows.null_rows(slice(None))
        root = np.sqrt(p * (1.0 - p))
        return root * w if len(w) else root
    rows, order = chunk.rows, np.argsort(chunk.rows.p, kind="stable")  # the model needs rows in score order
    ordered = replace(rows, p=rows.p[order], e=rows.e[order], w=rows.w[order] if len(rows.w) else rows.w)
    variance = noise.apply(replace(chunk, rows=ordered, codes=chunk.codes[:, order])).rows.v
    assert variance is not None
    out = np.empty(len(order))
    out[order] = np.sqrt(variance)
    return out


def _add_rows(chunk: SortedChunk, deviations: FloatArray, segment: Int32Array, state: FloatArray) -> None:
    rows = chunk.rows
    pairs.add_pairs(segment, rows.step, rows.e, deviations, rows.w if len(rows.w) else None, state)
