"""Growth of cascades: rounds of boosted trees for all folds together, and the choice of their capacity.

The rows may be distributed over several workers, each of which runs this code on its own rows: every sum over rows is an
all-reduce, so that all workers take the same steps and hold the same trees in the end.
"""

from __future__ import annotations

import math
import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import expit, softmax

from trueup.calibrators import stopping
from trueup.calibrators.floors import OLD_FLOORS, Floors, find_floors
from trueup.calibrators.history import CapacityTrial
from trueup.calibrators.mcgrad.cascade import Cascade, CascadeRound
from trueup.calibrators.mcgrad.levels import LevelStatistics
from trueup.calibrators.mcgrad.line import fit_lines, line_loss, line_p_value
from trueup.calibrators.scoring import RuleScore, evaluate
from trueup.calibrators.stopping import Split, TaskLoss, hold_out_last
from trueup.cluster.communicator import SINGLE_PROCESS, Communicator
from trueup.data import folds
from trueup.errors import FileError
from trueup.kernels.threads import Workers
from trueup.kernels.trees import constant_forest
from trueup.learners import lightgbm
from trueup.learners.lightgbm import BinnedDataset, FoldDataset, GrowthParameters, TreeGrower

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trueup._types import AnyArray, BoolArray, FloatArray, IntArray
    from trueup.data.table import Table
    from trueup.kernels.trees import Forest

now = time.monotonic
TREES_PER_STEP = 5  # trees a fold grows at a time
MAX_LEAD = 20  # trees by which a fold may be ahead of the others
MORE_TREES = 1.5  # how many times the best number of trees of one model the mean of several has
LINE_LEVEL = 0.005  # of the score test that a line is needed
FLOORS = (1e-12, 1e-9, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2)  # of probabilities, that a line may have
FLOOR_GAIN = 2.0  # by which a floor must lower the total loss
TRIAL_FOLDS = 2  # folds on which capacities are compared
TRIAL_ROWS = 50_000  # if there are more, capacities are compared on a sample of about this size
TRIAL_SEED = 2_000_003  # added to the seed: the sample is independent of the folds
TRIAL_WORK = 2.0  # how many times the work of the best capacity so far another one may take
TRIAL_TREES = 300  # at most, of each capacity
SIMPLER_ERRORS = 0.5  # the simplest capacity is chosen that is within this many standard errors of the best one

# Of tables and of larger trees: if more than TRIAL_ROWS rows need more than so many, this is their learning rate.
FastRates = tuple[tuple[int, float], tuple[int, float]]


@dataclass(eq=False)
class CascadeGrower:
    """Grows one cascade (a sequence of rounds of trees) per split, all splits together, round by round.

    The table holds all rows of this worker, held-out rows included; it may be empty if other workers have rows. All workers
    pass the same arguments except for rows and threads.
    """

    table: Table
    loss: TaskLoss
    splits: Sequence[Split]
    growth: GrowthParameters
    weight: FloatArray | None  # as returned by `scale_weights`
    workers: Workers
    progress: Callable[[int, int], None] | None = None  # called with trees of the round so far and at most
    binned: BinnedDataset | None = None  # the features of the table, if they are binned already
    capacities: Sequence[GrowthParameters] = ()  # simplest first: the first trees choose one, instead of ``growth``
    max_rounds: int = 1  # rounds of trees; a line before them does not count
    fast_rates: FastRates | None = None
    line: bool = False  # whether the first round may be a line
    averaged: bool = False  # whether the models of all splits will be averaged
    rescale: bool = True  # whether a round ends with the best factor theta; if not, theta is 1
    starts: Sequence[FloatArray] | None = None  # initial scores of each split, instead of the link of the prediction
    communicator: Communicator = SINGLE_PROCESS
    given: Sequence[CascadeRound] = ()  # rounds grown before on the same rows: `losses` applies them first
    sample: Table | None = None  # rows that determine the bins, the same for all workers
    on_round: Callable[[Sequence[CascadeRound]], None] | None = None  # called with all rounds so far after a new one
    score: RuleScore | None = None  # of the stopping rule: rounds are evaluated by it instead of the loss
    training: list[float] | None = None  # if given, the training loss is appended to it, of the base score and each round
    deadline: float = math.inf  # time (`now`) after which nothing more is grown
    trial_deadline: float = math.inf  # of the comparison of capacities
    late: bool = field(default=False, init=False)  # whether the deadline ended the fit
    rounds: list[CascadeRound] = field(default_factory=list, init=False)
    best: FloatArray | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        threads = self.workers.threads
        distributed = self.communicator.size > 1  # then folds are grown in turn, so that all workers grow the same tree
        lightgbm.connect_workers(self.communicator.addresses, self.communicator.rank)
        # `silence` makes a Dataset, which LightGBM would synchronise with other workers; `connect_workers` has called it.
        self._fold_workers = Workers(1) if distributed else Workers(threads, begin=lightgbm.silence)
        self._fold_threads = threads if distributed else max(1, threads // len(self.splits))
        self.y, self.levels = self.table.y, self.table.schema.levels
        assert not distributed or self.sample is not None, "workers need a common sample to find bins from"
        squared = self.loss.name == "squared"
        self.floors = OLD_FLOORS if squared else find_floors(self.table.prediction, self.communicator)
        self._start_floors = self.floors
        start = self.loss.apply_link(self.table.prediction, self.floors)
        self.F = [start] * len(self.splits) if self.starts is None else list(self.starts)
        assert self.sample is None or self.starts is None, "a sample starts from its own predictions"
        self.sample_F = None
        if self.sample is not None:
            self.sample_F = [self.loss.apply_link(self.sample.prediction, self.floors)] * len(self.splits)
        self.scale = 1.0
        if self.loss.name == "squared":  # residuals are measured in their standard deviation, whatever their unit
            spread = stopping.weighted_mean((self.y - start[:, 0]) ** 2, self.weight, self.communicator)
            self.scale = float(np.sqrt(spread)) or 1.0
        held_out = self.communicator.all_reduce_sum([sum(len(split.valid) for split in self.splits)])
        self._has_held_out = bool(held_out[0])
        self._held_out = self._take_held_out()
        self._levels = LevelStatistics.of(self.table, self.splits, self._residuals(start), self.communicator)
        if self.binned is None:
            categorical, growth = [level >= 0 for level in self.levels], replace(self.growth, threads=threads)
            tables = [self.table] if self.sample is None else [self.sample, self.table]
            for table in tables:  # the bins of the sample are those of the table
                columns = _feature_columns(table)
                counts = self._levels.count_columns(columns)
                self.binned = BinnedDataset(columns, categorical, growth, reference=self.binned, levels=counts)

    def _residuals(self, start: FloatArray) -> tuple[FloatArray, FloatArray] | None:
        """Return the residuals of the base score and their variances, times the weights; None for several outputs."""
        if self.loss.name == "classes":
            return None
        w = np.ones(len(self.y)) if self.weight is None else self.weight
        if self.loss.name == "squared":
            return w * (self.y - start[:, 0]) / self.scale, w
        p = expit(start[:, 0])
        return w * (self.y - p), w * p * (1 - p)

    @property
    def evaluated_rows(self) -> IntArray:
        """Return the indices of the held-out rows, split by split, as in `losses`; of all rows if none are held out."""
        held_out = np.concatenate([split.valid for split in self.splits])
        return held_out if self._has_held_out else np.arange(len(self.y))

    def held_out_scores(self) -> FloatArray:
        """Return link-scale scores of `evaluated_rows`; held-out rows are scored by the cascade not trained on them."""
        return self._held_out

    def _take_held_out(self) -> FloatArray:
        if not self._has_held_out:
            return self.F[0].copy()
        return np.concatenate([F[split.valid] for F, split in zip(self.F, self.splits, strict=True)])

    def keep_best(self) -> None:
        """Store the current scores of the evaluated rows in ``best``."""
        self.best = self.held_out_scores()

    def slopes(self, scores: FloatArray | None = None) -> tuple[FloatArray, FloatArray | None]:
        """Return `TaskLoss.slopes` of the evaluated rows, from the base score to ``scores`` (None: the current ones)."""
        rows = self.evaluated_rows
        start = self.loss.apply_link(self.table.prediction[rows], self._start_floors)
        return self.loss.slopes(self.y[rows], start, (self.held_out_scores() if scores is None else scores) - start)

    def losses(self) -> Iterator[FloatArray]:
        """Yield the losses of the evaluated rows: of the base score, then after each round, grown when requested."""
        given = iter(self.given)
        if self.training is not None:
            self.training.append(self._training_loss([1.0] * len(self.splits)))
        yield self._evaluate()
        while not is_complete(self.rounds, self.max_rounds):
            round_ = next(given, None)
            if round_ is not None:
                self._apply_round(round_)
            else:
                count = len(self.rounds)
                if self._is_late():
                    return
                self.grow()
                if len(self.rounds) == count:
                    return
                if self.on_round is not None:
                    self.on_round(self.rounds)
            yield self._evaluate()

    def _is_late(self, deadline: float | None = None) -> bool:
        """Return whether the time of the fit, or another deadline, is over on any worker: all take the same steps."""
        if self.deadline == math.inf:
            return False
        own = now() > (self.deadline if deadline is None else deadline)
        over = bool(self.communicator.all_reduce_max([float(own)])[0] > 0)
        self.late = self.late or (over and deadline is None)
        return over

    def _training_loss(self, thetas: Sequence[float]) -> float:
        """Return the mean over the splits of the loss (or score) of their training rows, with scores times ``thetas``."""
        losses = []
        for split, F, theta in zip(self.splits, self.F, thetas, strict=True):
            rows = split.train
            weight = None if self.table.weight is None else self.table.weight[rows]
            if self.score is None:
                losses.append(
                    stopping.weighted_mean(self.loss.per_row(self.y[rows], theta * F[rows]), weight, self.communicator)
                )
            else:
                p, own = self.loss.invert_link(theta * F[rows]), np.ones(len(rows)) if weight is None else weight
                losses.append(evaluate(self.score.score, self.y[rows], p, own))
        return float(np.mean(losses))

    def _evaluate(self) -> FloatArray:
        if self.score is not None:
            return self.score.values(self.loss.invert_link(self.held_out_scores()))
        return self.loss.per_row(self.y[self.evaluated_rows], self.held_out_scores())

    def _averaging_gains(self, scores: Sequence[FloatArray]) -> FloatArray:
        """Return by how much the mean of the models of all splits has a lower expected loss than one of them, per row.

        The ``scores`` are those of several models on rows that they were trained on: half the second derivative of the loss
        times their variance (the ambiguity of Krogh & Vedelsby 1995), less the share of it that the mean keeps.
        """
        F = np.stack(scores)
        mean = F.mean(axis=0)
        variance = F.var(axis=0, ddof=1)
        if self.loss.name == "squared":
            gains = variance[:, 0]
        elif self.loss.name == "log":
            p = expit(mean[:, 0])
            gains = 0.5 * p * (1 - p) * variance[:, 0]
        else:
            p = softmax(mean, axis=1)
            along = ((p * (F - mean)).sum(axis=2) ** 2).sum(axis=0) / (len(F) - 1)
            gains = 0.5 * ((p * variance).sum(axis=1) - along)
        return np.asarray((1 - 1 / len(self.splits)) * gains)

    def refit(self, kept: Sequence[CascadeRound]) -> tuple[CascadeRound, ...]:
        """Grow a single cascade on all rows, with the numbers of rounds and trees and the factors of ``kept``."""
        grower = replace(self, splits=hold_out_last(len(self.y)), binned=self.binned, given=(), capacities=())
        grower.deadline, grower.training, grower.score = math.inf, None, None
        for round_ in kept:
            if round_.trials:
                self._use_capacity(round_.trials)
                grower.growth = self.growth
            if round_.is_line:
                grower._apply_round(grower._fit_line())
            else:
                grower.growth = replace(grower.growth, trees=round_.trees)
                grower.grow(round_.thetas[0])
        return tuple(grower.rounds)

    def grow(self, theta: float | None = None) -> None:
        """Grow one more round for all splits, with the factor ``theta``, by default the best on the evaluated rows."""
        p_value = self._test_line() if self.line and not self.rounds else 1.0
        if p_value < LINE_LEVEL:
            self._apply_round(replace(self._fit_line(), p_value=p_value))
            return
        trial: _Trial | None = None
        trials: tuple[CapacityTrial, ...] = ()
        if len(self.capacities) > 1 and all(round_.is_line for round_ in self.rounds):
            trial, trials = self._choose_capacity()
            self._use_capacity(trials)
            if self._is_late():
                return
            if trial.sample is not None or trial.growth != self.growth:
                trial = None  # its trees are of fewer rows, or of another learning rate
        floors = OLD_FLOORS if self.rounds else self.floors
        self._apply_round(replace(self._grow_forests(trial), trials=trials, floors=floors), theta)

    # The linear round

    def _test_line(self) -> float:
        """Return the p-value of the test that no slope and intercept would lower the loss, on the training rows."""
        rows = self._line_rows()
        distributed = self.communicator.size > 1
        number = stopping.cluster_buckets if distributed else stopping.cluster_numbers
        cluster = number(self.table, rows)
        count = stopping.CLUSTER_BUCKETS if distributed else 0
        weight = None if self.weight is None else self.weight[rows]
        return line_p_value(self.loss, self.y[rows], self.F[0][rows], weight, cluster, self.communicator, count)

    def _line_rows(self) -> IntArray:
        """Return the rows that show whether a line is needed: all rows that some model is trained on."""
        return np.arange(len(self.y)) if len(self.splits) > 1 else self.splits[0].train

    def _fit_line(self) -> CascadeRound:
        """Return a round that is a line, fitted on the training rows of each split."""
        floors, F = self._best_floors()
        lines = fit_lines(self.loss, self.y, F, self.weight, self.splits, self.communicator)
        forests = tuple(constant_forest(line.intercept / line.slope) for line in lines)
        return CascadeRound(tuple(line.slope for line in lines), forests, 0, floors=floors)

    def _best_floors(self) -> tuple[Floors, FloatArray]:
        """Return the floors of probabilities with which a line has the lowest loss, and the scores with it.

        Predictions such as the 0 of a forest, a share of its trees, are not as certain as a logit of -14 is.
        """
        prediction, best = self.table.prediction, (self.floors, self.F[0])
        if self.loss.name == "squared":
            return best
        rows = self._line_rows()
        weight = None if self.weight is None else self.weight[rows]
        nearest = np.minimum(prediction, 1 - prediction) if self.loss.name == "log" else prediction
        lowest = -float(self.communicator.all_reduce_max([-nearest.min(initial=1.0)])[0])
        loss = line_loss(self.loss, self.y[rows], self.F[0][rows], weight, self.communicator)
        for floor in FLOORS:
            if floor > max(lowest, *self.floors):
                F = self.loss.apply_link(prediction, (floor, floor))
                own = line_loss(self.loss, self.y[rows], F[rows], weight, self.communicator)
                if own < loss - FLOOR_GAIN:
                    loss, best = own, ((floor, floor), F)
        return best

    # Rounds of trees

    def _apply_round(self, round_: CascadeRound, theta: float | None = None) -> None:
        """Add the forests of a round to the scores ``F`` of each split, multiply by its factors, and append the round.

        Factors that are not known are ``theta``, or the best factor. Later rounds have the capacity that this one chose.
        """
        if not self.rounds and round_.floors != self.floors:
            self.floors = round_.floors
            self.F = [self.loss.apply_link(self.table.prediction, self.floors)] * len(self.splits)
            if self.sample is not None:
                self.sample_F = [self.loss.apply_link(self.sample.prediction, self.floors)] * len(self.splits)
        if round_.trials:
            self._use_capacity(round_.trials)
        self._add_forests(round_.forests)
        self._held_out = self._take_held_out()
        thetas = round_.thetas
        if any(math.isnan(own) for own in thetas):
            if theta is None:
                theta = self._best_theta() if self.rescale else 1.0
            thetas = (theta,) * len(round_.forests)
        if self._has_held_out:
            parts = np.split(self._held_out, np.cumsum([len(split.valid) for split in self.splits])[:-1])
            self._held_out = np.concatenate([own * F for own, F in zip(thetas, parts, strict=True)])
        else:
            self._held_out *= thetas[0]
        if self.training is not None:
            self.training.append(self._training_loss(thetas))
        if round_.more:
            self._add_forests(round_.more)
        for own, F in zip(thetas, self.F, strict=True):
            np.multiply(own, F, out=F)
        if self.sample_F is not None:
            self.sample_F = [own * F for own, F in zip(thetas, self.sample_F, strict=True)]
        self.rounds.append(replace(round_, thetas=thetas))

    def _add_forests(self, forests: Sequence[Forest]) -> None:
        """Add the trees of a forest per split to the scores of all rows, and of the sample."""
        for fold, forest in enumerate(forests):  # one fold at a time: each has a score for every row
            self.F[fold] = self._add_forest(forest, self.F[fold], self.table)
            if self.sample_F is not None:
                assert self.sample is not None
                self.sample_F[fold] = self._add_forest(forest, self.sample_F[fold], self.sample)

    def _add_forest(self, forest: Forest, F: FloatArray, table: Table) -> FloatArray:
        cascade = Cascade("identity", self.levels, F.shape[1], (CascadeRound((1.0,), (forest,), trees=1),))
        return cascade.apply(table.columns.values(), F, self.workers)

    def _best_theta(self) -> float:
        """Return the factor of scores of lowest loss on the evaluated rows; on training rows, scores are overconfident."""
        rows = self.evaluated_rows
        weight = None if self.weight is None else self.weight[rows]
        return self.loss.theta(self.y[rows], self.held_out_scores(), weight, self.communicator)

    def _fold_growth(self, growth: GrowthParameters, fold: int) -> GrowthParameters:
        monotone = growth.monotone
        if any(monotone[:-1]) and not monotone[-1] and any(not round_.is_line for round_ in self.rounds):
            monotone = (*monotone[:-1], 1)  # the score rises or falls with the features since the first round
        return replace(
            growth, threads=self._fold_threads, machines=self.communicator.size, seed=growth.seed + fold, monotone=monotone
        )

    def _fold_data(self, folds: Sequence[int], sample: BoolArray | None = None) -> list[FoldDataset]:
        """Return the binned rows of some splits, or a ``sample`` of them, with the scores so far."""
        assert self.binned is not None
        binned, columns = self.binned, _feature_columns(self.table)
        encoded = bool(self._levels.encodings)
        # All folds that start from the same score share its Dataset.
        is_shared = not encoded and all(self.F[fold] is self.F[folds[0]] for fold in folds)
        shared = self._dataset(folds[0], columns) if is_shared else None

        def prepare(fold: int) -> FoldDataset:
            data = self._dataset(fold, columns) if shared is None else shared
            train, valid = (_sampled(rows, sample) for rows in (self.splits[fold].train, self.splits[fold].valid))
            encodings = self._levels.residual_columns(columns, fold)
            return FoldDataset(binned, data, None if len(train) == len(self.y) else train, valid, encodings)

        return self._fold_workers.map(prepare, folds)

    def _dataset(self, fold: int, columns: Sequence[AnyArray]) -> lightgbm.Dataset:
        assert self.binned is not None
        F = self.F[fold]
        if self.loss.name == "squared":
            # Labels are single precision inside LightGBM: the residual keeps its digits where the outcome would not.
            label, start = (self.y - F[:, 0]) / self.scale, None
        else:
            label, start = self.y, F
        changing = np.column_stack([F, *self._levels.encode_rows(columns, fold)]) if self._levels.encodings else F
        sample = None
        if self.sample_F is not None:
            assert self.sample is not None
            own = self._levels.residual_columns(_feature_columns(self.sample), fold)
            sample = np.column_stack([self.sample_F[fold], *(column[:] for column in own)])
        growth = self._fold_growth(self.growth, fold)
        return self.binned.with_prediction(changing, label, self.weight, start, growth, sample=sample)

    def _grow_forests(self, trial: _Trial | None = None) -> CascadeRound:
        """Grow one round of trees, without its factor; ``trial`` has grown trees of some splits already."""
        growers = {} if trial is None else dict(trial.growers)
        others = [fold for fold in range(len(self.splits)) if fold not in growers]
        if others:
            data = dict(zip(others, self._fold_data(others), strict=True))
            growers |= {fold: TreeGrower(own, self._fold_growth(self.growth, fold)) for fold, own in data.items()}
            del data
        search = self._grow_trees(growers, self.growth, {} if trial is None else trial.search.losses)
        every, best = range(len(self.splits)), search.best
        forests = tuple(growers[fold].forest(best).scaled(self.scale) for fold in every)
        trees = best
        more: tuple[Forest, ...] = ()
        if self.averaged and len(forests) > 1 and not self._is_late():
            trees = min(math.ceil(MORE_TREES * best), self.growth.trees)
            self._fold_workers.map(partial(TreeGrower.grow_to, trees=trees), list(growers.values()))
            more = tuple(growers[fold].forest(trees, best).scaled(self.scale) for fold in every)
        gains = np.sum([growers[fold].gains(trees) for fold in every], axis=0)
        del growers, trial  # most of the memory of a fit
        lightgbm.release_memory()
        return CascadeRound(
            (math.nan,) * len(forests), forests, trees, more=more, gains=tuple(gains.tolist()),
            losses=tuple(self.scale**2 * loss for loss in search.mean_losses),
        )  # fmt: skip

    def _grow_trees(
        self,
        growers: dict[int, TreeGrower],
        growth: GrowthParameters,
        known: dict[int, list[float]],
        deadline: float | None = None,
    ) -> _TreeSearch:
        """Grow trees until more of them no longer lower the held-out loss.

        Each free thread takes the fold with the fewest trees; the result does not depend on which fold was ahead. ``known``
        are the losses of trees that were grown before.
        """
        splits = {fold: self.splits[fold] for fold in growers}
        mass = {f: float(len(s.valid) if self.weight is None else self.weight[s.valid].sum()) for f, s in splits.items()}
        if not self._has_held_out:
            search = _TreeSearch(mass, growth, known)
            step = growth.trees if self.deadline == math.inf else TREES_PER_STEP
            while search.best < growth.trees and not (search.best and self._is_late(deadline)):
                search.best = min(search.best + step, growth.trees)
                self._fold_workers.map(partial(TreeGrower.grow_to, trees=search.best), list(growers.values()))
            return search
        if self.communicator.size > 1:
            return self._grow_trees_distributed(growers, growth, known, mass, deadline)
        search = _TreeSearch(mass, growth, known)
        running: dict[Future[list[float]], int] = {}
        with ThreadPoolExecutor(min(self.workers.threads, len(growers)), initializer=lightgbm.silence) as pool:
            while not search.finished() and not (search.seen and self._is_late(deadline)):
                for fold in search.next_folds(set(running.values()), self.workers.threads - len(running)):
                    count = min(TREES_PER_STEP, growth.trees - len(search.losses[fold]))
                    running[pool.submit(growers[fold].grow, count)] = fold
                if not running:
                    break
                for done in wait(running, return_when=FIRST_COMPLETED).done:
                    search.losses[running.pop(done)] += done.result()
                if self.progress is not None:
                    self.progress(search.seen, growth.trees)
            for done, fold in running.items():
                search.losses[fold] += done.result()
        return search

    def _grow_trees_distributed(
        self, growers: dict[int, TreeGrower], growth: GrowthParameters, known: dict[int, list[float]],
        local_mass: dict[int, float], deadline: float | None = None,
    ) -> _TreeSearch:  # fmt: skip
        """Grow as `_grow_trees` does, some trees per fold in turn; ``local_mass`` is the held-out weight here, per fold."""
        grown = list(growers)
        local = np.array([local_mass[fold] for fold in grown])
        mass = np.asarray(self.communicator.all_reduce_sum(local))
        search = _TreeSearch(dict(zip(grown, mass.tolist(), strict=True)), growth, known)
        while not search.finished() and not (search.seen and self._is_late(deadline)):
            behind = min(map(len, search.losses.values()))
            count = min(TREES_PER_STEP, growth.trees - behind)
            for index, fold in enumerate(grown):
                if len(search.losses[fold]) > behind:
                    continue
                losses = np.array(growers[fold].grow(count) or [0.0] * count)  # 0 without held-out rows
                sums = np.asarray(self.communicator.all_reduce_sum(local[index] * losses))
                search.losses[fold] += (sums / (mass[index] or 1.0)).tolist()
            if self.progress is not None:
                self.progress(search.seen, growth.trees)
        return search

    # Capacity

    def _choose_capacity(self) -> tuple[_Trial, tuple[CapacityTrial, ...]]:
        """Compare capacities on the first folds; return the trees of the one to use for all, and the comparison.

        From a capacity in the middle the search moves to the next simpler or larger one while that is better; then the
        simplest is chosen that is within SIMPLER_ERRORS standard errors of the best.
        """
        sample = self._sample_rows()
        data = dict(enumerate(self._fold_data(range(min(TRIAL_FOLDS, len(self.splits))), sample)))
        best = middle = (len(self.capacities) - 1) // 2
        trials = {middle: self._run_trial(self.capacities[middle], data, math.inf, sample)}
        for step in (-1, 1):
            at = middle + step
            while 0 <= at < len(self.capacities) and not self._is_late(self.trial_deadline):
                if step > 0 and trials[at - 1].would_be_same(self.capacities[at]):
                    break
                trials[at] = self._run_trial(self.capacities[at], data, TRIAL_WORK * trials[best].work, sample)
                difference, error = self._compare(trials[at], trials[best])
                if difference < 0:
                    best = at
                elif step > 0 or difference > SIMPLER_ERRORS * error:
                    break
                at += step
            if best < middle:
                break
        differences = {at: self._compare(trial, trials[best]) for at, trial in sorted(trials.items())}
        chosen = min(at for at, (difference, error) in differences.items() if difference <= SIMPLER_ERRORS * error)
        compared = [
            CapacityTrial(trial.growth.depth, trial.growth.leaves, trial.search.best, trial.loss, *own, at == chosen)
            for (at, own), trial in zip(differences.items(), (trials[at] for at in differences), strict=True)
        ]
        return trials[chosen], tuple(compared)

    def _use_capacity(self, trials: Sequence[CapacityTrial]) -> None:
        """Set the parameters of the trees to the capacity that was chosen."""
        chosen = next(trial for trial in trials if trial.chosen)
        known = [growth for growth in self.capacities if (growth.depth, growth.leaves) == (chosen.depth, chosen.leaves)]
        if not known:
            raise FileError(
                "the saved rounds name a capacity that this fit does not have",
                hint="remove the file, and fit from the start",
            )
        self.growth = known[0]
        if self.fast_rates is not None and self._rows() > TRIAL_ROWS:
            many, rate = self.fast_rates[self.growth.depth is None]
            if chosen.trees > many:
                self.growth = replace(self.growth, learning_rate=max(self.growth.learning_rate, rate))

    def _rows(self) -> float:
        return float(self.communicator.all_reduce_sum([len(self.y)])[0])

    def _sample_rows(self) -> BoolArray | None:
        """Return which rows capacities are compared on: about TRIAL_ROWS, by a hash of their content; None for all."""
        rows = self._rows()
        if rows <= TRIAL_ROWS:
            return None
        keys = folds.random_row_keys(*stopping.row_content(self.table), self.growth.seed + TRIAL_SEED)
        sample = np.asarray(keys < np.uint64(TRIAL_ROWS / rows * 2.0**64))
        tried = self.splits[: min(TRIAL_FOLDS, len(self.splits))]
        counts = [len(_sampled(part, sample)) for split in tried for part in (split.train, split.valid)]
        return sample if min(self.communicator.all_reduce_sum(counts)) >= stopping.MIN_ROWS else None

    def _run_trial(
        self, growth: GrowthParameters, data: dict[int, FoldDataset], limit: float, sample: BoolArray | None
    ) -> _Trial:
        """Grow trees of a capacity on some folds, with at most about ``limit`` of work, and evaluate them."""
        cost = math.log2(growth.leaves)  # of a tree: each row takes part in this many levels of splits
        most = int(min(growth.trees, TRIAL_TREES, max(limit / cost, growth.patience)))
        growers = {fold: TreeGrower(own, self._fold_growth(growth, fold)) for fold, own in data.items()}
        search = self._grow_trees(growers, replace(growth, trees=most), {}, self.trial_deadline)
        forests = {fold: grower.forest(search.best).scaled(self.scale) for fold, grower in growers.items()}
        largest = max(_most_leaves(forest) for forest in forests.values())
        rows = {fold: _sampled(self.splits[fold].valid, sample) for fold in data}
        scores = [self._score(forests[fold], fold, rows[fold]) for fold in data]
        losses = [self.loss.per_row(self.y[own], F) for own, F in zip(rows.values(), scores, strict=True)]
        averaging = 0.0
        if self.averaged and len(data) < len(self.splits):
            common = _sampled(self.splits[len(data)].valid, sample)  # all these models were trained on the next fold
            gains = self._averaging_gains([self._score(forests[fold], fold, common) for fold in data])
            weight = None if self.weight is None else self.weight[common]
            averaging = stopping.weighted_mean(gains, weight, self.communicator)
        evaluated = np.concatenate(list(rows.values()))
        lowest = search.lowest * self.scale**2 - averaging
        return _Trial(
            growth, growers, search, evaluated, np.concatenate(losses), averaging, lowest, cost * search.seen, sample,
            largest,
        )  # fmt: skip

    def _score(self, forest: Forest, fold: int, rows: IntArray) -> FloatArray:
        """Return the scores of some rows after the trees of ``forest`` are added to those of a split."""
        return self._add_forest(forest, self.F[fold][rows], self.table.take(rows))

    def _compare(self, trial: _Trial, best: _Trial) -> tuple[float, float]:
        """Return the loss of a capacity minus that of the best one, and its standard error."""
        if trial is best:
            return 0.0, 0.0
        rows, table = trial.rows, self.table
        weight = None if table.weight is None else table.weight[rows]
        buckets = self.communicator.size > 1
        cluster = (stopping.cluster_buckets if buckets else stopping.cluster_numbers)(table, rows)
        difference, error, _ = stopping.paired_gain(trial.losses - best.losses, weight, self.communicator, cluster)
        return difference - trial.averaging + best.averaging, error


@dataclass(eq=False)
class _Trial:
    """Trees of one capacity on some folds."""

    growth: GrowthParameters
    growers: dict[int, TreeGrower]
    search: _TreeSearch
    rows: IntArray  # held-out rows
    losses: FloatArray  # their losses
    averaging: float  # by how much the mean of all models is better than one of them
    loss: float  # the lowest mean loss of the held-out rows, less the gain of averaging
    work: float
    sample: BoolArray | None  # the rows that were used; None for all
    largest: int  # the number of leaves of the largest tree

    def would_be_same(self, growth: GrowthParameters) -> bool:
        """Return whether trees with more leaves, as in ``growth``, would be the same: none has as many as it may have."""
        return self.largest < self.growth.leaves and growth == replace(self.growth, leaves=growth.leaves)


class _TreeSearch:
    """The losses of some folds after each tree, and the number of trees that is best for these folds together.

    ``known`` are losses of trees that were grown before.
    """

    def __init__(self, mass: dict[int, float], growth: GrowthParameters, known: dict[int, list[float]]) -> None:
        self.mass, self.growth = mass, growth
        self.losses = {fold: list(known.get(fold, ())) for fold in mass}
        self.mean_losses: list[float] = []  # of all folds, after each tree that all of them have
        self.seen, self.best, self.lowest = 0, 0, np.inf

    def next_folds(self, running: set[int], free: int) -> list[int]:
        """Return at most ``free`` folds to grow next, not ``running``, fewest trees first, none MAX_LEAD trees ahead."""
        grown = {fold: len(losses) for fold, losses in self.losses.items()}
        most = min(self.growth.trees, min(grown.values()) + MAX_LEAD)
        waiting = sorted((count, fold) for fold, count in grown.items() if fold not in running and count < most)
        return [fold for _, fold in waiting[:free]]

    def finished(self) -> bool:
        """Update the best number of trees from the losses that all folds have; return whether the search is over."""
        weights = list(self.mass.values())
        while self.seen < min(map(len, self.losses.values())):
            loss = float(np.average([losses[self.seen] for losses in self.losses.values()], weights=weights))
            self.seen += 1
            self.mean_losses.append(loss)
            if loss < self.lowest - stopping.LOSS_TOLERANCE * abs(self.lowest) or self.best == 0:
                self.best, self.lowest = self.seen, loss
            if self.seen - self.best >= self.growth.patience:
                return True
        return self.seen >= self.growth.trees


def gain_shares(rounds: Sequence[CascadeRound], columns: int) -> FloatArray:
    """Return the share of each of the ``columns`` in the gain of all splits of some rounds; zeros without a split."""
    totals = np.sum([np.zeros(columns), *(np.array(round_.gains) for round_ in rounds if round_.gains)], axis=0)
    return np.asarray(totals / (totals.sum() or 1.0))


def is_complete(rounds: Sequence[CascadeRound], most: int) -> bool:
    """Return whether there are ``most`` rounds of trees."""
    return sum(not round_.is_line for round_ in rounds) >= most


def _sampled(rows: IntArray, sample: BoolArray | None) -> IntArray:
    return rows if sample is None else rows[sample[rows]]


def _most_leaves(forest: Forest) -> int:
    """Return the number of leaves of the largest tree; the nodes of a tree are consecutive, in the order of the trees."""
    if not len(forest):
        return 0
    splits = forest.root >= 0
    starts = np.append(forest.root[splits], len(forest.feature))
    return int(np.diff(starts).max(initial=0)) + 1


def _feature_columns(table: Table) -> list[AnyArray]:
    return [table.columns[feature.name] for feature in table.schema.features]
