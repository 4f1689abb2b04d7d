"""Level sets with regressors of other libraries: a model that predicts, and cannot be saved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import clone

from trueup.calibrators.map import Map
from trueup.kernels.levels import advance_all, order_by_level
from trueup.kernels.threads import Workers
from trueup.learners.level_regression import fit_external, matrix, predict_external
from trueup.metrics.levelsets import discretize

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from trueup._types import AnyArray, BoolArray, FloatArray, Int32Array, IntArray
    from trueup.calibrators.explain import RowExplanation
    from trueup.calibrators.lsboost.levelsets import ScoreScale
    from trueup.calibrators.lsboost.rounds import Boosted, LearnedRound
    from trueup.data.schema import Schema


class ExternalLearner:
    """Any scikit-learn regressor, a clone of it for each level, fitted in threads."""

    def __init__(
        self, estimator: Any, columns: Sequence[AnyArray], levels: Sequence[int], weight: FloatArray, seed: int
    ) -> None:
        self.estimator, self.weight, self.seed = estimator, weight, seed
        self.X = matrix(columns, levels, len(weight))
        self.weighted = bool((weight != weight[0]).any())

    def fit(self, level: Int32Array, rows: IntArray, levels: int, y: FloatArray, F: FloatArray, workers: Workers) -> Any:  # noqa: ARG002
        """Fit a clone on each level to the outcome itself."""
        order, starts = order_by_level(level, rows, levels)

        def one(v: int) -> Any:
            own = order[starts[v] : starts[v + 1]]
            return self._fit(own, y) if len(own) else None

        return workers.map(one, range(levels))

    def _fit(self, rows: IntArray, y: FloatArray) -> Any:
        made = clone(self.estimator)
        if made.get_params().get("random_state", 0) is None:
            made.set_params(random_state=self.seed)
        return fit_external(made, self.X[rows], y[rows], self.weight[rows] if self.weighted else None)

    def values(self, fitted: Any, level: Int32Array, F: FloatArray, workers: Workers) -> FloatArray:
        """Say how far the fit of its level is from the score of every row."""
        return fitted_values(fitted, self.X, level, workers) - F

    def versions(self, fitted: Any) -> list[Any]:
        """Have regressors as they are."""
        return [fitted]

    def mix(self, versions: list[Any], which: IntArray) -> Any:  # noqa: ARG002
        """Have regressors as they are."""
        return versions[0]

    def keep(self, fitted: Any, kept: BoolArray) -> Any:
        """Have a regressor for each level, None for the others."""
        return [one if here else None for one, here in zip(fitted, kept, strict=True)]


def fitted_values(fitted: Sequence[Any], X: FloatArray, level: Int32Array, workers: Workers) -> FloatArray:
    """Predict every row by the regressor of its level; NaN where there is none."""
    order, starts = order_by_level(level, np.arange(len(level)), len(fitted))
    out = np.full(len(level), np.nan)

    def one(v: int) -> None:
        own = order[starts[v] : starts[v + 1]]
        if len(own) and fitted[v] is not None:
            out[own] = predict_external(fitted[v], X[own])

    workers.map(one, range(len(fitted)))
    return out


@dataclass(frozen=True, eq=False)
class ExternalLevelSets(Map):
    """Rounds of level sets, each level with a regressor of another library."""

    kind = "external"
    unsavable_hint = 'learner="tree" or learner="linear"'

    scale: ScoreScale
    levels: tuple[int, ...]
    models: tuple[tuple[LearnedRound, ...], ...]
    name: str

    @property
    def steps(self) -> int:
        """Count the rounds."""
        return len(self.models[0])

    def apply(self, columns: Iterable[AnyArray], prediction: FloatArray, workers: Workers | None = None) -> FloatArray:
        """Score rows by all rounds."""
        for found in self.stages(columns, prediction, workers):
            last = found
        return last

    def stages(
        self, columns: Iterable[AnyArray], prediction: FloatArray, workers: Workers | None = None
    ) -> Iterator[FloatArray]:
        """Score rows by no round, by the first, by the first two, and so on."""
        scale, crew = self.scale, workers or Workers()
        X = matrix(list(columns), self.levels, len(prediction))
        begin = (prediction - scale.offset) / scale.unit if scale.start is None else np.full(len(X), scale.start)
        if scale.grid:
            begin = discretize(begin, scale.grid)
        scores = [begin] * len(self.models)
        for at in range(self.steps + 1):
            if at:
                scores = [self._step(model[at - 1], X, F, crew) for model, F in zip(self.models, scores, strict=True)]
            yield scale.offset + scale.unit * (np.sum(scores, axis=0) / len(scores))

    def _step(self, one: LearnedRound, X: FloatArray, F: FloatArray, workers: Workers) -> FloatArray:
        scale, moved = self.scale, np.empty(len(F))
        level = np.searchsorted(one.edges, F).astype(np.int32)
        value = fitted_values(one.fitted, X, level, workers) - F
        kept = one.kept.astype(np.uint8)
        advance_all(F, value, kept, level, scale.rate, scale.grid, scale.low, scale.high, scale.hold, moved)
        return moved

    def apply_one(self, row: list[float], prediction: list[float]) -> FloatArray:
        """Score one row."""
        columns = [np.array([value]) for value in row]
        return self.apply(columns, np.array(prediction or [0.0], np.float64), Workers(1))

    def describe(self) -> str:
        """Name the regressor."""
        return f"{self.steps} round{'' if self.steps == 1 else 's'} of {self.name} on level sets"

    def tested(self) -> list[tuple[int, ...]]:
        """Take every feature for one that matters."""
        return [(at,) for at in range(len(self.levels))]

    def explain_one(self, schema: Schema, row: Sequence[float], prediction: Sequence[float]) -> RowExplanation:  # noqa: ARG002
        """Say what each round added."""
        from trueup.calibrators.explain import explain_rounds

        columns = [np.array([value]) for value in row]
        P = np.array(list(prediction) or [0.0], np.float64)
        return explain_rounds(list(prediction), [float(stage[0]) for stage in self.stages(columns, P, Workers(1))])


def make_external_map(models: Sequence[Boosted], rounds: int, levels: tuple[int, ...]) -> ExternalLevelSets:
    """Put the first so many rounds of all models into one map."""
    first = models[0]
    name = type(first.learner.estimator).__name__  # type: ignore[attr-defined]
    return ExternalLevelSets(first.rules.scale, levels, tuple(tuple(model.rounds[:rounds]) for model in models), name)
