"""The prevalence of rows without outcomes, from their scores, under label shift; and the offset to a stated prevalence.

**Label shift**: the prevalence changes, the distribution of the scores given the outcome does not. If scores p are
calibrated at the prevalence r, the density of scores at the prevalence t is that at r times ``a t + b (1 - t)``, with
``a = p / r`` and ``b = (1 - p) / (1 - r)``. The likelihood of t is concave; its maximum is the limit of the EM algorithm of
Saerens, Latinne & Decaestecker (2002), and is found by Newton's method. Without labelled rows the interval consists of the
t whose log-likelihood is within half a chi-squared quantile of the maximum.

**Labelled rows** of the reference correct for miscalibration. For any function g of the score, its mean over new rows is
``t m1 + (1 - t) m0`` in expectation, where m1 and m0 are its means over positives and negatives. With the score function of
the likelihood at its maximum, ``g = (a - b) / (a t + b (1 - t))``, solving for t is efficient if scores are calibrated, and
unbiased if they are not. The interval consists of the t for which the difference is within its standard error times a
quantile of Student's distribution (one degree of freedom less than labelled rows of the rarer outcome): a quadratic
inequality (Fieller 1954), with the variance of new rows as it is at t (as Wilson's interval for a rate).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trueup.calibrators.prior.map import MAX_LOG_FACTOR, PrevalenceEstimate
from trueup.errors import DataError
from trueup.kernels.fitting import pool_scores
from trueup.metrics.inference import normal_quantile

if TYPE_CHECKING:
    from trueup._types import FloatArray, IntArray
    from trueup.metrics.inputs import Scored

MAX_ITERATIONS = 200
BINS = 5  # of scores, in which the shares of new rows are compared with those expected under label shift
MIN_OUTCOMES = 10  # labelled rows of each outcome, by effective number
CANNOT_TELL = "state it as prevalence=0.05, pass more rows, or use a score that separates the outcomes better"


def solve_factor(p: FloatArray, weight: FloatArray | None, prevalence: float) -> float:
    """Return the factor of the odds after which the mean score is ``prevalence``; raise if none reaches it."""
    pooled = pool_scores(p, np.zeros(len(p)), weight)
    score, w = pooled.score, pooled.weight / pooled.weight.sum()
    lowest, highest = float(w[score == 1].sum()), float(w[score > 0].sum())
    if not lowest < prevalence < highest:
        raise DataError(
            f"no offset moves the mean score to {prevalence:g}: scores of 0 and 1 do not change, so that it stays between "
            f"{lowest:.4g} and {highest:.4g}",
            hint="pass another prevalence, or scores that are neither 0 nor 1",
        )
    low, high, offset = -MAX_LOG_FACTOR, MAX_LOG_FACTOR, 0.0
    for _ in range(MAX_ITERATIONS):
        positive = math.exp(offset) * score
        moved = positive / (1 - score + positive)
        error, slope = float(w @ moved) - prevalence, float(w @ (moved * (1 - moved)))
        low, high = (low, offset) if error > 0 else (offset, high)
        step = offset - error / slope if slope > 0 else math.inf
        step = step if low < step < high else (low + high) / 2
        if abs(step - offset) <= 1e-15 * max(1.0, abs(offset)):
            break
        offset = step
    return math.exp(offset)


class NewRows(NamedTuple):
    """Scores, weights and optionally clusters of the rows whose prevalence is estimated."""

    p: FloatArray
    w: FloatArray
    cluster: IntArray | None = None


class _Likelihood:
    """The log-likelihood of a prevalence, given scores that are calibrated at the reference prevalence."""

    def __init__(self, rows: NewRows, reference: float) -> None:
        pooled = pool_scores(rows.p, np.zeros(len(rows.p)), rows.w)
        self.w = pooled.weight / pooled.weight.sum()
        self.reference = reference
        self.a, self.b = pooled.score / reference, (1 - pooled.score) / (1 - reference)

    def score(self, p: FloatArray, t: float) -> FloatArray:
        """Return the derivative in t of the log-likelihood of each score."""
        a, b = p / self.reference, (1 - p) / (1 - self.reference)
        return np.asarray((a - b) / (a * t + b * (1 - t)))

    def mean(self, t: float) -> float:
        """Return the mean log-likelihood."""
        with np.errstate(divide="ignore"):
            return float(self.w @ np.log(self.a * t + self.b * (1 - t)))

    def maximum(self, least: float) -> float:
        """Return the t in [least, 1 - least] of the highest likelihood."""
        low, high, t = least, 1 - least, min(max(self.reference, least), 1 - least)
        for _ in range(MAX_ITERATIONS):
            g = (self.a - self.b) / (self.a * t + self.b * (1 - t))
            slope, curvature = float(self.w @ g), float(self.w @ g**2)
            low, high = (t, high) if slope > 0 else (low, t)
            step = t + slope / curvature if curvature > 0 else t
            step = step if low < step < high else (low + high) / 2
            if abs(step - t) <= 1e-15:
                break
            t = step
        return t

    def standard_error(self, size: float, t: float) -> float:
        """Return the standard error of an estimate from ``size`` rows at the reference prevalence; new rows have ``t``."""
        # There a r + b (1 - r) = 1, and the information is the variance of a - b; rows are weighted to that prevalence.
        w = self.w / (self.a * t + self.b * (1 - t))
        return 1 / math.sqrt(max(size * float(w @ (self.a - self.b) ** 2 / w.sum()), 1e-300))

    def crossing(self, inside: float, outside: float, drop: float) -> float:
        """Return where, between the maximum ``inside`` and ``outside``, the mean log-likelihood is ``drop`` lower."""
        limit = self.mean(inside) - drop
        if self.mean(outside) >= limit:
            return outside
        for _ in range(MAX_ITERATIONS):
            middle = (inside + outside) / 2
            if middle in (inside, outside):
                break
            inside, outside = (middle, outside) if self.mean(middle) >= limit else (inside, middle)
        return inside


def estimate_prevalence(
    rows: NewRows, reference: float, labelled: Scored | None, level: float, cluster: IntArray | None = None
) -> PrevalenceEstimate:
    """Estimate the prevalence of ``rows`` with an interval; ``cluster`` has the clusters of the labelled rows.

    Raise if the scores cannot tell: if calibrated scores such as these would leave 0 or 1 in the interval of as many rows
    at the reference prevalence. That depends neither on the estimate nor on the means of labelled rows: refusals that did
    would leave the answers with the largest errors. For the same reason an estimate below 0 becomes one in n + 2 rows.
    """
    likelihood, z = _Likelihood(rows, reference), normal_quantile(1 - level)
    size = float(rows.w.sum() ** 2 / (rows.w @ rows.w))
    t = likelihood.maximum(1 / (size + 2))
    g = likelihood.score(rows.p, t)
    mean = float(np.average(g, weights=rows.w))
    if rows.cluster is not None:
        own = rows.w * (g - mean)
        size /= max(1.0, _variance(own, rows.cluster) / max(_variance(own, None), 1e-300))
    moments = None if labelled is None else _Moments(labelled, likelihood.score(labelled.p, t), cluster)
    error = likelihood.standard_error(size, t)
    if not z * error < min(reference, 1 - reference):
        raise DataError(
            f"the scores of {len(rows.p):,} rows cannot tell their prevalence: at the reference of {reference:.4g} its "
            f"standard error would be {error:.2g}",
            hint=CANNOT_TELL,
        )
    if moments is None:
        estimate = t
        low, high = (likelihood.crossing(t, end, z**2 / (2 * size)) for end in (0.0, 1.0))
    else:
        from scipy.special import stdtrit

        quantile = float(stdtrit(max(moments.fewest - 1, 1.0), (1 + level) / 2))
        estimate, (low, high) = moments.solve(mean, size, quantile)
        estimate = min(max(estimate, 1 / (size + 2)), 1 - 1 / (size + 2))
    low, high = max(low, 0.0), min(high, 1.0)
    if not low < estimate < high:
        raise DataError(f"no prevalence between 0 and 1 explains the scores of {len(rows.p):,} rows", hint=CANNOT_TELL)
    found = PrevalenceEstimate(float(estimate), low, high, level, reference, len(rows.p))
    if labelled is None or moments is None:
        return found
    return replace(found, labelled_rows=len(labelled.y), p_value=moments.test_mixture(rows, g, estimate))


class _Moments:
    """Means and variances of a function g of the score over labelled positives (1) and negatives (0)."""

    def __init__(self, labelled: Scored, g: FloatArray, cluster: IntArray | None) -> None:
        self.labelled, self.g, self.cluster = labelled, g, cluster
        self.weights = [labelled.w * (1 - labelled.y), labelled.w * labelled.y]
        sizes = [float(w.sum() ** 2 / max(float(w @ w), 1e-300)) for w in self.weights]
        # The effective number of rows, or of clusters, of the rarer outcome.
        self.fewest = min(float(w.sum() ** 2 / max(_variance(w, cluster), 1e-300)) for w in self.weights)
        for name, size in zip(("negative", "positive"), sizes, strict=True):
            if size < MIN_OUTCOMES:
                raise DataError(
                    f"the labelled rows have {size:.3g} {name} outcomes, too few to learn their scores from",
                    hint=f"pass at least {MIN_OUTCOMES} of each outcome, or reference_prevalence= if scores are calibrated",
                )
        self.means = [float(w @ g / w.sum()) for w in self.weights]
        self.squares = [float(w @ g**2 / w.sum()) for w in self.weights]
        influence = [w * (g - mean) / w.sum() for w, mean in zip(self.weights, self.means, strict=True)]
        own = [_variance(values, cluster) for values in influence]
        self.covariance = (_variance(influence[0] + influence[1], cluster) - sum(own)) / 2  # 0 without clusters
        # Unbiased for rows; with clusters it hardly matters.
        self.variances = [value * size / (size - 1) for value, size in zip(own, sizes, strict=True)]

    def solve(self, mean: float, size: float, z: float) -> tuple[float, tuple[float, float]]:
        """Return the prevalence at which g has this ``mean``, and its interval; NaN if every prevalence is possible."""
        (m0, m1), (q0, q1), (v0, v1), c = self.means, self.squares, self.variances, self.covariance
        d, e = m1 - m0, mean - m0
        # (e - t d)^2 <= z^2 (variance of the mean at t + t^2 v1 + (1 - t)^2 v0 + 2 t (1 - t) c), by powers of t.
        square = d**2 - z**2 * (v1 + v0 - 2 * c - d**2 / size)
        linear = -2 * e * d - z**2 * ((q1 - q0 - 2 * m0 * d) / size - 2 * v0 + 2 * c)
        constant = e**2 - z**2 * ((q0 - m0**2) / size + v0)
        inside = linear**2 - 4 * square * constant
        if square <= 0 or inside < 0 or d <= 0:
            return math.nan, (0.0, 1.0)
        root = math.sqrt(inside)
        return e / d, ((-linear - root) / (2 * square), (-linear + root) / (2 * square))

    def test_mixture(self, rows: NewRows, g: FloatArray, t: float) -> float | None:
        """Return the p-value of the hypothesis that new scores are a mixture of those of positives and negatives.

        Shares of rows by score are compared with those expected; the covariance includes that of the estimate ``t``. The
        result is None if there are too few distinct scores.
        """
        from scipy.special import chdtrc

        edges = np.unique(np.quantile(self.labelled.p, np.arange(1, BINS) / BINS))
        if len(edges) < 2:
            return None
        bins = [
            np.searchsorted(edges, p, side="right")[:, None] == np.arange(len(edges) + 1) for p in (rows.p, self.labelled.p)
        ]
        new, known = (own.astype(np.float64) for own in bins)
        w = rows.w / rows.w.sum()
        shares = [own @ known / own.sum() for own in self.weights]
        d, slope = self.means[1] - self.means[0], shares[1] - shares[0]
        difference = w @ new - t * shares[1] - (1 - t) * shares[0]
        influence = w[:, None] * (new - w @ new - np.outer(g - w @ g, slope) / d)
        covariance = _covariance(influence, rows.cluster)
        parts = [
            factor * (own / own.sum())[:, None] * (np.outer(self.g - mean, slope) / d - (known - share))
            for factor, own, mean, share in zip((1 - t, t), self.weights, self.means, shares, strict=True)
        ]
        covariance += _covariance(parts[0] + parts[1], self.cluster)
        values, vectors = np.linalg.eigh(covariance)
        kept = np.argsort(values)[2:]  # shares add up to 1, and the estimate fits nearly one combination of them
        statistic = float((((vectors.T @ difference)[kept]) ** 2 / np.maximum(values[kept], 1e-300)).sum())
        return float(chdtrc(len(kept), statistic))


def _covariance(influence: FloatArray, cluster: IntArray | None) -> FloatArray:
    """Return the sum of outer products of rows, or of sums over clusters."""
    if cluster is not None:
        sums = np.zeros((int(cluster.max()) + 1, influence.shape[1]))
        np.add.at(sums, cluster, influence)
        influence = sums
    return np.asarray(influence.T @ influence)


def _variance(influence: FloatArray, cluster: IntArray | None) -> float:
    """Return the sum of squares of rows, or of sums over clusters."""
    sums = influence if cluster is None else np.bincount(cluster, influence)
    return float(sums @ sums)
