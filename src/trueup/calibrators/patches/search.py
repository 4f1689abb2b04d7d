"""The search for patches: which cell is off most, how far its rows are to be moved, and whether other rows agree."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.special import expit, ndtri

from trueup.calibrators.losses import apply_link
from trueup.calibrators.maps.patches import Patch
from trueup.calibrators.stopping import FIRST_ROUND_ERRORS, MIN_RELATIVE_GAIN, SMALL_SAMPLE_ROWS, Round, paired_gain
from trueup.kernels.binning import digitize
from trueup.kernels.cascade import SMALLEST
from trueup.kernels.patches import moved, shift_to, tally, to_logits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trueup._types import AnyArray, FloatArray, IntArray
    from trueup.calibrators.losses import TaskLoss
    from trueup.calibrators.patches.rows import Rows


REJECTED = 100  # proposals in a row that may fail, for each unit of patience
PARTS, PART = 10, 50  # by score, in which the spread of real outcomes is taken; the fewest rows of one
FALSE = 0.05  # the chance of a false patch that the bar allows over all cells together


@dataclass(frozen=True, eq=False)
class Rule:
    """What is looked for, and what is done about it.

    Attributes
    ----------
    edges : ndarray of float64
        Between the score cells; none for whole groups.
    link : {"identity", "logit"}
        The scale on which shifts are added.
    alpha : float
        The mean residual that is let be, on the scale of the outcome.
    min_rows : float
    rounds, patience : int
    clip : tuple of float, or None
        The range that shifted predictions stay in.
    judged : bool
        Whether rows confirm a patch. Then patches are shrunk by their noise as well.
    """

    edges: FloatArray
    link: str
    alpha: float
    min_rows: float
    rounds: int
    patience: int
    clip: tuple[float, float] | None
    judged: bool

    @property
    def bounds(self) -> FloatArray:
        """Give the range of scores on the scale of the link."""
        return np.array(self.clip or (-np.inf, np.inf), np.float64)


def _halved(first: int, last: int) -> Iterator[tuple[int, int]]:
    """List the spans of levels from the whole down to each of them, halving.

    Examples
    --------
    >>> list(_halved(0, 3))
    [(0, 3), (0, 1), (1, 3), (1, 2), (2, 3)]
    """
    yield first, last
    if last - first > 1:
        middle = (first + last) // 2
        yield from _halved(first, middle)
        yield from _halved(middle, last)


class _Verdict(NamedTuple):
    """What the rows that judge say of a patch."""

    gain: float
    error: float
    kept: bool
    loss: FloatArray
    moves: list[tuple[IntArray, float]]  # for each split, the rows that the patch moves, and how far


class Search:
    """Look for the cell whose patch lowers squared error most, have it confirmed, apply it, and look again.

    Hébert-Johnson, Kim, Reingold & Rothblum (2018), Algorithm 1, with the greatest cell in place of any.
    """

    def __init__(self, rows: Rows, rule: Rule, loss: TaskLoss) -> None:
        self.rows, self.rule, self.loss = rows, rule, loss
        self.y = rows.y[rows.first]
        self.member = np.ascontiguousarray(rows.member[:, rows.first])
        base = to_logits(rows.p) if rule.link == "logit" else rows.p
        self.edges = to_logits(rule.edges) if rule.link == "logit" else rule.edges
        self.ends = [-np.inf, *rule.edges.tolist(), np.inf]
        self.value = base[rows.first]
        self.hard = loss.name == "log" and bool(((rows.y == 0) | (rows.y == 1)).all())
        # Residuals are squared: of real outcomes, in a unit that keeps squares finite. A power of two loses no digit.
        largest = float(np.abs(rows.y - rows.p).max())
        self.unit = 2.0 ** np.floor(np.log2(largest)) if loss.name == "squared" and largest > 0 else 1.0
        self.spread = self._spread_by_score() if loss.name == "squared" else np.zeros(len(rows.p))
        self.levels = len(rule.edges) + 1
        self.spans = list(_halved(0, self.levels)) if rule.judged else [(at, at + 1) for at in range(self.levels)]
        self.sums = np.zeros((len(rows.groups), self.levels, 4))
        self.closed = np.zeros((len(rows.groups), len(self.spans)), bool)
        self.states = [base.copy() for _ in rows.splits] if rule.judged else []
        self.judging = np.any([valid for _, valid in rows.splits], axis=0)
        self.losses = self._loss(rows.y, base) if rule.judged else self._loss(self.y, self.value)
        self._add_up(np.arange(self.levels))
        tests = max(int((self.cells[0] >= rule.min_rows).sum()), 1)
        # The gain of a patch is about half as many standard errors as the bias it takes away.
        self.bar = max(FIRST_ROUND_ERRORS, float(-ndtri(FALSE / (2 * tests))) / 2)
        self.patches: list[Patch] = []
        self.tried: list[Round] = [Round(0, 0, 1.0, self._mean_loss(), 0.0, 0.0, kept=True)]
        self.ended = "none"

    def run(self) -> Iterator[Patch]:
        """Find one patch after another; ``ended`` says why there are no more."""
        failed = 0
        refused: Round | None = None
        while (cell := self._worst()) is not None:
            if len(self.patches) == self.rule.rounds or failed == REJECTED * self.rule.patience:
                self.ended = "rounds" if failed < REJECTED * self.rule.patience else "patience"
                break
            patch, inside = self._propose(cell)
            after = moved(self.value[inside], patch.shift, self.rule.bounds)
            verdict = self._judge(cell) if self.rule.judged else None
            if (after == self.value[inside]).all() or (verdict is not None and not verdict.kept):
                self.closed[cell] = True
                failed += self.rule.judged
                if verdict is not None:
                    refused = Round(len(self.tried), 0, 1.0, *self._judged(verdict), kept=False)
                continue
            failed, refused = 0, None
            self._apply(patch, inside, after, verdict)
            yield patch
        if refused is not None:
            self.tried.append(refused)

    # -------------------------------------------------------------- cells

    def _add_up(self, changed: IntArray) -> None:
        """Add up the cells of those levels whose rows have changed."""
        self.level = np.empty(len(self.value), np.int32)
        digitize(self.value, self.edges, self.level)
        again = np.zeros(self.levels, bool)
        again[changed] = True
        at = np.flatnonzero(again[self.level])
        p, total, square = self._leave(self.value[at]), self.rows.total[at], self.rows.square[at]
        rest = (self.y[at] - p) / self.unit
        null = square * self._variance(p, self.rows.first[at])
        self.sums[:, again] = 0.0
        tally(
            self.member, at, self.level[at], self.levels, total, total * rest, square * rest**2, null,
            self.sums.reshape(-1, 4),
        )  # fmt: skip
        self.cells = np.moveaxis(self._spanned(self.sums), 2, 0)

    def _variance(self, p: FloatArray, rows: IntArray) -> FloatArray:
        """Say how much outcomes of such predictions spread, whatever those of a cell happen to do.

        Rare events that did not happen have no spread of their own, nor have skewed outcomes without their tail.
        """
        return p * (1 - p) if self.hard else self.spread[rows]

    def _spread_by_score(self) -> FloatArray:
        """Take the mean squared residual of real outcomes among rows of about the same prediction."""
        p, w = self.rows.p, self.rows.weight
        parts = min(PARTS, max(len(p) // PART, 1))
        part = np.searchsorted(np.sort(p), p, side="left") * parts // len(p)
        squares = np.bincount(part, w * ((self.rows.y - p) / self.unit) ** 2)
        return np.asarray((squares / np.maximum(np.bincount(part, w), np.finfo(float).tiny))[part])

    def _spanned(self, sums: AnyArray) -> FloatArray:
        """Add up neighbouring levels, (groups, levels, k), over every span of them: (groups, spans, k)."""
        if len(self.spans) == self.levels:
            return sums
        return np.stack([sums[:, first:last].sum(axis=1) for first, last in self.spans], axis=1)

    def _worst(self) -> tuple[int, int] | None:
        """Find the open cell that is off by more than is let be, and whose patch lowers squared error most."""
        weight, rest, square, null = self.cells
        total = np.maximum(weight, np.finfo(float).tiny)
        off = (weight >= self.rule.min_rows) & (np.abs(rest) > self.rule.alpha / self.unit * total) & ~self.closed
        if self.rule.judged:  # one that is within noise could not be confirmed
            off &= rest**2 > self.bar**2 * np.maximum(square, null)
        drop = np.where(off, rest**2 / total, 0.0)
        at = int(np.argmax(drop))
        return divmod(at, len(self.spans)) if drop.flat[at] > 0 else None

    def _propose(self, cell: tuple[int, int]) -> tuple[Patch, IntArray]:
        number, (first, last) = cell[0], self.spans[cell[1]]
        group = self.rows.groups[number]
        inside = np.flatnonzero((self.member[group.set] == number) & (self.level >= first) & (self.level < last))
        value, y, w = self.value[inside], self.y[inside], self.rows.total[inside]
        shift = self._size(value, self.rows.first[inside], w, self.rows.square[inside])
        low, high = self.ends[first], self.ends[last]
        before, observed = (float((w * one).sum() / w.sum()) for one in (self._leave(value), y))
        rows = int(self.rows.count[inside].sum())
        return Patch(group.text, group.conditions, low, high, shift, rows, before, observed), inside

    def _size(self, value: FloatArray, rows: IntArray, w: FloatArray, square: FloatArray) -> float:
        """Say how far rows are to be moved: their mean residual, or the shift of logits that takes it away.

        Where rows judge, an estimate of z standard errors is shrunk by 1 - 1 / z^2, which is how much of its square is not
        noise.
        """
        p, total = self._leave(value), w.sum()
        rest = (self.rows.y[rows] - p) / self.unit
        gap = float((w * rest).sum() / total)
        if self.rule.judged:
            noise = max(float((square * rest**2).sum()), float((square * self._variance(p, rows)).sum()))
            signal = (gap * float(total)) ** 2
            gap *= 1 - noise / signal if signal > noise else 0.0
        if self.rule.link == "identity":
            return gap * self.unit
        target = float((w * p).sum() / total) + gap
        return float(shift_to(value, w, min(max(target, SMALLEST), 1 - SMALLEST)))

    def _apply(self, patch: Patch, inside: IntArray, after: FloatArray, verdict: _Verdict | None) -> None:
        touched = inside[after != self.value[inside]]
        before = self.level
        self.value[inside] = after
        there = np.empty(len(inside), np.int32)
        digitize(after, self.edges, there)
        self._add_up(np.union1d(before[inside], there))
        changed = np.zeros(self.sums.shape[:2], bool)
        for level in (before, self.level):  # what a rejected cell holds has changed: it may be proposed again
            known = self.member[:, touched]
            place = np.broadcast_to(level[touched], known.shape)[known >= 0]
            changed[known[known >= 0], place] = True
        self.closed[self._spanned(changed[:, :, None])[:, :, 0] > 0] = False
        self.patches.append(patch)
        if verdict is None:
            self.losses[inside] = self._loss(self.y[inside], after)
            loss = self._mean_loss()
            gain, error = self.tried[-1].loss - loss, 0.0
        else:
            self.losses, gain, error = verdict.loss, verdict.gain, verdict.error
            for state, (rows, shift) in zip(self.states, verdict.moves, strict=True):
                state[rows] = moved(state[rows], shift, self.rule.bounds)
            loss = self._mean_loss()
        self.tried.append(Round(len(self.patches), 0, 1.0, loss, gain, error, kept=True))

    # -------------------------------------------------------------- rows that judge

    def _judge(self, cell: tuple[int, int]) -> _Verdict:
        """Size the patch without the rows that judge it, and see what it does to their loss."""
        number, (first, last), w = cell[0], self.spans[cell[1]], self.rows.weight
        low, high = ([-np.inf, *self.edges, np.inf][end] for end in (first, last))
        group = np.flatnonzero(self.rows.member[self.rows.groups[number].set] == number)
        after, moves, null = self.losses.copy(), [], 0.0
        for state, (train, valid) in zip(self.states, self.rows.splits, strict=True):
            inside = group[(state[group] >= low) & (state[group] < high)]
            own, held = inside[train[inside]], inside[valid[inside]]
            shift = self._size(state[own], own, w[own], w[own] ** 2) if len(own) else 0.0
            moves.append((inside, shift))
            old = state[held]
            new = moved(old, shift, self.rule.bounds)
            after[held] = self._loss(self.rows.y[held], new)
            null += float((w[held] ** 2 * self._slope(old, new) ** 2 * self._variance(self._leave(old), held)).sum())
        weight = w[self.judging]
        gain, error, carried = paired_gain((self.losses - after)[self.judging], weight)
        error = max(error, float(self.unit * np.sqrt(null) / weight.sum()))
        needed = self.bar * (1 + SMALL_SAMPLE_ROWS / (carried - 1)) * error if carried > 1 else np.inf
        kept = gain > max(needed, MIN_RELATIVE_GAIN * abs(self.tried[0].loss))
        return _Verdict(gain, error, kept, after, moves)

    def _judged(self, verdict: _Verdict) -> tuple[float, float, float]:
        loss = float(np.average(verdict.loss[self.judging], weights=self.rows.weight[self.judging]))
        return loss, verdict.gain, verdict.error if np.isfinite(verdict.error) else 0.0

    def _mean_loss(self) -> float:
        if self.rule.judged:
            return float(np.average(self.losses[self.judging], weights=self.rows.weight[self.judging]))
        return float(np.average(self.losses, weights=self.rows.total))

    def held(self) -> tuple[IntArray, FloatArray]:
        """Give the rows that judge, by their place in the table, and their scores by patches sized without them."""
        base = to_logits(self.rows.p) if self.rule.link == "logit" else self.rows.p
        scores = self.rows.p.copy()
        for state, (_, valid) in zip(self.states, self.rows.splits, strict=True):
            at = np.flatnonzero(valid & (state != base))  # a row that no patch is for keeps its score to the last bit
            scores[at] = self._leave(state[at])
        return self.rows.order[self.judging], scores[self.judging]

    # -------------------------------------------------------------- scales

    def _leave(self, value: FloatArray) -> FloatArray:
        return np.asarray(expit(value)) if self.rule.link == "logit" else value

    def _logit(self, value: FloatArray) -> FloatArray:
        return value if self.rule.link == "logit" else apply_link(value, "logit")[:, 0]

    def _slope(self, old: FloatArray, new: FloatArray) -> FloatArray:
        """Say how the gain of a row, which is linear in its outcome, changes with that."""
        return self._logit(new) - self._logit(old) if self.loss.name == "log" else 2 * (new - old)

    def _loss(self, y: FloatArray, value: FloatArray) -> FloatArray:
        F = self._logit(value) if self.loss.name == "log" else value
        return self.loss.per_row(y, F[:, None])
