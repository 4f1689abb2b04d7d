"""What a fix corrected: the segments and score bands it moved, and the parts of the change of one prediction."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.data.frame import frame_like
from trueup.data.segments import segment_column
from trueup.kernels.binning import digitize, order_statistics

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trueup._types import FloatArray, Int32Array, IntArray
    from trueup.calibrators.mcgrad.cascade import Cascade
    from trueup.data.segments import SegmentColumn
    from trueup.data.table import Table


MOST_SETS = 40  # sets of features that are tried, those the trees lean on most
MOST_ROWS = 20_000  # rows on which corrections are looked for; their figures are of all rows
MOST_CORRECTIONS = 20
BANDS = 5
LEAST_ROWS = 30
LEAST_SHARE = 0.01  # of all movement, that a correction must account for
SIMPLER = 0.8  # what a condition more must bring: that much less is enough for a segment with one condition fewer


@dataclass(frozen=True)
class Correction:
    """One segment that the fix moved.

    Attributes
    ----------
    segment : str
        "country=BR & device=tv", or "all rows".
    low, high : float
        The band of base scores, closed at both ends.
    rows : int
    share : float
        Of the weight of all rows.
    before, after, observed : float
        Mean score before and after the fix, and the mean outcome (the share of the class, for several classes).
    """

    segment: str
    low: float
    high: float
    rows: int
    share: float
    before: float
    after: float
    observed: float


@dataclass(frozen=True)
class Explanation:
    """What was corrected on the rows of the fit, largest first: by rows times the change of the mean score.

    Attributes
    ----------
    corrections : tuple of Correction
    rows : int
        On which these figures are: the rows of the fit, or 100,000 of them, drawn at random, where they need not fit in
        memory and are more than that.
    moved : float
        Mean absolute change of a score.
    accounted : float
        Share of the squared changes that the listed segments account for.
    """

    corrections: tuple[Correction, ...]
    rows: int
    moved: float
    accounted: float

    def to_frame(self, like: Any = None) -> Any:
        """Give one row a correction, in the library of ``like``; a dict of arrays without it."""
        names = ("segment", "low", "high", "rows", "share", "before", "after", "observed")
        found = {name: np.array([getattr(one, name) for one in self.corrections]) for name in names}
        return frame_like({**found, "segment": np.array([one.segment for one in self.corrections], object)}, like)

    def to_dict(self) -> dict[str, Any]:
        """Give everything as plain data."""
        return {**asdict(self), "corrections": [asdict(one) for one in self.corrections]}

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> Explanation:
        """Make it again from plain data."""
        return cls(**{**found, "corrections": tuple(Correction(**one) for one in found["corrections"])})

    def __repr__(self) -> str:
        if not self.corrections:
            return "Explanation: nothing was corrected"
        head = f"Explanation: scores moved by {self.moved:.3g} on average over {self.rows:,} rows"
        width = min(max(len(one.segment) for one in self.corrections), 48)
        lines = [head, f"  {'segment':<{width}}  {'score':^15}  {'rows':>9}  before   after    observed"]
        for one in self.corrections:
            text = one.segment if len(one.segment) <= width else f"{one.segment[: width - 1]}…"
            band = f"{one.low:.4g} to {one.high:.4g}"
            lines.append(
                f"  {text:<{width}}  {band:^15}  {one.rows:>9,}  {one.before:<7.4g}  {one.after:<7.4g}  {one.observed:.4g}"
            )
        return "\n".join(lines)


def tested_together(cascade: Cascade) -> list[tuple[int, ...]]:
    """List the sets of one or two features (the prediction aside) that trees test together, the weightiest first."""
    weight: Counter[tuple[int, ...]] = Counter()
    features = len(cascade.levels)
    for one in cascade.rounds:
        for forest in one.forests:
            feature, left, right = forest.feature.tolist(), forest.left.tolist(), forest.right.tolist()
            size = np.abs(forest.value).tolist()
            stack: list[tuple[int, frozenset[int]]] = [(root, frozenset()) for root in forest.root.tolist()]
            while stack:
                node, path = stack.pop()
                if node < 0:
                    for names in _up_to_two(sorted(path)):
                        weight[names] += size[~node]
                    continue
                here = path if feature[node] >= features else path | {feature[node]}
                stack += [(left[node], here), (right[node], here)]
    return [names for names, _ in sorted(weight.items(), key=lambda item: (-item[1], item[0]))]


def _up_to_two(path: list[int]) -> Iterator[tuple[int, ...]]:
    for at, a in enumerate(path):
        yield (a,)
        yield from ((a, b) for b in path[at + 1 :])


def find_corrections(
    table: Table, tested: list[tuple[int, ...]], before: FloatArray, after: FloatArray, seed: int = 0
) -> Explanation:
    """Find the segments that account for the change from one score to the other, one after the other.

    Candidates are the segments of an audit, for the sets of features that the map combines, each whole and by fifths of
    the base score. The one that accounts for most of the squared change is taken, its mean change subtracted, and so on.
    """
    assert table.outcome is not None
    weight = table.weight
    sets = tested[:MOST_SETS]
    used = sorted({at for names in sets for at in names})
    columns = {at: segment_column(table, table.schema.features[at]) for at in used}
    candidates = _Candidates(columns, [(), *sets], len(table), seed)
    if before.ndim == 1:
        targets = [("", before, after, table.outcome)]
    else:
        names = table.schema.classes
        targets = [
            (f"class={names[c]}", before[:, c], after[:, c], (table.outcome == c).astype(float)) for c in range(len(names))
        ]
    found: list[tuple[Correction, float]] = []
    total = moved = 0.0
    for label, p, q, y in targets:
        search = _Search(candidates, p, q, y, weight)
        found += search.run(label)
        total += search.total
        moved += float(np.average(np.abs(q - p), weights=weight)) / len(targets)
    found.sort(key=lambda item: (-item[0].share * abs(item[0].after - item[0].before), item[0].segment, item[0].low))
    listed = found[:MOST_CORRECTIONS]
    accounted = sum(gain for _, gain in listed) / total if total > 0 else 0.0
    return Explanation(tuple(one for one, _ in listed), len(table), moved, accounted)


class _Candidates:
    """The segments of every set of features, on rows enough to choose among them."""

    def __init__(self, columns: dict[int, SegmentColumn], sets: list[tuple[int, ...]], size: int, seed: int) -> None:
        self.columns, self.sets, self.size = columns, sets, size
        rows = np.arange(size)
        if size > MOST_ROWS:
            rows = np.sort(np.random.default_rng([seed, 7]).choice(size, MOST_ROWS, replace=False))
        self.rows = rows
        # Numbered without gaps: two columns of many levels have far more pairs of them than there are rows.
        numbered = [np.unique(self.codes(names)[rows], return_inverse=True) for names in sets]
        self.found = [found for found, _ in numbered]
        self.places = [place.ravel() for _, place in numbered]

    def codes(self, names: tuple[int, ...]) -> IntArray:
        """Give every row the number of its segment."""
        out = np.zeros(self.size, np.int64)
        for at in names:
            out = out * len(self.columns[at].labels) + self.columns[at].codes
        return out


class _Search:
    """Matching pursuit over segments and score bands (Mallat & Zhang 1993, with indicators for a dictionary)."""

    def __init__(
        self, candidates: _Candidates, p: FloatArray, q: FloatArray, y: FloatArray, weight: FloatArray | None
    ) -> None:
        self.candidates, self.p, self.q, self.y, self.weight = candidates, p, q, y, weight
        self.mass = len(p) if weight is None else float(weight.sum())
        rows = candidates.rows
        self.bands = _bands(p)
        bands = (self.bands[rows].astype(np.int64), np.full(len(rows), BANDS))
        self.keys = [place * (BANDS + 1) + shift for place in candidates.places for shift in bands]
        self.w, self.rest = np.ones(len(rows)) if weight is None else weight[rows], q[rows] - p[rows]
        self.total = float((self.w * self.rest**2).sum())
        self.least = max(LEAST_ROWS * len(rows) / len(p), 3)
        self.counts = [np.bincount(keys) for keys in self.keys]
        self.weights = [np.bincount(keys, self.w) for keys in self.keys]

    def run(self, label: str) -> list[tuple[Correction, float]]:
        """Take segments, each with the squared change it accounts for, until the next one accounts for next to nothing."""
        found: dict[tuple[int, int], tuple[Correction, float]] = {}
        for _ in range(MOST_CORRECTIONS):
            which, key, gain = self._best()
            if gain < LEAST_SHARE * self.total or gain <= 0:
                break
            inside = self.keys[which] == key
            self.rest[inside] -= np.average(self.rest[inside], weights=self.w[inside])
            before = found[which // 2, key][1] if (which // 2, key) in found else 0.0
            found[which // 2, key] = (self._describe(which // 2, key, label), before + gain)
        return list(found.values())

    def _best(self) -> tuple[int, int, float]:
        best = (0, 0, 0.0)
        highest = 0.0
        for which, keys in enumerate(self.keys):
            sums = np.bincount(keys, self.w * self.rest)
            gain = np.where(self.counts[which] >= self.least, sums**2 / np.maximum(self.weights[which], 1e-300), 0.0)
            at = int(np.argmax(gain))
            conditions = len(self.candidates.sets[which // 2]) + (which % 2 == 0)
            if gain[at] * SIMPLER**conditions > highest:
                highest, best = float(gain[at]) * SIMPLER**conditions, (which, at, float(gain[at]))
        return best

    def _describe(self, which: int, key: int, label: str) -> Correction:
        place, band = divmod(key, BANDS + 1)
        names, code = self.candidates.sets[which], int(self.candidates.found[which][place])
        inside = self.bands == band if band < BANDS else np.ones(len(self.p), bool)
        if names:
            inside &= self.candidates.codes(names) == code
        texts: list[str] = []
        for at in reversed(names):
            labels = self.candidates.columns[at].labels
            code, place = divmod(code, len(labels))
            texts.insert(0, labels[place])
        texts = [label, *texts] if label else texts
        rows = np.flatnonzero(inside)
        p, w = self.p[rows], 1.0 if self.weight is None else self.weight[rows]
        mass = float(np.sum(w)) if self.weight is not None else len(rows)
        means = [float((values * w).sum() / mass) for values in (p, self.q[rows], self.y[rows])]
        low, high = float(p.min()), float(p.max())
        share = mass / self.mass
        return Correction(" & ".join(texts) or "all rows", low, high, len(rows), share, *means)


def _bands(p: FloatArray) -> Int32Array:
    """Cut scores into fifths, each closed on the right: how many of the quantiles lie below each score."""
    p = np.ascontiguousarray(p)
    at = np.arange(1, BANDS) / BANDS * (len(p) - 1)
    below = np.floor(at).astype(np.int64)
    ranks = np.unique(np.concatenate([below, np.minimum(below + 1, len(p) - 1)]))
    found = order_statistics(p, ranks)
    edges = np.unique(np.interp(at, ranks, found))
    out = np.empty(len(p), np.int32)
    digitize(p, np.nextafter(edges, np.inf), out)
    return out
