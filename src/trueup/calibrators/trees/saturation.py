"""Is there more to be had? What a second pass of depth-2 trees, and one of deeper trees, would still gain."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.calibrators.rounds import paired_gain
from trueup.data.frame import frame_like
from trueup.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trueup._types import FloatArray


LEVELS = (10, 20, 50, 100)
MOST = 1e-2  # a gain above this is too much, however uncertain it is
SURE = 1e-3  # and one that lies above this beyond doubt is too
ERRORS = 2.0  # how many standard errors are beyond doubt


@dataclass(frozen=True)
class Saturation:
    """What a second pass would still gain on rows that neither pass has seen, and what follows for groups.

    Gains are of the mean squared error; of a real outcome, as a share of its variance. A fitted pass is not the best one
    there is: what it gains is a lower bound on what could be gained.

    Attributes
    ----------
    eps, error : float
        What the same procedure once more, on top of the corrected scores, gains (0 where it loses), and the standard error
        of such a gain: the largest of the learning rates that were tried.
    deeper, deeper_error : float
        The same of trees of depth 4, which see features act together where depth 2 does not (an exclusive or of three).
    saturated : bool
        False where one of the gains is above 0.01, or above 0.001 by two standard errors.
    rows : int
        How many rows judge.
    unit : float
        1 for probabilities; the standard deviation of a real outcome.
    span : float
        How far scores can lie apart, in this unit: 1 for probabilities.

    Notes
    -----
    Let g be the indicator of a group that the features tell apart, f the scores and f' = f rounded to m levels. The error
    ``K1(f', g) = sum_v P(f'=v) |E[g (y - v) | f'=v]|`` is at most ``sum_v P(f'=v) |E[g (y - f) | f'=v]|``, plus what
    rounding moves a score, which is at most half a step: span / (2 m). Adding ``E[y - f | f'=v, g=1]`` to the scores of the
    rows with g = 1 and f' = v is a sum of depth-2 trees (a threshold of f, then the group); it lowers the squared error by
    ``sum_v P(f'=v, g=1) E[y - f | f'=v, g=1]^2``, no less than the square of the first sum (Cauchy-Schwarz), and no more
    than the best second pass does. Hence ``K1 <= sqrt(eps) + span / (2 m)`` for all m, eps being that of the *best* pass.

    References
    ----------
    "Discretization-free Multicalibration through Loss Minimization over Tree Ensembles", arXiv 2505.17435, Lemma 4.4,
    Assumption 4.5, Theorem 4.6.
    """

    eps: float
    error: float
    deeper: float
    deeper_error: float
    saturated: bool
    rows: int
    unit: float = 1.0
    span: float = 1.0

    def rounding(self, m: int) -> float:
        """Give the most that rounding to m steps moves a score, in the unit.

        Examples
        --------
        >>> Saturation(1e-4, 0.0, 0.0, 0.0, True, 1000).rounding(10)
        0.05
        """
        if isinstance(m, bool) or not isinstance(m, (int, np.integer)) or m < 1:
            raise ArgumentError(f"m must be a whole number, 1 or more; got {m!r}", hint="10 to 100 levels are usual")
        return self.span / (2 * int(m))

    def bound(self, m: int, errors: float = ERRORS) -> float:
        """Bound the error of any group at m levels: ``sqrt(eps + errors * error) + rounding(m)``, in the unit.

        Parameters
        ----------
        m : int
            The steps that scores are rounded to later; nothing need be fitted again.
        errors : float
            How many standard errors are added to the measured gain; 0 takes it as it is.

        Examples
        --------
        >>> Saturation(1e-4, 0.0, 0.0, 0.0, True, 1000).bound(100)
        0.015
        """
        return float(np.sqrt(self.eps + errors * self.error)) + self.rounding(m)

    @property
    def sentence(self) -> str:
        """Say it in one sentence."""
        of = "" if self.unit == 1.0 else " of the outcome's variance"
        second = f"{self.eps:.2g} (s.e. {self.error:.1g})"
        deeper = f"trees of depth 4 by {self.deeper:.2g} (s.e. {self.deeper_error:.1g})"
        if self.saturated:
            unit = "" if self.unit == 1.0 else " standard deviations of the outcome"
            few, many = self.bound(LEVELS[0]), self.bound(LEVELS[-1])
            return (
                f"saturated: on held-out rows a second pass lowers the squared error by {second}{of}, {deeper}; as far "
                f"as such passes see, the error of any group is at most {few:.2g}{unit} at 10 levels, {many:.2g} at 100"
            )
        if _too_much(self.eps, self.error):
            found = f"on held-out rows a second pass still lowers the squared error by {second}{of}, {deeper}"
        else:
            found = (
                f"on held-out rows a second pass lowers the squared error by {second}{of}, but {deeper}: features act "
                "together in a way that depth 2 does not see"
            )
        return f"not saturated: {found}; go deeper: tu.MCGrad(depth=4, feature_fraction=1.0)"

    def to_frame(self, like: Any = None) -> Any:
        """Give the bound at 10, 20, 50 and 100 levels, in the library of ``like``; a dict of arrays without it."""
        found = {"rounding": [self.rounding(m) for m in LEVELS], "bound": [self.bound(m) for m in LEVELS]}
        return frame_like({"levels": np.array(LEVELS), **{name: np.array(each) for name, each in found.items()}}, like)

    def to_dict(self) -> dict[str, Any]:
        """Give everything as plain data."""
        return {**asdict(self), "sentence": self.sentence, "bounds": {str(m): self.bound(m) for m in LEVELS}}

    def __repr__(self) -> str:
        return f"Saturation: {self.sentence}"


def measure(
    y: FloatArray,
    before: FloatArray,
    second: Sequence[FloatArray],
    deeper: Sequence[FloatArray],
    weight: FloatArray | None,
    *,
    real: bool,
) -> Saturation:
    """Measure the gains of a second pass and of a deeper one.

    Parameters
    ----------
    y, before : ndarray
        Outcomes and corrected scores of the rows that judge.
    second, deeper : sequence of ndarray
        Their scores after another pass: the best, then others that were tried. Its gain is that of the best. A best pass
        that hardly moves a score has next to no error either; what the rows cannot tell shows in the bolder ones, so that
        the error is the largest of them.
    weight : ndarray or None
    real : bool
        Whether the outcome is a real number rather than a probability.
    """
    unit = span = 1.0
    if real:
        spread = float(np.sqrt(np.average((y - np.average(y, weights=weight)) ** 2, weights=weight)))
        unit = spread if spread > 0 else 1.0
        span = float(np.ptp(before)) / unit
    losses = ((y - before) / unit) ** 2
    found = []
    for tried in (second, deeper):
        gains = [paired_gain(losses - ((y - f) / unit) ** 2, weight) for f in tried]
        errors = [error if np.isfinite(error) else 1.0 for _, error, _ in gains]
        found.append((max(0.0, gains[0][0]), max(errors)))
    saturated = not any(_too_much(*one) for one in found)
    return Saturation(*found[0], *found[1], saturated, len(y), unit, span)


def _too_much(gain: float, error: float) -> bool:
    return gain > MOST or gain - ERRORS * error > SURE
