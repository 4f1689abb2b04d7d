"""The map of LSBoost: per round, one tree or line for each level set of the score; how it scores rows and is stored.

A level may also have a regressor of another library: such a model predicts, but cannot be saved.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.calibrators.explain import tested_together
from trueup.calibrators.mcgrad.cascade import FOREST_DTYPES, pack_forests, stack_columns, unpack_forests
from trueup.calibrators.model import Map, are_finite, is_integer, pack_arrays, require, unpack_arrays
from trueup.calibrators.row_explanation import (
    ROUNDING,
    ConditionSum,
    Contribution,
    EffectSums,
    RowExplanation,
    TreeWalker,
    explain_change,
    explain_rounds,
)
from trueup.calibrators.stopping import count_rounds
from trueup.kernels import levels as kernel
from trueup.kernels._jit import answer, plain
from trueup.kernels.levels import NO_LEARNER, LevelProgram
from trueup.kernels.threads import Workers
from trueup.learners.level_regression import design_matrix, predict_levels
from trueup.metrics.groups import discretize

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from trueup._types import AnyArray, BoolArray, FloatArray, Int32Array, IntArray
    from trueup.data.table import Schema
    from trueup.kernels.trees import Forest


CHUNK_ROWS, CHUNK_MODELS = 8192, 8  # rows scored by one call; proportionally fewer with more models than this
LEVEL_DTYPES = {"levels/edges_at": "<i8", "levels/edges": "<f8", "levels/learner": "<i4"}
LINE_DTYPES = {"lines/place": "<i8", "lines/centre": "<f8", "lines/scale": "<f8", "lines/slopes": "<f8"}
MAX_GRID = 1 << 30
OWN_LEVEL = "level of the score"  # the condition of a tree without a split


@dataclass(frozen=True)
class ScoreScale:
    """The scale of scores between rounds: ``(prediction - offset) / unit``, within ``low`` and ``high``."""

    low: float
    high: float
    offset: float = 0.0
    unit: float = 1.0
    rate: float = 1.0  # share of the way from the score to the fit of its level that a round moves it
    grid: int = 0  # scores are rounded to multiples of 1 / grid; 0 for no rounding
    start: float | None = None  # initial score of every row, for a model without a prediction
    hold: float = 0.0  # share of its distance from either bound that a score keeps in every round

    def initial(self, prediction: FloatArray) -> FloatArray:
        """Return the scores before the first round, on this scale, rounded to the grid."""
        F = (prediction - self.offset) / self.unit if self.start is None else np.full(len(prediction), self.start)
        return discretize(F, self.grid) if self.grid else F

    def base(self, prediction: FloatArray) -> FloatArray:
        """Return the baseline of the rounds: the predictions or, for a model without them, the mean outcome."""
        return prediction if self.start is None else np.full(len(prediction), self.restore(self.start))

    def restore(self, F: FloatArray | float) -> Any:
        """Return the scores ``F`` on the scale of predictions: ``offset + unit * F``."""
        return self.offset + self.unit * F

    def advance(self, F: FloatArray, value: FloatArray, kept: BoolArray, level: Int32Array) -> FloatArray:
        """Return the scores after a round: those of levels in ``kept`` move by ``rate * value``, within the bounds."""
        out, moves = np.empty(len(F)), kept.view(np.uint8)
        kernel.advance_all(F, value, moves, level, self.rate, self.grid, self.low, self.high, self.hold, out)
        return out


@dataclass(frozen=True, eq=False)
class LevelRound:
    """One round of one model: the edges between levels, the fitted learners, and whether each level keeps its learner."""

    edges: FloatArray
    fitted: Any
    kept: BoolArray


@dataclass(frozen=True, eq=False)
class LineSlopes:
    """Linear functions: coding of features (see `trueup.learners.level_regression.LineLearner`), and slopes per line."""

    place: IntArray
    centre: FloatArray
    scale: FloatArray
    slopes: FloatArray

    def term(self, line: int, feature: int, value: float, levels: int) -> float:
        """Return what a feature adds to a line; ``value`` is a code below ``levels``, or a number (levels -1)."""
        place = int(self.place[feature])
        if levels >= 0:
            return float(self.slopes[line, place + (int(value) + 1 if 0 <= value < levels else 0)])
        distance = (value - float(self.centre[feature])) / float(self.scale[feature])
        return float(self.slopes[line, place] * distance if math.isfinite(distance) else self.slopes[line, place + 1])


@dataclass(frozen=True, eq=False)
class LevelSets(Map):
    """Rounds that add to each score the value of the learner of its level; several models are averaged.

    Round t of model m has the edges from ``edges_at[m * rounds + t]`` on, ascending: the level of a score is the number of
    edges below it. ``levels`` counts the levels of each feature, -1 for a numeric one.
    """

    kind = "levels"

    scale: ScoreScale
    levels: tuple[int, ...]
    models: int
    rounds: int
    edges_at: IntArray
    edges: FloatArray
    learner: Int32Array  # index of the tree or line of each level, round by round; NO_LEARNER leaves a level unchanged
    learners: Forest | LineSlopes

    @property
    def steps(self) -> int:
        """Return the number of rounds."""
        return self.rounds

    @property
    def changes(self) -> bool:
        """Return whether the map can change a prediction: by rounds, or by rounding to a grid."""
        return self.rounds > 0 or (self.scale.grid > 0 and self.scale.start is None)

    @cached_property
    def program(self) -> LevelProgram:
        """Compile the rounds to arrays for the scoring kernel."""
        linear = isinstance(self.learners, LineSlopes)
        sizes = np.array([self.models, self.rounds, self.scale.grid, linear, self.scale.start is not None], np.int64)
        places = np.arange(len(self.edges_at), dtype=np.int64)
        scale = self.scale
        numbers = (scale.low, scale.high, scale.rate, scale.offset, scale.unit, scale.start or 0.0, scale.hold)
        common = (sizes, np.array(numbers, np.float64), np.array(self.levels, np.int64), self.edges_at, self.edges,
                  self.edges_at + places)  # fmt: skip
        if isinstance(self.learners, LineSlopes):
            lines = self.learners
            no_trees = (np.zeros((0, 6), np.int32), np.zeros(0), np.zeros(0, np.uint32), np.zeros(0))
            return LevelProgram(*common, self.learner, *no_trees, lines.place, lines.centre, lines.scale, lines.slopes)
        forest = self.learners
        roots = np.append(forest.root, NO_LEARNER).astype(np.int32)
        root = roots[np.where(self.learner == NO_LEARNER, len(forest.root), self.learner)]
        node = (forest.feature, forest.left, forest.right, forest.missing_left, forest.words_at, forest.words_in)
        nodes = np.ascontiguousarray(np.column_stack(node), np.int32)
        no_lines = (np.zeros(0, np.int64), np.zeros(0), np.zeros(0), np.zeros((0, 1)))
        return LevelProgram(*common, root, nodes, forest.threshold, forest.words, forest.value, *no_lines)

    def apply(self, columns: Iterable[AnyArray], prediction: FloatArray, workers: Workers | None = None) -> FloatArray:
        """Return the corrected predictions, shape (n,); ``columns`` are the features in the order of the schema."""
        features, out = list(columns), np.empty(len(prediction))
        step = max(1, CHUNK_ROWS * CHUNK_MODELS // max(CHUNK_MODELS, self.models))

        def score_chunk(start: int) -> None:
            rows = slice(start, start + step)
            P = prediction[rows]
            out[rows] = next(self._stages(stack_columns(features, rows, len(P)), P, last=True, rows=len(out)))

        (workers or Workers()).map(score_chunk, range(0, len(out), step))
        return out

    def stages(self, columns: Iterable[AnyArray], prediction: FloatArray) -> Iterator[FloatArray]:
        """Yield the predictions of all rows after 0, 1, 2, ... rounds."""
        rows = len(prediction)
        return self._stages(stack_columns(list(columns), slice(rows), rows), prediction)

    def _stages(
        self, X: FloatArray, prediction: FloatArray, *, last: bool = False, rows: int | None = None
    ) -> Iterator[FloatArray]:
        sizes, bounds = self.program.sizes, self.program.bounds
        F = np.empty((self.models, len(prediction)))
        steps = 12.0 * self.models * (len(prediction) if rows is None else rows)
        answer(kernel.start_levels, steps, sizes, bounds, np.ascontiguousarray(prediction), F)
        for number in range(self.rounds + 1):
            if number:
                answer(kernel.step_levels, steps * self.rounds, *self.program, number - 1, X, F)
            if not last or number == self.rounds:
                out = np.empty(len(prediction))
                answer(kernel.end_levels, steps, bounds, F, out)
                yield out

    def apply_one(self, row: list[float], prediction: list[float]) -> FloatArray:
        """Return the corrected prediction of one row, given as codes and numbers in the order of the schema."""
        P = np.array(prediction or [0.0], np.float64)
        return next(self._stages(np.array(row, np.float64).reshape(-1, 1), P, last=True))

    def describe(self) -> str:
        """Return the numbers of rounds, levels and learners as text."""
        what = "lines" if isinstance(self.learners, LineSlopes) else "trees"
        most = int(np.diff(self.edges_at).max(initial=0)) + 1
        models = f" in each of {self.models} models" if self.models > 1 else ""
        count = int((self.learner != NO_LEARNER).sum())
        levels = "one level" if most == 1 else f"up to {most} levels"
        return f"{count_rounds(self.rounds)}{models}, {levels} ({count:,} {what})"

    def feature_sets(self) -> list[tuple[int, ...]]:
        """Return the `tested_together` sets of trees; for lines each feature by itself, by descending sum of |slope|."""
        if isinstance(self.learners, LineSlopes):
            edges = [*self.learners.place.tolist(), self.learners.slopes.shape[1]]
            size = [float(np.abs(self.learners.slopes[:, low:high]).sum()) for low, high in itertools.pairwise(edges)]
            return [(feature,) for feature in np.argsort(-np.array(size), kind="stable").tolist()]
        return tested_together([self.learners], len(self.levels))

    def explain_one(self, schema: Schema, row: Sequence[float], prediction: Sequence[float]) -> RowExplanation:
        """Explain the change of one row: follow it down the trees, and sum changes per set of tested features.

        Lines are explained by rounds instead.
        """
        P, sums = np.array(list(prediction) or [0.0], np.float64), EffectSums(schema, row, prediction)
        stages = [float(stage[0]) for stage in self._stages(np.array(row, np.float64).reshape(-1, 1), P)]
        origin = float(prediction[0]) if prediction else stages[0]
        sums.add((), stages[0] - origin)
        if isinstance(self.learners, LineSlopes) or not self.rounds:
            self._add_lines(sums, row, stages[0])
            return explain_rounds(prediction, stages, sums)
        forest, scale, unit = TreeWalker(self.learners), self.scale, self.scale.unit / self.models
        low, high, rate, *_, hold = self.program.bounds
        conditions: dict[tuple[int, ...], ConditionSum] = defaultdict(ConditionSum)
        for index in range(self.models * self.rounds):
            if index % self.rounds == 0:
                f = (stages[0] - scale.offset) / scale.unit
            edges = self.edges[self.edges_at[index] : self.edges_at[index + 1]]
            which = int(self.learner[self.edges_at[index] + index + np.searchsorted(edges, f)])
            if which == NO_LEARNER:
                continue
            root = int(self.learners.root[which])
            path, leaf = forest.follow(root, row)
            condition = conditions[tuple(sorted({feature for feature, _, _ in path}))]
            condition.narrow(path)
            after_round = plain(kernel.advance)(f, leaf, rate, scale.grid, low, high, hold)
            condition.sums[0] += unit * (after_round - f)
            sums.add_tree(forest.divide(root, row), unit * (after_round - f))
            f = after_round
        contributions = [
            Contribution(condition.describe(schema, row, names) or OWN_LEVEL, condition.sums[0])
            for names, condition in conditions.items()
        ]
        if stages[0] != origin:
            contributions.append(Contribution(ROUNDING, stages[0] - origin))
        return explain_change("identity", [origin], stages[-1:], contributions, sums)

    def _add_lines(self, sums: EffectSums, row: Sequence[float], start: float) -> None:
        """Add to ``sums`` the terms of the line of each round, per feature; bounds and rounding belong to the score."""
        lines, scale = self.learners, self.scale
        if not isinstance(lines, LineSlopes):
            return
        low, high, rate, *_, hold = self.program.bounds
        unit = scale.unit / self.models
        for index in range(self.models * self.rounds):
            if index % self.rounds == 0:
                f = (start - scale.offset) / scale.unit
            edges = self.edges[self.edges_at[index] : self.edges_at[index + 1]]
            which = int(self.learner[self.edges_at[index] + index + np.searchsorted(edges, f)])
            if which == NO_LEARNER:
                continue
            slopes = lines.slopes[which]
            terms = [lines.term(which, feature, value, self.levels[feature]) for feature, value in enumerate(row)]
            after_round = plain(kernel.advance)(f, float(slopes[0]) + sum(terms), rate, scale.grid, low, high, hold)
            for feature, term in enumerate(terms):
                sums.add((feature,), unit * rate * term)
            sums.add((), unit * (after_round - f - rate * sum(terms)))
            f = after_round

    def pack(self) -> tuple[dict[str, Any], dict[str, bytes]]:
        """Return what a model file stores of the map: an entry of its JSON manifest, and arrays as bytes by name."""
        entry: dict[str, Any] = {"scale": asdict(self.scale), "models": self.models, "rounds": self.rounds}
        blobs = pack_arrays(LEVEL_DTYPES, self.edges_at, self.edges, self.learner)
        if isinstance(self.learners, LineSlopes):
            lines = self.learners
            blobs |= pack_arrays(LINE_DTYPES, lines.place, lines.centre, lines.scale, lines.slopes)
            return entry | {"learners": "lines"}, blobs
        sizes, trees = pack_forests([self.learners])
        return entry | {"learners": "trees", "forest": sizes[0]}, trees | blobs

    @classmethod
    def unpack(cls, entry: Any, schema: Schema, blobs: Mapping[str, bytes]) -> LevelSets:
        """Restore the map from what `pack` returned; raise FileContentError if it is invalid or does not fit ``schema``."""
        kind, models, rounds = entry["learners"], entry["models"], entry["rounds"]
        require(schema.task != "multiclass" and kind in ("trees", "lines"), "the map does not fit the task")
        names = set(LINE_DTYPES) if kind == "lines" else {f"forests/{name}" for name in FOREST_DTYPES}
        require(set(blobs) == {*LEVEL_DTYPES, *names}, "it has arrays that the manifest does not list")
        require(is_integer(models) and is_integer(rounds) and models >= 1 and rounds >= 0, "it has no rounds")
        require(rounds > 0 or models == 1, "it has models without rounds")
        edges_at, edges, learner = unpack_arrays(LEVEL_DTYPES, blobs)
        _check_edges(edges_at, edges, models * rounds)
        require(len(learner) == len(edges) + models * rounds, "its learners do not match its levels")
        learners: Forest | LineSlopes
        if kind == "lines":
            learners = _unpack_lines(blobs, schema)
            count = len(learners.slopes)
        else:
            learners = unpack_forests([entry["forest"]], blobs, schema.levels, 1)[0]
            require(bool((learners.feature < len(schema.levels)).all()), "a tree tests the prediction")
            count = len(learners)
        require(np.array_equal(learner[learner != NO_LEARNER], np.arange(count)), "its learners do not match its levels")
        scale = _unpack_scale(entry["scale"], schema)
        return cls(scale, schema.levels, models, rounds, edges_at, edges, learner, learners)


def _check_edges(edges_at: IntArray, edges: FloatArray, rounds: int) -> None:
    require(len(edges_at) == rounds + 1 and edges_at[0] == 0, "its rounds are invalid")
    steps = np.diff(edges_at)
    require(bool((steps >= 0).all()) and edges_at[-1] == len(edges), "its edges are invalid")
    rising = np.ones(len(edges), bool)
    rising[1:] = np.diff(edges) > 0
    rising[edges_at[:-1][steps > 0]] = True  # the first edge of a round need not exceed the last of the round before
    require(bool(np.isfinite(edges).all() and rising.all()), "its edges do not ascend")


def _unpack_scale(entry: Any, schema: Schema) -> ScoreScale:
    scale = ScoreScale(**entry)
    require(are_finite(scale.low, scale.high, scale.offset, scale.unit, scale.rate, scale.hold), "its scale is invalid")
    require(scale.low <= scale.high and scale.unit > 0, "its scale is invalid")
    require(0 < scale.rate <= 1 and 0 <= scale.hold <= 1, "its scale is invalid")
    require(
        are_finite(*(scale.offset + float(scale.unit) * end for end in (scale.low, scale.high))), "its scale is invalid"
    )
    unit_interval = (scale.offset, scale.unit, scale.low, scale.high) == (0, 1, 0, 1)
    require(schema.task != "binary" or unit_interval, "its scores are not probabilities")
    require(is_integer(scale.grid) and 0 <= scale.grid <= MAX_GRID, "its grid is invalid")
    require(not scale.grid or (scale.low, scale.high) == (0, 1), "its grid is invalid")
    require(scale.start is None if schema.prediction else are_finite(scale.start), "its initial score is invalid")
    require(scale.start is None or scale.low <= scale.start <= scale.high, "its initial score is invalid")
    return scale


def _unpack_lines(blobs: Mapping[str, bytes], schema: Schema) -> LineSlopes:
    place, centre, scale, flat = unpack_arrays(LINE_DTYPES, blobs)
    sizes = [count + 1 if count >= 0 else 2 for count in schema.levels]
    width = 1 + sum(sizes)
    expected = (1 + np.cumsum([0, *sizes]))[: len(sizes)]
    require(np.array_equal(place, expected), "its lines do not match the features")
    require(len(centre) == len(scale) == len(sizes), "its lines do not match the features")
    require(len(flat) % width == 0, "its lines are truncated")
    finite = np.isfinite(centre).all() and np.isfinite(scale).all() and np.isfinite(flat).all()
    require(bool(finite and (scale > 0).all()), "its lines have values that are not finite")
    return LineSlopes(place, centre, scale, flat.reshape(-1, width))


@dataclass(frozen=True, eq=False)
class ExternalLevelSets(Map):
    """Rounds of level sets, each level with a regressor of another library; several models are averaged."""

    kind = "external"
    unsavable_hint = 'learner="tree" or learner="linear"'

    scale: ScoreScale
    levels: tuple[int, ...]
    models: tuple[tuple[LevelRound, ...], ...]
    name: str  # of the class of the regressor

    @property
    def steps(self) -> int:
        """Return the number of rounds."""
        return len(self.models[0])

    def apply(self, columns: Iterable[AnyArray], prediction: FloatArray, workers: Workers | None = None) -> FloatArray:
        """Return the corrected predictions, shape (n,); ``columns`` are the features in the order of the schema."""
        *_, last = self.stages(columns, prediction, workers)
        return last

    def stages(
        self, columns: Iterable[AnyArray], prediction: FloatArray, workers: Workers | None = None
    ) -> Iterator[FloatArray]:
        """Yield the predictions of all rows after 0, 1, 2, ... rounds."""
        scale, workers = self.scale, workers or Workers()
        X = design_matrix(list(columns), self.levels, len(prediction))
        scores = [scale.initial(prediction)] * len(self.models)
        yield scale.restore(np.sum(scores, axis=0) / len(scores))
        for number in range(self.steps):
            for index, model in enumerate(self.models):
                step, F = model[number], scores[index]
                level = np.searchsorted(step.edges, F).astype(np.int32)
                scores[index] = scale.advance(F, predict_levels(step.fitted, X, level, workers) - F, step.kept, level)
            yield scale.restore(np.sum(scores, axis=0) / len(scores))

    def apply_one(self, row: list[float], prediction: list[float]) -> FloatArray:
        """Return the corrected prediction of one row, given as codes and numbers in the order of the schema."""
        columns = [np.array([value]) for value in row]
        return self.apply(columns, np.array(prediction or [0.0], np.float64), Workers(1))

    def describe(self) -> str:
        """Return the number of rounds and the type of the regressor."""
        return f"{count_rounds(self.steps)} of {self.name} on level sets"

    def feature_sets(self) -> list[tuple[int, ...]]:
        """Return every feature by itself, since the features that a regressor uses are not known."""
        return [(feature,) for feature in range(len(self.levels))]

    def explain_one(self, schema: Schema, row: Sequence[float], prediction: Sequence[float]) -> RowExplanation:
        """Explain the change of one prediction by what each round added to it; the effect is that of all features."""
        columns, P = [np.array([value]) for value in row], np.array(list(prediction) or [0.0], np.float64)
        scores, sums = (
            [float(stage[0]) for stage in self.stages(columns, P, Workers(1))],
            EffectSums(schema, row, prediction),
        )
        sums.add((), scores[0] - float(prediction[0]) if prediction else 0.0)
        sums.add(range(len(row)), scores[-1] - scores[0])
        return explain_rounds(prediction, scores, sums)
