"""Level sets: a small learner for every level of the score, round after round; what LSBoost learns."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from trueup.calibrators.maps.base import Map
from trueup.kernels.levels import NONE, LevelProgram, end_levels, start_levels, step_levels
from trueup.kernels.threads import Workers

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from trueup._types import AnyArray, FloatArray, Int32Array, IntArray
    from trueup.calibrators.rowwise import RowExplanation
    from trueup.data.schema import Schema
    from trueup.kernels.trees import Forest


CHUNK, MANY = 8192, 8  # rows that are scored by one call; fewer where there are more models than so many


@dataclass(frozen=True)
class Scale:
    """Where scores live between rounds.

    Attributes
    ----------
    low, high : float
        Scores are kept within these, after ``(prediction - offset) / unit``.
    offset, unit : float
    rate : float
        How far a score moves towards what the learner of its level says.
    grid : int
        Scores are rounded to multiples of 1 / grid; 0 for no rounding.
    start : float or None
        Where every score begins, for a model without a prediction.
    hold : float
        The share of its distance from either end that a score keeps in every round.
    """

    low: float
    high: float
    offset: float = 0.0
    unit: float = 1.0
    rate: float = 1.0
    grid: int = 0
    start: float | None = None
    hold: float = 0.0

    @property
    def bounds(self) -> FloatArray:
        """Lay it out for the scorer."""
        found = (self.low, self.high, self.rate, self.offset, self.unit, self.start or 0.0, self.hold)
        return np.array(found, np.float64)


@dataclass(frozen=True, eq=False)
class LineSlopes:
    """Straight lines: how features enter (see `trueup.engines.levels.Lines`), and one row of slopes a line."""

    place: IntArray
    centre: FloatArray
    scale: FloatArray
    slopes: FloatArray


@dataclass(frozen=True, eq=False)
class LevelSets(Map):
    """In each round, find the level of the score and add what the learner of that level says; the mean of several models.

    Attributes
    ----------
    scale : Scale
    levels : tuple of int
        How many levels each feature has, in the order of the schema; -1 for a number.
    models, rounds : int
    edges_at, edges : ndarray
        Round t of model m has the edges from ``edges_at[m * rounds + t]`` on, ascending: a score is on the level of how
        many of them lie below it.
    learner : ndarray of int32
        The tree or line of each level, round after round (one more than there are edges); NONE leaves a level alone.
    learners : Forest or LineSlopes
        Trees have a single output; a leaf, or a line, is what is added to the score.
    """

    kind = "levels"

    scale: Scale
    levels: tuple[int, ...]
    models: int
    rounds: int
    edges_at: IntArray
    edges: FloatArray
    learner: Int32Array
    learners: Forest | LineSlopes

    @property
    def steps(self) -> int:
        """Count the rounds."""
        return self.rounds

    @property
    def changes(self) -> bool:
        """Say whether there are rounds, or scores are rounded to a grid."""
        return self.rounds > 0 or (self.scale.grid > 0 and self.scale.start is None)

    @property
    def fitted(self) -> int:
        """Count the trees or lines of all rounds and models."""
        return int((self.learner != NONE).sum())

    @cached_property
    def program(self) -> LevelProgram:
        """Lay the rounds out for the scorer."""
        linear = isinstance(self.learners, LineSlopes)
        sizes = np.array([self.models, self.rounds, self.scale.grid, linear, self.scale.start is not None], np.int64)
        places = np.arange(len(self.edges_at), dtype=np.int64)
        common = (sizes, self.scale.bounds, np.array(self.levels, np.int64), self.edges_at, self.edges,
                  self.edges_at + places)  # fmt: skip
        if isinstance(self.learners, LineSlopes):
            own = self.learners
            no_trees = (np.zeros((0, 6), np.int32), np.zeros(0), np.zeros(0, np.uint32), np.zeros(0))
            return LevelProgram(*common, self.learner, *no_trees, own.place, own.centre, own.scale, own.slopes)
        forest = self.learners
        roots = np.append(forest.root, NONE).astype(np.int32)
        root = roots[np.where(self.learner == NONE, len(forest.root), self.learner)]
        node = (forest.feature, forest.left, forest.right, forest.missing_left, forest.words_at, forest.words_in)
        nodes = np.ascontiguousarray(np.column_stack(node), np.int32)
        no_lines = (np.zeros(0, np.int64), np.zeros(0), np.zeros(0), np.zeros((0, 1)))
        return LevelProgram(*common, root, nodes, forest.threshold, forest.words, forest.value, *no_lines)

    def apply(self, columns: Iterable[AnyArray], prediction: FloatArray, workers: Workers | None = None) -> FloatArray:
        """Score rows by all rounds."""
        given, out = list(columns), np.empty(len(prediction))
        step = max(1, CHUNK * MANY // max(MANY, self.models))

        def some(start: int) -> None:
            rows = slice(start, start + step)
            for found in self._stages(_stack(given, rows), prediction[rows], last=True):
                out[rows] = found

        (workers or Workers()).map(some, range(0, len(out), step))
        return out

    def stages(self, columns: Iterable[AnyArray], prediction: FloatArray) -> Iterator[FloatArray]:
        """Score rows by no round, by the first, by the first two, and so on."""
        given = list(columns)
        return self._stages(_stack(given, slice(0, len(prediction))), prediction)

    def _stages(self, X: FloatArray, prediction: FloatArray, *, last: bool = False) -> Iterator[FloatArray]:
        sizes, bounds = self.program.sizes, self.program.bounds
        F = np.empty((self.models, len(prediction)))
        start_levels(sizes, bounds, np.ascontiguousarray(prediction), F)
        for at in range(self.rounds + 1):
            if at:
                step_levels(*self.program, at - 1, X, F)
            if not last or at == self.rounds:
                out = np.empty(len(prediction))
                end_levels(bounds, F, out)
                yield out

    def apply_one(self, row: list[float], prediction: list[float]) -> FloatArray:
        """Score one row."""
        P = np.array(prediction or [0.0], np.float64)
        return next(self._stages(np.array(row, np.float64).reshape(-1, 1), P, last=True))

    def describe(self) -> str:
        """Count rounds, levels and learners."""
        what = "lines" if isinstance(self.learners, LineSlopes) else "trees"
        most = int(np.diff(self.edges_at).max(initial=0)) + 1
        models = f" in each of {self.models} models" if self.models > 1 else ""
        levels = "one level" if most == 1 else f"up to {most} levels"
        return f"{self.rounds} round{'' if self.rounds == 1 else 's'}{models}, {levels} ({self.fitted:,} {what})"

    def tested(self) -> list[tuple[int, ...]]:
        """List the features that trees test together; for lines each feature by its largest slopes."""
        if isinstance(self.learners, LineSlopes):
            edges = [*self.learners.place.tolist(), self.learners.slopes.shape[1]]
            size = [float(np.abs(self.learners.slopes[:, low:high]).sum()) for low, high in itertools.pairwise(edges)]
            return [(at,) for at in np.argsort(-np.array(size), kind="stable").tolist()]
        from trueup.calibrators.explain import tested_together
        from trueup.calibrators.maps.cascade import Cascade, CascadeRound

        return tested_together(Cascade("identity", self.levels, 1, (CascadeRound(1.0, (self.learners,), 0),)))

    def explain_one(self, schema: Schema, row: Sequence[float], prediction: Sequence[float]) -> RowExplanation:
        """Say what the conditions of the trees added; for lines, what each round did."""
        from trueup.calibrators.rowwise import explain_levels, explain_stages

        P = np.array(list(prediction) or [0.0], np.float64)
        if not isinstance(self.learners, LineSlopes) and self.rounds:
            return explain_levels(self, self.learners, schema, row, P)
        found = self._stages(np.array(row, np.float64).reshape(-1, 1), P)
        return explain_stages(list(prediction), [float(stage[0]) for stage in found])


def _stack(columns: Sequence[AnyArray], rows: slice) -> FloatArray:
    """Put columns under each other, codes as numbers."""
    X = np.empty((len(columns), rows.stop - rows.start if not columns else len(columns[0][rows])))
    for at, column in enumerate(columns):
        X[at] = column[rows]
    return X
