"""Why one prediction moved: the conditions the trees tested, each with what it added, and the rescaling."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.calibrators.explain import interval
from trueup.data.intake import frame_like
from trueup.kernels.cascade import SMALLEST

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from trueup.calibrators.maps import Cascade
    from trueup.data.schema import Schema
    from trueup.kernels.trees import Forest

    Floats = NDArray[np.float64]

__all__ = ["Part", "RowExplanation", "explain_row"]

RESCALING = "rescaling (theta)"
NOTHING = "every row"


@dataclass(frozen=True)
class Part:
    """What one set of conditions added.

    Attributes
    ----------
    condition : str
        "country=BR & 0.1 < prediction <= 0.3", or the rescaling.
    change : float
        On the scale of the trees: logits for probabilities.
    output : str
        The class it was added to; empty for a single prediction.
    """

    condition: str
    change: float
    output: str = ""


@dataclass(frozen=True)
class RowExplanation:
    """The change of one prediction, part by part; the parts of an output add up to the change of its logit.

    Attributes
    ----------
    before, after : float, or tuple of float for several classes
        The prediction.
    change : float, or tuple of float
        On the scale of the trees: of the logit for probabilities (0 and 1 count as 1e-6 from the end).
    parts : tuple of Part
        Largest first.
    """

    before: float | tuple[float, ...]
    after: float | tuple[float, ...]
    change: float | tuple[float, ...]
    parts: tuple[Part, ...]

    def to_frame(self, like: Any = None) -> Any:
        """Give one row a part, in the library of ``like``; a dict of arrays without it."""
        texts = {name: np.array([getattr(one, name) for one in self.parts], object) for name in ("condition", "output")}
        return frame_like({**texts, "change": np.array([one.change for one in self.parts])}, like)

    def to_dict(self) -> dict[str, Any]:
        """Give everything as plain data."""
        return asdict(self)

    def __repr__(self) -> str:
        shown = [f"{self.before} -> {self.after}"]
        if isinstance(self.before, float) and isinstance(self.after, float) and isinstance(self.change, float):
            shown = [f"{self.before:.6g} -> {self.after:.6g} (change {self.change:+.4f} on the scale of the trees)"]
        lines = [
            f"  {part.change:+.4f}  {part.output + ': ' if part.output else ''}{part.condition}" for part in self.parts
        ]
        return "\n".join([*shown, *lines])


class _Condition:
    """The conditions on one row that many trees agree on: the narrowest interval of each number."""

    def __init__(self) -> None:
        self.bounds: dict[int, tuple[float, float]] = {}
        self.sums: dict[int, float] = defaultdict(float)

    def narrow(self, feature: int, low: float, high: float) -> None:
        before = self.bounds.get(feature, (-np.inf, np.inf))
        self.bounds[feature] = (max(before[0], low), min(before[1], high))


def explain_row(cascade: Cascade, schema: Schema, row: Sequence[float], prediction: Sequence[float]) -> RowExplanation:
    """Walk one row down every tree, adding up what each set of conditions brought.

    With ``F_t = theta_t (F + trees)`` the change of F is the sum over rounds of what the trees added and of
    ``(theta_t - 1)(F + trees)``: the parts add up without a rest.
    """
    start = np.array(_enter(cascade.link, prediction))
    conditions: dict[tuple[int, tuple[int, ...]], _Condition] = defaultdict(_Condition)
    rescaling = np.zeros(cascade.outputs)
    states = [start.copy() for _ in range(cascade.cascades)]
    for number, one in enumerate(cascade.rounds):
        for at, forest in enumerate(one.forests):
            added = _walk(forest, row, states[at], number, conditions, 1 / len(one.forests))
            moved = states[at] + added
            rescaling += (one.theta - 1) * moved / len(one.forests)
            states[at] = one.theta * moved
    end = np.mean(states, axis=0)
    parts = _parts(conditions, rescaling if cascade.rounds else None, cascade, schema, row)
    after = cascade.apply_one(list(row), list(prediction))
    if cascade.outputs == 1:
        return RowExplanation(float(prediction[0]), float(after[0]), float(end[0] - start[0]), parts)
    return RowExplanation(tuple(map(float, prediction)), tuple(after.tolist()), tuple((end - start).tolist()), parts)


def _enter(link: str, prediction: Sequence[float]) -> list[float]:
    if link == "identity":
        return list(prediction)
    if link == "softmax":
        return [float(np.log(max(p, SMALLEST))) for p in prediction]
    p = min(max(prediction[0], SMALLEST), 1 - SMALLEST)
    return [float(np.log(p) - np.log1p(-p))]


def _walk(
    forest: Forest,
    row: Sequence[float],
    F: Floats,
    number: int,
    conditions: dict[tuple[int, tuple[int, ...]], _Condition],
    scale: float,
) -> Floats:
    values = [*row, *F.tolist()]
    added = np.zeros(len(F))
    for root, output in zip(forest.root.tolist(), forest.output.tolist(), strict=True):
        node, path = root, []
        while node >= 0:
            feature, value = int(forest.feature[node]), values[forest.feature[node]]
            left, low, high = _turn(forest, node, value)
            path.append((feature, low, high))
            node = int(forest.left[node] if left else forest.right[node])
        names = tuple(sorted({feature for feature, _, _ in path}))
        # Later rounds read the score that earlier ones have made: a condition on it is another condition.
        condition = conditions[number if names and names[-1] >= len(row) else 0, names]
        for feature, low, high in path:
            condition.narrow(feature, low, high)
        brought = float(forest.value[~node])
        condition.sums[output] += brought * scale
        added[output] += brought
    return added


def _turn(forest: Forest, node: int, value: float) -> tuple[bool, float, float]:
    """Say which way a value goes at a node, and between which bounds values go that way."""
    at = int(forest.words_at[node])
    if at >= 0:
        code = int(value) + 1 if value >= 0 else 0
        word = code >> 5
        inside = word < forest.words_in[node] and (int(forest.words[at + word]) >> (code & 31)) & 1 == 1
        return inside, -np.inf, np.inf
    if np.isnan(value):
        return bool(forest.missing_left[node]), -np.inf, np.inf
    threshold = float(forest.threshold[node])
    return (True, -np.inf, threshold) if value <= threshold else (False, threshold, np.inf)


def _parts(
    conditions: dict[tuple[int, tuple[int, ...]], _Condition],
    rescaling: Floats | None,
    cascade: Cascade,
    schema: Schema,
    row: Sequence[float],
) -> tuple[Part, ...]:
    labels = list(schema.classes) if cascade.outputs > 1 else [""]
    found = []
    for (number, names), condition in conditions.items():
        text = " & ".join(_text(at, condition.bounds[at], number, cascade, schema, row) for at in names) or NOTHING
        found += [Part(text, change, labels[output]) for output, change in condition.sums.items()]
    if rescaling is not None:
        found += [Part(RESCALING, float(change), label) for change, label in zip(rescaling, labels, strict=True)]
    return tuple(sorted(found, key=lambda part: (-abs(part.change), part.output, part.condition)))


def _text(at: int, bounds: tuple[float, float], number: int, cascade: Cascade, schema: Schema, row: Sequence[float]) -> str:
    """Write the condition on one feature, as far as this row goes."""
    if at >= len(schema.features):
        name = schema.prediction[at - len(schema.features)] + (f" after round {number}" if number else "")
        low, high = (_leave(cascade.link, bound) for bound in bounds)
        return interval(name, low, high) if low < high else name  # the cascades of a later round each read their own
    feature, value = schema.features[at], row[at]
    if feature.kind == "categorical":
        code = int(value)
        return f"{feature.name}={feature.levels[code]}" if 0 <= code < len(feature.levels) else f"{feature.name} is missing"
    if np.isnan(value):
        return f"{feature.name} is missing"
    return interval(feature.name, *bounds)


def _leave(link: str, bound: float) -> float:
    """Take a bound on the scale of the trees back to that of the prediction, with four digits."""
    if link == "identity" or not np.isfinite(bound):
        return bound
    p = float(np.exp(min(bound, 0.0))) if link == "softmax" else float(1 / (1 + np.exp(-bound)))
    return float(f"{p:.4g}")
