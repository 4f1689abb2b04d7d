"""E-processes: evidence against calibration that may be looked at any time, for many segments at once, in logarithms.

The evidence of a segment is a martingale with mean 1 while its scores are calibrated given the past, so that it ever
reaches 1/a with probability at most a (Ville 1939). It is a mixture of likelihood ratios over alternatives (shifts and
slopes of the logit) and over the week in which an error begins (Robbins & Siegmund 1974; Shiryaev 1963).
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from trueup.kernels.sequential import CONTRADICTIONS, OUTCOMES, ROWS, SCALE, SCORES
from trueup.metrics.planning import HALF_LIFE_WEEKS

if TYPE_CHECKING:
    from trueup._types import AnyArray, FloatArray, IntArray

Budget = Literal["life", "year"]
YEAR_WEEKS = 52.0
SHIFTS = tuple(sign * 0.0125 * 2.0**k for sign in (1, -1) for k in range(9))  # of the logit
SHIFT_WEIGHTS = 2 * (0.25, 0.5, 1.0, 2.0, 2.0, 2.0, 1.0, 0.5, 0.25)
SLOPES = (0.5, 0.7, 0.85, 1.2, 1.5, 2.0)
SLOPE_SHARE = 0.2  # of the prior weight
INTERVAL_SHIFTS = tuple(sign * 0.025 * 2.0 ** (i / 2) for sign in (1, -1) for i in range(16))


@dataclass(frozen=True)
class Alternatives:
    """The alternatives to calibration: shift and slope of the logit of the score, and the logarithm of the prior weight."""

    shifts: FloatArray
    slopes: FloatArray
    log_weights: FloatArray

    def __len__(self) -> int:
        return len(self.shifts)


@functools.cache
def alternatives() -> Alternatives:
    """Return the grid of alternatives: 18 shifts, then 6 slopes."""
    shift_weights = np.array(SHIFT_WEIGHTS) * (1 - SLOPE_SHARE) / sum(SHIFT_WEIGHTS)
    slope_weights = np.full(len(SLOPES), SLOPE_SHARE / len(SLOPES))
    return Alternatives(
        np.array([*SHIFTS, *np.zeros(len(SLOPES))]),
        np.array([*np.ones(len(SHIFTS)), *SLOPES]),
        np.log(np.concatenate([shift_weights, slope_weights])),
    )


def onset_prior(before: FloatArray | float, now: FloatArray | float) -> FloatArray:
    """Return the prior weight of an onset between two times, in weeks: C/(C + before) - C/(C + now), C = 26."""
    return np.asarray(HALF_LIFE_WEEKS / (HALF_LIFE_WEEKS + before) - HALF_LIFE_WEEKS / (HALF_LIFE_WEEKS + now))


def log_sum_exp(values: FloatArray) -> FloatArray:
    """Return the logarithm of the sum of exponentials along the last axis; -inf for no mass."""
    highest = values.max(axis=-1, keepdims=True)
    finite = np.where(np.isfinite(highest), highest, 0.0)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.exp(values - finite).sum(axis=-1)) + finite[..., 0])


@dataclass(eq=False)
class EProcesses:
    """The evidence of every segment, one array row each; periods are numbered, times are in weeks.

    ``steady`` has log likelihood ratios since the start, ``changed`` those mixed over onsets. ``largest`` is the highest
    log evidence at the end of any period so far, ``alarm`` the period in which a segment raised its alarm, -1 for none.
    ``rise`` is the sum of the factors of each shift since its onset ``since``, where it was last at or below zero (CUSUM);
    ``counts`` has the outcomes, expected outcomes and rows since then.
    """

    start: FloatArray  # weeks at which the segment began
    steady: FloatArray
    changed: FloatArray
    evidence: FloatArray  # log E now
    largest: FloatArray
    alarm: IntArray
    contradictions: IntArray
    contradicted: IntArray  # the period of the first contradiction, -1 for none
    rise: FloatArray
    since: IntArray
    counts: FloatArray  # (segments, shifts, 3)
    totals: FloatArray  # outcomes, expected outcomes and rows since the start, (segments, 3)

    @classmethod
    def empty(cls, segments: int, start: float = 0.0) -> EProcesses:
        """Return processes without evidence that begin at ``start``."""
        width, shifts = len(alternatives()), len(SHIFTS)
        return cls(
            np.full(segments, start), np.zeros((segments, width)), np.full((segments, width), -np.inf), np.zeros(segments),
            np.zeros(segments), np.full(segments, -1), np.zeros(segments, np.int64), np.full(segments, -1),
            np.zeros((segments, shifts)), np.full((segments, shifts), -1), np.zeros((segments, shifts, 3)),
            np.zeros((segments, 3)),
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.start)

    def append(self, segments: int, start: float) -> None:
        """Add segments that begin at ``start``."""
        more = EProcesses.empty(segments, start)
        for item in fields(self):
            setattr(self, item.name, np.concatenate([getattr(self, item.name), getattr(more, item.name)]))

    def copy(self) -> EProcesses:
        """Return a copy that shares no memory."""
        return EProcesses(*(getattr(self, item.name).copy() for item in fields(self)))

    def close(self, sums: IntArray, period: int, before: float, now: float, log_limits: FloatArray, budget: Budget) -> None:
        """Add the sums of one period, which lasted from ``before`` to ``now``; ``log_limits`` are those of the alarm."""
        grid = alternatives()
        width = len(grid)
        factors, counts = sums[:, :width] / SCALE, sums[:, width:] / SCALE
        self.contradicted[(self.contradicted < 0) & (counts[:, CONTRADICTIONS] > 0)] = period
        self.contradictions += counts[:, CONTRADICTIONS].astype(np.int64)
        self.totals += counts[:, [OUTCOMES, SCORES, ROWS]]
        elapsed, past = now - self.start, np.maximum(before - self.start, 0.0)
        self.steady += factors
        prior = onset_prior(past, elapsed) if budget == "life" else (elapsed - past) / YEAR_WEEKS
        with np.errstate(divide="ignore"):
            self.changed = np.logaddexp(self.changed, np.log(prior)[:, None]) + factors
        changed = log_sum_exp(self.changed + grid.log_weights)
        if budget == "life":
            later = np.log(HALF_LIFE_WEEKS / (HALF_LIFE_WEEKS + elapsed))
            steady = log_sum_exp(self.steady + grid.log_weights)
            self.evidence = np.logaddexp(steady, np.logaddexp(changed, later)) - math.log(2.0)
        else:
            self.evidence = changed
        self.largest = np.maximum(self.largest, self.evidence)
        rejected = (self.evidence >= log_limits) | (self.contradictions > 0)
        self.alarm[(self.alarm < 0) & rejected] = period
        self._advance_onsets(factors[:, : len(SHIFTS)], counts[:, [OUTCOMES, SCORES, ROWS]], period)

    def _advance_onsets(self, factors: FloatArray, counts: FloatArray, period: int) -> None:
        """Start the CUSUM of every shift again where it is not above zero, then add the period (Page 1954)."""
        fresh = (self.rise <= 0.0) & (counts[:, 2:] > 0)
        self.since[fresh] = period
        self.rise[fresh] = 0.0
        self.counts[fresh] = 0.0
        self.rise += factors
        self.counts += counts[:, None, :]

    def onset(self, segment: int) -> tuple[int, int, FloatArray]:
        """Return the period in which an error most likely began, the number of its shift, and the counts since then.

        It began before its alarm; -1 is the start, if the error has changed since then.
        """
        before = (self.since[segment] >= 0) & ((self.since[segment] <= self.alarm[segment]) | (self.alarm[segment] < 0))
        best = int(np.argmax(np.where(before, self.rise[segment], -np.inf)))
        if before[best] and self.rise[segment, best] > 0:
            return int(self.since[segment, best]), best, self.counts[segment, best]
        outcomes, expected, _ = self.totals[segment].tolist()
        return -1, int(np.argmax(np.array(SHIFTS) * (1 if outcomes >= expected else -1) > 0)), self.totals[segment]


def ratio_interval(outcomes: float, expected: float, rows: float, level: float) -> tuple[float, float]:
    """Return a confidence interval of observed/expected that holds at all times, except with probability ``level``.

    It contains every ratio r with sum_j v_j exp(d_j O - n log(1 + r m (e^d_j - 1))) < 1/level: O outcomes in n rows with
    mean score m, shifts d_j of equal weight v_j. The mixture is a supermartingale if the mean outcome is r m.
    """
    if rows <= 0 or expected <= 0:
        return 0.0, math.inf
    mean = expected / rows
    shifts = np.array(INTERVAL_SHIFTS)
    growth = np.expm1(shifts)
    limit = math.log(len(shifts) / level)

    def excess(ratio: float) -> float:
        with np.errstate(invalid="ignore", divide="ignore"):
            return float(log_sum_exp(shifts * outcomes - rows * np.log1p(ratio * mean * growth))) - limit

    top = 1.0 / mean
    centre = min(outcomes / expected, top)
    low = _crossing(excess, 0.0, centre) if centre > 0 and excess(0.0) > 0 else 0.0
    high = _crossing(excess, top, centre) if centre < top and excess(top) > 0 else top
    return low, high


def _crossing(excess: Any, outside: float, inside: float) -> float:
    """Return where ``excess`` changes its sign, by bisection; it is positive ``outside`` and negative ``inside``."""
    for _ in range(60):
        middle = 0.5 * (outside + inside)
        if excess(middle) > 0:
            outside = middle
        else:
            inside = middle
    return outside


def quantise(factors: AnyArray) -> IntArray:
    """Return logarithms as the integers that are summed."""
    return np.floor(np.asarray(factors) * SCALE).astype(np.int64)
