"""Stopping rules: which rows evaluate a round, which round is chosen, and the history of a fit."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from trueup._validate import check_fraction, check_integer
from trueup.cluster.communicator import SINGLE_PROCESS
from trueup.data.frame import frame_like
from trueup.errors import ArgumentError
from trueup.kernels.losses import deviation_moments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from trueup._types import FloatArray, IntArray
    from trueup.cluster.communicator import Communicator


# How many standard errors of the gain the first round, and a later one, must lower the held-out loss by: the first to do
# no harm, a later one also because it makes the model larger and slower.
FIRST_ROUND_ERRORS, LATER_ROUND_ERRORS = 1.5, 2.0
SMALL_SAMPLE_ROWS = 10.0  # with this effective number of rows (plus one) the required gain is twice as large
MIN_RELATIVE_GAIN = 1e-6  # of the loss of the base score; anything less is negligible
SHOWN_ROUNDS = 16  # in the repr of a history


@dataclass(frozen=True)
class Holdout:
    """Evaluate every round on a share of the rows that is never trained on.

    Parameters
    ----------
    share : float
        Of the rows, between 0 and 1. The held-out rows depend on the content of the rows, not on their order.
    patience : int
        The number of rounds without a gain after which the search stops.
    """

    share: float = 0.2
    patience: int = 1

    def __post_init__(self) -> None:
        check_fraction("share", self.share)
        check_integer("patience", self.patience, 1)


@dataclass(frozen=True)
class CrossValidation:
    """Evaluate every round on all rows, each by the model that was not trained on it; average the fold models.

    Parameters
    ----------
    folds : int
    patience : int
        The number of rounds without a gain after which the search stops.
    refit : bool
        Train once more on all rows, with the chosen numbers of rounds and trees, instead of averaging the fold models:
        with 5 folds a fifth of the size, and slightly less accurate.
    """

    folds: int = 5
    patience: int = 1
    refit: bool = False

    def __post_init__(self) -> None:
        check_integer("folds", self.folds, 2)
        check_integer("patience", self.patience, 1)
        if not isinstance(self.refit, bool):
            raise ArgumentError(f"refit must be True or False; got {self.refit!r}", parameter="refit")


@dataclass(frozen=True, eq=False)
class Validation:
    """Evaluate every round on a validation set of your own.

    Parameters
    ----------
    data : frame, dict of arrays or ndarray
        With the same prediction and feature columns as the training rows.
    outcome : array
    sample_weight : array, optional
    patience : int
        The number of rounds without a gain after which the search stops.
    """

    data: Any
    outcome: Any
    sample_weight: Any = None
    patience: int = 1

    def __post_init__(self) -> None:
        if self.data is None or self.outcome is None:
            raise ArgumentError(
                "a Validation needs rows and their outcome", hint='write it as Validation(frame, frame["clicked"])'
            )
        check_integer("patience", self.patience, 1)


Stopping = Holdout | CrossValidation | Validation | None


@dataclass(frozen=True, eq=False)
class Split:
    """Indices of the rows to train on and of the held-out rows."""

    train: IntArray
    valid: IntArray


@dataclass(frozen=True)
class Round:
    """One round and its evaluation."""

    number: int  # 0 is the base score
    trees: int  # number of trees, or other learners, in each model of the round
    theta: float  # the factor of the round
    loss: float  # mean loss of the evaluation rows, by the measure of the history
    gain: float  # decrease of the loss from the best round before
    error: float  # standard error of the gain
    kept: bool


@dataclass(frozen=True)
class History:
    """The rounds of a fit, the number chosen, and the reason."""

    rounds: tuple[Round, ...]  # from the base score on
    chosen: int  # number of rounds of the model; 0 leaves the scores unchanged
    reason: str  # one sentence
    evaluated_on: str  # the rows of the losses: as `evaluation_rows` returns them, or "leave-one-out"
    measure: str  # "log loss" or "squared error"

    @classmethod
    def of(
        cls,
        evaluations: Sequence[tuple[float, float, float]],
        chosen: int,
        reason: str,
        evaluated_on: str,
        measure: str,
        trees: Sequence[int] = (),
        thetas: Sequence[float] = (),
    ) -> History:
        """Build a history from (loss, gain, error) of the base score and of each round; by default without trees."""
        rounds = [Round(0, 0, 1.0, evaluations[0][0], 0.0, 0.0, kept=True)]
        for number, evaluation in enumerate(evaluations[1:], start=1):
            count, theta = trees[number - 1] if trees else 0, thetas[number - 1] if thetas else 1.0
            rounds.append(Round(number, count, theta, *evaluation, kept=number <= chosen))
        return cls(tuple(rounds), chosen, reason, evaluated_on, measure)

    @property
    def loss_before(self) -> float:
        """Return the evaluated loss of the base score."""
        return self.rounds[0].loss

    @property
    def loss_after(self) -> float:
        """Return the evaluated loss of the chosen round."""
        return self.rounds[self.chosen].loss

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain data."""
        return {**asdict(self), "rounds": [asdict(round_) for round_ in self.rounds]}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> History:
        """Restore a history from plain data."""
        fields = {**fields, "rounds": tuple(Round(**round_) for round_ in fields["rounds"])}
        if "judged_by" in fields:  # its name in the first files
            fields["evaluated_on"] = fields.pop("judged_by")
        return cls(**fields)

    def to_frame(self, like: Any = None) -> Any:
        """Return one row per round, as a frame of the library of ``like``; a dict of arrays without it."""
        names = ("number", "trees", "theta", "loss", "gain", "error", "kept")
        return frame_like({name: np.array([getattr(round_, name) for round_ in self.rounds]) for name in names}, like)

    def __repr__(self) -> str:
        trees, theta = any(r.trees for r in self.rounds), any(r.theta != 1 for r in self.rounds)
        head = f"  round{'  trees' if trees else ''}{'  theta' if theta else ''}  {self.measure} ({self.evaluated_on})"
        lines = [f"History: {self.reason}", head]
        for r in self.rounds:
            columns = f"  {r.trees:>5}" * trees + f"  {r.theta:.3f}" * theta
            error = f" (s.e. {r.error:.6f})" if r.error else ""
            change = "" if r.number == 0 else f"  {-r.gain:+.6f}{error}{'' if r.kept else '  not kept'}"
            lines.append(f"  {r.number:>5}{columns}  {r.loss:.6f}{change}")
        if len(lines) > SHOWN_ROUNDS + 3:
            hidden = len(lines) - 2 - SHOWN_ROUNDS
            lines[2 + SHOWN_ROUNDS // 2 : -SHOWN_ROUNDS // 2] = [f"  ... {hidden} more: to_frame() returns all rounds"]
        return "\n".join(lines)


def choose_rounds(
    losses: Iterable[FloatArray],
    weight: FloatArray | None,
    *,
    patience: int = 1,
    on_improvement: Callable[[], None] | None = None,
    communicator: Communicator = SINGLE_PROCESS,
) -> tuple[int, list[tuple[float, float, float]]]:
    """Return the last round that lowered the loss significantly (0: none), and (loss, gain, error) of every round.

    ``losses`` yields the losses of the evaluation rows, of the base score and then after each round; the next item is
    requested only while the search goes on. The gain of a round is over the best round before it. ``on_improvement`` is
    called when a round is the best so far, before the next is requested. All workers return the same.
    """
    best: FloatArray | None = None
    chosen, evaluations = 0, []
    for number, current in enumerate(losses):
        loss = weighted_mean(current, weight, communicator)
        if best is None:
            best = current
            evaluations.append((loss, 0.0, 0.0))
            continue
        gain, error, rows = paired_gain(best - current, weight, communicator)
        evaluations.append((loss, gain, error))
        errors = LATER_ROUND_ERRORS if chosen else FIRST_ROUND_ERRORS
        if gain > required_gain(errors, error, rows, evaluations[0][0]):
            best, chosen = current, number
            if on_improvement is not None:
                on_improvement()
        elif number - chosen >= patience:
            break
    return chosen, evaluations


def required_gain(errors: float, error: float, rows: float, base_loss: float) -> float:
    """Return the gain a round must exceed: ``errors`` standard errors, more where few rows determine the error."""
    noise = errors * (1 + SMALL_SAMPLE_ROWS / (rows - 1)) * error if rows > 1 else math.inf
    return max(noise, MIN_RELATIVE_GAIN * abs(base_loss))


def weighted_mean(values: FloatArray, weight: FloatArray | None, communicator: Communicator = SINGLE_PROCESS) -> float:
    """Return the mean over the rows of all workers."""
    if weight is None:
        total, mass = communicator.all_reduce_sum([values.sum(), float(len(values))])
    else:
        total, mass = communicator.all_reduce_sum([(values * weight).sum(), weight.sum()])
    return float(total / mass)


def paired_gain(
    difference: FloatArray, weight: FloatArray | None, communicator: Communicator = SINGLE_PROCESS
) -> tuple[float, float, float]:
    """Return the mean of paired differences, its standard error, and the effective number of rows of that error.

    Weights are importance weights. The effective number of rows is ``(sum u^2)^2 / sum u^4`` of the weighted deviations
    u, and at most that of the weights: a handful of rare events or heavy rows count as a handful, however many rows there
    are beside them.
    """
    w = np.empty(0) if weight is None else weight / float(communicator.all_reduce_max([weight.max(initial=0.0)])[0])
    gain = weighted_mean(difference, None if weight is None else w, communicator)
    sums = (float(len(difference)),) * 2 if weight is None else (float(w.sum()), float((w**2).sum()))
    total, weight_squares = map(float, communicator.all_reduce_sum(sums))
    rows = total**2 / weight_squares
    contiguous = np.ascontiguousarray(difference)
    moments = deviation_moments(contiguous, w, gain)
    largest = float(communicator.all_reduce_max(moments[:1])[0])
    if largest > moments[0]:
        moments = deviation_moments(contiguous, w, gain, largest)
    squares, fourth = map(float, communicator.all_reduce_sum(moments[1:]))
    if largest == 0:
        return gain, 0.0 if rows > 1 else float("inf"), rows
    rows = min(rows, squares**2 / fourth)
    error = largest * math.sqrt(squares) / total
    return gain, error * math.sqrt(rows / (rows - 1)) if rows > 1 else float("inf"), rows


def evaluation_rows(stopping: Stopping) -> Literal["held-out rows", "cross-validation", "given rows", "training rows"]:
    """Return the name of the rows that a stopping rule evaluates on."""
    if stopping is None:
        return "training rows"
    if isinstance(stopping, CrossValidation):
        return "cross-validation"
    return "held-out rows" if isinstance(stopping, Holdout) else "given rows"
