"""Which of several corrections to take: the simplest within one standard error of the best. Knows nothing of fitting."""

from __future__ import annotations

import textwrap
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trueup.calibrators.stopping import paired_gain, required_gain
from trueup.data.frame import frame_like

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trueup._types import FloatArray


WIDTH = 100  # of a terminal


class Margin(NamedTuple):
    """How far one stands behind another on the same rows.

    ``allowed`` is how far it may stand behind and still count as no worse: one standard error, or more where a handful of
    rows carry it.
    """

    behind: float
    error: float
    allowed: float

    @property
    def tied(self) -> bool:
        """Say whether the two are alike but for noise."""
        return self.behind <= self.allowed


def margin(each: FloatArray, best: FloatArray, weight: FloatArray | None) -> Margin:
    """Compare the losses of the same rows, pair by pair."""
    behind, error, carried = paired_gain(each - best, weight)
    return Margin(behind, error, required_gain(1.0, error, carried, float(np.average(each, weights=weight))))


def choose_simplest(losses: Sequence[FloatArray], weight: FloatArray | None) -> tuple[int, int]:
    """Choose by the one-standard-error rule, with the error of the paired difference.

    Parameters
    ----------
    losses : sequence of ndarray
        Of the same rows, one array for each candidate, the simplest first.
    weight : ndarray or None

    Returns
    -------
    chosen, best : int
        The first that stands behind the best by no more than noise, and the best itself: the lowest mean loss. One that is
        no better than something simpler is passed over: a few rows with a huge loss have a huge standard error as well,
        and are no excuse.

    References
    ----------
    Breiman, Friedman, Olshen & Stone (1984), "Classification and Regression Trees", section 3.4.3, for the rule.

    Examples
    --------
    >>> a, b, c = np.full(40, 0.5), np.array([0.3, 0.5] * 20), np.array([0.2, 0.59] * 20)
    >>> choose_simplest([a, b, c], None)
    (1, 2)
    """
    means = [float(np.average(each, weights=weight)) for each in losses]
    best = int(np.argmin(means))
    lowest = np.inf
    for at, each in enumerate(losses[:best]):
        if means[at] < lowest and margin(each, losses[best], weight).tied:
            return at, best
        lowest = min(lowest, means[at])
    return best, best


@dataclass(frozen=True)
class Candidate:
    """One method as it was judged.

    Attributes
    ----------
    name : str
        As ``methods`` takes it; a second one of the same kind has a 2 behind it.
    title : str
        As it is written in a sentence.
    loss : float
        Cross-validated. Where the method was dropped early, that of the scores as they are less its gain so far.
    gain, gain_error : float
        How far its loss lies below that of the scores as they are, and the standard error of that.
    behind, behind_error : float
        How far its loss lies above that of the best, and the standard error of that.
    folds : int
        How many folds judged it: fewer than the best has where it was hopeless before.
    chosen : bool
    seconds : float
        What judging it took; two candidates that differ in nothing else are equal.
    """

    name: str
    title: str
    loss: float
    gain: float
    gain_error: float
    behind: float
    behind_error: float
    folds: int
    chosen: bool
    seconds: float = field(default=0.0, compare=False)


@dataclass(frozen=True)
class Choice:
    """Which method was chosen, and why.

    Attributes
    ----------
    method : str
        "identity" leaves scores as they are.
    candidates : tuple of Candidate
        In the order of their simplicity; none where the rows were too few to choose by.
    sentence : str
    measure : {"log loss", "squared error"}
    rows : int
        How many rows judged.
    """

    method: str
    candidates: tuple[Candidate, ...]
    sentence: str
    measure: str
    rows: int

    def to_dict(self) -> dict[str, Any]:
        """Give everything as plain data."""
        return {**asdict(self), "candidates": [asdict(one) for one in self.candidates]}

    def to_frame(self, like: Any = None) -> Any:
        """Give one row a candidate, in the library of ``like``; a dict of arrays without it."""
        names = ("name", "loss", "gain", "gain_error", "behind", "behind_error", "folds", "chosen", "seconds")
        return frame_like({name: np.array([getattr(one, name) for one in self.candidates]) for name in names}, like)

    def __repr__(self) -> str:
        lines = textwrap.wrap(f"Choice: {self.sentence}", WIDTH, subsequent_indent="  ")
        if not self.candidates:
            return "\n".join(lines)
        wide = max(6, *(len(one.name) for one in self.candidates))
        lines.append(f"    {'method':<{wide}}  {self.measure:>13}  {'gain (s.e.)':>21}  {'behind (s.e.)':>21}  seconds")
        folds = max(one.folds for one in self.candidates)
        for one in self.candidates:
            gain, behind = _pair(one.gain, one.gain_error), _pair(one.behind, one.behind_error)
            early = "" if one.folds == folds else f"  {one.folds} of {folds} folds"
            mark = "->" if one.chosen else "  "
            lines.append(
                f" {mark} {one.name:<{wide}}  {one.loss:>13.6g}  {gain:>21}  {behind:>21}  {one.seconds:>7.2f}{early}"
            )
        return "\n".join(lines)


def _pair(value: float, error: float) -> str:
    """Write a difference and its error; nothing where a method is compared with itself."""
    return "" if value == error == 0 else f"{value:.3g} ({error:.2g})"


def tell(candidates: Sequence[Candidate], best: int, before: float, measure: str) -> str:
    """Say in one sentence which was chosen, and why.

    Parameters
    ----------
    candidates : sequence of Candidate
    best : int
        Which of them has the lowest loss.
    before : float
        The loss of the scores as they are.
    measure : str
    """
    first, (at, one) = candidates[best], next((at, one) for at, one in enumerate(candidates) if one.chosen)
    noise = (
        "by more than its standard error"
        if one.behind <= one.behind_error
        else "beyond noise: few rows carry what is gained"
    )
    if one.name == "identity":
        others = [other for other in candidates if other.name != "identity"]
        near = min(others, key=lambda other: other.loss).gain_error if others else 0.0
        seen = f"; a gain of less than about {near:.2g} would not show on these rows" if near else ""
        return f"you do not need this: no method lowers the cross-validated {measure} ({before:.6g}) {noise}{seen}"
    tail = f"the scores as they are have {before:.6g}"
    own = f"its cross-validated {measure} {one.loss:.6g}"
    if len(candidates) == 1:
        return f"chose {one.title}, the only method to choose from: {own}; {tail}"
    if at == best:
        rest = "lower than that of anything simpler, beyond noise" if at else "the lowest, and it is the simplest"
        return f"chose {one.title}: {own} is {rest}; {tail}"
    close = f"one standard error ({one.behind_error:.2g})" if one.behind <= one.behind_error else "the noise of a few rows"
    best_of = f"the best, {first.title}'s {first.loss:.6g}"
    return f"chose {one.title}: {own} is within {close} of {best_of}, and it is simpler; {tail}"
