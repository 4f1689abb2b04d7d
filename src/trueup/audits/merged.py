"""Audits of rows that lie in parts on many machines: each part is summed up where it lies, and the sums add.

Every number of a finding is that of an audit in memory but two. The statistic is the range of a path through all rows in
the order of their scores, and the rows of the parts interleave: it is known from below and from above (see
`trueup.kernels.cells`). ``ecce`` and ``sigma`` are the middle, ``sigma_bound`` is half the width, and p-values are those of
the lower end: they hold, but are not refined for few events. Curves have bins that end where cells do, so that a bin may
hold a cell more or less than a tenth of the rows; measures of the whole take the rows of each of some thousand cells for
rows of one score.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.audits.facts import cutter_of
from trueup.audits.family import Block, Family, Margin, Target, in_order, listed_levels, pairs_of, plan_grid
from trueup.audits.folded import (
    Count,
    Curves,
    Drawn,
    Gather,
    Gathered,
    Look,
    Sum,
    Summed,
    add_counts,
    add_looks,
    jobs_of,
)
from trueup.audits.layout import BUDGET, BYTES_A_CELL, BYTES_A_SEGMENT, Room, cut_again, lay_out, share_out
from trueup.audits.portrait import Pool, portray
from trueup.data.segments import SegmentColumn, check_bins
from trueup.kernels import cells as kernel
from trueup.kernels import cumulative as sums
from trueup.kernels.tails import SYMMETRIC
from trueup.kernels.tally import Cells, Rows, Tally
from trueup.metrics.inference import segment_pvalues

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trueup._types import BoolArray, FloatArray, Int32Array, IntArray, UInt8Array
    from trueup.audits.family import Grid
    from trueup.audits.layout import Layout, Pieces
    from trueup.audits.result import Audit, Settings
    from trueup.audits.streamed import Job
    from trueup.cluster.partitions import PartitionedTable
    from trueup.data.bins import ColumnBinner
    from trueup.kernels.cells import CellTally
    from trueup.kernels.threads import Workers


CURVE_CELLS = 256  # of a segment
NARROW, WIDE = 0.01, 0.02  # half a width of sigma: segments below need no other look; rows get one if some are above
LOOKS = 3  # at most: another only where a bound is wide still
FEW_GROUPS = 4  # of combinations whose cells are summed up in one pass: of more, each is looked at again but once
NARROWER = {
    kernel.SURE_HIGH: np.maximum, kernel.SURE_LOW: np.minimum, kernel.SPAN_FROM: np.maximum, kernel.SPAN_TO: np.minimum,
    kernel.RISE_FROM: np.maximum, kernel.RISE_TO: np.minimum, kernel.FALL_TO: np.minimum, kernel.EXACT: np.maximum,
}  # fmt: skip
NEARLY = 1 - 1e-9  # as `kernels.tails` tells which of two comes first


@dataclass(frozen=True, eq=False)
class MergedFamily(Family):
    """A family whose segments were summed up part by part; ``limits`` are those of `kernels.cells.bound`."""

    limits: FloatArray = field(default_factory=lambda: np.empty((0, 8)))
    follow: Callable[[Int32Array, Int32Array, IntArray], tuple[Room, FloatArray]] = field(
        default=lambda *_: (_nowhere(), np.empty(0))
    )
    """Sum up the curves of some segments, by their columns, codes and rows, in cells."""

    @property
    def margin(self) -> Margin:
        """How much of sigma is not known, and the p-values of what is sure."""
        state = np.concatenate([block.tally.state for block in self.blocks])
        low, high = self.limits[:, kernel.SPAN_FROM], self.limits[:, kernel.SPAN_TO]
        noise = np.sqrt(state[:, sums.VARIANCE])
        with np.errstate(invalid="ignore", divide="ignore"):
            half = np.where((high > low) & (noise > 0), 0.5 * (high - low) / noise, 0.0)
        return Margin(half, _pvalues(self.limits, state[:, sums.VARIANCE], state[:, sums.SKEW]))

    def curve_sums(self, which: IntArray, bins: Int32Array, most: int) -> FloatArray:
        """Sum up the curves of some segments, in bins that end where cells do."""
        some, out = self.take(which), np.zeros((len(which), most, 6))
        columns, codes = (key[which] for key in self.keys)
        room, cells = self.follow(columns, codes, some.rows)
        kernel.spread_curves(room.first, cells, some.weight.copy(), bins, out)
        return out


def _nowhere() -> Room:
    return Room(np.empty(0, np.int32), np.zeros(1, np.int64))


def _pvalues(limits: FloatArray, v: FloatArray, k3: FloatArray) -> FloatArray:
    """Give p-values that hold whatever lies between the limits: a shorter range is the likelier one, either way up.

    The default p-value falls in the range, but for a step where a skewness stops being taken for rounding: so that is
    looked at, too. Predictions that are all certain (v = 0) are contradicted by any residual: there the upper end decides.
    """
    low, high = (np.ascontiguousarray(limits[:, c]) for c in (kernel.SPAN_FROM, kernel.SPAN_TO))
    low = np.where(v > 0, low, high)
    rise = np.ascontiguousarray(limits[:, kernel.RISE_FROM])
    with np.errstate(over="ignore"):
        step = np.clip((1 + 1e-9) * SYMMETRIC * v * v / np.maximum(np.abs(k3), 1e-300), low, high)
    found = np.zeros(len(low))
    for ahead, most in ((1.0, limits[:, kernel.RISE_TO]), (0.0, limits[:, kernel.FALL_TO])):
        for span in (low, step):
            np.maximum(found, np.where(most >= low * NEARLY, segment_pvalues(span, ahead * span, v, k3), 0.0), out=found)
    return np.where(limits[:, kernel.EXACT] > 0, segment_pvalues(low, rise, v, k3), found)


def audit_parts(
    parts: PartitionedTable,
    bins: int | Mapping[str, Any],
    settings: Settings,
    workers: Workers,
    judge: Callable[..., Audit],
) -> Audit:
    """Audit rows in parts by sums that add; ``judge`` turns families into an audit."""
    bins = check_bins([feature.name for feature in parts.schema.features], bins)
    cutters = [cutter_of(parts, feature, bins) for feature in parts.schema.features]
    gathered = parts.map_reduce(Gather(cutters, parts.schema, parts.left_out), Gathered.join)
    facts = gathered.facts
    facts.check()
    columns = [SegmentColumn(one.name, np.empty(0, np.int32), one.labels) for one in cutters]
    grid = plan_grid(columns, [], facts.counts, len(facts), settings, len(gathered.marks))
    merging = _Merging(parts, cutters, grid, len(facts), workers)
    families = merging.families(gathered)
    audit = judge(facts, grid, families, settings, workers)
    pool = _pool(merging.whole, merging.low, merging.high)
    portrait = portray(pool, audit.overall.curve, settings.alpha, real=False, fingerprint=gathered.fingerprint)
    merging.tell(4)
    return replace(audit, whole_rows=[portrait])


@dataclass(eq=False)
class _Merging:
    """An audit of parts under way."""

    parts: PartitionedTable
    cutters: Sequence[ColumnBinner]
    grid: Grid
    rows: int
    workers: Workers
    whole: FloatArray = field(default_factory=lambda: np.empty((0, 6)))
    """Sums of the finest cells, from which the portrait is made; their lowest and highest scores."""
    low: FloatArray = field(default_factory=lambda: np.empty(0))
    high: FloatArray = field(default_factory=lambda: np.empty(0))

    def families(self, gathered: Gathered) -> list[Family]:
        """Find the segments, and sum them up for every score."""
        weighted = gathered.facts.schema.weight is not None
        self.tell(1)
        found = self._cells()
        self.tell(2)
        jobs = jobs_of(self.grid, self.rows, found)
        layouts = [lay_out(marks) for marks in gathered.marks.values()]
        sizes = np.concatenate([_cells_of(job).rows for job in jobs]).astype(np.int64)
        rooms = share_out(layouts, sizes)
        starts = np.append(0, np.cumsum([len(_cells_of(job)) for job in jobs]))
        states: list[list[tuple[CellTally, FloatArray]]] = [[] for _ in layouts]
        groups = _groups(starts, rooms)
        for first, last in groups:
            some = [room.part(starts[first], starts[last]) for room in rooms]
            work = Sum(self.cutters, self.grid, self.rows, found, slice(first, last), layouts, some)
            summed = self.parts.map_reduce(work, Summed.join)
            self.low, self.high = summed.low[0], summed.high[0]
            limited = self._limits(work, summed, LOOKS if len(groups) <= FEW_GROUPS else 1)
            for into, tally, limits in zip(states, summed.tallies, limited, strict=True):
                into.append((replace(tally, cells=np.empty((0, 4)), parts=np.empty(0, np.uint8)), limits))
        self.tell(3)
        return [
            self._family(at, label, jobs, starts, layouts[at], states[at], weighted=weighted)
            for at, label in enumerate(gathered.marks)
        ]

    def _limits(self, work: Sum, summed: Summed, looks: int) -> list[FloatArray]:
        """Bound the statistic of every segment; where a bound is wide, look again at the cells that matter."""
        known = [
            _Known(layout, room, tally, layout.single(low, high))
            for layout, room, tally, low, high in zip(work.layouts, work.rooms, *summed, strict=True)
        ]
        budget = BUDGET // len(known)
        for one in known:
            one.bound()
        for _ in range(looks):
            pieces = [cut_again(one.layout, one.room, one.doubtful(), one.width, budget) for one in known]
            if not any(len(one.cells) for one in pieces):
                break
            seen = self.parts.map_reduce(Look(work, pieces), add_looks)
            for one, cut, again in zip(known, pieces, seen, strict=True):
                one.look(cut, again)
        return [one.limits for one in known]

    def tell(self, done: int) -> None:
        """Report progress, by kinds of passes: what is known, counts, sums, curves."""
        if self.workers.progress is not None:
            self.workers.progress(done, 4)

    def _cells(self) -> dict[tuple[int, ...], Cells]:
        """Count the rows of every combination, first of pairs, then of triples; keep those with rows enough."""
        pairs = pairs_of(self.grid)
        found: dict[tuple[int, ...], Cells] = {}
        for wanted in ([*pairs], [(*pair, third) for pair, thirds in pairs.items() for third in thirds]):
            if not wanted:
                continue
            counted = self.parts.map_reduce(Count(self.cutters, self.grid, wanted, dict(found)), add_counts)
            for columns, (numbers, times) in zip(wanted, counted, strict=True):
                keep = times >= self.grid.min_rows
                found[columns] = Cells(numbers[keep], times[keep], int(len(keep) - keep.sum()))
        return found

    def _family(
        self, at: int, label: str, jobs: Sequence[Job], starts: IntArray, layout: Layout,
        states: Sequence[tuple[CellTally, FloatArray]], *, weighted: bool,
    ) -> Family:  # fmt: skip
        limits = np.concatenate([one[1] for one in states])
        state, weights = (np.concatenate([getattr(one[0], name) for one in states]) for name in ("state", "weights"))
        thin = [0, *(listed_levels(self.grid, column)[1] for column in range(len(self.grid.all_columns)))]
        blocks = []
        for number, job in enumerate(jobs):
            some, cells = slice(starts[number], starts[number + 1]), _cells_of(job)
            if not weighted:
                weights[some] = cells.rows[:, None]
            tally = Tally(np.asarray(cells.rows, np.int64), _middle(state[some], limits[some]), weights[some], real=False)
            few = thin[number] if number < len(thin) else cells.thin
            blocks.append(in_order(Block(job.columns, job.segments(), tally, few)))
        none = np.empty(0)
        nobody = Rows(none.astype(np.int64), none.astype(np.int32), none, none, none, real=False)
        target = Target(label, nobody, self.grid, self.workers.threads)
        return MergedFamily(target, blocks, 0, limits, partial(self._follow, at, layout))

    def _follow(
        self, at: int, layout: Layout, columns: Int32Array, codes: Int32Array, rows: IntArray
    ) -> tuple[Room, FloatArray]:
        """Go through the rows once more, for the curves of some segments; the whole has the finest cells."""
        level = layout.level(np.where(columns[:, 0] < 0, len(layout.edges) + 1, np.minimum(4 * rows, CURVE_CELLS)))
        room = Room(level, np.append(0, np.cumsum(layout.sizes[level])))
        drawn = self.parts.map_reduce(Curves(self.cutters, self.grid, at, layout, columns, codes, room), Drawn.__add__)
        self.whole = drawn.whole if at == 0 else self.whole
        return room, drawn.cells


def _cells_of(job: Job) -> Cells:
    assert job.cells is not None
    return job.cells


def _groups(starts: IntArray, rooms: Sequence[Room], budget: int = BUDGET) -> list[tuple[int, int]]:
    """Cut the combinations into groups whose cells fit: parts are gone through again for each."""
    taken = sum((BYTES_A_CELL * room.first + BYTES_A_SEGMENT * np.arange(len(room.first)) for room in rooms), np.zeros(1))
    cuts, begun = [0], 0.0
    for at in range(1, len(starts)):
        if taken[starts[at]] - begun > 2 * budget and at - 1 > cuts[-1]:
            cuts.append(at - 1)
            begun = taken[starts[at - 1]]
    return list(zip(cuts, [*cuts[1:], len(starts) - 1], strict=True))


@dataclass(eq=False)
class _Known:
    """What is known of the segments of one score: the cells of each, which of them have one score only, and the limits."""

    layout: Layout
    room: Room
    tally: CellTally
    single: BoolArray
    limits: FloatArray = field(default_factory=lambda: np.empty((0, 8)))

    def bound(self) -> None:
        """Bound the statistic of every segment."""
        self.limits = self._limits(np.empty(0, np.int32), np.zeros(1, np.int64), np.empty((0, 4)), np.empty(0, np.uint8))

    def _limits(self, chosen: Int32Array, starts: IntArray, finer: FloatArray, parts: UInt8Array) -> FloatArray:
        out, tally = np.empty((len(self.room.level), 8)), self.tally
        own = self.room.first, self.room.level, self.single, tally.cells, tally.parts
        kernel.bound(*own, chosen, starts, finer, parts, out)
        return out

    def look(self, pieces: Pieces, seen: CellTally) -> None:
        """Take in what was seen of some cells in pieces: of two limits that are true, the narrower."""
        tally, before = self.tally, self.limits
        limits = self._limits(pieces.numbers(len(tally.parts)), pieces.starts, seen.cells, seen.parts)
        kernel.sharpen(pieces.cells, pieces.starts, seen.cells, seen.parts, tally.cells, tally.parts)
        for column, narrower in NARROWER.items():
            limits[:, column] = narrower(limits[:, column], before[:, column])
        span = limits[:, kernel.SURE_HIGH] - limits[:, kernel.SURE_LOW]
        limits[:, kernel.SPAN_FROM] = np.maximum(span, limits[:, kernel.SPAN_FROM])
        limits[:, kernel.SPAN_TO] = np.maximum(limits[:, kernel.SPAN_TO], limits[:, kernel.SPAN_FROM])
        self.limits = limits

    @property
    def width(self) -> FloatArray:
        """How much of sigma is not known of every segment."""
        width = self.limits[:, kernel.SPAN_TO] - self.limits[:, kernel.SPAN_FROM]
        noise = np.sqrt(self.tally.state[:, kernel.VARIANCE])
        return np.asarray(np.where(noise > 0, width / np.where(noise > 0, noise, 1.0), 0.0))

    def doubtful(self) -> BoolArray:
        """Say in which cells a path may pass what is sure of its ends, where that matters."""
        out = np.zeros(len(self.tally.parts), bool)
        wide = self.width > 2 * NARROW
        if (self.width > 2 * WIDE).any():
            place = self.room.first, self.room.level, self.single
            kernel.choose(*place, self.tally.cells, self.tally.parts, self.limits, wide, out)
        return out


def _middle(state: FloatArray, limits: FloatArray) -> FloatArray:
    """Write the sums of segments as `kernels.cumulative` does; of the path the middle of what is known."""
    out = np.zeros((len(state), 8))
    out[:, [sums.CUM, sums.EXPECTED, sums.VARIANCE, sums.SKEW]] = state
    exact, low = limits[:, kernel.EXACT] > 0, limits[:, kernel.SURE_LOW]
    span = 0.5 * (limits[:, kernel.SPAN_FROM] + limits[:, kernel.SPAN_TO])
    out[:, sums.LOW] = np.where(exact, low, 0.0)
    out[:, sums.HIGH] = np.where(exact, limits[:, kernel.SURE_HIGH], span)
    out[:, sums.RISE] = 0.5 * (limits[:, kernel.RISE_FROM] + limits[:, kernel.RISE_TO])
    return out


def _pool(whole: FloatArray, low: FloatArray, high: FloatArray) -> Pool:
    """Take the rows of each of the finest cells for one entry."""
    some = whole[:, 0] > 0
    rows, w, score, e, spread, square = whole[some].T
    p = np.where(low[some] == high[some], low[some], np.clip(score / w, low[some], high[some]))
    return Pool(p, w.copy(), e.copy(), spread.copy(), square.copy(), rows.astype(np.int64), np.ones(len(p), bool))
