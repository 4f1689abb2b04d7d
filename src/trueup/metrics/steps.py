"""The calibration measure over classes: step functions that minimise it, and unions of intervals where it is largest.

Gao, Parameswaran & Peng (2017), section 3.3.3, suggest to choose a link g from a class by the largest error over ranges of
the score, L_c(g) = max over a < b of |(1/W) sum over a < f0 <= b of w (y - g(f0))|, instead of by likelihood. Over all
monotone g isotonic regression minimises it (claim 5). With Z the cumulative sums of g and S those of y, both over W, L_c is
the range of S - Z: for given steps a linear program in their values.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trueup._validate import check_integer
from trueup.metrics.inputs import validate_array, validate_scores
from trueup.metrics.reliability import isotonic
from trueup.metrics.result import Result

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from trueup._types import FloatArray, IntArray

MAX_CANDIDATES = 100  # ends of steps that a search considers
MAX_EXACT = 2000  # choices of steps that are all tried
ROUNDS = 20  # over all ends of steps
TOLERANCE = 1e-9  # relative, of a linear program


@dataclass(frozen=True, eq=False)
class StepFit(Result):
    """A step function of the score, and its largest calibration error over ranges of the score.

    Attributes
    ----------
    cuts : ndarray
        Ascending scores: a score of at most cuts[0] is on the first step, of more than the last cut on the last one.
    values : ndarray
        The value of each step.
    error : float
        L_c of the function on these rows.
    least : float
        No function of the class has a smaller L_c: a lower bound (0 for functions that are not monotone, unless exact).
    exact : bool
        Whether the error is the smallest of the class.
    """

    cuts: FloatArray
    values: FloatArray
    error: float
    least: float
    exact: bool

    def predict(self, p: ArrayLike) -> FloatArray:
        """Return the value of the function at each score."""
        return np.asarray(self.values[np.searchsorted(self.cuts, validate_array(p, "p"), side="left")])

    def __repr__(self) -> str:
        known = "the smallest" if self.exact else f"none is below {self.least:.3g}"
        return f"<StepFit of {len(self.values)} steps: error {self.error:.4g} ({known})>"


class _Path(NamedTuple):
    """Cumulative weights and outcomes at distinct scores, starting with 0, and where a step may end."""

    score: FloatArray
    weight: FloatArray
    total: FloatArray
    candidates: IntArray  # positions on the path, without its ends
    points: IntArray  # positions whose errors suffice: a function that is linear between candidates is extreme there


def fit_steps(
    y: ArrayLike, p: ArrayLike, weight: ArrayLike | None = None, *, steps: int = 5, monotone: bool = True
) -> StepFit:
    """Fit a function of the score with few steps by minimising its largest calibration error over ranges of the score.

    Parameters
    ----------
    y, p, weight : array-like, shape (n,)
        Outcomes (0, 1 or between), scores in [0, 1], and weights (by default 1).
    steps : int
        Maximum number of steps.
    monotone : bool
        Whether the values must not fall with the score. Otherwise a value may recur: the function is constant on unions of
        intervals of the score.

    Returns
    -------
    StepFit

    Notes
    -----
    The measure c_emp itself, over ranges of the values of g, is 0 for every partition whose mean outcomes are distinct: the
    objective is its upper bound L_c of section 3.3.3 of Gao, Parameswaran & Peng (2017), over ranges of the original score.

    The values for given ends of the steps are the solution of a linear program. The ends are found by trying all choices,
    up to 2,000; else by moving one end at a time while the error falls, from two starts (blocks of the isotonic fit merged
    by least squares, and the points where a coarser function errs most), among at most 100 ends of about equal weight. If
    the isotonic fit has no more than ``steps`` blocks, it is the solution (claim 5). ``least`` is exact for a wider class:
    the largest of as many lines below the convex hull of S, whose kinks may lie between two scores.

    References
    ----------
    Gao, Parameswaran & Peng (2017), "On the Interpretability of Conditional Probability Estimates in the Agnostic
    Setting", Electronic Journal of Statistics 11(2), doi:10.1214/17-EJS1376SI, section 3.3.3, claim 5.

    Examples
    --------
    >>> fit_steps([0, 1, 0, 1, 1, 0, 1, 1], [0.1, 0.2, 0.3, 0.4, 0.6, 0.7, 0.8, 0.9], steps=2)
    <StepFit of 2 steps: error 0.08333 (the smallest)>
    """
    check_integer("steps", steps, 1, 1000)
    data = validate_scores(y, p, weight)
    if monotone:
        fit = isotonic(data.y, data.p, data.w)
        score, index = np.unique(data.p, return_inverse=True)
        level = np.empty(len(score))
        level[index] = fit.fitted
        last = np.flatnonzero(np.diff(level) != 0)
        if len(last) < steps:
            values = np.clip(level[np.append(last, len(score) - 1)], 0.0, 1.0)
            error = _span(_read(data.y, data.p, data.w), last + 1, values)
            return StepFit(score[last], values, error, error, exact=True)
    path = _read(data.y, data.p, data.w)
    every = math.comb(len(path.candidates), min(steps - 1, len(path.candidates))) <= MAX_EXACT
    exact = every and len(path.candidates) == len(path.score) - 1
    if every:
        choices = itertools.combinations(path.candidates.tolist(), min(steps - 1, len(path.candidates)))
        error, ends, values = min(
            (_solve(path, np.array(ends, np.int64), monotone=monotone) for ends in choices), key=_first
        )
    else:
        error, ends, values = _search(path, steps, monotone=monotone)
    least = error if exact else _least(path, steps) if monotone else 0.0
    return StepFit(path.score[ends - 1], values, error, min(least, error), exact=exact)


def ecce_unions(y: ArrayLike, p: ArrayLike, weight: ArrayLike | None = None, *, intervals: int = 2) -> float:
    """Compute the largest calibration error over unions of up to some number of score intervals.

    With one interval this is `ecce`. An action that is taken on several intervals has an error of at most this, where claim
    1 of Gao, Parameswaran & Peng (2017) has one interval per action.

    Parameters
    ----------
    intervals : int
        Maximum number of disjoint intervals, whose errors are added with their signs.

    Notes
    -----
    Exact, in one sort and O(n) per interval.

    References
    ----------
    Gao, Parameswaran & Peng (2017), "On the Interpretability of Conditional Probability Estimates in the Agnostic
    Setting", Electronic Journal of Statistics 11(2), doi:10.1214/17-EJS1376SI, claim 1.

    Examples
    --------
    Residuals .5, -.5 and .5 at three scores: without the middle one they add up to 1, over 3 rows.

    >>> round(ecce_unions([0.7, 0.0, 1.0], [0.2, 0.5, 0.5000001], intervals=2), 6)
    0.333333
    >>> round(ecce_unions([0.7, 0.0, 1.0], [0.2, 0.5, 0.5000001], intervals=1), 6)
    0.166667
    """
    check_integer("intervals", intervals, 1, 1_000_000)
    data = validate_scores(y, p, weight)
    _, index = np.unique(data.p, return_inverse=True)
    steps = np.bincount(index, data.w * (data.y - data.p))
    largest = 0.0
    for path in (np.append(0.0, np.cumsum(steps)), -np.append(0.0, np.cumsum(steps))):
        closed = np.zeros(len(path))
        for _ in range(min(intervals, len(steps))):
            opened = np.maximum.accumulate(closed - path)
            closed = np.maximum.accumulate(opened + path)
        largest = max(largest, float(closed[-1]))
    return largest / float(data.w.sum())


def _first(found: tuple[float, IntArray, FloatArray]) -> float:
    return found[0]


def _read(y: FloatArray, p: FloatArray, w: FloatArray) -> _Path:
    score, index = np.unique(p, return_inverse=True)
    mass, total = np.bincount(index, w) / w.sum(), np.bincount(index, w * y) / w.sum()
    weight, outcome = np.append(0.0, np.cumsum(mass)), np.append(0.0, np.cumsum(total))
    candidates = np.arange(1, len(score))
    if len(candidates) > MAX_CANDIDATES:
        at = np.searchsorted(weight, np.arange(1, MAX_CANDIDATES + 1) / (MAX_CANDIDATES + 1))
        candidates = np.unique(np.clip(at, 1, len(score) - 1))
    ends = [0, *candidates.tolist(), len(score)]
    points = np.unique(np.concatenate([_hulls(weight, outcome, a, b) for a, b in itertools.pairwise(ends)]))
    return _Path(score, weight, outcome, candidates, points.astype(np.int64))


def _hulls(x: FloatArray, y: FloatArray, first: int, last: int) -> IntArray:
    """Return the positions from ``first`` to ``last`` that are vertices of the convex hull of the points."""
    if last - first < 3:
        return np.arange(first, last + 1)
    found: list[int] = []
    for sign in (1.0, -1.0):
        chain: list[int] = []
        for at in range(first, last + 1):
            while len(chain) > 1:
                a, b = chain[-2], chain[-1]
                if sign * ((x[b] - x[a]) * (y[at] - y[a]) - (y[b] - y[a]) * (x[at] - x[a])) > 0:
                    break
                chain.pop()
            chain.append(at)
        found += chain
    return np.array(found)


def _span(path: _Path, ends: IntArray, values: FloatArray) -> float:
    """Return the range of S - Z for steps that end at some positions of the path."""
    bounds = np.append(ends, len(path.score))
    step = np.searchsorted(bounds, np.arange(1, len(path.weight)), side="left")
    difference = path.total - np.append(0.0, np.cumsum(values[step] * np.diff(path.weight)))
    return float(difference.max() - difference.min())


def _solve(path: _Path, ends: IntArray, *, monotone: bool) -> tuple[float, IntArray, FloatArray]:
    """Return the smallest error with steps that end at ``ends``, these ends, and the values of the steps."""
    from scipy.optimize import linprog

    many, x = len(ends) + 1, path.weight[path.points]
    edges = np.concatenate([[0.0], path.weight[ends], [path.weight[-1]]])
    reach = np.clip(x[:, None], edges[:-1], edges[1:]) - edges[:-1]  # Z = reach @ values
    target, one = path.total[path.points], np.ones((len(x), 1))
    rows = [np.hstack([-reach, 0 * one, -one]), np.hstack([reach, one, 0 * one])]  # low <= S - Z <= high
    limits = [-target, target]
    if monotone and many > 1:
        rising = np.zeros((many - 1, many + 2))
        rising[np.arange(many - 1), np.arange(many - 1)], rising[np.arange(many - 1), np.arange(1, many)] = 1.0, -1.0
        rows, limits = [*rows, rising], [*limits, np.zeros(many - 1)]
    objective = np.append(np.zeros(many), [-1.0, 1.0])
    bounds = [(0.0, 1.0)] * many + [(-1.0, 0.0), (0.0, 1.0)]
    solved = linprog(objective, np.concatenate(rows), np.concatenate(limits), bounds=bounds, method="highs")
    values = np.clip(np.asarray(solved.x)[:many], 0.0, 1.0)
    if monotone:
        values = np.maximum.accumulate(values)
    return _span(path, ends, values), ends, values


def _search(path: _Path, steps: int, *, monotone: bool) -> tuple[float, IntArray, FloatArray]:
    """Move one end of a step at a time while the error falls, from several starts."""
    found = []
    for start in _starts(path, steps):
        best = _solve(path, path.candidates[start], monotone=monotone)
        places = start.copy()
        for _ in range(ROUNDS):
            before = best[0]
            for step in range(len(places)):
                for size in (32, 16, 8, 4, 2, 1):
                    for move in (-size, size):
                        trial = np.unique(np.clip(np.append(np.delete(places, step), places[step] + move), 0, None))
                        if len(trial) < len(places) or trial[-1] >= len(path.candidates):
                            continue
                        solved = _solve(path, path.candidates[trial], monotone=monotone)
                        if solved[0] < best[0] * (1 - TOLERANCE):
                            best, places = solved, trial
            if best[0] >= before * (1 - TOLERANCE):
                break
        found.append(best)
    return min(found, key=_first)


def _starts(path: _Path, steps: int) -> list[IntArray]:
    """Return first ends of steps, as numbers of candidates: by least squares, and where coarser functions err most."""
    many = len(path.candidates)
    blocks = [0, *(path.candidates).tolist(), len(path.score)]
    x, s = path.weight[blocks], path.total[blocks]
    merged = list(range(len(blocks)))
    while len(merged) > steps + 1:
        a, b, c = (np.array(merged)[at:end] for at, end in ((0, -2), (1, -1), (2, None)))
        left, right = x[b] - x[a], x[c] - x[b]
        loss = left * right / (left + right) * ((s[b] - s[a]) / left - (s[c] - s[b]) / right) ** 2
        del merged[int(np.argmin(loss)) + 1]
    errs = [0, len(blocks) - 1]
    while len(errs) < steps + 1:
        chord = np.abs(s - np.interp(x, x[errs], s[errs]))
        chord[errs] = -1.0
        errs = sorted([*errs, int(np.argmax(chord))])
    starts = [np.array(ends[1:-1], np.int64) - 1 for ends in (merged, errs)]
    return [start for start in starts if len(start) == min(steps - 1, many)]


def _least(path: _Path, steps: int) -> float:
    """Return the smallest R for which ``steps`` lines below the hull of S reach S - R everywhere, by bisection.

    A monotone step function has a convex Z, and Z plus a constant lies between S - R and S, thus below the lower hull H of
    S: it is the largest of its lines. Of the lines of one slope the highest one below H serves best, and the slopes that
    serve at one point are an interval, since the height of that line is concave in the slope. Intervals are stabbed
    greedily.
    """
    hull = _lower_hull(path.weight, path.total)
    hx, hy = path.weight[hull], path.total[hull]
    slopes = np.clip(np.diff(hy) / np.diff(hx), 0.0, 1.0)
    # At a point x, the line of slope s lies at min over hull vertices of hy + s (x - hx): concave in s.
    grid = np.unique(np.concatenate([[0.0], slopes, [1.0]]))
    touch = (hy[:, None] - grid * hx[:, None]).min(axis=0)  # intercepts at the breakpoints; linear in s between them
    height = touch + grid * path.weight[:, None]

    def needed(reach: float) -> int:
        short = height - (path.total - reach)[:, None]
        ends = [_positive_range(grid, row) for row in short]
        if any(end is None for end in ends):
            return len(ends) + 1
        count, last = 0, -1.0
        for low, high in sorted((end for end in ends if end is not None), key=lambda end: end[1]):
            if low > last + 1e-15:
                count, last = count + 1, high
        return count

    low, high = 0.0, 2.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if needed(middle) <= steps else (middle, high)
    return low


def _lower_hull(x: FloatArray, y: FloatArray) -> IntArray:
    chain: list[int] = []
    for at in range(len(x)):
        while len(chain) > 1:
            a, b = chain[-2], chain[-1]
            if (x[b] - x[a]) * (y[at] - y[a]) - (y[b] - y[a]) * (x[at] - x[a]) > 0:
                break
            chain.pop()
        chain.append(at)
    return np.array(chain)


def _positive_range(grid: FloatArray, values: FloatArray) -> tuple[float, float] | None:
    """Return where a concave function, linear between the points of ``grid``, is at least 0; None if nowhere."""
    above = np.flatnonzero(values >= 0)
    if not len(above):
        return None
    first, last = int(above[0]), int(above[-1])
    low, high = float(grid[first]), float(grid[last])
    if first > 0:
        low -= float(values[first] / (values[first] - values[first - 1]) * (grid[first] - grid[first - 1]))
    if last + 1 < len(grid):
        high += float(values[last] / (values[last] - values[last + 1]) * (grid[last + 1] - grid[last]))
    return low, high
