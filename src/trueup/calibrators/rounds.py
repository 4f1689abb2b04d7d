"""When to stop: which rows judge a round, and which round is the best. Knows nothing of trees."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from trueup.cluster.communicator import SINGLE_PROCESS
from trueup.data.frame import frame_like
from trueup.errors import ArgumentError
from trueup.kernels.losses import spread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from trueup._types import FloatArray, IntArray
    from trueup.cluster.communicator import Communicator


# By how many standard errors of the gain the first round, and a later one, must lower the held-out loss: the first to do
# no harm, a later one also because it makes the model larger and slower.
FIRST, LATER = 1.5, 2.0
FEW = 10.0  # where so many rows and one carry the error, the gain must be twice as large
SHOWN = 16  # rounds that are printed
LEAST_GAIN = 1e-6  # of the loss of the base score: less is dust


@dataclass(frozen=True)
class Holdout:
    """Judge every round by a share of the rows that is never trained on.

    Parameters
    ----------
    share : float
        Of the rows, between 0 and 1. Which rows they are depends on their content, not on their order.
    patience : int
        How many rounds without a gain end the search.
    """

    share: float = 0.2
    patience: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.share, (int, float)) or isinstance(self.share, bool) or not 0 < self.share < 1:
            raise ArgumentError(f"the share of a holdout must lie between 0 and 1; got {self.share!r}")
        _check_whole("patience", self.patience, 1)


@dataclass(frozen=True)
class CrossValidation:
    """Judge every round by all rows, each by the model that was not trained on it; the result is the mean of the models.

    Parameters
    ----------
    folds : int
    patience : int
        How many rounds without a gain end the search.
    refit : bool
        Train once more on all rows, with the rounds and trees that were found, in place of the mean of the fold models:
        a model of a fifth of the size, and a little less accurate.
    """

    folds: int = 5
    patience: int = 1
    refit: bool = False

    def __post_init__(self) -> None:
        _check_whole("the number of folds", self.folds, 2)
        _check_whole("patience", self.patience, 1)
        if not isinstance(self.refit, bool):
            raise ArgumentError(f"refit must be True or False; got {self.refit!r}")


@dataclass(frozen=True, eq=False)
class Validation:
    """Judge every round by rows of your own.

    Parameters
    ----------
    data : frame, dict of arrays or ndarray
        With the prediction and features of the rows that are fitted.
    outcome : array
    sample_weight : array, optional
    patience : int
    """

    data: Any
    outcome: Any
    sample_weight: Any = None
    patience: int = 1

    def __post_init__(self) -> None:
        if self.data is None or self.outcome is None:
            raise ArgumentError(
                "a validation needs rows and their outcome", hint='write it as Validation(frame, frame["clicked"])'
            )
        _check_whole("patience", self.patience, 1)


Stopping = Holdout | CrossValidation | Validation | None


def _check_whole(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise ArgumentError(f"{name} must be a whole number, at least {least}; got {value!r}")


@dataclass(frozen=True, eq=False)
class Split:
    """Which rows are trained on, and which judge."""

    train: IntArray
    valid: IntArray


@dataclass(frozen=True)
class Round:
    """One round as it was judged.

    Attributes
    ----------
    number : int
        0 is the base score.
    trees : int
        Trees, or other learners, in each model of the round; 0 where there are none.
    theta : float
        The factor of the round.
    loss : float
        Mean loss of the rows that judge, by the measure of the history.
    gain, error : float
        How far the loss fell below the best before, and the standard error of that.
    kept : bool
    """

    number: int
    trees: int
    theta: float
    loss: float
    gain: float
    error: float
    kept: bool


@dataclass(frozen=True)
class History:
    """What was tried, what was chosen, and why.

    Attributes
    ----------
    rounds : tuple of Round
        From the base score on, each with the loss of held-out rows.
    chosen : int
        How many rounds the model has; 0 leaves the scores unchanged.
    reason : str
        One sentence.
    judged_by : str
        Which rows the losses are of.
    measure : {"log loss", "squared error"}
    """

    rounds: tuple[Round, ...]
    chosen: int
    reason: str
    judged_by: str
    measure: str

    @property
    def loss_before(self) -> float:
        """Give the held-out loss of the base score."""
        return self.rounds[0].loss

    @property
    def loss_after(self) -> float:
        """Give the held-out loss of what was chosen."""
        return self.rounds[self.chosen].loss

    def to_dict(self) -> dict[str, Any]:
        """Give everything as plain data."""
        return {**asdict(self), "rounds": [asdict(one) for one in self.rounds]}

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> History:
        """Make it again from plain data."""
        return cls(**{**found, "rounds": tuple(Round(**one) for one in found["rounds"])})

    def to_frame(self, like: Any = None) -> Any:
        """Give one row a round, in the library of ``like``; a dict of arrays without it."""
        names = ("number", "trees", "theta", "loss", "gain", "error", "kept")
        return frame_like({name: np.array([getattr(one, name) for one in self.rounds]) for name in names}, like)

    def __repr__(self) -> str:
        trees, theta = any(one.trees for one in self.rounds), any(one.theta != 1 for one in self.rounds)
        head = f"  round{'  trees' if trees else ''}{'  theta' if theta else ''}  {self.measure} ({self.judged_by})"
        lines = [f"History: {self.reason}", head]
        for one in self.rounds:
            own = f"  {one.trees:>5}" * trees + f"  {one.theta:.3f}" * theta
            error = f" (s.e. {one.error:.6f})" if one.error else ""
            change = "" if one.number == 0 else f"  {-one.gain:+.6f}{error}{'' if one.kept else '  not kept'}"
            lines.append(f"  {one.number:>5}{own}  {one.loss:.6f}{change}")
        if len(lines) > SHOWN + 3:
            lines[2 + SHOWN // 2 : -SHOWN // 2] = [f"  ... {len(lines) - 2 - SHOWN} more: to_frame() has them all"]
        return "\n".join(lines)


def choose_rounds(
    losses: Iterable[FloatArray],
    weight: FloatArray | None,
    *,
    patience: int = 1,
    better: Callable[[], None] | None = None,
    communicator: Communicator = SINGLE_PROCESS,
) -> tuple[int, list[tuple[float, float, float]]]:
    """Read the losses of the judging rows round by round, and say which round is the best.

    Parameters
    ----------
    losses : iterable of ndarray
        Of the base score, then after each round; one more is asked for only while there is hope.
    weight : ndarray or None
    patience : int
        How many rounds without a gain end the search.
    better : callable, optional
        Called where a round is the best so far, before the next is asked for.
    communicator : Communicator
        Who holds the other rows that judge: all of them find the same.

    Returns
    -------
    chosen : int
        The last round that lowered the loss by more than noise; 0 is the base score.
    judged : list of (loss, gain, error)
        Of every round that was tried; the gain is over the best round before it.

    Examples
    --------
    >>> a, b = np.array([.7, .8, .6, .7] * 9), np.array([.3, .5, .3, .2] * 9)
    >>> choose_rounds(iter([a, b, b]), None)[0]
    1
    """
    best: FloatArray | None = None
    chosen, judged = 0, []
    for at, found in enumerate(losses):
        loss = mean_of(found, weight, communicator)
        if best is None:
            best = found
            judged.append((loss, 0.0, 0.0))
            continue
        gain, error, carried = paired_gain(best - found, weight, communicator)
        judged.append((loss, gain, error))
        needed = (LATER if chosen else FIRST) * (1 + FEW / (carried - 1)) * error if carried > 1 else np.inf
        if gain > max(needed, LEAST_GAIN * abs(judged[0][0])):
            best, chosen = found, at
            if better is not None:
                better()
        elif at - chosen >= patience:
            break
    return chosen, judged


def mean_of(values: FloatArray, weight: FloatArray | None, communicator: Communicator = SINGLE_PROCESS) -> float:
    """Give the mean over the rows of all workers.

    Examples
    --------
    >>> mean_of(np.array([1.0, 4.0]), np.array([2.0, 1.0]))
    2.0
    """
    if weight is None:
        total, mass = communicator.all_reduce_sum([values.sum(), float(len(values))])
    else:
        total, mass = communicator.all_reduce_sum([(values * weight).sum(), weight.sum()])
    return float(total / mass)


def paired_gain(
    difference: FloatArray, weight: FloatArray | None, communicator: Communicator = SINGLE_PROCESS
) -> tuple[float, float, float]:
    """Give the mean of paired differences, its standard error, and how many rows carry that error.

    Weights are importance weights. The number of rows that carry the error is ``(sum u^2)^2 / sum u^4`` of the weighted
    deviations u, and no more than the effective number of rows: a handful of rare events or heavy rows count as a handful,
    however many rows there are beside them.
    """
    w = np.empty(0) if weight is None else weight / float(communicator.all_reduce_max([weight.max(initial=0.0)])[0])
    gain = mean_of(difference, None if weight is None else w, communicator)
    own = (float(len(difference)),) * 2 if weight is None else (float(w.sum()), float((w**2).sum()))
    total, weights = map(float, communicator.all_reduce_sum(own))
    carried = total**2 / weights
    each = np.ascontiguousarray(difference)
    found = spread(each, w, gain)
    largest = float(communicator.all_reduce_max(found[:1])[0])
    if largest > found[0]:
        found = spread(each, w, gain, largest)
    squares, fourth = map(float, communicator.all_reduce_sum(found[1:]))
    if largest == 0:
        return gain, 0.0 if carried > 1 else float("inf"), carried
    carried = min(carried, squares**2 / fourth)
    error = largest * math.sqrt(squares) / total
    return gain, error * math.sqrt(carried / (carried - 1)) if carried > 1 else float("inf"), carried


def describe(stopping: Stopping) -> Literal["held-out rows", "cross-validation", "given rows", "training rows"]:
    """Say which rows judge."""
    if stopping is None:
        return "training rows"
    if isinstance(stopping, CrossValidation):
        return "cross-validation"
    return "held-out rows" if isinstance(stopping, Holdout) else "given rows"
