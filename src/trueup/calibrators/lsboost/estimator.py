"""LSBoost: multicalibration by regression on the level sets of the score."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup._validate import check_choice
from trueup.calibrators import splits
from trueup.calibrators.base import Calibrator, FitResult
from trueup.calibrators.checking import check_numbers, check_whole
from trueup.calibrators.losses import task_loss
from trueup.calibrators.lsboost.external import ExternalLearner, ExternalLevelSets, make_external_map
from trueup.calibrators.lsboost.levelsets import LevelSets, ScoreScale
from trueup.calibrators.lsboost.rounds import GATES, Boosted, LineLearner, Rules, Search, TreeLearner, make_map
from trueup.calibrators.map import UnchangedMap
from trueup.calibrators.stopping import CrossValidation, History, Round, Split, evaluation_rows
from trueup.data.checks import describe_rows
from trueup.data.frame import NO_PREDICTION, read_like
from trueup.errors import ArgumentError, DataError
from trueup.kernels.threads import Workers
from trueup.learners.level_regression import Columns, min_leaf_rows
from trueup.metrics.levelsets import discretize

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trueup._types import FloatArray
    from trueup.calibrators.lsboost.rounds import Learner
    from trueup.calibrators.map import Map
    from trueup.calibrators.splits import HeldOut
    from trueup.calibrators.stopping import Stopping
    from trueup.data.table import Table


PATIENCE = 10  # rounds without a lower held-out loss that end the search
MOST_ROUNDS, FIXED_ROUNDS = 100, 10
MOST_LEVELS = 1_000_000
MOST_NODES = 2**27  # of the trees of a round
HOLD = 0.5  # of its odds, and of the odds against it, that a probability keeps in a round: none falls to 0
REGRESSOR = ("fit", "predict", "get_params")  # what it must have
FARTHEST = 1e300  # a real score is kept within this of 0


class LSBoost(Calibrator):
    """Regress the outcome on the features, level set by level set of the score, until no level can be improved.

    Each round groups rows by their score and fits one small regression to each group; where it lowers the squared error,
    the group was not multicalibrated, and its scores move to the fit (Globus-Harris et al. 2023). It corrects a prediction
    column, or, without one, is a regressor that starts from the mean.

    Parameters
    ----------
    prediction : column name, optional
        The score to be corrected. None predicts from the features alone, starting from the mean outcome.
    features : column names, optional
        What the learners see; every other column by default.
    task : {"auto", "binary", "regression"}
        "auto" is binary with a prediction, regression without.
    learner : {"tree", "linear"} or scikit-learn regressor
        What is fitted to each level. Trees and lines are fitted to all levels of a round together. Any other regressor is
        fitted level by level; such a model predicts, but cannot be saved.
    depth : int
        Of the trees.
    levels : int
        The most level sets.
    spacing : {"mass", "equal"}
        "mass" cuts the scores of each round into levels of equal numbers of rows, and keeps their differences within a
        level. "equal" rounds every score to a multiple of ``1 / levels`` of the range of the outcome, as the paper does.
    min_rows : int
        The fewest rows of a level that gets a learner. There are fewer levels where rows are few: one alone is boosting
        without level sets.
    learning_rate : float
        How far scores move to the fit; the rest is the old score.
    l2 : float
        Shrinks leaves and slopes that rest on few rows.
    gate : float or None
        By how many standard errors a fit must lower the squared error of rows it has not seen for its level to move: one in
        four of the rows to learn from, others in every round. They also choose how deep its tree goes. None lets every fit
        through as it is, and so does ``stopping=None``.
    bins : int
        The most bins a number is cut into for trees; one of no more distinct values keeps them all.
    rounds : int, optional
        The most rounds: 100, or 10 where ``stopping`` is None.
    alpha, bound : float
        ``alpha`` asks for Algorithm 1 to the letter, up to this multicalibration error (in units where the outcome spans 0
        to 1) against functions whose square is at most ``bound``: ``ceil(2 bound / alpha)`` equal levels, no gate, full
        steps, halting where a round lowers the training error by less than ``alpha / (2 bound)``. Then ``levels``,
        ``spacing``, ``min_rows``, ``learning_rate``, ``l2``, ``gate``, ``rounds`` and ``stopping`` are not read.
    limits : pair of float, optional
        Lowest and highest outcome, for equal levels of a real outcome; those of the rows by default.
    stopping : CrossValidation, Holdout, Validation or None
        Which rows judge how many rounds are kept: neither learned from, nor asked at a gate.
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

    def __init__(
        self,
        prediction: Any = None,
        features: Any = None,
        *,
        task: str = "auto",
        learner: Any = "tree",
        depth: int = 3,
        levels: int = 10,
        spacing: str = "mass",
        min_rows: int = 2000,
        learning_rate: float = 0.3,
        l2: float = 10.0,
        gate: float | None = 0.5,
        bins: int = 255,
        rounds: int | None = None,
        alpha: float | None = None,
        bound: float = 1.0,
        limits: Any = None,
        stopping: Stopping = CrossValidation(),  # noqa: B008  (a frozen value)
        categorical: Any = (),
        unlabelled: str = "error",
        random_state: int = 0,
        threads: int | None = None,
    ) -> None:
        self.prediction = prediction
        self.features = features
        self.task = task
        self.learner = learner
        self.depth = depth
        self.levels = levels
        self.spacing = spacing
        self.min_rows = min_rows
        self.learning_rate = learning_rate
        self.l2 = l2
        self.gate = gate
        self.bins = bins
        self.rounds = rounds
        self.alpha = alpha
        self.bound = bound
        self.limits = limits
        self.stopping = stopping
        self.categorical = categorical
        self.unlabelled = unlabelled
        self.random_state = random_state
        self.threads = threads

    def staged_predict(self, X: Any) -> Iterator[FloatArray]:
        """Give the predictions after no round (on a grid: rounded to it), one round, and so on to the last."""
        model = self._fitted()
        table = read_like(X, model.schema)
        columns = [table.columns[feature.name] for feature in model.schema.features]
        if isinstance(model.map, (LevelSets, ExternalLevelSets)):
            yield from model.map.stages(columns, table.prediction)
        else:
            yield table.prediction.copy()

    def _prediction_role(self) -> Any:
        return NO_PREDICTION if self.prediction is None else self.prediction

    def _base_scores(self, table: Table, found: Map) -> FloatArray:
        return self._base(table, found.scale) if isinstance(found, (LevelSets, ExternalLevelSets)) else table.prediction

    def _task(self) -> str:
        return "regression" if self.prediction is None and self.task == "auto" else self.task

    def _fit_map(self, table: Table, progress: Any) -> FitResult:
        self._check(table)
        literal = self.alpha is not None
        whole, parts = self._divided(table, literal=literal)
        loss = task_loss("regression" if literal else table.schema.task)
        weight = splits.scale_weights(whole.weight, len(table))
        mass = np.ones(len(whole)) if weight is None else weight
        scale = self._scale(table, literal=literal)
        assert whole.outcome is not None
        y = (whole.outcome - scale.offset) / scale.unit
        F = (whole.prediction - scale.offset) / scale.unit if scale.start is None else np.full(len(y), scale.start)
        if scale.grid:
            F = discretize(F, scale.grid)
        rules = self._rules(scale, literal=literal)
        learner = self._learner(whole, mass, literal=literal)
        gates = None if rules.gate is None else splits.assign_folds(whole, GATES, int(self.random_state) + 1)
        models = [Boosted(learner, rules, y, F, mass, part.train, gates) for part in parts]
        search = Search(models, parts, whole, loss, Workers(self.threads), progress)
        history = self._literal(search) if literal else self._practical(search, self._base(whole, scale))
        levels = table.schema.levels
        held = self._held(search, whole, F, history.chosen)
        if not history.chosen and scale.start is None and not literal:
            return FitResult(UnchangedMap(), history, held_out=held)
        if history.chosen and not literal and isinstance(self.stopping, CrossValidation) and self.stopping.refit:
            models = [self._again(models[0], F, history.chosen)]
        make = make_external_map if isinstance(learner, ExternalLearner) else make_map
        return FitResult(make(models, history.chosen, levels), history, held_out=held)

    def _held(self, search: Search, whole: Table, F: FloatArray, chosen: int) -> HeldOut | None:
        """Keep the rows that judged; without a prediction all scores start from the mean outcome of the rows of the fit."""
        rows = np.concatenate([part.valid for part in search.parts])
        if not len(rows):
            return None
        scale = search.models[0].rules.scale
        base = whole.prediction if scale.start is None else scale.offset + scale.unit * F
        return splits.collect_held_out(whole, rows, search.best if chosen and search.best is not None else base[rows])

    def _again(self, one: Boosted, F: FloatArray, rounds: int) -> Boosted:
        """Fit so many rounds once more, on all rows."""
        whole = Boosted(one.learner, one.rules, one.y, F, one.weight, np.arange(len(F)), one.gates)
        for _ in range(rounds):
            whole.one_more(Workers(self.threads))
        return whole

    def _divided(self, table: Table, *, literal: bool) -> tuple[Table, list[Split]]:
        """Say for each model which rows it learns from, and which judge it."""
        splits.check_row_count(table)
        if literal or self.stopping is None:
            rows = np.arange(len(table))
            return table, [Split(rows, rows[:0])]
        return self._split_rows(table)

    def _scale(self, table: Table, *, literal: bool) -> ScoreScale:
        assert table.outcome is not None
        y, w = table.outcome, table.weight
        alone = not table.schema.prediction
        mean = float(np.average(y, weights=w)) if alone else 0.0
        rate = 1.0 if literal else self.learning_rate
        binary = table.schema.task == "binary"
        if not literal and self.spacing == "mass":
            if binary:
                return ScoreScale(0.0, 1.0, 0.0, 1.0, rate, 0, mean if alone else None, HOLD)
            unit = _unit_of(y - (mean if alone else table.prediction))
            far = FARTHEST / max(unit, 1.0)
            return ScoreScale(-far, far, 0.0, unit, rate, 0, mean / unit if alone else None)
        grid = max(1, math.ceil(2 * self.bound / self.alpha - 1e-9)) if self.alpha is not None else self.levels
        ends = (y.min(), y.max()) if self.limits is None else self.limits
        lowest, highest = (0.0, 1.0) if binary else (float(end) for end in ends)
        unit = highest - lowest or 1.0
        start = min(max((mean - lowest) / unit, 0.0), 1.0) if alone else None
        return ScoreScale(0.0, 1.0, lowest, unit, rate, grid, start)

    def _rules(self, scale: ScoreScale, *, literal: bool) -> Rules:
        if literal:
            return Rules(scale, scale.grid + 1, 0.0, None)
        return Rules(scale, self.levels, self.min_rows, None if self.stopping is None else self.gate)

    def _learner(self, table: Table, weight: FloatArray, *, literal: bool) -> Learner:
        columns = [table.columns[feature.name] for feature in table.schema.features]
        levels = table.schema.levels
        l2 = 0.0 if literal else float(self.l2)
        if not isinstance(self.learner, str):
            return ExternalLearner(self.learner, columns, levels, weight, int(self.random_state))
        data = Columns(columns, levels, self.bins)
        if self.learner == "tree":
            return TreeLearner(data, weight, self.depth, 0.0 if literal else min_leaf_rows(self.min_rows, self.depth), l2)
        return LineLearner(data, weight, l2)

    def _base(self, table: Table, scale: ScoreScale) -> FloatArray:
        """Give the scores that every round is held against: as they came, or the mean."""
        return table.prediction if scale.start is None else np.full(len(table), scale.offset + scale.unit * scale.start)

    def _literal(self, search: Search) -> History:
        """Run Algorithm 1: halt where the error falls by less than alpha / (2 bound), and drop that round."""
        assert self.alpha is not None
        enough = self.alpha / (2 * self.bound)
        errors = [search.training_error()]
        while len(errors) < 2 or errors[-2] - errors[-1] >= enough:
            search.one_more()
            errors.append(search.training_error())
        unit = search.models[0].rules.scale.unit ** 2
        chosen = len(errors) - 2
        described = [Round(0, 0, 1.0, errors[0] * unit, 0.0, 0.0, kept=True)]
        for at in range(1, len(errors)):
            gain = (errors[at - 1] - errors[at]) * unit
            described.append(Round(at, search.fitted(at), 1.0, errors[at] * unit, gain, 0.0, at <= chosen))
        reason = (
            f"{_rounds(chosen)}: the next lowered the training error by {errors[-2] - errors[-1]:.3g} of the squared range "
            f"of the outcome, less than alpha / (2 bound) = {enough:.3g}; scores are rounded to "
            f"{search.models[0].rules.scale.grid:,} steps, and nothing was held out to judge by"
        )
        return History(tuple(described), chosen, reason, evaluation_rows(None), "squared error")

    def _practical(self, search: Search, base: FloatArray) -> History:
        most = self.rounds or (FIXED_ROUNDS if self.stopping is None else MOST_ROUNDS)
        patience = max(PATIENCE, 1 if self.stopping is None else self.stopping.patience)
        chosen, judged, ended = search.run(base, most, patience, judged=self.stopping is not None)
        described = [Round(0, 0, 1.0, judged[0][0], 0.0, 0.0, kept=True)]
        for at, (mean, gain, error) in enumerate(judged[1:], start=1):
            described.append(Round(at, search.fitted(at), 1.0, mean, gain, error, at <= chosen))
        before, after = judged[0][0], judged[chosen][0]
        if self.levels > 1 and not any(len(one.edges) for model in search.models for one in model.rounds):
            ended += "; all rows are one level, since they are few (lower min_rows for more)"
        if self.stopping is None:
            reason = f"{_rounds(chosen)}; {ended}; nothing was held out to judge by"
        elif chosen:
            reason = f"{_rounds(chosen)}: held-out loss {before:.6g} -> {after:.6g}; {ended}"
        else:
            left = "scores are left unchanged" if search.models[0].rules.scale.start is None else "the mean is predicted"
            reason = f"no round lowered the held-out loss beyond noise: {left}"
        return History(tuple(described), chosen, reason, evaluation_rows(self.stopping), search.loss.measure)

    def _check(self, table: Table) -> None:
        check_whole(self, {"depth": (1, 10), "levels": (1, 2**20), "min_rows": (1, 2**31 - 1), "bins": (2, 65_000),
                           "random_state": (0, 2**31 - 2)})  # fmt: skip
        check_whole(self, {"rounds": (1, 100_000), "threads": (1, 2**31 - 1)}, optional=True)
        check_choice("spacing", self.spacing, ("mass", "equal"))
        if isinstance(self.learner, str):
            check_choice("learner", self.learner, ("tree", "linear"))
        elif isinstance(self.learner, type) or not all(hasattr(self.learner, own) for own in REGRESSOR):
            raise ArgumentError(
                f'learner must be "tree", "linear" or a scikit-learn regressor; got {self.learner!r}',
                hint="write it as learner=DecisionTreeRegressor(max_depth=2)",
            )
        check_numbers(self, {"learning_rate": (0.0, 1.0), "bound": (0.0, np.inf)}, above=True)
        check_numbers(self, {"l2": (0.0, np.inf)})
        check_numbers(self, {"gate": (0.0, 100.0)}, optional=True)
        check_numbers(self, {"alpha": (0.0, np.inf)}, above=True, optional=True)
        if self.alpha is not None and 2 * self.bound / self.alpha > MOST_LEVELS:
            raise ArgumentError(
                f"alpha = {self.alpha:g} and bound = {self.bound:g} ask for {2 * self.bound / self.alpha:,.0f} levels, "
                f"more than {MOST_LEVELS:,}",
                hint="raise alpha",
            )
        self._check_size()
        self._check_limits(table)
        self._check_stopping()
        if table.schema.task == "multiclass":
            raise ArgumentError("LSBoost corrects one prediction column", hint="tu.MCGrad takes several classes")

    def _check_size(self) -> None:
        """Refuse deep trees on very many equal levels, which are laid out whether rows reach them or not."""
        levels = self.levels if self.alpha is None else 2 * self.bound / self.alpha
        equal = self.alpha is not None or self.spacing == "equal"
        if equal and self.learner == "tree" and levels * 2 ** (self.depth + 1) > MOST_NODES:
            raise ArgumentError(
                f"trees of depth {self.depth} on {levels:,.0f} levels have more than {MOST_NODES:,} nodes",
                hint="ask for fewer levels, or for a smaller depth",
            )

    def _check_limits(self, table: Table) -> None:
        if self.limits is None:
            return
        if table.schema.task == "binary":
            raise ArgumentError("limits are for real outcomes; those of a binary task are 0 and 1", hint="leave limits out")
        try:
            low, high = (float(value) for value in self.limits)
        except (TypeError, ValueError):
            low = high = 0.0
        if not (np.isfinite(high - low) and low < high):
            raise ArgumentError(
                f"limits must be the lowest and the highest outcome; got {self.limits!r}",
                hint="write it as limits=(0, 100)",
            )
        assert table.outcome is not None
        outside = (table.outcome < low) | (table.outcome > high)
        if outside.any():
            raise DataError(
                f"outcomes must lie within limits; got {table.outcome[outside][0]:g} {describe_rows(outside)}",
                hint="widen limits, or leave them out: the lowest and the highest outcome are taken",
            )


def _unit_of(residual: FloatArray) -> float:
    """Give a power of 2 near the largest residual: squares of squares stay finite, and no digit is lost."""
    largest = float(np.abs(residual).max())
    return 2.0 ** min(max(math.frexp(largest)[1], -600), 340) if largest else 1.0


def _rounds(many: int) -> str:
    return f"{many} round{'' if many == 1 else 's'}"
