"""Rounds of LSBoost: level sets of the score, a learner per level, a gate per learner; all models of a fit in parallel."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.calibrators.lsboost.external import ExternalLearner, ExternalLevelSets
from trueup.calibrators.lsboost.levelsets import LevelSets, LineSlopes, ScoreScale
from trueup.calibrators.stopping import choose_rounds, paired_gain
from trueup.kernels.levels import NO_LEARNER
from trueup.kernels.threads import Workers
from trueup.kernels.trees import join_forests
from trueup.learners.level_regression import (
    WEIGHT_TOLERANCE,
    LineLearner,
    TreeLearner,
    level_edges,
    to_forest,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trueup._types import BoolArray, FloatArray, Int32Array, IntArray
    from trueup.calibrators.stopping import Split, TaskLoss
    from trueup.data.table import Table

    LevelLearner = TreeLearner | LineLearner | ExternalLearner

GATE_FOLDS = 4  # a different one of these folds of the training rows evaluates the learners of each round
LOSS_TOLERANCE = 1e-9  # a loss is lower if it is by this share: sums differ with the number of threads


@dataclass(frozen=True)
class RoundRules:
    """The rules of a round."""

    scale: ScoreScale
    levels: int  # maximum number of level sets; those of a grid are its points
    min_rows: float  # minimum weight of a level with a learner, and of levels of equal mass
    gate: float | None  # standard errors by which a learner must lower the squared error of the gate rows on its level


@dataclass(frozen=True, eq=False)
class LevelRound:
    """One round of one model: the edges between levels, the levels that keep a learner, and these learners."""

    edges: FloatArray
    fitted: Any
    kept: BoolArray


@dataclass(eq=False)
class LevelModel:
    """One model during boosting: outcomes ``y`` and scores ``F`` of all rows are on the scale of the rules.

    ``gate_fold`` is a fold per row: in each round one fold is not trained on and must confirm the learners; None keeps all
    learners.
    """

    learner: LevelLearner
    rules: RoundRules
    y: FloatArray
    F: FloatArray
    weight: FloatArray
    train: IntArray
    gate_fold: IntArray | None
    rounds: list[LevelRound] = field(default_factory=list, init=False)

    def add_round(self, workers: Workers) -> None:
        """Fit one more round."""
        train, gate = self.train, self.train[:0]
        if self.gate_fold is not None:
            held = self.gate_fold[train] == len(self.rounds) % GATE_FOLDS
            train, gate = train[~held], train[held]
        grid = self.rules.scale.grid
        if grid:
            edges = (np.arange(grid) + 0.5) / grid
        else:
            edges = level_edges(self.F[train], self.weight[train], self.rules.levels, self.rules.min_rows)
        level, levels = np.searchsorted(edges, self.F).astype(np.int32), len(edges) + 1
        fitted: Any = self.learner.fit(level, train, levels, self.y, self.F, workers)
        size = np.bincount(level[train], self.weight[train], levels)
        # A single level has all rows there are, however few.
        least = 0.0 if levels == 1 else self.rules.min_rows * (1 - WEIGHT_TOLERANCE)
        kept = (size >= least) & (size > 0)
        if self.rules.gate is not None and len(gate):
            fitted, passed = self._apply_gate(fitted, level, levels, gate, workers)
            kept &= passed
        value = self.learner.values(fitted, level, self.F, workers)
        self.F = self.rules.scale.advance(self.F, value, kept, level)
        self.rounds.append(LevelRound(edges, self.learner.keep(fitted, kept), kept))

    def _apply_gate(
        self, fitted: Any, level: Int32Array, levels: int, rows: IntArray, workers: Workers
    ) -> tuple[Any, BoolArray]:
        """Cut trees at the depth that is best on the gate rows; return the learners and which levels pass the gate."""
        assert self.rules.gate is not None
        learner, versions = self.learner, [fitted]
        if isinstance(learner, TreeLearner):
            versions = [learner.cut(fitted, np.full(levels, depth)) for depth in range(learner.depth + 1)]
        gains, errors = np.empty((len(versions), levels)), np.empty((len(versions), levels))
        own, count = level[rows], np.bincount(level[rows], minlength=levels)
        for index, version in enumerate(versions):
            value = learner.values(version, level, self.F, workers)
            advanced = self.rules.scale.advance(self.F, value, np.ones(levels, bool), level)
            gain = self.weight[rows] * ((self.y[rows] - self.F[rows]) ** 2 - (self.y[rows] - advanced[rows]) ** 2)
            gains[index] = np.bincount(own, gain, levels)
            variance = np.bincount(own, gain**2, levels) - gains[index] ** 2 / np.maximum(count, 1)
            errors[index] = np.sqrt(np.maximum(variance, 0.0))
        best = np.argmax(gains, axis=0)
        if isinstance(learner, TreeLearner):
            fitted = learner.cut(fitted, best)
        gain, error = (array[best, np.arange(levels)] for array in (gains, errors))
        return fitted, (count > 1) & (gain > self.rules.gate * error)  # a single row has no standard error


def make_map(models: Sequence[LevelModel], rounds: int, levels: tuple[int, ...]) -> LevelSets | ExternalLevelSets:
    """Return the first ``rounds`` rounds of all models as one map; without rounds all models are the same."""
    scale, learner = models[0].rules.scale, models[0].learner
    if isinstance(learner, ExternalLearner):
        name = type(learner.estimator).__name__
        return ExternalLevelSets(scale, levels, tuple(tuple(model.rounds[:rounds]) for model in models), name)
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
        learners = join_forests([to_forest(learner.data, step.fitted) for step in steps])
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
    best: FloatArray | None = field(default=None, init=False)  # scores of the held-out rows after the best round

    def add_round(self) -> None:
        """Fit one more round of every model."""
        per_model = Workers(max(1, self.workers.threads // len(self.models)))
        self.workers.map(lambda model: model.add_round(per_model), self.models)

    def learner_counts(self) -> list[int]:
        """Return the mean number of learners that a model keeps, per round, rounded up."""
        kept = np.array([[int(step.kept.sum()) for step in model.rounds] for model in self.models])
        return [math.ceil(total / len(self.models)) for total in kept.sum(axis=0).tolist()]

    def training_error(self) -> float:
        """Return the squared error of the training rows, on the scale of the rules."""
        model = self.models[0]
        return float(np.average((model.y - model.F) ** 2, weights=model.weight))

    def run(
        self, base: FloatArray, most: int, patience: int, *, held_out: bool
    ) -> tuple[int, list[tuple[float, float, float]], str]:
        """Fit rounds until they no longer help; return the best number, (loss, gain, error) per round, and why it ended.

        Without held-out rows, rounds continue while the training error falls, and the first that does not lower it is
        dropped.
        """
        start = np.concatenate([self._losses(split, base) for split in self.splits])
        rows = np.concatenate([split.valid if held_out else split.train for split in self.splits])
        weight = None if self.table.weight is None else self.table.weight[rows]
        best, chosen = start, 0
        evaluations = [(float(np.average(start, weights=weight)), 0.0, 0.0)]
        lowest, ended = evaluations[0][0], "stopped at the maximum number of rounds"
        for number in range(1, most + 1):
            self.add_round()
            scores = [model.rules.scale.restore(model.F) for model in self.models]
            current = np.concatenate([self._losses(*pair) for pair in zip(self.splits, scores, strict=True)])
            gain, error, _ = paired_gain(best - current, weight)
            loss = float(np.average(current, weights=weight))
            evaluations.append((loss, gain, error))
            if self.progress is not None:
                self.progress(number, most)
            if loss < lowest - LOSS_TOLERANCE * abs(lowest):
                best, chosen, lowest = current, number, loss
                if held_out:
                    pairs = zip(self.splits, scores, strict=True)
                    self.best = np.concatenate([score[split.valid] for split, score in pairs])
            # Other rows are at the gate in each of GATE_FOLDS rounds: what one fold does not confirm, the next may.
            recent = [step for model in self.models for step in model.rounds[-GATE_FOLDS:]]
            if number >= GATE_FOLDS and not any(step.kept.any() for step in recent):
                ended = "no level could be improved further"
                break
            if number - chosen >= (patience if held_out else 1):
                ended = "further rounds did not lower it"
                break
        if held_out and not choose_rounds([start, best], weight)[0]:
            chosen = 0
        return chosen, evaluations, ended

    def _losses(self, split: Split, scores: FloatArray) -> FloatArray:
        rows = split.valid if len(split.valid) else split.train
        assert self.table.outcome is not None
        return self.loss.per_row(self.table.outcome[rows], self.loss.apply_link(scores[rows]))
