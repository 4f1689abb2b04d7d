"""Detection of a shift between the scores to decide on and the labelled scores: corrections apply only without one."""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trueup.decisions.inputs import frames_in_package
from trueup.errors import ShiftWarning

if TYPE_CHECKING:
    from trueup._types import FloatArray
    from trueup.decisions.inputs import UnlabelledRows
    from trueup.metrics.inputs import Scored


SHIFT_TOLERANCE = 0.1  # standard deviations by which scores may move
CROSS_FITTED_TOLERANCE = 0.25  # the same where the labelled rows were scored by other fold models, with steps elsewhere
ALPHA = 0.001  # false alarm rate
SMALLEST_DISTANCE = 0.02  # a smaller distance is not reported, however significant


class ScoreShift(NamedTuple):
    """Distance of two score distributions: the largest difference of their distribution functions, and its p-value.

    This is the Kolmogorov-Smirnov distance, except that scores may move by a tolerance: where scores come in steps, a
    step that moved a little would otherwise count all of its rows.
    """

    distance: float
    p_value: float

    @property
    def relevant(self) -> bool:
        """Whether the shift is significant and large enough to report."""
        return self.p_value < ALPHA and self.distance >= SMALLEST_DISTANCE


def compare_scores(
    reference: FloatArray,
    scores: FloatArray,
    tolerance: float = SHIFT_TOLERANCE,
    reference_weight: FloatArray | None = None,
    weight: FloatArray | None = None,
) -> ScoreShift:
    """Compare two samples of scores; weights enter the p-value through the effective sample size."""
    from scipy.special import kolmogorov

    first, second = _Distribution(reference, reference_weight), _Distribution(scores, weight)
    step = tolerance * first.deviation
    distance = max(0.0, first.excess(second, step), second.excess(first, step))
    root = math.sqrt(first.size * second.size / (first.size + second.size))
    return ScoreShift(distance, float(kolmogorov((root + 0.12 + 0.11 / root) * distance)))


class _Distribution:
    """The empirical distribution function of a weighted sample."""

    def __init__(self, score: FloatArray, weight: FloatArray | None) -> None:
        if weight is None or weight.min() == weight.max():
            self.score, self.size = np.sort(score), float(len(score))
            self.cumulative = np.arange(len(score) + 1) / len(score)
            self.deviation = float(self.score.std())
            return
        order = np.argsort(score, kind="stable")
        self.score, cumulative = score[order], np.append(0.0, np.cumsum(weight[order]))
        self.cumulative, share = cumulative / cumulative[-1], weight[order] / cumulative[-1]
        self.size = 1 / float(share @ share)
        self.deviation = math.sqrt(float(share @ (self.score - share @ self.score) ** 2))

    def at(self, score: FloatArray) -> FloatArray:
        """Return the share of rows with a score of at most each value."""
        return np.asarray(self.cumulative[np.searchsorted(self.score, score, side="right")])

    def excess(self, other: _Distribution, step: float) -> float:
        """Return how far this distribution function lies above the other one moved left by ``step``."""
        return float(np.max(self.at(self.score) - other.at(self.score + step)))


def warn_of_shift(labelled: Scored, rows: UnlabelledRows, tolerance: float, uncorrected: FloatArray | None = None) -> float:
    """Warn if the scores have shifted from the labelled ones, and return the distance.

    ``uncorrected`` are the labelled rows' scores before a calibrator corrected them: if the scores resemble those
    instead, the warning says that the calibrator was not applied.
    """
    shift = compare_scores(labelled.p, rows.p, tolerance, labelled.w, rows.w)
    message = ""
    if uncorrected is not None:
        after, before = (compare_scores(known, rows.p, tolerance=0.0) for known in (labelled.p, uncorrected))
        if after.relevant and before.distance < after.distance / 2:
            message = (
                "the scores look like those before the correction, and the calibrator's held-out rows say nothing about "
                "these; pass the output of its predict"
            )
    if not message and shift.relevant:
        message = (
            f"the score distribution has shifted: it is {shift.distance:.3f} away from that of the labelled rows (largest "
            f"difference of the distribution functions beyond a tolerance; p = {shift.p_value:.2g}); errors measured on "
            "the labelled rows may not apply here"
        )
    if message:
        warnings.warn(message, ShiftWarning, stacklevel=frames_in_package() + 1)
    return shift.distance
