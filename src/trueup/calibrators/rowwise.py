"""Why one prediction moved: the conditions the trees tested, each with what it added, and the rescaling."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from trueup.calibrators.losses import apply_link
from trueup.data.columns import format_number
from trueup.data.frame import frame_like
from trueup.kernels.levels import NONE, advance

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trueup._types import FloatArray
    from trueup.calibrators.lsboost.levelsets import LevelSets
    from trueup.calibrators.mcgrad.cascade import Cascade
    from trueup.data.schema import Feature, Schema
    from trueup.kernels.trees import Forest

    Writer = Callable[[float], tuple[float, str]]

RESCALING = "rescaling (theta)"
NOTHING = "every row"
LEVEL = "its level of the score"
ROUNDING = "rounding to the grid"
KEPT_WITHIN = "kept within {:g} and {:g}"
NAMED = 3  # classes in one line
TINY_CHANGE = 1e-12  # of a prediction: less is rounding
TINY = 1e-30  # LightGBM sets 0 apart by a threshold of 1e-35


@dataclass(frozen=True)
class Part:
    """What one set of conditions added.

    Attributes
    ----------
    condition : str
        "country=BR & 0.1 < prediction <= 0.3", or the rescaling.
    change : float
        Of the logit or of the prediction, as the explanation says.
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
        On the scale on which parts add up.
    parts : tuple of Part
        Largest first; patches and rounds in their order.
    scale : {"logit", "prediction"}
        Logits, where 0 and 1 count as 1e-6 from the end; or the prediction itself.
    """

    before: float | tuple[float, ...]
    after: float | tuple[float, ...]
    change: float | tuple[float, ...]
    parts: tuple[Part, ...]
    scale: str = "logit"

    def to_frame(self, like: Any = None) -> Any:
        """Give one row a part, in the library of ``like``; a dict of arrays without it."""
        texts = {name: np.array([getattr(one, name) for one in self.parts], object) for name in ("condition", "output")}
        return frame_like({**texts, "change": np.array([one.change for one in self.parts])}, like)

    def to_dict(self) -> dict[str, Any]:
        """Give everything as plain data."""
        return asdict(self)

    def lines(self) -> list[tuple[str, str, str]]:
        """Write parts as condition, classes and change; classes that one condition moves alike share a line."""
        alike: dict[tuple[str, str], list[str]] = defaultdict(list)
        for part in self.parts:
            alike[part.condition, f"{part.change:+.4f}"].append(part.output)
        return [(condition, _classes(outputs), change) for (condition, change), outputs in alike.items()]

    def __repr__(self) -> str:
        if isinstance(self.before, tuple) and isinstance(self.after, tuple):
            before, after = (", ".join(f"{one:.4g}" for one in values) for values in (self.before, self.after))
            shown = [f"({before}) -> ({after})"]
        else:
            shown = [f"{self.before:.6g} -> {self.after:.6g} (change of the {self.scale} {self.change:+.4f})"]
        lines = [f"  {change}  {names + ': ' if names else ''}{condition}" for condition, names, change in self.lines()]
        return "\n".join([*shown, *lines])


def _classes(names: Sequence[str]) -> str:
    """Name the classes of one line, the first of many.

    Examples
    --------
    >>> _classes(["cat"]), _classes(["cat", "dog", "elk", "fox", "owl"]), _classes([""])
    ('cat', 'cat, dog, elk and 2 more', '')
    """
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED:,} more" if len(names) > NAMED else "")


class _Condition:
    """The conditions on one row that many trees agree on, in each cascade: the narrowest interval of each number."""

    def __init__(self) -> None:
        self.bounds: dict[tuple[int, int], tuple[float, float]] = {}
        self.sums: dict[int, float] = defaultdict(float)

    def narrow(self, feature: int, cascade: int, low: float, high: float) -> None:
        before = self.bounds.get((feature, cascade), (-np.inf, np.inf))
        self.bounds[feature, cascade] = (max(before[0], low), min(before[1], high))

    def interval(self, feature: int, *, own: bool) -> tuple[float, float]:
        """Join the cascades: what all of them ask; or, where each reads a score of its own, what holds for their mean."""
        found = [bounds for (at, _), bounds in self.bounds.items() if at == feature]
        lows, highs = zip(*found, strict=True)
        return (min(lows), max(highs)) if own else (max(lows), min(highs))


def explain_row(cascade: Cascade, schema: Schema, row: Sequence[float], prediction: Sequence[float]) -> RowExplanation:
    """Walk one row down every tree, adding up what each set of conditions brought.

    With ``F_t = theta_t (F + trees)`` the change of F is the sum over rounds of what the trees added and of
    ``(theta_t - 1)(F + trees)``: the parts add up without a rest.
    """
    start = apply_link(np.array([prediction]), cascade.link)[0]
    walk = _Walk(row, defaultdict(_Condition))
    rescaling = np.zeros(cascade.outputs)
    states, means = [start.copy() for _ in range(cascade.cascades)], [np.array(prediction, np.float64)]
    for number, one in enumerate(cascade.rounds):
        for at, forest in enumerate(one.forests):
            added = walk.down(forest, states[at], number, at, 1 / len(one.forests))
            moved = states[at] + added
            rescaling += (one.theta - 1) * moved / len(one.forests)
            states[at] = one.theta * moved
        means.append(np.mean(states, axis=0))
    end = np.mean(states, axis=0)
    rescaled = any(one.theta != 1 for one in cascade.rounds)
    parts = _parts(walk, rescaling if rescaled else None, means, cascade, schema)
    after = cascade.apply_one(list(row), list(prediction))
    if cascade.clip is not None and abs(end[0] - after[0]) > TINY_CHANGE:
        parts = (*parts, Part(KEPT_WITHIN.format(*cascade.clip), float(after[0] - end[0])))
        end = after
    return explain_change(cascade.link, prediction, after, parts, (end - start).tolist())


def explain_change(
    link: str,
    before: Sequence[float],
    after: Sequence[float] | FloatArray,
    parts: tuple[Part, ...],
    change: Sequence[float] | None = None,
    *,
    in_order: bool = False,
) -> RowExplanation:
    """Put the change of one prediction together, on the scale of a link: the largest part first, or all in their order."""
    if change is None:
        start, end = (apply_link(np.array([values], np.float64), link)[0] for values in (before, after))
        change = (end - start).tolist()
    size = (lambda _: 0) if in_order else lambda part: (-abs(part.change), part.output, part.condition)
    listed = tuple(sorted(parts, key=size))
    scale = "prediction" if link == "identity" else "logit"
    old, new = [float(value) for value in before], [float(value) for value in after]
    if len(new) == 1:
        return RowExplanation(old[0], new[0], float(change[0]), listed, scale)
    return RowExplanation(tuple(old), tuple(new), tuple(map(float, change)), listed, scale)


def explain_stages(before: Sequence[float], stages: Sequence[float]) -> RowExplanation:
    """Say what each round added to a score: from what it was, or where there was none from the first of the stages."""
    start = float(before[0]) if before else stages[0]
    parts = [Part(f"round {at}", stages[at] - stages[at - 1]) for at in range(1, len(stages))]
    if stages[0] != start:
        parts.append(Part(ROUNDING, stages[0] - start))
    kept = tuple(part for part in parts if part.change)
    return explain_change("identity", [start], [stages[-1]], kept, in_order=True)


def explain_levels(
    found: LevelSets, forest: Forest, schema: Schema, row: Sequence[float], before: FloatArray
) -> RowExplanation:
    """Follow one row through the trees of all levels, adding up what each set of conditions brought."""
    bounds, unit = found.scale.bounds, found.scale.unit / found.models
    conditions: dict[tuple[int, ...], _Condition] = defaultdict(_Condition)
    start = float(next(found.stages([np.array([value]) for value in row], before))[0])
    for at in range(found.models * found.rounds):
        if at % found.rounds == 0:
            f = (start - found.scale.offset) / found.scale.unit
        edges = found.edges[found.edges_at[at] : found.edges_at[at + 1]]
        which = int(found.learner[found.edges_at[at] + at + np.searchsorted(edges, f)])
        if which == NONE:
            continue
        path, value = _path(forest, int(forest.root[which]), row)
        condition = conditions[tuple(sorted({feature for feature, _, _ in path}))]
        for feature, low, high in path:
            condition.narrow(feature, 0, low, high)
        moved = advance(f, value, bounds[2], found.scale.grid, bounds[0], bounds[1], bounds[6])
        condition.sums[0] += unit * (moved - f)
        f = moved
    parts = [
        Part(
            " & ".join(_of_feature(schema.features[at], row[at], one.interval(at, own=False)) for at in names) or LEVEL,
            one.sums[0],
        )
        for names, one in conditions.items()
    ]
    origin = float(before[0]) if schema.prediction else start
    if start != origin:
        parts.append(Part(ROUNDING, start - origin))
    after = found.apply_one(list(row), before.tolist())
    return explain_change("identity", [origin], after, tuple(parts))


def _path(forest: Forest, node: int, row: Sequence[float]) -> tuple[list[tuple[int, float, float]], float]:
    """Follow a row down one tree: the features it is asked for, between which bounds they lie, and the leaf."""
    path = []
    while node >= 0:
        feature = int(forest.feature[node])
        left, low, high = _turn(forest, node, row[feature])
        path.append((feature, low, high))
        node = int(forest.left[node] if left else forest.right[node])
    return path, float(forest.value[~node])


class _Walk(NamedTuple):
    """One row on its way through all trees."""

    row: Sequence[float]
    conditions: dict[tuple[int, tuple[int, ...]], _Condition]  # by round, and by the features tested

    def down(self, forest: Forest, F: FloatArray, number: int, cascade: int, scale: float) -> FloatArray:
        """Follow the row down every tree of a forest; give what they add to each output."""
        values = [*self.row, *F.tolist()]
        added = np.zeros(len(F))
        for root, output in zip(forest.root.tolist(), forest.output.tolist(), strict=True):
            path, brought = _path(forest, root, values)
            names = tuple(sorted({feature for feature, _, _ in path}))
            # Later rounds read the score that earlier ones have made: a condition on it is another condition.
            condition = self.conditions[number if names and names[-1] >= len(self.row) else 0, names]
            for feature, low, high in path:
                condition.narrow(feature, cascade, low, high)
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
    walk: _Walk, rescaling: FloatArray | None, means: Sequence[FloatArray], cascade: Cascade, schema: Schema
) -> tuple[Part, ...]:
    labels = list(schema.classes) if cascade.outputs > 1 else [""]
    features, found = len(schema.features), []
    for (number, names), condition in walk.conditions.items():
        texts = [
            _of_feature(schema.features[at], walk.row[at], condition.interval(at, own=False))
            if at < features
            else _of_score(
                schema.prediction[at - features], condition.interval(at, own=number > 0),
                float(means[number][at - features]), cascade.link, number,
            )
            for at in names
        ]  # fmt: skip
        found += [Part(" & ".join(texts) or NOTHING, change, labels[output]) for output, change in condition.sums.items()]
    if rescaling is not None:
        found += [Part(RESCALING, float(change), label) for change, label in zip(rescaling, labels, strict=True)]
    return tuple(found)


def _of_feature(feature: Feature, value: float, bounds: tuple[float, float]) -> str:
    """Write the condition on one feature, as far as this row goes."""
    if feature.kind == "categorical":
        code = int(value)
        return f"{feature.name}={feature.levels[code]}" if 0 <= code < len(feature.levels) else f"{feature.name} is missing"
    if np.isnan(value):
        return f"{feature.name} is missing"
    return _interval(feature.name, *bounds, value, DAYS if feature.kind == "date" else NUMBERS)


def _of_score(name: str, bounds: tuple[float, float], value: float, link: str, number: int) -> str:
    """Write the condition on the prediction, or on what the rounds before have made of it."""
    after = f" after round {number}" if number else ""
    if number and link == "softmax":
        return _interval(f"log score of {name}{after}", *bounds, value, SCORES)  # adds up to 1 only in the end
    leaves: dict[str, Callable[[float], float]] = {"identity": float, "logit": _expit, "softmax": np.exp}
    leave = leaves[link]
    low, high = (float(leave(bound)) if np.isfinite(bound) else bound for bound in bounds)
    return _interval(name + after, low, high, _expit(value) if number and link == "logit" else value, SCORES)


def _expit(f: float) -> float:
    return float(1 / (1 + np.exp(-f)))


def _rounded(digits: int) -> Writer:
    def write(bound: float) -> tuple[float, str]:
        short = 0.0 if abs(bound) < TINY else float(f"{bound:.{digits}g}")
        return short, format_number(short)

    return write


def _dated(unit: Literal["D", "s", "us"], many: int) -> Writer:
    def write(bound: float) -> tuple[float, str]:
        if abs(bound) > 1e6:
            return bound, f"day {format_number(bound)}"  # no calendar reaches that far
        whole = int(np.floor(bound * many))
        return whole / many, str(np.datetime64(whole, unit))

    return write


NUMBERS = tuple(_rounded(digits) for digits in (6, 9, 17))
SCORES = (_rounded(4), *NUMBERS)
DAYS = _dated("D", 1), _dated("s", 86_400), _dated("us", 86_400_000_000)


def _interval(name: str, low: float, high: float, value: float, writers: Sequence[Writer]) -> str:
    """Write a condition on a number, with no more digits than it takes for the condition to hold.

    Examples
    --------
    >>> _interval("age", 18, 30.5, 20, NUMBERS), _interval("age", -np.inf, 18, 9, NUMBERS)
    ('18 < age <= 30.5', 'age <= 18')
    >>> _interval("age", 30.123456, np.inf, 30.124, NUMBERS)
    'age > 30.1235'
    >>> _interval("day", 19723.5, np.inf, 19724, DAYS)
    'day > 2024-01-01'
    """
    if not low < value <= high:
        return name  # folds that read scores of their own, of which the mean is another
    below = above = ""
    for write in writers:
        (least, below), (most, above) = (write(x) if np.isfinite(x) else (x, "") for x in (low, high))
        if least < value <= most:
            break
    if low == -np.inf:
        return f"{name} <= {above}" if high < np.inf else name
    return f"{name} > {below}" if high == np.inf else f"{below} < {name} <= {above}"
