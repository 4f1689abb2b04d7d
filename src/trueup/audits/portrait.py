"""What the whole of an audit looks like: its scores, where they go wrong, and how good they are, in few numbers."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trueup.data.plain import plain
from trueup.errors import DataError
from trueup.metrics import scores as measures
from trueup.metrics.inference import normal_quantile
from trueup.metrics.inputs import Scored

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from trueup.kernels.tally import Rows
    from trueup.metrics.curves import ReliabilityCurve

    Floats = NDArray[np.float64]

__all__ = ["Called", "Histogram", "Path", "Portrait", "portray"]

CELLS = 40  # of the histogram
POINTS = 401  # of the path, at most
THRESHOLDS = 101


class Histogram(NamedTuple):
    """Weight and outcomes in cells of the score, all equally wide; those of probabilities begin at 0."""

    edges: Floats
    weight: Floats
    positives: Floats


class Path(NamedTuple):
    """Cumulative differences in the order of the scores: sum w (y - p) / W against the share of the weight so far.

    ``noise`` is the standard deviation that the sum would have so far if the scores were right.
    """

    share: Floats
    value: Floats
    noise: Floats


class Called(NamedTuple):
    """Weight and outcomes of the rows with scores from each threshold on."""

    threshold: Floats
    rows: Floats
    positives: Floats


@dataclass(frozen=True, eq=False)
class Portrait:
    """The whole in few numbers; see the names.

    ``low`` and ``high`` say where the bins of the reliability curve would lie if the scores were right. ``scores`` has
    measures by name, NaN where one has no meaning. ``fingerprint`` is a digest of outcomes, predictions and weights.
    """

    histogram: Histogram
    path: Path
    low: Floats
    high: Floats
    scores: Mapping[str, float]
    called: Called | None
    fingerprint: str

    def to_dict(self) -> dict[str, Any]:
        """Give plain values fit for JSON; what is not finite becomes None."""
        called = None if self.called is None else plain(self.called._asdict())
        return {
            "histogram": plain(self.histogram._asdict()), "path": plain(self.path._asdict()),
            "consistency": plain({"low": self.low, "high": self.high}), "scores": plain(dict(self.scores)),
            "called": called, "fingerprint": self.fingerprint,
        }  # fmt: skip


def portray(rows: Rows, curve: ReliabilityCurve | None, alpha: float) -> Portrait:
    """Draw the portrait of rows in the order of their scores; ``curve`` is their reliability curve."""
    w = rows.w if len(rows.w) else np.ones(len(rows))
    y = rows.p + rows.e / w
    if not rows.real:
        y = np.clip(y, 0.0, 1.0)
        whole = np.rint(y)
        y = np.where(np.abs(y - whole) < 1e-12, whole, y)  # what was 0 or 1 is so again
    data = Scored(y, rows.p, w)
    spread = _real_spread(rows) if rows.real else data.w**2 * data.p * (1 - data.p)
    low, high = (np.empty(0),) * 2 if curve is None else _consistency(data, curve, alpha, spread, real=rows.real)
    return Portrait(
        _histogram(data, real=rows.real), _path(rows, data, spread), low, high, _scores(data, real=rows.real),
        None if rows.real else _called(data), _fingerprint(rows, data),
    )  # fmt: skip


def _real_spread(rows: Rows) -> Floats:
    """Share the variance of real outcomes out among the rows, by successive differences, as the test does.

    A square of a residual would hold the error that is looked for. What a distinct score adds stands at its last row.
    """
    last = np.flatnonzero(np.append(rows.step[1:] != rows.step[:-1], True))
    first = np.append(0, last[:-1] + 1)
    count = last - first + 1
    mean = np.add.reduceat(rows.e, first) / count
    within = np.add.reduceat((rows.e - np.repeat(mean, count)) ** 2, first)
    between = np.append(0.0, (within / count)[1:] + (within / count)[:-1] + np.diff(mean) ** 2)
    spread = np.zeros(len(rows))
    spread[last] = (within + 0.5 * between) * len(rows) / max(len(rows) - 1, 1)
    return spread


def _histogram(data: Scored, *, real: bool) -> Histogram:
    low, high = (float(data.p[0]), float(data.p[-1])) if real else (0.0, min(1.0, 1.02 * float(data.p[-1])))
    edges = np.linspace(low, high if high > low else low + 1.0, CELLS + 1)
    at = np.clip(np.searchsorted(edges, data.p, side="right") - 1, 0, CELLS - 1)
    weight, positives = (np.asarray(np.bincount(at, column, CELLS), np.float64) for column in (data.w, data.w * data.y))
    return Histogram(edges, weight, positives)


def _path(rows: Rows, data: Scored, spread: Floats) -> Path:
    """Follow the sum from score to score; of many places keep some, with the highest and the lowest."""
    last = np.flatnonzero(np.append(rows.step[1:] != rows.step[:-1], True))
    total = float(data.w.sum())
    value = np.append(0.0, np.cumsum(rows.e)[last] / total)
    share = np.append(0.0, np.cumsum(data.w)[last] / total)
    noise = np.append(0.0, np.sqrt(np.cumsum(spread)[last]) / total)
    if len(value) > POINTS:
        near = np.searchsorted(share, np.linspace(0, 1, POINTS - 3)).clip(0, len(share) - 1)
        kept = np.unique(np.concatenate([near, [int(np.argmax(value)), int(np.argmin(value)), len(share) - 1]]))
        share, value, noise = share[kept], value[kept], noise[kept]
    return Path(share, value, noise)


def _consistency(
    data: Scored, curve: ReliabilityCurve, alpha: float, spread: Floats, *, real: bool
) -> tuple[Floats, Floats]:
    """Say where the mean outcome of each bin would lie if the scores were right, pointwise."""
    starts = np.append(0, np.cumsum(curve.rows)[:-1])
    variance = np.add.reduceat(spread, starts)
    if real:
        half = normal_quantile(alpha) * np.sqrt(variance) / curve.weight
        return curve.predicted - half, curve.predicted + half
    single = np.add.reduceat(data.w * data.p * (1 - data.p), starts)
    # What one outcome weighs, as Kish's size has it, each by how much it may vary: so the variance is below the mean.
    unit = np.where(single > 0, variance / np.where(single > 0, single, 1.0), 1.0)
    low, high = _count_limits(curve.predicted * curve.weight / unit, variance / unit**2, alpha)
    return tuple(np.clip(end * unit / curve.weight, 0.0, 1.0) for end in (low, high))  # type: ignore[return-value]


def _count_limits(mean: Floats, variance: Floats, alpha: float) -> tuple[Floats, Floats]:
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


def _scores(data: Scored, *, real: bool) -> dict[str, float]:
    """Measure how good the scores are, and how far they are off."""
    total = float(data.w.sum())
    means = {"observed": float(data.w @ data.y) / total, "expected": float(data.w @ data.p) / total}
    if real:
        return means | {"rmse": math.sqrt(float(data.w @ (data.y - data.p) ** 2) / total)}
    split = measures.corp(*data)
    found = means | {
        "brier": split.score, "miscalibration": split.miscalibration, "discrimination": split.discrimination,
        "uncertainty": split.uncertainty, "log loss": measures.log_loss(*data),
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


def _fingerprint(rows: Rows, data: Scored) -> str:
    """Digest outcomes, predictions and weights in the order in which they were read."""
    back = np.empty(len(rows), np.int64)
    back[rows.order] = np.arange(len(rows))
    digest = hashlib.sha256()
    for column in data:
        digest.update(np.ascontiguousarray(column[back], "<f8").tobytes())
    return digest.hexdigest()
