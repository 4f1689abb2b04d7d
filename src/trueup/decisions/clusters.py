"""Variances of sums of residuals of labelled rows in clusters: products of residuals of one cluster, by score interval."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.data.clusters import cluster_keys
from trueup.data.columns import from_values
from trueup.data.frame import describe_rows
from trueup.errors import DataError
from trueup.metrics.inference import limit_pvalues

if TYPE_CHECKING:
    from trueup._types import AnyArray, BoolArray, FloatArray, IntArray
    from trueup.metrics.cumulative import CalibrationBound
    from trueup.metrics.inputs import Scored

SCORE_GROUPS = 4


def read_clusters(cluster: Any, kept: BoolArray) -> IntArray:
    """Return the cluster of the rows that ``kept`` marks, numbered from 0; raise unless every row has an identifier."""
    if isinstance(cluster, np.ndarray) and cluster.dtype.kind in "iu" and len(cluster) == len(kept):
        return np.unique(cluster[kept], return_inverse=True)[1].ravel()
    raw = from_values(cluster, "cluster")
    if len(raw) != len(kept):
        raise DataError(f"cluster has {len(raw):,} values for {len(kept):,} rows", "pass one per row", parameter="cluster")
    return np.unique(cluster_keys(raw, "cluster", describe_rows)[kept], return_inverse=True)[1].ravel()


def heaviest_cluster(weight: FloatArray, cluster: IntArray | None) -> float:
    """Return the largest weight of a cluster, or of a row without clusters."""
    return float((weight if cluster is None else np.bincount(cluster, weight)).max())


def pair_sums(index: AnyArray, residuals: FloatArray, cluster: IntArray, intervals: int) -> FloatArray:
    """Return sums of products of residuals of different rows of a cluster, by the score intervals of both.

    With d_j the effect of an outcome in interval j, the sum of d (y - f) has the variance sum d^2 (y - f)^2 + d' P d.
    """
    clusters = int(cluster.max()) + 1
    sums = np.bincount(cluster * intervals + index, residuals, clusters * intervals).reshape(clusters, intervals)
    return np.asarray(sums.T @ sums - np.diag(np.bincount(index, residuals**2, intervals)))


def threshold_pair_sums(index: AnyArray, residuals: FloatArray, cluster: IntArray, edges: int) -> FloatArray:
    """Return `pair_sums` of two intervals, below each of ``edges`` and from it on, shape (edges, 2, 2).

    A pair is below an edge if its higher row is, and above if its lower row is.
    """
    order = np.lexsort((index, cluster))
    own, e, place = cluster[order], residuals[order], index[order]
    total = np.bincount(own, e)
    before = np.cumsum(e) - e
    before -= before[np.searchsorted(own, own)]  # residuals of the cluster in lower rows
    after = total[own] - before - e
    pairs_by_higher = np.bincount(place, 2 * e * before, edges + 1)
    pairs_by_lower = np.bincount(place, 2 * e * after, edges + 1)
    below, above = np.cumsum(pairs_by_higher)[:-1], np.cumsum(pairs_by_lower[::-1])[::-1][1:]
    across = (pairs_by_higher.sum() - below - above) / 2
    return np.stack([np.stack([below, across], axis=-1), np.stack([across, above], axis=-1)], axis=-2)


def quadratic_form(difference: FloatArray, sums: FloatArray) -> FloatArray:
    """Return d' P d of each quantity, with ``difference`` d of shape (quantities, intervals)."""
    return np.asarray((difference[:, None, :] @ sums @ difference[:, :, None])[:, 0, 0])


def design_effect(rows: Scored, cluster: IntArray | None) -> float:
    """Return the factor by which clusters raise the variance of sums of residuals, and at least 1.

    The larger one of all rows and of rows with similar scores, in quartiles, whose errors may have opposite signs.
    """
    if cluster is None:
        return 1.0
    e = rows.w * (rows.y - rows.p)
    squares = float((e**2).sum())
    if squares == 0:
        return 1.0
    edges = np.quantile(rows.p, np.arange(1, SCORE_GROUPS) / SCORE_GROUPS)
    near = cluster * SCORE_GROUPS + np.searchsorted(edges, rows.p, side="right")
    return max(1.0, *(float((np.bincount(group, e) ** 2).sum()) / squares for group in (cluster, near)))


def calibration_pvalue(rows: Scored, cluster: IntArray) -> float:
    """Return the p-value of calibrated scores by the range of the cumulative differences and the design effect."""
    order = np.lexsort((rows.w, rows.y, rows.p))
    e, p, w = (rows.w * (rows.y - rows.p))[order], rows.p[order], rows.w[order]
    path = np.append(0.0, np.cumsum(e)[np.append(np.diff(p) != 0, True)])
    variance = float((w**2 * p * (1 - p)).sum()) * design_effect(rows, cluster)
    span = float(path.max() - path.min())
    if variance == 0:
        return 1.0 if span == 0 else 0.0
    return float(limit_pvalues(np.array([span / math.sqrt(variance)]))[0])


def widen_bound(bound: CalibrationBound, design: float) -> CalibrationBound:
    """Return a calibration bound of independent rows for rows whose sums have a variance ``design`` times as large."""
    low, high = ((end - bound.value) * math.sqrt(design) for end in (bound.lower, bound.upper))
    return replace(bound, lower=max(0.0, bound.value + low), upper=min(1.0, bound.value + high))
