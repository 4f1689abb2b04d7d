"""MCGrad: multicalibration by gradient boosting on features and prediction."""

from __future__ import annotations

import itertools
import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import expit

from trueup.calibrators.base import Calibrator, FitResult
from trueup.calibrators.losses import task_loss
from trueup.calibrators.mcgrad.cascade import Cascade
from trueup.calibrators.mcgrad.checkpoint import Checkpoint, content_of
from trueup.calibrators.mcgrad.grower import CascadeGrower, Limits
from trueup.calibrators.splits import collect_held_out, scale_weights
from trueup.calibrators.stopping import CrossValidation, History, Round, choose_rounds, evaluation_rows
from trueup.errors import ArgumentError
from trueup.kernels.threads import Workers
from trueup.learners.lightgbm import GrowthParameters

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trueup._types import FloatArray
    from trueup.calibrators.mcgrad.cascade import CascadeRound
    from trueup.calibrators.stopping import Stopping
    from trueup.cluster.partitions import PartitionedTable
    from trueup.data.table import Table


AVERAGED, FINER, SINGLE = 0.4, 0.1, 0.1  # learning rates: the mean of several models forgives larger steps
MOST_TREES, FIXED_TREES = 2000, 100
MOST_ROUNDS, FIXED_ROUNDS = 10, 1
TREE_PATIENCE = 20
MOST_LEAVES = 4096


class MCGrad(Calibrator):
    """Make predictions right on every segment: boosted trees over the features and the prediction itself.

    Each round fits trees to what the score before it left over, with that score among the features, and is kept only
    where it lowers the loss of rows it was not trained on; no round at all is a legal answer, and leaves scores unchanged.

    Parameters
    ----------
    prediction : column name, or several
        The score to be corrected: a probability, a real number (``task="regression"``), or one column for each class.
        For an array a position, 0 by default.
    features : column names, optional
        What segments are made of; every other column by default.
    task : {"auto", "binary", "regression"}
        "auto" is binary for one prediction column, several classes for several.
    depth : int or None
        The most features a tree tests one after another. With 2, trees collapse into tables of feature pairs: scoring does
        not slow down with their number. None bounds trees by ``leaves`` alone.
    leaves : int, optional
        The most leaves of a tree; ``2 ** depth`` by default, 5 where depth is None.
    learning_rate : float, optional
        By default 0.4 where the models of a cross-validation are averaged (and 0.1 as well where few trees are enough, the
        better of the two), 0.1 for a single model.
    feature_fraction : float
        The share of the features that each tree may use.
    min_hessian : float
        The least sum of p (1 - p) in a leaf (of rows, in regression): keeps the extremes from overfitting.
    l2 : float
        Shrinks leaves that hold little.
    bins : int
        The most bins a numeric feature is cut into.
    rounds : int, optional
        The most rounds, 10 by default; exactly so many where ``stopping`` is None, and then 1 by default.
    trees : int, optional
        The most trees of a round, 2,000 by default; exactly so many where ``stopping`` is None, and then 100 by default.
    stopping : CrossValidation, Holdout, Validation or None
        Which rows judge. None trains on all rows for a fixed number of rounds and trees, and nothing guards the result.
    monotone : bool
        Never reverse two rows of the same features: the correction rises with the prediction. Not for several classes.
    categorical : column names
        Numeric columns to be read as categories.
    classes : sequence, optional
        For several prediction columns, the outcome that each stands for, in their order.
    unlabelled : {"error", "drop"}
        What to do with rows without an outcome.
    random_state : int
        Fixes everything, whatever the number of threads.
    threads : int, optional
        As many as there are cores by default; on a cluster as many as each of its workers has.
    engine : {"auto", "local", "spark", "dask"}
        Where trees are grown: on the machines that hold the rows, which "auto" tells by the frame.
    resume : str or path, optional
        A file for finished rounds. A fit that was stopped, by whatever, does not grow them again when it is run once more
        on the same rows with the same parameters, and ends in the same model. It goes when the fit has ended well.

    Attributes
    ----------
    model_ : Model
        What is saved and shipped.
    history_ : History
        The held-out loss of every round, what was chosen, and why.
    held_out_ : Scored or None
        Outcomes ``y``, scores ``p`` and weights ``w`` of the rows that judged, in their order, each scored by a model that
        was not trained on it. `trueup.decisions` takes them as ``labelled=calibrator``. None where nothing was held out,
        where the task is not binary, and where rows need not fit in memory. Not saved with the model.
    held_out_rows_ : ndarray of int64, or None
        Which rows of the frame given to ``fit`` these are, from 0 on; None also where they came with a `Validation`.
    held_out_before_ : ndarray of float64, or None
        Their scores as they came.

    Notes
    -----
    Rows need not fit in memory: ``fit(trueup.scan("rows/*.parquet"), "clicked")`` reads files, and Spark and Dask
    DataFrames are fitted by the workers that hold them; outcome and weight are then names of columns. Bins are found from
    100,000 rows, and rows are dealt into folds by a hash of what they hold: where few rows of a part are alike, the model
    is the same however rows are cut into parts. From that of rows in memory it differs by the luck of the folds. What is
    held of files is some 70 bytes a row for each model of a cross-validation, not the raw values.

    Whole-number weights of up to 100 on average count as so many rows. Any others are scaled to the effective number of
    rows, (sum w)^2 / sum w^2, so that their unit does not matter.

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

    def __init__(
        self,
        prediction: Any = None,
        features: Any = None,
        *,
        task: str = "auto",
        depth: int | None = 2,
        leaves: int | None = None,
        learning_rate: float | None = None,
        feature_fraction: float = 0.7,
        min_hessian: float = 2.0,
        l2: float = 1.0,
        bins: int = 63,
        rounds: int | None = None,
        trees: int | None = None,
        stopping: Stopping = CrossValidation(),  # noqa: B008  (a frozen value)
        monotone: bool = False,
        categorical: Any = (),
        classes: Any = None,
        unlabelled: str = "error",
        random_state: int = 0,
        threads: int | None = None,
        engine: str = "auto",
        resume: str | os.PathLike[str] | None = None,
    ) -> None:
        self.prediction = prediction
        self.features = features
        self.task = task
        self.depth = depth
        self.leaves = leaves
        self.learning_rate = learning_rate
        self.feature_fraction = feature_fraction
        self.min_hessian = min_hessian
        self.l2 = l2
        self.bins = bins
        self.rounds = rounds
        self.trees = trees
        self.stopping = stopping
        self.monotone = monotone
        self.categorical = categorical
        self.classes = classes
        self.unlabelled = unlabelled
        self.random_state = random_state
        self.threads = threads
        self.engine = engine
        self.resume = resume

    def _fit_map(self, table: Table, progress: Any) -> FitResult:
        growth = self._growth(table)
        loss = task_loss(table.schema.task)
        whole, splits = self._split_rows(table)
        workers = Workers(self.threads)
        fixed = self.stopping is None
        limits, weight = self._limits(growth), scale_weights(whole.weight, len(table))
        saved = self._checkpoint(growth, {**content_of(whole), "rows to learn from": len(table)}) if self.resume else None
        grown = CascadeGrower(
            whole, loss, splits, growth, limits, weight, workers, progress,
            given=saved.rounds(len(splits)) if saved else (), finished=saved.keep if saved else None,
        )  # fmt: skip
        history = self._judge(grown, self._most_rounds(), whole.weight)
        kept = tuple(grown.rounds[: history.chosen])
        if kept and isinstance(self.stopping, CrossValidation) and self.stopping.refit:
            kept = grown.refit(kept)
        cascade = Cascade(loss.link, grown.levels, growth.outputs, kept)
        rows, best = grown.judged, grown.best
        del grown
        scores = whole.prediction[rows] if best is None else expit(best[:, 0])
        held = None if fixed else collect_held_out(whole, rows, scores)
        return FitResult(cascade, history, held_out=held, on_success=saved.done if saved else None)

    def _checkpoint(self, growth: GrowthParameters, content: Mapping[str, Any]) -> Checkpoint:
        """Say where finished rounds are kept, and what makes this the fit it is; how many rounds it may have does not."""
        assert self.resume is not None
        told = {**asdict(growth), **asdict(self._limits(growth))}
        told = {name: value for name, value in told.items() if name not in ("threads", "machines")}
        stopping = self._json_parameters()["stopping"]
        return Checkpoint(self.resume, {"method": type(self).__name__, **told, "stopping": stopping, **content})

    def _judge(self, grown: CascadeGrower, most: int, weight: FloatArray | None) -> History:
        rows = grown.judged
        tried = itertools.islice(grown.losses(), most + 1)
        patience = most if self.stopping is None else self.stopping.patience
        honest = self.stopping is not None and grown.table.schema.task == "binary"  # the scores, not the losses alone
        chosen, judged = choose_rounds(
            tried,
            None if weight is None else weight[rows],
            patience=patience,
            on_improvement=grown.remember if honest else None,
        )
        return self._history(chosen, judged, grown.rounds, most, grown.loss.measure)

    def _history(
        self,
        chosen: int,
        judged: Sequence[tuple[float, float, float]],
        rounds: Sequence[CascadeRound],
        most: int,
        measure: str,
    ) -> History:
        """Tell how the rounds were judged, and why so many were taken."""
        chosen = most if self.stopping is None else chosen
        described = [Round(0, 0, 1.0, judged[0][0], 0.0, 0.0, kept=True)]
        for at, ((loss, gain, error), one) in enumerate(zip(judged[1:], rounds, strict=True), start=1):
            described.append(Round(at, one.trees, one.theta, loss, gain, error, at <= chosen))
        reason = _reason(chosen, judged, most, fixed=self.stopping is None)
        return History(tuple(described), chosen, reason, evaluation_rows(self.stopping), measure)

    def _most_rounds(self) -> int:
        return self.rounds or (FIXED_ROUNDS if self.stopping is None else MOST_ROUNDS)

    def _limits(self, growth: GrowthParameters) -> Limits:
        finer = FINER if self.learning_rate is None and growth.learning_rate > FINER else None
        return Limits(self.trees or (FIXED_TREES if self.stopping is None else MOST_TREES), TREE_PATIENCE, finer)

    def _fit_partitioned(self, parts: PartitionedTable) -> None:
        from trueup.calibrators.mcgrad.apart import fit_apart

        fit_apart(self, parts)

    def _growth(self, table: Table) -> GrowthParameters:
        """Check the parameters of the trees."""
        self._check(several=table.prediction.ndim == 2)
        leaves = self.leaves or (5 if self.depth is None else 2 ** min(self.depth, 12))
        averaged = isinstance(self.stopping, CrossValidation) and not self.stopping.refit
        rate = self.learning_rate or (AVERAGED if averaged else SINGLE)
        outputs = 1 if table.prediction.ndim == 1 else table.prediction.shape[1]
        return GrowthParameters(
            task_loss(table.schema.task).name, outputs, self.depth, leaves, rate,
            self.feature_fraction, self.l2, self.min_hessian, self.monotone, self.bins, int(self.random_state),
        )  # fmt: skip

    def _check(self, *, several: bool) -> None:
        for name, least, optional in (
            ("depth", 1, True), ("leaves", 2, True), ("bins", 2, False), ("rounds", 1, True), ("trees", 1, True),
            ("random_state", 0, False), ("threads", 1, True),
        ):  # fmt: skip
            value = getattr(self, name)
            whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool) and least <= value < 2**31
            if not whole and not (optional and value is None):
                raise ArgumentError(f"{name} must be a whole number, at least {least} and below 2^31; got {value!r}")
            if name in ("leaves", "bins") and value is not None and value > MOST_LEAVES:
                raise ArgumentError(f"{name} must be at most {MOST_LEAVES:,}; got {value!r}")
        for name in ("learning_rate", "feature_fraction"):
            value = getattr(self, name)
            untold = name == "learning_rate" and value is None
            if not untold and not (_is_number(value) and 0 < value <= 1):
                raise ArgumentError(f"{name} must lie above 0 and be at most 1; got {value!r}")
        for name in ("min_hessian", "l2"):
            value = getattr(self, name)
            if not (_is_number(value) and 0 <= value < np.inf):
                raise ArgumentError(f"{name} must be a number, at least 0; got {value!r}")
        self._check_kinds(several=several)

    def _check_kinds(self, *, several: bool) -> None:
        if self.monotone and several:
            raise ArgumentError(
                "monotone=True takes one prediction column", hint="the score of one class rises as those of the others fall"
            )
        if not isinstance(self.monotone, bool):
            raise ArgumentError(f"monotone must be True or False; got {self.monotone!r}")
        if self.resume is not None and (not isinstance(self.resume, (str, os.PathLike)) or not os.fspath(self.resume)):
            raise ArgumentError(
                f"resume must be the path of a file; got {self.resume!r}", hint='write it as resume="fit.rounds"'
            )
        self._check_stopping()

    def _json_parameters(self) -> dict[str, Any]:
        """Write the parameters as JSON can hold them, but for the file of finished rounds: it changes nothing."""
        return {name: value for name, value in super()._json_parameters().items() if name != "resume"}


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float, np.number)) and not isinstance(value, bool) and bool(np.isfinite(value))


def _reason(chosen: int, judged: Sequence[tuple[float, float, float]], most: int, *, fixed: bool) -> str:
    before, after = judged[0][0], judged[chosen][0]
    if fixed:
        return f"{chosen} round{'s' if chosen > 1 else ''} as told; nothing was held out to judge by"
    if not chosen:
        return "no round lowered the held-out loss beyond noise: scores are left unchanged"
    ended = "the most that were allowed" if chosen == most else "the next brought nothing beyond noise"
    return f"{chosen} round{'s' if chosen > 1 else ''}: held-out loss {before:.6g} -> {after:.6g}; {ended}"
