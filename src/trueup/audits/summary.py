"""The summary of an audit: distribution of the scores, cumulative differences, and measures over all rows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trueup.data.columns import to_jsonable
from trueup.data.folds import digest_rows
from trueup.errors import DataError
from trueup.metrics import scores as measures
from trueup.metrics.backtesting import ScoreDistribution, separate
from trueup.metrics.binned import assign_bins
from trueup.metrics.inference import normal_quantile
from trueup.metrics.inputs import Scored

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trueup._types import BoolArray, FloatArray, IntArray
    from trueup.kernels.tally import SortedRows
    from trueup.metrics.reliability import ReliabilityCurve

HISTOGRAM_BINS = 40
MAX_PATH_POINTS = 401
THRESHOLDS = 101
MAX_QUANTILES = 401  # of the distribution of the scores
RISK_BINS = 10  # of the Hosmer-Lemeshow test: deciles of risk
MAX_POOL_ENTRIES = 400_000  # neighbours are summed where there are more rows
HOSMER_LEMESHOW = ("hosmer-lemeshow", "hosmer-lemeshow_df", "hosmer-lemeshow_p")
LINE_MEASURES = {"slope": "slope", "intercept": "intercept", "in the large": "calibration_in_the_large"}


class ScoreHistogram(NamedTuple):
    """Sums of weights and of weighted outcomes per score bin of equal width; bins of probabilities begin at 0."""

    edges: FloatArray
    weight: FloatArray
    positives: FloatArray


class DifferencePath(NamedTuple):
    """Cumulative differences in ascending score order: sum w (y - p) / W against the cumulative share of the weight.

    ``noise`` is the standard deviation that ``value`` would have if the scores were calibrated.
    """

    share: FloatArray
    value: FloatArray
    noise: FloatArray


class ThresholdCounts(NamedTuple):
    """Sums of weights (``rows``) and of weighted outcomes (``positives``) over scores at or above each threshold."""

    threshold: FloatArray
    rows: FloatArray
    positives: FloatArray


@dataclass(frozen=True, eq=False)
class AuditSummary:
    """Distribution of the scores, cumulative differences and measures over all rows.

    ``low`` and ``high`` are the consistency band: where each bin of the overall reliability curve would lie with 1 - alpha
    probability if the scores were calibrated. It is pointwise: of many bins, some lie outside by chance. ``distribution``
    has at most 401 quantiles of the scores. The ``fingerprint`` is a digest of outcomes, predictions and weights; it does
    not depend on the order of rows, nor on where they are.
    """

    histogram: ScoreHistogram
    path: DifferencePath
    low: FloatArray
    high: FloatArray
    scores: Mapping[str, float]  # measures by name, NaN where one is undefined
    called: ThresholdCounts | None  # None for real outcomes
    distribution: ScoreDistribution
    fingerprint: str

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; values that are not finite become None."""
        return {
            "histogram": to_jsonable(self.histogram._asdict()), "path": to_jsonable(self.path._asdict()),
            "consistency": to_jsonable({"low": self.low, "high": self.high}), "scores": to_jsonable(dict(self.scores)),
            "called": None if self.called is None else to_jsonable(self.called._asdict()),
            "distribution": to_jsonable(self.distribution._asdict()), "fingerprint": self.fingerprint,
        }  # fmt: skip


class Pool(NamedTuple):
    """Rows in ascending score order, or sums over adjacent rows where there are too many rows to hold.

    Per entry: mean score; sums of the weights, of the weighted differences e = w (y - p), of their variances if the scores
    are calibrated, and of w (y - p)^2; number of rows; and whether a score ends there: rows of one score are in one entry,
    unless they are in several chunks. ``first`` and ``last`` are the mean and the variance of e at the lowest and at the
    highest score of real outcomes, whose variance is estimated by successive differences.
    """

    p: FloatArray
    w: FloatArray
    e: FloatArray
    spread: FloatArray
    square: FloatArray
    rows: IntArray
    ends: BoolArray
    first: tuple[float, float]
    last: tuple[float, float]
    scale: float
    """The factor n / (n - 1) of the sums of successive differences; 0 for probabilities."""

    @classmethod
    def of(cls, rows: SortedRows, total: int = 0) -> Pool:
        """Make one entry per row, or per run of adjacent scores if ``total``, the row count, exceeds MAX_POOL_ENTRIES."""
        w = rows.w if len(rows.w) else np.ones(len(rows))
        ends = np.append(rows.step[1:] != rows.step[:-1], True)
        square = rows.e**2 / w
        first = last = (0.0, 0.0)
        scale = 0.0
        if rows.real:
            total_rows = max(total, len(rows))
            scale = total_rows / max(total_rows - 1, 1)
            spread, first, last = _successive_differences(rows, ends, scale)
        else:
            spread = w**2 * rows.p * (1 - rows.p)
        size = -(-total // MAX_POOL_ENTRIES)
        if size <= 1:
            return cls(rows.p, w, rows.e, spread, square, np.ones(len(rows), np.int64), ends, first, last, scale)
        begins = np.append(0, np.flatnonzero(ends)[:-1] + 1)  # the first row of every score
        at = begins[np.flatnonzero(np.diff(begins // size, prepend=-1))]
        weight, score, e, spread, square = (
            np.asarray(np.add.reduceat(values, at), np.float64) for values in (w, w * rows.p, rows.e, spread, square)
        )
        count = np.diff(np.append(at, len(rows)))
        single = rows.p[at] == rows.p[at + count - 1]  # of one score: its mean might differ from it by rounding
        p = np.where(single, rows.p[at], score / weight)
        return cls(p, weight, e, spread, square, count, np.ones(len(at), bool), first, last, scale)

    @classmethod
    def join(cls, pools: Sequence[Pool]) -> Pool:
        """Concatenate pools in ascending score order."""
        if len(pools) == 1:
            return pools[0]
        columns = [np.concatenate(column) for column in list(zip(*pools, strict=True))[:7]]
        joined = cls._make([*columns, pools[0].first, pools[-1].last, pools[0].scale])
        starts = np.cumsum([len(pool.p) for pool in pools])
        for before, after, start in zip(pools, pools[1:], starts, strict=False):
            separate = before.p[-1] != after.p[0]
            joined.ends[start - 1] = separate
            if separate and joined.scale:
                jump = before.last[0] - after.first[0]
                position = start + int(np.argmax(after.ends))
                joined.spread[position] += 0.5 * joined.scale * (before.last[1] + after.first[1] + jump**2)
        return joined


def _successive_differences(
    rows: SortedRows, ends: BoolArray, scale: float
) -> tuple[FloatArray, tuple[float, float], tuple[float, float]]:
    """Return the share of each row in the variance of real outcomes, estimated by successive differences.

    Squared residuals would contain the miscalibration that is tested. What a distinct score contributes is added at its
    last row. Return also mean and variance at the lowest and at the highest score.
    """
    last = np.flatnonzero(ends)
    first = np.append(0, last[:-1] + 1)
    count = last - first + 1
    mean = np.add.reduceat(rows.e, first) / count
    within = np.add.reduceat((rows.e - np.repeat(mean, count)) ** 2, first)
    variance = within / count
    between = np.append(0.0, variance[1:] + variance[:-1] + np.diff(mean) ** 2)
    spread = np.zeros(len(rows))
    spread[last] = (within + 0.5 * between) * scale
    ends_of = [(float(mean[position]), float(variance[position])) for position in (0, -1)]
    return spread, ends_of[0], ends_of[1]


@dataclass(frozen=True, eq=False)
class LazySummary:
    """The summary of rows in memory, computed on first use. Holds the rows, about 30 bytes each; pickles without them."""

    rows: SortedRows
    curve: ReliabilityCurve | None
    alpha: float
    design: float = 1.0

    def band(self, curve: ReliabilityCurve) -> tuple[FloatArray, FloatArray]:
        """Return the consistency band of a ``curve`` of all rows, in any bins; see `AuditSummary`."""
        pool = Pool.of(self.rows)
        return _consistency_band(pool._replace(spread=pool.spread * self.design), curve, self.alpha, real=self.rows.real)

    @cached_property
    def value(self) -> AuditSummary:
        """The summary of ``rows``, computed on first use."""
        rows = self.rows
        w = rows.w if len(rows.w) else np.ones(len(rows))
        digests = row_digests(rows.p, rows.e, w)
        return summarise(Pool.of(rows), self.curve, self.alpha, real=rows.real, digests=digests, design=self.design)


def summarise(
    pool: Pool,
    curve: ReliabilityCurve | None,
    alpha: float,
    *,
    real: bool,
    digests: Sequence[int],
    design: float = 1.0,
) -> AuditSummary:
    """Compute the summary of pooled rows; ``curve`` is their reliability curve, ``digests`` make the fingerprint.

    ``design`` is the design effect of clusters, by which variances are multiplied.
    """
    if design != 1.0:
        pool = pool._replace(spread=pool.spread * design)
    y = recover_outcomes(pool.p, pool.e, pool.w)
    data = Scored(y if real else np.clip(y, 0.0, 1.0), pool.p, pool.w)
    low, high = (np.empty(0),) * 2 if curve is None else _consistency_band(pool, curve, alpha, real=real)
    return AuditSummary(
        _histogram(data, real=real), _path(pool), low, high,
        _measures(data, pool, real=real, design=design), None if real else _threshold_counts(data),
        ScoreDistribution.of(pool.p, pool.w, pool.rows).thin(MAX_QUANTILES),
        "".join(f"{digest:016x}" for digest in digests),
    )  # fmt: skip


def _histogram(data: Scored, *, real: bool) -> ScoreHistogram:
    low, high = (float(data.p[0]), float(data.p[-1])) if real else (0.0, min(1.0, 1.02 * float(data.p[-1])))
    edges = np.linspace(low, high if high > low else low + 1.0, HISTOGRAM_BINS + 1)
    bins = np.clip(np.searchsorted(edges, data.p, side="right") - 1, 0, HISTOGRAM_BINS - 1)
    weight, positives = (
        np.asarray(np.bincount(bins, column, HISTOGRAM_BINS), np.float64) for column in (data.w, data.w * data.y)
    )
    return ScoreHistogram(edges, weight, positives)


def _path(pool: Pool) -> DifferencePath:
    """Return cumulative differences at the distinct scores; at most MAX_PATH_POINTS, maximum and minimum included."""
    total = float(pool.w.sum())
    value = np.append(0.0, np.cumsum(pool.e)[pool.ends] / total)
    share = np.append(0.0, np.cumsum(pool.w)[pool.ends] / total)
    noise = np.append(0.0, np.sqrt(np.cumsum(pool.spread)[pool.ends]) / total)
    if len(value) > MAX_PATH_POINTS:
        near = np.searchsorted(share, np.linspace(0, 1, MAX_PATH_POINTS - 3)).clip(0, len(share) - 1)
        kept = np.unique(np.concatenate([near, [int(np.argmax(value)), int(np.argmin(value)), len(share) - 1]]))
        share, value, noise = share[kept], value[kept], noise[kept]
    return DifferencePath(share, value, noise)


def _consistency_band(pool: Pool, curve: ReliabilityCurve, alpha: float, *, real: bool) -> tuple[FloatArray, FloatArray]:
    """Return pointwise 1 - alpha limits of the mean outcome in each bin of ``curve`` if the scores were calibrated."""
    starts = np.searchsorted(np.cumsum(pool.rows), np.append(0, np.cumsum(curve.rows)[:-1]), side="right")
    variance = np.add.reduceat(pool.spread, starts)
    if real:
        half = normal_quantile(alpha) * np.sqrt(variance) / curve.weight
        return curve.predicted - half, curve.predicted + half
    single = np.add.reduceat(pool.w * pool.p * (1 - pool.p), starts)
    # The weight of one outcome, by Kish's effective size, weighted by variance: so the variance is below the mean.
    unit = np.where(single > 0, variance / np.where(single > 0, single, 1.0), 1.0)
    low, high = _count_limits(curve.predicted * curve.weight / unit, variance / unit**2, alpha)
    return tuple(np.clip(end * unit / curve.weight, 0.0, 1.0) for end in (low, high))  # type: ignore[return-value]


def _count_limits(mean: FloatArray, variance: FloatArray, alpha: float) -> tuple[FloatArray, FloatArray]:
    """Return the alpha/2 and 1 - alpha/2 quantiles of counts with the given means and variances.

    Counts are binomial, or Poisson where the variance is not below the mean; normal quantiles are wrong for rare events.
    """
    from scipy.special import bdtrik, pdtrik

    low, high = mean.copy(), mean.copy()  # without variance they are certain
    for at in np.flatnonzero(variance > 0):
        chance = 1.0 - variance[at] / mean[at]
        size = mean[at] / chance if chance > 1e-6 else math.inf
        for ends, tail in ((low, alpha / 2), (high, 1 - alpha / 2)):
            if math.isinf(size):
                quantile = pdtrik(tail, mean[at]) if math.exp(-mean[at]) < tail else 0.0
            else:
                quantile = bdtrik(tail, size, chance) if (1 - chance) ** size < tail else 0.0
            ends[at] = math.ceil(quantile - 1e-9) if math.isfinite(quantile) else mean[at]
    return np.minimum(low, mean), np.maximum(high, mean)


def _measures(data: Scored, pool: Pool, *, real: bool, design: float) -> dict[str, float]:
    """Return measures of accuracy and calibration by name; ``data`` has the outcomes of the pooled rows.

    Standard errors are those of independent rows times the root of the ``design`` effect. That of Gini is NaN with weights
    or clusters.
    """
    total, square = float(data.w.sum()), float(pool.square.sum())
    means = {"observed": float(data.w @ data.y) / total, "expected": float(data.w @ data.p) / total}
    if real:
        return means | {"rmse": math.sqrt(square / total)}
    split = measures.corp(*data)
    within = square / total - split.score  # variance of outcomes within pooled entries; 0 if every row is an entry
    ranking = separate(data)
    counted = design == 1.0 and bool((pool.w == pool.rows).all())
    values = means | {
        "brier": split.score + within, "miscalibration": split.miscalibration, "discrimination": split.discrimination,
        "uncertainty": split.uncertainty + within, "log loss": measures.log_loss(*data),
        "normalized entropy": measures.normalized_entropy(*data), "auc": (1 + ranking.gini) / 2, "gini": ranking.gini,
        "gini_se": ranking.gini_se if counted else math.nan, "ks": ranking.ks, **_test_deciles(pool),
    }  # fmt: skip
    try:
        line = measures.slope_intercept(*data)
    except DataError:  # one outcome, one score, or perfect separation: no finite estimate
        return values | {name + end: math.nan for name in LINE_MEASURES for end in ("", "_se")}
    for name, attribute in LINE_MEASURES.items():
        error = getattr(line, f"{attribute}_se") * math.sqrt(design)
        values |= {name: getattr(line, attribute), f"{name}_se": error}
    return values


def _test_deciles(pool: Pool) -> dict[str, float]:
    """Return statistic, degrees of freedom and p-value of the Hosmer-Lemeshow test; NaN if it is undefined."""
    index = assign_bins(pool.p, pool.w, RISK_BINS, "mass")
    try:
        result = measures.compare_bins(index, pool.e, pool.spread)
    except DataError:  # every score is 0 or 1
        return dict.fromkeys(HOSMER_LEMESHOW, math.nan)
    return dict(zip(HOSMER_LEMESHOW, (result.statistic, result.degrees_of_freedom, result.p_value), strict=True))


def _threshold_counts(data: Scored) -> ThresholdCounts:
    thresholds = np.arange(THRESHOLDS) / (THRESHOLDS - 1)  # so that a score of 0.57 reaches a threshold of 0.57
    start = np.searchsorted(data.p, thresholds, side="left")
    rows, positives = (np.append(np.cumsum(column[::-1])[::-1], 0.0)[start] for column in (data.w, data.w * data.y))
    return ThresholdCounts(thresholds, rows, positives)


def row_digests(p: FloatArray, e: FloatArray, w: FloatArray) -> tuple[int, ...]:
    """Return two digests of the rows that do not depend on their order; ``e`` is w (y - p)."""
    y = recover_outcomes(p, e, w)
    return tuple(int(digest_rows([y, p, w], [], seed)) for seed in (1, 2))


def recover_outcomes(p: FloatArray, e: FloatArray, w: FloatArray) -> FloatArray:
    """Return the outcomes y from ``e`` = w (y - p); a value within 1e-12 of an integer is that integer."""
    y = p + e / w
    integer = np.rint(y) + 0.0  # no negative zero
    return np.where(np.abs(y - integer) < 1e-12, integer, y)
