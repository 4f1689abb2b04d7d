"""MCGrad: multicalibration by gradient boosting on features and prediction: parameters, and the course of a fit."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from trueup._validate import MAX_INTEGER, check_integer, check_number
from trueup.calibrators import stopping
from trueup.calibrators.base import FitResult, SegmentCalibrator
from trueup.calibrators.history import History
from trueup.calibrators.mcgrad.cascade import Cascade, CascadeRound, Checkpoint, fingerprint_table
from trueup.calibrators.mcgrad.grower import CascadeGrower, FastRates, gain_shares, is_complete, now
from trueup.calibrators.mcgrad.repeats import RepeatedGrower
from trueup.calibrators.scoring import score_name
from trueup.calibrators.stopping import CrossValidation, task_loss
from trueup.errors import ArgumentError
from trueup.kernels.threads import Workers
from trueup.learners.lightgbm import GrowthParameters, check_other_parameters

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trueup._types import FloatArray
    from trueup.cluster.partitions import PartitionedTable
    from trueup.data.table import Schema, Table


# Numbers of leaves that a fit chooses from after tables (depth 2), and the learning rate of each: small trees tolerate
# larger steps. Trees of many leaves are compared where each would have enough rows.
TABLE_RATE = 0.3
FAST_RATES = ((100, 0.5), (200, 0.3))  # many rows that need more than so many tables, or larger trees: learning rate
LEAVES = {12: 0.15, 40: 0.1, 128: 0.1}
MIN_ROWS_PER_LEAF = 20
SINGLE_RATE = 0.1  # of a single model, which is not averaged with others
MAX_TREES, FIXED_TREES = 2000, 100
MAX_ROUNDS, FIXED_ROUNDS = 10, 1
TREE_PATIENCE = 20
MANY_CLASSES, MANY_CLASSES_PATIENCE = 20, 8  # each round of boosting grows a tree per class
SMALL_ROWS, SMALL_REPEATS = 2_500, 4  # with fewer rows the cross-validation is repeated so many times
MAX_REPEATS = 100
MAX_LEAVES = MAX_BINS = 4096
TRIAL_SHARE = 0.25  # of a time limit, for the comparison of capacities


@dataclass(eq=False, repr=False, kw_only=True)
class MCGrad(SegmentCalibrator):
    """Calibrate predictions on every segment: boosted trees over the features and the prediction itself.

    The first round is a line (slope and intercept) if a test shows that scores need one. Each further round fits trees to
    the residuals of the score before it, with that score among the features, and is kept only if it lowers the loss of
    held-out rows significantly (the first one by a score test); if no round is kept, scores are left unchanged.

    Parameters
    ----------
    prediction : column name, or several
        The score to be corrected: a probability, a real number (``task="regression"``), or one column per class.
        For an array a position; by default all columns, one per class, if every row adds up to 1 or holds ``logits``, else
        0.
    features : column names, optional
        The columns that define segments; by default every other column.
    exclude : column names
        Columns that the correction must not use, such as protected attributes; `explain` still reports what the correction
        does on their levels. A name that is also a feature, or is no column, is an error.
    task : {"auto", "binary", "regression"}
        "auto" is binary for one prediction column, multiclass for several.
    depth : "auto", int or None
        The maximum depth of a tree. By default the fit compares tables (depth 2) and trees of 12 to 128 leaves on held-out
        rows, and takes the simplest that is as good as the best within half a standard error; ``history_.capacities`` has
        the comparison. With 2, trees collapse into tables of feature pairs: the time to score a row does not depend on
        their number. With None, trees are limited by ``leaves`` alone.
    leaves : int, optional
        The maximum number of leaves of a tree, which the fit then does not choose; by default ``2 ** depth``, or 5 if depth
        is None.
    learning_rate : float, optional
        By default 0.3 for tables to 0.1 for large trees if the models of a cross-validation are averaged (0.5 and 0.3 if
        more than 50,000 rows need many trees), and 0.1 for a single model.
    feature_fraction : float
        The share of the features that each tree may use.
    min_hessian : float
        The minimum sum of p (1 - p) in a leaf (number of rows in regression): prevents overfitting of extreme scores.
    min_rows : int
        The minimum number of rows in a leaf.
    min_gain : float
        The minimum gain of a split, as LightGBM's ``min_gain_to_split``.
    subsample : float
        The share of the rows that each tree is grown on.
    l2 : float
        L2 regularisation of leaf values.
    bins : int
        The maximum number of bins of a numeric feature.
    rounds : int, optional
        The maximum number of rounds of trees, 10 by default; the exact number if ``stopping`` is None, then 1 by default.
    trees : int, optional
        The maximum number of trees of a round, 2,000 by default; the exact number if ``stopping`` is None, then 100 by
        default.
    repeats : int, optional
        How many times the cross-validation is repeated, with other folds each time: held-out scores are means over the
        repeats, and the model is the mean of all fold models. By default 4 for fewer than 2,500 rows, where that finds
        errors that a single one misses, and 1 for more. Files and cluster DataFrames are not repeated; ``resume`` starts a
        repeated fit again.
    stopping : CrossValidation, Holdout, Validation or None
        The rows that rounds are evaluated on. None trains on all rows for a fixed number of rounds and trees, without any
        protection against overfitting.
    monotone : bool or mapping
        Keep the order of rows with equal features: the correction increases with the prediction. A mapping of columns to 1
        or -1, such as ``{"age": 1, "p": 1}``, makes the correction rise or fall with numeric features. Not for several
        classes.
    lightgbm : mapping, optional
        Further parameters of LightGBM's trees, such as ``{"extra_trees": True}``. A name that LightGBM does not have, and
        one that a parameter of this class sets, is an error.
    categorical : column names
        Numeric columns to be treated as categories.
    classes : sequence, optional
        For several prediction columns, the outcome of each, in their order.
    logits : bool
        Whether prediction columns hold logits: of the classes, for which a softmax gives probabilities, or of one
        probability, by a sigmoid. Corrected predictions are probabilities.
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
    time_limit : float, optional
        Seconds after which the fit grows no more trees and returns the best rounds so far; ``history_.stopped`` says so. At
        most a quarter of it is for the comparison of capacities. Reading the rows before, the refit of
        ``CrossValidation(refit=True)`` and explaining the model afterwards are not limited, and such a fit depends on the
        speed of the machine.

    Attributes
    ----------
    model_ : Model
        The fitted model, which can be saved.
    history_ : History
        The held-out loss and the training loss of every round, the number chosen, and the reason;
        `trueup.figures.draw_history` draws it.
    feature_importances_ : ndarray of float64
        The share of each column of ``feature_names_in_``, the features and then the score itself, in the gain of all splits
        of the trees of the model; zeros if it has no trees. Lines, which use the score alone, have no part in it.
    feature_names_in_ : ndarray of str
        The features, followed by the predictions.
    held_out_ : Scored or None
        Outcomes ``y``, scores ``p`` and weights ``w`` of the held-out rows, in input order, each scored by a model that was
        not trained on it; for several classes y is the index of the class, and p has a column per class. `trueup.decisions`
        takes them as ``labelled=calibrator``. They are not for an audit, which is
        nearly blind to the errors of a cross-validation. None if nothing was held out, for real outcomes, and if
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

    A categorical feature of nine or more levels is also split by the number of rows of its levels, so that rare levels are
    corrected together; one of 33 or more levels, in cross-validations, by the mean residual of each level, shrunken and
    computed on the training rows of the fold. Either split is stored as a set of levels.

    Integer weights with a mean of up to 100 count as repeated rows. Any other weights are scaled to the effective sample
    size, (sum w)^2 / sum w^2, so that their unit does not matter.

    References
    ----------
    Tax, Perini, Linder, Haimovich, Karamshuk, Okati, Vojnovic & Apostolopoulos (2026), "MCGrad: Multicalibration
    at Web Scale", KDD 2026, doi:10.1145/3770854.3783954, arXiv:2509.19884.

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

    depth: int | str | None = "auto"
    leaves: int | None = None
    learning_rate: float | None = None
    feature_fraction: float = 0.7
    min_hessian: float = 2.0
    min_rows: int = 1
    min_gain: float = 0.0
    subsample: float = 1.0
    l2: float = 1.0
    bins: int = 63
    rounds: int | None = None
    trees: int | None = None
    repeats: int | None = None
    monotone: bool | Mapping[Any, int] = False
    lightgbm: Mapping[str, Any] | None = None
    classes: Any = None
    logits: bool = False
    engine: str = "auto"
    resume: str | os.PathLike[str] | None = None
    time_limit: float | None = None

    uses_score: ClassVar[bool] = True

    def _fit_map(self, table: Table, progress: Any) -> FitResult:
        deadline, trial_deadline = self._deadlines(now())
        growth, loss = self._growth_parameters(table.schema), task_loss(table.schema.task)
        rows, splits = self._split_rows(table)
        repeats, checkpoint = self._repeats(len(table)), None
        if self.resume is not None:
            content = {**fingerprint_table(rows), "training rows": len(table), "repeats": repeats}
            checkpoint = self._checkpoint(growth, content)
        score = self._rule_score(rows, np.concatenate([split.valid for split in splits]))
        training: list[float] = []
        first = CascadeGrower(
            rows, loss, splits, growth, stopping.scale_weights(rows.weight, len(table)),
            Workers(self.threads), progress, capacities=self._capacities(growth, len(table)),
            fast_rates=self._fast_rates(), max_rounds=self._max_rounds(),
            line=self.stopping is not None, averaged=self._is_averaged(),
            given=checkpoint.rounds(len(splits)) if checkpoint else (),
            on_round=checkpoint.keep if checkpoint and repeats == 1 else None,
            score=score, training=training, deadline=deadline, trial_deadline=trial_deadline,
        )  # fmt: skip
        grower: CascadeGrower | RepeatedGrower = first
        if isinstance(self.stopping, CrossValidation) and repeats > 1:
            grower = RepeatedGrower(first, self.stopping, repeats, training)
        evaluated, rounds = grower.evaluated_rows, grower.rounds
        tested = isinstance(self.stopping, CrossValidation) and score is None
        errors = (stopping.SEARCH_ERRORS, stopping.REPEATED_SEARCH_ERRORS)
        if tested:
            errors = (stopping.SCORE_TEST_ERRORS, stopping.REPEATED_SCORE_TEST_ERRORS)
        choice = stopping.choose_rounds(
            grower.losses(),
            None if rows.weight is None or score is not None else rows.weight[evaluated],
            patience=self._max_rounds() if self.stopping is None else self.stopping.patience,
            on_improvement=None if self.stopping is None else grower.keep_best,
            cluster=stopping.cluster_numbers(rows, evaluated) if score is None else None,
            is_line=lambda number: rounds[number - 1].is_line,
            errors=errors[repeats > 1],
            slopes=grower.slopes if tested else None,
        )
        cascade, history, importances = self._finish(
            table.schema, *choice, rounds, grower.refit, training, late=grower.late
        )
        best = grower.best
        del first, grower  # and their memory, before the model is applied
        held_out = None
        if self.stopping is not None:
            scores = rows.prediction[evaluated] if best is None else loss.invert_link(best)
            held_out = stopping.collect_held_out(rows, evaluated, scores)
        done = checkpoint.done if checkpoint else None
        return FitResult(cascade, history, held_out=held_out, importances=importances, on_success=done)

    def _deadlines(self, started: float) -> tuple[float, float]:
        """Return when a fit that began at ``started`` stops growing, and when it stops comparing capacities."""
        limit = math.inf if self.time_limit is None else float(self.time_limit)
        return started + limit, started + TRIAL_SHARE * limit

    def _fit_partitioned(self, partitions: PartitionedTable) -> None:
        from trueup.calibrators.mcgrad.partitioned import fit_partitioned

        fit_partitioned(self, partitions)

    def _checkpoint(self, growth: GrowthParameters, content: Mapping[str, Any]) -> Checkpoint:
        """Return the checkpoint at ``resume``, identified by parameters (not ``rounds``) and ``content`` of the rows."""
        assert self.resume is not None
        identity = {name: value for name, value in asdict(growth).items() if name not in ("threads", "machines")}
        if self._capacities(growth, MAX_INTEGER):
            identity |= {"depth": "auto", "leaves": None}
        identity |= {"method": type(self).__name__, "stopping": self._json_parameters()["stopping"], **content}
        return Checkpoint(self.resume, identity)

    def _finish(
        self,
        schema: Schema,
        chosen: int,
        evaluations: Sequence[stopping.Evaluation],
        rounds: Sequence[CascadeRound],
        refit: Callable[[tuple[CascadeRound, ...]], tuple[CascadeRound, ...]],
        training: Sequence[float],
        *,
        late: bool,
    ) -> tuple[Cascade, History, FloatArray]:
        """Return the map of the first ``chosen`` rounds, the full history, and the share of each column in the gain.

        A rule may require to ``refit`` the rounds. ``training`` are the training losses; ``late`` says that the time limit
        ended the search.
        """
        most, loss = self._max_rounds(), task_loss(schema.task)
        score = None if self.stopping is None else self.stopping.score
        measure = loss.measure if score is None else score_name(score)
        if late and not rounds:
            reason = "the time limit ended the fit before the first round; scores are left unchanged"
        elif self.stopping is None:
            chosen = len(rounds) if late else most
            end = ", stopped at the time limit" if late else " as specified"
            reason = f"{stopping.count_rounds(chosen)}{end}; no rows were held out"
        else:
            tried = len(evaluations) - 1 - chosen
            end = f"the next {f'{tried} rounds' if tried > 1 else 'round'} did not lower it significantly"
            if is_complete(rounds[:chosen], most):
                end = "stopped at the maximum number of rounds"
            elif late:
                end = "stopped at the time limit"
            compared = stopping.HELD_OUT_LOSS if self.stopping.score is None else f"held-out {measure}"
            reason = stopping.describe_choice(
                chosen, evaluations, end, f"scores are left unchanged{' (stopped at the time limit)' * late}",
                line=rounds[0].p_value if rounds else None, measure=compared,
            )  # fmt: skip
        trees, thetas = [r.trees for r in rounds], [sum(r.thetas) / len(r.thetas) for r in rounds]
        evaluated_on = stopping.evaluation_rows(self.stopping)
        p_values = [round_.p_value for round_ in rounds]
        history = History.of(evaluations, chosen, reason, evaluated_on, measure, trees, thetas, training, p_values)
        curves: list[tuple[float, ...]] = [(), *(round_.losses if score is None else () for round_ in rounds)]
        history = replace(
            history, capacities=tuple(trial for round_ in rounds for trial in round_.trials),
            rounds=tuple(
                replace(own, tree_losses=curve)
                for own, curve in zip(history.rounds, curves, strict=False)
            ),
            stopped=f"the time limit of {self.time_limit} s ended the fit: the best rounds so far are kept" * late,
        )  # fmt: skip
        kept = tuple(rounds[:chosen])
        if kept and isinstance(self.stopping, CrossValidation) and self.stopping.refit:
            kept = refit(kept)
        joined = tuple(round_.joined() for round_ in kept)
        cascade = Cascade(loss.link, schema.levels, len(schema.prediction), joined)
        return cascade, history, gain_shares(kept, len(schema.features) + len(schema.prediction))

    def _repeats(self, rows: int) -> int:
        """Validate the number of cross-validations, and return it for so many rows."""
        check_integer("repeats", self.repeats, 1, MAX_REPEATS, optional=True)
        if not isinstance(self.stopping, CrossValidation):
            if self.repeats is not None and self.repeats > 1:
                raise ArgumentError(
                    f"repeats={self.repeats} needs a cross-validation to repeat; stopping is {self.stopping!r}",
                    hint="leave repeats out, or use stopping=tu.CrossValidation(5)",
                    parameter="repeats",
                )
            return 1
        return self.repeats or (SMALL_REPEATS if rows < SMALL_ROWS else 1)

    def _is_averaged(self) -> bool:
        return isinstance(self.stopping, CrossValidation) and not self.stopping.refit

    def _max_rounds(self) -> int:
        return self.rounds or (FIXED_ROUNDS if self.stopping is None else MAX_ROUNDS)

    def _growth_parameters(self, schema: Schema) -> GrowthParameters:
        """Validate all parameters and return those of the trees; a capacity that the fit chooses is that of tables."""
        outputs = len(schema.prediction)
        self._check_parameters(outputs)
        depth = self.depth if isinstance(self.depth, int) else 2 if self.depth == "auto" and self.leaves is None else None
        leaves = self.leaves or (5 if depth is None else 2 ** min(depth, 12))
        rate = self.learning_rate or (_averaged_rate(leaves) if self._is_averaged() else SINGLE_RATE)
        return GrowthParameters(
            task_loss(schema.task).name, outputs, depth, leaves, rate, self.feature_fraction, self.l2, self.min_hessian,
            self.min_rows, self.min_gain, self.subsample, self._monotone(schema), self.bins, int(self.random_state),
            self.trees or (FIXED_TREES if self.stopping is None else MAX_TREES),
            TREE_PATIENCE if outputs < MANY_CLASSES else MANY_CLASSES_PATIENCE,
            other=check_other_parameters(self.lightgbm),
        )  # fmt: skip

    def _capacities(self, growth: GrowthParameters, rows: int) -> list[GrowthParameters]:
        """Return the capacities that the fit chooses from, the simplest first; empty if the parameters determine it."""
        if self.depth != "auto" or self.leaves is not None or self.stopping is None:
            return []
        larger = [leaves for leaves in LEAVES if leaves * MIN_ROWS_PER_LEAF <= rows]
        rate = growth.learning_rate if self.learning_rate or growth.learning_rate == SINGLE_RATE else None
        return [
            growth,
            *(replace(growth, depth=None, leaves=leaves, learning_rate=rate or LEAVES[leaves]) for leaves in larger),
        ]

    def _fast_rates(self) -> FastRates | None:
        """Return the learning rates for many rows that need many trees; None if the rate is given."""
        return FAST_RATES if self.learning_rate is None and self._is_averaged() else None

    def _monotone(self, schema: Schema) -> tuple[int, ...]:
        """Validate the constraints; return 1, -1 or 0 for every feature, then for the prediction."""
        given: Any = self.monotone
        if isinstance(given, bool):
            return (0,) * len(schema.features) + (int(given),)
        kinds = {feature.name: feature.kind for feature in schema.features}
        problem, hint = "", 'write it as monotone={"age": 1}, with 1 or -1 for a numeric feature or the prediction'
        if not isinstance(given, Mapping):
            problem = f"monotone must be True, False or a mapping of columns; got {given!r}"
        else:
            for name, direction in given.items():
                if str(name) not in kinds and str(name) not in schema.prediction:
                    problem = f"monotone names the column {name!r}, which is neither a feature nor the prediction"
                elif kinds.get(str(name)) == "categorical":
                    problem = f"monotone names the column {name!r}, whose values are categories without an order"
                elif isinstance(direction, bool) or direction not in (1, -1):
                    problem = f"monotone[{name!r}] must be 1 or -1; got {direction!r}"
        if problem:
            raise ArgumentError(problem, hint=hint, parameter="monotone")
        names = [*kinds, schema.prediction[0] if schema.prediction else ""]
        directions = {str(name): int(direction) for name, direction in given.items()}
        return tuple(directions.get(name, 0) for name in names)

    def _check_parameters(self, outputs: int) -> None:
        if self.depth != "auto":
            hint = 'depth="auto" lets the fit choose'
            check_integer("depth", self.depth, 1, MAX_INTEGER, optional=True, hint=hint)
        check_integer("leaves", self.leaves, 2, MAX_LEAVES, optional=True)
        check_integer("rounds", self.rounds, 1, MAX_INTEGER, optional=True)
        check_number("min_hessian", self.min_hessian, 0)
        check_growth(self)
        check_integer("min_rows", self.min_rows, 1, MAX_INTEGER)
        check_number("min_gain", self.min_gain, 0)
        check_number("time_limit", self.time_limit, 0, above=True, optional=True)
        check_number("subsample", self.subsample, 0, 1, above=True)
        if self.monotone is not False and outputs > 1:
            raise ArgumentError(
                "monotone needs a single prediction column",
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
        skipped = ("resume",) if self.time_limit is not None else ("resume", "time_limit")
        return {name: value for name, value in super()._json_parameters().items() if name not in skipped}


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


def _averaged_rate(leaves: int) -> float:
    """Return the learning rate of trees whose models are averaged."""
    return next((rate for size, rate in reversed(LEAVES.items()) if leaves >= size), TABLE_RATE)
