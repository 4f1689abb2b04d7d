"""Tell whether scores come from where the labelled ones came from: a bound holds only while they do."""

from __future__ import annotations

import math
import sys
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trueup.errors import ShiftWarning

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

__all__ = ["Moved", "compare_scores", "warn_of_moved_scores"]

FREE, STEPS = 0.1, 0.25  # standard deviations that scores may move for nothing, and where other models gave them
ALPHA = 0.001  # how often scores that did not move are said to have
NOTICED = 0.02  # a distance below this is not worth a word, however certain


@dataclass(frozen=True)
class Moved:
    """How far two samples of scores are apart: the largest difference of their distribution functions (Kolmogorov).

    Scores may move by some share of their standard deviation for nothing: where they come in steps, a step that moved a
    little would move all rows on it across. Rows that a calibrator held out were scored by models of other rows, whose
    steps are elsewhere: more is forgiven there.
    """

    distance: float
    p_value: float

    @property
    def matters(self) -> bool:
        """Say whether it is more than chance, and large enough to matter."""
        return self.p_value < ALPHA and self.distance >= NOTICED


def compare_scores(one: Floats, other: Floats, free: float = FREE) -> Moved:
    """Compare two samples of scores.

    Examples
    --------
    >>> compare_scores(np.linspace(0, 1, 500), np.linspace(0, 0.5, 500)).matters
    True
    """
    from scipy.special import kolmogorov

    one, other = np.sort(one), np.sort(other)
    step = free * float(one.std())
    distance = max(0.0, _above(one, other, step), _above(other, one, step))
    rows = len(one) * len(other) / (len(one) + len(other))
    root = math.sqrt(rows)
    return Moved(distance, float(kolmogorov((root + 0.12 + 0.11 / root) * distance)))


def _above(one: Floats, other: Floats, step: float) -> float:
    """Give by how much one distribution function is above the other, a little to the right: the scores lie lower."""
    here = np.searchsorted(one, one, side="right") / len(one)
    there = np.searchsorted(other, one + step, side="right") / len(other)
    return float(np.max(here - there))


def warn_of_moved_scores(labelled: Floats, scores: Floats, free: float) -> Moved:
    """Compare scores with the labelled ones, and warn where they moved."""
    found = compare_scores(labelled, scores, free)
    if found.matters:
        warnings.warn(
            f"the scores have moved: their distribution is {found.distance:.3f} away from that of the labelled rows "
            f"(largest difference of shares below a score, p = {found.p_value:.2g}); what labelled rows say of errors need "
            "not hold here",
            ShiftWarning,
            stacklevel=_frames_within() + 1,
        )
    return found


def _frames_within() -> int:
    """Count the frames of this package that are running, so that a warning points at the line which called it."""
    frame, within = sys._getframe(1), 1
    package = __name__.partition(".")[0]
    while frame.f_back is not None and str(frame.f_back.f_globals.get("__name__", "")).partition(".")[0] == package:
        frame, within = frame.f_back, within + 1
    return within
