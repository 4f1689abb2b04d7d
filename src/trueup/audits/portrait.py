"""What the whole of an audit looks like: its scores, where they go wrong, and how good they are, in few numbers."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trueup.data.frame import to_jsonable
from trueup.errors import DataError
from trueup.metrics import scores as measures
from trueup.metrics.inference import normal_quantile
from trueup.metrics.inputs import Scored

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trueup._types import BoolArray, FloatArray, IntArray
    from trueup.kernels.tally import Rows
    from trueup.metrics.curves import ReliabilityCurve


CELLS = 40  # of the histogram
POINTS = 401  # of the path, at most
THRESHOLDS = 101
MOST_ENTRIES = 400_000  # of a pool: of more rows, neighbours are summed up


class Histogram(NamedTuple):
    """Weight and outcomes in cells of the score, all equally wide; those of probabilities begin at 0."""

    edges: FloatArray
    weight: FloatArray
    positives: FloatArray


class Path(NamedTuple):
    """Cumulative differences in the order of the scores: sum w (y - p) / W against the share of the weight so far.

    ``noise`` is the standard deviation that the sum would have so far if the scores were right.
    """

    share: FloatArray
    value: FloatArray
    noise: FloatArray


class Called(NamedTuple):
    """Weight and outcomes of the rows with scores from each threshold on."""

    threshold: FloatArray
    rows: FloatArray
    positives: FloatArray


@dataclass(frozen=True, eq=False)
class Portrait:
    """The whole in few numbers; see the names.

    ``low`` and ``high`` say where the bins of the reliability curve would lie if the scores were right. ``scores`` has
    measures by name, NaN where one has no meaning. ``fingerprint`` is a digest of outcomes, predictions and weights.
    """

    histogram: Histogram
    path: Path
    low: FloatArray
    high: FloatArray
    scores: Mapping[str, float]
    called: Called | None
    fingerprint: str

    def to_dict(self) -> dict[str, Any]:
        """Give plain values fit for JSON; what is not finite becomes None."""
        called = None if self.called is None else to_jsonable(self.called._asdict())
        return {
            "histogram": to_jsonable(self.histogram._asdict()), "path": to_jsonable(self.path._asdict()),
            "consistency": to_jsonable({"low": self.low, "high": self.high}), "scores": to_jsonable(dict(self.scores)),
            "called": called, "fingerprint": self.fingerprint,
        }  # fmt: skip


class Pool(NamedTuple):
    """Rows in the order of their scores, or sums of neighbours where there are too many rows to be held.

    Sums of the weights, of the weighted differences w (y - p), of their variance if the scores are right, and of
    w (y - p)^2; the mean score; how many rows; and whether a score ends there: rows of one score are never parted.
    """

    p: FloatArray
    w: FloatArray
    e: FloatArray
    spread: FloatArray
    square: FloatArray
    rows: IntArray
    ends: BoolArray

    @classmethod
    def of(cls, rows: Rows, total: int = 0) -> Pool:
        """Take rows one by one, or of more than `MOST_ENTRIES` in ``total`` sums of neighbours."""
        w = rows.w if len(rows.w) else np.ones(len(rows))
        spread = _real_spread(rows, max(total, len(rows))) if rows.real else w**2 * rows.p * (1 - rows.p)
        ends = np.append(rows.step[1:] != rows.step[:-1], True)
        size = -(-total // MOST_ENTRIES)
        if size <= 1:
            return cls(rows.p, w, rows.e, spread, rows.e**2 / w, np.ones(len(rows), np.int64), ends)
        begins = np.append(0, np.flatnonzero(ends)[:-1] + 1)  # the first row of every score
        at = begins[np.flatnonzero(np.diff(begins // size, prepend=-1))]
        weight, score, e, spread, square = (
            np.asarray(np.add.reduceat(values, at), np.float64) for values in (w, w * rows.p, rows.e, spread, rows.e**2 / w)
        )
        count = np.diff(np.append(at, len(rows)))
        alone = rows.p[at] == rows.p[at + count - 1]  # of one score: a mean might miss it by rounding
        p = np.where(alone, rows.p[at], score / weight)
        return cls(p, weight, e, spread, square, count, np.ones(len(at), bool))

    @classmethod
    def join(cls, parts: Sequence[Pool]) -> Pool:
        """Put parts one after the other; a score may go on from one to the next."""
        whole = cls(*(np.concatenate(column) for column in zip(*parts, strict=True)))
        for before, after, last in zip(parts, parts[1:], np.cumsum([len(part.p) for part in parts]) - 1, strict=False):
            whole.ends[last] = before.p[-1] != after.p[0]
        return whole


def portray(pool: Pool, curve: ReliabilityCurve | None, alpha: float, *, real: bool, fingerprint: str) -> Portrait:
    """Draw the portrait of rows in the order of their scores; ``curve`` is their reliability curve."""
    y = outcomes(pool.p, pool.e, pool.w)
    data = Scored(y if real else np.clip(y, 0.0, 1.0), pool.p, pool.w)
    low, high = (np.empty(0),) * 2 if curve is None else _consistency(pool, curve, alpha, real=real)
    return Portrait(
        _histogram(data, real=real), _path(pool), low, high, _scores(data, float(pool.square.sum()), real=real),
        None if real else _called(data), fingerprint,
    )  # fmt: skip


def outcomes(p: FloatArray, e: FloatArray, w: FloatArray) -> FloatArray:
    """Find the outcomes again from the differences e = w (y - p): what was a whole number is so again."""
    y = p + e / w
    whole = np.rint(y) + 0.0  # no nought is negative
    return np.where(np.abs(y - whole) < 1e-12, whole, y)


def digest(y: FloatArray, p: FloatArray, w: FloatArray, into: Sequence[Any]) -> None:
    """Take outcomes as `outcomes` finds them, predictions and weights, as they were read, into a digest each."""
    for one, column in zip(into, (y, p, w), strict=True):
        one.update(np.ascontiguousarray(column, "<f8").data)


def sealed(digests: Sequence[Any]) -> str:
    """Give one fingerprint for several digests."""
    return hashlib.sha256(b"".join(one.digest() for one in digests)).hexdigest()


def _real_spread(rows: Rows, total: int) -> FloatArray:
    """Share the variance of real outcomes out among the rows, by successive differences, as the test does.

    A square of a residual would hold the error that is looked for. What a distinct score adds stands at its last row; what
    lies between the last of one part and the first of the next is left out. ``total`` counts the rows of all parts.
    """
    last = np.flatnonzero(np.append(rows.step[1:] != rows.step[:-1], True))
    first = np.append(0, last[:-1] + 1)
    count = last - first + 1
    mean = np.add.reduceat(rows.e, first) / count
    within = np.add.reduceat((rows.e - np.repeat(mean, count)) ** 2, first)
    between = np.append(0.0, (within / count)[1:] + (within / count)[:-1] + np.diff(mean) ** 2)
    spread = np.zeros(len(rows))
    spread[last] = (within + 0.5 * between) * total / max(total - 1, 1)
    return spread


def _histogram(data: Scored, *, real: bool) -> Histogram:
    low, high = (float(data.p[0]), float(data.p[-1])) if real else (0.0, min(1.0, 1.02 * float(data.p[-1])))
    edges = np.linspace(low, high if high > low else low + 1.0, CELLS + 1)
    at = np.clip(np.searchsorted(edges, data.p, side="right") - 1, 0, CELLS - 1)
    weight, positives = (np.asarray(np.bincount(at, column, CELLS), np.float64) for column in (data.w, data.w * data.y))
    return Histogram(edges, weight, positives)


def _path(pool: Pool) -> Path:
    """Follow the sum from score to score; of many places keep some, with the highest and the lowest."""
    total = float(pool.w.sum())
    value = np.append(0.0, np.cumsum(pool.e)[pool.ends] / total)
    share = np.append(0.0, np.cumsum(pool.w)[pool.ends] / total)
    noise = np.append(0.0, np.sqrt(np.cumsum(pool.spread)[pool.ends]) / total)
    if len(value) > POINTS:
        near = np.searchsorted(share, np.linspace(0, 1, POINTS - 3)).clip(0, len(share) - 1)
        kept = np.unique(np.concatenate([near, [int(np.argmax(value)), int(np.argmin(value)), len(share) - 1]]))
        share, value, noise = share[kept], value[kept], noise[kept]
    return Path(share, value, noise)


def _consistency(pool: Pool, curve: ReliabilityCurve, alpha: float, *, real: bool) -> tuple[FloatArray, FloatArray]:
    """Say where the mean outcome of each bin would lie if the scores were right, pointwise."""
    starts = np.searchsorted(np.cumsum(pool.rows), np.append(0, np.cumsum(curve.rows)[:-1]), side="right")
    variance = np.add.reduceat(pool.spread, starts)
    if real:
        half = normal_quantile(alpha) * np.sqrt(variance) / curve.weight
        return curve.predicted - half, curve.predicted + half
    single = np.add.reduceat(pool.w * pool.p * (1 - pool.p), starts)
    # What one outcome weighs, as Kish's size has it, each by how much it may vary: so the variance is below the mean.
    unit = np.where(single > 0, variance / np.where(single > 0, single, 1.0), 1.0)
    low, high = _count_limits(curve.predicted * curve.weight / unit, variance / unit**2, alpha)
    return tuple(np.clip(end * unit / curve.weight, 0.0, 1.0) for end in (low, high))  # type: ignore[return-value]


def _count_limits(mean: FloatArray, variance: FloatArray, alpha: float) -> tuple[FloatArray, FloatArray]:
    """Give the limits of counts of a mean and a variance, as of a binomial count, which has no normal tails when rare.

    Binomial quantiles, or Poisson's where the variance is not below the mean.
    """
    from scipy.special import bdtrik, pdtrik

    low, high = mean.copy(), mean.copy()  # without variance they are certain
    for at in np.flatnonzero(variance > 0):
        chance = 1.0 - variance[at] / mean[at]
        size = mean[at] / chance if chance > 1e-6 else math.inf
        for ends, tail in ((low, alpha / 2), (high, 1 - alpha / 2)):
            if math.isinf(size):
                found = pdtrik(tail, mean[at]) if math.exp(-mean[at]) < tail else 0.0
            else:
                found = bdtrik(tail, size, chance) if (1 - chance) ** size < tail else 0.0
            ends[at] = math.ceil(found - 1e-9) if math.isfinite(found) else mean[at]
    return np.minimum(low, mean), np.maximum(high, mean)


def _scores(data: Scored, square: float, *, real: bool) -> dict[str, float]:
    """Measure how good the scores are, and how far they are off; ``square`` is the sum of w (y - p)^2 over all rows."""
    total = float(data.w.sum())
    means = {"observed": float(data.w @ data.y) / total, "expected": float(data.w @ data.p) / total}
    if real:
        return means | {"rmse": math.sqrt(square / total)}
    split = measures.corp(*data)
    within = square / total - split.score  # of outcomes of one score, where sums stand for rows; else nothing
    found = means | {
        "brier": split.score + within, "miscalibration": split.miscalibration, "discrimination": split.discrimination,
        "uncertainty": split.uncertainty + within, "log loss": measures.log_loss(*data),
        "normalized entropy": measures.normalized_entropy(*data), "auc": (1 + measures.prr(data.y, -data.p, data.w)) / 2,
    }  # fmt: skip
    try:
        line = measures.slope_intercept(*data)
        names = {"slope": "slope", "intercept": "intercept", "in the large": "intercept_alone"}
        for name, of in names.items():
            found |= {name: getattr(line, of), f"{name}_se": getattr(line, f"{of}_se")}
    except DataError:  # one outcome, one score, or a score that parts them: no line is best
        found |= dict.fromkeys(
            ("slope", "slope_se", "intercept", "intercept_se", "in the large", "in the large_se"), math.nan
        )
    return found


def _called(data: Scored) -> Called:
    thresholds = np.arange(THRESHOLDS) / (THRESHOLDS - 1)  # so that a score of 0.57 reaches a threshold of 0.57
    at = np.searchsorted(data.p, thresholds, side="left")
    rows, positives = (np.append(np.cumsum(column[::-1])[::-1], 0.0)[at] for column in (data.w, data.w * data.y))
    return Called(thresholds, rows, positives)


def fingerprint(rows: Rows) -> str:
    """Digest outcomes, predictions and weights in the order in which they were read."""
    back = np.empty(len(rows), np.int64)
    back[rows.order] = np.arange(len(rows))
    w = rows.w[back] if len(rows.w) else np.ones(len(rows))
    digests = [hashlib.sha256() for _ in range(3)]
    digest(outcomes(rows.p, rows.e, rows.w if len(rows.w) else w)[back], rows.p[back], w, digests)
    return sealed(digests)
