"""Tell whether scores come from where the labelled ones came from: a bound holds only while they do."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trueup.decisions.inputs import frames_within
from trueup.errors import ShiftWarning

if TYPE_CHECKING:
    from trueup._types import FloatArray


FREE, STEPS = 0.1, 0.25  # standard deviations that scores may move for nothing, and where other models gave them
ALPHA = 0.001  # how often scores that did not move are said to have
NOTICED = 0.02  # a distance below this is not worth a word, however certain


@dataclass(frozen=True)
class Moved:
    """How far two samples of scores are apart: the largest difference of their distribution functions beyond small moves.

    It is that of Kolmogorov, but that scores may move by a tenth of their standard deviation for nothing: where they come
    in steps, a step that moved a little would move all rows on it across. Rows that a calibrator held out were scored by
    models of other rows, whose steps are elsewhere: a quarter is forgiven there.
    """

    distance: float
    p_value: float

    @property
    def matters(self) -> bool:
        """Say whether it is more than chance, and large enough to matter."""
        return self.p_value < ALPHA and self.distance >= NOTICED


def compare_scores(
    one: FloatArray,
    other: FloatArray,
    free: float = FREE,
    weight: FloatArray | None = None,
    other_weight: FloatArray | None = None,
) -> Moved:
    """Compare two samples of scores; rows of other weights count as so many equal ones as would be as sure.

    Examples
    --------
    >>> compare_scores(np.linspace(0, 1, 500), np.linspace(0, 0.5, 500)).matters
    True
    """
    from scipy.special import kolmogorov

    first, second = _Sample(one, weight), _Sample(other, other_weight)
    step = free * first.deviation
    distance = max(0.0, first.above(second, step), second.above(first, step))
    root = math.sqrt(first.rows * second.rows / (first.rows + second.rows))
    return Moved(distance, float(kolmogorov((root + 0.12 + 0.11 / root) * distance)))


class _Sample:
    """Scores, ascending, and the share of rows below each place."""

    def __init__(self, score: FloatArray, weight: FloatArray | None) -> None:
        if weight is None or weight.min() == weight.max():
            self.score, self.rows = np.sort(score), float(len(score))
            self.below = np.arange(len(score) + 1) / len(score)
            self.deviation = float(self.score.std())
            return
        order = np.argsort(score, kind="stable")
        self.score, below = score[order], np.append(0.0, np.cumsum(weight[order]))
        self.below, share = below / below[-1], weight[order] / below[-1]
        self.rows = 1 / float(share @ share)
        self.deviation = math.sqrt(float(share @ (self.score - share @ self.score) ** 2))

    def up_to(self, score: FloatArray) -> FloatArray:
        """Give the share of rows with scores up to each of these."""
        return np.asarray(self.below[np.searchsorted(self.score, score, side="right")])

    def above(self, other: _Sample, step: float) -> float:
        """Give by how much its distribution function is above another, a little to the right: its scores lie lower."""
        return float(np.max(self.up_to(self.score) - other.up_to(self.score + step)))


def warn_of_moved_scores(
    labelled: FloatArray,
    scores: FloatArray,
    free: float,
    labelled_weight: FloatArray | None = None,
    weight: FloatArray | None = None,
) -> Moved:
    """Compare scores with the labelled ones, and warn where they moved."""
    found = compare_scores(labelled, scores, free, labelled_weight, weight)
    if found.matters:
        warnings.warn(
            f"the scores have moved: their distribution is {found.distance:.3f} away from that of the labelled rows "
            f"(largest difference of shares below a score, small moves forgiven; p = {found.p_value:.2g}); what labelled "
            "rows say of errors need not hold here",
            ShiftWarning,
            stacklevel=frames_within() + 1,
        )
    return found


def warn_of_uncorrected_scores(after: FloatArray, before: FloatArray, scores: FloatArray) -> bool:
    """Warn where scores are like those that a calibrator was given, and not like those that it gave; say whether."""
    fixed, raw = (compare_scores(known, scores, free=0.0) for known in (after, before))
    uncorrected = fixed.matters and raw.distance < fixed.distance / 2
    if uncorrected:
        warnings.warn(
            "the scores look like those before the correction, of which the calibrator's held-out rows say nothing; pass "
            "what its predict gave",
            ShiftWarning,
            stacklevel=frames_within() + 1,
        )
    return uncorrected
