"""The search for patches: which cell (a group within a range of scores) has the largest error, and what corrects it."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.special import expit, ndtri

from trueup.calibrators.groups import combine_codes, split_number
from trueup.calibrators.patches.map import ALL_ROWS, Patch
from trueup.calibrators.stopping import FIRST_ROUND_ERRORS, Round, apply_link, paired_gain, required_gain
from trueup.kernels.cascade import MIN_PROBABILITY
from trueup.kernels.patches import find_shift, shift_scores, tally, to_logits
from trueup.kernels.sorting import digitize

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trueup._types import AnyArray, BoolArray, FloatArray, Int32Array, IntArray
    from trueup.calibrators.stopping import Split, TaskLoss
    from trueup.data.bins import ColumnBinner
    from trueup.data.table import Table


MAX_REJECTED = 100  # consecutive rejected proposals that end the search, per unit of patience
SPREAD_BINS, MIN_BIN_ROWS = 10, 50  # score bins in which the variance of real outcomes is estimated
FALSE_POSITIVE_RATE = 0.05  # of a false patch, over all cells together


class Group(NamedTuple):
    """Rows that share the value of one column, or of two."""

    set_number: int  # of the columns, among all sets of columns
    conditions: tuple[tuple[int, int], ...]
    text: str


@dataclass(frozen=True, eq=False)
class PatchRows:
    """The rows of a fit, sorted by content so that no sum depends on the order of the input."""

    p: FloatArray  # of all rows, held-out rows included
    y: FloatArray
    weight: FloatArray
    member: Int32Array  # (sets of columns, rows): the group of each row; -1 for a group of too few rows
    first: IntArray  # one row for each distinct combination of values among the rows that are searched
    total: FloatArray  # of each such combination: the sum of weights,
    square: FloatArray  # the sum of squared weights,
    count: FloatArray  # and the number of rows
    groups: list[Group]
    splits: list[tuple[BoolArray, BoolArray]]  # training rows and held-out rows
    order: IntArray  # the position of each row in the table


def arrange_rows(
    table: Table, splits: Sequence[Split], binners: Sequence[ColumnBinner], depth: int, weight: FloatArray, min_rows: float
) -> PatchRows:
    """Sort the rows by content, pool equal rows and number the groups."""
    assert table.outcome is not None
    codes = [binner.codes(table.columns[binner.name]) for binner in binners]
    fold = np.zeros(len(table), np.int64)
    searched = np.zeros(len(table), bool)
    for number, split in enumerate(splits, start=1):
        fold[split.valid] = number
        searched[split.train] = True
    keys: list[AnyArray] = [table.outcome, table.prediction, *codes]
    order = np.lexsort((fold, weight, *keys))
    keys = [key[order] for key in keys]
    y, p, *codes = keys
    weight, searched = weight[order], searched[order]
    # Groups of every set of columns, the smallest sets first; groups of too little weight get no number.
    sets = [columns for size in range(1, depth + 1) for columns in itertools.combinations(range(len(binners)), size)]
    member = np.zeros((len(sets) + 1, len(searched)), np.int32)
    groups = [Group(0, (), ALL_ROWS)]
    for place, columns in enumerate(sets, start=1):
        sizes = [len(binners[column].labels) for column in columns]
        combination = combine_codes([codes[column] for column in columns], sizes, len(searched))
        distinct, inverse = np.unique(combination[searched], return_inverse=True)
        enough = np.bincount(inverse.ravel(), weight[searched]) >= min_rows
        numbers = np.where(enough, len(groups) + np.cumsum(enough) - 1, -1)
        position = np.searchsorted(distinct, combination).clip(max=len(distinct) - 1)
        member[place] = np.where(distinct[position] == combination, numbers[position], -1)
        for value in distinct[enough].tolist():
            conditions = tuple(zip(columns, split_number(value, sizes), strict=True))
            groups.append(Group(place, conditions, " & ".join(binners[column].labels[code] for column, code in conditions)))
    rows = np.flatnonzero(searched)
    new = np.zeros(len(rows), bool)
    new[:1] = True
    for key in keys:
        new[1:] |= np.diff(key[rows]) != 0
    pool, w = np.cumsum(new) - 1, weight[rows]
    total, square, count = (np.bincount(pool, values).astype(np.float64) for values in (w, w**2, np.ones(len(w))))
    masks = []
    for split in splits:
        train, valid = np.zeros((2, len(table)), bool)
        train[split.train], valid[split.valid] = True, True
        masks.append((train[order], valid[order]))
    return PatchRows(p, y, weight, member, rows[new], total, square, count, groups, masks, order)


@dataclass(frozen=True, eq=False)
class PatchSettings:
    """The parameters of a search."""

    edges: FloatArray  # between the score ranges; empty if a cell is a group at all scores
    link: str  # "identity" or "logit": the scale on which shifts are added
    alpha: float  # the tolerated mean residual, on the scale of the outcome
    min_rows: float
    rounds: int
    patience: int
    bounds: FloatArray  # the range of scores on the scale of the link
    validated: bool  # whether held-out rows must confirm a patch; if so, shifts are shrunk by their noise as well


def _halve(first: int, last: int) -> Iterator[tuple[int, int]]:
    """Iterate over ranges of levels from all of them down to each, by halving: (0, 3), (0, 1), (1, 3), (1, 2), (2, 3)."""
    yield first, last
    if last - first > 1:
        middle = (first + last) // 2
        yield from _halve(first, middle)
        yield from _halve(middle, last)


class _Validation(NamedTuple):
    """The held-out evaluation of a patch."""

    gain: float
    error: float
    kept: bool
    losses: FloatArray
    shifts: list[tuple[IntArray, float]]  # for each split, the rows of the patch and its shift


class PatchSearch:
    """Algorithm 1 of Hébert-Johnson et al. (2018), with the cell of the largest gain in place of any; patches validated."""

    def __init__(self, rows: PatchRows, settings: PatchSettings, loss: TaskLoss) -> None:
        self.rows, self.settings, self.loss = rows, settings, loss
        self.y = rows.y[rows.first]
        self.member = np.ascontiguousarray(rows.member[:, rows.first])
        self.base = base = to_logits(rows.p) if settings.link == "logit" else rows.p
        self.edges = to_logits(settings.edges) if settings.link == "logit" else settings.edges
        self.value = base[rows.first]
        self.binary_outcomes = loss.name == "log" and bool(((rows.y == 0) | (rows.y == 1)).all())
        # Residuals are squared: those of real outcomes in a unit that keeps squares finite. A power of two is exact.
        largest = float(np.abs(rows.y - rows.p).max())
        self.unit = 2.0 ** np.floor(np.log2(largest)) if loss.name == "squared" and largest > 0 else 1.0
        self.spread = np.zeros(len(rows.p))
        if loss.name == "squared":  # the mean squared residual of real outcomes among rows of similar prediction
            bins = min(SPREAD_BINS, max(len(rows.p) // MIN_BIN_ROWS, 1))
            number = np.searchsorted(np.sort(rows.p), rows.p, side="left") * bins // len(rows.p)
            squares = np.bincount(number, rows.weight * ((rows.y - rows.p) / self.unit) ** 2)
            mass = np.maximum(np.bincount(number, rows.weight), np.finfo(float).tiny)
            self.spread = np.asarray((squares / mass)[number])
        self.levels = len(settings.edges) + 1
        levels = range(self.levels)
        self.ranges = list(_halve(0, self.levels)) if settings.validated else [(level, level + 1) for level in levels]
        self.sums = np.zeros((len(rows.groups), self.levels, 4))
        self.closed = np.zeros((len(rows.groups), len(self.ranges)), bool)
        self.states = [base.copy() for _ in rows.splits] if settings.validated else []
        self.held_out = np.any([valid for _, valid in rows.splits], axis=0)
        self.losses = self._row_losses(rows.y, base) if settings.validated else self._row_losses(self.y, self.value)
        self._tally(np.arange(self.levels))
        tests = max(int((self.cells[0] >= settings.min_rows).sum()), 1)
        # In standard errors, the gain of a patch is about half of the bias it removes.
        self.threshold = max(FIRST_ROUND_ERRORS, float(-ndtri(FALSE_POSITIVE_RATE / (2 * tests))) / 2)
        self.patches: list[Patch] = []
        self.rounds: list[Round] = [Round(0, 0, 1.0, self._mean_loss(self.losses), 0.0, 0.0, kept=True)]
        self.end = "exhausted"

    def run(self) -> Iterator[Patch]:
        """Find one patch after another; afterwards ``end`` is "exhausted", "rounds" or "patience"."""
        failed = 0
        rejected: Round | None = None
        while (cell := self._largest_error()) is not None:
            if len(self.patches) == self.settings.rounds or failed == MAX_REJECTED * self.settings.patience:
                self.end = "rounds" if failed < MAX_REJECTED * self.settings.patience else "patience"
                break
            patch, inside = self._propose(cell)
            after = shift_scores(self.value[inside], patch.shift, self.settings.bounds)
            validation = self._validate(cell) if self.settings.validated else None
            if (after == self.value[inside]).all() or (validation is not None and not validation.kept):
                self.closed[cell] = True
                failed += self.settings.validated
                if validation is not None:
                    error = validation.error if np.isfinite(validation.error) else 0.0
                    loss = self._mean_loss(validation.losses)
                    rejected = Round(len(self.rounds), 0, 1.0, loss, validation.gain, error, kept=False)
                continue
            failed, rejected = 0, None
            self._apply(patch, inside, after, validation)
            yield patch
        if rejected is not None:
            self.rounds.append(rejected)

    def held_out_scores(self) -> tuple[IntArray, FloatArray]:
        """Return the held-out rows, by position in the table, and their scores by patches fitted without them."""
        scores = self.rows.p.copy()
        for state, (_, valid) in zip(self.states, self.rows.splits, strict=True):
            changed = np.flatnonzero(valid & (state != self.base))  # other rows keep their score to the last bit
            scores[changed] = self._to_prediction(state[changed])
        return self.rows.order[self.held_out], scores[self.held_out]

    # -------------------------------------------------------------- cells

    def _tally(self, changed: IntArray) -> None:
        """Sum the cells of those levels whose rows have changed."""
        self.level = np.empty(len(self.value), np.int32)
        digitize(self.value, self.edges, self.level)
        again = np.zeros(self.levels, bool)
        again[changed] = True
        rows = np.flatnonzero(again[self.level])
        p, total, square = self._to_prediction(self.value[rows]), self.rows.total[rows], self.rows.square[rows]
        residual = (self.y[rows] - p) / self.unit
        null = square * self._variance(p, self.rows.first[rows])
        self.sums[:, again] = 0.0
        tally(
            self.member, rows, self.level[rows], self.levels, total, total * residual, square * residual**2, null,
            self.sums.reshape(-1, 4),
        )  # fmt: skip
        self.cells = np.moveaxis(self._sum_ranges(self.sums), 2, 0)

    def _variance(self, p: FloatArray, rows: IntArray) -> FloatArray:
        """Return the variance expected from the predictions: that of a cell without any rare event is too small."""
        return p * (1 - p) if self.binary_outcomes else self.spread[rows]

    def _sum_ranges(self, sums: AnyArray) -> FloatArray:
        """Sum levels, (groups, levels, k), over every range of them: (groups, ranges, k)."""
        if len(self.ranges) == self.levels:
            return sums
        return np.stack([sums[:, first:last].sum(axis=1) for first, last in self.ranges], axis=1)

    def _largest_error(self) -> tuple[int, int] | None:
        """Return the open cell with an error above alpha whose patch lowers squared error most."""
        weight, residual, square, null = self.cells
        total = np.maximum(weight, np.finfo(float).tiny)
        large = np.abs(residual) > self.settings.alpha / self.unit * total
        off = (weight >= self.settings.min_rows) & large & ~self.closed
        if self.settings.validated:  # held-out rows could not confirm an error within noise
            off &= residual**2 > self.threshold**2 * np.maximum(square, null)
        gain = np.where(off, residual**2 / total, 0.0)
        best = int(np.argmax(gain))
        return divmod(best, len(self.ranges)) if gain.flat[best] > 0 else None

    def _propose(self, cell: tuple[int, int]) -> tuple[Patch, IntArray]:
        number, (first, last) = cell[0], self.ranges[cell[1]]
        group = self.rows.groups[number]
        inside = np.flatnonzero((self.member[group.set_number] == number) & (self.level >= first) & (self.level < last))
        value, y, w = self.value[inside], self.y[inside], self.rows.total[inside]
        shift = self._shift(value, self.rows.first[inside], w, self.rows.square[inside])
        ends = [-np.inf, *self.settings.edges.tolist(), np.inf]
        before, observed = (float((w * values).sum() / w.sum()) for values in (self._to_prediction(value), y))
        rows = int(self.rows.count[inside].sum())
        return Patch(group.text, group.conditions, ends[first], ends[last], shift, rows, before, observed), inside

    def _shift(self, value: FloatArray, rows: IntArray, w: FloatArray, square: FloatArray) -> float:
        """Return the shift of a cell: its mean residual, or the shift of logits that removes it."""
        p, total = self._to_prediction(value), w.sum()
        residual = (self.rows.y[rows] - p) / self.unit
        gap = float((w * residual).sum() / total)
        if self.settings.validated:  # z standard errors are shrunk by 1 - 1 / z^2, the share of z^2 that is not noise
            noise = max(float((square * residual**2).sum()), float((square * self._variance(p, rows)).sum()))
            signal = (gap * float(total)) ** 2
            gap *= 1 - noise / signal if signal > noise else 0.0
        if self.settings.link == "identity":
            return gap * self.unit
        target = float((w * p).sum() / total) + gap
        return float(find_shift(value, w, min(max(target, MIN_PROBABILITY), 1 - MIN_PROBABILITY)))

    def _apply(self, patch: Patch, inside: IntArray, after: FloatArray, validation: _Validation | None) -> None:
        changed_rows = inside[after != self.value[inside]]
        level_before = self.level
        self.value[inside] = after
        level_after = np.empty(len(inside), np.int32)
        digitize(after, self.edges, level_after)
        self._tally(np.union1d(level_before[inside], level_after))
        changed = np.zeros(self.sums.shape[:2], bool)
        for level in (level_before, self.level):  # a rejected cell whose rows have changed may be proposed again
            known = self.member[:, changed_rows]
            place = np.broadcast_to(level[changed_rows], known.shape)[known >= 0]
            changed[known[known >= 0], place] = True
        self.closed[self._sum_ranges(changed[:, :, None])[:, :, 0] > 0] = False
        self.patches.append(patch)
        if validation is None:
            self.losses[inside] = self._row_losses(self.y[inside], after)
            loss = self._mean_loss(self.losses)
            gain, error = self.rounds[-1].loss - loss, 0.0
        else:
            self.losses, gain, error = validation.losses, validation.gain, validation.error
            for state, (rows, shift) in zip(self.states, validation.shifts, strict=True):
                state[rows] = shift_scores(state[rows], shift, self.settings.bounds)
            loss = self._mean_loss(self.losses)
        self.rounds.append(Round(len(self.patches), 0, 1.0, loss, gain, error, kept=True))

    def _validate(self, cell: tuple[int, int]) -> _Validation:
        """Estimate the shift without the held-out rows of each split, and evaluate it on those."""
        number, (first, last), w = cell[0], self.ranges[cell[1]], self.rows.weight
        low, high = ([-np.inf, *self.edges, np.inf][end] for end in (first, last))
        group = np.flatnonzero(self.rows.member[self.rows.groups[number].set_number] == number)
        losses, shifts, null = self.losses.copy(), [], 0.0
        for state, (train, valid) in zip(self.states, self.rows.splits, strict=True):
            inside = group[(state[group] >= low) & (state[group] < high)]
            own, held = inside[train[inside]], inside[valid[inside]]
            shift = self._shift(state[own], own, w[own], w[own] ** 2) if len(own) else 0.0
            shifts.append((inside, shift))
            old = state[held]
            new = shift_scores(old, shift, self.settings.bounds)
            losses[held] = self._row_losses(self.rows.y[held], new)
            # The gain of a row is linear in its outcome, with this slope.
            slope = self._to_logit(new) - self._to_logit(old) if self.loss.name == "log" else 2 * (new - old)
            null += float((w[held] ** 2 * slope**2 * self._variance(self._to_prediction(old), held)).sum())
        weight = w[self.held_out]
        gain, error, effective_rows = paired_gain((self.losses - losses)[self.held_out], weight)
        error = max(error, float(self.unit * np.sqrt(null) / weight.sum()))
        kept = gain > required_gain(self.threshold, error, effective_rows, self.rounds[0].loss)
        return _Validation(gain, error, kept, losses, shifts)

    def _mean_loss(self, losses: FloatArray) -> float:
        if self.settings.validated:
            return float(np.average(losses[self.held_out], weights=self.rows.weight[self.held_out]))
        return float(np.average(losses, weights=self.rows.total))

    # -------------------------------------------------------------- scales

    def _to_prediction(self, value: FloatArray) -> FloatArray:
        return np.asarray(expit(value)) if self.settings.link == "logit" else value

    def _to_logit(self, value: FloatArray) -> FloatArray:
        return value if self.settings.link == "logit" else apply_link(value, "logit")[:, 0]

    def _row_losses(self, y: FloatArray, value: FloatArray) -> FloatArray:
        F = self._to_logit(value) if self.loss.name == "log" else value
        return self.loss.per_row(y, F[:, None])
