"""Add up rows of equal score: all that log loss and squared error ask of the rows, whatever their order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trueup.kernels._jit import jit
from trueup.kernels.scores import find_places
from trueup.kernels.sorting import argsort
from trueup.kernels.threads import Workers

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int32]
    Longs = NDArray[np.int64]

__all__ = ["Pooled", "effective_rows", "pool"]

SPLIT = 2.0**27 + 1.0  # parts a float into two halves of its digits
FIRST_ROWS = 1000  # tell whether scores are few


@dataclass(frozen=True, eq=False)
class Pooled:
    """Sums at each distinct score of each segment, scores ascending.

    Attributes
    ----------
    at : ndarray of int64, shape (segments + 1,)
        Where each segment begins.
    score, weight, total : ndarray of float64
        The distinct scores; the sum of the weights and of weight times outcome there. The unit of the weights is a power
        of two that leaves the largest sum near 1.
    """

    at: Longs
    score: Floats
    weight: Floats
    total: Floats

    def __len__(self) -> int:
        return len(self.at) - 1


def pool(p: Floats, y: Floats, w: Floats | None, code: Ints | None = None, segments: int = 1) -> Pooled:
    """Add up rows of equal score within each segment; neither the order of rows nor rows that stand twice change a bit.

    Parameters
    ----------
    p, y : ndarray of float64, shape (n,)
    w : ndarray of float64, or None
        Positive.
    code : ndarray of int32, optional
        The segment of each row; without it all are of one segment.
    segments : int

    Examples
    --------
    >>> found = pool(np.array([0.3, 0.1, 0.3]), np.array([1.0, 0.0, 0.0]), None)
    >>> found.score.tolist(), (found.total / found.weight).tolist()
    ([0.1, 0.3], [0.0, 0.5])
    """
    at, score, weight, total = np.zeros(segments + 1, np.int64), np.empty(len(p)), np.empty(len(p)), np.empty(len(p))
    if code is None and _few_scores(p):
        levels, place = _number(p)
        many = len(levels)
        _pool_places(place, y, np.empty(0) if w is None else w, weight[:many], total[:many])
        score[:many], at[1] = levels + 0.0, many
    elif code is None and w is None and ((y == 0) | (y == 1)).all():
        some, none = Workers(2).map(lambda of: np.sort(p[y == of]), (1.0, 0.0))
        many = _merge(none, some, score, weight, total)
        at[1] = many
    else:
        order = argsort(p)
        if code is not None:
            order = order[np.argsort(code[order], kind="stable")]
        codes = np.empty(0, np.int32) if code is None else code[order]
        many = _pool(codes, p[order], y[order], np.empty(0) if w is None else w[order], at, score, weight, total)
    exponent = -int(np.frexp(weight[:many].max())[1]) if many else 0
    return Pooled(at, score[:many], np.ldexp(weight[:many], exponent), np.ldexp(total[:many], exponent))


def _few_scores(p: Floats) -> bool:
    """Say whether rows share their scores with many others, as far as the first rows tell."""
    return len(p) > 2 * FIRST_ROWS and len(np.unique(p[:FIRST_ROWS])) < FIRST_ROWS // 2


def _number(p: Floats) -> tuple[Floats, Ints]:
    """Give the distinct scores and the place of each row's among them, without sorting all rows: few scores are most."""
    levels, place = np.unique(p[: 20 * FIRST_ROWS]), np.empty(len(p), np.int32)
    find_places(levels, p, place)
    strange = p[levels[np.minimum(place, len(levels) - 1)] != p]
    if len(strange):
        levels = np.union1d(levels, strange)
        find_places(levels, p, place)
    return levels, place


@jit
def _merge(none: Floats, some: Floats, score: Floats, weight: Floats, total: Floats) -> int:
    """Count rows of outcome 0 and of outcome 1 at each distinct score, from the sorted scores of both."""
    i, j, many = 0, 0, 0
    while i < len(none) or j < len(some):
        here = some[j] if i == len(none) or (j < len(some) and some[j] < none[i]) else none[i]
        rows, hits = 0, 0
        while i < len(none) and none[i] == here:
            i += 1
            rows += 1
        while j < len(some) and some[j] == here:
            j += 1
            hits += 1
        score[many], weight[many], total[many] = here + 0.0, rows + hits, hits
        many += 1
    return many


@jit
def _add(high: float, low: float, x: float) -> tuple[float, float]:
    """Add a number to a sum of twice the digits (Knuth 1997, section 4.2.2, theorem B)."""
    s = high + x
    back = s - high
    low += (high - (s - back)) + (x - back)
    return s, low


@jit
def _product(a: float, b: float) -> tuple[float, float]:
    """Multiply without loss: the product, and what rounding took from it (Dekker 1971)."""
    product = a * b
    c = SPLIT * a
    a_high = c - (c - a)
    c = SPLIT * b
    b_high = c - (c - b)
    a_low, b_low = a - a_high, b - b_high
    return product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


@jit
def _pool(code: Ints, p: Floats, y: Floats, w: Floats, at: Longs, score: Floats, weight: Floats, total: Floats) -> int:
    """Add up runs of equal code and score; give how many there are.

    Sums have twice the digits of a float until they are done: they come out as if nothing had been rounded on the way, so
    that the order within a run does not matter.
    """
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
def _pool_places(place: Ints, y: Floats, w: Floats, weight: Floats, total: Floats) -> None:
    """Do `_pool` for rows in any order whose scores have been numbered."""
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
def effective_rows(code: Ints, w: Floats, out: Floats) -> None:
    """Give the effective number of rows of each group, (sum w)^2 / sum w^2, whatever the order of the rows."""
    sums = np.zeros((len(out), 4))
    for i in range(len(w)):
        s = sums[code[i]] if len(code) else sums[0]
        s[0], s[1] = _add(s[0], s[1], w[i])
        s[2], s[3] = _add(s[2], s[3], w[i] * w[i])
    for k in range(len(out)):
        total, squares = sums[k, 0] + sums[k, 1], sums[k, 2] + sums[k, 3]
        out[k] = total * total / squares if squares > 0 else 0.0
