"""LSBoost: multicalibration by regression on the level sets of the score."""

from __future__ import annotations

import itertools
import math
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup._validate import check_choice, check_integer, check_number
from trueup.calibrators.base import Calibrator, FitResult
from trueup.calibrators.lsboost.external import ExternalLearner, ExternalLevelSets
from trueup.calibrators.lsboost.levelsets import LevelSets, ScoreScale
from trueup.calibrators.lsboost.rounds import GATE_FOLDS, LevelModel, LevelSearch, RoundRules, make_map
from trueup.calibrators.map import UnchangedMap
from trueup.calibrators.stopping import (
    CrossValidation,
    History,
    assign_folds,
    check_row_count,
    collect_held_out,
    evaluation_rows,
    hold_out_last,
    scale_weights,
    task_loss,
)
from trueup.data.frame import NO_PREDICTION, describe_rows, read_like
from trueup.errors import ArgumentError, DataError
from trueup.kernels.threads import Workers
from trueup.learners.level_regression import BinnedColumns, LineLearner, TreeLearner, min_leaf_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trueup._types import FloatArray
    from trueup.calibrators.lsboost.rounds import LevelLearner
    from trueup.calibrators.map import Map
    from trueup.calibrators.stopping import Stopping
    from trueup.data.table import Table


PATIENCE = 10  # rounds without a lower held-out loss after which the search stops
MAX_ROUNDS, FIXED_ROUNDS = 100, 10
MAX_LEVELS = 1_000_000
MAX_NODES = 2**27  # of the trees of a round
HOLD = 0.5  # the share of its distance from 0 and from 1 that a probability keeps in a round: none becomes 0 or 1
REGRESSOR_METHODS = ("fit", "predict", "get_params")
MAX_SCORE = 1e300  # absolute value of a real score


@dataclass(eq=False, repr=False)
class LSBoost(Calibrator):
    """Regress the outcome on the features, level set by level set of the score, until no level can be improved.

    Each round groups rows by their score and fits one small regression per group; if it lowers the squared error, the group
    was not multicalibrated, and its scores move towards the fit (Globus-Harris et al. 2023). It corrects a prediction
    column, or, without one, is a regressor that starts from the mean.

    Parameters
    ----------
    prediction : column name, optional
        The score to be corrected. None predicts from the features alone, starting from the mean outcome.
    features : column names, optional
        The features of the learners; by default every other column.
    task : {"auto", "binary", "regression"}
        "auto" is binary with a prediction, regression without.
    learner : {"tree", "linear"} or scikit-learn regressor
        What is fitted to each level. Trees and linear functions are fitted to all levels of a round together. Any other
        regressor is fitted level by level; such a model predicts, but cannot be saved.
    depth : int
        Of the trees.
    levels : int
        The maximum number of level sets.
    spacing : {"mass", "equal"}
        "mass" cuts the scores of each round into levels of equal numbers of rows, and keeps their differences within a
        level. "equal" rounds every score to a multiple of ``1 / levels`` of the range of the outcome, as the paper does.
    min_rows : int
        The minimum number of rows of a level with a learner. With few rows there are fewer levels: a single one is boosting
        without level sets.
    learning_rate : float
        The share of the way to the fit that scores move.
    l2 : float
        L2 regularisation of leaf values and slopes.
    gate : float or None
        By how many standard errors a fit must lower the squared error of rows it was not fitted on for its level to move:
        one in four of the training rows, different ones in every round. They also choose the depth of its tree. None
        accepts every fit, and so does ``stopping=None``.
    bins : int
        The maximum number of bins of a numeric feature for trees.
    rounds : int, optional
        The maximum number of rounds: 100, or 10 if ``stopping`` is None.
    alpha, bound : float
        ``alpha`` runs Algorithm 1 of the paper unchanged, up to this multicalibration error (in units where the outcome
        spans 0 to 1) against functions whose square is at most ``bound``: ``ceil(2 bound / alpha)`` equal levels, no gate,
        full steps, stopping when a round lowers the training error by less than ``alpha / (2 bound)``. ``levels``,
        ``spacing``, ``min_rows``, ``learning_rate``, ``l2``, ``gate``, ``rounds`` and ``stopping`` are then ignored.
    limits : pair of float, optional
        Lowest and highest outcome, for equal levels of a real outcome; by default those of the rows.
    stopping : CrossValidation, Holdout, Validation or None
        The rows that determine the number of rounds: neither trained on, nor used by gates.
    categorical, unlabelled, random_state, threads
        As in `trueup.MCGrad`.

    Attributes
    ----------
    model_ : Model
    history_ : History
    held_out_, held_out_rows_, held_out_before_
        As in `trueup.MCGrad`.

    References
    ----------
    Globus-Harris, Harrison, Kearns, Roth & Sorrell, "Multicalibration as Boosting for Regression", ICML 2023.

    Examples
    --------
    >>> import trueup as tu
    >>> data = tu.simulate.lending(20_000, seed=1)
    >>> fix = tu.LSBoost("prediction", ["region", "product", "age"]).fit(data, data["outcome"])
    >>> fix.history_.loss_after < fix.history_.loss_before
    True
    """

    classes = None

    prediction: Any = None
    features: Any = None
    _: KW_ONLY
    task: str = "auto"
    learner: Any = "tree"
    depth: int = 3
    levels: int = 10
    spacing: str = "mass"
    min_rows: int = 2000
    learning_rate: float = 0.3
    l2: float = 10.0
    gate: float | None = 0.5
    bins: int = 255
    rounds: int | None = None
    alpha: float | None = None
    bound: float = 1.0
    limits: Any = None
    stopping: Stopping = CrossValidation()  # noqa: RUF009  (a frozen value)
    categorical: Any = ()
    unlabelled: str = "error"
    random_state: int = 0
    threads: int | None = None

    def staged_predict(self, X: Any) -> Iterator[FloatArray]:
        """Yield the predictions after 0 rounds (rounded, if levels are equal), 1 round, and so on up to the last."""
        model = self._fitted()
        table = read_like(X, model.schema)
        columns = [table.columns[feature.name] for feature in model.schema.features]
        if isinstance(model.map, (LevelSets, ExternalLevelSets)):
            yield from model.map.stages(columns, table.prediction)
        else:
            yield table.prediction.copy()

    def _prediction_role(self) -> Any:
        return NO_PREDICTION if self.prediction is None else self.prediction

    def _task(self) -> str:
        return "regression" if self.prediction is None and self.task == "auto" else self.task

    def _base_scores(self, table: Table, fitted: Map) -> FloatArray:
        if isinstance(fitted, (LevelSets, ExternalLevelSets)):
            return _initial_scores(table, fitted.scale)
        return table.prediction

    def _fit_map(self, table: Table, progress: Any) -> FitResult:
        self._check_parameters(table)
        rows, parts = table, hold_out_last(len(table))
        if self.alpha is None:
            rows, parts = self._split_rows(table)
        else:  # Algorithm 1 trains on all rows, whatever the stopping rule
            check_row_count(table)
        scaled = scale_weights(rows.weight, len(table))
        weight = np.ones(len(rows)) if scaled is None else scaled
        scale = self._score_scale(table)
        assert rows.outcome is not None
        y = (rows.outcome - scale.offset) / scale.unit
        F = scale.initial(rows.prediction)
        gate = None if self.alpha is not None or self.stopping is None else self.gate
        rules = RoundRules(scale, self.levels, self.min_rows, gate)
        if self.alpha is not None:
            rules = RoundRules(scale, scale.grid + 1, 0.0, None)
        learner = self._make_learner(rows, weight)
        gates = None if gate is None else assign_folds(rows, GATE_FOLDS, int(self.random_state) + 1)
        models = [LevelModel(learner, rules, y, F, weight, part.train, gates) for part in parts]
        loss = task_loss("regression" if self.alpha is not None else table.schema.task)
        search = LevelSearch(models, parts, rows, loss, Workers(self.threads), progress)
        history = self._run_algorithm_1(search) if self.alpha is not None else self._run(search)
        chosen = history.chosen
        held_out = None
        evaluated = np.concatenate([part.valid for part in parts])
        if len(evaluated):
            base = rows.prediction if scale.start is None else scale.restore(F)
            scores = search.best if chosen and search.best is not None else base[evaluated]
            held_out = collect_held_out(rows, evaluated, scores)
        if not chosen and scale.start is None and self.alpha is None:
            return FitResult(UnchangedMap(), history, held_out=held_out)
        refit = self.alpha is None and isinstance(self.stopping, CrossValidation) and self.stopping.refit
        if chosen and refit:
            models = [LevelModel(learner, rules, y, F, weight, np.arange(len(F)), gates)]
            for _ in range(chosen):
                models[0].add_round(Workers(self.threads))
        return FitResult(make_map(models, chosen, table.schema.levels), history, held_out=held_out)

    def _score_scale(self, table: Table) -> ScoreScale:
        """Return the scale of scores: unbounded or [0, 1] for levels of equal mass, a grid on [0, 1] for equal levels."""
        assert table.outcome is not None
        y = table.outcome
        alone = not table.schema.prediction
        mean = float(np.average(y, weights=table.weight)) if alone else 0.0
        binary = table.schema.task == "binary"
        if self.alpha is None and self.spacing == "mass":
            if binary:
                return ScoreScale(0.0, 1.0, 0.0, 1.0, self.learning_rate, 0, mean if alone else None, HOLD)
            # A power of 2 near the largest residual: fourth powers stay finite, and no digit is lost.
            largest = float(np.abs(y - (mean if alone else table.prediction)).max())
            unit = 2.0 ** min(max(math.frexp(largest)[1], -600), 340) if largest else 1.0
            most = MAX_SCORE / max(unit, 1.0)
            return ScoreScale(-most, most, 0.0, unit, self.learning_rate, 0, mean / unit if alone else None)
        grid, rate = self.levels, self.learning_rate
        if self.alpha is not None:
            grid, rate = max(1, math.ceil(2 * self.bound / self.alpha - 1e-9)), 1.0
        ends = (y.min(), y.max()) if self.limits is None else self.limits
        low, high = (0.0, 1.0) if binary else (float(end) for end in ends)
        unit = high - low or 1.0
        start = min(max((mean - low) / unit, 0.0), 1.0) if alone else None
        return ScoreScale(0.0, 1.0, low, unit, rate, grid, start)

    def _make_learner(self, table: Table, weight: FloatArray) -> LevelLearner:
        columns = [table.columns[feature.name] for feature in table.schema.features]
        levels, literal = table.schema.levels, self.alpha is not None
        l2 = 0.0 if literal else float(self.l2)
        if not isinstance(self.learner, str):
            return ExternalLearner(self.learner, columns, levels, weight, int(self.random_state))
        data = BinnedColumns(columns, levels, self.bins)
        if self.learner == "tree":
            return TreeLearner(data, weight, self.depth, 0.0 if literal else min_leaf_rows(self.min_rows, self.depth), l2)
        return LineLearner(data, weight, l2)

    def _run_algorithm_1(self, search: LevelSearch) -> History:
        """Run Algorithm 1: stop when a round lowers the error by less than alpha / (2 bound), and drop that round."""
        assert self.alpha is not None
        enough = self.alpha / (2 * self.bound)
        errors = [search.training_error()]
        while len(errors) < 2 or errors[-2] - errors[-1] >= enough:
            search.add_round()
            errors.append(search.training_error())
        scale = search.models[0].rules.scale
        chosen, unit, last = len(errors) - 2, scale.unit**2, errors[-2] - errors[-1]
        evaluations = [(errors[0] * unit, 0.0, 0.0)]
        evaluations += [(after * unit, (before - after) * unit, 0.0) for before, after in itertools.pairwise(errors)]
        reason = (
            f"{_count_rounds(chosen)}: the next lowered the training error by {last:.3g} of the squared range of the "
            f"outcome, less than alpha / (2 bound) = {enough:.3g}; scores are rounded to {scale.grid:,} steps, and no rows "
            "were held out"
        )
        counts = search.learner_counts()
        return History.of(evaluations, chosen, reason, evaluation_rows(None), "squared error", counts)

    def _run(self, search: LevelSearch) -> History:
        held_out = self.stopping is not None
        most = self.rounds or (MAX_ROUNDS if held_out else FIXED_ROUNDS)
        patience = max(PATIENCE, 1 if self.stopping is None else self.stopping.patience)
        scale = search.models[0].rules.scale
        base = _initial_scores(search.table, scale)
        chosen, evaluations, ended = search.run(base, most, patience, held_out=held_out)
        before, after = evaluations[0][0], evaluations[chosen][0]
        if self.levels > 1 and not any(len(step.edges) for model in search.models for step in model.rounds):
            ended += "; all rows form one level, since there are few (decrease min_rows for more)"
        if not held_out:
            reason = f"{_count_rounds(chosen)}; {ended}; no rows were held out"
        elif chosen:
            reason = f"{_count_rounds(chosen)}: held-out loss {before:.6g} -> {after:.6g}; {ended}"
        else:
            result = "scores are left unchanged" if scale.start is None else "the mean is predicted"
            reason = f"no round lowered the held-out loss significantly; {result}"
        counts = search.learner_counts()
        return History.of(evaluations, chosen, reason, evaluation_rows(self.stopping), search.loss.measure, counts)

    def _check_parameters(self, table: Table) -> None:
        check_integer("depth", self.depth, 1, 10)
        check_integer("levels", self.levels, 1, 2**20)
        check_integer("min_rows", self.min_rows, 1, 2**31 - 1)
        check_integer("bins", self.bins, 2, 65_000)
        check_integer("random_state", self.random_state, 0, 2**31 - 2)
        check_integer("rounds", self.rounds, 1, 100_000, optional=True)
        check_integer("threads", self.threads, 1, 2**31 - 1, optional=True)
        check_choice("spacing", self.spacing, ("mass", "equal"))
        if isinstance(self.learner, str):
            check_choice("learner", self.learner, ("tree", "linear"))
        elif isinstance(self.learner, type) or not all(hasattr(self.learner, name) for name in REGRESSOR_METHODS):
            raise ArgumentError(
                f'learner must be "tree", "linear" or a scikit-learn regressor; got {self.learner!r}',
                hint="write it as learner=DecisionTreeRegressor(max_depth=2)",
                parameter="learner",
            )
        check_number("learning_rate", self.learning_rate, 0, 1, above=True)
        check_number("bound", self.bound, 0, above=True)
        check_number("l2", self.l2, 0)
        check_number("gate", self.gate, 0, 100, optional=True)
        check_number("alpha", self.alpha, 0, above=True, optional=True)
        self._check_levels()
        self._check_limits(table)
        self._check_stopping()
        if table.schema.task == "multiclass":
            raise ArgumentError("LSBoost corrects one prediction column", hint="tu.MCGrad supports several classes")

    def _check_levels(self) -> None:
        """Raise if there are too many levels, or too many nodes: trees of equal levels are allocated even without rows."""
        levels = self.levels if self.alpha is None else 2 * self.bound / self.alpha
        if self.alpha is not None and levels > MAX_LEVELS:
            raise ArgumentError(
                f"alpha = {self.alpha:g} and bound = {self.bound:g} need {levels:,.0f} levels, more than {MAX_LEVELS:,}",
                hint="increase alpha",
                parameter="alpha",
            )
        equal = self.alpha is not None or self.spacing == "equal"
        if equal and self.learner == "tree" and levels * 2 ** (self.depth + 1) > MAX_NODES:
            raise ArgumentError(
                f"trees of depth {self.depth} on {levels:,.0f} levels have more than {MAX_NODES:,} nodes",
                hint="use fewer levels, or a smaller depth",
            )

    def _check_limits(self, table: Table) -> None:
        if self.limits is None:
            return
        if table.schema.task == "binary":
            raise ArgumentError(
                "limits are for real outcomes; those of a binary task are 0 and 1",
                hint="leave limits out",
                parameter="limits",
            )
        try:
            low, high = (float(value) for value in self.limits)
        except (TypeError, ValueError):
            low = high = 0.0
        if not (np.isfinite(high - low) and low < high):
            raise ArgumentError(
                f"limits must be the lowest and the highest outcome; got {self.limits!r}",
                hint="write it as limits=(0, 100)",
                parameter="limits",
            )
        assert table.outcome is not None
        outside = (table.outcome < low) | (table.outcome > high)
        if outside.any():
            raise DataError(
                f"outcomes must lie within limits; got {table.outcome[outside][0]:g} {describe_rows(outside)}",
                hint="widen limits, or leave them out to use the lowest and the highest outcome",
            )


def _initial_scores(table: Table, scale: ScoreScale) -> FloatArray:
    """Return the scores that rounds are compared with: the predictions, or the mean outcome."""
    return table.prediction if scale.start is None else np.full(len(table), scale.restore(scale.start))


def _count_rounds(count: int) -> str:
    return f"{count} round{'' if count == 1 else 's'}"
