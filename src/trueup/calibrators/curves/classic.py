"""What the classical calibrators share: rows added up by score, a curve for each class, a judge where one is asked for."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.calibrators.base import Calibrator, FitResult
from trueup.calibrators.losses import task_loss
from trueup.calibrators.map import UnchangedMap
from trueup.calibrators.maps.scores import CHUNK, Curves, ScoreMap, join_outputs
from trueup.calibrators.splits import are_row_counts, collect_held_out
from trueup.calibrators.stopping import CrossValidation, History, Round, choose_rounds, evaluation_rows
from trueup.errors import ArgumentError
from trueup.kernels.cascade import SMALLEST
from trueup.kernels.losses import log_losses
from trueup.kernels.pooling import effective_rows, pool
from trueup.kernels.threads import Workers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trueup._types import FloatArray, Int32Array
    from trueup.calibrators.losses import TaskLoss
    from trueup.calibrators.map import Map
    from trueup.calibrators.stopping import Split
    from trueup.data.schema import Task
    from trueup.data.table import Table
    from trueup.kernels.pooling import Pooled


@dataclass(frozen=True, eq=False)
class Sample:
    """Rows to fit curves to, one curve for each group and class.

    Attributes
    ----------
    task : str
    prediction : ndarray of float64, shape (n, outputs)
    outcome : ndarray of float64, shape (n,)
    weight : ndarray of float64, or None
    code : ndarray of int32, or None
        The group of each row; one group without it.
    worth : ndarray of float64, shape (groups,)
        How many rows each group counts for.
    """

    task: Task
    prediction: FloatArray
    outcome: FloatArray
    weight: FloatArray | None
    code: Int32Array | None
    worth: FloatArray

    @property
    def groups(self) -> int:
        """Count the groups."""
        return len(self.worth)

    @property
    def outputs(self) -> int:
        """Count the prediction columns."""
        return int(self.prediction.shape[1])

    def pooled(self, output: int) -> Pooled:
        """Add up the rows of equal score, for one class against the rest where there are several."""
        y = self.outcome if self.outputs == 1 else (self.outcome == output).astype(np.float64)
        return pool(np.ascontiguousarray(self.prediction[:, output]), y, self.weight, self.code, self.groups)


def sample_of(table: Table) -> Sample:
    """Take all rows of a table as one group."""
    assert table.outcome is not None
    return Sample(
        table.schema.task, table.prediction.reshape(len(table), -1), table.outcome, table.weight, None,
        count_rows(table.weight, len(table)),
    )  # fmt: skip


def count_rows(weight: FloatArray | None, rows: int, code: Int32Array | None = None, groups: int = 1) -> FloatArray:
    """Say how many rows each group counts for: what weights add up to where they are counts, else the effective number.

    Counts are whole weights of up to 100 on average. The effective number is (sum w)^2 / sum w^2, whatever the unit.

    Examples
    --------
    >>> count_rows(np.array([2.0, 1.0, 1.0]), 3, np.array([0, 0, 1], np.int32), 2)
    array([3., 1.])
    """
    if weight is None:
        return np.array([float(rows)]) if code is None else np.bincount(code, minlength=groups).astype(np.float64)
    codes = np.zeros(0, np.int32) if code is None else code
    if are_row_counts(weight):
        return np.asarray([weight.sum()] if code is None else np.bincount(codes, weight, groups), np.float64)
    found = np.empty(groups)
    effective_rows(codes, weight / weight.max(), found)
    return found


class Judged(Calibrator):
    """A calibrator that learns one map, kept or dropped as a whole. A subclass writes ``_learn`` and ``_check``."""

    def _fit_map(self, table: Table, progress: Any) -> FitResult:  # noqa: ARG002
        self._check(table.schema.task)
        self._check_stopping()
        whole, splits = self._split_rows(table)
        if self.stopping is None:
            found = self._learn(table)
            after = _apply(found, table)
            return FitResult(found, self._judge(table, after), after)
        scores, found = self._out_of_fold(whole, splits)
        rows = np.concatenate([split.valid for split in splits])
        held = whole.take(rows)
        history = self._judge(held, scores)
        if not history.chosen:
            return FitResult(UnchangedMap(), history, held_out=collect_held_out(whole, rows, held.prediction))
        kept = self._learn(table) if isinstance(self.stopping, CrossValidation) else found
        return FitResult(kept, history, held_out=collect_held_out(whole, rows, scores))

    def _out_of_fold(self, table: Table, splits: Sequence[Split]) -> tuple[FloatArray, Map]:
        """Score the rows that judge, each by a map that was not fitted to it; give the last of the maps too."""
        scores = []
        for split in splits:
            found = self._learn(table.take(split.train))
            scores.append(_apply(found, table.take(split.valid)))
        return np.concatenate(scores), found

    def _judge(self, judging: Table, after: FloatArray) -> History:
        """Hold the losses of the rows that judge against those of the base score."""
        fixed = self.stopping is None
        loss = task_loss(judging.schema.task)
        assert judging.outcome is not None
        losses = [_losses(loss, judging.outcome, scores) for scores in (judging.prediction, after)]
        chosen, judged = choose_rounds(iter(losses), judging.weight)
        chosen = 1 if fixed else chosen
        (before, *_), (fell, gain, error) = judged
        rounds = Round(0, 0, 1.0, before, 0.0, 0.0, kept=True), Round(1, 0, 1.0, fell, gain, error, kept=chosen == 1)
        reason = "fitted as told; nothing was held out to judge by"
        if not fixed:
            moved = f"held-out loss {before:.6g} -> {fell:.6g}"
            reason = f"kept: {moved}" if chosen else f"{moved} is nothing beyond noise: scores are left unchanged"
        return History(rounds, chosen, reason, evaluation_rows(self.stopping), loss.measure)

    @abstractmethod
    def _check(self, task: Task) -> None:
        """Refuse parameters that make no sense, and a task that the method is not for."""

    @abstractmethod
    def _learn(self, table: Table) -> Map:
        """Fit the map to all rows of a table."""


class Classic(Judged):
    """A curve of the score alone. A subclass writes ``_fit_output``."""

    ONLY_PROBABILITIES = False

    def _check(self, task: Task) -> None:
        if self.ONLY_PROBABILITIES and task == "regression":
            raise ArgumentError(
                f"{type(self).__name__} corrects probabilities: it has no meaning for task='regression'",
                hint="Isotonic, Platt (a straight line) and Histogram take real outcomes",
            )

    def _learn(self, table: Table) -> Map:
        return ScoreMap(self._fit_curves(sample_of(table)))

    def _fit_curves(self, sample: Sample) -> Curves:
        """Fit a curve for each group and class; several classes one against the rest."""
        found = [self._fit_output(sample.pooled(at), sample.worth, sample.task) for at in range(sample.outputs)]
        return join_outputs(found)

    @abstractmethod
    def _fit_output(self, pooled: Pooled, worth: FloatArray, task: Task) -> Curves:
        """Fit a curve for each group of one class."""

    def _curves(self) -> Curves | None:
        """Give the curves of the fit; None where scores are left unchanged."""
        found = self._fitted().map
        return found.curves if isinstance(found, ScoreMap) else None

    def _coefficient(self, column: int, unchanged: float) -> Any:
        """Give one coefficient: a number, or an array of one for each class."""
        curves = self._curves()
        outputs = len(self._fitted().schema.prediction)
        if curves is None:
            return unchanged if outputs == 1 else np.full(outputs, unchanged)
        return (
            float(curves.coefficients[0, column])
            if len(curves.coefficients) == 1
            else curves.coefficients[:, column].copy()
        )

    def _side(self, side: int) -> Any:
        """Give the knots or edges, or their values: an array, or a list of one for each class."""
        curves = self._curves()
        outputs = len(self._fitted().schema.prediction)
        pieces = [np.zeros(0) if curves is None else curves.piece(at)[side].copy() for at in range(outputs)]
        return pieces[0] if outputs == 1 else pieces


def _losses(loss: TaskLoss, y: FloatArray, scores: FloatArray) -> FloatArray:
    """Give the loss of every row; that of probabilities by a kernel, since it is asked of every fit."""
    if loss.name != "log":
        return loss.per_row(y, loss.apply_link(scores))
    out = np.empty(len(y))

    def some(start: int) -> None:
        rows = slice(start, start + CHUNK)
        log_losses(y[rows], scores[rows], SMALLEST, out[rows])

    Workers().map(some, range(0, len(y), CHUNK))
    return out


def _apply(found: Map, table: Table) -> FloatArray:
    columns = [table.columns[feature.name] for feature in table.schema.features]
    return found.apply(columns, table.prediction, Workers())
