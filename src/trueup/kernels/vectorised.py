"""NumPy versions of the kernels that score rows, used until these are compiled, and without numba; the bits are the same.

Sums are added in the order of the kernel, and exponentials and logarithms are those of the C library: NumPy's own differ in
the last digit. A few rows take less time in the kernel itself, uncompiled. Other kernels have no NumPy version.
"""

from __future__ import annotations

import functools
import importlib
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.kernels import curves, levels, trees
from trueup.kernels._jit import PLAIN_MATH, plain

if TYPE_CHECKING:
    from collections.abc import Callable

    from trueup._types import AnyArray, BoolArray, FloatArray, IntArray

FEW = 16  # fewer scores are not vectorised
REPLACEMENTS: dict[Any, Callable[..., Any]] = {}  # by kernel


def replaces(kernel: Any, *, by_rows: bool = True) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function instead of ``kernel``; if ``by_rows``, the last argument has an entry per score."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*arguments: Any) -> Any:
            return (plain(kernel) if arguments[-1].size < FEW else function)(*arguments)

        REPLACEMENTS[kernel] = call if by_rows else function
        return function

    return register


def numpy_version(kernel: Any) -> Callable[..., Any] | None:
    """Return the NumPy version of a kernel, or None if it has none."""
    importlib.import_module("trueup.kernels.laplace.vectorised")  # which registers its own
    return REPLACEMENTS.get(kernel)


def each(name: str, values: AnyArray) -> FloatArray:
    """Return a function of `math` of all values, as compiled kernels compute it."""
    numbers = values.ravel().tolist()
    try:
        results = list(map(getattr(math, name), numbers))
    except (ValueError, OverflowError):
        results = list(map(getattr(PLAIN_MATH, name), numbers))
    return np.array(results, np.float64).reshape(values.shape)


def _expit(f: FloatArray) -> FloatArray:
    e = each("exp", -np.abs(f))
    return np.where(f >= 0, 1.0 / (1.0 + e), e / (1.0 + e))


def _logit(p: FloatArray) -> FloatArray:
    p = np.minimum(np.maximum(p, trees.MIN_PROBABILITY), 1.0 - trees.MIN_PROBABILITY)
    return each("log", p) - each("log1p", -p)


def _codes(values: FloatArray, count: Any) -> IntArray:
    """Return 1 + the code of each category; 0 if it is missing or unseen."""
    known = (values >= 0.0) & (values < count)
    return np.where(known, np.where(known, values, 0.0).astype(np.int64) + 1, 0)


def _in_sets(words: AnyArray, at: AnyArray, many: AnyArray, codes: AnyArray) -> BoolArray:
    """Return which ``codes`` are in their sets of ``many`` words that begin at ``words[at]``."""
    word = codes >> 5
    inside = word < many
    bits = words[np.where(inside, at + word, 0)] if len(words) else np.zeros(len(codes), np.uint32)
    return np.asarray(inside & ((bits >> (codes & 31).astype(np.uint32)) & 1 == 1))


def _leaves(
    root: IntArray, V: FloatArray, counts: IntArray, node: AnyArray, threshold: FloatArray, words: AnyArray
) -> IntArray:
    """Return the leaf of each row (features and scores ``V[:, row]``) in the tree with its ``root``."""
    here = root.copy()
    active = np.flatnonzero(here >= 0)
    while len(active):
        at = here[active]
        feature = node[at, 0]
        value = V[feature, active]
        left = np.where(np.isnan(value), node[at, 3] == 1, value <= threshold[at])
        categorical = np.flatnonzero(node[at, 4] >= 0)
        if len(categorical):
            own = at[categorical]
            codes = _codes(value[categorical], counts[feature[categorical]])
            left[categorical] = _in_sets(words, node[own, 4], node[own, 5], codes)
        here[active] = np.where(left, node[at, 1], node[at, 2])
        active = active[here[active] >= 0]
    return ~here


def _bins(x: FloatArray, cuts: FloatArray) -> IntArray:
    """Return the number of ``cuts`` below each value; NaN is one more than all of them."""
    return np.where(np.isnan(x), len(cuts) + 1, np.searchsorted(cuts, x))


@replaces(trees.score)
def score_cascades(*arguments: Any) -> None:
    """Do as `trueup.kernels.trees.score` does."""
    program, (X, P, out) = trees.CascadeProgram(*arguments[:-3]), arguments[-3:]
    features, outputs, cascades, stages, link = program.sizes.tolist()
    cuts = [program.cuts[low:high] for low, high in zip(program.cuts_at, program.cuts_at[1:], strict=False)]
    F = np.repeat(_enter(P.T, link, program.floors)[None], cascades, axis=0)
    bins: list[IntArray] = []
    for j in range(features):
        if program.levels[j] >= 0:
            bins.append(program.classes[program.classes_at[j] + _codes(X[j], program.levels[j])])
        else:
            bins.append(_bins(X[j], cuts[j]))
    for s in range(stages):
        own, added = F[program.cascade[s]], np.zeros((outputs, len(P)))
        all_bins = [*bins, *(_bins(own[c], cuts[features + s * outputs + c]) for c in range(outputs))]
        for a, b, c, begin, across, down in program.table[program.tables_at[s] : program.tables_at[s + 1]].tolist():
            cell = begin + program.places[across + all_bins[a]] + program.places[down + all_bins[b]]
            added[c] += program.values[cell]
        V = np.concatenate([X, own])
        for root, c in program.tree[program.trees_at[s] : program.trees_at[s + 1]].tolist():
            roots = np.full(len(P), root, np.int64)
            leaf = _leaves(roots, V, program.levels, program.node, program.threshold, program.words)
            added[c] += program.leaf[leaf]
        F[program.cascade[s]] = program.theta[s] * (own + added)
    total = F[0]
    for k in range(1, cascades):
        total = total + F[k]
    _leave(total / cascades, link, out)


def _enter(P: FloatArray, link: int, floors: FloatArray) -> FloatArray:
    """Return the link function of predictions (outputs, rows), kept ``floors`` from 0 and 1."""
    if link == trees.SOFTMAX:
        return each("log", np.maximum(P, floors[0]))
    if link != trees.LOGIT:
        return P
    p = np.minimum(np.maximum(P, floors[0]), 1.0 - floors[1])
    below = p < 1.0
    return each("log", p) - np.where(below, each("log1p", -np.where(below, p, 0.0)), math.log(floors[1]))


def _leave(F: FloatArray, link: int, out: FloatArray) -> None:
    """Write to ``out`` (rows, outputs) the inverse link function of F (outputs, rows)."""
    if link != trees.SOFTMAX:
        out[:] = (F if link == trees.IDENTITY else _expit(F)).T
        return
    E = each("exp", F - F.max(axis=0))
    out[:] = (E / _sum(E)).T


def _sum(rows: FloatArray) -> FloatArray:
    """Add the rows one after the other."""
    total = np.zeros(rows.shape[1])
    for row in rows:
        total = total + row
    return total


@replaces(trees._tell_apart, by_rows=False)
def tell_apart(nodes: IntArray, words_at: AnyArray, words_in: AnyArray, words: AnyArray, labels: AnyArray) -> None:
    """Do as `trueup.kernels.trees._tell_apart` does."""
    groups, codes = 1, np.arange(len(labels))
    for node in nodes:
        groups = _split(labels, groups, _in_sets(words, words_at[node], words_in[node], codes))


def _split(labels: AnyArray, groups: int, inside: BoolArray) -> int:
    """Split the groups numbered in ``labels`` by membership; return how many result."""
    size, many = np.bincount(labels, minlength=groups), np.bincount(labels, inside, groups)
    moved = np.flatnonzero(inside & (many < size)[labels])
    old, first = np.unique(labels[moved], return_index=True)
    fresh = np.zeros(groups, labels.dtype)
    fresh[old[np.argsort(first)]] = groups + np.arange(len(old))
    labels[moved] = fresh[labels[moved]]
    return groups + len(old)


@replaces(trees._fill, by_rows=False)
def fill_tables(
    paths: Any, flat: Any, tables: Any, value: FloatArray, start: IntArray, allowed: AnyArray, values: FloatArray
) -> None:
    """Do as `trueup.kernels.trees._fill` does."""
    nodes = len(paths.feature)
    for leaf, table in enumerate(tables.table_of.tolist()):
        rows, columns = tables.wide[table].tolist()
        allowed[0, :rows] = 1
        allowed[1, :columns] = 1
        below = nodes + leaf
        while (node := int(paths.parent[below])) >= 0:
            which = 0 if tables.pairs[table, 0] == paths.feature[node] else 1
            places, wide = tables.places[tables.at[table, which] :], int(tables.wide[table, which])
            _narrow(paths, flat, places, wide, node, int(paths.side[below]), allowed[which])
            below = node
        cells = values[start[table] : start[table] + rows * columns].reshape(rows, columns)
        cells[np.ix_(allowed[0, :rows] == 1, allowed[1, :columns] == 1)] += value[leaf]


def _narrow(paths: Any, flat: Any, places: AnyArray, wide: int, node: int, side: int, allowed: AnyArray) -> None:
    """Do as `trueup.kernels.trees._narrow` does."""
    feature = int(paths.feature[node])
    if flat.categorical[feature]:
        codes = flat.codes[flat.codes_at[feature] : flat.codes_at[feature] + flat.counts[feature]]
        inside = _in_sets(paths.words, paths.words_at[node], paths.words_in[node], codes)
        allowed[places[: len(codes)][inside != (side == 1)]] = 0
        return
    cuts = flat.cuts[flat.cuts_at[feature] : flat.cuts_at[feature + 1]]
    last = int(places[np.searchsorted(cuts, paths.threshold[node])])
    allowed[slice(last + 1, wide - 1) if side == 1 else slice(0, min(last + 1, wide - 1))] = 0
    if paths.missing_left[node] != side:
        allowed[wide - 1] = 0


@replaces(curves.read_rows)
def read_rows(
    form: int, coefficient: FloatArray, at: IntArray, x: FloatArray, value: FloatArray, floors: FloatArray, groups: int,
    group: AnyArray, share: FloatArray, P: FloatArray, out: FloatArray,
) -> None:  # fmt: skip
    """Do as `trueup.kernels.curves.read_rows` does."""
    given = form, coefficient, at, x, value, floors, groups
    whole = _curves(*given, 0, P)
    for number in np.unique(group[group > 0]).tolist() if len(group) else ():
        rows = np.flatnonzero(group == number)
        own, pooled, nearer = _curves(*given, number, P[rows]), whole[rows], float(share[number])
        mixed = pooled + nearer * (own - pooled) if nearer < 1 else own
        whole[rows] = np.minimum(np.maximum(mixed, np.minimum(pooled, own)), np.maximum(pooled, own))
    out[:] = whole


def _curves(
    form: int, coefficient: FloatArray, at: IntArray, x: FloatArray, value: FloatArray, floors: FloatArray, groups: int,
    group: int, P: FloatArray,
) -> FloatArray:  # fmt: skip
    """Return the curves of one group at the scores P (rows, outputs)."""
    if form == curves.SOFTMAX:
        logs = each("log", np.maximum(P, floors[0]))
        E = each("exp", coefficient[group, 0] * (logs - logs.max(axis=1, keepdims=True)))
        return np.asarray(E / _sum(E.T)[:, None])
    count = P.shape[1]
    out = np.column_stack(
        [_curve(form, coefficient, at, x, value, floors, c * groups + group, P[:, c]) for c in range(count)]
    )
    if count > 1:
        total = _sum(out.T)
        out = np.where((total > 0)[:, None], out / total[:, None], P / _sum(P.T)[:, None])
    return out


def _curve(
    form: int, coefficient: FloatArray, at: IntArray, x: FloatArray, value: FloatArray, floors: FloatArray, curve: int,
    p: FloatArray,
) -> FloatArray:  # fmt: skip
    """Return one curve at the scores ``p``."""
    if form < curves.KNOTS:
        a, b, c = coefficient[curve].tolist()
        if form in (curves.LINE, curves.BOUNDED):
            line = a * p + c
            return np.asarray(line if form == curves.LINE else np.minimum(np.maximum(line, 0.0), 1.0))
        p = np.minimum(np.maximum(p, floors[0]), 1.0 - floors[1])
        return _expit(a * each("log", p) - b * each("log1p", -p) + c)
    knots, heights = x[at[curve] : at[curve + 1]], value[at[curve] : at[curve + 1]]
    right = np.searchsorted(knots, p)
    last = len(knots) - 1
    if form == curves.STEPS:
        return np.asarray(heights[np.minimum(right, last)])
    upper = np.minimum(right, last)
    left = np.maximum(upper - 1, 0)
    part = (p - knots[left]) / (knots[upper] - knots[left])
    between = np.minimum(heights[left] + part * (heights[upper] - heights[left]), heights[upper])
    at_knot = (right > last) | (right == 0) | (knots[upper] == p)
    return np.where(at_knot, heights[upper], between)


@replaces(curves.add_effects)
def add_effects(
    slope: float, intercept: float, counts: IntArray, at: IntArray, effects: FloatArray, ranges: FloatArray,
    floors: FloatArray, X: FloatArray, P: FloatArray, out: FloatArray,
) -> None:  # fmt: skip
    """Do as `trueup.kernels.curves.add_effects` does."""
    p = np.minimum(np.maximum(P, floors[0]), 1.0 - floors[1])
    value = slope * (each("log", p) - each("log1p", -p)) + intercept
    for j, count in enumerate(counts.tolist()):
        x = X[j]
        if count >= 0:
            value = value + effects[at[j] + (_codes(x, count) - 1) % (count + 1)]  # missing ones are last
            continue
        distance = np.minimum(np.maximum(x, ranges[j, 1]), ranges[j, 2]) - ranges[j, 0]
        value = value + np.where(np.isnan(x), effects[at[j] + 1], effects[at[j]] * distance)
    out[:] = _expit(value)


@replaces(curves.score)
def score_patches(
    counts: IntArray, edges_at: IntArray, edges: FloatArray, feature: IntArray, code: IntArray, low: FloatArray,
    high: FloatArray, shift: FloatArray, on_logits: bool, bounds: FloatArray,  # noqa: FBT001  (as the kernel has it)
    X: FloatArray, P: FloatArray, out: FloatArray,
) -> None:  # fmt: skip
    """Do as `trueup.kernels.curves.score` does."""
    own = np.empty((len(counts), len(P)), np.int64)
    for j, count in enumerate(counts.tolist()):
        if count >= 0:
            own[j] = (_codes(X[j], count) - 1) % (count + 1)
        else:
            cuts = edges[edges_at[j] : edges_at[j + 1]]
            own[j] = np.where(np.isnan(X[j]), len(cuts) + 1, np.searchsorted(cuts, X[j], side="right"))
    value = _logit(P) if on_logits else P.copy()
    touched = np.zeros(len(P), bool)
    for k in range(len(shift)):
        hit = (low[k] <= value) & (value < high[k])
        for condition in range(feature.shape[1]):
            if feature[k, condition] >= 0:
                hit &= own[feature[k, condition]] == code[k, condition]
        value[hit] = np.minimum(np.maximum(value[hit] + shift[k], bounds[0]), bounds[1])
        touched |= hit
    if on_logits:
        finite = value > -curves.MAX_EXPONENT
        value = np.where(finite, 1.0 / (1.0 + each("exp", -np.where(finite, value, 0.0))), 0.0)
    out[:] = np.where(touched, value, P)


@replaces(curves.scale_logits)
def scale_logits(
    scale: FloatArray, intercept: FloatArray, left: FloatArray, right: FloatArray, smallest: float, factor: float,
    mixture: float, P: FloatArray, out: FloatArray,
) -> None:  # fmt: skip
    """Do as `trueup.kernels.curves.scale_logits` does."""
    z = each("log", np.maximum(P.T, smallest))  # (classes, rows)
    if factor == 0:
        z = z - _sum(z) / len(z)
    else:
        E = each("exp", factor * (z - z.max(axis=0)))
        z = each("log", (1 - mixture) * E / _sum(E) + mixture / len(z))
    inner = np.array([_sum(right[:, r, None] * z) for r in range(right.shape[1])])
    F = scale[:, None] * z + intercept[:, None]
    for r in range(right.shape[1]):
        F = F + left[:, r, None] * inner[r]
    E = each("exp", F - F.max(axis=0))
    out[:] = (E / _sum(E)).T


def _advance(f: FloatArray, value: Any, rate: float, grid: int, low: float, high: float, hold: float) -> FloatArray:
    """Do as `trueup.kernels.levels.advance` does, for many scores."""
    moved = f + rate * value
    lost = np.isnan(moved)
    moved = np.minimum(np.maximum(moved, low + hold * (f - low)), high - hold * (high - f))
    moved = np.minimum(np.maximum(moved, low), high)
    if grid > 0:
        moved = (np.ceil(moved * grid - 0.5) + 0.0) / grid
    return np.where(lost, f, moved)


@replaces(levels.start_levels, by_rows=False)
def start_levels(sizes: IntArray, bounds: FloatArray, P: FloatArray, F: FloatArray) -> None:
    """Do as `trueup.kernels.levels.start_levels` does."""
    begin = np.full(len(P), bounds[5]) if sizes[4] else (P - bounds[3]) / bounds[4]
    begin = np.minimum(np.maximum(begin, bounds[0]), bounds[1])
    if sizes[2] > 0:
        begin = _advance(begin, 0.0, 1.0, int(sizes[2]), bounds[0], bounds[1], 0.0)
    F[:] = begin


@replaces(levels.step_levels)
def step_levels(*arguments: Any) -> None:
    """Do as `trueup.kernels.levels.step_levels` does."""
    program, (t, X, F) = levels.LevelProgram(*arguments[:-3]), arguments[-3:]
    low, high, rate, *_, hold = program.bounds.tolist()
    for m in range(len(F)):
        at = m * int(program.sizes[1]) + t
        edges = program.edges[program.edges_at[at] : program.edges_at[at + 1]]
        which = program.learner[program.learner_at[at] + np.searchsorted(edges, F[m])]
        rows = np.flatnonzero(which != levels.NO_LEARNER)
        own, f = X[:, rows], F[m, rows]
        if program.sizes[3]:
            value = _lines(which[rows], own, program)
        else:
            roots = which[rows].astype(np.int64)
            value = program.leaf[_leaves(roots, own, program.levels, program.node, program.threshold, program.words)]
        F[m, rows] = _advance(f, value, rate, int(program.sizes[2]), low, high, hold)


def _lines(which: AnyArray, X: FloatArray, program: levels.LevelProgram) -> FloatArray:
    """Return for each row the linear function with the coefficients ``slopes[which]``."""
    slopes = program.slopes
    total: FloatArray = slopes[which, 0]
    for f, (count, place) in enumerate(zip(program.levels.tolist(), program.place.tolist(), strict=True)):
        if count >= 0:
            total = total + slopes[which, place + _codes(X[f], count)]
            continue
        far = (X[f] - program.centre[f]) / program.scale[f]
        total = total + np.where(np.isfinite(far), slopes[which, place] * far, slopes[which, place + 1])
    return total


@replaces(levels.end_levels, by_rows=False)
def end_levels(bounds: FloatArray, F: FloatArray, out: FloatArray) -> None:
    """Do as `trueup.kernels.levels.end_levels` does."""
    out[:] = bounds[3] + bounds[4] * (_sum(F) / len(F))
