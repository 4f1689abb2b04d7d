"""Pool rows at equal scores, fit curves and decision rules of the score to the sums, and compute losses.

Log loss and squared error depend on these sums alone. The sums have twice the precision of a float, so that they do not
depend on the order of rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trueup.kernels._jit import jit
from trueup.kernels.curves import count_below
from trueup.kernels.sorting import argsort
from trueup.kernels.threads import Workers

if TYPE_CHECKING:
    from trueup._types import AnyArray, BoolArray, FloatArray, Int32Array, IntArray

MOST_STEPS = 100
HALVINGS = 40
FARTHEST = 8.0  # what a first step may change a logit by: far out the curve is flat, and Newton's step is no guide
SNAP = 1e-12  # a coefficient so near to its bound is on it
UPRIGHT = 1e200  # a line so steep stands upright; the largest score times it is finite
RIDGE = 1e-12  # of the curvature: keeps a step finite where scores say nothing about a coefficient
SPLIT = 2.0**27 + 1.0  # splits a float into two halves of its digits
FIRST_ROWS = 1000  # to judge whether there are few distinct scores
ENOUGH = 1e-11  # of the weight: a step that lowers the loss by less is the last, and leaves about the square of that


@jit
def fit_lines(at: IntArray, x: FloatArray, weight: FloatArray, total: FloatArray, out: FloatArray) -> None:
    """Fit a line to each segment by weighted least squares; the slope is 1 if all scores are equal, or nearly so.

    Arguments as in `PooledScores`, ``x`` being the scores. ``out`` (segments, 2) receives slope and intercept.
    """
    for k in range(len(out)):
        mass, mean_x, mean_y = 0.0, 0.0, 0.0
        for i in range(at[k], at[k + 1]):
            mass += weight[i]
            mean_x += (x[i] - mean_x) * (weight[i] / mass)
            mean_y += (total[i] / weight[i] - mean_y) * (weight[i] / mass)
        widest = 0.0
        for i in range(at[k], at[k + 1]):
            widest = max(widest, abs(x[i] - mean_x))
        across, along = 0.0, 0.0
        for i in range(at[k], at[k + 1]):
            d = (x[i] - mean_x) / widest if widest > 0 else 0.0
            across += weight[i] * d * d
            along += weight[i] * d * (total[i] / weight[i] - mean_y)
        slope = along / across / widest if across > 0 and at[k + 1] - at[k] > 1 else 1.0
        slope = slope if abs(slope) <= UPRIGHT else 1.0
        out[k, 0], out[k, 1] = slope, mean_y - slope * mean_x


@jit
def _derive(
    X: FloatArray, weight: FloatArray, total: FloatArray, theta: FloatArray, slope: FloatArray, bend: FloatArray
) -> float:
    """Return the log loss of logits X ``theta``; write gradient and Hessian (lower half) to ``slope`` and ``bend``."""
    d = len(theta)
    slope[:] = 0.0
    bend[:] = 0.0
    loss = 0.0
    for i in range(len(X)):
        f = 0.0
        for j in range(d):
            f += X[i, j] * theta[j]
        e = math.exp(-abs(f))
        p = 1.0 / (1.0 + e) if f >= 0 else e / (1.0 + e)
        loss += weight[i] * (max(f, 0.0) + math.log1p(e)) - total[i] * f
        first, second = weight[i] * p - total[i], weight[i] * e / ((1.0 + e) * (1.0 + e))
        for j in range(d):
            slope[j] += first * X[i, j]
            for k in range(j + 1):
                bend[j, k] += second * X[i, j] * X[i, k]
    return loss


@jit
def _solve(bend: FloatArray, slope: FloatArray, free: BoolArray, step: FloatArray) -> None:
    """Write to ``step`` the Newton step of ``free`` coefficients: gradient ``slope``, Hessian ``bend``, a small ridge."""
    d = len(slope)
    L = np.zeros((d, d))
    z = np.zeros(d)
    for j in range(d):
        for k in range(j + 1):
            s = bend[j, k] if free[j] and free[k] else 0.0
            if j == k:
                s = s * (1.0 + RIDGE) if free[j] else 1.0
            for m in range(k):
                s -= L[j, m] * L[k, m]
            if j == k:
                L[j, j] = math.sqrt(max(s, RIDGE * bend[j, j])) if free[j] else 1.0
            else:
                L[j, k] = s / L[k, k] if L[k, k] > 0 else 0.0
    for j in range(d):
        s = -slope[j] if free[j] else 0.0
        for m in range(j):
            s -= L[j, m] * z[m]
        z[j] = s / L[j, j] if L[j, j] > 0 else 0.0
    for back in range(d):
        j = d - 1 - back
        s = z[j]
        for m in range(j + 1, d):
            s -= L[m, j] * step[m]
        step[j] = s / L[j, j] if L[j, j] > 0 and free[j] else 0.0


@jit
def _aim(
    theta: FloatArray, low: FloatArray, high: FloatArray, slope: FloatArray, bend: FloatArray, free: BoolArray,
    step: FloatArray,
) -> float:  # fmt: skip
    """Write to ``step`` the Newton step of the coefficients not at a bound; return minus the slope of the loss along it."""
    for j in range(len(theta)):
        held = (theta[j] <= low[j] and slope[j] > 0) or (theta[j] >= high[j] and slope[j] < 0) or low[j] == high[j]
        free[j] = not held
    for _ in range(len(theta)):
        _solve(bend, slope, free, step)
        outward = False
        for j in range(len(theta)):
            if free[j] and ((theta[j] <= low[j] and step[j] < 0) or (theta[j] >= high[j] and step[j] > 0)):
                free[j] = False  # the others would pull it over its bound
                outward = True
        if not outward:
            break
    hope = 0.0
    for j in range(len(theta)):
        hope -= slope[j] * step[j] if free[j] else 0.0
    return hope


@jit
def _within(x: float, low: float, high: float) -> float:
    """Clip ``x`` to [low, high]; a value within SNAP of a bound becomes the bound."""
    if x - low < SNAP:
        return low
    return high if high - x < SNAP else x


@jit
def _longest(
    X: FloatArray, theta: FloatArray, low: FloatArray, high: FloatArray, step: FloatArray, trusted: float
) -> float:
    """Return the share of ``step`` to try: at most 1, up to the first bound that a coefficient reaches.

    No logit changes by more than ``trusted``: beyond that the curvature at ``theta`` is no guide.
    """
    size, reach = 1.0, 0.0
    for j in range(len(theta)):
        room = high[j] - theta[j] if step[j] > 0 else theta[j] - low[j]
        if abs(step[j]) * size > room:
            size = room / abs(step[j])
    for i in range(len(X)):
        moved = 0.0
        for j in range(len(theta)):
            moved += X[i, j] * step[j]
        reach = max(reach, abs(moved))
    return min(size, trusted / reach) if reach > 0 else size


@jit
def _descend(
    X: FloatArray, weight: FloatArray, total: FloatArray, low: FloatArray, high: FloatArray, theta: FloatArray
) -> None:
    """Minimise log loss over ``theta`` (in place) within bounds: Newton steps of coefficients not at a bound, line search.

    Bertsekas (1982), "Projected Newton methods for optimization problems with simple constraints", SIAM Journal on Control
    and Optimization 20(2).
    """
    d = len(theta)
    slope, step, moved, bend, free = np.empty(d), np.empty(d), np.empty(d), np.empty((d, d)), np.ones(d, np.bool_)
    mass, trusted = weight.sum(), FARTHEST
    loss = _derive(X, weight, total, theta, slope, bend)
    for _ in range(MOST_STEPS):
        hope = _aim(theta, low, high, slope, bend, free, step)
        if not hope > ENOUGH * mass:  # too little for a line search to see through rounding
            for j in range(d):
                theta[j] = _within(theta[j] + step[j], low[j], high[j])
            return
        size, after, gain = _longest(X, theta, low, high, step, trusted), loss, 0.0
        for _ in range(HALVINGS):
            gain = 0.0
            for j in range(d):
                moved[j] = _within(theta[j] + size * step[j], low[j], high[j])
                gain += slope[j] * (theta[j] - moved[j])
            after = _derive(X, weight, total, moved, slope, bend)
            if after <= loss - 1e-4 * gain:
                break
            size /= 2
            _derive(X, weight, total, theta, slope, bend)
        if not after < loss:
            return
        trusted *= 4.0 if loss - after > 0.4 * gain else 1.0
        theta[:], loss = moved, after


@jit
def fit_logistic(
    at: IntArray, X: FloatArray, weight: FloatArray, total: FloatArray, low: FloatArray, high: FloatArray, theta: FloatArray
) -> None:
    """Fit a logistic regression on X per segment, rows at[k]:at[k + 1], ``theta`` (start, then result) in [low, high]."""
    for k in range(len(theta)):
        rows = slice(at[k], at[k + 1])
        if at[k + 1] > at[k]:
            _descend(X[rows], weight[rows], total[rows], low[k], high[k], theta[k])


@jit
def _power(F: FloatArray, target: FloatArray, weight: FloatArray, factor: float) -> tuple[float, float]:
    """Return the first two derivatives in ``factor`` of the log loss of softmax(factor F); ``target``: see `fit_powers`."""
    slope, bend = 0.0, 0.0
    for i in range(len(F)):
        top = F[i].max() * factor
        total, first, second = 0.0, 0.0, 0.0
        for c in range(F.shape[1]):
            e = math.exp(F[i, c] * factor - top)
            total += e
            first += e * F[i, c]
            second += e * F[i, c] * F[i, c]
        mean = first / total
        slope += weight[i] * mean - target[i]
        bend += weight[i] * (second / total - mean * mean)
    return slope, bend


@jit
def fit_powers(
    at: IntArray, F: FloatArray, target: FloatArray, weight: FloatArray, low: float, high: float, out: FloatArray
) -> None:
    """Fit the factor (inverse temperature) of the log scores F (rows, classes) of each segment by maximum likelihood.

    ``out[k]``, within [low, high], is the factor of segment k, rows at[k] to at[k + 1] - 1; ``target`` is weight times the
    log score of a row's class. The loss is convex: Newton's method, with bisection if a step leaves the bracket.
    """
    for k in range(len(out)):
        rows = slice(at[k], at[k + 1])
        below, above, factor = low, high, 1.0
        for _ in range(MOST_STEPS):
            slope, bend = _power(F[rows], target[rows], weight[rows], factor)
            if slope == 0:
                break
            below, above = (below, factor) if slope > 0 else (factor, above)
            moved = min(max(factor - slope / bend, low), high) if bend > 0 else below - 1
            if not below <= moved <= above:
                moved = (below + above) / 2
            done = abs(moved - factor) <= 1e-13 * factor
            factor = moved
            if done:
                break
        out[k] = factor


@dataclass(frozen=True, eq=False)
class PooledScores:
    """Weight and weighted outcome at each distinct score of each segment; scores ascend within a segment."""

    at: IntArray  # the start of each segment
    score: FloatArray
    weight: FloatArray  # in units of a power of two, so that the largest is near 1
    total: FloatArray  # of weight times outcome

    def __len__(self) -> int:
        return len(self.at) - 1


def pool_scores(
    p: FloatArray, y: FloatArray, w: FloatArray | None, code: Int32Array | None = None, segments: int = 1
) -> PooledScores:
    """Sum rows of equal score within each segment; the result does not depend on the order of rows, to the last bit.

    ``code`` is the segment of each row; weights ``w`` are positive.
    """
    at, score, weight, total = np.zeros(segments + 1, np.int64), np.empty(len(p)), np.empty(len(p)), np.empty(len(p))
    if code is None and len(p) > 2 * FIRST_ROWS and len(np.unique(p[:FIRST_ROWS])) < FIRST_ROWS // 2:
        # Rows share their scores with many others, judging by the first ones: not all need to be sorted.
        levels, place = np.unique(p[: 20 * FIRST_ROWS]), np.empty(len(p), np.int32)
        count_below(levels, p, place)
        unknown = p[levels[np.minimum(place, len(levels) - 1)] != p]
        if len(unknown):
            levels = np.union1d(levels, unknown)
            count_below(levels, p, place)
        many = len(levels)
        _pool_places(place, y, np.empty(0) if w is None else w, weight[:many], total[:many])
        score[:many], at[1] = levels + 0.0, many
    elif code is None and w is None and ((y == 0) | (y == 1)).all():
        events, others = Workers(2).map(lambda outcome: np.sort(p[y == outcome]), (1.0, 0.0))
        many = at[1] = _merge(others, events, score, weight, total)
    else:
        order = argsort(p)
        if code is not None:
            order = order[np.argsort(code[order], kind="stable")]
        codes = np.empty(0, np.int32) if code is None else code[order]
        many = _pool(codes, p[order], y[order], np.empty(0) if w is None else w[order], at, score, weight, total)
    exponent = -int(np.frexp(weight[:many].max())[1]) if many else 0
    return PooledScores(at, score[:many], np.ldexp(weight[:many], exponent), np.ldexp(total[:many], exponent))


@jit
def _merge(others: FloatArray, events: FloatArray, score: FloatArray, weight: FloatArray, total: FloatArray) -> int:
    """Write each distinct ``score`` of ``others`` and ``events`` (sorted), its rows and its events; return how many."""
    i, j, many = 0, 0, 0
    while i < len(others) or j < len(events):
        here = events[j] if i == len(others) or (j < len(events) and events[j] < others[i]) else others[i]
        rows, hits = 0, 0
        while i < len(others) and others[i] == here:
            i += 1
            rows += 1
        while j < len(events) and events[j] == here:
            j += 1
            hits += 1
        score[many], weight[many], total[many] = here + 0.0, rows + hits, hits
        many += 1
    return many


@jit
def _add(high: float, low: float, x: float) -> tuple[float, float]:
    """Add ``x`` to the pair high + low, a sum of twice the precision; return the pair (Knuth 1997, section 4.2.2)."""
    s = high + x
    back = s - high
    low += (high - (s - back)) + (x - back)
    return s, low


@jit
def _product(a: float, b: float) -> tuple[float, float]:
    """Return a product and its rounding error (Dekker 1971)."""
    product = a * b
    c = SPLIT * a
    a_high = c - (c - a)
    c = SPLIT * b
    b_high = c - (c - b)
    a_low, b_low = a - a_high, b - b_high
    return product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


@jit
def _pool(
    code: Int32Array, p: FloatArray, y: FloatArray, w: FloatArray, at: IntArray, score: FloatArray, weight: FloatArray,
    total: FloatArray,
) -> int:  # fmt: skip
    """Write the arrays of `PooledScores` for rows sorted by code and score, in twice the precision; return their length."""
    i, many, segment = 0, 0, 0
    while i < len(p):
        here = code[i] if len(code) else 0
        while segment < here:
            segment += 1
            at[segment] = many
        level = p[i] + 0.0
        mass, mass_rest, hits, hits_rest = 0.0, 0.0, 0.0, 0.0
        while i < len(p) and p[i] == level and (len(code) == 0 or code[i] == here):
            w_i = w[i] if len(w) else 1.0
            mass, mass_rest = _add(mass, mass_rest, w_i)
            product, rest = _product(w_i, y[i])
            hits, hits_rest = _add(hits, hits_rest, product)
            hits_rest += rest
            i += 1
        score[many], weight[many], total[many] = level, mass + mass_rest, hits + hits_rest
        many += 1
    while segment < len(at) - 1:
        segment += 1
        at[segment] = many
    return many


@jit
def _pool_places(place: Int32Array, y: FloatArray, w: FloatArray, weight: FloatArray, total: FloatArray) -> None:
    """Write the sums of w and w y of the rows at each score, whose index is ``place``, as exactly as `_pool` does."""
    rest = np.zeros((len(weight), 2))
    weight[:] = 0.0
    total[:] = 0.0
    for i in range(len(place)):
        k = place[i]
        w_i = w[i] if len(w) else 1.0
        weight[k], rest[k, 0] = _add(weight[k], rest[k, 0], w_i)
        product, lost = _product(w_i, y[i])
        total[k], rest[k, 1] = _add(total[k], rest[k, 1], product)
        rest[k, 1] += lost
    for k in range(len(weight)):
        weight[k] += rest[k, 0]
        total[k] += rest[k, 1]


@jit
def effective_rows(code: Int32Array, w: FloatArray, out: FloatArray) -> None:
    """Write to ``out`` the effective sample size of each group, (sum w)^2 / sum w^2; an empty ``code`` is one group."""
    sums = np.zeros((len(out), 4))
    for i in range(len(w)):
        s = sums[code[i]] if len(code) else sums[0]
        s[0], s[1] = _add(s[0], s[1], w[i])
        s[2], s[3] = _add(s[2], s[3], w[i] * w[i])
    for k in range(len(out)):
        total, squares = sums[k, 0] + sums[k, 1], sums[k, 2] + sums[k, 3]
        out[k] = total * total / squares if squares > 0 else 0.0


@jit
def pool_adjacent_violators(total: FloatArray, weight: FloatArray) -> tuple[IntArray, FloatArray]:
    """Pool adjacent scores into blocks until the block means ascend; return the start and the mean of each block.

    ``total``, ``weight``: weighted sum and weight at each distinct score; integers are added exactly (Ayer et al. 1955).
    """
    first = np.empty(total.size, np.int64)
    mean = np.empty(total.size)
    sums = np.empty(total.size)
    masses = np.empty(total.size)
    blocks = 0
    for i in range(total.size):
        begin, s, w = i, total[i], weight[i]
        while blocks > 0 and mean[blocks - 1] >= s / w:
            blocks -= 1
            begin = first[blocks]
            s += sums[blocks]
            w += masses[blocks]
        first[blocks], mean[blocks], sums[blocks], masses[blocks] = begin, s / w, s, w
        blocks += 1
    return first[:blocks].copy(), mean[:blocks].copy()


@jit
def extend_runs(
    rows: FloatArray, costs: FloatArray, before: FloatArray, fixed: float, capacity: float, action: int, best: FloatArray,
    start: AnyArray, last: AnyArray,
) -> None:  # fmt: skip
    """Lower best[i], the least cost of actions for the first i scores, where a last run of ``action`` makes it cheaper.

    The cost with such a run is the minimum over l < i of before[l] + fixed + costs[i] - costs[l] where rows[i] - rows[l] is
    at most the capacity: a sliding window, kept in a queue. ``rows`` and ``costs`` are cumulative, starting with 0;
    ``before`` is the least cost with other actions, infinite if impossible. Where best[i] is lowered, start and action of
    the run are written to ``start`` and ``last``.
    """
    m = rows.size
    queue = np.empty(m, np.int64)
    head = 0
    tail = 0
    for i in range(m):
        while head < tail and rows[i] - rows[queue[head]] > capacity:
            head += 1
        if head < tail:
            begin = queue[head]
            cost = fixed + (before[begin] - costs[begin]) + costs[i]
            if cost < best[i]:
                best[i], start[i], last[i] = cost, begin, action
        if before[i] < np.inf:
            offer = before[i] - costs[i]
            while head < tail and before[queue[tail - 1]] - costs[queue[tail - 1]] >= offer:
                tail -= 1
            queue[tail] = i
            tail += 1


@jit
def log_losses(y: FloatArray, p: FloatArray, smallest: float, out: FloatArray) -> None:
    """Write to ``out`` the log loss of each row; ``smallest`` and 1 - smallest stand for exact 0 and 1."""
    for i in range(len(y)):
        q = smallest if p[i] <= 0.0 else 1.0 - smallest if p[i] >= 1.0 else p[i]
        loss = 0.0
        if y[i] > 0:
            loss -= y[i] * math.log(q)
        if y[i] < 1:
            loss -= (1.0 - y[i]) * math.log1p(-q)
        out[i] = loss


@jit
def deviation_moments(
    difference: FloatArray, weight: FloatArray, mean: float, least: float = 0.0
) -> tuple[float, float, float]:
    """Return the largest |weight * (difference - mean)|, and the sums of squares and fourth powers of all divided by it.

    An empty ``weight`` means weights of 1. ``least`` is the largest deviation among other rows, such as those of other
    workers; dividing by the largest of all prevents overflow.
    """
    largest = least
    for i in range(len(difference)):
        largest = max(largest, abs(difference[i] - mean) * (weight[i] if len(weight) else 1.0))
    squares, fourth = 0.0, 0.0
    for i in range(len(difference)):
        u = (difference[i] - mean) * (weight[i] if len(weight) else 1.0) / largest if largest > 0 else 0.0
        squares += u * u
        fourth += u * u * u * u
    return largest, squares, fourth
