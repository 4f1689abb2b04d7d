"""One score for every loss: what to predict, given the probability, to lose least."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trueup.data.checks import describe_rows
from trueup.decisions.inputs import is_number, number, unlabelled
from trueup.decisions.rules import ERRORS, as_actions
from trueup.errors import ArgumentError, DataError
from trueup.metrics.inputs import numbers, scored

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from trueup._types import AnyArray, BoolArray, FloatArray


LOSSES = ("absolute", "hinge", "log", "squared")
OTHERS = '("quantile", 0.9), {"fn": 5, "fp": 1}, or a function of y and t that is convex in t'
HINT = "one of " + ", ".join(f'"{name}"' for name in LOSSES) + f", {OTHERS}"
CALLED = "it is called with y = 1.0 or 0.0 and an array t, and gives an array of that shape: use np.where, np.maximum"
RANGE = "low and high say between which t a function's least value is looked for"

GOLDEN = (math.sqrt(5) - 1) / 2
SECTIONS = 70  # of a sixteenth of the range: to 1e-16 of it, as far as values of the loss can tell
GRID = 33  # points at which a function is looked at first
BLOCK = 32_768  # distinct probabilities that are searched for at once: what they need stays close at hand
BENT = 1e-9  # how far a value may lie above the line between its neighbours, of their size: rounding, not a bend


class _Loss(NamedTuple):
    """What a loss is: the best prediction for each probability, and its value for outcome 1 or 0."""

    best: Callable[[FloatArray], FloatArray]
    value: Callable[[float, FloatArray], FloatArray]


def omnipredict(p: ArrayLike, loss: Any, *, low: float = 0.0, high: float = 1.0) -> FloatArray:
    """Turn probabilities into the predictions that lose least: argmin over t of p l(1, t) + (1 - p) l(0, t).

    A multicalibrated score, treated so, is about as good for every convex loss as a model trained for that loss, among
    those that it was calibrated against (Gopalan, Kalai, Reingold, Sharan & Wieder 2022).

    Parameters
    ----------
    p : array-like, shape (n,)
        Probabilities.
    loss : str, tuple, mapping or callable
        - "squared" (y - t)^2, and "log", the negative log-likelihood: t is the probability itself;
        - "absolute" |y - t|: 1 where p exceeds 1/2, else 0;
        - ("quantile", q), the pinball loss, q (y - t) or (1 - q)(t - y), whichever is positive: 1 where p exceeds
          1 - q, else 0;
        - "hinge" max(0, 1 - y t), where outcomes are -1 and 1: 1 where p exceeds 1/2, else -1;
        - {"fn": .., "fp": ..}, perhaps with "tp" and "tn": 1, to act, where that costs no more than not to, else 0;
        - l(y, t), convex in t, called with y = 1.0 or 0.0 and an array t; it gives an array of the same shape, in which
          infinity is allowed.
    low, high : float
        Between which t the least value of a function is looked for. The others know their range.

    Returns
    -------
    ndarray, shape (n,)

    Notes
    -----
    All but functions are exact, in the sense that p, q and costs are taken as the binary numbers that they are. Where
    several predictions lose the same, the lowest is given; only costs act then, as a rule does at its threshold.

    A function is looked at on a grid, then narrowed down by golden sections. Values of a smooth loss do not tell t apart
    that are closer than about 1e-8 of the range, so that t is no more precise than that; at a kink it is exact to rounding.
    Where the least value is taken on a whole interval, t lies somewhere in it. That a function is convex cannot be made
    sure of: it is refused where 33 points show that it is not, and what bends the wrong way between them is not seen.

    Examples
    --------
    >>> omnipredict([0.1, 0.3, 0.8], {"fn": 5, "fp": 1})
    array([0., 1., 1.])
    >>> omnipredict([0.05, 0.3, 0.8], ("quantile", 0.9))
    array([0., 1., 1.])
    >>> omnipredict([0.2, 0.7], lambda y, t: (y - t) ** 4).round(3)
    array([0.386, 0.57 ])
    """
    ps = unlabelled(p).p
    found = _known(loss)
    if found is not None:
        if (low, high) != (0.0, 1.0):
            raise ArgumentError(f"low and high are for functions, not for {loss!r:.60}", hint="leave them out")
        return found.best(ps)
    start, end = (number(value, name, RANGE) for value, name in ((low, "low"), (high, "high")))
    if not start < end:
        raise ArgumentError(f"low must be below high; got {start:g} and {end:g}", hint=RANGE)
    values, at = np.unique(ps, return_inverse=True)
    grid = np.linspace(start, end, GRID)
    on_grid = tuple(_on_grid(loss, y, grid) for y in (1.0, 0.0))
    blocks = [_least(part, loss, grid, on_grid) for part in np.split(values, range(BLOCK, len(values), BLOCK))]
    return np.asarray(np.concatenate(blocks)[at])


def omniloss(y: ArrayLike, t: ArrayLike, loss: Any) -> FloatArray:
    """Say what predictions lose on rows with known outcomes, in the units of `omnipredict`.

    Parameters
    ----------
    y : array-like, shape (n,)
        Outcomes, 0 or 1, for "hinge" too. Between them, the expected loss: a probability in the place of y gives what
        `omnipredict` makes least.
    t : array-like, shape (n,)
        Predictions, such as `omnipredict` gives: probabilities for "log", 0 or 1 for costs, else any numbers.
    loss : str, tuple, mapping or callable
        As for `omnipredict`.

    Returns
    -------
    ndarray, shape (n,)
        The loss of each row; infinite for "log" where what was ruled out happened.

    Examples
    --------
    >>> omniloss([1, 0, 0], [0, 0, 1], {"fn": 5, "fp": 1})
    array([5., 0., 1.])
    >>> omniloss([1, 1], [-1, 0.5], "hinge")
    array([2. , 0.5])
    """
    ys, ts = numbers(y, "y"), numbers(t, "t")
    if len(ys) != len(ts):
        raise DataError(f"outcomes and predictions must be equally long; got {len(ys)} and {len(ts)}", hint="one a row")
    ys = scored(ys, np.zeros(len(ys))).y
    found = _known(loss)
    if found is None:
        return _mixed(ys, _asked(loss, 1.0, ts), _asked(loss, 0.0, ts))
    if isinstance(loss, Mapping):
        _refuse((ts != 0) & (ts != 1), ts, "predictions for costs must be 1, to act, or 0", "see omnipredict")
    if isinstance(loss, str) and loss == "log":
        _refuse((ts < 0) | (ts > 1), ts, "predictions for the log loss must be probabilities", "pass logits through expit")
    return _mixed(ys, found.value(1.0, ts), found.value(0.0, ts))


def _refuse(bad: BoolArray, t: FloatArray, told: str, hint: str) -> None:
    if bad.any():
        raise DataError(f"{told}; got {t[bad][0]:.10g} {describe_rows(bad)}", hint=hint)


def _known(loss: Any) -> _Loss | None:
    """Read a loss with a closed form; None for a function."""
    if isinstance(loss, str) and loss in NAMED:
        return NAMED[loss]
    if isinstance(loss, tuple) and len(loss) == 2 and isinstance(loss[0], str) and loss[0] == "quantile":
        return _quantile(loss[1])
    if isinstance(loss, Mapping) and loss and set(loss) <= set(ERRORS):
        return _costs(loss)
    if callable(loss):
        return None
    raise ArgumentError(f"loss is not known: {loss!r:.60}", hint=HINT)


def _log(y: float, t: FloatArray) -> FloatArray:
    with np.errstate(divide="ignore"):
        return np.asarray(-np.log(t) if y else -np.log1p(-t))


NAMED = {
    "absolute": _Loss(lambda p: np.where(p > 0.5, 1.0, 0.0), lambda y, t: np.abs(y - t)),
    "hinge": _Loss(lambda p: np.where(p > 0.5, 1.0, -1.0), lambda y, t: np.maximum(0.0, 1 - (2 * y - 1) * t)),
    "log": _Loss(np.copy, _log),
    "squared": _Loss(np.copy, lambda y, t: (y - t) ** 2),
}


def _quantile(share: Any) -> _Loss:
    """Make the pinball loss. Of q and p, the larger is taken from 1, which is exact: no rounding moves a tie."""
    if not is_number(share) or not 0 < share < 1:
        raise ArgumentError(f"a quantile lies between 0 and 1; got {share!r:.60}", hint='write ("quantile", 0.9)')
    q = float(share)

    def best(p: FloatArray) -> FloatArray:
        return np.asarray(p > 1 - q if q >= 0.5 else 1 - p < q, np.float64)

    return _Loss(best, lambda y, t: np.maximum(q * (y - t), (1 - q) * (t - y)))


def _costs(costs: Mapping[str, Any]) -> _Loss:
    """Make the loss of acting (1) or not (0)."""
    wait, act = as_actions(costs)
    # What acting saves is a line, at p = 0 and at p = 1: where it crosses 0 is found without rounding.
    at_zero, at_one = (
        Fraction(before) - Fraction(after)
        for before, after in ((wait.negative, act.negative), (wait.positive, act.positive))
    )

    def best(p: FloatArray) -> FloatArray:
        if at_zero == at_one:
            return np.full(len(p), float(at_zero >= 0))
        crossing = at_zero / (at_zero - at_one)
        near = float(min(max(crossing, Fraction(-1)), Fraction(2)))
        if at_one > at_zero:
            return np.asarray(p >= near if Fraction(near) >= crossing else p > near, np.float64)
        return np.asarray(p <= near if Fraction(near) <= crossing else p < near, np.float64)

    def value(y: float, t: FloatArray) -> FloatArray:
        return np.where(t > 0, act.positive if y else act.negative, wait.positive if y else wait.negative)

    return _Loss(best, value)


def _mixed(p: FloatArray, if_one: FloatArray, if_zero: FloatArray) -> FloatArray:
    """Give the expected loss; an infinite one that cannot happen counts for nothing."""
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(p > 0, p * if_one, 0.0) + np.where(p < 1, (1 - p) * if_zero, 0.0))


def _on_grid(loss: Callable[[float, FloatArray], Any], y: float, grid: FloatArray) -> FloatArray:
    """Look at a function for one outcome, and refuse it where it is seen not to be convex."""
    found = _asked(loss, y, grid)
    finite = np.flatnonzero(np.isfinite(found))
    if not len(finite):
        raise ArgumentError(f"the loss is infinite at every t for y = {y:g}", hint=f"give it another range: {RANGE}")
    first, last = int(finite[0]), int(finite[-1])
    inner = found[first : last + 1]
    size = np.maximum(np.maximum(np.abs(inner[:-2]), np.abs(inner[2:])), np.abs(inner[1:-1]))
    with np.errstate(invalid="ignore", over="ignore"):
        bent = ~(inner[1:-1] - inner[:-2] / 2 - inner[2:] / 2 <= max(BENT, _rounding(loss, y, grid)) * size)
    if bent.any():
        at = first + 1 + int(np.argmax(bent))
        told = ", ".join(f"{found[k]:.6g} at t = {grid[k]:.6g}" for k in (at - 1, at, at + 1))
        raise ArgumentError(
            f"the loss is not convex in t: for y = {y:g} it is {told}", hint="omnipredict takes convex losses only"
        )
    return found


def _rounding(loss: Callable[[float, FloatArray], Any], y: float, t: FloatArray) -> float:
    """Give how far off values may be that a function gives in less than double precision, of their size."""
    kind = _given(loss, y, t).dtype
    return 4 * float(np.finfo(kind).eps) if kind.kind == "f" else 0.0


def _least(
    p: FloatArray, loss: Callable[[float, FloatArray], Any], grid: FloatArray, on_grid: tuple[FloatArray, ...]
) -> FloatArray:
    """Find the least expected loss of each probability, all at once, near the best point of the grid."""

    def expected(t: FloatArray) -> FloatArray:
        return _mixed(p, _asked(loss, 1.0, t), _asked(loss, 0.0, t))

    value, at = np.full(len(p), math.inf), np.full(len(p), -1)
    for k in range(GRID):
        here = _mixed(p, *(np.broadcast_to(one[k], p.shape) for one in on_grid))
        value, at = np.where(here < value, here, value), np.where(here < value, k, at)
    if (at < 0).any():
        raise ArgumentError(
            f"the expected loss is infinite at every t for p = {p[at < 0][0]:.6g}",
            hint="for some t, the loss must be finite for y = 1 and for y = 0",
        )
    a, b = grid[np.maximum(at - 1, 0)], grid[np.minimum(at + 1, GRID - 1)]
    c, d = b - GOLDEN * (b - a), a + GOLDEN * (b - a)
    at_c, at_d, known = expected(c), expected(d), grid[at]
    for _ in range(SECTIONS):
        # A loss is finite on one interval, and at the known point: what is infinite on one side of it lies beyond its end.
        left = (at_c <= at_d) & ~(np.isinf(at_c) & (c < known)) | np.isinf(at_d) & (d > known)
        a, b = np.where(left, a, c), np.where(left, d, b)
        new = np.where(left, b - GOLDEN * (b - a), a + GOLDEN * (b - a))
        c, d = np.where(left, new, d), np.where(left, c, new)
        found = expected(new)
        at_c, at_d = np.where(left, found, at_d), np.where(left, at_c, found)
    for end in (a, (a + b) / 2, b):
        here = expected(end)
        value, known = np.where(here < value, here, value), np.where(here < value, end, known)
    return np.asarray(known)


def _asked(loss: Callable[[float, FloatArray], Any], y: float, t: FloatArray) -> FloatArray:
    """Ask a function for its values, and check what it gives."""
    given = _given(loss, y, t)
    if given.dtype.kind not in "biuf" or given.shape != t.shape:
        kind = f"an array of shape {given.shape}" if given.ndim else f"{given.item()!r:.60}"
        raise ArgumentError(f"the loss must give a number for each t; got {kind} for {len(t):,} t", hint=CALLED)
    found = given.astype(np.float64)
    bad = np.isnan(found) | (found == -math.inf)
    if bad.any():
        told = f"the loss must be a number or infinity; got {found[bad][0]} for y = {y:g} and t = {t[bad][0]:.6g}"
        raise ArgumentError(told, hint=RANGE)
    return found


def _given(loss: Callable[[float, FloatArray], Any], y: float, t: FloatArray) -> AnyArray:
    """Call a function."""
    try:
        with np.errstate(all="ignore"):
            return np.asarray(loss(y, t.copy()))
    except Exception as error:
        raise ArgumentError(f"the loss failed on an array of {len(t):,} t: {error}", hint=CALLED) from error
