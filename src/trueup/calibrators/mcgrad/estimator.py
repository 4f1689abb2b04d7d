"""MCGrad: multicalibration by gradient boosting on features and prediction.

Each round grows trees for all folds at once and evaluates them together on the rows that each fold held out. The rows may
be distributed over several workers, each of which runs this code on its own rows: every sum over rows is an all-reduce, so
that all workers take the same steps and hold the same trees in the end.
"""

from __future__ import annotations

import itertools
import os
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import expit

from trueup._validate import MAX_INTEGER, check_integer, check_number
from trueup.calibrators import stopping
from trueup.calibrators.base import FitResult, SegmentCalibrator
from trueup.calibrators.mcgrad.cascade import Cascade, CascadeRound, Checkpoint, fingerprint_table
from trueup.calibrators.stopping import CrossValidation, History, Split, TaskLoss, hold_out_last, task_loss
from trueup.cluster.communicator import SINGLE_PROCESS, Communicator
from trueup.errors import ArgumentError
from trueup.kernels.threads import Workers
from trueup.learners import lightgbm
from trueup.learners.lightgbm import BinnedDataset, GrowthParameters, TreeGrower

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from trueup._types import FloatArray, IntArray
    from trueup.cluster.partitions import PartitionedTable
    from trueup.data.table import Schema, Table
    from trueup.kernels.trees import Forest


# Learning rates: the mean of several models tolerates larger steps; a first round of few trees also tries the finer one.
AVERAGED_RATE, FINER_RATE, SINGLE_RATE = 0.4, 0.1, 0.1
MAX_TREES, FIXED_TREES = 2000, 100
MAX_ROUNDS, FIXED_ROUNDS = 10, 1
TREE_PATIENCE = 20
MAX_LEAVES = MAX_BINS = 4096
TREES_PER_STEP = 5  # trees a fold grows at a time
MAX_LEAD = 20  # trees by which a fold may be ahead of the others
FEW_TREES = 40  # a first round of fewer trees also tries the lower learning rate


@dataclass(eq=False, repr=False, kw_only=True)
class MCGrad(SegmentCalibrator):
    """Calibrate predictions on every segment: boosted trees over the features and the prediction itself.

    Each round fits trees to the residuals of the score before it, with that score among the features, and is kept only if
    it lowers the loss of held-out rows significantly; if no round is kept, scores are left unchanged.

    Parameters
    ----------
    prediction : column name, or several
        The score to be corrected: a probability, a real number (``task="regression"``), or one column per class.
        For an array a position, 0 by default.
    features : column names, optional
        The columns that define segments; by default every other column.
    task : {"auto", "binary", "regression"}
        "auto" is binary for one prediction column, multiclass for several.
    depth : int or None
        The maximum depth of a tree. With 2, trees collapse into tables of feature pairs: the time to score a row does not
        depend on their number. With None, trees are limited by ``leaves`` alone.
    leaves : int, optional
        The maximum number of leaves of a tree; by default ``2 ** depth``, or 5 if depth is None.
    learning_rate : float, optional
        By default 0.4 if the models of a cross-validation are averaged (and 0.1 as well if few trees are enough, whichever
        is better), and 0.1 for a single model.
    feature_fraction : float
        The share of the features that each tree may use.
    min_hessian : float
        The minimum sum of p (1 - p) in a leaf (number of rows in regression): prevents overfitting of extreme scores.
    l2 : float
        L2 regularisation of leaf values.
    bins : int
        The maximum number of bins of a numeric feature.
    rounds : int, optional
        The maximum number of rounds, 10 by default; the exact number if ``stopping`` is None, then 1 by default.
    trees : int, optional
        The maximum number of trees of a round, 2,000 by default; the exact number if ``stopping`` is None, then 100 by
        default.
    stopping : CrossValidation, Holdout, Validation or None
        The rows that rounds are evaluated on. None trains on all rows for a fixed number of rounds and trees, without any
        protection against overfitting.
    monotone : bool
        Keep the order of rows with equal features: the correction increases with the prediction. Not for several classes.
    categorical : column names
        Numeric columns to be treated as categories.
    classes : sequence, optional
        For several prediction columns, the outcome of each, in their order.
    unlabelled : {"error", "drop"}
        What to do with rows without an outcome.
    random_state : int
        Makes the fit reproducible, whatever the number of threads.
    threads : int, optional
        By default the number of cores; on a cluster the number each worker has.
    engine : {"auto", "local", "spark", "dask"}
        Where trees are grown: on the machines that hold the rows; "auto" depends on the type of the frame.
    resume : str or path, optional
        A file for finished rounds. If a fit was interrupted, the next one on the same rows with the same parameters
        continues from there and returns the same model. The file is deleted when a fit succeeds.

    Attributes
    ----------
    model_ : Model
        The fitted model, which can be saved.
    history_ : History
        The held-out loss of every round, the number chosen, and the reason.
    held_out_ : Scored or None
        Outcomes ``y``, scores ``p`` and weights ``w`` of the held-out rows, in input order, each scored by a model that was
        not trained on it. `trueup.decisions` takes them as ``labelled=calibrator``. They are not for an audit, which is
        nearly blind to the errors of a cross-validation. None if nothing was held out, if the task is not binary, and if
        rows need not fit in memory. Not saved with the model.
    held_out_rows_ : ndarray of int64, or None
        Positions of the held-out rows in the frame passed to ``fit``; None also if they came from a `Validation`.
    held_out_before_ : ndarray of float64, or None
        Scores of the held-out rows before the correction.

    Notes
    -----
    Rows need not fit in memory: ``fit(trueup.scan("rows/*.parquet"), "clicked")`` reads files, and Spark and Dask
    DataFrames are fitted by the workers that hold them; outcome and weight are then column names. Bins are found from
    100,000 rows, and rows are assigned to folds by a hash of their content: unless many rows of a partition are identical,
    the model does not depend on how rows are partitioned. It differs from a model fitted in memory by the random assignment
    to folds. Memory for files is about 70 bytes per row and model of a cross-validation, independent of the raw values.

    Integer weights with a mean of up to 100 count as repeated rows. Any other weights are scaled to the effective sample
    size, (sum w)^2 / sum w^2, so that their unit does not matter.

    References
    ----------
    Tax, Perini, Linder, Haimovich, Karamshuk, Okati, Vojnovic & Apostolopoulos, "MCGrad: Multicalibration at Web Scale".

    Examples
    --------
    >>> import trueup as tu
    >>> data = tu.simulate.lending(20_000, seed=1)
    >>> fix = tu.MCGrad(prediction="prediction", features=["region", "product", "age"]).fit(data, data["outcome"])
    >>> fix.history_.loss_after < fix.history_.loss_before
    True
    >>> fix.predict(data).shape
    (20000,)
    """

    depth: int | None = 2
    leaves: int | None = None
    learning_rate: float | None = None
    feature_fraction: float = 0.7
    min_hessian: float = 2.0
    l2: float = 1.0
    bins: int = 63
    rounds: int | None = None
    trees: int | None = None
    monotone: bool = False
    classes: Any = None
    engine: str = "auto"
    resume: str | os.PathLike[str] | None = None

    def _fit_map(self, table: Table, progress: Any) -> FitResult:
        growth = self._growth_parameters(table.schema)
        rows, splits = self._split_rows(table)
        checkpoint = None
        if self.resume is not None:
            checkpoint = self._checkpoint(growth, {**fingerprint_table(rows), "training rows": len(table)})
        grower = CascadeGrower(
            rows, task_loss(table.schema.task), splits, growth, stopping.scale_weights(rows.weight, len(table)),
            Workers(self.threads), progress,
            given=checkpoint.rounds(len(splits)) if checkpoint else (), on_round=checkpoint.keep if checkpoint else None,
        )  # fmt: skip
        evaluated, most = grower.evaluated_rows, self._max_rounds()
        keeps_scores = self.stopping is not None and table.schema.task == "binary"
        choice = stopping.choose_rounds(
            itertools.islice(grower.losses(), most + 1),
            None if rows.weight is None else rows.weight[evaluated],
            patience=most if self.stopping is None else self.stopping.patience,
            on_improvement=grower.keep_best if keeps_scores else None,
            cluster=stopping.cluster_numbers(rows, evaluated),
        )
        cascade, history = self._finish(table.schema, *choice, grower.rounds, grower.refit)
        best = grower.best
        del grower  # and its memory, before the model is applied
        held_out = None
        if self.stopping is not None:
            scores = rows.prediction[evaluated] if best is None else expit(best[:, 0])
            held_out = stopping.collect_held_out(rows, evaluated, scores)
        return FitResult(cascade, history, held_out=held_out, on_success=checkpoint.done if checkpoint else None)

    def _fit_partitioned(self, partitions: PartitionedTable) -> None:
        from trueup.calibrators.mcgrad.partitioned import fit_partitioned

        fit_partitioned(self, partitions)

    def _checkpoint(self, growth: GrowthParameters, content: Mapping[str, Any]) -> Checkpoint:
        """Return the checkpoint at ``resume``, identified by parameters (not ``rounds``) and ``content`` of the rows."""
        assert self.resume is not None
        identity = {name: value for name, value in asdict(growth).items() if name not in ("threads", "machines")}
        identity |= {"method": type(self).__name__, "stopping": self._json_parameters()["stopping"], **content}
        return Checkpoint(self.resume, identity)

    def _finish(
        self,
        schema: Schema,
        chosen: int,
        evaluations: Sequence[tuple[float, float, float]],
        rounds: Sequence[CascadeRound],
        refit: Callable[[tuple[CascadeRound, ...]], tuple[CascadeRound, ...]],
    ) -> tuple[Cascade, History]:
        """Return the map of the first ``chosen`` rounds, after ``refit`` if the rule requires it, and the full history."""
        most, loss = self._max_rounds(), task_loss(schema.task)
        if self.stopping is None:
            chosen, reason = most, f"{stopping.count_rounds(most)} as specified; no rows were held out"
        else:
            end = "the next round did not lower it significantly"
            if chosen == most:
                end = "stopped at the maximum number of rounds"
            reason = stopping.describe_choice(chosen, evaluations, end)
        trees, thetas = [r.trees for r in rounds], [r.theta for r in rounds]
        evaluated_on = stopping.evaluation_rows(self.stopping)
        history = History.of(evaluations, chosen, reason, evaluated_on, loss.measure, trees, thetas)
        kept = tuple(rounds[:chosen])
        if kept and isinstance(self.stopping, CrossValidation) and self.stopping.refit:
            kept = refit(kept)
        return Cascade(loss.link, schema.levels, len(schema.prediction), kept), history

    def _max_rounds(self) -> int:
        return self.rounds or (FIXED_ROUNDS if self.stopping is None else MAX_ROUNDS)

    def _growth_parameters(self, schema: Schema) -> GrowthParameters:
        """Validate all parameters and return those of the trees."""
        outputs = len(schema.prediction)
        self._check_parameters(outputs)
        leaves = self.leaves or (5 if self.depth is None else 2 ** min(self.depth, 12))
        averaged = isinstance(self.stopping, CrossValidation) and not self.stopping.refit
        rate = self.learning_rate or (AVERAGED_RATE if averaged else SINGLE_RATE)
        return GrowthParameters(
            task_loss(schema.task).name, outputs, self.depth, leaves, rate, self.feature_fraction, self.l2,
            self.min_hessian, self.monotone, self.bins, int(self.random_state),
            self.trees or (FIXED_TREES if self.stopping is None else MAX_TREES), TREE_PATIENCE,
            finer=FINER_RATE if self.learning_rate is None and rate > FINER_RATE else None,
        )  # fmt: skip

    def _check_parameters(self, outputs: int) -> None:
        check_integer("depth", self.depth, 1, MAX_INTEGER, optional=True)
        check_integer("leaves", self.leaves, 2, MAX_LEAVES, optional=True)
        check_integer("rounds", self.rounds, 1, MAX_INTEGER, optional=True)
        check_number("min_hessian", self.min_hessian, 0)
        check_growth(self)
        if not isinstance(self.monotone, bool):
            raise ArgumentError(f"monotone must be True or False; got {self.monotone!r}", parameter="monotone")
        if self.monotone and outputs > 1:
            raise ArgumentError(
                "monotone=True needs a single prediction column",
                hint="with several classes, the score of one falls as those of the others rise",
                parameter="monotone",
            )
        if self.resume is not None and (not isinstance(self.resume, (str, os.PathLike)) or not os.fspath(self.resume)):
            raise ArgumentError(
                f"resume must be the path of a file; got {self.resume!r}",
                hint="write it as {resume}",
                parameter="resume",
                settings={"resume": "fit.rounds"},
            )

    def _json_parameters(self) -> dict[str, Any]:
        """Return the parameters as JSON values, except for ``resume``, which does not affect the model."""
        return {name: value for name, value in super()._json_parameters().items() if name != "resume"}


def check_growth(calibrator: Any) -> None:
    """Validate the parameters that all calibrators with boosted trees share."""
    check_integer("trees", calibrator.trees, 1, MAX_INTEGER, optional=True)
    check_integer("bins", calibrator.bins, 2, MAX_BINS)
    check_integer("random_state", calibrator.random_state, 0, MAX_INTEGER)
    check_integer("threads", calibrator.threads, 1, MAX_INTEGER, optional=True)
    check_number("learning_rate", calibrator.learning_rate, 0, 1, above=True, optional=True)
    check_number("feature_fraction", calibrator.feature_fraction, 0, 1, above=True)
    check_number("l2", calibrator.l2, 0)
    calibrator._check_stopping()


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
        lightgbm.connect_workers(self.communicator.addresses, self.communicator.rank)
        # `silence` makes a Dataset, which LightGBM would synchronise with other workers; `connect_workers` has called it.
        self._fold_workers = Workers(1) if distributed else Workers(threads, begin=lightgbm.silence)
        self.y, self.levels = self.table.y, self.table.schema.levels
        assert not distributed or self.sample is not None, "workers need a common sample to find bins from"
        if self.binned is None:
            categorical, growth = [level >= 0 for level in self.levels], replace(self.growth, threads=threads)
            tables = [self.table] if self.sample is None else [self.sample, self.table]
            for table in tables:  # the bins of the sample are those of the table
                columns = [table.columns[feature.name] for feature in table.schema.features]
                self.binned = BinnedDataset(columns, categorical, growth, reference=self.binned)
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
            spread = stopping.weighted_mean((self.y - start[:, 0]) ** 2, self.weight, self.communicator)
            self.scale = float(np.sqrt(spread)) or 1.0
        held_out = self.communicator.all_reduce_sum([sum(len(split.valid) for split in self.splits)])
        self._has_held_out = bool(held_out[0])

    @property
    def evaluated_rows(self) -> IntArray:
        """Return the indices of the held-out rows, split by split, as in `losses`; of all rows if none are held out."""
        held_out = np.concatenate([split.valid for split in self.splits])
        return held_out if self._has_held_out else np.arange(len(self.y))

    def held_out_scores(self) -> FloatArray:
        """Return link-scale scores of `evaluated_rows`; held-out rows are scored by the cascade not trained on them."""
        if not self._has_held_out:
            return self.F[0]
        return np.concatenate([F[split.valid] for F, split in zip(self.F, self.splits, strict=True)])

    def keep_best(self) -> None:
        """Store the current scores of the evaluated rows in ``best``."""
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
        return self.loss.per_row(self.y[self.evaluated_rows], self.held_out_scores())

    def refit(self, kept: Sequence[CascadeRound]) -> tuple[CascadeRound, ...]:
        """Grow a single cascade on all rows, with the numbers of rounds and trees and the factors of ``kept``."""
        grower = replace(self, splits=hold_out_last(len(self.y)), binned=self.binned, given=())
        for round_ in kept:
            grower.growth = replace(grower.growth, trees=round_.trees, finer=None)
            grower.grow(round_.theta)
        return tuple(grower.rounds)

    def grow(self, theta: float | None = None) -> None:
        """Grow one more round for all splits, with the factor ``theta``, by default the best on the evaluated rows."""
        forests, trees, lowest = self._grow_forests(self.growths)
        if self.growth.finer is not None and not self.rounds and trees < FEW_TREES:
            finer = self._grow_forests([replace(growth, learning_rate=self.growth.finer) for growth in self.growths])
            forests, trees, lowest = min((forests, trees, lowest), finer, key=lambda candidate: candidate[2])
        self._apply_round(forests, trees, theta)

    def _apply_round(self, forests: tuple[Forest, ...], trees: int, theta: float | None) -> None:
        """Add ``forests`` to the scores ``F``, multiply by ``theta`` (default: the best factor), and append the round."""
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
        """Return the factor of scores of lowest loss on the evaluated rows; on training rows, scores are overconfident.

        THETA_BOUNDS hold for the product of the factors of all rounds.
        """
        rows = self.evaluated_rows
        weight = None if self.weight is None else self.weight[rows]
        theta = self.loss.theta(self.y[rows], self.held_out_scores(), weight, self.communicator)
        before = float(np.prod([round_.theta for round_ in self.rounds]))
        low, high = stopping.THETA_BOUNDS
        return min(max(theta, low / before), high / before)

    def _grow_forests(self, growths: Sequence[GrowthParameters]) -> tuple[tuple[Forest, ...], int, float]:
        """Grow one round; return a forest per split, the best number of trees, and the held-out loss with that number."""
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
        lightgbm.release_memory()
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
        """Grow trees until more of them no longer lower the held-out loss; return the best number and its loss.

        Each free thread takes the fold with the fewest trees; the result does not depend on which fold was ahead.
        """
        mass = [float(len(s.valid) if self.weight is None else self.weight[s.valid].sum()) for s in self.splits]
        if not self._has_held_out:
            self._fold_workers.map(partial(TreeGrower.grow, trees=self.growth.trees), growers)
            return self.growth.trees, 0.0
        if self.communicator.size > 1:
            return self._grow_trees_distributed(growers, np.array(mass))
        search = _TreeSearch(mass, self.growth)
        running: dict[Future[list[float]], int] = {}
        with ThreadPoolExecutor(min(self.workers.threads, len(growers)), initializer=lightgbm.silence) as pool:
            while True:
                for fold in search.next_folds(set(running.values()), self.workers.threads - len(running)):
                    count = min(TREES_PER_STEP, self.growth.trees - len(search.losses[fold]))
                    running[pool.submit(growers[fold].grow, count)] = fold
                if not running:
                    break
                for done in wait(running, return_when=FIRST_COMPLETED).done:
                    search.losses[running.pop(done)] += done.result()
                if search.finished():
                    break
                if self.progress is not None:
                    self.progress(search.seen, self.growth.trees)
        return search.best, search.lowest

    def _grow_trees_distributed(self, growers: Sequence[TreeGrower], local_mass: FloatArray) -> tuple[int, float]:
        """Grow as `_grow_trees` does, some trees per fold in turn; ``local_mass`` is the held-out weight here, per fold."""
        mass = self.communicator.all_reduce_sum(local_mass)
        search = _TreeSearch(mass.tolist(), self.growth)
        while True:
            count = min(TREES_PER_STEP, self.growth.trees - search.seen)
            losses = np.array([grower.grow(count) or [0.0] * count for grower in growers])  # 0 without held-out rows
            sums = self.communicator.all_reduce_sum((local_mass[:, None] * losses).ravel()).reshape(losses.shape)
            for fold, means in enumerate(sums / np.where(mass > 0, mass, 1.0)[:, None]):
                search.losses[fold] += means.tolist()
            if search.finished():
                return search.best, search.lowest
            if self.progress is not None:
                self.progress(search.seen, self.growth.trees)


class _TreeSearch:
    """The losses of all folds after each tree, and the number of trees that is best for all folds together."""

    def __init__(self, mass: Sequence[float], growth: GrowthParameters) -> None:
        self.mass, self.growth = mass, growth
        self.losses: list[list[float]] = [[] for _ in mass]
        self.seen, self.best, self.lowest = 0, 0, np.inf

    def next_folds(self, running: set[int], free: int) -> list[int]:
        """Return at most ``free`` folds to grow next, not ``running``, fewest trees first, none MAX_LEAD trees ahead."""
        grown = [len(losses) for losses in self.losses]
        most = min(self.growth.trees, min(grown) + MAX_LEAD)
        waiting = sorted((count, fold) for fold, count in enumerate(grown) if fold not in running and count < most)
        return [fold for _, fold in waiting[:free]]

    def finished(self) -> bool:
        """Update the best number of trees from the losses that all folds have; return whether the search is over."""
        while self.seen < min(map(len, self.losses)):
            loss = float(np.average([losses[self.seen] for losses in self.losses], weights=self.mass))
            self.seen += 1
            if loss < self.lowest - stopping.LOSS_TOLERANCE * abs(self.lowest) or self.best == 0:
                self.best, self.lowest = self.seen, loss
            if self.seen - self.best >= self.growth.patience:
                return True
        return self.seen >= self.growth.trees
