"""Variances of sums of residuals of labelled rows in clusters: products of residuals of one cluster, by score interval."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trueup.data.clusters import cluster_keys
from trueup.data.columns import from_values
from trueup.data.values import describe_rows
from trueup.errors import DataError
from trueup.metrics.inference import MIN_CLUSTERS, MIN_EXCESS, SCORE_GROUPS, limit_pvalues

if TYPE_CHECKING:
    from trueup._types import AnyArray, BoolArray, FloatArray, IntArray
    from trueup.metrics.cumulative import CalibrationBound
    from trueup.metrics.inputs import Scored

UNSEEN = 0.25  # of a cluster whose rows all have the rarer outcome: how many such clusters the sample may lack


def read_clusters(cluster: Any, kept: BoolArray) -> IntArray:
    """Return the cluster of the rows that ``kept`` marks, numbered from 0; raise unless every row has an identifier."""
    if isinstance(cluster, np.ndarray) and cluster.dtype.kind in "iu" and len(cluster) == len(kept):
        return np.unique(cluster[kept], return_inverse=True)[1].ravel()
    raw = from_values(cluster, "cluster")
    if len(raw) != len(kept):
        raise DataError(f"cluster has {len(raw):,} values for {len(kept):,} rows", "pass one per row", parameter="cluster")
    return np.unique(cluster_keys(raw, "cluster", describe_rows)[kept], return_inverse=True)[1].ravel()


def effective_clusters(rows: Scored, cluster: IntArray) -> float:
    """Return the effective number of clusters, (sum T^2)^2 / sum T^4; infinite where they can hardly raise the variance.

    T is the sum of w sqrt(f (1 - f)) over the rows of a cluster, the standard deviation of its sum if they agree. Where all
    scores are 0 or 1, the weight of the rows counts.
    """
    deviation = rows.w * np.sqrt(rows.p * (1 - rows.p))
    if not deviation.any():
        deviation = rows.w
    squares = np.bincount(cluster, deviation) ** 2
    variance = float((deviation**2).sum())
    if float(squares.sum()) <= (1 + MIN_EXCESS) * variance:
        return math.inf
    return float(squares.sum() ** 2 / (squares**2).sum())


def check_effective_clusters(rows: Scored, cluster: IntArray, described: str, segment: str | None) -> float:
    """Return the effective number of clusters; raise if an interval cannot be based on these ``described`` rows."""
    effective = effective_clusters(rows, cluster)
    if effective >= MIN_CLUSTERS:
        return effective
    where = "" if segment is None else f" of segment {segment!r}"
    uneven = effective < len(np.unique(cluster)) / 2
    large = "; a few large clusters have most of the rows: a random sample of theirs counts for more" if uneven else ""
    found = f"{math.floor(10 * effective) / 10:g} effective clusters"
    raise DataError(
        f"{described}{where} are in {found}; an interval needs {MIN_CLUSTERS}",
        hint=f"add rows of more clusters{', or leave segments out' if where else ''}{large}",
        parameter="cluster",
    )


def student_factor(effective: float, failing: float) -> float:
    """Return the ratio of Student's quantile to the normal one, ``effective`` - 1 being the degrees of freedom."""
    from scipy.special import stdtrit

    if math.isinf(effective):
        return 1.0
    return float(stdtrit(effective - 1, failing) / NormalDist().inv_cdf(failing))


class ClusterNorms(NamedTuple):
    """Norms over clusters of sums of their rows by score interval, and the effective number of clusters.

    U is the sum of w (y - f) over the rows of a cluster in the interval. If the scores are calibrated, its second and
    fourth moments are at most T^2 and F^4, whatever the correlation (Minkowski), with T the sum of w sqrt(v), F that of
    w (v (1 - 3 v))^(1/4), and v = f (1 - f).
    """

    fourth: FloatArray  # (sum U^4)^(1/4)
    most_fourth: FloatArray  # (sum F^4)^(1/4)
    most: FloatArray  # (sum T^2)^(1/2)
    effective: float

    def likely_variance(self, difference: FloatArray, variance: FloatArray, failing: float) -> FloatArray:
        """Return an upper bound on the variance of sum d U, from the observed one, with ``difference`` d.

        Sums of squares of U vary by sqrt(sum U^4): sqrt(2 L sum U^4) is added, with L as in `likely_root`. Clusters whose
        rows all have the rarer outcome may be absent from the sample, and their correlation then remains unseen. Each adds
        about sum F^4 / sum T^2: a part, `UNSEEN`, of that is added as far as rows that all agree could explain it.
        """
        d = np.abs(difference)
        fourth, most_fourth, most = ((d * norm).sum(axis=-1) ** 2 for norm in self[:3])  # sqrt of sum U^4, of sum F^4; T^2
        seen = variance + math.sqrt(2 * math.log(5 / failing)) * fourth
        unseen = UNSEEN * np.divide(most_fourth**2, most, out=np.zeros(len(most)), where=most > 0)
        likely = np.maximum(seen, np.minimum(seen + unseen, most))
        return np.asarray(likely * student_factor(self.effective, failing) ** 2)


def cluster_norms(rows: Scored, index: AnyArray, cluster: IntArray, count: int, *, thresholds: bool) -> ClusterNorms:
    """Return norms by ``count`` intervals or, with ``thresholds``, below each of ``count`` edges and from it on."""
    w, v = rows.w / rows.w.sum(), rows.p * (1 - rows.p)
    norm = _threshold_norms if thresholds else _norms
    return ClusterNorms(
        norm(index, w * (rows.y - rows.p), cluster, count, 4),
        norm(index, w * (v * (1 - 3 * v)) ** 0.25, cluster, count, 4),
        norm(index, w * np.sqrt(v), cluster, count, 2),
        effective_clusters(rows, cluster),
    )


def _norms(index: AnyArray, values: FloatArray, cluster: IntArray, intervals: int, power: int) -> FloatArray:
    """Return the norm of the sums of ``values`` by cluster, for each interval."""
    clusters = int(cluster.max()) + 1
    sums = np.bincount(cluster * intervals + index, values, clusters * intervals).reshape(clusters, intervals)
    return np.asarray((sums**power).sum(axis=0) ** (1 / power))


def _threshold_norms(index: AnyArray, values: FloatArray, cluster: IntArray, edges: int, power: int) -> FloatArray:
    """Return `_norms` below each edge and from it on, shape (edges, 2)."""
    sides = []
    for place in (index, edges - index):  # of an edge counted from below, and from above
        order = np.lexsort((place, cluster))
        own, e = cluster[order], values[order]
        total = np.cumsum(e)
        after = total - (total - e)[np.searchsorted(own, own)]  # the sum of the cluster up to this row
        steps = after**power - (after - e) ** power
        sides.append(np.maximum(np.cumsum(np.bincount(place[order], steps, edges + 1))[:-1], 0.0) ** (1 / power))
    return np.stack([sides[0], sides[1][::-1]], axis=-1)


def likely_variance(rows: Scored, cluster: IntArray, failing: float) -> float:
    """Return an upper bound on the variance of sums of w (y - f) over all rows, or over rows with similar scores.

    As for `design_effect`, the larger one of all rows and of quartiles of the score, here from `ClusterNorms`.
    """
    e, one = rows.w * (rows.y - rows.p), np.ones((1, 1))
    found = []
    for group in (cluster, _score_groups(rows, cluster)):
        norms = cluster_norms(rows, np.zeros(len(e), np.int64), group, 1, thresholds=False)
        norms = norms._replace(effective=effective_clusters(rows, cluster))
        variance = max(float((np.bincount(group, e) ** 2).sum()), float((e**2).sum())) / float(rows.w.sum()) ** 2
        found.append(float(norms.likely_variance(one, np.array([variance]), failing)[0]))
    return max(found) * float(rows.w.sum()) ** 2


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
    groups = cluster, _score_groups(rows, cluster)
    return max(1.0, *(float((np.bincount(group, e) ** 2).sum()) / squares for group in groups))


def _score_groups(rows: Scored, cluster: IntArray) -> IntArray:
    """Return the number of the cluster and quartile of the score of each row."""
    edges = np.quantile(rows.p, np.arange(1, SCORE_GROUPS) / SCORE_GROUPS)
    return np.asarray(cluster * SCORE_GROUPS + np.searchsorted(edges, rows.p, side="right"))


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
