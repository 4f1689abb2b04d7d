"""Calibration of several classes on the regions in which decisions are taken: intersections of half-spaces.

Gao, Parameswaran & Peng (2017), section 5: if k actions have costs by class, the region of the probabilities f in which one
of them is cheapest is an intersection of k - 1 half-spaces, and the cost of every such rule can be predicted if

    c_k(f) = sup over classes y and S in S_{k-1} of |E 1[f in S] (1[Y = y] - f_y)|

is small. For two classes these regions are score intervals, and c_k is ECCE.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup._validate import check_integer
from trueup.errors import ArgumentError
from trueup.metrics.inputs import as_floats, validate_class_scores
from trueup.metrics.result import Result

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from trueup._types import BoolArray, FloatArray

MAX_EXACT = 3000  # distinct points of three classes whose half-planes are all tried, O(n^2 log n)
ROUNDS = 20  # of a search for intersections, each over all half-spaces of each side


@dataclass(frozen=True, eq=False)
class RegionError(Result):
    """The largest error of class probabilities over intersections of half-spaces.

    Attributes
    ----------
    value : float
        The largest |(1/W) sum over the region of w (1[Y = y] - f_y)|.
    label : int
        The class y.
    region : tuple of (normal, limit)
        The half-spaces normal . f <= limit whose intersection is the region.
    exact : bool
        Whether no region of this kind has a larger error on these rows; else the value is that of a search, a lower bound.
    """

    value: float
    label: int
    region: tuple[tuple[tuple[float, ...], float], ...]
    exact: bool

    def __repr__(self) -> str:
        kind = "exact" if self.exact else "found by search"
        planes = f"{len(self.region)} half-space{'' if len(self.region) == 1 else 's'}"
        return f"<RegionError {self.value:.4g} of class {self.label} ({planes}; {kind})>"

    def contains(self, p: ArrayLike) -> BoolArray:
        """Return whether each row of probabilities lies in the region."""
        points = as_floats(p, "p")
        inside = np.ones(len(points), bool)
        for normal, limit in self.region:
            inside &= points @ np.array(normal) <= limit
        return inside


def region_error(
    y: ArrayLike, p: ArrayLike, weight: ArrayLike | None = None, *, actions: int = 2, directions: int = 200,
    random_state: int = 0,
) -> RegionError:  # fmt: skip
    """Compute c_k(f) of Gao, Parameswaran & Peng (2017) on these rows, for rules of k actions.

    Parameters
    ----------
    y : array-like of int, shape (n,)
        The class of each row, a column index of p.
    p : array-like, shape (n, classes)
        Probability of each class.
    weight : array-like, shape (n,), optional
    actions : int
        Number of actions: the regions are intersections of up to ``actions`` - 1 half-spaces.
    directions : int
        Number of directions of half-spaces that are tried, where not all can be.
    random_state : int
        Seed of the directions.

    Notes
    -----
    Two classes: exact, the largest error over half-lines (two actions) or intervals (more), by sorting. Three classes and
    two actions: exact up to 3,000 distinct rows of probabilities. Every half-plane of the points can be moved until its
    edge passes through a point and turned about it; the angles of the other points, seen from there, are sorted once per
    point, O(n^2 log n). Otherwise a search: for each of ``directions`` normals (the classes, their differences, random
    ones) the best limit is exact, by sorting; further half-spaces are added, and each one replaced in turn while the error
    grows.

    References
    ----------
    Gao, Parameswaran & Peng (2017), "On the Interpretability of Conditional Probability Estimates in the Agnostic
    Setting", Electronic Journal of Statistics 11(2), doi:10.1214/17-EJS1376SI, section 5.

    Examples
    --------
    >>> y, p = [0, 1, 2, 2], [[0.6, 0.2, 0.2], [0.2, 0.6, 0.2], [0.2, 0.2, 0.6], [0.6, 0.2, 0.2]]
    >>> region_error(y, p)
    <RegionError 0.25 of class 2 (1 half-space; exact)>
    """
    check_integer("actions", actions, 2, 50)
    check_integer("directions", directions, 1, 1_000_000)
    check_integer("random_state", random_state, 0)
    data = validate_class_scores(y, p, weight)
    points, index = np.unique(data.p, axis=0, return_inverse=True)
    index = index.ravel()
    total, classes = float(data.w.sum()), data.p.shape[1]
    errors = np.stack(
        [np.bincount(index, data.w * ((data.y == k) - data.p[:, k]), len(points)) / total for k in range(classes)]
    )
    if classes == 2:
        return _on_line(points, errors[1], intervals=actions > 2)
    if classes == 3 and actions == 2 and len(points) <= MAX_EXACT:
        return _half_planes(points, errors)
    return _search(points, errors, actions - 1, _directions(classes, directions, random_state))


def decision_error(y: ArrayLike, p: ArrayLike, costs: ArrayLike, weight: ArrayLike | None = None) -> FloatArray:
    """Compute the error of each decision region of the Bayes rule of a cost matrix, by action and class.

    (1/W) sum over the rows that get action a of w (1[Y = y] - f_y): the decision calibration error of Zhao, Kim, Sahoo, Ma
    & Ermon (2021) for one loss. The cost of the rule on these rows exceeds its prediction by sum of error times cost, per
    row.

    Parameters
    ----------
    y, p, weight
        As for `region_error`.
    costs : array-like, shape (classes, actions)
        Cost of each action on a row of each class. Each row gets the action of lowest expected cost, of equal ones the
        last.

    Returns
    -------
    ndarray, shape (actions, classes)

    References
    ----------
    Gao, Parameswaran & Peng (2017), "On the Interpretability of Conditional Probability Estimates in the Agnostic
    Setting", Electronic Journal of Statistics 11(2), doi:10.1214/17-EJS1376SI, section 5.

    Examples
    --------
    >>> decision_error([0, 1, 1], [[0.8, 0.2], [0.6, 0.4], [0.2, 0.8]], [[0, 1], [1, 0]])
    array([[-0.133...,  0.133...],
           [-0.066...,  0.066...]])
    """
    data = validate_class_scores(y, p, weight)
    table, classes = as_floats(costs, "costs"), data.p.shape[1]
    if table.ndim != 2 or len(table) != classes or not table.shape[1] or not np.isfinite(table).all():
        raise ArgumentError(
            f"costs must be finite numbers, of shape ({classes}, actions); got shape {table.shape}",
            hint="one row per class, one column per action",
            parameter="costs",
        )
    many = table.shape[1]
    action = many - 1 - np.argmin((data.p @ table)[:, ::-1], axis=1)
    residual = data.w[:, None] * (np.eye(classes)[data.y.astype(np.int64)] - data.p)
    sums = [np.bincount(action, column, many) for column in residual.T]
    return np.stack(sums, axis=1) / float(data.w.sum())


def _on_line(points: FloatArray, error: FloatArray, *, intervals: bool) -> RegionError:
    """Return the error of two classes: over half-lines of the probability of class 1, or over intervals of it."""
    order = np.argsort(points[:, 1], kind="stable")
    score, path = points[order, 1], np.append(0.0, np.cumsum(error[order]))
    if intervals:
        first, last = sorted((int(np.argmax(path)), int(np.argmin(path))))
    else:
        below, above = int(np.argmax(np.abs(path))), int(np.argmax(np.abs(path[-1] - path)))
        upper = abs(path[-1] - path[above]) > abs(path[below])
        first, last = (above, len(path) - 1) if upper else (0, below)
    value = abs(float(path[last] - path[first]))
    region: list[tuple[tuple[float, ...], float]] = []
    if last < len(score):
        region.append(((0.0, 1.0), float(score[last - 1]) if last else -1.0))
    if first > 0:
        region.append(((0.0, -1.0), -float(score[first]) if first < len(score) else -2.0))
    return RegionError(value, 1, tuple(region), exact=True)


def _half_planes(points: FloatArray, errors: FloatArray) -> RegionError:
    """Return the largest error over all half-planes of the points of three classes, seen as points of a plane."""
    flat = points[:, :2]
    everything = errors.sum(axis=1)
    best = (-1.0, 0, 0, 0.0, False, False)  # error, class, pivot, angle, whether the pivot is inside, the other side
    for pivot in range(len(flat)):
        away = flat - flat[pivot]
        others = np.flatnonzero(np.arange(len(flat)) != pivot)
        if not len(others):
            break
        angle = np.arctan2(away[others, 1], away[others, 0])
        order = np.argsort(angle, kind="stable")
        angle, own = angle[order], errors[:, others[order]]
        path = np.concatenate([np.zeros((len(own), 1)), np.cumsum(np.concatenate([own, own], axis=1), axis=1)], axis=1)
        # The edge just beyond each angle: points of angles in (angle, angle + pi] lie on its left.
        begin = np.searchsorted(angle, angle, side="right")
        end = np.searchsorted(np.concatenate([angle, angle + 2 * math.pi]), angle + math.pi, side="right")
        left = path[:, end] - path[:, begin]
        with_pivot = left + errors[:, pivot, None]
        for values, inside, swapped in (
            (left, False, False),
            (with_pivot, True, False),
            (everything[:, None] - with_pivot, False, True),
            (everything[:, None] - left, True, True),
        ):
            size = np.abs(values)
            k, at = np.unravel_index(int(np.argmax(size)), size.shape)
            if size[k, at] > best[0]:
                best = (float(size[k, at]), int(k), pivot, float(angle[at]), inside, swapped)
    total = np.abs(everything)
    if best[0] < total.max():
        return RegionError(float(total.max()), int(np.argmax(total)), (), exact=True)
    value, label, pivot, turn, inside, swapped = best
    return RegionError(value, label, (_edge(points, pivot, turn, inside=inside, swapped=swapped),), exact=True)


def _edge(points: FloatArray, pivot: int, turn: float, *, inside: bool, swapped: bool) -> tuple[tuple[float, ...], float]:
    """Return the half-plane left of (or right of) a line through a point, just beyond the angle ``turn``."""
    away = points[:, :2] - points[pivot, :2]
    others = np.arange(len(points)) != pivot
    angle = np.mod(np.arctan2(away[others, 1], away[others, 0]) - turn, math.pi)
    beyond = angle[angle > 1e-12].min(initial=math.pi)
    direction = turn + beyond / 2
    normal = np.array([math.sin(direction), -math.cos(direction), 0.0])  # left of the direction is normal . away < 0
    normal = -normal if swapped else normal
    place = points @ normal
    own = float(place[pivot])
    lower, upper = place[others & (place <= own)], place[others & (place > own)]
    limit = (own + upper.min(initial=own + 1.0)) / 2 if inside else (own + lower.max(initial=own - 1.0)) / 2
    return tuple(normal.tolist()), float(limit)


def _directions(classes: int, count: int, random_state: int) -> FloatArray:
    """Return normals of half-spaces: classes, differences of two classes, and random ones."""
    axes = np.eye(classes)
    pairs = [axes[i] - axes[j] for i in range(classes) for j in range(i)]
    random = np.random.default_rng(random_state).normal(size=(count, classes))
    normals = np.concatenate([axes, np.array(pairs), random])
    return np.asarray(np.concatenate([normals, -normals]))


def _best_half_space(points: FloatArray, error: FloatArray, normals: FloatArray) -> tuple[float, int, float]:
    """Return the largest sum of ``error`` over half-spaces normal . f <= limit, the number of its normal, and its limit."""
    best = (-math.inf, 0, 0.0)
    for number, normal in enumerate(normals):
        place = points @ normal
        order = np.argsort(place, kind="stable")
        path, sorted_place = np.cumsum(error[order]), place[order]
        path[:-1][sorted_place[1:] == sorted_place[:-1]] = -math.inf
        at = int(np.argmax(path))
        if path[at] > best[0]:
            beyond = sorted_place[at + 1] if at + 1 < len(place) else sorted_place[at] + 1.0
            best = (float(path[at]), number, float((sorted_place[at] + beyond) / 2))
    return best


def _search(points: FloatArray, errors: FloatArray, planes: int, normals: FloatArray) -> RegionError:
    """Search for the intersection of half-spaces with the largest error, for each class and each sign of the error."""
    best: tuple[float, int, Any] = (-1.0, 0, ())
    for label, error in enumerate(errors):
        for signed in (error, -error):
            chosen: list[tuple[int, float]] = []
            value = -math.inf
            for _ in range(planes):
                inside = _inside(points, chosen, normals)
                found, number, limit = _best_half_space(points[inside], signed[inside], normals)
                if found <= value + 1e-15:
                    break
                chosen, value = [*chosen, (number, limit)], found
                chosen, value = _improve(points, signed, chosen, value, normals)
            if value > best[0]:
                best = (value, label, tuple((tuple(normals[n].tolist()), limit) for n, limit in chosen))
    return RegionError(float(best[0]), best[1], best[2], exact=False)


def _improve(
    points: FloatArray, error: FloatArray, chosen: list[tuple[int, float]], value: float, normals: FloatArray
) -> tuple[list[tuple[int, float]], float]:
    """Replace one half-space at a time by the best one given the others, while the error grows."""
    for _ in range(ROUNDS if len(chosen) > 1 else 0):
        before = value
        for at in range(len(chosen)):
            others = chosen[:at] + chosen[at + 1 :]
            inside = _inside(points, others, normals)
            found, number, limit = _best_half_space(points[inside], error[inside], normals)
            if found > value:
                chosen, value = [*others[:at], (number, limit), *others[at:]], found
        if value <= before:
            break
    return chosen, value


def _inside(points: FloatArray, chosen: list[tuple[int, float]], normals: FloatArray) -> BoolArray:
    inside = np.ones(len(points), bool)
    for number, limit in chosen:
        inside &= points @ normals[number] <= limit
    return inside
