"""Grow cascades: one more round for every fold at once, judged together on the rows each fold left out."""

from __future__ import annotations

from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from trueup.calibrators.losses import THETA
from trueup.calibrators.maps.cascade import Cascade, CascadeRound
from trueup.calibrators.rounds import Split
from trueup.engines.trees import Binned, Grower, Growth, Joined, quiet
from trueup.kernels.threads import Workers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from trueup.calibrators.losses import TaskLoss
    from trueup.data.table import Table
    from trueup.kernels.trees import Forest

    Floats = NDArray[np.float64]
    Progress = Callable[[int, int], None]

__all__ = ["Cascades", "Limits"]

CHUNK = 5  # trees that a fold grows at a time
LEAD = 20  # trees by which a fold may run ahead of the others
FEW = 40  # a round of fewer trees than this takes coarse steps
LESS = 1e-9  # a loss counts as lower where it is by this share: sums differ by the number of threads


@dataclass(frozen=True)
class Limits:
    """How far a round may go: ``trees`` in each model, fewer where ``patience`` of them bring nothing.

    Where a few trees are enough, ``finer`` is a lower learning rate that the first round tries as well.
    """

    trees: int
    patience: int
    finer: float | None = None


@dataclass(eq=False)
class Cascades:
    """One cascade for each split, grown together round by round.

    Parameters
    ----------
    table : Table
        All rows, those that judge included.
    loss : TaskLoss
    splits : sequence of Split
    growth : Growth
    limits : Limits
    weight : ndarray or None
        On the scale on which the trees see it.
    workers : Workers
    progress : callable, optional
        Told the trees of a round so far and the most there may be.
    binned : Binned, optional
        The features of the table, where they are binned already.
    rescale : bool
        Whether a round ends with the factor that is best; without, the factor is 1.
    starts : sequence of ndarray, optional
        For each split the score to start from, on the scale of the trees, in place of the prediction.
    """

    table: Table
    loss: TaskLoss
    splits: Sequence[Split]
    growth: Growth
    limits: Limits
    weight: Floats | None
    workers: Workers
    progress: Progress | None = None
    binned: Binned | None = None
    rescale: bool = True
    starts: Sequence[Floats] | None = None
    rounds: list[CascadeRound] = field(default_factory=list, init=False)
    best: Floats | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._growing = Workers(self.workers.threads, begin=quiet)
        features = self.table.schema.features
        assert self.table.outcome is not None
        self.y: Floats = self.table.outcome
        self.levels = self.table.schema.levels
        columns = [self.table.columns[one.name] for one in features]
        if self.binned is None:
            everywhere = replace(self.growth, threads=self.workers.threads)
            self.binned = Binned(columns, [level >= 0 for level in self.levels], everywhere)
        threads = max(1, self.workers.threads // len(self.splits))
        self.growths = [replace(self.growth, seed=self.growth.seed + at, threads=threads) for at in range(len(self.splits))]
        start = self.loss.enter(self.table.prediction)
        self.F = [start] * len(self.splits) if self.starts is None else list(self.starts)
        self.scale = self._unit(start)

    @property
    def judged(self) -> NDArray[np.int64]:
        """Give the rows that judge, in the order in which their losses come; all rows where none were left out."""
        held = np.concatenate([split.valid for split in self.splits])
        return held if len(held) else np.arange(len(self.y))

    def losses(self) -> Iterator[Floats]:
        """Give the losses of the rows that judge: of the base score, then after each round, grown when asked for."""
        yield self._held(self.F)
        while True:
            self.grow()
            yield self._held(self.F)

    def _unit(self, start: Floats) -> float:
        """Measure residuals of a real outcome in their own spread, so that no unit makes them large or small."""
        if self.loss.name != "squared":
            return 1.0
        spread = float(np.sqrt(np.average((self.y - start[:, 0]) ** 2, weights=self.weight)))
        return spread if spread > 0 else 1.0

    def _held(self, F: Sequence[Floats]) -> Floats:
        if not any(len(split.valid) for split in self.splits):
            return self.loss.each(self.y, F[0])
        return np.concatenate([self.loss.each(self.y[s.valid], f[s.valid]) for s, f in zip(self.splits, F, strict=True)])

    def refit(self, kept: Sequence[CascadeRound]) -> tuple[CascadeRound, ...]:
        """Grow the same rounds once more, on all rows."""
        rows = np.arange(len(self.y))
        whole = replace(self, splits=[Split(rows, rows[:0])], binned=self.binned)
        for one in kept:
            whole.limits = Limits(one.trees, one.trees)
            whole.grow(one.theta)
        return tuple(whole.rounds)

    def held(self) -> Floats:
        """Give the scores of the rows that judge, on the scale of the trees, each by a cascade that has not seen it."""
        return self._of_judged(self.F)

    def remember(self) -> None:
        """Keep these scores as the best so far; what was kept before goes."""
        self.best = self.held()

    def grow(self, theta: float | None = None) -> None:
        """Grow one more round, with the factor that is best or with a given one."""
        growers, trees, lowest = self._grown(self.growths)
        if self.limits.finer is not None and not self.rounds and trees < FEW:
            finer = self._grown([replace(growth, learning_rate=self.limits.finer) for growth in self.growths])
            growers, trees, lowest = min((growers, trees, lowest), finer, key=lambda found: found[2])
        forests = tuple(grower.forest(trees).scaled(self.scale) for grower in growers)
        moved = [self._move(forest, f) for forest, f in zip(forests, self.F, strict=True)]
        if theta is None:
            theta = self._theta(moved) if self.rescale else 1.0
        self.F = [theta * f for f in moved]
        self.rounds.append(CascadeRound(theta, forests, trees))

    def _grown(self, growths: Sequence[Growth]) -> tuple[list[Grower], int, float]:
        """Grow one round: the growers, the best number of trees, and the loss of the rows that judge."""
        # Where all folds start from one score, they share its column in the first round.
        shared = None if self.rounds or self.starts is not None else self._joined(0, growths[0])
        growers = self._growing.map(lambda at: self._grower(at, growths[at], shared), range(len(self.splits)))
        return growers, *self._grow(growers)

    def _joined(self, at: int, growth: Growth) -> Joined:
        assert self.binned is not None
        F = self.F[at]
        if self.loss.name == "squared":
            # Labels are single precision inside LightGBM: the residual keeps its digits where the outcome would not.
            label, start = (self.y - F[:, 0]) / self.scale, None
        else:
            label, start = self.y, F
        return self.binned.join(F, label, self.weight, start, growth)

    def _grower(self, at: int, growth: Growth, shared: Joined | None) -> Grower:
        assert self.binned is not None
        split = self.splits[at]
        data = self._joined(at, growth) if shared is None else shared
        whole = len(split.train) == len(self.y)
        return Grower(self.binned, data, None if whole else split.train, split.valid, growth)

    def _grow(self, growers: Sequence[Grower]) -> tuple[int, float]:
        """Grow until the trees bring nothing more on the rows that judge; give the number that is best.

        Each free thread takes the fold that is furthest behind; what is chosen does not depend on who ran ahead.
        """
        mass = [float(len(s.valid) if self.weight is None else self.weight[s.valid].sum()) for s in self.splits]
        if not any(mass):
            self._growing.map(partial(Grower.grow, trees=self.limits.trees), growers)
            return self.limits.trees, 0.0
        search = _Search(mass, self.limits)
        running: dict[Future[list[float]], int] = {}
        with ThreadPoolExecutor(min(self.workers.threads, len(growers)), initializer=quiet) as pool:
            while True:
                for at in search.behind(set(running.values()), self.workers.threads - len(running)):
                    many = min(CHUNK, self.limits.trees - len(search.losses[at]))
                    running[pool.submit(growers[at].grow, many)] = at
                if not running:
                    break
                for done in wait(running, return_when=FIRST_COMPLETED).done:
                    search.losses[running.pop(done)] += done.result()
                if search.over():
                    break
                if self.progress is not None:
                    self.progress(search.seen, self.limits.trees)
        return search.best, search.lowest

    def _move(self, forest: Forest, F: Floats) -> Floats:
        one = Cascade("identity", self.levels, F.shape[1], (CascadeRound(1.0, (forest,), 0),))
        return one.apply(self.table.columns.values(), F, self.workers)

    def _of_judged(self, F: Sequence[Floats]) -> Floats:
        rows = self.judged
        return np.concatenate([f[s.valid if len(s.valid) else rows] for f, s in zip(F, self.splits, strict=True)])

    def _theta(self, F: Sequence[Floats]) -> float:
        """Rescale by the rows that judge: on the rows that were trained on, trees look surer than they are."""
        rows = self.judged
        weight = None if self.weight is None else self.weight[rows]
        found = self.loss.theta(self.y[rows], self._of_judged(F), weight)
        before = float(np.prod([one.theta for one in self.rounds]))
        return min(max(found, THETA[0] / before), THETA[1] / before)  # the bounds are those of all rounds together


class _Search:
    """The losses of all folds, tree by tree, and the number of trees that is best for them together."""

    def __init__(self, mass: Sequence[float], limits: Limits) -> None:
        self.mass, self.limits = mass, limits
        self.losses: list[list[float]] = [[] for _ in mass]
        self.seen, self.best, self.lowest = 0, 0, np.inf

    def behind(self, running: set[int], free: int) -> list[int]:
        """Name the folds to go on with: those with the fewest trees, none far ahead of the others."""
        grown = [len(losses) for losses in self.losses]
        most = min(self.limits.trees, min(grown) + LEAD)
        waiting = sorted((many, at) for at, many in enumerate(grown) if at not in running and many < most)
        return [at for _, at in waiting[:free]]

    def over(self) -> bool:
        """Read the trees that all folds have; say whether the best number of them is known."""
        while self.seen < min(map(len, self.losses)):
            loss = float(np.average([losses[self.seen] for losses in self.losses], weights=self.mass))
            self.seen += 1
            if loss < self.lowest - LESS * abs(self.lowest) or self.best == 0:
                self.best, self.lowest = self.seen, loss
            if self.seen - self.best >= self.limits.patience:
                return True
        return self.seen >= self.limits.trees
