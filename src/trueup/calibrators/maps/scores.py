"""Curves of the score alone: what the classical calibrators learn."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trueup.calibrators.map import Map
from trueup.kernels.cascade import SMALLEST
from trueup.kernels.scores import KNOTS, LINE, LOGIT, SOFTMAX, STEPS, read_rows
from trueup.kernels.threads import Workers

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trueup._types import AnyArray, FloatArray, Int32Array, IntArray
    from trueup.calibrators.rowwise import Part, RowExplanation
    from trueup.data.schema import Schema


FORMS = {"line": LINE, "logit": LOGIT, "softmax": SOFTMAX, "knots": KNOTS, "steps": STEPS}
CHUNK = 16_384  # rows that are read by one call
NOBODY = np.zeros(0, np.int32)  # where no row has a group
WHOLE = np.zeros(1)  # the share of the whole in itself, which is never asked for
EVEN = "classes made to add up to 1"


@dataclass(frozen=True, eq=False)
class Curves:
    """Curves of one form: for each class, one for the whole (group 0) and one for each group.

    Attributes
    ----------
    form : {"line", "logit", "softmax", "knots", "steps"}
        ``a p + c``; ``1 / (1 + exp(-(a ln p - b ln(1 - p) + c)))``; ``p^a`` of all classes, made to add up to 1; straight
        lines between knots; a step up to each edge.
    groups, outputs : int
    coefficients : ndarray of float64, shape (curves, 3)
        a, b and c; none where there are knots or steps. In the order of classes, and of groups within a class; for
        "softmax" one for each group.
    at : ndarray of int64
        Where the knots or steps of each curve begin.
    x, value : ndarray of float64
        Knots, or the upper edges of steps (closed on the right; the last reaches up from there), and the values.
    """

    form: str
    groups: int
    outputs: int
    coefficients: FloatArray
    at: IntArray
    x: FloatArray
    value: FloatArray

    @classmethod
    def of_coefficients(cls, form: str, groups: int, outputs: int, coefficients: FloatArray) -> Curves:
        """Make curves that have no knots."""
        return cls(form, groups, outputs, coefficients, np.zeros(1, np.int64), np.zeros(0), np.zeros(0))

    @classmethod
    def of_pieces(cls, form: str, pieces: Sequence[tuple[FloatArray, FloatArray]]) -> Curves:
        """Make knots or steps of one output from those of each group."""
        at = np.cumsum([0, *(len(x) for x, _ in pieces)], dtype=np.int64)
        x, value = (np.concatenate([piece[side] for piece in pieces]) for side in (0, 1))
        return cls(form, len(pieces), 1, np.zeros((0, 3)), at, x, value)

    def piece(self, curve: int) -> tuple[FloatArray, FloatArray]:
        """Give the knots, or edges, of one curve and their values."""
        rows = slice(self.at[curve], self.at[curve + 1])
        return self.x[rows], self.value[rows]

    def read(self, prediction: FloatArray, group: Int32Array, share: FloatArray, out: FloatArray) -> None:
        """Read rows (n, outputs) into ``out``; one kernel for many rows and for one."""
        read_rows(
            FORMS[self.form], self.coefficients, self.at, self.x, self.value, self.groups, group, share, prediction, out
        )

    def read_many(
        self, prediction: FloatArray, group: Int32Array, share: FloatArray, workers: Workers | None
    ) -> FloatArray:
        """Read rows, (n,) or (n, outputs), some thousands a call."""
        before = np.ascontiguousarray(prediction.reshape(len(prediction), self.outputs))
        after = np.empty(before.shape)

        def some(start: int) -> None:
            rows = slice(start, start + CHUNK)
            self.read(before[rows], group[rows], share, after[rows])

        (workers or Workers()).map(some, range(0, len(before), CHUNK))
        return after.reshape(prediction.shape)


def join_outputs(curves: Sequence[Curves]) -> Curves:
    """Put the curves of several outputs, each of the same groups, together."""
    first = curves[0]
    starts = np.cumsum([0, *(len(one.x) for one in curves)])
    at = np.concatenate([[0], *(one.at[1:] + start for one, start in zip(curves, starts[:-1], strict=True))])
    x, value = (np.concatenate([getattr(one, name) for one in curves]) for name in ("x", "value"))
    coefficients = np.concatenate([one.coefficients for one in curves])
    return Curves(first.form, first.groups, len(curves), coefficients, at.astype(np.int64), x, value)


@dataclass(frozen=True, eq=False)
class ScoreMap(Map):
    """A curve of the score, or one for each class.

    Attributes
    ----------
    curves : Curves
        Of one group, the whole.
    """

    kind = "scores"

    curves: Curves

    @property
    def steps(self) -> int:
        """Count one step."""
        return 1

    def apply(self, columns: Iterable[AnyArray], prediction: FloatArray, workers: Workers | None = None) -> FloatArray:  # noqa: ARG002
        """Read every row."""
        return self.curves.read_many(prediction, NOBODY, WHOLE, workers)

    def apply_one(self, row: list[float], prediction: list[float]) -> FloatArray:  # noqa: ARG002
        """Read one row."""
        P: FloatArray = np.array([prediction], np.float64)
        out = np.empty(P.shape)
        self.curves.read(P, NOBODY, WHOLE, out)
        return np.asarray(out[0])

    def describe(self) -> str:
        """Give the coefficients of a curve, or count its knots."""
        return describe_curves(self.curves)

    def explain_one(self, schema: Schema, row: Sequence[float], prediction: Sequence[float]) -> RowExplanation:
        """Say what each coefficient added, or on which piece of the curve the score lies."""
        from trueup.calibrators.losses import apply_link, task_loss
        from trueup.calibrators.rowwise import Part, explain_change

        link = task_loss(schema.task).link
        after = self.apply_one(list(row), list(prediction))
        start, end = (apply_link(np.array([values]), link)[0] for values in (prediction, after))
        parts: list[Part] = []
        labels = schema.classes or ("",)
        for c, (name, label) in enumerate(zip(schema.prediction, labels, strict=True)):
            found = self._parts(c, float(prediction[c]), name, label, float(end[c] - start[c]))
            parts += found
            if len(labels) > 1:
                rest = float(end[c] - start[c]) - sum(part.change for part in found)
                parts.append(Part(EVEN, rest, label))
        change = (end - start).tolist()
        if link == "logit" and self.curves.form == "logit":
            change = [sum(part.change for part in parts)]  # of the curve itself, which may go beyond 1e-6
        return explain_change(link, prediction, after, tuple(parts), change)

    def _parts(self, output: int, p: float, name: str, label: str, change: float) -> list[Part]:
        """Take the change of one output apart, before classes are made to add up."""
        from trueup.calibrators.rowwise import Part

        curves, pieces = self.curves, self.curves.form in ("knots", "steps")
        if pieces or (curves.form == "logit" and curves.outputs > 1):
            text = _piece_text(curves.form, curves.piece(output)[0], p, name) if pieces else f"curve of {name}"
            if curves.outputs > 1:
                change = math.log(max(self._alone(output, p), SMALLEST)) - math.log(max(p, SMALLEST))
            return [Part(text, change, label)]
        a, b, c = curves.coefficients[0].tolist()
        if curves.form == "line":
            added = {f"slope {a:.4g}": (a - 1) * p, "intercept": c}
        elif curves.form == "softmax":
            added = {f"temperature {1 / a:.4g}": (a - 1) * math.log(max(p, SMALLEST))}
        else:
            added = _logit_parts(a, b, c, min(max(p, SMALLEST), 1 - SMALLEST))
        return [Part(text, value, label) for text, value in added.items()]

    def _alone(self, output: int, p: float) -> float:
        """Read the curve of one class, before classes are made to add up."""
        form, at = self.curves.form, self.curves.at
        single = (
            Curves.of_pieces(form, [self.curves.piece(output)])
            if len(at) > 1
            else Curves.of_coefficients(form, 1, 1, self.curves.coefficients[output : output + 1])
        )
        out = np.empty((1, 1))
        single.read(np.array([[p]]), NOBODY, WHOLE, out)
        return float(out[0, 0])


def _logit_parts(a: float, b: float, c: float, p: float) -> dict[str, float]:
    """Take ``a ln p - b ln(1 - p) + c`` apart, as a change of the logit of p."""
    added = {}
    if a == b:
        added[f"slope {a:.4g} of the logit"] = (a - 1) * (math.log(p) - math.log1p(-p))
    else:
        added = {f"a = {a:.4g} of ln p": (a - 1) * math.log(p), f"b = {b:.4g} of -ln(1 - p)": (1 - b) * math.log1p(-p)}
    return added | ({"intercept": c} if c else {})


def _piece_text(form: str, x: FloatArray, p: float, name: str) -> str:
    """Name the piece of a curve that a score lies on.

    Examples
    --------
    >>> _piece_text("steps", np.array([0.2, 0.5, 1.0]), 0.3, "p"), _piece_text("knots", np.array([0.2, 0.5]), 0.3, "p")
    ('0.2 < p <= 0.5', '0.2 <= p <= 0.5')
    """
    at, last = int(np.searchsorted(x, p, side="left")), len(x) - 1
    mark = "<" if form == "steps" else "<="
    if form == "steps" and at >= last:
        return f"{name} > {x[last - 1]:.6g}" if last else f"any {name}"
    if at == 0:
        return f"{name} <= {x[0]:.6g}"
    return f"{x[at - 1]:.6g} {mark} {name} <= {x[at]:.6g}" if at <= last else f"{name} >= {x[last]:.6g}"


def describe_curves(curves: Curves) -> str:
    """Say in a few words what curves are made of."""
    several = f", for each of {curves.outputs} classes" if curves.outputs > 1 and curves.form != "softmax" else ""
    if curves.form in ("knots", "steps"):
        return f"{len(curves.x):,} {curves.form}{' in all' if several or curves.groups > 1 else ''}{several}"
    if curves.groups > 1 or several:
        return {"line": "a straight line", "logit": "a logistic curve", "softmax": "a temperature"}[curves.form] + several
    a, b, c = curves.coefficients[0].tolist()
    if curves.form == "softmax":
        return f"temperature {1 / a:.4g}"
    if curves.form == "line" or a == b:
        return f"slope {a:.4g}, intercept {c:.4g}"
    return f"a = {a:.4g}, b = {b:.4g}, c = {c:.4g}"
