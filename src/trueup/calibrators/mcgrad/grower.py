"""Grow cascades: one more round for every fold at once, judged together on the rows each fold left out.

The rows may lie with several workers, each of which runs this on its own part: whatever is a sum over rows is
one over all of them, so that all members take the same steps and hold the same trees in the end.
"""

from __future__ import annotations

from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from trueup.calibrators.losses import THETA_BOUNDS
from trueup.calibrators.mcgrad.cascade import Cascade, CascadeRound
from trueup.calibrators.stopping import Split, weighted_mean
from trueup.cluster.communicator import SINGLE_PROCESS
from trueup.kernels.threads import Workers
from trueup.learners.lightgbm import (
    BinnedDataset,
    GrowthParameters,
    Joined,
    TreeGrower,
    connect_workers,
    release_memory,
    silence,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trueup._types import FloatArray, IntArray
    from trueup.calibrators.losses import TaskLoss
    from trueup.cluster.communicator import Communicator
    from trueup.data.table import Table
    from trueup.kernels.trees import Forest

    Progress = Callable[[int, int], None]

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
class CascadeGrower:
    """One cascade for each split, grown together round by round.

    Parameters
    ----------
    table : Table
        All rows, those that judge included.
    loss : TaskLoss
    splits : sequence of Split
    growth : GrowthParameters
    limits : Limits
    weight : ndarray or None
        On the scale on which the trees see it.
    workers : Workers
    progress : callable, optional
        Told the trees of a round so far and the most there may be.
    binned : BinnedDataset, optional
        The features of the table, where they are binned already.
    rescale : bool
        Whether a round ends with the factor that is best; without, the factor is 1.
    starts : sequence of ndarray, optional
        For each split the score to start from, on the scale of the trees, in place of the prediction.
    communicator : Communicator
        Who holds the other rows; the table and the splits speak of those that are here. No rows at all are fine, as long as
        others have some. All must be told the same of everything else, but for the threads of each.
    given : sequence of CascadeRound
        Rounds that were grown before, on the same rows: `losses` applies them before it grows any.
    sample : Table, optional
        Rows from which bins are found in place of those of the table, the same for all workers.
    finished : callable, optional
        Told all rounds so far by `losses`, whenever it has grown one.
    """

    table: Table
    loss: TaskLoss
    splits: Sequence[Split]
    growth: GrowthParameters
    limits: Limits
    weight: FloatArray | None
    workers: Workers
    progress: Progress | None = None
    binned: BinnedDataset | None = None
    rescale: bool = True
    starts: Sequence[FloatArray] | None = None
    communicator: Communicator = SINGLE_PROCESS
    given: Sequence[CascadeRound] = ()
    sample: Table | None = None
    finished: Callable[[Sequence[CascadeRound]], None] | None = None
    rounds: list[CascadeRound] = field(default_factory=list, init=False)
    best: FloatArray | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        threads = self.workers.threads
        together = self.communicator.size > 1  # one fold after the other then, so that all talk about the same tree
        connect_workers(self.communicator.addresses, self.communicator.rank)
        # LightGBM would talk to the others about the Dataset that `quiet` makes; whoever opened its network was quiet.
        self._growing = Workers(1) if together else Workers(threads, begin=silence)
        assert self.table.outcome is not None
        self.y: FloatArray = self.table.outcome
        self.levels = self.table.schema.levels
        assert not together or self.sample is not None, "a team finds its bins from rows that all of it knows"
        if self.binned is None:
            self.binned = self._bins(replace(self.growth, threads=threads))
        each = threads if together else max(1, threads // len(self.splits))
        told = replace(self.growth, threads=each, machines=self.communicator.size)
        self.growths = [replace(told, seed=told.seed + at) for at in range(len(self.splits))]
        start = self.loss.apply_link(self.table.prediction)
        self.F = [start] * len(self.splits) if self.starts is None else list(self.starts)
        assert self.sample is None or self.starts is None, "a sample starts from its own predictions"
        self.samples = None if self.sample is None else [self.loss.apply_link(self.sample.prediction)] * len(self.splits)
        self.scale = self._unit(start)
        self._judging = bool(self.communicator.all_reduce_sum([sum(len(split.valid) for split in self.splits)])[0])

    def _bins(self, growth: GrowthParameters) -> BinnedDataset:
        """Cut the features into bins, those of the sample where there is one."""
        kinds = [level >= 0 for level in self.levels]
        names = [one.name for one in self.table.schema.features]
        like = None
        if self.sample is not None:
            like = BinnedDataset([self.sample.columns[name] for name in names], kinds, growth)
        return BinnedDataset([self.table.columns[name] for name in names], kinds, growth, reference=like)

    @property
    def judged(self) -> IntArray:
        """Give the rows that judge, in the order in which their losses come; all rows where none were left out."""
        held = np.concatenate([split.valid for split in self.splits])
        return held if self._judging else np.arange(len(self.y))

    def losses(self) -> Iterator[FloatArray]:
        """Give the losses of the rows that judge: of the base score, then after each round, grown when asked for."""
        yield self._held(self.F)
        for one in self.given:
            self._advance(one.forests, one.trees, one.theta)
            yield self._held(self.F)
        while True:
            self.grow()
            if self.finished is not None:
                self.finished(self.rounds)
            yield self._held(self.F)

    def _unit(self, start: FloatArray) -> float:
        """Measure residuals of a real outcome in their own spread, so that no unit makes them large or small."""
        if self.loss.name != "squared":
            return 1.0
        spread = float(np.sqrt(weighted_mean((self.y - start[:, 0]) ** 2, self.weight, self.communicator)))
        return spread if spread > 0 else 1.0

    def _held(self, F: Sequence[FloatArray]) -> FloatArray:
        if not self._judging:
            return self.loss.per_row(self.y, F[0])
        return np.concatenate([self.loss.per_row(self.y[s.valid], f[s.valid]) for s, f in zip(self.splits, F, strict=True)])

    def refit(self, kept: Sequence[CascadeRound]) -> tuple[CascadeRound, ...]:
        """Grow the same rounds once more, on all rows."""
        rows = np.arange(len(self.y))
        whole = replace(self, splits=[Split(rows, rows[:0])], binned=self.binned, given=())
        for one in kept:
            whole.limits = Limits(one.trees, one.trees)
            whole.grow(one.theta)
        return tuple(whole.rounds)

    def held(self) -> FloatArray:
        """Give the scores of the rows that judge, on the scale of the trees, each by a cascade that has not seen it."""
        return self._of_judged(self.F)

    def remember(self) -> None:
        """Keep these scores as the best so far; what was kept before goes."""
        self.best = self.held()

    def grow(self, theta: float | None = None) -> None:
        """Grow one more round, with the factor that is best or with a given one."""
        forests, trees, lowest = self._grown(self.growths)
        if self.limits.finer is not None and not self.rounds and trees < FEW:
            finer = self._grown([replace(growth, learning_rate=self.limits.finer) for growth in self.growths])
            forests, trees, lowest = min((forests, trees, lowest), finer, key=lambda found: found[2])
        self._advance(forests, trees, theta)

    def _advance(self, forests: tuple[Forest, ...], trees: int, theta: float | None) -> None:
        """Add a round to the scores, with the factor that is best or with a given one."""
        for at, forest in enumerate(forests):  # one fold at a time: there is a score for each row in every one
            self.F[at] = self._move(forest, self.F[at], self.table)
        if theta is None:
            theta = self._theta(self.F) if self.rescale else 1.0
        for f in self.F:
            np.multiply(theta, f, out=f)
        if self.samples is not None:
            assert self.sample is not None
            moved = [self._move(forest, f, self.sample) for forest, f in zip(forests, self.samples, strict=True)]
            self.samples = [theta * f for f in moved]
        self.rounds.append(CascadeRound(theta, forests, trees))

    def _grown(self, growths: Sequence[GrowthParameters]) -> tuple[tuple[Forest, ...], int, float]:
        """Grow one round: its forests, the best number of trees, and the loss of the rows that judge."""
        growers = self._growers(growths)
        trees, lowest = self._grow(growers)
        forests = tuple(grower.forest(trees).scaled(self.scale) for grower in growers)
        del growers  # most of what a fit holds
        release_memory()
        return forests, trees, lowest

    def _growers(self, growths: Sequence[GrowthParameters]) -> list[TreeGrower]:
        # Where all folds start from one score, they share its column in the first round.
        shared = None if self.rounds or self.starts is not None else self._joined(0, growths[0])
        return self._growing.map(lambda at: self._grower(at, growths[at], shared), range(len(self.splits)))

    def _joined(self, at: int, growth: GrowthParameters) -> Joined:
        assert self.binned is not None
        F = self.F[at]
        if self.loss.name == "squared":
            # Labels are single precision inside LightGBM: the residual keeps its digits where the outcome would not.
            label, start = (self.y - F[:, 0]) / self.scale, None
        else:
            label, start = self.y, F
        some = None if self.samples is None else self.samples[at]
        return self.binned.join(F, label, self.weight, start, growth, sample=some)

    def _grower(self, at: int, growth: GrowthParameters, shared: Joined | None) -> TreeGrower:
        assert self.binned is not None
        split = self.splits[at]
        data = self._joined(at, growth) if shared is None else shared
        whole = len(split.train) == len(self.y)
        return TreeGrower(self.binned, data, None if whole else split.train, split.valid, growth)

    def _grow(self, growers: Sequence[TreeGrower]) -> tuple[int, float]:
        """Grow until the trees bring nothing more on the rows that judge; give the number that is best.

        Each free thread takes the fold that is furthest behind; what is chosen does not depend on who ran ahead.
        """
        mass = [float(len(s.valid) if self.weight is None else self.weight[s.valid].sum()) for s in self.splits]
        if not self._judging:
            self._growing.map(partial(TreeGrower.grow, trees=self.limits.trees), growers)
            return self.limits.trees, 0.0
        if self.communicator.size > 1:
            return self._grow_together(growers, np.array(mass))
        search = _Search(mass, self.limits)
        running: dict[Future[list[float]], int] = {}
        with ThreadPoolExecutor(min(self.workers.threads, len(growers)), initializer=silence) as pool:
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

    def _grow_together(self, growers: Sequence[TreeGrower], own: FloatArray) -> tuple[int, float]:
        """Do the same with a team: a few trees of every fold in turn, then the losses of all members are put together."""
        mass = self.communicator.all_reduce_sum(own)
        search = _Search(mass.tolist(), self.limits)
        while True:
            many = min(CHUNK, self.limits.trees - search.seen)
            losses = np.array([grower.grow(many) or [0.0] * many for grower in growers])  # nothing where no row judges
            summed = self.communicator.all_reduce_sum((own[:, None] * losses).ravel()).reshape(losses.shape)
            for at, found in enumerate(summed / np.where(mass > 0, mass, 1.0)[:, None]):
                search.losses[at] += found.tolist()
            if search.over():
                return search.best, search.lowest
            if self.progress is not None:
                self.progress(search.seen, self.limits.trees)

    def _move(self, forest: Forest, F: FloatArray, table: Table) -> FloatArray:
        one = Cascade("identity", self.levels, F.shape[1], (CascadeRound(1.0, (forest,), 0),))
        return one.apply(table.columns.values(), F, self.workers)

    def _of_judged(self, F: Sequence[FloatArray]) -> FloatArray:
        rows = self.judged
        return np.concatenate([f[s.valid if self._judging else rows] for f, s in zip(F, self.splits, strict=True)])

    def _theta(self, F: Sequence[FloatArray]) -> float:
        """Rescale by the rows that judge: on the rows that were trained on, trees look surer than they are."""
        rows = self.judged
        weight = None if self.weight is None else self.weight[rows]
        found = self.loss.theta(self.y[rows], self._of_judged(F), weight, self.communicator)
        before = float(np.prod([one.theta for one in self.rounds]))
        return min(max(found, THETA_BOUNDS[0] / before), THETA_BOUNDS[1] / before)


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
