"""Evaluation of a fit: losses, stopping rules, held-out rows, and the choice of a round."""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trueup._validate import check_fraction, check_integer
from trueup.calibrators.floors import EPS, clip_scores, raise_zeros
from trueup.cluster.communicator import SINGLE_PROCESS, Communicator
from trueup.data import folds
from trueup.errors import ArgumentError, DataError
from trueup.kernels.fitting import deviation_moments
from trueup.metrics.inputs import Scored

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence, Sized

    from trueup._types import AnyArray, FloatArray, IntArray, UInt64Array
    from trueup.calibrators.floors import Floors
    from trueup.data.table import Table, Task
    from trueup.learners.lightgbm import Loss

    Score = Callable[[FloatArray, FloatArray, FloatArray], float]


THETA_BOUNDS = (0.5, 2.0)  # of the factor of a round of trees: it corrects how confident these trees are
# How many standard errors of the gain a round must lower the held-out loss by: the first one to do no harm, more if it is
# the best of several trees, rates or capacities; a line none, since a score test has shown already that it is needed, with
# more power; the first one after a line less, since scores are changed anyway; a later one more, because it makes the model
# larger and slower.
FIRST_ROUND_ERRORS, SEARCH_ERRORS, LINE_ERRORS, AFTER_LINE_ERRORS, LATER_ROUND_ERRORS = 1.5, 2.0, 0.0, 1.0, 2.0
# Of a score test of the first round of such a search: held-out corrections are sums over the other rows, so that each pair
# of rows counts twice, and the statistic of calibrated scores has up to twice the variance of a normal one.
SCORE_TEST_ERRORS = 4.0
# Both in repeated cross-validations: each chooses its trees on the same rows, and what chance made of these rows stays when
# the noise of the folds is averaged out. Calibrated scores are then changed about as rarely as by one.
REPEATED_SEARCH_ERRORS, REPEATED_SCORE_TEST_ERRORS = 3.0, 5.5
LINE_TEST_ERRORS = 1.0  # the score test of a line selects about as such a threshold of its gain would (by simulation)
SMALL_SAMPLE_ROWS = 10.0  # with this effective number of rows (plus one) the required gain is twice as large
MIN_RELATIVE_GAIN = 1e-6  # of the loss of the base score; anything less is negligible
LOSS_TOLERANCE = 1e-9  # a loss is lower if it is by this share: sums differ with the number of threads
HELD_OUT_LOSS = "held-out loss"
TRAINING_ROWS, CROSS_VALIDATION = "training rows", "cross-validation"
EXPECTED = "the scores alone, as if the corrected ones were calibrated"  # of fits without outcomes
IMPORTED = "rows that the file of another package does not state"  # of imported models, whose losses are not known
MIN_ROWS = 10
HOLDOUT_FOLDS = 1000  # folds that rows are assigned to if a share of them is held out
CLUSTER_BUCKETS = 4096  # in which workers add up the gains of their clusters
MAX_MEAN_COUNT = 100  # integer weights of at most this mean are counts of rows


@dataclass(frozen=True)
class TaskLoss:
    """The loss of a task, and its link; ``F`` are scores, (rows, outputs), on the scale of the link, such as logits."""

    name: Loss
    link: str
    measure: str  # its name in reports

    def apply_link(self, prediction: FloatArray, floors: Floors | None = None) -> FloatArray:
        """Return predictions on the scale of the link, such as logits, (n, outputs); see the function `apply_link`."""
        return apply_link(prediction, self.link, floors)

    def invert_link(self, F: FloatArray) -> FloatArray:
        """Return predictions, (n,), or (n, k) for k classes, of scores ``F`` on the scale of the link."""
        if self.link == "softmax":
            return softmax(F)
        if self.link != "logit":
            return np.asarray(F[:, 0])
        from scipy.special import expit  # a model that only scores does not import scipy

        return np.asarray(expit(F[:, 0]))

    def per_row(self, y: FloatArray, F: FloatArray) -> FloatArray:
        """Return the loss of every row, with outcome ``y`` and scores ``F`` on the scale of the link."""
        if self.name == "squared":
            return np.asarray((y - F[:, 0]) ** 2)
        if self.name == "log":
            return np.asarray(np.logaddexp(0.0, F[:, 0]) - y * F[:, 0])
        top = F.max(axis=1)
        return np.asarray(top + np.log(np.exp(F - top[:, None]).sum(axis=1)) - F[np.arange(len(F)), y.astype(np.int64)])

    def slopes(self, y: FloatArray, F: FloatArray, step: FloatArray) -> tuple[FloatArray, FloatArray | None]:
        """Return by how much a small part of ``step`` from the scores ``F`` lowers the loss of each row, per unit of it.

        The variances that calibrated scores imply for these slopes follow; None for the squared error.
        """
        if self.name == "squared":
            return 2 * step[:, 0] * (y - F[:, 0]), None
        if self.name == "log":
            p = self.invert_link(F)
            return step[:, 0] * (y - p), step[:, 0] ** 2 * p * (1 - p)
        p = self.invert_link(F)
        mean = (p * step).sum(axis=1)
        return step[np.arange(len(F)), y.astype(np.int64)] - mean, (p * step**2).sum(axis=1) - mean**2

    def theta(
        self, y: FloatArray, F: FloatArray, weight: FloatArray | None, communicator: Communicator = SINGLE_PROCESS
    ) -> float:
        """Return the factor of ``F``, in THETA_BOUNDS, of lowest loss over the rows of all workers, by Newton's method."""
        w = np.ones(len(y)) if weight is None else weight
        low, high = THETA_BOUNDS
        theta = 1.0
        for _ in range(100):
            slope, curvature = map(float, communicator.all_reduce_sum(self._derivatives(y, F, w, theta)))
            if slope == 0:
                return theta
            low, high = (low, theta) if slope > 0 else (theta, high)
            step = min(max(theta - slope / curvature, THETA_BOUNDS[0]), THETA_BOUNDS[1]) if curvature > 0 else low - 1
            if not low <= step <= high:
                step = (low + high) / 2
            if abs(step - theta) < 1e-12:
                return step
            theta = step
        return theta

    def _derivatives(self, y: FloatArray, F: FloatArray, w: FloatArray, theta: float) -> tuple[float, float]:
        """Return the first and second derivative in theta of the loss of the scores ``theta * F``, with weights ``w``."""
        f = F[:, 0]
        if self.name == "squared":
            return float(2 * (w * f * (theta * f - y)).sum()), float(2 * (w * f * f).sum())
        if self.name == "log":
            p = 1 / (1 + np.exp(-np.clip(theta * f, -700, 700)))
            return float((w * f * (p - y)).sum()), float((w * f * f * p * (1 - p)).sum())
        G = theta * F
        p = np.exp(G - G.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        mean = (p * F).sum(axis=1)
        hit = F[np.arange(len(F)), y.astype(np.int64)]
        return float((w * (mean - hit)).sum()), float((w * ((p * F * F).sum(axis=1) - mean**2)).sum())


TASK_LOSSES = {
    "binary": TaskLoss("log", "logit", "log loss"),
    "regression": TaskLoss("squared", "identity", "squared error"),
    "multiclass": TaskLoss("classes", "softmax", "log loss"),
}


def task_loss(task: Task) -> TaskLoss:
    """Return the loss and the link of a task."""
    return TASK_LOSSES[task]


def softmax(F: FloatArray) -> FloatArray:
    """Return the softmax of every row; scoring must not need scipy's, whose result is the same."""
    powers = np.exp(F - F.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def apply_link(prediction: FloatArray, link: str, floors: Floors | None = None) -> FloatArray:
    """Return predictions on the scale of a link, (n, outputs); probabilities keep the distances ``floors`` from 0 and 1.

    Without floors, as in losses, 1e-6 and 1 - 1e-6 stand for exact 0 and 1, and other probabilities are not changed.
    """
    p = prediction[:, None] if prediction.ndim == 1 else prediction
    if link == "identity":
        return p.astype(np.float64)
    if link == "softmax":
        return np.log(raise_zeros(p) if floors is None else np.maximum(p, floors[0]))
    p = raise_zeros(p) if floors is None else clip_scores(p, floors)
    if floors is not None and floors[1] < EPS:  # 1 - floors[1] is 1
        return np.asarray(np.log(p) - np.where(p < 1, np.log1p(-np.where(p < 1, p, 0.0)), np.log(floors[1])))
    return np.asarray(np.log(p) - np.log1p(-p))


@dataclass(frozen=True)
class Holdout:
    """Evaluate every round on a share of the rows that is never trained on.

    Parameters
    ----------
    share : float
        The share of rows to hold out, between 0 and 1. Which rows these are depends on their content, not on their order.
    patience : int
        The number of rounds without a gain after which the search stops.
    score : callable, optional
        As in `CrossValidation`.
    """

    share: float = 0.2
    patience: int = 1
    score: Score | None = None

    def __post_init__(self) -> None:
        check_fraction("share", self.share)
        check_integer("patience", self.patience, 1)
        check_score(self.score)


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
        with 5 folds the model has a fifth of the size, and is slightly less accurate.
    score : callable, optional
        ``score(y, p, weight)`` returns a number, lower is better, by which rounds are evaluated instead of the loss: ``y``
        are the outcomes of all held-out rows (class indices for several classes), ``p`` their scores, ``weight`` their
        weights, 1 if there are none. A round is kept if it lowers the score by more than its noise, which is estimated by
        the jackknife. The number of trees in a round still minimises the loss. Methods that cannot use it raise an error.

    Examples
    --------
    >>> import trueup as tu
    >>> rule = tu.CrossValidation(5, score=tu.metrics.ece)
    >>> data = tu.simulate.lending(10_000, seed=1)
    >>> fix = tu.MCGrad("prediction", ["region", "age"], stopping=rule).fit(data, data["outcome"])
    >>> fix.history_.measure
    'ece'
    """

    folds: int = 5
    patience: int = 1
    refit: bool = False
    score: Score | None = None

    def __post_init__(self) -> None:
        check_score(self.score)
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
    cluster : array or column name, optional
        As ``cluster`` of `fit`; without it these rows are independent.
    score : callable, optional
        As in `CrossValidation`.
    """

    data: Any
    outcome: Any
    sample_weight: Any = None
    patience: int = 1
    cluster: Any = None
    score: Score | None = None

    def __post_init__(self) -> None:
        check_score(self.score)
        if self.data is None or self.outcome is None:
            raise ArgumentError(
                "a Validation needs rows and their outcome", hint='write it as Validation(frame, frame["clicked"])'
            )
        check_integer("patience", self.patience, 1)


Stopping = Holdout | CrossValidation | Validation | None


class Evaluation(NamedTuple):
    """The mean loss of the evaluation rows after a round, its gain over the best round before, and what was required."""

    loss: float
    gain: float = 0.0
    error: float = 0.0  # standard error of the gain
    threshold: float | None = None  # standard errors that the gain had to exceed, 0 of a line; None if tested with others

    @property
    def shrunken_gain(self) -> float:
        """Return the gain shrunken for the threshold that it exceeded; 0 if it did not."""
        threshold = FIRST_ROUND_ERRORS if self.threshold is None else self.threshold
        if self.gain <= threshold * self.error:
            return 0.0
        return shrink_gain(self.gain, self.error, threshold or LINE_TEST_ERRORS)


def check_score(score: Any) -> None:
    """Raise unless the score of a stopping rule is a function, or None."""
    if score is not None and (not callable(score) or isinstance(score, type)):
        raise ArgumentError(
            f"score must be a function of outcomes, scores and weights; got {score!r}",
            hint="write it as score=tu.metrics.brier, or def score(y, p, weight): ..., lower is better",
            parameter="score",
        )
    if score is None:
        return
    try:
        inspect.signature(score).bind(None, None, None)
    except TypeError as error:
        raise ArgumentError(
            f"score must take outcomes, scores and weights, as score(y, p, weight): {error}",
            hint="write it as def score(y, p, weight): ..., or lambda y, p, weight: ..., lower is better",
            parameter="score",
        ) from None
    except ValueError:  # a compiled function without a signature
        return


def evaluation_rows(stopping: Stopping) -> str:
    """Return the name of the rows that a stopping rule evaluates on, such as "cross-validation" or "held-out rows"."""
    names = {CrossValidation: CROSS_VALIDATION, Holdout: "held-out rows", Validation: "given rows"}
    return names.get(type(stopping), TRAINING_ROWS)


def choose_rounds(
    losses: Iterable[FloatArray],
    weight: FloatArray | None,
    *,
    patience: int = 1,
    lowest: bool = False,
    on_improvement: Callable[[], None] | None = None,
    communicator: Communicator = SINGLE_PROCESS,
    cluster: IntArray | None = None,
    is_line: Callable[[int], bool] | None = None,
    errors: float = FIRST_ROUND_ERRORS,
    slopes: Callable[[], tuple[FloatArray, FloatArray | None]] | None = None,
) -> tuple[int, list[Evaluation]]:
    """Return the last round that lowered the loss significantly (0: none), and the evaluation of every round.

    ``losses`` yields the losses of the evaluation rows, of the base score and then after each round; the next item is
    requested only while the search goes on. The gain of a round is over the best round before it. ``lowest`` chooses the
    lowest loss, significant or not. ``on_improvement`` is called when a round is the best so far, before the next is
    requested. All workers return the same. ``cluster`` has the number of the cluster of each evaluation row. ``is_line``
    returns whether a round is a line, which a score test has found to be needed: it is kept if it lowers the loss, and the
    search goes on in any case. ``errors`` are the standard errors that the first round must gain. With ``slopes`` they are
    those of a score test instead: that a small part of the round lowers the loss, from `TaskLoss.slopes` of the evaluation
    rows, called after the round. Where the gain of a whole round is z standard errors, the score test has up to 2 z.
    """
    best: FloatArray | None = None
    chosen, evaluations, failed = 0, [], 0
    for number, current in enumerate(losses):
        loss = weighted_mean(current, weight, communicator)
        if best is None:
            best = current
            evaluations.append(Evaluation(loss))
            continue
        gain, error, rows = paired_gain(best - current, weight, communicator, cluster)
        line = is_line is not None and is_line(number)
        required = required_errors(LINE_ERRORS if line else errors, rows) if rows > 1 else math.inf
        if slopes is not None and not line and not chosen and 0 < error < math.inf:
            statistic, effective = score_test(*slopes(), weight, communicator, cluster)
            if effective > 1:  # the gain exceeds what is required by as much as the statistic does
                required = gain / error - statistic + required_errors(errors, effective)
        noise = required * error if rows > 1 else math.inf
        improved = gain > max(noise, MIN_RELATIVE_GAIN * abs(evaluations[0].loss))
        if lowest:
            improved = loss < evaluations[chosen].loss - LOSS_TOLERANCE * abs(evaluations[chosen].loss)
        threshold = None if lowest or rows <= 1 else required
        evaluations.append(Evaluation(loss, gain, error, threshold))
        if improved:
            best, chosen, failed = current, number, 0
            errors = AFTER_LINE_ERRORS if line else LATER_ROUND_ERRORS
            if on_improvement is not None:
                on_improvement()
        else:
            failed += not line
            if failed >= patience:
                break
    return chosen, evaluations


def describe_choice(
    chosen: int, evaluations: Sequence[Evaluation], end: str, unchanged: str = "scores are left unchanged",
    *, line: float | None = None, measure: str = HELD_OUT_LOSS,
) -> str:  # fmt: skip
    """Return a choice as text: rounds, held-out loss, why the search ended (``end``); ``unchanged`` if none is chosen.

    ``line`` is the p-value of the score test if the first round is a line, ``measure`` what was compared.
    """
    if not chosen:
        return f"no round lowered the {measure} significantly; {unchanged}"
    rounds = count_rounds(chosen, line=line is not None)
    if line is not None:
        rounds = rounds.replace("a line", f"a line (score test: p = {line:.2g})")
    return f"{rounds}: {describe_gain(chosen, evaluations, measure)}; {end}"


def describe_gain(chosen: int, evaluations: Sequence[Evaluation], measure: str = HELD_OUT_LOSS) -> str:
    """Return the losses before and after ``chosen`` rounds as text, with the gain shrunken for its selection."""
    before, after = evaluations[0].loss, evaluations[chosen].loss
    shrunken = total_shrunken_gain(evaluations, chosen)
    return f"{measure} {before:.6g} -> {after:.6g} (a gain of {before - after:.3g}, {shrunken:.3g} shrunken for selection)"


def total_shrunken_gain(evaluations: Sequence[Evaluation], chosen: int) -> float:
    """Return the gain of ``chosen`` rounds, shrunken: of each by the threshold that it exceeded, else of all together."""
    kept = evaluations[1 : chosen + 1]
    if all(own.threshold is not None for own in kept):
        return math.fsum(own.shrunken_gain for own in kept)
    error = math.hypot(*(own.error for own in kept))  # squares could overflow
    return shrink_gain(evaluations[0].loss - evaluations[chosen].loss, error, FIRST_ROUND_ERRORS)


def shrink_gain(gain: float, error: float, threshold: float) -> float:
    """Shrink a gain that is reported only because it exceeded ``threshold`` standard errors ``error``.

    Reported gains are too large on average: those that fell short by chance are not reported (the winner's curse). This is
    the maximum-likelihood mean, at least 0, of a normal distribution truncated below at the threshold (Zollner & Pritchard
    2007): the m for which m + h(threshold - m) = gain / error, h the hazard of the standard normal distribution.
    """
    if not 0 < error < math.inf:
        return max(gain, 0.0) if error == 0 else 0.0
    normal, target = NormalDist(), gain / error

    def expected(mean: float) -> float:
        return mean + normal.pdf(threshold - mean) / normal.cdf(mean - threshold)

    low, high = 0.0, max(target, 0.0)
    if expected(low) >= target:
        return 0.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if expected(middle) < target else (low, middle)
    return low * error


def count_rounds(count: int, *, line: bool = False) -> str:
    """Return a number of rounds as text: "1 round", "2 rounds", "a line and 1 round" if the first of two is a ``line``."""
    if line:
        return f"a line and {count_rounds(count - 1)}" if count > 1 else "a line"
    return f"{count} round{'' if count == 1 else 's'}"


def required_gain(errors: float, error: float, rows: float, base_loss: float) -> float:
    """Return the gain a round must exceed: ``errors`` standard errors ``error``, more if effective ``rows`` are few."""
    return max(required_errors(errors, rows) * error if rows > 1 else math.inf, MIN_RELATIVE_GAIN * abs(base_loss))


def required_errors(errors: float, rows: float) -> float:
    """Return how many standard errors a gain must exceed: ``errors``, and more if the effective ``rows`` are few."""
    return errors * (1 + SMALL_SAMPLE_ROWS / (rows - 1))


def weighted_mean(values: FloatArray, weight: FloatArray | None, communicator: Communicator = SINGLE_PROCESS) -> float:
    """Return the weighted mean of ``values`` over the rows of all workers."""
    if weight is None:
        total, mass = communicator.all_reduce_sum([values.sum(), float(len(values))])
    else:
        total, mass = communicator.all_reduce_sum([(values * weight).sum(), weight.sum()])
    return float(total / mass)


def cluster_buckets(table: Table, rows: IntArray) -> IntArray | None:
    """Return CLUSTER_BUCKETS numbers for the clusters of some rows, the same on every worker; None without clusters.

    Sums over the clusters of a bucket estimate the variance as well as sums over clusters do, as clusters are independent.
    """
    return None if table.cluster is None else (table.cluster[rows] % np.uint64(CLUSTER_BUCKETS)).astype(np.int64)


def cluster_numbers(table: Table, rows: IntArray | slice = slice(None)) -> IntArray | None:
    """Return the cluster of some rows of a table, numbered from 0; None without clusters."""
    return None if table.cluster is None else np.unique(table.cluster[rows], return_inverse=True)[1].ravel()


def paired_gain(
    difference: FloatArray,
    weight: FloatArray | None,
    communicator: Communicator = SINGLE_PROCESS,
    cluster: IntArray | None = None,
) -> tuple[float, float, float]:
    """Return the mean of the differences per row, its standard error, and the effective number of rows behind that error.

    With a ``cluster`` of each row (numbers from 0), clusters take the place of rows: the mean of a cluster counts with the
    sum of its weights. Weights are importance weights. The effective number of rows is ``(sum u^2)^2 / sum u^4`` of the
    weighted deviations u, and at most that of the weights: a handful of rare events or heavy rows count as a handful,
    however many rows there are beside them.
    """
    if cluster is not None:
        own = np.ones(len(difference)) if weight is None else weight
        length = 0 if communicator is SINGLE_PROCESS else CLUSTER_BUCKETS
        by_cluster = [np.bincount(cluster, values, length) for values in (own, own * difference)]
        sizes, totals = communicator.all_reduce_sum(by_cluster)
        # Every worker has all clusters now, and continues alone.
        difference, weight, communicator = totals[sizes > 0] / sizes[sizes > 0], sizes[sizes > 0], SINGLE_PROCESS
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


def score_test(
    slopes: FloatArray,
    implied: FloatArray | None,
    weight: FloatArray | None,
    communicator: Communicator = SINGLE_PROCESS,
    cluster: IntArray | None = None,
) -> tuple[float, float]:
    """Return the mean of ``slopes`` in standard errors, and the effective number of rows; see `paired_gain`.

    The error is the larger of the observed one and that of the ``implied`` variances, which are known where events are few;
    they are not used with clusters, whose rows are not independent.
    """
    mean, error, rows = paired_gain(slopes, weight, communicator, cluster)
    if implied is not None and cluster is None:
        w = np.ones(len(implied)) if weight is None else weight
        variance, mass = map(float, communicator.all_reduce_sum([(w**2 * implied).sum(), w.sum()]))
        error = max(error, math.sqrt(variance) / mass)
    return mean / error if 0 < error < math.inf else 0.0, rows


@dataclass(frozen=True, eq=False)
class Split:
    """Rows divided into training rows and the fold ``held_out``; ``folds`` has the fold of each row."""

    folds: AnyArray
    held_out: int

    @property
    def train(self) -> IntArray:
        """The indices of the training rows."""
        return np.flatnonzero(self.folds != self.held_out)

    @cached_property
    def valid(self) -> IntArray:
        """The indices of the held-out rows."""
        return np.flatnonzero(self.folds == self.held_out)


def hold_out_last(train: int, held_out: int = 0) -> list[Split]:
    """Return one split: the first ``train`` rows are trained on, the last ``held_out`` rows are held out."""
    return [Split(np.repeat(np.array([0, 1], np.uint8), [train, held_out]), 1)]


def split_rows(
    table: Table,
    stopping: Holdout | CrossValidation,
    seed: int,
    assign: Callable[[Table, int, int], AnyArray] | None = None,
    communicator: Communicator = SINGLE_PROCESS,
) -> list[Split]:
    """Split the rows by a stopping rule: one split for a holdout, one per fold for a cross-validation.

    ``assign`` assigns the rows of this worker to folds, `assign_folds` by default.
    """
    count = HOLDOUT_FOLDS if isinstance(stopping, Holdout) else stopping.folds
    fold = (assign or assign_folds)(table, count, seed)
    if isinstance(stopping, Holdout):
        splits = [Split(fold < round(count * stopping.share), held_out=True)]
    else:
        splits = [Split(fold, number) for number in range(count)]
    sizes = communicator.all_reduce_sum([len(table), *(len(split.valid) for split in splits)])
    rows, *held_out = map(int, sizes.tolist())
    if not 0 < min(held_out) <= max(held_out) < rows:
        raise DataError(
            f"the {rows:,} rows cannot be split into training and held-out rows",
            hint="pass more rows, fewer folds, or another share to hold out"
            + ("; the rows of a cluster are in one fold" if table.cluster is not None else ""),
        )
    return splits


def check_row_count(table: Sized) -> None:
    """Raise DataError if there are fewer than MIN_ROWS rows."""
    if len(table) < MIN_ROWS:
        raise DataError(f"{len(table)} rows are too few to fit a correction", hint=f"pass at least {MIN_ROWS} rows")


def assign_folds(table: Table, count: int, seed: int) -> IntArray:
    """Return the fold of each row, from 0 to ``count - 1``, by its content or, if there are clusters, by its cluster.

    Stratified by outcome if the task is binary.
    """
    strata = table.y if table.schema.task == "binary" else np.zeros(len(table))
    if table.cluster is not None:
        return folds.assign_clusters(table.cluster, strata, count, seed)
    content, ties = row_content(table)
    return folds.assign_folds(content, strata, count, seed, ties)


def row_content(table: Table) -> tuple[list[AnyArray], list[FloatArray]]:
    """Return the columns that rows are hashed by (features, predictions), and tie-breakers: outcome, weight, cluster."""
    predictions = [table.prediction] if table.prediction.ndim == 1 else table.prediction.T
    ties = [table.y] if table.weight is None else [table.y, table.weight]
    if table.cluster is not None:
        ties.append(table.cluster.view(np.float64))
    return [*table.columns.values(), *predictions], ties


def append_rows(table: Table, more: Table) -> Table:
    """Return a table with the rows of ``table``, then those of ``more``, which has the same schema."""
    columns = {name: np.concatenate([column, more.columns[name]]) for name, column in table.columns.items()}
    weight = None
    if table.weight is not None or more.weight is not None:
        weight = np.concatenate([np.ones(len(t)) if t.weight is None else t.weight for t in (table, more)])
    cluster = None
    if table.cluster is not None or more.cluster is not None:  # rows without a cluster are clusters of one
        single = folds.hash_numbers([np.arange(len(table) + len(more), dtype=np.float64)], seed=1)
        parts = (single[: len(table)], single[len(table) :])
        cluster = np.concatenate([
            own if t.cluster is None else t.cluster for t, own in zip((table, more), parts, strict=True)
        ])  # fmt: skip
    return replace(
        table, columns=columns, prediction=np.concatenate([table.prediction, more.prediction]),
        outcome=np.concatenate([table.y, more.y]), weight=weight, kept=None, cluster=cluster, excluded={},
    )  # fmt: skip


class HeldOut(NamedTuple):
    """The held-out rows of a fit, with their scores before and after the correction."""

    scored: Scored  # outcomes, out-of-sample scores and weights
    rows: IntArray  # indices in the table
    before: FloatArray | None  # base scores; None if there was no prediction to correct
    cluster: UInt64Array | None = None

    def input_rows(self, table: Table) -> IntArray | None:
        """Return the indices of the rows in the user's input; None if they came from a `Validation`."""
        if len(self.rows) and self.rows[-1] >= len(table):
            return None
        return self.rows if table.kept is None else table.kept[self.rows]


def collect_held_out(table: Table, rows: IntArray, scores: FloatArray) -> HeldOut:
    """Return the held-out ``rows`` in the order of the table, with their out-of-sample ``scores``."""
    order = np.argsort(rows, kind="stable")
    rows = rows[order]
    weight = np.ones(len(rows)) if table.weight is None else table.weight[rows]
    scored = Scored(table.y[rows], scores[order], weight)
    cluster = None if table.cluster is None else table.cluster[rows]
    return HeldOut(scored, rows, table.prediction[rows] if table.schema.prediction else None, cluster)


def scale_weights(weight: FloatArray | None, rows: int, communicator: Communicator = SINGLE_PROCESS) -> FloatArray | None:
    """Scale weights to count rows: row counts stay unchanged, others are scaled to add up to the effective sample size.

    This holds for the first ``rows`` rows of each worker; the rest, validation rows, are divided by their maximum.
    """
    if weight is None:
        return None
    training, validation = weight[:rows], weight[rows:]
    largest, largest_valid = communicator.all_reduce_max([training.max(initial=0.0), validation.max(initial=0.0)])
    if not are_row_counts(training, communicator):
        training = training / largest
        ordered = np.sort(training)  # sums must not depend on the order of the rows
        total, squares = communicator.all_reduce_sum([ordered.sum(), (ordered**2).sum()])
        training = training * (total / squares)
    return np.concatenate([training, validation / largest_valid if len(validation) else validation])


def are_row_counts(weight: FloatArray, communicator: Communicator = SINGLE_PROCESS) -> bool:
    """Return whether weights are counts of rows: integers, with a mean of at most 100."""
    fractional, total, rows = communicator.all_reduce_sum([(weight != np.rint(weight)).sum(), weight.sum(), len(weight)])
    return bool(fractional == 0 and total <= MAX_MEAN_COUNT * rows)


def repeat_by_weight(table: Table, name: str) -> AnyArray:
    """Return the column ``name`` for quantile bins; if weights are row counts, each value is repeated that often."""
    column, weight = table.columns[name], table.weight
    if weight is None or not are_row_counts(weight) or (weight == weight[0]).all():
        return column
    return np.repeat(column, weight.astype(np.int64))
