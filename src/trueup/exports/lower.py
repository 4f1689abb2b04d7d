"""Corrections as expressions: one function per kind of map, which writes down what the map's own scorer computes."""

from __future__ import annotations

import itertools
from collections import defaultdict
from functools import singledispatchmethod
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.calibrators.curves.linear import LinearMap
from trueup.calibrators.curves.linear_groups import LinearGroups
from trueup.calibrators.curves.map import CurveMap
from trueup.calibrators.lore.map import LocalMap
from trueup.calibrators.lsboost.levelsets import ExternalLevelSets, LevelSets, LineSlopes
from trueup.calibrators.matrix.map import MatrixMap
from trueup.calibrators.mcgrad.cascade import Cascade
from trueup.calibrators.model import UnchangedMap
from trueup.calibrators.patches.map import PatchMap
from trueup.calibrators.prior.map import OddsMap
from trueup.data.values import MAX_VALUE, SUM_TOLERANCE
from trueup.errors import ArgumentError
from trueup.exports.program import (
    CodeTrees,
    Expression,
    Program,
    apply,
    constant,
    count,
    count_in,
    gather,
    highest,
    index_of,
    join,
    take,
    total,
    walk,
    where,
)
from trueup.kernels import trees as kernel
from trueup.kernels.curves import to_logits
from trueup.kernels.levels import NO_LEARNER
from trueup.kernels.trees import IDENTITY, LOGIT, MIN_PROBABILITY, Forest, ForestBins, find_bins

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trueup._types import AnyArray, FloatArray, Int32Array, IntArray
    from trueup.calibrators.floors import Floors
    from trueup.calibrators.groups import GroupIndex
    from trueup.calibrators.model import Map, Model
    from trueup.data.table import Schema
    from trueup.kernels.trees import CascadeProgram

    LearnerValues = Callable[[Int32Array, Expression], Expression]

ROUNDS_NOTE = (
    "Rounds after the first compare logits with cuts. These logits depend on the logarithm of the target, so that a score "
    "within rounding (1e-15) of such a cut may fall on its other side."
)
LOGITS_NOTE = (
    "Scores are logits of several classes. Probabilities depend on the exponential of the target, so that one within "
    "rounding (1e-16) of a cut may fall on its other side."
)
BITS_OF_A_FLOAT = 64
BELOW_ONE = float(np.nextafter(1.0, 0.0))
MAX_FLOAT = float(np.finfo(np.float64).max)


def lower(model: Model) -> Program:
    """Return the correction of a model as a program; raise ArgumentError for maps that cannot be exported."""
    return _Lowering(model.schema).program(model.map)


class _Lowering:
    """The inputs of one model as expressions, and what is collected while its map is lowered."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.input = Expression("scores", "float", max(len(schema.prediction), 1))
        self.valid = self._valid()
        neutral = 0.0 if schema.task == "regression" or schema.logits else 1.0 / self.input.width
        self.raw = where(self.valid, self.input, neutral)  # so that no invalid score is an index, whatever it is
        kinds = [feature.kind == "categorical" for feature in schema.features]
        numbers = Expression("numbers", "float", kinds.count(False))
        codes = Expression("codes", "int", kinds.count(True))
        place = [kinds[:at].count(own) for at, own in enumerate(kinds)]
        self.features = [(codes if own else numbers)[at] for own, at in zip(kinds, place, strict=True)]
        self.scores, self.notes = self._probabilities(), list[str]()
        self.score_cuts: list[list[FloatArray]] = [[] for _ in range(self.raw.width)]
        self.number_cuts: defaultdict[str, list[FloatArray]] = defaultdict(list)
        self.exact: list[Expression] = []
        self.groups: dict[int, Expression] = {}

    def program(self, map_: Map) -> Program:
        """Lower a map and collect its program."""
        result = self.lower(map_)
        numbers = {
            feature.name: np.unique(np.concatenate([np.zeros(0), *self.number_cuts[feature.name]]))
            for feature in self.schema.features
            if feature.kind != "categorical"
        }
        scores = tuple(np.unique(np.concatenate([np.zeros(0), *own])) for own in self.score_cuts)
        notes = tuple(dict.fromkeys(self.notes))
        return Program(self.schema, result, self.valid, tuple(self.exact), scores, numbers, notes)

    def _valid(self) -> Expression:
        """Return where scores are valid, by the rules of `trueup.data.values.check_scores`."""
        if not self.schema.prediction:
            return constant(np.array([True]))
        low, high = (-MAX_VALUE, MAX_VALUE) if self.schema.task == "regression" or self.schema.logits else (0.0, 1.0)
        columns = [(low <= column) & (column <= high) for column in self.input]
        valid = columns[0]
        for column in columns[1:]:
            valid = valid & column
        if self.schema.task == "multiclass" and not self.schema.logits:
            valid = valid & (apply("absolute", total(self.input) - 1.0) <= SUM_TOLERANCE)
        return valid

    def _probabilities(self) -> Expression:
        """Return the scores as `trueup.data.values.to_probabilities` does."""
        if not self.schema.logits:
            return self.raw
        if self.schema.task == "binary":
            least = apply("maximum", -self.raw, 0.0)
            return apply("exp", -(least + apply("log1p", apply("exp", -apply("absolute", self.raw)))))
        odds = apply("exp", self.raw - highest(self.raw))
        return odds / total(odds)

    def count_scores(
        self, cuts: Sequence[FloatArray], link: Callable[[FloatArray], FloatArray] | None = None
    ) -> Expression:
        """Return how many of its ``cuts`` are below each score, or below a monotone function of it (``link``).

        Logarithms differ from target to target in their last bits: cuts of a function are turned into cuts of the score
        itself, between the same two floats.
        """
        schema, functions = self.schema, [] if link is None else [link]
        if schema.logits:
            if schema.task == "multiclass":
                self.notes.append(LOGITS_NOTE)
                moved = [_invert(link, own, 0.0, 1.0) if link else own for own in cuts]
                return count(self.scores, moved)
            functions.insert(0, lambda raw: np.exp(-np.logaddexp(0.0, -raw)))
        if functions:
            low, high = (-MAX_VALUE, MAX_VALUE) if schema.logits else (0.0, 1.0)

            def score(raw: FloatArray) -> FloatArray:
                for function in functions:
                    raw = function(raw)
                return raw

            cuts = [_invert(score, own, low, high) for own in cuts]
        for own, collected in zip(cuts, self.score_cuts, strict=True):
            collected.append(own)
        return count(self.raw, cuts)

    def count_numbers(self, features: Sequence[int], cuts: Sequence[FloatArray], closed: Any = "right") -> Expression:
        """Return the counts of cuts of numeric features, by position in the schema."""
        for feature, own in zip(features, cuts, strict=True):
            self.number_cuts[self.schema.features[feature].name].append(own)
        return count(join(self.features[feature] for feature in features), cuts, closed)

    def bins(self, cuts: Sequence[FloatArray], classes: Sequence[AnyArray]) -> list[Expression]:
        """Return the bin of each feature as `trueup.kernels.trees.ForestBins` defines it."""
        levels = self.schema.levels
        numeric = [feature for feature, own in enumerate(levels) if own < 0]
        counted = iter(self.count_numbers(numeric, [cuts[feature] for feature in numeric])) if numeric else iter(())
        return [
            next(counted) if own < 0 else gather([np.asarray(classes[feature], np.int64)], self.features[feature])
            for feature, own in enumerate(levels)
        ]

    def group(self, index: GroupIndex, features: Sequence[int]) -> Expression:
        """Return the group number of a row; ``features`` are those of the binners."""
        number = constant(np.array([0]))
        for binner, feature in zip(index.binners, features, strict=True):
            missing_bin = len(binner.labels) - 1
            if binner.edges is None:
                codes = np.array([missing_bin, *range(missing_bin)], np.int64)
                own = gather([codes], self.features[feature])
            else:
                own = self.count_numbers([feature], [np.asarray(binner.edges)], "left")
            number = number * len(binner.labels) + own
        return index_of(number, index.cells) if len(index.cells) else constant(np.array([0]))

    @singledispatchmethod
    def lower(self, map_: Map) -> Expression:
        """Return the corrected scores of a map."""
        raise ArgumentError(f"a correction of kind {map_.kind!r} cannot be exported", hint="save it with tu.save")

    @lower.register
    def _(self, map_: LocalMap) -> Expression:  # noqa: ARG002
        raise ArgumentError(
            "LoRe cannot be exported: its predictions are means over training rows, which an export would have to hold",
            hint="deploy its model file with tu.load, or fit tu.MCGrad",
        )

    @lower.register
    def _(self, map_: ExternalLevelSets) -> Expression:  # noqa: ARG002
        raise ArgumentError(
            "LSBoost with a learner of another library cannot be exported",
            hint='use learner="tree" or "linear"',
        )

    @lower.register
    def _(self, map_: UnchangedMap) -> Expression:  # noqa: ARG002
        return self.scores if self.schema.prediction else self.raw

    @lower.register
    def _(self, map_: OddsMap) -> Expression:
        positive = map_.factor * self.scores
        return positive / (1.0 - self.scores + positive)

    @lower.register
    def _(self, map_: Cascade) -> Expression:
        if not map_.rounds:
            return self.scores
        program = map_.program
        features, outputs, cascades, stages, link = program.sizes.tolist()
        cuts = _slices(program.cuts, program.cuts_at)
        classes = _slices(program.classes, program.classes_at)
        shared, entered = self.bins(cuts[:features], classes), list(_enter(self.scores, link, map_.floors))
        categorical = np.array([*(count >= 0 for count in map_.levels), *[False] * outputs])
        counts = [
            int(own.max()) + 1 if levels >= 0 else len(cut) + 2
            for levels, own, cut in zip(map_.levels, classes, cuts, strict=False)
        ]
        F, moved = [entered] * cascades, [False] * cascades
        for stage in range(stages):
            at, first = int(program.cascade[stage]), features + stage * outputs
            own = cuts[first : first + outputs]
            if moved[at]:
                self.notes += [ROUNDS_NOTE] if any(map(len, own)) else []
                scored = count(join(F[at]), own)
            else:
                scored = self.count_scores(own, None if link == IDENTITY else _entering(link, map_.floors))
            bins, sizes = join([*shared, *scored]), [*counts, *(len(cut) + 2 for cut in own)]
            terms = _look_up(program, range(*program.tables_at[stage : stage + 2].tolist()), bins, sizes)
            trees = slice(*program.trees_at[stage : stage + 2].tolist())
            if trees.stop > trees.start:
                thresholds = ForestBins(
                    categorical, (*cuts[:features], *own), (*classes, *[np.zeros(0, np.int32)] * outputs)
                )
                walked = walk(_coded_trees(_walked(program), program.tree[trees, 0], thresholds), bins)
                terms += zip(program.tree[trees, 1].tolist(), walked, strict=True)
            F[at] = list(F[at])
            for c in range(outputs):
                values = [value for output, value in terms if output == c]
                added = total(join(values)) if values else constant(0.0)
                self.exact += [] if moved[at] else [added]
                F[at][c] = float(program.theta[stage]) * (F[at][c] + added)
            moved[at] = True
        scores = _leave(join(_sum(own) / float(cascades) for own in zip(*F, strict=True)), link)
        return scores if map_.clip is None else _clip(scores, *map_.clip)

    @lower.register
    def _(self, map_: PatchMap) -> Expression:
        on_logits, before, bounds = map_.link == "logit", self.scores, map_.program.bounds.tolist()
        value, touched = (_logit(_clip(before, MIN_PROBABILITY, 1.0 - MIN_PROBABILITY)) if on_logits else before), None
        for low, high, patch in zip(map_.program.low.tolist(), map_.program.high.tolist(), map_.patches, strict=True):
            applies = self._in_range(value, touched, low, high, on_logits=on_logits)
            for feature, group in patch.conditions:
                applies = applies & self._patch_group(map_, feature).equals(group)
            shifted = value + patch.shift
            shifted = shifted if bounds == [-np.inf, np.inf] else _clip(shifted, *bounds)
            value = where(applies, shifted, value)
            touched = applies if touched is None else touched | applies
        if touched is None:
            return before
        if not on_logits:
            self.exact.append(value)
        return where(touched, 1.0 / (1.0 + apply("exp", -value)), before) if on_logits else value

    def _in_range(
        self, value: Expression, touched: Expression | None, low: float, high: float, *, on_logits: bool
    ) -> Expression:
        """Return where ``low <= value < high``; scores that no patch has shifted are compared before the logit is taken."""
        ends = [(apply("less_equal", low, value), low), (value < high, high)]
        holds = [condition for condition, end in ends if np.isfinite(end)]
        moved = holds[0] & holds[-1] if holds else constant(np.array([True]))
        if not on_logits or not holds:
            if touched is None and not on_logits:
                self._note_cuts([end for _, end in ends if np.isfinite(end)])
            return moved
        below = [float(np.nextafter(end, -np.inf)) for end in (low, high)]  # at least an end: above the float below it
        above = [
            self.count_scores([np.array([edge])], to_logits).equals(int(place == 0))
            for place, edge in enumerate(below)
            if np.isfinite(edge)
        ]
        given = above[0] & above[-1]
        return given if touched is None else where(touched, moved, given)

    def _note_cuts(self, cuts: Sequence[float]) -> None:
        """Keep cuts of the score, to check an export at and beside them."""
        if not self.schema.logits and self.raw.width == 1:
            self.score_cuts[0].append(np.array(cuts, np.float64))

    def _patch_group(self, map_: PatchMap, feature: int) -> Expression:
        """Return the group of a feature's value as `PatchMap` numbers them."""
        if feature not in self.groups:
            levels = map_.levels[feature]
            self.groups[feature] = (
                gather([np.array([levels, *range(levels)], np.int64)], self.features[feature])
                if levels >= 0
                else self.count_numbers([feature], [map_.edges[feature]], "left")
            )
        return self.groups[feature]

    @lower.register
    def _(self, map_: LevelSets) -> Expression:
        scale, learners_of = map_.scale, map_.learners
        values = self._line_values(learners_of) if isinstance(learners_of, LineSlopes) else self._tree_values(learners_of)
        low, high, rate, offset, unit, start, hold = map_.program.bounds.tolist()
        if scale.start is None:
            begin = _clip((self.scores - offset) / unit, low, high)
        else:
            begin = constant(min(max(start, low), high))
        if scale.grid > 0:
            begin = _advance(begin, constant(0.0), (low, high, 1.0, 0.0), scale.grid)
        F = []
        for model in range(map_.models):
            score = begin
            for step in range(map_.rounds):
                at = model * map_.rounds + step
                edges = map_.edges[map_.edges_at[at] : map_.edges_at[at + 1]]
                if step == 0:
                    self._note_cuts(scale.restore(edges))
                first = int(map_.edges_at[at]) + at
                learners = map_.learner[first : first + len(edges) + 1]
                if (learners == NO_LEARNER).all():
                    continue
                level = count(score, [edges])
                moved = _advance(score, values(learners, level), (low, high, rate, hold), scale.grid)
                if isinstance(learners_of, LineSlopes):  # slopes may overflow
                    moved = where(apply("isnan", moved), score, moved)
                if (learners == NO_LEARNER).any():
                    moved = where(gather([(learners != NO_LEARNER).astype(np.int64)], level).equals(1), moved, score)
                score = moved
            F.append(score)
        result: Expression = offset + unit * (total(join(F)) / float(len(F)))
        self.exact.append(result)
        return result

    def _tree_values(self, forest: Forest) -> LearnerValues:
        """Return a function from the trees of all levels, and the level of a row, to the value of its tree."""
        thresholds = find_bins(forest, self.schema.levels)
        bins = self.bins(thresholds.cuts, thresholds.classes)
        return lambda learners, level: walk(_trees_by_level(forest, learners, thresholds), join([*bins, level]))

    def _line_values(self, lines: LineSlopes) -> LearnerValues:
        """Return a function from the lines of all levels, and the level of a row, to the value of its line."""

        def value(learners: Int32Array, level: Expression) -> Expression:
            slopes = lines.slopes[np.where(learners == NO_LEARNER, 0, learners)]
            result = gather([slopes[:, 0]], level)
            for feature, levels in enumerate(self.schema.levels):
                x, place = self.features[feature], int(lines.place[feature])
                if levels >= 0:
                    table = slopes[:, place : place + levels + 1].ravel()
                    result = result + gather([table], level * (levels + 1) + x)
                    continue
                distance = (x - float(lines.centre[feature])) / float(lines.scale[feature])
                finite = apply("absolute", distance) <= MAX_FLOAT
                linear = gather([slopes[:, place]], level) * where(finite, distance, 0.0)
                result = result + where(finite, linear, gather([slopes[:, place + 1]], level))
            return result

        return value

    @lower.register
    def _(self, map_: CurveMap) -> Expression:
        index, whole = map_.index, self._curves(map_, None)
        if index is None:
            return whole
        group = self.group(index, range(len(index.binners)))
        own, share = self._curves(map_, group), gather([map_.share], group)
        mixed = where(share < 1.0, whole + share * (own - whole), own)
        lower, upper = apply("minimum", whole, own), apply("maximum", whole, own)
        return apply("minimum", apply("maximum", mixed, lower), upper)

    def _curves(self, map_: CurveMap, group: Expression | None) -> Expression:
        """Return the curves of all classes, pooled (``group`` None) or of the group of the row, normalised."""
        groups, low, high = len(map_.share), *map_.floors

        def parameter(column: int, c: int) -> Expression:
            values = map_.coefficients[c * groups : (c + 1) * groups, column]
            return constant(values[:1]) if group is None else gather([values], group)

        if map_.form == "softmax":
            factor = parameter(0, 0)
            top = apply("log", apply("maximum", highest(self.scores), low))
            odds = apply("exp", factor * (apply("log", apply("maximum", self.scores, low)) - top))
            return odds / total(odds)
        columns = []
        for c, p in enumerate(self.scores):
            if map_.form in ("knots", "steps"):
                columns.append(self._piecewise(map_, c, p, group))
                continue
            a, b, intercept = (parameter(column, c) for column in range(3))
            if map_.form in ("line", "bounded"):
                line = a * p + intercept
                columns.append(line if map_.form == "line" else _clip(line, 0.0, 1.0))
                continue
            p = _clip(p, low, 1.0 - high)
            columns.append(_expit(a * apply("log", p) - b * apply("log1p", -p) + intercept))
        if len(columns) == 1:
            return columns[0]
        together, given = total(join(columns)), total(self.scores)
        some = apply("less", 0.0, together)
        divisor = where(some, together, given)
        return join(where(some, column, p) / divisor for column, p in zip(columns, self.scores, strict=True))

    def _piecewise(self, map_: CurveMap, c: int, p: Expression, group: Expression | None) -> Expression:
        """Return the knots or steps of class c, pooled or of the group of the row, at the score p."""
        groups = len(map_.share)
        curves = [map_.piece(c * groups + own) for own in range(1 if group is None else groups)]
        sizes = np.array([len(x) for x, _ in curves])
        if group is None:
            cuts = [np.zeros(0)] * self.raw.width
            cuts[c] = curves[0][0]
            place, first, last = self.count_scores(cuts)[c], constant(np.array([0])), constant(sizes[:1] - 1)
        else:
            place = count_in(p, group, [x for x, _ in curves])
            first, last = gather([np.cumsum(sizes) - sizes], group), gather([sizes - 1], group)
        x, values = (np.concatenate([curve[side] for curve in curves]) for side in (0, 1))
        right = apply("minimum", place, last)
        value = gather([values], first + right)
        if map_.form == "steps":
            return value
        left = first + apply("maximum", right - 1, 0)
        x_left, x_right = gather([x], left), gather([x], first + right)
        at_knot = place.equals(0) | (last < place) | x_right.equals(p)
        before = gather([values], left)
        share = (p - x_left) / where(at_knot, 1.0, x_right - x_left)
        return where(at_knot, value, apply("minimum", before + share * (value - before), value))

    @lower.register
    def _(self, map_: MatrixMap) -> Expression:
        z, mixture = apply("log", apply("maximum", self.scores, map_.floors[0])), map_.mixture
        if map_.temperature_factor > 0:
            odds = apply("exp", map_.temperature_factor * (z - highest(z)))
            z = apply("log", (1.0 - mixture) * odds / total(odds) + mixture / float(z.width))
        else:
            z = z - total(z) / float(z.width)
        inner = [total(z * column) for column in map_.right.T]
        values = z * map_.scale + map_.intercept
        for own, column in zip(inner, map_.left.T, strict=True):
            values = values + own * column
        return _softmax(values)

    @lower.register
    def _(self, map_: LinearMap) -> Expression:
        return self._linear([map_], constant(np.array([0])), range(len(map_.levels)))

    @lower.register
    def _(self, map_: LinearGroups) -> Expression:
        group, pooled = self.group(map_.index, map_.grouping), self._linear(map_.maps[:1], None, map_.features)
        own, share = self._linear(map_.maps, group, map_.features), gather([map_.share], group)
        return share * own + (1.0 - share) * pooled

    def _linear(self, maps: Sequence[LinearMap], group: Expression | None, features: Sequence[int]) -> Expression:
        """Return the linear map number ``group`` (the only one if None); ``features`` are positions in the schema."""
        number = constant(np.array([0])) if group is None else group

        def parameter(values: Sequence[float]) -> Expression:
            return gather([np.array(values, np.float64)], number) if len(maps) > 1 else constant(values[0])

        low, high = (parameter([1.0 - own.floors[1] if side else own.floors[0] for own in maps]) for side in (0, 1))
        p = apply("minimum", apply("maximum", self.scores, low), high)
        value = parameter([own.slope for own in maps]) * _logit(p) + parameter([own.intercept for own in maps])
        for at, feature in enumerate(features):
            x, levels, start = self.features[feature], maps[0].levels[at], int(maps[0].starts[at])
            if levels >= 0:
                codes = [start + levels, *range(start, start + levels)]
                table = np.concatenate([own.effects[codes] for own in maps])
                value = value + gather([table], number * (levels + 1) + x)
                continue
            effect, missing = (parameter([float(own.effects[start + side]) for own in maps]) for side in (0, 1))
            centre, lowest, highest_x = (parameter([float(own.ranges[at, side]) for own in maps]) for side in range(3))
            absent = apply("isnan", x)
            distance = apply("minimum", apply("maximum", where(absent, centre, x), lowest), highest_x) - centre
            value = value + where(absent, missing, effect * distance)
        return _expit(value)


def _slices(values: AnyArray, starts: IntArray) -> list[AnyArray]:
    return [values[start:stop] for start, stop in itertools.pairwise(starts.tolist())]


def _sum(values: Sequence[Expression]) -> Expression:
    first, *others = values
    for other in others:
        first = first + other
    return first


def _clip(x: Expression, low: float, high: float) -> Expression:
    return apply("minimum", apply("maximum", x, low), high)


def _logit(p: Expression) -> Expression:
    return apply("log", p) - apply("log1p", -p)


def _expit(f: Expression) -> Expression:
    e = apply("exp", -apply("absolute", f))
    return where(apply("less_equal", 0.0, f), 1.0, e) / (1.0 + e)


def _softmax(values: Expression) -> Expression:
    odds = apply("exp", values - highest(values))
    return odds / total(odds)


def _enter(P: Expression, link: int, floors: Floors) -> Expression:
    """Return the link function of predictions."""
    if link == IDENTITY:
        return P
    if link != LOGIT:
        return apply("log", apply("maximum", P, floors[0]))
    p = _clip(P, floors[0], 1.0 - floors[1])
    if 1.0 - floors[1] < 1.0:
        return _logit(p)
    below = apply("minimum", p, BELOW_ONE)  # 1 itself has no logarithm of 1 - p: that of its floor is used
    return apply("log", p) - where(p < 1.0, apply("log1p", -below), float(np.log(floors[1])))


def _leave(F: Expression, link: int) -> Expression:
    """Return the inverse link function."""
    if link == IDENTITY:
        return F
    return _expit(F) if link == LOGIT else _softmax(F)


def _entering(link: int, floors: Floors) -> Callable[[FloatArray], FloatArray]:
    """Return the link function as the scorer of cascades computes it."""

    def enter(p: FloatArray) -> FloatArray:
        F: FloatArray = np.empty((1, len(p)))
        kernel._enter(np.ascontiguousarray(p[:, None]), 0, len(p), link, np.array(floors), F)
        return np.asarray(F[0])

    return enter


def _invert(function: Callable[[FloatArray], FloatArray], cuts: FloatArray, low: float, high: float) -> FloatArray:
    """Return for each cut the largest float from low to high whose value is at most the cut, for a monotone function.

    If there is none, the float below ``low`` is returned.
    """
    below = _ordered(np.full(len(cuts), np.nextafter(low, -np.inf)))  # its value is at most the cut, or it is outside
    above = _ordered(np.full(len(cuts), np.nextafter(high, np.inf)))
    for _ in range(BITS_OF_A_FLOAT):
        middle = (below & above) + ((below ^ above) >> 1)  # the mean, without overflow
        inside = (middle > below) & (middle < above)
        at_most = function(np.clip(_unordered(middle), low, high)) <= cuts
        below, above = np.where(inside & at_most, middle, below), np.where(inside & ~at_most, middle, above)
    return _unordered(below)


def _ordered(values: FloatArray) -> IntArray:
    """Return integers in the order of the floats, consecutive for neighbouring floats; both zeros are 0."""
    bits = (values + 0.0).view(np.int64)
    return np.where(bits >= 0, bits, np.iinfo(np.int64).min - bits)


def _unordered(places: IntArray) -> FloatArray:
    """Return the floats of integers that `_ordered` returned."""
    return np.asarray(np.where(places >= 0, places, np.iinfo(np.int64).min - places).view(np.float64))


def _look_up(
    program: CascadeProgram, tables: range, bins: Expression, counts: Sequence[int]
) -> list[tuple[int, Expression]]:
    """Return the output and the value of each table at the bins of a row, of which there are ``counts``."""
    rows, columns, values, read = [], [], [], []
    for a, b, output, start, across, down in program.table[tables.start : tables.stop].tolist():
        row, column = program.places[across : across + counts[a]], program.places[down : down + counts[b]]
        rows.append(row)
        columns.append(column)
        values.append(program.values[start : start + int(row.max()) + int(column.max()) + 1])
        read.append((a, b, output))
    if not read:
        return []
    cell = gather(rows, take(bins, [a for a, _, _ in read])) + gather(columns, take(bins, [b for _, b, _ in read]))
    return list(zip((output for _, _, output in read), gather(values, cell), strict=True))


def _walked(program: CascadeProgram) -> Forest:
    """Return the trees that a program does not look up in tables."""
    empty, node = np.zeros(0, np.int32), program.node
    columns = (np.ascontiguousarray(node[:, at]) for at in range(6))
    feature, left, right, missing_left, words_at, words_in = columns
    return Forest(
        program.tree[:, 0], program.tree[:, 1] if len(program.tree) else empty, feature, program.threshold, left, right,
        missing_left.astype(np.uint8), words_at, words_in, program.words, program.leaf,
    )  # fmt: skip


def _coded_trees(forest: Forest, roots: Int32Array, bins: ForestBins) -> CodeTrees:
    """Return trees of a forest, by their roots, as trees over bins."""
    nodes, leaves = _reachable(forest, roots)
    place = {node: index for index, node in enumerate(nodes)} | {~leaf: ~index for index, leaf in enumerate(leaves)}
    feature = forest.feature[nodes]
    cut, missing = np.full(len(nodes), -1, np.int64), np.full(len(nodes), -1, np.int64)
    members: list[frozenset[int] | None] = []
    for index, (node, tested) in enumerate(zip(nodes, feature.tolist(), strict=True)):
        if forest.words_at[node] < 0:
            cuts = bins.cuts[tested]
            cut[index] = np.searchsorted(cuts, forest.threshold[node])
            missing[index] = len(cuts) + 1
            members.append(None)
            continue
        words = forest.words[forest.words_at[node] : forest.words_at[node] + forest.words_in[node]]
        inside = np.flatnonzero(np.unpackbits(words.astype("<u4").view(np.uint8), bitorder="little"))
        classes = bins.classes[tested]
        members.append(frozenset(classes[inside[inside < len(classes)]].tolist()))
    left, right = (
        np.array([place[child] for child in side[nodes].tolist()], np.int64) for side in (forest.left, forest.right)
    )
    root = np.array([place[own] for own in roots.tolist()], np.int64)
    missing_left = forest.missing_left[nodes].astype(np.int64)
    return CodeTrees(
        root, feature.astype(np.int64), cut, missing, missing_left, tuple(members), left, right, forest.value[leaves]
    )


def _reachable(forest: Forest, roots: Int32Array) -> tuple[list[int], list[int]]:
    """Return the nodes and the leaves of the trees with these roots, each once, in the order in which they are reached."""
    nodes: dict[int, None] = {}
    leaves: dict[int, None] = {}
    stack = roots.tolist()[::-1]
    while stack:
        node = stack.pop()
        if node < 0:
            leaves.setdefault(~node)
        elif node not in nodes:
            nodes[node] = None
            stack += [int(forest.right[node]), int(forest.left[node])]
    return list(nodes), list(leaves)


def _trees_by_level(forest: Forest, learners: Int32Array, bins: ForestBins) -> CodeTrees:
    """Return one tree that tests the level of the score, the code after those of ``bins``, and goes on to its tree."""
    known = learners[learners != NO_LEARNER]
    trees = _coded_trees(forest, forest.root[known], bins)
    roots, value = np.full(len(learners), ~len(trees.value), np.int64), np.append(trees.value, 0.0)  # no learner: adds 0
    roots[learners != NO_LEARNER] = trees.root
    cut, left, right = trees.cut.tolist(), trees.left.tolist(), trees.right.tolist()

    def divide(low: int, high: int) -> int:
        """Return the root of a tree that finds the level among low to high - 1."""
        if high - low == 1:
            return int(roots[low])
        middle, node = (low + high) // 2, len(cut)
        cut.append(middle - 1)
        left.append(0)
        right.append(0)
        left[node], right[node] = divide(low, middle), divide(middle, high)
        return node

    root = divide(0, len(learners))
    more = len(cut) - len(trees.cut)
    column = np.append(trees.column, np.full(more, len(bins.cuts)))
    missing, missing_left = (
        np.append(trees.missing, np.full(more, -1)),
        np.append(trees.missing_left, np.zeros(more, np.int64)),
    )
    members = (*trees.members, *[None] * more)
    arrays = (np.array(own, np.int64) for own in (cut, left, right))
    cuts, lefts, rights = arrays
    return CodeTrees(np.array([root], np.int64), column, cuts, missing, missing_left, members, lefts, rights, value)


def _advance(score: Expression, value: Expression, scale: tuple[float, float, float, float], grid: int) -> Expression:
    """Return what `trueup.kernels.levels.advance` does; ``scale`` has the bounds, the rate and the share held."""
    low, high, rate, hold = scale
    moved = score + rate * value
    moved = apply("maximum", moved, low + hold * (score - low) if np.isfinite(low) else -MAX_FLOAT)
    moved = apply("minimum", moved, high - hold * (high - score) if np.isfinite(high) else MAX_FLOAT)
    moved = _clip(moved, max(low, -MAX_FLOAT), min(high, MAX_FLOAT))
    return (apply("ceil", moved * float(grid) - 0.5) + 0.0) / float(grid) if grid > 0 else moved
