"""Explanations: the segments that a model corrected, and the contributions to the change of one prediction."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.calibrators.stopping import apply_link
from trueup.data.bins import segment_column
from trueup.data.columns import format_number, frame_like
from trueup.kernels.sorting import digitize, order_statistics
from trueup.kernels.trees import Forest, expit
from trueup.metrics.result import Result, html_table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trueup._types import FloatArray, Int32Array, IntArray
    from trueup.data.table import Feature, Schema, Table

    BoundFormat = Callable[[float], tuple[float, str]]

MAX_SETS = 40  # sets of features that are searched, the most important first
MAX_SEARCH_ROWS = 20_000  # a sample in which corrections are searched; their figures are of all rows
MAX_CORRECTIONS = 20
MAX_SEGMENT_WIDTH = 48  # characters of a segment in __repr__
BANDS = 5  # of the base score
MIN_ROWS = 30
MIN_SHARE = 0.01  # of all squared changes, that a correction must explain
COMPLEXITY_FACTOR = 0.8  # the gain of a segment counts for this much less per condition

ROUNDING = "rounding to the grid"
CLIPPED = "clipping to {:g} and {:g}"
MAX_CLASSES = 3  # classes that one line names
ZERO_THRESHOLD = 1e-30  # LightGBM separates 0 by a threshold of 1e-35


@dataclass(frozen=True)
class Correction:
    """One segment that the model corrected, with its mean scores before and after, and its mean outcome."""

    segment: str  # "country=BR & device=tv", or "all rows"
    low: float  # the range of base scores, closed at both ends
    high: float
    rows: int
    share: float  # of the weight of all rows
    before: float  # mean score before and after the correction
    after: float
    observed: float  # mean outcome; for several classes, the share of the class


@dataclass(frozen=True)
class Explanation:
    """The corrections on the training rows, sorted by rows times the change of the mean score, largest first."""

    corrections: tuple[Correction, ...]
    rows: int  # the training rows; or a random sample of 100,000 of them, if they need not fit in memory
    mean_change: float  # mean absolute change of a score
    explained_share: float  # of the squared changes, by the listed segments
    note: str = ""  # one sentence, of corrections that are not learned from segments: what was assumed or estimated
    excluded: tuple[Correction, ...] = ()  # levels of excluded columns, which the correction does not use

    def to_frame(self, like: Any = None) -> Any:
        """Return one row per correction, as a frame of the library of ``like``; a dict of arrays without it."""
        names = ("low", "high", "rows", "share", "before", "after", "observed")
        segments = np.array([correction.segment for correction in self.corrections], object)
        columns = {name: np.array([getattr(correction, name) for correction in self.corrections]) for name in names}
        return frame_like({"segment": segments, **columns}, like)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain data, under the names that model files have for them."""
        corrections = [asdict(correction) for correction in self.corrections]
        data = {"corrections": corrections, "rows": self.rows, "moved": self.mean_change, "accounted": self.explained_share}
        if self.note:
            data["note"] = self.note
        if self.excluded:
            data["excluded"] = [asdict(level) for level in self.excluded]
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Explanation:
        """Restore an explanation from what `to_dict` returned."""
        names = {"moved": "mean_change", "accounted": "explained_share"}
        fields = {names.get(name, name): value for name, value in data.items()}
        for name in ("corrections", "excluded"):
            fields[name] = tuple(Correction(**item) for item in data.get(name, ()))
        return cls(**fields)

    def __repr__(self) -> str:
        lines = ["Explanation: nothing was corrected"]
        if self.corrections or self.mean_change:
            lines = [f"Explanation: scores changed by {self.mean_change:.3g} on average over {self.rows:,} rows"]
        if self.note:
            lines.append(f"  {self.note}")
        lines += _segment_lines(self.corrections)
        if self.excluded:
            lines += ["Columns that the correction does not use:", *_segment_lines(self.excluded)]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        heads = ("segment", "score", "rows", "before", "after", "observed")
        rows = [
            (
                c.segment,
                f"{c.low:.4g} to {c.high:.4g}",
                f"{c.rows:,}",
                f"{c.before:.4g}",
                f"{c.after:.4g}",
                f"{c.observed:.4g}",
            )
            for c in (*self.corrections, *self.excluded)
        ]
        title = repr(self).partition("\n")[0]
        return html_table(f"{title}; {self.note}" if self.note else title, heads, rows)


def _segment_lines(corrections: Sequence[Correction]) -> list[str]:
    """Return a table of segments as lines of text: a head, and a line per segment; nothing if there are none."""
    if not corrections:
        return []
    width = min(max(len(correction.segment) for correction in corrections), MAX_SEGMENT_WIDTH)
    lines = [f"  {'segment':<{width}}  {'score':^15}  {'rows':>9}  before   after    observed"]
    for c in corrections:
        band = f"{c.low:.4g} to {c.high:.4g}"
        means = f"{c.before:<7.4g}  {c.after:<7.4g}  {c.observed:.4g}"
        lines.append(f"  {shorten(c.segment, width):<{width}}  {band:^15}  {c.rows:>9,}  {means}")
    return lines


def shorten(text: str, width: int) -> str:
    """Cut a text to a width, with an ellipsis."""
    return text if len(text) <= width else f"{text[: width - 1]}…"


@dataclass(frozen=True)
class Contribution(Result):
    """What one set of conditions added to the logit of a prediction, or to the prediction itself."""

    condition: str  # "country=BR & 0.1 < prediction <= 0.3", or the rescaling
    change: float  # of the logit or of the prediction, by the scale of the explanation
    output: str = ""  # the class that it was added to; empty for a single prediction


@dataclass(frozen=True)
class RowExplanation(Result):
    """The change of one prediction; the contributions to each class add up to its ``change``, on the given ``scale``."""

    before: float | tuple[float, ...]  # the prediction; one per class
    after: float | tuple[float, ...]
    change: float | tuple[float, ...]  # on the scale on which contributions add up
    contributions: tuple[Contribution, ...]  # largest first; patches and rounds in their order
    scale: str = "logit"  # with 1e-6 and 1 - 1e-6 for exact 0 and 1; or "prediction"

    def to_frame(self, like: Any = None) -> Any:
        """Return one row per contribution, as a frame of the library of ``like``; a dict of arrays without it."""
        columns = {
            name: np.array([getattr(term, name) for term in self.contributions], object) for name in ("condition", "output")
        }
        return frame_like({**columns, "change": np.array([term.change for term in self.contributions])}, like)

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

    def __repr__(self) -> str:
        if isinstance(self.before, tuple) and isinstance(self.after, tuple):
            before, after = (", ".join(f"{value:.4g}" for value in values) for values in (self.before, self.after))
            header = f"({before}) -> ({after})"
        else:
            header = f"{self.before:.6g} -> {self.after:.6g} (change of the {self.scale} {self.change:+.4f})"
        lines = [f"  {change}  {names + ': ' if names else ''}{condition}" for condition, names, change in self.lines()]
        return "\n".join([header, *lines])

    def _repr_html_(self) -> str:
        return html_table(repr(self).partition("\n")[0], ("contribution", "class", "change"), self.lines())


def explain_change(
    link: str,
    before: Sequence[float],
    after: Sequence[float] | FloatArray,
    contributions: Sequence[Contribution],
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
    old, new = [float(value) for value in before], [float(value) for value in after]
    if len(new) == 1:
        return RowExplanation(old[0], new[0], float(change[0]), tuple(contributions), scale)
    return RowExplanation(tuple(old), tuple(new), tuple(map(float, change)), tuple(contributions), scale)


def find_corrections(
    table: Table, tested: list[tuple[int, ...]], before: FloatArray, after: FloatArray, seed: int = 0
) -> Explanation:
    """Find greedily the segments (of feature sets ``tested``; all scores or a fifth) that explain most squared change."""
    targets = _targets(table, before, after)
    pursuit = _MatchingPursuit(table, [(), *tested[:MAX_SETS]], seed)
    corrections: list[tuple[Correction, float]] = []
    total = mean_change = 0.0
    for label, p, q, y in targets:
        listed, squares = pursuit.run(label, p, q, y)
        corrections += listed
        total += squares
        mean_change += float(np.average(np.abs(q - p), weights=table.weight)) / len(targets)
    corrections.sort(key=lambda item: (-item[0].share * abs(item[0].after - item[0].before), item[0].segment, item[0].low))
    corrections = corrections[:MAX_CORRECTIONS]
    explained = sum(gain for _, gain in corrections) / total if total > 0 else 0.0
    return Explanation(tuple(correction for correction, _ in corrections), len(table), mean_change, explained)


def _targets(table: Table, before: FloatArray, after: FloatArray) -> list[tuple[str, FloatArray, FloatArray, FloatArray]]:
    """Return (label, scores before, scores after, outcomes) of a single prediction, or of each class."""
    if before.ndim == 1:
        return [("", before, after, table.y)]
    return [
        (f"class={name}", before[:, c], after[:, c], (table.y == c).astype(float))
        for c, name in enumerate(table.schema.classes)
    ]


def report_excluded(table: Table, before: FloatArray, after: FloatArray) -> tuple[Correction, ...]:
    """Return the mean scores before and after, and the mean outcome, on the levels of each excluded column.

    Levels of fewer than 30 rows are left out, and so are all but the 20 largest of a column.
    """
    reported: list[Correction] = []
    w = np.ones(len(table)) if table.weight is None else table.weight
    for feature, column in table.excluded.items():
        levels = segment_column(replace(table, columns={feature.name: column}), feature)
        counts = np.bincount(levels.codes, minlength=len(levels.labels))
        largest = np.argsort(-counts, kind="stable")[:MAX_CORRECTIONS]
        for level in np.sort(largest[counts[largest] >= MIN_ROWS]).tolist():
            rows = np.flatnonzero(levels.codes == level)
            own, mass = w[rows], float(w[rows].sum())
            for label, *scores in _targets(table, before, after):
                means = [float((values[rows] * own).sum() / mass) for values in scores]
                name, p = levels.labels[level], scores[0][rows]
                segment = f"{label} & {name}" if label else name
                reported.append(
                    Correction(segment, float(p.min()), float(p.max()), len(rows), mass / float(w.sum()), *means)
                )
    return tuple(reported)


class _MatchingPursuit:
    """Greedy explanation of changes by segments and score bands: matching pursuit (Mallat & Zhang 1993) over indicators."""

    def __init__(self, table: Table, sets: list[tuple[int, ...]], seed: int) -> None:
        self.sets, self.size, self.weight = sets, len(table), table.weight
        used = sorted({feature for features in sets for feature in features})
        self.columns = {feature: segment_column(table, table.schema.features[feature]) for feature in used}
        self.rows = np.arange(self.size)
        if self.size > MAX_SEARCH_ROWS:
            self.rows = np.sort(np.random.default_rng([seed, 7]).choice(self.size, MAX_SEARCH_ROWS, replace=False))
        self.w = np.ones(len(self.rows)) if self.weight is None else self.weight[self.rows]
        # Only combinations that occur are numbered: two columns of many levels have far more pairs than there are rows.
        self.numbered = [np.unique(self._codes(features)[self.rows], return_inverse=True) for features in sets]

    def _codes(self, features: tuple[int, ...]) -> IntArray:
        if not features:
            return np.zeros(self.size, np.int64)
        columns = [self.columns[feature] for feature in features]
        return np.ravel_multi_index([own.codes for own in columns], [len(own.labels) for own in columns])

    def run(self, label: str, p: FloatArray, q: FloatArray, y: FloatArray) -> tuple[list[tuple[Correction, float]], float]:
        """Return (correction, squared change explained) of scores ``p`` corrected to ``q``, and all squared change."""
        # Fifths of the scores, each closed on the right: the number of quantiles below each score.
        p, bands = np.ascontiguousarray(p), np.empty(len(p), np.int32)
        ranks = np.floor(np.arange(1, BANDS) / BANDS * (len(p) - 1)).astype(np.int64)
        digitize(p, np.nextafter(np.unique(order_statistics(p, ranks)), np.inf), bands)
        own_band = (bands[self.rows], np.full(len(self.rows), BANDS))  # one band; all scores
        keys = [place.ravel() * (BANDS + 1) + band for _, place in self.numbered for band in own_band]
        min_rows = max(MIN_ROWS * len(self.rows) / len(p), 3)
        enough = [np.bincount(own) >= min_rows for own in keys]
        weights = [np.maximum(np.bincount(own, self.w), 1e-300) for own in keys]
        residual = q[self.rows] - p[self.rows]
        total = float((self.w * residual**2).sum())
        corrections: dict[tuple[int, int], tuple[Correction, float]] = {}
        for _ in range(MAX_CORRECTIONS):
            which, key, gain, highest = 0, 0, 0.0, 0.0
            for number, own in enumerate(keys):
                sums = np.bincount(own, self.w * residual)
                gains = np.where(enough[number], sums**2 / weights[number], 0.0)
                best = int(np.argmax(gains))
                conditions = len(self.sets[number // 2]) + (number % 2 == 0)
                if gains[best] * COMPLEXITY_FACTOR**conditions > highest:
                    highest = float(gains[best]) * COMPLEXITY_FACTOR**conditions
                    which, key, gain = number, best, float(gains[best])
            if gain < MIN_SHARE * total or gain <= 0:
                break
            inside = keys[which] == key
            residual[inside] -= np.average(residual[inside], weights=self.w[inside])
            segment = which // 2, key
            before = corrections[segment][1] if segment in corrections else 0.0
            corrections[segment] = (self._correction(*segment, label, bands, (p, q, y)), before + gain)
        return list(corrections.values()), total

    def _correction(
        self, which: int, key: int, label: str, bands: Int32Array, scores: tuple[FloatArray, FloatArray, FloatArray]
    ) -> Correction:
        """Return the correction of ``key``, level and score band of features ``which``; ``scores``: (before, after, y)."""
        place, band = divmod(key, BANDS + 1)
        features, code = self.sets[which], int(self.numbered[which][0][place])
        inside = bands == band if band < BANDS else np.ones(self.size, bool)
        if features:
            inside &= self._codes(features) == code
        labels = [self.columns[feature].labels for feature in features]
        codes = np.unravel_index(code, [len(own) for own in labels]) if labels else ()
        conditions = [own[level] for own, level in zip(labels, codes, strict=True)]
        segment = " & ".join([label, *conditions] if label else conditions) or "all rows"
        rows = np.flatnonzero(inside)
        w = np.ones(len(rows)) if self.weight is None else self.weight[rows]
        total = self.size if self.weight is None else float(self.weight.sum())
        mass, p = float(w.sum()), scores[0][rows]
        means = [float((values[rows] * w).sum() / mass) for values in scores]
        return Correction(segment, float(p.min()), float(p.max()), len(rows), mass / total, *means)


def tested_together(forests: Sequence[Forest], features: int) -> list[tuple[int, ...]]:
    """Return sets of 1 or 2 of the first ``features`` features on one path to a leaf, by descending sum of |leaf value|."""
    size: Counter[tuple[int, ...]] = Counter()
    for forest in forests:
        feature, left, right = forest.feature.tolist(), forest.left.tolist(), forest.right.tolist()
        value = np.abs(forest.value).tolist()
        stack: list[tuple[int, frozenset[int]]] = [(root, frozenset()) for root in forest.root.tolist()]
        while stack:
            node, path = stack.pop()
            if node < 0:
                tested = sorted(path)
                for names in (*((name,) for name in tested), *itertools.combinations(tested, 2)):
                    size[names] += value[~node]
                continue
            longer = path if feature[node] >= features else path | {feature[node]}
            stack += [(left[node], longer), (right[node], longer)]
    return [names for names, _ in sorted(size.items(), key=lambda item: (-item[1], item[0]))]


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


def explain_rounds(before: Sequence[float], scores: Sequence[float]) -> RowExplanation:
    """Explain a score by round; ``scores`` are those after 0, 1, ... rounds, ``before`` is the prediction or empty."""
    start = float(before[0]) if before else scores[0]
    contributions = [Contribution(f"round {at}", scores[at] - scores[at - 1]) for at in range(1, len(scores))]
    if scores[0] != start:
        contributions.append(Contribution(ROUNDING, scores[0] - start))
    kept = [term for term in contributions if term.change]
    return explain_change("identity", [start], [scores[-1]], kept, in_order=True)


def follow_tree(forest: Forest, node: int, row: Sequence[float]) -> tuple[list[tuple[int, float, float]], float]:
    """Follow a row down the tree with root ``node``; return (feature, low, high) per branch taken, and the leaf value."""
    path = []
    while node >= 0:
        feature, start, low, high = int(forest.feature[node]), int(forest.words_at[node]), -np.inf, np.inf
        value, threshold = row[feature], float(forest.threshold[node])
        if start >= 0:
            code = int(value) + 1 if value >= 0 else 0
            word = code >> 5
            left = word < forest.words_in[node] and (int(forest.words[start + word]) >> (code & 31)) & 1 == 1
        elif np.isnan(value):
            left = bool(forest.missing_left[node])
        else:
            left = value <= threshold
            low, high = (low, threshold) if left else (threshold, high)
        path.append((feature, low, high))
        node = int(forest.left[node] if left else forest.right[node])
    return path, float(forest.value[~node])


def _feature_text(feature: Feature, value: float, bounds: tuple[float, float]) -> str:
    """Return the condition that the ``value`` of a feature meets, as "country=BR", or as "age <= 30" by ``bounds``."""
    if feature.kind == "categorical" and 0 <= value < len(feature.levels):
        return f"{feature.name}={feature.levels[int(value)]}"
    if feature.kind == "categorical" or np.isnan(value):
        return f"{feature.name} is missing"
    return interval_text(feature.name, *bounds, value, DATES if feature.kind == "date" else NUMBERS)


def _score_text(name: str, bounds: tuple[float, float], value: float, link: str, number: int) -> str:
    """Return the condition on the score after round ``number`` (0: prediction); ``bounds`` are on the scale of ``link``."""
    after = f" after round {number}" if number else ""
    if number and link == "softmax":
        return interval_text(f"log score of {name}{after}", *bounds, value, SCORES)  # normalised only at the end
    inverse: dict[str, Callable[[float], float]] = {"identity": float, "logit": expit, "softmax": np.exp}
    low, high = (float(inverse[link](bound)) if np.isfinite(bound) else bound for bound in bounds)
    return interval_text(name + after, low, high, expit(value) if number and link == "logit" else value, SCORES)


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
