"""Limits of curves by drawing what may come out: labels of these rows, and what labelled rows said by chance."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trueup.decisions.ground import Range, average_precision, axes, divide, rising, under

if TYPE_CHECKING:
    from trueup._types import FloatArray, IntArray
    from trueup.decisions.ground import Ground, Kind
    from trueup.decisions.inputs import Target
    from trueup.metrics.inputs import Scored


DRAWS = 2000
PLACES, FIRST = 256, 24  # thresholds at which curves are drawn, and how many of them are the very highest
KNOTS, ROWS_A_KNOT = 64, 25  # of the correction: more would follow the noise of labelled rows
SURE = 0.99  # beyond this level too few draws are left
BETWEEN = 0.5826  # of a step's spread: what a path reaches between two steps (Broadie, Glasserman & Kou 1997)


class Drawn(NamedTuple):
    """Both axes with their limits, the area with its own, and what they are made of."""

    x: Range
    y: Range
    areas: tuple[float, float, float]
    parts: dict[str, float]


class _Steps(NamedTuple):
    """Variances of what rows between two thresholds add to the shares above them.

    ``labels`` by what their outcomes happen to be, ``known`` by what labelled rows happened to say, ``rows`` by how many
    they happen to be, of which ``mean`` are positive; ``heaviest`` is the most that one row adds.
    """

    labels: FloatArray
    known: FloatArray
    rows: FloatArray
    mean: FloatArray
    heaviest: float

    @property
    def variance(self) -> FloatArray:
        """Give that of the positives, or of the negatives where it is larger, by all causes."""
        return np.asarray(self.labels + self.known + self.rows * np.maximum(self.mean, 1 - self.mean) ** 2)


def draw_limits(kind: Kind, ground: Ground, labelled: Scored | None, level: float, target: Target) -> Drawn:
    """Draw curves as they may come out, and take limits that hold the whole of a share ``level`` of them.

    Labelled rows correct the curve first; without them scores are taken at their word.
    """
    failing = 1 - level
    known = None if labelled is None else _Errors(labelled)
    whole = ground if known is None else ground.corrected(known.smoothed(ground))
    at = _places(whole)
    few = whole.at(at)
    steps = _steps(few, known, target)
    moves = _draw(few, steps, target)
    drawn = axes(kind, *_moved(few, moves, target))
    near = axes(kind, few.positive, few.negative)
    estimate = axes(kind, whole.positive, whole.negative)
    both = [_Axis(*one, steps.heaviest) for one in zip(near, drawn, _scales(kind, few), strict=True)]
    factor = _reached(np.maximum(both[0].farthest, both[1].farthest), level)
    # Where no labelled row was off, a few others may be all the same; only one score has an AUC of a half whatever happens.
    least = 0.0 if known is None or (kind == "roc" and len(few.threshold) == 2) else 1.0
    room = math.sqrt(math.log(5 / failing) / 2)
    between = BETWEEN * np.sqrt(steps.variance) * (np.diff(at, prepend=0) > 1)
    x, y = (
        _limits(one, np.interp(whole.called, few.called, axis.half(max(factor, least), room, between)))
        for one, axis in zip(estimate, both, strict=True)
    )
    x, y = (_rate(x, target), _rate(y, target) if kind == "roc" else y)
    if kind == "roc":
        area, off = float(under(*estimate)), under(*drawn) - under(*near)
    else:
        area, off = float(average_precision(estimate[0], np.nan_to_num(estimate[1]))), _of_precision(few, moves)
    positives = both[1] if kind == "roc" else both[0]
    areas = _areas(area, off, level, room * positives.one_row[-1], least)
    return Drawn(x, y, areas, _parts(moves[0], steps, level, target, labelled=known is not None))


def _reached(sizes: FloatArray, level: float) -> float:
    """Give what a share ``level`` of sizes is below."""
    return float(np.quantile(sizes, min(level, SURE))) * _stretch(level)


def _stretch(level: float) -> float:
    """Say by how much to go beyond the last level that draws tell of: the normal tail is heavier than that of maxima."""
    last, wanted = (-NormalDist().inv_cdf((1 - one) / 2) for one in (SURE, max(level, SURE)))
    return wanted / last


class _Axis:
    """How far one axis of the curves drawn is off at each place, and how far that is in units of what is usual there.

    ``one_row`` is what a single row moves it by: nothing is held to be surer than that.
    """

    def __init__(self, near: FloatArray, drawn: FloatArray, scale: FloatArray, heaviest: float) -> None:
        # A curve that has nothing to divide by is anywhere; one that never had is nowhere.
        off = np.where(np.isnan(near), 0.0, np.where(np.isnan(drawn), 1.0, drawn - near))
        self.scale, self.one_row = scale, heaviest * scale
        self.spread = np.sqrt(np.mean(off**2, axis=0))
        usual = np.maximum(np.hypot(self.spread, self.one_row), np.finfo(float).tiny)
        self.farthest = np.max(np.abs(off) / usual, axis=1)

    def half(self, factor: float, room: float, between: FloatArray) -> FloatArray:
        """Give half-widths; few rows may add more than their spread shows."""
        return np.asarray(
            factor * (np.hypot(self.spread, room * self.one_row) + room * self.one_row) + between * self.scale
        )


class _Errors:
    """What labelled rows were off by, from the highest score down, as shares of their weight."""

    def __init__(self, rows: Scored) -> None:
        order = np.lexsort((rows.w, rows.y, -rows.p))
        y, f, w = (column[order] for column in rows)
        errors = w * (y - f) / w.sum()
        self.score, self.many = f, len(f)
        self.sums, self.squares = (np.append(0.0, np.cumsum(column)) for column in (errors, errors**2))
        self.heaviest = float(w.max() / w.sum())
        self.rows = float(w.sum() ** 2 / np.sum(w**2))
        # Where few events were seen, or none, those that were expected count.
        self.variance = max(float(self.squares[-1]), float(np.sum(w**2 * f * (1 - f)) / w.sum() ** 2))

    def at(self, sums: FloatArray, threshold: FloatArray) -> FloatArray:
        """Give a running sum over the rows with scores from each threshold on."""
        return np.asarray(sums[np.searchsorted(-self.score, -threshold, side="right")])

    def smoothed(self, ground: Ground) -> FloatArray:
        """Give how many more are positive from each threshold on: as labelled rows say at some of them, in between even."""
        along = ground.called + divide(ground.positive, ground.positive[-1:])
        along = np.where(np.isnan(along), 2 * ground.called, along)
        knots = int(np.clip(self.many // ROWS_A_KNOT, 1, KNOTS))
        at = np.unique(np.searchsorted(along, np.linspace(0.0, along[-1], knots + 1)).clip(0, len(along) - 1))
        return np.interp(along, along[at], self.at(self.sums, ground.threshold[at]))


def _places(ground: Ground) -> IntArray:
    """Choose thresholds to draw at: the very highest, and then evenly along rows and positives; both ends are in."""
    many = len(ground.threshold)
    if many <= PLACES:
        return np.arange(many)
    along = ground.called + np.nan_to_num(divide(ground.positive, ground.positive[-1:]))
    near = np.searchsorted(along, np.linspace(along[0], along[-1], PLACES - FIRST))
    return np.unique(np.concatenate([np.arange(FIRST), near.clip(0, many - 1), [many - 1]]))


def _steps(few: Ground, known: _Errors | None, target: Target) -> _Steps:
    """Say how much each step may add."""
    noise, squares = (np.diff(column, prepend=0.0) for column in (few.noise, few.squares))
    nought = np.zeros(len(noise))
    told = nought
    if known is not None:
        # Where errors lie is taken half from the labelled rows and half from the scores: either alone may have gaps.
        shapes = [np.diff(known.at(known.squares, few.threshold), prepend=0.0), noise]
        shapes = [shape for shape in shapes if shape.sum() > 0] or [squares]  # none is off, and none should be: anywhere
        told = known.variance * np.mean([shape / shape.sum() for shape in shapes], axis=0)
        noise = told * known.rows * few.squares[-1]
    heaviest = few.heaviest + (0.0 if known is None else known.heaviest)
    mean = np.nan_to_num(divide(np.diff(few.positive, prepend=0.0), np.diff(few.called, prepend=0.0)))
    if target == "rows":
        return _Steps(noise, told, nought, mean, heaviest)
    return _Steps(nought, told, squares, mean, heaviest)


def _draw(few: Ground, steps: _Steps, target: Target) -> tuple[FloatArray, FloatArray]:
    """Draw how far the shares of positives and of negatives from each threshold on are off, one line a draw."""
    random = np.random.default_rng(0)
    size = (DRAWS, len(few.threshold))
    errors = np.cumsum(random.normal(size=size) * np.sqrt(steps.labels + steps.known), axis=1)
    if target == "rows":
        return errors, -errors
    rows = random.normal(size=size) * np.sqrt(steps.rows)
    rows -= rows.sum(axis=1, keepdims=True) * np.diff(few.called, prepend=0.0)  # there are as many rows as there are
    positive, negative = (np.cumsum(rows * share, axis=1) for share in (steps.mean, 1 - steps.mean))
    return positive + errors, negative - errors


def _moved(few: Ground, off: tuple[FloatArray, FloatArray], target: Target) -> tuple[FloatArray, FloatArray]:
    """Give shares that are off by so much, as far as they can be."""
    if target == "rows":
        positive = np.clip(few.positive + off[0], 0.0, few.called)
        return positive, few.called - positive
    return np.maximum(few.positive + off[0], 0.0), np.maximum(few.negative + off[1], 0.0)


def _scales(kind: Kind, few: Ground) -> tuple[FloatArray, FloatArray]:
    """Say what a share of all rows is on each axis."""
    ones = np.ones(len(few.called))
    recall, fpr = (np.nan_to_num(divide(ones, ones * share)) for share in (few.positive[-1], few.negative[-1]))
    return (fpr, recall) if kind == "roc" else (recall, np.nan_to_num(divide(ones, few.called)))


def _limits(estimate: FloatArray, half: FloatArray) -> Range:
    """Give limits within 0 and 1, which is all that is known where there is no estimate."""
    unknown = np.isnan(estimate)
    low, high = np.clip(estimate - half, 0.0, 1.0), np.clip(estimate + half, 0.0, 1.0)
    return Range(estimate, np.where(unknown, 0.0, low), np.where(unknown, 1.0, high))


def _rate(rate: Range, target: Target) -> Range:
    """Let a rate rise, as it must; of these rows none is called at first, and all are in the end."""
    if target == "rows" and not math.isnan(rate.estimate[0]):
        for column in (rate.low, rate.high):
            column[0], column[-1] = 0.0, 1.0
    return rising(rate)


def _areas(area: float, off: FloatArray, level: float, one_row: float, least: float) -> tuple[float, float, float]:
    """Give limits of an area, from how far areas are off that were drawn, and at least so many times as far as usual."""
    if math.isnan(area):
        return area, 0.0, 1.0
    # A curve that has nothing to divide by has any area: it is off as far as can be to either side.
    lowest, highest = (np.where(np.isnan(off), end, off) for end in (-1.0, 1.0))
    sd = float(np.sqrt(np.mean(highest**2)))
    wider = math.hypot(sd, one_row) + one_row
    sides, wider = ((lowest, (1 - min(level, SURE)) / 2), (highest, (1 + min(level, SURE)) / 2)), wider * _stretch(level)
    low, high = (float(np.quantile(ends, side)) / sd if sd > 0 else 0.0 for ends, side in sides)
    low, high = min(low, -least) * wider, max(high, least) * wider
    return area, max(0.0, min(area, area + low)), min(1.0, max(area, area + high))


def _of_precision(few: Ground, off: tuple[FloatArray, FloatArray]) -> FloatArray:
    """Give how far average precision is off, where shares are by so much: to first order, which noise does not bend.

    AP = sum P dA / A_end with P = A / (A + B), A the positives and B the negatives from each threshold on.
    """
    recall, precision = (np.nan_to_num(one) for one in axes("pr", few.positive, few.negative))
    bent = (off[0] * (1 - precision) - off[1] * precision) * np.nan_to_num(divide(np.ones(len(precision)), few.called))
    moved = np.diff(off[0]) @ precision[1:] + bent[:, 1:] @ np.diff(few.positive)
    whole = float(few.positive[-1])
    return np.asarray(
        divide(moved - float(average_precision(recall, precision)) * off[0][:, -1], np.full(len(moved), whole))
    )


def _parts(off: FloatArray, steps: _Steps, level: float, target: Target, *, labelled: bool) -> dict[str, float]:
    """Say by how much the positives above a threshold may be off, as a share of all rows, and why."""
    reach = _reached(np.abs(off).max(axis=1), level)
    own = float((steps.labels + steps.rows * steps.mean**2).sum())
    total = own + float(steps.known.sum())
    name = "label noise" if target == "rows" else "sampling"
    parts = {name: reach * math.sqrt(own / total) if total else 0.0}
    return (
        {"calibration": reach * math.sqrt(float(steps.known.sum()) / total) if total else 0.0, **parts}
        if labelled
        else parts
    )
