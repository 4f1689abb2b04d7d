"""How many rows an audit or a monitor needs to find an error, and which errors so many rows show.

An error adds the same shift d to the logits of all scores p of a segment: the outcomes have mean q = expit(logit p + d).
Power is that of the default p-value, refined as an audit does (`trueup.metrics.inference`), at the level of the segment.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from trueup.kernels import tails
from trueup.kernels._jit import run
from trueup.metrics import inference

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trueup._types import AnyArray, FloatArray

MAX_ATOMS = 400  # values that represent a distribution of scores
MAX_SHIFT = 12.0  # of the logit
MAX_ROWS = 1e15
SMALL = 100  # rows below which power is simulated
DRAWS = 4_000
MAX_TILT = 60.0
CONTINUITY = 0.583  # standard deviations of a step by which the maximum of a walk in steps stays below a continuous one
MAX_BEYOND = math.sqrt(2.0 / math.pi)  # standard deviations by which the range exceeds the sum if there is no error
HALF_LIFE_WEEKS = 26.0  # of the prior of a monitor on the week in which an error begins
START_COST, CHANGE_COST = 2.6, 0.4  # of the mixture over alternatives, in nats
MEAN_COST = 0.8  # by which the evidence exceeds that on average
OVERALL_SHARE, LATER_SHARE = 0.10, 0.10  # of a monitor: of alpha; of a combination of columns, kept for new segments


@dataclass(frozen=True, eq=False)
class PlannedScores:
    """A distribution of scores: values in ascending order, and the probability of each.

    ``steps`` is the effective number of distinct scores, infinite if hardly any two rows have equal ones.
    """

    scores: FloatArray
    mass: FloatArray
    steps: float = math.inf

    @classmethod
    def of(cls, scores: FloatArray) -> PlannedScores:
        """Return the distribution of some scores, as the means of at most MAX_ATOMS groups of equal size."""
        ordered = np.sort(np.asarray(scores, np.float64))
        values, counts = np.unique(ordered, return_counts=True)
        steps = math.inf if 2 * len(values) > len(ordered) else float(len(ordered) ** 2 / (counts**2).sum())
        if len(values) > MAX_ATOMS:
            starts = np.linspace(0, len(ordered), MAX_ATOMS + 1).astype(np.int64)[:-1]
            counts = np.diff(np.append(starts, len(ordered)))
            values = np.add.reduceat(ordered, starts) / counts
        return cls(values, counts / len(ordered), steps)

    @classmethod
    def logit_normal(cls, prevalence: float, spread: float) -> PlannedScores:
        """Return the distribution of scores whose logits are normal, with this spread and prevalence."""
        if spread == 0.0:
            return cls(np.array([prevalence]), np.ones(1), 1.0)
        nodes, weights = np.polynomial.hermite_e.hermegauss(80)
        kept = weights > 1e-14 * weights.max()
        nodes, weights = nodes[kept], weights[kept] / weights[kept].sum()
        centre = _increasing_root(lambda m: float(_expit(m + spread * nodes) @ weights) - prevalence, -700.0, 700.0)
        return cls(_expit(centre + spread * nodes), weights)

    @property
    def mean(self) -> float:
        """The expected rate of the outcome."""
        return self.expect(self.scores)

    def expect(self, values: FloatArray) -> float:
        """Return the mean of a function of the score, given at the scores."""
        return float(values @ self.mass)

    @functools.cached_property
    def _exponents(self) -> dict[float, tuple[FloatArray, FloatArray]]:
        """The exponent l x - K(l) per row of a mean residual x = K'(l), and x, for sums that rise (1) and fall (-1)."""
        tilts = np.geomspace(1e-5, MAX_TILT, 500)[:, None]
        p, mean, both = self.scores, self.mean, {}
        for s in (1.0, -1.0):
            grown = np.expm1(s * tilts)
            base = 1.0 + p * grown
            cumulant = np.log1p(p * grown) @ self.mass - s * tilts[:, 0] * mean
            x = s * ((p * (1.0 + grown) / base) @ self.mass - mean)
            both[s] = (np.maximum.accumulate(tilts[:, 0] * x - cumulant), x)
        return both

    def refined_reach(self, exponent: float, s: float) -> float:
        """Return the mean residual per row whose saddlepoint exponent is this one; infinite if there is none."""
        known, x = self._exponents[s]
        if exponent > known[-1]:
            return math.inf
        if exponent < known[20]:  # differences of rounding errors; the sum is normal there
            variance = self.expect(self.scores * (1.0 - self.scores))
            return math.sqrt(2.0 * exponent * variance)
        return math.exp(float(np.interp(math.log(exponent), np.log(known[20:]), np.log(x[20:]))))


@dataclass(frozen=True, eq=False)
class ScoreError:
    """An error that adds ``shift`` to the logits of all scores; moments are those of one row.

    ``moved`` is E(q - p), ``variance`` and ``skew`` the cumulants of y - p under calibration, ``raised`` and ``lean`` under
    the error, ``noise`` = E q(1-q); ``divergence`` is the mean Kullback-Leibler divergence of p from q.
    """

    distribution: PlannedScores
    shift: float
    moved: float
    variance: float
    skew: float
    noise: float
    raised: float
    lean: float
    beyond: float
    divergence: float

    @classmethod
    def of_shift(cls, distribution: PlannedScores, shift: float) -> ScoreError:
        """Return the error of a shift of the logit other than zero."""
        p, expect = distribution.scores, distribution.expect
        q = _shifted(p, shift)
        with np.errstate(invalid="ignore", divide="ignore"):
            step = np.expm1(shift)
            log_base = np.log1p(p * step)  # of (1 - p) / (1 - q)
        moved = expect(q - p)
        noise, lean = expect(q * (1.0 - q)), expect(q * (1.0 - q) * (1.0 - 2.0 * q))
        error = cls(
            distribution, shift, moved, expect(p * (1.0 - p)), expect(p * (1.0 - p) * (1.0 - 2.0 * p)), noise,
            noise + expect((q - p) ** 2) - moved**2, lean, noise / abs(moved), expect(q * shift - log_base),
        )  # fmt: skip
        return error if math.copysign(1.0, moved) * lean <= 0.0 else error._with_overshoot(q)

    @classmethod
    def of_ratio(cls, distribution: PlannedScores, ratio: float) -> ScoreError:
        """Return the error with which observed/expected is ``ratio``, which is not 1 and below 1/mean."""
        p, goal = distribution.scores, ratio * distribution.mean
        low, high = (0.0, 700.0) if ratio > 1 else (-700.0, 0.0)
        return cls.of_shift(distribution, _increasing_root(lambda d: distribution.expect(_shifted(p, d)) - goal, low, high))

    def _with_overshoot(self, q: FloatArray) -> ScoreError:
        """Return this error with the mean by which the range exceeds the sum, 2/a: E log(1 + q(e^-sa - 1)) + sa E p = 0."""
        s, mean, expect = math.copysign(1.0, self.moved), self.distribution.mean, self.distribution.expect

        def excess(a: float) -> float:
            return expect(np.log1p(q * math.expm1(-s * a))) + s * a * mean

        # The function is convex, falls from 0 at a = 0, and rises to infinity.
        low = high = abs(self.moved) / self.raised
        while excess(high) <= 0.0 and high < MAX_TILT:
            low, high = high, 2.0 * high
        root = _increasing_root(excess, low, high)
        return ScoreError(**{**{name: getattr(self, name) for name in self.__dataclass_fields__}, "beyond": 2.0 / root})

    @property
    def sign(self) -> float:
        """1 if outcomes are more frequent than the scores say, else -1."""
        return math.copysign(1.0, self.moved)

    @property
    def ratio(self) -> float:
        """Observed/expected."""
        return 1.0 + self.moved / self.distribution.mean

    def reach(self, rows: float, level: float, s: float) -> float:
        """Return the smallest range of the sum of residuals whose p-value is at most ``level``; ``s`` is 1 upwards."""
        plain, skewed = inference.range_quantile(level), inference.range_quantile(level, inflated=True)
        v, k3 = rows * self.variance, rows * self.skew
        default = plain * math.sqrt(v)
        if s * k3 > 0:
            default = run(tails.detectable, 2, v, k3, plain, skewed)
        refined = rows * self.distribution.refined_reach(skewed * skewed / (2.0 * rows), s)
        return float(min(default, refined))

    def power(self, rows: float, level: float) -> float:
        """Return the probability with which an audit of so many rows of the segment finds the error, by its moments.

        The sum of residuals has an Edgeworth correction for its skewness, and the range exceeds it by ``beyond``, less if
        there are few distinct scores (Siegmund 1979).
        """
        deviation = math.sqrt(rows * self.raised)
        beyond = min(self.beyond, MAX_BEYOND * deviation)
        beyond *= math.exp(-2.0 * CONTINUITY * deviation / (beyond * math.sqrt(self.distribution.steps)))
        t = (self.reach(rows, level, self.sign) - beyond - rows * abs(self.moved)) / deviation
        g = self.sign * self.lean * rows / deviation**3
        density = math.exp(-0.5 * t * t) / math.sqrt(2.0 * math.pi)
        value = 0.5 * math.erfc(t / math.sqrt(2.0)) + g / 6.0 * (t * t - 1.0) * density
        return min(max(value, 0.0), 1.0)

    def simulated_power(self, rows: int, level: float, draws: int = DRAWS) -> float:
        """Return the power for few rows, by simulation: where moments do not describe the distribution of the sum."""
        p, uniform = _draw(self.distribution, draws, rows)
        y = uniform < _shifted(p, self.shift)
        span, rise = _ranges(p, y - p, tied=math.isfinite(self.distribution.steps))
        deviation = np.sqrt((p * (1.0 - p)).sum(axis=1) / (rows * self.variance))
        up, down = (self.reach(rows, level, s) for s in (1.0, -1.0))
        limit = np.where(rise >= span * (1.0 - 1e-9), up, down) * deviation
        return float(np.mean(span >= limit))

    def audit_rows(self, level: float, power: float) -> float:
        """Return the rows of the segment with which an audit finds the error with this power."""
        if self.power(MAX_ROWS, level) < power:
            return math.inf
        return math.exp(_increasing_root(lambda n: self.power(math.exp(n), level) - power, 0.0, math.log(MAX_ROWS)))

    def monitor_rows(self, cost: float, power: float | None) -> float:
        """Return the rows of the segment until a monitor raises its alarm with this power, or on average if it is None.

        The evidence grows by ``divergence`` per row with standard deviation |d| sqrt(E q(1-q)), to ``cost`` (`alarm_cost`).
        """
        if power is None:
            return (cost + MEAN_COST) / self.divergence
        spread = NormalDist().inv_cdf(power) * abs(self.shift) * math.sqrt(self.noise)
        root = (spread + math.sqrt(spread * spread + 4.0 * self.divergence * cost)) / (2.0 * self.divergence)
        return root * root

    def monitor_power(self, rows: float, cost: float) -> float:
        """Return the probability with which a monitor has raised its alarm after so many rows."""
        deviation = abs(self.shift) * math.sqrt(rows * self.noise)
        return 0.5 * math.erfc((cost - rows * self.divergence) / deviation / math.sqrt(2.0))


def detectable_error(
    distribution: PlannedScores, up: bool, found: Callable[[ScoreError], float], power: float  # noqa: FBT001
) -> ScoreError | None:  # fmt: skip
    """Return the smallest error upwards or downwards for which ``found`` is at least ``power``; None if there is none."""
    s = 1.0 if up else -1.0
    if found(ScoreError.of_shift(distribution, s * MAX_SHIFT)) < power:
        return None
    size = _increasing_root(
        lambda d: found(ScoreError.of_shift(distribution, s * math.exp(d))) - power,
        math.log(1e-6),
        math.log(MAX_SHIFT),
        tolerance=1e-4,
    )
    return ScoreError.of_shift(distribution, s * math.exp(size))


def alarm_cost(level: float, change_week: int | None = None) -> float:
    """Return the logarithm of the evidence, in nats, that an alarm of a monitor takes at the ``level`` of a segment.

    log(1/level) and what the mixture over alternatives costs; after a change in a week, also the prior of that week. The
    costs were found by simulation.
    """
    if change_week is None:
        return START_COST - math.log(level)
    prior = HALF_LIFE_WEEKS / ((HALF_LIFE_WEEKS + change_week - 1) * (HALF_LIFE_WEEKS + change_week))
    return CHANGE_COST - math.log(level) - math.log(prior)


def audit_share(levels: Sequence[int], depth: int, combined: int) -> float:
    """Return the share of alpha of a segment of ``combined`` columns, of those with the most ``levels``, in an audit.

    Every combination of levels is taken to have enough rows.
    """
    cells = math.prod(sorted(levels, reverse=True)[:combined])
    return 1.0 / ((min(depth, len(levels)) + 1) * math.comb(len(levels), combined) * cells)


def monitor_share(levels: Sequence[int], depth: int, combined: int, score_bands: int) -> float:
    """Return the share of alpha of a segment of ``combined`` columns, of those with the most ``levels``, in a monitor.

    Columns are taken to be categories: each has one more segment, which pools rare and new levels. The score bands are one
    more column.
    """
    columns = len(levels) + (score_bands > 1)
    if not columns:
        return 1.0
    if not combined:
        return OVERALL_SHARE
    cells = math.prod(sorted(levels, reverse=True)[:combined]) + (combined == 1)
    share = (1.0 - OVERALL_SHARE) / (min(depth, columns) * math.comb(columns, combined))
    return share * (1.0 - LATER_SHARE) / cells


@functools.lru_cache(maxsize=4)
def _draw(distribution: PlannedScores, draws: int, rows: int) -> tuple[FloatArray, FloatArray]:
    """Draw sorted scores and as many uniform numbers, both (draws, rows), with a seed of their own."""
    random = np.random.default_rng(rows)
    p = np.sort(random.choice(distribution.scores, (draws, rows), p=distribution.mass), axis=1)
    return p, random.random((draws, rows))


def _ranges(p: FloatArray, e: FloatArray, *, tied: bool) -> tuple[FloatArray, FloatArray]:
    """Return range and largest ascent of the cumulative differences of sorted rows; equal scores may be one step."""
    draws, rows = p.shape
    path = np.zeros((draws, rows + 1))
    np.cumsum(e, axis=1, out=path[:, 1:])
    last = np.ones((draws, rows + 1), bool)
    if tied:
        last[:, 1:-1] = p[:, 1:] != p[:, :-1]
    low = np.minimum.accumulate(np.where(last, path, math.inf), axis=1)
    seen = np.where(last, path, -math.inf)
    return seen.max(axis=1) - low[:, -1], (seen - low).max(axis=1)


def _increasing_root(function: Callable[[float], float], low: float, high: float, tolerance: float = 1e-9) -> float:
    """Return where an increasing function becomes positive, by bisection."""
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if function(middle) > 0.0 else (middle, high)
        if high - low <= tolerance:
            break
    return high


def _shifted(p: FloatArray, shift: float) -> AnyArray:
    """Return expit(logit p + shift), exactly p where that is 0 or 1."""
    if shift > 0:
        return np.asarray(p / (p + (1.0 - p) * math.exp(-shift)))
    return np.asarray(p * math.exp(shift) / (1.0 - p + p * math.exp(shift)))


def _expit(x: FloatArray) -> AnyArray:
    return np.asarray(1.0 / (1.0 + np.exp(-np.clip(x, -700.0, 700.0))))
