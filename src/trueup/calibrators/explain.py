"""Explanations of models: the segments whose scores a correction raised or lowered, and by how much."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.calibrators.row_explanation import align, change_format
from trueup.data.bins import SegmentColumn, segment_column
from trueup.data.columns import frame_like
from trueup.data.values import format_rows
from trueup.kernels.sorting import digitize, order_statistics
from trueup.metrics.result import html_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trueup._types import FloatArray, Int32Array, IntArray
    from trueup.data.table import Feature, Table
    from trueup.kernels.trees import Forest

MAX_SETS = 40  # sets of features that are searched, the most important first
MAX_SEARCH_ROWS = 20_000  # a sample in which corrections are searched; their figures are of all rows
MAX_CORRECTIONS = 20
MAX_SEGMENT_WIDTH = 48  # characters of a segment in __repr__
BANDS = 5  # of the base score
UNUSED = "columns that the correction does not use"
MIN_ROWS = 30
RARE_ROWS = 50  # levels with fewer are pooled; the default min_rows of an audit
MIN_SHARE = 0.01  # of all squared changes, that a correction must explain
COMPLEXITY_FACTOR = 0.8  # the gain of a segment counts for this much less per condition


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

    @property
    def change(self) -> float:
        """Return by how much the mean score was raised (above 0) or lowered (below 0)."""
        return self.after - self.before


@dataclass(frozen=True)
class Explanation:
    """The corrections on the training rows, sorted by rows times the change of the mean score, largest first.

    `raised` and `lowered` are the two parts. Printed changes of probabilities are in points, hundredths of a probability.
    """

    corrections: tuple[Correction, ...]
    rows: int  # the training rows; or a random sample of 100,000 of them, if they need not fit in memory
    mean_change: float  # mean absolute change of a score
    explained_share: float  # of the squared changes, by the listed segments
    note: str = ""  # one sentence, of corrections that are not learned from segments: what was assumed or estimated
    excluded: tuple[Correction, ...] = ()  # levels of excluded columns, which the correction does not use
    unit: str = "points"  # in which changes are printed; or "change", of a real prediction
    rows_raised: int = 0  # scores that were raised, and by how much on average; of several classes, all their scores
    mean_raise: float = 0.0
    rows_lowered: int = 0
    mean_lowering: float = 0.0  # above 0

    @property
    def raised(self) -> tuple[Correction, ...]:
        """Return the corrections that raise the mean score of their segment, the largest first."""
        return tuple(correction for correction in self.corrections if correction.change > 0)

    @property
    def lowered(self) -> tuple[Correction, ...]:
        """Return the corrections that do not raise it, the largest first."""
        return tuple(correction for correction in self.corrections if not correction.change > 0)

    def to_frame(self, like: Any = None) -> Any:
        """Return one row per correction, as a frame of the library of ``like``; a dict of arrays without it."""
        names = ("change", "low", "high", "rows", "share", "before", "after", "observed")
        segments = np.array([correction.segment for correction in self.corrections], object)
        columns = {name: np.array([getattr(correction, name) for correction in self.corrections]) for name in names}
        return frame_like({"segment": segments, **columns}, like)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields, and the change of each segment, as plain data under the names that model files have."""
        data = {name: value for name, value in vars(self).items() if name not in ("mean_change", "explained_share")}
        data |= {"moved": self.mean_change, "accounted": self.explained_share}
        for name in ("corrections", "excluded"):
            data[name] = [asdict(item) | {"change": item.change} for item in getattr(self, name)]
        return {name: value for name, value in data.items() if value or name not in ("note", "excluded")}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], unit: str = "points") -> Explanation:
        """Restore an explanation from what `to_dict` returned; ``unit`` is that of files that state none."""
        names = {"moved": "mean_change", "accounted": "explained_share"}
        fields = {"unit": unit} | {names.get(name, name): value for name, value in data.items()}
        for name in ("corrections", "excluded"):
            items = [{key: value for key, value in item.items() if key != "change"} for item in data.get(name, ())]
            fields[name] = tuple(Correction(**item) for item in items)
        return cls(**fields)

    def headline(self) -> str:
        """Return how many scores were raised and lowered, and by how much on average, as a sentence."""
        if not self.rows:
            return "the training rows are not known"
        if not self.corrections and not self.mean_change:
            return "nothing was corrected"
        unit = " points" if self.unit == "points" else ""
        means = (self.mean_raise, self.mean_lowering) if self.rows_raised or self.rows_lowered else (self.mean_change,)
        write = change_format(means, self.unit)
        texts = [f"{write(mean)[1:]}{unit}" for mean in means]
        if len(texts) == 1:  # a file of an earlier version
            return f"scores changed by {texts[0]} on average over {format_rows(self.rows)}"
        return (
            f"{self.rows_raised:,} scores raised by {texts[0]} on average, {self.rows_lowered:,} lowered by {texts[1]} "
            f"({format_rows(self.rows)})"
        )

    def coverage(self) -> str:
        """Return how much of all changes the listed corrections explain, as a sentence; empty if there are none."""
        count = len(self.corrections)
        largest = "the largest correction explains" if count == 1 else f"the {count} largest corrections explain"
        return f"{largest} {100 * self.explained_share:.0f}% of the squared changes" if count else ""

    def blocks(self, count: int = MAX_CORRECTIONS) -> list[tuple[str, tuple[str, ...], list[tuple[str, ...]]]]:
        """Return the ``count`` largest corrections as tables: title, headings and rows; those raised first, then lowered.

        Levels of columns that the correction does not use follow as a table of their own.
        """
        chosen = self.corrections[:count]
        raised = [item for item in chosen if item.change > 0]
        lowered = [item for item in chosen if not item.change > 0]
        write = change_format([item.change for item in (*chosen, *self.excluded[:count])], self.unit)
        named = {"scores raised": raised, "scores lowered": lowered, UNUSED: list(self.excluded[:count])}
        heads = ("segment", self.unit, "scores", "rows", "before", "after", "observed")
        return [
            (
                title,
                heads,
                [
                    (item.segment, write(item.change), f"{item.low:.4g} to {item.high:.4g}", f"{item.rows:,}",
                     f"{item.before:.4g}", f"{item.after:.4g}", f"{item.observed:.4g}")
                    for item in items
                ],
            )
            for title, items in named.items()
            if items
        ]  # fmt: skip

    def __repr__(self) -> str:
        lines = [f"Explanation: {self.headline()}"]
        if self.note:
            lines.append(f"  {self.note}")
        lines += [f"  {self.coverage()}"] if self.corrections else []
        blocks = self.blocks()
        # All tables share the widths of their columns.
        tables = [(shorten(name, MAX_SEGMENT_WIDTH), *cells) for _, _, rows in blocks for name, *cells in rows]
        aligned = iter(align(blocks[0][1], tables) if blocks else [])
        headings = next(aligned, "")
        for title, _, rows in blocks:
            lines += [f"{title}:", headings, *itertools.islice(aligned, len(rows))]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        title = f"Explanation: {self.headline()}"
        title += f"; {self.note}" if self.note else ""
        title += f"; {self.coverage()}" if self.corrections else ""
        blocks = self.blocks()
        if not blocks:
            return html_table(title, ("segment",), [])
        return html_table(title, (), []) + "".join(html_table(*block) for block in blocks)


def shorten(text: str, width: int) -> str:
    """Cut a text to a width, with an ellipsis."""
    return text if len(text) <= width else f"{text[: width - 1]}…"


def find_corrections(
    table: Table, tested: list[tuple[int, ...]], before: FloatArray, after: FloatArray, seed: int = 0
) -> Explanation:
    """Find greedily the segments (of feature sets ``tested``; all scores or a fifth) that explain most squared change."""
    targets = _targets(table, before, after)
    pursuit = _MatchingPursuit(table, [(), *tested[:MAX_SETS]], seed)
    corrections: list[tuple[Correction, float]] = []
    total = 0.0
    for label, p, q, y in targets:
        listed, squares = pursuit.run(label, p, q, y)
        corrections += listed
        total += squares
    corrections.sort(key=lambda item: (-item[0].share * abs(item[0].after - item[0].before), item[0].segment, item[0].low))
    corrections = corrections[:MAX_CORRECTIONS]
    explained = sum(gain for _, gain in corrections) / total if total > 0 else 0.0
    found = tuple(correction for correction, _ in corrections)
    return replace(summarise_changes(table, before, after), corrections=found, explained_share=explained)


def summarise_changes(table: Table, before: FloatArray, after: FloatArray) -> Explanation:
    """Return an explanation without segments: how many scores were raised and lowered, and by how much on average."""
    change, w = after - before, np.ones(len(table)) if table.weight is None else table.weight
    weights = w if change.ndim == 1 else np.repeat(w[:, None], change.shape[1], axis=1)
    raised, lowered = change > 0, change < 0
    means = [
        float(np.average(np.abs(change[own]), weights=weights[own])) if own.any() else 0.0 for own in (raised, lowered)
    ]
    return Explanation(
        (), len(table), float(np.average(np.abs(change), weights=weights)), 0.0,
        unit="change" if table.schema.task == "regression" else "points",
        rows_raised=int(raised.sum()), mean_raise=means[0], rows_lowered=int(lowered.sum()), mean_lowering=means[1],
    )  # fmt: skip


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


def _pool_rare_levels(table: Table, feature: Feature) -> SegmentColumn:
    """Divide a feature into segments; levels of a category with fewer than RARE_ROWS rows are one, as in audits."""
    column = segment_column(table, feature)
    counts = np.bincount(column.codes, minlength=len(column.labels))
    rare = (counts > 0) & (counts < RARE_ROWS)
    if feature.kind != "categorical" or rare.sum() < 2:
        return column
    label = f"{feature.name}=({int(rare.sum()):,} rare levels)"
    codes = np.where(rare[column.codes], np.int32(len(counts)), column.codes)
    return replace(column, codes=codes, labels=(*column.labels, label))


class _MatchingPursuit:
    """Greedy explanation of changes by segments and score bands: matching pursuit (Mallat & Zhang 1993) over indicators."""

    def __init__(self, table: Table, sets: list[tuple[int, ...]], seed: int) -> None:
        self.sets, self.size, self.weight = sets, len(table), table.weight
        self.score_alone = len(sets) == 1  # then fifths of the scores are listed, not all of them beside their fifths
        used = sorted({feature for features in sets for feature in features})
        self.columns = {feature: _pool_rare_levels(table, table.schema.features[feature]) for feature in used}
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
        sums = [np.bincount(own, self.w * residual) for own in keys]
        corrections: dict[tuple[int, int], tuple[Correction, float]] = {}
        for _ in range(MAX_CORRECTIONS):
            which, key, gain, highest = 0, 0, 0.0, 0.0
            for number, own_sums in enumerate(sums):
                if self.score_alone and number == 1:
                    continue
                gains = np.where(enough[number], own_sums**2 / weights[number], 0.0)
                best = int(np.argmax(gains))
                conditions = len(self.sets[number // 2]) + (number % 2 == 0)
                if gains[best] * COMPLEXITY_FACTOR**conditions > highest:
                    highest = float(gains[best]) * COMPLEXITY_FACTOR**conditions
                    which, key, gain = number, best, float(gains[best])
            if gain < MIN_SHARE * total or gain <= 0:
                break
            inside = np.flatnonzero(keys[which] == key)
            mean = np.average(residual[inside], weights=self.w[inside])
            residual[inside] -= mean
            for own, own_sums in zip(keys, sums, strict=True):
                own_sums -= np.bincount(own[inside], self.w[inside] * mean, minlength=len(own_sums))
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
        rows = np.flatnonzero(inside)
        segment = " & ".join([label, *conditions] if label else conditions)
        if not segment:
            low, high = float(scores[0][rows].min()), float(scores[0][rows].max())
            segment = "all rows" if band == BANDS else f"scores {low:.4g} to {high:.4g}"
        w = np.ones(len(rows)) if self.weight is None else self.weight[rows]
        total = self.size if self.weight is None else float(self.weight.sum())
        mass, p = float(w.sum()), scores[0][rows]
        means = [float((values[rows] * w).sum() / mass) for values in scores]
        return Correction(segment, float(p.min()), float(p.max()), len(rows), mass / total, *means)


def tested_together(forests: Sequence[Forest], features: int) -> list[tuple[int, ...]]:
    """Return sets of 1 or 2 of the first ``features`` features on one path to a leaf, by descending sum of |leaf value|."""
    paths: Counter[frozenset[int]] = Counter()
    for forest in forests:
        feature, left, right = forest.feature.tolist(), forest.left.tolist(), forest.right.tolist()
        value = np.abs(forest.value).tolist()
        stack: list[tuple[int, frozenset[int]]] = [(root, frozenset()) for root in forest.root.tolist()]
        while stack:
            node, path = stack.pop()
            if node < 0:
                paths[path] += value[~node]
                continue
            longer = path if feature[node] >= features or feature[node] in path else path | {feature[node]}
            stack += [(left[node], longer), (right[node], longer)]
    size: Counter[tuple[int, ...]] = Counter()
    for path, total in paths.items():
        tested = sorted(path)
        for names in (*((name,) for name in tested), *itertools.combinations(tested, 2)):
            size[names] += total
    return [names for names, _ in sorted(size.items(), key=lambda item: (-item[1], item[0]))]
