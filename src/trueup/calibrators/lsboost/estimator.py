"""LSBoost: multicalibration by regression on the level sets of the score.

A round fits a learner per level set and keeps those that improve rows held out from it (the gate). Splits run in parallel.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from sklearn.base import clone

from trueup._validate import check_choice, check_integer, check_number
from trueup.calibrators import stopping
from trueup.calibrators.base import FitResult, SegmentCalibrator
from trueup.calibrators.history import History
from trueup.calibrators.lsboost.levelsets import (
    ExternalLevelSets,
    LevelRound,
    LevelSets,
    LineSlopes,
    ScoreScale,
)
from trueup.calibrators.model import Map, UnchangedMap
from trueup.calibrators.scoring import evaluate, refuse_score
from trueup.calibrators.stopping import CrossValidation, Evaluation, Split, TaskLoss, count_rounds
from trueup.data.frame import NO_PREDICTION
from trueup.data.values import describe_rows
from trueup.errors import ArgumentError, DataError
from trueup.kernels.levels import NO_LEARNER
from trueup.kernels.threads import Workers
from trueup.kernels.trees import join_forests
from trueup.learners import level_regression
from trueup.learners.level_regression import BinnedColumns, ExternalLearner, LineLearner, TreeLearner

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trueup._types import BoolArray, FloatArray, Int32Array, IntArray
    from trueup.calibrators.scoring import RuleScore
    from trueup.data.table import Table

PATIENCE = 10  # rounds without a lower held-out loss after which the search stops
MAX_ROUNDS, FIXED_ROUNDS = 100, 10
PUBLISHED_ROUNDS = 1000  # more than the training error falls for in the runs of the paper
DEFAULT_DEPTH, DEFAULT_BINS = 3, 255  # of trees, without alpha
MAX_LEVELS = 1_000_000
MAX_NODES = 2**27  # of the trees of a round
HOLD = 0.5  # the share of its distance from 0 and from 1 that a probability keeps in a round: none becomes 0 or 1
REGRESSOR_METHODS = ("fit", "predict", "get_params")
MAX_SCORE = 1e300  # absolute value of a real score
GATE_FOLDS = 4  # a different one of these folds of the training rows evaluates the learners of each round


@dataclass(eq=False, repr=False, kw_only=True)
class LSBoost(SegmentCalibrator):
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
    exclude : column names
        Columns that the correction must not use, such as protected attributes; `explain` still reports what the correction
        does on their levels. A name that is also a feature, or is no column, is an error.
    task : {"auto", "binary", "regression"}
        "auto" is binary with a prediction, regression without.
    learner : {"tree", "linear"} or scikit-learn regressor
        What is fitted to each level. Trees and linear functions are fitted to all levels of a round together. Any other
        regressor is fitted level by level; such a model predicts, but cannot be saved.
    depth : "auto" or int
        The maximum depth of the trees: 3, or 1 with ``alpha``.
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
        A level moves only if its fit lowers the squared error of the gate rows by more than this many standard errors: one
        in four of the training rows, not used by the fit, and others in every round. The depth of each tree is also chosen
        on them. None accepts every fit, and so does ``stopping=None``.
    bins : "auto", int or None
        The maximum number of bins of a numeric feature for trees; None is one per distinct value. "auto" is 255, or None
        with ``alpha``.
    rounds : int, optional
        The maximum number of rounds: 100, or 10 if ``stopping`` is None.
    alpha, bound : float
        ``alpha`` runs Algorithm 1 of the paper unchanged, up to this multicalibration error (in units where the outcome
        spans 0 to 1) against functions whose square is at most ``bound``: ``ceil(2 bound / alpha)`` equal levels, no gate,
        full steps, stopping when a round lowers the training error by less than ``alpha / (2 bound)``. ``levels``,
        ``spacing``, ``min_rows``, ``learning_rate``, ``l2``, ``gate``, ``rounds`` and ``stopping`` are then ignored.
        Theorem 4.3 needs exact least squares on each level: trees of depth 1 on every distinct value (the defaults), and
        linear functions. Deeper trees are grown greedily, and binned features miss splits: they are not exact.
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
    Globus-Harris, Harrison, Kearns, Roth & Sorrell (2023), "Multicalibration as Boosting for Regression", ICML 2023,
    arXiv:2301.13767.

    Examples
    --------
    >>> import trueup as tu
    >>> data = tu.simulate.lending(20_000, seed=1)
    >>> fix = tu.LSBoost("prediction", ["region", "product", "age"]).fit(data, data["outcome"])
    >>> fix.history_.loss_after < fix.history_.loss_before
    True

    The paper's practical runs, and its Algorithm 1:

    >>> published = tu.LSBoost.as_published("prediction", ["region", "product", "age"], levels=100)
    >>> literal = tu.LSBoost("prediction", ["region", "product", "age"], alpha=0.01, bound=1)
    """

    uses_score: ClassVar[bool] = True

    learner: Any = "tree"
    depth: Any = "auto"
    levels: int = 10
    spacing: str = "mass"
    min_rows: int = 2000
    learning_rate: float = 0.3
    l2: float = 10.0
    gate: float | None = 0.5
    bins: Any = "auto"
    rounds: int | None = None
    alpha: float | None = None
    bound: float = 1.0
    limits: Any = None

    @classmethod
    def as_published(cls, prediction: Any = None, features: Any = None, *, levels: int = 500, **parameters: Any) -> LSBoost:
        """Return the LSBoost of the experiments of Globus-Harris et al. (2023), section 7 and appendix F.

        Scores are rounded to ``levels`` equal levels. In each round every level is replaced by an unregularised stump,
        fitted to all its rows with a split at any distinct value; rounds end when one no longer lowers the training error.
        No rows are held out: it overfits where levels have few rows, as the paper notes.

        Parameters
        ----------
        prediction, features
            As for `LSBoost`; without a prediction it starts from the mean.
        levels : int
            500 in Figures 4 and 8 (simulated surfaces, one million rows); 50, 100 and 300 in Table 2 (census income).
        **parameters
            Any other parameter of `LSBoost`, such as ``depth=2`` for DT(2), ``learner="linear"``, ``limits=(0, 1)``, or
            ``rounds=100``.

        References
        ----------
        Globus-Harris, Harrison, Kearns, Roth & Sorrell (2023), "Multicalibration as Boosting for Regression",
        arXiv:2301.13767, section 7 and appendix F.

        Examples
        --------
        >>> X = np.random.default_rng(0).uniform(-2, 2, (20_000, 2))
        >>> y = ((np.abs(X) - 1) ** 2).sum(axis=1)
        >>> equal, published = LSBoost(spacing="equal", stopping=None, depth=1), LSBoost.as_published(levels=100)
        >>> [round(float(1 - np.var(fix.fit(X, y).predict(X) - y) / np.var(y)), 2) for fix in (equal, published)]
        [0.19, 0.99]
        """
        published: dict[str, Any] = {
            "depth": 1, "spacing": "equal", "min_rows": 1, "learning_rate": 1.0, "l2": 0.0, "gate": None, "bins": None,
            "rounds": PUBLISHED_ROUNDS, "stopping": None,
        }  # fmt: skip
        return cls(prediction, features, levels=levels, **(published | parameters))

    @classmethod
    def for_weak_learning(cls, gamma: float, prediction: Any = None, features: Any = None, **parameters: Any) -> LSBoost:
        """Return Algorithm 1 with the choice of Theorem 4.5: ``alpha = gamma`` and ``bound = 1 / gamma``.

        If the class of learners satisfies the gamma-weak learning condition, the result is within ``2 gamma`` of the lowest
        possible squared error of the training distribution (Globus-Harris et al. 2023, Theorem 4.5), after at most
        ``2 / gamma^2`` rounds on ``2 / gamma^2`` levels. A round must lower the squared error by ``gamma^2 / 2``.

        Parameters
        ----------
        gamma : float
            The advantage of a weak learner, above 0, in units where the outcome spans 0 to 1.
        prediction, features, **parameters
            As for `LSBoost`.

        References
        ----------
        Globus-Harris, Harrison, Kearns, Roth & Sorrell (2023), "Multicalibration as Boosting for Regression",
        arXiv:2301.13767, theorem 4.5.

        Examples
        --------
        >>> fix = LSBoost.for_weak_learning(0.05, "prediction")
        >>> fix.alpha, fix.bound
        (0.05, 20.0)
        """
        check_number("gamma", gamma, 0, above=True)
        return cls(prediction, features, alpha=float(gamma), bound=1.0 / float(gamma), **parameters)

    @property
    def _tree_depth(self) -> int:
        if isinstance(self.depth, str):
            return DEFAULT_DEPTH if self.alpha is None else 1
        return int(self.depth)

    @property
    def _max_bins(self) -> int | None:
        """The maximum number of bins of a numeric feature, None for one per distinct value."""
        if isinstance(self.bins, str):
            return DEFAULT_BINS if self.alpha is None else None
        return self.bins  # type: ignore[no-any-return]

    def _prediction_role(self) -> Any:
        return NO_PREDICTION if self.prediction is None else self.prediction

    def _task(self) -> str:
        return "regression" if self.prediction is None and self.task == "auto" else self.task

    def _base_scores(self, table: Table, fitted: Map) -> FloatArray:
        if isinstance(fitted, (LevelSets, ExternalLevelSets)):
            return fitted.scale.base(table.prediction)
        return table.prediction

    def _fit_map(self, table: Table, progress: Any) -> FitResult:
        self._check_parameters(table)
        stopping.check_row_count(table)
        rows, splits = table, stopping.hold_out_last(len(table))
        literal = self.alpha is not None  # Algorithm 1 trains on all rows, whatever the stopping rule
        if not literal:
            rows, splits = self._split_rows(table)
        scaled = stopping.scale_weights(rows.weight, len(table))
        weight = np.ones(len(rows)) if scaled is None else scaled
        scale = self._score_scale(table)
        y, F = (rows.y - scale.offset) / scale.unit, scale.initial(rows.prediction)
        gate = None if literal or self.stopping is None else self.gate
        gates = None if gate is None else stopping.assign_folds(rows, GATE_FOLDS, int(self.random_state) + 1)
        whole = LevelModel(
            self._make_learner(rows, weight), scale, self.levels, 0.0 if literal else self.min_rows, gate, y, F, weight,
            np.arange(len(F)), gates,
        )  # fmt: skip
        models = [replace(whole, train=split.train) for split in splits]
        loss = stopping.task_loss("regression" if literal else table.schema.task)
        score = None if literal else self._rule_score(rows, np.concatenate([split.valid for split in splits]))
        search = LevelSearch(models, splits, rows, loss, Workers(self.threads), progress, score)
        chosen, evaluations, reason = self._run_algorithm_1(search) if literal else self._run(search)
        evaluated_on = stopping.evaluation_rows(None if literal else self.stopping)
        kept = np.array([[int(step.kept.sum()) for step in model.rounds] for model in models])
        learners = np.ceil(kept.mean(axis=0)).astype(int).tolist()  # of a model, per round
        measure = loss.measure if score is None else score.name
        history = History.of(evaluations, chosen, reason, evaluated_on, measure, learners, training=search.training)
        held_out, evaluated = None, np.concatenate([split.valid for split in splits])
        if len(evaluated):
            base = rows.prediction if scale.start is None else scale.restore(F)
            held_out = stopping.collect_held_out(rows, evaluated, search.best if chosen else base[evaluated])
        if not chosen and scale.start is None and not literal:
            return FitResult(UnchangedMap(), history, held_out=held_out)
        if chosen and not literal and isinstance(self.stopping, CrossValidation) and self.stopping.refit:
            models = [whole]
            for _ in range(chosen):
                whole.add_round(Workers(self.threads))
        return FitResult(make_map(models, chosen, table.schema.levels), history, held_out=held_out)

    def _score_scale(self, table: Table) -> ScoreScale:
        """Return the scale of scores: unbounded or, if binary, [0, 1]; a grid on [0, 1] for equally spaced levels."""
        y, alone, binary = table.y, not table.schema.prediction, table.schema.task == "binary"
        mean = float(np.average(y, weights=table.weight)) if alone else 0.0
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

    def _make_learner(self, table: Table, weight: FloatArray) -> TreeLearner | LineLearner | ExternalLearner:
        columns = [table.columns[feature.name] for feature in table.schema.features]
        levels, literal = table.schema.levels, self.alpha is not None
        if not isinstance(self.learner, str):
            X = level_regression.design_matrix(columns, levels, len(table))
            varies = bool((weight != weight[0]).any())
            return ExternalLearner(self._make_regressor, X, weight if varies else None, type(self.learner).__name__)
        data, l2 = BinnedColumns(columns, levels, self._max_bins), 0.0 if literal else float(self.l2)
        if self.learner == "linear":
            return LineLearner(data, weight, l2)
        return TreeLearner(data, weight, self._tree_depth, 0.0 if literal else self.min_rows, l2)

    def _make_regressor(self) -> Any:
        regressor = clone(self.learner)
        if regressor.get_params().get("random_state", 0) is None:
            regressor.set_params(random_state=int(self.random_state))
        return regressor

    def _run_algorithm_1(self, search: LevelSearch) -> tuple[int, list[Evaluation], str]:
        """Run rounds until one, which is dropped, lowers the error by less than alpha / (2 bound); return as `_run`."""
        assert self.alpha is not None
        enough = self.alpha / (2 * self.bound)
        errors = [search.training_error()]
        while len(errors) < 2 or errors[-2] - errors[-1] >= enough:
            search.add_round()
            errors.append(search.training_error())
        scale = search.models[0].scale
        chosen, unit, last = len(errors) - 2, scale.unit**2, errors[-2] - errors[-1]
        evaluations = [Evaluation(errors[0] * unit)]
        evaluations += [Evaluation(after * unit, (before - after) * unit) for before, after in itertools.pairwise(errors)]
        reason = (
            f"{count_rounds(chosen)}: the next lowered the training error by {last:.3g} of the squared range of the "
            f"outcome, less than alpha / (2 bound) = {enough:.3g}; scores are rounded to {scale.grid:,} steps, and no rows "
            "were held out"
        )
        if self.learner == "tree" and self._tree_depth > 1:
            reason += f"; trees of depth {self._tree_depth} are grown greedily, so that alpha is not guaranteed"
        elif self.learner == "tree" and self._max_bins is not None:
            reason += f"; with at most {self._max_bins:,} bins a tree may miss the best split: alpha is not guaranteed"
        return chosen, evaluations, reason

    def _run(self, search: LevelSearch) -> tuple[int, list[Evaluation], str]:
        """Run rounds while held-out (else training) loss falls; return their number, losses and gains, and the reason."""
        held_out, scale = self.stopping is not None, search.models[0].scale
        most = self.rounds or (MAX_ROUNDS if held_out else FIXED_ROUNDS)
        patience = 1 if self.stopping is None else max(PATIENCE, self.stopping.patience)
        chosen, evaluations, end = search.run(scale.base(search.table.prediction), most, patience, held_out=held_out)
        if self.levels > 1 and not any(len(step.edges) for model in search.models for step in model.rounds):
            end += "; all rows form one level, since there are few (decrease min_rows for more)"
        if not held_out:
            return chosen, evaluations, f"{count_rounds(chosen)}; {end}; no rows were held out"
        unchanged = "scores are left unchanged" if scale.start is None else "the mean is predicted"
        compared = stopping.HELD_OUT_LOSS if search.score is None else f"held-out {search.score.name}"
        return chosen, evaluations, stopping.describe_choice(chosen, evaluations, end, unchanged, measure=compared)

    def _check_parameters(self, table: Table) -> None:
        if self.depth != "auto":
            check_integer("depth", self.depth, 1, 10)
        check_integer("levels", self.levels, 1, 2**20)
        check_integer("min_rows", self.min_rows, 1, 2**31 - 1)
        if self.bins != "auto":
            check_integer("bins", self.bins, 2, 65_000, optional=True)
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
        if self.alpha is not None:
            refuse_score(self.stopping, "LSBoost(alpha=...)", "it trains on all rows, whatever the stopping rule")
        self._check_single_prediction(table)

    def _check_levels(self) -> None:
        """Raise if there are too many levels or tree nodes: with equal spacing, levels without rows have nodes too."""
        levels = self.levels if self.alpha is None else 2 * self.bound / self.alpha
        if self.alpha is not None and levels > MAX_LEVELS:
            raise ArgumentError(
                f"alpha = {self.alpha:g} and bound = {self.bound:g} need {levels:,.0f} levels, more than {MAX_LEVELS:,}",
                hint="increase alpha",
                parameter="alpha",
            )
        equal = self.alpha is not None or self.spacing == "equal"
        if equal and self.learner == "tree" and levels * 2 ** (self._tree_depth + 1) > MAX_NODES:
            raise ArgumentError(
                f"trees of depth {self._tree_depth} on {levels:,.0f} levels have more than {MAX_NODES:,} nodes",
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
        outside = (table.y < low) | (table.y > high)
        if outside.any():
            raise DataError(
                f"outcomes must lie within limits; got {table.y[outside][0]:g} {describe_rows(outside)}",
                hint="widen limits, or leave them out to use the lowest and the highest outcome",
            )


@dataclass(eq=False)
class LevelModel:
    """One model during boosting; outcomes ``y`` and scores ``F`` of all rows are on the scale that ``scale`` defines.

    ``gate_fold`` is a fold per row: in each round one fold is not trained on and must confirm the learners; None keeps all
    learners.
    """

    learner: TreeLearner | LineLearner | ExternalLearner
    scale: ScoreScale
    levels: int  # maximum number of level sets; those of a grid are its points
    min_rows: float  # minimum weight of a level with a learner, and of levels of equal mass
    gate: float | None  # standard errors by which a learner must lower the squared error of the gate rows on its level
    y: FloatArray
    F: FloatArray
    weight: FloatArray
    train: IntArray
    gate_fold: IntArray | None
    rounds: list[LevelRound] = field(default_factory=list, init=False)

    def add_round(self, workers: Workers) -> None:
        """Fit a learner per level set, keep those that lower the error of the gate rows enough, and move the scores."""
        train, gate_rows = self.train, self.train[:0]
        if self.gate_fold is not None:
            held = self.gate_fold[train] == len(self.rounds) % GATE_FOLDS
            train, gate_rows = train[~held], train[held]
        grid = self.scale.grid
        if grid:
            edges = (np.arange(grid) + 0.5) / grid
        else:
            edges = level_regression.level_edges(self.F[train], self.weight[train], self.levels, self.min_rows)
        level, levels = np.searchsorted(edges, self.F).astype(np.int32), len(edges) + 1
        fitted: Any = self.learner.fit(level, train, levels, self.y, self.F, workers)
        size = np.bincount(level[train], self.weight[train], levels)
        # A single level has all rows there are, however few.
        least = 0.0 if levels == 1 else self.min_rows * (1 - level_regression.WEIGHT_TOLERANCE)
        kept = (size >= least) & (size > 0)
        if self.gate is not None and len(gate_rows):
            fitted, passed = self._apply_gate(fitted, level, levels, gate_rows, workers)
            kept &= passed
        value = self.learner.values(fitted, level, self.F, workers)
        self.F = self.scale.advance(self.F, value, kept, level)
        self.rounds.append(LevelRound(edges, self.learner.keep(fitted, kept), kept))

    def _apply_gate(
        self, fitted: Any, level: Int32Array, levels: int, rows: IntArray, workers: Workers
    ) -> tuple[Any, BoolArray]:
        """Cut each tree at its best depth on the gate ``rows``; return the learners, and which levels pass the gate."""
        assert self.gate is not None
        learner, versions = self.learner, [fitted]
        if isinstance(learner, TreeLearner):
            versions = [learner.cut(fitted, np.full(levels, depth)) for depth in range(learner.depth + 1)]
        gains, errors = np.empty((len(versions), levels)), np.empty((len(versions), levels))
        own, count = level[rows], np.bincount(level[rows], minlength=levels)
        for index, version in enumerate(versions):
            value = learner.values(version, level, self.F, workers)
            advanced = self.scale.advance(self.F, value, np.ones(levels, bool), level)
            gain = self.weight[rows] * ((self.y[rows] - self.F[rows]) ** 2 - (self.y[rows] - advanced[rows]) ** 2)
            gains[index] = np.bincount(own, gain, levels)
            variance = np.bincount(own, gain**2, levels) - gains[index] ** 2 / np.maximum(count, 1)
            errors[index] = np.sqrt(np.maximum(variance, 0.0))
        best = np.argmax(gains, axis=0)
        if isinstance(learner, TreeLearner):
            fitted = learner.cut(fitted, best)
        gain, error = (array[best, np.arange(levels)] for array in (gains, errors))
        return fitted, (count > 1) & (gain > self.gate * error)  # a single row has no standard error


def make_map(models: Sequence[LevelModel], rounds: int, levels: tuple[int, ...]) -> LevelSets | ExternalLevelSets:
    """Return the map that averages the first ``rounds`` rounds of each model; ``levels`` is `Schema.levels`, by feature."""
    scale, learner = models[0].scale, models[0].learner
    if isinstance(learner, ExternalLearner):
        return ExternalLevelSets(scale, levels, tuple(tuple(model.rounds[:rounds]) for model in models), learner.name)
    models = models if rounds else models[:1]
    steps = [step for model in models for step in model.rounds[:rounds]]
    edges = [step.edges for step in steps]
    kept = np.concatenate([np.zeros(0, bool), *(step.kept for step in steps)])
    learner_index = np.where(kept, np.cumsum(kept) - 1, NO_LEARNER).astype(np.int32)
    learners: Any
    if isinstance(learner, LineLearner):
        slopes = np.concatenate([np.zeros((0, learner.width)), *(step.fitted for step in steps)])
        learners = LineSlopes(learner.place, learner.centre, learner.scale, slopes)
    else:
        learners = join_forests([level_regression.to_forest(learner.data, step.fitted) for step in steps])
    edges_at = np.cumsum([0, *map(len, edges)], dtype=np.int64)
    all_edges = np.concatenate([np.zeros(0), *edges])
    return LevelSets(scale, levels, len(models), rounds, edges_at, all_edges, learner_index, learners)


@dataclass(eq=False)
class LevelSearch:
    """Boosting of all models round by round, evaluated on the rows that each model held out."""

    models: Sequence[LevelModel]
    splits: Sequence[Split]
    table: Table
    loss: TaskLoss
    workers: Workers
    progress: Any
    score: RuleScore | None = None  # of the stopping rule, instead of the loss
    training: list[float] = field(default_factory=list, init=False)  # the loss of the training rows, per round
    exhausted: bool = field(default=False, init=False)  # whether recent rounds left every level unchanged

    def add_round(self) -> None:
        """Fit one more round of every model."""
        per_model = Workers(max(1, self.workers.threads // len(self.models)))
        self.workers.map(lambda model: model.add_round(per_model), self.models)

    def training_error(self) -> float:
        """Return the squared error of the training rows, on the scale of scores."""
        model = self.models[0]
        return float(np.average((model.y - model.F) ** 2, weights=model.weight))

    def run(self, base: FloatArray, most: int, patience: int, *, held_out: bool) -> tuple[int, list[Evaluation], str]:
        """Fit rounds until they no longer help; return the best number, (loss, gain, error) per round, and why it ended.

        At most ``most`` rounds follow the scores ``base``. Unless ``held_out``, losses are of the training rows.
        """
        own = [split.valid if held_out else split.train for split in self.splits]
        rows = np.concatenate(own)
        weight = None if self.table.weight is None else self.table.weight[rows]
        cluster = stopping.cluster_numbers(self.table, rows)
        if self.score is not None:
            weight = cluster = None
        self.best = base[rows]  # scores of the evaluated rows after the best round
        chosen, evaluations = stopping.choose_rounds(
            self._losses(own, self.table.y[rows], most),
            weight,
            patience=patience,
            lowest=True,
            on_improvement=self._keep_best,
            cluster=cluster,
        )
        end = "stopped at the maximum number of rounds"
        if self.exhausted:
            end = "no level could be improved further"
        elif len(evaluations) - 1 - chosen >= patience:
            end = "further rounds did not lower it"
        pair = [self._loss(self.table.y[rows], scores) for scores in (base[rows], self.best)]
        if held_out and not stopping.choose_rounds(pair, weight, cluster=cluster)[0]:
            chosen = 0
        return chosen, evaluations, end

    def _losses(self, own: Sequence[IntArray], y: FloatArray, most: int) -> Iterator[FloatArray]:
        """Yield the losses of the rows ``own`` of all models, concatenated: of the base scores, then after each round."""
        yield self._loss(y, self.best)
        self._keep_training_loss()
        for number in range(1, most + 1):
            self.add_round()
            scores = [model.scale.restore(model.F) for model in self.models]
            self.current = np.concatenate([score[rows] for score, rows in zip(scores, own, strict=True)])
            # Other rows are at the gate in each of GATE_FOLDS rounds: what one fold does not confirm, the next may.
            recent = [step for model in self.models for step in model.rounds[-GATE_FOLDS:]]
            self.exhausted = number >= GATE_FOLDS and not any(step.kept.any() for step in recent)
            if self.progress is not None:
                self.progress(number, most)
            self._keep_training_loss()
            yield self._loss(y, self.current)
            if self.exhausted:
                return

    def _keep_training_loss(self) -> None:
        """Append the mean over the models of the loss (or score) of their training rows."""
        losses, table = [], self.table
        for model, split in zip(self.models, self.splits, strict=True):
            rows, scores = split.train, model.scale.restore(model.F[split.train])
            if not len(rows):
                continue
            weight = None if table.weight is None else table.weight[rows]
            if self.score is None:
                per_row = self.loss.per_row(table.y[rows], self.loss.apply_link(scores))
                losses.append(float(np.average(per_row, weights=weight)))
            else:
                own = np.ones(len(rows)) if weight is None else weight
                losses.append(evaluate(self.score.score, table.y[rows], scores, own))
        if losses:
            self.training.append(float(np.mean(losses)))

    def _loss(self, y: FloatArray, scores: FloatArray) -> FloatArray:
        if self.score is not None:
            return self.score.values(scores)
        return self.loss.per_row(y, self.loss.apply_link(scores))

    def _keep_best(self) -> None:
        self.best = self.current
