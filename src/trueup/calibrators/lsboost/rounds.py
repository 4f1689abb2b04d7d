"""Rounds of LSBoost: level sets, a learner for each, a gate, and scores that move; all models of a fit side by side."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from trueup.calibrators.lsboost.levelsets import LevelSets, LineSlopes, ScoreScale
from trueup.calibrators.stopping import choose_rounds, paired_gain
from trueup.kernels.levels import NONE, advance_all
from trueup.kernels.threads import Workers
from trueup.kernels.trees import join_forests
from trueup.learners.level_regression import (
    DUST,
    Columns,
    Lines,
    Trees,
    fit_lines,
    grow_trees,
    level_edges,
    line_values,
    to_forest,
    tree_values,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trueup._types import BoolArray, FloatArray, Int32Array, IntArray
    from trueup.calibrators.losses import TaskLoss
    from trueup.calibrators.stopping import Split
    from trueup.data.table import Table


GATES = 4  # one in so many of the rows to learn from opens the gates of a round instead
LESS = 1e-9  # a loss counts as lower where it is by this share: sums differ by the number of threads


@dataclass(frozen=True)
class Rules:
    """How a round goes.

    Attributes
    ----------
    scale : ScoreScale
    levels : int
        The most level sets; those of a grid are its points.
    min_rows : float
        A level of less weight has no learner; levels of equal mass are made no smaller.
    gate : float or None
        By how many standard errors a learner must lower the squared error of gate rows on its level.
    """

    scale: ScoreScale
    levels: int
    min_rows: float
    gate: float | None


class Learner(Protocol):
    """What is fitted to every level of a round."""

    def fit(self, level: Int32Array, rows: IntArray, levels: int, y: FloatArray, F: FloatArray, workers: Workers) -> Any:
        """Fit one learner on the rows of each level."""

    def values(self, fitted: Any, level: Int32Array, F: FloatArray, workers: Workers) -> FloatArray:
        """Say for every row what the learner of its level adds to the score."""

    def versions(self, fitted: Any) -> list[Any]:
        """List what was fitted from its simplest form to the whole of it."""

    def mix(self, versions: list[Any], which: IntArray) -> Any:
        """Take for each level the version it is given."""

    def keep(self, fitted: Any, kept: BoolArray) -> Any:
        """Let go of what was fitted to the other levels."""


@dataclass(eq=False)
class TreeLearner:
    """Regression trees of a small depth, by least squares on binned features."""

    data: Columns
    weight: FloatArray
    depth: int
    least: float
    l2: float

    def fit(self, level: Int32Array, rows: IntArray, levels: int, y: FloatArray, F: FloatArray, workers: Workers) -> Any:
        """Grow one tree on each level."""
        return grow_trees(
            self.data, level, rows, levels, y - F, self.weight, depth=self.depth, least=self.least, l2=self.l2,
            workers=workers,
        )  # fmt: skip

    def values(self, fitted: Any, level: Int32Array, F: FloatArray, workers: Workers) -> FloatArray:  # noqa: ARG002
        """Walk every row down the tree of its level."""
        return tree_values(self.data, fitted, level, workers)

    def versions(self, fitted: Any) -> list[Any]:
        """Cut the trees at every depth, from the mean of the level to the whole tree."""
        return [self._cut(fitted, np.full(len(fitted.feature), depth)) for depth in range(self.depth + 1)]

    def mix(self, versions: list[Any], which: IntArray) -> Any:
        """Cut each tree at its depth."""
        return self._cut(versions[-1], which)

    def keep(self, fitted: Any, kept: BoolArray) -> Any:
        """Take the trees of some levels."""
        return Trees(*(array[kept] for array in fitted))

    def _cut(self, fitted: Any, depth: IntArray) -> Any:
        deep = np.arange(fitted.feature.shape[1]) >= (2**depth - 1)[:, None]
        return fitted._replace(feature=np.where(deep, np.int32(-1), fitted.feature))


@dataclass(eq=False)
class LineLearner:
    """Straight lines in the features, by least squares."""

    data: Columns
    weight: FloatArray
    l2: float
    lines: Lines = field(init=False)

    def __post_init__(self) -> None:
        self.lines = Lines.of(self.data, self.weight)

    def fit(self, level: Int32Array, rows: IntArray, levels: int, y: FloatArray, F: FloatArray, workers: Workers) -> Any:
        """Fit one line on each level."""
        return fit_lines(self.data, self.lines, level, rows, levels, y - F, self.weight, l2=self.l2, workers=workers)

    def values(self, fitted: Any, level: Int32Array, F: FloatArray, workers: Workers) -> FloatArray:  # noqa: ARG002
        """Read the line of its level at every row."""
        return line_values(self.data, self.lines, fitted, level, workers)

    def versions(self, fitted: Any) -> list[Any]:
        """Have lines as they are."""
        return [fitted]

    def mix(self, versions: list[Any], which: IntArray) -> Any:  # noqa: ARG002
        """Have lines as they are."""
        return versions[0]

    def keep(self, fitted: Any, kept: BoolArray) -> Any:
        """Take the lines of some levels."""
        return fitted[kept]


@dataclass(frozen=True, eq=False)
class LearnedRound:
    """One round of one model: the edges between levels, which of them keep a learner, and these learners."""

    edges: FloatArray
    fitted: Any
    kept: BoolArray


@dataclass(eq=False)
class Boosted:
    """One model on its way.

    Parameters
    ----------
    learner : Learner
    rules : Rules
    y, F : ndarray
        Outcomes and scores of all rows, on the scale of the rules.
    weight : ndarray
    train : ndarray of int64
        Rows to learn from.
    gates : ndarray of int64, or None
        A part for every row: in each round the rows of one part are not learned from, and must confirm what the others
        say. None lets everything through.
    """

    learner: Learner
    rules: Rules
    y: FloatArray
    F: FloatArray
    weight: FloatArray
    train: IntArray
    gates: IntArray | None
    rounds: list[LearnedRound] = field(default_factory=list, init=False)

    def one_more(self, workers: Workers) -> None:
        """Fit one more round; other rows open the gates than in the round before."""
        learn = self.train
        confirm = learn[:0]
        if self.gates is not None:
            held = self.gates[learn] == len(self.rounds) % GATES
            learn, confirm = learn[~held], learn[held]
        edges = self._edges(learn)
        level, levels = np.searchsorted(edges, self.F).astype(np.int32), len(edges) + 1
        fitted = self.learner.fit(level, learn, levels, self.y, self.F, workers)
        size = np.bincount(level[learn], self.weight[learn], levels)
        least = 0.0 if levels == 1 else self.rules.min_rows * (1 - DUST)  # one level is all rows there are
        kept = (size >= least) & (size > 0)
        if self.rules.gate is not None and len(confirm):
            fitted, passed = self._confirmed(fitted, level, levels, confirm, workers)
            kept &= passed
        value = self.learner.values(fitted, level, self.F, workers)
        self.F = self._moved(value, kept, level)
        self.rounds.append(LearnedRound(edges, self.learner.keep(fitted, kept), kept))

    def _confirmed(
        self, fitted: Any, level: Int32Array, levels: int, rows: IntArray, workers: Workers
    ) -> tuple[Any, BoolArray]:
        """Take on each level the version of its learner that is best for other rows, and say where it is good enough."""
        assert self.rules.gate is not None
        versions = self.learner.versions(fitted)
        everywhere = np.ones(levels, bool)
        gains, errors = np.empty((len(versions), levels)), np.empty((len(versions), levels))
        for at, version in enumerate(versions):
            moved = self._moved(self.learner.values(version, level, self.F, workers), everywhere, level)
            gains[at], errors[at] = self._gains(moved, level, levels, rows)
        best = np.argmax(gains, axis=0)
        gain, error = (array[best, np.arange(levels)] for array in (gains, errors))
        several = np.bincount(level[rows], minlength=levels) > 1  # one row has no standard error
        return self.learner.mix(versions, best), several & (gain > self.rules.gate * error)

    def _edges(self, rows: IntArray) -> FloatArray:
        grid = self.rules.scale.grid
        if grid:
            return (np.arange(grid) + 0.5) / grid
        return level_edges(self.F[rows], self.weight[rows], self.rules.levels, self.rules.min_rows)

    def _moved(self, value: FloatArray, kept: BoolArray, level: Int32Array) -> FloatArray:
        scale, out = self.rules.scale, np.empty(len(self.F))
        advance_all(
            self.F, value, kept.view(np.uint8), level, scale.rate, scale.grid, scale.low, scale.high, scale.hold, out
        )
        return out

    def _gains(self, moved: FloatArray, level: Int32Array, levels: int, rows: IntArray) -> tuple[FloatArray, FloatArray]:
        """Say by how much the squared error of rows falls on each level, and the standard error of that."""
        at, w = level[rows], self.weight[rows]
        gain = w * ((self.y[rows] - self.F[rows]) ** 2 - (self.y[rows] - moved[rows]) ** 2)
        total = np.bincount(at, gain, levels)
        count = np.maximum(np.bincount(at, minlength=levels), 1)
        spread = np.bincount(at, gain**2, levels) - total**2 / count
        return np.asarray(total), np.sqrt(np.maximum(spread, 0.0))


def make_map(models: Sequence[Boosted], rounds: int, levels: tuple[int, ...]) -> LevelSets:
    """Put the first so many rounds of all models into one map; without rounds they are all the same."""
    models = models if rounds else models[:1]
    steps = [one for model in models for one in model.rounds[:rounds]]
    edges = [one.edges for one in steps]
    kept = np.concatenate([np.zeros(0, bool), *(one.kept for one in steps)])
    learner = np.where(kept, np.cumsum(kept) - 1, NONE).astype(np.int32)
    learners: Any
    first = models[0].learner
    if isinstance(first, LineLearner):
        slopes = np.concatenate([np.zeros((0, first.lines.width)), *(one.fitted for one in steps)])
        learners = LineSlopes(first.lines.place, first.lines.centre, first.lines.scale, slopes)
    else:
        assert isinstance(first, TreeLearner)
        learners = join_forests([to_forest(first.data, one.fitted) for one in steps])
    at = np.cumsum([0, *map(len, edges)], dtype=np.int64)
    return LevelSets(
        models[0].rules.scale, levels, len(models), rounds, at, np.concatenate([np.zeros(0), *edges]), learner, learners
    )


class Search:
    """Rounds of all models, one after another, judged on the rows that each model left out.

    Parameters
    ----------
    models : sequence of Boosted
    parts : sequence of Split
        Which rows judge each model.
    table : Table
    loss : TaskLoss
    workers : Workers
    progress : callable or None
    """

    def __init__(
        self,
        models: Sequence[Boosted],
        parts: Sequence[Split],
        table: Table,
        loss: TaskLoss,
        workers: Workers,
        progress: Any,
    ) -> None:
        self.models, self.parts, self.table, self.loss = models, parts, table, loss
        self.workers, self.progress = workers, progress
        self.inner = Workers(max(1, workers.threads // len(models)))
        self.best: FloatArray | None = None

    def one_more(self) -> None:
        """Fit one more round of every model."""
        self.workers.map(lambda model: model.one_more(self.inner), self.models)

    def fitted(self, at: int) -> int:
        """Count the learners that a model keeps of a round, on average, rounded up."""
        return math.ceil(sum(int(model.rounds[at - 1].kept.sum()) for model in self.models) / len(self.models))

    def training_error(self) -> float:
        """Give the squared error of the rows of the fit, on the scale of the rules."""
        model = self.models[0]
        return float(np.average((model.y - model.F) ** 2, weights=model.weight))

    def run(
        self, base: FloatArray, most: int, patience: int, *, judged: bool
    ) -> tuple[int, list[tuple[float, float, float]], str]:
        """Fit rounds until they bring nothing; say which is best, how each was judged, and why it ended.

        The scores that the best gives to the rows that judge are kept.

        Without rows that judge, rounds go on while the training error falls, and the one in which it does not is dropped.
        """
        start = np.concatenate([self._losses(part, base) for part in self.parts])
        rows = np.concatenate([self._rows(part) for part in self.parts])
        weight = None if self.table.weight is None else self.table.weight[rows]
        best, chosen = start, 0
        found = [(float(np.average(start, weights=weight)), 0.0, 0.0)]
        lowest, ended = found[0][0], "the most that were allowed"
        for at in range(1, most + 1):
            self.one_more()
            now = np.concatenate([self._losses(p, self._scores(m)) for p, m in zip(self.parts, self.models, strict=True)])
            gain, error, _ = paired_gain(best - now, weight)
            found.append((float(np.average(now, weights=weight)), gain, error))
            if self.progress is not None:
                self.progress(at, most)
            if found[-1][0] < lowest - LESS * abs(lowest):
                best, chosen, lowest = now, at, found[-1][0]
                self.best = self._held() if judged else None
            # Other rows are at the gates in each of so many rounds: what one part does not confirm, the next may.
            idle = at >= GATES and not any(one.kept.any() for model in self.models for one in model.rounds[-GATES:])
            if idle or at - chosen >= (patience if judged else 1):
                ended = "no level could be improved further" if idle else "the next brought nothing"
                break
        if judged and not choose_rounds([start, best], weight)[0]:
            chosen = 0
        return chosen, found, ended

    def _held(self) -> FloatArray:
        return np.concatenate([self._scores(m)[p.valid] for p, m in zip(self.parts, self.models, strict=True)])

    def _rows(self, part: Split) -> IntArray:
        return part.valid if len(part.valid) else part.train

    def _scores(self, model: Boosted) -> FloatArray:
        scale = model.rules.scale
        return scale.offset + scale.unit * model.F

    def _losses(self, part: Split, scores: FloatArray) -> FloatArray:
        rows = self._rows(part)
        assert self.table.outcome is not None
        return self.loss.per_row(self.table.outcome[rows], self.loss.apply_link(scores[rows]))
