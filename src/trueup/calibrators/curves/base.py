"""Base classes of the classical calibrators: rows pooled by score, a curve per class, kept or dropped by held-out loss."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.calibrators.base import Calibrator, FitResult
from trueup.calibrators.curves.map import CHUNK, ScoreCurves, ScoreMap
from trueup.calibrators.map import UnchangedMap
from trueup.calibrators.stopping import (
    CrossValidation,
    History,
    are_row_counts,
    choose_rounds,
    collect_held_out,
    evaluation_rows,
    task_loss,
)
from trueup.errors import ArgumentError
from trueup.kernels.cascade import MIN_PROBABILITY
from trueup.kernels.fitting import effective_rows, pool_scores
from trueup.kernels.losses import log_losses
from trueup.kernels.threads import Workers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trueup._types import FloatArray, Int32Array
    from trueup.calibrators.map import Map
    from trueup.calibrators.stopping import Split, Stopping, TaskLoss
    from trueup.data.table import Table, Task
    from trueup.kernels.fitting import PooledScores


@dataclass(frozen=True, eq=False)
class CurveData:
    """The rows to which curves are fitted, one per group and class."""

    task: Task
    prediction: FloatArray  # (n, outputs)
    outcome: FloatArray
    weight: FloatArray | None
    group: Int32Array | None  # of each row; None for a single group
    sizes: FloatArray  # the number of rows of each group, as `count_rows` counts them

    @classmethod
    def of_table(cls, table: Table) -> CurveData:
        """Return all rows of a table as one group."""
        assert table.outcome is not None
        prediction, sizes = table.prediction.reshape(len(table), -1), count_rows(table.weight, len(table))
        return cls(table.schema.task, prediction, table.outcome, table.weight, None, sizes)

    @property
    def outputs(self) -> int:
        """The number of prediction columns."""
        return int(self.prediction.shape[1])

    def pooled(self, output: int) -> PooledScores:
        """Sum the rows of equal score; for several classes, one class against the rest."""
        y = self.outcome if self.outputs == 1 else (self.outcome == output).astype(np.float64)
        return pool_scores(np.ascontiguousarray(self.prediction[:, output]), y, self.weight, self.group, len(self.sizes))


def count_rows(weight: FloatArray | None, rows: int, group: Int32Array | None = None, groups: int = 1) -> FloatArray:
    """Count the rows of each group: the sum of weights that are counts, else the effective number (sum w)^2 / sum w^2."""
    if weight is None:
        return np.array([float(rows)]) if group is None else np.bincount(group, minlength=groups).astype(np.float64)
    codes = np.zeros(0, np.int32) if group is None else group
    if are_row_counts(weight):
        return np.asarray([weight.sum()] if group is None else np.bincount(codes, weight, groups), np.float64)
    counts = np.empty(groups)
    effective_rows(codes, weight / weight.max(), counts)
    return counts


class SingleMapCalibrator(Calibrator):
    """A calibrator that fits one map and keeps it only if it lowers the held-out loss significantly."""

    def _fit_map(self, table: Table, progress: Any) -> FitResult:  # noqa: ARG002
        self._check(table.schema.task)
        self._check_stopping()
        joined, splits = self._split_rows(table)
        if self.stopping is None:
            fitted = self._fit_rows(table)
            after = _apply(fitted, table)
            return FitResult(fitted, self._evaluate(table, after), after)
        scores, fitted = self._out_of_fold(joined, splits)
        rows = np.concatenate([split.valid for split in splits])
        held = joined.take(rows)
        history = self._evaluate(held, scores)
        if not history.chosen:
            return FitResult(UnchangedMap(), history, held_out=collect_held_out(joined, rows, held.prediction))
        if isinstance(self.stopping, CrossValidation):
            fitted = self._fit_rows(table)
        return FitResult(fitted, history, held_out=collect_held_out(joined, rows, scores))

    def _out_of_fold(self, table: Table, splits: Sequence[Split]) -> tuple[FloatArray, Map]:
        """Score held-out rows, each by a map that was not fitted on it; return the last map too."""
        scores = []
        for split in splits:
            fitted = self._fit_rows(table.take(split.train))
            scores.append(_apply(fitted, table.take(split.valid)))
        return np.concatenate(scores), fitted

    def _evaluate(self, held: Table, after: FloatArray) -> History:
        """Compare the losses of held-out rows with those of the base score."""
        loss = task_loss(held.schema.task)
        assert held.outcome is not None
        losses = [_row_losses(loss, held.outcome, scores) for scores in (held.prediction, after)]
        chosen, evaluations = choose_rounds(iter(losses), held.weight)
        change = f"held-out loss {evaluations[0][0]:.6g} -> {evaluations[1][0]:.6g}"
        if self.stopping is None:
            chosen, reason = 1, "fitted on all rows; no rows were held out to evaluate it"
        else:
            reason = f"kept: {change}" if chosen else f"{change} is within noise: scores are left unchanged"
        return History.of(evaluations, chosen, reason, evaluation_rows(self.stopping), loss.measure)

    @abstractmethod
    def _check(self, task: Task) -> None:
        """Validate the parameters and the task."""

    @abstractmethod
    def _fit_rows(self, table: Table) -> Map:
        """Fit the map to all rows of a table."""


class ScoreCalibrator(SingleMapCalibrator):
    """A curve of the score alone. A subclass defines ``_fit_output``."""

    PROBABILITIES_ONLY = False

    def __init__(
        self,
        prediction: Any = None,
        *,
        task: str = "auto",
        classes: Any = None,
        unlabelled: str = "error",
        stopping: Stopping = None,
    ) -> None:
        self.prediction = prediction
        self.task = task
        self.classes = classes
        self.unlabelled = unlabelled
        self.stopping = stopping

    def _check(self, task: Task) -> None:
        if self.PROBABILITIES_ONLY and task == "regression":
            raise ArgumentError(
                f"{type(self).__name__} corrects probabilities: it has no meaning for task='regression'",
                hint="Isotonic, Platt (a straight line) and Histogram accept real outcomes",
            )

    def _fit_rows(self, table: Table) -> Map:
        return ScoreMap(self._fit_curves(CurveData.of_table(table)))

    def _fit_curves(self, data: CurveData) -> ScoreCurves:
        """Fit a curve per group and class; several classes one against the rest."""
        return ScoreCurves.join_outputs(
            [self._fit_output(data.pooled(output), data.sizes, data.task) for output in range(data.outputs)]
        )

    @abstractmethod
    def _fit_output(self, pooled: PooledScores, sizes: FloatArray, task: Task) -> ScoreCurves:
        """Fit a curve per group of one class."""

    def _curves(self) -> ScoreCurves | None:
        """Return the fitted curves; None if scores are left unchanged."""
        fitted = self._fitted().map
        return fitted.curves if isinstance(fitted, ScoreMap) else None

    def _coefficient(self, column: int, unchanged: float) -> Any:
        """Return one coefficient: a number, or an array with one per class."""
        curves, outputs = self._curves(), len(self._fitted().schema.prediction)
        values = np.full(outputs, unchanged) if curves is None else curves.coefficients[:, column].copy()
        return float(values[0]) if len(values) == 1 else values

    def _pieces(self, side: int) -> Any:
        """Return the knots or edges (side 0) or their values (1): an array, or a list with one per class."""
        curves, outputs = self._curves(), len(self._fitted().schema.prediction)
        pieces = [np.zeros(0) if curves is None else curves.piece(output)[side].copy() for output in range(outputs)]
        return pieces[0] if outputs == 1 else pieces


def _row_losses(loss: TaskLoss, y: FloatArray, scores: FloatArray) -> FloatArray:
    """Return the loss of every row; that of probabilities by a kernel, since every fit needs it."""
    if loss.name != "log":
        return loss.per_row(y, loss.apply_link(scores))
    out = np.empty(len(y))

    def evaluate_chunk(start: int) -> None:
        rows = slice(start, start + CHUNK)
        log_losses(y[rows], scores[rows], MIN_PROBABILITY, out[rows])

    Workers().map(evaluate_chunk, range(0, len(y), CHUNK))
    return out


def _apply(fitted: Map, table: Table) -> FloatArray:
    columns = [table.columns[feature.name] for feature in table.schema.features]
    return fitted.apply(columns, table.prediction, Workers())
