"""Omniprediction: convert probabilities to the predictions that minimise the expected value of a given loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trueup._validate import check_fraction, check_number
from trueup.data.columns import check_aligned
from trueup.data.values import describe_rows
from trueup.decisions.evidence import has_weight, read_unlabelled
from trueup.decisions.rules import ERRORS, as_actions
from trueup.errors import ArgumentError, DataError
from trueup.metrics.groups import covariance_error, k2
from trueup.metrics.inputs import as_floats, validate_array, validate_scores
from trueup.metrics.result import Result

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from trueup._types import FloatArray


HINT = (
    'one of "absolute", "hinge", "log", "squared", ("quantile", 0.9), {"fn": 5, "fp": 1}, or a function of y and t that is '
    "convex in t"
)
CALL_HINT = "it is called with y = 1.0 or 0.0 and an array t, and returns an array of that shape: use np.where, np.maximum"
RANGE_HINT = "low and high limit the t that are searched for the minimum of a function"

GOLDEN = (math.sqrt(5) - 1) / 2
SECTIONS = 70  # golden sections of a sixteenth of the range: to 1e-16 of it, the resolution of the loss values
GRID = 33  # points at which a function is evaluated first
BLOCK = 32_768  # distinct probabilities searched at once, so that their arrays stay in the cache
SLOPE_STEP = 1e-6  # of the range of t, over which the slope at its ends is measured
CONVEXITY_TOLERANCE = 1e-9  # by which a value may exceed the line between its neighbours, relative to their size

Function = Callable[[float, "FloatArray"], Any]


class _Loss(NamedTuple):
    """A loss in closed form: the ``best`` prediction for each probability, and the ``value`` of predictions by outcome."""

    best: Callable[[FloatArray], FloatArray]
    value: Callable[[float, FloatArray], FloatArray]


def omnipredict(p: ArrayLike, loss: Any, *, low: float = 0.0, high: float = 1.0) -> FloatArray:
    """Convert probabilities to the predictions of lowest expected loss: argmin over t of p l(1, t) + (1 - p) l(0, t).

    For every convex loss, predictions derived in this way from a multicalibrated score are about as good as a model trained
    for that loss, among those that the score was calibrated against (Gopalan, Kalai, Reingold, Sharan & Wieder 2022).

    Parameters
    ----------
    p : array-like, shape (n,)
        Probabilities.
    loss : str, tuple, mapping or callable
        - "squared" (y - t)^2, and "log", the negative log-likelihood: t is the probability itself;
        - "absolute" |y - t|: 1 where p exceeds 1/2, else 0;
        - ("quantile", q), the pinball loss max(q (y - t), (1 - q)(t - y)): 1 where p exceeds 1 - q, else 0;
        - "hinge" max(0, 1 - y t), with outcomes -1 and 1: 1 where p exceeds 1/2, else -1;
        - {"fn": .., "fp": ..}, optionally with "tp" and "tn": 1 (act) where acting costs no more than not acting, else 0;
        - l(y, t), convex in t, called with y = 1.0 or 0.0 and an array t; it returns an array of the same shape, which may
          contain infinity.
    low, high : float
        Range of t that is searched for the minimum of a function. Named losses have their own range.

    Returns
    -------
    ndarray, shape (n,)

    Notes
    -----
    All losses except functions are exact: p, q and costs are compared without rounding. Among predictions
    of equal loss the lowest is returned; costs act instead, as a rule does at its threshold.

    A function is evaluated on a grid, and its minimum then located by golden sections. Values of a smooth loss cannot
    distinguish t closer than about 1e-8 of the range, which limits the precision of t; at a kink it is exact to rounding.
    If the minimum is attained on an interval, t lies somewhere in it. Convexity cannot be proved: a function is rejected if
    33 points contradict it; violations between them go unnoticed.

    References
    ----------
    Gopalan, Kalai, Reingold, Sharan & Wieder (2022), "Omnipredictors", arXiv:2109.05389; Globus-Harris, Harrison, Kearns,
    Roth & Sorrell (2023), "Multicalibration as Boosting for Regression", arXiv:2301.13767, appendix E.

    Examples
    --------
    >>> omnipredict([0.1, 0.3, 0.8], {"fn": 5, "fp": 1})
    array([0., 1., 1.])
    >>> omnipredict([0.05, 0.3, 0.8], ("quantile", 0.9))
    array([0., 1., 1.])
    >>> omnipredict([0.2, 0.7], lambda y, t: (y - t) ** 4).round(3)
    array([0.386, 0.57 ])

    See Also
    --------
    omni_gap : Measure how far these predictions may be from the best function of a class.
    """
    probabilities = read_unlabelled(p).p
    closed = _closed_form(loss)
    if closed is not None:
        if (low, high) != (0.0, 1.0):
            raise ArgumentError(f"low and high are for functions, not for {loss!r:.60}", hint="leave them out")
        return closed.best(probabilities)
    check_number("low", low, hint=RANGE_HINT)
    check_number("high", high, hint=RANGE_HINT)
    if not low < high:
        raise ArgumentError(f"low must be below high; got {low:g} and {high:g}", hint=RANGE_HINT, parameter="low")
    distinct, index = np.unique(probabilities, return_inverse=True)
    grid = np.linspace(float(low), float(high), GRID)
    on_grid = tuple(_evaluate_on_grid(loss, y, grid) for y in (1.0, 0.0))
    blocks = [_minimise(block, loss, grid, on_grid) for block in np.split(distinct, range(BLOCK, len(distinct), BLOCK))]
    return np.asarray(np.concatenate(blocks)[index])


def omniloss(y: ArrayLike, t: ArrayLike, loss: Any) -> FloatArray:
    """Compute the loss of predictions on rows with known outcomes, for the losses of `omnipredict`.

    Parameters
    ----------
    y : array-like, shape (n,)
        Outcomes, 0 or 1, also for "hinge". For values between them, the expected loss: with a probability as y, it is what
        `omnipredict` minimises.
    t : array-like, shape (n,)
        Predictions, such as those of `omnipredict`: probabilities for "log", 0 or 1 for costs, else any numbers.
    loss : str, tuple, mapping or callable
        As for `omnipredict`.

    Returns
    -------
    ndarray, shape (n,)
        The loss of each row; infinite for "log" if an outcome of probability 0 occurred.

    Examples
    --------
    >>> omniloss([1, 0, 0], [0, 0, 1], {"fn": 5, "fp": 1})
    array([5., 0., 1.])
    >>> omniloss([1, 1], [-1, 0.5], "hinge")
    array([2. , 0.5])
    """
    check_aligned({"y": y, "t": t})
    outcomes, predictions = validate_array(y, "y"), validate_array(t, "t")
    if len(outcomes) != len(predictions):
        lengths = f"{len(outcomes)} and {len(predictions)}"
        raise DataError(f"outcomes and predictions must have equal length; got {lengths}", hint="one entry per row")
    outcomes = validate_scores(outcomes, np.zeros(len(outcomes))).y
    closed = _closed_form(loss)
    if closed is None:
        return _expected_loss(outcomes, _evaluate(loss, 1.0, predictions), _evaluate(loss, 0.0, predictions))
    bad, requirement, hint = np.zeros(len(predictions), bool), "", ""
    if isinstance(loss, Mapping):
        bad = (predictions != 0) & (predictions != 1)
        requirement, hint = "for costs must be 1, to act, or 0", "see omnipredict"
    elif loss == "log":
        bad = (predictions < 0) | (predictions > 1)
        requirement, hint = "for the log loss must be probabilities", "pass logits through expit"
    if bad.any():
        raise DataError(f"predictions {requirement}; got {predictions[bad][0]:.10g} {describe_rows(bad)}", hint=hint)
    return _expected_loss(outcomes, closed.value(1.0, predictions), closed.value(0.0, predictions))


@dataclass(frozen=True, eq=False)
class OmniGap(Result):
    """How far omnipredictions may be from the best function of a class, and how far they are on labelled rows.

    Attributes
    ----------
    gap : float
        2 L times ``covariance``: the loss exceeds that of the best function by at most this.
    lipschitz_gap : float
        2 L sqrt(alpha) (1 + sqrt(B)), the same from ``alpha``; usually far larger.
    covariance : float
        The largest covariance error of the functions (`trueup.metrics.covariance_error`).
    alpha : float
        The largest K2 of the functions and of the constant 1 (`trueup.metrics.k2`).
    bound : float
        B, the largest square of a value of a function.
    lipschitz : float
        L, the largest slope of the loss over the predictions and the values of the functions.
    loss : float
        Mean loss of the omnipredictions.
    losses : ndarray
        Mean loss of each function.
    """

    gap: float
    lipschitz_gap: float
    covariance: float
    alpha: float
    bound: float
    lipschitz: float
    loss: float
    losses: FloatArray

    @property
    def excess(self) -> float:
        """The mean loss of the omnipredictions less that of the best function; negative if they are better."""
        return self.loss - float(self.losses.min())

    def __repr__(self) -> str:
        best = f"the best of {len(self.losses)} function{'' if len(self.losses) == 1 else 's'} {self.losses.min():.4g}"
        return f"<OmniGap loss {self.loss:.4g}, {best}; guaranteed excess at most {self.gap:.4g}>"


def omni_gap(
    y: ArrayLike, p: ArrayLike, h: ArrayLike, loss: Any, weight: ArrayLike | None = None, *,
    lipschitz: float | None = None, low: float = 0.0, high: float = 1.0,
) -> OmniGap:  # fmt: skip
    """Bound how much worse `omnipredict` is than the best function of a class, by the multicalibration error of the score.

    Parameters
    ----------
    y : array-like, shape (n,)
        Outcomes, 0 or 1, of rows that the score was not fitted on.
    p : array-like, shape (n,)
        Scores with few distinct values: round others first, with `trueup.metrics.discretize`.
    h : array-like, shape (n, q) or (n,)
        Functions of the class, one per column, evaluated at the rows: predictions of the loss's own kind.
    loss : str, tuple, mapping or callable
        As for `omnipredict`. Costs are losses that are linear in t between 0, not to act, and 1.
    weight : array-like, shape (n,), optional
    lipschitz : float, optional
        L, a bound on the slope of the loss in t. By default the largest one between predictions and values of h; the log
        loss has none where a prediction may be 0 or 1.
    low, high : float
        As for `omnipredict`.

    Returns
    -------
    OmniGap

    Notes
    -----
    If the score is alpha-approximately covariance multicalibrated with respect to the functions, with alpha of
    `trueup.metrics.covariance_error`, the mean loss is at most that of the best function plus 2 alpha L, for every loss
    that is convex and L-Lipschitz (Gopalan, Kalai, Reingold, Sharan & Wieder 2022; theorem E.6 of Globus-Harris et al.
    2023). With alpha of `k2` for the functions and the constant 1, and h^2 <= B, covariances are at most sqrt(alpha) (1 +
    sqrt(B)) (lemma E.5, corollary E.7).

    The proof compares with the best prediction t* for the mean outcome of a level; predictions t for the score v add
    2 L E |E[y | v] - v| |t - t*|, which ``gap`` includes: it holds for these rows exactly. For new rows it is an estimate:
    noise raises the measured alpha, by about sqrt(m / n) for m levels and n rows, so that it is rarely too small.

    References
    ----------
    Gopalan, Kalai, Reingold, Sharan & Wieder (2022), "Omnipredictors", arXiv:2109.05389;
    Globus-Harris, Harrison, Kearns, Roth & Sorrell (2023), "Multicalibration as Boosting for Regression",
    arXiv:2301.13767, theorem E.6.

    Examples
    --------
    >>> y, p, h = [0, 1, 0, 1], [0.25, 0.25, 0.75, 0.75], [[0, 1], [1, 1], [0, 0], [1, 0]]
    >>> omni_gap(y, p, h, "absolute")
    <OmniGap loss 0.5, the best of 2 functions 0; guaranteed excess at most 0.75>
    """
    outcomes = validate_scores(y, p, weight)
    functions = as_floats(h, "h")
    functions = functions[:, None] if functions.ndim == 1 else functions
    covariance = float(covariance_error(y, p, functions, weight).max())  # validates h, too
    ones = np.ones(len(functions))
    alpha = max(float(k2(y, p, functions, weight).max()), float(k2(y, p, ones, weight)[0]))
    kept = has_weight(weight, p)
    functions = functions[kept]
    predictions = omnipredict(outcomes.p, loss, low=low, high=high)
    values = _linear_costs(loss) if isinstance(loss, Mapping) else None
    own = [_loss_of(loss, values, outcomes.y, t) for t in (predictions, *functions.T)]
    means = [float(np.average(each, weights=outcomes.w)) for each in own]
    level, index = np.unique(outcomes.p, return_inverse=True)
    mass = np.bincount(index, outcomes.w)
    mean = np.clip(np.bincount(index, outcomes.w * outcomes.y) / mass, 0.0, 1.0)
    ideal = omnipredict(mean, loss, low=low, high=high)[index]
    bias = float(np.average(np.abs(mean - level)[index] * np.abs(ideal - predictions), weights=outcomes.w))
    every = np.concatenate([functions.ravel(), predictions, ideal])
    if lipschitz is None:
        lipschitz = _steepest(loss, values, float(every.min()), float(every.max()))
    hint = "the log loss has no bounded slope at 0 and 1: keep scores, mean outcomes and functions away from both"
    check_number("lipschitz", lipschitz, 0, hint=hint)
    bound = float((functions**2).max())
    return OmniGap(
        gap=2 * lipschitz * (covariance + bias),
        lipschitz_gap=2 * lipschitz * math.sqrt(alpha) * (1 + math.sqrt(bound)),
        covariance=covariance,
        alpha=alpha,
        bound=bound,
        lipschitz=float(lipschitz),
        loss=means[0],
        losses=np.array(means[1:]),
    )


def _linear_costs(costs: Mapping[str, Any]) -> tuple[FloatArray, FloatArray]:
    """Return the costs of not acting and of acting, on a negative and on a positive row."""
    wait, act = as_actions(costs)
    return np.array([wait.negative, wait.positive]), np.array([act.negative, act.positive])


def _loss_of(loss: Any, costs: tuple[FloatArray, FloatArray] | None, y: FloatArray, t: FloatArray) -> FloatArray:
    if costs is None:
        return omniloss(y, t, loss)
    index = y.astype(np.int64)
    return np.asarray((1 - t) * costs[0][index] + t * costs[1][index])


def _steepest(loss: Any, costs: tuple[FloatArray, FloatArray] | None, low: float, high: float) -> float:
    """Return the largest slope of the loss between ``low`` and ``high``: of a convex function, at one of the ends."""
    if costs is not None:
        return float(np.abs(costs[1] - costs[0]).max())
    if low == high:
        return 0.0
    step = (high - low) * SLOPE_STEP
    ends = np.array([low, low + step, high - step, high])
    slopes = []
    for y in (0.0, 1.0):
        values = omniloss(np.full(4, y), ends, loss)
        slopes += [values[1] - values[0], values[3] - values[2]]
    return float(np.max(np.abs(slopes)) / step) if np.isfinite(slopes).all() else math.inf


def _closed_form(loss: Any) -> _Loss | None:
    """Return a loss in closed form; None for a function."""
    if isinstance(loss, str) and loss in NAMED_LOSSES:
        return NAMED_LOSSES[loss]
    if isinstance(loss, tuple) and len(loss) == 2 and isinstance(loss[0], str) and loss[0] == "quantile":
        return _quantile_loss(loss[1])
    if isinstance(loss, Mapping) and loss and set(loss) <= set(ERRORS):
        return _cost_loss(loss)
    if callable(loss):
        return None
    raise ArgumentError(f"loss is unknown: {loss!r:.60}", hint=HINT, parameter="loss")


def _log_loss(y: float, t: FloatArray) -> FloatArray:
    with np.errstate(divide="ignore"):
        return np.asarray(-np.log(t) if y else -np.log1p(-t))


NAMED_LOSSES = {
    "absolute": _Loss(lambda p: np.where(p > 0.5, 1.0, 0.0), lambda y, t: np.abs(y - t)),
    "hinge": _Loss(lambda p: np.where(p > 0.5, 1.0, -1.0), lambda y, t: np.maximum(0.0, 1 - (2 * y - 1) * t)),
    "log": _Loss(np.copy, _log_loss),
    "squared": _Loss(np.copy, lambda y, t: (y - t) ** 2),
}


def _quantile_loss(share: Any) -> _Loss:
    """Return the pinball loss of quantile q; p > 1 - q is tested exactly, by subtracting the larger of p and q from 1."""
    check_fraction("loss: the quantile", share, hint='write ("quantile", 0.9)')
    q = float(share)

    def best(p: FloatArray) -> FloatArray:
        return np.asarray(p > 1 - q if q >= 0.5 else 1 - p < q, np.float64)

    return _Loss(best, lambda y, t: np.maximum(q * (y - t), (1 - q) * (t - y)))


def _cost_loss(costs: Mapping[str, Any]) -> _Loss:
    """Return the loss of acting (1) or not (0) with these costs of errors."""
    wait, act = as_actions(costs)
    # The saving of acting is linear in p; fractions find its zero without rounding.
    saving_at_0 = Fraction(wait.negative) - Fraction(act.negative)
    saving_at_1 = Fraction(wait.positive) - Fraction(act.positive)

    def best(p: FloatArray) -> FloatArray:
        if saving_at_0 == saving_at_1:
            return np.full(len(p), float(saving_at_0 >= 0))
        crossing = saving_at_0 / (saving_at_0 - saving_at_1)
        nearest = float(min(max(crossing, Fraction(-1)), Fraction(2)))
        if saving_at_1 > saving_at_0:
            return np.asarray(p >= nearest if Fraction(nearest) >= crossing else p > nearest, np.float64)
        return np.asarray(p <= nearest if Fraction(nearest) <= crossing else p < nearest, np.float64)

    def value(y: float, t: FloatArray) -> FloatArray:
        return np.where(t > 0, act.positive if y else act.negative, wait.positive if y else wait.negative)

    return _Loss(best, value)


def _expected_loss(p: FloatArray, if_one: FloatArray, if_zero: FloatArray) -> FloatArray:
    """Return p if_one + (1 - p) if_zero, the expected loss; an infinite loss of probability 0 counts as 0."""
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(p > 0, p * if_one, 0.0) + np.where(p < 1, (1 - p) * if_zero, 0.0))


def _evaluate_on_grid(loss: Function, y: float, grid: FloatArray) -> FloatArray:
    """Evaluate a loss function for outcome ``y`` on a grid of t, and raise if the values show that it is not convex."""
    values = _evaluate(loss, y, grid)
    finite = np.flatnonzero(np.isfinite(values))
    if not len(finite):
        hint = f"choose another range: {RANGE_HINT}"
        raise ArgumentError(f"loss is infinite at every t for y = {y:g}", hint=hint, parameter="loss")
    first, last = int(finite[0]), int(finite[-1])
    inner = values[first : last + 1]
    size = np.maximum(np.maximum(np.abs(inner[:-2]), np.abs(inner[2:])), np.abs(inner[1:-1]))
    with np.errstate(all="ignore"):
        dtype = np.asarray(loss(y, grid.copy())).dtype  # a function may compute in less than double precision
        tolerance = max(CONVEXITY_TOLERANCE, 4 * float(np.finfo(dtype).eps) if dtype.kind == "f" else 0.0)
        concave = ~(inner[1:-1] - inner[:-2] / 2 - inner[2:] / 2 <= tolerance * size)
    if concave.any():
        index = first + 1 + int(np.argmax(concave))
        points = ", ".join(f"{values[k]:.6g} at t = {grid[k]:.6g}" for k in (index - 1, index, index + 1))
        raise ArgumentError(
            f"loss is not convex in t: for y = {y:g} it is {points}",
            hint="omnipredict requires a convex loss",
            parameter="loss",
        )
    return values


def _minimise(p: FloatArray, loss: Function, grid: FloatArray, on_grid: tuple[FloatArray, ...]) -> FloatArray:
    """Find the t of lowest expected loss for each probability; ``on_grid`` has the loss at grid points for y = 1 and 0."""

    def expected(t: FloatArray) -> FloatArray:
        return _expected_loss(p, _evaluate(loss, 1.0, t), _evaluate(loss, 0.0, t))

    value, index = np.full(len(p), math.inf), np.full(len(p), -1)
    for k in range(GRID):
        trial = _expected_loss(p, *(np.broadcast_to(values[k], p.shape) for values in on_grid))
        value, index = np.where(trial < value, trial, value), np.where(trial < value, k, index)
    if (index < 0).any():
        raise ArgumentError(
            f"loss: its expectation is infinite at every t for p = {p[index < 0][0]:.6g}",
            hint="for some t, the loss must be finite for y = 1 and for y = 0",
            parameter="loss",
        )
    a, b = grid[np.maximum(index - 1, 0)], grid[np.minimum(index + 1, GRID - 1)]
    c, d = b - GOLDEN * (b - a), a + GOLDEN * (b - a)
    at_c, at_d, best = expected(c), expected(d), grid[index]
    for _ in range(SECTIONS):
        # The loss is finite on an interval that contains the best grid point: infinite values lie beyond its ends.
        left = (at_c <= at_d) & ~(np.isinf(at_c) & (c < best)) | np.isinf(at_d) & (d > best)
        a, b = np.where(left, a, c), np.where(left, d, b)
        new = np.where(left, b - GOLDEN * (b - a), a + GOLDEN * (b - a))
        c, d = np.where(left, new, d), np.where(left, c, new)
        at_new = expected(new)
        at_c, at_d = np.where(left, at_new, at_d), np.where(left, at_c, at_new)
    for end in (a, (a + b) / 2, b):
        trial = expected(end)
        value, best = np.where(trial < value, trial, value), np.where(trial < value, end, best)
    return np.asarray(best)


def _evaluate(loss: Function, y: float, t: FloatArray) -> FloatArray:
    """Call a loss function with outcome ``y`` and predictions ``t``, and validate what it returns."""
    try:
        with np.errstate(all="ignore"):
            returned = np.asarray(loss(y, t.copy()))
    except Exception as error:
        message = f"loss failed on an array of {len(t):,} t: {error}"
        raise ArgumentError(message, hint=CALL_HINT, parameter="loss") from error
    if returned.dtype.kind not in "biuf" or returned.shape != t.shape:
        kind = f"an array of shape {returned.shape}" if returned.ndim else f"{returned.item()!r:.60}"
        message = f"loss must return one number per t; got {kind} for {len(t):,} t"
        raise ArgumentError(message, hint=CALL_HINT, parameter="loss")
    values = returned.astype(np.float64)
    bad = np.isnan(values) | (values == -math.inf)
    if bad.any():
        message = f"loss must be a number or infinity; got {values[bad][0]} for y = {y:g} and t = {t[bad][0]:.6g}"
        raise ArgumentError(message, hint=RANGE_HINT, parameter="loss")
    return values
