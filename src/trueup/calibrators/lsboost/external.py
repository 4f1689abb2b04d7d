"""Level sets with regressors of other libraries: such a model predicts, but cannot be saved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import clone

from trueup.calibrators.map import Map
from trueup.kernels.levels import order_by_level
from trueup.kernels.threads import Workers
from trueup.learners.level_regression import design_matrix, fit_external, predict_external

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from trueup._types import AnyArray, BoolArray, FloatArray, Int32Array, IntArray
    from trueup.calibrators.explain import RowExplanation
    from trueup.calibrators.lsboost.levelsets import ScoreScale
    from trueup.calibrators.lsboost.rounds import LevelRound
    from trueup.data.table import Schema


class ExternalLearner:
    """Any scikit-learn regressor, a clone per level, fitted in threads."""

    def __init__(
        self, estimator: Any, columns: Sequence[AnyArray], levels: Sequence[int], weight: FloatArray, seed: int
    ) -> None:
        self.estimator, self.weight, self.seed = estimator, weight, seed
        self.X = design_matrix(columns, levels, len(weight))
        self.weighted = bool((weight != weight[0]).any())

    def fit(self, level: Int32Array, rows: IntArray, levels: int, y: FloatArray, F: FloatArray, workers: Workers) -> Any:  # noqa: ARG002
        """Fit a clone to the outcomes of each level; None on levels without rows."""
        order, starts = order_by_level(level, rows, levels)

        def fit_level(v: int) -> Any:
            own = order[starts[v] : starts[v + 1]]
            if not len(own):
                return None
            regressor = clone(self.estimator)
            if regressor.get_params().get("random_state", 0) is None:
                regressor.set_params(random_state=self.seed)
            return fit_external(regressor, self.X[own], y[own], self.weight[own] if self.weighted else None)

        return workers.map(fit_level, range(levels))

    def values(self, fitted: Sequence[Any], level: Int32Array, F: FloatArray, workers: Workers) -> FloatArray:
        """Return the distance of the fit of its level from the score of every row."""
        return _predict_levels(fitted, self.X, level, workers) - F

    def keep(self, fitted: Sequence[Any], kept: BoolArray) -> list[Any]:
        """Return the regressors of the kept levels, None for the others."""
        return [regressor if keep else None for regressor, keep in zip(fitted, kept, strict=True)]


def _predict_levels(fitted: Sequence[Any], X: FloatArray, level: Int32Array, workers: Workers) -> FloatArray:
    """Predict every row by the regressor of its level; NaN if there is none."""
    order, starts = order_by_level(level, np.arange(len(level)), len(fitted))
    out = np.full(len(level), np.nan)

    def predict_level(v: int) -> None:
        own = order[starts[v] : starts[v + 1]]
        if len(own) and fitted[v] is not None:
            out[own] = predict_external(fitted[v], X[own])

    workers.map(predict_level, range(len(fitted)))
    return out


@dataclass(frozen=True, eq=False)
class ExternalLevelSets(Map):
    """Rounds of level sets, each level with a regressor of another library."""

    kind = "external"
    unsavable_hint = 'learner="tree" or learner="linear"'

    scale: ScoreScale
    levels: tuple[int, ...]
    models: tuple[tuple[LevelRound, ...], ...]
    name: str

    @property
    def steps(self) -> int:
        """Return the number of rounds."""
        return len(self.models[0])

    def apply(self, columns: Iterable[AnyArray], prediction: FloatArray, workers: Workers | None = None) -> FloatArray:
        """Score rows with all rounds."""
        *_, last = self.stages(columns, prediction, workers)
        return last

    def stages(
        self, columns: Iterable[AnyArray], prediction: FloatArray, workers: Workers | None = None
    ) -> Iterator[FloatArray]:
        """Yield the scores after 0, 1, 2, ... rounds."""
        scale, workers = self.scale, workers or Workers()
        X = design_matrix(list(columns), self.levels, len(prediction))
        scores = [scale.initial(prediction)] * len(self.models)
        yield scale.restore(np.sum(scores, axis=0) / len(scores))
        for number in range(self.steps):
            for index, model in enumerate(self.models):
                step, F = model[number], scores[index]
                level = np.searchsorted(step.edges, F).astype(np.int32)
                scores[index] = scale.advance(F, _predict_levels(step.fitted, X, level, workers) - F, step.kept, level)
            yield scale.restore(np.sum(scores, axis=0) / len(scores))

    def apply_one(self, row: list[float], prediction: list[float]) -> FloatArray:
        """Score one row."""
        columns = [np.array([value]) for value in row]
        return self.apply(columns, np.array(prediction or [0.0], np.float64), Workers(1))

    def describe(self) -> str:
        """Return the number of rounds and the type of the regressor."""
        return f"{self.steps} round{'' if self.steps == 1 else 's'} of {self.name} on level sets"

    def feature_sets(self) -> list[tuple[int, ...]]:
        """List every feature: the regressor does not tell which it uses."""
        return [(feature,) for feature in range(len(self.levels))]

    def explain_one(self, schema: Schema, row: Sequence[float], prediction: Sequence[float]) -> RowExplanation:  # noqa: ARG002
        """Explain the change of one prediction by round."""
        from trueup.calibrators.explain import explain_rounds

        columns = [np.array([value]) for value in row]
        P = np.array(list(prediction) or [0.0], np.float64)
        return explain_rounds(list(prediction), [float(stage[0]) for stage in self.stages(columns, P, Workers(1))])
