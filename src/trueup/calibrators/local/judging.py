"""Which reach of the kernel serves rows best that do not vote for themselves."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trueup.calibrators.local.pooling import sort_alike
from trueup.calibrators.maps.local import Neighbours, confidence_of, mix_reset, mix_shift, number_bins, reset, scale_of
from trueup.calibrators.maps.spaces import Groups
from trueup.calibrators.stopping import LATER_ROUND_ERRORS, paired_gain, required_gain
from trueup.data.folds import MAX_DUPLICATES
from trueup.kernels.cascade import SMALLEST
from trueup.kernels.laplace import sums
from trueup.kernels.losses import log_losses

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trueup._types import FloatArray, IntArray
    from trueup.calibrators.local.pooling import Units
    from trueup.calibrators.maps.local import LocalMap
    from trueup.calibrators.maps.spaces import Embedding
    from trueup.data.table import Table


RESET, SHIFT = "reset", "shift"
ALIKE = 1e-9  # of a loss: nearer than this, the calmer choice is taken


class Tried(NamedTuple):
    """One way to correct, and the mean loss of the rows that judged it."""

    gamma: float
    shrinkage: float
    move: str
    loss: float


@dataclass(frozen=True, eq=False)
class Placed:
    """Rows in the space of an embedding.

    Attributes
    ----------
    confidence, hit : ndarray of float64
        The score and the outcome; of several classes the highest score, and whether its class came true.
    share : ndarray of float64
        What the true class gets of all that the confidence leaves; 1 where that is nobody else's.
    points : ndarray, shape (n, d)
    group, bin : ndarray of int64
    """

    confidence: FloatArray
    hit: FloatArray
    share: FloatArray
    points: FloatArray
    group: IntArray
    bin: IntArray

    def said(self, *, shifts: bool) -> FloatArray:
        """Give what a row says to its neighbours: whether it came true, or how far that is from its score."""
        return self.hit - self.confidence if shifts else self.hit

    def losses(self, rate: FloatArray) -> FloatArray:
        """Give the log loss of every row with these confidences."""
        out = np.empty(len(rate))
        log_losses(self.hit, np.where(self.share < 1, 1.0 - (1.0 - rate) * self.share, rate), SMALLEST, out)
        return out


def place_rows(table: Table, embedding: Embedding, edges: FloatArray) -> Placed:
    """Say where the rows of a table stand, and what came of them."""
    assert table.outcome is not None
    points, group = embedding.place([table.columns[one.name] for one in table.schema.features], len(table))
    confidence, top = confidence_of(table.prediction)
    hit, share = table.outcome, np.ones(len(table))
    if top is not None:
        hit = (table.outcome == top).astype(np.float64)
        others = reset(table.prediction, top, np.zeros(len(table)))
        share = np.where(hit == 1, 1.0, others[np.arange(len(table)), table.outcome.astype(np.int64)])
    return Placed(np.ascontiguousarray(confidence), hit, share, points, group, number_bins(confidence, edges))


def make_neighbours(placed: Placed, weight: FloatArray, groups: int, *, near: bool, shifts: bool) -> Neighbours:
    """Add up rows of one bin and one point; of one bin alone where nearness does not count.

    With several groups every row counts for its own, and for its whole bin too.
    """
    rows, said = np.arange(len(weight)), placed.said(shifts=shifts)
    key, points = placed.bin * groups, placed.points if near else np.zeros((len(weight), 1))
    if groups > 1:
        rows, key = np.concatenate([rows, rows]), np.concatenate([key, key + placed.group])
    content = np.column_stack([key.astype(np.float64), points[rows] + 0.0])
    order, starts = sort_alike(content, weight[rows])
    mass, total = (np.add.reduceat(column[rows][order], starts) for column in (weight, weight * said))
    first = order[starts]
    in_order = np.argsort(key[first], kind="stable")  # bytes do not sort as numbers
    keys, place = np.unique(key[first][in_order], return_inverse=True)
    kept = rows[first][in_order]
    return Neighbours(keys, place.ravel(), np.ascontiguousarray(points[kept]), mass[in_order], total[in_order])


# ------------------------------------------------------------------ what neighbours say


@dataclass(frozen=True, eq=False)
class Votes:
    """What neighbours say of rows, for each reach; times ``carried`` they are numbers of rows.

    Attributes
    ----------
    weight, carried : ndarray, shape (reaches, rows)
    came, over : ndarray, shape (reaches, rows)
        How many came true, and how many more than their scores say.
    """

    weight: FloatArray
    came: FloatArray
    over: FloatArray
    carried: FloatArray

    def rate(self, at: int, confidence: FloatArray, shrinkage: float, *, shifts: bool) -> FloatArray:
        """Give new confidences by one reach; rows of which nobody says anything keep theirs."""
        silent = self.weight[at] <= 0
        total, mix = (self.over[at], mix_shift) if shifts else (self.came[at], mix_reset)
        found = mix(np.where(silent, 1.0, self.weight[at]), total, self.carried[at], confidence, shrinkage)
        return np.where(silent, confidence, found)


def leave_one_out(
    placed: Placed, units: Units, gammas: Sequence[float], embedding: Embedding, threads: int | None
) -> Votes:
    """Ask the neighbours of every unit but itself.

    Rows alike in features and prediction are left out together where there are up to ten of them, so that a copy never
    speaks for its original; of more, which is what discrete data look like, one is left out.
    """
    own = _left_out(placed, units)
    many = int(placed.group.max()) + 1 if isinstance(embedding, Groups) else 1
    key = placed.bin * many + (placed.group if many > 1 else 0)
    cells = _Cells.of(np.column_stack([key.astype(np.float64), placed.points + 0.0]), placed, units)
    whole = _Cells.of(placed.bin[:, None].astype(np.float64), placed, units).without(own)
    here = cells.without(own)  # at distance 0
    there = here[:, 0] > 0
    sides = np.zeros((len(gammas), len(here), 3))
    carried = np.ones((len(gammas), len(here)))
    finite = [at for at, gamma in enumerate(gammas) if not math.isinf(gamma)]
    if finite:
        scales = np.array([scale_of(gammas[at], placed.points.shape[1]) for at in finite])
        numbers = np.unique(key[cells.first], return_inverse=True)[1].ravel()
        others = sums(placed.points[cells.first], cells.columns, numbers, scales, own=False, threads=threads)
        for at, scale, total, shift in zip(finite, scales, *others, strict=True):
            far = np.exp(-scale * shift)[cells.cell]
            sides[at] = total[cells.cell] * np.where(there, far, 1.0)[:, None] + here
            carried[at] = np.where(there, 1.0, far)
    for at in range(len(gammas)):
        alone = sides[at, :, 0] <= 0  # nobody near, or nearness does not count: by the rest of the bin
        sides[at, alone], carried[at, alone] = whole[alone], 1.0
    return Votes(sides[:, :, 0], sides[:, :, 1], sides[:, :, 2], carried)


class _Own(NamedTuple):
    """What is left out with each unit, and how many units that takes."""

    columns: FloatArray
    units: IntArray


def _columns(placed: Placed, units: Units) -> FloatArray:
    """Give what a unit brings: its weight, what came true, and how far that is from its score."""
    said = (np.ones(len(units.weight)), placed.said(shifts=False), placed.said(shifts=True))
    return np.column_stack([units.weight * one for one in said])


def _left_out(placed: Placed, units: Units) -> _Own:
    columns = _columns(placed, units)
    together = np.column_stack([np.bincount(units.alike, column)[units.alike] for column in columns.T])
    common = np.bincount(units.alike, units.rows)[units.alike] > MAX_DUPLICATES
    size = np.bincount(units.alike)[units.alike]
    return _Own(np.where(common[:, None], columns / units.rows[:, None], together), np.where(common, 0, size))


@dataclass(frozen=True, eq=False)
class _Cells:
    """Units of one place, added up."""

    first: IntArray
    cell: IntArray
    size: IntArray
    columns: FloatArray

    @classmethod
    def of(cls, content: FloatArray, placed: Placed, units: Units) -> _Cells:
        order, starts = sort_alike(content)
        cell = np.empty(len(order), np.int64)
        size = np.diff(starts, append=len(order))
        cell[order] = np.repeat(np.arange(len(starts)), size)
        summed = [np.bincount(cell, column, len(starts)) for column in _columns(placed, units).T]
        return cls(order[starts], cell, size, np.column_stack(summed).astype(np.float64))

    def without(self, own: _Own) -> FloatArray:
        """Give what is left of each unit's cell; exactly nothing where the cell was all its own."""
        alone = self.size[self.cell] == own.units
        return np.where(alone[:, None], 0.0, self.columns[self.cell] - own.columns)


def votes_at(learn: Callable[[float, str], LocalMap], gammas: Sequence[float], held: Placed, threads: int | None) -> Votes:
    """Ask the neighbours of rows that are none themselves; ``learn`` makes the map of a gamma and a move."""
    rows = len(held.hit)
    sides, carried = np.zeros((len(gammas), rows, 3)), np.ones((len(gammas), rows))
    for far in (False, True):
        chosen = [at for at, gamma in enumerate(gammas) if math.isinf(gamma) == far]
        if not chosen:
            continue
        first, other = (learn(gammas[chosen[0]], move) for move in (RESET, SHIFT))
        near = first.neighbours
        scales = np.array([scale_of(gammas[at], near.points.shape[1]) for at in chosen])
        points, group = (np.zeros((rows, 1)), np.zeros(rows, np.int64)) if far else (held.points, held.group)
        columns = np.column_stack([near.weight, near.total, other.neighbours.total])
        where = (points, first.keys_of(held.confidence, group))
        found = sums(near.points, columns, near.place, scales, at=where, threads=threads)
        sides[chosen], carried[chosen] = found.total, np.exp(-scales[:, None] * found.shift)
    return Votes(sides[:, :, 0], sides[:, :, 1], sides[:, :, 2], carried)


# ------------------------------------------------------------------ the choice


@dataclass(frozen=True)
class Candidates:
    """What is tried: every combination."""

    gammas: tuple[float, ...]
    shrinkages: tuple[float, ...]
    moves: tuple[str, ...]

    def listed(self) -> Iterator[tuple[int, float, str]]:
        """List them, the calmer first: of two alike the first is taken."""
        for at in sorted(range(len(self.gammas)), key=lambda at: -self.gammas[at]):
            for m in sorted(self.shrinkages, reverse=True):
                for move in self.moves:
                    yield at, m, move


@dataclass(frozen=True, eq=False)
class Judged:
    """All that was tried, the best of it, and whether that is better than no correction beyond noise.

    ``rate`` has the confidences that the best gives to the rows that judged.
    """

    tried: tuple[Tried, ...]
    chosen: Tried
    before: float
    gain: float
    error: float
    kept: bool
    rate: FloatArray


def choose(votes: Votes, placed: Placed, weight: FloatArray, rows: IntArray, candidates: Candidates) -> Judged:
    """Find what has the lowest loss, and hold it against the base score, row by row.

    The gain must be twice its standard error, as that of a later round: the best of many looks better than it is.
    """
    base = placed.losses(placed.confidence)
    before = float(np.average(base, weights=weight))
    tried: list[Tried] = []
    lowest, best, each, rate = math.inf, 0, base, placed.confidence
    for at, m, move in candidates.listed():
        moved = votes.rate(at, placed.confidence, m, shifts=move == SHIFT)
        losses = placed.losses(moved)
        loss = float(np.average(losses, weights=weight))
        if loss < lowest * (1 - ALIKE) or not tried:
            lowest, best, each, rate = loss, len(tried), losses, moved
        tried.append(Tried(candidates.gammas[at], m, move, loss))
    gain, error, carried = paired_gain(np.repeat(base - each, rows), np.repeat(weight / rows, rows))
    kept = gain > required_gain(LATER_ROUND_ERRORS, error, carried, before)
    return Judged(tuple(tried), tried[best], before, gain, error, kept, rate)
