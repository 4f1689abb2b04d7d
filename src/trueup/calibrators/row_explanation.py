"""Explanations of single predictions: what each feature added, and each condition that a row meets.

A map reports its changes on the scale of its link (logits), by the columns that caused them (`EffectSums`). Changes of
logits are converted to changes of probabilities along the straight line from the logits before to those after. With one
probability, a contribution c of a total change C becomes ``c / C * (after - before)``; with several classes, the effect
on class k is the integral of ``p_k (c_k - sum_j p_j c_j)`` (integrated gradients: Sundararajan, Taly & Yan 2017). The
effects add up to the change, and depend on no order of the contributions.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.calibrators.stopping import apply_link, softmax
from trueup.data.columns import format_number, frame_like
from trueup.kernels._jit import plain
from trueup.kernels.trees import Forest, expit
from trueup.metrics.result import Result, html_table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trueup._types import FloatArray
    from trueup.data.table import Feature, Schema

    BoundFormat = Callable[[float], tuple[float, str]]

LARGEST = 5  # effects that are listed; the others are added up
ROUNDING = "rounding to the grid"
CLIPPED = "clipping to {:g} and {:g}"
MAX_CLASSES = 3  # classes that one line names
MAX_COLUMNS = 3  # columns that the name of a group lists
MAX_SHOWN_CLASSES = 6  # scores of classes in the first line of __repr__
ZERO_THRESHOLD = 1e-30  # LightGBM separates 0 by a threshold of 1e-35
MAX_DAYS = 1e6  # from 1970, within the calendar
SMALL_CHANGE = 1e-3  # of a logit: below it the slope of the sigmoid is computed without the difference of two probabilities
ROUNDING_ERROR = 1e-9  # relative to the largest effect: a smaller remainder belongs to that effect
NODES, NODE_WEIGHTS = (values / 2 for values in np.polynomial.legendre.leggauss(8))  # on (-1/2, 1/2)
PANEL_LOGITS, MAX_PANELS = 2.0, 1000  # change of logits per panel of the integral


@dataclass(frozen=True)
class Effect(Result):
    """What one feature, or several together, added to a prediction; the effects on a class add up to its change."""

    name: str  # "region=harbour", "p=0.1" for the score itself, or "rest (4 more)"
    features: tuple[str, ...]  # the columns; empty for the rest
    change: float  # of the prediction: 0.031 are 3.1 points of a probability
    output: str = ""  # the class; empty for a single prediction


class EffectSums:
    """Sums of changes on the scale of the link, per set of columns that caused them and per output.

    Columns are positions: features in the order of the schema, followed by the prediction columns.
    """

    def __init__(self, schema: Schema, row: Sequence[float], prediction: Sequence[float]) -> None:
        self.schema, self._features = schema, len(schema.features)
        self._outputs = max(len(schema.prediction), 1)
        self._values = [*row, *prediction]
        names = {name: self._features + output for output, name in enumerate(schema.prediction)}
        # A prediction that is also a feature is one column.
        self._same = {at: names[own.name] for at, own in enumerate(schema.features) if own.name in names}
        self._sums: dict[tuple[int, ...], FloatArray] = defaultdict(lambda: np.zeros(self._outputs))

    def add(self, columns: Sequence[int], change: float, output: int = 0) -> None:
        """Add a change that is due to all ``columns`` together; without columns it is due to the score of the output."""
        places = {self._same.get(column, column) for column in columns} or {self._features + output}
        self._sums[tuple(sorted(places))][output] += change

    def add_scores(self, changes: Sequence[float] | FloatArray) -> None:
        """Add the change of every output that is due to its own score.

        Of several classes the mean is subtracted: a constant added to all logits changes no probability, and the effects of
        the scores would depend on it.
        """
        centre = float(np.mean(changes)) if len(changes) > 1 else 0.0
        for output, change in enumerate(changes):
            self.add((), float(change) - centre, output)

    def add_tree(self, shares: Sequence[tuple[int, float]], change: float, output: int = 0) -> None:
        """Add the change by a tree, divided by the ``shares`` of the features it tests; see `TreeWalker.divide`."""
        if not shares:
            self.add((), change, output)
        for column, share in shares:
            self.add((column,), change * share, output)

    def effects(self, link: str, before: Sequence[float], after: Sequence[float]) -> tuple[Effect, ...]:
        """Return the effects on the prediction, those of the most influential columns first; zeros are left out."""
        start, end = np.array(before, np.float64), np.array(after, np.float64)
        columns = list(self._sums)
        changes = _to_predictions(
            link, start, end, np.array([self._sums[own] for own in columns]).reshape(-1, self._outputs)
        )
        table = dict(zip(columns, changes, strict=True))
        for output, remainder in enumerate(end - start - changes.sum(axis=0)):
            sizes = {own: abs(effect[output]) for own, effect in table.items()}
            largest = max(sizes, key=sizes.__getitem__, default=())
            if not largest or abs(remainder) > ROUNDING_ERROR * sizes[largest]:
                largest = (self._features + output,)
            if remainder:
                table.setdefault(largest, np.zeros(self._outputs))[output] += remainder
        labels = self.schema.classes or ("",)
        named = [(self.describe(own), self._names(own), effect) for own, effect in table.items() if effect.any()]
        named.sort(key=lambda item: (-float(np.abs(item[2]).sum()), item[0]))
        return tuple(
            Effect(text, names, float(change), label)
            for text, names, effect in named
            for label, change in zip(labels, effect, strict=True)
        )

    def describe(self, columns: Sequence[int]) -> str:
        """Return the columns with their values in the row, as "country=BR & age=31"."""
        texts = [self._describe_column(column) for column in columns[:MAX_COLUMNS]]
        if len(columns) > MAX_COLUMNS:
            texts.append(f"{len(columns) - MAX_COLUMNS:,} more")
        return " & ".join(texts)

    def _describe_column(self, column: int) -> str:
        if column < self._features:
            return value_text(self.schema.features[column], self._values[column])
        if not self.schema.prediction:
            return "all rows"
        return f"{self.schema.prediction[column - self._features]}={self._values[column]:.6g}"

    def _names(self, columns: Sequence[int]) -> tuple[str, ...]:
        names = [*(feature.name for feature in self.schema.features), *self.schema.prediction]
        return tuple(names[column] for column in columns if column < len(names))


def _to_predictions(link: str, before: FloatArray, after: FloatArray, sums: FloatArray) -> FloatArray:
    """Convert ``sums``, (sets, outputs), of changes on the scale of a link to changes of predictions; see the module."""
    if link == "identity" or not len(sums):
        return sums
    start = apply_link(before[None], link)[0] if link == "softmax" else apply_link(before, link)[0]
    total = sums.sum(axis=0)
    if link == "logit":
        change = float(total[0])
        if abs(change) > SMALL_CHANGE:
            return np.asarray(sums * ((after - before) / change))
        powers = np.exp(-np.abs(start[0] + change * np.array([0.0, 0.5, 1.0])))  # Simpson's rule
        points = powers / (1 + powers)  # or 1 minus it, which has the same slope
        return np.asarray(sums * float(np.average(points * (1 - points), weights=[1, 4, 1])))
    panels = min(int(np.ptp(total) / PANEL_LOGITS) + 1, MAX_PANELS)
    times = ((np.arange(panels)[:, None] + 0.5 + NODES) / panels).ravel()
    p = softmax(start + times[:, None] * total)
    weighted = p * np.tile(NODE_WEIGHTS / panels, panels)[:, None]
    return np.asarray(sums * weighted.sum(axis=0) - (p @ sums.T).T @ weighted)


@dataclass(frozen=True)
class Contribution(Result):
    """What one set of conditions added to the logit of a prediction, or to the prediction itself."""

    condition: str  # "country=BR & 0.1 < prediction <= 0.3", or the rescaling
    change: float  # of the logit or of the prediction, by the scale of the explanation
    output: str = ""  # the class that it was added to; empty for a single prediction


@dataclass(frozen=True)
class RowExplanation(Result):
    """The change of one prediction: what each feature added to it, and, in detail, each condition that the row meets.

    The ``effects`` on a prediction add up to ``after - before``. The ``contributions`` to it, every leaf, table cell or
    patch, add up to ``link_change``, on the given ``scale``. Printed, or converted to a dict or frame, an explanation lists
    the five largest effects and the sum of the rest; with ``details`` it lists the contributions.
    """

    before: float | tuple[float, ...]  # the prediction; one per class
    after: float | tuple[float, ...]
    effects: tuple[Effect, ...]  # all of them, those of the most influential columns first; per class for several classes
    link_change: float | tuple[float, ...]  # on the ``scale`` on which contributions add up
    contributions: tuple[Contribution, ...]  # largest first; patches and rounds in their order
    scale: str = "logit"  # with 1e-6 and 1 - 1e-6 for exact 0 and 1; or "prediction"
    unit: str = "points"  # in which effects are printed: hundredths of a probability; or "change", of a real prediction
    details: bool = False  # whether contributions are listed instead of effects

    derived = ("change",)

    @property
    def change(self) -> float | tuple[float, ...]:
        """The change of the prediction, one per class, which the effects add up to: ``after - before``."""
        if isinstance(self.before, tuple) and isinstance(self.after, tuple):
            return tuple(after - before for before, after in zip(self.before, self.after, strict=True))
        return self.after - self.before  # type: ignore[operator]

    def name_unknown(self, texts: Mapping[str, str]) -> RowExplanation:
        """Return the explanation with other texts of conditions in the names of effects, such as of unseen levels."""
        if not texts:
            return self
        named = [" & ".join(texts.get(part, part) for part in effect.name.split(" & ")) for effect in self.effects]
        effects = tuple(replace(effect, name=name) for effect, name in zip(self.effects, named, strict=True))
        return replace(self, effects=effects)

    def largest(self, count: int = LARGEST) -> tuple[Effect, ...]:
        """Return the effects of the ``count`` most influential sets of columns, and the sum of all others as the rest."""
        sets = list(dict.fromkeys(effect.name for effect in self.effects))
        shown = set(sets[:count])
        kept = [effect for effect in self.effects if effect.name in shown]
        if len(sets) > count:
            text = f"rest ({len(sets) - count:,} more)"
            others: dict[str, list[float]] = {}
            for effect in self.effects:
                if effect.name not in shown:
                    others.setdefault(effect.output, []).append(effect.change)
            kept += [Effect(text, (), math.fsum(changes), output) for output, changes in others.items()]
        return tuple(kept)

    def to_frame(self, like: Any = None) -> Any:
        """Return one row per effect (columns ``feature``, ``output``, ``change``), as a frame of the library of ``like``.

        Without ``like`` it is a dict of arrays. With ``details`` there is one row per contribution (``condition``).
        """
        terms: list[tuple[str, str, float]]
        if self.details:
            terms = [(term.condition, term.output, term.change) for term in self.contributions]
        else:
            terms = [(effect.name, effect.output, effect.change) for effect in self.largest()]
        names, outputs, changes = zip(*terms, strict=True) if terms else ((), (), ())
        columns = {"output": np.array(outputs, object), "change": np.array(changes, np.float64)}
        return frame_like({"condition" if self.details else "feature": np.array(names, object), **columns}, like)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that JSON can represent: the largest effects; with ``details`` the contributions, too.

        ``link_change`` and ``scale``, which are about contributions, are there with ``details`` only.
        """
        plain = super().to_dict() | {"effects": [effect.to_dict() for effect in self.largest()]}
        if not self.details:
            for name in ("contributions", "link_change", "scale"):
                del plain[name]
        return plain

    def lines(self) -> list[tuple[str, str, str]]:
        """Return (condition, classes, change) per contribution, as texts; classes with equal changes share a line."""
        classes: dict[tuple[str, str], list[str]] = defaultdict(list)
        for term in self.contributions:
            classes[term.condition, f"{term.change:+.4f}"].append(term.output)
        lines = []
        for (condition, change), names in classes.items():
            more = f" and {len(names) - MAX_CLASSES:,} more" if len(names) > MAX_CLASSES else ""
            lines.append((condition, ", ".join(names[:MAX_CLASSES]) + more, change))
        return lines

    def table(self, count: int = LARGEST) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Return the largest effects as texts: headings, and a row per set of columns with its change per class.

        Of several classes the three are shown whose predictions changed most, and the sum over all others, so that changes
        of probabilities in a row add up to 0; the last row has the whole changes.
        """
        effects = self.largest(count)
        changes = {effect.output: 0.0 for effect in effects}
        by_name: dict[str, dict[str, float]] = defaultdict(dict)
        for effect in effects:
            by_name[effect.name][effect.output] = effect.change
            changes[effect.output] += effect.change
        several = isinstance(self.before, tuple)
        if several:
            by_name["all together"] = changes
        shown = sorted(changes, key=lambda output: -abs(changes[output]))[:MAX_CLASSES]
        shown = [output for output in changes if output in shown]  # in the order of the schema
        if others := [output for output in changes if output not in shown]:
            rest = f"{len(others):,} other class{'' if len(others) == 1 else 'es'}"
            for own in by_name.values():
                own[rest] = math.fsum(own.get(output, 0.0) for output in others)
            shown.append(rest)
        write = change_format([own[output] for own in by_name.values() for output in shown], self.unit)
        rows = [(name, *(write(own[output]) for output in shown)) for name, own in by_name.items()]
        if not several:
            return ("due to", self.unit), rows
        return ("due to", *(f"{output} ({self.unit})" for output in shown)), rows

    def headline(self) -> str:
        """Return the prediction before and after as text: "0.1 -> 0.131: +3.10 points"."""
        if isinstance(self.before, tuple) and isinstance(self.after, tuple):
            if len(self.before) > MAX_SHOWN_CLASSES:
                top = [max(range(len(values)), key=values.__getitem__) for values in (self.before, self.after)]
                scores = (f"{self.before[top[0]]:.4g}", f"{self.after[top[1]]:.4g}")
                return f"{len(self.before):,} classes: highest score {scores[0]} -> {scores[1]}"
            before, after = (", ".join(f"{value:.4g}" for value in values) for values in (self.before, self.after))
            return f"({before}) -> ({after})"
        assert not isinstance(self.after, tuple)
        assert not isinstance(self.before, tuple)
        text = f"{self.before:.6g} -> {self.after:.6g}"
        if self.details:
            assert not isinstance(self.link_change, tuple)
            return f"{text} (change of the {self.scale} {self.link_change:+.4f})"
        if not self.effects:
            return text
        change = self.after - self.before
        return f"{text}: {change_format([change], self.unit)(change)}{' points' if self.unit == 'points' else ''}"

    def __repr__(self) -> str:
        if self.details:
            lines = [f"  {change}  {names + ': ' if names else ''}{condition}" for condition, names, change in self.lines()]
        else:
            lines = align(*self.table()) if self.effects else []
        return "\n".join([self.headline(), *lines])

    def _repr_html_(self) -> str:
        if self.details:
            return html_table(self.headline(), ("contribution", "class", "change"), self.lines())
        return html_table(self.headline(), *self.table())


def change_format(changes: Sequence[float], unit: str) -> Callable[[float], str]:
    """Return a function that writes changes with sign and equally many decimals, at least three digits of the largest.

    In "points", a probability is multiplied by 100.
    """
    factor = 100.0 if unit == "points" else 1.0
    largest = max((factor * abs(change) for change in changes), default=0.0)
    decimals = 2 if not 0 < largest < math.inf else min(max(2 - math.floor(math.log10(largest)), 0), 12)
    if unit == "points":
        decimals = max(decimals, 2)
    return lambda change: f"{factor * change:+,.{decimals}f}"


def align(headings: Sequence[str], rows: Sequence[Sequence[str]], indent: int = 2) -> list[str]:
    """Return a table as lines of text: the first column is aligned to the left, all others to the right."""
    table = [headings, *rows]
    widths = [max(len(row[at]) for row in table) for at in range(len(headings))]
    return [
        " " * indent
        + "  ".join(f"{cell:{'>' if at else '<'}{width}}" for at, (cell, width) in enumerate(zip(row, widths, strict=True)))
        for row in table
    ]


def explain_change(
    link: str,
    before: Sequence[float],
    after: Sequence[float] | FloatArray,
    contributions: Sequence[Contribution],
    sums: EffectSums,
    change: Sequence[float] | None = None,
    *,
    in_order: bool = False,
) -> RowExplanation:
    """Explain the change from ``before`` to ``after``; contributions are sorted by size unless they are ``in_order``."""
    if change is None:
        start, end = (apply_link(np.array([values], np.float64), link)[0] for values in (before, after))
        change = (end - start).tolist()
    if not in_order:
        contributions = sorted(contributions, key=lambda term: (-abs(term.change), term.output, term.condition))
    scale = "prediction" if link == "identity" else "logit"
    unit = "change" if sums.schema.task == "regression" else "points"
    old, new = [float(value) for value in before], [float(value) for value in after]
    effects = sums.effects(link, old, new)
    if len(new) == 1:
        return RowExplanation(old[0], new[0], effects, float(change[0]), tuple(contributions), scale, unit)
    changes = tuple(map(float, change))
    return RowExplanation(tuple(old), tuple(new), effects, changes, tuple(contributions), scale, unit)


class ConditionSum:
    """Sums of leaf values of trees that test the same features, per output; intervals of these features per cascade."""

    def __init__(self) -> None:
        self.bounds: dict[tuple[int, int], tuple[float, float]] = {}
        self.sums: dict[int, float] = defaultdict(float)

    def narrow(self, path: Sequence[tuple[int, float, float]], cascade: int = 0) -> None:
        """Intersect the intervals of the model ``cascade`` (an index) with those of ``path``, (feature, low, high) each."""
        for feature, low, high in path:
            before = self.bounds.get((feature, cascade), (-np.inf, np.inf))
            self.bounds[feature, cascade] = (max(before[0], low), min(before[1], high))

    def interval(self, feature: int, *, own: bool = False) -> tuple[float, float]:
        """Return the intersection of a feature's intervals over all cascades; the union if each tests its ``own`` score."""
        intervals = [bounds for (tested, _), bounds in self.bounds.items() if tested == feature]
        lows, highs = zip(*intervals, strict=True)
        return (min(lows), max(highs)) if own else (max(lows), min(highs))

    def describe(
        self, schema: Schema, row: Sequence[float], names: Sequence[int], link: str = "", number: int = 0, scores: Any = ()
    ) -> str:
        """Return the conditions a row meets, as text: on features ``names``, or its ``scores`` after round ``number``."""
        texts = []
        for place in names:
            output = place - len(row)
            if output < 0:
                texts.append(_feature_text(schema.features[place], row[place], self.interval(place)))
            else:
                interval, score = self.interval(place, own=number > 0), float(scores[output])
                texts.append(_score_text(schema.prediction[output], interval, score, link, number))
        return " & ".join(texts)


def explain_rounds(before: Sequence[float], scores: Sequence[float], sums: EffectSums) -> RowExplanation:
    """Explain a score by round; ``scores`` are those after 0, 1, ... rounds, ``before`` is the prediction or empty."""
    start = float(before[0]) if before else scores[0]
    contributions = [Contribution(f"round {at}", scores[at] - scores[at - 1]) for at in range(1, len(scores))]
    if scores[0] != start:
        contributions.append(Contribution(ROUNDING, scores[0] - start))
    kept = [term for term in contributions if term.change]
    return explain_change("identity", [start], [scores[-1]], kept, sums, in_order=True)


class TreeWalker:
    """Follows rows down the trees of a forest, whose arrays are lists here: single elements of these are fast to read."""

    def __init__(self, forest: Forest) -> None:
        self._feature, self._threshold = forest.feature.tolist(), forest.threshold.tolist()
        self._left, self._right, self._value = forest.left.tolist(), forest.right.tolist(), forest.value.tolist()
        self._missing_left, self._words = forest.missing_left.tolist(), forest.words.tolist()
        self._words_at, self._words_in = forest.words_at.tolist(), forest.words_in.tolist()
        shares = forest.left_share.astype(np.float64) / 255 if len(forest.left_share) else np.full(len(forest.feature), 0.5)
        self._left_share = shares.tolist()  # of the training rows of a node

    def follow(self, node: int, row: Sequence[float]) -> tuple[list[tuple[int, float, float]], float]:
        """Follow a row down the tree with root ``node``; return (feature, low, high) per branch, and the leaf value."""
        path = []
        while node >= 0:
            value, threshold, left = row[self._feature[node]], self._threshold[node], self._goes_left(node, row)
            low, high = -math.inf, math.inf
            if self._words_at[node] < 0 and not math.isnan(value):
                low, high = (low, threshold) if left else (threshold, high)
            path.append((self._feature[node], low, high))
            node = self._left[node] if left else self._right[node]
        return path, self._value[~node]

    def divide(self, node: int, row: Sequence[float]) -> list[tuple[int, float]]:
        """Return the share of each feature that the path of a row tests in the value of its leaf; shares add up to 1.

        A feature matters by how much the value would change if its own splits were undone: if the row followed both
        branches of each of them, and their mean were taken, weighted by the training rows (equally if their number is not
        known). Shares are proportional to these differences, and equal if all are 0.
        """
        path: list[tuple[int, int, float]] = []  # node, and the branch not taken with its share of the rows
        while node >= 0:
            left, share = self._goes_left(node, row), self._left_share[node]
            path.append((node, self._right[node], 1 - share) if left else (node, self._left[node], share))
            node = self._left[node] if left else self._right[node]
        value = self._value[~node]
        without: dict[int, float] = {}  # the value without the splits of a feature
        for at, other, share in reversed(path):
            feature = self._feature[at]
            without[feature] = (1 - share) * without.get(feature, value) + share * self._walk(other, row, feature)
        differences = {feature: abs(value - own) for feature, own in sorted(without.items())}
        total = math.fsum(differences.values())
        if not 0 < total < math.inf:
            return [(feature, 1 / len(differences)) for feature in differences]
        return [(feature, difference / total) for feature, difference in differences.items() if difference]

    def _walk(self, node: int, row: Sequence[float], both: int) -> float:
        """Return the value that a row reaches from ``node`` if it follows both branches of the splits of one feature."""
        while node >= 0:
            if self._feature[node] == both:
                left, right = (self._walk(branch, row, both) for branch in (self._left[node], self._right[node]))
                return float(self._left_share[node] * left + (1 - self._left_share[node]) * right)
            node = self._left[node] if self._goes_left(node, row) else self._right[node]
        return float(self._value[~node])

    def _goes_left(self, node: int, row: Sequence[float]) -> bool:
        value, start = row[self._feature[node]], self._words_at[node]
        if start >= 0:
            code = int(value) + 1 if value >= 0 else 0
            word = code >> 5
            return bool(word < self._words_in[node] and (self._words[start + word] >> (code & 31)) & 1 == 1)
        return bool(self._missing_left[node] if math.isnan(value) else value <= self._threshold[node])


def _feature_text(feature: Feature, value: float, bounds: tuple[float, float]) -> str:
    """Return the condition that the ``value`` of a feature meets, as "country=BR", or as "age <= 30" by ``bounds``."""
    if feature.kind == "categorical" and 0 <= value < len(feature.levels):
        return f"{feature.name}={feature.levels[int(value)]}"
    if feature.kind == "categorical" or np.isnan(value):
        return f"{feature.name} is missing"
    return interval_text(feature.name, *bounds, value, DATES if feature.kind == "date" else NUMBERS)


def value_text(feature: Feature, value: float) -> str:
    """Return a feature and its value in one row, as "country=BR"."""
    if math.isnan(value) or (feature.kind == "categorical" and not 0 <= value < len(feature.levels)):
        return f"{feature.name} is missing"
    if feature.kind == "categorical":
        return f"{feature.name}={feature.levels[int(value)]}"
    if feature.kind == "date" and abs(value) < MAX_DAYS:
        return f"{feature.name}={np.datetime64(math.floor(value), 'D')}"
    return f"{feature.name}={value:.6g}"


def _score_text(name: str, bounds: tuple[float, float], value: float, link: str, number: int) -> str:
    """Return the condition on the score after round ``number`` (0: prediction); ``bounds`` are on the scale of ``link``."""
    after = f" after round {number}" if number else ""
    if number and link == "softmax":
        return interval_text(f"log score of {name}{after}", *bounds, value, SCORES)  # normalised only at the end
    inverse: dict[str, Callable[[float], float]] = {"identity": float, "logit": plain(expit), "softmax": np.exp}
    low, high = (float(inverse[link](bound)) if np.isfinite(bound) else bound for bound in bounds)
    return interval_text(name + after, low, high, plain(expit)(value) if number and link == "logit" else value, SCORES)


def _write_number(bound: float, digits: int) -> tuple[float, str]:
    short = 0.0 if abs(bound) < ZERO_THRESHOLD else float(f"{bound:.{digits}g}")
    return short, format_number(short)


def _write_date(bound: float, unit: str, per_day: int) -> tuple[float, str]:
    if abs(bound) > 1e6:
        return bound, f"day {format_number(bound)}"  # beyond the calendar
    count = int(np.floor(bound * per_day))
    return count / per_day, str(np.array(count).astype(f"datetime64[{unit}]"))


SCORES = tuple(partial(_write_number, digits=digits) for digits in (4, 6, 9, 17))
NUMBERS = SCORES[1:]
DATES = tuple(
    partial(_write_date, unit=unit, per_day=count) for unit, count in (("D", 1), ("s", 86_400), ("us", 86_400 * 10**6))
)


def interval_text(name: str, low: float, high: float, value: float, formats: Sequence[BoundFormat]) -> str:
    """Return a condition on a number, as "18 < age <= 30.5", with as few digits as keep it true for the value."""
    if not low < value <= high:
        return name  # folds test scores of their own, and their mean may be outside
    below = above = ""
    for write in formats:
        (least, below), (most, above) = (write(x) if np.isfinite(x) else (x, "") for x in (low, high))
        if least < value <= most:
            break
    if low == -np.inf:
        return f"{name} <= {above}" if high < np.inf else name
    return f"{name} > {below}" if high == np.inf else f"{below} < {name} <= {above}"
