"""The map of the classical calibrators and of Grouped: a curve of the score per class and group; how it is stored."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.calibrators.floors import EPS, OLD_FLOORS, Floors
from trueup.calibrators.groups import GroupIndex
from trueup.calibrators.model import (
    Map,
    are_finite,
    is_integer,
    pack_arrays,
    pack_floors,
    require,
    unpack_arrays,
    unpack_floors,
)
from trueup.calibrators.row_explanation import Contribution, EffectSums, RowExplanation, explain_change
from trueup.calibrators.stopping import apply_link, task_loss
from trueup.kernels._jit import answer
from trueup.kernels.curves import BOUNDED, KNOTS, LINE, LOGIT, SOFTMAX, STEPS, read_rows
from trueup.kernels.threads import Workers

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from trueup._types import AnyArray, FloatArray, Int32Array, IntArray
    from trueup.data.table import Schema


FORMS = {"line": LINE, "bounded": BOUNDED, "logit": LOGIT, "softmax": SOFTMAX, "knots": KNOTS, "steps": STEPS}
SMOOTH_FORMS = ("line", "bounded", "logit", "softmax")
SMOOTH_DTYPES = {"curves/coefficients": "<f8"}
PIECEWISE_DTYPES = {"curves/at": "<i8", "curves/x": "<f8", "curves/value": "<f8"}
GROUP_DTYPES = {"groups/edges": "<f8", "groups/cells": "<i8", "groups/share": "<f8"}
GROUPED = "grouped"  # the kind of a map with groups
MAX_COEFFICIENT = 1e200  # a score, which is at most 1e100, times such a coefficient does not overflow
MAX_SCORE = 1e150
CHUNK = 16_384  # rows per kernel call
NO_GROUPS = np.zeros(0, np.int32)
NORMALISATION = "normalisation: probabilities add up to 1"


@dataclass(frozen=True, eq=False)
class CurveMap(Map):
    """Curves of one form: for each class a pooled curve (group 0) and one per group, ordered by class, then by group.

    The forms are "line", ``a p + c``; "bounded", the same clipped to [0, 1]; "logit", ``1 / (1 + exp(-(a ln p - b ln(1 - p)
    + c)))``; "softmax", ``p^a`` of all classes, normalised (one curve per group); "knots", linear interpolation; "steps", a
    constant up to each edge. The corrected score of a row is ``share`` times the curve of its group plus ``1 - share``
    times the pooled curve.
    """

    kind = "scores"

    form: str
    outputs: int
    share: FloatArray  # the weight of each group's own curve, from 0 to 1; the first, of the pooled curve, is 0
    coefficients: FloatArray  # (curves, 3): a, b and c; empty for knots and steps
    starts: IntArray  # where the knots or steps of each curve begin
    x: FloatArray  # knots, or upper edges of steps: closed on the right, the last step is unbounded
    values: FloatArray  # at the knots, or of the steps
    floors: Floors = OLD_FLOORS  # the distances that probabilities keep from 0 and 1 before logarithms
    index: GroupIndex | None = None  # the groups that have a curve of their own; None if there are no groups
    shrinkage: float = math.inf  # the number of rows that the pooled curve counts for in each group

    @classmethod
    def of_coefficients(
        cls, form: str, coefficients: FloatArray, outputs: int = 1, floors: Floors = OLD_FLOORS
    ) -> CurveMap:
        """Return curves of a smooth form with these coefficients, (curves, 3); a softmax has one curve for all classes."""
        share = np.zeros(len(coefficients) // (1 if form == "softmax" else outputs))
        return cls(form, outputs, share, coefficients, np.zeros(1, np.int64), np.zeros(0), np.zeros(0), floors)

    @classmethod
    def of_pieces(cls, form: str, pieces: Sequence[tuple[FloatArray, FloatArray]], outputs: int = 1) -> CurveMap:
        """Return piecewise curves by class, then by group; a piece has the knots (or upper edges) and their values."""
        starts = np.cumsum([0, *(len(x) for x, _ in pieces)], dtype=np.int64)
        x, values = (np.concatenate([piece[side] for piece in pieces]) for side in (0, 1))
        return cls(form, outputs, np.zeros(len(pieces) // outputs), np.zeros((0, 3)), starts, x, values)

    def piece(self, curve: int) -> tuple[FloatArray, FloatArray]:
        """Return the knots, or edges, of one curve and their values."""
        rows = slice(self.starts[curve], self.starts[curve + 1])
        return self.x[rows], self.values[rows]

    def apply(self, columns: Iterable[AnyArray], prediction: FloatArray, workers: Workers | None = None) -> FloatArray:
        """Return corrected predictions, (n,) or (n, outputs); ``columns`` are the features in the order of the schema."""
        before = np.ascontiguousarray(prediction.reshape(len(prediction), self.outputs))
        after = np.empty(before.shape)
        group = NO_GROUPS if self.index is None else self.index.groups_of(columns, len(before)).astype(np.int32)

        def evaluate_chunk(start: int) -> None:
            rows = slice(start, start + CHUNK)
            self._read(before[rows], group[rows], after[rows], len(before))

        (workers or Workers()).map(evaluate_chunk, range(0, len(before), CHUNK))
        return after.reshape(prediction.shape)

    def apply_one(self, row: list[float], prediction: list[float]) -> FloatArray:
        """Return the corrected prediction of one row, given as codes and numbers in the order of the schema."""
        return self._evaluate_one(prediction, 0 if self.index is None else self.index.group_of(row))

    def _evaluate_one(self, prediction: Sequence[float], group: int) -> FloatArray:
        before: FloatArray = np.array([prediction], np.float64)
        after = np.empty(before.shape)
        self._read(before, np.array([group], np.int32) if group else NO_GROUPS, after, 1)
        return np.asarray(after[0])

    def _read(self, prediction: FloatArray, group: Int32Array, out: FloatArray, rows: int) -> None:
        answer(
            read_rows, 20 * rows * self.outputs,
            FORMS[self.form], self.coefficients, self.starts, self.x, self.values, np.array(self.floors), len(self.share),
            group, self.share, prediction, out,
        )  # fmt: skip

    def describe(self) -> str:
        """Return as text the coefficients of a single curve, or the numbers of group curves and of knots."""
        per_class = f", for each of {self.outputs} classes" if self.outputs > 1 and self.form != "softmax" else ""
        a, b, c = self.coefficients[0].tolist() if len(self.coefficients) else (1.0, 1.0, 0.0)
        if self.form not in SMOOTH_FORMS:
            text = f"{len(self.x):,} {self.form}{' in all' if per_class or len(self.share) > 1 else ''}{per_class}"
        elif len(self.share) > 1 or per_class:
            names = {
                "line": "a straight line",
                "bounded": "a straight line",
                "logit": "a logistic curve",
                "softmax": "a temperature",
            }
            text = names[self.form] + per_class
        elif self.form == "softmax":
            text = f"temperature {1 / a:.4g}"
        elif self.form == "bounded":
            text = f"adds {c:.4g}" if a == 1 else f"multiplies by {a:.4g}"
        elif self.form == "line" or a == b:
            text = f"slope {a:.4g}, intercept {c:.4g}"
        else:
            text = f"a = {a:.4g}, b = {b:.4g}, c = {c:.4g}"
        if self.index is None:
            return text
        count = len(self.index)
        return f"a pooled curve and {count:,} group curve{'' if count == 1 else 's'}: {text}"

    def feature_sets(self) -> list[tuple[int, ...]]:
        """Return each column that forms groups, by position in the schema, and all pairs of them."""
        columns = range(len(self.index.binners) if self.index else 0)
        return [*((column,) for column in columns), *itertools.combinations(columns, 2)]

    def explain_one(self, schema: Schema, row: Sequence[float], prediction: Sequence[float]) -> RowExplanation:
        """Explain the change of one prediction by the terms of its curve; with groups, by pooled and group curve."""
        link = task_loss(schema.task).link
        group = 0 if self.index is None else self.index.group_of(row)
        pooled, after = self._evaluate_one(prediction, 0), self._evaluate_one(prediction, group)
        start, middle, end = (apply_link(np.array([values]), link)[0] for values in (prediction, pooled, after))
        contributions: list[Contribution] = []
        changes = (end - start).tolist()
        labels, sums = schema.classes or ("",), EffectSums(schema, row, prediction)
        scores = middle - start  # what the curves of all rows add
        for c, (name, label) in enumerate(zip(schema.prediction, labels, strict=True)):
            if self.index is not None:
                contributions.append(Contribution("all rows", float(middle[c] - start[c]), label))
                if group:
                    text = f"{self.index.name_of(group)} (weight of its own curve {self.share[group]:.3g})"
                    contributions.append(Contribution(text, float(end[c] - middle[c]), label))
                    sums.add(range(len(self.index.binners)), float(end[c] - middle[c]), c)
                continue
            own = [Contribution(text, value, label) for text, value in self._terms(c, prediction[c], name, changes[c])]
            contributions += own
            scores[c] = sum(term.change for term in own)
            if len(labels) > 1:
                contributions.append(Contribution(NORMALISATION, changes[c] - sum(term.change for term in own), label))
        sums.add_scores(scores)
        if self.index is None and link == "logit" and self.form == "logit":
            # The score itself may be closer to 0 or 1 than its floor.
            changes = [sum(term.change for term in contributions)]
        return explain_change(link, prediction, after, contributions, sums, changes)

    def _terms(self, output: int, p: float, name: str, change: float) -> list[tuple[str, float]]:
        """Return (text, change) per term of one output's curve at score ``p``; ``change`` is the total if one output."""
        p, piecewise = float(p), self.form not in SMOOTH_FORMS
        if piecewise or self.form == "bounded" or (self.form == "logit" and self.outputs > 1):
            text = _piece_text(self.form, self.piece(output)[0], p, name) if piecewise else f"curve of {name}"
            if self.outputs == 1 and self.form == "bounded":
                text = self.describe()
            if self.outputs > 1:  # the curve of one class, before classes are normalised
                if piecewise:
                    single = CurveMap.of_pieces(self.form, [self.piece(output)])
                else:
                    own = self.coefficients[output : output + 1]
                    single = CurveMap.of_coefficients(self.form, own, floors=self.floors)
                after = float(single._evaluate_one([p], 0)[0])
                change = math.log(max(after, EPS)) - math.log(max(p, EPS))
            return [(text, change)]
        a, b, c = self.coefficients[0].tolist()
        if self.form == "line":
            return [(f"slope {a:.4g}", (a - 1) * p), ("intercept", c)]
        if self.form == "softmax":
            return [(f"temperature {1 / a:.4g}", (a - 1) * math.log(max(p, self.floors[0])))]
        p = min(max(p, self.floors[0]), 1 - self.floors[1])
        intercept = [("intercept", c)] if c else []
        if a == b:
            return [(f"slope {a:.4g} of the logit", (a - 1) * (math.log(p) - math.log1p(-p))), *intercept]
        terms = [(f"a = {a:.4g} of ln p", (a - 1) * math.log(p)), (f"b = {b:.4g} of -ln(1 - p)", (1 - b) * math.log1p(-p))]
        return [*terms, *intercept]

    def pack(self) -> tuple[dict[str, Any], dict[str, bytes]]:
        """Return what a model file stores of the map: an entry of its JSON manifest, and arrays as bytes by name."""
        entry: dict[str, Any] = {"form": self.form, "groups": len(self.share), **pack_floors(self.floors)}
        if self.form in SMOOTH_FORMS:
            blobs = pack_arrays(SMOOTH_DTYPES, self.coefficients)
        else:
            blobs = pack_arrays(PIECEWISE_DTYPES, self.starts, self.x, self.values)
        if self.index is not None:
            cuts, edges = self.index.pack()
            shrinkage = self.shrinkage if self.shrinkage < math.inf else None
            entry |= {"kind": GROUPED, "cuts": cuts, "shrinkage": shrinkage}
            blobs |= pack_arrays(GROUP_DTYPES, edges, self.index.cells, self.share)
        return entry, blobs

    @classmethod
    def unpack(cls, entry: Any, schema: Schema, blobs: Mapping[str, bytes]) -> CurveMap:
        """Restore the map from what `pack` returned; raise FileContentError if it is invalid or does not fit ``schema``."""
        form, groups, outputs, grouped = entry["form"], entry["groups"], len(schema.prediction), entry["kind"] == GROUPED
        forms = {"regression": ("line",), "binary": ("bounded", "logit")}.get(schema.task, ("bounded", "logit", "softmax"))
        require(isinstance(form, str) and form in (*forms, "knots", "steps"), "the form of the curves is invalid")
        require(is_integer(groups) and groups >= 1 and outputs >= 1, "the number of groups is invalid")
        require(grouped or groups == 1, "a map without groups has several")
        dtypes = SMOOTH_DTYPES if form in SMOOTH_FORMS else PIECEWISE_DTYPES
        listed = set(blobs) == {*dtypes, *(GROUP_DTYPES if grouped else ())}
        require(listed, "it has arrays that the manifest does not list")
        count = groups if form == "softmax" else groups * outputs
        if form in SMOOTH_FORMS:
            flat = unpack_arrays(dtypes, blobs)[0]
            require(len(flat) == 3 * count, "the number of curve coefficients is wrong")
            require(bool((np.abs(flat) <= MAX_COEFFICIENT).all()), "a curve coefficient is invalid")
            require(form != "softmax" or bool((flat[::3] > 0).all()), "a temperature is invalid")
            curves = cls.of_coefficients(form, flat.reshape(-1, 3), outputs, unpack_floors(entry))
        else:
            starts, x, values = unpack_arrays(dtypes, blobs)
            _check_pieces(form, starts, x, values, count)
            probabilities = schema.task == "regression" or bool(((values >= 0) & (values <= 1)).all())
            require(probabilities, "a value is not a probability")
            curves = cls(form, outputs, np.zeros(groups), np.zeros((0, 3)), starts, x, values)
        if not grouped:
            return curves
        edges, cells, share = unpack_arrays(GROUP_DTYPES, blobs)
        index = GroupIndex.unpack(entry["cuts"], schema, edges, cells)
        require(len(cells) + 1 == len(share) == groups, "the number of groups does not fit the curves")
        require(bool(((share >= 0) & (share <= 1)).all()) and share[0] == 0, "a share is not between 0 and 1")
        shrinkage = entry["shrinkage"]
        require(shrinkage is None or (are_finite(shrinkage) and shrinkage >= 0), "the shrinkage is invalid")
        return replace(curves, index=index, share=share, shrinkage=math.inf if shrinkage is None else float(shrinkage))


def _check_pieces(form: str, starts: IntArray, x: FloatArray, values: FloatArray, count: int) -> None:
    """Raise FileContentError unless the arrays are valid knots or steps (``form``) of ``count`` curves."""
    fits = len(starts) == count + 1 and starts[0] == 0 and starts[-1] == len(x) == len(values)
    require(fits, "the number of knots does not fit the curves")
    require(bool((np.diff(starts) >= 1).all() and (np.diff(starts) <= len(x)).all()), "a curve has no knots")
    require(bool((np.abs(x) <= MAX_SCORE).all() and (np.abs(values) <= MAX_SCORE).all()), "a knot is not a number")
    inside = np.ones(max(len(x) - 1, 0), bool)
    inside[starts[1:-1] - 1] = False  # from the last knot of a curve to the first of the next
    require(bool((np.diff(x)[inside] > 0).all()), "knots are not in ascending order")
    require(form == "steps" or bool((np.diff(values)[inside] >= 0).all()), "an isotonic curve decreases")


def _piece_text(form: str, x: FloatArray, p: float, name: str) -> str:
    """Return the interval between knots (or edges) ``x`` that contains the score ``p``, as "0.2 < p <= 0.5"."""
    index, last = int(np.searchsorted(x, p, side="left")), len(x) - 1
    if form == "steps" and index >= last:
        return f"{name} > {x[last - 1]:.6g}" if last else f"any {name}"
    if index == 0:
        return f"{name} <= {x[0]:.6g}"
    if index > last:
        return f"{name} >= {x[last]:.6g}"
    return f"{x[index - 1]:.6g} {'<' if form == 'steps' else '<='} {name} <= {x[index]:.6g}"
