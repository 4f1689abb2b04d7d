"""Growth of cascades: one more round for every fold at once, evaluated together on the rows each fold held out.

The rows may be distributed over several workers, each of which runs this code on its own rows: every sum over rows is an
all-reduce, so that all workers take the same steps and hold the same trees in the end.
"""

from __future__ import annotations

from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.calibrators.mcgrad.cascade import Cascade, CascadeRound
from trueup.calibrators.stopping import THETA_BOUNDS, Split, hold_out_last, weighted_mean
from trueup.cluster.communicator import SINGLE_PROCESS
from trueup.kernels.threads import Workers
from trueup.learners.lightgbm import (
    BinnedDataset,
    GrowthParameters,
    TreeGrower,
    connect_workers,
    release_memory,
    silence,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trueup._types import FloatArray, IntArray
    from trueup.calibrators.stopping import TaskLoss
    from trueup.cluster.communicator import Communicator
    from trueup.data.table import Table
    from trueup.kernels.trees import Forest

    Progress = Callable[[int, int], None]

TREES_PER_STEP = 5  # trees a fold grows at a time
MAX_LEAD = 20  # trees by which a fold may be ahead of the others
FEW_TREES = 40  # a first round of fewer trees also tries the lower learning rate
LOSS_TOLERANCE = 1e-9  # a loss is lower if it is by this share: sums differ with the number of threads


@dataclass(frozen=True)
class RoundLimits:
    """When a round stops growing."""

    trees: int  # maximum of each model
    patience: int  # number of trees without improvement
    finer: float | None = None  # a lower learning rate that the first round also tries if few trees are enough


@dataclass(eq=False)
class CascadeGrower:
    """One cascade per split, grown together round by round.

    The table holds all rows of this worker, held-out rows included; it may be empty if other workers have rows. All workers
    pass the same arguments except for rows and threads.
    """

    table: Table
    loss: TaskLoss
    splits: Sequence[Split]
    growth: GrowthParameters
    limits: RoundLimits
    weight: FloatArray | None  # as returned by `scale_weights`
    workers: Workers
    progress: Progress | None = None  # called with the number of trees of the round so far and the maximum
    binned: BinnedDataset | None = None  # the features of the table, if they are binned already
    rescale: bool = True  # whether a round ends with the best factor theta; if not, theta is 1
    starts: Sequence[FloatArray] | None = None  # initial scores of each split, instead of the link of the prediction
    communicator: Communicator = SINGLE_PROCESS
    given: Sequence[CascadeRound] = ()  # rounds grown before on the same rows: `losses` applies them first
    sample: Table | None = None  # rows that determine the bins, the same for all workers
    on_round: Callable[[Sequence[CascadeRound]], None] | None = None  # called with all rounds so far after a new one
    rounds: list[CascadeRound] = field(default_factory=list, init=False)
    best: FloatArray | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        threads = self.workers.threads
        distributed = self.communicator.size > 1  # then folds are grown in turn, so that all workers grow the same tree
        connect_workers(self.communicator.addresses, self.communicator.rank)
        # `silence` makes a Dataset, which LightGBM would synchronise with other workers; `connect_workers` has called it.
        self._fold_workers = Workers(1) if distributed else Workers(threads, begin=silence)
        assert self.table.outcome is not None
        self.y: FloatArray = self.table.outcome
        self.levels = self.table.schema.levels
        assert not distributed or self.sample is not None, "workers need a common sample to find bins from"
        if self.binned is None:
            self.binned = self._bin_features(replace(self.growth, threads=threads))
        per_fold = threads if distributed else max(1, threads // len(self.splits))
        growth = replace(self.growth, threads=per_fold, machines=self.communicator.size)
        self.growths = [replace(growth, seed=growth.seed + fold) for fold in range(len(self.splits))]
        start = self.loss.apply_link(self.table.prediction)
        self.F = [start] * len(self.splits) if self.starts is None else list(self.starts)
        assert self.sample is None or self.starts is None, "a sample starts from its own predictions"
        self.sample_F = None
        if self.sample is not None:
            self.sample_F = [self.loss.apply_link(self.sample.prediction)] * len(self.splits)
        self.scale = 1.0
        if self.loss.name == "squared":  # residuals are measured in their standard deviation, whatever their unit
            spread = weighted_mean((self.y - start[:, 0]) ** 2, self.weight, self.communicator)
            self.scale = float(np.sqrt(spread)) or 1.0
        held_out = self.communicator.all_reduce_sum([sum(len(split.valid) for split in self.splits)])
        self._has_held_out = bool(held_out[0])

    def _bin_features(self, growth: GrowthParameters) -> BinnedDataset:
        categorical = [level >= 0 for level in self.levels]
        names = [feature.name for feature in self.table.schema.features]
        like = None
        if self.sample is not None:
            like = BinnedDataset([self.sample.columns[name] for name in names], categorical, growth)
        return BinnedDataset([self.table.columns[name] for name in names], categorical, growth, reference=like)

    @property
    def evaluated_rows(self) -> IntArray:
        """Return the held-out rows in the order of their losses; all rows if none are held out."""
        held_out = np.concatenate([split.valid for split in self.splits])
        return held_out if self._has_held_out else np.arange(len(self.y))

    def held_out_scores(self) -> FloatArray:
        """Return the scores of the evaluated rows on the scale of the link, each by a cascade not trained on it."""
        if not self._has_held_out:
            return np.concatenate([F[self.evaluated_rows] for F in self.F])
        return np.concatenate([F[split.valid] for F, split in zip(self.F, self.splits, strict=True)])

    def keep_best(self) -> None:
        """Keep the scores of the evaluated rows as the best so far."""
        self.best = self.held_out_scores()

    def losses(self) -> Iterator[FloatArray]:
        """Yield the losses of the evaluated rows: of the base score, then after each round, grown when requested."""
        yield self._evaluate()
        for round_ in self.given:
            self._apply_round(round_.forests, round_.trees, round_.theta)
            yield self._evaluate()
        while True:
            self.grow()
            if self.on_round is not None:
                self.on_round(self.rounds)
            yield self._evaluate()

    def _evaluate(self) -> FloatArray:
        if not self._has_held_out:
            return self.loss.per_row(self.y, self.F[0])
        pairs = zip(self.splits, self.F, strict=True)
        return np.concatenate([self.loss.per_row(self.y[split.valid], F[split.valid]) for split, F in pairs])

    def refit(self, kept: Sequence[CascadeRound]) -> tuple[CascadeRound, ...]:
        """Grow the same numbers of rounds and trees once more, on all rows."""
        grower = replace(self, splits=hold_out_last(len(self.y)), binned=self.binned, given=())
        for round_ in kept:
            grower.limits = RoundLimits(round_.trees, round_.trees)
            grower.grow(round_.theta)
        return tuple(grower.rounds)

    def grow(self, theta: float | None = None) -> None:
        """Grow one more round, with the best factor or with a given one."""
        forests, trees, lowest = self._grow_forests(self.growths)
        if self.limits.finer is not None and not self.rounds and trees < FEW_TREES:
            finer = self._grow_forests([replace(growth, learning_rate=self.limits.finer) for growth in self.growths])
            forests, trees, lowest = min((forests, trees, lowest), finer, key=lambda candidate: candidate[2])
        self._apply_round(forests, trees, theta)

    def _apply_round(self, forests: tuple[Forest, ...], trees: int, theta: float | None) -> None:
        """Add a round to the scores, with the best factor or with a given one."""
        for fold, forest in enumerate(forests):  # one fold at a time: each has a score for every row
            self.F[fold] = self._add_forest(forest, self.F[fold], self.table)
        if theta is None:
            theta = self._best_theta() if self.rescale else 1.0
        for F in self.F:
            np.multiply(theta, F, out=F)
        if self.sample_F is not None:
            assert self.sample is not None
            added = [self._add_forest(forest, F, self.sample) for forest, F in zip(forests, self.sample_F, strict=True)]
            self.sample_F = [theta * F for F in added]
        self.rounds.append(CascadeRound(theta, forests, trees))

    def _add_forest(self, forest: Forest, F: FloatArray, table: Table) -> FloatArray:
        cascade = Cascade("identity", self.levels, F.shape[1], (CascadeRound(1.0, (forest,), 0),))
        return cascade.apply(table.columns.values(), F, self.workers)

    def _best_theta(self) -> float:
        """Return the factor that is best on the evaluated rows: on training rows, trees look more certain than they are.

        Its bounds hold for the product of the factors of all rounds.
        """
        rows = self.evaluated_rows
        weight = None if self.weight is None else self.weight[rows]
        theta = self.loss.theta(self.y[rows], self.held_out_scores(), weight, self.communicator)
        before = float(np.prod([round_.theta for round_ in self.rounds]))
        return min(max(theta, THETA_BOUNDS[0] / before), THETA_BOUNDS[1] / before)

    def _grow_forests(self, growths: Sequence[GrowthParameters]) -> tuple[tuple[Forest, ...], int, float]:
        """Grow one round: its forests, the best number of trees, and the loss of the held-out rows."""
        # All folds that start from the same score share its Dataset in the first round.
        shared = None if self.rounds or self.starts is not None else self._dataset(0, growths[0])

        def start_fold(fold: int) -> TreeGrower:
            assert self.binned is not None
            data = self._dataset(fold, growths[fold]) if shared is None else shared
            train, valid = self.splits[fold].train, self.splits[fold].valid
            return TreeGrower(self.binned, data, None if len(train) == len(self.y) else train, valid, growths[fold])

        growers = self._fold_workers.map(start_fold, range(len(self.splits)))
        trees, lowest = self._grow_trees(growers)
        forests = tuple(grower.forest(trees).scaled(self.scale) for grower in growers)
        growers, shared = [], None  # most of the memory of a fit
        release_memory()
        return forests, trees, lowest

    def _dataset(self, fold: int, growth: GrowthParameters) -> Any:
        assert self.binned is not None
        F = self.F[fold]
        if self.loss.name == "squared":
            # Labels are single precision inside LightGBM: the residual keeps its digits where the outcome would not.
            label, start = (self.y - F[:, 0]) / self.scale, None
        else:
            label, start = self.y, F
        sample = None if self.sample_F is None else self.sample_F[fold]
        return self.binned.with_prediction(F, label, self.weight, start, growth, sample=sample)

    def _grow_trees(self, growers: Sequence[TreeGrower]) -> tuple[int, float]:
        """Grow until more trees no longer improve the held-out loss; return the best number and its loss.

        Each free thread takes the fold with the fewest trees; the result does not depend on which fold was ahead.
        """
        mass = [float(len(s.valid) if self.weight is None else self.weight[s.valid].sum()) for s in self.splits]
        if not self._has_held_out:
            self._fold_workers.map(partial(TreeGrower.grow, trees=self.limits.trees), growers)
            return self.limits.trees, 0.0
        if self.communicator.size > 1:
            return self._grow_trees_distributed(growers, np.array(mass))
        search = _TreeSearch(mass, self.limits)
        running: dict[Future[list[float]], int] = {}
        with ThreadPoolExecutor(min(self.workers.threads, len(growers)), initializer=silence) as pool:
            while True:
                for fold in search.next_folds(set(running.values()), self.workers.threads - len(running)):
                    count = min(TREES_PER_STEP, self.limits.trees - len(search.losses[fold]))
                    running[pool.submit(growers[fold].grow, count)] = fold
                if not running:
                    break
                for done in wait(running, return_when=FIRST_COMPLETED).done:
                    search.losses[running.pop(done)] += done.result()
                if search.finished():
                    break
                if self.progress is not None:
                    self.progress(search.seen, self.limits.trees)
        return search.best, search.lowest

    def _grow_trees_distributed(self, growers: Sequence[TreeGrower], local_mass: FloatArray) -> tuple[int, float]:
        """Grow a few trees of every fold in turn, then average the losses over all workers."""
        mass = self.communicator.all_reduce_sum(local_mass)
        search = _TreeSearch(mass.tolist(), self.limits)
        while True:
            count = min(TREES_PER_STEP, self.limits.trees - search.seen)
            losses = np.array([grower.grow(count) or [0.0] * count for grower in growers])  # 0 without held-out rows
            sums = self.communicator.all_reduce_sum((local_mass[:, None] * losses).ravel()).reshape(losses.shape)
            for fold, means in enumerate(sums / np.where(mass > 0, mass, 1.0)[:, None]):
                search.losses[fold] += means.tolist()
            if search.finished():
                return search.best, search.lowest
            if self.progress is not None:
                self.progress(search.seen, self.limits.trees)


class _TreeSearch:
    """The losses of all folds after each tree, and the number of trees that is best for all folds together."""

    def __init__(self, mass: Sequence[float], limits: RoundLimits) -> None:
        self.mass, self.limits = mass, limits
        self.losses: list[list[float]] = [[] for _ in mass]
        self.seen, self.best, self.lowest = 0, 0, np.inf

    def next_folds(self, running: set[int], free: int) -> list[int]:
        """Return the folds to continue: those with the fewest trees, none too far ahead of the others."""
        grown = [len(losses) for losses in self.losses]
        most = min(self.limits.trees, min(grown) + MAX_LEAD)
        waiting = sorted((count, fold) for fold, count in enumerate(grown) if fold not in running and count < most)
        return [fold for _, fold in waiting[:free]]

    def finished(self) -> bool:
        """Read the trees that all folds have; return whether the best number of them is known."""
        while self.seen < min(map(len, self.losses)):
            loss = float(np.average([losses[self.seen] for losses in self.losses], weights=self.mass))
            self.seen += 1
            if loss < self.lowest - LOSS_TOLERANCE * abs(self.lowest) or self.best == 0:
                self.best, self.lowest = self.seen, loss
            if self.seen - self.best >= self.limits.patience:
                return True
        return self.seen >= self.limits.trees
