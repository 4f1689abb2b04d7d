"""MCGrad: multicalibration by gradient boosting on features and prediction."""

from __future__ import annotations

import itertools
import os
from dataclasses import KW_ONLY, asdict, dataclass
from typing import TYPE_CHECKING, Any

from scipy.special import expit

from trueup._validate import check_integer, check_number
from trueup.calibrators.base import Calibrator, FitResult
from trueup.calibrators.mcgrad.cascade import Cascade
from trueup.calibrators.mcgrad.checkpoint import Checkpoint, fingerprint_table
from trueup.calibrators.mcgrad.grower import CascadeGrower, RoundLimits
from trueup.calibrators.stopping import (
    CrossValidation,
    History,
    choose_rounds,
    collect_held_out,
    evaluation_rows,
    scale_weights,
    task_loss,
)
from trueup.errors import ArgumentError
from trueup.kernels.threads import Workers
from trueup.learners.lightgbm import GrowthParameters

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trueup.calibrators.mcgrad.cascade import CascadeRound
    from trueup.calibrators.stopping import Stopping
    from trueup.cluster.partitions import PartitionedTable
    from trueup.data.table import Schema, Table


# Learning rates: the mean of several models tolerates larger steps; a first round of few trees also tries the finer one.
AVERAGED_RATE, FINER_RATE, SINGLE_RATE = 0.4, 0.1, 0.1
MAX_TREES, FIXED_TREES = 2000, 100
MAX_ROUNDS, FIXED_ROUNDS = 10, 1
TREE_PATIENCE = 20
MAX_LEAVES = MAX_BINS = 4096
MAX_INTEGER = 2**31 - 1


@dataclass(eq=False, repr=False)
class MCGrad(Calibrator):
    """Calibrate predictions on every segment: boosted trees over the features and the prediction itself.

    Each round fits trees to the residuals of the score before it, with that score among the features, and is kept only if
    it lowers the loss of held-out rows significantly; without any round, scores are left unchanged.

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
        Outcomes ``y``, scores ``p`` and weights ``w`` of the held-out rows, in their order, each scored by a model that was
        not trained on it. `trueup.decisions` takes them as ``labelled=calibrator``. None if nothing was held out, if the
        task is not binary, and if rows need not fit in memory. Not saved with the model.
    held_out_rows_ : ndarray of int64, or None
        Their positions in the frame passed to ``fit``; None also if they came from a `Validation`.
    held_out_before_ : ndarray of float64, or None
        Their scores before the correction.

    Notes
    -----
    Rows need not fit in memory: ``fit(trueup.scan("rows/*.parquet"), "clicked")`` reads files, and Spark and Dask
    DataFrames are fitted by the workers that hold them; outcome and weight are then column names. Bins are found from
    100,000 rows, and rows are assigned to folds by a hash of their content: unless many rows of a partition are identical,
    the model does not depend on how rows are partitioned. It differs from that of rows in memory by the random assignment
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

    prediction: Any = None
    features: Any = None
    _: KW_ONLY
    task: str = "auto"
    depth: int | None = 2
    leaves: int | None = None
    learning_rate: float | None = None
    feature_fraction: float = 0.7
    min_hessian: float = 2.0
    l2: float = 1.0
    bins: int = 63
    rounds: int | None = None
    trees: int | None = None
    stopping: Stopping = CrossValidation()  # noqa: RUF009  (a frozen value)
    monotone: bool = False
    categorical: Any = ()
    classes: Any = None
    unlabelled: str = "error"
    random_state: int = 0
    threads: int | None = None
    engine: str = "auto"
    resume: str | os.PathLike[str] | None = None

    def _fit_map(self, table: Table, progress: Any) -> FitResult:
        growth = self._growth_parameters(table.schema)
        loss = task_loss(table.schema.task)
        rows, splits = self._split_rows(table)
        checkpoint = None
        if self.resume is not None:
            checkpoint = self._checkpoint(growth, {**fingerprint_table(rows), "training rows": len(table)})
        grower = CascadeGrower(
            rows, loss, splits, growth, self._round_limits(growth), scale_weights(rows.weight, len(table)),
            Workers(self.threads), progress, given=checkpoint.rounds(len(splits)) if checkpoint else (),
            on_round=checkpoint.keep if checkpoint else None,
        )  # fmt: skip
        evaluated, most = grower.evaluated_rows, self._max_rounds()
        keeps_scores = self.stopping is not None and table.schema.task == "binary"
        chosen, evaluations = choose_rounds(
            itertools.islice(grower.losses(), most + 1),
            None if rows.weight is None else rows.weight[evaluated],
            patience=most if self.stopping is None else self.stopping.patience,
            on_improvement=grower.keep_best if keeps_scores else None,
        )
        history = self._make_history(chosen, evaluations, grower.rounds, loss.measure)
        kept = tuple(grower.rounds[: history.chosen])
        if kept and isinstance(self.stopping, CrossValidation) and self.stopping.refit:
            kept = grower.refit(kept)
        cascade = Cascade(loss.link, grower.levels, growth.outputs, kept)
        best = grower.best
        del grower  # and its memory, before the model is applied
        held_out = None
        if self.stopping is not None:
            held_out = collect_held_out(rows, evaluated, rows.prediction[evaluated] if best is None else expit(best[:, 0]))
        return FitResult(cascade, history, held_out=held_out, on_success=checkpoint.done if checkpoint else None)

    def _fit_partitioned(self, partitions: PartitionedTable) -> None:
        from trueup.calibrators.mcgrad.partitioned import fit_partitioned

        fit_partitioned(self, partitions)

    def _checkpoint(self, growth: GrowthParameters, content: Mapping[str, Any]) -> Checkpoint:
        """Return the file of finished rounds, identified by the parameters (but the number of rounds) and the rows."""
        assert self.resume is not None
        parameters = {**asdict(growth), **asdict(self._round_limits(growth))}
        identity = {name: value for name, value in parameters.items() if name not in ("threads", "machines")}
        stopping = self._json_parameters()["stopping"]
        return Checkpoint(self.resume, {"method": type(self).__name__, **identity, "stopping": stopping, **content})

    def _make_history(
        self,
        chosen: int,
        evaluations: Sequence[tuple[float, float, float]],
        rounds: Sequence[CascadeRound],
        measure: str,
    ) -> History:
        """Return the history of evaluated rounds, with the reason for the number chosen."""
        most = self._max_rounds()
        if self.stopping is None:
            chosen = most
        plural = "s" if chosen > 1 else ""
        if self.stopping is None:
            reason = f"{chosen} round{plural} as specified; no rows were held out"
        elif not chosen:
            reason = "no round lowered the held-out loss significantly; scores are left unchanged"
        else:
            before, after = evaluations[0][0], evaluations[chosen][0]
            end = "stopped at the maximum number of rounds"
            if chosen < most:
                end = "the next round did not lower it significantly"
            reason = f"{chosen} round{plural}: held-out loss {before:.6g} -> {after:.6g}; {end}"
        trees, thetas = [r.trees for r in rounds], [r.theta for r in rounds]
        return History.of(evaluations, chosen, reason, evaluation_rows(self.stopping), measure, trees, thetas)

    def _max_rounds(self) -> int:
        return self.rounds or (FIXED_ROUNDS if self.stopping is None else MAX_ROUNDS)

    def _round_limits(self, growth: GrowthParameters) -> RoundLimits:
        finer = FINER_RATE if self.learning_rate is None and growth.learning_rate > FINER_RATE else None
        return RoundLimits(self.trees or (FIXED_TREES if self.stopping is None else MAX_TREES), TREE_PATIENCE, finer)

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
        )  # fmt: skip

    def _check_parameters(self, outputs: int) -> None:
        check_integer("depth", self.depth, 1, MAX_INTEGER, optional=True)
        check_integer("leaves", self.leaves, 2, MAX_LEAVES, optional=True)
        check_integer("bins", self.bins, 2, MAX_BINS)
        check_integer("rounds", self.rounds, 1, MAX_INTEGER, optional=True)
        check_integer("trees", self.trees, 1, MAX_INTEGER, optional=True)
        check_integer("random_state", self.random_state, 0, MAX_INTEGER)
        check_integer("threads", self.threads, 1, MAX_INTEGER, optional=True)
        check_number("learning_rate", self.learning_rate, 0, 1, above=True, optional=True)
        check_number("feature_fraction", self.feature_fraction, 0, 1, above=True)
        check_number("min_hessian", self.min_hessian, 0)
        check_number("l2", self.l2, 0)
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
        self._check_stopping()

    def _json_parameters(self) -> dict[str, Any]:
        """Return the parameters as JSON values, except for ``resume``, which does not affect the model."""
        return {name: value for name, value in super()._json_parameters().items() if name != "resume"}
